"""Autocast around more or less of a training loop: the cost of each scope against forward and loss alone.

PyTorch recommends forward and loss. Times are compared as `ampbench.studies.paired` does.
"""

import statistics
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, NamedTuple

import msgspec

from ampbench.core.precisions import AUTOCAST, PRECISIONS, SHORT_DTYPES
from ampbench.core.statement import Statement, state
from ampbench.core.units import UNDEFINED, counted
from ampbench.records import Builds, Change, Count, ErrorSize, Seconds, Steps, one_of
from ampbench.records.case import Case
from ampbench.records.kinds import SCOPE
from ampbench.records.measured import Fitness
from ampbench.records.wire import Task
from ampbench.show.document import Column
from ampbench.studies.study import (
    Ratio,
    Selects,
    Study,
    Table,
    advise,
    asks,
    average,
    busy,
    info,
    ratio_of,
    short_ratio,
    step_seconds,
)

FORWARD, FORWARD_AND_LOSS, WITH_BACKWARD, WHOLE_LOOP, UNCACHED_LOOP = SCOPES = (
    "forward",
    "forward and loss",
    "forward, loss and backward",
    "whole loop",
    "whole loop, cache off",
)
"""What autocast is entered around; PyTorch recommends forward and loss."""

FEWEST_STEPS = 2
"""The least steps of a comparison: effects of one step on the next show in the second."""


class ScopeRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The effect of autocast around `scope`, one of `SCOPES`, on some steps of training.

    Per step: `casts`, the `cast_bytes` they move, `stale_weights`, which are read as copies from before the optimizer
    changed them, `peak_bytes` and, after the step, `alive_bytes` above what was allocated before the first; empty where
    unavailable. `samples[b]` are seconds per step of build `b`, taken in turns with the other scopes. `dtypes` are
    those of "output", "loss" and "gradients". Errors are against the same steps in fp64: output, loss and gradients of
    the first step, `update_rel_l2` of the change by all steps; None: undefined. `error` is the first line of its error.
    """

    scope: Annotated[str, one_of(*SCOPES)]
    casts: list[Count] = []
    cast_bytes: list[Count] = []
    stale_weights: list[Count] = []
    samples: Builds = []
    peak_bytes: list[Count] = []
    alive_bytes: list[Change] = []
    dtypes: dict[str, str] = {}
    output_rel_l2: ErrorSize | None = None
    loss_rel_error: ErrorSize | None = None
    grad_rel_l2: ErrorSize | None = None
    update_rel_l2: ErrorSize | None = None
    error: str = ""
    notes: list[str] = []

    @property
    def stale(self) -> int | None:
        """The weights that the last step reads as copies older than the optimizer's last step."""
        return self.stale_weights[-1] if self.stale_weights else None

    @property
    def peak(self) -> int | None:
        """The highest peak of all steps."""
        return max(self.peak_bytes, default=None)

    @property
    def kept(self) -> int | None:
        """The bytes that the last step leaves allocated."""
        return self.alive_bytes[-1] if self.alive_bytes else None

    @property
    def growth(self) -> float | None:
        """The median of the bytes that each step after the first adds."""
        return average((after - before for before, after in pairwise(self.alive_bytes)), statistics.median)


class ScopePass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A case trained for `steps` steps in each scope, and without autocast in `reference_dtype`.

    That is "fp64", or "fp32" where fp64 fails ("": both do, and no error is known).
    """

    case_id: str
    steps: Steps
    scopes: list[ScopeRun] = []
    reference_dtype: str = "fp64"
    fitness: Fitness = Fitness()
    notes: list[str] = []


class ScopeAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To train a case for `steps` steps in every scope, and to time these for about `seconds`."""

    steps: Annotated[int, asks("Steps of training in each scope.", least=FEWEST_STEPS, most=1000, metavar="N")] = 8
    seconds: Annotated[Seconds, asks("Timing per case", seconds=True)] = 20.0


class Scope(StrEnum):
    """A scope of autocast against the recommended one."""

    RECOMMENDED = "scope-recommended"
    RAISES = "scope-raises"
    STALE = "scope-stale"
    CASTS = "scope-casts"
    TIME = "scope-time"
    PEAK = "scope-peak"
    GROWS = "scope-grows"
    KEEPS = "scope-keeps"
    LOW_LOSS = "scope-low-loss"
    ERROR = "scope-error"
    UNDEFINED = "scope-undefined"
    FREE = "scope-free"


LARGER = 2.0
"""An error counts as larger from this factor of the recommended scope's on: chance changes errors by less."""
LARGER_PEAK = 1.01
"""From this factor on, a peak is larger: below, an op took its scratch memory a moment earlier."""


class Compared(NamedTuple):
    """A scope's `run`, and how many times as long a step takes as in the recommended scope (None: unknown)."""

    run: ScopeRun
    ratio: Ratio | None


def compared(record: ScopePass) -> list[Compared]:
    """Return each scope of a pass with the recommended one, in their order."""
    best = next((run.samples for run in record.scopes if run.scope == FORWARD_AND_LOSS), [])
    return [
        Compared(run, ratio_of(run.samples, best) if best and run.samples and run.samples is not best else None)
        for run in record.scopes
    ]


def conclusions(case: Case, record: ScopePass) -> Iterator[Statement]:
    """Yield the effect of the recommended scope, the cost of each other scope against it, and doubts about times."""
    rows = compared(record)
    best = next((run for run in record.scopes if run.scope == FORWARD_AND_LOSS and not run.error), None)
    spoilt = busy(record.fitness) if any(row.run.samples for row in rows) else None
    for row in sorted(rows, key=lambda row: row.run.scope != FORWARD_AND_LOSS):
        run = row.run
        if run.error:
            yield state(Scope.RAISES, run.scope, error=run.error)
        elif run.scope != FORWARD_AND_LOSS:
            costs = [*_state_of_memory(run, best), *_costs(row, best, record, timed=spoilt is None)]
            yield from costs or [info(Scope.FREE, run.scope)]
        else:
            yield info(Scope.RECOMMENDED, run.scope)
            yield from _state_of_memory(run, None)
            if run.dtypes.get("loss") == SHORT_DTYPES[PRECISIONS[case.precision].autocast or ""]:
                yield advise(Scope.LOW_LOSS, run.scope, dtype=run.dtypes["loss"])
    if spoilt is not None:
        yield spoilt


def _costs(row: Compared, best: ScopeRun | None, record: ScopePass, *, timed: bool) -> Iterator[Statement]:
    """Yield the cost of a scope, against the recommended scope if it runs; in time only where `timed`."""
    run = row.run
    ratio = row.ratio if timed else None
    if ratio is not None and (round(ratio.low or 0.0, 2) > 1 or round(ratio.high or 1.0, 2) < 1):
        yield advise(Scope.TIME, run.scope, **ratio.facts)
    if best is None:
        return
    if sum(run.casts) > sum(best.casts) > 0:
        yield advise(Scope.CASTS, run.scope, casts=casts_text(run.casts), than=casts_text(best.casts))
    if (run.peak or 0) > LARGER_PEAK * (best.peak or 0) > 0:
        yield advise(Scope.PEAK, run.scope, peak=run.peak, than=best.peak)
    for part, error, least in (
        ("output", run.output_rel_l2, best.output_rel_l2),
        ("loss", run.loss_rel_error, best.loss_rel_error),
        ("gradient", run.grad_rel_l2, best.grad_rel_l2),
        ("update", run.update_rel_l2, best.update_rel_l2),
    ):
        if least is not None and error is None:
            yield advise(Scope.UNDEFINED, run.scope, what=part)
        elif least is not None and error is not None and error > LARGER * least:
            yield advise(Scope.ERROR, run.scope, what=part, error=error, than=least, reference=record.reference_dtype)


def _state_of_memory(run: ScopeRun, best: ScopeRun | None) -> Iterator[Statement]:
    """Yield the weights that a scope reads as stale copies, and the memory it keeps beyond the recommended scope."""
    if run.stale:
        since = next(step for step, count in enumerate(run.stale_weights, start=1) if count)
        yield state(Scope.STALE, run.scope, step=since, weights=run.stale)
    kept = (run.kept or 0) - ((best.kept or 0) if best else 0)
    growth = (run.growth or 0) - ((best.growth or 0) if best else 0)
    if growth > 0:
        yield advise(Scope.GROWS, run.scope, growth=growth)
    elif kept > 0:
        yield advise(Scope.KEEPS, run.scope, kept=kept)


def casts_text(casts: Sequence[int]) -> str:
    """Return casts per step as "15", "15, then 9" or "9 to 15"."""
    first, *later = casts
    if len(set(later)) > 1:
        return f"{min(casts)} to {max(casts)}"
    return f"{first}, then {later[0]}" if later and later[0] != first else f"{first}"


_SHORT = {scope: scope for scope in SCOPES} | {WITH_BACKWARD: "with backward", UNCACHED_LOOP: "cache off"}
"""The scopes' names in tables."""


COLUMNS: Sequence[Column[Compared]] = (
    Column("scope", lambda row: row.run.scope, "scope", said=lambda row: _SHORT[row.run.scope]),
    Column("reason", lambda row: row.run.error or None, "raises", rare=True),
    Column(
        "first_casts", lambda row: row.run.casts[0] if row.run.casts else None, "casts", "whole",
        lambda row: casts_text(row.run.casts) if row.run.casts else UNDEFINED,
    ),
    Column("later_casts", lambda row: average(row.run.casts[1:], statistics.median)),
    Column("later_cast_bytes", lambda row: average(row.run.cast_bytes[1:], statistics.median), "moved", "B"),
    Column("stale_weights", lambda row: row.run.stale, "stale", "whole"),
    Column("seconds", lambda row: step_seconds(row.run.samples), "step", "s"),
    Column("kept_bytes", lambda row: row.run.kept, "kept", "B"),
    Column("growth_bytes", lambda row: row.run.growth, "growth", "B"),
    Column("loss_rel_error", lambda row: row.run.loss_rel_error, "loss", "error"),
    Column("peak_memory_bytes", lambda row: row.run.peak, "peak", "B"),
    Column(
        "ratio", lambda row: row.ratio and row.ratio.value, "time ratio", "ratio",
        lambda row: short_ratio(row.ratio) if row.ratio else "" if row.run.scope == FORWARD_AND_LOSS else UNDEFINED,
    ),
    Column("ratio_low", lambda row: row.ratio and row.ratio.low),
    Column("ratio_high", lambda row: row.ratio and row.ratio.high),
    Column("output_rel_l2", lambda row: row.run.output_rel_l2, "output", "error"),
    Column("grad_rel_l2", lambda row: row.run.grad_rel_l2, "gradients", "error"),
    Column("update_rel_l2", lambda row: row.run.update_rel_l2, "updates", "error"),
    Column("output_dtype", lambda row: row.run.dtypes.get("output"), "output"),
    Column("loss_dtype", lambda row: row.run.dtypes.get("loss"), "loss"),
    Column("gradients_dtype", lambda row: row.run.dtypes.get("gradients"), "gradients"),
)  # fmt: skip
"""Columns of a scope: its numbers a step, in SI units, and their ratio to the recommended scope's."""

STUDY: Study[ScopeAsked, ScopePass] = Study(
    kind=SCOPE,
    help="""\
Train with autocast around forward, forward and loss, backward too, or the whole loop, and say what each costs.

In each scope the same steps run, from the same weights: casts and memory per step, time in turns, dtypes, errors
against fp64, losses. PyTorch recommends forward and loss. The run is stored: ampbench show RUN prints it again.

\b
Examples:
  ampbench study scope model.py:make
  ampbench study scope mlp --precision bf16_autocast --steps 16 --seconds 1m
""",
    doing="studying",
    asked=ScopeAsked,
    task=Task(SCOPE, ScopeAsked, ScopePass, "ampbench.studies.scope_measure:measure_scopes"),
    selects=Selects(phases=("training",), among=AUTOCAST),
    title="Scope of autocast",
    key="scope",
    heading=lambda record: counted(record.steps, "step"),
    remarks=lambda record: [*record.notes, *(f"{run.scope}: {note}" for run in record.scopes for note in run.notes)],
    tables=(
        Table(
            "scopes", COLUMNS, compared, "What it costs",
            "per step; with backward: around all three; cache off: around the whole loop, without weight cache; moved: "
            f"by casts after the first step; time ratio: to {FORWARD_AND_LOSS}; kept: left by the last step; growth: "
            "what a step adds to that",
            keys="scope first_casts later_cast_bytes seconds ratio peak_memory_bytes kept_bytes growth_bytes",
        ),
        Table(
            "", COLUMNS, compared, "What it computes in", "stale: weights that the last step reads as old copies",
            keys="scope output_dtype loss_dtype gradients_dtype stale_weights",
        ),
        Table(
            "", COLUMNS, compared, "Relative errors against the reference",
            "of the first step, in fp64 where that runs; updates: what all steps changed in the weights",
            keys="scope output_rel_l2 loss_rel_error grad_rel_l2 update_rel_l2",
        ),
    ),
    conclusions=conclusions,
)  # fmt: skip

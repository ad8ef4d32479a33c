"""A watched training: its record, which `ampbench.watch` makes, and the conclusions from it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec

from ampbench.core.budget import LEAST_KEPT, MOST_STALL, MOST_SWALLOWED, MOST_UNSCALING
from ampbench.core.precisions import FORMATS
from ampbench.core.statement import Arithmetic, Severity, Statement, state
from ampbench.core.units import counted
from ampbench.records import Count, KeptShare, Magnitude, Positive, Share, Signed, one_of
from ampbench.records.kinds import WATCH
from ampbench.records.labels import few, remarks_of
from ampbench.records.measured import Recipe
from ampbench.records.ranges import ROOT, FirstNonfinite, Magnitudes, format_scale
from ampbench.show.charts import curves
from ampbench.show.document import Column
from ampbench.studies.headroom import MODULE_COLUMNS, by_running_module, fitting, modules_of
from ampbench.studies.study import Study, Table, advise, info

SPARED_SKIPS = 3
"""Skips after the first step taken that are normal: gradients grow in the first steps, and the scale follows."""
SKIPS_OF_GROWTH = 2
"""Skips that are normal each time GradScaler tries a larger scale: it halves the scale at once where that overflows."""
LOSS, GRADIENTS, WEIGHTS = "loss", "gradients", "weights"


class WatchAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The number of steps from one look to the next."""

    every: Positive = 100


class Look(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A step that was looked at.

    `loss` is the last that was differentiated, `grad_norm` the norm of the gradients that the optimizer was given, both
    without the loss scale (None: unknown or not finite). Of the update, `kept` arrived in weights stored in half, and
    `bf16` and `fp16` would have arrived had all others been stored so.
    """

    step: Positive
    loss: Signed | None = None
    grad_norm: Magnitude | None = None
    lr: Magnitude | None = None
    scale: Magnitude | None = None
    skipped: Count = 0
    kept: KeptShare | None = None
    bf16: KeptShare | None = None
    fp16: KeptShare | None = None


class Arrival(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The share of a parameter's update that arrives in storage `dtype`; with `stored` that is its own.

    Of the update's square, `swallowed` is in elements that do not move, `by_storage` of it since the new weight rounds
    to the old one; optimizer arithmetic in half loses the rest. `part` is the parameter's share of the square of all
    updates. Parameters of more than 4,096 elements are judged by as many, evenly spaced.
    """

    parameter: str
    dtype: str
    stored: bool
    part: Share
    kept: KeptShare
    swallowed: Share
    by_storage: Share


class Watched(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A training on `device`, watched for `steps`; GradScaler `skipped` some, the `last` of these after a step.

    `arrivals` are of the last look with an update, `magnitudes` of all looks. `still` are parameters in half that no
    look saw moving, although they had gradients, and `idle` those without. Running statistics of modules stop `stalls`
    away from those of batches, relatively. `halves` are the dtypes in half of parameters. `broken` is the first step
    with a `what` that was not finite (0: before all), `strange` the first such weights, `first` the op that made the
    first such value; or the network's outputs were finite, up to `outputs`. `line` began the backward pass. `raised` is
    the error that ended the block. `unseen` has a code and a detail for all that was not watched.
    """

    network: str
    device: str
    every: Positive
    steps: Count
    taken: Count
    skipped: Count = 0
    last: Count = 0
    growth_interval: Count | None = None
    looks: list[Look] = []
    arrivals: list[Arrival] = []
    magnitudes: list[Magnitudes] = []
    stalls: dict[str, Magnitude] = {}
    recipe: Recipe | None = None
    halves: list[str] = []
    strange: list[str] = []
    still: list[str] = []
    idle: list[str] = []
    broken: Count | None = None
    what: Annotated[str, one_of("", LOSS, GRADIENTS, WEIGHTS)] = ""
    first: FirstNonfinite | None = None
    outputs: Magnitude | None = None
    line: str = ""
    raised: str = ""
    unseen: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The heading of a page."""
        return f"{self.network}, {counted(self.steps, 'step')}"


class Watching(StrEnum):
    """Conclusions from a watched training."""

    HEALTHY = "watch-healthy"
    NOTHING = "watch-nothing"
    BROKEN = "watch-broken"
    FIRST = "watch-first"
    AFTER = "watch-after"
    """The network's outputs are finite, the loss is not."""
    UPDATE = "watch-update"
    WOULD = "watch-would"
    STILL = "watch-still"
    IDLE = "watch-idle"
    SCALE = "watch-scale"
    SCALED = "watch-scaled"
    STALL = "watch-stall"
    RAISED = "watch-raised"
    COMPILED = "watch-compiled"
    """Modules compiled by torch.compile are not seen."""
    UNKNOWN = "watch-unknown"
    """An optimizer whose steps torch does not report, or that moves no parameter of the network."""
    UNJUDGED = "watch-unjudged"
    """An optimizer whose update in half has no reference."""
    FAILED = "watch-failed"
    """An error of the watch itself."""


STORAGE, ARITHMETIC = "storage", "arithmetic"


def conclusions(_: object, record: Watched) -> Iterator[Statement]:
    """Yield problems first, or one statement that there are none; then the effects that half precision would have."""
    problems = list(_problems(record))
    yield from problems
    looks = len(record.looks)
    if not record.steps:
        yield advise(Watching.NOTHING)
    elif not problems:
        yield info(Watching.HEALTHY, steps=record.steps, looks=looks)
    for code, detail in record.unseen.items():
        severity = Severity.INFO if code == Watching.COMPILED else Severity.ADVICE
        yield state(Watching(code), "", severity, detail=detail or None)
    yield from _of_updates(record, stored=False)
    for dtype in record.halves:
        for remark in remarks_of(record.recipe, dtype) if record.recipe else ():
            if remark.code is not Arithmetic.STATISTICS:
                yield replace(remark, severity=Severity.ADVICE, subject=f"stored in {dtype}, by arithmetic alone")
    scales = [look.scale for look in record.looks if look.scale is not None]
    if scales and not _falls(record):
        first, scale = format_scale(scales[0]), format_scale(scales[-1])
        yield info(Watching.SCALED, first=first, scale=scale, skipped=record.skipped)
    if record.idle:
        yield info(Watching.IDLE, names=few(record.idle), count=len(record.idle))
    running = by_running_module(record.magnitudes)
    for dtype in FORMATS if running and record.broken is None else ():
        yield from (replace(statement, severity=Severity.INFO) for statement in fitting(running, dtype))


def _problems(record: Watched) -> Iterator[Statement]:
    if record.raised:
        yield state(Watching.RAISED, error=record.raised, step=record.steps + 1)
    if record.broken is not None:
        names = few(record.strange) if record.strange and record.what != LOSS else None
        yield state(Watching.BROKEN, what=record.what, step=record.broken, names=names)
    if _falls(record):
        scale = record.looks[-1].scale if record.looks else None
        now = None if scale is None else format_scale(scale)
        yield state(Watching.SCALE, steps=record.steps, scale=now, skipped=record.skipped)
    if record.first is not None and (record.broken is not None or _falls(record)):
        line = record.first.frames[-1] if record.first.frames else None
        yield state(Watching.FIRST, record.first.module, first=str(record.first), line=line)
    elif record.outputs is not None:
        yield state(Watching.AFTER, outputs=record.outputs, line=record.line or None)
    yield from _of_updates(record, stored=True)
    if record.still:
        yield state(Watching.STILL, names=few(record.still), count=len(record.still))
    if stalls := {module or ROOT: away for module, away in record.stalls.items() if away > MOST_STALL}:
        yield state(Watching.STALL, names=few(stalls), away=max(stalls.values()), limit=MOST_STALL)


def _falls(record: Watched) -> bool:
    """Return whether the loss scale falls below 1, or steps are skipped again and again."""
    scales = [look.scale for look in record.looks if look.scale is not None]
    allowed = spared_skips(record.taken, record.growth_interval)
    return record.last > allowed or (bool(scales) and scales[-1] * MOST_UNSCALING < 1)


def spared_skips(taken: int, growth_interval: int | None) -> float:
    """Return the number of skipped steps, after the first that was taken, that are normal."""
    return SPARED_SKIPS + SKIPS_OF_GROWTH * taken / (growth_interval or taken or 1)


class Lost(NamedTuple):
    """The share of an update that a storage loses, whose fault it is, and the parameter that loses most."""

    share: float
    cause: str
    worst: str
    worst_kept: float


def lost(arrivals: Sequence[Arrival]) -> Lost | None:
    """Return the loss of the whole update; None where nothing is known."""
    whole = sum(arrival.part for arrival in arrivals)
    if not whole:
        return None
    kept, swallowed, stored = (
        sum(arrival.part * getattr(arrival, name) for arrival in arrivals) / whole
        for name in ("kept", "swallowed", "by_storage")
    )
    worst = max(arrivals, key=lambda arrival: arrival.part * (1 - arrival.kept))
    cause = STORAGE if 2 * stored >= swallowed else ARITHMETIC
    return Lost(max(1 - kept, swallowed), cause, worst.parameter, worst.kept)


def _of_updates(record: Watched, *, stored: bool) -> Iterator[Statement]:
    """Yield the part of the last update that weights in half lose, or would lose."""
    rate = next((look.lr for look in reversed(record.looks) if look.lr is not None), None)
    for dtype in FORMATS:
        loss = lost([row for row in record.arrivals if row.dtype == dtype and row.stored == stored])
        if loss is None:
            continue
        wrong = loss.share > min(1 - LEAST_KEPT, MOST_SWALLOWED)
        if stored and wrong:
            facts = {"share": loss.share, "kept": loss.worst_kept, "limit": MOST_SWALLOWED}
            yield state(Watching.UPDATE, dtype=dtype, cause=loss.cause, worst=loss.worst, lr=rate, **facts)
        elif not stored:
            yield info(Watching.WOULD, dtype=dtype, share=max(loss.share, 0.0), lr=rate)


LOOKS: Sequence[Column[Look]] = (
    Column("step", lambda row: row.step, "step", "whole"),
    Column("loss", lambda row: row.loss, "loss", "loss", rare=True),
    Column("grad_norm", lambda row: row.grad_norm, "gradient norm", "number"),
    Column("lr", lambda row: row.lr, "lr", "number"),
    Column("scale", lambda row: row.scale, "scale", "number", rare=True),
    Column("skipped", lambda row: row.skipped, "skipped", "whole"),
    Column("kept", lambda row: row.kept, "update arrives", "kept", rare=True),
    Column("bf16", lambda row: row.bf16, "in bf16", "kept", rare=True),
    Column("fp16", lambda row: row.fp16, "in fp16", "kept", rare=True),
)
ARRIVALS: Sequence[Column[Arrival]] = (
    Column("parameter", lambda row: row.parameter, "parameter"),
    Column("dtype", lambda row: row.dtype, "stored in"),
    Column("stored", lambda row: row.stored),
    Column("part", lambda row: row.part, "part of update", "share"),
    Column("kept", lambda row: row.kept, "arrives", "kept"),
    Column("swallowed", lambda row: row.swallowed, "swallowed", "share"),
    Column("by_storage", lambda row: row.by_storage, "by storage", "share"),
)


def _shares(record: Watched) -> Iterator[tuple[str, Mapping[float, float | None]]]:
    for name, label in (("kept", "as stored"), ("bf16", "in bf16"), ("fp16", "in fp16")):
        values = {float(look.step): getattr(look, name) for look in record.looks if getattr(look, name) is not None}
        if values:
            yield label, values


STUDY: Study[WatchAsked, Watched] = Study(
    kind=WATCH,
    help="",
    doing="watching",
    asked=WatchAsked,
    title="Watched trainings",
    subject="training",
    subjects=lambda runs, _: [record for stored in runs for record in stored.of(Watched).values()],
    heading=lambda record: record.name,
    remarks=lambda _: (),
    tables=(
        Table("looks", LOOKS, lambda record: record.looks, "Looks", "update arrives, in bf16, in fp16: share of it"),
        Table(
            "arrivals", ARRIVALS,
            lambda record: sorted(record.arrivals, key=lambda row: row.part * (row.kept - 1)),  # those that lose most
            "Updates",
            "of the last look: the share of each parameter's update that arrives in this storage",
        ),
        Table(
            "", MODULE_COLUMNS, lambda record: modules_of(record.magnitudes), "Largest values",
            "of each module, over all looks", folded=True,
        ),
    ),
    conclusions=conclusions,
    charts=(
        curves(
            "watch-updates", "Updates that arrive", "share of the update", "weights", _shares,
            alt="The share of the optimizer's step that weights in a storage take in.",
        ),
    ),
)  # fmt: skip

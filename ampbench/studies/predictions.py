"""Did what an fp32 run foretold of a low precision come true: of modules, and of the gradients of parameters."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from ampbench.core.precisions import SHORT_DTYPES, find_format, find_precision
from ampbench.records.labels import few
from ampbench.records.ranges import GRADIENT, LowRun, Magnitudes, ModuleError, RangePass
from ampbench.studies.formats import FLUSHES, Prediction, by_running_module, fit, predict

_FUSED = frozenset({"MultiheadAttention", "TransformerEncoderLayer", "TransformerEncoder"})
"""Modules that, in inference, may run as one op in which none of those within them is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a module was predicted to do in a low precision, and what it did.

    What was seen is None where it was not to be seen, and the note of its `error` says why; such a prediction is
    neither right nor false.
    """

    error: ModuleError
    predicted: Prediction
    overflow_seen: bool | None = None
    flush_seen: bool | None = None


class Score(NamedTuple):
    """How often something was predicted and seen (`right`), predicted alone (`false`), seen alone (`missed`).

    Of those missed, `near` were told to be near it.
    """

    right: int = 0
    false: int = 0
    missed: int = 0
    near: int = 0

    @property
    def predicted(self) -> int:
        """How often it was predicted, of what could be seen."""
        return self.right + self.false

    @property
    def seen(self) -> int:
        """How often it was seen."""
        return self.right + self.missed


class Scores(NamedTuple):
    """How good predictions are. `checked` modules were looked at in both ways."""

    overflow: Score = Score()
    flush: Score = Score()
    checked: int = 0


class GradientOutcome(NamedTuple):
    """The gradient of a parameter: the share of its finite values predicted and seen to flush to zero.

    `predicted` is None where fp32 gave no finite one, `seen` where the low precision did not. Of its `elements`,
    `nonfinite` are not finite in the low precision alone; `overflows` says whether any was predicted to be.
    """

    parameter: str
    elements: int
    predicted: float | None
    seen: float | None
    overflows: bool
    nonfinite: int


def low_dtype(precision: str) -> str:
    """Return the short name of the dtype that a low precision computes in: "fp16" for fp16_autocast."""
    row = find_precision(precision)
    return SHORT_DTYPES[row.autocast or row.storage]


def whole_step_seen(low: LowRun) -> bool:
    """Return whether a step in a low precision ran to its end: one that was refused left nothing but a note."""
    return not low.error and bool(low.lowered or low.lowered_weights or low.gradients or not low.notes)


def predicted_and_seen(found: RangePass, low: LowRun) -> list[Outcome]:
    """Return what was predicted of each module in `low` and what it did, in the order of running.

    Predicted is from the magnitudes of `found` as by `predict`: in pure half of all values; with autocast, of those
    that autocast made half precision in the step. A module computes in the low dtype if one of its own weights is used
    in it or if its outputs are in it; inputs count only then. One that is handed rounded inputs and gives fp32, as a
    softmax on CUDA, has lost nothing by itself: what its inputs lost is told of the module they come from.

    Seen is what it does on exact inputs: it overflows if any output does, and flushes if at least `FLUSHES` of its
    outputs do. In any case a module overflows that the whole step names as the first to make a value that is not finite
    in its forward pass; where it is not among those compared, it comes last, unless it is one that torch may run fused
    (or one without values of its own) and a module within it was seen to overflow.
    """
    rows = by_running_module(found.magnitudes)
    first = None
    if low.first_nonfinite is not None and low.first_nonfinite.phase == "forward" and not low.overflowed_weights:
        first = low.first_nonfinite.module
    known = _predictor(low)
    home = {row.name: module for module, values in rows.items() for row in values if row.name}
    # whose own weights or buffers overflow as they are stored
    alone = {
        home.get(name, name.rpartition(".")[0]): "its weights or buffers overflow as they are stored"
        for name in low.overflowed_weights
    }
    outcomes = []
    unknown = f"what is in {low_dtype(low.precision)} is not known, as the whole step was not seen"
    for row in low.modules:
        prediction = known(rows.get(row.module, []))
        note = (unknown if prediction is None else row.note) if row.elements else row.note or "it was not compared"
        seen = row.elements > 0 and prediction is not None
        surely = prediction is not None and (row.module == first or row.module in alone)
        outcomes.append(
            Outcome(
                error=replace(row, note=note),
                predicted=prediction or Prediction(),
                overflow_seen=True if surely else row.overflowed > 0 if seen else None,
                flush_seen=row.flushed >= FLUSHES * row.elements if seen else None,
            )
        )
    values = rows.get(first, []) if first is not None else []
    fused = not values or values[0].kind in _FUSED
    within = fused and any(row.overflowed for row in low.modules if row.module.startswith(f"{first}." if first else ""))
    if first is not None and not within:
        alone.setdefault(first, "only the whole step was seen")
    for module in [name for name in alone if name not in {row.module for row in low.modules}]:
        values = rows.get(module, [])
        prediction = known(values)
        kind = values[0].kind if values else ""
        outcomes.append(
            Outcome(
                error=ModuleError(module=module, kind=kind, elements=0, note=alone[module]),
                predicted=prediction or Prediction(),
                overflow_seen=True if prediction else None,
            )
        )
    return outcomes


def scores(outcomes: Iterable[Outcome]) -> Scores:
    """Return how good predictions are, over what could be seen."""
    every = list(outcomes)
    return Scores(
        overflow=_score((row.predicted.overflows, row.overflow_seen, row.predicted.near_overflow) for row in every),
        flush=_score((row.predicted.flushes, row.flush_seen, row.predicted.near_flush) for row in every),
        checked=sum(row.overflow_seen is not None and row.flush_seen is not None for row in every),
    )


def predicted_gradients(found: RangePass, low: LowRun) -> list[GradientOutcome]:
    """Return the gradients of parameters as predicted at the loss scale of `low` and as seen, the worst first.

    With autocast, a gradient is in the low dtype where the weight is used in it; others are fp32 and lose nothing by
    themselves. What gradients lose on their way, as gradients of activations, is not in this prediction, nor what
    becomes zero because it is the difference of equal values.
    """
    scale = low.scaler_scale or 1.0
    dtype = low_dtype(low.precision)
    values = {row.name: row for row in found.magnitudes if row.what == GRADIENT and row.name}
    rows = []
    for seen in low.gradients:
        exact = values.get(seen.parameter)
        share = fit(exact, dtype, scale).flushed if exact else None
        in_fp32 = not _is_pure(low) and seen.parameter not in low.lowered_weights
        over = bool(exact and exact.largest and exact.largest * scale >= find_format(dtype).overflow)
        rows.append(
            GradientOutcome(
                parameter=seen.parameter,
                elements=seen.elements,
                predicted=0.0 if in_fp32 and share is not None else share,
                seen=seen.flushed / finite if (finite := seen.elements - seen.nonfinite) else None,
                overflows=over and not in_fp32,
                nonfinite=seen.nonfinite,
            )
        )
    return sorted(rows, key=lambda row: (not row.nonfinite, -(row.seen or 0.0), -(row.predicted or 0.0)))


def flushed_together(rows: Iterable[GradientOutcome]) -> tuple[float | None, float | None]:
    """Return the shares predicted and seen of the values of all parameters of which both are known; None: of none."""
    known = [
        (row.elements - row.nonfinite, row.predicted, row.seen)
        for row in rows
        if row.predicted is not None and row.seen is not None
    ]
    total = sum(finite for finite, *_ in known)
    if not total:
        return None, None
    return sum(each[0] * each[1] for each in known) / total, sum(each[0] * each[2] for each in known) / total


def left_out(reasons: Iterable[str]) -> str:
    """Return the reasons why modules were left out, each with its number; "" without any."""
    counts = Counter(reason or "no reason given" for reason in reasons).most_common()
    return few(f"{reason} ({count:,})" for reason, count in counts)


def _predictor(low: LowRun) -> Callable[[list[Magnitudes]], Prediction | None]:
    """Return what predicts for the values of a module; None where no step says what is lowered."""
    dtype = low_dtype(low.precision)
    if _is_pure(low):
        return lambda values: predict(values, dtype)
    if not low.lowered and not low.lowered_weights and not whole_step_seen(low):
        return lambda _: None
    modules, weights = frozenset(low.lowered), frozenset(low.lowered_weights)

    def known(values: list[Magnitudes]) -> Prediction:
        low_itself = any(row.module in modules or row.name in weights for row in values)
        return predict(values, dtype, computes_low=low_itself, lowered_weights=weights)

    return known


def _is_pure(low: LowRun) -> bool:
    return find_precision(low.precision).autocast is None


def _score(told: Iterable[tuple[str, bool | None, str]]) -> Score:
    known = [(bool(predicted), seen, bool(near)) for predicted, seen, near in told if seen is not None]
    pairs = [each[:2] for each in known]
    return Score(
        right=pairs.count((True, True)),
        false=pairs.count((True, False)),
        missed=pairs.count((False, True)),
        near=known.count((False, True, True)),
    )

"""What was predicted of a low precision from fp32 values, held against what really came of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ampbench.precisions import SHORT_DTYPES, find_precision
from ampbench.ranges.formats import find_format
from ampbench.ranges.headroom import FLUSHES, Prediction, by_running_module, headroom, predict
from ampbench.records.ranges import GRADIENT, FirstNonfinite, LowRun, Magnitudes, ModuleError, RangePass

STORED = "its weights or buffers overflow as they are stored"

_FUSED = frozenset({"MultiheadAttention", "TransformerEncoderLayer", "TransformerEncoder"})
"""Modules that, in inference, may run as one op in which none of those within them is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a module was predicted to do in a low precision, and what it did.

    The predictions are as in `Prediction`: "" or which values say so, and which are near it. What was seen is None
    where it was not to be seen, and `note` says why; such a prediction is neither right nor false. The pairs are
    shares: of the values that `Prediction` speaks of, and of the outputs as seen (None: not known). `own_rel_l2` is as
    in `ModuleError`.
    """

    module: str
    kind: str
    overflow_predicted: str = ""
    overflow_seen: bool | None = None
    flush_predicted: str = ""
    flush_seen: bool | None = None
    overflow_near: str = ""
    flush_near: str = ""
    overflow_shares: tuple[float | None, float | None] = (None, None)
    flush_shares: tuple[float | None, float | None] = (None, None)
    own_rel_l2: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
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

    @property
    def precision(self) -> float | None:
        """The share of predictions that came true (None: there were none)."""
        return self.right / self.predicted if self.predicted else None

    @property
    def recall(self) -> float | None:
        """The share of what was seen that was predicted (None: nothing was seen)."""
        return self.right / self.seen if self.seen else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """How good predictions are. `checked` modules were looked at in both ways."""

    overflow: Score = field(default_factory=Score)
    flush: Score = field(default_factory=Score)
    checked: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientOutcome:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientOutcomes:
    """The gradients of all parameters, first those that are not finite and that flush most, and what they are together.

    `scale` is the loss scale. `predicted` and `seen` are shares of the values of all parameters of which both are known
    (None: of none); `overflows` and `nonfinite` are how many parameters have a gradient that does so.
    """

    scale: float
    rows: list[GradientOutcome] = field(default_factory=list)
    predicted: float | None = None
    seen: float | None = None
    overflows: int = 0
    nonfinite: int = 0


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
    first = None if low.overflowed_weights else _first_forward(low.first_nonfinite)
    known = _predictor(low)
    stored = _holders(low, rows)
    outcomes = [
        _outcome(row, known(rows.get(row.module, [])), row.module == first or row.module in stored, low)
        for row in low.modules
    ]
    for module in stored:
        if module not in {row.module for row in low.modules}:
            outcomes.append(_outcome_of_whole(module, rows.get(module, []), known, STORED))
    values = rows.get(first, []) if first is not None else []
    fused = not values or values[0].kind in _FUSED
    within = fused and any(row.overflowed for row in low.modules if row.module.startswith(f"{first}." if first else ""))
    if first is not None and first not in {row.module for row in low.modules} and not within:
        outcomes.append(_outcome_of_whole(first, values, known, "only the whole step was seen"))
    return outcomes


def _holders(low: LowRun, rows: Mapping[str, list[Magnitudes]]) -> list[str]:
    """Return the modules whose own weights or buffers overflow as they are stored, as `rows` group them."""
    home = {row.name: module for module, values in rows.items() for row in values if row.name}
    return list(dict.fromkeys(home.get(name, name.rpartition(".")[0]) for name in low.overflowed_weights))


def _outcome_of_whole(
    module: str, values: Sequence[Magnitudes], known: Callable[[list[Magnitudes]], Prediction | None], note: str
) -> Outcome:
    """Return the outcome of a module that overflows in the whole step and was not compared by itself."""
    prediction = known(list(values))
    return Outcome(
        module=module,
        kind=values[0].kind if values else "",
        overflow_predicted=prediction.overflows if prediction else "",
        overflow_seen=True if prediction else None,
        flush_predicted=prediction.flushes if prediction else "",
        overflow_near=prediction.near_overflow if prediction else "",
        flush_near=prediction.near_flush if prediction else "",
        note=note,
    )


def scores(outcomes: Iterable[Outcome]) -> Scores:
    """Return how good predictions are, over what could be seen."""
    every = list(outcomes)
    looked_at = sum(row.overflow_seen is not None and row.flush_seen is not None for row in every)
    return Scores(
        overflow=_score((row.overflow_predicted, row.overflow_seen, row.overflow_near) for row in every),
        flush=_score((row.flush_predicted, row.flush_seen, row.flush_near) for row in every),
        checked=looked_at,
    )


def predicted_gradients(found: RangePass, low: LowRun) -> GradientOutcomes:
    """Return what was predicted of the gradients of parameters at the loss scale of `low`, and what they were.

    With autocast, a gradient is in the low dtype where the weight is used in it; others are fp32 and lose nothing by
    themselves. What gradients lose on their way, as gradients of activations, is not in this prediction, nor what
    becomes zero because it is the difference of equal values.
    """
    scale = low.scaler_scale or 1.0
    dtype = low_dtype(low.precision)
    overflow = find_format(dtype).overflow
    lowered = None if _is_pure(low) else frozenset(low.lowered_weights)
    values = {row.name: row for row in found.magnitudes if row.what == GRADIENT and row.name}
    rows = []
    for seen in low.gradients:
        exact = values.get(seen.parameter)
        share = headroom(exact, dtype, scale).flushed if exact else None
        in_fp32 = lowered is not None and seen.parameter not in lowered
        rows.append(
            GradientOutcome(
                parameter=seen.parameter,
                elements=seen.elements,
                predicted=0.0 if in_fp32 and share is not None else share,
                seen=seen.flushed / finite if (finite := seen.elements - seen.nonfinite) else None,
                overflows=bool(exact and exact.largest and exact.largest * scale >= overflow and not in_fp32),
                nonfinite=seen.nonfinite,
            )
        )
    return GradientOutcomes(
        scale=scale,
        rows=sorted(rows, key=lambda row: (not row.nonfinite, -(row.seen or 0.0), -(row.predicted or 0.0))),
        predicted=_together(rows, lambda row: row.predicted),
        seen=_together(rows, lambda row: row.seen),
        overflows=sum(row.overflows for row in rows),
        nonfinite=sum(row.nonfinite > 0 for row in rows),
    )


def _outcome(row: ModuleError, prediction: Prediction | None, first: bool, low: LowRun) -> Outcome:
    """Return the outcome of a module; without a `prediction`, none was possible."""
    overflow: bool | None = row.overflowed > 0
    flush: bool | None = row.flushed >= FLUSHES * row.elements
    note = row.note
    if not row.elements:
        overflow = flush = None
        note = note or "it was not compared"
    elif prediction is None:
        overflow = flush = None
        note = f"what is in {low_dtype(low.precision)} is not known, as the whole step was not seen"
    return Outcome(
        module=row.module,
        kind=row.kind,
        overflow_predicted=prediction.overflows if prediction else "",
        overflow_seen=True if first and prediction is not None else overflow,
        flush_predicted=prediction.flushes if prediction else "",
        flush_seen=flush,
        overflow_near=prediction.near_overflow if prediction else "",
        flush_near=prediction.near_flush if prediction else "",
        overflow_shares=(
            prediction.overflow_share if prediction else None,
            row.overflowed / row.elements if row.elements else None,
        ),
        flush_shares=(
            prediction.flush_share if prediction else None,
            row.flushed / row.elements if row.elements else None,
        ),
        own_rel_l2=row.own_rel_l2,
        note=note,
    )


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


def _first_forward(found: FirstNonfinite | None) -> str | None:
    return found.module if found is not None and found.phase == "forward" else None


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


def _together(rows: Iterable[GradientOutcome], share: Callable[[GradientOutcome], float | None]) -> float | None:
    """Return a share of the values of all parameters of which both shares are known."""
    known = [(row, row.elements - row.nonfinite) for row in rows if row.predicted is not None and row.seen is not None]
    total = sum(finite for _, finite in known)
    return sum((share(row) or 0.0) * finite for row, finite in known) / total if total else None

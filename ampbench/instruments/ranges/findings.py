"""Would a low format hold the values, where does the error begin, and did what was foretold come true: in sentences.

They are without their full stops, and begin in lower case or with the name of a format or precision ("fp16: ").
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ampbench.core.precisions import FORMATS, SHORT_DTYPES, find_format, find_precision
from ampbench.core.units import counted, format_error, format_share
from ampbench.instruments.ranges.arithmetic import habits_of, remarks_of
from ampbench.instruments.ranges.headroom import (
    FLUSHES,
    MARGIN,
    Prediction,
    by_running_module,
    headroom,
    predict,
    reach_phrase,
    scale_range,
    usable_scales,
)
from ampbench.records.labels import few, optimizer_name
from ampbench.records.ranges import (
    ACTIVATION,
    GRADIENT,
    INPUT,
    ROOT,
    WEIGHT,
    FirstNonfinite,
    LowRun,
    Magnitudes,
    ModuleError,
    OriginPass,
    RangePass,
    format_scale,
    nonfinite_sentence,
    ranked,
)

STORED = "its weights or buffers overflow as they are stored"

_FUSED = frozenset({"MultiheadAttention", "TransformerEncoderLayer", "TransformerEncoder"})
"""Modules that, in inference, may run as one op in which none of those within them is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a module was predicted to do in a low precision, and what it did.

    What was seen is None where it was not to be seen, and `note` says why; such a prediction is neither right nor
    false. The shares are of the outputs as seen (None: not known). `own_rel_l2` is as in `ModuleError`.
    """

    module: str
    kind: str
    predicted: Prediction
    overflow_seen: bool | None = None
    flush_seen: bool | None = None
    overflow_share: float | None = None
    flush_share: float | None = None
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

    `predicted` and `seen` are shares of the values of all parameters of which both are known (None: of none).
    """

    rows: list[GradientOutcome] = field(default_factory=list)
    predicted: float | None = None
    seen: float | None = None


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
    values = rows.get(first, []) if first is not None else []
    fused = not values or values[0].kind in _FUSED
    within = fused and any(row.overflowed for row in low.modules if row.module.startswith(f"{first}." if first else ""))
    alone = dict.fromkeys(stored, STORED)  # not compared by themselves
    if first is not None and not within:
        alone.setdefault(first, "only the whole step was seen")
    for module in [name for name in alone if name not in {row.module for row in low.modules}]:
        values = rows.get(module, [])
        prediction = known(values)
        outcomes.append(
            Outcome(
                module=module,
                kind=values[0].kind if values else "",
                predicted=prediction or Prediction(),
                overflow_seen=True if prediction else None,
                note=alone[module],
            )
        )
    return outcomes


def _holders(low: LowRun, rows: Mapping[str, list[Magnitudes]]) -> list[str]:
    """Return the modules whose own weights or buffers overflow as they are stored, as `rows` group them."""
    home = {row.name: module for module, values in rows.items() for row in values if row.name}
    return list(dict.fromkeys(home.get(name, name.rpartition(".")[0]) for name in low.overflowed_weights))


def scores(outcomes: Iterable[Outcome]) -> Scores:
    """Return how good predictions are, over what could be seen."""
    every = list(outcomes)
    looked_at = sum(row.overflow_seen is not None and row.flush_seen is not None for row in every)
    return Scores(
        overflow=_score((row.predicted.overflows, row.overflow_seen, row.predicted.near_overflow) for row in every),
        flush=_score((row.predicted.flushes, row.flush_seen, row.predicted.near_flush) for row in every),
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
        rows=sorted(rows, key=lambda row: (not row.nonfinite, -(row.seen or 0.0), -(row.predicted or 0.0))),
        predicted=_together(rows, lambda row: row.predicted),
        seen=_together(rows, lambda row: row.seen),
    )


def _outcome(row: ModuleError, prediction: Prediction | None, first: bool, low: LowRun) -> Outcome:
    """Return the outcome of a module; without a `prediction`, none was possible."""
    known, note = row.elements > 0 and prediction is not None, row.note
    if not row.elements:
        note = note or "it was not compared"
    elif prediction is None:
        note = f"what is in {low_dtype(low.precision)} is not known, as the whole step was not seen"
    return Outcome(
        module=row.module,
        kind=row.kind,
        predicted=prediction or Prediction(),
        overflow_seen=True if first and prediction is not None else row.overflowed > 0 if known else None,
        flush_seen=row.flushed >= FLUSHES * row.elements if known else None,
        overflow_share=row.overflowed / row.elements if row.elements else None,
        flush_share=row.flushed / row.elements if row.elements else None,
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


NAMED = 3
"""So many modules, the worst, are named in a sentence."""

_GROWS = 3.0
"""The factor from which an error is said to grow at a module: roundings of several inputs add up to less."""

_NEAR = 0.001
"""The share of a format's largest number below which no value is called near it."""


def headroom_said(found: RangePass) -> list[str]:
    """Return for fp16 and for bf16 what would overflow and flush, which loss scale serves, which updates are lost.

    Then what was not finite in fp32 already. In pure half, that is: `low_run_said` tells what a low precision did.
    """
    modules = by_running_module(found.magnitudes)
    if not modules:
        return ["nothing can be said: no module gave a floating value"]
    said = [f"{dtype}: {'; '.join(_dtype_said(found, modules, dtype))}" for dtype in FORMATS]
    strange = [row.module or ROOT for row in found.magnitudes if row.nonfinite]
    if strange:
        within = few(list(dict.fromkeys(strange)), NAMED)
        said.append(f"fp32: some values within {within} are not finite, as those of masks, and are left out")
    return said


def arithmetic_said(found: RangePass) -> list[str]:
    """Return what trains the case, and what arithmetic knows of that in weights and state stored in fp16, in bf16.

    Nothing where that was not recorded: in inference, and by older versions.
    """
    if found.recipe is None:
        return []
    said = [f"trained by {optimizer_name(found.recipe)}"]
    for dtype in FORMATS:
        remarks = "; ".join(map(str, [*remarks_of(found.recipe, dtype), *habits_of(dtype)]))
        said.append(f"stored in {dtype}, by arithmetic alone: {remarks}")
    return said


def low_run_said(found: RangePass, low: LowRun) -> str:
    """Return what was predicted of a low precision and what was seen of it, in one sentence."""
    if low.error:
        whole = [f"the step ended with an error, so that it was not seen as a whole: {low.error}"]
    elif low.overflowed_weights and low.nonfinite_output is not None:
        whole = [stored_said(low)]
    elif low.first_nonfinite is not None:
        whole = [nonfinite_sentence(low.first_nonfinite)]
    elif low.nonfinite_output is not None:
        whole = [
            f"outputs are not finite from step {low.nonfinite_output + 1:,} on, and no op makes that of finite values"
        ]
    elif low.overflowed_weights:
        whole = [f"{stored_said(low)}, and the outputs are finite all the same"]
    elif whole_step_seen(low):
        whole = ["all values of the whole step are finite"]
    else:
        whole = ["the whole step was not seen"]
    outcomes = predicted_and_seen(found, low)
    judged = scores(outcomes)
    said = [_score_said("overflow", judged.overflow), _score_said("flushing", judged.flush)]
    if not any((judged.overflow.predicted, judged.overflow.seen, judged.flush.predicted, judged.flush.seen)):
        said = ["no overflow or flushing predicted, none seen"]
    if not any(row.overflow_seen is not None for row in outcomes):
        said = ["no module was compared"]
    elif low.error:
        said[0] = f"of modules by themselves, on exact inputs: {said[0]}"
    parts = [*whole, *said] if low.error else [*said, *whole]
    return f"{low.precision}: {'; '.join([*parts, *_gradients_said(found, low)])}"


def validated_said(found: RangePass) -> list[str]:
    """Return how the predictions did on values that they were not made from, a sentence for each kind of these."""
    said = []
    for one in found.validations:
        if one.note:
            said.append(f"predictions were not held against {one.on}: {one.note}")
            continue
        judged = {low.precision: scores(predicted_and_seen(found, low)) for low in one.low_runs}
        wrong = {name: told for name, both in judged.items() if (told := _wrong_said(both))}
        right = [name for name, both in judged.items() if both.checked and name not in wrong]
        parts = [f"{name}: {told}" for name, told in wrong.items()]
        if right:
            checked = counted(max(judged[name].checked for name in right), "module")
            parts.insert(0, f"right for all of {checked} in {few(right, len(right))}")
        if parts:
            said.append(f"predictions on {one.on}: {'; '.join(parts)}")
    return said


def _wrong_said(judged: Scores) -> str:
    """Return of which events predictions were false or missed some, and how often; "" where all came true."""
    events = (("overflow", judged.overflow), ("flushing", judged.flush))
    return ", ".join(_score_said(what, score) for what, score in events if score.false or score.missed)


def stored_said(low: LowRun) -> str:
    """Return which weights and buffers overflow as they are stored, and what that does to the outputs."""
    names, dtype = few(low.overflowed_weights, NAMED), low_dtype(low.precision)
    said = f"{names} {'overflows' if len(low.overflowed_weights) == 1 else 'overflow'} as stored in {dtype}"
    if low.nonfinite_output is None:
        return said
    return f"{said}, so that outputs are not finite in the forward pass of step {low.nonfinite_output + 1:,}"


def unchecked_said(outcomes: Iterable[Outcome]) -> str:
    """Return how many predictions could not be checked and why; "" if all were."""
    every = list(outcomes)
    return _left_out([row.note for row in every if row.overflow_seen is None], len(every), "could not be checked")


def origin_said(found: OriginPass) -> list[str]:
    """Return how far the output errs, which modules err most by themselves, and what overflows or flushes."""
    if not found.modules and found.output_rel_l2 is None:
        return ["nothing could be compared: no module gave a floating value"]
    output = f"{format_error(found.output_rel_l2)} (relative L2 error against fp32)"
    compared = [row for row in found.modules if row.elements]
    said = [f"the output errs by {output}"]
    if found.output_rel_l2 is None:
        strange = found.first_nonfinite is not None or any(row.overflowed for row in compared)
        said = [f"the output's error is undefined{', as values are not finite' if strange else ''}"]
    events = _events_said(compared)
    said += events
    worst = sorted((row for row in compared if row.own_rel_l2), key=lambda row: -(row.own_rel_l2 or 0.0))[:NAMED]
    if worst:
        said.append(f"most by themselves err {', '.join(_own_said(row) for row in worst)}")
    elif compared and not events:
        said.append("no module errs by itself")
    if compared and not events:
        said += _growth_said(compared)
        said.append(f"none of {counted(len(compared), 'module')} overflows or flushes on exact inputs")
    if found.first_nonfinite is not None:
        said.append(f"in the whole run {nonfinite_sentence(found.first_nonfinite)}")
    left = _left_out([row.note for row in found.modules if not row.elements], len(found.modules), "not compared")
    return [*said, *([left] if left else [])]


def _growth_said(compared: Sequence[ModuleError]) -> list[str]:
    """Return at which module the error grows most against all that ran before, if that is by a factor of `_GROWS`.

    What a module makes itself is no growth. Only the order of running is known, not what flows where: what runs between
    modules is suspected, and so is the module.
    """
    largest, grown = 0.0, list[tuple[float, float, ModuleError]]()
    for row in compared:
        if row.total_rel_l2 is not None and row.own_rel_l2 is not None:
            if largest and (times := row.total_rel_l2 / max(largest, row.own_rel_l2)) >= _GROWS:
                grown.append((times, largest, row))
            largest = max(largest, row.total_rel_l2)
    if not grown:
        return []
    _, before, row = max(grown, key=lambda each: each[0])
    where = f"the error grows most before {row.module or ROOT} or in it: to {format_error(row.total_rel_l2)}"
    own = f"{format_error(row.own_rel_l2)} is its own"
    held = f"from at most {format_error(before)} in the modules that ran before, and {own}"
    return [f"{where}, {held}; what runs there magnifies errors, or rounds outside of modules"]


def telling(values: Iterable[Magnitudes]) -> Magnitudes | None:
    """Return the largest of a module's outputs, inputs and weights, which come nearest to a format's end.

    Running variances only divide: they count where there is nothing else. None where nothing is finite.
    """
    known = [row for row in values if row.what in (ACTIVATION, INPUT, WEIGHT) and row.largest is not None]
    counting = [row for row in known if not row.name.endswith("running_var")] or known
    return max(counting, key=lambda row: row.largest or 0.0, default=None)


def _dtype_said(found: RangePass, modules: dict[str, list[Magnitudes]], dtype: str) -> list[str]:
    predictions = {name: predict(rows, dtype) for name, rows in modules.items()}
    overflowing = [name for name, row in predictions.items() if row.overflows]
    flushing = [name or ROOT for name, row in predictions.items() if row.flushes]
    known = [telling(modules[name]) for name in overflowing or modules]
    worst = max((row for row in known if row), key=lambda row: row.largest or 0.0, default=None)
    where = f"{worst.module or ROOT}: {reach_phrase(worst, dtype)}" if worst else ""
    total = counted(len(modules), "module")
    flushed = f"{len(flushing):,} would flush ({few(flushing, NAMED)})" if flushing else "none would flush"
    if overflowing:
        said = [f"{len(overflowing):,} of {total} would overflow (worst {where})", flushed]
    else:
        near = worst is not None and (headroom(worst, dtype).reach or 0.0) >= _NEAR
        said = [f"none of {total} would overflow"] if flushing else [f"none of {total} would overflow or flush"]
        said[0] += f" (nearest {where})" if near else ""
        said += [flushed] if flushing else []
    return [*said, *_near_said(predictions), *_scales_said(found.magnitudes, dtype), *_updates_said(found, dtype)]


def _near_said(predictions: Mapping[str, Prediction]) -> list[str]:
    """Say which modules neither overflow nor flush but are within `MARGIN` of it."""
    said = []
    for what, near in (
        ("overflow", [name or ROOT for name, row in predictions.items() if row.near_overflow]),
        ("flushing", [name or ROOT for name, row in predictions.items() if row.near_flush]),
    ):
        if near:
            comes = "comes" if len(near) == 1 else "come"
            said.append(f"{len(near):,} {comes} within a factor {MARGIN} of {what} ({few(near, NAMED)})")
    return said


def _scales_said(values: Iterable[Magnitudes], dtype: str) -> list[str]:
    every = list(values)
    scales = usable_scales(every, dtype)
    if scales is None:
        return ["no gradient is finite and not zero"] if any(row.what == GRADIENT for row in every) else []
    if not scales.needed:
        lost = f"{format_share(scales.flushed)} of gradients flush, which no loss scale saves"
        return [lost if scales.flushed else "gradients need no loss scale"]
    if scales.flushed:
        without = f", {format_share(scales.unscaled)} without it" if scales.unscaled != scales.flushed else ""
        return [f"loss scale {scale_range(scales)} loses the fewest gradients, {format_share(scales.flushed)}{without}"]
    return [f"loss scale {scale_range(scales)} keeps every gradient"]


def _updates_said(found: RangePass, dtype: str) -> list[str]:
    rows = [row for row in found.swallowed if row.dtype == dtype]
    moved, lost = sum(row.moved for row in rows), sum(row.swallowed for row in rows)
    return (
        [f"stored in {dtype}, {format_share(lost / moved)} of the weights that steps move would stand still"]
        if lost
        else []
    )


def _score_said(what: str, score: Score) -> str:
    if not score.predicted and not score.seen:
        return f"no {what} predicted, none seen"
    said = f"{what} {score.predicted:,} predicted, {score.seen:,} seen"
    if score.false or score.missed:
        near = f", {score.near:,} of them near it" if score.near else ""
        said += f" ({score.right:,} right, {score.false:,} false, {score.missed:,} missed{near})"
    return said


def _gradients_said(found: RangePass, low: LowRun) -> list[str]:
    if not low.gradients:
        return []
    gradients = predicted_gradients(found, low)
    parameters = counted(len(gradients.rows), "parameter")
    overflow, nonfinite = sum(row.overflows for row in gradients.rows), sum(row.nonfinite > 0 for row in gradients.rows)
    if forward_overflows(low):
        return [f"so are gradients of {nonfinite:,} of {parameters}"] if nonfinite else []
    scale = f" at loss scale {format_scale(low.scaler_scale)}" if low.scaler_scale is not None else ""
    flushed = [format_share(share) for share in (gradients.predicted, gradients.seen)]
    said = f"gradients{scale}: {flushed[0]} predicted to flush, {flushed[1]} seen"
    if nonfinite or overflow:
        said += f", overflow predicted in {overflow:,} of {parameters}, seen in {nonfinite:,}"
    return [said]


def forward_overflows(low: LowRun) -> bool:
    """Return whether a step makes a value that is not finite before it has gradients."""
    stored = bool(low.overflowed_weights) and low.nonfinite_output is not None
    return stored or (low.first_nonfinite is not None and low.first_nonfinite.phase == "forward")


def _own_said(row: ModuleError) -> str:
    return f"{row.module or ROOT} ({row.kind}, {format_error(row.own_rel_l2)})"


def _events_said(compared: Sequence[ModuleError]) -> list[str]:
    """Return which modules overflow by themselves, which are only handed what does, and which flush."""
    overflowing = [row for row in ranked(compared) if row.overflowed]
    own = [row.module or ROOT for row in overflowing if not row.inputs_overflowed]
    handed = [row.module or ROOT for row in overflowing if row.inputs_overflowed]
    flushing = [row.module or ROOT for row in compared if row.flushed >= FLUSHES * row.elements]
    of = f"of {counted(len(compared), 'module')}"
    said = []
    if own:
        verb = "overflows by itself" if len(own) == 1 else "overflow by themselves"
        said.append(f"{few(own, NAMED)} {verb} ({len(own):,} {of})")
    if handed:
        verb = "is handed what overflows already" if len(handed) == 1 else "are handed what overflows already"
        said.append(f"{few(handed, NAMED)} {verb} ({len(handed):,} {of})")
    if flushing:
        verb = "flushes" if len(flushing) == 1 else "flush"
        share = f"at least {FLUSHES:.0%} of {'its' if len(flushing) == 1 else 'their'} outputs to zero"
        said.append(f"{few(flushing, NAMED)} {verb} {share} ({len(flushing):,} {of})")
    return said


def _left_out(reasons: Sequence[str], total: int, what: str) -> str:
    """Return how many of `total` modules were left out and the reasons, each with its number."""
    if not reasons:
        return ""
    counts = Counter(reason or "no reason given" for reason in reasons).most_common()
    said = few([f"{reason} ({count:,})" for reason, count in counts], NAMED)
    return f"{len(reasons):,} of {counted(total, 'module')} {what}: {said}"

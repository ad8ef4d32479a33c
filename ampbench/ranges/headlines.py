"""What a pass says in a few sentences: would a low format hold the values, where does the error begin.

They are without their full stops, and begin in lower case or with the name of a format or precision ("fp16: ").
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ampbench.labels import few
from ampbench.ranges.arithmetic import habits_of, recipe_said, remarks_of
from ampbench.ranges.formats import FORMATS
from ampbench.ranges.headroom import FLUSHES, MARGIN, Prediction, by_running_module, headroom, predict
from ampbench.ranges.profile import ranked
from ampbench.ranges.scales import usable_scales
from ampbench.ranges.seen import (
    Outcome,
    Score,
    Scores,
    low_dtype,
    predicted_and_seen,
    predicted_gradients,
    scores,
    whole_step_seen,
)
from ampbench.ranges.wording import ROOT, format_scale, nonfinite_sentence, reach_phrase, scale_range
from ampbench.records.ranges import (
    ACTIVATION,
    GRADIENT,
    INPUT,
    WEIGHT,
    LowRun,
    Magnitudes,
    ModuleError,
    OriginPass,
    RangePass,
)
from ampbench.units import counted, format_error, format_share

NAMED = 3
"""So many modules, the worst, are named in a sentence."""


OFF_GRID = "an older ampbench did not count the updates that weights would lose which are stored in it"
"""What is said of updates that were compared in fp32 weights, off the grid (`Swallowed`)."""

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
    said = [f"trained by {recipe_said(found.recipe)}"]
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
        said.append(f"none of {counted(len(compared), 'module')} overflows or flushes on exact inputs")
    if found.first_nonfinite is not None:
        said.append(f"in the whole run {nonfinite_sentence(found.first_nonfinite)}")
    left = _left_out([row.note for row in found.modules if not row.elements], len(found.modules), "not compared")
    return [*said, *([left] if left else [])]


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
    if not all(row.on_grid for row in rows):
        return [OFF_GRID]
    moved, lost = sum(row.moved for row in rows), sum(row.swallowed for row in rows)
    return [f"weights stored in {dtype} would lose {format_share(lost / moved)} of their updates"] if lost else []


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
    if forward_overflows(low):
        return [f"so are gradients of {gradients.nonfinite:,} of {parameters}"] if gradients.nonfinite else []
    scale = f" at loss scale {format_scale(gradients.scale)}" if low.scaler_scale is not None else ""
    flushed = [format_share(share) for share in (gradients.predicted, gradients.seen)]
    said = f"gradients{scale}: {flushed[0]} predicted to flush, {flushed[1]} seen"
    if gradients.nonfinite or gradients.overflows:
        said += f", overflow predicted in {gradients.overflows:,} of {parameters}, seen in {gradients.nonfinite:,}"
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

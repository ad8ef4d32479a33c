"""Verdicts on what luck has no part in: outcomes, bytes and errors, judged exactly or within a stated tolerance.

Errors are those against fp64 of the same code. Where the code changed, they say nothing about the change of what is
computed; so the references, what two runs gave in fp64, are held against each other, too.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from msgspec import structs

from ampbench.base.metrics import COLUMNS, DRIFT, GATED
from ampbench.base.precisions import BASELINE
from ampbench.base.sketch import Moved, moved
from ampbench.base.units import (
    all_of,
    format_error,
    format_exact_percent,
    format_limit,
    format_percent,
    format_quantity,
)
from ampbench.judge.pairing import Pair, imported_finding, other_file
from ampbench.judge.rounds import FAILED, OK, SKIPPED, MeasuredRun, Outcome
from ampbench.records.case import Case
from ampbench.records.changes import OUTCOME, Change, ChangeCode, ChangeStatus
from ampbench.records.measured import Divergence, MemoryPass

_SMALLEST_LOSS = 1e-9
"""Losses below this count as this large: what rounding left of zero is no change."""
_SMALLEST_PERCENT = 1e-4
_CHANCES = 3.0
"""A network that draws random numbers gives results so many times as far apart as two of its own, and is the same."""
_NOUNS = MappingProxyType({"output": "the {} output", "gradients": "the gradients", "loss": "the loss"})
_FP32_TOLERANCE = 1e-4
"""Where fp64 failed on both sides and fp32 took its place, results that differ by its rounding are the same."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How far each part of a step's fp64 result moved: "output", "gradients" and "loss", where both sides tell.

    `shapes` are what the output's shapes were and are, where these differ. `dtype` is that of both references.
    """

    parts: Mapping[str, Moved]
    shapes: tuple[str, str] | None = None
    dtype: str = "fp64"

    @property
    def distance(self) -> float | None:
        """The largest of the parts' distances; None between outputs of other shapes."""
        if self.shapes is not None:
            return None
        return max((part.distance for part in self.parts.values()), default=0.0)

    def said(self, threshold: float) -> str:
        """Return which parts moved by more than `threshold`, and how far."""
        if self.shapes is not None:
            return f"the output's shape is {self.shapes[1]}, was {self.shapes[0]}"
        parts: list[str] = []
        for name, part in self.parts.items():
            if part.distance > threshold:
                verb = "" if parts else " moved"
                parts.append(f"{_NOUNS[name].format(self.dtype)}{verb} {moved_by(part.distance, part.at_least)}")
        return all_of(parts)


def drift_between(before: Divergence, after: Divergence) -> Drift:
    """Return how far the reference of `after` lies from that of `before`, of equal weights, inputs and dtypes."""
    shapes = [_shapes(one.output_shapes) for one in (before, after)]
    if None not in shapes and shapes[0] != shapes[1]:
        return Drift({}, shapes=(str(shapes[0]), str(shapes[1])))
    norms = (before.output_reference_norm, after.output_reference_norm)
    parts = {
        "output": moved(*norms, before.output_sketch, after.output_sketch),
        "gradients": moved(
            before.grad_reference_norm, after.grad_reference_norm, before.grad_sketch, after.grad_sketch
        ),
        "loss": _loss_moved(before.reference_loss, after.reference_loss),
    }
    return Drift({name: part for name, part in parts.items() if part is not None}, dtype=before.reference_dtype)


def other_function(before: Divergence | None, after: Divergence | None) -> str:
    """Return what moved where other code gave another fp64 result, "" where nothing tells so."""
    if before is None or after is None or before.reference_dtype != after.reference_dtype:
        return ""
    drift = drift_between(before, after)
    tolerance = _tolerance(drift, before, after)
    return "" if drift.distance is not None and drift.distance <= tolerance else drift.said(tolerance)


def drift_finding(
    case: Case,
    before: Divergence,
    after: Divergence,
    same: bool,
    threshold_of: Callable[[str, Case], float | None],
) -> Change | None:
    """Return the finding that something else is computed; None where the fp64 results are equal but for rounding.

    `same`: the same code ran on the same environment. What moved by no more than `threshold_of` allows is unchanged,
    and told.
    """
    drift = drift_between(before, after)
    gate = GATED[DRIFT]
    by_chance = _by_chance(before, after)
    tolerance = max(gate.threshold, by_chance) if same else _tolerance(drift, before, after)
    asked = threshold_of(DRIFT, case)
    threshold = tolerance if asked is None else max(asked, gate.threshold, by_chance)
    distance = drift.distance
    if distance is not None and distance <= min(threshold, tolerance):
        return None
    allowed = distance is not None and distance <= threshold
    said = drift.said(min(threshold, tolerance))
    return Change(
        case=case,
        metric=DRIFT,
        kind=gate.kind,
        status=ChangeStatus.UNCHANGED if allowed else ChangeStatus.REGRESSED,
        code=ChangeCode.WITHIN_THRESHOLD if allowed else ChangeCode.OTHER_FUNCTION,
        reason=f"{said}; threshold {format_limit(threshold)}" if allowed else f"computes something else: {said}",
        brief=said,
        change=distance,
        low=distance,
        high=distance,
        threshold=threshold,
        remarks=(f"{said}, which the threshold of {format_limit(threshold)} allows",) if allowed else (),
        details={f"{name}_drift": part.distance for name, part in drift.parts.items()},
    )


def moved_by(distance: float, at_least: bool = False) -> str:
    """Return how far something moved: "by 23%" or, of little, "by 3.1e-06 of its norm"."""
    if math.isinf(distance):
        return far_text(distance)
    of = "" if distance >= _SMALLEST_PERCENT else " of its norm"
    return f"by {'at least ' if at_least else ''}{far_text(distance)}{of}"


def far_text(distance: float) -> str:
    """Return a distance as "23%" or, of little, "3.1e-06"; "from zero" where it is infinite."""
    if math.isinf(distance):
        return "from zero"
    return format_percent(distance) if distance >= _SMALLEST_PERCENT else format_error(distance)


def _tolerance(drift: Drift, before: Divergence, after: Divergence) -> float:
    """Return how far the result of other code may move by rounding and chance."""
    rounding = GATED[DRIFT].elsewhere if drift.dtype == "fp64" else _FP32_TOLERANCE
    return max(rounding, _by_chance(before, after))


def _by_chance(before: Divergence, after: Divergence) -> float:
    return _CHANCES * max(one.chance_rel_l2 or 0.0 for one in (before, after))


def _loss_moved(before: float | None, after: float | None) -> Moved | None:
    if before is None or after is None:
        return None
    return Moved(abs(after - before) / max(abs(before), abs(after), _SMALLEST_LOSS))


def _shapes(shapes: Sequence[Sequence[int]] | None) -> str | None:
    """Return shapes as "32x8 and 32x1", None where they are not known."""
    if shapes is None:
        return None
    return " and ".join("x".join(map(str, shape)) or "a scalar" for shape in shapes)


_COUNTED = {
    "output_nonfinite": ("output", ""),
    "output_reference_nonfinite": ("output", " in the reference"),
    "output_fp32_nonfinite": ("output", " in fp32"),
    "param_nonfinite": ("parameter", ""),
}
"""The metrics that count elements which are not finite, of what, and where these are."""

_RARE = {
    "output_reference_nonfinite": "non-finite output elements in the reference",
    "output_fp32_nonfinite": "non-finite output elements in fp32",
    "param_nonfinite": "non-finite parameter elements",
}
"""Those of them of which nothing is said where there are none on either side."""

_OF_UPDATE = {"update_rel_l2": "rel_l2", "update_kept": "kept"}
"""The metrics that a divergence has in its `update`, and under which names."""

ThresholdOf = Callable[[str, Case], float | None]
"""The largest relative change of a metric of a case that counts as none; None: that of `metrics.GATED`."""

MEMORY = "peak_memory_bytes"
FLOOR_RATIO = "output_floor_ratio"
BY_CHANCE = "the errors are those of chance: the network draws random numbers, or keeps state of its own"
LUCK = 3.0
"""An error is the norm of many roundings. Those of another order of summation are others, and the norm of n of them
varies by 1 / sqrt(n) of itself; three times that is luck (docs/statistics.md has a table of permuted sums)."""
EQUAL = 1e-12
"""The relative difference up to which two numbers are equal where the threshold is 0: a few roundings of fp64, in
which errors are computed."""


def skipped_alike(before: Outcome, after: Outcome) -> bool:
    """Return whether a case was skipped on both sides for one reason, which is no verdict on anything."""
    return before == after and before.name == SKIPPED and not before.pending


def outcome_finding(pair: Pair, before: Outcome, after: Outcome) -> Change | None:
    """Return what the outcomes say; None where the case is ok on both sides.

    A case that was ok, or would have been measured, and is skipped is `NOT_MEASURED`, so that a gate sees it go; others
    that cannot be compared are `NOT_RUN`.
    """
    if before.name == after.name == OK:
        return None
    verdict, code = ChangeStatus.INCOMPARABLE, ChangeCode.NOT_RUN
    if before.name == OK and after.name == FAILED:
        verdict, code, brief = ChangeStatus.REGRESSED, ChangeCode.OUTCOME_CHANGED, "was ok and failed"
    elif before.name == FAILED and after.name == OK:
        verdict, code, brief = (
            ChangeStatus.IMPROVED,
            ChangeCode.OUTCOME_CHANGED,
            f"failed and is ok now; before: {before.reason}",
        )
    elif before.pending and after.name == SKIPPED and not after.pending:
        code, brief = ChangeCode.NOT_MEASURED, "runs in the baseline and is skipped"
    elif before.name == OK:
        code, brief = ChangeCode.NOT_MEASURED, "was ok and is skipped"
    elif before == after:
        brief = f"{before.name} on both sides"
    else:
        brief = f"{before.name} in the baseline: {before.reason}"
        brief += f"; {after.name} in the candidate" if after.name != OK else ""
    reason = brief if after.name == OK else f"{brief}: {after.reason}"
    return Change(
        case=pair.baseline, metric=OUTCOME, kind=OUTCOME, status=verdict, code=code, reason=reason, brief=brief
    )


def memory_finding(
    pair: Pair, baseline: MeasuredRun, candidate: MeasuredRun, same: bool, threshold_of: ThresholdOf
) -> Change | None:
    """Return the verdict on the peak memory; None where neither side has measured it."""
    before = baseline.stored.memory.get(pair.baseline_id)
    after = candidate.stored.memory.get(pair.candidate_id)
    values = (_peak(before), _peak(after))
    if imported := imported_finding(pair, MEMORY, values, baseline, candidate):
        return imported
    if before and after and before.source != after.source:
        reason = f"counted by the {before.source} in the baseline, by the {after.source} in the candidate"
        return _incomparable(pair.baseline, MEMORY, ChangeCode.OTHER_COUNTER, reason, values)
    if any(value is not None and value <= 0 for value in values):
        return _incomparable(pair.baseline, MEMORY, ChangeCode.INVALID, "a peak of 0 bytes cannot be one", values)
    found = _judge(pair.baseline, MEMORY, values, 0.0, None if same else _Order(), threshold_of)
    other = other_numbers(pair, baseline, candidate)
    if found is None or not other or found.status not in (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED):
        return found
    return replace(found, remarks=(f"{other}: the memory may differ for that",))


def accuracy_findings(
    pair: Pair, baseline: MeasuredRun, candidate: MeasuredRun, same: bool, threshold_of: ThresholdOf
) -> list[Change]:
    """Return the verdicts on the errors that either side has, and what was read of their ratio to the floor.

    A change counts relative to the baseline's error or, where that is larger, to the error of merely rounding the
    reference output to the dtype: below it, errors are luck. Where what is computed in fp64 moved, that is the finding,
    and errors are of another function: none is better or worse for it, but what is not finite is told.
    """
    before = baseline.stored.divergence.get(pair.baseline_id)
    after = candidate.stored.divergence.get(pair.candidate_id)
    other = other_numbers(pair, baseline, candidate)
    same = same and not any(one is not None and one.repeatable is False for one in (before, after))
    findings, other_function = [], ""
    if before and after and not (other or other_reference(before, after)):
        drift = drift_finding(pair.baseline, before, after, same, threshold_of)
        findings += [drift] if drift else []
        if drift and drift.status is ChangeStatus.REGRESSED:
            other_function = f"errors of another function: {drift.brief}"
    for metric, gate in GATED.items():
        if gate.kind != "accuracy" or metric == DRIFT:
            continue
        values = (_error(before, metric), _error(after, metric))
        if imported := imported_finding(pair, metric, values, baseline, candidate):
            findings.append(imported)
            continue
        if values == (None, None) or (metric in _RARE and not any(values)) or _is_untold(metric, before, after):
            continue
        if other:
            findings.append(_incomparable(pair.baseline, metric, ChangeCode.OTHER_WEIGHTS, other, values))
            continue
        if reason := other_reference(before, after):
            findings.append(_incomparable(pair.baseline, metric, ChangeCode.OTHER_REFERENCE, reason, values))
            continue
        if any(one is not None and one.chance_rel_l2 is not None for one in (before, after)):
            findings.append(_incomparable(pair.baseline, metric, ChangeCode.INVALID, BY_CHANCE, values))
            continue
        lost = _became_undefined(pair.baseline, metric, values, before, after)
        floor = max(_floor(metric, before), _floor(metric, after))
        lacking = after if values[1] is None else before
        why = _undefined(metric, lacking) if lacking is not None and None in values else ""
        order = None if same else _order(metric, pair, baseline, candidate)
        found = lost or _judge(pair.baseline, metric, values, floor, order, threshold_of, why)
        broken = lost is not None or metric in _COUNTED
        if found and other_function and not (broken and found.status is not ChangeStatus.IMPROVED):
            found = _incomparable(pair.baseline, metric, ChangeCode.OTHER_FUNCTION, other_function, values)
        if found:
            findings.append(found)
    ratio = imported_finding(pair, FLOOR_RATIO, (_floor_ratio(before), _floor_ratio(after)), baseline, candidate)
    return [*findings, ratio] if ratio else findings


def other_numbers(pair: Pair, baseline: MeasuredRun, candidate: MeasuredRun) -> str:
    """Return what says that the two sides computed with other numbers, "" where nothing does."""
    if pair.baseline.version != pair.candidate.version:
        return f"another version of the workload ({pair.baseline.version} → {pair.candidate.version})"
    before = baseline.stored.divergence.get(pair.baseline_id)
    after = candidate.stored.divergence.get(pair.candidate_id)
    weights = (baseline.weights(pair.baseline_id), candidate.weights(pair.candidate_id))
    file = other_file(pair.baseline.workload, baseline.stored.header, candidate.stored.header)
    whose = f", of another file ({file[0]} → {file[1]})" if file else ""
    if before and after and before.weights_digest != after.weights_digest:
        return f"other weights{whose}"
    if None not in weights and weights[0] != weights[1]:
        return f"other weights{whose}"
    if before and after and before.inputs_digest != after.inputs_digest:
        return f"other inputs{whose}"
    return ""


def other_reference(before: Divergence | None, after: Divergence | None) -> str:
    """Return what says that the errors of two sides are against different references, "" where nothing does."""
    if before is None or after is None or before.reference_dtype == after.reference_dtype:
        return ""
    sides = {"baseline": before, "candidate": after}
    held = {name: one.reference_dtype or "nothing" for name, one in sides.items()}
    against = "; ".join(f"the {name}'s error is against {dtype}" for name, dtype in held.items())
    why = "; ".join(
        f"fp64 failed in the {name}: {one.reference_error}" for name, one in sides.items() if one.reference_error
    )
    return f"{against}: {why}"


@dataclass(frozen=True, slots=True)
class _Order:
    """What another order of summation can do to a number: change it by `luck` of itself, and by so much in all."""

    luck: float = 0.0
    most: float = 0.0


def _order(metric: str, pair: Pair, baseline: MeasuredRun, candidate: MeasuredRun) -> _Order:
    """Return what other code, or another torch, that computes the same may do to an error.

    By luck, what `LUCK` says of as many elements as the error is taken over. In all, as much as fp32 is wrong by in
    both runs: its error is that of one order of summation, and that of few elements may be more than twice another's.
    """
    before = baseline.stored.divergence.get(pair.baseline_id)
    after = candidate.stored.divergence.get(pair.candidate_id)
    counts = [_elements(metric, one) for one in (before, after)]
    fewest = min((count for count in counts if count), default=0)
    if metric in (*_COUNTED, "grad_flushed_share", "update_kept"):
        return _Order()
    most = [
        _fp32_error(metric, run, case_id)
        for run, case_id in ((baseline, pair.baseline_id), (candidate, pair.candidate_id))
    ]
    return _Order(LUCK / math.sqrt(fewest) if fewest else 0.0, min(most) * growth_by_order(fewest))


@functools.cache
def growth_by_order(elements: int) -> float:
    """Return the relative growth that is none of an error of sums alone, over so many elements (0: not known).

    It may double; of fewer than 21 elements it may be larger by luck. Squares of two norms of n independent roundings
    have a ratio that is distributed as F(n, n), here as rarely exceeded as three standard deviations of a normal.
    """
    from scipy.special import fdtri, ndtr  # not for who compares no errors

    return max(1.0, math.sqrt(fdtri(elements, elements, ndtr(LUCK))) - 1) if elements else 1.0


def _elements(metric: str, divergence: Divergence | None) -> int:
    """Return of how many elements an error is the norm, 0 where nothing tells."""
    if divergence is None:
        return 0
    if metric.startswith("output"):
        return sum(map(math.prod, divergence.output_shapes or ()))
    return divergence.grad_elements or 0


def _fp32_error(metric: str, run: MeasuredRun, case_id: str) -> float:
    """Return what the error is of fp32 in the same run, 0 where it was not measured."""
    own = run.stored.divergence.get(case_id)
    if metric == "output_rel_l2" and own is not None and own.output_fp32_rel_l2 is not None:
        return own.output_fp32_rel_l2
    fp32 = structs.replace(run.stored.cases[case_id], precision=BASELINE).case_id
    return _error(run.stored.divergence.get(fp32), metric) or 0.0


def _judge(
    case: Case,
    metric: str,
    values: tuple[float | None, float | None],
    floor: float,
    order: _Order | None,
    threshold_of: ThresholdOf,
    why: str = "",
) -> Change | None:
    """Return the verdict on two numbers without luck; None where neither side has one.

    The change is relative to the baseline's number or, of an error of outputs or a count, to `floor` where that is
    larger. `order` is None where the same
    code ran on the same environment; else a change counts only beyond what it says, unless the threshold that was asked
    for is 0. `why` a side has none is said.
    """
    before, after = values
    if before is None or after is None:
        if before == after:
            return None
        side = "candidate" if after is None else "baseline"
        reason = f"the {side} has no number{f': {why}' if why else ''}"
        return _incomparable(case, metric, ChangeCode.NOT_MEASURED, reason, values)
    gate = GATED[metric]
    asked = threshold_of(metric, case)
    threshold = asked if asked is not None else gate.threshold if order is None else gate.elsewhere
    # against the smaller number, whichever side it is on, so that swapped sides give mirrored verdicts
    least = max(min(before, after), floor)
    if order is not None and asked != 0:
        threshold = max(threshold, order.luck, order.most / least if least > 0 else 0.0)
    of_rounding = metric == "output_rel_l2" and floor > before
    scale = max(before, floor) if of_rounding or metric in _COUNTED else abs(before)
    difference = after - before
    change = difference / scale if scale > 0 else math.copysign(math.inf, difference) if difference else 0.0
    verdict, code = ChangeStatus.UNCHANGED, ChangeCode.WITHIN_THRESHOLD
    beyond = abs(difference) > max(threshold, EQUAL) * least
    limit = f"threshold {format_limit(threshold, change if beyond else 0.0)}"
    allowed = limit if threshold else "the same code should give equal numbers"
    if beyond and abs(difference) <= gate.floor:
        allowed = f"no more than {format_limit(gate.floor)} apart, which counts as none"
    elif beyond:
        worse = (change > 0) == (COLUMNS[metric].better != "higher")
        verdict, code = (ChangeStatus.REGRESSED if worse else ChangeStatus.IMPROVED), ChangeCode.BEYOND_THRESHOLD
    return Change(
        case=case,
        metric=metric,
        kind=gate.kind,
        status=verdict,
        code=code,
        reason=_reason(metric, before, after, change, allowed, of_rounding),
        baseline=before,
        candidate=after,
        change=change,
        low=change,
        high=change,
        threshold=threshold,
    )


def _reason(metric: str, before: float, after: float, change: float, allowed: str, of_rounding: bool) -> str:
    if abs(change) <= EQUAL:
        return f"{round(after):,} {_RARE[metric]}, on both sides" if metric in _RARE else "equal"
    if metric in _COUNTED:
        count, more = round(abs(after - before)), "more" if after > before else "fewer"
        what, where = _COUNTED[metric]
        return f"{count:,} {more} non-finite {what} {'element' if count == 1 else 'elements'}{where}"
    noun, more = COLUMNS[metric].noun or COLUMNS[metric].label, "more" if change > 0 else "less"
    if math.isinf(change):
        return f"{noun} where there was none; {allowed}"
    if of_rounding:
        return f"{more} {noun} by {format_exact_percent(abs(change))} of what rounding to the dtype costs; {allowed}"
    return f"{format_exact_percent(abs(change))} {more} {noun}; {allowed}"


def _became_undefined(
    case: Case,
    metric: str,
    values: tuple[float | None, float | None],
    before: Divergence | None,
    after: Divergence | None,
) -> Change | None:
    """Return the verdict on an error that is undefined on one side because something is not finite there."""
    undefined_by = COLUMNS[metric].undefined_by
    if undefined_by is None or None not in values or before is None or after is None:
        return None
    count, what = undefined_by
    worse = values[1] is None
    broken_side = after if worse else before
    of = count.removesuffix("_nonfinite")
    elements = getattr(broken_side, count) or 0
    elsewhere = getattr(broken_side, f"{of}_reference_nan") or (of == "output" and broken_side.output_unlike)
    if not (elements or elsewhere) and metric != "param_rel_l2":
        return None
    label, written = COLUMNS[metric].label, format_quantity(values[0 if worse else 1], COLUMNS[metric].unit)
    broken = f"{elements:,} {what} elements that are not finite" if elements else "parameters that are not finite"
    if (elements or elsewhere) and worse:
        broken = _undefined(metric, broken_side) or broken
    elif elsewhere:
        broken = f"{what} elements that were not finite in {broken_side.reference_dtype}"
    return Change(
        case=case,
        metric=metric,
        kind="accuracy",
        status=ChangeStatus.REGRESSED if worse else ChangeStatus.IMPROVED,
        code=ChangeCode.BEYOND_THRESHOLD,
        reason=f"{label} became undefined: {broken}" if worse else f"{label} is {written} after {broken}",
        baseline=values[0],
        candidate=values[1],
    )


def _is_untold(metric: str, before: Divergence | None, after: Divergence | None) -> bool:
    """Return whether a side tells nothing of updates, so that nothing is lost or won."""
    told = metric in _OF_UPDATE or metric == "param_nonfinite"
    return told and any(one is None or one.update is None for one in (before, after))


def _undefined(metric: str, divergence: Divergence) -> str:
    """Return why a divergence has no number for an error, "" where it does not tell."""
    if metric in _OF_UPDATE:
        return divergence.update.undefined if divergence.update else ""
    undefined_by = COLUMNS[metric].undefined_by
    of_gradients = undefined_by is not None and undefined_by[0].startswith("grad")
    return divergence.grad_undefined if of_gradients else divergence.output_undefined


def _incomparable(
    case: Case, metric: str, code: ChangeCode, reason: str, values: tuple[float | None, float | None]
) -> Change:
    kind, verdict = GATED[metric].kind, ChangeStatus.INCOMPARABLE
    return Change(
        case=case,
        metric=metric,
        kind=kind,
        status=verdict,
        code=code,
        reason=reason,
        baseline=values[0],
        candidate=values[1],
    )


def _peak(memory: MemoryPass | None) -> float | None:
    return None if memory is None else float(memory.peak_bytes)


def _error(divergence: Divergence | None, metric: str) -> float | None:
    """Return an error as `ampbench.load` gives it."""
    if divergence is None:
        return None
    (value,) = COLUMNS[metric].stored({"divergence": [divergence]})
    return None if value is None or math.isnan(value) else float(value)


def _floor_ratio(divergence: Divergence | None) -> float | None:
    """Return the output's error divided by that of rounding to the dtype, as `ampbench.load` gives it."""
    error = _error(divergence, "output_rel_l2")
    floor = _floor("output_rel_l2", divergence)
    return error / floor if error is not None and floor else None


def _floor(metric: str, divergence: Divergence | None) -> float:
    """Return the number below which an error is not worth comparing with: of a count one, of a share its own floor."""
    if metric in _COUNTED:
        return 1.0
    if metric != "output_rel_l2":
        return GATED[metric].floor
    return (divergence.output_floor_rel_l2 if divergence is not None else None) or 0.0

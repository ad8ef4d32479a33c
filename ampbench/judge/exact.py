"""Verdicts on what luck has no part in: outcomes, bytes and errors, judged exactly or within a stated tolerance.

Errors are those against fp64 of the same code. Where the code changed, they say nothing about the change of what is
computed; so the references, what two runs gave in fp64, are held against each other, too.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from ampbench.core.metrics import COLUMNS, DRIFT, GATED
from ampbench.core.precisions import BASELINE
from ampbench.core.statement import state
from ampbench.core.stats import Moved, moved
from ampbench.judge.pairing import Pair, imported_finding, incomparable, other_file
from ampbench.judge.rounds import FAILED, OK, SKIPPED, MeasuredRun, Outcome
from ampbench.records.case import Case
from ampbench.records.changes import EQUAL, OUTCOME, Change, ChangeCode, ChangeStatus, Remark
from ampbench.records.measured import Divergence, GradientDivergence, MemoryPass, OutputDivergence

_SMALLEST_LOSS = 1e-9
"""Losses below this count as this large: what rounding left of zero is no change."""
_CHANCES = 3.0
"""A network that draws random numbers gives results so many times as far apart as two of its own, and is the same."""
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

    def facts(self, limit: float = 0.0) -> dict[str, float | str]:
        """Return how far the parts moved, and beyond which `limit` that counts, as facts of a change."""
        if self.shapes is not None:
            return {"shape_before": self.shapes[0], "shape": self.shapes[1]}
        distances = {name: part.distance for name, part in self.parts.items()}
        least = {f"{name}_at_least": 1.0 for name, part in self.parts.items() if part.at_least}
        return {"dtype": self.dtype, "limit": limit, **distances, **least}


def drift_between(before: Divergence, after: Divergence) -> Drift:
    """Return how far the reference of `after` lies from that of `before`, of equal weights, inputs and dtypes."""
    old, new = before.reference, after.reference
    shapes = [_shapes(divergence.output_shapes) for divergence in (old, new)]
    if None not in shapes and shapes[0] != shapes[1]:
        return Drift({}, shapes=(str(shapes[0]), str(shapes[1])))
    parts = {
        "output": moved(old.output_norm, new.output_norm, old.output_sketch, new.output_sketch),
        "gradients": moved(old.grad_norm, new.grad_norm, old.grad_sketch, new.grad_sketch),
        "loss": _loss_moved(old.loss, new.loss),
    }
    return Drift({name: part for name, part in parts.items() if part is not None}, dtype=old.dtype)


def other_function(before: Divergence | None, after: Divergence | None) -> dict[str, float | str]:
    """Return how far another fp64 result of other code moved, as facts; none where nothing tells so."""
    if before is None or after is None or before.reference.dtype != after.reference.dtype:
        return {}
    drift = drift_between(before, after)
    tolerance = _tolerance(drift, before, after)
    return {} if drift.distance is not None and drift.distance <= tolerance else drift.facts(tolerance)


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
    return Change(
        case=case,
        metric=DRIFT,
        kind=gate.kind,
        status=ChangeStatus.UNCHANGED if allowed else ChangeStatus.REGRESSED,
        code=ChangeCode.WITHIN_THRESHOLD if allowed else ChangeCode.OTHER_FUNCTION,
        facts=drift.facts(min(threshold, tolerance)),
        change=distance,
        low=distance,
        high=distance,
        threshold=threshold,
        remarks=[state(Remark.DRIFT)] if allowed else (),
        details={f"{name}_drift": part.distance for name, part in drift.parts.items()},
    )


def _tolerance(drift: Drift, before: Divergence, after: Divergence) -> float:
    """Return how far the result of other code may move by rounding and chance."""
    rounding = GATED[DRIFT].elsewhere if drift.dtype == "fp64" else _FP32_TOLERANCE
    return max(rounding, _by_chance(before, after))


def _by_chance(before: Divergence, after: Divergence) -> float:
    return _CHANCES * max(divergence.chance_rel_l2 or 0.0 for divergence in (before, after))


def _loss_moved(before: float | None, after: float | None) -> Moved | None:
    if before is None or after is None:
        return None
    return Moved(abs(after - before) / max(abs(before), abs(after), _SMALLEST_LOSS))


def _shapes(shapes: Sequence[Sequence[int]] | None) -> str | None:
    """Return shapes as "32x8 and 32x1", None where they are not known."""
    if shapes is None:
        return None
    return " and ".join("x".join(map(str, shape)) or "a scalar" for shape in shapes)


_RARE = ("output_reference_nonfinite", "output_fp32_nonfinite", "param_nonfinite")
_COUNTED = ("output_nonfinite", *_RARE)
"""The metrics that count elements which are not finite; nothing is said of the rare where there are none."""

_OF_UPDATE = {"update_rel_l2": "rel_l2", "update_kept": "kept"}
"""The metrics that a divergence has in its `update`, and under which names."""

ThresholdOf = Callable[[str, Case], float | None]
"""The largest relative change of a metric of a case that counts as none; None: that of `metrics.GATED`."""

MEMORY = "peak_memory_bytes"
LUCK = 3.0
"""An error is the norm of many roundings. Those of another order of summation are others, and the norm of n of them
varies by 1 / sqrt(n) of itself; three times that is luck (docs/statistics.md has a table of permuted sums)."""


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
    status, code = ChangeStatus.INCOMPARABLE, ChangeCode.NOT_RUN
    if before.name == OK and after.name == FAILED:
        status, code = ChangeStatus.REGRESSED, ChangeCode.OUTCOME_CHANGED
    elif before.name == FAILED and after.name == OK:
        status, code = ChangeStatus.IMPROVED, ChangeCode.OUTCOME_CHANGED
    elif before.name == OK or (before.pending and after.name == SKIPPED and not after.pending):
        code = ChangeCode.NOT_MEASURED
    facts = {"before": before.name, "after": after.name, "was": before.reason, "why": after.reason}
    return Change(case=pair.baseline, metric=OUTCOME, kind=OUTCOME, status=status, code=code, facts=facts)


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
        facts = {"before": before.source, "after": after.source}
        return incomparable(pair.baseline, MEMORY, ChangeCode.OTHER_COUNTER, facts, values)
    if any(value is not None and value <= 0 for value in values):
        return incomparable(pair.baseline, MEMORY, ChangeCode.INVALID, {}, values)
    finding = judge_numbers(pair.baseline, MEMORY, values, 0.0, None if same else Order(), threshold_of)
    reason = other_numbers(pair, baseline, candidate)
    if finding is None or not reason or finding.status not in (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED):
        return finding
    return replace(finding, remarks=[state(Remark.OTHER_NUMBERS, **reason)])


def accuracy_findings(
    pair: Pair, baseline: MeasuredRun, candidate: MeasuredRun, same: bool, threshold_of: ThresholdOf
) -> list[Change]:
    """Return the verdicts on the errors that either side has.

    A change counts relative to the baseline's error or, where that is larger, to the error of merely rounding the
    reference output to the dtype: below it, errors are luck. Where what is computed in fp64 moved, that is the finding,
    and errors are of another function: none is better or worse for it, but what is not finite is told.
    """
    before = baseline.stored.divergence.get(pair.baseline_id)
    after = candidate.stored.divergence.get(pair.candidate_id)
    reason = other_numbers(pair, baseline, candidate)
    same = same and not any(divergence is not None and divergence.repeatable is False for divergence in (before, after))
    findings: list[Change] = []
    drifted: Mapping[str, float | str] = {}
    if before and after and not (reason or other_reference(before, after)):
        drift = drift_finding(pair.baseline, before, after, same, threshold_of)
        findings += [drift] if drift else []
        if drift and drift.status is ChangeStatus.REGRESSED:
            drifted = drift.facts
    for metric, gate in GATED.items():
        if gate.kind != "accuracy" or metric == DRIFT:
            continue
        values = (_error(before, metric), _error(after, metric))
        if imported := imported_finding(pair, metric, values, baseline, candidate):
            findings.append(imported)
            continue
        if values == (None, None) or (metric in _RARE and not any(values)):
            continue
        if reason:
            findings.append(incomparable(pair.baseline, metric, ChangeCode.OTHER_WEIGHTS, reason, values))
            continue
        if references := other_reference(before, after):
            findings.append(incomparable(pair.baseline, metric, ChangeCode.OTHER_REFERENCE, references, values))
            continue
        if any(divergence is not None and divergence.chance_rel_l2 is not None for divergence in (before, after)):
            findings.append(incomparable(pair.baseline, metric, ChangeCode.INVALID, {}, values))
            continue
        lost = _became_undefined(pair.baseline, metric, values, before, after)
        floor = max(_floor(metric, before), _floor(metric, after))
        lacking = after if values[1] is None else before
        why = _undefined(metric, lacking) if lacking is not None and None in values else ""
        order = None if same else _order(metric, pair, baseline, candidate)
        finding = lost or judge_numbers(pair.baseline, metric, values, floor, order, threshold_of, why)
        broken = lost is not None or metric in _COUNTED
        if finding and drifted and not (broken and finding.status is not ChangeStatus.IMPROVED):
            finding = incomparable(pair.baseline, metric, ChangeCode.OTHER_FUNCTION, drifted, values)
        if finding:
            findings.append(finding)
    return findings


def other_numbers(pair: Pair, baseline: MeasuredRun, candidate: MeasuredRun) -> dict[str, str]:
    """Return in what the numbers differ that the two sides computed with, as facts; none where nothing tells so.

    These are `other` ("version", "weights" or "inputs"), and from which version or file to which.
    """
    if pair.baseline.version != pair.candidate.version:
        return {"other": "version", "from": str(pair.baseline.version), "to": str(pair.candidate.version)}
    before = baseline.stored.divergence.get(pair.baseline_id)
    after = candidate.stored.divergence.get(pair.candidate_id)
    weights = (baseline.weights(pair.baseline_id), candidate.weights(pair.candidate_id))
    kind = ""
    if (before and after and before.weights_digest != after.weights_digest) or (
        None not in weights and weights[0] != weights[1]
    ):
        kind = "weights"
    elif before and after and before.inputs_digest != after.inputs_digest:
        kind = "inputs"
    file = other_file(pair.baseline.workload, baseline.stored.header, candidate.stored.header) if kind else None
    return ({"other": kind} if kind else {}) | ({"from": file[0], "to": file[1]} if file else {})


def other_reference(before: Divergence | None, after: Divergence | None) -> dict[str, str]:
    """Return against which references the errors of two sides are and why, as facts; none where they are alike."""
    if before is None or after is None or before.reference.dtype == after.reference.dtype:
        return {}
    sides = {"baseline": before, "candidate": after}
    held = {"before": before.reference.dtype or "nothing", "after": after.reference.dtype or "nothing"}
    return held | {
        f"{name}_why": divergence.reference.error for name, divergence in sides.items() if divergence.reference.error
    }


@dataclass(frozen=True, slots=True)
class Order:
    """What another order of summation can do to a number: change it by `luck` of itself, and by so much in all."""

    luck: float = 0.0
    most: float = 0.0


def _order(metric: str, pair: Pair, baseline: MeasuredRun, candidate: MeasuredRun) -> Order:
    """Return what other code, or another torch, that computes the same may do to an error.

    By luck, what `LUCK` says of as many elements as the error is taken over. In all, as much as fp32 is wrong by in
    both runs: its error is that of one order of summation, and that of few elements may be more than twice another's.
    """
    before = baseline.stored.divergence.get(pair.baseline_id)
    after = candidate.stored.divergence.get(pair.candidate_id)
    counts = [_elements(metric, divergence) for divergence in (before, after)]
    fewest = min((count for count in counts if count), default=0)
    if metric in (*_COUNTED, "grad_flushed_share", "update_kept"):
        return Order()
    most = [
        _fp32_error(metric, run, case_id)
        for run, case_id in ((baseline, pair.baseline_id), (candidate, pair.candidate_id))
    ]
    return Order(LUCK / math.sqrt(fewest) if fewest else 0.0, min(most) * growth_by_order(fewest))


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
        return sum(map(math.prod, divergence.reference.output_shapes or ()))
    return divergence.gradient.elements or 0


def _fp32_error(metric: str, run: MeasuredRun, case_id: str) -> float:
    """Return what the error is of fp32 in the same run, 0 where it was not measured."""
    divergence = run.stored.divergence.get(case_id)
    if metric == "output_rel_l2" and divergence is not None and divergence.output.fp32_rel_l2 is not None:
        return divergence.output.fp32_rel_l2
    fp32 = structs.replace(run.stored.cases[case_id], precision=BASELINE).case_id
    return _error(run.stored.divergence.get(fp32), metric) or 0.0


def judge_numbers(
    case: Case,
    metric: str,
    values: tuple[float | None, float | None],
    floor: float,
    order: Order | None,
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
        facts = {"side": "candidate" if after is None else "baseline", "why": why}
        return incomparable(case, metric, ChangeCode.NOT_MEASURED, facts, values)
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
    status, code = ChangeStatus.UNCHANGED, ChangeCode.WITHIN_THRESHOLD
    numbers: dict[str, float] = {"equal": 1.0} if abs(change) <= EQUAL else {"of_rounding": 1.0} if of_rounding else {}
    if abs(difference) > max(threshold, EQUAL) * least:
        if abs(difference) <= gate.floor:
            numbers["floor"] = gate.floor
        else:
            worse = (change > 0) == (COLUMNS[metric].better != "higher")
            status, code = (ChangeStatus.REGRESSED if worse else ChangeStatus.IMPROVED), ChangeCode.BEYOND_THRESHOLD
    return Change(
        case=case,
        metric=metric,
        kind=gate.kind,
        status=status,
        code=code,
        facts=numbers,
        baseline=before,
        candidate=after,
        change=change,
        low=change,
        high=change,
        threshold=threshold,
    )


def _became_undefined(
    case: Case,
    metric: str,
    values: tuple[float | None, float | None],
    before: Divergence | None,
    after: Divergence | None,
) -> Change | None:
    """Return the verdict on an error that is undefined on one side because something is not finite there."""
    part = COLUMNS[metric].undefined_by
    if not part or None not in values or before is None or after is None:
        return None
    worse = values[1] is None
    broken_side = after if worse else before
    errors: OutputDivergence | GradientDivergence = getattr(broken_side, part)
    elements = errors.nonfinite or 0
    elsewhere = errors.reference_nan or (isinstance(errors, OutputDivergence) and errors.unlike)
    if not (elements or elsewhere) and metric != "param_rel_l2":
        return None
    facts: dict[str, float | str] = {
        "undefined": "candidate" if worse else "baseline",
        "elements": elements,
        "what": part,
    }
    if (elements or elsewhere) and worse:
        facts["why"] = _undefined(metric, broken_side)
    elif elsewhere:
        facts["dtype"] = broken_side.reference.dtype
    return Change(
        case=case,
        metric=metric,
        kind="accuracy",
        status=ChangeStatus.REGRESSED if worse else ChangeStatus.IMPROVED,
        code=ChangeCode.BEYOND_THRESHOLD,
        facts=facts,
        baseline=values[0],
        candidate=values[1],
    )


def _undefined(metric: str, divergence: Divergence) -> str:
    """Return why a divergence has no number for an error, "" where it does not tell."""
    if metric in _OF_UPDATE:
        return divergence.update.undefined if divergence.update else ""
    of_gradients = COLUMNS[metric].undefined_by == "gradient"
    return divergence.gradient.undefined if of_gradients else divergence.output.undefined


def _peak(memory: MemoryPass | None) -> float | None:
    return None if memory is None else float(memory.peak_bytes)


def _error(divergence: Divergence | None, metric: str) -> float | None:
    """Return an error as `ampbench.load` gives it."""
    if divergence is None:
        return None
    (value,) = COLUMNS[metric].stored({"divergence": [divergence]})
    return None if value is None or math.isnan(value) else float(value)


def _floor(metric: str, divergence: Divergence | None) -> float:
    """Return the number below which an error is not worth comparing with: of a count one, of a share its own floor."""
    if metric in _COUNTED:
        return 1.0
    if metric != "output_rel_l2":
        return GATED[metric].floor
    return (divergence.output.floor_rel_l2 if divergence is not None else None) or 0.0

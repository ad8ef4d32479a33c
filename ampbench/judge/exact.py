"""Judge numbers without luck: outcomes, bytes and errors, exactly or within a stated tolerance.

Errors are against fp64 of the same code, so they cannot show that the code now computes another function. The fp64
references of the two runs are therefore compared too.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from ampbench.core.metrics import COLUMNS, DRIFT, GATED
from ampbench.core.precisions import BASELINE
from ampbench.core.statement import state
from ampbench.core.stats import Moved, moved
from ampbench.judge.pairing import Values, change_of, imported_finding, incomparable, other_file
from ampbench.judge.rounds import FAILED, OK, SKIPPED, MeasuredCase, Pair
from ampbench.records.case import Case
from ampbench.records.changes import EQUAL, OUTCOME, Change, ChangeCode, ChangeStatus, Remark
from ampbench.records.measured import Divergence, GradientDivergence, OutputDivergence

_SMALLEST_LOSS = 1e-9
"""The smallest loss to divide by: rounding noise around zero is no change."""
_CHANCES = 3.0
"""The largest distance of equal networks that draw random numbers, relative to the distance of two runs of one."""
_FP32_TOLERANCE = 1e-4
"""The tolerance of references in fp32, which replace fp64 if it failed on both sides."""


ThresholdOf = Callable[[str, Case], float | None]
"""Returns the largest ignored relative change of a metric of a case; None: the threshold in `metrics.GATED`."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The distance of each part of a step's fp64 result: "output", "gradients" and "loss", if known on both sides.

    `shapes` are the output's shapes before and after, if they differ. `dtype` is the dtype of both references.
    `by_chance` is the distance that the network's random numbers explain.
    """

    parts: Mapping[str, Moved]
    shapes: tuple[str, str] | None
    dtype: str
    by_chance: float

    @classmethod
    def between(cls, before: Divergence, after: Divergence) -> "Drift":
        """Return the distance of the two references, which have equal weights, inputs and dtypes."""
        old, new = before.reference, after.reference
        by_chance = _CHANCES * max(divergence.chance_rel_l2 or 0.0 for divergence in (before, after))
        if None not in (old.output_shapes, new.output_shapes) and old.output_shapes != new.output_shapes:
            # as "32x8 and 32x1"
            first, second = (
                " and ".join("x".join(map(str, shape)) or "a scalar" for shape in reference.output_shapes or ())
                for reference in (old, new)
            )
            return cls({}, (first, second), old.dtype, by_chance)
        parts = {
            "output": moved(old.output_norm, new.output_norm, old.output_sketch, new.output_sketch),
            "gradients": moved(old.grad_norm, new.grad_norm, old.grad_sketch, new.grad_sketch),
        }
        if old.loss is not None and new.loss is not None:
            parts["loss"] = Moved(abs(new.loss - old.loss) / max(abs(old.loss), abs(new.loss), _SMALLEST_LOSS))
        return cls({name: part for name, part in parts.items() if part is not None}, None, old.dtype, by_chance)

    @property
    def distance(self) -> float | None:
        """The largest of the parts' distances; None if the output's shape changed."""
        return None if self.shapes else max((part.distance for part in self.parts.values()), default=0.0)

    @property
    def tolerance(self) -> float:
        """The largest distance that rounding and chance explain for changed code."""
        return max(GATED[DRIFT].elsewhere if self.dtype == "fp64" else _FP32_TOLERANCE, self.by_chance)

    def facts(self, limit: float) -> dict[str, float | str]:
        """Return the parts' distances and the `limit` above which they count, as facts of a change."""
        if self.shapes is not None:
            return {"shape_before": self.shapes[0], "shape": self.shapes[1]}
        distances = {name: part.distance for name, part in self.parts.items()}
        least = {f"{name}_at_least": 1.0 for name, part in self.parts.items() if part.at_least}
        return {"dtype": self.dtype, "limit": limit, **distances, **least}


def other_function(before: Divergence | None, after: Divergence | None) -> dict[str, float | str]:
    """Return the distance of the fp64 results of changed code, as facts; empty within tolerance or if unknown."""
    if before is None or after is None or before.reference.dtype != after.reference.dtype:
        return {}
    drift = Drift.between(before, after)
    within = drift.distance is not None and drift.distance <= drift.tolerance
    return {} if within else drift.facts(drift.tolerance)


def _drift_finding(case: Case, drift: Drift, same: bool, threshold_of: ThresholdOf) -> Change | None:
    """Return the finding on a moved fp64 result; None if the results are equal up to rounding.

    `same`: the same code ran on the same environment. A distance within the policy's threshold is unchanged, with a
    remark.
    """
    gate, distance = GATED[DRIFT], drift.distance
    least = max(gate.threshold, drift.by_chance)
    tolerance, asked = least if same else drift.tolerance, threshold_of(DRIFT, case)
    threshold = tolerance if asked is None else max(asked, least)
    if distance is not None and distance <= min(threshold, tolerance):
        return None
    allowed = distance is not None and distance <= threshold
    return change_of(
        case,
        DRIFT,
        ChangeStatus.UNCHANGED if allowed else ChangeStatus.REGRESSED,
        ChangeCode.WITHIN_THRESHOLD if allowed else ChangeCode.OTHER_FUNCTION,
        drift.facts(min(threshold, tolerance)),
        change=distance,
        low=distance,
        high=distance,
        threshold=threshold,
        remarks=[state(Remark.DRIFT)] if allowed else (),
        details={f"{name}_drift": part.distance for name, part in drift.parts.items()},
    )


_RARE = ("output_reference_nonfinite", "output_fp32_nonfinite", "param_nonfinite")
_COUNTED = ("output_nonfinite", *_RARE)
"""The metrics that count elements that are not finite; the rare ones have no finding at zero."""

_OF_UPDATE = {"update_rel_l2": "rel_l2", "update_kept": "kept"}
"""The metrics in a divergence's `update`, with their fields."""

MEMORY = "peak_memory_bytes"
LUCK = 3.0
"""The largest variation of an error by chance, in units of 1 / sqrt(n). An error is the norm of n roundings; another
order of summation draws others, whose norm varies by 1 / sqrt(n) (`benchmarks.self.verdicts` has a table)."""


def outcome_finding(pair: Pair) -> Change | None:
    """Return the finding on the outcomes of a case; None if it is ok on both sides.

    A case that was ok or pending and is now skipped is `NOT_MEASURED`, so that a gate reports it; other incomparable
    outcomes are `NOT_RUN`.
    """
    before, after = pair.baseline.outcome, pair.candidate.outcome
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
    return Change(case=pair.baseline.case, metric=OUTCOME, kind=OUTCOME, status=status, code=code, facts=facts)


def memory_finding(pair: Pair, same: bool, threshold_of: ThresholdOf) -> Change | None:
    """Return the verdict on the peak memory; None if neither side measured it."""
    before, after = pair.baseline.memory, pair.candidate.memory
    values = float(before.peak_bytes) if before else None, float(after.peak_bytes) if after else None
    if imported := imported_finding(pair, MEMORY, values):
        return imported
    if before and after and before.source != after.source:
        facts = {"before": before.source, "after": after.source}
        return incomparable(pair.baseline.case, MEMORY, ChangeCode.OTHER_COUNTER, facts, values)
    if any(value is not None and value <= 0 for value in values):
        return incomparable(pair.baseline.case, MEMORY, ChangeCode.INVALID, {}, values)
    finding = judge_numbers(pair.baseline.case, MEMORY, values, 0.0, None if same else Order(), threshold_of)
    reason = other_numbers(pair)
    if finding is None or not reason or finding.status not in (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED):
        return finding
    return replace(finding, remarks=[state(Remark.OTHER_NUMBERS, **reason)])


def accuracy_findings(pair: Pair, same: bool, threshold_of: ThresholdOf) -> list[Change]:
    """Return the verdicts on the errors of either side.

    A change is relative to the baseline's error or, if larger, to the error of merely rounding the reference output to
    the dtype: smaller errors are luck. If the fp64 result moved, that is the finding; errors are then of another
    function and incomparable, except for elements that are not finite.
    """
    before, after = pair.baseline.divergence, pair.candidate.divergence
    known = [divergence for divergence in (before, after) if divergence is not None]
    reason, references = other_numbers(pair), other_reference(before, after)
    by_chance = any(divergence.chance_rel_l2 is not None for divergence in known)
    same = same and not any(divergence.repeatable is False for divergence in known)
    findings: list[Change] = []
    drifted: Mapping[str, float | str] = {}
    if before and after and not (reason or references):
        drift = _drift_finding(pair.baseline.case, Drift.between(before, after), same, threshold_of)
        findings += [drift] if drift else []
        if drift and drift.status is ChangeStatus.REGRESSED:
            drifted = drift.facts
    for metric, gate in GATED.items():
        if gate.kind != "accuracy" or metric == DRIFT:
            continue
        values = (_error(before, metric), _error(after, metric))
        finding = imported_finding(pair, metric, values)
        if finding is None and (values == (None, None) or (metric in _RARE and not any(values))):
            continue
        if finding is None and reason:
            finding = incomparable(pair.baseline.case, metric, ChangeCode.OTHER_WEIGHTS, reason, values)
        elif finding is None and references:
            finding = incomparable(pair.baseline.case, metric, ChangeCode.OTHER_REFERENCE, references, values)
        elif finding is None and by_chance:
            finding = incomparable(pair.baseline.case, metric, ChangeCode.INVALID, {}, values)
        elif finding is None:
            lost = _became_undefined(pair, metric, values)
            floor = max(_floor(metric, before), _floor(metric, after))
            lacking = after if values[1] is None else before
            why = _undefined(metric, lacking) if lacking is not None and None in values else ""
            order = None if same else _order(metric, pair)
            finding = lost or judge_numbers(pair.baseline.case, metric, values, floor, order, threshold_of, why)
            broken = lost is not None or metric in _COUNTED
            if finding and drifted and not (broken and finding.status is not ChangeStatus.IMPROVED):
                finding = incomparable(pair.baseline.case, metric, ChangeCode.OTHER_FUNCTION, drifted, values)
        findings += [finding] if finding else []
    return findings


def other_numbers(pair: Pair) -> dict[str, str]:
    """Return the difference of the numbers that the two sides computed with, as facts; empty if none is known.

    The facts are `other` ("version", "weights" or "inputs"), and the version or file before and after.
    """
    ours, theirs = pair
    if ours.case.version != theirs.case.version:
        return {"other": "version", "from": str(ours.case.version), "to": str(theirs.case.version)}
    before, after = ours.divergence, theirs.divergence
    kind = ""
    if (before and after and before.weights_digest != after.weights_digest) or (
        ours.weights and theirs.weights and ours.weights != theirs.weights
    ):
        kind = "weights"
    elif before and after and before.inputs_digest != after.inputs_digest:
        kind = "inputs"
    file = other_file(ours.case.workload, ours.run.stored.header, theirs.run.stored.header) if kind else None
    return ({"other": kind} if kind else {}) | ({"from": file[0], "to": file[1]} if file else {})


def other_reference(before: Divergence | None, after: Divergence | None) -> dict[str, str]:
    """Return the differing references of the two sides' errors, with reasons, as facts; empty if they are alike."""
    if before is None or after is None or before.reference.dtype == after.reference.dtype:
        return {}
    sides = {"baseline": before, "candidate": after}
    held = {"before": before.reference.dtype or "nothing", "after": after.reference.dtype or "nothing"}
    return held | {
        f"{name}_why": divergence.reference.error for name, divergence in sides.items() if divergence.reference.error
    }


@dataclass(frozen=True, slots=True)
class Order:
    """The largest effect of another order of summation: `luck` is relative to the number, `most` absolute."""

    luck: float = 0.0
    most: float = 0.0


def _order(metric: str, pair: Pair) -> Order:
    """Return the largest effect on an error of other code, or another torch, that computes the same.

    The relative effect follows from `LUCK` and the number of elements. The absolute effect is the error of fp32 in both
    runs, which is the error of one order of summation; over few elements it may be more than twice another's.
    """
    if metric in (*_COUNTED, "grad_flushed_share", "update_kept"):
        return Order()
    counts = [_elements(metric, side.divergence) for side in pair]
    fewest = min((count for count in counts if count), default=0)
    most = min(_fp32_error(metric, side) for side in pair)
    return Order(LUCK / math.sqrt(fewest) if fewest else 0.0, most * growth_by_order(fewest))


@functools.cache
def growth_by_order(elements: int) -> float:
    """Return the relative growth of an error that another order of summation explains, over `elements` (0: unknown).

    It may double, or grow more under 21 elements. The squared norms of n independent roundings have a ratio distributed
    as F(n, n), taken here at the probability of three standard deviations of a normal.
    """
    from scipy.special import fdtri, ndtr  # imported only to compare errors

    return max(1.0, math.sqrt(fdtri(elements, elements, ndtr(LUCK))) - 1) if elements else 1.0


def _elements(metric: str, divergence: Divergence | None) -> int:
    """Return the number of elements in an error's norm, 0 if unknown."""
    if divergence is None:
        return 0
    if metric.startswith("output"):
        return sum(map(math.prod, divergence.reference.output_shapes or ()))
    return divergence.gradient.elements or 0


def _fp32_error(metric: str, side: MeasuredCase) -> float:
    """Return the error of fp32 in the same run, 0 if it was not measured."""
    divergence = side.divergence
    if metric == "output_rel_l2" and divergence is not None and divergence.output.fp32_rel_l2 is not None:
        return divergence.output.fp32_rel_l2
    fp32 = structs.replace(side.case, precision=BASELINE).case_id
    return _error(side.run.stored.divergence.get(fp32), metric) or 0.0


def judge_numbers(
    case: Case,
    metric: str,
    values: Values,
    floor: float,
    order: Order | None,
    threshold_of: ThresholdOf,
    why: str = "",
) -> Change | None:
    """Return the verdict on two exact numbers; None if neither side has one.

    The change is relative to the baseline's number or, for output errors and counts, to `floor` if that is larger.
    `order` is None if the same code ran on the same environment; else only a change beyond its effect counts, unless
    the requested threshold is 0. `why` explains a missing number.
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
    return change_of(
        case, metric, status, code, numbers, values, change=change, low=change, high=change, threshold=threshold
    )


def _became_undefined(pair: Pair, metric: str, values: Values) -> Change | None:
    """Return the verdict on an error that is undefined on one side because of elements that are not finite."""
    part = COLUMNS[metric].undefined_by
    before, after = pair.baseline.divergence, pair.candidate.divergence
    if not part or None not in values or before is None or after is None:
        return None
    worse = values[1] is None
    broken_side = after if worse else before
    errors: OutputDivergence | GradientDivergence = getattr(broken_side, part)
    elements = errors.nonfinite or 0
    elsewhere = errors.reference_nan or (isinstance(errors, OutputDivergence) and errors.unlike)
    if not (elements or elsewhere) and metric != "param_rel_l2":
        return None
    why = {"why": _undefined(metric, broken_side)} if (elements or elsewhere) and worse else {}
    facts = {"undefined": "candidate" if worse else "baseline", **why}
    status = ChangeStatus.REGRESSED if worse else ChangeStatus.IMPROVED
    return change_of(pair.baseline.case, metric, status, ChangeCode.BEYOND_THRESHOLD, facts, values)


def _undefined(metric: str, divergence: Divergence) -> str:
    """Return why an error is undefined in a divergence, "" if unknown."""
    if metric in _OF_UPDATE:
        return divergence.update.undefined if divergence.update else ""
    of_gradients = COLUMNS[metric].undefined_by == "gradient"
    return divergence.gradient.undefined if of_gradients else divergence.output.undefined


def _error(divergence: Divergence | None, metric: str) -> float | None:
    """Return an error as in `ampbench.load`."""
    if divergence is None:
        return None
    (value,) = COLUMNS[metric].stored({"divergence": [divergence]})
    return None if value is None or math.isnan(value) else float(value)


def _floor(metric: str, divergence: Divergence | None) -> float:
    """Return the smallest error to compare with: 1 for a count, the gate's floor for a share."""
    if metric in _COUNTED:
        return 1.0
    if metric != "output_rel_l2":
        return GATED[metric].floor
    return (divergence.output.floor_rel_l2 if divergence is not None else None) or 0.0

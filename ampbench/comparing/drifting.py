"""Whether two runs compute the same: the distance of what they gave in fp64, which no precision has part in.

Errors are those against fp64 of the same code. Where the code changed, they say nothing about the change of what is
computed; the references held against each other do.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ampbench.metrics import DRIFT, GATED
from ampbench.records.cases import Case
from ampbench.records.divergences import Divergence
from ampbench.sketch import Moved, moved
from ampbench.units import format_error, format_limit, format_percent
from ampbench.verdicts import Code, Finding, Verdict

OTHERWISE = "computes something else: "
"""What the reason begins with where something else is computed."""

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
        return _joined(parts)


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
    """Return "computes something else: ..." where other code gave another fp64 result, "" where nothing tells so."""
    if before is None or after is None or before.reference_dtype != after.reference_dtype:
        return ""
    drift = drift_between(before, after)
    tolerance = _tolerance(drift, before, after)
    return "" if drift.distance is not None and drift.distance <= tolerance else OTHERWISE + drift.said(tolerance)


def drift_finding(
    case: Case,
    before: Divergence,
    after: Divergence,
    same: bool,
    threshold_of: Callable[[str, Case], float | None],
) -> Finding | None:
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
    return Finding(
        case=case,
        metric=DRIFT,
        kind=gate.kind,
        verdict=Verdict.UNCHANGED if allowed else Verdict.REGRESSED,
        code=Code.WITHIN_THRESHOLD if allowed else Code.OTHER_FUNCTION,
        reason=f"{said}; threshold {format_limit(threshold)}" if allowed else OTHERWISE + said,
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
        return "from zero"
    far = format_percent(distance) if distance >= _SMALLEST_PERCENT else f"{format_error(distance)} of its norm"
    return f"by {'at least ' if at_least else ''}{far}"


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


def _joined(parts: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)

"""Series without luck (bytes, errors): a difference beyond the gate's tolerance is a change, without any statistics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ampbench.comparing.exact import EQUAL
from ampbench.metrics import Gate

RESTLESS_SHARE = 0.25
RESTLESS_POINTS = 8
"""From this many points on, a series with changes at more than that share of its gaps is noise: its metric is not the
same in every run after all, and none of its differences is news."""


@dataclass(frozen=True, slots=True)
class Level:
    """A change: the value at `place` differs from that at the earlier place `since`."""

    since: int
    place: int


def find_levels(
    values: Sequence[float | None], gate: Gate, scale: float, same: Callable[[int, int], bool]
) -> list[Level] | None:
    """Return where the values, in order, change; None where they do so all the time (`RESTLESS_SHARE`).

    A value of None is undefined: that is a level of its own.

    `same(i, j)` tells whether two points must be equal to the last bit; then `gate.threshold` holds, else
    `gate.elsewhere`. Changes are relative to the smaller of two values, at least to `scale`, as in comparisons. A value
    is held against its neighbour and against the first of its level, so that small losses add up to a change.
    """
    found: list[Level] = []
    first = 0
    for place in range(1, len(values)):
        for since in dict.fromkeys((place - 1, first)):
            if _differs(values[since], values[place], gate, scale, partial(same, since, place)):
                found.append(Level(since=since, place=place))
                first = place
                break
    restless = len(values) >= RESTLESS_POINTS and len(found) > RESTLESS_SHARE * (len(values) - 1)
    return None if restless else found


def _differs(before: float | None, after: float | None, gate: Gate, scale: float, same: Callable[[], bool]) -> bool:
    if before is None or after is None:
        return before is not after
    difference, smaller = abs(after - before), max(min(before, after), scale)
    if difference <= max(EQUAL * smaller, gate.floor):
        return False
    return difference > (gate.threshold if same() else gate.elsewhere) * smaller

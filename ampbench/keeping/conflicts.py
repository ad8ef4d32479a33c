"""Why a low set fails: the smallest of its parts that fails on its own, found by halving."""

import math
from collections.abc import Mapping, Sequence

from ampbench.keeping.tried import Tried, Units

ADDS_UP = 0.6
"""The part of an error's square from which on it counts as the sum of the squares of its parts."""


def find_conflict(tried: Tried, low: Units, guilt: Mapping[int, float]) -> Units | None:
    """Return a part of the failing set `low` that fails, and of which no unit can be left out; one unit as a rule.

    None: many units each add a little to the error, and no small part of them fails, or trials contradict each other.
    Units of more `guilt` are suspected first: the half to try is that which holds half of it. What is known to meet the
    budget is not suspected, unless nothing else explains the failure. As QuickXplain (Junker, AAAI 2004), with about
    log2(units) trials for each unit of the conflict. Raises `TrialsSpentError`.
    """
    found: Units = frozenset()
    innocent = tried.largest_meeting(low)
    suspects = _suspected_first(low - innocent, guilt)
    while suspects:
        place = _crossing(tried, found | innocent, suspects, guilt)
        before = innocent.union(suspects[:place])
        last = frozenset({suspects[place]})
        if not found and _adds_up(tried, before, last):
            return None
        found |= last
        if not tried.meets(found):
            return found
        innocent, suspects = frozenset(), _suspected_first(before, guilt)
    return None


def more_suspected(suspects: Units, guilt: Mapping[int, float]) -> Units:
    """Return those of most guilt, so many that they hold about half of it."""
    order = _suspected_first(suspects, guilt)
    return frozenset(order[: _half(order, 0, len(order), guilt)] if len(order) > 1 else order)


def _suspected_first(units: Units, guilt: Mapping[int, float]) -> list[int]:
    return sorted(units, key=lambda unit: (-guilt[unit], unit))


def _crossing(tried: Tried, fixed: Units, suspects: Sequence[int], guilt: Mapping[int, float]) -> int:
    """Return the place of the suspect with which `fixed` and those before it begin to fail, as with all they do."""
    meeting, failing = 0, len(suspects)
    while failing - meeting > 1:
        middle = _half(suspects, meeting, failing, guilt)
        if tried.meets(fixed.union(suspects[:middle])):
            meeting = middle
        else:
            failing = middle
    return failing - 1


def _half(suspects: Sequence[int], start: int, end: int, guilt: Mapping[int, float]) -> int:
    """Return where half of the guilt between two places is reached, at least one off both."""
    half = sum(guilt[unit] for unit in suspects[start:end]) / 2
    reached = 0.0
    for place in range(start, end):
        reached += guilt[suspects[place]]
        if reached >= half * (1 - 1e-9):
            return min(max(place + 1, start + 1), end - 1)
    return end - 1


def _adds_up(tried: Tried, before: Units, last: Units) -> bool:
    """Return whether the error of both sets is what their own errors make together, though neither fails alone."""
    if tried.meets(last) and math.isfinite(tried.excess(before | last)):
        together = tried.shares[before | last]
        worst = max(range(len(together)), key=lambda which: together[which])
        for part in (before, last):
            tried.excess(part)
        return tried.shares[before][worst] + tried.shares[last][worst] >= ADDS_UP * together[worst]
    return False

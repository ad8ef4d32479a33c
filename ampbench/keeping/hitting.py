"""The smallest set that holds a unit of each conflict, and a number of units below which there is none."""

from collections.abc import Sequence
from dataclasses import dataclass

from ampbench.keeping.tried import Units

NODES = 3000
"""How many branches are looked at; beyond, what was found need not be the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hitting:
    """A set that holds a unit of each conflict (None: none as small as asked was found); none has less than `least`."""

    kept: Units | None
    least: int


def smallest_hitting(conflicts: Sequence[Units], dislike: Sequence[float], most: int) -> Hitting:
    """Return the smallest set of up to `most` units with one of each of `conflicts`; `dislike` is of each unit.

    Of equally small ones it is that with the least sum of `dislike`. Branch and bound: a smallest conflict that is not
    hit yet is hit by each of its units in turn; conflicts without common units bound what is still needed. `least` is
    `most` + 1 where all branches were seen and none is small enough.
    """
    work = _Branches(dislike, most)
    work.branch([], frozenset(), conflicts)
    apart = len(_apart(conflicts))
    if work.nodes >= NODES:
        return Hitting(kept=work.best, least=apart)
    return Hitting(kept=work.best, least=most + 1 if work.best is None else len(work.best))


class _Branches:
    """Branches under way, and the best set so far."""

    def __init__(self, dislike: Sequence[float], most: int):
        self.dislike, self.most = dislike, most
        self.best: Units | None = None
        self.best_dislike = 0.0
        self.nodes = 0

    def branch(self, chosen: list[int], refused: Units, open_sets: Sequence[Units]) -> None:
        """Complete `chosen`, without what is `refused`, by units of the conflicts that are still open."""
        self.nodes += 1
        if not all(open_sets):
            return
        if not open_sets:
            self._note(chosen)
            return
        apart = _apart(open_sets)
        size = len(chosen) + len(apart)
        disliked = sum(self.dislike[unit] for unit in chosen)
        disliked += sum(min(self.dislike[unit] for unit in conflict) for conflict in apart)
        if self.best is None:
            if size > self.most:
                return
        elif (size, disliked) >= (len(self.best), self.best_dislike):
            return
        without = set(refused)
        shortest: Units = min(open_sets, key=len)
        for unit in sorted(shortest, key=lambda unit: (self.dislike[unit], unit)):
            if self.nodes >= NODES:
                return
            self.branch([*chosen, unit], frozenset(without), [left - without for left in open_sets if unit not in left])
            without.add(unit)

    def _note(self, chosen: list[int]) -> None:
        disliked = sum(self.dislike[unit] for unit in chosen)
        if len(chosen) <= self.most and (
            self.best is None or (len(chosen), disliked) < (len(self.best), self.best_dislike)
        ):
            self.best, self.best_dislike = frozenset(chosen), disliked


def _apart(conflicts: Sequence[Units]) -> list[Units]:
    """Return conflicts without common units, the small ones first."""
    seen: set[int] = set()
    apart = []
    for conflict in sorted(conflicts, key=len):
        if seen.isdisjoint(conflict):
            seen |= conflict
            apart.append(conflict)
    return apart

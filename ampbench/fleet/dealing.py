"""Which lane of a fleet measures what: tables are dealt out in pieces, and dealt anew when a lane is lost."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ampbench.drive.rounds import SERVER_SECONDS, Table, table_of
from ampbench.records.case import Case

OVERHEAD_SHARE = 0.05
"""A piece is meant to be so long that starting its servers takes no more of it."""


@dataclass(slots=True)
class Deal:
    """The tables that lanes of one kind share, or a lane has to itself: what is left, who does what, how fast.

    Pieces become smaller as less is left, as in guided self-scheduling (Polychronopoulos & Kuck 1987): half of what
    would be a lane's equal part, so that lanes of different speed end together, but no less than what starting its
    servers is worth, unless that would leave another lane without. A table that a lost lane had begun comes first.
    """

    rounds: int
    shared: bool = True
    tables: dict[Table, list[str]] = field(default_factory=dict)
    left: list[Table] = field(default_factory=list)
    dealt: dict[str, list[Table]] = field(default_factory=dict)
    seconds: float = 0.0
    done: int = 0

    @classmethod
    def of(cls, cases: Iterable[Case], rounds: int, *, shared: bool) -> "Deal":
        """Return the deal of all `cases`, measured in so many `rounds`; one that is not `shared` is a piece."""
        deal = cls(rounds, shared)
        for case in cases:
            deal.tables.setdefault(table_of(case), []).append(case.case_id)
        deal.left = list(deal.tables)
        return deal

    def take(self, lane: str, lanes: int) -> list[str]:
        """Return the ids of the cases of the next piece, for one of so many `lanes`; none where nothing is left."""
        if not self.left:
            return []
        equal = math.ceil(len(self.left) / max(lanes, 1))
        guided = math.ceil(len(self.left) / (2 * max(lanes, 1)))
        count = min(max(guided, self._least()), equal) if self.shared else len(self.left)
        self.dealt[lane], self.left = self.left[:count], self.left[count:]
        return [case_id for table in self.dealt[lane] for case_id in self.tables[table]]

    def finish(self, lane: str, seconds: float) -> None:
        """Note that `lane` did its piece, in so many `seconds`."""
        self.done += len(self.dealt.pop(lane, ()))
        self.seconds += seconds

    def give_back(self, lane: str, is_finished: Callable[[str], bool]) -> None:
        """Put what a lost lane had begun before what is left, but for tables of which every case is finished."""
        begun = self.dealt.pop(lane, [])
        again = [table for table in begun if not all(map(is_finished, self.tables[table]))]
        self.done += len(begun) - len(again)
        self.left = again + self.left

    @property
    def cases_left(self) -> list[str]:
        """The ids of the cases that nobody has."""
        return [case_id for table in self.left for case_id in self.tables[table]]

    def _least(self) -> int:
        """Return how many tables are worth starting servers for, by how long those done took."""
        if not self.done:
            return 1
        worth = self.rounds * SERVER_SECONDS / OVERHEAD_SHARE
        return math.ceil(worth * self.done / max(self.seconds, 1e-3))

"""The rounds of a run by case, reduced to what a reader compares: their number, ends, median, interval and spread."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ampbench import frames, stats
from ampbench.comparing import fitness
from ampbench.comparing.runs import MeasuredRun, Role
from ampbench.rows import number
from ampbench.store import StoredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A case's rounds in numbers, those of the control left out; all times are seconds a step.

    `low` and `high` are the 95% interval of `median`, `spread` is the standard deviation of the logarithms: about the
    relative one. None where there are too few rounds for them.
    """

    rounds: int
    fastest: float
    median: float
    slowest: float
    low: float | None
    high: float | None
    spread: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class One:
    """A round: its `number` in the file, its value in `seconds`, all its `samples`, and why it is unfit, if it is."""

    role: Role
    number: int
    seconds: float
    samples: Sequence[Sequence[float]]
    unfit: str | None


class RunRounds:
    """A run's rounds, found by case. Rounds without a time that can be drawn are left out."""

    def __init__(self, stored: StoredRun):
        self.stored = stored
        self._rounds = MeasuredRun.of(stored).rounds
        self._places = {case_id: place for place, case_id in enumerate(stored.cases)}
        devices = [case.device for case in stored.cases.values()]
        self._unfit = fitness.unfit_rounds(self._rounds, devices, stored.header.environment.cpu_count)
        usable = np.flatnonzero(np.isfinite(self._rounds.seconds) & (self._rounds.seconds > 0))
        self._order = usable[np.argsort(self._rounds.owners[usable], kind="stable")]
        self._ends = np.searchsorted(self._rounds.owners[self._order], np.arange(len(stored.cases) + 1)).tolist()
        self.summaries = self._summarized()

    def of(self, case_id: str) -> list[One]:
        """Return a case's rounds in the order of the file, those of the control among them."""
        chosen, rounds = self._chosen(case_id), self._rounds
        columns = (rounds.roles, rounds.blocks, rounds.seconds, self._unfit.cause, self._unfit.value)
        return [
            One(
                role=Role(role),
                number=block,
                seconds=seconds,
                samples=self.stored.rounds[index].samples,
                unfit=None if cause < 0 else fitness.CAUSES[cause].format(value),
            )
            for index, role, block, seconds, cause, value in zip(
                chosen.tolist(), *(column[chosen].tolist() for column in columns), strict=True
            )
        ]

    def disturbed(self, case_id: str) -> float | None:
        """Return the share of a case's samples that something else on the machine delayed (`frames.DISTURBED`)."""
        rounds = [self.stored.rounds[index] for index in self._own(case_id).tolist()]
        return frames.disturbed_share(replace(self.stored, rounds=rounds))

    def unfit(self, case_id: str) -> str:
        """Return why some of a case's rounds are unfit, the commonest cause in words; "" where none is."""
        own = self._own(case_id)
        bad = own[self._unfit.cause[own] >= 0]
        if not bad.size:
            return ""
        return fitness.said_of(self._unfit.cause[bad], self._unfit.value[bad], len(own), "rounds")

    def _chosen(self, case_id: str) -> stats.Integers:
        """Return where a case's rounds are in the run's list."""
        place = self._places.get(case_id)
        return self._order[:0] if place is None else self._order[self._ends[place] : self._ends[place + 1]]

    def _own(self, case_id: str) -> stats.Integers:
        chosen = self._chosen(case_id)
        own: stats.Integers = chosen[self._rounds.roles[chosen] != Role.CONTROL]
        return own

    def _summarized(self) -> dict[str, Summary]:
        kept = self._order[self._rounds.roles[self._order] != Role.CONTROL]
        owners, seconds = self._rounds.owners[kept], self._rounds.seconds[kept]
        counts = np.bincount(owners, minlength=len(self._places))
        timed = np.flatnonzero(counts)
        if not timed.size:
            return {}
        lengths = counts[timed]
        starts = np.cumsum(lengths) - lengths
        segments = np.repeat(np.arange(len(timed)), lengths)
        logs = np.log(seconds)
        squares = np.bincount(segments, (logs - (np.bincount(segments, logs) / lengths)[segments]) ** 2)
        columns = (
            np.minimum.reduceat(seconds, starts),
            stats.segment_medians(seconds, lengths),
            np.maximum.reduceat(seconds, starts),
            *stats.log_t_intervals(seconds, lengths),
            np.sqrt(stats.ratio(squares, lengths - 1)),
        )
        ids = list(self._places)
        return {
            ids[place]: Summary(
                rounds=count,
                fastest=fastest,
                median=median,
                slowest=slowest,
                low=number(low),
                high=number(high),
                spread=number(spread),
            )
            for place, count, fastest, median, slowest, low, high, spread in zip(
                timed.tolist(), lengths.tolist(), *(column.tolist() for column in columns), strict=True
            )
        }

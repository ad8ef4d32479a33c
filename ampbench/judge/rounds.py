"""A stored run with its rounds as columns, and the outcome of each case."""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property
from itertools import islice, starmap
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ampbench.core import stats
from ampbench.records.labels import Pending
from ampbench.records.measured import THROTTLES, Round, Telemetry
from ampbench.store import StoredRun, once, read_run

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
WEIGHTS_DIFFER = "weights differ between rounds"


class Role(IntEnum):
    """What a round was measured for."""

    OWN = 0
    CONTROL = 1
    CONFIRMATION = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a case is ok, failed or skipped, and why; `pending`: not reached yet. `timed`: it has rounds."""

    name: str
    reason: str = ""
    pending: bool = False
    timed: bool = False


class TimedRound(NamedTuple):
    """What verdicts need of a round: its number, its value in `seconds`, and fields of `Round`."""

    number: int
    seconds: float
    param_nonfinite: float | None = None
    skipped_steps: float | None = None
    scaler_scale: float | None = None


def _mean(one: Round) -> float | None:
    """Return the mean over all samples of a round, None if their steps are unknown."""
    return stats.round_mean(one.samples, one.steps_per_sample, one.cpu_samples) if one.steps_per_sample else None


def _machine(one: Round) -> tuple[float | None, ...]:
    """Return the fields of `Rounds` from `steal` on."""
    fitness, told = one.fitness, one.telemetry or _SILENT
    fell = told.last_clock_hz / told.first_clock_hz if told.last_clock_hz and told.first_clock_hz else None
    return (
        fitness.steal_share,
        fitness.other_share,
        fitness.load,
        fitness.frequency_hz,
        told.clock_hz or fitness.accelerator_clock_hz,
        max((share for word, share in told.limited.items() if word in THROTTLES), default=None),
        fell,
        told.other_share,
        one.burst_seconds,
        told.power_watts,
        power_error(told),
        one.param_nonfinite,
        one.skipped_steps,
        one.scaler_scale,
    )


_SILENT = Telemetry()


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of a run as arrays of equal length, in the order of the file.

    `owners` are places in the run's list of cases, `blocks` the rounds' numbers; `seconds` are their values. `steal` to
    `clock` are fields of `Fitness`, NaN if unknown. Of an accelerator `throttled` is the share of time in which heat or
    a fault held its clock down, `fell` the clock of the last window relative to the first, `shared` the time that
    others had of it; `bursts` are the seconds per step of the fastest sample, `power` is in watts, `power_error` its
    relative error.
    """

    owners: stats.Integers
    blocks: stats.Integers
    roles: stats.Integers
    seconds: stats.Floats
    steal: stats.Floats
    other: stats.Floats
    load: stats.Floats
    frequency: stats.Floats
    clock: stats.Floats
    throttled: stats.Floats
    fell: stats.Floats
    shared: stats.Floats
    bursts: stats.Floats
    power: stats.Floats
    power_error: stats.Floats
    param_nonfinite: stats.Floats
    skipped_steps: stats.Floats
    scaler_scale: stats.Floats


@dataclass(frozen=True, slots=True)
class ByCase:
    """Some rounds of a run, case after case: their places in `Rounds`, in the order of the file, and how many.

    `order` has the shape (sum of `lengths`,), `lengths` one element for each case of the run.
    """

    order: stats.Integers
    lengths: stats.Integers

    def medians(self, values: stats.Floats) -> stats.Floats:
        """Return the median of each case's `values`, one for each round of the run; NaN without a round."""
        found, timed = np.full(len(self.lengths), np.nan), self.lengths > 0
        if np.isnan(values).all():  # what the machine does not tell
            return found
        found[timed] = stats.segment_medians(values[self.order], self.lengths[timed])
        return found

    def intervals(self, values: stats.Floats) -> tuple[stats.Floats, stats.Floats]:
        """Return the ends of each case's 95% t interval on logarithms (`stats.log_t_intervals`)."""
        return stats.log_t_intervals(values[self.order], self.lengths)


class MeasuredRun:
    """A `stored` run with its rounds as columns; made by `of` or, without keeping the samples, by `read`."""

    stored: StoredRun

    def __init__(self, *, averaging: bool = False):
        self._averaging = averaging
        self._values: list[stats.Floats] = []
        self._means: list[float | None] = []
        self._items: dict[str, float] = {}
        self._weights: dict[str, str] = {}
        self._timed: dict[str, int] = {}
        self.differing: set[str] = set()
        """The cases whose rounds, with the control, differ in their weights."""
        self.alone: dict[str, str] = {}
        """Why cases were measured one lane at a time, by case: one of `records.measured.ALONE`."""

    @staticmethod
    @once
    def of(stored: StoredRun) -> "MeasuredRun":
        """Return a run that has been read with its rounds, reduced once."""
        run = MeasuredRun()
        run.stored = stored
        if stored.rounds:
            run._add(stored.rounds)
        return run

    @classmethod
    def read(cls, path: Path | str, *, averaging: bool = True) -> "MeasuredRun":
        """Return the run in the file at `path`, which is also `of` it; raises `StoreError` as `read_run` does.

        `averaging` keeps the means over all samples of each round, which take long, and only comparisons need.
        """
        run = cls(averaging=averaging)
        run.stored = read_run(path, on_rounds=run._add)
        run.stored._derived[inspect.unwrap(cls.of)] = run
        return run

    def _add(self, rounds: Sequence[Round]) -> None:
        """Add the next rounds: a row of the fields of `Rounds` for each, with places in `_timed` as owners."""
        timed = self._timed
        rows = [
            (
                timed.setdefault(one.case_id, len(timed)),
                one.round,
                Role.CONTROL if one.control else Role.CONFIRMATION if one.confirmation else Role.OWN,
                stats.round_value(one.samples, one.cpu_samples, one.windows),
                *_machine(one),
            )
            for one in rounds
        ]
        self._values.append(np.array(rows, dtype=np.float64))
        if self._averaging:
            self._means += map(_mean, rounds)
        self._items.update((one.case_id, one.items_per_step) for one in rounds)
        self.alone.update((one.case_id, one.alone) for one in rounds if one.alone)
        for case_id, digest in dict.fromkeys([(one.case_id, one.weights_digest) for one in rounds]):
            if self._weights.setdefault(case_id, digest) != digest:
                self.differing.add(case_id)

    @cached_property
    def rounds(self) -> Rounds:
        """The rounds, as arrays."""
        places = np.fromiter(map(self.places.__getitem__, self._timed), np.int64, len(self._timed))
        values = np.concatenate([np.empty((0, len(fields(Rounds)))), *self._values]).T.copy()
        owners, blocks, roles = values[:3].astype(np.int64)
        return Rounds(places[owners], blocks, roles, *values[3:])

    @cached_property
    def means(self) -> stats.Floats:
        """The mean over all samples of each round, NaN if unknown."""
        known = self._means or list(map(_mean, self.stored.rounds))
        return stats.numbers(known) if known else np.full(len(self.rounds.seconds), np.nan)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """seconds_median of `ampbench.load` by case id: the median of all rounds but the control's."""
        medians = zip(self.stored.cases, self.own.medians(self.rounds.seconds).tolist(), self.own.lengths, strict=True)
        return {case_id: median for case_id, median, count in medians if count}

    @cached_property
    def own(self) -> ByCase:
        """The rounds of each case, all but the control's."""
        return self.by_case(self.rounds.roles != Role.CONTROL)

    def by_case(self, among: stats.Booleans) -> ByCase:
        """Return by case the rounds for which `among`, one element for each round, is true."""
        chosen = np.flatnonzero(among)
        owners = self.rounds.owners[chosen]
        lengths = np.bincount(owners, minlength=len(self.stored.cases))
        return ByCase(chosen[np.argsort(owners, kind="stable")], lengths)

    @cached_property
    def timed(self) -> dict[str, list[TimedRound]]:
        """The rounds of each case without the control's."""
        rounds, order = self.rounds, self.own.order
        columns = (rounds.blocks, rounds.seconds, rounds.param_nonfinite, rounds.skipped_steps, rounds.scaler_scale)
        values = ([None if math.isnan(value) else value for value in column[order].tolist()] for column in columns)
        every = starmap(TimedRound, zip(*values, strict=True))
        lengths = self.own.lengths.tolist()
        return {case_id: list(islice(every, count)) for case_id, count in zip(self.places, lengths, strict=True)}

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each case in the run's list of cases, as in `Rounds.owners`."""
        return {case_id: place for place, case_id in enumerate(self.stored.cases)}

    @property
    def has_means(self) -> bool:
        """Whether the samples behind the rounds' values were read."""
        return not bool(np.isnan(self.means).all())

    @property
    def has_controls(self) -> bool:
        """Whether any case was measured twice."""
        return bool((self.rounds.roles == Role.CONTROL).any())

    def items(self, case_id: str) -> float | None:
        """Return the items per step of a case, None where it was not timed."""
        return self._items.get(case_id)

    def weights(self, case_id: str) -> str | None:
        """Return the digest of the weights a case was timed with, None where it was not timed."""
        return self._weights.get(case_id)

    @property
    def program(self) -> str:
        """The program that measured the run."""
        imported = self.stored.header.imported
        return "ampbench" if imported is None else imported.program

    def reading(self, metric: str, case_id: str) -> float | None:
        """Return the number that another program kept of a metric of a case, None if none."""
        return self.stored.readings.get(metric, {}).get(case_id)

    @property
    def failed(self) -> list[str]:
        """The ids of the cases that failed."""
        return [case_id for case_id in self.stored.cases if self.outcome(case_id).name == FAILED]

    def outcome(self, case_id: str) -> Outcome:
        """Return the outcome and reason of a case."""
        failure = self.stored.failures.get(case_id)
        if failure is not None:
            return Outcome(FAILED, failure.said, timed=case_id in self.seconds)
        if case_id in self.differing:
            return Outcome(FAILED, WEIGHTS_DIFFER)
        if case_id in self.seconds or any(case_id in values for values in self.stored.readings.values()):
            return Outcome(OK)
        pending = Pending.OUT_OF_TIME if self.stored.ended == "out of time" else Pending.NOT_YET
        skip = self.stored.skips.get(case_id)
        return Outcome(SKIPPED, skip.reason if skip else pending, pending=not skip)


def grid(
    rounds: Rounds,
    values: stats.Floats,
    role: Role,
    cells: Sequence[int],
    blocks: stats.Integers | None,
) -> stats.Floats:
    """Return one value per round of `role` as a table, NaN for a missing round.

    `cells` are the places of the cases that make the rows, `blocks` the ascending numbers of the blocks that make the
    columns. Without `blocks`, a case's rounds stand in the order of the file, as those of two runs without common
    blocks.
    """
    rows = np.full(int(rounds.owners.max(initial=-1)) + 1, -1)
    listed = np.asarray(cells, dtype=np.int64)
    rows[listed[listed < len(rows)]] = np.flatnonzero(listed < len(rows))
    chosen = np.flatnonzero((rounds.roles == role) & (rows[rounds.owners] >= 0))
    row = rows[rounds.owners[chosen]]
    if blocks is None:
        order = np.argsort(row, kind="stable")
        chosen, row = chosen[order], row[order]
        counts = np.bincount(row, minlength=len(listed))
        column = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        width = int(counts.max(initial=0))
    else:
        within = np.isin(rounds.blocks[chosen], blocks)
        chosen, row = chosen[within], row[within]
        column, width = np.searchsorted(blocks, rounds.blocks[chosen]), len(blocks)
    table = np.full((len(listed), width), np.nan)
    table[row, column] = values[chosen]
    return table


def power_error(told: Telemetry) -> float | None:
    """Return the relative error of the mean power of a round, and so of its energy; None without power.

    Readings are exact to some watts, if that is documented. And at both ends of the windows, for the time between two
    readings and the time over which one averages, power is only known to lie in the range of all readings.
    """
    if not told.power_watts or told.power_low_watts is None or told.power_high_watts is None:
        return None
    blurred = (told.period_seconds or 0.0) + (told.averaged_seconds or 0.0)
    share = min(1.0, blurred / told.window_seconds) if told.window_seconds else 1.0
    return (share * (told.power_high_watts - told.power_low_watts) + (told.power_error_watts or 0.0)) / told.power_watts

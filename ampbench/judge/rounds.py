"""A run's rounds, reduced for all who show, compare or follow them, and how fit the machine was.

A stored run with its rounds as columns, what they say of each case, and what became of it. Which rounds were measured
on a machine that was not fit for it, and why.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from operator import attrgetter
from pathlib import Path

import numpy as np

from ampbench.base import stats
from ampbench.judge.rows import number
from ampbench.records.labels import Pending
from ampbench.records.measured import OTHER_SHARE, STEAL_SHARE, THROTTLES, Round, Telemetry
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
    """Whether a case is ok, failed or skipped, and why; `pending`: only not reached. `timed`: it has rounds."""

    name: str
    reason: str = ""
    pending: bool = False
    timed: bool = False


_FITNESS = attrgetter(
    *(f"fitness.{name}" for name in ("steal_share", "other_share", "load", "frequency_hz", "accelerator_clock_hz")),
    "burst_seconds",
)


@dataclass(slots=True)
class _Columns:
    """One element per round, in the order of the file, of `fitness` some at a time; filled while the file is read.

    `owners` are places in `timed`, the cases in the order of their first rounds: every round has a text of its own.
    The means over all samples take far longer than the values: there are none unless `averaging`.
    """

    averaging: bool
    owners: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    roles: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    fitness: list[stats.Floats] = field(default_factory=list)
    telemetry: dict[int, tuple[float | None, ...]] = field(default_factory=dict)
    items: dict[str, float] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    differing: set[str] = field(default_factory=set)
    alone: dict[str, str] = field(default_factory=dict)
    timed: dict[str, int] = field(default_factory=dict)

    def add(self, rounds: Sequence[Round]) -> None:
        """Add rounds, which follow those that there are."""
        begins, own, control, confirmation = len(self.owners), Role.OWN, Role.CONTROL, Role.CONFIRMATION
        timed = self.timed
        self.owners += [timed.setdefault(one.case_id, len(timed)) for one in rounds]
        self.blocks += [one.round for one in rounds]
        self.roles += [control if one.control else confirmation if one.confirmation else own for one in rounds]
        self.seconds += [stats.round_value(one.samples, one.cpu_samples, one.windows) for one in rounds]
        if self.averaging:
            self.means += [_mean(one) for one in rounds]
        self.fitness.append(np.array([stats.numbers(list(each)) for each in zip(*map(_FITNESS, rounds), strict=True)]))
        self.items.update((one.case_id, one.items_per_step) for one in rounds)
        self.alone.update((one.case_id, one.alone) for one in rounds if one.alone)
        for place, told in enumerate([one.telemetry for one in rounds], begins):
            if told is not None:
                self.telemetry[place] = _of_accelerator(told)
        for case_id, digest in dict.fromkeys([(one.case_id, one.weights_digest) for one in rounds]):
            if self.weights.setdefault(case_id, digest) != digest:
                self.differing.add(case_id)


def _mean(one: Round) -> float:
    """Return the mean over all samples of a round, NaN where their steps are not known."""
    return stats.round_mean(one.samples, one.steps_per_sample, one.cpu_samples) if one.steps_per_sample else math.nan


def _of_accelerator(told: Telemetry) -> tuple[float | None, ...]:
    """Return what an accelerator told: `Rounds.clock`, `throttled`, `fell`, `shared`, `power` and `power_error`."""
    fell = told.last_clock_hz / told.first_clock_hz if told.last_clock_hz and told.first_clock_hz else None
    return (
        told.clock_hz or None,
        max((share for word, share in told.limited.items() if word in THROTTLES), default=None),
        fell,
        told.other_share,
        told.power_watts,
        power_error(told),
    )


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of a run as arrays of equal length, in the order of the file.

    `owners` are places in the run's list of cases, `blocks` the rounds' numbers, `roles` those of `Role`; `seconds` are
    what the rounds are worth, `means` the means over all their samples, NaN where these were not asked for; `steal`,
    `other`, `load`, `frequency` and `clock` are the fields of `Fitness`, NaN where the machine did not tell. Of an
    accelerator `throttled` is the share of time in which heat or a fault held its clock down, `fell` its clock in the
    last window, times that in the first, `shared` the time that others had of it; `bursts` are the seconds per step of
    the fastest sample, `power` is the mean power in watts, `power_error` the share of it that it may be off by.
    """

    owners: stats.Integers
    blocks: stats.Integers
    roles: stats.Integers
    seconds: stats.Floats
    means: stats.Floats
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


@dataclass(frozen=True, slots=True)
class ByCase:
    """Some rounds of a run, case after case: where they are in `Rounds`, in the order of the file, and how many.

    `order` has the shape (sum of `lengths`,), `lengths` one element for each case of the run.
    """

    order: stats.Integers
    lengths: stats.Integers

    def medians(self, values: stats.Floats) -> stats.Floats:
        """Return the median of each case's `values`, which are one for each round of the run; NaN where it has none."""
        found, timed = np.full(len(self.lengths), np.nan), self.lengths > 0
        if np.isnan(values).all():  # what the machine does not tell
            return found
        found[timed] = stats.segment_medians(values[self.order], self.lengths[timed])
        return found

    def intervals(self, values: stats.Floats) -> tuple[stats.Floats, stats.Floats]:
        """Return the ends of each case's 95% t interval on logarithms (`stats.log_t_intervals`); NaN where none."""
        low, high = (np.full(len(self.lengths), np.nan) for _ in range(2))
        timed = self.lengths > 0
        low[timed], high[timed] = stats.log_t_intervals(values[self.order], self.lengths[timed])
        return low, high


@dataclass(frozen=True, slots=True)
class Controlled:
    """A case that was measured twice: its place in the run, the seconds of its own rounds and the control's."""

    owner: int
    own: stats.Floats
    again: stats.Floats

    @property
    def log_ratio(self) -> float:
        """How many times as long the control took, by the medians, as a logarithm."""
        return math.log(stats.median(self.again.tolist()) / stats.median(self.own.tolist()))


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


class MeasuredRun:
    """A stored run with its rounds as columns; made by `of` or, without keeping what is not needed, by `read`.

    `averaging` asks for the means over all samples of each round, which only comparisons need.
    """

    def __init__(self, stored: StoredRun, columns: _Columns):
        self.stored = stored
        self._columns = columns

    @classmethod
    def of(cls, stored: StoredRun, *, averaging: bool = True) -> "MeasuredRun":
        """Return a run that has been read with its rounds, reduced once."""
        return _averaged(stored) if averaging else _reduced(stored)

    @classmethod
    def read(cls, path: Path | str, *, averaging: bool = True) -> "MeasuredRun":
        """Return the run in the file at `path`; raises `StoreError` as `read_run` does."""
        columns = _Columns(averaging)
        return cls(read_run(path, on_rounds=columns.add), columns)

    @cached_property
    def rounds(self) -> Rounds:
        """The rounds, as arrays."""
        columns = self._columns
        count = len(columns.owners)
        places = np.fromiter(map(self.places.__getitem__, columns.timed), np.int64, len(columns.timed))
        fitness = np.concatenate([np.empty((6, 0)), *columns.fitness], axis=1)
        told = np.full((6, count), np.nan)
        if columns.telemetry:
            told[:, list(columns.telemetry)] = np.array(list(columns.telemetry.values()), dtype=np.float64).T
        return Rounds(
            owners=places[np.array(columns.owners, dtype=np.int64)],
            blocks=np.array(columns.blocks, dtype=np.int64),
            roles=np.array(columns.roles, dtype=np.int64),
            seconds=np.array(columns.seconds, dtype=np.float64),
            means=np.array(columns.means) if columns.means else np.full(count, np.nan),
            steal=fitness[0],
            other=fitness[1],
            load=fitness[2],
            frequency=fitness[3],
            clock=np.where(np.isnan(told[0]), fitness[4], told[0]),
            throttled=told[1],
            fell=told[2],
            shared=told[3],
            bursts=fitness[5],
            power=told[4],
            power_error=told[5],
        )

    @cached_property
    def seconds(self) -> dict[str, float]:
        """What `ampbench.load` calls seconds_median, by case id: the median of all rounds but the control's."""
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

    def controlled(self) -> Iterator[Controlled]:
        """Yield the cases that were measured twice, in the order of the file; confirmations count as their own."""
        rounds = self.rounds
        is_control = rounds.roles == Role.CONTROL
        for owner in dict.fromkeys(rounds.owners[is_control].tolist()):
            its = rounds.owners == owner
            yield Controlled(owner, rounds.seconds[its & ~is_control], rounds.seconds[its & is_control])

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """What the rounds of each case say, by case id, of those with a time that is finite and above zero."""
        seconds = self.rounds.seconds
        found = self.by_case((self.rounds.roles != Role.CONTROL) & np.isfinite(seconds) & (seconds > 0))
        timed = np.flatnonzero(found.lengths)
        if not timed.size:
            return {}
        lengths, values = found.lengths[timed], seconds[found.order]
        starts = np.cumsum(lengths) - lengths
        segments = np.repeat(np.arange(len(timed)), lengths)
        logs = np.log(values)
        squares = np.bincount(segments, (logs - (np.bincount(segments, logs) / lengths)[segments]) ** 2)
        low, high = found.intervals(seconds)
        columns = (
            np.minimum.reduceat(values, starts),
            found.medians(seconds)[timed],
            np.maximum.reduceat(values, starts),
            low[timed],
            high[timed],
            np.sqrt(stats.ratio(squares, lengths - 1)),
        )
        ids = list(self.stored.cases)
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

    @cached_property
    def unfit(self) -> "Unfit":
        """Which rounds are unfit, and why (`unfit_rounds`)."""
        devices = [case.device for case in self.stored.cases.values()]
        return unfit_rounds(self.rounds, devices, self.stored.header.environment.cpu_count)

    @property
    def differing(self) -> frozenset[str]:
        """The cases whose rounds, the control's among them, did not all have the same weights."""
        return frozenset(self._columns.differing)

    @property
    def alone(self) -> dict[str, str]:
        """Why cases were measured one lane at a time, of those that were: one of `records.measured.ALONE`."""
        return self._columns.alone

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each case in the run's list of cases, which is what `Rounds.owners` holds."""
        return {case_id: place for place, case_id in enumerate(self.stored.cases)}

    @property
    def has_means(self) -> bool:
        """Whether the samples behind the rounds' values were read."""
        return not bool(np.isnan(self.rounds.means).all())

    @property
    def has_controls(self) -> bool:
        """Whether any case was measured twice."""
        return bool((self.rounds.roles == Role.CONTROL).any())

    def items(self, case_id: str) -> float | None:
        """Return the items per step of a case, None where it was not timed."""
        return self._columns.items.get(case_id)

    def weights(self, case_id: str) -> str | None:
        """Return the digest of the weights a case was timed with, None where it was not timed."""
        return self._columns.weights.get(case_id)

    @property
    def program(self) -> str:
        """The program that measured the run, where it was imported; else ampbench."""
        imported = self.stored.header.imported
        return "ampbench" if imported is None else imported.program

    def reading(self, metric: str, case_id: str) -> float | None:
        """Return the number that another program kept of a metric of a case, None where it kept none."""
        return self.stored.readings.get(metric, {}).get(case_id)

    def outcome(self, case_id: str) -> Outcome:
        """Return what became of a case, which `ampbench.load` has as outcome and reason."""
        failure = self.stored.failures.get(case_id)
        if failure is not None:
            return Outcome(FAILED, failure.said, timed=case_id in self.seconds)
        if case_id in self._columns.differing:
            return Outcome(FAILED, WEIGHTS_DIFFER)
        if case_id in self.seconds or any(case_id in values for values in self.stored.readings.values()):
            return Outcome(OK)
        pending = Pending.OUT_OF_TIME if self.stored.ended == "out of time" else Pending.NOT_YET
        skip = self.stored.skips.get(case_id)
        return Outcome(SKIPPED, skip.reason if skip else pending, pending=not skip)


@once
def _reduced(stored: StoredRun) -> MeasuredRun:
    columns = _Columns(averaging=False)
    if stored.rounds:
        columns.add(stored.rounds)
    return MeasuredRun(stored, columns)


@once
def _averaged(stored: StoredRun) -> MeasuredRun:
    """Return the reduced run with the means that it lacks."""
    known = _reduced(stored)
    columns = replace(known._columns, averaging=True, means=[_mean(one) for one in stored.rounds])
    run = MeasuredRun(stored, columns)
    run.rounds = replace(known.rounds, means=np.array(columns.means, dtype=np.float64))
    return run


def grid(
    rounds: Rounds,
    values: stats.Floats,
    role: Role,
    cells: Sequence[int],
    blocks: stats.Integers | None,
) -> stats.Floats:
    """Return one value per round of `role` as a table, NaN where there is no round.

    `cells` are the places of the cases that make the rows, `blocks` the ascending numbers of the blocks that make the
    columns. Without `blocks`, a case's rounds stand one after the other in the order of the file: the rounds of two
    runs that share no blocks have no common numbers.
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
    """Return by what share the mean power of a round, and so its energy, may be off; None where no power is told.

    Two things add up. Readings are exact to some watts, where that is documented. And at both ends of the windows a
    reading stands for a time of which a part lies outside, as long as from one reading to the next and as the mean is
    over that the source gives: there power is not known but for the range in which all readings lie.
    """
    if not told.power_watts or told.power_low_watts is None or told.power_high_watts is None:
        return None
    blurred = (told.period_seconds or 0.0) + (told.averaged_seconds or 0.0)
    share = min(1.0, blurred / told.window_seconds) if told.window_seconds else 1.0
    return (share * (told.power_high_watts - told.power_low_watts) + (told.power_error_watts or 0.0)) / told.power_watts


SLOW_CLOCK = 0.8
"""Share of the run's median clock under which a round is unfit: thermal and power throttling lower clocks by more, and
a clock a fifth lower makes a step by up to a quarter slower, many times the threshold."""

SLOW_ACCELERATOR = 0.95
"""Share of the median clock of its case under which a round on an accelerator is unfit. Its clock, under load, moves in
steps of less than a hundredth; a twentieth lower makes a step by up to 5% slower, over twice the threshold."""

THROTTLED_SHARE = 0.1
"""Share of the readings with heat or a fault as the limit from which a round is unfit: a window in ten is then slow."""

LOAD_PER_CPU = 2.0
"""Load average per CPU from which a round is unfit, where the machine does not tell what others used. Torch's own
threads make a load of about one per CPU."""

UNFIT_SHARE = 0.25
"""Share of unfit blocks above which a case gets no verdict: what is left is then no fair sample of the session."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """Which rounds are unfit: the number of the first cause in `CAUSES` that holds, -1 for none, and its value."""

    cause: stats.Integers
    value: stats.Floats


CAUSES = (
    "the hypervisor gave {:.0%} of the CPU time to other machines",
    "other processes used {:.0%} of the CPU",
    "the load was {:.1f} per CPU",
    "the CPU's clock was at {:.0%} of its usual one",
    "heat or a fault held the accelerator's clock down {:.0%} of the time",
    "the accelerator's clock fell to {:.0%} while it was timed",
    "the accelerator's clock was at {:.0%} of its usual one",
    "other processes used {:.0%} of the accelerator",
)
"""What makes a round unfit, in words, around the value."""
ON_ACCELERATOR = frozenset(range(4, len(CAUSES)))
"""The numbers of those that are an accelerator's own."""


def unfit_rounds(rounds: Rounds, devices: Sequence[str], cpu_count: int | None) -> Unfit:
    """Return which rounds are unfit, and why; `devices` are the types of the run's cases, by owner.

    A CPU's clock is compared with its median over the run's rounds on it. That of an accelerator under load depends on
    what it computes, and is compared with its median over the rounds of the same case.
    """
    on_cpu = np.array([device == "cpu" for device in devices], dtype=bool)[rounds.owners]
    load = np.where(np.isnan(rounds.other), rounds.load / (cpu_count or np.nan), np.nan)
    clocks = np.where(on_cpu, np.nan, rounds.clock)
    rows = (
        (rounds.steal, STEAL_SHARE, 1),
        (rounds.other, OTHER_SHARE, 1),
        (load, LOAD_PER_CPU, 1),
        (_of_median(np.where(on_cpu, rounds.frequency, np.nan)), SLOW_CLOCK, -1),
        (rounds.throttled, THROTTLED_SHARE, 1),
        (rounds.fell, SLOW_ACCELERATOR, -1),
        (clocks / known_medians(clocks, rounds.owners, len(devices))[rounds.owners], SLOW_ACCELERATOR, -1),
        (rounds.shared, OTHER_SHARE, 1),
    )
    values = np.array([row for row, _, _ in rows])
    with np.errstate(invalid="ignore"):
        holds = np.array([way * row > way * limit for row, limit, way in rows])
    cause = np.where(holds.any(axis=0), holds.argmax(axis=0), -1)
    value = np.take_along_axis(values, np.maximum(cause, 0)[None], axis=0)[0]
    return Unfit(cause, value)


def said_of(causes: stats.Integers, values: stats.Floats, blocks: int, what: str) -> str:
    """Return the commonest cause among unfit rounds in words: "other processes used 41% of the CPU in 6 of 8 blocks".

    `causes` and `values` are those of the unfit blocks alone.
    """
    commonest = int(np.bincount(causes).argmax())
    chosen = causes == commonest
    text = CAUSES[commonest].format(stats.median(values[chosen].tolist()))
    return f"{text} in {int(chosen.sum())} of {blocks} {what}"


def _of_median(values: stats.Floats) -> stats.Floats:
    known = values[np.isfinite(values) & (values > 0)]
    return values / np.median(known) if known.size else np.full(len(values), np.nan)


def known_medians(values: stats.Floats, owners: stats.Integers, count: int) -> stats.Floats:
    """Return the median of the values above 0 of each of `count` owners, NaN where it has none; shape (count,)."""
    known = np.isfinite(values) & (values > 0)
    lengths = np.bincount(owners[known], minlength=count)
    medians = np.full(count, np.nan)
    in_order = values[known][np.argsort(owners[known], kind="stable")]
    medians[lengths > 0] = stats.segment_medians(in_order, lengths[lengths > 0])
    return medians

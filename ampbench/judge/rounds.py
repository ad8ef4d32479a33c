"""A run's rounds, reduced for all who judge them, and how fit the machine was.

A stored run as comparisons need it: its rounds as columns, and what became of each case.

Which rounds were measured on a machine that was not fit for it, and why.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path

import numpy as np

from ampbench.base import stats
from ampbench.records.measured import OTHER_SHARE, STEAL_SHARE
from ampbench.store import StoredRun, TimedRound, read_run

OK, FAILED, SKIPPED = "ok", "failed", "skipped"


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


@dataclass(slots=True)
class _Columns:
    """One element per round, in the order of the file; filled while the file is read."""

    case_ids: list[str] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    roles: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    fitness: list[tuple[float | None, ...]] = field(default_factory=list)
    items: dict[str, float] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    differing: set[str] = field(default_factory=set)

    def add(self, one: TimedRound) -> None:
        case_id, fitness = one.case_id, one.fitness
        self.case_ids.append(case_id)
        self.blocks.append(one.round)
        self.roles.append(Role.CONTROL if one.control else Role.CONFIRMATION if one.confirmation else Role.OWN)
        self.seconds.append(stats.round_value(one.samples, one.cpu_samples))
        mean = math.nan  # of a round of which only its value was kept
        if one.steps_per_sample:
            mean = stats.round_mean(one.samples, one.steps_per_sample, one.cpu_samples)
        self.means.append(mean)
        self.fitness.append(
            (
                fitness.steal_share,
                fitness.other_share,
                fitness.load,
                fitness.frequency_hz,
                fitness.accelerator_clock_hz,
            )
        )
        self.items[case_id] = one.items_per_step
        if self.weights.setdefault(case_id, one.weights_digest) != one.weights_digest:
            self.differing.add(case_id)


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of a run as arrays of equal length, in the order of the file.

    `owners` are places in the run's list of cases, `blocks` the rounds' numbers, `roles` those of `Role`; `seconds` are
    what the rounds are worth, `means` the means over all their samples, NaN where these were not kept; `steal`,
    `other`, `load`, `frequency` and `clock` are the fields of `Fitness`, NaN where the machine did not tell.
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


class MeasuredRun:
    """A stored run with its rounds as columns; made by `of` or, without keeping what is not needed, by `read`."""

    def __init__(self, stored: StoredRun, columns: _Columns):
        self.stored = stored
        self._columns = columns

    @classmethod
    def of(cls, stored: StoredRun) -> "MeasuredRun":
        """Return a run that has been read with its rounds."""
        columns = _Columns()
        for one in stored.rounds:
            columns.add(one)
        return cls(stored, columns)

    @classmethod
    def read(cls, path: Path | str) -> "MeasuredRun":
        """Return the run in the file at `path`; raises `StoreError` as `read_run` does."""
        columns = _Columns()
        return cls(read_run(path, on_round=columns.add), columns)

    @cached_property
    def rounds(self) -> Rounds:
        """The rounds, as arrays."""
        columns = self._columns
        count = len(columns.case_ids)
        fitness = np.array(columns.fitness, dtype=np.float64).reshape(count, 5).T
        return Rounds(
            np.fromiter(map(self.places.__getitem__, columns.case_ids), np.int64, count),
            np.array(columns.blocks, dtype=np.int64),
            np.array(columns.roles, dtype=np.int64),
            np.array(columns.seconds, dtype=np.float64),
            np.array(columns.means, dtype=np.float64),
            *fitness,
        )

    @cached_property
    def seconds(self) -> dict[str, float]:
        """What `ampbench.load` calls seconds_median, by case id: the median of all rounds but the control's."""
        rounds = self.rounds
        kept = rounds.roles != Role.CONTROL
        owners, seconds = rounds.owners[kept], rounds.seconds[kept]
        order = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=len(self.stored.cases))
        medians = stats.segment_medians(seconds[order], counts[counts > 0])
        timed = [case_id for case_id, count in zip(self.stored.cases, counts.tolist(), strict=True) if count]
        return dict(zip(timed, medians.tolist(), strict=True))

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each case in the run's list of cases, which is what `Rounds.owners` holds."""
        return {case_id: place for place, case_id in enumerate(self.stored.cases)}

    @property
    def has_means(self) -> bool:
        """Whether the samples behind the rounds' values were read."""
        return not all(map(math.isnan, self._columns.means))

    @property
    def has_controls(self) -> bool:
        """Whether any case was measured twice."""
        return Role.CONTROL in self._columns.roles

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
        """Return what became of a case, as `ampbench.load` tells it."""
        failure = self.stored.failures.get(case_id)
        if failure is not None:
            return Outcome(FAILED, failure.said, timed=case_id in self.seconds)
        if case_id in self._columns.differing:
            return Outcome(FAILED, "its weights differ between rounds")
        if case_id in self.seconds or any(case_id in values for values in self.stored.readings.values()):
            return Outcome(OK)
        skip = self.stored.skips.get(case_id)
        return Outcome(SKIPPED, skip.reason if skip else "it was not reached before the run ended", pending=not skip)


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


SLOW_CLOCK = 0.8
"""Share of the run's median clock under which a round is unfit: thermal and power throttling lower clocks by more, and
a clock a fifth lower makes a step by up to a quarter slower, many times the threshold."""

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
    "the accelerator's clock was at {:.0%} of its usual one",
)
"""What makes a round unfit, in words, around the value."""


def unfit_rounds(rounds: Rounds, devices: Sequence[str], cpu_count: int | None) -> Unfit:
    """Return which rounds are unfit, and why; `devices` are the types of the run's cases, by owner.

    A clock is compared with its median over the run's rounds on that type of device: the CPU's for what runs on it,
    the accelerator's for the rest.
    """
    on_cpu = np.array([device == "cpu" for device in devices], dtype=bool)[rounds.owners]
    load = np.where(np.isnan(rounds.other), rounds.load / (cpu_count or np.nan), np.nan)
    values = np.array(
        [
            rounds.steal,
            rounds.other,
            load,
            _of_median(np.where(on_cpu, rounds.frequency, np.nan)),
            _of_median(np.where(on_cpu, np.nan, rounds.clock)),
        ]
    )
    limits = (STEAL_SHARE, OTHER_SHARE, LOAD_PER_CPU)
    with np.errstate(invalid="ignore"):
        holds = np.array(
            [*(row > limit for row, limit in zip(values, limits, strict=False)), *(values[3:] < SLOW_CLOCK)]
        )
    cause = np.where(holds.any(axis=0), holds.argmax(axis=0), -1)
    value = np.take_along_axis(values, np.maximum(cause, 0)[None], axis=0)[0]
    return Unfit(cause, value)


def said_of(causes: stats.Integers, values: stats.Floats, blocks: int, what: str) -> str:
    """Return the commonest cause among unfit rounds in words: "other processes used 41% of the CPU in 6 of 8 blocks".

    `causes` and `values` are those of the unfit blocks alone.
    """
    commonest = int(np.bincount(causes).argmax())
    chosen = causes == commonest
    text = CAUSES[commonest].format(float(np.median(values[chosen])))
    return f"{text} in {int(chosen.sum())} of {blocks} {what}"


def _of_median(values: stats.Floats) -> stats.Floats:
    known = values[np.isfinite(values) & (values > 0)]
    return values / np.median(known) if known.size else np.full(len(values), np.nan)

"""A stored run with its rounds as columns, the outcome of each case, and the fitness of the machine."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import chain, islice, starmap
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from ampbench.core import by_key, stats
from ampbench.core.precisions import is_emulated
from ampbench.records.case import Case, table_of
from ampbench.records.labels import Pending
from ampbench.records.measured import (
    OTHER_SHARE,
    STEAL_SHARE,
    THROTTLES,
    WAITED_SHARE,
    Divergence,
    MemoryPass,
    Round,
    Telemetry,
)
from ampbench.store import StoredRun, once

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
WEIGHTS_DIFFER = "weights differ between rounds"


class Role(IntEnum):
    """The purpose of a round."""

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
    """The part of a round that verdicts use: its number, its value in `seconds`, and fields of `Round`."""

    number: int
    seconds: float
    param_nonfinite: float | None = None
    skipped_steps: float | None = None
    scaler_scale: float | None = None


def paired_intervals(pairs: Iterable[Sequence[Sequence[TimedRound]]]) -> list[tuple[float, float] | None]:
    """Return for each pair of cases the 95% interval of the time of the second relative to the first.

    It is the t interval of the logarithms of the ratios, paired by round; None without three common rounds.
    """
    ratios = []
    for ours, theirs in pairs:
        base = {measured.number: measured.seconds for measured in theirs}
        both = [(measured.seconds, base[measured.number]) for measured in ours if measured.number in base]
        ratios.append([other / seconds for seconds, other in both if seconds > 0 and other > 0])
    ends = stats.log_t_intervals(
        np.fromiter(chain.from_iterable(ratios), np.float64), np.fromiter(map(len, ratios), np.int64)
    )
    return [None if math.isnan(low) else (low, high) for low, high in zip(*(end.tolist() for end in ends), strict=True)]


def power_error(telemetry: Telemetry) -> float | None:
    """Return the relative error of the mean power of a round, and so of its energy; None without power.

    Readings have a documented accuracy in watts. At both ends of the windows, for the time between two readings and the
    time over which one averages, power is only known to be within the range of all readings.
    """
    if not telemetry.power_watts or telemetry.power_low_watts is None or telemetry.power_high_watts is None:
        return None
    blurred = (telemetry.period_seconds or 0.0) + (telemetry.averaged_seconds or 0.0)
    share = min(1.0, blurred / telemetry.window_seconds) if telemetry.window_seconds else 1.0
    return (
        share * (telemetry.power_high_watts - telemetry.power_low_watts) + (telemetry.power_error_watts or 0.0)
    ) / telemetry.power_watts


_COLUMNS: Mapping[str, Callable[[Round], float | None]] = {
    "steal": attrgetter("fitness.steal_share"),
    "other": attrgetter("fitness.other_share"),
    "waited": attrgetter("fitness.waited_share"),
    "load": attrgetter("fitness.load"),
    "frequency": attrgetter("fitness.frequency_hz"),
    "clock": lambda measured: (
        (measured.telemetry.clock_hz if measured.telemetry else None) or measured.fitness.accelerator_clock_hz
    ),
    "throttled": lambda measured: (
        max((share for word, share in measured.telemetry.limited.items() if word in THROTTLES), default=None)
        if measured.telemetry
        else None
    ),
    "fell": lambda measured: (
        measured.telemetry.last_clock_hz / measured.telemetry.first_clock_hz
        if measured.telemetry and measured.telemetry.first_clock_hz and measured.telemetry.last_clock_hz
        else None
    ),
    "shared": lambda measured: measured.telemetry.other_share if measured.telemetry else None,
    "bursts": attrgetter("burst_seconds"),
    "power": lambda measured: measured.telemetry.power_watts if measured.telemetry else None,
    "power_error": lambda measured: power_error(measured.telemetry) if measured.telemetry else None,
    "param_nonfinite": attrgetter("param_nonfinite"),
    "skipped_steps": attrgetter("skipped_steps"),
    "scaler_scale": attrgetter("scaler_scale"),
}
"""Further numbers of a round and of its telemetry. `throttled` is the share of time in which heat or a fault lowered an
accelerator's clock, `fell` the clock of the last window relative to the first, `shared` the share of time of other
processes; `power_error` is relative."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of a run as arrays of equal length, in the order of the file.

    `owners` are places in the run's list of cases, `blocks` the rounds' numbers; `seconds` are their values. `columns`
    has the numbers of `_COLUMNS`, NaN if unknown.
    """

    owners: stats.Integers
    blocks: stats.Integers
    roles: stats.Integers
    seconds: stats.Floats
    columns: Mapping[str, stats.Floats]


@dataclass(frozen=True, slots=True)
class ByCase:
    """Some rounds of a run, case after case: their places in `Rounds`, in the order of the file, and their numbers.

    `order` has the shape (sum of `lengths`,), `lengths` one element for each case of the run.
    """

    order: stats.Integers
    lengths: stats.Integers

    def medians(self, values: stats.Floats) -> stats.Floats:
        """Return the median of each case's `values`, one for each round of the run; NaN without a round."""
        medians, timed = np.full(len(self.lengths), np.nan), self.lengths > 0
        medians[timed] = stats.segment_medians(values[self.order], self.lengths[timed])
        return medians


class MeasuredRun:
    """A `stored` run with its rounds as columns; `of` makes it.

    Afterwards only `means` needs the samples: `stored.rounds` may be cleared to save memory.
    """

    def __init__(self, stored: StoredRun):
        self.stored = stored
        self.places = {case_id: place for place, case_id in enumerate(stored.cases)}
        self.kinds = _kinds(stored)
        """The timing of each case, by its id: "sustained" or "in bursts"."""
        self.rounds = self._arrays()
        self.items = {measured.case_id: measured.items_per_step for measured in stored.rounds}
        """The items per step of each timed case."""
        digests = [(measured.case_id, measured.weights_digest) for measured in stored.rounds]
        self.weights = dict(reversed(digests))
        """The digest of the weights of each timed case, of its first round."""
        self.differing = {case_id for case_id, digest in digests if digest != self.weights[case_id]}
        """The cases whose rounds, with the control, differ in their weights."""

    @staticmethod
    @once
    def of(stored: StoredRun) -> "MeasuredRun":
        """Return a run with its rounds reduced once."""
        return MeasuredRun(stored)

    def _counted(self) -> list[Round]:
        """Return the rounds that count: of a table with both kinds of timing, the rounds of the kind in `kinds`."""
        return [
            measured
            for measured in self.stored.rounds
            if (self.kinds[measured.case_id] == "sustained") == (measured.windows is not None)
        ]

    def _arrays(self) -> Rounds:
        """Return the rounds that count as arrays."""
        counted = self._counted()
        roles = [
            Role.CONTROL if measured.control else Role.CONFIRMATION if measured.confirmation else Role.OWN
            for measured in counted
        ]
        values = [stats.round_value(measured.samples, measured.cpu_samples, measured.windows) for measured in counted]
        return Rounds(
            np.array([self.places[measured.case_id] for measured in counted], dtype=np.int64),
            np.array([measured.round for measured in counted], dtype=np.int64),
            np.array(roles, dtype=np.int64),
            np.array(values, dtype=np.float64),
            {name: stats.numbers(list(map(of, counted))) for name, of in _COLUMNS.items()},
        )

    @cached_property
    def means(self) -> stats.Floats:
        """The mean over all samples of each round that counts, NaN if unknown."""
        means = [
            stats.round_mean(measured.samples, measured.steps_per_sample, measured.cpu_samples)
            if measured.steps_per_sample
            else math.nan
            for measured in self._counted()
        ]
        return np.array(means) if means else np.full(len(self.rounds.seconds), np.nan)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """The column seconds_median by case id: the median of all rounds but the control's."""
        medians = zip(self.stored.cases, self.own.medians(self.rounds.seconds).tolist(), self.own.lengths, strict=True)
        return {case_id: median for case_id, median, count in medians if count}

    @cached_property
    def own(self) -> ByCase:
        """The rounds of each case, all but the control's."""
        return self.by_case(self.rounds.roles != Role.CONTROL)

    def by_case(self, among: stats.Booleans) -> ByCase:
        """Return the rounds for which `among` is true, by case; `among` has an element for each round."""
        chosen = np.flatnonzero(among)
        owners = self.rounds.owners[chosen]
        lengths = np.bincount(owners, minlength=len(self.stored.cases))
        return ByCase(chosen[np.argsort(owners, kind="stable")], lengths)

    @cached_property
    def timed(self) -> dict[str, list[TimedRound]]:
        """The rounds of each case without the control's."""
        rounds, order = self.rounds, self.own.order
        further = (rounds.columns[name] for name in TimedRound._fields[2:])
        columns = (rounds.blocks, rounds.seconds, *further)
        values = ([None if math.isnan(value) else value for value in column[order].tolist()] for column in columns)
        every = starmap(TimedRound, zip(*values, strict=True))
        lengths = self.own.lengths.tolist()
        return {case_id: list(islice(every, count)) for case_id, count in zip(self.places, lengths, strict=True)}

    def case(self, case: Case) -> "MeasuredCase":
        """Return a case with its measurements."""
        case_id, stored = case.case_id, self.stored
        passes = stored.memory.get(case_id), stored.divergence.get(case_id)
        return MeasuredCase(
            self, case, case_id, self.outcome(case_id), self.seconds.get(case_id), *passes, self.weights.get(case_id)
        )

    def outcome(self, case_id: str) -> Outcome:
        """Return the outcome and reason of a case."""
        failure = self.stored.failures.get(case_id)
        if failure is not None:
            return Outcome(FAILED, failure.said, timed=case_id in self.seconds)
        if case_id in self.differing:
            return Outcome(FAILED, WEIGHTS_DIFFER)
        if case_id in self.seconds or any(case_id in values for values in self.stored.readings.values()):
            return Outcome(OK)
        if case_id in self.stored.divergence and is_emulated(self.stored.cases[case_id].precision):
            return Outcome(OK)
        pending = Pending.OUT_OF_TIME if self.stored.ended == "out of time" else Pending.NOT_YET
        skip = self.stored.skips.get(case_id)
        return Outcome(SKIPPED, skip.reason if skip else pending, pending=not skip)


class MeasuredCase(NamedTuple):
    """One `case` of a `run` with its measurements; None where something was not measured.

    `seconds` is its median time, `weights` the digest of the weights that it was timed with.
    """

    run: MeasuredRun
    case: Case
    case_id: str
    outcome: Outcome
    seconds: float | None
    memory: MemoryPass | None
    divergence: Divergence | None
    weights: str | None


class Pair(NamedTuple):
    """A baseline case and the candidate case it is compared with."""

    baseline: MeasuredCase
    candidate: MeasuredCase


def _kinds(stored: StoredRun) -> dict[str, str]:
    """Return the timing of each case.

    Speeds are compared within a table, so its cases count as sustained once all cases that did not fail are.
    """
    sustained = {measured.case_id for measured in stored.rounds if measured.windows is not None}
    timed = dict.fromkeys(measured.case_id for measured in stored.rounds)
    kinds = dict.fromkeys(timed, "in bursts")
    for members in by_key(kinds if sustained else (), lambda case_id: table_of(stored.cases[case_id])).values():
        if sustained.intersection(members) and sustained | stored.failures.keys() >= {*members}:
            kinds |= dict.fromkeys(members, "sustained")
    return kinds


def grid(
    rounds: Rounds,
    values: stats.Floats,
    role: Role,
    cells: Sequence[int],
    blocks: stats.Integers | None,
) -> stats.Floats:
    """Return one value per round of `role` as a table, NaN for a missing round.

    Rows are the cases at the places `cells`, columns the blocks of these ascending numbers. Without `blocks`, a case's
    rounds are in the order of the file.
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
"""A round is unfit below this share of the run's median clock: throttling lowers clocks by more, and a clock a fifth
lower makes a step up to a quarter slower."""

SLOW_ACCELERATOR = 0.95
"""A round on an accelerator is unfit below this share of its case's median clock: a twentieth lower makes a step up to
5% slower, over twice the threshold. Under load clocks move in steps of less than a hundredth."""

THROTTLED_SHARE = 0.1
"""A round is unfit with this share of readings limited by heat or a fault: one window in ten is then slow."""

LOAD_PER_CPU = 2.0
"""A round is unfit from this load average per CPU, if the share of other processes is unknown. Torch's own threads
cause about one per CPU."""

UNFIT_SHARE = 0.25
"""With a larger share of unfit blocks a case gets no verdict: the other blocks are no fair sample of the session."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """The unfit rounds: the number of the first of `CAUSES` that applies, -1 for none, and its value."""

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
    "the thread that launches kernels waited {:.0%} of the time for a processor",
)
"""Causes of unfit rounds, worded around the value."""
ON_ACCELERATOR = 4
"""The first cause that concerns an accelerator, as all after it."""


def unfit_rounds(run: MeasuredRun) -> Unfit:
    """Return the unfit rounds with their causes.

    Other work on the host's processors makes rounds on the CPU unfit; rounds on an accelerator are judged by their
    launching thread. A CPU's clock is compared with its median over the run, an accelerator's, which depends on the
    work, with its median over the rounds of the same case.
    """
    rounds, cases = run.rounds, run.stored.cases.values()
    on_cpu = np.array([case.device == "cpu" for case in cases], dtype=bool)[rounds.owners]
    cpus = run.stored.header.environment.cpu_count or np.nan
    columns = rounds.columns
    load = np.where(np.isnan(columns["other"]), columns["load"] / cpus, np.nan)
    clocks = np.where(on_cpu, np.nan, columns["clock"])
    frequency = np.where(on_cpu, columns["frequency"], np.nan)
    known = frequency[np.isfinite(frequency) & (frequency > 0)]
    rows = (
        (np.where(on_cpu, columns["steal"], np.nan), STEAL_SHARE, 1),
        (np.where(on_cpu, columns["other"], np.nan), OTHER_SHARE, 1),
        (np.where(on_cpu, load, np.nan), LOAD_PER_CPU, 1),
        (frequency / np.median(known) if known.size else np.full(len(frequency), np.nan), SLOW_CLOCK, -1),
        (columns["throttled"], THROTTLED_SHARE, 1),
        (columns["fell"], SLOW_ACCELERATOR, -1),
        (clocks / run.by_case(clocks > 0).medians(clocks)[rounds.owners], SLOW_ACCELERATOR, -1),
        (columns["shared"], OTHER_SHARE, 1),
        (np.where(on_cpu, np.nan, columns["waited"]), WAITED_SHARE, 1),
    )
    values = np.array([row for row, _, _ in rows])
    with np.errstate(invalid="ignore"):
        holds = np.array([way * row > way * limit for row, limit, way in rows])
    cause = np.where(holds.any(axis=0), holds.argmax(axis=0), -1)
    value = np.take_along_axis(values, np.maximum(cause, 0)[None], axis=0)[0]
    return Unfit(cause, value)


def said_of(causes: stats.Integers, values: stats.Floats, blocks: int, units: str) -> str:
    """Return the commonest cause among unfit rounds: "other processes used 41% of the CPU in 6 of 8 blocks".

    `causes` and `values` are of the unfit blocks alone.
    """
    commonest = int(np.bincount(causes).argmax())
    chosen = causes == commonest
    text = CAUSES[commonest].format(stats.median(values[chosen].tolist()))
    return f"{text} in {int(chosen.sum())} of {blocks} {units}"


DISTURBED = 1.1
"""A sample over this many times the fastest of its build, or its CPU time, was delayed."""
DISTURBED_BY = f"{DISTURBED} times the fastest of their build, or their CPU time"
"""The limit of disturbed samples, in words."""

UNQUIET_SHARE = 0.2
"""With a larger share of disturbed samples a machine was not quiet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One case measured twice in a run: the seconds of its own rounds, and of the control's."""

    case_id: str
    own: stats.Floats
    again: stats.Floats

    @property
    def ratio(self) -> float:
        """The median time of the control relative to its own."""
        return float(stats.median(self.again.tolist()) / stats.median(self.own.tolist()))

    @property
    def apart(self) -> float:
        """The ratio of the two, at least 1."""
        return max(self.ratio, 1 / self.ratio) if self.ratio > 0 else 1.0


@once
def control_ratio(stored: StoredRun) -> Control | None:
    """Return the run's control, with confirmations as its own rounds; None if no case was measured twice."""
    rounds, case_ids = MeasuredRun.of(stored).rounds, list(stored.cases)
    is_control = rounds.roles == Role.CONTROL
    for owner in dict.fromkeys(rounds.owners[is_control].tolist()):
        of_case = rounds.owners == owner
        own, again = rounds.seconds[of_case & ~is_control], rounds.seconds[of_case & is_control]
        if own.size and own.min() > 0:
            return Control(case_id=case_ids[owner], own=own, again=again)
    return None


@once
def disturbed_share(stored: StoredRun) -> float | None:
    """Return the share of samples over `DISTURBED` times the fastest of their build, or their CPU time.

    None if unknown; a few hundredths on a quiet machine. A build of a single sample without CPU time is compared with
    the other such builds of its case.
    """
    builds: list[Sequence[float]] = []
    known: list[Sequence[float]] = []
    alone: dict[str, list[float]] = {}
    for measured in stored.rounds:
        for build, cpu_times in zip(measured.samples, measured.cpu_samples or measured.samples, strict=True):
            if measured.cpu_samples is None and len(build) == 1:
                alone.setdefault(measured.case_id, []).extend(build)
            else:
                builds.append(build)
                known.append(cpu_times)
    single: list[Sequence[float]] = [samples for samples in alone.values() if len(samples) > 1]
    builds, known = builds + single, known + single
    if not builds:
        return None
    lengths = np.fromiter(map(len, builds), np.int64, len(builds))
    samples, cpu = (np.fromiter(chain.from_iterable(part), np.float64, lengths.sum()) for part in (builds, known))
    fastest = np.minimum.reduceat(samples, np.cumsum(lengths) - lengths)
    return float(np.mean(samples > DISTURBED * np.minimum(cpu, np.repeat(fastest, lengths))))


@once
def unfit_said(stored: StoredRun) -> str:
    """Return why too many rounds were unfit: "other processes used 76% of the CPU in …"; "" if few were, or unknown."""
    rounds = unfit_rounds(MeasuredRun.of(stored))
    unfit = rounds.cause >= 0
    if not unfit.any() or np.mean(unfit) <= UNFIT_SHARE:
        return ""
    return said_of(rounds.cause[unfit], rounds.value[unfit], len(unfit), "rounds of all cases")


def unsteady_device(stored: StoredRun) -> bool:
    """Return whether the commonest cause of unfit rounds is an accelerator's."""
    causes = unfit_rounds(MeasuredRun.of(stored)).cause
    unfit = causes[causes >= 0]
    return bool(unfit.size) and int(np.bincount(unfit).argmax()) >= ON_ACCELERATOR


def unquiet(stored: StoredRun) -> list[str]:
    """Return the signs, in words, that a machine was not quiet during a run."""
    causes = [unfit_said(stored)]
    disturbed = disturbed_share(stored)
    if disturbed is not None and disturbed > UNQUIET_SHARE:
        causes.append(f"{disturbed:.0%} of the samples took over {DISTURBED_BY}")
    held_up = sum(stats.all_inflated(measured.samples, measured.cpu_samples) for measured in stored.rounds)
    if held_up:
        rounds = f"{held_up} of {len(stored.rounds)} rounds of all cases"
        causes.append(f"in {rounds} every sample was interrupted, so CPU time is reported")
    return [cause for cause in causes if cause]

"""How fit a machine was while a run was measured: unfit rounds, disturbed samples, and the control."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ampbench.core import stats
from ampbench.judge.rounds import MeasuredRun, Role
from ampbench.records.measured import OTHER_SHARE, STEAL_SHARE
from ampbench.store import StoredRun, once

SLOW_CLOCK = 0.8
"""A round is unfit below this share of the run's median clock: throttling lowers clocks by more, and a clock a fifth
lower makes a step up to a quarter slower."""

SLOW_ACCELERATOR = 0.95
"""A round on an accelerator is unfit below this share of its case's median clock, which moves in steps of less than a
hundredth under load: a twentieth lower makes a step up to 5% slower, over twice the threshold."""

THROTTLED_SHARE = 0.1
"""A round is unfit with this share of readings limited by heat or a fault: one window in ten is then slow."""

LOAD_PER_CPU = 2.0
"""A round is unfit from this load average per CPU, if the share of other processes is unknown. Torch's own threads make
a load of about one per CPU."""

UNFIT_SHARE = 0.25
"""With a larger share of unfit blocks a case gets no verdict: the rest is no fair sample of the session."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """Which rounds are unfit: the number of the first of `CAUSES` that holds, -1 for none, and its value."""

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
"""Causes of unfit rounds, worded around the value."""
ON_ACCELERATOR = frozenset(range(4, len(CAUSES)))
"""The numbers of an accelerator's own causes."""


def unfit_rounds(run: MeasuredRun) -> Unfit:
    """Return which rounds are unfit, and why.

    A CPU's clock is compared with its median over the run's rounds, an accelerator's, which depends on the work, with
    its median over the rounds of the same case.
    """
    rounds, cases = run.rounds, run.stored.cases.values()
    on_cpu = np.array([case.device == "cpu" for case in cases], dtype=bool)[rounds.owners]
    cpus = run.stored.header.environment.cpu_count or np.nan
    load = np.where(np.isnan(rounds.other), rounds.load / cpus, np.nan)
    clocks = np.where(on_cpu, np.nan, rounds.clock)
    rows = (
        (rounds.steal, STEAL_SHARE, 1),
        (rounds.other, OTHER_SHARE, 1),
        (load, LOAD_PER_CPU, 1),
        (_of_median(np.where(on_cpu, rounds.frequency, np.nan)), SLOW_CLOCK, -1),
        (rounds.throttled, THROTTLED_SHARE, 1),
        (rounds.fell, SLOW_ACCELERATOR, -1),
        (clocks / run.by_case(clocks > 0).medians(clocks)[rounds.owners], SLOW_ACCELERATOR, -1),
        (rounds.shared, OTHER_SHARE, 1),
    )
    values = np.array([row for row, _, _ in rows])
    with np.errstate(invalid="ignore"):
        holds = np.array([way * row > way * limit for row, limit, way in rows])
    cause = np.where(holds.any(axis=0), holds.argmax(axis=0), -1)
    value = np.take_along_axis(values, np.maximum(cause, 0)[None], axis=0)[0]
    return Unfit(cause, value)


def said_of(causes: stats.Integers, values: stats.Floats, blocks: int, what: str) -> str:
    """Return the commonest cause among unfit rounds: "other processes used 41% of the CPU in 6 of 8 blocks".

    `causes` and `values` are those of the unfit blocks alone.
    """
    commonest = int(np.bincount(causes).argmax())
    chosen = causes == commonest
    text = CAUSES[commonest].format(stats.median(values[chosen].tolist()))
    return f"{text} in {int(chosen.sum())} of {blocks} {what}"


def _of_median(values: stats.Floats) -> stats.Floats:
    known = values[np.isfinite(values) & (values > 0)]
    return values / np.median(known) if known.size else np.full(len(values), np.nan)


DISTURBED = 1.1
"""A sample this many times as long as the fastest of its build, or as its CPU time, was delayed."""
DISTURBED_BY = f"{DISTURBED} times the fastest of their build, or their CPU time"
"""What disturbed samples exceed."""

UNQUIET_SHARE = 0.2
"""With a larger share of disturbed samples a machine was not quiet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One case measured twice in a run: the seconds of its own rounds, and of the control's."""

    case_id: str
    own: stats.Floats
    again: stats.Floats

    @property
    def medians(self) -> tuple[float, float]:
        """The median of its own rounds, and of the control's."""
        return stats.median(self.own.tolist()), stats.median(self.again.tolist())

    @property
    def ratio(self) -> float:
        """The time of the control relative to its own."""
        return self.medians[1] / self.medians[0]

    @property
    def apart(self) -> float:
        """The factor by which the two differ, at least 1."""
        return max(self.ratio, 1 / self.ratio) if self.ratio > 0 else 1.0


def controls(run: MeasuredRun) -> Iterator[Control]:
    """Yield the cases that were measured twice, in the order of the file; confirmations count as their own."""
    rounds, case_ids = run.rounds, list(run.stored.cases)
    is_control = rounds.roles == Role.CONTROL
    for owner in dict.fromkeys(rounds.owners[is_control].tolist()):
        own = rounds.owners == owner
        yield Control(
            case_id=case_ids[owner], own=rounds.seconds[own & ~is_control], again=rounds.seconds[own & is_control]
        )


@once
def control_ratio(stored: StoredRun) -> Control | None:
    """Return the run's control; None if no case was measured twice."""
    found = controls(MeasuredRun.of(stored))
    return next((one for one in found if one.own.size and one.own.min() > 0), None)


@once
def disturbed_share(stored: StoredRun) -> float | None:
    """Return the share of disturbed samples, over `DISTURBED` times the fastest of their build, or their CPU time.

    None if unknown. On a quiet machine it is a few hundredths. A build of a single sample without CPU time is compared
    with the other such builds of its case.
    """
    builds: list[Sequence[float]] = []
    known: list[Sequence[float]] = []
    alone: dict[str, list[float]] = {}
    for each in stored.rounds:
        for build, own in zip(each.samples, each.cpu_samples or each.samples, strict=True):
            if each.cpu_samples is None and len(build) == 1:
                alone.setdefault(each.case_id, []).extend(build)
            else:
                builds.append(build)
                known.append(own)
    single: list[Sequence[float]] = [samples for samples in alone.values() if len(samples) > 1]
    builds, known = builds + single, known + single
    if not builds:
        return None
    lengths = np.fromiter(map(len, builds), np.int64, len(builds))
    samples, cpu = (np.fromiter(chain.from_iterable(each), np.float64, lengths.sum()) for each in (builds, known))
    fastest = np.minimum.reduceat(samples, np.cumsum(lengths) - lengths)
    return float(np.mean(samples > DISTURBED * np.minimum(cpu, np.repeat(fastest, lengths))))


@once
def unfit_said(stored: StoredRun) -> str:
    """Return why too many rounds were unfit to trust their times: "other processes used 76% of the CPU in …".

    "" if they were not, or no machine tells.
    """
    found = unfit_rounds(MeasuredRun.of(stored))
    unfit = found.cause >= 0
    if not unfit.any() or np.mean(unfit) <= UNFIT_SHARE:
        return ""
    return said_of(found.cause[unfit], found.value[unfit], len(unfit), "rounds")


def unsteady_device(stored: StoredRun) -> bool:
    """Return whether the cause in `unfit_said` is an accelerator's own: heat, a falling clock, others on it."""
    causes = unfit_rounds(MeasuredRun.of(stored)).cause
    unfit = causes[causes >= 0]
    return bool(unfit.size) and int(np.bincount(unfit).argmax()) in ON_ACCELERATOR


def unquiet(stored: StoredRun) -> list[str]:
    """Return what shows that a machine was not quiet while a run was measured, in words."""
    causes = [unfit_said(stored)]
    disturbed = disturbed_share(stored)
    if disturbed is not None and disturbed > UNQUIET_SHARE:
        causes.append(f"{disturbed:.0%} of the samples took over {DISTURBED_BY}")
    held_up = sum(stats.all_inflated(each.samples, each.cpu_samples) for each in stored.rounds)
    if held_up:
        rounds = f"{held_up} of {len(stored.rounds)} rounds"
        causes.append(f"in {rounds} no sample ran at one go, and CPU time stands for theirs")
    return [cause for cause in causes if cause]

"""What a machine can tell apart: one arm measured against itself, its false alarms, and the smallest change it sees."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from ampbench import stats
from ampbench.comparing.deciding import ALPHA, FAMILY_ALPHA, LOOKS, POWER
from ampbench.metrics import MEAN
from ampbench.records.measurements import Round
from ampbench.verdicts import Code, Comparison, Finding, Verdict

LANES = 3 / 2
"""A comparison has three lanes, with the control; an arm against itself has two."""

DECIDING_LOOKS = LOOKS[1:]
"""The looks that can find a change; the first can only prove that there is none (docs/statistics.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detectable:
    """The smallest slowdown found with a probability of `deciding.POWER`: that of the median and of the worst case.

    `seconds` is about how long so many blocks of these cases take.
    """

    blocks: int
    seconds: float
    median: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfComparison:
    """What comparing an arm with itself said.

    `alarms` are the cases that seemed to differ after all, confirmed, `suspected` those whose change fresh blocks did
    not confirm, `unfit` those that a busy machine left without a verdict, `unchanged` those proven to be. `able` counts
    those with blocks enough to raise an alarm at all, given how many cases there are, and `highest_rate` is the upper
    end of the 95% Wilson interval of false alarms per such case. `spreads` are the standard errors of the log ratio of
    one block by case id.
    """

    cases: int
    blocks: int
    alarms: Sequence[Finding]
    suspected: Sequence[Finding]
    unfit: Sequence[Finding]
    unchanged: Sequence[Finding]
    able: int
    highest_rate: float
    spreads: dict[str, float]
    detectable: Sequence[Detectable]


def judge_self(comparison: Comparison, rounds: Sequence[Round]) -> SelfComparison:
    """Return what `comparison`, of an arm with itself, says; `rounds` are those of one side."""
    every = [finding for finding in comparison.findings if finding.kind == "time"]
    times = [finding for finding in every if finding.metric != MEAN]
    alarms = [one for one in every if one.verdict in (Verdict.REGRESSED, Verdict.IMPROVED)]
    level = min(ALPHA, FAMILY_ALPHA / max(2 * len(times), 1)) / len(LOOKS)  # its typical time and its mean
    able = [one for one in times if one.code is not Code.UNFIT_MACHINE and 0.5**one.blocks <= level]
    spreads = {
        one.case.case_id: one.details["standard_error"] * math.sqrt(one.blocks)
        for one in times
        if one.blocks and "standard_error" in one.details
    }
    threshold = max((one.threshold for one in times), default=0.0)
    seconds = LANES * block_seconds(rounds)
    return SelfComparison(
        cases=len(times),
        blocks=max((one.blocks for one in times), default=0),
        alarms=alarms,
        suspected=[one for one in every if one.code in (Code.NOT_CONFIRMED, Code.UNCONFIRMED)],
        unfit=[one for one in times if one.code is Code.UNFIT_MACHINE],
        unchanged=[one for one in times if one.verdict is Verdict.UNCHANGED],
        able=len(able),
        highest_rate=stats.wilson_interval(len(alarms), len(able))[1] if able else math.nan,
        spreads=spreads,
        detectable=[_detectable(list(spreads.values()), blocks, seconds, threshold) for blocks in DECIDING_LOOKS]
        if spreads
        else [],
    )


def block_seconds(rounds: Sequence[Round]) -> float:
    """Return how long a block takes: the median time between the ends of a case's rounds in two blocks."""
    ends: dict[str, list[float]] = {}
    for each in rounds:
        if not each.confirmation:
            ends.setdefault(each.case_id, []).append(datetime.fromisoformat(each.finished_at).timestamp())
    gaps = [later - earlier for times in ends.values() for earlier, later in itertools.pairwise(sorted(times))]
    return stats.median(gaps) if gaps else math.nan


def _detectable(spreads: Sequence[float], blocks: int, seconds: float, threshold: float) -> Detectable:
    """Return what is found in so many blocks by cases whose log ratios spread so; as `deciding` reckons it."""
    error = np.array(spreads) / math.sqrt(blocks)
    freedom, margin = np.full(len(error), blocks - 1.0), np.full(len(error), math.log1p(threshold))
    found = np.expm1(stats.detectable_effect(error, freedom, ALPHA / len(LOOKS), POWER, margin))
    return Detectable(
        blocks=blocks, seconds=blocks * seconds, median=float(np.median(found)), worst=float(found.max())
    )  # fmt: skip

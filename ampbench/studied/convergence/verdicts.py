"""Verdicts on trainings that their numbers do not decide, and what must be said beside those that they do."""

from collections.abc import Mapping
from dataclasses import dataclass

from ampbench.labels import few
from ampbench.precisions import BASELINE
from ampbench.records.studies import CONTROL, REFERENCE, Training
from ampbench.studied.convergence.judging import Judged
from ampbench.studied.convergence.metric import (
    Metric,
    change_said,
    interval_said,
    size_said,
    trouble,
    troubles_said,
)
from ampbench.units import counted
from ampbench.verdicts import Verdict

NAMES = {CONTROL: "control", REFERENCE: "fp64"}
"""What the arms of fp32 are called: from weights one rounding away, and in fp64."""

NO_BASELINE = "fp32 has no training to compare with"
NO_END = "fp32 itself came to no end"
NO_PAIR = "no seed was trained to its end in fp32 and in this precision"
NOT_LEARNING = "fp32 itself does not learn"
ONE_SEED = "one seed shows no spread: give --seeds 2 at least, better 3 or more"
SAME_START = (
    "every seed gave the same weights and batches, so that there is but one training: torch, numpy and random are "
    "seeded before the function is called, so do not seed in it"
)
CONTROL_FIRED = "fp32 from weights one rounding away differs as much: what is seen here is no precision's doing"


MANY_SEEDS = 50
"""More seeds than this are not worth recommending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """The trainings of a case, or of one of its arms, by their seeds."""

    case_id: str
    arm: str
    by_seed: dict[int, Training]


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """A verdict that numbers do not decide; `without_numbers` where a difference would mislead."""

    verdict: Verdict = Verdict.INCONCLUSIVE
    reason: str
    without_numbers: bool = False


def withheld(
    seeds: Mapping[int, Training],
    own: Mapping[int, Training],
    metric: Metric,
    learns: bool | None,
    controls: Mapping[str, Judged],
) -> Withheld | None:
    """Return the verdict on a precision that its differences do not decide; None where they do."""
    if not own:
        return Withheld(verdict=Verdict.INCOMPARABLE, reason=NO_BASELINE, without_numbers=True)
    ended = ended_of(own, metric)
    if not ended:
        return Withheld(reason=NO_END, without_numbers=True)
    pairs = [(each, ended[seed]) for seed, each in seeds.items() if seed in ended]
    if not pairs:
        return Withheld(reason=NO_PAIR, without_numbers=True)
    for what, one in (("weights", "weights_digest"), ("batches", "inputs_digest")):
        if any(getattr(mine, one) != getattr(theirs, one) for mine, theirs in pairs):
            reason = f"its {what} are not those that fp32 was trained with"
            return Withheld(verdict=Verdict.INCOMPARABLE, reason=reason, without_numbers=True)
    if troubles := troubles_said([mine for mine, _ in pairs], metric):
        return Withheld(verdict=Verdict.REGRESSED, reason=troubles, without_numbers=True)
    if learns is False:
        return Withheld(reason=NOT_LEARNING)
    if reason := only_one(seeds, ended):
        return Withheld(reason=reason)
    return Withheld(reason=CONTROL_FIRED) if fires(controls.get(NAMES[CONTROL])) else None


def reason_of(judged: Judged, metric: Metric, low: float | None, high: float | None) -> str:
    """Return why a verdict that numbers decided is what it is; `low` and `high` are the interval as it is told."""
    between = interval_said(low, high, metric)
    if judged.verdict is Verdict.UNCHANGED:
        return f"within {size_said(metric.margin, metric)} of fp32 {between}".strip()
    said = f"{change_said(judged.difference * metric.sign, metric)} than in fp32 {between}".strip()
    if judged.verdict is not Verdict.INCONCLUSIVE:
        return said
    return seeds_said(said, judged.seeds_needed, size_said(metric.margin, metric))


def seeds_said(said: str, needed: int | None, margin: str) -> str:
    """Return what is `said` of a difference that is not decided, and how many seeds would decide (None: no number)."""
    if needed is None:
        return f"{said}, too near the margin of {margin} for any number of seeds"
    more = f"about {counted(needed, 'seed')}" if needed <= MANY_SEEDS else f"more than {MANY_SEEDS} seeds"
    return f"{said}; {more} would decide"


def ended_of(trainings: Mapping[int, Training], metric: Metric) -> dict[int, Training]:
    """Return those of the trainings by seed that came to an end."""
    return {seed: each for seed, each in trainings.items() if not trouble(each, metric)}


def only_one(seeds: Mapping[int, Training], own: Mapping[int, Training]) -> str:
    """Return why trainings beside those of fp32 show no spread, which leaves no interval either; "" where they do."""
    starts = [(own[seed].weights_digest, own[seed].inputs_digest) for seed in seeds if seed in own]
    if len(starts) == 1:
        return ONE_SEED
    return SAME_START if len({*starts}) == 1 else ""


def fires(judged: Judged | None) -> bool:
    """Return whether an arm of fp32 itself is said to differ from it."""
    return judged is not None and judged.verdict in (Verdict.REGRESSED, Verdict.IMPROVED)


def control_remarks(controls: Mapping[str, Judged], metric: Metric) -> list[str]:
    """Return what it means where fp32 itself, one rounding away or in fp64, ends elsewhere."""
    remarks = []
    if fires(found := controls.get(NAMES[CONTROL])) and found is not None:
        change = change_said(found.difference * metric.sign, metric)
        remarks.append(f"no verdict is given: of fp32 from weights one rounding away, {change} than of fp32")
    if fires(found := controls.get(NAMES[REFERENCE])) and found is not None:
        change = change_said(found.difference * metric.sign, metric)
        remarks.append(f"fp64 ends elsewhere than fp32: {change}, so that fp32 is no exact measure here")
    return remarks


def seed_remarks(arms: Mapping[str, Arm], asked: int, metric: Metric) -> list[str]:
    """Return which trainings are missing, and which of fp32 and its arms came to no end.

    `arms` are all that are planned. That fp32 came to no end from any seed is not a remark: it is said first.
    """
    remarks = []
    short = [name for name, arm in arms.items() if len(arm.by_seed) < asked]
    if short:
        remarks.append(f"not all of {counted(asked, 'seed')} were trained in {few(short)}")
    lost = BASELINE in arms and not ended_of(arms[BASELINE].by_seed, metric)
    for name in (*(() if lost else (BASELINE,)), *NAMES.values()):
        if name in arms and (troubles := troubles_said(list(arms[name].by_seed.values()), metric)):
            remarks.append(f"{'the control' if name == NAMES[CONTROL] else name} itself: {troubles}")
    if BASELINE in arms:
        own = arms[BASELINE].by_seed.values()
        if len(own) > 1 and len({each.weights_digest for each in own}) == 1:
            remarks.append("the weights are the same from every seed")
    return remarks

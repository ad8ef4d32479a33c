"""Verdicts on trainings that their numbers do not decide, and what must be said beside those that they do."""

from collections.abc import Mapping
from dataclasses import dataclass

from ampbench.labels import few
from ampbench.precisions import BASELINE
from ampbench.records.studies import CONTROL, REFERENCE, Training
from ampbench.studied.convergence_judging import Judged
from ampbench.studied.convergence_metric import Metric, trouble, troubles_said
from ampbench.studied.convergence_wording import change_said
from ampbench.units import counted
from ampbench.verdicts import Verdict

NAMES = {CONTROL: "control", REFERENCE: "fp64"}
"""What the arms of fp32 are called: from weights one rounding away, and in fp64."""

NO_BASELINE = "fp32 has no training to compare with"
NO_PAIR = "no seed was trained to its end in fp32 and in this precision"
NOT_LEARNING = "fp32 itself does not learn"
ONE_SEED = "one seed shows no spread: give --seeds 3 or more"
SAME_START = "every seed gave the same weights and batches, so that there is but one training: let the seed change them"
CONTROL_FIRED = "fp32 from weights one rounding away differs as much: what is seen here is no precision's doing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """The trainings of a case, or of one of its arms, by their seeds."""

    case_id: str
    arm: str
    by_seed: dict[int, Training]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A verdict that numbers do not decide; `without_numbers` where a difference would mislead."""

    verdict: Verdict = Verdict.INCONCLUSIVE
    reason: str = ""
    without_numbers: bool = False


def refused(
    seeds: Mapping[int, Training],
    own: Mapping[int, Training],
    metric: Metric,
    learns: bool | None,
    controls: Mapping[str, Judged],
) -> Refusal | None:
    """Return the verdict on a precision that its differences do not decide; None where they do."""
    if not own:
        return Refusal(verdict=Verdict.INCOMPARABLE, reason=NO_BASELINE, without_numbers=True)
    ended = {seed: each for seed, each in own.items() if not trouble(each, metric)}
    pairs = [(each, ended[seed]) for seed, each in seeds.items() if seed in ended]
    if not pairs:
        return Refusal(reason=NO_PAIR, without_numbers=True)
    for what, one in (("weights", "weights_digest"), ("batches", "inputs_digest")):
        if any(getattr(mine, one) != getattr(theirs, one) for mine, theirs in pairs):
            reason = f"its {what} are not those that fp32 was trained with"
            return Refusal(verdict=Verdict.INCOMPARABLE, reason=reason, without_numbers=True)
    if troubles := troubles_said([mine for mine, _ in pairs], metric):
        return Refusal(verdict=Verdict.REGRESSED, reason=troubles, without_numbers=True)
    if learns is False:
        return Refusal(reason=NOT_LEARNING)
    if len(pairs) == 1:
        return Refusal(reason=ONE_SEED)
    if len({(each.weights_digest, each.inputs_digest) for each in own.values()}) == 1:
        return Refusal(reason=SAME_START)
    return Refusal(reason=CONTROL_FIRED) if fires(controls.get(NAMES[CONTROL])) else None


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
    """Return which trainings are missing, and which of fp32 and its arms came to no end."""
    remarks = []
    short = [name for name, arm in arms.items() if len(arm.by_seed) < asked]
    if short:
        remarks.append(f"not all of {counted(asked, 'seed')} were trained in {few(short)}")
    for name in (BASELINE, *NAMES.values()):
        if name in arms and (troubles := troubles_said(list(arms[name].by_seed.values()), metric)):
            remarks.append(f"{name} itself: {troubles}")
    if BASELINE in arms:
        own = arms[BASELINE].by_seed.values()
        if len(own) > 1 and len({each.weights_digest for each in own}) == 1:
            remarks.append("the weights are the same from every seed")
    return remarks

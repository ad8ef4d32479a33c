"""What the trainings of a workload come to in a few sentences: first which precisions train as fp32 does.

They are without their full stops, and begin in lower case or with a name.
"""

import math
from collections.abc import Callable, Iterable

from ampbench.records.studies import CONSTANT, COSINE, LINEAR, OWN
from ampbench.studied.convergence.learning import Learned, Learning
from ampbench.studied.convergence.metric import (
    ACCURACY,
    format_metric,
    margin_said,
    metric_said,
    size_said,
    trouble,
    troubles_said,
)
from ampbench.studied.convergence.verdicts import NO_END, NOT_LEARNING
from ampbench.units import counted, format_error
from ampbench.verdicts import Verdict

_LONGER = "train for longer, or at another learning rate, to conclude"
_SCHEDULES = {LINEAR: "linear schedule", COSINE: "cosine schedule", OWN: "its own schedule"}
_SAID = {
    Verdict.REGRESSED: "does not train as fp32 does",
    Verdict.IMPROVED: "ends better than fp32",
    Verdict.INCONCLUSIVE: "is inconclusive",
    Verdict.INCOMPARABLE: "cannot be compared",
}


def learned_said(one: Learned) -> list[str]:
    """Return what to conclude of each precision, what fp32 reaches and how much seeds and rounding move that."""
    said = []
    if one.learns is False:
        said.append(f"{NOT_LEARNING}: it reaches {_reached(one)}; {_LONGER}")
    own = one.baseline.trainings if one.baseline is not None else []
    ended = [training for training in own if not trouble(training, one.metric)]
    if own and not ended:
        said.append(f"{NO_END}, {troubles_said(own, one.metric)}: nothing can be compared")
    if one.metric.hardly_falls:
        said.append(f"fp32 itself has hardly fallen, by {size_said(one.metric.fall, one.metric)}: {_LONGER}")
    said += _verdicts_said(one)
    said += [one.unjudged] if one.unjudged else []
    if one.learns is not False and ended:
        said.append("; ".join(filter(None, [f"fp32 reaches {_reached(one)}", _spreads(one)])))
    return [*said, *_ways_said(one), *one.remarks]


def verdict_said(one: Learned) -> str:
    """Return what to conclude in a line: which precisions train as fp32 does and which do not.

    Where something keeps that from being known, what that is; "" where no precision was judged.
    """
    if not one.judged:
        return ""
    first, verdicts = learned_said(one)[0], _verdicts_said(one)
    return "; ".join(verdicts[:2]) if verdicts[:1] == [first] else first


def _verdicts_said(one: Learned) -> list[str]:
    """Return which precisions train as fp32 does, which score as it does, which regressed, and which are open."""
    said, score = [], margin_said(one.metric)
    same = [row for row in one.judged if row.verdict is Verdict.UNCHANGED]
    if trained := [row.name for row in same if row.trains]:
        loss = f"{100 * math.expm1(one.loss_margin or 0.0):.2g}% of the training loss"
        said.append(f"{_listed(trained)} {_plural('trains', len(trained))} as fp32 does, within {score} and {loss}")
    for row in same:
        if row.loss_verdict is Verdict.REGRESSED:
            worse = f"but does not train as it does: {row.loss_reason}"
            said.append(f"{row.name} scores as fp32 does, within {score}, {worse}")
    for rows in _alike((row for row in same if row.trains is None), lambda row: row.loss_reason):
        scores = f"{_listed([row.name for row in rows])} {_plural('scores', len(rows))} as fp32 does, within {score}"
        trains = f"whether {'it trains' if len(rows) == 1 else 'they train'} as fp32 does is open"
        said.append(f"{scores}; {trains}: {rows[0].loss_reason}")
    for verdict, what in _SAID.items():
        for rows in _alike((row for row in one.judged if row.verdict is verdict), _why):
            if rows[0].reason not in (NOT_LEARNING, NO_END):
                said.append(f"{_listed([row.name for row in rows])} {_plural(what, len(rows))}: {_why(rows[0])}")
    return said


def _ways_said(one: Learned) -> list[str]:
    """Return of the precisions that do not train as fp32 does how far they went astray, and how that grows."""
    said = []
    for row in one.judged:
        if row.trains is False and row.way is not None:
            gone = f"{row.name} went {100 * row.way.kept:.1f}% of the way that fp64 went"
            aside = f"ended {format_error(row.way.error)} of it aside"
            slope = row.way.slope
            grows = "" if slope is None else f"that grows as k^{slope:.2g} with the steps k (a bias: k, noise: k^0.5)"
            said.append("; ".join(filter(None, [f"{gone} and {aside}", grows])))
    return said


def _why(row: Learning) -> str:
    """Return the reason of a verdict on a score, with that of the loss where only the loss is shown to be worse."""
    loss = row.loss_reason if row.loss_verdict is Verdict.REGRESSED and row.verdict is not Verdict.REGRESSED else ""
    return "; ".join(filter(None, [row.reason, loss]))


def _reached(one: Learned) -> str:
    """Return what fp32 reaches: "97.87% accuracy on held-out data, from 9.91% before training"."""
    row = one.baseline
    after = row.mean if row is not None else None
    assert after is not None
    before = "" if one.before is None else f", from {format_metric(one.before, one.metric)} before training"
    value = format_metric(after, one.metric)
    said = (
        f"{value} {metric_said(one.metric)}"
        if one.metric.name == ACCURACY
        else f"a {metric_said(one.metric)} of {value}"
    )
    return f"{said}{before}"


def _spreads(one: Learned) -> str:
    """Return "seeds alone move that by 0.31 points (SD); rounding alone changes it by 0.12 points"."""
    row, parts = one.baseline, []
    if row is not None and row.sd is not None and row.mean:
        relative = row.sd if one.metric.name == ACCURACY else row.sd / abs(row.mean)
        parts.append(f"seeds alone move that by {size_said(relative, one.metric)} (SD)")
    if one.rounding is not None:
        changed = f"it by {size_said(one.rounding, one.metric)}" if one.rounding else "nothing"
        parts.append(f"rounding alone changes {changed}")
    return "; ".join(parts)


def _alike(rows: Iterable[Learning], reason: Callable[[Learning], str]) -> list[list[Learning]]:
    """Return rows in lists of those with the same reason."""
    found: dict[str, list[Learning]] = {}
    for row in rows:
        found.setdefault(reason(row), []).append(row)
    return list(found.values())


def _listed(names: list[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _plural(what: str, count: int) -> str:
    """Return what is said of one precision as it is said of `count`."""
    several = {"does not train": "do not train", "trains": "train", "scores": "score", "ends ": "end ", "is ": "are "}
    for single, plural in several.items() if count > 1 else ():
        what = what.replace(single, plural)
    return what


def trained_title(one: Learned) -> str:
    """Return what was trained, in one line."""
    seeds = counted(one.asked, "seed")
    if len(one.seeds) < one.asked:
        seeds = f"{len(one.seeds):,} of {seeds}{' so far' if one.left else ''}"
    rate = "" if one.last_rate is None else f" to {one.last_rate:.2g} of the learning rate"
    schedule = "" if one.schedule == CONSTANT else f"{_SCHEDULES.get(one.schedule, one.schedule)}{rate}"
    return " · ".join(filter(None, [one.workload, one.device, counted(one.steps, "step"), schedule, seeds]))

"""What the trainings of a workload come to in a few sentences: first which precisions converge as fp32 does.

They are without their full stops, and begin in lower case or with a name.
"""

from collections.abc import Iterable

from ampbench.studied.convergence import Learned, Learning
from ampbench.studied.convergence_metric import ACCURACY
from ampbench.studied.convergence_verdicts import NOT_LEARNING
from ampbench.studied.convergence_wording import format_metric, metric_said, size_said
from ampbench.units import counted
from ampbench.verdicts import Verdict

NONE_TRAINED = "only fp32 was trained: there is no precision to judge"

_SAID = {
    Verdict.REGRESSED: "does not converge as fp32 does",
    Verdict.IMPROVED: "ends better than fp32",
    Verdict.INCONCLUSIVE: "undecided",
    Verdict.INCOMPARABLE: "cannot be compared",
}


def learned_said(one: Learned) -> list[str]:
    """Return what to conclude of each precision, what fp32 reaches and how much seeds and rounding move that."""
    said = []
    if one.learns is False:
        said.append(
            f"{NOT_LEARNING}: it reaches {_reached(one)}; train for longer, or at another learning rate, to conclude"
        )
    same = [row.name for row in one.judged if row.verdict is Verdict.UNCHANGED]
    if same:
        size = size_said(one.metric.margin, one.metric)
        margin = "half a point of accuracy" if one.metric.name == ACCURACY and one.metric.margin == 0.005 else size
        said.append(f"{_listed(same)} {'converges' if len(same) == 1 else 'converge'} as fp32 does, within {margin}")
    for verdict, what in _SAID.items():
        for rows in _alike(row for row in one.judged if row.verdict is verdict):
            if rows[0].reason != NOT_LEARNING:
                said.append(f"{_listed([row.name for row in rows])} {_plural(what, len(rows))}: {rows[0].reason}")
    if not one.judged:
        said.append(NONE_TRAINED)
    if one.learns is not False and one.baseline is not None:
        said.append("; ".join(filter(None, [f"fp32 reaches {_reached(one)}", _spreads(one)])))
    return [*said, *one.remarks]


def _reached(one: Learned) -> str:
    """Return what fp32 reaches: "97.87% accuracy on held-out data, from 9.91% before training"."""
    row = one.baseline
    after = row.mean if row is not None else None
    if after is None:
        return "no end"
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


def _alike(rows: Iterable[Learning]) -> list[list[Learning]]:
    """Return rows in lists of those with the same reason."""
    found: dict[str, list[Learning]] = {}
    for row in rows:
        found.setdefault(row.reason, []).append(row)
    return list(found.values())


def _listed(names: list[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _plural(what: str, count: int) -> str:
    return what if count == 1 else what.replace("does not converge", "do not converge").replace("ends ", "end ")


def trained_title(one: Learned) -> str:
    """Return what was trained, in one line."""
    return " · ".join([one.workload, one.device, counted(one.steps, "step"), counted(len(one.seeds), "seed")])

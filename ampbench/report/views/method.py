"""The sections of machine and method: on what the runs were measured, how quiet that was, and what its words mean.

In what their machines differ is told, too. The prose on method is in the template; its numbers come from the code that
decides.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ampbench.core import stats
from ampbench.core.precisions import PRECISIONS, ordered
from ampbench.core.units import UNDEFINED, counted, format_percent, format_seconds
from ampbench.judge import fitness
from ampbench.judge.rounds import MeasuredRun
from ampbench.records.labels import few
from ampbench.report.facts import Facts, facts_of, moment
from ampbench.report.material import Material
from ampbench.show.page import View
from ampbench.show.rows import number
from ampbench.store import CUT, StoredRun

_CUT = f"its file {CUT}"
_NOT_COMPARABLE = "times are not comparable"


@dataclass(frozen=True, slots=True)
class _Row:
    """A fact of every side: its name, the sides' texts, what a difference in it means."""

    name: str
    texts: Sequence[str]
    meaning: str = ""

    @property
    def differs(self) -> bool:
        """Whether the sides do not all have the same."""
        return len(set(self.texts)) > 1


@dataclass(frozen=True, slots=True)
class _Group:
    """Facts that belong together, side by side."""

    title: str
    rows: Sequence[_Row]


def environment(material: Material) -> View | None:
    """Return the view; None where there is no run."""
    own = [one.stored for one in material.shown] or material.explanations
    sides = [*([material.baseline] if material.baseline else []), *own]
    if not sides:
        return None
    headers = [one.header for one in sides]
    groups = _side_by_side([facts_of(header) for header in headers])
    meanings = _meanings(material)
    differing = [
        _Row(row.name, row.texts, meanings.get(row.name, "")) for group in groups for row in group.rows if row.differs
    ]
    differing.sort(key=lambda row: not row.meaning)
    same = [_Group(group.title, [row for row in group.rows if not row.differs]) for group in groups]
    content = {
        "sides": headers,
        "baseline": headers[0] if material.baseline is not None else None,
        "differing": differing,
        "telling": any(row.meaning for row in differing),
        "same": [group for group in same if group.rows],
        "quietness": _side_by_side([{"How it went": _quietness(one)} for one in sides])[0],
    }
    return View(id="environment", title="Environment", template="environment.html", content=content)


def _side_by_side(sides: Sequence[Mapping[str, Facts]]) -> list[_Group]:
    """Return the facts of all sides by group, those that no side knows left out."""
    groups = []
    for title in sides[0]:
        names = dict.fromkeys(name for side in sides for name, text in side[title].items() if text)
        rows = [_Row(name, [side[title].get(name) or UNDEFINED for side in sides]) for name in names]
        groups.append(_Group(title, rows))
    return groups


def _meanings(material: Material) -> dict[str, str]:
    """Return what the differences from the baseline mean, by name, where they mean anything."""
    runs: dict[str, list[str]] = {}
    for one in material.comparisons:
        for difference in one.differences:
            if difference.matters:
                runs.setdefault(difference.name, []).append(one.candidate.run)
    every = len(material.comparisons)
    return {
        name: _NOT_COMPARABLE if len(found) == every else f"{_NOT_COMPARABLE}: {', '.join(found)}"
        for name, found in runs.items()
    }


def _quietness(stored: StoredRun) -> Facts:
    """Return how a run went: whether it is whole, what its control says, how much else the machine was doing."""
    control = fitness.control_ratio(stored)
    disturbed = fitness.disturbed_share(stored)
    return {
        "started": moment(stored.header.started_at),
        "ended": "; ".join(part for part in (stored.ending, _CUT if stored.cut else "") if part),
        "rounds": _rounds(stored),
        "control": "" if control is None else _apart(control),
        "disturbed samples": ""
        if disturbed is None
        else f"{format_percent(disturbed)} took over {fitness.DISTURBED_BY}",
        "CPU time given to other machines": _shares(one.fitness.steal_share for one in stored.rounds),
        "CPU time of other processes": _shares(one.fitness.other_share for one in stored.rounds),
        "unfit rounds": _unfit(stored),
        "the same step, run twice": _repeatable(stored),
    }


def _apart(control: fitness.Control) -> str:
    """Return how far apart two measurements of one case were, as the banner says what follows from it."""
    own, again = map(format_seconds, control.medians)
    return f"{control.case_id}, measured twice: {own} and {again}, {format_percent(control.apart - 1)} apart"


def _rounds(stored: StoredRun) -> str:
    kinds = Counter("control" if one.control else "fresh" if one.confirmation else "own" for one in stored.rounds)
    if not kinds:
        return "none"
    blocks = len({one.round for one in stored.rounds if not (one.control or one.confirmation)})
    said = [f"{kinds['own']:,}" + (f" in {counted(blocks, 'block')}" if stored.header.arm else "")]
    said += [f"{kinds['fresh']:,} fresh ones"] if kinds["fresh"] else []
    return ", ".join([*said, *([f"{kinds['control']:,} of the control"] if kinds["control"] else [])])


def _shares(values: Iterable[float | None]) -> str:
    """Return the median and the largest of the rounds' shares, "" where the machine does not tell."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    return f"{format_percent(stats.median(known))} in the median round, at most {format_percent(max(known))}"


def _unfit(stored: StoredRun) -> str:
    """Return how many rounds a comparison would leave out, and the commonest cause."""
    if not stored.rounds:
        return ""
    found = fitness.unfit_rounds(MeasuredRun.of(stored))
    unfit, count = found.cause >= 0, len(stored.rounds)
    if not np.any(unfit):
        return f"none of {count:,}"
    cause = fitness.said_of(found.cause[unfit], found.value[unfit], count, "rounds")
    return f"{format_percent(float(np.mean(unfit)))}; {cause}"


def _repeatable(stored: StoredRun) -> str:
    """Return whether the divergence pass, where it was run twice, gave the same bits."""
    tested = [one for one in stored.divergence.values() if one.repeatable is not None]
    moving = [one.case_id for one in tested if not one.repeatable]
    if not tested:
        return ""
    if not moving:
        return f"the same bits in {'all ' if len(tested) > 1 else ''}{counted(len(tested), 'case')}"
    return f"other bits in {len(moving):,} of {counted(len(tested), 'case')}: {few(moving)}"


def method(material: Material) -> View | None:
    """Return the view; None where there is no run."""
    if not material.shown:
        return None
    rows = [case.row for case in material.cases]
    judged = bool(material.comparisons or material.trends)
    content = {
        "judged": judged,
        "names": {name for name in ("output_rel_l2", "peak_memory_bytes") if any(number(row[name]) for row in rows)},
        "phases": {row["phase"] for row in rows},
        "budget": material.budget,
        "advised": any(one.advice for one in material.shown),
        "precisions": _meant(material),
        "imported": any(one.stored.header.imported for one in material.shown),
        "least_rounds": stats.ROUNDS_FOR_INTERVAL,
    }
    return View(id="method", title="Method", template="method.html", content=content)


def _meant(material: Material) -> dict[str, str]:
    """Return what the precisions on the page are, as `ampbench list precisions` says it; a user's own by its run."""
    own = {one.name: one.summary for shown in material.shown for one in shown.stored.header.precisions}
    known = {name: row.summary for name, row in PRECISIONS.items()} | own
    names = ordered(case.row["precision"] for case in material.cases)
    return {name: known[name] for name in names if known.get(name)}

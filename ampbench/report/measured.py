"""What was measured, where, when and with what: the facts about the runs shown, as text."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ampbench.labels import outcomes_said
from ampbench.notes import measured_devices
from ampbench.precisions import ordered
from ampbench.report.explained import contents
from ampbench.report.facts import installation, moment, where
from ampbench.report.material import Material, Shown, ShownCase
from ampbench.rows import Row
from ampbench.store import StoredRun
from ampbench.trends.sentences import changes_in_order
from ampbench.units import counted

LISTED = 5
"""So many values of one fact are told, and so many runs without being asked for."""

_DAY = len("2026-11-21 ")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A row of the list of runs; "" is what nobody told."""

    run: str
    label: str
    when: str
    cases: str
    where: str
    installation: str
    ended: str


def facts(material: Material) -> dict[str, list[str]]:
    """Return what was measured, where, when and with what, of all runs, by name; what nobody told is left out."""
    runs = [shown.stored for shown in material.shown] or list(material.explanations)
    headers = [one.header for one in runs]
    found = {
        "Run": [runs[0].header.run] if len(runs) == 1 else [counted(len(runs), "run")],
        "Label": [one.label for one in headers],
        "Measured": [_measured(material.cases)],
        "Explained": ["; ".join(contents(material))],
        "Where": [where(one.stored.header, measured_devices(one.rows)) for one in material.shown]
        or [where(one, ()) for one in headers],
        "When": [_when(runs)] if runs else [],
        "With": [installation(one) for one in headers],
        "History": [_history(material)],
    }
    told = {name: list(dict.fromkeys(value for value in values if value)) for name, values in found.items()}
    return {
        name: values if len(values) <= LISTED else [f"{len(values):,} different ones, listed by run below"]
        for name, values in told.items()
        if values
    }


def _history(material: Material) -> str:
    """Return of how many runs the trends on the page are, and how many changes they have over what; "" without any."""
    points = [point for trend in material.trends for one in trend.series for point in one.points]
    runs = counted(len({run for point in points for run in point.run_ids}), "run")
    if not points:
        return ""
    said: list[str] = []
    for trend in material.trends:
        count = len(changes_in_order(trend))
        noun = "" if said else " change" if count == 1 else " changes"
        said.append(f"{f'{count:,}' if count else 'none' if said else 'no'}{noun} over {trend.axis.replace('_', ' ')}s")
    which = runs
    if len(material.shown) == 1:
        torch = material.shown[0].stored.header.environment.torch_version
        highest = f" with the highest version of torch, {torch}," if torch and over_versions(material) else ""
        which = f"the newest{highest} of {runs}"
    return f"{which}; their history: {', '.join(said)}"


def over_versions(material: Material) -> bool:
    """Return whether the page is of runs of several versions of torch, which its trends go over."""
    return any(trend.axis == "torch_version" for trend in material.trends)


def _measured(cases: Sequence[ShownCase]) -> str:
    if not cases:
        return "no cases"
    counts = _outcomes(one.row for one in cases)
    ok = [one.case for one in cases if one.row["outcome"] == "ok"] or [one.case for one in cases]
    workloads = counted(len({case.workload for case in ok}), "workload")
    precisions = ", ".join(ordered(case.precision for case in ok))
    traits = (dict.fromkeys(getattr(case, name) for case in ok) for name in ("phase", "path", "device"))
    return f"{counted(len(cases), 'case')} ({counts}): {workloads} in {precisions}; " + "; ".join(
        ", ".join(values) for values in traits
    )


def _when(runs: Sequence[StoredRun]) -> str:
    """Return from when to when the runs were measured, in UTC."""
    start = min(moment(one.header.started_at) for one in runs)
    end = max((moment(one.footers[-1].finished_at) for one in runs if one.footers), default="")
    if not end or end == start:
        return start
    same_day = end[:_DAY] == start[:_DAY]
    return f"{start.removesuffix(' UTC')} to {end[_DAY:] if same_day else end}"


def run_facts(shown: Shown) -> RunFacts:
    """Return a run as a row of the list of runs."""
    header, stored = shown.stored.header, shown.stored
    return RunFacts(
        run=header.run,
        label=header.label,
        when=_when([stored]),
        cases=_outcomes(shown.rows),
        where=where(header, measured_devices(shown.rows)),
        installation=installation(header),
        ended=stored.ending,
    )


def _outcomes(rows: Iterable[Row]) -> str:
    return outcomes_said(Counter(row["outcome"] for row in rows))

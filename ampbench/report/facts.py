"""What was measured, where, when and with what: the facts of runs and of their headers, and the sections of them.

What was explained and studied of the runs on a page is handed to each study, case by case, for its part of it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from ampbench.core import stats
from ampbench.core.precisions import PRECISIONS, ordered
from ampbench.core.units import UNDEFINED, all_of, counted, format_percent
from ampbench.judge import rounds as fitness
from ampbench.judge.notes import measured_devices
from ampbench.judge.rounds import MeasuredRun
from ampbench.records.kinds import KINDS, Kind
from ampbench.records.labels import NOT_REACHED, case_labels, outcomes_said, told_apart
from ampbench.records.run import Header, short_commit
from ampbench.report.material import Material, ShownCase
from ampbench.show import studies
from ampbench.show.document import Block
from ampbench.show.page import Held, Part, Told, Untold, View, place_of, run_name, view_of_parts
from ampbench.show.results import dotted
from ampbench.show.rows import Row, number
from ampbench.store import CUT, StoredRun
from ampbench.studies.study import study_of


def where(header: Header, devices: Iterable[str]) -> str:
    """Return in a line on which machine, and on which of its `devices`, a run was measured."""
    environment = header.environment
    described = [one for name in devices if name != "cpu" and (one := environment.device(name)) is not None]
    return joined(
        environment.host,
        environment.cpu,
        counted(environment.cpu_count, "logical CPU") if environment.cpu_count else "",
        *(f"{one.type}: {one.name}" for one in described if one.name),
        counted(environment.threads, "thread") if environment.threads else "",
    )


def installation(header: Header) -> str:
    """Return in a line with which versions a run was measured, which program did, and of which commit."""
    environment = header.environment
    versions = {
        "torch": environment.torch_version,
        "torchvision": environment.torchvision_version,
        "CUDA": environment.cuda_version,
        "XPU": environment.xpu_version,
        "Python": environment.python_version,
        "ampbench": "" if header.imported else environment.ampbench_version or header.ampbench_version,
        "commit": short_commit(header.commit) if header.commit else "",
    }
    program = f"imported from {header.imported.program}" if header.imported else ""
    return joined(*(f"{name} {version}" for name, version in versions.items() if version), program)


def moment(text: str) -> str:
    """Return an ISO 8601 time as "2026-11-21 05:19 UTC"; what is no time as it is."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    return found.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def joined(*parts: str) -> str:
    """Return those of `parts` that say anything, in a line."""
    return " · ".join(part for part in parts if part)


LISTED = 5
"""So many values of one fact are told."""

_DAY = len("2026-11-21 ")


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
        name: values if len(values) <= LISTED else [f"{len(values):,} different ones, listed by run under Environment"]
        for name, values in told.items()
        if values
    }


def _history(material: Material) -> str:
    """Return of how many runs the trends on the page are, and over what; "" without any."""
    points = [point for trend in material.trends for series in trend.series for point in series.points]
    runs = counted(len({run for point in points for run in point.run_ids}), "run")
    axes = [f"{trend.axis.replace('_', ' ')}s" for trend in material.trends]
    return f"{runs} over {all_of(axes)}" if points else ""


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


def _outcomes(rows: Iterable[Row]) -> str:
    return outcomes_said(Counter(row["outcome"] for row in rows))


Passes = Sequence[tuple[StoredRun, str, Any]]
"""What runs found of cases or devices: the run, which one, and what."""


@lru_cache(maxsize=1)
def parts(material: Material) -> list[tuple[Kind, Part]]:
    """Return what studies say of the runs on the page, each with its kind; those with nothing are left out."""
    found = [(kind, studies.part(study_of(kind.name), held(material, kind))) for kind in KINDS.values()]
    return [(kind, part) for kind, part in found if part is not None]


def held(material: Material, kind: Kind) -> Held[Any]:
    """Return what the page holds for the study of a kind of runs."""
    passes = _passes(material, kind.name) if kind.of_cases else []
    return Held(
        told=_told(passes),
        untold=_untold(material, kind.name),
        elsewhere=_elsewhere(material, passes),
        runs=runs_of(material),
        compared=[(material.baseline, run) for run in runs_of(material)] if material.baseline else [],
    )


def first_finding(material: Material) -> str:
    """Return the first thing to know of the first study in the order of the page, behind its case's name; "": none."""
    return next((part.finding for _, part in parts(material) if part.finding), "")


def runs_of(material: Material) -> list[StoredRun]:
    """Return the runs on the page, those that only explain among them, the oldest first."""
    every = [*(shown.stored for shown in material.shown), *material.explanations]
    return sorted(every, key=lambda one: one.header.started_at)


def _told_of(kind: str, run: StoredRun) -> Mapping[str, Any]:
    return studies.found_of(study_of(kind), run)


def _told(passes: Passes) -> list[Told[Any]]:
    """Return what runs found of cases, each under a name of its own."""
    labels = case_labels(run.cases[case_id] for run, case_id, _ in passes)
    names = told_apart([labels[case_id] for _, case_id, _ in passes], (run_name(run) for run, _, _ in passes))
    return [
        Told(name=name, case=run.cases[case_id], run=run, found=one)
        for name, (run, case_id, one) in zip(names, passes, strict=True)
    ]


def _untold(material: Material, kind: str) -> list[Untold]:
    """Return the cases that runs that explain `kind` ("casts", …) failed to explain, skipped or did not finish."""
    found: dict[str, Untold] = {}
    for run in material.explanations:
        if run.header.explains != kind:
            continue
        labels = case_labels(run.cases.values())
        found |= {
            case_id: Untold(name=labels[case_id], reason=_reason(run, case_id), case_id=case_id, run=run)
            for case_id in run.cases
        }
    if not found:
        return []
    known = {case_id for run in runs_of(material) for case_id in _told_of(kind, run)}
    return [one for case_id, one in found.items() if case_id not in known]


def _elsewhere(material: Material, passes: Passes) -> list[str]:
    """Return what explained on another machine, or with another torch, than what measured."""
    own = {place_of(shown.stored) for shown in material.shown}
    places = dict.fromkeys(place_of(run) for run, _, _ in passes)
    if not own:
        return []
    return [f"torch {version or 'of an unknown version'} on {host}" for host, version in places
            if (host, version) not in own]  # fmt: skip


def contents(material: Material) -> list[str]:
    """Return in a few words what explains: how many cases' casts and so on, the rules and ceilings of which devices.

    Cases that failed or were skipped are not counted, though a part of them may be there.
    """
    counts = {
        kind: sum(case_id not in ended_early(run) for run, case_id, _ in _passes(material, kind))
        for kind, of in KINDS.items()
        if of.of_cases
    }
    said = [f"{KINDS[kind].contents} {counted(count, 'case')}" for kind, count in counts.items() if count]
    for kind, of in KINDS.items():
        if not of.of_cases and (
            devices := dict.fromkeys(key for run in runs_of(material) for key in _told_of(kind, run))
        ):
            said.append(f"{of.contents} {', '.join(devices)}")
    return said


def _reason(run: StoredRun, case_id: str) -> str:
    """Return why a run has no result of a case."""
    if (skip := run.skips.get(case_id)) is not None:
        return skip.reason
    if (failure := run.failures.get(case_id)) is not None:
        return failure.said
    return NOT_REACHED


def _passes(material: Material, kind: str) -> Passes:
    """Return what runs found of the cases on the page: of several of one case, host and torch version the newest."""
    shown = {id(one.stored): {row["case_id"] for row in one.rows} for one in material.shown}
    newest: dict[tuple[str, str, str], tuple[StoredRun, str, Any]] = {}
    for run in runs_of(material):
        wanted = shown.get(id(run))
        for case_id, found in _told_of(kind, run).items():
            if wanted is None or case_id in wanted:
                newest[*place_of(run), case_id] = run, case_id, found
    return list(newest.values())


def ended_early(run: StoredRun) -> set[str]:
    """Return the cases that a run that explains or studies skipped, or that failed in it."""
    return {*run.failures, *run.skips} if run.header.explains else set()


def environment(material: Material) -> View | None:
    """Return the view; None where there is no run."""
    own = [shown.stored for shown in material.shown] or list(material.explanations)
    runs = [*([material.baseline] if material.baseline else []), *own]
    if not runs:
        return None
    heads = [run_name(run) for run in runs]
    if material.baseline:
        heads[0] = f"baseline: {heads[0]}"
    went = [[name, *_went(run)] for name, run in zip(heads, runs, strict=True)]
    differing, same = _facts_by_run(runs)
    blocks = [
        Block("how it went", ["run", "started", "ended", *QUIETNESS], went),
        *([Block("what differs", ["fact", *heads], differing)] if differing else []),
        Block("what is the same" if len(runs) > 1 else "all that is recorded", ["fact", "value"], same, folded=True),
    ]
    return view_of_parts("environment", "Environment", [Part(id="runs", title="", blocks=blocks)])


def _facts_by_run(runs: Sequence[StoredRun]) -> tuple[list[list[str]], list[list[str]]]:
    """Return the facts of the runs' headers by name: those in which they differ, side by side, and those they share."""
    sides = [dict(dotted("", msgspec.to_builtins(run.header))) for run in runs]
    differing, same = [], []
    for name in dict.fromkeys(name for side in sides for name in side):
        texts = [side.get(name, UNDEFINED) for side in sides]
        if len(set(texts)) > 1:
            differing.append([name, *texts])
        else:
            same.append([name, texts[0]])
    return differing, same


QUIETNESS = ("rounds", "unfit rounds", "disturbed samples", "control, measured twice")


def _went(stored: StoredRun) -> list[str]:
    """Return when a run began, how it ended, and how quiet the machine was."""
    control, disturbed = fitness.control_ratio(stored), fitness.disturbed_share(stored)
    unfit = fitness.unfit_rounds(MeasuredRun.of(stored)).cause >= 0 if stored.rounds else None
    return [
        moment(stored.header.started_at),
        "; ".join(filter(None, [stored.ending, f"its file {CUT}" if stored.cut else ""])) or UNDEFINED,
        f"{len(stored.rounds):,}",
        UNDEFINED if unfit is None else format_percent(float(np.mean(unfit))),
        UNDEFINED if disturbed is None else format_percent(disturbed),
        UNDEFINED if control is None else f"{format_percent(control.apart - 1)} apart",
    ]


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

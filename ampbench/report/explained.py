"""What was explained and studied of the runs on a page, case by case, handed to each instrument for its part of it.

A comparison's reasons (`judge.explaining`) go with it.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ampbench.base.units import counted
from ampbench.instruments import registry
from ampbench.present.page import Changed, Held, Measured, Part, Told, Untold, place_of, run_name
from ampbench.records.case import Case
from ampbench.records.kinds import KINDS, Kind
from ampbench.records.labels import NOT_REACHED, case_labels, told_apart
from ampbench.records.verdicts import Comparison
from ampbench.report.material import Material, ShownCase
from ampbench.store import StoredRun

Passes = Sequence[tuple[StoredRun, str, Any]]
"""What runs found of cases or devices: the run, which one, and what."""


@lru_cache(maxsize=1)
def parts(material: Material) -> list[tuple[Kind | None, Part]]:
    """Return what instruments have to say of the runs on the page, in its order; those with nothing are left out.

    Beside each is the kind of its runs, None where it is about those that measured.
    """
    rows = [*((kind, kind.part) for kind in KINDS.values()), *((None, row.part) for row in registry.BESIDE)]
    found = [(kind, registry.part(place, held(material, kind))) for kind, place in rows]
    return [(kind, part) for kind, part in found if part is not None]


def held(material: Material, kind: Kind | None) -> Held[Any]:
    """Return what the page holds for the instrument of a kind of runs; None: for one of runs that measured."""
    passes = _passes(material, kind.name) if kind is not None and kind.of_cases else []
    return Held(
        told=_told(passes),
        untold=_untold(material, kind.name) if kind is not None else [],
        elsewhere=_elsewhere(material, passes),
        runs=runs_of(material),
        measured=[Measured(name=one.name, run=one.stored, rows=one.rows) for one in material.shown],
        comparisons=_comparisons(material),
        changed=changed(material),
    )


def first_finding(material: Material) -> str:
    """Return the first thing to know of the first study in the order of the page, behind its case's name; "": none."""
    return next((part.finding for _, part in parts(material) if part.finding), "")


def runs_of(material: Material) -> list[StoredRun]:
    """Return the runs on the page, those that only explain among them, the oldest first."""
    every = [*(shown.stored for shown in material.shown), *material.explanations]
    return sorted(every, key=lambda one: one.header.started_at)


def _told(passes: Passes) -> list[Told[Any]]:
    """Return what runs found of cases, each under a name of its own."""
    labels = case_labels(run.cases[case_id] for run, case_id, _ in passes)
    names = told_apart([labels[case_id] for _, case_id, _ in passes], (run_name(run) for run, _, _ in passes))
    return [
        Told(number=number, name=name, case=run.cases[case_id], run=run, found=one)
        for number, (name, (run, case_id, one)) in enumerate(zip(names, passes, strict=True))
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
    known = {case_id for run in runs_of(material) for case_id in registry.told(kind, run)}
    return [one for case_id, one in found.items() if case_id not in known]


def _elsewhere(material: Material, passes: Passes) -> list[str]:
    """Return what explained on another machine, or with another torch, than what measured."""
    own = {place_of(shown.stored) for shown in material.shown}
    places = dict.fromkeys(place_of(run) for run, _, _ in passes)
    if not own:
        return []
    return [f"torch {version or 'of an unknown version'} on {host}" for host, version in places
            if (host, version) not in own]  # fmt: skip


def changed(material: Material) -> list[Changed]:
    """Return what comparisons tell of why cases differ from the baseline's, case by case."""
    cases: dict[str, Case] = {}
    sentences: dict[str, list[str]] = {}
    for one in _comparisons(material):
        own = material.baseline.cases if material.baseline else {}
        for case_id, (_, said) in one.explained.items():
            if (case := one.candidates.get(case_id, own.get(case_id))) is not None:
                cases[case_id] = case
                sentences.setdefault(case_id, []).extend(said)
    labels = case_labels(cases.values())
    return [
        Changed(name=labels[cases[case_id].case_id], sentences=list(dict.fromkeys(said)))
        for case_id, said in sentences.items()
    ]


def reasons(case: ShownCase) -> Sequence[str]:
    """Return why a case is not what the baseline's was, as far as the comparison tells: sentences."""
    comparison = case.shown.comparison
    found = comparison.explained.get(case.baseline_id) if comparison and case.baseline_id else None
    return found.said if found else ()


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
            devices := dict.fromkeys(key for run in runs_of(material) for key in registry.told(kind, run))
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


def _comparisons(material: Material) -> list[Comparison]:
    return [*material.comparisons, *material.explained]


def _passes(material: Material, kind: str) -> Passes:
    """Return what runs found of the cases on the page: of several of one case, host and torch version the newest."""
    shown = {id(one.stored): {row["case_id"] for row in one.rows} for one in material.shown}
    newest: dict[tuple[str, str, str], tuple[StoredRun, str, Any]] = {}
    for run in runs_of(material):
        wanted = shown.get(id(run))
        for case_id, found in registry.told(kind, run).items():
            if wanted is None or case_id in wanted:
                newest[*place_of(run), case_id] = run, case_id, found
    return list(newest.values())


def ended_early(run: StoredRun) -> set[str]:
    """Return the cases that a run that explains or studies skipped, or that failed in it."""
    return {*run.failures, *run.skips} if run.header.explains else set()

"""The parts of a page that studies make of its runs: each gets the records of its cases."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ampbench.core.units import counted
from ampbench.records.kinds import KINDS, Kind
from ampbench.records.labels import NOT_REACHED, case_labels, told_apart
from ampbench.report.material import Material
from ampbench.show import studies
from ampbench.show.page import Held, Part, Told, Untold, place_of, run_name
from ampbench.store import StoredRun
from ampbench.studies.study import study_of

Passes = Sequence[tuple[StoredRun, str, Any]]
"""Findings on cases: the run, the case's id, and the record."""


@lru_cache(maxsize=1)
def parts(material: Material) -> list[Part]:
    """Return the parts of studies that found anything in the runs on the page, in the order of `KINDS`."""
    made = (studies.part(study_of(kind.name), held(material, kind)) for kind in KINDS.values())
    return [part for part in made if part is not None]


def held(material: Material, kind: Kind) -> Held[Any]:
    """Return the findings that the page holds for the study of a kind of runs."""
    passes = _passes(material, kind) if kind.of_cases else []
    labels = case_labels(run.cases[case_id] for run, case_id, _ in passes)
    names = told_apart([labels[case_id] for _, case_id, _ in passes], (run_name(run) for run, _, _ in passes))
    measured = {place_of(shown.stored) for shown in material.shown}
    places = dict.fromkeys(place_of(run) for run, _, _ in passes) if measured else {}
    return Held(
        told=[
            Told(name=name, case=run.cases[case_id], run=run, found=record)
            for name, (run, case_id, record) in zip(names, passes, strict=True)
        ],
        untold=_untold(material, kind),
        elsewhere=[f"torch {torch} on {host}" for host, torch in places if (host, torch) not in measured],
        runs=material.runs,
    )


def _untold(material: Material, kind: Kind) -> list[Untold]:
    """Return the cases that runs of a kind failed to explain, skipped or did not finish."""
    known = {case_id for run in material.runs for case_id in studies.found_of(study_of(kind.name), run)}
    left: dict[str, Untold] = {}
    for run in material.explanations:
        labels = case_labels(run.cases.values()) if run.header.explains == kind.name else {}
        for case_id in (each for each in labels if each not in known):
            left[case_id] = Untold(name=labels[case_id], reason=_reason(run, case_id), case_id=case_id, run=run)
    return list(left.values())


def _reason(run: StoredRun, case_id: str) -> str:
    """Return why a run has no result of a case."""
    if (skip := run.skips.get(case_id)) is not None:
        return skip.reason
    failure = run.failures.get(case_id)
    return NOT_REACHED if failure is None else failure.said


def contents(material: Material) -> list[str]:
    """Return the title of an explaining page, such as "casts of 3 cases" or "ceilings of cpu"."""
    texts = []
    for kind in KINDS.values():
        names = dict.fromkeys(name for run in material.runs for name in studies.found_of(study_of(kind.name), run))
        which = counted(len(_passes(material, kind)), "case") if kind.of_cases else ", ".join(names)
        texts += [f"{kind.contents} {which}"] if names else []
    return texts


def _passes(material: Material, kind: Kind) -> Passes:
    """Return the findings on the cases of the page: of several of one case, host and torch version the newest."""
    shown = {id(each.stored): {row["case_id"] for row in each.rows} for each in material.shown}
    newest: dict[tuple[str, str, str], tuple[StoredRun, str, Any]] = {}
    for run in material.runs:
        wanted = shown.get(id(run))
        for case_id, record in studies.found_of(study_of(kind.name), run).items():
            if wanted is None or case_id in wanted:
                newest[*place_of(run), case_id] = run, case_id, record
    return list(newest.values())

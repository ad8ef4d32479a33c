"""What a report says first: the verdict or the advice, the worst changes and failures, and what is behind them.

Beside numbers stands what is to be said of the runs: what no reader may miss (`warnings`), and the rest (`remarks`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from ampbench.core.metrics import DRIFT
from ampbench.core.units import all_of, counted
from ampbench.judge import frame, notes
from ampbench.records.case import Case
from ampbench.records.changes import OUTCOME, Change, ChangeStatus, Comparison, rank
from ampbench.records.kinds import KINDS
from ampbench.records.labels import case_labels, few
from ampbench.report import answers
from ampbench.report.answers import Machine, machines
from ampbench.report.facts import contents, facts, first_finding, over_versions
from ampbench.report.material import Material
from ampbench.show import comparison as sentences
from ampbench.show.changes import change_text, metric_label, reason, value_text
from ampbench.show.document import Block, as_sentence
from ampbench.show.networks import missing
from ampbench.show.page import View
from ampbench.show.wording import Line, lines

NAMED = 3
"""So many runs of which the same is to be said are named."""


def warnings(material: Material) -> list[str]:
    """Return what no reader may miss, each once and, where there are several runs, with those that it is said of."""
    several = len(material.shown) > 1
    failed = sum(case.row["outcome"] == "failed" for case in material.cases)
    warned = [f"{failed:,} of {counted(len(material.cases), 'case')} failed"] if failed else []
    for shown in material.shown:
        which = f"{shown.name}: " if several else ""
        if shown.comparison is not None:
            warned += [f"{which}{one}" for one in sentences.warnings(shown.comparison)]
        elif not shown.stored.complete:
            warned.append(f"run {shown.stored.header.run} is not complete: {shown.stored.ending}")
    sides = [(shown.name if several else "candidate", shown.notes) for shown in material.shown]
    if material.baseline is not None:
        sides.insert(0, ("baseline", _of_baseline(material)))
    said: dict[str, list[str]] = {}
    for side, found in sides:
        for note in found:
            if note.problem:
                said.setdefault(note.text, []).append(side)
    warned += [text if len(of) == len(sides) else f"{few(of, NAMED)}: {text}" for text, of in said.items()]
    return list(dict.fromkeys([*warned, *material.remarks]))


def remarks(material: Material, found: Sequence[Machine]) -> list[str]:
    """Return what else is to be said: of one run all of it; where there are more, for which device they speak.

    `found` are the machines of the runs.
    """
    if len(material.shown) == 1 and not material.comparisons:
        return [note.text for note in material.shown[0].notes if not note.problem]
    statements = [machine.statement for machine in found if machine.statement]
    known = {note.text for shown in material.shown for note in shown.notes if note.problem}
    return [one for one in statements if one not in known] if len(statements) == 1 else []


def _of_baseline(material: Material) -> list[Line]:
    """Return the notes of the baseline, as far as its cases are compared."""
    baseline = material.baseline
    assert baseline is not None
    compared = {one for shown in material.shown for one in shown.partners.values()}
    rows = [row for row in frame.run_rows(baseline) if row["case_id"] in compared]
    return lines(notes.statements(baseline, rows), baseline.cases)


Ranked = tuple[Change, str, str, Sequence[str]]
"""A finding, the name of its case, its run ("" where there is but one comparison), and what accounts for it."""

WORST = 3
"""So many changes are named with their reasons, so many reasons of failures, and so many cases of each of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownChange:
    """A change in words; `run` is the one that it was found in, where several are compared.

    `why` are sentences on what accounts for it, where both runs were traced.
    """

    verdict: str
    label: str
    run: str
    metric: str
    change: str
    values: str
    reason: str
    why: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What was compared with what, the names of what differs, and what is to be said of it beside the warnings."""

    baseline: str
    candidate: str
    differing: str
    said: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a report says first.

    `counts` are those of the verdicts, of which a case has several; `changes` leave out cases that fail now, which are
    `missing`. `about` is a sentence on what a page is about whose heading is what a study found, "" of others.
    """

    heading: str
    about: str
    counts: Sequence[tuple[str, int]]
    changes: Sequence[ShownChange]
    sides: Sequence[Sides]
    warnings: Sequence[str]
    missing: Block
    said: Sequence[str]
    facts: Mapping[str, Sequence[str]]


def banner(material: Material) -> View:
    """Return the view: the page's heading is its verdict or its advice."""
    told = result(material)
    content = {field.name: getattr(told, field.name) for field in fields(told)}
    return View(
        id="result",
        title="Result",
        template="banner.html",
        content=content,
        leads=True,
    )


def result(material: Material) -> Result:
    """Return what the report of `material` says first."""
    found = machines(material)
    comparisons = material.comparisons
    ranked = list(_ranked(material))
    about = ""
    if comparisons:
        heading = _verdict(ranked)
    elif any(one.row["outcome"] == "ok" for one in material.cases):
        heading = answers.heading(answers.advised_machines(material))
    else:
        heading, about = _unmeasured(material)
    versions = {one.stored.header.environment.torch_version for one in material.shown}
    if over_versions(material) and len(versions) == 1 and "" not in versions and not about:
        heading = f"with torch {versions.pop()}: {heading}"  # of a history, it is that of one version
    counts = Counter(one.status for one, *_ in ranked)
    names = {one.name for one in material.shown}
    return Result(
        heading=heading if about else heading[:1].upper() + heading[1:],
        about=about,
        counts=[(verdict.value, counts[verdict]) for verdict in sentences.WORST_FIRST if counts[verdict]],
        changes=[_change(*one) for one in _varied(ranked)[:WORST]],
        sides=[_sides(one) for one in comparisons],
        warnings=[as_sentence(one, names) for one in warnings(material)],
        missing=missing(one.row for one in material.cases),
        said=[as_sentence(one, names) for one in remarks(material, found)],
        facts=facts(material),
    )


def _ranked(material: Material) -> Iterator[Ranked]:
    """Yield the findings of all comparisons, what matters most first, with their cases' names and runs."""
    found: list[tuple[Change, Case, str, Sequence[str]]] = []
    for shown in material.shown:
        if shown.comparison is not None:
            run, others = shown.name if len(material.comparisons) > 1 else "", shown.comparison.candidates
            found += [
                (
                    one,
                    others.get(one.case.case_id, one.case),
                    run,
                    sentences.explanation_lines(shown.comparison, one.case.case_id),
                )
                for one in shown.comparison.findings
            ]
    labels = case_labels(case for _, case, _, _ in found)
    for finding, case, run, why in sorted(found, key=lambda one: rank(one[0])):
        yield finding, labels[case.case_id], run, why


def _fails(one: Change) -> bool:
    """Return whether a finding is that a case fails now, which is told with the failures."""
    return one.metric == OUTCOME and one.status is ChangeStatus.REGRESSED


def _varied(ranked: Sequence[Ranked]) -> list[Ranked]:
    """Return the changes but for failures: regressions first, and of each kind one before a second of the same."""
    seen: Counter[tuple[ChangeStatus, str]] = Counter()
    placed: list[tuple[int, int, Ranked]] = []
    for one in ranked:
        finding = one[0]
        if finding.status in sentences.CHANGED and not _fails(finding):
            key = (finding.status, finding.kind)
            placed.append((sentences.CHANGED.index(finding.status), seen[key], one))
            seen[key] += 1
    return [one for _, _, one in sorted(placed, key=lambda each: each[:2])]


def _verdict(ranked: Sequence[Ranked]) -> str:
    """Return how many of the cases compared changed, and which most of all; failures are told beside it."""
    if not ranked:
        return "nothing to compare: no case was measured in both runs"
    cases: dict[ChangeStatus, set[tuple[str, str]]] = {verdict: set() for verdict in ChangeStatus}
    for one, _, run, _ in ranked:
        cases[one.status].add((run, one.case.case_id))
    failing = {(run, one.case.case_id) for one, _, run, _ in ranked if _fails(one)}
    otherwise = {
        (run, one.case.case_id)
        for one, _, run, _ in ranked
        if one.metric == DRIFT and one.status is ChangeStatus.REGRESSED
    }
    regressed, improved = cases[ChangeStatus.REGRESSED], cases[ChangeStatus.IMPROVED]
    compared = f"of {counted(len(set().union(*cases.values())), 'case')}"
    changed = _varied(ranked)
    if not regressed and not improved:
        undecided = cases[ChangeStatus.INCONCLUSIVE] or cases[ChangeStatus.INCOMPARABLE]
        return "no change is certain" if undecided else "nothing changed"
    if not regressed:
        said = f"{len(improved):,} {compared} improved, none regressed"
    elif regressed == failing:
        said = f"{len(failing):,} {compared} {'fails' if len(failing) == 1 else 'fail'} now"
        changed = []
    elif regressed == otherwise:
        said = sentences.something_else(len(otherwise), compared)
    else:
        said = f"{len(regressed):,} {compared} regressed"
        said += f", {sentences.something_else(len(otherwise), 'of them')}" if otherwise else ""
        said += f", {len(failing):,} of them {'fails' if len(failing) == 1 else 'fail'} now" if failing else ""
    if not changed:
        return said
    finding, label, run, _ = changed[0]
    which = "of the others most of all " if failing else "most of all " if len(regressed | improved) > 1 else ""
    return f"{said}: {which}{label}{f' of {run}' if run else ''}, {sentences.change_line(finding)}"


def _unmeasured(material: Material) -> tuple[str, str]:
    """Return the heading where no case was measured, and what the page is about where that is what a study found."""
    if said := _without_result(Counter(one.row["outcome"] for one in material.cases)):
        return f"nothing was measured: {said}", ""
    if explained := contents(material):
        if found := first_finding(material):
            return found, f"This page is about {all_of(explained)}."
        if any(KINDS[one.header.explains].group != "explain" for one in material.explanations):
            return f"this page is about {all_of(explained)}", ""
        return f"nothing was measured; this page explains {all_of(explained)}", ""
    ended = Counter[str]()
    for run in material.explanations:
        ended.update(failed=len(run.failures), skipped=len(run.skips))
    return f"nothing was measured: {_without_result(ended) or 'there are no cases'}", ""


def _without_result(outcomes: Counter[str]) -> str:
    """Return how many cases failed and how many were skipped; "" where none did."""
    return ", ".join(f"{counted(outcomes[name], 'case')} {name}" for name in ("failed", "skipped") if outcomes[name])


def _change(one: Change, label: str, run: str, why: Sequence[str]) -> ShownChange:
    values = [value_text(one.metric, value) for value in (one.baseline, one.candidate)]
    return ShownChange(
        verdict=one.status.value,
        label=label,
        run=run,
        metric=metric_label(one.metric),
        change=change_text(one),
        values="" if one.baseline is None and one.candidate is None else " → ".join(values),
        reason=reason(one),
        why=why,
    )


def _sides(one: Comparison) -> Sides:
    warned = set(sentences.warnings(one))
    return Sides(
        baseline=sentences.side_name(one.baseline),
        candidate=sentences.side_name(one.candidate),
        differing=", ".join(difference.name for difference in one.differences),
        said=[said for said in sentences.conditions(one) if said not in warned],
    )

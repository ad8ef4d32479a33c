"""What is shown of a run that explains or studies: document and part of a page, made of what a `Study` holds."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.core.statement import Severity
from ampbench.records.case import Case
from ampbench.records.kinds import KINDS
from ampbench.records.labels import NOT_REACHED
from ampbench.show import study_words
from ampbench.show.data import finite, record_data
from ampbench.show.document import Block, Code, Document, Section, as_sentence, picked, records, table
from ampbench.show.page import Held, Part, of_several, told_part
from ampbench.store import StoredRun

if TYPE_CHECKING:
    from ampbench.studies.study import Since, Study, Table, Telling, View

Found = TypeVar("Found")
"""What was seen of a case."""
Row = TypeVar("Row")
"""Of what a flat row tells."""


def found_of(study: "Study[Any, Found]", stored: StoredRun) -> Mapping[str, Found]:
    """Return what a run of a study tells of each case."""
    return study.told(stored) if study.told else stored.of(study.record)


def document(
    study: "Study[Any, Found]", stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False
) -> Document:
    """Return what a study says of the cases `case_ids` of a run; `everything`: all rows of its tables."""
    if study.subjects is not None:
        return _of_subjects(study, stored, case_ids, everything=everything)
    columns, rows = study.tables[0].columns, study.tables[0].rows
    assert not callable(columns)
    key, passes = study.key or KINDS[study.kind].found.line, found_of(study, stored)
    cases = [(stored.cases[case_id], passes[case_id]) for case_id in case_ids if case_id in passes]

    def missing(case: Case) -> list[str]:
        failure = stored.failures.get(case.case_id)
        return [f"The rest was not measured: {failure.said}."] if failure else []

    def data(case: Case, record: Found) -> dict[str, Any]:
        statements = list(study.conclusions(case, record))
        return {
            "sentences": study_words.lines(statements),
            **({"missing": missing(case)} if missing(case) else {}),
            **({"code": code} if (code := study.code(case, record)) else {}),
            "statements": [asdict(each) for each in statements],
            "tables": _tables(study, [record]),
            key: _as_data(record),
        }

    def shown(case: Case, record: Found) -> Section:
        made = section(study, case, record, everything=everything)
        return Section(made.title, [*made.blocks, *map(Block, missing(case))])

    return Document(
        sections=lambda: [shown(case, record) for case, record in cases],
        data=lambda: nested_data(stored, case_ids, passes, data),
        columns=["case_id", *(column.key for column in columns)],
        rows=lambda: [
            {"case_id": case.case_id, **row} for case, record in cases for row in records(columns, rows(record))
        ],
        missing=missing_said(stored, case_ids, passes),
        code=list(_codes(study, cases)),
    )


def _rows(table: "Table[Found, Row]", told: Iterable[Found]) -> list[dict[str, Any]]:
    return [row for record in told for row in records(table.columns_of(record), table.rows(record))]


def _tables(study: "Telling[Found]", told: Collection[Found]) -> dict[str, list[dict[str, Any]]]:
    return {table.key: _rows(table, told) for table in study.tables if table.key}


def _listed(data: Any) -> list[Any]:
    return data if isinstance(data, list) else [data]


def _codes(study: "Study[Any, Found]", passes: Sequence[tuple[Case, Found]]) -> Iterator[Code]:
    """Yield the code to paste of each case that has some."""
    for case, record in passes:
        if text := study.code(case, record):
            yield Code("To paste" if len(passes) == 1 else f"To paste for {case_title(case)}", text)


def _as_data(record: Any) -> Any:
    return [_as_data(each) for each in record] if isinstance(record, list) else record_data(record)


def changes(study: "Study[Any, Any]", before: StoredRun, after: StoredRun) -> Document:
    """Return what a study says of two runs of it, the earlier first."""
    assert study.since is not None
    known = {"before": before.header.run, "after": after.header.run}
    return _of_named(study.since, study.since.of(before, after), lambda: known, everything=True)


def _of_subjects(study: "Study[Any, Any]", stored: StoredRun, case_ids: Sequence[str], *, everything: bool) -> Document:
    """Return what a study says of a run whose subjects are not its cases, but devices or workloads."""
    assert study.subjects is not None
    kind, told = KINDS[study.kind], found_of(study, stored)

    def known() -> dict[str, Any]:
        found = nested_data(stored, case_ids, told, lambda _, record: {study.key: _as_data(record)})
        if not kind.of_cases:
            found[study.key] = [data for each in told.values() for data in _listed(_as_data(each))]
            del found["cases"]
        return found

    subjects = study.subjects([stored], case_ids if kind.of_cases else None)
    found = _of_named(study, subjects, known, everything=everything or study.in_full(stored))
    if not kind.of_cases:
        return found
    later = [stored.failures[case_id] for case_id in case_ids if case_id in stored.failures and case_id in told]
    missing = missing_said(stored, case_ids, told)
    return replace(
        found,
        rows=lambda: [row for row in found.rows() if row["case_id"] in case_ids],
        missing=[*missing, *(f"{failure.case_id}: failed later: {failure.said}" for failure in later)],
    )


def _of_named(
    study: "Telling[Any]", subjects: Sequence[Any], known: Callable[[], Mapping[str, Any]], *, everything: bool
) -> Document:
    """Return what is said of subjects that each have a name; the data begin with what is `known`."""
    first = study.tables[0]

    def data() -> dict[str, Any]:
        statements = {each.name: list(study.conclusions(None, each)) for each in subjects}
        own = {
            "sentences": {name: study_words.lines(each) for name, each in statements.items()},
            "statements": {name: [asdict(one) for one in each] for name, each in statements.items()},
            "tables": _tables(study, subjects),
        }
        return {name: finite(value) for name, value in {**known(), **own}.items()}

    assert not callable(first.columns)
    return Document(
        sections=lambda: [section(study, None, each, everything=everything) for each in subjects],
        data=data,
        columns=[column.key for column in first.columns],
        rows=lambda: _rows(first, subjects),
    )


def section(study: "Telling[Found]", case: Case | None, record: Found, *, everything: bool = False) -> Section:
    """Return what a study says of a case: its conclusions, its tables, and what the measuring noted."""
    said = study_words.lines(study.conclusions(case, record))
    tables = [_block(each, view, record, everything) for each in study.tables for view in each.views]
    return Section(
        " · ".join(filter(None, [case_title(case) if case else "", study.heading(record)])),
        [
            *(Block(as_sentence(line)) for line in said),
            *(block for block in tables if block.rows),
            *(Block(as_sentence(note)) for note in study.remarks(record)),
        ],
    )


def _block(found: "Table[Found, Row]", view: "View[Row]", record: Found, everything: bool) -> Block:
    columns = found.columns_of(record)
    shown = None if everything else view.shown
    chosen = picked(columns, *view.keys.split()) if view.keys else columns
    return table(view.title, chosen, [*filter(view.only, found.rows(record))], view.note, shown=shown)


@dataclass(frozen=True, slots=True)
class Subject(Generic[Found]):
    """What a part of a page tells of by its `name`, a case or what else a study is of, and what was `found` of it.

    `since` tells of it where it is what changed since the baseline.
    """

    name: str
    found: Found
    case: Case | None = None
    since: "Since[Found] | None" = None


def subjects_of(study: "Study[Any, Any]", stored: StoredRun) -> list[Subject[Any]]:
    """Return what a run of a study tells of, in its order."""
    if study.subjects is not None:
        return [Subject(each.name, each) for each in study.subjects([stored], None)]
    cases = stored.cases
    return [Subject(case_title(cases[name]), record, cases[name]) for name, record in found_of(study, stored).items()]


def part(study: "Study[Any, Found]", held: Held[Found]) -> Part | None:
    """Return the part of a page that a study has, the cases with the most problems first; None without any.

    What changed since the baseline, as far as both were studied, comes before all of them.
    """
    found = [Subject(each.name, each.found, each.case) for each in held.told]
    if study.subjects is not None:
        found = [Subject(each.name, each) for each in study.subjects(held.runs, None)]  # type: ignore[attr-defined]
    changes = [
        Subject(each.name, each, since=study.since)
        for runs in held.compared
        if study.since is not None and all(found_of(study, run) for run in runs)
        for each in study.since.of(*runs)
    ]
    concluded = {
        id(each): list((each.since or study).conclusions(each.case, each.found)) for each in (*found, *changes)
    }

    def holds(code: str) -> Callable[[Subject[Found]], bool]:
        return lambda each: any(one.code == code for one in concluded[id(each)])

    def problems(each: Subject[Found]) -> int:
        return sum(one.severity is Severity.PROBLEM for one in concluded[id(each)])

    found.sort(key=problems, reverse=True)
    own = dict.fromkeys(one.code for each in found for one in concluded[id(each)] if one.code in study_words.OF_SEVERAL)
    of = study.subject
    return told_part(
        held,
        [*changes, *found],
        lambda each: section(each.since or study, each.case, each.found, everything=True),
        id=study.kind,
        title=study.title,
        verb=study.done,
        said=[line for code in own for line in of_several(found, holds(code), study_words.OF_SEVERAL[code], of)],
        drawings=study.charts,
        code=lambda each: study.code(each.case, each.found),
        folding=[view.title for each in study.tables for view in each.views if view.folded],
        finding=lambda each: next(iter(study_words.lines(concluded[id(each)])), ""),
    )


def missing_said(stored: StoredRun, case_ids: Iterable[str], passes: Collection[str]) -> list[str]:
    """Return a line for each case without a pass: what became of it, and why."""
    found = _outcomes(stored, case_ids, passes)
    return [f"{case_id}: {outcome}: {reason}" for case_id, outcome, reason in found if reason]


def nested_data(
    stored: StoredRun,
    case_ids: Sequence[str],
    passes: Mapping[str, Found],
    data: Callable[[Case, Found], Mapping[str, Any]],
) -> dict[str, Any]:
    """Return a run as plain data: each case's pass, with the fields of its `data`, or why it has none."""
    cases = []
    for case_id, outcome, reason in _outcomes(stored, case_ids, passes):
        case = stored.cases[case_id]
        known = {"case_id": case_id, "case": record_data(case), "outcome": outcome, "reason": reason or None}
        cases.append({**known, **(data(case, passes[case_id]) if case_id in passes else {})})
    header = stored.header
    told = {"run": header.run, "environment": record_data(header.environment), "ended": stored.ending, "cases": cases}
    return {name: finite(value) for name, value in told.items()}


def _outcomes(stored: StoredRun, case_ids: Iterable[str], passes: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the id of each case, its outcome and, unless that is "ok", the reason."""
    for case_id in case_ids:
        failure, skip = stored.failures.get(case_id), stored.skips.get(case_id)
        if case_id in passes:
            yield case_id, "ok", ""
        elif failure is not None:
            yield case_id, "failed", failure.said
        else:
            yield case_id, "skipped", skip.reason if skip else NOT_REACHED


def case_title(case: Case) -> str:
    """Return what a case is, in one line."""
    parts = [case.group, case.precision, case.phase, case.device, *([] if case.scaler else ["no scaler"])]
    if case.precision in PRECISIONS and case.input_dtype != SHORT_DTYPES[PRECISIONS[case.precision].storage]:
        parts.append(f"inputs in {case.input_dtype}")
    return " · ".join(parts)

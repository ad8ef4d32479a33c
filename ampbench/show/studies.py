"""The document and the part of a page of a run that explains or studies, by its `Study`."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.core.statement import Severity, Statement
from ampbench.core.units import counted
from ampbench.records.case import Case
from ampbench.records.kinds import KINDS
from ampbench.records.labels import NOT_REACHED, case_labels, common_traits, few
from ampbench.show import study_words
from ampbench.show.document import (
    Block,
    Code,
    Document,
    Section,
    as_sentence,
    cut,
    finite,
    picked,
    record_data,
    records,
    table,
)
from ampbench.show.page import Held, Part, told_part
from ampbench.show.terminal import block_lines, wrapped
from ampbench.store import StoredRun

if TYPE_CHECKING:
    from ampbench.studies.study import Study, Table, View

Found = TypeVar("Found")
"""The type of a case's record."""
SCREEN, WIDTH = 36, 80
"""The lines of a screen and their width; the notes that follow make it 40 lines."""
ROWS, FEWEST = 10, 3
"""The most rows of a table on a screen; a table without room for the fewest is left out."""
REST = "-v has the rest"


@dataclass(frozen=True, slots=True)
class Subject(Generic[Found]):
    """A case, device or network of a study, by its `name`, with its record `found`."""

    name: str
    found: Found
    case: Case | None = None


def found_of(study: "Study[Any, Found]", stored: StoredRun) -> Mapping[str, Found]:
    """Return the records of a study in a run, by case or device."""
    return study.told(stored) if study.told else stored.of(study.record)


def subjects_of(
    study: "Study[Any, Any]", stored: StoredRun, case_ids: Collection[str] | None = None
) -> list[Subject[Any]]:
    """Return the subjects of a study's run, of the cases `case_ids` (None: all)."""
    if study.subjects is not None:
        named = study.subjects([stored], case_ids if KINDS[study.kind].of_cases else None)
        return [Subject(subject.name, subject) for subject in named]
    known = found_of(study, stored)
    cases = [stored.cases[case_id] for case_id in (known if case_ids is None else case_ids) if case_id in known]
    return [Subject(case_title(case), known[case.case_id], case) for case in cases]


def document(
    study: "Study[Any, Any]", stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False
) -> Document:
    """Return the document of a study on the cases `case_ids` of a run: one screen, or `everything`."""
    kind, known, subjects = KINDS[study.kind], found_of(study, stored), subjects_of(study, stored, case_ids)
    key, header, first = study.key or kind.found.line, stored.header, study.tables[0]
    of_cases = {subject.case.case_id: subject for subject in subjects if subject.case}
    outcomes = list(_outcomes(stored, case_ids, known))

    def data() -> dict[str, Any]:
        environment = record_data(header.environment)
        whole: dict[str, Any] = {"run": header.run, "environment": environment, "ended": stored.ending}
        if kind.of_cases:
            whole["cases"] = [
                {
                    "case_id": case_id,
                    "case": record_data(stored.cases[case_id]),
                    "outcome": outcome,
                    "reason": reason or None,
                    **(_concluded(study, of_cases[case_id]) if case_id in of_cases else {}),
                    **({key: _as_data(known[case_id])} if case_id in known else {}),
                }
                for case_id, outcome, reason in outcomes
            ]
        else:
            whole[key] = [row for record in known.values() for row in _listed(_as_data(record))]
        plain: dict[str, Any] = finite(whole if study.subjects is None else whole | _by_name(study, subjects))
        return plain

    missing = _missing(stored, outcomes)
    code = [*_codes(study, subjects)] if everything or len(subjects) == 1 else []
    room = SCREEN - len(missing) - sum(pasted.text.count("\n") + 2 for pasted in code)

    def sections() -> list[Section]:
        if everything:
            return [_unfolded(section(study, subject.case, subject.found)) for subject in subjects]
        if len(subjects) > 1 and all(any(study.conclusions(subject.case, subject.found)) for subject in subjects):
            return [_listing(study, subjects, room)]
        return [_on_screen(study, subject, room // len(subjects)) for subject in subjects]

    return Document(
        sections=sections,
        data=data,
        columns=[*(["case_id"] if study.subjects is None else []), *(column.key for column in first.columns)],
        rows=lambda: [
            row
            for subject in subjects
            for row in rows_of(first, subject)
            if not kind.of_cases or row["case_id"] in case_ids
        ],
        missing=missing,
        code=code,
    )


def _missing(stored: StoredRun, outcomes: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return a line for each reason why cases have no result, or a part of one."""
    labels = case_labels(stored.cases[case_id] for case_id, _, _ in outcomes)
    reasons: dict[str, list[str]] = {}
    for case_id, outcome, reason in outcomes:
        if reason:
            became = "the rest was not measured" if outcome == "ok" else outcome
            reasons.setdefault(f"{became}: {reason}", []).append(labels[case_id])
    return [f"{few(names)}: {reason}" for reason, names in reasons.items()]


def rows_of(table: "Table[Found, Any]", subject: Subject[Found]) -> list[dict[str, Any]]:
    """Return the rows of a subject for machines, with the id of its case."""
    rows = records(table.columns, table.rows(subject.found))
    return [{"case_id": subject.case.case_id, **row} for row in rows] if subject.case else rows


def _concluded(study: "Study[Any, Found]", subject: Subject[Found]) -> dict[str, Any]:
    """Return the conclusions and tables of a case for JSON."""
    assert subject.case is not None
    statements = list(study.conclusions(subject.case, subject.found))
    code = study.code(subject.case, subject.found)
    return {
        "sentences": study_words.lines(statements),
        **({"code": code} if code else {}),
        "statements": [asdict(statement) for statement in statements],
        "tables": _tables(study, [subject]),
    }


def _by_name(study: "Study[Any, Any]", subjects: Sequence[Subject[Any]]) -> dict[str, Any]:
    """Return the conclusions and tables of subjects by name, for JSON."""
    statements = {subject.name: list(study.conclusions(None, subject.found)) for subject in subjects}
    return {
        "sentences": {name: study_words.lines(concluded) for name, concluded in statements.items()},
        "statements": {name: [asdict(statement) for statement in concluded] for name, concluded in statements.items()},
        "tables": _tables(study, subjects),
    }


def _tables(study: "Study[Any, Any]", subjects: Iterable[Subject[Any]]) -> dict[str, list[dict[str, Any]]]:
    subjects = [Subject(subject.name, subject.found) for subject in subjects]
    return {
        table.key: [row for subject in subjects for row in rows_of(table, subject)]
        for table in study.tables
        if table.key
    }


def _listed(data: Any) -> list[Any]:
    return data if isinstance(data, list) else [data]


def _codes(study: "Study[Any, Any]", subjects: Sequence[Subject[Any]]) -> Iterator[Code]:
    """Yield the code to paste of each case with code."""
    for subject in subjects:
        if subject.case and (text := study.code(subject.case, subject.found)):
            yield Code("To paste" if len(subjects) == 1 else f"To paste for {subject.name}", text)


def _as_data(record: Any) -> Any:
    return [_as_data(item) for item in record] if isinstance(record, list) else record_data(record)


def section(study: "Study[Any, Found]", case: Case | None, record: Found) -> Section:
    """Return the conclusions, tables and remarks of a study on a case."""
    sentences = _sentences([*study.conclusions(case, record)])
    tables = [_block(shape, view, record) for shape in study.tables for view in shape.views]
    return Section(
        " · ".join(filter(None, [case_title(case) if case else "", study.heading(record)])),
        [
            *map(Block, sentences),
            *(block for block in tables if block.rows),
            *(Block(as_sentence(note)) for note in study.remarks(record)),
        ],
    )


def _block(shape: "Table[Found, Any]", view: "View[Any]", record: Found) -> Block:
    chosen = picked(shape.columns, *view.keys.split()) if view.keys else shape.columns
    return table(view.title, chosen, [*filter(view.only, shape.rows(record))], view.note, folded=view.folded)


def _on_screen(study: "Study[Any, Found]", subject: Subject[Found], room: int) -> Section:
    """Return the section of a subject in `room` lines: its tables' first rows, folded ones only where all fits."""
    whole = section(study, subject.case, subject.found)
    room -= len(wrapped(whole.title, WIDTH)) + 2
    if sum(len(block.rows) for block in whole.blocks) < room and sum(map(_lines, whole.blocks)) <= room:
        return _unfolded(whole)
    blocks = []
    for block in whole.blocks:
        most = bisect_right(range(1, min(len(block.rows), ROWS) + 1), room, key=lambda rows: _lines(cut(block, rows)))
        fits = most >= min(FEWEST, len(block.rows)) if block.rows else _lines(block) <= room
        if fits and not block.folded:
            blocks.append(cut(block, most) if block.rows else block)
            room -= _lines(blocks[-1])
    return Section(whole.title, [*blocks, Block(as_sentence(REST))])


def _unfolded(whole: Section) -> Section:
    return Section(whole.title, [replace(block, folded=False) for block in whole.blocks])


def _lines(block: Block) -> int:
    """Return the lines that a block takes, with a blank one before a table."""
    return len(block_lines(block, WIDTH)) + bool(block.rows)


def _listing(study: "Study[Any, Any]", subjects: Sequence[Subject[Any]], room: int) -> Section:
    """Return a table with a row for each subject, the most problems first, in `room` lines.

    A row has the first conclusion and, where there is room, the next problem or conclusion.
    """
    cases = [subject.case for subject in subjects if subject.case]
    precisions = {case.precision for case in cases}
    labels = case_labels(cases, precision=len(precisions) > 1)
    traits = [*(precisions if len(precisions) == 1 else []), common_traits(cases)]
    concluded = [(subject, [*study.conclusions(subject.case, subject.found)]) for subject in subjects]
    concluded.sort(key=lambda row: problems(row[1]), reverse=True)
    rows = []
    for subject, statements in concluded:
        name = labels[subject.case.case_id] if subject.case else subject.name
        further = sorted(statements[1:], key=lambda statement: statement.severity is not Severity.PROBLEM)
        rows.append([name, *(" ".join(_sentences([*statements[:1], *others])) for others in (further[:1], []))])
    listed = Block("", [study.subject, "answer"], [row[:2] for row in rows])
    if _lines(listed) > room - 3:
        listed = Block("", listed.headers, [[name, answer] for name, _, answer in rows])
    most = bisect_right(range(1, len(rows) + 1), room - 3, key=lambda length: _lines(cut(listed, length)))
    title = " · ".join(filter(None, [counted(len(subjects), study.subject), *traits]))
    return Section(title, [cut(listed, most), Block(as_sentence(REST))])


def _sentences(statements: Sequence[Statement]) -> list[str]:
    names = {statement.subject for statement in statements}
    return [as_sentence(line, names) for line in study_words.lines(statements)]


def problems(statements: Iterable[Statement]) -> int:
    """Return the number of problems among statements."""
    return sum(statement.severity is Severity.PROBLEM for statement in statements)


def part(study: "Study[Any, Found]", held: Held[Found]) -> Part | None:
    """Return a study's part of a page, the cases with the most problems first; None without any."""
    subjects = [Subject(case.name, case.found, case.case) for case in held.told]
    if study.subjects is not None:
        subjects = [Subject(subject.name, subject) for subject in study.subjects(held.runs, None)]  # type: ignore[attr-defined]
    concluded = {id(subject): list(study.conclusions(subject.case, subject.found)) for subject in subjects}

    subjects.sort(key=lambda subject: problems(concluded[id(subject)]), reverse=True)
    return told_part(
        held,
        subjects,
        lambda subject: section(study, subject.case, subject.found),
        id=study.kind,
        title=study.title,
        drawings=study.charts,
        code=lambda subject: study.code(subject.case, subject.found),
        finding=lambda subject: next(iter(study_words.lines(concluded[id(subject)])), ""),
    )


def _outcomes(stored: StoredRun, case_ids: Iterable[str], known: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the id of each case, its outcome, and why it failed, as a whole or in part, or was skipped."""
    for case_id in case_ids:
        failure, skip = stored.failures.get(case_id), stored.skips.get(case_id)
        if case_id in known:
            yield case_id, "ok", failure.said if failure else ""
        elif failure is not None:
            yield case_id, "failed", failure.said
        else:
            yield case_id, "skipped", skip.reason if skip else NOT_REACHED


def case_title(case: Case) -> str:
    """Return the traits of a case in one line."""
    parts = [case.group, case.precision, case.phase, case.device, *([] if case.scaler else ["no scaler"])]
    if case.precision in PRECISIONS and case.input_dtype != SHORT_DTYPES[PRECISIONS[case.precision].storage]:
        parts.append(f"inputs in {case.input_dtype}")
    return " · ".join(parts)

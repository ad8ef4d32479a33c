"""What an instrument saw of each case of a run, and what became of the cases without a result, as one document."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.records.case import Case
from ampbench.records.labels import NOT_REACHED
from ampbench.show.data import finite, record_data
from ampbench.show.document import Code, Column, Document, Section, records
from ampbench.store import StoredRun

Found = TypeVar("Found")
"""What was seen of a case."""
Row = TypeVar("Row")
"""Of what a flat row tells."""


def document_of_cases(
    stored: StoredRun,
    case_ids: Sequence[str],
    passes: Mapping[str, Found],
    *,
    section: Callable[[Case, Found], Section],
    data: Callable[[Case, Found], Mapping[str, Any]],
    columns: Sequence[Column[Row]],
    rows: Callable[[Found], Sequence[Row]],
    begun: Mapping[str, str] = MappingProxyType({}),
    code: Sequence[Code] = (),
) -> Document:
    """Return what a run saw, `passes`, of each of the cases `case_ids`, and what became of those without one.

    For people each is a `section`, then comes `code`. Nested data have the fields of `data` beside what the case is and
    what became of it; flat ones the `columns` of its `rows`, the case's id first. `begun` says how far cases got that
    have no pass because the run ended before.
    """
    seen = [case_id for case_id in case_ids if case_id in passes]
    return Document(
        sections=lambda: [section(stored.cases[case_id], passes[case_id]) for case_id in seen],
        data=lambda: nested_data(stored, case_ids, passes, data, begun),
        columns=["case_id", *(column.key for column in columns)],
        rows=lambda: [
            {"case_id": case_id, **row} for case_id in seen for row in records(columns, rows(passes[case_id]))
        ],
        missing=missing_said(stored, case_ids, passes, begun),
        code=code,
    )


def missing_said(
    stored: StoredRun, case_ids: Iterable[str], passes: Collection[str], begun: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Return a line for each case without a pass: what became of it, and why."""
    found = outcomes(stored, case_ids, passes, begun)
    return [f"{case_id}: {outcome}: {reason}" for case_id, outcome, reason in found if reason]


def nested_data(
    stored: StoredRun,
    case_ids: Sequence[str],
    passes: Mapping[str, Found],
    data: Callable[[Case, Found], Mapping[str, Any]],
    begun: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return a run as plain data: each case's pass, with the fields of its `data`, or why it has none."""
    cases = []
    for case_id, outcome, reason in outcomes(stored, case_ids, passes, begun):
        case = stored.cases[case_id]
        known = {"case_id": case_id, "case": record_data(case), "outcome": outcome, "reason": reason or None}
        cases.append({**known, **(data(case, passes[case_id]) if case_id in passes else {})})
    header = stored.header
    told = {"run": header.run, "environment": record_data(header.environment), "ended": stored.ending, "cases": cases}
    return {name: finite(value) for name, value in told.items()}


def outcomes(
    stored: StoredRun, case_ids: Iterable[str], passes: Collection[str], begun: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Yield the id of each case, its outcome and, unless that is "ok", the reason."""
    for case_id in case_ids:
        failure, skip = stored.failures.get(case_id), stored.skips.get(case_id)
        if case_id in passes:
            yield case_id, "ok", ""
        elif failure is not None:
            yield case_id, "failed", failure.said
        elif case_id in begun and skip is None:
            yield case_id, "interrupted", begun[case_id]
        else:
            yield case_id, "skipped", skip.reason if skip else NOT_REACHED


def case_title(case: Case) -> str:
    """Return what a case is, in one line."""
    parts = [case.group, case.precision, case.phase, case.device, *([] if case.scaler else ["no scaler"])]
    if case.precision in PRECISIONS and case.input_dtype != SHORT_DTYPES[PRECISIONS[case.precision].storage]:
        parts.append(f"inputs in {case.input_dtype}")
    return " · ".join(parts)

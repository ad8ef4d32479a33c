"""What was seen of a run's cases on stdout: sections for people, flat rows and documents for machines."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from ampbench.cli.data import csv_text, json_document, plain
from ampbench.cli.options import OutputFormat
from ampbench.cli.printing import print_note, print_text
from ampbench.cli.sections import print_sections
from ampbench.labels import NOT_REACHED

if TYPE_CHECKING:
    import pandas as pd

    from ampbench.blocks import Section
    from ampbench.records.cases import Case
    from ampbench.store import StoredRun

Found = TypeVar("Found")
"""What was seen of a case."""


def print_passes(
    stored: "StoredRun",
    case_ids: Sequence[str],
    format: OutputFormat,
    passes: Mapping[str, Found],
    *,
    section: "Callable[[Case, Found], Section]",
    document: "Callable[[Case, Found], dict[str, Any]]",
    rows: Callable[[Found], list[dict[str, Any]]],
    columns: Sequence[str],
    begun: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print `passes`, what a run saw of each of the cases `case_ids`, and what became of those without one.

    For people each is a `section`; JSON has the fields of its `document` beside what the case is and what became of it;
    CSV has its `rows` of `columns`, the case's id first. `begun` says how far cases got that have none because the run
    ended before.
    """
    if format is OutputFormat.JSON:
        print_text(json_document(pass_document(stored, case_ids, passes, document, begun)))
    elif format is OutputFormat.CSV:
        print_text(_csv(case_ids, passes, rows, columns))
    else:
        sections = [section(stored.cases[case_id], passes[case_id]) for case_id in case_ids if case_id in passes]
        missing = [
            f"{case_id}: {outcome}: {reason}"
            for case_id, outcome, reason in outcomes(stored, case_ids, passes, begun)
            if reason
        ]
        print_sections(sections, format, missing=missing)


def print_failures(stored: "StoredRun", format: OutputFormat) -> None:
    """Print on stderr which cases failed where the data on stdout, a CSV, has no place for them."""
    if format is OutputFormat.CSV:
        for failure in stored.failures.values():
            print_note(f"failed: {failure.case_id}: {failure.said}")


def telling(show: "Callable[..., None]", format: OutputFormat, *, everything: bool) -> "Callable[[StoredRun], None]":
    """Return what prints a run by `show`, as each `print_stored` does, and then its failures."""

    def tell(stored: "StoredRun") -> None:
        show(stored, list(stored.cases), format, everything=everything)
        print_failures(stored, format)

    return tell


def frame_rows(frame: "pd.DataFrame", whole: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the rows of a frame as plain values; the columns `whole` are integers even if gaps made them floats."""
    columns = {name: frame[name].astype(object).tolist() for name in frame.columns}
    return [
        {name: _whole(value) if name in whole else plain(value) for name, value in zip(columns, row, strict=True)}
        for row in zip(*columns.values(), strict=True)
    ]


def outcomes(
    stored: "StoredRun", case_ids: Iterable[str], passes: Collection[str], begun: Mapping[str, str]
) -> Iterable[tuple[str, str, str]]:
    """Yield the id of each case, its outcome and, unless that is "ok", the reason; `begun` as for `print_passes`."""
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


def pass_document(
    stored: "StoredRun",
    case_ids: Sequence[str],
    passes: Mapping[str, Found],
    document: "Callable[[Case, Found], dict[str, Any]]",
    begun: Mapping[str, str],
) -> dict[str, Any]:
    """Return a run as plain data: each case's pass, with the fields of its `document`, or why it has none."""
    cases = []
    for case_id, outcome, reason in outcomes(stored, case_ids, passes, begun):
        case = stored.cases[case_id]
        known = {"case_id": case_id, "case": asdict(case), "outcome": outcome, "reason": reason or None}
        cases.append(known | (document(case, passes[case_id]) if case_id in passes else {}))
    header = stored.header
    told = {"run": header.run, "environment": asdict(header.environment), "ended": stored.ending, "cases": cases}
    return {name: finite(value) for name, value in told.items()}


def _csv(
    case_ids: Sequence[str],
    passes: Mapping[str, Found],
    rows: Callable[[Found], list[dict[str, Any]]],
    columns: Sequence[str],
) -> str:
    found = [(case_id, row) for case_id in case_ids if case_id in passes for row in rows(passes[case_id])]
    return csv_text(["case_id", *columns], ([case_id, *(row[name] for name in columns)] for case_id, row in found))


def _whole(value: Any) -> int | None:
    found = plain(value)
    return None if found is None else int(found)


def finite(value: Any) -> Any:
    """Return nested data with None for numbers that JSON does not have; what was read from a file has none."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value

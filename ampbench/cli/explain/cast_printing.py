"""The casts of a run's cases on stdout: sections for people, flat rows and documents for machines."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from ampbench.casts import blocks, costs, graphs, summary, tables
from ampbench.casts.views import By
from ampbench.cli.options import OutputFormat
from ampbench.cli.printing import print_text
from ampbench.cli.sections import print_sections
from ampbench.cli.tables import csv_text, json_document, plain

if TYPE_CHECKING:
    import pandas as pd

    from ampbench.records.cases import Case
    from ampbench.records.casts import CastPass, CastTrace
    from ampbench.records.measurements import Failure
    from ampbench.store import StoredRun

FRAMES: "Mapping[By, Callable[[CastTrace], pd.DataFrame]]" = {
    By.OP: tables.op_frame,
    By.MODULE: tables.module_frame,
    By.TENSOR: tables.tensor_frame,
    By.CAST: tables.cast_frame,
    By.WEIGHT: tables.weight_frame,
}
"""The tables that machine formats give."""


def print_casts(
    stored: "StoredRun",
    case_ids: Sequence[str],
    format: OutputFormat,
    by: By | None = None,
    *,
    everything: bool = False,
) -> None:
    """Print what a run saw of the cases `case_ids`: `by` what (default: the summary; for CSV: each cast).

    JSON has the table `by` beside the pass, if one is asked for: all of them are derived from the pass.
    """
    if format is OutputFormat.JSON:
        print_text(json_document(_document(stored, case_ids, by)))
    elif format is OutputFormat.CSV:
        print_text(_csv(stored, case_ids, by or By.CAST))
    else:
        sections = [
            blocks.section(stored.cases[case_id], stored.casts[case_id], by or By.SUMMARY, everything=everything)
            for case_id in case_ids
            if case_id in stored.casts
        ]
        missing = [f"{case_id}: {said}" for case_id, said in _outcomes(stored, case_ids) if said != "ok"]
        print_sections(sections, format, numbers=blocks.NUMBERS, missing=missing)


def _outcomes(stored: "StoredRun", case_ids: Iterable[str]) -> Iterable[tuple[str, str]]:
    for case_id in case_ids:
        failure, skip = stored.failures.get(case_id), stored.skips.get(case_id)
        if case_id in stored.casts:
            yield case_id, "ok"
        elif failure is not None:
            yield case_id, f"failed: {failure_said(failure)}"
        else:
            yield case_id, f"skipped: {skip.reason if skip else 'not traced before the run ended'}"


def failure_said(failure: "Failure") -> str:
    """Return why a case failed: the message of an exception, which names its class, else the cause before it."""
    return failure.message if failure.cause == "exception" else f"{failure.cause}: {failure.message}"


def _document(stored: "StoredRun", case_ids: Sequence[str], by: By | None) -> dict[str, Any]:
    """Return a run as plain data: each case's pass, and what is derived from it."""
    cases = []
    for case_id, said in _outcomes(stored, case_ids):
        outcome, _, reason = said.partition(": ")
        case = {"case_id": case_id, "case": asdict(stored.cases[case_id]), "outcome": outcome, "reason": reason or None}
        found = stored.casts.get(case_id)
        cases.append(case if found is None else case | _case_document(found, stored.cases[case_id], by))
    header = stored.header
    return {"run": header.run, "environment": asdict(header.environment), "ended": stored.ending, "cases": cases}


def _case_document(found: "CastPass", case: "Case", by: By | None) -> dict[str, Any]:
    whole, savings = summary.totals(found.trace), summary.savings(found.trace)
    shown = [one for one in FRAMES if one is by]
    return {
        "sentence": costs.casts_said(found, case, whole, savings),
        "totals": _totals(whole),
        "costs": asdict(costs.costs(found, whole)),
        "checked": [{"change": one.change, **asdict(costs.saved_time(one))} for one in found.checked],
        "savings": [asdict(saving) for saving in savings],
        "tables": {by.value: _records(FRAMES[by](found.trace)) for by in shown},
        "graphs": [
            {
                "graph": graph.graph,
                "sentence": graphs.graph_sentence(found.trace, graph),
                "differences": [asdict(one) for one in graphs.compare_graph(found.trace, graph)],
            }
            for graph in found.graphs
        ],
        "casts": asdict(found),
    }


def _totals(whole: "summary.Totals") -> dict[str, Any]:
    found = {field.name: getattr(whole, field.name) for field in fields(whole)}
    return found | {"bytes_moved": whole.bytes_moved}


def _csv(stored: "StoredRun", case_ids: Sequence[str], by: By) -> str:
    """Return the table `by` of each case as rows, the case's id first."""
    headers: list[str] = []
    rows: list[list[Any]] = []
    for case_id in case_ids:
        found = stored.casts.get(case_id)
        for row in [] if found is None else _rows(found, by):
            headers = headers or list(row)
            rows.append([case_id, *row.values()])
    return csv_text(["case_id", *headers], rows)


def _rows(found: "CastPass", by: By) -> list[dict[str, Any]]:
    if by is not By.SUMMARY:
        return _records(FRAMES[by](found.trace))
    whole = summary.totals(found.trace)
    saved = [index for saving in summary.savings(found.trace) for index in saving.casts]
    known = costs.costs(found, whole)
    counts = {f"casts_of_{what}": whole.by_what.get(what, 0) for what in tables.KINDS}
    return [
        {
            "how": found.how,
            "ops": whole.ops,
            "casts": whole.casts,
            **counts,
            "could_be_saved": len(saved),
            "bytes_read": whole.bytes_read,
            "bytes_written": whole.bytes_written,
            **asdict(known) | {"doubts": "; ".join(known.doubts)},
            "cache_bytes": whole.cache_bytes,
            "peak_bytes": found.peak_bytes,
            "memory_source": found.memory_source,
        }
    ]


def _records(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return the rows of a frame as plain values, counts as integers."""
    columns = {name: frame[name].astype(object).tolist() for name in frame.columns}
    whole = {name for name in columns if name in _WHOLE}
    return [
        {name: _whole(value) if name in whole else plain(value) for name, value in zip(columns, row, strict=True)}
        for row in zip(*columns.values(), strict=True)
    ]


_WHOLE = frozenset(
    {"operation", "elements", "bytes_read", "bytes_written", "tensor", "made_by", "cast", "cast_bytes", "bytes_moved"}
)
"""Columns of integers, which a frame with gaps holds as floats."""


def _whole(value: Any) -> int | None:
    found = plain(value)
    return None if found is None else int(found)

"""The casts of a run's cases on stdout: sections for people, flat rows and documents for machines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from ampbench.cli.explaining import frame_rows, print_passes
from ampbench.cli.printing import OutputFormat
from ampbench.instruments.casts import findings, show
from ampbench.judge.notes import emulation_statement
from ampbench.present.document import Block, Section
from ampbench.records import cast_frames, cast_totals
from ampbench.records.beside import saved_time
from ampbench.records.casts import By, CastPass, CastTrace
from ampbench.records.rules import FAKE

if TYPE_CHECKING:
    import pandas as pd

    from ampbench.records.case import Case
    from ampbench.store import StoredRun

FRAMES: "Mapping[By, Callable[[CastTrace], pd.DataFrame]]" = {
    By.OP: cast_frames.op_frame,
    By.MODULE: cast_frames.module_frame,
    By.TENSOR: cast_frames.tensor_frame,
    By.CAST: cast_frames.cast_frame,
    By.WEIGHT: cast_frames.weight_frame,
}
"""The tables that machine formats give."""


def print_stored(
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

    def section(case: "Case", found: CastPass) -> Section:
        made = show.section(case, found, by or By.SUMMARY, everything=everything)
        emulated = emulation_statement(case, stored.header.environment) if found.how != FAKE else ""
        return Section(made.title, [*made.blocks, *([Block(emulated)] if emulated else [])])

    print_passes(
        stored, case_ids, format, stored.of(CastPass),
        section=section,
        document=lambda case, found: _document(case, found, by),
        rows=lambda found: _rows(found, by or By.CAST),
        columns=_columns(by or By.CAST),
    )  # fmt: skip


def _document(case: "Case", found: "CastPass", by: By | None) -> dict[str, Any]:
    whole, savings = cast_totals.totals(found.trace), cast_totals.savings(found.trace)
    shown = [one for one in FRAMES if one is by]
    return {
        "sentence": findings.casts_said(found, case, whole, savings),
        "totals": _totals(whole),
        "costs": asdict(findings.costs(found, whole)),
        "checked": [{"change": one.change, **asdict(saved_time(one))} for one in found.checked],
        "savings": [asdict(saving) for saving in savings],
        "tables": {by.value: frame_rows(FRAMES[by](found.trace), _WHOLE) for by in shown},
        "graphs": [
            {
                "graph": graph.graph,
                "sentence": findings.graph_sentence(found.trace, graph),
                "differences": [asdict(one) for one in findings.compare_graph(found.trace, graph)],
            }
            for graph in found.graphs
        ],
        "casts": asdict(found),
    }


def _totals(whole: cast_totals.Totals) -> dict[str, Any]:
    found = {field.name: getattr(whole, field.name) for field in fields(whole)}
    return found | {"bytes_moved": whole.bytes_moved}


def _columns(by: By) -> Sequence[str]:
    """Return the columns of a table: those that it has of a step without ops, too."""
    nothing = CastPass(case_id="", how="", trace=CastTrace())
    return list(_rows(nothing, by)[0] if by is By.SUMMARY else FRAMES[by](nothing.trace).columns)


def _rows(found: "CastPass", by: By) -> list[dict[str, Any]]:
    if by is not By.SUMMARY:
        return frame_rows(FRAMES[by](found.trace), _WHOLE)
    whole = cast_totals.totals(found.trace)
    saved = [index for saving in cast_totals.savings(found.trace) for index in saving.casts]
    known = findings.costs(found, whole)
    counts = {f"casts_of_{what}": whole.by_what.get(what, 0) for what in cast_frames.KINDS}
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
            "peak_memory_bytes": found.peak_bytes,
            "memory_source": found.memory_source,
        }
    ]


_WHOLE = frozenset(
    {"operation", "elements", "bytes_read", "bytes_written", "tensor", "made_by", "cast", "cast_bytes", "bytes_moved"}
)
"""Columns of integers, which a frame with gaps holds as floats."""

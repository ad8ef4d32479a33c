"""The casts of a run's cases on stdout: sections for people, flat rows and documents for machines."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Literal

from ampbench.casts import blocks, paths, summary, tables
from ampbench.casts.views import By
from ampbench.cli.options import OutputFormat
from ampbench.cli.printing import make_console, print_block, print_text
from ampbench.cli.tables import csv_text, json_document, plain
from ampbench.markdown import escaped, markdown_table

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType
    from rich.table import Table

    from ampbench.blocks import Block, Section
    from ampbench.records.casts import CastPass, CastTrace
    from ampbench.store import StoredRun

INDENT, GAP = 4, 2
"""Blanks before a table and between its columns."""
MIN_WIDTH = 10
"""A column that folds gets at least so much room, if it needs it."""
FOLDING = frozenset({"module", "tensor", "change", "what", "called as", "for op", "dtypes"})
"""Headers of columns that fold where a line is too narrow, as the last one does: names and sentences."""


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
    """Print what a run saw of the cases `case_ids`: `by` what (default: the summary; for CSV: each cast)."""
    if format is OutputFormat.JSON:
        print_text(json_document(_document(stored, case_ids)))
    elif format is OutputFormat.CSV:
        print_text(_csv(stored, case_ids, by or By.CAST))
    else:
        sections = [
            blocks.section(stored.cases[case_id], stored.casts[case_id], by or By.SUMMARY, everything=everything)
            for case_id in case_ids
            if case_id in stored.casts
        ]
        missing = [f"{case_id}: {said}" for case_id, said in _outcomes(stored, case_ids) if said != "ok"]
        if format is OutputFormat.MARKDOWN:
            print_text(_markdown(sections, missing))
        else:
            _print_sections(sections, missing)


def _outcomes(stored: "StoredRun", case_ids: Iterable[str]) -> Iterable[tuple[str, str]]:
    for case_id in case_ids:
        failure, skip = stored.failures.get(case_id), stored.skips.get(case_id)
        if case_id in stored.casts:
            yield case_id, "ok"
        elif failure is not None:
            yield case_id, f"failed: {failure.cause}: {failure.message}"
        else:
            yield case_id, f"skipped: {skip.reason if skip else 'not traced before the run ended'}"


def _document(stored: "StoredRun", case_ids: Sequence[str]) -> dict[str, Any]:
    """Return a run as plain data: each case's pass, and what is derived from it."""
    cases = []
    for case_id, said in _outcomes(stored, case_ids):
        outcome, _, reason = said.partition(": ")
        case = {"case_id": case_id, "case": asdict(stored.cases[case_id]), "outcome": outcome, "reason": reason or None}
        found = stored.casts.get(case_id)
        cases.append(case if found is None else case | _case_document(found))
    header = stored.header
    return {"run": header.run, "environment": asdict(header.environment), "ended": stored.ending, "cases": cases}


def _case_document(found: "CastPass") -> dict[str, Any]:
    whole, savings = summary.totals(found.trace), summary.savings(found.trace)
    return {
        "sentence": summary.sentence(whole, savings, found.step_seconds),
        "totals": _totals(whole),
        "savings": [asdict(saving) for saving in savings],
        "tables": {by.value: _records(frame(found.trace)) for by, frame in FRAMES.items()},
        "graphs": [
            {
                "graph": graph.graph,
                "sentence": paths.graph_sentence(found.trace, graph),
                "differences": [asdict(one) for one in paths.compare_graph(found.trace, graph)],
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
            "cast_seconds": whole.seconds,
            "share_of_ops": whole.share,
            "step_seconds": found.step_seconds,
            "step_low": found.step_low,
            "step_high": found.step_high,
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


def _markdown(sections: Iterable["Section"], missing: Iterable[str]) -> str:
    parts = []
    for section in sections:
        parts.append(f"## {escaped(section.title)}")
        for block in section.blocks:
            parts.append(f"### {escaped(block.title)}" if block.rows else escaped(block.title))
            parts.append(escaped(f"{block.note[:1].upper()}{block.note[1:]}.") if block.note else "")
            left = [name for name in block.headers if name not in blocks.NUMBERS]
            parts.append(markdown_table(block.headers, block.rows, left=left) if block.rows else "")
    return "\n\n".join(filter(None, [*parts, *map(escaped, missing)])) + "\n"


def _print_sections(sections: Sequence["Section"], missing: Sequence[str]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console = make_console()

    def show(block: "RenderableType", *, above: int = 0, left: int = 0) -> None:
        print_block(console, Padding(block, (above, 0, 0, left)))

    for place, section in enumerate(sections):
        show(Text(section.title, style="bold"), above=1 if place else 0)
        table_before = False
        for block in section.blocks:
            if not block.rows:
                show(Text.assemble(block.title, (f" {block.note}" if block.note else "", "dim")),
                     above=1 if table_before else 0, left=2)  # fmt: skip
            else:
                note = f" ({block.note})" if block.note else ""
                show(Text.assemble((block.title, "bold"), (note, "dim")), above=1, left=2)
                show(_table(block, console.width - INDENT), left=INDENT)
            table_before = bool(block.rows)
    for place, line in enumerate(missing):
        show(Text(line), above=1 if sections and not place else 0)


def _table(block: "Block", room: int) -> "Table":
    """Return a table without lines: numbers to the right, names folding where there is no room."""
    from rich.cells import cell_len
    from rich.table import Table

    natural = [max(map(cell_len, column)) for column in zip(block.headers, *block.rows, strict=True)]
    last = len(natural) - 1
    folding = {place for place, name in enumerate(block.headers) if name in FOLDING or place == last}
    fixed = sum(width for place, width in enumerate(natural) if place not in folding)
    widths = _shared({place: natural[place] for place in folding}, room - fixed - GAP * last)
    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="dim", show_edge=False, pad_edge=False)
    for place, name in enumerate(block.headers):
        justify: Literal["left", "right"] = "right" if name in blocks.NUMBERS else "left"
        width = widths.get(place, natural[place])
        table.add_column(name, justify=justify, no_wrap=place not in folding, overflow="fold", width=width)
    for row in block.rows:
        table.add_row(*row)
    return table


def _shared(natural: Mapping[int, int], room: int) -> dict[int, int]:
    """Return widths of columns that together fit `room`: each what it needs, the wide ones what is left in equal parts.

    None is narrower than `MIN_WIDTH` unless it needs less.
    """
    widths: dict[int, int] = {}
    for place, width in sorted(natural.items(), key=lambda item: item[1]):
        part = max(room // (len(natural) - len(widths)), MIN_WIDTH)
        widths[place] = min(width, part)
        room -= widths[place]
    return widths

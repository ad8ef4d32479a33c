"""The rules of autocast on stdout: sections for people, flat rows and documents for machines."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ampbench.blocks import Block, Section
from ampbench.cli.options import OutputFormat
from ampbench.cli.printing import make_console, print_block, print_text
from ampbench.cli.tables import csv_text, json_document
from ampbench.markdown import escaped, markdown_table
from ampbench.records.rules import RuleProbe
from ampbench.records.runs import Header
from ampbench.rules import blocks
from ampbench.rules.judging import compare_rules, find_disagreements

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = (
    "op", "overload", "device", "dtype", "xpu_reference", "pytorch_page", "registered", "observed", "how", "reason",
    "fp64", "integer", "in-place", "out=", "dtype=", "disagreements",
)  # fmt: skip
"""Of a CSV: an observation a row; variants of the call and the kinds of its disagreements at the end."""

CHANGE_COLUMNS = ("device", "field", "op", "dtypes", "before", "after")
UNFOLDED = 26
"""So long a cell stays on its line; longer ones fold, and those of the last column always may."""


def print_probes(
    header: Header, probes: Sequence[RuleProbe], format: OutputFormat, *, everything: bool = False
) -> None:
    """Print `probes` of a run with this `header`.

    `everything` lists every op in a table or in Markdown too, which other formats always do.
    """
    if format is OutputFormat.JSON:
        found = [
            asdict(probe) | {"disagreements": [asdict(one) for one in find_disagreements(probe)]} for probe in probes
        ]
        told = {"run": header.run, "note": blocks.where_observed(probes), "environment": asdict(header.environment)}
        print_text(json_document(told | {"probes": found}))
    elif format is OutputFormat.CSV:
        print_text(csv_text(COLUMNS, (row for probe in probes for row in _rows(probe))))
    else:
        _print_sections(blocks.report(probes, everything), format)


def print_changes(pairs: Sequence[tuple[RuleProbe, RuleProbe]], format: OutputFormat) -> None:
    """Print what changed between the two probes of each pair."""
    if format is OutputFormat.JSON:
        found = [
            {
                "device": after.device,
                "before": {"torch_version": before.torch_version, "how": before.how},
                "after": {"torch_version": after.torch_version, "how": after.how},
                "changes": [asdict(one) for one in compare_rules(before, after)],
            }
            for before, after in pairs
        ]
        print_text(json_document(found))
    elif format is OutputFormat.CSV:
        changes = [one for before, after in pairs for one in compare_rules(before, after)]
        rows = ([one.device, one.field, one.op, " ".join(one.dtypes), one.before, one.after] for one in changes)
        print_text(csv_text(CHANGE_COLUMNS, rows))
    else:
        _print_sections(blocks.changes(pairs), format)


def markdown(sections: Iterable[Section], level: int = 2) -> str:
    """Return `sections` as Markdown, with titles from `level` on."""
    parts = []
    for section in sections:
        parts.append(_heading(section.title, level))
        for block in section.blocks:
            parts.append(_heading(block.title, level + 1) if block.rows else block.title)
            parts.append(f"{escaped(block.note[:1].upper() + block.note[1:])}." if block.note else "")
            parts.append(markdown_table(block.headers, block.rows, left=block.headers) if block.rows else "")
    return "\n\n".join(filter(None, parts)) + "\n"


def _heading(title: str, level: int) -> str:
    return f"{'#' * level} {escaped(title)}" if title else ""


def _print_sections(sections: Sequence[Section], format: OutputFormat) -> None:
    if format is OutputFormat.MARKDOWN:
        print_text(markdown(sections))
        return
    from rich.padding import Padding
    from rich.text import Text

    console = make_console()
    for place, section in enumerate(sections):
        print_block(console, Text(("\n" if place else "") + section.title, style="bold"))
        for block in section.blocks:
            if block.title or block.note:
                between = ": " if block.title and block.note else ""
                note = Text.assemble((block.title, "bold"), (between + block.note, "dim"))
                print_block(console, Padding(note, (1, 0, 0, 2)))
            if block.rows:
                print_block(console, Padding(_table(block), (0, 0, 0, 4)))


def _table(block: Block) -> "Table":
    """Return a table without lines; what is long folds, the rest stays on its line."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False, pad_edge=False)
    for place, name in enumerate(block.headers):
        folds = place == len(block.headers) - 1 or max(len(row[place]) for row in block.rows) > UNFOLDED
        kept = UNFOLDED if folds and place < len(block.headers) - 1 else None
        table.add_column(name, no_wrap=not folds, overflow="fold", min_width=kept)
    for row in block.rows:
        table.add_row(*row)
    return table


def _rows(probe: RuleProbe) -> Iterable[list[object]]:
    """Return a probe's observations as rows of `COLUMNS`."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for found in find_disagreements(probe):
        for dtype in found.dtypes:
            known = kinds.setdefault((found.op, dtype), [])
            known += [] if found.kind in known else [found.kind]
    for one in probe.observations:
        documented = [one.documented.get(source) for source in blocks.SOURCES]
        variants = [one.variants.get(name) for name in COLUMNS[10:15]]
        seen = [one.registered, one.observed, one.how, one.reason]
        named = "; ".join(kinds.get((one.name, one.dtype), []))
        yield [one.op, one.overload, one.device, one.dtype, *documented, *seen, *variants, named]

"""What `ampbench ab --control` prints: the false alarms of this machine and the changes it can see."""

import dataclasses
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ampbench.cli import tables
from ampbench.cli.data import csv_text, json_document, plain
from ampbench.cli.options import OutputFormat
from ampbench.cli.printing import make_console, print_lines, print_text
from ampbench.comparing.control import SelfComparison, judge_self
from ampbench.labels import case_labels
from ampbench.markdown import markdown_table
from ampbench.units import counted, format_percent, format_seconds

if TYPE_CHECKING:
    from ampbench.store import StoredRun
    from ampbench.verdicts import Comparison

SHOWN = 8
"""So many of the cases that spread most are listed."""
HEADERS = ("blocks", "time", "median case", "worst case")


def print_control(comparison: "Comparison", baseline: "StoredRun", format: OutputFormat) -> None:
    """Print what `comparison`, of an arm with itself, says of the machine it was measured on."""
    found = judge_self(comparison, baseline.rounds)
    rows = [
        (str(one.blocks), format_seconds(one.seconds), format_percent(one.median), format_percent(one.worst))
        for one in found.detectable
    ]
    if format is OutputFormat.JSON:
        print_text(json_document(document(found)))
    elif format is OutputFormat.CSV:
        print_text(csv_text(["case_id", "spread"], found.spreads.items()))
    elif format is OutputFormat.MARKDOWN:
        print_text("\n\n".join([*sentences(found), markdown_table(HEADERS, rows)]))
    else:
        console = make_console()
        lines = [line for said in sentences(found) for line in tables.wrapped(said, console.width)]
        widths = [max(len(cell) for cell in column) for column in zip(HEADERS, *rows, strict=True)]
        for cells in [HEADERS, *rows] if rows else []:
            text = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
            lines.append(Text(f"  {text}", style="dim" if cells is HEADERS else ""))
        if found.spreads:
            lines += [Text(), Text("spread of a block's ratio (standard deviation), the widest:")]
            names = case_labels(finding.case for finding in comparison.findings)
            widest = sorted(found.spreads, key=lambda case_id: -found.spreads[case_id])[:SHOWN]
            lines += [Text(f"  {format_percent(found.spreads[case_id]):>7}  {names[case_id]}") for case_id in widest]
        print_lines(console, lines)


def sentences(found: SelfComparison) -> list[str]:
    """Return what an arm compared with itself said, in sentences."""
    said = [f"one arm against itself: {counted(found.cases, 'case')}, {found.blocks} blocks"]
    rate = f" (95%: at most {format_percent(found.highest_rate)} of the {found.able} that could raise one, Wilson)"
    if not found.able:
        rate = ": with so few blocks, and so many cases judged together, there could be none"
    said.append(f"false alarms: {len(found.alarms)} of {counted(found.cases, 'case')}{rate}")
    said += [f"  {one.case.case_id}: {one.reason}" for one in found.alarms]
    if found.suspected:
        said.append(f"suspected and not confirmed by fresh blocks: {len(found.suspected)}")
    said.append(f"proven unchanged: {len(found.unchanged)} of {counted(found.cases, 'case')}")
    if found.unfit:
        said.append(f"no verdict, the machine was unfit: {len(found.unfit)}, such as: {found.unfit[0].reason}")
    if found.detectable:
        said.append("a slowdown is found 19 times in 20 if it is at least")
    return said


def document(found: SelfComparison) -> dict[str, Any]:
    """Return the same as data for JSON."""

    def ids(findings: Any) -> list[str]:
        return [one.case.case_id for one in findings]

    return {
        "cases": found.cases,
        "blocks": found.blocks,
        "false_alarms": ids(found.alarms),
        "suspected": ids(found.suspected),
        "unfit": ids(found.unfit),
        "unchanged": ids(found.unchanged),
        "able": found.able,
        "highest_rate": plain(found.highest_rate),
        "spreads": found.spreads,
        "detectable": [dataclasses.asdict(one) for one in found.detectable],
    }

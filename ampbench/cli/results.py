"""A run as `run` and `show` print it: table, advice and notes, or data for machines."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from ampbench import frames
from ampbench.advice import Advice, Budget, Group, Row, advise, grouped
from ampbench.cli import notes, tables
from ampbench.cli.options import OutputFormat
from ampbench.cli.printing import make_console, print_lines, print_text
from ampbench.metrics import COLUMNS

if TYPE_CHECKING:
    from ampbench.records.measurements import Round
    from ampbench.store import StoredRun


UNQUIET_SHARE = 0.2
"""With more disturbed samples than this, the reader is told."""


def run_rows(stored: "StoredRun") -> list[Row]:
    """Return one row per case of a run, as `ampbench.load` gives them, in the order of the plan."""
    return list(frames.plain_rows(frames.run_frame(stored)))


def print_result(stored: "StoredRun", rows: Sequence[Row], format: OutputFormat, budget: Budget) -> None:
    """Print `rows` of a run on stdout: as table with advice and notes, or in a machine's format.

    The advice is that of the whole run, whichever rows are shown.
    """
    if format is OutputFormat.JSON:
        print_text(tables.json_text(rows))
    elif format is OutputFormat.CSV:
        print_text(tables.csv_text(list(COLUMNS), ([row[name] for name in COLUMNS] for row in rows)))
    elif format is OutputFormat.MARKDOWN:
        print_text(markdown_text(stored, rows, budget))
    else:
        console = make_console()
        print_lines(console, result_lines(stored, rows, budget, console.width))


def markdown_text(stored: "StoredRun", rows: Sequence[Row], budget: Budget) -> str:
    """Return `rows` of a run as Markdown: the tables, the advice, the notes."""
    groups, skipped = notes.without_common_skips(grouped(rows))
    advice = _advice(stored, budget)
    said = [*notes.sweep_remarks(advice, stored.header.selection.sweeps), *_statements(stored, rows), *skipped]
    return "\n\n".join([tables.markdown(groups, advice), *said])


def result_lines(stored: "StoredRun", rows: Sequence[Row], budget: Budget, width: int) -> list[Text]:
    """Return what a terminal of `width` columns shows of a run: the table, the advice, the notes."""
    groups, skipped = notes.without_common_skips(grouped(rows))
    shown = [row for members in groups.values() for row in members]
    layouts = {phase: tables.lay_out(shown, phase, width) for phase in {group.phase for group in groups}}
    advice = _advice(stored, budget)
    lines = tables.result_lines(groups, advice, layouts)
    swept = notes.sweep_remarks(advice, stored.header.selection.sweeps)
    remarks = dict.fromkeys((*swept, *_statements(stored, rows), *skipped), "")
    remarks |= dict.fromkeys(_legend(layouts), "dim")
    if lines:
        lines.append(Text())
    for remark, style in remarks.items():
        lines += tables.wrapped(remark, width, style)
    return [*lines, Text(f"run {stored.header.run}: {stored.path}")]


def _advice(stored: "StoredRun", budget: Budget) -> dict[Group, Advice]:
    """Return the advice of the whole run, from each case's rounds without the control's."""
    rounds: dict[str, list[Round]] = {}
    for each in stored.rounds:
        if not each.control:
            rounds.setdefault(each.case_id, []).append(each)
    return advise(run_rows(stored), stored.divergence, budget, rounds)


def _statements(stored: "StoredRun", rows: Sequence[Row]) -> list[str]:
    """Return for which devices the rows speak, and what the control says where its case is among them."""
    environment, imported = stored.header.environment, stored.header.imported
    devices = [environment.device(name) for name in notes.measured_devices(rows)]
    said = [notes.device_statement(device, environment) for device in devices if device is not None]
    if imported is not None:
        said.append(notes.import_statement(imported, bool(stored.readings)))
    control = frames.control_ratio(stored)
    if control is not None and any(row["case_id"] == control.case_id for row in rows):
        said.append(control.sentence)
    disturbed = frames.disturbed_share(stored)
    if disturbed is not None and disturbed > UNQUIET_SHARE:
        said.append(
            f"this machine was not quiet: {disturbed:.0%} of the samples took over {frames.DISTURBED} times the fastest"
            " of their build, delayed by other work here or on its host; times are those of the fastest; more "
            "--rounds help"
        )
    return said


def _legend(layouts: Mapping[str, tables.Layout]) -> list[str]:
    """Return the meaning of the headers, and which columns found no room."""
    shown = dict.fromkeys(column for layout in layouts.values() for column in layout.columns)
    hidden = dict.fromkeys(column.header for layout in layouts.values() for column in layout.hidden)
    lines = [notes.legend(shown)] if any(column.legend for column in shown) else []
    if hidden:
        lines.append(f"no room for {', '.join(hidden)}: a wider terminal or --format csv shows all")
    return lines

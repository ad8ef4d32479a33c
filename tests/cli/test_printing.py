"""Lines on stderr and tables on stdout: wrapped for terminals alone, and never filled up with blanks."""

import io
import sys

import pytest
from rich.table import Table
from rich.text import Text

from ampbench.cli.printing import print_note, print_text
from ampbench.show.document import csv_text
from ampbench.show.terminal import make_console

NOTE = "run 20260131T120000Z-bench-1f9a3c: results/runs/20260131T120000Z-bench-1f9a3c.jsonl has ten cases too many"


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        """Return that it is."""
        return True


def test_a_terminal_has_notes_wrapped_between_words_with_the_rest_indented(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    print_note(NOTE)
    lines = terminal.getvalue().splitlines()
    assert len(lines) == 3
    assert [line.startswith("  ") for line in lines] == [False, True, True]
    assert [word for line in lines for word in line.split()] == NOTE.split()


HOSTILE = "a\x1b[2J\x1b]0;titleb\x9b31m c\u202ed\u200be\x00\x7f"
WRITTEN_OUT = r"a\x1b[2J\x1b]0;titleb\x9b31m c\u202ed\u200be\x00\x7f"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_commands_a_terminal_is_written_out_in_every_line_and_table(is_terminal: bool) -> None:
    stream = io.StringIO()
    console = make_console(file=stream, width=200, force_terminal=is_terminal, color_system=None)
    table = Table(HOSTILE)
    table.add_row(Text(HOSTILE, "red"))
    for block in (HOSTILE, Text(HOSTILE), table):
        console.print(block)
    assert stream.getvalue().count(WRITTEN_OUT) == 2  # a table cuts what has no width to it
    assert stream.getvalue().count(r"a\x1b[2J\x1b]0;title") == 4
    assert "".join(one for one in stream.getvalue() if not one.isprintable()).strip("\n") == ""


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_notes_and_machine_output_command_no_terminal_and_a_pipe_gets_data_as_it_is(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = {"stdout": print_text, "stderr": print_note}[name]
    write(HOSTILE)
    captured = capsys.readouterr()
    assert captured.out + captured.err == f"{HOSTILE if name == 'stdout' else WRITTEN_OUT}\n"
    terminal = Terminal()
    monkeypatch.setattr(sys, name, terminal)
    monkeypatch.setenv("COLUMNS", "200")
    write(HOSTILE)
    assert terminal.getvalue() == f"{WRITTEN_OUT}\n"


def test_no_cell_of_csv_is_a_formula_and_numbers_stay_numbers() -> None:
    cells = ["=1+1", "@SUM(A1)", "+A1", "-A1", "\t=1", "-5", "+3.1%", "-1.2e-05", "plain=1", -5, None]
    rows = csv_text(["=head", *"bcdefghijk"], [cells])
    head, row = rows.splitlines()
    assert head.split(",")[0] == "'=head"
    assert row.split(",") == [
        "'=1+1", "'@SUM(A1)", "'+A1", "'-A1", "'\t=1", "-5", "+3.1%", "-1.2e-05", "plain=1", "-5", ""
    ]  # fmt: skip

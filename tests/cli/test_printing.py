"""Lines on stderr and tables on stdout: wrapped for terminals alone, and never filled up with blanks."""

import io
import sys

import pytest
from rich.console import Console
from rich.table import Table

from ampbench.cli.main import main
from ampbench.cli.printing import print_block, print_note

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


def test_a_pipe_has_a_note_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_note(NOTE)
    assert capsys.readouterr().err == f"{NOTE}\n"


def test_an_error_is_wrapped_like_every_note(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["list", "nothing of all that there is to be listed"]) == 2
    first, *others = terminal.getvalue().splitlines()
    assert first.startswith("ampbench: error: ")
    assert others
    assert all(line.startswith("  ") for line in others)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_no_line_of_a_table_ends_in_blanks(is_terminal: bool) -> None:
    stream = io.StringIO()
    console = Console(
        file=stream, width=60, force_terminal=is_terminal, color_system="standard" if is_terminal else None
    )
    table = Table(box=None, header_style="dim", expand=True)
    table.add_column("name", style="bold")
    table.add_column("what it is")
    table.add_row("mlp", "")
    table.add_row("vit", "a transformer")
    print_block(console, table)
    plain = [
        line.replace("\x1b[0m", "").replace("\x1b[1m", "").replace("\x1b[2m", "")
        for line in stream.getvalue().splitlines()
    ]
    assert [line.split() for line in plain] == [["name", "what", "it", "is"], ["mlp"], ["vit", "a", "transformer"]]
    assert all(line == line.rstrip() for line in plain)
    assert ("\x1b[" in stream.getvalue()) == is_terminal

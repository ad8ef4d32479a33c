"""Options that several verbs share, and how lines and tables are printed: wrapped for terminals alone."""

import io
import re
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from ampbench.cli.main import main
from ampbench.cli.options import SECTIONS, make_selection, parse_setting, parse_sweeps, resumed_imports, split_names
from ampbench.cli.printing import print_note, print_text
from ampbench.errors import UsageError
from ampbench.records.case import WorkloadSource
from ampbench.show.document import csv_text
from ampbench.show.terminal import make_console
from tests.stored_runs import make_header


def test_names_are_typed_one_by_one_or_with_commas() -> None:
    assert split_names(["fp32,bf16_autocast", "tf32"]) == ["fp32", "bf16_autocast", "tf32"]
    assert split_names(["fp32, bf16_autocast,"]) == ["fp32", "bf16_autocast"]
    assert split_names(["fp32,"]) == ["fp32"]
    assert split_names([","]) == [","]
    assert split_names(None) is None


def test_more_names_than_a_file_name_has_characters_are_names() -> None:
    names = [f"workload_{number}" for number in range(40)]
    assert split_names([",".join(names)]) == names
    assert split_names(["x" * 300]) == ["x" * 300]


def test_a_file_with_a_comma_in_its_name_is_one_workload(tmp_path: Path) -> None:
    file = tmp_path / "a,b.py"
    file.touch()
    assert split_names([f"{file}:make"]) == [f"{file}:make"]
    assert split_names(["a.py:make,b.py:make"]) == ["a.py:make", "b.py:make"]


def test_every_option_of_run_stands_in_a_section_of_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    sections = re.findall(r"^(\w[\w ]*):$", capsys.readouterr().out, re.MULTILINE)
    assert sections == ["Arguments", *SECTIONS], "add the option to SECTIONS of cli/options.py"


def test_settings_and_sweeps_are_read_as_numbers_where_they_are() -> None:
    assert parse_setting("--set", "mlp.width=8") == ("mlp.width", 8)
    assert parse_setting("--set", "rate=1e-3") == ("rate", 1e-3)
    assert parse_setting("--set", "bias=True") == ("bias", True)
    assert parse_setting("--set", "kind=a=b") == ("kind", "a=b")
    assert parse_sweeps(["batch_size=1,2"]) == {"batch_size": [1, 2]}
    with pytest.raises(UsageError):
        parse_setting("--set", "=3")


def test_each_optimizer_is_a_recipe_as_ids_spell_it() -> None:
    assert make_selection().recipes == []
    typed = ["finetune", "adamw-lm:lr=1e-5,clip=0", "adamw:fused,weight_decay=0.1", "lr=3e-4", "finetune:lr=1e-5"]
    assert make_selection(optimizer=typed).recipes == [
        "finetune",
        "adamw-lm,lr=1e-05,clip=0",
        "optimizer=adamw:fused,weight_decay=0.1",
        "lr=0.0003",
    ]
    with pytest.raises(UsageError, match="clip: Expected"):
        make_selection(optimizer=["finetune:clip=-1"])


def test_going_on_with_a_run_says_what_its_file_has_imported() -> None:
    built_in, own = (
        WorkloadSource(name="n", family="user", module=module, function="make", builtin=builtin)
        for module, builtin in (("ampbench.workloads.linear", True), ("/home/me/m.py", False))
    )
    header = make_header(run="20260131T120000Z-a-b", sources=[built_in, own])
    assert resumed_imports(header) == "resuming run 20260131T120000Z-a-b imports /home/me/m.py:make"
    assert resumed_imports(make_header(sources=[built_in])) == ""


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

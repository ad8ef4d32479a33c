"""The program as a whole: what it says first, how it fails, what it does not import."""

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest

from ampbench import __version__, errors
from ampbench.cli import main as program
from ampbench.cli.options import Argument
from ampbench.errors import CASE_FAILED, INTERNAL_ERROR, INTERRUPTED

Run = Callable[..., Any]
HEAVY = ("torch", "torchvision", "pandas", "scipy", "numpy", "rich", "pydantic")


@pytest.mark.parametrize("arguments", [["--version"], ["show", "latest", "--version"], ["--version", "show"]])
def test_the_version_may_be_asked_for_anywhere(arguments: list[str], ampbench: Run) -> None:
    assert ampbench(*arguments).out == f"ampbench {__version__}\n"


def test_help_lists_every_verb(ampbench: Run) -> None:
    said = ampbench("--help")
    assert said == ampbench()
    assert said.code == 0
    assert all(f"\n  {verb} " in said.out for verb in program.VERBS)
    (pages,) = (Path(line.strip()) for line in said.out.splitlines() if line.startswith("    /"))
    assert all((pages / name).is_file() for name in ("README.md", "workloads.md", "gate.md"))


def test_help_ends_with_every_exit_code(ampbench: Run) -> None:
    codes = [0, 1, CASE_FAILED, INTERNAL_ERROR, INTERRUPTED, program.BROKEN_PIPE]
    codes += [error.exit_code for error in vars(errors).values() if hasattr(error, "exit_code")]
    listed = ampbench("--help").out.partition("Exit codes:")[2]
    assert {int(line.split()[0]) for line in listed.splitlines() if line.strip()} == set(codes)


@pytest.mark.parametrize("verb", list(program.VERBS))
def test_every_verb_has_help_with_an_example(verb: str, ampbench: Run) -> None:
    said = ampbench(verb, "--help")
    assert said.code == 0
    assert f"  ampbench {verb}" in said.out.partition("Examples:")[2]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make `list` raise."""

    def breaks(error: BaseException) -> None:
        def command(what: Annotated[str, Argument(metavar="WHAT", help="")]) -> int:
            """Break."""
            raise error

        monkeypatch.setattr("ampbench.cli.list.command", command)

    return breaks


def test_an_unexpected_error_is_one_line_and_exit_70(broken: Run, ampbench: Run) -> None:
    broken(ValueError("two\nlines"))
    said = ampbench("list", "runs")
    assert said.code == 70
    assert said.err == (
        "ampbench: error: internal error: ValueError: two lines; run again with --debug for the traceback\n"
    )


@pytest.mark.parametrize("arguments", [["--debug", "list", "runs"], ["list", "runs", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(arguments: list[str], broken: Run, ampbench: Run) -> None:
    broken(ValueError("here"))
    said = ampbench(*arguments)
    assert said.code == 70
    assert "Traceback (most recent call last)" in said.err
    assert said.err.endswith("ampbench: error: internal error: ValueError: here\n")


def test_an_interrupt_while_a_class_is_made_is_one_although_python_says_otherwise(broken: Run, ampbench: Run) -> None:
    class Interrupted:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises((RuntimeError, KeyboardInterrupt)) as raised:  # the latter from Python 3.12 on
        type("Imported", (), {"field": Interrupted()})
    broken(raised.value)
    said = ampbench("list", "runs")
    assert (said.code, said.err) == (130, "ampbench: interrupted\n")


def test_a_reader_that_goes_away_is_no_error(broken: Run, ampbench: Run) -> None:
    broken(BrokenPipeError(32, "Broken pipe"))
    said = ampbench("list", "runs")
    assert (said.code, said.err) == (141, "")


def heavy_after(lines: list[list[str]], cwd: Path, heavy: tuple[str, ...] = HEAVY) -> tuple[set[int], set[str]]:
    """Return the exit codes of command lines, run one after another in one process, and what of `heavy` it imported."""
    code = (
        "import contextlib, io, sys; from ampbench.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        f"    codes = set(map(main, {lines!r}))\n"
        f"print(codes, sys.modules.keys() & set({heavy!r}), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=cwd)
    codes, found = done.stdout.splitlines()
    return ast.literal_eval(codes), set() if found == "set()" else ast.literal_eval(found)


def test_no_help_waits_for_anything_heavy(tmp_path: Path) -> None:
    lines = [[], ["--version"], ["--help"], *([verb, "--help"] for verb in program.GROUPS)]
    lines += [[*verb.split(), "--help"] for verb in program.verbs()]
    assert heavy_after(lines, tmp_path) == ({0}, set())


def test_what_is_listed_and_shown_waits_for_no_frame_and_no_test(results: Path, tmp_path: Path) -> None:
    told = tuple(name for name in HEAVY if name not in ("numpy", "rich"))
    listings = [["list", what] for what in ("workloads", "precisions", "recipes")]
    assert heavy_after(listings, tmp_path, (*told, "numpy")) == ({0}, set())
    runs = [["list", "runs", "--results", str(results)], ["list", "runs", "--json", "--results", str(results)]]
    assert heavy_after(runs, tmp_path, (*told, "numpy")) == ({0}, set())
    shown = [["show", "latest", "--results", str(results), *more] for more in ([], ["--json"], ["--all"])]
    assert heavy_after(shown, tmp_path, told) == ({0}, set())


def test_doctor_leaves_torch_to_its_worker_and_waits_for_nothing_else(results: Path, tmp_path: Path) -> None:
    told = tuple(name for name in HEAVY if name != "rich")
    assert heavy_after([["doctor", "--results", str(results)]], tmp_path, told)[1] == set()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("list precisions >/dev/full", 2),
        ("--help >/dev/full", 2),
        ("list precisions </dev/null 1</dev/null", 2),
        ("list precisions >/dev/full 2>/dev/full", 2),
        ("nonsense 2>/dev/full", 2),
        ("list precisions <&- >&- 2>&-", 0),
        ("nonsense <&- >&- 2>&-", 2),
    ],
)
def test_streams_that_are_full_or_closed_end_in_a_documented_code(arguments: str, code: int) -> None:
    command = f"{sys.executable} -m ampbench {arguments}"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    said = "" if "2>" in arguments else "ampbench: error: cannot write the output: "
    assert done.returncode == code
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == bool(said)


def test_a_closed_stream_is_not_taken_by_a_file_that_is_opened_later(tmp_path: Path) -> None:
    code = (
        "import sys; from ampbench.cli.main import main; main(['--version'])\n"
        f"sys.exit(open({str(tmp_path / 'later')!r}, 'w').fileno())"
    )
    done = subprocess.run(["sh", "-c", f'{sys.executable} -c "{code}" <&- >&- 2>&-'], check=False)
    assert done.returncode > 2


@pytest.mark.parametrize(
    "line",
    ["show latest --results LONG", "report --results LONG", "run --resume LONG.jsonl", "show LONG.jsonl",
     "gate a b --policy LONG"],
)  # fmt: skip
def test_a_name_too_long_for_the_file_system_is_the_users_in_one_short_line(line: str, ampbench: Run) -> None:
    said = ampbench(*line.replace("LONG", "x" * 300).split())
    assert said.code == 2
    assert said.err.endswith("characters): File name too long\n")
    assert len(said.err) < 200


def test_a_current_folder_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ampbench: Run) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    said = ampbench("show", "latest")
    assert said.code == 2
    assert said.err == (
        "ampbench: error: the current folder cannot be used (No such file or directory): change to one that exists\n"
    )
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_cancelled_job_and_a_closed_terminal_end_a_verb_as_ctrl_c_does(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    number = getattr(signal, name)
    kept = signal.signal(number, signal.SIG_DFL)
    cleaned = []

    def verb(*_: object, **__: object) -> int:
        try:
            os.kill(os.getpid(), number)
        finally:
            cleaned.append(name)
        return 0

    monkeypatch.setattr(program, "_dispatch", verb)
    try:
        assert program.main(["run"]) == 130
        assert signal.getsignal(number) is signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)  # as under nohup
        assert program.main(["run"]) == 0
    finally:
        signal.signal(number, kept)
    assert cleaned == [name] * 2
    assert capsys.readouterr().err == "ampbench: interrupted\n"

"""How screens and a page of small stored runs read; `RENEW=1 pytest tests/snapshots` writes them anew."""

import contextlib
import html
import io
import json
import os
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

import ampbench
from ampbench import ab as session
from ampbench.cli.main import VERBS, main
from ampbench.records.kinds import KINDS, NONFINITE, WATCH, verb_of

HERE = Path(__file__).parent
RUNS = HERE.parent / "net" / "runs"
SCREENS = {
    "run": "show plain -k mlp",
    "networks": "show plain",
    "compare": "compare plain later",
    "ab": "ab --baseline X=0 --candidate X=1",
    "gate": "gate plain later",
}
"""What each verb ends with, as stored runs have it."""
STUDIES = {
    file.stem: kind
    for file in sorted(RUNS.glob("*.jsonl"))
    if (kind := json.loads(file.read_text(encoding="utf-8").partition("\n")[0])["header"].get("explains"))
}
"""The stored runs of studies, with their kinds."""
LONGEST = 40
"""The most lines of a screen."""
_LONG = re.compile(r"(?<![\w.])\d+\.\d{9,}(?:e[+-]\d+)?(?!\w)")
"""A number with more digits than two processors agree on."""


@pytest.fixture(autouse=True)
def _stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FORCE_COLOR", "NO_COLOR", "LINES", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    prepared = SimpleNamespace(notes=())
    monkeypatch.setattr(session, "prepare", lambda *_: nullcontext(prepared))
    monkeypatch.setattr(session, "timed_for", lambda *_: prepared)
    arms = RUNS / "ab-baseline.jsonl", RUNS / "ab-candidate.jsonl"
    monkeypatch.setattr(session, "measure", lambda *_: (*arms, "complete"))


def printed(command: str) -> str:
    """Return what a command prints about stored runs, which it names by their file."""
    words = command.split()
    for place, name in enumerate(words):
        if (file := RUNS / f"{name}.jsonl").is_file():
            words[place] = json.loads(file.read_text(encoding="utf-8").splitlines()[0])["header"]["run"]
            stored = Path("results", "runs", f"{words[place]}.jsonl")
            stored.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, stored)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert main(words) in (0, 1)
    return _LONG.sub(lambda number: f"{float(number[0]):.12g}", output.getvalue())


def compare_with_kept(name: str, text: str) -> None:
    kept = HERE / f"{name}.txt"
    if os.environ.get("RENEW"):
        kept.write_text(text, encoding="utf-8")
    assert text == kept.read_text(encoding="utf-8"), "if that is meant: RENEW=1 pytest tests/snapshots"


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_reads_as_it_did_and_holds_what_it_may(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(SCREENS[name])
    compare_with_kept(name, text)
    monkeypatch.setenv("COLUMNS", "80")
    assert max(text.count("\n"), printed(SCREENS[name]).count("\n")) <= LONGEST


NARROW = (
    *SCREENS.values(),
    *(f"show {kind}{more}" for kind in STUDIES for more in ("", " -v")),
    "show plain -v",
    "show plain later",
    "trend results/runs",
    "trend results/runs --all",
    "list runs",
    "list workloads",
    "list precisions",
    "list recipes",
    "list checks",
)
"""Screens of stored runs that must fit a terminal."""


def test_every_study_has_a_stored_run() -> None:
    lacking = KINDS.keys() - {*STUDIES.values(), WATCH, NONFINITE}
    assert not lacking, f"add a small run of {', '.join(lacking)} to tests/net/runs, then python -m tests.net.make"


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("command", NARROW)
def test_no_line_is_wider_than_the_terminal(command: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    if not command.startswith("show"):
        printed("show plain")  # stores them
        printed("show later")
    assert [line for line in printed(command).splitlines() if len(line) > columns] == []


def test_a_program_prints_as_wide_as_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, str(ampbench.open(RUNS / "plain.jsonl")).splitlines())) <= 80


def test_examples_and_legends_of_help_fit_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for verb in ("", *VERBS, *(verb_of(kind) for kind in KINDS if kind != WATCH)):
        assert main([*verb.split(), "--help"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def test_a_page_reads_as_it_did() -> None:
    printed("report plain -o page.html")
    text = _text(Path("page.html").read_text(encoding="utf-8"))
    shown, heading, recorded = text.partition("all that is recorded of before\n")
    compare_with_kept("page", shown)
    assert recorded.startswith(f"{heading}fact | value |\n| schema | 8\n| run | ")


def _text(page: str) -> str:
    """Return the text of a page, a block on each line."""
    body = " ".join(page[page.index("<main") : page.index("</main>")].split())
    body = re.sub(r"<(script|style|svg)\b.*?</\1>", "", body, flags=re.DOTALL)
    body = re.sub(r"</th>|(?=<td)", " | ", body)
    body = re.sub(
        r"<(?:section|h\d|p|div|table|caption|tr|ul|ol|li|dt|dd|summary|figure|figcaption|pre)\b", r"\n\g<0>", body
    )
    lines = (" ".join(html.unescape(re.sub(r"<[^>]*>", "", line)).split()) for line in body.split("\n"))
    return "".join(f"{line}\n" for line in lines if line)

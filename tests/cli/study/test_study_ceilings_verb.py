"""`ampbench study ceilings`: what it asks for, prints, stores and refuses, how it ends and goes on."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampbench.cli.progress import piece_progress
from ampbench.records.kinds import CEILINGS
from ampbench.studies.ceilings import CeilingsAsked
from ampbench.studies.work import Piece
from tests.stored_runs import COMPLETE, RUN, write_run
from tests.studies.ceiling_records import CEILINGS as FOUND

Run = Callable[..., Any]
ASKED = CeilingsAsked(seconds=2.0, operation=["matmul", "conv", "copy"])


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A results folder with a run that studies ceilings."""
    write_run(tmp_path / "results", [], *FOUND, COMPLETE, explains=CEILINGS, asked=ASKED)
    return tmp_path / "results"


def study(ampbench: Run, *arguments: object) -> Any:
    return ampbench("study", "ceilings", "--device", "cpu", *arguments)


def test_a_stored_run_is_shown_with_sentences_and_a_table(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN)
    assert (said.code, said.err) == (0, "")
    assert max(map(len, said.out.splitlines())) <= 100
    told = " ".join(said.out.split())
    assert "cpu · 2 threads" in told
    assert "400 GFLOP/s" in told
    assert "as many values are copied in 0.500x the time of fp32" in told
    assert "no kernel for Half" in told
    assert "Every size" not in told
    everything = ampbench("show", RUN, "--all").out
    assert "Every size" in everything


def test_a_terminal_shows_what_is_measured_and_how_much_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("ampbench.cli.progress.LIVE_SECONDS", 0.0)
    monkeypatch.setattr("rich.live.Live.update", lambda _, text, refresh: told.append(text.plain))
    pieces = [Piece(f"matmul {dtype} cpu") for dtype in ("fp32", "bf16")]
    with piece_progress("measuring", pieces, lambda found: "") as watch:
        for piece in pieces:
            watch(piece, None)
            watch(piece, FOUND[0])
    assert told[::2] == ["1 of 2: measuring matmul fp32 cpu", "2 of 2: measuring matmul bf16 cpu"]

"""`ampbench study ceilings`: what it asks for, prints, stores and refuses, how it ends and goes on."""

import sys

import pytest

from ampbench.cli.progress import piece_progress
from ampbench.studies.work import Piece
from tests.studies.ceiling_records import CEILINGS as FOUND


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

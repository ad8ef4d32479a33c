"""`ampbench study ceilings`: what it asks for, prints, stores and refuses, how it ends and goes on."""

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampbench.cli.progress import piece_progress
from ampbench.records.kinds import CEILINGS
from ampbench.records.measured import Failure
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import list_runs, read_header, read_run
from ampbench.studies.ceilings import OPERATIONS, CeilingsAsked
from ampbench.studies.work import Piece
from tests.scripted_channel import CPU, Scripted, asked_in, machine
from tests.stored_runs import COMPLETE, RUN, write_run
from tests.studies.ceiling_records import CEILINGS as FOUND
from tests.studies.ceiling_records import ceiling

Run = Callable[..., Any]
ASKED = CeilingsAsked(seconds=2.0, operations=["matmul", "conv", "copy"])


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A results folder with a run that studies ceilings."""
    write_run(tmp_path / "results", [], *FOUND, COMPLETE, explains=CEILINGS, asked=ASKED)
    return tmp_path / "results"


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Answers instead of workers: each ceiling is 1 G a second."""
    found = Scripted(
        lambda request: reply_with(
            ceiling(asked_in(request).operation, asked_in(request).dtype, 1e9, device=request.device)
        )
    )
    monkeypatch.setattr("ampbench.studies.work.ServerChannel", lambda preload: found)
    return found


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


def test_csv_has_a_row_for_each_size(stored: Path, ampbench: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(ampbench("show", RUN, "--format", "csv").out)))
    assert len(rows) == sum(max(1, len(found.attained)) for found in FOUND)
    assert (rows[0]["operation"], rows[0]["dtype"], rows[0]["size"]) == ("matmul", "fp32", "size 0")
    failed = [row for row in rows if row["reason"]]
    assert [(row["dtype"], row["size"], row["per_second"]) for row in failed] == [("fp16", "", "")]


def test_json_is_the_ceilings_with_what_is_derived_from_them(stored: Path, ampbench: Run) -> None:
    document = json.loads(ampbench("show", RUN, "--json").out)
    assert (document["run"], document["ended"]) == (RUN, "complete")
    assert len(document["ceilings"]) == len(FOUND)
    best = [row for row in document["tables"]["sizes"] if row["ceiling"]]
    first = best[0]
    assert (first["size"], first["datasheet_share"]) == ("size 1", None)
    assert first["per_second"] == pytest.approx(2e11)
    assert len(document["ceilings"][0]["attained"][0]["samples"]) == 3
    (failed,) = (row for row in best if row["reason"])
    assert (failed["reason"], failed["per_second"], failed["size"]) == ("no kernel for Half", None, None)
    assert document["statements"]["cpu"][0] == {
        "code": "ceiling-ratio", "facts": {"ratio": pytest.approx(2)}, "severity": "info", "subject": "bf16"
    }  # fmt: skip


def test_markdown_has_the_table(stored: Path, ampbench: Run) -> None:
    assert "| fp32 |" in ampbench("show", RUN, "--format", "markdown").out


def test_a_session_is_stored_and_told(ampbench: Run, channel: Scripted) -> None:
    said = study(ampbench, "--dtype", "fp32", "--dtype", "bf16", "--operation", "matmul", "--seconds", "250ms")
    assert said.code == 0
    assert "bf16: 1.00x fp32's rate" in said.out
    (path,) = list_runs(Path("results"))
    header = read_header(path)
    assert said.err.strip() == f"run {header.run}: {path}"
    assert header.explains == CEILINGS
    assert read_run(path).asked == CeilingsAsked(seconds=0.25, operations=["matmul"], dtypes=["fp32", "bf16"])
    assert [asked_in(request).seconds for request in channel.asked] == [0.25, 0.25]


def test_what_failed_is_told_and_ends_with_3(ampbench: Run, channel: Scripted) -> None:
    lives = channel.answer

    def dying(request: Request) -> Reply:
        failure = Failure(case_id="", stage="ceilings", cause="crash", message="ended by signal SIGILL")
        return Reply(failure=failure) if asked_in(request).operation == "conv" else lives(request)

    channel.answer = dying
    said = study(ampbench, "--dtype", "fp32")
    assert said.code == 3
    assert "crash: ended by signal SIGILL" in said.out
    (one,) = list_runs(Path("results"))
    again = ampbench("study", "ceilings", "--resume", one.stem)
    assert (again.code, len(channel.asked)) == (3, len(OPERATIONS))
    assert "is complete: nothing is left to do" in again.err


@pytest.mark.parametrize("by_path", [False, True])
def test_how_to_go_on_names_the_folder_or_the_file_where_the_run_is(
    by_path: bool, ampbench: Run, channel: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(request: Request) -> Reply:
        raise KeyboardInterrupt

    monkeypatch.setattr(channel, "serve", interrupted)
    write_run(Path("else where"), [], FOUND[0], explains=CEILINGS, asked=ASKED, environment=machine(CPU))
    (path,) = list_runs("else where")
    given = ["--resume", str(path)] if by_path else ["--resume", RUN, "--results", "else where"]
    said = ampbench("study", "ceilings", *given)
    how = f"'{path}'" if by_path else f"{RUN} --results 'else where'"
    assert said.err.endswith(f" left; ampbench study ceilings --resume {how} goes on\n")


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--dtype", "fp31"], 2, "unknown dtype 'fp31': did you mean fp32"),
        (["--operation", "copies"], 2, "unknown operation 'copies': did you mean copy?"),
        (["--device", "cuda"], 5, "no ceiling can be measured here: cuda is not available: no driver"),
        (["--dtype", "tf32"], 5, "cpu has no tf32"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    arguments: list[str], code: int, why: str, ampbench: Run, channel: Scripted
) -> None:
    said = ampbench("study", "ceilings", *arguments)
    assert said.code == code
    assert why in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert list_runs(Path("results")) == []


def test_a_terminal_is_told_what_is_measured_and_how_long_the_rest_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("rich.status.Status.update", lambda _, text: told.append(text))
    pieces = [Piece(f"matmul {dtype} cpu") for dtype in ("fp32", "bf16")]
    with piece_progress("measuring", pieces, lambda found: "") as watch:
        for piece in pieces:
            watch(piece, None)
            watch(piece, FOUND[0])
    assert told[0] == "measuring matmul fp32 cpu (1 of 2) …"
    assert told[2].startswith("measuring matmul bf16 cpu (2 of 2, about ")

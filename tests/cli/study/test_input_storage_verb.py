"""`ampbench study input-storage`: what it asks for, prints, stores and refuses, and how it goes on."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampbench.records.measured import Failure, Skip
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import list_runs, read_run
from ampbench.studies.input_storage import StoragePass
from tests.scripted_channel import Scripted
from tests.stored_runs import COMPLETE, RUN, make_case, write_run
from tests.studies.storage_passes import lossy_pass, storage_pass

Run = Callable[..., Any]

CASE = make_case("bf16_autocast", workload="net", parameters={}, phase="training", batch_size=None)
LOSSY = make_case("bf16_autocast", workload="normed", parameters={}, phase="training", batch_size=None)
SKIPPED = make_case("bf16_autocast", workload="ids", parameters={})
FAILED = make_case("bf16_autocast", workload="broken", parameters={})


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    skip = Skip(case_id=SKIPPED.case_id, reason="no input of it is floating")
    failure = Failure(case_id=FAILED.case_id, stage="input-storage", cause="exception", message="RuntimeError: shapes")
    write_run(
        tmp_path / "results", [CASE, LOSSY, SKIPPED, FAILED], storage_pass(CASE), lossy_pass(LOSSY), skip, failure,
        COMPLETE, explains="input-storage",
    )  # fmt: skip
    return tmp_path / "results"


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The phases that end the session instead of being measured; nothing asks a worker."""
    phases: list[str] = []

    def answer(request: Request) -> Reply:
        assert request.case is not None
        if request.case.phase in phases:
            raise KeyboardInterrupt
        return reply_with(storage_pass(request.case))

    channel = Scripted(answer)
    monkeypatch.setattr("ampbench.drive.pieces.ServerChannel", lambda **_: channel)
    return phases


def test_each_case_is_a_section_that_begins_with_what_is_lost(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN)
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[:2] == [
        "net · bf16_autocast · training · cpu",
        "  Nothing is lost: with inputs in bf16, outputs, loss and gradients are the same to the last bit.",
    ]
    told = " ".join(said.out.split())
    assert "Information is lost: with inputs in bf16" in told
    assert f"{SKIPPED.case_id}: skipped: no input of it is floating" in told
    assert f"{FAILED.case_id}: failed: RuntimeError: shapes" in told


def test_csv_has_a_row_for_each_dtype_and_json_all_of_it(stored: Path, ampbench: Run) -> None:
    found = list(csv.DictReader(io.StringIO(ampbench("show", RUN, "--format", "csv").out)))
    assert [(row["dtype"], row["casts"], row["copy_seconds"]) for row in found[:2]] == [
        ("fp32", "5", ""),
        ("bf16", "4", ""),
    ]
    document = json.loads(ampbench("show", RUN, "--json").out)
    case = document["cases"][0]
    assert case["tables"]["inputs"][0]["situation"] == "nothing lost"
    assert case["tables"]["stored"][1]["stored_bytes"] == 2048
    assert case["storage"]["identical"] is True
    assert case["sentences"][0].startswith("nothing is lost")


def test_a_study_is_stored_and_an_interrupted_one_goes_on(
    interrupting: list[str], tmp_path: Path, ampbench: Run
) -> None:
    interrupting.append("training")
    said = ampbench("study", "input-storage", "mlp", "--preset", "tiny", "--seconds", "1500ms")
    assert said.code == 130
    (path,) = list_runs(tmp_path / "results")
    run = read_run(path)
    assert (run.header.explains, run.asked.seconds, len(run.of(StoragePass))) == ("input-storage", 1.5, 1)
    assert f"1 piece left; ampbench study input-storage --resume {run.header.run} goes on" in said.err
    interrupting.clear()
    again = ampbench("study", "input-storage", "--resume", run.header.run)
    assert again.code == 0
    assert len(read_run(path).of(StoragePass)) == 2
    done = ampbench("study", "input-storage", "--resume", run.header.run)
    assert (done.code, "nothing is left to do" in done.err) == (0, True)
    refused = ampbench("study", "input-storage", "--resume", run.header.run, "--seconds", "2")
    assert (refused.code, refused.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "study the inputs of which workload? Name one, as in `ampbench study input-storage mlp`"),
        (["mlpp"], "unknown workload 'mlpp': did you mean mlp?"),
        (["mlp", "--precision", "fp32"], "and fp32 has none: give fp16_autocast"),
        (["mlp", "--precision", "bf16_pure"], "and bf16_pure has none"),
        (["mlp", "--seconds", "0"], "--seconds must be above 0"),
        (["mlp", "--seconds", "long"], "a time such as 90, 250ms, 2m or 1h"),
        (["--resume", "nothing"], "there is no results folder results"),
    ],
)
def test_a_usage_error_is_one_line(arguments: list[str], message: str, tmp_path: Path, ampbench: Run) -> None:
    said = ampbench("study", "input-storage", *arguments)
    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_a_real_study_tells_both_situations_apart(tmp_path: Path, ampbench: Run) -> None:
    said = ampbench(
        "study", "input-storage", "mlp", "transformer_encoder", "decoder_lm", "--preset", "tiny", "--phase",
        "inference", "--seconds", "0.2", "--threads", "1",
    )  # fmt: skip
    assert said.code == 0
    told = " ".join(said.out.split())
    assert "Nothing is lost: with inputs in bf16, outputs are the same to the last bit" in told
    assert "Information is lost: with inputs in bf16" in told
    assert "skipped: no input of it is floating: token ids and other integers are never stored in half" in told

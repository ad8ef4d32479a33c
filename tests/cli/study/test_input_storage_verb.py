"""`ampbench study input-storage`: what it asks for, prints, stores and refuses, and how it goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampbench.records.measured import Failure, Skip
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


def test_each_case_is_a_section_that_begins_with_what_is_lost(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN, "-v")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[:2] == [
        "net · bf16_autocast · training · cpu",
        "  Nothing is lost: with inputs in bf16, outputs, loss and gradients are the same to the last bit.",
    ]
    told = " ".join(said.out.split())
    assert "Information is lost: with inputs in bf16" in told
    assert ": skipped: no input of it is floating" in told
    assert "failed: RuntimeError: shapes" in told

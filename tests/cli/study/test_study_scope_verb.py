"""`ampbench study scope`: what it asks for, prints, stores and refuses, and how an interrupted study goes on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampbench.records.kinds import SCOPE
from ampbench.records.measured import Failure
from tests.stored_runs import COMPLETE, RUN, make_case, write_run
from tests.studies.planted_scopes import CASE, scope_pass

Run = Callable[..., Any]

FAILED = make_case("bf16_autocast", workload="broken", parameters={}, phase="training")
LEFT = make_case("bf16_autocast", workload="left", parameters={}, phase="training")

MODEL = """
import torch

def make():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)]
    targets = torch.randint(0, 4, (16,))
    loss = torch.nn.functional.cross_entropy
    return torch.nn.Sequential(*layers), torch.randn(16, 64), lambda output: loss(output, targets)
"""


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A results folder with a run that studied one case, in which another failed and a third was not reached."""
    failure = Failure(case_id=FAILED.case_id, stage="scope", cause="exception", message="RuntimeError: shapes")
    write_run(tmp_path / "results", [CASE, FAILED, LEFT], scope_pass(), failure, COMPLETE, explains=SCOPE)
    return tmp_path / "results"


def test_a_case_is_a_section_that_fits_the_page_and_what_was_not_seen_is_a_line(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN)
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == "net · bf16_autocast · training · cpu · 4 steps"
    assert max(map(len, lines)) <= 100
    assert "no room for" not in said.out
    told = " ".join(said.out.split())
    assert "6 weights are stale" in told
    assert "Dropout is off." in told
    assert "broken bf16_autocast: failed: RuntimeError: shapes" in lines
    assert "left bf16_autocast: skipped: not reached before the run ended" in lines


@pytest.mark.slow
def test_a_users_network_trains_stale_weights_around_the_whole_loop_and_keeps_their_copies(
    tmp_path: Path, ampbench: Run
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    said = ampbench(
        "study", "scope", "model.py:make", "--precision", "bf16_autocast", "--steps", "3",
        "--seconds", "100ms", "--threads", "1", "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    (case,) = json.loads(said.out)["cases"]
    forward, best, backward, whole, uncached = case["scope"]["scopes"]
    assert [run["stale_weights"] for run in (forward, best, backward, uncached)] == [[0, 0, 0]] * 4
    assert whole["stale_weights"] == [0, 4, 4]
    low = 2 * (64 * 64 + 64 + 64 * 4 + 4)
    assert best["alive_bytes"] == [0, 0, 0]
    assert [low <= kept <= 1.1 * low for kept in whole["alive_bytes"]] == [True] * 3
    assert min(best["peak_bytes"]) > 2 * low  # the gradients alone are in fp32

"""`ampbench explain`: what its options imply and refuse, and what is said when a session does not end as planned."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from ampbench.drive.planning import PlannedCase
from ampbench.records.casts import CastPass
from ampbench.records.measured import Failure
from ampbench.records.run import Header
from ampbench.store import list_runs, read_run
from tests.traced_programs import trace

Run = Callable[..., Any]

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)

def make():
    return Net(), torch.randn(2, 4)

def bare():
    return torch.nn.Linear(4, 4), torch.randn(2, 4)
"""


@pytest.fixture
def seen() -> CastPass:
    """A Linear's three casts."""
    linear = torch.nn.Linear(4, 4)
    with torch.inference_mode():
        found = trace(lambda: linear(torch.randn(2, 4)), linear).trace
    return CastPass(case_id="", how="device", trace=found)


@pytest.fixture
def worker(seen: CastPass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What becomes of each case, by its phase, instead of asking a worker; `model.py` is there to be named."""
    (tmp_path / "model.py").write_text(MODEL)
    ends: dict[str, Any] = {}

    def ask_worker(channel: object, planned: PlannedCase, *given: object) -> CastPass | Failure:
        found = ends.get(planned.case.workload.partition(":")[2], seen)
        if isinstance(found, type):
            raise found
        return structs.replace(found, case_id=planned.case.case_id)  # type: ignore[no-any-return]

    monkeypatch.setattr("ampbench.studies.work.ask_worker", ask_worker)
    return lambda **ending: ends.update(ending)


def explain(ampbench: Run, *arguments: object) -> Any:
    return ampbench("explain", "casts", *arguments)


def test_a_label_names_the_run_in_the_list_with_what_it_explains(worker: Run, tmp_path: Path, ampbench: Run) -> None:
    assert explain(ampbench, "model.py:make", "--label", "before").code == 0
    (file,) = list_runs(tmp_path / "results")
    header: Header = read_run(file).header
    assert header.label == "before"
    (row,) = json.loads(ampbench("list", "runs", "--json").out)
    assert row["outcome"] == "explains casts of model.py:make bf16_autocast inference: 1 ok"
    assert "before" in ampbench("list", "runs").out


@pytest.mark.slow
@pytest.mark.usefixtures("started_servers")  # a fork has lines of a test below those of the server
def test_lines_of_code_are_in_the_table_of_ops_which_asking_for_them_implies(
    tmp_path: Path, ampbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    said = explain(ampbench, "model.py:make", "model.py:bare", "--sources", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert {row["source"].rpartition("/")[2] for row in rows if "make" in row["case_id"]} == {"model.py:10"}
    assert {row["source"] for row in rows if "bare" in row["case_id"]} == {""}


def test_lines_of_a_built_in_workload_are_its_own(ampbench: Run) -> None:
    said = explain(ampbench, "decoder_lm", "--preset", "tiny", "--sources", "-v")
    assert "Every op in order" in said.out
    assert "(workloads/" in said.out


def test_training_without_a_loss_names_the_workload_and_what_is_missing(tmp_path: Path, ampbench: Run) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    said = explain(ampbench, "model.py:make", "--phase", "training")
    assert said.code == 5
    assert "no loss given: a workload that trains returns (module, inputs, loss) (model.py:make)" in said.err

"""`ampbench explain origin`: what it prints, and what other verbs make of runs that explain by themselves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ampbench as library
from ampbench.errors import UsageError
from ampbench.records.measured import Skip
from ampbench.store import list_runs
from tests.range_passes import origin_pass, range_pass
from tests.stored_runs import COMPLETE, RUN, make_case, make_round, write_run

Run = Callable[..., Any]

CASE = make_case("fp16_pure", workload="net", parameters={}, batch_size=None, input_dtype="fp16")
SKIPPED = make_case("fp16_pure", workload="elsewhere", parameters={}, device="cuda")
OTHER = "20260201T120000Z-bench-2a9a3c"

MODEL = """
import torch

class Big(torch.nn.Module):
    def forward(self, x):
        return x * 3e5

def make():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), Big(), torch.nn.LayerNorm(8)), torch.randn(4, 8)
"""


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A results folder with one run that explains origins: a case and a skip."""
    skip = Skip(case_id=SKIPPED.case_id, reason="cuda is not available: no driver")
    write_run(tmp_path / "results", [CASE, SKIPPED], origin_pass(CASE), skip, COMPLETE, explains="origin")
    return tmp_path / "results"


def test_a_case_is_a_section_and_what_was_not_seen_is_a_line(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN)
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == "net · fp16_pure · inference · cpu"
    assert max(map(len, lines)) <= 100
    assert "aten.mul in big" in " ".join(said.out.split())
    assert ": skipped: cuda is not available: no driver" in said.out


@pytest.fixture(params=["headroom", "origin", "keep-fp32"])
def explaining(request: pytest.FixtureRequest, stored: Path) -> str:
    """What one more run in the same folder, `OTHER`, explains."""
    fp32 = make_case(workload="net", parameters={}, batch_size=None)
    case, entries = {
        "headroom": (fp32, [range_pass(fp32)]),
        "origin": (CASE, [origin_pass(CASE)]),
        "keep-fp32": (CASE, []),
    }[request.param]
    write_run(stored, [case], *entries, COMPLETE, run=OTHER, explains=request.param)  # type: ignore[arg-type]
    return str(request.param)


@pytest.mark.parametrize(
    "arguments",
    [
        ["convert", OTHER, "--to", "junit"],
        ["trend", OTHER],
        ["run", "--resume", OTHER],
        ["compare", OTHER, OTHER],
        ["compare", RUN, OTHER],
        ["gate", OTHER, RUN],
        ["explain", "rules", OTHER],
    ],
)
def test_a_verb_that_cannot_use_such_a_run_says_so_in_one_line(
    arguments: list[str], explaining: str, ampbench: Run
) -> None:
    said = ampbench(*arguments)
    assert said.code in (2, 4, 5)
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert explaining in said.err or arguments[0] == "explain"
    assert "traced" not in said.err


def test_such_a_run_is_listed_by_what_it_explains_and_has_no_frame(stored: Path, ampbench: Run) -> None:
    (row,) = json.loads(ampbench("list", "runs", "--results", stored, "--json").out)
    said = "explains origin of net, elsewhere fp16_pure inference: 1 ok, 1 skipped"
    assert (row["explains"], row["outcome"]) == ("origin", said)
    (file,) = list_runs(stored)
    with pytest.raises(UsageError, match="explains origin and measured nothing"):
        library.load(file)
    write_run(stored, [CASE], COMPLETE, run=OTHER)
    assert set(library.load(stored)["run"]) == {OTHER}


def test_a_run_that_measured_is_not_compared_with_one_of_its_cases_explained(stored: Path, ampbench: Run) -> None:
    write_run(stored, [CASE], make_round(CASE), COMPLETE, run=OTHER)
    for sides in ((RUN, OTHER), (OTHER, RUN)):
        said = ampbench("compare", *sides)
        assert (said.code, said.out) == (4, "")
        assert said.err == f"ampbench: error: runs that explain origin are not compared: ampbench show {RUN}\n"


def test_a_users_network_overflows_where_it_multiplies(tmp_path: Path, ampbench: Run) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    said = ampbench("explain", "origin", "model.py:make", "--precision", "fp16_pure", "--json")
    (run,) = list_runs(tmp_path / "results")
    assert (said.code, said.err) == (0, f"run {run.stem}: results/runs/{run.name}\n")
    (case,) = json.loads(said.out)["cases"]
    assert (case["case"]["precision"], case["case"]["phase"]) == ("fp16_pure", "inference")
    found = {row["module"]: row for row in case["tables"]["modules"]}
    assert list(found) == ["1", "2", "0"]
    assert found["0"]["own_rel_l2"] > 0
    assert (found["0"]["overflowed"], found["1"]["overflowed"] > 0) == (0, True)
    assert case["origin"]["first_nonfinite"]["module"] == "1"
    assert (case["origin"]["ablations"], case["origin"]["reference"]) == (3, "fp64")
    own = json.loads(ampbench("explain", "origin", "model.py:make", "--precision", "fp16_pure", "--own", "--json").out)
    assert own["cases"][0]["origin"]["ablations"] == 0

"""The verbs of `ampbench explain`: what each shows and stores, and what other verbs make of runs that explain."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ampbench as library
from ampbench.errors import UsageError
from ampbench.records.kinds import RULES
from ampbench.records.measured import Failure, Skip
from ampbench.records.rules import RuleProbe
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import list_runs, read_run
from ampbench.studies.keep_fp32 import KeepSearch
from ampbench.studies.nonfinite import Replay, Replayed, conclusions
from tests.range_passes import origin_pass, range_pass
from tests.rule_probes import observation, probe
from tests.stored_runs import COMPLETE, RUN, make_case, make_header, make_round, write_run

Run = Callable[..., Any]


class Worker:
    """Stand in for the workers: each device type has a made-up probe, but for those in `ending`, which end so."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.ending: dict[str, Failure | type[BaseException]] = {
            "xpu": Failure(case_id="", stage="rules", cause="crash", message="ended by signal SIGABRT")
        }

    def serve(self, request: Request) -> Reply:
        if request.task == "environment":
            return reply_with(make_header().environment)
        self.asked.append(request)
        ending = self.ending.get(request.device)
        if isinstance(ending, Failure):
            return Reply(failure=ending)
        if ending is not None:
            raise ending
        made = observation("aten::rms_norm", observed="float32", device=request.device)
        return reply_with(probe(made, device=request.device))

    def close(self) -> None:
        pass


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    channel = Worker()
    monkeypatch.setattr("ampbench.studies.work.ServerChannel", lambda **_: channel)
    return channel


def test_each_device_is_probed_by_its_own_process_and_stored(worker: Worker, tmp_path: Path, ampbench: Run) -> None:
    said = ampbench("explain", "rules", "--device", "cpu", "--device", "cuda", "--timeout", "9")
    (path,) = list_runs(tmp_path / "results")
    stored = read_run(path)
    assert said.code == 0
    assert [(one.device, one.threads, one.timeout_seconds, one.fresh) for one in worker.asked] == [
        (device, 1, 9.0, True) for device in ("cpu", "cuda")
    ]
    assert (stored.header.explains, stored.ended) == (RULES, "complete")
    assert list(stored.of(RuleProbe)) == stored.header.selection.devices == ["cpu", "cuda"]
    assert ampbench("show", path).out == said.out


def test_lines_of_a_built_in_workload_are_its_own(ampbench: Run) -> None:
    said = ampbench("explain", "casts", "decoder_lm", "--preset=tiny", "--phase=inference", "--sources", "-v")
    assert "Every op in order" in said.out
    assert "(workloads/" in said.out


CASE = make_case("fp16_pure", workload="net", parameters={}, batch_size=None, input_dtype="fp16")
SKIPPED = make_case("fp16_pure", workload="elsewhere", parameters={}, device="cuda")
OTHER = "20260201T120000Z-bench-2a9a3c"

OVERFLOWING = """
import torch

class Big(torch.nn.Module):
    def forward(self, x):
        return x * 3e5

def make():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), Big(), torch.nn.LayerNorm(8)), torch.randn(4, 8)
"""


@pytest.fixture
def origins(tmp_path: Path) -> Path:
    """A results folder with one run that explains origins: a case and a skip."""
    skip = Skip(case_id=SKIPPED.case_id, reason="cuda is not available: no driver")
    write_run(tmp_path / "results", [CASE, SKIPPED], origin_pass(CASE), skip, COMPLETE, explains="origin")
    return tmp_path / "results"


@pytest.mark.parametrize("kind", ["headroom", "origin", "keep-fp32"])
def test_verbs_that_cannot_use_such_a_run_say_so_in_one_line_each(kind: str, origins: Path, ampbench: Run) -> None:
    case = make_case(workload="net", parameters={}, batch_size=None) if kind == "headroom" else CASE
    seen = {"headroom": [range_pass(case)], "origin": [origin_pass(case)], "keep-fp32": []}[kind]
    write_run(origins, [case], *seen, COMPLETE, run=OTHER, explains=kind)  # type: ignore[arg-type]
    for words in (
        f"convert {OTHER} --to junit", f"trend {OTHER}", f"run --resume {OTHER}", f"compare {OTHER} {OTHER}",
        f"compare {RUN} {OTHER}", f"gate {OTHER} {RUN}", f"explain rules {OTHER}",
    ):  # fmt: skip
        said = ampbench(*words.split())
        assert said.code in (2, 4, 5), words
        assert (said.out, said.err.count("\n"), "traced" in said.err) == ("", 1, False)
        assert kind in said.err or words.startswith("explain")


def test_such_a_run_is_listed_by_what_it_explains_and_has_no_frame(origins: Path, ampbench: Run) -> None:
    (row,) = json.loads(ampbench("list", "runs", "--results", origins, "--json").out)
    said = "explains origin of net, elsewhere fp16_pure inference: 1 ok, 1 skipped"
    assert (row["explains"], row["outcome"]) == ("origin", said)
    (file,) = list_runs(origins)
    with pytest.raises(UsageError, match="explains origin and measured nothing"):
        library.load(file)
    write_run(origins, [CASE], COMPLETE, run=OTHER)
    assert set(library.load(origins)["run"]) == {OTHER}


def test_a_run_that_measured_is_not_compared_with_one_of_its_cases_explained(origins: Path, ampbench: Run) -> None:
    write_run(origins, [CASE], make_round(CASE), COMPLETE, run=OTHER)
    for sides in ((RUN, OTHER), (OTHER, RUN)):
        said = ampbench("compare", *sides)
        assert (said.code, said.out) == (4, "")
        assert said.err == f"ampbench: error: runs that explain origin are not compared: ampbench show {RUN}\n"


def test_a_users_network_overflows_where_it_multiplies(tmp_path: Path, ampbench: Run) -> None:
    (tmp_path / "model.py").write_text(OVERFLOWING)
    said = ampbench("explain", "origin", "model.py:make", "--precision", "fp16_pure", "--json")
    (run,) = list_runs(tmp_path / "results")
    assert (said.code, said.err.splitlines()[0]) == (0, f"run {run.stem}: results/runs/{run.name}")
    assert f"ampbench show {run.stem} shows it again\n" in said.err
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


GROWING = """
import torch
from ampbench import Workload


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x) * 1e4


def make():
    torch.manual_seed(0)
    loss = lambda output: output.float().square().mean()
    return Workload(module=Net(), inputs=torch.randn(16, 8), loss=loss, optimizer=torch.optim.SGD)
"""


def replayed(ampbench: Run, *words: str) -> Replay:
    assert ampbench("explain", "nonfinite", "model.py:make", "--precision", "fp16_autocast", *words).code == 0
    (record,) = read_run(list_runs("results")[-1]).every(Replay)
    return record


@pytest.mark.slow
def test_a_checkpoint_is_replayed(ampbench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(GROWING)
    assert [row.code for row in conclusions(None, replayed(ampbench))] == [Replayed.FINITE]  # type: ignore[arg-type]
    state = {"layer.weight": torch.full((8, 8), 50.0), "layer.bias": torch.zeros(8)}
    torch.save({"model": state, "epoch": 3}, "checkpoint.pt")
    record = replayed(ampbench, "--state", "checkpoint.pt")
    (statement,) = conclusions(None, record)  # type: ignore[arg-type]
    assert statement.code is Replayed.FIRST
    assert str(statement.facts["line"]).endswith("in forward: return self.layer(x) * 1e4")
    assert record.state == str(tmp_path / "checkpoint.pt")
    assert ampbench("show", list_runs("results")[-1]).out.count("self.layer(x)") == 1  # in the sentence alone
    refused = ampbench("explain", "nonfinite", "model.py:make", "--state", "none.pt")
    assert (refused.code, refused.err) == (2, "ampbench: error: --state none.pt: no such file\n")


def test_a_result_without_a_culprit_is_a_problem() -> None:
    record = Replay(case_id="a", steps=2, nonfinite=2)
    assert [row.code for row in conclusions(None, record)] == [Replayed.RESULT]  # type: ignore[arg-type]


CANCELLING = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
        self.norm = torch.nn.LayerNorm(16)
        self.head = torch.nn.Linear(16, 4)
        with torch.no_grad():
            self.body[0].weight.mul_(3e5)
            self.body[2].weight.div_(3e5)

    def forward(self, x):
        return self.head(self.norm(x + self.body(x)))

def make():
    torch.manual_seed(0)
    return Net(), torch.randn(4, 16)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(CANCELLING)
    return path


def search(ampbench: Run, *arguments: object) -> Any:
    return ampbench("explain", "keep-fp32", *arguments)


@pytest.mark.slow
def test_a_module_that_overflows_is_found_by_real_workers(model: Path, ampbench: Run) -> None:
    said = search(ampbench, "model.py:make", "--precision", "fp16_autocast", "--threads", "1", "--json")
    assert said.code == 0, said.err
    (case,) = json.loads(said.out, parse_constant=pytest.fail)["cases"]
    assert {"body.0", "body"} & set(case["search"]["ended"]["kept"])
    space = case["search"]["space"]
    assert space["inputs_digest"] != space["weights_digest"] != ""
    assert case["tables"]["sets"][0]["output_rel_l2"] is None
    (row,) = [row for row in case["tables"]["sets"] if row["found"]]
    assert row["meets_budget"]
    assert row["seconds"] is None or row["seconds"] > 0  # None: the machine was too busy to tell


def test_a_search_whose_worker_was_ended_from_outside_goes_on(model: Path, tmp_path: Path, ampbench: Run) -> None:
    ending = "    def forward(self, x):\n        os.path.exists('calm') or os.kill(os.getpid(), 15)\n"
    model.write_text("import os" + CANCELLING.replace("    def forward(self, x):\n", ending))
    chosen = ["--precision", "fp16_autocast", "--max-trials", "3", "--threads", "1"]
    ended = search(ampbench, f"{model}:make", *chosen)
    (path,) = list_runs(tmp_path / "results")
    (failure,) = read_run(path).failures.values()
    assert (ended.code, failure.cause) == (3, "killed"), ended.err
    (tmp_path / "calm").touch()
    resumed = search(ampbench, "--resume", path.stem)
    assert resumed.code == 0, resumed.err
    assert read_run(path).of(KeepSearch).keys() == {failure.case_id}

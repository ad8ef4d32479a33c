"""`ampbench.asv_suite` and this repository's suite: names and versions are kept on purpose, and asv itself runs it."""

import hashlib
import importlib
import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from asv.util import load_json

from ampbench.convert import read_source
from ampbench.core.precisions import PRECISIONS
from ampbench.errors import UsageError, WorkloadError
from ampbench.records.measured import Divergence
from ampbench.workloads.index import WORKLOADS, class_name
from tests.stored_runs import change_divergence

ROOT = Path(__file__).parents[1]
TRACKED = ("fp64_result", "gradient_error", "other_share", "output_error", "peak_memory")
SUITE = {class_name(spec): spec.name for spec in WORKLOADS.values() if spec.suite}
ON_CPU = [row.name for row in PRECISIONS.values() if "cpu" in row.default_on and not row.tf32]
METHODS = ("time_step", *(f"track_{name}" for name in TRACKED))


def run_asv(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run asv with the project's configuration, but with results of its own and in this environment."""
    settings = load_json(str(ROOT / "asv.conf.json"), js_comments=True) | {
        "repo": str(ROOT),
        "benchmark_dir": str(ROOT / "benchmarks/asv"),
    }
    configuration = tmp_path / "asv.conf.json"
    configuration.write_text(json.dumps(settings | {"results_dir": str(tmp_path / "asv")}))
    (tmp_path / ".asv-machine.json").write_text('{"bench": {"machine": "bench"}, "version": 1}')
    return subprocess.run(
        [sys.executable, "-m", "asv", *arguments, "--config", str(configuration)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "AMPBENCH_DEVICE": "cpu", "ASV_PYTHONPATH": str(ROOT)},
        check=False,
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What `asv run --quick` stores of one workload, by benchmark and column."""
    folder = tmp_path_factory.mktemp("asv")
    environment = ["-E", f"existing:{sys.executable}", "--set-commit-hash", "HEAD"]
    done = run_asv(folder, "run", "--quick", "--machine", "bench", "--bench", r"(Mlp.*fp32|Environment)", *environment)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = (folder / "asv/bench").glob("*-existing-*.json")
    stored = json.loads(path.read_text())
    found = {
        name: dict(zip(stored["result_columns"], columns, strict=False)) for name, columns in stored["results"].items()
    }
    return found | {"path": {"": path}}


def cells_of(result: dict[str, Any]) -> dict[tuple[str, ...], Any]:
    """Return asv's values of one benchmark by phase and precision."""
    phases, names = ([value.strip("'") for value in values] for values in result["params"])
    keys = [(phase, name) for phase in phases for name in names]
    return dict(zip(keys, result["result"], strict=True))


@pytest.mark.slow
def test_asv_measures_every_metric_and_what_cannot_run_here_is_no_row(results: dict[str, dict[str, Any]]) -> None:
    for method in METHODS:
        found = cells_of(results[f"precisions.Mlp.{method}"])
        assert {name for _, name in found} == set(ON_CPU)
        for phase in ("inference", "training"):
            value = found[phase, "fp32"]
            if method == "track_gradient_error" and phase == "inference":
                assert math.isnan(value)
            else:
                assert value >= 0 if method == "track_other_share" else value > 0, (method, phase)
    errors = cells_of(results["precisions.Mlp.track_output_error"])
    assert errors["training", "fp32"] == float(f"{errors['training', 'fp32']:.4g}")


@pytest.mark.slow
def test_what_asv_stored_is_read_as_a_run(results: dict[str, dict[str, Any]]) -> None:
    (stored,) = read_source(results["path"][""], Counter())
    ok = {case_id for values in stored.readings.values() for case_id in values}
    assert {(stored.cases[one].workload, stored.cases[one].precision) for one in ok} == {("mlp", "fp32")}
    assert stored.readings.keys() >= {"seconds_median", "peak_memory_bytes", "output_floor_ratio", "other_share"}


def test_a_number_that_is_not_finite_fails_the_benchmark_because_nan_means_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    suite = importlib.import_module("benchmarks.asv.precisions").Mlp()
    suite.track_fp64_result("training", "fp32")
    [kept] = tmp_path.iterdir()
    found = msgspec.json.decode(kept.read_bytes(), type=Divergence)
    broken = change_divergence(found, output_nonfinite=3, output_rel_l2=None, grad_nonfinite=2)
    kept.write_bytes(msgspec.json.encode(broken))
    with pytest.raises(ArithmeticError, match="3 output elements are not finite"):
        suite.track_output_error("training", "fp32")
    with pytest.raises(ArithmeticError, match="2 gradient elements are not finite"):
        suite.track_gradient_error("training", "fp32")
    said = "3 of 9 output elements are NaN in fp64 already"
    broken = change_divergence(
        found, output_reference_nonfinite=3, output_reference_nan=3, output_rel_l2=None, output_undefined=said
    )
    kept.write_bytes(msgspec.json.encode(broken))
    with pytest.raises(ArithmeticError, match=said):
        suite.track_output_error("training", "fp32")


MINE = """
from ampbench.asv_suite import suite

def made():
    import torch
    return torch.nn.Linear(2, 2), torch.ones(1, 2)

Mine = suite("model.py:make")
Here = suite(made)
Lost = suite("lost.py:make")
SoftmaxHead = suite("model.py:make")
"""


def test_a_class_is_called_as_its_variable_and_its_file_is_the_commits_else_beside_the_benchmarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmarks, checkout = tmp_path / "repository/benchmarks", tmp_path / "environment/project"
    for folder in (benchmarks, checkout, tmp_path / "repository/.git"):
        folder.mkdir(parents=True)
    (benchmarks / "bench.py").write_text(MINE)
    monkeypatch.syspath_prepend(benchmarks)

    def workload() -> str:
        monkeypatch.delitem(sys.modules, "bench", raising=False)
        return str(importlib.import_module("bench").Mine.workload)

    assert workload() == "model.py:make"
    for folder in (benchmarks, benchmarks.parent):  # the later ones win
        (folder / "model.py").touch()
        assert workload() == f"{folder}/model.py:make"
    monkeypatch.setenv("ASV_ENV_DIR", str(checkout.parent))
    assert workload() == f"{benchmarks}/model.py:make"  # never what the working tree has in the commit's place
    (checkout / "model.py").touch()
    assert workload() == f"{checkout}/model.py:make"
    bench = sys.modules["bench"]
    assert (bench.Mine.__name__, bench.Here.__name__, bench.Here.workload) == ("Mine", "Here", "bench:made")
    assert bench.Here().track_peak_memory("inference", "fp32") > 0
    with pytest.raises(WorkloadError, match=r"there is no file lost\.py"):
        bench.Lost().track_peak_memory("inference", "fp32")
    with pytest.raises(UsageError, match="SoftmaxHead is the class of a built-in workload: give yours another name"):
        _ = bench.SoftmaxHead.__name__


def test_a_workload_of_another_size_needs_another_version_so_that_its_series_in_asv_ends() -> None:
    """If this fails: bump the `version` of the workload whose presets changed, then put the new digest here."""
    sizes = {
        name: [*map(dict, (WORKLOADS[name].preset("small"), WORKLOADS[name].preset("large")))]
        for name in SUITE.values()
    }
    digest = hashlib.sha256(json.dumps(sizes, sort_keys=True).encode()).hexdigest()[:16]
    assert digest == "f74cb7b324140936"

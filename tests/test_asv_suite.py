"""The asv suite (benchmarks/asv): its names and versions are kept on purpose, and asv itself runs it."""

import dataclasses
import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from asv.util import load_json

from ampbench.precisions import PRECISIONS
from ampbench.records.environments import DEVICES
from ampbench.workloads.index import WORKLOADS
from benchmarks.asv import precisions

ROOT = Path(__file__).parents[1]
NAMES = {
    "precisions.Speed.time_step": "seconds",
    "precisions.Speed.track_seconds_per_item": "seconds",
    "precisions.Memory.track_peak_memory": "bytes",
    "precisions.Accuracy.track_output_error": "x floor",
    "precisions.Accuracy.track_gradient_error": "relative",
    "precisions.Environment.track_torch_version": "version",
    "precisions.Environment.track_device": "device",
}


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
    """What `asv run --quick` stores of one workload, by benchmark and column; "known": asv's list of benchmarks."""
    folder = tmp_path_factory.mktemp("asv")
    environment = ["-E", f"existing:{sys.executable}", "--set-commit-hash", "HEAD"]
    done = run_asv(
        folder, "run", "--quick", "--machine", "bench", "--bench", r"(mlp.*(fp32|tf32)|Environment)", *environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = (folder / "asv/bench").glob("*-existing-*.json")
    stored = json.loads(path.read_text())
    found = {
        name: dict(zip(stored["result_columns"], columns, strict=False)) for name, columns in stored["results"].items()
    }
    return found | {"known": json.loads((folder / "asv/benchmarks.json").read_text())}


def cells_of(result: dict[str, Any]) -> dict[tuple[str, ...], Any]:
    """Return asv's values of one benchmark by parameters, those that were run."""
    workloads, phases, names = ([value.strip("'") for value in values] for values in result["params"])
    keys = [(workload, phase, name) for workload in workloads for phase in phases for name in names]
    return {key: value for key, value in zip(keys, result["result"], strict=True) if key[0] == "mlp"}


def test_asv_finds_the_benchmarks_by_their_kept_names_units_and_versions(results: dict[str, dict[str, Any]]) -> None:
    known = {name: one for name, one in results["known"].items() if name != "version"}
    assert {name: one["unit"] for name, one in known.items()} == NAMES
    assert {one["version"] for one in known.values()} == {"1"}
    assert all(one["param_names"] in ([], ["workload", "phase", "precision"]) for one in known.values())


def test_asv_measures_every_metric_and_skips_what_cannot_run_here(results: dict[str, dict[str, Any]]) -> None:
    ways = [("mlp", phase, precision) for phase in ("inference", "training") for precision in ("fp32", "tf32")]
    for name in NAMES:
        if name.startswith("precisions.Environment"):
            continue
        found = cells_of(results[name])
        for way in ways:
            wanted = way[2] != "tf32" and (way[1] == "training" or "gradient" not in name)
            assert (found[way] > 0) if wanted else math.isnan(found[way]), (name, way)


def test_an_asv_result_of_an_existing_environment_tells_the_version_of_torch(
    results: dict[str, dict[str, Any]],
) -> None:
    [value] = results["precisions.Environment.track_torch_version"]["result"]
    version = f"{value // 10**6}.{value // 10**3 % 10**3}.{value % 10**3}"
    assert torch.__version__.split("+")[0] == version


def test_the_device_is_told_where_no_variable_names_it(results: dict[str, dict[str, Any]]) -> None:
    assert results["precisions.Environment.track_device"]["result"] == [DEVICES.index("cpu")]


def test_steps_are_timed_in_inference_mode_and_with_the_switches_of_their_precision() -> None:
    speed = precisions.Speed()
    speed.setup("mlp", "inference", "fp32")
    assert torch.is_inference_mode_enabled()
    assert not torch.backends.cudnn.allow_tf32
    speed.time_step()
    speed.setup("mlp", "inference", "fp32")
    assert speed.track_seconds_per_item() > 0
    assert not torch.is_inference_mode_enabled()


def test_a_number_that_is_not_finite_fails_the_benchmark_because_nan_means_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    accuracy = precisions.Accuracy()
    accuracy.setup("mlp", "training", "fp32")
    found = dataclasses.replace(accuracy.divergence, output_nonfinite=3, output_rel_l2=None, grad_nonfinite=2)
    [kept] = tmp_path.iterdir()
    kept.write_bytes(msgspec.json.encode(found))
    accuracy.setup("mlp", "training", "fp32")
    with pytest.raises(ArithmeticError, match="3 output elements are not finite"):
        accuracy.track_output_error()
    with pytest.raises(ArithmeticError, match="2 gradient elements are not finite"):
        accuracy.track_gradient_error()


def test_the_version_of_a_torch_that_is_no_release_is_that_of_the_release_it_leads_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.16.0a0+git1234567")
    assert precisions.Environment().track_torch_version() == 2016000


def test_the_suite_measures_the_default_suites_workloads_in_every_precision() -> None:
    workloads, phases, names = precisions.Case.params
    assert [precisions.SUITE[label] for label in workloads] == [name for name, spec in WORKLOADS.items() if spec.suite]
    assert phases == ["inference", "training"]
    assert names == list(PRECISIONS)


def test_a_workload_of_another_size_needs_another_version_so_that_its_series_in_asv_ends() -> None:
    """If this fails: bump the `version` of the workload whose presets changed, then put the new digest here."""
    sizes = {
        label: [*map(dict, (WORKLOADS[name].small, WORKLOADS[name].large))] for label, name in precisions.SUITE.items()
    }
    digest = hashlib.sha256(json.dumps(sizes, sort_keys=True).encode()).hexdigest()[:16]
    assert digest == "f74cb7b324140936"


def test_the_configuration_measures_at_least_three_versions_of_torch_each_with_its_torchvision() -> None:
    pairs = [
        (rule["req"]["torch"], rule["req"]["torchvision"])
        for rule in load_json(str(ROOT / "asv.conf.json"), js_comments=True)["include"]
    ]
    minors = [(int(torch.split(".")[1]), int(vision.split(".")[1])) for torch, vision in pairs]
    assert len(minors) >= 3
    assert all(vision == min(torch + 15, 29) for torch, vision in minors)

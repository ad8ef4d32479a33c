"""The asv suite (benchmarks/asv): its names and versions are kept on purpose, and asv itself runs it."""

import hashlib
import json
import math
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from asv.util import load_json

from ampbench.convert import asv
from ampbench.core.precisions import PRECISIONS
from ampbench.records.case import DEVICES
from ampbench.workloads.index import WORKLOADS
from benchmarks.asv import precisions
from tests.stored_runs import change_divergence

ROOT = Path(__file__).parents[1]
ON_CPU = [row.name for row in PRECISIONS.values() if "cpu" in row.default_on and not row.tf32]
METHODS = {
    "time_step": "seconds",
    "track_fp64_result": "fingerprint",
    "track_gradient_error": "relative",
    "track_other_share": "share of the CPU",
    "track_output_error": "x floor",
    "track_peak_memory": "bytes",
}
ENVIRONMENT = {
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
    done = run_asv(folder, "run", "--quick", "--machine", "bench", "--bench", r"(Mlp.*fp32|Environment)", *environment)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = (folder / "asv/bench").glob("*-existing-*.json")
    stored = json.loads(path.read_text())
    found = {
        name: dict(zip(stored["result_columns"], columns, strict=False)) for name, columns in stored["results"].items()
    }
    return found | {"known": json.loads((folder / "asv/benchmarks.json").read_text()), "path": {"": path}}


def cells_of(result: dict[str, Any]) -> dict[tuple[str, ...], Any]:
    """Return asv's values of one benchmark by phase and precision."""
    phases, names = ([value.strip("'") for value in values] for values in result["params"])
    keys = [(phase, name) for phase in phases for name in names]
    return dict(zip(keys, result["result"], strict=True))


def test_asv_finds_a_class_for_each_workload_with_the_metrics_as_its_methods(
    results: dict[str, dict[str, Any]],
) -> None:
    known = {name: one for name, one in results["known"].items() if name != "version"}
    methods = {f"precisions.{name}.{method}": unit for name in precisions.SUITE for method, unit in METHODS.items()}
    assert {name: one["unit"] for name, one in known.items()} == methods | ENVIRONMENT
    assert {one["version"] for one in known.values()} == {"1"}
    assert {len(one["params"][0]) * len(one["params"][1]) for name, one in known.items() if name in methods} == {10}
    assert all(one["param_names"] in ([], ["phase", "precision"]) for one in known.values())


def test_the_committed_results_are_of_the_benchmarks_that_the_suite_has(results: dict[str, dict[str, Any]]) -> None:
    committed = ROOT / "results/asv"
    kept = json.loads((committed / "benchmarks.json").read_text())
    assert kept.keys() == results["known"].keys()
    assert [path.name for path in committed.iterdir() if path.is_dir()] == ["epyc-2core-demo"]
    for path in (committed / "epyc-2core-demo").glob("*torch*.json"):
        assert json.loads(path.read_text())["results"].keys() < kept.keys()


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


def test_what_asv_stored_is_read_as_a_run(results: dict[str, dict[str, Any]]) -> None:
    (stored,) = asv.read_results(results["path"][""])
    ok = {case_id for values in stored.readings.values() for case_id in values}
    assert {(stored.cases[one].workload, stored.cases[one].precision) for one in ok} == {("mlp", "fp32")}
    assert stored.readings.keys() >= {"seconds_median", "peak_memory_bytes", "output_floor_ratio", "other_share"}


def test_an_asv_result_of_an_existing_environment_tells_the_version_of_torch(
    results: dict[str, dict[str, Any]],
) -> None:
    [value] = results["precisions.Environment.track_torch_version"]["result"]
    version = f"{value // 10**6}.{value // 10**3 % 10**3}.{value % 10**3}"
    assert torch.__version__.split("+")[0] == version


def test_the_device_is_told_where_no_variable_names_it(results: dict[str, dict[str, Any]]) -> None:
    assert results["precisions.Environment.track_device"]["result"] == [DEVICES.index("cpu")]


def test_steps_are_timed_in_inference_mode_and_with_the_switches_of_their_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as held:
        monkeypatch.setattr(precisions, "_held", held)
        monkeypatch.setattr(precisions, "_opened", {})
        suite = precisions.Mlp()
        suite.time_step.setup("inference", "fp32")
        assert torch.is_inference_mode_enabled()
        assert not torch.backends.cudnn.allow_tf32
        suite.time_step("inference", "fp32")
        suite.time_step.setup("inference", "fp32")
    assert not torch.is_inference_mode_enabled()


def test_a_number_that_is_not_finite_fails_the_benchmark_because_nan_means_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    suite = precisions.Mlp()
    found = precisions.divergence("mlp", "training", "fp32")
    [kept] = tmp_path.iterdir()
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


def test_the_version_of_a_torch_that_is_no_release_is_that_of_the_release_it_leads_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.16.0a0+git1234567")
    assert precisions.Environment().track_torch_version() == 2016000


def test_the_suite_measures_the_default_suites_workloads_in_every_precision() -> None:
    assert list(precisions.SUITE.values()) == [name for name, spec in WORKLOADS.items() if spec.suite]
    assert "CrossEntropyHead" in precisions.SUITE
    phases, names = precisions.Mlp.params
    assert phases == ["inference", "training"]
    assert names in (list(PRECISIONS), ON_CPU)


def test_tf32_is_a_row_where_a_device_may_have_it() -> None:
    code = (
        "import ampbench.drive.servers as e; e.may_have_accelerator = lambda: True; "
        "from benchmarks.asv import precisions; print('tf32' in precisions.NAMES)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "True\n"


def test_a_workload_of_another_size_needs_another_version_so_that_its_series_in_asv_ends() -> None:
    """If this fails: bump the `version` of the workload whose presets changed, then put the new digest here."""
    sizes = {name: [*map(dict, (WORKLOADS[name].small, WORKLOADS[name].large))] for name in precisions.SUITE.values()}
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

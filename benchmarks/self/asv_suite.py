"""What the asv suite costs beside `ampbench run` on the same cases, with as much timing of each."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from asv.util import load_json

from ampbench.store import list_runs, read_run
from ampbench.workloads.index import WORKLOADS as SPECS
from ampbench.workloads.index import class_name

ROOT = Path(__file__).parents[2]
WORKLOADS = ("simple_conv", "mlp", "cross_entropy_head")
ROUNDS = 5
"""The suite times a case in four processes by asv's samples and in one by ampbench's."""


def measure() -> dict[str, float]:
    """Return the seconds of both, and the samples of both: asv's without its discovery and its import of the suite."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        started = _asv(results, "precisions.Environment")
        seconds = _asv(results, f"({'|'.join(class_name(SPECS[name]) for name in WORKLOADS)})") - started
        [stored] = (json.loads(path.read_text()) for path in (results / "asv/bench").glob("*-existing-*.json"))
        own = _seconds(
            [sys.executable, "-m", "ampbench", "run", *WORKLOADS, "--device", "cpu", "--rounds", str(ROUNDS)],
            ["--results", folder],
        )
        run = read_run(list_runs(results)[-1])
        return {
            "asv seconds": seconds,
            "ampbench seconds": own,
            "asv samples": sum(
                count or 0
                for name in WORKLOADS
                for count in _column(stored, f"precisions.{class_name(SPECS[name])}.time_step", "stats_repeat")
            ),
            "ampbench samples": sum(len(build) for each in run.rounds for build in each.samples),
        }


def _asv(results: Path, benchmarks: str) -> float:
    settings = load_json(str(ROOT / "asv.conf.json"), js_comments=True)
    settings |= {name: str(ROOT / settings[name]) for name in ("repo", "benchmark_dir")}
    configuration = results / "asv.conf.json"
    configuration.write_text(json.dumps(settings | {"results_dir": str(results / "asv")}))
    machines = {"bench": {"machine": "bench"}, "version": 1}
    (results / ".asv-machine.json").write_text(json.dumps(machines))  # asv looks for it at home
    asv = [sys.executable, "-m", "asv", "run", "--config", str(configuration), "--machine", "bench"]
    environment = ["-E", f"existing:{sys.executable}", "--set-commit-hash", "HEAD"]
    return _seconds(asv, [*environment, "--bench", benchmarks], HOME=str(results))


def _column(stored: Mapping[str, object], benchmark: str, name: str) -> list[float | None]:
    columns, results = stored["result_columns"], stored["results"]
    assert isinstance(columns, list)
    assert isinstance(results, dict)
    values = results[benchmark][columns.index(name)]
    assert isinstance(values, list)
    return values


def _seconds(command: list[str], options: list[str], **variables: str) -> float:
    variables = {
        **os.environ,
        **variables,
        "AMPBENCH_DEVICE": "cpu",
        "PYTHONPATH": str(ROOT),
        "ASV_PYTHONPATH": str(ROOT),
    }
    start = time.perf_counter()
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL, env=variables, cwd=ROOT)
    return time.perf_counter() - start

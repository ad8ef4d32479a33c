"""How long reading asv's results takes, and writing them as runs, for far more files than a few years bring."""

import itertools
import json
import math
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from ampbench import convert
from ampbench.convert import asv
from ampbench.core.precisions import PRECISIONS
from ampbench.drive.planning import PHASES
from ampbench.workloads.index import WORKLOADS, class_name

FILES = 1000
_COLUMNS = ("result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b")


def seconds(files: int = FILES) -> float:
    """Return the seconds that importing `files` result files of the default suite on a CPU takes."""
    with tempfile.TemporaryDirectory() as folder:
        source, results = Path(folder) / "asv", Path(folder) / "results"
        write_results(source, files)
        started = time.perf_counter()
        runs = convert.read_source(source, Counter())
        written = convert.write_runs(runs, results)
        passed = time.perf_counter() - started
    if len(written.new) != files:
        raise ValueError(f"{len(written.new)} runs were written, not {files}")
    return passed


def write_results(folder: Path, files: int) -> None:
    """Write the results of `files` commits on one machine: of each case all values, as asv writes them."""
    generator = np.random.default_rng(0)
    machine = folder / "bench"
    machine.mkdir(parents=True)
    (machine / "machine.json").write_text(json.dumps({"machine": "bench", "cpu": "", "num_cpu": "2", "version": 1}))
    classes = [class_name(spec) for spec in WORKLOADS.values() if spec.suite]
    benchmarks = [f"precisions.{name}.{method}" for name in classes for method in asv.METHODS]
    names = [[repr(name) for name in names] for names in (PHASES, PRECISIONS)]
    cases = list(itertools.product(*names))
    skipped = ["tf32" in precision for _, precision in cases]
    for number in range(files):
        started = 1_700_000_000_000 + 60_000 * number
        results = {}
        for benchmark in benchmarks:
            values = np.where(skipped, np.nan, generator.lognormal(-7, 0.02, len(cases))).tolist()
            limits = [None if math.isnan(value) else value for value in values] if "time_" in benchmark else None
            results[benchmark] = [values, names, "1", started, 60.0, limits, limits]
        document = {
            "commit_hash": f"{number:040x}",
            "env_name": "virtualenv-py3.11-torch2.15.0",
            "date": started,
            "params": {"machine": "bench", "python": "3.11"},
            "python": "3.11",
            "requirements": {"torch": "2.15.0"},
            "env_vars": {"AMPBENCH_DEVICE": "cpu"},
            "result_columns": _COLUMNS,
            "results": results,
            "durations": {},
            "version": 2,
        }
        (machine / f"{number:08x}-virtualenv-py3.11-torch2.15.0.json").write_text(json.dumps(document))

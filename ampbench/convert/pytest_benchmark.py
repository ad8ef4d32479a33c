"""pytest-benchmark's JSON, as `pytest-benchmark compare` and github-action-benchmark's tool `pytest` read it.

Source: pytest-benchmark 5.3 (`plugin.pytest_benchmark_generate_json`, `stats.Stats`). One of its rounds is one of
ampbench's, and `data` holds what the rounds are worth in seconds per step, so `iterations` is 1. A single round has the
standard deviation 0 there, by that program's own definition.
"""

import json
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from ampbench import stats
from ampbench.convert.selection import Row, Selected, defined
from ampbench.metrics import METRICS

FORMAT_VERSION = "5.3.1"
"""The version of pytest-benchmark whose format this is."""


def run_json(selected: Selected) -> str:
    """Return a run's measured cases with full statistics; the other metrics are in each one's `extra_info`."""
    header = selected.stored.header
    values: dict[str, list[float]] = {}
    for each in selected.stored.rounds:
        if not each.control:
            values.setdefault(each.case_id, []).append(stats.round_value(each.samples))
    document = {
        "machine_info": _machine(selected),
        "commit_info": _commit(header.commit),
        "benchmarks": [_benchmark(selected, row, values[row["case_id"]]) for row in selected.measured],
        "datetime": header.started_at,
        "version": FORMAT_VERSION,
    }
    return json.dumps(document, indent=1, allow_nan=False)


def _benchmark(selected: Selected, row: Row, values: Sequence[float]) -> dict[str, Any]:
    case_id = row["case_id"]
    case = selected.stored.cases[case_id]
    settings = selected.stored.header.settings
    names = ("workload", "precision", "device", "phase", "path", "batch_size", "input_dtype", "memory_format")
    return {
        # the precisions of one table in one group, which is what `compare` shows together
        "group": "/".join((case.group, case.device, case.phase, case.path)),
        "name": case_id,
        "fullname": case_id,
        "params": {**case.parameters, **{name: row[name] for name in names}},
        "param": case.precision,
        "extra_info": {column.name: value for column, value in defined(row, METRICS.values())},
        "options": {"min_rounds": settings.rounds, "min_time": settings.min_run_seconds, "warmup": True},
        "stats": _statistics(values),
    }


def _statistics(values: Sequence[float]) -> dict[str, Any]:
    """Return what pytest-benchmark's `Stats` says of `values`.

    Its quartiles are Hazen's, which NumPy has by that name; an outlier lies beyond one standard deviation from the
    mean, or beyond 1.5 interquartile ranges from the quartiles (Tukey).
    """
    mean, total = statistics.mean(values), sum(values)
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    lower, upper = (float(one) for one in np.quantile(values, [0.25, 0.75], method="hazen"))
    low, high = lower - 1.5 * (upper - lower), upper + 1.5 * (upper - lower)
    beyond_deviation = sum(not mean - deviation <= value <= mean + deviation for value in values)
    beyond_fences = sum(not low <= value <= high for value in values)
    return {
        "min": min(values),
        "max": max(values),
        "mean": mean,
        "stddev": deviation,
        "rounds": len(values),
        "median": statistics.median(values),
        "iqr": upper - lower,
        "q1": lower,
        "q3": upper,
        "iqr_outliers": beyond_fences,
        "stddev_outliers": beyond_deviation,
        "outliers": f"{beyond_deviation};{beyond_fences}",
        "ld15iqr": min(value for value in values if value >= low),
        "hd15iqr": max(value for value in values if value <= high),
        "ops": len(values) / total if total else 0.0,
        "total": total,
        "data": list(values),
        "iterations": 1,
    }


def _machine(selected: Selected) -> dict[str, Any]:
    environment = selected.stored.header.environment
    return {
        "node": environment.host,
        "processor": environment.cpu,
        "system": environment.system,
        "python_version": environment.python_version,
        "cpu": {"brand_raw": environment.cpu, "count": environment.cpu_count},
        "torch_version": environment.torch_version,
        "threads": environment.threads,
        "devices": {device.type: device.name for device in environment.devices if device.available},
    }


def _commit(commit: str | None) -> dict[str, Any]:
    """Return the commit under pytest-benchmark's names; "unversioned" and "(unknown)" are its words for none."""
    return {
        "id": (commit or "unversioned").removesuffix("-dirty"),
        "time": None,
        "author_time": None,
        "dirty": bool(commit) and str(commit).endswith("-dirty"),
        "project": None,
        "branch": "(unknown)",
    }

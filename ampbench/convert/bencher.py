"""Bencher Metric Format: benchmark, then measure, then a value and, where known, its bounds.

Source of the format: https://bencher.dev/docs/reference/bencher-metric-format with its JSON schema
https://bencher.dev/bmf.json. The measures are ampbench's metrics in base units, not Bencher's own `latency`, which is
in nanoseconds; which way one improves is for the thresholds in Bencher to say.
"""

import json

from ampbench.convert.selection import Selected, defined
from ampbench.metrics import METRICS

MEASURES = [column for column in METRICS.values() if column.better is not None]


def run_json(selected: Selected) -> str:
    """Return a run's measured cases; the bounds of `seconds_median` are those of its interval (95%; of asv's 99%)."""
    benchmarks: dict[str, dict[str, dict[str, float]]] = {}
    for row in selected.measured:
        measures = {column.name: {"value": value} for column, value in selected.defined(row, MEASURES)}
        bounds = {"lower_value": METRICS["seconds_low"], "upper_value": METRICS["seconds_high"]}
        for name, column in bounds.items():
            for _, value in defined(row, [column] if "seconds_median" in measures else []):
                measures["seconds_median"][name] = value
        if measures:
            benchmarks[selected.name(row)] = measures
    return json.dumps(benchmarks, indent=1, allow_nan=False)

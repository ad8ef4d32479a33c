"""github-action-benchmark: a JSON list of numbers; those that should fall and those that should rise are two files.

An entry has a name, a unit, a value and, where there is one, a range and extra text. Source: the README of
benchmark-action/github-action-benchmark, "Using Custom Benchmarks", and `extractCustomBenchmarkResult` of its
src/extract.ts, which read the same five keys. Its alarms are ratios of two values, for one number after the other;
hence only metrics that comparisons judge, and of those that should rise all that there are.
"""

import json
from collections.abc import Sequence

from ampbench.convert.selection import Row, Selected
from ampbench.metrics import GATED, METRICS, Column

SMALLER = [METRICS[name] for name in GATED if name in METRICS and METRICS[name].better == "lower"]
BIGGER = [column for column in METRICS.values() if column.better == "higher"]


def smaller_json(selected: Selected) -> str:
    """Return the metrics that should fall, for the tool `customSmallerIsBetter`."""
    return _json(selected, SMALLER)


def bigger_json(selected: Selected) -> str:
    """Return the metrics that should rise, for the tool `customBiggerIsBetter`."""
    return _json(selected, BIGGER)


def _json(selected: Selected, columns: Sequence[Column]) -> str:
    extra = _extra(selected)
    entries = []
    for row in selected.measured:
        for column, value in selected.defined(row, columns):
            entry = {"name": f"{selected.name(row)} {column.name}", "unit": column.unit, "value": value}
            half = _half_width(row) if column.name == "seconds_median" else None
            if half is not None:
                entry["range"] = f"± {half:.3g}"  # the action reads a number behind the sign
            rounds = "" if row["rounds"] is None else f"rounds: {row['rounds']}\n"
            entries.append(entry | {"extra": rounds + extra})
    return json.dumps(entries, indent=1, allow_nan=False)


def _half_width(row: Row) -> float | None:
    """Return half the width of the interval in seconds; the format has no room for an asymmetric one."""
    low, high = row["seconds_low"], row["seconds_high"]
    return None if low is None or high is None else (high - low) / 2


def _extra(selected: Selected) -> str:
    header = selected.stored.header
    environment = header.environment
    return f"run: {header.run}\ntorch: {environment.torch_version}\nhost: {environment.host} ({environment.cpu})"

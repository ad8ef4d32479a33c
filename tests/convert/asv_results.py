"""asv's results of ampbench's suite, as asv writes them, for tests of the import."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NAN = float("nan")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
STARTED = 1_790_000_000_000
"""2026-09-21T14:13:20Z."""
COMMITTED = 1_789_000_000_000
COLUMNS = (
    "result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25",
    "stats_q_75", "stats_number", "stats_repeat", "samples", "profile",
)  # fmt: skip
MACHINE = {
    "arch": "x86_64",
    "cpu": "AMD EPYC",
    "machine": "bench",
    "num_cpu": "2",
    "os": "Linux 6.1",
    "ram": "8589934592",
    "version": 1,
}
STEP = "precisions.Mlp.time_step"
MEMORY = "precisions.Mlp.track_peak_memory"
ERROR = "precisions.Mlp.track_output_error"
GRADIENT = "precisions.Mlp.track_gradient_error"
DEVICE = "precisions.Environment.track_device"


def row(
    values: Sequence[Any] | None,
    phases: Sequence[str] = ("inference",),
    precisions: Sequence[str] = ("fp32", "bf16_autocast"),
    version: str = "1",
    low: Sequence[float | None] | None = None,
    high: Sequence[float | None] | None = None,
) -> list[Any]:
    """Return one benchmark's row; values are in the order phase, precision."""
    params = [[repr(name) for name in names] for names in (phases, precisions)]
    written = [values, params, version, STARTED, 2.5, low, high]
    while written[-1] is None:
        written.pop()
    return written


def suite() -> dict[str, list[Any]]:
    """Return results of one workload in fp32 and bf16_autocast, with the four values that runs have."""
    return {
        STEP: row([2e-3, 1e-3], low=[1.9e-3, None], high=[2.1e-3, None]),
        MEMORY: row([4096, 2048]),
        ERROR: row([1.5, 2.5]),
        GRADIENT: row([NAN, NAN]),
    }


def document(results: Mapping[str, Sequence[Any]] | None = None, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "commit_hash": COMMIT,
        "env_name": "virtualenv-py3.11-AMPBENCH_DEVICEcpu-torch2.13.0",
        "date": COMMITTED,
        "params": {**{name: MACHINE[name] for name in MACHINE if name != "version"}, "python": "3.11"},
        "python": "3.11",
        "requirements": {"torch": "2.13.0", "torchvision": "0.28.0"},
        "env_vars": {"AMPBENCH_DEVICE": "cpu"},
        "result_columns": list(COLUMNS),
        "results": suite() if results is None else results,
        "durations": {},
        "version": 2,
    }
    return {name: value for name, value in (fields | changes).items() if value is not ...}


def write(folder: Path, results: Mapping[str, Sequence[Any]] | None = None, **changes: Any) -> Path:
    """Write a result file and machine.json into `folder`/bench and return the result's path."""
    found = document(results, **changes)
    machine = folder / "bench"
    machine.mkdir(parents=True, exist_ok=True)
    (machine / "machine.json").write_text(json.dumps(MACHINE))
    (folder / "benchmarks.json").write_text(json.dumps({"version": 2}))
    path = machine / f"{found.get('commit_hash', '')[:8]}-{found.get('env_name', '')}.json"
    path.write_text(json.dumps(found))
    return path

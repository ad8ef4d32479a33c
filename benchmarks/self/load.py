"""How long loading, comparing and following runs takes, with files far larger than real ones."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from ampbench import compare
from ampbench.records.case import Case
from ampbench.records.run import Entry
from ampbench.store import RunWriter
from tests.stored_runs import COMPLETE, make_case, make_divergence, make_header, make_memory, make_round

CASES = 100_000
ROUNDS = 5
SAMPLES = 20
BUILDS = 3
PRECISIONS = ("fp32", "fp16_autocast", "bf16_autocast", "bf16_pure")

_LOAD = """
import json, sys, time
from pathlib import Path
import pandas
import ampbench.judge.frame
started = time.perf_counter()
frame = ampbench.load(sys.argv[1])
seconds = time.perf_counter() - started
status = Path("/proc/self/status").read_text().split("VmHWM:")[1]  # getrusage counts the parent's peak, too
print(json.dumps({"rows": len(frame), "seconds": seconds, "rss": int(status.split()[0]) * 1024}))
"""


def measure(cases: int = CASES) -> dict[str, float]:
    """Return the seconds of loading `cases` cases of five rounds of twenty samples, and peak resident bytes.

    It runs in a process of its own; its seconds are without the import of pandas, its bytes with it.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = write_run(Path(folder), cases)
        size = path.stat().st_size
        answer = subprocess.run([sys.executable, "-c", _LOAD, str(path)], check=True, capture_output=True, text=True)
    loaded = json.loads(answer.stdout)
    if loaded["rows"] != cases:
        raise ValueError(f"{loaded['rows']} rows were loaded, not {cases}")
    return {"seconds": loaded["seconds"], "peak resident bytes": loaded["rss"], "file bytes": size}


def write_run(
    results: Path, cases: int, rounds: int = ROUNDS, seed: int = 0, factor: float = 1.0, **header: Any
) -> Path:
    """Write a run of `cases` cases with `rounds` rounds each, memory and divergence, and return its file.

    All times are multiplied by `factor`; `header` are fields of the header.
    """
    generator = np.random.default_rng(seed)
    listed = [
        make_case(PRECISIONS[number % len(PRECISIONS)], workload=f"network_{number // len(PRECISIONS)}")
        for number in range(cases)
    ]
    with RunWriter.create(results, replace(make_header(), **header), listed) as writer:
        for start in range(0, cases, 1000):
            some = listed[start : start + 1000]
            times = factor * generator.lognormal(-7, 0.02, (len(some), rounds, SAMPLES))
            writer.append(
                *(entry for case, rows in zip(some, times, strict=True) for entry in make_entries(case, rows))
            )
        writer.append(COMPLETE)
    return writer.path


def make_entries(case: Case, times: np.ndarray) -> list[Entry]:
    """Return the records of a case: rounds of `times`, memory and divergence."""
    shared = {"steps_per_sample": [10] * BUILDS, "warmup_steps": [3] * BUILDS, "seconds": 1.2345}
    rounds = [
        make_round(case, number=place, samples=[build.tolist() for build in np.array_split(samples, BUILDS)], **shared)
        for place, samples in enumerate(times)
    ]
    return [*rounds, make_memory(case, 9_670_656), make_divergence(case)]


def compare_seconds(cases: int = 10_000, rounds: int = 10) -> float:
    """Return the seconds that comparing two files of `cases` cases takes, reading included."""
    with tempfile.TemporaryDirectory() as folder:
        files = [write_run(Path(folder) / side, cases, rounds) for side in ("baseline", "candidate")]
        started = time.perf_counter()
        changes = compare(*files).changes
        passed = time.perf_counter() - started
    compared = {change.case.case_id for change in changes}
    if len(compared) != cases:
        raise ValueError(f"{len(compared)} cases were compared, not {cases}")
    return passed


def trend_seconds(runs: int = 200, cases: int = 200) -> float:
    """Return the wall time of `ampbench trend --x commit` over as many stored runs, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        write_history(Path(folder), runs, cases)
        started = time.perf_counter()
        command = [sys.executable, "-m", "ampbench", "trend", "--x", "commit", "--results", folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        passed = time.perf_counter() - started
    if f"of {cases} cases over commit" not in done.stdout:
        raise ValueError(f"not {cases} cases: {done.stdout[:200]}")
    return passed


def write_history(results: Path, runs: int, cases: int) -> None:
    """Write `runs` runs, a commit and a day each, of `cases` cases; from the middle on, all are 5% slower."""
    for number in range(runs):
        factor = 1.05 if number >= runs // 2 else 1.0
        write_run(results, cases, 4, seed=number, factor=factor, run=f"r{number:04}", commit=f"{number:040x}",
                       started_at=f"2026-{1 + number // 28:02}-{1 + number % 28:02}T12:00:00Z")  # fmt: skip

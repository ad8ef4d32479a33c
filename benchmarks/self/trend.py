"""How long `ampbench trend` takes over two hundred runs of two hundred cases: the whole command."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.self import load

RUNS = 200
CASES = 200
ROUNDS = 4


def seconds(runs: int = RUNS, cases: int = CASES) -> float:
    """Return the wall time of `ampbench trend --x commit` over as many stored runs, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder), runs, cases)
        time.sleep(load.SETTLED)
        started = time.perf_counter()
        command = [sys.executable, "-m", "ampbench", "trend", "--x", "commit", "--results", folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        passed = time.perf_counter() - started
    if f"of {cases} cases over commit" not in done.stdout:
        raise ValueError(f"not {cases} cases: {done.stdout[:200]}")
    return passed


def write_runs(results: Path, runs: int, cases: int) -> None:
    """Write `runs` runs, a commit and a day each, of `cases` cases; from the middle on, all are 5% slower."""
    for number in range(runs):
        factor = 1.05 if number >= runs // 2 else 1.0
        load.write_run(results, cases, ROUNDS, seed=number, factor=factor, run=f"r{number:04}", commit=f"{number:040x}",
                       started_at=f"2026-{1 + number // 28:02}-{1 + number % 28:02}T12:00:00Z")  # fmt: skip

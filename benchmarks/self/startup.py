"""How long the command line takes to start: what a user waits before anything is measured."""

import statistics
import subprocess
import sys
import time
from pathlib import Path

REPETITIONS = 7


def command_seconds(*arguments: str) -> float:
    """Return the median wall time of `ampbench ARGUMENTS` in seconds."""
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "ampbench", *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure_small_run(results: Path) -> None:
    """Leave a stored run of one workload in `results`, for `show` to read."""
    arguments = ["run", "mlp", "--preset", "tiny", "--min-run-time", "0.02", "--results", str(results)]
    subprocess.run([sys.executable, "-m", "ampbench", *arguments], check=True, capture_output=True)

"""How long the command line takes to start and to answer: what a user waits before anything is measured."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ampbench.core.units import format_seconds
from ampbench.errors import CASE_FAILED, UsageError

REPETITIONS = 7
BARE, TORCH = ("-c", "pass"), ("-c", "import torch")
PROMPT, ANSWER = "≤ 0.15 s", "≤ 0.35 s"
ANSWERED = (0, UsageError.exit_code, CASE_FAILED)
"""A mistake is told, and a machine may be found unfit: both are answers."""


def rows() -> list[tuple[str, str, str]]:
    """Return what was measured, how long it took, also in times of bare Python's start, and the goal."""
    with tempfile.TemporaryDirectory() as folder:
        measure_small_run(Path(folder))
        stored = ["--results", folder]
        asked = {
            "ampbench --help": (PROMPT, ["--help"]),
            "ampbench run --help": (PROMPT, ["run", "--help"]),
            "ampbench run --nonsense": (PROMPT, ["run", "--nonsense"]),
            "ampbench list workloads": (ANSWER, ["list", "workloads"]),
            "ampbench show latest": (ANSWER, ["show", "latest", *stored]),
            "ampbench doctor --results": (f"{ANSWER} beside the import of torch", ["doctor", *stored]),
        }
        lines = {name: ("-m", "ampbench", *words) for name, (_, words) in asked.items()}
        medians = in_turns({"python -c pass": BARE, "python -c 'import torch'": TORCH, **lines})
    bare = medians["python -c pass"]
    goals = {name: goal for name, (goal, _) in asked.items()}
    return [
        (name, f"{format_seconds(seconds)}, {seconds / bare:.1f} times bare Python", goals.get(name, "–"))
        for name, seconds in medians.items()
    ]


def in_turns(lines: Mapping[str, Sequence[str]], repetitions: int = REPETITIONS) -> dict[str, float]:
    """Return the median wall time in seconds of Python with each of the arguments, which take turns.

    What slows the machine down for a while slows down all of them. The first turn, which reads the disk, is not timed.
    """
    times: dict[str, list[float]] = {name: [] for name in lines}
    for turn in range(repetitions + 1):
        for name, words in lines.items():
            start = time.perf_counter()
            done = subprocess.run([sys.executable, *words], check=False, capture_output=True)
            seconds = time.perf_counter() - start
            if done.returncode not in ANSWERED:
                raise RuntimeError(f"{name} failed: {done.stderr.decode()}")
            times[name] += [seconds] if turn else []
    return {name: statistics.median(taken) for name, taken in times.items()}


def measure_small_run(results: Path) -> None:
    """Leave a stored run of one workload in `results`, for `show` to read."""
    arguments = ["run", "mlp", "--preset", "tiny", "--min-run-time", "0.02", "--results", str(results)]
    subprocess.run([sys.executable, "-m", "ampbench", *arguments], check=True, capture_output=True)

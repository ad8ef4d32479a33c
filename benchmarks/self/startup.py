"""How long the command line takes to start and to answer, and a session beyond its rounds."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from ampbench.core.units import format_seconds
from ampbench.errors import CASE_FAILED, UsageError
from ampbench.records.measured import Round
from ampbench.store import list_runs, read_run

REPETITIONS = 7
BARE, TORCH = ("-c", "pass"), ("-c", "import torch")
PROMPT, ANSWER = "≤ 0.15 s", "≤ 0.35 s"
ANSWERED = (0, UsageError.exit_code, CASE_FAILED)
"""The exit codes of an answer: an error message or an unfit machine counts."""


def rows() -> list[tuple[str, str, str]]:
    """Return each command with its time, also relative to bare Python's start, and its goal."""
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


ONE_NETWORK = ("run", "mlp")
DEFAULT = ("run", "--budget", "10")


def wall_rows() -> Iterator[tuple[str, str, str]]:
    """Yield each session's name, time and goal."""
    began, _, rounds = _session(ONE_NETWORK)
    first = max(_ended(timing) for timing in rounds if timing.round == 0) - began
    yield "ampbench run mlp, 5 precisions, both phases: its first full table", format_seconds(first), "≤ 10 s"
    _, wall, _ = _session(DEFAULT)
    yield "ampbench run, the default suite (make demo): wall", format_seconds(wall), "≤ 90 s"


def _session(arguments: tuple[str, ...]) -> tuple[float, float, list[Round]]:
    """Return when a session began (of the epoch), how long it took, and its rounds."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        command = [sys.executable, "-m", "ampbench", *arguments, "--results", folder]
        subprocess.run(command, capture_output=True, check=False)
        wall = time.time() - began
        return began, wall, [timing for path in list_runs(Path(folder)) for timing in read_run(path).rounds]


def _ended(timing: Round) -> float:
    return datetime.fromisoformat(timing.finished_at).timestamp()

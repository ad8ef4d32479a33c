"""What a session takes beside its rounds: imports, passes, servers that start, and what lies between blocks."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from ampbench.core.units import format_seconds
from ampbench.records.measured import Round
from ampbench.store import list_runs, read_run

ONE_NETWORK = ("run", "mlp")
DEFAULT = ("run", "--budget", "10")
TWO_ARMS = ("ab", "mlp", "--phase", "inference", "--baseline", "here", "--candidate", "X=1", "--rounds", "5")


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield what was measured, how long it took, and the goal."""
    began, _, rounds = _session(ONE_NETWORK)
    first = max(_ended(timing) for timing in rounds if timing.round == 0) - began
    yield "ampbench run mlp, 5 precisions, both phases: its first full table", format_seconds(first), "≤ 10 s"
    _, wall, _ = _session(DEFAULT)
    yield "ampbench run, the default suite (make demo): wall", format_seconds(wall), "≤ 90 s"
    _, _, rounds = _session(TWO_ARMS)
    between = statistics.median(between_blocks(rounds))
    yield "ampbench ab, three lanes: from a block's last build to the next one's first", format_seconds(between), "–"


def between_blocks(rounds: Iterable[Round]) -> list[float]:
    """Return the seconds from the end of the last round of each block to the beginning of the next one's first.

    A round of `ab` tells how long its builds took, not what lay between them: builds of other lanes in the first round
    of a block count as before it, which is a fraction of a second.
    """
    ends: dict[int, tuple[float, float]] = {}
    for timing in rounds:
        first, last = ends.get(timing.round, (float("inf"), 0.0))
        ends[timing.round] = min(first, _ended(timing) - timing.seconds), max(last, _ended(timing))
    ordered = [ends[block] for block in sorted(ends)]
    return [after[0] - before[1] for before, after in pairwise(ordered)]


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

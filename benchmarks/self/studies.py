"""How long the studies take that have goals: digits in every precision of this CPU, and its ceilings."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from ampbench.core.units import format_seconds

STUDIES = (
    ("trainings of digits, every precision of this CPU, 3 seeds", ("training", "digits"), "≤ 3 min"),
    ("ceilings of this CPU, every operation and dtype", ("ceilings", "--device", "cpu"), "≤ 60 s"),
)


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield what was measured, the wall time of the command, and the goal."""
    for what, arguments, goal in STUDIES:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "ampbench", "study", *arguments, "--results", folder]
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            yield what, format_seconds(time.perf_counter() - start), goal

"""How long comparing two run files far larger than real ones takes."""

import tempfile
import time
from pathlib import Path

from ampbench import compare
from benchmarks.self import load

CASES = 10_000
ROUNDS = 10


def seconds(cases: int = CASES, rounds: int = ROUNDS) -> float:
    """Return the seconds that comparing two files of `cases` cases takes, reading included."""
    with tempfile.TemporaryDirectory() as folder:
        files = [load.write_run(Path(folder) / side, cases, rounds) for side in ("baseline", "candidate")]
        time.sleep(load.SETTLED)
        started = time.perf_counter()
        changes = compare(*files).changes
        passed = time.perf_counter() - started
    compared = {change.case.case_id for change in changes}
    if len(compared) != cases:
        raise ValueError(f"{len(compared)} cases were compared, not {cases}")
    return passed

"""Stored runs: `results/runs/<UTC time>-<host>-<id>.jsonl`, appended to while measuring, refused if damaged.

A run file is a header, the cases, their entries and a footer, one JSON object a line (docs/results-format.md). It holds
raw data only; everything derived is derived by those who read it.
"""

from ampbench.store.folder import (
    check_folder,
    check_results,
    check_runs,
    find_fleet,
    find_run,
    find_runs,
    list_runs,
    measured_files,
    measures,
    merged_in,
    not_measured,
    read_found,
    read_together,
    run_files,
    runs_with,
)
from ampbench.store.run_file import (
    CUT,
    CannotBeError,
    RunWriter,
    StoredRun,
    gathered,
    new_run_id,
    no_garbage_collection,
    once,
    read_header,
    read_run,
    require_writable,
    run_id,
    write_whole,
)

__all__ = [
    "CUT", "CannotBeError", "RunWriter", "StoredRun", "check_folder", "check_results", "check_runs", "find_fleet",
    "find_run", "find_runs", "gathered", "list_runs", "measured_files", "measures", "merged_in", "new_run_id",
    "no_garbage_collection", "not_measured", "once", "read_found", "read_header", "read_run", "read_together",
    "require_writable", "run_files", "run_id", "runs_with", "write_whole",
]  # fmt: skip

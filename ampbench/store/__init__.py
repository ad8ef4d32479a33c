"""Stored runs: `results/runs/<UTC time>-<host>-<id>.jsonl`, appended to while measuring, refused if damaged.

A run file is a header, the cases, their entries and a footer, one JSON object a line (docs/results-format.md). It holds
raw data only; everything derived is derived by those who read it.
"""

from ampbench.store.folder import check_folder as check_folder
from ampbench.store.folder import check_results as check_results
from ampbench.store.folder import check_runs as check_runs
from ampbench.store.folder import find_fleet as find_fleet
from ampbench.store.folder import find_run as find_run
from ampbench.store.folder import find_runs as find_runs
from ampbench.store.folder import list_runs as list_runs
from ampbench.store.folder import measured_files as measured_files
from ampbench.store.folder import measures as measures
from ampbench.store.folder import merged_in as merged_in
from ampbench.store.folder import not_measured as not_measured
from ampbench.store.folder import run_files as run_files
from ampbench.store.folder import runs_beside as runs_beside
from ampbench.store.folder import runs_with as runs_with
from ampbench.store.run_file import CUT as CUT
from ampbench.store.run_file import CannotBeError as CannotBeError
from ampbench.store.run_file import RunWriter as RunWriter
from ampbench.store.run_file import StoredRun as StoredRun
from ampbench.store.run_file import gathered as gathered
from ampbench.store.run_file import new_run_id as new_run_id
from ampbench.store.run_file import no_garbage_collection as no_garbage_collection
from ampbench.store.run_file import once as once
from ampbench.store.run_file import read_header as read_header
from ampbench.store.run_file import read_run as read_run
from ampbench.store.run_file import require_writable as require_writable
from ampbench.store.run_file import run_id as run_id
from ampbench.store.run_file import write_whole as write_whole

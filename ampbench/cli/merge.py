"""`ampbench merge`: the shards of a run put together."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from ampbench.cli.options import A_RUN, DEFAULT_RESULTS, Results, run_argument, run_words
from ampbench.cli.printing import print_note
from ampbench.core.units import counted
from ampbench.errors import StoreError

Shards = Annotated[
    list[str], run_argument("SHARD...", f"What ampbench run --shard measured: each {A_RUN}; or their folder.")
]


def command(shards: Shards, results: Results = DEFAULT_RESULTS) -> None:
    """Put the shards of a run together: one run for each machine, as if that had measured them all by itself.

    Shards are of one machine where nothing but its name differs. All must be there, of one plan, commit and
    environment. The run is written into the results folder; the shards stay as they are.

    \b
    Examples:
      ampbench merge shards/
      ampbench merge job-*/results/runs/*.jsonl --results nightly
    """
    from ampbench import store
    from ampbench.store.folder import merged

    store.require_writable(results)
    files = dict.fromkeys(path for name in shards for path in _files(name, results))
    runs = merged([store.read_run(path) for path in files], ["ampbench", *sys.argv[1:]])
    known = {tuple(merged): path for path, merged in store.merged_in(store.list_runs(results)).items()}
    before = {run.header.run: found for run in runs if (found := known.get(tuple(run.header.merged)))}
    written = store.write_whole([run for run in runs if run.header.run not in before], results)
    for run in runs:
        name, shards_said = run.header.run, counted(len(run.header.merged), "shard")
        if name in written:
            path, what = written[name], f"{shards_said} merged"
        else:
            path, what = before[name], f"{shards_said} were merged before"
        print_note(f"{what}: {path}; ampbench show {run_words(path, results)}")


def _files(name: str, results: Path) -> Sequence[Path]:
    """Return the files of the shards that `name` names, a folder's all; `StoreError` for a folder without any."""
    from ampbench import store

    folder = Path(name).expanduser()
    if not folder.is_dir():
        return [store.find_run(name, results, print_note)]
    found = [path for path in store.run_files(folder) if store.read_header(path).shard is not None]
    if not found:
        raise StoreError(
            f"there is no shard in {folder}: ampbench run --shard I/N measures one, or give another folder"
        )
    return found

"""`ampbench convert` and `merge`: runs to and from other programs' formats, and shards joined to runs."""

import sys
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

from ampbench import store
from ampbench.cli.options import (
    A_RUN,
    DEFAULT_RESULTS,
    Argument,
    Option,
    Results,
    run_words,
)
from ampbench.cli.printing import print_note, print_text, write_file
from ampbench.core.units import counted
from ampbench.errors import StoreError, UnknownNameError, UsageError

PARQUET = "parquet"
"""The format of one file for all runs."""
NATIVE = "native"
"""ampbench's own format: results of other programs are converted to it."""


def command(
    runs: Annotated[
        list[str],
        Argument(
            metavar="RUN",
            help=f"A run: {A_RUN}; several, or a folder of runs, for parquet. For native: files or folders of "
            "asv's results.",
        ),
    ],
    to: Annotated[
        str,
        Option(
            "--to",
            metavar="FORMAT",
            help="junit, bencher, pytest-benchmark or parquet; or native.",
        ),
    ],
    output: Annotated[
        Path | None, Option("-o", "--output", metavar="FILE", help="Write this file. Default: print.")
    ] = None,
    results: Results = DEFAULT_RESULTS,
) -> int:
    """Convert stored runs to another program's format, or its results to runs.

    \b
    Examples:
      ampbench convert latest --to junit -o ampbench.xml
      ampbench convert results --to parquet -o runs.parquet
      ampbench convert results/asv --to native
    """
    from ampbench.convert import FORMATS, cases_of, parquet, written

    if to not in (known := [*FORMATS, PARQUET, NATIVE]):
        raise UnknownNameError("format", to, known)
    if to == NATIVE:
        if output is not None:
            raise UsageError(f"--to {NATIVE} does not take -o: it writes into the folder of --results")
        _import(runs, results)
        return 0
    if to == PARQUET and output is None:
        raise UsageError(f"--to {PARQUET} is not text: name a file, as in -o runs.parquet")
    if to != PARQUET and len(runs) > 1:
        raise UsageError(f"--to {to} takes one run, not {len(runs)}: convert them one by one, or use parquet")
    text: str | bytes
    if to == PARQUET:
        files = (
            store.measured_files(Path(run)) if Path(run).is_dir() else store.find_runs(run, results, print_note)
            for run in runs
        )
        table, cut = cases_of(list(dict.fromkeys(chain.from_iterable(files))))
        text = parquet(table)
    else:
        stored = store.read_found(runs[0], results, print_note)
        text, lost = written(stored, to)
        cut = [stored.path] if stored.cut else []
        if lost:
            counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(lost.items()))
            print_note(f"{to} has no place for {counts}: left out")
    for path in cut:
        print_note(f"{path} {store.CUT}")
    if output is not None:
        write_file(output, text)
        print_note(f"wrote {output}")
    else:
        print_text(str(text))
    return 0


def _import(sources: Sequence[str], results: Path) -> None:
    """Read and check each whole source, then write its runs; print their number and the omissions."""
    from ampbench.convert import read_source, write_runs

    for source in dict.fromkeys(sources):
        remarks = Counter[str]()
        runs = list(read_source(Path(source).expanduser(), remarks))
        if not runs:
            raise StoreError(f"{source} holds no results of asv")
        for remark, files in remarks.items():
            print_note(f"{source}: {remark}{f' (in {files:,} files)' if files > 1 else ''}")
        new, known = write_runs(runs, results)
        already = f", {known:,} already there, left as they are" if known else ""
        print_note(f"{source}: {counted(len(new), 'run')} written into {results / 'runs'}{already}")


Shards = Annotated[
    list[str], Argument(metavar="SHARD...", help=f"What ampbench run --shard measured: each {A_RUN}; or their folder.")
]


def merge(shards: Shards, results: Results = DEFAULT_RESULTS) -> None:
    """Join the shards of a run to one run.

    All shards must be present, of one plan, commit and environment; machines may differ in their names. The run is
    written into the results folder; the shards stay as they are.

    \b
    Examples:
      ampbench merge shards/
      ampbench merge job-*/results/runs/*.jsonl --results nightly
    """
    from ampbench.store.folder import merged

    store.require_writable(results)
    files = dict.fromkeys(path for name in shards for path in _files(name, results))
    run = merged([store.read_run(path) for path in files], ["ampbench", *sys.argv[1:]])
    known = {tuple(shards): path for path, shards in store.merged_in(store.list_runs(results)).items()}
    before = known.get(tuple(run.header.merged))
    path = before or store.write_whole([run], results)[run.header.run]
    count = counted(len(run.header.merged), "shard")
    print_note(
        f"{count} {'were merged before' if before else 'merged'}: {path}; ampbench show {run_words(path, results)}"
    )


def _files(name: str, results: Path) -> Sequence[Path]:
    """Return the file of the shard `name`, or all shards of a folder; `StoreError` for a folder without any."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return [store.find_run(name, results, print_note)]
    shards = [path for path in store.run_files(folder) if store.read_header(path).shard is not None]
    if not shards:
        raise StoreError(
            f"there is no shard in {folder}: ampbench run --shard I/N measures one, or give another folder"
        )
    return shards

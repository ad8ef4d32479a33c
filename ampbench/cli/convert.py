"""`ampbench convert` and `merge`: runs in other programs' formats and from them, and shards put together."""

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.cli.options import (
    A_RUN,
    DEFAULT_RESULTS,
    Keyword,
    Results,
    formats,
    many_names,
    run_argument,
    run_option,
    run_words,
)
from ampbench.cli.printing import check_writable, print_note, print_text, write_files
from ampbench.core.units import counted
from ampbench.errors import NothingToRunError, StoreError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from ampbench.store import StoredRun


PARQUET = "parquet"
"""What holds rows whole, those of several runs in one file."""
NATIVE = "native"
"""What ampbench's own format is called: to it, other programs' results are converted."""
JUNIT = "junit"
"""The format of a comparison, too."""
OPTIONS = ("-o", "--baseline", "-k", "--metric", "--short")
"""What some formats do not take."""
NAMED_RUNS = 5
"""So many of the files written are named; the results folder has them all."""


def command(
    runs: Annotated[
        list[str],
        run_argument(
            "RUN",
            f"A run: {A_RUN}; several, or a folder of runs, for parquet. For native: files or folders of "
            "asv's results or of pytest-benchmark's JSON.",
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="junit, github-smaller, bencher, pytest-benchmark or parquet; or native.",
            autocompletion=formats,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write this file. Default: print.")
    ] = None,
    baseline: Annotated[
        str,
        run_option("--baseline", "Tell of the comparison with this run (junit)."),
    ] = "",
    results: Results = DEFAULT_RESULTS,
    keyword: Keyword = "",
    metric: Annotated[
        list[str] | None,
        many_names("--metric", "Only these, by ampbench trend's names or as columns (github-smaller, bencher)."),
    ] = None,
    short: Annotated[
        bool,
        typer.Option("--short", help="Name cases as ampbench show does, not by their ids (github-smaller, bencher)."),
    ] = False,
) -> int:
    """Convert stored runs to another program's format, or its results to runs; docs/convert.md lists the fields kept.

    \b
    Examples:
      ampbench convert latest --to junit -o ampbench.xml
      ampbench convert latest --baseline main.jsonl --to junit
      ampbench convert latest --to github-smaller --metric time,memory --short -o smaller.json
      ampbench convert results --to parquet -o runs.parquet
      ampbench convert results/asv .benchmarks --to native
    """
    given = {"-o": output, "--baseline": baseline, "-k": keyword, "--metric": metric, "--short": short}
    columns = _checked(to, runs, {option for option, value in given.items() if value}, metric or ())
    if to == NATIVE:
        _import(runs, results)
        return 0
    if output is not None:
        check_writable(output)
    text: str | bytes
    if to == PARQUET:
        text, notes = _parquet(runs, results, keyword)
    elif baseline:
        text, notes = _compared(runs[0], baseline, results, keyword)
    else:
        text, notes = _converted(runs[0], to, results, keyword, columns, short)
    for note in notes:
        print_note(note)
    if output is not None:
        write_files({output: text})
        print_note(f"wrote {output}")
    elif isinstance(text, str):
        print_text(text)
    return 0


def _checked(to: str, runs: Sequence[str], given: Collection[str], metrics: Iterable[str]) -> list[str] | None:
    """Return the columns that `metrics` name, None for all of the format.

    Raises `UsageError` for what the format does not take, before any run is read.
    """
    from ampbench.convert import FORMATS
    from ampbench.trend.series import TRACKED

    if to not in (*FORMATS, PARQUET, NATIVE):
        raise UnknownNameError("format", to, [*FORMATS, PARQUET, NATIVE])
    told = [column.name for column in FORMATS[to].columns] if to in FORMATS else []
    taken = {*(() if to == NATIVE else ("-o", "-k")), *(("--metric", "--short") if told else ())}
    taken |= {"--baseline"} if to == JUNIT else set()
    for option in OPTIONS:
        if option in given and option not in taken:
            raise UsageError(f"--to {to} does not take {option}: leave it out (--help says which format takes it)")
    if to == PARQUET and "-o" not in given:
        raise UsageError(f"--to {PARQUET} is not text: name a file, as in -o runs.parquet")
    if to in FORMATS and len(runs) > 1:
        raise UsageError(f"--to {to} takes one run, not {len(runs)}: convert them one by one, or use parquet")
    names = {name: metric.column.name for name, metric in TRACKED.items() if metric.column.name in told}
    names |= {name: name for name in told}
    for name in metrics:
        if name not in names:
            raise UnknownNameError(f"metric of {to}", name, names)
    return [names[name] for name in metrics] or None


def _converted(
    run: str, to: str, results: Path, keyword: str, columns: Sequence[str] | None, short: bool
) -> tuple[str, list[str]]:
    """Return a run in the format `to`, and which cases that leaves out; `NothingToRunError` where that is all."""
    from ampbench.convert import FORMATS, select

    stored, notes = _read(run, results)
    chosen = select(stored, keyword, columns=columns, short=short)
    kept = getattr(chosen, FORMATS[to].cases)
    ids = {row["case_id"] for row in kept}
    lost = Counter(
        "without rounds" if row["outcome"] == "ok" else row["outcome"]
        for row in chosen.rows
        if row["case_id"] not in ids
    )
    counts = ", ".join(f"{count:,} {what}" for what, count in sorted(lost.items()))
    if not kept:
        raise NothingToRunError(f"{to} has no place for any case of {stored.header.run}: {counts}; junit has all")
    return FORMATS[to].write(chosen), [*notes, *([f"{to} has no place for {counts}: left out"] if lost else [])]


def _compared(run: str, baseline: str, results: Path, keyword: str) -> tuple[str, list[str]]:
    """Return the comparison of a run with its baseline as JUnit."""
    from ampbench.comparison import Comparison
    from ampbench.convert.formats import junit_of_comparison

    (stored, notes), (against, more) = _read(run, results), _read(baseline, results)
    return junit_of_comparison(Comparison(against, stored, keyword=keyword).compared), notes + more


def _read(run: str, results: Path) -> tuple["StoredRun", list[str]]:
    from ampbench import store

    stored = store.read_run(store.find_run(run, results, print_note))
    return stored, [f"{stored.path} {store.CUT}"] if stored.cut else []


def _parquet(runs: Sequence[str], results: Path, keyword: str) -> tuple[bytes, list[str]]:
    """Return the cases of all runs, as `ampbench.load` has them and with columns of their runs."""
    from ampbench import store
    from ampbench.convert.formats import cases_of, parquet

    found = (
        store.measured_files(Path(run)) if Path(run).is_dir() else store.find_runs(run, results, print_note)
        for run in runs
    )
    columns, cut = cases_of(list(dict.fromkeys(chain.from_iterable(found))), keyword)
    return parquet(columns), [f"{path} {store.CUT}" for path in cut]


def _import(sources: Sequence[str], results: Path) -> None:
    """Read and check each source as a whole, then write its runs; print what was written and what was left out."""
    from ampbench.convert.native import read_source, write_runs

    for source in dict.fromkeys(sources):
        path, remarks = Path(source).expanduser(), Counter[str]()
        read = list(read_source(path, remarks))
        for remark, files in remarks.items():
            print_note(f"{source}: {remark}{f' (in {files:,} files)' if files > 1 else ''}")
        written = write_runs(read, results)
        for file in list(written.new.values())[:NAMED_RUNS]:
            print_note(f"wrote {file}")
        counts = [f"{counted(len(written.new), 'run')} written"]
        counts += [f"{len(written.known):,} already there, left as they are"] if written.known else []
        print_note(f"{source}: {', '.join(counts)}")


Shards = Annotated[
    list[str], run_argument("SHARD...", f"What ampbench run --shard measured: each {A_RUN}; or their folder.")
]


def merge(shards: Shards, results: Results = DEFAULT_RESULTS) -> None:
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

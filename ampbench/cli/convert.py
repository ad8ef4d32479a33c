"""`ampbench convert` and `merge`: runs in other programs' formats and from them, and shards put together."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from ampbench.convert import Format, Selected


PARQUET = "parquet"
"""What holds rows whole, those of several runs in one file."""
NATIVE = "native"
"""What ampbench's own format is called: to it, other programs' results are converted."""
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
    """Convert stored runs to another program's format, or its results to runs; docs/convert.md says what is kept.

    \b
    Examples:
      ampbench convert latest --to junit -o ampbench.xml
      ampbench convert latest --baseline main.jsonl --to junit
      ampbench convert latest --to github-smaller --metric time,memory --short -o smaller.json
      ampbench convert results --to parquet -o runs.parquet
      ampbench convert results/asv .benchmarks --to native
    """
    if to == NATIVE:
        meaningless = {"-o": output, "--baseline": baseline, "-k": keyword, "--metric": metric, "--short": short}
        _refuse(meaningless, NATIVE, "whole runs into --results DIR")
        return _import(runs, results)
    if to == PARQUET:
        return _parquet(runs, output, results, keyword, {"--baseline": baseline, "--metric": metric, "--short": short})
    from ampbench import store
    from ampbench.convert import select

    format = _known(to)
    _check(format, runs, baseline)
    columns = _chosen(format, metric, short)
    stored = store.read_run(store.find_run(runs[0], results, print_note))
    notes = [f"{stored.path} {store.CUT}"] if stored.cut else []
    if baseline and format.of_comparison:
        from ampbench.comparison import Comparison

        against = store.read_run(store.find_run(baseline, results, print_note))
        text = format.of_comparison(Comparison(against, stored, keyword=keyword).compared)
    else:
        chosen = select(stored, keyword, columns=columns, short=short)
        notes += _losses(format, chosen)
        text = format.of_run(chosen)
    for note in notes:
        print_note(note)
    if output is not None:
        write_files({output: text})
        print_note(f"wrote {output}")
    else:
        print_text(text)
    return 0


def _refuse(meaningless: Mapping[str, Any], to: str, writes: str) -> None:
    """Raise `UsageError` where any option of these, by name, was given, for a target that `writes` without it."""
    for option, given in meaningless.items():
        if given:
            raise UsageError(f"--to {to} writes {writes}: leave {option} out")


def _import(sources: Sequence[str], results: Path) -> int:
    """Read and check each source as a whole, then write its runs; say what was written and what was left out."""
    from ampbench.convert.native import read_source, write_runs

    for source in dict.fromkeys(sources):
        path, remarks = Path(source).expanduser(), Counter[str]()
        read = list(read_source(path, remarks))
        for remark, files in remarks.items():
            print_note(f"{source}: {remark}{f' (in {files:,} files)' if files > 1 else ''}")
        written = write_runs(read, results)
        for run in list(written.new)[:NAMED_RUNS]:
            print_note(f"wrote {written.new[run]}")
        counts = [f"{counted(len(written.new), 'run')} written"]
        counts += [f"{len(written.known):,} already there, left as they are"] if written.known else []
        print_note(f"{source}: {', '.join(counts)}")
    return 0


def _parquet(
    runs: Sequence[str], output: Path | None, results: Path, keyword: str, meaningless: Mapping[str, object]
) -> int:
    """Write the cases of all runs, as `ampbench.load` has them and with columns of their runs, into one file."""
    from ampbench import store
    from ampbench.convert.formats import cases_of, parquet

    _refuse(meaningless, PARQUET, "whole rows")
    if output is None:
        raise UsageError(f"--to {PARQUET} is not text: name a file, as in -o runs.parquet")
    check_writable(output)
    found = (
        store.measured_files(Path(run)) if Path(run).is_dir() else store.find_runs(run, results, print_note)
        for run in runs
    )
    files = dict.fromkeys(chain.from_iterable(found))
    cases = cases_of(list(files)).matching(keyword)
    for path in cases.cut:
        print_note(f"{path} {store.CUT}")
    write_files({output: parquet(cases.columns)})
    print_note(f"wrote {output}")
    return 0


def _known(name: str) -> "Format":
    """Return the format called `name`; raises `UnknownNameError` with the nearest ones."""
    from ampbench.convert import FORMATS

    if name not in FORMATS:
        raise UnknownNameError("format", name, [*FORMATS, PARQUET, NATIVE])
    return FORMATS[name]


def _check(format: "Format", runs: Sequence[str], baseline: str) -> None:
    """Raise `UsageError` for what the format cannot do, before any run is read."""
    if baseline and not format.of_comparison:
        raise UsageError(f"--to {format.name} cannot tell of a comparison: leave --baseline out, or use junit")
    if len(runs) > 1:
        raise UsageError(f"--to {format.name} takes one run, not {len(runs)}: convert them one by one, or use parquet")


def _chosen(format: "Format", metrics: Sequence[str] | None, short: bool) -> list[str] | None:
    """Return the columns of the metrics that are asked for, None for all; `UsageError` where that cannot be chosen."""
    from ampbench.trend.series import TRACKED

    told = [column.name for column in format.columns]
    if (metrics or short) and not told:
        option = "--metric" if metrics else "--short"
        raise UsageError(f"--to {format.name} tells what it tells: {option} is for github-smaller and bencher")
    by_name = {name: one.column.name for name, one in TRACKED.items() if one.column.name in told}
    known = {**by_name, **{name: name for name in told}}
    for name in metrics or ():
        if name not in known:
            raise UnknownNameError(f"metric of {format.name}", name, [*by_name, *told])
    return [known[name] for name in metrics] if metrics else None


def _losses(format: "Format", chosen: "Selected") -> list[str]:
    """Return what the file will not say; raises `NothingToRunError` where nothing would be left."""
    if not format.numbers_only:
        return []
    if not chosen.measured:
        raise NothingToRunError(f"no case was measured, and {format.name} has no place for the others: junit has")
    if format.of_rounds and not chosen.timed:
        raise NothingToRunError(f"no case has rounds, which {format.name} is made of: bencher takes medians alone")
    outcomes = [row["outcome"] for row in chosen.rows]
    counts = [f"{outcomes.count(name)} {name}" for name in ("failed", "skipped") if name in outcomes]
    said = [f"{format.name} has no place for cases without numbers: left out {' and '.join(counts)}"] if counts else []
    untimed = len(chosen.measured) - len(chosen.timed) if format.of_rounds else 0
    if untimed:
        said.append(f"{format.name} is made of rounds: left out {untimed} imported without their samples")
    return said


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

"""Converts stored runs to other programs' formats, each a function from a run and its rows to text, and back.

docs/convert.md lists the fields that each format keeps.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ampbench.convert import asv, formats, pytest_benchmark
from ampbench.convert.asv import BENCHMARKS_FILE, MACHINE_FILE
from ampbench.convert.formats import read_json
from ampbench.errors import NothingToRunError, StoreError, UsageError
from ampbench.judge import frame
from ampbench.show.rows import Row
from ampbench.store import StoredRun, write_whole


class Format(NamedTuple):
    """The function that writes a format, and whether the format has a place for a row."""

    write: Callable[[StoredRun, Sequence[Row]], str]
    keeps: Callable[[Row], bool] = lambda row: row["outcome"] == "ok"


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "junit": Format(formats.junit, lambda _: True),
        "github-smaller": Format(formats.github_smaller),
        "bencher": Format(formats.bencher),
        # an imported run may lack rounds
        "pytest-benchmark": Format(
            pytest_benchmark.run_json, lambda row: row["outcome"] == "ok" and row["rounds"] is not None
        ),
    }
)
"""The formats of one run by name."""


def written(stored: StoredRun, to: str) -> tuple[str, Counter[str]]:
    """Return a run in the format `to`, and how many cases the format has no place for, by their outcome.

    Raises `NothingToRunError` where the format has a place for none, `UsageError` for a run that only explains.
    """
    frame.require_measured(stored)
    rows = frame.run_rows(stored)
    kept = [row for row in rows if FORMATS[to].keeps(row)]
    outcomes = (row["outcome"] for row in rows if not FORMATS[to].keeps(row))
    lost = Counter("without rounds" if outcome == "ok" else outcome for outcome in outcomes)
    if not kept:
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(lost.items())) or "there is none"
        raise NothingToRunError(f"{to} has no place for any case of {stored.header.run}: {counts}; junit has all")
    return FORMATS[to].write(stored, kept), lost


PROGRAMS = {"result_columns": asv.PROGRAM, "machine_info": pytest_benchmark.PROGRAM}
"""The programs whose results can be read, by a key that only their files have."""
EITHER = " or ".join(PROGRAMS.values())


def recognise(source: Path) -> str:
    """Return which of `PROGRAMS` wrote `source`, a file or a folder.

    Raises `UsageError` where there is no such file or folder, `StoreError` where neither wrote it.
    """
    if not source.exists():
        raise UsageError(f"there is no file or folder {source}: --to native reads what {EITHER} wrote")
    if source.is_dir():
        # any program's results may be called as asv's list of benchmarks is, which therefore comes last
        files = sorted(source.rglob("*.json"), key=lambda path: (path.name == BENCHMARKS_FILE, path))
        if any(path.name == MACHINE_FILE for path in files):
            return asv.PROGRAM
        if not files:
            raise StoreError(f"{source} holds no JSON file: give the results of {EITHER}")
        source = files[0]
    document = read_json(source, EITHER)[1]
    for key, program in PROGRAMS.items():
        if isinstance(document, dict) and key in document:
            return program
    raise StoreError(f"{source}: neither results of {' nor of '.join(PROGRAMS.values())}")


def read_source(source: Path, remarks: Counter[str]) -> Iterator[StoredRun]:
    """Yield the runs that one of `PROGRAMS` left in `source`; `remarks` counts omissions and assumptions.

    Raises `StoreError` for the first file that cannot be read or holds nothing of ampbench, and as `recognise` does.
    """
    if recognise(source) == asv.PROGRAM:
        yield from asv.read_results(source, remarks)
        return
    for path in sorted(source.rglob("*.json")) if source.is_dir() else [source]:
        yield pytest_benchmark.read_run_json(path, remarks)


def write_runs(runs: Iterable[StoredRun], results: Path) -> tuple[list[Path], int]:
    """Write each new run as `runs/<id>.jsonl` in `results`, or none on errors; return the files and the others' count.

    Raises `StoreError` where they cannot be written.
    """
    by_id = {stored.header.run: stored for stored in runs}
    new = [stored for run, stored in by_id.items() if not (results / "runs" / f"{run}.jsonl").exists()]
    return list(write_whole(new, results).values()), len(by_id) - len(new)

"""Runs that other programs measured, into the native store: whole sources, each run once."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ampbench.convert import asv, pytest_benchmark
from ampbench.convert.asv import BENCHMARKS_FILE, MACHINE_FILE
from ampbench.errors import StoreError, UsageError
from ampbench.store import StoredRun, write_whole

PROGRAMS = (asv.PROGRAM, pytest_benchmark.PROGRAM)
"""The programs whose results can be read."""


@dataclass(frozen=True, slots=True)
class Written:
    """The run files that were written, and those that had been there before, by the runs' ids."""

    new: dict[str, Path] = field(default_factory=dict)
    known: dict[str, Path] = field(default_factory=dict)


def recognise(source: Path) -> str:
    """Return which of `PROGRAMS` wrote `source`, a file or a folder.

    Raises `UsageError` where there is no such file or folder, `StoreError` where neither wrote it.
    """
    if not source.exists():
        raise UsageError(f"there is no file or folder {source}: --to native reads what {' or '.join(PROGRAMS)} wrote")
    if source.is_dir():
        # any program's results may be called as asv's list of benchmarks is, which therefore comes last
        files = sorted(source.rglob("*.json"), key=lambda path: (path.name == BENCHMARKS_FILE, path))
        if any(path.name == MACHINE_FILE for path in files):
            return asv.PROGRAM
        if not files:
            raise StoreError(f"{source} holds no JSON file: give the results of {' or '.join(PROGRAMS)}")
        return recognise(files[0])
    try:
        keys = json.loads(source.read_bytes())
    except OSError as error:
        raise StoreError(f"cannot read {source}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{source}: no whole JSON, so it was cut or is another program's file: {error}") from None
    for program, own in ((asv.PROGRAM, "result_columns"), (pytest_benchmark.PROGRAM, "machine_info")):
        if isinstance(keys, dict) and own in keys:
            return program
    raise StoreError(f"{source}: neither results of {' nor of '.join(PROGRAMS)}")


def read_source(source: Path, remarks: Counter[str]) -> Iterator[StoredRun]:
    """Yield the runs that one of `PROGRAMS` left in `source`; `remarks` counts what was left out or assumed.

    Raises `StoreError` for the first file that cannot be read or holds nothing of ampbench, and as `recognise` does.
    """
    if recognise(source) == asv.PROGRAM:
        yield from asv.read_results(source, remarks=remarks)
        return
    for path in sorted(source.rglob("*.json")) if source.is_dir() else [source]:
        yield pytest_benchmark.read_run_json(path, remarks=remarks)


def write_runs(runs: Iterable[StoredRun], results: Path) -> Written:
    """Write each run as `runs/<id>.jsonl` in the folder `results` unless it is there, and return which were written.

    The files get their names once all of them are whole. Raises `StoreError` where they cannot be written; then there
    is none.
    """
    written = Written()
    folder = results / "runs"

    def new() -> Iterator[StoredRun]:
        for stored in runs:
            run = stored.header.run
            path = folder / f"{run}.jsonl"
            if path.exists() or run in written.new:
                written.known[run] = path
                continue
            written.new[run] = path
            yield stored

    try:
        write_whole(new(), results)
    except StoreError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        # what the writer of a run advises is for those who measure
        why = error.__cause__.strerror
        said = f"cannot write {results}: {why}; nothing was imported, choose another --results folder"
        raise StoreError(said) from None
    return written

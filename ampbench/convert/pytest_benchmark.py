"""pytest-benchmark's JSON: written of a run, and read back as one.

Source: pytest-benchmark 5.3 (`plugin.pytest_benchmark_generate_json`, `stats.Stats`, `stats.Metadata`,
`utils.get_commit_info`). `pytest-benchmark compare` and github-action-benchmark's tool `pytest` read it: one of its
rounds is one of ampbench's, and `data` holds the values of the rounds in seconds per step, so `iterations` is 1. Only
files written here or by ampbench's plug-in for pytest can be read: each benchmark's `extra_info` has the header and the
lines of a run file on its case.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ampbench.convert import defined, imported_id, listed
from ampbench.core import stats
from ampbench.core.metrics import METRICS
from ampbench.errors import StoreError, UsageError
from ampbench.records.case import Case
from ampbench.records.run import DIRTY, Entry, Footer, Header, Imported
from ampbench.show.document import finite
from ampbench.show.rows import Row
from ampbench.store import StoredRun, gathered, run_file


def _statistics(values: Sequence[float]) -> dict[str, Any]:
    """Return the statistics that pytest-benchmark computes of `values`; raises `UsageError` where it is missing."""
    try:
        module = import_module("pytest_benchmark.stats")
    except ImportError:
        raise UsageError('--to pytest-benchmark needs pytest-benchmark: pip install "ampbench[pytest]"') from None
    theirs = module.Stats()
    for value in values:
        theirs.update(value)
    return {**theirs.as_dict(), "data": list(values), "iterations": 1}


PROGRAM = "pytest-benchmark"
FORMAT_VERSION = "5.3.1"
"""The version of pytest-benchmark whose format this is."""
UNVERSIONED = "unversioned"
KEY = "ampbench"
"""The key of ampbench's records in `extra_info`."""


class _Kept(msgspec.Struct):
    lines: list[dict[str, Any]]


class _Benchmark(msgspec.Struct):
    fullname: str
    extra_info: dict[str, Any] = {}


class _Document(msgspec.Struct):
    benchmarks: list[_Benchmark]


def run_of(path: Path, data: bytes, document: Any, remarks: Counter[str]) -> StoredRun:
    """Return the run of a JSON file, with or without the benchmarks' `data`, as `convert.read_source`."""
    headers: list[Header] = []
    entries: dict[str, list[Entry]] = {}
    others, repeated = [], []
    for benchmark in msgspec.convert(document, _Document).benchmarks:
        if KEY not in benchmark.extra_info:
            others.append(benchmark.fullname)
            continue
        header, case, *records = _records(benchmark)
        headers.append(header)
        if case.case_id in entries:
            repeated.append(benchmark.fullname)
        entries.setdefault(case.case_id, [case, *records])
    if not headers:
        raise StoreError(f"holds no benchmark of ampbench's: its benchmarks are {listed(others)}")
    for names, why in ((others, "without ampbench's numbers"), (repeated, "that measured a case once more")):
        if names:
            remarks[f"left out {len(names)} {why}: {listed(names)}"] += 1
    host, started = headers[0].environment.host, datetime.fromisoformat(headers[0].started_at)
    header = replace(
        headers[0],
        run=imported_id(host, started, data),
        label=PROGRAM,
        imported=Imported(program=PROGRAM, file=path.name),
    )
    ended = Footer(ended="complete", finished_at=header.started_at)
    return gathered(path, header, [*chain.from_iterable(entries.values()), ended])


def _records(benchmark: _Benchmark) -> list[Any]:
    """Return the records of a benchmark, the header of its run and its case first."""
    name = benchmark.fullname
    try:
        written = msgspec.convert(benchmark.extra_info[KEY], _Kept).lines
        records = [run_file.decode(msgspec.json.encode(line))[1] for line in written]
    except msgspec.ValidationError:
        raise StoreError(f"{name} is damaged, or written by another ampbench: it has no lines of a run") from None
    except run_file.LineError as error:
        raise StoreError(f"{name}: {error}") from None
    if [type(record) for record in records[:2]] != [Header, Case] or len({of.case_id for of in records[1:]}) > 1:
        raise StoreError(f"{name} is damaged: it has not the header and the lines of one case")
    return records


def run_json(stored: StoredRun, rows: Sequence[Row]) -> str:
    """Return a run's timed cases with full statistics; the other metrics are in each one's `extra_info`."""
    header, commit = stored.header, stored.header.commit or UNVERSIONED
    names = ("workload", "precision", "device", "phase", "path", "batch_size", "input_dtype", "memory_format")
    benchmarks = []
    for row in rows:
        case = stored.cases[row["case_id"]]
        rounds = [timing for timing in stored.rounds if timing.case_id == case.case_id]
        measured = (timing for timing in rounds if not timing.control)
        records = [*rounds, stored.memory.get(case.case_id), stored.divergence.get(case.case_id)]
        metrics = {column.name: value for column, value in defined(row, METRICS.values())}
        benchmarks.append(
            {
                # the precisions of one table in one group, which is what `compare` shows together
                "group": "/".join((case.group, case.device, case.phase, case.path)),
                "name": case.case_id,
                "fullname": case.case_id,
                "params": {**case.parameters, **{name: row[name] for name in names}},
                "param": case.precision,
                "extra_info": case_info(header, case, records, notes=[], metrics=metrics),
                "options": {},
                "stats": _statistics(
                    [stats.round_value(timing.samples, timing.cpu_samples, timing.windows) for timing in measured]
                ),
            }
        )
    document = {
        "machine_info": {"node": header.environment.host, "cpu": {"brand_raw": header.environment.cpu}},
        # "unversioned" and "(unknown)" are its words for none
        "commit_info": {
            "id": commit.removesuffix(DIRTY),
            "time": header.committed_at,
            "author_time": None,
            "dirty": commit.endswith(DIRTY),
            "project": None,
            "branch": "(unknown)",
        },
        "benchmarks": benchmarks,
        "datetime": header.started_at,
        "version": FORMAT_VERSION,
    }
    return json.dumps(document, indent=1, allow_nan=False)


def case_info(
    header: Header, case: Case, records: Iterable[Entry | None], notes: Sequence[str], metrics: Mapping[str, float]
) -> dict[str, Any]:
    """Return the whole `extra_info` of a benchmark: `metrics` by column name, and the lines for `run_of`.

    `records` are the case's records of a run file. Numbers that are not finite become None.
    """
    entries = [header, case, *(record for record in records if record is not None)]
    kept = {"lines": [json.loads(run_file.encode(entry)) for entry in entries], "notes": list(notes)}
    return {**finite(dict(metrics)), KEY: kept}

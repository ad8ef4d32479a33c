"""pytest-benchmark's JSON: written of a run, and read back as one.

Source: pytest-benchmark 5.3 (`plugin.pytest_benchmark_generate_json`, `stats.Stats`, `stats.Metadata`,
`utils.get_commit_info`). `pytest-benchmark compare` and github-action-benchmark's tool `pytest` read it: one of its
rounds is one of ampbench's, and `data` holds the values of the rounds in seconds per step, so `iterations` is 1. Only
files written here or by ampbench's plug-in for pytest can be read: each benchmark's `extra_info` has the lines of a run
file on its case.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from ampbench.convert import defined, imported_id, listed
from ampbench.core import stats
from ampbench.core.metrics import METRICS
from ampbench.errors import StoreError, UsageError
from ampbench.records.case import Case, Environment
from ampbench.records.measured import Round
from ampbench.records.run import DIRTY, SCHEMA, Entry, Footer, Header
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
"""The key of ampbench's records in `extra_info` and `machine_info`."""


class _Commit(msgspec.Struct):
    id: str = UNVERSIONED
    time: str | None = None
    dirty: bool = False


class _Kept(msgspec.Struct):
    lines: list[dict[str, Any]]


class _Benchmark(msgspec.Struct):
    fullname: str
    extra_info: dict[str, Any] = {}


class _Document(msgspec.Struct):
    machine_info: dict[str, Any]
    commit_info: _Commit
    benchmarks: list[_Benchmark]
    datetime: str
    version: str


def run_of(path: Path, data: bytes, written: Any, remarks: Counter[str]) -> StoredRun:
    """Return the run of a JSON file, with or without the benchmarks' `data`, as `convert.read_source`."""
    document = msgspec.convert(written, _Document)
    if document.version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
        raise StoreError(f"written by pytest-benchmark {document.version}; this ampbench reads {FORMAT_VERSION[0]}.x")
    others = [benchmark.fullname for benchmark in document.benchmarks if KEY not in benchmark.extra_info]
    if len(others) == len(document.benchmarks):
        raise StoreError(f"holds no benchmark of ampbench's: its benchmarks are {listed(others)}")
    header = _header(path, data, document)
    entries: dict[str, list[Entry]] = {}
    repeated = []
    for benchmark in document.benchmarks:
        if KEY in benchmark.extra_info:
            lines_of_case = _entries(benchmark)
            if lines_of_case[0].case_id in entries:
                repeated.append(benchmark.fullname)
            entries.setdefault(lines_of_case[0].case_id, lines_of_case)
    for names, why in ((others, "without ampbench's numbers"), (repeated, "that measured a case once more")):
        if names:
            remarks[f"left out {len(names)} {why}: {listed(names)}"] += 1
    ended = Footer(ended="complete", finished_at=header.started_at)
    return gathered(path, header, [*chain.from_iterable(entries.values()), ended])


def _entries(benchmark: _Benchmark) -> list[Any]:
    """Return the records of a benchmark, its case first."""
    name = benchmark.fullname
    try:
        written = msgspec.convert(benchmark.extra_info[KEY], _Kept).lines
    except msgspec.ValidationError:
        raise StoreError(f"{name} is damaged, or written by another ampbench: it has no lines of a run") from None
    entries = [_record(line, name) for line in written]
    if not entries or not isinstance(entries[0], Case) or len({entry.case_id for entry in entries}) > 1:
        raise StoreError(f"{name} is damaged: its lines are not of one case")
    return entries


def _header(path: Path, data: bytes, document: _Document) -> Header:
    environment, commit = document.machine_info.get(KEY), document.commit_info
    if environment is None:
        raise StoreError(f"its machine_info has no {KEY}, so the environment is not known: the plug-in writes it")
    started = datetime.fromisoformat(document.datetime)
    started = started if started.tzinfo else started.replace(tzinfo=UTC)
    known = commit.id not in (UNVERSIONED, "unknown", "")
    fields = {
        "schema": SCHEMA,
        "run": imported_id(str(environment.get("host")), started, data),
        "ampbench_version": environment.get("ampbench_version"),
        "started_at": started.isoformat(timespec="milliseconds"),
        "label": PROGRAM,
        "commit": commit.id + (DIRTY if commit.dirty else "") if known else None,
        "selection": {},
        "settings": {},
        "environment": environment,
        "committed_at": commit.time or None,
        "imported": {"program": PROGRAM, "file": path.name},
    }
    header: Header = _record({"header": fields}, "the environment")
    return header


def _record(line: dict[str, Any], name: str) -> Any:
    """Return the record in `line`, read as strictly as a line of a run file."""
    try:
        return run_file.decode(msgspec.json.encode(line))[1]
    except run_file.LineError as error:
        raise StoreError(f"{name}: {error}") from None


def run_json(stored: StoredRun, rows: Sequence[Row]) -> str:
    """Return a run's timed cases with full statistics; the other metrics are in each one's `extra_info`."""
    header, commit = stored.header, stored.header.commit or UNVERSIONED
    rounds: dict[str, list[Round]] = {}
    for timing in stored.rounds:
        rounds.setdefault(timing.case_id, []).append(timing)
    document = {
        "machine_info": machine_info(header.environment),
        # "unversioned" and "(unknown)" are its words for none
        "commit_info": {
            "id": commit.removesuffix(DIRTY),
            "time": header.committed_at,
            "author_time": None,
            "dirty": commit.endswith(DIRTY),
            "project": None,
            "branch": "(unknown)",
        },
        "benchmarks": [_benchmark(stored, row, rounds[row["case_id"]]) for row in rows],
        "datetime": header.started_at,
        "version": FORMAT_VERSION,
    }
    return json.dumps(document, indent=1, allow_nan=False)


def case_info(
    case: Case, records: Iterable[Entry | None], notes: Sequence[str], metrics: Mapping[str, float]
) -> dict[str, Any]:
    """Return the whole `extra_info` of a benchmark: `metrics` by column name, and the lines for `run_of`.

    `records` are the case's records of a run file. Numbers that are not finite become None.
    """
    entries = [case, *(record for record in records if record is not None)]
    kept = {"lines": [json.loads(run_file.encode(entry)) for entry in entries], "notes": list(notes)}
    return {**finite(dict(metrics)), KEY: kept}


def machine_info(environment: Environment) -> dict[str, Any]:
    """Return pytest-benchmark's `machine_info`: the fields of its tables, and the whole environment."""
    return {
        "node": environment.host,
        "processor": environment.cpu,
        "system": environment.system,
        "python_version": environment.python_version,
        "cpu": {"brand_raw": environment.cpu, "count": environment.cpu_count},
        "torch_version": environment.torch_version,
        "threads": environment.threads,
        "devices": {device.type: device.name for device in environment.devices if device.available},
        KEY: finite(msgspec.to_builtins(environment, str_keys=True, enc_hook=dict)),
    }


def _benchmark(stored: StoredRun, row: Row, rounds: Sequence[Round]) -> dict[str, Any]:
    case = stored.cases[row["case_id"]]
    names = ("workload", "precision", "device", "phase", "path", "batch_size", "input_dtype", "memory_format")
    measured = [timing for timing in rounds if not timing.control]
    return {
        # the precisions of one table in one group, which is what `compare` shows together
        "group": "/".join((case.group, case.device, case.phase, case.path)),
        "name": case.case_id,
        "fullname": case.case_id,
        "params": {**case.parameters, **{name: row[name] for name in names}},
        "param": case.precision,
        "extra_info": case_info(
            case,
            [*rounds, stored.memory.get(case.case_id), stored.divergence.get(case.case_id)],
            notes=[],
            metrics={column.name: value for column, value in defined(row, METRICS.values())},
        ),
        "options": {},
        "stats": _statistics(
            [stats.round_value(timing.samples, timing.cpu_samples, timing.windows) for timing in measured]
        ),
    }

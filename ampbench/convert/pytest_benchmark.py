"""pytest-benchmark's JSON: written of a run, and read back as one.

Source: pytest-benchmark 5.3 (`plugin.pytest_benchmark_generate_json`, `stats.Stats`, `stats.Metadata`,
`utils.get_commit_info`). What is written can be read by `pytest-benchmark compare` and github-action-benchmark's tool
`pytest`: one of its rounds is one of ampbench's, and `data` holds what the rounds are worth in seconds per step, so
`iterations` is 1. What is read back was written so, or by ampbench's plug-in for pytest: each benchmark's `extra_info`
then holds the case.
"""

import hashlib
import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from ampbench.convert.formats import Selected, defined, listed
from ampbench.core import stats
from ampbench.core.metrics import METRICS
from ampbench.errors import StoreError
from ampbench.records.case import Case, Environment
from ampbench.records.measured import Divergence, MemoryPass, Round
from ampbench.records.run import DIRTY, SCHEMA, Footer, Header
from ampbench.show.data import finite
from ampbench.show.rows import Row
from ampbench.store import StoredRun, lines, new_run_id


def statistics_of(values: Sequence[float]) -> dict[str, Any]:
    """Return what pytest-benchmark's `Stats` says of `values`.

    Its quartiles are Hazen's, which NumPy has by that name; an outlier lies beyond one standard deviation from the
    mean, or beyond 1.5 interquartile ranges from the quartiles (Tukey). A single value has the standard deviation 0,
    by its own definition.
    """
    mean, total = statistics.mean(values), sum(values)
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    lower, upper = (float(one) for one in np.quantile(values, [0.25, 0.75], method="hazen"))
    low, high = lower - 1.5 * (upper - lower), upper + 1.5 * (upper - lower)
    beyond_deviation = sum(not mean - deviation <= value <= mean + deviation for value in values)
    beyond_fences = sum(not low <= value <= high for value in values)
    return {
        "min": min(values),
        "max": max(values),
        "mean": mean,
        "stddev": deviation,
        "rounds": len(values),
        "median": statistics.median(values),
        "iqr": upper - lower,
        "q1": lower,
        "q3": upper,
        "iqr_outliers": beyond_fences,
        "stddev_outliers": beyond_deviation,
        "outliers": f"{beyond_deviation};{beyond_fences}",
        "ld15iqr": min(value for value in values if value >= low),
        "hd15iqr": max(value for value in values if value <= high),
        "ops": len(values) / total if total else 0.0,
        "total": total,
        "data": list(values),
        "iterations": 1,
    }


PROGRAM = "pytest-benchmark"
FORMAT_VERSION = "5.3.1"
"""The version of pytest-benchmark whose format this is."""
UNVERSIONED = "unversioned"
KEY = "ampbench"
"""Under which name ampbench keeps its own records in `extra_info` and `machine_info`."""


def read_run_json(path: Path, *, remarks: Counter[str] | None = None) -> StoredRun:
    """Return the run in the JSON file at `path`, with or without the benchmarks' `data`.

    Values of rounds become rounds of one sample, samples of one process one round; without `data`, the time is a
    reading. `remarks` counts by sentence the files of which something was left out. The run's id is made from the
    time, the host and the file's contents. Raises `StoreError`, naming the file, where it is damaged, not
    pytest-benchmark's, holds no benchmark of ampbench's, or was written by a newer ampbench.
    """
    try:
        data = path.read_bytes()
        document = msgspec.convert(json.loads(data), _Document)  # msgspec itself refuses NaN
        return _run(path, data, document, Counter() if remarks is None else remarks)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise StoreError(f"{path}: no JSON of pytest-benchmark, or a damaged one: {error}") from None
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: no whole JSON, so it was cut or is no run of pytest-benchmark: {error}") from None


class _Commit(msgspec.Struct):
    id: str = UNVERSIONED
    time: str | None = None
    dirty: bool = False


class _Stats(msgspec.Struct):
    min: float
    median: float
    data: list[float] = []
    iterations: int = 1


class _Benchmark(msgspec.Struct):
    fullname: str
    stats: _Stats
    extra_info: dict[str, Any] = {}


class _Document(msgspec.Struct):
    machine_info: dict[str, Any]
    commit_info: _Commit
    benchmarks: list[_Benchmark]
    datetime: str
    version: str


class _OwnInfo(msgspec.Struct, forbid_unknown_fields=True):
    """What `case_info` keeps beside the metrics; the notes are for those who read the JSON."""

    case: Any
    items_per_step: float
    weights_digest: str
    data: Literal["rounds", "samples"]
    memory: Any
    divergence: Any
    notes: list[str]


def _run(path: Path, data: bytes, document: _Document, remarks: Counter[str]) -> StoredRun:
    if document.version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
        raise StoreError(f"written by pytest-benchmark {document.version}; this ampbench reads {FORMAT_VERSION[0]}.x")
    others = [one.fullname for one in document.benchmarks if KEY not in one.extra_info]
    if len(others) == len(document.benchmarks):
        raise StoreError(f"holds no benchmark of ampbench's: its benchmarks are {listed(others)}")
    header = _header(path, data, document)
    again = []
    ended = Footer(ended="complete", finished_at=header.started_at)
    stored = StoredRun(path=path, header=header, footers=[ended])
    for one in document.benchmarks:
        if KEY in one.extra_info and not _add(stored, one):
            again.append(one.fullname)
    for names, what in ((others, "without ampbench's numbers"), (again, "that measured a case once more")):
        if names:
            remarks[f"left out {len(names)} {what}: {listed(names)}"] += 1
    return stored


def _add(stored: StoredRun, benchmark: _Benchmark) -> bool:
    """Add what a benchmark says of its case; return False where the run has that case already."""
    name = benchmark.fullname
    try:
        info = msgspec.convert(benchmark.extra_info[KEY], _OwnInfo)
    except msgspec.ValidationError as error:
        raise StoreError(f"{name} is damaged, or written by a newer ampbench (upgrade this one): {error}") from None
    case: Case = _record("case", info.case, name)
    case_id = case.case_id
    if case_id in stored.cases:
        return False
    stored.cases[case_id] = case
    for kind, found, kept in (
        ("memory", info.memory, stored.memory),
        ("divergence", info.divergence, stored.divergence),
    ):
        if found is not None:
            record = _record(kind, found, name)
            if record.case_id != case_id:
                raise StoreError(f"the {kind} of {name} is that of another case, {record.case_id}")
            kept[case_id] = record
    values = benchmark.stats.data
    shortest, median = benchmark.stats.min, benchmark.stats.median
    if not all(math.isfinite(value) and value > 0 for value in (*values, shortest, median, info.items_per_step)):
        raise StoreError(f"{name} has a time or a number of items that cannot be one")
    if not values:
        seconds = median if info.data == "rounds" else shortest
        stored.readings.setdefault("seconds_median", {})[case_id] = seconds
        stored.readings.setdefault("items_per_second", {})[case_id] = info.items_per_step / seconds
        return True
    iterations = 1 if info.data == "rounds" else benchmark.stats.iterations
    for number, samples in enumerate([[value] for value in values] if info.data == "rounds" else [values]):
        stored.rounds.append(
            Round(
                case_id=case_id,
                round=number,
                server=number,
                samples=[samples],
                steps_per_sample=[iterations],
                warmup_steps=[0],
                items_per_step=info.items_per_step,
                weights_digest=info.weights_digest,
                seconds=math.fsum(samples) * iterations,
                finished_at=stored.header.started_at,
            )
        )
    return True


def _header(path: Path, data: bytes, document: _Document) -> Header:
    environment, commit = document.machine_info.get(KEY), document.commit_info
    if environment is None:
        raise StoreError(f"its machine_info has no {KEY}, so the environment is not known: the plug-in writes it")
    started = _time("datetime", document.datetime)
    if commit.time:
        _time("commit's time", commit.time)
    started = started if started.tzinfo else started.replace(tzinfo=UTC)
    known = commit.id not in (UNVERSIONED, "unknown", "")
    fields = {
        "schema": SCHEMA,
        "run": "",
        "ampbench_version": "",
        "started_at": started.isoformat(timespec="milliseconds"),
        "label": PROGRAM,
        "commit": commit.id + (DIRTY if commit.dirty else "") if known else None,
        "selection": {},
        "settings": {},
        "environment": environment,
        "committed_at": commit.time or None,
        "imported": {"program": PROGRAM, "file": path.name},
    }
    header: Header = _record("header", fields, "the environment")
    stem = new_run_id(header.environment.host, started).rpartition("-")[0]
    return replace(
        header,
        run=f"{stem}-{hashlib.sha256(data).hexdigest()[:8]}",
        ampbench_version=header.environment.ampbench_version,
    )


def _time(what: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise StoreError(f"its {what} is none: {text!r}") from None


def _record(kind: str, value: Any, name: str) -> Any:
    """Return the record of `kind` in `value`, read as strictly as a line of a run file."""
    try:
        return lines.decode(msgspec.json.encode({kind: value}))[1]
    except lines.LineError as error:
        raise StoreError(f"{name}: {error}") from None


def run_json(selected: Selected) -> str:
    """Return a run's timed cases with full statistics; the other metrics are in each one's `extra_info`."""
    header = selected.stored.header
    rounds: dict[str, list[Round]] = {}
    for each in selected.stored.rounds:
        if not each.control:
            rounds.setdefault(each.case_id, []).append(each)
    document = {
        "machine_info": machine_info(header.environment),
        "commit_info": _commit(header),
        "benchmarks": [_benchmark(selected, row, rounds[row["case_id"]]) for row in selected.timed],
        "datetime": header.started_at,
        "version": FORMAT_VERSION,
    }
    return json.dumps(document, indent=1, allow_nan=False)


def case_info(
    case: Case,
    *,
    items_per_step: float,
    weights_digest: str,
    data: Literal["rounds", "samples"],
    memory: MemoryPass | None,
    divergence: Divergence | None,
    notes: Sequence[str],
    metrics: Mapping[str, float],
) -> dict[str, Any]:
    """Return the whole `extra_info` of a benchmark: `metrics` by their columns' names, and what `read_run_json` needs.

    `data` says what the benchmark's `stats.data` holds: the values of rounds, each of a process of its own, or samples
    of one process; both in seconds per step. Numbers that are not finite become None.
    """
    read_back = {
        "case": case,
        "items_per_step": items_per_step,
        "weights_digest": weights_digest,
        "data": data,
        "memory": memory,
        "divergence": divergence,
        "notes": list(notes),
    }
    return {**_plain(dict(metrics)), KEY: _plain(read_back)}


def machine_info(environment: Environment) -> dict[str, Any]:
    """Return pytest-benchmark's `machine_info`: what its own tables show, and the environment whole."""
    return {
        "node": environment.host,
        "processor": environment.cpu,
        "system": environment.system,
        "python_version": environment.python_version,
        "cpu": {"brand_raw": environment.cpu, "count": environment.cpu_count},
        "torch_version": environment.torch_version,
        "threads": environment.threads,
        "devices": {device.type: device.name for device in environment.devices if device.available},
        KEY: _plain(environment),
    }


def _plain(record: Any) -> dict[str, Any]:
    """Return a record as what JSON has: dictionaries, lists, None for numbers that are not finite."""
    plain: dict[str, Any] = finite(msgspec.to_builtins(record, str_keys=True, enc_hook=dict))
    return plain


def _benchmark(selected: Selected, row: Row, rounds: Sequence[Round]) -> dict[str, Any]:
    case_id = row["case_id"]
    case = selected.stored.cases[case_id]
    names = ("workload", "precision", "device", "phase", "path", "batch_size", "input_dtype", "memory_format")
    return {
        # the precisions of one table in one group, which is what `compare` shows together
        "group": "/".join((case.group, case.device, case.phase, case.path)),
        "name": case_id,
        "fullname": case_id,
        "params": {**case.parameters, **{name: row[name] for name in names}},
        "param": case.precision,
        "extra_info": case_info(
            case,
            items_per_step=rounds[0].items_per_step,
            weights_digest=rounds[0].weights_digest,
            data="rounds",
            memory=selected.stored.memory.get(case_id),
            divergence=selected.stored.divergence.get(case_id),
            notes=[],
            metrics={column.name: value for column, value in defined(row, METRICS.values())},
        ),
        "options": _options(selected.stored.header),
        "stats": statistics_of([stats.round_value(each.samples, each.cpu_samples, each.windows) for each in rounds]),
    }


def _options(header: Header) -> dict[str, Any]:
    """Return what was asked of a benchmark; nothing, where another program was asked."""
    if header.imported is not None:
        return {}
    settings = header.settings
    return {"min_rounds": settings.rounds, "min_time": settings.min_run_seconds, "warmup": True}


def _commit(header: Header) -> dict[str, Any]:
    """Return the commit under pytest-benchmark's names; "unversioned" and "(unknown)" are its words for none."""
    commit = header.commit or UNVERSIONED
    return {
        "id": commit.removesuffix(DIRTY),
        "time": header.committed_at,
        "author_time": None,
        "dirty": commit.endswith(DIRTY),
        "project": None,
        "branch": "(unknown)",
    }

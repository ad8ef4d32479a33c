"""asv's results of suites of `ampbench.asv_suite` as runs: each value of a case becomes a reading.

A result file has the time, machine, device and installation of its run. Readings are no rounds: asv's value is a
median over samples, ampbench's the fastest sample of each round, so a series of both would show false steps.

Source of the result files, format 2: asv 0.6.6, `results.Results.save` (a row per benchmark under `result_columns`, its
trailing nulls cut off; a list of nulls is one null), `results.iter_results_paths` (a machine's folder holds
machine.json), `machine.Machine`. Importing asv would take longer than reading hundreds of files.
"""

import functools
import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.drive.planning import default_preset
from ampbench.errors import StoreError
from ampbench.records.case import DEVICES, PHASES, Case, Environment
from ampbench.records.labels import few
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import SCHEMA, Footer, Header, Imported, Selection, Settings
from ampbench.store import StoredRun, new_run_id
from ampbench.workloads.index import WORKLOADS, class_name, resolve_parameters

PROGRAM = "asv"
MACHINE_FILE = "machine.json"
BENCHMARKS_FILE = "benchmarks.json"
DEVICE_VARIABLE = "AMPBENCH_DEVICE"
"""The environment variable with the device of the suite; asv keeps it in its results."""
TORCH_VERSION = ".Environment.track_torch_version"
"""Its one value is major * 10^6 + minor * 10^3 + patch: 2015001 is torch 2.15.1."""
DEVICE = ".Environment.track_device"
"""Its one value is the place of the device of all cases in `DEVICES`."""
UNTOLD_DEVICE = "cpu"
"""The device of results that name none."""
VERSION = "1"
"""The version of the suite's benchmarks whose values are understood; asv's own versions are digests."""
METHODS: Mapping[str, tuple[str, str]] = {
    "time_step": ("round", "seconds_median"),
    "track_other_share": ("round", "other_share"),
    "track_peak_memory": ("memory", "peak_memory_bytes"),
    "track_output_error": ("divergence", "output_floor_ratio"),
    "track_gradient_error": ("divergence", "grad_rel_l2"),
}
"""The stage of a failure and the metric of the values, by method of the suite's classes, one for each workload
(`workloads.index.class_name`); their parameters are phase and precision."""
NOT_READ = "track_fp64_result"
"""The method whose values are for asv alone: no column has them."""
PARAMETERS = {"phase": PHASES, "precision": tuple(PRECISIONS)}
"""The parameters of each method, in their order, with the values that this ampbench knows."""
SKIPPED = "asv has no number: its suite skipped the case there, or the case was not selected"
SMALLEST = 1e-300
"""The smallest time or number of bytes: 0 is no measurement."""


class Machine(msgspec.Struct, kw_only=True):
    """The contents of `MACHINE_FILE`, format 1; each field but the name may be empty."""

    version: Literal[1]
    machine: str
    os: str = ""
    cpu: str = ""


class Results(msgspec.Struct, kw_only=True):
    """A result file, format 2: the results of one commit in one environment on one machine, a row per benchmark."""

    version: Literal[2]
    commit_hash: str
    env_name: str
    date: float | None
    python: str
    requirements: dict[str, str | None]
    env_vars: dict[str, str] = {}
    result_columns: list[str]
    results: dict[str, list[Any]]


_COLUMNS = {"parameters": "params", "values": "result", "low": "stats_ci_99_a", "high": "stats_ci_99_b"}


class Benchmark(msgspec.Struct, kw_only=True, rename=_COLUMNS):
    """One benchmark's row: a value per combination of its parameters, in the order of their product.

    A value is None where it failed and NaN where it was skipped or not selected. `low` and `high` are asv's 99%
    interval, None where it has none. `parameters` are the values of each parameter as they are written in Python,
    `started_at` is in milliseconds since 1970.
    """

    version: str | None = None
    parameters: list[list[str]] = []
    values: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    started_at: float | None = None


def run_of(path: Path, data: bytes, document: Any, remarks: Counter[str]) -> StoredRun:
    """Return the run of a result file, as `convert.read_source`."""
    results = msgspec.convert(document, Results)
    machine = msgspec.convert(json.loads(path.with_name(MACHINE_FILE).read_bytes()), Machine)
    suite, recorded = _benchmarks(results, remarks)
    device = _device(results, recorded.get(DEVICE), remarks)
    newest = dict(sorted(_workload(name.rpartition(".")[0]) for name in suite))
    # asv keeps the values of an older version of a workload until it is run again
    suite = {name: row for name, row in suite.items() if _workload(name.rpartition(".")[0]) in newest.items()}
    cases: dict[str, Case] = {}
    failures: dict[str, Failure] = {}
    readings: dict[str, dict[str, float]] = {}
    for name, row in suite.items():
        owner, _, method = name.rpartition(".")
        stage, metric = METHODS[method]
        for traits, value, low, high in zip(_traits(name, row), row.values, row.low, row.high, strict=True):
            case_id, case = _case(*_workload(owner), *traits, device)
            cases[case_id] = case
            if value is None:
                message = f"{name} has no value: it raised an error, timed out or was killed, and asv keeps no more"
                failures[case_id] = Failure(case_id=case_id, stage=stage, cause="unknown", message=message)
            elif math.isfinite(value) and (value >= SMALLEST or metric not in ("seconds_median", "peak_memory_bytes")):
                readings.setdefault(metric, {})[case_id] = value
                # asv rounds limits to five digits, and so may put one on the wrong side
                limits = {"seconds_low": low and min(low, value), "seconds_high": high and max(high, value)}
                for column, limit in limits.items() if metric == "seconds_median" else ():
                    if limit and 0 < limit < math.inf:
                        readings.setdefault(column, {})[case_id] = limit
    known = set(failures).union(*readings.values())
    torch = _required(results, "torch")
    if not torch and TORCH_VERSION in recorded:  # as the suite itself recorded it
        major, lower = divmod(int(recorded[TORCH_VERSION]), 1_000_000)
        torch = f"{major}.{lower // 1000}.{lower % 1000}"
    started = min((row.started_at for row in suite.values() if row.started_at is not None), default=None)
    header = _header(path, data, results, machine, torch, started)
    return StoredRun(
        path=path,
        header=header,
        cases=cases,
        failures=failures,
        skips={case_id: Skip(case_id=case_id, reason=SKIPPED) for case_id in cases if case_id not in known},
        readings=readings,
        footers=[Footer(ended="complete", finished_at=header.started_at)],
    )


def _benchmarks(results: Results, remarks: Counter[str]) -> tuple[dict[str, Benchmark], dict[str, float]]:
    """Return the benchmarks of ampbench's suites that measure cases, and the values that describe the environment."""
    suite: dict[str, Benchmark] = {}
    recorded: dict[str, float] = {}
    others = []
    for name, row in results.results.items():
        cells = {column: cell for column, cell in zip(results.result_columns, row, strict=False) if cell is not None}
        method, version = name.rpartition(".")[2], str(cells.get("version"))
        describes = next((described for described in (TORCH_VERSION, DEVICE) if name.endswith(described)), "")
        count = len(cells.get("params", ()))
        if not version.isdecimal() or not (describes or (method in METHODS and count == len(PARAMETERS))):
            others += [name] if method != NOT_READ else []
            continue
        if version != VERSION:
            raise StoreError(f"{name} has version {version}, not {VERSION}: its numbers mean something else here")
        benchmark = msgspec.convert(cells, Benchmark)
        if describes:
            [value] = benchmark.values or [None]
            if value is not None and value >= 0:
                recorded[describes] = value
            continue
        count = math.prod(len(values) for values in benchmark.parameters)
        lists = (benchmark.values, benchmark.low, benchmark.high)
        benchmark.values, benchmark.low, benchmark.high = (values or [None] * count for values in lists)
        suite[name] = benchmark
    if not suite:
        raise StoreError(f"holds no benchmark of ampbench's suite: its benchmarks are {_listed(results.results)}")
    if others:
        remarks[f"left out {len(others)} of another suite: {_listed(others)}"] += 1
    return suite, recorded


def _traits(name: str, benchmark: Benchmark) -> list[tuple[str, ...]]:
    """Return phase and precision of each value; raises `StoreError` for those of a newer suite."""
    texts = [[text.strip("'") for text in values] for values in benchmark.parameters]
    for (kind, known), values in zip(PARAMETERS.items(), texts, strict=True):
        if unknown := [f"{kind} {text}" for text in values if text not in known]:
            raise StoreError(f"unknown {_listed(unknown)} in {name}: upgrade ampbench")
    return list(itertools.product(*texts))


def _device(results: Results, recorded: float | None, remarks: Counter[str]) -> str:
    """Return the device of asv's environment, else the device that the suite recorded, else `UNTOLD_DEVICE`."""
    variable = results.env_vars.get(DEVICE_VARIABLE, "")
    if variable and variable not in DEVICES:
        raise StoreError(f"{DEVICE_VARIABLE} is {variable!r}, which is no device: {', '.join(DEVICES)}")
    if variable:
        return variable
    if recorded is None:
        remarks[f"no {DEVICE_VARIABLE} and no {DEVICE[1:]} in the results: taken for {UNTOLD_DEVICE}"] += 1
        return UNTOLD_DEVICE
    if recorded not in range(len(DEVICES)):
        raise StoreError(f"{DEVICE[1:]} is {recorded:g}, and this ampbench knows {len(DEVICES)} devices: upgrade it")
    return DEVICES[int(recorded)]


def _listed(names: Iterable[str]) -> str:
    return few(names, 8) or "none"


@functools.cache
def _workload(owner: str) -> tuple[str, int]:
    """Return name and version of the workload of a suite's class: version 2 of MlpV2, 0 of a user's class.

    A user's class is known by its name and, outside of this repository's suite, by its file's name.
    """
    own = owner.rpartition(".")[2]
    for name, spec in WORKLOADS.items():
        if own in (name, class_name(spec)):
            return name, spec.version
        if numbered := re.fullmatch(rf"{class_name(replace(spec, version=1))}V(\d+)", own):
            return name, int(numbered[1])
    return owner.removeprefix("precisions."), 0


def _header(path: Path, data: bytes, results: Results, machine: Machine, torch: str, started: float | None) -> Header:
    """Return the header of the run of a result file, `started` in milliseconds since 1970."""
    if started is None:
        raise StoreError("no benchmark has a time at which it was measured")
    began = datetime.fromtimestamp(started / 1000, UTC)
    committed = None if results.date is None else datetime.fromtimestamp(results.date / 1000, UTC)
    return Header(
        schema=SCHEMA,
        # of its time, machine and contents: the same whenever the file is read
        run=f"{new_run_id(machine.machine, began).rpartition('-')[0]}-{hashlib.sha256(data).hexdigest()[:8]}",
        ampbench_version="",
        started_at=began.isoformat(timespec="milliseconds"),
        label=f"{PROGRAM} {results.env_name.partition('-')[0]}",
        commit=results.commit_hash,
        selection=Selection(),
        settings=Settings(),
        environment=Environment(
            host=machine.machine,
            system=machine.os,
            cpu=machine.cpu,
            cpu_count=None,
            python_version="" if "/" in results.python else results.python,  # an existing one is a path
            torch_version=torch,
            torchvision_version=_required(results, "torchvision") or None,
            numpy_version=_required(results, "numpy"),
            threads=None,
            variables={name: value for name, value in results.env_vars.items() if name != DEVICE_VARIABLE},
        ),
        committed_at=None if committed is None else committed.isoformat(timespec="seconds"),
        imported=Imported(program=PROGRAM, file=path.name),
    )


def _required(results: Results, package: str) -> str:
    """Return the version of a package in the environment's requirements, "" without one.

    A requirement may name the installer ("pip+torch") or leave the version open.
    """
    for name, version in results.requirements.items():
        if name.rpartition("+")[2] == package and version and version[0].isdigit():
            return version
    return ""


@functools.lru_cache(maxsize=65_536)
def _case(workload: str, version: int, phase: str, precision: str, device: str) -> tuple[str, Case]:
    """Return the case that the suite measures, and its id.

    Like `planning.make_plan`, with the device's preset; a user's workload has no parameters there.
    """
    spec = WORKLOADS.get(workload)
    parameters = {} if spec is None else resolve_parameters(spec, default_preset(device))
    batch_size = parameters.pop("batch_size", None)
    case = Case(
        workload=workload,
        family="user" if spec is None else spec.family,
        parameters=parameters,
        precision=precision,
        device=device,
        phase=phase,
        path="eager",
        batch_size=batch_size if isinstance(batch_size, int) else None,
        input_dtype=SHORT_DTYPES[PRECISIONS[precision].storage],
        memory_format="contiguous",
        version=version,
    )
    return case.case_id, case

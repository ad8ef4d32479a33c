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
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from ampbench.convert.formats import listed, read_json
from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.drive.planning import default_preset
from ampbench.errors import StoreError
from ampbench.records.case import DEVICES, PHASES, Case, Environment
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import SCHEMA, Footer, Header, Imported, Selection, Settings
from ampbench.store import StoredRun, new_run_id
from ampbench.workloads.index import WORKLOADS, class_name, resolve_parameters

PROGRAM = "asv"
MACHINE_FILE = "machine.json"
"""The fields of asv's machine.json; each but the name may be empty."""
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
"""The version of the suite's benchmarks whose values are understood."""
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
SKIPPED = "asv has no number: its suite skipped the case there, or the case was not selected"
SMALLEST = 1e-300
"""The smallest time or number of bytes: 0 is no measurement."""
_OWN_FILE = "precisions."
_ID_DIGITS = 8
_Kind = TypeVar("_Kind")


class MachineFile(msgspec.Struct, kw_only=True):
    """The contents of `MACHINE_FILE`, format 1."""

    version: Literal[1]
    machine: str
    os: str = ""
    cpu: str = ""
    num_cpu: str | int = ""
    ram: str | int = ""


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


class BenchmarkResult(msgspec.Struct, kw_only=True, rename=_COLUMNS):
    """One benchmark's row: a value per combination of its parameters, in the order of their product.

    A value is None where it failed and NaN where it was skipped or not selected. `low` and `high` are asv's 99%
    interval, None where it has none. `parameters` are the values of each parameter as they are written in Python,
    `started_at` is in milliseconds since 1970.
    """

    version: str | None = None
    parameters: list[list[str]] = []
    values: list[Any] = []
    low: list[float | None] = []
    high: list[float | None] = []
    started_at: float | None = None


class Meaning(NamedTuple):
    """A benchmark of the suite: its workload and version, the stage at which measuring fails, and the metric."""

    workload: str
    version: int
    stage: str
    metric: str


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A result file as read, with its folder's machine and the rows of the `benchmarks` of ampbench's suites."""

    path: Path
    digest: str
    machine: MachineFile
    results: Results
    benchmarks: Mapping[str, BenchmarkResult]

    def value(self, name: str) -> float | None:
        """Return the value of a benchmark without parameters, from any file; None where there is no number."""
        result = next((row for key, row in self.benchmarks.items() if key.endswith(name)), None)
        value = result.values[0] if result and len(result.values) == 1 else None
        return value if isinstance(value, (int, float)) and math.isfinite(value) else None

    def required(self, package: str) -> str:
        """Return the version of a package in the environment's requirements, "" without one.

        A requirement may name the installer ("pip+torch") or leave the version open.
        """
        for name, version in self.results.requirements.items():
            if name.rpartition("+")[2] == package and version and version[0].isdigit():
                return version
        return ""


def result_paths(source: Path) -> list[Path]:
    """Return the result files of `source`: itself, or all in a folder and the folders in it, in order of their names.

    Raises `StoreError` where there is none.
    """
    if not source.is_dir():
        return [source]
    paths = sorted(path for path in source.rglob("*.json") if path.name not in (MACHINE_FILE, BENCHMARKS_FILE))
    if not paths:
        raise StoreError(f"{source} holds no results of asv: give its results_dir, or the folder of a machine in it")
    return paths


def read_result_file(path: Path) -> ResultFile:
    """Return the contents of the result file at `path`.

    Raises `StoreError`, naming the file, where it or its folder's machine.json is missing, broken or of another format.
    """
    data, document = read_json(path, PROGRAM)
    results = _checked(path, document, "a result of asv", Results)
    machine_path = path.with_name(MACHINE_FILE)
    if not machine_path.exists():
        raise StoreError(
            f"there is no {machine_path}, which asv writes next to results: give the folder that asv wrote"
        )
    machine = read_json(machine_path, PROGRAM)[1]
    return ResultFile(
        path,
        hashlib.sha256(data).hexdigest(),
        _checked(machine_path, machine, "asv's description of a machine", MachineFile),
        results,
        {
            name: _benchmark(path, name, results.result_columns, row)
            for name, row in results.results.items()
            if meaning_of(name) or name.endswith((TORCH_VERSION, DEVICE))
        },
    )


def time_of(milliseconds: float | None) -> datetime | None:
    """Return a time of asv's; raise `StoreError` for an invalid one."""
    try:
        return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise StoreError(f"{milliseconds} is no time in milliseconds") from None


def _checked(path: Path, document: Any, noun: str, kind: type[_Kind]) -> _Kind:
    """Return `document` as a `kind`; `StoreError` for another type or version of the format."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        remedy = "; `asv update` rewrites older formats" if "version" in str(error) else ""
        raise StoreError(f"{path}: not {noun} that this ampbench reads: {error}{remedy}") from None


def _benchmark(path: Path, name: str, columns: Sequence[str], row: Sequence[Any]) -> BenchmarkResult:
    cells = {column: cell for column, cell in zip(columns, row, strict=False) if cell is not None}
    try:
        result = msgspec.convert(cells, BenchmarkResult)
    except msgspec.ValidationError as error:
        raise StoreError(f"{path}: the result of {name} is damaged: {error}") from None
    count = math.prod(len(values) for values in result.parameters)
    lists = (result.values, result.low, result.high)
    if any(values and len(values) != count for values in lists):
        raise StoreError(f"{path}: the result of {name} is damaged: its parameters say {count} values")
    result.values, result.low, result.high = (values or [None] * count for values in lists)
    return result


@functools.cache
def meaning_of(name: str) -> Meaning | None:
    """Return the meaning of a suite's benchmark, None for any other.

    A class is known by its name, outside of this repository's suite also by its file's name.
    """
    owner, _, method = name.rpartition(".")
    if method not in METHODS:
        return None
    workload, version = _workload(owner.rpartition(".")[2])
    if not version:
        workload, version = _workload(owner.removeprefix(_OWN_FILE))
    return Meaning(workload, version, *METHODS[method])


def _workload(owner: str) -> tuple[str, int]:
    """Return name and version of the workload of a suite's class: version 2 of MlpV2, 0 of a user's class."""
    for name, spec in WORKLOADS.items():
        if class_name(spec) == owner:
            return name, spec.version
        if numbered := re.fullmatch(rf"{class_name(replace(spec, version=1))}V(\d+)", owner):
            return name, int(numbered[1])
    return owner, int(owner in WORKLOADS)


def read_results(source: Path, remarks: Counter[str]) -> Iterator[StoredRun]:
    """Yield a run for each result file of `source`: asv's results_dir, the folder of a machine in it, or one file.

    `remarks` counts the files per remark on an omission or an assumption. A run's id is made from the time,
    the machine and the file's contents, so that it is the same whenever the same file is read.

    Raises `StoreError`, naming the file, where one is damaged, of another format or version, or holds nothing of the
    suite.
    """
    for path in result_paths(source):
        file = read_result_file(path)
        try:
            yield _run(file, remarks)
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from None


def _run(file: ResultFile, remarks: Counter[str]) -> StoredRun:
    measuring = _measuring(file, remarks)
    device = _device(file, remarks)
    results = _newest(measuring, remarks)
    cases: dict[str, Case] = {}
    failures: dict[str, Failure] = {}
    readings: dict[str, dict[str, float]] = {}
    for name, result in results.items():
        meaning = meaning_of(name)
        assert meaning is not None
        for value, low, high, (phase, precision) in zip(
            result.values, result.low, result.high, itertools.product(*_parameters(result)), strict=True
        ):
            case_id, case = _case(meaning.workload, meaning.version, phase, precision, device)
            cases[case_id] = case
            if value is None:
                message = f"{name} has no value: it raised an error, timed out or was killed, and asv keeps no more"
                failures[case_id] = Failure(case_id=case_id, stage=meaning.stage, cause="unknown", message=message)
            else:
                for metric, number in _numbers(f"{name} of {case_id}", meaning, value, low, high).items():
                    readings.setdefault(metric, {})[case_id] = number
    known = set(failures).union(*readings.values())
    header = _header(file, results.values())
    return StoredRun(
        path=file.path,
        header=header,
        cases=cases,
        failures=failures,
        skips={case_id: Skip(case_id=case_id, reason=SKIPPED) for case_id in cases if case_id not in known},
        readings=readings,
        footers=[Footer(ended="complete", finished_at=header.started_at)],
    )


def _device(file: ResultFile, remarks: Counter[str]) -> str:
    """Return the device of asv's environment, else the device that the suite recorded, else `UNTOLD_DEVICE`."""
    variable, recorded = file.results.env_vars.get(DEVICE_VARIABLE, ""), file.value(DEVICE)
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


def _measuring(file: ResultFile, remarks: Counter[str]) -> dict[str, BenchmarkResult]:
    """Return the benchmarks of ampbench's suites that measure cases; raises `StoreError` without any."""
    names = file.results.results
    ours = {name: row for name, row in file.benchmarks.items() if meaning_of(name) and _has_our_shape(name, row)}
    if not ours:
        raise StoreError(f"holds no benchmark of ampbench's suite: its benchmarks are {listed(names)}")
    known = {**ours, **{name: row for name, row in file.benchmarks.items() if not meaning_of(name)}}
    for name, row in known.items():
        if row.version != VERSION:
            raise StoreError(
                f"{name} has version {row.version!r}, not {VERSION!r}: its numbers mean something else here"
            )
    others = [name for name in names if name not in known and name.rpartition(".")[2] != NOT_READ]
    if others:
        remarks[f"left out {len(others)} of another suite: {listed(others)}"] += 1
    return ours


def _newest(results: Mapping[str, BenchmarkResult], remarks: Counter[str]) -> dict[str, BenchmarkResult]:
    """Return the results of the newest version of each workload: asv keeps an older one's until it is run again."""
    versions = {name: (meaning.workload, meaning.version) for name in results if (meaning := meaning_of(name))}
    newest = dict(sorted(versions.values()))
    older = {f"{name} (version {version})": None for name, version in versions.values() if version < newest[name]}
    if older:
        remarks[f"left out values of workloads that the file has in a newer version, too: {listed(older)}"] += 1
    return {name: row for name, row in results.items() if versions[name][1] == newest[versions[name][0]]}


def _numbers(name: str, meaning: Meaning, value: Any, low: float | None, high: float | None) -> dict[str, float]:
    """Return the numbers of a value and its interval by column; none for an invalid value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise StoreError(f"{name} is no number: {value!r}")
    positive = meaning.metric in ("seconds_median", "peak_memory_bytes")
    if not math.isfinite(value) or (positive and value < SMALLEST):
        return {}
    numbers = {meaning.metric: float(value)}
    if meaning.metric == "seconds_median":
        # asv rounds limits to five digits, and so may put one on the wrong side
        limits = {"seconds_low": (low, min), "seconds_high": (high, max)}
        numbers |= {
            column: float(outer(limit, value))
            for column, (limit, outer) in limits.items()
            if limit is not None and 0 < limit < math.inf
        }
    return numbers


def _header(file: ResultFile, rows: Iterable[BenchmarkResult]) -> Header:
    """Return the header of the run of a result file; raises `StoreError` where no benchmark has a time."""
    started = time_of(min((row.started_at for row in rows if row.started_at is not None), default=None))
    committed = time_of(file.results.date)
    if started is None:
        raise StoreError("no benchmark has a time at which it was measured")
    stem = new_run_id(file.machine.machine, started).rpartition("-")[0]
    digest = hashlib.sha256(f"{file.digest} ".encode()).hexdigest()
    return Header(
        schema=SCHEMA,
        run=f"{stem}-{digest[:_ID_DIGITS]}",
        ampbench_version="",
        started_at=started.isoformat(timespec="milliseconds"),
        label=f"{PROGRAM} {file.results.env_name.partition('-')[0]}",
        commit=file.results.commit_hash,
        selection=Selection(),
        settings=Settings(),
        environment=_environment(file),
        committed_at=None if committed is None else committed.isoformat(timespec="seconds"),
        imported=Imported(program=PROGRAM, file=file.path.name),
    )


def _environment(file: ResultFile) -> Environment:
    machine, results = file.machine, file.results
    return Environment(
        host=machine.machine,
        system=machine.os,
        cpu=machine.cpu,
        cpu_count=_count(machine.num_cpu),
        memory_bytes=_count(machine.ram),
        python_version="" if "/" in results.python else results.python,  # an existing one is a path
        torch_version=file.required("torch") or _torch_version(file),
        torchvision_version=file.required("torchvision") or None,
        numpy_version=file.required("numpy"),
        threads=None,
        variables={name: value for name, value in results.env_vars.items() if name != DEVICE_VARIABLE},
    )


def _count(written: str | int) -> int | None:
    """Return a whole number; None for other text that a person typed into machine.json ("16GB")."""
    return int(written) if str(written).isdecimal() else None


def _torch_version(file: ResultFile) -> str:
    """Return the version of torch that the suite itself recorded, "" where it did not."""
    value = file.value(TORCH_VERSION)
    if value is None or value < 0:
        return ""
    major, lower = divmod(int(value), 1_000_000)
    return f"{major}.{lower // 1000}.{lower % 1000}"


def _parameters(result: BenchmarkResult) -> list[list[str]]:
    """Return phases and precisions of a benchmark, "" for a value that is not quoted text."""
    return [[text[1:-1] if text[:1] == text[-1:] == "'" else "" for text in values] for values in result.parameters]


def _has_our_shape(name: str, result: BenchmarkResult) -> bool:
    """Return whether the parameters are phases and precisions; another suite may have our names.

    Raises `StoreError` where a newer suite of ours has phases or precisions that are not known here.
    """
    parameters = _parameters(result)
    if len(parameters) != 2 or any("" in texts for texts in parameters):
        return False
    kinds = (("phase", parameters[0], PHASES), ("precision", parameters[1], PRECISIONS))
    unknown = [f"{kind} {text}" for kind, texts, known in kinds for text in texts if text not in known]
    if unknown and result.version == VERSION:
        raise StoreError(f"unknown {listed(unknown)} in {name}: upgrade ampbench")
    return not unknown


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

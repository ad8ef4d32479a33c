"""asv's results of suites of `ampbench.asv_suite` as runs: each value of a case becomes a reading.

Of its run a result file tells when, where, on what device and with which installation it was. Readings are no rounds:
asv's value is a median over samples that it need not keep, ampbench's the fastest sample of each round, so that one
series of both would show steps where nothing changed.

Source of the result files, format 2: asv 0.6.6, `results.Results.save` (a row per benchmark under `result_columns`, its
trailing nulls cut off; a list of nulls is one null), `results.iter_results_paths` (a machine's folder holds
machine.json), `machine.Machine`. Importing asv would take longer than reading hundreds of files.
"""

import ast
import functools
import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ampbench.convert.formats import listed
from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.drive.planning import default_preset
from ampbench.errors import StoreError
from ampbench.records.case import DEVICES, PHASES, Case, Environment
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import SCHEMA, Footer, Header, Imported, Selection, Settings
from ampbench.store import StoredRun, new_run_id
from ampbench.workloads.index import WORKLOADS, class_name, resolve_parameters

RESULTS_VERSION = 2
MACHINE_VERSION = 1
MACHINE_FILE = "machine.json"
BENCHMARKS_FILE = "benchmarks.json"

_Kind = TypeVar("_Kind")


class MachineFile(msgspec.Struct, kw_only=True):
    """What machine.json says; all but the name may have been left empty."""

    machine: str
    os: str = ""
    cpu: str = ""
    num_cpu: str | int = ""
    ram: str | int = ""


_COLUMNS = {"parameters": "params", "values": "result", "low": "stats_ci_99_a", "high": "stats_ci_99_b"}


class BenchmarkResult(msgspec.Struct, kw_only=True, rename=_COLUMNS):
    """One benchmark's row: a value per combination of its parameters, in the order of their product.

    A value is None where it failed and NaN where it was skipped or not selected. `low` and `high` are asv's 99%
    interval, None where it has none. `parameters` are the values of each parameter as they are written in Python,
    `started_at` is in milliseconds since 1970, `duration` in seconds.
    """

    version: str | None = None
    parameters: list[list[str]] = []
    values: list[Any] = []
    low: list[float | None] = []
    high: list[float | None] = []
    started_at: float | None = None
    duration: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """What was measured of one commit in one environment on one machine.

    `digest` is that of the file's bytes, `names` are all its benchmarks, `benchmarks` the rows of those asked for.
    """

    path: Path
    digest: str
    machine: MachineFile
    commit: str
    committed_at: datetime | None
    environment: str
    python: str
    requirements: Mapping[str, str]
    variables: Mapping[str, str]
    names: Sequence[str]
    benchmarks: Mapping[str, BenchmarkResult]


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


def read_result_file(path: Path, wanted: Callable[[str], bool]) -> ResultFile:
    """Return the contents of the result file at `path`, with the rows of the benchmarks that are `wanted`.

    Raises `StoreError`, naming the file, where it or its folder's machine.json is missing, broken or of another format.
    """
    data = _bytes(path)
    found = _checked(path, _document(path, data), RESULTS_VERSION, "a result of asv", _Results)
    machine = _machine(path.with_name(MACHINE_FILE))
    if found.params.get("machine", machine.machine) != machine.machine:
        raise StoreError(f"{path}: measured on {found.params['machine']}, but its folder is that of {machine.machine}")
    try:
        return ResultFile(
            path=path,
            digest=hashlib.sha256(data).hexdigest(),
            machine=machine,
            commit=found.commit_hash,
            committed_at=time_of(found.date),
            environment=found.env_name,
            python=found.python,
            requirements={name: version or "" for name, version in found.requirements.items()},
            variables=found.env_vars,
            names=list(found.results),
            benchmarks={
                name: _benchmark(name, found.result_columns, row) for name, row in found.results.items() if wanted(name)
            },
        )
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from None


def time_of(milliseconds: float | None) -> datetime | None:
    """Return a time of asv's; raises `StoreError` for one that is none."""
    try:
        return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise StoreError(f"{milliseconds} is no time in milliseconds") from None


@functools.lru_cache(maxsize=1024)
def parameter_text(written: str) -> str | None:
    """Return the text that a parameter's value stands for as asv writes it ("'mlp'"); None where it is no text."""
    try:
        value = ast.literal_eval(written)
    except (ValueError, SyntaxError):
        return None
    return value if isinstance(value, str) else None


class _Results(msgspec.Struct, kw_only=True):
    commit_hash: str
    env_name: str
    date: float | None
    params: dict[str, Any]
    python: str
    requirements: dict[str, str | None]
    env_vars: dict[str, str] = {}
    result_columns: list[str]
    results: dict[str, list[Any]]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None


def _document(path: Path, data: bytes) -> Any:
    try:
        return json.loads(data)  # msgspec refuses asv's NaN
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: no whole JSON, so it was cut or is no result of asv: {error}") from None


def _checked(path: Path, document: Any, version: int, what: str, kind: type[_Kind]) -> _Kind:
    """Return `document` as a `kind`; `StoreError` where it is another thing or of another version of the format."""
    found = document.get("version") if isinstance(document, dict) else None
    if not isinstance(found, int):
        said = "has no version of the format" if found is None else f"is in format {found!r}, which is none of asv's"
        raise StoreError(f"{path}: not {what}: it {said}")
    if found != version:
        remedy = "`asv update` rewrites older ones" if found < version else "upgrade ampbench"
        raise StoreError(f"{path}: {what} in format {found}; this ampbench reads {version}: {remedy}")
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise StoreError(f"{path}: not {what}: {error}") from None


def _machine(path: Path) -> MachineFile:
    """Return what machine.json says."""
    if not path.exists():
        raise StoreError(f"there is no {path}, which asv writes beside results: give the folder that asv wrote")
    return _checked(path, _document(path, _bytes(path)), MACHINE_VERSION, "asv's description of a machine", MachineFile)


def _benchmark(name: str, columns: Sequence[str], row: Sequence[Any]) -> BenchmarkResult:
    cells = {column: cell for column, cell in zip(columns, row, strict=False) if cell is not None}
    try:
        found = msgspec.convert(cells, BenchmarkResult)
    except msgspec.ValidationError as error:
        raise StoreError(f"the result of {name} is damaged: {error}") from None
    count = math.prod(len(values) for values in found.parameters)
    if any(values and len(values) != count for values in (found.values, found.low, found.high)):
        raise StoreError(f"the result of {name} is damaged: it does not have {count} values, as its parameters say")
    found.values, found.low, found.high = (values or [None] * count for values in (found.values, found.low, found.high))
    return found


PROGRAM = "asv"
DEVICE_VARIABLE = "AMPBENCH_DEVICE"
"""The environment variable that tells the suite its device; asv keeps it in its results."""
TORCH_VERSION = ".Environment.track_torch_version"
"""Its one value is major * 10^6 + minor * 10^3 + patch: 2015001 is torch 2.15.1."""
DEVICE = ".Environment.track_device"
"""Its one value is the place of the device of all cases in `DEVICES`; older results do not have it."""
_ID_DIGITS = 8


def header_of(found: ResultFile, results: Sequence[BenchmarkResult]) -> Header:
    """Return the header of the run of a result file.

    The run's id is made from the time, the machine and the file's contents. Raises `StoreError` without any time.
    """
    started = time_of(min((one.started_at for one in results if one.started_at is not None), default=None))
    started = started or found.committed_at
    if started is None:
        raise StoreError("tells neither when it was measured nor when its commit was made")
    stem = new_run_id(found.machine.machine, started).rpartition("-")[0]
    digest = hashlib.sha256(f"{found.digest} ".encode()).hexdigest()
    return Header(
        schema=SCHEMA,
        run=f"{stem}-{digest[:_ID_DIGITS]}",
        ampbench_version="",
        started_at=started.isoformat(timespec="milliseconds"),
        label=f"{PROGRAM} {found.environment.partition('-')[0]}",
        commit=found.commit,
        selection=Selection(),
        settings=Settings(),
        environment=_environment(found),
        committed_at=None if found.committed_at is None else found.committed_at.isoformat(timespec="seconds"),
        imported=Imported(program=PROGRAM, file=found.path.name),
    )


def finished_at(found: ResultFile, results: Sequence[BenchmarkResult]) -> str:
    """Return when the last of the benchmarks had ended, ISO 8601; else the commit's time, "" where there is neither."""
    ends = [one.started_at + 1000 * (one.duration or 0) for one in results if one.started_at is not None]
    ended = time_of(max(ends, default=None)) or found.committed_at
    return "" if ended is None else ended.isoformat(timespec="milliseconds")


def _environment(found: ResultFile) -> Environment:
    machine = found.machine
    return Environment(
        host=machine.machine,
        system=machine.os,
        cpu=machine.cpu,
        cpu_count=_count(machine.num_cpu),
        memory_bytes=_count(machine.ram),
        python_version="" if "/" in found.python else found.python,  # an existing one is a path
        torch_version=_required(found, "torch") or _torch_version(found),
        torchvision_version=_required(found, "torchvision") or None,
        numpy_version=_required(found, "numpy"),
        threads=None,
        variables={name: value for name, value in found.variables.items() if name != DEVICE_VARIABLE},
    )


def _count(written: str | int) -> int | None:
    """Return a whole number; None for what a person typed into machine.json instead ("16GB")."""
    return int(written) if str(written).isdecimal() else None


def _required(found: ResultFile, package: str) -> str:
    """Return the version of a package that the environment was built with, "" where that is not told.

    A requirement may name the installer ("pip+torch") or leave the version open.
    """
    for name, version in found.requirements.items():
        if name.rpartition("+")[2] == package and re.match(r"\d", version):
            return version
    return ""


def _torch_version(found: ResultFile) -> str:
    """Return the version of torch that the suite itself recorded, "" where it did not."""
    value = _only_value(found, TORCH_VERSION)
    if value is None or value < 0:
        return ""
    major, rest = divmod(int(value), 1_000_000)
    return f"{major}.{rest // 1000}.{rest % 1000}"


def told_device(found: ResultFile) -> str:
    """Return the device that asv's environment names or else the suite itself recorded, "" where neither does."""
    if told := found.variables.get(DEVICE_VARIABLE, ""):
        if told not in DEVICES:
            raise StoreError(f"{DEVICE_VARIABLE} is {told!r}, which is no device: {', '.join(DEVICES)}")
        return told
    value = _only_value(found, DEVICE)
    if value is None:
        return ""
    if value not in range(len(DEVICES)):
        raise StoreError(f"{DEVICE[1:]} is {value:g}, and this ampbench knows {len(DEVICES)} devices: upgrade it")
    return DEVICES[int(value)]


def _only_value(found: ResultFile, name: str) -> float | None:
    """Return the value of a benchmark without parameters, from any file; None where there is no number."""
    result = next((one for each, one in found.benchmarks.items() if each.endswith(name)), None)
    value = result.values[0] if result and len(result.values) == 1 else None
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


UNTOLD_DEVICE = "cpu"
"""The device of results that tell none."""
VERSION = "1"
"""The version of the suite's benchmarks whose values are understood."""


METHODS: Mapping[str, tuple[str, str]] = {
    "time_step": ("round", "seconds_median"),
    "track_other_share": ("round", "other_share"),
    "track_peak_memory": ("memory", "peak_memory_bytes"),
    "track_output_error": ("divergence", "output_floor_ratio"),
    "track_gradient_error": ("divergence", "grad_rel_l2"),
}
"""Where measuring fails, and the metric of the values, by method of the suite's classes, one of each workload
(`workloads.index.class_name`); their parameters are phase and precision."""
NOT_READ = ("track_fp64_norm", "track_fp64_result")
"""Methods whose values are for asv alone: no column has them."""
_CLASSES = {class_name(spec): spec.name for spec in WORKLOADS.values()}
_OWN_FILE = "precisions."


def _split(name: str) -> tuple[str, str]:
    """Return the class and the method of a benchmark of a suite, "" for both of any other.

    A class is known by its name; those of files other than the one of this repository's suite by their file's, too.
    """
    owner, _, method = name.rpartition(".")
    bare = owner.rpartition(".")[2]
    known = method in (*METHODS, *NOT_READ)
    return (bare if _workload(bare)[1] else owner.removeprefix(_OWN_FILE), method) if known else ("", "")


def _tells_environment(name: str) -> bool:
    """Return whether a benchmark is one of `ampbench.asv_suite.Environment`."""
    return name.endswith((TORCH_VERSION, DEVICE))


def _meaning(name: str) -> tuple[str, str] | None:
    """Return where measuring a benchmark fails, and the metric that its values are of."""
    return METHODS.get(_split(name)[1])


def is_wanted(name: str) -> bool:
    """Return whether a benchmark is one of the suite's, whatever its workloads are called."""
    return _tells_environment(name) or _meaning(name) is not None


SKIPPED = "asv has no number: its suite skipped the case there, or the case was not selected"
SMALLEST = 1e-300
"""A time, or a number of bytes, is more than this: 0 is no measurement."""


def read_results(source: Path, *, remarks: Counter[str] | None = None) -> Iterator[StoredRun]:
    """Yield a run for each result file of `source`: asv's results_dir, the folder of a machine in it, or one file.

    `remarks` counts by sentence the files of which something was left out or assumed. A run's id is made from the time,
    the machine and the file's contents, so that it is the same whenever the same file is read.

    Raises `StoreError`, naming the file, where one is damaged, of another format or version, or holds nothing of the
    suite.
    """
    for path in result_paths(source):
        found = read_result_file(path, is_wanted)
        try:
            yield _run(found, Counter() if remarks is None else remarks)
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from None


@dataclass(slots=True)
class _Values:
    """What a file holds of each case, as it is read benchmark by benchmark.

    `newest` is the version of each workload that is read: asv keeps a benchmark's values of an older one until it is
    run again. `outdated` are the names and versions of those that were left out.
    """

    newest: Mapping[str, int]
    outdated: dict[tuple[str, int], None] = field(default_factory=dict)
    cases: dict[str, Case] = field(default_factory=dict)
    readings: dict[str, dict[str, float]] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)

    def add(self, name: str, result: BenchmarkResult, device: str) -> None:
        """Add the values of the suite's benchmark `name`."""
        meaning = _meaning(name)
        assert meaning is not None
        stage, metric = meaning
        values = self.readings.setdefault(metric, {})
        bounds = [self.readings.setdefault(bound, {}) for bound in ("seconds_low", "seconds_high")]
        workload, version = _workload(_split(name)[0])
        for value, low, high, (phase, precision) in zip(
            result.values, result.low, result.high, itertools.product(*_parameters(result)), strict=True
        ):
            case_id, case = _case(workload, version, phase or "", precision or "", device)
            if case.version < self.newest[case.workload]:
                self.outdated[case.workload, case.version] = None
                continue
            self.cases[case_id] = case
            if value is None:
                message = f"{name} has no value: it raised an error, timed out or was killed, and asv keeps no more"
                self.failures[case_id] = Failure(case_id=case_id, stage=stage, cause="unknown", message=message)
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise StoreError(f"{name} of {case_id} is no number: {value!r}")
            positive = stage != "divergence" and metric != "other_share"
            if not math.isfinite(value) or (positive and value < SMALLEST):
                continue
            values[case_id] = float(value)
            if metric == "seconds_median":
                # asv rounds limits to five digits, and so may put one on the wrong side
                for bound, limit, outer in zip(bounds, (low, high), (min, max), strict=True):
                    if limit is not None and math.isfinite(limit) and limit > 0:
                        bound[case_id] = outer(limit, value)

    @property
    def skips(self) -> dict[str, Skip]:
        """The cases without any number."""
        known = set(self.failures).union(*self.readings.values())
        return {case_id: Skip(case_id=case_id, reason=SKIPPED) for case_id in self.cases if case_id not in known}


def _run(found: ResultFile, remarks: Counter[str]) -> StoredRun:
    ours = {name: one for name, one in found.benchmarks.items() if _meaning(name) and _has_our_shape(name, one)}
    if not ours:
        raise StoreError(f"holds no benchmark of ampbench's suite: its benchmarks are {listed(found.names)}")
    environment = {name: one for name, one in found.benchmarks.items() if _tells_environment(name)}
    for name, one in (ours | environment).items():
        if one.version != VERSION:
            raise StoreError(
                f"{name} has version {one.version!r}, not {VERSION!r}: its numbers mean something else here"
            )
    known = {*ours, *environment}
    others = [name for name in found.names if name not in known and _split(name)[1] not in NOT_READ]
    if others:
        remarks[f"left out {len(others)} of another suite: {listed(others)}"] += 1
    device = told_device(found)
    if not device:
        device = UNTOLD_DEVICE
        remarks[f"no {DEVICE_VARIABLE} and no {DEVICE[1:]} in the results: taken for {device}"] += 1
    values = _Values(_newest_versions(ours))
    for name, one in ours.items():
        values.add(name, one, device)
    if values.outdated:
        older = listed(f"{workload} (version {version})" for workload, version in values.outdated)
        remarks[f"left out values of workloads that the file has in a newer version, too: {older}"] += 1
    return StoredRun(
        path=found.path,
        header=header_of(found, list(ours.values())),
        cases=values.cases,
        failures=values.failures,
        skips=values.skips,
        readings={metric: read for metric, read in values.readings.items() if read},
        footers=[Footer(ended="complete", finished_at=finished_at(found, list(ours.values())))],
    )


def _parameters(result: BenchmarkResult) -> list[list[str | None]]:
    """Return phases and precisions of a benchmark, None for what is no text."""
    return [[parameter_text(one) for one in values] for values in result.parameters]


@functools.cache
def _workload(owner: str) -> tuple[str, int]:
    """Return name and version of the workload of a class of the suite: 2 of MlpV2, 0 of a user's, called as it is."""
    if owner in _CLASSES:
        return _CLASSES[owner], WORKLOADS[_CLASSES[owner]].version
    numbered = re.fullmatch(r"(.+)V(\d+)", owner)
    known = {class_name(replace(spec, version=1)): name for name, spec in WORKLOADS.items()}
    if numbered and numbered[1] in known:
        return known[numbered[1]], int(numbered[2])
    return owner, int(owner in WORKLOADS)


def _has_our_shape(name: str, result: BenchmarkResult) -> bool:
    """Return whether the parameters are phases and precisions; another suite may have our names.

    Raises `StoreError` where a newer suite of ours has phases or precisions that are not known here.
    """
    parameters = _parameters(result)
    if len(parameters) != 2 or any(None in texts for texts in parameters):
        return False
    kinds = (("phase", parameters[0], PHASES), ("precision", parameters[1], PRECISIONS))
    unknown = [f"{kind} {text}" for kind, texts, known in kinds for text in texts if text not in known]
    if unknown and result.version == VERSION:
        raise StoreError(f"unknown {listed(unknown)} in {name}: upgrade ampbench")
    return not unknown


def _newest_versions(names: Iterable[str]) -> dict[str, int]:
    """Return the newest version of each workload among those of the benchmarks called `names`."""
    newest: dict[str, int] = {}
    for workload, version in (_workload(_split(name)[0]) for name in names):
        newest[workload] = max(version, newest.get(workload, 0))
    return newest


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

"""asv's result files, format 2: which there are, and what one holds, checked.

Source: asv 0.6.6, `results.Results.save` (a row per benchmark under `result_columns`, its trailing nulls cut off; a
list of nulls is one null), `results.iter_results_paths` (a machine's folder holds machine.json), `machine.Machine`.
Importing asv would take longer than reading hundreds of files.
"""

import ast
import functools
import hashlib
import itertools
import json
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ampbench.errors import StoreError

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkResult:
    """One benchmark's row: a value per combination of its parameters, in the order of their product.

    A value is None where it failed and NaN where it was skipped or not selected. `low` and `high` are asv's 99%
    interval, None where it has none. `parameters` are the values of each parameter as they are written in Python,
    `started_at` is in milliseconds since 1970, `duration` in seconds.
    """

    version: str | None
    parameters: Sequence[Sequence[str]]
    values: Sequence[Any]
    low: Sequence[float | None]
    high: Sequence[float | None]
    started_at: float | None
    duration: float | None


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


def read_result_file(path: Path, wanted: Container[str]) -> ResultFile:
    """Return the contents of the result file at `path`, with the rows of the benchmarks in `wanted`.

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
                name: _benchmark(name, found.result_columns, row)
                for name, row in found.results.items()
                if name in wanted
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


class _Row(msgspec.Struct, kw_only=True):
    result: list[Any] | None = None
    params: list[list[str]] | None = None
    version: str | None = None
    started_at: float | None = None
    duration: float | None = None
    stats_ci_99_a: list[float | None] | None = None
    stats_ci_99_b: list[float | None] | None = None


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


@functools.lru_cache(maxsize=64)
def _machine_at(path: Path, _: int) -> MachineFile:
    return _checked(path, _document(path, _bytes(path)), MACHINE_VERSION, "asv's description of a machine", MachineFile)


def _machine(path: Path) -> MachineFile:
    """Return what machine.json says, read once as long as it stays the same."""
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        raise StoreError(
            f"there is no {path}, which asv writes beside results: give the folder that asv wrote"
        ) from None
    return _machine_at(path, changed)


def _benchmark(name: str, columns: Sequence[str], row: Sequence[Any]) -> BenchmarkResult:
    try:
        found = msgspec.convert(dict(zip(columns, row, strict=False)), _Row)
    except msgspec.ValidationError as error:
        raise StoreError(f"the result of {name} is damaged: {error}") from None
    parameters = found.params or []
    count = math.prod(len(values) for values in parameters)
    lists = (found.result, found.stats_ci_99_a, found.stats_ci_99_b)
    if any(values is not None and len(values) != count for values in lists):
        raise StoreError(f"the result of {name} is damaged: it does not have {count} values, as its parameters say")
    values, low, high = (list(itertools.repeat(None, count)) if one is None else one for one in lists)
    return BenchmarkResult(
        version=found.version,
        parameters=parameters,
        values=values,
        low=low,
        high=high,
        started_at=found.started_at,
        duration=found.duration,
    )

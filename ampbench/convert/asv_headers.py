"""What a result file of asv tells of its run: when, where, on what device, with which installation."""

import hashlib
import math
import re
from collections.abc import Sequence

from ampbench.convert.asv_files import BenchmarkResult, ResultFile, time_of
from ampbench.errors import StoreError
from ampbench.records.environments import DEVICES, Environment
from ampbench.records.runs import SCHEMA, Header, Imported, Selection, Settings
from ampbench.store import new_run_id

PROGRAM = "asv"
DEVICE_VARIABLE = "AMPBENCH_DEVICE"
"""The environment variable that tells the suite its device; asv keeps it in its results."""
TORCH_VERSION = "precisions.Environment.track_torch_version"
"""Its one value is major * 10^6 + minor * 10^3 + patch: 2015001 is torch 2.15.1."""
DEVICE = "precisions.Environment.track_device"
"""Its one value is the place of the device of all cases in `DEVICES`; older results do not have it."""
_ID_DIGITS = 8


def header_of(found: ResultFile, results: Sequence[BenchmarkResult], device: str) -> Header:
    """Return the header of the run of a result file; `device` is what was said of it where it does not tell its own.

    The run's id is made from the time, the machine and the file's contents. Raises `StoreError` without any time.
    """
    started = time_of(min((one.started_at for one in results if one.started_at is not None), default=None))
    started = started or found.committed_at
    if started is None:
        raise StoreError("tells neither when it was measured nor when its commit was made")
    stem = new_run_id(found.machine.machine, started).rpartition("-")[0]
    digest = hashlib.sha256(f"{found.digest} {device}".encode()).hexdigest()
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
        raise StoreError(f"{DEVICE} is {value:g}, which is none of {len(DEVICES)} devices: upgrade ampbench")
    return DEVICES[int(value)]


def _only_value(found: ResultFile, name: str) -> float | None:
    """Return the value of a benchmark without parameters, None where there is no number."""
    result = found.benchmarks.get(name)
    value = result.values[0] if result and len(result.values) == 1 else None
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None

"""asv's results of ampbench's own suite (benchmarks/asv) as runs: each value of a case becomes a reading.

They are no rounds: asv's value is a median over samples that it need not keep, ampbench's the fastest sample of each
round, so that one series of both would show steps where nothing changed.
"""

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ampbench.convert.asv_files import (
    BenchmarkResult,
    ResultFile,
    parameter_text,
    read_result_file,
    result_paths,
)
from ampbench.convert.asv_headers import (
    DEVICE,
    DEVICE_VARIABLE,
    PROGRAM,
    TORCH_VERSION,
    finished_at,
    header_of,
    told_device,
)
from ampbench.convert.remarks import listed
from ampbench.errors import StoreError, UnknownNameError
from ampbench.planning import PHASES, default_preset
from ampbench.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.records.cases import Case
from ampbench.records.environments import DEVICES
from ampbench.records.measurements import Failure, Skip
from ampbench.records.runs import Footer
from ampbench.store import StoredRun
from ampbench.workloads.index import WORKLOADS, resolve_parameters

__all__ = ["PROGRAM", "read_results"]

UNTOLD_DEVICE = "cpu"
"""The device of results that tell none."""
VERSION = "1"
"""The version of the suite's benchmarks whose values are understood."""


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a benchmark's values are: `metric` in its unit, or its inverse; `stage` is where measuring it fails."""

    stage: str
    metric: str
    inverse: bool = False


SUITE: Mapping[str, _Meaning] = {
    "precisions.Speed.time_step": _Meaning("round", "seconds_median"),
    "precisions.Speed.track_seconds_per_item": _Meaning("round", "items_per_second", inverse=True),
    "precisions.Memory.track_peak_memory": _Meaning("memory", "peak_memory_bytes"),
    "precisions.Accuracy.track_output_error": _Meaning("divergence", "output_floor_ratio"),
    "precisions.Accuracy.track_gradient_error": _Meaning("divergence", "grad_rel_l2"),
}
"""The benchmarks that have a value per case; their parameters are workload, phase and precision."""
WANTED = frozenset([*SUITE, TORCH_VERSION, DEVICE])

SKIPPED = "asv has no number: its suite skipped the case there, or the case was not selected"
SMALLEST = 1e-300
"""A time, or a number of bytes, is more than this: 0 is no measurement."""


def read_results(source: Path, *, device: str = "", remarks: Counter[str] | None = None) -> Iterator[StoredRun]:
    """Yield a run for each result file of `source`: asv's results_dir, the folder of a machine in it, or one file.

    `device` is that of results that do not tell theirs (cpu, where it is not given). `remarks` counts by sentence the
    files of which something was left out or assumed, or for which `device` was given in vain. A run's id is made from
    the time, the machine and the file's contents, so that it is the same whenever the same file is read.

    Raises `StoreError`, naming the file, where one is damaged, of another format or version, or holds nothing of the
    suite; `UnknownNameError` for an unknown `device`.
    """
    if device and device not in DEVICES:
        raise UnknownNameError("device", device, DEVICES)
    for path in result_paths(source):
        found = read_result_file(path, WANTED)
        try:
            yield _run(found, device, Counter() if remarks is None else remarks)
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
        meaning = SUITE[name]
        values = self.readings.setdefault(meaning.metric, {})
        bounds = [self.readings.setdefault(bound, {}) for bound in ("seconds_low", "seconds_high")]
        for value, low, high, combination in zip(
            result.values, result.low, result.high, itertools.product(*result.parameters), strict=True
        ):
            case_id, case = _case(combination, device)
            if case.version < self.newest[case.workload]:
                self.outdated[case.workload, case.version] = None
                continue
            self.cases[case_id] = case
            if value is None:
                self.failures[case_id] = _failure(case_id, meaning.stage, name)
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise StoreError(f"{name} of {case_id} is no number: {value!r}")
            if not math.isfinite(value) or (meaning.stage != "divergence" and value < SMALLEST):
                continue
            values[case_id] = 1 / value if meaning.inverse else float(value)
            if meaning.metric == "seconds_median":
                # asv rounds limits to five digits, and so may put one on the wrong side
                for bound, limit, outer in zip(bounds, (low, high), (min, max), strict=True):
                    if limit is not None and math.isfinite(limit) and limit > 0:
                        bound[case_id] = outer(limit, value)

    @property
    def skips(self) -> dict[str, Skip]:
        """The cases without any number."""
        known = set(self.failures).union(*self.readings.values())
        return {case_id: Skip(case_id=case_id, reason=SKIPPED) for case_id in self.cases if case_id not in known}


def _run(found: ResultFile, device: str, remarks: Counter[str]) -> StoredRun:
    ours = {name: one for name, one in found.benchmarks.items() if name in SUITE and _has_our_shape(name, one)}
    if not ours:
        raise StoreError(f"holds no benchmark of ampbench's suite: its benchmarks are {listed(found.names)}")
    environment = {name: found.benchmarks[name] for name in (TORCH_VERSION, DEVICE) if name in found.benchmarks}
    for name, one in (ours | environment).items():
        if one.version != VERSION:
            raise StoreError(
                f"{name} has version {one.version!r}, not {VERSION!r}: its numbers mean something else here"
            )
    others = [name for name in found.names if name not in ours and name not in environment]
    if others:
        remarks[f"left out {len(others)} of another suite: {listed(others)}"] += 1
    told = told_device(found)
    if told and device and told != device:
        remarks[f"--device {device} has no effect: the results tell their device, {told}"] += 1
    if not (told or device):
        remarks[
            f"no {DEVICE_VARIABLE} is told: taken for {UNTOLD_DEVICE} (`ampbench convert --device` says otherwise)"
        ] += 1
    values = _Values(_newest_versions(ours.values()))
    for name, one in ours.items():
        values.add(name, one, told or device or UNTOLD_DEVICE)
    if values.outdated:
        older = listed(f"{workload} (version {version})" for workload, version in values.outdated)
        remarks[f"left out values of workloads that the file has in a newer version, too: {older}"] += 1
    return StoredRun(
        path=found.path,
        header=header_of(found, list(ours.values()), "" if told or device == UNTOLD_DEVICE else device),
        cases=values.cases,
        failures=values.failures,
        skips=values.skips,
        readings={metric: read for metric, read in values.readings.items() if read},
        footers=[Footer(ended="complete", finished_at=finished_at(found, list(ours.values())))],
    )


def _has_our_shape(name: str, result: BenchmarkResult) -> bool:
    """Return whether the parameters are workloads, phases and precisions; another suite may have our names.

    Raises `StoreError` where a newer suite of ours has phases or precisions that are not known here.
    """
    if len(result.parameters) != 3:
        return False
    parameters = [[parameter_text(one) for one in values] for values in result.parameters]
    if any(None in texts for texts in parameters):
        return False
    kinds = (("phase", parameters[1], PHASES), ("precision", parameters[2], PRECISIONS))
    unknown = [f"{kind} {text}" for kind, texts, known in kinds for text in texts if text not in known]
    if unknown and result.version == VERSION:
        raise StoreError(f"unknown {listed(unknown)} in {name}: upgrade ampbench")
    return not unknown


def _newest_versions(results: Iterable[BenchmarkResult]) -> dict[str, int]:
    """Return the newest version of each workload among the parameters of `results`."""
    newest: dict[str, int] = {}
    for written in itertools.chain.from_iterable(one.parameters[0] for one in results):
        workload, version = _workload(parameter_text(written) or "")
        newest[workload] = max(version, newest.get(workload, 0))
    return newest


@functools.lru_cache(maxsize=65_536)
def _case(combination: tuple[str, str, str], device: str) -> tuple[str, Case]:
    """Return the case that the suite measures for a combination of its parameters, and its id.

    Like `planning.make_plan`, with the device's preset; a user's workload has no parameters there.
    """
    label, phase, precision = (parameter_text(one) or "" for one in combination)
    workload, version = _workload(label)
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


def _workload(label: str) -> tuple[str, int]:
    """Return name and version of the workload with `label`: "mlp" is version 1, "mlp v2" 2, a user's 0."""
    numbered = re.fullmatch(r"(.+) v(\d+)", label)
    if numbered and numbered[1] in WORKLOADS:
        return numbered[1], int(numbered[2])
    return label, int(label in WORKLOADS)


def _failure(case_id: str, stage: str, name: str) -> Failure:
    message = f"{name} has no value: it raised an error, timed out or was killed, and asv keeps no more of it"
    return Failure(case_id=case_id, stage=stage, cause="unknown", message=message)

"""What a session measures: cells planned, timed by pytest-benchmark's fixture, and their memory and divergence.

PYTEST_DONT_REWRITE
"""

import dataclasses
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import torch

from ampbench.convert import pytest_benchmark as pytest_json
from ampbench.convert.selection import defined
from ampbench.errors import AmpbenchError, UsageError
from ampbench.metrics import METRICS
from ampbench.planning import PlannedCase, find_sources
from ampbench.pytest_plugin.given import Given
from ampbench.pytest_plugin.summary import Seen
from ampbench.records.cases import ParameterValue, WorkloadSource
from ampbench.records.divergences import Divergence
from ampbench.records.measurements import MemoryPass, Round
from ampbench.records.requests import MAX_SAMPLES_PER_ROUND
from ampbench.records.runs import Selection, Settings
from ampbench.running.channel import Renewing, ServerChannel
from ampbench.running.schedule import Task, request_of
from ampbench.running.session import default_memory_limit
from ampbench.worker import cells
from ampbench.worker.devices import open_device
from ampbench.worker.environment import read_environment
from ampbench.worker.rounds import failure_of
from ampbench.worker.timing import plan_samples, time_build

WARM_UP_SECONDS = 0.1
"""The budget of warm-up: a step that takes longer is warmed up by one."""
PRELOAD = ("torch._dynamo", "torchvision")
"""What training and some built-in workloads import; both are in this process, too, once the environment was read."""

TIMED = frozenset({"s", "items/s", "FLOP/s"})
"""Units of what comes from a time: pytest-benchmark's own statistics, beside, say it of all samples."""


class Benchmark(Protocol):
    """What is used of pytest-benchmark's fixture."""

    disabled: bool
    has_error: bool
    group: str | None
    params: dict[str, Any] | None
    extra_info: dict[str, Any]
    stats: Any

    def pedantic(self, target: Any, *, setup: Any = None, rounds: int = 1, iterations: int = 1) -> Any:
        """Run `target` `iterations` times in each of `rounds` rounds, `setup` before each."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """pytest-benchmark's own settings of how long to measure: seconds in all, rounds at least, seconds a round."""

    max_seconds: float
    min_rounds: int
    min_seconds: float


class Measuring:
    """Measures cells, one test each, and keeps what was `seen` for the table at the end."""

    def __init__(self) -> None:
        self.seen = Seen()
        self._plans: dict[str, dict[tuple[str, str], PlannedCase]] = {}
        self._sources: dict[str, WorkloadSource] = {}
        self._server = Renewing(lambda: ServerChannel(preload=PRELOAD))

    def plan(
        self, given: Given, device: str, preset: str, parameters: Mapping[str, ParameterValue]
    ) -> dict[tuple[str, str], PlannedCase]:
        """Return the cells of a workload on a device by phase and precision.

        Raises `UsageError` for a parameter or value that cannot be meant and for a second workload of the same name,
        `WorkloadError` where it cannot be built.
        """
        if given.source is not None:
            other = self._sources.setdefault(given.label, given.source)
            if other != given.source:
                raise UsageError(
                    f"two workloads are called {given.label}, {other.module} and {given.source.module}: rename one, or "
                    "measure them in sessions of their own"
                )
        key = f"{given.name} {device} {preset} {sorted(parameters.items())}"
        if key not in self._plans:
            name = find_sources(given.name)[0].name
            selection = Selection(
                workloads=[given.name],
                devices=[device],
                preset=preset,
                overrides={f"{name}.{parameter}": value for parameter, value in parameters.items()},
            )
            planned = [_labelled(one, given.label) for one in cells.plan_cells(selection)]
            self._plans[key] = {(one.case.phase, one.case.precision): one for one in planned}
        return self._plans[key]

    def measure(self, planned: PlannedCase, given: Given, benchmark: Benchmark, limits: Limits) -> Divergence:
        """Time a cell by pytest-benchmark, measure its memory and divergence, and put them into its `extra_info`.

        Raises what the workload raises.
        """
        case = planned.case
        benchmark.group = benchmark.group or "/".join((case.group, case.device, case.phase))
        try:
            with cells.opened(planned) as cell:
                time_cell(cell, benchmark, limits)
                timed = _as_round(cell, benchmark)
        except Exception as error:
            self.seen.add_failure(case, failure_of(case.case_id, "round", error))
            raise
        notes: list[str] = []
        try:
            memory = self._memory(planned, given.source, notes)
            divergence = cells.measure_divergence(planned)
        except AmpbenchError as error:
            self.seen.add_failure(case, failure_of(case.case_id, "round", error))
            raise
        row = self.seen.add(timed, case, memory, divergence)
        benchmark.extra_info.update(
            pytest_json.case_info(
                case,
                items_per_step=timed.items_per_step,
                weights_digest=timed.weights_digest,
                data="samples",
                memory=memory,
                divergence=divergence,
                notes=notes,
                metrics={one.name: value for one, value in defined(row, METRICS.values()) if one.unit not in TIMED},
            )
        )
        return divergence

    def describe_machine(self, machine_info: dict[str, Any]) -> None:
        """Add this machine and installation to pytest-benchmark's `machine_info`, if a test has measured something."""
        if self.seen:
            describe_machine(machine_info)

    def close(self) -> None:
        """End the server process."""
        self._server.close()

    def _memory(self, planned: PlannedCase, source: WorkloadSource | None, notes: list[str]) -> MemoryPass | None:
        """Return the peak of one step's memory; None, with a note that says why, where it cannot be had.

        On a CPU the record is exact once in a process, so another one makes it.
        """
        if planned.case.device != "cpu":
            return cells.measure_memory(planned)
        if source is None:
            notes.append(
                "memory was not measured: on a CPU another process does that, which cannot import a local function"
            )
            return None
        settings = Settings(threads=torch.get_num_threads(), memory_limit_bytes=default_memory_limit())
        task = Task("memory", dataclasses.replace(planned, source=source))
        reply = self._server.serve(request_of(task, settings, server=0))
        if reply.memory is None:
            why = reply.failure.said if reply.failure else "no result"
            notes.append(f"memory was not measured: {why}")
        return reply.memory


def time_cell(cell: cells.Cell, benchmark: Benchmark, limits: Limits) -> None:
    """Warm a cell up and have it timed: many steps a round, or one, from restored state, of a cell that is `apart`."""
    restore = cell.restore if cell.apart else None
    device = open_device(cell.case.device)
    warmed = time_build(
        cell.step, device, budget_seconds=WARM_UP_SECONDS, max_samples=1, restore=restore, warm=True, apart=cell.apart
    ).samples[-1]
    steps, rounds = plan_samples(warmed, device.timer_seconds, limits.max_seconds, MAX_SAMPLES_PER_ROUND)
    if cell.apart:
        rounds = min(rounds * steps, MAX_SAMPLES_PER_ROUND)
        steps = 1
    else:
        steps = max(steps, math.ceil(limits.min_seconds / warmed))
    benchmark.pedantic(cell.step, setup=restore, rounds=max(rounds, limits.min_rounds), iterations=steps)


def run_once(planned: PlannedCase, benchmark: Benchmark) -> None:
    """Run one step, which is what --benchmark-disable asks for; raises what the workload raises."""
    with cells.opened(planned) as cell:
        benchmark.pedantic(cell.step)


def describe_machine(machine_info: dict[str, Any]) -> None:
    """Add this machine and installation to pytest-benchmark's `machine_info`, which keeps what it has."""
    for name, value in pytest_json.machine_info(read_environment()).items():
        machine_info.setdefault(name, value)


def _as_round(cell: cells.Cell, benchmark: Benchmark) -> Round:
    """Return what pytest-benchmark has timed as one round of one build."""
    samples = list(benchmark.stats.stats.data)
    steps = benchmark.stats.iterations
    return Round(
        case_id=cell.case.case_id,
        round=0,
        server=0,
        samples=[samples],
        steps_per_sample=[steps],
        warmup_steps=[1],
        items_per_step=cell.items_per_step,
        weights_digest=cell.weights_digest,
        seconds=sum(samples) * steps,
        finished_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


def _labelled(planned: PlannedCase, label: str) -> PlannedCase:
    """Return the cell under the name that tables and files show."""
    return dataclasses.replace(
        planned,
        case=dataclasses.replace(planned.case, workload=label),
        source=dataclasses.replace(planned.source, name=label),
    )

"""What a session measures: cells planned, timed by pytest-benchmark's fixture, and their memory and divergence.

What a test gave to `amp_benchmark` becomes a workload that this process, and if possible a server, can build.

PYTEST_DONT_REWRITE
"""

import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pytest
import torch
from msgspec import structs

from ampbench.convert import pytest_benchmark as pytest_json
from ampbench.convert.formats import defined
from ampbench.core.metrics import METRICS
from ampbench.drive.planning import PlannedCase, find_workloads
from ampbench.drive.rounds import Turn, request_of
from ampbench.drive.servers import ONLY, Pool, ServerChannel
from ampbench.drive.session import default_memory_limit
from ampbench.errors import AmpbenchError, UsageError, WorkloadError
from ampbench.pytest_plugin.summary import Seen
from ampbench.records.case import ParameterValue, WorkloadSource
from ampbench.records.measured import Divergence, MemoryPass, Round
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import MAX_SAMPLES_PER_ROUND, MEMORY
from ampbench.worker import cells
from ampbench.worker.environment import read_environment
from ampbench.worker.machine import open_device
from ampbench.worker.timing import plan_samples, time_build
from ampbench.worker.worker import failure_of

CONTRACT = (
    "amp_benchmark measures a function with defaults for all its parameters that returns (module, inputs), (module, "
    "inputs, loss) or ampbench.Workload, or a workload by its name, as 'ampbench run' takes it"
)
_SERIAL = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A workload to measure.

    `name` finds it in this process, `label` is what cases, and so tables and files, call it: what `ampbench run` would.
    `source` is where another process finds it, None where only this one has it (a closure, a lambda, a method).
    """

    name: str
    label: str
    source: WorkloadSource | None


@contextmanager
def found(workload: Any, item: pytest.Item) -> Iterator[Given]:
    """Find `workload`, what the test `item` gave; a function that only this test has can be found until the end.

    Raises `WorkloadError` for what is no workload, `UnknownNameError` for an unknown name.
    """
    if isinstance(workload, str):
        sources = find_workloads(workload)
        if len(sources) != 1:
            raise WorkloadError(
                f"{workload} is {len(sources)} workloads: name one, or mark the test with "
                f"pytest.mark.amp(workloads=[{workload!r}]) and call amp_benchmark() without a workload"
            )
        yield Given(name=workload, label=sources[0].name, source=sources[0])
        return
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(workload, torch.nn.Module):
        raise WorkloadError(f"{type(workload).__name__} is a network without inputs: {CONTRACT}")
    if not callable(workload):
        raise WorkloadError(f"{_shown(workload)} is no workload: {CONTRACT}")
    known = _importable(workload)
    if known is not None:
        yield known
        return
    # no name leads to it: it becomes the one function of a module that lives as long as the test
    function = getattr(workload, "__name__", type(workload).__name__).strip("<>")
    module = ModuleType(f"ampbench_given_{next(_SERIAL)}")
    setattr(module, function, workload)
    sys.modules[module.__name__] = module
    try:
        yield Given(name=f"{module.__name__}:{function}", label=f"{_test(item)}:{function}", source=None)
    finally:
        del sys.modules[module.__name__]


def _importable(function: Any) -> Given | None:
    """Return a function of a module by its name; None for a closure, a lambda, a method, or one that was replaced.

    A package and a module in one are imported by their names, any other by its file, as a test's file is.
    """
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name = getattr(function, "__qualname__", "")
    if module is None or not name.isidentifier() or getattr(module, name, None) is not function:
        return None
    if "." in module.__name__ or hasattr(module, "__path__"):
        dotted = f"{module.__name__}:{name}"
        return Given(name=dotted, label=dotted, source=find_workloads(dotted)[0])
    path = Path(getattr(module, "__file__", None) or "")
    if path.suffix != ".py" or module.__name__ == "__main__":
        return None
    source = find_workloads(f"{path}:{name}")[0]
    return Given(name=f"{module.__name__}:{name}", label=source.name, source=source)


def _test(item: pytest.Item) -> str:
    """Return the test's id without the cell it measures: `a/test_mine.py::TestNets::test_net[big]`.

    The ids of the other parameters stay, whatever their values are: they tell the networks of one test apart.
    """
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    names = ("amp_device", "amp_phase", "amp_precision")
    cell = "-".join(str(parameters[name]) for name in names if name in parameters)
    if item.nodeid.endswith(f"-{cell}]"):
        return f"{item.nodeid.removesuffix(f'-{cell}]')}]"
    return item.nodeid.removesuffix(f"[{cell}]")


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


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
        self._server = Pool({ONLY: lambda: ServerChannel(preload=PRELOAD)})

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
            name = find_workloads(given.name)[0].name
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
        turn = Turn(MEMORY, dataclasses.replace(planned, source=source))
        reply = self._server.serve(request_of(turn, settings, server=0))
        found = MEMORY.found(reply)
        if found is None:
            why = reply.failure.said if reply.failure else "no result"
            notes.append(f"memory was not measured: {why}")
        return found


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
        case=structs.replace(planned.case, workload=label),
        source=structs.replace(planned.source, name=label),
    )

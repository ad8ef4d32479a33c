"""What a session measures: cases planned, timed by pytest-benchmark's fixture, memory, divergence; and the summary.

PYTEST_DONT_REWRITE
"""

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from msgspec import structs
from rich.text import Text

import ampbench
from ampbench import live
from ampbench.cli.options import DEFAULT_RESULTS
from ampbench.convert import pytest_benchmark as pytest_json
from ampbench.convert.formats import defined
from ampbench.convert.pytest_benchmark import read_run_json
from ampbench.core.metrics import METRICS
from ampbench.core.recipes import parse_optimizer
from ampbench.drive.planning import PlannedCase, find_workloads
from ampbench.drive.rounds import Turn, request_of
from ampbench.drive.servers import ONLY, Pool, ServerChannel
from ampbench.drive.session import current_commit, default_memory_limit
from ampbench.errors import AmpbenchError, UsageError, WorkloadError
from ampbench.judge.compare import compare, narrowed
from ampbench.records.case import Case, WorkloadSource
from ampbench.records.changes import ChangeStatus, Comparison
from ampbench.records.measured import Divergence, Failure, MemoryPass, Round
from ampbench.records.run import SCHEMA, Footer, Header, Selection, Settings
from ampbench.records.wire import MAX_SAMPLES_PER_ROUND, MEMORY
from ampbench.result import Result
from ampbench.show.comparison import comparison_lines
from ampbench.show.results import Screen, result_lines
from ampbench.show.terminal import make_console, print_lines
from ampbench.store import StoredRun, find_run, read_run
from ampbench.worker import cells
from ampbench.worker.environment import read_environment
from ampbench.worker.machine import open_device
from ampbench.worker.timing import plan_samples, time_build
from ampbench.worker.worker import failure_of
from ampbench.workload import Workload

if TYPE_CHECKING:
    import pytest


WARM_UP_SECONDS = 0.1
PRELOAD = ("torch._dynamo", "torchvision")
"""What training and some built-in workloads import; both are in this process, too, once the environment was read."""

TIMED = frozenset({"s", "items/s", "FLOP/s"})
"""Units of what comes from a time: pytest-benchmark's own statistics, beside, say it of all samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A workload to measure.

    `name` finds it in this process, `label` is what cases, and so tables and files, call it: what `ampbench run` would.
    `source` is where another process finds it, None where only this one has it (a closure, a lambda, a network).
    """

    name: str
    label: str
    source: WorkloadSource | None


@contextmanager
def found(workload: Any, inputs: Any, loss: Any, targets: Any, optimizer: Any, item: pytest.Item) -> Iterator[Given]:
    """Find what the test `item` gave; what only this process has is found until the end.

    Raises an `AmpbenchError` for what is no workload, and for an unknown name.
    """
    own = None if isinstance(optimizer, str) else optimizer
    if isinstance(workload, str):
        live.refuse(inputs, loss, targets, own, of="a name")
        sources = find_workloads(workload)
        if len(sources) != 1:
            raise WorkloadError(
                f"{workload} is {len(sources)} workloads: name one, or mark the test with "
                f"pytest.mark.amp(workloads=[{workload!r}]) and call amp_benchmark() without a workload"
            )
        yield Given(name=workload, label=sources[0].name, source=sources[0])
        return
    if workload is None:
        raise WorkloadError(f"amp_benchmark() was given nothing to measure: give {live.WHAT}")
    source = None
    if isinstance(workload, torch.nn.Module | Workload) or not callable(workload) or own is not None:
        make = live.maker(workload, inputs, loss, targets, optimizer)
    else:
        live.refuse(inputs, loss, targets, None, of="a function that makes a workload")
        make, source = workload, live.importable(workload)
    label = source.name if source else f"{_test(item)}:{live.label(workload)}"
    with live.given(make, label):
        yield Given(name=label, label=label, source=source)


def _test(item: pytest.Item) -> str:
    """Return the test's id without the case it measures: `a/test_mine.py::TestNets::test_net[big]`.

    The ids of the other parameters stay, whatever their values are: they tell the networks of one test apart.
    """
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    names = ("amp_device", "amp_phase", "amp_precision")
    case = "-".join(str(parameters[name]) for name in names if name in parameters)
    if item.nodeid.endswith(f"-{case}]"):
        return f"{item.nodeid.removesuffix(f'-{case}]')}]"
    return item.nodeid.removesuffix(f"[{case}]")


class Measuring:
    """Measures cases, one test each, and keeps what was `seen` for the table at the end."""

    def __init__(self) -> None:
        self.seen = Seen()
        self._sources: dict[str, WorkloadSource] = {}
        self._server = Pool({ONLY: lambda: ServerChannel(preload=PRELOAD)})

    def plan(
        self, given: Given, case: tuple[str, str, str], preset: str, optimizer: Any, parameters: Mapping[str, Any]
    ) -> PlannedCase:
        """Return the case of a workload on a device, in a phase and a precision.

        Raises `UsageError` for a parameter or value that cannot be meant and for a second workload of the same name,
        `WorkloadError` where it cannot be built.
        """
        for name, value in parameters.items():
            if not isinstance(value, bool | int | float | str):
                raise UsageError(f"{name}={value!r}: parameters are numbers, truth values or strings")
        if given.source is not None:
            other = self._sources.setdefault(given.label, given.source)
            if other != given.source:
                raise UsageError(
                    f"two workloads are called {given.label}, {other.module} and {given.source.module}: rename one, or "
                    "measure them in sessions of their own"
                )
        device, phase, precision = case
        named = isinstance(optimizer, str)
        [planned] = cells.plan_cells(
            Selection(
                workloads=[given.name],
                devices=[device],
                phases=[phase],
                precisions=[precision],
                recipes=[parse_optimizer(optimizer).spelling] if named and phase == "training" else [],
                preset=preset,
                overrides={f"{given.label}.{parameter}": value for parameter, value in parameters.items()},
            )
        )
        return planned

    def measure(self, planned: PlannedCase, given: Given, benchmark: Any, limits: Mapping[str, float]) -> Result:
        """Time a case by pytest-benchmark, measure its memory and divergence, and put them into its `extra_info`.

        With --benchmark-disable it is one step and the divergence. Raises what the workload raises.
        """
        case = planned.case
        benchmark.group = benchmark.group or "/".join((case.group, case.device, case.phase))
        try:
            with cells.opened(planned) as cell:
                timed = time_cell(cell, benchmark, limits)
        except Exception as error:
            self.seen.add_failure(case, failure_of(case.case_id, "round", error))
            raise
        notes: list[str] = []
        try:
            memory = None if benchmark.disabled else self._memory(planned, given.source, notes)
            divergence = cells.measure_divergence(planned)
        except AmpbenchError as error:
            self.seen.add_failure(case, failure_of(case.case_id, "round", error))
            raise
        result = self.seen.add(case, timed, memory, divergence)
        metrics = defined(result.rows[0], METRICS.values())
        benchmark.extra_info.update(
            pytest_json.case_info(
                case,
                [timed, memory, divergence],
                notes=notes,
                metrics={column.name: value for column, value in metrics if column.unit not in TIMED},
            )
        )
        return result

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
            notes.append("memory was not measured: on a CPU another process does that, which cannot import this")
            return None
        settings = Settings(threads=torch.get_num_threads(), memory_limit_bytes=default_memory_limit())
        turn = Turn(MEMORY, dataclasses.replace(planned, source=source))
        reply = self._server.serve(request_of(turn, settings, server=0))
        memory = MEMORY.found(reply)
        if memory is None:
            notes.append(f"memory was not measured: {reply.failure.said if reply.failure else 'no result'}")
        return memory


def time_cell(cell: cells.Cell, benchmark: Any, limits: Mapping[str, float]) -> Round:
    """Warm a cell up, have it timed and return that as one round of one build; with --benchmark-disable, run it once.

    A round of pytest-benchmark is many steps, or one, from restored state, of a cell that is `apart`.
    """
    started = time.perf_counter()
    if benchmark.disabled:
        benchmark.pedantic(cell.step)
        samples, steps = [time.perf_counter() - started], 1
    else:
        restore = cell.restore if cell.apart else None
        device = open_device(cell.case.device)
        warmed = time_build(
            cell.step,
            device,
            budget_seconds=WARM_UP_SECONDS,
            max_samples=1,
            restore=restore,
            warm=True,
            apart=cell.apart,
        ).samples[-1]
        steps, rounds = plan_samples(warmed, device.timer_seconds, limits["max_time"], MAX_SAMPLES_PER_ROUND)
        if cell.apart:
            rounds, steps = min(rounds * steps, MAX_SAMPLES_PER_ROUND), 1
        else:
            steps = max(steps, math.ceil(limits["min_time"] / warmed))
        benchmark.pedantic(cell.step, setup=restore, rounds=max(rounds, int(limits["min_rounds"])), iterations=steps)
        samples = list(benchmark.stats.stats.data)
    return Round(
        case_id=cell.case.case_id,
        round=0,
        server=0,
        samples=[samples],
        steps_per_sample=[steps],
        warmup_steps=[1],
        items_per_step=cell.items_per_step,
        weights_digest=cell.weights_digest,
        seconds=time.perf_counter() - started,
        finished_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


def describe_machine(machine_info: dict[str, Any]) -> None:
    """Add this machine and installation to pytest-benchmark's `machine_info`, which keeps what it has."""
    for name, value in pytest_json.machine_info(read_environment()).items():
        machine_info.setdefault(name, value)


class Seen:
    """The cases measured in this session; true once there is one.

    `compared` is what `compare` found: a comparison of memory and errors, or why there is none.
    """

    def __init__(self) -> None:
        self.compared: Comparison | str | None = None
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        header = Header(
            schema=SCHEMA,
            run="pytest",
            ampbench_version=ampbench.__version__,
            started_at=now,
            selection=Selection(),
            settings=Settings(isolation=False, rounds=1),
            environment=read_environment(),
        )
        self._run = StoredRun(path=Path(), header=header, footers=[Footer(ended="complete", finished_at=now)])

    def __bool__(self) -> bool:
        return bool(self._run.cases)

    def add(self, case: Case, timed: Round, memory: MemoryPass | None, divergence: Divergence) -> Result:
        """Add a measured case and return what is known of it alone."""
        run = dataclasses.replace(
            self._run,
            cases={case.case_id: case},
            rounds=[timed],
            memory={case.case_id: memory} if memory else {},
            divergence={case.case_id: divergence},
            failures={},
        )
        self._run.cases.update(run.cases)
        self._run.rounds.extend(run.rounds)
        self._run.memory.update(run.memory)
        self._run.divergence.update(run.divergence)
        return Result(run)

    def add_failure(self, case: Case, failure: Failure) -> None:
        """Add a cell that broke."""
        self._run.cases[case.case_id] = case
        self._run.failures[case.case_id] = failure

    def compare(self, file: str) -> bool:
        """Compare memory and errors with the run in `file`; return whether nothing got worse, and something compares.

        Not times: those of one process tell a change from luck no better than pytest-benchmark does.
        """
        header = structs.replace(self._run.header, commit=current_commit())
        try:
            found = compare(read_baseline(file), dataclasses.replace(self._run, header=header))
        except AmpbenchError as error:
            self.compared = f"--amp-compare {file}: {error}"
            return False
        self.compared = narrowed(found, kinds=("memory", "accuracy"))
        statuses = {one.status for one in self.compared.findings} - {ChangeStatus.INCOMPARABLE}
        return bool(statuses) and ChangeStatus.REGRESSED not in statuses

    def lines(self, width: int) -> list[Text]:
        """Return the table for a terminal of `width` columns."""
        run = dataclasses.replace(self._run)  # there may be more to add
        screen = Screen(header=run.header, cases=run.cases, rows=Result(run).rows)
        return result_lines(screen, width)


def read_baseline(file: str) -> StoredRun:
    """Return the run in a file of pytest-benchmark's JSON, or the run file or stored run of that name.

    Raises an `AmpbenchError` where there is none.
    """
    return read_run_json(Path(file)) if file.endswith(".json") else read_run(find_run(file, DEFAULT_RESULTS))


def write_summary(reporter: "pytest.TerminalReporter", seen: Seen, *, quiet: bool) -> None:
    """Write the table, unless `quiet`, and what became of memory and errors, below what pytest-benchmark writes."""
    writer = reporter.config.get_terminal_writer()
    parts: dict[str, list[Text]] = {}
    if not quiet:
        parts["ampbench: precisions side by side"] = seen.lines(writer.fullwidth)
    if (compared := seen.compared) is not None:
        lines = [Text(compared)] if isinstance(compared, str) else comparison_lines(compared, writer.fullwidth)
        parts["ampbench: memory and errors compared"] = lines
    for title, lines in parts.items():
        text = StringIO()
        print_lines(make_console(file=text, force_terminal=writer.hasmarkup, width=writer.fullwidth), lines)
        reporter.write_sep("-", title)
        reporter.write(text.getvalue())

"""The fixture of a test, and the cases of a session: timed by pytest-benchmark, their memory and divergence; a summary.

PYTEST_DONT_REWRITE
"""

import contextlib
import dataclasses
import math
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from msgspec import structs
from rich.text import Text

from ampbench import cells, live
from ampbench.cli.options import DEFAULT_RESULTS
from ampbench.comparison import Comparison
from ampbench.convert import defined, read_source
from ampbench.convert import pytest_benchmark as pytest_json
from ampbench.core.metrics import METRICS
from ampbench.drive.planning import PlannedCase, find_workloads
from ampbench.drive.rounds import Turn, request_of
from ampbench.drive.servers import ONLY, Pool, ServerChannel
from ampbench.drive.session import default_memory_limit, new_header, now
from ampbench.errors import AmpbenchError, UsageError, WorkloadError
from ampbench.judge.gate import Policy
from ampbench.pytest_plugin.grid import present, wanted
from ampbench.records.case import WorkloadSource
from ampbench.records.changes import ChangeStatus
from ampbench.records.measured import MemoryPass, Round
from ampbench.records.run import Entry, Selection, Settings
from ampbench.records.wire import MAX_SAMPLES_PER_ROUND, MEMORY
from ampbench.result import Result
from ampbench.show.comparison import comparison_document
from ampbench.show.results import Screen, result_lines
from ampbench.show.rows import judged_error
from ampbench.show.terminal import document_lines, make_console, print_lines
from ampbench.store import StoredRun, find_run, gathered, read_run
from ampbench.worker.environment import read_environment
from ampbench.worker.machine import open_device
from ampbench.worker.timing import plan_samples, time_build
from ampbench.worker.worker import failure_of

WARM_UP_SECONDS = 0.1
PRELOAD = ("torch._dynamo", "torchvision")
"""What training and some built-in workloads import; both are in this process, too, once the environment was read."""
TIMED = frozenset({"s", "items/s", "FLOP/s"})
"""Units of metrics of time, which pytest-benchmark's own statistics of all samples have."""


class Measured:
    """The cases of a session: `entries` holds the records of each by its id, `compared` the result of --amp-compare."""

    def __init__(self) -> None:
        settings = Settings(isolation=False, rounds=1)
        self.header = new_header(Selection(), settings, read_environment(), [], "", ["pytest"])
        self.entries: dict[str, list[Entry]] = {}
        self.compared: Comparison | str | None = None
        self.sources: dict[str, WorkloadSource] = {}
        self.server = Pool({ONLY: lambda: ServerChannel(preload=PRELOAD)})

    def run(self, *case_ids: str) -> StoredRun:
        """Return a run of some cases, of all where none is named."""
        return gathered(
            Path(), self.header, [entry for name in case_ids or self.entries for entry in self.entries[name]]
        )

    def describe_machine(self, machine_info: dict[str, Any]) -> None:
        """Add this machine and installation to pytest-benchmark's `machine_info`, which keeps its own values."""
        for name, value in pytest_json.machine_info(self.header.environment).items():
            machine_info.setdefault(name, value)

    def compare(self, file: str) -> bool:
        """Compare memory and errors with the run in `file`; return whether some compare and none is worse.

        Times are not compared: within one process that is no more certain than pytest-benchmark's own comparison.
        """
        try:
            self.compared = Comparison(read_baseline(file), self.run(), Policy(only=("memory", "accuracy")))
        except AmpbenchError as error:
            self.compared = f"--amp-compare {file}: {error}"
            return False
        statuses = {change.status for change in self.compared.gated.findings} - {ChangeStatus.INCOMPARABLE}
        return bool(statuses) and ChangeStatus.REGRESSED not in statuses

    def write_summary(self, reporter: pytest.TerminalReporter, *, quiet: bool) -> None:
        """Write the table, unless `quiet`, and the comparison of memory and errors."""
        writer = reporter.config.get_terminal_writer()
        parts: dict[str, list[Text]] = {}
        if not quiet:
            parts["ampbench: precisions side by side"] = table_lines(self.run(), writer.fullwidth)
        if isinstance(self.compared, Comparison):
            parts["ampbench: memory and errors compared"] = [
                *document_lines(comparison_document(self.compared.gated), writer.fullwidth)
            ]
        for title, lines in parts.items():
            text = StringIO()
            print_lines(make_console(file=text, force_terminal=writer.hasmarkup, width=writer.fullwidth), lines)
            reporter.write_sep("-", title)
            reporter.write(text.getvalue())
        if isinstance(self.compared, str):
            reporter.write_line(self.compared)


def table_lines(run: StoredRun, width: int) -> list[Text]:
    """Return the table of a run for a terminal of `width` columns."""
    return result_lines(Screen(header=run.header, cases=run.cases, rows=Result(run).rows), width)


def read_baseline(file: str) -> StoredRun:
    """Return the run in a file of pytest-benchmark's JSON, or the run file or stored run of that name.

    Raises an `AmpbenchError` where there is none.
    """
    if file.endswith(".json"):
        [run] = read_source(Path(file), Counter())
        return run
    return read_run(find_run(file, DEFAULT_RESULTS))


class AmpBenchmark:
    """Measures a workload in one precision, on one device, in one phase; the value of the fixture `amp_benchmark`."""

    def __init__(
        self, node: pytest.Item, benchmark: Any, measured: Measured, marked: Any, device: str, phase: str,
        precision: str,
    ):  # fmt: skip
        self._node, self._config, self._benchmark, self._measured = node, node.config, benchmark, measured
        self._marked, self._device, self._phase, self._precision = marked, device, phase, precision

    def __call__(
        self,
        workload: Any = None,
        /,
        inputs: Any = None,
        loss: Any = None,
        *,
        targets: Any = None,
        optimizer: Any = None,
        **parameters: Any,
    ) -> Result:
        """Measure `workload` and return its `ampbench.Result`, a table of one case; without one, the marker's.

        `workload` is as for `ampbench.measure`: a network with `inputs`, `loss`, `targets` and `optimizer`, an
        `ampbench.Workload`, a function that returns one (its keyword `parameters` can be set), or a name. Skips the
        test where the machine or the workload cannot do it, fails it with one line for no workload and for an output
        error that is too large, and raises the workload's own errors.
        """
        __tracebackhide__ = True
        try:
            if self._marked is not None and workload is not None:
                raise UsageError("this test's marker names its workloads: call amp_benchmark() without one")
            asked = wanted(self._node, self._config)
            workload = workload if self._marked is None else self._marked
            with contextlib.ExitStack() as stack:
                if isinstance(optimizer, str) and self._phase == "inference":
                    optimizer = None
                selection = live.selected(
                    stack, workload, inputs, loss, targets=targets, optimizer=optimizer, precisions=self._precision,
                    device=self._device, phase=self._phase, within=_test(self._node),
                )  # fmt: skip
                planned = self._planned(structs.replace(selection, preset=asked.preset or ""), parameters)
                if planned.skip and self._device in self._config.getoption("amp_device") and not present(self._device):
                    raise UsageError(f"--amp-device {self._device}: {planned.skip}")
                if planned.skip:
                    pytest.skip(planned.skip)
                alone = callable(optimizer) or isinstance(optimizer, torch.optim.Optimizer)
                elsewhere = planned.source if isinstance(workload, str) else live.importable(workload)
                result = self._measure(planned, None if alone else elsewhere)
        except AmpbenchError as error:
            self._fail(str(error))
        output_error = judged_error(result.rows[0])
        if asked.max_error is not None and (output_error is None or output_error > asked.max_error):
            [(case_id, divergence)] = result.stored.divergence.items()
            number = f"undefined ({divergence.output.undefined})" if output_error is None else f"{output_error:.3g}"
            self._fail(f"output error is {number}, the limit is {asked.max_error:g}: {case_id}")
        return result

    def _fail(self, reason: str) -> NoReturn:
        """Fail the test with the line `reason`."""
        __tracebackhide__ = True
        self._put_away()
        raise pytest.fail.Exception(reason, pytrace=False) from None

    def _planned(self, selection: Selection, parameters: Mapping[str, Any]) -> PlannedCase:
        """Return the case of a workload with some parameters.

        Raises `UsageError` for an invalid parameter or value, `WorkloadError` for a broken workload and for several.
        """
        for parameter, value in parameters.items():
            if not isinstance(value, bool | int | float | str):
                raise UsageError(f"{parameter}={value!r}: parameters are numbers, truth values or strings")
        [name] = selection.workloads
        sources = find_workloads(name)
        if len(sources) != 1:
            raise WorkloadError(
                f"{name} is {len(sources)} workloads: name one, or mark the test with "
                f"pytest.mark.amp(workloads=[{name!r}]) and call amp_benchmark() without a workload"
            )
        overrides = {f"{sources[0].name}.{parameter}": value for parameter, value in parameters.items()}
        [planned] = cells.plan_cells(structs.replace(selection, overrides=overrides))
        return planned

    def _measure(self, planned: PlannedCase, source: WorkloadSource | None) -> Result:
        """Time a case by pytest-benchmark, measure its memory and divergence, and put them into its `extra_info`.

        With --benchmark-disable it is one step and the divergence. Raises the workload's errors.
        """
        __tracebackhide__ = True
        case, benchmark, notes = planned.case, self._benchmark, list[str]()
        if source is not None and (earlier := self._measured.sources.setdefault(case.workload, source)) != source:
            raise UsageError(
                f"two workloads are called {case.workload}, {earlier.module} and {source.module}: rename one, "
                "or measure them in separate sessions"
            )
        benchmark.group = benchmark.group or "/".join((case.group, case.device, case.phase))
        if benchmark.params is not None and "amp_workload" in benchmark.params:
            benchmark.params = {**benchmark.params, "amp_workload": case.workload}
        try:
            with cells.opened(planned) as cell:
                records: list[Entry] = [time_cell(cell, benchmark, self._limits())]
            if not benchmark.disabled and (memory := self._memory(planned, source, notes)) is not None:
                records.append(memory)
            records.append(cells.measure_divergence(planned))
        except Exception as error:
            self._measured.entries[case.case_id] = [case, failure_of(case.case_id, "round", error)]
            self._put_away()
            # pytest keeps the traceback of the last failure, and its frames the tensors; these options show it
            if not any(self._config.getoption(option, False) for option in ("usepdb", "showlocals")):
                traceback.clear_frames(error.__traceback__)
            raise
        self._measured.entries[case.case_id] = [case, *records]
        result = Result(self._measured.run(case.case_id))
        metrics = defined(result.rows[0], METRICS.values())
        numbers = {column.name: value for column, value in metrics if column.unit not in TIMED}
        benchmark.extra_info.update(pytest_json.case_info(case, records, notes=notes, metrics=numbers))
        return result

    def _memory(self, planned: PlannedCase, source: WorkloadSource | None, notes: list[str]) -> MemoryPass | None:
        """Return the peak of one step's memory; None, with a note on the reason, where it cannot be measured.

        On a CPU the record is exact once in a process, so another one makes it.
        """
        if planned.case.device != "cpu":
            return cells.measure_memory(planned)
        if source is None:
            notes.append("memory was not measured: a CPU needs another process, which cannot import this workload")
            return None
        settings = Settings(threads=torch.get_num_threads(), memory_limit_bytes=default_memory_limit())
        turn = Turn(MEMORY, dataclasses.replace(planned, source=source))
        reply = self._measured.server.serve(request_of(turn, settings, server=0))
        if (memory := MEMORY.found(reply)) is None:
            notes.append(f"memory was not measured: {reply.failure.said if reply.failure else 'no result'}")
        return memory

    def _limits(self) -> dict[str, float]:
        """Return pytest-benchmark's settings for this test: its options, and its marker, which wins."""
        marker = self._node.get_closest_marker("benchmark")
        names = ("max_time", "min_rounds", "min_time")
        options = marker.kwargs if marker else {}
        return {name: float(options.get(name, self._config.getoption(f"benchmark_{name}"))) for name in names}

    def _put_away(self) -> None:
        """Report no result to pytest-benchmark's fixture: unused, it would warn next to the failure."""
        self._benchmark.has_error = True
        if self._benchmark.stats is None:
            self._benchmark.disabled = True
            with contextlib.suppress(Exception):  # it was used already, by a step that failed
                self._benchmark.pedantic(bool)


def _test(item: pytest.Item) -> str:
    """Return the test's id without the case it measures: `a/test_mine.py::TestNets::test_net[big]`.

    The ids of the other parameters stay, whatever their values are: they tell the networks of one test apart.
    """
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    names = ("amp_device", "amp_phase", "amp_precision")
    case = "-".join(str(parameters[name]) for name in names if name in parameters)
    return item.nodeid.removesuffix(f"[{case}]").replace(f"-{case}]", "]")


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
        warming = time_build(
            cell.step, device, budget_seconds=WARM_UP_SECONDS, max_samples=1, restore=restore, warm=True,
            apart=cell.apart,
        )  # fmt: skip
        seconds = warming.samples[-1]
        steps, rounds = plan_samples(seconds, device.timer_seconds, limits["max_time"], MAX_SAMPLES_PER_ROUND)
        if cell.apart:
            rounds, steps = min(rounds * steps, MAX_SAMPLES_PER_ROUND), 1
        else:
            steps = max(steps, math.ceil(limits["min_time"] / seconds))
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
        finished_at=now(),
    )

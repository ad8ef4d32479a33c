"""The cases of a test, by its marker and the command line; timed by pytest-benchmark, with memory and divergence.

Nothing here imports torch before a test is measured.

PYTEST_DONT_REWRITE
"""

import contextlib
import dataclasses
import math
import traceback
from collections.abc import Mapping
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from msgspec import structs
from rich.text import Text

from ampbench.cli.options import DEFAULT_RESULTS
from ampbench.comparison import Comparison
from ampbench.convert import defined
from ampbench.core.metrics import METRICS
from ampbench.core.precisions import PRECISIONS, find_precision
from ampbench.drive.planning import PlannedCase, default_device, find_workloads
from ampbench.drive.rounds import Turn, request_of
from ampbench.drive.servers import ONLY, Pool, ServerChannel, may_have_accelerator
from ampbench.drive.session import default_memory_limit, new_header, now
from ampbench.errors import AmpbenchError, UnknownNameError, UsageError, WorkloadError
from ampbench.judge.gate import Policy
from ampbench.records.case import DEVICES, PHASES, DeviceDescription, WorkloadSource
from ampbench.records.changes import ChangeStatus
from ampbench.records.measured import MemoryPass, Round
from ampbench.records.run import LATEST, Entry, Footer, Selection, Settings
from ampbench.records.wire import DIVERGENCE, MAX_SAMPLES_PER_ROUND, MEMORY
from ampbench.result import Result
from ampbench.show.comparison import comparison_document
from ampbench.show.results import Screen, sections
from ampbench.show.rows import judged_error
from ampbench.show.terminal import document_lines, make_console, print_lines, section_lines
from ampbench.store import StoredRun, gathered, read_found, require_writable, write_whole
from ampbench.workloads.index import PRESETS

if TYPE_CHECKING:
    from ampbench.cells import Cell

ARGUMENTS = ("precisions", "phases", "devices", "preset", "max_error")
WARM_UP_SECONDS = 0.1
PRELOAD = ("torch._dynamo", "torchvision")
"""What training and some built-in workloads import; both are in this process, too, once the environment was read."""


def meant(kind: str, value: Any) -> Any:
    """Return the name or limit that a marker or an option means; `UsageError`, with the nearest names, for none."""
    if kind == "precision":
        return find_precision(str(value)).name
    if kind == "compare":
        return read_found(LATEST, value) if Path(value).is_dir() else read_found(value, DEFAULT_RESULTS)
    if kind == "save":
        require_writable(value)
        return Path(value)
    if kind == "max_error":
        with contextlib.suppress(ValueError):
            if not isinstance(value, bool) and 0 <= float(value) < math.inf:
                return float(value)
        raise UsageError(f"the largest error (--amp-max-error) is a number of 0 or more, not {value}")
    known = {"device": DEVICES, "phase": PHASES, "preset": PRESETS}[kind]
    if value not in known:
        raise UnknownNameError(kind, str(value), known)
    return value


def wanted(node: pytest.Item, config: pytest.Config) -> dict[str, Any]:
    """Return the `ARGUMENTS` of the markers of `node`, narrowed by the command line; None stands for the default.

    Markers nearer to the function win over those of its class and module. Raises `UsageError` for an invalid marker.
    """
    marked: dict[str, Any] = {}
    for marker in node.iter_markers("amp"):
        if marker.args:
            raise UsageError(f"pytest.mark.amp takes keyword arguments: {', '.join(ARGUMENTS)}")
        for name in marker.kwargs:
            if name not in ARGUMENTS:
                raise UnknownNameError("argument of pytest.mark.amp", name, ARGUMENTS)
        marked = {**marker.kwargs, **marked}
    asked: dict[str, Any] = {}
    for kind in ("precision", "phase", "device"):
        names = marked.get(f"{kind}s") or []
        marks = [meant(kind, name) for name in ([names] if isinstance(names, str) else names)]
        option = config.getoption(f"amp_{kind}")
        both = [name for name in marks if name in option] if marks and option else marks or option or None
        asked[f"{kind}s"] = both and list(dict.fromkeys(both))
    for kind in ("preset", "max_error"):
        value = config.getoption(f"amp_{kind}")
        value = marked.get(kind) if value is None else value
        asked[kind] = None if value is None else meant(kind, value)
    return asked


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test over its cells, precisions innermost: `cpu-training-bf16_autocast`.

    Where the options leave nothing of a marker, pytest skips the test.
    """
    try:
        asked = wanted(metafunc.definition, metafunc.config)
        devices, phases, precisions = (asked[f"{kind}s"] for kind in ("device", "phase", "precision"))
        if devices is None:
            devices = ["cpu"]
            if find_spec("torch") is not None and may_have_accelerator():  # without a driver's node torch stays out
                from ampbench.worker.environment import read_environment

                devices = [default_device(read_environment())]
        cells = [
            (device, phase, precision)
            for device in devices
            for phase in (PHASES if phases is None else phases)
            for precision in (_default_precisions(device, phase) if precisions is None else precisions)
        ]
    except AmpbenchError as error:
        raise pytest.fail.Exception(f"{metafunc.definition.nodeid}: {error}", pytrace=False) from None
    metafunc.parametrize(
        ["amp_device", "amp_phase", "amp_precision"],
        [pytest.param(*cell, id="-".join(cell)) for cell in cells],
        indirect=True,
    )


def present(device: str) -> DeviceDescription | None:
    """Return the description of a device type of this machine, by torch; None where the machine has none."""
    from ampbench.worker.environment import read_environment

    description = read_environment().device(device)
    return description if description is not None and description.available else None


def _default_precisions(device: str, phase: str) -> list[str]:
    """Return the precisions measured on `device` where none is named: tf32 only where the device has it."""
    has_tf32 = device != "cpu" and (description := present(device)) is not None and description.tf32
    return [
        row.name
        for row in PRECISIONS.values()
        if device in row.default_on and (has_tf32 or not row.tf32) and not (row.same_ops and phase == "inference")
    ]


class Measured:
    """The cases of a session: `entries` holds the records of each by its id, `compared` the result of --amp-compare."""

    def __init__(self) -> None:
        from ampbench.worker.environment import read_environment

        settings = Settings(isolation=False, rounds=1)
        self.header = new_header(Selection(), settings, read_environment(), [], "", ["pytest"])
        self.entries: dict[str, list[Entry]] = {}
        self.compared: Comparison | str | None = None
        self.saved: dict[str, Path] = {}
        self.sources: dict[str, WorkloadSource] = {}
        self.server = Pool({ONLY: lambda: ServerChannel(preload=PRELOAD)})

    def run(self, *case_ids: str) -> StoredRun:
        """Return a run of some cases, of all where none is named."""
        entries = [entry for name in case_ids or self.entries for entry in self.entries[name]]
        return gathered(Path(), self.header, [*entries, Footer(ended="complete", finished_at=now())])

    def save(self, folder: Path) -> None:
        """Store the session's cases as a run in a results folder."""
        self.saved = write_whole([self.run()], folder)

    def compare(self, baseline: StoredRun) -> bool:
        """Compare memory and errors with a stored run; return whether some compare and none is worse.

        Times are not compared: within one process that is no more certain than pytest-benchmark's own comparison.
        """
        try:
            self.compared = Comparison(baseline, self.run(), Policy(only=("memory", "accuracy")))
        except AmpbenchError as error:
            self.compared = f"--amp-compare {baseline.path}: {error}"
            return False
        statuses = {change.status for change in self.compared.gated.findings} - {ChangeStatus.INCOMPARABLE}
        return bool(statuses) and ChangeStatus.REGRESSED not in statuses

    def write_summary(self, reporter: pytest.TerminalReporter, *, quiet: bool) -> None:
        """Write the table, unless `quiet`, and the comparison of memory and errors."""
        writer = reporter.config.get_terminal_writer()
        parts: dict[str, Any] = {}
        if not quiet:
            parts["ampbench: precisions side by side"] = table_lines(self.run(), writer.fullwidth)
        if isinstance(self.compared, Comparison):
            document = comparison_document(self.compared.gated)
            parts["ampbench: memory and errors compared"] = document_lines(document, writer.fullwidth)
        for title, lines in parts.items():
            text = StringIO()
            print_lines(make_console(file=text, force_terminal=writer.hasmarkup, width=writer.fullwidth), lines)
            reporter.write_sep("-", title)
            reporter.write(text.getvalue())
        if isinstance(self.compared, str):
            reporter.write_line(self.compared)
        for run, path in self.saved.items():
            reporter.write_line(f"run {run}: {path}")


def table_lines(run: StoredRun, width: int) -> list[Text]:
    """Return the table of a run for a terminal of `width` columns."""
    screen = Screen(header=run.header, cases=run.cases, rows=Result(run).rows)
    return list(section_lines(sections(screen), width))


@dataclasses.dataclass(frozen=True)
class AmpBenchmark:
    """Measures a workload in one precision, on one device, in one phase; the value of the fixture `amp_benchmark`."""

    node: pytest.Item
    benchmark: Any
    measured: Measured
    device: str
    phase: str
    precision: str

    def __call__(
        self,
        workload: Any,
        /,
        inputs: Any = None,
        loss: Any = None,
        *,
        targets: Any = None,
        optimizer: Any = None,
        **parameters: Any,
    ) -> Result:
        """Measure `workload` and return its `ampbench.Result`, a table of one case.

        `workload` is as for `ampbench.measure`: a network with `inputs`, `loss`, `targets` and `optimizer`, an
        `ampbench.Workload`, a function that returns one (its keyword `parameters` can be set), or a name. Skips the
        test where the machine or the workload cannot do it, fails it with one line for no workload and for an output
        error that is too large, and raises the workload's own errors.
        """
        import torch

        from ampbench import live

        __tracebackhide__ = True
        try:
            asked = wanted(self.node, self.node.config)
            with contextlib.ExitStack() as stack:
                if isinstance(optimizer, str) and self.phase == "inference":
                    optimizer = None
                selection = live.selected(
                    stack, workload, inputs, loss, targets=targets, optimizer=optimizer, precisions=self.precision,
                    device=self.device, phase=self.phase, within=_test(self.node),
                )  # fmt: skip
                planned = self._planned(structs.replace(selection, preset=asked["preset"] or ""), parameters)
                if (
                    planned.skip
                    and self.device in self.node.config.getoption("amp_device")
                    and not present(self.device)
                ):
                    raise UsageError(f"--amp-device {self.device}: {planned.skip}")
                if planned.skip:
                    pytest.skip(planned.skip)
                alone = callable(optimizer) or isinstance(optimizer, torch.optim.Optimizer)
                elsewhere = planned.source if isinstance(workload, str) else live.importable(workload)
                result = self._measure(planned, None if alone else elsewhere)
        except AmpbenchError as error:
            self._fail(str(error))
        output_error = judged_error(result.rows[0])
        if asked["max_error"] is not None and (output_error is None or output_error > asked["max_error"]):
            [(case_id, divergence)] = result.stored.divergence.items()
            number = f"undefined ({divergence.output.undefined})" if output_error is None else f"{output_error:.3g}"
            self._fail(f"output error is {number}, the limit is {asked['max_error']:g}: {case_id}")
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
        from ampbench import cells

        for parameter, value in parameters.items():
            if not isinstance(value, bool | int | float | str):
                raise UsageError(f"{parameter}={value!r}: parameters are numbers, truth values or strings")
        [name] = selection.workloads
        sources = find_workloads(name)
        if len(sources) != 1:
            raise WorkloadError(f"{name} is {len(sources)} workloads: name one, or parametrize the test over them")
        overrides = {f"{sources[0].name}.{parameter}": value for parameter, value in parameters.items()}
        [planned] = cells.plan_cells(structs.replace(selection, overrides=overrides))
        return planned

    def _measure(self, planned: PlannedCase, source: WorkloadSource | None) -> Result:
        """Time a case by pytest-benchmark, measure its memory and divergence, and put them into its `extra_info`.

        With --benchmark-disable it is one step and the divergence. Raises the workload's errors.
        """
        from ampbench import cells
        from ampbench.worker.worker import failure_of

        __tracebackhide__ = True
        case, benchmark, notes = planned.case, self.benchmark, list[str]()
        if source is not None and (earlier := self.measured.sources.setdefault(case.workload, source)) != source:
            raise UsageError(
                f"two workloads are called {case.workload}, {earlier.module} and {source.module}: rename one, "
                "or measure them in separate sessions"
            )
        benchmark.group = benchmark.group or "/".join((case.group, case.device, case.phase))
        try:
            with cells.opened(planned) as cell:
                records: list[Entry] = [time_cell(cell, benchmark, self._limits())]
            if not benchmark.disabled and (memory := self._memory(planned, source, notes)) is not None:
                records.append(memory)
            records.append(cells.measured(planned, DIVERGENCE))
        except Exception as error:
            self.measured.entries[case.case_id] = [case, failure_of(case.case_id, "round", error)]
            self._put_away()
            # pytest keeps the traceback of the last failure, and its frames the tensors; these options show it
            if not any(self.node.config.getoption(option, False) for option in ("usepdb", "showlocals")):
                traceback.clear_frames(error.__traceback__)
            raise
        self.measured.entries[case.case_id] = [case, *records]
        result = Result(self.measured.run(case.case_id))
        numbers = {column.name: value for column, value in defined(result.rows[0], METRICS.values())}
        benchmark.extra_info.update(numbers, **({"notes": notes} if notes else {}))
        return result

    def _memory(self, planned: PlannedCase, source: WorkloadSource | None, notes: list[str]) -> MemoryPass | None:
        """Return the peak of one step's memory; None, with a note on the reason, where it cannot be measured.

        On a CPU the record is exact once in a process, so another one makes it.
        """
        import torch

        from ampbench import cells

        if planned.case.device != "cpu":
            return cells.measured(planned, MEMORY)
        if source is None:
            notes.append("memory was not measured: a CPU needs another process, which cannot import this workload")
            return None
        settings = Settings(threads=torch.get_num_threads(), memory_limit_bytes=default_memory_limit())
        turn = Turn(MEMORY, dataclasses.replace(planned, source=source))
        reply = self.measured.server.serve(request_of(turn, settings, server=0))
        if (memory := MEMORY.found(reply)) is None:
            notes.append(f"memory was not measured: {reply.failure.said if reply.failure else 'no result'}")
        return memory

    def _limits(self) -> dict[str, float]:
        """Return pytest-benchmark's settings for this test: its options, and its marker, which wins."""
        marker = self.node.get_closest_marker("benchmark")
        names = ("max_time", "min_rounds", "min_time")
        options = marker.kwargs if marker else {}
        return {name: float(options.get(name, self.node.config.getoption(f"benchmark_{name}"))) for name in names}

    def _put_away(self) -> None:
        """Report no result to pytest-benchmark's fixture: unused, it would warn next to the failure."""
        self.benchmark.has_error = True
        if self.benchmark.stats is None:
            self.benchmark.disabled = True
            with contextlib.suppress(Exception):  # it was used already, by a step that failed
                self.benchmark.pedantic(bool)


def _test(item: pytest.Item) -> str:
    """Return the test's id without the case it measures: `a/test_mine.py::TestNets::test_net[big]`.

    The ids of the other parameters stay, whatever their values are: they tell the networks of one test apart.
    """
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    names = ("amp_device", "amp_phase", "amp_precision")
    case = "-".join(str(parameters[name]) for name in names if name in parameters)
    return item.nodeid.removesuffix(f"[{case}]").replace(f"-{case}]", "]")


def time_cell(cell: "Cell", benchmark: Any, limits: Mapping[str, float]) -> Round:
    """Warm a cell up, have it timed and return that as one round of one build; with --benchmark-disable, run it once.

    A round of pytest-benchmark is many steps, or one, from restored state, of a cell that is `apart`.
    """
    from ampbench.worker.machine import open_device
    from ampbench.worker.timing import plan_samples, time_build

    started = perf_counter()
    if benchmark.disabled:
        benchmark.pedantic(cell.step)
        samples, steps = [perf_counter() - started], 1
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
        seconds=perf_counter() - started,
        finished_at=now(),
    )

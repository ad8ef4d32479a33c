"""The fixtures: `amp_benchmark`, and the parameters of the cell that a test measures.

PYTEST_DONT_REWRITE
"""

import contextlib
import traceback
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from ampbench.errors import AmpbenchError, UsageError, WorkloadError
from ampbench.pytest_plugin import MEASURING

if TYPE_CHECKING:
    from ampbench.drive.planning import PlannedCase
    from ampbench.pytest_plugin.grid import Wanted
    from ampbench.pytest_plugin.measuring import Benchmark, Given, Measuring
    from ampbench.records.measured import Divergence


class AmpBenchmark:
    """Measures a workload in one precision, on one device, in one phase; what the fixture `amp_benchmark` is.

    `used` says whether it was called.
    """

    def __init__(self, request: pytest.FixtureRequest, benchmark: "Benchmark", cell: tuple[str, str, str], marked: Any):
        self.used = False
        self._request = request
        self._benchmark = benchmark
        self._device, self._phase, self._precision = cell
        self._marked = marked

    def __call__(self, workload: Any = None, /, **parameters: Any) -> None:
        """Measure `workload`, its keyword parameters set to `parameters`; without one, the marker's.

        `workload` is a function that returns `(module, inputs)`, `(module, inputs, loss)` or `ampbench.Workload`
        (docs/workloads.md), or a name as `ampbench run` takes it. Skips the test where the machine or the workload
        cannot do it, fails it with one line where that is no workload or the output's error is too large, and raises
        what the workload raises.
        """
        __tracebackhide__ = True
        if self.used:
            self.refuse("amp_benchmark was called twice: a test measures one workload, so write another test")
        self.used = True
        try:
            self._measure(self._workload(workload), parameters)
        except AmpbenchError as error:
            self.refuse(str(error))

    def refuse(self, why: str) -> NoReturn:
        """Fail the test with the line `why`."""
        __tracebackhide__ = True
        self._put_away()
        raise pytest.fail.Exception(why, pytrace=False) from None

    def _workload(self, given: Any) -> Any:
        """Return what is to be measured: what the test gave, or its marker's."""
        if self._marked is not None and given is not None:
            raise UsageError("this test's workloads are those of its marker: call amp_benchmark() without one")
        if self._marked is None and given is None:
            from ampbench.pytest_plugin.measuring import CONTRACT

            raise WorkloadError(f"amp_benchmark() was given nothing to measure: {CONTRACT}")
        return given if self._marked is None else self._marked

    def _measure(self, workload: Any, parameters: dict[str, Any]) -> None:
        __tracebackhide__ = True
        from ampbench.pytest_plugin.grid import device_is_there, selected_sources, wanted
        from ampbench.pytest_plugin.measuring import CONTRACT, found

        config, node = self._request.config, self._request.node
        for name, value in parameters.items():
            if not isinstance(value, bool | int | float | str):
                raise UsageError(f"{name}={value!r}: parameters are numbers, truth values or strings")
        measuring = _measuring(config)
        with found(workload, node) as given:
            selected = selected_sources(config)
            if selected and given.source not in selected:
                pytest.skip(f"{given.label} is not one of --amp-workload")
            asked = wanted(node, config)
            try:
                planned = measuring.plan(given, self._device, asked.preset, parameters)[self._phase, self._precision]
            except WorkloadError as error:
                # an exception in the workload's own code speaks for itself
                contract = "" if error.__cause__ else f"; {CONTRACT}"
                raise WorkloadError(f"{str(error).replace(given.name, given.label)}{contract}") from error
            if planned.skip:
                if self._device in config.getoption("amp_devices") and not device_is_there(self._device):
                    raise UsageError(f"--amp-device {self._device}: {planned.skip}")
                pytest.skip(planned.skip)
            self._run(measuring, planned, given, asked)

    def _run(self, measuring: "Measuring", planned: "PlannedCase", given: "Given", asked: "Wanted") -> None:
        __tracebackhide__ = True
        from ampbench.pytest_plugin.measuring import run_once
        from ampbench.worker.cells import measure_divergence

        benchmark = self._benchmark
        if benchmark.params is not None and "amp_workload" in benchmark.params:
            benchmark.params = {**benchmark.params, "amp_workload": given.label}
        divergence: Divergence | None = None
        try:
            if not benchmark.disabled:
                divergence = measuring.measure(planned, given, benchmark, self._limits())
            else:
                run_once(planned, benchmark)
                if asked.max_error is not None:
                    divergence = measure_divergence(planned)
        except Exception as error:
            self._put_away()
            config = self._request.config
            # pytest keeps the traceback of the last failure, and its frames what was allocated; these options show it
            if not any(config.getoption(option, False) for option in ("usepdb", "showlocals")):
                traceback.clear_frames(error.__traceback__)
            raise
        if asked.max_error is not None and divergence is not None:
            _check_error(divergence, asked.max_error)

    def _limits(self) -> Any:
        """Return pytest-benchmark's settings for this test: its options, and its marker, which wins."""
        from ampbench.pytest_plugin.measuring import Limits

        config = self._request.config
        marker = self._request.node.get_closest_marker("benchmark")
        own = marker.kwargs if marker else {}
        return Limits(
            max_seconds=float(own.get("max_time", config.getoption("benchmark_max_time"))),
            min_rounds=int(own.get("min_rounds", config.getoption("benchmark_min_rounds"))),
            min_seconds=float(own.get("min_time", config.getoption("benchmark_min_time"))),
        )

    def _put_away(self) -> None:
        """Tell pytest-benchmark's fixture that there is no result: unused, it would warn beside the failure."""
        benchmark = self._benchmark
        benchmark.has_error = True
        if benchmark.stats is None:
            benchmark.disabled = True
            with contextlib.suppress(Exception):  # it was used already, by a step that failed
                benchmark.pedantic(bool)


@pytest.fixture
def amp_workload(request: pytest.FixtureRequest) -> Any:
    """The workload of the test's marker, None where the test gives its own."""
    return getattr(request, "param", None)


@pytest.fixture
def amp_device(request: pytest.FixtureRequest) -> str:
    """The device that a test with `amp_benchmark` measures."""
    return str(request.param)


@pytest.fixture
def amp_phase(request: pytest.FixtureRequest) -> str:
    """The phase that a test with `amp_benchmark` measures."""
    return str(request.param)


@pytest.fixture
def amp_precision(request: pytest.FixtureRequest) -> str:
    """The precision that a test with `amp_benchmark` measures."""
    return str(request.param)


@pytest.fixture
def amp_benchmark(
    request: pytest.FixtureRequest,
    benchmark: Any,
    amp_workload: Any,
    amp_device: str,
    amp_phase: str,
    amp_precision: str,
) -> AmpBenchmark:
    """Measure a workload in every precision, on each device and in each phase: `amp_benchmark(my_workload)`."""
    return AmpBenchmark(request, benchmark, (amp_device, amp_phase, amp_precision), amp_workload)


class WithoutBenchmark:
    """Takes the place of `amp_benchmark` where pytest-benchmark is not installed, or is switched off."""

    @pytest.fixture
    def amp_benchmark(self, amp_workload: Any, amp_device: str, amp_phase: str, amp_precision: str) -> None:  # noqa: ARG002
        """Fail, and say what to do: what times the steps is missing; the parameters are those that the test has got."""
        if find_spec("pytest_benchmark") is None:
            pytest.fail('amp_benchmark needs pytest-benchmark: pip install "ampbench[pytest]"', pytrace=False)
        pytest.fail(
            "amp_benchmark needs pytest-benchmark, which is switched off: run without -p no:benchmark, or with "
            "-p pytest_benchmark.plugin",
            pytrace=False,
        )


def _measuring(config: pytest.Config) -> "Measuring":
    """Return what measures in this session, with torch; raises `UsageError` where there is none."""
    if MEASURING not in config.stash:
        try:
            from ampbench.pytest_plugin.measuring import Measuring
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise UsageError('amp_benchmark needs torch: pip install "ampbench[torch]"') from None
        config.stash[MEASURING] = Measuring()
    return config.stash[MEASURING]


def _check_error(divergence: "Divergence", limit: float) -> None:
    """Fail the test where the output's error is above `limit`, or undefined."""
    __tracebackhide__ = True
    worst = divergence.output.worst
    error = divergence.output.rel_l2 if worst is None else worst.rel_l2
    if error is None:
        why = "; ".join(dict.fromkeys(filter(None, [divergence.output.undefined, *divergence.notes])))
        said = f"output error is undefined{f' ({why})' if why else ''}, the limit is {limit:g}"
    elif error > limit:
        against = f" against fp32 (fp64 failed: {divergence.reference.error})" if divergence.reference.error else ""
        where = f" of {worst.name}" if worst is not None and worst.name else ""
        said = f"output error{where} {error:.3g}{against} is above the limit {limit:g}"
    else:
        return
    pytest.fail(f"{said}: {divergence.case_id}", pytrace=False)

"""The fixtures: `amp_benchmark`, and the parameters of the case that a test measures.

PYTEST_DONT_REWRITE
"""

import contextlib
import traceback
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from ampbench.errors import AmpbenchError, UsageError
from ampbench.pytest_plugin import MEASURING

if TYPE_CHECKING:
    from ampbench.pytest_plugin.measuring import Given, Measuring
    from ampbench.result import Result


class AmpBenchmark:
    """Measures a workload in one precision, on one device, in one phase; what the fixture `amp_benchmark` is.

    `used` says whether it was called.
    """

    def __init__(self, request: pytest.FixtureRequest, benchmark: Any, case: tuple[str, str, str], marked: Any):
        self.used = False
        self._request = request
        self._benchmark = benchmark
        self._case = case
        self._marked = marked

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
    ) -> "Result":
        """Measure `workload` and return its `ampbench.Result`, a table of one case; without one, the marker's.

        `workload` is what `ampbench.measure` takes: a network with `inputs`, `loss`, `targets` and `optimizer`, an
        `ampbench.Workload`, a function that returns one (its keyword `parameters` can be set), or a name. Skips the
        test where the machine or the workload cannot do it, fails it with one line where that is no workload or the
        output's error is too large, and raises what the workload raises.
        """
        __tracebackhide__ = True
        if self.used:
            self.refuse("amp_benchmark was called twice: a test measures one workload, so write another test")
        self.used = True
        try:
            if self._marked is not None and workload is not None:
                raise UsageError("this test's workloads are those of its marker: call amp_benchmark() without one")
            measuring = _measuring(self._request.config)
            from ampbench.pytest_plugin.grid import selected_sources
            from ampbench.pytest_plugin.measuring import found

            selected = selected_sources(self._request.config)
            what = workload if self._marked is None else self._marked
            with found(what, inputs, loss, targets, optimizer, self._request.node) as given:
                if selected and given.source not in selected:
                    pytest.skip(f"{given.label} is not one of --amp-workload")
                return self._measure(measuring, given, optimizer, parameters)
        except AmpbenchError as error:
            self.refuse(str(error))

    def refuse(self, why: str) -> NoReturn:
        """Fail the test with the line `why`."""
        __tracebackhide__ = True
        self._put_away()
        raise pytest.fail.Exception(why, pytrace=False) from None

    def _measure(self, measuring: "Measuring", given: "Given", optimizer: Any, parameters: dict[str, Any]) -> "Result":
        __tracebackhide__ = True
        from ampbench.pytest_plugin.grid import present, wanted

        config, device = self._request.config, self._case[0]
        asked = wanted(self._request.node, config)
        planned = measuring.plan(given, self._case, asked.preset, optimizer, parameters)
        if planned.skip:
            if device in config.getoption("amp_devices") and not present(device):
                raise UsageError(f"--amp-device {device}: {planned.skip}")
            pytest.skip(planned.skip)
        benchmark = self._benchmark
        if benchmark.params is not None and "amp_workload" in benchmark.params:
            benchmark.params = {**benchmark.params, "amp_workload": given.label}
        try:
            result = measuring.measure(planned, given, benchmark, self._limits())
        except Exception as error:
            self._put_away()
            # pytest keeps the traceback of the last failure, and its frames what was allocated; these options show it
            if not any(config.getoption(option, False) for option in ("usepdb", "showlocals")):
                traceback.clear_frames(error.__traceback__)
            raise
        if asked.max_error is not None:
            _check_error(result, asked.max_error)
        return result

    def _limits(self) -> dict[str, float]:
        """Return pytest-benchmark's settings for this test: its options, and its marker, which wins."""
        marker = self._request.node.get_closest_marker("benchmark")
        own = marker.kwargs if marker else {}
        names = ("max_time", "min_rounds", "min_time")
        return {name: float(own.get(name, self._request.config.getoption(f"benchmark_{name}"))) for name in names}

    def _put_away(self) -> None:
        """Tell pytest-benchmark's fixture that there is no result: unused, it would warn beside the failure."""
        benchmark = self._benchmark
        benchmark.has_error = True
        if benchmark.stats is None:
            benchmark.disabled = True
            with contextlib.suppress(Exception):  # it was used already, by a step that failed
                benchmark.pedantic(bool)


def _parameter(name: str) -> Any:
    """Return the fixture of what a test is parametrized by; None where its test gives it."""

    def parameter(request: pytest.FixtureRequest) -> Any:
        return getattr(request, "param", None)

    return pytest.fixture(parameter, name=name)


amp_workload, amp_device, amp_phase, amp_precision = map(
    _parameter, ("amp_workload", "amp_device", "amp_phase", "amp_precision")
)


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
        missing = find_spec("pytest_benchmark") is None
        remedy = (
            ': pip install "ampbench[pytest]"'
            if missing
            else ", which is switched off: run without -p no:benchmark, or with -p pytest_benchmark.plugin"
        )
        pytest.fail(f"amp_benchmark needs pytest-benchmark{remedy}", pytrace=False)


def _measuring(config: pytest.Config) -> "Measuring":
    """Return what measures in this session, with torch; raises `UsageError` where there is none."""
    if MEASURING not in config.stash:
        if find_spec("torch") is None:
            raise UsageError('amp_benchmark needs torch: pip install "ampbench[torch]"')
        from ampbench.pytest_plugin.measuring import Measuring

        config.stash[MEASURING] = Measuring()
    return config.stash[MEASURING]


def _check_error(result: "Result", limit: float) -> None:
    """Fail the test where the output's error is above `limit`, or undefined."""
    __tracebackhide__ = True
    from ampbench.show.rows import judged_error

    [(case_id, divergence)] = result.stored.divergence.items()
    error = judged_error(result.rows[0])
    if error is None:
        why = "; ".join(dict.fromkeys(filter(None, [divergence.output.undefined, *divergence.notes])))
        text = f"output error is undefined{f' ({why})' if why else ''}, the limit is {limit:g}"
    elif error > limit:
        against = f" against fp32 (fp64 failed: {divergence.reference.error})" if divergence.reference.error else ""
        text = f"output error {error:.3g}{against} is above the limit {limit:g}"
    else:
        return
    pytest.fail(f"{text}: {case_id}", pytrace=False)

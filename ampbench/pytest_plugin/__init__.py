"""ampbench's plug-in for pytest: the fixture `amp_benchmark` and the marker `amp` (docs/pytest.md).

`def test_mine(amp_benchmark): amp_benchmark(my_workload)` is measured in every precision on the device, in inference
and in training, by pytest-benchmark's fixture `benchmark`. Loading it imports nothing but pytest: every suite of an
environment with ampbench loads it, and only tests that use the fixture pay for torch.

PYTEST_DONT_REWRITE
"""

from argparse import ArgumentTypeError
from collections.abc import Generator
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ampbench.pytest_plugin.measuring import AmpBenchmark, Measured

FIXTURE = "amp_benchmark"
MEASURED: "pytest.StashKey[Measured]" = pytest.StashKey()
"""The cases that the session has measured so far; set once a test uses the fixture."""
BENCHMARK_PLUGINS = ("benchmark", "pytest_benchmark.plugin")
"""The names of pytest-benchmark's plug-in: by its entry point, and by `-p`."""


OPTIONS = {
    "precision": "Measure only this precision, by a name or an alias. Can be repeated.",
    "device": "Measure only on this device type. Can be repeated.",
    "phase": "Measure only inference or training.",
    "preset": "The size of built-in workloads: tiny, small or large.",
    "max-error": "Fail tests whose output has a larger relative L2 error against fp64, or an undefined one.",
    "save": "Store the session as a run in this results folder.",
    "compare": "Fail the session where memory or an error is worse than in this stored run.",
}


def _typed(kind: str, text: str) -> Any:
    """Return the value of an option; imports ampbench only where the option is given."""
    from ampbench.errors import AmpbenchError
    from ampbench.pytest_plugin.measuring import meant

    try:
        return meant(kind, text)
    except AmpbenchError as error:
        raise ArgumentTypeError(str(error)) from None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all of which begin with --amp."""
    group = parser.getgroup("ampbench", "ampbench: precisions side by side")
    for name, text in OPTIONS.items():
        kind = name.replace("-", "_")
        several = {"action": "append", "default": []} if kind in ("precision", "device", "phase") else {}
        group.addoption(f"--amp-{name}", type=partial(_typed, kind), metavar="VALUE", help=text, **several)


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker; provide a fixture that names the remedy where pytest-benchmark is missing."""
    config.addinivalue_line("markers", "amp(precisions, phases, devices, preset, max_error): what is measured.")
    if not any(map(config.pluginmanager.hasplugin, BENCHMARK_PLUGINS)):
        config.pluginmanager.register(WithoutBenchmark(), "ampbench-without-benchmark")


class WithoutBenchmark:
    """Replaces pytest-benchmark's fixture where that is not installed, or switched off."""

    @pytest.fixture
    def benchmark(self) -> None:
        """Fail, and name the remedy."""
        remedy = 'pip install "ampbench[pytest]"' if find_spec("pytest_benchmark") is None else "drop -p no:benchmark"
        pytest.fail(f"amp_benchmark needs pytest-benchmark: {remedy}", pytrace=False)


def _parameter(name: str) -> Any:
    """Return the fixture of a parameter of tests; its value is None where the test has none."""
    return pytest.fixture(lambda request: getattr(request, "param", None), name=name)


amp_device, amp_phase, amp_precision = map(_parameter, ("amp_device", "amp_phase", "amp_precision"))


@pytest.fixture
def amp_benchmark(
    request: pytest.FixtureRequest, benchmark: Any, amp_device: str, amp_phase: str, amp_precision: str
) -> "AmpBenchmark":
    """Measure a workload in every precision, on each device and in each phase: `amp_benchmark(my_workload)`."""
    if find_spec("torch") is None:
        pytest.fail('amp_benchmark needs torch: pip install "ampbench[torch]"', pytrace=False)
    from ampbench.pytest_plugin.measuring import AmpBenchmark, Measured

    if MEASURED not in request.config.stash:
        request.config.stash[MEASURED] = Measured()
        request.config.add_cleanup(request.config.stash[MEASURED].server.close)
    measured = request.config.stash[MEASURED]
    return AmpBenchmark(request.node, benchmark, measured, amp_device, amp_phase, amp_precision)


@pytest.hookimpl(trylast=True)  # after pytest's own, so that precisions are the innermost parameters
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize every test that uses the fixture over devices, phases and precisions."""
    if FIXTURE in metafunc.fixturenames:
        from ampbench.pytest_plugin.measuring import parametrize

        parametrize(metafunc)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Store the measured cases, and compare them with the run of --amp-compare; a session that is worse fails."""
    measured, run = session.config.stash.get(MEASURED, None), session.config.getoption("amp_compare")
    if measured is None or not measured.entries:
        return
    same = run is None or measured.compare(run)
    if folder := session.config.getoption("amp_save"):
        measured.save(folder)
    if not same and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, trylast=True)  # inside pytest's own wrapper, below pytest-benchmark's table
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """Print the precisions of each workload side by side."""
    try:
        yield  # raises where --benchmark-compare-fail fails
    finally:
        config = terminalreporter.config
        measured = config.stash.get(MEASURED, None)
        if measured is not None and measured.entries:
            quiet = config.getoption("benchmark_quiet", False) or config.getoption("benchmark_disable", False)
            measured.write_summary(terminalreporter, quiet=quiet)

"""ampbench's plug-in for pytest: the fixture `amp_benchmark` and the marker `amp` (docs/pytest.md).

`def test_mine(amp_benchmark): amp_benchmark(my_workload)` is measured in every precision on the device, in inference
and in training, by pytest-benchmark's fixture `benchmark`. Loading it imports nothing but pytest: whoever has ampbench
installed loads it in every suite, and only tests that use the fixture pay for torch.

PYTEST_DONT_REWRITE
"""

from collections.abc import Generator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ampbench.pytest_plugin.measuring import Measuring

FIXTURE = "amp_benchmark"
MEASURING: "pytest.StashKey[Measuring]" = pytest.StashKey()
"""What the session has measured so far; there once a test has used the fixture."""
BENCHMARK_PLUGINS = ("benchmark", "pytest_benchmark.plugin")
"""The names of pytest-benchmark's plug-in: that of its entry point, and that of `-p`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all of which begin with --amp."""
    group = parser.getgroup("ampbench", "ampbench: precisions side by side")
    for name, what in (
        ("workload", "a workload as `ampbench run` takes it"),
        ("precision", "a precision or an alias of one"),
        ("device", "a device type as `ampbench run` takes it"),
        ("phase", "inference or training"),
    ):
        group.addoption(
            f"--amp-{name}",
            dest=f"amp_{name}s",
            action="append",
            default=[],
            metavar="NAME",
            help=f"Measure only this {name}: {what}. Can be repeated.",
        )
    group.addoption("--amp-preset", metavar="NAME", help="The size of built-in workloads: tiny, small or large.")
    group.addoption(
        "--amp-max-error",
        type=float,
        metavar="ERROR",
        help="Fail tests whose output has a larger relative L2 error against fp64, or an undefined one.",
    )
    group.addoption(
        "--amp-compare",
        metavar="FILE",
        help="Fail the session where memory or an error is worse than in FILE, which --benchmark-json wrote, or a run.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse unknown names before anything is collected; provide the fixtures."""
    config.addinivalue_line(
        "markers",
        "amp(workloads, precisions, phases, devices, preset, max_error): what amp_benchmark measures (docs/pytest.md).",
    )
    given = ("workloads", "precisions", "devices", "phases", "preset", "max_error", "compare")
    if any(config.getoption(f"amp_{name}") not in (None, []) for name in given):
        from ampbench.pytest_plugin.grid import check_options

        check_options(config)
    from ampbench.pytest_plugin import fixtures

    installed = any(config.pluginmanager.hasplugin(name) for name in BENCHMARK_PLUGINS)
    config.pluginmanager.register(fixtures, "ampbench-fixtures")
    if not installed:
        config.pluginmanager.register(fixtures.WithoutBenchmark(), "ampbench-without-benchmark")


@pytest.hookimpl(trylast=True)  # after pytest's own, so that precisions are the innermost parameters
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize every test that uses the fixture over devices, phases and precisions."""
    if FIXTURE in metafunc.fixturenames:
        from ampbench.pytest_plugin.grid import parametrize

        parametrize(metafunc)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test that has the fixture and never calls it: it would seem to have measured something."""
    yield
    found = getattr(item, "funcargs", {}).get(FIXTURE)
    if found is not None and not getattr(found, "used", True):
        found.refuse("amp_benchmark was not called: amp_benchmark(my_workload) measures it")


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add the environment, torch's part included, once a test has used the fixture."""
    if (measuring := config.stash.get(MEASURING, None)) is not None and measuring.seen:
        from ampbench.pytest_plugin.measuring import describe_machine

        describe_machine(machine_info)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_benchmark_compare_machine_info(machine_info: dict[str, Any], compared_benchmark: dict[str, Any]) -> None:
    """Add the environment where the saved benchmarks have it, so that like is compared with like.

    pytest-benchmark compares at the start, before any test has used the fixture. Without torch there is nothing to add.
    """
    described = "ampbench" in compared_benchmark.get("machine_info", {})
    if described and "ampbench" not in machine_info and find_spec("torch"):
        from ampbench.pytest_plugin.measuring import describe_machine

        describe_machine(machine_info)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Compare what was measured with the file of --amp-compare; a session that is worse fails."""
    config = session.config
    measuring = config.stash.get(MEASURING, None)
    if measuring is None or not measuring.seen or config.getoption("amp_compare") is None:
        return
    if not measuring.seen.compare(config.getoption("amp_compare")) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, trylast=True)  # inside pytest's own wrapper, below pytest-benchmark's table
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """Print the precisions of each workload side by side."""
    try:
        yield  # raises where --benchmark-compare-fail found something
    finally:
        config = terminalreporter.config
        measuring = config.stash.get(MEASURING, None)
        if measuring is not None and measuring.seen:
            from ampbench.pytest_plugin.measuring import write_summary

            quiet = config.getoption("benchmark_quiet", False) or config.getoption("benchmark_disable", False)
            write_summary(terminalreporter, measuring.seen, quiet=quiet)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the server process, if one was started."""
    if (measuring := config.stash.get(MEASURING, None)) is not None:
        measuring.close()

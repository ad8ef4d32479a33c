"""What bare `pytest` collects: the tests, or with --benchmark-only the benchmarks. What is named is never left out.

Without the dev group, the tests that need a library of it are skipped.
"""

import re
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out one of the two `testpaths`."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return None
    left_out = ROOT / ("tests" if config.getoption("benchmark_only", False) else "benchmarks/pytest")
    return True if collection_path.is_relative_to(left_out) else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file that needs a library which is not installed, and say which."""
    report = yield
    missing = re.search(r"ModuleNotFoundError: No module named '(\w+)", str(report.longrepr)) if report.failed else None
    if missing and find_spec("hypothesis") is None:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: needs {missing[1]}: pip install --group dev")
    return report

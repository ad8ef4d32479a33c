"""What bare `pytest` collects: the tests, or with --benchmark-only the benchmarks. What is named is never left out."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out one of the two `testpaths`."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return None
    left_out = ROOT / ("tests" if config.getoption("benchmark_only", False) else "benchmarks/pytest")
    return True if collection_path.is_relative_to(left_out) else None

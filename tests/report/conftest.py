"""The runs that the repository keeps, read once."""

import pytest

from ampbench.report.material import Material, gather
from tests.report.materials import README_RUN, RESULTS


@pytest.fixture(scope="session")
def readme_run() -> Material:
    """The run that the README shows."""
    return gather([README_RUN], RESULTS)


@pytest.fixture(scope="session")
def history() -> Material:
    """All runs, of five torch versions."""
    return gather([str(RESULTS / "runs")], RESULTS)

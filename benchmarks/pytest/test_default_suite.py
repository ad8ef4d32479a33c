"""The default suite in every precision, side by side: what bare `pytest --benchmark-only` measures (docs/pytest.md)."""

import pytest

from ampbench.workloads.index import WORKLOADS


@pytest.mark.amp(preset="small")
@pytest.mark.parametrize("name", [spec.name for spec in WORKLOADS.values() if spec.suite])
def test_precisions(amp_benchmark, name):
    amp_benchmark(name)

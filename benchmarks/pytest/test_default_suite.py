"""The default suite in every precision, side by side: what bare `pytest --benchmark-only` measures (docs/pytest.md)."""

import pytest


@pytest.mark.amp(workloads=["suite"], preset="small")
def test_precisions(amp_benchmark):
    amp_benchmark()

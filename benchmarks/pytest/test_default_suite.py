"""The default suite in every precision, side by side: what bare `pytest --benchmark-only` measures (docs/pytest.md)."""

import pytest

from ampbench.workloads.index import WORKLOADS

pytestmark = pytest.mark.amp(preset="small")


@pytest.mark.parametrize("name", [spec.name for spec in WORKLOADS.values() if "training" in spec.suite])
def test_precisions(amp_benchmark, name):
    amp_benchmark(name)


@pytest.mark.amp(phases=["inference"])
@pytest.mark.parametrize("name", [spec.name for spec in WORKLOADS.values() if spec.suite == ("inference",)])
def test_precisions_in_inference(amp_benchmark, name):
    amp_benchmark(name)

"""What a server imports before it forks: what the workloads need that it serves, and nothing else."""

import pytest

from ampbench.drive.planning import check_selection
from ampbench.drive.session import preload_modules
from ampbench.records.run import Selection


@pytest.mark.parametrize(
    ("workload", "phase", "modules"),
    [
        ("mlp", "inference", []),
        ("mlp", "training", ["torch._dynamo"]),
        ("resnet18", "inference", ["torchvision"]),
        ("digits", "training", ["torch._dynamo", "sklearn.datasets"]),
        ("characters", "inference", []),
    ],
)
def test_a_server_imports_early_what_its_workloads_need(workload: str, phase: str, modules: list[str]) -> None:
    selection = Selection(workloads=[workload], phases=[phase])
    assert preload_modules(selection, check_selection(selection)) == modules

"""Small networks and cases for the worker's tests."""

from collections.abc import Callable, Iterator

import pytest
import torch

from ampbench.records.cases import Case
from ampbench.running.channel import ServerChannel
from ampbench.workload import Workload


def make_case(precision: str = "fp32", phase: str = "inference", path: str = "eager", **changes: object) -> Case:
    dtype = {"fp16_pure": "fp16", "bf16_pure": "bf16"}.get(precision, "fp32")
    values: dict[str, object] = {
        "workload": "net",
        "family": "user",
        "precision": precision,
        "device": "cpu",
        "phase": phase,
        "path": path,
        "batch_size": 8,
        "input_dtype": dtype,
        "memory_format": "contiguous",
    }
    return Case(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def case() -> Callable[..., Case]:
    return make_case


@pytest.fixture
def classifier() -> Workload:
    """A small classifier with batch normalisation, trained with momentum."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    )
    return Workload(
        module=module,
        inputs=torch.randn(8, 16),
        targets=torch.randint(0, 4, (8,)),
        loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    )


@pytest.fixture(scope="module")
def channel() -> Iterator[ServerChannel]:
    """A server of real processes, for a whole module."""
    opened = ServerChannel()
    yield opened
    opened.close()

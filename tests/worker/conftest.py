"""Small networks and cases for the worker's tests."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.drive.servers import ServerChannel
from ampbench.records.case import Case
from ampbench.records.measured import Divergence
from ampbench.worker.divergence import References, measure_divergence
from ampbench.worker.machine import Cpu
from ampbench.workload import Workload
from tests import stored_runs


def make_case(precision: str = "fp32", phase: str = "inference", path: str = "eager", **changes: Any) -> Case:
    dtype = SHORT_DTYPES[PRECISIONS[precision].storage]
    fields = {"workload": "net", "family": "user", "parameters": {}, "phase": phase, "path": path, "input_dtype": dtype}
    return stored_runs.make_case(precision, **fields | changes)


def diverge(workload: Workload, case: Case, references: References | None = None, device: Any = None) -> Divergence:
    return measure_divergence(workload, case, device or Cpu(), references or References())


def mean_square(output: torch.Tensor) -> torch.Tensor:
    return output.float().square().mean()


def numpy_bf16(values: np.ndarray) -> np.ndarray:
    """Round fp64 to bf16, to nearest even, by hand: 8 bits of significand."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 256) / 256, exponent)


def numpy_fp16(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(float)


def numpy_fp32(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(float)


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

"""Inputs stored in half: what becomes of them, what is saved, what is lost."""

from typing import Any

import pytest
import torch
from torch import nn

from ampbench.records.case import Case
from ampbench.records.measured import Skip
from ampbench.studies.input_storage import StorageAsked, StoragePass
from ampbench.studies.input_storage_measure import NO_FLOATING, measure_storage
from ampbench.workload import Workload
from tests.studies.working import at_work

PRECISIONS = ["bf16_autocast", "fp16_autocast"]
PHASES = ["inference", "training"]


def case_of(precision: str = "bf16_autocast", phase: str = "inference") -> Case:
    return Case(
        workload="net", family="user", precision=precision, device="cpu", phase=phase, path="eager", batch_size=None,
        input_dtype="fp32", memory_format="contiguous",
    )  # fmt: skip


def measured(
    module: nn.Module, inputs: Any, precision: str = "bf16_autocast", phase: str = "inference", **given: Any
) -> StoragePass:
    given.setdefault("loss", lambda output: output.float().square().mean())
    workload = Workload(module=module, inputs=inputs, **given)
    found = measure_storage(at_work(workload, case_of(precision, phase)), StorageAsked(seconds=0.02))
    assert isinstance(found, StoragePass)
    return found


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_linear_takes_half_as_it_is_to_the_last_bit_and_saves_a_cast(precision: str, phase: str) -> None:
    found = measured(
        nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(8, 16), precision, phase
    )
    (use,) = found.uses
    assert (use.name, use.operation, use.module, use.read_in_fp32) == ("input", "aten.addmm", "0", "")
    assert found.identical
    assert found.repeatable
    assert not found.exact
    assert found.full.casts - found.low.casts == 1
    assert found.full.cast_bytes - found.low.cast_bytes == 8 * 16 * (4 + 2)
    assert (found.full.dtype, found.low.dtype) == ("fp32", precision[:4])
    assert (found.full.stored_bytes, found.low.stored_bytes) == (512, 256)
    assert found.full.output_rel_l2 == found.low.output_rel_l2 > 0
    assert found.full.grad_rel_l2 == found.low.grad_rel_l2
    assert (found.full.grad_rel_l2 is None) == (found.full.loss_abs_error is None) == (phase == "inference")
    assert len(found.full.samples) == len(found.low.samples) > 0
    assert found.low.peak_bytes < found.full.peak_bytes
    assert found.full.copy_samples == found.low.copy_samples == []


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_layer_norm_sees_inputs_that_are_really_rounded(precision: str, phase: str) -> None:
    found = measured(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 4)), torch.randn(8, 16), precision, phase)
    (use,) = found.uses
    assert use.operation == "aten.native_layer_norm"
    assert use.read_in_fp32 == "aten.native_layer_norm"
    assert found.identical is False
    assert found.low.output_rel_l2 != found.full.output_rel_l2


def test_a_skip_connection_from_the_input_loses_what_its_first_op_does_not() -> None:
    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + x

    found = measured(Skipping(), torch.randn(8, 16))
    (use,) = found.uses
    assert (use.operation, use.read_in_fp32) == ("aten.addmm", "aten.add")
    assert found.identical is False


def test_integer_inputs_are_skipped_with_the_reason() -> None:
    workload = Workload(module=nn.Embedding(8, 4), inputs=torch.arange(4))
    skip = measure_storage(at_work(workload, case_of()), StorageAsked(seconds=0.02))
    assert skip == Skip(case_id=case_of().case_id, reason=NO_FLOATING)


def test_a_step_that_does_not_take_half_is_a_finding() -> None:
    class Outside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            with torch.autocast("cpu", enabled=False):
                return self.layer(x)

    found = measured(Outside(), torch.randn(2, 4))
    assert found.low.error.startswith("RuntimeError: ")
    assert (found.low.casts, found.low.samples, found.low.output_rel_l2, found.identical) == (None, [], None, None)
    assert (found.full.casts, found.repeatable, found.uses) == (0, True, [])
    assert found.full.output_rel_l2 is not None

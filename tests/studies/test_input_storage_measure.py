"""Inputs stored in half: what becomes of them, what is saved, what is lost."""

from collections.abc import Callable
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


@pytest.mark.parametrize("phase", PHASES)
def test_a_convolution_takes_half_as_it_is(phase: str) -> None:
    found = measured(nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8), phase=phase)
    assert [(use.operation, use.read_in_fp32) for use in found.uses] == [("aten.convolution", "")]
    assert found.identical


def test_inputs_that_half_holds_exactly_lose_nothing_wherever_they_go() -> None:
    found = measured(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 4)), torch.randint(0, 256, (8, 16)).float())
    assert found.exact


def test_an_op_that_autocast_runs_in_fp32_casts_the_input_back() -> None:
    class Loses(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.mse_loss(x, torch.zeros_like(x)).reshape(1)

    found = measured(Loses(), torch.randn(8, 16))
    (use,) = found.uses
    assert (use.operation, use.read_in_fp32) == ("aten.mse_loss", "aten.mse_loss")
    assert found.identical is False


def test_a_concatenation_with_fp32_promotes_the_input() -> None:
    class Concatenates(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, torch.ones(8, 16)])

    found = measured(Concatenates(), torch.randn(8, 16))
    assert [(use.operation, use.read_in_fp32) for use in found.uses] == [("aten.cat", "aten.cat")]
    assert (found.full.casts, found.low.casts, found.identical) == (0, 1, False)


def test_two_inputs_each_have_their_own_use() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(16, 16)
            self.shift = nn.Parameter(torch.randn(16))

        def forward(self, image: torch.Tensor, boxes: torch.Tensor, ids: torch.Tensor, spare: torch.Tensor) -> Any:
            return self.project(image) + (boxes + self.shift)[ids]

    inputs = (torch.randn(8, 16), torch.randn(8, 16), torch.arange(8), torch.randn(2))
    found = measured(Two(), inputs)
    assert [(use.name, use.operation, use.read_in_fp32) for use in found.uses] == [
        ("image", "aten.addmm", ""),
        ("boxes", "aten.add", "aten.add"),
        ("spare", "", ""),
    ]
    assert found.full.stored_bytes - found.low.stored_bytes == (2 * 8 * 16 + 2) * 2
    assert found.identical is False


def test_inputs_given_by_name_are_called_by_it_and_the_first_of_several_batches_is_looked_at() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, *, features: torch.Tensor) -> Any:
            return self.layer(features)

    batches = [{"features": torch.randn(rows, 4)} for rows in (2, 6)]
    found = measured(Named(), batches)
    assert [(use.name, use.read_in_fp32) for use in found.uses] == [("features", "")]
    assert found.full.stored_bytes == 2 * 4 * 4
    assert found.identical


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


def test_inputs_beyond_fp16_are_noted() -> None:
    found = measured(nn.Linear(4, 4), torch.full((2, 4), 1e5), "fp16_autocast")
    assert not found.exact
    assert found.low.output_rel_l2 is None
    assert any(note.startswith("inputs in fp16: 8 of 8 output elements are") for note in found.notes)


def test_dropout_is_off_where_numbers_are_compared_and_said_so(recwarn: Callable[..., Any]) -> None:
    found = measured(nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 4)), torch.randn(8, 16), phase="training")
    assert found.identical
    assert any("dropout" in note for note in found.notes)


def test_where_fp64_fails_errors_are_against_fp32_and_that_is_said() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x).float() @ torch.ones(16, 16))

    found = measured(Mixed(), torch.randn(8, 16))
    (note,) = [note for note in found.notes if "fp32" in note]
    assert note.startswith("errors are against fp32, as the fp64 reference failed: ")
    assert 0 < found.full.output_rel_l2 < 0.1

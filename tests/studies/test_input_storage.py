"""Inputs stored in half: what is planned, what becomes of them, what is saved and lost, and what is concluded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ampbench.drive.session import require_work
from ampbench.errors import NothingToRunError
from ampbench.records.case import Case
from ampbench.records.measured import Fitness, Skip
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.studies import work
from ampbench.studies.input_storage import (
    FREE,
    LOSSY,
    STUDY,
    UNUSED,
    InputUse,
    Storage,
    StorageAsked,
    StoragePass,
    conclusions,
    situation,
)
from ampbench.studies.input_storage_measure import NO_FLOATING, measure_storage
from ampbench.studies.study import Timing
from ampbench.workload import Workload
from tests.scripted_channel import CPU, NO_GPU, Scripted, asked_in, described, machine
from tests.stored_runs import make_case
from tests.studies.storage_passes import FREE_USE, LOSSY_USE, lossy_pass, storage_pass, stored_inputs
from tests.studies.working import at_work, studied

Instead = Callable[[Request], Reply | None]

ASKED = StorageAsked(seconds=1.5)


def answering(instead: Instead = lambda _: None, *, has_loss: bool = True) -> Scripted:
    def answer(request: Request) -> Reply:
        if request.task == "describe":
            return described(has_loss=has_loss)
        assert request.case is not None
        return instead(request) or reply_with(storage_pass(request.case))

    return Scripted(answer, machine(CPU, NO_GPU))


def test_unless_told_otherwise_both_phases_are_measured_in_the_devices_own_autocast_dtype(tmp_path: Path) -> None:
    channel = answering()
    run = studied(STUDY, tmp_path, channel, ASKED)
    assert [(case.precision, case.phase) for case in run.cases.values()] == [
        ("bf16_autocast", "inference"),
        ("bf16_autocast", "training"),
    ]
    assert {(request.task, asked_in(request).seconds, request.fresh) for request in channel.asked} == {
        ("input-storage", 1.5, True)
    }
    assert list(run.of(StoragePass)) == list(run.cases)


def test_a_workload_without_a_loss_is_measured_in_inference_alone(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    run = studied(STUDY, tmp_path, answering(has_loss=False), ASKED, workloads=[f"{tmp_path}/model.py:make"])
    assert [case.phase for case in run.cases.values()] == ["inference"]
    run = studied(STUDY, tmp_path / "timm", answering(has_loss=False), ASKED, workloads=["timm:net"])
    assert [case.phase for case in run.cases.values()] == ["inference"]
    with pytest.raises(NothingToRunError, match="no loss given"), work.prepared(STUDY,
        Selection(workloads=[f"{tmp_path}/model.py:make"], phases=["training"]), Settings(), ASKED,
        open_channel=lambda: answering(has_loss=False),
    ) as prepared:  # fmt: skip
        require_work(prepared)


CASE = make_case(precision="bf16_autocast")
TRAINING = make_case(precision="bf16_autocast", phase="training")


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (FREE_USE, FREE),
        (LOSSY_USE, LOSSY),
        (InputUse(name="x", operation="aten.mm", read_in_fp32="aten.add"), LOSSY),
        (InputUse(name="x"), UNUSED),
    ],
)
def test_an_input_is_in_one_of_three_situations(use: InputUse, expected: str) -> None:
    assert situation(use) == expected


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, Storage.LOST),
        ({"identical": True, "exact": True}, Storage.SAME),
        ({"identical": True}, Storage.SAME),
        ({"repeatable": False}, Storage.UNREPEATABLE),
        ({"exact": True}, Storage.EXACT),
    ],
)
def test_the_measured_bits_decide_and_not_what_an_op_is_given(changes: dict[str, object], code: Storage) -> None:
    first = next(iter(conclusions(TRAINING, lossy_pass(TRAINING, **changes))))
    assert first.code is code
    if code is Storage.LOST:
        assert (first.severity, first.facts["output_rel_l2"], first.facts["grad_rel_l2_fp32"]) == (
            "problem",
            2e-3,
            2e-3,
        )


def test_a_step_that_does_not_run_with_half_is_all_there_is_to_conclude() -> None:
    low = stored_inputs(
        "bf16", casts=None, cast_bytes=None, samples=[], peak_bytes=None, output_rel_l2=None, error="E: x"
    )
    (only,) = conclusions(CASE, storage_pass(CASE, low=low, identical=None, uses=[]))
    assert (only.code, only.facts) == (Storage.RAISES, {"dtype": "bf16", "error": "E: x"})


def test_a_saving_has_its_interval_unless_the_machine_was_busy_or_builds_differ() -> None:
    def timing(**changes: object) -> list[Timing]:
        found = conclusions(CASE, storage_pass(CASE, **changes))
        return [each.code for each in found if isinstance(each.code, Timing)]

    assert timing() == [Timing.FASTER]
    assert timing(fitness=Fitness(other_share=0.5)) == timing(fitness=Fitness(steal_share=0.2)) == [Timing.BUSY]
    assert timing(low=stored_inputs("bf16", samples=[[1e-3 * 4**build] for build in range(8)])) == [Timing.NOISY]
    few = [stored_inputs(dtype, samples=[[1e-3]]) for dtype in ("fp32", "bf16")]
    assert timing(full=few[0], low=few[1]) == [Timing.SAME]
    assert timing(full=stored_inputs("bf16"), low=stored_inputs("fp32")) == [Timing.SLOWER]


in_both = pytest.mark.parametrize(
    ("precision", "phase"), [("bf16_autocast", "inference"), ("fp16_autocast", "training")]
)


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


@in_both
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


@in_both
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

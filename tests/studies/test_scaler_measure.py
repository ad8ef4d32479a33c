"""Trainings with settings of GradScaler, on real networks: planted underflow, overflow and faults."""

import dataclasses
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from ampbench.records.case import Case
from ampbench.records.run import ScalerSetting
from ampbench.studies import scaler_measure
from ampbench.studies.scaler import ScalerRun
from ampbench.studies.scaler_measure import HOPELESS, LOWEST_SCALE, run_scaler
from ampbench.worker.draws import NO_DROPOUT
from ampbench.worker.machine import Cpu
from ampbench.workload import Workload
from tests.planted_faults import Function

UNSCALED = ScalerSetting(name="no scaling", enabled=False)
DEFAULT = ScalerSetting(name="default")
CASE = Case(
    workload="net", family="user", precision="fp16_autocast", device="cpu", phase="training", path="eager",
    batch_size=8, input_dtype="fp32", memory_format="contiguous",
)  # fmt: skip


def trained(workload: Workload, setting: ScalerSetting | None, steps: int = 12, case: Case = CASE) -> ScalerRun:
    found = run_scaler(workload, case, Cpu(), setting, steps)
    assert msgspec.json.decode(msgspec.json.encode(found), type=ScalerRun) == found
    return found


def net(*layers: nn.Module, factor: float = 1.0, **changes: Any) -> Workload:
    """Return a classifier of 16 numbers in 4 batches, its loss multiplied by `factor`."""
    torch.manual_seed(0)
    fields: dict[str, Any] = {
        "module": nn.Sequential(nn.Linear(16, 32), *layers, nn.ReLU(), nn.Linear(32, 4)),
        "inputs": [torch.randn(8, 16) for _ in range(4)],
        "targets": [torch.randint(0, 4, (8,)) for _ in range(4)],
        "loss": lambda output, targets: factor * nn.functional.cross_entropy(output, targets),
        "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
    }
    return Workload(**fields | changes)


def test_fp32_is_trained_as_a_plain_loop_would() -> None:
    workload = net(nn.BatchNorm1d(32))
    found = trained(workload, None)
    module = net(nn.BatchNorm1d(32)).module.train()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    losses = []
    for step in range(12):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(workload.inputs[step % 4]), workload.targets[step % 4])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert found.losses == losses
    assert (found.precision, found.setting.name, found.scales, found.looks, found.skipped) == (
        "fp32",
        "fp32",
        [],
        [],
        [],
    )
    assert found.fp32_gradients is not None
    assert found.gradients is None


@pytest.mark.parametrize("setting", [UNSCALED, DEFAULT])
def test_looks_leave_no_trace_in_the_training(setting: ScalerSetting, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Function(lambda x: x + torch.rand_like(x))
    held_out = (torch.randn(8, 16), torch.randint(0, 4, (8,)))
    few = trained(net(nn.BatchNorm1d(32), noise, held_out=held_out), setting)
    monkeypatch.setattr(scaler_measure, "LOOKS", 12)
    many = trained(net(nn.BatchNorm1d(32), noise, held_out=held_out), setting)
    assert (len(few.looks), len(many.looks)) == (6, 12)
    assert few.losses == many.losses
    assert few.score == many.score  # which takes the statistics that forward passes leave
    assert [look for look in many.looks if look.step in [one.step for one in few.looks]] == few.looks


def test_the_first_look_is_at_equal_weights_and_errs_by_fp16s_rounding() -> None:
    (first, *_) = trained(net(), DEFAULT).looks
    assert first.step == 0
    assert 1e-5 < (first.rel_l2 or 0) < 5e-3
    assert first.elements == 16 * 32 + 32 + 32 * 4 + 4


def test_gradients_that_underflow_are_counted_and_scaling_saves_them() -> None:
    small = net(factor=1e-6)
    without, scaled = trained(small, UNSCALED), trained(small, DEFAULT)
    assert sum(look.flushed for look in without.looks) > 0.3 * sum(look.nonzero for look in without.looks)
    assert sum(look.flushed for look in scaled.looks) < 0.05 * sum(look.nonzero for look in scaled.looks)
    assert without.gradients is not None
    assert scaled.gradients is not None
    assert without.gradients.zeros > scaled.gradients.zeros
    assert (scaled.gradients.largest or 0) > 1e3 * (without.gradients.largest or 0)  # as stored, times the scale


def test_parameters_that_never_move_are_noted() -> None:
    found = trained(net(factor=1e-10), UNSCALED)
    assert any("4 of 4 parameters with a gradient did not move in any step" in note for note in found.notes)
    assert not trained(net(factor=1e-10), None).notes


def test_a_network_of_ordinary_gradients_loses_none() -> None:
    found = trained(net(), UNSCALED)
    assert sum(look.flushed for look in found.looks) < 0.01 * sum(look.nonzero for look in found.looks)
    assert (found.nonfinite, found.first_nonfinite, found.error, found.notes) == ({}, None, "", [])


def test_the_scale_comes_down_until_gradients_fit_and_grows_again() -> None:
    setting = ScalerSetting(name="own", init_scale=2.0**24, growth_interval=3)
    found = trained(net(), setting, steps=20)
    assert found.scales[0] == 2.0**24
    assert found.skipped[0] == 0
    first = next(step for step in range(20) if step not in found.skipped)
    assert found.scales[first] == 2.0 ** (24 - first)
    assert found.scales[first + 3] == 2 * found.scales[first]
    assert sum(found.nonfinite.values()) >= len(found.skipped)
    assert found.first_nonfinite is not None
    assert (found.first_nonfinite.phase, found.first_nonfinite.step) == ("backward", 0)
    assert found.looks[0].nonfinite > 0
    assert found.looks[0].rel_l2 is None


def test_a_loss_that_overflows_in_the_forward_pass_collapses_the_scale() -> None:
    huge = net(Function(lambda x: x * 3e4 * 3))
    found = trained(huge, DEFAULT, steps=100)
    assert len(found.losses) == HOPELESS
    assert set(found.losses) == {None}
    assert found.skipped == list(range(HOPELESS))
    assert found.first_nonfinite is not None
    assert found.first_nonfinite.phase == "forward"
    assert any("all from step 1 on, as the loss itself is not finite" in note for note in found.notes)
    assert None not in trained(huge, None).losses


def test_gradients_that_overflow_at_every_scale_end_a_training() -> None:
    found = trained(net(factor=1e12), DEFAULT, steps=100)
    assert None not in found.losses
    assert found.scales[-1] == LOWEST_SCALE
    assert any("all from step 1 on and lowered its scale" in note for note in found.notes)


def test_without_a_scaler_a_training_ends_where_the_weights_are_not_finite() -> None:
    found = trained(net(factor=1e8), UNSCALED, steps=50)
    assert len(found.losses) == 1
    assert found.notes == ["ended after 1 of 50 steps: weights are not finite"]


def test_a_single_overflow_goes_on_where_the_weights_stay_finite() -> None:
    clipped = net(factor=1e8, optimizer=lambda parameters: Zeroing(parameters, lr=1e-2))
    assert len(trained(clipped, UNSCALED).losses) == 12


class Zeroing(torch.optim.SGD):
    """Takes no step with gradients that are not finite."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        return super().step(closure)


def test_what_fp16_raises_is_recorded_and_what_fp32_raises_is_raised() -> None:
    def refuse(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is torch.float16:
            raise RuntimeError("no half here\nat all")
        return x

    found = trained(net(Function(refuse)), DEFAULT)
    assert (found.error, found.losses) == ("RuntimeError: no half here", [])
    assert trained(net(Function(refuse)), None).error == ""

    def never(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("never")

    with pytest.raises(RuntimeError, match="never"):
        run_scaler(net(Function(never)), CASE, Cpu(), None, 2)


def test_memory_that_runs_out_is_raised() -> None:
    def full(x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        run_scaler(net(Function(full)), CASE, Cpu(), DEFAULT, 2)


def test_dropout_is_off_and_the_workload_stays_as_it_was() -> None:
    workload = net(nn.Dropout(0.5), nn.BatchNorm1d(32))
    before = {name: tensor.clone() for name, tensor in workload.module.state_dict().items()}
    found = trained(workload, DEFAULT)
    assert NO_DROPOUT in found.notes
    assert all(torch.equal(before[name], tensor) for name, tensor in workload.module.state_dict().items())
    assert found == trained(workload, DEFAULT)


def test_held_out_data_is_scored_at_the_end() -> None:
    workload = net()
    held = dataclasses.replace(workload, held_out=(workload.inputs[0], workload.targets[0]))
    score = trained(held, DEFAULT).score
    assert score is not None
    assert (score.step, score.decisions) == (12, 8)
    assert trained(workload, DEFAULT).score is None


def test_one_step_is_enough() -> None:
    assert len(trained(net(), DEFAULT, steps=1).looks) == 1


def test_sparse_gradients_are_looked_at_too() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(10, 16, sparse=True), nn.Flatten(), nn.Linear(64, 4))
    workload = Workload(
        module=module, inputs=torch.randint(0, 10, (8, 4)), targets=torch.randint(0, 4, (8,)),
        loss=nn.functional.cross_entropy,
    )  # fmt: skip
    found = trained(workload, DEFAULT, steps=3)
    assert (found.error, found.looks[0].elements) == ("", 160 + 260)

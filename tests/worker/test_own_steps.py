"""Workloads that give an iteration of their own: what is measured of it, and what cannot be."""

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
import torch
from msgspec import structs

from ampbench.core.precisions import PRECISIONS
from ampbench.core.recipes import no_own_step
from ampbench.errors import WorkloadError
from ampbench.records.case import Case, WorkloadSource
from ampbench.records.measured import Divergence
from ampbench.worker.divergence import References, measure_divergence
from ampbench.worker.machine import Cpu
from ampbench.worker.sources import describe_workload
from ampbench.worker.step import build_training
from ampbench.workload import Workload
from tests.watching.loops import take_step

MakeCase = Callable[..., Case]


def usual(network: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
    inputs, targets = batch
    optimizer.zero_grad(set_to_none=True)
    output = network(inputs)
    loss = torch.nn.functional.cross_entropy(output, targets)
    take_step(loss, optimizer, scaler)
    return output, loss


def measured(workload: Workload, case: Case) -> Divergence:
    return measure_divergence(workload, case, Cpu(), References())


@pytest.mark.parametrize("precision", ["fp32", "bf16_pure", "fp16_autocast"])
def test_the_usual_step_written_by_hand_gives_the_numbers_of_the_usual_step(
    precision: str, classifier: Workload, case: MakeCase
) -> None:
    own = dataclasses.replace(classifier, step=usual, loss=None)
    found, expected = (measured(one, case(precision, "training", recipe="clip=0.1")) for one in (own, classifier))
    same = attrgetter(
        "loss", "reference.loss", "output.rel_l2", "scaler_scale", "skipped_steps", "param_rel_l2",
        "output.argmax_decisions",
    )  # fmt: skip
    # the step clips the gradients that it leaves
    assert same(found) == same(expected)
    assert found.reference.grad_norm == pytest.approx(0.1, rel=1e-4)
    assert found.update is not None
    assert expected.update is not None
    assert found.update.kept == pytest.approx(expected.update.kept, rel=1e-4)
    assert found.update.steps == expected.update.steps == 20


@pytest.mark.parametrize("optimizer", ["adamw:fused", "adamw:foreach"])
def test_the_gradients_of_a_step_that_scales_its_loss_are_those_of_one_that_does_not(
    optimizer: str, classifier: Workload, case: MakeCase
) -> None:
    own = dataclasses.replace(classifier, step=usual, loss=None)
    found = measured(own, case("fp16_autocast", "training", recipe=f"optimizer={optimizer},lr=0.001"))
    assert found.gradient.rel_l2 is not None
    assert found.gradient.rel_l2 < 0.01
    unscaled = measured(own, case("fp16_autocast", "training", recipe=f"optimizer={optimizer},lr=0.001", scaler=False))
    assert found.reference.grad_norm == unscaled.reference.grad_norm


def test_what_a_step_holds_moves_with_the_network(classifier: Workload, case: MakeCase) -> None:
    teacher = torch.nn.Linear(16, 4)

    def distilled(network: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        assert teacher.weight.dtype is batch[0].dtype
        loss = (network(batch[0]) - teacher(batch[0])).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    found = measured(dataclasses.replace(classifier, step=distilled), case("bf16_pure", "training"))
    assert found.reference.dtype == "fp64"


def test_a_step_that_cannot_be_taken_apart_says_so(classifier: Workload, case: MakeCase) -> None:
    own = dataclasses.replace(classifier, step=usual, loss=None)
    step = build_training(own, case("fp32", "training"), Cpu())
    with pytest.raises(WorkloadError, match="cannot be split"):
        step.forward_and_backward()
    with pytest.raises(WorkloadError, match="this measurement needs a loss"):
        step.network.forward_and_loss()
    said = "bf16_master has others beside them"
    assert said in no_own_step(PRECISIONS["bf16_master"])
    with pytest.raises(WorkloadError, match=said):
        build_training(own, case("bf16_master", "training"), Cpu())
    wrong = dataclasses.replace(classifier, step=lambda *_: "done")
    with pytest.raises(WorkloadError, match=r"step returned str; expected the loss, or \(output, loss\)"):
        build_training(wrong, case("fp32", "training"), Cpu()).run()


def test_a_step_of_other_arguments_is_refused_and_one_of_four_trains_without_a_loss(tmp_path: Any) -> None:
    text = """
import torch, ampbench

def take(network, batch, optimizer, scaler):
    optimizer.zero_grad()
    loss = network(batch).sum()
    loss.backward()
    optimizer.step()
    return loss

def make():
    return ampbench.Workload(module=torch.nn.Linear(2, 2), inputs=torch.ones(1, 2), step=take)

def wrong():
    return ampbench.Workload(module=torch.nn.Linear(2, 2), inputs=torch.ones(1, 2), step=lambda network, batch: None)
"""
    path = tmp_path / "own_step_model.py"
    path.write_text(text)
    source = WorkloadSource(name="m", family="user", module=str(path), function="make", builtin=False)
    found = describe_workload(source, {}, 0)
    assert (found.has_loss, found.own_step) == (True, True)
    with pytest.raises(WorkloadError, match="step is function of 2 arguments; expected"):
        describe_workload(structs.replace(source, function="wrong"), {}, 0)

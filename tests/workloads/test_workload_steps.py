"""Every workload runs and learns in every precision, and its fp64 reference is fp64 throughout."""

import copy
import math
from functools import cache

import pytest
import torch
from built_workloads import HEAVY, HERE, batch, build, cast, forward, leaves, step
from torch.utils._python_dispatch import TorchDispatchMode

from ampbench.core.precisions import PRECISIONS

MEASURED = [row.name for row in PRECISIONS.values() if row.fp32_products == "ieee" and not row.same_ops]
EACH = [pytest.param(name, marks=pytest.mark.slow) if name in HEAVY else name for name in HERE]


@pytest.mark.parametrize("name", EACH)
def test_every_parameter_gets_a_finite_gradient_that_is_not_zero(name):
    module, _, loss = step(build(name), "fp32")
    assert math.isfinite(loss.item())
    for label, parameter in module.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, label
            assert torch.isfinite(parameter.grad.to_dense()).all(), label
            assert parameter.grad.to_dense().abs().max() > 1e-12, label


@cache
def fp64_loss(name: str) -> float:
    workload = build(name)
    with torch.no_grad():
        reference = copy.deepcopy(workload.module).double().train()
        inputs, targets = batch(workload)
        return workload.loss(forward(reference, cast(inputs, torch.float64)), targets).item()


@pytest.mark.parametrize("precision", MEASURED)
@pytest.mark.parametrize("name", EACH)
def test_a_training_step_runs_and_its_loss_is_near_fp64(name, precision):
    module, output, loss = step(build(name), precision)
    assert all(torch.isfinite(leaf).all() for leaf in leaves(output))
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    assert all(torch.isfinite(parameter.grad.to_dense()).all() for parameter in trained)
    assert loss.item() == pytest.approx(fp64_loss(name), rel=1e-5 if precision == "fp32" else 0.2)


class LowerDtypes(TorchDispatchMode):
    """Collects the operations that give floating results of another dtype than fp64."""

    def __init__(self):
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if any(leaf.is_floating_point() and leaf.dtype != torch.float64 for leaf in leaves(result)):
            self.seen.add(str(func))
        return result


@pytest.mark.parametrize("name", EACH)
def test_the_reference_is_fp64_throughout(name):
    workload = build(name)
    module = copy.deepcopy(workload.module).double().train()
    inputs, targets = (cast(tree, torch.float64) for tree in batch(workload))
    with LowerDtypes() as lower:
        output = forward(module, inputs)
        workload.loss(output, targets).backward()
    assert not lower.seen


@pytest.mark.parametrize("name", EACH)
def test_twenty_steps_lower_the_loss(name):
    workload = build(name)
    module = copy.deepcopy(workload.module).train()
    optimizer = workload.optimizer(module.parameters())
    losses = []
    inputs, targets = batch(workload)
    for _ in range(20):
        optimizer.zero_grad()
        loss = workload.loss(forward(module, inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.skipif("roi_head" not in HERE, reason="needs torchvision")
def test_boxes_reach_roi_align_in_fp32_under_autocast(dtype):
    workload = build("roi_head")
    given: list[torch.Tensor] = []
    workload.module.align.register_forward_pre_hook(lambda module, inputs: given.extend([inputs[0], *inputs[1]]))
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        forward(workload.module, workload.inputs)
    assert {tensor.dtype for tensor in given} == {torch.float32}
    assert torch.equal(torch.stack(given[1:]), workload.inputs[1])

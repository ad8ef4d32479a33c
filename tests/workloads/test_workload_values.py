"""Built-in workloads: what is drawn, the size of every module's output, and that they learn in every precision."""

import copy
import json
from functools import cache

import pytest
import torch
from built_workloads import (
    DIGESTS,
    HEAVY,
    HERE,
    batch,
    build,
    cast,
    digests,
    forward,
    leaves,
    rms_by_module,
    step,
)
from torch.utils._python_dispatch import TorchDispatchMode

from ampbench.worker.data import named_tensors
from ampbench.worker.sources import items_per_step
from ampbench.workloads.index import WORKLOADS

EACH = [pytest.param(name, marks=pytest.mark.slow) if name in HEAVY else name for name in HERE]
RECORDED = json.loads(DIGESTS.read_text())


@pytest.mark.parametrize("preset", ["tiny", "small"])
@pytest.mark.parametrize("name", HERE)
def test_weights_inputs_and_targets_have_the_recorded_digests(name, preset):
    recorded = RECORDED[preset].get(f"{name} v{WORKLOADS[name].version}")
    assert recorded, "new, or of a new version: `python tests/workloads/built_workloads.py` records what is drawn"
    assert digests(name, preset) == recorded


@pytest.mark.parametrize("name", EACH)
def test_a_batch_is_a_prefix_of_a_larger_one(name):
    one, three = build(name, batch_size=1), build(name, batch_size=3)
    for few, many in zip(leaves(batch(one)), leaves(batch(three)), strict=True):
        assert len(few) == 1
        assert torch.equal(few, many[:1])
    for (label, few), (_, many) in zip(named_tensors(one.module), named_tensors(three.module), strict=True):
        assert torch.equal(few, many), label


@pytest.mark.parametrize("name", EACH)
def test_another_seed_gives_other_values_everywhere(name):
    first, second = build(name, seed=0), build(name, seed=1)
    for one, other in zip(leaves(batch(first)[0]), leaves(batch(second)[0]), strict=True):
        assert not torch.equal(one, other)
    for (label, one), (_, other) in zip(named_tensors(first.module), named_tensors(second.module), strict=True):
        if not label.endswith(("num_batches_tracked", "cosine", "sine", "positions", "points")):
            assert not torch.equal(one, other), label


@pytest.mark.parametrize("name", EACH)
def test_a_workload_is_fp32_on_the_cpu_and_says_its_version_and_items(name):
    workload = build(name, batch_size=3)
    trained = {parameter.dtype for parameter in workload.module.parameters() if parameter.requires_grad}
    assert trained == {torch.float32}
    assert {tensor.device.type for _, tensor in named_tensors(workload.module)} == {"cpu"}
    assert workload.version == WORKLOADS[name].version
    assert items_per_step(workload) in (3, 3 * WORKLOADS[name].preset("tiny").get("sequence_length", 1))


@pytest.mark.skipif("roi_head" not in HERE, reason="needs torchvision")
def test_boxes_lie_inside_the_image_and_go_beyond_what_half_precision_counts_to():
    large = WORKLOADS["roi_head"].preset("large")
    assert large["image"] > 2048
    _, boxes = build("roi_head", "small", image=large["image"], regions=large["regions"], width=8).inputs
    assert boxes.min() >= 0
    assert 2048 < boxes.max() <= large["image"]
    assert (boxes[..., 2:] > boxes[..., :2]).all()
    assert not torch.equal(boxes.half().float(), boxes)


SMALLEST, LARGEST = 0.05, 20.0


def check(name: str, preset: str, seed: int, **overrides: int) -> None:
    workload = build(name, preset, seed, **overrides)
    for train in (False, True):
        outside = {
            module: rms
            for module, rms in rms_by_module(workload, train=train).items()
            if not SMALLEST <= rms <= LARGEST
        }
        assert not outside, f"train={train}"


@pytest.mark.parametrize(("preset", "seed"), [("tiny", 0), ("tiny", 1), ("small", 0)])
@pytest.mark.parametrize("name", HERE)
def test_every_output_of_every_module_keeps_its_size(name, preset, seed):
    check(name, preset, seed)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("mlp", {"depth": 32}),
        ("transformer_encoder", {"depth": 24}),
        ("decoder_lm", {"depth": 24}),
    ],
)
def test_outputs_keep_their_size_in_networks_deeper_than_any_preset(name, overrides):
    check(name, "tiny", 0, **overrides)


MEASURED = ("fp32", "bf16_autocast", "fp16_pure")


@cache
def fp64_loss(name: str) -> float:
    workload = build(name)
    with torch.no_grad():
        reference = copy.deepcopy(workload.module).double().train()
        inputs, targets = batch(workload)
        return workload.loss(forward(reference, cast(inputs, torch.float64)), targets).item()


@pytest.mark.parametrize("precision", MEASURED)
@pytest.mark.parametrize("name", EACH)
def test_a_training_step_reaches_every_parameter_and_its_loss_is_near_fp64(name, precision):
    module, output, loss = step(build(name), precision)
    assert all(torch.isfinite(leaf).all() for leaf in leaves(output))
    for label, parameter in module.named_parameters():
        if parameter.requires_grad:
            largest = parameter.grad.to_dense().abs().max()
            assert torch.isfinite(largest), label
            assert largest > 1e-12 or precision != "fp32", label
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

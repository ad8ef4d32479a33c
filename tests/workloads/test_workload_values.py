"""What is drawn: the same on every machine and torch version, another for every seed, a batch a prefix of a larger."""

import json

import pytest
import torch
from built_workloads import DIGESTS, HEAVY, HERE, batch, build, digests, leaves

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

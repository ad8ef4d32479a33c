"""The speech encoder's loss: the probability of every alignment, in at least fp32 whatever the network runs in."""

import itertools
import math

import pytest
import torch
from built_workloads import build, step


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_loss_is_that_of_all_alignments_with_class_0_as_the_blank(dtype):
    loss = build("speech_encoder").loss
    logits = torch.tensor([[[0.5, 1.0, -1.0], [2.0, -0.5, 0.25], [0.0, 0.75, 1.5], [-1.0, 0.5, 1.0]]], dtype=dtype)
    wanted = (1, 2)
    probabilities = logits[0].double().softmax(-1)
    total = 0.0
    for path in itertools.product(range(3), repeat=4):
        collapsed = [symbol for symbol, _ in itertools.groupby(path)]
        if tuple(symbol for symbol in collapsed if symbol) == wanted:
            total += math.prod(probabilities[frame, symbol].item() for frame, symbol in enumerate(path))
    found = loss(logits, torch.tensor([wanted]))
    assert found.item() == pytest.approx(-math.log(total) / len(wanted), rel=1e-5)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("precision", ["bf16_autocast", "fp16_autocast", "bf16_pure", "fp16_pure"])
def test_targets_can_be_aligned_and_none_is_the_blank(precision):
    workload = build("speech_encoder")
    assert workload.targets.min() >= 1
    _, logits, loss = step(workload, precision)
    assert logits.shape[1] > 2 * workload.targets.shape[1], "room for a blank between any two"
    assert math.isfinite(loss.item())
    assert loss.dtype == torch.float32

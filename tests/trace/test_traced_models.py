"""Whole networks: traced results are those of the untraced program, and the count that of a plain dispatch log."""

import copy

import pytest
import torch
import torch.nn.functional as F

from ampbench.trace.ledger import trace_casts
from tests.traced_programs import CastLog, autocast

models = pytest.importorskip("torchvision.models")

SLOW = ["convnext_tiny", "swin_t"]
NAMES = ["resnet18", "shufflenet_v2_x0_5", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def build(name):
    torch.manual_seed(0)
    return models.get_model(name, weights=None), torch.randn(2, 3, 64, 64)


def training(model, x):
    torch.manual_seed(1)  # dropout
    with autocast():
        loss = F.cross_entropy(model(x), torch.tensor([1, 2]))
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters()), *model.buffers()]


def inference(model, x):
    with autocast():
        return [model(x)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("phase", ["training", "no_grad", "inference_mode"])
def test_a_network_traces_bit_identically_and_with_the_log_s_number_of_casts(name, phase):
    model, x = build(name)
    step = training if phase == "training" else inference
    model.train(phase == "training")
    with getattr(torch, phase)() if phase != "training" else torch.enable_grad():
        untraced = step(copy.deepcopy(model), x)
        with CastLog() as log:
            step(copy.deepcopy(model), x)
        again = copy.deepcopy(model)
        with trace_casts(again) as ledger:
            traced = step(again, x)
    assert all(torch.equal(left, right) for left, right in zip(untraced, traced, strict=True))
    assert len(ledger.casts) == log.casts > 0
    names = {name for name, _ in again.named_modules()}
    assert {cast.module for cast in ledger.casts} <= names
    weights = {name for name, _ in again.named_parameters()}
    assert {cast.name for cast in ledger.casts if cast.what == "weight"} <= weights
    assert {cast.origin for cast in ledger.casts if cast.phase == "forward"} == {"autocast"}
    # A product of fp32 and bf16 is promoted without a cast, but its bf16 factor's gradient is cast.
    assert {cast.origin for cast in ledger.casts} <= {"autocast", "internal"}
    if phase == "training":
        assert {cast.what for cast in ledger.casts if cast.phase == "backward"} == {"gradient"}

"""Language models as they are served and fine-tuned, against plainer computations."""

import copy

import pytest
import torch
from built_workloads import build

from ampbench.worker.machine import Cpu
from ampbench.worker.network import build_network
from ampbench.worker.step import InferenceStep, build_step
from ampbench.workloads.sequence import Decode, rotate
from tests.worker.conftest import make_case

SIZES = {"depth": 2, "width": 32, "heads": 2, "vocabulary": 64, "sequence_length": 12}


@torch.no_grad()
def test_decoding_goes_on_as_the_whole_text_does_at_once() -> None:
    workload = build("decoder_lm", sequence_length=12)
    whole, tokens = copy.deepcopy(workload.module).double().eval(), workload.inputs
    step = Decode(SIZES).double().eval()
    step.load_state_dict(whole.state_dict())
    step.cosine, step.sine = whole.cosine, whole.sine
    known: list[torch.Tensor] = []
    for block in whole.blocks:
        block.attention.query_key_value.register_forward_hook(lambda *seen: known.append(seen[2]))
    expected = whole(tokens)
    heads = [part[:, :-1].view(2, 11, 3, 2, 16).permute(2, 0, 3, 1, 4) for part in known]
    keys = torch.stack([rotate(key, whole.cosine, whole.sine) for _, key, _ in heads], dim=1)
    values = torch.stack([value for *_, value in heads], dim=1)
    assert torch.allclose(step(tokens[:, -1:], keys, values), expected[:, -1])


@pytest.mark.parametrize("precision", ["fp32", "bf16_autocast", "fp16_pure"])
def test_a_step_of_decoding_leaves_its_cache_as_it_was(precision: str) -> None:
    step = build_step(build("decode"), make_case(precision, phase="inference"), Cpu())
    assert isinstance(step, InferenceStep)
    with step.mode():
        first, second = step.run(), step.run()
    assert torch.equal(first, second)
    assert step.changed() == []
    assert step.data.batches[0][1].shape[-2] == 8


def test_autocast_computes_keys_in_the_dtype_that_the_cache_is_given_in() -> None:
    network = build_network(build("decode"), make_case("bf16_autocast", phase="inference"), Cpu())
    projected: list[torch.Tensor] = []
    network.module.blocks[0].attention.query_key_value.register_forward_hook(lambda *seen: projected.append(seen[2]))
    with network.mode(), network.autocast():
        network.module(*network.data.batches[0])
    _, keys, values = network.data.batches[0]
    assert {keys.dtype, values.dtype} == {projected[0].dtype} == {torch.bfloat16}

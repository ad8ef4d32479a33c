"""Language models as they are served and fine-tuned, and a step of diffusion, against plainer computations."""

import copy
import math

import pytest
import torch
from built_workloads import build

from ampbench.core.precisions import FP64
from ampbench.worker.machine import Cpu
from ampbench.worker.network import build_network
from ampbench.worker.step import InferenceStep, TrainingStep, build_step
from ampbench.workload import Workload
from ampbench.workloads.sequence import ADAPTER_SCALE, Decode, Decoder, LowRank, Timesteps
from tests.worker.conftest import make_case

SIZES = {"depth": 2, "width": 32, "heads": 2, "vocabulary": 64, "sequence_length": 12}


def double(workload: Workload) -> torch.nn.Module:
    return copy.deepcopy(workload.module).double().eval()


@torch.no_grad()
def test_prefill_and_decoding_go_on_as_the_whole_text_does_at_once() -> None:
    made = build("prefill", sequence_length=12)
    prefill, tokens = double(made), made.inputs
    whole = Decoder(SIZES).double().eval()
    step = Decode(SIZES).double().eval()
    for other in (whole, step):
        other.load_state_dict(prefill.state_dict())
        other.cosine, other.sine = prefill.cosine, prefill.sine
    expected = whole(tokens)
    assert torch.allclose(prefill(tokens)[0], expected[:, -1])
    logits, cache = prefill(tokens[:, :-1])
    assert torch.allclose(logits, expected[:, -2])
    keys, values = (torch.stack(part, dim=1) for part in zip(*cache, strict=True))
    assert keys.shape == (2, 2, 2, 11, 16)
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
    with network.mode():
        network.forward_alone(network.data.batches[0])
    _, keys, values = network.data.batches[0]
    assert {keys.dtype, values.dtype} == {projected[0].dtype} == {torch.bfloat16}


@pytest.mark.parametrize("precision", ["fp32", "bf16_autocast", "fp16_autocast"])
def test_adapters_are_trained_in_fp32_and_what_they_adapt_stays_in_bf16(precision: str) -> None:
    workload = build("lora")
    step = build_step(workload, make_case(precision, phase="training"), Cpu())
    assert isinstance(step, TrainingStep)
    step.settle_scaler()
    before = {name: one.detach().clone() for name, one in step.module.named_parameters()}
    step.run()
    after = dict(step.module.named_parameters())
    adapters = {name for name in after if name.endswith(("lower", "upper"))}
    layers = {name for name, module in step.module.named_modules() if isinstance(module, LowRank)}
    assert len(layers) == 2 * 5
    assert {after[f"{name}.weight"].dtype for name in layers} == {torch.bfloat16}
    assert {after[name].dtype for name in adapters} == {torch.float32}
    assert {name for name in after if not torch.equal(before[name], after[name])} == adapters
    assert len(step.optimizer.state) == len(adapters)


@torch.no_grad()
@pytest.mark.parametrize("storage", [torch.float32, torch.float64])
def test_an_adapted_layer_is_its_own_and_a_product_of_low_rank(storage: torch.dtype) -> None:
    layer = LowRank(6, 5, 2)
    for parameter in layer.parameters():
        parameter.normal_()
    x = torch.randn(3, 6, dtype=storage)
    layer.lower.data, layer.upper.data = layer.lower.to(storage), layer.upper.to(storage)
    whole = layer.weight.to(storage) + ADAPTER_SCALE * layer.upper @ layer.lower
    assert torch.allclose(layer(x), x @ whole.T)


def test_the_reference_of_adapters_has_the_weights_that_are_kept_in_half() -> None:
    workload = build("lora")
    exact = build_network(workload, make_case("fp32", phase="training"), Cpu(), precision=FP64).module
    for name, parameter in exact.named_parameters():
        assert parameter.dtype is torch.float64
        assert torch.equal(parameter, workload.module.get_parameter(name).double())


def test_latents_and_velocity_lead_back_to_image_and_noise():
    workload = build("diffusion_transformer", batch_size=64)
    latents, timesteps, _ = workload.inputs
    share = timesteps.double().view(-1, 1, 1, 1) / 1000
    image, noise = latents - share * workload.targets, latents + (1 - share) * workload.targets
    for whole in (16 * image, 16 * noise):
        assert (whole - whole.round()).abs().max() < 1e-4
        assert whole.round().std() == pytest.approx(64 / math.sqrt(12), rel=0.02)
    assert timesteps.min() >= 1
    assert timesteps.max() <= 1000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_no_half_precision_loses_the_velocity(dtype):
    targets = build("diffusion_transformer").targets
    assert torch.equal(targets.to(dtype).float(), targets)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_late_timesteps_are_told_apart_in_half_precision(dtype):
    module = Timesteps(64, 32)
    for layer in (module.up, module.down):
        torch.nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
    timesteps = torch.tensor([996, 997, 998, 999])
    with torch.no_grad():
        exact = copy.deepcopy(module).double()(timesteps)
        half = copy.deepcopy(module).to(dtype)(timesteps)
    apart = (exact[1:] - exact[:-1]).norm(dim=1)
    assert half.dtype == dtype
    assert ((half.double() - exact).norm(dim=1)[1:] < apart / 4).all()

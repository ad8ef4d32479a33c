"""Precisions below 16 bits: emulated layers, their gradients, what is kept higher, and whole runs with verdicts."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import ampbench
from ampbench.cli.main import main
from ampbench.core.precisions import COMPUTES, PRECISIONS
from ampbench.errors import UnknownNameError, UsageError
from ampbench.trace.emulated import emulate, kept_by
from ampbench.trace.errors import watch_errors
from ampbench.trace.formats import quantise
from ampbench.worker.divergence import References
from ampbench.worker.machine import Cpu
from ampbench.worker.step import build_step
from ampbench.workload import Workload
from tests.worker.conftest import diverge, make_case

FORMATS = ["float8", "float8_row", "mxfp8", "nvfp4"]


def rows(tensor: torch.Tensor, fmt: str, channel: int = 0) -> torch.Tensor:
    """Return a matrix rounded along its other dimension."""
    return quantise(tensor, fmt, 1 - channel)


@pytest.mark.parametrize("name", FORMATS)
def test_a_linear_layers_three_products_are_those_of_rounded_factors(name: str) -> None:
    torch.manual_seed(0)
    factors = COMPUTES[PRECISIONS[name].compute]
    layer, inputs = nn.Linear(48, 40), torch.randn(64, 48)
    gradient = torch.randn(64, 40).bfloat16().float()
    network = nn.Sequential(copy.deepcopy(layer))
    emulate(network, PRECISIONS[name])
    given = inputs.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = network(given)
    output.backward(gradient.bfloat16())
    low, weights, bias = inputs.bfloat16().float(), layer.weight.detach(), layer.bias.detach()
    wanted = rows(low, factors.inputs) @ rows(weights, factors.weights).T + bias.bfloat16().float()
    assert output.dtype is torch.bfloat16
    assert torch.equal(output, wanted.bfloat16())
    of_inputs = rows(gradient, factors.gradients) @ rows(weights, factors.weights, 1)
    of_weights = rows(gradient, factors.gradients, 1).T @ rows(low, factors.inputs, 1)
    assert torch.equal(given.grad, of_inputs.bfloat16().float())
    assert torch.equal(network[0].weight.grad, of_weights.bfloat16().float())
    assert torch.equal(network[0].bias.grad, gradient.sum(0).bfloat16().float())


@pytest.mark.parametrize("name", FORMATS)
def test_a_convolution_of_one_pixel_is_a_linear_layer(name: str) -> None:
    torch.manual_seed(1)
    convolution, images = nn.Conv2d(32, 16, 1), torch.randn(2, 32, 4, 4)
    linear = nn.Linear(32, 16)
    linear.weight.data, linear.bias.data = convolution.weight.data[..., 0, 0].clone(), convolution.bias.data.clone()
    results = []
    for layer, inputs in ((convolution, images), (linear, images.movedim(1, -1))):
        network = nn.Sequential(layer)
        emulate(network, PRECISIONS[name])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = network(inputs)
        output.float().square().sum().backward()
        results.append((output, layer.weight.grad.flatten()))
    (first, first_gradient), (second, second_gradient) = results
    torch.testing.assert_close(first.movedim(1, -1), second, rtol=2**-7, atol=0)
    torch.testing.assert_close(first_gradient, second_gradient, rtol=2**-6, atol=2**-6)


def test_a_convolutions_gradients_are_those_of_autograd_where_nothing_is_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ampbench.trace.emulated.quantise", lambda tensor, *_: tensor)
    torch.manual_seed(2)
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(128, 4)
    )
    images = torch.randn(2, 3, 8, 8)
    gradients = []
    for network in (layers, copy.deepcopy(layers)):
        if network is not layers:
            emulate(network, PRECISIONS["mxfp8"])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=network is not layers):
            network(images).float().square().sum().backward()
        gradients.append([parameter.grad for parameter in network.parameters()])
    for exact, low in zip(*gradients, strict=True):
        assert (low - exact).norm() <= 0.02 * exact.norm()


class Small(nn.Module):
    """A network of two convolutions, one in groups, and a head of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.head = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.depthwise(self.stem(images).relu()).flatten(1))
        return output


@pytest.fixture
def images() -> Workload:
    torch.manual_seed(0)
    return Workload(
        module=Small(), inputs=torch.randn(8, 3, 8, 8), targets=torch.randint(0, 4, (8,)),
        loss=nn.functional.cross_entropy, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("keep", "emulated", "dtypes"),
    [
        ("", {"stem", "head.0", "head.2"}, {torch.bfloat16}),
        (",keep=head:bf16", {"stem"}, {torch.bfloat16}),
        (",keep=head.?:fp32", {"stem"}, {torch.float32}),
        (",keep=*.0:fp32,keep=stem:bf16", {"head.2"}, {torch.bfloat16}),
    ],
)
def test_kept_modules_are_not_rounded(
    keep: str, emulated: set[str], dtypes: set[torch.dtype], images: Workload
) -> None:
    step = build_step(images, make_case(f"params=bf16,compute=mxfp8{keep}", "training"), Cpu())
    rounded = {
        path
        for path, module in step.module.named_modules()
        if type(module.__dict__.get("forward")).__name__ == "_Forward"
        and hasattr(module.__dict__["forward"], "factors")
    }
    assert rounded == emulated
    assert {parameter.dtype for parameter in step.module.head[2].parameters()} == dtypes
    step.run()


def test_a_pattern_without_a_module_is_refused_and_so_is_a_network_without_a_product(images: Workload) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown submodule 'haed': did you mean head"):
        build_step(images, make_case("params=bf16,compute=mxfp8,keep=haed:fp32"), Cpu())
    with pytest.raises(UsageError, match="mxfp8 changes nothing: this network has no linear layer"):
        emulate(nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4)), PRECISIONS["mxfp8"])
    assert kept_by(PRECISIONS["params=bf16,keep=head.?:fp32"], images.module) == ["head.0", "head.1", "head.2"]


def test_keeping_every_layer_in_bf16_is_bf16_autocast(images: Workload) -> None:
    kept = "params=fp32,compute=nvfp4,keep=stem:bf16,keep=head:bf16"
    found = [diverge(images, make_case(name)) for name in ("bf16_autocast", kept)]
    assert found[0].output.rel_l2 == found[1].output.rel_l2


def test_errors_grow_as_formats_shrink_and_fp64_is_never_rounded(images: Workload) -> None:
    names = ["bf16_autocast", "float8_row", "nvfp4"]
    references = References()
    found = [diverge(images, make_case(name, "training"), references) for name in names]
    errors, gradients = [each.output.rel_l2 for each in found], [each.gradient.rel_l2 for each in found]
    assert errors[0] * 3 < errors[1] < errors[2] < 0.5
    assert gradients == sorted(gradients)
    assert all(each.update.kept > 0.7 for each in found)


def test_an_encoder_in_inference_runs_its_emulated_layers() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, batch_first=True)
    workload = Workload(module=layer, inputs=torch.randn(2, 8, 32))
    errors = [diverge(workload, make_case(name)).output.rel_l2 for name in ("bf16_pure", "params=bf16,compute=nvfp4")]
    assert errors[1] > 3 * errors[0]


def test_a_modules_own_error_is_that_of_its_format(images: Workload) -> None:
    found: dict[str, dict[str, float]] = {}
    for name in ("bf16_autocast", "nvfp4", "params=fp32,compute=nvfp4,keep=stem:fp32,keep=head.0:bf16"):
        with watch_errors(images.module, PRECISIONS[name]) as errors:
            images.module(images.inputs)
        found[name] = {row.module: row.own_rel_l2 for row in errors.modules if row.own_rel_l2}
    plain, low, kept = found.values()
    assert low["stem"] > 10 * plain["stem"]
    assert low["depthwise"] == plain["depthwise"]
    assert "stem" not in kept
    assert (kept["head.0"], kept["head.2"]) == (plain["head.0"], low["head.2"])


EMULATED = [name for name, row in PRECISIONS.items() if row.emulated]
TORCHAO = """
import torch
from ampbench import Precision


def by(config):
    def prepare(module, optimizer):
        from torchao import quantization

        quantization.quantize_(module, getattr(quantization, config)())
        return module

    return prepare


ao_int8 = Precision(name="ao_int8", storage="bfloat16", prepare=by("Int8WeightOnlyConfig"))
ao_float8 = Precision(name="ao_float8", storage="bfloat16", prepare=by("Float8WeightOnlyConfig"))


def make():
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    return network, torch.randn(16, 64)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "phase"), [("simple_conv", "inference"), ("decoder_lm", "training")])
def test_a_network_in_every_emulated_precision_has_errors_and_a_verdict_but_no_time(
    name: str, phase: str, tmp_path: Path
) -> None:
    words = ["run", name, "--preset", "tiny", "--phase", phase, "--precision", ",".join(["fp32", *EMULATED])]
    trains = ["--optimizer", "adamw:lr=1e-3"] if phase == "training" else []
    assert main([*words, *trains, "--rounds", "1", "--results", str(tmp_path)]) == 0
    frame = ampbench.load(tmp_path).set_index("precision")
    measured = frame.loc[EMULATED].dropna(subset="output_rel_l2")
    missing = {"inference": {"bf16_stochastic", "bf16_kahan"}, "training": {"int8_weights"}}[phase]
    assert set(EMULATED) - set(measured.index) == missing
    assert measured["seconds_median"].isna().all()
    assert measured["output_rel_l2"].between(1e-4, 1).all()
    assert set(measured["verdict"]) <= {"ok", "refused"}
    assert measured["verdict_code"].notna().all()
    assert frame.loc["nvfp4", "output_rel_l2"] > frame.loc["float8_row", "output_rel_l2"]


@pytest.mark.slow
def test_torchaos_own_modules_are_measured_and_int8_errs_as_the_emulated_one(tmp_path: Path) -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    (tmp_path / "own.py").write_text(TORCHAO)
    names = "fp32,ao_int8,ao_float8,int8_weights"
    words = ["run", f"{tmp_path}/own.py:make", "--phase", "inference", "--precision", names, "--rounds", "1"]
    subprocess.run([sys.executable, "-m", "ampbench", *words, "--results", str(tmp_path)], check=True)
    frame = ampbench.load(tmp_path).set_index("precision")
    assert frame.loc[["ao_int8", "ao_float8"], "seconds_median"].gt(0).all()
    assert frame.loc["ao_int8", "output_rel_l2"] == pytest.approx(frame.loc["int8_weights", "output_rel_l2"], rel=0.5)
    assert frame.loc["ao_float8", "output_rel_l2"] > frame.loc["ao_int8", "output_rel_l2"]

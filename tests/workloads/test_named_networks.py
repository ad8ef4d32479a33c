"""Networks by name: what names mean, what is made of a library's network, and files of weights."""

import functools
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import nn
from torch.nn import functional as F

from ampbench.cells import plan_cells
from ampbench.errors import UnknownNameError, UsageError, WorkloadError
from ampbench.records.case import WorkloadSource
from ampbench.records.run import Selection
from ampbench.worker.data import Generator, weights_digest
from ampbench.worker.divergence import References, measure_divergence
from ampbench.worker.machine import Cpu
from ampbench.worker.sources import build_workload, describe_workload
from ampbench.workload import Workload
from ampbench.workloads import named
from ampbench.workloads.index import LIBRARIES, library_source

pytest.importorskip("torchvision")


def source(name: str) -> WorkloadSource:
    library, _, network = name.partition(":")
    return library_source(LIBRARIES[library], network)


def parameters(name: str, preset: str = "tiny", **given: Any) -> dict[str, Any]:
    return describe_workload(source(name), given, 0, preset).parameters


def built(name: str, seed: int = 0, **given: Any) -> Workload:
    return build_workload(source(name), parameters(name, **given), seed)


def scores(workload: Workload, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    with torch.no_grad():
        found = workload.module.eval().to(dtype)(workload.inputs.to(dtype))
    return found.double()


class Made(nn.Module):
    """A network with all that libraries begin switched off."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.last = nn.BatchNorm2d(8)
        self.gamma = nn.Parameter(torch.full((8,), 1e-6))
        self.logit_scale = nn.Parameter(torch.tensor([2.0]))
        self.mask_token = nn.Parameter(torch.zeros(8))
        self.drop = nn.Dropout(0.5)
        self.drop_path = 0.1
        self.head = nn.Linear(8, 4)
        for zero in (self.last.weight, self.head.weight, self.head.bias):
            nn.init.zeros_(zero)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seen = F.relu(self.norm(self.stem(images)))
        seen = seen + self.gamma[:, None, None] * self.last(seen)
        return self.head(self.drop(seen).mean((2, 3)))


def benign(inputs: torch.Tensor, key: str = "") -> Made:
    torch.manual_seed(0)
    module = Made()
    named.drop_nothing(module)
    named.make_benign(module, Generator("made", 1, {}, 0), lambda: inputs, key or str(id(module)))
    return module


IMAGES = torch.linspace(-2, 2, 2 * 3 * 8 * 8).sin().reshape(2, 3, 8, 8)


def test_what_a_library_begins_switched_off_is_on_and_the_rest_is_its_own() -> None:
    torch.manual_seed(0)
    own = Made()
    made = benign(IMAGES)
    assert made.gamma.tolist() == made.last.weight.tolist() == [named.SCALE] * 8
    assert float(made.head.weight.detach().std()) == pytest.approx(8**-0.5, rel=0.3)
    assert made.norm.bias.tolist() == made.last.bias.tolist() == [1.0] * 8
    for name in ("stem.weight", "norm.weight", "head.bias", "logit_scale", "mask_token"):
        assert torch.equal(made.get_parameter(name), own.get_parameter(name)), name
    assert (made.drop.p, made.drop_path) == (0.0, 0.0)
    assert made.training


def test_a_normalisation_runs_with_the_statistics_of_a_batch_to_eight_bits() -> None:
    made = benign(IMAGES)
    seen = made.stem(IMAGES).double().detach()
    mean, variance = seen.mean((0, 2, 3)), seen.var((0, 2, 3))
    assert made.norm.running_var.tolist() == pytest.approx(variance.tolist(), rel=2**-8)
    assert bool(((made.norm.running_mean - mean).abs() < variance.sqrt() * 2**-8).all())
    for held in (made.norm.running_mean, made.norm.running_var):
        fraction = torch.frexp(held).mantissa * 2**8
        assert torch.equal(fraction, fraction.round())
    assert (made.norm.momentum, int(made.norm.num_batches_tracked)) == (0.1, 0)
    assert all(tensor.dtype in (torch.float32, torch.int64) for tensor in made.state_dict().values())


def test_a_name_is_one_network_a_pattern_all_that_match() -> None:
    found = describe_workload(source("torchvision:resnet1*"), {}, 0)
    assert [(one.name, one.task) for one in found.networks] == [
        (name, "image classification") for name in ("resnet101", "resnet152", "resnet18")
    ]
    assert [one.name for one in describe_workload(source("torchvision:resnet18"), {}, 0).networks] == ["resnet18"]
    with pytest.raises(UnknownNameError, match="unknown network of torchvision 'resnet5': did you mean resnet50"):
        describe_workload(source("torchvision:resnet5"), {}, 0)
    with pytest.raises(UnknownNameError, match=r"'nosuch_\*': ampbench list workloads torchvision: lists them"):
        describe_workload(source("torchvision:nosuch_*"), {}, 0)


def test_a_preset_chooses_the_size_and_parameters_are_checked() -> None:
    assert parameters("torchvision:efficientnet_b1", "small") == {
        "weights": "random", "classes": 1000, "image": 240, "batch_size": 1,
    }  # fmt: skip
    assert parameters("torchvision:vit_b_16", image=48)["image"] == 48
    with pytest.raises(UnknownNameError, match="unknown parameter of torchvision:resnet18 'imag': did you mean image"):
        parameters("torchvision:resnet18", imag=3)
    with pytest.raises(UsageError, match=r"torchvision:resnet18\.image=0: must be from 1 to 8192"):
        parameters("torchvision:resnet18", image=0)


def test_a_network_is_the_same_whenever_it_is_made_and_another_by_another_seed() -> None:
    first, second, other = (built("torchvision:squeezenet1_1", seed) for seed in (0, 0, 1))
    assert weights_digest(first) == weights_digest(second) != weights_digest(other)
    assert torch.equal(first.inputs, second.inputs)
    assert not torch.equal(first.inputs, other.inputs)


def test_the_network_is_the_librarys_and_its_error_that_of_an_independent_computation() -> None:
    from torchvision.models import shufflenet_v2_x0_5

    workload = built("torchvision:shufflenet_v2_x0_5")
    exact = shufflenet_v2_x0_5(num_classes=10).double().eval()
    exact.load_state_dict(workload.module.state_dict())
    with torch.no_grad():
        expected = exact(workload.inputs.double())
    assert torch.equal(scores(workload), expected)
    norm = float(expected.norm() / expected.numel() ** 0.5)
    assert 0.01 < norm < 100
    assert float((scores(built("torchvision:shufflenet_v2_x0_5"), torch.float32) - expected).norm()) < 1e-5 * norm


def test_the_first_dense_prediction_and_detection_train_by_their_own_losses() -> None:
    workload = built("torchvision:lraspp_mobilenet_v3_large", batch_size=2)
    assert workload.targets.shape == (2, 64, 64)
    assert workload.loss(workload.module.train()(workload.inputs), workload.targets).item() > 0
    detector = built("torchvision:ssdlite320_mobilenet_v3_large")
    losses = detector.module.train()(*detector.inputs)
    assert detector.loss(losses).item() == pytest.approx(sum(loss.item() for loss in losses.values()), rel=1e-6)
    found = detector.module.eval()(*detector.inputs)
    assert [*found[0]] == ["boxes", "scores", "labels"]
    assert len(found[0]["scores"])
    assert [*detector.outputs(found)[0]] == ["scores"]


def test_a_timm_classifier_is_measured_at_the_size_asked_for_and_a_network_without_head_gives_features() -> None:
    pytest.importorskip("timm")
    vit = built("timm:vit_tiny_patch16_224")
    assert vit.inputs.shape == (1, 3, 64, 64)
    assert scores(vit).shape == (1, 10)
    given = parameters("timm:vit_small_patch14_dinov2", "small")
    assert given == {"weights": "random", "image": 518, "batch_size": 1}
    described = describe_workload(source("timm:vit_small_patch14_dinov2"), {}, 0, "tiny")
    assert (described.has_loss, described.networks[0].task) == (False, "features of images")
    tagged = describe_workload(source("timm:resnet18.a1_in1k"), {}, 0).networks
    assert [one.name for one in tagged] == ["resnet18.a1_in1k"]


@pytest.mark.parametrize(
    ("name", "task", "shape"),
    [
        ("bert", "masked language model", (1, 16, 512)),
        ("gpt2", "causal language model", (1, 16, 512)),
        ("t5", "encoder-decoder language model", (1, 16, 512)),
        ("GPT2ForSequenceClassification", "sequence classification", (1, 10)),
        ("ViTForImageClassification", "image classification", (1, 10)),
    ],
)
def test_a_type_or_an_architecture_of_transformers_has_the_loss_of_its_task(
    name: str, task: str, shape: tuple[int, ...]
) -> None:
    transformers = pytest.importorskip("transformers")
    workload = built(f"transformers:{name}", layers=1)
    assert describe_workload(source(f"transformers:{name}"), {}, 0).networks[0].task == task
    module = workload.module.train()
    output = module(**workload.inputs)
    assert output["logits"].shape == shape
    given = "labels" if "causal" not in task else "input_ids"
    labels = {"labels": workload.inputs[given] if given == "input_ids" else workload.targets}
    assert isinstance(module, transformers.PreTrainedModel)
    expected = module(**workload.inputs, **labels)["loss"]  # what transformers makes of them
    assert workload.loss(output, workload.targets).item() == pytest.approx(expected.item(), rel=1e-5)


def test_nothing_is_fetched_nor_left_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(socket.socket, "connect", lambda *given: pytest.fail("a network call"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **more: pytest.fail("a name looked up"))
    built("torchvision:fasterrcnn_mobilenet_v3_large_320_fpn")
    for name in ("timm:resnet10t", "transformers:bert"):
        if find_spec(name.partition(":")[0]):
            built(name)


@functools.cache
def trained() -> Mapping[str, torch.Tensor]:
    return built("torchvision:squeezenet1_1", 5).module.state_dict()


class TestWeights:
    @pytest.mark.parametrize("zipped", [True, False])
    def test_are_those_of_the_file_and_nothing_is_done_to_them(self, zipped: bool, tmp_path: Path) -> None:
        plain = {name: torch.zeros_like(tensor) for name, tensor in trained().items()}
        torch.save(
            {"epoch": 3, "state_dict": {f"module.{name}": one for name, one in plain.items()}}, tmp_path / "w.pt",
            _use_new_zipfile_serialization=zipped,
        )  # fmt: skip
        workload = built("torchvision:squeezenet1_1", weights=str(tmp_path / "w.pt"))
        assert not any(bool(one.any()) for one in workload.module.state_dict().values())

    def test_may_be_a_safetensors_file(self, tmp_path: Path) -> None:
        pytest.importorskip("safetensors")
        from safetensors.torch import save_file

        save_file({name: one.contiguous() for name, one in trained().items()}, tmp_path / "w.safetensors")
        workload = built("torchvision:squeezenet1_1", weights=str(tmp_path / "w.safetensors"))
        assert all(torch.equal(one, trained()[name]) for name, one in workload.module.state_dict().items())

    def test_of_another_network_are_named(self, tmp_path: Path) -> None:
        other = {name: one for name, one in trained().items() if name != "classifier.1.bias"} | {"more": torch.ones(1)}
        other["classifier.1.weight"] = torch.ones(3, 3)
        torch.save(other, tmp_path / "w.pt")
        with pytest.raises(WorkloadError) as refused:
            built("torchvision:squeezenet1_1", weights=str(tmp_path / "w.pt"))
        assert str(refused.value) == (
            f"weights={tmp_path / 'w.pt'} do not fit torchvision:squeezenet1_1: 1 missing (classifier.1.bias); "
            "1 unexpected (more); 1 of another shape (classifier.1.weight (3, 3) for (10, 512, 1, 1))"
        )

    def test_that_are_pickled_code_are_refused(self, tmp_path: Path) -> None:
        torch.save(nn.Linear(2, 2), tmp_path / "whole.pt")
        with pytest.raises(
            WorkloadError, match="holds pickled code, and ampbench never runs it: save the network's state_dict"
        ):
            parameters("torchvision:squeezenet1_1", weights=str(tmp_path / "whole.pt"))
        with pytest.raises(WorkloadError, match="there is no such file"):
            parameters("torchvision:squeezenet1_1", weights=str(tmp_path / "none.pt"))
        (tmp_path / "text.pt").write_text("no weights")
        with pytest.raises(WorkloadError, match=r"text\.pt"):
            parameters("torchvision:squeezenet1_1", weights=str(tmp_path / "text.pt"))


def test_a_library_that_cannot_be_imported_is_no_stop() -> None:
    broken = structs.replace(source("torchvision:resnet18"), module="no_such_module")
    found = describe_workload(broken, {}, 0)
    assert found.unavailable.startswith("torchvision cannot be imported (ModuleNotFoundError")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "efficientnet_lite0", "regnetx_002", "convnext_atto", "ghostnet_100"]
)
def test_the_error_of_a_network_agrees_with_an_independent_computation(name: str) -> None:
    timm = pytest.importorskip("timm")
    planned = plan_cells(
        Selection(workloads=[f"timm:{name}"], precisions=["bf16_autocast"], phases=["inference"], preset="tiny")
    )
    workload = built(f"timm:{name}")
    found = measure_divergence(workload, planned[0].case, Cpu(), References())
    own = timm.create_model(name, num_classes=10, **({"img_size": 64} if name.startswith("vit_") else {})).eval()
    own.load_state_dict(workload.module.state_dict())
    with torch.inference_mode():
        with torch.autocast("cpu", torch.bfloat16):
            half = own(workload.inputs).double()
        exact = own.double()(workload.inputs.double())
    expected = float((half - exact).norm() / exact.norm())
    assert found.output.rel_l2 == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["torchvision:inception_v3", "timm:levit_128s"])
def test_a_network_that_normalises_one_number_a_sample_gets_two_of_them(name: str) -> None:
    workload = built(name)
    assert len(workload.targets) == 2
    assert workload.loss(workload.module.train()(workload.inputs), workload.targets).item() > 0

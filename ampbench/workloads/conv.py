"""Convolutional networks: one documented layer, a plain stack, torchvision's classifiers, and a detector's head."""

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor, device, nn, optim
from torch.nn import functional as F

from ampbench.worker.data import Generator
from ampbench.workload import Workload
from ampbench.workloads.weights import (
    ACTIVE,
    HARDSWISH_VARIANCE,
    HE,
    RELU_VARIANCE,
    Rule,
    around,
    class_loss,
    classifier,
    fill,
    grid_targets,
    kernel,
    momentum,
    rectified,
)

STRIDE = 16
"""Pixels of the image to one cell of the feature map of `RegionHead`."""

POOLED = 7
"""Cells a region is pooled to, in each direction, as in Faster R-CNN."""

BRANCH = 0.25
"""RMS of a residual branch where it joins a stream of RMS about one: small, as in trained residual networks."""

GATE = 0.75
"""The usual gate of squeeze-and-excitation here: hardsigmoid of 1.5, open but not saturated."""

AFTER_RELU = RELU_VARIANCE**-0.5

POOLED_GAIN = 4.0
"""Gain of a classifier on averaged feature maps: about an image-independent mean they vary little, by about 0.2."""


def simple_conv(generator: Generator, *, image: int, batch_size: int) -> Workload:
    """Conv2d(64, 128, 3, stride=2, padding=1, bias=False), mean squared error, SGD with lr 0.001.

    Inputs are (batch_size, 64, image, image), outputs (batch_size, 128, image/2, image/2), rounded up. Source: the
    example of Intel Extension for PyTorch, "Auto Mixed Precision on GPU".
    """
    with device("meta"):
        module = nn.Conv2d(64, 128, 3, stride=2, padding=1, bias=False)
    fill(generator, module)
    reduced = (image + 1) // 2
    return Workload(
        module=module,
        inputs=generator.uniform("inputs", (batch_size, 64, image, image)),
        targets=grid_targets(generator, (batch_size, 128, reduced, reduced)),
        loss=lambda output, targets: F.mse_loss(output, targets.to(output.dtype)),  # exact: see `grid_targets`
        optimizer=lambda parameters: optim.SGD(parameters, lr=0.001),
    )


def resnet18(generator: Generator, **sizes: int) -> Workload:
    """torchvision's ResNet-18, cross entropy, SGD with momentum."""
    return _resnet(generator, "resnet18", sizes)


def resnet50(generator: Generator, **sizes: int) -> Workload:
    """torchvision's ResNet-50, cross entropy, SGD with momentum."""
    return _resnet(generator, "resnet50", sizes)


def mobilenet_v3_large(generator: Generator, **sizes: int) -> Workload:
    """torchvision's MobileNetV3-Large without dropout, whose masks would differ between precisions; SGD."""
    from torchvision import models

    with device("meta"):
        module = models.mobilenet_v3_large(num_classes=sizes["classes"], dropout=0.0)
    _fill_mobilenet(generator, module)
    return _classification(generator, module, sizes)


def _resnet(generator: Generator, name: str, sizes: Mapping[str, int]) -> Workload:
    from torchvision import models

    with device("meta"):
        module: nn.Module = models.get_model(name, num_classes=sizes["classes"])
    gains, shifts = _resnet_gains(module)
    fill(generator, module, gains=gains, shifts=shifts, rules={"fc.weight": classifier(POOLED_GAIN)})
    return _classification(generator, module, sizes)


def _resnet_gains(module: nn.Module) -> tuple[dict[str, float], dict[str, float]]:
    """Return the gains and shifts of the layers of a residual network.

    Every convolution has the gain that what it reads calls for, stage by stage. A stage's stream starts at the maximum
    of rectified normals or at the sum of two normalised maps; each block adds a branch of RMS `BRANCH` to it and
    rectifies the sum.
    """
    gains: dict[str, float] = {"conv1": 1.0}
    shifts: dict[str, float] = {}
    mean, variance = ACTIVE + 1.485, 0.357  # of the largest of nine normals, the output of max pooling
    for stage in range(1, 5):
        for place, block in enumerate(module.get_submodule(f"layer{stage}").children()):
            name = f"layer{stage}.{place}"
            last = max(layer for layer, _ in block.named_children() if layer.startswith("bn"))
            gains[f"{name}.conv1"] = variance**-0.5
            gains[f"{name}.{last}"], shifts[f"{name}.{last}"] = BRANCH, 0.0
            if getattr(block, "downsample", None) is not None:
                gains[f"{name}.downsample.0"] = variance**-0.5
                mean, variance = ACTIVE, 1.0
            mean, variance = rectified(mean, variance + BRANCH**2)
    gains |= {"layer*.bn*": 1.0, "layer*.downsample.1": 1.0, "layer*.conv*": AFTER_RELU}
    shifts |= {"*bn*": ACTIVE, "*downsample.1": ACTIVE}
    return gains, shifts


def _fill_mobilenet(generator: Generator, module: nn.Module) -> None:
    """Fill a torchvision MobileNetV3, whose gains follow from walking it as its signal does.

    The stream between blocks is not activated; a block either replaces it or adds a branch of RMS `BRANCH` to it.
    """
    gains: dict[str, float] = {"features.0.0": 1.0}
    shifts: dict[str, float] = {"features.0.1": ACTIVE}
    rules: dict[str, Rule] = {}
    stream = HARDSWISH_VARIANCE
    blocks = list(module.get_submodule("features").named_children())
    for place, block in blocks[1:-1]:
        variance, name = stream, ""
        for layer, child in block.get_submodule("block").named_children():
            name = f"features.{place}.block.{layer}"
            if hasattr(child, "fc1"):
                variance *= GATE**2
                # What is squeezed is an average, small and little varied; the gates vary by about 0.1.
                rules |= {f"{name}.fc1.weight": kernel(4.0), f"{name}.fc1.bias": around(0, 0.5)}
                rules |= {f"{name}.fc2.weight": kernel(1.0), f"{name}.fc2.bias": around(1.5, 0.3)}
            else:
                gains[f"{name}.0"] = variance**-0.5
                kinds = {type(part) for part in child.children()}
                variance = HARDSWISH_VARIANCE if nn.Hardswish in kinds else RELU_VARIANCE if nn.ReLU in kinds else 1.0
                shifts[f"{name}.1"] = ACTIVE if kinds & {nn.Hardswish, nn.ReLU} else 0.0
        residual = bool(getattr(block, "use_res_connect", False))
        gains[f"{name}.1"] = BRANCH if residual else 1.0
        stream = stream + BRANCH**2 if residual else 1.0
    gains[f"features.{blocks[-1][0]}.0"], shifts[f"features.{blocks[-1][0]}.1"] = stream**-0.5, ACTIVE
    gains["classifier.0"] = 4.0
    shifts["classifier.0"] = ACTIVE
    rules["classifier.3.weight"] = classifier(HARDSWISH_VARIANCE**-0.5)
    fill(generator, module, gains=gains, shifts=shifts, rules=rules)


def _classification(generator: Generator, module: nn.Module, sizes: Mapping[str, int]) -> Workload:
    """Return `module`, a classifier of RGB images, with random ones, cross entropy and SGD with momentum."""
    batch_size, image = sizes["batch_size"], sizes["image"]
    return Workload(
        module=module,
        inputs=generator.uniform("inputs", (batch_size, 3, image, image)),
        targets=generator.integers("targets", (batch_size,), sizes["classes"]),
        loss=class_loss,
        optimizer=momentum,
    )


class RegionHead(nn.Module):
    """A convolutional backbone of stride 16, RoIAlign, and a linear head: class scores and box corrections.

    Source: Girshick, "Fast R-CNN", ICCV 2015; He et al., "Mask R-CNN", ICCV 2017 (RoIAlign).
    """

    def __init__(self, width: int, classes: int):
        super().__init__()
        from torchvision.ops import RoIAlign

        widths = [3, width // 4, width // 2, width, width]
        self.backbone = nn.Sequential()
        for inputs, outputs in pairwise(widths):
            self.backbone.append(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1))
            self.backbone.append(nn.ReLU())
        self.align = RoIAlign(POOLED, spatial_scale=1 / STRIDE, sampling_ratio=2, aligned=True)
        self.hidden = nn.Linear(width * POOLED**2, 4 * width)
        self.scores = nn.Linear(4 * width, classes)
        self.corrections = nn.Linear(4 * width, 4)

    def forward(self, images: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores (batch x regions, classes) and corrections (batch x regions, 4).

        `boxes` (batch, regions, 4) are corners in pixels. They are never cast to less than fp32: fp16 holds no odd
        number above 2048 and no fraction above 1024, bf16 neither above 256 and 128. RoIAlign needs one dtype, so that
        its features are cast to theirs and its output is cast back.
        """
        features = self.backbone(images)
        with torch.autocast(images.device.type, enabled=False):
            exact = torch.promote_types(torch.promote_types(boxes.dtype, features.dtype), torch.float32)
            regions = self.align(features.to(exact), list(boxes.to(exact).unbind(0))).to(features.dtype)
        hidden = F.relu(self.hidden(regions.flatten(1)))
        return self.scores(hidden), self.corrections(hidden)


def roi_head(generator: Generator, *, width: int, regions: int, classes: int, image: int, batch_size: int) -> Workload:
    """A detector's second stage on `regions` given boxes an image; cross entropy and smooth L1, SGD with momentum.

    Inputs are images (batch_size, 3, image, image) and boxes (batch_size, regions, 4): two corners in pixels, with
    fractions, up to the image's far edge (3072 at preset large).
    """
    with device("meta"):
        module = RegionHead(width, classes)
    gains = {"backbone.0": 1.0, "*": HE}
    fill(generator, module, gains=gains, rules={"scores.weight": classifier(HE)}, centred=False)

    def loss(output: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
        (scores, corrections), (labels, shifts) = output, targets
        return class_loss(scores, labels) + F.smooth_l1_loss(corrections, shifts.flatten(0, 1).to(corrections.dtype))

    return Workload(
        module=module,
        inputs=(
            generator.uniform("images", (batch_size, 3, image, image)),
            _boxes(generator, regions, image, batch_size),
        ),
        targets=(
            generator.integers("labels", (batch_size, regions), classes),
            grid_targets(generator, (batch_size, regions, 4), "shifts"),
        ),
        loss=loss,
        optimizer=momentum,
    )


def _boxes(generator: Generator, regions: int, image: int, batch_size: int) -> Tensor:
    """Return boxes with sides from an eighth to a half of the image, wholly inside it, in steps of 1/1024 pixel."""
    unit = 1024  # the product of image and unit stays below 2**24: every coordinate is exact in fp32
    shape = (batch_size, regions, 2)
    extent = image * unit
    sides = extent // 8 + generator.integers("boxes.sides", shape, 3 * extent // 8)
    corners = generator.integers("boxes.corners", shape, 2**31) % (extent - sides)
    return (torch.cat((corners, corners + sides), dim=-1).double() / unit).float()

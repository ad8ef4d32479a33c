"""Convolutional networks: one documented layer, stacks of our own, and torchvision's classifiers."""

from collections.abc import Mapping

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
    regression_loss,
)

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
        loss=regression_loss,
        optimizer=lambda parameters: optim.SGD(parameters, lr=0.001),
    )


def conv_stack(generator: Generator, *, depth: int, width: int, **sizes: int) -> Workload:
    """`depth` 3x3 convolutions of `width` channels with ReLU, then the mean over the image and a classifier.

    Source of the pattern: Simonyan and Zisserman, "Very deep convolutional networks", ICLR 2015.
    """
    with device("meta"):
        layers: list[nn.Module] = []
        for level in range(depth):
            layers += [nn.Conv2d(3 if level == 0 else width, width, 3, padding=1), nn.ReLU()]
        module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, sizes["classes"]))
    head = f"{len(module) - 1}.weight"
    fill(generator, module, gains={"0": 1.0, "*": HE}, rules={head: classifier(POOLED_GAIN)}, centred=False)
    return _classification(generator, module, sizes)


def depthwise_stack(generator: Generator, *, depth: int, width: int, **sizes: int) -> Workload:
    """A strided stem and `depth` pairs of depthwise 3x3 and pointwise convolutions, each normalised and rectified.

    Source of the pattern: Howard et al., "MobileNets", 2017.
    """
    with device("meta"):
        layers = _normalised(nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False))
        for _ in range(depth):
            layers += _normalised(nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False))
            layers += _normalised(nn.Conv2d(width, width, 1, bias=False))
        module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, sizes["classes"]))
    gains = {str(at): AFTER_RELU for at, layer in enumerate(layers) if isinstance(layer, nn.Conv2d) and at > 0}
    shifts = {str(at): ACTIVE for at, layer in enumerate(layers) if isinstance(layer, nn.BatchNorm2d)}
    fill(generator, module, gains=gains, shifts=shifts, rules={f"{len(module) - 1}.weight": classifier(POOLED_GAIN)})
    return _classification(generator, module, sizes)


class UNet(nn.Module):
    """Four times down and up again, with skips; logits for every pixel: (batch, classes, height, width).

    Source: Ronneberger et al., "U-Net", MICCAI 2015; padded, and with batch normalisation, as is usual today.
    """

    def __init__(self, width: int, classes: int):
        super().__init__()
        widths = [width << level for level in range(5)]
        self.down = nn.ModuleList(_pair(3 if level == 0 else widths[level - 1], widths[level]) for level in range(5))
        self.rise = nn.ModuleList(nn.ConvTranspose2d(widths[level + 1], widths[level], 2, 2) for level in range(4))
        self.up = nn.ModuleList(_pair(2 * widths[level], widths[level]) for level in range(4))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of `images` (batch, 3, height, width), whose sides are multiples of 16."""
        skips = [self.down[0](images)]
        for block in self.down[1:]:
            skips.append(block(self.pool(skips[-1])))
        x = skips.pop()
        for level in reversed(range(4)):
            x = self.up[level](torch.cat([skips.pop(), self.rise[level](x)], dim=1))
        return self.head(x)  # type: ignore[no-any-return]


def unet(generator: Generator, *, width: int, classes: int, image: int, batch_size: int) -> Workload:
    """U-Net of `width` channels at full resolution, cross entropy over pixels, SGD with momentum."""
    with device("meta"):
        module = UNet(width, classes)
    gains = {
        "down.0.0": 1.0,
        "down.*.0": 0.491**-0.5,  # the variance of the maximum of four rectified normals
        "up.*.0": ((RELU_VARIANCE + 1) / 2) ** -0.5,  # half of its input is a skip, half has just risen
        "*.3": AFTER_RELU,
        "rise.*": AFTER_RELU,
    }
    shifts = {"down.*": ACTIVE, "up.*": ACTIVE}
    fill(generator, module, gains=gains, shifts=shifts, rules={"head.weight": classifier(AFTER_RELU)})
    return Workload(
        module=module,
        inputs=generator.uniform("inputs", (batch_size, 3, image, image)),
        targets=generator.integers("targets", (batch_size, image, image), classes),
        loss=F.cross_entropy,
        optimizer=momentum,
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
    """Return the workload of a residual network of torchvision."""
    from torchvision import models

    with device("meta"):
        module: nn.Module = models.get_model(name, num_classes=sizes["classes"])
    gains, shifts = resnet_gains(module)
    fill(generator, module, gains=gains, shifts=shifts, rules={"fc.weight": classifier(POOLED_GAIN)})
    return _classification(generator, module, sizes)


def resnet_gains(module: nn.Module, within: str = "") -> tuple[dict[str, float], dict[str, float]]:
    """Return gains and shifts for the residual network `within` a module, a name that ends in a dot, or all of it.

    Every convolution has the gain that what it reads calls for, stage by stage. A stage's stream starts at the maximum
    of rectified normals or at the sum of two normalised maps; each block adds a branch of RMS `BRANCH` to it and
    rectifies the sum.
    """
    gains: dict[str, float] = {f"{within}conv1": 1.0}
    shifts: dict[str, float] = {}
    mean, variance = ACTIVE + 1.485, 0.357  # of the largest of nine normals, the output of max pooling
    for stage in range(1, 5):
        for place, block in enumerate(module.get_submodule(f"{within}layer{stage}").children()):
            name = f"{within}layer{stage}.{place}"
            last = max(layer for layer, _ in block.named_children() if layer.startswith("bn"))
            gains[f"{name}.conv1"] = variance**-0.5
            gains[f"{name}.{last}"], shifts[f"{name}.{last}"] = BRANCH, 0.0
            if getattr(block, "downsample", None) is not None:
                gains[f"{name}.downsample.0"] = variance**-0.5
                mean, variance = ACTIVE, 1.0
            mean, variance = rectified(mean, variance + BRANCH**2)
    layers = f"{within}layer*"
    gains |= {f"{layers}.bn*": 1.0, f"{layers}.downsample.1": 1.0, f"{layers}.conv*": AFTER_RELU}
    shifts |= {f"{within}*bn*": ACTIVE, f"{within}*downsample.1": ACTIVE}
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


def _normalised(convolution: nn.Conv2d) -> list[nn.Module]:
    return [convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU()]


def _pair(inputs: int, outputs: int) -> nn.Sequential:
    first = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(*_normalised(first), *_normalised(second))

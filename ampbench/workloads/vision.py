"""Vision beyond plain convolutions: a vision transformer, and a detector's head on regions of an image."""

from itertools import pairwise

import torch
from torch import Tensor, device, nn
from torch.nn import functional as F

from ampbench.measure.data import Generator
from ampbench.workload import Workload
from ampbench.workloads.weights import (
    GELU_VARIANCE,
    HE,
    Rule,
    adamw,
    around,
    class_loss,
    classifier,
    fill,
    grid_targets,
    kernel,
    momentum,
)

STRIDE = 16
"""Pixels of the image to one cell of the detector's feature map."""

POOLED = 7
"""Cells a region is pooled to, in each direction, as in Faster R-CNN."""


def vit_b_16(generator: Generator, *, classes: int, image: int, batch_size: int) -> Workload:
    """torchvision's vision transformer, base size, 16x16 patches; cross entropy, AdamW.

    Its own initialisation gives zero, whatever the image: its head starts at zero. Here no weight does.
    """
    from torchvision import models

    with device("meta"):
        module = models.vit_b_16(image_size=image, num_classes=classes)
    rules: dict[str, Rule] = {
        "class_token": around(0, 1.0),
        "encoder.pos_embedding": around(0, 0.5),
        "*.self_attention.in_proj_weight": kernel(1.3),  # as in ampbench.workloads.sequence
        "*.self_attention.in_proj_bias": around(0, 0.1),
        "heads.head.weight": classifier(1.0),
    }
    fill(generator, module, gains={"*.mlp.3": 0.5 * GELU_VARIANCE**-0.5}, rules=rules)
    return Workload(
        module=module,
        inputs=generator.uniform("inputs", (batch_size, 3, image, image)),
        targets=generator.integers("targets", (batch_size,), classes),
        loss=class_loss,
        optimizer=adamw,
        items_per_step=batch_size,
        version=1,
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
        number above 2048 and no fraction above 1024, bf16 neither above 256 and 128. RoIAlign wants one dtype, so that
        its features are cast to theirs and what it pooled is cast back.
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
        items_per_step=batch_size,
        version=1,
    )


def _boxes(generator: Generator, regions: int, image: int, batch_size: int) -> Tensor:
    """Return boxes with sides from an eighth to a half of the image, wholly inside it, in steps of 1/1024 pixel."""
    unit = 1024  # the product of image and unit stays below 2**24: every coordinate is exact in fp32
    shape = (batch_size, regions, 2)
    extent = image * unit
    sides = extent // 8 + generator.integers("boxes.sides", shape, 3 * extent // 8)
    corners = generator.integers("boxes.corners", shape, 2**31) % (extent - sides)
    return (torch.cat((corners, corners + sides), dim=-1).double() / unit).float()

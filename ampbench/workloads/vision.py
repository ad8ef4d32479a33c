"""Vision beyond plain convolutions: a vision transformer, detection, and the two networks of diffusion."""

import math
from collections import OrderedDict
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, device, nn
from torch.nn import functional as F

from ampbench.worker.data import Generator
from ampbench.workload import Workload
from ampbench.workloads.conv import AFTER_RELU, resnet_gains
from ampbench.workloads.sequence import SHARPNESS, Attention
from ampbench.workloads.weights import (
    ACTIVE,
    GELU_VARIANCE,
    HE,
    SILU_VARIANCE,
    Rule,
    adamw,
    around,
    class_loss,
    classifier,
    fill,
    grid_targets,
    kernel,
    momentum,
    regression_loss,
    waves,
)

STRIDE = 16
"""Pixels of the image to one cell of the detector's feature map."""

POOLED = 7
"""Cells a region is pooled to, in each direction, as in Faster R-CNN."""

STRIDES = (8, 16, 32, 64, 128)
"""Pixels of the image to one point of each level of the feature pyramid (Lin et al., CVPR 2017; Tian et al., 2019)."""

LATENTS = 4
"""Channels of the latent images that diffusion runs on, as Stable Diffusion's autoencoder makes them."""

PATCH = 2
"""Side of a diffusion transformer's patches, as in DiT-XL/2."""

TIMESTEPS = 1000
"""Steps from an image to noise (Ho et al., "Denoising diffusion probabilistic models", NeurIPS 2020)."""

MODULATION = 0.4
"""RMS of the shifts, scales and gates that a timestep gives a diffusion transformer's blocks."""

LEVELS = (1, 2, 4)
"""Channels of the diffusion U-Net at each resolution, in those of the first."""


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


class Found(NamedTuple):
    """The objects of one image: boxes (objects, 4), in shares of its side, scores and labels (objects,)."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor


class Detected(NamedTuple):
    """The detector's output at every point, by torchvision's names, and its boxes in each image (in evaluation).

    Logits are (batch, points, classes), distances to the sides of a box (batch, points, 4), centredness (batch, points,
    1).
    """

    cls_logits: Tensor
    bbox_regression: Tensor
    bbox_ctrness: Tensor
    found: tuple[Found, ...] = ()

    def dense(self) -> dict[str, Tensor]:
        """Return the outputs of every point, in at least fp32."""
        values = {
            "cls_logits": self.cls_logits,
            "bbox_regression": self.bbox_regression,
            "bbox_ctrness": self.bbox_ctrness,
        }
        exact = torch.promote_types(self.cls_logits.dtype, torch.float32)
        return {name: tensor.to(exact) for name, tensor in values.items()}


class Detector(nn.Module):
    """torchvision's FCOS on a residual network with frozen batch normalisation and a feature pyramid of five levels.

    The residual network has `depth` basic blocks a stage and a quarter of the pyramid's `width` in its first. Source:
    Tian et al., "FCOS: Fully convolutional one-stage object detection", ICCV 2019.
    """

    def __init__(self, width: int, depth: int, classes: int, image: int):
        super().__init__()
        from torchvision.models.detection import FCOS
        from torchvision.models.detection.backbone_utils import BackboneWithFPN
        from torchvision.models.detection.fcos import FCOSClassificationHead, FCOSHead, FCOSRegressionHead
        from torchvision.ops.feature_pyramid_network import LastLevelP6P7

        body, stages = _residual_network(width // 4, depth)
        pyramid = BackboneWithFPN(
            body,
            return_layers={"layer2": "0", "layer3": "1", "layer4": "2"},
            in_channels_list=stages[1:],
            out_channels=width,
            extra_blocks=LastLevelP6P7(width, width),
        )
        norm = partial(nn.GroupNorm, width // 8)  # 32 groups at the usual width of 256; FCOSHead always makes 32
        head = FCOSHead(256, 1, classes)
        head.classification_head = FCOSClassificationHead(width, 1, classes, norm_layer=norm)
        head.regression_head = FCOSRegressionHead(width, 1, norm_layer=norm)
        self.fcos = FCOS(pyramid, classes, head=head)
        self.image = image
        self.points: Tensor
        self.register_buffer("points", torch.empty((sum((image // stride) ** 2 for stride in STRIDES), 4)).long())

    def forward(self, images: Tensor) -> Detected:
        """Return the outputs for `images` (batch, 3, image, image) and, in evaluation, the boxes found in each.

        That is after the threshold, the choice of the best and non-maximum suppression, all in at least fp32, as in
        Detectron2: a half precision rounds corners to whole pixels and more, and has no suppression on CPU.
        """
        answer = Detected(**self.fcos.head(list(self.fcos.backbone(images).values())))
        if self.training:
            return answer
        levels = [(self.image // stride) ** 2 for stride in STRIDES]
        dense = answer.dense()
        points = self.points.to(dense["cls_logits"].dtype)
        detections = self.fcos.postprocess_detections(
            {name: list(torch.split(tensor, levels, dim=1)) for name, tensor in dense.items()},
            [list(torch.split(points, levels))] * len(images),
            [(self.image, self.image)] * len(images),
        )
        boxes = [
            Found(boxes_found["boxes"] / self.image, boxes_found["scores"], boxes_found["labels"])
            for boxes_found in detections
        ]
        return answer._replace(found=tuple(boxes))


def detector(
    generator: Generator, *, width: int, depth: int, regions: int, classes: int, image: int, batch_size: int
) -> Workload:
    """FCOS on images with `regions` objects each; focal loss, GIoU loss and binary cross entropy, SGD with momentum.

    Inputs are (batch_size, 3, image, image). Targets are boxes (batch_size, regions, 4), corners in whole pixels and
    therefore exact in every precision, their labels, and for each point the box that it learns, -1 for none, as found
    once when data is made. The compared outputs are per point.
    """
    with device("meta"):
        module = Detector(width, depth, classes, image)
    body = "fcos.backbone.body."
    gains, shifts = resnet_gains(module, body)
    tower = "fcos.head.*_head"
    gains |= {
        "fcos.backbone.fpn.inner_blocks.*": 0.7 * AFTER_RELU,
        f"{tower}.conv.0": 1.0,
        f"{tower}.conv.*": AFTER_RELU,
        f"{tower}.cls_logits": AFTER_RELU,
        f"{tower}.bbox_reg": 0.5 * AFTER_RELU,
        f"{tower}.bbox_ctrness": AFTER_RELU,
    }
    shifts |= {
        f"{tower}.conv.*": ACTIVE,
        f"{tower}.cls_logits": -4.6,  # a prior probability of 0.01 (Lin et al., "Focal loss", ICCV 2017)
        f"{tower}.bbox_reg": 2.0,  # distances are rectified
    }
    points = _points(image)
    fill(generator, module, gains=gains, shifts=shifts, rules={"points": points})
    boxes = _boxes(generator, regions, image, batch_size).round().long()
    labels = generator.integers("labels", (batch_size, regions), classes)
    head = module.fcos.head

    def loss(output: Detected, targets: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        boxes, labels, matched = targets
        dense = output.dense()
        exact = dense["cls_logits"].dtype
        wanted = [{"boxes": corners.to(exact), "labels": its} for corners, its in zip(boxes, labels, strict=True)]
        anchors = [points.to(boxes.device, exact)] * len(boxes)
        return sum(head.compute_loss(wanted, dense, anchors, list(matched)).values())  # type: ignore[no-any-return]

    return Workload(
        module=module,
        inputs=generator.uniform("images", (batch_size, 3, image, image)),
        targets=(boxes, labels, _matched(points, boxes)),
        loss=loss,
        optimizer=momentum,
        outputs=("cls_logits", "bbox_regression", "bbox_ctrness"),
    )


def _residual_network(width: int, depth: int) -> tuple[nn.Module, list[int]]:
    """Return torchvision's basic blocks with frozen normalisation, in four stages, and the channels of each stage."""
    from torchvision.models.resnet import BasicBlock
    from torchvision.ops import FrozenBatchNorm2d

    widths = [width, 2 * width, 4 * width, 8 * width]
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
        bn1=FrozenBatchNorm2d(width),
        relu=nn.ReLU(),
        maxpool=nn.MaxPool2d(3, stride=2, padding=1),
    )
    for stage, (inputs, outputs) in enumerate(pairwise([width, *widths]), 1):
        stride = 1 if stage == 1 else 2
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), FrozenBatchNorm2d(outputs))
        blocks = [
            BasicBlock(inputs, outputs, stride, shortcut if stage > 1 else None, norm_layer=FrozenBatchNorm2d),
            *(BasicBlock(outputs, outputs, norm_layer=FrozenBatchNorm2d) for _ in range(depth - 1)),
        ]
        parts[f"layer{stage}"] = nn.Sequential(*blocks)
    return nn.Sequential(parts), widths


def _points(image: int) -> Tensor:
    """Return a square (points, 4) for every point of every level, of the level's stride, centred at its place.

    Corners are in whole pixels (int64), as torchvision's `AnchorGenerator` makes them for FCOS.
    """
    levels = []
    for stride in STRIDES:
        places = torch.arange(image // stride) * stride
        down, right = torch.meshgrid(places, places, indexing="ij")
        centres = torch.stack((right, down), dim=-1).flatten(0, 1)
        levels.append(torch.cat((centres - stride // 2, centres + stride // 2), dim=1))
    return torch.cat(levels)


def _matched(points: Tensor, boxes: Tensor) -> Tensor:
    """Return which of its image's `boxes` each point learns (batch, points), -1 for none: all in whole numbers.

    It is the smallest box whose centre is within 1.5 strides, that the point lies in, and whose farthest side is from
    four to eight strides away, less at the first level and more at the last (Tian et al., 2019; torchvision's FCOS).
    """
    stride = (points[:, 2] - points[:, 0])[:, None]
    twice = (points[:, :2] + points[:, 2:])[:, None]  # the centre, doubled, is whole
    corners = boxes[:, None]
    near = (twice - corners[..., :2] - corners[..., 2:]).abs().amax(dim=-1) < 3 * stride
    sides = torch.cat((twice - 2 * corners[..., :2], 2 * corners[..., 2:] - twice), dim=-1)
    farthest = sides.amax(dim=-1)
    fits = (farthest > 8 * stride) | (stride == STRIDES[0])
    fits &= (farthest < 16 * stride) | (stride == STRIDES[-1])
    areas = ((corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])).expand(fits.shape)
    possible = near & (sides.amin(dim=-1) > 0) & fits
    smallest, which = torch.where(possible, areas, torch.iinfo(torch.int64).max).min(dim=-1)
    return torch.where(smallest == torch.iinfo(torch.int64).max, -1, which)


class Timesteps(nn.Module):
    """What a diffusion network knows of the time: sinusoids of whole timesteps, a layer, SiLU and a layer.

    The sinusoids are made in at least fp32 and cast to the layer's dtype, as is usual: no half precision holds the
    angle 999 to better than a quarter.
    """

    def __init__(self, features: int, width: int):
        super().__init__()
        self.up = nn.Linear(features, width)
        self.down = nn.Linear(width, width)

    def forward(self, timesteps: Tensor) -> Tensor:
        """Return an embedding (batch, width) of `timesteps`, integers (batch,)."""
        exact = torch.promote_types(self.up.weight.dtype, torch.float32)
        half = self.up.in_features // 2
        places = torch.arange(half, dtype=exact, device=timesteps.device)
        angles = timesteps.to(exact)[:, None] * torch.exp(-math.log(10_000) / half * places)
        sinusoids = torch.cat((angles.cos(), angles.sin()), dim=1).to(self.up.weight.dtype)
        return self.down(F.silu(self.up(sinusoids)))  # type: ignore[no-any-return]


class ModulatedBlock(nn.Module):
    """A transformer's block whose two norms are shifted and scaled, and its two branches gated, by a condition."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.modulation = nn.Linear(width, 6 * width)
        self.attention_norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.attention = Attention(width, heads)
        self.feed_norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return the stream (batch, tokens, width) after this block; `condition` is (batch, width)."""
        modulation = self.modulation(F.silu(condition))[:, None]
        shift, scale, gate, feed_shift, feed_scale, feed_gate = modulation.chunk(6, dim=-1)
        x = x + gate * self.attention(self.attention_norm(x) * (1 + scale) + shift)
        y = self.feed_norm(x) * (1 + feed_scale) + feed_shift
        return x + feed_gate * self.down(F.gelu(self.up(y), approximate="tanh"))  # type: ignore[no-any-return]


class DiffusionTransformer(nn.Module):
    """Patches of a noisy latent image through modulated blocks, and back to a prediction for each pixel.

    Source: Peebles and Xie, "Scalable diffusion models with transformers", ICCV 2023, without the learned variance.
    """

    def __init__(self, depth: int, width: int, heads: int, classes: int, image: int):
        super().__init__()
        self.patches = nn.Conv2d(LATENTS, width, PATCH, stride=PATCH)
        self.register_buffer("positions", torch.empty((image // PATCH) ** 2, width))
        self.time = Timesteps(256, width)
        self.labels = nn.Embedding(classes, width)
        self.blocks = nn.ModuleList(ModulatedBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.modulation = nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, LATENTS * PATCH**2)

    def forward(self, latents: Tensor, timesteps: Tensor, labels: Tensor) -> Tensor:
        """Return a tensor as `latents` (batch, LATENTS, side, side); timesteps and labels are integers (batch,)."""
        grid = self.patches(latents)
        x = grid.flatten(2).transpose(1, 2) + self.positions
        condition = self.time(timesteps) + self.labels(labels)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(F.silu(condition))[:, None].chunk(2, dim=-1)
        x = self.head(self.norm(x) * (1 + scale) + shift)
        return F.pixel_shuffle(x.transpose(1, 2).unflatten(2, grid.shape[2:]), PATCH)


def diffusion_transformer(
    generator: Generator, *, depth: int, width: int, heads: int, classes: int, image: int, batch_size: int
) -> Workload:
    """DiT on latent images with a class each: predicts the velocity from image to noise; mean squared error, AdamW.

    Inputs are latents (batch_size, LATENTS, image, image) on the straight way to noise (Liu et al., "Flow straight and
    fast", ICLR 2023; so are Stable Diffusion 3 and Flux trained), timesteps from 1 to 1000 and labels. The gates that
    DiT starts at zero ("adaLN-Zero"), and its head, have the size that training gives them.
    """
    with device("meta"):
        module = DiffusionTransformer(depth, width, heads, classes, image)
    rules: dict[str, Rule] = {
        "positions": _places_in_square(image // PATCH, width),
        "labels.weight": around(0, 0.7),
    }
    gains = {
        "patches": 0.7,
        "time.up": 1.4,  # sinusoids, less their mean, are of an RMS of about 0.6
        "time.down": 0.7 * SILU_VARIANCE**-0.5,
        "*modulation": MODULATION * SILU_VARIANCE**-0.5,
        "*.query_key_value": SHARPNESS,
        "*.down": GELU_VARIANCE**-0.5,
        "head": 1.5,  # the RMS of its target
    }
    fill(generator, module, gains=gains, rules=rules)
    shape = (batch_size, LATENTS, image, image)
    clean, noise = grid_targets(generator, shape, "images"), grid_targets(generator, shape, "noise")
    timesteps = 1 + generator.integers("timesteps", (batch_size,), TIMESTEPS)
    share = (timesteps.float() / TIMESTEPS).view(-1, 1, 1, 1)
    return Workload(
        module=module,
        inputs=((1 - share) * clean + share * noise, timesteps, generator.integers("labels", (batch_size,), classes)),
        targets=noise - clean,  # multiples of 1/16 below 4: every dtype holds them
        loss=regression_loss,
        optimizer=adamw,
    )


class TimedStage(nn.Module):
    """A residual block with the time as input, between group norms and SiLU, and optional attention over pixels."""

    def __init__(self, inputs: int, outputs: int, embedding: int, heads: int | None):
        super().__init__()
        self.norm = _group_norm(inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(embedding, outputs)
        self.second_norm = _group_norm(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.attention_norm = _group_norm(outputs) if heads else None
        self.attention = Attention(outputs, heads) if heads else None

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the stream (batch, outputs, height, width); `time` is an embedding, activated (batch, embedding)."""
        y = self.first(F.silu(self.norm(x))) + self.time(time)[:, :, None, None]
        x = self.skip(x) + self.second(F.silu(self.second_norm(y)))
        if self.attention is not None and self.attention_norm is not None:
            attended = self.attention(self.attention_norm(x).flatten(2).transpose(1, 2))
            x = x + attended.transpose(1, 2).unflatten(2, x.shape[2:])
        return x


class DiffusionUNet(nn.Module):
    """Down to a quarter of the resolution and up again, `depth` timed stages each, with skips from every stage.

    Attention is at all resolutions but the first. Source: Ho et al., NeurIPS 2020; in latents as in Rombach et al.,
    "High-resolution image synthesis with latent diffusion models", CVPR 2022, without the text.
    """

    def __init__(self, width: int, depth: int, heads: int):
        super().__init__()
        widths = [width * level for level in LEVELS]
        self.time = Timesteps(width, 4 * width)
        self.stem = nn.Conv2d(LATENTS, width, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        skips, channels = [width], width
        for level, outputs in enumerate(widths):
            for _ in range(depth):
                self.down.append(TimedStage(channels, outputs, 4 * width, heads if level else None))
                channels = outputs
                skips.append(channels)
            if level + 1 < len(widths):
                self.shrink.append(nn.Conv2d(channels, channels, 3, stride=2, padding=1))
                skips.append(channels)
        self.middle = nn.ModuleList(TimedStage(channels, channels, 4 * width, at) for at in (heads, None))
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for level, outputs in reversed(list(enumerate(widths))):
            for _ in range(depth + 1):
                self.up.append(TimedStage(channels + skips.pop(), outputs, 4 * width, heads if level else None))
                channels = outputs
            if level:
                self.grow.append(nn.Conv2d(channels, channels, 3, padding=1))
        self.norm = _group_norm(width)
        self.head = nn.Conv2d(width, LATENTS, 3, padding=1)
        self.depth = depth

    def forward(self, latents: Tensor, timesteps: Tensor) -> Tensor:
        """Return a tensor as `latents` (batch, LATENTS, side, side); timesteps are integers (batch,)."""
        time = F.silu(self.time(timesteps))
        x = self.stem(latents)
        skips = [x]
        for place, stage in enumerate(self.down, 1):
            x = stage(x, time)
            skips.append(x)
            if place % self.depth == 0 and place < len(self.down):
                x = self.shrink[place // self.depth - 1](x)
                skips.append(x)
        for stage in self.middle:
            x = stage(x, time)
        for place, stage in enumerate(self.up, 1):
            x = stage(torch.cat((x, skips.pop()), dim=1), time)
            if place % (self.depth + 1) == 0 and skips:
                x = self.grow[place // (self.depth + 1) - 1](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.head(F.silu(self.norm(x)))  # type: ignore[no-any-return]


def diffusion_unet(
    generator: Generator, *, width: int, depth: int, heads: int, image: int, batch_size: int
) -> Workload:
    """A U-Net that predicts the noise in latent images at given timesteps; mean squared error, AdamW.

    Inputs are latents (batch_size, LATENTS, image, image), noisy by the linear schedule of Ho et al. (2020), and
    timesteps from 0 to 999.
    """
    with device("meta"):
        module = DiffusionUNet(width, depth, heads)
    active = SILU_VARIANCE**-0.5
    gains = {
        "time.up": 1.4,  # as in the diffusion transformer
        "time.down": active,
        "*.first": active,
        "*.time": 0.5 * active,
        "*.second": 0.5 * active,
        "*.query_key_value": SHARPNESS,
        "*.project": 0.7,
        "head": 1.155 * active,  # the RMS of the noise
    }
    fill(generator, module, gains=gains)
    shape = (batch_size, LATENTS, image, image)
    clean, noise = generator.uniform("images", shape), grid_targets(generator, shape, "noise")
    timesteps = generator.integers("timesteps", (batch_size,), TIMESTEPS)
    signal, added = (part[timesteps].view(-1, 1, 1, 1) for part in _noise_schedule())
    return Workload(
        module=module,
        inputs=(signal * clean + added * noise, timesteps),
        targets=noise,
        loss=regression_loss,
        optimizer=adamw,
    )


def _boxes(generator: Generator, regions: int, image: int, batch_size: int) -> Tensor:
    """Return boxes with sides from an eighth to a half of the image, wholly inside it, in steps of 1/1024 pixel."""
    unit = 1024  # the product of image and unit stays below 2**24: every coordinate is exact in fp32
    shape = (batch_size, regions, 2)
    extent = image * unit
    sides = extent // 8 + generator.integers("boxes.sides", shape, 3 * extent // 8)
    corners = generator.integers("boxes.corners", shape, 2**31) % (extent - sides)
    return (torch.cat((corners, corners + sides), dim=-1).double() / unit).float()


def _group_norm(channels: int) -> nn.GroupNorm:
    """Return a norm of 32 groups, as in Ho et al. (2020), fewer where a group would have less than four channels."""
    return nn.GroupNorm(math.gcd(32, channels // 4), channels)


def _places_in_square(side: int, width: int) -> Tensor:
    """Return sinusoids (side * side, width) of the places in a square, half of each for the row and for the column."""
    half = torch.cat([waves(function, side, width // 4) for function in (math.sin, math.cos)], dim=1)
    return torch.cat((half.repeat_interleave(side, dim=0), half.repeat(side, 1)), dim=1)


def _noise_schedule() -> tuple[Tensor, Tensor]:
    """Return the shares of image and of noise at every timestep: of variances that grow from 1e-4 to 0.02."""
    kept, signal, noise = 1.0, [], []
    for step in range(TIMESTEPS):
        kept *= 1 - (1e-4 + (0.02 - 1e-4) * step / (TIMESTEPS - 1))
        signal.append(math.sqrt(kept))
        noise.append(math.sqrt(1 - kept))
    return torch.tensor(signal), torch.tensor(noise)

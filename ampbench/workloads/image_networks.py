"""The networks of torchvision and timm by name, all of images.

Sizes are as for the libraries' own weights: from torchvision's transforms, from timm's configurations. Losses are from
torchvision's training references. Networks of timm without a head give features. timm, which needs torchvision, is
imported only for its own networks.
"""

import contextlib
import functools
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models

from ampbench.worker.data import Generator
from ampbench.workloads.index import RANDOM
from ampbench.workloads.named import Library, Named, Parameters, classified_images

CLASSES, SEGMENTATION, DETECTION = "image classification", "semantic segmentation", "object detection"
_FOLDERS = {CLASSES: models, SEGMENTATION: models.segmentation, DETECTION: models.detection}
"""The modules of torchvision with the networks of each task."""
_OTHER_TARGETS = ("maskrcnn", "keypointrcnn")
"""Detectors that train on more than boxes."""

AUXILIARY = 0.3
"""Weight of the loss of an auxiliary classifier (Szegedy et al., "Going deeper with convolutions", CVPR 2015)."""
SEGMENTED = 0.5
"""Weight of the loss of segmentation's auxiliary head, in torchvision's reference."""
BOXES = 4

_TINY = {"inception_v3": 299, "maxvit_t": 224}
"""The smallest images of networks that do not take the smallest of their task."""
_TINY_OF = {CLASSES: 64, SEGMENTATION: 64, DETECTION: 128}
_BATCH = {CLASSES: 64, SEGMENTATION: 8, DETECTION: 4}
_POOLED = ("deeplab", "ssdlite", "inception")
"""Names of networks that normalise one number a sample, so training needs two samples."""
_OWN = {SEGMENTATION: 520, DETECTION: 800}
"""The size of images where the library's transforms name none: from its training references."""


@functools.cache
def _tasks() -> Mapping[str, str]:
    named = ((name, task) for task, folder in _FOLDERS.items() for name in models.list_models(module=folder))
    return {name: task for name, task in sorted(named) if not name.startswith(_OTHER_TARGETS)}


def _network(name: str, preset: str) -> Named:
    task = _tasks()[name]
    transforms = next(iter(models.get_model_weights(name))).transforms()
    sizes = getattr(transforms, "crop_size", None) or [_OWN.get(task, 224)]
    image = 320 if "_320" in name or "320_" in name else int(sizes[-1])
    if preset == "tiny":
        image = 2 * int(name.rpartition("_")[2]) if name.startswith("vit_") else _TINY.get(name, _TINY_OF[task])
    elif name == "ssd300_vgg16":
        image = 300
    batch = _BATCH[task] if preset == "large" else 2 if name.startswith(_POOLED) else 1
    classes = {CLASSES: 1000, SEGMENTATION: 21, DETECTION: 91}[task]
    feed = {CLASSES: _classify, SEGMENTATION: _segment, DETECTION: _detect}[task]
    return Named(
        task=task,
        defaults={
            "classes": 10 if preset == "tiny" else classes,
            "image": image,
            "batch_size": batch,
        },
        make=functools.partial(_make, name, task),
        feed=functools.partial(feed, name),
        images=task != DETECTION,
    )


TORCHVISION = Library("torchvision", _tasks, _network)


def _make(name: str, task: str, parameters: Parameters) -> nn.Module:
    further: dict[str, Any] = {"num_classes": parameters["classes"]}
    if task in (SEGMENTATION, DETECTION):
        further["weights_backbone"] = None
    if name.startswith("vit_"):
        further["image_size"] = parameters["image"]
    elif name.startswith("maxvit"):
        further["input_size"] = (parameters["image"], parameters["image"])
    elif name in ("inception_v3", "googlenet"):
        further["init_weights"] = True
    elif task == DETECTION:
        # images unscaled, and the best boxes at any score
        further |= {"box_score_thresh" if "rcnn" in name else "score_thresh": 0.0}
        further |= {} if name.startswith("ssd") else dict.fromkeys(("min_size", "max_size"), parameters["image"])
    module: nn.Module = models.get_model(name, weights=None, **further)
    return module


def _classify(name: str, generator: Generator, parameters: Parameters) -> Mapping[str, Any]:
    fed = classified_images(generator, parameters)
    return fed | {"loss": _with_auxiliary} if name in ("inception_v3", "googlenet") else fed


def _with_auxiliary(output: Any, targets: Tensor) -> Tensor:
    """Return the loss of logits, plus auxiliary classifiers' logits in training."""
    every = [output] if isinstance(output, Tensor) else [part for part in output if part is not None]
    first, *others = [F.cross_entropy(logits, targets) for logits in every]
    return first + AUXILIARY * sum(others)


def _segment(name: str, generator: Generator, parameters: Parameters) -> Mapping[str, Any]:  # noqa: ARG001 - as all
    size = (parameters["batch_size"], parameters["image"], parameters["image"])
    targets = generator.integers("targets", size, parameters["classes"])
    return classified_images(generator, parameters, targets=targets, loss=_pixel_loss)


def _pixel_loss(output: Mapping[str, Tensor], targets: Tensor) -> Tensor:
    first, *others = [F.cross_entropy(logits, targets) for logits in output.values()]
    return first + SEGMENTED * sum(others)


def _detect(name: str, generator: Generator, parameters: Parameters) -> Mapping[str, Any]:  # noqa: ARG001 - as all
    """Feed images in [0, 1] and, for training, what is in them; of boxes found with random weights, compare the scores.

    Which of a hundred nearly equal scores comes first is chance then, and so are the boxes in that order.
    """
    samples, image = parameters["batch_size"], parameters["image"]
    corners = generator.uniform("corners", (samples, BOXES, 2), rms=image / 16, mean=image / 4)
    boxes = torch.cat((corners, corners + image / 4), dim=-1)
    labels = generator.integers("labels", (samples, BOXES), parameters["classes"] - 1) + 1
    targets = [{"boxes": boxes[sample], "labels": labels[sample]} for sample in range(samples)]
    images = generator.uniform("inputs", (samples, 3, image, image), rms=0.25, mean=0.5)
    compared = {"outputs": _scores} if parameters["weights"] == RANDOM else {}
    return {"inputs": (images, targets), "loss": _sum_of_losses, "items_per_step": samples, **compared}


def _scores(output: Any) -> Any:
    return output if isinstance(output, Mapping) else [{"scores": detection["scores"]} for detection in output]


def _sum_of_losses(output: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([loss.float() if loss.dtype.itemsize < 4 else loss for loss in output.values()]).sum()


FEATURES = "features of images"
TIMM_TINY, PATCHES = 96, 4
"""The smallest side of images, and its number of patches for networks that need a multiple of a patch."""
_PATCH = re.compile(r"^(?:vit|deit|deit3|eva02|beit|beitv2|mixer)_.*patch(\d+)")


@functools.cache
def _timm_tasks() -> Mapping[str, str]:
    import timm

    return {name: CLASSES if _configuration(name).num_classes else FEATURES for name in timm.list_models()}


def _timm_network(name: str, preset: str) -> Named:
    held = _configuration(name)
    channels, side = held.input_size[0], held.input_size[-1]
    image = side
    if preset == "tiny" and (match := _PATCH.match(name)):
        image = min(side, PATCHES * int(match[1]))
    elif preset == "tiny" and not held.fixed_input_size:
        image = min(side, TIMM_TINY)
    classes = {"classes": 10 if preset == "tiny" else held.num_classes} if held.num_classes else {}
    pooled = name.startswith("levit")  # normalises one number a sample, which takes two in training
    return Named(
        task=CLASSES if classes else FEATURES,
        defaults={
            **classes,
            "image": image,
            "batch_size": 64 if preset == "large" else 2 if pooled else 1,
        },
        make=functools.partial(_make_timm, name, side),
        feed=functools.partial(_feed_timm, channels),
        trains=bool(classes),
    )


TIMM = Library("timm", _timm_tasks, _timm_network)


def _configuration(name: str) -> Any:
    import timm

    held = timm.get_pretrained_cfg(name, allow_unregistered=True)
    return timm.models.PretrainedCfg() if held is None else held


def _make_timm(name: str, side: int, parameters: Parameters) -> nn.Module:
    import timm

    further: dict[str, Any] = {"num_classes": parameters.get("classes", 0)}
    module: nn.Module | None = None
    if parameters["image"] != side:
        with contextlib.suppress(TypeError):  # it takes images of any size
            module = timm.create_model(name, pretrained=False, img_size=parameters["image"], **further)
    return timm.create_model(name, pretrained=False, **further) if module is None else module


def _feed_timm(channels: int, generator: Generator, parameters: Parameters) -> Mapping[str, Any]:
    if "classes" in parameters:
        return classified_images(generator, parameters, channels)
    samples, image = parameters["batch_size"], parameters["image"]
    return {"inputs": generator.uniform("inputs", (samples, channels, image, image)), "items_per_step": samples}

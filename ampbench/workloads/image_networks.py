"""The networks of torchvision and timm by name, all of images.

Sizes are as for the libraries' own weights: from torchvision's transforms, from timm's configurations. Losses are from
torchvision's training references. Networks of timm without a head give features. timm, which needs torchvision, is
imported only for its own networks.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models

from ampbench.worker.data import Generator
from ampbench.workloads.named import Library, Named, Parameters, classified_images

CLASSES, SEGMENTATION = "image classification", "semantic segmentation"
_FOLDERS = {CLASSES: models, SEGMENTATION: models.segmentation}
"""The modules of torchvision with the networks of each task."""

AUXILIARY = 0.3
"""Weight of the loss of an auxiliary classifier (Szegedy et al., "Going deeper with convolutions", CVPR 2015)."""
SEGMENTED = 0.5
"""Weight of the loss of segmentation's auxiliary head, in torchvision's reference."""

_TINY = {"inception_v3": 299, "maxvit_t": 224}
"""The smallest images of networks that do not take the smallest of their task."""
TINY = 64
"""The side of other images in the preset tiny."""
_BATCH = {CLASSES: 64, SEGMENTATION: 8}
_POOLED = ("deeplab", "inception")
"""Names of networks that normalise one number a sample, so training needs two samples."""
SEGMENTS = 520
"""The size of images for segmentation, in torchvision's training references."""


@functools.cache
def _tasks() -> Mapping[str, str]:
    return {name: task for task, folder in _FOLDERS.items() for name in models.list_models(module=folder)}


def _network(name: str, preset: str) -> Named:
    task = _tasks()[name]
    transforms = next(iter(models.get_model_weights(name))).transforms()
    image = SEGMENTS if task == SEGMENTATION else int(transforms.crop_size[-1])
    if preset == "tiny":
        image = 2 * int(name.rpartition("_")[2]) if name.startswith("vit_") else _TINY.get(name, TINY)
    batch = _BATCH[task] if preset == "large" else 2 if name.startswith(_POOLED) else 1
    classes = {CLASSES: 1000, SEGMENTATION: 21}[task]
    feed: Callable[[Generator, Parameters], Mapping[str, Any]] = _segment
    if task == CLASSES:
        feed = functools.partial(_classify, name)
    return Named(
        task=task,
        defaults={
            "classes": 10 if preset == "tiny" else classes,
            "image": image,
            "batch_size": batch,
        },
        make=functools.partial(_make, name, task),
        feed=feed,
    )


TORCHVISION = Library("torchvision", _tasks, _network)


def _make(name: str, task: str, parameters: Parameters) -> nn.Module:
    further: dict[str, Any] = {"num_classes": parameters["classes"]}
    if task == SEGMENTATION:
        further["weights_backbone"] = None
    if name.startswith("vit_"):
        further["image_size"] = parameters["image"]
    elif name.startswith("maxvit"):
        further["input_size"] = (parameters["image"], parameters["image"])
    elif name in ("inception_v3", "googlenet"):
        further["init_weights"] = True
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


def _segment(generator: Generator, parameters: Parameters) -> Mapping[str, Any]:
    size = (parameters["batch_size"], parameters["image"], parameters["image"])
    targets = generator.integers("targets", size, parameters["classes"])
    return classified_images(generator, parameters, targets=targets, loss=_pixel_loss)


def _pixel_loss(output: Mapping[str, Tensor], targets: Tensor) -> Tensor:
    first, *others = [F.cross_entropy(logits, targets) for logits in output.values()]
    return first + SEGMENTED * sum(others)


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

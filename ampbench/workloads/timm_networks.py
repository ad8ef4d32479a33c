"""timm's networks by name: classifiers of images, and networks without a head, which give features.

Sizes are as for the library's own weights, from their configurations in the package.
"""

import contextlib
import functools
import re
from collections.abc import Mapping
from typing import Any

import timm
from torch import nn

from ampbench.worker.data import Generator
from ampbench.workloads.named import Library, Named, Parameters, classified_images

CLASSES, FEATURES = "image classification", "features of images"
TINY, PATCHES = 96, 4
"""The smallest side of images, and its number of patches for networks that need a multiple of a patch."""
_PATCH = re.compile(r"^(?:vit|deit|deit3|eva02|beit|beitv2|mixer)_.*patch(\d+)")


@functools.cache
def tasks() -> Mapping[str, str]:
    """Return every name with the network's task."""
    return {name: CLASSES if _configuration(name).num_classes else FEATURES for name in timm.list_models()}


def find(name: str, preset: str) -> Named:
    """Return a network by its name, with or without the tag of its weights, of the size that a preset gives it."""
    held = _configuration(name)
    channels, side = held.input_size[0], held.input_size[-1]
    classes = {"classes": 10 if preset == "tiny" else held.num_classes} if held.num_classes else {}
    pooled = name.startswith("levit")  # normalises one number a sample, which takes two in training
    return Named(
        task=CLASSES if classes else FEATURES,
        defaults={
            **classes,
            "image": _tiny(name, held) if preset == "tiny" else side,
            "batch_size": 64 if preset == "large" else 2 if pooled else 1,
        },
        make=functools.partial(_make, name, side),
        feed=functools.partial(_feed, channels),
        trains=bool(classes),
    )


LIBRARY = Library("timm", tasks, find)


def _configuration(name: str) -> Any:
    held = timm.get_pretrained_cfg(name, allow_unregistered=True)
    return timm.models.PretrainedCfg() if held is None else held


def _tiny(name: str, held: Any) -> int:
    side = int(held.input_size[-1])
    if match := _PATCH.match(name):
        return min(side, PATCHES * int(match[1]))
    return side if held.fixed_input_size else min(side, TINY)


def _make(name: str, side: int, parameters: Parameters) -> nn.Module:
    further: dict[str, Any] = {"num_classes": parameters.get("classes", 0)}
    module: nn.Module | None = None
    if parameters["image"] != side:
        with contextlib.suppress(TypeError):  # it takes images of any size
            module = timm.create_model(name, pretrained=False, img_size=parameters["image"], **further)
    return timm.create_model(name, pretrained=False, **further) if module is None else module


def _feed(channels: int, generator: Generator, parameters: Parameters) -> Mapping[str, Any]:
    if "classes" in parameters:
        return classified_images(generator, parameters, channels)
    samples, image = parameters["batch_size"], parameters["image"]
    return {"inputs": generator.uniform("inputs", (samples, channels, image, image)), "items_per_step": samples}

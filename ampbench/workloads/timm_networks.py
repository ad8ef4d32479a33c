"""timm's networks by name: classifiers of images, and networks without a head, which give features.

Sizes are those of the library's own weights, as their configurations have them, which come with the package.
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
"""The smallest side of images: of networks that take any, and in patches, of those that take a multiple of a patch."""
_PATCH = re.compile(r"^(?:vit|deit|deit3|eva02|beit|beitv2|mixer)_.*patch(\d+)")


@functools.cache
def tasks() -> Mapping[str, str]:
    """Return every name with what the network does."""
    return {name: CLASSES if _configuration(name).num_classes else FEATURES for name in timm.list_models()}


def find(name: str, preset: str) -> Named:
    """Return a network by its name, with or without the tag of its weights, of the size that a preset gives it."""
    held = _configuration(name)
    channels, own = held.input_size[0], held.input_size[-1]
    classes = {"classes": 10 if preset == "tiny" else held.num_classes} if held.num_classes else {}
    pooled = name.startswith("levit")  # normalises one number a sample, which takes two in training
    return Named(
        task=CLASSES if classes else FEATURES,
        defaults={
            **classes,
            "image": _tiny(name, held) if preset == "tiny" else own,
            "batch_size": 64 if preset == "large" else 2 if pooled else 1,
        },
        make=functools.partial(_make, name, own),
        feed=functools.partial(_feed, channels),
        trains=bool(classes),
    )


LIBRARY = Library("timm", tasks, find)


def _configuration(name: str) -> Any:
    held = timm.get_pretrained_cfg(name, allow_unregistered=True)
    return timm.models.PretrainedCfg() if held is None else held


def _tiny(name: str, held: Any) -> int:
    own = int(held.input_size[-1])
    if found := _PATCH.match(name):
        return min(own, PATCHES * int(found[1]))
    return own if held.fixed_input_size else min(own, TINY)


def _make(name: str, own: int, given: Parameters) -> nn.Module:
    further: dict[str, Any] = {"num_classes": given.get("classes", 0)}
    made: nn.Module | None = None
    if given["image"] != own:
        with contextlib.suppress(TypeError):  # it takes images of any size
            made = timm.create_model(name, pretrained=False, img_size=given["image"], **further)
    return timm.create_model(name, pretrained=False, **further) if made is None else made


def _feed(channels: int, generator: Generator, given: Parameters) -> Mapping[str, Any]:
    if "classes" in given:
        return classified_images(generator, given, channels)
    samples, image = given["batch_size"], given["image"]
    return {"inputs": generator.uniform("inputs", (samples, channels, image, image)), "items_per_step": samples}

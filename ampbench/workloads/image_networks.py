"""The networks of torchvision and timm by name: of images, video and optical flow.

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
from ampbench.workloads.weights import grid_targets

CLASSES, SEGMENTATION, DETECTION, VIDEO, FLOW = (
    "image classification", "semantic segmentation", "object detection", "video classification", "optical flow",
)  # fmt: skip
_TASKS = {
    "segmentation": SEGMENTATION,
    "detection": DETECTION,
    "video": VIDEO,
    "optical_flow": FLOW,
    "quantization": "",  # the float twins of networks that have names of their own
}
"""The tasks of sub-packages of `torchvision.models`; networks of other modules classify images."""

AUXILIARY = 0.3
"""Weight of the loss of an auxiliary classifier (Szegedy et al., "Going deeper with convolutions", CVPR 2015)."""
SEGMENTED = 0.5
"""Weight of the loss of segmentation's auxiliary head, in torchvision's reference."""
BOXES, POINTS, FRAMES = 4, 17, 16

_TINY = {"inception_v3": 299, "maxvit_t": 224, "mvit_v1_b": 224, "mvit_v2_s": 224, "s3d": 224}
"""The smallest images of networks that do not take the smallest of their task."""
_TINY_OF = {CLASSES: 64, SEGMENTATION: 64, DETECTION: 128, VIDEO: 64, FLOW: 128}
_BATCH = {CLASSES: 64, SEGMENTATION: 8, DETECTION: 4, VIDEO: 8, FLOW: 4}
_POOLED = ("deeplab", "ssdlite", "inception")
"""Names of networks that normalise one number a sample, so training needs two samples."""
_OWN = {SEGMENTATION: 520, DETECTION: 800, VIDEO: 224, FLOW: 256}
"""The size of images where the library's transforms name none: from its training references."""


@functools.cache
def _tasks() -> Mapping[str, str]:
    return {name: task for name in models.list_models() if (task := _task(name))}


def _task(name: str) -> str:
    module = models.get_model_builder(name).__module__.split(".")
    return _TASKS.get(module[2], CLASSES)


def _network(name: str, preset: str) -> Named:
    """Return a network of torchvision by its name, of the size that a preset gives it."""
    task = _tasks()[name]
    image = _image(name, task)
    batch = _BATCH[task] if preset == "large" else 2 if name.startswith(_POOLED) else 1
    defaults = {"image": image if preset != "tiny" else _tiny(name, task), "batch_size": batch}
    if task == VIDEO:
        short = preset == "tiny" and not name.startswith(("mvit", "s3d"))
        defaults = {"sequence_length": FRAMES // 2 if short else FRAMES, **defaults}
    if task != FLOW:
        classes = {CLASSES: 1000, SEGMENTATION: 21, DETECTION: 91, VIDEO: 400}[task]
        classes = 2 if name.startswith("keypoint") else 10 if preset == "tiny" else classes
        defaults = {"classes": classes, **defaults}
    feed = {CLASSES: _classify, SEGMENTATION: _segment, DETECTION: _detect, VIDEO: _watch, FLOW: _flow}[task]
    return Named(
        task=task,
        defaults=defaults,
        make=functools.partial(_make, name, task),
        feed=functools.partial(feed, name),
        images=task in (CLASSES, SEGMENTATION, FLOW),
    )


TORCHVISION = Library("torchvision", _tasks, _network)


def _image(name: str, task: str) -> int:
    weights = models.get_model_weights(name)
    transforms = next(iter(weights)).transforms()
    sizes = getattr(transforms, "crop_size", None) or [_OWN.get(task, 224)]
    return {"ssd300_vgg16": 300}.get(name) or (320 if "_320" in name or "320_" in name else int(sizes[-1]))


def _tiny(name: str, task: str) -> int:
    if name.startswith("vit_"):
        return 2 * int(name.rpartition("_")[2])
    return _TINY.get(name, _TINY_OF[task])


def _make(name: str, task: str, parameters: Parameters) -> nn.Module:
    further: dict[str, Any] = {}
    if task != FLOW:
        further["num_classes"] = parameters["classes"]
    if task in (SEGMENTATION, DETECTION):
        further["weights_backbone"] = None
    if name.startswith("vit_"):
        further["image_size"] = parameters["image"]
    elif name.startswith("maxvit"):
        further["input_size"] = (parameters["image"], parameters["image"])
    elif name in ("inception_v3", "googlenet"):
        further["init_weights"] = True
    elif task == DETECTION:
        further |= _detector(name, parameters["image"])
    module: nn.Module = models.get_model(name, weights=None, **further)
    return module


def _detector(name: str, image: int) -> dict[str, Any]:
    """Return arguments that make a detector take images unscaled and keep the best boxes at any score."""
    size = {} if name.startswith("ssd") else {"min_size": image, "max_size": image}
    return size | {"box_score_thresh" if "rcnn" in name else "score_thresh": 0.0}


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


def _detect(name: str, generator: Generator, parameters: Parameters) -> Mapping[str, Any]:
    """Feed images in [0, 1] and, for training, what is in them; of boxes found with random weights, compare the scores.

    Which of a hundred nearly equal scores comes first is chance then, and so are the boxes in that order.
    """
    samples, image = parameters["batch_size"], parameters["image"]
    corners = generator.uniform("corners", (samples, BOXES, 2), rms=image / 16, mean=image / 4)
    boxes = torch.cat((corners, corners + image / 4), dim=-1)
    labels = generator.integers("labels", (samples, BOXES), parameters["classes"] - 1) + 1
    targets = [{"boxes": boxes[sample], "labels": labels[sample]} for sample in range(samples)]
    if name.startswith("maskrcnn"):
        for target in targets:
            target["masks"] = torch.stack([_filled(box, image) for box in target["boxes"]])
    if name.startswith("keypointrcnn"):
        within = generator.uniform("points", (samples, BOXES, POINTS, 2), rms=image / 32, mean=image / 8)
        points = F.pad(within + corners[:, :, None], (0, 1), value=1.0)
        for target, keypoints in zip(targets, points, strict=True):
            target["keypoints"] = keypoints
    images = generator.uniform("inputs", (samples, 3, image, image), rms=0.25, mean=0.5)
    compared = {"outputs": _scores} if parameters["weights"] == RANDOM else {}
    return {"inputs": (images, targets), "loss": _sum_of_losses, "items_per_step": samples, **compared}


def _filled(box: Tensor, image: int) -> Tensor:
    mask = torch.zeros(image, image, dtype=torch.uint8)
    left, top, right, bottom = box.int().tolist()
    mask[top:bottom, left:right] = 1
    return mask


def _scores(output: Any) -> Any:
    return output if isinstance(output, Mapping) else [{"scores": detection["scores"]} for detection in output]


def _sum_of_losses(output: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([loss.float() if loss.dtype.itemsize < 4 else loss for loss in output.values()]).sum()


def _watch(name: str, generator: Generator, parameters: Parameters) -> Mapping[str, Any]:  # noqa: ARG001
    size = (parameters["batch_size"], 3, parameters["sequence_length"], parameters["image"], parameters["image"])
    return classified_images(generator, parameters, inputs=generator.uniform("clips", size))


def _flow(name: str, generator: Generator, parameters: Parameters) -> Mapping[str, Any]:  # noqa: ARG001
    size = (parameters["batch_size"], 3, parameters["image"], parameters["image"])
    return {
        "inputs": tuple(generator.uniform(frame, size, rms=0.5) for frame in ("before", "after")),
        "targets": grid_targets(generator, (size[0], 2, *size[2:])),
        "loss": _flow_loss,
        "items_per_step": size[0],
    }


def _flow_loss(output: list[Tensor], targets: Tensor) -> Tensor:
    """Return the loss of RAFT's refinements, each at 0.8 of the next (Teed & Deng, ECCV 2020)."""
    weighted = [0.8 ** (len(output) - 1 - place) * F.l1_loss(flow, targets) for place, flow in enumerate(output)]
    return torch.stack(weighted).sum()


FEATURES = "features of images"
TIMM_TINY, PATCHES = 96, 4
"""The smallest side of images, and its number of patches for networks that need a multiple of a patch."""
_PATCH = re.compile(r"^(?:vit|deit|deit3|eva02|beit|beitv2|mixer)_.*patch(\d+)")


@functools.cache
def _timm_tasks() -> Mapping[str, str]:
    import timm

    return {name: CLASSES if _configuration(name).num_classes else FEATURES for name in timm.list_models()}


def _timm_network(name: str, preset: str) -> Named:
    """Return a network of timm by its name, with or without the tag of its weights, of a preset's size."""
    held = _configuration(name)
    channels, side = held.input_size[0], held.input_size[-1]
    classes = {"classes": 10 if preset == "tiny" else held.num_classes} if held.num_classes else {}
    pooled = name.startswith("levit")  # normalises one number a sample, which takes two in training
    return Named(
        task=CLASSES if classes else FEATURES,
        defaults={
            **classes,
            "image": _timm_tiny(name, held) if preset == "tiny" else side,
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


def _timm_tiny(name: str, held: Any) -> int:
    side = int(held.input_size[-1])
    if match := _PATCH.match(name):
        return min(side, PATCHES * int(match[1]))
    return side if held.fixed_input_size else min(side, TIMM_TINY)


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

"""The workloads by name, without torch: the built-in ones, their parameters and presets, and libraries of others."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.case import ParameterValue, WorkloadSource

PRESETS = ("tiny", "small", "large")

LIMITS: dict[str, tuple[int, int]] = {
    "batch_size": (1, 1_048_576),
    "image": (1, 8192),
    "classes": (2, 1_048_576),
    "depth": (1, 1024),
    "width": (1, 65_536),
    "heads": (1, 1024),
    "features": (1, 65_536),
    "sequence_length": (1, 131_072),
    "vocabulary": (2, 1_048_576),
    "regions": (1, 65_536),
    "layers": (1, 1024),
    "hidden": (1, 65_536),
    "experts": (8, 1024),
}
"""The smallest and largest value of a parameter of that name, in every workload that does not narrow it."""


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """One built-in workload: `sizes` are every parameter's values in `PRESETS`, the batch size last.

    The function `name` in `ampbench.workloads.<family>` builds it; all parameters are whole numbers. `items` is what
    throughput counts. `needs` is a package without which the workload is skipped ("torchvision"). `limits` narrows
    `LIMITS` for some parameters; `multiples` names those that must be a multiple of a product of other parameters and
    numbers. `suite` lists the phases in which the default suite measures it (none: only when asked for).
    """

    name: str
    family: str
    items: str
    summary: str
    sizes: Mapping[str, tuple[int, int, int]]
    version: int = 1
    needs: str = ""
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    multiples: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    suite: tuple[str, ...] = ()

    @property
    def images(self) -> bool:
        """Whether its inputs are images, so that the channels-last memory format applies."""
        return self.items == "images"

    def preset(self, name: str) -> Mapping[str, int]:
        """Return every parameter's value in the preset `name`; `UnknownNameError` for anything but a preset."""
        if name not in PRESETS:
            raise UnknownNameError("preset", name, PRESETS)
        return {parameter: values[PRESETS.index(name)] for parameter, values in self.sizes.items()}


WORKLOADS: dict[str, WorkloadSpec] = {
    spec.name: spec
    for spec in (
        WorkloadSpec("simple_conv", "conv", "images",
            "one strided 3x3 convolution from 64 to 128 channels: the example of Intel's mixed-precision guide",
            {"image": (8, 56, 224), "batch_size": (2, 2, 64)},
            suite=("inference", "training")),
        WorkloadSpec("resnet18", "conv", "images", "torchvision's ResNet-18",
            {"classes": (10, 1000, 1000), "image": (40, 224, 224), "batch_size": (1, 1, 512)},
            needs="torchvision", limits={"image": (40, 8192)}),
        WorkloadSpec("resnet50", "conv", "images", "torchvision's ResNet-50, the field's reference",
            {"classes": (10, 1000, 1000), "image": (40, 224, 224), "batch_size": (1, 1, 256)},
            needs="torchvision", limits={"image": (40, 8192)}),
        WorkloadSpec("mobilenet_v3_large", "conv", "images",
            "torchvision's MobileNetV3-Large: depthwise convolutions, squeeze-and-excitation, hardswish",
            {"classes": (10, 1000, 1000), "image": (40, 224, 224), "batch_size": (1, 1, 512)},
            needs="torchvision", suite=("inference",), limits={"image": (40, 8192)}),
        WorkloadSpec("mlp", "linear", "rows",
            "a classifier of linear layers with ReLU: features, hidden layers, classes",
            {"features": (32, 784, 784), "depth": (2, 3, 6), "width": (32, 512, 4096), "classes": (10, 10, 1000),
             "batch_size": (8, 32, 16_384)},
            suite=("inference", "training")),
        WorkloadSpec("transformer_encoder", "sequence", "tokens",
            "pre-norm encoder with scaled_dot_product_attention; its first operation is a layer norm",
            {"depth": (2, 2, 24), "width": (32, 192, 1024), "heads": (2, 3, 16), "sequence_length": (8, 64, 512),
             "classes": (10, 100, 1000), "batch_size": (2, 1, 64)},
            suite=("inference", "training"), multiples={"width": ("heads",)}),
        WorkloadSpec("decoder_lm", "sequence", "tokens",
            "causal language model: RMS norm, rotary positions, SwiGLU, tied embedding",
            {"depth": (2, 2, 24), "width": (32, 256, 1024), "heads": (2, 4, 16), "vocabulary": (64, 8192, 50_304),
             "sequence_length": (8, 32, 2048), "batch_size": (2, 1, 8)},
            multiples={"width": ("heads", 2)}),
        WorkloadSpec("softmax_head", "linear", "rows",
            "a linear layer and softmax, with the Brier score: probabilities in half precision",
            {"width": (32, 512, 1024), "classes": (10, 100, 100), "batch_size": (8, 256, 131_072)},
            limits={"classes": (2, 1000)}),
        WorkloadSpec("cross_entropy_head", "linear", "rows",
            "a linear layer to a large vocabulary and cross entropy: the end of a language model",
            {"width": (32, 128, 4096), "vocabulary": (64, 32_000, 32_000), "batch_size": (8, 16, 16_384)},
            suite=("inference", "training")),
        WorkloadSpec("roi_head", "conv", "images",
            "a detector's second stage: torchvision's RoIAlign on a small backbone, boxes given in pixels",
            {"width": (8, 32, 256), "regions": (4, 32, 512), "classes": (10, 91, 91), "image": (64, 256, 3072),
             "batch_size": (1, 1, 4)},
            needs="torchvision", suite=("inference", "training"), limits={"image": (32, 8192)},
            multiples={"image": (16,), "width": (4,)}),
        WorkloadSpec("digits", "data", "images",
            "a small convolutional classifier of scikit-learn's handwritten digits, for training studies",
            {"width": (4, 32, 128), "batch_size": (8, 64, 125)},
            needs="sklearn", limits={"batch_size": (1, 1000)}),
        WorkloadSpec("characters", "data", "tokens",
            "a small causal language model of the characters of Python's help texts, for training studies",
            {"depth": (1, 2, 6), "width": (16, 64, 384), "heads": (2, 2, 6), "sequence_length": (8, 32, 256),
             "batch_size": (4, 16, 64)},
            needs="pydoc_data", limits={"sequence_length": (1, 1024), "batch_size": (1, 256)},
            multiples={"width": ("heads", 2)}),
    )
}  # fmt: skip
"""Every built-in workload by name, family by family, in the order of tables."""

FAMILIES = tuple(dict.fromkeys(spec.family for spec in WORKLOADS.values()))
"""Each is a module of this package, with a function for each of its workloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A package whose networks can be named: `timm:vit_small_patch16_224`, or `timm:vit_*` for all that match.

    `name` is the package's and stands before the colon; `extra` is ampbench's that installs it. Only a worker imports
    the `module` that knows and builds its networks.
    """

    name: str
    extra: str
    module: str

    @property
    def absent(self) -> str:
        """What to do where the package is not installed."""
        return f'not installed: pip install "ampbench[{self.extra}]"'


LIBRARIES: dict[str, Library] = {
    row.name: row
    for row in (
        Library(name="torchvision", extra="vision", module="ampbench.workloads.image_networks"),
        Library(name="timm", extra="timm", module="ampbench.workloads.image_networks"),
        Library(name="transformers", extra="transformers", module="ampbench.workloads.transformers_networks"),
    )
}
"""Prefixes of a name before a colon, other than a user's file or module."""

RANDOM = "random"
"""The value of the parameter `weights` of a library's network that has no file's: its library's initialisation."""


def library_source(library: Library, network: str) -> WorkloadSource:
    """Return where a worker finds a network of a library, or all that a pattern names."""
    name = f"{library.name}:{network}"
    return WorkloadSource(name=name, family=library.name, module=library.module, function=network, builtin=False)


OPTIMIZER_FAMILY = "optimizer"
"""The family of a source for a recipe, by name, whose optimizer class is not torch's."""


def is_users(source: WorkloadSource) -> bool:
    """Return whether a workload, or a precision, is a user's own code."""
    return not source.builtin and source.family not in LIBRARIES


def is_pattern(source: WorkloadSource) -> bool:
    """Return whether the name of a library's network may stand for several."""
    return source.family in LIBRARIES and any(wildcard in source.function for wildcard in "*?[")


def check_parameter(called: str, name: str, value: ParameterValue, limits: tuple[int, int]) -> int:
    """Return the value of a parameter; `UsageError` where it is no whole number, or outside its limits."""
    lowest, highest = limits
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{called}.{name}={value}: must be a whole number from {lowest} to {highest}")
    if not lowest <= value <= highest:
        raise UsageError(f"{called}.{name}={value}: must be from {lowest} to {highest}")
    return value


def resolve_parameters(
    spec: WorkloadSpec, preset: str, overrides: Mapping[str, ParameterValue] | None = None
) -> dict[str, ParameterValue]:
    """Return every parameter of `spec`, the batch size last: `overrides` over the values of `preset`.

    Raises `UnknownNameError` for a preset or a parameter it
    does not have, `UsageError` for a value that is no whole number, outside its limits, or not the multiple it has to
    be.
    """
    settled = dict(spec.preset(preset))
    for name, value in (overrides or {}).items():
        if name not in settled:
            raise UnknownNameError(f"parameter of {spec.name}", name, spec.sizes)
        settled[name] = check_parameter(spec.name, name, value, spec.limits.get(name, LIMITS[name]))
    for name, factors in spec.multiples.items():
        sizes = {factor: settled[factor] if isinstance(factor, str) else factor for factor in factors}
        product = math.prod(sizes.values())
        if settled[name] % product:
            named = [f"{factor}={size}" if isinstance(factor, str) else str(size) for factor, size in sizes.items()]
            text = f"{product}" if named == [str(product)] else f"{product} ({' x '.join(named)})"
            raise UsageError(f"{spec.name}.{name}={settled[name]}: must be a multiple of {text}")
    return {**settled}


def class_name(spec: WorkloadSpec) -> str:
    """Return the class name of a workload in the asv suite: CrossEntropyHead; MlpV2 for version 2."""
    words = "".join(word.capitalize() for word in spec.name.split("_"))
    return words if spec.version == 1 else f"{words}V{spec.version}"


def source(spec: WorkloadSpec) -> WorkloadSource:
    """Return where a worker finds `spec`'s function."""
    return WorkloadSource(
        name=spec.name,
        family=spec.family,
        module=f"ampbench.workloads.{spec.family}",
        function=spec.name,
        builtin=True,
    )

"""The workloads by name, without torch: the built-in ones, their parameters and presets, and libraries of others."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.case import PHASES, ParameterValue, WorkloadSource

PRESETS = ("tiny", "small", "large")

LIMITS: dict[str, tuple[int, int]] = {
    "batch_size": (1, 1_048_576),
    "image": (1, 8192),
    "classes": (2, 1_048_576),
    "depth": (1, 1024),
    "width": (1, 65_536),
    "heads": (1, 1024),
    "features": (1, 65_536),
    "outputs": (1, 65_536),
    "sequence_length": (1, 131_072),
    "vocabulary": (2, 1_048_576),
    "regions": (1, 65_536),
    "layers": (1, 1024),
    "hidden": (1, 65_536),
    "tables": (1, 1024),
    "bag": (1, 1024),
    "context": (1, 131_072),
    "experts": (8, 1024),
    "active": (1, 8),
    "rank": (1, 65_536),
    "outliers": (0, 1024),
}
"""The smallest and largest value of a parameter of that name, in every workload that does not narrow it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """One built-in workload: `tiny`, `small` and `large` give every parameter's value, the batch size among them.

    The function `name` in `ampbench.workloads.<family>` builds it; all parameters are whole numbers. `items` is what
    throughput counts. `needs` is a package without which the workload is skipped ("torchvision"). `images`: its inputs
    are images, so that the channels-last memory format applies. `limits` narrows `LIMITS` for some parameters;
    `multiples` names those that must be a multiple of a product of other parameters and numbers. `suite` lists the
    phases in which the default suite measures it (none: only when asked for), `phases` those that it has at all.
    `optional` are further parameters, which no preset sets, with the value that leaves the workload as it is without
    them: at that value they are in no case, no id and no key of its weights, all of which stay what they were before
    there was such a parameter.
    """

    name: str
    family: str
    summary: str
    items: str
    tiny: Mapping[str, int]
    small: Mapping[str, int]
    large: Mapping[str, int]
    version: int = 1
    needs: str = ""
    images: bool = False
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    multiples: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    suite: tuple[str, ...] = ()
    phases: tuple[str, ...] = PHASES
    optional: Mapping[str, int] = field(default_factory=dict)

    @property
    def settable(self) -> Mapping[str, int]:
        """Every parameter that can be set, with a value that it may have."""
        return {**self.small, **self.optional}

    def preset(self, name: str) -> Mapping[str, int]:
        """Return every parameter's value in the preset `name`; `UnknownNameError` for anything but a preset."""
        presets = {"tiny": self.tiny, "small": self.small, "large": self.large}
        if name not in presets:
            raise UnknownNameError("preset", name, PRESETS)
        return presets[name]


WORKLOADS: dict[str, WorkloadSpec] = {
    spec.name: spec
    for spec in (
        WorkloadSpec(
            name="simple_conv",
            family="conv",
            summary="one strided 3x3 convolution from 64 to 128 channels: the example of Intel's mixed-precision guide",
            items="images",
            tiny={"image": 8, "batch_size": 2},
            small={"image": 56, "batch_size": 2},
            large={"image": 224, "batch_size": 64},
            images=True,
            suite=("inference", "training"),
        ),
        WorkloadSpec(
            name="conv_stack",
            family="conv",
            summary="a stack of plain 3x3 convolutions with ReLU, without normalisation, as in VGG",
            items="images",
            tiny={"depth": 3, "width": 16, "classes": 10, "image": 16, "batch_size": 2},
            small={"depth": 6, "width": 32, "classes": 100, "image": 56, "batch_size": 1},
            large={"depth": 12, "width": 256, "classes": 1000, "image": 112, "batch_size": 64},
            images=True,
        ),
        WorkloadSpec(
            name="depthwise_stack",
            family="conv",
            summary="depthwise-separable convolutions with batch normalisation, as in MobileNet: bound by memory",
            items="images",
            tiny={"depth": 3, "width": 16, "classes": 10, "image": 16, "batch_size": 2},
            small={"depth": 6, "width": 64, "classes": 100, "image": 56, "batch_size": 1},
            large={"depth": 12, "width": 512, "classes": 1000, "image": 112, "batch_size": 64},
            images=True,
        ),
        WorkloadSpec(
            name="unet",
            family="conv",
            summary="U-Net of four levels with batch normalisation: a class for every pixel",
            items="images",
            tiny={"width": 4, "classes": 3, "image": 32, "batch_size": 2},
            small={"width": 16, "classes": 4, "image": 96, "batch_size": 1},
            large={"width": 64, "classes": 21, "image": 512, "batch_size": 16},
            images=True,
            limits={"image": (32, 8192)},
            multiples={"image": (16,)},
        ),
        WorkloadSpec(
            name="resnet18",
            family="conv",
            summary="torchvision's ResNet-18",
            items="images",
            tiny={"classes": 10, "image": 40, "batch_size": 1},
            small={"classes": 1000, "image": 224, "batch_size": 1},
            large={"classes": 1000, "image": 224, "batch_size": 512},
            needs="torchvision",
            images=True,
            limits={"image": (40, 8192)},
        ),
        WorkloadSpec(
            name="resnet50",
            family="conv",
            summary="torchvision's ResNet-50, the field's reference",
            items="images",
            tiny={"classes": 10, "image": 40, "batch_size": 1},
            small={"classes": 1000, "image": 224, "batch_size": 1},
            large={"classes": 1000, "image": 224, "batch_size": 256},
            needs="torchvision",
            images=True,
            limits={"image": (40, 8192)},
        ),
        WorkloadSpec(
            name="mobilenet_v3_large",
            family="conv",
            summary="torchvision's MobileNetV3-Large: depthwise convolutions, squeeze-and-excitation, hardswish",
            items="images",
            tiny={"classes": 10, "image": 40, "batch_size": 1},
            small={"classes": 1000, "image": 224, "batch_size": 1},
            large={"classes": 1000, "image": 224, "batch_size": 512},
            needs="torchvision",
            images=True,
            suite=("inference",),
            limits={"image": (40, 8192)},
        ),
        WorkloadSpec(
            name="linear_stack",
            family="linear",
            summary="square linear layers with ReLU between: matrix products and little else",
            items="rows",
            tiny={"depth": 3, "width": 32, "batch_size": 8},
            small={"depth": 4, "width": 512, "batch_size": 32},
            large={"depth": 8, "width": 4096, "batch_size": 8192},
        ),
        WorkloadSpec(
            name="mlp",
            family="linear",
            summary="a classifier of linear layers with ReLU: features, hidden layers, classes",
            items="rows",
            tiny={"features": 32, "depth": 2, "width": 32, "classes": 10, "batch_size": 8},
            small={"features": 784, "depth": 3, "width": 512, "classes": 10, "batch_size": 32},
            large={"features": 784, "depth": 6, "width": 4096, "classes": 1000, "batch_size": 16_384},
            suite=("inference", "training"),
        ),
        WorkloadSpec(
            name="recommender",
            family="linear",
            summary="bags of embeddings with sparse gradients, their products by pairs and perceptrons, as in DLRM",
            items="rows",
            tiny={"features": 13, "tables": 3, "vocabulary": 1000, "bag": 2, "width": 8, "batch_size": 8},
            small={"features": 13, "tables": 8, "vocabulary": 20_000, "bag": 4, "width": 32, "batch_size": 128},
            large={"features": 13, "tables": 26, "vocabulary": 100_000, "bag": 8, "width": 128, "batch_size": 32_768},
        ),
        WorkloadSpec(
            name="transformer_encoder",
            family="sequence",
            summary="pre-norm encoder with scaled_dot_product_attention; its first operation is a layer norm",
            items="tokens",
            tiny={"depth": 2, "width": 32, "heads": 2, "sequence_length": 8, "classes": 10, "batch_size": 2},
            small={"depth": 2, "width": 192, "heads": 3, "sequence_length": 64, "classes": 100, "batch_size": 1},
            large={"depth": 24, "width": 1024, "heads": 16, "sequence_length": 512, "classes": 1000, "batch_size": 64},
            multiples={"width": ("heads",)},
            suite=("inference", "training"),
            optional={"outliers": 0},
        ),
        WorkloadSpec(
            name="decoder_lm",
            family="sequence",
            summary="causal language model: RMS norm, rotary positions, SwiGLU, tied embedding",
            items="tokens",
            tiny={"depth": 2, "width": 32, "heads": 2, "vocabulary": 64, "sequence_length": 8, "batch_size": 2},
            small={"depth": 2, "width": 256, "heads": 4, "vocabulary": 8192, "sequence_length": 32, "batch_size": 1},
            large={
                "depth": 24,
                "width": 1024,
                "heads": 16,
                "vocabulary": 50_304,
                "sequence_length": 2048,
                "batch_size": 8,
            },
            multiples={"width": ("heads", 2)},
            optional={"outliers": 0},
        ),
        WorkloadSpec(
            name="gru",
            family="sequence",
            summary="stacked gated recurrent units with a class for every frame, as in speech recognition",
            items="frames",
            tiny={"features": 16, "depth": 2, "width": 16, "sequence_length": 8, "classes": 10, "batch_size": 2},
            small={"features": 80, "depth": 2, "width": 128, "sequence_length": 32, "classes": 100, "batch_size": 4},
            large={
                "features": 80,
                "depth": 5,
                "width": 1024,
                "sequence_length": 512,
                "classes": 1000,
                "batch_size": 128,
            },
        ),
        WorkloadSpec(
            name="speech_encoder",
            family="sequence",
            summary="a conformer on log-mel features with rotary positions, trained by CTC, whose loss needs fp32",
            items="frames",
            tiny={
                "features": 16,
                "depth": 1,
                "width": 16,
                "heads": 2,
                "sequence_length": 32,
                "classes": 10,
                "batch_size": 2,
            },
            small={
                "features": 80,
                "depth": 2,
                "width": 144,
                "heads": 4,
                "sequence_length": 128,
                "classes": 32,
                "batch_size": 1,
            },
            large={
                "features": 80,
                "depth": 17,
                "width": 512,
                "heads": 8,
                "sequence_length": 1600,
                "classes": 1024,
                "batch_size": 32,
            },
            limits={"sequence_length": (32, 131_072), "features": (4, 65_536)},
            multiples={"sequence_length": (4,), "width": ("heads", 2)},
        ),
        WorkloadSpec(
            name="prefill",
            family="language",
            summary="a prompt through the language model: the last token's logits, and a cache written",
            items="tokens",
            tiny={"depth": 2, "width": 32, "heads": 2, "vocabulary": 64, "sequence_length": 8, "batch_size": 2},
            small={"depth": 2, "width": 256, "heads": 4, "vocabulary": 8192, "sequence_length": 256, "batch_size": 1},
            large={
                "depth": 24,
                "width": 1024,
                "heads": 16,
                "vocabulary": 50_304,
                "sequence_length": 4096,
                "batch_size": 8,
            },
            multiples={"width": ("heads", 2)},
            phases=("inference",),
            optional={"outliers": 0},
        ),
        WorkloadSpec(
            name="decode",
            family="language",
            summary="one token of the language model, after those in a cache of keys and values",
            items="tokens",
            tiny={"depth": 2, "width": 32, "heads": 2, "vocabulary": 64, "context": 8, "batch_size": 2},
            small={"depth": 2, "width": 256, "heads": 4, "vocabulary": 8192, "context": 512, "batch_size": 1},
            large={"depth": 24, "width": 1024, "heads": 16, "vocabulary": 50_304, "context": 2048, "batch_size": 16},
            multiples={"width": ("heads", 2)},
            phases=("inference",),
            optional={"outliers": 0},
        ),
        WorkloadSpec(
            name="moe",
            family="language",
            summary="the language model with a mixture of experts: a router in fp32, no capacity, no token dropped",
            items="tokens",
            tiny={
                "depth": 2,
                "width": 32,
                "heads": 2,
                "experts": 8,
                "active": 2,
                "vocabulary": 64,
                "sequence_length": 32,
                "batch_size": 2,
            },
            small={
                "depth": 2,
                "width": 128,
                "heads": 2,
                "experts": 8,
                "active": 2,
                "vocabulary": 4096,
                "sequence_length": 64,
                "batch_size": 1,
            },
            large={
                "depth": 6,
                "width": 1024,
                "heads": 16,
                "experts": 8,
                "active": 2,
                "vocabulary": 50_304,
                "sequence_length": 2048,
                "batch_size": 8,
            },
            multiples={"width": ("heads", 2)},
            optional={"outliers": 0},
        ),
        WorkloadSpec(
            name="lora",
            family="language",
            summary="low-rank fine-tuning of the language model, whose linear layers are kept in bf16 and frozen",
            items="tokens",
            tiny={
                "depth": 2,
                "width": 32,
                "heads": 2,
                "vocabulary": 64,
                "rank": 4,
                "sequence_length": 8,
                "batch_size": 2,
            },
            small={
                "depth": 2,
                "width": 256,
                "heads": 4,
                "vocabulary": 8192,
                "rank": 8,
                "sequence_length": 32,
                "batch_size": 1,
            },
            large={
                "depth": 24,
                "width": 1024,
                "heads": 16,
                "vocabulary": 50_304,
                "rank": 16,
                "sequence_length": 2048,
                "batch_size": 8,
            },
            multiples={"width": ("heads", 2)},
            optional={"outliers": 0},
        ),
        WorkloadSpec(
            name="softmax_head",
            family="heads",
            summary="a linear layer and softmax, with the Brier score: probabilities in half precision",
            items="rows",
            tiny={"width": 32, "classes": 10, "batch_size": 8},
            small={"width": 512, "classes": 100, "batch_size": 256},
            large={"width": 1024, "classes": 100, "batch_size": 131_072},
            limits={"classes": (2, 1000)},
        ),
        WorkloadSpec(
            name="cross_entropy_head",
            family="heads",
            summary="a linear layer to a large vocabulary and cross entropy: the end of a language model",
            items="rows",
            tiny={"width": 32, "vocabulary": 64, "batch_size": 8},
            small={"width": 128, "vocabulary": 32_000, "batch_size": 16},
            large={"width": 4096, "vocabulary": 32_000, "batch_size": 16_384},
            suite=("inference", "training"),
        ),
        WorkloadSpec(
            name="bce_head",
            family="heads",
            summary="a linear layer and binary cross entropy with logits: many labels an example",
            items="rows",
            tiny={"width": 32, "classes": 10, "batch_size": 8},
            small={"width": 512, "classes": 100, "batch_size": 64},
            large={"width": 4096, "classes": 10_000, "batch_size": 8192},
        ),
        WorkloadSpec(
            name="kl_head",
            family="heads",
            summary="a linear layer, log-softmax and Kullback-Leibler divergence from a teacher: distillation",
            items="rows",
            tiny={"width": 32, "classes": 10, "batch_size": 8},
            small={"width": 512, "classes": 1000, "batch_size": 32},
            large={"width": 4096, "classes": 10_000, "batch_size": 8192},
        ),
        WorkloadSpec(
            name="mse_head",
            family="heads",
            summary="a linear layer and mean squared error: regression",
            items="rows",
            tiny={"width": 32, "outputs": 8, "batch_size": 8},
            small={"width": 512, "outputs": 256, "batch_size": 64},
            large={"width": 4096, "outputs": 4096, "batch_size": 16_384},
        ),
        WorkloadSpec(
            name="cosine_embedding_head",
            family="heads",
            summary="one linear layer on two inputs and cosine embedding loss: similarity learning; two outputs",
            items="rows",
            tiny={"width": 32, "outputs": 8, "batch_size": 8},
            small={"width": 512, "outputs": 256, "batch_size": 32},
            large={"width": 4096, "outputs": 1024, "batch_size": 32_768},
        ),
        WorkloadSpec(
            name="vit_b_16",
            family="vision",
            summary="torchvision's vision transformer, base size with 16x16 patches",
            items="images",
            tiny={"classes": 10, "image": 32, "batch_size": 1},
            small={"classes": 1000, "image": 224, "batch_size": 1},
            large={"classes": 1000, "image": 224, "batch_size": 128},
            needs="torchvision",
            images=True,
            limits={"image": (16, 8192)},
            multiples={"image": (16,)},
        ),
        WorkloadSpec(
            name="roi_head",
            family="vision",
            summary="a detector's second stage: torchvision's RoIAlign on a small backbone, boxes given in pixels",
            items="images",
            tiny={"width": 8, "regions": 4, "classes": 10, "image": 64, "batch_size": 1},
            small={"width": 32, "regions": 32, "classes": 91, "image": 256, "batch_size": 1},
            large={"width": 256, "regions": 512, "classes": 91, "image": 3072, "batch_size": 4},
            needs="torchvision",
            images=True,
            limits={"image": (32, 8192)},
            multiples={"image": (16,), "width": (4,)},
            suite=("inference", "training"),
        ),
        WorkloadSpec(
            name="detector",
            family="vision",
            summary="torchvision's FCOS, end to end with suppression; compared is what it says of every point",
            items="images",
            tiny={"width": 16, "depth": 1, "regions": 4, "classes": 10, "image": 128, "batch_size": 1},
            small={"width": 64, "depth": 2, "regions": 8, "classes": 91, "image": 128, "batch_size": 1},
            large={"width": 256, "depth": 3, "regions": 32, "classes": 91, "image": 1024, "batch_size": 16},
            needs="torchvision",
            images=True,
            limits={"image": (128, 8192)},
            multiples={"image": (128,), "width": (8,)},
        ),
        WorkloadSpec(
            name="diffusion_transformer",
            family="vision",
            summary="a diffusion transformer (DiT) on latent images: one denoising step, velocity in training",
            items="images",
            tiny={"depth": 2, "width": 32, "heads": 2, "classes": 10, "image": 8, "batch_size": 2},
            small={"depth": 4, "width": 192, "heads": 3, "classes": 1000, "image": 16, "batch_size": 2},
            large={"depth": 24, "width": 1024, "heads": 16, "classes": 1000, "image": 32, "batch_size": 64},
            images=True,
            limits={"image": (4, 512)},
            multiples={"image": (2,), "width": ("heads", 4)},
        ),
        WorkloadSpec(
            name="diffusion_unet",
            family="vision",
            summary="a diffusion U-Net with attention on latent images: one denoising step, noise in training",
            items="images",
            tiny={"width": 8, "depth": 1, "heads": 2, "image": 8, "batch_size": 2},
            small={"width": 32, "depth": 1, "heads": 2, "image": 32, "batch_size": 1},
            large={"width": 256, "depth": 2, "heads": 8, "image": 64, "batch_size": 16},
            images=True,
            limits={"image": (8, 512)},
            multiples={"image": (4,), "width": ("heads", 4)},
        ),
        WorkloadSpec(
            name="digits",
            family="data",
            summary="a small convolutional classifier of scikit-learn's handwritten digits, for training studies",
            items="images",
            tiny={"width": 4, "batch_size": 8},
            small={"width": 32, "batch_size": 64},
            large={"width": 128, "batch_size": 125},
            needs="sklearn",
            images=True,
            limits={"batch_size": (1, 1000)},
        ),
        WorkloadSpec(
            name="characters",
            family="data",
            summary="a small causal language model of the characters of Python's help texts, for training studies",
            items="tokens",
            tiny={"depth": 1, "width": 16, "heads": 2, "sequence_length": 8, "batch_size": 4},
            small={"depth": 2, "width": 64, "heads": 2, "sequence_length": 32, "batch_size": 16},
            large={"depth": 6, "width": 384, "heads": 6, "sequence_length": 256, "batch_size": 64},
            needs="pydoc_data",
            limits={"sequence_length": (1, 1024), "batch_size": (1, 256)},
            multiples={"width": ("heads", 2)},
        ),
    )
}
"""Every built-in workload by name, family by family, in the order of tables."""

FAMILIES = tuple(dict.fromkeys(spec.family for spec in WORKLOADS.values()))
"""Each is a module of this package, with a function for each of its workloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A package whose networks can be named: `timm:vit_small_patch16_224`, or `timm:vit_*` for all that match.

    `name` is the package's and stands before the colon; `extra` is ampbench's that installs it. The `LIBRARY` of
    `module` knows and builds its networks.
    """

    name: str
    extra: str

    @property
    def module(self) -> str:
        """The module that builds its networks, which only a worker imports."""
        return f"ampbench.workloads.{self.name}_networks"

    @property
    def absent(self) -> str:
        """What to do where the package is not installed."""
        return f'not installed: pip install "ampbench[{self.extra}]"'


LIBRARIES: dict[str, Library] = {
    row.name: row
    for row in (
        Library(name="torchvision", extra="vision"),
        Library(name="timm", extra="timm"),
        Library(name="transformers", extra="transformers"),
    )
}
"""What a name may begin with before a colon, beside a user's file or module."""

RANDOM = "random"
"""The value of the parameter `weights` of a library's network that has no file's: its library's initialisation."""


def library_source(library: Library, network: str) -> WorkloadSource:
    """Return where a worker finds a network of a library, or all that a pattern names."""
    name = f"{library.name}:{network}"
    return WorkloadSource(name=name, family=library.name, module=library.module, function=network, builtin=False)


def is_users(source: WorkloadSource) -> bool:
    """Return whether a workload, or a precision, is a user's own code."""
    return not source.builtin and source.family not in LIBRARIES


def is_pattern(source: WorkloadSource) -> bool:
    """Return whether the name of a library's network may stand for several."""
    return source.family in LIBRARIES and any(each in source.function for each in "*?[")


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

    Optional ones are among them where they change something.
    Raises `UnknownNameError` for a preset or a parameter it does not have, `UsageError` for a value that is no whole
    number, outside its limits, or not the multiple it has to be.
    """
    settled = {**spec.optional, **spec.preset(preset)}
    for name, value in (overrides or {}).items():
        if name not in settled:
            raise UnknownNameError(f"parameter of {spec.name}", name, spec.settable)
        settled[name] = check_parameter(spec.name, name, value, spec.limits.get(name, LIMITS[name]))
    for name, factors in spec.multiples.items():
        _check_multiple(spec, settled, name, factors)
    return {name: value for name, value in settled.items() if spec.optional.get(name) != value}


def class_name(spec: WorkloadSpec) -> str:
    """Return what the class of a workload is called in the suite for asv: CrossEntropyHead, of a version 2 MlpV2."""
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


def _check_multiple(spec: WorkloadSpec, settled: Mapping[str, int], name: str, factors: tuple[str | int, ...]) -> None:
    product = 1
    for factor in factors:
        product *= settled[factor] if isinstance(factor, str) else factor
    if settled[name] % product:
        named = [f"{factor}={settled[factor]}" if isinstance(factor, str) else str(factor) for factor in factors]
        said = f"{product}" if named == [str(product)] else f"{product} ({' x '.join(named)})"
        raise UsageError(f"{spec.name}.{name}={settled[name]}: must be a multiple of {said}")

"""Transformers' networks by name, a model type or an architecture, built from its default configuration.

A type (`bert`) is the architecture of the first task in `_TASKS` that it has; an architecture's name
(`BertForSequenceClassification`) is itself. Configurations come with the package. Where the default has billions of
parameters, presets make it narrower and shallower, and the parameters say so. Losses are the cross entropy of logits;
tokens are drawn, so that no tokenizer is needed.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import transformers
import transformers.modeling_utils  # the first and slowest import of any architecture
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ampbench.errors import first_line
from ampbench.worker.data import Generator
from ampbench.workloads.named import Library, Named, Parameters, classified_images

ENCODER_DECODER, MASKED, CAUSAL, IMAGES, TEXTS = (
    "encoder-decoder language model", "masked language model", "causal language model", "image classification",
    "sequence classification",
)  # fmt: skip
_TASKS: dict[str, Mapping[str, Any]] = {
    ENCODER_DECODER: modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MASKED: modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    CAUSAL: modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    IMAGES: modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    TEXTS: modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
}
"""The tasks in the order in which a type's main architecture is looked for, and its architecture for each."""

WIDEST = {"tiny": 128, "small": 1024}
"""The widest that a language model is in a preset, by `hidden`; its own width is kept where it is narrower."""
VOCABULARY = {"tiny": 512, "small": 65_536}
LENGTHS = {"tiny": 16, "small": 128, "large": 512}
WEIGHTS = 150e6
"""About as many parameters has a language model at most in the preset small, where its type's default has more."""
EXPERTS, CHOSEN = 8, 2
"""Experts of a mixture in the presets tiny and small, and active experts a token."""
ALIGNED = 16
"""What widths inside a narrower network are multiples of: products of groups want rows of whole words."""
SPECIAL = 5
"""Tokens below this are special in many vocabularies: padding, beginning, end."""

_LAYERS = (
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
    "num_decoder_layers",
)
_WIDTHS = (
    "intermediate_size",
    "d_ff",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "ffn_dim",
    "n_inner",
    "moe_intermediate_size",
)
_HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads")
_GROUPS = ("num_key_value_heads",)
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts")


class _Meant(NamedTuple):
    """A network that a name stands for."""

    type: str
    architecture: str
    task: str


@functools.cache
def _known() -> Mapping[str, _Meant]:
    """Return the meaning of each name: first all types, then all architectures."""
    meanings: dict[str, _Meant] = {}
    every = [
        _Meant(type, architecture, task)
        for task, held in _TASKS.items()
        for type, architecture in _types_with_architectures(held)
    ]
    for meant in every:
        meanings.setdefault(meant.type, meant)
    for meant in every:
        meanings.setdefault(meant.architecture, meant)
    return meanings


def _types_with_architectures(held: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for type, architectures in held.items():
        for architecture in architectures if isinstance(architectures, tuple) else (architectures,):
            yield type, architecture


def tasks() -> Mapping[str, str]:
    """Return every model type and architecture with the network's task."""
    return {name: meant.task for name, meant in _known().items()}


def find(name: str, preset: str) -> Named:
    """Return a network by its model type or architecture, of the size that a preset gives it."""
    meant = _known()[name]
    feed: Callable[[Generator, Parameters], Mapping[str, Any]] = _FEEDS.get(meant.task, _feed_images)
    try:
        configuration = CONFIG_MAPPING[meant.type]()
        if meant.task == TEXTS:
            feed = functools.partial(_feed_texts, _first(getattr(_text_part(configuration), "eos_token_id", None)))
        defaults = (
            _of_images(configuration, preset) if meant.task == IMAGES else _of_text(_text_part(configuration), preset)
        )
    except Exception as error:  # noqa: BLE001 - composite configurations raise any error
        reason = first_line(error).partition(". ")[0]
        why = f"transformers makes no default configuration of {meant.type} that says its size ({reason})"
        return Named(task=meant.task, defaults={}, make=nn.Module, feed=feed, unavailable=why)
    if meant.task in (IMAGES, TEXTS):
        defaults = {"classes": 10 if preset == "tiny" or meant.task == TEXTS else 1000, **defaults}
    return Named(
        task=meant.task,
        defaults=defaults,
        make=functools.partial(_make, meant),
        feed=feed,
        images=meant.task == IMAGES,
    )


TRANSFORMERS = Library("transformers", tasks, find, quick=False)
transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call] # its messages are about loading weights


def _text_part(configuration: Any) -> Any:
    """Return the part of a configuration that describes the text: itself, but in networks of several kinds."""
    return configuration.get_text_config()


def _of_text(text: Any, preset: str) -> dict[str, int]:
    layers, hidden = int(text.num_hidden_layers), int(text.hidden_size)
    vocabulary = int(text.vocab_size or VOCABULARY["tiny"])  # of proteins, where the tokenizer says it
    width = _narrower(text, min(hidden, WIDEST.get(preset, hidden)))
    vocabulary = min(vocabulary, VOCABULARY.get(preset, vocabulary))
    if preset == "tiny":
        layers = min(layers, 2)
    experts = next((getattr(text, name) for name in _EXPERTS if isinstance(getattr(text, name, None), int)), 0)
    experts = experts if preset == "large" else min(experts, EXPERTS)
    mixture = {"experts": experts} if experts else {}
    if preset == "small":
        inner = next(
            (getattr(text, name) for name in _WIDTHS if isinstance(getattr(text, name, None), int)), 4 * hidden
        )
        layer = width**2 * (4 + 2 * max(experts, 1) * inner / hidden)
        layers = max(1, min(layers, int((WEIGHTS - vocabulary * width) / layer)))
    longest = getattr(text, "max_position_embeddings", None) or LENGTHS[preset]
    return {
        "layers": layers,
        "hidden": width,
        **mixture,
        "vocabulary": vocabulary,
        "sequence_length": min(LENGTHS[preset], int(longest)),
        "batch_size": 8 if preset == "large" else 1,
    }


def _narrower(text: Any, hidden: int) -> int:
    """Return the multiple of a head's width that is at most `hidden`, one at least; the own width where it is kept."""
    width, heads = int(text.hidden_size), int(getattr(text, "num_attention_heads", None) or 1)
    if hidden >= width or width % heads:
        return width
    return max(1, hidden // (width // heads)) * (width // heads)


def _of_images(configuration: Any, preset: str) -> dict[str, int]:
    held = _vision_part(configuration)
    layers = getattr(held, "num_hidden_layers", None)
    deep = {"layers": min(layers, 2) if preset == "tiny" else layers} if isinstance(layers, int) else {}
    image = _side(getattr(held, "image_size", None)) or 224
    patch = _side(getattr(held, "patch_size", None))
    if preset == "tiny":
        image = min(image, 4 * patch) if patch and type(held).__name__.startswith(("ViT", "DeiT", "Dinov2")) else image
        image = image if hasattr(held, "image_size") else 64
    return {**deep, "image": image, "batch_size": 64 if preset == "large" else 1}


def _vision_part(configuration: Any) -> Any:
    """Return the part of a configuration that describes images: itself, but in networks of several kinds."""
    return getattr(configuration, "vision_config", configuration)


def _first(token: Any) -> int | None:
    first = token[0] if isinstance(token, list) and token else token
    return first if isinstance(first, int) else None


def _side(size: Any) -> int:
    while isinstance(size, list | tuple) and size:
        size = size[0]
    return size if isinstance(size, int) else 0


def _make(meant: _Meant, parameters: Parameters) -> nn.Module:
    kind = type(CONFIG_MAPPING[meant.type]())
    defaults = kind()
    held = _vision_part(defaults) if meant.task == IMAGES else _text_part(defaults)
    changes = _changes(held, parameters, images=meant.task == IMAGES)
    architecture = getattr(transformers, meant.architecture)
    if held is not defaults and architecture.config_class is type(held):
        kind = type(held)
    elif held is not defaults:
        part = next(name for name, value in vars(defaults).items() if value is held)
        changes = {part: changes}
    if "classes" in parameters:
        changes["num_labels"] = parameters["classes"]
    configuration = kind(**changes)
    for settings in (configuration, _text_part(configuration)):
        settings.use_cache = False
        settings._experts_implementation = "eager"  # the product of groups that is the default has no fp64
        if meant.task == TEXTS and getattr(settings, "pad_token_id", None) is None:
            settings.pad_token_id = 0
    module: nn.Module = architecture(configuration)
    return module.float()


def _changes(configuration: Any, parameters: Parameters, *, images: bool) -> dict[str, Any]:
    """Return the changes of a default configuration that the parameters need."""
    held = configuration.to_dict()
    changes: dict[str, Any] = {}

    def change(names: tuple[str, ...], value: Callable[[int], int]) -> None:
        changes.update({name: value(held[name]) for name in names if isinstance(held.get(name), int)})

    if "layers" in parameters and parameters["layers"] != configuration.num_hidden_layers:
        change(_LAYERS, lambda _: parameters["layers"])
    if images:
        size = held.get("image_size")
        if size is not None and parameters["image"] != _side(size):
            changes["image_size"] = parameters["image"] if isinstance(size, int) else [parameters["image"]] * 2
        return changes
    if parameters["hidden"] != configuration.hidden_size:
        share = parameters["hidden"] / configuration.hidden_size
        name = configuration.attribute_map.get("hidden_size", "hidden_size")
        changes[name] = parameters["hidden"]
        change(_WIDTHS, lambda width: ALIGNED * max(1, round(width * share / ALIGNED)))
        change(_HEADS, lambda heads: max(1, round(heads * share)))
        heads = next((changes[name] for name in _HEADS if name in changes), 1)
        change(_GROUPS, lambda groups: math.gcd(heads, max(1, round(groups * share))))
    if parameters["vocabulary"] != configuration.vocab_size:
        changes["vocab_size"] = parameters["vocabulary"]
        special = [name for name in held if name.endswith("_token_id")]
        change(tuple(special), lambda token: min(token, parameters["vocabulary"] - 1))
    if "experts" in parameters:
        change(_EXPERTS, lambda _: parameters["experts"])
        change(_CHOSEN, lambda chosen: min(chosen, max(CHOSEN, parameters["experts"] // 4)))
    return changes


def _tokens(generator: Generator, parameters: Parameters, name: str = "inputs") -> Tensor:
    size = (parameters["batch_size"], parameters["sequence_length"])
    low = SPECIAL if parameters["vocabulary"] > 2 * SPECIAL else 0
    return generator.integers(name, size, parameters["vocabulary"] - low) + low


def _feed_causal(generator: Generator, parameters: Parameters) -> Mapping[str, Any]:
    tokens = _tokens(generator, parameters)
    return {
        "inputs": {"input_ids": tokens},
        "targets": tokens,
        "loss": _next_token_loss,
        "items_per_step": tokens.numel(),
    }


def _feed_masked(generator: Generator, parameters: Parameters) -> Mapping[str, Any]:
    fed = {
        "inputs": {"input_ids": _tokens(generator, parameters)},
        "targets": _tokens(generator, parameters, "targets"),
    }
    return fed | {"loss": _token_loss, "items_per_step": fed["targets"].numel()}  # type: ignore[attr-defined]


def _feed_pairs(generator: Generator, parameters: Parameters) -> Mapping[str, Any]:
    fed = dict(_feed_masked(generator, parameters))
    return fed | {"inputs": fed["inputs"] | {"decoder_input_ids": _tokens(generator, parameters, "decoded")}}


def _feed_texts(end: int | None, generator: Generator, parameters: Parameters) -> Mapping[str, Any]:
    targets = generator.integers("targets", (parameters["batch_size"],), parameters["classes"])
    tokens = _tokens(generator, parameters)
    if end is not None:  # some networks classify at this token
        tokens[:, -1] = min(end, parameters["vocabulary"] - 1)
    return {"inputs": {"input_ids": tokens}, "targets": targets, "loss": _class_loss, "items_per_step": len(tokens)}


def _feed_images(generator: Generator, parameters: Parameters) -> Mapping[str, Any]:
    fed = classified_images(generator, parameters, loss=_class_loss)
    return fed | {"inputs": {"pixel_values": fed["inputs"]}}


_FEEDS = {
    ENCODER_DECODER: _feed_pairs,
    MASKED: _feed_masked,
    CAUSAL: _feed_causal,
}


def _next_token_loss(output: Mapping[str, Tensor], targets: Tensor) -> Tensor:
    return F.cross_entropy(output["logits"][:, :-1].flatten(0, 1), targets[:, 1:].flatten())


def _token_loss(output: Mapping[str, Tensor], targets: Tensor) -> Tensor:
    return F.cross_entropy(output["logits"].flatten(0, 1), targets.flatten())


def _class_loss(output: Mapping[str, Tensor], targets: Tensor) -> Tensor:
    return F.cross_entropy(output["logits"], targets)

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
import transformers.modeling_utils  # what any architecture imports first, and takes longest
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
"""As many experts has a mixture in the presets tiny and small, and so many of them see a token."""
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
    """Return what each name stands for: first all types, then all architectures."""
    found: dict[str, _Meant] = {}
    every = [_Meant(type, each, task) for task, held in _TASKS.items() for type, each in _each(held)]
    for one in every:
        found.setdefault(one.type, one)
    for one in every:
        found.setdefault(one.architecture, one)
    return found


def _each(held: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for type, architectures in held.items():
        for one in architectures if isinstance(architectures, tuple) else (architectures,):
            yield type, one


def tasks() -> Mapping[str, str]:
    """Return every model type and architecture with what the network does."""
    return {name: one.task for name, one in _known().items()}


def find(name: str, preset: str) -> Named:
    """Return a network by its model type or architecture, of the size that a preset gives it."""
    meant = _known()[name]
    feed: Callable[[Generator, Parameters], Mapping[str, Any]] = _FEEDS.get(meant.task, _feed_images)
    try:
        own = CONFIG_MAPPING[meant.type]()
        if meant.task == TEXTS:
            feed = functools.partial(_feed_texts, _first(getattr(_told(own), "eos_token_id", None)))
        defaults = _of_images(own, preset) if meant.task == IMAGES else _of_text(_told(own), preset)
    except Exception as error:  # noqa: BLE001 - composite configurations raise what they like
        said = first_line(error).partition(". ")[0]
        why = f"transformers makes no default configuration of {meant.type} that says its size ({said})"
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


LIBRARY = Library("transformers", tasks, find, quick=False)
transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call] # what it says is for those who load weights


def _told(own: Any) -> Any:
    """Return the part of a configuration that describes the text: itself, but in networks of several kinds."""
    return own.get_text_config()


def _of_text(text: Any, preset: str) -> dict[str, int]:
    layers, hidden = int(text.num_hidden_layers), int(text.hidden_size)
    vocabulary = int(text.vocab_size or VOCABULARY["tiny"])  # of proteins, where the tokenizer says it
    width = _narrower(text, min(hidden, WIDEST.get(preset, hidden)))
    vocabulary = min(vocabulary, VOCABULARY.get(preset, vocabulary))
    if preset == "tiny":
        layers = min(layers, 2)
    experts = next((getattr(text, each) for each in _EXPERTS if isinstance(getattr(text, each, None), int)), 0)
    experts = experts if preset == "large" else min(experts, EXPERTS)
    mixture = {"experts": experts} if experts else {}
    if preset == "small":
        inner = next(
            (getattr(text, each) for each in _WIDTHS if isinstance(getattr(text, each, None), int)), 4 * hidden
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
    own, heads = int(text.hidden_size), int(getattr(text, "num_attention_heads", None) or 1)
    if hidden >= own or own % heads:
        return own
    return max(1, hidden // (own // heads)) * (own // heads)


def _of_images(own: Any, preset: str) -> dict[str, int]:
    held = _seen(own)
    layers = getattr(held, "num_hidden_layers", None)
    deep = {"layers": min(layers, 2) if preset == "tiny" else layers} if isinstance(layers, int) else {}
    image = _side(getattr(held, "image_size", None)) or 224
    patch = _side(getattr(held, "patch_size", None))
    if preset == "tiny":
        image = min(image, 4 * patch) if patch and type(held).__name__.startswith(("ViT", "DeiT", "Dinov2")) else image
        image = image if hasattr(held, "image_size") else 64
    return {**deep, "image": image, "batch_size": 64 if preset == "large" else 1}


def _seen(own: Any) -> Any:
    """Return the part of a configuration that describes images: itself, but in networks of several kinds."""
    return getattr(own, "vision_config", own)


def _first(token: Any) -> int | None:
    first = token[0] if isinstance(token, list) and token else token
    return first if isinstance(first, int) else None


def _side(size: Any) -> int:
    while isinstance(size, list | tuple) and size:
        size = size[0]
    return size if isinstance(size, int) else 0


def _make(meant: _Meant, given: Parameters) -> nn.Module:
    kind = type(CONFIG_MAPPING[meant.type]())
    own = kind()
    held = _seen(own) if meant.task == IMAGES else _told(own)
    changes = _changes(held, given, images=meant.task == IMAGES)
    architecture = getattr(transformers, meant.architecture)
    if held is not own and architecture.config_class is type(held):
        kind = type(held)
    elif held is not own:
        part = next(name for name, value in vars(own).items() if value is held)
        changes = {part: changes}
    if "classes" in given:
        changes["num_labels"] = given["classes"]
    configuration = kind(**changes)
    for one in (configuration, _told(configuration)):
        one.use_cache = False
        one._experts_implementation = "eager"  # the product of groups that is the default has no fp64
        if meant.task == TEXTS and getattr(one, "pad_token_id", None) is None:
            one.pad_token_id = 0
    made: nn.Module = architecture(configuration)
    return made.float()


def _changes(own: Any, given: Parameters, *, images: bool) -> dict[str, Any]:
    """Return what of a configuration is other than its default: only what the parameters change."""
    held = own.to_dict()
    found: dict[str, Any] = {}

    def change(names: tuple[str, ...], value: Callable[[int], int]) -> None:
        found.update({name: value(held[name]) for name in names if isinstance(held.get(name), int)})

    if "layers" in given and given["layers"] != own.num_hidden_layers:
        change(_LAYERS, lambda _: given["layers"])
    if images:
        size = held.get("image_size")
        if size is not None and given["image"] != _side(size):
            found["image_size"] = given["image"] if isinstance(size, int) else [given["image"]] * 2
        return found
    if given["hidden"] != own.hidden_size:
        share = given["hidden"] / own.hidden_size
        name = own.attribute_map.get("hidden_size", "hidden_size")
        found[name] = given["hidden"]
        change(_WIDTHS, lambda width: ALIGNED * max(1, round(width * share / ALIGNED)))
        change(_HEADS, lambda heads: max(1, round(heads * share)))
        heads = next((found[name] for name in _HEADS if name in found), 1)
        change(_GROUPS, lambda groups: math.gcd(heads, max(1, round(groups * share))))
    if given["vocabulary"] != own.vocab_size:
        found["vocab_size"] = given["vocabulary"]
        special = [name for name in held if name.endswith("_token_id")]
        change(tuple(special), lambda token: min(token, given["vocabulary"] - 1))
    if "experts" in given:
        change(_EXPERTS, lambda _: given["experts"])
        change(_CHOSEN, lambda chosen: min(chosen, max(CHOSEN, given["experts"] // 4)))
    return found


def _tokens(generator: Generator, given: Parameters, name: str = "inputs") -> Tensor:
    size = (given["batch_size"], given["sequence_length"])
    low = SPECIAL if given["vocabulary"] > 2 * SPECIAL else 0
    return generator.integers(name, size, given["vocabulary"] - low) + low


def _feed_causal(generator: Generator, given: Parameters) -> Mapping[str, Any]:
    tokens = _tokens(generator, given)
    return {
        "inputs": {"input_ids": tokens},
        "targets": tokens,
        "loss": _next_token_loss,
        "items_per_step": tokens.numel(),
    }


def _feed_masked(generator: Generator, given: Parameters) -> Mapping[str, Any]:
    fed = {"inputs": {"input_ids": _tokens(generator, given)}, "targets": _tokens(generator, given, "targets")}
    return fed | {"loss": _token_loss, "items_per_step": fed["targets"].numel()}  # type: ignore[attr-defined]


def _feed_pairs(generator: Generator, given: Parameters) -> Mapping[str, Any]:
    fed = dict(_feed_masked(generator, given))
    return fed | {"inputs": fed["inputs"] | {"decoder_input_ids": _tokens(generator, given, "decoded")}}


def _feed_texts(end: int | None, generator: Generator, given: Parameters) -> Mapping[str, Any]:
    targets = generator.integers("targets", (given["batch_size"],), given["classes"])
    tokens = _tokens(generator, given)
    if end is not None:  # which some look for to know what to classify
        tokens[:, -1] = min(end, given["vocabulary"] - 1)
    return {"inputs": {"input_ids": tokens}, "targets": targets, "loss": _class_loss, "items_per_step": len(tokens)}


def _feed_images(generator: Generator, given: Parameters) -> Mapping[str, Any]:
    fed = classified_images(generator, given, loss=_class_loss)
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

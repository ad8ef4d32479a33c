"""Sequence models: an encoder, a causal language model, recurrent units, and a speech encoder."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest

import torch
from torch import Tensor, device, nn, optim
from torch.nn import functional as F

from ampbench.worker.data import Generator
from ampbench.workload import Workload
from ampbench.workloads.weights import (
    GELU_VARIANCE,
    SILU_VARIANCE,
    SWIGLU_VARIANCE,
    Rule,
    adamw,
    around,
    class_loss,
    classifier,
    fill,
    kernel,
    rectified,
    waves,
)

SHARPNESS = 1.3
"""Gain of queries and keys: attention scores vary by its square, 1.7, so that a token attends to a few others."""

EMBEDDING_RMS = 0.5
"""RMS of embeddings, and of the sum of all residual branches of the language model, halved."""

HEAD_GAIN = 0.1
"""Gain of the last norm: it keeps logits, sums over the width, at the size they have in trained models."""

OUTLIER = 20.0
"""So many times larger than the RMS of the others are outlying channels, in every token and every layer.

Source: Dettmers et al., "LLM.int8()", NeurIPS 2022: six channels or so of a trained language model."""

MASSIVE = 1000.0
"""The factor of the first token of a sequence, in the same channels.

Source: Sun et al., "Massive activations in large language models", COLM 2024, which calls a thousand times the median
massive.
"""


SUBSAMPLED = 4
"""Frames of speech to one of the encoder, after two strided convolutions."""

SURROUNDINGS = 31
"""Frames that the encoder's depthwise convolutions see (Gulati et al., 2020)."""

GLU_VARIANCE = 0.293
"""Variance of x * sigmoid(y), x and y standard normal: the second moment of sigmoid(x)."""

Sizes = Mapping[str, int]
"""The parameters of a workload, by their names in `ampbench.workloads.index`."""


class Cache:
    """Keys and values that one attention has seen, (batch, heads, tokens, size) each.

    It grows by a copy, as transformers' `DynamicCache` does, so that what it began with stays as it was.
    """

    def __init__(self, *held: Tensor):
        self.held = held

    def grow(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Take in further tokens; return keys and values of all."""
        if self.held:
            key, value = (torch.cat(pair, dim=-2) for pair in zip(self.held, (key, value), strict=True))
        self.held = key, value
        return key, value


class Attention(nn.Module):
    """Multi-head self-attention on (batch, tokens, width), with scaled_dot_product_attention."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, bias: bool = True):
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.query_key_value = nn.Linear(width, 3 * width, bias=bias)
        self.project = nn.Linear(width, width, bias=bias)

    def forward(
        self, x: Tensor, cosine: Tensor | None = None, sine: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Return the attention output of each token, (batch, tokens, width); with tables, positions are rotary.

        The `cache` takes in the keys and values; where it holds some already, `x` is one token that follows them.
        """
        batch, tokens, width = x.shape
        split = self.query_key_value(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        if cosine is not None and sine is not None:
            query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        causal = self.causal
        if cache is not None:
            causal = causal and not cache.held  # one token attends to all before it
            key, value = cache.grow(key, value)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.project(attended.transpose(1, 2).reshape(batch, tokens, width))  # type: ignore[no-any-return]


class EncoderBlock(nn.Module):
    """Attention and a feed-forward layer of four times the width, each behind a layer norm and added to the stream.

    Source: Vaswani et al., "Attention is all you need", 2017; norms first as in Xiong et al., ICML 2020.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feed_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream (batch, tokens, width) after this block."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.feed_norm(x))))  # type: ignore[no-any-return]


class CausalBlock(nn.Module):
    """Causal attention with rotary positions and `feed`, each behind an RMS norm and added to the stream.

    Source: Touvron et al., "LLaMA", 2023.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, heads, causal=True, bias=False)
        self.feed_norm = nn.RMSNorm(width)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the stream (batch, tokens, width) after this block."""
        x = x + self.attention(self.attention_norm(x), cosine, sine, cache)
        return x + self.feed(self.feed_norm(x))

    def feed(self, x: Tensor) -> Tensor:
        """Return the addition to the stream of every token by itself."""
        raise NotImplementedError


class DecoderBlock(CausalBlock):
    """A causal block with a SwiGLU layer.

    Source: Shazeer, "GLU variants improve Transformer", 2020.
    """

    def __init__(self, width: int, heads: int):
        super().__init__(width, heads)
        hidden = 8 * ((width + 2) // 3)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def feed(self, x: Tensor) -> Tensor:
        """Return the SwiGLU layer's output."""
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Encoder blocks, a last layer norm and a class for every token: logits (batch, tokens, classes)."""

    def __init__(self, depth: int, width: int, heads: int, classes: int):
        super().__init__()
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of embedded tokens `x` (batch, tokens, width)."""
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Embedding, decoder blocks, a last RMS norm, and the embedding again: logits (batch, tokens, vocabulary)."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, sizes: Sizes, block: Callable[[int, int], CausalBlock] = DecoderBlock):
        super().__init__()
        width, heads = sizes["width"], sizes["heads"]
        self.embedding = nn.Embedding(sizes["vocabulary"], width)
        self.blocks = nn.ModuleList(block(width, heads) for _ in range(sizes["depth"]))
        self.norm = nn.RMSNorm(width)
        for table in ("cosine", "sine"):
            self.register_buffer(table, torch.empty(sizes["sequence_length"], width // heads), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits that follow each of `tokens`, integers (batch, tokens)."""
        return self.logits(self.stream(tokens, self.cosine, self.sine))

    def stream(self, tokens: Tensor, cosine: Tensor, sine: Tensor, caches: Sequence[Cache] = ()) -> Tensor:
        """Return the stream (batch, tokens, width) after the last block; with `caches`, each block has its own."""
        x = self.embedding(tokens)
        for block, cache in zip_longest(self.blocks, caches):
            x = block(x, cosine, sine, cache)
        return x  # type: ignore[no-any-return]

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits (..., vocabulary) of a stream (..., width)."""
        return F.linear(self.norm(x), self.embedding.weight)


class Recurrent(nn.Module):
    """Gated recurrent units and a class for every frame: logits (batch, frames, classes).

    Source: Cho et al., "Learning phrase representations using RNN encoder-decoder", EMNLP 2014.
    """

    def __init__(self, features: int, depth: int, width: int, classes: int):
        super().__init__()
        self.gru = nn.GRU(features, width, depth, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, frames: Tensor) -> Tensor:
        """Return the logits of `frames` (batch, frames, features)."""
        states, _ = self.gru(frames)
        return self.head(states)  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """A layer norm and two layers of four times the width, with SiLU between."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what is added to the stream (batch, frames, width)."""
        return self.down(F.silu(self.up(self.norm(x))))  # type: ignore[no-any-return]


class Surroundings(nn.Module):
    """A depthwise convolution over time between two pointwise layers, with a gate before and batch normalisation."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.depthwise = nn.Conv1d(width, width, SURROUNDINGS, padding=SURROUNDINGS // 2, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.narrow = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what is added to the stream (batch, frames, width)."""
        y = self.depthwise(F.glu(self.widen(self.norm(x)), dim=-1).transpose(1, 2))
        return self.narrow(F.silu(self.batch_norm(y)).transpose(1, 2))  # type: ignore[no-any-return]


class ConformerBlock(nn.Module):
    """Half a feed-forward layer, attention with rotary positions, convolution, the other half, and a layer norm.

    Source: Gulati et al., "Conformer", Interspeech 2020.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.before = FeedForward(width)
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.surroundings = Surroundings(width)
        self.after = FeedForward(width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return the stream (batch, frames, width) after this block."""
        x = x + 0.5 * self.before(x)
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        x = x + self.surroundings(x)
        return self.norm(x + 0.5 * self.after(x))  # type: ignore[no-any-return]


class SpeechEncoder(nn.Module):
    """Two strided convolutions over time and frequency, conformer blocks, a symbol or the blank for every frame."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, features: int, depth: int, width: int, heads: int, classes: int, frames: int):
        super().__init__()
        first, second = (nn.Conv2d(inputs, width, 3, stride=2, padding=1) for inputs in (1, width))
        self.subsample = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
        self.embed = nn.Linear(width * -(-features // SUBSAMPLED), width)
        self.blocks = nn.ModuleList(ConformerBlock(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, classes)
        self.register_buffer("cosine", torch.empty(frames, width // heads), persistent=False)
        self.register_buffer("sine", torch.empty(frames, width // heads), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits (batch, frames / 4, classes) of log-mel `features` (batch, frames, features)."""
        x = self.embed(self.subsample(features[:, None]).transpose(1, 2).flatten(2))
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        return self.head(x)  # type: ignore[no-any-return]


def transformer_encoder(
    generator: Generator, *, depth: int, width: int, heads: int, outliers: int = 0, **sizes: int
) -> Workload:
    """Pre-norm encoder on embedded tokens, so that a layer norm reads its inputs; cross entropy, AdamW.

    Inputs are (batch_size, sequence_length, width), outputs logits (batch_size, sequence_length, classes). Of the
    width, `outliers` channels hold massive activations.
    """
    with device("meta"):
        module = Encoder(depth, width, heads, sizes["classes"])
    gains = {"*.query_key_value": SHARPNESS, "*.down": 0.5 * GELU_VARIANCE**-0.5}
    signs = _outlier_signs(generator, width, outliers)
    fill(generator, module, gains=gains, rules={"head.weight": classifier(1.0)} | _norms(signs, 1.0))
    inputs = generator.uniform("inputs", (sizes["batch_size"], sizes["sequence_length"], width))
    return _tagger(generator, module, _outlying(inputs, signs, 1.0), sizes["classes"])


def decoder_lm(generator: Generator, **sizes: int) -> Workload:
    """Causal language model whose head is its embedding; cross entropy against the next token, AdamW.

    Inputs are tokens (batch_size, sequence_length), outputs logits (batch_size, sequence_length, vocabulary). Of the
    width, `outliers` channels hold massive activations.
    """
    with device("meta"):
        module = Decoder(sizes)
    return language_model(generator, module, sizes)


def language_model(
    generator: Generator,
    module: Decoder,
    sizes: Sizes,
    optimizer: Callable[[Iterable[nn.Parameter]], optim.Optimizer] = adamw,
    rules: Mapping[str, Rule] | None = None,
) -> Workload:
    """Return the workload of a decoder on the meta device that learns `next_tokens`; see `decoder_weights`."""
    decoder_weights(generator, module, sizes, rules=rules)
    inputs, targets = next_tokens(generator, sizes)
    return Workload(
        module=module,
        inputs=inputs,
        targets=targets,
        loss=class_loss,
        optimizer=optimizer,
        items_per_step=inputs.numel(),
    )


def next_tokens(generator: Generator, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Return tokens (batch_size, sequence_length) and their successors.

    With `outliers`, every sequence starts with token 0, whose embedding `decoder_weights` makes massive.
    """
    shape = (sizes["batch_size"], sizes["sequence_length"] + 1)
    tokens = generator.integers("tokens", shape, sizes["vocabulary"])
    if sizes.get("outliers"):
        tokens[:, 0] = 0
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def decoder_weights(
    generator: Generator,
    module: Decoder,
    sizes: Sizes,
    *,
    attended: float = 0.5,
    rules: Mapping[str, Rule] | None = None,
) -> None:
    """Give a decoder on the meta device, made with these sizes, its weights; `rules` are for further ones.

    Branches are scaled by depth as in GPT-2 (Radford et al., 2019), so that a token's own embedding stays the largest
    part of its stream and the logits have a clear first. `attended` is about the RMS of what a token attends to, an
    average. With `outliers`, so many channels of all embeddings are outlying, those of token 0 massive (`_norms`).
    """
    branch = 2 * EMBEDDING_RMS / math.sqrt(2 * sizes["depth"])
    gains = {
        "*.query_key_value": SHARPNESS,
        "*.project": branch / attended,
        "*.down": branch * SWIGLU_VARIANCE**-0.5,
        "norm": HEAD_GAIN,
    }
    signs = _outlier_signs(generator, sizes["width"], sizes.get("outliers", 0))

    def embedding(generator: Generator, name: str, tensor: Tensor) -> Tensor:
        return _outlying(generator.uniform(name, tuple(tensor.shape), rms=EMBEDDING_RMS), signs, EMBEDDING_RMS)

    rules_own: dict[str, Rule] = {"embedding.weight": embedding, **_rotary_tables(module.cosine), **(rules or {})}
    fill(generator, module, gains=gains, rules=rules_own | _norms(signs, HEAD_GAIN))


def _outlier_signs(generator: Generator, width: int, outliers: int) -> Tensor | None:
    """Return 1 or -1 in this number of drawn channels, 0 elsewhere; None for no outliers."""
    if not outliers:
        return None
    channels = torch.argsort(generator.integers("outliers", (width,), 2**31), stable=True)[:outliers]
    signs = torch.zeros(width)
    signs[channels] = (generator.integers("outliers.signs", (len(channels),), 2) * 2 - 1).float()
    return signs


def _outlying(vectors: Tensor, signs: Tensor | None, rms: float) -> Tensor:
    """Return vectors (..., count, width) of this RMS with outlying channels, those of the first vector massive."""
    if signs is None:
        return vectors
    vectors = vectors + OUTLIER * rms * signs
    vectors[..., 0, :] += (MASSIVE - OUTLIER) * rms * signs
    return vectors


def _norms(signs: Tensor | None, gain: float) -> dict[str, Rule]:
    """Return the rules for norms of a stream with outlying channels; {} for one without.

    Half of what blocks read, by its mean square, is outlying, so that they and their outputs have the size that they
    have without. The last norm, of this gain, lets as much of the others through, and nothing of the outlying ones.
    """
    if signs is None:
        return {}
    outlying = signs.bool()
    width, outliers = len(signs), int(outlying.sum())
    restored = round(math.sqrt(1 + outliers * OUTLIER**2 / width), 6)
    weight = round(restored * math.sqrt(width / outliers) / OUTLIER, 6)

    def block(generator: Generator, name: str, tensor: Tensor) -> Tensor:
        weights = generator.uniform(name, tuple(tensor.shape), rms=0.1, mean=1.0)
        return weights * torch.where(outlying, weight, restored) * 2**-0.5

    def last(generator: Generator, name: str, tensor: Tensor) -> Tensor:
        weights = generator.uniform(name, tuple(tensor.shape), rms=0.1 * gain, mean=gain)
        return torch.where(outlying, weights / MASSIVE, weights * restored) * 2**-0.5

    return {"norm.weight": last, "*.attention_norm.weight": block, "*.feed_norm.weight": block}


def gru(generator: Generator, *, features: int, depth: int, width: int, **sizes: int) -> Workload:
    """Gated recurrent units on frames, a class for every frame; cross entropy, AdamW.

    Inputs are (batch_size, sequence_length, features), outputs logits (batch_size, sequence_length, classes).
    """
    with device("meta"):
        module = Recurrent(features, depth, width, sizes["classes"])
    rules: dict[str, Rule] = {
        "gru.weight_ih_l0": kernel(1.0),
        "gru.weight_ih_*": kernel(2.0),  # reads states, of RMS about a half
        "gru.weight_hh_*": kernel(2.0),
        "gru.bias_*": around(0, 0.1),
        "head.weight": classifier(2.0),
    }
    fill(generator, module, rules=rules)
    inputs = generator.uniform("inputs", (sizes["batch_size"], sizes["sequence_length"], features))
    return _tagger(generator, module, inputs, sizes["classes"])


def _tagger(generator: Generator, module: nn.Module, inputs: Tensor, classes: int) -> Workload:
    """Return the workload of a network that gives a class to each vector of `inputs` (batch, vectors, width)."""
    return Workload(
        module=module,
        inputs=inputs,
        targets=generator.integers("targets", tuple(inputs.shape[:2]), classes),
        loss=class_loss,
        optimizer=adamw,
        items_per_step=inputs.shape[0] * inputs.shape[1],
    )


def speech_encoder(
    generator: Generator, *, features: int, sequence_length: int, classes: int, **sizes: int
) -> Workload:
    """A conformer on log-mel features, with a fourth of their frames; connectionist temporal classification, AdamW.

    Inputs are (batch_size, sequence_length, features), outputs logits (batch_size, sequence_length / 4, classes), whose
    class 0 is the blank. Targets are (batch_size, sequence_length / 16) of the others.
    """
    frames, batch_size = sequence_length // SUBSAMPLED, sizes["batch_size"]
    with device("meta"):
        module = SpeechEncoder(features, sizes["depth"], sizes["width"], sizes["heads"], classes, frames)
    behind_relu = rectified(0.0, 1.0)[1] ** -0.5
    gains = {
        "subsample.2": behind_relu,
        "embed": behind_relu,
        "*.query_key_value": SHARPNESS,
        "*.project": 0.7,
        "*.down": SILU_VARIANCE**-0.5,  # half is added
        "*.depthwise": GLU_VARIANCE**-0.5,
        "*.narrow": 0.5 * SILU_VARIANCE**-0.5,
    }
    fill(generator, module, gains=gains, rules={"head.weight": classifier(1.0), **_rotary_tables(module.cosine)})
    return Workload(
        module=module,
        inputs=generator.uniform("inputs", (batch_size, sequence_length, features)),
        targets=1 + generator.integers("targets", (batch_size, frames // 4), classes - 1),
        loss=_alignment_loss,
        optimizer=adamw,
        items_per_step=batch_size * sequence_length,
        classes_dim=-1,
    )


def _alignment_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the CTC loss of logits (batch, frames, classes); class 0 is the blank.

    It has no kernel in half, and only CPU's autocast casts for it: log-probabilities are taken in at least fp32, as in
    all recipes for speech.
    """
    exact = torch.promote_types(logits.dtype, torch.float32)
    log_probabilities = F.log_softmax(logits, dim=-1, dtype=exact).transpose(0, 1)
    frames, batch, _ = log_probabilities.shape
    lengths = torch.full((2, batch), frames)
    lengths[1] = targets.shape[1]
    return F.ctc_loss(log_probabilities, targets, lengths[0], lengths[1])


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return `x` (..., tokens, size) with each pair of halves turned by its position, in `x`'s dtype.

    Source: Su et al., "RoFormer", 2021, in the half-split form of LLaMA.
    """
    first, second = x.chunk(2, dim=-1)
    tokens = x.shape[-2]
    cosine, sine = cosine[:tokens].to(x.dtype), sine[:tokens].to(x.dtype)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def _rotary_tables(table: Tensor) -> dict[str, Rule]:
    """Return the rules for both tables of rotary positions of the shape of `table` (tokens, size).

    That is the cosine and sine of every position times every frequency, once for each half of a pair.
    """
    tokens, size = table.shape
    halves = {name: waves(of, tokens, size // 2) for name, of in (("cosine", math.cos), ("sine", math.sin))}
    return {name: torch.cat((half, half), dim=1) for name, half in halves.items()}

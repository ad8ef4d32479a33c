"""Sequence models: an encoder, recurrent units, language models as trained, served and fine-tuned, and diffusion."""

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
    grid_targets,
    kernel,
    regression_loss,
    waves,
)

ADAPTER_SCALE = 2.0
"""Weight of an adapter's output: alpha is twice the rank, as usual."""

ADAPTER_RMS = 0.1
"""RMS of an adapter's output, as partway through a fine-tuning, which starts at 0."""

LATENTS = 4
"""Channels of the latent images that diffusion runs on, as Stable Diffusion's autoencoder makes them."""

PATCH = 2
"""Side of a diffusion transformer's patches, as in DiT-XL/2."""

TIMESTEPS = 1000
"""Steps from an image to noise (Ho et al., "Denoising diffusion probabilistic models", NeurIPS 2020)."""

MODULATION = 0.4
"""RMS of the shifts, scales and gates that a timestep gives a diffusion transformer's blocks."""

SHARPNESS = 1.3
"""Gain of queries and keys: attention scores vary by its square, 1.7, so that a token attends to a few others."""

EMBEDDING_RMS = 0.5
"""RMS of embeddings, and of the sum of all residual branches of the language model, halved."""

HEAD_GAIN = 0.1
"""Gain of the last norm: it keeps logits, sums over the width, at the size they have in trained models."""

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


class DecoderBlock(nn.Module):
    """Causal attention with rotary positions and a SwiGLU layer, each behind an RMS norm and added to the stream.

    Source: Touvron et al., "LLaMA", 2023; Shazeer, "GLU variants improve Transformer", 2020.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, heads, causal=True, bias=False)
        self.feed_norm = nn.RMSNorm(width)
        hidden = 8 * ((width + 2) // 3)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the stream (batch, tokens, width) after this block."""
        x = x + self.attention(self.attention_norm(x), cosine, sine, cache)
        y = self.feed_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


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

    def __init__(self, sizes: Sizes):
        super().__init__()
        width, heads = sizes["width"], sizes["heads"]
        self.embedding = nn.Embedding(sizes["vocabulary"], width)
        self.blocks = nn.ModuleList(DecoderBlock(width, heads) for _ in range(sizes["depth"]))
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


def transformer_encoder(generator: Generator, *, depth: int, width: int, heads: int, **sizes: int) -> Workload:
    """Pre-norm encoder on embedded tokens, so that a layer norm reads its inputs; cross entropy, AdamW.

    Inputs are (batch_size, sequence_length, width), outputs logits (batch_size, sequence_length, classes).
    """
    with device("meta"):
        module = Encoder(depth, width, heads, sizes["classes"])
    gains = {"*.query_key_value": SHARPNESS, "*.down": 0.5 * GELU_VARIANCE**-0.5}
    fill(generator, module, gains=gains, rules={"head.weight": classifier(1.0)})
    inputs = generator.uniform("inputs", (sizes["batch_size"], sizes["sequence_length"], width))
    return _tagger(generator, module, inputs, sizes["classes"])


def decoder_lm(generator: Generator, **sizes: int) -> Workload:
    """Causal language model whose head is its embedding; cross entropy against the next token, AdamW.

    Inputs are tokens (batch_size, sequence_length), outputs logits (batch_size, sequence_length, vocabulary).
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
    """Return tokens (batch_size, sequence_length) and their successors."""
    shape = (sizes["batch_size"], sizes["sequence_length"] + 1)
    tokens = generator.integers("tokens", shape, sizes["vocabulary"])
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
    average.
    """
    branch = 2 * EMBEDDING_RMS / math.sqrt(2 * sizes["depth"])
    gains = {
        "*.query_key_value": SHARPNESS,
        "*.project": branch / attended,
        "*.down": branch * SWIGLU_VARIANCE**-0.5,
        "norm": HEAD_GAIN,
    }
    own_rules: dict[str, Rule] = {"embedding.weight": around(0, EMBEDDING_RMS), **_rotary_tables(module.cosine)}
    fill(generator, module, gains=gains, rules=own_rules | dict(rules or {}))


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


class Prefill(Decoder):
    """A decoder that reads a prompt: logits that follow its last token, and each block's keys and values."""

    def forward(self, tokens: Tensor) -> tuple[Tensor, tuple[tuple[Tensor, ...], ...]]:  # type: ignore[override]
        """Return logits (batch, vocabulary) and, by block, keys and values (batch, heads, tokens, size)."""
        caches = [Cache() for _ in self.blocks]
        stream = self.stream(tokens, self.cosine, self.sine, caches)
        return self.logits(stream[:, -1]), tuple(cache.held for cache in caches)


class Decode(Decoder):
    """A decoder that writes one token, after as many as its cache holds."""

    def forward(self, token: Tensor, keys: Tensor, values: Tensor) -> Tensor:  # type: ignore[override]
        """Return the logits (batch, vocabulary) that follow `token` (batch, 1).

        `keys` and `values` (batch, depth, heads, context, size) belong to the tokens before it.
        """
        caches = [Cache(*pair) for pair in zip(keys.unbind(1), values.unbind(1), strict=True)]
        context = keys.shape[-2]
        return self.logits(self.stream(token, self.cosine[context:], self.sine[context:], caches)[:, -1])


class LowRank(nn.Linear):
    """A linear layer whose weights stay in bf16 and are not trained, and an adapter of low rank, which is.

    The weights are used in the dtype in which the layer computes: autocast's, else its input's. Source: Hu et al.,
    "LoRA", ICLR 2022; Dettmers et al., "QLoRA", NeurIPS 2023, for adapters on all linear layers.
    """

    def __init__(self, inputs: int, outputs: int, rank: int):
        super().__init__(inputs, outputs, bias=False)
        self.weight = nn.Parameter(self.weight.detach().bfloat16(), requires_grad=False)
        self.lower = nn.Parameter(torch.empty(rank, inputs))
        self.upper = nn.Parameter(torch.empty(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output and the adapter's (..., outputs)."""
        casts = torch.is_autocast_enabled(x.device.type)
        frozen = F.linear(x, self.weight if casts else self.weight.to(x.dtype))
        return frozen + ADAPTER_SCALE * F.linear(F.linear(x, self.lower), self.upper)


def prefill(generator: Generator, **sizes: int) -> Workload:
    """A prompt through a decoder: the logits of what follows it, and the cache that decoding starts from; no loss.

    Inputs are tokens (batch_size, sequence_length), outputs logits (batch_size, vocabulary), which are compared, and
    keys and values (batch_size, heads, sequence_length, width / heads) of every block.
    """
    with device("meta"):
        module = Prefill(sizes)
    decoder_weights(generator, module, sizes)
    tokens, _ = next_tokens(generator, sizes)
    return Workload(module=module, inputs=tokens, items_per_step=tokens.numel(), outputs="[0]", classes_dim=-1)


def decode(generator: Generator, *, context: int, **sizes: int) -> Workload:
    """One token after `context` others, whose keys and values each block has in a cache; no loss.

    Inputs are tokens (batch_size, 1) and a cache of keys and values (batch_size, depth, heads, context, width / heads)
    each, outputs logits (batch_size, vocabulary). The cache is the same at every step.
    """
    sizes["sequence_length"] = context + 1
    with device("meta"):
        module = Decode(sizes)
    # Of n keys whose scores vary by v, a token attends to n / e**v: it sees an average of that number of values.
    spread = math.exp(SHARPNESS**4)
    attended = round(SHARPNESS * math.sqrt(min(1.0, spread / context)), 6)
    decoder_weights(generator, module, sizes, attended=attended)
    batch_size, heads = sizes["batch_size"], sizes["heads"]
    shape = (batch_size, sizes["depth"], heads, context, sizes["width"] // heads)
    return Workload(
        module=module,
        inputs=(
            generator.integers("tokens", (batch_size, 1), sizes["vocabulary"]),
            generator.uniform("keys", shape, rms=SHARPNESS),
            generator.uniform("values", shape, rms=SHARPNESS),
        ),
        cached=(1, 2),
        classes_dim=-1,
    )


def lora(generator: Generator, *, rank: int, **sizes: int) -> Workload:
    """The language model of `decoder_lm` with linear layers kept in bf16 and low-rank adapters; cross entropy, AdamW.

    Adapters alone are trained. They are fp32, as are norms and the embedding. Inputs are tokens
    (batch_size, sequence_length), outputs logits (batch_size, sequence_length, vocabulary).
    """
    with device("meta"):
        module = Decoder(sizes).requires_grad_(False)
        for owner in list(module.modules()):
            for name, layer in list(owner.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(owner, name, LowRank(layer.in_features, layer.out_features, rank))
    return language_model(
        generator,
        module,
        sizes,
        lambda parameters: adamw(parameter for parameter in parameters if parameter.requires_grad),
        {"*.lower": kernel(1.0), "*.upper": kernel(ADAPTER_RMS / ADAPTER_SCALE)},
    )


class Timesteps(nn.Module):
    """What a diffusion network knows of the time: sinusoids of whole timesteps, a layer, SiLU and a layer.

    The sinusoids are made in at least fp32 and cast to the layer's dtype, as is usual: no half precision holds the
    angle 999 to better than a quarter.
    """

    def __init__(self, features: int, width: int):
        super().__init__()
        self.up = nn.Linear(features, width)
        self.down = nn.Linear(width, width)

    def forward(self, timesteps: Tensor) -> Tensor:
        """Return an embedding (batch, width) of `timesteps`, integers (batch,)."""
        exact = torch.promote_types(self.up.weight.dtype, torch.float32)
        half = self.up.in_features // 2
        places = torch.arange(half, dtype=exact, device=timesteps.device)
        angles = timesteps.to(exact)[:, None] * torch.exp(-math.log(10_000) / half * places)
        sinusoids = torch.cat((angles.cos(), angles.sin()), dim=1).to(self.up.weight.dtype)
        return self.down(F.silu(self.up(sinusoids)))  # type: ignore[no-any-return]


class ModulatedBlock(nn.Module):
    """A transformer's block whose two norms are shifted and scaled, and its two branches gated, by a condition."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.modulation = nn.Linear(width, 6 * width)
        self.attention_norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.attention = Attention(width, heads)
        self.feed_norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return the stream (batch, tokens, width) after this block; `condition` is (batch, width)."""
        modulation = self.modulation(F.silu(condition))[:, None]
        shift, scale, gate, feed_shift, feed_scale, feed_gate = modulation.chunk(6, dim=-1)
        x = x + gate * self.attention(self.attention_norm(x) * (1 + scale) + shift)
        y = self.feed_norm(x) * (1 + feed_scale) + feed_shift
        return x + feed_gate * self.down(F.gelu(self.up(y), approximate="tanh"))  # type: ignore[no-any-return]


class DiffusionTransformer(nn.Module):
    """Patches of a noisy latent image through modulated blocks, and back to a prediction for each pixel.

    Source: Peebles and Xie, "Scalable diffusion models with transformers", ICCV 2023, without the learned variance.
    """

    def __init__(self, depth: int, width: int, heads: int, classes: int, image: int):
        super().__init__()
        self.patches = nn.Conv2d(LATENTS, width, PATCH, stride=PATCH)
        self.register_buffer("positions", torch.empty((image // PATCH) ** 2, width))
        self.time = Timesteps(256, width)
        self.labels = nn.Embedding(classes, width)
        self.blocks = nn.ModuleList(ModulatedBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.modulation = nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, LATENTS * PATCH**2)

    def forward(self, latents: Tensor, timesteps: Tensor, labels: Tensor) -> Tensor:
        """Return a tensor as `latents` (batch, LATENTS, side, side); timesteps and labels are integers (batch,)."""
        grid = self.patches(latents)
        x = grid.flatten(2).transpose(1, 2) + self.positions
        condition = self.time(timesteps) + self.labels(labels)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(F.silu(condition))[:, None].chunk(2, dim=-1)
        x = self.head(self.norm(x) * (1 + scale) + shift)
        return F.pixel_shuffle(x.transpose(1, 2).unflatten(2, grid.shape[2:]), PATCH)


def diffusion_transformer(
    generator: Generator, *, depth: int, width: int, heads: int, classes: int, image: int, batch_size: int
) -> Workload:
    """DiT on latent images with a class each: predicts the velocity from image to noise; mean squared error, AdamW.

    Inputs are latents (batch_size, LATENTS, image, image) on the straight way to noise (Liu et al., "Flow straight and
    fast", ICLR 2023; so are Stable Diffusion 3 and Flux trained), timesteps from 1 to 1000 and labels. The gates that
    DiT starts at zero ("adaLN-Zero"), and its head, have the size that training gives them.
    """
    with device("meta"):
        module = DiffusionTransformer(depth, width, heads, classes, image)
    rules: dict[str, Rule] = {
        "positions": _places_in_square(image // PATCH, width),
        "labels.weight": around(0, 0.7),
    }
    gains = {
        "patches": 0.7,
        "time.up": 1.4,  # sinusoids, less their mean, are of an RMS of about 0.6
        "time.down": 0.7 * SILU_VARIANCE**-0.5,
        "*modulation": MODULATION * SILU_VARIANCE**-0.5,
        "*.query_key_value": SHARPNESS,
        "*.down": GELU_VARIANCE**-0.5,
        "head": 1.5,  # the RMS of its target
    }
    fill(generator, module, gains=gains, rules=rules)
    shape = (batch_size, LATENTS, image, image)
    clean, noise = grid_targets(generator, shape, "images"), grid_targets(generator, shape, "noise")
    timesteps = 1 + generator.integers("timesteps", (batch_size,), TIMESTEPS)
    share = (timesteps.float() / TIMESTEPS).view(-1, 1, 1, 1)
    return Workload(
        module=module,
        inputs=((1 - share) * clean + share * noise, timesteps, generator.integers("labels", (batch_size,), classes)),
        targets=noise - clean,  # multiples of 1/16 below 4: every dtype holds them
        loss=regression_loss,
        optimizer=adamw,
    )


def _places_in_square(side: int, width: int) -> Tensor:
    """Return sinusoids (side * side, width) of the places in a square, half of each for the row and for the column."""
    half = torch.cat([waves(function, side, width // 4) for function in (math.sin, math.cos)], dim=1)
    return torch.cat((half.repeat_interleave(side, dim=0), half.repeat(side, 1)), dim=1)

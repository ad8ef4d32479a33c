"""Sequence models: an encoder and a language model."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, device, nn
from torch.nn import functional as F

from ampbench.worker.data import Generator
from ampbench.workload import Workload
from ampbench.workloads.weights import (
    GELU_VARIANCE,
    SWIGLU_VARIANCE,
    Rule,
    adamw,
    around,
    class_loss,
    classifier,
    fill,
    waves,
)

SHARPNESS = 1.3
"""Gain of queries and keys: attention scores vary by its square, 1.7, so that a token attends to a few others."""

EMBEDDING_RMS = 0.5
"""RMS of embeddings, and of the sum of all residual branches of the language model, halved."""

HEAD_GAIN = 0.1
"""Gain of the last norm: it keeps logits, sums over the width, at the size they have in trained models."""

Sizes = Mapping[str, int]
"""The parameters of a workload, by their names in `ampbench.workloads.index`."""


class Attention(nn.Module):
    """Multi-head self-attention on (batch, tokens, width), with scaled_dot_product_attention."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, bias: bool = True):
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.query_key_value = nn.Linear(width, 3 * width, bias=bias)
        self.project = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, cosine: Tensor | None = None, sine: Tensor | None = None) -> Tensor:
        """Return the attention output of each token, (batch, tokens, width); with tables, positions are rotary."""
        batch, tokens, width = x.shape
        split = self.query_key_value(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        if cosine is not None and sine is not None:
            query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
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

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return the stream (batch, tokens, width) after this block."""
        x = x + self.attention(self.attention_norm(x), cosine, sine)
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
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        return F.linear(self.norm(x), self.embedding.weight)


def transformer_encoder(generator: Generator, *, depth: int, width: int, heads: int, **sizes: int) -> Workload:
    """Pre-norm encoder on embedded tokens, so that a layer norm reads its inputs; cross entropy, AdamW.

    Inputs are (batch_size, sequence_length, width), outputs logits (batch_size, sequence_length, classes).
    """
    with device("meta"):
        module = Encoder(depth, width, heads, sizes["classes"])
    gains = {"*.query_key_value": SHARPNESS, "*.down": 0.5 * GELU_VARIANCE**-0.5}
    fill(generator, module, gains=gains, rules={"head.weight": classifier(1.0)})
    inputs = generator.uniform("inputs", (sizes["batch_size"], sizes["sequence_length"], width))
    return Workload(
        module=module,
        inputs=inputs,
        targets=generator.integers("targets", tuple(inputs.shape[:2]), sizes["classes"]),
        loss=class_loss,
        optimizer=adamw,
        items_per_step=inputs.shape[0] * inputs.shape[1],
    )


def decoder_lm(generator: Generator, **sizes: int) -> Workload:
    """Causal language model whose head is its embedding; cross entropy against the next token, AdamW.

    Inputs are tokens (batch_size, sequence_length), outputs logits (batch_size, sequence_length, vocabulary).
    """
    with device("meta"):
        module = Decoder(sizes)
    decoder_weights(generator, module, sizes)
    shape = (sizes["batch_size"], sizes["sequence_length"] + 1)
    tokens = generator.integers("tokens", shape, sizes["vocabulary"])
    inputs = tokens[:, :-1].contiguous()
    return Workload(
        module=module,
        inputs=inputs,
        targets=tokens[:, 1:].contiguous(),
        loss=class_loss,
        optimizer=adamw,
        items_per_step=inputs.numel(),
    )


def decoder_weights(generator: Generator, module: Decoder, sizes: Sizes) -> None:
    """Give a decoder on the meta device, made with these sizes, its weights.

    Branches are scaled by depth as in GPT-2 (Radford et al., 2019), so that a token's own embedding stays the largest
    part of its stream and the logits have a clear first.
    """
    branch = 2 * EMBEDDING_RMS / math.sqrt(2 * sizes["depth"])
    gains = {
        "*.query_key_value": SHARPNESS,
        "*.project": branch / 0.5,  # about the RMS of what a token attends to, an average
        "*.down": branch * SWIGLU_VARIANCE**-0.5,
        "norm": HEAD_GAIN,
    }
    rules: dict[str, Rule] = {"embedding.weight": around(0, EMBEDDING_RMS)}
    tokens, size = module.cosine.shape
    for name, of in (("cosine", math.cos), ("sine", math.sin)):  # of every position times every frequency
        half = waves(of, tokens, size // 2)
        rules[name] = torch.cat((half, half), dim=1)
    fill(generator, module, gains=gains, rules=rules)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return `x` (..., tokens, size) with each pair of halves turned by its position, in `x`'s dtype.

    Source: Su et al., "RoFormer", 2021, in the half-split form of LLaMA.
    """
    first, second = x.chunk(2, dim=-1)
    tokens = x.shape[-2]
    cosine, sine = cosine[:tokens].to(x.dtype), sine[:tokens].to(x.dtype)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine

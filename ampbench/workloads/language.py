"""Language models as they are served and fine-tuned: prefill, decoding, a mixture of experts, low-rank adapters.

All are the decoder of `ampbench.workloads.sequence`.
"""

import math
from functools import partial

import torch
from torch import Tensor, device, nn
from torch.nn import functional as F

from ampbench.worker.data import Generator
from ampbench.workload import Workload
from ampbench.workloads.sequence import (
    SHARPNESS,
    Cache,
    CausalBlock,
    Decoder,
    decoder_weights,
    language_model,
    next_tokens,
)
from ampbench.workloads.weights import adamw, kernel

ADAPTER_SCALE = 2.0
"""Weight of an adapter's output: alpha is twice the rank, as usual."""

ADAPTER_RMS = 0.1
"""RMS of an adapter's output, as partway through a fine-tuning, which starts at 0."""


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

        `keys` and `values` (batch, depth, heads, context, size) are those of the tokens before it.
        """
        caches = [Cache(*pair) for pair in zip(keys.unbind(1), values.unbind(1), strict=True)]
        context = keys.shape[-2]
        return self.logits(self.stream(token, self.cosine[context:], self.sine[context:], caches)[:, -1])


class Expert(nn.Module):
    """A SwiGLU layer (tokens, width)."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Router(nn.Linear):
    """The weight of every expert for every token (tokens, experts): 0 but for the `active` highest, which sum to 1.

    It runs in at least fp32 with autocast off, as routers do. Source: Fedus et al., "Switch transformers", JMLR 2022,
    section 2.4.
    """

    def __init__(self, width: int, experts: int, active: int):
        super().__init__(width, experts, bias=False)
        self.active = active

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the weights for `tokens` (tokens, width)."""
        with torch.autocast(tokens.device.type, enabled=False):
            exact = torch.promote_types(tokens.dtype, torch.float32)
            scores = F.linear(tokens.to(exact), self.weight.to(exact))
            best, chosen = scores.topk(self.active)
            return torch.zeros_like(scores).scatter(1, chosen, best.softmax(-1))


class MixtureBlock(CausalBlock):
    """A causal block in which a router sends each token to some of its experts.

    No expert has a capacity: no token is dropped. Outputs of experts are added in their order, so that a step repeats
    exactly. Source: Jiang et al., "Mixtral of experts", 2024.
    """

    def __init__(self, width: int, heads: int, experts: int, active: int):
        super().__init__(width, heads)
        self.router = Router(width, experts, active)
        self.experts = nn.ModuleList(Expert(width, 8 * ((width + 2) // 3)) for _ in range(experts))

    def feed(self, x: Tensor) -> Tensor:
        """Return the outputs of every token's experts, weighted by the router."""
        tokens = x.flatten(0, -2)
        weights = self.router(tokens)
        total = torch.zeros_like(tokens)
        for place, expert in enumerate(self.experts):
            rows = weights[:, place].nonzero()[:, 0]
            answers = expert(tokens[rows]) * weights[rows, place, None]
            total.index_add_(0, rows, answers.to(total.dtype))
        return total.view_as(x)


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
    """One token after `context` others, of which each block has the keys and values in a cache; no loss.

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


def moe(generator: Generator, *, experts: int, active: int, **sizes: int) -> Workload:
    """The language model of `decoder_lm` with a mixture of experts in each block; cross entropy, AdamW.

    Inputs are tokens (batch_size, sequence_length), outputs logits (batch_size, sequence_length, vocabulary).
    """
    with device("meta"):
        module = Decoder(sizes, partial(MixtureBlock, experts=experts, active=active))
    return language_model(generator, module, sizes)


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

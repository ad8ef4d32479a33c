"""Networks that a program has: measured in its process as `run` does, told as a `Result`, without a trace."""

import contextlib
import gc
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves

import ampbench

QUICK: dict[str, Any] = {"precisions": ["fp32", "bf16_autocast"], "device": "cpu", "budget": 0.3}
ROOT = Path(__file__).parents[1]


class Net(nn.Module):
    """A network whose forward is a function of its layer and what it is given."""

    def __init__(self, forward: Callable[..., Any] = lambda layer, x: layer(x), layer: nn.Module | None = None):
        super().__init__()
        self.layer, self.call = layer or nn.Linear(4, 3), forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(self.layer, *args, **kwargs)


def rows(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 4)


def bits(value: Any) -> Any:
    """Return what tells whether anything in a value has changed."""
    if isinstance(value, torch.Tensor):
        data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return id(value), str(value.dtype), str(value.device), value.requires_grad, tuple(value.shape), data
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return [(str(key), bits(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else id(value)


def everything(*held: nn.Module | torch.optim.Optimizer | torch.Tensor) -> dict[str, Any]:
    """Return all of this process, and of what is held, that measuring must leave alone."""
    backends = torch.backends
    state: dict[str, Any] = {
        "random": [random.getstate(), bits(np.random.get_state()), bits(torch.get_rng_state())[-1]],
        "dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "modes": [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()],
        "autocast": [
            (torch.is_autocast_enabled(device), str(torch.get_autocast_dtype(device))) for device in ("cpu", "cuda")
        ],
        "cache": torch.is_autocast_cache_enabled(),
        "switches": [
            torch.get_float32_matmul_precision(), backends.cudnn.benchmark, backends.cudnn.deterministic,
            backends.cudnn.enabled, backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32,
            backends.cuda.matmul.allow_fp16_reduced_precision_reduction, backends.cuda.flash_sdp_enabled(),
            backends.cuda.math_sdp_enabled(), backends.mha.get_fastpath_enabled(),
            torch.are_deterministic_algorithms_enabled(),
        ],
        "global hooks": [bits(value) for name, value in vars(nn.modules.module).items() if name.startswith("_global_")],
        "python": [sys.path.copy(), gc.isenabled(), bool(gc.get_freeze_count()), signal.getsignal(signal.SIGINT)],
        "modules": [name for name in sys.modules if name.startswith("ampbench_given")],
    }  # fmt: skip
    for place, one in enumerate(held):
        if isinstance(one, nn.Module):
            for name, module in one.named_modules():
                own = {key: value for key, value in vars(module).items() if key not in ("_modules",)}
                state[f"{place} {name}"] = bits(own)
            state[f"{place} gradients"] = [bits(weight.grad) for weight in one.parameters()]
        elif isinstance(one, torch.optim.Optimizer):
            state[f"{place}"] = bits(one.state_dict())
        else:
            state[f"{place}"] = bits(one)
    return state


def changing(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Change in a forward pass all that a network can."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.set_grad_enabled(torch.is_grad_enabled())
    torch.backends.mha.set_fastpath_enabled(False)
    torch.set_autocast_cache_enabled(False)
    random.random(), np.random.rand(), torch.rand(3)
    torch.set_default_dtype(torch.float32)
    return layer(x.mul_(2)).to(x.dtype)


def raising(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    raise RuntimeError("the network is\nbroken")


def interrupted(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGINT)
    return layer(x)


def _networks() -> Iterator[tuple[str, nn.Module, Any]]:
    torch.manual_seed(3)
    ids = torch.randint(0, 7, (6, 5))
    packed = pack_padded_sequence(torch.randn(3, 5, 4), [5, 3, 2], batch_first=True)
    frozen, tied, hooked, half = Net(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), Net(), nn.Linear(4, 3)
    frozen.layer.weight.requires_grad_(False)
    tied[1].weight = tied[0].weight
    hooked.register_forward_hook(lambda module, args, output: output + 1)
    norm = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    norm[1].eval()
    yield "linear", Net(), rows()
    yield "batchnorm and dropout, partly in eval mode", norm, rows()
    yield "frozen", frozen, rows()
    yield "tied", tied, rows()
    yield "hooked", hooked, rows()
    yield "spectral norm", nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), rows()
    yield "integers", nn.Embedding(7, 4), ids
    yield "packed", Net(lambda layer, x: layer(x)[1], nn.GRU(4, 3, batch_first=True)), packed
    yield "mapping", Net(lambda layer, *, a, b: layer(a + b)), {"a": rows(), "b": rows()}
    yield "pair", Net(lambda layer, a, b: layer(a) + layer(b)), (rows(), rows())
    yield "batches", Net(), [rows(), rows(3)]
    yield "dict out", Net(lambda layer, x: {"a": layer(x), "b": layer(-x)}), rows()
    yield "tuple out", Net(lambda layer, x: (layer(x), x.sum())), rows()
    yield "draws", Net(lambda layer, x: layer(x + torch.rand_like(x))), rows()
    yield "differentiates", Net(lambda layer, x: layer(x)), rows().requires_grad_()
    yield "attention", nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), torch.randn(2, 3, 4)
    yield "convolution", nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)
    yield "half buffer", half, rows()
    half.register_buffer("scale", torch.ones(3, dtype=torch.bfloat16))
    yield "changing", Net(changing), rows()
    yield "raising", Net(raising), rows()
    yield "interrupted", Net(interrupted), rows()


NETWORKS = list(_networks())


@pytest.mark.parametrize(("name", "network", "inputs"), NETWORKS, ids=[name for name, *_ in NETWORKS])
def test_it_leaves_no_trace(name: str, network: nn.Module, inputs: Any):
    for weight in network.parameters():
        if weight.requires_grad:
            weight.grad = torch.full_like(weight, 0.5)
    torch.backends.cudnn.benchmark = True
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    held = [network, optimizer, *(each for each in [inputs] if isinstance(each, torch.Tensor))]

    def loss(output: Any) -> torch.Tensor:
        leaves = [leaf for leaf in tree_leaves(output) if leaf.is_floating_point()]
        penalty = sum(weight.square().sum() for weight in network.parameters())
        return sum(leaf.float().square().mean() for leaf in leaves) + 1e-3 * penalty

    ending = pytest.raises(ampbench.AmpbenchError, match="broken") if name == "raising" else contextlib.nullcontext()
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.float16):
            before = everything(*held)
            with ending:
                result = ampbench.measure(network, inputs, loss, optimizer=optimizer, **QUICK)
            assert everything(*held) == before
    finally:
        torch.backends.cudnn.benchmark = False
    if name == "interrupted":
        assert result.stored.ended == "interrupted"
        assert not result.takes

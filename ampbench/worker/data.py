"""Weights and inputs that outlive a torch version.

Every tensor of a built-in workload is drawn by name from NumPy's Philox generator, whose raw stream NumPy promises not
to change, and turned into fp32 by arithmetic of our own; torch only receives the values. A batch is a prefix of every
larger one, because the batch size is not part of the key.

Source of the generator: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ampbench.records.cases import ParameterValue
from ampbench.workload import Workload

CHUNK_WORDS = 1 << 16
"""Words drawn at a time: half a mebibyte, which stays in a core's second-level cache while it becomes values."""


class Generator:
    """Draws tensors that depend on nothing but workload, version, parameters, seed and the tensor's name."""

    def __init__(self, workload: str, version: int, parameters: Mapping[str, ParameterValue], seed: int):
        settings = {name: value for name, value in sorted(parameters.items()) if name != "batch_size"}
        self._key = json.dumps([workload, version, settings, seed])

    def uniform(self, name: str, shape: tuple[int, ...], rms: float = 1.0, mean: float = 0.0) -> torch.Tensor:
        """Return fp32 values uniform around `mean` with the standard deviation `rms`; `shape` as given."""
        values = np.empty(math.prod(shape), np.float32)
        scale, lowest = np.float32(2.0**-23 * math.sqrt(3.0) * rms), np.float32(mean - math.sqrt(3.0) * rms)
        start = 0
        for words in self._words(name, (len(values) + 1) // 2):
            part = values[start : start + 2 * len(words)]
            part[:] = words.view(np.uint32)[: len(part)] >> np.uint32(8)  # 24 bits: every value is exact in fp32
            part *= scale
            part += lowest
            start += len(part)
        return torch.from_numpy(values.reshape(shape))

    def integers(self, name: str, shape: tuple[int, ...], high: int) -> torch.Tensor:
        """Return int64 values uniform in [0, `high`); `high` is far below 2**32, so that the modulo's bias is nil."""
        values = np.empty(math.prod(shape), np.int64)
        start = 0
        for words in self._words(name, len(values)):
            values[start : start + len(words)] = words % np.uint64(high)
            start += len(words)
        return torch.from_numpy(values.reshape(shape))

    def fill(self, module: torch.nn.Module, initial: Callable[[str, torch.Tensor], torch.Tensor | float]) -> None:
        """Give every parameter and buffer of `module` its value: what `initial(name, tensor)` returns.

        A module built on the meta device is given storage on CPU first. Parameters shared under several names are
        filled once, under the first.
        """
        if any(tensor.is_meta for _, tensor in named_tensors(module)):
            module.to_empty(device="cpu")
        with torch.no_grad():
            for name, tensor in named_tensors(module):
                value = initial(name, tensor)
                if isinstance(value, torch.Tensor):
                    tensor.copy_(value)
                else:
                    tensor.fill_(value)

    def _words(self, name: str, count: int) -> Iterator["np.ndarray[tuple[int], np.dtype[np.uint64]]"]:
        """Yield the first `count` words of the stream called `name`, in chunks."""
        key = hashlib.sha256(f"{self._key}\n{name}".encode()).digest()
        philox = np.random.Philox(key=int.from_bytes(key[:16], "little"))
        for start in range(0, count, CHUNK_WORDS):
            yield philox.random_raw(min(CHUNK_WORDS, count - start))


class InputsOnly(Generator):
    """Draws inputs and targets, and leaves weights as they are."""

    def fill(self, module: torch.nn.Module, initial: Callable[[str, torch.Tensor], torch.Tensor | float]) -> None:
        """Do nothing."""


def named_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every parameter and buffer of `module` once, by its first name."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def digest(tensors: Iterator[tuple[str, torch.Tensor]]) -> str:
    """Return a 16-digit digest of names, dtypes, shapes and bytes of `tensors` (on CPU)."""
    sha = hashlib.sha256()
    for name, tensor in tensors:
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        data = tensor.detach().cpu().contiguous().reshape(-1)
        if data.numel():
            sha.update(data.view(torch.uint8).numpy().data)
    return sha.hexdigest()[:16]


def weights_digest(workload: Workload) -> str:
    """Return the digest of the workload's fp32 parameters and buffers."""
    return digest(named_tensors(workload.module))


def inputs_digest(workload: Workload) -> str:
    """Return the digest of the workload's inputs and targets."""
    leaves = pytree.tree_leaves([workload.inputs, workload.targets])
    return digest((str(place), leaf) for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))

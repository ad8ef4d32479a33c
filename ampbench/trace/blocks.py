"""`watch_blocks`: how the factors of a network's products fit into formats below 16 bits, while fp32 code runs it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch

from ampbench.records.ranges import GRADIENT, INPUT, WEIGHT, Blocks
from ampbench.trace.formats import BlockCounts, count_blocks
from ampbench.trace.modules import ModuleRun, tensors_in, watch_runs

_CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


class _Place(NamedTuple):
    module: str
    kind: str
    what: str
    format: str


class FactorBlocks:
    """The blocks that `watch_blocks` has seen so far; `formats` are those of each kind of factor."""

    def __init__(self, formats: Mapping[str, list[str]]):
        self._formats = formats
        self._counts: dict[_Place, BlockCounts] = {}

    @property
    def records(self) -> list[Blocks]:
        """A record for each factor and format, in the order of first running."""
        return [Blocks(**place._asdict(), **counts._asdict()) for place, counts in self._counts.items()]

    def after(self, run: ModuleRun) -> None:
        """Count the inputs and weights of a layer, and the gradients of its outputs when these come."""
        channel = _channel_of(run.module)
        if channel is None:
            return
        for tensor in tensors_in((run.args, run.kwargs)):
            self._count(run, INPUT, channel, tensor)
        if not any(place[0] == run.path and place.what == WEIGHT for place in self._counts):
            self._count(run, WEIGHT, 1, run.module.weight.flatten(1))  # type: ignore[operator]
        for tensor in run.outputs:
            if tensor.requires_grad and GRADIENT in self._formats:
                tensor.register_hook(partial(self._count, run, GRADIENT, channel))  # type: ignore[no-untyped-call]

    def _count(self, run: ModuleRun, what: str, axis: int, tensor: torch.Tensor) -> None:
        for fmt in self._formats.get(what, ()):
            place = _Place(run.path, type(run.module).__name__, what, fmt)
            counts = count_blocks(tensor.detach(), fmt, axis)
            old = self._counts.get(place, BlockCounts())
            self._counts[place] = BlockCounts(*(sum(pair) for pair in zip(old, counts, strict=True)))


def _channel_of(module: torch.nn.Module) -> int | None:
    """Return the dimension of channels, from the last, of a linear layer or convolution; None for other modules."""
    if isinstance(module, torch.nn.Linear):
        return -1
    return -1 - len(module.kernel_size) if isinstance(module, _CONVOLUTIONS) else None


@contextmanager
def watch_blocks(model: torch.nn.Module, formats: Mapping[str, list[str]]) -> Iterator[FactorBlocks]:
    """Count the blocks of linear layers and convolutions of `model` in formats, while the block runs it in fp32.

    `formats` are names of `formats.SCHEMES` by kind of factor: inputs, weights (once), gradients of outputs. Rows and
    blocks run along the channels, those of a weight along all but its outputs. Results equal those of the unwatched
    program.
    """
    blocks = FactorBlocks(formats)
    with watch_runs(model, blocks.after):
        yield blocks

"""What ceilings are measured with: matrix products, convolutions and copies from small to large, on random values.

Sizes are those of networks: what a network attains in a case must not be more than what is attained here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from ampbench.records.studies import CONV, COPY, MATMUL

MakeTensor = Callable[..., torch.Tensor]
"""Makes a tensor of random values, never zeros, of the dimensions given."""

SQUARES = {"cpu": (128, 256, 512, 1024, 2048), "": (512, 1024, 2048, 4096, 8192, 16384)}
"""Edges of square matrices: on a CPU and, under "", on any other device; so are the tables below."""
LAYERS = {
    "cpu": ((512, 512, 512), (1024, 1024, 1024), (4096, 1024, 1024)),
    "": ((4096, 1024, 1024), (8192, 1024, 4096), (16384, 4096, 4096)),
}
"""Linear layers with a bias, as (rows, features in, features out)."""
CONVOLUTIONS = {
    "cpu": ((8, 64, 64, 56, 3), (8, 128, 128, 28, 3), (8, 256, 256, 14, 3), (8, 256, 256, 32, 3),
            (8, 256, 64, 56, 1), (8, 1024, 256, 14, 1), (8, 64, 256, 56, 1)),
    "": ((64, 64, 64, 56, 3), (256, 128, 128, 28, 3), (256, 256, 256, 14, 3), (256, 512, 512, 14, 3),
         (64, 256, 64, 56, 1), (256, 1024, 256, 14, 1), (256, 512, 2048, 14, 1)),
}  # fmt: skip
"""Convolutions as in ResNets and U-Nets: (images, channels in, channels out, height and width, kernel)."""
COPIES = {"cpu": (18, 20, 22, 24, 26, 28), "": (20, 24, 26, 28, 30)}
"""Bytes that are copied, as powers of two: from what a cache holds to what only the main memory does."""

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
_TILE = 1 << 16


@dataclass(frozen=True, slots=True)
class Task:
    """One size of an operation: `work` FLOPs or bytes each time it is run; `build` makes what runs it.

    Tasks of one `series` differ in size only.
    """

    series: str
    size: str
    work: int
    build: Callable[[MakeTensor], Callable[[], object]]


def tasks_of(operation: str, device: str, itemsize: int) -> list[list[Task]]:
    """Return the tasks of an operation on a type of device, each series from small to large.

    `itemsize` is the bytes of an element. FLOPs are counted as `torch.utils.flop_counter` does, a multiplication and an
    addition as two; the bytes of a copy are those read and those written.
    """
    kind = device if device in SQUARES else ""
    if operation == MATMUL:
        return [[_square(edge) for edge in SQUARES[kind]], [_layer(*shape) for shape in LAYERS[kind]]]
    if operation == CONV:
        return list(_convolutions(kind))
    assert operation == COPY
    return [[_copy(1 << power, itemsize) for power in COPIES[kind]]]


def _square(edge: int) -> Task:
    def build(make: MakeTensor) -> Callable[[], object]:
        left, right = make(edge, edge), make(edge, edge)
        return partial(torch.mm, left, right, out=torch.empty_like(left))

    return Task("square", f"{edge}x{edge}x{edge}", 2 * edge**3, build)


def _layer(rows: int, inputs: int, outputs: int) -> Task:
    def build(make: MakeTensor) -> Callable[[], object]:
        return partial(F.linear, make(rows, inputs), make(outputs, inputs), make(outputs))

    return Task("linear", f"linear {rows}x{inputs}x{outputs}", 2 * rows * inputs * outputs, build)


def _convolutions(kind: str) -> Iterator[list[Task]]:
    for memory_format in FORMATS:
        for kernel in (3, 1):
            shapes = [shape for shape in CONVOLUTIONS[kind] if shape[-1] == kernel]
            tasks = [_convolution(*shape, memory_format) for shape in shapes]
            yield sorted(tasks, key=lambda task: task.work)


def _convolution(images: int, inputs: int, outputs: int, edge: int, kernel: int, memory_format: str) -> Task:
    def build(make: MakeTensor) -> Callable[[], object]:
        laid = FORMATS[memory_format]
        image = make(images, inputs, edge, edge).to(memory_format=laid)
        weight = make(outputs, inputs, kernel, kernel).to(memory_format=laid)
        return partial(F.conv2d, image, weight, padding=kernel // 2)

    size = f"{kernel}x{kernel} {inputs}>{outputs} {images}x{edge}x{edge} {memory_format}"
    work = 2 * images * edge * edge * inputs * outputs * kernel * kernel
    return Task(f"{kernel}x{kernel} {memory_format}", size, work, build)


def _copy(size: int, itemsize: int) -> Task:
    def build(make: MakeTensor) -> Callable[[], object]:
        count = size // itemsize
        source = make(min(count, _TILE)).repeat(max(1, count // _TILE))
        return partial(torch.empty_like(source).copy_, source)

    scale, unit = (20, "MiB") if size >= 1 << 20 else (10, "KiB")
    return Task("copy", f"{size >> scale} {unit}", 2 * size, build)

"""Peak rates of a device: FLOP/s of products, convolutions and attention, bytes per second of copies and reads.

They run from small to large, on random values. Sizes are as in networks, so that no case of a network exceeds the peak.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.core.units import format_seconds
from ampbench.records.measured import ATTENTION, CONV, MATMUL
from ampbench.records.wire import MAX_SAMPLES_PER_ROUND
from ampbench.studies.ceilings import COPY, FP32, READ, TF32, Attained, Ceiling, CeilingAsked
from ampbench.worker.environment import has_tf32
from ampbench.worker.machine import Device, precision_flags
from ampbench.worker.memory import said_of
from ampbench.worker.timing import FitnessWatch, time_build
from ampbench.worker.worker import Work

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
ATTENTIONS = {
    "cpu": ((4, 8, 128, 64), (2, 8, 512, 64), (1, 8, 1024, 64), (1, 8, 2048, 128)),
    "": ((16, 16, 512, 64), (8, 16, 2048, 64), (4, 16, 4096, 128), (1, 16, 8192, 128)),
}
"""Attention of a sequence to itself as in transformers: (sequences, heads, length, features of a head)."""
COPIES = {"cpu": (18, 20, 22, 24, 26, 28), "": (20, 24, 26, 28, 30)}
"""Bytes copied or read, as powers of two: from cache sizes to main memory."""

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
_TILE = 1 << 16


class Task(NamedTuple):
    """One size of an operation: `work` FLOPs or bytes a run; `build` returns the function that runs it."""

    size: str
    work: int
    build: Callable[[MakeTensor], Callable[[], object]]


def tasks_of(operation: str, device: str, dtype: torch.dtype) -> list[list[Task]]:
    """Return the tasks of an operation in a dtype on a type of device, each series from small to large.

    FLOPs are counted as `torch.utils.flop_counter` does, a multiplication and an addition as two; the bytes of a copy
    count reads and writes. On a CPU, products of fp32 run in oneDNN, too, as inductor has them.
    """
    kind = device if device in SQUARES else ""
    if operation == MATMUL:
        series = [[_square(edge) for edge in SQUARES[kind]], [_layer(*shape) for shape in LAYERS[kind]]]
        if device == "cpu" and dtype is torch.float32 and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            series.append([_layer(*shape, "onednn") for shape in LAYERS[kind]])
        return series
    if operation == CONV:
        return list(_convolutions(kind))
    if operation == ATTENTION:
        return [_sorted(_attention(*shape) for shape in ATTENTIONS[kind])]
    if operation == READ:
        return [[_read(1 << power, dtype.itemsize) for power in COPIES[kind]]]
    assert operation == COPY
    return [[_copy(1 << power, dtype.itemsize) for power in COPIES[kind]]]


def _of(shapes: Sequence[tuple[int, ...]], run: Callable[..., object]) -> Callable[[MakeTensor], Callable[[], object]]:
    """Return a builder of an operation on tensors of these shapes."""
    return lambda make: partial(run, *(make(*shape) for shape in shapes))


def _square(edge: int) -> Task:
    def build(make: MakeTensor) -> Callable[[], object]:
        left, right = make(edge, edge), make(edge, edge)
        return partial(torch.mm, left, right, out=torch.empty_like(left))

    return Task(f"{edge}x{edge}x{edge}", 2 * edge**3, build)


def _layer(rows: int, inputs: int, outputs: int, name: str = "linear") -> Task:
    """Return a layer: "linear", or "onednn", as inductor has it run in oneDNN."""
    run = (
        F.linear
        if name == "linear"
        else lambda *operands: torch.ops.mkldnn._linear_pointwise(*operands, "none", [], "")
    )
    build = _of(((rows, inputs), (outputs, inputs), (outputs,)), run)
    return Task(f"{name} {rows}x{inputs}x{outputs}", 2 * rows * inputs * outputs, build)


def _attention(*shape: int) -> Task:
    sequences, heads, length, features = shape
    work = 2 * 2 * sequences * heads * length**2 * features
    return Task("x".join(map(str, shape)), work, _of([shape] * 3, F.scaled_dot_product_attention))


def _convolutions(kind: str) -> Iterator[list[Task]]:
    for memory_format in FORMATS:
        for kernel in (3, 1):
            shapes = [shape for shape in CONVOLUTIONS[kind] if shape[-1] == kernel]
            yield _sorted(_convolution(*shape, memory_format) for shape in shapes)


def _sorted(tasks: Iterable[Task]) -> list[Task]:
    return sorted(tasks, key=lambda task: task.work)


def _convolution(images: int, inputs: int, outputs: int, edge: int, kernel: int, memory_format: str) -> Task:
    def build(make: MakeTensor) -> Callable[[], object]:
        laid = [
            make(*shape).to(memory_format=FORMATS[memory_format])
            for shape in ((images, inputs, edge, edge), (outputs, inputs, kernel, kernel))
        ]
        return partial(F.conv2d, *laid, padding=kernel // 2)

    size = f"{kernel}x{kernel} {inputs}>{outputs} {images}x{edge}x{edge} {memory_format}"
    return Task(size, 2 * images * edge * edge * inputs * outputs * kernel * kernel, build)


def _copy(size: int, itemsize: int) -> Task:
    def build(make: MakeTensor) -> Callable[[], object]:
        source = _filled(make, size // itemsize)
        return partial(torch.empty_like(source).copy_, source)

    return Task(_bytes_text(size), 2 * size, build)


def _read(size: int, itemsize: int) -> Task:
    return Task(_bytes_text(size), size, lambda make: _filled(make, size // itemsize).amax)


def _filled(make: MakeTensor, count: int) -> torch.Tensor:
    return make(min(count, _TILE)).repeat(max(1, count // _TILE))


def _bytes_text(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


LONGEST = 0.5
"""Sizes grow as long as one run takes no more than this share of the seconds given."""


def measure_ceiling(device: Device, operation: str, dtype: str, seconds: float) -> Ceiling:
    """Return the ceiling of `device` with `operation` in `dtype` ("bf16"; "tf32"), over sizes, in about `seconds`.

    These are divided between the sizes and do not include the warm-up of each; sizes that would take too long are left
    out, which a note says, but never the smallest. Torch's switches are as for the precision that has the dtype's name:
    tf32 is fp32 with tf32 allowed. `error` is an unsupported dtype or operation, or the error at the smallest size.
    """
    watch = FitnessWatch(device)
    attained: list[Attained] = []
    notes: list[str] = []
    errors: list[str] = []
    if dtype == TF32 and not (device.type != "cpu" and has_tf32(device.type)):
        errors.append(f"{device.type} has no tf32")
    else:
        held = _torch_dtype(dtype)
        series = tasks_of(operation, device.type, held)
        budget = seconds / sum(map(len, series))
        with precision_flags(PRECISIONS[TF32 if dtype == TF32 else FP32]), torch.inference_mode():
            for tasks in series:
                sizes, why = _grow(tasks, device, _maker(device, held), budget, LONGEST * seconds)
                attained += sizes
                if why:
                    notes.append(f"{tasks[len(sizes)].size} and larger left out: {why}")
                    errors.append(why)
    return Ceiling(
        device=device.type,
        operation=operation,
        dtype=dtype,
        threads=torch.get_num_threads(),
        attained=attained,
        error="" if attained else errors[0],
        fitness=watch.seen(),
        notes=notes if attained else [],
    )


def _grow(
    tasks: Sequence[Task], device: Device, make: MakeTensor, budget: float, longest: float
) -> tuple[list[Attained], str]:
    """Return the rates of `tasks` that take at most `longest` seconds, and the reason if some are left out.

    Each gets `budget` seconds. How long the next one would take is reckoned from the rate of the one before.
    """
    attained: list[Attained] = []
    for task in tasks:
        expected = min(attained[-1].samples) * task.work / attained[-1].work if attained else 0.0
        if expected > longest:
            return attained, f"one run would take about {format_seconds(expected)}"
        try:
            samples = _samples(task.build(make), device, budget)
        except Exception as error:  # noqa: BLE001 - devices raise any error at unsupported operations
            device.release()
            return attained, said_of(error)
        attained.append(Attained(size=task.size, work=task.work, samples=samples))
        device.release()
    return attained, ""


def _samples(step: Callable[[], object], device: Device, budget: float) -> list[float]:
    def run() -> None:
        step()

    return time_build(run, device, budget_seconds=budget, max_samples=MAX_SAMPLES_PER_ROUND).samples


def _maker(device: Device, dtype: torch.dtype) -> MakeTensor:
    """Return a function that makes random tensors on `device`: normal, the same each time."""
    generator = torch.Generator(device.type).manual_seed(0)

    def make(*shape: int, **_: Any) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, device=device.type, generator=generator)

    return make


def _torch_dtype(name: str) -> torch.dtype:
    long = {short: long for long, short in SHORT_DTYPES.items()}["fp32" if name == TF32 else name]
    dtype = getattr(torch, long)
    assert isinstance(dtype, torch.dtype)
    return dtype


def do_ceiling(work: Work, asked: CeilingAsked) -> Ceiling:
    """Do the task "ceilings"."""
    return measure_ceiling(work.device, asked.operation, asked.dtype, asked.seconds)

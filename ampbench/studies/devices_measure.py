"""What a device does: its peak rates, its autocast rules, and the programs of checks.

Rates are FLOP/s of products, convolutions and attention, bytes per second of copies and reads, from small sizes to
large, on random values; sizes are as in networks, so that no case of a network exceeds the peak. Rules and checks take
fake tensors for an absent device.
"""

import contextlib
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from time import perf_counter
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from msgspec.structs import replace

from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.core.units import format_seconds, format_share
from ampbench.defects import CHECKS
from ampbench.errors import bounded, first_line
from ampbench.records.case import DEVICES
from ampbench.records.measured import ATTENTION, CONV, MATMUL
from ampbench.records.rules import BANNED, DEVICE, DTYPES, FAKE, NOT_OBSERVED, RuleObservation, RuleProbe, RuleTrial
from ampbench.records.wire import MAX_SAMPLES_PER_ROUND, Nothing
from ampbench.studies.ceilings import COPY, FP32, READ, TF32, Attained, Ceiling, CeilingAsked
from ampbench.studies.check import DEFECTIVE, DIFFERS, GOOD, NOT_SHOWN, CheckAsked, Checked, digest_of
from ampbench.studies.study import unfit
from ampbench.trace.dtypes import autocast_to, is_present, stood_in
from ampbench.trace.rules import (
    SAMPLES,
    SOURCES,
    classify,
    documented_category,
    documented_ops,
    find_op,
    registered_ops,
    run_trials,
    run_variants,
)
from ampbench.worker.machine import Cpu, Device, precision_flags
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
    build: Callable[[MakeTensor], Callable[[], Any]]


def tasks_of(operation: str, device: str, dtype: torch.dtype) -> list[list[Task]]:
    """Return the tasks of an operation in a dtype on a type of device, each series from small to large.

    A multiplication and an addition are two FLOPs; the bytes of a copy count reads and writes. On a CPU, products of
    fp32 run in oneDNN, too, as inductor has them.
    """
    kind = device if device in SQUARES else ""
    if operation == MATMUL:
        series = [[_square(edge) for edge in SQUARES[kind]], [_layer(*shape) for shape in LAYERS[kind]]]
        if device == "cpu" and dtype is torch.float32 and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            series.append([_layer(*shape, "onednn") for shape in LAYERS[kind]])
        return series
    if operation == CONV:
        kinds = [(kernel, layout) for layout in FORMATS for kernel in (3, 1)]
        series = [
            [_convolution(*shape, layout) for shape in CONVOLUTIONS[kind] if shape[-1] == kernel]
            for kernel, layout in kinds
        ]
        return [sorted(tasks, key=lambda task: task.work) for tasks in series]
    if operation == ATTENTION:
        return [[_attention(*shape) for shape in ATTENTIONS[kind]]]
    move = {COPY: _copy, READ: _read}[operation]
    return [[move(1 << power, dtype.itemsize) for power in COPIES[kind]]]


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
    """Return the ceiling of `device` with `operation` in `dtype`, over sizes, in about `seconds` without warm-up.

    Sizes that would take too long are left out with a note, but never the smallest. tf32 is fp32 with tf32 allowed.
    `error` is the error at the smallest size.
    """
    watch = FitnessWatch(device)
    attained: list[Attained] = []
    notes: list[str] = []
    errors: list[str] = []
    long = {short: long for long, short in SHORT_DTYPES.items()}[FP32 if dtype == TF32 else dtype]
    held: torch.dtype = getattr(torch, long)
    series = tasks_of(operation, device.type, held)
    budget = seconds / sum(map(len, series))
    generator = torch.Generator(device.type)
    make = partial(torch.randn, dtype=held, device=device.type, generator=generator)
    with precision_flags(PRECISIONS[TF32 if dtype == TF32 else FP32]), torch.inference_mode():
        for tasks in series:
            generator.manual_seed(0)
            sizes, why = _grow(tasks, device, make, budget, LONGEST * seconds)
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
    """Return the rates of `tasks`, `budget` seconds each, and the reason if some would take more than `longest`."""
    attained: list[Attained] = []
    for task in tasks:
        expected = min(attained[-1].samples) * task.work / attained[-1].work if attained else 0.0
        if expected > longest:
            return attained, f"one run would take about {format_seconds(expected)}"
        try:
            timing = time_build(task.build(make), device, budget_seconds=budget, max_samples=MAX_SAMPLES_PER_ROUND)
        except Exception as error:  # noqa: BLE001 - devices raise any error at unsupported operations
            device.release()
            return attained, said_of(error)
        attained.append(Attained(size=task.size, work=task.work, samples=timing.samples))
        device.release()
    return attained, ""


def do_ceiling(work: Work, asked: CeilingAsked) -> Ceiling:
    """Do the task "ceilings"."""
    return measure_ceiling(work.device, asked.operation, asked.dtype, asked.seconds)


ABSENT = "this torch has no such op"
NO_SAMPLE = "there is no sample call for it"
NAMES = "an overload for named tensors, which cannot be called as an op nor stood in for by fake ones"


def probe_rules(device: str, dtypes: Sequence[str] = DTYPES, *, ops: Iterable[str] | None = None) -> RuleProbe:
    """Return autocast's behaviour on `device` in each of `dtypes`, op by op in order of names.

    The ops have a rule on *any* device type or in any document, so that probes of different devices have the same rows;
    `ops` (names with overloads) selects among them. An unobservable op is marked, with the reason. Takes seconds.
    """
    names = rule_ops() if ops is None else sorted(set(ops))
    with stood_in(device):
        observations = [observe(name, device, dtype) for dtype in dtypes for name in names]
    return RuleProbe(device=device, dtypes=list(dtypes), observations=observations)


def rule_ops() -> list[str]:
    """Return the names of all ops with an autocast rule: registered for any device type, or named by any document.

    A documented op stands for its registered overloads or else its default one. Ops that have a sample had a rule in
    some torch version, and are there in each that has the op: a rule that comes or goes must be seen.
    """
    names = {name for name in SAMPLES if find_op(name) is not None}.union(
        *(registered_ops(device) for device in DEVICES)
    )
    bases = {name.partition(".")[0] for name in names} | set(names)
    for source in SOURCES:
        for device in DEVICES:
            for op in documented_ops(source, device) or ():
                if op not in bases:
                    names.add(op)
    return sorted(names)


def observe(name: str, device: str, dtype: str) -> RuleObservation:
    """Return the documented, registered and observed behaviour of one op; call it within `stood_in(device)`."""
    op, _, overload = name.partition(".") if name.startswith("aten::") else (name, "", "")
    target, sample = find_op(name), SAMPLES.get(name)
    trials: dict[str, RuleTrial] = {}
    variants: dict[str, str] = {}
    observed, reason = None, ""
    if target is None:
        reason = ABSENT
    elif "dimname" in overload.lower() or overload.startswith("names_"):
        reason = NAMES
    elif sample is None:
        reason = NO_SAMPLE
    else:
        torch_dtype = getattr(torch, dtype)
        trials = run_trials(target, sample, device, torch_dtype)
        observed = classify(trials, dtype)
        errors = [trials[kind].autocast.error for kind in ("fp32", "lower")]
        reason = "" if observed == BANNED else next((error for error in errors if error is not None), "")
        variants = run_variants(target, sample, device, torch_dtype, observed)
    how = DEVICE if is_present(device) else FAKE
    return RuleObservation(
        op=op,
        overload=overload,
        device=device,
        dtype=dtype,
        documented={
            source: documented_category(source, device, name)
            for source in SOURCES
            if documented_ops(source, device) is not None
        },
        registered=name in _registered(device) if name.startswith("aten::") else None,
        observed=observed,
        how=NOT_OBSERVED if observed is None else how,
        reason=reason,
        trials=trials,
        variants=variants,
    )


_registered = cache(registered_ops)


def do_rules(work: Work, asked: Nothing) -> RuleProbe:  # noqa: ARG001 - as all tasks
    """Do the task "rules"."""
    return probe_rules(work.device_type)


LONGEST_LINE = 300
"""Characters of a program's output line; longer lines are cut."""
MOST_LINES = 20


def do_check(work: Work, asked: CheckAsked) -> Checked:
    """Do the task "check"; a timed check that other work spoilt shows nothing."""
    watch = FitnessWatch(Cpu())  # such checks are of a CPU
    result = run_program(asked.check, asked.text, work.device_type)
    spoilt = unfit(watch.seen()) if CHECKS[asked.check].timed and not result.why else None
    if spoilt is None:
        return result
    why = f"other work took {format_share(spoilt)} of the CPU while this was timed: do not trust its times"
    return replace(result, outcome=NOT_SHOWN, how=NOT_OBSERVED, seen="", why=why)


def run_program(check: str, text: str, device: str) -> Checked:
    """Return the outcome of a check's program `text` on `device`; it needs a process of its own."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    written, problem = io.StringIO(), ""
    began = perf_counter()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(written), _on(device):
        warnings.simplefilter("always")
        try:
            exec(compile(text, f"<check {check}>", "exec"), namespace)
        except Exception as error:  # noqa: BLE001 - any error of torch is the finding
            problem = first_line(error)
    expected, observed = (_line(namespace.get(name, "")) for name in ("expected", "seen"))
    why = problem and f"the program ended with {_line(problem)}"
    good = bool(namespace.get("good", observed == expected))
    wrong = DIFFERS if CHECKS[check].by_design else DEFECTIVE
    outcome = NOT_SHOWN if why else GOOD if good else wrong
    printed = {f"expected: {expected}", f"seen:     {observed}"}
    return Checked(
        device=device,
        check=check,
        outcome=outcome,
        how=NOT_OBSERVED if why else DEVICE if is_present(device) else FAKE,
        program=digest_of(text),
        expected=expected,
        seen="" if why else observed,
        said=[_line(line) for line in written.getvalue().splitlines() if line not in printed][:MOST_LINES],
        warned=list(dict.fromkeys(_line(f"{warning.category.__name__}: {warning.message}") for warning in caught)),
        why=why,
        seconds=perf_counter() - began,
    )


@contextlib.contextmanager
def _on(device: str) -> Iterator[None]:
    """Within, tensors on `device` can be made and autocast to it entered, real or, where it is absent, fake."""
    real = torch.autocast

    def autocast(kind: str, dtype: torch.dtype | None = None, enabled: bool = True) -> AbstractContextManager[object]:
        if kind != device:
            return real(kind, dtype=dtype, enabled=enabled)
        return autocast_to(kind, dtype or torch.get_autocast_dtype(kind), enabled)

    with stood_in(device):
        if is_present(device):
            yield
            return
        with mock.patch.object(torch, "autocast", autocast):
            yield


def _line(text: object) -> str:
    return bounded(" ".join(str(text).split()), LONGEST_LINE)

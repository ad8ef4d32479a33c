"""What a device attains at best: FLOP/s of matrix products and convolutions, bytes per second of copies."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ampbench.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.records.requests import MAX_SAMPLES_PER_ROUND
from ampbench.records.studies import FP32, TF32, Attained, Ceiling
from ampbench.studies.ceiling_tasks import MakeTensor, Task, tasks_of
from ampbench.units import format_seconds
from ampbench.worker.devices import Device
from ampbench.worker.environment import has_tf32
from ampbench.worker.fitness import FitnessWatch
from ampbench.worker.flags import precision_flags
from ampbench.worker.memory import said_of
from ampbench.worker.timing import time_build

LONGEST = 0.5
"""Sizes grow as long as one run takes no more than this share of the seconds given."""


def measure_ceiling(device: Device, operation: str, dtype: str, seconds: float) -> Ceiling:
    """Return what `device` attains with `operation` in `dtype` ("bf16"; "tf32"), over sizes, in about `seconds`.

    These are divided between the sizes and do not include the warm-up of each; sizes that would take too long are left
    out, which a note says, but never the smallest. Torch's switches are as for the precision that has the dtype's name:
    tf32 is fp32 with tf32 allowed. What the device cannot do is the `error`, as is what it raises at the smallest size.
    """
    watch = FitnessWatch(device)
    attained: list[Attained] = []
    notes: list[str] = []
    error = ""
    if dtype == TF32 and not (device.type != "cpu" and has_tf32(device.type)):
        error = f"{device.type} has no tf32"
    else:
        held = _torch_dtype(dtype)
        series = tasks_of(operation, device.type, held.itemsize)
        budget = seconds / sum(map(len, series))
        with precision_flags(PRECISIONS[TF32 if dtype == TF32 else FP32]), torch.inference_mode():
            for tasks in series:
                found, note = _grow(tasks, device, _maker(device, held), budget, LONGEST * seconds)
                attained += found
                if note:
                    notes.append(note)
        if not attained:
            error, notes = notes[0].partition(": ")[2], []
    return Ceiling(
        device=device.type,
        operation=operation,
        dtype=dtype,
        threads=torch.get_num_threads(),
        attained=attained,
        error=error,
        fitness=watch.seen(),
        notes=notes,
    )


def _grow(
    tasks: Sequence[Task], device: Device, make: MakeTensor, budget: float, longest: float
) -> tuple[list[Attained], str]:
    """Return what each of `tasks` attained, as long as they take no more than `longest` seconds, and why some did not.

    Each gets `budget` seconds. How long the next one would take is reckoned from the rate of the one before.
    """
    found: list[Attained] = []
    for task in tasks:
        expected = min(found[-1].samples) * task.work / found[-1].work if found else 0.0
        if expected > longest:
            return found, f"{task.size} and larger left out: one run would take about {format_seconds(expected)}"
        try:
            samples = _samples(task.build(make), device, budget)
        except Exception as error:  # noqa: BLE001 - whatever a device raises at what it does not support
            device.release()
            return found, f"{task.size} and larger left out: {said_of(error)}"
        found.append(Attained(size=task.size, work=task.work, samples=samples))
        device.release()
    return found, ""


def _samples(step: Callable[[], object], device: Device, budget: float) -> list[float]:
    def run() -> None:
        step()

    return time_build(run, device, budget_seconds=budget, max_samples=MAX_SAMPLES_PER_ROUND).samples


def _maker(device: Device, dtype: torch.dtype) -> MakeTensor:
    """Return what makes random tensors on `device`: from a normal distribution, the same each time."""
    generator = torch.Generator(device.type).manual_seed(0)

    def make(*shape: int, **_: Any) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, device=device.type, generator=generator)

    return make


def _torch_dtype(name: str) -> torch.dtype:
    long = {short: long for long, short in SHORT_DTYPES.items()}["fp32" if name == TF32 else name]
    dtype = getattr(torch, long)
    assert isinstance(dtype, torch.dtype)
    return dtype

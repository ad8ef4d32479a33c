"""The conversions between floating dtypes that a step of a network really makes on a CPU, counted in plain torch.

A dispatch mode sees what a program asks for. The profiler sees as well what kernels that are given several dtypes
convert inside; what is called `aten::_to_copy` there moves bytes, whoever asked for it.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

SIZES = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2}
"""Bytes of an element by the profiler's name of its dtype; numbers of Python are doubles there, and left out."""
TARGETS = {"5": 2, "15": 2, "6": 4}
"""Bytes of an element by the number of its dtype in c10/core/ScalarType.h: half, bfloat16, float."""


class Conversions(NamedTuple):
    """So many conversions, and the bytes that they read and write."""

    count: int
    moved: int


class Asked(TorchDispatchMode):
    """Counts the conversions that a program, autocast or autograd asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and out.dtype is not args[0].dtype and args[0].is_floating_point():
            self.moved.append(args[0].nbytes + out.nbytes)
        return out


def asked_for(step: Callable[[], Any]) -> Conversions:
    """Return what a dispatch mode sees of a step with gradients; without, composite ops hide from it."""
    with Asked() as seen:
        step()
    return Conversions(len(seen.moved), sum(seen.moved))


def made(step: Callable[[], Any]) -> Conversions:
    """Return what the profiler sees of a step, inside kernels, too."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        step()
    moved = []
    for event in seen.profiler.kineto_results.events():
        if event.name() == "aten::_to_copy":
            source, target = SIZES.get(event.dtypes()[0]), TARGETS.get(str(event.concrete_inputs()[1]))
            if source and target and event.dtypes()[0] != _name(event):
                moved.append(torch.Size(event.shapes()[0]).numel() * (source + target))
    return Conversions(len(moved), sum(moved))


def _name(event: Any) -> str:
    return {"5": "c10::Half", "15": "c10::BFloat16", "6": "float"}[str(event.concrete_inputs()[1])]


def step_of(workload: Any, dtype: torch.dtype, *, training: bool) -> Callable[[], Any]:
    """Return a function that runs a step under autocast, anew each time."""
    module: nn.Module = copy.deepcopy(workload.module).train(training)
    inputs, targets = workload.inputs[0], workload.targets[0]

    def infer() -> None:
        with torch.inference_mode(), torch.autocast("cpu", dtype):
            module(inputs)

    def train() -> None:
        module.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = workload.loss(module(inputs), targets)
        loss.backward()

    return train if training else infer

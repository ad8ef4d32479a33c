"""Steps whose values are looked at: the same random numbers and no dropout, modules one by one."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ampbench.records.cases import Case
from ampbench.worker.devices import Device
from ampbench.worker.step import Step
from ampbench.workload import Workload

NO_DROPOUT = "dropout layers were switched off: two precisions draw different masks"


def seeded_step(
    workload: Workload, case: Case, device: Device, notes: list[str], *, precision: str | None = None
) -> Step:
    """Return a step of `case`, in another `precision` if one is named, whose random numbers begin at one seed.

    In training dropout is switched off, which `notes` then say. Inference goes without gradients but not in inference
    mode, where torch does not tell which tensors are changed in place.
    """
    torch.manual_seed(0)
    step = Step(workload, case, device, precision=precision, no_grad=True)
    if step.training:
        switch_off_dropout(step.module, notes)
    return step


@contextmanager
def unfused() -> Iterator[None]:
    """Let encoders and attention run their modules one by one in inference, where torch would run them as one op."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def switch_off_dropout(module: torch.nn.Module, notes: list[str]) -> None:
    """Switch off dropout, as a layer or inside attention and recurrent modules, and torchvision's stochastic depth.

    `notes` say so, once, where any was on.
    """
    found = False
    for layer in module.modules():
        if isinstance(layer, torch.nn.modules.dropout._DropoutNd) or type(layer).__name__ == "StochasticDepth":
            found |= bool(layer.p)
            layer.eval()
        elif isinstance(layer, torch.nn.MultiheadAttention | torch.nn.RNNBase):
            found |= bool(layer.dropout)
            layer.dropout = 0.0
    if found and NO_DROPOUT not in notes:
        notes.append(NO_DROPOUT)


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as a dense tensor: that of an embedding may be sparse."""
    return gradient if gradient.layout is torch.strided else gradient.to_dense()

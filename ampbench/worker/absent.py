"""A step of a device that this machine does not have: fake tensors, which have dtypes and shapes but no values.

Only the forward pass runs: autograd needs the device. Where torch was built without it, one node of a graph is enough
to end the process, and autocast makes one for a weight it caches, even without grad mode; there weights need no
gradients.
"""

import copy
import dataclasses
import traceback
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import ampbench.explain
import ampbench.worker
from ampbench.casts.inside import stood_for
from ampbench.casts.summary import KEEP, savings
from ampbench.errors import AmpbenchError, in_one_line
from ampbench.explain.devices import stood_in
from ampbench.explain.ledger import trace_casts
from ampbench.precisions import PRECISIONS
from ampbench.records.cases import Case
from ampbench.records.casts import CastPass, GraphTrace, Tracing
from ampbench.records.rules import FAKE
from ampbench.worker.devices import Accelerator
from ampbench.worker.step import Step
from ampbench.workload import Workload

_NOT_ITS = tuple(module.__path__[0] for module in (torch, ampbench.explain, ampbench.worker))
"""Folders whose code is not the network's."""


def trace_absent(workload: Workload, case: Case, tracing: Tracing) -> CastPass:
    """Return one forward pass of `case`, in training with its loss, traced on fake tensors of its absent device.

    Nothing is timed or checked and no other graph is read; `notes` say so. Raises `AmpbenchError` where an op cannot
    run on fake tensors.
    """
    device = case.device
    training = case.phase == "training"
    with stood_in(device):
        step = Step(_faked(workload, case), case, Accelerator(device), fake=True)
        # An optimizer changes weights that need gradients, inference mode decides what autocast's cache keeps.
        region = torch.no_grad() if training else step.mode()
        try:
            with region, trace_casts(step.module, sources=tracing.sources) as ledger:
                step.forward_and_loss()
        except AmpbenchError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever an op on fake tensors raises
            raise AmpbenchError(
                f"{device} is not on this machine, and the network cannot run on fake tensors of it: "
                f"{in_one_line(error)}{_place(error)}"
            ).with_traceback(error.__traceback__) from None
        trace = dataclasses.replace(ledger.trace, inference=not training)
    missing = f"{device} is not on this machine"
    notes = [f"not on hardware: {missing}, so the step was traced on fake tensors, and nothing is timed"]
    notes += stood_for(trace, device)
    if training:
        scaler = ", GradScaler" if PRECISIONS[case.precision].scaler and case.scaler else ""
        notes.append(f"backward pass{scaler} and optimizer were left out: they do not run on fake tensors")
    if not _can_cache(case) and any(saving.kind == KEEP for saving in savings(trace)):
        notes.append(
            f"this torch was built without {device}, so autocast's cache held no weight: those that are cast again "
            "here would be reused"
        )
    if tracing.check:
        notes.append(f"no change that saves casts was measured: {missing}")
    graphs = [
        GraphTrace(graph=graph, error=f"{missing}, and fake tensors have no such graph") for graph in tracing.graphs
    ]
    return CastPass(case_id=case.case_id, how=FAKE, trace=trace, graphs=graphs, notes=notes)


def _place(error: Exception) -> str:
    """Return where in the network `error` arose, as " (model.py, line 7)"."""
    frames = [row for row in traceback.extract_tb(error.__traceback__) if not row.filename.startswith(_NOT_ITS)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _can_cache(case: Case) -> bool:
    """Return whether autocast's cache works as on the device: in training, torch must have been built with it."""
    built = torch.accelerator.current_accelerator()
    return case.phase == "inference" or (built is not None and built.type == case.device)


def _faked(workload: Workload, case: Case) -> Workload:
    """Return `workload` on fake tensors, its weights as the case stores them.

    They are made where and as they are to be: torch moves no tensor to an absent XPU, and converts no fake weight.
    """
    fakes: dict[int, Any] = {}
    storage = getattr(torch, PRECISIONS[case.precision].storage)
    learns = _can_cache(case)

    def fake(leaf: Any, storage: torch.dtype | None = None) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in fakes:
            dtype = storage if storage is not None and leaf.is_floating_point() else leaf.dtype
            if case.memory_format == "channels_last" and leaf.ndim == 4:
                made = torch.empty(leaf.shape, dtype=dtype, device=case.device, memory_format=torch.channels_last)
            else:
                made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=dtype, device=case.device)
            if isinstance(leaf, torch.nn.Parameter):
                made = torch.nn.Parameter(made, requires_grad=leaf.requires_grad and learns)
            fakes[id(leaf)] = made
        return fakes[id(leaf)]

    for tensor in [*workload.module.parameters(), *workload.module.buffers()]:
        fake(tensor, storage)
    return dataclasses.replace(
        workload,
        module=copy.deepcopy(workload.module, fakes),
        inputs=pytree.tree_map(fake, workload.inputs),
        targets=pytree.tree_map(fake, workload.targets),
    )

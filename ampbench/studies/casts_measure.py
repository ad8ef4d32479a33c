"""A cast pass: one step of a case traced in eager mode, its time and graphs.

Fake tensors, which have dtypes and shapes but no values, stand in for an absent device. Then only the forward pass
runs: where torch was built without the device, one node of an autograd graph is enough to end the process, and autocast
makes one for a weight it caches, even without grad mode; there weights need no gradients.
"""

import copy
import dataclasses
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from msgspec import structs
from torch.utils import _pytree as pytree

import ampbench.trace
import ampbench.worker
from ampbench.core.precisions import PRECISIONS
from ampbench.errors import AmpbenchError, first_line, in_one_line
from ampbench.records.case import Case
from ampbench.records.casts import AUTOGRAD, KEEP, TRACED, CastPass, GraphTrace, Tracing, savings
from ampbench.records.rules import DEVICE, FAKE
from ampbench.trace.dtypes import is_present, stood_in
from ampbench.trace.ledger import CastLedger, trace_casts
from ampbench.worker.distances import outputs_in
from ampbench.worker.machine import open_device
from ampbench.worker.network import fake_network
from ampbench.worker.step import Step, TrainingStep, build_step
from ampbench.worker.timing import PATIENCE, FitnessWatch, side_by_side, warm_up
from ampbench.worker.worker import Work
from ampbench.workload import Workload

_NOT_ITS = tuple(module.__path__[0] for module in (torch, ampbench.trace, ampbench.worker))
"""Folders whose code is not the network's."""


def trace_absent(workload: Workload, case: Case, tracing: Tracing) -> CastPass:
    """Return one forward pass of `case`, in training with its loss, traced on fake tensors of its absent device.

    Raises `AmpbenchError` where an op cannot run on fake tensors.
    """
    device, training = case.device, case.phase == "training"
    with stood_in(device):
        network = fake_network(_faked(workload, case), case)
        # An optimizer changes weights that need gradients, inference mode decides the content of autocast's cache.
        region = torch.no_grad() if training else network.mode()
        try:
            with region, trace_casts(network.module, sources=tracing.sources) as ledger:
                network.forward_and_loss()
        except AmpbenchError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever an op on fake tensors raises
            raise AmpbenchError(
                f"{device} is not on this machine, and the network cannot run on fake tensors of it: "
                f"{in_one_line(error)}{_place(error)}"
            ).with_traceback(error.__traceback__) from None
        trace = structs.replace(ledger.trace, inference=not training)
    missing = f"{device} is not on this machine"
    notes = [f"not on hardware: {missing}, so the step was traced on fake tensors, and nothing is timed or tried"]
    if not _can_cache(case) and any(saving.kind == KEEP for saving in savings(trace)):
        notes.append(
            f"this torch was built without {device}, so autocast's cache held no weight: it would reuse "
            "casts that repeat here"
        )
    why = f"{missing}, and fake tensors have no such graph"
    graphs = [GraphTrace(graph=graph, error=why) for graph in tracing.graphs]
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
                tensor = torch.empty(leaf.shape, dtype=dtype, device=case.device, memory_format=torch.channels_last)
            else:
                tensor = torch.empty_strided(leaf.shape, leaf.stride(), dtype=dtype, device=case.device)
            if isinstance(leaf, torch.nn.Parameter):
                tensor = torch.nn.Parameter(tensor, requires_grad=leaf.requires_grad and learns)
            fakes[id(leaf)] = tensor
        return fakes[id(leaf)]

    for tensor in [*workload.module.parameters(), *workload.module.buffers()]:
        fake(tensor, storage)
    return dataclasses.replace(
        workload,
        module=copy.deepcopy(workload.module, fakes),
        inputs=pytree.tree_map(fake, workload.inputs),
        targets=pytree.tree_map(fake, workload.targets),
    )


TRACED_SHARE = 0.4
"""The share of the time that traced steps get; the untraced step, which is built several times, gets the rest."""
TRACED_STEPS, FEWEST_TRACED = 20, 3
"""The number of traced steps at most, and at least: enough for a median that ignores one delayed step."""
DISCARDED = 8
"""Casts under a trace before one that is timed: the first ops of a mode pay its start-up, which is microseconds."""


def measure_casts(work: Work, asked: Tracing) -> CastPass:
    """Return the casts of one eager step of a case, warmed up as in a round, with the extras of `asked`.

    Timing takes about `asked.seconds`; a step too long for an interval gets up to `PATIENCE` times as many. Raises
    the network's errors; see `trace_absent` for an absent device.
    """
    workload, case = work.workload, structs.replace(work.case, path="eager")
    if not is_present(case.device):
        return trace_absent(workload, case, asked)
    device = open_device(case.device)
    step = build_step(workload, case, device)
    settled = warm_up(step)
    trace = trace_step(step, sources=asked.sources).trace
    notes: list[str] = []
    record = CastPass(case_id=case.case_id, how=DEVICE, trace=trace, notes=notes)
    watch = FitnessWatch(device)
    if asked.time:
        record = _timed(record, step, asked)
        builds, seconds = [partial(build_step, workload, case, device)], asked.seconds * (1 - TRACED_SHARE)
        (untraced,) = side_by_side(builds, lambda built, _: warm_up(built, settled), device, seconds, notes)
        record = structs.replace(record, step_samples=untraced, fitness=watch.seen())
    record.graphs.extend(_read_graph(graph, step) for graph in asked.graphs)
    return record


def trace_step(step: Step, *, sources: bool = False, time: bool = False) -> CastLedger:
    """Return the ledger of the next step of `step`, on the first batch, from the state that was saved."""
    step.rewind()
    step.restore()
    with step.mode():
        if time:  # the first ops of a mode pay its start-up
            tensor = torch.ones(4, 4, device=step.device.type)
            with trace_casts(time=True):
                for _ in range(DISCARDED):
                    low = tensor.to(torch.bfloat16)
                    torch.mm(low, low)
        with trace_casts(step.module, sources=sources, time=time) as ledger:
            step.run()
    return ledger


def _timed(record: CastPass, step: Step, tracing: Tracing) -> CastPass:
    """Return `record` with the trace's seconds: medians over the traced steps that fit the time."""
    seconds, names = list[list[float | None]](), list[list[str]]()
    start = perf_counter()
    while len(seconds) < TRACED_STEPS:
        last = trace_step(step, sources=tracing.sources, time=True).trace
        seconds.append([operation.seconds for operation in last.ops])
        names.append([operation.name for operation in last.ops])
        took = (perf_counter() - start) / len(seconds)
        allowed = tracing.seconds * (TRACED_SHARE if len(seconds) >= FEWEST_TRACED else PATIENCE)
        if perf_counter() - start + took > allowed:
            break
    if any(name != names[-1] for name in names):
        note = f"the ops of {len(names)} traced steps differ: seconds are from the last step"
        return structs.replace(record, trace=last, notes=[*record.notes, note])
    medians = np.median(np.array(seconds, dtype=np.float64), axis=0).tolist() if names[-1] else []
    trace = structs.replace(
        last,
        ops=[structs.replace(row, seconds=value) for row, value in zip(last.ops, medians, strict=True)],
        casts=[structs.replace(row, seconds=medians[row.index]) for row in last.casts],
    )
    return structs.replace(record, trace=trace, traced_steps=len(names))


def _read_graph(graph: str, step: Step) -> GraphTrace:
    """Return the step as `graph` has it, or why it has not."""
    step.rewind()
    step.restore()
    try:
        with torch.random.fork_rng(devices=[]):
            return _graph_of(graph, step)
    except Exception as error:  # noqa: BLE001 - whatever a tracer or a compiler raises
        return GraphTrace(graph=graph, error=first_line(error))
    finally:
        step.restore()
        if isinstance(step, TrainingStep):
            step.optimizer.zero_grad(set_to_none=True)


def _graph_of(graph: str, step: Step) -> GraphTrace:
    from ampbench.trace.graphs import autograd_graph, compiled_graph, traced_graph

    if graph == TRACED:
        args, kwargs = step.network.arguments()
        return traced_graph(step.module, args, kwargs, step.network.autocast)
    if graph == AUTOGRAD:
        output, loss = step.network.forward_and_loss()
        end = loss if loss is not None else next(tensor for tensor in outputs_in(output) if tensor.requires_grad)
        return autograd_graph(end, step.module)

    def run(forward: Callable[..., Any]) -> Any:
        step.rewind()
        with step.mode():
            output, loss = step.network.forward_and_loss(forward)
            if loss is not None and isinstance(step, TrainingStep):
                step.differentiate(loss)
        return output

    return compiled_graph(step.module, run)

"""A range pass: the magnitudes of a case in fp32, and low precisions on the same batches."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec import structs

from ampbench.core.precisions import BASELINE, PRECISIONS, Precision
from ampbench.core.recipes import find_recipe
from ampbench.errors import UsageError, first_line
from ampbench.records.case import Case
from ampbench.records.casts import BUFFER, WEIGHT
from ampbench.records.labels import few
from ampbench.records.ranges import (
    ROOT,
    LowRun,
    OriginPass,
    RangePass,
    SeenGradient,
)
from ampbench.studies.headroom import RangesAsked
from ampbench.studies.nonfinite import NonfiniteAsked, Replay
from ampbench.studies.origin import OriginAsked
from ampbench.trace.dtypes import short_dtype
from ampbench.trace.errors import Given, watch_dtypes, watch_errors
from ampbench.trace.formats import watch_blocks
from ampbench.trace.ledger import trace_casts
from ampbench.trace.nonfinite import find_nonfinite
from ampbench.trace.ranges import watch_ranges
from ampbench.worker.data import is_wrapper, named_tensors
from ampbench.worker.distances import Fp32Check, is_finite, outputs_in
from ampbench.worker.machine import Device, precision_flags
from ampbench.worker.memory import is_out_of_memory
from ampbench.worker.network import is_named, recipe_of
from ampbench.worker.origins import measure_origin
from ampbench.worker.step import Step, TrainingStep, seed_all, seeded_step, unfused
from ampbench.worker.worker import Work
from ampbench.workload import Workload
from ampbench.workloads.named import load_weights

UNSCALABLE = "the loss is not finite at any scale: gradients are at GradScaler's first scale"
TAMED = "{} has non-finite values already in fp32, but they reach no output, loss or gradient"

UNSEEN = "the whole step runs, but not under a watch: {}"
UNREAD = "not counted, because their values are in separate tensors: {}"
ENDED = "steps in it ended after {} of {}: weights may not be finite from there on"

_Mask = npt.NDArray[np.uint8]
"""A mask over a gradient's elements, one bit each."""


def measure_ranges(work: Work, asked: RangesAsked) -> RangePass:
    """Return the magnitudes of fp32 steps of a case, and a run in each low precision.

    All begin with the workload's own weights and take the same batches. Dropout is off, and while modules are watched
    torch's fused path of encoders in inference, so that the modules within are seen. One build of the step exists at a
    time, and of the fp32 gradients only a mask of zeros is kept. Raises `WorkloadError` where fp32 gives outputs, a
    loss or gradients that are not finite, and the network's errors in fp32; those in a low precision, unless memory ran
    out, are recorded.
    """
    workload, case, device = work.workload, structs.replace(work.case, path="eager"), work.device
    precisions, notes = asked.precisions, [*asked.notes]
    check = Fp32Check()
    nonzero: list[Mapping[str, _Mask]] = []
    with precision_flags(PRECISIONS[BASELINE]):
        step = seeded_step(workload, case, device, notes, precision=PRECISIONS[BASELINE])
        steps = asked.steps or len(step.data.batches)
        named = is_named(workload, find_recipe(case.recipe))
        optimizer = step.optimizer if named and isinstance(step, TrainingStep) else None
        recipe = recipe_of(optimizer, step.module) if optimizer is not None else None
        watched = watch_ranges(step.module, optimizer), watch_blocks(step.module, asked.formats)
        with step.mode(), unfused(), watched[0] as ranges, watched[1] as blocks:
            for turn in range(steps):
                output, loss, gradients = _run(step)
                finite = check.look(turn, output, loss, gradients.values())
                if finite and precisions:
                    nonzero.append({name: _mask(gradient.to_dense() != 0) for name, gradient in gradients.items()})
                del output, loss, gradients  # another build may be made below
                if not finite:
                    break
                if isinstance(step, TrainingStep):
                    step.apply_gradients()
    magnitudes, swallowed, holder, unread = ranges.magnitudes, ranges.swallowed, ranges.nonfinite_in_fp32, ranges.unread
    del step, ranges, optimizer
    check.refuse(workload, case, device, notes, holder)
    if unread:
        notes.append(UNREAD.format(few(unread)))
    if holder is not None and check.outputs_finite:
        notes.append(TAMED.format(holder or ROOT))
    ran = [
        _run_low(workload, case, device, PRECISIONS[name], nonzero, masked=not check.outputs_finite)
        for name in precisions
    ]
    return RangePass(
        case_id=case.case_id,
        steps=steps,
        magnitudes=magnitudes,
        swallowed=swallowed,
        blocks=blocks.records,
        recipe=recipe,
        low_runs=ran,
        notes=notes,
    )


def _run_low(
    workload: Workload,
    case: Case,
    device: Device,
    row: Precision,
    nonzero: Sequence[Mapping[str, _Mask]],
    *,
    masked: bool,
) -> LowRun:
    """Return the run of a low precision over as many steps as `nonzero` has, by module and as a whole."""
    device.release()
    low = getattr(torch, row.autocast or row.storage)
    whole = _Whole(partial(seeded_step, workload, case, device, precision=row), low, masked)
    with precision_flags(row):
        try:
            loss = whole.see_dtypes(dict(named_tensors(workload.module)), len(nonzero))
            device.release()
            whole.see_steps(loss, nonzero)
        except UsageError as refused:
            whole.notes.append(str(refused))
        except Exception as raised:
            if is_out_of_memory(raised):
                raise
            whole.end(raised)
    device.release()
    with precision_flags(PRECISIONS[BASELINE]):  # the fp32 steps again, with each module in the low precision
        step = seeded_step(workload, case, device, [], precision=PRECISIONS[BASELINE])
        rounds = -(-len(nonzero) // len(step.data.batches))
        given = {path: [*calls] * rounds for path, calls in whole.given.items()}  # dtypes of the first round
        with step.mode(), unfused(), watch_errors(step.module, row, given) as errors:
            for _ in range(len(nonzero) - 1):
                step.run()
            step.network.forward_and_loss()
        return LowRun(precision=row.name, modules=errors.modules, notes=whole.notes, **whole.seen)


@dataclass(slots=True)
class _Whole:
    """Whole steps in a precision whose low dtype is `low`; `seen` are fields of its `LowRun`, as far as it got.

    `masked`: outputs are infinite in fp32 on purpose, and only NaN counts.
    """

    build: Callable[[list[str]], Step]
    low: torch.dtype
    masked: bool
    given: Given = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def see_dtypes(self, stored: Mapping[str, torch.Tensor], steps: int) -> torch.Tensor | None:
        """Run forward passes on each batch to record their low dtypes; return the first loss, if any."""
        step = self.build(self.notes)
        strange = [name for name, tensor in named_tensors(step.module) if not is_finite([tensor])]
        self.seen["overflowed_weights"] = [name for name in strange if name in stored and is_finite([stored[name]])]
        first: torch.Tensor | None = None
        with step.mode(), unfused(), trace_casts(step.module) as ledger, watch_dtypes(step.module) as dtypes:
            self.given = dtypes.given
            for turn in range(min(steps, len(step.data.batches))):
                loss = step.network.forward_and_loss()[1]
                first = loss.detach() if loss is not None and turn == 0 else first
                del loss
        self.seen["lowered"] = [path for path, returned in dtypes.returned.items() if returned == {self.low}]
        short = short_dtype(self.low)
        cast = {
            cast_row.name
            for cast_row in ledger.casts
            if cast_row.what in (WEIGHT, BUFFER) and cast_row.to_dtype == short
        }
        self.seen["lowered_weights"] = [
            name for name, tensor in named_tensors(step.module) if tensor.dtype == self.low or name in cast
        ]
        return first

    def see_steps(self, loss: torch.Tensor | None, nonzero: Sequence[Mapping[str, _Mask]]) -> None:
        """Run whole steps to see where values stop being finite and which gradients flush.

        In training, steps go on where GradScaler skips such an update, but end where weights may not be finite.
        """
        step = self.build(self.notes)
        scaler = step.scaler if isinstance(step, TrainingStep) else None
        if isinstance(step, TrainingStep) and scaler is not None:
            if is_finite([loss]):
                step.settle_scaler()
            else:
                self.notes.append(UNSCALABLE)
            seed_all(0)
            self.seen["scaler_scale"] = scaler.get_scale()
        gradients_seen: dict[str, SeenGradient] = {}
        for turn, masks in enumerate(nonzero):
            with step.mode(), self._finding(step, turn):
                output, own_loss, gradients = _run(step)
            outputs = list(outputs_in(output))
            strange = any(bool(tensor.isnan().any()) for tensor in outputs) if self.masked else not is_finite(outputs)
            if "nonfinite_output" not in self.seen and (strange or not is_finite([own_loss])):
                self.seen["nonfinite_output"] = turn
            del output, outputs
            for name, gradient in gradients.items():
                if name in masks:
                    dense, old = gradient.to_dense(), gradients_seen.get(name)
                    old = old or SeenGradient(parameter=name, elements=0, flushed=0, nonfinite=0)
                    gradients_seen[name] = SeenGradient(
                        parameter=name,
                        elements=old.elements + dense.numel(),
                        flushed=old.flushed + int(np.unpackbits(_mask(dense == 0) & masks[name]).sum()),
                        nonfinite=old.nonfinite + int((~dense.isfinite()).sum()),
                    )
            finite = is_finite(gradients.values())
            gradients.clear()
            if isinstance(step, TrainingStep) and (finite or scaler is not None):
                with self._finding(step, turn):
                    step.apply_gradients()
            first = self.seen.get("first_nonfinite")
            if first is not None and (scaler is None or first.phase == "optimizer"):
                if isinstance(step, TrainingStep) and turn + 1 < len(nonzero):
                    self.notes.append(ENDED.format(turn + 1, len(nonzero)))
                break
        self.seen["gradients"] = list(gradients_seen.values())

    def end(self, error: Exception) -> None:
        """Record the error of a step or, where it only ends so under a watch, note that."""
        step = self.build([])
        try:
            with step.mode():
                _run(step)
        except Exception as raised:
            if is_out_of_memory(raised):
                raise
            self.seen["error"] = first_line(error)
        else:
            self.notes.append(UNSEEN.format(first_line(error)))

    @contextmanager
    def _finding(self, step: Step, turn: int) -> Iterator[None]:
        """Look for the first value that is not finite, if none is found yet, in step `turn`."""
        if "first_nonfinite" in self.seen:
            yield
            return
        with find_nonfinite(step.module) as finder:
            try:
                yield
            finally:
                if finder.first is not None:
                    self.seen["first_nonfinite"] = structs.replace(finder.first, step=turn)


def _run(step: Step) -> tuple[Any, torch.Tensor | None, dict[str, torch.Tensor]]:
    """Run a step without its optimizer; return the output and, in training, loss and gradients by name."""
    if not isinstance(step, TrainingStep):
        return step.run(), None, {}
    output, gradients = step.unscaled_gradients()
    return output, step.loss, {name: gradient for name, gradient in gradients.items() if not is_wrapper(gradient)}


def _mask(chosen: torch.Tensor) -> _Mask:
    """Return a bit for each element."""
    return np.packbits(chosen.reshape(-1).cpu().numpy())


def do_nonfinite(work: Work, asked: NonfiniteAsked) -> Replay:
    """Do the task "nonfinite"."""
    workload, case, notes = work.workload, work.case, list[str]()
    if asked.state:
        workload = dataclasses.replace(workload, module=copy.deepcopy(workload.module))
        load_weights(case.workload, workload.module, Path(asked.state))
    with precision_flags(PRECISIONS[case.precision]):
        step = seeded_step(workload, case, work.device, notes)
        if isinstance(step, TrainingStep):
            step.settle_scaler()
        steps, nonfinite, first = asked.steps or len(step.data.batches), None, None
        for turn in range(steps):
            with step.mode(), unfused(), find_nonfinite(step.module) as finder:
                output, loss, gradients = _run(step)
            finite = is_finite([*outputs_in(output), *([] if loss is None else [loss]), *gradients.values()])
            if not finite or finder.first is not None:
                first = None if finder.first is None else structs.replace(finder.first, step=turn)
                steps, nonfinite = turn + 1, None if finite else turn + 1
                break
            if isinstance(step, TrainingStep):
                step.apply_gradients()
    return Replay(case_id=case.case_id, state=asked.state, steps=steps, first=first, nonfinite=nonfinite, notes=notes)


def do_origin(work: Work, asked: OriginAsked) -> OriginPass:
    """Do the task "origin"."""
    return measure_origin(work.workload, work.case, work.device, ablate=not asked.own)

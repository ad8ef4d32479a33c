"""A range pass: how large the values of a case are in fp32, and what low precisions then make of its first batch."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ampbench.errors import UsageError
from ampbench.explain.dtypes import Dtypes, watch_dtypes
from ampbench.explain.errors import Given, watch_errors
from ampbench.explain.graphs.names import first_line
from ampbench.explain.ledger import trace_casts
from ampbench.explain.nonfinite import find_nonfinite
from ampbench.explain.ranges import watch_ranges
from ampbench.precisions import BASELINE, PRECISIONS, SHORT_DTYPES, Precision
from ampbench.ranges.wording import ROOT
from ampbench.records.cases import Case
from ampbench.records.casts import BUFFER, WEIGHT
from ampbench.records.ranges import FirstNonfinite, LowRun, ModuleError, RangePass, SeenGradient
from ampbench.worker.data import named_tensors
from ampbench.worker.devices import Device
from ampbench.worker.finite import MEANT, Fp32Check, is_finite, seeded_step
from ampbench.worker.flags import precision_flags
from ampbench.worker.memory import is_out_of_memory
from ampbench.worker.step import Step
from ampbench.workload import Workload

UNSCALABLE = "the loss is not finite, whatever its scale: gradients are those at the scale that GradScaler begins with"
TAMED = "{} holds values that are not finite in fp32 already, which reach no output, loss or gradient"


def measure_ranges(workload: Workload, case: Case, device: Device, steps: int, precisions: Sequence[str]) -> RangePass:
    """Return the magnitudes of `steps` fp32 steps of `case` (0: one for each batch), and a run in each low precision.

    All begin with the workload's own weights; the low ones run the first batch. Dropout is switched off. One build of
    the step exists at a time, and of the fp32 gradients only where they are zero is kept. Raises `WorkloadError` where
    fp32 gives outputs, a loss or gradients that are not finite, with the op that begins it, `UsageError` for a
    precision that is not low, and what the network raises in fp32; what it raises in a low precision, unless memory
    ran out, is recorded.
    """
    case = dataclasses.replace(case, path="eager")
    notes: list[str] = []
    check = Fp32Check()
    nonzero: dict[str, torch.Tensor] = {}
    with precision_flags(PRECISIONS[BASELINE]):
        step = seeded_step(workload, case, device, notes, precision=BASELINE)
        steps = steps or len(step.batches)
        with step.mode(), watch_ranges(step.module, step.optimizer) as seen:
            for turn in range(steps):
                output, gradients = _run(step)
                if not check.look(turn, output, step.loss, gradients.values()):
                    break
                if turn == 0:
                    nonzero = {name: _dense(gradient) != 0 for name, gradient in gradients.items()}
                del output, gradients
                if step.training:
                    step.apply_gradients()
    magnitudes, swallowed, holder = seen.magnitudes, seen.swallowed, seen.nonfinite_in_fp32
    del step, seen
    check.refuse(workload, case, device, notes, holder)
    if holder is not None and MEANT not in notes:
        notes.append(TAMED.format(holder or ROOT))
    return RangePass(
        case_id=case.case_id,
        steps=steps,
        magnitudes=magnitudes,
        swallowed=swallowed,
        low_runs=[_run_low(workload, case, device, PRECISIONS[name], nonzero) for name in precisions],
        notes=notes,
    )


@dataclass(slots=True)
class _Whole:
    """What has been seen of a whole step in a low precision, as far as it got."""

    dtypes: Dtypes = field(default_factory=Dtypes)
    lowered_weights: list[str] = field(default_factory=list)
    gradients: list[SeenGradient] = field(default_factory=list)
    scaler_scale: float | None = None
    first: FirstNonfinite | None = None
    notes: list[str] = field(default_factory=list)


def _run_low(
    workload: Workload, case: Case, device: Device, row: Precision, nonzero: Mapping[str, torch.Tensor]
) -> LowRun:
    """Return what a low precision makes of the first batch, module by module and as a whole."""
    device.release()
    low = getattr(torch, row.autocast or row.storage)
    whole = _Whole()
    error = ""
    with precision_flags(row):
        try:
            loss = _see_dtypes(workload, case, device, row, whole)
            device.release()
            _see_step(workload, case, device, row, whole, loss, nonzero)
        except UsageError as refused:
            whole.notes.append(str(refused))
        except Exception as raised:
            if is_out_of_memory(raised):
                raise
            error = first_line(raised)
    device.release()
    return LowRun(
        precision=row.name,
        modules=_own_errors(workload, case, device, row, whole.dtypes.given),
        lowered=[path for path, dtypes in whole.dtypes.returned.items() if dtypes == {low}],
        lowered_weights=whole.lowered_weights,
        gradients=whole.gradients,
        scaler_scale=whole.scaler_scale,
        first_nonfinite=whole.first,
        error=error,
        notes=whole.notes,
    )


def _own_errors(workload: Workload, case: Case, device: Device, row: Precision, given: Given) -> list[ModuleError]:
    with precision_flags(PRECISIONS[BASELINE]):
        step = seeded_step(workload, case, device, [], precision=BASELINE)
        with step.mode(), watch_errors(step.module, row, given) as errors:
            step.forward_and_loss()
        return errors.modules


def _see_dtypes(workload: Workload, case: Case, device: Device, row: Precision, whole: _Whole) -> torch.Tensor | None:
    """Run the forward pass to see what it does in the low dtype; return the loss, if there is one."""
    step = seeded_step(workload, case, device, whole.notes, precision=row.name)
    low = getattr(torch, row.autocast or row.storage)
    with step.mode(), trace_casts(step.module) as ledger, watch_dtypes(step.module) as whole.dtypes:
        loss = step.forward_and_loss()[1]
    short = SHORT_DTYPES[row.autocast or row.storage]
    cast = {one.name for one in ledger.casts if one.what in (WEIGHT, BUFFER) and one.to_dtype == short}
    whole.lowered_weights = [name for name, tensor in named_tensors(step.module) if tensor.dtype == low or name in cast]
    return None if loss is None else loss.detach()


def _see_step(
    workload: Workload,
    case: Case,
    device: Device,
    row: Precision,
    whole: _Whole,
    loss: torch.Tensor | None,
    nonzero: Mapping[str, torch.Tensor],
) -> None:
    """Run a whole step to see where values stop being finite and which gradients flush."""
    step = seeded_step(workload, case, device, whole.notes, precision=row.name)
    if step.scaler is not None:
        if is_finite([loss]):
            step.settle_scaler()
        else:
            whole.notes.append(UNSCALABLE)
        torch.manual_seed(0)
        whole.scaler_scale = step.scaler.get_scale()
    with step.mode(), find_nonfinite(step.module) as found:
        try:
            gradients = _run(step)[1]
        finally:
            whole.first = found.first
    whole.gradients = [
        _seen_gradient(name, _dense(gradient), nonzero[name]) for name, gradient in gradients.items() if name in nonzero
    ]
    if step.training and whole.first is None:
        with find_nonfinite(step.module) as found:
            step.apply_gradients()
        whole.first = found.first


def _run(step: Step) -> tuple[Any, dict[str, torch.Tensor]]:
    """Run a step but for what its optimizer does; return the output and, in training, gradients by name."""
    return step.unscaled_gradients() if step.training else (step.run(), {})


def _seen_gradient(name: str, gradient: torch.Tensor, nonzero: torch.Tensor) -> SeenGradient:
    return SeenGradient(
        parameter=name,
        elements=gradient.numel(),
        flushed=int(((gradient == 0) & nonzero).sum()),
        nonfinite=int((~gradient.isfinite()).sum()),
    )


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient if gradient.layout is torch.strided else gradient.to_dense()

"""An origin pass: the modules in which the error of a case in a low precision begins."""

import dataclasses

import torch
from msgspec import structs

from ampbench.core.precisions import BASELINE, FP64, PRECISIONS, Precision
from ampbench.errors import UsageError, first_line
from ampbench.records.case import Case
from ampbench.records.labels import FP32_INSTEAD
from ampbench.records.ranges import FirstNonfinite, ModuleError, OriginPass
from ampbench.trace.errors import Dtypes, Given, watch_dtypes, watch_errors
from ampbench.trace.nonfinite import find_nonfinite
from ampbench.worker.distances import Distance, Fp32Check, compare, is_finite, kept_outputs, outputs_in
from ampbench.worker.machine import Device, fp64_device, precision_flags
from ampbench.worker.memory import is_out_of_memory
from ampbench.worker.outputs import compared_outputs
from ampbench.worker.step import EqualDraws, Step, seeded_step, unfused
from ampbench.workload import Workload


def measure_origin(workload: Workload, case: Case, device: Device, *, ablate: bool = False) -> OriginPass:
    """Return the errors of each module of `case`, a low precision, in the forward pass on the first batch.

    A module's own error is that of the module run again in the low precision on its fp32 inputs, against itself in
    fp32. Errors of the output are those of the whole forward pass against fp64, or fp32 where fp64 fails, as the notes
    report. With `ablate`, each module with an own error is kept in fp32 alone, with those that share a parameter with
    it, for another forward pass; the output's error is then `kept_rel_l2`.

    Dropout is off, and so is torch's fused path, so that an encoder runs its modules one by one. An error of the
    network in the low precision, except out of memory, is a note. Raises `WorkloadError` where fp32 gives outputs or a
    loss that are not finite, with the op that begins it, `UsageError` for a precision that is not low, and any error of
    the network in fp32.
    """
    case = structs.replace(case, path="eager")
    notes: list[str] = []
    refused = f"the whole forward pass does not run in {case.precision}: {{}}"
    low = _tried(workload, case, device, PRECISIONS[case.precision], notes, refused)
    device.release()
    modules, fp32 = _run_fp32(workload, case, device, notes, low.dtypes.given if low is not None else {})
    device.release()
    origin_pass = OriginPass(case_id=case.case_id, modules=modules, notes=notes)
    if low is None:
        return origin_pass
    exact = _tried(workload, case, fp64_device(device), FP64, notes, FP32_INSTEAD) or fp32
    distance = _distance(low.outputs, exact, device, notes)
    first = None
    if not is_finite([low.loss]) or (distance is not None and distance.nonfinite):
        del low.outputs[:]
        device.release()
        first = _first_nonfinite(workload, case, device, notes)
    erring = [row for row in modules if row.elements and row.module and row.own_rel_l2 != 0]
    ablated = erring if ablate and distance is not None else []
    tried = {row.module: _kept_alone(workload, case, device, row, exact) for row in ablated}
    return structs.replace(
        origin_pass,
        modules=[tried.get(row.module, row) for row in modules],
        output_rel_l2=None if distance is None else distance.rel_l2,
        reference=exact.precision,
        ablations=len(tried),
        first_nonfinite=first,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Forward:
    """The result of a forward pass in a precision, without its graph: floating outputs, loss, dtypes within."""

    outputs: list[torch.Tensor]
    loss: torch.Tensor | None
    dtypes: Dtypes
    precision: str


def _tried(
    workload: Workload, case: Case, device: Device, row: Precision, notes: list[str], why: str
) -> _Forward | None:
    """Run the forward pass in a precision; None where the network raises, with a note in the format `why`."""
    with precision_flags(row):
        try:
            return _run(workload, seeded_step(workload, case, device, notes, precision=row), row)
        except Exception as raised:
            if is_out_of_memory(raised):
                raise
            notes.append(why.format(first_line(raised)))
            return None


def _kept_alone(workload: Workload, case: Case, device: Device, row: ModuleError, exact: _Forward) -> ModuleError:
    """Return the errors of a module with the output's error while only it is in fp32, or a note of the reason."""
    device.release()
    with precision_flags(PRECISIONS[case.precision]):
        try:
            parameters = set(workload.module.get_submodule(row.module).parameters())
            within = f"{row.module}."
            sharing = [
                path
                for path, module in workload.module.named_modules()
                if not f"{path}.".startswith(within) and parameters.intersection(module._parameters.values())
            ]
            step = seeded_step(workload, case, device, [], kept=[row.module, *sharing])
            with step.mode(), unfused(), EqualDraws():
                output = step.network.forward_and_loss()[0]
            distance = _distance(list(outputs_in(compared_outputs(workload, output))), exact, device, [])
        except Exception as raised:
            if is_out_of_memory(raised):
                raise
            return structs.replace(row, note=f"kept in fp32: {first_line(raised)}")
    return structs.replace(row, kept_rel_l2=None if distance is None else distance.rel_l2)


def _run_fp32(
    workload: Workload, case: Case, device: Device, notes: list[str], given: Given
) -> tuple[list[ModuleError], _Forward]:
    """Run the forward pass in fp32, and each module again in the low precision; refuse what fp32 cannot hold."""
    check = Fp32Check()
    with precision_flags(PRECISIONS[BASELINE]):
        step = seeded_step(workload, case, device, notes, precision=PRECISIONS[BASELINE])
        with watch_errors(step.module, case.precision, given) as errors:
            exact = _run(workload, step, PRECISIONS[BASELINE])
    check.look(0, exact.outputs, exact.loss)
    del step
    check.refuse(workload, case, device, notes)
    return errors.modules, exact


def _run(workload: Workload, step: Step, row: Precision) -> _Forward:
    with step.mode(), unfused(), EqualDraws(), watch_dtypes(step.module) as dtypes:
        output, loss = step.network.forward_and_loss()
    outputs = [tensor.detach() for tensor in outputs_in(compared_outputs(workload, output))]
    return _Forward(outputs, None if loss is None else loss.detach(), dtypes, row.name)


def _distance(outputs: list[torch.Tensor], exact: _Forward, device: Device, notes: list[str]) -> Distance | None:
    """Return the distance of outputs from exact ones; None, with a note, where they cannot be compared."""
    if not exact.outputs:
        notes.append("forward returned no floating tensor to compare")
        return None
    keep = fp64_device(device)
    try:
        distance = compare(kept_outputs(outputs, keep), kept_outputs(exact.outputs, keep), against=exact.precision)
    except ValueError as error:  # other shapes: a detector found other boxes
        notes.append(str(error))
        return None
    if not distance.nonfinite:  # the undefined error reports those
        notes += distance.notes
    return distance


def _first_nonfinite(workload: Workload, case: Case, device: Device, notes: list[str]) -> FirstNonfinite | None:
    try:
        step = seeded_step(workload, case, device, notes)
        with precision_flags(PRECISIONS[case.precision]), step.mode(), unfused(), find_nonfinite(step.module) as watch:
            step.network.forward_and_loss()
    except UsageError as refused:
        notes.append(str(refused))
        return None
    return watch.first

"""What storing a network's inputs in half saves and loses: the same step fed both, traced, compared and timed in turns.

Which op would read an input in fp32 is read from a trace of the step; whether anything is lost is measured, not
concluded from that.
"""

import math
from functools import partial
from typing import Any

import torch
from msgspec import structs
from torch.utils import _pytree as pytree

from ampbench.core.precisions import PRECISIONS
from ampbench.errors import first_line
from ampbench.records.case import Case
from ampbench.records.casts import CastTrace, bytes_moved
from ampbench.records.labels import FP32_INSTEAD
from ampbench.records.measured import Skip
from ampbench.studies.casts_measure import trace_step
from ampbench.studies.input_storage import InputUse, StorageAsked, StoragePass, StoredInputs
from ampbench.trace.dtypes import short_dtype
from ampbench.trace.ledger import CastLedger
from ampbench.worker.data import batches_of
from ampbench.worker.distances import compare, floating_in, identical
from ampbench.worker.divergence import StepNumbers, passing_reference, run_step
from ampbench.worker.machine import Cpu, Device, fp64_device, precision_flags
from ampbench.worker.memory import is_out_of_memory, one_batch
from ampbench.worker.step import build_step
from ampbench.worker.timing import TURNS, FitnessWatch, plan_samples, settled_peaks, side_by_side, warm_up
from ampbench.worker.worker import Work
from ampbench.workload import Workload

NO_FLOATING = "no input of it is floating: token ids and other integers are never stored in half"

COPY_SHARE = 0.05
"""The share of the seconds that copies from host to device get, for each of the two dtypes."""

Fields = dict[str, Any]
"""Fields of `StoredInputs`."""


def measure_storage(work: Work, asked: StorageAsked) -> StoragePass | Skip:
    """Compare a step of an autocast case with inputs in fp32 and with inputs in autocast's dtype.

    Steps are timed in turns. Dropout is off where numbers, of the first batch, are compared. Raises the network's
    errors with inputs in fp32, and `torch.OutOfMemoryError`. Without floating inputs it is a `Skip`.
    """
    case = structs.replace(work.case, path="eager")
    if not any(True for _ in floating_in(pytree.tree_leaves(batches_of(work.workload.inputs)[0]))):
        return Skip(case_id=case.case_id, reason=NO_FLOATING)
    row = PRECISIONS[case.precision]
    with precision_flags(row):
        half = getattr(torch, row.autocast or "")
        return _measured(work.workload, case, work.device, half, asked.seconds)


def _measured(workload: Workload, case: Case, device: Device, half: torch.dtype, seconds: float) -> StoragePass:
    changed_case = structs.replace(case, input_dtype=short_dtype(half))
    notes: list[str] = []
    watch = FitnessWatch(device)
    step = build_step(workload, case, device)
    settled = warm_up(step)
    ledger = trace_step(step)
    before = step.data.batches[0]
    full, low = (_stored(before, dtype, device, seconds) for dtype in (torch.float32, half))
    full |= _casts(ledger.trace)
    uses: list[InputUse] = []
    try:
        changed = build_step(workload, changed_case, device)
        warm_up(changed, settled)
        after = trace_step(changed)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        low["error"] = first_line(error)
    else:
        low |= _casts(after.trace)
        uses = _uses(before, ledger, low["dtype"])
        del changed, after
    given = list(floating_in(pytree.tree_leaves(before)))
    exact = all(bool(((leaf.to(half).to(leaf.dtype) == leaf) | leaf.isnan()).all()) for leaf in given)
    del step, ledger, before, given
    device.release()
    runs = "error" not in low
    if runs:
        alone = one_batch(workload, case)
        builds = [partial(build_step, alone, stored, device) for stored in (case, changed_case)]
        full["peak_bytes"], low["peak_bytes"] = settled_peaks(builds, [settled] * 2, device, notes)
    same, repeatable = _compared(workload, case, device, full, low, notes)
    if runs:
        builds = [partial(build_step, workload, stored, device) for stored in (case, changed_case)]
        both = side_by_side(builds, lambda built, _: warm_up(built, settled), device, seconds, notes)
        full["samples"], low["samples"] = both
    return StoragePass(
        case_id=case.case_id,
        uses=uses,
        full=StoredInputs(**full),
        low=StoredInputs(**low),
        identical=same,
        repeatable=repeatable,
        exact=exact,
        fitness=watch.seen(),
        notes=notes,
    )


def _casts(trace: CastTrace) -> Fields:
    return {"casts": len(trace.casts), "cast_bytes": bytes_moved(trace.casts)}


def _stored(batch: Any, dtype: torch.dtype, device: Device, seconds: float) -> Fields:
    """Return the bytes of a batch with floating inputs in `dtype`, and the seconds of its copy to the device."""
    leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    host = [leaf.to(device="cpu", dtype=dtype if leaf.is_floating_point() else leaf.dtype) for leaf in leaves]
    fields: Fields = {"dtype": short_dtype(dtype), "stored_bytes": sum(leaf.nbytes for leaf in host)}
    if isinstance(device, Cpu):
        return fields

    def copy() -> None:
        for leaf in host:
            leaf.to(device.type)

    copy()
    device.synchronize()
    count, turns = plan_samples(device.seconds(copy, 1), device.timer_seconds, seconds * COPY_SHARE, TURNS)
    return fields | {"copy_samples": [device.seconds(copy, count) / count for _ in range(turns)]}


def _uses(batch: Any, ledger: CastLedger, low: str) -> list[InputUse]:
    """Return the use of each floating fp32 input of a batch in a step that casts to `low`."""
    trace, uses = ledger.trace, []
    lowered = {cast.index: cast.operation for cast in trace.casts if cast.to_dtype == low}
    for path, leaf in pytree.tree_flatten_with_path(batch)[0]:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            continue
        name, users = ledger.uses_of(leaf)
        names = {place: trace.ops[place].name for place in users}  # `zeros_like` reads a shape, not values
        reading = [at for at, op in names.items() if not op.endswith("_like") and not op.startswith("aten.new_")]
        in_fp32 = next((trace.ops[place].name for place in reading if place not in lowered), "")
        first = None
        if reading:
            place = lowered.get(reading[0])
            first = trace.ops[reading[0] if place is None else place]
        uses.append(
            InputUse(
                name=name or f"input{pytree.keystr(path)}",
                operation=first.name if first else "",
                module=first.module if first else "",
                read_in_fp32=in_fp32,
            )
        )
    return uses


def _compared(
    workload: Workload, case: Case, device: Device, full: Fields, low: Fields, notes: list[str]
) -> tuple[bool | None, bool]:
    """Give both their errors; return whether they give the same bits, and whether fp32 inputs do twice."""
    where = fp64_device(device)
    held = passing_reference(workload, case, device)
    reference = held.numbers
    assert reference is not None
    notes += [note for note in reference.notes if note not in notes]
    if held.error:
        notes.append(FP32_INSTEAD.format(held.error))
    run = partial(run_step, workload, device=device, keep=device, update=False, equal=reference.drew)
    first, again = run(case=case), run(case=case)
    repeatable = identical(_bits(first), _bits(again))
    del again
    full |= _errors(full["dtype"], first, reference, where, notes)
    if "error" in low:
        return None, repeatable
    second = run(case=structs.replace(case, input_dtype=low["dtype"]))
    low |= _errors(low["dtype"], second, reference, where, notes)
    return identical(_bits(first), _bits(second)), repeatable


def _errors(dtype: str, numbers: StepNumbers, reference: StepNumbers, where: Device, notes: list[str]) -> Fields:
    """Return the errors of a step with inputs in `dtype` against the reference."""
    try:
        outputs = compare(numbers.outputs, reference.outputs, on=where)
    except ValueError as error:  # other shapes: a detector found other boxes
        notes.append(f"inputs in {dtype}: {error}: no error is defined")
        return {}
    notes += [f"inputs in {dtype}: {note}" for note in outputs.notes]
    fields: Fields = {"output_rel_l2": outputs.rel_l2}
    if numbers.gradients:
        expected = [reference.gradients[name] for name in numbers.gradients]
        gradients = compare([*numbers.gradients.values()], expected, on=where)
        notes += [f"inputs in {dtype}: gradients: {note}" for note in gradients.notes]
        fields["grad_rel_l2"] = gradients.rel_l2
    if numbers.loss is not None and reference.loss is not None:
        difference = abs(numbers.loss - reference.loss)
        fields["loss_abs_error"] = difference if math.isfinite(difference) else None
    return fields


def _bits(numbers: StepNumbers) -> list[torch.Tensor]:
    loss = [] if numbers.loss is None else [torch.tensor(numbers.loss, dtype=torch.float64)]
    return [*numbers.outputs, *loss, *numbers.gradients.values()]

"""The device side of the search for modules to keep in fp32: candidates, errors and costs of sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from ampbench.core.precisions import BASELINE, PRECISIONS
from ampbench.records.case import Case
from ampbench.records.labels import few
from ampbench.records.measured import Skip
from ampbench.records.ranges import ModuleError
from ampbench.studies.keep_fp32 import Limits, SearchSpace, TimedSet, Timing, Trial, TrialAsked, Unit
from ampbench.trace.keep_fp32 import is_kept
from ampbench.trace.modules import ModuleRun, watch_runs
from ampbench.worker.data import SAME_INPUTS, FreshBatches, inputs_digest, weights_digest
from ampbench.worker.distances import compare, compare_each
from ampbench.worker.divergence import Reference, References, run_step, trusted_reference
from ampbench.worker.machine import Device, fp64_device, precision_flags
from ampbench.worker.memory import is_out_of_memory, one_batch, said_of
from ampbench.worker.origins import measure_origin
from ampbench.worker.outputs import batch_length
from ampbench.worker.step import Step, build_step, seed_all, seeded_step, unfused
from ampbench.worker.timing import FitnessWatch, settled_peaks, side_by_side, warm_up
from ampbench.worker.updates import measure_update
from ampbench.worker.worker import Work
from ampbench.workload import Workload

SECONDS = 20.0
"""Sets are timed for about so long."""
NO_REFERENCE = "the fp64 step that trials are compared with does not fit into the memory: search with a smaller batch"


@dataclass(slots=True, eq=False)
class _Seen:
    """What is known of a module that ran; `always` and `ever` are the modules that all, and some, calls ran within."""

    path: str
    module: torch.nn.Module
    always: set[torch.nn.Module]
    ever: set[torch.nn.Module] = field(default_factory=set)
    leaf: bool = True


def search_space(work: Work, asked: Limits) -> SearchSpace:
    """Return the modules of a case that can be kept in fp32, seen in one fp32 step of its phase.

    Units are the modules in which no other ran, in the order of running; those that share parameters are one, with
    modules that did not run but share them. Left out, with a note, are TorchScript modules and those that the network
    keeps in fp32 itself. Containers can be kept whole: all that they hold runs within them, and nothing else does.
    Dropout is off, and so are the fused paths of attention and encoder layers, which a kept module makes them leave.
    Raises `WorkloadError` where outputs or the loss are not finite in fp32.
    """
    workload, case, device = work.workload, work.case, work.device
    origin = measure_origin(workload, case, device)
    errors = {row.module: row for row in origin.modules if row.elements}
    notes: list[str] = []
    with precision_flags(PRECISIONS[BASELINE]), unfused():
        step = seeded_step(workload, case, device, notes, precision=PRECISIONS[BASELINE])
        runs = _watched(step)
    leaves = _without_refused([row for row in runs if row.leaf], notes)
    units = _units(step.module, leaves, {row.module for row in runs}, errors)
    return SearchSpace(
        case_id=case.case_id,
        units=units,
        containers=_containers(runs, leaves),
        limits=asked,
        weights_digest=weights_digest(workload),
        inputs_digest=inputs_digest(workload),
        notes=list(dict.fromkeys([*notes, *origin.notes])),
    )


def try_kept(
    workload: Workload,
    case: Case,
    device: Device,
    kept: Sequence[str],
    references: References,
    *,
    updates: bool = False,
) -> Trial:
    """Return the errors of a step of `case` with the modules `kept` in fp32 against the same step in fp64.

    With `updates`, also the share of an optimizer's step that arrives. An error of the network becomes the trial's.
    Raises `torch.OutOfMemoryError` where the fp64 reference does not fit.
    """
    try:
        make = partial(trusted_reference, workload, case, device, updates=updates)
        reference = references.of(workload, case, device, ("trials", updates), make)
    except Exception as error:
        if is_out_of_memory(error):
            raise torch.OutOfMemoryError(NO_REFERENCE) from error
        raise
    try:
        return _compared(workload, case, device, kept, reference)
    except Exception as error:  # noqa: BLE001 - whatever the network raises
        reason = said_of(error)
    device.release()  # the error held tensors of the step
    return Trial(case_id=case.case_id, kept=list(kept), error=reason)


def do_timing(work: Work, asked: Timing) -> Timing:
    """Do the task "timing": return time and peak memory of a step with each set kept in fp32, in about `SECONDS`."""
    workload, case, device = work.workload, work.case, work.device
    kept_sets, notes = [timed.kept for timed in asked.sets], list[str]()
    with precision_flags(PRECISIONS[case.precision]):
        builds = [partial(build_step, workload, case, device, kept=kept) for kept in kept_sets]
        settled = [warm_up(build()) for build in builds]
        device.release()
        alone = [partial(build_step, one_batch(workload, case), case, device, kept=kept) for kept in kept_sets]
        peaks = settled_peaks(alone, settled, device, notes)
        watch = FitnessWatch(device)
        samples = side_by_side(builds, lambda step, place: warm_up(step, settled[place]), device, SECONDS, notes)
        fitness = watch.seen()
    return Timing(
        sets=[
            TimedSet(kept=kept, samples=taken, peak_bytes=peak)
            for kept, taken, peak in zip(kept_sets, samples, peaks, strict=True)
        ],
        fitness=fitness,
        notes=notes,
    )


def _compared(workload: Workload, case: Case, device: Device, kept: Sequence[str], held: Reference) -> Trial:
    """Return the trial of a set whose step runs."""
    where, reference = fp64_device(device), held.numbers
    assert reference is not None
    numbers = run_step(
        workload, case, device, keep=device, kept=kept, update=False, equal=held.draws,
        native=held.intended is not None,
    )  # fmt: skip
    outputs, differences = compare_each(numbers.outputs, reference.outputs, where)
    errors = [difference.rel_l2 for difference in differences if difference.rel_l2 is not None]
    gradients = None
    if case.phase == "training":
        expected = [reference.gradients[name] for name in numbers.gradients]
        gradients = compare(list(numbers.gradients.values()), expected, where)
    update = None
    if held.intended is not None and numbers.native is not None:
        update = measure_update(held.intended, numbers.native, device, where)
    return Trial(
        case_id=case.case_id,
        kept=list(kept),
        update_kept=update.kept if update else None,
        update_nonfinite=(update.nonfinite or 0) if update else 0,
        update_undefined=update.undefined if update else "",
        output_rel_l2=None if outputs.rel_l2 is None else max(errors, default=outputs.rel_l2),
        grad_rel_l2=gradients.rel_l2 if gradients else None,
        nonfinite=sum(
            difference.nonfinite + difference.unlike for difference in (outputs, gradients) if difference is not None
        ),
        reference_dtype=held.dtype,
        reference_error=held.error,
    )


def _watched(step: Step) -> list[_Seen]:
    """Return the modules that run in a forward pass, in the order in which they begin."""
    rows: dict[str, _Seen] = {}

    def begin(run: ModuleRun) -> None:
        row = rows.setdefault(run.path, _Seen(run.path, run.module, set(run.within)))
        row.always &= set(run.within)
        row.ever |= set(run.within)

    def end(run: ModuleRun) -> None:
        rows[run.path].leaf &= run.leaf

    seed_all(0)
    step.rewind()
    with step.mode(), watch_runs(step.module, end, begin):
        step.network.forward_and_loss()
    return list(rows.values())


def _without_refused(leaves: list[_Seen], notes: list[str]) -> list[_Seen]:
    """Return the leaves that can be kept; `notes` name the others with reasons."""
    kept_already = [row for row in leaves if any(is_kept(module) for module in (*row.always, row.module))]
    scripted = [row for row in leaves if isinstance(row.module, torch.jit.ScriptModule)]
    for rows, why in ((kept_already, "the network keeps in fp32 itself"), (scripted, "are TorchScript")):
        if rows:
            notes.append(f"left out are modules that {why}: {few(row.path or 'the network' for row in rows)}")
    return [row for row in leaves if row not in kept_already and row not in scripted]


def _units(
    network: torch.nn.Module, leaves: list[_Seen], ran: set[torch.nn.Module], errors: Mapping[str, ModuleError]
) -> list[Unit]:
    """Return the units that the leaves make, in the order of running, with the errors of their modules."""
    groups: dict[int, list[_Seen]] = {}
    home: dict[torch.Tensor, int] = {}
    for place, row in enumerate(leaves):
        sharing = sorted({home[parameter] for parameter in row.module.parameters() if parameter in home})
        into = sharing[0] if sharing else place
        groups[into] = [member for group in sharing for member in groups.pop(group)] + [row]
        home.update((parameter, into) for member in groups[into] for parameter in member.module.parameters())
    held = {module for row in leaves for module in row.module.modules()}
    idle = [(path, module) for path, module in network.named_modules() if module not in ran and module not in held]
    units = []
    for _, group in sorted(groups.items()):
        weights = {parameter for row in group for parameter in row.module.parameters()}
        sharing_idle = [path for path, module in idle if weights & set(module._parameters.values())]
        modules = [*(row.path for row in group), *sharing_idle]
        known = [errors[path] for path in modules if path in errors]
        overflows = [row.overflowed / row.elements for row in known if not row.inputs_overflowed]
        units.append(
            Unit(
                modules=modules,
                kind=type(group[0].module).__name__,
                own_rel_l2=max((row.own_rel_l2 for row in known if row.own_rel_l2 is not None), default=None),
                overflows=max(overflows, default=0.0),
            )
        )
    return units


def _containers(runs: list[_Seen], leaves: list[_Seen]) -> list[str]:
    """Return the containers that can be kept whole, outermost first."""
    containers = [row for row in runs if not row.leaf and not any(is_kept(m) for m in (*row.always, row.module))]
    whole = [row.path for row in containers if _can_be_whole(row, leaves)]
    return sorted(whole, key=lambda path: (path != "", path.count(".")))


def _can_be_whole(container: _Seen, leaves: list[_Seen]) -> bool:
    """Return whether a container always runs around the leaves below its path, and holds no other leaf with weights."""
    held = set(container.module.modules())
    below = f"{container.path}." if container.path else ""
    for row in leaves:
        if row.path.startswith(below):
            if container.module not in row.always:
                return False
        elif (row.module in held or container.module in row.ever) and any(True for _ in row.module.parameters()):
            return False
    return not isinstance(container.module, torch.jit.ScriptModule)


def do_trial(work: Work, asked: TrialAsked) -> Trial | Skip:
    """Do the task "trial"; the worker keeps the reference for the next."""
    workload, case = work.workload, work.case
    if asked.batch:
        fresh = FreshBatches(workload, batch_length(workload, case), rebuilt=work.rebuilt).workload(asked.batch)
        if fresh is None:
            return Skip(case_id=case.case_id, reason=SAME_INPUTS)
        workload = fresh
    return try_kept(workload, case, work.device, asked.kept, work.references, updates=asked.updates)

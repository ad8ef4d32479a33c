"""Requests to replies: what one worker process does with one piece of work."""

import contextlib
import dataclasses
import random
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import ampbench
from ampbench.base.precisions import PRECISIONS
from ampbench.errors import AmpbenchError, UsageError, bounded, in_one_line, own_frames, own_place
from ampbench.explain.modules import is_compiled
from ampbench.measure.data import SAME_INPUTS, FreshBatches, Rebuilt, inputs_digest, weights_digest
from ampbench.measure.distances import count_nonfinite
from ampbench.measure.divergence import fp32_products, measure_divergence
from ampbench.measure.environment import read_environment
from ampbench.measure.machine import Device, keep_users_switches, open_device, precision_flags
from ampbench.measure.memory import is_out_of_memory, keep_freed_memory, measure_memory, rss_bytes
from ampbench.measure.outputs import batch_length
from ampbench.measure.reference import References
from ampbench.measure.sources import build_workload, describe_workload, find_own, further_inputs, items_per_step
from ampbench.measure.step import TrainingStep, build_step
from ampbench.measure.timing import FitnessWatch, Placement, Timing, time_build, warm_up
from ampbench.records.case import Case, ParameterValue, WorkloadSource
from ampbench.records.casts import CastPass
from ampbench.records.kinds import CEILINGS, CONVERGENCE, INPUT_STORAGE, KINDS, SCALER, SCOPE
from ampbench.records.measured import Divergence, Failure, Round, Skip
from ampbench.records.rules import RuleProbe, chosen_ops
from ampbench.records.run import KEPT
from ampbench.records.wire import Reply, Request
from ampbench.workload import Workload

if TYPE_CHECKING:
    from ampbench.instruments.convergence.measure import Trajectories

UNTIMED = frozenset({"environment", "describe", "memory", "divergence"})
"""Kinds of requests in which nothing is timed: they have the plain heap of a user's process."""

FRAMES = 4
"""How many of the last frames of a failed forward are kept."""


class Worker:
    """Serves requests one after the other, keeping the last workload built and its references for the next.

    `interrupted` tells whether a person has pressed Ctrl-C, which ends a request; in a worker process nobody can.
    """

    def __init__(self, interrupted: Callable[[], bool] = lambda: False) -> None:
        self._interrupted = interrupted
        self._built: tuple[str, Workload] | None = None
        self._references = References()
        self._fitting: dict[str, int] = {}
        self._timed = Timed()
        self._trajectories: Trajectories | None = None

    def serve(self, request: Request) -> Reply:
        """Return the reply to `request`; whatever is raised in the workload becomes a failure, in its making a problem.

        KeyboardInterrupt passes on where it was a person's.
        """
        if request.threads:
            torch.set_num_threads(request.threads)
        if request.heap == KEPT and request.kind not in UNTIMED:
            keep_freed_memory()
        keep_users_switches(request.keep_flags)
        try:
            return self._serve(request)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and self._interrupted():
                raise
            if request.case is not None:
                return Reply(failure=failure_of(request.case.case_id, request.kind, error))
            if isinstance(error, UsageError):
                return Reply(problem=in_one_line(error))
            if request.source is not None:
                return Reply(problem=f"workload {request.source.name} cannot be built: {in_one_line(error)}")
            raise

    def forget(self) -> None:
        """Drop the references that divergence passes keep for the next case of their group."""
        self._references = References()

    def _serve(self, request: Request) -> Reply:
        if request.kind == "environment":
            return Reply(environment=read_environment())
        if request.kind == "rules":
            return Reply(rules=probe_autocast(request.device, request.dtypes, request.ops))
        if request.kind == CEILINGS:
            from ampbench.instruments.ceilings.measure import measure_ceiling  # no other request needs it

            (dtype,) = request.dtypes
            device = open_device(request.device)
            return Reply(ceilings=measure_ceiling(device, request.operation, dtype, request.seconds))
        assert request.source is not None
        if request.kind == "describe":
            return Reply(description=describe_workload(request.source, request.parameters, request.seed))
        case = request.case
        assert case is not None
        if request.kind == "casts":
            return Reply(casts=self._casts(request.source, case, request))
        find_own(request.source, case.precision)
        device = open_device(case.device)
        reason = cannot_run(case)
        if reason:
            return Reply(skip=Skip(case_id=case.case_id, reason=reason))
        if request.kind in ("ranges", "origin", "space", "trial", "weighing"):
            return self._explain(request, request.source, case, device)
        if request.kind in KINDS:
            return self._study(request, request.source, case, device)
        if request.kind == "divergence":
            return Reply(divergence=self._divergence(request.source, case, device, request.seed))
        workload = self._workload(request.source, case, request.seed, case.batch_size)
        with precision_flags(PRECISIONS[case.precision]):
            if request.kind == "memory":
                return Reply(memory=measure_memory(workload, case, device))
            if request.kind != "round":
                raise _unknown(request)
            self.forget()  # what the passes kept must not weigh on what is timed
            if self._timed.workload is not workload or self._timed.case_id != case.case_id:
                self._timed = Timed(workload, case.case_id)
            return Reply(round=measure_round(workload, request, device, self._timed))

    def _casts(self, source: WorkloadSource, case: Case, request: Request) -> CastPass:
        """Return the cast pass of `case`, whose device may be absent."""
        from ampbench.instruments.casts.measure import measure_casts  # no other request needs it

        workload = self._workload(source, case, request.seed, case.batch_size)
        with precision_flags(PRECISIONS[case.precision]):
            return measure_casts(workload, case, request.tracing)

    def _explain(self, request: Request, source: WorkloadSource, case: Case, device: Device) -> Reply:
        """Return what a pass on the device says of why a precision errs, and of what to keep in fp32."""
        # no other request needs these
        from ampbench.instruments.keep_fp32.measure import search_space, try_kept, weigh
        from ampbench.instruments.ranges.measure import measure_ranges
        from ampbench.measure.origins import measure_origin

        workload = self._workload(source, case, request.seed, case.batch_size)
        if request.kind == "ranges":
            rebuilt = self._rebuilding(source, case, request.seed)
            found = measure_ranges(workload, case, device, request.steps, request.precisions, rebuilt)
            return Reply(ranges=found)
        if request.kind == "origin":
            return Reply(origin=measure_origin(workload, case, device))
        if request.kind == "space":
            space = search_space(workload, case, device)
            weights, inputs = weights_digest(workload), inputs_digest(workload)
            return Reply(space=dataclasses.replace(space, weights_digest=weights, inputs_digest=inputs))
        if request.kind == "trial":
            (kept,) = request.kept
            if not request.batch:
                trial = try_kept(workload, case, device, kept, self._references, updates=request.updates)
                return Reply(trial=trial)
            rebuilt = self._rebuilding(source, case, request.seed)
            fresh = FreshBatches(workload, batch_length(workload, case), rebuilt=rebuilt).workload(request.batch)
            if fresh is None:
                return Reply(skip=Skip(case_id=case.case_id, reason=SAME_INPUTS))
            trial = try_kept(fresh, case, device, kept, self._references, updates=request.updates)
            return Reply(trial=dataclasses.replace(trial, batch=request.batch))
        return Reply(weighing=weigh(workload, case, device, request.kept, request.seconds))

    def _study(self, request: Request, source: WorkloadSource, case: Case, device: Device) -> Reply:
        """Return what a study of training, or of how inputs are stored, saw of a case."""
        # each study is imported by the request that needs it, and by no other
        workload = self._workload(source, case, request.seed, case.batch_size)
        if request.kind == CONVERGENCE:
            from ampbench.instruments.convergence.measure import Trajectories, train

            self._trajectories = self._trajectories or Trajectories()
            found = train(
                workload,
                case,
                device,
                self._trajectories,
                seed=request.seed,
                arm=request.arm,
                steps=request.steps,
                schedule=request.schedule,
            )
            return Reply(convergence=found)
        if request.kind == SCALER:
            from ampbench.instruments.scaler.measure import run_scaler

            return Reply(scaler=run_scaler(workload, case, device, request.setting, request.steps))
        if request.kind == SCOPE:
            from ampbench.instruments.scope.measure import measure_scopes

            return Reply(scope=measure_scopes(workload, case, device, request.steps, request.seconds))
        if request.kind != INPUT_STORAGE:
            raise _unknown(request)
        from ampbench.instruments.input_storage.measure import measure_storage

        stored = measure_storage(workload, case, device, request.seconds)
        return Reply(skip=stored) if isinstance(stored, Skip) else Reply(input_storage=stored)

    def _divergence(self, source: WorkloadSource, case: Case, device: Device, seed: int) -> Divergence:
        """Return the divergence of `case`, on as much of its batch as the fp64 reference leaves room for."""
        size = self._fitting.get(case.group, case.batch_size)
        while True:
            workload = self._workload(source, case, seed, size)
            with contextlib.suppress(torch.OutOfMemoryError):
                larger = partial(further_inputs, source, _parameters(case, size), seed)
                found = measure_divergence(workload, case, device, self._references, larger)
                if size is None or size == case.batch_size:
                    return found
                note = f"compared on a batch of {size}: in fp64, {case.batch_size} do not fit into the memory"
                return dataclasses.replace(found, notes=[*found.notes, note])
            if not size or size == 1:
                smallest = ", not even on a batch of one" if size else ""
                raise torch.OutOfMemoryError(f"the fp64 reference does not fit into the memory{smallest}")
            size = max(1, size // 4)
            self._fitting[case.group] = size
            self._references = References()
            device.release()

    def _rebuilding(self, source: WorkloadSource, case: Case, seed: int) -> Rebuilt:
        """Return what builds the workload of `case` with a seed that is so much larger."""
        return lambda more: build_workload(source, _parameters(case, case.batch_size), seed + more)

    def _workload(self, source: WorkloadSource, case: Case, seed: int, batch_size: int | None) -> Workload:
        parameters = _parameters(case, batch_size)
        key = f"{source} {sorted(parameters.items())} {seed}"
        if self._built is None or self._built[0] != key:
            self._built = None
            self._built = key, build_workload(source, parameters, seed)
        return self._built[1]


def _parameters(case: Case, batch_size: int | None) -> dict[str, ParameterValue]:
    """Return what the workload of `case` is built with, on batches of another size (None: it has no such parameter)."""
    return dict(case.parameters) | ({} if batch_size is None else {"batch_size": batch_size})


def probe_autocast(device: str, dtypes: list[str], ops: list[str]) -> RuleProbe:
    """Return what autocast does on `device` to `ops` as typed, to all if none; `UsageError` for an unknown one."""
    from ampbench.explain.rules.probe import probe_rules, rule_ops  # no other request needs the probe

    return probe_rules(device, dtypes, ops=chosen_ops(ops, rule_ops()) if ops else None)


@dataclass(slots=True)
class Timed:
    """What a process knows of the case it timed last, so that timing it again need not find it out anew.

    `settled` is the state that GradScaler settled at, `digest` that of the weights; `changed` what a step changes in
    place, once one has run.
    """

    workload: Workload | None = None
    case_id: str = ""
    changed: list[str] | None = None
    settled: dict[str, Any] | None = None
    digest: str = ""


def measure_round(workload: Workload, request: Request, device: Device, timed: Timed) -> Round:
    """Return one round of the requested case: several builds, each at its own place in memory, one after another."""
    case = request.case
    assert case is not None
    started = time.perf_counter()
    placement = Placement(random.Random(request.placement_seed))
    timings = []
    compile_seconds: float | None = None
    skipped = nonfinite = 0
    watch = FitnessWatch(device)
    for _ in range(request.builds):
        placement.move()
        step = build_step(workload, case, device)
        took = step.prepare_path(case.path)
        compile_seconds = took if compile_seconds is None else compile_seconds
        if isinstance(step, TrainingStep) or timed.changed is None:
            timed.settled = warm_up(step, timed.settled)
        timed.changed = step.changed(timed.changed)
        with step.mode():
            timing = time_build(
                step.run,
                device,
                budget_seconds=request.min_run_seconds / request.builds,
                max_samples=request.max_samples // request.builds,
                restore=step.restore if isinstance(step, TrainingStep) or timed.changed else None,
                warm=True,
                apart=bool(timed.changed),
            )
        timings.append(timing)
        if isinstance(step, TrainingStep):
            nonfinite = max(nonfinite, count_nonfinite(step.module.parameters()))
            step.restore()  # counts a step that the last sample skipped
            skipped += step.skipped_steps
        del step
        device.release()
    timed.digest = timed.digest or weights_digest(workload)
    fitness, rss_peak = watch.seen(), rss_bytes("VmHWM")
    return Round(
        case_id=case.case_id,
        round=request.round,
        server=request.server,
        control=request.control,
        samples=[timing.samples for timing in timings],
        cpu_samples=_cpu_samples(timings),
        steps_per_sample=[timing.steps_per_sample for timing in timings],
        warmup_steps=[timing.warmup_steps for timing in timings],
        items_per_step=items_per_step(workload),
        compile_seconds=compile_seconds,
        weights_digest=timed.digest,
        scaler_scale=timed.settled["scale"] if timed.settled else None,
        skipped_steps=skipped if timed.settled else None,
        param_nonfinite=nonfinite if case.phase == "training" else None,
        changed_in_place=timed.changed or [],
        comes_compiled=any(map(is_compiled, workload.module.modules())),
        fp32_products=fp32_products(case, device),
        rss_peak_bytes=rss_peak,
        fitness=fitness,
        seconds=time.perf_counter() - started,
        finished_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


def _cpu_samples(timings: Sequence[Timing]) -> list[list[float]] | None:
    """Return the CPU seconds of every sample; None unless they are known of all."""
    known = [timing.cpu_samples for timing in timings if timing.cpu_samples is not None]
    return known if len(known) == len(timings) else None


def _unknown(request: Request) -> UsageError:
    return UsageError(f"a worker of this ampbench does not know requests of kind {request.kind!r}")


def cannot_run(case: Case) -> str:
    """Return why this installation cannot run `case` by its path, or nothing."""
    if case.path == "compiled" and case.device == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except Exception:  # noqa: BLE001 - torch raises its own InvalidCxxCompiler and others
            return "torch.compile needs a C++ compiler, and none was found"
    return ""


def failure_of(case_id: str, stage: str, error: BaseException) -> Failure:
    """Return what `error`, raised while a case was measured, leaves behind: its cause, text and last frames.

    The innermost line of the user's own code is in the text, and among the frames however deep in torch it ended.
    """
    out_of_memory = is_out_of_memory(error)
    own = tuple(str(Path(ampbench.__file__).parent / part) for part in ("measure", "explain", "instruments"))
    every = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    frames = every[-FRAMES:]
    if (users := own_frames(error)) and users[-1] not in frames:
        frames = [users[-1], *frames[1:]]
    place = "" if out_of_memory or isinstance(error, AmpbenchError) else own_place(error)
    return Failure(
        case_id=case_id,
        stage=stage,
        cause="out of memory" if out_of_memory else "exception",
        message=in_one_line(error) + place,
        frames=[bounded(f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line or ''}") for frame in frames],
    )

"""Requests to replies: the work of one worker process.

A request names the function of its task, which is imported for it and gets a `Work`; this module knows no studies. It
does the tasks of every run itself: environment, description, memory, divergence, round.
"""

import contextlib
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar, get_type_hints

import msgspec
import torch
from msgspec import structs

import ampbench
from ampbench.core.precisions import PRECISIONS
from ampbench.errors import AmpbenchError, UsageError, bounded, in_one_line, own_frames, own_place, written_out
from ampbench.records.case import Case, Environment, ParameterValue, WorkloadSource, compile_mode
from ampbench.records.measured import Divergence, Failure, Late, MemoryPass, Round, Skip
from ampbench.records.wire import DescribeAsked, Description, Nothing, Reply, Request, RoundAsked, answer
from ampbench.trace.modules import is_compiled
from ampbench.worker.data import Rebuilt, weights_digest
from ampbench.worker.distances import count_nonfinite
from ampbench.worker.divergence import References, fp32_products, measure_divergence, measure_late
from ampbench.worker.environment import read_environment, sampler_of
from ampbench.worker.machine import (
    Device,
    NoKernelError,
    open_device,
    precision_flags,
    sdpa_fixed,
    unheeded,
)
from ampbench.worker.memory import is_out_of_memory, keep_freed_memory, measure_memory
from ampbench.worker.network import REFUSING, refuses
from ampbench.worker.sources import build_workload, describe_workload, further_inputs, items_per_step, meet_precisions
from ampbench.worker.step import Step, TrainingStep, build_step
from ampbench.worker.timing import FitnessWatch, Placement, Timing, time_build, time_sustained, warm_up
from ampbench.workload import Workload

FRAMES = 4
"""The number of last frames kept of a failure."""

T = TypeVar("T")


class Worker:
    """Serves requests one after the other, and keeps results of tasks for the next.

    It is `interruptible` where Ctrl-C reaches it, which ends a request; in a worker process nobody can press it.
    """

    def __init__(self, *, interruptible: bool = False) -> None:
        self._interruptible = interruptible
        self.keeps: dict[type, Any] = {}
        self._built: tuple[str, Workload] | None = None

    def serve(self, request: Request) -> Reply:
        """Return the reply to `request`; an error in the workload becomes a failure, one in building it a problem.

        A network that refuses inference mode runs again without gradients. KeyboardInterrupt passes on where the
        worker is `interruptible`.
        """
        if request.threads:
            torch.set_num_threads(request.threads)
        if request.timed:
            keep_freed_memory()
        try:
            try:
                return self._serve(request)
            except RuntimeError as error:
                if request.case is None or self._built is None or not refuses(self._built[1], request.case, error):
                    raise
            return self._serve(request)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and self._interruptible:
                raise
            if isinstance(error, NoKernelError) and request.case is not None:
                return Reply(skip=Skip(case_id=request.case.case_id, reason=str(error)))
            if request.case is not None:
                return Reply(failure=failure_of(request.case.case_id, request.task, error))
            if isinstance(error, UsageError):
                return Reply(problem=in_one_line(error))
            if request.source is not None:
                return Reply(problem=f"workload {request.source.name} cannot be built: {in_one_line(error)}")
            raise

    def workload(self, source: WorkloadSource, parameters: dict[str, ParameterValue], seed: int) -> Workload:
        """Return a workload, built unless it is the last one."""
        key = f"{source} {sorted(parameters.items())} {seed}"
        if self._built is None or self._built[0] != key:
            self._built = None
            self._built = key, build_workload(source, parameters, seed)
        return self._built[1]

    def _serve(self, request: Request) -> Reply:
        do = _function(request)
        work, case = Work(self, request), request.case
        if case is not None:
            if case.precision not in PRECISIONS:
                meet_precisions(work.source)
            if not request.absent:
                _ = work.device  # fail before anything is built
                if reason := cannot_run(case):
                    return Reply(skip=Skip(case_id=case.case_id, reason=reason))
        asked = msgspec.json.decode(request.asked, type=get_type_hints(do)["asked"])
        if case is None:
            return answer(do(work, asked), request)
        if not request.flags:
            with sdpa_fixed(case):
                return answer(do(work, asked), request)
        _ = work.workload  # built before any switch is set
        with precision_flags(PRECISIONS[case.precision]), sdpa_fixed(case):
            return answer(do(work, asked), request)


class Work:
    """The tools of a task: the case and device of a request, the workload, the process's kept results."""

    def __init__(self, worker: Worker, request: Request) -> None:
        self._worker, self._request = worker, request
        self.seed = request.seed

    @property
    def case(self) -> Case:
        """The case of a task that has one."""
        assert self._request.case is not None
        return self._request.case

    @property
    def source(self) -> WorkloadSource:
        """The source of the workload."""
        assert self._request.source is not None
        return self._request.source

    @property
    def device_type(self) -> str:
        """The type of the device, which may be absent: the case's, or the task's own without a case."""
        return self._request.device or self.case.device

    @cached_property
    def device(self) -> Device:
        """The device; `UsageError` where it is absent."""
        return open_device(self.device_type)

    @property
    def workload(self) -> Workload:
        """The case's workload, built once for consecutive requests with the same one."""
        return self.with_batch_size(self.case.batch_size)

    def with_batch_size(self, size: int | None) -> Workload:
        """Return the case's workload on batches of another size (None: it has no such parameter)."""
        return self._worker.workload(self.source, self.parameters(size), self.seed)

    def parameters(self, batch_size: int | None) -> dict[str, ParameterValue]:
        """Return the parameters of the case's workload, with batches of some size."""
        return dict(self.case.parameters) | ({} if batch_size is None else {"batch_size": batch_size})

    @property
    def rebuilt(self) -> Rebuilt:
        """A function that builds the case's workload with a number added to the seed."""
        parameters = self.parameters(self.case.batch_size)
        return lambda more: build_workload(self.source, parameters, self.seed + more)

    @property
    def references(self) -> References:
        """The references of the process: those of the last group of cases."""
        return self.kept(References)

    def forget_references(self) -> None:
        """Drop the references, whose memory would affect the next measurement."""
        self._worker.keeps.pop(References, None)

    def kept(self, kind: type[T]) -> T:
        """Return the kept value of a type from an earlier request, else a new one."""
        keeps = self._worker.keeps
        if kind not in keeps:
            keeps[kind] = kind()
        value: T = keeps[kind]
        return value

    def keep(self, value: object) -> None:
        """Keep a value for the next request, replacing the one of its type."""
        self._worker.keeps[type(value)] = value


def _function(request: Request) -> Callable[[Work, Any], Any]:
    """Return the function of a request's task; `UsageError` where this ampbench has none."""
    module, _, name = request.does.partition(":")
    try:
        function: Callable[[Work, Any], Any] = getattr(import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and not module.startswith(error.name or " "):
            raise
        raise UsageError(f"a worker of this ampbench does not know the task {request.task!r}") from None
    return function


def do_environment(work: Work, asked: Nothing) -> Environment:  # noqa: ARG001 - the signature of a task
    """Do the task "environment"."""
    return read_environment()


def do_rest(work: Work, asked: Nothing) -> Nothing:  # noqa: ARG001 - the signature of a task
    """Do the task "rest"."""
    return asked


def do_describe(work: Work, asked: DescribeAsked) -> Description:
    """Do the task "describe"."""
    return describe_workload(work.source, asked.parameters, work.seed, asked.preset)


def do_memory(work: Work, asked: Nothing) -> MemoryPass | Skip:  # noqa: ARG001 - the signature of a task
    """Do the task "memory"; skip the case where another kernel of attention runs than it fixes."""
    memory_pass = measure_memory(work.workload, work.case, work.device)
    if reason := unheeded(work.case, memory_pass.attention):
        return Skip(case_id=work.case.case_id, reason=reason)
    return memory_pass


class _Fitting(dict[str, int]):
    """The batch size at which the fp64 reference fits into the memory, by the group of cases."""


def do_divergence(work: Work, asked: Nothing) -> Divergence:  # noqa: ARG001 - the signature of a task
    """Do the task "divergence": on a smaller batch where the fp64 reference does not fit into the memory."""
    divergence, note = _on_fitting_batch(work, measure_divergence)
    return structs.replace(divergence, notes=[*divergence.notes, *note])


def do_late(work: Work, asked: Nothing) -> Late:  # noqa: ARG001 - the signature of a task
    """Do the task "late", as "divergence"."""
    late, note = _on_fitting_batch(work, measure_late)
    if late.divergence is None:
        return late
    divergence = structs.replace(late.divergence, notes=[*late.divergence.notes, *note])
    return structs.replace(late, divergence=divergence)


def _on_fitting_batch(work: Work, measure: Callable[..., T]) -> tuple[T, list[str]]:
    """Return what `measure` finds on the largest batch whose reference fits into the memory, with a note on it."""
    case, fitting = work.case, work.kept(_Fitting)
    size = fitting.get(case.group, case.batch_size)
    while True:
        workload = work.with_batch_size(size)
        larger = partial(further_inputs, work.source, work.parameters(size), work.seed)
        try:
            measured = measure(workload, case, work.device, work.references, larger)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        else:
            if size is None or size == case.batch_size:
                return measured, []
            note = f"compared on a batch of {size}: in fp64, {case.batch_size} do not fit into the memory"
            return measured, [note]
        if not size or size == 1:
            smallest = ", not even on a batch of one" if size else ""
            raise torch.OutOfMemoryError(f"the fp64 reference does not fit into the memory{smallest}")
        size = max(1, size // 4)
        fitting[case.group] = size
        work.forget_references()
        work.device.release()


def do_round(work: Work, asked: RoundAsked) -> Round:
    """Do the task "round"."""
    workload, case = work.workload, work.case
    work.forget_references()  # kept results of passes must not affect the times
    timed = work.kept(Timed)
    if timed.workload is not workload or timed.case_id != case.case_id:
        timed = Timed(workload, case.case_id, digest=timed.digest if timed.workload is workload else "")
        work.keep(timed)
    return measure_round(workload, case, asked, work.device, timed)


@dataclass(slots=True)
class Timed:
    """The process's knowledge of the case it timed last, reused in the next round.

    `settled` is GradScaler's settled state, `digest` the digest of the weights; `changed` are the tensors that a step
    changes in place, once one has run; `warm`: an accelerator has been under its load; `on_host`: the saved training
    state found no room beside a step.
    """

    workload: Workload | None = None
    case_id: str = ""
    changed: list[str] | None = None
    settled: dict[str, Any] | None = None
    digest: str = ""
    warm: bool = False
    on_host: bool = False


def measure_round(workload: Workload, case: Case, asked: RoundAsked, device: Device, timed: Timed) -> Round:
    """Return one round of a case: several builds, each at its own place in memory, one after another.

    On a CPU, and in a burst, samples are timed one by one; on an accelerator in windows, with telemetry.
    """
    started = perf_counter()
    placement = Placement(random.Random(asked.placement_seed))
    timings: list[Timing] = []
    compile_seconds: float | None = None
    skipped = nonfinite = 0
    watch = FitnessWatch(device)
    sampler = None if device.type == "cpu" or asked.burst else sampler_of(device.type)

    def build() -> tuple[Step, float | None, Timing]:
        """Return a timed step, the seconds of its compilation, and its times."""
        step = build_step(workload, case, device)
        took = step.prepare_path(case.path)
        if isinstance(step, TrainingStep):
            step.on_host = timed.on_host
        if isinstance(step, TrainingStep) or timed.changed is None:
            timed.settled = warm_up(step, timed.settled)
        timed.changed = step.changed(timed.changed)
        options: dict[str, Any] = {
            "budget_seconds": asked.min_run_seconds / asked.builds,
            "max_samples": asked.max_samples // asked.builds,
            "restore": step.restore if isinstance(step, TrainingStep) or timed.changed else None,
            "apart": bool(timed.changed),
        }
        with step.mode():
            if sampler is None:
                return step, took, time_build(step.run, device, warm=True, **options)
            return step, took, time_sustained(step.run, device, warm=timed.warm, clock_hz=sampler.clock_hz, **options)

    with sampler or contextlib.nullcontext():
        for _ in range(asked.builds):
            placement.move()
            built = None
            try:
                built = build()
            except Exception as error:
                if device.type == "cpu" or timed.on_host or case.phase != "training" or not is_out_of_memory(error):
                    raise
                timed.on_host = True
            if built is None:  # now without the copy on the device
                device.release()
                built = build()
            step, took, timing = built
            compile_seconds = took if compile_seconds is None else compile_seconds
            timed.warm = True
            timings.append(timing)
            if isinstance(step, TrainingStep):
                nonfinite = max(nonfinite, count_nonfinite(step.module.parameters()))
                step.restore()  # counts a step skipped in the last sample
                skipped += step.skipped_steps
            del step, built
            device.release()
    timed.digest = timed.digest or weights_digest(workload)
    telemetry = None if sampler is None else sampler.telemetry([span for timing in timings for span in timing.spans])
    fitness = watch.seen(clocked=telemetry is not None and bool(telemetry.source))
    windows = [timing.windows for timing in timings if timing.windows is not None]
    steady = [timing.steady for timing in timings if timing.steady is not None]
    cpu_samples = [timing.cpu_samples for timing in timings if timing.cpu_samples is not None]
    return Round(
        case_id=case.case_id,
        round=asked.round,
        server=asked.server,
        control=asked.control,
        samples=[timing.samples for timing in timings],
        cpu_samples=cpu_samples if len(cpu_samples) == len(timings) else None,
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
        no_grad=case.phase == "inference" and workload.module in REFUSING,
        fp32_products=fp32_products(case, device),
        fitness=fitness,
        telemetry=telemetry,
        steady=all(steady) if steady else None,
        windows=windows or None,
        burst_seconds=min((row.burst_seconds for row in timings if row.burst_seconds is not None), default=None),
        seconds=perf_counter() - started,
        finished_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


def cannot_run(case: Case) -> str:
    """Return the reason why this installation cannot run `case` by its path, or ""."""
    if compile_mode(case.path) and case.device == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except Exception:  # noqa: BLE001 - torch raises its own InvalidCxxCompiler and others
            return "torch.compile needs a C++ compiler, and none was found"
    return ""


def failure_of(case_id: str, stage: str, error: BaseException) -> Failure:
    """Return the failure record of `error`, raised while a case was measured: its cause, text and last frames.

    The innermost line of the user's own code is in the text, and among the frames however deep in torch it ended.
    """
    out_of_memory = is_out_of_memory(error)
    folders = tuple(str(Path(ampbench.__file__).parent / part) for part in ("worker", "trace", "studies"))
    every = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(folders)]
    frames = every[-FRAMES:]
    if (users := own_frames(error)) and users[-1] not in frames:
        frames = [users[-1], *frames[1:]]
    place = "" if out_of_memory or isinstance(error, AmpbenchError) else own_place(error)
    return Failure(
        case_id=case_id,
        stage=stage,
        cause="out of memory" if out_of_memory else "exception",
        message=in_one_line(error) + place,
        frames=[
            written_out(bounded(f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line or ''}"))
            for frame in frames
        ],
    )

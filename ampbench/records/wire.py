"""What driver and worker say to each other, and how it is written on a line.

What the driver asks of a worker and what comes back, one JSON object a line.

What goes between driver, server and worker: a request or a reply, each one line of JSON.

A line can always be written and always be read: text that UTF-8 does not have is escaped, and a reply that JSON cannot
hold becomes a failure that says what of it. A reply carries the number of its request, so that it is never taken for
the answer to another one.
"""

import hashlib
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, get_args, get_type_hints

import msgspec

from ampbench.errors import bounded, escaped
from ampbench.records.case import Case, Environment, OwnPrecision, ParameterValue, WorkloadSource
from ampbench.records.casts import CastPass, Tracing
from ampbench.records.keeping import SearchSpace, Trial, Weighing
from ampbench.records.kinds import CEILINGS, RULES
from ampbench.records.measured import KILLED, Divergence, Failure, MemoryPass, Round, Skip
from ampbench.records.ranges import OriginPass, RangePass
from ampbench.records.rules import RuleProbe
from ampbench.records.run import KEPT, ScalerSetting
from ampbench.records.studies import Ceiling, ScalerRun, ScopePass, StoragePass, Training

MAX_SAMPLES_PER_ROUND = 200
"""As many raw samples as a round may store."""

ALLOCATOR_TUNABLES = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=1099511627776"
"""With this as GLIBC_TUNABLES a process has the heap that times are measured in by default (docs/statistics.md, "Memory
placement"): freed memory stays in it, so that no step pays for getting it back.

glibc raises its mmap threshold as blocks are freed, up to these 32 MiB (mallopt(3)): it is set there from the start.
The trim threshold keeps the end of the heap from going back to the kernel between two steps."""

SERVER_VARIABLES = {
    "PYTHONUNBUFFERED": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
"""What a server's environment adds, and its workers keep: a crash loses no output, the compiler starts no process pool.
A step sees them, so nothing may stand here that changes what one costs (docs/performance.md has each measured)."""

FORKING_VARIABLES = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""What holds in the server itself, never in a worker: asking whether there is a GPU does not initialise its driver,
which would break every worker forked afterwards. It makes each asking 70 times as long, and a step of Adam asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One piece of work, by its `kind`: "environment", "describe", "memory", "divergence", "round", or to explain:

    "casts", "rules", "ranges", "origin", "space", "trial", "weighing"; to study, as in
    `records.runs.STUDIES`: "convergence", "scaler", "scope", "input-storage", "ceilings".

    `number` tells the requests of a channel apart; a reply carries that of its own.
    `fresh` asks for a newly forked process; otherwise the server's current worker, if one lives, serves it. Limits
    hold for the request: seconds of wall time, resident bytes of the worker.
    With the `heap` "kept", what is timed keeps in the process what it frees, with `keep_flags` torch's switches are the
    user's own (both as in `Settings`).
    `placement_seed` decides where in memory the builds are put, `max_samples` how many samples they give in all.
    "casts" traces a step of the case as `tracing` says. "rules" probes autocast on `device` to each of `dtypes`
    ("float16"), for the `ops` named or, without any, for all. "ranges" watches `steps` fp32 steps of the case (0: one
    for each of its batches) and then a step in each of `precisions`, "origin" the errors of its modules. "space" asks
    which modules could be kept in fp32, "trial" what a step with those of `kept[0]` errs on the `batch` of this number
    (0: the first; from 1 on fresh ones, skipped where there is none) and, with `updates`, what arrives of an
    optimizer's step, "weighing" what a step with each set of `kept`
    costs, measured for about `seconds`. "convergence" trains the case with `seed` for `steps` steps,
    as its own or as another `arm` (see `Training`), its learning rate by a `schedule` ("": the workload's own); a
    worker that is not fresh knows the fp32 and fp64 trainings before it. "scaler" trains it with the scaler `setting`
    (None: in fp32), "scope" in every scope of autocast, for `steps` steps; "input-storage" feeds it inputs stored in
    half; the last two measure for about `seconds`. "ceilings" measures what `device` attains with `operation` in
    `dtypes[0]` for about `seconds`.
    """

    kind: str
    number: int = 0
    source: WorkloadSource | None = None
    case: Case | None = None
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    fresh: bool = True
    timeout_seconds: float = 300.0
    memory_limit_bytes: int | None = None
    threads: int = 0
    seed: int = 0
    heap: str = KEPT
    keep_flags: bool = False
    placement_seed: int = 0
    builds: int = 3
    min_run_seconds: float = 0.3
    max_samples: int = MAX_SAMPLES_PER_ROUND
    round: int = 0
    server: int = 0
    control: bool = False
    device: str = ""
    dtypes: list[str] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    tracing: Tracing = field(default_factory=Tracing)
    steps: int = 0
    precisions: list[str] = field(default_factory=list)
    kept: list[list[str]] = field(default_factory=list)
    batch: int = 0
    updates: bool = False
    seconds: float = 0.0
    arm: str = ""
    schedule: str = ""
    setting: ScalerSetting | None = None
    operation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a workload is once built: its settable parameters with their defaults, and what it gives.

    `elsewhere` and `switches` are those of its `WorkloadSource`; `precisions` are the user's own in its file. Of an
    entry point of `precisions.ENTRY_POINTS`, asked for as a source of the family "precision", they are all.
    """

    parameters: dict[str, ParameterValue]
    has_loss: bool
    items_per_step: float
    version: int
    channels_last: bool
    elsewhere: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    precisions: tuple[OwnPrecision, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to the request of this `number`: exactly one other field is set.

    `problem` is what the user gave and cannot be used: a workload that breaks its contract, an op that is not known.
    """

    number: int = 0
    environment: Environment | None = None
    description: Description | None = None
    problem: str | None = None
    round: Round | None = None
    memory: MemoryPass | None = None
    divergence: Divergence | None = None
    casts: CastPass | None = None
    rules: RuleProbe | None = None
    ranges: RangePass | None = None
    origin: OriginPass | None = None
    space: SearchSpace | None = None
    trial: Trial | None = None
    weighing: Weighing | None = None
    convergence: Training | None = None
    scaler: ScalerRun | None = None
    scope: ScopePass | None = None
    input_storage: StoragePass | None = None
    ceilings: Ceiling | None = None
    failure: Failure | None = None
    skip: Skip | None = None


READY = "ready"
"""The first word of every server that is ready, of whatever version."""
_NOT_FINITE = re.compile(r"got `null` - at `\$\.(?P<field>.+)`")


def ready_line() -> bytes:
    """Return what a server says first: the digest of all names in requests and replies.

    A server of another version of ampbench, which would pass over what it does not know, says another one.
    """
    kinds: list[type] = [Request, Reply]
    names = []
    for kind in kinds:
        for name, hint in get_type_hints(kind).items():
            names.append(f"{kind.__name__}.{name}")
            kinds += (each for each in _records_in(hint) if each not in kinds)
    digest = hashlib.blake2b(" ".join(sorted(names)).encode(), digest_size=8).hexdigest()
    return f"{READY} {digest}\n".encode()


def _records_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for argument in get_args(hint):
        yield from _records_in(argument)


def request_line(request: Request) -> bytes:
    """Return `request` as one line, newline included."""
    return _line(request)


def reply_line(reply: Reply, request: Request) -> bytes:
    """Return `reply` to `request` as one line, newline included, that `read_reply` reads."""
    try:
        line = _line(replace(reply, number=request.number))
        read_reply(line)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        found = _NOT_FINITE.search(str(error))
        what = f"{found['field']} is not a finite number" if found else " ".join(str(error).split())
        message = f"what was measured cannot be stored: {what}"
        return _line(replace(end_reply(request, "exception", message), number=request.number))
    return line


def read_request(line: bytes) -> Request:
    """Return the request in a line."""
    return msgspec.json.decode(line, type=Request)


def read_reply(line: bytes) -> Reply:
    """Return the reply in a line; `msgspec.MsgspecError` where there is none."""
    return msgspec.json.decode(line, type=Reply)


def end_reply(request: Request, cause: str, message: str, lines: Sequence[str] = ()) -> Reply:
    """Return what to say of a request whose worker ended without a reply of its own, and had written `lines` last."""
    if request.case is None and request.kind not in (RULES, CEILINGS):
        what = f"workload {request.source.name} cannot be built" if request.source else "the environment cannot be read"
        return Reply(problem=bounded(f"{what}: {cause}: {message}{' | ' + lines[-1] if lines else ''}"))
    case_id = "" if request.case is None else request.case.case_id
    return Reply(
        failure=Failure(case_id=case_id, stage=request.kind, cause=cause, message=bounded(message), frames=list(lines))
    )


def way_ended(code: int) -> str:
    """Say how a process ended by its exit code, which is minus a signal's number where one ended it."""
    if code >= 0:
        return f"ended with status {code}"
    names = {known.value: known.name for known in signal.Signals}
    return f"ended by signal {names.get(-code, -code)}"


def was_killed(reply: Reply) -> bool:
    """Return whether a worker or its server was killed before it could reply."""
    return reply.failure is not None and reply.failure.cause == KILLED


def _line(message: Any) -> bytes:
    try:
        return msgspec.json.encode(message) + b"\n"
    except UnicodeEncodeError:
        return msgspec.json.encode(escaped(msgspec.to_builtins(message))) + b"\n"

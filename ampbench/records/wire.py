"""The protocol of driver and worker: tasks, and requests and replies of one line of JSON each.

A request names a `Task` and its case or device; question and result are records of the task's types, as raw JSON. Text
outside UTF-8 is escaped, and a record that JSON cannot hold becomes a failure. A reply has the number of its request.
"""

import hashlib
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from ampbench import __version__
from ampbench.errors import bounded, escaped
from ampbench.records.case import Case, Environment, OwnPrecision, ParameterValue, WorkloadSource
from ampbench.records.kinds import KINDS, named
from ampbench.records.measured import KILLED, Divergence, Failure, Late, MemoryPass, Round, Skip

MAX_SAMPLES_PER_ROUND = 200
"""The raw samples that a round may store."""

SERVER_VARIABLES = {
    "PYTHONUNBUFFERED": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
"""The variables that a server sets for itself and its workers: a crash loses no output, the compiler starts no process
pool. They must not change the cost of a step."""

FORKING_VARIABLES = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""The variables of the server alone: a query for a GPU then does not initialise its driver, which would break later
forked workers. Steps of Adam query too, and would take 70 times as long with this variable."""


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of work; `ask` makes it of a task.

    `does`, `absent` and `flags` come from the task. It concerns a `case`, a `device` type, or the worker itself.
    `asked` is a record of the task's type `asked`. `fresh` demands a newly forked process; otherwise the server's
    living worker serves it. Limits are seconds of wall time and resident bytes of the worker. `timed` processes keep
    the memory that they free.
    """

    task: str
    does: str
    number: int = 0
    source: WorkloadSource | None = None
    case: Case | None = None
    device: str = ""
    fresh: bool = True
    timeout_seconds: float = 300.0
    memory_limit_bytes: int | None = None
    threads: int = 0
    seed: int = 0
    timed: bool = True
    absent: bool = False
    flags: bool = False
    asked: msgspec.Raw


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to the request with this `number`: one of `found`, `failure`, `skip` and `problem` is set.

    `found` is a record of the task's type `gives`. `problem` is a mistake of the user: a workload that breaks its
    contract, an unknown op; or the end of a worker that was asked for no case, perhaps `killed`.
    """

    number: int = 0
    found: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None
    skip: Skip | None = None
    problem: str | None = None
    killed: bool = False


A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Task(Generic[A, R]):
    """A task of workers; its `name` is the `stage` of its failures.

    `asked` and `gives` are the types of its question and its result. `does` names its function, as "module:function",
    which the worker imports: it gets a `worker.worker.Work` and the question, and returns the result or a `Skip`. A
    process that is not `timed` has the plain heap. The device of its case must be present and able to run it, unless it
    may be `absent`; with `flags` torch's switches follow the case's precision throughout.
    """

    name: str
    asked: type[A]
    gives: type[R]
    does: str
    timed: bool = True
    absent: bool = False
    flags: bool = False

    def found(self, reply: Reply) -> R | None:
        """Return the result in a reply, None if there is none."""
        return msgspec.json.decode(reply.found, type=self.gives | None)

    def outcome(self, reply: Reply, case: Case | None) -> R | Failure | Skip:
        """Return the result, or the failure or skip of a reply; a reply without any of them is a failure."""
        outcome = self.found(reply) or reply.skip or reply.failure
        if outcome is not None:
            return outcome
        why = reply.problem or "the worker gave no result"
        return Failure(case_id=case.case_id if case else "", stage=self.name, cause="exception", message=why)


def ask(task: Task[A, Any], asked: A, **fields: Any) -> Request:
    """Return the request for a task; `fields` are further ones: the case or the device, limits, seed."""
    traits = {name: getattr(task, name) for name in ("does", "timed", "absent", "flags")}
    return Request(task=task.name, asked=_packed(asked), **traits, **fields)


def reply_with(record: Any) -> Reply:
    """Return the reply with a record; raises what `answer` catches."""
    return Reply(found=_packed(record))


def answer(outcome: Any, request: Request) -> Reply:
    """Return the reply to `request` with a `Skip` or a record, or with a failure if JSON cannot hold the record."""
    if isinstance(outcome, Skip):
        return Reply(skip=outcome)
    try:
        reply = reply_with(outcome)
        msgspec.json.decode(reply.found, type=type(outcome))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        place = _NOT_FINITE.search(str(error))
        problem = f"{request.task}.{place['field']} is not a finite number" if place else " ".join(str(error).split())
        return end_reply(request, "exception", f"the measurement cannot be stored: {problem}")
    return reply


class NamedNetwork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A network of a library: its name there, its task, and its parameters (None: slow to find out)."""

    name: str
    task: str
    parameters: dict[str, ParameterValue] | None = None


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The properties of a built workload, and its settable parameters with their defaults.

    `optimizer_settings` are of the user's own optimizer (empty: none is named), `elsewhere`, `switches` and `loaded` as
    in `WorkloadSource`; `precisions` are the user's own, in its file.
    A library's network is not built for it; `unavailable` is why it cannot be measured here, if known. A pattern has
    only `networks`, the matching ones.
    """

    parameters: dict[str, ParameterValue] = {}
    has_loss: bool = False
    items_per_step: float = 0.0
    version: int = 0
    channels_last: bool = False
    own_step: bool = False
    optimizer_settings: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    precisions: tuple[OwnPrecision, ...] = ()
    unavailable: str = ""
    networks: tuple[NamedNetwork, ...] = ()


class Nothing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """An empty question."""


class DescribeAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A workload built with `parameters`, all others at their defaults, or a library's by its `preset`."""

    parameters: dict[str, ParameterValue] = {}
    preset: str = ""


class RoundAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One round: `round`, `server` and `control` as in `Round`.

    `placement_seed` decides the place in memory of the `builds`, which are timed for about `min_run_seconds` and give
    at most `max_samples` samples in all. With `burst` an accelerator is timed like a CPU.
    """

    placement_seed: int = 0
    builds: int = 3
    min_run_seconds: float = 0.3
    max_samples: int = MAX_SAMPLES_PER_ROUND
    round: int = 0
    server: int = 0
    control: bool = False
    burst: bool = False


ENVIRONMENT = Task("environment", Nothing, Environment, "ampbench.worker.worker:do_environment", timed=False)
"""The machine and the installation."""
REST = Task("rest", Nothing, Nothing, "ampbench.worker.worker:do_rest", timed=False)
"""No work: the answer of a fresh worker shows that the previous worker has ended and freed its accelerator."""
DESCRIBE = Task("describe", DescribeAsked, Description, "ampbench.worker.worker:do_describe", timed=False)
"""Build the workload of the request's source and describe it."""
MEMORY = Task("memory", Nothing, MemoryPass, "ampbench.worker.worker:do_memory", timed=False, flags=True)
DIVERGENCE = Task("divergence", Nothing, Divergence, "ampbench.worker.worker:do_divergence", timed=False)
LATE = Task("late", Nothing, Late, "ampbench.worker.worker:do_late", timed=False)
"""The divergence again, late in training."""
ROUND = Task("round", RoundAsked, Round, "ampbench.worker.worker:do_round", flags=True)


MARK = "AMPBENCH_SERVER"
"""The environment variable that marks all descendants of a server."""
READY = "ready"
"""The first word of every ready server, of any version."""
_NOT_FINITE = re.compile(r"got `null` - at `\$\.(?P<field>.+)`")


def travelling() -> list[type]:
    """Return the types of records in requests and replies of core tasks and of every kind of run."""
    core = [
        record
        for task in (ENVIRONMENT, DESCRIBE, MEMORY, DIVERGENCE, LATE, ROUND)
        for record in (task.asked, task.gives)
    ]
    studied = [named(place) for row in KINDS.values() for place in (*(lines.record for lines in row.lines), *row.asks)]
    tasks = (named(row.study).task for row in KINDS.values())
    return [*core, *studied, *(task.asked for task in tasks if task is not None)]


def ready_line() -> bytes:
    """Return the first line of a server: the digest of the types in requests and replies, and its version.

    A server of another ampbench, which would misread a request, has another line.
    """
    schemas = msgspec.json.schema_components([Case, WorkloadSource, Failure, Skip, *travelling()])
    fields = Request.__struct_fields__, Reply.__struct_fields__
    digest = hashlib.blake2b(repr((fields, schemas)).encode(), digest_size=8).hexdigest()
    return f"{READY} {digest} {__version__}\n".encode()


def request_line(request: Request) -> bytes:
    """Return `request` as one line, newline included."""
    return _line(request)


def reply_line(reply: Reply, request: Request) -> bytes:
    """Return `reply` to `request` as one line, newline included."""
    return _line(msgspec.structs.replace(reply, number=request.number))


def read_request(line: bytes) -> Request:
    """Return the request in a line."""
    return msgspec.json.decode(line, type=Request)


def read_reply(line: bytes) -> Reply:
    """Return the reply in a line; `msgspec.MsgspecError` for an invalid one."""
    return msgspec.json.decode(line, type=Reply)


def end_reply(request: Request, cause: str, message: str, lines: Sequence[str] = ()) -> Reply:
    """Return the reply to a request whose worker ended without one; `lines` are the last it wrote."""
    if request.case is None and not request.device:
        subject = (
            f"workload {request.source.name} cannot be built" if request.source else "the environment cannot be read"
        )
        problem = bounded(f"{subject}: {cause}: {message}{' | ' + lines[-1] if lines else ''}")
        return Reply(problem=problem, killed=cause == KILLED)
    case_id = "" if request.case is None else request.case.case_id
    return Reply(
        failure=Failure(case_id=case_id, stage=request.task, cause=cause, message=bounded(message), frames=list(lines))
    )


def way_ended(code: int) -> str:
    """Return how a process ended, given its exit code, or minus the number of the signal that ended it."""
    if code >= 0:
        return f"ended with status {code}"
    names = {known.value: known.name for known in signal.Signals}
    return f"ended by signal {names.get(-code, -code)}"


def was_killed(reply: Reply) -> bool:
    """Return whether a worker or its server was killed before it could reply."""
    return reply.killed or (reply.failure is not None and reply.failure.cause == KILLED)


def _packed(record: Any) -> msgspec.Raw:
    return msgspec.Raw(_json(record))


def _line(message: Request | Reply) -> bytes:
    return _json(message) + b"\n"


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(escaped(msgspec.to_builtins(value, enc_hook=msgspec.json.decode)))

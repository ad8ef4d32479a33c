"""What driver and worker say to each other, and how it is written on a line.

A `Task` is what a worker can be asked to do: its row says what is asked, what comes of it and which function does it.
A request names a task and the case, or the device, that it is of; a reply has what was found. Neither knows what that
is: they hold it as JSON, which whoever asked, and whoever does it, read by the types of the task. Each is one line.

A line can always be written and always be read: text that UTF-8 does not have is escaped, and a record that JSON cannot
hold becomes a failure that says what of it. A reply carries the number of its request, so that it is never taken for
the answer to another one.
"""

import hashlib
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args, get_type_hints

import msgspec

from ampbench import __version__
from ampbench.errors import bounded, escaped
from ampbench.records.case import Case, Environment, OwnPrecision, ParameterValue, WorkloadSource
from ampbench.records.kinds import KINDS, named
from ampbench.records.measured import KILLED, Divergence, Failure, MemoryPass, Round, Skip

MAX_SAMPLES_PER_ROUND = 200
"""As many raw samples as a round may store."""

SERVER_VARIABLES = {
    "PYTHONUNBUFFERED": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
"""What a server's environment adds, and its workers keep: a crash loses no output, the compiler starts no process pool.
A step sees them, so nothing may stand here that changes what one costs (docs/performance.md has each measured)."""

FORKING_VARIABLES = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""What holds in the server itself, never in a worker: asking whether there is a GPU does not initialise its driver,
which would break every worker forked afterwards. It makes each asking 70 times as long, and a step of Adam asks."""


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of work; `ask` makes it of a row.

    `task` is the name of a `Task`, `does`, `absent` and `flags` are its own. It is of a `case`, of a `device` (a type)
    or else of what the worker itself is and can build. `asked` is a record of the task's type `asked`, as JSON.
    `number` tells the requests of a channel apart; a reply carries that of its own.
    `fresh` asks for a newly forked process; otherwise the server's current worker, if one lives, serves it. Limits
    hold for the request: seconds of wall time, resident bytes of the worker.
    What is `timed` keeps in the process what it frees; with `keep_flags` torch's switches are the user's own (as in
    `Settings`).
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
    keep_flags: bool = False
    absent: bool = False
    flags: bool = False
    asked: msgspec.Raw


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to the request of this `number`: exactly one other field is set.

    `found` is a record of the task's type `gives`, as JSON; `Task.found` reads it. `problem` is what the user gave and
    cannot be used: a workload that breaks its contract, an op that is not known.
    """

    number: int = 0
    found: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None
    skip: Skip | None = None
    problem: str | None = None


A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Task(Generic[A, R]):
    """What a worker can be asked to do; its `name` is the `stage` of what fails in it.

    `asked` is the type of what it is asked beside the case, `gives` that of what it finds. `does` names the function
    that does it, as "module:function", which the worker imports: it gets a `worker.worker.Work` and what is asked,
    and returns what it found or a `Skip`. Where nothing is `timed`, the process has the plain heap of a user's own.
    Of a case, its device must be there, and be able to run it, unless it may be `absent`; with `flags` torch's switches
    are those of the case's precision from beginning to end (else whoever does it sets them, or they do not matter).
    """

    name: str
    asked: type[A]
    gives: type[R]
    does: str
    timed: bool = True
    absent: bool = False
    flags: bool = False

    def found(self, reply: Reply) -> R | None:
        """Return what was found, None where a reply says why nothing was."""
        return msgspec.json.decode(reply.found, type=self.gives | None)

    def asked_in(self, request: Request) -> A:
        """Return what a request asks for."""
        return msgspec.json.decode(request.asked, type=self.asked)

    def outcome(self, reply: Reply, case: Case) -> R | Failure | Skip:
        """Return what became of a case: what was found or how it ended without, as the reply says.

        A reply that says nothing broke the protocol, which is a failure, too.
        """
        found = self.found(reply) or reply.skip or reply.failure
        if found is not None:
            return found
        why = reply.problem or "the worker gave no result"
        return Failure(case_id=case.case_id, stage=self.name, cause="exception", message=why)


def ask(task: Task[A, Any], asked: A, **given: Any) -> Request:
    """Return the request for a task; `given` are further fields of it: the case or the device, limits, seed."""
    own = {name: getattr(task, name) for name in ("does", "timed", "absent", "flags")}
    return Request(task=task.name, asked=_packed(asked), **own, **given)


def reply_with(found: Any) -> Reply:
    """Return the reply that has a record; raises what `answer` catches."""
    return Reply(found=_packed(found))


def answer(found: Any, request: Request) -> Reply:
    """Return the reply to `request` with what was found: a `Skip`, or a record that can be read as it was.

    Where JSON cannot hold it, the reply says so.
    """
    if isinstance(found, Skip):
        return Reply(skip=found)
    try:
        reply = reply_with(found)
        msgspec.json.decode(reply.found, type=type(found))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        place = _NOT_FINITE.search(str(error))
        what = f"{request.task}.{place['field']} is not a finite number" if place else " ".join(str(error).split())
        return end_reply(request, "exception", f"what was measured cannot be stored: {what}")
    return reply


class NamedNetwork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A network of a library: its name there, what it does, and its parameters (None: they take long to find out)."""

    name: str
    task: str
    parameters: dict[str, ParameterValue] | None = None


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a workload is once built: its settable parameters with their defaults, and what it gives.

    `optimizer_settings` are those of the user's own optimizer (none: no optimizer is named), `elsewhere`, `switches`
    and `loaded` are those of its `WorkloadSource`; `precisions` are the user's own in its file. Of an entry point of
    `precisions.ENTRY_POINTS`, asked for as a source of the family "precision", they are all. A library's
    network is not built for that; `unavailable` is why it cannot be measured here, if that is known. Where what was
    asked for is a pattern, `networks` are those it names, which is all.
    """

    parameters: dict[str, ParameterValue]
    has_loss: bool
    items_per_step: float
    version: int
    channels_last: bool
    own_step: bool = False
    optimizer_settings: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    precisions: tuple[OwnPrecision, ...] = ()
    unavailable: str = ""
    networks: tuple[NamedNetwork, ...] = ()


class Nothing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What is asked of a case, or of the worker itself, where that is all."""


class DescribeAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A workload built with `parameters`, all others as they are by default, or a library's by its `preset`."""

    parameters: dict[str, ParameterValue] = {}
    preset: str = ""


class RoundAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One round: `round`, `server` and `control` as in `Round`.

    `placement_seed` decides where in memory the `builds` are put, which are timed for about `min_run_seconds` and give
    `max_samples` samples in all. With `burst` an accelerator is timed as a CPU is.
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
"""What this machine and installation are."""
REST = Task("rest", Nothing, Nothing, "ampbench.worker.worker:do_rest", timed=False)
"""Nothing. Asked of a fresh worker, as it is, the one before is gone, and with it what it held of an accelerator."""
DESCRIBE = Task("describe", DescribeAsked, Description, "ampbench.worker.worker:do_describe", timed=False)
"""What the workload of the request's source is once built."""
MEMORY = Task("memory", Nothing, MemoryPass, "ampbench.worker.worker:do_memory", timed=False, flags=True)
DIVERGENCE = Task("divergence", Nothing, Divergence, "ampbench.worker.worker:do_divergence", timed=False)
ROUND = Task("round", RoundAsked, Round, "ampbench.worker.worker:do_round", flags=True)


READY = "ready"
"""The first word of every server that is ready, of whatever version."""
_NOT_FINITE = re.compile(r"got `null` - at `\$\.(?P<field>.+)`")


def travelling() -> list[type]:
    """Return the records that requests and replies may hold, those of core tasks and of every kind of run."""
    core = [each for task in (ENVIRONMENT, DESCRIBE, MEMORY, DIVERGENCE, ROUND) for each in (task.asked, task.gives)]
    rows = KINDS.values()
    return [*core, *(named(place) for row in rows for place in (*(each.record for each in row.lines), *row.asks))]


def ready_line() -> bytes:
    """Return what a server says first: the digest of all names in requests and replies, and its ampbench's version.

    The names are those of the records that they hold, too. A server of another ampbench, which would pass over what it
    does not know, or do another thing by the same name, says something else.
    """
    kinds: list[type] = [Request, Reply, *travelling()]
    names = set()
    for kind in kinds:
        for name, hint in get_type_hints(kind).items():
            names.add(f"{kind.__name__}.{name}")
            kinds += (each for each in _records_in(hint) if each not in kinds)
    digest = hashlib.blake2b(" ".join(sorted(names)).encode(), digest_size=8).hexdigest()
    return f"{READY} {digest} {__version__}\n".encode()


def _records_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for argument in get_args(hint):
        yield from _records_in(argument)


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
    """Return the reply in a line; `msgspec.MsgspecError` where there is none."""
    return msgspec.json.decode(line, type=Reply)


def end_reply(request: Request, cause: str, message: str, lines: Sequence[str] = ()) -> Reply:
    """Return what to say of a request whose worker ended without a reply of its own, and had written `lines` last."""
    if request.case is None and not request.device:
        what = f"workload {request.source.name} cannot be built" if request.source else "the environment cannot be read"
        return Reply(problem=bounded(f"{what}: {cause}: {message}{' | ' + lines[-1] if lines else ''}"))
    case_id = "" if request.case is None else request.case.case_id
    return Reply(
        failure=Failure(case_id=case_id, stage=request.task, cause=cause, message=bounded(message), frames=list(lines))
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


def _packed(record: Any) -> msgspec.Raw:
    return msgspec.Raw(_json(record))


def _line(message: Request | Reply) -> bytes:
    return _json(message) + b"\n"


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(escaped(msgspec.to_builtins(value, enc_hook=msgspec.json.decode)))

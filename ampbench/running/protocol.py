"""What goes between driver, server and worker: a request or a reply, each one line of JSON.

A line can always be written and always be read: text that UTF-8 does not have is escaped, and a reply that JSON cannot
hold becomes a failure that says what of it. A reply carries the number of its request, so that it is never taken for
the answer to another one.
"""

import hashlib
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, get_args, get_type_hints

import msgspec

from ampbench.errors import bounded, escaped
from ampbench.records.measurements import KILLED, Failure
from ampbench.records.requests import Reply, Request
from ampbench.records.runs import CEILINGS, RULES

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

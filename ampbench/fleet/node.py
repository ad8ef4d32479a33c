"""What runs on a node of a fleet: the session of a local run, which is told its cases and says its entries on a pipe.

`python -m ampbench.fleet.node` reads an `Order` and then pieces of `Work`, a line of JSON each, and writes the lines of
a run file: first the header that a run of the order has here, then the entries of each piece as they become known. A
line that is none of a run's (`Done`) ends each part. When its reader or its writer goes away, so does it.
"""

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO

import msgspec

from ampbench.drive import session
from ampbench.drive.rounds import TurnKey, digest_of, drive, make_schedule
from ampbench.errors import AmpbenchError, NothingToRunError, in_one_line
from ampbench.records.run import Entry, Selection, Settings
from ampbench.records.wire import ready_line
from ampbench.store import CannotBeError, lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a fleet measures; `ready` is what a server of its driver's ampbench says first."""

    ready: str
    selection: Selection
    settings: Settings
    label: str = ""
    command: list[str] = field(default_factory=list)
    commit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What to do next: tell the plan, or measure some `cases` of it, by their ids.

    Turns that are `done` are left out. Servers are numbered from `first_server`.
    """

    plan: bool = False
    cases: list[str] = field(default_factory=list)
    done: list[TurnKey] = field(default_factory=list)
    first_server: int = 0


class Done(msgspec.Struct, frozen=True, kw_only=True, tag_field="node", tag="done"):
    """How a part ended: as a session does ("complete"), or why it could not be begun or finished (`problem`).

    Of the first part, `plan` is the digest of the plan.
    """

    ended: str = ""
    problem: str = ""
    plan: str = ""


DONE = b'{"node":"done"'
"""How the line begins that ends each part."""
OTHER_AMPBENCH = "it has another ampbench than the driver, whose versions must be the same"


def done_in(line: bytes) -> Done | None:
    """Return how a part ended, None where the line is one of a run file."""
    return msgspec.json.decode(line, type=Done) if line.startswith(DONE) else None


def main() -> int:
    """Serve an order from stdin to stdout."""
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.default_int_handler)
    asked = _lines_of(sys.stdin.buffer)
    try:
        _serve(asked, out)
    except (KeyboardInterrupt, BrokenPipeError):
        return 1
    return 0


def _lines_of(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of `stream` as they come, and end this process once it ends, whatever is being done."""
    found: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in stream:
            found.put(line)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield found.get()


def _serve(asked: Iterator[bytes], out: IO[bytes]) -> None:
    """Say what a run of the order begins with; then do the work that is asked for, piece after piece."""

    def say(*entries: Entry) -> None:
        out.write(b"".join(map(checked_line, entries)))
        out.flush()

    def end(**how: str) -> None:
        out.write(msgspec.json.encode(Done(**how)) + b"\n")
        out.flush()

    first = next(asked)
    try:
        order = msgspec.json.decode(first, type=Order)
    except msgspec.MsgspecError:
        return end(problem=OTHER_AMPBENCH)
    if order.ready != ready_line().decode():
        return end(problem=OTHER_AMPBENCH)
    try:
        with session.prepare(order.selection, order.settings) as prepared:
            session.require_work(prepared)
            header = session.new_header(
                prepared.selection, prepared.settings, prepared.environment, prepared.plan, order.label, order.command,
                commit=order.commit,
            )  # fmt: skip
            say(header)
            end(ended="complete", plan=digest_of(prepared.plan))
            for line in asked:
                work = msgspec.json.decode(line, type=Work)
                if work.plan:
                    say(*(planned.case for planned in prepared.plan), *session.planned_skips(prepared.plan))
                    end(ended="complete")
                else:
                    end(**_worked(prepared, work, say))
    except AmpbenchError as error:
        return end(problem=in_one_line(error))


def _worked(prepared: session.Scheduled, work: Work, say: Callable[[Entry], None]) -> dict[str, str]:
    """Do a piece of work, every entry told by `say`; return how it ended."""
    wanted = set(work.cases)
    plan = [planned for planned in prepared.plan if planned.case.case_id in wanted]
    schedule = make_schedule(plan, prepared.settings, frozenset(work.done))
    open_channel, first = prepared.open_channel, work.first_server
    try:
        drive(schedule, prepared.settings, open_channel, say, lambda _: None, first_server=first)
    except NothingToRunError as error:
        return {"problem": in_one_line(error)}
    return {"ended": "complete"}


def checked_line(record: Entry) -> bytes:
    """Return the line of a record, sure to be readable again; raises `CannotBeError` where it would not be."""
    line = lines.encode(record)
    try:
        lines.decode(line)
    except lines.LineError as error:
        told = f"cannot tell of a {type(record).__name__}: {error}"
        raise CannotBeError(told, str(error), lines.line_of(type(record))) from None
    return line


if __name__ == "__main__":
    sys.exit(main())

"""The process of a lane on its node: the session of a local run, with cases on stdin and entries on stdout.

`python -m ampbench.drive.fleet_node` reads an `Order` and then pieces of `Work`, a line of JSON each, and writes the
lines of a run file: first header, cases and skips of a run of the order on this node, then the entries of each piece as
they are measured. A `Done` line ends each part. The process ends with its reader or its writer.
"""

import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

import msgspec

from ampbench.drive import session
from ampbench.drive.rounds import TurnKey, drive, make_schedule
from ampbench.errors import AmpbenchError, in_one_line
from ampbench.records.run import Entry, Selection, Settings
from ampbench.records.wire import ready_line
from ampbench.store import CannotBeError, lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A fleet's order of measurements; `ready` is the first line of a server of its driver's ampbench."""

    ready: str
    selection: Selection
    settings: Settings
    label: str = ""
    command: list[str] = field(default_factory=list)
    commit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The ids of the next `cases`; turns that are `done` are left out, servers are numbered from `first_server`."""

    cases: list[str] = field(default_factory=list)
    done: list[TurnKey] = field(default_factory=list)
    first_server: int = 0


class Done(msgspec.Struct, frozen=True, kw_only=True, tag_field="node", tag="done"):
    """The end of a part; `problem` is the reason why it could not begin or finish."""

    problem: str = ""

    @property
    def line(self) -> bytes:
        """The line that ends the part; it begins with `DONE`."""
        return msgspec.json.encode(self) + b"\n"


DONE = b'{"node":"done"'
OTHER_AMPBENCH = "it has another ampbench than the driver, whose versions must be the same"


def done_in(line: bytes) -> Done | None:
    """Return the end of a part, None for a line of a run file."""
    return msgspec.json.decode(line, type=Done) if line.startswith(DONE) else None


def main() -> int:
    """Serve an order from stdin to stdout."""
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        problem = _serve(_lines_of(sys.stdin.buffer), out)
        out.write(Done(problem=problem).line)
        out.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        return 1
    return 0


def _lines_of(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of `stream` as they come, and end this process with it, even during work."""
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in stream:
            waiting.put(line)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield waiting.get()


def _serve(asked: Iterator[bytes], out: IO[bytes]) -> str:
    """Write the plan of an order, then do each piece of work; return the reason for stopping."""

    def write(*entries: Entry, end: bytes = b"") -> None:
        out.write(b"".join(map(checked_line, entries)) + end)
        out.flush()

    try:
        order = msgspec.json.decode(next(asked), type=Order)
    except msgspec.MsgspecError:
        return OTHER_AMPBENCH
    if order.ready != ready_line().decode():
        return OTHER_AMPBENCH
    try:
        with session.prepare(order.selection, order.settings) as prepared:
            session.require_work(prepared)
            header = session.new_header(
                prepared.selection, prepared.settings, prepared.environment, prepared.plan, order.label, order.command,
                commit=order.commit,
            )  # fmt: skip
            cases = [planned.case for planned in prepared.plan]
            write(header, *cases, *session.planned_skips(prepared.plan), end=Done().line)
            for line in asked:
                work = msgspec.json.decode(line, type=Work)
                plan = [planned for planned in prepared.plan if planned.case.case_id in work.cases]
                schedule = make_schedule(plan, prepared.settings, frozenset(work.done))
                drive(
                    schedule, prepared.settings, prepared.open_channel, write, lambda _: None,
                    first_server=work.first_server,
                )  # fmt: skip
                write(end=Done().line)
    except AmpbenchError as error:
        return in_one_line(error)
    return ""


def checked_line(record: Entry) -> bytes:
    """Return the line of a record after reading it back; raises `CannotBeError` where that fails."""
    line = lines.encode(record)
    try:
        lines.decode(line)
    except lines.LineError as error:
        message = f"a {type(record).__name__} cannot be sent: {error}"
        raise CannotBeError(message, str(error), lines.line_of(type(record))) from None
    return line


if __name__ == "__main__":
    sys.exit(main())

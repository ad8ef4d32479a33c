"""A server: imports torch once, forks workers, and enforces their limits.

It reads requests as JSON lines from its standard input and writes replies to its standard output, one at a time, until
its input ends. A forked worker serves a request: a fresh one, or the current one where the request allows it. A worker
that fails, crashes or exceeds a limit ends after its reply. The server itself never touches an accelerator, so that its
workers can.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from ampbench.core.units import counted, format_bytes
from ampbench.records.measured import KILLED
from ampbench.records.wire import (
    FORKING_VARIABLES,
    Reply,
    Request,
    end_reply,
    read_reply,
    read_request,
    ready_line,
    reply_line,
    request_line,
    way_ended,
)

POLL_SECONDS = 0.05
"""The interval of checks on a worker's limits: short enough that it cannot fill the memory in between."""
CHILDREN_SECONDS = 0.25
"""The interval of checks that include a worker's children, which take longer."""
ENDING_SECONDS = 2.0
"""The time that a process has to be gone after it closed its connection or was killed."""
OUTPUT_BYTES = 1 << 20
"""The size at which the file of a worker's output is cut."""
LAST_BYTES = 4096
LAST_LINES = 4
FROM_OUTSIDE = (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
"""Signals of a scheduler, a closed terminal, the kernel out of memory: the case is not to blame."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class WorkerProcess:
    """A forked worker: its pid, the socket to it, and the file of its output.

    `variables` are restored in its environment (None: removed).
    """

    def __init__(self, private_descriptors: Iterable[int], variables: Mapping[str, str | None]) -> None:
        # in append mode, output after a cut is written to the beginning
        self._output: IO[bytes] = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - lives as long as the worker
        self._cut_bytes, self._cut_end = 0, b""
        self._received = bytearray()
        self._status: int | None = None
        server = os.getpid()
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            for descriptor in private_descriptors:
                os.close(descriptor)  # so that they close with the server, even if a worker's process remains
            set_variables(variables)
            _become_worker(theirs, self._output, server)
        theirs.close()
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)  # the worker does so, too: the first of the two counts
        self.socket = ours

    def receive(self) -> bytes | None:
        """Return the next whole line, None while it is incomplete, b"" at the end."""
        try:
            chunk = self.socket.recv(1 << 20)
        except OSError:  # killed before it read a request
            return b""
        self._received += chunk
        line, newline, remainder = self._received.partition(b"\n")
        if not newline:
            return None if chunk else b""
        self._received = remainder
        return bytes(line)

    def has_ended(self) -> bool:
        """Return whether the process is gone, even if a child of it still holds the socket."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def stop(self, grace_seconds: float = 0.0) -> int | None:
        """End the worker and its children; return its wait status, None where it had to be killed.

        It has `grace_seconds` to end by itself.
        """
        deadline = time.monotonic() + grace_seconds
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.001)
        status = self._status
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)  # it may have left its group
            self._status = os.waitpid(self.pid, 0)[1]
        self.socket.close()
        end_descendants()
        return status

    def cut_output(self) -> None:
        """Cut the file of the worker's output where it is long, and keep its end."""
        size = os.fstat(self._output.fileno()).st_size
        if size > OUTPUT_BYTES:
            self._cut_end = os.pread(self._output.fileno(), LAST_BYTES, size - LAST_BYTES)
            self._cut_bytes += size
            os.ftruncate(self._output.fileno(), 0)

    def last_lines(self) -> list[str]:
        """Return the last lines of the worker's standard output and error, after a line with the size of cut output."""
        size = os.fstat(self._output.fileno()).st_size
        end = self._cut_end + os.pread(self._output.fileno(), LAST_BYTES, max(0, size - LAST_BYTES))
        lines = end[-LAST_BYTES:].decode(errors="replace").strip().splitlines()[-LAST_LINES:]
        printed = f"… (the end of {format_bytes(self._cut_bytes + size)} that were printed)"
        return [printed, *lines] if self._cut_bytes else lines


class MemoryWatch:
    """Checks whether a worker, alone or with its children, keeps more than `limit` bytes resident.

    Shared memory counts once; it is separated only where counting it repeatedly exceeds the limit.
    """

    def __init__(self, pid: int, limit: int | None):
        self._pid, self._limit = pid, limit
        self._next = 0.0

    def exceeded(self) -> str:
        """Return the text for an exceeded limit, "" below it."""
        if self._limit is None:
            return ""
        message = f"more than {self._limit / 2**30:.1f} GiB resident (--memory-limit)"
        resident = resident_bytes(self._pid)
        if resident > self._limit:
            return message
        if time.monotonic() < self._next:
            return ""
        self._next = time.monotonic() + CHILDREN_SECONDS
        children = [pid for pid in descendants(os.getpid()) if pid != self._pid]
        if resident + sum(map(resident_bytes, children)) <= self._limit:
            return ""
        if sum(map(proportional_bytes, [self._pid, *children])) <= self._limit:
            return ""
        return f"{message}, together with {counted(len(children), 'process', 'processes')} that it started"


class Server:
    """Serves requests one at a time, by the current worker; `variables` as in `WorkerProcess`."""

    def __init__(self, requests_descriptor: int, replies_descriptor: int, variables: Mapping[str, str | None]):
        self._requests = requests_descriptor
        self._variables = variables
        self._private = (requests_descriptor, replies_descriptor)
        self._worker: WorkerProcess | None = None

    def serve(self, request: Request) -> Reply:
        """Return the worker's reply to `request`, or a reply about the worker's end."""
        if request.fresh:
            self.drop()
        if self._worker is None:
            self._worker = WorkerProcess(self._private, self._variables)
        reply = self._supervise(self._worker, request)
        if reply.failure is not None or reply.problem is not None:
            self.drop()
        return reply

    def drop(self) -> None:
        """End the current worker, if there is one."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            worker.stop()

    def _supervise(self, worker: WorkerProcess, request: Request) -> Reply:
        deadline = time.monotonic() + request.timeout_seconds
        connection = worker.socket.fileno()
        memory = MemoryWatch(worker.pid, request.memory_limit_bytes)
        with contextlib.suppress(OSError):  # it has ended, as the loop notices at once
            worker.socket.sendall(request_line(request))
        while True:
            ready, _, _ = select.select([connection, self._requests], [], [], POLL_SECONDS)
            worker.cut_output()
            if connection in ready:
                line = worker.receive()
                if line is not None:
                    return _answer(line, request) or self._ended(worker, request, line)
            elif ready:  # the driver is gone
                self.drop()
                os._exit(0)
            elif worker.has_ended() and not select.select([connection], [], [], 0)[0]:
                return self._ended(worker, request)
            cause, why = "memory limit", memory.exceeded()
            if time.monotonic() > deadline:
                cause, why = "time-out", f"no result within {request.timeout_seconds:g} s (--timeout)"
            if why:
                self.drop()
                return end_reply(request, cause, why, worker.last_lines())

    def _ended(self, worker: WorkerProcess, request: Request, stray: bytes = b"") -> Reply:
        """Return a reply about a worker that ended without one, perhaps after a `stray` line."""
        self._worker = None
        status = worker.stop(grace_seconds=0.0 if stray else ENDING_SECONDS)
        cause, how = "crash", "closed its connection and went on"
        if stray:
            how = "gave no reply: a process that the network started wrote to its connection"
        elif status is not None:
            how = way_ended(os.waitstatus_to_exitcode(status))
            cause = KILLED if os.WIFSIGNALED(status) and os.WTERMSIG(status) in FROM_OUTSIDE else cause
        return end_reply(request, cause, how, worker.last_lines())


def _answer(line: bytes, request: Request) -> Reply | None:
    """Return the reply in a line; None for any other line, or the reply to another request."""
    try:
        reply = read_reply(line)
    except msgspec.MsgspecError:
        return None
    return reply if reply.number == request.number else None


def descendants(pid: int) -> list[int]:
    """Return the children of process `pid`, and theirs (proc(5), children)."""
    pids: list[int] = []
    looked_into = [pid]
    while looked_into:
        for tasks in Path(f"/proc/{looked_into.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(child) for child in tasks.read_text().split()]
                pids += children
                looked_into += children
    return pids


def end_descendants() -> None:
    """Kill and reap all descendants of this process; orphans come to it, their subreaper."""
    deadline = time.monotonic() + ENDING_SECONDS
    while (pids := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.001)


def resident_bytes(pid: int) -> int:
    """Return the resident set of process `pid` (proc(5), statm), 0 where the kernel does not report it."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def proportional_bytes(pid: int) -> int:
    """Return the resident set of process `pid`, with its share of shared memory; 0 where it is not reported."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def main() -> None:
    """Serve standard input until it ends; the arguments are modules to import before the first fork."""
    modules = sys.argv[1:]
    # Replies go to the driver's pipe on standard output; all other output goes to standard error.
    replies = os.fdopen(os.dup(1), "wb")
    requests_descriptor = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    original = {name: os.environ.get(name) for name in FORKING_VARIABLES}
    set_variables(FORKING_VARIABLES)  # before the import of torch, which looks for a GPU
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # makes orphans of a workload children of this process
    for name in ["ampbench.worker.worker", *modules]:
        with contextlib.suppress(Exception) if name in modules else contextlib.nullcontext():
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    replies.write(ready_line())
    replies.flush()
    server = Server(requests_descriptor, replies.fileno(), original)
    with os.fdopen(requests_descriptor, "rb") as requests:
        while line := requests.readline():
            request = read_request(line)
            replies.write(reply_line(server.serve(request), request))
            replies.flush()
    server.drop()


def set_variables(variables: Mapping[str, str | None]) -> None:
    """Set this process's environment variables; None removes one."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _become_worker(channel: socket.socket, output: IO[bytes], server: int) -> Any:
    """Turn this forked process into a worker: serve the socket until it closes, then end without clean-up."""
    pid = os.getpid()
    try:
        os.setpgid(0, 0)  # processes of the workload end with it
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:  # the server has ended
            os._exit(1)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")  # out of memory kills this process, not the driver
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        worker = importlib.import_module("ampbench.worker.worker").Worker()
        with channel.makefile("rwb") as stream:
            for line in stream:
                request = read_request(line)
                reply = worker.serve(request)
                if os.getpid() != pid:  # a child that the network forked, and that returned here
                    os._exit(0)
                stream.write(reply_line(reply, request))
                stream.flush()
    except BaseException:  # noqa: BLE001 - report any error of a dying worker
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # skip torch's clean-up, which takes a third of a second

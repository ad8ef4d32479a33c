"""A server: imports torch once, forks workers, and keeps their limits.

It speaks JSON lines on its standard input (requests) and output (replies), one request at a time, and ends when its
input does. A request is served by a forked worker: a fresh one, or the current one where the request allows it. A
worker that fails, crashes or passes a limit is gone after its reply. The server itself never touches an accelerator,
so that its workers can.
"""

import argparse
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

from ampbench.records.measurements import Failure
from ampbench.records.requests import FORKING_VARIABLES, Reply, Request
from ampbench.records.runs import CEILINGS, RULES

POLL_SECONDS = 0.05
"""How often a worker's limits are looked at: often enough that it cannot fill the memory in between."""
PR_SET_PDEATHSIG = 1
LAST_LINES = 4


class WorkerProcess:
    """A forked worker: its pid, the socket to it, and the file its output goes to.

    `variables` are put back into its environment (None: taken out of it).
    """

    def __init__(self, private_descriptors: Iterable[int], variables: Mapping[str, str | None]) -> None:
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            for descriptor in private_descriptors:
                os.close(descriptor)  # the driver must see these closed when the server ends, whatever a worker left
            set_variables(variables)
            _become_worker(theirs, self.output)
        theirs.close()
        self.socket = ours
        self.replies = ours.makefile("rb")

    def stop(self) -> int:
        """Kill the worker if it still runs and return its wait status."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return self.collect()

    def collect(self) -> int:
        """Wait for the worker's end and return its wait status."""
        self.replies.close()
        self.socket.close()
        return os.waitpid(self.pid, 0)[1]

    def last_lines(self) -> list[str]:
        """Return the last lines the worker wrote to its standard output and error."""
        with contextlib.suppress(OSError):
            size = self.output.seek(0, os.SEEK_END)
            self.output.seek(max(0, size - 4096))
            return self.output.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
        return []


class Server:
    """Serves requests, one at a time, by the current worker; `variables` are those of a `WorkerProcess`."""

    def __init__(self, requests_descriptor: int, replies_descriptor: int, variables: Mapping[str, str | None]):
        self._requests = requests_descriptor
        self._variables = variables
        self._private = (requests_descriptor, replies_descriptor)
        self._worker: WorkerProcess | None = None

    def serve(self, request: Request) -> Reply:
        """Return the worker's reply to `request` or, where it did not live to give one, a reply about its end."""
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
        try:
            worker.socket.sendall(msgspec.json.encode(request) + b"\n")
        except OSError:
            return self._ended(worker, request)
        while True:
            ready, _, _ = select.select([worker.socket.fileno(), self._requests], [], [], POLL_SECONDS)
            if worker.socket.fileno() in ready:
                line = worker.replies.readline()
                return msgspec.json.decode(line, type=Reply) if line.endswith(b"\n") else self._ended(worker, request)
            if ready:  # the driver is gone
                worker.stop()
                os._exit(0)
            if time.monotonic() > deadline:
                return self._killed(
                    worker, request, "time-out", f"no result within {request.timeout_seconds:g} s (--timeout)"
                )
            limit = request.memory_limit_bytes
            if limit is not None and resident_bytes(worker.pid) > limit:
                return self._killed(
                    worker, request, "memory limit", f"more than {limit / 2**30:.1f} GiB resident (--memory-limit)"
                )

    def _killed(self, worker: WorkerProcess, request: Request, cause: str, message: str) -> Reply:
        self._worker = None
        worker.stop()
        return end_reply(request, cause, message, worker.last_lines())

    def _ended(self, worker: WorkerProcess, request: Request) -> Reply:
        self._worker = None
        status = worker.collect()
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            cause = "killed" if number == signal.SIGKILL else "crash"
            names = {known.value: known.name for known in signal.Signals}
            return end_reply(request, cause, f"ended by signal {names.get(number, number)}", worker.last_lines())
        return end_reply(request, "crash", f"ended with status {os.WEXITSTATUS(status)}", worker.last_lines())


def end_reply(request: Request, cause: str, message: str, lines: list[str]) -> Reply:
    """Return what to say of a worker that ended without a reply of its own."""
    if request.case is None and request.kind not in (RULES, CEILINGS):
        what = f"workload {request.source.name} cannot be built" if request.source else "the environment cannot be read"
        return Reply(problem=f"{what}: {cause}: {message}{' | ' + lines[-1] if lines else ''}")
    case_id = "" if request.case is None else request.case.case_id
    return Reply(failure=Failure(case_id=case_id, stage=request.kind, cause=cause, message=message, frames=lines))


def resident_bytes(pid: int) -> int:
    """Return the resident set of process `pid` (proc(5), statm), 0 where the kernel does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def main() -> None:
    """Serve standard input until it ends."""
    parser = argparse.ArgumentParser(prog="python -m ampbench.worker.server")
    parser.add_argument("--preload", action="append", default=[], help="a module to import before the first fork")
    modules: list[str] = parser.parse_args().preload
    # Replies go to the standard output the driver gave us; whatever else is printed goes to standard error.
    replies = os.fdopen(os.dup(1), "wb")
    requests_descriptor = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    given = {name: os.environ.get(name) for name in FORKING_VARIABLES}
    set_variables(FORKING_VARIABLES)  # before torch is imported, which asks for a GPU
    for name in ["ampbench.worker.rounds", *modules]:
        with contextlib.suppress(Exception) if name in modules else contextlib.nullcontext():
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    replies.write(b"ready\n")
    replies.flush()
    server = Server(requests_descriptor, replies.fileno(), given)
    with os.fdopen(requests_descriptor, "rb") as requests:
        while line := requests.readline():
            reply = server.serve(msgspec.json.decode(line, type=Request))
            replies.write(msgspec.json.encode(reply) + b"\n")
            replies.flush()
    server.drop()


def set_variables(variables: Mapping[str, str | None]) -> None:
    """Set this process' environment variables; None takes one away."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _become_worker(channel: socket.socket, output: IO[bytes]) -> Any:
    """Turn this forked process into a worker: serve the socket until it closes, then end without clean-up."""
    try:
        os.setpgid(0, 0)  # whatever the workload starts ends with it
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, this process goes, not the driver
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        rounds = importlib.import_module("ampbench.worker.rounds")
        worker = rounds.Worker()
        with channel.makefile("rwb") as stream:
            for line in stream:
                reply = worker.serve(msgspec.json.decode(line, type=Request))
                stream.write(msgspec.json.encode(reply) + b"\n")
                stream.flush()
    except BaseException:  # noqa: BLE001 - the last words of a dying worker, whatever kills it
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()

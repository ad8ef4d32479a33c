"""Sessions to kill, as forks of one process that has imported what they and their servers import.

Each has its own file, server and worker; only the seconds in which Python and torch are imported are spared.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from ampbench.drive import servers
from ampbench.records.wire import FORKING_VARIABLES, MARK
from tests.forked_servers import ForkedServer, _adopting, folders_of, fork_for_each

CHAIN = "AMPBENCH_TEST_CHAIN"
"""The environment variable by which the processes of a chain of sessions are known."""
TOLD = {CHAIN: 32, MARK: 32}
"""By the variable, the most characters of its value."""
IMPORTED = (
    *("ampbench.cli.main", "ampbench.cli.run", "ampbench.cli.show", "ampbench.report.page"),
    *("ampbench.cli.compare", "ampbench.show.studies", "ampbench.worker.worker"),
    *("torch._dynamo", "torch.distributed.fsdp"),
)
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Those that end a program which a shell starts."""


class Template:
    """The process that sessions are forked of; it ends with this one at the latest."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, **FORKING_VARIABLES, **{name: "0" * size for name, size in TOLD.items()}}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cli.forked_sessions", str(theirs.fileno())],
                cwd=Path(__file__).parents[2],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**environment, "OMP_NUM_THREADS": "1"},
            )
        assert self._control.recv(1), "it could not import what sessions do"

    def start(self, words: Sequence[str], environment: Mapping[str, str], folder: Path, said: IO[bytes]) -> Any:
        """Return a process that is becoming a session, a child of this one; what it says goes to `said`."""
        wanted = [list(words), {"PYTHONPATH": "", **environment}, str(folder)]
        with _adopting():
            socket.send_fds(self._control, [json.dumps(wanted).encode()], [said.fileno()])
            pid = int(self._control.recv(64) or 0)
        assert pid, "the process that sessions are forked of has ended (tests/cli/forked_sessions.py)"
        return ForkedServer(pid, said, said)  # nobody asks it anything

    def close(self) -> None:
        """End the process."""
        self._control.close()
        self._process.wait()


def serve(control: socket.socket) -> None:
    """Fork a session, by a child that ends, for each message of `control`, and tell its pid; end with `control`."""
    for name in IMPORTED:
        importlib.import_module(name)
    atexit._clear()  # what torch does at its end: a session has not imported it
    leave_to_the_parent()
    atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    control.send(b"1")
    fork_for_each(control, become_session, be_as_started)


def leave_to_the_parent() -> None:
    """Skip the parent's finalizers at the end of a fork; they would remove the parent's temporary folders."""
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False


def be_as_started(_words: Sequence[str], environment: Mapping[str, str], _folder: str) -> None:
    """Heed signals, and be known to the kernel, as a process that was started: from when on it may be killed."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    become_known(environment)


def become_session(
    words: Sequence[str], environment: dict[str, str], folder: str, descriptors: Sequence[int]
) -> None:  # fmt: skip
    """Be a session that does `words`, as of its start, until it ends; what it says goes to the one descriptor."""
    servers.start_server = start_server
    its = [os.open(os.devnull, os.O_RDONLY), *descriptors, *descriptors]
    become("ampbench.__main__", ["ampbench", *words], environment, folder, its)


def become_known(environment: Mapping[str, str]) -> None:
    """Write the variables `TOLD` into the memory that the kernel shows as this process's environment (proc(5))."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = (int(fields[number - 3]) for number in (50, 51))
    began_with = ctypes.string_at(start, end - start)
    for name, size in TOLD.items():
        if name in environment:
            value = environment[name].encode()
            assert len(value) <= size
            place = start + began_with.index(f"{name}=".encode()) + len(name) + 1
            ctypes.memmove(place, value.ljust(size, b"\0"), size)


def become(
    module: str, words: list[str], environment: dict[str, str], folder: str, descriptors: Sequence[int]
) -> None:  # fmt: skip
    """Be the program that `module` has as `main`, as of its start, until it ends; nothing else stays open."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for place, descriptor in enumerate(descriptors):
            os.dup2(descriptor, place)
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - locks, and what other servers are asked by
            if int(name) > 2:
                os.dup2(nothing, int(name))
        os.chdir(folder)
        sys.path = [*folders_of(environment), *sys.path]
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        sys.argv = words
        code = importlib.import_module(module).main() or 0
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001 - as where a program ends
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def start_server(python: str, *given: Any) -> Any:
    """Return a new server, forked by a second thread: the main one would lose a signal during a fork."""
    assert python == sys.executable
    with ThreadPoolExecutor(1) as forking:
        return forking.submit(fork_server, *given).result()


def fork_server(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path | None, errors: IO[bytes]
) -> ForkedServer:
    """Return a server that is a fork of this session."""
    its_input, our_output = os.pipe()
    our_input, its_output = os.pipe()
    told, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        become_known(environment)
        leave_to_the_parent()
        os.setsid()
        words, its = ["ampbench.worker.server", *arguments], [its_input, its_output, errors.fileno()]
        become("ampbench.worker.server", words, dict(environment), str(folder or Path.cwd()), its)
    for descriptor in (its_input, its_output, telling):
        os.close(descriptor)
    os.read(told, 1)  # it leads a session, by which it is ended
    os.close(told)
    return ForkedServer(pid, os.fdopen(our_output, "wb"), os.fdopen(our_input, "rb"))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))

"""The servers of tests are forks of one process that has imported what servers import, as their workers are of them.

Importing torch takes a server longer than most tests take. A server that is to have another interpreter, another
ampbench, or variables that are read only as a process starts, is started as ampbench starts it. What is not as in such
a one: the environment that the kernel tells others of (proc(5), environ), and the hash seed, are those of the process
that was forked.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ampbench.drive.servers import server_environment, start_server
from ampbench.drive.session import PRELOADED
from ampbench.records.wire import FORKING_VARIABLES

IMPORTED = ["ampbench.worker.worker", "torch._dynamo", *PRELOADED.values()]
READ_AT_START = (
    *("PYTHON", "LD_", "GLIBC", "MALLOC", "LANG", "LC_", "TZ", "TMP"),
    *("OMP", "GOMP", "KMP", "MKL", "DNNL", "ONEDNN", "TORCH", "PYTORCH", "ATEN", "CUDA", "THP_"),
)
"""How the names of variables begin that Python, the C library, or a library as it is imported, may read only once."""
PR_SET_CHILD_SUBREAPER = 36
MESSAGE_BYTES = 1 << 20


class ForkedServer:
    """A server that was forked, with as much of a `subprocess.Popen` as `ServerChannel` uses."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]):
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended; raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            select.select([descriptor], [], [], timeout)
            os.close(descriptor)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("a server", timeout or 0.0)
        return code


class Template:
    """The process that servers are forked of, started for the first of them; it ends with this one at the latest."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._environment = server_environment(os.environ, FORKING_VARIABLES, [])
        self._forking = threading.Lock()

    def start(
        self, python: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path | None,
        errors: IO[bytes],
    ) -> Any:  # fmt: skip
        """Return a process that is becoming a server, as `start_server` does."""
        with self._forking:  # those of several lanes are asked for together
            ours = {**environment, **FORKING_VARIABLES}
            alike = python == sys.executable and read_at_start(ours) == read_at_start(self._environment)
            if not alike or not hasattr(os, "pidfd_open"):
                return start_server(python, arguments, environment, folder, errors)
            self._control = self._control or self._started()
            its_input, our_output = os.pipe()
            our_input, its_output = os.pipe()
            wanted = [list(arguments), dict(environment), str(folder or Path.cwd())]
            with _adopting():
                descriptors = [its_input, its_output, errors.fileno()]
                socket.send_fds(self._control, [json.dumps(wanted).encode()], descriptors)
                pid = int(self._control.recv(64) or 0)
            assert pid, "the process that servers are forked of has ended (tests/forked_servers.py)"
            os.close(its_input)
            os.close(its_output)
            return ForkedServer(pid, os.fdopen(our_output, "wb"), os.fdopen(our_input, "rb"))

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
            self._process.wait()

    def _started(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True, env=self._environment,
            )  # fmt: skip
        return ours


def read_at_start(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what a process reads of its environment only as it starts; a fork can be given users' folders.

    Where torch's compiler keeps what it makes is read as it works, and set by it in the environment of a test.
    """
    found: dict[str, Any] = {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}
    found.pop("TORCHINDUCTOR_CACHE_DIR", None)
    return found | {"PYTHONPATH": {path for path in folders_of(environment) if (Path(path) / "ampbench").is_dir()}}


def folders_of(environment: Mapping[str, str]) -> list[str]:
    """Return the folders that come first when a process imports."""
    return list(dict.fromkeys(filter(None, environment["PYTHONPATH"].split(os.pathsep))))


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Have grandchildren whose parent has ended come to this process, as its children (prctl(2))."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


def serve(control: socket.socket) -> None:
    """Fork a server, by a child that ends, for each message of `control`, and tell its pid; end with `control`."""
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    measure_cpu_once(importlib.import_module("ampbench.worker.environment"))
    gc.collect()
    gc.freeze()
    fork_for_each(control, become_server)


def measure_cpu_once(environment: Any) -> None:
    """Have the CPU's arithmetic measured now, for all sessions: where half is emulated it takes a third of a second."""
    described = environment._cpu()
    environment._cpu = lambda: described


def fork_for_each(
    control: socket.socket, become: Callable[..., None], first: Callable[..., None] = lambda *_: None
) -> None:
    """Fork a process, by a child that ends, for each message of `control`, and tell its pid; end with `control`.

    It is to `become` something by what the message lists and by the descriptors that come with it; what it does
    `first`, of the same list, is done before its pid is told.
    """
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 3)
        if not message:
            os._exit(0)
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == between:
                select.select([], [], [], 0.001)
            wanted = json.loads(message)
            first(*wanted)
            control.send(str(os.getpid()).encode())
            control.close()
            become(*wanted, descriptors)
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def become_server(
    arguments: list[str], environment: dict[str, str], folder: str, descriptors: Sequence[int]
) -> None:  # fmt: skip
    os.setsid()
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.chdir(folder)
    sys.path = [*folders_of(environment), *(path for path in sys.path if path not in folders_of(os.environ))]
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["ampbench.worker.server", *arguments]
    try:
        importlib.import_module("ampbench.worker.server").main()
    except BaseException:  # noqa: BLE001 - as where a program ends
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))

"""The driver's view of servers: opened, asked, replaced and closed; and the environment that one reports.

A `Channel` serves requests: a server process that forks workers (`ServerChannel`), or this very process (`InProcess`).
"""

import contextlib
import importlib
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import IO, Protocol, Self

import msgspec

from ampbench import __version__
from ampbench.errors import NothingToRunError, bounded
from ampbench.records.case import Environment
from ampbench.records.measured import KILLED
from ampbench.records.wire import (
    ENVIRONMENT,
    MARK,
    READY,
    SERVER_VARIABLES,
    Nothing,
    Reply,
    Request,
    ask,
    end_reply,
    read_reply,
    ready_line,
    reply_line,
    request_line,
    was_killed,
    way_ended,
)

START_SECONDS = 120.0
"""The time limit for a server's import of torch: seconds on a warm disk, a minute on a cold network one."""
GRACE_SECONDS = 30.0
"""A server enforces a request's time limit; one that is silent this long after it is gone itself."""
ENDING_SECONDS = 1.0
"""The time that an ending process has to be gone."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a command as Ctrl-C does."""


class Channel(Protocol):
    """Serves requests one at a time."""

    def serve(self, request: Request) -> Reply:
        """Return the reply to `request`; never raises for a workload's failure."""

    def close(self) -> None:
        """End the server."""


OpenChannel = Callable[[], Channel]


OTHER_VERSION = (
    "{} has another ampbench than this one ({}): measure there with `ampbench run`, and compare the two runs "
    "with `ampbench compare`"
)
_NO_SERVER = re.compile(r"No module named '?ampbench\.")
"""The last line of a Python whose ampbench is another version, with other modules."""
NO_TORCH = "No module named 'torch'"
INSTALL = "install it there: pip install torch, or ampbench[torch]"


class ServerChannel:
    """A server process, started with the interpreter `python`; it imports the modules `preload` first.

    `variables` are added to its environment and override it, `paths` are the first on its import path, and `folder` is
    its current folder. Without `wait`, call `ready` to wait for the server.
    """

    def __init__(
        self,
        python: str = sys.executable,
        preload: Iterable[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
        paths: Sequence[Path] = (),
        folder: Path | None = None,
        *,
        wait: bool = True,
    ):
        self._asked = 0
        self._received = bytearray()
        self._mark = f"{os.getpid()}-{secrets.token_hex(8)}"  # workers of one driver share the first part
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._python, self._ready = python, False
        environment = server_environment(os.environ, {**variables, MARK: self._mark}, paths)
        try:
            self._process = start_server(python, [*preload], environment, folder, self._errors)
        except OSError as error:
            self._errors.close()
            raise NothingToRunError(f"no worker could start with {python}: {error.strerror}") from None
        if wait:
            self.ready()

    def ready(self) -> None:
        """Wait until the process is a server; where it cannot be, end it and raise `NothingToRunError`."""
        if self._ready:
            return
        python = self._python
        try:
            first = self._line(START_SECONDS)
            if first != ready_line():
                why = self._last_words() or f"the server {self._fate()}"
                if first.startswith(READY.encode()) or _NO_SERVER.search(why):
                    raise NothingToRunError(OTHER_VERSION.format(python, __version__))
                cure = f"; {INSTALL}" if why.endswith(NO_TORCH) else ""
                raise NothingToRunError(f"no worker could start with {python}: {why}{cure}")
            self._ready = True
        except BaseException:
            self.close()
            raise

    def serve(self, request: Request) -> Reply:
        """Return the reply to `request`; where the server dies or hangs, a reply that reports it."""
        self.ready()
        self._asked += 1
        request = msgspec.structs.replace(request, number=self._asked)
        reply = None
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(request_line(request))
            self._process.stdin.flush()
            while line := self._line(request.timeout_seconds + GRACE_SECONDS):
                reply = read_reply(line)
                if reply.number >= request.number:  # replies to abandoned requests are skipped
                    break
        except (OSError, ValueError, msgspec.MsgspecError):  # its end of the pipe is closed, or ours
            pass
        if reply is not None and reply.number == request.number:
            return reply
        message = f"the server {self._fate()}"
        self.close()
        return end_reply(request, KILLED, message)

    def close(self) -> None:
        """End the server and its worker; waits for both."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(timeout=ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.returncode and not self._errors.closed:  # it left processes of its workers behind
            end_marked(self._mark)
        self._errors.close()

    def _line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._received:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(descriptor, 1 << 16) if ready else b""
            if not chunk:
                return b""
            self._received += chunk
        line, newline, self._received = self._received.partition(b"\n")
        return bytes(line + newline)

    def _fate(self) -> str:
        """Return the way in which a silent server ended, in words."""
        try:
            code = self._process.wait(timeout=ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            return "does not answer: end other work on this machine, then try again"
        words = self._last_words()
        return f"{way_ended(code)}{words and f': {words}'}"

    def _last_words(self) -> str:
        """Return the last line of the server's stderr, "" without one."""
        if self._errors.closed:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return bounded(lines[-1]) if lines else ""


def start_server(
    python: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path | None, errors: IO[bytes]
) -> "subprocess.Popen[bytes]":
    """Return a process that becomes a server; its stderr goes to `errors`."""
    return subprocess.Popen(
        [python, "-P", "-m", "ampbench.worker.server", *arguments],  # -P: ignore modules of the current folder
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,  # Ctrl-C in the terminal is for the driver alone
        env=environment,
        cwd=folder,
    )


class InProcess:
    """Serves requests in this process: no isolation, no limits, for debuggers.

    The one place where the driver's process imports torch, by name, because the user asked for it. Any exception of a
    network is its failure, except KeyboardInterrupt.
    """

    def __init__(self) -> None:
        try:
            worker = importlib.import_module("ampbench.worker.worker")
            self._torch = importlib.import_module("torch")
        except ImportError as error:
            raise NothingToRunError(f"no network can run in this process: {error}") from error
        self._worker = worker.Worker(interruptible=True)
        self._threads = self._torch.get_num_threads()

    def serve(self, request: Request) -> Reply:
        """Return the reply to `request`, as another process would send it."""
        pid = os.getpid()
        reply = self._worker.serve(request)
        if os.getpid() != pid:  # a child that the network forked, and that returned here
            os._exit(0)
        return read_reply(reply_line(reply, request))

    def close(self) -> None:
        """Restore torch's number of threads in this process."""
        self._torch.set_num_threads(self._threads)


ONLY = ""
"""The lane of a pool with one lane."""


class Pool:
    """Servers, one for each lane: opened, replaced after a kill, and closed in this one place.

    `lanes` are the functions that open them, called on first use, `opened` those that are open already. The request of
    a killed worker is repeated on a new server: the kernel kills where memory runs out, a person by hand, and neither
    blames the case. All end with the context.
    """

    def __init__(self, lanes: Mapping[str, OpenChannel], opened: Mapping[str, Channel] = MappingProxyType({})):
        self._lanes = dict(lanes)
        self._channels = dict(opened)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Self:
        """Open the servers of all lanes now, together; where one cannot start, end the others and raise its error."""
        with ThreadPoolExecutor(len(self._lanes)) as starting:
            opening = {lane: starting.submit(open_channel) for lane, open_channel in self._lanes.items()}
        self._channels = {lane: opened.result() for lane, opened in opening.items() if not opened.exception()}
        problem = next(filter(None, (opened.exception() for opened in opening.values())), None)
        if problem is not None:
            self.close()
            raise problem
        return self

    def serve(self, request: Request, lane: str = ONLY) -> Reply:
        """Return the reply of a lane's server; a killed one is replaced and asked again."""
        reply = self._served(request, lane)
        if was_killed(reply):
            reply = self._served(msgspec.structs.replace(request, fresh=True), lane)
        return reply

    def take(self, lane: str = ONLY) -> Channel | None:
        """Return the open server of a lane, which is no longer the pool's; None without one."""
        return self._channels.pop(lane, None)

    def close(self, *lanes: str) -> None:
        """End the servers of `lanes` (none: of all), together; the next request opens a new one."""
        closing = [self._channels.pop(lane) for lane in lanes or list(self._channels) if lane in self._channels]
        if len(closing) < 2:  # InProcess is closed in the thread that opened it
            for channel in closing:
                channel.close()
            return
        with ThreadPoolExecutor(len(closing)) as ending:
            for ended in [ending.submit(channel.close) for channel in closing]:
                ended.result()

    def _served(self, request: Request, lane: str) -> Reply:
        if lane not in self._channels:
            self._channels[lane] = self._lanes[lane]()
        reply = self._channels[lane].serve(request)
        if was_killed(reply):
            self.close(lane)
        return reply


class Ahead:
    """Opens servers one after the other, and starts the next ones at times when nothing is measured.

    `open_channel` may return a `ServerChannel` that is not ready yet; `begun` ones are used first. At most `together`
    start at once, while nothing else runs: the spinning threads of a pass slow down with them by more than is gained. A
    waiting server costs the memory of torch's import, and no time. One that cannot start is tried again in its turn,
    and raises then. The context ends unused servers.
    """

    def __init__(self, open_channel: OpenChannel, together: int, begun: Iterable[Channel] = ()):
        self._open_new, self._together = open_channel, together
        self._begun = list(begun)
        self._wanted, self._opened = 0, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._begun:
            channel.close()

    def expect(self, wanted: int) -> None:
        """Note that a new server is next, of `wanted` still to come."""
        self._wanted, self._opened = wanted, False

    def open(self) -> Channel:
        """Return the next server that was begun, else a new one."""
        self._opened = True
        return self._begun.pop(0) if self._begun else self._open_new()

    def settle(self) -> None:
        """Wait for servers that are starting, because the next pass takes all cores; begin the next ones first."""
        if not self._opened and not self._begun:
            with contextlib.suppress(NothingToRunError):
                for _ in range(min(self._together, self._wanted)):
                    self._begun.append(self._open_new())
        for channel in self._begun.copy():
            try:
                if isinstance(channel, ServerChannel):
                    channel.ready()
            except NothingToRunError:
                self._begun.remove(channel)


def end_marked(mark: str) -> None:
    """Kill every process with `mark` in its environment: a killed server leaves them behind."""
    wanted, deadline = f"{MARK}={mark}".encode(), time.monotonic() + ENDING_SECONDS
    killed = True
    while killed and time.monotonic() < deadline:  # including those started meanwhile
        killed = False
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
                    killed = True


def server_environment(
    inherited: Mapping[str, str], variables: Mapping[str, str], paths: Sequence[Path]
) -> dict[str, str]:
    """Return the environment of a server: inherited variables, those of every server, and its own `variables`.

    `paths` come first when it imports, then this ampbench if it runs from a checkout instead of an installation.
    """
    root = Path(__file__).parents[2]
    first = [*paths, *([] if root.name.endswith("-packages") else [root])]
    search = filter(None, [*map(str, first), variables.get("PYTHONPATH", inherited.get("PYTHONPATH"))])
    environment = {**inherited, **SERVER_VARIABLES, **variables}
    return environment | {"PYTHONPATH": os.pathsep.join(search)}


DEVICE_NODES = ("nvidiactl", "dxg", "dri", "kfd", "nvmap", "nvhost-ctrl")
"""In /dev: NVIDIA's driver, WSL's, the kernel's for Intel and AMD, AMD's compute, and Tegra's two."""


def probe(meanwhile: Callable[[], object] = tuple) -> Environment:
    """Return the environment of this interpreter; `meanwhile` runs while a worker imports torch.

    Raises `NothingToRunError` where it has no torch to measure.
    """
    with Pool({ONLY: lambda: ServerChannel(wait=False)}) as pool:
        pool.open()
        meanwhile()
        return ask_environment(pool)


def ask_environment(channel: Channel, threads: int = 0) -> Environment:
    """Return the environment that the workers of `channel` see; `threads` as in `Request`.

    Raises `NothingToRunError` where it cannot be read, or its torch is too old.
    """
    reply = channel.serve(ask(ENVIRONMENT, Nothing(), threads=threads, timeout_seconds=120.0))
    environment = ENVIRONMENT.found(reply)
    if environment is None:
        raise NothingToRunError(reply.problem or "the environment cannot be read")
    return environment


def may_have_accelerator(folder: Path = Path("/dev")) -> bool:
    """Return whether this machine has a driver of an accelerator, without asking torch."""
    return any((folder / node).exists() for node in DEVICE_NODES)

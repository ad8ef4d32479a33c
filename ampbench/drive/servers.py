"""Servers as the driver sees them: opened, asked, replaced and closed; and what one says the machine is.

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
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, MappingProxyType
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
"""How long a server may take to import torch: seconds on a warm disk, a minute on a cold network one."""
GRACE_SECONDS = 30.0
"""A server enforces a request's time limit; one that has not answered this long after it is gone itself."""
ENDING_SECONDS = 1.0
"""How long a process that ends may take to be gone."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a command as Ctrl-C does."""


class Channel(Protocol):
    """Serves requests one at a time."""

    def serve(self, request: Request) -> Reply:
        """Return the reply to `request`; never raises for what the workload does."""

    def close(self) -> None:
        """End whatever serves."""


OpenChannel = Callable[[], Channel]


OTHER_VERSION = (
    "{} has another ampbench than this one ({}): measure there with `ampbench run`, and put the two runs side by side "
    "with `ampbench compare`"
)
_NO_SERVER = re.compile(r"No module named '?ampbench\.")
"""What a Python says last whose ampbench has other modules: it is of another version."""
NO_TORCH = "No module named 'torch'"
INSTALL = "install it there: pip install torch, or ampbench[torch]"


class ServerChannel:
    """A server process of its own, started with the interpreter `python`; `preload` are modules it imports first.

    `variables` are added to its environment and win over what is set there, `paths` come first when it imports, and
    `folder` is its current folder. Unless it is to `wait` until the process is a server, that is `ready`'s to do.
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
        arguments = [argument for module in preload for argument in ("--preload", module)]
        self._asked = 0
        self._received = bytearray()
        self._mark = secrets.token_hex(8)
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._python, self._ready = python, False
        environment = server_environment(os.environ, {**variables, MARK: self._mark}, paths)
        try:
            self._process = start_server(python, arguments, environment, folder, self._errors)
        except OSError as error:
            self._errors.close()
            raise NothingToRunError(f"no worker could start with {python}: {error.strerror}") from None
        if wait:
            self.ready()

    def ready(self) -> None:
        """Wait until the process is a server; ends it and raises `NothingToRunError` where it cannot be one."""
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
        """Return the reply to `request`; if the server dies or hangs, one that says so."""
        self.ready()
        self._asked += 1
        request = msgspec.structs.replace(request, number=self._asked)
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(request_line(request))
            self._process.stdin.flush()
            reply = self._reply(request)
        except (OSError, ValueError, msgspec.MsgspecError):  # its end of the pipe is closed, or ours
            reply = None
        if reply is not None:
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
        if self._process.returncode and not self._errors.closed:  # it has not ended what its workers started
            end_marked(self._mark)
        self._errors.close()

    def _reply(self, request: Request) -> Reply | None:
        """Return the reply to `request`; None where none comes in time. Those to requests given up are passed over."""
        while line := self._line(request.timeout_seconds + GRACE_SECONDS):
            reply = read_reply(line)
            if reply.number >= request.number:
                return reply if reply.number == request.number else None
        return None

    def _line(self, seconds: float) -> bytes:
        """Return what the server writes next, to the end of the line; nothing where that does not come in time."""
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
        """Say what became of a server that does not answer."""
        try:
            code = self._process.wait(timeout=ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            return "does not answer"
        words = self._last_words()
        return f"{way_ended(code)}{words and f': {words}'}"

    def _last_words(self) -> str:
        """Return the last line that the server wrote, nothing where it said nothing."""
        if self._errors.closed:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return bounded(lines[-1]) if lines else ""


def start_server(
    python: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path | None, errors: IO[bytes]
) -> "subprocess.Popen[bytes]":
    """Return a process that is becoming a server; what it says beside its replies goes to `errors`."""
    return subprocess.Popen(
        [python, "-P", "-m", "ampbench.worker.server", *arguments],  # -P: a random.py here is not the library's
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,  # Ctrl-C in the terminal is for the driver alone
        env=environment,
        cwd=folder,
    )


class InProcess:
    """Serves requests in this process: no isolation, no limits, for debuggers.

    The one place where the driver's process imports the torch side, by name, because the user asked for it. Whatever a
    network raises is its failure, KeyboardInterrupt, too, unless it was Ctrl-C that raised it.
    """

    def __init__(self) -> None:
        try:
            worker = importlib.import_module("ampbench.worker.worker")
            self._torch = importlib.import_module("torch")
        except ImportError as error:
            raise NothingToRunError(f"no network can run in this process: {error}") from error
        self._interrupted = False
        self._worker = worker.Worker(lambda: self._interrupted)
        self._threads = self._torch.get_num_threads()

    def serve(self, request: Request) -> Reply:
        """Return the reply to `request`, as it would come from another process."""
        pid = os.getpid()
        with self._noticing_interrupts():
            reply = self._worker.serve(request)
        if self._interrupted:  # the network made something else of it
            raise KeyboardInterrupt
        if os.getpid() != pid:  # a child that the network forked, and that returned as its parent does
            os._exit(0)
        return read_reply(reply_line(reply, request))

    def close(self) -> None:
        """Give torch in this process the threads back that it had."""
        self._torch.set_num_threads(self._threads)

    @contextlib.contextmanager
    def _noticing_interrupts(self) -> Iterator[None]:
        """Note whether Ctrl-C is pressed, or another signal comes that raises KeyboardInterrupt here."""

        def interrupt(number: int, frame: FrameType | None) -> None:
            self._interrupted = True
            signal.default_int_handler(number, frame)

        ours = threading.current_thread() is threading.main_thread()
        raising = [one for one in ENDING if ours and signal.getsignal(one) is signal.default_int_handler]
        for one in raising:
            signal.signal(one, interrupt)
        try:
            yield
        finally:
            for one in raising:
                signal.signal(one, signal.default_int_handler)


ONLY = ""
"""The lane of a pool that has no other."""


class Pool:
    """Servers, one for each lane: the one place that opens them, replaces those that were killed, and closes them all.

    `lanes` say how the server of each is opened, which is done when it is first asked. What was asked of a worker that
    was killed is asked once more, of a new server: the kernel kills where memory runs out, a person by hand, and
    neither tells anything of the case. Within a context, all end with it.
    """

    def __init__(self, lanes: Mapping[str, OpenChannel]):
        self._lanes = dict(lanes)
        self._channels: dict[str, Channel] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Self:
        """Open the servers of all lanes now, together; where one cannot start, end the others and raise why."""
        with ThreadPoolExecutor(len(self._lanes)) as starting:
            opening = {lane: starting.submit(open_channel) for lane, open_channel in self._lanes.items()}
        self._channels = {lane: opened.result() for lane, opened in opening.items() if not opened.exception()}
        problem = next(filter(None, (opened.exception() for opened in opening.values())), None)
        if problem is not None:
            self.close()
            raise problem
        return self

    def serve(self, request: Request, lane: str = ONLY) -> Reply:
        """Return the reply of a lane's server, to the second asking where the first was killed."""
        reply = self._served(request, lane)
        if was_killed(reply):
            reply = self._served(msgspec.structs.replace(request, fresh=True), lane)
        return reply

    def close(self, *lanes: str) -> None:
        """End the servers of `lanes` (none: of all), together; one that is asked again is opened again."""
        closing = [self._channels.pop(lane) for lane in lanes or list(self._channels) if lane in self._channels]
        if len(closing) < 2:  # what serves in this very process is closed where it was opened
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
    """Opens servers one after the other, the next ones begun where nothing is done that their start could disturb.

    `open_channel` may return a `ServerChannel` that is not ready yet; those `begun` already come first. At most
    `together` start at once, and nothing else is done meanwhile: a pass beside them would take longer than is won, for
    its threads wait for one another in loops. One that waits takes memory, as much as torch's import does, and no time.
    One that cannot start is tried again when its turn comes, and raises then. What was begun and is not needed ends
    with the context.
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
        """Note that the turn of a new server comes, with which so many are wanted still."""
        self._wanted, self._opened = wanted, False

    def open(self) -> Channel:
        """Return the server that has been begun, else a new one."""
        self._opened = True
        return self._begun.pop(0) if self._begun else self._open_new()

    def settle(self) -> None:
        """Let no server be starting any more, for what comes takes all cores; begin those that it is to be done by."""
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
    """Kill every process that has `mark` in its environment: what a server that was killed leaves behind."""
    wanted, deadline = f"{MARK}={mark}".encode(), time.monotonic() + ENDING_SECONDS
    found = True
    while found and time.monotonic() < deadline:  # what they started meanwhile, too
        found = False
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
                    found = True


def server_environment(
    inherited: Mapping[str, str], variables: Mapping[str, str], paths: Sequence[Path]
) -> dict[str, str]:
    """Return the environment of a server: what is inherited, what every server needs, what this one is given.

    `paths` come first when it imports, then this ampbench, where it is not installed but runs from a checkout.
    """
    root = Path(__file__).parents[2]
    found = [*paths, *([] if root.name.endswith("-packages") else [root])]
    search = filter(None, [*map(str, found), variables.get("PYTHONPATH", inherited.get("PYTHONPATH"))])
    environment = {**inherited, **SERVER_VARIABLES, **variables}
    return environment | {"PYTHONPATH": os.pathsep.join(search)}


DEVICE_NODES = ("nvidiactl", "dxg", "dri", "kfd", "nvmap", "nvhost-ctrl")
"""In /dev: NVIDIA's driver, WSL's, the kernel's for Intel and AMD, AMD's compute, and Tegra's two."""


def probe(meanwhile: Callable[[], object] = tuple) -> Environment:
    """Return the environment of this interpreter; `meanwhile` is done while a worker imports torch.

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
    found = ENVIRONMENT.found(reply)
    if found is None:
        raise NothingToRunError(reply.problem or "the environment cannot be read")
    return found


def may_have_accelerator(folder: Path = Path("/dev")) -> bool:
    """Return whether this machine has a driver of an accelerator, without asking torch."""
    return any((folder / node).exists() for node in DEVICE_NODES)

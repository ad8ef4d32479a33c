"""Ways to have a request served: by a server process that forks workers, or in this very process."""

import contextlib
import importlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Protocol

import msgspec

from ampbench.errors import AmpbenchError, NothingToRunError
from ampbench.records.measurements import Failure
from ampbench.records.requests import SERVER_VARIABLES, Reply, Request

START_SECONDS = 120.0
"""How long a server may take to import torch: seconds on a warm disk, a minute on a cold network one."""
GRACE_SECONDS = 30.0
"""A server enforces a request's time limit; one that has not answered this long after it is gone itself."""


class Channel(Protocol):
    """Serves requests one at a time."""

    def serve(self, request: Request) -> Reply:
        """Return the reply to `request`; never raises for what the workload does."""

    def close(self) -> None:
        """End whatever serves."""


OpenChannel = Callable[[], Channel]


class ServerChannel:
    """A server process of its own, started with the interpreter `python`; `preload` are modules it imports first.

    `variables` are added to its environment and win over what is set there, `paths` come first when it imports, and
    `folder` is its current folder.
    """

    def __init__(
        self,
        python: str = sys.executable,
        preload: Iterable[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
        paths: Sequence[Path] = (),
        folder: Path | None = None,
    ):
        arguments = [argument for module in preload for argument in ("--preload", module)]
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self._process = subprocess.Popen(
                [python, "-P", "-m", "ampbench.worker.server", *arguments],  # -P: a random.py here is not the library's
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C in the terminal is for the driver alone
                env=server_environment(os.environ, variables, paths),
                cwd=folder,
            )
        except OSError as error:
            self._errors.close()
            raise NothingToRunError(f"no worker could start with {python}: {error.strerror}") from None
        try:
            if self._line(START_SECONDS) != b"ready\n":
                raise NothingToRunError(f"no worker could start with {python}: {self._last_words()}")
        except BaseException:
            self.close()
            raise

    def serve(self, request: Request) -> Reply:
        """Return the reply to `request`; if the server dies or hangs, a failure that says so."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
            line = self._line(request.timeout_seconds + GRACE_SECONDS)
        except OSError:
            line = b""
        if line.endswith(b"\n"):
            return msgspec.json.decode(line, type=Reply)
        words = self._last_words()
        self.close()
        if request.case is None:
            raise AmpbenchError(f"the server process ended: {words}")
        return Reply(
            failure=Failure(
                case_id=request.case.case_id, stage=request.kind, cause="killed", message=f"the server ended: {words}"
            )
        )

    def close(self) -> None:
        """End the server and its worker; waits for both."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()

    def _line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        descriptor, deadline, received = self._process.stdout.fileno(), time.monotonic() + seconds, b""
        while not received.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(descriptor, 1 << 16) if ready else b""
            if not chunk:
                break
            received += chunk
        return received

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


class InProcess:
    """Serves requests in this process: no isolation, no limits, for debuggers.

    The one place where the driver's process imports the torch side, by name, because the user asked for it.
    """

    def __init__(self) -> None:
        try:
            self._worker = importlib.import_module("ampbench.worker.rounds").Worker()
        except ImportError as error:
            raise NothingToRunError(f"no network can run in this process: {error}") from error

    def serve(self, request: Request) -> Reply:
        """Return the reply to `request`."""
        reply = self._worker.serve(request)
        assert isinstance(reply, Reply)
        return reply

    def close(self) -> None:
        """Do nothing."""


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

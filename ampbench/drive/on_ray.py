"""Ray as the cluster of a fleet: a lane is an actor with a node to itself.

Ray carries requests and replies; an actor opens servers on its node, with the ampbench and environment of the node.
"""

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ray
from msgspec.structs import replace
from ray import exceptions
from ray._private import auto_init_hook
from ray._private.services import canonicalize_bootstrap_address

from ampbench.drive.fleet import NODE_GONE
from ampbench.drive.servers import ENDING, ServerChannel
from ampbench.drive.session import default_memory_limit
from ampbench.errors import NothingToRunError, UsageError, bounded, in_one_line
from ampbench.records.case import VISIBLE_DEVICES
from ampbench.records.wire import Reply, Request, read_reply, read_request, ready_line, reply_line, request_line

SET_BY_RAY = ["OMP_NUM_THREADS", *VISIBLE_DEVICES]
"""Variables that Ray sets for an actor's CPUs and devices, and that a local run would not have."""
ANSWER_SECONDS = 20
"""The time limit for an answer of a cluster's head; Ray alone tries for 14 minutes, deaf to Ctrl-C."""
GONE_SECONDS = 40.0
"""The silence of a cluster's head that ends its fleet: after 60 s Ray ends this process in any case."""


def _node_class() -> type:
    """Return the class of the actors, which is sent by value because it is local: a node may have another ampbench."""

    class Node:
        """Servers on a node, in its own environment."""

        def __init__(self, node_variables: list[str]):
            started_with = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
            node = dict(os.fsdecode(line).split("=", 1) for line in started_with if b"=" in line)
            for name in node_variables:
                os.environ.pop(name, None)
            os.environ.update({name: node[name] for name in node_variables if name in node})
            self.channels: list[ServerChannel] = []

        def ready(self) -> tuple[bytes, int | None]:
            """Return the first line of a server of the node's ampbench, and the memory limit of its workers."""
            return ready_line(), default_memory_limit()

        def open(self, preload: list[str]) -> int:
            """Open a server, and return its number."""
            self.channels.append(ServerChannel(preload=preload))
            return len(self.channels) - 1

        def serve(self, number: int, line: bytes) -> bytes:
            """Return the reply of a server to the request in a line."""
            request = read_request(line)
            return reply_line(self.channels[number].serve(request), request)

        def close(self, number: int) -> None:
            """End a server."""
            self.channels[number].close()

    return Node


class NodeChannel:
    """A server on the node of a place; files of the current folder are those of the copy there."""

    def __init__(self, ask: Callable[..., Any], preload: list[str]):
        self._ask, self._number = ask, ask("open", preload)

    def serve(self, request: Request) -> Reply:
        """Return the reply to `request`; raises `NothingToRunError` where the node is lost."""
        if (source := request.source) is not None and source.module.endswith(".py"):
            if (file := os.path.relpath(source.module)).startswith(os.pardir):
                raise NothingToRunError(f"{file} is outside the current folder, which travels to the nodes")
            request = replace(request, source=replace(source, module=file))
        return read_reply(self._ask("serve", self._number, request_line(request)))

    def close(self) -> None:
        """End the server; a lost node has ended it."""
        with contextlib.suppress(NothingToRunError):
            self._ask("close", self._number)


class RayCluster:
    """A Ray cluster: its nodes, on which a fleet opens lanes.

    `files` sends the current folder to the nodes. Raises `NothingToRunError` where no head answers in `ANSWER_SECONDS`.
    """

    def __init__(self, address: str, *, files: bool):
        self._actors: dict[str, Any] = {}
        self._resources: dict[str, dict[str, float]] = {}
        self._places: dict[str, str] = {}
        self._heard, self._gone = time.monotonic(), False
        left_behind = [".git", ".venv", "results", "__pycache__"]
        environment = {"working_dir": str(Path.cwd()), "excludes": left_behind} if files else {}
        auto_init_hook.enable_auto_connect = False  # a lane whose cluster is closed must not join another
        if not re.fullmatch(r"auto|.+:\d+", address):
            raise UsageError(f"--ray {address!r}: expected auto, or host:port of the cluster's head")
        dialled, handlers = address, {number: signal.getsignal(number) for number in ENDING}
        try:
            dialled = canonicalize_bootstrap_address(address) or address
            _require_head(address, dialled)
            ray.init(address, runtime_env=environment, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError, exceptions.RayError) as error:
            raise NothingToRunError(
                f"--ray {address}: no Ray cluster at {dialled}: {bounded(in_one_line(error), 200)}; start one with "
                "ray start --head"
            ) from None
        for number, handler in handlers.items():  # Ray sets its own, in Python and below it
            signal.signal(number, handler)
        self._head = ray.get_runtime_context().gcs_address

    def places(self) -> dict[str, str]:
        """Return the nodes of the cluster, id and name; while the head is silent, the last known ones.

        Raises `NothingToRunError` where the head has been silent for too long.
        """
        try:  # Ray's own calls would wait for it
            _dial(self._head, 1.0)
        except OSError as error:
            if (silent := time.monotonic() - self._heard) >= GONE_SECONDS:
                self._gone, why = True, f"has not answered for {silent:.0f} s: {error}"
                raise NothingToRunError(f"the cluster's head {self._head} {why}") from None
            return self._places
        self._heard, places = time.monotonic(), {}
        for node in ray.nodes():
            if node["Alive"] and node["Resources"].get("CPU"):  # a head without CPUs stays free
                given = [node["NodeName"]] if node["NodeName"] != node["NodeManagerAddress"] else []
                places[node["NodeID"]] = "-".join([node["NodeManagerHostname"], *given])
                self._resources[node["NodeID"]] = node["Resources"]
        self._places = places
        return places

    def open(self, place: str) -> int | None:
        """Wait until a place is free, and take all of it with an actor; return the memory limit of its workers.

        Raises `NothingToRunError` where the node cannot measure, is lost, or the cluster is closed.
        """
        whole = {f"num_{kind.lower()}s": self._resources[place].get(kind, 0) for kind in ("CPU", "GPU")}
        node_class = ray.remote(**whole, label_selector={"ray.io/node-id": place}, max_restarts=0)(_node_class())
        self._actors[place] = node_class.remote(SET_BY_RAY)
        ready, memory_limit = self.ask(place, "ready")
        if ready != ready_line():
            raise NothingToRunError("it has another ampbench than the driver, whose versions must be the same")
        return int(memory_limit) if memory_limit else None

    def ask(self, place: str, method: str, *arguments: Any) -> Any:
        """Return the answer of a place's actor; raise `NothingToRunError` with the reason where there is none."""
        try:
            return ray.get(getattr(self._actors[place], method).remote(*arguments))
        except exceptions.RayError as error:
            cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
            died, patience = isinstance(error, exceptions.RayActorError), time.monotonic() + GONE_SECONDS / 2
            while (died := died and not self._gone) and place in self.places() and time.monotonic() < patience:
                time.sleep(0.5)  # a node is known to be dead later than its actor
            gone = died and place not in self.places()
            raise NothingToRunError(NODE_GONE if gone else bounded(" ".join(str(cause).split()), 500)) from None

    def channel(self, place: str, preload: list[str]) -> NodeChannel:
        """Return a new server on the node of a place."""
        return NodeChannel(partial(self.ask, place), preload)

    def close(self) -> None:
        """End all actors, and leave the cluster; without its head, they end by themselves."""
        if not self._gone:
            self._gone = True
            for actor in list(self._actors.values()):
                ray.kill(actor)
            ray.shutdown()


def _require_head(address: str, dialled: str) -> None:
    """Raise `OSError` unless a process can join the cluster at an address, which Ray dials as `dialled`."""
    _dial(dialled, ANSWER_SECONDS / 2)
    join = f"import ray, signal, sys; signal.alarm({ANSWER_SECONDS}); ray.init(sys.argv[1], log_to_driver=False)"
    joined = subprocess.run([sys.executable, "-c", join, address], capture_output=True, text=True, check=False)
    if joined.returncode == -signal.SIGALRM:
        raise TimeoutError(f"no answer within {ANSWER_SECONDS} s")
    if joined.returncode:
        raise ConnectionError((joined.stderr.strip().splitlines() or ["it ended"])[-1])


def _dial(address: str, seconds: float) -> None:
    """Raise `OSError` unless something accepts a connection at host:port in time."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), port), timeout=seconds).close()

"""Ray as the cluster of a fleet: a lane is an actor with a node to itself.

Ray places actors, reports their deaths, and carries requests and replies; it measures nothing. An actor only opens
servers on its node, with the ampbench and the environment of the node.
"""

import contextlib
import functools
import logging
import os
import signal
import socket
import subprocess
import sys
import time
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
ANSWER_SECONDS = 20.0
"""The time limit for an answer of a cluster's head; Ray alone tries for 14 minutes, deaf to Ctrl-C."""
GONE_SECONDS = 40.0
"""The silence of a cluster's head that ends its fleet: after 60 s Ray ends this process in any case."""
LEFT_BEHIND = (".git", ".venv", "results", "__pycache__")
"""Parts of the current folder that are not sent with a user's file."""


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

    def __init__(self, cluster: "RayCluster", place: str, preload: list[str]):
        self._ask = functools.partial(cluster.ask, place)
        self._number = self._ask("open", preload)

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

    With `files`, the current folder is sent to the nodes, which import users' workloads from it. Raises
    `NothingToRunError` where no head answers within `ANSWER_SECONDS`, or no node has a CPU.
    """

    def __init__(self, address: str, *, files: bool):
        self._actors: dict[str, Any] = {}
        self._resources: dict[str, dict[str, float]] = {}
        self._places: dict[str, str] = {}
        self._heard, self._gone = time.monotonic(), False
        environment = {"working_dir": str(Path.cwd()), "excludes": list(LEFT_BEHIND)} if files else {}
        auto_init_hook.enable_auto_connect = False  # a lane whose cluster is closed must not join another
        dialled, handlers = address, {number: signal.getsignal(number) for number in ENDING}
        try:
            if address != "auto":
                _host_and_port(address)
            dialled = canonicalize_bootstrap_address(address) or address
            _require_head(address, dialled)
            ray.init(address, runtime_env=environment, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError, exceptions.RayError) as error:
            head = address if dialled == address else f"{address}, which Ray dials as {dialled}"
            how = "start one with ray start --head (docs/fleet.md)"
            raise NothingToRunError(f"no Ray cluster at {head}: {bounded(in_one_line(error), 200)}; {how}") from None
        for number, handler in handlers.items():  # Ray sets its own, in Python and below it
            signal.signal(number, handler)
        self._head = _host_and_port(ray.get_runtime_context().gcs_address)
        if not self.places():
            ray.shutdown()
            raise NothingToRunError("no node has a CPU that Ray may give")

    def places(self) -> dict[str, str]:
        """Return the nodes of the cluster, id and name; while the head is silent, the last known ones.

        Raises `NothingToRunError` where the head has been silent for too long.
        """
        try:  # Ray's own calls would wait for it
            socket.create_connection(self._head, timeout=1.0).close()
        except OSError as error:
            if (silent := time.monotonic() - self._heard) >= GONE_SECONDS:
                self._gone, head = True, "{}:{}".format(*self._head)
                raise NothingToRunError(
                    f"the cluster's head {head} has not answered for {silent:.0f} s: {error}"
                ) from None
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
        cpus, devices = (self._resources[place].get(kind, 0) for kind in ("CPU", "GPU"))
        on_node = {"ray.io/node-id": place}
        actor_class = ray.remote(_node_class()).options(
            num_cpus=cpus, num_gpus=devices, label_selector=on_node, max_restarts=0, max_task_retries=0
        )
        self._actors[place] = actor_class.remote(SET_BY_RAY)
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
        return NodeChannel(self, place, preload)

    def close(self) -> None:
        """End all actors, and leave the cluster; without its head, they end by themselves."""
        if not self._gone:
            self._gone = True
            for actor in list(self._actors.values()):
                ray.kill(actor)
            ray.shutdown()


def _require_head(address: str, dialled: str) -> None:
    """Raise `OSError` unless a process can join the cluster at an address, which Ray dials as `dialled`."""
    deadline = time.monotonic() + ANSWER_SECONDS
    socket.create_connection(_host_and_port(dialled), timeout=ANSWER_SECONDS / 2).close()
    join = [sys.executable, "-c", "import sys, ray; ray.init(sys.argv[1], log_to_driver=False)", address]
    try:
        joined = subprocess.run(join, capture_output=True, text=True, timeout=deadline - time.monotonic(), check=False)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer within {ANSWER_SECONDS:.0f} s") from None
    if joined.returncode:
        raise ConnectionError((joined.stderr.strip().splitlines() or ["it ended"])[-1])


def _host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of host:port; raises `UsageError` for anything else."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 2**16):
        raise UsageError(f"--ray {address!r}: expected auto, or host:port of the cluster's head")
    return host.strip("[]"), int(port)

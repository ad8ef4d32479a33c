"""Ray as the cluster of a fleet: a lane is an actor with a node to itself.

Ray places actors, reports their deaths, and carries requests and replies; it measures nothing. An actor only opens
servers on its node, with the ampbench and the environment of the node.
"""

import contextlib
import logging
import os
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import ray
from msgspec.structs import replace
from ray import exceptions

from ampbench.drive.servers import ServerChannel
from ampbench.drive.session import default_memory_limit
from ampbench.errors import NothingToRunError, UsageError, bounded
from ampbench.records.case import VISIBLE_DEVICES
from ampbench.records.wire import Reply, Request, read_reply, read_request, ready_line, reply_line, request_line

NODE_ID = "ray.io/node-id"
"""Ray's label for a node's id."""
SET_BY_RAY = ("OMP_NUM_THREADS",)
"""Variables that Ray sets for an actor's CPUs, and that a local run would not have."""
ANSWER_SECONDS = 10.0
"""The time limit for an answer of a cluster's head."""
GONE_SECONDS = 40.0
"""The silence of a cluster's head that ends its fleet: after 60 s Ray ends this process in any case."""
LEFT_BEHIND = (".git", ".venv", "results", "__pycache__")
"""Parts of the current folder that are not sent with a user's file."""


OTHER_AMPBENCH = "it has another ampbench than the driver, whose versions must be the same"


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


def _answer(reference: Any) -> Any:
    """Return the answer of an actor; raise `NothingToRunError` with the reason where there is none."""
    try:
        return ray.get(reference)
    except exceptions.RayError as error:
        cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
        raise NothingToRunError(bounded(" ".join(str(cause).split()), 500)) from None


class NodeChannel:
    """A server on a node; files of the current folder are those of the copy there."""

    def __init__(self, node: Any, preload: list[str]):
        self._node, self._number = node, _answer(node.open.remote(preload))

    def serve(self, request: Request) -> Reply:
        """Return the reply to `request`; raises `NothingToRunError` where the node is lost."""
        if (source := request.source) is not None and source.module.endswith(".py"):
            request = replace(request, source=replace(source, module=os.path.relpath(source.module)))
        return read_reply(_answer(self._node.serve.remote(self._number, request_line(request))))

    def close(self) -> None:
        """End the server; a lost node has ended it."""
        with contextlib.suppress(NothingToRunError):
            _answer(self._node.close.remote(self._number))


class RayCluster:
    """A Ray cluster: its nodes, on which a fleet opens lanes.

    With `files`, the current folder is sent to the nodes, which import users' workloads from it. Raises
    `NothingToRunError` where nobody answers at the address or no node has a CPU.
    """

    def __init__(self, address: str, *, files: bool):
        self._actors: dict[str, Any] = {}
        self._resources: dict[str, tuple[float, float]] = {}
        self._places: dict[str, str] = {}
        self._heard, self._gone = time.monotonic(), False
        environment = {"working_dir": str(Path.cwd()), "excludes": list(LEFT_BEHIND)} if files else {}
        head = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
        try:
            if head != "auto":  # Ray itself would report only after minutes that nobody listens there
                socket.create_connection(_host_and_port(head), timeout=ANSWER_SECONDS).close()
            ray.init(
                address=address, runtime_env=environment, log_to_driver=False, logging_level=logging.ERROR,
            )  # fmt: skip
        except (OSError, ValueError, RuntimeError, exceptions.RayError) as error:
            why = bounded(" ".join(str(error).split()), 200)
            message = f"no Ray cluster at {head}: {why}; start one with ray start --head (docs/fleet.md)"
            raise NothingToRunError(message) from None
        try:
            self._head = _host_and_port(ray.get_runtime_context().gcs_address)
            if not self.places():
                raise NothingToRunError("no node has a CPU that Ray may give")
        except BaseException:
            ray.shutdown()
            raise

    def places(self) -> dict[str, str]:
        """Return the nodes of the cluster, id and name; while the head is silent, the last known ones.

        Raises `NothingToRunError` where the head has been silent for too long.
        """
        if not self._answers():
            return self._places
        nodes = [node for node in ray.nodes() if node["Alive"]]
        hosts = Counter(node["NodeManagerHostname"] for node in nodes)
        self._places = {}
        for node in nodes:
            name = node["NodeManagerHostname"]
            if hosts[name] > 1:  # without --node-name, its NodeName is its address
                name = f"{name}-{node['NodeName']}"
            cpus, devices = (float(node["Resources"].get(kind, 0)) for kind in ("CPU", "GPU"))
            if cpus:  # a head without CPUs stays free
                self._resources[node["NodeID"]] = cpus, devices
                self._places[node["NodeID"]] = name
        return self._places

    def open(self, place: str) -> int | None:
        """Wait until a place is free, and take all of it with an actor; return the memory limit of its workers.

        Raises `NothingToRunError` where the node cannot measure, is lost, or the cluster is closed.
        """
        cpus, devices = self._resources[place]
        actor_class = ray.remote(_node_class()).options(
            num_cpus=cpus, num_gpus=devices, label_selector={NODE_ID: place}, max_restarts=0, max_task_retries=0
        )
        self._actors[place] = actor_class.remote([*SET_BY_RAY, *VISIBLE_DEVICES])
        ready, memory_limit = _answer(self._actors[place].ready.remote())
        if ready != ready_line():
            raise NothingToRunError(OTHER_AMPBENCH)
        return int(memory_limit) if memory_limit else None

    def channel(self, place: str, preload: list[str]) -> NodeChannel:
        """Return a new server on the node of a place."""
        return NodeChannel(self._actors[place], preload)

    def close(self) -> None:
        """End all actors, and leave the cluster; without its head, they end by themselves."""
        if self._gone:
            return
        for actor in list(self._actors.values()):
            ray.kill(actor)
        ray.shutdown()

    def _answers(self) -> bool:
        """Return whether the head can be reached; otherwise Ray's own calls would wait for it."""
        try:
            socket.create_connection(self._head, timeout=1.0).close()
        except OSError as error:
            silent = time.monotonic() - self._heard
            if silent < GONE_SECONDS:
                return False
            self._gone = True
            host, port = self._head
            raise NothingToRunError(
                f"the head of the cluster, {host}:{port}, has not answered for {silent:.0f} s: {error}"
            ) from None
        self._heard = time.monotonic()
        return True


def _host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of host:port; raises `UsageError` for anything else."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 2**16):
        raise UsageError(f"--ray {address!r}: expected auto, or host:port of the cluster's head")
    return host.strip("[]"), int(port)

"""Ray as the cluster of a fleet: a lane is an actor with a node to itself.

Ray places actors, reports their deaths, and carries lines; it measures nothing. An actor only starts the session of its
lane in a separate process and passes on its output.
"""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray import exceptions

from ampbench.drive.fleet_node import DONE, Done
from ampbench.errors import NothingToRunError, UsageError, bounded
from ampbench.records.case import VISIBLE_DEVICES

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


def _lane_process() -> type:
    """Return the class of the actors, which is sent by value because it is local: a node may have another ampbench."""

    class LaneProcess:
        """The session of a lane on its node, `python -m ampbench.drive.fleet_node`, with the node's environment."""

        def __init__(self, node_variables: list[str], end: bytes):
            started_with = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
            node = dict(os.fsdecode(line).split("=", 1) for line in started_with if b"=" in line)
            environment = {name: value for name, value in os.environ.items() if name not in node_variables}
            environment |= {name: node[name] for name in node_variables if name in node}
            self.end = end
            self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ampbench.drive.fleet_node"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, env=environment,
            )  # fmt: skip

        def ask(self, line: bytes) -> Iterator[bytes]:
            """Send the session a line, and yield its output in whole lines, until it is done or ends."""
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            with contextlib.suppress(OSError):  # the code below reports its end
                self.process.stdin.write(line + b"\n")
                self.process.stdin.flush()
            held = b""
            while chunk := os.read(self.process.stdout.fileno(), 1 << 16):
                whole, newline, held = (held + chunk).rpartition(b"\n")
                if newline:
                    yield whole + newline
                    if whole.rpartition(b"\n")[2].startswith(self.end):
                        return
            self.errors.seek(0)
            words = self.errors.read().decode(errors="replace").strip().splitlines() or ["no word"]
            raise RuntimeError(f"its session ended with status {self.process.wait()}: {words[-1]}")

    return LaneProcess


class RayCluster:
    """A Ray cluster as a `Cluster`: its nodes.

    With `files`, the current folder is sent to the nodes, which import users' workloads from it. Raises
    `NothingToRunError` where nobody answers at the address or no node has a CPU.
    """

    def __init__(self, address: str, *, files: bool):
        self._actors: dict[str, Any] = {}
        self._streams: dict[str, Any] = {}
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

    def open(self, place: str, order: bytes) -> None:
        """Request an actor that takes all of its place, as soon as the place is free."""
        cpus, devices = self._resources[place]
        actor_class = ray.remote(_lane_process()).options(
            num_cpus=cpus, num_gpus=devices, label_selector={NODE_ID: place}, max_restarts=0, max_task_retries=0
        )
        self._actors[place] = actor_class.remote([*SET_BY_RAY, *VISIBLE_DEVICES], DONE)
        self.ask(place, order)

    def ask(self, place: str, work: bytes) -> None:
        """Send the actor a line; its answers become events."""
        self._streams[place] = self._actors[place].ask.options(num_returns="streaming").remote(work)

    def events(self, seconds: float) -> list[tuple[str, bytes]]:
        """Return the actors' new lines, or the reasons why they ended; wait up to `seconds` for the first."""
        places = {id(stream): place for place, stream in self._streams.items()}
        waiting = list(self._streams.values())
        if not waiting:
            return []
        ray.wait(waiting, num_returns=1, timeout=seconds)
        ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        events = []
        for stream in ready:
            place = places[id(stream)]
            try:
                events += [(place, line) for line in ray.get(next(stream)).splitlines(keepends=True)]
            except StopIteration:
                del self._streams[place]
            except exceptions.RayError as error:
                del self._streams[place]
                cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
                events.append((place, Done(problem=bounded(" ".join(str(cause).split()), 500)).line))
        return events

    def close(self) -> None:
        """End all actors, and leave the cluster; without its head, they end by themselves."""
        if self._gone:
            return
        for actor in self._actors.values():
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

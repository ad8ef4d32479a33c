"""Asks a worker process what this machine and installation are."""

import sys
from pathlib import Path

from ampbench.errors import NothingToRunError
from ampbench.records.environments import Environment
from ampbench.records.requests import Request
from ampbench.running.channel import Channel, ServerChannel

DEVICE_NODES = ("nvidiactl", "dxg", "dri", "kfd", "nvmap", "nvhost-ctrl")
"""In /dev: NVIDIA's driver, WSL's, the kernel's for Intel and AMD, AMD's compute, and Tegra's two."""


def probe(python: str = sys.executable) -> Environment:
    """Return the environment of interpreter `python`; `NothingToRunError` where it has no torch to measure."""
    channel = ServerChannel(python)
    try:
        return ask_environment(channel)
    finally:
        channel.close()


def ask_environment(channel: Channel, threads: int = 0) -> Environment:
    """Return the environment that the workers of `channel` see; `threads` as in `Request`.

    Raises `NothingToRunError` where it cannot be read, or its torch is too old.
    """
    reply = channel.serve(Request(kind="environment", threads=threads, timeout_seconds=120.0))
    if reply.environment is None:
        raise NothingToRunError(reply.problem or "the environment cannot be read")
    return reply.environment


def may_have_accelerator(folder: Path = Path("/dev")) -> bool:
    """Return whether this machine has a driver of an accelerator, without asking torch."""
    return any((folder / node).exists() for node in DEVICE_NODES)

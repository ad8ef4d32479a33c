"""Asks worker processes what autocast does, one for each device type: some probes abort the process they run in."""

import sys
from collections.abc import Sequence

from ampbench.errors import NothingToRunError, UsageError
from ampbench.records.measurements import Failure
from ampbench.records.requests import Request
from ampbench.records.rules import DEVICE, FAKE, RuleProbe, StoredRules
from ampbench.running.channel import OpenChannel, ServerChannel
from ampbench.running.environment import ask_environment


def probe_devices(
    devices: Sequence[str],
    dtypes: Sequence[str],
    ops: Sequence[str],
    timeout_seconds: float,
    open_channel: OpenChannel = lambda: ServerChannel(sys.executable),
) -> tuple[StoredRules, list[str]]:
    """Return the rules of the torch installed here, and a line for each device type whose probe did not live.

    Raises `UsageError` for an op that is not known, `NothingToRunError` where no probe lived or there is no torch.
    """
    channel = open_channel()
    probes: list[RuleProbe] = []
    problems: list[str] = []
    try:
        environment = ask_environment(channel)
        for device in devices:
            reply = channel.serve(
                Request(
                    kind="rules",
                    device=device,
                    dtypes=list(dtypes),
                    ops=list(ops),
                    threads=1,  # the tensors are tiny: threads that wait for each other take four times as long
                    timeout_seconds=timeout_seconds,
                )
            )
            if reply.problem is not None:
                raise UsageError(reply.problem)
            if reply.failure is not None:
                problems.append(f"autocast on {device} could not be probed: {_ending(reply.failure)}")
            if reply.rules is not None:
                probes.append(reply.rules)
    finally:
        channel.close()
    if not probes:
        raise NothingToRunError("; ".join(problems))
    return StoredRules(note=where_observed(probes), environment=environment, probes=probes), problems


def where_observed(probes: Sequence[RuleProbe]) -> str:
    """Return in words on which device types ops really ran, and which were stood in for by fake tensors."""
    devices = {how: ", ".join(probe.device for probe in probes if probe.how == how) for how in (DEVICE, FAKE)}
    parts = [f"{devices[DEVICE]} observed on the device" if devices[DEVICE] else ""]
    if devices[FAKE]:
        parts.append(f"{devices[FAKE]} on fake tensors, not on hardware: this machine has none")
    return "; ".join(filter(None, parts))


def _ending(failure: Failure) -> str:
    last = f" | {failure.frames[-1]}" if failure.frames else ""
    return " ".join(f"{failure.cause}: {failure.message}{last}".split())

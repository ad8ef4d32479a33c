"""Asks worker processes what autocast does, one for each device type: some probes abort the process they run in."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ampbench.drive.servers import Channel
from ampbench.drive.session import new_header
from ampbench.errors import UsageError
from ampbench.records.case import Environment
from ampbench.records.kinds import RULES
from ampbench.records.measured import Failure
from ampbench.records.rules import RuleProbe, RulesAsked
from ampbench.records.run import Header, Selection, Settings
from ampbench.records.wire import Task, ask

RULES_TASK = Task(RULES, RulesAsked, RuleProbe, "ampbench.instruments.rules.measure:do_rules")

THREADS = 1
"""The tensors are tiny: threads that wait for each other take four times as long."""


def probe_device(
    channel: Channel, device: str, dtypes: Sequence[str], ops: Sequence[str] = (), timeout_seconds: float = 300.0
) -> RuleProbe | Failure:
    """Return what autocast to `dtypes` does to `ops` (all) on a device type, or how the probe ended without an answer.

    Raises `UsageError` for an op that is not known.
    """
    reply = channel.serve(
        ask(
            RULES_TASK,
            RulesAsked(dtypes=list(dtypes), ops=list(ops)),
            device=device,
            threads=THREADS,
            timeout_seconds=timeout_seconds,
        )
    )
    if reply.problem is not None:
        raise UsageError(reply.problem)
    found = RULES_TASK.found(reply) or reply.failure
    assert found is not None
    return found


def probe_devices(
    channel: Channel,
    devices: Sequence[str],
    dtypes: Sequence[str],
    ops: Sequence[str],
    timeout_seconds: float,
    keep: Callable[[RuleProbe], None],
    watch: Callable[[str], None] = lambda _: None,
) -> tuple[list[str], str]:
    """Give each device type's probe to `keep` as soon as it is known; return a line for each that did not live.

    `watch` is told each device type before it is probed. The second value is how it ended, "complete" or "interrupted".
    Raises `UsageError` for an op that is not known.
    """
    problems: list[str] = []
    try:
        for device in devices:
            watch(device)
            found = probe_device(channel, device, dtypes, ops, timeout_seconds)
            if isinstance(found, Failure):
                problems.append(failure_line(device, found))
            else:
                keep(found)
    except KeyboardInterrupt:
        return problems, "interrupted"
    return problems, "complete"


def new_rules_header(
    environment: Environment, devices: Sequence[str], timeout_seconds: float, command: list[str], label: str = ""
) -> Header:
    """Return the header of a new run that probes the rules of `devices` in `environment`."""
    settings = Settings(threads=THREADS, timeout_seconds=timeout_seconds)
    header = new_header(Selection(devices=list(devices)), settings, environment, [], label, command)
    return replace(header, explains=RULES)


def failure_line(device: str, failure: Failure) -> str:
    """Return in a line why the rules of a device type are not known."""
    last = f" | {failure.frames[-1]}" if failure.frames else ""
    why = " ".join(f"{failure.said}{last}".split())
    return f"autocast on {device} could not be probed: {why}"

"""Traces regressed cases once more on both sides of a comparison, and probes autocast's rules where torch differs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from ampbench.errors import AmpbenchError, StoreError
from ampbench.planning import PlannedCase
from ampbench.records.casts import CastPass, Tracing
from ampbench.records.environments import Environment
from ampbench.records.measurements import Failure, Skip
from ampbench.records.rules import RuleProbe
from ampbench.records.runs import Settings
from ampbench.rules.choosing import DTYPES
from ampbench.running.casts import trace_case
from ampbench.running.channel import Channel, OpenChannel, Renewing
from ampbench.running.rules import failure_line, probe_device
from ampbench.units import counted
from ampbench.verdicts import OUTCOME, Finding, Verdict

MOST_CASES = 10
"""So many cases are traced, those that regressed most."""
TRACING = Tracing(time=True, seconds=1.0)

Tell = Callable[[str], None]
"""Told in a line what is being done and what could not be."""


@dataclass(frozen=True, slots=True)
class TracedSide:
    """A side of a comparison: its cases by the id of the baseline's, how to open a server, who keeps what it gives."""

    name: str
    environment: Environment
    settings: Settings
    cases: Mapping[str, PlannedCase]
    open_channel: OpenChannel
    keep: Callable[[CastPass | RuleProbe], None]


def regressed_cases(findings: Sequence[Finding], kinds: Collection[str]) -> list[str]:
    """Return the ids of the cases of which something of `kinds` regressed, the worst first.

    Findings are sorted by what matters. A case that fails now cannot be traced and is not among them.
    """
    gone = {one.case.case_id for one in findings if one.kind == OUTCOME and one.verdict is Verdict.REGRESSED}
    worse = (one.case.case_id for one in findings if one.verdict is Verdict.REGRESSED and one.kind in kinds)
    return [case_id for case_id in dict.fromkeys(worse) if case_id not in gone]


def explain_sides(sides: Sequence[TracedSide], case_ids: Sequence[str], devices: Sequence[str], tell: Tell) -> None:
    """Trace `case_ids`, the worst first, on both sides and probe the rules on `devices` where their torch differs.

    What cannot be traced or probed is told, and so is what ends it all: what was compared is not lost by it. Raises
    `StoreError` where what was seen cannot be kept.
    """
    try:
        with Servers() as servers:
            retrace(sides, case_ids, servers, tell)
            probe_rules(sides, devices, servers, tell)
    except StoreError:
        raise
    except AmpbenchError as error:
        tell(f"no more can be explained: {error}")


def retrace(sides: Sequence[TracedSide], case_ids: Sequence[str], servers: "Servers", tell: Tell) -> None:
    """Trace the first `MOST_CASES` of the cases on each of `sides`, case by case, as long as the others could be."""
    chosen = case_ids[:MOST_CASES]
    left_out = len(case_ids) - len(chosen)
    if not chosen:
        return
    more = f"; {counted(left_out, 'case')} that regressed less {'is' if left_out == 1 else 'are'} not traced"
    tell(f"tracing {counted(len(chosen), 'regressed case')} on both sides{more if left_out else ''}")
    for case_id in chosen:
        for side in sides:
            found = servers.trace(side, side.cases[case_id])
            if not isinstance(found, CastPass):
                tell(f"could not be traced: {case_id} in the {side.name}: {_why(found)}")
                break
            side.keep(found)


def probe_rules(sides: Sequence[TracedSide], devices: Sequence[str], servers: "Servers", tell: Tell) -> None:
    """Probe autocast's rules on `devices` on each side, unless all have the same torch."""
    builds = {(side.environment.torch_version, side.environment.torch_commit) for side in sides}
    if len(builds) < 2 or not devices:
        return
    tell(f"probing the rules of autocast on {', '.join(devices)} on both sides, whose torch differs")
    for device in devices:
        for side in sides:
            found = servers.probe(side, device)
            if isinstance(found, Failure):
                tell(f"{failure_line(device, found)} (in the {side.name})")
                break
            side.keep(found)


class Servers:
    """A server for each side, opened when it is first needed."""

    def __init__(self) -> None:
        self._channels: dict[str, Renewing] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels.values():
            channel.close()

    def trace(self, side: TracedSide, planned: PlannedCase) -> CastPass | Failure | Skip:
        """Return what a side's worker saw of a case, or why it saw nothing."""
        return trace_case(self._channel(side), planned, side.settings, TRACING)

    def probe(self, side: TracedSide, device: str) -> RuleProbe | Failure:
        """Return the rules that a side's torch has on a device type, or how the probe ended."""
        return probe_device(self._channel(side), device, DTYPES, timeout_seconds=side.settings.timeout_seconds)

    def _channel(self, side: TracedSide) -> Channel:
        return self._channels.setdefault(side.name, Renewing(side.open_channel))


def _why(found: Failure | Skip) -> str:
    return " ".join((found.reason if isinstance(found, Skip) else found.said).split())

"""Cases that regressed, traced in both arms of a session, and the rules of autocast probed where torch differs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ampbench.core.units import counted
from ampbench.drive.planning import PlannedCase
from ampbench.drive.servers import OpenChannel, Pool
from ampbench.errors import AmpbenchError, StoreError
from ampbench.instruments.casts.instrument import trace_case
from ampbench.instruments.rules.instrument import failure_line, probe_device
from ampbench.records.case import Environment
from ampbench.records.casts import CastPass, Tracing
from ampbench.records.changes import OUTCOME, Change, ChangeStatus
from ampbench.records.measured import Failure, Skip
from ampbench.records.rules import DTYPES, RuleProbe
from ampbench.records.run import Settings
from ampbench.records.wire import REST, Nothing, ask
from ampbench.studies.check import Checked, ChecksAsked, check_on, wanted_of

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
    keep: Callable[[CastPass | RuleProbe | Checked], None]


def regressed_cases(findings: Sequence[Change], kinds: Collection[str]) -> list[str]:
    """Return the ids of the cases of which something of `kinds` regressed, the worst first.

    Findings are sorted by what matters. A case that fails now cannot be traced and is not among them.
    """
    gone = {one.case.case_id for one in findings if one.kind == OUTCOME and one.status is ChangeStatus.REGRESSED}
    worse = (one.case.case_id for one in findings if one.status is ChangeStatus.REGRESSED and one.kind in kinds)
    return [case_id for case_id in dict.fromkeys(worse) if case_id not in gone]


def explain_sides(sides: Sequence[TracedSide], case_ids: Sequence[str], devices: Sequence[str], tell: Tell) -> None:
    """Trace `case_ids`, the worst first, on both sides.

    Where their torch differs, the rules are probed and known defects looked for on `devices`.

    What cannot be traced or probed is told, and so is what ends it all: what was compared is not lost by it. Raises
    `StoreError` where what was seen cannot be kept.
    """
    try:
        with Pool({side.name: side.open_channel for side in sides}) as pool:
            retrace(sides, case_ids, pool, tell)
            if devices and len({(each.environment.torch_version, each.environment.torch_commit) for each in sides}) > 1:
                probe_rules(sides, devices, pool, tell)
                look_for_defects(sides, devices, pool, tell)
    except StoreError:
        raise
    except AmpbenchError as error:
        tell(f"no more can be explained: {error}")


def retrace(sides: Sequence[TracedSide], case_ids: Sequence[str], pool: Pool, tell: Tell) -> None:
    """Trace the first `MOST_CASES` of the cases on each of `sides`, case by case, as long as the others could be."""
    chosen = case_ids[:MOST_CASES]
    left_out = len(case_ids) - len(chosen)
    if not chosen:
        return
    more = f"; {counted(left_out, 'case')} that regressed less {'is' if left_out == 1 else 'are'} not traced"
    tell(f"tracing {counted(len(chosen), 'regressed case')} on both sides{more if left_out else ''}")
    for case_id in chosen:
        for side in sides:
            found = trace_case(pool.lane(side.name), side.cases[case_id], side.settings, TRACING)
            if side.cases[case_id].case.device != "cpu":
                pool.serve(ask(REST, Nothing()), side.name)  # the other side may need what its context takes
            if not isinstance(found, CastPass):
                tell(f"could not be traced: {case_id} in the {side.name}: {_why(found)}")
                break
            side.keep(found)


def probe_rules(sides: Sequence[TracedSide], devices: Sequence[str], pool: Pool, tell: Tell) -> None:
    """Probe autocast's rules on `devices` on each side."""
    tell(f"probing the rules of autocast on {', '.join(devices)} on both sides, whose torch differs")
    for device in devices:
        for side in sides:
            timeout = side.settings.timeout_seconds
            found = probe_device(pool.lane(side.name), device, DTYPES, timeout_seconds=timeout)
            if isinstance(found, Failure):
                tell(f"{failure_line(device, found)} (in the {side.name})")
                break
            side.keep(found)


def look_for_defects(sides: Sequence[TracedSide], devices: Sequence[str], pool: Pool, tell: Tell) -> None:
    """Run the fast checks for `devices` on each side, check by check in turns.

    Those that go by times are left out: times are what the session measures, and better.
    """
    tell(f"looking for known defects on {', '.join(devices)} on both sides, whose torch differs")
    fast = wanted_of(sides[0].environment, devices, ChecksAsked())
    for wanted in (one for one in fast if not one.check.timed):
        for side in sides:
            side.keep(check_on(pool.lane(side.name), wanted, side.settings))


def _why(found: Failure | Skip) -> str:
    return " ".join((found.reason if isinstance(found, Skip) else found.said).split())

"""Regressed cases traced once more on both sides of a comparison, and autocast's rules probed where torch differs.

The sides are the arms of a session, or two stored runs, in the Pythons that are given or in this one; of the latter
nothing is stored.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ampbench.ab.arms import find_python
from ampbench.base.units import counted
from ampbench.drive.planning import PlannedCase
from ampbench.drive.servers import Channel, OpenChannel, Pool, ServerChannel
from ampbench.drive.session import opened_first, preload_modules
from ampbench.errors import AmpbenchError, NothingToRunError, StoreError, UsageError
from ampbench.instruments.casts.instrument import trace_case
from ampbench.instruments.check.instrument import check_on, wanted_of
from ampbench.instruments.check.records import Checked, ChecksAsked
from ampbench.instruments.rules.instrument import failure_line, probe_device
from ampbench.judge.explaining import with_explanations
from ampbench.judge.pairing import Pair
from ampbench.records.case import Case, Environment
from ampbench.records.casts import CastPass, Tracing
from ampbench.records.measured import Failure, Skip
from ampbench.records.rules import DTYPES, RuleProbe
from ampbench.records.run import Settings
from ampbench.records.verdicts import OUTCOME, Comparison, Finding, Verdict
from ampbench.records.wire import REST, Nothing, ask
from ampbench.store import StoredRun, read_run

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


def regressed_cases(findings: Sequence[Finding], kinds: Collection[str]) -> list[str]:
    """Return the ids of the cases of which something of `kinds` regressed, the worst first.

    Findings are sorted by what matters. A case that fails now cannot be traced and is not among them.
    """
    gone = {one.case.case_id for one in findings if one.kind == OUTCOME and one.verdict is Verdict.REGRESSED}
    worse = (one.case.case_id for one in findings if one.verdict is Verdict.REGRESSED and one.kind in kinds)
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


@dataclass(frozen=True, slots=True)
class _Kept:
    """What was seen of one side, by case id and by device type."""

    casts: dict[str, CastPass] = field(default_factory=dict)
    rules: dict[str, RuleProbe] = field(default_factory=dict)
    checks: dict[str, list[Checked]] = field(default_factory=dict)

    def keep(self, found: CastPass | RuleProbe | Checked) -> None:
        if isinstance(found, CastPass):
            self.casts[found.case_id] = found
        elif isinstance(found, RuleProbe):
            self.rules[found.device] = found
        else:
            self.checks.setdefault(found.device, []).append(found)

    def added_to(self, stored: StoredRun) -> StoredRun:
        traced = stored.having(CastPass, self.casts).having(RuleProbe, {**stored.of(RuleProbe), **self.rules})
        return traced.having(Checked, {**stored.several_of(Checked), **self.checks})


def explain_stored(
    comparison: Comparison, pythons: Mapping[str, str], kinds: Sequence[str], tell: Tell
) -> tuple[Comparison, bool]:
    """Return `comparison` with what explains the cases that regressed in `kinds`, and whether that was interrupted.

    Cases that are explained already are not traced again. `pythons` gives the baseline's and the candidate's
    executable, "" for this one, by the option that names it. A side that cannot be traced is told of, and nothing is
    explained; what ends the tracing, an interruption too, leaves what was seen until then. Raises `UsageError` for a
    Python that is none, or whose torch is not that of its run.
    """
    executables = [_executable(option, given) for option, given in pythons.items()]
    regressed = [one for one in regressed_cases(comparison.findings, kinds) if one not in comparison.explained]
    cases = [{one.case.case_id: one.case for one in comparison.findings if one.case.case_id in regressed}]
    cases.append({case_id: comparison.candidates.get(case_id, case) for case_id, case in cases[0].items()})
    if not regressed:
        tell("nothing to trace: no case regressed that is not explained already")
        return comparison, False
    paths = Path(comparison.baseline.path), Path(comparison.candidate.path)
    runs = [read_run(path, on_rounds=lambda _: None) for path in paths]
    kept = (_Kept(), _Kept())
    interrupted = False
    try:
        with ExitStack() as stack:
            sides = []
            for name, option, stored, python, own, keeper in zip(
                ("baseline", "candidate"), pythons, runs, executables, cases, kept, strict=True
            ):
                side = stack.enter_context(_side(name, option, stored, python, own, keeper, tell))
                if side is None:
                    return comparison, False
                sides.append(side)
            devices = {case.device for each in cases for case in each.values()}
            probed = [device for device in devices if not all(device in stored.of(RuleProbe) for stored in runs)]
            explain_sides(sides, regressed, sorted(probed), tell)
    except KeyboardInterrupt:
        interrupted = True
    before, after = (keeper.added_to(stored) for keeper, stored in zip(kept, runs, strict=True))
    pairs = [Pair(cases[0][case_id], cases[1][case_id], case_id, cases[1][case_id].case_id) for case_id in regressed]
    return with_explanations(comparison, pairs, before, after), interrupted


@contextmanager
def _side(
    name: str, option: str, stored: StoredRun, python: str, cases: Mapping[str, Case], kept: _Kept, tell: Tell
) -> Iterator[TracedSide | None]:
    """Yield a side whose Python has the torch of its run; None, and why, where this Python has another."""
    header = stored.header
    sources = {source.name: source for source in header.sources}
    if header.imported or any(case.workload not in sources for case in cases.values()):
        tell(f"the {name} cannot be traced: it does not tell where its workloads are")
        yield None
        return
    if header.arm and any(given.startswith("git:") for given in header.arm.given):
        tell(f"the {name} cannot be traced: its files were those of a commit; ampbench ab traces while it has them")
        yield None
        return
    variables = {key: value for key, value in (header.arm.settings if header.arm else {}).items() if key.isupper()}

    def open_server() -> Channel:
        preload = preload_modules(header.selection, list(header.sources))
        return ServerChannel(python or sys.executable, preload, variables)

    with ExitStack() as stack:
        try:
            first = stack.enter_context(opened_first(open_server, header.settings.threads))
        except NothingToRunError as error:
            raise UsageError(f"{option}: {error}; give a Python that has this ampbench and torch") from error
        ours, theirs = header.environment.torch_version, first.environment.torch_version
        if ours != theirs and python:
            raise UsageError(f"{option}: the {name} was measured with torch {ours}, that Python has torch {theirs}")
        if ours != theirs:
            tell(f"the {name} cannot be traced: its torch is {ours}, this Python's {theirs}; {option} names another")
            yield None
            return
        yield TracedSide(
            name,
            first.environment,
            header.settings,
            {case_id: PlannedCase(case=case, source=sources[case.workload]) for case_id, case in cases.items()},
            first.open_channel,
            kept.keep,
        )


def _executable(option: str, given: str) -> str:
    """Return the Python that is given, "" where none is."""
    found = find_python(given) if given else ""
    if found is None:
        raise UsageError(f"{option} {given}: there is no such Python; give an executable or its environment's folder")
    return found

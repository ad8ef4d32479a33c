"""Traces what regressed between two stored runs, in the Pythons that are given or in this one; stores nothing."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ampbench.comparing.pairing import Pair
from ampbench.comparing.traces import with_explanations
from ampbench.errors import NothingToRunError, UsageError
from ampbench.planning import PlannedCase
from ampbench.records.cases import Case
from ampbench.records.casts import CastPass
from ampbench.records.rules import RuleProbe
from ampbench.running.arms import find_python
from ampbench.running.channel import Channel, ServerChannel
from ampbench.running.retracing import Tell, TracedSide, explain_sides, regressed_cases
from ampbench.running.session import opened_first, preload_modules
from ampbench.store import StoredRun, read_run
from ampbench.verdicts import Comparison


@dataclass(frozen=True, slots=True)
class _Kept:
    """What was seen of one side, by case id and by device type."""

    casts: dict[str, CastPass] = field(default_factory=dict)
    rules: dict[str, RuleProbe] = field(default_factory=dict)

    def keep(self, found: CastPass | RuleProbe) -> None:
        if isinstance(found, CastPass):
            self.casts[found.case_id] = found
        else:
            self.rules[found.device] = found

    def added_to(self, stored: StoredRun) -> StoredRun:
        return replace(stored, casts=self.casts, rules=stored.rules | self.rules)


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
    runs = [read_run(path, on_round=lambda _: None) for path in paths]
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
            probed = [device for device in devices if not all(device in stored.rules for stored in runs)]
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

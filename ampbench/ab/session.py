"""An A/B session: two arms measured in interleaved blocks, stored as two runs, judged as it proceeds.

`compare` makes all its decisions, so that a later verdict from the files is the one that ended the session.
"""

import dataclasses
import secrets
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from ampbench.ab.arms import (
    CASE_SETTINGS,
    ArmRequest,
    Checkout,
    checked_out,
    folder_in,
    left_out,
    repository_paths,
    selection_of,
    settings_of,
    source_in,
)
from ampbench.ab.blocks import BlockSession, Lane, Look
from ampbench.core.units import counted
from ampbench.drive import session
from ampbench.drive.planning import PlannedCase, check_selection, make_plan
from ampbench.drive.servers import ONLY, Pool, ServerChannel, ask_environment
from ampbench.errors import AmpbenchError, NothingToRunError, StoreError, UnknownNameError, UsageError
from ampbench.judge.compare import compare, default_threshold
from ampbench.judge.exact import ThresholdOf
from ampbench.judge.pairing import pair_cases
from ampbench.judge.rounds import MeasuredRun
from ampbench.records.case import Environment, ParameterValue, WorkloadSource
from ampbench.records.casts import CastPass, Tracing
from ampbench.records.changes import OUTCOME, Change, ChangeCode, ChangeStatus
from ampbench.records.measured import Failure, Skip
from ampbench.records.rules import RuleProbe
from ampbench.records.run import Arm, Entry, Footer, Selection, Settings
from ampbench.records.wire import REST, Description, Nothing, ask
from ampbench.store import RunWriter
from ampbench.studies import check, rules
from ampbench.studies.casts import TASK
from ampbench.studies.check import ChecksAsked
from ampbench.studies.work import ask_worker, filled
from ampbench.workloads.index import WORKLOADS

OPEN = frozenset({ChangeCode.UNDECIDED, ChangeCode.TAIL_UNDECIDED, ChangeCode.TOO_FEW_BLOCKS, ChangeCode.UNFIT_MACHINE})
"""The codes with which a case is measured further."""
START_SECONDS = 3.0
"""The cost of starting and ending the servers of a block (benchmarks/self): each imports torch."""
BUILD_SECONDS = 0.04
"""The cost of a build for a step of any length: making it, warming up, and `TIMING_SECONDS`."""
TIMING_SECONDS = 0.025
"""The timing of a build: shorter than most disturbances, so that the lanes of a case share them."""
FEWEST_BUILDS, MOST_BUILDS = 6, 12

Pools = Mapping[str, Pool]
"""The servers of each side, by its name."""
Tell = Callable[[str], None]
"""Gets a line about the current work or its failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedArm(session.Prepared):
    """An arm ready to measure: its selection, environment and plan, and the function that opens its servers."""

    request: ArmRequest
    checkout: Checkout | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedComparison:
    """Both arms, and the cases to measure: baseline's and candidate's, by the id of the baseline's.

    `notes` are surprising facts about the arms.
    """

    baseline: PreparedArm
    candidate: PreparedArm
    pairs: Mapping[str, tuple[PlannedCase, PlannedCase]]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The limits of a session: the metrics' kinds, blocks and seconds.

    An arm against `itself` has no control, every case has all blocks, and nothing is explained. Otherwise cases that
    regressed are traced in both arms afterwards and, where their torch differs, autocast's rules are probed.
    """

    kinds: Collection[str]
    blocks: int = 32
    max_seconds: float | None = None
    itself: bool = False
    threshold_of: ThresholdOf = default_threshold


@contextmanager
def prepare(
    selection: Selection, settings: Settings, baseline: ArmRequest, candidate: ArmRequest
) -> Iterator[PreparedComparison]:
    """Plan a session; every error in selection or arms is raised here, before any measurement.

    Commits stay checked out within the context. Raises `UsageError` for an arm that cannot measure, `NothingToRunError`
    where no case can be measured by both.
    """
    if settings.memory_limit_bytes is None:
        settings = structs.replace(settings, memory_limit_bytes=session.default_memory_limit())
    requests = {"--baseline": baseline, "--candidate": candidate}
    with ExitStack() as stack:
        for option, request in requests.items():
            _check_settings(option, request, selection)
        checkouts = {option: stack.enter_context(checked_out(option, request)) for option, request in requests.items()}
        current_paths = repository_paths() if any(checkouts.values()) else []

        def prepared(option: str, request: ArmRequest, checkout: Checkout | None) -> PreparedArm:
            paths = checkout.paths if checkout and current_paths else current_paths
            return _prepared_arm(option, request, checkout, paths, selection, settings)

        arms = [prepared(option, request, checkouts[option]) for option, request in requests.items()]
        notes = [note] if (note := left_out([baseline, candidate])) else []
        yield PreparedComparison(baseline=arms[0], candidate=arms[1], pairs=_pairs(*arms), notes=notes)


def timed_for(prepared: PreparedComparison, seconds: float | None = None) -> PreparedComparison:
    """Return the same comparison with enough builds in a round for `seconds` of timing.

    Without `seconds`, a block measures for about as long as it starts servers: that costs the same for one case as for
    a hundred, and the fastest of more builds spreads less.
    """
    if seconds is None:
        builds = round(START_SECONDS / (3 * len(prepared.pairs) * BUILD_SECONDS))
    else:
        builds = round(seconds / TIMING_SECONDS)
    builds = min(max(builds, FEWEST_BUILDS), MOST_BUILDS)
    seconds = builds * TIMING_SECONDS if seconds is None else seconds

    def with_builds(arm: PreparedArm) -> PreparedArm:
        settings = structs.replace(arm.settings, builds=builds, min_run_seconds=seconds)
        return dataclasses.replace(arm, settings=settings)

    return dataclasses.replace(
        prepared, baseline=with_builds(prepared.baseline), candidate=with_builds(prepared.candidate)
    )


def measure(
    prepared: PreparedComparison,
    plan: Plan,
    results: Path,
    label: str,
    command: list[str],
    watch: Callable[[str, Entry | None], None],
    tell: Tell = lambda _: None,
) -> tuple[Path, Path, str]:
    """Measure; return the run files of baseline and candidate, and the end of the session.

    The end is "complete", "out of time" or "interrupted"; the files hold all that was measured. Explanations of
    regressions are appended to both afterwards; `tell` gets a line about traces and their failures.
    """
    name = secrets.token_hex(6)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(_writer(arm, role, name, results, label, command))
            for role, arm in (("baseline", prepared.baseline), ("candidate", prepared.candidate))
        ]
        timed = "time" in plan.kinds
        blocks = BlockSession(
            _lanes(prepared, writers, control=timed and not plan.itself),
            lambda: _look(writers[0].path, writers[1].path, plan) if timed else Look(),
            blocks=plan.blocks if timed else 1,  # one block shows that a case still runs
            max_seconds=plan.max_seconds,
            watch=watch,
            tell=tell,
        )
        try:
            if {"memory", "accuracy"} & set(plan.kinds):
                blocks.measure_passes()
            ended = blocks.measure_rounds()
        except KeyboardInterrupt:
            ended = "interrupted"
        except NothingToRunError as error:  # a server cannot start
            _end(writers, "interrupted")
            show = shlex.join(["ampbench", "compare", *(str(writer.path) for writer in writers)])
            raise NothingToRunError(f"{error}; see the measurements: {show}") from error
        footer = ended
        if not plan.itself and ended != "interrupted":
            try:
                findings = _compared(writers[0].path, writers[1].path, plan)
                devices = list(
                    dict.fromkeys(planned.case.device for pair in prepared.pairs.values() for planned in pair)
                )
                explain_sides(
                    _lanes(prepared, writers, control=False),
                    [prepared.baseline.environment, prepared.candidate.environment],
                    regressed_cases(findings, plan.kinds), devices, tell,
                )  # fmt: skip
            except KeyboardInterrupt:
                ended = "interrupted"  # the files have all verdicts
        _end(writers, footer)
        return writers[0].path, writers[1].path, ended


def _end(writers: Iterable[RunWriter], ended: str) -> None:
    for writer in writers:
        writer.append(Footer(ended=ended, finished_at=session.now()))


def _compared(baseline: Path, candidate: Path, plan: Plan) -> Sequence[Change]:
    return compare(MeasuredRun.read(baseline), MeasuredRun.read(candidate), plan.threshold_of).findings


def _look(baseline: Path, candidate: Path, plan: Plan) -> Look:
    """Return the decisions of the blocks so far."""
    findings = _compared(baseline, candidate, plan)
    times = [finding for finding in findings if finding.kind == "time"]
    fired = {finding.case.case_id for finding in times if finding.code is ChangeCode.UNCONFIRMED}
    going_on = {finding.case.case_id for finding in times if finding.code in OPEN}
    decided = {finding.case.case_id for finding in times} - going_on - fired
    return Look(decided=set() if plan.itself else decided, fired=fired)


def _check_settings(option: str, request: ArmRequest, selection: Selection) -> None:
    """Raise `UsageError` for a setting that no option and no selected workload has, and for an invalid value.

    Users' workloads are checked once they are built.
    """
    settings_of(request, Settings())
    sources = check_selection(selection)
    known = {name for source in sources if source.builtin for name in WORKLOADS[source.name].sizes}
    others = [name for name in request.settings if not name.isupper() and name not in CASE_SETTINGS]
    for name in others if all(source.builtin for source in sources) else ():
        if name.rpartition(".")[2] not in known:
            raise UnknownNameError(f"setting in {option}", name, [*CASE_SETTINGS, *sorted(known)])
    check_selection(selection_of(request, selection))


def _prepared_arm(
    option: str,
    request: ArmRequest,
    checkout: Checkout | None,
    paths: list[Path],
    selection: Selection,
    settings: Settings,
) -> PreparedArm:
    arm_selection, settings = selection_of(request, selection), settings_of(request, settings)
    sources = check_selection(arm_selection)
    preload = session.preload_modules(arm_selection, sources)
    for source in sources:
        source_in(checkout, source)

    def open_channel() -> ServerChannel:
        return ServerChannel(request.python, preload, request.variables, paths, folder_in(checkout))

    try:
        pool = Pool({ONLY: open_channel}).open()
    except NothingToRunError as error:
        raise UsageError(f"{option}: {error}; give a Python that has this ampbench and torch") from error
    with pool:
        environment = ask_environment(pool, settings.threads)
        describe = session.describer(pool, settings)

        def describe_here(
            source: WorkloadSource, parameters: Mapping[str, ParameterValue], preset: str = "", /
        ) -> Description:
            return describe(source_in(checkout, source), parameters, preset)

        plan = make_plan(arm_selection, environment, describe_here)
    return PreparedArm(
        request=request,
        checkout=checkout,
        selection=arm_selection,
        settings=settings,
        environment=environment,
        plan=[dataclasses.replace(planned, source=source_in(checkout, planned.source)) for planned in plan],
        open_channel=open_channel,
    )


def _pairs(baseline: PreparedArm, candidate: PreparedArm) -> dict[str, tuple[PlannedCase, PlannedCase]]:
    """Return the cases that both arms can measure, by the id of the baseline's; `NothingToRunError` without any."""
    ours, theirs = ({planned.case.case_id: planned for planned in arm.plan} for arm in (baseline, candidate))
    settings = {**baseline.request.settings, **candidate.request.settings}
    paired = pair_cases([p.case for p in baseline.plan], [p.case for p in candidate.plan], settings)
    every = {
        pair.baseline.case_id: (ours[pair.baseline.case_id], theirs[pair.candidate.case_id]) for pair in paired.pairs
    }
    pairs = {case_id: (first, second) for case_id, (first, second) in every.items() if not (first.skip or second.skip)}
    if not pairs:
        reasons = dict.fromkeys(planned.skip for pair in every.values() for planned in pair if planned.skip)
        text = "; ".join(reasons) or "the arms have no case in common"
        raise NothingToRunError(f"nothing can run in both arms: {text}")
    return pairs


def _lanes(prepared: PreparedComparison, writers: list[RunWriter], control: bool) -> list[Lane]:
    """Return the lanes: baseline, control if there is one, candidate."""
    ours = {case_id: pair[0] for case_id, pair in prepared.pairs.items()}
    theirs = {case_id: pair[1] for case_id, pair in prepared.pairs.items()}
    baseline, candidate = prepared.baseline, prepared.candidate

    def lane(name: str, cases: dict[str, PlannedCase], arm: PreparedArm, writer: RunWriter) -> Lane:
        return Lane(name, cases, arm.settings, arm.open_channel, writer.append, control=name == "control")

    controls = [lane("control", ours, baseline, writers[0])] if control else []
    return [
        lane("baseline", ours, baseline, writers[0]), *controls, lane("candidate", theirs, candidate, writers[1]),
    ]  # fmt: skip


def _writer(arm: PreparedArm, role: str, name: str, results: Path, label: str, command: list[str]) -> RunWriter:
    """Return the writer of an arm's new run, after its cases and skips."""
    arm_record = Arm(session=name, name=role, given=arm.request.given, settings=dict(arm.request.settings))
    commit = arm.checkout.commit if arm.checkout else None
    return session.begin(arm, results, label, command, commit=commit, arm=arm_record)


MOST_CASES = 10
"""The number of regressed cases that are traced, worst first."""
TRACING = Tracing(time=True, seconds=1.0)


def regressed_cases(findings: Sequence[Change], kinds: Collection[str]) -> list[str]:
    """Return the ids of the cases with a regression of one of the `kinds`, worst first.

    Findings are sorted by importance. A case that fails now cannot be traced and is left out.
    """
    worse = [finding for finding in findings if finding.status is ChangeStatus.REGRESSED]
    gone = {finding.case.case_id for finding in worse if finding.kind == OUTCOME}
    ids = dict.fromkeys(finding.case.case_id for finding in worse if finding.kind in kinds)
    return [case_id for case_id in ids if case_id not in gone]


def explain_sides(
    sides: Sequence[Lane], environments: Sequence[Environment], case_ids: Sequence[str], devices: Sequence[str],
    tell: Tell,
) -> None:  # fmt: skip
    """Trace `case_ids`, the worst first, on both sides.

    Where their torch differs, autocast's rules and known defects are checked on `devices`, too. A case that cannot be
    traced or probed is reported; the comparison stays. Raises `StoreError` where a record cannot be stored.
    """
    try:
        with ExitStack() as stack:
            pools = {side.name: stack.enter_context(Pool({ONLY: side.open_channel})) for side in sides}
            retrace(sides, case_ids, pools, tell)
            torches = {(environment.torch_version, environment.torch_commit) for environment in environments}
            if devices and len(torches) > 1:
                probe_rules(sides, devices, pools, tell)
                look_for_defects(sides, environments[0], devices, pools, tell)
    except StoreError:
        raise
    except AmpbenchError as error:
        tell(f"no more can be explained: {error}")


def retrace(sides: Sequence[Lane], case_ids: Sequence[str], pools: Pools, tell: Tell) -> None:
    """Trace the first `MOST_CASES` of the cases on each of `sides`, case by case; a failure skips the other side."""
    chosen = case_ids[:MOST_CASES]
    left_out = len(case_ids) - len(chosen)
    if not chosen:
        return
    more = f"; {counted(left_out, 'case')} that regressed less {'is' if left_out == 1 else 'are'} not traced"
    tell(f"tracing {counted(len(chosen), 'regressed case')} on both sides{more if left_out else ''}")
    for case_id in chosen:
        for side in sides:
            trace = ask_worker(pools[side.name], side.cases[case_id], side.settings, TASK, TRACING)
            if side.cases[case_id].case.device != "cpu":
                pools[side.name].serve(ask(REST, Nothing()))  # free its context's memory for the other side
            if not isinstance(trace, CastPass):
                tell(f"could not be traced: {case_id} in the {side.name}: {_why(trace)}")
                break
            side.write(trace)


def probe_rules(sides: Sequence[Lane], devices: Sequence[str], pools: Pools, tell: Tell) -> None:
    """Probe autocast's rules on `devices` on each side."""
    tell(f"probing the rules of autocast on {', '.join(devices)} on both sides, whose torch differs")
    for device in devices:
        for side in sides:
            blank = RuleProbe(device=device, dtypes=[])
            probe = filled(pools[side.name], rules.STUDY, side.settings, Nothing(), blank)
            if probe.error:
                tell(f"autocast on {device} could not be probed in the {side.name}: {probe.error}")
                break
            side.write(probe)


def look_for_defects(
    sides: Sequence[Lane], environment: Environment, devices: Sequence[str], pools: Pools, tell: Tell
) -> None:
    """Run the fast checks for `devices` on each side, check by check in turns.

    Timed checks are left out: the session itself measures times better.
    """
    tell(f"looking for known defects on {', '.join(devices)} on both sides, whose torch differs")
    asked = ChecksAsked()
    for wanted in check.wanted_of(environment, devices, asked):
        for side in () if check.check_of(wanted).timed else sides:
            side.write(filled(pools[side.name], check.STUDY, side.settings, asked, wanted))


def _why(entry: Failure | Skip) -> str:
    return " ".join((entry.reason if isinstance(entry, Skip) else entry.said).split())

"""One measuring session, from a selection to a complete run file."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import structs

from ampbench import __version__
from ampbench.core.precisions import BUILT_IN, PRECISIONS
from ampbench.drive.fitness import available_kib
from ampbench.drive.planning import Describe, PlannedCase, check_selection, make_plan
from ampbench.drive.rounds import OpenCases, Part, Schedule, Watch, budgeted, drive, make_schedule, take_shard, turn_of
from ampbench.drive.servers import ONLY, Channel, InProcess, OpenChannel, Pool, ServerChannel, ask_environment
from ampbench.errors import NothingToRunError, UsageError, WorkloadError
from ampbench.records.case import PHASES, Environment, OwnPrecision, ParameterValue, WorkloadSource, compile_mode
from ampbench.records.labels import few
from ampbench.records.measured import Skip
from ampbench.records.run import DIRTY, SCHEMA, Arm, Footer, Header, Selection, Settings, Shard
from ampbench.records.wire import DESCRIBE, DescribeAsked, Description, ask
from ampbench.store import RunWriter, StoredRun, new_run_id
from ampbench.workloads.index import LIBRARIES, WORKLOADS, is_users

MEMORY_SHARE = 0.85
"""The default limit of a worker's resident memory, as a share of the memory available at the start."""

TOGETHER = 2
"""Servers that start at once, each on its own core: importing torch uses one thread."""

PRELOADED = {"torchvision": "torchvision", "sklearn": "sklearn.datasets"}
"""Slow imports of packages that workloads need, done early."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A planned session: its environment, its cases, and the channels that will measure them."""

    selection: Selection
    settings: Settings
    environment: Environment
    plan: list[PlannedCase]
    open_channel: OpenChannel


@dataclass(frozen=True, slots=True)
class Scheduled(Prepared):
    """A session ready to measure by a `schedule`; its first server has the number `first_server`.

    `begun` are the first servers, where several started together. With a `shard`, the plan is only its cases.
    """

    schedule: Schedule
    first_server: int
    begun: list[Channel]
    shard: Shard | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A first server, the environment that it reports, and a function that opens servers, this one first.

    A killed first server is replaced. `begun` are servers that started with it.
    """

    channel: Channel
    environment: Environment
    open_channel: OpenChannel
    begun: list[Channel]


@contextlib.contextmanager
def opened_first(
    open_new: OpenChannel, threads: int, meanwhile: Callable[[], object] = lambda: None, together: int = 1
) -> Iterator[Opened]:
    """Open a server that reports the environment, and is kept for the first work; it ends with the context.

    `together` servers start if possible, and `meanwhile` is called as they do, unless `open_new` waits. Raises
    `NothingToRunError` where the first cannot start.
    """
    opened: list[Channel] = []

    def open_next() -> Channel:
        opened.append(open_new())
        return opened[-1]

    pool, begun = Pool({ONLY: open_next}, {ONLY: open_next()}), []
    try:
        with contextlib.suppress(NothingToRunError):
            for _ in range(together - 1):
                begun.append(open_next())
        meanwhile()
        environment = ask_environment(pool, threads)
        yield Opened(pool, environment, lambda: pool.take() or open_new(), begun)
    finally:
        for channel in opened:
            channel.close()


@contextlib.contextmanager
def prepare(
    selection: Selection,
    settings: Settings,
    resumed: StoredRun | None = None,
    part: Part | None = None,
    meanwhile: Callable[[], object] = lambda: None,
    *,
    ahead: bool = False,
    open_server: Callable[[list[str]], Channel] = lambda preload: ServerChannel(preload=preload, wait=False),
) -> Iterator[Scheduled]:
    """Plan a session: every error in `selection` is raised here, before any measurement.

    The server that reports the environment and builds users' workloads once also serves the first round. With
    `resumed`, only the turns that this run lacks are scheduled; raises `UsageError` where the environment has changed.
    With `part`, the plan is one shard. `meanwhile` is called as the server starts; with `ahead` a second server starts
    as long as no core is needed otherwise. `open_server` opens a server that imports the given modules first.
    """
    sources = check_selection(selection)
    preload = preload_modules(selection, sources)
    open_new: OpenChannel = (lambda: open_server(preload)) if settings.isolation else InProcess
    together = min(TOGETHER, settings.rounds) if ahead and settings.isolation else 1
    with opened_first(open_new, settings.threads, meanwhile, together) as first:
        environment = first.environment
        if resumed is not None:
            check_same(resumed, environment)
            environment = resumed.header.environment  # with the measured slowdown of its plan
        if settings.memory_limit_bytes is None and settings.isolation:
            settings = structs.replace(settings, memory_limit_bytes=default_memory_limit())
        describe = describer(first.channel, settings)
        plan = make_plan(selection, environment, describe)
        shard = resumed.header.shard if resumed else None
        if resumed is not None and shard is not None:
            plan = [planned for planned in plan if planned.case.case_id in resumed.cases]
        elif part is not None:
            plan, shard = take_shard(plan, part)
        if resumed is not None:
            check_same_cases(resumed, plan)
        done = set(filter(None, map(turn_of, resumed.entries()))) if resumed else ()
        settings = budgeted(settings, plan)
        yield Scheduled(
            selection=selection,
            settings=settings,
            environment=environment,
            plan=plan,
            open_channel=first.open_channel,
            schedule=make_schedule(plan, settings, done, resumed.given_up if resumed else ()),
            begun=[first.open_channel(), *first.begun] if first.begun else [],
            first_server=1 + max((row.server for row in resumed.rounds), default=-1) if resumed else 0,
            shard=shard,
        )


def measure(prepared: Scheduled, writer: RunWriter, watch: Watch, undecided: OpenCases | None = None) -> str:
    """Measure the schedule as `drive` does, write every entry at once, and return how the session ended.

    An interruption ends the session with a footer, and so does a server that cannot start, whose error is raised;
    measured entries stay.
    """
    try:
        drive(
            prepared.schedule,
            prepared.settings,
            prepared.open_channel,
            writer.append,
            watch,
            first_server=prepared.first_server,
            together=TOGETHER if prepared.settings.isolation else 1,
            begun=prepared.begun,
            undecided=undecided,
        )
    except (KeyboardInterrupt, NothingToRunError) as error:
        writer.append(Footer(ended="interrupted", finished_at=now()))
        if isinstance(error, NothingToRunError):
            raise
        return "interrupted"
    writer.append(Footer(ended="complete", finished_at=now()))
    return "complete"


def begin(prepared: Prepared, results: Path | str, label: str, command: list[str], **fields: Any) -> RunWriter:
    """Begin the run file of a planned session in a results folder: its header, its cases, and the reasons for skips.

    `fields` are further arguments of `new_header`. Raises any error of `RunWriter.create`.
    """
    header = new_header(
        prepared.selection, prepared.settings, prepared.environment, prepared.plan, label, command, **fields
    )
    writer = RunWriter.create(results, header, [planned.case for planned in prepared.plan])
    writer.append(*planned_skips(prepared.plan))
    return writer


def new_header(
    selection: Selection,
    settings: Settings,
    environment: Environment,
    plan: list[PlannedCase],
    label: str,
    command: list[str],
    commit: str | None = None,
    arm: Arm | None = None,
    shard: Shard | None = None,
) -> Header:
    """Return the header of a new run, of `commit` (default: the repository's in the current folder)."""
    started = datetime.now(UTC)
    names = dict.fromkeys(planned.case.precision for planned in plan)
    commit = commit or _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return Header(
        schema=SCHEMA,
        run=new_run_id(environment.host, started),
        ampbench_version=__version__,
        started_at=started.isoformat(timespec="milliseconds"),
        label=label,
        commit=commit,
        committed_at=commit_time(commit),
        command=command,
        selection=selection,
        settings=settings,
        sources=list(dict.fromkeys(planned.source for planned in plan)),
        environment=environment,
        arm=arm,
        shard=shard,
        precisions=[OwnPrecision.of(PRECISIONS[name]) for name in names if name not in BUILT_IN and name in PRECISIONS],
    )


def planned_skips(plan: list[PlannedCase]) -> list[Skip]:
    """Return the entries of the cases that will not be measured, with the reasons."""
    return [Skip(case_id=planned.case.case_id, reason=planned.skip) for planned in plan if planned.skip]


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def describer(channel: Channel, settings: Settings) -> Describe:
    """Return a function that describes users' workloads by building each once on `channel`; it raises `WorkloadError`.

    Libraries describe their networks without building them, all in one worker.
    """
    known: dict[str, Description] = {}

    def describe(source: WorkloadSource, parameters: Mapping[str, ParameterValue], preset: str = "", /) -> Description:
        key = f"{source} {sorted(parameters.items())} {preset}"
        if key not in known:
            request = ask(
                DESCRIBE,
                DescribeAsked(parameters=dict(parameters), preset=preset),
                source=source,
                fresh=is_users(source),
                timeout_seconds=settings.timeout_seconds,
                memory_limit_bytes=settings.memory_limit_bytes,
                threads=settings.threads,
                seed=settings.seed,
            )
            reply = channel.serve(request)
            description = DESCRIBE.found(reply)
            if description is None:
                raise WorkloadError(reply.problem or f"workload {source.name} cannot be built")
            known[key] = description
        return known[key]

    return describe


def preload_modules(selection: Selection, sources: list[WorkloadSource]) -> list[str]:
    """Return the modules that a server imports once for its workers, where they will be used.

    These are the optimizers' (through torch._dynamo, a second), torchvision's and scikit-learn's data, the libraries of
    selected networks, and ampbench's own families. The server skips modules that it cannot import.
    """
    modules = []
    phases = selection.phases or PHASES
    if "training" in phases or any(map(compile_mode, selection.paths)):
        modules.append("torch._dynamo")
    needed = {WORKLOADS[source.name].needs for source in sources if source.builtin}
    libraries = [LIBRARIES[source.family] for source in sources if source.family in LIBRARIES]
    families = dict.fromkeys(source.module for source in sources if source.builtin)
    modules += [module for package, module in PRELOADED.items() if package in needed]
    return [*dict.fromkeys([*modules, *(name for row in libraries for name in (row.name, row.module)), *families])]


def check_same_cases(resumed: StoredRun, plan: list[PlannedCase]) -> None:
    """Raise `UsageError` where `plan` has other cases than a run began with."""
    if set(resumed.cases) != {planned.case.case_id for planned in plan}:
        raise UsageError(
            f"run {resumed.header.run} cannot be resumed: its selection now gives other cases than it began with"
        )


def check_same(run: StoredRun, current: Environment) -> None:
    """Raise `UsageError` where `run` began in another environment than `current`, or on another card of its kind."""
    before = run.header.environment
    known = {
        name.replace("_", " "): (getattr(before, name), getattr(current, name))
        for name in ("host", "torch_version", "torchvision_version", "cpu", "cuda_version")
    }
    for type in {case.device for case in run.cases.values()}:
        cards = [environment.device(type) for environment in (before, current)]
        uuids = [card.details.get("uuid", "") if card is not None else "" for card in cards]
        if all(uuids):
            known[f"{type} device"] = uuids[0], uuids[1]
    for name, (was, is_now) in known.items():
        if was != is_now:
            raise UsageError(
                f"run {run.header.run} cannot be resumed here: its {name} was {was}, here it is {is_now}; "
                "start a new run"
            )


def check_same_network(run: str, workload: str, was: Any, now: Any) -> None:
    """Raise `UsageError` where a run's record has other weights or inputs than the one `now`.

    Unknown digests are not compared.
    """
    for kind in ("weights", "inputs"):
        before, current = (getattr(record, f"{kind}_digest", "") for record in (was, now))
        if before and current and before != current:
            raise UsageError(
                f"run {run} cannot be resumed: the {kind} of {workload} are others than it began with; start a new run"
            )


def default_memory_limit() -> int | None:
    """Return `MEMORY_SHARE` of the memory available now; None where it is unknown."""
    available = available_kib()
    return int(available * 1024 * MEMORY_SHARE) if available else None


def commit_time(commit: str | None) -> str | None:
    """Return the time of `commit` in the current folder's repository, ISO 8601; None where git does not report it."""
    # git may be set to show a signature before the time
    options = "--no-patch", "--no-show-signature", "--format=%cI"
    return _git("show", *options, commit.removesuffix(DIRTY), "--") if commit else None


def _git(*arguments: str) -> str | None:
    try:
        completed = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip() or None


def require_work(prepared: Prepared) -> None:
    """Raise `NothingToRunError`, with the reasons and their workloads, where every selected case would be skipped."""
    if not any(not planned.skip for planned in prepared.plan):
        reasons: dict[str, list[str]] = {}
        for planned in prepared.plan:
            reasons.setdefault(planned.skip, []).append(planned.case.workload)
        text = "; ".join(f"{reason} ({few(workloads)})" for reason, workloads in reasons.items())
        raise NothingToRunError(f"nothing can run here: {text}")

"""`ampbench run`: measure here or on a cluster, store, and end with the table and the advice."""

import secrets
import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import click
from msgspec.structs import replace

from ampbench import store
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    DEFAULTS,
    DURATION,
    Format,
    Label,
    Limited,
    Limits,
    Option,
    Results,
    Resume,
    Selected,
    Verbose,
    refuse_beside_resume,
    results_words,
    resumed_imports,
    run_words,
    stored_already,
    typed_seconds,
)
from ampbench.cli.printing import OutputFormat, print_document, print_listing, print_note, print_text
from ampbench.cli.progress import progress, progress_line
from ampbench.core import by_key
from ampbench.core.budget import Budget
from ampbench.core.units import counted, format_duration
from ampbench.drive import fitness, session
from ampbench.drive.planning import check_selection
from ampbench.drive.rounds import MOST_ROUNDS, Part, estimate, is_accelerated, parse_shard
from ampbench.drive.session import Scheduled
from ampbench.errors import CASE_FAILED, INTERRUPTED, NothingToRunError, StoreError, UnknownNameError, UsageError
from ampbench.records.kinds import deed_of, verb_of
from ampbench.records.labels import Pending, not_the_commits
from ampbench.records.run import EACH, ON, Fleet, Selection, Settings
from ampbench.show.wording import words
from ampbench.store import StoredRun
from ampbench.store.folder import lanes_together
from ampbench.studies.ceilings import Ceiling, ceilings_known
from ampbench.workloads.index import is_users

WITH_RESUME = frozenset({"resume", "results", "yes", "ray", "dry_run", "format", "json"})
"""The parameters that a command line may give with --resume; the run has all others."""

LONG_SECONDS, ASK_SECONDS = 120.0, 600.0
"""The seconds from which a run prints its estimate, and from which it asks whether to begin."""
NO_RAY = 'ampbench run --ray needs Ray: pip install "ampbench[ray]"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How to show the end of a run, and the results folder that holds it."""

    results: Path
    format: OutputFormat
    limits: Budget
    verbose: bool = False


def command(
    *,
    context: click.Context,
    selection: Selected,
    budget: Annotated[
        str,
        Option(
            metavar="SECONDS",
            help=f"Time of one network, {DURATION}; of all with an accelerator. Default: 30; 5m with an accelerator.",
        ),
    ] = "",
    rounds: Annotated[
        int | None,
        Option(
            metavar="N", min=1, max=1000, help="Rounds per case in place of a budget. Default of --shard and --ray: 4."
        ),
    ] = None,
    min_run_time: Annotated[
        str, Option(metavar="SECONDS", help=f"Timing per round, {DURATION}.")
    ] = f"{DEFAULTS.min_run_seconds:g}",
    settings: Limited,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    resume: Resume = "",
    shard: Annotated[
        str,
        Option(
            "--shard",
            metavar="I/N",
            help="Measure the Ith of N parts of about the same length; ampbench merge joins them.",
        ),
    ] = "",
    ray: Annotated[
        str, Option(metavar="ADDRESS", help="Measure on the machines of this Ray cluster: auto, or host:port.")
    ] = "",
    on: Annotated[
        str,
        Option(
            metavar="WHICH",
            help="each: every machine measures every case; spread: machines of a kind share. Default: each.",
        ),
    ] = "",
    dry_run: Annotated[bool, Option("--dry-run", help="Show the plan and how long it takes; measure nothing.")] = False,
    yes: Annotated[bool, Option("--yes", help="Begin a run of more than ten minutes without a question.")] = False,
    no_isolation: Annotated[bool, Option("--no-isolation", help="Measure in this process, for debuggers.")] = False,
    verbose: Verbose = False,
    format: Format,
    limits: Limits,
) -> int:
    """Measure speed, memory and divergence in every precision; end with the table and the advice.

    One network after the other is measured whole, in as many rounds as its budget holds. On an accelerator, every case
    has a short round first; longer ones follow where a speedup is undecided. Without workloads, the default suite:
    every family, in a few minutes.

    \b
    Examples:
      ampbench run
      ampbench run resnet50 --phase training --precision fp32,bf16_autocast
      ampbench run model.py:make --sweep batch_size=1,4,16
    """
    if resume:
        refuse_beside_resume(context, WITH_RESUME)
    for option, value in (("--shard", shard), ("--dry-run", dry_run), ("--no-isolation", no_isolation)):
        if ray and value:
            raise UsageError(f"--ray and {option} contradict each other: give one of them")
    seconds = typed_seconds("--min-run-time", min_run_time) if min_run_time else DEFAULTS.min_run_seconds
    settings = replace(settings, min_run_seconds=seconds, isolation=not no_isolation)
    shared_by = "--shard" if shard else "--ray" if ray else ""
    if budget and shared_by and not rounds:
        raise UsageError(f"{shared_by} and --budget contradict each other: give --rounds")

    if rounds or shared_by:  # machines that share a run measure equal rounds
        settings = replace(settings, rounds=rounds or DEFAULTS.rounds)
    else:
        limit = typed_seconds("--budget", budget) if budget else 0.0
        settings = replace(settings, rounds=MOST_ROUNDS, budget_seconds=limit)

    part = parse_shard(shard) if shard else None
    fleet = new_fleet(ray, on)
    ending = Ending(results=results, format=format, limits=limits, verbose=verbose)
    if fleet is not None:
        earlier = [store.read_run(path) for path in store.find_fleet(resume, results)] if resume else []
        if earlier and (begun := earlier[0].header).fleet is not None:
            settings = replace(begun.settings, memory_limit_bytes=settings.memory_limit_bytes)
            fleet, selection, label = replace(begun.fleet, lane=""), begun.selection, begun.label
        else:
            store.require_writable(results)
        return _run_fleet(ray, ending, fleet, selection, settings, label, earlier)
    return _run(selection, settings, part, label, resume, ending, dry_run=dry_run, yes=yes)


def new_fleet(ray: str, on: str) -> Fleet | None:
    """Return the fleet of `--ray` and `--on`, None without one; raise `UsageError` for an invalid request."""
    if on and not ray:
        raise UsageError("--on is of a fleet: name its cluster, as in --ray auto")
    if on and on not in ON:
        raise UnknownNameError("--on", on, ON)
    if ray and find_spec("ray") is None:
        raise UsageError(NO_RAY)
    return Fleet(id=secrets.token_hex(3), lane="", on=on or EACH) if ray else None


def _run(
    selection: Selection,
    settings: Settings,
    part: Part | None,
    label: str,
    resume: str,
    ending: Ending,
    *,
    dry_run: bool,
    yes: bool,
) -> int:
    """Measure on this machine, or show the plan of it; return the exit code."""
    # NumPy and SciPy for the results, before the last round ends: they take a second
    import_results = partial(import_module, "ampbench.show.results")
    results = ending.results
    with ExitStack() as stack:
        writer = resumed = None
        if resume:
            resumed, writer = _resumed(stack, store.find_run(resume, results, print_note), dry_run)
            selection, settings = resumed.header.selection, resumed.header.settings
        if not (resume or dry_run):
            store.require_writable(results)
        prepared = stack.enter_context(
            session.prepare(selection, settings, resumed, part, import_results, ahead=not dry_run)
        )
        session.require_work(prepared)
        if dry_run:
            _print_plan(prepared, ending.format)
            return 0
        if resumed is not None and resumed.complete and not prepared.schedule:
            print_note(f"run {resumed.header.run} is complete: nothing is left to do")
            return _print_end(resumed, "complete", ending)
        if not (yes or _may_begin(prepared)):
            return INTERRUPTED
        from ampbench.judge.verdict import undecided

        if writer is None:
            command = ["ampbench", *sys.argv[1:]]
            writer = session.begin(prepared, results, label, command, shard=prepared.shard)
            stack.enter_context(writer)
            if other_code := not_the_commits(store.read_header(writer.path)):
                print_note(other_code)
        if resumed is None or not resumed.every(Ceiling):  # so that the run file has its ceilings
            writer.append(*ceilings_known(results, prepared.environment))
        if resumed is not None:
            skips = session.planned_skips(prepared.plan)
            writer.append(*(skip for skip in skips if skip.case_id not in resumed.skips))
        if busy := fitness.busy_now(prepared.environment.threads):
            print_note(busy)
        ended, problem = "interrupted", None
        with progress(prepared.schedule, prepared.settings) as watch:
            try:
                ended = session.measure(prepared, writer, watch, lambda: undecided(store.read_run(writer.path)))
            except NothingToRunError as error:
                problem = error
    with stored_already(f"ampbench show {run_words(writer.path, results)}"):
        return _print_end(store.read_run(writer.path), ended, ending, problem)


def _resumed(stack: ExitStack, file: Path, dry_run: bool) -> tuple[StoredRun, store.RunWriter | None]:
    """Return a run to resume, and its writer until `stack` ends; None for a dry run."""
    writer = None
    if dry_run:
        resumed = store.read_run(file)
    else:  # locked before planning: no other process may measure the same cases
        writer, resumed = store.RunWriter.reopen(file)
        stack.enter_context(writer)
        if resumed.cut:
            print_note(f"{file} {store.CUT}")
    header = resumed.header
    if header.arm is not None:
        raise UsageError(f"run {header.run} is an arm of ampbench ab, which measures both anew")
    if kind := header.explains:
        verb = f"ampbench {verb_of(kind)}"
        how = f"go on with {verb} --resume {header.run}" if header.goes_on else f"do it anew with {verb}"
        raise UsageError(f"run {header.run} {deed_of(kind)}: {how}")
    if imports := resumed_imports(header):
        print_note(imports)
    return resumed, writer


def _may_begin(prepared: Scheduled) -> bool:
    """Print the estimate of a long schedule; return False for a no on the terminal."""
    _, seconds = estimate(prepared.schedule, prepared.settings)
    if seconds >= LONG_SECONDS:
        print_note(_how_long(prepared))
    if seconds < ASK_SECONDS or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print_note("begin? [y/N] (--yes asks nothing)")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _how_long(prepared: Scheduled) -> str:
    """Return the length of the schedule: "2 networks, 12 cases, 30 s each: about 1 min"."""
    schedule, settings = prepared.schedule, prepared.settings
    cases = {turn.planned.case.case_id: turn.planned.case for leg in schedule for turns in leg for turn in turns}
    first, seconds = estimate(schedule, settings)
    accelerated = is_accelerated(turn.planned for rounds in schedule for turns in rounds for turn in turns)
    length, about = counted(settings.rounds, "round"), f"at least {format_duration(seconds)}"
    if settings.budget_seconds is not None:
        budget = format_duration(settings.budget_seconds)
        length, about = f"{budget} {'in all' if accelerated else 'each'}", f"about {format_duration(seconds)}"
    if accelerated:
        about += f", a first table of every case after {format_duration(first)}"
    networks = {(case.device, case.network) for case in cases.values()}
    return f"{counted(len(networks), 'network')}, {counted(len(cases), 'case')}, {length}: {about}"


def _print_end(stored: StoredRun, ended: str, ending: Ending, problem: NothingToRunError | None = None) -> int:
    """Print the result and how to resume it, and return the exit code; raise the `problem` that ended it last."""
    from ampbench.result import Result

    result, words = Result(stored, ending.limits), run_words(stored.path, ending.results)
    rows = result.rows
    again = f"ampbench show{results_words(ending.results)}"
    print_document(result.document(again=again, verbose=ending.verbose), ending.format)
    print_note(f"run {stored.header.run}: {stored.path}")
    if ended != "complete":
        left = sum(isinstance(row["reason"], Pending) for row in rows)
        wanted = left + sum(row["outcome"] != "skipped" for row in rows)
        measured = (
            f"{wanted - left} of {counted(wanted, 'case')} measured so far{'' if left else ', not yet in all rounds'}"
        )
        print_note(f"{ended}: {measured}; ampbench run --resume {words} goes on")
    killed = sum(not failure.final for failure in stored.failures.values())
    if ended == "complete" and killed:
        print_note(
            f"{counted(killed, 'case')} not measured: the worker was killed twice, by the kernel out of memory or by "
            f"someone; ampbench run --resume {words} tries again"
        )
    if problem:
        raise problem
    if ended == "interrupted":
        return INTERRUPTED
    return CASE_FAILED if any(row["outcome"] == "failed" for row in rows) else 0


def _print_plan(prepared: Scheduled, format: OutputFormat) -> None:
    """Print the planned cases, the reasons of skipped ones, and the estimated time."""
    from ampbench.judge.notes import skipped

    ids = [planned.case.case_id for planned in prepared.plan if not planned.skip]
    if format is OutputFormat.TABLE:  # ids to search and copy are never wrapped
        print_text("\n".join(["case", *ids]))
    else:
        rows = [{"case_id": planned.case.case_id, "skip": planned.skip} for planned in prepared.plan]
        print_listing(rows, list(rows[0]), format, "")
    for reason, rest in by_key((row for row in prepared.plan if row.skip), attrgetter("skip")).items():
        print_note(words(skipped(reason, [planned.case.precision for planned in rest])))
    print_note(_how_long(prepared))


def _run_fleet(
    address: str,
    ending: Ending,
    fleet: Fleet,
    selection: Selection,
    settings: Settings,
    label: str,
    earlier: Sequence[StoredRun],
) -> int:
    """Measure the missing cases, and show all lanes side by side."""
    from ampbench.drive.fleet import FleetSession
    from ampbench.drive.on_ray import RayCluster
    from ampbench.judge.machines import document

    files = any(map(is_users, check_selection(selection)))
    with redirect_stdout(sys.stderr), progress_line(live=sys.stderr.isatty()) as watch:  # Ray writes there
        session = FleetSession(
            cluster=RayCluster(address, files=files), selection=selection, settings=settings, fleet=fleet,
            results=ending.results, label=label, command=["ampbench", *sys.argv[1:]], watch=watch, tell=print_note,
            earlier=earlier,
        )  # fmt: skip
        problem = None
        try:
            ended = session.run()
        except (NothingToRunError, StoreError) as error:
            ended, problem = "interrupted", error
    runs = [store.read_run(path) for path in store.list_runs(ending.results) if store.run_id(path).endswith(fleet.id)]
    if any(run.rounds for run in runs):
        shows = f"ampbench show {fleet.id}{results_words(ending.results)}"
        with stored_already(shows):
            print_document(document([run for run in runs if run.cases], ending.limits), ending.format)
            print_note(f"fleet {fleet.id}: {shows} --all shows every precision")
    if ended != "complete" or session.left:
        again = f"ampbench run --resume {fleet.id} --ray {address}{results_words(ending.results)}"
        print_note(f"{ended}: {counted(session.left, 'case')} left; {again} goes on")
    if problem is not None:
        raise problem
    if ended == "interrupted":
        return INTERRUPTED
    return CASE_FAILED if session.left or any(run.failures for run in lanes_together(runs)) else 0

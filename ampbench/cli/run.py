"""`ampbench run`: measure, store, and end with the table and the advice."""

import dataclasses
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.base.budget import LIMITS, Budget
from ampbench.base.units import counted, format_duration
from ampbench.cli.fleet import Asked, Cluster, resume_fleet, run_fleet
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    DEFAULTS,
    DURATION,
    Format,
    Label,
    Limited,
    Limits,
    Made,
    Results,
    Resume,
    Selected,
    refuse_beside_resume,
    resumed_imports,
    run_words,
    stored_already,
    typed_seconds,
)
from ampbench.cli.printing import OutputFormat, print_note
from ampbench.errors import CASE_FAILED, INTERRUPTED, NothingToRunError, StoreError, UsageError
from ampbench.instruments.ceilings.records import Ceiling
from ampbench.records.kinds import deed_of, verb_of
from ampbench.records.labels import Pending
from ampbench.records.run import Selection, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ampbench.drive.session import Scheduled
    from ampbench.drive.sharding import Part
    from ampbench.records.run import Header
    from ampbench.store import RunWriter, StoredRun

WITH_RESUME = frozenset({"resume", "results", "max_time", "ray", "dry_run", "report", "format", "json"}) | {
    limit.parameter for limit in LIMITS.values()
}
"""What a command line may say beside --resume; all else is the run's own."""

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and how long it takes; measure nothing.")]
Report = Annotated[
    bool, typer.Option("--report", help="Write the page of ampbench report at the end, too, and name it.")
]
ShardOf = Annotated[
    str,
    typer.Option(
        "--shard", metavar="I/N", help="Measure the Ith of N parts of about the same length; ampbench merge joins them."
    ),
]
NoIsolation = Annotated[bool, typer.Option("--no-isolation", help="Measure in this process, for debuggers.")]


def command(
    *,
    context: typer.Context,
    selection: Selected,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="Rounds per case; intervals need three.")
    ] = DEFAULTS.rounds,
    min_run_time: Annotated[
        str, typer.Option(metavar="SECONDS", help=f"Timing per round, {DURATION}.")
    ] = f"{DEFAULTS.min_run_seconds:g}",
    settings: Limited,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    resume: Resume = "",
    shard: ShardOf = "",
    cluster: Annotated[Cluster, Made(Cluster)],
    dry_run: DryRun = False,
    report: Report = False,
    no_isolation: NoIsolation = False,
    format: Format,
    budget: Limits,
) -> int:
    """Measure speed, memory and divergence in every precision; end with the table and the advice.

    Without workloads, the default suite: every family, in a few minutes.

    \b
    Examples:
      ampbench run
      ampbench run resnet50 --phase training --precision bf16_autocast --precision fp32
      ampbench run model.py:make --sweep batch_size=1,4,16
    """
    _check_together(context, resume, report, dry_run, cluster.ray, shard, no_isolation)
    seconds = typed_seconds("--min-run-time", min_run_time) if min_run_time else DEFAULTS.min_run_seconds
    settings = dataclasses.replace(settings, rounds=rounds, min_run_seconds=seconds, isolation=not no_isolation)
    from ampbench.drive.sharding import parse_shard

    part = parse_shard(shard) if shard else None
    fleet = cluster.fleet()
    if fleet is not None:
        asked = Asked(address=cluster.ray, results=results, format=format, budget=budget, report=report)
        if resume:
            return resume_fleet(asked, resume, settings)
        return run_fleet(asked, fleet, selection, settings, label)
    return _run(selection, settings, part, results, label, resume, format, budget, dry_run=dry_run, report=report)


def _run(
    selection: Selection,
    settings: Settings,
    part: "Part | None",
    results: Path,
    label: str,
    resume: str,
    format: OutputFormat,
    budget: Budget,
    *,
    dry_run: bool,
    report: bool,
) -> int:
    """Measure on this machine, or show the plan of it; return the exit code."""
    from ampbench import store
    from ampbench.drive import session

    with ExitStack() as stack:
        writer = resumed = None
        if resume:
            file = store.find_run(resume, results, print_note)
            if dry_run:
                resumed = store.read_run(file)
            else:  # locked before it is planned what it lacks: no one else may be measuring just that
                writer, resumed = store.RunWriter.reopen(file)
                stack.enter_context(writer)
                if resumed.cut:
                    print_note(f"{file} {store.CUT}")
            if resumed.header.arm is not None:
                raise UsageError(f"run {resumed.header.run} is an arm of ampbench ab, which measures both anew")
            if resumed.header.explains:
                raise UsageError(_resumed_elsewhere(resumed.header))
            if imports := resumed_imports(resumed.header):
                print_note(imports)
            selection = resumed.header.selection
            settings = dataclasses.replace(resumed.header.settings, max_seconds=settings.max_seconds)
        if not (resume or dry_run):
            store.require_writable(results)
        earlier = _runs(results) if part else ()
        prepared = stack.enter_context(
            session.prepare(selection, settings, resumed, part, earlier, _import_the_rest, ahead=not dry_run)
        )
        session.require_work(prepared)
        if dry_run:
            _print_plan(prepared, results, format)
            return 0
        if resumed is not None and resumed.complete and not any(prepared.servers):
            print_note(f"run {resumed.header.run} is complete: nothing is left to do")
            return _print_end(resumed, "complete", format, budget, results, report=report)
        from ampbench.instruments.ceilings.instrument import ceilings_known  # NumPy: not for a mistake
        from ampbench.judge.pairing import not_the_commits

        if writer is None:
            header = session.new_header(
                prepared.selection, prepared.settings, prepared.environment, prepared.plan, label,
                ["ampbench", *sys.argv[1:]], shard=prepared.shard,
            )  # fmt: skip
            if other_code := not_the_commits(header):
                print_note(other_code)
            writer = store.RunWriter.create(results, header, [planned.case for planned in prepared.plan])
            stack.enter_context(writer)
        if resumed is None or not resumed.every(Ceiling):  # so that the run file tells by itself how far they are off
            writer.append(*ceilings_known(results, prepared.environment))
        known = resumed.skips if resumed else {}
        writer.append(*(skip for skip in session.planned_skips(prepared.plan) if skip.case_id not in known))
        ended, problem = _measured(prepared, writer)
    with stored_already(f"ampbench show {run_words(writer.path, results)}"):
        return _print_end(store.read_run(writer.path), ended, format, budget, results, problem, report=report)


def _import_the_rest() -> None:
    """Import what shows results: NumPy and SciPy, a second that would come after the last round."""
    import ampbench.cli.results  # noqa: F401


def _check_together(
    context: typer.Context, resume: str, report: bool, dry_run: bool, ray: str, shard: str, no_isolation: bool
) -> None:
    """Refuse options that contradict each other, and a report that cannot be made, before what takes hours."""
    if resume:
        refuse_beside_resume(context, WITH_RESUME)
    for option, given in (("--shard", shard), ("--dry-run", dry_run), ("--no-isolation", no_isolation)):
        if ray and given:
            raise UsageError(f"--ray and {option} contradict each other: give one of them")
    if report and dry_run:
        raise UsageError("--report and --dry-run contradict each other: a plan has no page")
    if report:
        from ampbench.cli.report import check_installed

        check_installed()


def _resumed_elsewhere(header: "Header") -> str:
    """Say that a run only explains, and how to go on with it."""
    what = header.explains
    said = f"run {header.run} {deed_of(what)}:"
    if header.goes_on:
        return f"{said} go on with ampbench {verb_of(what)} --resume {header.run}"
    return f"{said} do it anew with ampbench {verb_of(what)}"


def _measured(prepared: "Scheduled", writer: "RunWriter") -> tuple[str, NothingToRunError | None]:
    """Measure, and return how that ended and, where a server could not start any more, why."""
    from ampbench.cli.progress import progress
    from ampbench.drive import fitness, session
    from ampbench.drive.planning import meant
    from ampbench.store import read_run

    busy = fitness.busy_now(prepared.settings.threads)
    for said in [*meant(prepared.selection, prepared.plan), *filter(None, [busy])]:
        print_note(said)
    with progress(prepared.servers, prepared.settings, lambda: read_run(writer.path)) as watch:
        try:
            return session.measure(prepared, writer, watch), None
        except NothingToRunError as error:
            return "interrupted", error


def _print_end(
    stored: "StoredRun",
    ended: str,
    format: OutputFormat,
    budget: Budget,
    results: Path,
    problem: NothingToRunError | None = None,
    *,
    report: bool = False,
) -> int:
    """Print the result, say what is missing and how to go on, and return the exit code; raise what ended it at last.

    A `report` is written of what was not interrupted. Time that was over before anything was measured is no success.
    """
    from ampbench.cli.results import print_result, run_rows

    rows = run_rows(stored)
    print_result(stored, rows, rows, format, budget, run_words(stored.path, results))
    print_note(f"run {stored.header.run}: {stored.path}")
    if ended != "complete":
        left = sum(isinstance(row["reason"], Pending) for row in rows)
        wanted = left + sum(row["outcome"] != "skipped" for row in rows)
        measured = (
            f"{wanted - left} of {counted(wanted, 'case')} measured so far{'' if left else ', not yet in all rounds'}"
        )
        print_note(f"{ended}: {measured}; ampbench run --resume {run_words(stored.path, results)} goes on")
    killed = sum(not failure.final for failure in stored.failures.values())
    if ended == "complete" and killed:
        print_note(
            f"{counted(killed, 'case')} not measured: the worker was killed twice, by the kernel out of memory or by "
            f"someone; ampbench run --resume {run_words(stored.path, results)} tries again"
        )
    if report and ended != "interrupted":
        from ampbench.cli.report import write_page

        print_note(f"report: {write_page([stored.path], results, budget)}")
    if problem:
        raise problem
    if ended == "interrupted":
        return INTERRUPTED
    if ended == "out of time" and not (stored.rounds or stored.memory or stored.divergence or stored.failures):
        return NothingToRunError.exit_code
    return CASE_FAILED if any(row["outcome"] == "failed" for row in rows) else 0


def _print_plan(prepared: "Scheduled", results: Path, format: OutputFormat) -> None:
    """Print the planned cases, what is skipped and why, and the estimated time."""
    from ampbench.cli.printing import print_listing, print_text
    from ampbench.drive.rounds import estimate
    from ampbench.judge.notes import skip_note

    ids = [planned.case.case_id for planned in prepared.plan if not planned.skip]
    if format is OutputFormat.TABLE:  # what is searched and copied is not folded
        print_text("\n".join(["case", *ids]))
    elif format is OutputFormat.MARKDOWN:
        print_listing([{"case": case_id} for case_id in ids], ["case"], format, "")
    else:
        rows = [{"case_id": planned.case.case_id, "skip": planned.skip} for planned in prepared.plan]
        print_listing(rows, list(rows[0]), format, "")
    skipped: dict[str, Counter[str]] = {}
    for planned in prepared.plan:
        if planned.skip:
            skipped.setdefault(planned.skip, Counter())[planned.case.precision] += 1
    for reason, counts in skipped.items():
        print_note(skip_note(reason, counts))
    found = estimate(prepared.servers, prepared.settings, _runs(results, prepared.environment.host))
    unknown = found.cases - found.known
    which = f"{unknown} of them" if found.known else "they"
    least, why = ("at least", f"; how long {which} take is not known yet") if unknown else ("about", "")
    cases, rounds = counted(found.cases, "case"), counted(prepared.settings.rounds, "round")
    print_note(f"{cases} in {rounds}, {least} {format_duration(found.seconds)}{why}")


def _runs(results: Path, host: str = "") -> "Iterator[StoredRun]":
    """Yield the runs of a results folder, of those on `host` where it is named, but damaged ones, which are told."""
    from ampbench import store

    for path in store.list_runs(results):
        try:
            if not host or store.read_header(path).environment.host == host:
                yield store.read_run(path)
        except StoreError as error:
            print_note(f"left out of the estimate: {error}")

"""`ampbench run`: measure, store, and end with the table and the advice."""

import dataclasses
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.advice import Budget
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    Devices,
    Format,
    Json,
    Keyword,
    MaxError,
    MaxFlushedShare,
    MaxGradientError,
    MaxTime,
    MemoryFormats,
    MemoryLimit,
    MinArgmaxAgreement,
    MinRunTime,
    Names,
    OutputFormat,
    Paths,
    Phases,
    Precisions,
    Preset,
    Results,
    Rounds,
    Scaler,
    Seed,
    Sets,
    Sweeps,
    Threads,
    Timeout,
    Workloads,
    chosen_format,
)
from ampbench.errors import UsageError
from ampbench.records.cases import ParameterValue
from ampbench.records.runs import Selection, Settings

if TYPE_CHECKING:
    from ampbench.running.session import Prepared
    from ampbench.store import StoredRun

FAILED, INTERRUPTED = 3, 130
DEFAULTS = Settings()

Label = Annotated[str, typer.Option(metavar="TEXT", help="A name for the run in lists and reports.")]
Resume = Annotated[str, typer.Option(metavar="RUN", help="Measure what this run lacks; the selection is its own.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and how long it takes; measure nothing.")]
NoIsolation = Annotated[bool, typer.Option("--no-isolation", help="Measure in this process, for debuggers.")]


def command(
    names: Names = None,
    workload: Workloads = None,
    precision: Precisions = None,
    device: Devices = None,
    phase: Phases = None,
    path: Paths = None,
    memory_format: MemoryFormats = None,
    keyword: Keyword = "",
    preset: Preset = "",
    set_: Sets = None,
    sweep: Sweeps = None,
    rounds: Rounds = DEFAULTS.rounds,
    min_run_time: MinRunTime = DEFAULTS.min_run_seconds,
    max_time: MaxTime = "",
    timeout: Timeout = f"{DEFAULTS.timeout_seconds:g}",
    memory_limit: MemoryLimit = "",
    threads: Threads = DEFAULTS.threads,
    seed: Seed = DEFAULTS.seed,
    scaler: Scaler = True,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    resume: Resume = "",
    dry_run: DryRun = False,
    no_isolation: NoIsolation = False,
    format: Format = OutputFormat.TABLE,
    json: Json = False,
    max_error: MaxError = Budget.output_rel_l2,
    min_argmax_agreement: MinArgmaxAgreement = Budget.argmax_agreement,
    max_gradient_error: MaxGradientError = Budget.grad_rel_l2,
    max_flushed_share: MaxFlushedShare = Budget.grad_flushed_share,
) -> int:
    """Measure speed, memory and divergence in every precision; end with the table and the advice.

    Without workloads, the default suite: every family, in a few minutes.

    \b
    Examples:
      ampbench run
      ampbench run resnet50 --phase training --precision bf16_autocast --precision fp32
      ampbench run model.py:make --sweep batch_size=1,4,16
    """
    from ampbench.units import parse_bytes, parse_seconds

    chosen = chosen_format(format, json)
    budget = Budget(
        output_rel_l2=max_error,
        argmax_agreement=min_argmax_agreement,
        grad_rel_l2=max_gradient_error,
        grad_flushed_share=max_flushed_share,
    )
    if not 0 < min_run_time <= 3600:
        raise UsageError(f"--min-run-time {min_run_time:g}: give seconds between 0 and 3600")
    selection = Selection(
        workloads=[*(names or []), *(workload or [])],
        precisions=precision or [],
        devices=device or [],
        phases=phase or [],
        paths=path or [],
        memory_formats=memory_format or [],
        keyword=keyword,
        preset=preset,
        overrides=dict(parse_setting("--set", text) for text in set_ or []),
        sweeps=dict(parse_sweep(text) for text in sweep or []),
        scaler=scaler,
    )
    settings = Settings(
        rounds=rounds,
        min_run_seconds=min_run_time,
        timeout_seconds=parse_seconds(timeout),
        memory_limit_bytes=parse_bytes(memory_limit) if memory_limit else None,
        max_seconds=parse_seconds(max_time) if max_time else None,
        threads=threads,
        seed=seed,
        schedule_seed=seed,
        isolation=not no_isolation,
    )
    from ampbench import store
    from ampbench.running import session

    resumed = None
    if resume:
        if selection != Selection():
            raise UsageError("--resume takes the selection from the run: leave workloads and their options out")
        resumed = store.read_run(store.find_run(resume, results))
        selection = resumed.header.selection
        settings = dataclasses.replace(resumed.header.settings, max_seconds=settings.max_seconds)
    with session.prepare(selection, settings, resumed) as prepared:
        if dry_run:
            _print_plan(prepared, results, chosen)
            return 0
        session.require_work(prepared)
        if resumed is None:
            header = session.new_header(prepared, label, ["ampbench", *sys.argv[1:]])
            writer = store.RunWriter.create(results, header, [planned.case for planned in prepared.plan])
            missing = session.planned_skips(prepared.plan)
        else:
            writer, stored = store.RunWriter.reopen(resumed.path)
            if stored.cut:
                print(f"{writer.path}: its last line was cut off and is left out", file=sys.stderr)
            missing = [skip for skip in session.planned_skips(prepared.plan) if skip.case_id not in stored.skips]
        with writer:
            writer.append(*missing)
            ended = _measured(prepared, writer)
    return _print_end(store.read_run(writer.path), ended, chosen, budget, results)


def parse_setting(option: str, text: str) -> tuple[str, ParameterValue]:
    """Return (name, value) of NAME=VALUE; the value is a number or a bool where it reads as one, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise UsageError(f"{option} {text!r}: expected NAME=VALUE, as in {option} batch_size=8")
    return name.strip(), parse_value(value.strip())


def parse_sweep(text: str) -> tuple[str, list[ParameterValue]]:
    """Return (name, values) of NAME=VALUE,VALUE,..."""
    name, equals, values = text.partition("=")
    parts = [part.strip() for part in values.split(",")]
    if not equals or not name.strip() or not all(parts):
        raise UsageError(f"--sweep {text!r}: expected NAME=VALUE,VALUE, as in --sweep batch_size=1,2,4")
    return name.strip(), [parse_value(part) for part in parts]


def parse_value(text: str) -> ParameterValue:
    """Return the int, float, bool or text that `text` spells."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _measured(prepared: "Prepared", writer: "object") -> str:
    from ampbench.cli.progress import progress
    from ampbench.running import session

    with progress(prepared.servers) as watch:
        return session.measure(prepared, writer, watch)  # type: ignore[arg-type]


def _print_end(stored: "StoredRun", ended: str, format: OutputFormat, budget: Budget, results: object) -> int:
    """Print the result, say what is missing and how to go on, and return the exit code."""
    from ampbench.cli.results import print_result, run_rows

    rows = run_rows(stored)
    print_result(stored, rows, format, budget)
    if ended != "complete":
        where = "" if str(results) == str(DEFAULT_RESULTS) else f" --results {shlex.quote(str(results))}"
        resume = f"ampbench run --resume {stored.header.run}{where}"
        print(f"{ended}: everything measured is kept; {resume} goes on", file=sys.stderr)
    if ended == "interrupted":
        return INTERRUPTED
    return FAILED if any(row["outcome"] == "failed" for row in rows) else 0


def _print_plan(prepared: "Prepared", results: object, format: OutputFormat) -> None:
    """Print the planned cases and the estimated time."""
    from ampbench import store
    from ampbench.cli.listings import print_listing
    from ampbench.running.estimate import estimate
    from ampbench.units import format_seconds

    rows = [{"case_id": planned.case.case_id, "skip": planned.skip} for planned in prepared.plan]
    print_listing(rows, ["case_id", "skip"], format, "nothing is selected")
    stored = (store.read_run(path) for path in store.list_runs(results))  # type: ignore[arg-type]
    found = estimate(prepared.servers, prepared.settings, stored)
    print(
        f"{found.cases} cases in {prepared.settings.rounds} rounds, about {format_seconds(found.seconds)}; "
        f"{found.known} of them measured here before, the others taken as short",
        file=sys.stderr,
    )

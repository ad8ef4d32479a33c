"""`ampbench run`: measure, store, and end with the table and the advice."""

import dataclasses
import math
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
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
    chosen_budget,
    chosen_format,
)
from ampbench.errors import StoreError, UsageError
from ampbench.records.cases import ParameterValue
from ampbench.records.runs import Selection, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ampbench.running.session import Prepared
    from ampbench.store import RunWriter, StoredRun

FAILED, INTERRUPTED = 3, 130
DEFAULTS = Settings()
BUDGET = ("max_error", "min_argmax_agreement", "max_gradient_error", "max_flushed_share")
WITH_RESUME = frozenset({"resume", "results", "max_time", "dry_run", "format", "json", *BUDGET})
"""What a command line may say beside --resume; all else is the run's own."""

Label = Annotated[str, typer.Option(metavar="TEXT", help="A name for the run in lists and reports.")]
Resume = Annotated[str, typer.Option(metavar="RUN", help="Measure what this run lacks; the selection is its own.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and how long it takes; measure nothing.")]
NoIsolation = Annotated[bool, typer.Option("--no-isolation", help="Measure in this process, for debuggers.")]


def command(
    context: typer.Context,
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
    budget = chosen_budget(max_error, min_argmax_agreement, max_gradient_error, max_flushed_share)
    if not 0 < min_run_time <= 3600:
        raise UsageError(f"--min-run-time {min_run_time:g}: give seconds between 0 and 3600")
    if resume:
        _refuse_beside_resume(context)
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
        sweeps=_parse_sweeps(sweep or []),
        scaler=scaler,
    )
    settings = Settings(
        rounds=rounds,
        min_run_seconds=min_run_time,
        timeout_seconds=_positive("--timeout", parse_seconds(timeout)),
        memory_limit_bytes=int(_positive("--memory-limit", parse_bytes(memory_limit))) if memory_limit else None,
        max_seconds=parse_seconds(max_time) if max_time else None,
        threads=threads,
        seed=seed,
        schedule_seed=seed,
        isolation=not no_isolation,
    )
    from ampbench import store
    from ampbench.running import session

    with ExitStack() as stack:
        writer = resumed = None
        if resume:
            file = store.find_run(resume, results)
            if dry_run:
                resumed = store.read_run(file)
            else:  # locked before it is planned what it lacks: no one else may be measuring just that
                writer, resumed = store.RunWriter.reopen(file)
                stack.enter_context(writer)
                if resumed.cut:
                    print(f"{file}: its last line was cut off and is left out", file=sys.stderr)
            selection = resumed.header.selection
            settings = dataclasses.replace(resumed.header.settings, max_seconds=settings.max_seconds)
        prepared = stack.enter_context(session.prepare(selection, settings, resumed))
        if dry_run:
            _print_plan(prepared, results, chosen)
            return 0
        session.require_work(prepared)
        if writer is None:
            header = session.new_header(prepared, label, ["ampbench", *sys.argv[1:]])
            writer = store.RunWriter.create(results, header, [planned.case for planned in prepared.plan])
            stack.enter_context(writer)
        known = resumed.skips if resumed else {}
        writer.append(*(skip for skip in session.planned_skips(prepared.plan) if skip.case_id not in known))
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
    """Return the int, float, bool or text that `text` spells; `UsageError` for a number no run file can hold."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if not math.isfinite(number) or (kind is int and abs(number) >= 2**63):
            raise UsageError(f"{text} is no value of a parameter: give a finite number, below 2**63 where it is whole")
        return number
    return text


def _parse_sweeps(texts: list[str]) -> dict[str, list[ParameterValue]]:
    """Return the values of each parameter swept."""
    sweeps: dict[str, list[ParameterValue]] = {}
    for text in texts:
        name, values = parse_sweep(text)
        if name in sweeps:
            raise UsageError(f"--sweep {name} is given twice: list all its values in one, as in --sweep {name}=1,2,4")
        sweeps[name] = values
    return sweeps


def _positive(option: str, value: float) -> float:
    if value <= 0:
        raise UsageError(f"{option} must be above 0")
    return value


def _refuse_beside_resume(context: typer.Context) -> None:
    """Raise `UsageError` for what a command line gives and the run has already; a settings file may give anything."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in WITH_RESUME and source is not None and source.name == "COMMANDLINE":
            said = next((word for word in parameter.opts if word.startswith("--")), "workloads")
            raise UsageError(f"--resume takes the selection and the settings from the run: leave {said} out")


def _measured(prepared: "Prepared", writer: "RunWriter") -> str:
    from ampbench.cli.progress import progress
    from ampbench.running import session

    with progress(prepared.servers) as watch:
        return session.measure(prepared, writer, watch)


def _print_end(stored: "StoredRun", ended: str, format: OutputFormat, budget: Budget, results: Path) -> int:
    """Print the result, say what is missing and how to go on, and return the exit code."""
    from ampbench.cli.results import print_result, run_rows

    rows = run_rows(stored)
    print_result(stored, rows, format, budget)
    if ended != "complete":
        where = "" if results == DEFAULT_RESULTS else f" --results {shlex.quote(str(results))}"
        resume = f"ampbench run --resume {stored.header.run}{where}"
        print(f"{ended}: everything measured is kept; {resume} goes on", file=sys.stderr)
    if ended == "interrupted":
        return INTERRUPTED
    return FAILED if any(row["outcome"] == "failed" for row in rows) else 0


def _print_plan(prepared: "Prepared", results: Path, format: OutputFormat) -> None:
    """Print the planned cases and the estimated time."""
    from ampbench.cli.listings import print_listing
    from ampbench.running.estimate import estimate
    from ampbench.units import format_seconds

    rows = [{"case_id": planned.case.case_id, "skip": planned.skip} for planned in prepared.plan]
    print_listing(rows, ["case_id", "skip"], format, "nothing is selected")
    found = estimate(prepared.servers, prepared.settings, _runs_of(prepared.environment.host, results))
    print(
        f"{found.cases} cases in {prepared.settings.rounds} rounds, about {format_seconds(found.seconds)}; "
        f"{found.known} of them measured here before, the others taken as short",
        file=sys.stderr,
    )


def _runs_of(host: str, results: Path) -> "Iterator[StoredRun]":
    """Yield the runs stored in a results folder that were measured on `host`; a damaged one gives no estimate."""
    from ampbench import store

    for path in store.list_runs(results):
        try:
            if store.read_header(path).environment.host == host:
                yield store.read_run(path)
        except StoreError:
            continue

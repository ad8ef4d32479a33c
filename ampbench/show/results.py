"""A run's result for people: a table for each network, phase, device and path, the precision to take, and notes.

`Result.document` is the output of `ampbench run` and `show` and of `str(Result)`. Nothing is decided here.
"""

import shlex
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import attrgetter, itemgetter
from typing import Any

import msgspec

from ampbench.core import by_key, metrics
from ampbench.core.budget import Budget
from ampbench.core.metrics import METRICS
from ampbench.core.precisions import BASELINE, is_emulated
from ampbench.core.statement import Note, Refusal, Severity, Statement
from ampbench.core.stats import round_value
from ampbench.core.units import counted, format_error, format_quantity, format_seconds, times
from ampbench.records.case import Case
from ampbench.records.changes import VERDICT_COLUMNS, Evidence
from ampbench.records.labels import NONE_NAMED
from ampbench.records.measured import Round
from ampbench.records.run import Header
from ampbench.show import document, networks
from ampbench.show.document import Block, Column, Section
from ampbench.show.networks import Network, ratio
from ampbench.show.rows import Group, Row, Take, deciding_error, described, grouped, number, precision_label
from ampbench.show.wording import answer, lines, row_words, spelled, words

TOGETHER = 4
"""The most precisions of a table of every metric."""
EVIDENCE: Mapping[str, str] = {
    Evidence.TRAINED: "trainings to their end",
    Evidence.RECIPE: "{steps:counted;step} of your recipe",
    Evidence.BATCHES: "{steps:counted;step} on {few}",
    Evidence.STEPS: "one step after others in fp32",
    Evidence.ONE_STEP: "one step at the first weights",
    Evidence.INPUTS: "one batch of inputs",
}
"""The evidence of the verdicts on a table."""


EXPLAINS: Mapping[StrEnum | None, tuple[str, str, float]] = {
    Refusal.OUTPUTS: ("origin", "", 0.0),
    Refusal.GRADIENTS: ("origin", "", 0.0),
    Refusal.ERROR: ("keep_fp32", "--max-error", Budget.output_rel_l2),
    Refusal.GRADIENT_ERROR: ("keep_fp32", "--max-gradient-error", Budget.grad_rel_l2),
}
"""The function that explains a refusal or finds its remedy, the option of its limit, and the default of that option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The content shown of a run: `rows` with their verdicts, the precision to take of each table, `notes` on both.

    `networks` are those of the rows, with all their precisions. `crossings` end the screen. `pointers` name other verbs
    for problems of cases; `again` is the command that shows the run ("": none).
    """

    header: Header
    cases: Mapping[str, Case]
    rows: Sequence[Row]
    takes: Mapping[Group, Take] = field(default_factory=dict)
    networks: Sequence[Network] = ()
    crossings: Sequence[Statement] = ()
    notes: Sequence[Statement] = ()
    pointers: Sequence[str] = ()
    again: str = ""


def written(row: Row, metric: str) -> str:
    """Return a metric of a row in its unit, a ratio with two decimals; "" where it is undefined."""
    value, unit = number(row[metric]), METRICS[metric].unit
    return "" if value is None else times(value) if unit == "ratio" else format_quantity(value, unit)


def _error(row: Row) -> str:
    """Return the judged error; where it is undefined "nan" or "inf" if these are the cause, "ref" for a reference."""
    value = deciding_error(row)
    if value is not None:
        return format_error(value)
    if row["output_not_finite"]:
        return str(row["output_not_finite"]).split(" ", maxsplit=1)[0]
    return "ref" if row["reference_dtype"] == row["precision"] and row["path"] == "eager" else ""


def _memory(row: Row) -> str:
    behind = "" if row["precision"] == BASELINE else written(row, "memory_ratio_vs_fp32")
    return f"{written(row, 'peak_memory_bytes')}{behind and f' ({behind})'}"


def _speed(row: Row) -> str:
    ends = (None, None) if row["precision"] == BASELINE else (row.get("speedup_low"), row.get("speedup_high"))
    return ratio(number(row["speedup_vs_fp32"]), *map(number, ends))


def _time(row: Row) -> str:
    return "emulated: no time" if is_emulated(row["precision"]) else written(row, "seconds_median")


def metric_column(name: str, head: str = "") -> Column[Row]:
    """Return the column of a metric in its unit, under its label or another `head`."""
    metric = METRICS[name]
    return Column(name, itemgetter(name), head or metric.label, metric.unit, lambda row: written(row, name), rare=True)


COLUMNS: Sequence[Column[Row]] = (
    Column("precision", precision_label, "precision", whole=True),
    replace(metric_column("seconds_median", "time/step"), said=_time),
    Column("speedup_vs_fp32", _speed, "speed", rare=True, whole=True),
    Column("peak_memory_bytes", _memory, "memory", rare=True, whole=True),
    Column("error", deciding_error, "error", "error", _error, rare=True),
    Column("verdict", row_words, "verdict"),
)
"""The columns of a table of cases."""


def sections(screen: Screen, *, verbose: bool = False) -> list[Section]:
    """Return the tables and notes, then a line for each of several networks, for many tables only these, and crossings.

    `verbose` adds every metric and every note.
    """
    groups = grouped(row for row in screen.rows if row["outcome"] != "skipped")
    brief = bool(screen.networks) and len(groups) > networks.TABLES and not verbose
    if brief:
        failed = networks.missing(row for row in screen.rows if row["outcome"] == "failed")
        listed = [Section("", [failed])] if failed.rows else []
    else:
        alike = {} if verbose else _alike(screen.rows)
        listed = [Section("", _table(group, rows, screen, alike, verbose)) for group, rows in groups.items()]
    texts = lines(screen.notes, screen.cases, everything=verbose)
    texts += screen.pointers if verbose else ()
    if screen.again and not verbose:
        every = f"all {len(groups):,} tables: {screen.again} -v, or -k NAME for one network"
        texts.append(every if brief else f"{screen.again} -v has the rest")
    listed += [Section("", [*map(Block, dict.fromkeys(texts))])] if texts else []
    if screen.networks and (brief or len({network.rows[0]["workload"] for network in screen.networks}) > 1):
        listed.append(Section("", networks.tables(screen.networks)))
    crossings = [*map(Block, lines(screen.crossings, screen.cases))]
    return [*listed, Section("", crossings)] if crossings else listed


def _alike(rows: Iterable[Row]) -> dict[str, set[str]]:
    """Return by workload the parameters that all of its tables have."""
    return {
        workload: set.intersection(*(set(group.parameters.split(",")) for group in groups))
        for workload, groups in by_key(grouped(rows), attrgetter("workload")).items()
    }


def _table(
    group: Group, rows: Sequence[Row], screen: Screen, alike: Mapping[str, set[str]], verbose: bool
) -> list[Block]:
    """Return a table with its advice; if `verbose`, each metric of any of `rows` as well."""
    title = " · ".join(_heading(group, rows, screen, alike.get(group.workload, set())))
    texts = [Block(text) for text in _below(rows, screen.takes.get(group), screen, verbose=verbose)]
    blocks = [document.table(title, COLUMNS, rows), *texts]
    measured = [row for row in rows if verbose and row["outcome"] == "ok"]
    defined = [name for name in METRICS if any(number(row[name]) is not None for row in measured)]
    for start in range(0, len(measured), TOGETHER):
        part = measured[start : start + TOGETHER]
        labels = [precision_label(row) for row in part]
        cells = [[METRICS[name].label, *(written(row, name) for row in part)] for name in defined]
        blocks.append(Block("", ["metric", *labels], cells, numbers=labels))
    return blocks


def _heading(group: Group, rows: Sequence[Row], screen: Screen, alike: Container[str]) -> list[str]:
    """Return the traits of a table: network, phase, batch, optimizer, machine, torch, and unusual settings.

    Parameters that are `alike` in all tables of the network are left out.
    """
    telling = ",".join(parameter for parameter in group.parameters.split(",") if parameter not in alike)
    optimizer = next((row["optimizer"] for row in rows if row.get("optimizer")), "")
    loaded = next((source.loaded for source in screen.header.sources if source.name == group.workload), ())
    recipe = "" if optimizer else group.recipe
    path = "" if group.path == "eager" else group.path
    parts = [group.workload, group.phase, path, described(replace(group, parameters=telling, recipe=recipe), False)]
    parts += [f"weights loaded in {' and '.join(loaded)}" if loaded else ""]
    parts += ["no optimizer" if optimizer == NONE_NAMED else optimizer, *machine(screen.header, group.device)]
    parts += [] if screen.header.settings.isolation else ["all in one process"]
    return list(filter(None, parts))


def machine(header: Header, device: str) -> list[str]:
    """Return the device and the torch of a run's numbers: `["AMD EPYC, 2 threads", "torch 2.15.0"]`."""
    environment, threads = header.environment, header.settings.threads or header.environment.threads
    known = environment.device(device)
    name = (known.name if known else "") or (environment.cpu if device == "cpu" else "") or device
    name += f", {counted(threads, 'thread')}" if device == "cpu" and threads else ""
    torch = environment.torch_version.partition("+")[0]
    return [name, f"torch {torch}" if torch else ""]


def _below(rows: Sequence[Row], take: Take | None, screen: Screen, *, verbose: bool = False) -> Iterator[str]:
    """Yield which precision of a table to take and why, the evidence, and hints; nothing without a measurement."""
    if take is None:
        return
    text = answer(take.statement)
    yield f"→ {text[:1].upper()}{text[1:]}"
    yield from _next(take, screen.header)
    rounds = max((int(number(row["rounds"]) or 0) for row in rows), default=0)
    quiet = all(note.code not in (Note.UNQUIET, Note.UNSTEADY) for note in screen.notes)
    judged = [verdict for verdict in take.verdicts if verdict.evidence]
    evidence = ""
    if best := next((verdict for kind in EVIDENCE for verdict in judged if verdict.evidence == kind), None):
        few = "one batch" if best.batches == 1 else counted(best.batches, "batch", "batches")
        trained = best.subject if best.evidence is Evidence.TRAINED else ""
        evidence = trained or spelled(EVIDENCE[best.evidence], {"steps": best.steps, "few": few})
    measured = f"{counted(rounds, 'round')}, machine {'quiet' if quiet else 'not quiet'}. " if rounds else ""
    yield f"  {measured}Evidence: {evidence}."
    for hint in take.hints:
        if verbose or hint.severity is not Severity.INFO:
            yield f"  {words(hint)}"


def _next(take: Take, header: Header) -> Iterator[str]:
    """Yield the command that explains a refused case that is faster or smaller, by the exceeded limit."""
    passed, selection = take.passed, header.selection
    if (
        passed
        and passed.code in EXPLAINS
        and not (header.imported or selection.overrides or selection.sweeps or selection.preset)
    ):
        verb, limit, default = EXPLAINS[passed.code]
        if header.in_program:
            yield f'  ampbench.explain.{verb}(..., precisions="{passed.precision}", phase="{passed.phase}")'
            return
        explain = f"{verb.replace('_', '-')} {shlex.quote(passed.workload)}"
        parts = [f"  ampbench explain {explain} --precision {passed.precision}"]
        _, named, recipe = take.group.recipe.partition("optimizer=")
        phase = ["--phase training"] if passed.phase == "training" else []
        parts += [f"--optimizer {recipe.replace(',', ':', 1)}"] if named else phase
        parts += [f"{limit} {passed.limit:g}"] if limit and passed.limit and passed.limit != default else []
        yield " ".join(parts)


def case_section(row: Row, rounds: Iterable[Round], records: Iterable[msgspec.Struct | None]) -> Section:
    """Return all facts of a case: its columns with their meaning, its rounds, and its other `records`."""
    facts = []
    for name in (*metrics.COLUMNS, *VERDICT_COLUMNS):
        value = written(row, name) if name in METRICS else row[name]
        if value not in (None, ""):
            facts.append((name, f"{value}", metrics.COLUMNS[name].summary if name in metrics.COLUMNS else ""))
    for round_ in rounds:
        seconds = format_seconds(round_value(round_.samples, round_.cpu_samples, round_.windows))
        samples = "+".join(f"{len(build)}" for build in round_.samples)
        name = f"{'control' if round_.control else 'round'} {round_.round}"
        facts.append((name, seconds, f"{samples} samples, server {round_.server}"))
    for record in filter(None, records):
        facts += [(*fact, "") for fact in dotted("", msgspec.to_builtins(record))]
    return Section("", [Block(row["case_id"], ["fact", "value", "meaning"], facts, whole=["fact"])])


def dotted(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the facts of a record by their dotted names."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key != "case_id":
                yield from dotted(f"{name}.{key}".lstrip("."), item)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for place, item in enumerate(value):
            yield from dotted(f"{name}[{place}]", item)
    elif value not in (None, [], (), ""):
        items = value if isinstance(value, list) else [value]
        yield name, ", ".join(f"{item:.6g}" if isinstance(item, float) else str(item) for item in items)

"""A run as `run` and `show` print it: table, advice and notes, all that is known of a case, or data for machines.

And its table while it is measured: what is known of every case so far, in as many lines as a terminal has.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.text import Text

from ampbench.cli.printing import OutputFormat, print_forms, print_sections, print_text
from ampbench.core.budget import Budget
from ampbench.core.metrics import COLUMNS, METRICS
from ampbench.core.precisions import BASELINE
from ampbench.core.stats import all_inflated, round_value
from ampbench.core.units import (
    counted,
    format_bandwidth,
    format_bytes,
    format_count,
    format_error,
    format_flop_rate,
    format_kept,
    format_quantity,
    format_seconds,
    format_share,
    format_tenths,
    times,
)
from ampbench.drive.rounds import Table, table_of
from ampbench.instruments import registry
from ampbench.instruments.ceilings.findings import BINDING, Bounds, work_of
from ampbench.instruments.ceilings.records import Ceiling
from ampbench.judge import frame, notes
from ampbench.judge.looks import blamed, rates_said
from ampbench.judge.table import Layout, lay_out, legend, speed_interval, table_lines, table_markdown
from ampbench.judge.verdict import across_tables, takes_of, trainings_beside, verdicts_of
from ampbench.records.labels import few, optimizer_name, outcome_said
from ampbench.records.measured import Failure, Round, Skip
from ampbench.records.run import Entry
from ampbench.records.verdict import VERDICT_COLUMNS
from ampbench.show import networks, wording
from ampbench.show.data import csv_text, json_text
from ampbench.show.markdown import escaped, markdown
from ampbench.show.rows import (
    Group,
    Row,
    Take,
    described,
    group_of,
    grouped,
    judged_error,
    number,
    precision_label,
    with_verdicts,
)
from ampbench.show.terminal import make_console, padded, print_lines, wrapped
from ampbench.store import StoredRun, gathered

if TYPE_CHECKING:
    from ampbench.records.measured import Divergence, MemoryPass, Telemetry, Update


LABEL_WIDTH = 17
"""That of the longest name of a metric, and two blanks; names of outputs may be longer."""
NARROWEST = 40
"""So much room a text gets at least, however narrow the terminal is."""
ENDED = {
    "proven": "until 99% were proven to agree",
    "refuted": "until fewer than 99% were proven to agree",
    "time": "until their time was up",
    "decisions": "and so many do not decide",
    "batches": "and there are no more",
    "failed": "and the next one failed",
}
"""Why further batches ended."""
DERIVED = (
    "seconds_median", "seconds_low", "seconds_high", "items_per_second", "speedup_vs_fp32", "speedup_low",
    "speedup_high", "speedup_vs_tf32", "speedup_vs_default", "speedup_default_low", "speedup_default_high",
)  # fmt: skip
WORKSPACE_CONFIG = "CUBLAS_WORKSPACE_CONFIG"
"""The environment variable that sets the size of cuBLAS' workspaces."""
WORK = ("flops_per_step", "flops_per_second", "least_bytes_per_step", "ceiling_share")
MEMORY = ("peak_memory_bytes", "memory_ratio_vs_fp32", "reserved_memory_bytes", "bytes_per_parameter")
ERRORS = tuple(name for name in METRICS if name not in (*DERIVED, *WORK, *MEMORY))


def detail_lines(stored: StoredRun, rows: Sequence[Row], width: int | None = None) -> list[Text]:
    """Return the lines that tell all about the cases of `rows`, what is wider than `width` folded under itself."""
    lines: list[Text] = []
    for row in rows:
        case_id = row["case_id"]
        lines += [Text(), Text(case_id, style="bold")] if lines else [Text(case_id, style="bold")]
        pairs = [("outcome", row["outcome"] if row["outcome"] == "ok" else f"{row['outcome']}: {row['reason']}")]
        if row["verdict"] and row["outcome"] == "ok":
            pairs.append(("verdict", wording.verdict_words(row)))
        pairs += _metrics(row, DERIVED)
        pairs += _rounds(each for each in stored.rounds if each.case_id == case_id)
        pairs += _work(stored, row)
        if case_id in stored.memory:
            pairs += _memory(stored.memory[case_id], stored.header.environment.variables)
        else:
            pairs += _metrics(row, ("peak_memory_bytes",))
        pairs += _metrics(row, ERRORS)
        if case_id in stored.divergence:
            pairs += _divergence(stored.divergence[case_id])
        if case_id in stored.failures:
            pairs += _failure(stored.failures[case_id])
        for label, text in pairs:
            lines += _told(f"  {f'{label} ':<{LABEL_WIDTH}}", text, width)
    return lines


def _told(label: str, text: str, width: int | None) -> list[Text]:
    """Return what is said beside a label, in as many lines as it takes; words are never broken."""
    lines = [text]
    if width is not None:
        room = max(width - len(label), NARROWEST)
        folded = (wrap(line, room, break_long_words=False, break_on_hyphens=False) for line in text.split("\n"))
        lines = [part for parts in folded for part in parts or [""]]
    first, *more = lines
    return [Text.assemble((label, "dim"), first), *(Text(" " * len(label) + line) for line in more)]


def _metrics(row: Row, columns: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield those of the columns that are defined, on one line each, with what they mean."""
    for column in columns:
        value = number(row[column])
        if value is not None:
            metric = METRICS[column]
            yield metric.label, f"{format_quantity(value, metric.unit):<12} {metric.summary}"


def _rounds(rounds: Iterable[Round]) -> Iterator[tuple[str, str]]:
    for each in rounds:
        name = f"{'control' if each.control else 'round'} {each.round}"
        cpu = [None if each.cpu_samples is None else [build] for build in each.cpu_samples or each.samples]
        windows = [None if each.windows is None else [build] for build in each.windows or each.samples]
        of_builds = zip(each.samples, cpu, windows, strict=True)
        builds = [format_seconds(round_value([samples], own, own_windows)) for samples, own, own_windows in of_builds]
        value = format_seconds(round_value(each.samples, each.cpu_samples, each.windows))
        samples = "+".join(str(len(samples)) for samples in each.samples)
        parts = [
            f"{value:<12} builds {', '.join(builds)}",
            f"{samples} samples of {_steps(each.steps_per_sample)}, warm-up {_steps(each.warmup_steps)}",
            f"server {each.server}",
        ]
        if each.compile_seconds is not None:
            parts.append(f"compiled in {format_seconds(each.compile_seconds)}")
        if all_inflated(each.samples, each.cpu_samples):
            parts.append("CPU time: no sample ran at one go")
        if each.fitness.other_share:
            parts.append(f"other processes {format_share(each.fitness.other_share)}")
        if each.fitness.steal_share:
            parts.append(f"steal {format_share(each.fitness.steal_share)}")
        if each.scaler_scale is not None:
            parts.append(f"loss scale {each.scaler_scale:g}")
        if each.telemetry is not None:
            parts += _told_by_device(each, each.telemetry)
        yield name, "; ".join(parts)


def _told_by_device(each: Round, told: "Telemetry") -> Iterator[str]:
    """Yield what an accelerator told while a round was timed."""
    if each.warm_seconds is not None:
        rest = "" if each.steady is None else ", at rest" if each.steady else ", not at rest"
        yield f"warmed for {format_seconds(each.warm_seconds)}{rest}"
    if each.burst_seconds is not None:
        yield f"burst {format_seconds(each.burst_seconds)}"
    if told.clock_hz is not None:
        yield f"clock {told.clock_hz / 1e9:.2f} GHz"
    if told.power_watts is not None:
        yield f"{told.power_watts:.0f} W"
    if told.temperature_celsius is not None:
        yield f"{told.temperature_celsius:.0f} °C"
    for word, share in told.limited.items():
        yield f"{word} {format_share(share)}"


def _work(stored: StoredRun, row: Row) -> Iterator[tuple[str, str]]:
    """Yield what there is to compute, how fast that goes, and the ceilings it is held against."""
    yield from _metrics(row, WORK)
    memory = stored.memory.get(row["case_id"])
    if memory is None or not (memory.flops or memory.least_bytes):
        return
    bound = Bounds(stored.every(Ceiling)).of(memory, row["device"])
    for (operation, dtype), flops in work_of(memory).items():
        seconds = bound.seconds.get((operation, dtype))
        at = f"at {format_flop_rate(flops / seconds)} {format_seconds(seconds)}" if seconds else "no ceiling"
        yield f"  {BINDING[operation]}", f"{format_count(flops)} FLOPs in {dtype}, {at}"
    if bound.memory_seconds and memory.least_bytes:
        rate = format_bandwidth(memory.least_bytes / bound.memory_seconds)
        yield "  memory", f"{format_bytes(memory.least_bytes)}, at {rate} {format_seconds(bound.memory_seconds)}"
    if bound.binds and bound.least:
        yield "  bound by", f"{bound.binds}: {format_seconds(bound.least)} at least"
    runs = list(dict.fromkeys(one.run for one in bound.used if one.run))
    if bound.lacking:
        yield "  ceilings", "for the share of what this device attains, ampbench study ceilings, then measure anew"
    elif runs:
        yield "  ceilings", f"of {few(runs)}"


def _memory(memory: "MemoryPass", variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    parts = {
        "parameters": memory.parameter_bytes,
        "buffers": memory.buffer_bytes,
        "inputs": memory.input_bytes,
        "gradients": memory.gradient_bytes,
        "optimizer": memory.optimizer_bytes,
    }
    known = {name: size for name, size in parts.items() if size is not None}
    yield "peak memory", f"{format_bytes(memory.peak_bytes):<12} counted by the {memory.source}"
    yield "  of it", ", ".join(f"{name} {format_bytes(size)}" for name, size in known.items())
    yield (
        "  rest",
        f"{format_bytes(max(memory.peak_bytes - sum(known.values()), 0)):<12} activations and temporaries",
    )
    if (each := memory.bytes_per_parameter) is not None:
        count = memory.parameter_count or 0
        masters = memory.master_bytes
        shares = {
            "weights": memory.parameter_bytes - (masters or 0),
            "gradients": memory.gradient_bytes,
            "master weights": masters,
            "optimizer": memory.optimizer_bytes,
        }
        kept = ", ".join(f"{name} {format_tenths(size / count)}" for name, size in shares.items() if size is not None)
        yield "B/param", f"{format_tenths(each):<12} after a step: {kept}; of {format_count(count)} parameters"
    if memory.reserved_bytes is not None:
        whole = "taken from the device at most, free blocks and workspaces included"
        yield "reserved", f"{format_bytes(memory.reserved_bytes):<12} {whole}"
    if memory.workspace_bytes is not None:
        given = variables.get(WORKSPACE_CONFIG)
        why = f", {WORKSPACE_CONFIG}={given}" if given else ""
        kept = f"which libraries take once and keep (cuBLAS{why}): not in the peak"
        yield "workspaces", f"{format_bytes(memory.workspace_bytes):<12} {kept}"
    if memory.busy_undefined:
        yield "busy", f"unknown: {memory.busy_undefined}"
    if memory.graphs_left_aside:
        yield "graphs", f"left aside by torch.compile: {'; '.join(memory.graphs_left_aside)}"
    if memory.rss_bytes is not None:
        yield (
            "RSS",
            f"{format_bytes(memory.rss_bytes):<12} of the process, with Python and torch: not comparable",
        )


def _outputs(divergence: "Divergence") -> Iterator[tuple[str, str]]:
    """Yield what each output errs, and what a classifier's probabilities do."""
    for one in divergence.output.tensors or ():
        parts = [f"error {format_error(one.rel_l2)}" if one.rel_l2 is not None else f"no error: {one.undefined}"]
        if one.centred:
            parts.append("logits without their common shift")
        if one.rel_l2 is not None and one.floor_rel_l2:
            parts.append(f"rounding alone {format_error(one.floor_rel_l2)}")
        if one.sample_count:
            p99, worst = format_error(one.sample_p99_rel_l2), format_error(one.sample_worst_rel_l2)
            parts.append(f"{counted(one.sample_count, 'sample')}: 99% quantile {p99}, worst {worst}")
        elif one.sample_undefined != one.undefined:
            parts.append(f"no error by sample: {one.sample_undefined}")
        yield f"output {one.name}".rstrip(), "; ".join(parts)
    if (found := divergence.output.predictions) is not None:
        kl = f"KL {format_error(found.kl_mean)} nats, 99% quantile {format_error(found.kl_p99)}"
        parts = [f"no KL: {found.kl_undefined}" if found.kl_undefined else kl]
        if found.median_margin is not None:
            parts.append(f"margin {format_share(found.median_margin)} (median)")
        if found.flipped_margin is not None:
            parts.append(f"up to {format_share(found.flipped_margin)} where decisions flipped")
        yield "probabilities", "; ".join(parts)


def _divergence(divergence: "Divergence") -> Iterator[tuple[str, str]]:
    yield from _outputs(divergence)
    if divergence.output.decided is not None and divergence.output.decided[1]:
        agreeing, decisions = divergence.output.decided
        parts = [f"{agreeing:,} of {decisions:,} are those of the reference"]
        if (further := divergence.output.further) is not None:
            parts.append(f"{counted(further.batches, 'further batch', 'further batches')}, {ENDED[further.ended]}")
        yield "decisions", "; ".join(parts)
    if divergence.loss is not None and divergence.reference.loss is not None:
        yield "loss", f"{divergence.loss:.8g}, in fp64 {divergence.reference.loss:.8g}"
    if divergence.gradient.worst_parameter is not None:
        worst = f"{divergence.gradient.worst_parameter} errs most, by {format_error(divergence.gradient.worst_rel_l2)}"
        yield "gradients", f"that of {worst}"
    if divergence.gradient.flushed is not None:
        flushed, elements = divergence.gradient.flushed, divergence.gradient.elements
        yield "elements", f"{flushed} of {elements} gradient elements became zero"
    if divergence.gradient.nonfinite:
        yield "nonfinite", f"{divergence.gradient.nonfinite} gradient elements are not finite"
    if divergence.update is not None:
        yield from _update(divergence.update)
    if divergence.scaler_scale is not None:
        yield "loss scale", f"{divergence.scaler_scale:g}; steps skipped once settled: {divergence.skipped_steps}"
    if divergence.recipe is not None:
        yield "optimizer", optimizer_name(divergence.recipe)
    norm = divergence.reference.output_norm
    size = "" if norm is None else f", norm {norm:.4g}"
    yield "reference", f"{divergence.reference.dtype or 'none'} on {divergence.reference.device}{size}"
    if divergence.reference.error:
        yield "", f"fp64 failed: {divergence.reference.error}"
    yield "digests", f"weights {divergence.weights_digest[:16]}, inputs {divergence.inputs_digest[:16]}"
    for note in divergence.notes:
        yield "note", note


def _update(update: "Update") -> Iterator[tuple[str, str]]:
    """Yield from where an update was measured, what does not move at which learning rate, and whose fault that is."""
    began = f"after {update.steps} fp32 steps" if update.steps else "from the optimizer_state that was given"
    stored = f", stored in {update.storage}" if update.storage else ""
    stored += ", held against fp32, as the optimizer refuses fp64" if update.intended == "fp32" else ""
    yield "update", f"undefined: {update.undefined}" if update.undefined else f"{began}{stored}"
    if update.swallowed is not None and update.moving:
        said = f"{format_share(update.swallowed / update.moving)} of {update.moving:,} weights do not move"
        yield "  swallowed", "; ".join(filter(None, [said, rates_said(update)]))
    if update.worst_parameter is not None:
        yield "  worst", f"{update.worst_parameter} keeps {format_kept(update.worst_kept)}"
    if whose := blamed(update):
        yield "  error from", whose
    if update.counted_state:
        yield "  with", f"what the optimizer keeps of a weight in its state {update.counted_state!r}"
    if update.kept_error is not None:
        yield "  luck", f"the optimizer draws random numbers: kept ± {format_kept(update.kept_error)} (standard error)"


def _failure(failure: Failure) -> Iterator[tuple[str, str]]:
    yield "failed", f"in the {failure.stage}, {failure.said}"
    for line in failure.frames:
        yield "", line.rstrip()


def _steps(counts: Sequence[int]) -> str:
    """Return counts of steps per build as "1 step", "4 steps" or "7/8/8 steps"."""
    return f"{_listed(counts)} step{'' if set(counts) == {1} else 's'}"


def _listed(counts: Sequence[int]) -> str:
    """Return counts per build, as one number where they agree."""
    return str(counts[0]) if len(set(counts)) == 1 else "/".join(str(count) for count in counts)


def run_rows(stored: StoredRun, budget: Budget) -> list[Row]:
    """Return one row per case of a run with its verdict, as `ampbench.load` gives them, those of a table together."""
    verdicts = verdicts_of(stored, budget, trainings_beside(stored))
    groups = grouped(with_verdicts(frame.run_rows(stored), verdicts))
    return [row for rows in groups.values() for row in rows]


def print_result(
    stored: StoredRun,
    every: Sequence[Row],
    shown: Sequence[Row],
    format: OutputFormat,
    budget: Budget,
    words: str = "",
) -> None:
    """Print the rows `shown` of a run on stdout: as table with advice and notes, or in a machine's format.

    The advice is that of `every` row of the run, whichever are shown. Many tables are shown as a ranking, which says
    how `show`, to which `words` name the run, prints them; without words it is always the tables.
    """
    if words and ranked(shown) and format in (OutputFormat.TABLE, OutputFormat.MARKDOWN):
        _print_ranking(stored, every, shown, format, budget, words)
        return
    columns = [*COLUMNS, *VERDICT_COLUMNS]
    print_forms(
        format,
        lines=lambda console: result_lines(stored, shown, budget, console.width),
        markdown=lambda: markdown_text(stored, shown, budget),
        json=lambda: json_text(shown),
        csv=lambda: csv_text(columns, ([row[name] for name in columns] for row in shown)),
    )


def ranked(rows: Sequence[Row]) -> bool:
    """Return whether rows are of more tables than are printed."""
    return len(grouped(rows)) > networks.MANY


def _print_ranking(
    stored: StoredRun, every: Sequence[Row], shown: Sequence[Row], format: OutputFormat, budget: Budget, words: str
) -> None:
    """Print the ranking of the tables that rows are of, what is to be said of them, and how to see the tables."""
    advice, said = _said(stored, shown, budget)
    groups = grouped(shown)
    whole = [row for row in every if group_of(row) in groups]
    sections = networks.sections(networks.networks_of(whole, advice, stored.cases), whole)
    show = f"ampbench show {words}"
    tables = f"the tables of all {len(groups):,} networks: {show} --all; of some: {show} -k PATTERN"
    if format is OutputFormat.MARKDOWN:
        print_text(markdown(sections, missing=[*said, tables]))
        return
    last, *before = sections
    print_sections(before, format)
    console = make_console()
    print_lines(console, [Text(), *(line for remark in (*said, tables) for line in wrapped(remark, console.width))])
    print_sections([last], format)


def _said(stored: StoredRun, rows: Sequence[Row], budget: Budget) -> tuple[dict[Group, Take], list[str]]:
    """Return the advice on a run and the lines below the tables of `rows`, without skips."""
    advice = takes_of(stored, budget, trainings_beside(stored))
    swept = notes.sweep_notes(advice, stored.header.selection.sweeps)
    return advice, [
        *map(wording.words, across_tables(stored, advice)),
        *(line.text for line in wording.lines([*swept, *notes.statements(stored, rows)], stored.cases)),
        *registry.pointers(stored),
    ]


def markdown_text(stored: StoredRun, rows: Sequence[Row], budget: Budget) -> str:
    """Return `rows` of a run as Markdown: the tables, the advice on the run, the notes."""
    groups, skipped = notes.without_common_skips(grouped(rows))
    advice, said = _said(stored, rows, budget)
    return "\n\n".join([table_markdown(groups, advice), *map(escaped, [*said, *map(wording.words, skipped)])])


def result_lines(stored: StoredRun, rows: Sequence[Row], budget: Budget, width: int) -> list[Text]:
    """Return what a terminal of `width` columns shows of a run: the table of `rows`, the advice on the run, notes."""
    groups, skipped = notes.without_common_skips(grouped(rows))
    shown = [row for members in groups.values() for row in members]
    layouts = {phase: lay_out(shown, phase, width) for phase in dict.fromkeys(group.phase for group in groups)}
    advice, said = _said(stored, rows, budget)
    lines = table_lines(groups, advice, layouts)
    remarks = dict.fromkeys((*said, *map(wording.words, skipped)), "")
    remarks |= dict.fromkeys(_legend(layouts), "dim")
    if lines:
        lines.append(Text())
    for remark, style in remarks.items():
        lines += wrapped(remark, width, style)
    return lines


def _legend(layouts: Mapping[str, Layout]) -> list[str]:
    """Return the meaning of the headers, and which columns found no room."""
    shown = dict.fromkeys(column for layout in layouts.values() for column in layout.columns)
    hidden = dict.fromkeys(column.header for layout in layouts.values() for column in layout.hidden)
    lines = [legend(shown)] if any(column.legend for column in shown) else []
    if hidden:
        lines.append(f"no room for {', '.join(hidden)}: a wider terminal or --format csv shows all")
    return lines


LIVE_HEADERS = ("precision", "time/step", "speed", "95%", "error", "so far", "rounds")
UNKNOWN = "–"
"""Instead of an interval, and of what follows from it, with fewer rounds than one needs."""


@dataclass(slots=True)
class _Seen:
    """A table so far: its run, its measured entries and rounds, and its rows (None: to be made)."""

    run: StoredRun
    entries: list[Entry] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    rows: list[Row] | None = None


class LiveTable:
    """The rows of a run that is being measured, refined by every entry: those of `begun`, and what is `add`ed.

    The values are those that the table at the end has; what is decided may be decided otherwise by a later round. Cases
    that are skipped have no row, as there.
    """

    def __init__(self, begun: StoredRun):
        begun = begun.narrowed(begun.cases.keys() - begun.skips.keys())
        self._rounds = begun.header.settings.rounds
        self._table_of = {case_id: table_of(case) for case_id, case in begun.cases.items()}
        ids: dict[Table, list[str]] = {}
        for case_id, table in self._table_of.items():
            ids.setdefault(table, []).append(case_id)
        self._tables = {table: _Seen(begun.narrowed(members)) for table, members in ids.items()}
        for one in begun.rounds:
            if one.case_id in self._table_of:
                self._tables[self._table_of[one.case_id]].rounds.append(one)
        self._latest = [table for table, seen in self._tables.items() if seen.rounds]

    def add(self, entry: Entry) -> None:
        """Take in what has just been measured."""
        table = self._table_of.get(getattr(entry, "case_id", ""))
        if table is None:
            return
        seen = self._tables[table]
        if isinstance(entry, Round):
            seen.rounds.append(entry)
        else:
            seen.entries.append(entry)
        seen.rows = None
        if isinstance(entry, Round | Failure | Skip):
            self._latest = [*(each for each in self._latest if each != table), table]

    def lines(self, width: int, height: int) -> list[Text]:
        """Return the tables that have a round, in `height` lines at most: where there is no room, those of late."""
        shown: list[Table] = []
        left = height - 1  # what is left out needs a line
        for table in reversed(self._latest):
            size = len(self._rows(table)) + 3
            if shown and size > left:
                break
            shown.append(table)
            left -= size
        lines = [line for table in self._tables if table in shown for line in self._block(table, width)]
        hidden = sum(len(self._rows(table)) for table in self._latest if table not in shown)
        if len(lines) >= height:
            cut = lines[: max(height - 1, 0)]
            hidden += sum(isinstance(line, _RowText) for line in lines[len(cut) :])
            lines = cut
        if hidden:
            lines.append(Text(f"and {counted(hidden, 'case')} more", style="dim"))
        return lines

    def _rows(self, table: Table) -> list[Row]:
        seen = self._tables[table]
        if seen.rows is None:
            run = gathered(seen.run.path, seen.run.header, seen.entries, seen.run)
            (seen.rows,) = grouped(frame.run_rows(replace(run, rounds=seen.rounds))).values()
        return seen.rows

    def _block(self, table: Table, width: int) -> list[Text]:
        """Return a table: a blank line, its title, its headers, a line for each row."""
        rows = self._rows(table)
        group = group_of(rows[0])
        title = Text(f"{group.workload} · {described(group)}", style="dim", no_wrap=True, overflow="ellipsis")
        title.stylize("not dim bold", 0, len(group.workload))
        cells = padded([LIVE_HEADERS, *(_cells(row, self._rounds) for row in rows)], left=1)
        lines = [Text(), title, Text("  ".join(cells[0]), style="dim")]
        for row, written in zip(rows, cells[1:], strict=True):
            if row["outcome"] == "ok":
                lines.append(_RowText("  ".join(written)))
            else:
                colour = "red" if row["outcome"] == "failed" else "dim"
                lines.append(_RowText(f"{written[0]}  ").append(outcome_said(row["outcome"], row["reason"]), colour))
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
            line.truncate(width, overflow="ellipsis")
        return lines


class _RowText(Text):
    """The line of a case."""


def _cells(row: Row, rounds: int) -> Sequence[str]:
    seconds, speed, error = number(row["seconds_median"]), number(row["speedup_vs_fp32"]), judged_error(row)
    return (
        precision_label(row),
        "" if seconds is None else format_seconds(seconds),
        "" if speed is None else times(speed),
        "" if row["precision"] == BASELINE else speed_interval(row) or UNKNOWN,
        "" if error is None else format_error(error),
        _decided(row),
        f"{row['rounds']} of {rounds}",
    )


def _decided(row: Mapping[str, object]) -> str:
    """Return what the interval of a row's speed says so far: "faster" or "slower" than fp32, certainly, or "open"."""
    if row["precision"] == BASELINE:
        return ""
    low, high = number(row["speedup_low"]), number(row["speedup_high"])
    if low is None or high is None:
        return UNKNOWN
    return "faster" if low > 1.0 else "slower" if high < 1.0 else "open"

"""A run's result for people: a table for each network, phase, device and path, the precision to take, and notes.

`ampbench run` and `show`, pytest's summary and `str(Result)` print `result_lines(screen, width)`;
`result_markdown(screen)` is the same in Markdown. `Result.screen()` makes the `Screen`; nothing is decided here.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from textwrap import wrap
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.text import Text

from ampbench.core import metrics
from ampbench.core.budget import Budget
from ampbench.core.metrics import METRICS
from ampbench.core.precisions import BASELINE
from ampbench.core.statement import Note, Refusal, Severity, Statement
from ampbench.core.stats import round_value
from ampbench.core.units import counted, format_error, format_quantity, format_seconds, times
from ampbench.records.case import Case
from ampbench.records.changes import VERDICT_COLUMNS, Evidence
from ampbench.records.labels import NONE_NAMED, outcome_said
from ampbench.records.measured import Round
from ampbench.records.run import Header
from ampbench.show.document import Block, escaped, markdown_table
from ampbench.show.rows import Group, Row, Take, described, grouped, judged_error, number, precision_label
from ampbench.show.terminal import block_lines, wrapped
from ampbench.show.wording import answer, lines, verdict_words, words

LEAST_ROOM = 20
"""The least columns in which a verdict wraps; with fewer its reason is below."""
EVIDENCE: Mapping[str, str] = {
    Evidence.TRAINED: "trainings to their end",
    Evidence.STEPS: "one step after others in fp32",
    Evidence.ONE_STEP: "one step at the first weights",
    Evidence.INPUTS: "one batch of inputs",
}
"""The evidence of the verdicts on a table."""


EXPLAINS: Mapping[StrEnum | None, tuple[str, str, float]] = {
    Refusal.OUTPUTS: ("origin", "", 0.0),
    Refusal.GRADIENTS: ("origin", "", 0.0),
    Refusal.ERROR: ("keep-fp32", "--max-error", Budget.output_rel_l2),
    Refusal.GRADIENT_ERROR: ("keep-fp32", "--max-gradient-error", Budget.grad_rel_l2),
}
"""The verb that explains a refusal or finds its remedy, the option of its limit, and the default of that option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The content shown of a run: `rows` with their verdicts, the precision to take of each table, `notes` on both.

    `pointers` name other verbs for problems of cases; `rest` is the command that shows everything ("": none).
    """

    header: Header
    cases: Mapping[str, Case]
    rows: Sequence[Row]
    takes: Mapping[Group, Take] = field(default_factory=dict)
    notes: Sequence[Statement] = ()
    pointers: Sequence[str] = ()
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its `head`, and the text of a row with a second one in parentheses behind."""

    head: str
    cell: Callable[[Row], tuple[str, str]]


def written(row: Row, metric: str) -> str:
    """Return a metric of a row in its unit, a ratio with two decimals; "" where it is undefined."""
    value, unit = number(row[metric]), METRICS[metric].unit
    return "" if value is None else times(value) if unit == "ratio" else format_quantity(value, unit)


def _error(row: Row) -> str:
    """Return the judged error; where it is undefined "nan" or "inf" if these are the cause, "ref" for a reference."""
    value = judged_error(row)
    if value is not None:
        return format_error(value)
    if row["output_not_finite"]:
        return str(row["output_not_finite"]).split(" ", maxsplit=1)[0]
    return "ref" if row["reference_dtype"] == row["precision"] and row["path"] == "eager" else ""


def _memory(row: Row) -> tuple[str, str]:
    ratio = "" if row["precision"] == BASELINE else written(row, "memory_ratio_vs_fp32")
    return written(row, "peak_memory_bytes"), ratio


def _speed(row: Row) -> tuple[str, str]:
    low, high = number(row.get("speedup_low")), number(row.get("speedup_high"))
    if low is None or high is None or row["precision"] == BASELINE:
        return written(row, "speedup_vs_fp32"), ""
    return written(row, "speedup_vs_fp32"), f"{times(low)}–{times(high)}".replace("x", "")


def metric_column(name: str, head: str = "") -> Column:
    """Return the column of a metric in its unit, under its label or another `head`."""
    return Column(head or METRICS[name].label, lambda row: (written(row, name), ""))


COLUMNS = (
    Column("precision", lambda row: (precision_label(row), "")),
    metric_column("seconds_median", "time/step"),
    Column("speed", _speed),
    Column("memory", _memory),
    Column("error", lambda row: (_error(row), "")),
    Column("verdict", lambda row: (verdict_words(row), "")),
)
"""The columns of a table of cases."""


def result_lines(screen: Screen, width: int, *, verbose: bool = False) -> list[Text]:
    """Return a run's result in lines of `width` columns; `verbose` adds every metric and every note."""
    printed: list[Text] = []
    for group, rows in _tables(screen.rows).items():
        title, *traits = heading(group, rows, screen, verbose=verbose)
        lines_of_title = wrapped(" · ".join([title, *traits]), width, "dim")
        lines_of_title[0].stylize("not dim bold", 0, len(title))
        take = screen.takes.get(group)
        printed += [*([Text()] if printed else []), *lines_of_title]
        printed += Layout(rows, width).lines(rows, take.case_id if take else None)
        for line in _below(rows, take, screen, verbose=verbose):
            printed += wrapped(line, width)
        if verbose:
            printed += _every_metric(rows, width)
    below = [Text(), *(line for note in notes_of(screen, verbose=verbose) for line in wrapped(note, width))]
    if screen.rest and not verbose:
        below.append(Text(f"{screen.rest} has the rest", style="dim"))
    return [*printed, *below] if len(below) > 1 else printed


def result_markdown(screen: Screen) -> str:
    """Return a run's result as Markdown: heading, rows and precision to take of each table, then the notes."""
    blocks = []
    for group, rows in _tables(screen.rows).items():
        title, *traits = heading(group, rows, screen)
        measured = [row for row in rows if row["outcome"] == "ok"]
        cells = [[_whole(column.cell(row)) for column in COLUMNS] for row in measured]
        blocks += [f"### {escaped(title)}", escaped(" · ".join(traits))]
        blocks += [markdown_table([column.head for column in COLUMNS], cells, ["verdict"])] if measured else []
        blocks += [escaped(_without_numbers(row)) for row in rows if row["outcome"] != "ok"]
        blocks += [escaped(line.strip()) for line in _below(rows, screen.takes.get(group), screen)]
    return "\n\n".join([*blocks, *map(escaped, notes_of(screen))])


def _tables(rows: Iterable[Row]) -> dict[Group, list[Row]]:
    """Return the rows of each table without skipped ones, which notes name."""
    return grouped(row for row in rows if row["outcome"] != "skipped")


def _whole(cell: tuple[str, str]) -> str:
    return f"{cell[0]} ({cell[1]})" if cell[1] else cell[0]


def _without_numbers(row: Row, size: int = 0) -> str:
    return f"{precision_label(row):<{size}}  {outcome_said(row['outcome'], row['reason'])}"


def heading(group: Group, rows: Sequence[Row], screen: Screen, *, verbose: bool = False) -> list[str]:
    """Return the traits of a table: network, phase, batch, optimizer, machine, torch, and unusual settings."""
    alike = [
        other_group.parameters.split(",")
        for other_group in grouped(screen.rows)
        if other_group.workload == group.workload
    ]
    common = set() if verbose else set.intersection(*map(set, alike))
    telling = ",".join(parameter for parameter in group.parameters.split(",") if parameter not in common)
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


class Layout:
    """The layout of a table of `rows` in `width` columns; its last column, `head` and `last`, wraps."""

    def __init__(
        self, rows: Sequence[Row], width: int, head: str = "verdict", last: Callable[[Row], str] = verdict_words
    ) -> None:
        cells = [[column.cell(row) for column in COLUMNS[:-1]] for row in rows if row["outcome"] == "ok"]
        columns = zip(*cells, strict=True) if cells else [[("", "")]] * (len(COLUMNS) - 1)
        self._sizes = [[max(map(cell_len, texts)) for texts in zip(*column, strict=True)] for column in columns]
        self._sizes[0][0] = max((cell_len(precision_label(row)) for row in rows), default=0)
        self._width, self._head, self._last = width, head, last
        self._gap = "  " if width - cell_len(self._line([("", "")] * len(self._sizes), "  ")) >= LEAST_ROOM else " "

    def lines(self, rows: Sequence[Row], taken: str | None = None) -> list[Text]:
        """Return the header and the rows of a table, the case `taken` in bold."""
        texts = []
        if any(row["outcome"] == "ok" for row in rows):
            heads = [(column.head, "") for column in COLUMNS[:-1]]
            texts += [Text(self._with_last(self._line(heads, self._gap), self._head)[0].rstrip(), style="dim")]
        for row in rows:
            if row["outcome"] == "ok":
                start = self._line([column.cell(row) for column in COLUMNS[:-1]], self._gap)
                style = "bold" if taken == row["case_id"] else ""
                texts += [Text(line.rstrip(), style=style) for line in self._with_last(start, self._last(row))]
            else:
                style = "red" if row["outcome"] == "failed" else "dim"
                texts += wrapped(_without_numbers(row, self._sizes[0][0]), self._width, style)
        return texts

    def _line(self, cells: Sequence[tuple[str, str]], gap: str) -> str:
        parts = []
        for column, (text, behind), (first, more) in zip(COLUMNS, cells, self._sizes, strict=False):
            size = max(first + (more and more + 3), cell_len(column.head))
            left = column is COLUMNS[0] or (more and text == column.head)
            cell = text if left else f"{_right(text, first if more else size)}{behind and f' ({behind})'}"
            parts.append(cell + " " * (size - cell_len(cell)))
        return gap.join([*parts, ""])

    def _with_last(self, start: str, last: str) -> list[str]:
        room = self._width - cell_len(start)
        status, _, reason = last.partition(": ")
        if cell_len(last) <= room:
            return [start + last]
        if room >= LEAST_ROOM:
            kept = last.replace(" > ", "\u00a0>\u00a0")  # a number stays beside its limit
            first, *more = (line.replace("\u00a0", " ") for line in wrap(kept, room))
            return [start + first, *(" " * cell_len(start) + line for line in more)]
        beginning = f"{status}:" if reason and cell_len(status) < room else ""
        below = wrap(reason if beginning else last, max(self._width, LEAST_ROOM))
        return [start + beginning, *(_right(line, self._width) for line in below)]


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text


def _below(rows: Sequence[Row], take: Take | None, screen: Screen, *, verbose: bool = False) -> Iterator[str]:
    """Yield which precision of a table to take and why, the evidence, and hints; nothing without a measurement."""
    if take is None:
        return
    yield f"→ {_capital(answer(take.statement))}"
    yield from _next(take, screen.header)
    rounds = max((int(number(row["rounds"]) or 0) for row in rows), default=0)
    quiet = all(note.code not in (Note.UNQUIET, Note.UNSTEADY) for note in screen.notes)
    judged = [verdict for verdict in take.verdicts if verdict.evidence]
    trained = next((verdict.subject for verdict in judged if verdict.evidence is Evidence.TRAINED), "")
    evidence = trained or next(
        (meaning for kind, meaning in EVIDENCE.items() if any(verdict.evidence == kind for verdict in judged)), ""
    )
    measured = f"{counted(rounds, 'round')}, machine {'quiet' if quiet else 'not quiet'}. " if rounds else ""
    yield f"  {measured}Evidence: {evidence}."
    for hint in take.hints:
        if verbose or hint.severity is not Severity.INFO:
            yield f"  {_capital(words(hint))}"


def _next(take: Take, header: Header) -> Iterator[str]:
    """Yield the command that explains a refused case that is faster or smaller, by the exceeded limit."""
    passed, selection = take.passed, header.selection
    if (
        passed
        and passed.code in EXPLAINS
        and not (header.imported or selection.overrides or selection.sweeps or selection.preset)
    ):
        verb, limit, default = EXPLAINS[passed.code]
        parts = [f"  ampbench explain {verb} {shlex.quote(passed.workload)} --precision {passed.precision}"]
        parts += ["--phase training"] if passed.phase == "training" else []
        parts += [f"{limit} {passed.limit:g}"] if limit and passed.limit and passed.limit != default else []
        yield " ".join(parts)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def notes_of(screen: Screen, *, verbose: bool = False) -> list[str]:
    """Return the notes below all tables; unless `verbose`, only notes that change a decision."""
    texts = lines(screen.notes, screen.cases, everything=verbose)
    return list(dict.fromkeys([*texts, *(screen.pointers if verbose else ())]))


def _every_metric(rows: Sequence[Row], width: int) -> Iterator[Text]:
    """Yield the metrics that any of `rows` has, a line each, with as many columns of precisions as fit."""
    measured = [row for row in rows if row["outcome"] == "ok"]
    defined = [name for name in METRICS if any(number(row[name]) is not None for row in measured)]
    labels = max((len(METRICS[name].label) for name in defined), default=0)
    size = max((cell_len(precision_label(row)) for row in measured), default=0) + 2
    fitting = max((width - labels) // max(size, 1), 1)
    for start in range(0, len(measured), fitting):
        part = measured[start : start + fitting]
        yield Text(" " * labels + "".join(_right(precision_label(row), size) for row in part), style="dim")
        for name in defined:
            cells = "".join(_right(written(row, name), size) for row in part)
            yield Text(f"{METRICS[name].label:<{labels}}{cells}")


def case_lines(row: Row, rounds: Iterable[Round], records: Iterable[msgspec.Struct | None], width: int) -> list[Text]:
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
    return block_lines(Block(row["case_id"], ["fact", "value", "meaning"], facts, whole=["fact"]), width, 0)


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
        yield name, ", ".join(map(_fact, value)) if isinstance(value, list) else _fact(value)


def _fact(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)

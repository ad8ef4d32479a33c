"""The result table of a run: its columns, what heads them, what a cell says; how a terminal and Markdown have it.

A terminal has it line by line rather than as a block: a failed row's reason runs across the columns, and the columns of
all groups of a run stand under each other, up to one that is `rare`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.text import Text

from ampbench.core.budget import Budget
from ampbench.core.units import (
    format_bytes,
    format_count,
    format_energy,
    format_error,
    format_percent,
    format_seconds,
    format_share,
    format_tenths,
    times,
)
from ampbench.records.labels import outcome_said
from ampbench.show.markdown import escaped, markdown_table
from ampbench.show.rows import (
    Group,
    Row,
    Take,
    burst,
    described,
    judged_error,
    least_agreement,
    number,
    optimizer_line,
    passed_over,
    precision_label,
)
from ampbench.show.terminal import wrapped
from ampbench.show.wording import answer, passed_words, verdict_words, words

LONGEST_NAME = 16
"""So many letters of an output's name are shown in its column; the end tells most."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the result table: its `parts` make one cell and are each aligned to the right.

    `metrics` are the names of what it shows, `key` is what a page's address calls it. `legend` explains the header.
    `first` columns begin a cluster. On a narrow terminal columns with the highest `expendable` go first; 0 stays.
    A `text` is aligned to the left. A `rare` one is left out of a table of whose rows it says nothing, though other
    tables of the run have it: there it would be a gap as wide as a name.
    """

    header: str
    key: str
    parts: tuple[Callable[[Row], str], ...]
    metrics: tuple[str, ...] = ()
    legend: str = ""
    first: bool = False
    expendable: int = 0
    rare: bool = False
    text: bool = False


def _cell(column: str, write: Callable[[float], str]) -> Callable[[Row], str]:
    """Return a function from a row to the text of one value, empty where it is undefined."""

    def text(row: Row) -> str:
        value = number(row[column])
        return "" if value is None else write(value)

    return text


def _number(
    header: str, key: str, metric: str, write: Callable[[float], str], legend: str = "", expendable: int = 0
) -> Column:
    """Return the column of a metric whose value is all that a cell says."""
    return Column(header, key, (_cell(metric, write),), (metric,), legend, expendable=expendable)


def _error(column: str, broken: str) -> Callable[[Row], str]:
    """Return a function from a row to the text of an error; where it has none, "nan" or "inf" if these are why.

    Of outputs it is the error that is judged. What is itself the reference is "ref".
    """

    def text(row: Row) -> str:
        value = judged_error(row) if column == "output_rel_l2" else number(row[column])
        if value is not None:
            return format_error(value)
        if row[broken]:
            return str(row[broken]).split(" ", maxsplit=1)[0]
        has_one = column == "output_rel_l2" or row["phase"] == "training"
        itself = has_one and row["reference_dtype"] == row["precision"] and row["path"] == "eager"
        return "ref" if itself else ""

    return text


def _interval(row: Row) -> str:
    """Return the half width of the 95% interval, which is symmetric in the logarithm, as a percentage.

    An interval of twice the value and more says only that nothing is known.
    """
    low, high = number(row["seconds_low"]), number(row["seconds_high"])
    if low is None or high is None or low <= 0:
        return ""
    half = 100 * (math.sqrt(high / low) - 1)
    if half < 9.95:
        return f"±{half:.1f}%"
    return f"±{half:.0f}%" if half < 99.5 else "±99%+"


def speed_interval(row: Row) -> str:
    """Return the 95% interval of the speed, over paired rounds, as "1.41–1.68"."""
    return _between(row, "speedup_low", "speedup_high")


def _default_interval(row: Row) -> str:
    """Return the same of the speed as times that of `default`."""
    return _between(row, "speedup_default_low", "speedup_default_high")


def _between(row: Row, lowest: str, highest: str) -> str:
    low, high = number(row.get(lowest)), number(row.get(highest))
    return "" if low is None or high is None else f"{times(low)}–{times(high)}".replace("x", "")


def _worst_output(row: Row) -> str:
    """Return the name of the output that errs most, in few letters."""
    name = str(row.get("output_worst_name") or "")
    return name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"


def _floor_factor(row: Row) -> str:
    """Return how many times the rounding floor the error that is judged is."""
    value = judged_error(row, "floor_ratio")
    return "" if value is None else format_factor(value)


def _agreement(row: Row) -> str:
    """Return the share of decisions that agree or, where they are too few to prove what is asked for, what they do."""
    seen = number(row["argmax_agreement"])
    return "" if seen is None else least_agreement(row, Budget.argmax_agreement) or format_share(seen)


def _flop_rate(row: Row) -> str:
    """Return FLOP/s where there is a ceiling to hold them against; without one they say no more than items/s."""
    value = number(row["flops_per_second"])
    return "" if value is None or number(row["ceiling_share"]) is None else format_count(value)


def _bound(row: Row) -> str:
    """Return what binds where a share of the ceiling is told."""
    return "" if number(row["ceiling_share"]) is None else str(row.get("bound_by") or "")


def format_factor(value: float) -> str:
    """Return how many times the rounding floor an error is."""
    if value < 9.95:
        return f"{value:.1f}"
    return f"{value:.0f}" if value < 9999.5 else format_error(value)


_TIME = Column(
    "time/step",
    "time",
    (_cell("seconds_median", format_seconds), _interval),
    metrics=("seconds_median",),
    legend="median over rounds, ± its 95% interval",
    first=True,
)

_SPEED = Column(
    "speed",
    "speed",
    (_cell("speedup_vs_fp32", times), speed_interval),
    metrics=("speedup_vs_fp32",),
    legend="times that of fp32 (tf32 off), and the 95% interval of it, paired round by round",
)


_DEFAULT = Column(
    "vs default",
    "default",
    (_cell("speedup_vs_default", times), _default_interval),
    metrics=("speedup_vs_default",),
    legend="speed, times that of what torch ships, and the 95% interval that advice goes by there",
    expendable=1,
)


def _burst(row: Row) -> str:
    """Return the time of a step in an accelerator's fastest sample, where it does not keep that up."""
    fastest = burst(row)
    return "" if fastest is None else format_seconds(fastest)


def _energy_error(row: Row) -> str:
    """Return by what share an energy may be off."""
    share = number(row["energy_error"])
    return "" if share is None else f"±{format_percent(share)}"


COLUMNS = (
    Column("precision", "precision", (precision_label,), text=True),
    _TIME,
    Column(
        "burst",
        "burst",
        (_burst,),
        metrics=("burst_seconds",),
        legend="the fastest sample, where what the device keeps up takes over 3% longer",
        expendable=2,
    ),
    _number("items/s", "items", "items_per_second", format_count, expendable=6),
    _SPEED,
    _number("vs tf32", "tf32", "speedup_vs_tf32", times, "speed, times that of tf32", 1),
    _DEFAULT,
    Column(
        "energy",
        "energy",
        (_cell("energy_per_step", format_energy), _energy_error),
        metrics=("energy_per_step", "energy_error"),
        legend="of a step, by mean power, ± what sensor and sampling may be off by",
        expendable=6,
    ),
    Column(
        "FLOP/s",
        "flops",
        (_flop_rate,),
        metrics=("flops_per_second",),
        legend="of products, convolutions and attention",
        expendable=7,
    ),
    _number(
        "ceiling",
        "ceiling",
        "ceiling_share",
        format_share,
        "the least time by the most measured here, as a share of the time",
        4,
    ),
    Column(
        "bound by",
        "bound",
        (_bound,),
        metrics=("bound_by",),
        legend="what takes that least time",
        expendable=6,
    ),
    _number("busy", "busy", "busy_share", format_share, "of a step, when the device computes or copies", 2),
    Column(
        "memory",
        "memory",
        (_cell("peak_memory_bytes", format_bytes), _cell("memory_ratio_vs_fp32", times)),
        metrics=("peak_memory_bytes", "memory_ratio_vs_fp32"),
        legend="peak of one step, times that of fp32",
        first=True,
        expendable=1,
    ),
    _number(
        "B/param",
        "per_parameter",
        "bytes_per_parameter",
        format_tenths,
        "of weight, gradient, master weight and optimizer state",
        8,
    ),
    Column(
        "error",
        "error",
        (_error("output_rel_l2", "output_not_finite"),),
        metrics=("output_rel_l2", "output_worst_rel_l2"),
        legend="relative L2 of the output against fp64",
        first=True,
        expendable=1,
    ),
    Column(
        "in",
        "output",
        (_worst_output,),
        metrics=("output_worst_name",),
        legend="the output that errs most, whose error it is",
        rare=True,
    ),
    Column(
        "×floor",
        "floor",
        (_floor_factor,),
        metrics=("output_floor_ratio", "output_worst_floor_ratio"),
        legend="error, times that of rounding the fp64 output to the dtype",
        expendable=5,
    ),
    Column(
        "argmax",
        "argmax",
        (_agreement,),
        metrics=("argmax_agreement", "argmax_bound"),
        legend="decisions that are fp64's, ≥ where so few prove no more",
        expendable=3,
    ),
    Column(
        "grad",
        "grad",
        (_error("grad_rel_l2", "grad_not_finite"),),
        metrics=("grad_rel_l2",),
        legend="relative L2 of the gradients",
        first=True,
        expendable=2,
    ),
    Column("verdict", "judged", (verdict_words,), first=True, text=True),
)


def shown(rows: Iterable[Row]) -> list[Column]:
    """Return the columns that have something to say of `rows`, and the first one always.

    Where speeds have an interval, times have none: two intervals of times that overlap tell nothing of their ratio,
    because what slows the machine down for a while slows down both. Where `default` was measured, advice goes by the
    speed over that, and so its interval is the one that is shown. No legend explains an interval that no row has.
    """
    every = list(rows)
    told = [column for column in COLUMNS if column is COLUMNS[0] or says(column, every)]
    intervals = {column.header: any(map(column.parts[1], every)) for column in (_TIME, _SPEED, _DEFAULT)}
    plain = {}
    if intervals[_SPEED.header] or not intervals[_TIME.header]:
        plain[_TIME.header] = "median over rounds"
    if intervals[_DEFAULT.header] or not intervals[_SPEED.header]:
        plain[_SPEED.header] = "times that of fp32 (tf32 off)"
    if not intervals[_DEFAULT.header]:
        plain[_DEFAULT.header] = "speed, times that of what torch ships"
    return [
        replace(column, parts=column.parts[:1], legend=plain[column.header]) if column.header in plain else column
        for column in told
    ]


def legend(columns: Iterable[Column]) -> str:
    """Return one line that explains the headers of `columns`."""
    return "; ".join(f"{column.header}: {column.legend}" for column in columns if column.legend)


def says(column: Column, rows: Sequence[Row]) -> bool:
    """Return whether the column has anything to say of a row of `rows`."""
    return any(any(map(part, rows)) for part in column.parts)


GAPS = ((2, 2), (2, 1), (1, 1))
"""The blanks before a column that begins a cluster and before one that continues it, from roomy to tight."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the tables of a phase are set: `widths` of the parts of each column, what did not fit, the width of the page.

    `gaps` are the blanks before a column that begins a cluster and before one that continues it.
    """

    columns: tuple[Column, ...]
    widths: Mapping[str, tuple[int, ...]]
    gaps: tuple[int, int]
    hidden: tuple[Column, ...]
    page: int

    def width(self, column: Column) -> int:
        """Return the width of a column's cells and header."""
        widths = self.widths[column.header]
        return max(sum(widths) + len(widths) - 1, cell_len(column.header))

    def gap(self, column: Column) -> int:
        """Return the blanks before a column, none before the first."""
        return 0 if column is COLUMNS[0] else self.gaps[0 if column.first else 1]

    def of_table(self, rows: Sequence[Row]) -> "Layout":
        """Return the layout of one table, without the rare columns that say nothing of its rows."""
        told = [column for column in self.columns if not column.rare or says(column, rows)]
        return replace(self, columns=tuple(told))

    @property
    def total(self) -> int:
        """The width of a line."""
        return sum(self.gap(column) + self.width(column) for column in self.columns)


def lay_out(rows: Sequence[Row], phase: str, width: int) -> Layout:
    """Return the layout in which the tables of one phase fit `width`: tighter if need be, then with fewer columns.

    `rows` are those of all phases: what they share is equally wide in all.
    """
    measured = [row for row in rows if row["outcome"] == "ok"]
    every = shown(measured)
    columns = [column for column in every if says(column, [row for row in measured if row["phase"] == phase])]
    widths = {
        column.header: tuple(max((cell_len(part(row)) for row in measured), default=0) for part in column.parts)
        for column in every[1:]
    }
    widths[COLUMNS[0].header] = (max((cell_len(precision_label(row)) for row in rows), default=0),)
    hidden: list[Column] = []
    while True:
        for gaps in GAPS:
            layout = Layout(tuple(columns), widths, gaps, tuple(hidden), width)
            if layout.total <= width:
                return layout
        last = max(columns, key=lambda column: column.expendable)
        if not last.expendable:
            return layout
        columns.remove(last)
        hidden.append(last)


def table_lines(
    groups: Mapping[Group, Sequence[Row]], advice: Mapping[Group, Take], layouts: Mapping[str, Layout]
) -> list[Text]:
    """Return the lines of the result table, each group with its title above and its advice below.

    `layouts` are by phase.
    """
    lines: list[Text] = []
    for group, rows in groups.items():
        layout = layouts[group.phase].of_table([row for row in rows if row["outcome"] == "ok"])
        if lines:
            lines.append(Text())
        settings, optimizer = _heading(group, rows)
        title = wrapped(f"{group.workload} · {settings}", layout.page, "dim")
        title[0].stylize("not dim bold", 0, len(group.workload))
        lines += [*title, *(wrapped(optimizer, layout.page, "dim") if optimizer else [])]
        if any(row["outcome"] == "ok" for row in rows):
            lines.append(_line([column.header for column in layout.columns], layout, "dim"))
        chosen = advice[group].case_id if group in advice else None
        lines.extend(_row_line(row, layout, "bold" if row["case_id"] == chosen else "") for row in rows)
        if group in advice:
            for text in advice_lines(rows, advice[group]):
                lines += wrapped(text, layout.page)
    return lines


def table_markdown(groups: Mapping[Group, Sequence[Row]], advice: Mapping[Group, Take]) -> str:
    """Return the result table as Markdown: a heading, a table and a line of advice for each group."""
    blocks = []
    for group, rows in groups.items():
        measured = [row for row in rows if row["outcome"] == "ok"]
        columns = shown(measured)
        headers = [column.header for column in columns]
        cells = [[" ".join(part(row) for part in column.parts).strip() for column in columns] for row in measured]
        missing = [row for row in rows if row["outcome"] != "ok"]
        block = [f"### {escaped(group.workload)}", *(escaped(line) for line in _heading(group, rows) if line)]
        if measured:
            block.append(markdown_table(headers, cells))
        block += [escaped(f"{precision_label(row)} {outcome_said(row['outcome'], row['reason'])}") for row in missing]
        if group in advice:
            block += map(escaped, advice_lines(rows, advice[group]))
        blocks.append("\n\n".join(block))
    return "\n\n".join(blocks)


def _heading(group: Group, rows: Iterable[Row]) -> tuple[str, str]:
    """Return what a table is of beside its workload, and its optimizer's line, "" where that is not known."""
    optimizer = optimizer_line(rows)
    return described(replace(group, recipe="") if optimizer else group), optimizer


def advice_lines(rows: Sequence[Row], advice: Take) -> list[str]:
    """Return the lines below a table: what to take of it, what is to be known besides, what is not taken and why."""
    lines = (f"→ {answer(advice.statement)}", *map(words, advice.hints), not_taken(rows, advice))
    return [line for line in lines if line]


def not_taken(rows: Sequence[Row], advice: Take) -> str:
    """Return in a line what of a table is wrong though faster or smaller, but for what the advice on it names."""
    named = advice.passed.case_id if advice.passed else None
    return passed_words((precision_label(row), row) for row in passed_over(rows) if row["case_id"] != named)


def _row_line(row: Row, layout: Layout, style: str) -> Text:
    """Return the line of one row; a failure's or skip's reason takes the place of the numbers."""
    if row["outcome"] != "ok":
        name = precision_label(row).ljust(layout.width(COLUMNS[0]) + 2)
        colour = "red" if row["outcome"] == "failed" else "dim"
        said = outcome_said(row["outcome"], row["reason"])
        return Text.assemble(name, (said, colour), no_wrap=True, overflow="ellipsis")
    cells = []
    for column in layout.columns:
        parts = zip(column.parts, layout.widths[column.header], strict=True)
        cells.append(" ".join(part(row).rjust(width) for part, width in parts))
        if column.text:
            cells[-1] = cells[-1].strip()
    return _line(cells, layout, style)


def _line(cells: Sequence[str], layout: Layout, style: str) -> Text:
    """Join the cells of a line: the first to the left, the others to the right."""
    line = ""
    for column, cell in zip(layout.columns, cells, strict=True):
        width = layout.width(column)
        line += " " * layout.gap(column) + (cell.ljust(width) if column.text else cell.rjust(width))
    return Text(line.rstrip(), style=style, no_wrap=True, overflow="ellipsis")

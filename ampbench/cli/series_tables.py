"""A trend for people: terminal lines and Markdown, the changes first, then a line per series."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ampbench import stats
from ampbench.cli.labels import case_labels, common_traits
from ampbench.cli.tables import markdown_table, wrapped
from ampbench.comparing.wording import percent, percent_range
from ampbench.trends import TRACKED, Change, Place, Rule, Series, Trend, X
from ampbench.units import UNDEFINED, format_quantity

COLUMNS_FOR_X = 6
"""As many x stand side by side with their values, if the terminal is wide enough; more become a curve."""
LONGEST_CURVE, SHORTEST_CURVE = 40, 8
LONGEST_LIST = 3
SMALLEST_RANGE = math.log(1.1)
"""A curve spans at least a tenth of its value, so that noise does not look like news."""

_BLOCKS, _GAP = "▁▂▃▄▅▆▇█", "·"
_ASCII_BLOCKS, _ASCII_GAP = "_.,-=+*#", "?"
_STYLES = {"regressed": "bold red", "improved": "bold green"}
SHORTEST_NAME = 8
"""So many letters of a workload's name still tell it from others."""
LONGEST_LABEL, SHORTEST_LABEL = 48, 34
_NOT_INTERLEAVED = (
    "The runs were not measured in turns: what changed on the machine between them looks like a change of time. "
    "ampbench ab decides."
)


def trend_lines(trend: Trend, width: int, show_all: bool = False, only_ascii: bool = False) -> list[Text]:
    """Return what a terminal of `width` columns shows of a trend; with `show_all`, series without a change, too."""
    names = case_labels(one.case for one in trend.series)
    lines = _head(trend, width)
    lines += [Text(), *_change_lines(trend, names, width)]
    for place, series in trend.places.items():
        shown = [one for one in series if show_all or one.changes]
        if shown:
            title = [Text(f"{_place(place)}", style="dim")] if len(trend.places) > 1 else []
            lines += [Text(), *title, *_table(shown, names, width, only_ascii)]
    lines += [Text(), *_foot(trend, width, show_all)]
    return lines


def trend_markdown(trend: Trend) -> str:
    """Return a trend as Markdown: the changes, and for each place a table of the series."""
    names = case_labels(one.case for one in trend.series)
    blocks = [f"**{summary(trend)}**", f"{_counted(trend)}: {_span(trend)}"]
    rows = [
        (change.x.label, names[one.case.case_id], one.metric.name, *_levels(one, change), _size(change),
         change.direction, change.what)
        for one, change in _changes(trend)
    ]  # fmt: skip
    if rows:
        headers = ("x", "case", "metric", "before", "after", "change", "", "what else changed")
        blocks.append(markdown_table(headers, rows, left=("case", "metric", "", "what else changed")))
    for place, series in trend.places.items():
        blocks.append(f"### {_place(place)}")
        titles = ("case", "metric", *_curve_headers(series))
        cells = [(names[one.case.case_id], one.metric.name, *_curve_cells(one, series)) for one in series]
        blocks.append(markdown_table(titles, cells, left=("case", "metric")))
    blocks += [f"> {note}" for note in trend.notes]
    return "\n\n".join(blocks) + "\n"


def summary(trend: Trend) -> str:
    """Return in one line how many series changed, and how many of them got worse."""
    counts = Counter((one.metric.name, change.direction) for one, change in _changes(trend))
    if not counts:
        judged = sum(one.rule is not Rule.NONE for one in trend.series)
        return f"no change in {_number(judged, 'series', 'series')}" if judged else "too few points to look for changes"
    said = []
    for direction in _STYLES:
        of_metrics = Counter({metric: count for (metric, which), count in counts.items() if which == direction})
        said += [f"{of_metrics.total()} {direction} ({_listed(of_metrics)})"] if of_metrics else []
    changed = sum(bool(one.changes) for one in trend.series)
    return f"{_number(sum(counts.values()), 'change', 'changes')} in {changed} series: {', '.join(said)}"


def curve(values: Sequence[float | None], width: int, only_ascii: bool = False) -> str:
    """Return values as a line of at most `width` blocks, on a logarithmic scale where all are positive.

    None is a gap. Where there are more values than blocks, a block is the median of its share of them.
    """
    blocks, gap = (_ASCII_BLOCKS, _ASCII_GAP) if only_ascii else (_BLOCKS, _GAP)
    shares = [
        [value for value in values[len(values) * n // width : len(values) * (n + 1) // width] if value is not None]
        for n in range(width)
    ] if len(values) > width else [[] if value is None else [value] for value in values]  # fmt: skip
    heights = [stats.median(share) if share else None for share in shares]
    known = [value for value in heights if value is not None]
    positive = min(known, default=0) > 0
    scaled = [None if value is None else math.log(value) if positive else value for value in heights]
    ends = [value for value in scaled if value is not None]
    if not ends:
        return gap * len(heights)
    span = max(max(ends) - min(ends), SMALLEST_RANGE if positive else max(map(abs, ends)) * 0.1 or 1.0)
    low = (max(ends) + min(ends) - span) / 2
    last = len(blocks) - 1
    return "".join(gap if one is None else blocks[min(int((one - low) / span * last + 0.5), last)] for one in scaled)


def _head(trend: Trend, width: int) -> list[Text]:
    lines = wrapped(f"{_counted(trend)}: {_span(trend)}", width, "bold")
    for place in trend.places:
        runs = _number(trend.runs[place], "run", "runs")
        lines += wrapped(f"{_place(place)}: {runs}, {_number(_xs(trend, place), 'point', 'points')}", width)
    common = common_traits(one.case for one in trend.series)
    return lines + (wrapped(f"all cases: {common}", width, "dim") if common else [])


def _counted(trend: Trend) -> str:
    cases = len({one.case.case_id for one in trend.series})
    axis = trend.axis.replace("_", " ")
    return f"{_number(len(trend.series), 'series', 'series')} of {_number(cases, 'case', 'cases')} over {axis}"


def _span(trend: Trend) -> str:
    """Return the ends of the axis of each place, said once where they are the same."""
    spans: dict[str, None] = {}
    for series in trend.places.values():
        first, last = series[0].points[0].x, series[0].points[-1].x
        spans[first.label if first == last else f"{first.label} → {last.label}"] = None
    more = len(spans) - LONGEST_LIST
    return ", ".join(list(spans)[:LONGEST_LIST]) + (f" and {more} more" if more > 0 else "")


def _xs(trend: Trend, place: Place) -> int:
    return len(trend.places[place][0].points)


def _place(place: Place) -> str:
    parts = [place.program, place.host, place.device_name or place.cpu, place.device]
    parts += [_number(place.threads, "thread", "threads")] if place.threads else []
    parts += [f"torch {place.torch_version}"] if place.torch_version else []
    return " · ".join([part for part in parts if part] + [f"{name}={value}" for name, value in place.settings])


def _changes(trend: Trend) -> list[tuple[Series, Change]]:
    """Return all changes: place by place, x by x, those with one cause together, the largest first."""
    found = []
    for series in trend.places.values():
        order = {point.x: number for number, point in enumerate(series[0].points)}
        pairs = [(one, change) for one in series for change in one.changes]
        found += sorted(pairs, key=lambda pair: (order[pair[1].x], pair[1].what, -_height(pair[1])))
    return found


def _height(change: Change) -> float:
    return abs(math.log(change.ratio)) if change.ratio else math.inf


def _change_lines(trend: Trend, names: Mapping[str, str], width: int) -> list[Text]:
    """Return the changes: what the runs differ in said once for all changes at one x."""
    lines = wrapped(summary(trend), width, "bold")
    rows = _changes(trend)
    if not rows:
        return lines
    cells = [_change_cells(one, change, names) for one, change in rows]
    if _width(cells, LONGEST_LABEL) + 2 > width:  # names matter more than intervals, which --format json has
        cells = [(*row[:3], row[3].partition(" (")[0]) for row in cells]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    widths[0] = max(min(widths[0], width - sum(widths[1:]) - 8), SHORTEST_NAME)
    listed = iter(cells)
    for (place, x, what), group in groupby(rows, key=lambda pair: (pair[0].place, pair[1].x, pair[1].what)):
        lines += wrapped(_heading(trend, place, x, what), width)
        for _, change in group:
            name, metric, levels, size = next(listed)
            row = "  ".join((_cut(name, widths[0]), metric.ljust(widths[1]), levels.ljust(widths[2])))
            lines.append(Text.assemble(f"  {row}  ", (size, _STYLES[change.direction])))
    if any(one.metric.noisy for one, _ in rows):
        lines += wrapped(_NOT_INTERLEAVED, width, "dim")
    return lines


def _change_cells(one: Series, change: Change, names: Mapping[str, str]) -> tuple[str, str, str, str]:
    return names[one.case.case_id], one.metric.name, " → ".join(_levels(one, change)), _size(change)


def _heading(trend: Trend, place: Place, x: X, what: str) -> str:
    where = f" ({_place(place)})" if len(trend.places) > 1 else ""
    named = f"{x.label} {x.title}".strip() if trend.axis == "commit" else x.label
    said = what or "no difference is recorded"
    # the subject of a single commit between two points is both the x and what changed
    return f"at {x.label}{where}: {said}" if named in said else f"at {named}{where}: {said}"


def _levels(one: Series, change: Change) -> tuple[str, str]:
    unit = one.metric.column.unit
    return format_quantity(change.before, unit), format_quantity(change.after, unit)


def _size(change: Change) -> str:
    """Return how large a change is, as "+7.2 % (6.1 to 8.4 %)"; the interval where luck has part in it."""
    if change.ratio is None:
        return "from none"
    size = percent(change.ratio - 1, sign=True)
    if change.low is None or change.high is None:
        return size
    return f"{size} ({percent_range(change.low - 1, change.high - 1, sign=True)})"


def _table(series: Sequence[Series], names: Mapping[str, str], width: int, only_ascii: bool) -> list[Text]:
    """Return a line per series: values side by side where there are few and they fit, else a curve."""
    xs = series[0].points
    rows = [[names[one.case.case_id], one.metric.name, *_value_cells(one)] for one in series]
    headers = ["case", "metric", *(point.x.label for point in xs), "total"]
    side_by_side = len(xs) <= COLUMNS_FOR_X and _width([headers, *rows], SHORTEST_LABEL) <= width
    if not side_by_side:
        fixed = [[*row[:2], *_ends(one)] for row, one in zip(rows, series, strict=True)]
        headers = ["case", "metric", "first", "", "last", "total"]
        room = width - _width([["case", "metric", "first", "last", "total"], *fixed], LONGEST_LABEL) - 2
        length = max(min(room, LONGEST_CURVE, len(xs)), min(SHORTEST_CURVE, len(xs)))
        rows = [
            [*row[:3], curve([point.value for point in one.points], length, only_ascii), *row[3:]]
            for row, one in zip(fixed, series, strict=True)
        ]
    widths = [max(map(cell_len, column)) for column in zip(headers, *rows, strict=True)]
    widths[0] = min(widths[0], max(width - sum(widths[1:]) - 2 * (len(widths) - 1), SHORTEST_NAME))
    lines = [_row(headers, widths, "dim")]
    lines += [_row(row, widths, _STYLES.get(_worst(one), "")) for row, one in zip(rows, series, strict=True)]
    marked = side_by_side and any(one.changes for one in series)
    return lines + (wrapped("! regressed, * improved at this x", width, "dim") if marked else [])


def _value_cells(one: Series) -> list[str]:
    changed = {change.x: change.direction for change in one.changes}
    marks = {"regressed": "!", "improved": "*"}
    cells = [
        _gap(point.missing)
        if point.value is None
        else format_quantity(point.value, one.metric.column.unit) + marks.get(changed.get(point.x, ""), "")
        for point in one.points
    ]
    return [*cells, _total(one)]


def _gap(missing: str) -> str:
    """Return why there is no number, in one word where there is one."""
    word = missing.partition(":")[0]
    return word if word in ("failed", "skipped") else UNDEFINED


def _ends(one: Series) -> list[str]:
    values = [point.value for point in one.measured]
    return [*(format_quantity(value, one.metric.column.unit) for value in (values[0], values[-1])), _total(one)]


def _total(one: Series) -> str:
    if len(one.measured) < 2:
        return UNDEFINED
    return "from none" if one.total is None else percent(one.total - 1, sign=True)


def _worst(one: Series) -> str:
    directions = {change.direction for change in one.changes}
    return "regressed" if "regressed" in directions else "improved" if directions else ""


def _width(rows: Iterable[Sequence[str]], label: int) -> int:
    """Return the width of a table whose first column is cut to at most `label`."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return min(widths[0], label) + sum(widths[1:]) + 2 * (len(widths) - 1)


def _row(cells: Sequence[str], widths: Sequence[int], style: str) -> Text:
    padded = [_cut(cells[0], widths[0]), cells[1].ljust(widths[1])]
    padded += [" " * (width - cell_len(cell)) + cell for cell, width in zip(cells[2:], widths[2:], strict=True)]
    return Text("  ".join(padded).rstrip(), style=style, no_wrap=True, overflow="ellipsis")


def _cut(label: str, width: int) -> str:
    """Return a case's label in exactly `width` cells: a longer one loses the middle of the workload's name."""
    if cell_len(label) <= width:
        return set_cell_size(label, width)
    name, _, rest = label.partition(" ")
    room = width - cell_len(rest) - 1
    if room < SHORTEST_NAME:
        return set_cell_size(f"{label[: width - 2]}..", width)
    tail = (room - 2) // 2
    return set_cell_size(f"{name[: room - 2 - tail]}..{name[len(name) - tail :]} {rest}", width)


def _curve_headers(series: Sequence[Series]) -> list[str]:
    xs = series[0].points
    return ["first", "curve", "last", "total"] if len(xs) > COLUMNS_FOR_X else [*(p.x.label for p in xs), "total"]


def _curve_cells(one: Series, series: Sequence[Series]) -> list[str]:
    if len(series[0].points) <= COLUMNS_FOR_X:
        return _value_cells(one)
    first, last, total = _ends(one)
    return [first, curve([point.value for point in one.points], LONGEST_CURVE), last, total]


def _foot(trend: Trend, width: int, show_all: bool) -> list[Text]:
    lines: list[Text] = []
    broken = {one.case.case_id: one.points[-1] for one in trend.series if one.points[-1].missing.startswith("failed")}
    for case_id, point in broken.items():
        lines += wrapped(f"{case_id} at {point.x.label} {point.missing}", width, "red")
    still = Counter(one.metric.name for one in trend.series if not one.changes and one.rule is not Rule.NONE)
    if still and not show_all:
        lines += wrapped(f"without a change: {_listed(still)} (--all lists them)", width)
    alone = sum(len(one.measured) < 2 for one in trend.series)
    if alone:
        lines += wrapped(f"with a single point: {alone}{'' if show_all else ' (--all lists them)'}", width)
    for note, count in Counter(one.note for one in trend.series if one.note).items():
        if note not in trend.notes:
            lines += wrapped(f"{_number(count, 'series', 'series')} {note}", width)
    for note in trend.notes:
        lines += wrapped(note, width)
    return lines


def _listed(counts: Mapping[str, int]) -> str:
    """Return counts by metric as "time 3, memory 1"."""
    return ", ".join(f"{name} {counts[name]}" for name in TRACKED if counts.get(name))


def _number(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"

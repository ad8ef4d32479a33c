"""A trend in words, and shown: on a terminal and in Markdown the changes first, then a line per series; JSON; CSV.

Times that were not measured in turns are said to be so; what else a reader should know stands below.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ampbench.base import stats
from ampbench.base.units import UNDEFINED, counted, format_count, format_percent, format_percent_range, format_quantity
from ampbench.judge.said import NOT_IN_TURNS, STYLES
from ampbench.present.data import csv_text, json_object
from ampbench.present.document import Column
from ampbench.present.markdown import escaped, markdown_table
from ampbench.present.terminal import padded, wrapped
from ampbench.records.labels import case_labels, common_traits, few
from ampbench.records.run import short_commit
from ampbench.trend.series import TRACKED, Change, Lack, Lost, Place, Point, Rule, Series, Trend, X
from ampbench.trend.steps import SHORTEST

DIRECTIONS = ("regressed", "improved")
LONGEST_LIST = 3
FACTOR = 10.0
"""From so many times on, a change is said as a factor: nobody reads five digits of per cent."""
_LONGEST_PART = 9
"""As much is shown of a digest, and of the longest counter of memory ("allocator") all."""

JUMP = 1.1
"""A time that moves by less at the end of its series is no news: on the shared machine of docs/trends.md a change of
10% is about the smallest that two runs a version show."""

NO_DIFFERENCE = "no difference is recorded"
"""What is said of a change between runs that are alike in all that is known of them."""
SHARED = "the machine, or what they share; each case is judged by what is left (ampbench ab decides)"

_WITH_REASON = (Lack.FAILED, Lack.SKIPPED, Lack.UNDEFINED)
_LACKS: Mapping[Lack, str] = {
    Lack.NOT_MEASURED: "not measured",
    Lack.OTHER_NUMBERS: "measured with other weights, inputs, or by another count",
    Lack.OTHER_VERSION: "measured in version {} of the workload",
}

Names = Mapping[tuple[Place, str, int, str, str], str]


def series_names(trend: Trend) -> Names:
    """Return a short name for each series by its key: the case's label, and what else tells it from others.

    That is the version of the workload where there are several, and the digests, or who counted the memory, where the
    series of one case, metric and place differ in nothing else.
    """
    labels = case_labels(one.case for one in trend.series)
    versions: dict[str, set[int]] = {}
    numbers: dict[tuple[object, ...], set[str]] = {}
    for one in trend.series:
        versions.setdefault(one.case.case_id, set()).add(one.case.version)
        numbers.setdefault(one.key[:-1], set()).add(one.numbers)
    names = {}
    for one in trend.series:
        parts = [labels[one.case.case_id]]
        parts += [f"v{one.case.version}"] if len(versions[one.case.case_id]) > 1 else []
        if len(numbers[one.key[:-1]]) > 1:
            parts.append("/".join(part[:_LONGEST_PART] for part in one.numbers.split("/")))
        names[one.key] = " ".join(parts)
    return names


def changed_at(trend: Trend, x: X, what: str) -> tuple[str, str]:
    """Return what the x of a change is called, and `what` its runs differ in; neither says what the other does.

    The subject of a single commit between two points would be both.
    """
    named = f"{x.label} {x.title}".strip() if trend.axis == "commit" else x.label
    said = what or NO_DIFFERENCE
    return x.label if named in said else named, said


def summary(trend: Trend, labelled: bool = False) -> str:
    """Return in one line how many series changed, and how many of them got worse.

    Metrics have the names that are typed or, `labelled`, what heads their columns.
    """
    counts = Counter((one.metric.name, change.direction) for one, change in changes_in_order(trend))
    if not counts:
        judged = sum(one.rule is not Rule.NONE for one in trend.series)
        if judged:
            rest = " beyond what the whole run did" if trend.shifts else ""
            return f"no change in {counted(judged, 'series', 'series')}{rest}"
        alone = all(len(one.known) < 2 for one in trend.series)
        return "too few points to look for changes" if alone else "no series could be judged"
    said = []
    for direction in DIRECTIONS:
        of_metrics = Counter({metric: count for (metric, which), count in counts.items() if which == direction})
        said += [f"{of_metrics.total()} {direction} ({listed(of_metrics, labelled)})"] if of_metrics else []
    changed = sum(bool(one.changes) for one in trend.series)
    return f"{counted(sum(counts.values()), 'change', 'changes')} in {changed} series: {', '.join(said)}"


def extent(trend: Trend) -> str:
    """Return how many series of how many cases there are, and the axis."""
    cases = len({one.case.case_id for one in trend.series})
    axis = trend.axis.replace("_", " ")
    return f"{counted(len(trend.series), 'series', 'series')} of {counted(cases, 'case', 'cases')} over {axis}"


def span(trend: Trend) -> str:
    """Return the ends of the axis of each place, said once where they are the same or end another's."""
    ends = [(series[0].points[0].x.label, series[0].points[-1].x.label) for series in trend.places.values()]
    known = {label for first, last in ends if first != last for label in (first, last)}
    spans = (" → ".join(dict.fromkeys(pair)) for pair in ends if pair[0] != pair[1] or pair[0] not in known)
    return few(spans, LONGEST_LIST)


def place_name(place: Place) -> str:
    """Return a place in one line: `ampbench · host · NVIDIA H200 · cuda · torch 2.15.0`."""
    parts = [place.program, place.host, place.device_name or place.cpu, place.device]
    parts += [counted(place.threads, "thread")] if place.threads else []
    parts += [f"torch {place.torch_version}"] if place.torch_version else []
    parts += [f"commit {short_commit(place.commit)}"] if place.commit else []
    return " · ".join([part for part in parts if part] + [f"{name}={value}" for name, value in place.settings])


def where(trend: Trend, place: Place) -> str:
    """Return a place in brackets behind a blank, "" where there is but one."""
    return f" ({place_name(place)})" if len(trend.runs) > 1 else ""


def changes_in_order(trend: Trend) -> list[tuple[Series, Change]]:
    """Return all changes: place by place, x by x, those with one cause together, the largest first."""
    found = []
    for series in trend.places.values():
        order = {point.x: number for number, point in enumerate(series[0].points)}
        pairs = [(one, change) for one in series for change in one.changes]
        found += sorted(pairs, key=lambda pair: (order[pair[1].x], pair[1].what, -_height(pair[1])))
    return found


def _height(change: Change) -> float:
    return abs(math.log(change.ratio)) if change.ratio else math.inf


def levels(one: Series, change: Change) -> tuple[str, str]:
    """Return the levels on both sides of a change."""
    unit = one.metric.column.unit
    before, after = (
        "undefined" if value is None else format_quantity(value, unit) for value in (change.before, change.after)
    )
    return before, after


def size(change: Change) -> str:
    """Return how large a change is, as "+7.2% (6.1 to 8.4%)"; the interval where luck has part in it."""
    if change.other_function:
        return "another function"
    if change.after is None:
        return "not finite"
    if change.before is None:
        return "finite again"
    if change.ratio is None:
        return "from none"
    if change.low is None or change.high is None:
        return relative(change.ratio)
    if change.ratio >= FACTOR:
        return f"{relative(change.ratio)} ({_short(change.low)} to {_short(change.high)})"
    return f"{relative(change.ratio)} ({format_percent_range(change.low - 1, change.high - 1, sign=True)})"


def relative(ratio: float) -> str:
    """Return a ratio as "+7.2%", from `FACTOR` on as "x 12.3" or "x 101k", and as "1/250" the other way."""
    if ratio >= FACTOR:
        return f"x {_short(ratio)}"
    return f"1/{_short(1 / ratio)}" if 0 < ratio <= 1 / FACTOR else format_percent(ratio - 1, sign=True)


def _short(ratio: float) -> str:
    return format_count(ratio).replace(" ", "")


def gap(point: Point) -> str:
    """Return why a point has no number, in one word where there is one."""
    return point.gap.lack if point.gap is not None and point.gap.lack in _WITH_REASON else UNDEFINED


def value_said(one: Series, point: Point) -> str:
    """Return the value of a series at a point or, in one word, why there is none."""
    return gap(point) if point.value is None else format_quantity(point.value, one.metric.column.unit)


def ends(one: Series) -> list[Point]:
    """Return the first and the last point that have a value; the last of all where it is not finite."""
    measured = one.measured
    return [measured[0], one.points[-1] if one.points[-1].undefined else measured[-1]]


def missing(point: Point) -> str:
    """Return why a point has no number, "" where it has one."""
    if point.gap is None:
        return ""
    lack, why = point.gap
    return f"{lack}: {why}" if lack in _WITH_REASON else _LACKS[lack].format(why)


def total(one: Series) -> str:
    """Return the change from the first to the last point, "–" where there is none to tell of."""
    if len(one.known) < 2 or one.points[-1].undefined:
        return UNDEFINED
    return "from none" if one.total is None else relative(one.total)


def failures(trend: Trend, labelled: bool = False) -> list[str]:
    """Return what broke in the end, and never came back: cases that failed and errors that are no numbers.

    Metrics have the names that are typed or, `labelled`, what heads their columns.
    """
    found: dict[str, None] = {}
    labels = case_labels([*(one.case for one in trend.series), *(one.case for one in trend.lost)])
    for one in trend.series:
        last, name = one.points[-1], labels[one.case.case_id]
        at = f"at {last.x.label}{where(trend, one.place)}"
        if last.gap is not None and last.gap.lack is Lack.FAILED:
            found[f"{name} {at} {missing(last)}"] = None
        elif last.undefined:
            metric = one.metric.column.label if labelled else one.metric.name
            found[f"{metric} of {name} {at} {missing(last)}"] = None
    for lost in trend.lost:
        found[f"{labels[lost.case.case_id]} at {lost.x.label}{where(trend, lost.place)} {lost.reason}"] = None
    return list(found)


def notes(trend: Trend) -> list[str]:
    """Return what keeps series from being judged, with their numbers, and what else a reader should know."""
    said = Counter(one.note for one in trend.series if one.note and one.note not in trend.notes)
    unjudged = [f"{counted(count, 'series', 'series')} {note}" for note, count in said.items()]
    return [*unjudged, *disturbed_values(trend), *uncalled_ends(trend), *trend.notes]


def shared_shifts(trend: Trend) -> list[str]:
    """Return what all times of a run did together, which is no change of any case."""
    said = []
    for one in trend.shifts:
        if 1 / FACTOR < one.ratio < FACTOR:
            more = "more" if one.ratio > 1 else "less"
            took = f"{relative(one.ratio).lstrip('+-')} {more} time than at {one.last.label}"
        else:
            took = f"{relative(one.ratio)} the time that it took at {one.last.label}"
        of = f"median of {one.cases} cases, of which {one.alike} moved that way"
        said.append(f"at {one.x.label}{where(trend, one.place)} the whole run took {took} ({of}): {SHARED}")
    return said


def disturbed_values(trend: Trend) -> list[str]:
    """Return how many values of times are shown and not judged, because the machine was disturbed, and by what."""
    causes = [said for one in trend.series for said in one.disturbed.values()]
    if not causes:
        return []
    values = counted(len(causes), "value of a time is", "values of times are")
    return [f"{values} shown and not judged: {Counter(causes).most_common(1)[0][0]}"]


def uncalled_ends(trend: Trend) -> list[str]:
    """Return which times moved by more than `JUMP` at the end of their series and are not called changed, and why."""
    shared = {(one.place, one.x.value): math.log(one.ratio) for one in trend.shifts}
    found: dict[tuple[Place, X, str], list[tuple[float, Series]]] = {}
    for one in trend.series:
        if (end := _uncalled_end(one, shared)) is not None:
            x, why, ratio = end
            found.setdefault((one.place, x, why), []).append((ratio, one))
    names = series_names(trend) if found else {}
    said = []
    for (place, x, why), moved in found.items():
        moved.sort(key=lambda pair: -abs(math.log(pair[0])))
        named = few(f"{names[one.key]} {one.metric.name} {relative(ratio)}" for ratio, one in moved)
        verb = "is" if len(moved) == 1 else "are"
        said.append(f"at {x.label}{where(trend, place)} {named} {verb} not called changed: {why}")
    return said


def _uncalled_end(one: Series, shared: Mapping[tuple[Place, str], float]) -> tuple[X, str, float] | None:
    """Return where the end of a series moved without a change there, why that is none, and by what ratio.

    `shared` has the logarithms of what all times of a place did at an x: what is left beside it counts, too.
    """
    if one.rule not in (Rule.STEPS, Rule.NEIGHBOURS):
        return None
    values, disturbed = one.values, one.disturbed
    held = [place for place, value in enumerate(values) if value and place not in disturbed]
    gaps = SHORTEST - 1 if one.rule is Rule.STEPS else 1
    for since, place in list(pairwise(held))[-gaps:]:
        ratio = (values[place] or math.nan) / (values[since] or math.nan)
        if abs(math.log(ratio)) < math.log(JUMP):
            continue
        point = one.points[place]
        time = math.log(ratio) if one.metric.column.better == "lower" else -math.log(ratio)
        left = time - shared.get((one.place, point.x.value), 0.0)
        if abs(left) < math.log(JUMP) or any(change.x == point.x for change in one.changes):
            continue
        if one.rule is Rule.STEPS:
            why = f"in so long a series a level takes {SHORTEST} points"
        elif point.runs == 1:
            why = "a single run there may be luck, a second tells"
        else:
            why = "the runs there do not settle it, more may"
        return point.x, why, ratio
    return None


def has_changed_times(trend: Trend) -> bool:
    """Return whether a change is one of time, of which `NOT_IN_TURNS` is to be said."""
    return any(one.metric.noisy and one.changes for one in trend.series)


def listed(counts: Mapping[str, int], labelled: bool = False) -> str:
    """Return counts by metric as "time 3, memory 1" or, `labelled`, "time 3, peak memory 1"."""
    return ", ".join(
        f"{one.column.label if labelled else name} {counts[name]}" for name, one in TRACKED.items() if counts.get(name)
    )


_CASE = (
    "workload", "family", "precision", "device", "phase", "path", "batch_size", "input_dtype", "memory_format",
    "recipe",
)  # fmt: skip
_POINT = ("value", "low", "high", "runs")


class Told(NamedTuple):
    """A point of a series, a gap perhaps, and the change point at it, if there is one."""

    series: Series
    point: Point
    change: Change | None


POINTS: Sequence[Column[Told]] = (
    *(
        Column(name, attrgetter(f"series.case.{name}"))
        for name in ("case_id", "workload", "version", "precision", "device", "phase", "path")
    ),
    Column("metric", lambda row: row.series.metric.name),
    Column("unit", lambda row: row.series.metric.column.unit),
    *(
        Column(name, attrgetter(f"series.place.{name}"))
        for name in ("program", "host", "cpu", "device_name", "threads", "torch_version", "commit")
    ),
    Column("settings", lambda row: " ".join(f"{name}={value}" for name, value in row.series.place.settings)),
    Column("numbers", lambda row: row.series.numbers),
    Column("x", lambda row: row.point.x.value),
    Column("x_label", lambda row: row.point.x.label),
    *(Column(name, attrgetter(f"point.{name}")) for name in _POINT),
    Column("run_ids", lambda row: " ".join(row.point.run_ids)),
    Column("missing", lambda row: missing(row.point)),
    Column("change", lambda row: row.change.direction if row.change else ""),
    Column("what", lambda row: row.change.what if row.change else ""),
)
"""Of a point in CSV: run ids are joined by blanks, as are settings; `change` and `what` are of the change at it."""


def trend_json(trend: Trend) -> str:
    """Return a trend as one JSON object, a line per series; null where a number is undefined (docs/trends.md)."""
    places = list(trend.runs)
    document = {
        "axis": trend.axis,
        "left_out": dict(trend.left_out),
        "notes": list(trend.notes),
        "places": [asdict(one) | {"settings": dict(one.settings), "runs": trend.runs[one]} for one in places],
        "x": _xs(trend),
        "shifts": [
            asdict(one) | {"place": places.index(one.place), "x": one.x.value, "last": one.last.value}
            for one in trend.shifts
        ],
        "lost": [_lost(one, places.index(one.place)) for one in trend.lost],
        "series": [_series(one, places.index(one.place)) for one in trend.series],
    }
    return json_object(document, by_line=("series",))


def trend_csv(trend: Trend) -> str:
    """Return the points of a trend as CSV, gaps among them."""
    rows = []
    for one in trend.series:
        changes = {change.x: change for change in one.changes}
        rows += [Told(one, point, changes.get(point.x)) for point in one.points]
    return csv_text([column.key for column in POINTS], ([column.of(row) for column in POINTS] for row in rows))


def _xs(trend: Trend) -> list[dict[str, str]]:
    """Return every x once; each series has those of its place in their order."""
    measured = [point.x for group in trend.places.values() for point in group[0].points]
    return [asdict(x) for x in dict.fromkeys([*measured, *(one.x for one in trend.lost)])]


def _lost(one: Lost, place: int) -> dict[str, Any]:
    case = {"case_id": one.case.case_id, "version": one.case.version}
    return {**case, "place": place, "x": one.x.value, "reason": one.reason}


def _series(one: Series, place: int) -> dict[str, Any]:
    return {
        "case_id": one.case.case_id,
        **{name: getattr(one.case, name) for name in _CASE},
        "version": one.case.version,
        "parameters": dict(one.case.parameters),
        "metric": one.metric.name,
        "column": one.metric.column.name,
        "unit": one.metric.column.unit,
        "better": one.metric.column.better,
        "place": place,
        "numbers": one.numbers,
        "rule": one.rule.value,
        "note": one.note,
        "changes": [asdict(each) | {"x": each.x.value, "last": each.last.value} for each in one.changes],
        "points": [_point(point) for point in one.points],
    }


def _point(point: Point) -> dict[str, Any]:
    numbers = {name: getattr(point, name) for name in _POINT}
    each = [asdict(one) for one in point.each]
    told = {"disturbed": point.disturbed, "missing": missing(point)}
    return {"x": point.x.value, **numbers, "run_ids": list(point.run_ids), "each": each, **told}


COLUMNS_FOR_X = 6
"""As many x stand side by side with their values, if the terminal is wide enough; more become a curve."""
LONGEST_CURVE, SHORTEST_CURVE = 40, 8
SMALLEST_RANGE = math.log(1.1)
"""A curve spans at least a tenth of its value, so that noise does not look like news."""

_BLOCKS, _GAP = "▁▂▃▄▅▆▇█", "·"
_ASCII_BLOCKS, _ASCII_GAP = "_.,-=+*#", "?"
_MARKS = {"regressed": "!", "improved": "*"}
SHORTEST_NAME = 8
"""So many letters of a workload's name still tell it from others."""
LONGEST_LABEL, SHORTEST_LABEL = 48, 34


@dataclass(frozen=True, slots=True)
class _Layout:
    """How tightly values stand side by side: so many blanks between columns, with or without units' own and totals."""

    gap: int = 2
    spaced: bool = True
    totals: bool = True


_LAYOUTS = (
    _Layout(),
    _Layout(spaced=False),
    _Layout(spaced=False, totals=False),
    _Layout(spaced=False, totals=False, gap=1),
)
"""From roomy to tight; a curve comes last."""


def trend_lines(trend: Trend, width: int, show_all: bool = False, only_ascii: bool = False) -> list[Text]:
    """Return what a terminal of `width` columns shows of a trend, curves in ASCII where it has `only_ascii`.

    With `show_all`, series without a change are shown, too.
    """
    names = series_names(trend)
    lines = _head(trend, width)
    lines += [Text(), *_change_lines(trend, names, width)]
    for place, series in trend.places.items():
        shown = [one for one in series if show_all or one.changes]
        if shown:
            title = [Text(f"{place_name(place)}", style="dim")] if len(trend.places) > 1 else []
            lines += [Text(), *title, *_table(shown, names, width, only_ascii)]
    lines += [Text(), *_foot(trend, width, show_all)]
    return lines


def trend_markdown(trend: Trend) -> str:
    """Return a trend as Markdown: the changes, and for each place a table of the series."""
    names = series_names(trend)
    blocks = [f"**{escaped(summary(trend))}**", escaped(f"{extent(trend)}: {span(trend)}")]
    blocks += [changes] if (changes := changes_table(trend, names)) else []
    for place, series in trend.places.items():
        blocks.append(f"### {escaped(place_name(place))}")
        titles = ("case", "metric", *_curve_headers(series))
        cells = [(names[one.key], one.metric.name, *_curve_cells(one, series)) for one in series]
        blocks.append(markdown_table(titles, cells, left=("case", "metric")))
    blocks[2:2] = [escaped(shift) for shift in shared_shifts(trend)]
    said = [*([NOT_IN_TURNS] if has_changed_times(trend) else []), *failures(trend), *notes(trend)]
    blocks += [f"> {escaped(note)}" for note in said]
    return "\n\n".join(blocks) + "\n"


def changes_table(trend: Trend, names: Names) -> str:
    """Return a table of all changes, a line each, with the place where there are several; "" where nothing changed."""
    several = len(trend.places) > 1
    rows = [
        (change.x.label, *([place_name(one.place)] if several else []), names[one.key], one.metric.name,
         *levels(one, change), size(change), change.direction, change.what)
        for one, change in changes_in_order(trend)
    ]  # fmt: skip
    headers = ["x", "case", "metric", "before", "after", "change", "", "what else changed"]
    headers[1:1] = ["place"] if several else []
    return markdown_table(headers, rows, left=("place", "case", "metric", "", "what else changed")) if rows else ""


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
    lines = wrapped(f"{extent(trend)}: {span(trend)}", width, "bold")
    for place, series in trend.places.items():
        points = counted(len(series[0].points), "point")
        lines += wrapped(f"{place_name(place)}: {counted(trend.runs[place], 'run')}, {points}", width)
    common = common_traits(one.case for one in trend.series)
    return lines + (wrapped(f"all cases: {common}", width, "dim") if common else [])


def _change_lines(trend: Trend, names: Names, width: int) -> list[Text]:
    """Return the changes: what the runs differ in said once for all changes at one x."""
    lines = wrapped(summary(trend), width, "bold")
    for shift in shared_shifts(trend):
        lines += wrapped(shift, width)
    rows = changes_in_order(trend)
    if not rows:
        return lines
    cells = [(names[one.key], one.metric.name, " → ".join(levels(one, change)), size(change)) for one, change in rows]
    if _width(cells, LONGEST_LABEL) + 2 > width:  # names matter more than intervals, which --format json has
        cells = [(*row[:3], row[3].partition(" (")[0]) for row in cells]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    widths[0] = max(min(widths[0], width - sum(widths[1:]) - 8), SHORTEST_NAME)
    lines_of = iter(padded([[_cut(row[0], widths[0]), *row[1:]] for row in cells], left=4))
    for (place, x, what), group in groupby(rows, key=lambda pair: (pair[0].place, pair[1].x, pair[1].what)):
        at, said = changed_at(trend, x, what)
        lines += wrapped(f"at {at}{where(trend, place)}: {said}", width)
        for _, change in group:
            *row, how = next(lines_of)
            lines.append(Text.assemble(f"  {'  '.join(row)}  ", (how.rstrip(), STYLES[change.direction])))
    if has_changed_times(trend):
        lines += wrapped(NOT_IN_TURNS, width, "dim")
    return lines


def _table(series: Sequence[Series], names: Names, width: int, only_ascii: bool) -> list[Text]:
    """Return a line per series: values side by side where there are few and they fit, else a curve."""
    xs = series[0].points
    layouts = _LAYOUTS if len(xs) <= COLUMNS_FOR_X else ()
    for layout in layouts:
        headers = ["case", "metric", *(point.x.label for point in xs), *(["total"] if layout.totals else [])]
        rows = [[names[one.key], one.metric.name, *_value_cells(one, layout)] for one in series]
        if _width([headers, *rows], SHORTEST_LABEL, layout.gap) <= width:
            lines = _rows(headers, rows, series, width, layout.gap)
            marked = any(one.changes for one in series)
            return lines + (wrapped("! regressed, * improved at this x", width, "dim") if marked else [])
    fixed = [[names[one.key], one.metric.name, *_ends(one)] for one in series]
    room = width - _width([["case", "metric", "first", "last", "total"], *fixed], LONGEST_LABEL) - 2
    length = max(min(room, LONGEST_CURVE, len(xs)), min(SHORTEST_CURVE, len(xs)))
    rows = [[*row[:3], curve(one.values, length, only_ascii), *row[3:]] for row, one in zip(fixed, series, strict=True)]
    return _rows(["case", "metric", "first", "", "last", "total"], rows, series, width)


def _rows(
    headers: Sequence[str], rows: Sequence[Sequence[str]], series: Sequence[Series], width: int, gap: int = 2
) -> list[Text]:
    """Return a table's lines; the labels of the cases are cut to what is left of `width`."""
    widths = [max(map(cell_len, column)) for column in zip(headers, *rows, strict=True)]
    widths[0] = min(widths[0], max(width - sum(widths[1:]) - gap * (len(widths) - 1), SHORTEST_NAME))
    cut = [headers, *([_cut(row[0], widths[0]), *row[1:]] for row in rows)]
    texts = [(" " * gap).join(cells).rstrip() for cells in padded(cut, left=2)]
    styles = ["dim", *(STYLES.get(_worst(one), "") for one in series)]
    return [
        Text(text, style=style, no_wrap=True, overflow="ellipsis") for text, style in zip(texts, styles, strict=True)
    ]


def _value_cells(one: Series, layout: _Layout) -> list[str]:
    changed = {change.x: change.direction for change in one.changes}
    cells = [value_said(one, point) + _MARKS.get(changed.get(point.x, ""), "") for point in one.points]
    cells += [total(one)] if layout.totals else []
    return cells if layout.spaced else [cell.replace(" ", "") for cell in cells]


def _ends(one: Series) -> list[str]:
    return [*(value_said(one, point) for point in ends(one)), total(one)]


def _worst(one: Series) -> str:
    directions = {change.direction for change in one.changes}
    return "regressed" if "regressed" in directions else "improved" if directions else ""


def _width(rows: Iterable[Sequence[str]], label: int, gap: int = 2) -> int:
    """Return the width of a table whose first column is cut to at most `label`."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return min(widths[0], label) + sum(widths[1:]) + gap * (len(widths) - 1)


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
        return _value_cells(one, _Layout())
    first, last, change = _ends(one)
    return [first, curve(one.values, LONGEST_CURVE), last, change]


def _foot(trend: Trend, width: int, show_all: bool) -> list[Text]:
    lines: list[Text] = []
    for failure in failures(trend):
        lines += wrapped(failure, width, "red")
    still = Counter(one.metric.name for one in trend.series if not one.changes and one.rule is not Rule.NONE)
    if still and not show_all:
        lines += wrapped(f"without a change: {listed(still)} (--all lists them)", width)
    alone = sum(one.rule is Rule.NONE and len(one.known) < 2 for one in trend.series)
    if alone:
        lines += wrapped(f"with a single point: {alone}{'' if show_all else ' (--all lists them)'}", width)
    for note in notes(trend):
        lines += wrapped(note, width)
    return lines

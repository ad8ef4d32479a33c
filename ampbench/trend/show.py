"""A trend in words, and shown: the changes first, then a line per series that changed, and what else decides."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from ampbench.core import stats
from ampbench.core.units import UNDEFINED, counted, format_count, format_percent, format_percent_range, format_quantity
from ampbench.records.changes import Difference
from ampbench.records.labels import case_labels, common_traits, few
from ampbench.records.run import DIRTY, short_commit
from ampbench.show.comparison import NOT_IN_TURNS, drift_said
from ampbench.show.data import finite
from ampbench.show.document import Block, Column, Document, Section, table
from ampbench.trend.judging import POINTS as LONG
from ampbench.trend.judging import SHORTEST
from ampbench.trend.series import (
    TRACKED,
    Change,
    Lack,
    LeftOut,
    Lost,
    Place,
    Point,
    Rule,
    Series,
    Shift,
    Trend,
    Unjudged,
    X,
)

DIRECTIONS = ("regressed", "improved")
LONGEST_LIST = 3
FACTOR = 10.0
"""From so many times on, a change is said as a factor: nobody reads five digits of per cent."""
_LONGEST_PART = 9
"""As much is shown of a digest, and of the longest counter of memory ("allocator") all."""

JUMP = 1.1
"""A time that moves by less at the end of its series is no news: on the shared machine of docs/trends.md a change of
10% is about the smallest that two runs a version show."""

MOST = 15
"""So many changes, and series that changed, are listed unless all are asked for."""
_LONGEST_VALUE = 40
"""Values of a difference longer than this, such as lists of instructions, are not written out."""

NO_DIFFERENCE = "no difference is recorded"
"""What is said of a change between runs that are alike in all that is known of them."""
_UNJUDGED: Mapping[Unjudged, str] = {
    Unjudged.NO_ASV: f'not judged: from {LONG} points on asv finds the steps, which pip install "ampbench[asv]" adds',
    Unjudged.NO_NOISE: "not judged: neither rounds nor intervals tell how noisy the points are",
}

_HELD = ": over versions of torch the commit is held fixed"

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


def what(change: Change) -> str:
    """Return in one line what the runs on both sides of a change differ in: "torch 2.12.1 → 2.13.0; abc1 Subject"."""
    parts = [f"computes something else: {drift_said(change.moved)}"] if change.moved else []
    parts += map(_difference, change.differences)
    if change.commits is not None:
        before, after, subject, number = change.commits
        named = "none" if after is None else short_commit(after)
        if subject is None:
            parts.append(f"commit {short_commit(before) if before else 'none'} → {named}")
        elif (before or "").removesuffix(DIRTY) == (after or "").removesuffix(DIRTY):
            parts.append(f"changes that were not committed, {named}")
        else:
            several = f"{number} commits, " if number and number > 1 else ""
            parts.append(f"{several}{named} {subject}".strip())
    return "; ".join(parts) or NO_DIFFERENCE


def _difference(differs: Difference) -> str:
    before, after = differs.baseline, differs.candidate
    if max(len(before), len(after)) > _LONGEST_VALUE:
        if differs.name != "torch build":
            return f"other {differs.name}"
        before, after = short_commit(before), short_commit(after)
    return f"{differs.name} {before} → {after}"


def changed_at(trend: Trend, change: Change) -> str:
    """Return what the x of a change is called, without the subject of a single commit, which `what` has, too."""
    named = f"{change.x.label} {change.x.title}".strip() if trend.axis == "commit" else change.x.label
    return change.x.label if named in what(change) else named


def summary(trend: Trend) -> str:
    """Return in one line how many series changed, and how many of them got worse."""
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
        said += [f"{of_metrics.total()} {direction} ({listed(of_metrics)})"] if of_metrics else []
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
        found += sorted(pairs, key=lambda pair: (order[pair[1].x], what(pair[1]), -_height(pair[1])))
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
    if change.moved:
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


def value_said(one: Series, point: Point) -> str:
    """Return the value of a series at a point or, in one word, why there is none."""
    if point.value is not None:
        return format_quantity(point.value, one.metric.column.unit)
    return point.gap.lack if point.gap is not None and point.gap.lack in _WITH_REASON else UNDEFINED


def ends(one: Series) -> list[Point]:
    """Return the first and the last point that have a value; the last of all where it is not finite."""
    measured = one.measured
    return [measured[0], one.points[-1] if one.points[-1].undefined else measured[-1]]


def missing(point: Point) -> str:
    """Return why a point has no number, "" where it has one."""
    if point.gap is None:
        return ""
    lack, why, moved = point.gap
    return f"{lack}: {drift_said(moved) if moved else why}" if lack in _WITH_REASON else _LACKS[lack].format(why)


def total(one: Series) -> str:
    """Return the change from the first to the last point, "–" where there is none to tell of."""
    if len(one.known) < 2 or one.points[-1].undefined:
        return UNDEFINED
    return "from none" if one.total is None else relative(one.total)


def failures(trend: Trend) -> list[str]:
    """Return what broke in the end, and never came back: cases that failed and errors that are no numbers."""
    found: dict[str, None] = {}
    labels = case_labels([*(one.case for one in trend.series), *(one.case for one in trend.lost)])
    for one in trend.series:
        last, name = one.points[-1], labels[one.case.case_id]
        at = f"at {last.x.label}{where(trend, one.place)}"
        if last.gap is not None and last.gap.lack is Lack.FAILED:
            found[f"{name} {at} {missing(last)}"] = None
        elif last.undefined:
            found[f"{one.metric.name} of {name} {at} {missing(last)}"] = None
    for lost in trend.lost:
        found[f"{labels[lost.case.case_id]} at {lost.x.label}{where(trend, lost.place)} {lost.reason}"] = None
    return list(found)


def notes(trend: Trend) -> list[str]:
    """Return what keeps series from being judged, with their numbers, and what else a reader should know."""
    causes = Counter(one.unjudged for one in trend.series if one.unjudged)
    unjudged = [f"{counted(count, 'series', 'series')} {_UNJUDGED[why]}" for why, count in causes.items()]
    left_out = [
        f"left out {counted(count, 'run')} with {why.replace('-', ' ')}{_HELD if why is LeftOut.OTHER_COMMIT else ''}"
        for why, count in trend.left_out.items()
    ]
    return [*unjudged, *disturbed_values(trend), *uncalled_ends(trend), *left_out]


def shared_shifts(trend: Trend) -> list[str]:
    """Return what all times of a run did together, which is no change of any case."""
    said = []
    for shift in trend.shifts:
        took = f"{relative(shift.ratio)} the time that it took at {shift.last.label}"
        if 1 / FACTOR < shift.ratio < FACTOR:
            more = "more" if shift.ratio > 1 else "less"
            took = f"{relative(shift.ratio).lstrip('+-')} {more} time than at {shift.last.label}"
        at = f"at {shift.x.label}{where(trend, shift.place)}"
        median = f"median of {shift.cases} cases, {shift.alike} moved that way"
        said.append(f"{at} the whole run took {took} ({median}): perhaps the machine, so cases are judged by the rest")
    return said


def disturbed_values(trend: Trend) -> list[str]:
    """Return how many values of times are shown and not judged, because the machine was disturbed, and by what."""
    causes = [said for one in trend.series for said in one.disturbed.values()]
    if not causes:
        return []
    values = counted(len(causes), "value of a time is", "values of times are")
    return [f"{values} shown and not judged: {Counter(causes).most_common(1)[0][0]}"]


def uncalled_ends(trend: Trend) -> list[str]:
    """Return which times moved by more than `JUMP` to the end of their series and are not called changed, and why."""
    shared = {(one.place, one.x): one.ratio for one in trend.shifts}
    ends: dict[tuple[Place, X, str], list[tuple[float, Series]]] = {}
    for one in trend.series:
        known = [(point, point.value) for point in one.points if point.value and not point.disturbed]
        gaps = {Rule.STEPS: SHORTEST - 1, Rule.NEIGHBOURS: 1}.get(one.rule, len(known))
        if len(known) <= gaps or {change.x for change in one.changes} & {point.x for point, _ in known[-gaps:]}:
            continue
        (_, before), (point, last) = known[-gaps - 1], known[-1]
        whole_run = shared.get((one.place, point.x), 1.0)
        rest = last / before * (whole_run if one.metric.column.better == "higher" else 1 / whole_run)
        if min(abs(math.log(last / before)), abs(math.log(rest))) < math.log(JUMP):
            continue
        why = "the runs there do not settle it, more may"
        if one.rule is Rule.STEPS:
            why = f"in so long a series a level takes {SHORTEST} points"
        elif point.runs == 1:
            why = "a single run there may be luck, a second tells"
        ends.setdefault((one.place, point.x, why), []).append((last / before, one))
    names = series_names(trend)
    said = []
    for (place, x, why), moved in ends.items():
        moved.sort(key=lambda pair: -abs(math.log(pair[0])))
        named = few(f"{names[one.key]} {one.metric.name} {relative(ratio)}" for ratio, one in moved)
        said.append(f"at {x.label}{where(trend, place)} {named} not called changed: {why}")
    return said


def has_changed_times(trend: Trend) -> bool:
    """Return whether a change is one of time, of which `NOT_IN_TURNS` is to be said."""
    return any(one.metric.noisy and one.changes for one in trend.series)


def listed(counts: Mapping[str, int]) -> str:
    """Return counts by metric as "time 3, memory 1"."""
    return ", ".join(f"{name} {counts[name]}" for name in TRACKED if counts.get(name))


_CASE = (
    "workload", "family", "precision", "device", "phase", "path", "batch_size", "input_dtype", "memory_format",
    "recipe",
)  # fmt: skip
_NUMBERS = ("value", "low", "high", "runs")
COLUMNS = (
    "case_id", "workload", "version", "precision", "device", "phase", "path", "metric", "unit", "program", "host",
    "cpu", "device_name", "threads", "torch_version", "commit", "settings", "numbers", "x", "x_label", *_NUMBERS,
    "run_ids", "missing", "change", "what",
)  # fmt: skip
"""Of a point in CSV: run ids are joined by blanks, as are settings; `change` and `what` are of the change at it."""


def _rows(trend: Trend) -> list[dict[str, Any]]:
    """Return a row for each point of each series."""
    rows = []
    for one in trend.series:
        changes = {change.x: change for change in one.changes}
        values = {name: getattr(one.case, name) for name in COLUMNS if hasattr(one.case, name)} | asdict(one.place)
        values |= {"metric": one.metric.name, "unit": one.metric.column.unit, "numbers": one.numbers}
        values["settings"] = " ".join(f"{name}={value}" for name, value in one.place.settings)
        for point in one.points:
            change = changes.get(point.x)
            told = values | _point(point) | {"x_label": point.x.label, "run_ids": " ".join(point.run_ids)}
            told |= {"change": change.direction if change else "", "what": what(change) if change else ""}
            rows.append({name: told[name] for name in COLUMNS})
    return rows


def _data(trend: Trend) -> dict[str, Any]:
    """Return a trend as JSON has it (docs/trends.md)."""
    places = list(trend.runs)

    def placed(one: Lost | Shift | Series) -> dict[str, Any]:
        return {"place": places.index(one.place)}

    measured = [point.x for group in trend.places.values() for point in group[0].points]
    return {
        "axis": trend.axis,
        "left_out": dict(trend.left_out),
        "places": [asdict(one) | {"settings": dict(one.settings), "runs": trend.runs[one]} for one in places],
        "x": [asdict(x) for x in dict.fromkeys([*measured, *(one.x for one in trend.lost)])],
        "shifts": [asdict(one) | placed(one) | {"x": one.x.value, "last": one.last.value} for one in trend.shifts],
        "lost": [
            {"case_id": one.case.case_id, "version": one.case.version, "x": one.x.value, "reason": one.reason}
            | placed(one)
            for one in trend.lost
        ],
        "series": [_series(one) | placed(one) for one in trend.series],
    }


def _series(one: Series) -> dict[str, Any]:
    return {
        "case_id": one.case.case_id,
        **{name: getattr(one.case, name) for name in _CASE},
        "version": one.case.version,
        "parameters": dict(one.case.parameters),
        "metric": one.metric.name,
        "column": one.metric.column.name,
        "unit": one.metric.column.unit,
        "better": one.metric.column.better,
        "numbers": one.numbers,
        "rule": one.rule,
        "unjudged": one.unjudged,
        "changes": [
            asdict(each) | {"x": each.x.value, "last": each.last.value, "what": what(each)} for each in one.changes
        ],
        "points": [_point(point) for point in one.points],
    }


def _point(point: Point) -> dict[str, Any]:
    numbers = {name: getattr(point, name) for name in _NUMBERS}
    each = [asdict(one) for one in point.each]
    told = {"disturbed": point.disturbed, "missing": missing(point)}
    return {"x": point.x.value, **numbers, "run_ids": list(point.run_ids), "each": each, **told}


COLUMNS_FOR_X = 5
"""As many x stand side by side with their values; more become a curve."""
LONGEST_CURVE = 40
SMALLEST_RANGE = math.log(1.1)
"""A curve spans at least a tenth of its value, so that noise does not look like news."""
_BLOCKS, _GAP = "▁▂▃▄▅▆▇█", "·"


def trend_document(trend: Trend, show_all: bool) -> Document:
    """Return a trend in every form: the changes, then curves of the series that changed, or a line per series."""

    def sections() -> list[Section]:
        names = series_names(trend)
        common = common_traits(one.case for one in trend.series)
        said = [f"all cases: {common}" if common else "", *shared_shifts(trend), summary(trend)]
        changes = changes_in_order(trend)
        listed_changes = changes if show_all else changes[:MOST]
        more = len(changes) - len(listed_changes)
        blocks = [*map(Block, filter(None, said)), *change_blocks(trend, listed_changes, names)]
        blocks += [Block(f"{counted(more, 'more change')} (--all lists them)")] if more else []
        made = [Section(f"{extent(trend)}: {span(trend)}", blocks)]
        chosen = {one.key for one, _ in listed_changes}
        for place, series in trend.places.items():
            long = len(series[0].points) > COLUMNS_FOR_X
            shown = [one for one in series if show_all or (long and one.key in chosen)]
            if shown:
                points = counted(len(series[0].points), "point")
                title = f"{place_name(place)}: {counted(trend.runs[place], 'run')}, {points}"
                made.append(Section(title, [series_block("", shown, names)]))
        still = Counter(one.metric.name for one in trend.series if not one.changes)
        foot = [NOT_IN_TURNS] if has_changed_times(trend) else []
        foot += [f"without a change: {listed(still)} (--all lists them)"] if still and not show_all else []
        made[-1].blocks.extend(map(Block, [*foot, *notes(trend)]))
        return made

    return Document(
        sections=sections,
        data=lambda: finite(_data(trend)),
        columns=list(COLUMNS),
        rows=lambda: _rows(trend),
        missing=failures(trend),
    )


def change_blocks(trend: Trend, changes: Sequence[tuple[Series, Change]], names: Names) -> list[Block]:
    """Return a table of the changes of each cause at one x, under what the runs on both sides differ in."""
    columns: list[Column[tuple[Series, Change]]] = [
        Column("", lambda row: names[row[0].key], "case"),
        Column("", lambda row: row[0].metric.name, "metric", whole=True),
        Column("", lambda row: levels(*row)[0], "before", whole=True),
        Column("", lambda row: levels(*row)[1], "after", whole=True),
        Column("", lambda row: size(row[1]), "change", whole=True),
        Column("", lambda row: row[1].direction, "direction", whole=True),
    ]
    groups: dict[str, list[tuple[Series, Change]]] = {}
    for one, change in changes:
        title = f"at {changed_at(trend, change)}{where(trend, one.place)}: {what(change)}"
        groups.setdefault(title, []).append((one, change))
    return [table(title, columns, rows) for title, rows in groups.items()]


def _value_at(place: int, one: Series) -> str:
    return value_said(one, one.points[place])


def series_block(title: str, series: Sequence[Series], names: Names) -> Block:
    """Return a table of the series of one place: the values at few x, of many a curve from the first to the last."""
    xs = [point.x for point in series[0].points]
    columns: list[Column[Series]] = [
        Column("", lambda one: names[one.key], "case"),
        Column("", lambda one: one.metric.name, "metric", whole=True),
    ]
    if len(xs) <= COLUMNS_FOR_X:
        columns += [Column("", partial(_value_at, place), x.label, whole=True) for place, x in enumerate(xs)]
    else:
        columns += [
            Column("", lambda one: value_said(one, ends(one)[0]), "first", whole=True),
            Column("", lambda one: curve(one.values, LONGEST_CURVE), "curve", whole=True),
            Column("", lambda one: value_said(one, ends(one)[1]), "last", whole=True),
        ]
    return table(title, [*columns, Column("", total, "total", whole=True)], series)


def curve(values: Sequence[float | None], width: int) -> str:
    """Return values as a line of at most `width` blocks, on a logarithmic scale where all are positive.

    None is a gap. Where there are more values than blocks, a block is the median of its share of them.
    """
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
        return _GAP * len(heights)
    span = max(max(ends) - min(ends), SMALLEST_RANGE if positive else max(map(abs, ends)) * 0.1 or 1.0)
    low = (max(ends) + min(ends) - span) / 2
    last = len(_BLOCKS) - 1
    return "".join(_GAP if one is None else _BLOCKS[min(int((one - low) / span * last + 0.5), last)] for one in scaled)

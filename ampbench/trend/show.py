"""A trend in words: the changes in one table, then notes on them."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from ampbench.core.units import UNDEFINED, counted, format_percent, format_percent_range, format_quantity, format_ratio
from ampbench.judge.rounds import MeasuredRun
from ampbench.records.labels import case_labels, common_traits, few
from ampbench.records.run import short_commit
from ampbench.show.comparison import NOT_IN_TURNS, drift_said
from ampbench.show.document import Block, Column, Document, Section, finite, table
from ampbench.trend import JUDGED, OWN_PROGRAM, Change, Place, Rule, Series, Trend
from ampbench.trend.values import TRACKED, Lack

LONGEST_LIST = 3
FACTOR = 10.0
"""The ratio from which a change is written as a factor: five digits of per cent are unreadable."""
_LONGEST_PART = 9
"""The characters shown of a digest; the longest counter of memory ("allocator") fits."""
MOST = 10
"""The most changes listed by default."""
_LONGEST_VALUE = 40
"""The most characters of a value of a difference; lists of instructions are longer."""
COLUMNS_FOR_X = 5
"""The most x with columns of their own; of more, only the first and the last."""
_NOTES: Mapping[Rule, str] = {
    Rule.NO_ASV: 'not judged: series of this length need asv, which pip install "ampbench[asv]" adds',
    Rule.NO_NOISE: "not judged: neither rounds nor intervals show how noisy the points are",
}
Names = Mapping[tuple[Place, str, int, str, str], str]


def series_names(trend: Trend) -> Names:
    """Return a short, unique name for each series by its key.

    To the case's label come a later version of the workload, and the digests or the counter of memory where the series
    of a case, metric and place differ in nothing else.
    """
    labels = case_labels(series.case for series in trend.series)
    alike = Counter(series.key[:-1] for series in trend.series)
    names = {}
    for series in trend.series:
        case = series.case
        parts = [labels[case.case_id], *([f"v{case.version}"] if case.version > 1 else [])]
        if alike[series.key[:-1]] > 1:
            parts.append("/".join(part[:_LONGEST_PART] for part in series.numbers.split("/")))
        names[series.key] = " ".join(parts)
    return names


def what(change: Change) -> str:
    """Return the differences of the runs around a change: "torch 2.12.1 → 2.13.0; commit a1 → b2"."""
    parts = [f"computes something else: {drift_said(change.moved)}"] if change.moved else []
    for differs in change.differences:
        sides = [differs.baseline, differs.candidate]
        if differs.name in ("commit", "torch build"):
            sides = [*map(short_commit, sides)]
        too_long = max(map(len, sides)) > _LONGEST_VALUE
        parts.append(f"other {differs.name}" if too_long else f"{differs.name} {' → '.join(sides)}")
    return "; ".join(parts) or "no difference is recorded"


def summary(trend: Trend) -> str:
    """Return in one line how many series changed, and how many of them got worse."""
    changes = changes_in_order(trend)
    if not changes:
        judged = sum(series.rule in JUDGED for series in trend.series)
        if judged:
            beyond = " beyond what the whole run did" if trend.shifts else ""
            return f"no change in {counted(judged, 'series', 'series')}{beyond}"
        return "no series could be judged"
    parts = []
    for direction in ("regressed", "improved"):
        metrics = Counter(series.metric.name for series, change in changes if change.direction == direction)
        parts += [f"{metrics.total()} {direction} ({_listed(metrics)})"] if metrics else []
    changed = sum(bool(series.changes) for series in trend.series)
    return f"{counted(len(changes), 'change')} in {changed} series: {', '.join(parts)}"


_TRAITS = ("program", "host", "device_name", "cpu", "device", "threads", "torch_version", "commit", "settings")
"""The fields of a place, in the order in which they are shown."""


def _parts(place: Place, fields: Iterable[str]) -> list[str]:
    """Return the values of a place's fields as text, without empty ones."""
    values = {name: value for name in fields if (value := getattr(place, name))}
    written = {"settings": " ".join(f"{name}={value}" for name, value in place.settings)}
    written |= {"threads": counted(place.threads or 0, "thread"), "commit": f"commit {short_commit(place.commit)}"}
    written |= {"torch_version": f"torch {place.torch_version}"}
    return [written.get(name, value) for name, value in values.items()]


def where(trend: Trend, place: Place) -> str:
    """Return the traits that distinguish a place of the trend, in brackets after a blank; "" for a single place."""
    fields: list[str] = []
    for field in _TRAITS:
        apart = {tuple(getattr(known_place, known) for known in fields) for known_place in trend.runs}
        if len(apart) < len(trend.runs) and len({getattr(known_place, field) for known_place in trend.runs}) > 1:
            fields.append(field)
    telling = ", ".join(part for part in _parts(place, fields) if part != OWN_PROGRAM)
    return f" ({telling})" if telling else ""


def changes_in_order(trend: Trend) -> list[tuple[Series, Change]]:
    """Return all changes by place, x and cause, the largest first."""

    def key(pair: tuple[Series, Change]) -> tuple[int, str, float]:
        series, change = pair
        at = [point.x for point in series.points].index(change.x)
        return at, what(change), -abs(math.log(change.ratio)) if change.ratio else -math.inf

    groups = ([(series, change) for series in group for change in series.changes] for group in trend.places.values())
    return [pair for pairs in groups for pair in sorted(pairs, key=key)]


def size(change: Change) -> str:
    """Return how large a change is, as "+7.2% (6.1 to 8.4%)"; the interval where the metric is noisy."""
    if change.moved:
        return "another function"
    if change.after is None:
        return "not finite"
    if change.before is None:
        return "finite again"
    if change.ratio is None:
        return "from none"
    if change.low is None or change.high is None or change.ratio >= FACTOR:
        return relative(change.ratio)
    return f"{relative(change.ratio)} ({format_percent_range(change.low - 1, change.high - 1)})"


def relative(ratio: float) -> str:
    """Return a ratio as "+7.2%" or, from `FACTOR` times on, as "12.3x"."""
    return format_ratio(ratio) if ratio >= FACTOR else format_percent(ratio - 1, sign=True)


def failures(trend: Trend) -> list[str]:
    """Return the failed cases and the undefined errors at the last x."""
    lines: dict[str, None] = {}
    labels = case_labels(series.case for series in trend.series)
    for series in trend.series:
        last, name = series.points[-1], labels[series.case.case_id]
        if last.gap is None or last.gap.lack not in (Lack.FAILED, Lack.UNDEFINED):
            continue
        if last.gap.lack is Lack.UNDEFINED:
            name = f"{series.metric.name} of {name}"
        why = ": ".join(filter(None, last.gap))
        lines[f"{name} at {last.x.label}{where(trend, series.place)} {why}"] = None
    return list(lines)


def notes(trend: Trend) -> list[str]:
    """Return why series were not judged or runs left out."""
    rules = Counter(series.rule for series in trend.series)
    lines = [f"{counted(rules[rule], 'series', 'series')} {why}" for rule, why in _NOTES.items() if rules[rule]]
    causes = Counter(point.disturbed for series in trend.series for point in series.points if point.disturbed)
    if causes:
        values = counted(causes.total(), "value of a time is", "values of times are")
        lines.append(f"{values} not judged (-v shows them): {causes.most_common(1)[0][0]}")
    lacks = "a commit" if trend.axis == "commit" else "a readable version of torch"
    return lines + ([f"left out {counted(trend.left_out, 'run')} without {lacks}"] if trend.left_out else [])


def _listed(counts: Mapping[str, int]) -> str:
    """Return counts by metric as "time 3, memory 1"."""
    return ", ".join(f"{name} {counts[name]}" for name in TRACKED if counts.get(name))


def trend_document(trend: Trend, show_all: bool) -> Document:
    """Return a trend in every form: the changes in a table and their causes; with `show_all` every series, too."""
    return Document(
        sections=lambda: _sections(trend, show_all),
        data=lambda: finite(_data(trend)),
        missing=failures(trend),
    )


def _sections(trend: Trend, show_all: bool) -> list[Section]:
    names, changes = series_names(trend), changes_in_order(trend)
    listed = changes if show_all else changes[:MOST]
    cases = len({series.case.case_id for series in trend.series})
    counts = f"{counted(len(trend.series), 'series', 'series')} of {counted(cases, 'case')}"
    common = common_traits(series.case for series in trend.series)
    blocks = [
        Block(
            f"at {shift.x.label}{where(trend, shift.place)} the times of the whole run changed by "
            f"{relative(shift.ratio)} from {shift.last.label} (median of {shift.cases} cases, {shift.alike} moved that "
            "way): perhaps the machine, so cases are judged by the rest"
        )
        for shift in trend.shifts
    ]

    def at(row: tuple[Series, Change]) -> str:
        return f"{row[1].x.label}{where(trend, row[0].place)}"

    columns: list[Column[tuple[Series, Change]]] = [
        Column("", at, "at"),
        Column("", lambda row: names[row[0].key], "case"),
        Column("", lambda row: row[0].metric.name, "metric", whole=True),
        Column("", lambda row: size(row[1]), "change", whole=True),
    ]
    blocks += [table(summary(trend), columns, listed) if listed else Block(summary(trend))]
    blocks += map(Block, dict.fromkeys(f"{at(row)}: {what(row[1])}" for row in listed))
    more = len(changes) - len(listed)
    blocks += [Block(f"{counted(more, 'more change')} (-v lists them)")] if more else []
    if any(series.metric.noisy for series, _ in changes):
        blocks.append(Block(NOT_IN_TURNS))
    still = Counter(series.metric.name for series in trend.series if series.rule in JUDGED and not series.changes)
    blocks += [Block(f"without a change: {_listed(still)} (-v lists them)")] if still and not show_all else []
    blocks += map(Block, notes(trend))
    ends = [(group[0].points[0].x.label, group[0].points[-1].x.label) for group in trend.places.values()]
    span = few((" → ".join(dict.fromkeys(pair)) for pair in ends), LONGEST_LIST)
    title = f"{counts} over {trend.axis.replace('_', ' ')}: {span}{f' · {common}' if common else ''}"
    sections = [Section(title, blocks)]
    for place, group in trend.places.items() if show_all else ():
        points = counted(len(group[0].points), "point")
        title = f"{' · '.join(_parts(place, _TRAITS))}: {counted(trend.runs[place], 'run')}, {points}"
        sections.append(Section(title, [_series_table(group, names)]))
    return sections


def _series_table(group: Sequence[Series], names: Names) -> Block:
    """Return a table of the series of one place: their values at few x, of many the first and the last."""
    xs = [point.x for point in group[0].points]

    def value(place: int, series: Series) -> str:
        point = series.points[place]
        if point.value is not None:
            return format_quantity(point.value, series.metric.column.unit)
        return point.gap.lack if point.gap and point.gap.why else UNDEFINED

    chosen = range(len(xs)) if len(xs) <= COLUMNS_FOR_X else (0, len(xs) - 1)
    columns: list[Column[Series]] = [
        Column("", lambda series: names[series.key], "case"),
        Column("", lambda series: series.metric.name, "metric", whole=True),
    ]
    columns += [Column("", partial(value, place), xs[place].label, whole=True) for place in chosen]
    return table("", columns, group)


def _data(trend: Trend) -> dict[str, Any]:
    """Return a trend as JSON has it (docs/trends.md)."""

    def other(value: Any) -> Any:
        return value.stored.header.run if isinstance(value, MeasuredRun) else dict(value)

    plain = partial(msgspec.to_builtins, enc_hook=other)
    followed = []
    for series in trend.series:
        metric = series.metric
        names = {"metric": metric.name, "column": metric.column.name, "unit": metric.column.unit}
        followed.append({"case_id": series.case.case_id, **plain(series), **names})
    return {
        "axis": trend.axis,
        "left_out": trend.left_out,
        "shifts": [plain(shift) for shift in trend.shifts],
        "series": followed,
    }

"""A trend in words: what a terminal, Markdown and the page say alike."""

import math
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from ampbench.base.units import UNDEFINED, counted, format_count, format_percent, format_percent_range, format_quantity
from ampbench.records.labels import case_labels, few
from ampbench.records.run import short_commit
from ampbench.trend import TRACKED, Change, Place, Point, Rule, Series, Trend, X
from ampbench.trend.series import Lack
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
    spans = dict.fromkeys(
        " → ".join(dict.fromkeys(pair)) for pair in ends if pair[0] != pair[1] or pair[0] not in known
    )
    more = len(spans) - LONGEST_LIST
    return ", ".join(list(spans)[:LONGEST_LIST]) + (f" and {more} more" if more > 0 else "")


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
    values = one.values
    held = [place for place, value in enumerate(values) if value and place not in one.disturbed]
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

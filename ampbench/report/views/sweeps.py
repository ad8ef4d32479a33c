"""The section of sweeps: cases that differ in precision and one parameter, and where one precision overtakes another.

Of where they cross, only what the intervals make certain is said.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ampbench.core.precisions import BASELINE
from ampbench.core.units import all_of, format_rate
from ampbench.judge import notes
from ampbench.report.material import Material, Shown
from ampbench.show.charts import Chart, Choice, Rows, precision_encoded, tooltip
from ampbench.show.page import View, fit
from ampbench.show.rows import Group, Row, described, grouped, number, precision_label

_ORDERS = {1: "faster", -1: "slower", 0: "within the intervals"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A throughput (items per second) with its 95% interval; None under three rounds."""

    rate: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """Two precisions at one value of the parameter."""

    value: str
    own: Level
    other: Level

    @property
    def order(self) -> int:
        """1 where `own` is certainly the faster, -1 where `other` is; 0 where the intervals overlap or lack."""
        if self._above(self.own, self.other):
            return 1
        return -1 if self._above(self.other, self.own) else 0

    @staticmethod
    def _above(one: Level, other: Level) -> bool:
        return one.low is not None and other.high is not None and one.low > other.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """The order is certain at the values `before` and `after`, and opposite; `upwards` where `own` gets the faster."""

    before: str
    after: str
    upwards: bool


def find_crossings(places: Sequence[Rivals]) -> list[Crossing]:
    """Return where the certain order of two precisions changes along `places`, which go by the parameter's value."""
    certain = [place for place in places if place.order]
    return [
        Crossing(before=first.value, after=last.value, upwards=last.order > 0)
        for first, last in pairwise(certain)
        if first.order != last.order
    ]


def in_words(places: Sequence[Rivals], parameter: str, other: str) -> str:
    """Say what is certain of the order of two precisions: where `own` is faster or slower than `other`, or overtakes.

    `parameter` is the parameter as a reader knows it ("batch size"). There is at least one place.
    """
    if all(None in (place.own.low, place.other.low) for place in places):
        return "no order is certain: under three rounds there is no interval"
    orders = {place.order for place in places}
    if len(orders) == 1:
        everywhere = f"at every {parameter} measured" if len(places) > 1 else f"at {parameter} {places[0].value}"
        return f"{_ORDERS[orders.pop()]} {everywhere}"
    crossings = find_crossings(places)
    said = []
    for one in crossings:
        verb = "overtakes" if one.upwards else "falls behind"
        said.append(f"{verb} {other} between {parameter} {one.before} and {one.after}")
    values = [place.value for place in places]
    inside = {at for one in crossings for at in range(values.index(one.before), values.index(one.after))}
    for order in (0,) if crossings else (1, -1, 0):
        where = [place.value for at, place in enumerate(places) if place.order == order and at not in inside]
        said += [f"{_ORDERS[order]} at {all_of(where)}"] if where else []
    return "; ".join(said)


BATCH_SIZE = "batch_size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Cases of a run that differ in precision and in the parameter `swept` alone.

    `values` are those of the parameter, in order; `rows` the cases by the name of their precision and value, `levels`
    the throughputs of those that have one. `xs` are the values as numbers above 0, empty where a value of the chart is
    none. `places` compare the precisions that have values in common with fp32 to it.
    """

    swept: str
    title: str
    values: Sequence[str]
    rows: Mapping[str, Mapping[str, Row]]
    levels: Mapping[str, Mapping[str, Level]]
    xs: Mapping[str, float]
    places: Mapping[str, Sequence[Rivals]]


def find_sweeps(material: Material) -> dict[str, list[Sweep]]:
    """Return the sweeps by parameter: of those that runs were asked to sweep, and of batch sizes wherever they differ.

    Each is of one run: cases of two runs were not measured in turns.
    """
    wanted = {BATCH_SIZE: None} | {name: None for one in material.shown for name in one.stored.header.selection.sweeps}
    found: dict[str, list[Sweep]] = {}
    for parameter in wanted:
        candidates: list[tuple[Shown, Group, dict[str, Group], dict[Group, list[Row]]]] = []
        for shown in material.shown:
            groups = grouped(shown.rows)
            tables: dict[Group, dict[str, Group]] = {}
            for group in groups:
                value = notes.swept_value(group, parameter)
                if value is not None:
                    tables.setdefault(_rest(group, parameter), {})[value] = group
            candidates += [(shown, rest, values, groups) for rest, values in tables.items() if len(values) > 1]
        xs = _numbers(value for _, _, values, _ in candidates for value in values)
        for shown, rest, values, groups in candidates:
            title = " · ".join([rest.workload, described(rest), *([shown.name] if len(material.shown) > 1 else [])])
            ordered = {value: values[value] for value in sorted(values, key=lambda one: xs.get(one, 0.0))}
            sweep = _sweep(parameter, title, ordered, groups, xs)
            if any(len(levels) > 1 for levels in sweep.levels.values()):
                found.setdefault(parameter, []).append(sweep)
    return found


def _sweep(
    parameter: str,
    title: str,
    values: Mapping[str, Group],
    groups: Mapping[Group, Sequence[Row]],
    xs: Mapping[str, float],
) -> Sweep:
    inputs: dict[str, set[str]] = {}
    for group in values.values():
        for row in groups[group]:
            inputs.setdefault(precision_label(row), set()).add(row["input_dtype"])
    rows: dict[str, dict[str, Row]] = {}
    for value, group in values.items():
        for row in groups[group]:
            name = precision_label(row)
            name += f" in-{row['input_dtype']}" if len(inputs[name]) > 1 else ""
            rows.setdefault(name, {})[value] = row
    levels = {
        name: {value: level for value, row in members.items() if (level := _level(row)) is not None}
        for name, members in rows.items()
    }
    baselines = [name for name in (BASELINE, f"{BASELINE} in-{BASELINE}") if levels.get(name)]
    places = {
        name: [
            Rivals(value=value, own=own[value], other=levels[baselines[0]][value])
            for value in values
            if value in own and value in levels[baselines[0]]
        ]
        for name, own in levels.items()
        if baselines and name != baselines[0]
    }
    return Sweep(
        swept=parameter,
        title=title,
        values=list(values),
        rows=rows,
        levels=levels,
        xs=xs,
        places={name: some for name, some in places.items() if some},
    )


def _level(row: Row) -> Level | None:
    """Return the throughput of a case; its interval is that of the time, turned round."""
    rate, median = number(row["items_per_second"]), number(row["seconds_median"])
    if row["outcome"] != "ok" or rate is None or not 0 < rate < math.inf:
        return None
    low, high = number(row["seconds_low"]), number(row["seconds_high"])
    if not median or not low or not high or not 0 < low <= high < math.inf:
        return Level(rate=rate)
    return Level(rate=rate, low=rate * (median / high), high=rate * (median / low))


def _rest(group: Group, parameter: str) -> Group:
    """Return what the cases of a sweep share: the group without the parameter."""
    if parameter == BATCH_SIZE:
        return replace(group, batch_size=None)
    pairs = group.parameters.split(",")
    return replace(group, parameters=",".join(one for one in pairs if not one.startswith(f"{parameter}=")))


def _numbers(values: Iterable[str]) -> dict[str, float]:
    """Return values as numbers for a log axis; empty where one of them is no number above 0."""
    found = {}
    for value in values:
        try:
            found[value] = float(value)
        except ValueError:
            return {}
    return found if all(0 < one < math.inf for one in found.values()) else {}


MARGIN = 1.5
"""Intervals are drawn to so many times beyond the throughputs measured: a wide one would flatten all curves."""


def sweeps(material: Material) -> View | None:
    """Return the view; None where no precision was measured at two values of a parameter."""
    parts: list[dict[str, Any]] = []
    datasets: dict[str, Rows] = {}
    for parameter, found in find_sweeps(material).items():
        name = f"sweeps-{len(parts)}"
        datasets[name] = [row for place, one in enumerate(found) for row in _rows(str(place), one)]
        chart = Chart(
            id=name,
            title=f"Throughput by {_called(parameter)}",
            alt=f"{len(found) - 1} more can be chosen." if len(found) > 1 else "",
            spec=_spec(_called(parameter), found, datasets[name]),
            dataset=name,
            choose="sweep",
            choices=[Choice(value=str(place), label=one.title, alt=_finding(one)) for place, one in enumerate(found)],
        )
        parts.append({"chart": chart, "said": [_finding(one) for one in found[1:]]})
    if not parts:
        return None
    return View(
        id="sweeps",
        title="Sweeps",
        template="sweeps.html",
        content={"parts": parts},
        charts=[part["chart"] for part in parts],
        datasets=datasets,
    )


def _called(parameter: str) -> str:
    """Return a parameter as it is called in a sentence."""
    return "batch size" if parameter == BATCH_SIZE else fit(parameter)


def _rows(place: str, sweep: Sweep) -> Rows:
    """Return what is drawn of a sweep: its throughputs with their intervals."""
    rates = [level.rate for levels in sweep.levels.values() for level in levels.values()]
    least, most = min(rates) / MARGIN, max(rates) * MARGIN
    rows: list[dict[str, Any]] = []
    for value in sweep.values:
        for name, levels in sweep.levels.items():
            if (level := levels.get(value)) is not None:
                rows.append(
                    {
                        "sweep": place,
                        "precision": fit(sweep.rows[name][value]["precision"]),
                        "name": name,
                        "value": _tick(value),
                        "x": sweep.xs.get(value),
                        "rate": level.rate,
                        "low": level.rate if level.low is None else max(level.low, least),
                        "high": level.rate if level.high is None else min(level.high, most),
                        "text": format_rate(level.rate),
                        "interval": _interval(level) or "none",
                    }
                )
    return rows


def _tick(value: str) -> str:
    """Return a value as a mark of an axis; Vega keeps those as names in an object, where this one is taken."""
    return f"{value} " if value == "__proto__" else value


def _interval(level: Level) -> str:
    return "" if level.low is None else f"{format_rate(level.low)} to {format_rate(level.high)}"


def _spec(called: str, found: Sequence[Sweep], rows: Rows) -> dict[str, Any]:
    """Return the chart: a line per precision, its intervals and points."""
    xs = found[0].xs
    whole = all(one.is_integer() for one in xs.values())
    log = {"type": "log", "nice": False, "padding": 16}
    x: dict[str, Any] = {"field": "value", "type": "ordinal", "sort": None, "title": called, "axis": {"labelAngle": 0}}
    if xs:
        scale = {**log, "base": 2} if whole else log
        axis = {"format": "," if whole else "~g"}
        x = {"field": "x", "type": "quantitative", "scale": scale, "axis": axis, "title": called}
    rate = {
        "field": "rate",
        "type": "quantitative",
        "scale": log,
        "axis": {"format": "~s" if min(row["rate"] for row in rows) >= 1 else "~g", "tickCount": 5},
        "title": "items per second (↑ faster)",
    }
    look = precision_encoded({row["precision"] for row in rows})
    colour, detail = {"color": look["color"]}, {"detail": {"field": "name", "type": "nominal"}}
    # a title becomes part of an expression, where a parameter's name, which is a user's, has no place
    told = tooltip(name="precision", value="at", text="items per second", interval="95% interval")
    ends = {"y": {**rate, "field": "low"}, "y2": {"field": "high"}}
    dot = {"type": "point", "filled": False, "size": 60, "strokeWidth": 2, "opacity": 1}
    return {
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"x": x, "y": rate, **colour, **detail}},
            {"mark": {"type": "rule", "strokeWidth": 1.5}, "encoding": {"x": x, **ends, **colour, **detail}},
            {"mark": dot, "encoding": {"x": x, "y": rate, **look, "tooltip": told}},
        ]
    }


def _finding(sweep: Sweep) -> str:
    """Say how the precisions of a sweep stand to fp32."""
    said = [f"{name} {in_words(places, _called(sweep.swept), BASELINE)}" for name, places in sweep.places.items()]
    return f"{sweep.title}, against fp32: {'; '.join(said or ['no precision to compare with fp32'])}."

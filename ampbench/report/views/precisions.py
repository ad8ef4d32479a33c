"""The sections of precisions: what each buys and costs per device, the advice, and speed and memory against error.

Intervals are drawn in cells, as the CSS variables of `.interval`: shares of the cell's width, and nothing else.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampbench.core.precisions import BASELINE
from ampbench.core.statement import Answer
from ampbench.core.units import UNDEFINED, counted, every, format_error, times
from ampbench.judge import notes
from ampbench.judge.verdict import across_tables
from ampbench.records.changes import Change
from ampbench.report.answers import (
    Machine,
    Spread,
    Summary,
    Table,
    advised_machines,
    hidden_advice,
    machines,
    parts,
    row_names,
    speedups,
    summaries,
    unmeasured,
)
from ampbench.report.material import Material, ShownCase
from ampbench.show.charts import (
    Chart,
    Choice,
    Rows,
    budget_rule,
    middle_cut,
    precision_encoded,
    quantity,
    rule_at,
    tooltip,
)
from ampbench.show.comparison import means_block
from ampbench.show.page import View, fit
from ampbench.show.results import speed_interval
from ampbench.show.rows import Row, Take, described, judged_error, number, passed_over, precision_label
from ampbench.show.wording import answer, passed_words, why, words

LEAST_TIMES = math.log(2)
"""The scale of times is at least twofold, so that what hardly differs does not look far apart."""
LEAST_LIMIT = 0.1
"""Changes are drawn to 10% at least, or to `THRESHOLDS` times the threshold; what lies beyond is at the edge."""
THRESHOLDS = 5

Scale = tuple[float, float]
"""The natural logarithms of the values at the left and the right edge."""


def log_scale(values: Iterable[object], least: float = 1e-9, margin: float = 0.0) -> Scale | None:
    """Return the logarithmic scale on which all of `values` that are positive numbers lie; None where none is.

    It spans `least` at least, and leaves free a `margin` on either side: that share of the whole.
    """
    logs = [log for value in values if (log := _log(value)) is not None]
    if not logs:
        return None
    low, high = min(logs), max(logs)
    span = max(least, high - low)
    middle, half = (low + high) / 2, span / (1 - 2 * margin) / 2
    return middle - half, middle + half


def log_share(value: object, scale: Scale) -> float | None:
    """Return where a value lies on a scale, as a share of the width; None for what is no positive number."""
    log = _log(value)
    return None if log is None else (log - scale[0]) / (scale[1] - scale[0])


def log_bar(middle: object, low: object, high: object, scale: Scale | None) -> str:
    """Return a value and its interval on a scale, "" where there is none."""
    if scale is None or (place := log_share(middle, scale)) is None:
        return ""
    return _bar(place, log_share(low, scale), log_share(high, scale))


def time_scale(rows: Iterable[Row]) -> Scale | None:
    """Return the scale on which the times of `rows` are drawn, with their intervals; None where there is no time."""
    columns = ("seconds_low", "seconds_median", "seconds_high")
    return log_scale((row[column] for row in rows for column in columns), least=LEAST_TIMES)


def time_bar(row: Row, scale: Scale | None) -> str:
    """Return a row's time and its interval on `scale`, "" where there is none."""
    return log_bar(row["seconds_median"], row["seconds_low"], row["seconds_high"], scale)


def change_limit(findings: Iterable[Change]) -> float:
    """Return the change at the edges of a column of changes."""
    return (
        max((THRESHOLDS * one.threshold for one in findings if math.isfinite(one.threshold)), default=0) or LEAST_LIMIT
    )


def change_bar(one: Change, limit: float) -> str:
    """Return a change and its interval between `-limit` and `limit`, and half the width of the threshold's band."""
    if one.change is None or math.isnan(one.change):
        return ""
    exact = one.low is None or one.high is None or one.low == one.high
    middle, low, high = ((end / limit + 1) / 2 for end in (one.change, one.low or 0.0, one.high or 0.0))
    bar = _bar(middle, None, None) if exact else _bar(middle, low, high)
    return f"{bar};--t:{_share(one.threshold / limit / 2)}"


def _bar(middle: float, low: float | None, high: float | None) -> str:
    """Return shares of the width as CSS; without both ends there is no interval."""
    bar = f"--m:{_share(middle)}"
    return bar if low is None or high is None else f"{bar};--l:{_share(low)};--h:{_share(high)}"


def _share(value: float) -> str:
    return f"{round(100 * min(max(value, 0.0), 1.0), 3):.3g}%"


def _log(value: object) -> float | None:
    """Return the logarithm of a time, None where it is none."""
    seconds = number(value)
    return math.log(seconds) if seconds is not None and 0 < seconds < math.inf else None


_MARGIN = 0.03
"""The part of a cell that stays free on either side of the intervals drawn in it."""

_FASTEST = "the fastest within the error budget"
_SMALLEST = "the least memory within the error budget, at fp32's speed"


@dataclass(frozen=True, slots=True)
class Number:
    """A number as text, and what is to be said beside it: what a mean leaves out, the case of a largest one."""

    text: str
    remark: str = ""

    @property
    def line(self) -> str:
        """Both in one line."""
        return f"{self.text} ({self.remark})" if self.remark else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRow:
    """What a precision brought over the tables of a part: geometric means, speed and memory in times those of fp32.

    `cases` and `advised` say in how many of them it has a speed and is advised. `interval` is that of the speed, drawn
    as `bar` ("": not at all), `ends` are the lowest and the highest with their tables.
    """

    precision: str
    label: str
    cases: str
    speed: str
    interval: str
    bar: str
    ends: str
    tf32: Number
    memory: Number
    error: Number
    largest: Number
    floor: Number
    advised: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A machine's tables of one phase and path: how many there are, and a row per precision that was measured.

    `missing` are ok in none of them, and what became of them, `hidden` are advised and not among the cases shown.
    """

    name: str
    cases: str
    rows: Sequence[PrecisionRow]
    missing: Sequence[str]
    hidden: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceLine:
    """Which precision to take for a table, what it brings there, and why: in a sentence, and beside the numbers.

    `between` is the 95% interval of the speed, "" where there is none. `remark` is what is to be known beside the
    sentence, and is part of `why`.
    """

    table: str
    workload: str
    settings: str
    phase: str
    path: str
    precision: str
    label: str
    speed: str
    between: str
    memory: str
    error: str
    sentence: str
    remark: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTables:
    """What is told of a machine. `one` draws a speed of 1, `swept` sums tables up by what is advised.

    There is no `advice` where a ranking has it.
    """

    title: str
    statement: str
    parts: Sequence[Part]
    one: str
    tf32: bool
    paths: bool
    advice: Sequence[AdviceLine]
    swept: Sequence[str]


def precision_tables(material: Material) -> list[MachineTables]:
    """Return the tables of every machine on which anything was measured."""
    found = advised_machines(material)
    # of a single machine the top of the page says for what its numbers speak
    return [_machine(machine, machine.statement if len(found) > 1 else "") for machine in found]


def _machine(machine: Machine, statement: str) -> MachineTables:
    """Return what is told of a machine. The speeds of all its parts have one scale."""
    found = {part: (tables, summaries(tables)) for part, tables in parts(machine).items()}
    speeds = [one.speed for _, rows in found.values() for one in rows if one.speed]
    ends = [value for one in speeds for value in (one.mean, one.low, one.high)]
    scale = log_scale([1.0, *ends], margin=_MARGIN)
    advised = {table.group: table.advice for table in machine.tables if table.advice is not None}
    swept = dict.fromkeys(name for shown in machine.runs for name in shown.stored.header.selection.sweeps)
    return MachineTables(
        title=machine.title,
        statement=statement,
        parts=[
            Part(
                name=part,
                cases=f"{counted(len(tables), 'case')} of each precision",
                rows=[_row(one, scale) for one in rows],
                missing=[f"{name}: {became}" for name, became in unmeasured(tables).items()],
                hidden=[f"{name} ({counted(count, 'case')})" for name, count in hidden_advice(tables).items()],
            )
            for part, (tables, rows) in found.items()
        ],
        one=log_bar(1.0, None, None, scale),
        tf32=any(one.tf32 is not None for _, rows in found.values() for one in rows),
        paths=len({group.path for group in advised}) > 1,
        advice=[] if machine.is_ranked else [_advised(table) for table in machine.advised],
        swept=[
            *(words(hint) for shown in machine.runs for hint in across_tables(shown.stored, shown.advice)),
            *map(words, notes.sweep_notes(advised, swept)),
        ],
    )


def _row(one: Summary, scale: Scale | None) -> PrecisionRow:
    speed, baseline = one.speed, one.precision == BASELINE
    interval = ends = ""
    if speed is not None and not baseline:
        if speed.low is not None and speed.high is not None and speed.low != speed.high:
            interval = f"{times(speed.low)} to {times(speed.high)}"
        (least, where), (most, there) = speed.least, speed.most
        ends = f"{times(least)} {where}" + (f" to {times(most)} {there}" if least != most else "")
    usual = speed.count if speed is not None else 0
    return PrecisionRow(
        precision=one.precision,
        label=one.label,
        cases=f"{usual} of {one.tables}",
        speed=UNDEFINED if speed is None or speed.mean is None else times(speed.mean),
        interval=interval,
        bar="" if baseline or speed is None else log_bar(speed.mean, speed.low, speed.high, scale),
        ends=ends,
        tf32=_mean(one.tf32, times, usual),
        memory=_mean(one.memory, times, usual),
        error=_mean(one.error, format_error, usual, zero="without error"),
        largest=Number(UNDEFINED) if one.error is None else Number(format_error(one.error.most[0]), one.error.most[1]),
        floor=_mean(one.floor, times, usual),
        advised=f"{one.advised} of {one.tables}",
    )


def _mean(found: Spread | None, written: Callable[[float], str], usual: int, zero: str = "") -> Number:
    """Return a geometric mean, and over how many tables it is where that is not the `usual` number."""
    if found is None:
        return Number(UNDEFINED)
    said = [f"of {found.count}"] if found.count not in (usual, 0) else []
    zero = zero or ("is 0" if found.zeros == 1 else "are 0")
    said += [f"{found.zeros} {zero}"] if found.zeros else []
    said += [f"{found.infinite} not finite"] if found.infinite else []
    return Number(UNDEFINED if found.mean is None else written(found.mean), ", ".join(said))


def _advised(table: Table) -> AdviceLine:
    group, advice, row = table.group, table.advice, table.chosen
    assert advice is not None
    named = advice.passed.case_id if advice.passed else ""
    others = [(precision_label(each), each) for each in passed_over(table.whole) if each["case_id"] != named]
    remark = "; ".join(filter(None, [*map(words, advice.hints), passed_words(others)]))
    return AdviceLine(
        table=table.label,
        workload=group.workload,
        settings=described(group, place=False),
        phase=group.phase,
        path=group.path,
        precision=advice.precision or "",
        label=precision_label(row) if row is not None else "",
        speed=_value(row, "speedup_vs_fp32", times),
        between="" if row is None else speed_interval(row),
        memory=_value(row, "memory_ratio_vs_fp32", times),
        error=UNDEFINED if row is None or (error := judged_error(row)) is None else format_error(error),
        sentence=answer(advice.statement),
        remark=remark,
        why=_why(advice, remark),
    )


def _why(advice: Take, remark: str) -> str:
    """Return why a precision is advised, and what is to be remarked, or why none is."""
    known = why(advice.statement) if advice.precision else answer(advice.statement)
    known = known or (_SMALLEST if advice.statement.code is Answer.SAVE else _FASTEST)
    return "; ".join(filter(None, [known, remark]))


def _value(row: Row | None, column: str, written: Callable[[float], str]) -> str:
    value = None if row is None else number(row[column])
    return UNDEFINED if value is None else written(value)


SLOWEST = 0.25
"""Below this many times the speed of fp32 points stand at the edge: emulated halves take thirty times as long, and on a
scale that shows that, nobody can tell 1.2 from 1.5."""
LEAST_SPAN = (0.5, 1.5)
"""What axes of ratios show at least, so that what hardly differs does not look far apart."""
_ROW_PIXELS = 22
_LABEL_PIXELS = 215
_LABEL_LENGTH = 30


def precisions(material: Material) -> View | None:
    """Return the view; None where nothing was measured."""
    found = advised_machines(material)
    if not found:
        return None
    few = [(place, machine) for place, machine in enumerate(found) if not machine.is_ranked]
    rows = [row for place, machine in few for row in _points(machine, str(place))]
    content = {
        "machines": precision_tables(material),
        "allowed": f"{material.budget.output_rel_l2:g}",
        "means": [means_block(one) for one in material.comparisons if one.means],
    }
    return View(
        id="precisions",
        title="Precisions",
        template="precisions.html",
        content=content,
        charts=[_chart(found, rows)] if rows else [],
        datasets={"precisions": rows} if rows else {},
    )


def _points(machine: Machine, place: str) -> list[dict[str, Any]]:
    """Return the points of the chart: the speed of every precision in the tables of a machine."""
    named = row_names(machine.tables)
    return [
        {
            "machine": place,
            "table": table.label,
            "precision": row["precision"],
            "name": named(row),
            "speed": speed,
            "said": f"{named(row)}: {times(speed)}",
        }
        for table, row, speed in speedups(machine)
    ]


def _chart(found: Sequence[Machine], rows: Sequence[Mapping[str, Any]]) -> Chart:
    drawn = [row["machine"] for row in rows]
    shown = [(str(place), machine) for place, machine in enumerate(found) if str(place) in drawn]
    several = len(shown) > 1
    told = {place: _told(machine, place, rows, several) for place, machine in shown}
    tables = max(len({row["table"] for row in rows if row["machine"] == place}) for place, _ in shown)
    longest = min(_LABEL_LENGTH, max(len(row["table"]) for row in rows))
    speed = speed_axis([row["speed"] for row in rows], "times the speed of fp32")
    # room for the labels is reserved: where the chart is drawn without a browser, they are wider than was reckoned
    axis = {
        "labelExpr": middle_cut(_LABEL_LENGTH),
        "labelLimit": _LABEL_PIXELS,
        "minExtent": 7.4 * longest,
        "grid": True,
        "labelOverlap": False,
    }
    table = {"field": "table", "type": "nominal", "sort": None, "title": None, "axis": axis}
    marks = precision_encoded(row["precision"] for row in rows)
    encoding = {"x": speed, "y": table, **marks, "tooltip": tooltip(table="table", said="speed")}
    return Chart(
        id="precisions-speed",
        title="Speed of each precision, times that of fp32",
        alt="" if several else " ".join(told.values()),
        spec={
            "layer": [
                {"mark": {"type": "point"}, "encoding": encoding},
                rule_at("x", 1),
            ]
        },
        dataset="precisions",
        height=_ROW_PIXELS * (tables + 1),
        choose="machine" if several else "",
        choices=[Choice(value=place, label=one.title, alt=told[place]) for place, one in shown] if several else [],
    )


def speed_axis(speeds: Iterable[float], title: str) -> dict[str, Any]:
    """Return the axis on which all of `speeds` lie that are no slower than `SLOWEST`."""
    domain = [max(SLOWEST, min(LEAST_SPAN[0], *speeds)), max(LEAST_SPAN[1], *speeds)]
    scale = {"type": "log", "nice": False, "padding": 16, "clamp": True, "domain": domain}
    return quantity("speed", title, scale, {"format": "~g", "tickCount": 6})


def _told(machine: Machine, place: str, rows: Sequence[Mapping[str, Any]], several: bool) -> str:
    """Return in words what the chart shows of a machine."""
    own = [row for row in rows if row["machine"] == place]
    best: dict[str, tuple[float, str]] = {}
    for row in own:
        best[row["table"]] = max(best.get(row["table"], (1.0, BASELINE)), (row["speed"], row["name"]))
    fastest = Counter(name for _, name in best.values()).most_common()
    if len(fastest) > 1:
        (first, count), *others = fastest
        counts = [f"{first} is fastest in {count:,} of {len(best):,}"]
        counts += [f"{name} in {count:,}" for name, count in others]
        said = ", ".join(counts)
    else:
        said = f"{fastest[0][0]} is fastest{f' in {every(len(best))}' if len(best) > 1 else ''}"
    least, most = min(own, key=lambda row: row["speed"]), max(own, key=lambda row: row["speed"])
    where = f"{machine.title}: " if several else ""
    ends = f" The largest speed is {most['said']} ({most['table']}), the smallest {least['said']} ({least['table']})."
    slow = sum(row["speed"] < SLOWEST for row in own)
    edge = (
        f" {counted(slow, 'point')} slower than {times(SLOWEST)} {'stands' if slow == 1 else 'stand'} at the left edge."
    )
    return f"{where}{said}.{ends if most is not least else ''}{edge if slow else ''}"


LEAST_ERRORS = 10.0
"""The axis of errors reaches at least so many times below and above their middle: two decades."""
JOINED = 40
"""The points of so many tables are joined and have their intervals; the lines of more cannot be told apart."""

_POINT = {"type": "point", "filled": False, "size": 36, "strokeWidth": 1.5, "opacity": 1}
"""Hollow, so that points on top of each other can be told apart; few and short attributes: there may be 10,000."""
_LINE = {"type": "line", "color": "var(--faint)", "strokeWidth": 1, "opacity": 0.6}
_INTERVAL = {"type": "rule", "strokeWidth": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plane:
    """What stands against the error in a chart: the `column`, which way is better, and the words for it."""

    name: str
    column: str
    axis: str
    best: str
    least: float
    """Points of a smaller ratio stand at the edge of the chart."""
    sign: float
    """What makes less of it better."""


_PLANES = (
    _Plane(
        name="speed",
        column="speedup_vs_fp32",
        axis="speed, times fp32 (faster →)",
        best="the fastest",
        least=SLOWEST,
        sign=-1,
    ),
    _Plane(
        name="memory",
        column="memory_ratio_vs_fp32",
        axis="peak memory, times fp32 (← less)",
        best="the one with the least memory",
        least=0.0,
        sign=1,
    ),
)


@dataclass(frozen=True, slots=True)
class _Point:
    """A case in a plane: its `ratio` to fp32, and its output error, which is 0 where it is exact."""

    case: ShownCase
    ratio: float
    error: float


_Members = tuple[Table, list[ShownCase]]
"""A table, and its cases that are shown."""


def tradeoff(material: Material) -> View | None:
    """Return the view; None where no precision but fp32 has an error beside its speed or memory."""
    limit = material.budget.output_rel_l2
    parts: list[dict[str, Any]] = []
    datasets: dict[str, Rows] = {}
    found = _by_machine(material)
    for place, (machine, tables) in enumerate(found):
        cases = [case for _, members in tables for case in members]
        placed = {plane: _placed(cases, plane) for plane in _PLANES}
        planes = {plane: points for plane, points in placed.items() if any(one.error > 0 for one in points)}
        rows = _rows(tables)
        for plane, points in planes.items():
            datasets[f"tradeoff-{place}"] = rows
            chart = Chart(
                id=f"tradeoff-{plane.name}-{place}",
                title=f"{plane.name.capitalize()} against error" + (f" on {machine.title}" if len(found) > 1 else ""),
                alt=_finding(plane, points, limit),
                spec=_spec(plane, rows, limit),
                dataset=f"tradeoff-{place}",
            )
            parts.append({"chart": chart, "remark": _not_drawn(plane, cases, points)})
    if not parts:
        return None
    return View(
        id="tradeoff",
        title="Trade-off",
        template="tradeoff.html",
        content={
            "parts": parts,
            "intervals": any("x2" in layer["encoding"] for part in parts for layer in part["chart"].spec["layer"]),
        },
        charts=[part["chart"] for part in parts],
        datasets=datasets,
    )


def _by_machine(material: Material) -> list[tuple[Machine, list[_Members]]]:
    """Return the cases measured in another precision than fp32 by machine, and by the tables of each."""
    cases = {
        (id(case.shown), case.row["case_id"]): case
        for case in material.cases
        if case.row["outcome"] == "ok" and case.row["precision"] != BASELINE
    }
    found = []
    for machine in machines(material):
        tables = []
        for table in machine.tables:
            keys = [(id(table.shown), row["case_id"]) for row in table.rows]
            if own := [cases[key] for key in keys if key in cases]:
                tables.append((table, own))
        if tables:
            found.append((machine, tables))
    return found


def _placed(cases: Iterable[ShownCase], plane: _Plane) -> list[_Point]:
    """Return the cases that have a place in the plane, the exact ones too."""
    found = ((one, _positive(one.row[plane.column]), judged_error(one.row)) for one in cases)
    return [
        _Point(one, ratio, error)
        for one, ratio, error in found
        if ratio is not None and error is not None and 0 <= error < math.inf
    ]


def _positive(value: Any) -> float | None:
    """Return a number that a log axis can show, None for any other."""
    known = number(value)
    return known if known is not None and 0 < known < math.inf else None


def _rows(tables: Iterable[_Members]) -> Rows:
    """Return what is drawn of a machine: cases with an error above 0, and beside each number the text of it."""
    rows: list[dict[str, Any]] = []
    for table, cases in tables:
        for one in cases:
            error = _positive(judged_error(one.row))
            if error is not None:
                low, high = number(one.row["speedup_low"]), number(one.row["speedup_high"])
                row: dict[str, Any] = {"table": fit(table.label), "precision": fit(one.row["precision"])}
                row["case"], row["error"], row["error_text"] = one.name, error, format_error(error)
                row |= {plane.name: _positive(one.row[plane.column]) for plane in _PLANES}
                row |= {f"{plane.name}_text": _times(row[plane.name]) for plane in _PLANES}
                row |= {"speed_low": low, "speed_high": high}
                if low is not None and high is not None:
                    row["speed_text"] += f" ({times(low)} to {times(high)})"
                rows.append(row)
    return rows


def _spec(plane: _Plane, rows: Rows, limit: float) -> dict[str, Any]:
    """Return the chart: the points of each table joined by their errors, intervals of speed, and the error budget."""
    scale = {"type": "log", "round": True, "nice": False, "padding": 20}  # whole pixels take fewer bytes
    low, high = f"{plane.name}_low", f"{plane.name}_high"
    spanned = [row[low] for row in rows if row.get(low) is not None]
    ratios = [*spanned, *(row[field] for row in rows for field in (plane.name, high) if row.get(field) is not None)]
    domain = [max(plane.least, min(LEAST_SPAN[0], *ratios)), max(LEAST_SPAN[1], *ratios)]
    errors = [row["error"] for row in rows]
    middle, half = math.sqrt(min(errors) * max(errors)), max(math.sqrt(max(errors) / min(errors)), LEAST_ERRORS)
    axes = {
        "x": quantity(plane.name, plane.axis, scale | {"clamp": True, "domain": domain}, {"format": "~g"}),
        "y": quantity(
            "error",
            "output error (↓ more exact)",
            scale=scale | {"domain": [middle / half, middle * half]},
            axis={"format": ".0e", "tickCount": 5},
        ),
    }
    told = tooltip(case="case", precision="precision", speed_text="speed", error_text="error", memory_text="memory")
    coded = precision_encoded({row["precision"] for row in rows})
    marked = {**axes, **coded, "tooltip": told}
    drawn = {"filter": {"field": plane.name, "valid": True}}
    joined = {**axes, "detail": {"field": "table"}, "order": {"field": "error"}}
    lines = {"mark": _LINE, "transform": [drawn], "encoding": joined}
    span = {**axes, "x": axes["x"] | {"field": low}, "x2": {"field": high}, "color": marked["color"]}
    few = len({row["table"] for row in rows}) <= JOINED
    within = {"filter": {"field": low, "valid": True}}
    return {
        "layer": [
            *([lines] if few else []),
            *([{"mark": _INTERVAL, "transform": [within], "encoding": span}] if spanned and few else []),
            {"mark": _POINT, "transform": [drawn], "encoding": marked},
            *budget_rule(limit, "y"),
        ]
    }


def _finding(plane: _Plane, points: Sequence[_Point], limit: float) -> str:
    """Say how many cases there are, which is the best of them, and which within the error budget."""

    def cost(one: _Point) -> tuple[float, float]:
        return plane.sign * one.ratio, one.error

    best = min(points, key=cost)
    allowed = [one for one in points if one.error <= limit]
    within = min(allowed, key=cost, default=None)
    said = f"{counted(len(points), 'case')}, {len(allowed):,} within the error budget of {limit:g}"
    if len(points) == 1:
        return f"{said}: {_in_words(plane, best)}."
    said += f"; {plane.best} is {_in_words(plane, best)}"
    if within is None or within is best:
        return f"{said}."
    return f"{said}, beyond the budget; within it {_in_words(plane, within)}."


def _in_words(plane: _Plane, one: _Point) -> str:
    return (
        f"{one.case.name} with {_times(one.ratio)} the {plane.name} of fp32 and an error of {format_error(one.error)}"
    )


def _not_drawn(plane: _Plane, cases: Sequence[ShownCase], points: Sequence[_Point]) -> str:
    """Say how many measured cases of the machine the chart does not show, and why; "" where it shows all."""
    exact = sum(one.error == 0 for one in points)
    said = []
    if exact:
        said.append(f"{counted(exact, 'case')} without any error (a log axis has no 0)")
    if len(cases) > len(points):
        said.append(f"{counted(len(cases) - len(points), 'case')} without fp32 to compare with or without an error")
    slow = sum(one.ratio < plane.least for one in points)
    edge = f"{counted(slow, 'case')} of less than {times(plane.least)} the speed: at the left edge. " if slow else ""
    return f"{edge}Not drawn: {'; '.join(said)}." if said else edge.strip()


def _times(ratio: float | None) -> str:
    return UNDEFINED if ratio is None else times(ratio)

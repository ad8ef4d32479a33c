"""What each precision brought per machine, and which one is advised for what: the text of tables.

Intervals are drawn in cells, as the CSS variables of `.interval`: shares of the cell's width, and nothing else.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ampbench.base.precisions import BASELINE
from ampbench.base.units import UNDEFINED, counted, format_error, times
from ampbench.judge import notes
from ampbench.judge.advice import TODAYS, Advice, across_tables
from ampbench.judge.objections import error_said
from ampbench.judge.rows import Row, described, judged_error, number, precision_label
from ampbench.judge.table import format_factor, speed_interval
from ampbench.records.verdicts import Finding
from ampbench.report.answers import (
    Machine,
    Spread,
    Summary,
    Table,
    advised_machines,
    hidden_advice,
    parts,
    summaries,
    unmeasured,
)
from ampbench.report.material import Material

LEAST_SPAN = math.log(2)
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
    return log_scale((row[column] for row in rows for column in columns), least=LEAST_SPAN)


def time_bar(row: Row, scale: Scale | None) -> str:
    """Return a row's time and its interval on `scale`, "" where there is none."""
    return log_bar(row["seconds_median"], row["seconds_low"], row["seconds_high"], scale)


def change_limit(findings: Iterable[Finding]) -> float:
    """Return the change at the edges of a column of changes."""
    return (
        max((THRESHOLDS * one.threshold for one in findings if math.isfinite(one.threshold)), default=0) or LEAST_LIMIT
    )


def change_bar(one: Finding, limit: float) -> str:
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

_CALLED = {"batch_size": "batch size"}
"""What parameters are called where they are not typed."""
_FASTEST = "the fastest within the error budget"
_SMALLEST = "the least memory within the error budget, at fp32's speed"

Placed = tuple[float, float | None, float | None]
"""Where a mean and the ends of its interval are drawn, as shares of a cell's width."""


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

    `cases` and `advised` say in how many of them it has a speed and is advised. `interval` is that of the speed,
    drawn at `place` (None: not at all), `ends` are the lowest and the highest with their tables.
    """

    precision: str
    label: str
    cases: str
    speed: str
    interval: str
    place: Placed | None
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
    """What is told of a machine. `one` is where a speed of 1 is drawn, `swept` sums tables up by what is advised.

    There is no `advice` where a ranking has it.
    """

    title: str
    statement: str
    parts: Sequence[Part]
    one: float
    tf32: bool
    paths: bool
    advice: Sequence[AdviceLine]
    swept: Sequence[str]


def precision_tables(material: Material) -> list[MachineTables]:
    """Return the tables of every machine on which anything was measured."""
    found = advised_machines(material)
    # of a single machine the top of the page says for what its numbers speak
    return [_machine(machine, machine.statement if len(found) > 1 else "") for machine in found]


def shares(spreads: Mapping[tuple[str, str], Spread]) -> tuple[dict[tuple[str, str], Placed], float]:
    """Return where means and their intervals lie in a cell that spans them all and 1, on a logarithmic scale; and 1.

    All are shares of the cell's width: middle, low and high (None where there is no interval).
    """
    values = [value for one in spreads.values() for value in (one.mean, one.low, one.high)]
    scale = log_scale([1.0, *values], margin=_MARGIN)
    assert scale is not None
    placed = {
        key: (middle, log_share(one.low, scale), log_share(one.high, scale))
        for key, one in spreads.items()
        if (middle := log_share(one.mean, scale)) is not None
    }
    return placed, log_share(1.0, scale) or 0.0


def _machine(machine: Machine, statement: str) -> MachineTables:
    """Return what is told of a machine. The speeds of all its parts have one scale."""
    found = {part: (tables, summaries(tables)) for part, tables in parts(machine).items()}
    speeds = {(part, one.label): one.speed for part, (_, rows) in found.items() for one in rows if one.speed}
    placed, one_at = shares(speeds)
    advised = {table.group: table.advice for table in machine.tables if table.advice is not None}
    swept = dict.fromkeys(name for shown in machine.runs for name in shown.stored.header.selection.sweeps)
    return MachineTables(
        title=machine.title,
        statement=statement,
        parts=[
            Part(
                name=part,
                cases=f"{counted(len(tables), 'case')} of each precision",
                rows=[_row(one, placed.get((part, one.label))) for one in rows],
                missing=[f"{name}: {became}" for name, became in unmeasured(tables).items()],
                hidden=[f"{name} ({counted(count, 'case')})" for name, count in hidden_advice(tables).items()],
            )
            for part, (tables, rows) in found.items()
        ],
        one=one_at,
        tf32=any(one.tf32 is not None for _, rows in found.values() for one in rows),
        paths=len({group.path for group in advised}) > 1,
        advice=[] if machine.is_ranked else [_advised(table) for table in machine.advised],
        swept=[
            *(said for shown in machine.runs for said in across_tables(shown.stored, shown.rows, shown.advice)),
            *notes.sweep_remarks(advised, swept, called=lambda name: _CALLED.get(name, name)),
        ],
    )


def _row(one: Summary, place: Placed | None) -> PrecisionRow:
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
        place=None if baseline else place,
        ends=ends,
        tf32=_mean(one.tf32, times, usual),
        memory=_mean(one.memory, times, usual),
        error=_mean(one.error, format_error, usual, zero="without error"),
        largest=Number(UNDEFINED) if one.error is None else Number(format_error(one.error.most[0]), one.error.most[1]),
        floor=_mean(one.floor, format_factor, usual),
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
        error=UNDEFINED if row is None or (error := judged_error(row)) is None else error_said(row, error),
        sentence=advice.sentence,
        remark=advice.remark,
        why=_why(advice),
    )


def _why(advice: Advice) -> str:
    """Return why a precision is advised, what makes that uncertain and what arithmetic adds, or why none is."""
    if advice.precision is None:
        return "; ".join(filter(None, [advice.sentence, advice.remark]))
    known = advice.why or (_SMALLEST if advice.column == "memory_ratio_vs_fp32" else _FASTEST)
    caveat = f"not certain: {advice.caveat}" if advice.caveat and advice.precision not in TODAYS else ""
    return "; ".join(filter(None, [known, caveat, advice.remark]))


def _value(row: Row | None, column: str, written: Callable[[float], str]) -> str:
    value = None if row is None else number(row[column])
    return UNDEFINED if value is None else written(value)

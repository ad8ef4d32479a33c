"""What each precision buys and costs per device, and the advice per workload."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ampbench import notes
from ampbench.advice import number, precision_label, times
from ampbench.comparing import sentences
from ampbench.precisions import BASELINE, PRECISIONS
from ampbench.report import palette
from ampbench.report.machines import Machine, Spread, Summary, Table, machines, parts, speedups, summaries, unmeasured
from ampbench.report.material import Material
from ampbench.report.view import Chart, Choice, View
from ampbench.trends.sentences import number as counted
from ampbench.units import UNDEFINED, format_error, format_ratio
from ampbench.verdicts import Comparison

ADVICE_SHOWN = 30
"""So many lines of advice are shown for a machine; the others are folded away."""
DRAWN = 40
"""So many tables of a machine are drawn; more cannot be told apart."""

_ROW_PIXELS = 22
_LABEL_PIXELS = 190
_MARGIN = 0.03
"""The part of a cell that stays free on either side of the intervals drawn in it."""


Placed = tuple[float, float | None, float | None]
"""Where a mean and the ends of its interval are drawn, as shares of a cell's width."""


def precisions(material: Material) -> View | None:
    """Return the view; None where nothing was measured."""
    found = [machine for machine in machines(material) if machine.advised]
    if not found:
        return None
    rows = [row for place, machine in enumerate(found) for row in _points(machine, str(place))]
    content = {
        "machines": [_machine(machine) for machine in found],
        "comparisons": [_means(one) for one in material.comparisons if one.means],
    }
    return View(
        id="precisions",
        title="Precisions",
        template="precisions.html",
        content=content,
        charts=[_chart(found, rows)] if rows else [],
        datasets={"precisions": rows} if rows else {},
    )


def shares(spreads: Mapping[tuple[str, str], Spread]) -> tuple[dict[tuple[str, str], Placed], float]:
    """Return where means and their intervals lie in a cell that spans them all and 1, on a logarithmic scale; and 1.

    All are shares of the cell's width: middle, low and high (None where there is no interval).
    """
    values = [value for one in spreads.values() for value in (one.mean, one.low, one.high) if value is not None]
    low, high = math.log(min([1.0, *values])), math.log(max([1.0, *values]))

    def share(value: float) -> float:
        inner = (math.log(value) - low) / (high - low) if high > low else 0.5
        return _MARGIN + (1 - 2 * _MARGIN) * inner

    placed = {
        key: (share(one.mean), share(one.low) if one.low else None, share(one.high) if one.high else None)
        for key, one in spreads.items()
        if one.mean is not None
    }
    return placed, share(1.0)


def _machine(machine: Machine) -> dict[str, Any]:
    """Return what is shown of a machine. The cells of all its phases have one scale."""
    found = {part: (tables, summaries(tables)) for part, tables in parts(machine).items()}
    speeds = {(part, one.label): one.speed for part, (_, rows) in found.items() for one in rows if one.speed}
    placed, one_at = shares(speeds)
    advised = {table.group: table.advice for table in machine.tables if table.advice is not None}
    swept = dict.fromkeys(name for shown in machine.runs for name in shown.stored.header.selection.sweeps)
    advice = [_advised(table) for table in machine.advised]
    return {
        "title": machine.title,
        "statement": machine.statement,
        "tf32": any(one.tf32 is not None for _, rows in found.values() for one in rows),
        "one": one_at,
        "parts": [
            {
                "name": part,
                "tables": counted(len(tables), "table", "tables"),
                "rows": [_summary(one, placed.get((part, one.label))) for one in rows],
                "missing": [
                    f"{label} ({counted(count, 'table', 'tables')})" for label, count in unmeasured(tables).items()
                ],
            }
            for part, (tables, rows) in found.items()
        ],
        "paths": len({group.path for group in advised}) > 1,
        "shown": advice[:ADVICE_SHOWN],
        "folded": advice[ADVICE_SHOWN:],
        "swept": notes.sweep_remarks(advised, swept),
    }


def _summary(one: Summary, place: Placed | None) -> dict[str, Any]:
    """Return a row of the table of a machine's precisions: each cell a number and what is to be said beneath it."""
    speed, baseline = one.speed, one.precision == BASELINE
    interval = ends = ""
    if speed is not None and not baseline:
        if speed.low is not None and speed.high is not None and speed.low != speed.high:
            interval = f"{times(speed.low)} to {times(speed.high)}"
        (least, where), (most, there) = speed.least, speed.most
        ends = f"{times(least)} {where}" + (f" to {times(most)} {there}" if least != most else "")
    largest = (UNDEFINED, "") if one.error is None else (format_error(one.error.most[0]), one.error.most[1])
    counted_with = speed.count if speed is not None else 0
    return {
        "precision": one.precision,
        "label": one.label,
        "tables": f"{counted_with} of {one.tables}",
        "speed": UNDEFINED if speed is None or speed.mean is None else times(speed.mean),
        "interval": interval,
        "place": None if baseline else place,
        "colour": one.precision if one.precision in PRECISIONS else "",
        "ends": ends,
        "cells": [_cell(one.tf32, times, counted_with), _cell(one.memory, times, counted_with)],
        "error": _cell(one.error, format_error, counted_with),
        "largest": largest,
        "floor": _cell(one.floor, format_ratio, counted_with),
        "advised": f"{one.advised} of {one.tables}",
    }


def _cell(found: Spread | None, written: Callable[[float], str], usual: int) -> tuple[str, str]:
    """Return a geometric mean as text, and over how many tables it is where that is not the `usual` number."""
    if found is None:
        return UNDEFINED, ""
    said = [f"of {found.count}"] if found.count not in (usual, 0) else []
    said += [f"{found.zeros} without error" if written is format_error else f"{found.zeros} are 0"] * bool(found.zeros)
    said += [f"{found.infinite} not finite"] * bool(found.infinite)
    return UNDEFINED if found.mean is None else written(found.mean), ", ".join(said)


def _advised(table: Table) -> dict[str, Any]:
    """Return a line of the table of advice."""
    group, advice, row = table.group, table.advice, table.chosen
    assert advice is not None
    batch = "" if group.batch_size is None else f"batch {group.batch_size}"
    formatted = "" if group.memory_format == "contiguous" else group.memory_format
    settings = (batch, formatted, group.parameters.replace(",", " "))
    return {
        "workload": group.workload,
        "settings": " · ".join(part for part in settings if part),
        "phase": group.phase,
        "path": group.path,
        "precision": advice.precision,
        "label": precision_label(row) if row is not None else advice.precision or "",
        "speed": _value(row, "speedup_vs_fp32", times),
        "memory": _value(row, "memory_ratio_vs_fp32", times),
        "error": _value(row, "output_rel_l2", format_error),
        "sentence": advice.sentence,
    }


def _value(row: Mapping[str, Any] | None, column: str, written: Callable[[float], str]) -> str:
    value = None if row is None else number(row[column])
    return UNDEFINED if value is None else written(value)


def _means(one: Comparison) -> dict[str, Any]:
    """Return the table of what became of each precision's times and memory against the baseline."""
    return {
        "candidate": sentences.side_name(one.candidate),
        "baseline": sentences.side_name(one.baseline),
        "rows": [
            {
                "precision": mean.precision,
                "device": mean.device,
                "metric": sentences.metric_label(mean.metric),
                "cells": [cell or UNDEFINED for cell in sentences.mean_cells(mean)],
            }
            for mean in one.means
        ],
    }


def _points(machine: Machine, place: str) -> list[dict[str, Any]]:
    """Return the points of the chart: the speed of every precision in the first tables of a machine."""
    drawn = {table.label for table in machine.advised[:DRAWN]}
    return [
        {
            "machine": place,
            "table": table.label,
            "precision": row["precision"],
            "speed": speed,
            "said": f"{precision_label(row)}: {times(speed)}",
        }
        for table, row, speed in speedups(machine)
        if table.label in drawn
    ]


def _chart(found: Sequence[Machine], rows: Sequence[Mapping[str, Any]]) -> Chart:
    drawn = [row["machine"] for row in rows]
    shown = [(str(place), machine) for place, machine in enumerate(found) if str(place) in drawn]
    tables = max(len({row["table"] for row in rows if row["machine"] == place}) for place, _ in shown)
    longest = max(len(row["table"]) for row in rows)
    speed = {
        "field": "speed",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "padding": 16},
        "axis": {"format": "~g", "tickCount": 6},
        "title": "times the speed of fp32",
    }
    # room for the labels is reserved: where the chart is drawn without a browser, they are wider than was reckoned
    axis = {
        "labelLimit": _LABEL_PIXELS,
        "minExtent": min(1.2 * _LABEL_PIXELS, 7.4 * longest),
        "grid": True,
        "labelOverlap": False,
    }
    table = {"field": "table", "type": "nominal", "sort": None, "title": None, "axis": axis}
    legend = {"legend": {"title": None, "columns": 2}}
    marks = {name: one | legend for name, one in palette.encoded(row["precision"] for row in rows).items()}
    tooltip = [{"field": "table", "type": "nominal"}, {"field": "said", "type": "nominal", "title": "speed"}]
    encoding = {"x": speed, "y": table, **marks, "tooltip": tooltip}
    return Chart(
        id="precisions-speed",
        title="Speed of each precision, times that of fp32",
        alt=" ".join(_told(machine, place, rows, several=len(shown) > 1) for place, machine in shown[:3]),
        spec={
            "layer": [
                {"mark": {"type": "point"}, "encoding": encoding},
                {"mark": {"type": "rule", "strokeDash": [4, 3]}, "encoding": {"x": {"datum": 1}}},
            ]
        },
        dataset="precisions",
        height=_ROW_PIXELS * (tables + 1),
        choose="machine" if len(shown) > 1 else "",
        choices=[Choice(value=place, label=machine.title) for place, machine in shown] if len(shown) > 1 else [],
    )


def _told(machine: Machine, place: str, rows: Sequence[Mapping[str, Any]], several: bool) -> str:
    """Return in words what the chart shows of a machine."""
    own = [row for row in rows if row["machine"] == place]
    best: dict[str, tuple[float, str]] = {}
    for row in own:
        best[row["table"]] = max(best.get(row["table"], (1.0, BASELINE)), (row["speed"], row["precision"]))
    fastest = Counter(name for _, name in best.values()).most_common()
    said = ", ".join(f"{name} in {count} of {len(best)}" for name, count in fastest)
    least, most = min(own, key=lambda row: row["speed"]), max(own, key=lambda row: row["speed"])
    where = f"{machine.title}: " if several else ""
    cut = len(machine.advised) - DRAWN
    more = f" The first {DRAWN} tables are drawn; the tables below have {cut} more." if cut > 0 else ""
    return (
        f"{where}The shortest median is that of {said}. The largest speed is {most['said']} ({most['table']}), "
        f"the smallest {least['said']} ({least['table']}).{more}"
    )

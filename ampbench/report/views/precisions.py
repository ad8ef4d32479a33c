"""What each precision buys and costs per device, and the advice per workload."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ampbench.comparing import sentences
from ampbench.precisions import BASELINE
from ampbench.report import palette
from ampbench.report.machines import Machine, advised_machines
from ampbench.report.material import Material
from ampbench.report.precision_tables import precision_tables
from ampbench.report.summaries import row_names, speedups
from ampbench.report.vega import DASHED, middle_cut, tooltip
from ampbench.report.view import Chart, Choice, View
from ampbench.rows import times
from ampbench.units import UNDEFINED, counted, every
from ampbench.verdicts import Comparison

ADVICE_SHOWN = 30
"""So many lines of advice are shown for a machine; the others are folded away."""
DRAWN = 40
"""So many tables of a machine are drawn; more cannot be told apart."""

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
    rows = [row for place, machine in enumerate(found) for row in _points(machine, str(place))]
    content = {
        "machines": precision_tables(material),
        "at_once": ADVICE_SHOWN,
        "allowed": f"{material.budget.output_rel_l2:g}",
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


def _means(one: Comparison) -> dict[str, Any]:
    """Return the table of what became of each precision's times and memory against the baseline."""
    return {
        "candidate": sentences.side_name(one.candidate),
        "baseline": sentences.side_name(one.baseline),
        "whose": sentences.precision_heading(one),
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
        if table.label in drawn
    ]


def _chart(found: Sequence[Machine], rows: Sequence[Mapping[str, Any]]) -> Chart:
    drawn = [row["machine"] for row in rows]
    shown = [(str(place), machine) for place, machine in enumerate(found) if str(place) in drawn]
    several = len(shown) > 1
    told = {place: _told(machine, place, rows, several) for place, machine in shown}
    tables = max(len({row["table"] for row in rows if row["machine"] == place}) for place, _ in shown)
    longest = min(_LABEL_LENGTH, max(len(row["table"]) for row in rows))
    speed = {
        "field": "speed",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "padding": 16, "clamp": True, "domain": _domain(rows)},
        "axis": {"format": "~g", "tickCount": 6},
        "title": "times the speed of fp32",
    }
    # room for the labels is reserved: where the chart is drawn without a browser, they are wider than was reckoned
    axis = {
        "labelExpr": middle_cut(_LABEL_LENGTH),
        "labelLimit": _LABEL_PIXELS,
        "minExtent": 7.4 * longest,
        "grid": True,
        "labelOverlap": False,
    }
    table = {"field": "table", "type": "nominal", "sort": None, "title": None, "axis": axis}
    legend = {"legend": {"title": None, "columns": 2}}
    marks = {name: one | legend for name, one in palette.encoded(row["precision"] for row in rows).items()}
    encoding = {"x": speed, "y": table, **marks, "tooltip": tooltip(table="table", said="speed")}
    return Chart(
        id="precisions-speed",
        title="Speed of each precision, times that of fp32",
        alt="" if several else " ".join(told.values()),
        spec={
            "layer": [
                {"mark": {"type": "point"}, "encoding": encoding},
                {"mark": dict(DASHED), "encoding": {"x": {"datum": 1}}},
            ]
        },
        dataset="precisions",
        height=_ROW_PIXELS * (tables + 1),
        choose="machine" if several else "",
        choices=[Choice(value=place, label=one.title, alt=told[place]) for place, one in shown] if several else [],
    )


def _domain(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the ends of the axis of speeds."""
    speeds = [row["speed"] for row in rows]
    return [max(SLOWEST, min(LEAST_SPAN[0], *speeds)), max(LEAST_SPAN[1], *speeds)]


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
    cut = len(machine.advised) - DRAWN
    more = f" The first {DRAWN} workloads and phases are drawn; the table below has {cut:,} more." if cut > 0 else ""
    ends = f" The largest speed is {most['said']} ({most['table']}), the smallest {least['said']} ({least['table']})."
    slow = sum(row["speed"] < SLOWEST for row in own)
    edge = (
        f" {counted(slow, 'point')} slower than {times(SLOWEST)} {'stands' if slow == 1 else 'stand'} at the left edge."
    )
    return f"{where}{said}.{ends if most is not least else ''}{edge if slow else ''}{more}"

"""The timeline of traced steps: ops in their order, the casts below them, what they compute in as colour."""

from collections.abc import Sequence
from typing import Any

from ampbench.report.explained import Traced
from ampbench.report.vega import label_expression, tooltip
from ampbench.report.view import Chart, Choice, Rows
from ampbench.report.views.explanation.spans import DTYPES, cast_said, row_of, spans_of, steps_of
from ampbench.report.views.part import CHOICES
from ampbench.units import counted, format_seconds

SPANS_OF_A_CASE = 500
"""So many spans are drawn of a step at most: an eye tells no more apart, and as SVG they take 80 KB."""
SPANS_OF_THE_PAGE = 8_000
"""So many are carried in all, spread evenly over the cases (a tenth of the page's data), ..."""
SPANS_AT_LEAST = 100
"""... but of each case at least so many."""

EDGED = 150
"""A span of over that part of the step is told from its neighbours by an edge; in a shorter one it would hide all."""

TOOLTIP = tooltip(
    op="op", function="called by", module="module", dtypes="in → out", time="duration", cast="what was cast"
)
_FROM_ZERO = f"datum.value ? ({label_expression('s')}) : '0'"
_LANE = {
    "field": "lane",
    "type": "nominal",
    "title": None,
    "sort": {"field": "place", "op": "min"},
    "scale": {"paddingInner": 0.25, "paddingOuter": 0.15},
    "axis": {"domain": False, "ticks": False, "minExtent": 100, "labelLimit": 100},
}


def timelines(cases: Sequence[Traced]) -> tuple[list[Chart], dict[str, Rows], list[str]]:
    """Return the charts of traced cases, their data, and what is to be said of how they are drawn.

    Cases with times and those without, whose ops stand side by side, have a chart each.
    """
    charts: list[Chart] = []
    datasets: dict[str, Rows] = {}
    merged = 0
    listed = [one for one in cases if one.found.trace.ops][:CHOICES]
    most = min(SPANS_OF_A_CASE, max(SPANS_AT_LEAST, SPANS_OF_THE_PAGE // max(len(listed), 1)))
    for timed in (True, False):
        own = [one for one in listed if one.found.trace.timed is timed]
        if not own:
            continue
        name = "explanation-casts" if timed else "explanation-casts-untimed"
        rows: list[dict[str, Any]] = []
        for one in own:
            steps = steps_of(one.found.trace)
            spans = spans_of(steps, most)
            merged += len(spans) < len(one.found.trace.ops)
            wide = steps[-1].end / EDGED
            rows += [{"case": str(one.number), **row_of(span, timed, wide)} for span in spans]
        datasets[name] = rows
        charts.append(_chart(name, own, rows, timed))
    said = ["Ops stand one after the other, casts on a line of their own below those of their phase."] if charts else []
    if merged:
        of = "the step" if len(listed) == 1 else f"{merged:,} of {len(listed):,} steps"
        said.append(
            f"In {of}, short neighbours that compute in one dtype are drawn as one span, {most:,} spans at most."
        )
    return charts, datasets, said


def _chart(name: str, cases: Sequence[Traced], rows: Rows, timed: bool) -> Chart:
    domain = [kind for kind in DTYPES if any(row["kind"] == kind for row in rows)]
    colour = {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": domain, "range": [f"var({DTYPES[kind]})" for kind in domain]},
        "legend": {"title": None, "columns": 3, "symbolType": "square"},
    }
    axis: dict[str, Any] = {"tickCount": 5, "labelExpr": _FROM_ZERO} if timed else {"tickMinStep": 1}
    at = {
        "type": "quantitative",
        "title": "time of the ops, one after the other" if timed else "ops, one after the other",
        "axis": axis,
        "scale": {"nice": False},
    }
    encoding = {
        "x": {**at, "field": "start"},
        "x2": {"field": "end"},
        "y": _LANE,
        "color": colour,
        "stroke": {"condition": {"test": "datum.wide", "value": "var(--card)"}, **colour},
        "tooltip": TOOLTIP,
    }
    return Chart(
        id=name,
        title="Timeline of a step" if timed else "Ops of a step, without times",
        alt="",
        spec={"mark": {"type": "bar", "strokeWidth": 0.7}, "encoding": encoding},
        dataset=name,
        height=28,
        lines="lane",
        choose="case",
        choices=[Choice(value=str(one.number), label=one.name, alt=_said(one)) for one in cases],
    )


def _said(one: Traced) -> str:
    """Return what the chart shows of a case: what its casts cost, and which of them is the longest or largest."""
    casts = one.found.trace.casts
    parts = [f"{one.name}: {counted(one.whole.ops, 'op')}, {one.said}"]
    if casts:
        timed = one.found.trace.timed
        worst = max(casts, key=lambda cast: (cast.seconds or 0.0) if timed else cast.bytes_moved)
        took = f" ({format_seconds(worst.seconds)})" if timed else ""
        parts.append(f"the {'longest' if timed else 'largest'} is of {cast_said(worst)}{took}")
    if one.fake:
        parts.append("on fake tensors, not on hardware")
    return f"{'; '.join(parts)}."

"""What changed in a comparison, drawn: each change with its interval, the worst first."""

import math
from collections.abc import Iterable
from typing import Any

from ampbench.compare import rank
from ampbench.comparing.sentences import CHANGED, WORST_FIRST, change_text, interval_text, metric_label
from ampbench.metrics import DRIFT
from ampbench.report.material import ShownCase
from ampbench.report.vega import DASHED, middle_cut, tooltip
from ampbench.report.view import Chart, Rows
from ampbench.units import counted
from ampbench.verdicts import Finding, Verdict

DATASET = "cases-changes"
DRAWN = 20
"""So many changes are drawn, the worst."""
LEAST, MOST = 0.1, 1.0
"""The axis reaches to a change of so much at least and at most; what lies beyond stands at its edge."""
_FAR = 1e3
_LONGEST = 36
_ABOVE = {"grid": True, "ticks": False, "domain": False, "labelAlign": "left", "labelPadding": -4, "labelOffset": -11}
"""Names stand above their lines, inside the chart: beside it they would leave a narrow screen no room."""
_TOLD = (*CHANGED, Verdict.INCONCLUSIVE)


def forest(cases: Iterable[ShownCase]) -> tuple[Chart, Rows] | None:
    """Return the chart of changes, those that are certain first, then those that are not; None without any."""
    pairs = [(case, one) for case in cases for one in case.findings if one.verdict in _TOLD and _has_a_place(one)]
    pairs.sort(key=lambda pair: rank(pair[1]))
    pairs.sort(key=lambda pair: WORST_FIRST.index(pair[1].verdict))
    rows = [_row(case, one) for case, one in pairs[:DRAWN]]
    if not rows:
        return None
    farthest = max(abs(row[end]) for row in rows for end in ("change", "low", "high"))
    edge = min(max(farthest, LEAST), MOST)
    counts = [
        f"{sum(one.verdict is verdict for _, one in pairs):,} {verdict.value}"
        for verdict in _TOLD
        if any(one.verdict is verdict for _, one in pairs)
    ]
    said = [f"{', '.join(counts)}: {rows[0]['name']} {rows[0]['text']} first."]
    beyond = sum(abs(row["change"]) > edge for row in rows)
    said += [f"{counted(beyond, 'change')} of more than {edge:.0%} at the edge."] if beyond else []
    said += [f"The first {DRAWN} of {len(pairs):,} are drawn, the table below has all."] if len(pairs) > DRAWN else []
    chart = Chart(
        id=DATASET,
        title="Changes of cases and metrics, with 95% intervals where luck has a part",
        alt=" ".join(said),
        spec=_spec(edge, [verdict for verdict in _TOLD if any(row["verdict"] == verdict for row in rows)]),
        dataset=DATASET,
        height=20 + 36 * len(rows),
    )
    return chart, rows


def _has_a_place(one: Finding) -> bool:
    """Return whether a finding is a change in parts of the baseline's value; the drift of a function is a distance."""
    return one.change is not None and not math.isnan(one.change) and one.metric != DRIFT


def _row(case: ShownCase, one: Finding) -> dict[str, Any]:
    change = _within(one.change or 0.0)
    low, high = (change if end is None else _within(end) for end in (one.low, one.high))
    return {
        "name": f"{case.name}, {metric_label(one.metric)}",
        "verdict": one.verdict.value,
        "change": change,
        "low": low,
        "high": high,
        "text": change_text(one),
        "interval": interval_text(one),
        "reason": one.reason,
    }


def _within(change: float) -> float:
    return 0.0 if math.isnan(change) else min(max(change, -_FAR), _FAR)


def _spec(edge: float, verdicts: list[Verdict]) -> dict[str, Any]:
    names = [one.value for one in verdicts]
    axis = {"labelExpr": "datum.value ? format(datum.value, '+.0%') : '0'", "tickCount": 5}
    scale = {"domain": [-edge, edge], "clamp": True, "nice": False, "padding": 6}
    x = {
        "field": "change",
        "type": "quantitative",
        "scale": scale,
        "axis": axis,
        "title": "change against the baseline",
    }
    y = {
        "field": "name",
        "type": "nominal",
        "sort": None,
        "title": None,
        "axis": {**_ABOVE, "labelExpr": middle_cut(_LONGEST)},
    }
    colours = {"domain": names, "range": [f"var(--{name})" for name in names]}
    colour = {"field": "verdict", "type": "nominal", "scale": colours, "legend": {"title": None, "columns": 3}}
    both = {"y": y, "color": colour}
    told = tooltip(name="case", verdict="verdict", text="change", interval="95% interval", reason="why")
    text = {"type": "text", "align": "right", "dy": -11}
    return {
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {**both, "x": x | {"field": "low"}, "x2": {"field": "high"}},
            },
            {"mark": {"type": "point", "opacity": 1}, "encoding": {**both, "x": x, "tooltip": told}},
            {"mark": text, "encoding": {"y": y, "x": {"value": "width"}, "text": {"field": "text"}}},
            {"mark": dict(DASHED), "encoding": {"x": {"datum": 0}}},
        ]
    }

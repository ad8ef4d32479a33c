"""The chart of how trained networks do at the end, seed by seed."""

import math
from collections.abc import Sequence
from typing import Any

from ampbench.precisions import BASELINE
from ampbench.report.studied import Trained
from ampbench.report.vega import tooltip
from ampbench.report.view import Chart, Choice, Rows
from ampbench.report.views.studies.trained import looks_of, trainings_of
from ampbench.studied.convergence.metric import ACCURACY, format_metric, metric_said
from ampbench.units import counted

SCORES = "studies-scores"


def _scored(one: Trained, name: str) -> list[tuple[int, float]]:
    """Return seed and final score of the trainings of a name that have one."""
    metric = one.found.metric
    found = [(each.seed, metric.final(each)) for each in trainings_of(one.found)[name]]
    return [(seed, value) for seed, value in found if value is not None and math.isfinite(value)]


def score_rows(one: Trained) -> list[dict[str, Any]]:
    """Return each seed's final score and, of each precision, their mean and reach."""
    rows: list[dict[str, Any]] = []
    for precision in trainings_of(one.found):
        scored = _scored(one, precision)
        if not scored:
            continue
        values = [value for _, value in scored]
        empty = {"precision": precision, "seed": None, "score": None, "mean": None, "low": None,
                 "high": None, "band": None, "said": None, "metric": metric_said(one.found.metric)}  # fmt: skip
        rows += [
            {**empty, "seed": str(seed), "score": value, "said": format_metric(value, one.found.metric)}
            for seed, value in scored
        ]
        mean = math.fsum(values) / len(values)
        said, seeds = format_metric(mean, one.found.metric), f"mean of {counted(len(values), 'seed')}"
        rows.append({**empty, "mean": mean, "low": min(values), "high": max(values), "said": said, "seed": seeds})
        if precision == BASELINE and len(values) > 1:
            rows.append({**empty, "band": "fp32", "low": min(values), "high": max(values)})
    return rows


def scores_said(one: Trained, rows: Rows) -> str:
    """Return the mean score of each precision and from where to where its seeds reach."""
    parts = [f"{one.name}, {metric_said(one.found.metric)} at the end"]
    for row in rows:
        if row["mean"] is not None:
            ends = [format_metric(row[end], one.found.metric) for end in ("low", "high")]
            reach = f" ({ends[0]} to {ends[1]})" if row["low"] != row["high"] else ""
            parts.append(f"{row['precision']} {row['said']}{reach}")
    drawn = {row["precision"] for row in rows}
    if missing := [name for name in trainings_of(one.found) if name not in drawn]:
        parts.append(f"not drawn, for want of a score that is finite: {', '.join(missing)}")
    return f"{'; '.join(parts)}."


def score_chart(choices: Sequence[Choice], rows: Rows) -> Chart:
    """Return the chart of `rows`, a line for each precision."""
    looks = looks_of(rows)
    for channel in looks.values():
        channel["legend"] = None  # each has a line of its own, with its name
    metrics = {row["metric"] for row in rows}
    title = metrics.pop() if len(metrics) == 1 else "score"
    axis: dict[str, Any] = {"tickCount": 6, "labelSeparation": 8}
    if title.startswith(ACCURACY):
        axis["labelExpr"] = "format(datum.value, '.3~%')"
    x = {"type": "quantitative", "title": f"{title}, at the end", "scale": {"zero": False, "padding": 16}, "axis": axis}
    order = [*looks["color"]["scale"]["domain"]]
    y = {"field": "precision", "type": "nominal", "title": None, "sort": order,
         "axis": {"ticks": False, "domain": False, "labelLimit": 180, "minExtent": 100}}  # fmt: skip
    told = tooltip(precision="precision", seed="seed", said="score")
    return Chart(
        id=SCORES,
        title="Scores at the end, by seed",
        alt="Small points are seeds, large ones their means; shaded is from where to where the seeds of fp32 reach.",
        spec={
            "layer": [
                {
                    "transform": [{"filter": "isValid(datum.score)"}],
                    "mark": {"type": "point", "size": 40, "opacity": 1},
                    "encoding": {"x": {**x, "field": "score"}, "y": y, **looks, "tooltip": told},
                },
                {
                    "transform": [{"filter": "isValid(datum.band)"}],
                    "mark": {"type": "rect", "opacity": 0.12, "color": f"var(--{BASELINE})"},
                    "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}},
                },
                {
                    "transform": [{"filter": "isValid(datum.mean)"}],
                    "mark": {"type": "rule", "strokeWidth": 2},
                    "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y, "color": looks["color"]},
                },
                {
                    "transform": [{"filter": "isValid(datum.mean)"}],
                    "mark": {"type": "point", "size": 130, "opacity": 1},
                    "encoding": {"x": {**x, "field": "mean"}, "y": y, **looks, "tooltip": told},
                },
            ]
        },
        dataset=SCORES,
        height=34,
        lines="precision",
        choose="case",
        choices=choices,
    )

"""The chart of training losses by precision."""

import math
from collections.abc import Sequence
from typing import Any

from ampbench.precisions import BASELINE, ordered
from ampbench.report.studied import Trained
from ampbench.report.vega import tooltip
from ampbench.report.view import Chart, Choice, Rows
from ampbench.report.views.studies.curves import curve_layers, marked, steps_axis, thinned_curve, values_axis
from ampbench.report.views.studies.trained import looks_of, precisions_of, trainings_of
from ampbench.studied.convergence.metric import broke_off, trouble
from ampbench.units import apart, counted

LOSSES = "studies-losses"


def loss_rows(one: Trained) -> list[dict[str, Any]]:
    """Return the mean over seeds of each precision's losses and, of fp32, from which to which value they reach.

    It ends with the first seed that does; where one ended early, a row tells the place.
    """
    rows: list[dict[str, Any]] = []
    for precision in precisions_of(one.found):
        trainings = trainings_of(one.found)[precision]
        curves = [thinned_curve(each.losses, each.steps, each.every) for each in trainings if each.losses]
        for points in zip(*curves, strict=False):
            values = [value for _, value in points if value is not None]
            whole = len(values) == len(trainings)
            several = whole and precision == BASELINE and len(values) > 1
            rows.append(
                {
                    "precision": precision,
                    "step": points[0][0],
                    "loss": math.fsum(values) / len(values) if whole else None,
                    "low": min(values) if several else None,
                    "high": max(values) if several else None,
                    "end": None,
                    "seeds": f"{len(values)} of {len(trainings)}",
                    "mark": False,
                }
            )
    marked(rows, "precision")
    return rows + [row for precision in precisions_of(one.found) for row in _ends(one, precision)]


def _ends(one: Trained, precision: str) -> list[dict[str, Any]]:
    """Return a row for each training that ended early: at its last loss."""
    rows = []
    for each in trainings_of(one.found)[precision]:
        known = [point for point in thinned_curve(each.losses, each.steps, each.every) if point[1] is not None]
        if broke_off(each) and known:
            step, loss = known[-1]
            rows.append(
                {
                    "precision": precision,
                    "step": step,
                    "loss": None,
                    "low": None,
                    "high": None,
                    "end": loss,
                    "seeds": f"seed {each.seed}: {trouble(each, one.found.metric)}",
                    "mark": False,
                }
            )
    return rows


def losses_said(one: Trained, rows: Rows) -> str:
    """Return from where to where the mean losses of each precision go, and which trainings ended early."""
    said = []
    for precision in ordered(row["precision"] for row in rows):
        known = [row["loss"] for row in rows if row["precision"] == precision and row["loss"] is not None]
        if known:
            said.append(f"{precision} from {' to '.join(apart(known[0], known[-1]))}")
    ended = [f"{precision} seed {each.seed} {trouble(each, one.found.metric)}" for precision in precisions_of(one.found)
             for each in trainings_of(one.found)[precision] if broke_off(each)]  # fmt: skip
    parts = [f"{one.name}, training loss over {counted(one.found.steps, 'step')}", *said, *ended[:3]]
    return f"{'; '.join(parts)}."


def loss_chart(choices: Sequence[Choice], rows: Rows) -> Chart:
    """Return the chart of `rows`: lines of means, the band of fp32's seeds, crosses where one ended early."""
    looks = looks_of(rows)
    x = steps_axis()
    y = values_axis("loss", "training loss", [row[name] for row in rows for name in ("loss", "low", "end")])
    told = tooltip(precision="precision", step="around step", loss="loss", seeds="seeds")
    band = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "area", "opacity": 0.15, "color": f"var(--{BASELINE})"},
        "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
    }
    ends = {
        "transform": [{"filter": "isValid(datum.end)"}],
        "mark": {"type": "text", "text": "✕", "fontSize": 15, "fontWeight": "bold"},
        "encoding": {
            "x": x,
            "y": {**y, "field": "end"},
            "color": looks["color"],
            "tooltip": tooltip(precision="precision", seeds="ended"),
        },
    }
    ended = " A cross is where a training ended early." if any(row["end"] is not None for row in rows) else ""
    shaded = " Shaded is from where to where the seeds of fp32 reach." if any(row["low"] for row in rows) else ""
    return Chart(
        id=LOSSES,
        title="Training loss by precision",
        alt=f"Lines are means over seeds.{shaded}{ended}",
        spec={"layer": [*curve_layers(x, y, looks, told), band, ends]},
        dataset=LOSSES,
        height=300,
        choose="case",
        choices=choices,
    )

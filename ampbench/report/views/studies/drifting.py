"""The chart of how far the weights of trainings drift from those of fp32."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from ampbench.report.studied import Trained
from ampbench.report.vega import tooltip
from ampbench.report.view import Chart, Choice, Rows
from ampbench.report.views.studies.curves import curve_layers, steps_axis
from ampbench.report.views.studies.trained import looks_of, trainings_of
from ampbench.units import counted, format_error

DRIFT = "studies-drift"
_DASHED = (
    "Relative L2 distances, medians over seeds. Dashed is what rounding alone does: fp64, and the control, which is "
    "fp32 from weights one rounding away."
)


def drift_rows(one: Trained) -> list[dict[str, Any]]:
    """Return the median over seeds of how far weights lie from fp32's; what is 0 has no place on a log axis."""
    rows: list[dict[str, Any]] = []
    for precision in trainings_of(one.found):
        steps: dict[int, list[float]] = {}
        for each in trainings_of(one.found)[precision]:
            for drift in each.drift:
                if drift.step > 0 and drift.from_fp32 is not None and 0 < drift.from_fp32 < math.inf:
                    steps.setdefault(drift.step, []).append(drift.from_fp32)
        rows += [
            {
                "precision": precision,
                "step": step,
                "error": statistics.median(values),
                "said": format_error(statistics.median(values)),
                "mark": True,
            }
            for step, values in sorted(steps.items())
        ]
    return rows


def drift_said(one: Trained, rows: Rows) -> str:
    """Return how far the weights of each precision and arm lie from fp32's at the end."""
    parts = [f"{one.name}, how far weights lie from those trained in fp32"]
    for precision in dict.fromkeys(row["precision"] for row in rows):
        own = [row for row in rows if row["precision"] == precision]
        parts.append(f"{precision} {own[-1]['said']} after {counted(own[-1]['step'], 'step')}")
    return f"{'; '.join(parts)}."


def drift_chart(choices: Sequence[Choice], rows: Rows) -> Chart:
    """Return the chart of `rows`, with what rounding alone does dashed."""
    x = steps_axis("step", logarithmic=True)
    y = {
        "field": "error",
        "type": "quantitative",
        "title": "distance of weights from fp32's (log scale)",
        "scale": {"type": "log", "nice": False, "padding": 12},
        "axis": {"format": ".0e", "tickCount": 5, "minExtent": 46},
    }
    told = tooltip(precision="precision", step="step", said="distance")
    return Chart(
        id=DRIFT,
        title="How far weights drift from those of fp32",
        alt=_DASHED,
        spec={"layer": curve_layers(x, y, looks_of(rows, dashed=True), told)},
        dataset=DRIFT,
        height=280,
        choose="case",
        choices=choices,
    )

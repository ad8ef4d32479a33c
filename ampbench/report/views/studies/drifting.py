"""The chart of how far the weights of trainings drift from those of fp32."""

import math
from collections.abc import Sequence
from typing import Any

from ampbench.precisions import BASELINE
from ampbench.records.studies import CONTROL, REFERENCE
from ampbench.report.studied import Trained
from ampbench.report.vega import tooltip
from ampbench.report.view import Chart, Choice, Rows
from ampbench.report.views.studies.curves import curve_layers, steps_axis
from ampbench.report.views.studies.trained import looks_of, trainings_of
from ampbench.studied.convergence.blocks import distance
from ampbench.studied.convergence.verdicts import NAMES
from ampbench.units import counted, format_error

DRIFT = "studies-drift"
_ARMS = {
    NAMES[CONTROL]: "the control, which is fp32 from weights one rounding away",
    NAMES[REFERENCE]: "fp64",
}


def drift_rows(one: Trained) -> list[dict[str, Any]]:
    """Return the median over seeds of how far weights lie from fp32's; what is 0 has no place on a log axis.

    Of fp64 that is how far fp32's weights lie from its own.
    """
    rows: list[dict[str, Any]] = []
    trainings = trainings_of(one.found)
    for precision in trainings:
        reference = precision == NAMES[REFERENCE]
        own = trainings.get(BASELINE, []) if reference else trainings[precision]
        for step in sorted({drift.step for each in own for drift in each.drift if drift.step > 0}):
            apart = distance(own, step, reference)
            if apart is not None and 0 < apart < math.inf:
                said = format_error(apart)
                rows.append({"precision": precision, "step": step, "error": apart, "said": said, "mark": True})
    return rows


def drift_said(one: Trained, rows: Rows) -> str:
    """Return how far the weights of each precision and arm lie from fp32's at the end."""
    ends = {row["precision"]: row for row in rows}
    last = max(row["step"] for row in rows)
    parts = [f"{one.name}, how far weights lie after {counted(last, 'step')} from those trained in fp32"]
    for precision, row in ends.items():
        early = f" after {row['step']:,}" if row["step"] < last else ""
        parts.append(f"{precision} {row['said']}{early}")
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
    drawn = {row["precision"] for row in rows}
    arms = [said for name, said in _ARMS.items() if name in drawn]
    dashed = f" Dashed is what rounding alone does: {' and '.join(reversed(arms))}." if arms else ""
    return Chart(
        id=DRIFT,
        title="How far weights drift from those of fp32",
        alt=f"Relative L2 distances, medians over seeds.{dashed}",
        spec={"layer": curve_layers(x, y, looks_of(rows, dashed=True), told)},
        dataset=DRIFT,
        height=280,
        choose="case",
        choices=choices,
    )

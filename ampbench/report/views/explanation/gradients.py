"""Where gradients go wrong: how far they lie from the fp64 reference's, in which parameter, and what became zero."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampbench.precisions import BASELINE
from ampbench.records.divergences import Divergence
from ampbench.report import palette
from ampbench.report.material import Material
from ampbench.report.vega import budget_rule, tooltip
from ampbench.report.view import Chart
from ampbench.report.views.part import LISTED, Part
from ampbench.rows import number, precision_label
from ampbench.units import UNDEFINED, counted, format_error, format_loss, format_share, format_whole

CHARTED = 30
"""So many workloads the chart has at most, the worst ones."""

_ROW_LABELS = {
    "grid": True,
    "ticks": False,
    "domain": False,
    "labelAlign": "left",
    "labelPadding": -4,
    "labelOffset": -11,
    "labelLimit": 320,
}
"""Names stand above their lines, inside the chart: beside it they would leave a narrow screen no room for points."""

_AXES: Mapping[str, Any] = {
    "x": {
        "field": "error",
        "type": "quantitative",
        "scale": {"type": "log", "padding": 12},
        "axis": {"format": ".0e", "tickCount": 5, "labelSeparation": 8},
        "title": "gradient error, relative to fp64 (log scale)",
    },
    "y": {"field": "workload", "type": "nominal", "sort": None, "title": None, "axis": _ROW_LABELS},
}
_TOOLTIP = tooltip(
    workload="case", precision="precision", text="gradient error", parameter="worst parameter", flushed="flushed"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trained:
    """A training case: its `name`, that of its `workload` (all but the precision), and its divergence."""

    name: str
    workload: str
    precision: str
    label: str
    found: Divergence

    @property
    def error(self) -> float | None:
        return number(self.found.grad_rel_l2)

    @property
    def flushed_share(self) -> float | None:
        flushed, elements = self.found.grad_flushed, self.found.grad_elements
        return flushed / elements if flushed is not None and elements else None

    @property
    def flushed(self) -> str:
        """What became zero, as "0.62% (25,317 of 4,096,000)"."""
        share = self.flushed_share
        if not share:
            return format_share(share)
        return f"{format_share(share)} ({self.found.grad_flushed:,} of {self.found.grad_elements:,})"

    @property
    def badness(self) -> tuple[int, float]:
        return self.found.grad_nonfinite or 0, -1.0 if self.error is None else self.error


def gradients(material: Material) -> Part | None:
    """Return the training cases, the worst gradients first."""
    trained = _trained(material)
    if not trained:
        return None
    trained.sort(key=lambda one: one.badness, reverse=True)
    rows = [
        {
            "name": one.workload,
            "precision": one.precision,
            "label": one.label,
            "error": format_error(one.error),
            "parameter": one.found.grad_worst_parameter or UNDEFINED,
            "worst": format_error(one.found.grad_worst_rel_l2),
            "flushed": one.flushed,
            "nonfinite": format_whole(one.found.grad_nonfinite),
            "loss": format_loss(one.found.loss),
            "reference": format_loss(one.found.reference_loss),
        }
        for one in trained[:LISTED]
    ]
    drawable = [one for one in trained if one.error and math.isfinite(one.error)]
    charts = [_chart(drawable, material.budget.grad_rel_l2)] if len(drawable) > 1 else []
    return Part(
        id="gradients",
        title="Where gradients go wrong",
        said=_said(trained),
        content={"rows": rows},
        left_out=len(trained) - len(rows),
        charts=charts,
        datasets={chart.dataset: _points(drawable) for chart in charts},
    )


def _trained(material: Material) -> list[_Trained]:
    found = []
    for case in material.cases:
        one = case.shown.stored.divergence.get(case.row["case_id"])
        if one is not None and (one.grad_elements is not None or one.loss is not None):
            found.append(
                _Trained(
                    name=case.name,
                    workload=case.bare_name,
                    precision=case.row["precision"],
                    label=precision_label(case.row),
                    found=one,
                )
            )
    return found


def _said(trained: Sequence[_Trained]) -> list[str]:
    """Return what stands out: gradients that are not finite, the largest error, the largest share flushed."""
    said = []
    broken = [one for one in trained if one.found.grad_nonfinite]
    if broken:
        said.append(f"Gradients are not finite in {counted(len(broken), 'case')}, such as {broken[0].name}.")
    worst = max(trained, key=lambda one: one.error or 0.0)
    if worst.error:
        parameter = worst.found.grad_worst_parameter
        where = f", most of all in {parameter}" if parameter else ""
        said.append(f"The largest gradient error is {format_error(worst.error)}: {worst.name}{where}.")
    zeroed = max(trained, key=lambda one: one.flushed_share or 0.0)
    if zeroed.flushed_share:
        said.append(f"The largest share of gradient elements flushed to zero is {zeroed.flushed}: {zeroed.name}.")
    return said


def _points(drawable: Sequence[_Trained]) -> list[dict[str, Any]]:
    """Return the rows of the chart: those of the workloads that have the largest errors."""
    kept = set(list(dict.fromkeys(one.workload for one in drawable))[:CHARTED])
    return [
        {
            "workload": one.workload,
            "precision": one.precision,
            "error": one.error,
            "text": format_error(one.error),
            "parameter": one.found.grad_worst_parameter or UNDEFINED,
            "flushed": format_share(one.flushed_share),
        }
        for one in drawable
        if one.workload in kept
    ]


def _chart(drawable: Sequence[_Trained], limit: float) -> Chart:
    """Return the chart of errors by workload and precision, with the limit of the error budget."""
    workloads = len({one.workload for one in drawable})
    beyond = sum((one.error or 0.0) > limit for one in drawable if one.precision != BASELINE)
    said = [
        "Each point is a training case, each line a workload.",
        f"The largest gradient error is that of {drawable[0].name}, {format_error(drawable[0].error)};",
        f"{counted(beyond, 'case') if beyond else 'no case'} above the error budget of {limit:g}.",
    ]
    said += [f"Drawn are the {CHARTED} workloads with the largest errors."] if workloads > CHARTED else []
    encoded = palette.encoded(one.precision for one in drawable)
    for channel in encoded.values():
        channel["legend"] = {"title": None, "columns": 2}  # fits a narrow screen
    points = {"mark": {"type": "point", "size": 70}, "encoding": {**_AXES, **encoded, "tooltip": _TOOLTIP}}
    return Chart(
        id="explanation-gradients",
        title="Gradient error by precision",
        alt=" ".join(said),
        spec={"layer": [points, *budget_rule(limit, "x")]},
        dataset="explanation-gradients",
        height=20 + 36 * min(workloads, CHARTED),
    )

"""Convergence: whether trainings in low precisions end as well as those in fp32, against what seeds alone do."""

from ampbench.labels import few
from ampbench.records.runs import CONVERGENCE
from ampbench.report.explained import untold
from ampbench.report.material import Material
from ampbench.report.studied import Trained, trainings
from ampbench.report.views.part import Detail, Part, strange, told_part
from ampbench.report.views.studies.drawing import Drawing, drawn
from ampbench.report.views.studies.drifting import DRIFT, drift_chart, drift_rows, drift_said
from ampbench.report.views.studies.losses import LOSSES, loss_chart, loss_rows, losses_said
from ampbench.report.views.studies.scored import SCORES, score_chart, score_rows, scores_said
from ampbench.report.views.studies.telling import Overview, detail_of, with_overview
from ampbench.studied.convergence.blocks import format_ratio, interval, learned_section
from ampbench.studied.convergence.metric import format_change, format_metric, metric_said
from ampbench.units import UNDEFINED, counted, format_error

_DRAWINGS = (
    Drawing(name=LOSSES, rows=loss_rows, said=losses_said, chart=loss_chart, marked="precision"),
    Drawing(name=SCORES, rows=score_rows, said=scores_said, chart=score_chart, marked="precision"),
    Drawing(name=DRIFT, rows=drift_rows, said=drift_said, chart=drift_chart, marked="precision"),
)
_FOLDED = ("Training loss", "Weights", "Way", "Each seed")
_TRAINS = {True: "yes", False: "no", None: "open"}


def convergence(material: Material) -> Part | None:
    """Return the workloads that were trained, those first in which a precision does not train as fp32 does."""
    found, missing = trainings(material), untold(material, CONVERGENCE)
    if not (found or missing):
        return None
    charts, datasets, said = drawn(found, *_DRAWINGS)
    part = told_part(
        found,
        missing,
        id="convergence",
        title="Convergence",
        said=[*_said(found), *strange(material, CONVERGENCE, "Trained"), *said],
        detail=_detail,
        drawn=(charts, datasets),
    )
    return with_overview(part, _overview(found))


def _said(found: list[Trained]) -> list[str]:
    """Return in how many pairs of several workloads and precisions one does not train as fp32 does.

    Of one workload its own sentences say it.
    """
    if len(found) < 2:
        return []
    pairs = [(row, f"{row.name} in {one.name}") for one in found for row in one.found.judged]
    bad = [name for row, name in pairs if row.trains is False]
    which = f": {few(bad)}" if bad else ""
    shown = f"{sum(row.trains is True for row, _ in pairs):,} are shown to train as fp32 does"
    total = counted(len(pairs), "pair")
    return [f"Of {total} of workload and precision, {shown}, {f'{len(bad):,}' if bad else 'none'} not to{which}."]


def _overview(found: list[Trained]) -> Overview:
    rows = []
    for one in found:
        for row in one.found.rows:
            metric = one.found.metric
            cells = [
                row.name,
                metric_said(metric),
                format_metric(row.mean, metric),
                format_change(row.difference, metric),
                interval(row, metric),
                row.verdict.value if row.verdict else "",
                UNDEFINED if row.loss_ratio is None else f"{format_ratio(row.loss_ratio)} times",
                "" if row.verdict is None else _TRAINS[row.trains],
                format_error(row.from_fp32),
            ]
            rows.append((one.name, cells))
    return Overview(
        caption="How each precision ends: means over seeds and differences from fp32 of the same seed, in points of "
        "accuracy or relative to fp32's loss. Training loss: in the last quarter, times fp32's. Weights: their "
        "distance from fp32's at the end.",
        headers=[
            "precision",
            "metric",
            "reached",
            "against fp32",
            "90% interval",
            "verdict",
            "training loss",
            "trains as fp32",
            "weights",
        ],
        rows=rows,
        first="workload",
        numbers={"reached", "against fp32", "90% interval", "training loss", "weights"},
    )


def _detail(one: Trained) -> Detail:
    return detail_of(one.name, learned_section(one.found, everything=True), _FOLDED)

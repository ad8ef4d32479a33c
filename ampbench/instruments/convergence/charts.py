"""Whether trainings in low precisions end as well as those in fp32, against what seeds alone do, on the page.

Its charts are of losses by precision, of how trained networks do at the end, seed by seed, and of how far weights drift
from those of fp32.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampbench.base.precisions import BASELINE, ordered
from ampbench.base.units import UNDEFINED, apart, counted, format_error
from ampbench.instruments.convergence.findings import (
    ACCURACY,
    NAMES,
    broke_off,
    format_change,
    format_metric,
    metric_said,
    trouble,
)
from ampbench.instruments.convergence.learning import Learned, learned
from ampbench.instruments.convergence.records import CONTROL, REFERENCE, Training
from ampbench.instruments.convergence.show import distance, format_loss_ratio, interval, learned_section, verdict_said
from ampbench.present.charts import (
    Chart,
    Choice,
    Drawing,
    Rows,
    curve_layers,
    drawn,
    marked,
    precision_encoded,
    steps_axis,
    thinned_curve,
    tooltip,
    values_axis,
)
from ampbench.present.page import Held, Overview, Part, detail_of, place_of, run_name, sentences_of, told_part
from ampbench.records.labels import case_labels, few, told_apart
from ampbench.records.verdicts import Verdict
from ampbench.store import StoredRun

_WORST_FIRST = (Verdict.REGRESSED, Verdict.INCOMPARABLE, Verdict.INCONCLUSIVE, Verdict.IMPROVED, Verdict.UNCHANGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A workload trained on a device, and what its trainings come to. `number` counts from 0."""

    number: int
    name: str
    run: StoredRun
    found: Learned


ARM_LOOKS: Mapping[str, tuple[str, str]] = {
    NAMES[CONTROL]: ("--faint", "triangle-right"),
    NAMES[REFERENCE]: ("--dtype-fp64", "triangle-left"),
}
"""Colours and shapes of the trainings that tell what rounding alone does."""


def trainings_of(found: Learned) -> dict[str, list[Training]]:
    """Return the trainings by precision, in the order of every table, then those of the arms of fp32."""
    own = {row.name: row.trainings for row in found.rows}
    return {name: own[name] for name in (*precisions_of(found), *ARM_LOOKS) if name in own}


def precisions_of(found: Learned) -> list[str]:
    """Return the names of the rows but for those of the arms of fp32."""
    return ordered(row.name for row in found.rows if not row.arm)


def looks_of(rows: Rows, dashed: bool = False) -> dict[str, Any]:
    """Return the encoding of precisions and arms by colour and shape; the lines of the arms are dashed."""
    names = {row["precision"] for row in rows}
    known = precision_encoded(names - ARM_LOOKS.keys())
    arms = [name for name in ARM_LOOKS if name in names]
    for place, name in enumerate(("color", "shape")):
        scale = known[name]["scale"]
        own = [ARM_LOOKS[arm][place] for arm in arms]
        known[name] = {
            **known[name],
            "scale": {
                "domain": [*scale["domain"], *arms],
                "range": [*scale["range"], *(own if place else [f"var({colour})" for colour in own])],
            },
            "legend": {"title": None, "columns": 4, "columnPadding": 28, "labelLimit": 220},
        }
    if dashed and arms:
        tests = " || ".join(f"datum.precision == '{name}'" for name in arms)
        known["strokeDash"] = {"condition": {"test": tests, "value": [5, 3]}, "value": [1, 0]}
    return known


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
    shaded = (
        " Shaded is from where to where the seeds of fp32 reach." if any(row["low"] is not None for row in rows) else ""
    )
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
                 "high": None, "band": None, "said": None, "metric": metric_said(one.found.metric),
                 "share": one.found.metric.name == ACCURACY}  # fmt: skip
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
    if all(row["share"] for row in rows):
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


_DRAWINGS = (
    Drawing(name=LOSSES, rows=loss_rows, said=losses_said, chart=loss_chart, marked="precision"),
    Drawing(name=SCORES, rows=score_rows, said=scores_said, chart=score_chart, marked="precision"),
    Drawing(name=DRIFT, rows=drift_rows, said=drift_said, chart=drift_chart, marked="precision"),
)
_FOLDED = ("Training loss", "Weights", "Way", "Each seed")
_TRAINS = {True: "yes", False: "no", None: "open"}


def part(held: Held[Any]) -> Part | None:
    """Return the workloads that were trained, those first in which a precision does not train as fp32 does."""
    found = trainings(held.runs)
    if not (found or held.untold):
        return None
    charts, datasets, said = drawn(found, *_DRAWINGS)
    return told_part(
        found,
        id="convergence",
        title="Convergence",
        said=[*_said(found), *held.strangers_said("Trained"), *said],
        detail=lambda one: detail_of(one.name, learned_section(one.found, everything=True), _FOLDED),
        sentences=lambda one: sentences_of(learned_section(one.found)),
        finding=lambda one: verdict_said(one.found),
        overview=_overview(found),
        drawn=(charts, datasets),
        untold=held.untold,
        what="workloads",
    )


def trainings(runs: Iterable[StoredRun]) -> list[Trained]:
    """Return the workloads that `runs` trained, those first in which a precision does not train as fp32 does.

    `runs` are the oldest first. Of one that a newer run of its machine trained again, only that.
    """
    found: list[tuple[StoredRun, Learned, str]] = []
    seen: list[tuple[tuple[str, str], set[str]]] = []
    for run in reversed(list(runs)):
        for one in learned(run):
            ids = {row.case_id for row in one.rows}
            if not any(place_of(run) == place and ids <= known for place, known in seen):
                found.append((run, one, one.rows[0].case_id))
                seen.append((place_of(run), ids))
    found.reverse()
    labels = case_labels((run.cases[case_id] for run, _, case_id in found), precision=False)
    names = told_apart([labels[case_id] for _, _, case_id in found], (run_name(run) for run, _, _ in found))
    every = [
        Trained(number=number, name=name, run=run, found=one)
        for number, (name, (run, one, _)) in enumerate(zip(names, found, strict=True))
    ]
    return sorted(every, key=_badness)


def _badness(one: Trained) -> int:
    """Return the place of the worst verdict on a score or a training loss."""
    verdicts = [verdict for row in one.found.judged for verdict in (row.verdict, row.loss_verdict) if verdict]
    return min(map(_WORST_FIRST.index, verdicts), default=len(_WORST_FIRST))


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
                UNDEFINED if row.loss_ratio is None else f"{format_loss_ratio(row.loss_ratio)} times",
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

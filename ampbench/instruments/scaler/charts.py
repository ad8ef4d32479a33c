"""What settings of GradScaler make of a training, and whether gradients flush without it, on the page.

Its charts are of losses, of scales over time and of gradients by exponent.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampbench.base.precisions import BASELINE, find_format
from ampbench.base.units import counted, format_share
from ampbench.instruments.scaler.findings import in_fp32, outcomes, scaler_said
from ampbench.instruments.scaler.records import ScalerRun
from ampbench.instruments.scaler.show import scaling_section
from ampbench.present.charts import (
    Chart,
    Choice,
    Drawing,
    Rows,
    curve_layers,
    drawn,
    limit_layers,
    marked,
    series_encoded,
    steps_axis,
    thinned_curve,
    tooltip,
    values_axis,
)
from ampbench.present.document import Section, as_sentence
from ampbench.present.page import Held, Overview, Part, Told, detail_of, sentences_of, told_part
from ampbench.records.labels import few
from ampbench.records.magnitudes import format_scale
from ampbench.records.ranges import Magnitudes

LOSSES, SCALES, EXPONENTS = "studies-scaler-losses", "studies-scales", "studies-exponents"
_SETTINGS: Mapping[str, tuple[str, str]] = {
    "fp32": ("--fp32", "circle"),
    "no scaling": ("--series-1", "square"),
    "default": ("--series-2", "triangle-up"),
    "low start": ("--series-3", "diamond"),
    "high start": ("--series-4", "triangle-down"),
    "fast growth": ("--series-5", "triangle-right"),
    "yours": ("--series-7", "cross"),
}
"""Settings look the same in all charts; others, which only foreign runs can have, look as they come."""
MOVES = 400
"""So many changes of a scale are drawn at most, the first ones."""
IN_FP32, UNSCALED, SCALED = "in fp32", "stored in fp16, no scaling", "stored in fp16, scaled"
_GRADIENTS: Mapping[str, tuple[str, str]] = {
    IN_FP32: ("--fp32", "circle"),
    UNSCALED: ("--fp16_autocast", "square"),
    SCALED: ("--series-1", "triangle-up"),
}


def _series(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["series"] for row in rows if row["series"]))


def _loss_rows(one: Told[list[ScalerRun]]) -> list[dict[str, Any]]:
    rows = [
        {"series": run.setting.name, "step": step, "loss": loss, "mark": False}
        for run in one.found
        for step, loss in thinned_curve(run.losses, max(run.steps, len(run.losses)))
    ]
    marked(rows)
    return rows


def _losses_said(one: Told[list[ScalerRun]], rows: Rows) -> str:  # noqa: ARG001 - as the others
    parts = [f"{one.name}, training loss"]
    for run in one.found:
        known = [(place, loss) for place, loss in enumerate(run.losses) if loss is not None]
        if known:
            parts.append(f"{run.setting.name} {known[-1][1]:.3g} at step {known[-1][0] + 1:,}")
    return f"{'; '.join(parts)}."


def _loss_chart(choices: Sequence[Choice], rows: Rows) -> Chart:
    looks = series_encoded(_series(rows), _SETTINGS)
    y = values_axis("loss", "training loss, unscaled", [row["loss"] for row in rows])
    told = tooltip(series="setting", step="around step", loss="loss")
    return Chart(
        id=LOSSES,
        title="Training loss by setting of the scaler",
        alt="A line ends where a training was given up, and breaks where its loss is not finite.",
        spec={"layer": curve_layers(steps_axis(), y, looks, told)},
        dataset=LOSSES,
        height=260,
        choose="case",
        choices=choices,
    )


def _scale_rows(one: Told[list[ScalerRun]]) -> list[dict[str, Any]]:
    """Return the scale of each setting where it changes, at its ends, and at skipped steps."""
    rows: list[dict[str, Any]] = []
    for run in one.found:
        skipped = set(run.skipped)
        places = [
            place
            for place, scale in enumerate(run.scales)
            if place in skipped
            or place in (0, len(run.scales) - 1)
            or scale != run.scales[place - 1]
            or scale != run.scales[place + 1]
        ]
        for place in [*places[:MOVES], *places[MOVES:][-1:]]:
            scale = run.scales[place]
            if 0 < scale < math.inf:
                rows.append(
                    {
                        "series": run.setting.name,
                        "step": place + 1,
                        "exponent": math.log2(scale),
                        "scale": format_scale(scale),
                        "skipped": place in skipped,
                        "said": "skipped" if place in skipped else "taken",
                        "mark": False,
                    }
                )
    _mark_ends(rows)
    return rows


def _mark_ends(rows: Sequence[dict[str, Any]]) -> None:
    """Let the first and the last point of each setting carry its shape."""
    ends: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        ends.setdefault(row["series"], []).append(row)
    for own in ends.values():
        own[0]["mark"] = own[-1]["mark"] = True


def _scales_said(one: Told[list[ScalerRun]], rows: Rows) -> str:  # noqa: ARG001 - as the others
    parts = [f"{one.name}, loss scale"]
    for run in one.found:
        if run.scales:
            ends = [format_scale(run.scales[place]) for place in (0, -1)]
            moved = ends[0] if len(set(run.scales)) == 1 else " to ".join(ends)
            parts.append(f"{run.setting.name} {moved}, {counted(len(run.skipped), 'step')} skipped")
    return f"{'; '.join(parts)}."


def _scale_chart(choices: Sequence[Choice], rows: Rows) -> Chart:
    looks = series_encoded(_series(rows), _SETTINGS)
    x = steps_axis()
    y = {
        "field": "exponent",
        "type": "quantitative",
        "title": "loss scale (log scale)",
        "scale": {"zero": False, "padding": 10},
        "axis": {"labelExpr": "'2^' + datum.value", "tickMinStep": 1, "tickCount": 6, "minExtent": 46},
    }
    told = tooltip(series="setting", step="step", scale="scale", said="the step was")
    skipped = {
        "transform": [{"filter": "datum.skipped"}],
        "mark": {"type": "text", "text": "✕", "fontSize": 11},
        "encoding": {"x": x, "y": y, "color": looks["color"], "tooltip": told},
    }
    return Chart(
        id=SCALES,
        title="Loss scale over time",
        alt="Crosses are steps that GradScaler skipped.",
        spec={"layer": [*curve_layers(x, y, looks, told, {"interpolate": "step-after"}), skipped]},
        dataset=SCALES,
        height=260,
        choose="case",
        choices=choices,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A case's gradients as stored with a setting that scales and without one, and in fp32. `number` counts from 0."""

    number: int
    name: str
    scaled: ScalerRun | None
    plain: ScalerRun | None
    full: ScalerRun | None

    @property
    def known(self) -> dict[str, Magnitudes]:
        """What is known of them, by what they are."""
        looked = [run.fp32_gradients for run in (self.scaled, self.plain, self.full) if run is not None]
        named = {
            IN_FP32: next((found for found in looked if found is not None), None),
            UNSCALED: self.plain.gradients if self.plain else None,
            SCALED: self.scaled.gradients if self.scaled else None,
        }
        return {name: found for name, found in named.items() if found is not None and found.elements}


def stored_gradients(found: Sequence[Told[list[ScalerRun]]]) -> list[Stored]:
    """Return what can be chosen: each setting of a case that scales, or the one that does not."""
    chosen: list[tuple[str, ScalerRun | None, ScalerRun | None, ScalerRun | None]] = []
    for one in found:
        full = in_fp32(one.found)
        looked = [run for run in one.found if run.gradients is not None and run.precision != BASELINE]
        plain = next((run for run in looked if not run.setting.enabled), None)
        scaling = [run for run in looked if run.setting.enabled]
        chosen += [(f"{one.name}: {run.setting.name}", run, plain, full) for run in scaling]
        chosen += [(one.name, None, plain, full)] if plain and not scaling else []
    return [
        Stored(number=number, name=name, scaled=scaled, plain=plain, full=full)
        for number, (name, scaled, plain, full) in enumerate(chosen)
    ]


def _exponent_rows(one: Stored) -> list[dict[str, Any]]:
    """Return shares by exponent of gradients in fp32 and as fp16 stores them, and the limits of fp16."""
    rows: list[dict[str, Any]] = []
    empty = {"series": None, "exponent": None, "share": None, "said": None, "limit": None, "text": None, "mark": False}
    for name, found in one.known.items():
        counts = [0, *found.counts, 0] if sum(found.counts) else []  # from zero and back to it
        for place, count in enumerate(counts):
            share = count / found.elements
            said = format_share(share)
            rows.append({**empty, "series": name, "exponent": found.lowest + place - 1, "share": share, "said": said})
    marked(rows)
    if rows:
        fp16 = find_format("fp16")
        limits = {fp16.highest + 1: "infinite", fp16.lowest: "subnormal below", math.log2(fp16.flush): "zero below"}
        rows += [{**empty, "limit": limit, "text": text} for limit, text in limits.items()]
    return rows


def _exponents_said(one: Stored, rows: Rows) -> str:  # noqa: ARG001 - as the others
    parts = [f"{one.name}, gradients by magnitude"]
    for name, found in one.known.items():
        bad = f", {format_share(found.nonfinite / found.elements)} not finite" if found.nonfinite else ""
        parts.append(f"{name}, {format_share(found.zeros / found.elements)} are zero{bad}")
    return f"{'; '.join(parts)}."


def _exponent_chart(choices: Sequence[Choice], rows: Rows) -> Chart:
    looks = series_encoded([name for name in _GRADIENTS if name in _series(rows)], _GRADIENTS)
    x = {
        "field": "exponent",
        "type": "quantitative",
        "title": "magnitude, in powers of two (log scale)",
        "scale": {"zero": False, "nice": False, "padding": 8},
        "axis": {"labelExpr": "'2^' + datum.value", "tickMinStep": 1, "tickCount": 8, "labelSeparation": 8},
    }
    y = {
        "field": "share",
        "type": "quantitative",
        "title": "share of all gradients",
        "axis": {"format": ".2~%", "tickCount": 4, "minExtent": 46},
    }
    told = tooltip(series="gradients", exponent="from 2^", said="share")
    return Chart(
        id=EXPONENTS,
        title="Gradients by magnitude, in fp32 and as fp16 stores them",
        alt="Zeros are not drawn. Dashed are the limits of fp16.",
        spec={
            "layer": [
                *curve_layers(x, y, looks, told, {"interpolate": "step-after"}),
                *limit_layers("x", x),
            ]
        },
        dataset=EXPONENTS,
        height=240,
        choose="case",
        choices=choices,
    )


DRAWINGS = (
    Drawing(name=LOSSES, rows=_loss_rows, said=_losses_said, chart=_loss_chart),
    Drawing(name=SCALES, rows=_scale_rows, said=_scales_said, chart=_scale_chart),
)
"""The charts of each case."""

EXPONENT_DRAWING = Drawing(name=EXPONENTS, rows=_exponent_rows, said=_exponents_said, chart=_exponent_chart)
"""The chart of each of `stored_gradients`."""


def part(held: Held[list[ScalerRun]]) -> Part | None:
    """Return the cases that were trained with several settings of the scaler, those first of which most fail."""
    found = sorted(held.told, key=lambda one: sum(each.fails for each in outcomes(one.found)), reverse=True)
    if not (found or held.untold):
        return None
    charts, datasets, said = drawn(found, *DRAWINGS)
    stored = drawn(stored_gradients(found), EXPONENT_DRAWING)
    return told_part(
        found,
        id="scaler",
        title="Loss scaling, setting by setting",
        said=[*_said(found), *held.strangers_said("Trained"), *said],
        detail=lambda one: detail_of(one.name, _section(one), ["Training loss", "Gradients"]),
        sentences=lambda one: sentences_of(_section(one)),
        finding=lambda one: next(iter(scaler_said(one.case, one.found)), ""),
        overview=Overview(
            caption="What fp16 needs of loss scaling, those first of whose settings most fail",
            headers=["found"],
            rows=[(one.name, [[as_sentence(line) for line in scaler_said(one.case, one.found)]]) for one in found],
            wide={"found"},
        ),
        drawn=([*charts, *stored[0]], {**datasets, **stored[1]}),
        untold=held.untold,
    )


def _section(one: Told[list[ScalerRun]]) -> Section:
    return scaling_section(one.case, one.found)


def _said(found: Sequence[Told[list[ScalerRun]]]) -> list[str]:
    """Return in which of several cases training without scaling fails; of one, its own sentences say it."""
    if len(found) < 2:
        return []
    needing = [one for one in found if any(each.fails and not each.run.setting.enabled for each in outcomes(one.found))]
    which = f": {few(one.name for one in needing)}" if needing else ""
    verb = "fails" if len(needing) == 1 else "fail"
    return [f"Of {counted(len(found), 'case')}, {len(needing) or 'none'} {verb} without loss scaling{which}."]

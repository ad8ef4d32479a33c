"""What became of trainings with settings of GradScaler: the document of a run.

Numbers without a value are "–". Long tables end after the rows that say most, unless all are asked for.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ampbench.core.precisions import BASELINE, find_format
from ampbench.core.units import UNDEFINED, counted, format_loss, format_ratio, format_share, format_whole
from ampbench.instruments.scaler.findings import (
    NEAR,
    NOTHING,
    Outcome,
    mean_loss,
    outcomes,
    scaler_said,
    unfinished,
)
from ampbench.instruments.scaler.records import ScalerRun
from ampbench.records.case import Case
from ampbench.records.labels import NOT_REACHED
from ampbench.records.measured import Score
from ampbench.records.ranges import Magnitudes, format_scale
from ampbench.show.charts import (
    Drawing,
    Rows,
    curve_layers,
    marked,
    series_encoded,
    steps_axis,
    thinned_curve,
    tooltip,
    values_axis,
)
from ampbench.show.data import record_data
from ampbench.show.document import Block, Column, Document, Section, as_sentence, first_rows, picked, records, table
from ampbench.show.page import Held, Part, Told, of_several, told_part
from ampbench.show.studies import case_title, document_of_cases
from ampbench.store import StoredRun


def _scaler(name: str) -> Callable[[Outcome], float | None]:
    """Return a parameter of the scaler, None where a setting has no scaler."""
    return lambda one: getattr(one.run.setting, name) if one.run.setting.enabled else None


def _scored(name: str) -> Callable[[Outcome], float | None]:
    return lambda one: getattr(one.run.score, name, None)


COLUMNS: Sequence[Column[Outcome]] = (
    Column("setting", lambda one: one.name, "setting"),
    Column("precision", lambda one: one.run.precision),
    Column("enabled", lambda one: one.run.setting.enabled),
    *(Column(name, _scaler(name)) for name in ("init_scale", "growth_factor", "backoff_factor", "growth_interval")),
    Column("steps", lambda one: one.run.steps),
    Column("done", lambda one: len(one.run.losses)),
    Column(
        "skipped_steps", lambda one: len(one.run.skipped) if one.run.setting.enabled else None, "skipped steps",
        "whole", lambda one: format_whole(len(one.run.skipped) if one.run.scales else None),
    ),
    Column("skipped_first", lambda one: one.skipped_first if one.run.setting.enabled else None),
    Column(
        "last_scale", lambda one: one.run.scales[-1] if one.run.scales else None, "scale",
        said=lambda one: _scales(one.run),
    ),
    Column("flushed_share", lambda one: one.flushed, "flushed", "share"),
    Column("grad_rel_l2", lambda one: one.grad_rel_l2, "error", "error"),
    Column("loss", lambda one: one.loss),
    Column("lag", lambda one: one.lag, "behind", "share", lambda one: UNDEFINED if _full(one) else _behind(one.lag)),
    Column(
        "excess", lambda one: one.excess, "above", "share", lambda one: UNDEFINED if _full(one) else _above(one.excess)
    ),
    Column("held_out_loss", _scored("loss"), "held out", "loss", lambda one: _score(one.run.score)),
    Column("correct", _scored("correct")),
    Column("decisions", _scored("decisions")),
    Column(
        "state", lambda one: one.state, "outcome", said=lambda one: "" if _full(one) and not one.fails else one.state
    ),
    Column("reason", lambda one: one.run.error),
)  # fmt: skip
"""Of a training: its setting, `done` steps (taken or skipped) of `steps`, `skipped_first` before the first was taken.

`loss` is the mean of the last quarter, `reason` the error that a step raised; the others are as in `Outcome`.
"""


def _full(one: Outcome) -> bool:
    return one.run.precision == BASELINE


def document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False) -> Document:
    """Return what a run found of the loss scaling of the cases `case_ids`, a flat row for each training."""

    def section(case: Case, runs: Sequence[ScalerRun]) -> Section:
        made = scaling_section(case, runs, everything=everything)
        return Section(made.title, [*made.blocks, *map(Block, _missing(stored, case.case_id))])

    def data(case: Case, runs: Sequence[ScalerRun]) -> dict[str, Any]:
        return {
            "sentences": scaler_said(case, runs),
            "missing": _missing(stored, case.case_id),
            "tables": {"settings": records(COLUMNS, outcomes(runs))},
            "scalings": [record_data(run) for run in runs],
        }

    return document_of_cases(
        stored, case_ids, stored.several_of(ScalerRun), section=section, data=data, columns=COLUMNS, rows=outcomes
    )


def _missing(stored: StoredRun, case_id: str) -> list[str]:
    """Return what kept settings of a case from being trained."""
    failure = stored.failures.get(case_id)
    if failure is not None:
        return [f"The other settings were not trained: {failure.said}."]
    names = [name for case, name in unfinished(stored) if case == case_id]
    return [f"{', '.join(names)}: {NOT_REACHED}."] if names else []


SHOWN = 12
"""So many rows are shown unless all are asked for."""

QUARTERS = ("1st quarter", "2nd quarter", "3rd quarter", "last quarter")

_STORED = find_format("fp16")


def scaling_section(case: Case, runs: Sequence[ScalerRun], *, everything: bool = False) -> Section:
    """Return what trainings of a case say of loss scaling; `everything`: all rows, and histograms by exponent."""
    found = outcomes(runs)
    tables = [*settings(found), *losses(runs), *stored_gradients(runs), *overflowing(runs)]
    shown = [*tables, *histograms(runs)] if everything else [first_rows(block, SHOWN) for block in tables]
    steps = counted(max((run.steps for run in runs), default=0), "step")
    names = {run.setting.name for run in runs}
    said = [Block(as_sentence(line, names)) for line in scaler_said(case, runs)]
    return Section(
        f"{case_title(case)} · {steps}", [*said, *shown, *(Block(as_sentence(note, names)) for note in notes(runs))]
    )


def settings(found: Sequence[Outcome]) -> list[Block]:
    """Return a table of the settings: the scale, skipped steps, lost gradients, and what became of the training."""
    note = "flushed: the share of fp32's gradients that are zero in fp16; error: of the gradients, median; behind: the "
    note += "share of what the loss falls by in fp32 that is missing in the last quarter; above: by how much it is "
    note += "above fp32's there, or how many times fp32's it is"
    if any(one.state == NEAR for one in found):
        note += f"; {NEAR}: losses near zero, which differ by less than {format_share(NOTHING)} of fp32's fall"
    scored = ["held_out_loss"] if any(one.run.score for one in found) else []
    keys = ("setting", "last_scale", "skipped_steps", "flushed_share", "grad_rel_l2", "lag", "excess", *scored, "state")
    return [table("Settings of GradScaler", picked(COLUMNS, *keys), found, note)] if found else []


def losses(runs: Sequence[ScalerRun]) -> list[Block]:
    """Return the loss of each training, by quarters."""
    cells = []
    for run in runs:
        edges = [run.steps * quarter // len(QUARTERS) for quarter in range(len(QUARTERS) + 1)]
        means = [mean_loss(run, start, end) for start, end in itertools.pairwise(edges)]
        cells.append([run.setting.name, *(format_loss(value) for value in (next(iter(run.losses), None), *means))])
    headers = ["setting", "first step", *QUARTERS]
    note = "the mean over the steps of each quarter"
    return [Block("Training loss", headers, cells, note, numbers=headers[1:])] if cells else []


def stored_gradients(runs: Sequence[ScalerRun]) -> list[Block]:
    """Return where the gradients lie in fp16's range: fp32's as they are, fp16's as stored, times the scale."""
    cells = [[name, *(format_share(share) for share in _bands(values))] for name, values in _stored(runs)]
    headers = ["setting", "zero", "lost", "subnormal", "normal", "too large", "not finite"]
    note = "shares of all gradient elements at the steps looked at, the scale not divided out; lost: below half of "
    note += "fp16's smallest number; subnormal: below 2^-14, with few digits"
    return [Block("Gradients in the range of fp16", headers, cells, note, numbers=headers[1:])] if cells else []


def overflowing(runs: Sequence[ScalerRun]) -> list[Block]:
    """Return the parameters whose gradients were not finite, with the number of steps in each setting."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.nonfinite)
    cells = [
        [
            name,
            f"{total:,}",
            ", ".join(f"{run.setting.name} {steps:,}" for run in runs if (steps := run.nonfinite.get(name))),
        ]
        for name, total in counts.most_common()
    ]
    headers = ["parameter", "steps", "settings"]
    note = "in how many steps, of all settings and of each"
    return [Block("Gradients that were not finite", headers, cells, note, numbers=["steps"])] if cells else []


def histograms(runs: Sequence[ScalerRun]) -> list[Block]:
    """Return the gradients' histograms by binary exponent, a table for each training."""
    blocks = []
    for name, values in _stored(runs):
        cells = [
            [f"2^{values.lowest + place}", f"{count:,}", format_share(count / values.elements)]
            for place, count in enumerate(values.counts)
            if count
        ]
        headers = ["from", "values", "share"]
        blocks.append(Block(f"Gradients of {name} by exponent", headers, cells, numbers=headers[1:]))
    return [block for block in blocks if block.rows]


def notes(runs: Sequence[ScalerRun]) -> list[str]:
    """Return the remarks of the trainings, each with the settings that made it."""
    told: dict[str, list[str]] = {}
    for run in runs:
        for note in run.notes:
            told.setdefault(note, []).append(run.setting.name)
    return [note if len(names) == len(runs) else f"{', '.join(names)}: {note}" for note, names in told.items()]


def _stored(runs: Sequence[ScalerRun]) -> list[tuple[str, Magnitudes]]:
    """Return what is known of gradients as they are stored, fp32's first."""
    known = [(run.setting.name, run.fp32_gradients if run.precision == BASELINE else run.gradients) for run in runs]
    return [(name, values) for name, values in known if values is not None and values.elements]


def _bands(values: Magnitudes) -> list[float]:
    """Return the shares of zeros, of what fp16 loses, of its subnormals and normals, of what is too large and strange.

    Values in the exponent that ends at the border of what is lost count as subnormal, those beyond 2^16 as too large.
    """
    lost = int(_STORED.lowest - _STORED.digits)
    counts = [0, 0, 0, 0]
    for place, count in enumerate(values.counts):
        exponent = values.lowest + place
        band = (exponent >= lost) + (exponent >= _STORED.lowest) + (exponent > _STORED.highest)
        counts[band] += count
    return [count / values.elements for count in (values.zeros, *counts, values.nonfinite)]


def _scales(run: ScalerRun) -> str:
    """Return "2^16 → 2^11": the scale of the first step and of the last."""
    if not run.scales:
        return UNDEFINED
    first, last = format_scale(run.scales[0]), format_scale(run.scales[-1])
    return first if first == last else f"{first} → {last}"


def _behind(lag: float | None) -> str:
    """Return what is missing of a fall as "+5.1%"; where the loss rises, more than all of it is."""
    return ">100%" if lag is not None and lag > 1 else _signed(lag)


def _above(excess: float | None) -> str:
    """Return by how much a loss is above another as "+16.9%"; from twice the other on, how many times it is: "165x"."""
    return format_ratio(1 + excess) if excess is not None and excess >= 1 else _signed(excess)


def _signed(share: float | None) -> str:
    """Return a share with its sign as "-4.8%"; none where it rounds to zero."""
    if share is None:
        return UNDEFINED
    text = f"{share:+.1%}"
    return "0%" if text in ("+0.0%", "-0.0%") else text


def _score(score: Score | None) -> str:
    """Return a classifier's share of right decisions on held-out data, or the loss of anything else."""
    if score is not None and score.correct is not None and score.decisions:
        return format_share(score.correct / score.decisions)
    return format_loss(score.loss if score else None)


_LOOKS: Mapping[str, tuple[str, str]] = {
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


def _loss_rows(one: Told[list[ScalerRun]]) -> dict[str, list[dict[str, Any]]]:
    rows = [
        {"series": run.setting.name, "step": step, "loss": loss, "mark": False}
        for run in one.found
        for step, loss in thinned_curve(run.losses, max(run.steps, len(run.losses)))
    ]
    marked(rows)
    return {"": rows}


def _loss_spec(rows: Rows) -> dict[str, Any]:
    looks = series_encoded(list(dict.fromkeys(row["series"] for row in rows)), _LOOKS)
    y = values_axis("loss", "training loss, unscaled", [row["loss"] for row in rows])
    told = tooltip(series="setting", step="around step", loss="loss")
    return {"layer": curve_layers(steps_axis(), y, looks, told)}


def _scale_rows(one: Told[list[ScalerRun]]) -> dict[str, list[dict[str, Any]]]:
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
        own: list[dict[str, Any]] = [
            {
                "series": run.setting.name,
                "step": place + 1,
                "exponent": math.log2(run.scales[place]),
                "scale": format_scale(run.scales[place]),
                "skipped": place in skipped,
                "said": "skipped" if place in skipped else "taken",
                "mark": False,
            }
            for place in [*places[:MOVES], *places[MOVES:][-1:]]
            if 0 < run.scales[place] < math.inf
        ]
        for end in own[:1] + own[-1:]:
            end["mark"] = True
        rows += own
    return {"": rows}


def _scale_spec(rows: Rows) -> dict[str, Any]:
    looks = series_encoded(list(dict.fromkeys(row["series"] for row in rows)), _LOOKS)
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
    return {"layer": [*curve_layers(x, y, looks, told, {"interpolate": "step-after"}), skipped]}


_DRAWINGS = (
    Drawing(
        name="studies-scaler-losses",
        title="Training loss by setting of the scaler",
        alt="A line ends where a training was given up, and breaks where its loss is not finite.",
        rows=_loss_rows,
        spec=_loss_spec,
    ),
    Drawing(
        name="studies-scales",
        title="Loss scale over time",
        alt="Crosses are steps that GradScaler skipped.",
        rows=_scale_rows,
        spec=_scale_spec,
    ),
)


def part(held: Held[list[ScalerRun]]) -> Part | None:
    """Return the cases that were trained with several settings of the scaler, those first of which most fail."""

    def needs_scaling(one: Told[list[ScalerRun]]) -> bool:
        return any(each.fails and not each.run.setting.enabled for each in outcomes(one.found))

    found = sorted(held.told, key=lambda one: sum(each.fails for each in outcomes(one.found)), reverse=True)
    return told_part(
        held,
        found,
        lambda one: scaling_section(one.case, one.found, everything=True),
        id="scaler",
        title="Loss scaling, setting by setting",
        caption="What fp16 needs of loss scaling, those first of whose settings most fail",
        verb="Trained",
        said=of_several(found, needs_scaling, "cannot train without loss scaling"),
        drawings=_DRAWINGS,
        folding=["Training loss", "Gradients"],
        finding=lambda one: next(iter(scaler_said(one.case, one.found)), ""),
    )

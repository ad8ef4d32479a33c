"""The chart of magnitudes along a network, against what fp16 and bf16 hold."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampbench.labels import few
from ampbench.ranges.formats import FORMATS
from ampbench.ranges.headroom import FLUSHES, Headroom, by_module
from ampbench.ranges.scales import usable_scales
from ampbench.ranges.wording import scales_sentence
from ampbench.records.ranges import ACTIVATION, GRADIENT, INPUT, UPDATE, WEIGHT, Magnitudes, RangePass
from ampbench.report.explained import Told
from ampbench.report.vega import DASHED, tooltip
from ampbench.report.view import Chart, Choice, Rows
from ampbench.report.views.explanation.running_order import (
    modules_axis,
    shown_name,
    thinned,
)
from ampbench.report.views.explanation.spreads import HIGH, LOW, Spread, joint, spread_of
from ampbench.report.views.part import CHOICES, ROWS_OF_THE_PAGE
from ampbench.units import UNDEFINED, counted, format_share

DRAWN_SAID = (
    f"Bars span the magnitudes of a module's values from the {format_share(LOW)} to the {format_share(HIGH)} quantile "
    "of those that are not zero, thin lines go on to the largest; gradients are without a loss scale."
)

FITS = "largest value"
OVERFLOWS = "largest value, overflows fp16"
FLUSHING = f"{FLUSHES:.0%} or more become zero in fp16"
SEEN = "overflowed when run in fp16"
NONFINITE = "not finite in fp32"
_MARKS = {
    FITS: ("circle", "--ink"),
    OVERFLOWS: ("triangle-up", "--regressed"),
    FLUSHING: ("triangle-down", "--inconclusive"),
    SEEN: ("cross", "--regressed"),
    NONFINITE: ("diamond", "--incomparable"),
}
"""Shape and colour of each point."""

_FP16, _BF16 = FORMATS["fp16"], FORMATS["bf16"]
_NEAR = 32
"""The limits of bf16 are drawn where a value comes within so many powers of two."""
_MARGIN = 2.0
"""So many powers of two are drawn beyond what is there."""


@dataclass(frozen=True, slots=True)
class _Which:
    """Values of which a chart is made: `named` are those of parameters alone, or those without them."""

    label: str
    what: str
    named: bool | None = None

    def picked(self, rows: Iterable[Magnitudes]) -> list[Magnitudes]:
        return [row for row in rows if row.what == self.what and self.named in (None, bool(row.name))]


_ALL = (
    _Which("activations", ACTIVATION),
    _Which("gradients of outputs", GRADIENT, named=False),
    _Which("gradients of parameters", GRADIENT, named=True),
    _Which("weights", WEIGHT),
    _Which("updates", UPDATE),
    _Which("inputs", INPUT),
)


def magnitude_chart(cases: Sequence[Told[RangePass]]) -> tuple[list[Chart], dict[str, Rows], list[str]]:
    """Return the chart of all cases, its data, and what is to be said of how it is drawn."""
    choices: list[Choice] = []
    rows: list[dict[str, Any]] = []
    cut: set[int] = set()
    drawn = 0
    for one in cases[:CHOICES]:
        if len(rows) > ROWS_OF_THE_PAGE:
            break
        drawn += 1
        modules = by_module(one.found.magnitudes)
        for number, which in enumerate(_ALL):
            spreads = [spread_of(name, own) for name, found in modules.items() if (own := which.picked(found))]
            if not any(each.peak is not None or each.nonfinite for each in spreads):
                continue
            kept = thinned(spreads, lambda each: each.tightness)
            if len(kept) < len(spreads):
                cut.add(one.number)
            value = f"{one.number}-{number}"
            own_rows = _rows(value, kept, _seen(one.found) if which.what == ACTIVATION else set())
            rows += own_rows
            label = f"{one.name}: {which.label}"
            choices.append(Choice(value=value, label=label, alt=_said(which, one, spreads), marks=_present(own_rows)))
    if not choices:
        return [], {}, []
    said = [DRAWN_SAID]
    if cut:
        said.append("Of networks with very many modules, those nearest to the limits are drawn.")
    if drawn < len(cases):
        said.append(f"The chart has {drawn:,} of {len(cases):,} cases.")
    return [_chart(choices, rows)], {"explanation-magnitudes": rows}, said


def _seen(found: RangePass) -> set[str]:
    """Return the modules that overflowed on exact inputs in a real run in fp16."""
    return {
        row.module
        for low in found.low_runs
        if low.precision.startswith("fp16")
        for row in low.modules
        if row.overflowed and not row.inputs_overflowed
    }


def _rows(value: str, spreads: Sequence[Spread], seen: set[str]) -> list[dict[str, Any]]:
    """Return what is drawn of one choice: its modules, then the limits and what lies beyond them."""
    known = [one for one in spreads if one.low and one.peak]
    lows = [math.log2(one.low) for one in known if one.low]
    peaks = [math.log2(one.peak) for one in known if one.peak]
    lowest, highest = min([*lows, _FP16.lowest - 11.0]) - _MARGIN, max([*peaks, 16.0]) + _MARGIN
    rows = [
        _module_row(value, place, one, one.module in seen, highest - _MARGIN / 2) for place, one in enumerate(spreads)
    ]
    limits = [
        (math.log2(_FP16.largest), f"{_FP16.largest:g}: largest of fp16"),
        (float(_FP16.lowest), f"2^{_FP16.lowest}: smallest normal of fp16"),
        (_FP16.lowest - 10.0, f"2^{_FP16.lowest - 10}: smallest of fp16"),
    ]
    if highest >= _BF16.highest - _NEAR:
        limits.append((math.log2(_BF16.largest), f"{_BF16.largest:.2g}: largest of bf16"))
    if lowest <= _BF16.lowest + _NEAR:
        limits.append((float(_BF16.lowest), f"2^{_BF16.lowest}: smallest normal of bf16"))
        limits.append((_BF16.lowest - 7.0, f"2^{_BF16.lowest - 7}: smallest of bf16"))
    empty = dict.fromkeys(rows[0], None) if rows else {}
    rows += [{**empty, "case": value, "limit": place, "text": text} for place, text in limits]
    for band, low, high in (
        ("overflow", math.log2(_FP16.overflow), highest),
        ("flush", lowest, math.log2(_FP16.flush)),
    ):
        rows.append({**empty, "case": value, "band": band, "low": low, "high": high})
    return rows


def _module_row(value: str, place: int, one: Spread, seen: bool, top: float) -> dict[str, Any]:
    drawn = one.low is not None and one.high is not None and one.peak is not None
    peak = OVERFLOWS if one.overflows else FITS
    fp16, bf16 = joint(one.values, "fp16"), joint(one.values, "bf16")
    return {
        "case": value,
        "module": shown_name(one.module),
        "place": place,
        "class": one.values[0].kind,
        "low": math.log2(one.low) if one.low else None,
        "high": math.log2(one.high) if one.high else None,
        "peak": math.log2(one.peak) if one.peak else None,
        "peak_kind": peak if drawn else None,
        "low_kind": FLUSHING if one.flushed >= FLUSHES else None,
        "top_kind": NONFINITE if one.nonfinite else SEEN if seen else None,
        "top": top if one.nonfinite or seen else None,
        "largest": f"{one.peak:.4g}" if one.peak else UNDEFINED,
        "spread": f"{one.low:.2g} to {one.high:.2g}" if drawn else UNDEFINED,
        "fp16": _fitting(fp16),
        "bf16": _fitting(bf16),
        "limit": None,
        "text": None,
        "band": None,
    }


def _present(rows: Rows) -> list[str]:
    """Return which marks are drawn of rows."""
    drawn = {row.get(field) for row in rows for field in ("peak_kind", "low_kind", "top_kind")}
    return [name for name in _MARKS if name in drawn]


def _fitting(found: Headroom) -> str:
    """Return "largest is 7.7% of its largest; 0.02% become zero"."""
    if found.reach is None:
        return UNDEFINED
    reach = f"{found.reach:.2g} times" if found.reach > 1 else f"{format_share(found.reach)} of"
    lost = f"; {format_share(found.flushed)} become zero" if found.flushed else ""
    return f"up to {reach} what it holds{lost}"


def _said(which: _Which, one: Told[RangePass], spreads: Sequence[Spread]) -> str:
    """Return what the chart shows of one kind of values of a case."""
    said = [f"{one.name}, {which.label} of {counted(len(spreads), 'module')}"]
    known = [each for each in spreads if each.peak]
    if known:
        worst = max(known, key=lambda each: each.peak or 0.0)
        reach = (worst.peak or 0.0) / _FP16.largest
        times = f"{reach:.2g} times" if reach > 1 else f"{format_share(reach)} of"
        said.append(f"the largest is {worst.peak:.3g} in {shown_name(worst.module)}, {times} what fp16 holds")
    flushing = [each for each in spreads if each.flushed >= FLUSHES]
    for what, own in (
        ("values of {} overflow fp16", [each for each in spreads if each.overflows]),
        (f"{FLUSHES:.0%} or more of the values of {{}} become zero in fp16", flushing),
        ("values of {} are not finite in fp32", [each for each in spreads if each.nonfinite]),
    ):
        if own:
            names = few(shown_name(each.module) for each in own)
            said.append(what.format(f"{counted(len(own), 'module')} ({names})"))
    if len(said) == 2:
        said.append("all fit into fp16" if known else "none but zeros")
    if which.what == GRADIENT and known:
        said.append(scales_sentence(usable_scales(which.picked(one.found.magnitudes))))
    return f"{'; '.join(said)}."


def _chart(choices: Sequence[Choice], rows: Rows) -> Chart:
    at = {"type": "quantitative", "title": "magnitude, in powers of two (log scale)"}
    axis = {"labelExpr": "'2^' + datum.value", "tickMinStep": 1, "tickCount": 8, "minExtent": 46}
    x = modules_axis(rows)
    y = {**at, "axis": axis, "scale": {"zero": False, "nice": False}}
    told = tooltip(
        module="module", **{"class": "kind"}, largest="largest", spread="most values", fp16="fp16", bf16="bf16"
    )
    present = _present(rows)

    def points(field: str, place: str) -> dict[str, Any]:
        legend = {"title": None, "columns": 2, "columnPadding": 40, "labelLimit": 260}
        channel = {"field": field, "type": "nominal", "legend": legend}
        shapes = {"domain": present, "range": [_MARKS[name][0] for name in present]}
        colours = {"domain": present, "range": [f"var({_MARKS[name][1]})" for name in present]}
        return {
            "transform": [{"filter": f"isValid(datum.{field})"}],
            "mark": {"type": "point", "opacity": 1},
            "encoding": {
                "size": {"condition": {"test": f"datum.{field} == '{FITS}'", "value": 28}, "value": 60},
                "x": x,
                "y": {**y, "field": place},
                "shape": {**channel, "scale": shapes},
                "color": {**channel, "scale": colours},
                "tooltip": told,
            },
        }

    modules = [{"filter": "isValid(datum.module) && isValid(datum.low)"}]
    width = {"expr": "max(1, min(14, 0.7 * bandwidth('x')))"}
    return Chart(
        id="explanation-magnitudes",
        title="Magnitudes in fp32 against what fp16 and bf16 hold",
        alt=_outside(),
        spec={
            "layer": [
                _bands(y),
                {
                    "transform": modules,
                    "mark": {"type": "bar", "width": width, "color": "var(--faint)", "opacity": 0.75},
                    "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "tooltip": told},
                },
                {
                    "transform": modules,
                    "mark": {"type": "rule", "color": "var(--faint)"},
                    "encoding": {"x": x, "y": {**y, "field": "high"}, "y2": {"field": "peak"}, "tooltip": told},
                },
                points("peak_kind", "peak"),
                points("low_kind", "low"),
                points("top_kind", "top"),
                *_limits(y),
            ]
        },
        dataset="explanation-magnitudes",
        height=340,
        choose="case",
        choices=choices,
    )


def _outside() -> str:
    return (
        f"Shaded is what overflows fp16 or becomes zero in it. The limits of bf16, 2^{_BF16.highest + 1} and "
        f"2^{_BF16.lowest}, are drawn where values come near."
    )


def _bands(y: Mapping[str, Any]) -> dict[str, Any]:
    colours = {"domain": ["overflow", "flush"], "range": ["var(--regressed-back)", "var(--inconclusive-back)"]}
    return {
        "transform": [{"filter": "isValid(datum.band)"}],
        "mark": {"type": "rect", "opacity": 0.8},
        "encoding": {
            "x": {"value": 0},
            "x2": {"value": "width"},
            "y": {**y, "field": "low"},
            "y2": {"field": "high"},
            "fill": {"field": "band", "type": "nominal", "scale": colours, "legend": None},
        },
    }


def _limits(y: Mapping[str, Any]) -> list[dict[str, Any]]:
    chosen = [{"filter": "isValid(datum.limit)"}]
    place = {"y": {**y, "field": "limit"}}
    label = {"type": "text", "align": "right", "dx": -2, "fontSize": 11}
    words = {**place, "x": {"value": "width"}, "text": {"field": "text", "type": "nominal"}}
    halo = {"stroke": "var(--card)", "strokeWidth": 3, "opacity": 0.85}
    layers: list[dict[str, Any]] = [{"transform": chosen, "mark": {**DASHED, "color": "var(--ink)"}, "encoding": place}]
    # towards the middle of the drawing, where there is room
    for side, beside in ((">", {"baseline": "top", "dy": 3}), ("<", {"baseline": "bottom", "dy": -2})):
        own = [*chosen, {"filter": f"datum.limit {side} 0"}]
        layers += [{"transform": own, "mark": {**label, **beside, **drawn}, "encoding": words} for drawn in (halo, {})]
    return layers

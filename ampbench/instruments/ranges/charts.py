"""How large the values of a network are and what low precisions hold of them, and where errors begin, on the page.

Two parts. Headroom has a chart of magnitudes along a network, against what fp16 and bf16 hold; where most of a module
lie, its histograms by exponent tell. Origin has one of the errors of modules, own, inherited and total, in the same
order of running.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampbench.base.precisions import FORMATS, find_format
from ampbench.base.units import UNDEFINED, counted, format_error, format_share
from ampbench.instruments.ranges import show
from ampbench.instruments.ranges.findings import headroom_said, origin_said
from ampbench.present.charts import (
    CHOICES,
    DASHED,
    ROWS_OF_THE_PAGE,
    Chart,
    Choice,
    Rows,
    modules_axis,
    thinned,
    tooltip,
)
from ampbench.present.page import MODULE_ROWS, Detail, Held, Overview, Part, Told, cut, sentences_of, told_part
from ampbench.records.labels import few
from ampbench.records.magnitudes import (
    FLUSHES,
    ROOT,
    Headroom,
    by_module,
    error_sentence,
    joint,
    largest,
    quantile,
    scales_sentence,
    usable_scales,
)
from ampbench.records.ranges import (
    ACTIVATION,
    GRADIENT,
    INPUT,
    UPDATE,
    WEIGHT,
    Magnitudes,
    ModuleError,
    OriginPass,
    ProfileRow,
    RangePass,
    layer_profile,
    ranked,
)


def shown_name(module: str) -> str:
    """Return the path of a module; of the network itself, which has none, what it is."""
    return module or ROOT


LOW, HIGH = 0.001, 0.999
"""A bar spans the values between these quantiles of those that are not zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The values of one kind in a module: None where there are none that are finite and not zero."""

    module: str
    values: Sequence[Magnitudes]
    low: float | None
    high: float | None
    peak: float | None

    @property
    def overflows(self) -> bool:
        """Whether the largest becomes infinite in fp16."""
        return self.peak is not None and self.peak >= find_format("fp16").overflow

    @property
    def flushed(self) -> float:
        """The share that becomes zero in fp16."""
        return joint(self.values, "fp16").flushed or 0.0

    @property
    def nonfinite(self) -> int:
        """How many values were not finite in fp32."""
        return sum(row.nonfinite for row in self.values)

    @property
    def tightness(self) -> float:
        """How much its values have to do with the limits of fp16: what comes first where not all can be drawn."""
        if self.peak is None:
            return math.inf if self.nonfinite else -math.inf
        over = math.log2(self.peak / find_format("fp16").overflow)
        return (1e6 if self.nonfinite or self.overflows or self.flushed >= FLUSHES else 0.0) + over


def spread_of(module: str, values: Sequence[Magnitudes]) -> Spread:
    """Return the spread of `values`, all of one kind in a module, between the quantiles `LOW` and `HIGH`."""
    return Spread(
        module=module,
        values=values,
        low=quantile(values, LOW),
        high=quantile(values, HIGH),
        peak=largest(values),
    )


MAGNITUDES_SAID = (
    f"Bars span the magnitudes of a module's values from the {format_share(LOW)} to the {format_share(HIGH)} quantile "
    "of those that are not zero, thin lines go on to the largest; gradients are without a loss scale."
)

FITS = "largest value"
OVERFLOWS = "largest value, overflows fp16"
FLUSHING = f"{FLUSHES:.0%} or more become zero in fp16"
SEEN = "overflowed when run in fp16"
NONFINITE = "not finite in fp32"
_MAGNITUDE_MARKS = {
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
            own_rows = _magnitude_rows(value, kept, _seen(one.found) if which.what == ACTIVATION else set())
            rows += own_rows
            label = f"{one.name}: {which.label}"
            choices.append(
                Choice(value=value, label=label, alt=_magnitudes_said(which, one, spreads), marks=_present(own_rows))
            )
    if not choices:
        return [], {}, []
    said = [MAGNITUDES_SAID]
    if cut:
        said.append("Of networks with very many modules, those nearest to the limits are drawn.")
    if drawn < len(cases):
        said.append(f"The chart has {drawn:,} of {len(cases):,} cases.")
    return [_magnitude_chart(choices, rows)], {"explanation-magnitudes": rows}, said


def _seen(found: RangePass) -> set[str]:
    """Return the modules that overflowed on exact inputs in a real run in fp16."""
    return {
        row.module
        for low in found.low_runs
        if low.precision.startswith("fp16")
        for row in low.modules
        if row.overflowed and not row.inputs_overflowed
    }


def _magnitude_rows(value: str, spreads: Sequence[Spread], seen: set[str]) -> list[dict[str, Any]]:
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
    return [name for name in _MAGNITUDE_MARKS if name in drawn]


def _fitting(found: Headroom) -> str:
    """Return "up to 7.7% of what it holds; 0.02% become zero"."""
    if found.reach is None:
        return UNDEFINED
    reach = f"{found.reach:.2g} times" if found.reach > 1 else f"{format_share(found.reach)} of"
    lost = f"; {format_share(found.flushed)} become zero" if found.flushed else ""
    return f"up to {reach} what it holds{lost}"


def _magnitudes_said(which: _Which, one: Told[RangePass], spreads: Sequence[Spread]) -> str:
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


def _magnitude_chart(choices: Sequence[Choice], rows: Rows) -> Chart:
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
        shapes = {"domain": present, "range": [_MAGNITUDE_MARKS[name][0] for name in present]}
        colours = {"domain": present, "range": [f"var({_MAGNITUDE_MARKS[name][1]})" for name in present]}
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


def headroom_part(held: Held[RangePass]) -> Part | None:
    """Return the cases whose magnitudes were looked at, those with the largest values first."""
    found = sorted(held.told, key=_reach, reverse=True)
    if not (found or held.untold):
        return None
    charts, datasets, said = magnitude_chart(found)
    return told_part(
        found,
        id="headroom",
        title="Headroom",
        said=[*_overflowing_said(found), *held.strangers_said("Looked at"), *said],
        detail=_headroom_detail,
        sentences=lambda one: sentences_of(show.headroom_section(one.case, one.found)),
        overview=Overview(
            caption="What fp16 and bf16 would make of the values of each case, those with the largest values first",
            headers=["headroom"],
            rows=[(one.name, [headroom_said(one.found)]) for one in found],
            wide={"headroom"},
        ),
        drawn=(charts, datasets),
        untold=held.untold,
    )


def _overflowing_said(found: Sequence[Told[RangePass]]) -> list[str]:
    """Return which of several cases overflow fp16; of one, its own sentences say it."""
    if len(found) < 2:
        return []
    over = [one for one in found if _reach(one) >= FORMATS["fp16"].overflow]
    which = f": {few(one.name for one in over)}" if over else ""
    return [f"Of {counted(len(found), 'case')}, {len(over) or 'none'} would have values overflow in fp16{which}."]


def _reach(one: Told[RangePass]) -> float:
    return max((row.largest for row in one.found.magnitudes if row.largest is not None), default=0.0)


def _headroom_detail(one: Told[RangePass]) -> Detail:
    found = one.found
    first, *lines = (block for block in show.headroom_section(one.case, found).blocks if not block.headers)
    shown = [cut(table, MODULE_ROWS) for make in (show.values, show.failed_predictions) for table in make(found)]
    folded = {
        "Gradients and loss scales": [
            cut(one, MODULE_ROWS) for one in (*show.gradients(found), *show.seen_gradients(found))
        ],
        "Weights that would not move": [cut(one, MODULE_ROWS) for one in show.updates(found)],
    }
    return Detail(
        name=one.name,
        said=first.title,
        blocks=[*lines, *shown],
        folded={title: tables for title, tables in folded.items() if tables},
    )


OWN, INHERITED, TOTAL = "own", "inherited", "total"
OVERFLOWING, HANDED = "overflows", "inputs overflow"
_ERROR_MARKS = {
    TOTAL: ("square", "--ink"),
    OWN: ("circle", "--link"),
    OVERFLOWING: ("triangle-up", "--regressed"),
    HANDED: ("triangle-down", "--inconclusive"),
}
"""Shape and colour of what is drawn."""

ERRORS_SAID = (
    "Own errors are those that a module makes of exact inputs; total ones are those of the whole run, inherited the "
    "part of these that came with its inputs (errors of different modules add in squares). A module that makes no "
    "error has no point."
)


def origin_part(held: Held[OriginPass]) -> Part | None:
    """Return the cases the origin of whose errors was looked for, those that overflow or err most first."""
    found = sorted(held.told, key=_badness, reverse=True)
    if not (found or held.untold):
        return None
    charts, datasets, said = error_chart(found)
    return told_part(
        found,
        id="origin",
        title="Where errors begin",
        said=[*held.strangers_said("Looked at"), *said],
        detail=_origin_detail,
        sentences=lambda one: sentences_of(show.origin_section(one.case, one.found)),
        overview=_origin_overview(found),
        drawn=(charts, datasets),
        untold=held.untold,
    )


def _badness(one: Told[OriginPass]) -> tuple[int, float]:
    return sum(row.overflowed > 0 for row in one.found.modules), one.found.output_rel_l2 or 0.0


def _origin_overview(found: Sequence[Told[OriginPass]]) -> Overview:
    rows = []
    for one in found:
        overflowing = sum(row.overflowed > 0 for row in one.found.modules)
        first = next(iter(ranked(one.found.modules)), None)
        cells = [format_error(one.found.output_rel_l2), f"{len(one.found.modules):,}", f"{overflowing:,}"]
        rows.append((one.name, [*cells, error_sentence(first) if first else UNDEFINED]))
    headers = ["error of the output", "modules", "of these overflow", "the worst by itself"]
    return Overview(
        caption="Errors against fp32 by case, those that overflow or err most first",
        headers=headers,
        rows=rows,
        numbers=headers[:3],
        wide=headers[3:],
    )


def _origin_detail(one: Told[OriginPass]) -> Detail:
    first, *lines = (block for block in show.origin_section(one.case, one.found).blocks if not block.headers)
    return Detail(
        name=one.name,
        said=first.title,
        blocks=[*lines, *(cut(table, MODULE_ROWS) for table in show.errors(one.found))],
    )


def error_chart(cases: Sequence[Told[OriginPass]]) -> tuple[list[Chart], dict[str, Rows], list[str]]:
    """Return the chart of all cases, its data, and what is to be said of how it is drawn."""
    rows: list[dict[str, Any]] = []
    choices: list[Choice] = []
    cut_short = False
    for one in cases[:CHOICES]:
        if len(rows) > ROWS_OF_THE_PAGE:
            break
        if not any(row.elements or row.total_rel_l2 is not None for row in one.found.modules):
            continue
        kept = _most_erring(one.found.modules)
        cut_short = cut_short or len(kept) < len(one.found.modules)
        names = {row.module for row in kept}
        own = [
            _drawn(str(one.number), each, row)
            for each, row in zip(layer_profile(one.found.modules), one.found.modules, strict=True)
            if row.module in names
        ]
        rows += own
        choices.append(Choice(value=str(one.number), label=one.name, alt=_errors_said(one), marks=_legended(own)))
    if not choices:
        return [], {}, []
    said = [ERRORS_SAID]
    if cut_short:
        said.append("Of networks with very many modules, those that err most by themselves are drawn.")
    if len(choices) < len(cases):
        said.append(f"The chart has {len(choices):,} of {len(cases):,} cases.")
    return [_error_chart(choices, rows)], {"explanation-origins": rows}, said


def _most_erring(modules: Sequence[ModuleError]) -> list[ModuleError]:
    """Return as many modules as a chart has room for, in their order: those that err most by themselves."""
    places = {row.module: place for place, row in enumerate(ranked(modules))}
    return thinned(modules, lambda row: -places.get(row.module, len(places)))


def _drawn(case: str, profile: ProfileRow, row: ModuleError) -> dict[str, Any]:
    """Return a module as a row of the chart."""
    mark = (HANDED if row.inputs_overflowed else OVERFLOWING) if row.overflowed else None
    return {
        "case": case,
        "module": shown_name(row.module),
        "place": profile.place,
        "class": row.kind,
        OWN: row.own_rel_l2 or None,
        INHERITED: profile.inherited if _is_certain(profile) else None,
        TOTAL: row.total_rel_l2 or None,
        "mark": mark,
        "own_text": format_error(row.own_rel_l2),
        "inherited_text": format_error(profile.inherited),
        "total_text": format_error(row.total_rel_l2),
        "overflow": f"{row.overflowed:,} of {row.elements:,}" if row.overflowed else "none",
        "note": row.note or None,
    }


def _is_certain(profile: ProfileRow) -> bool:
    """Return whether what is inherited is more than the difference of two errors that are nearly equal."""
    return profile.inherited is not None and profile.inherited > (profile.total or 0.0) / 10


def _errors_said(one: Told[OriginPass]) -> str:
    said = "; ".join(sentence.rstrip(".") for sentence in origin_said(one.found))
    return f"{one.name}, {counted(len(one.found.modules), 'module')}: {said}."


def _legended(rows: Rows) -> list[str]:
    """Return which marks are drawn of rows, as the legend lists them."""
    drawn = [name for name in (TOTAL, OWN) if any(row[name] for row in rows)]
    return drawn + [name for name in (OVERFLOWING, HANDED) if any(row["mark"] == name for row in rows)]


def _error_chart(choices: Sequence[Choice], rows: Rows) -> Chart:
    legended = _legended(rows)
    present = [*legended, *([INHERITED] if any(row[INHERITED] for row in rows) else [])]
    legend = {"title": None, "columns": 2}
    x = modules_axis(rows)
    colours = {"domain": legended, "range": [f"var({_ERROR_MARKS[name][1]})" for name in legended]}
    shapes = {"domain": legended, "range": [_ERROR_MARKS[name][0] for name in legended]}
    told = tooltip(
        module="module",
        **{"class": "kind"},
        own_text="own error",
        inherited_text="inherited",
        total_text="total",
        overflow="outputs that overflow",
        note="note",
    )
    y = {
        "field": "error",
        "type": "quantitative",
        "title": "relative L2 error against fp32 (log scale)",
        "scale": {"type": "log", "padding": 12, "nice": False},
        "axis": {"format": ".0e", "tickCount": 5, "minExtent": 40},
    }

    def marks(field: str) -> dict[str, Any]:
        channel = {"field": field, "type": "nominal", "legend": legend}
        return {"color": {**channel, "scale": colours}, "shape": {**channel, "scale": shapes}, "tooltip": told}

    def line(name: str, **style: Any) -> dict[str, Any]:
        return {
            "transform": [{"calculate": f"datum.{name}", "as": "error"}, {"filter": "isValid(datum.error)"}],
            "mark": {"type": "line", "color": "var(--ink)", **style},
            "encoding": {"x": x, "y": y},
        }

    folded = {"fold": [name for name in (TOTAL, OWN) if name in present], "as": ["series", "error"]}
    points = {
        "transform": [folded, {"filter": "isValid(datum.error)"}],
        "mark": {"type": "point", "size": 20, "opacity": 1},
        "encoding": {"x": x, "y": y, **marks("series")},
    }
    broken = {
        "transform": [{"filter": "isValid(datum.mark)"}],
        "mark": {"type": "point", "size": 70, "opacity": 1},
        "encoding": {"x": x, "y": {"value": 6}, **marks("mark")},
    }
    layers = [
        *([line(TOTAL, strokeWidth=1)] if TOTAL in present else []),
        *([line(INHERITED, strokeWidth=1.5, strokeDash=[4, 3])] if INHERITED in present else []),
        *([points] if folded["fold"] else []),
        *([broken] if any(row["mark"] for row in rows) else []),
    ]
    return Chart(
        id="explanation-origins",
        title="Errors by module",
        alt="The solid line is the total, the dashed one what is inherited, where that is over a tenth of the total.",
        spec={"layer": layers or [broken]},
        dataset="explanation-origins",
        height=320,
        choose="case",
        choices=choices,
    )

"""Which values leave the range of half precision, and where errors begin: the documents of headroom and origin.

Numbers without a value are "–". Long tables end after the rows that say most, unless all are asked for.
"""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from ampbench.core.precisions import FORMATS
from ampbench.core.units import UNDEFINED, counted, format_error, format_share
from ampbench.instruments.ranges.findings import (
    arithmetic_said,
    forward_overflows,
    headroom_said,
    low_run_said,
    origin_said,
    predicted_and_seen,
    predicted_gradients,
    telling,
    unchecked_said,
    validated_said,
)
from ampbench.instruments.ranges.headroom import (
    FLUSHES,
    MARGIN,
    Headroom,
    Prediction,
    by_module,
    by_running_module,
    format_times,
    headroom,
    joint,
    largest,
    predict,
    quantile,
    scale_range,
    usable_scales,
    values_phrase,
)
from ampbench.records.case import Case
from ampbench.records.ranges import (
    ACTIVATION,
    GRADIENT,
    INPUT,
    ROOT,
    UPDATE,
    WEIGHT,
    Magnitudes,
    ModuleError,
    OriginPass,
    RangePass,
    Swallowed,
    ranked,
)
from ampbench.show.charts import (
    MODULES,
    Drawing,
    Rows,
    limit_layers,
    looks_encoded,
    modules_axis,
    thinned,
    tooltip,
)
from ampbench.show.data import record_data
from ampbench.show.document import Block, Column, Document, Section, as_sentence, first_rows, records, table
from ampbench.show.page import Held, Part, Told, cut, of_several, told_part
from ampbench.show.studies import case_title, document_of_cases
from ampbench.store import StoredRun

SHOWN = 12
"""So many rows are shown unless all are asked for."""
NO_SCALE = "none needed"
HANDED = "given inf"
"""What is said of a module whose inputs are not finite in the low dtype."""
_WORTH_A_COLUMN = 0.01
"""The share of its largest number from which a format is told of beside the first."""


class Fits(NamedTuple):
    """Magnitudes, how they fit into each low format and, of updates, the share of them that is swallowed in it."""

    values: Magnitudes
    formats: Mapping[str, Headroom]
    swallowed: Mapping[str, float | None]


def _fit(dtype: str, share: str) -> Callable[[Fits], float | None]:
    if share == "swallowed":
        return lambda row: row.swallowed.get(dtype)
    return lambda row: getattr(row.formats[dtype], share)


VALUES: Sequence[Column[Fits]] = (
    *(
        Column(name, attrgetter(f"values.{name}"))
        for name in ("module", "kind", "what", "name", "elements", "zeros", "nonfinite", "largest")
    ),
    *(
        Column(f"{dtype}_{share}", _fit(dtype, share))
        for dtype in FORMATS
        for share in ("reach", "overflow", "flushed", "subnormal", "swallowed")
    ),
)
"""Of a record of magnitudes: what an fp32 run had, and for each dtype how it fits, "fp16_reach" and so on.

`reach` is the largest value over the format's; `overflow`, `flushed` and `subnormal` are shares of the finite values,
`swallowed` that of updates which change nothing where the parameter is stored in the dtype.
"""


def fits(found: RangePass) -> list[Fits]:
    """Return the records of magnitudes, with how they fit into each low format."""
    lost = {(row.parameter, row.dtype): _lost(row) for row in found.swallowed}
    rows = []
    for values in found.magnitudes:
        swallowed = {dtype: lost.get((values.name, dtype)) for dtype in FORMATS} if values.what == UPDATE else {}
        rows.append(Fits(values, {dtype: headroom(values, dtype) for dtype in FORMATS}, swallowed))
    return rows


Placed = tuple[int, ModuleError]
"""A module and its place in the order of running."""


def _of_outputs(what: str) -> Callable[[Placed], str]:
    """Return a function to the share of a module's outputs of which something is true."""
    return lambda row: format_share(getattr(row[1], what) / row[1].elements if row[1].elements else None)


ERRORS: Sequence[Column[Placed]] = (
    Column("place", lambda row: row[0], "#", "whole", lambda row: f"{row[0]}"),
    Column("module", lambda row: row[1].module, "module", said=lambda row: row[1].module or ROOT),
    Column("kind", lambda row: row[1].kind, "kind"),
    Column("elements", lambda row: row[1].elements),
    Column("own_rel_l2", lambda row: row[1].own_rel_l2, "own", "error"),
    Column("total_rel_l2", lambda row: row[1].total_rel_l2, "total", "error"),
    Column("inherited", lambda row: row[1].inherited, "inherited", "error"),
    Column("overflowed", lambda row: row[1].overflowed, "overflowed", "share", _of_outputs("overflowed")),
    Column("flushed", lambda row: row[1].flushed, "flushed", "share", _of_outputs("flushed")),
    Column("inputs_overflowed", lambda row: row[1].inputs_overflowed),
    Column("sampled", lambda row: row[1].sampled),
    Column(
        "note", lambda row: row[1].note, "remark",
        said=lambda row: row[1].note or (HANDED if row[1].inputs_overflowed else ""), rare=True,
    ),
)  # fmt: skip
"""Of a module: its own, total and inherited error, what overflowed and was flushed, and what is beside these."""


def placed(found: OriginPass) -> list[Placed]:
    """Return the modules of a pass in the order of running."""
    return list(enumerate(found.modules))


def seen_rows(found: RangePass) -> list[dict[str, Any]]:
    """Return a row per low precision and module: what was predicted (near it, too) and what was seen."""
    return [
        {
            "precision": low.precision,
            "module": one.module,
            "kind": one.kind,
            "overflow_predicted": one.predicted.overflows,
            "overflow_seen": one.overflow_seen,
            "flush_predicted": one.predicted.flushes,
            "flush_seen": one.flush_seen,
            "overflow_near": one.predicted.near_overflow,
            "flush_near": one.predicted.near_flush,
            "own_rel_l2": one.own_rel_l2,
            "note": one.note,
        }
        for low in found.low_runs
        for one in predicted_and_seen(found, low)
    ]


def headroom_document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False) -> Document:
    """Return how large the values of the cases `case_ids` were, and what low precisions made of them.

    A flat row is what was counted of a module; nested data have these and, beside them, what was predicted and seen.
    """
    return document_of_cases(
        stored, case_ids, stored.of(RangePass),
        section=lambda case, found: headroom_section(case, found, everything=everything),
        data=lambda _, found: {
            "sentences": [*headroom_said(found), *validated_said(found), *arithmetic_said(found)],
            "tables": {"values": records(VALUES, fits(found)), "seen": seen_rows(found)},
            "headroom": record_data(found),
        },
        columns=VALUES,
        rows=fits,
    )  # fmt: skip


def origin_document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False) -> Document:
    """Return where the errors of the cases `case_ids` began, a flat row for each module."""
    return document_of_cases(
        stored, case_ids, stored.of(OriginPass),
        section=lambda case, found: origin_section(case, found, everything=everything),
        data=lambda _, found: {
            "sentences": origin_said(found),
            "tables": {"modules": records(ERRORS, placed(found))},
            "origin": record_data(found),
        },
        columns=ERRORS,
        rows=placed,
    )  # fmt: skip


Shorten = Callable[[Block, int], Block]
"""Cuts a table to so many rows, and says so."""


def headroom_section(
    case: Case, found: RangePass, *, everything: bool = False, shorten: Shorten = first_rows
) -> Section:
    """Return what an fp32 run says of half precision, and what that then did; `everything`: all rows of its tables."""
    steps = counted(found.steps, "step")
    lines = [
        *headroom_said(found),
        *(low_run_said(found, low) for low in found.low_runs),
        *validated_said(found),
        *arithmetic_said(found),
    ]
    blocks = [_line(line) for line in lines]
    for make in (values, gradients, updates, failed_predictions, seen_gradients):
        blocks += [block if everything else shorten(block, SHOWN) for block in make(found, everything)]
    return Section(f"{case_title(case)} · {steps}", [*blocks, *_notes(found)])


GRADIENTS_ELSEWHERE = (
    "these are values of the forward pass; of gradients, `ampbench run` finds the parameter that errs most, and "
    "`ampbench show RUN --case CASE` names it"
)


def origin_section(
    case: Case, found: OriginPass, *, everything: bool = False, shorten: Shorten = first_rows
) -> Section:
    """Return where the error of a case begins; `everything`: all modules, in the order of running."""
    blocks = [_line(line) for line in origin_said(found)]
    blocks += [block if everything else shorten(block, SHOWN) for block in errors(found, everything)]
    notes = [*found.notes, *([GRADIENTS_ELSEWHERE] if case.phase == "training" else [])]
    return Section(case_title(case), [*blocks, *map(_line, notes)])


def values(found: RangePass, everything: bool = False) -> list[Block]:
    """Return the modules with their largest values: those first that would overflow, then those that would flush."""
    modules = by_running_module(found.magnitudes)
    told = [(rows, {dtype: predict(rows, dtype) for dtype in FORMATS}) for rows in modules.values()]
    known = [
        (rows[0], row, _outputs(rows), predictions) for rows, predictions in told if (row := telling(rows)) is not None
    ]
    second = any((headroom(row, "bf16").reach or 0.0) >= _WORTH_A_COLUMN for _, row, _, _ in known)
    if not everything:
        known.sort(key=lambda each: (*_harmless(each[3]["fp16"]), -(each[1].largest or 0.0)))
    cells = [
        [
            first.module or ROOT,
            first.kind,
            values_phrase(row),
            _magnitude(row.largest),
            _reach(headroom(row, "fp16")),
            format_share(outputs.flushed),
            format_share(outputs.subnormal),
            *([_reach(headroom(row, "bf16"))] if second else []),
            _would(predictions),
        ]
        for first, row, outputs, predictions in known
    ]
    headers = ["module", "kind", "values", "largest", "of fp16", "flushed", "subnormal"]
    headers += [*(["of bf16"] if second else []), "fp16 would"]
    note = "of each module; flushed, subnormal: the shares of its outputs in fp16; nearly: within a factor "
    note += f"{MARGIN} of it"
    return [Block("Largest values", headers, cells, note, numbers=headers[3:-1])] if cells else []


def gradients(found: RangePass, everything: bool = False) -> list[Block]:  # noqa: ARG001 - as the other tables
    """Return the loss scales that keep gradients finite and lose the fewest."""
    cells = [
        [dtype, scale_range(scales) if scales.needed else NO_SCALE, format_share(scales.flushed),
         format_share(scales.unscaled), scales.limiting or ROOT]
        for dtype in FORMATS
        if (scales := usable_scales(found.magnitudes, dtype)) is not None
    ]  # fmt: skip
    headers = ["dtype", "loss scale", "flushed", "unscaled", "largest gradient in"]
    note = "flushed: the share of gradients that are zero at these scales, the best ones; unscaled: at a scale of 1"
    return [Block("Gradients and loss scales", headers, cells, note, numbers=headers[1:-1])] if cells else []


def updates(found: RangePass, everything: bool = False) -> list[Block]:
    """Return the parameters of which values would not move where they are stored in a low dtype: rounding undoes it."""
    parameters: dict[str, dict[str, Swallowed]] = {}
    for row in found.swallowed:
        parameters.setdefault(row.parameter, {})[row.dtype] = row
    known = [(name, rows, {dtype: _lost(rows.get(dtype)) for dtype in FORMATS}) for name, rows in parameters.items()]
    if not everything:
        known = [each for each in known if any(each[2].values())]
        known.sort(key=lambda each: tuple(-(each[2][dtype] or 0.0) for dtype in FORMATS))
    cells = [
        [name, f"{max(row.moved for row in rows.values()):,}", *(format_share(lost[dtype]) for dtype in FORMATS)]
        for name, rows, lost in known
    ]
    headers = ["parameter", "moved", *(f"in {dtype}" for dtype in FORMATS)]
    note = (
        "the share of the values that steps moved in fp32 and would not move where they are stored in the dtype; "
        "how much of the update arrives is `kept` of ampbench run"
    )
    return [Block("Weights that would not move", headers, cells, note, numbers=headers[1:])] if cells else []


def failed_predictions(found: RangePass, everything: bool = False) -> list[Block]:  # noqa: ARG001
    """Return what was predicted and not seen, or seen and not predicted."""
    cells = [
        [low.precision, row.module or ROOT, row.kind, what, said or ("near" if near else "no"),
         "yes" if happened else "no", format_share(foretold), format_share(share), format_error(row.own_rel_l2)]
        for low in found.low_runs
        for row in predicted_and_seen(found, low)
        for now in [row.predicted]
        for what, said, near, happened, foretold, share in (
            ("overflow", now.overflows, now.near_overflow, row.overflow_seen, now.overflow_share, row.overflow_share),
            ("flushing", now.flushes, now.near_flush, row.flush_seen, now.flush_share, row.flush_share),
        )
        if happened is not None and bool(said) != happened
    ]  # fmt: skip
    headers = ["precision", "module", "kind", "what", "was predicted", "was seen", "predicted", "seen", "own"]
    note = f"was predicted: which of its values said so (near: within a factor {MARGIN}); predicted: the share of "
    note += f"these, else of its outputs; seen: the share of its outputs, which is flushing from {FLUSHES:.0%}; "
    note += "own: its error on exact inputs"
    return [Block("Where predictions failed", headers, cells, note, numbers=headers[-3:])] if cells else []


def seen_gradients(found: RangePass, everything: bool = False) -> list[Block]:
    """Return the parameters whose gradients flush or overflow in a low precision."""
    cells = [
        [low.precision, row.parameter, f"{row.elements:,}", format_share(row.predicted), format_share(row.seen),
         f"{row.nonfinite:,}"]
        for low in found.low_runs
        for row in predicted_gradients(found, low).rows
        if everything or (not forward_overflows(low) and (row.seen or row.predicted or row.nonfinite))
    ]  # fmt: skip
    headers = ["precision", "parameter", "elements", "predicted", "seen", "not finite"]
    note = "predicted, seen: the share that flushes to zero"
    return [Block("Gradients in the low precisions", headers, cells, note, numbers=headers[2:])] if cells else []


def errors(found: OriginPass, everything: bool = False) -> list[Block]:
    """Return the modules with their errors, those first to keep in fp32; with `everything` in the order of running."""
    rows = placed(found)
    if not everything:
        known = {row[1].module: row for row in rows}
        rows = [known[each.module] for each in ranked(found.modules)]
    title = "Modules in the order of running" if everything else "Modules that err most by themselves"
    note = "own: on exact inputs; total: in the whole run; inherited: what of it came with the inputs"
    return [table(title, ERRORS, rows, note)] if rows else []


def _outputs(rows: Sequence[Magnitudes]) -> Headroom:
    """Return how the outputs of a module fit into fp16."""
    return next((headroom(row, "fp16") for row in rows if row.what == ACTIVATION), Headroom())


def _harmless(prediction: Prediction) -> tuple[bool, ...]:
    return (
        not prediction.overflows, not prediction.flushes, not prediction.near_overflow, not prediction.near_flush,
    )  # fmt: skip


def _would(predictions: dict[str, Prediction]) -> str:
    """Return "overflow, nearly flush": what is predicted in fp16, or near, and what in bf16, too."""
    first, second = predictions["fp16"], predictions["bf16"]
    events = (
        _event("overflow", first.overflows, first.near_overflow, second.overflows, second.near_overflow),
        _event("flush", first.flushes, first.near_flush, second.flushes, second.near_flush),
    )
    return ", ".join(filter(None, events))


def _event(what: str, here: str, near_here: str, there: str, near_there: str) -> str:
    """Return "nearly overflow (bf16, too)": what is said of fp16, and of bf16 in brackets."""
    first, second = (what if sure else f"nearly {what}" if near else "" for sure, near in
                     ((here, near_here), (there, near_there)))  # fmt: skip
    if not second:
        return first
    return f"{first} (bf16, too)" if first == second else f"{first} (bf16 {second})" if first else f"bf16 {second}"


def _lost(row: Swallowed | None) -> float | None:
    return row.swallowed / row.moved if row is not None and row.moved else None


def _reach(found: Headroom) -> str:
    """Return the share of a format's largest number, or how many times it."""
    return f"{format_times(found.reach)}x" if found.reach is not None and found.reach > 1 else format_share(found.reach)


def _magnitude(value: float | None) -> str:
    if value is None:
        return UNDEFINED
    return f"{value:,.0f}" if 1000 <= value < 1e6 else f"{value:.3g}"


def _line(text: str) -> Block:
    """Return a line of text as a sentence; a name that it begins with, "fp16: ", keeps its first letter."""
    name, colon, _ = text.partition(":")
    named = colon and " " not in name
    return Block(f"{text.removesuffix('.')}." if named else as_sentence(text))


def _notes(found: RangePass) -> list[Block]:
    """Return what could not be checked in each low precision, and the remarks of passes."""
    notes = list(found.notes)
    for low in found.low_runs:
        left = unchecked_said(predicted_and_seen(found, low))
        notes += [f"{low.precision}: {note}" for note in [*([left] if left else []), *low.notes]]
    return [_line(note) for note in notes]


LOW, HIGH = 0.001, 0.999
"""A bar spans the values between these quantiles of those that are not zero."""
FITS = "largest value"
OVERFLOWS = "largest value, overflows fp16"
FLUSHING = f"{FLUSHES:.0%} or more become zero in fp16"
SEEN = "overflowed when run in fp16"
NONFINITE = "not finite in fp32"
_MAGNITUDE_LOOKS = {
    FITS: ("--ink", "circle"),
    OVERFLOWS: ("--regressed", "triangle-up"),
    FLUSHING: ("--inconclusive", "triangle-down"),
    SEEN: ("--regressed", "cross"),
    NONFINITE: ("--incomparable", "diamond"),
}
"""Colour and shape of each point."""
_MARKS = ("peak_kind", "low_kind", "top_kind")
_FP16, _BF16 = FORMATS["fp16"], FORMATS["bf16"]
_NEAR = 32
"""The limits of bf16 are drawn where a value comes within so many powers of two."""
_MARGIN = 2.0
"""So many powers of two are drawn beyond what is there."""
_KINDS: Sequence[tuple[str, str, Container[bool]]] = (
    ("activations", ACTIVATION, (True, False)),
    ("gradients of outputs", GRADIENT, (False,)),
    ("gradients of parameters", GRADIENT, (True,)),
    ("weights", WEIGHT, (True, False)),
    ("updates", UPDATE, (True, False)),
    ("inputs", INPUT, (True, False)),
)
"""The kinds of values that can be drawn: what they are, and whether they are of parameters."""


def _magnitude_rows(case: Told[RangePass]) -> dict[str, list[dict[str, Any]]]:
    """Return for each kind of values the modules that have any, then the limits and what lies beyond them."""
    seen = {
        row.module
        for low in case.found.low_runs
        if low.precision.startswith("fp16")
        for row in low.modules
        if row.overflowed and not row.inputs_overflowed
    }
    rows: dict[str, list[dict[str, Any]]] = {}
    for kind, what, of_parameters in _KINDS:
        values = {
            module: [row for row in found if row.what == what and bool(row.name) in of_parameters]
            for module, found in by_module(case.found.magnitudes).items()
        }
        modules = [
            _magnitude_row(place, module, own, what == ACTIVATION and module in seen)
            for place, (module, own) in enumerate(item for item in values.items() if item[1])
        ]
        if any(row["peak"] is not None or row["top_kind"] == NONFINITE for row in modules):
            rows[kind] = _with_limits(thinned(modules, _tightness))
    return rows


def _magnitude_row(place: int, module: str, values: Sequence[Magnitudes], seen: bool) -> dict[str, Any]:
    """Return the values of one kind in a module as a row, in powers of two."""
    low, high, peak = quantile(values, LOW), quantile(values, HIGH), largest(values)
    fp16, bf16 = joint(values, "fp16"), joint(values, "bf16")
    return {
        "module": module or ROOT,
        "place": place,
        "class": values[0].kind,
        "low": math.log2(low) if low else None,
        "high": math.log2(high) if high else None,
        "peak": math.log2(peak) if peak else None,
        "peak_kind": None if not peak else OVERFLOWS if peak >= _FP16.overflow else FITS,
        "low_kind": FLUSHING if (fp16.flushed or 0.0) >= FLUSHES else None,
        "top_kind": NONFINITE if any(row.nonfinite for row in values) else SEEN if seen else None,
        "top": None,
        "largest": f"{peak:.4g}" if peak else UNDEFINED,
        "spread": f"{low:.2g} to {high:.2g}" if low and high else UNDEFINED,
        "fp16": _fitting(fp16),
        "bf16": _fitting(bf16),
        "limit": None,
        "text": None,
        "band": None,
    }


def _tightness(row: Mapping[str, Any]) -> float:
    """Return how much a module has to do with the limits of fp16: what comes first where not all can be drawn."""
    if row["peak"] is None:
        return math.inf if row["top_kind"] == NONFINITE else -math.inf
    beyond = row["peak_kind"] == OVERFLOWS or row["low_kind"] or row["top_kind"] == NONFINITE
    return (1e6 if beyond else 0.0) + float(row["peak"])


def _with_limits(modules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of modules, then those of the formats' limits and of what lies beyond fp16's."""
    lowest = min([*(row["low"] for row in modules if row["low"] is not None), _FP16.lowest - 11.0]) - _MARGIN
    highest = max([*(row["peak"] for row in modules if row["peak"] is not None), 16.0]) + _MARGIN
    for row in modules:
        row["top"] = highest - _MARGIN / 2 if row["top_kind"] else None
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
    empty = dict.fromkeys(modules[0])
    bands = (("overflow", math.log2(_FP16.overflow), highest), ("flush", lowest, math.log2(_FP16.flush)))
    return [
        *modules,
        *({**empty, "limit": place, "text": text} for place, text in limits),
        *({**empty, "band": band, "low": low, "high": high} for band, low, high in bands),
    ]


def _fitting(found: Headroom) -> str:
    """Return "up to 7.7% of what it holds; 0.02% become zero"."""
    if found.reach is None:
        return UNDEFINED
    reach = f"{found.reach:.2g} times" if found.reach > 1 else f"{format_share(found.reach)} of"
    lost = f"; {format_share(found.flushed)} become zero" if found.flushed else ""
    return f"up to {reach} what it holds{lost}"


def _magnitude_spec(rows: Rows) -> dict[str, Any]:
    x = modules_axis(rows)
    y = {
        "type": "quantitative",
        "title": "magnitude, in powers of two (log scale)",
        "axis": {"labelExpr": "'2^' + datum.value", "tickMinStep": 1, "tickCount": 8, "minExtent": 46},
        "scale": {"zero": False, "nice": False},
    }
    told = tooltip(
        module="module", **{"class": "kind"}, largest="largest", spread="most values", fp16="fp16", bf16="bf16"
    )
    drawn = {row[field] for row in rows for field in _MARKS}
    names = [name for name in _MAGNITUDE_LOOKS if name in drawn]

    def points(field: str, place: str) -> dict[str, Any]:
        small = {"condition": {"test": f"datum.{field} == '{FITS}'", "value": 28}, "value": 60}
        looks = looks_encoded(field, names, _MAGNITUDE_LOOKS, columns=2, columnPadding=40, labelLimit=260)
        return {
            "transform": [{"filter": f"isValid(datum.{field})"}],
            "mark": {"type": "point", "opacity": 1},
            "encoding": {"size": small, "x": x, "y": {**y, "field": place}, **looks, "tooltip": told},
        }

    def bar(low: str, high: str, **mark: Any) -> dict[str, Any]:
        return {
            "transform": [{"filter": "isValid(datum.module) && isValid(datum.low)"}],
            "mark": {"color": "var(--faint)", **mark},
            "encoding": {"x": x, "y": {**y, "field": low}, "y2": {"field": high}, "tooltip": told},
        }

    colours = {"domain": ["overflow", "flush"], "range": ["var(--regressed-back)", "var(--inconclusive-back)"]}
    bands = {
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
    width = {"expr": "max(1, min(14, 0.7 * bandwidth('x')))"}
    return {
        "layer": [
            bands,
            bar("low", "high", type="bar", width=width, opacity=0.75),
            bar("high", "peak", type="rule"),
            points("peak_kind", "peak"),
            points("low_kind", "low"),
            points("top_kind", "top"),
            *limit_layers("y", y),
        ]
    }


_MAGNITUDES = Drawing(
    name="explanation-magnitudes",
    title="Magnitudes in fp32 against what fp16 and bf16 hold",
    alt=f"Bars span the magnitudes of a module's values from the {format_share(LOW)} to the {format_share(HIGH)} "
    "quantile of those that are not zero, thin lines go on to the largest; gradients are without a loss scale. Shaded "
    "is what overflows fp16 or becomes zero in it. The limits of bf16 are drawn where values come near. Of more than "
    f"{MODULES} modules, those nearest to the limits are drawn.",
    rows=_magnitude_rows,
    spec=_magnitude_spec,
    height=340,
    marked=_MARKS,
)


def headroom_part(held: Held[RangePass]) -> Part | None:
    """Return the cases whose magnitudes were looked at, those with the largest values first."""
    found = sorted(held.told, key=_largest, reverse=True)
    return told_part(
        held,
        found,
        lambda one: headroom_section(one.case, one.found, shorten=cut),
        id="headroom",
        title="Headroom",
        caption="What fp16 and bf16 would make of the values of each case, those with the largest values first",
        verb="Looked at",
        said=of_several(found, lambda one: _largest(one) >= _FP16.overflow, "would have values overflow in fp16"),
        drawings=[_MAGNITUDES],
        folding=["Gradients", "Weights that would not move"],
    )


def _largest(case: Told[RangePass]) -> float:
    return max((row.largest for row in case.found.magnitudes if row.largest is not None), default=0.0)


OWN, INHERITED, TOTAL = "own", "inherited", "total"
OVERFLOWING, INPUTS_OVERFLOW = "overflows", "inputs overflow"
_ERROR_LOOKS = {
    TOTAL: ("--ink", "square"),
    OWN: ("--link", "circle"),
    OVERFLOWING: ("--regressed", "triangle-up"),
    INPUTS_OVERFLOW: ("--inconclusive", "triangle-down"),
}
"""Colour and shape of what is drawn."""


def _error_rows(case: Told[OriginPass]) -> dict[str, list[dict[str, Any]]]:
    """Return the modules that err most by themselves, in their order; none where no module has an error."""
    modules = case.found.modules
    if not any(row.elements or row.total_rel_l2 is not None for row in modules):
        return {}
    places = {row.module: place for place, row in enumerate(ranked(modules))}
    kept = thinned(placed(case.found), lambda row: -places.get(row[1].module, len(places)))
    return {"": [_error_row(*row) for row in kept]}


def _error_row(place: int, seen: ModuleError) -> dict[str, Any]:
    inherited = seen.inherited
    mark = (INPUTS_OVERFLOW if seen.inputs_overflowed else OVERFLOWING) if seen.overflowed else None
    # no difference of two errors that are nearly equal
    certain = inherited is not None and inherited > (seen.total_rel_l2 or 0.0) / 10
    return {
        "module": seen.module or ROOT,
        "place": place,
        "class": seen.kind,
        OWN: seen.own_rel_l2 or None,
        INHERITED: inherited if certain else None,
        TOTAL: seen.total_rel_l2 or None,
        "total_kind": TOTAL if seen.total_rel_l2 else None,
        "own_kind": OWN if seen.own_rel_l2 else None,
        "mark": mark,
        "own_text": format_error(seen.own_rel_l2),
        "inherited_text": format_error(inherited),
        "total_text": format_error(seen.total_rel_l2),
        "overflow": f"{seen.overflowed:,} of {seen.elements:,}" if seen.overflowed else "none",
        "note": seen.note or None,
    }


_ERROR_MARKS = ("total_kind", "own_kind", "mark")


def _error_spec(rows: Rows) -> dict[str, Any]:
    drawn = {row[field] for row in rows for field in _ERROR_MARKS}
    names = [name for name in _ERROR_LOOKS if name in drawn]
    x = modules_axis(rows)
    y = {
        "type": "quantitative",
        "title": "relative L2 error against fp32 (log scale)",
        "scale": {"type": "log", "padding": 12, "nice": False},
        "axis": {"format": ".0e", "tickCount": 5, "minExtent": 40},
    }
    told = tooltip(
        module="module",
        **{"class": "kind"},
        own_text="own error",
        inherited_text="inherited",
        total_text="total",
        overflow="outputs that overflow",
        note="note",
    )

    def line(name: str, **style: Any) -> dict[str, Any]:
        return {
            "transform": [{"filter": f"isValid(datum.{name})"}],
            "mark": {"type": "line", "color": "var(--ink)", **style},
            "encoding": {"x": x, "y": {**y, "field": name}},
        }

    def points(field: str, size: int, place: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "transform": [{"filter": f"isValid(datum.{field})"}],
            "mark": {"type": "point", "size": size, "opacity": 1},
            "encoding": {"x": x, "y": place, **looks_encoded(field, names, _ERROR_LOOKS, columns=2), "tooltip": told},
        }

    lines = [
        *([line(TOTAL, strokeWidth=1), points("total_kind", 20, {**y, "field": TOTAL})] if TOTAL in drawn else []),
        *([line(INHERITED, strokeWidth=1.5, strokeDash=[4, 3])] if any(row[INHERITED] for row in rows) else []),
        *([points("own_kind", 20, {**y, "field": OWN})] if OWN in drawn else []),
    ]
    return {"layer": [*lines, points("mark", 70, {"value": 6})]}


_ERRORS = Drawing(
    name="explanation-origins",
    title="Errors by module",
    alt="Own errors are those that a module makes of exact inputs; total ones, the solid line, are those of the whole "
    "run. Inherited, the dashed line, is the part of these that came with its inputs, where that is over a tenth of "
    "the total; errors of different modules add in squares. A module that makes no error has no point. Of more than "
    f"{MODULES} modules, those that err most by themselves are drawn.",
    rows=_error_rows,
    spec=_error_spec,
    height=320,
    marked=_ERROR_MARKS,
)


def origin_part(held: Held[OriginPass]) -> Part | None:
    """Return the cases the origin of whose errors was looked for, those that overflow or err most first."""

    def badness(case: Told[OriginPass]) -> tuple[int, float]:
        return sum(row.overflowed > 0 for row in case.found.modules), case.found.output_rel_l2 or 0.0

    return told_part(
        held,
        sorted(held.told, key=badness, reverse=True),
        lambda one: origin_section(one.case, one.found, shorten=cut),
        id="origin",
        title="Where errors begin",
        caption="Errors against fp32 by case, those that overflow or err most first",
        verb="Looked at",
        drawings=[_ERRORS],
    )

"""Headroom and origin, for people and as frames.

What passes of headroom and origin say, as blocks of text for a terminal, a Markdown page, anything.

Numbers without a value are "–". Long tables end after the rows that say most, unless all are asked for.

Passes as frames: magnitudes with what they leave of each low format, predictions against what was seen, errors.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from ampbench.base.precisions import FORMATS
from ampbench.base.units import UNDEFINED, counted, format_error, format_share
from ampbench.instruments.cases import document_of_cases, frame_rows
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
from ampbench.present.document import Block, Document, Section, as_sentence, first_rows
from ampbench.records.case import Case
from ampbench.records.labels import case_title
from ampbench.records.magnitudes import (
    FLUSHES,
    MARGIN,
    ROOT,
    Headroom,
    Prediction,
    by_running_module,
    format_times,
    headroom,
    predict,
    scale_range,
    usable_scales,
    values_phrase,
)
from ampbench.records.ranges import (
    ACTIVATION,
    UPDATE,
    Magnitudes,
    ModuleError,
    OriginPass,
    RangePass,
    Swallowed,
    layer_profile,
    ranked,
)
from ampbench.store import StoredRun


def headroom_document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False) -> Document:
    """Return how large the values of the cases `case_ids` were, and what low precisions made of them.

    A flat row is what was counted of a module; nested data have these and, beside them, what was predicted and seen.
    """
    return document_of_cases(
        stored, case_ids, stored.of(RangePass),
        section=lambda case, found: headroom_section(case, found, everything=everything),
        data=_headroom_data,
        columns=HEADROOM_COLUMNS,
        rows=lambda found: frame_rows(headroom_frame(found)),
    )  # fmt: skip


def _headroom_data(case: Case, found: RangePass) -> dict[str, Any]:  # noqa: ARG001 - as of all documents
    return {
        "sentences": [*headroom_said(found), *validated_said(found), *arithmetic_said(found)],
        "tables": {"values": frame_rows(headroom_frame(found)), "seen": frame_rows(seen_frame(found))},
        "headroom": asdict(found),
    }


def origin_document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False) -> Document:
    """Return where the errors of the cases `case_ids` began, a flat row for each module."""
    return document_of_cases(
        stored, case_ids, stored.of(OriginPass),
        section=lambda case, found: origin_section(case, found, everything=everything),
        data=_origin_data,
        columns=ORIGIN_COLUMNS,
        rows=lambda found: frame_rows(origin_frame(found)),
    )  # fmt: skip


def _origin_data(case: Case, found: OriginPass) -> dict[str, Any]:  # noqa: ARG001 - as of all documents
    return {
        "sentences": origin_said(found),
        "tables": {"modules": frame_rows(origin_frame(found))},
        "origin": asdict(found),
    }


SHOWN = 12
"""So many rows are shown unless all are asked for."""

_WORTH_A_COLUMN = 0.01
"""The share of its largest number from which a format is told of beside the first."""


NO_SCALE = "none needed"

HANDED = "given inf"
"""What is said of a module whose inputs are not finite in the low dtype."""


def headroom_section(case: Case, found: RangePass, *, everything: bool = False) -> Section:
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
        blocks += [block if everything else first_rows(block, SHOWN) for block in make(found, everything)]
    return Section(f"{case_title(case)} · {steps}", [*blocks, *_notes(found)])


GRADIENTS_ELSEWHERE = (
    "these are values of the forward pass; of gradients, `ampbench run` finds the parameter that errs most, and "
    "`ampbench show RUN --case CASE` names it"
)


def origin_section(case: Case, found: OriginPass, *, everything: bool = False) -> Section:
    """Return where the error of a case begins; `everything`: all modules, in the order of running."""
    blocks = [_line(line) for line in origin_said(found)]
    blocks += [block if everything else first_rows(block, SHOWN) for block in errors(found, everything)]
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
    """Return the parameters whose updates would be lost to rounding where they are stored in a low dtype."""
    parameters: dict[str, dict[str, Swallowed]] = {}
    for row in found.swallowed:
        if row.on_grid:
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
    note = "the share of the values that steps moved in fp32 and would not move where they are stored in the dtype"
    return [Block("Updates that would be lost", headers, cells, note, numbers=headers[1:])] if cells else []


def failed_predictions(found: RangePass, everything: bool = False) -> list[Block]:  # noqa: ARG001
    """Return what was predicted and not seen, or seen and not predicted."""
    cells = [
        [low.precision, row.module or ROOT, row.kind, what, said or ("near" if near else "no"),
         "yes" if happened else "no", *map(format_share, shares), format_error(row.own_rel_l2)]
        for low in found.low_runs
        for row in predicted_and_seen(found, low)
        for what, said, near, happened, shares in (
            ("overflow", row.overflow_predicted, row.overflow_near, row.overflow_seen, row.overflow_shares),
            ("flushing", row.flush_predicted, row.flush_near, row.flush_seen, row.flush_shares),
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
    places = {row.module: place for row, place in zip(found.modules, layer_profile(found.modules), strict=True)}
    rows = found.modules if everything else ranked(found.modules)
    noted = any(row.note or row.inputs_overflowed for row in rows)
    cells = []
    for row in rows:
        place = places[row.module]
        numbers = [format_error(error) for error in (place.own, place.total, place.inherited)]
        said = [row.note or (HANDED if row.inputs_overflowed else "")] if noted else []
        cells.append([f"{place.place}", row.module or ROOT, row.kind, *numbers, *_events(row), *said])
    headers = ["#", "module", "kind", "own", "total", "inherited", "overflowed", "flushed"]
    title = "Modules in the order of running" if everything else "Modules that err most by themselves"
    note = "own: on exact inputs; total: in the whole run; inherited: what of it came with the inputs"
    numbers = [headers[0], *headers[3:]]
    headers += ["remark"] if noted else []
    return [Block(title, headers, cells, note, numbers=numbers)] if cells else []


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


def _events(row: ModuleError) -> list[str]:
    """Return the shares of a module's outputs that overflow and that flush."""
    if not row.elements:
        return [UNDEFINED, UNDEFINED]
    return [format_share(row.overflowed / row.elements), format_share(row.flushed / row.elements)]


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


_SHARES = ("reach", "overflow", "flushed", "subnormal", "swallowed")
_FITS = [f"{dtype}_{share}" for dtype in FORMATS for share in _SHARES]
HEADROOM_COLUMNS = ["module", "kind", "what", "name", "elements", "zeros", "nonfinite", "largest", *_FITS]
ORIGIN_COLUMNS = [
    "place", "module", "kind", "elements", "own_rel_l2", "total_rel_l2", "inherited", "overflowed", "flushed",
    "inputs_overflowed", "sampled", "note",
]  # fmt: skip


def headroom_frame(found: RangePass) -> pd.DataFrame:
    """Return a row per record of magnitudes: what an fp32 run had, and how it fits into each low format.

    Columns: module, kind, what, name, elements, zeros, nonfinite, largest; then for each dtype, "fp16" and "bf16":
    `fp16_reach` (the largest value over the format's), `fp16_overflow`, `fp16_flushed`, `fp16_subnormal` (shares of
    the finite values) and, of updates, `fp16_swallowed` (the share that changes nothing where the parameter is stored
    in the dtype). NaN where undefined.
    """
    kept = [row for row in found.swallowed if row.moved and row.on_grid]
    lost = {(row.parameter, row.dtype): row.swallowed / row.moved for row in kept}
    rows: list[list[Any]] = []
    for values in found.magnitudes:
        row: list[Any] = [values.module, values.kind, values.what, values.name, values.elements, values.zeros]
        row += [values.nonfinite, values.largest]
        for dtype in FORMATS:
            fits = headroom(values, dtype)
            swallowed = lost.get((values.name, dtype)) if values.what == UPDATE else None
            row += [fits.reach, fits.overflow, fits.flushed, fits.subnormal, swallowed]
        rows.append(row)
    frame = pd.DataFrame(rows, columns=HEADROOM_COLUMNS)
    return frame.astype({"largest": float} | dict.fromkeys(_FITS, float))


def seen_frame(found: RangePass) -> pd.DataFrame:
    """Return a row per low precision and module: what was predicted of it, what was seen.

    Columns: precision, then those of `Outcome` without the shares. `overflow_seen` and `flush_seen` are True,
    False or None.
    """
    rows = [
        [low.precision, one.module, one.kind, one.overflow_predicted, one.overflow_seen, one.flush_predicted,
         one.flush_seen, one.overflow_near, one.flush_near, one.own_rel_l2, one.note]
        for low in found.low_runs
        for one in predicted_and_seen(found, low)
    ]  # fmt: skip
    columns = ["precision", "module", "kind", "overflow_predicted", "overflow_seen", "flush_predicted", "flush_seen"]
    frame = pd.DataFrame(rows, columns=[*columns, "overflow_near", "flush_near", "own_rel_l2", "note"], dtype=object)
    return frame.astype({"own_rel_l2": float})


def origin_frame(found: OriginPass) -> pd.DataFrame:
    """Return a row per module in the order of running: its own, total and inherited error, and what is beside these.

    Columns: place, module, kind, elements, own_rel_l2, total_rel_l2, inherited, overflowed, flushed,
    inputs_overflowed, sampled, note. NaN where an error is undefined.
    """
    rows = [
        [place.place, row.module, row.kind, row.elements, place.own, place.total, place.inherited, row.overflowed,
         row.flushed, row.inputs_overflowed, row.sampled, row.note]
        for place, row in zip(layer_profile(found.modules), found.modules, strict=True)
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=ORIGIN_COLUMNS)
    return frame.astype(dict.fromkeys(["own_rel_l2", "total_rel_l2", "inherited"], float))

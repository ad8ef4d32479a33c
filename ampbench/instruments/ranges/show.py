"""Which values leave the range of half precision, and where errors begin: the documents of headroom and origin.

Numbers without a value are "–". Long tables end after the rows that say most, unless all are asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any, NamedTuple

from ampbench.base.precisions import FORMATS
from ampbench.base.units import UNDEFINED, counted, format_error, format_share
from ampbench.instruments.cases import document_of_cases
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
from ampbench.present.document import Block, Column, Document, Section, as_sentence, first_rows, records, table
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
    ProfileRow,
    RangePass,
    Swallowed,
    layer_profile,
    ranked,
)
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


class Erring(NamedTuple):
    """The errors of a module, and its place in the order of running."""

    seen: ModuleError
    profile: ProfileRow


def _of_outputs(what: str) -> Callable[[Erring], str]:
    """Return a function to the share of a module's outputs of which something is true."""
    return lambda row: format_share(getattr(row.seen, what) / row.seen.elements if row.seen.elements else None)


ERRORS: Sequence[Column[Erring]] = (
    Column("place", lambda row: row.profile.place, "#", "whole", lambda row: f"{row.profile.place}"),
    Column("module", lambda row: row.seen.module, "module", said=lambda row: row.seen.module or ROOT),
    Column("kind", lambda row: row.seen.kind, "kind"),
    Column("elements", lambda row: row.seen.elements),
    Column("own_rel_l2", lambda row: row.profile.own, "own", "error"),
    Column("total_rel_l2", lambda row: row.profile.total, "total", "error"),
    Column("inherited", lambda row: row.profile.inherited, "inherited", "error"),
    Column("overflowed", lambda row: row.seen.overflowed, "overflowed", "share", _of_outputs("overflowed")),
    Column("flushed", lambda row: row.seen.flushed, "flushed", "share", _of_outputs("flushed")),
    Column("inputs_overflowed", lambda row: row.seen.inputs_overflowed),
    Column("sampled", lambda row: row.seen.sampled),
    Column(
        "note", lambda row: row.seen.note, "remark",
        said=lambda row: row.seen.note or (HANDED if row.seen.inputs_overflowed else ""), rare=True,
    ),
)  # fmt: skip
"""Of a module: its own, total and inherited error, what overflowed and was flushed, and what is beside these."""


def erring(found: OriginPass) -> list[Erring]:
    """Return the modules of a pass in the order of running."""
    return [Erring(*both) for both in zip(found.modules, layer_profile(found.modules), strict=True)]


def seen_rows(found: RangePass) -> list[dict[str, Any]]:
    """Return a row per low precision and module: `Outcome` without the shares, what was predicted and what was seen."""
    told = [(low.precision, asdict(one)) for low in found.low_runs for one in predicted_and_seen(found, low)]
    return [
        {"precision": precision} | {name: value for name, value in one.items() if not name.endswith("_shares")}
        for precision, one in told
    ]


def headroom_document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False) -> Document:
    """Return how large the values of the cases `case_ids` were, and what low precisions made of them.

    A flat row is what was counted of a module; nested data have these and, beside them, what was predicted and seen.
    """
    return document_of_cases(
        stored, case_ids, stored.of(RangePass),
        section=lambda case, found: headroom_section(case, found, everything=everything),
        data=_headroom_data,
        columns=VALUES,
        rows=fits,
    )  # fmt: skip


def _headroom_data(case: Case, found: RangePass) -> dict[str, Any]:  # noqa: ARG001 - as of all documents
    return {
        "sentences": [*headroom_said(found), *validated_said(found), *arithmetic_said(found)],
        "tables": {"values": records(VALUES, fits(found)), "seen": seen_rows(found)},
        "headroom": asdict(found),
    }


def origin_document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False) -> Document:
    """Return where the errors of the cases `case_ids` began, a flat row for each module."""
    return document_of_cases(
        stored, case_ids, stored.of(OriginPass),
        section=lambda case, found: origin_section(case, found, everything=everything),
        data=_origin_data,
        columns=ERRORS,
        rows=erring,
    )  # fmt: skip


def _origin_data(case: Case, found: OriginPass) -> dict[str, Any]:  # noqa: ARG001 - as of all documents
    return {
        "sentences": origin_said(found),
        "tables": {"modules": records(ERRORS, erring(found))},
        "origin": asdict(found),
    }


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
    rows = erring(found)
    if not everything:
        known = {row.seen.module: row for row in rows}
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

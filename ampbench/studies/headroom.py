"""How near an fp32 run's values are to what fp16 and bf16 hold, what that foretells, and whether it came true."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec import structs

from ampbench.core.precisions import BASELINE, FORMATS, LOW, SHORT_DTYPES, find_precision
from ampbench.core.statement import Severity, Statement, state
from ampbench.core.units import counted
from ampbench.errors import NothingToRunError
from ampbench.records.case import Case, Environment, matches
from ampbench.records.kinds import HEADROOM
from ampbench.records.labels import few, optimizer_name
from ampbench.records.ranges import (
    ACTIVATION,
    GRADIENT,
    INPUT,
    ROOT,
    UPDATE,
    WEIGHT,
    LowRun,
    Magnitudes,
    RangePass,
    RangesAsked,
    format_scale,
)
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Task
from ampbench.show.charts import MODULES, Drawing, Rows, limit_layers, module_points, thinned, tooltip
from ampbench.show.document import Column
from ampbench.studies.predictions import (
    FLUSHES,
    FLUSHING,
    MARGIN,
    OVERFLOW,
    Events,
    Fit,
    GradientOutcome,
    Outcome,
    by_running_module,
    fit,
    flushed_together,
    habits_of,
    left_out,
    low_dtype,
    predict,
    predicted_and_seen,
    predicted_gradients,
    remarks_of,
    scores,
    telling,
    usable_scales,
    values_phrase,
    whole_step_seen,
)
from ampbench.studies.study import ONE_PHASE_HELP, Option, Selects, Session, Study, Table, View
from ampbench.workloads.index import LIBRARIES

if TYPE_CHECKING:
    from ampbench.drive.pieces import Piece, Seen
    from ampbench.drive.planning import PlannedCase
    from ampbench.drive.servers import Channel
    from ampbench.show.studies import Subject

T = TypeVar("T")
_NEAR = 0.001
"""The share of a format's largest number below which no value is called near it."""


class Headroom(StrEnum):
    """What fp32's values say of a low format, and what became of that in a low precision."""

    NOTHING = "headroom-nothing"
    OVERFLOWS = "headroom-overflows"
    FITS = "headroom-fits"
    """No module would overflow."""
    FLUSHES = "headroom-flushes"
    NEAR = "headroom-near"
    NO_GRADIENT = "headroom-no-gradient"
    FLUSHING_ANYHOW = "headroom-flushing-anyhow"
    """No loss scale saves the gradients that flush."""
    UNSCALED = "headroom-unscaled"
    SCALE = "headroom-scale"
    SWALLOWED = "headroom-swallowed"
    STRANGE = "headroom-strange"
    """Values are not finite in fp32."""
    RAISED = "headroom-raised"
    STORED = "headroom-stored"
    """Weights overflow as they are stored."""
    FIRST = "headroom-first"
    NONFINITE = "headroom-nonfinite"
    FINITE = "headroom-finite"
    UNSEEN = "headroom-unseen"
    NOT_COMPARED = "headroom-not-compared"
    NONE = "headroom-none"
    SCORE = "headroom-score"
    """How many were predicted to overflow or flush, and how many did."""
    GRADIENTS = "headroom-gradients"
    UNCHECKED = "headroom-unchecked"
    OPTIMIZER = "headroom-optimizer"


def conclusions(_: Case, record: RangePass) -> Iterator[Statement]:
    """Yield what would overflow and flush in fp16 and bf16 and which loss scale serves, then what each precision did.

    Then what arithmetic knows of the optimizer.
    """
    modules = by_running_module(record.magnitudes)
    if not modules:
        yield state(Headroom.NOTHING)
    else:
        for dtype in FORMATS:
            yield from _of_dtype(record, modules, dtype)
        if strange := [row.module or ROOT for row in record.magnitudes if row.nonfinite]:
            yield state(Headroom.STRANGE, "fp32", Severity.INFO, names=few(strange))
    for low in record.low_runs:
        yield from _of_low_run(record, low)
    if record.recipe is not None:
        yield state(Headroom.OPTIMIZER, "", Severity.INFO, optimizer=optimizer_name(record.recipe))
        for dtype in FORMATS:
            for remark in [*remarks_of(record.recipe, dtype), *habits_of(dtype)]:
                yield replace(remark, subject=f"stored in {dtype}, by arithmetic alone")


def _of_dtype(record: RangePass, modules: Mapping[str, list[Magnitudes]], dtype: str) -> Iterator[Statement]:
    """Yield what pure half would do to the values of modules."""
    predictions = {name: predict(rows, dtype) for name, rows in modules.items()}
    overflowing = [name for name, row in predictions.items() if row[OVERFLOW].predicted]
    flushing = [name or ROOT for name, row in predictions.items() if row[FLUSHING].predicted]
    known = [row for name in overflowing or modules if (row := telling(modules[name])) is not None]
    worst = max(known, key=lambda row: row.largest or 0.0, default=None)
    reach = (fit(worst, dtype).reach if worst else None) or 0.0
    where: dict[str, Any] = (
        {"worst": worst.module or ROOT, "values": values_phrase(worst), "reach": reach} if worst else {}
    )
    if overflowing:
        yield state(Headroom.OVERFLOWS, dtype, count=len(overflowing), modules=len(modules), dtype=dtype, **where)
    else:
        near = where if reach >= _NEAR else {}
        yield state(Headroom.FITS, dtype, Severity.INFO, modules=len(modules), flush=int(not flushing), **near)
    if flushing:
        yield state(Headroom.FLUSHES, dtype, Severity.ADVICE, count=len(flushing), names=few(flushing))
    for event in (OVERFLOW, FLUSHING):
        if names := [name or ROOT for name, row in predictions.items() if row[event].near]:
            facts = {"names": few(names), "what": event}
            yield state(Headroom.NEAR, dtype, Severity.ADVICE, count=len(names), margin=MARGIN, **facts)
    yield from _scales(record, dtype)
    rows = [row for row in record.swallowed if row.dtype == dtype]
    if lost := sum(row.swallowed for row in rows):
        share = lost / sum(row.moved for row in rows)
        yield state(Headroom.SWALLOWED, dtype, Severity.ADVICE, dtype=dtype, share=share)


def _scales(record: RangePass, dtype: str) -> Iterator[Statement]:
    """Yield which loss scale keeps gradients finite and loses the fewest."""
    scales = usable_scales(record.magnitudes, dtype)
    if scales is None:
        if any(row.what == GRADIENT for row in record.magnitudes):
            yield state(Headroom.NO_GRADIENT, dtype, Severity.INFO)
    elif scales.needed:
        highest = format_scale(scales.highest) if scales.highest != scales.lowest else None
        facts = {"flushed": scales.flushed or None, "limiting": scales.limiting or ROOT}
        without = scales.unscaled if scales.unscaled != scales.flushed else None
        lowest = format_scale(scales.lowest)
        yield state(Headroom.SCALE, dtype, Severity.ADVICE, lowest=lowest, highest=highest, unscaled=without, **facts)
    elif scales.flushed:
        yield state(Headroom.FLUSHING_ANYHOW, dtype, Severity.ADVICE, flushed=scales.flushed)
    else:
        yield state(Headroom.UNSCALED, dtype, Severity.INFO)


def _of_low_run(record: RangePass, low: LowRun) -> Iterator[Statement]:
    """Yield what became of a whole step in a low precision, then of what had been predicted of it."""
    name, outcomes = low.precision, predicted_and_seen(record, low)
    gradients = predicted_gradients(record, low)
    nonfinite = sum(row.nonfinite > 0 for row in gradients)
    yield _whole_step(low)
    if not outcomes:
        yield state(Headroom.NOT_COMPARED, name, Severity.INFO)
    elif any(row.events[OVERFLOW].seen is not None for row in outcomes):
        yield from list(_scores(name, outcomes)) or [state(Headroom.NONE, name, Severity.INFO)]
    if gradients and not forward_overflows(low):
        scale = format_scale(low.scaler_scale) if low.scaler_scale is not None else None
        predicted, flushed = flushed_together(gradients)
        overflow = sum(row.overflows for row in gradients)
        facts = {"overflow": overflow, "nonfinite": nonfinite, "parameters": len(gradients)}
        known = facts if overflow or nonfinite else {}
        yield state(Headroom.GRADIENTS, name, Severity.INFO, scale=scale, predicted=predicted, seen=flushed, **known)
    left = [row.error.note for row in outcomes if row.events[OVERFLOW].seen is None]
    if left:
        counts = {"count": len(left), "modules": len(outcomes)}
        yield state(Headroom.UNCHECKED, name, Severity.INFO, reasons=left_out(left), **counts)


def _whole_step(low: LowRun) -> Statement:
    """Return how a whole step in a low precision ended."""
    name, turn, first = low.precision, low.nonfinite_output, low.first_nonfinite
    step = None if turn is None else turn + 1
    if low.error:
        return state(Headroom.RAISED, name, error=low.error)
    if low.overflowed_weights and (step is not None or first is None):
        names, count = few(low.overflowed_weights), len(low.overflowed_weights)
        return state(Headroom.STORED, name, names=names, count=count, dtype=low_dtype(name), step=step)
    if first is not None:
        return state(Headroom.FIRST, name, first=str(first))
    if step is not None:
        return state(Headroom.NONFINITE, name, step=step)
    return state(Headroom.FINITE if whole_step_seen(low) else Headroom.UNSEEN, name, Severity.INFO)


def forward_overflows(low: LowRun) -> bool:
    """Return whether a step makes a value that is not finite before it has gradients."""
    stored = bool(low.overflowed_weights) and low.nonfinite_output is not None
    return stored or (low.first_nonfinite is not None and low.first_nonfinite.phase == "forward")


def _scores(precision: str, outcomes: Sequence[Outcome]) -> Iterator[Statement]:
    """Yield of overflow and of flushing how often it was predicted and seen, where it was."""
    for event, score in scores(outcomes).items():
        wrong = score.false + score.missed
        if score.predicted or score.seen:
            facts: dict[str, Any] = {"predicted": score.predicted, "seen": score.seen}
            if wrong:
                facts |= {"wrong": wrong, "right": score.right, "false": score.false, "missed": score.missed}
                facts |= {"near": score.near or None}
            yield state(Headroom.SCORE, precision, Severity.ADVICE, event=event, **facts)


class Fits(NamedTuple):
    """Magnitudes, and how they fit into each low format."""

    values: Magnitudes
    formats: Mapping[str, Fit]


def _fit(dtype: str, share: str) -> Callable[[Fits], float | None]:
    return lambda row: getattr(row.formats[dtype], share)


VALUES: Sequence[Column[Fits]] = (
    *(
        Column(name, attrgetter(f"values.{name}"), "parameter" if name == "name" else "")
        for name in ("module", "kind", "what", "name", "elements", "zeros", "nonfinite", "largest")
    ),
    *(
        Column(f"{dtype}_{share}", _fit(dtype, share), f"in {dtype}" if share == "swallowed" else "", "share")
        for dtype in FORMATS
        for share in ("reach", "overflow", "flushed", "subnormal", "swallowed")
    ),
)
"""Of a record of magnitudes: what an fp32 run had, and for each dtype how it fits, "fp16_reach" and so on (`Fit`)."""


def fits(record: RangePass) -> list[Fits]:
    """Return the records of magnitudes, with how they fit into each low format."""
    lost = {(row.parameter, row.dtype): row.swallowed / row.moved for row in record.swallowed if row.moved}

    def fitted(values: Magnitudes, dtype: str) -> Fit:
        swallowed = lost.get((values.name, dtype)) if values.what == UPDATE else None
        return replace(fit(values, dtype), swallowed=swallowed)

    return [Fits(values, {dtype: fitted(values, dtype) for dtype in FORMATS}) for values in record.magnitudes]


def standing(record: RangePass) -> list[Fits]:
    """Return the updates of which rounding undoes a part, first those that lose most."""
    rows = [row for row in fits(record) if any(each.swallowed for each in row.formats.values())]
    return sorted(rows, key=lambda row: tuple(-(each.swallowed or 0.0) for each in row.formats.values()))


class Module(NamedTuple):
    """A module: its largest `values`, how its `outputs` fit into fp16, and what is predicted of it in each format."""

    module: str
    kind: str
    values: Magnitudes
    outputs: Fit
    predictions: Mapping[str, Events]


def modules(record: RangePass) -> list[Module]:
    """Return the modules with finite values, first those that would overflow in fp16, then those that would flush."""
    rows = []
    for name, values in by_running_module(record.magnitudes).items():
        if (worst := telling(values)) is not None:
            outputs = next((fit(row, "fp16") for row in values if row.what == ACTIVATION), Fit())
            predictions = {dtype: predict(values, dtype) for dtype in FORMATS}
            rows.append(Module(name, values[0].kind, worst, outputs, predictions))

    def harmless(row: Module) -> tuple[bool | float, ...]:
        events = row.predictions["fp16"].values()
        worst = (*(not event.predicted for event in events), *(not event.near for event in events))
        return *worst, -(row.values.largest or 0.0)

    return sorted(rows, key=harmless)


def _would(row: Module) -> str:
    """Return "overflow, nearly flush": what is predicted in fp16, or near, and in brackets in bf16."""
    said = []
    for name, what in ((OVERFLOW, "overflow"), (FLUSHING, "flush")):
        events = [row.predictions[dtype][name] for dtype in ("fp16", "bf16")]
        here, there = (what if event.predicted else f"nearly {what}" if event.near else "" for event in events)
        said.append(f"{here} (bf16{', too' if here == there else f' {there}'})".strip() if there else here)
    return ", ".join(filter(None, said))


MODULE_COLUMNS: Sequence[Column[Module]] = (
    Column("module", lambda row: row.module, "module", said=lambda row: row.module or ROOT),
    Column("kind", lambda row: row.kind, "kind"),
    Column("values", lambda row: values_phrase(row.values), "values"),
    Column("largest", lambda row: row.values.largest, "largest", "number"),
    Column("fp16_reach", lambda row: fit(row.values, "fp16").reach, "of fp16", "share"),
    Column("flushed", lambda row: row.outputs.flushed, "flushed", "share"),
    Column("subnormal", lambda row: row.outputs.subnormal, "subnormal", "share"),
    Column("would", _would, "fp16 would"),
)

Checked = tuple[str, Outcome]
"""A precision, and what was predicted and seen of a module in it."""


def seen(record: RangePass) -> list[Checked]:
    """Return what was predicted (near it, too) and what was seen of each module in each low precision."""
    return [(low.precision, row) for low in record.low_runs for row in predicted_and_seen(record, low)]


def failed(record: RangePass) -> list[Checked]:
    """Return what was predicted and not seen, or seen and not predicted."""
    return [row for row in seen(record) if any(event.failure for event in row[1].events.values())]


def _event_columns(event: str, key: str, outputs: str) -> list[Column[Checked]]:
    """Return the columns of an event whose names begin with `key`; `outputs`: what a module's outputs then are."""

    def share(row: Checked) -> float | None:
        error = row[1].error
        return getattr(error, outputs) / error.elements if error.elements else None

    def failure(row: Checked) -> str:
        return row[1].events[event].failure

    return [
        Column(f"{key}_predicted", lambda row: row[1].events[event].predicted, event, said=failure, rare=True),
        Column(f"{key}_near", lambda row: row[1].events[event].near),
        Column(f"{key}_seen", lambda row: row[1].events[event].seen),
        Column("", share, outputs, "share"),
    ]


SEEN: Sequence[Column[Checked]] = (
    Column("precision", lambda row: row[0], "precision"),
    Column("module", lambda row: row[1].error.module, "module", said=lambda row: row[1].error.module or ROOT),
    Column("kind", lambda row: row[1].error.kind, "kind"),
    *_event_columns(OVERFLOW, "overflow", "overflowed"),
    *_event_columns(FLUSHING, "flush", "flushed"),
    Column("own_rel_l2", lambda row: row[1].error.own_rel_l2, "own", "error"),
    Column("note", lambda row: row[1].error.note),
)
"""Of a module in a low precision: which of its values foretold an event or came near, and what was seen."""


def gradients(record: RangePass) -> list[tuple[str, GradientOutcome]]:
    """Return the parameters whose gradients flush or overflow in a low precision whose forward pass is finite."""
    return [
        (low.precision, row)
        for low in record.low_runs
        if not forward_overflows(low)
        for row in predicted_gradients(record, low)
        if row.seen or row.predicted or row.nonfinite
    ]


GRADIENTS: Sequence[Column[tuple[str, GradientOutcome]]] = (
    Column("precision", lambda row: row[0], "precision"),
    Column("parameter", lambda row: row[1].parameter, "parameter"),
    Column("elements", lambda row: row[1].elements, "elements", "whole"),
    Column("predicted", lambda row: row[1].predicted, "predicted", "share"),
    Column("seen", lambda row: row[1].seen, "seen", "share"),
    Column("nonfinite", lambda row: row[1].nonfinite, "not finite", "whole"),
)


def remarks(record: RangePass) -> list[str]:
    """Return what passes noted, each note of a low precision alone behind its name."""
    own = [(low.precision, note) for low in record.low_runs for note in low.notes if note not in record.notes]
    return [*record.notes, *(f"{precision}: {note}" for precision, note in own)]


FITTING, OVERFLOWING, NONFINITE = "largest value", "largest value, overflows fp16", "not all finite in fp32"
FLUSHED = f"largest value, {FLUSHES:.0%} or more become zero in fp16"
_LOOKS = {
    FITTING: ("--ink", "circle"),
    OVERFLOWING: ("--regressed", "triangle-up"),
    FLUSHED: ("--inconclusive", "triangle-down"),
    NONFINITE: ("--incomparable", "diamond"),
}
"""Colour and shape of each point."""
_KINDS = {
    ACTIVATION: "activations",
    GRADIENT: "gradients",
    WEIGHT: "weights",
    UPDATE: "updates",
    INPUT: "inputs",
}
"""The kinds of values that can be drawn."""


def _chart_rows(case: "Subject[RangePass]") -> dict[str, list[dict[str, Any]]]:
    """Return for each kind of values their largest, in powers of two, then the limits of fp16."""
    rows: dict[str, list[dict[str, Any]]] = {}
    places: dict[str, int] = {}
    for row in fits(case.found):
        values = row.values
        place = places.setdefault(values.module, len(places))
        if values.largest:
            fits_half = row.formats["fp16"]
            mark = OVERFLOWING if fits_half.overflow else FITTING
            mark = FLUSHED if (fits_half.flushed or 0.0) >= FLUSHES and mark == FITTING else mark
            drawn = {
                "module": values.module or ROOT,
                "place": place,
                "of": values.name or values.kind,
                "peak": math.log2(values.largest),
                "mark": NONFINITE if values.nonfinite else mark,
                "largest": f"{values.largest:.4g}",
                "limit": None,
                "text": None,
            }
            rows.setdefault(_KINDS[values.what], []).append(drawn)
    empty = dict.fromkeys(("module", "place", "of", "peak", "mark", "largest"))
    half = FORMATS["fp16"]
    limits = [
        {**empty, "limit": math.log2(half.largest), "text": f"{half.largest:g}: largest of fp16"},
        {**empty, "limit": float(half.lowest), "text": f"2^{half.lowest}: smallest normal of fp16"},
    ]
    return {kind: [*thinned(rows[kind], _worth), *limits] for kind in _KINDS.values() if kind in rows}


def _worth(row: Mapping[str, Any]) -> float:
    """Return how much values have to do with the limits of fp16: what is drawn where not all can be."""
    return (0.0 if row["mark"] == FITTING else 1e6) + float(row["peak"])


def _spec(rows: Rows) -> dict[str, Any]:
    y = {
        "type": "quantitative",
        "title": "magnitude, in powers of two (log scale)",
        "axis": {"labelExpr": "'2^' + datum.value", "tickMinStep": 1, "tickCount": 8, "minExtent": 46},
        "scale": {"zero": False, "nice": False},
    }
    told = tooltip(module="module", of="of", largest="largest")
    return {"layer": [*module_points(rows, {"mark": {**y, "field": "peak"}}, _LOOKS, told), *limit_layers(y)]}


def _plan(
    selection: Selection, _: RangesAsked, environment: Environment, channel: "Channel", settings: Settings
) -> "list[PlannedCase]":
    """Return the fp32 cases of a selection, whose precisions are those that are tried beside."""
    from ampbench.drive.planning import make_plan
    from ampbench.drive.session import describer

    asked = structs.replace(selection, precisions=[BASELINE])
    try:
        return make_plan(asked, environment, describer(channel, settings))
    except NothingToRunError as error:
        raise NothingToRunError(f"{error}, as all are of {BASELINE}: --precision says what is tried beside") from None


def _watch(session: Session[RangesAsked], channel: "Channel", piece: "Piece") -> "Seen":
    """Have a case run in fp32, then for a step in each low precision selected, by default all.

    What the device cannot run of these is told in the pass's notes.
    """
    from ampbench.drive.pieces import ask_case
    from ampbench.drive.planning import lack

    prepared, case = session.prepared, piece.planned.case
    able, notes = [], _phase_notes(case, prepared.selection)
    for row in dict.fromkeys(find_precision(name, case.device) for name in prepared.selection.precisions or LOW):
        device = prepared.environment.device(case.device)
        low = structs.replace(case, precision=row.name, input_dtype=SHORT_DTYPES[row.storage])
        if device and (lacking := lack(device, low, row)):
            notes.append(f"{row.name}: skipped: {lacking[0]}")
        else:
            able.append(row.name)
    asked = structs.replace(session.asked, precisions=able)
    found = ask_case(channel, piece.planned, prepared.settings, TASK, asked)
    return structs.replace(found, notes=[*found.notes, *notes]) if isinstance(found, RangePass) else found


def _phase_notes(case: Case, selection: Selection) -> list[str]:
    """Say why a case that was to be trained, if possible, is not."""
    from ampbench.drive.planning import FEATURES_ALONE, NOT_TRAINED

    trained = structs.replace(case, phase="training")
    if selection.phases or case == trained or not matches(selection.keyword, trained.case_id):
        return []
    why = FEATURES_ALONE if case.family in LIBRARIES else NOT_TRAINED
    return [f"watched in inference, so without gradients and updates: {why}"]


def _shown(
    title: str, key: str, columns: Sequence[Column[T]], rows: Callable[[RangePass], Sequence[T]], note: str
) -> Table[RangePass, T]:
    return Table(key=key, columns=columns, rows=rows, views=[View(title=title, note=note, shown=12)])


TABLES: Sequence[Table[RangePass, Any]] = (
    Table(key="values", columns=VALUES, rows=fits),
    _shown(
        "Largest values", "", MODULE_COLUMNS, modules,
        "of each module; flushed, subnormal: the shares of its outputs in fp16; nearly: within a factor "
        f"{MARGIN} of it",
    ),
    _shown(
        "Weights that would not move", "", VALUES, standing,
        "the share of the values that steps moved in fp32 and would not move where they are stored in the dtype; how "
        "much of the update arrives is `kept` of ampbench run",
    ),
    Table(key="seen", columns=SEEN, rows=seen),
    _shown(
        "Where predictions failed", "", SEEN, failed,
        "false: predicted of the values in brackets and not seen; missed: seen and not predicted; near: within a "
        f"factor {MARGIN}; overflowed, flushed: shares of its outputs, and it flushes from {FLUSHES:.0%} on; own: its "
        "error on exact inputs, against itself in fp32",
    ),
    _shown(
        "Gradients in the low precisions", "", GRADIENTS, gradients,
        "predicted, seen: the share that flushes to zero",
    ),
)  # fmt: skip
_STEPS_HELP = "Steps to watch in fp32; 0: one for each batch there is."
TASK = Task("ranges", RangesAsked, RangePass, "ampbench.studies.headroom_measure:do_ranges")
STUDY: Study[RangesAsked, RangePass] = Study(
    kind=HEADROOM,
    help="""\
Watch fp32 steps: how near each module's values are to what fp16 and bf16 hold, and which loss scales fit.

What would overflow, flush to zero or be swallowed by rounding is predicted, then seen in a step of each low
precision. The run is stored: ampbench show RUN prints it again, with --all all of it.

\b
Examples:
  ampbench explain headroom model.py:make
  ampbench explain headroom resnet50 --phase training --steps 4
  ampbench explain headroom mlp --precision fp16_autocast --precision fp16_pure --all
""",
    doing="watching",
    asked=RangesAsked,
    record=RangePass,
    key="headroom",
    task=TASK,
    options=(Option(name="steps", default=0, metavar="N", least=0, most=10_000, help=_STEPS_HELP),),
    selects=Selects(
        question="explain the headroom",
        precision="Try it, too, beside fp32. Default: all low ones.",
        phase=ONE_PHASE_HELP,
        one_phase=True,
        among=LOW,
        otherwise="headroom tells what a low precision would make of fp32's values, and {name} is none",
    ),
    plan=_plan,
    work=lambda session: partial(_watch, session),
    title="Headroom",
    caption="What fp16 and bf16 would make of the values of each case, those that overflow most first",
    done="Looked at",
    heading=lambda record: counted(record.steps, "step"),
    remarks=remarks,
    tables=TABLES,
    conclusions=conclusions,
    charts=(
        Drawing(
            name="explanation-magnitudes",
            title="Magnitudes in fp32 against what fp16 holds",
            alt="The largest value of each module or parameter; gradients are without a loss scale. Of more than "
            f"{MODULES}, those nearest to the limits are drawn.",
            rows=_chart_rows,
            spec=_spec,
            height=340,
            marked=("mark",),
        ),
    ),
)

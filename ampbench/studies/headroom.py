"""Headroom of an fp32 run's values in fp16 and bf16: predictions of overflow and flushing, and their outcome.

A histogram by exponent is exact for borders that are powers of two, as those of zero, which rounds to zero itself
(`Magnitudes.powers`), and of subnormals. Overflow begins half a unit below one: `largest` decides whether any value is
beyond, and within that half unit at most one value is counted.
"""

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import structs

from ampbench.core import by_key
from ampbench.core.precisions import (
    BASELINE,
    COMPUTES,
    EXAMINED,
    FORMATS,
    LOW,
    SHORT_DTYPES,
    Format,
    find_format,
    find_precision,
)
from ampbench.core.statement import Severity, Statement, state
from ampbench.core.units import counted
from ampbench.records.case import Case
from ampbench.records.kinds import HEADROOM
from ampbench.records.labels import few, remarks_of
from ampbench.records.ranges import (
    ACTIVATION,
    FLUSHES,
    GRADIENT,
    INPUT,
    ROOT,
    UPDATE,
    WEIGHT,
    Blocks,
    LowRun,
    Magnitudes,
    ModuleError,
    RangePass,
    format_scale,
)
from ampbench.records.wire import Task
from ampbench.show.document import Column
from ampbench.studies.study import Selects, Session, Study, Table, advise, asks, info
from ampbench.workloads.index import LIBRARIES

if TYPE_CHECKING:
    from ampbench.drive.planning import PlannedCase


class RangesAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Fp32 steps to watch, then a step in each of `precisions`; `notes` are for the record.

    Blocks are counted in `formats` below 16 bits, by kind of factor: input, weight, gradient.
    """

    steps: Annotated[
        int, asks("Steps to watch in fp32; 0: one for each batch there is.", metavar="N", least=0, most=10_000)
    ] = 0
    precisions: list[str] = []
    formats: dict[str, list[str]] = {}
    notes: list[str] = []


MARGIN = 8
"""Values within this factor of overflow are called near it: another batch, or some training, moves the largest."""

_TAMES_INFINITY = frozenset(
    {"ReLU", "ReLU6", "Hardtanh", "Sigmoid", "Hardsigmoid", "Tanh", "MaxPool1d", "MaxPool2d", "MaxPool3d"}
)
"""Modules that may return a finite value for an infinite one, so that their outputs alone decide."""

_NORMALISES = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm")
"""Modules (by the beginning or a part of their names) that bring small values back to size, if they arrive at all."""

_STORES_MEAN = ("BatchNorm", "InstanceNorm")
"""Normalisations that store the mean of a batch in the dtype of their weights (torch 2.15 on the CPU)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How values fit into a format; None where there are no finite ones.

    `reach` is the largest magnitude over the format's largest number. The others are shares of all finite values that
    would overflow, flush to zero or lose digits; of updates, `swallowed` would change nothing.
    """

    reach: float | None = None
    overflow: float | None = None
    flushed: float | None = None
    subnormal: float | None = None
    swallowed: float | None = None


OVERFLOW, FLUSHING = "overflow", "flushing"


class Event(NamedTuple):
    """Overflow, or flushing, of a module: the values that foretell it ("": none), and whether it was `seen`.

    None: it could not be seen.
    """

    predicted: str = ""
    seen: bool | None = None


Events = Mapping[str, Event]
"""The events of a module, by `OVERFLOW` and `FLUSHING`."""


def fit(values: Magnitudes, dtype: str, scale: float = 1.0) -> Fit:
    """Return how `values`, each times `scale`, fit into the format `dtype`: a half, or "float8_e4m3", "float8_e5m2".

    `scale` is a loss scale, say, or the one that takes the largest value to the format's largest, as in float8.

    For a scale that is no power of two, values are taken as evenly spread over the logarithms within an exponent.
    """
    form = find_format(dtype)
    finite = values.elements - values.nonfinite
    if values.largest is None or finite == 0:
        return Fit()
    scale = min(max(scale, 2.0**-149), 2.0**127)  # GradScaler keeps it in fp32
    largest = values.largest * scale
    flushed = flushed_count(values, form, scale)
    overflow = 0.0
    if largest >= form.overflow:
        overflow = max(sum(values.counts) - _below(values.counts, values.lowest, form.border / scale), 1.0)
    return Fit(
        reach=largest / form.largest,
        overflow=overflow / finite,
        flushed=flushed / finite,
        subnormal=max(_below(values.counts, values.lowest, form.normal / scale) - flushed, 0.0) / finite,
    )


def telling(values: Iterable[Magnitudes]) -> Magnitudes | None:
    """Return the largest of a module's outputs, inputs and weights, which come nearest to a format's end.

    Running variances only divide: they count where there is nothing else. None where nothing is finite.
    """
    known = [row for row in values if row.what in (ACTIVATION, INPUT, WEIGHT) and row.largest is not None]
    counting = [row for row in known if not row.name.endswith("running_var")] or known
    return max(counting, key=lambda row: row.largest or 0.0, default=None)


def flushed_count(values: Magnitudes, form: Format, scale: float = 1.0) -> float:
    """Return how many values that are not zero would become it."""
    border = form.flush / scale
    place = math.log2(border) - values.lowest
    tied = values.powers[int(place)] if place.is_integer() and 0 <= place < len(values.powers) else 0
    return _below(values.counts, values.lowest, border) + tied


def predict(
    values: Sequence[Magnitudes],
    dtype: str,
    *,
    computes_low: bool = True,
    lowered_weights: Container[str] | None = None,
) -> Events:
    """Return whether a module with these `values` would overflow or flush if they were in `dtype`.

    In pure half, all are; with autocast, inputs and outputs only if the module `computes_low`, and of its parameters
    and buffers those that `lowered_weights` names (None: all).

    A module overflows if the largest of its outputs, parameters or inputs rounds to infinity; inputs do not count where
    a module may make finite values of infinite ones (ReLU6), nor what only divides (running variances). It flushes if
    at least `FLUSHES` of its outputs round to zero, or become zero in a normalisation because its inputs do. An
    overflow inside a module is not predicted.
    """
    form, kind = find_format(dtype), values[0].kind if values else ""

    def lowered(row: Magnitudes) -> bool:
        if row.what == WEIGHT:
            return lowered_weights is None or row.name in lowered_weights
        return computes_low and row.what in (ACTIVATION, INPUT)

    used = [row for row in values if lowered(row)]
    overflowing = [
        row.what
        for row in used
        if (row.largest or 0.0) >= form.overflow
        and not (row.what == INPUT and kind in _TAMES_INFINITY)
        and not row.name.endswith("running_var")
    ]
    mean_low = lowered_weights is None and any(part in kind for part in _STORES_MEAN)
    inputs = [row for row in used if row.what == INPUT and any(part in kind for part in _NORMALISES)]
    flushing = ""
    if any(row.what == ACTIVATION and _share(row, form) >= FLUSHES for row in used):
        flushing = ACTIVATION
    elif any(_normalised_to_zero(row, values, form, mean_low) >= FLUSHES for row in inputs):
        flushing = INPUT
    return {OVERFLOW: Event(overflowing[0] if overflowing else ""), FLUSHING: Event(flushing)}


def by_running_module(values: Iterable[Magnitudes]) -> dict[str, list[Magnitudes]]:
    """Return the records of each module that ran, in the order of running.

    The parameters and buffers of a part that did not run itself are put to the nearest module around it that did, as an
    attention's are that uses its projection's: they are left out where no such module ran.
    """
    every = by_key(values, attrgetter("module"))
    ran = {name: list(rows) for name, rows in every.items() if any(row.what in (INPUT, ACTIVATION) for row in rows)}
    for name in [name for name in every if name not in ran]:
        around = name
        while around and around not in ran:
            around = around.rpartition(".")[0]
        if around in ran:
            ran[around] += [row for row in every[name] if row.what == WEIGHT]
    return ran


def _share(values: Magnitudes, form: Format) -> float:
    finite = values.elements - values.nonfinite
    return flushed_count(values, form) / finite if finite else 0.0


def _normalised_to_zero(inputs: Magnitudes, values: Sequence[Magnitudes], form: Format, mean_low: bool) -> float:
    """Return the share of a normalisation's outputs that become zero since its inputs do.

    With a remembered mean or none, those of inputs that round to zero; with the mean of its inputs, those whose whole
    channel or row does, as one value that is left moves all others off zero. `mean_low`: that mean is rounded, too, and
    becomes zero where all values are small.
    """
    finite = inputs.elements - inputs.nonfinite
    if not finite:
        return 0.0
    share = _share(inputs, form)
    added = ["bias"]
    if inputs.together is None:
        added.append("running_mean")
    elif not mean_low or (inputs.largest or 0.0) >= form.normal:
        share = _below(inputs.together, inputs.lowest, form.flush) / finite
    for row in values:
        if row.what == WEIGHT and row.name.rpartition(".")[2] in added and row.elements:
            share *= row.zeros / row.elements
    return share


def _below(counts: Sequence[int], lowest: int, border: float) -> float:
    """Return how many of `counts`, by exponent from `lowest`, are below `border`, with a part of its exponent.

    The part follows the logarithm of `border`.
    """
    edge = math.log2(border) - lowest
    whole = min(max(math.floor(edge), 0), len(counts))
    count = float(sum(counts[:whole]))
    if 0 <= edge < len(counts):
        count += counts[whole] * (edge - whole)
    return count


_LOWEST, _HIGHEST = -126, 127
"""The exponents of fp32's normal numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """The loss scales, powers of two from `lowest` to `highest`, at which no gradient overflows and fewest flush.

    `flushed` is the share of all gradients that flush to zero at these, `unscaled` at a scale of 1; `limiting` is the
    module of the largest gradient.
    """

    lowest: float
    highest: float
    flushed: float
    unscaled: float
    limiting: str


def usable_scales(values: Iterable[Magnitudes], dtype: str = "fp16") -> Scales | None:
    """Return the loss scales for the gradients among `values`, of outputs and of parameters.

    `lowest` is not below 1 where 1 will do, and no scale is beyond fp32, in which GradScaler keeps it. None where all
    gradients are zero or not finite, or no such scale will do.
    """
    form = find_format(dtype)
    gradients = [row for row in values if row.what == GRADIENT and row.largest]
    if not gradients:
        return None
    worst = max(gradients, key=lambda row: row.largest or 0.0)
    assert worst.largest
    power = min(math.ceil(math.log2(form.overflow) - math.log2(worst.largest)), _HIGHEST)
    while worst.largest * 2.0**power >= form.overflow:
        power -= 1
    if power < _LOWEST:
        return None
    finite = sum(row.elements - row.nonfinite for row in gradients)

    def lost(exponent: int) -> float:
        return sum(flushed_count(row, form, 2.0**exponent) for row in gradients)

    lowest, least = power, lost(power)
    end = 0 if power >= 0 else _LOWEST
    while lowest > end and lost(lowest - 1) == least:
        lowest -= 1
    return Scales(
        lowest=2.0**lowest,
        highest=2.0**power,
        flushed=least / finite,
        unscaled=lost(0) / finite,
        limiting=worst.module,
    )


def values_phrase(values: Magnitudes) -> str:
    """Return which values of a module these are: "activation", "weight", "weight of bias"."""
    name = values.name.rpartition(".")[2]
    return values.what if name in ("", values.what) else f"{values.what} of {name}"


class Outcome(NamedTuple):
    """The events that a low precision was predicted to have in a module, and did; `error` may note why not seen."""

    precision: str
    error: ModuleError
    events: Events


class GradientOutcome(NamedTuple):
    """The share of a parameter's finite gradients that is predicted and seen to flush to zero in a low precision.

    `predicted` is None where fp32 gave no finite one, `seen` where the low precision did not. Of its `elements`,
    `nonfinite` are not finite in the low precision alone.
    """

    precision: str
    parameter: str
    elements: int
    predicted: float | None
    seen: float | None
    nonfinite: int


def low_dtype(precision: str) -> str:
    """Return the short name of the dtype that a low precision computes in: "fp16" for fp16_autocast."""
    row = find_precision(precision)
    return SHORT_DTYPES[row.autocast or row.storage]


def whole_step_seen(low: LowRun) -> bool:
    """Return whether a step in a low precision ran to its end; a refused step leaves only a note."""
    return not low.error and bool(low.lowered or low.lowered_weights or low.gradients or not low.notes)


def predicted_and_seen(record: RangePass, low: LowRun) -> list[Outcome]:
    """Return the predictions for each module in `low` and its events, in the order of running.

    Predictions are as by `predict`: in pure half of all values; with autocast, of those that autocast made half
    precision in the step. A module computes in the low dtype if one of its own weights or its outputs are in it; inputs
    count only then. A module with rounded inputs and fp32 outputs, as a softmax on CUDA, has lost nothing by itself.

    Events are of exact inputs: a module overflows if any output does, or if the whole step names it as the first to
    make a value that is not finite in its forward pass, and flushes if at least `FLUSHES` of its outputs do.
    """
    rows, outcomes = by_running_module(record.magnitudes), []
    first = low.first_nonfinite.module if low.first_nonfinite and low.first_nonfinite.phase == "forward" else None
    for row in low.modules:
        foretold = _predicted(low, rows.get(row.module, []))
        events: Events = foretold or {OVERFLOW: Event(), FLUSHING: Event()}
        if foretold and row.elements:
            overflows = row.overflowed > 0 or row.module == first
            happened = {OVERFLOW: overflows, FLUSHING: row.flushed >= FLUSHES * row.elements}
            events = {event: foretold[event]._replace(seen=seen) for event, seen in happened.items()}
        outcomes.append(Outcome(low.precision, row, events))
    return outcomes


def predicted_gradients(record: RangePass, low: LowRun) -> list[GradientOutcome]:
    """Return the gradients of parameters as predicted at the loss scale of `low` and as seen, the worst first.

    With autocast, a gradient is in the low dtype where the weight is used in it; others are fp32 and lose nothing by
    themselves. Losses on the way, as in gradients of activations, are not predicted.
    """
    scale = low.scaler_scale or 1.0
    dtype = low_dtype(low.precision)
    values = {row.name: row for row in record.magnitudes if row.what == GRADIENT and row.name}
    rows = []
    for gradient in low.gradients:
        exact = values.get(gradient.parameter)
        share = fit(exact, dtype, scale).flushed if exact else None
        in_fp32 = find_precision(low.precision).autocast is not None and gradient.parameter not in low.lowered_weights
        rows.append(
            GradientOutcome(
                precision=low.precision,
                parameter=gradient.parameter,
                elements=gradient.elements,
                predicted=0.0 if in_fp32 and share is not None else share,
                seen=gradient.flushed / finite if (finite := gradient.elements - gradient.nonfinite) else None,
                nonfinite=gradient.nonfinite,
            )
        )
    return sorted(rows, key=lambda row: (not row.nonfinite, -(row.seen or 0.0), -(row.predicted or 0.0)))


def flushed_together(rows: Iterable[GradientOutcome]) -> tuple[float | None, float | None]:
    """Return the predicted and the seen share over parameters for which both are known; None without any."""
    known = [
        (row.elements - row.nonfinite, row.predicted, row.seen)
        for row in rows
        if row.predicted is not None and row.seen is not None
    ]
    total = sum(finite for finite, *_ in known)
    if not total:
        return None, None
    return sum(row[0] * row[1] for row in known) / total, sum(row[0] * row[2] for row in known) / total


def _predicted(low: LowRun, values: list[Magnitudes]) -> Events | None:
    """Return the predictions for a module from its values; None where no step shows the lowered values."""
    dtype = low_dtype(low.precision)
    if find_precision(low.precision).autocast is None:
        return predict(values, dtype)
    if not low.lowered and not low.lowered_weights and not whole_step_seen(low):
        return None
    low_itself = any(row.module in low.lowered or row.name in low.lowered_weights for row in values)
    return predict(values, dtype, computes_low=low_itself, lowered_weights=low.lowered_weights)


class Headroom(StrEnum):
    """Conclusions from fp32's values on a low format, and on the outcome in a low precision."""

    NOTHING = "headroom-nothing"
    OVERFLOWS = "headroom-overflows"
    FITS = "headroom-fits"
    FLUSHES = "headroom-flushes"
    NEAR = "headroom-near"
    UNSCALED = "headroom-unscaled"
    SCALE = "headroom-scale"
    SWALLOWED = "headroom-swallowed"
    RAISED = "headroom-raised"
    STORED = "headroom-stored"
    FIRST = "headroom-first"
    NONFINITE = "headroom-nonfinite"
    FINITE = "headroom-finite"
    UNSEEN = "headroom-unseen"
    SEEN = "headroom-seen"
    GRADIENTS = "headroom-gradients"
    BLOCKS = "headroom-blocks"


def conclusions(_: Case, record: RangePass) -> Iterator[Statement]:
    """Yield predicted overflow and flushing in fp16 and bf16 and the loss scale, then each precision's outcome.

    Then the arithmetic of the optimizer's settings.
    """
    modules = by_running_module(record.magnitudes)
    if not modules:
        yield state(Headroom.NOTHING)
    else:
        for dtype in FORMATS:
            yield from _of_dtype(record, modules, dtype)
    yield from _of_blocks(record)
    for low in record.low_runs:
        yield from _of_low_run(record, low)
    if record.recipe is not None:
        for dtype in FORMATS:
            for remark in remarks_of(record.recipe, dtype):
                yield replace(remark, subject=f"stored in {dtype}, by arithmetic alone")


def fitting(modules: Mapping[str, list[Magnitudes]], dtype: str) -> Iterator[Statement]:
    """Yield whether the values of modules would overflow or flush in pure half."""
    predictions = {name: predict(rows, dtype) for name, rows in modules.items()}
    overflowing = [name for name, row in predictions.items() if row[OVERFLOW].predicted]
    flushing = [name or ROOT for name, row in predictions.items() if row[FLUSHING].predicted]
    known = {name: row for name, rows in modules.items() if (row := telling(rows)) is not None}
    if overflowing:
        worst = max((known[name] for name in overflowing), key=lambda row: row.largest or 0.0)
        facts = {"worst": worst.module or ROOT, "values": values_phrase(worst), "reach": fit(worst, dtype).reach}
        yield state(Headroom.OVERFLOWS, dtype, count=len(overflowing), modules=len(modules), dtype=dtype, **facts)
    else:
        yield info(Headroom.FITS, dtype, modules=len(modules), flush=int(not flushing))
    if flushing:
        yield advise(Headroom.FLUSHES, dtype, count=len(flushing), names=few(flushing))
    least = find_format(dtype).overflow / MARGIN
    if close := [
        name or ROOT for name, row in known.items() if (row.largest or 0.0) >= least and name not in overflowing
    ]:
        yield advise(Headroom.NEAR, dtype, count=len(close), margin=MARGIN, names=few(close))


def _of_dtype(record: RangePass, modules: Mapping[str, list[Magnitudes]], dtype: str) -> Iterator[Statement]:
    """Yield the effects of pure half on the values of modules, gradients and updates."""
    yield from fitting(modules, dtype)
    scales = usable_scales(record.magnitudes, dtype)
    if scales is not None and (scales.highest < 1 or scales.unscaled > scales.flushed):
        highest = format_scale(scales.highest) if scales.highest != scales.lowest else None
        without = scales.unscaled if scales.unscaled != scales.flushed else None
        facts = {"flushed": scales.flushed or None, "limiting": scales.limiting or ROOT, "unscaled": without}
        yield advise(Headroom.SCALE, dtype, lowest=format_scale(scales.lowest), highest=highest, **facts)
    elif scales is not None:
        severity = Severity.ADVICE if scales.flushed else Severity.INFO
        yield state(Headroom.UNSCALED, dtype, severity, flushed=scales.flushed or None)
    rows = [row for row in record.swallowed if row.dtype == dtype]
    if lost := sum(row.swallowed for row in rows):
        yield advise(Headroom.SWALLOWED, dtype, dtype=dtype, share=lost / sum(row.moved for row in rows))


FLUSHES_IN_4_BITS = 0.25
"""The same share as `FLUSHES` for blocks of e2m1, whose zero is as wide as its other steps: 6% of normal values are
rounded to it, and 13% of exponential ones."""


def loses_values(row: Blocks) -> bool:
    """Return whether a factor has blocks that saturate, or flushes more than its format does anyway."""
    limit = FLUSHES_IN_4_BITS if row.format == "nvfp4" else FLUSHES
    return row.saturated > 0 or row.zeroed > limit * row.elements


def _of_blocks(record: RangePass) -> Iterator[Statement]:
    """Yield the formats below 16 bits in which factors of products lose values."""
    for fmt, rows in by_key(record.blocks, attrgetter("format")).items():
        if losing := [row for row in rows if loses_values(row)]:
            worst = max(losing, key=lambda row: (row.zeroed / max(row.elements, 1), row.saturated / row.blocks))
            shares = {"zeroed": worst.zeroed / max(worst.elements, 1), "flushed": worst.flushed / worst.blocks}
            facts = {
                "worst": worst.module or ROOT,
                "what": worst.what,
                "saturated": worst.saturated / worst.blocks or None,
            }
            yield advise(Headroom.BLOCKS, fmt, count=len(losing), factors=len(rows), **shares, **facts)


def _of_low_run(record: RangePass, low: LowRun) -> Iterator[Statement]:
    """Yield the end of a whole step in a low precision, then the events of modules and the flushing of gradients."""
    name = low.precision
    yield _whole_step(low)
    events = [row.events for row in predicted_and_seen(record, low)]
    for event in (OVERFLOW, FLUSHING):
        known = [row[event] for row in events if row[event].seen is not None]
        predicted, happened = sum(bool(row.predicted) for row in known), sum(bool(row.seen) for row in known)
        if predicted or happened:
            yield advise(Headroom.SEEN, name, event=event, predicted=predicted, seen=happened)
    gradients = predicted_gradients(record, low)
    if gradients and not forward_overflows(low):
        scale = format_scale(low.scaler_scale) if low.scaler_scale is not None else None
        predicted_share, flushed = flushed_together(gradients)
        nonfinite = sum(row.nonfinite > 0 for row in gradients)
        facts = {"nonfinite": nonfinite, "parameters": len(gradients)} if nonfinite else {}
        yield info(Headroom.GRADIENTS, name, scale=scale, predicted=predicted_share, seen=flushed, **facts)


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
    return info(Headroom.FINITE if whole_step_seen(low) else Headroom.UNSEEN, name)


def forward_overflows(low: LowRun) -> bool:
    """Return whether a step makes a value that is not finite before it has gradients."""
    stored = bool(low.overflowed_weights) and low.nonfinite_output is not None
    return stored or (low.first_nonfinite is not None and low.first_nonfinite.phase == "forward")


_OF_VALUES = ("module", "kind", "what", "name", "elements", "zeros", "nonfinite", "largest")
VALUES: Sequence[Column[Mapping[str, Any]]] = [
    Column(key, itemgetter(key))
    for key in (*_OF_VALUES, *(f"{dtype}_{field.name}" for dtype in FORMATS for field in fields(Fit)))
]
"""Columns of a magnitudes record: the fp32 values and their fit into each dtype, "fp16_reach" and so on (`Fit`)."""


def fits(record: RangePass) -> list[dict[str, Any]]:
    """Return the records of magnitudes, with how they fit into each low format."""
    lost = {(row.parameter, row.dtype): row.swallowed / row.moved for row in record.swallowed if row.moved}
    rows = []
    for values in record.magnitudes:
        row = {name: getattr(values, name) for name in _OF_VALUES}
        for dtype in FORMATS:
            row |= {f"{dtype}_{share}": value for share, value in asdict(fit(values, dtype)).items()}
            if values.what == UPDATE:
                row[f"{dtype}_swallowed"] = lost.get((values.name, dtype))
        rows.append(row)
    return rows


class Module(NamedTuple):
    """A module: its largest `values`, the fit of its `outputs` into fp16, and the predictions for each format."""

    module: str
    kind: str
    values: Magnitudes
    outputs: Fit
    predictions: Mapping[str, Events]


def modules_of(magnitudes: Iterable[Magnitudes]) -> list[Module]:
    """Return the modules with finite values: first overflowing ones in fp16, then flushing ones."""
    rows = []
    for name, values in by_running_module(magnitudes).items():
        if (worst := telling(values)) is not None:
            outputs = next((fit(row, "fp16") for row in values if row.what == ACTIVATION), Fit())
            predictions = {dtype: predict(values, dtype) for dtype in FORMATS}
            rows.append(Module(name, values[0].kind, worst, outputs, predictions))
    return sorted(
        rows,
        key=lambda row: (
            [not event.predicted for event in row.predictions["fp16"].values()],
            -(row.values.largest or 0.0),
        ),
    )


def _would(row: Module, dtype: str) -> str:
    """Return the text of the events predicted in a format, "overflow, flush"."""
    words = {OVERFLOW: "overflow", FLUSHING: "flush"}
    return ", ".join(words[event] for event, outcome in row.predictions[dtype].items() if outcome.predicted)


MODULE_COLUMNS: Sequence[Column[Module]] = (
    Column("module", lambda row: row.module, "module", said=lambda row: row.module or ROOT),
    Column("kind", lambda row: row.kind, "kind"),
    Column("values", lambda row: values_phrase(row.values), "values"),
    Column("largest", lambda row: row.values.largest, "largest", "number"),
    Column("fp16_reach", lambda row: fit(row.values, "fp16").reach, "of fp16", "share"),
    Column("flushed", lambda row: row.outputs.flushed, "flushed", "share"),
    Column("subnormal", lambda row: row.outputs.subnormal, "subnormal", "share"),
    Column("fp16_would", lambda row: _would(row, "fp16"), "fp16 would", rare=True),
    Column("bf16_would", lambda row: _would(row, "bf16"), "bf16 would", rare=True),
)


def _event_columns(event: str, key: str, outputs: str) -> list[Column[Outcome]]:
    """Return the columns of an event whose names begin with `key`; `outputs`: what a module's outputs then are."""
    return [
        Column(f"{key}_predicted", lambda row: row.events[event].predicted, f"{event} predicted of", rare=True),
        Column(f"{key}_seen", lambda row: row.events[event].seen),
        Column(
            "", lambda row: getattr(row.error, outputs) / row.error.elements if row.error.elements else None, outputs,
            "share",
        ),
    ]  # fmt: skip


SEEN: Sequence[Column[Outcome]] = (
    Column("precision", lambda row: row.precision, "precision"),
    Column("module", lambda row: row.error.module, "module", said=lambda row: row.error.module or ROOT),
    Column("kind", lambda row: row.error.kind, "kind"),
    *_event_columns(OVERFLOW, "overflow", "overflowed"),
    *_event_columns(FLUSHING, "flush", "flushed"),
    Column("own_rel_l2", lambda row: row.error.own_rel_l2, "own", "error"),
    Column("note", lambda row: row.error.note),
)
"""Columns of a module in a low precision: the values behind a prediction, and its outcome."""


BLOCKS: Sequence[Column[Blocks]] = (
    Column("format", lambda row: row.format, "format"),
    Column("module", lambda row: row.module, "module", said=lambda row: row.module or ROOT),
    Column("kind", lambda row: row.kind, "kind"),
    Column("values", lambda row: row.what, "values"),
    Column("blocks", lambda row: row.blocks, "blocks", "whole"),
    Column("saturated", lambda row: row.saturated / row.blocks, "saturated", "share"),
    Column("flushed", lambda row: row.flushed / row.blocks, "flushed", "share"),
    Column("zeroed", lambda row: row.zeroed / row.elements if row.elements else None, "zeroed", "share"),
)
"""Columns of a factor of products in a format below 16 bits."""


def gradients(record: RangePass) -> list[GradientOutcome]:
    """Return the parameters whose gradients overflow or flush (a share of `FLUSHES`) after a finite forward pass."""
    return [
        row
        for low in record.low_runs
        if not forward_overflows(low)
        for row in predicted_gradients(record, low)
        if row.nonfinite or max(row.seen or 0.0, row.predicted or 0.0) >= FLUSHES
    ]


GRADIENTS: Sequence[Column[GradientOutcome]] = (
    Column("precision", lambda row: row.precision, "precision"),
    Column("parameter", lambda row: row.parameter, "parameter"),
    Column("elements", lambda row: row.elements, "elements", "whole"),
    Column("predicted", lambda row: row.predicted, "predicted", "share"),
    Column("seen", lambda row: row.seen, "seen", "share"),
    Column("nonfinite", lambda row: row.nonfinite, "not finite", "whole"),
)


def _request(session: Session[RangesAsked], planned: "PlannedCase") -> RangesAsked:
    """Return a request for a case's fp32 steps, then for a step in each low precision selected, by default all halves.

    Of emulated ones, only blocks are counted.
    Its notes name precisions that the device cannot run, and the reason why a case is not trained.
    """
    from ampbench.drive.planning import FEATURES_ALONE, NOT_TRAINED, lack

    prepared, case = session.prepared, planned.case
    able, scaled, notes = list[str](), list[dict[str, str]](), list[str]()
    if not prepared.selection.phases and case.phase != "training":
        why = FEATURES_ALONE if case.family in LIBRARIES else NOT_TRAINED
        notes.append(f"watched in inference, so without gradients and updates: {why}")
    for row in dict.fromkeys(find_precision(name, case.device) for name in prepared.selection.precisions or LOW):
        if row.emulated:  # only blocks tell more than bf16's own run
            scaled.append(COMPUTES[row.compute]._asdict())
            continue
        device = prepared.environment.device(case.device)
        low = structs.replace(case, precision=row.name, input_dtype=SHORT_DTYPES[row.storage])
        if device and (lacking := lack(device, low, row)):
            notes.append(f"{row.name}: skipped: {lacking[0]}")
        else:
            able.append(row.name)
    kinds = {"inputs": INPUT, "weights": WEIGHT, "gradients": GRADIENT}
    formats = {kind: sorted({row[name] for row in scaled} - {""}) for name, kind in kinds.items() if scaled}
    return structs.replace(session.asked, precisions=able, formats=formats, notes=notes)


TASK = Task("ranges", RangesAsked, RangePass, "ampbench.studies.headroom_measure:measure_ranges")
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
  ampbench explain headroom mlp --precision fp16_autocast,mxfp8 --all
""",
    doing="watching",
    asked=RangesAsked,
    key="headroom",
    task=TASK,
    selects=Selects(precision="Low precisions to try. Default: all.", among=EXAMINED, tried=lambda _: [BASELINE]),
    request=_request,
    title="Headroom",
    heading=lambda record: counted(record.steps, "step"),
    remarks=lambda record: [
        *record.notes,
        *(f"{low.precision}: {note}" for low in record.low_runs for note in low.notes if note not in record.notes),
    ],
    tables=(
        Table("values", VALUES, fits),
        Table(
            "", MODULE_COLUMNS, lambda record: modules_of(record.magnitudes), "Largest values",
            "of each module; flushed, subnormal: the shares of its outputs in fp16",
        ),
        Table(
            "seen", SEEN, lambda record: [row for low in record.low_runs for row in predicted_and_seen(record, low)],
            "Overflow and flushing seen",
            "overflowed, flushed: shares of a module's outputs; own: its error on exact inputs, against itself in fp32",
            only=lambda row: any(event.seen for event in row.events.values()),
        ),
        Table(
            "blocks", BLOCKS, lambda record: record.blocks, "Blocks of formats below 16 bits",
            "saturated, flushed: shares of blocks with such an element; zeroed: share of non-zero elements",
            only=loses_values,
        ),
        Table("", GRADIENTS, gradients, "Gradients in the low precisions", "predicted, seen: share flushed to zero"),
    ),
    conclusions=conclusions,
)  # fmt: skip

"""How near an fp32 run's values are to what fp16 and bf16 hold, what that foretells, and whether it came true.

A histogram by exponent is exact for all borders of a format that are powers of two, as those of zero and of subnormals
are, the first of which rounds to zero itself (`Magnitudes.powers`). That of overflow lies half a unit below one:
`largest` decides whether any value is beyond, and of the values within that half unit (less than a thousandth of their
exponent in fp16) one at most is counted.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec import structs

from ampbench.core.precisions import BASELINE, FORMATS, LOW, SHORT_DTYPES, Format, find_format, find_precision
from ampbench.core.statement import Severity, Statement, state
from ampbench.core.units import counted
from ampbench.records.case import Case, Environment
from ampbench.records.kinds import HEADROOM
from ampbench.records.labels import few, left_out, optimizer_name
from ampbench.records.optimizer_in_half import remarks_of
from ampbench.records.ranges import (
    ACTIVATION,
    FLUSHES,
    GRADIENT,
    INPUT,
    ROOT,
    UPDATE,
    WEIGHT,
    LowRun,
    Magnitudes,
    ModuleError,
    RangePass,
    RangesAsked,
    format_scale,
)
from ampbench.records.run import Entry, Selection, Settings
from ampbench.records.wire import Task
from ampbench.show.charts import MODULES, Drawing, Rows, limit_layers, module_points, thinned, tooltip
from ampbench.show.document import Column
from ampbench.studies.study import ONE_PHASE_HELP, Option, Selects, Session, Study, Table, View
from ampbench.workloads.index import LIBRARIES

if TYPE_CHECKING:
    from ampbench.drive.planning import PlannedCase
    from ampbench.drive.servers import Channel
    from ampbench.show.studies import Subject
    from ampbench.studies.work import Piece

T = TypeVar("T")
_NEAR = 0.001
"""The share of a format's largest number below which no value is called near it."""
MARGIN = 8
"""Values within this factor of overflow are called near it: another batch, or some training, moves the largest."""

_TAMES_INFINITY = frozenset(
    {"ReLU", "ReLU6", "Hardtanh", "Sigmoid", "Hardsigmoid", "Tanh", "MaxPool1d", "MaxPool2d", "MaxPool3d"}
)
"""Modules that may return a finite value for an infinite one, so that their outputs alone decide."""

_NORMALISES = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm")
"""Modules (by the beginning or a part of their names) that bring small values back to size, if they arrive at all."""

_STORES_MEAN = ("BatchNorm", "InstanceNorm")
"""Those of them that store the mean of a batch in the dtype of their weights (seen with torch 2.15 on the CPU)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How values fit into a format; None where there are no finite ones.

    `reach` is the largest magnitude over the format's largest number. The others are shares of all finite values:
    `overflow` would become infinite, `flushed` zero though they are not, `subnormal` would lose digits; of updates,
    `swallowed` would change nothing where the parameter is stored in the format.
    """

    reach: float | None = None
    overflow: float | None = None
    flushed: float | None = None
    subnormal: float | None = None
    swallowed: float | None = None


OVERFLOW, FLUSHING = "overflow", "flushing"


class Event(NamedTuple):
    """Overflow, or flushing, of a module: which of its values foretell it ("": none), and whether it was `seen`.

    Not to be seen (None), it is neither right nor false.
    """

    predicted: str = ""
    seen: bool | None = None

    @property
    def failure(self) -> str:
        """Return "missed" or "false" with the values that said so; "" where it came true or was not to be seen."""
        if self.seen is None or bool(self.predicted) == self.seen:
            return ""
        return f"false ({self.predicted})" if self.predicted else "missed"


Events = Mapping[str, Event]
"""What a module does, by `OVERFLOW` and `FLUSHING`."""


def fit(values: Magnitudes, dtype: str, scale: float = 1.0) -> Fit:
    """Return how `values`, each times `scale` (a loss scale, say), fit into the format `dtype`, "fp16" or "bf16".

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
        overflow = max(
            sum(values.counts) - _below(values.counts, values.lowest, 2.0 ** (form.highest + 1) / scale), 1.0
        )
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
    """Return whether a module would overflow or flush if inputs, weights and outputs were in `dtype`.

    As in pure half, all are; with autocast, inputs and outputs only if the module `computes_low`, and of its parameters
    and buffers those that `lowered_weights` names (None: all).

    `values` are all records of one module. It is predicted to **overflow** if the largest of its outputs, parameters or
    inputs rounds to infinity; inputs do not count where a module may make finite values of infinite ones (ReLU6), nor
    what only divides (running variances). It is predicted to **flush** if at least `FLUSHES` of its outputs round to
    zero, or become zero in a normalisation because its inputs do. What overflows only inside a module cannot be seen.
    """
    form = find_format(dtype)
    kind = values[0].kind if values else ""

    def lowered(row: Magnitudes) -> bool:
        if row.what == WEIGHT:
            return lowered_weights is None or row.name in lowered_weights
        return computes_low and row.what in (ACTIVATION, INPUT)

    used = [row for row in values if lowered(row)]
    mean_low = lowered_weights is None and any(part in kind for part in _STORES_MEAN)
    zeros = _flushing(used, values, kind, form, mean_low=mean_low)
    return {OVERFLOW: Event(_overflowing(used, kind, form)), FLUSHING: Event(zeros)}


def by_running_module(values: Iterable[Magnitudes]) -> dict[str, list[Magnitudes]]:
    """Return the records of each module that ran, in the order of running.

    The parameters and buffers of a part that did not run itself are put to the nearest module around it that did, as an
    attention's are that uses its projection's: those of what nothing around it ran are left out.
    """
    every: dict[str, list[Magnitudes]] = {}
    for row in values:
        every.setdefault(row.module, []).append(row)
    ran = {name: list(rows) for name, rows in every.items() if any(row.what in (INPUT, ACTIVATION) for row in rows)}
    for name in [name for name in every if name not in ran]:
        around = name
        while around and around not in ran:
            around = around.rpartition(".")[0]
        if around in ran:
            ran[around] += [row for row in every[name] if row.what == WEIGHT]
    return ran


def _overflowing(used: Sequence[Magnitudes], kind: str, form: Format) -> str:
    """Return which of a module's values the format cannot hold, of those that count; "": none."""
    for row in used:
        spared = (row.what == INPUT and kind in _TAMES_INFINITY) or row.name.endswith("running_var")
        if row.largest is not None and row.largest >= form.overflow and not spared:
            return row.what
    return ""


def _flushing(
    used: Sequence[Magnitudes], values: Sequence[Magnitudes], kind: str, form: Format, *, mean_low: bool
) -> str:
    """Return which of a module's values make it flush; "": none."""
    outputs = next((row for row in used if row.what == ACTIVATION and row.largest is not None), None)
    if outputs and _share(outputs, form) >= FLUSHES:
        return ACTIVATION
    inputs = [row for row in used if row.what == INPUT and any(part in kind for part in _NORMALISES)]
    return INPUT if any(_normalised_to_zero(row, values, form, mean_low) >= FLUSHES for row in inputs) else ""


def _share(values: Magnitudes, form: Format) -> float:
    finite = values.elements - values.nonfinite
    return flushed_count(values, form) / finite if finite else 0.0


def _normalised_to_zero(inputs: Magnitudes, values: Sequence[Magnitudes], form: Format, mean_low: bool) -> float:
    """Return the share of a normalisation's outputs that become zero since its inputs do.

    With a remembered mean or none, those of inputs that round to zero; with the mean of what it is given, those of
    which the whole channel or row does, as one value that is left moves all others off zero. `mean_low`: that mean is
    rounded as these are, and becomes zero beside values that are all small.
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
    """Return how many of `counts`, by exponent from `lowest`, lie below `border`, of its exponent a part.

    The part is what its logarithm says.
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

    `flushed` is the share of all gradient values that flush to zero at these, `unscaled` at a scale of 1; `limiting`
    is the module of the largest gradient, which bounds the scale.
    """

    lowest: float
    highest: float
    flushed: float
    unscaled: float
    limiting: str

    @property
    def needed(self) -> bool:
        """Whether gradients are better off at these than without a scale."""
        return self.highest < 1 or self.unscaled > self.flushed


def usable_scales(values: Iterable[Magnitudes], dtype: str = "fp16") -> Scales | None:
    """Return the loss scales to use for the gradients among `values`, those of outputs and of parameters.

    From one fp32 run; later gradients may be larger. `lowest` is not below 1 where 1 will do, and no scale is beyond
    what fp32 holds, in which GradScaler keeps it. None where no gradient is finite and not zero, or no such scale will
    do.
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


_FUSED = frozenset({"MultiheadAttention", "TransformerEncoderLayer", "TransformerEncoder"})
"""Modules that, in inference, may run as one op in which none of those within them is seen."""


class Outcome(NamedTuple):
    """What a module was predicted to do in a low precision, and what it did; where not seen, its `error` notes why."""

    error: ModuleError
    events: Events

    @property
    def failed(self) -> bool:
        """Whether something was predicted and not seen, or seen and not predicted."""
        return any(event.failure for event in self.events.values())


class Score(NamedTuple):
    """How often something was predicted and seen (`right`), predicted alone (`false`), seen alone (`missed`)."""

    right: int = 0
    false: int = 0
    missed: int = 0


class GradientOutcome(NamedTuple):
    """The gradient of a parameter: the share of its finite values predicted and seen to flush to zero.

    `predicted` is None where fp32 gave no finite one, `seen` where the low precision did not. Of its `elements`,
    `nonfinite` are not finite in the low precision alone; `overflows` says whether any was predicted to be.
    """

    parameter: str
    elements: int
    predicted: float | None
    seen: float | None
    overflows: bool
    nonfinite: int


def low_dtype(precision: str) -> str:
    """Return the short name of the dtype that a low precision computes in: "fp16" for fp16_autocast."""
    row = find_precision(precision)
    return SHORT_DTYPES[row.autocast or row.storage]


def whole_step_seen(low: LowRun) -> bool:
    """Return whether a step in a low precision ran to its end: one that was refused left nothing but a note."""
    return not low.error and bool(low.lowered or low.lowered_weights or low.gradients or not low.notes)


def predicted_and_seen(found: RangePass, low: LowRun) -> list[Outcome]:
    """Return what was predicted of each module in `low` and what it did, in the order of running.

    Predicted is from the magnitudes of `found` as by `predict`: in pure half of all values; with autocast, of those
    that autocast made half precision in the step. A module computes in the low dtype if one of its own weights is used
    in it or if its outputs are in it; inputs count only then. One that is handed rounded inputs and gives fp32, as a
    softmax on CUDA, has lost nothing by itself: what its inputs lost is told of the module they come from.

    Seen is what it does on exact inputs: it overflows if any output does, and flushes if at least `FLUSHES` of its
    outputs do. In any case a module overflows that the whole step names as the first to make a value that is not finite
    in its forward pass; where it is not among those compared, it comes last, unless it is one that torch may run fused
    (or one without values of its own) and a module within it was seen to overflow.
    """
    rows = by_running_module(found.magnitudes)
    first = None
    if low.first_nonfinite is not None and low.first_nonfinite.phase == "forward" and not low.overflowed_weights:
        first = low.first_nonfinite.module
    home = {row.name: module for module, values in rows.items() for row in values if row.name}
    # whose own weights or buffers overflow as they are stored
    alone = {
        home.get(name, name.rpartition(".")[0]): "its weights or buffers overflow as they are stored"
        for name in low.overflowed_weights
    }
    kinds = {module: values[0].kind for module, values in rows.items()}
    if first is not None:
        within = f"{first}." if first else ""
        fused = kinds.get(first, "") in {"", *_FUSED}
        if not fused or not any(row.overflowed for row in low.modules if row.module.startswith(within)):
            alone.setdefault(first, "only the whole step was seen")
    compared = {row.module for row in low.modules}
    uncompared = [
        ModuleError(module=module, kind=kinds.get(module, ""), elements=0, note=note)
        for module, note in alone.items()
        if module not in compared
    ]
    unknown = f"what is in {low_dtype(low.precision)} is not known, as the whole step was not seen"
    outcomes = []
    for row in [*low.modules, *uncompared]:
        prediction = _predicted(low, rows.get(row.module, []))
        note = (unknown if prediction is None else row.note) if row.elements else row.note or "it was not compared"
        seen = row.elements > 0 and prediction is not None
        surely = prediction is not None and (row.module == first or row.module in alone)
        happened = {
            OVERFLOW: True if surely else row.overflowed > 0 if seen else None,
            FLUSHING: row.flushed >= FLUSHES * row.elements if seen else None,
        }
        foretold = prediction or dict.fromkeys(happened, Event())
        events = {event: foretold[event]._replace(seen=happened[event]) for event in happened}
        outcomes.append(Outcome(structs.replace(row, note=note), events))
    return outcomes


def scores(outcomes: Sequence[Outcome]) -> dict[str, Score]:
    """Return by event how good predictions are, over what could be seen."""

    def score(events: Iterable[Event]) -> Score:
        pairs = Counter((bool(event.predicted), event.seen) for event in events)
        return Score(pairs[True, True], pairs[True, False], pairs[False, True])

    return {event: score(row.events[event] for row in outcomes) for event in (OVERFLOW, FLUSHING)}


def predicted_gradients(found: RangePass, low: LowRun) -> list[GradientOutcome]:
    """Return the gradients of parameters as predicted at the loss scale of `low` and as seen, the worst first.

    With autocast, a gradient is in the low dtype where the weight is used in it; others are fp32 and lose nothing by
    themselves. What gradients lose on their way, as gradients of activations, is not in this prediction, nor what
    becomes zero because it is the difference of equal values.
    """
    scale = low.scaler_scale or 1.0
    dtype = low_dtype(low.precision)
    values = {row.name: row for row in found.magnitudes if row.what == GRADIENT and row.name}
    rows = []
    for seen in low.gradients:
        exact = values.get(seen.parameter)
        share = fit(exact, dtype, scale).flushed if exact else None
        in_fp32 = not _is_pure(low) and seen.parameter not in low.lowered_weights
        over = bool(exact and exact.largest and exact.largest * scale >= find_format(dtype).overflow)
        rows.append(
            GradientOutcome(
                parameter=seen.parameter,
                elements=seen.elements,
                predicted=0.0 if in_fp32 and share is not None else share,
                seen=seen.flushed / finite if (finite := seen.elements - seen.nonfinite) else None,
                overflows=over and not in_fp32,
                nonfinite=seen.nonfinite,
            )
        )
    return sorted(rows, key=lambda row: (not row.nonfinite, -(row.seen or 0.0), -(row.predicted or 0.0)))


def flushed_together(rows: Iterable[GradientOutcome]) -> tuple[float | None, float | None]:
    """Return the shares predicted and seen of the values of all parameters of which both are known; None: of none."""
    known = [
        (row.elements - row.nonfinite, row.predicted, row.seen)
        for row in rows
        if row.predicted is not None and row.seen is not None
    ]
    total = sum(finite for finite, *_ in known)
    if not total:
        return None, None
    return sum(each[0] * each[1] for each in known) / total, sum(each[0] * each[2] for each in known) / total


def _predicted(low: LowRun, values: list[Magnitudes]) -> Events | None:
    """Return what is predicted of a module by its values; None where no step says what is lowered."""
    dtype = low_dtype(low.precision)
    if _is_pure(low):
        return predict(values, dtype)
    if not low.lowered and not low.lowered_weights and not whole_step_seen(low):
        return None
    low_itself = any(row.module in low.lowered or row.name in low.lowered_weights for row in values)
    return predict(values, dtype, computes_low=low_itself, lowered_weights=low.lowered_weights)


def _is_pure(low: LowRun) -> bool:
    return find_precision(low.precision).autocast is None


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
            for remark in remarks_of(record.recipe, dtype):
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
    largest = {name: row.largest or 0.0 for name, rows in modules.items() if (row := telling(rows)) is not None}
    least = find_format(dtype).overflow / MARGIN
    if close := [name or ROOT for name, value in largest.items() if value >= least and name not in overflowing]:
        yield state(Headroom.NEAR, dtype, Severity.ADVICE, count=len(close), margin=MARGIN, names=few(close))
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
    if any(row.events[OVERFLOW].seen is not None for row in outcomes):
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
        if any(score):
            facts = {"predicted": score.right + score.false, "seen": score.right + score.missed}
            facts |= score._asdict() if score.false or score.missed else {}
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
        return *(not event.predicted for event in row.predictions["fp16"].values()), -(row.values.largest or 0.0)

    return sorted(rows, key=harmless)


def _would(row: Module) -> str:
    """Return "overflow (bf16, too), flush": what is predicted in fp16, and in brackets in bf16."""
    told = []
    for event, what in ((OVERFLOW, "overflow"), (FLUSHING, "flush")):
        fp16, bf16 = (bool(row.predictions[dtype][event].predicted) for dtype in ("fp16", "bf16"))
        told.append((what if fp16 else "") + (" (bf16, too)" if fp16 and bf16 else f"{what} in bf16" if bf16 else ""))
    return ", ".join(filter(None, told))


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
    """Return what was predicted and what was seen of each module in each low precision."""
    return [(low.precision, row) for low in record.low_runs for row in predicted_and_seen(record, low)]


def _event_columns(event: str, key: str, outputs: str) -> list[Column[Checked]]:
    """Return the columns of an event whose names begin with `key`; `outputs`: what a module's outputs then are."""

    def share(row: Checked) -> float | None:
        error = row[1].error
        return getattr(error, outputs) / error.elements if error.elements else None

    def failure(row: Checked) -> str:
        return row[1].events[event].failure

    return [
        Column(f"{key}_predicted", lambda row: row[1].events[event].predicted, event, said=failure, rare=True),
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
"""Of a module in a low precision: which of its values foretold an event, and what was seen."""


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

    return make_plan(structs.replace(selection, precisions=[BASELINE]), environment, describer(channel, settings))


def _watch(session: Session[RangesAsked], channel: "Channel", piece: "Piece") -> Entry:
    """Have a case run in fp32, then for a step in each low precision selected, by default all.

    What the device cannot run of these is told in the pass's notes.
    """
    from ampbench.drive.planning import lack
    from ampbench.studies.work import ask_worker

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
    found = ask_worker(channel, piece.planned, prepared.settings, TASK, asked)
    return structs.replace(found, notes=[*found.notes, *notes]) if isinstance(found, RangePass) else found


def _phase_notes(case: Case, selection: Selection) -> list[str]:
    """Say why a case that was to be trained, if possible, is not."""
    from ampbench.drive.planning import FEATURES_ALONE, NOT_TRAINED

    trained = structs.replace(case, phase="training")
    if selection.phases or case == trained:
        return []
    why = FEATURES_ALONE if case.family in LIBRARIES else NOT_TRAINED
    return [f"watched in inference, so without gradients and updates: {why}"]


def _shown(
    title: str, columns: Sequence[Column[T]], rows: Callable[[RangePass], Sequence[T]], note: str
) -> Table[RangePass, T]:
    return Table(key="", columns=columns, rows=rows, views=[View(title=title, note=note, shown=12)])


TABLES: Sequence[Table[RangePass, Any]] = (
    Table(key="values", columns=VALUES, rows=fits),
    _shown(
        "Largest values", MODULE_COLUMNS, modules,
        "of each module; flushed, subnormal: the shares of its outputs in fp16",
    ),
    _shown(
        "Weights that would not move", VALUES, standing,
        "the share of the values that steps moved in fp32 and would not move where they are stored in the dtype; how "
        "much of the update arrives is `kept` of ampbench run",
    ),
    Table(
        key="seen", columns=SEEN, rows=seen,
        views=[
            View(
                title="Where predictions failed",
                note="false: predicted of the values in brackets and not seen; missed: seen and not predicted; "
                f"overflowed, flushed: shares of its outputs, and it flushes from {FLUSHES:.0%} on; own: its error on "
                "exact inputs, against itself in fp32",
                only=lambda row: row[1].failed,
                shown=12,
            )
        ],
    ),
    _shown(
        "Gradients in the low precisions", GRADIENTS, gradients,
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

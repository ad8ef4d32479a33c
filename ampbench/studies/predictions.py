"""What fp32 values, and an optimizer's settings, say of a low format before anything runs in it; and did it come true.

A histogram by exponent is exact for all borders of a format that are powers of two, as those of zero and of subnormals
are, the first of which rounds to zero itself (`Magnitudes.powers`). That of overflow lies half a unit below one:
`largest` decides whether any value is beyond, and of the values within that half unit (less than a thousandth of their
exponent in fp16) one at most is counted. `usable_scales` says which loss scales keep all gradients finite and lose the
fewest.

`remarks_of` and `habits_of` are arithmetic alone: each statement follows from settings and the format by the formula in
the docstring of its function. It holds for weights, state and statistics that are stored in the format, rounded to
nearest after every operation: not for fp32 master weights, and not for optimizers that are not torch's own, of which
nothing is said. Where an optimizer fuses its step into one kernel, what rounds between its operations is not there, and
is not told. Half a unit in the last place of a number w is more than 2**-9 |w| in bf16 and 2**-12 |w| in fp16, and at
most twice that.
"""

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from msgspec.structs import replace

from ampbench.core.precisions import SHORT_DTYPES, Format, Precision, find_format, find_precision
from ampbench.core.statement import Arithmetic, Severity, Statement, state
from ampbench.records.labels import few
from ampbench.records.measured import OptimizerGroup, Recipe
from ampbench.records.ranges import (
    ACTIVATION,
    GRADIENT,
    INPUT,
    WEIGHT,
    LowRun,
    Magnitudes,
    ModuleError,
    RangePass,
)

FLUSHES = 0.01
"""The share of a module's values at zero from which it is said to flush: below it, the values around zero that every
distribution has are lost beside the others, as they would be to rounding."""

MARGIN = 8
"""Values within this factor of overflow, or of zero, are called near it: a convention. Another batch, or some training,
moves the largest and the smallest values of a module."""

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
    """Overflow, or flushing, of a module: which of its values foretell it, and whether it was `seen`.

    "" where none foretell it; then `near` are those that would if they were `MARGIN` times as large, or as small ("":
    none). Not to be seen (None), it is neither right nor false.
    """

    predicted: str = ""
    near: str = ""
    seen: bool | None = None

    @property
    def failure(self) -> str:
        """Return "missed" or "false" with the values that said so; "" where it came true or was not to be seen."""
        if self.seen is None or bool(self.predicted) == self.seen:
            return ""
        return f"false ({self.predicted})" if self.predicted else "missed, near" if self.near else "missed"


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
    over = _overflowing(used, kind, form)
    mean_low = lowered_weights is None and any(part in kind for part in _STORES_MEAN)
    zeros = _flushing(used, values, kind, form, mean_low=mean_low)
    nearly_over = "" if over else _overflowing(used, kind, form, MARGIN)
    nearly_zeros = "" if zeros else _flushing(used, values, kind, form, mean_low=mean_low, scale=1 / MARGIN)
    return {OVERFLOW: Event(over, nearly_over), FLUSHING: Event(zeros, nearly_zeros)}


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


def _overflowing(used: Sequence[Magnitudes], kind: str, form: Format, scale: float = 1.0) -> str:
    """Return which of a module's values, each times `scale`, the format cannot hold, of those that count; "": none."""
    for row in used:
        spared = (row.what == INPUT and kind in _TAMES_INFINITY) or row.name.endswith("running_var")
        if row.largest is not None and row.largest * scale >= form.overflow and not spared:
            return row.what
    return ""


def _flushing(
    used: Sequence[Magnitudes],
    values: Sequence[Magnitudes],
    kind: str,
    form: Format,
    *,
    mean_low: bool,
    scale: float = 1.0,
) -> str:
    """Return which of a module's values, each times `scale`, make it flush; "": none.

    Whole channels and rows are counted only as far as they flush at a scale of 1: at others they are left out.
    """
    outputs = next((row for row in used if row.what == ACTIVATION and row.largest is not None), None)
    if outputs and _share(outputs, form, scale) >= FLUSHES:
        return ACTIVATION
    if any(part in kind for part in _NORMALISES):
        inputs = [row for row in used if row.what == INPUT and (scale == 1.0 or row.together is None)]
        if any(_normalised_to_zero(row, values, form, mean_low, scale) >= FLUSHES for row in inputs):
            return INPUT
    return ""


def _share(values: Magnitudes, form: Format, scale: float = 1.0) -> float:
    finite = values.elements - values.nonfinite
    return flushed_count(values, form, scale) / finite if finite else 0.0


def _normalised_to_zero(
    inputs: Magnitudes, values: Sequence[Magnitudes], form: Format, mean_low: bool, scale: float
) -> float:
    """Return the share of a normalisation's outputs that become zero since its inputs do.

    With a remembered mean or none, those of inputs that round to zero; with the mean of what it is given, those of
    which the whole channel or row does, as one value that is left moves all others off zero. `mean_low`: that mean is
    rounded as these are, and becomes zero beside values that are all small.
    """
    finite = inputs.elements - inputs.nonfinite
    if not finite:
        return 0.0
    share = _share(inputs, form, scale)
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


class Score(NamedTuple):
    """How often something was predicted and seen (`right`), predicted alone (`false`), seen alone (`missed`).

    Of those missed, `near` were told to be near it.
    """

    right: int = 0
    false: int = 0
    missed: int = 0
    near: int = 0

    @property
    def predicted(self) -> int:
        """How often it was predicted, of what could be seen."""
        return self.right + self.false

    @property
    def seen(self) -> int:
        """How often it was seen."""
        return self.right + self.missed


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
        outcomes.append(Outcome(replace(row, note=note), events))
    return outcomes


def scores(outcomes: Sequence[Outcome]) -> dict[str, Score]:
    """Return by event how good predictions are, over what could be seen."""
    return {event: _score([row.events[event] for row in outcomes]) for event in (OVERFLOW, FLUSHING)}


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


def left_out(reasons: Iterable[str]) -> str:
    """Return the reasons why modules were left out, each with its number; "" without any."""
    counts = Counter(reason or "no reason given" for reason in reasons).most_common()
    return few(f"{reason} ({count:,})" for reason, count in counts)


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


def _score(events: Sequence[Event]) -> Score:
    pairs = Counter((bool(event.predicted), event.seen) for event in events)
    near = sum(bool(event.seen and event.near) for event in events)
    return Score(pairs[True, True], pairs[True, False], pairs[False, True], near)


EMA_DECAY = 0.999
"""The usual decay of an average of weights, of which there is no setting to be read."""

_DECOUPLING = ("Adam", "AdamW", "NAdam", "RAdam")
"""Those of torch's optimizers that can multiply weights by 1 - lr x weight decay: an operation of its own."""
_SQUARES = {"Adam": "betas[1]", "AdamW": "betas[1]", "NAdam": "betas[1]", "RAdam": "betas[1]", "RMSprop": "alpha"}
"""Those that keep a running mean of squared gradients, and what its decay is called."""
_DIVIDING = ("Adam", "AdamW", "NAdam", "RMSprop")
"""Those of them that divide by its root plus eps in every step."""


def remarks_of(recipe: Recipe, dtype: str, *, master: bool = False) -> list[Statement]:
    """Return what `recipe` does to weights, state and statistics stored in `dtype`, "fp16" or "bf16", the worst first.

    With fp32 `master` weights the optimizer computes in fp32, and only the running statistics are in `dtype`: they stop
    half a unit in their last place / momentum away from those of batches, or twice that, as they move by momentum x
    (batch's - running). torch's CPU kernel rounds each product in bf16, and 0.9 to 0.8984: there they stop at 0.7 to 4
    times as far (seen with torch 2.15, momentum 0.1 and 0.01). Of groups that differ each statement says how many it
    holds for. Raises `UnknownNameError` for any other dtype.
    """
    form = find_format(dtype)
    remarks = []
    if not master and recipe.optimizer.startswith("torch.optim."):
        groups = [group for group in recipe.groups if group.elements]
        for judge in (_zero_denominator, _decay_lost, _squares_grow):
            known = [each for group in groups if (each := judge(_class_of(recipe), group, form)) is not None]
            for place, remark in enumerate(known):
                if remark not in known[:place]:
                    many = known.count(remark)
                    of = {"many": many, "groups": len(groups)} if many < len(groups) else {}
                    remarks.append(_remark(remark.code, form, **remark.facts, **of))
    for momentum in recipe.running_momenta:
        away = _half_unit(form) / momentum
        remarks.append(_remark(Arithmetic.STATISTICS, form, away=away, momentum=momentum))
    return remarks


def habits_of(dtype: str) -> list[Statement]:
    """Return what averaging weights and summing gradients does in `dtype`, whatever the optimizer.

    * An average of weights moves by (1 - decay)(w - average), as torch's `lerp` does in one operation, which is lost up
      to half a unit in its last place: while |w - average| < 2**-9 / (1 - decay) |average| (fp16: 2**-12).
    * A sum of n equal gradients has units of two of them from n = 2**8 on (fp16: 2**11): one more is a tie, which goes
      to the even number. (Twice as late for gradients that are nearly a power of two.)
    """
    form = find_format(dtype)
    rest = 1 - EMA_DECAY
    return [
        _remark(Arithmetic.AVERAGE, form, decay=EMA_DECAY, rest=rest, away=_half_unit(form) / rest),
        _remark(Arithmetic.SUM, form, most=2**form.digits, digits=form.digits),
    ]


def hints_of(recipe: Recipe, row: Precision, case_id: str) -> list[Statement]:
    """Return what arithmetic knows of training a case by `recipe` in a precision that stores weights in half."""
    if row.autocast is not None or row.storage == "float32":
        return []
    names = {"precision": row.name, "optimizer": _class_of(recipe)}
    remarks = remarks_of(recipe, SHORT_DTYPES[row.storage], master=row.master)
    return [state(each.code, case_id, Severity.INFO, **names, **each.facts) for each in remarks]


def _remark(code: StrEnum, form: Format, **facts: float | str) -> Statement:
    return state(code, "", Severity.ADVICE, **{"power": form.digits + 1, **facts})


def _class_of(recipe: Recipe) -> str:
    return recipe.optimizer.rpartition(".")[2]


def _decay_lost(kind: str, group: OptimizerGroup, form: Format) -> Statement | None:
    """Say that decoupled weight decay does nothing: lr x weight decay < 2**-9 in bf16, 2**-12 in fp16.

    A weight w becomes w (1 - lr x weight decay), rounded by itself before the update is added: it changes by less than
    half a unit in the last place, which is at least 2**-9 |w| (2**-12 |w|) towards zero.
    """
    if kind not in _DECOUPLING or not group.decoupled or group.fused or not group.weight_decay or not group.lr:
        return None
    lost = group.lr * group.weight_decay
    return _remark(Arithmetic.DECAY, form, lost=lost) if lost < _half_unit(form) else None


def _squares_grow(kind: str, group: OptimizerGroup, form: Format) -> Statement | None:
    """Say that a running mean of squares cannot decay: 1 - beta2 < 2**-9 in bf16, 2**-12 in fp16.

    It becomes v x beta2 + (1 - beta2) g**2: rounded in between, v x beta2 is v; in one kernel, the whole is not below
    v, since it is no less than v x beta2. So it never falls, and steps stay as small as the largest gradient made them.
    """
    if kind not in _SQUARES or group.beta2 is None or not 0 < 1 - group.beta2 < _half_unit(form):
        return None
    return _remark(Arithmetic.SQUARES, form, falls=1 - group.beta2, decay=_SQUARES[kind])


def _zero_denominator(kind: str, group: OptimizerGroup, form: Format) -> Statement | None:
    """Say which second moments are 0, and whether eps is, too, so that a step divides by 0; nothing in bf16.

    From zero, v becomes (1 - beta2) g**2, which is 0 where it is no more than half the smallest subnormal number,
    2**-25 in fp16: where |g| <= sqrt(2**-25 / (1 - beta2)). The denominator is the root of v plus eps, and eps rounds
    to 0 up to 2**-25 as well. Then a step is lr x m / 0: infinite, and 0 / 0, NaN, where the gradient was 0. Above it,
    it is lr x m / eps. In one kernel, and in a capturable step, eps is not rounded by itself.
    """
    if kind not in _DIVIDING or form.name == "bf16" or group.fused or group.capturable:
        return None
    if group.eps is None or group.beta2 is None or group.beta2 >= 1:
        return None
    facts = {"border": math.sqrt(form.flush / (1 - group.beta2)), "power": form.digits - form.lowest}
    if group.eps <= form.flush:
        return _remark(Arithmetic.INFINITE, form, eps=group.eps, **facts)
    return _remark(Arithmetic.DIVIDED, form, decay=_SQUARES[kind], **facts)


def _half_unit(form: Format) -> float:
    """Return the least half unit in the last place of a number of the format, relative to that."""
    return 2.0 ** -(form.digits + 1)

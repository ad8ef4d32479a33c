"""What magnitudes of fp32 values say of a low format before anything runs in it: what overflows, flushes or fits.

A histogram by exponent is exact for all borders of a format that are powers of two, as those of zero and of subnormals
are, the first of which rounds to zero itself (`Magnitudes.powers`). That of overflow lies half a unit below one:
`largest` decides whether any value is beyond, and of the values within that half unit (less than a thousandth of their
exponent in fp16) one at most is counted. `usable_scales` says which loss scales keep all gradients finite and lose the
fewest.
"""

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from ampbench.core.precisions import Format, find_format
from ampbench.records.ranges import ACTIVATION, GRADIENT, INPUT, WEIGHT, Magnitudes

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
    `overflow` would become infinite, `flushed` zero though they are not, `subnormal` would lose digits.
    """

    reach: float | None = None
    overflow: float | None = None
    flushed: float | None = None
    subnormal: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Whether a module would overflow or flush in a format, and which of its values say so ("" where it does not).

    Where it does not, `near_overflow` and `near_flush` are the values that would say so if they were `MARGIN` times as
    large, or as small (""): none would.
    """

    overflows: str = ""
    flushes: str = ""
    near_overflow: str = ""
    near_flush: str = ""


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
) -> Prediction:
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
    return Prediction(
        overflows=over,
        flushes=zeros,
        near_overflow="" if over else _overflowing(used, kind, form, MARGIN),
        near_flush="" if zeros else _flushing(used, values, kind, form, mean_low=mean_low, scale=1 / MARGIN),
    )


def by_module(values: Iterable[Magnitudes]) -> dict[str, list[Magnitudes]]:
    """Return the records of each module, in their order."""
    found: dict[str, list[Magnitudes]] = {}
    for row in values:
        found.setdefault(row.module, []).append(row)
    return found


def by_running_module(values: Iterable[Magnitudes]) -> dict[str, list[Magnitudes]]:
    """Return the records of each module that ran, in the order of running.

    The parameters and buffers of a part that did not run itself are put to the nearest module around it that did, as an
    attention's are that uses its projection's: those of what nothing around it ran are left out.
    """
    every = by_module(values)
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

"""How the values of an fp32 run would fit into a low format, before anything is run in it.

A histogram by exponent is exact for all borders of a format that are powers of two, as those of zero and of subnormals
are. That of overflow lies half a unit below one: `largest` decides whether any value is beyond, and of the values
within that half unit (less than a thousandth of their exponent in fp16) one at most is counted.
"""

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from ampbench.ranges.formats import Format, find_format
from ampbench.records.ranges import ACTIVATION, INPUT, WEIGHT, Magnitudes

FLUSHES = 0.01
"""The share of a module's values at zero from which it is said to flush: below it, the values around zero that every
distribution has are lost beside the others, as they would be to rounding."""

_TAMES_INFINITY = frozenset(
    {"ReLU", "ReLU6", "Hardtanh", "Sigmoid", "Hardsigmoid", "Tanh", "MaxPool1d", "MaxPool2d", "MaxPool3d"}
)
"""Modules that may return a finite value for an infinite one, so that their outputs alone decide."""

_NORMALISES = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm")
"""Modules (by the beginning or a part of their names) that bring small values back to size, if they arrive at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
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
    """Whether a module would overflow or flush in a format, and which of its values say so ("" where it does not)."""

    module: str
    overflows: str = ""
    flushes: str = ""


def headroom(values: Magnitudes, dtype: str, scale: float = 1.0) -> Headroom:
    """Return how `values`, each times `scale` (a loss scale, say), fit into the format `dtype`, "fp16" or "bf16".

    For a scale that is no power of two, values are taken as evenly spread over the logarithms within an exponent.
    """
    form = find_format(dtype)
    finite = values.elements - values.nonfinite
    if values.largest is None or finite == 0:
        return Headroom()
    largest = values.largest * scale
    flushed = _below(values, form.flush / scale)
    overflow = 0.0
    if largest >= form.overflow:
        overflow = max(sum(values.counts) - _below(values, 2.0 ** (form.highest + 1) / scale), 1.0)
    return Headroom(
        reach=largest / form.largest,
        overflow=overflow / finite,
        flushed=flushed / finite,
        subnormal=max(_below(values, form.normal / scale) - flushed, 0.0) / finite,
    )


def flushed_count(values: Magnitudes, form: Format, scale: float = 1.0) -> float:
    """Return how many values that are not zero would become it."""
    return _below(values, form.flush / scale)


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

    `values` are all records of one module. It is predicted to **overflow** if the largest magnitude of its outputs, of
    its parameters or of its inputs rounds to infinity: the first cannot be held, and the others arrive as infinite
    and make infinity or NaN of what is computed with them. Inputs do not count where a module may make finite values
    of infinite ones (ReLU6, sigmoid, pooling for the maximum), nor parameters and buffers that only divide
    (running variances). It is predicted to **flush** if at least `FLUSHES` of its outputs round to zero, or if as
    many of its inputs do while it would have brought them back to size (a normalisation without a bias: inputs that
    small are whole channels as a rule, which then become their bias).
    What overflows only inside a module, in a product of two of its inputs, say, cannot be seen from outside it.
    """
    form = find_format(dtype)
    module = values[0].module if values else ""
    kind = values[0].kind if values else ""
    overflows = flushes = ""

    def lowered(row: Magnitudes) -> bool:
        if row.what == WEIGHT:
            return lowered_weights is None or row.name in lowered_weights
        return computes_low and row.what in (ACTIVATION, INPUT)

    used = [row for row in values if lowered(row)]
    for row in used:
        if row.largest is None:
            continue
        spared = (row.what == INPUT and kind in _TAMES_INFINITY) or row.name.endswith("running_var")
        if row.largest >= form.overflow and not spared:
            overflows = overflows or row.what
        if row.what == ACTIVATION and _share(row, form) >= FLUSHES:
            flushes = ACTIVATION
    if not flushes and any(part in kind for part in _NORMALISES):
        bias = any(row.name.endswith("bias") and row.largest for row in values if row.what == WEIGHT)
        if not bias and any(_share(row, form) >= FLUSHES for row in used if row.what == INPUT):
            flushes = INPUT
    return Prediction(module=module, overflows=overflows, flushes=flushes)


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


def _share(values: Magnitudes, form: Format) -> float:
    finite = values.elements - values.nonfinite
    return _below(values, form.flush) / finite if finite else 0.0


def _below(values: Magnitudes, border: float) -> float:
    """Return how many values that are not zero lie below `border`, of its exponent the part that its logarithm says."""
    edge = math.log2(border) - values.lowest
    whole = min(max(math.floor(edge), 0), len(values.counts))
    count = float(sum(values.counts[:whole]))
    if 0 <= edge < len(values.counts):
        count += values.counts[whole] * (edge - whole)
    return count

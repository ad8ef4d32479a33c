"""Which loss scales keep all gradients finite in a low format, and lose the fewest."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ampbench.ranges.formats import find_format
from ampbench.ranges.headroom import flushed_count
from ampbench.records.ranges import GRADIENT, Magnitudes

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
    power = math.ceil(math.log2(form.overflow) - math.log2(worst.largest))
    while worst.largest * 2.0**power >= form.overflow:
        power -= 1
    power = min(power, _HIGHEST)
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

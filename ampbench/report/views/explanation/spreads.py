"""Where most magnitudes of a module lie, from their histograms by exponent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ampbench.ranges.formats import find_format
from ampbench.ranges.headroom import FLUSHES, Headroom, headroom
from ampbench.records.ranges import Magnitudes

LOW, HIGH = 0.001, 0.999
"""A bar spans the values between these quantiles of those that are not zero."""


def quantile(values: Sequence[Magnitudes], share: float) -> float | None:
    """Return the magnitude below which `share` (0 to 1) of all finite values of `values` lie that are not zero.

    Within an exponent they are taken as evenly spread over the logarithms; none is above the largest. None where there
    is no such value.
    """
    counts: dict[int, int] = {}
    for row in values:
        for place, count in enumerate(row.counts):
            if count:
                counts[row.lowest + place] = counts.get(row.lowest + place, 0) + count
    peak = largest(values)
    if not counts or peak is None:
        return None
    wanted = share * sum(counts.values())
    below = 0
    for exponent in sorted(counts):
        if below + counts[exponent] >= wanted:
            return min(math.ldexp(2.0 ** ((wanted - below) / counts[exponent]), exponent), peak)
        below += counts[exponent]
    return peak


def largest(values: Sequence[Magnitudes]) -> float | None:
    """Return the largest finite magnitude, None where there is none or all are zero."""
    return max((row.largest for row in values if row.largest), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The values of one kind in a module: None where there are none that are finite and not zero."""

    module: str
    values: Sequence[Magnitudes]
    low: float | None
    high: float | None
    peak: float | None

    @property
    def overflows(self) -> bool:
        """Whether the largest becomes infinite in fp16."""
        return self.peak is not None and self.peak >= find_format("fp16").overflow

    @property
    def flushed(self) -> float:
        """The share that becomes zero in fp16."""
        return joint(self.values, "fp16").flushed or 0.0

    @property
    def nonfinite(self) -> int:
        """How many values were not finite in fp32."""
        return sum(row.nonfinite for row in self.values)

    @property
    def tightness(self) -> float:
        """How much its values have to do with the limits of fp16: what comes first where not all can be drawn."""
        if self.peak is None:
            return math.inf if self.nonfinite else -math.inf
        over = math.log2(self.peak / find_format("fp16").overflow)
        return (1e6 if self.nonfinite or self.overflows or self.flushed >= FLUSHES else 0.0) + over


def spread_of(module: str, values: Sequence[Magnitudes]) -> Spread:
    """Return the spread of `values`, all of one kind in a module, between the quantiles `LOW` and `HIGH`."""
    return Spread(
        module=module,
        values=values,
        low=quantile(values, LOW),
        high=quantile(values, HIGH),
        peak=largest(values),
    )


def joint(values: Sequence[Magnitudes], dtype: str) -> Headroom:
    """Return how several histograms fit into a format together."""
    found = [(headroom(row, dtype), row.elements - row.nonfinite) for row in values]
    known = [(one, count) for one, count in found if one.reach is not None]
    total = sum(count for _, count in known)
    if not total:
        return Headroom()

    def share(name: str) -> float:
        return sum((getattr(one, name) or 0.0) * count for one, count in known) / total

    reach = max(one.reach or 0.0 for one, _ in known)
    return Headroom(reach=reach, overflow=share("overflow"), flushed=share("flushed"), subnormal=share("subnormal"))

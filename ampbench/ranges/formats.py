"""What a floating format can hold, as far as headroom asks."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ampbench.errors import UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A binary format of IEEE 754's kind: `digits` is the precision in bits, the hidden one included.

    `highest` and `lowest` are the exponents of its largest and smallest normal numbers.
    """

    name: str
    digits: int
    highest: int
    lowest: int

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return (2.0 - 2.0 ** (1 - self.digits)) * 2.0**self.highest

    @property
    def overflow(self) -> float:
        """The smallest magnitude that rounding to nearest takes to infinity: half a unit above the largest."""
        return (2.0 - 2.0**-self.digits) * 2.0**self.highest

    @property
    def normal(self) -> float:
        """The smallest normal number."""
        return 2.0**self.lowest

    @property
    def flush(self) -> float:
        """The largest magnitude that rounding to nearest takes to zero: half the smallest subnormal, a tie to even."""
        return 2.0 ** (self.lowest - self.digits)


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "fp16": Format(name="fp16", digits=11, highest=15, lowest=-14),
        "bf16": Format(name="bf16", digits=8, highest=127, lowest=-126),
    }
)
"""The low formats by their short names: IEEE 754's binary16, and the upper half of binary32."""


def find_format(dtype: str) -> Format:
    """Return the format of a short dtype; raises `UnknownNameError` for any but those of `FORMATS`."""
    if dtype not in FORMATS:
        raise UnknownNameError("low dtype", dtype, FORMATS)
    return FORMATS[dtype]

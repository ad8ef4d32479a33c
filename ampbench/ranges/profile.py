"""Errors of modules along the network, ranked and told apart: what a module adds and what it is handed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ampbench.records.ranges import ModuleError


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRow:
    """One module in the order of running (`place`, from 0): relative L2 errors of its outputs, None where undefined.

    `own` is made on exact inputs, `total` is that of the whole low-precision run, `inherited` the part of `total` that
    came with the inputs.
    """

    place: int
    module: str
    kind: str
    own: float | None
    total: float | None
    inherited: float | None


def with_totals(errors: Iterable[ModuleError], totals: Mapping[str, tuple[float | None, int]]) -> list[ModuleError]:
    """Return `errors` with the total error, and the number of elements it was measured on, of each module."""
    return [
        replace(row, total_rel_l2=totals[row.module][0], sampled=totals[row.module][1]) if row.module in totals else row
        for row in errors
    ]


def layer_profile(errors: Sequence[ModuleError]) -> list[ProfileRow]:
    """Return a row per module in the order of running.

    Roundings of different modules are independent, so that errors add in squares: inherited is the square root of
    total² - own², and 0 where own is the larger.
    """
    return [
        ProfileRow(
            place=place,
            module=row.module,
            kind=row.kind,
            own=row.own_rel_l2,
            total=row.total_rel_l2,
            inherited=_inherited(row.own_rel_l2, row.total_rel_l2),
        )
        for place, row in enumerate(errors)
    ]


def ranked(errors: Iterable[ModuleError]) -> list[ModuleError]:
    """Return the modules that were compared, those to keep in fp32 first.

    First those that overflow although their inputs can be held, then those whose inputs cannot, each by the share of
    their outputs; then by their own error, which nears 1 where outputs flush. Equal ones stay in the order of running.
    """
    return sorted(
        (row for row in errors if row.elements),
        key=lambda row: (
            not row.overflowed or row.inputs_overflowed > 0,
            -row.overflowed / row.elements,
            -(row.own_rel_l2 or 0.0),
        ),
    )


def _inherited(own: float | None, total: float | None) -> float | None:
    return None if own is None or total is None else math.sqrt(max(total**2 - own**2, 0.0))

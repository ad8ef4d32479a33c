"""The sets that were weighed and the modules that are kept, as rows of plain values. Pure functions, without torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ampbench.keeping.islands import WHOLE, units_of
from ampbench.keeping.weighing import Point
from ampbench.records.keeping import SearchSpace
from ampbench.records.ranges import ModuleError

COLUMNS = (
    "kept", "modules", "found", "output_rel_l2", "grad_rel_l2", "update_kept", "update_nonfinite", "meets_budget",
    "seconds", "ratio", "ratio_low", "ratio_high", "peak_memory_bytes", "on_front",
)  # fmt: skip
"""The columns of `point_rows`: the islands kept, space between them; how many modules that keeps; what it comes to.

`update_kept` and `update_nonfinite` are as in `Trial`, undefined where the search bounds nothing of updates.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRow:
    """A unit that is kept: its `modules`, and what is known of it.

    `error` is its own error in low precision on exact inputs (None: not measured), the rest as in `Unit`.
    """

    modules: list[str]
    kind: str
    error: ModuleError | None
    seconds: float
    weight_bytes: int
    output_bytes: int


def point_rows(points: Iterable[Point]) -> list[list[Any]]:
    """Return a row of `COLUMNS` for each set."""
    return [
        [
            "(all)" if point.kept == WHOLE else " ".join(point.kept),
            point.units,
            point.found,
            point.output_rel_l2,
            point.grad_rel_l2,
            point.update_kept,
            point.update_nonfinite,
            point.meets,
            point.seconds,
            *(_ends(point)),
            point.peak_bytes,
            point.on_front,
        ]
        for point in points
    ]


def kept_rows(space: SearchSpace, kept: Sequence[str]) -> list[KeptRow]:
    """Return a row for each unit that the set `kept` keeps, in the order of running."""
    errors = {error.module: error for error in space.errors if error.elements}
    rows = []
    for index in sorted(units_of(space, kept)):
        unit = space.units[index]
        known = [errors[module] for module in unit.modules if module in errors]
        rows.append(
            KeptRow(
                modules=unit.modules,
                kind=unit.kind,
                error=max(known, key=lambda error: (error.overflowed, error.own_rel_l2 or 0.0), default=None),
                seconds=unit.seconds,
                weight_bytes=unit.weight_bytes,
                output_bytes=unit.output_bytes,
            )
        )
    return rows


def _ends(point: Point) -> list[float | None]:
    ratio = point.against_low
    return [None, None, None] if ratio is None else [ratio.value, ratio.low, ratio.high]

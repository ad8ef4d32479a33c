"""Where the texts of points stand in a chart, so that none covers another or a point."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 580.0, 270.0
"""Pixels of the drawing that is in the page, within its axes and paddings; a wider one has more room."""
_CHARACTER, _LINE = 7.5, 13.0
"""Pixels of a character and of a line."""
_POINT = 7.0
"""Pixels from the middle of a point to where a text begins."""
_AWAY = 10.0
"""So many pixels may a text reach beyond the drawing."""

SIDES = ("above right", "above left", "below right", "below left", "above", "below")
"""Where a text may stand, the first that is free is taken."""


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "_Box") -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    @property
    def is_inside(self) -> bool:
        return (
            self.left >= -_AWAY and self.top >= -_AWAY and self.right <= WIDTH + _AWAY and self.bottom <= HEIGHT + _AWAY
        )


def sides(
    places: Sequence[tuple[float, float]],
    texts: Sequence[str],
    across: tuple[float, float],
    up: tuple[float, float],
) -> list[str | None]:
    """Return on which of `SIDES` the text of each point stands; None where all are taken. The first choose first.

    `places` are x and y of the points in a drawing that reaches over the x of `across` and the y of `up`, on any scales
    that are linear.
    """
    middles = [(_share(x, *across) * WIDTH, (1.0 - _share(y, *up)) * HEIGHT) for x, y in places]
    points = [_Box(x - _POINT, y - _POINT, x + _POINT, y + _POINT) for x, y in middles]
    taken: list[_Box] = []
    found: list[str | None] = []
    for place, text in enumerate(texts):
        others = [*taken, *(box for other, box in enumerate(points) if other != place)]
        free = [
            (side, box)
            for side in SIDES
            if (box := _box(side, middles[place], text)).is_inside and not any(box.meets(other) for other in others)
        ]
        found.append(free[0][0] if free else None)
        taken += [box for _, box in free[:1]]
    return found


def standing(field: str) -> dict[str, Any]:
    """Return the properties of a text mark that stands on the side that `field` of its row names."""
    across = f"indexof(datum.{field}, 'left') >= 0 ? {{}} : indexof(datum.{field}, 'right') >= 0 ? {{}} : {{}}"
    up = f"indexof(datum.{field}, 'above') == 0"
    return {
        "align": {"expr": across.format("'right'", "'left'", "'center'")},
        "dx": {"expr": across.format(-_POINT, _POINT, 0)},
        "baseline": {"expr": f"{up} ? 'bottom' : 'top'"},
        "dy": {"expr": f"(indexof(datum.{field}, ' ') >= 0 ? 4 : 9) * ({up} ? -1 : 1)"},
    }


def _share(value: float, low: float, high: float) -> float:
    """Return how far from `low` to `high` a value is: 0 to 1, in the middle where both are one."""
    return (value - low) / (high - low) if high > low else 0.5


def _box(side: str, middle: tuple[float, float], text: str) -> _Box:
    """Return the room that a text takes on one side of a point."""
    x, y = middle
    width = _CHARACTER * len(text)
    left = x - width / 2
    if "left" in side:
        left = x - _POINT - width
    elif "right" in side:
        left = x + _POINT
    away = 4.0 if " " in side else 9.0
    top = y - away - _LINE if side.startswith("above") else y + away
    return _Box(left, top, left + width, top + _LINE)

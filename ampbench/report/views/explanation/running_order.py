"""The axis on which the modules of a network stand in the order of running, and which of very many have a place."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ampbench.ranges.wording import ROOT
from ampbench.report.vega import middle_cut
from ampbench.report.view import Rows

T = TypeVar("T")

DRAWN = 300
"""So many modules of a network are drawn at most: of more an eye tells none from its neighbours."""

_CHARACTERS = 24
"""So many characters of a name stand at the axis: which block it is in and its own name, without what lies between."""
_WIDTH = 7.4
"""Pixels of a character at most: a browser's font may be wider than the one that was measured with."""


def modules_axis(rows: Rows) -> dict[str, Any]:
    """Return the encoding of the field `module` of `rows` along x in the order of `place`.

    Names stand upright, as many as there is room for. That is made for those of the first `case`, which is drawn into
    the page; a browser that draws another measures itself.
    """
    drawn = [row["module"] for row in rows if row["case"] == rows[0]["case"] and row["module"]]
    longest = max(map(len, drawn), default=0)
    axis = {
        "labelAngle": -90,
        "labelExpr": middle_cut(_CHARACTERS),
        "labelLimit": 0,
        "labelOverlap": "greedy",
        "labelSeparation": 1,
        "minExtent": _WIDTH * min(longest, _CHARACTERS),
        "ticks": False,
    }
    return {
        "field": "module",
        "type": "nominal",
        "sort": {"field": "place", "op": "min"},
        "title": "modules, in the order of running",
        "axis": axis,
    }


def shown_name(module: str) -> str:
    """Return the path of a module; of the network itself, which has none, what it is."""
    return module or ROOT


def thinned(modules: Sequence[T], worth: Callable[[T], float], most: int = DRAWN) -> list[T]:
    """Return at most `most` of `modules` in their order: those of the greatest `worth`, the first of equal ones."""
    if len(modules) <= most:
        return list(modules)
    order = sorted(range(len(modules)), key=lambda place: (-worth(modules[place]), place))
    return [modules[place] for place in sorted(order[:most])]

"""Speed and memory against error, one point a case, with the Pareto front."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampbench.precisions import BASELINE
from ampbench.report import palette
from ampbench.report.machines import Machine, machines
from ampbench.report.material import Material, ShownCase
from ampbench.report.text import fit
from ampbench.report.vega import budget_rule, tooltip
from ampbench.report.view import Chart, Rows, View
from ampbench.report.views.precisions import LEAST_SPAN
from ampbench.rows import number, precision_label, times
from ampbench.units import UNDEFINED, counted, format_error

LEAST_ERRORS = 10.0
"""The axis of errors reaches at least so many times below and above their middle: two decades."""
LISTED = 20
"""So many cases of a front are listed, the fastest or smallest of it."""

_POINT = {"type": "point", "filled": False, "size": 36, "strokeWidth": 1.5, "opacity": 1}
"""Hollow, so that points on top of each other can be told apart; few and short attributes: there may be 10,000."""
_FRONT_POINT = {"type": "point", "filled": True, "size": 110, "stroke": "var(--ink)", "strokeWidth": 1.5, "opacity": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plane:
    """What stands against the error in a chart: the `column`, which way is better, and the words for it."""

    name: str
    column: str
    axis: str
    best: str
    sign: float
    """What makes less of it better."""
    interpolate: str
    """How the line of the front steps: what is no better than a point of the front lies on its other side."""


_PLANES = (
    _Plane(
        name="speed",
        column="speedup_vs_fp32",
        axis="speed, times fp32 (faster →)",
        best="the fastest",
        sign=-1,
        interpolate="step-before",
    ),
    _Plane(
        name="memory",
        column="memory_ratio_vs_fp32",
        axis="peak memory, times fp32 (← less)",
        best="the one with the least memory",
        sign=1,
        interpolate="step-after",
    ),
)


@dataclass(frozen=True, slots=True)
class _Point:
    """A case in a plane: its `ratio` to fp32, and its output error, which is 0 where it is exact."""

    case: ShownCase
    ratio: float
    error: float


def tradeoff(material: Material) -> View | None:
    """Return the view; None where no precision but fp32 has an error beside its speed or memory."""
    limit = material.budget.output_rel_l2
    parts: list[dict[str, Any]] = []
    datasets: dict[str, Rows] = {}
    found = _by_machine(material)
    for place, (machine, cases) in enumerate(found):
        planes = {plane: points for plane in _PLANES if _worth_drawing(points := _points(cases, plane))}
        fronts = {plane: _front(plane, points) for plane, points in planes.items()}
        rows = _rows(cases, fronts)
        for plane, points in planes.items():
            datasets[f"tradeoff-{place}"] = rows
            chart = Chart(
                id=f"tradeoff-{plane.name}-{place}",
                title=f"{plane.name.capitalize()} against error" + (f" on {machine.title}" if len(found) > 1 else ""),
                alt=_finding(plane, points, fronts[plane], limit),
                spec=_spec(plane, rows, limit),
                dataset=f"tradeoff-{place}",
            )
            listed = [_listed(one) for one in fronts[plane][:LISTED]]
            parts.append(
                {
                    "chart": chart,
                    "plane": plane.name,
                    "front": listed,
                    "more": len(fronts[plane]) - len(listed),
                    "remark": _not_drawn(cases, points),
                }
            )
    if not parts:
        return None
    return View(
        id="tradeoff",
        title="Trade-off",
        template="tradeoff.html",
        content={"parts": parts},
        charts=[part["chart"] for part in parts],
        datasets=datasets,
    )


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the places of the `points` that no other dominates, the least first number first.

    Less is better in both numbers. A point dominates another where it is no worse in either and better in one; equal
    points therefore stand on the front together or not at all. Taken by the first number and, where that is equal, by
    the second, a point is on the front if its second number is less than all before it: O(n log n).
    """
    front: list[int] = []
    for place in sorted(range(len(points)), key=points.__getitem__):
        if not front or points[place][1] < points[front[-1]][1] or points[place] == points[front[-1]]:
            front.append(place)
    return front


def _by_machine(material: Material) -> list[tuple[Machine, list[ShownCase]]]:
    """Return the measured cases by machine: numbers of two machines or torch versions have no front together."""
    cases = {(id(case.shown), case.row["case_id"]): case for case in material.cases if case.row["outcome"] == "ok"}
    found = []
    for machine in machines(material):
        keys = [(id(table.shown), row["case_id"]) for table in machine.tables for row in table.rows]
        if own := [cases[key] for key in keys if key in cases]:
            found.append((machine, own))
    return found


def _points(cases: Iterable[ShownCase], plane: _Plane) -> list[_Point]:
    """Return the cases that have a place in the plane, the exact ones too."""
    found = ((one, _positive(one.row[plane.column]), number(one.row["output_rel_l2"])) for one in cases)
    return [
        _Point(one, ratio, error)
        for one, ratio, error in found
        if ratio is not None and error is not None and 0 <= error < math.inf
    ]


def _positive(value: Any) -> float | None:
    """Return a number that a log axis can show, None for any other."""
    known = number(value)
    return known if known is not None and 0 < known < math.inf else None


def _worth_drawing(points: Iterable[_Point]) -> bool:
    return any(one.error > 0 and one.case.row["precision"] != BASELINE for one in points)


def _front(plane: _Plane, points: Sequence[_Point]) -> list[_Point]:
    return [points[place] for place in pareto_front([(plane.sign * one.ratio, one.error) for one in points])]


def _rows(cases: Iterable[ShownCase], fronts: Mapping[_Plane, Sequence[_Point]]) -> Rows:
    """Return what is drawn of a machine: cases with an error above 0, and beside each number the text of it."""
    members = {plane: {one.case.number for one in front} for plane, front in fronts.items()}
    rows: list[dict[str, Any]] = []
    for one in cases:
        error = _positive(one.row["output_rel_l2"])
        if error is not None:
            row: dict[str, Any] = {"precision": fit(one.row["precision"]), "case": one.name}
            row |= {"error": error, "error_text": format_error(error)}
            for plane in _PLANES:
                ratio = _positive(one.row[plane.column])
                row[plane.name] = ratio
                row[f"{plane.name}_text"] = _times(ratio)
                row[f"{plane.name}_front"] = one.number in members.get(plane, ())
            rows.append(row)
    return rows


def _spec(plane: _Plane, rows: Rows, limit: float) -> dict[str, Any]:
    """Return the chart: the cases, the front as a stepped line and its cases again, marked, and the error budget."""
    scale = {"type": "log", "round": True, "nice": False, "padding": 20}  # whole pixels take fewer bytes
    ratios = [row[plane.name] for row in rows if row[plane.name] is not None]
    errors = [row["error"] for row in rows]
    middle, half = math.sqrt(min(errors) * max(errors)), max(math.sqrt(max(errors) / min(errors)), LEAST_ERRORS)
    axes = {
        "x": {
            "field": plane.name,
            "type": "quantitative",
            "scale": scale | {"domain": [min(LEAST_SPAN[0], *ratios), max(LEAST_SPAN[1], *ratios)]},
            "axis": {"format": "~g"},
            "title": plane.axis,
        },
        "y": {
            "field": "error",
            "type": "quantitative",
            "scale": scale | {"domain": [middle / half, middle * half]},
            "axis": {"format": ".0e", "tickCount": 5},
            "title": "output error (↓ more exact)",
        },
    }
    told = tooltip(case="case", precision="precision", speed_text="speed", error_text="error", memory_text="memory")
    marked = {**axes, **palette.encoded({row["precision"] for row in rows}), "tooltip": told}
    drawn = {"filter": {"field": plane.name, "valid": True}}
    on_front = {"filter": {"field": f"{plane.name}_front", "equal": True}}
    line = {"type": "line", "interpolate": plane.interpolate, "color": "var(--ink)", "strokeWidth": 1.5}
    front = [
        {"mark": line, "transform": [on_front], "encoding": axes},
        {"mark": _FRONT_POINT, "transform": [on_front], "encoding": marked},
    ]
    return {
        "layer": [
            {"mark": _POINT, "transform": [drawn], "encoding": marked},
            *(front if any(row[f"{plane.name}_front"] for row in rows) else []),
            *budget_rule(limit, "y"),
        ]
    }


def _finding(plane: _Plane, points: Sequence[_Point], front: Sequence[_Point], limit: float) -> str:
    """Say how many cases there are, which is the best of them, and which within the error budget."""
    best = front[0]  # of the least cost
    within = min(
        (one for one in points if one.error <= limit), key=lambda one: (plane.sign * one.ratio, one.error), default=None
    )
    said = f"{counted(len(points), 'case')}, {len(front)} on the front; {plane.best} is {_in_words(plane, best)}"
    if within is best:
        return f"{said}, within the error budget of {limit:g}."
    if within is None:
        return f"{said}; none is within the error budget of {limit:g}."
    return f"{said}, beyond the error budget of {limit:g}; within it {_in_words(plane, within)}."


def _in_words(plane: _Plane, one: _Point) -> str:
    return f"{one.case.name} with {_times(one.ratio)} the {plane.name} of fp32 and an error of {_error(one)}"


def _listed(one: _Point) -> dict[str, Any]:
    """Return a row of the table of a front."""
    row = one.case.row
    return {
        "number": one.case.number,
        "case": one.case.bare_name,
        "precision": row["precision"],
        "precision_label": precision_label(row),
        "speed": _times(number(row["speedup_vs_fp32"])),
        "memory": _times(number(row["memory_ratio_vs_fp32"])),
        "error": _error(one),
    }


def _not_drawn(cases: Sequence[ShownCase], points: Sequence[_Point]) -> str:
    """Say how many measured cases of the machine the chart does not show, and why; "" where it shows all."""
    exact = sum(one.error == 0 for one in points)
    said = []
    if exact:
        said.append(f"{counted(exact, 'case')} without any error (a log axis has no 0; the front takes them in)")
    if len(cases) > len(points):
        said.append(f"{counted(len(cases) - len(points), 'case')} without fp32 to compare with or without an error")
    return f"Not drawn: {'; '.join(said)}." if said else ""


def _times(ratio: float | None) -> str:
    return UNDEFINED if ratio is None else times(ratio)


def _error(one: _Point) -> str:
    return format_error(one.error)

"""Loss scaling: where GradScaler settled, whether it did so in every round, and the steps it skipped afterwards."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampbench.records.divergences import Divergence
from ampbench.records.measurements import Round
from ampbench.report import palette
from ampbench.report.material import Material
from ampbench.report.vega import tooltip
from ampbench.report.view import Chart, Choice
from ampbench.report.views.part import CHOICES, LISTED, Part
from ampbench.units import UNDEFINED, counted, format_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scaled:
    """A case that was trained with GradScaler: its divergence pass, if it had one, and its `rounds`."""

    number: int
    name: str
    precision: str
    passed: Divergence | None
    rounds: Sequence[Round]

    @property
    def scales(self) -> list[float]:
        return [one.scaler_scale for one in self.rounds if one.scaler_scale is not None]

    @property
    def moves(self) -> bool:
        return len(set(self.scales)) > 1

    @property
    def skipped(self) -> int:
        passed = self.passed.skipped_steps if self.passed else 0
        return (passed or 0) + sum(one.skipped_steps or 0 for one in self.rounds)


def scaling(material: Material) -> Part | None:
    """Return the cases with GradScaler, those first in which it skipped steps or its scale moved."""
    scaled = _scaled(material)
    if not scaled:
        return None
    scaled.sort(key=lambda one: (not one.skipped, not one.moves))
    rows = [
        {
            "name": one.name,
            "settled": UNDEFINED if one.passed is None else _scale(one.passed.scaler_scale),
            "rounds": _range(one.scales),
            "skipped": UNDEFINED if one.passed is None else format_whole(one.passed.skipped_steps),
            "skipped_rounds": format_whole(sum(known) if (known := _known(one.rounds)) else None),
            "count": len(one.rounds),
        }
        for one in scaled[:LISTED]
    ]
    moving = [one for one in scaled if one.moves][:CHOICES]
    points = _points(moving)
    return Part(
        id="scaling",
        title="Scales that GradScaler settled at",
        said=_said(scaled),
        content={"rows": rows},
        left_out=len(scaled) - len(rows),
        charts=[_chart(moving, points)] if points else [],
        datasets={"explanation-scales": points} if points else {},
    )


def _scaled(material: Material) -> list[_Scaled]:
    rounds: dict[tuple[str, str], list[Round]] = defaultdict(list)
    for shown in material.shown:
        for one in shown.stored.rounds:
            if one.scaler_scale is not None and not one.control:
                rounds[shown.stored.header.run, one.case_id].append(one)
    found = []
    for case in material.cases:
        stored, case_id = case.shown.stored, case.row["case_id"]
        passed, own = stored.divergence.get(case_id), rounds.get((stored.header.run, case_id), [])
        if own or (passed is not None and passed.scaler_scale is not None):
            found.append(
                _Scaled(
                    number=case.number,
                    name=case.name,
                    precision=case.row["precision"],
                    passed=passed,
                    rounds=own,
                )
            )
    return found


def _known(rounds: Sequence[Round]) -> list[int]:
    return [one.skipped_steps for one in rounds if one.skipped_steps is not None]


def _scale(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:g}"


def _range(scales: Sequence[float]) -> str:
    """Return the scale of the rounds, its smallest and largest where it moved."""
    if not scales:
        return UNDEFINED
    return _scale(scales[0]) if len(set(scales)) == 1 else f"{_scale(min(scales))} to {_scale(max(scales))}"


def _said(scaled: Sequence[_Scaled]) -> list[str]:
    moving, skipping = ([one for one in scaled if getattr(one, what)] for what in ("moves", "skipped"))
    said = [
        f"GradScaler skipped steps after its scale had settled in {counted(len(skipping), 'case')} of {len(scaled):,}, "
        f"such as {skipping[0].name}: {skipping[0].skipped:,}."
        if skipping
        else f"GradScaler skipped no step once its scale had settled, in {counted(len(scaled), 'case')}."
    ]
    if moving:
        said.append(f"The scale settled differently from round to round in {counted(len(moving), 'case')}.")
    return said


def _points(moving: Sequence[_Scaled]) -> list[dict[str, Any]]:
    return [
        {
            "case": str(one.number),
            "precision": one.precision,
            "round": each.round,
            "scale": each.scaler_scale,
            "skipped": each.skipped_steps,
        }
        for one in moving
        for each in sorted(one.rounds, key=lambda each: each.round)
        if each.scaler_scale and 0 < each.scaler_scale < math.inf
    ]


def _chart(moving: Sequence[_Scaled], rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Return the scale over the rounds of one case at a time."""
    encoding: dict[str, Any] = {
        "x": {
            "field": "round",
            "type": "quantitative",
            "title": "round",
            "scale": {"zero": False, "padding": 12},
            "axis": {"tickMinStep": 1, "format": "d"},
        },
        "y": {
            "field": "scale",
            "type": "quantitative",
            "title": "loss scale (log scale)",
            "scale": {"type": "log", "base": 2, "padding": 12},
            "axis": {"format": "~g", "values": sorted({row["scale"] for row in rows})},
        },
        **palette.encoded(one.precision for one in moving),
        "tooltip": tooltip(round="round", scale="scale", skipped="skipped steps"),
    }
    return Chart(
        id="explanation-scales",
        title="Loss scale by round",
        alt="",
        spec={"mark": {"type": "line", "point": True}, "encoding": encoding},
        dataset="explanation-scales",
        height=220,
        choose="case",
        choices=[Choice(value=str(one.number), label=one.name, alt=_span(one)) for one in moving],
    )


def _span(one: _Scaled) -> str:
    return f"In {one.name}, the scale lies between {_scale(min(one.scales))} and {_scale(max(one.scales))}."

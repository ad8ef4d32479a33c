"""Headroom: how large the values of a network are, what low precisions can hold of them, and whether they did."""

from collections.abc import Mapping

from ampbench.labels import few
from ampbench.ranges import blocks
from ampbench.ranges.formats import FORMATS
from ampbench.ranges.headlines import headroom_said
from ampbench.records.ranges import RangePass
from ampbench.records.runs import HEADROOM
from ampbench.report.explained import Told, headrooms, untold
from ampbench.report.material import Material
from ampbench.report.views.explanation.magnitudes import magnitude_chart
from ampbench.report.views.part import MODULE_ROWS, Detail, Part, cut, strange, told_part
from ampbench.units import counted


def headroom(material: Material) -> Part | None:
    """Return the cases whose magnitudes were looked at, those with the largest values first."""
    found, missing = sorted(headrooms(material), key=_reach, reverse=True), untold(material, HEADROOM)
    if not (found or missing):
        return None
    charts, datasets, said = magnitude_chart(found)
    return told_part(
        found,
        missing,
        id="headroom",
        title="Headroom",
        said=[*_said(found), *strange(material, HEADROOM, "Looked at"), *said],
        row=_row,
        detail=_detail,
        drawn=(charts, datasets),
    )


def _said(found: list[Told[RangePass]]) -> list[str]:
    """Return which of several cases overflow fp16; of one, its own sentences say it."""
    if len(found) < 2:
        return []
    over = [one for one in found if _reach(one) >= FORMATS["fp16"].overflow]
    which = f": {few(one.name for one in over)}" if over else ""
    return [f"Of {counted(len(found), 'case')}, {len(over) or 'none'} of whose values would overflow fp16{which}."]


def _reach(one: Told[RangePass]) -> float:
    return max((row.largest for row in one.found.magnitudes if row.largest is not None), default=0.0)


def _row(one: Told[RangePass]) -> Mapping[str, object]:
    return {"name": one.name, "said": headroom_said(one.found)}


def _detail(one: Told[RangePass]) -> Detail:
    found = one.found
    first, *lines = (block for block in blocks.headroom_section(one.case, found).blocks if not block.headers)
    shown = [cut(table, MODULE_ROWS) for make in (blocks.values, blocks.failed_predictions) for table in make(found)]
    folded = {
        "Gradients and loss scales": [
            cut(one, MODULE_ROWS) for one in (*blocks.gradients(found), *blocks.seen_gradients(found))
        ],
        "Updates that would be lost": [cut(one, MODULE_ROWS) for one in blocks.updates(found)],
    }
    return Detail(
        name=one.name,
        said=first.title,
        blocks=[*lines, *shown],
        folded={title: tables for title, tables in folded.items() if tables},
    )

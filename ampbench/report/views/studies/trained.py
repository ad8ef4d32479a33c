"""The trainings of a workload in several precisions, and how these look in charts."""

from collections.abc import Mapping
from typing import Any

from ampbench.precisions import ordered
from ampbench.records.studies import CONTROL, REFERENCE, Training
from ampbench.report import palette
from ampbench.report.view import Rows
from ampbench.studied.convergence.learning import Learned
from ampbench.studied.convergence.verdicts import NAMES

ARM_LOOKS: Mapping[str, tuple[str, str]] = {
    NAMES[CONTROL]: ("--faint", "triangle-right"),
    NAMES[REFERENCE]: ("--dtype-fp64", "triangle-left"),
}
"""Colours and shapes of the trainings that tell what rounding alone does."""


def trainings_of(found: Learned) -> dict[str, list[Training]]:
    """Return the trainings by precision, in the order of every table, then those of the arms of fp32."""
    own = {row.name: row.trainings for row in found.rows}
    return {name: own[name] for name in (*precisions_of(found), *ARM_LOOKS) if name in own}


def precisions_of(found: Learned) -> list[str]:
    """Return the names of the rows but for those of the arms of fp32."""
    return ordered(row.name for row in found.rows if not row.arm)


def looks_of(rows: Rows, dashed: bool = False) -> dict[str, Any]:
    """Return the encoding of precisions and arms by colour and shape; the lines of the arms are dashed."""
    names = {row["precision"] for row in rows}
    known = palette.encoded(names - ARM_LOOKS.keys())
    arms = [name for name in ARM_LOOKS if name in names]
    for place, name in enumerate(("color", "shape")):
        scale = known[name]["scale"]
        own = [ARM_LOOKS[arm][place] for arm in arms]
        known[name] = {
            **known[name],
            "scale": {
                "domain": [*scale["domain"], *arms],
                "range": [*scale["range"], *(own if place else [f"var({colour})" for colour in own])],
            },
            "legend": {"title": None, "columns": 4, "columnPadding": 28, "labelLimit": 220},
        }
    if dashed and arms:
        tests = " || ".join(f"datum.precision == '{name}'" for name in arms)
        known["strokeDash"] = {"condition": {"test": tests, "value": [5, 3]}, "value": [1, 0]}
    return known

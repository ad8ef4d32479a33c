"""What each number on the page means, and how advice and verdicts are reached.

The prose is in the template; its numbers come from the code that decides.
"""

from collections.abc import Mapping
from typing import Any

from ampbench import columns, frames, stats, updates
from ampbench.advice import DISAGREEMENT_ALPHA, FASTER_WITHOUT_INTERVALS, LARGEST_SPEEDUP, WORTH
from ampbench.comparing import deciding, fitness
from ampbench.comparing.exact import LUCK
from ampbench.comparing.times import TIME
from ampbench.metrics import COLUMNS, COMPARED, GATED, MEAN, Column, Gate
from ampbench.precisions import DEFAULT, PRECISIONS, ordered
from ampbench.records.measurements import OTHER_SHARE, STEAL_SHARE
from ampbench.report.material import Material
from ampbench.report.view import View
from ampbench.rows import number
from ampbench.trends import neighbours, steps
from ampbench.trends.series import Rule
from ampbench.units import format_limit, format_quantity

HEADERS: Mapping[str, str] = {metric: column.header for column in columns.COLUMNS for metric in column.metrics}
"""What heads the metrics in the table of cases (`columns.COLUMNS`); what comparisons judge has the metric's label."""


def method(material: Material) -> View | None:
    """Return the view; None where there is no run."""
    if not material.shown:
        return None
    rows = [case.row for case in material.cases]
    comparisons = material.comparisons
    judged = bool(comparisons or material.trends)
    heads = columns.shown(row for row in rows if row["outcome"] == "ok")
    told = {metric for head in heads for metric in head.metrics}
    used = [
        column
        for column in COLUMNS.values()
        if (column.name in told or (judged and column.gate)) and any(_known(row[column.name]) for row in rows)
    ]
    drifted = {one.metric for comparison in comparisons for one in comparison.findings} & COMPARED.keys()
    used += [COMPARED[name] for name in drifted]
    devices = {row["device"] for row in rows}
    content = {
        "columns": [_explained(column) for column in used],
        "judged": judged,
        "names": {column.name for column in used},
        "phases": {row["phase"] for row in rows},
        "accelerated": bool(devices - {"cpu"}),
        "budget": material.budget,
        "agreement": format_limit(material.budget.argmax_agreement),
        "flushed": format_limit(material.budget.grad_flushed_share),
        "advised": any(one.advice for one in material.shown),
        "precisions": _meant(material),
        "default": any(row["precision"] == DEFAULT for row in rows),
        "interleaved": any(one.interleaved for one in comparisons),
        "stored": any(not one.interleaved for one in comparisons),
        "imported": any(one.stored.header.imported for one in material.shown),
        "rules": {one.rule for trend in material.trends for one in trend.series},
        "constants": _CONSTANTS,
    }
    return View(id="method", title="Method", template="method.html", content=content)


def _meant(material: Material) -> dict[str, str]:
    """Return what the precisions on the page are, as `ampbench list precisions` says it; a user's own by its run."""
    own = {one.name: one.summary for shown in material.shown for one in shown.stored.header.precisions}
    known = {name: row.summary for name, row in PRECISIONS.items()} | own
    names = ordered(case.row["precision"] for case in material.cases)
    return {name: known[name] for name in names if known.get(name)}


def _known(value: object) -> bool:
    """Return whether a row has a number or a name."""
    return bool(value) if isinstance(value, str) else number(value) is not None


def _explained(column: Column) -> Mapping[str, str]:
    """Return a column as a row of the table."""
    return {
        "label": ", ".join(dict.fromkeys([HEADERS.get(column.name, column.label), column.label])),
        "name": column.name,
        "unit": column.unit,
        "better": column.better or "",
        "summary": column.summary,
        "gate": "" if column.gate is None else gate_in_words(column.gate, column.unit),
    }


def gate_in_words(gate: Gate, unit: str) -> str:
    """Return which changes of a metric count."""
    written = format_limit(gate.floor) if unit == "share" else format_quantity(gate.floor, unit)
    floor = [written] if gate.floor else []

    def over(threshold: float) -> str:
        parts = [*([format_limit(threshold)] if threshold else []), *floor]
        return f"over {' and '.join(parts)}" if parts else "any"

    said = over(gate.threshold) + (", where certain" if gate.kind == "time" else "")
    if gate.threshold == gate.elsewhere:
        return said
    return f"{said}; for other code or another environment {over(gate.elsewhere)}"


_CONSTANTS: Mapping[str, Any] = {
    "rounds_for_interval": stats.ROUNDS_FOR_INTERVAL,
    "disturbed": frames.DISTURBED,
    "unquiet": format_limit(frames.UNQUIET_SHARE),
    "inflated": stats.INFLATED,
    "faster": FASTER_WITHOUT_INTERVALS,
    "worth": WORTH,
    "largest": f"{LARGEST_SPEEDUP:g}",
    "disagreement_alpha": format_limit(DISAGREEMENT_ALPHA),
    "kept": format_limit(updates.LEAST_KEPT),
    "tensor_kept": format_limit(updates.LEAST_KEPT_OF_A_TENSOR),
    "swallowed": format_limit(updates.MOST_SWALLOWED),
    "room": updates.ROOM,
    "tensor": updates.OF_A_TENSOR,
    "bias": format_limit(updates.MOST_BIAS),
    "looks": deciding.LOOKS,
    "fresh": deciding.CONFIRMATION_BLOCKS,
    "alpha": deciding.ALPHA,
    "family_alpha": format_limit(deciding.FAMILY_ALPHA),
    "confirmation_alpha": format_limit(deciding.CONFIRMATION_ALPHA),
    "equivalence_alpha": format_limit(deciding.EQUIVALENCE_ALPHA),
    "control_alpha": format_limit(deciding.CONTROL_ALPHA),
    "slow": deciding.SLOW,
    "apart": format_limit(deciding.LARGEST_SHARE_OF_ROUNDS_APART),
    "minimum_rounds": deciding.MINIMUM_ROUNDS,
    "steal": format_limit(STEAL_SHARE),
    "other": format_limit(OTHER_SHARE),
    "load": fitness.LOAD_PER_CPU,
    "clock": format_limit(fitness.SLOW_CLOCK),
    "unfit": format_limit(fitness.UNFIT_SHARE),
    "points": steps.POINTS,
    "certainty": steps.CERTAINTY,
    "ordered": format_limit((1 + steps.SEPARATION) / 2),
    "series_alpha": format_limit(neighbours.FAMILY_ALPHA),
    "luck": LUCK,
    "time_threshold": format_limit(GATED[TIME].threshold),
    "mean_threshold": format_limit(GATED[MEAN].threshold),
    "steps": Rule.STEPS,
    "neighbours": Rule.NEIGHBOURS,
    "exact": Rule.EXACT,
}
"""What the template says in numbers, each where the rule that uses it is."""

"""The sections of machine and method: on what the runs were measured, how quiet that was, and what its words mean.

The prose on method is in the template; its numbers come from the code that decides.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from ampbench.core import stats
from ampbench.core.precisions import PRECISIONS, ordered
from ampbench.core.units import UNDEFINED, format_percent
from ampbench.judge import rounds as fitness
from ampbench.judge.rounds import MeasuredRun
from ampbench.report.facts import moment
from ampbench.report.material import Material
from ampbench.show.document import Block
from ampbench.show.page import Part, View, run_name, view_of_parts
from ampbench.show.results import dotted
from ampbench.show.rows import number
from ampbench.store import CUT, StoredRun


def environment(material: Material) -> View | None:
    """Return the view; None where there is no run."""
    own = [shown.stored for shown in material.shown] or list(material.explanations)
    runs = [*([material.baseline] if material.baseline else []), *own]
    if not runs:
        return None
    heads = [run_name(run) for run in runs]
    if material.baseline:
        heads[0] = f"baseline: {heads[0]}"
    went = [[name, *_went(run)] for name, run in zip(heads, runs, strict=True)]
    differing, same = _facts(runs)
    blocks = [
        Block("how it went", ["run", "started", "ended", *QUIETNESS], went),
        *([Block("what differs", ["fact", *heads], differing)] if differing else []),
        Block("what is the same" if len(runs) > 1 else "all that is recorded", ["fact", "value"], same, folded=True),
    ]
    return view_of_parts("environment", "Environment", [Part(id="runs", title="", blocks=blocks)])


def _facts(runs: Sequence[StoredRun]) -> tuple[list[list[str]], list[list[str]]]:
    """Return the facts of the runs' headers by name: those in which they differ, side by side, and those they share."""
    sides = [dict(dotted("", msgspec.to_builtins(run.header))) for run in runs]
    differing, same = [], []
    for name in dict.fromkeys(name for side in sides for name in side):
        texts = [side.get(name, UNDEFINED) for side in sides]
        if len(set(texts)) > 1:
            differing.append([name, *texts])
        else:
            same.append([name, texts[0]])
    return differing, same


QUIETNESS = ("rounds", "unfit rounds", "disturbed samples", "control, measured twice")


def _went(stored: StoredRun) -> list[str]:
    """Return when a run began, how it ended, and how quiet the machine was."""
    control, disturbed = fitness.control_ratio(stored), fitness.disturbed_share(stored)
    unfit = fitness.unfit_rounds(MeasuredRun.of(stored)).cause >= 0 if stored.rounds else None
    return [
        moment(stored.header.started_at),
        "; ".join(filter(None, [stored.ending, f"its file {CUT}" if stored.cut else ""])) or UNDEFINED,
        f"{len(stored.rounds):,}",
        UNDEFINED if unfit is None else format_percent(float(np.mean(unfit))),
        UNDEFINED if disturbed is None else format_percent(disturbed),
        UNDEFINED if control is None else f"{format_percent(control.apart - 1)} apart",
    ]


def method(material: Material) -> View | None:
    """Return the view; None where there is no run."""
    if not material.shown:
        return None
    rows = [case.row for case in material.cases]
    judged = bool(material.comparisons or material.trends)
    content = {
        "judged": judged,
        "names": {name for name in ("output_rel_l2", "peak_memory_bytes") if any(number(row[name]) for row in rows)},
        "phases": {row["phase"] for row in rows},
        "budget": material.budget,
        "advised": any(one.advice for one in material.shown),
        "precisions": _meant(material),
        "imported": any(one.stored.header.imported for one in material.shown),
        "least_rounds": stats.ROUNDS_FOR_INTERVAL,
    }
    return View(id="method", title="Method", template="method.html", content=content)


def _meant(material: Material) -> dict[str, str]:
    """Return what the precisions on the page are, as `ampbench list precisions` says it; a user's own by its run."""
    own = {one.name: one.summary for shown in material.shown for one in shown.stored.header.precisions}
    known = {name: row.summary for name, row in PRECISIONS.items()} | own
    names = ordered(case.row["precision"] for case in material.cases)
    return {name: known[name] for name in names if known.get(name)}

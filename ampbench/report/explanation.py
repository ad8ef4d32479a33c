"""The sections of why: what studies make of the runs that explain and study, and what plain runs tell by themselves.

The latter are made here: in which parameter gradients err most, what broke and where, the notes of the divergence pass.
"""

from ampbench.core.metrics import COLUMNS
from ampbench.core.units import UNDEFINED, counted
from ampbench.judge.rounds import WEIGHTS_DIFFER
from ampbench.records.labels import few
from ampbench.report.facts import parts
from ampbench.report.material import Material, ShownCase
from ampbench.show.document import Block, Code, Column, cut, table
from ampbench.show.page import LISTED, Detail, Part, View, view_of_parts
from ampbench.show.results import written
from ampbench.show.rows import number, precision_label

NAMED = 3
"""The number of cases named for a failure or a note that several share."""
GRADIENTS = (
    "grad_rel_l2", "grad_not_finite", "grad_worst_parameter", "grad_flushed_share", "loss_rel_error", "scaler_scale",
)  # fmt: skip
"""The columns of the table of gradients, beside case and precision."""


def explanation(material: Material) -> View | None:
    """Return the section of what explains; None where no run holds data for any part of it."""
    own = [(kind, part) for kind, part in parts(material) if kind.group == "explain"]
    of_cases = [part for kind, part in own if kind.of_cases]
    of_devices = [part for kind, part in own if not kind.of_cases]
    found = [*of_cases, gradients(material), *of_devices, failures(material), remarks(material)]
    return view_of_parts("explanation", "Explanation", found)


def studies(material: Material) -> View | None:
    """Return the section of what studies found; None where no run holds data for any part of it."""
    return view_of_parts("studies", "Studies", [part for kind, part in parts(material) if kind.group != "explain"])


def failures(material: Material) -> Part | None:
    """Return the failures, cases that broke in the same way together."""
    together: dict[tuple[str, str], list[str]] = {}
    for case in material.cases:
        if case.row["outcome"] == "failed":
            together.setdefault(_broken(case), []).append(case.name)
    if not together:
        return None
    count = sum(map(len, together.values()))
    ways = f", in {len(together):,} ways" if 1 < len(together) < count else ""
    return Part(
        id="failures",
        title="Failures",
        said=[f"{counted(count, 'case')} failed{ways}."],
        details=[
            Detail(name=_named(cases), said=said, code=Code("Message and last frames", text))
            for (said, text), cases in list(together.items())[:LISTED]
        ],
        left_out=max(len(together) - LISTED, 0),
    )


def _broken(case: ShownCase) -> tuple[str, str]:
    """Return by what and where a case broke, and its message with its last frames; without a failure weights differ."""
    failure = case.shown.stored.failures.get(case.row["case_id"])
    if failure is None:
        return f"{WEIGHTS_DIFFER} (in the round)", ""
    frames = [frame.rstrip("\n") for frame in failure.frames]
    stage = "round" if failure.stage == "round" else f"{failure.stage} pass"
    return f"{failure.cause} (in the {stage})", "\n".join([failure.message, *frames]).strip("\n")


def remarks(material: Material) -> Part | None:
    """Return the notes of the divergence passes, each with the cases that share it, the commonest first."""
    together: dict[str, list[str]] = {}
    for case in material.cases:
        found = case.shown.stored.divergence.get(case.row["case_id"])
        for note in dict.fromkeys(found.notes if found else ()):
            together.setdefault(note, []).append(case.name)
    rows = [(note, _named(cases)) for note, cases in sorted(together.items(), key=lambda each: -len(each[1]))]
    block = cut(Block("the commonest first", ["note", "cases"], rows), LISTED)
    return Part(id="notes", title="Notes of the divergence pass", blocks=[block]) if rows else None


def _named(cases: list[str]) -> str:
    """Return how many cases there are and the first of them: "12 cases: a, b, c and 9 more"."""
    return cases[0] if len(cases) == 1 else f"{counted(len(cases), 'case')}: {few(cases, NAMED)}"


def gradients(material: Material) -> Part | None:
    """Return the training cases with an error of gradients, the worst first."""
    trained = [case for case in material.cases if _badness(case) != (False, -1.0)]
    trained.sort(key=_badness, reverse=True)
    columns: list[Column[ShownCase]] = [
        Column("", lambda case: case.bare_name, "case"),
        Column("", lambda case: precision_label(case.row), "precision", whole=True),
        *map(_column, GRADIENTS),
    ]
    title = "Training cases against their fp64 reference, the worst gradients first"
    block = cut(table(title, columns, trained), LISTED)
    return Part(id="gradients", title="Where gradients go wrong", blocks=[block]) if trained else None


def _column(name: str) -> Column[ShownCase]:
    column = COLUMNS[name]

    def cell(case: ShownCase) -> str:
        return (written(case.row, name) if column.unit else case.row[name]) or UNDEFINED

    return Column("", cell, column.label, column.unit, cell, rare=True)


def _badness(case: ShownCase) -> tuple[bool, float]:
    error = number(case.row["grad_rel_l2"])
    return bool(case.row["grad_not_finite"]), -1.0 if error is None else error

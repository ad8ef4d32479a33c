"""The section of cases: each that was measured or failed once, with its numbers and verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ampbench.core.metrics import METRICS
from ampbench.core.precisions import PRECISIONS, ordered
from ampbench.core.units import UNDEFINED, counted
from ampbench.records.changes import ChangeCode, ChangeStatus
from ampbench.records.labels import common_traits
from ampbench.report.material import Material, Shown, ShownCase
from ampbench.show.comparison import WORST_FIRST
from ampbench.show.page import View
from ampbench.show.results import COLUMNS, Column, metric_column
from ampbench.show.rows import Row, grouped, precision_label

VERDICT = COLUMNS[-1]
FURTHER = (
    "speedup_vs_tf32", "speedup_vs_default", "energy_per_step", "ceiling_share", "busy_share", "argmax_agreement",
    "grad_rel_l2",
)  # fmt: skip
"""The metrics of cases beside those that decide."""

FILTERS = ("precision", "phase", "device", "outcome", "change")
"""What a reader may filter by, where the cases differ in it."""


class Cell(NamedTuple):
    """A cell: its text, and a second line; `left`: it is words, set to the left."""

    text: str
    more: str = ""
    left: bool = False


class Head(NamedTuple):
    """A column's header. `order` are the values of a column that has an order of its own, `text` is set to the left.

    `means` is told under the pointer.
    """

    key: str
    title: str
    order: str = ""
    text: bool = False
    means: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row of the table. `data` are its values by the name of a filter; `first`: it is the first of its group.

    `changes` are the statuses that the comparison with the baseline gives it, the worst first. A case that is not `ok`
    has a `reason` and no `cells`.
    """

    case: ShownCase
    run: str
    precision: str
    advised: bool
    first: bool
    data: Mapping[str, str]
    changes: Sequence[ChangeStatus] = ()
    cells: Sequence[Cell] = ()
    reason: str = ""


def cases(material: Material) -> View | None:
    """Return the view; None where no case was measured or failed."""
    shown_columns = columns_of([case.row for case in material.cases if case.row["outcome"] == "ok"])
    by_run: dict[int, dict[str, ShownCase]] = {}
    for case in material.cases:
        by_run.setdefault(id(case.shown), {})[case.row["case_id"]] = case
    lines = [line for shown in material.shown for line in _lines(shown, by_run.get(id(shown), {}), shown_columns)]
    if not lines:
        return None
    return View(
        id="cases",
        title="Cases",
        template="cases.html",
        content={
            "lines": _differing(lines),
            "counted": _counted(len(lines), material.cases),
            "heads": _heads(material, shown_columns),
            "several": len(material.shown) > 1,
            "compared": bool(material.comparisons),
            "width": max(len(shown_columns), 1),
            "filters": " ".join(FILTERS),
        },
    )


def _counted(rows: int, cases: Sequence[ShownCase]) -> str:
    """Return how many cases the table has, and what they share."""
    common = common_traits(case.case for case in cases)
    count = counted(rows, "case") if rows == len(cases) else f"{rows:,} of {counted(len(cases), 'case')}"
    return f"{count}{', all ' if common else ''}{common}"


def _heads(material: Material, shown_columns: Sequence[Column]) -> list[Head]:
    known = ordered((*PRECISIONS, *(case.row["precision"] for case in material.cases)))
    heads = [Head("case", "case", text=True)]
    heads += [Head("change", "against the baseline", "|".join(WORST_FIRST), text=True)] if material.comparisons else []
    heads += [Head("run", "run", text=True)] if len(material.shown) > 1 else []
    heads.append(Head("precision", "precision", "|".join(known), text=True))
    for column in shown_columns:
        means = "; ".join(METRICS[name].summary for name in column.metrics)
        key = column.head.partition("/")[0].replace(" ", "-")  # "time" of "time/step"
        heads.append(Head(key, column.head, text=column is VERDICT, means=means))
    return heads if shown_columns else [*heads, Head("outcome", "outcome", text=True)]


def _is_skipped(case: ShownCase) -> bool:
    """Return whether a case was skipped, and a comparison says no more of it than that nothing ran."""
    return case.row["outcome"] == "skipped" and all(change.code is ChangeCode.NOT_RUN for change in case.findings)


def _lines(shown: Shown, own: Mapping[str, ShownCase], shown_columns: Sequence[Column]) -> list[Line]:
    """Return the rows of one run, group by group; of a comparison, the group with the worst change first."""

    def worst(members: Sequence[Row]) -> int:
        changes = (change for row in members for change in _changes(own[row["case_id"]]))
        return min(map(WORST_FIRST.index, changes), default=len(WORST_FIRST))

    lines = []
    groups = grouped(case.row for case in own.values() if not _is_skipped(case))
    for group, members in sorted(groups.items(), key=lambda item: worst(item[1])):
        advice = shown.advice.get(group)
        for place, row in enumerate(members):
            case, ok, changes = own[row["case_id"]], row["outcome"] == "ok", _changes(own[row["case_id"]])
            moved = [change for change in changes if change is not ChangeStatus.UNCHANGED] or changes
            lines.append(
                Line(
                    case=case,
                    run=shown.name,
                    precision=precision_label(row),
                    advised=bool(advice and advice.case_id == row["case_id"]),
                    first=place == 0,
                    data={name: row[name] for name in FILTERS[:-1]} | {"change": "|".join(moved)},
                    changes=moved,
                    cells=[_cell(column, case) for column in shown_columns] if ok else (),
                    reason="" if ok else f"{row['outcome']}: {row['reason']}",
                )
            )
    return lines


def _changes(case: ShownCase) -> list[ChangeStatus]:
    """Return the statuses of a case's findings, the worst first."""
    return sorted({change.status for change in case.findings}, key=WORST_FIRST.index)


def _differing(lines: list[Line]) -> list[Line]:
    """Return the lines with those filters only in which they differ; the precision's also colours its row."""
    differing = [name for name in FILTERS if name == "precision" or len({line.data[name] for line in lines}) > 1]
    return [replace(line, data={name: line.data[name] for name in differing if line.data[name]}) for line in lines]


def columns_of(measured: Sequence[Row]) -> list[Column]:
    """Return the verdict, which no window is too narrow for, and the columns of numbers that any measured row has."""
    columns = [VERDICT, *COLUMNS[1:-1], *map(metric_column, FURTHER)]
    return [column for column in columns if any(any(column.cell(row)) for row in measured)]


def _cell(column: Column, case: ShownCase) -> Cell:
    """Return a cell: what stands beside its number below that, so that numbers align."""
    text, beside = column.cell(case.row)
    return Cell(text or UNDEFINED, beside, left=column is VERDICT)

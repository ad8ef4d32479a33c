"""Every case once: numbers with their intervals, verdicts, failures and skips with their reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ampbench import columns, notes
from ampbench.columns import Column
from ampbench.comparing.sentences import CHANGE_LEGEND, WORST_FIRST, metric_label
from ampbench.comparing.times import TIME
from ampbench.labels import common_traits
from ampbench.precisions import PRECISIONS, ordered
from ampbench.report.bars import Scale, time_bar, time_scale
from ampbench.report.explained import reasons
from ampbench.report.material import Material, Shown, ShownCase
from ampbench.report.view import View
from ampbench.report.views.cases.changes import Cell, Said, change_cells, change_limits, verdicts_of
from ampbench.report.views.cases.forest import forest
from ampbench.rows import grouped, precision_label
from ampbench.units import UNDEFINED, counted, format_limit
from ampbench.verdicts import Code, Verdict

FILTERS = ("precision", "phase", "device", "outcome", "verdict")
"""What a reader may filter by, where the cases differ in it."""


class Head(NamedTuple):
    """A column's header. `order` are the values of a column that has an order of its own, `text` is set to the left."""

    key: str
    title: str
    order: str = ""
    text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row of the table. `data` are its values by the name of a filter; `first`: it is the first of its group.

    `linked`: its rounds are shown elsewhere on the page. A case that is not `ok` has a `reason`, and neither `changes`
    nor `cells`. `why` says what accounts for its verdicts.
    """

    case: ShownCase
    run: str
    precision: str
    advised: bool
    first: bool
    linked: bool
    data: Mapping[str, str]
    said: Sequence[Said] = ()
    changes: Sequence[Cell] = ()
    cells: Sequence[Cell] = ()
    reason: str = ""
    why: Sequence[str] = ()


def cases(material: Material) -> View | None:
    """Return the view; None where there is no case at all."""
    if not material.cases:
        return None
    lines: list[Line] = []
    skips: list[tuple[str, list[ShownCase]]] = []
    measured = [one.row for one in material.cases if one.row["outcome"] == "ok"]
    shown_columns = columns.shown(measured)[1:]
    limits = change_limits(material.cases)
    by_run: dict[int, dict[str, ShownCase]] = {}
    for one in material.cases:
        by_run.setdefault(id(one.shown), {})[one.row["case_id"]] = one
    for shown in material.shown:
        own, run = by_run.get(id(shown), {}), shown.name
        aside = _set_aside(own)
        prefix = f"{run}, " if len(material.shown) > 1 else ""
        skips += [(prefix + said, [own[case_id] for case_id in ids]) for said, ids in aside]
        hidden = {case_id for _, ids in aside for case_id in ids}
        lines += _lines(shown, run, own, hidden, shown_columns, limits)
    drawn = forest(material.cases)
    return View(
        id="cases",
        title="Cases",
        template="cases.html",
        content={
            "lines": _told_apart(lines),
            "counted": _counted(len(lines), material.cases),
            "heads": _heads(material, shown_columns, limits),
            "several": len(material.shown) > 1,
            "compared": bool(material.comparisons),
            "width": max(len(limits) + len(shown_columns), 1),
            "filters": " ".join(FILTERS),
            "legend": columns.legend(shown_columns),
            "change_legend": CHANGE_LEGEND if limits else "",
            "drawn": any(edge is not None for edge in limits.values()),
            "timed": any(cell.bar for line in lines for cell in line.cells),
            "skips": skips,
        },
        charts=[drawn[0]] if drawn else [],
        datasets={drawn[0].dataset: drawn[1]} if drawn else {},
    )


def _counted(rows: int, cases: Sequence[ShownCase]) -> str:
    """Say how many cases the table has, what they share, and that others are told of below."""
    common = common_traits(one.case for one in cases)
    said, aside = counted(rows, "case"), ""
    if rows < len(cases):
        said = f"{rows:,} of {counted(len(cases), 'case')}"
        aside = "; why the others were skipped stands below the table"
    return f"{said}{', all ' if common else ''}{common}{aside}"


def _set_aside(own: Mapping[str, ShownCase]) -> list[tuple[str, list[str]]]:
    """Return lines that tell of skipped cases once, each with the ids of those that it tells of.

    A skip that a comparison has more to say of than that nothing ran stays a row.
    """
    groups = grouped(one.row for one in own.values() if all(finding.code is Code.NOT_RUN for finding in one.findings))
    kept, said = notes.without_common_skips(groups)
    rows = {row["case_id"] for members in kept.values() for row in members}
    reasons: dict[str, list[str]] = {}  # in the order of the lines: that of each reason's first case
    for members in groups.values():
        for row in members:
            if row["case_id"] not in rows:
                reasons.setdefault(row["reason"], []).append(row["case_id"])
    return list(zip(said, reasons.values(), strict=True))


def _heads(material: Material, shown_columns: Sequence[Column], limits: Mapping[str, float | None]) -> list[Head]:
    known = ordered((*PRECISIONS, *(one.row["precision"] for one in material.cases)))
    heads = [Head("case", "case", text=True)]
    heads += [Head("verdict", "verdict", "|".join(WORST_FIRST), text=True)] if material.comparisons else []
    heads += [Head("run", "run", text=True)] if len(material.shown) > 1 else []
    heads.append(Head("precision", "precision", "|".join(known), text=True))
    for metric, edge in limits.items():
        label = metric_label(metric)
        drawn = "" if edge is None else f", drawn to ±{format_limit(edge)}"
        heads.append(Head(f"{label.replace(' ', '-')}-change", f"{label} change{drawn}"))
    heads += [Head(one.key, one.header) for one in shown_columns]
    return heads if shown_columns else [*heads, Head("outcome", "outcome", text=True)]


def _lines(
    shown: Shown,
    run: str,
    own: Mapping[str, ShownCase],
    hidden: set[str],
    shown_columns: Sequence[Column],
    limits: Mapping[str, float | None],
) -> list[Line]:
    """Return the rows of one run, group by group; of a comparison, those with the worst verdicts first."""
    lines = []
    groups = grouped(one.row for one in own.values())
    for group, members in sorted(
        groups.items(), key=lambda each: min(_badness(own[row["case_id"]]) for row in each[1])
    ):
        scale = time_scale(members)
        advice = shown.advice.get(group)
        first = True
        for row in members:
            if row["case_id"] in hidden:
                continue
            case, label, ok = own[row["case_id"]], precision_label(row), row["outcome"] == "ok"
            said = verdicts_of(case)
            verdicts = dict.fromkeys(one.verdict for one in said)
            if len(verdicts) > 1:
                verdicts.pop(Verdict.UNCHANGED, None)  # what moved is what such a case is looked for by
            lines.append(
                Line(
                    case=case,
                    run=run,
                    precision=label,
                    advised=bool(advice and advice.case_id == row["case_id"]),
                    first=first,
                    linked=bool(row["rounds"]),
                    data={name: row[name] for name in FILTERS[:-1]} | {"verdict": "|".join(verdicts)},
                    said=said,
                    changes=change_cells(case.findings, limits) if ok else (),
                    cells=[_cell(one, case, scale) for one in shown_columns] if ok else (),
                    reason="" if ok else f"{row['outcome']}: {row['reason']}",
                    why=reasons(case),
                )
            )
            first = False
    return lines


def _badness(case: ShownCase) -> int:
    """Return the place of a case's worst verdict among them; without a comparison all have one."""
    return min((WORST_FIRST.index(one.verdict) for one in case.findings), default=len(WORST_FIRST))


def _told_apart(lines: list[Line]) -> list[Line]:
    """Return the lines with those filters only in which they differ; the precision's also colours its row."""
    differing = [name for name in FILTERS if name == "precision" or len({line.data[name] for line in lines}) > 1]
    return [replace(line, data={name: line.data[name] for name in differing if line.data[name]}) for line in lines]


def _cell(column: Column, case: ShownCase, scale: Scale | None) -> Cell:
    """Return a cell: what stands beside its number below that, so that numbers align; a time has its bar there."""
    if TIME in column.metrics:
        return Cell(
            " ".join(part(case.row) for part in column.parts).strip() or UNDEFINED, bar=time_bar(case.row, scale)
        )
    first, *beside = (part(case.row) for part in column.parts)
    return Cell(first or UNDEFINED, " ".join(filter(None, beside)))

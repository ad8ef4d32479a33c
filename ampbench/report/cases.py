"""The section of cases: each that was measured or failed once, with its numbers and verdicts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ampbench.core.metrics import METRICS
from ampbench.core.precisions import PRECISIONS, ordered
from ampbench.core.units import UNDEFINED, counted, times
from ampbench.judge.times import TIME
from ampbench.records.changes import OUTCOME, ChangeCode, ChangeStatus
from ampbench.records.labels import common_traits
from ampbench.report.facts import reasons
from ampbench.report.material import Material, Shown, ShownCase
from ampbench.show.changes import brief, metric_label, remarks
from ampbench.show.comparison import WORST_FIRST
from ampbench.show.page import View
from ampbench.show.results import COLUMNS, Column, metric_column
from ampbench.show.rows import Row, grouped, judged_error, number, precision_label

LEAST_TIMES = math.log(2)
"""The scale of times is at least twofold, so that what hardly differs does not look far apart."""
Scale = tuple[float, float]
"""The natural logarithms of the values at the left and the right edge."""


def time_scale(rows: Iterable[Row]) -> Scale | None:
    """Return the scale on which the times of `rows` are drawn, with their intervals; None where there is no time."""
    columns = ("seconds_low", "seconds_median", "seconds_high")
    logs = [log for row in rows for column in columns if (log := _log(row[column])) is not None]
    if not logs:
        return None
    middle, half = (min(logs) + max(logs)) / 2, max(LEAST_TIMES, max(logs) - min(logs)) / 2
    return middle - half, middle + half


def time_bar(row: Row, scale: Scale | None) -> str:
    """Return a row's time and its interval on `scale`, "" where there is none."""
    logs = [_log(row[name]) for name in ("seconds_median", "seconds_low", "seconds_high")]
    if scale is None or logs[0] is None:
        return ""
    middle, low, high = (None if log is None else (log - scale[0]) / (scale[1] - scale[0]) for log in logs)
    return _bar(middle or 0.0, low, high)


def _bar(middle: float, low: float | None, high: float | None) -> str:
    """Return shares of the width as CSS; without both ends there is no interval."""
    bar = f"--m:{_share(middle)}"
    return bar if low is None or high is None else f"{bar};--l:{_share(low)};--h:{_share(high)}"


def _share(value: float) -> str:
    return f"{round(100 * min(max(value, 0.0), 1.0), 3):.3g}%"


def _log(value: object) -> float | None:
    """Return the logarithm of a time, None where it is none."""
    seconds = number(value)
    return math.log(seconds) if seconds is not None and 0 < seconds < math.inf else None


class Cell(NamedTuple):
    """A cell: its text, a second line, and the CSS variables of its bar; `left`: it is words, set to the left."""

    text: str
    more: str = ""
    bar: str = ""
    left: bool = False


class Said(NamedTuple):
    """What a comparison says of a case: a verdict, and a sentence about the metrics that have it."""

    verdict: str
    sentence: str


def verdicts_of(case: ShownCase) -> list[Said]:
    """Return what the comparison says of a case, the worst first; metrics of which it says the same are told together.

    That nothing changed needs no reason: kinds of metrics are named.
    """
    together: dict[tuple[ChangeStatus, str], dict[str, None]] = {}
    for one in sorted(case.findings, key=lambda one: WORST_FIRST.index(one.status)):
        unchanged = one.status is ChangeStatus.UNCHANGED
        why = "; ".join(filter(None, ["" if unchanged else brief(one), *remarks(one)]))
        name = "" if one.metric == OUTCOME else one.kind if unchanged and not why else metric_label(one.metric)
        together.setdefault((one.status, why), {})[name] = None
    return [
        Said(verdict.value, ": ".join(filter(None, [", ".join(filter(None, names)), why])))
        for (verdict, why), names in together.items()
    ]


FLOOR = Column("×floor", ("output_floor_ratio", "output_worst_floor_ratio"), lambda row: (_floor(row), ""))
FURTHER = (
    "items_per_second", "speedup_vs_tf32", "speedup_vs_default", "energy_per_step",
    "ceiling_share", "busy_share", "bytes_per_parameter", "argmax_agreement", "grad_rel_l2",
)  # fmt: skip
"""The metrics of cases beside those that decide."""

FILTERS = ("precision", "phase", "device", "outcome", "verdict")
"""What a reader may filter by, where the cases differ in it."""


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

    `linked`: its rounds are shown elsewhere on the page. A case that is not `ok` has a `reason` and no `cells`. `why`
    says what accounts for its verdicts.
    """

    case: ShownCase
    run: str
    precision: str
    advised: bool
    first: bool
    linked: bool
    data: Mapping[str, str]
    said: Sequence[Said] = ()
    cells: Sequence[Cell] = ()
    reason: str = ""
    why: Sequence[str] = ()


def cases(material: Material) -> View | None:
    """Return the view; None where no case was measured or failed."""
    lines: list[Line] = []
    measured = [one.row for one in material.cases if one.row["outcome"] == "ok"]
    shown_columns = columns_of(measured)
    by_run: dict[int, dict[str, ShownCase]] = {}
    for one in material.cases:
        by_run.setdefault(id(one.shown), {})[one.row["case_id"]] = one
    for shown in material.shown:
        lines += _lines(shown, by_run.get(id(shown), {}), shown_columns)
    if not lines:
        return None
    return View(
        id="cases",
        title="Cases",
        template="cases.html",
        content={
            "lines": _told_apart(lines),
            "counted": _counted(len(lines), material.cases),
            "heads": _heads(material, shown_columns),
            "several": len(material.shown) > 1,
            "compared": bool(material.comparisons),
            "width": max(len(shown_columns), 1),
            "filters": " ".join(FILTERS),
            "timed": any(cell.bar for line in lines for cell in line.cells),
        },
    )


def _counted(rows: int, cases: Sequence[ShownCase]) -> str:
    """Say how many cases the table has, what they share, and where others are told of."""
    common = common_traits(one.case for one in cases)
    said, aside = counted(rows, "case"), ""
    if rows < len(cases):
        said = f"{rows:,} of {counted(len(cases), 'case')}"
        aside = "; why the others were skipped stands at the top"
    return f"{said}{', all ' if common else ''}{common}{aside}"


def _heads(material: Material, shown_columns: Sequence[Column]) -> list[Head]:
    known = ordered((*PRECISIONS, *(one.row["precision"] for one in material.cases)))
    heads = [Head("case", "case", text=True)]
    heads += [Head("verdict", "against the baseline", "|".join(WORST_FIRST), text=True)] if material.comparisons else []
    heads += [Head("run", "run", text=True)] if len(material.shown) > 1 else []
    heads.append(Head("precision", "precision", "|".join(known), text=True))
    for one in shown_columns:
        means = "; ".join(METRICS[name].summary for name in one.metrics)
        heads.append(Head(_key(one), one.head, text=one is COLUMNS[-1], means=means))
    return heads if shown_columns else [*heads, Head("outcome", "outcome", text=True)]


def _key(column: Column) -> str:
    """Return what the page's address calls a column: "time" of "time/step"."""
    return column.head.partition("/")[0].replace(" ", "-") if column is not COLUMNS[-1] else "judged"


def _is_told_at_the_top(case: ShownCase) -> bool:
    """Return whether a case was skipped, and a comparison says no more of it than that nothing ran."""
    return case.row["outcome"] == "skipped" and all(one.code is ChangeCode.NOT_RUN for one in case.findings)


def _lines(shown: Shown, own: Mapping[str, ShownCase], shown_columns: Sequence[Column]) -> list[Line]:
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
            case, label, ok = own[row["case_id"]], precision_label(row), row["outcome"] == "ok"
            if _is_told_at_the_top(case):
                continue
            said = verdicts_of(case)
            verdicts = dict.fromkeys(one.verdict for one in said)
            if len(verdicts) > 1:
                verdicts.pop(ChangeStatus.UNCHANGED, None)  # what moved is what such a case is looked for by
            lines.append(
                Line(
                    case=case,
                    run=shown.name,
                    precision=label,
                    advised=bool(advice and advice.case_id == row["case_id"]),
                    first=first,
                    linked=bool(row["rounds"]),
                    data={name: row[name] for name in FILTERS[:-1]} | {"verdict": "|".join(verdicts)},
                    said=said,
                    cells=[_cell(one, case, scale) for one in shown_columns] if ok else (),
                    reason="" if ok else f"{row['outcome']}: {row['reason']}",
                    why=reasons(case),
                )
            )
            first = False
    return lines


def _badness(case: ShownCase) -> int:
    """Return the place of a case's worst verdict among them; without a comparison all have one."""
    return min((WORST_FIRST.index(one.status) for one in case.findings), default=len(WORST_FIRST))


def _told_apart(lines: list[Line]) -> list[Line]:
    """Return the lines with those filters only in which they differ; the precision's also colours its row."""
    differing = [name for name in FILTERS if name == "precision" or len({line.data[name] for line in lines}) > 1]
    return [replace(line, data={name: line.data[name] for name in differing if line.data[name]}) for line in lines]


def _floor(row: Row) -> str:
    """Return how many times the error of merely rounding the error is that is judged."""
    value = judged_error(row, "floor_ratio")
    return "" if value is None else times(value)


def columns_of(measured: Sequence[Row]) -> list[Column]:
    """Return the verdict, which no window is too narrow for, and the columns of numbers that any measured row has."""
    columns = [COLUMNS[-1], *COLUMNS[1:-1], FLOOR, *map(metric_column, FURTHER)]
    return [column for column in columns if any(any(column.cell(row)) for row in measured)]


def _cell(column: Column, case: ShownCase, scale: Scale | None) -> Cell:
    """Return a cell: what stands beside its number below that, so that numbers align; a time has its bar there."""
    text, beside = column.cell(case.row)
    bar = time_bar(case.row, scale) if TIME in column.metrics else ""
    return Cell(text or UNDEFINED, beside, bar, left=column is COLUMNS[-1])

"""Rounds and samples of a case, the baseline's beside the candidate's."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ampbench.comparing.sentences import CHANGED
from ampbench.comparing.wording import percent
from ampbench.frames import DISTURBED
from ampbench.report.material import Material, ShownCase
from ampbench.report.view import Chart, Choice, View
from ampbench.report.views.distributions.chart import BEYOND, Drawing, Side, specification_of
from ampbench.report.views.distributions.rounds import RunRounds, Summary
from ampbench.stats import median
from ampbench.units import UNDEFINED, format_seconds
from ampbench.verdicts import Finding, Verdict

TELLING = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE)
LISTED = 20
"""The table has so many cases at most; the chart has all."""


def distributions(material: Material) -> View | None:
    """Return the view; None where no case has rounds, as in runs that another program kept without them."""
    runs = {id(stored): RunRounds(stored) for stored in [*(one.stored for one in material.shown), material.baseline]
            if stored is not None}  # fmt: skip
    sides = {case.number: _sides(case, material, runs) for case in material.cases}
    cases = [case for case in material.cases if any(side.summary for side in sides[case.number])]
    if not cases:
        return None
    cases.sort(key=_rank)
    drawing = Drawing(len(cases))
    for case in cases:
        drawing.add(case, sides[case.number])
    names = _names(cases)
    listed, caption = _listed(cases, sides)
    chart = Chart(
        id="distributions-rounds",
        title="Rounds and samples",
        alt=_alt(cases, sides, names),
        spec=specification_of(drawing.arms, drawing.longest),
        dataset="distributions",
        height=14,
        lines="line",
        choose="case",
        choices=[Choice(value=str(case.number), label=names[case.number]) for case in cases],
    )
    rows = [_table_row(case, names[case.number], sides[case.number]) for case in listed]
    content = {
        "rows": rows,
        "disturbed": DISTURBED,
        "remarked": any(side["unfit"] for row in rows for side in row["sides"]),
        "caption": caption,
        "sided": any(case.baseline_id for case in listed),
        "legend": _legend(cases, drawing),
    }
    return View(
        id="distributions",
        title="Distributions",
        template="distributions.html",
        content=content,
        charts=[chart],
        datasets={"distributions": drawing.rows},
    )


def _sides(case: ShownCase, material: Material, runs: Mapping[int, RunRounds]) -> list[Side]:
    """Return the baseline's part in a case, where there is one, and the candidate's."""
    run, case_id = runs[id(case.shown.stored)], case.row["case_id"]
    if case.baseline_id is None or material.baseline is None:
        return [Side("round", run, case_id, run.summaries.get(case_id))]
    against = runs[id(material.baseline)]
    return [
        Side("baseline", against, case.baseline_id, against.summaries.get(case.baseline_id)),
        Side("candidate", run, case_id, run.summaries.get(case_id)),
    ]


def _finding(case: ShownCase) -> Finding | None:
    """Return what the comparison says of a case's time."""
    return next((one for one in case.findings if one.kind == "time"), None)


def _rank(case: ShownCase) -> tuple[int, float]:
    """Return where a case stands in the choice: changed ones first, the largest change before others."""
    found = _finding(case)
    if found is None or found.verdict not in CHANGED:
        return len(CHANGED), 0.0
    return CHANGED.index(found.verdict), -abs(math.log1p(max(found.change or 0.0, -0.999)))


def _names(cases: Sequence[ShownCase]) -> dict[int, str]:
    """Return what each case is called, by number: its label, and its run where another run has the same case."""
    counts = Counter(case.label for case in cases)
    runs = {case.number: case.shown.stored.header for case in cases if counts[case.label] > 1}
    return {
        case.number: f"{case.label} · {runs[case.number].label or runs[case.number].run}"
        if case.number in runs
        else case.label
        for case in cases
    }


def _listed(cases: Sequence[ShownCase], sides: Mapping[int, Sequence[Side]]) -> tuple[list[ShownCase], str]:
    """Return the cases of the table, and which they are."""
    telling = [case for case in cases if (found := _finding(case)) and found.verdict in TELLING]
    if telling:
        telling.sort(key=lambda case: _finding(case).verdict is Verdict.INCONCLUSIVE)  # type: ignore[union-attr]
        return telling[:LISTED], _counted(len(telling), "whose time changed or is inconclusive")
    timed = [case for case in cases if sides[case.number][-1].summary]
    wide = sorted(timed, key=lambda case: -_width(sides[case.number][-1].summary))
    return wide[:LISTED], _counted(len(wide), "with rounds, the noisiest first")


def _counted(count: int, which: str) -> str:
    shown = f"{LISTED} of the {count:,} cases" if count > LISTED else f"{count} {'case' if count == 1 else 'cases'}"
    return f"The rounds of {shown} {which}"


def _width(summary: Summary | None) -> float:
    """Return how wide a case's interval is, relatively; 0 where there is none."""
    if summary is None or summary.low is None or summary.high is None:
        return 0.0
    return summary.high / summary.low


def _table_row(case: ShownCase, name: str, sides: Sequence[Side]) -> dict[str, Any]:
    found = _finding(case)
    return {
        "name": name,
        "case_id": case.row["case_id"],
        "verdict": found.verdict if found else "",
        "sides": [_cells(side) for side in sides if side.summary],
    }


def _cells(side: Side) -> dict[str, Any]:
    """Return a run's part in a case, as text."""
    summary = side.summary
    assert summary is not None
    disturbed = side.run.disturbed(side.case_id)
    return {
        "arm": side.arm,
        "numbers": [
            f"{summary.rounds}",
            *map(format_seconds, (summary.fastest, summary.median, summary.slowest)),
            UNDEFINED if summary.spread is None else percent(summary.spread),
            UNDEFINED if disturbed is None else percent(disturbed),
        ],
        "unfit": side.run.unfit(side.case_id),
    }


def _alt(cases: Sequence[ShownCase], sides: Mapping[int, Sequence[Side]], names: Mapping[int, str]) -> str:
    """Return what the chart shows of its first case, and how far the rounds of all lie apart."""
    first = cases[0]
    parts = [_middle(side.arm, side.summary) for side in sides[first.number] if side.summary]
    found = _finding(first)
    said = f"{names[first.number]}: {', '.join(parts)}{f'; {found.reason}' if found else ''}."
    spreads = {
        case.number: side.summary.spread
        for case in cases
        if (side := sides[case.number][-1]).summary and side.summary.spread is not None
    }
    if len(spreads) < 2:
        return said
    widest = max(spreads, key=lambda each: spreads[each])
    return (
        f"{said} In half of the {len(spreads):,} cases with several rounds these spread by at most "
        f"{percent(median([*spreads.values()]))} (standard deviation); most in {names[widest]}, by "
        f"{percent(spreads[widest])}."
    )


def _middle(arm: str, summary: Summary) -> str:
    rounds = f"over {summary.rounds} {'round' if summary.rounds == 1 else 'rounds'}"
    ends = "" if summary.low is None else f" (95 %: {format_seconds(summary.low)} to {format_seconds(summary.high)})"
    whose = "" if arm == "round" else f"{arm} "
    return f"{whose}median {format_seconds(summary.median)}{ends} {rounds}"


def _legend(cases: Sequence[ShownCase], drawing: Drawing) -> list[str]:
    """Return how the chart is to be read."""
    said = [
        "One line a round: the larger mark is its value, the fastest sample of all its builds; ticks are the others.",
        "The vertical line is the median of the rounds, the band its 95 % interval.",
    ]
    if compared := [case.shown.comparison for case in cases if case.shown.comparison]:
        said.append(
            "Rounds with the same number were measured in one block, at about the same time."
            if all(one.interleaved for one in compared)
            else "The two runs were measured one after the other: rounds with the same number have nothing in common."
        )
    if "control" in drawing.arms:
        said.append("Control: the same case measured a second time; its rounds count for nothing else.")
    if drawing.fresh:
        said.append("Fresh: measured to confirm a change that was seen before.")
    if drawing.unfit:
        rounds = "1 round was" if drawing.unfit == 1 else f"{drawing.unfit:,} rounds were"
        said.append(f"Hollow: {rounds} measured while the machine was not fit for it.")
    if drawing.beyond:
        said.append(
            f"“+3”: so many samples took over {BEYOND} times the slowest round of the case and are not drawn "
            f"({drawing.beyond:,} of {drawing.samples:,})."
        )
    if drawing.drawn + drawing.beyond < drawing.samples:
        said.append(
            f"Of the {drawing.samples:,} samples {drawing.drawn:,} are drawn: of each round some, evenly by rank, the "
            "fastest and the slowest among them."
        )
    return said

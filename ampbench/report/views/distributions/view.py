"""Rounds and samples of a case, the baseline's beside the candidate's."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ampbench.comparing.sentences import CHANGED
from ampbench.frames import DISTURBED
from ampbench.report.material import Material, ShownCase
from ampbench.report.view import Chart, Choice, View
from ampbench.report.views.distributions.chart import BEYOND, Counts, Side, rows_of, specification_of
from ampbench.report.views.distributions.rounds import RunRounds, Summary
from ampbench.stats import median
from ampbench.units import UNDEFINED, counted, format_percent, format_seconds
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
    drawn, counts = rows_of([(case, sides[case.number]) for case in cases])
    listed, caption = _listed(cases, sides)
    chart = Chart(
        id="distributions-rounds",
        title="Rounds and samples",
        alt=_alt(cases, sides),
        spec=specification_of(counts),
        dataset="distributions",
        height=14,
        lines="line",
        choose="case",
        choices=[
            Choice(value=str(case.number), label=case.name, alt=_said(case, sides[case.number])) for case in cases
        ],
    )
    rows = [_table_row(case, sides[case.number]) for case in listed]
    content = {
        "rows": rows,
        "disturbed": DISTURBED,
        "remarked": any(side["unfit"] for row in rows for side in row["sides"]),
        "caption": caption,
        "sided": any(case.baseline_id for case in listed),
        "legend": _legend(cases, counts),
    }
    return View(
        id="distributions",
        title="Distributions",
        template="distributions.html",
        content=content,
        charts=[chart],
        datasets={"distributions": drawn},
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


def _listed(cases: Sequence[ShownCase], sides: Mapping[int, Sequence[Side]]) -> tuple[list[ShownCase], str]:
    """Return the cases of the table, and which they are."""
    verdicts = {case.number: found.verdict for case in cases if (found := _finding(case))}
    telling = [case for case in cases if verdicts.get(case.number) in TELLING]
    if telling:
        telling.sort(key=lambda case: verdicts[case.number] is Verdict.INCONCLUSIVE)
        return telling[:LISTED], _counted(len(telling), "whose time changed or is inconclusive")
    timed = [case for case in cases if sides[case.number][-1].summary]
    wide = sorted(timed, key=lambda case: -_width(sides[case.number][-1].summary))
    return wide[:LISTED], _counted(len(wide), "with rounds, the noisiest first")


def _counted(count: int, which: str) -> str:
    shown = f"{LISTED} of the {count:,} cases" if count > LISTED else counted(count, "case")
    return f"The rounds of {shown} {which}"


def _width(summary: Summary | None) -> float:
    """Return how wide a case's interval is, relatively; 0 where there is none."""
    if summary is None or summary.low is None or summary.high is None:
        return 0.0
    return summary.high / summary.low


def _table_row(case: ShownCase, sides: Sequence[Side]) -> dict[str, Any]:
    found = _finding(case)
    return {
        "name": case.name,
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
            UNDEFINED if summary.spread is None else format_percent(summary.spread),
            UNDEFINED if disturbed is None else format_percent(disturbed),
        ],
        "unfit": side.run.unfit(side.case_id),
    }


def _said(case: ShownCase, sides: Sequence[Side]) -> str:
    """Return what the chart shows of a case."""
    parts = [_middle(side.arm, side.summary) for side in sides if side.summary]
    found = _finding(case)
    return f"{case.name}: {', '.join(parts)}{f'; {found.reason}' if found else ''}."


def _alt(cases: Sequence[ShownCase], sides: Mapping[int, Sequence[Side]]) -> str:
    """Return how far the rounds of all cases lie apart."""
    spreads = [
        (side.summary.spread, case.name)
        for case in cases
        if (side := sides[case.number][-1]).summary and side.summary.spread is not None
    ]
    if len(spreads) < 2:
        return ""
    most, widest = max(spreads, key=lambda one: one[0])
    return (
        f"In half of the {len(spreads):,} cases with several rounds these spread by at most "
        f"{format_percent(median([spread for spread, _ in spreads]))} (standard deviation); most in {widest}, by "
        f"{format_percent(most)}."
    )


def _middle(arm: str, summary: Summary) -> str:
    rounds = f"over {counted(summary.rounds, 'round')}"
    ends = "" if summary.low is None else f" (95%: {format_seconds(summary.low)} to {format_seconds(summary.high)})"
    whose = "" if arm == "round" else f"{arm} "
    return f"{whose}median {format_seconds(summary.median)}{ends} {rounds}"


def _legend(cases: Sequence[ShownCase], counts: Counts) -> list[str]:
    """Return how the chart is to be read."""
    said = [
        "One line a round: the larger mark is its value, the fastest sample of all its builds; ticks are the others.",
        "The vertical line is the median of the rounds, the band its 95% interval.",
    ]
    if compared := [case.shown.comparison for case in cases if case.shown.comparison]:
        said.append(
            "Rounds with the same number were measured in one block, at about the same time."
            if all(one.interleaved for one in compared)
            else "The two runs were measured one after the other: rounds with the same number have nothing in common."
        )
    if "control" in counts.arms:
        said.append("Control: the same case measured a second time; its rounds count for nothing else.")
    if counts.fresh:
        said.append("Fresh: measured to confirm a change that was seen before.")
    if counts.unfit:
        rounds = "1 round was" if counts.unfit == 1 else f"{counts.unfit:,} rounds were"
        said.append(f"Hollow: {rounds} measured while the machine was not fit for it.")
    if counts.beyond:
        said.append(
            f"“+3”: so many samples took over {BEYOND} times the slowest round of the case and are not drawn "
            f"({counts.beyond:,} of {counts.samples:,})."
        )
    if counts.drawn + counts.beyond < counts.samples:
        said.append(
            f"Of the {counts.samples:,} samples {counts.drawn:,} are drawn: of each round some, evenly by rank, the "
            "fastest and the slowest among them."
        )
    return said

"""What a comparison says of a case, as cells of a table: its verdicts, and how far each metric moved."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ampbench.comparing.exact import EQUAL
from ampbench.comparing.sentences import KINDS, WORST_FIRST, change_text, interval_text, metric_label, value_text
from ampbench.metrics import GATED
from ampbench.report.bars import change_bar, change_limit
from ampbench.report.material import ShownCase
from ampbench.units import UNDEFINED, format_limit
from ampbench.verdicts import OUTCOME, Code, Finding, Verdict


class Cell(NamedTuple):
    """A cell: its text, a second line, the CSS variables of its bar, and what it is sorted by if not the text."""

    text: str
    more: str = ""
    bar: str = ""
    key: str = ""


class Said(NamedTuple):
    """What a comparison says of a case: a verdict, and a sentence about the metrics that have it."""

    verdict: str
    sentence: str


def verdicts_of(case: ShownCase) -> list[Said]:
    """Return what the comparison says of a case, the worst first; metrics of which it says the same are told together.

    That nothing changed needs no reason, nor how far what luck has no part in did: the numbers stand beside it.
    """
    together: dict[tuple[Verdict, str], list[Finding]] = {}
    for one in sorted(case.findings, key=lambda one: WORST_FIRST.index(one.verdict)):
        reason = "; ".join(part for part in (_reason(one), *one.remarks) if part)
        # the row gives the reason of a failure or skip itself
        together.setdefault((one.verdict, reason.removesuffix(f": {case.row['reason']}")), []).append(one)
    said = []
    for (verdict, reason), findings in together.items():
        names = [metric_label(one.metric) for one in findings]
        if verdict is Verdict.UNCHANGED and not reason:
            moved = {one.kind for one in case.findings if one.verdict is not Verdict.UNCHANGED}
            # a kind of which something did change is told metric by metric
            names = [kind for kind in KINDS if kind not in moved and any(one.kind == kind for one in findings)]
            names += [metric_label(one.metric) for one in findings if one.kind in moved]
        what = ", ".join(name for name in names if name != OUTCOME)
        said.append(Said(verdict.value, ": ".join(part for part in (what, reason) if part)))
    return said


def _reason(one: Finding) -> str:
    """Return why a finding has its verdict, as far as the columns of changes do not say it."""
    if one.verdict is Verdict.UNCHANGED:
        return ""
    if one.code is Code.BEYOND_THRESHOLD and one.kind != "time" and change_text(one):
        return f"threshold {format_limit(one.threshold)}" if one.threshold else ""
    return one.reason


def change_limits(cases: Iterable[ShownCase]) -> dict[str, float | None]:
    """Return the metrics of which any change is shown, and to where it is drawn; None where luck has no part in it."""
    findings: dict[str, list[Finding]] = {}
    for case in cases:
        for one in case.findings:
            findings.setdefault(one.metric, []).append(one)
    moved = [
        name
        for name in GATED
        if any(one.change is not None and not abs(one.change) <= EQUAL for one in findings.get(name, ()))
    ]
    return {name: change_limit(findings[name]) if GATED[name].kind == "time" else None for name in moved}


def change_cells(findings: Sequence[Finding], limits: Mapping[str, float | None]) -> list[Cell]:
    """Return the cells of the columns of changes."""
    by_metric = {one.metric: one for one in findings}
    cells = []
    for metric, edge in limits.items():
        one = by_metric.get(metric)
        text = change_text(one) if one else ""
        if one is None or one.change is None or not text:
            cells.append(Cell(UNDEFINED))
            continue
        ends = interval_text(one)
        was = "" if one.baseline is None else f"was {value_text(metric, one.baseline)}"
        more = ", ".join(part for part in (ends, was) if part)
        bar = "" if edge is None else change_bar(one, edge)
        cells.append(Cell(text, more, bar, "" if text[-1] == "%" else f"{one.change:g}"))
    return cells

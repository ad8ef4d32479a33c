"""A comparison as text: terminal lines, JSON and CSV for machines; `comparing.markdown` has it for a pull request."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from ampbench.base.units import counted
from ampbench.cli.tables import wrapped
from ampbench.judge.exact import EQUAL
from ampbench.judge.said import (
    CHANGE_LEGEND,
    CHANGED,
    HEADERS,
    KINDS,
    case_names,
    differences_said,
    finding_cells,
    lonely,
    mean_cells,
    metric_label,
    precision_heading,
    rules_said,
    rules_title,
    side_name,
    statements,
    verdict,
    worst_of_cases,
)
from ampbench.present.data import csv_text, plain
from ampbench.records.labels import common_traits
from ampbench.records.verdicts import Code, Comparison, Finding, Verdict

STYLES: Mapping[str, str] = {
    Verdict.REGRESSED: "bold red",
    Verdict.IMPROVED: "bold green",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.INCOMPARABLE: "magenta",
    Verdict.UNCHANGED: "",
}
FIELDS = (
    "case_id", "workload", "family", "precision", "device", "phase", "path", "metric", "kind", "verdict", "code",
    "reason", "baseline", "candidate", "change", "low", "high", "threshold", "p_worse", "p_better", "blocks", "remarks",
    "details",
)  # fmt: skip
"""What a finding is in JSON and CSV."""

COLLAPSED = 3
"""More findings than this that have one reason are one line, unless all are asked for."""
SHOWN = 20
"""So many undecided and incomparable findings are listed, unless all are asked for; what changed always is."""


def comparison_lines(comparison: Comparison, width: int, show_all: bool = False) -> list[Text]:
    """Return what a terminal of `width` columns shows of a comparison; with `show_all`, every finding in full."""
    lines = [*_head_lines(comparison, width), *([Text()] if comparison.findings else [])]
    lines += _finding_lines(comparison, width, show_all)
    lines += _explained_lines(comparison, width, show_all)
    lines += _rule_lines(comparison, width, show_all)
    lines += _mean_lines(comparison)
    if any(one.change is not None for one in comparison.findings):
        lines += [Text(), *wrapped(CHANGE_LEGEND, width, "dim")]
    return [*lines, Text(), *wrapped(verdict(comparison), width, "bold")]


def comparison_json(comparison: Comparison) -> str:
    """Return a comparison as one JSON object, a line per finding; null where a number is undefined or not finite."""
    document: dict[str, Any] = {
        "summary": verdict(comparison),
        "baseline": asdict(comparison.baseline),
        "candidate": asdict(comparison.candidate),
        "interleaved": comparison.interleaved,
        "control": asdict(comparison.control),
        "notes": list(comparison.notes),
        "only_baseline": list(comparison.only_baseline),
        "only_candidate": list(comparison.only_candidate),
        "skipped": dict(comparison.skipped),
        "differences": [asdict(one) for one in comparison.differences],
        "means": [asdict(one) for one in comparison.means],
        "findings": finding_rows(comparison.findings),
        "explained": {case_id: list(said) for case_id, said in comparison.explained.items()},
        "rule_changes": [asdict(one) for one in comparison.rule_changes],
        "rule_devices": list(comparison.rule_devices),
    }
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_json(value)}" for key, value in document.items()) + "\n}\n"


def comparison_csv(comparison: Comparison) -> str:
    """Return the findings as CSV; remarks are joined by "; ", details are a JSON object."""
    rows = finding_rows(comparison.findings)
    for row in rows:
        row["remarks"], row["details"] = "; ".join(row["remarks"]), json.dumps(row["details"])
    return csv_text(FIELDS, ([row[name] for name in FIELDS] for row in rows))


def finding_rows(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return findings as flat rows of `FIELDS`, None where undefined."""
    rows = []
    for one in findings:
        case = one.case
        row = {name: getattr(case if hasattr(case, name) else one, name) for name in FIELDS}
        row = {name: plain(value) for name, value in row.items()}
        rows.append(row | {"remarks": list(one.remarks), "details": {k: plain(v) for k, v in one.details.items()}})
    return rows


def _head_lines(comparison: Comparison, width: int) -> list[Text]:
    lines = [
        *wrapped(f"baseline   {side_name(comparison.baseline)}", width),
        *wrapped(f"candidate  {side_name(comparison.candidate)}", width),
    ]
    for said in [*differences_said(comparison.differences), *statements(comparison), *lonely(comparison)]:
        lines += wrapped(said, width)
    common = common_traits(comparison.candidates.get(one.case.case_id, one.case) for one in comparison.findings)
    return lines + (wrapped(f"all cases: {common}", width, "dim") if common else [])


def _finding_lines(comparison: Comparison, width: int, show_all: bool) -> list[Text]:
    names = case_names(comparison)
    listed, said = _chosen(comparison.findings, show_all)
    rows = [finding_cells(one, names) for one in listed]
    worst = worst_of_cases(comparison.findings)
    lines: list[Text] = []
    if rows:
        widths = [max(map(cell_len, column)) for column in zip(HEADERS, *rows, strict=True)]
        shown = [place for place in range(len(HEADERS)) if place != 6 or sum(widths) + 2 * 6 <= width]
        lines.append(_row(HEADERS, widths, shown, "dim", "dim"))
        for one, cells in zip(listed, rows, strict=True):
            lines.append(_row(cells, widths, shown, STYLES[one.verdict]))
            why = [*([one.reason] if one.verdict is not Verdict.UNCHANGED else []), *one.remarks]
            if worst.get(one.case.case_id) is one:
                why += comparison.explained.get(one.case.case_id, ())
            for sentence in why:
                lines += _indented(sentence, width, "dim")
    return lines + [line for sentence in said for line in wrapped(sentence, width)]


def _explained_lines(comparison: Comparison, width: int, show_all: bool) -> list[Text]:
    """Return what explains cases under no finding: of every case where there is no finding at all."""
    told = worst_of_cases(comparison.findings)
    lines: list[Text] = []
    for case_id, said in comparison.explained.items():
        if case_id not in told and (show_all or not comparison.findings):
            lines += [Text(), *wrapped(case_id, width, "bold")]
            lines += [line for sentence in said for line in _indented(sentence, width)]
    return lines


def _rule_lines(comparison: Comparison, width: int, show_all: bool) -> list[Text]:
    said = [line for sentence in rules_said(comparison, show_all) for line in _indented(sentence, width)]
    return [Text(), Text(rules_title(comparison), style="bold"), *said] if said else []


def _indented(sentence: str, width: int, style: str = "") -> list[Text]:
    return [Text("  ", style=style).append(line) for line in wrapped(sentence, width - 2, style)]


def _chosen(findings: Sequence[Finding], show_all: bool) -> tuple[list[Finding], list[str]]:
    """Return the findings to list, and sentences about the others."""
    if show_all:
        return list(findings), []
    alike = Counter((one.verdict, one.kind, one.reason) for one in findings)
    listed: list[Finding] = []
    said: dict[str, None] = {}
    left_out: Counter[Verdict] = Counter()
    unchanged: Counter[str] = Counter()
    kept: Counter[Verdict] = Counter()
    for one in findings:
        count = alike[one.verdict, one.kind, one.reason]
        if one.verdict in CHANGED or (one.remarks and one.verdict is Verdict.UNCHANGED):
            listed.append(one)
        elif one.verdict is Verdict.UNCHANGED:
            unchanged[one.kind] += 1
        elif count > COLLAPSED and one.code is not Code.UNDECIDED:
            said[f"{one.verdict}: {one.kind}, {count} findings: {one.reason}"] = None
        elif kept[one.verdict] < SHOWN:
            kept[one.verdict] += 1
            listed.append(one)
        else:
            left_out[one.verdict] += 1
    rest = [f"{count} more {verdict} (--all lists them)" for verdict, count in left_out.items()]
    names = {"time": "typical time"}  # its tail is bounded, too, or it would not be called so
    kinds = ", ".join(f"{names.get(kind, kind)} {unchanged[kind]}" for kind in KINDS if unchanged[kind])
    return listed, [*said, *rest, *([f"unchanged: {kinds} (--all lists them)"] if kinds else [])]


def _row(cells: Sequence[str], widths: Sequence[int], shown: Collection[int], style: str, rest_style: str = "") -> Text:
    """Return one line: the first three cells to the left, numbers to the right; the first, the verdict, in `style`."""
    padded = []
    for place in shown:
        blank = " " * (widths[place] - cell_len(cells[place]))
        padded.append(cells[place] + blank if place < 3 else blank + cells[place])
    return Text.assemble((padded[0], style), (f"  {'  '.join(padded[1:])}".rstrip(), rest_style))


def _mean_lines(comparison: Comparison) -> list[Text]:
    moved = {one.metric for one in comparison.means if abs(one.ratio - 1) > EQUAL}
    rows = [
        (one.precision, one.device, metric_label(one.metric), *mean_cells(one))
        for one in comparison.means
        if one.metric in moved
    ]
    if not rows:
        return []
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    whose = precision_heading(comparison)
    by = "" if whose == "precision" else f", by the {whose}"
    title = f"geometric means over cases{by}, candidate / baseline - 1, with 95% interval"
    lines = [Text(), Text(title, style="dim")]
    for row in rows:
        cells = [
            cell.ljust(width) if place < 3 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(Text("  ".join(cells[:-1]) + f"  over {counted(int(row[-1]), 'case')}"))
    return lines


def _json(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(json.dumps(_plain(item), ensure_ascii=False) for item in value) + "\n]"
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return list(value) if isinstance(value, tuple) else plain(value)

"""A comparison shown: lines for a terminal, Markdown for a pull request or a job's summary, JSON and CSV.

What a gate says of it, and what an arm compared with itself says of the machine, are shown here, too.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from ampbench.core.metrics import DRIFT
from ampbench.core.units import counted, format_percent
from ampbench.instruments.rules.findings import changed_ops_said, rule_change_said
from ampbench.judge.compare import Detectable, SelfComparison
from ampbench.judge.exact import EQUAL
from ampbench.judge.gate import GateResult, Ignored, Policy
from ampbench.judge.said import (
    CHANGE_LEGEND,
    CHANGED,
    KINDS,
    STYLES,
    case_names,
    change_text,
    defects_said,
    difference_said,
    differences_said,
    gated_change,
    interval_text,
    lonely,
    means_block,
    metric_label,
    notes,
    point_said,
    precision_heading,
    rules_said,
    rules_title,
    side_name,
    statements,
    value_text,
    verdict,
    warnings,
    worst_of_cases,
)
from ampbench.records.changes import OUTCOME, UNTRUSTED, Change, ChangeCode, ChangeStatus, Comparison, GatePoint
from ampbench.records.labels import case_labels, common_traits
from ampbench.show.changes import control_line, reason, remarks
from ampbench.show.data import csv_text, finite, json_document, json_object, plain
from ampbench.show.document import Column, picked, records, table
from ampbench.show.markdown import block_table, escaped, folded
from ampbench.show.terminal import padded, wrapped

COLLAPSED = 3
"""More findings than this that have one reason are one line, unless all are asked for."""
SHOWN = 20
"""So many undecided and incomparable findings are listed, unless all are asked for; what changed always is."""


IN_TABLES = ("status", "case_id", "metric", "baseline", "candidate", "change", "low")
"""The columns of findings that people read."""


def finding_columns(names: Mapping[str, str]) -> list[Column[Change]]:
    """Return the columns of findings; `names` are those of the cases, by id."""

    def value(one: Change, value: float | None) -> str:
        return "" if one.metric == OUTCOME else value_text(one.metric, value)

    return [
        Column("case_id", lambda one: one.case.case_id, "case", said=lambda one: names[one.case.case_id]),
        *(
            Column(name, attrgetter(f"case.{name}"))
            for name in ("workload", "family", "precision", "device", "phase", "path")
        ),
        Column("metric", lambda one: one.metric, "metric", said=lambda one: metric_label(one.metric)),
        Column("kind", lambda one: one.kind),
        Column("status", lambda one: one.status, "verdict", said=lambda one: one.status.value),
        Column("code", lambda one: one.code),
        Column("reason", reason, "why", said=lambda one: "; ".join([reason(one), *remarks(one)])),
        Column("baseline", lambda one: one.baseline, "baseline", "ratio", lambda one: value(one, one.baseline)),
        Column("candidate", lambda one: one.candidate, "candidate", "ratio", lambda one: value(one, one.candidate)),
        Column("change", lambda one: one.change, "change", "ratio", change_text),
        Column("low", lambda one: one.low, "95% interval", "ratio", interval_text),
        *(Column(name, attrgetter(name)) for name in ("high", "threshold", "p_worse", "p_better", "blocks")),
        Column("facts", lambda one: dict(one.facts)),
        Column("remarks", remarks),
        Column("details", lambda one: dict(one.details)),
    ]


DEFECTS_TITLE = "known defects that came or went"


def comparison_lines(comparison: Comparison, width: int, show_all: bool = False) -> list[Text]:
    """Return what a terminal of `width` columns shows of a comparison; with `show_all`, every finding in full."""
    lines = [*_head_lines(comparison, width), *([Text()] if comparison.findings else [])]
    lines += _finding_lines(comparison, width, show_all)
    lines += _explained_lines(comparison, width, show_all)
    for title, said in _lists(comparison, show_all):
        lines += [Text(), Text(title, style="bold"), *(line for one in said for line in _indented(one, width))]
    lines += _mean_lines(comparison)
    if any(one.change is not None for one in comparison.findings):
        lines += [Text(), *wrapped(CHANGE_LEGEND, width, "dim")]
    return [*lines, Text(), *wrapped(verdict(comparison), width, "bold")]


def comparison_json(comparison: Comparison) -> str:
    """Return a comparison as one JSON object, a line per finding; null where a number is undefined or not finite."""
    document = _data(comparison)
    return json_object(document)


def _data(comparison: Comparison) -> dict[str, Any]:
    return {
        "summary": verdict(comparison),
        "baseline": asdict(comparison.baseline),
        "candidate": asdict(comparison.candidate),
        "interleaved": comparison.interleaved,
        "control": asdict(comparison.control) | {"sentence": control_line(comparison.control)},
        "notes": notes(comparison),
        "only_baseline": list(comparison.only_baseline),
        "only_candidate": list(comparison.only_candidate),
        "skipped": dict(comparison.skipped),
        "differences": [asdict(one) for one in comparison.differences],
        "means": [asdict(one) for one in comparison.means],
        "findings": records(finding_columns({}), comparison.findings),
        "explained": {case_id: list(case.said) for case_id, case in comparison.explained.items()},
        "rule_changes": [asdict(one) for one in comparison.rule_changes],
        "rule_devices": list(comparison.rule_devices),
        "defects": [asdict(one) for one in comparison.defects],
    }


def comparison_csv(comparison: Comparison) -> str:
    """Return the findings as CSV; remarks are joined by "; ", details are a JSON object."""
    columns = finding_columns({})
    rows = records(columns, comparison.findings)
    for row in rows:
        row["remarks"] = "; ".join(row["remarks"])
        for column in ("facts", "details"):
            row[column] = json.dumps({name: plain(value) for name, value in row[column].items()})
    return csv_text([column.key for column in columns], ([*row.values()] for row in rows))


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
    worst = worst_of_cases(comparison.findings)
    lines: list[Text] = []
    if listed:
        block = table("", picked(finding_columns(names), *IN_TABLES), listed)
        head, *rows = padded([block.headers, *block.rows], left=3)
        most = len(head) if sum(map(cell_len, head)) + 2 * (len(head) - 1) <= width else len(head) - 1
        lines.append(_row(head[:most], "dim", "dim"))
        for one, cells in zip(listed, rows, strict=True):
            lines.append(_row(cells[:most], STYLES[one.status]))
            why = [*([reason(one)] if one.status is not ChangeStatus.UNCHANGED else []), *remarks(one)]
            if worst.get(one.case.case_id) is one and one.case.case_id in comparison.explained:
                why += comparison.explained[one.case.case_id].said
            for sentence in why:
                lines += _indented(sentence, width, "dim")
    return lines + [line for sentence in said for line in wrapped(sentence, width)]


def _explained_lines(comparison: Comparison, width: int, show_all: bool) -> list[Text]:
    """Return what explains cases under no finding: of every case where there is no finding at all."""
    told = worst_of_cases(comparison.findings)
    lines: list[Text] = []
    for case_id, case in comparison.explained.items():
        if case_id not in told and (show_all or not comparison.findings):
            lines += [Text(), *wrapped(case_id, width, "bold")]
            lines += [line for sentence in case.said for line in _indented(sentence, width)]
    return lines


def _lists(comparison: Comparison, everything: bool = True) -> list[tuple[str, list[str]]]:
    """Return what heads the changed rules and the defects that came or went, with their lines."""
    lists = [(rules_title(comparison), rules_said(comparison, everything)), (DEFECTS_TITLE, defects_said(comparison))]
    return [(title, lines) for title, lines in lists if lines]


def _indented(sentence: str, width: int, style: str = "") -> list[Text]:
    return [Text("  ", style=style).append(line) for line in wrapped(sentence, width - 2, style)]


def _chosen(findings: Sequence[Change], show_all: bool) -> tuple[list[Change], list[str]]:
    """Return the findings to list, and sentences about the others."""
    if show_all:
        return list(findings), []
    alike = Counter((one.status, one.kind, reason(one)) for one in findings)
    listed: list[Change] = []
    said: dict[str, None] = {}
    left_out: Counter[ChangeStatus] = Counter()
    unchanged: Counter[str] = Counter()
    kept: Counter[ChangeStatus] = Counter()
    for one in findings:
        count = alike[one.status, one.kind, reason(one)]
        if one.status in CHANGED or (one.remarks and one.status is ChangeStatus.UNCHANGED):
            listed.append(one)
        elif one.status is ChangeStatus.UNCHANGED:
            unchanged[one.kind] += 1
        elif count > COLLAPSED and one.code is not ChangeCode.UNDECIDED:
            said[f"{one.status}: {one.kind}, {count} findings: {reason(one)}"] = None
        elif kept[one.status] < SHOWN:
            kept[one.status] += 1
            listed.append(one)
        else:
            left_out[one.status] += 1
    rest = [f"{count} more {verdict} (--all lists them)" for verdict, count in left_out.items()]
    names = {"time": "typical time"}  # its tail is bounded, too, or it would not be called so
    kinds = ", ".join(f"{names.get(kind, kind)} {unchanged[kind]}" for kind in KINDS if unchanged[kind])
    return listed, [*said, *rest, *([f"unchanged: {kinds} (--all lists them)"] if kinds else [])]


def _row(cells: Sequence[str], style: str, rest_style: str = "") -> Text:
    """Return one line; the first cell, the verdict, in `style`."""
    return Text.assemble((cells[0], style), (f"  {'  '.join(cells[1:])}".rstrip(), rest_style))


def _mean_lines(comparison: Comparison) -> list[Text]:
    moved = {one.metric for one in comparison.means if abs(one.ratio - 1) > EQUAL}
    rows = means_block(comparison, moved).rows
    if not rows:
        return []
    whose = precision_heading(comparison)
    by = "" if whose == "precision" else f", by the {whose}"
    title = f"geometric means over cases{by}, candidate / baseline - 1, with 95% interval"
    lines = [Text(), Text(title, style="dim")]
    for row, cells in zip(rows, padded(rows, left=3), strict=True):
        lines.append(Text("  ".join(cells[:-1]) + f"  over {row[-1]} case{'' if row[-1] == '1' else 's'}"))
    return lines


ROWS = 100
"""A comment on GitHub holds 65,536 characters: so many rows of a table fit four times."""

NOT_JUDGED = "Not judged: the control fired or the machine was not fit"
"""What heads the findings that may be changes, and of which nobody can tell."""


def comparison_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown: the verdict, what changed, what must not be missed, and details to unfold."""
    names = case_names(comparison)
    ours, theirs = side_name(comparison.baseline), side_name(comparison.candidate)
    blocks = [f"**{escaped(verdict(comparison))}**", f"{escaped(ours)} → {escaped(theirs)}"]
    parts = by_weight(comparison.findings)
    if parts["changed"]:
        blocks.append(_cut_table(parts["changed"], names))
    if parts["not judged"]:
        blocks += [f"{NOT_JUDGED} ({len(parts['not judged'])})", _cut_table(parts["not judged"], names)]
    blocks += [f"> {escaped(said)}" for said in warnings(comparison)]
    if comparison.explained:
        blocks.append(folded("Why", explained_list(comparison)))
    for title, lines in _lists(comparison):
        blocks.append(folded(f"{title[0].upper()}{title[1:]}", "\n".join(f"* {escaped(one)}" for one in lines)))
    if comparison.means:
        blocks.append(folded("Geometric means", block_table(means_block(comparison))))
    for part, title in (("undecided", "Inconclusive or incomparable"), ("unchanged", "Unchanged")):
        if parts[part]:
            blocks.append(folded(f"{title} ({len(parts[part])})", _cut_table(parts[part], names)))
    if said := conditions(comparison):
        blocks.append(folded("How it was measured", "\n".join(said)))
    return "\n\n".join(blocks) + "\n"


def by_weight(findings: Sequence[Change]) -> dict[str, list[Change]]:
    """Return the findings that are "changed", "not judged" (`NOT_JUDGED`), otherwise "undecided" or "unchanged"."""
    parts: dict[str, list[Change]] = {"changed": [], "not judged": [], "undecided": [], "unchanged": []}
    for one in findings:
        if one.status in CHANGED:
            part = "changed"
        elif one.code in UNTRUSTED:
            part = "not judged"
        else:
            part = "unchanged" if one.status is ChangeStatus.UNCHANGED else "undecided"
        parts[part].append(one)
    return parts


def findings_table(findings: Sequence[Change], names: Mapping[str, str]) -> str:
    """Return a table of findings, a line each with its reason and remarks; cases by `names`."""
    return block_table(table("", picked(finding_columns(names), *IN_TABLES, "reason"), findings))


def explained_list(comparison: Comparison) -> str:
    """Return a list of what explains each case that both runs traced."""
    names = case_names(comparison)
    return "\n\n".join(
        "\n".join([f"**{escaped(names.get(case_id, case_id))}**", "", *(f"* {escaped(one)}" for one in case.said)])
        for case_id, case in comparison.explained.items()
    )


def conditions(comparison: Comparison) -> list[str]:
    """Return the lines of a list of how both runs were measured, and in what they differ."""
    said = [*map(difference_said, comparison.differences), *statements(comparison), *lonely(comparison)]
    return [f"* {escaped(one)}" for one in said]


def _cut_table(findings: Sequence[Change], names: Mapping[str, str]) -> str:
    table = findings_table(findings[:ROWS], names)
    more = len(findings) - ROWS
    return table if more <= 0 else f"{table}\n\nand {more} more: `--format csv` has them all"


CONTROL_SHOWN = 8
"""So many of the cases that spread most are listed."""

DETECTABLE: Sequence[Column[Detectable]] = (
    Column("blocks", lambda one: one.blocks, "blocks", "whole"),
    Column("seconds", lambda one: one.seconds, "time", "s"),
    Column("median", lambda one: one.median, "median case", "share", lambda one: format_percent(one.median)),
    Column("worst", lambda one: one.worst, "worst case", "share", lambda one: format_percent(one.worst)),
)


def control_lines(comparison: Comparison, found: SelfComparison, width: int) -> list[Text]:
    """Return what a terminal of `width` columns shows of `found` by `comparison`, of an arm with itself."""
    lines = [line for said in control_said(found) for line in wrapped(said, width)]
    block = table("", DETECTABLE, found.detectable)
    for place, cells in enumerate(padded([block.headers, *block.rows], left=0) if block.rows else []):
        lines.append(Text(f"  {'  '.join(cells)}", style="" if place else "dim"))
    if found.spreads:
        lines += [Text(), Text("spread of a block's ratio (standard deviation), the widest:")]
        names = case_labels(finding.case for finding in comparison.findings)
        widest = sorted(found.spreads, key=lambda case_id: -found.spreads[case_id])[:CONTROL_SHOWN]
        lines += [Text(f"  {format_percent(found.spreads[case_id]):>7}  {names[case_id]}") for case_id in widest]
    return lines


def control_markdown(found: SelfComparison) -> str:
    """Return what an arm compared with itself said, in Markdown."""
    return "\n\n".join([*control_said(found), block_table(table("", DETECTABLE, found.detectable))])


def control_said(found: SelfComparison) -> list[str]:
    """Return in sentences what an arm compared with itself said: false alarms, and the changes that can be seen."""
    cases, alarms = counted(found.cases, "case"), found.false_alarms
    rate = f" (95%: at most {format_percent(found.highest_rate)} of the {found.able} that could raise one, Wilson)"
    if not found.able:
        rate = ": there could be none, with so few blocks on a machine that was fit"
    said = [
        f"one arm against itself: {cases}, {counted(found.blocks, 'block')}",
        f"false alarms: {len(alarms)} of {cases}{rate}",
        *(f"  {one.case.case_id}: {reason(one)}" for one in alarms),
        f"proven unchanged: {len(found.unchanged)} of {cases}",
    ]
    if found.suspected:
        said.append(f"suspected and not confirmed by fresh blocks: {len(found.suspected)}")
    if found.unfit:
        said.append(f"no verdict, the machine was unfit: {len(found.unfit)}, such as: {reason(found.unfit[0])}")
    return [*said, *(["a slowdown is found 19 times in 20 if it is at least"] if found.detectable else [])]


def control_data(found: SelfComparison) -> dict[str, Any]:
    """Return the same as data for JSON."""
    lists = ("false_alarms", "suspected", "unfit", "unchanged")
    return {
        "cases": found.cases,
        "blocks": found.blocks,
        **{name: [one.case.case_id for one in getattr(found, name)] for name in lists},
        "able": found.able,
        "highest_rate": plain(found.highest_rate),
        "spreads": found.spreads,
        "detectable": records(DETECTABLE, found.detectable),
    }


def gate_lines(
    comparison: Comparison, result: GateResult, policy: Policy, width: int, show_all: bool = False
) -> list[Text]:
    """Return what a terminal of `width` columns shows of a comparison, and below what a gate says of it."""
    *said, verdict = gate_said(comparison, result, policy)
    style = "bold green" if result.passed else "bold red"
    return [
        # what the candidate lacks is among the gate's own lines
        *comparison_lines(replace(comparison, only_baseline=()), width, show_all),
        Text(),
        *(line for text in said for line in wrapped(text, width)),
        *wrapped(verdict, width, style),
    ]


def gate_markdown(comparison: Comparison, result: GateResult, policy: Policy) -> str:
    """Return what a gate says of a comparison as Markdown, and below the comparison."""
    said = gate_said(comparison, result, policy)[:-1]
    word, counts = _gate_verdict(result, policy)
    listed = "\n".join(f"* {escaped(line)}" for line in said)
    blocks = [f"**{escaped(word)}**: {escaped(counts)}", listed, comparison_markdown(comparison)]
    return "\n\n".join(filter(None, blocks))


def gate_json(comparison: Comparison, result: GateResult, policy: Policy) -> str:
    """Return a comparison as one JSON object that has the verdict of a gate as "gate"."""
    return json_document(finite({"gate": _gate_data(comparison, result, policy), **_data(comparison)}))


def gate_said(comparison: Comparison, result: GateResult, policy: Policy) -> list[str]:
    """Return what the gate says in lines: what it left out, what must be seen, why it failed, and last the verdict."""
    left_out: dict[str, list[str]] = {}
    for one in result.ignored:
        heading = f"ignored until {one.ignore.until} ({one.ignore.reason})"
        left_out.setdefault(heading, []).append(f"{one.case_id} {one.metric}: {ignored_said(one)}")
    names = case_names(comparison)
    return [
        *(f"{heading}: {'; '.join(said)}" for heading, said in left_out.items()),
        *(f"note: {point_said(point, names)}" for point in result.notes),
        *(f"why: {point_said(point, names, policy.min_decided)}" for point in result.why),
        ": ".join(_gate_verdict(result, policy)),
    ]


def ignored_said(one: Ignored) -> str:
    """Return what an ignore left out."""
    if one.rule is not None:
        return rule_change_said(one.rule)
    if one.change is None:
        return "missing in the candidate" if one.missing else "failed"
    if one.metric == DRIFT:
        return reason(one.change)
    return f"regressed {gated_change(one.change)}" if one.change.status is ChangeStatus.REGRESSED else one.change.status


def _gate_verdict(result: GateResult, policy: Policy) -> tuple[str, str]:
    """Return whether the candidate may pass, and how many findings speak for and against that."""
    counts = [
        f"{len(findings)} {word}"
        for findings, word in (
            (result.regressions, "regressed"),
            (result.anchor_regressions, "regressed against the anchor"),
            (result.improved, "improved"),
            (result.unchanged, "unchanged"),
            (result.inconclusive, "inconclusive"),
            (result.ignored, "ignored"),
        )
        if findings
    ]
    for changes, against in ((result.rule_changes, ""), (result.anchor_rule_changes, " against the anchor")):
        if changes:
            counts.append(f"{counted(len(changed_ops_said(changes)), 'change')} of rules{against}")
    if result.decided:
        shares = (f"{kind} {one.decided} of {one.findings}" for kind, one in result.decided.items())
        counts.append(f"decided: {', '.join(shares)}")
    if result.rule_devices:
        counts.append(f"rules of autocast compared on {', '.join(result.rule_devices)}")
    word = result.status.upper() + ("" if result.passed else f" with exit code {result.exit_code}")
    return f"{word}{f' under {policy.path}' if policy.path else ''}", ", ".join(counts) or "nothing was compared"


def _gate_data(comparison: Comparison, result: GateResult, policy: Policy) -> dict[str, Any]:
    names = case_names(comparison)

    def points(of: Iterable[GatePoint]) -> list[dict[str, Any]]:
        return [
            {
                "code": one.code,
                "kind": one.kind,
                "against": one.against,
                "strict": one.strict,
                "count": len(one.changes or one.names),
                "text": point_said(one, names, policy.min_decided),
            }
            for one in of
        ]

    return {
        "status": result.status,
        "passed": result.passed,
        "exit_code": result.exit_code,
        "why": points(result.why),
        "notes": points(result.notes),
        "decided": {kind: asdict(one) for kind, one in result.decided.items()},
        "ignored": [
            {
                "case_id": one.case_id,
                "metric": one.metric,
                "what": ignored_said(one),
                "until": one.ignore.until.isoformat(),
                "reason": one.ignore.reason,
            }
            for one in result.ignored
        ],
        "missing": list(result.missing),
        "failed": list(result.failed),
        "rule_changes": [asdict(one) for one in result.rule_changes],
        "anchor_rule_changes": [asdict(one) for one in result.anchor_rule_changes],
        "rule_devices": list(result.rule_devices),
        "policy": {
            "path": policy.path or None,
            "strict": policy.strict,
            "only": list(policy.kinds),
            "min_decided": policy.min_decided,
            "anchor": policy.anchor or None,
        },
    }

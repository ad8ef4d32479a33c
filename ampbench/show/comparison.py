"""A comparison shown: lines for a terminal, Markdown for a pull request or a job's summary, JSON and CSV.

What a gate says of it, and what an arm compared with itself says of the machine, are shown here, too.
"""

import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ampbench.core.metrics import COLUMNS, DRIFT
from ampbench.core.statement import state
from ampbench.core.units import counted, format_percent, format_percent_range
from ampbench.records.changes import (
    EQUAL,
    OUTCOME,
    Change,
    ChangeStatus,
    Comparison,
    ControlCode,
    Detectable,
    Difference,
    GateCode,
    GatePoint,
    GateResult,
    Ignored,
    PrecisionMean,
    SelfComparison,
    Side,
    Traces,
    rank,
)
from ampbench.records.labels import case_labels, few
from ampbench.records.run import short_commit
from ampbench.show.changes import (
    brief,
    caveat_lines,
    change_text,
    control_line,
    few_phrases,
    gated_change,
    interval_text,
    metric_label,
    other_rule_lines,
    reason,
    remarks,
    rule_line,
    rule_lines,
    unseen_rule_lines,
    value_text,
)
from ampbench.show.data import csv_text, json_object, plain
from ampbench.show.document import Block, Column, Document, Section, block_text, cut, escaped, picked, records, table
from ampbench.show.terminal import document_lines, wrapped
from ampbench.show.wording import words

if TYPE_CHECKING:
    from rich.text import Text

KINDS = (OUTCOME, "time", "memory", "accuracy")
CHANGED = (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)
WORST_FIRST = (*CHANGED, ChangeStatus.INCONCLUSIVE, ChangeStatus.INCOMPARABLE, ChangeStatus.UNCHANGED)
NOT_IN_TURNS = (
    "not measured in turns: what changed on the machine between the runs looks like a change of time; ampbench ab "
    "decides"
)
LISTED = 3
"""So many cases that only one side has are named."""
RULES_LISTED = 20
ROWS = 100
"""A comment on GitHub holds 65,536 characters: so many rows of a table fit four times."""
IN_TABLES = ("status", "case_id", "metric", "baseline", "candidate", "change", "low", "reason")
"""The columns of findings that people read."""


def case_names(comparison: Comparison) -> dict[str, str]:
    """Return a short name for the case of each finding, by its id: that of the candidate's, where it is another."""
    cases = {change.case.case_id: change.case for change in comparison.findings}
    compared = {case_id: comparison.candidates.get(case_id, case) for case_id, case in cases.items()}
    labels = case_labels(compared.values())
    return {case_id: labels[case.case_id] for case_id, case in compared.items()}


def verdict(*comparisons: Comparison) -> str:
    """Return in one line what changed between runs; of runs that only explain, what their traces and rules say.

    That is how many findings have each status, and which change is the worst.
    """
    found = [(change, comparison) for comparison in comparisons for change in comparison.findings]
    if not found:
        return "; ".join(filter(None, map(_explained, comparisons))) or "nothing to compare"
    by_status = {status: [change for change, _ in found if change.status is status] for status in WORST_FIRST}
    drifted = [change for change in by_status[ChangeStatus.REGRESSED] if change.metric == DRIFT]
    parts = [something_else(len(drifted))] if drifted else []
    by_status[ChangeStatus.REGRESSED] = [one for one in by_status[ChangeStatus.REGRESSED] if one.metric != DRIFT]
    for status, having in by_status.items():
        kinds = Counter(change.kind for change in having)
        listed = ", ".join(f"{kind} {kinds[kind]:,}" for kind in KINDS if kinds[kind])
        parts += [f"{len(having):,} {status}" + (f" ({listed})" if status in CHANGED else "")] if having else []
    text = ", ".join(parts)
    changed = sorted((pair for pair in found if pair[0].status in CHANGED), key=lambda pair: rank(pair[0]))
    if not changed:
        undecided = by_status[ChangeStatus.INCONCLUSIVE] or by_status[ChangeStatus.INCOMPARABLE]
        return f"{'no change is certain' if undecided else 'nothing changed'}: {text}"
    worst, comparison = changed[0]
    run = f" of {comparison.candidate.label or comparison.candidate.run}" if len(comparisons) > 1 else ""
    most = "most of all " if len(changed) > 1 else ""
    return f"{text}: {most}{case_names(comparison)[worst.case.case_id]}{run}, {change_line(worst)}"


def _explained(comparison: Comparison) -> str:
    """Return what the traces and rules of two runs that only explain say."""
    parts = []
    if comparison.explained:
        counts = Counter(case.traces for case in comparison.explained.values())
        listed = ", ".join(f"{counts[traces]:,} {traces}" for traces in Traces if counts[traces])
        parts.append(f"{counted(len(comparison.explained), 'case')} explained: {listed}")
    if comparison.rule_devices:
        count = len(rule_lines(comparison.rule_changes))
        many = counted(count, "change") if count else "no change"
        parts.append(f"{many} of autocast's rules on {', '.join(comparison.rule_devices)}")
    return "; ".join(parts)


def something_else(cases: int) -> str:
    """Return "2 cases compute something else"."""
    return f"{counted(cases, 'case')} {'computes' if cases == 1 else 'compute'} something else"


def change_line(change: Change) -> str:
    """Return what became of a case: "time +7.2%", "fails now"."""
    if change.metric == DRIFT:
        return brief(change)
    if change.change is not None:
        return f"{metric_label(change.metric)} {change_text(change)}"
    fails = "fails now" if change.status is ChangeStatus.REGRESSED else "is ok now"
    return fails if change.metric == OUTCOME else reason(change)


def side_name(side: Side) -> str:
    """Return a side in one line: its run, label, torch, commit and arm."""
    parts = [side.run, *([side.label] if side.label else []), f"torch {side.torch_version}"]
    parts += [f"commit {short_commit(side.commit)}"] if side.commit else []
    return " · ".join([*parts, *([f"arm {' '.join(side.arm)}"] if side.arm else [])])


def difference_line(difference: Difference) -> str:
    """Return one difference as "torch 2.12.1 → 2.13.0", with what it means for times."""
    shorten = short_commit if difference.name in ("commit", "torch build") else str
    remark = " (times are not comparable)" if difference.matters else ""
    return f"{difference.name} {shorten(difference.baseline)} → {shorten(difference.candidate)}{remark}"


def notes(comparison: Comparison) -> list[str]:
    """Return what a reader should know of how the runs were measured."""
    caveats = caveat_lines(comparison.caveats, case_names(comparison))
    return [*([NOT_IN_TURNS] if comparison.apart else []), *caveats]


def conditions(comparison: Comparison) -> list[str]:
    """Return how both runs were measured, what the controls say, and which cases were not compared, a line each."""
    lines = ["measured in turns: both in the same blocks"] if comparison.interleaved else []
    lines += [] if comparison.control.code is ControlCode.NO_TIMES else [control_line(comparison.control)]
    skipped = Counter(comparison.skipped.values())
    lines += [f"skipped on both sides: {counted(count, 'case')} ({why})" for why, count in skipped.items()]
    return lines + _alone("candidate", comparison.only_candidate)


def _alone(side: str, case_ids: Sequence[str]) -> list[str]:
    return [f"only in the {side}: {few(case_ids, LISTED)}"] if case_ids else []


def warnings(comparison: Comparison) -> list[str]:
    """Return what a reader of the verdicts must not miss."""
    fired = [control_line(comparison.control)] if comparison.control.fired else []
    differences = [difference_line(one) for one in comparison.differences if one.matters]
    return [*fired, *notes(comparison), *differences, *_alone("baseline", comparison.only_baseline)]


def explanation_lines(comparison: Comparison, case_id: str) -> list[str]:
    """Return which dtypes, casts and rules of autocast differ in a case that both runs traced; none of any other."""
    found = comparison.explained.get(case_id)
    if found is None:
        return []
    versions = comparison.baseline.torch_version, comparison.candidate.torch_version
    between = f" between torch {versions[0]} and {versions[1]}" if all(versions) else ""
    lines = [*found.lines, *(f"autocast's rule for {rule_line(rule)}{between}" for rule in found.rules)]
    return lines + [
        f"autocast's rule for {rule_line(rule)}{between}; no difference to this step" for rule in found.idle
    ]


def finding_columns(names: Mapping[str, str]) -> list[Column[Change]]:
    """Return the columns of findings; `names` are those of the cases, by id."""

    def value(change: Change, value: float | None) -> str:
        return "" if change.metric == OUTCOME else value_text(change.metric, value)

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
        Column("low", lambda one: one.low, "95% interval", "ratio", interval_text, rare=True),
        *(Column(name, attrgetter(name)) for name in ("high", "threshold", "p_worse", "p_better", "blocks")),
        Column("facts", lambda one: dict(one.facts)),
        Column("remarks", remarks),
        Column("details", lambda one: dict(one.details)),
    ]


def means_block(comparison: Comparison, moved: Container[str] = COLUMNS) -> Block:
    """Return the table of the geometric means of what became of each precision, of the metrics that `moved`."""

    def interval(mean: PrecisionMean) -> str:
        certain = mean.low is None or mean.high is None or mean.low == mean.high
        return "" if certain else format_percent_range((mean.low or 0.0) - 1, (mean.high or 0.0) - 1, sign=True)

    ours = {change.case.case_id: change.case.precision for change in comparison.findings}
    others = any(ours.get(case_id, case.precision) != case.precision for case_id, case in comparison.candidates.items())
    columns: list[Column[PrecisionMean]] = [
        Column("precision", lambda one: one.precision, "baseline's precision" if others else "precision"),
        Column("device", lambda one: one.device, "device"),
        Column("metric", lambda one: metric_label(one.metric), "metric"),
        Column("ratio", lambda one: one.ratio, "change", "ratio", lambda one: format_percent(one.ratio - 1, sign=True)),
        Column("low", lambda one: one.low, "95% interval", "ratio", interval),
        Column("cases", lambda one: one.cases, "cases", "whole"),
    ]
    return table(
        "geometric means of candidate / baseline", columns, [mean for mean in comparison.means if mean.metric in moved]
    )


def _lists(comparison: Comparison) -> list[Block]:
    """Return the tables of changed rules and of defects that came or went."""
    rules = rule_lines(comparison.rule_changes)
    more = len(rules) - RULES_LISTED
    rules = [
        *rules[:RULES_LISTED],
        *([f"and {more:,} more"] if more > 0 else []),
        *unseen_rule_lines(comparison.rules_unobserved, comparison.rule_devices_missing),
    ]
    defects = [
        f"{'came' if one.came else 'went'}: {one.check} on {one.device}: {one.title}"
        f"{f' (what to do: {one.remedy})' if one.came else ''}"
        for one in comparison.defects
    ]
    changed = f"rules of autocast changed ({len(rule_lines(comparison.rule_changes)):,})"
    lists = {changed: rules, "known defects that came or went": defects}
    return [Block(title, ["what"], [[line] for line in lines]) for title, lines in lists.items()]


def comparison_section(comparison: Comparison) -> Section:
    """Return what changed, what is undecided and why; folded, every finding with its reason and how it was measured."""
    names = case_names(comparison)
    columns = picked(finding_columns(names), *IN_TABLES)
    by_status = {status: [one for one in comparison.findings if one.status is status] for status in WORST_FIRST}
    changed = [one for status in CHANGED for one in by_status[status] if not _is_word(one)]
    facts = [*map(difference_line, comparison.differences), *conditions(comparison)]
    facts += [f"no change of a rule: {phrase}" for phrase in other_rule_lines(comparison.rule_changes)]
    moved = {mean.metric for mean in comparison.means if abs(mean.ratio - 1) > EQUAL}
    blocks = [
        table(f"changed ({len(changed):,})", columns[:-1], changed),
        _alike(comparison.findings, names, changed),
        *_why(comparison, names),
        *_lists(comparison),
        replace(means_block(comparison, moved), folded=True),
        *(table(f"{status} ({len(own):,})", columns, own, folded=True) for status, own in by_status.items()),
        Block("how it was measured", ["what"], [[line] for line in facts], folded=True),
    ]
    return Section(sides_line(comparison), [block for block in blocks if block.rows])


def _is_word(change: Change) -> bool:
    """Return whether a change is told in words, as one of an outcome or of what is computed."""
    return change.metric in (OUTCOME, DRIFT) or not change_text(change)


def _alike(findings: Iterable[Change], names: Mapping[str, str], listed: Container[Change]) -> Block:
    """Return by status, kind and code what is not `listed` and not simply unchanged, and all remarks: first reasons."""
    alike: dict[tuple[str, ...], list[tuple[Change, str]]] = {}
    for change in sorted(findings, key=lambda one: WORST_FIRST.index(one.status)):
        if change not in listed and change.status is not ChangeStatus.UNCHANGED:
            alike.setdefault((change.status, change.kind, change.code), []).append((change, reason(change)))
        for remark, text in zip(change.remarks, remarks(change), strict=True):
            alike.setdefault((change.status, change.kind, remark.code), []).append((change, text))
    rows = []
    for (status, kind, _), members in alike.items():
        cases = dict.fromkeys(names[change.case.case_id] for change, _ in members)
        rows.append([status, kind, f"{len(members):,}", few(cases, 1), members[0][1]])
    headers = ["verdict", "metric", "findings", "case", "why"]
    return Block("by reason", headers, rows, "the first case and reason of those alike", numbers=["findings"])


def _why(comparison: Comparison, names: Mapping[str, str]) -> Iterator[Block]:
    """Yield what differs in the traces of the case that changed most; folded, of others. Without findings, of all."""
    changed = dict.fromkeys(one.case.case_id for one in comparison.findings if one.status in CHANGED)
    shown = [case_id for case_id in changed if case_id in comparison.explained][:1]
    shown = shown if comparison.findings else [*comparison.explained]
    for listed, folded in ((shown, False), ([one for one in comparison.explained if one not in shown], True)):
        rows = [
            ("" if place else names.get(case_id, case_id), line)
            for case_id in listed
            for place, line in enumerate(explanation_lines(comparison, case_id))
        ]
        yield Block("why, of other cases" if folded else "why", ["case", "what differs"], rows, folded=folded)


def comparison_lines(
    comparison: Comparison, width: int, everything: bool = False, gate: GateResult | None = None
) -> list["Text"]:
    """Return what a terminal of `width` columns shows of a comparison, and below what a `gate` says of it.

    With `everything`, every finding is listed.
    """
    from rich.text import Text

    if gate is not None:
        comparison = replace(comparison, only_baseline=())  # a note of the gate
    section = comparison_section(comparison)
    shown = [replace(block, folded=False) for block in section.blocks if everything or not block.folded]
    section = Section(section.title, [*map(Block, warnings(comparison)), *shown])
    lines = [*document_lines([section], (), width), Text(), *wrapped(verdict(comparison), width, "bold")]
    if gate is not None:
        *texts, last = gate_texts(comparison, gate)
        lines += [Text(), *(line for text in texts for line in wrapped(text, width))]
        lines += wrapped(last, width, "bold green" if gate.passed else "bold red")
    return lines


def comparison_markdown(comparison: Comparison, gate: GateResult | None = None) -> str:
    """Return a comparison as Markdown, below what a `gate` says of it: the verdict, what changed, details to unfold."""
    head = []
    if gate is not None:
        word, counts = _gate_verdict(gate)
        texts = gate_texts(comparison, gate)[:-1]
        head = [f"**{escaped(word)}**: {escaped(counts)}", _bullets(texts)]
    head += [f"**{escaped(verdict(comparison))}**", escaped(sides_line(comparison))]
    head += [f"> {escaped(text)}" for text in warnings(comparison)]
    blocks = [block_text(cut(block, ROWS), 3) for block in comparison_section(comparison).blocks]
    return "\n\n".join(filter(None, [*head, *blocks])) + "\n"


def sides_line(comparison: Comparison) -> str:
    """Return what is compared with what."""
    return f"{side_name(comparison.baseline)} → {side_name(comparison.candidate)}"


def _bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"* {escaped(text)}" for text in texts)


def comparison_data(comparison: Comparison, gate: GateResult | None = None) -> dict[str, Any]:
    """Return a comparison as JSON has it, with the verdict of a gate as "gate"."""
    return {
        **({"gate": _gate_data(comparison, gate)} if gate else {}),
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
        "explained": {case_id: explanation_lines(comparison, case_id) for case_id in comparison.explained},
        "rule_changes": [asdict(one) for one in comparison.rule_changes],
        "rule_devices": list(comparison.rule_devices),
        "defects": [asdict(one) for one in comparison.defects],
    }


def comparison_json(comparison: Comparison, gate: GateResult | None = None) -> str:
    """Return the same as text, a line per finding; null where a number is undefined or not finite."""
    return json_object(comparison_data(comparison, gate))


def comparison_csv(comparison: Comparison) -> str:
    """Return the findings as CSV; remarks are joined by "; ", details are a JSON object."""
    columns = finding_columns({})
    rows = records(columns, comparison.findings)
    for row in rows:
        row["remarks"] = "; ".join(row["remarks"])
        for column in ("facts", "details"):
            row[column] = json.dumps({name: plain(value) for name, value in row[column].items()})
    return csv_text([column.key for column in columns], ([*row.values()] for row in rows))


def gate_texts(comparison: Comparison, result: GateResult) -> list[str]:
    """Return what a gate says in lines: what it left out, what must be seen, why it failed, and last the verdict."""
    left_out: dict[str, list[str]] = {}
    for one in result.ignored:
        heading = f"ignored until {one.until} ({one.reason})"
        left_out.setdefault(heading, []).append(f"{one.case_id} {one.metric}: {_ignored_text(one)}")
    names = case_names(comparison)
    return [
        *(f"{heading}: {'; '.join(texts)}" for heading, texts in left_out.items()),
        *(f"note: {point_line(point, names)}" for point in result.notes),
        *(f"why: {point_line(point, names)}" for point in result.why),
        ": ".join(_gate_verdict(result)),
    ]


def point_line(point: GatePoint, names: Mapping[str, str]) -> str:
    """Return a point of a gate in a line; cases go by `names`."""
    changes = point.changes
    cases = [names.get(one.case.case_id, one.case.case_id) for one in changes]
    labels = [f"{name} {metric_label(one.metric)}" for name, one in zip(cases, changes, strict=True)]
    which = cases
    if point.code in (GateCode.OTHER_FUNCTION, GateCode.SKIPPED):
        word = brief if point.code is GateCode.OTHER_FUNCTION else reason
        which = [f"{name}: {word(one)}" for name, one in zip(cases, changes, strict=True)]
    elif point.code is GateCode.REGRESSED:
        which = [f"{label} {gated_change(one)}" for label, one in zip(labels, changes, strict=True)]
    elif point.code is GateCode.LOST:
        which = [f"{label} ({one.code})" for label, one in zip(labels, changes, strict=True)]
    elif point.code in (GateCode.UNDECIDED, GateCode.NOTHING):
        which = [text for text, _ in Counter(map(reason, changes)).most_common(1)]
        if point.code is GateCode.UNDECIDED and point.names:
            which.append(f"the candidate lacks {counted(len(point.names), 'case')}")
        elif point.code is GateCode.NOTHING:
            which += [f"skipped on both sides: {why}" for why in dict.fromkeys(point.names)]
    elif point.code is GateCode.RULES_CHANGED:
        which = rule_lines(point.rules)
    elif point.code is GateCode.RULES_NOTED:
        which = other_rule_lines(point.rules)
    elif point.code is GateCode.RULES_UNSEEN:
        which = unseen_rule_lines(point.rules, point.names)
    elif not changes:
        which = [names.get(name, name) for name in point.names]
    facts: dict[str, float | str] = {"count": len(changes or point.names or which), "which": few_phrases(which)}
    facts |= {"kind": point.kind, "decided": point.decided, "findings": point.findings, "number": point.number}
    facts |= {"limit": point.limit, "share": point.decided / point.findings if point.findings else 0.0}
    against = {"against": point.against} if point.against else {}
    return words(state(point.code, **facts, **against))


def _ignored_text(one: Ignored) -> str:
    """Return what an ignore left out."""
    if one.rule is not None:
        return rule_line(one.rule)
    if one.change is None:
        return "missing in the candidate" if one.missing else "failed"
    if one.metric == DRIFT:
        return reason(one.change)
    return f"regressed {gated_change(one.change)}" if one.change.status is ChangeStatus.REGRESSED else one.change.status


def _gate_verdict(result: GateResult) -> tuple[str, str]:
    """Return whether the candidate may pass, and how many findings speak for and against that."""
    listed = {
        "regressed": result.regressions,
        "regressed against the anchor": result.anchor_regressions,
        "improved": result.improved,
        "unchanged": result.unchanged,
        "inconclusive": result.inconclusive,
        "ignored": result.ignored,
    }
    counts = [f"{len(findings)} {word}" for word, findings in listed.items() if findings]
    for changes, against in ((result.rule_changes, ""), (result.anchor_rule_changes, " against the anchor")):
        counts += [f"{counted(len(rule_lines(changes)), 'change')} of rules{against}"] if changes else []
    if result.decided:
        shares = (f"{kind} {one.decided} of {one.findings}" for kind, one in result.decided.items())
        counts.append(f"decided: {', '.join(shares)}")
    if result.rule_devices:
        counts.append(f"rules of autocast compared on {', '.join(result.rule_devices)}")
    word = result.status.upper() + ("" if result.passed else f" with exit code {result.exit_code}")
    path = result.policy["path"]
    return f"{word}{f' under {path}' if path else ''}", ", ".join(counts) or "nothing was compared"


def _gate_data(comparison: Comparison, result: GateResult) -> dict[str, Any]:
    names = case_names(comparison)

    def points(of: Iterable[GatePoint]) -> list[dict[str, Any]]:
        return [
            {
                "code": one.code,
                "kind": one.kind,
                "against": one.against,
                "count": len(one.changes or one.names or one.rules),
                "text": point_line(one, names),
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
                "what": _ignored_text(one),
                "until": one.until.isoformat(),
                "reason": one.reason,
            }
            for one in result.ignored
        ],
        "missing": list(result.missing),
        "failed": list(result.failed),
        "rule_changes": [asdict(one) for one in result.rule_changes],
        "anchor_rule_changes": [asdict(one) for one in result.anchor_rule_changes],
        "rule_devices": list(result.rule_devices),
        "policy": dict(result.policy),
    }


CONTROL_SHOWN = 8
"""So many of the cases that spread most are listed."""

DETECTABLE: Sequence[Column[Detectable]] = (
    Column("blocks", lambda one: one.blocks, "blocks", "whole"),
    Column("seconds", lambda one: one.seconds, "time", "s"),
    Column("median", lambda one: one.median, "median case", "share", lambda one: format_percent(one.median)),
    Column("worst", lambda one: one.worst, "worst case", "share", lambda one: format_percent(one.worst)),
)


def control_document(comparison: Comparison, found: SelfComparison) -> Document:
    """Return what `comparison` of an arm with itself came to: false alarms, and the changes that can be seen."""
    cases, alarms = counted(found.cases, "case"), found.false_alarms
    rate = f" (95%: at most {format_percent(found.highest_rate)} of the {found.able} that could raise one, Wilson)"
    if not found.able:
        rate = ": there could be none, with so few blocks on a machine that was fit"
    lines = [
        f"false alarms: {len(alarms)} of {cases}{rate}",
        *(f"{change.case.case_id}: {reason(change)}" for change in alarms),
        f"proven unchanged: {len(found.unchanged)} of {cases}",
    ]
    if found.suspected:
        lines.append(f"suspected and not confirmed by fresh blocks: {len(found.suspected)}")
    if found.unfit:
        lines.append(f"no verdict, the machine was unfit: {len(found.unfit)}, such as: {reason(found.unfit[0])}")
    names = case_labels(finding.case for finding in comparison.findings)
    spreads: list[Column[tuple[str, float]]] = [
        Column("case_id", lambda one: one[0], "case", said=lambda one: names[one[0]]),
        Column("spread", lambda one: one[1], "spread", "share", lambda one: format_percent(one[1])),
    ]
    widest = sorted(found.spreads.items(), key=lambda one: -one[1])
    blocks = [Block(line) for line in lines]
    if found.spreads:
        blocks.append(table("a slowdown is found 19 times in 20 if it is at least", DETECTABLE, found.detectable))
        blocks.append(table("standard deviation of a block's ratio, the widest", spreads, widest, shown=CONTROL_SHOWN))
    lists = ("false_alarms", "suspected", "unfit", "unchanged")
    return Document(
        sections=lambda: [Section(f"one arm against itself: {cases}, {counted(found.blocks, 'block')}", blocks)],
        data=lambda: {
            **{name: getattr(found, name) for name in ("cases", "blocks", "able", "spreads")},
            **{name: [change.case.case_id for change in getattr(found, name)] for name in lists},
            "highest_rate": plain(found.highest_rate),
            "detectable": records(DETECTABLE, found.detectable),
        },
        columns=[column.key for column in spreads],
        rows=lambda: records(spreads, widest),
    )

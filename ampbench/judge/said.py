"""A comparison in words: what a terminal, Markdown and the report say alike."""

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence

from ampbench.core.metrics import COLUMNS, COMPARED, DRIFT
from ampbench.core.statement import state
from ampbench.core.units import (
    UNDEFINED,
    counted,
    format_exact_percent,
    format_limit,
    format_percent,
    format_percent_range,
    format_quantity,
)
from ampbench.instruments.rules.findings import changed_ops_said, few_phrases, others_said
from ampbench.records.changes import (
    OUTCOME,
    Change,
    ChangeCode,
    ChangeStatus,
    Comparison,
    Difference,
    GateCode,
    GatePoint,
    PrecisionMean,
    Side,
    Traces,
)
from ampbench.records.labels import case_labels, few
from ampbench.records.rules import RuleChange, short_name
from ampbench.records.run import short_commit
from ampbench.show.changes import brief, caveat_lines, control_line, far_text, reason
from ampbench.show.document import Block, Column, table
from ampbench.show.wording import words

KINDS = (OUTCOME, "time", "memory", "accuracy")
CHANGED = (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)
WORST_FIRST = (*CHANGED, ChangeStatus.INCONCLUSIVE, ChangeStatus.INCOMPARABLE, ChangeStatus.UNCHANGED)
STYLES: Mapping[str, str] = {
    ChangeStatus.REGRESSED: "bold red",
    ChangeStatus.IMPROVED: "bold green",
    ChangeStatus.INCONCLUSIVE: "yellow",
    ChangeStatus.INCOMPARABLE: "magenta",
    ChangeStatus.UNCHANGED: "",
}
"""How a terminal shows each verdict."""
CHANGE_LEGEND = (
    "change: candidate / baseline - 1; of an error, its growth relative to the baseline's or, where that is larger, to "
    "the error of rounding to the dtype"
)
NOT_IN_TURNS = (
    "not measured in turns: what changed on the machine between the runs looks like a change of time; ampbench ab "
    "decides"
)
LISTED = 3
"""So many cases that only one side has are named."""
RULES_LISTED = 20
RULES_TITLE = "rules of autocast changed"


def case_names(comparison: Comparison) -> dict[str, str]:
    """Return a short name for the case of each finding, by its id: that of the candidate's, where it is another."""
    cases = {one.case.case_id: one.case for one in comparison.findings}
    compared = {case_id: comparison.candidates.get(case_id, case) for case_id, case in cases.items()}
    labels = case_labels(compared.values())
    return {case_id: labels[case.case_id] for case_id, case in compared.items()}


def verdict(comparison: Comparison) -> str:
    """Return in one line what changed between two runs; of runs that only explain, what their traces and rules say."""
    if not comparison.findings and (comparison.explained or comparison.rule_devices):
        return "; ".join(explained_said(comparison))
    return summary(comparison.findings, case_names(comparison))


def explained_said(comparison: Comparison) -> list[str]:
    """Return how many cases were traced on both sides, in how many something changed, and how many rules did."""
    said = []
    if comparison.explained:
        counts = Counter(case.traces for case in comparison.explained.values())
        listed = ", ".join(f"{counts[what]:,} {what}" for what in Traces if counts[what])
        said.append(f"{counted(len(comparison.explained), 'case')} explained: {listed}")
    if comparison.rule_devices:
        changed = len(changed_ops_said(comparison.rule_changes))
        many = counted(changed, "change") if changed else "no change"
        said.append(f"{many} of autocast's rules on {', '.join(comparison.rule_devices)}")
    return said


def rules_said(comparison: Comparison, everything: bool = True) -> list[str]:
    """Return a line for each of the first `RULES_LISTED` changed rules, how many more there are, and what else changed.

    A change that is the same on several devices is one line. What could not be observed any more is counted by kind,
    and so is, with `everything`, what alters no rule (documents, claims, new ops).
    """
    said = changed_ops_said(comparison.rule_changes)
    others = others_said(comparison.rule_changes) if everything else ()
    more = len(said) - RULES_LISTED
    return [
        *said[:RULES_LISTED],
        *([f"and {more:,} more"] if more > 0 else []),
        *(f"no change of a rule: {phrase}" for phrase in others),
        *rules_not_seen(comparison.rules_unobserved, comparison.rule_devices_missing),
    ]


def defects_said(comparison: Comparison) -> list[str]:
    """Return a line for each known defect that came, with what to do, and for each that went."""
    return [
        f"{'came' if one.came else 'went'}: {one.check} on {one.device}: {one.title}"
        f"{f' (what to do: {one.remedy})' if one.came else ''}"
        for one in comparison.defects
    ]


def rules_title(comparison: Comparison) -> str:
    """Return what heads `rules_said`: how many rules changed."""
    return f"{RULES_TITLE} ({len(changed_ops_said(comparison.rule_changes)):,})"


def rules_not_seen(unobserved: Sequence[RuleChange], missing: Sequence[str]) -> list[str]:
    """Return what the candidate's probes do not answer for: `unobserved` rules, `missing` device types and dtypes."""
    ops = list(dict.fromkeys(f"{short_name(one.op)} on {one.device}" for one in unobserved))
    said = (
        [f"{counted(len(ops), 'rule')} observed in the baseline and not in the candidate: {few_phrases(ops)}"]
        if ops
        else []
    )
    return [*said, *([f"the candidate lacks the rules of autocast on {', '.join(missing)}"] if missing else [])]


def most_important(findings: Sequence[Change]) -> Change | None:
    """Return the first change among findings that are sorted by what matters, regressions before all."""
    return next((one for verdict in CHANGED for one in findings if one.status is verdict), None)


def worst_of_cases(findings: Sequence[Change]) -> dict[str, Change]:
    """Return, by case id, the finding under which a case is explained: the first that regressed or, without, improved.

    Findings are sorted by what matters; a case of which nothing changed is not among them.
    """
    found: dict[str, Change] = {}
    for one in findings:
        if one.status in CHANGED:
            found.setdefault(one.case.case_id, one)
    return found


def summary(findings: Sequence[Change], names: Mapping[str, str]) -> str:
    """Return in one line what changed: how many findings have each verdict, and which change is the worst.

    Findings are sorted by what matters; `names` are those of the cases, by id.
    """
    counts = {verdict: [one for one in findings if one.status is verdict] for verdict in WORST_FIRST}
    worst = most_important(findings)
    otherwise = [one for one in counts[ChangeStatus.REGRESSED] if one.metric == DRIFT]
    counts[ChangeStatus.REGRESSED] = [one for one in counts[ChangeStatus.REGRESSED] if one.metric != DRIFT]
    said = [something_else(len(otherwise))] if otherwise else []
    for verdict, having in counts.items():
        if having:
            kinds = Counter(one.kind for one in having)
            listed = ", ".join(f"{kind} {kinds[kind]:,}" for kind in KINDS if kinds[kind])
            said.append(f"{len(having):,} {verdict}" + (f" ({listed})" if verdict in CHANGED else ""))
    text = ", ".join(said) or "nothing to compare"
    if worst is None:
        undecided = counts[ChangeStatus.INCONCLUSIVE] or counts[ChangeStatus.INCOMPARABLE]
        return f"{'no change is certain' if undecided else 'nothing changed'}: {text}"
    which = "most of all " if sum(one.status in CHANGED for one in findings) > 1 else ""
    return f"{text}: {which}{names[worst.case.case_id]}, {change_said(worst)}"


def something_else(cases: int, of: str = "") -> str:
    """Return "2 cases compute something else"; with `of`, "2 of 4 cases compute something else"."""
    which = f"{cases:,} {of}" if of else counted(cases, "case")
    return f"{which} {'computes' if cases == 1 else 'compute'} something else"


def change_said(one: Change) -> str:
    """Return what became of a case whose finding is a change: "time +7.2%", "fails now"."""
    if one.change is not None and one.metric != DRIFT:
        return f"{metric_label(one.metric)} {change_text(one)}"
    if one.metric == DRIFT:
        return brief(one)
    fails = "fails now" if one.status is ChangeStatus.REGRESSED else "is ok now"
    return fails if one.metric == OUTCOME else reason(one)


def side_name(side: Side) -> str:
    """Return a side in one line: its run, label, torch, commit and arm."""
    parts = [side.run, *([side.label] if side.label else []), f"torch {side.torch_version}"]
    parts += [f"commit {short_commit(side.commit)}"] if side.commit else []
    return " · ".join([*parts, *([f"arm {' '.join(side.arm)}"] if side.arm else [])])


def differences_said(differences: Sequence[Difference]) -> list[str]:
    """Return in what the environments differ, in one line."""
    if not differences:
        return ["the environments are the same in all that is recorded"]
    return ["differences: " + "; ".join(map(difference_said, differences))]


def difference_said(one: Difference) -> str:
    """Return one difference as "torch 2.12.1 → 2.13.0", with what it means for times."""
    shorten = short_commit if one.name in ("commit", "torch build") else str
    remark = " (times are not comparable)" if one.matters else ""
    return f"{one.name} {shorten(one.baseline)} → {shorten(one.candidate)}{remark}"


def notes(comparison: Comparison) -> list[str]:
    """Return what a reader should know of how the runs were measured."""
    caveats = caveat_lines(comparison.caveats, case_names(comparison))
    return [*([NOT_IN_TURNS] if comparison.apart else []), *caveats]


def statements(comparison: Comparison) -> list[str]:
    """Return how both runs were measured, and what the controls say."""
    in_turns = ["measured in turns: both in the same blocks"] if comparison.interleaved else []
    return [*in_turns, *notes(comparison), control_line(comparison.control)]


def warnings(comparison: Comparison) -> list[str]:
    """Return what a reader of the verdicts must not miss."""
    fired = [control_line(comparison.control)] if comparison.control.fired else []
    return [*fired, *notes(comparison), *(difference_said(one) for one in comparison.differences if one.matters)]


def lonely(comparison: Comparison) -> list[str]:
    """Return which cases only one side has, and how many were skipped on both."""
    said = [
        f"skipped on both sides: {counted(count, 'case')} ({reason})"
        for reason, count in Counter(comparison.skipped.values()).items()
    ]
    for side, ids in (("baseline", comparison.only_baseline), ("candidate", comparison.only_candidate)):
        if ids:
            said.append(f"only in the {side}: {few(ids, LISTED)}")
    return said


def metric_label(metric: str) -> str:
    """Return what a metric is called in tables."""
    column = COLUMNS.get(metric) or COMPARED.get(metric)
    return column.label if column else metric


def value_text(metric: str, value: float | None) -> str:
    """Return a value of a metric as short text; "–" where there is none."""
    return UNDEFINED if value is None else format_quantity(value, (COLUMNS.get(metric) or COMPARED[metric]).unit)


def change_text(one: Change) -> str:
    """Return a finding's change as "+7.2%", "" where there is none; of a count the difference, of fp64 how far."""
    if one.metric == DRIFT and one.change is not None:
        return far_text(one.change)
    if one.change is None or one.baseline is None or one.candidate is None:
        return ""
    if one.metric in COLUMNS and COLUMNS[one.metric].unit == "count":
        return f"{one.candidate - one.baseline:+,.0f}"
    if math.isinf(one.change):
        return "from none"
    return (format_percent if one.kind == "time" else format_exact_percent)(one.change, sign=True)


def threshold_text(one: Change) -> str:
    """Return the threshold that a finding's change lies beyond, or within."""
    beyond = one.change if one.code is ChangeCode.BEYOND_THRESHOLD and one.change is not None else 0.0
    return f"threshold {format_limit(one.threshold, beyond)}"


def interval_text(one: Change) -> str:
    """Return the interval of a change that luck has part in."""
    return (
        ""
        if one.low is None or one.high is None or one.low == one.high
        else format_percent_range(one.low, one.high, sign=True)
    )


def precision_heading(comparison: Comparison) -> str:
    """Return what heads the precisions of the means: the baseline's, where the candidate has others."""
    ours = {one.case.case_id: one.case.precision for one in comparison.findings}
    others = any(ours.get(case_id, one.precision) != one.precision for case_id, one in comparison.candidates.items())
    return "baseline's precision" if others else "precision"


def means_block(comparison: Comparison, moved: Container[str] = COLUMNS) -> Block:
    """Return the table of the geometric means of what became of each precision, of the metrics that `moved`."""

    def interval(one: PrecisionMean) -> str:
        certain = one.low is None or one.high is None or one.low == one.high
        return "" if certain else format_percent_range((one.low or 0.0) - 1, (one.high or 0.0) - 1, sign=True)

    columns: list[Column[PrecisionMean]] = [
        Column("precision", lambda one: one.precision, precision_heading(comparison)),
        Column("device", lambda one: one.device, "device"),
        Column("metric", lambda one: metric_label(one.metric), "metric"),
        Column("ratio", lambda one: one.ratio, "change", "ratio", lambda one: format_percent(one.ratio - 1, sign=True)),
        Column("low", lambda one: one.low, "95% interval", "ratio", interval),
        Column("cases", lambda one: one.cases, "cases", "whole"),
    ]
    title = (
        f"Geometric mean of candidate / baseline: {side_name(comparison.baseline)} → {side_name(comparison.candidate)}"
    )
    return table(title, columns, [one for one in comparison.means if one.metric in moved])


def point_said(point: GatePoint, names: Mapping[str, str], limit: float = 0.0) -> str:
    """Return a point of a gate in a line; cases go by `names`, `limit` is the share that must be decided."""

    def named(one: Change) -> str:
        return names.get(one.case.case_id, one.case.case_id)

    match point.code:
        case GateCode.OTHER_FUNCTION:
            which = [f"{named(one)}: {brief(one)}" for one in point.changes]
        case GateCode.REGRESSED:
            which = [f"{named(one)} {metric_label(one.metric)} {gated_change(one)}" for one in point.changes]
        case GateCode.FAILS:
            which = list(map(named, point.changes))
        case GateCode.INCONCLUSIVE:
            which = [f"{named(one)} {metric_label(one.metric)}" for one in point.changes]
        case GateCode.LOST:
            which = [f"{named(one)} {metric_label(one.metric)} ({one.code})" for one in point.changes]
        case GateCode.SKIPPED:
            which = [f"{named(one)}: {reason(one)}" for one in point.changes]
        case GateCode.UNDECIDED | GateCode.NOTHING | GateCode.UNFIT:
            skipped = [f"skipped on both sides: {why}" for why in dict.fromkeys(point.names)]
            which = [*(text for text, _ in Counter(map(reason, point.changes)).most_common(1)), *skipped]
        case _:
            which = [names.get(name, name) for name in point.names]
    facts: dict[str, float | str] = {"count": len(point.changes or point.names), "which": few_phrases(which)}
    facts |= {"kind": point.kind, "decided": point.decided, "findings": point.findings, "number": point.number}
    facts |= {"limit": limit, "share": point.decided / point.findings if point.findings else 0.0}
    against = {"against": point.against} if point.against else {}
    return f"{'strict: ' if point.strict else ''}{words(state(point.code, **facts, **against))}"


def gated_change(one: Change) -> str:
    """Return a change with its threshold, or why it has none: "+8.0% (threshold 2%)"."""
    said = change_text(one)
    finite = said and one.change is not None and math.isfinite(one.change)
    return f"{said} ({threshold_text(one)})" if finite else f"({reason(one)})"

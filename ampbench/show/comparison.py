"""The document of two compared runs: changes, causes, the gate's findings and controls."""

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import msgspec

from ampbench.core import by_key
from ampbench.core.metrics import COLUMNS, COMPARED, DRIFT
from ampbench.core.precisions import SHORT_DTYPES
from ampbench.core.statement import state
from ampbench.core.units import (
    UNDEFINED,
    all_of,
    counted,
    format_exact_percent,
    format_limit,
    format_percent,
    format_percent_range,
    format_quantity,
)
from ampbench.records.changes import (
    OUTCOME,
    Caveat,
    Change,
    ChangeCode,
    ChangeStatus,
    Comparison,
    ControlCode,
    ControlVerdict,
    Difference,
    GateCode,
    GatePoint,
    GateResult,
    Ignored,
    Remark,
    Traces,
)
from ampbench.records.labels import case_labels, few, gathered
from ampbench.records.rules import DTYPES, NOT_THERE, RuleChange, short_name, worded
from ampbench.records.run import short_commit
from ampbench.show.document import REST, Block, Column, Document, Section, cut, picked, records, table
from ampbench.show.wording import spelled, words

LARGEST = 10.0
"""The most of an interval that is shown: three rounds can bound next to nothing."""
Facts = Mapping[str, float | str]
CHANGES: Mapping[str, str] = MappingProxyType(
    {
        OUTCOME: "{before} → {after}: {why}",
        DRIFT: "{drift}{allowed:if|; threshold ||}",
        ChangeCode.OTHER_WEIGHTS: "{inputs}",
        ChangeCode.OTHER_REFERENCE: "errors against {before} in the baseline, {after} in the candidate: {failed}",
        ChangeCode.OTHER_FUNCTION: "errors of another function: {drift}",
        ChangeCode.OTHER_COUNTER: "counted by the {before} in the baseline, by the {after} in the candidate",
        ChangeCode.NOT_MEASURED: "the {side} has no number{why:if|: ||}",
        ChangeCode.OTHER_MACHINE: "measured differently: {differences}",
        ChangeCode.CONTROL_FIRED: "the control fired: the same code seemed to differ, so no time of it counts",
        ChangeCode.IMPORTED: "imported without samples, {programs}: measure with ampbench ab",
        "invalid time": "a time cannot be zero, negative or infinite",
        "invalid memory": "a peak of 0 bytes cannot be one",
        "invalid accuracy": "errors by chance: the network draws random numbers, or keeps state of its own",
        "time beyond-threshold": "certainly over {limit}, {many}{confirmed}{disturbed:if|; ||}",
        "time unconfirmed": "threshold {limit}, {many}, not confirmed by fresh ones yet{disturbed:if|; ||}",
        "time not-confirmed": "threshold {limit}, {many}, not confirmed by {fresh} fresh ones",
        "time within-threshold": "within {limit}, {many}",
        "time tail-undecided": "within {limit}, but the mean of all samples may not be: {mean}",
        "time too-few-blocks": "only {many}: too few for a verdict{needed:if|; about || would decide}",
        "time undecided": "{needed:if|about || would decide}{needed:else|more would not decide it soon}",
        "time unfit-machine": "{disturbed}",
        "undefined": "undefined in the {undefined}: {why}{why:else|not finite}",
        "of_rounding": "relative to the rounding error of the dtype; threshold {limit}",
        "floor": "differences up to {floor:limit} count as none",
        "tolerated": "threshold {limit}",
        "exact": "any difference counts",
        "equal": "equal",
    }
)
"""Why a change has its status, by its code or, where codes are of several kinds, by both."""
REMARKS: Mapping[StrEnum, str] = MappingProxyType(
    {
        Remark.OTHER_NUMBERS: "{inputs}: the {kind} may differ",
        Remark.DRIFT: "{drift}, which the threshold of {limit} allows",
        Remark.ITEMS: "a step does {before:g} → {after:g} items",
        Remark.SLOW_SHARE: "slow {of}: {slow_share_baseline:.0%} → {slow_share_candidate:.0%} (p = {p:.1g})",
    }
)
CONTROLS: Mapping[ControlCode, str] = MappingProxyType(
    {
        ControlCode.NO_TIMES: "no times are compared",
        ControlCode.NONE: "no control: the same code was not measured twice",
        ControlCode.UNFIT: "control: measured, but the machine was unfit in every block",
        ControlCode.FIRED: (
            "control: the same code, measured twice, seemed to differ by {change:percent}"
            "{of_mean} on {case}: no time verdict counts"
        ),
        ControlCode.TOO_FEW: "control: {cells:counted;case} measured twice, in too few blocks to say anything",
        ControlCode.QUIET: (
            "control: {cells:counted;case} measured twice in the same blocks, none seemed to differ (at most "
            "{change:percent}, {case})"
        ),
        ControlCode.APART: (
            "control: one case, measured twice, was{baseline:if| |percent| apart in the baseline}"
            "{candidate:if| |percent| apart in the candidate}; intervals are widened by this"
        ),
        ControlCode.NEITHER: "neither run has a control: how far two runs of the same code differ is not known",
    }
)
CAVEATS: Mapping[StrEnum, str] = MappingProxyType(
    {
        Caveat.SAME_RUN: "both sides are the same run, which cannot differ from itself: name two",
        Caveat.CUT: "the {side}'s file {why}",
        Caveat.INCOMPLETE: "the {side} is not complete: {why}",
        Caveat.OTHER_CODE: "the {side}: {why}",
        Caveat.OTHER_CARD: "the cards are two ({before} → {after}): measure both runs on one card",
        Caveat.OTHER_KERNELS: "attention runs by {after} in the candidate, by {before} in the baseline",
    }
)
_MOVED = {"output": "the {} output", "gradients": "the gradients", "loss": "the loss"}


def reason(change: Change) -> str:
    """Return why a change has its status."""
    key: str = change.code
    if change.metric in (OUTCOME, DRIFT):
        key = change.metric
    elif change.code is ChangeCode.INVALID:
        key = f"invalid {change.kind}"
    elif change.code not in CHANGES and change.kind == "time":
        too_few = change.change is None and change.code is not ChangeCode.UNFIT_MACHINE
        key = f"time {ChangeCode.TOO_FEW_BLOCKS if too_few else change.code}"
    elif change.code not in CHANGES:
        kinds = [kind for kind in ("undefined", "floor", "of_rounding") if kind in change.facts]
        key = kinds[0] if kinds else "tolerated" if change.threshold else "exact"
        key = "equal" if "equal" in change.facts else key
    return spelled(CHANGES[key], _facts(change))


def _facts(change: Change) -> dict[str, Any]:
    """Return the facts of a change, as the lines of `CHANGES` and `REMARKS` name them."""
    facts, details = change.facts, change.details
    known: dict[str, Any] = {"of": "blocks", **details, **facts, "kind": change.kind}
    if change.metric == OUTCOME:
        causes = dict.fromkeys(filter(None, (str(facts["why"]), str(facts["was"]))))
        return known | {"why": "; before: ".join(causes)}
    if "clock_before" in facts:
        clocks = " → ".join(f"{facts[name]:.2f} GHz" for name in ("clock_before", "clock_after"))
        known["cause"] = f"the accelerator's clock under load went {clocks}: measure both in turns (ampbench ab)"
    sides = [side for side in ("baseline", "candidate") if {side, f"{side}_why"} & facts.keys()]
    needed, fresh, mean = details.get("blocks_needed"), facts.get("fresh"), "nothing bounds it"
    if "mean_change" in details and "mean_low" in details:
        between = format_percent_range(details["mean_low"], min(details["mean_high"], LARGEST), sign=True)
        mean = f"{format_percent(details['mean_change'], sign=True)} (95%: {between})"
    return known | {
        "drift": drift_said(facts),
        "allowed": format_limit(change.threshold) if change.status is ChangeStatus.UNCHANGED else "",
        "inputs": other_said(facts),
        "failed": "; ".join(f"fp64 failed in the {side}: {facts.get(f'{side}_why')}" for side in sides),
        "differences": "; ".join(f"{name} {values}" for name, values in facts.items()),
        "programs": " and ".join(f"the {side} from {facts.get(side)}" for side in sides),
        "mean": mean,
        "limit": limit_text(change),
        "many": counted(change.blocks, str(known["of"]).removesuffix("s")),
        "confirmed": f", confirmed by {fresh} fresh ones" if fresh else "",
        "needed": f"{needed} {known['of']}" if needed else "",
        "disturbed": known.get("cause", ""),
    }


def metric_label(metric: str) -> str:
    """Return the name of a metric in tables."""
    column = COLUMNS.get(metric) or COMPARED.get(metric)
    return column.label if column else metric


def change_text(change: Change) -> str:
    """Return a change as "+7.2%", of a count as "+3"; "" where there is none."""
    if change.metric == DRIFT and change.change is not None:
        return _distance(change.change)
    if change.change is None or change.baseline is None or change.candidate is None:
        return ""
    if change.metric in COLUMNS and COLUMNS[change.metric].unit == "count":
        return f"{change.candidate - change.baseline:+,.0f}"
    if math.isinf(change.change):
        return "from none"
    return (format_percent if change.kind == "time" else format_exact_percent)(change.change, sign=True)


def _distance(distance: float) -> str:
    return "from zero" if math.isinf(distance) else format_exact_percent(distance)


def limit_text(change: Change) -> str:
    """Return the largest change that counts as none; of a fall, as a fall."""
    beyond = change.change if change.code is ChangeCode.BEYOND_THRESHOLD and change.change is not None else 0.0
    return format_limit(change.threshold, beyond)


def remarks(change: Change) -> list[str]:
    """Return a line for each thing that does not decide but must not be hidden."""
    facts = _facts(change) if change.remarks else {}
    return [
        spelled(REMARKS[remark.code], {**facts, **remark.facts, "inputs": other_said(remark.facts)})
        for remark in change.remarks
    ]


def control_line(control: ControlVerdict) -> str:
    """Return the result of a comparison's controls in a line."""
    of_mean = " in the mean of all samples" if "of_mean" in control.facts else ""
    return spelled(CONTROLS[control.code], {**control.facts, "cells": control.cells, "of_mean": of_mean})


def other_said(facts: Facts) -> str:
    """Return which inputs of the two sides differ: "other weights", "other inputs", or a version."""
    ends = f"({facts.get('from')} → {facts.get('to')})"
    if facts.get("other") == "version":
        return f"another version of the workload {ends}"
    return f"other {facts.get('other')}{f', of another file {ends}' if 'from' in facts else ''}"


def drift_said(facts: Facts) -> str:
    """Return which parts of an fp64 result moved by more than the `limit`, and how far."""
    if "shape" in facts:
        return f"the output's shape is {facts['shape']}, was {facts['shape_before']}"
    parts: list[str] = []
    for name, noun in _MOVED.items():
        distance = float(facts.get(name, 0.0))
        if distance > float(facts.get("limit", 0.0)):
            by = "" if math.isinf(distance) else "by at least " if f"{name}_at_least" in facts else "by "
            parts.append(f"{noun.format(facts['dtype'])}{'' if parts else ' moved'} {by}{_distance(distance)}")
    return all_of(parts)


_NAMED = 3
"""The most ops that a phrase on several names."""


def rule_line(rule: RuleChange) -> str:
    """Return "rms_norm on cuda: unlisted → float32", with the autocast dtypes where it is not both."""
    only = "" if len(rule.dtypes) in (0, len(DTYPES)) else f" to {' and '.join(SHORT_DTYPES[d] for d in rule.dtypes)}"
    field = "" if rule.field in ("observed", "op") else f", {rule.field}"
    changed = f"{worded(rule.before)} → {worded(rule.after)}"
    if rule.field == "op":
        new = rule.before == NOT_THERE
        known = worded((rule.after if new else rule.before).removeprefix("there, "))
        changed = f"new op ({known})" if new else f"op removed (was {known})"
    return f"{short_name(rule.op)} on {rule.device}{only}{field}: {changed}"


def rule_lines(changes: Iterable[RuleChange]) -> list[str]:
    """Return a line for each rule that changed, in the order given; devices with equal changes share a line.

    A new registration is left out where another rule is observed.
    """
    known = [change for change in changes if change.alters]
    observed = {(change.op, change.device) for change in known if change.field == "observed"}
    told = (rule for rule in known if rule.field != "registered" or (rule.op, rule.device) not in observed)
    alike = by_key(told, lambda rule: (rule.op, rule.field, rule.before, rule.after, *sorted(rule.dtypes)))
    return [rule_line(replace(same[0], device=", ".join(rule.device for rule in same))) for same in alike.values()]


def unseen_rule_lines(unobserved: Sequence[RuleChange], missing: Sequence[str]) -> list[str]:
    """Return a line on the `unobserved` rules of the candidate and on its `missing` devices and dtypes."""
    ops = list(dict.fromkeys(f"{short_name(rule.op)} on {rule.device}" for rule in unobserved))
    lost = f"{counted(len(ops), 'rule')} observed in the baseline and not in the candidate: {few_phrases(ops)}"
    lacks = f"the candidate lacks the rules of autocast on {', '.join(missing)}"
    return [*([lost] if ops else []), *([lacks] if missing else [])]


def few_phrases(names: Sequence[str]) -> str:
    """Return the first phrases in a row, which may have commas of their own, and how many more there are."""
    more = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + (f"; and {more:,} more" if more > 0 else "")


KINDS = (OUTCOME, "time", "memory", "accuracy")
CHANGED = (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)
WORST_FIRST = (*CHANGED, ChangeStatus.INCONCLUSIVE, ChangeStatus.INCOMPARABLE, ChangeStatus.UNCHANGED)
NOT_IN_TURNS = "not measured in turns: a drift of the machine looks like a change of time; ampbench ab decides"
LISTED = 3
"""The most cases named that one side lacks."""
SHOWN, SHOWN_OF_GATE, REASONS, DIFFERING, RULES_LISTED = 10, 5, 6, 5, 20
"""The most changes, reasons, differing lines of a trace and changed rules on a screen; -v lists the rest."""
ROWS = 100
"""The most rows of a table in Markdown: four such tables fit into the 65,536 characters of a comment on GitHub."""


def case_names(comparison: Comparison) -> dict[str, str]:
    """Return a short name for the case of each finding, by its id: the candidate's name, where that is another case."""
    cases = {change.case.case_id: change.case for change in comparison.findings}
    compared = {case_id: comparison.candidates.get(case_id, case) for case_id, case in cases.items()}
    labels = case_labels(compared.values())
    return {case_id: labels[case.case_id] for case_id, case in compared.items()}


def verdict(*comparisons: Comparison) -> str:
    """Return how many findings have each status, in one line; of traces alone, their counts."""
    findings = [change for comparison in comparisons for change in comparison.findings]
    if not findings:
        return "; ".join(text for comparison in comparisons for text in _explained(comparison)) or "nothing to compare"
    drifted = sum(change.metric == DRIFT and change.status is ChangeStatus.REGRESSED for change in findings)
    parts = [f"{counted(drifted, 'case computes', 'cases compute')} something else"] if drifted else []
    for status in WORST_FIRST:
        alike = [change for change in findings if change.status is status]
        kinds = Counter(change.kind for change in alike if change.metric != DRIFT or status not in CHANGED)
        listed = ", ".join(f"{kind} {kinds[kind]:,}" for kind in KINDS if kinds[kind])
        parts += [f"{kinds.total():,} {status}" + (f" ({listed})" if status in CHANGED else "")] if kinds else []
    if not any(change.status in CHANGED for change in findings):
        unchanged = all(change.status is ChangeStatus.UNCHANGED for change in findings)
        return f"{'nothing changed' if unchanged else 'no change is certain'}: {', '.join(parts)}"
    return ", ".join(parts)


def _explained(comparison: Comparison) -> Iterator[str]:
    """Yield the counts of traces, rules and defects of two runs that only explain."""
    if comparison.explained:
        counts = Counter(case.traces for case in comparison.explained.values())
        listed = ", ".join(f"{counts[traces]:,} {traces}" for traces in Traces if counts[traces])
        yield f"{counted(len(comparison.explained), 'case')} explained: {listed}"
    if comparison.rule_devices:
        many = counted(len(rule_lines(comparison.rule_changes)), "change")
        yield f"{many} of autocast's rules on {', '.join(comparison.rule_devices)}"
    if comparison.checks:
        came = sum(defect.came for defect in comparison.defects)
        checked = f"of {counted(comparison.checks, 'check')} in both runs"
        yield f"{checked} {counted(came, 'defect')} came, {len(comparison.defects) - came} went"


def difference_line(difference: Difference) -> str:
    """Return one difference as "torch 2.12.1 → 2.13.0", and whether times can be compared in spite of it."""
    shorten = short_commit if difference.name in ("commit", "torch build") else str
    remark = " (times are not comparable)" if difference.matters else ""
    return f"{difference.name} {shorten(difference.baseline)} → {shorten(difference.candidate)}{remark}"


def notes(comparison: Comparison) -> list[str]:
    """Return the notes on how the runs were measured."""
    names = case_names(comparison)
    texts = [(caveat.subject, spelled(CAVEATS[caveat.code], caveat.facts)) for caveat in comparison.caveats]
    return [
        *([NOT_IN_TURNS] if comparison.apart else []),
        *(text for case_id, text in texts if not case_id),
        *gathered((names.get(case_id, case_id), text) for case_id, text in texts if case_id),
    ]


def conditions(comparison: Comparison) -> list[str]:
    """Return how both runs were measured, the controls, and the cases that were not compared, a line each."""
    lines = list(map(difference_line, comparison.differences))
    lines += ["measured in turns: both in the same blocks"] if comparison.interleaved else []
    lines += [] if comparison.control.code is ControlCode.NO_TIMES else [control_line(comparison.control)]
    skipped = Counter(comparison.skipped.values())
    lines += [f"skipped on both sides: {counted(count, 'case')} ({why})" for why, count in skipped.items()]
    alone = comparison.only_candidate
    return [*lines, *([f"only in the candidate: {few(alone, LISTED)}"] if alone else [])]


def warnings(comparison: Comparison) -> list[str]:
    """Return the warnings on a comparison: a fired control, notes, differences that matter, missing cases."""
    fired = [control_line(comparison.control)] if comparison.control.fired else []
    differences = [difference_line(difference) for difference in comparison.differences if difference.matters]
    alone = comparison.only_baseline
    missing = [f"only in the baseline: {few(alone, LISTED)}"] if alone else []
    return [*fired, *notes(comparison), *differences, *missing]


def explanation_lines(comparison: Comparison, case_id: str) -> list[str]:
    """Return which dtypes, casts and rules of autocast differ in a case that both runs traced; none of any other."""
    explained = comparison.explained.get(case_id)
    if explained is None:
        return []
    versions = comparison.baseline.torch_version, comparison.candidate.torch_version
    between = f" between torch {versions[0]} and {versions[1]}" if all(versions) else ""
    return [*explained.lines, *(f"autocast's rule for {rule_line(rule)}{between}" for rule in explained.rules)]


def finding_columns(names: Mapping[str, str]) -> list[Column[Change]]:
    """Return the columns of findings; `names` are the short names of the cases, by id."""

    def value(change: Change, side: str) -> str:
        number: float | None = getattr(change, side)
        column = COLUMNS.get(change.metric) or COMPARED.get(change.metric)
        return "" if column is None else UNDEFINED if number is None else format_quantity(number, column.unit)

    def interval(change: Change) -> str:
        low, high = change.low, change.high
        return "" if low is None or high is None or low == high else format_percent_range(low, high, sign=True)

    return [
        Column("case_id", lambda row: row.case.case_id, "case", said=lambda row: names[row.case.case_id]),
        *(
            Column(name, attrgetter(f"case.{name}"))
            for name in ("workload", "family", "precision", "device", "phase", "path")
        ),
        Column("metric", lambda row: row.metric, "metric", said=lambda row: metric_label(row.metric)),
        Column("kind", lambda row: row.kind),
        Column("status", lambda row: row.status, "verdict", said=lambda row: row.status.value),
        Column("code", lambda row: row.code),
        Column("reason", reason, "why", said=lambda row: "; ".join([reason(row), *remarks(row)])),
        Column("baseline", lambda row: row.baseline, "baseline", "ratio", lambda row: value(row, "baseline")),
        Column("candidate", lambda row: row.candidate, "candidate", "ratio", lambda row: value(row, "candidate")),
        Column("change", lambda row: row.change, "change", "ratio", change_text),
        Column("low", lambda row: row.low, "95% interval", "ratio", interval, rare=True),
        *(Column(name, attrgetter(name)) for name in ("high", "threshold", "p_worse", "p_better", "blocks")),
        Column("facts", lambda row: dict(row.facts)),
        Column("remarks", remarks),
        Column("details", lambda row: dict(row.details)),
    ]


def comparison_section(comparison: Comparison, *, everything: bool = False, gate: GateResult | None = None) -> Section:
    """Return both sides, the changes and why findings are undecided; folded: every finding, other traces, conditions.

    Of a `gate` its points take the place of the reasons. With `everything` the table of every finding takes the place
    of the changes, with a line for all of one code, and nothing is folded or left out.
    """
    names, findings = case_names(comparison), comparison.findings
    columns = finding_columns(names)
    heads = ("status", "case_id", "metric", "baseline", "candidate", "change", "low")
    changed = [
        change
        for status in CHANGED
        for change in findings
        if change.status is status and change.metric not in (OUTCOME, DRIFT) and change_text(change)
    ]
    reasons = _reasons(findings, names, () if everything else changed)
    lines = gate_lines(comparison, gate) if gate else _first(reasons, None if everything else REASONS)
    blocks = [table("changed", picked(columns, *heads), changed, most=SHOWN_OF_GATE if gate else SHOWN)]
    moved = dict.fromkeys(change.case.case_id for change in findings if change.status in CHANGED)
    ordered = sorted(comparison.explained, key=[*moved, *comparison.explained].index)
    rows = [
        (names.get(case_id, case_id), line) for case_id in ordered for line in explanation_lines(comparison, case_id)
    ]
    traces = Block("what differs in the traces", ["case", "difference"], rows, whole=["case"])
    first = traces if everything else cut(traces, DIFFERING, REST)
    blocks = [*([] if everything else blocks), *map(Block, lines), first]
    blocks += _lists(comparison, rules=everything or gate is None, most=None if everything else RULES_LISTED)
    listed = sorted(findings, key=lambda change: WORST_FIRST.index(change.status))[: None if everything else ROWS]
    listed_columns = picked(columns, *heads, *([] if everything else ["reason"]))
    every = table(f"findings ({len(findings):,})", listed_columns, listed)
    conditioned = Block("how it was measured", ["conditions"], [[line] for line in conditions(comparison)])
    whole = [replace(traces, title="every difference")] if first is not traces else []
    details = [*whole, every, conditioned]
    blocks += details if everything else [replace(cut(block, ROWS), folded=True) for block in details]
    before, after = comparison.baseline, comparison.candidate
    called = ((" ".join(side.arm), side.label, side.run) for side in (before, after))
    apart = [pair for pair in zip(*called, strict=True) if all(pair) and pair[0] != pair[1]]
    pairs = {"": apart[0] if apart else (before.run, after.run), "torch": (before.torch_version, after.torch_version)}
    if before.commit or after.commit:
        pairs["commit"] = (short_commit(before.commit or "none"), short_commit(after.commit or "none"))
    title = " · ".join(f"{name} {' → '.join(dict.fromkeys(pair))}".strip() for name, pair in pairs.items())
    return Section(title, [block for block in blocks if block.rows or not block.headers])


def _reasons(findings: Iterable[Change], names: Mapping[str, str], listed: Container[Change]) -> list[str]:
    """Return a line for each status, kind and code that is neither `listed` nor unchanged, and for each remark."""
    alike: dict[tuple[str, ...], list[tuple[Change, str]]] = {}
    for change in sorted(findings, key=lambda change: WORST_FIRST.index(change.status)):
        if change not in listed and change.status is not ChangeStatus.UNCHANGED:
            alike.setdefault((change.status, change.kind, change.code), []).append((change, ""))
        for remark, text in zip(change.remarks, remarks(change), strict=True):
            alike.setdefault((change.status, change.kind, remark.code), []).append((change, text))
    lines = []
    for (status, kind, _), members in alike.items():
        cases = few((names[change.case.case_id] for change, _ in members), 1)
        first, text = members[0]
        lines.append(f"{len(members):,} {status} ({kind}), {cases}: {text or reason(first)}")
    return lines


def _first(lines: Sequence[str], most: int | None) -> list[str]:
    """Return the first lines, and how many more there are; None: all."""
    more = 0 if most is None else len(lines) - most
    return [*lines[:most], *([f"and {more:,} more, -v lists them"] if more > 0 else [])]


def _lists(comparison: Comparison, *, rules: bool, most: int | None) -> Iterator[Block]:
    """Yield changed `rules`, where they are wanted, and defects that came or went, a line each."""
    changed = rule_lines(comparison.rule_changes) if rules else []
    if changed:
        yield Block(f"rules of autocast changed ({len(changed):,}):")
    unseen = unseen_rule_lines(comparison.rules_unobserved, comparison.rule_devices_missing) if rules else []
    yield from (Block(f"· {line}") for line in [*_first(changed, most), *unseen])
    for defect in comparison.defects:
        remedy = f" (what to do: {defect.remedy})" if defect.came else ""
        happened = "came" if defect.came else "went"
        yield Block(f"known defect {happened}: {defect.check} on {defect.device}: {defect.title}{remedy}")


def comparison_document(
    comparison: Comparison, *, everything: bool = False, gate: GateResult | None = None
) -> Document:
    """Return a comparison with the verdict of a `gate`; `everything`: every finding and trace.

    Machines have each finding; CSV has no nested facts, remarks and details.
    """
    flat = [column for column in finding_columns({}) if column.key not in ("facts", "remarks", "details")]

    def section() -> Section:
        compared = replace(comparison, only_baseline=()) if gate else comparison  # a note of the gate
        whole = comparison_section(compared, everything=everything, gate=gate)
        return Section(whole.title, [*map(Block, warnings(compared)), *whole.blocks])

    return Document(
        sections=lambda: [section()],
        data=lambda: comparison_data(comparison, gate),
        columns=[column.key for column in flat],
        rows=lambda: records(flat, comparison.findings),
        answer=gate_verdict(gate) if gate else verdict(comparison),
        good=gate.passed if gate else None,
    )


def comparison_data(comparison: Comparison, gate: GateResult | None = None) -> dict[str, Any]:
    """Return a comparison as JSON has it, with the verdict of a gate as "gate"."""
    names, judged = case_names(comparison), {}
    point_columns = (
        *(Column(name, attrgetter(name)) for name in ("code", "kind")),
        Column("count", lambda point: len(point.changes or point.names or point.rules)),
        Column("text", lambda point: point_line(point, names)),
    )

    def plain(record: Comparison | GateResult, fields: str) -> dict[str, Any]:
        return {name: msgspec.to_builtins(getattr(record, name), enc_hook=dict) for name in fields.split()}

    if gate:
        judged = plain(gate, "status passed exit_code decided missing failed rule_devices policy rule_changes")
        judged |= {name: records(point_columns, points) for name, points in (("why", gate.why), ("notes", gate.notes))}
        judged["ignored"] = records(IGNORED, gate.ignored)
    sides = "baseline candidate interleaved only_baseline only_candidate skipped differences control"
    return {
        **({"gate": judged} if gate else {}),
        "summary": verdict(comparison),
        **plain(comparison, f"{sides} rule_changes rule_devices defects"),
        "notes": notes(comparison),
        "findings": records(finding_columns({}), comparison.findings),
        "explained": {case_id: explanation_lines(comparison, case_id) for case_id in comparison.explained},
    }


def gate_lines(comparison: Comparison, result: GateResult) -> list[str]:
    """Return a line for each reason of an ignore, each note, and each reason to fail."""
    left_out = by_key(result.ignored, lambda ignored: f"ignored until {ignored.until} ({ignored.reason})")
    names = case_names(comparison)
    return [
        *(
            f"{heading}: {'; '.join(f'{row.case_id} {row.metric}: {_ignored_text(row)}' for row in rows)}"
            for heading, rows in left_out.items()
        ),
        *(f"note: {point_line(point, names)}" for point in result.notes),
        *(f"why: {point_line(point, names)}" for point in result.why),
    ]


def point_line(point: GatePoint, names: Mapping[str, str]) -> str:
    """Return a point of a gate in a line; cases go by `names`."""
    changes = point.changes
    cases = [names.get(change.case.case_id, change.case.case_id) for change in changes]
    labelled = list(zip(cases, changes, strict=True))
    match point.code:
        case GateCode.OTHER_FUNCTION:
            which = gathered((case, drift_said(change.facts)) for case, change in labelled)
        case GateCode.SKIPPED:
            which = gathered((case, reason(change)) for case, change in labelled)
        case GateCode.REGRESSED:
            which = [f"{case} {metric_label(change.metric)} {gated_change(change)}" for case, change in labelled]
        case GateCode.LOST:
            which = [f"{case} {metric_label(change.metric)} ({change.code})" for case, change in labelled]
        case GateCode.UNDECIDED | GateCode.NOTHING:
            which = [text for text, _ in Counter(map(reason, changes)).most_common(1)]
            if point.code is GateCode.NOTHING:
                which += [f"skipped on both sides: {why}" for why in dict.fromkeys(point.names)]
            elif point.names:
                which.append(f"the candidate lacks {counted(len(point.names), 'case')}")
        case GateCode.RULES_CHANGED:
            which = rule_lines(point.rules)
        case GateCode.RULES_UNSEEN:
            which = unseen_rule_lines(point.rules, point.names)
        case _:
            which = cases or [names.get(name, name) for name in point.names]
    facts: dict[str, float | str] = {"count": len(changes or point.names or which), "which": few_phrases(which)}
    facts |= {"kind": point.kind, "decided": point.decided, "findings": point.findings, "number": point.number}
    facts |= {"limit": point.limit, "share": point.decided / point.findings if point.findings else 0.0}
    return words(state(point.code, **facts))


def gated_change(change: Change) -> str:
    """Return a change with its threshold, or why it has none: "+8.0% (threshold 2%)"."""
    finite = change.change is not None and math.isfinite(change.change) and change_text(change)
    return f"{finite} (threshold {limit_text(change)})" if finite else f"({reason(change)})"


def _ignored_text(ignored: Ignored) -> str:
    """Return the finding that an ignore left out."""
    if ignored.rule is not None:
        return rule_line(ignored.rule)
    if ignored.change is None:
        return "missing in the candidate" if ignored.missing else "failed"
    if ignored.metric == DRIFT:
        return reason(ignored.change)
    regressed = ignored.change.status is ChangeStatus.REGRESSED
    return f"regressed {gated_change(ignored.change)}" if regressed else ignored.change.status


def gate_verdict(result: GateResult) -> str:
    """Return whether the candidate may pass, and how many findings have each verdict."""
    listed = {
        "regressed": result.regressions,
        "improved": result.improved,
        "unchanged": result.unchanged,
        "inconclusive": result.inconclusive,
        "ignored": result.ignored,
    }
    counts = [f"{len(findings)} {word}" for word, findings in listed.items() if findings]
    counts += [f"{counted(len(rule_lines(result.rule_changes)), 'change')} of rules"] if result.rule_changes else []
    if result.decided:
        shares = (f"{kind} {share.decided} of {share.findings}" for kind, share in result.decided.items())
        counts.append(f"decided: {', '.join(shares)}")
    if result.rule_devices:
        counts.append(f"rules of autocast compared on {', '.join(result.rule_devices)}")
    word = result.status.upper() + ("" if result.passed else f" with exit code {result.exit_code}")
    path = result.policy["path"]
    return f"{word}{f' under {path}' if path else ''}: {', '.join(counts) or 'nothing was compared'}"


IGNORED: Sequence[Column[Ignored]] = (
    *(Column(name, attrgetter(name)) for name in ("case_id", "metric", "reason")),
    Column("what", _ignored_text),
    Column("until", lambda ignored: ignored.until.isoformat()),
)
"""The findings that a policy ignores, as JSON has them."""

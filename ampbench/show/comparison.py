"""The document of two compared runs: changes, causes, the gate's findings and controls."""

import json
import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from ampbench.core.metrics import COLUMNS, COMPARED, DRIFT, MEAN
from ampbench.core.precisions import SHORT_DTYPES
from ampbench.core.statement import Statement, state
from ampbench.core.units import (
    UNDEFINED,
    all_of,
    counted,
    format_error,
    format_exact_percent,
    format_limit,
    format_percent,
    format_percent_range,
    format_quantity,
    format_rate,
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
    Detectable,
    Difference,
    GateCode,
    GatePoint,
    GateResult,
    Ignored,
    Remark,
    SelfComparison,
    Traces,
    rank,
)
from ampbench.records.labels import case_labels, few, gathered
from ampbench.records.measured import BUSY, OUT_OF_MEMORY, TOO_LITTLE_FREE
from ampbench.records.rules import DTYPES, NOT_THERE, RuleChange, short_name, worded
from ampbench.records.run import short_commit
from ampbench.show.data import finite
from ampbench.show.document import Block, Column, Document, Section, cut, picked, records, table
from ampbench.show.wording import words

LARGEST_WORTH_SAYING = 10.0
"""Changes beyond this are no numbers where nothing is certain: three rounds can bound next to nothing."""
_SMALLEST_PERCENT = 1e-4
Facts = Mapping[str, float | str]
OF_ERRORS: Mapping[ChangeCode, str] = MappingProxyType(
    {
        ChangeCode.OTHER_WEIGHTS: "{other}",
        ChangeCode.OTHER_REFERENCE: (
            "the baseline's error is against {before}; the candidate's error is against {after}: {why}"
        ),
        ChangeCode.OTHER_FUNCTION: "errors of another function: {moved}",
        ChangeCode.OTHER_COUNTER: "counted by the {before} in the baseline, by the {after} in the candidate",
        ChangeCode.NOT_MEASURED: "the {side} has no number{why}",
        ChangeCode.OTHER_MACHINE: "measured differently: {differences}",
        ChangeCode.CONTROL_FIRED: (
            "the control fired: the same code, measured twice, seemed to differ, so no time of this session counts"
        ),
    }
)
CONTROLS: Mapping[ControlCode, str] = MappingProxyType(
    {
        ControlCode.NO_TIMES: "no times are compared",
        ControlCode.NONE: "no control: the same code was not measured twice",
        ControlCode.UNFIT: "control: measured, but the machine was unfit in every block",
        ControlCode.FIRED: (
            "control: the same code, measured twice, seemed to be {size}{of_mean} on {case}: no time verdict counts"
        ),
        ControlCode.TOO_FEW: "control: {cells} measured twice, in too few blocks to say anything",
        ControlCode.QUIET: (
            "control: {cells} measured twice in the same blocks, none seemed to differ (at most {size}, {case})"
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
        Caveat.ALONE: "measured one lane at a time: {alone}",
        Caveat.OTHER_KERNELS: "attention runs by {after} in the candidate, by {before} in the baseline",
    }
)
_ALONE = {
    TOO_LITTLE_FREE: "too little of the device's memory was free",
    OUT_OF_MEMORY: "one ran out of the device's memory",
    BUSY: "the device served one alone",
}
_INVALID = {
    "time": "a time that is no time: zero, negative or infinite",
    "memory": "a peak of 0 bytes cannot be one",
    "accuracy": "the errors are those of chance: the network draws random numbers, or keeps state of its own",
}
_NONFINITE = {
    "output_nonfinite": ("output", ""),
    "output_reference_nonfinite": ("output", " in the reference"),
    "output_fp32_nonfinite": ("output", " in fp32"),
    "param_nonfinite": ("parameter", ""),
}
"""The metrics that count elements which are not finite, of what, and where these are."""
_MOVED = {"output": "the {} output", "gradients": "the gradients", "loss": "the loss"}


def reason(change: Change) -> str:
    """Return why a change has its status."""
    if change.metric == OUTCOME:
        return _outcome(change)
    if change.metric == DRIFT:
        moved = drift_said(change.facts)
        if change.status is ChangeStatus.UNCHANGED:
            return f"{moved}; threshold {format_limit(change.threshold)}"
        return f"computes something else: {moved}"
    if change.code is ChangeCode.INVALID:
        return _INVALID[change.kind]
    if change.code is ChangeCode.IMPORTED:
        return _imported(change)
    if template := OF_ERRORS.get(change.code):
        return template.format_map(_spelled(change))
    if change.kind == "time":
        return _of_mean(change) if change.metric == MEAN else _of_time(change)
    return _undefined(change) if "undefined" in change.facts else _exact(change)


def metric_label(metric: str) -> str:
    """Return what a metric is called in tables."""
    column = COLUMNS.get(metric) or COMPARED.get(metric)
    return column.label if column else metric


def value_text(metric: str, value: float | None) -> str:
    """Return a value of a metric as short text; "–" where there is none."""
    return UNDEFINED if value is None else format_quantity(value, (COLUMNS.get(metric) or COMPARED[metric]).unit)


def change_text(change: Change) -> str:
    """Return a change as "+7.2%", "" where there is none; of a count the difference, of fp64 how far."""
    if change.metric == DRIFT and change.change is not None:
        return far_text(change.change)
    if change.change is None or change.baseline is None or change.candidate is None:
        return ""
    if change.metric in COLUMNS and COLUMNS[change.metric].unit == "count":
        return f"{change.candidate - change.baseline:+,.0f}"
    if math.isinf(change.change):
        return "from none"
    return (format_percent if change.kind == "time" else format_exact_percent)(change.change, sign=True)


def threshold_text(change: Change) -> str:
    """Return the threshold that a change lies beyond, or within."""
    beyond = change.change if change.code is ChangeCode.BEYOND_THRESHOLD and change.change is not None else 0.0
    return f"threshold {format_limit(change.threshold, beyond)}"


def interval_text(change: Change) -> str:
    """Return the interval of a change that luck has part in."""
    if change.low is None or change.high is None or change.low == change.high:
        return ""
    return format_percent_range(change.low, change.high, sign=True)


def gated_change(change: Change) -> str:
    """Return a change with its threshold, or why it has none: "+8.0% (threshold 2%)"."""
    text = change_text(change)
    finite = text and change.change is not None and math.isfinite(change.change)
    return f"{text} ({threshold_text(change)})" if finite else f"({reason(change)})"


def brief(change: Change) -> str:
    """Return the reason without what the metric or the candidate's row says already."""
    if change.metric == DRIFT:
        return drift_said(change.facts)
    return _outcome(change, brief=True) if change.metric == OUTCOME else reason(change)


def remarks(change: Change) -> list[str]:
    """Return a line for each thing that does not decide but must not be hidden."""
    return [_remark(change, one.code, one.facts) for one in change.remarks]


def control_line(control: ControlVerdict) -> str:
    """Return what the controls of a comparison say in a line."""
    facts = control.facts
    cells = counted(control.cells, "case")
    if control.code is ControlCode.APART:
        sides = [side for side in ("baseline", "candidate") if side in facts]
        apart = " and ".join(f"{format_percent(float(facts[side]))} apart in the {side}" for side in sides)
        lacking = {"baseline", "candidate"}.difference(sides)
        without = f"; the {lacking.pop()} has no control" if lacking else ""
        return f"control: one case, measured twice, was {apart}; intervals are widened by that{without}"
    size = change_in_words(float(facts.get("change", 0.0)))
    of_mean = ", by the mean of all samples," if "of_mean" in facts else ""
    return CONTROLS[control.code].format(cells=cells, size=size, of_mean=of_mean, case=facts.get("case", ""))


def caveat_lines(caveats: Iterable[Statement], names: Mapping[str, str]) -> list[str]:
    """Return a line for each caveat; equal caveats of several cases share a line. Cases go by `names`."""
    texts = []
    for one in caveats:
        alone = _ALONE.get(str(one.facts.get("why")), "")
        texts.append((one.subject, CAVEATS[one.code].format_map({**one.facts, "alone": alone})))
    return [
        *(text for case_id, text in texts if not case_id),
        *gathered((names.get(case_id, case_id), text) for case_id, text in texts if case_id),
    ]


def _spelled(change: Change) -> dict[str, object]:
    facts = change.facts
    sides = ("baseline", "candidate")
    whys = [f"fp64 failed in the {side}: {facts[f'{side}_why']}" for side in sides if f"{side}_why" in facts]
    why = f": {facts['why']}" if facts.get("why") else ""
    if change.code is ChangeCode.OTHER_REFERENCE:
        why = "; ".join(whys)
    known = {"why": why, "other": other_said(facts)}
    if change.code is ChangeCode.OTHER_FUNCTION:
        known["moved"] = drift_said(facts)
    if change.code is ChangeCode.OTHER_MACHINE:
        known["differences"] = "; ".join(f"{name} {differ}" for name, differ in facts.items())
    return {**facts, **known}


def other_said(facts: Facts) -> str:
    """Return in what the two sides' numbers differ that went in: "other weights", "other inputs", or a version."""
    ends = f"({facts.get('from')} → {facts.get('to')})"
    if facts.get("other") == "version":
        return f"another version of the workload {ends}"
    return f"other {facts.get('other')}{f', of another file {ends}' if 'from' in facts else ''}"


def _outcome(change: Change, brief: bool = False) -> str:
    facts = change.facts
    before, after, was, why = (str(facts.get(name, "")) for name in ("before", "after", "was", "why"))
    if change.status is ChangeStatus.REGRESSED:
        said = "was ok and failed"
    elif change.status is ChangeStatus.IMPROVED:
        return f"failed and is ok now; before: {was}"
    elif change.code is ChangeCode.NOT_MEASURED:
        said = "was ok and is skipped" if before == "ok" else "runs in the baseline and is skipped"
    elif (before, was) == (after, why):
        said = f"{before} on both sides"
    else:
        said = f"{before} in the baseline: {was}{f'; {after} in the candidate' if after != 'ok' else ''}"
    return said if brief or after == "ok" else f"{said}: {why}"


def drift_said(facts: Facts) -> str:
    """Return which parts of an fp64 result moved by more than the `limit`, and how far."""
    if "shape" in facts:
        return f"the output's shape is {facts['shape']}, was {facts['shape_before']}"
    parts: list[str] = []
    for name, noun in _MOVED.items():
        distance = float(facts.get(name, 0.0))
        if distance > float(facts.get("limit", 0.0)):
            verb = "" if parts else " moved"
            parts.append(f"{noun.format(facts['dtype'])}{verb} {_moved_by(distance, f'{name}_at_least' in facts)}")
    return all_of(parts)


def _moved_by(distance: float, at_least: bool) -> str:
    """Return how far something moved: "by 23%" or, of little, "by 3.1e-06 of its norm"."""
    if math.isinf(distance):
        return far_text(distance)
    of = "" if distance >= _SMALLEST_PERCENT else " of its norm"
    return f"by {'at least ' if at_least else ''}{far_text(distance)}{of}"


def far_text(distance: float) -> str:
    """Return a distance as "23%" or, of little, "3.1e-06"; "from zero" where it is infinite."""
    if math.isinf(distance):
        return "from zero"
    return format_percent(distance) if distance >= _SMALLEST_PERCENT else format_error(distance)


def _imported(change: Change) -> str:
    sides = " and ".join(f"the {side} from {program}" for side, program in change.facts.items())
    return f"imported without samples, {sides}: measure with ampbench ab"


def _undefined(change: Change) -> str:
    """Return why an error is undefined on one side."""
    facts, column = change.facts, COLUMNS[change.metric]
    elements, what = int(float(facts["elements"])), facts["what"]
    broken = f"{elements:,} {what} elements that are not finite" if elements else "parameters that are not finite"
    if change.status is ChangeStatus.REGRESSED:
        return f"{column.label} became undefined: {facts.get('why') or broken}"
    if "dtype" in facts:
        broken = f"{what} elements that were not finite in {facts['dtype']}"
    return f"{column.label} is {format_quantity(change.candidate, column.unit)} after {broken}"


def _exact(change: Change) -> str:
    """Return what became of a number that luck has no part in."""
    before, after, size = change.baseline or 0.0, change.candidate or 0.0, change.change or 0.0
    if change.facts.get("equal"):
        what, where = _NONFINITE.get(change.metric, ("", ""))
        rare = where or what == "parameter"
        return f"{round(after):,} non-finite {what} elements{where}, on both sides" if rare else "equal"
    if change.metric in _NONFINITE:
        count, more = round(abs(after - before)), "more" if after > before else "fewer"
        what, where = _NONFINITE[change.metric]
        return f"{count:,} {more} non-finite {what} {'element' if count == 1 else 'elements'}{where}"
    allowed = threshold_text(change) if change.threshold else "the same code should give equal numbers"
    if "floor" in change.facts:
        allowed = f"no more than {format_limit(float(change.facts['floor']))} apart, which counts as none"
    noun, more = COLUMNS[change.metric].noun or COLUMNS[change.metric].label, "more" if size > 0 else "less"
    if math.isinf(size):
        return f"{noun} where there was none; {allowed}"
    if "of_rounding" in change.facts:
        return f"{more} {noun} by {format_exact_percent(abs(size))} of what rounding to the dtype costs; {allowed}"
    return f"{format_exact_percent(abs(size))} {more} {noun}; {allowed}"


def change_in_words(change: float) -> str:
    """Return a relative change of a time as "7.2% slower"; from three times as long on, as "3.1 times as long"."""
    if change >= 2:
        return f"{1 + change:.3g} times as long"
    return f"{format_percent(abs(change))} {'slower' if change > 0 else 'faster'}"


TIMES: Mapping[ChangeCode, str] = MappingProxyType(
    {
        ChangeCode.BEYOND_THRESHOLD: "{size}, certainly over {limit}, {many}{confirmed}",
        ChangeCode.UNCONFIRMED: "{size}, threshold {limit}, {many}, not confirmed by fresh ones yet",
        ChangeCode.NOT_CONFIRMED: "seen in {many}, not confirmed by {fresh} fresh ones: {size}, threshold {limit}",
        ChangeCode.WITHIN_THRESHOLD: "typical time {size}, within {within}{mean}, {many}",
        ChangeCode.TAIL_UNDECIDED: "typical time {size}, within {within}, but {mean}, {many}",
        ChangeCode.TOO_FEW_BLOCKS: "only {many}: too few for a verdict{needed}",
        ChangeCode.UNDECIDED: "{size}{certainly}{seen}; {needed}",
        ChangeCode.UNFIT_MACHINE: "{disturbed}: measure both in turns (ampbench ab)",
    }
)


def _of_time(change: Change) -> str:
    """Return why a time's change has its status, with what disturbed it."""
    facts, details, what = change.facts, change.details, change.facts.get("of", "blocks")
    code = ChangeCode.TOO_FEW_BLOCKS if change.change is None else change.code
    disturbed = str(facts.get("cause", ""))
    if "clock_before" in facts:
        clocks = [f"{float(facts[f'clock_{side}']):.2f} GHz" for side in ("before", "after")]
        disturbed = f"the accelerator's clock under load was {' in the baseline and '.join(clocks)} in the candidate"
    if change.code is ChangeCode.UNFIT_MACHINE:
        if "cause" in facts:
            return disturbed
        code = change.code
    size, fresh = change.change or 0.0, int(float(facts.get("fresh", 0)))
    detectable, needed = details.get("detectable_change", math.inf), details.get("blocks_needed")
    would = f"about {needed} {'' if code is ChangeCode.TOO_FEW_BLOCKS else f'{what} '}would decide" if needed else ""
    if code is ChangeCode.UNDECIDED:
        would = would or f"more {what} would not decide it soon"
    elif would:
        would = f"; {would}"
    known = detectable <= LARGEST_WORTH_SAYING
    ends, sure = _ends(change.low, change.high), facts.get("certainly")
    text = TIMES[code].format(
        size=change_in_words(size) + ("" if size >= 2 and code is not ChangeCode.UNDECIDED else ends),
        limit=format_limit(change.threshold, size),
        within=format_limit(change.threshold),
        many=_counted(change),
        fresh=fresh,
        confirmed=f", confirmed by {fresh} fresh ones" if fresh else "",
        mean=_mean_bounded(change),
        needed=would,
        certainly=f", certainly {sure} but not certainly by more than {format_limit(change.threshold)}" if sure else "",
        seen=f"; a change of {format_percent(detectable)} would have been seen" if known else "",
        disturbed=disturbed,
    )
    if disturbed and code in (ChangeCode.BEYOND_THRESHOLD, ChangeCode.UNCONFIRMED):
        less = ", which accounts for less" if "clock_before" in facts else ""
        text += f"; {disturbed}{less or ', so only what takes twice as long, or half, is judged'}"
    return text


def _mean_bounded(change: Change) -> str:
    """Return what is known of the mean over all samples, where the typical time did not change."""
    details, limit = change.details, format_limit(change.details.get("mean_threshold", 0.0))
    if change.code is ChangeCode.WITHIN_THRESHOLD:
        proven = change.facts.get("mean_code") == ChangeCode.WITHIN_THRESHOLD
        return f", the mean of all samples within {limit}" if proven and "mean_threshold" in details else ""
    if "mean_threshold" not in details or "mean_change" not in details:
        return "nothing bounds the mean of all samples"
    moved = f"{change_in_words(details['mean_change'])}{_ends(details.get('mean_low'), details.get('mean_high'))}"
    return f"the mean of all samples {moved} is not certainly within {limit}"


def _of_mean(change: Change) -> str:
    """Return what became of the mean over all samples, where it moved and the typical time is not known to have."""
    typical = "is not known to have changed" if change.facts.get("code") == ChangeCode.UNDECIDED else "did not change"
    return f"mean of all samples, slow steps among them: {_of_time(change)}; the typical step {typical}"


def _counted(change: Change) -> str:
    what = str(change.facts.get("of", "blocks"))
    return f"{change.blocks} {what if change.blocks != 1 else what.removesuffix('s')}"


def _ends(low: float | None, high: float | None) -> str:
    """Return " (95%: -1.1 to +8.4%)", "" where there is no interval."""
    if low is None or high is None or low == high:
        return ""
    return f" (95%: {format_percent_range(low, min(high, LARGEST_WORTH_SAYING), sign=True)})"


def _remark(change: Change, code: object, facts: Facts) -> str:
    if code is Remark.OTHER_NUMBERS:
        return f"{other_said(facts)}: the {change.kind} may differ for that"
    if code is Remark.DRIFT:
        return f"{drift_said(change.facts)}, which the threshold of {format_limit(change.threshold)} allows"
    if code is Remark.ITEMS:
        counts = (float(facts["before"]), float(facts["after"]))
        pairs = zip(counts, (change.baseline, change.candidate), strict=True)
        rates = [format_rate(items / seconds) for items, seconds in pairs if items and seconds and seconds > 0]
        return f"a step does {counts[0]:g} → {counts[1]:g} items, at {' → '.join(rates)}"
    details = change.details
    shares = (f"{details[name]:.0%}" for name in ("slow_share_baseline", "slow_share_candidate"))
    named = {"mean": details.get("mean_change"), "90th percentile": details.get("p90_change")}
    more = [f"{name} {format_percent(value, sign=True)}" for name, value in named.items() if value is not None]
    said = f"slow {change.facts['of']}: {' → '.join(shares)} of them (p = {float(facts['p']):.1g})"
    return ", ".join([said, *more])


_NAMED = 3
"""The most ops that a phrase on several names."""
_OTHERS = {
    "gone": ("op", "gone without an observed rule"),
    "new": ("new op", "with a rule"),
    "documented": ("op", "documented otherwise"),
}
"""What alters no rule, and how several of it are counted and called."""


def rule_line(rule: RuleChange) -> str:
    """Return "rms_norm on cuda: unlisted → float32", with the autocast dtypes where it is not both."""
    only = "" if len(rule.dtypes) in (0, len(DTYPES)) else f" to {' and '.join(SHORT_DTYPES[d] for d in rule.dtypes)}"
    field = "" if rule.field in ("observed", "op") else f", {rule.field}"
    return f"{short_name(rule.op)} on {rule.device}{only}{field}: {worded(rule.before)} → {worded(rule.after)}"


def rule_lines(changes: Iterable[RuleChange]) -> list[str]:
    """Return a line for each rule that changed, in the order given; what alters nothing is left out.

    Devices with equal changes share a line; that an op is registered now is left out where another rule is
    observed.
    """
    known = [change for change in changes if change.alters]
    observed = {(change.op, change.device) for change in known if change.field == "observed"}
    alike: dict[tuple[str, ...], list[RuleChange]] = {}
    for one in known:
        if one.field != "registered" or (one.op, one.device) not in observed:
            alike.setdefault((one.op, one.field, one.before, one.after, *sorted(one.dtypes)), []).append(one)
    return [rule_line(replace(same[0], device=", ".join(one.device for one in same))) for same in alike.values()]


def other_rule_lines(changes: Iterable[RuleChange]) -> list[str]:
    """Return in phrases what changed without altering what autocast does to a program that ran before."""
    names: dict[str, dict[str, None]] = {kind: {} for kind in _OTHERS}
    for one in changes:
        if not one.alters:
            presence = "gone" if one.after == NOT_THERE else "new"
            kind = presence if one.field == "op" else one.field.split()[0]
            names[kind][short_name(one.op)] = None
    return [
        f"{counted(len(names[kind]), what)} {more}: {few_phrases([*names[kind]])}"
        for kind, (what, more) in _OTHERS.items()
        if names[kind]
    ]


def unseen_rule_lines(unobserved: Sequence[RuleChange], missing: Sequence[str]) -> list[str]:
    """Return what the candidate's probes do not answer for: `unobserved` rules, `missing` device types and dtypes."""
    ops = list(dict.fromkeys(f"{short_name(one.op)} on {one.device}" for one in unobserved))
    seen = f"{counted(len(ops), 'rule')} observed in the baseline and not in the candidate: {few_phrases(ops)}"
    lacks = f"the candidate lacks the rules of autocast on {', '.join(missing)}"
    return [*([seen] if ops else []), *([lacks] if missing else [])]


def few_phrases(names: Sequence[str]) -> str:
    """Return the first phrases in a row, which may have commas of their own, and how many more there are."""
    more = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + (f"; and {more:,} more" if more > 0 else "")


KINDS = (OUTCOME, "time", "memory", "accuracy")
CHANGED = (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)
WORST_FIRST = (*CHANGED, ChangeStatus.INCONCLUSIVE, ChangeStatus.INCOMPARABLE, ChangeStatus.UNCHANGED)
NOT_IN_TURNS = "not measured in turns: a drift of the machine looks like a change of time; ampbench ab decides"
LISTED = 3
"""The most cases named among those that one side lacks."""
SHOWN, SHOWN_OF_GATE, REASONS, DIFFERING, RULES_LISTED = 10, 5, 6, 5, 20
"""The most changes, reasons, differing lines of a trace and changed rules on a screen; --all lists the rest."""
ROWS = 100
"""The most rows of a table in Markdown: four such tables fit into the 65,536 characters of a comment on GitHub."""
IN_TABLES = ("status", "case_id", "metric", "baseline", "candidate", "change", "low", "reason")
"""The columns of findings that people read."""


def case_names(comparison: Comparison) -> dict[str, str]:
    """Return a short name for the case of each finding, by its id: the candidate's name, where that is another case."""
    cases = {change.case.case_id: change.case for change in comparison.findings}
    compared = {case_id: comparison.candidates.get(case_id, case) for case_id, case in cases.items()}
    labels = case_labels(compared.values())
    return {case_id: labels[case.case_id] for case_id, case in compared.items()}


def verdict(*comparisons: Comparison) -> str:
    """Return how many findings have each status, and the worst change, in one line; of traces alone, what they show."""
    changes = [(change, comparison) for comparison in comparisons for change in comparison.findings]
    if not changes:
        return "; ".join(filter(None, map(_explained, comparisons))) or "nothing to compare"
    worse = [change for change, _ in changes if change.status is ChangeStatus.REGRESSED]
    drifted = sum(change.metric == DRIFT for change in worse)
    parts = [something_else(drifted)] if drifted else []
    for status in WORST_FIRST:
        drift = (DRIFT,) if status is ChangeStatus.REGRESSED else ()
        kinds = Counter(change.kind for change, _ in changes if change.status is status and change.metric not in drift)
        listed = ", ".join(f"{kind} {kinds[kind]:,}" for kind in KINDS if kinds[kind])
        parts += [f"{kinds.total():,} {status}" + (f" ({listed})" if status in CHANGED else "")] if kinds else []
    text = ", ".join(parts)
    changed = sorted((pair for pair in changes if pair[0].status in CHANGED), key=lambda pair: rank(pair[0]))
    if not changed:
        open_still = any(change.status is not ChangeStatus.UNCHANGED for change, _ in changes)
        return f"{'no change is certain' if open_still else 'nothing changed'}: {text}"
    worst, comparison = changed[0]
    run = f" of {comparison.candidate.label or comparison.candidate.run}" if len(comparisons) > 1 else ""
    most = "most of all " if len(changed) > 1 else ""
    return f"{text}: {most}{case_names(comparison)[worst.case.case_id]}{run}{change_line(worst)}"


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
    if comparison.checks:
        came = sum(defect.came for defect in comparison.defects)
        made = f"of {counted(comparison.checks, 'check')} in both runs"
        parts.append(f"{made} {counted(came, 'defect')} came, {len(comparison.defects) - came} went")
    return "; ".join(parts)


def something_else(cases: int) -> str:
    """Return "2 cases compute something else"."""
    return f"{counted(cases, 'case')} {'computes' if cases == 1 else 'compute'} something else"


def change_line(change: Change) -> str:
    """Return what became of a case behind its name: ", time +7.2%", ", fails now"; "" of another function."""
    if change.metric == DRIFT:
        return ""
    if change.change is not None:
        return f", {metric_label(change.metric)} {change_text(change)}"
    if change.metric == OUTCOME:
        return f", {'fails' if change.status is ChangeStatus.REGRESSED else 'is ok'} now"
    return f", {reason(change)}"


def sides_line(comparison: Comparison) -> str:
    """Return what is compared with what: "before → after · torch 2.15.0 · commit 6d8b9ee → 4e1ca65"."""
    before, after = comparison.baseline, comparison.candidate
    names = ((" ".join(side.arm), side.label, side.run) for side in (before, after))
    known = [pair for pair in zip(*names, strict=True) if all(pair) and pair[0] != pair[1]]
    pairs = {"": known[0] if known else (before.run, after.run), "torch": (before.torch_version, after.torch_version)}
    if before.commit or after.commit:
        pairs["commit"] = (short_commit(before.commit or "none"), short_commit(after.commit or "none"))
    return " · ".join(f"{name} {' → '.join(dict.fromkeys(pair))}".strip() for name, pair in pairs.items())


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
    lines = list(map(difference_line, comparison.differences))
    lines += ["measured in turns: both in the same blocks"] if comparison.interleaved else []
    lines += [] if comparison.control.code is ControlCode.NO_TIMES else [control_line(comparison.control)]
    skipped = Counter(comparison.skipped.values())
    lines += [f"skipped on both sides: {counted(count, 'case')} ({why})" for why, count in skipped.items()]
    lines += _alone("candidate", comparison.only_candidate)
    return lines + [f"no change of a rule: {phrase}" for phrase in other_rule_lines(comparison.rule_changes)]


def _alone(side: str, case_ids: Sequence[str]) -> list[str]:
    return [f"only in the {side}: {few(case_ids, LISTED)}"] if case_ids else []


def warnings(comparison: Comparison) -> list[str]:
    """Return what a reader of the verdicts must not miss."""
    fired = [control_line(comparison.control)] if comparison.control.fired else []
    differences = [difference_line(each) for each in comparison.differences if each.matters]
    return [*fired, *notes(comparison), *differences, *_alone("baseline", comparison.only_baseline)]


def explanation_lines(comparison: Comparison, case_id: str) -> list[str]:
    """Return which dtypes, casts and rules of autocast differ in a case that both runs traced; none of any other."""
    explained = comparison.explained.get(case_id)
    if explained is None:
        return []
    versions = comparison.baseline.torch_version, comparison.candidate.torch_version
    between = f" between torch {versions[0]} and {versions[1]}" if all(versions) else ""
    rules = [(rule, "") for rule in explained.rules] + [(rule, "; this step is the same") for rule in explained.idle]
    return [*explained.lines, *(f"autocast's rule for {rule_line(rule)}{between}{more}" for rule, more in rules)]


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


def comparison_section(comparison: Comparison, *, everything: bool = False, gate: GateResult | None = None) -> Section:
    """Return changes and undecided findings with their reasons; folded: every finding, its reason and its evidence.

    Of a `gate` its points stand for the reasons. With `everything` nothing is folded, and all rows are there.
    """
    names = case_names(comparison)
    columns = picked(finding_columns(names), *IN_TABLES)
    changed = [
        change
        for status in CHANGED
        for change in comparison.findings
        if change.status is status and change.metric not in (OUTCOME, DRIFT) and change_text(change)
    ]
    lines = gate_lines(comparison, gate) if gate else _reasons(comparison.findings, names, changed, everything)
    by_status = {status: [one for one in comparison.findings if one.status is status] for status in WORST_FIRST}
    folded = [table(f"{status} ({len(own):,})", columns, own, folded=True) for status, own in by_status.items()]
    facts = [[line] for line in conditions(comparison)]
    blocks = [
        table(
            "changed",
            columns[:-1],
            changed,
            shown=None if everything else SHOWN_OF_GATE if gate else SHOWN,
        ),
        *map(Block, lines),
        *_why(comparison, names, everything),
        *_lists(comparison, rules=everything or gate is None),
        *(block if everything else cut(block, ROWS) for block in folded),
        Block("how it was measured", ["what"], facts, folded=True),
    ]
    shown = [block for block in blocks if block.rows or not block.headers]
    return Section(sides_line(comparison), [replace(one, folded=False) for one in shown] if everything else shown)


def _reasons(
    findings: Iterable[Change], names: Mapping[str, str], listed: Container[Change], everything: bool
) -> list[str]:
    """Return a line for each status, kind and code that is neither `listed` nor unchanged, and for each remark."""
    alike: dict[tuple[str, ...], list[tuple[Change, str]]] = {}
    for change in sorted(findings, key=lambda one: WORST_FIRST.index(one.status)):
        if change not in listed and change.status is not ChangeStatus.UNCHANGED:
            alike.setdefault((change.status, change.kind, change.code), []).append((change, reason(change)))
        for remark, text in zip(change.remarks, remarks(change), strict=True):
            alike.setdefault((change.status, change.kind, remark.code), []).append((change, text))
    lines = []
    for (status, kind, _), members in alike.items():
        cases = few((names[change.case.case_id] for change, _ in members), 1)
        lines.append(f"{len(members):,} {status} ({kind}), {cases}: {members[0][1]}")
    return lines if everything else _first(lines, REASONS)


def _first(lines: Sequence[str], most: int) -> list[str]:
    """Return the first lines, and how many more there are."""
    more = len(lines) - most
    return [*lines[:most], *([f"and {more:,} more, --all lists them"] if more > 0 else [])]


def _why(comparison: Comparison, names: Mapping[str, str], everything: bool) -> Iterator[Block]:
    """Yield what differs in the traces of the case that changed most; folded, of others. Without findings, of all."""
    changed = dict.fromkeys(one.case.case_id for one in comparison.findings if one.status in CHANGED)
    shown = [case_id for case_id in changed if case_id in comparison.explained][:1]
    for case_id in shown if comparison.findings else comparison.explained:
        lines = explanation_lines(comparison, case_id)
        yield Block(f"what differs in {names.get(case_id, case_id)}:")
        yield from (Block(f"· {line}") for line in (lines if everything else _first(lines, DIFFERING)))
    rest = [case_id for case_id in comparison.explained if comparison.findings and case_id not in shown]
    rows = [[names.get(case_id, case_id), line] for case_id in rest for line in explanation_lines(comparison, case_id)]
    yield Block("what differs in other cases", ["case", "what differs"], rows, folded=True)


def _lists(comparison: Comparison, *, rules: bool) -> Iterator[Block]:
    """Yield changed `rules`, where they are wanted, and defects that came or went, a line each."""
    changed = rule_lines(comparison.rule_changes) if rules else []
    if changed:
        yield Block(f"rules of autocast changed ({len(changed):,}):")
    unseen = unseen_rule_lines(comparison.rules_unobserved, comparison.rule_devices_missing) if rules else []
    yield from (Block(f"· {line}") for line in [*_first(changed, RULES_LISTED), *unseen])
    for defect in comparison.defects:
        remedy = f" (what to do: {defect.remedy})" if defect.came else ""
        happened = "came" if defect.came else "went"
        yield Block(f"known defect {happened}: {defect.check} on {defect.device}: {defect.title}{remedy}")


def comparison_document(
    comparison: Comparison, *, everything: bool = False, gate: GateResult | None = None
) -> Document:
    """Return a comparison with what a `gate` says of it; `everything`: every finding and trace.

    Machines have each finding; in CSV remarks are joined by "; ", and details are a JSON object.
    """
    columns = finding_columns({})

    def section() -> Section:
        compared = replace(comparison, only_baseline=()) if gate else comparison  # a note of the gate
        made = comparison_section(compared, everything=everything, gate=gate)
        return Section(made.title, [*map(Block, warnings(compared)), *made.blocks])

    def rows() -> list[dict[str, Any]]:
        found = records(columns, comparison.findings)
        for row in found:
            row["remarks"] = "; ".join(row["remarks"])
            row |= {name: json.dumps(finite(row[name])) for name in ("facts", "details")}
        return found

    return Document(
        sections=lambda: [section()],
        data=lambda: finite(comparison_data(comparison, gate)),
        columns=[column.key for column in columns],
        rows=rows,
        answer=gate_verdict(gate) if gate else verdict(comparison),
        good=gate.passed if gate else None,
    )


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


def gate_lines(comparison: Comparison, result: GateResult) -> list[str]:
    """Return a line for each kind that a gate left out, each warning, and each reason to fail."""
    left_out: dict[str, list[str]] = {}
    for one in result.ignored:
        heading = f"ignored until {one.until} ({one.reason})"
        left_out.setdefault(heading, []).append(f"{one.case_id} {one.metric}: {_ignored_text(one)}")
    names = case_names(comparison)
    return [
        *(f"{heading}: {'; '.join(texts)}" for heading, texts in left_out.items()),
        *(f"note: {point_line(point, names)}" for point in result.notes),
        *(f"why: {point_line(point, names)}" for point in result.why),
    ]


def point_line(point: GatePoint, names: Mapping[str, str]) -> str:
    """Return a point of a gate in a line; cases go by `names`."""
    changes = point.changes
    cases = [names.get(one.case.case_id, one.case.case_id) for one in changes]
    labels = [f"{name} {metric_label(one.metric)}" for name, one in zip(cases, changes, strict=True)]
    which = cases
    if point.code in (GateCode.OTHER_FUNCTION, GateCode.SKIPPED):
        word = brief if point.code is GateCode.OTHER_FUNCTION else reason
        which = gathered(zip(cases, map(word, changes), strict=True))
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


def gate_verdict(result: GateResult) -> str:
    """Return whether the candidate may pass, and how many findings have each verdict."""
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
    return f"{word}{f' under {path}' if path else ''}: {', '.join(counts) or 'nothing was compared'}"


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
            "highest_rate": finite(found.highest_rate),
            "detectable": records(DETECTABLE, found.detectable),
        },
        columns=[column.key for column in spreads],
        rows=lambda: records(spreads, widest),
    )

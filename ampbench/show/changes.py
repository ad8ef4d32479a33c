"""The words of changes, of controls and of changed rules: a line for each, from codes, numbers and facts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType

from ampbench.core.metrics import COLUMNS, COMPARED, DRIFT, MEAN
from ampbench.core.precisions import SHORT_DTYPES
from ampbench.core.statement import Statement
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
    ControlCode,
    ControlVerdict,
    Remark,
)
from ampbench.records.labels import gathered
from ampbench.records.measured import BUSY, OUT_OF_MEMORY, TOO_LITTLE_FREE
from ampbench.records.rules import DTYPES, NOT_THERE, RuleChange, short_name, worded

LARGEST_WORTH_SAYING = 10.0
"""Changes beyond this are no numbers where nothing is certain: three rounds can bound next to nothing."""
_SMALLEST_PERCENT = 1e-4
Facts = Mapping[str, float | str]
_OF_ERRORS: Mapping[ChangeCode, str] = MappingProxyType(
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
_CONTROLS: Mapping[ControlCode, str] = MappingProxyType(
    {
        ControlCode.NO_TIMES: "no times are compared",
        ControlCode.NONE: "no control: nothing says whether the same code, measured twice, would have seemed to differ",
        ControlCode.UNFIT: "control: measured, but in no block on a machine that was fit, so that it says nothing",
        ControlCode.FIRED: (
            "control: the same code, measured twice, seemed to be {size}{of_mean} on {case}: no time verdict counts"
        ),
        ControlCode.TOO_FEW: "control: {cells} measured twice, in too few blocks to say anything",
        ControlCode.QUIET: (
            "control: {cells} measured twice in the same blocks, none seemed to differ (at most {size}, {case})"
        ),
        ControlCode.NEITHER: "neither run has a control: nothing says how far apart two runs of the same code lie",
    }
)
_CAVEATS: Mapping[StrEnum, str] = MappingProxyType(
    {
        Caveat.SAME_RUN: "both sides are the same run, which cannot differ from itself: name two",
        Caveat.CUT: "the {side}'s file {why}",
        Caveat.INCOMPLETE: "the {side} is not complete: {why}",
        Caveat.OTHER_CODE: "the {side}: {why}",
        Caveat.ALONE: "measured one lane at a time, for beside each other {alone}",
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
    if template := _OF_ERRORS.get(change.code):
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
    return _CONTROLS[control.code].format(cells=cells, size=size, of_mean=of_mean, case=facts.get("case", ""))


def caveat_lines(caveats: Iterable[Statement], names: Mapping[str, str]) -> list[str]:
    """Return caveats in lines, those that differ in their case alone as one; cases go by `names`."""
    texts = []
    for one in caveats:
        alone = _ALONE.get(str(one.facts.get("why")), "")
        texts.append((one.subject, _CAVEATS[one.code].format_map({**one.facts, "alone": alone})))
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


_TIMES: Mapping[ChangeCode, str] = MappingProxyType(
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
    text = _TIMES[code].format(
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
"""So many ops are named in a phrase on several."""
_OTHERS = {
    "gone": ("op", "gone of which no rule was ever observed"),
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

    Devices of which the same is said share a line; that an op is registered now is left out where another rule is
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

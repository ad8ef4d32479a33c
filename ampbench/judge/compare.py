"""Compare two runs: which cases became slower, bigger or less accurate, with which certainty, and why.

Traces of the same cases and probes of the same devices explain a change (ops, dtypes, casts, rules of autocast). An arm
measured against itself gives the rate of false alarms and the smallest detectable change.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np

from ampbench.core import stats
from ampbench.core.metrics import MEAN
from ampbench.core.statement import Statement, state
from ampbench.core.units import counted
from ampbench.errors import NothingComparableError
from ampbench.judge.deciding import ALPHA, FAMILY_ALPHA, LOOKS, POWER
from ampbench.judge.exact import (
    ThresholdOf,
    accuracy_findings,
    memory_finding,
    other_numbers,
    outcome_finding,
    skipped_alike,
)
from ampbench.judge.pairing import (
    MISSING,
    UUID,
    EnvironmentDifferences,
    Pair,
    Paired,
    arm_settings,
    not_the_commits,
    one_session,
    pair_cases,
)
from ampbench.judge.rounds import OK, MeasuredRun
from ampbench.judge.times import time_findings
from ampbench.judge.trace_changes import (
    bare_name,
    change_sentences,
    changed_names,
    compare_traces,
    concerned_rules,
)
from ampbench.records.case import Case
from ampbench.records.casts import CastPass
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
    Explanation,
    SelfComparison,
    Side,
    Traces,
    rank,
)
from ampbench.records.kinds import CASTS, CHECK, RULES, deed_of
from ampbench.records.labels import kernels_said
from ampbench.records.measured import Round
from ampbench.records.rules import FAKE, RuleChange, RuleProbe
from ampbench.store import CUT, StoredRun
from ampbench.studies.check import came_or_went, latest
from ampbench.studies.rules import compare_rules, probed_twice, unobserved
from ampbench.studies.rules import rank as rule_rank

LANES = 3 / 2
"""The ratio of lanes: a comparison has three, with the control; an arm against itself has two."""
DECIDING_LOOKS = LOOKS[1:]
"""The looks that can find a change; the first can only prove `unchanged` (docs/statistics.md)."""


def judge_self(comparison: Comparison, rounds: Sequence[Round]) -> SelfComparison:
    """Return false alarms and detectable changes of a `comparison` of an arm with itself; `rounds` are of one side."""
    every = [finding for finding in comparison.findings if finding.kind == "time"]
    times = [finding for finding in every if finding.metric != MEAN]
    alarms = [finding for finding in every if finding.status in _CHANGED]
    level = min(ALPHA, FAMILY_ALPHA / max(2 * len(times), 1)) / len(LOOKS)  # its typical time and its mean
    able = [
        finding for finding in times if finding.code is not ChangeCode.UNFIT_MACHINE and 0.5**finding.blocks <= level
    ]
    spreads = {
        finding.case.case_id: finding.details["standard_error"] * math.sqrt(finding.blocks)
        for finding in times
        if finding.blocks and "standard_error" in finding.details
    }
    threshold = max((finding.threshold for finding in times), default=0.0)
    seconds = LANES * block_seconds(rounds)
    return SelfComparison(
        cases=len(times),
        blocks=max((finding.blocks for finding in times), default=0),
        false_alarms=alarms,
        suspected=[finding for finding in every if finding.code in (ChangeCode.NOT_CONFIRMED, ChangeCode.UNCONFIRMED)],
        unfit=[finding for finding in times if finding.code is ChangeCode.UNFIT_MACHINE],
        unchanged=[finding for finding in times if finding.status is ChangeStatus.UNCHANGED],
        able=len(able),
        highest_rate=stats.wilson_interval(len(alarms), len(able))[1] if able else math.nan,
        spreads=spreads,
        detectable=[_detectable(list(spreads.values()), blocks, seconds, threshold) for blocks in DECIDING_LOOKS]
        if spreads
        else [],
    )


def block_seconds(rounds: Sequence[Round]) -> float:
    """Return the seconds of a block: the median time between the ends of a case's rounds in two blocks."""
    ends: dict[str, list[float]] = {}
    for measured in rounds:
        if not measured.confirmation:
            ends.setdefault(measured.case_id, []).append(datetime.fromisoformat(measured.finished_at).timestamp())
    gaps = [later - earlier for times in ends.values() for earlier, later in itertools.pairwise(sorted(times))]
    return stats.median(gaps) if gaps else math.nan


def _detectable(spreads: Sequence[float], blocks: int, seconds: float, threshold: float) -> Detectable:
    """Return the change detectable in `blocks` blocks, given each case's spread of log ratios; as in `deciding`."""
    error = np.array(spreads) / math.sqrt(blocks)
    freedom, margin = np.full(len(error), blocks - 1.0), np.full(len(error), math.log1p(threshold))
    effects = np.expm1(stats.detectable_effect(error, freedom, ALPHA / len(LOOKS), POWER, margin))
    return Detectable(blocks, blocks * seconds, float(np.median(effects)), float(effects.max()))


_CHANGED = (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)


def default_threshold(metric: str, case: Case) -> float | None:  # noqa: ARG001 - a `ThresholdOf`
    """Return None: use the thresholds of `metrics.GATED`."""
    return None


def compare(
    ours: StoredRun,
    theirs: StoredRun,
    threshold_of: ThresholdOf = default_threshold,
) -> Comparison:
    """Return the change of every metric of every case in both runs, the most important first.

    `threshold_of(metric, case)` is the largest ignored relative change; None: the threshold in `metrics.GATED`. Arms of
    one session are compared block by block, other runs as measured one after the other. Runs that explain have traces
    and rules to compare, but no findings. Changed cases are explained if both runs traced them. Raises
    `NothingComparableError` if the runs share no case, no device's rules and no check, or explain anything else, and
    `UsageError` if an arm's settings match several cases.
    """
    baseline, candidate = MeasuredRun.of(ours), MeasuredRun.of(theirs)
    _require_comparable(ours, theirs)
    headers = (ours.header, theirs.header)
    settings = arm_settings(*headers)
    paired = pair_cases(ours.cases.values(), theirs.cases.values(), settings)
    probes = probed_twice(ours, theirs)
    devices = [new.device for _, new in probes]
    checks = len(latest([ours]).keys() & latest([theirs]).keys())
    if not (paired.pairs or devices or checks):
        raise NothingComparableError(_nothing_in_common(ours, theirs))
    measures = not any(header.explains for header in headers)
    differences = EnvironmentDifferences(
        *headers, devices=[pair.baseline.device for pair in paired.pairs] or devices, settings=settings
    )
    interleaved = one_session(*headers)
    findings: list[Change] = []
    skipped: dict[str, str] = {}
    control = ControlVerdict(cells=0, fired=False, code=ControlCode.NO_TIMES)
    if measures:
        findings, control, skipped = _findings(paired, baseline, candidate, differences, interleaved, threshold_of)
    changed = {change.case.case_id for change in findings if change.status in _CHANGED}
    rules = sorted((change for pair in probes for change in compare_rules(*pair)), key=rule_rank)
    explained = _explained(
        (pair for pair in paired.pairs if not measures or pair.baseline_id in changed), ours, theirs, rules
    )
    if not (measures or explained or devices or checks):
        raise NothingComparableError(_nothing_in_common(ours, theirs))
    return Comparison(
        baseline=_side(ours),
        candidate=_side(theirs),
        interleaved=interleaved,
        apart=measures and not interleaved,
        differences=differences.found,
        control=control,
        findings=findings,
        only_baseline=paired.only_baseline,
        only_candidate=paired.only_candidate,
        lost_cases=[case_id for case_id in paired.only_baseline if baseline.outcome(case_id).name == OK],
        failed=candidate.failed,
        skipped=skipped,
        other_numbers=[p.baseline_id for p in paired.pairs if other_numbers(p, baseline, candidate)],
        caveats=_caveats(paired, baseline, theirs, differences),
        candidates={p.baseline_id: p.candidate for p in paired.pairs if p.candidate_id != p.baseline_id},
        rule_changes=rules,
        rule_devices=devices,
        rule_devices_missing=[
            device for device in ours.of(RuleProbe) if device not in devices and theirs.of(RuleProbe)
        ],
        rules_unobserved=[change for pair in probes for change in unobserved(*pair)],
        explained=explained,
        defects=came_or_went(ours, theirs),
        checks=checks,
    )


def compare_times(baseline: MeasuredRun, candidate: MeasuredRun) -> dict[str, Change]:
    """Return the time finding of `compare` for each case that is ok on both sides, by the baseline's case id."""
    headers = (baseline.stored.header, candidate.stored.header)
    settings = arm_settings(*headers)
    pairs = [
        pair
        for pair in pair_cases(baseline.stored.cases.values(), candidate.stored.cases.values(), settings).pairs
        if outcome_finding(pair, baseline.outcome(pair.baseline_id), candidate.outcome(pair.candidate_id)) is None
    ]
    differences = EnvironmentDifferences(*headers, devices=[pair.baseline.device for pair in pairs], settings=settings)
    interleaved = one_session(baseline.stored.header, candidate.stored.header)
    findings, _ = time_findings(pairs, baseline, candidate, differences, interleaved, default_threshold)
    return {finding.case.case_id: finding for finding in findings}


_OF_CASES = ("only_baseline", "only_candidate", "lost_cases", "failed", "other_numbers")
"""Fields of a comparison that hold ids of cases."""


def narrowed(
    comparison: Comparison, wanted: Callable[[str], bool] = lambda _: True, kinds: Collection[str] | None = None
) -> Comparison:
    """Return a comparison narrowed to cases whose id is `wanted` and to findings of `kinds` (None: all).

    Findings go by the baseline's id; outcomes always stay. Changed rules belong to no case, and stay if `kinds` has
    "rules".
    """
    findings = [finding for finding in comparison.findings if wanted(finding.case.case_id)]
    if kinds is not None:
        findings = [finding for finding in findings if finding.kind in (OUTCOME, *kinds)]
    timed = kinds is None or "time" in kinds
    ids: dict[str, Any] = {name: list(filter(wanted, getattr(comparison, name))) for name in _OF_CASES}
    smaller = replace(
        comparison,
        findings=findings,
        apart=comparison.apart and timed,
        control=comparison.control if timed else ControlVerdict(cells=0, fired=False, code=ControlCode.NO_TIMES),
        skipped={case_id: reason for case_id, reason in comparison.skipped.items() if wanted(case_id)},
        explained={case_id: case for case_id, case in comparison.explained.items() if wanted(case_id)},
        **ids,
    )
    if kinds is None or RULES in kinds:
        return smaller
    return replace(smaller, rule_changes=(), rule_devices=(), rule_devices_missing=(), rules_unobserved=())


def _findings(
    paired: Paired,
    baseline: MeasuredRun,
    candidate: MeasuredRun,
    differences: EnvironmentDifferences,
    interleaved: bool,
    threshold_of: ThresholdOf,
) -> tuple[list[Change], ControlVerdict, dict[str, str]]:
    """Return the pairs' findings, the verdict on the controls, and by id the reasons of cases skipped on both sides."""
    findings: list[Change] = []
    measured, exact, skipped = [], [], {}
    for pair in paired.pairs:
        before, after = baseline.outcome(pair.baseline_id), candidate.outcome(pair.candidate_id)
        if skipped_alike(before, after):
            skipped[pair.baseline_id] = before.reason
            continue
        outcome = outcome_finding(pair, before, after)
        if outcome is None:
            measured.append(pair)
        else:
            findings.append(outcome)
        if outcome is None or (outcome.status is ChangeStatus.IMPROVED and before.timed):
            exact.append(pair)  # a baseline that failed late still has the numbers it had counted
    times, control = time_findings(measured, baseline, candidate, differences, interleaved, threshold_of)
    findings += times
    for pair in exact:
        same = differences.same(pair.baseline.device)
        memory = memory_finding(pair, baseline, candidate, same, threshold_of)
        if memory is not None:
            findings.append(memory)
        findings += accuracy_findings(pair, baseline, candidate, same, threshold_of)
    return sorted(findings, key=rank), control, skipped


def _nothing_in_common(*runs: StoredRun) -> str:
    contents = []
    for stored in runs:
        example, explains = next(iter(stored.cases), None), stored.header.explains
        deed = f"{deed_of(explains)} and has" if explains else "has"
        cases = f"{counted(len(stored.cases), 'case')}, such as {example}" if example else "no case"
        traced = f", {len(stored.of(CastPass)):,} traced" if stored.of(CastPass) else ""
        contents.append(f"{stored.header.run} {deed} {cases}{traced}")
    return f"the runs have nothing in common that can be compared: {'; '.join(contents)}"


def _side(stored: StoredRun) -> Side:
    header = stored.header
    return Side(
        run=header.run,
        path=str(stored.path),
        label=header.label,
        commit=header.commit,
        torch_version=header.environment.torch_version,
        host=header.environment.host,
        arm=tuple(header.arm.given) if header.arm else (),
    )


def _caveats(
    paired: Paired, baseline: MeasuredRun, candidate: StoredRun, differences: EnvironmentDifferences
) -> list[Statement]:
    """Return caveats on how the runs were measured, on all cases or on some."""
    caveats = [state(Caveat.SAME_RUN)] if baseline.stored.header.run == candidate.header.run else []
    for side, stored in (("baseline", baseline.stored), ("candidate", candidate)):
        if stored.cut:
            caveats.append(state(Caveat.CUT, side=side, why=CUT))
        if not stored.complete:
            caveats.append(state(Caveat.INCOMPLETE, side=side, why=stored.ending))
        if other_code := not_the_commits(stored.header):
            caveats.append(state(Caveat.OTHER_CODE, side=side, why=other_code))
    for card in differences.found:
        if card.name.endswith(f" {UUID}") and MISSING not in (card.baseline, card.candidate):
            caveats.append(state(Caveat.OTHER_CARD, before=card.baseline, after=card.candidate))
    for pair in paired.pairs:
        before, after = baseline.stored.memory.get(pair.baseline_id), candidate.memory.get(pair.candidate_id)
        if before and after and before.attention is not None and after.attention is not None:
            ours, theirs = kernels_said(before.attention), kernels_said(after.attention)
            if ours != theirs:
                caveats.append(state(Caveat.OTHER_KERNELS, pair.baseline_id, before=ours, after=theirs))
    return caveats


def explanation(
    case: Case, before: CastPass, after: CastPass, rules: Iterable[RuleChange] = (), *, measured: bool = True
) -> Explanation:
    """Return the ops, dtypes, casts and `rules` that differ for a case, or "unexplained: …".

    If no change was `measured` and none is traced, the line is "the same: …".
    """
    changes = compare_traces(before.trace, after.trace)
    concerned = concerned_rules(changed_names(changes), rules, case.device)
    lines = change_sentences(changes, [bare_name(rule.op) for rule in concerned])
    if changes.nothing:
        same = f"{counted(len(after.trace.ops), 'op')}, {counted(len(after.trace.casts), 'cast')}"
        unexplained = f"unexplained: the same ops, dtypes and casts on both sides ({same})"
        lines = [unexplained if measured else f"the same: {same}"]
    if case.path != "eager":
        lines.append(f"traced in eager mode, measured {case.path}")
    faked = [name for name, side in (("the baseline", before), ("the candidate", after)) if side.how == FAKE]
    if faked:
        lines.append(f"{faked[0] if len(faked) == 1 else 'both sides'} ran on fake tensors, not on hardware")
    traces = Traces.SAME if changes.nothing else Traces.CHANGED
    return Explanation(traces, lines, concerned)


COMPARED = ("", CASTS, CHECK, RULES)
"""The kinds of runs that can be compared; "" is a run that measures."""


def _require_comparable(*runs: StoredRun) -> None:
    """Raise `NothingComparableError` if one of `runs` explains anything but casts, checks and rules."""
    alone = {stored.header.run: stored.header.explains for stored in runs if stored.header.explains not in COMPARED}
    if alone:
        kinds = " or ".join(dict.fromkeys(alone.values()))
        show = " and ".join(f"ampbench show {run}" for run in alone)
        raise NothingComparableError(f"runs that explain {kinds} are not compared: {show}")


def _explained(
    pairs: Iterable[Pair], baseline: StoredRun, candidate: StoredRun, rules: Sequence[RuleChange]
) -> dict[str, Explanation]:
    """Return the explanation of each traced pair and, in runs that explain casts, of pairs without a trace."""
    explanations = {}
    explains = baseline.header.explains, candidate.header.explains
    for pair in pairs:
        before = baseline.of(CastPass).get(pair.baseline_id)
        after = candidate.of(CastPass).get(pair.candidate_id)
        if before and after:
            explanations[pair.baseline_id] = explanation(
                pair.baseline, before, after, rules, measured=not any(explains)
            )
        elif explains == (CASTS, CASTS):
            lines = []
            for name, stored, case_id, trace in (
                ("baseline", baseline, pair.baseline_id, before),
                ("candidate", candidate, pair.candidate_id, after),
            ):
                failure, skip = stored.failures.get(case_id), stored.skips.get(case_id)
                why = failure.said if failure else skip.reason if skip else "not reached"
                lines += [] if trace else [f"not traced in the {name}: {' '.join(why.split())}"]
            explanations[pair.baseline_id] = Explanation(Traces.NOT_TRACED, lines)
    return explanations

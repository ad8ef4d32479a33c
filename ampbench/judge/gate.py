"""The gate: a comparison and a policy become one verdict with an exit code, and sentences that say why.

Pure: nothing is read, printed or raised here.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ampbench.base.metrics import DRIFT
from ampbench.base.units import counted, format_percent
from ampbench.errors import CASE_FAILED, NothingComparableError
from ampbench.instruments.rules.findings import few_phrases
from ampbench.judge.policy import RULES, Ignore, Policy, weigh_rules
from ampbench.judge.said import KINDS, case_names, change_text, metric_label, something_else, threshold_text
from ampbench.records.rules import RuleChange
from ampbench.records.verdicts import OUTCOME, Code, Comparison, Finding, Verdict

PASSED = 0
REGRESSED = 1

ERROR = "output_rel_l2"
"""The metric that an ignore must cover to leave out a case's other weights."""

_DECIDED = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.UNCHANGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """What would have counted against the candidate, and the ignore that left it out; `what` happened, in words.

    A changed rule of autocast has the metric "rules" and, for `case_id`, its op and device: "rms_norm/cuda".
    """

    case_id: str
    metric: str
    what: str
    ignore: Ignore


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The verdict of a gate.

    `exit_code` is 4 where nothing gated could be compared, else 1 where the gate found a regression or something else
    that the policy does not let pass, else 3 where a case failed in the candidate, else 0. `sentences` say why it is
    not 0, in that order; `notes` are what must be seen although it decides nothing. Findings are of gated metrics and
    outcomes, without what is `ignored`, the worst first. `findings` counts the gated metrics of cases that the baseline
    has a number of, and `decided` those of them that regressed, improved or are unchanged, whether ignored or not.
    `missing` are the ids of cases that the candidate does not have, `failed` of those that failed in it. `rule_changes`
    are those of autocast's rules that count, `rule_devices` the device types whose rules were compared; none where
    rules are not gated.
    """

    exit_code: int
    regressions: Sequence[Finding]
    anchor_regressions: Sequence[Finding]
    improved: Sequence[Finding]
    inconclusive: Sequence[Finding]
    ignored: Sequence[Ignored]
    unchanged: Sequence[Finding]
    findings: int
    decided: int
    missing: Sequence[str]
    failed: Sequence[str]
    rule_changes: Sequence[RuleChange]
    anchor_rule_changes: Sequence[RuleChange]
    rule_devices: Sequence[str]
    sentences: Sequence[str]
    notes: Sequence[str]

    @property
    def passed(self) -> bool:
        """Whether the candidate may pass."""
        return self.exit_code == PASSED

    @property
    def decided_share(self) -> float | None:
        """The share of gated findings with a verdict; None where there is none."""
        return self.decided / self.findings if self.findings else None


def judge(
    comparison: Comparison, policy: Policy, anchor: Comparison | None = None, failed: Iterable[str] = ()
) -> GateResult:
    """Return the verdict of `policy` on `comparison` and, where there is one, on that with the `anchor`.

    `failed` are the ids of cases that failed in the candidate. The order in which findings are given does not matter.
    """
    last = _Weighed(comparison, policy)
    weighed = (
        [last] if anchor is None else [last, _Weighed(anchor, policy, f" against the anchor {anchor.baseline.run}")]
    )
    ignored = {(one.case_id, one.metric, one.what): one for each in weighed for one in each.ignored}
    left_out = {(one.case_id, one.metric) for one in ignored.values()}
    still_failed = []
    for case_id in sorted(set(failed)):
        ignore = policy.ignore_of(OUTCOME, case_id)
        if ignore is None:
            still_failed.append(case_id)
        elif (case_id, OUTCOME) not in left_out:
            entry = Ignored(case_id=case_id, metric=OUTCOME, what="failed", ignore=ignore)
            ignored[case_id, OUTCOME, entry.what] = entry

    incomparable = [sentence for each in weighed for sentence in each.nothing_comparable(policy)]
    against = [
        *(sentence for each in weighed for sentence in each.regressed()),
        *last.undecided(policy.max_inconclusive),
        *(sentence for each in weighed for sentence in (each.strict() if policy.strict else ())),
    ]
    newly = {one.case.case_id for one in last.regressions if one.metric == OUTCOME}
    as_before = [case_id for case_id in still_failed if case_id not in newly]
    failing = few_phrases(last.names_of(as_before))
    failures = [f"{counted(len(as_before), 'case')} failed in the candidate: {failing}"] if as_before else []
    code = PASSED
    if incomparable:
        code = NothingComparableError.exit_code
    elif against:
        code = REGRESSED
    elif still_failed:
        code = CASE_FAILED
    cases = {one.case.case_id: one.case for each in weighed for one in each.comparison.findings}
    others = {name for each in weighed for name in (*each.missing, *each.rules.ids)}
    others |= {*comparison.only_candidate, *comparison.skipped}
    notes = [note for each in weighed for note in each.notes(policy)]
    return GateResult(
        exit_code=code,
        regressions=last.regressions,
        anchor_regressions=weighed[1].regressions if anchor else (),
        improved=last.improved,
        inconclusive=last.inconclusive,
        ignored=tuple(ignored.values()),
        unchanged=last.unchanged,
        findings=last.findings,
        decided=last.decided,
        missing=tuple(last.missing),
        failed=tuple(still_failed),
        rule_changes=last.rules.counting,
        anchor_rule_changes=weighed[1].rules.counting if anchor else (),
        rule_devices=last.rules.devices,
        sentences=tuple(dict.fromkeys((*incomparable, *against, *failures))),
        notes=tuple(dict.fromkeys((*notes, *policy.idle(cases.values(), sorted(others))))),
    )


class _Weighed:
    """One comparison as the policy sees it: what counts, sorted, without what is ignored.

    `against` names the baseline in sentences where it is not the usual one.
    """

    def __init__(self, comparison: Comparison, policy: Policy, against: str = ""):
        self.comparison, self.against = comparison, against
        self._names = case_names(comparison)
        gated = sorted((one for one in comparison.findings if one.kind in (OUTCOME, *policy.only)), key=_order)
        metrics = [one for one in gated if one.kind != OUTCOME]
        with_number = [one for one in metrics if _is_gated(one)]
        counting: list[Finding] = []
        self.ignored: list[Ignored] = []
        for one in gated:
            ignore = policy.ignore_of(one.metric, one.case.case_id)
            if one.code is Code.OTHER_FUNCTION and policy.ignore_of(DRIFT, one.case.case_id) and one.metric != DRIFT:
                continue  # the errors go with the function
            if ignore is None or one.verdict in (Verdict.IMPROVED, Verdict.UNCHANGED):
                counting.append(one)
            elif _is_gated(one) or _was_skipped(one):
                what = f"regressed {_change(one)}" if one.verdict is Verdict.REGRESSED else f"{one.verdict}"
                what = one.reason if one.metric == DRIFT else what
                self.ignored.append(Ignored(case_id=one.case.case_id, metric=one.metric, what=what, ignore=ignore))
        self.regressions = _of(Verdict.REGRESSED, counting)
        self.improved = _of(Verdict.IMPROVED, counting)
        self.inconclusive = _of(Verdict.INCONCLUSIVE, counting)
        self.unchanged = _of(Verdict.UNCHANGED, counting)
        self.skipped = [one for one in counting if _was_skipped(one)]
        self.lost = [one for one in _of(Verdict.INCOMPARABLE, counting) if _is_gated(one)]
        self.findings = len(with_number)
        self.decided = len([one for one in with_number if one.verdict in _DECIDED])
        self.undecided_time = len([one for one in (*self.inconclusive, *self.lost) if one.kind == "time"])
        self.time_findings = len([one for one in counting if one.kind == "time" and _is_gated(one)])
        self.rules = weigh_rules(comparison, policy, against)
        for name, what, ignore in self.rules.ignored:
            self.ignored.append(Ignored(case_id=name, metric=RULES, what=what, ignore=ignore))
        self.comparable = bool(self.rules.devices) or any(
            one.verdict is not Verdict.INCOMPARABLE if one.kind != OUTCOME else one.verdict is Verdict.REGRESSED
            for one in gated
        )
        self.other_weights = _with_other_weights(comparison, policy)
        self.control_fired = comparison.control.fired and "time" in policy.only
        self.missing = sorted(comparison.only_baseline)
        self.missed = []
        for case_id in self.missing:
            ignore = policy.ignore_of(OUTCOME, case_id)
            if ignore is None:
                self.missed.append(case_id)
            else:
                what = "missing in the candidate"
                self.ignored.append(Ignored(case_id=case_id, metric=OUTCOME, what=what, ignore=ignore))

    def nothing_comparable(self, policy: Policy) -> list[str]:
        """Say that no gated metric could be compared, where that is so."""
        if self.comparable:
            return []
        metrics = [kind for kind in policy.only if kind != RULES]
        if not metrics:
            return [f"no rules of autocast were probed in both runs{self.against}"]
        reasons = dict.fromkeys(one.reason for one in self.lost if one.reason)
        reasons |= dict.fromkeys(f"skipped on both sides: {reason}" for reason in self.comparison.skipped.values())
        why = f": {few_phrases(list(reasons))}" if reasons else ""
        return [f"no gated metric ({', '.join(metrics)}) has a case that can be compared{self.against}{why}"]

    def regressed(self) -> list[str]:
        """Return sentences on what computes something else, on each kind that regressed, and on changed rules."""
        sentences = []
        if drifted := [one for one in self.regressions if one.metric == DRIFT]:
            said = [f"{self._names[one.case.case_id]}: {one.brief}" for one in drifted]
            many = something_else(len(drifted))
            allow = f"where that is meant, the policy can allow it ({DRIFT} in docs/gate.md)"
            sentences.append(f"{many}{self.against}: {few_phrases(said)}; {allow}")
        for kind in KINDS:
            found = [one for one in self.regressions if one.kind == kind and one.metric != DRIFT]
            if found and kind == OUTCOME:
                cases = [self._names[one.case.case_id] for one in found]
                what = "1 case that was ok fails" if len(found) == 1 else f"{len(found)} cases that were ok fail"
                sentences.append(f"{what} now{self.against}: {few_phrases(cases)}")
            elif found:
                said = [f"{self._named(one)} {_change(one)}" for one in found]
                sentences.append(f"{counted(len(found), f'{kind} regression')}{self.against}: {few_phrases(said)}")
        return [*sentences, *self.rules.changed]

    def undecided(self, allowed: float) -> list[str]:
        """Say that more of the time findings are undecided than is `allowed` (a share), where that is so."""
        if self.undecided_time <= allowed * self.time_findings:
            return []
        share = self.undecided_time / self.time_findings
        of_all = f"{self.undecided_time} of {counted(self.time_findings, 'time finding')} are undecided"
        return [
            f"{of_all} ({format_percent(share)}), more than the {format_percent(allowed)} that max_inconclusive allows"
        ]

    def strict(self) -> list[str]:
        """Return a sentence for everything that only a strict gate does not let pass."""
        sentences = []
        if self.control_fired:
            sentences.append(f"the control fired{self.against}: {self.comparison.control.sentence}")
        unfit = [one for one in self.inconclusive if one.code is Code.UNFIT_MACHINE]
        if unfit:
            sentences.append(
                f"the machine was unfit for {counted(len(unfit), 'finding')}{self.against}: {unfit[0].reason}"
            )
        if self.inconclusive:
            named = [self._named(one) for one in self.inconclusive]
            sentences.append(f"{counted(len(named), 'finding')} inconclusive{self.against}: {few_phrases(named)}")
        sentences += [*self._other_weights(), *self._lost(), *self._skipped(), *self._missed(self.missed)]
        sentences += self.rules.not_seen
        return [f"strict: {sentence}" for sentence in sentences]

    def notes(self, policy: Policy) -> list[str]:
        """Return what must be seen whatever the verdict; under a strict policy it is among the sentences instead."""
        missing, rules = self._missed(self.missing), self.rules
        if policy.strict:
            return [*(missing if self.missing != self.missed else []), *rules.unjudged]
        control = [f"the control fired{self.against}: no time is judged"] if self.control_fired else []
        return [
            *missing, *self._skipped(), *control, *self._no_time(), *self._other_weights(), *self._lost(),
            *rules.not_seen, *rules.unjudged,
        ]  # fmt: skip

    def names_of(self, ids: Iterable[str]) -> list[str]:
        """Return what cases are called in the comparison's table, their ids where they are not in it."""
        return [self._names.get(case_id, case_id) for case_id in ids]

    def _named(self, finding: Finding) -> str:
        return f"{self._names[finding.case.case_id]} {metric_label(finding.metric)}"

    def _missed(self, ids: Sequence[str]) -> list[str]:
        if not ids:
            return []
        which = self.against.replace(" against", " of", 1) or " of the baseline"
        return [f"the candidate lacks {counted(len(ids), 'case')}{which}: {few_phrases(ids)}"]

    def _skipped(self) -> list[str]:
        if not self.skipped:
            return []
        named = [f"{self._names[one.case.case_id]}: {one.reason}" for one in self.skipped]
        return [f"the candidate skipped {counted(len(named), 'case')}{self.against}: {few_phrases(named)}"]

    def _other_weights(self) -> list[str]:
        if not self.other_weights:
            return []
        count, named = counted(len(self.other_weights), "case"), few_phrases(self.names_of(self.other_weights))
        return [f"other weights, inputs or workload versions in {count}{self.against}: {named}"]

    def _no_time(self) -> list[str]:
        """Say that no time has a verdict, where there are some: passing then tells nothing of speed."""
        if self.control_fired or not 0 < self.time_findings == self.undecided_time:
            return []
        of_all = f"none of {counted(self.time_findings, 'time')} is" if self.time_findings > 1 else "the time is not"
        return [f"{of_all} decided{self.against}: nothing is known of speed; max_inconclusive can ask that some are"]

    def _lost(self) -> list[str]:
        lost = [one for one in self.lost if one.code not in (Code.OTHER_WEIGHTS, Code.OTHER_FUNCTION)]
        if not lost:
            return []
        named = [f"{self._named(one)} ({one.code})" for one in lost]
        return [f"{counted(len(lost), 'finding')} not comparable{self.against}: {few_phrases(named)}"]


def _of(verdict: Verdict, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(one for one in findings if one.verdict is verdict)


def _is_gated(finding: Finding) -> bool:
    """Return whether a finding should have a verdict: the baseline has a number, or a verdict there is."""
    return finding.verdict is not Verdict.INCOMPARABLE or finding.baseline is not None


def _was_skipped(finding: Finding) -> bool:
    """Return whether a case was ok in the baseline and is skipped in the candidate."""
    return finding.kind == OUTCOME and finding.code is Code.NOT_MEASURED


def _with_other_weights(comparison: Comparison, policy: Policy) -> tuple[str, ...]:
    """Return the ids of cases whose weights, inputs or version differ, whichever kinds are gated.

    They were other mathematics, so that their times and bytes say little about a regression.
    """
    return tuple(sorted(name for name in comparison.other_numbers if policy.ignore_of(ERROR, name) is None))


def _order(finding: Finding) -> tuple[int, float, str, str, str]:
    """Order findings by kind, the largest change first, what has no number before it.

    The order is total: the one in which findings come in never shows.
    """
    change = math.inf if finding.change is None or math.isnan(finding.change) else abs(finding.change)
    return (KINDS.index(finding.kind), -change, finding.case.case_id, finding.metric, finding.reason)


def _change(finding: Finding) -> str:
    said = change_text(finding)
    if not said or finding.change is None or not math.isfinite(finding.change):
        return f"({finding.reason})"
    return f"{said} ({threshold_text(finding)})"

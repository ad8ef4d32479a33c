"""The gate: a comparison and a policy become one verdict with an exit code, and sentences that say why.

A policy says what a gate lets pass, and is read from a TOML file (docs/gate.md explains every key); beside that nothing
is read, printed or raised here.
"""

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ampbench.base.keywords import matches
from ampbench.base.metrics import DRIFT, GATED, MEAN
from ampbench.base.units import counted, format_percent
from ampbench.errors import CASE_FAILED, NothingComparableError, UnknownNameError, UsageError
from ampbench.instruments.rules.findings import (
    alters,
    changed_ops_said,
    few_phrases,
    others_said,
    rank,
    rule_change_said,
    rule_id,
)
from ampbench.judge.said import KINDS as FINDING_KINDS
from ampbench.judge.said import (
    case_names,
    change_text,
    metric_label,
    rules_not_seen,
    something_else,
    threshold_text,
)
from ampbench.records.case import Case
from ampbench.records.changes import OUTCOME, Change, ChangeCode, ChangeStatus, Comparison
from ampbench.records.rules import RuleChange
from ampbench.records.run import is_path
from ampbench.settings import read_toml
from ampbench.workloads.index import FAMILIES

FILE_NAME = "ampbench-gate.toml"
"""The policy that is taken from the current folder where none is named."""

METRIC_KINDS = ("time", "memory", "accuracy")
RULES = "rules"
KINDS = (*METRIC_KINDS, RULES)
"""What can be left out of a gate: the kinds of metric, and the rules of autocast; outcomes cannot."""

Thresholds = Mapping[str, float]
"""Relative changes that count as none, by metric or by kind; a metric's own comes before its kind's."""

_KEYS = ("strict", "only", "max_inconclusive", "anchor", "thresholds", "anchor_thresholds", "rule", "ignore")
_USER_FAMILY = "user"
_NO_SHARE = 1e6
"""What is neither a share nor a percentage that anyone means; integers of TOML may have thousands of digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Thresholds for the cases of a `family`, of a `workload`, and whose id matches the expression `cases`.

    What is empty selects everything.
    """

    family: str = ""
    workload: str = ""
    cases: str = ""
    thresholds: Thresholds

    def covers(self, case: Case) -> bool:
        """Return whether the rule speaks of `case`."""
        return (
            self.family in ("", case.family)
            and self.workload in ("", case.workload)
            and matches(self.cases, case.case_id)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignore:
    """Findings that a gate leaves out until the end of the day `until`, with the `reason`.

    `cases` is an expression as after -k, which a changed rule matches by its op and device ("rms_norm/cuda"); `metrics`
    are metrics or kinds ("outcome" among them); empty: all.
    """

    cases: str = ""
    metrics: Sequence[str] = ()
    until: datetime.date
    reason: str

    def covers(self, metric: str, case_id: str) -> bool:
        """Return whether the finding on `metric` of the case is left out."""
        chosen = not self.metrics or metric in self.metrics or kind_of(metric) in self.metrics
        return chosen and matches(self.cases, case_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a gate lets pass.

    `only` are the kinds that are gated; outcomes always are. `max_inconclusive` is the largest share (0 to 1) of the
    gated time findings that may stay undecided. `anchor` names a run that the candidate is compared with as well as
    with the baseline ("" for none); then `anchor_thresholds` come before `thresholds`. The last rule that covers a case
    and says something about a metric comes before both. How far the fp64 result may move is said by its own name alone:
    a threshold of accuracy speaks of errors; so is what the mean of all samples may change by, which is no less than
    the time's where it is not said. `path` is the file it was read from ("": none).
    """

    strict: bool = False
    only: Sequence[str] = KINDS
    max_inconclusive: float = 1.0
    anchor: str = ""
    thresholds: Thresholds = field(default_factory=dict)
    anchor_thresholds: Thresholds = field(default_factory=dict)
    rules: Sequence[Rule] = ()
    ignores: Sequence[Ignore] = ()
    path: str = ""
    _covering: dict[tuple[str, str], list[Rule]] = field(default_factory=dict, init=False, compare=False, repr=False)

    def threshold_of(self, metric: str, case: Case) -> float | None:
        """Return the largest relative change that counts as none; None where the policy leaves it to the metric."""
        return self._threshold(metric, case, self.thresholds)

    def anchor_threshold_of(self, metric: str, case: Case) -> float | None:
        """Return the same for the comparison with the anchor."""
        return self._threshold(metric, case, self.anchor_thresholds, self.thresholds)

    def ignore_of(self, metric: str, case_id: str) -> Ignore | None:
        """Return the first ignore that covers the finding on `metric` of a case; None where it is judged."""
        return next((one for one in self.ignores if one.covers(metric, case_id)), None)

    def with_time_threshold(self, threshold: float) -> "Policy":
        """Return the policy with one `threshold` for the time of every case, against the anchor too."""

        def without_time(thresholds: Thresholds) -> Thresholds:
            return {name: value for name, value in thresholds.items() if kind_of(name) != "time"}

        return replace(
            self,
            thresholds={**without_time(self.thresholds), "time": threshold},
            anchor_thresholds=without_time(self.anchor_thresholds),
            rules=tuple(replace(rule, thresholds=without_time(rule.thresholds)) for rule in self.rules),
        )

    def idle(self, cases: Iterable[Case], other_ids: Iterable[str] = ()) -> list[str]:
        """Return a sentence for each rule that covers none of `cases`, and each ignore that covers no id at all.

        `other_ids` are those of cases that only one of the runs has or both skipped, and of changed rules.
        """
        known = list(cases)
        ids = [*(case.case_id for case in known), *other_ids]
        return [
            *(
                f"rule {number} of the policy matches no case that is compared"
                for number, rule in enumerate(self.rules, start=1)
                if not any(map(rule.covers, known))
            ),
            *(
                f"ignore {number} of the policy ({one.reason}) matches no case: it may have done its work"
                for number, one in enumerate(self.ignores, start=1)
                if not any(matches(one.cases, case_id) for case_id in ids)
            ),
        ]

    def _rules_of(self, case: Case) -> list[Rule]:
        """Return the rules that cover `case`, found once for all its metrics."""
        key = case.family, case.case_id
        if key not in self._covering:
            self._covering[key] = [rule for rule in self.rules if rule.covers(case)]
        return self._covering[key]

    def _threshold(self, metric: str, case: Case, *tables: Thresholds) -> float | None:
        """Return what the last rule, else the first of `tables`, says about a metric of a case."""
        for table in (*(rule.thresholds for rule in reversed(self._rules_of(case))), *tables):
            for name in (metric, *([] if metric in (DRIFT, MEAN) else [kind_of(metric)])):
                if name in table:
                    return table[name]
        return None


def kind_of(name: str) -> str:
    """Return the kind of a metric; a kind, and "outcome", is its own."""
    return GATED[name].kind if name in GATED else name


def read_policy(path: Path, today: datetime.date | None = None) -> Policy:
    """Return the policy in the TOML file `path`.

    A relative anchor that is a path counts from the file's folder. Raises `UsageError`, one line with file and key, for
    whatever is wrong: a file that cannot be read, an unknown key, a value of the wrong type or out of range, an
    expression that is none, an ignore without a reason or end, or one that ended before `today`.
    """
    if not path.is_file():
        raise UsageError(f"there is no policy file {path}")
    top = _Table(path, "", read_toml(path))
    top.check_keys(_KEYS)
    today = today or datetime.date.today()
    anchor = top.text("anchor")
    if is_path(anchor):
        anchor = str(path.parent / anchor)
    return Policy(
        strict=top.flag("strict"),
        only=check_kinds(top.names("only", "kind", KINDS)) or KINDS,
        max_inconclusive=_max_inconclusive(top),
        anchor=anchor,
        thresholds=_thresholds(top.table("thresholds")),
        anchor_thresholds=_thresholds(top.table("anchor_thresholds")),
        rules=tuple(_rule(table) for table in top.tables("rule")),
        ignores=tuple(_ignore(table, today) for table in top.tables("ignore")),
        path=str(path),
    )


def check_kinds(names: Iterable[str]) -> tuple[str, ...]:
    """Return the kinds among `names` in their usual order; `UnknownNameError` for any other name."""
    chosen = list(names)
    for name in chosen:
        if name not in KINDS:
            raise UnknownNameError("kind", name, KINDS)
    return tuple(kind for kind in KINDS if kind in chosen)


def parse_percent(text: str) -> float:
    """Return the share that "5" or "5%" stands for, 0.05; `UsageError` for what is no percentage of 0 or more."""
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        percent = math.nan
    if not 0 <= percent < math.inf:
        raise UsageError(f"{text!r} is not a percentage of 0 or more, such as 5%")
    return percent / 100


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a policy file, named as in errors ("" for the file's own keys); its values are taken out checked."""

    path: Path
    name: str
    values: Mapping[str, Any]

    def error(self, problem: object) -> UsageError:
        """Return the error that says where the `problem` is."""
        return UsageError(f"{self.path}: {self.name}: {problem}" if self.name else f"{self.path}: {problem}")

    def check_keys(self, known: Sequence[str]) -> None:
        """Raise `UsageError` for a key that is not `known`."""
        for key in self.values:
            if key not in known:
                raise self.error(UnknownNameError("key", key, known))

    def flag(self, key: str) -> bool:
        """Return true or false; false where there is none."""
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {value!r}")
        return value

    def text(self, key: str) -> str:
        """Return a text; "" where there is none, but one that is given is not empty."""
        value = self.values.get(key, "")
        if not isinstance(value, str) or (key in self.values and not value.strip()):
            raise self.error(f"{key} must be a text in quotes that is not empty, not {value!r}")
        return value

    def names(self, key: str, kind: str, known: Sequence[str]) -> list[str]:
        """Return a list of `known` names of a `kind` of thing; none where there is no list, but one is not empty."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or (key in self.values and not value):
            raise self.error(f"{key} must be a list that is not empty, as in [{known[0]!r}], not {value!r}")
        for name in value:
            if name not in known:
                raise self.error(UnknownNameError(kind, str(name), known))
        return value

    def expression(self, key: str) -> str:
        """Return an expression over case ids; "" where there is none."""
        text = self.text(key)
        try:
            matches(text, "")
        except UsageError as error:
            raise self.error(f"{key} = {str(error).removeprefix('-k ')}") from None
        return text

    def share(self, key: str, value: Any) -> float:
        """Return the share that `value` stands for: a number under 1, or a percentage in quotes."""
        if isinstance(value, str) and value.strip().endswith("%"):
            try:
                return parse_percent(value)
            except UsageError as error:
                raise self.error(f"{key}: {error}") from None
        if type(value) not in (int, float) or not 0 <= value < _NO_SHARE:
            raise self.error(f'{key} must be a share such as 0.05 or "5%", 0 or more, not {value!r:.100}')
        if value >= 1:
            raise self.error(f'{key} = {value} may mean {value:g}% or {value:.0%}: write it in percent, as in "5%"')
        return float(value)

    def table(self, key: str) -> "_Table":
        """Return the table called `key`, an empty one where there is none."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.error(f"{key} must be a table, not {value!r}")
        return _Table(self.path, f"{self.name}: {key}" if self.name else key, value)

    def tables(self, key: str) -> list["_Table"]:
        """Return the tables of a list of them, named by their number."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self.error(f"{key} must be given as [[{key}]], once for each")
        return [_Table(self.path, f"{key} {number}", each) for number, each in enumerate(value, start=1)]


def _max_inconclusive(table: _Table) -> float:
    key = "max_inconclusive"
    value = table.values.get(key, 1)
    share = 1.0 if type(value) in (int, float) and value == 1 else table.share(key, value)
    if share > 1:
        raise table.error(f"{key} is a share of all findings, at most 1, not {value!r}")
    return share


def _thresholds(table: _Table) -> Thresholds:
    table.check_keys((*METRIC_KINDS, *GATED))
    return {key: table.share(key, value) for key, value in table.values.items()}


def _rule(table: _Table) -> Rule:
    table.check_keys(("family", "workload", "cases", "thresholds"))
    rule = Rule(
        family=table.text("family"),
        workload=table.text("workload"),
        cases=table.expression("cases"),
        thresholds=_thresholds(table.table("thresholds")),
    )
    if rule.family and rule.family not in (*FAMILIES, _USER_FAMILY):
        raise table.error(UnknownNameError("family", rule.family, (*FAMILIES, _USER_FAMILY)))
    if not (rule.family or rule.workload or rule.cases):
        raise table.error("say of which cases, by family, workload or cases; what holds for all is in [thresholds]")
    if not rule.thresholds:
        raise table.error('thresholds are missing, as in thresholds = { time = "10%" }')
    return rule


def _ignore(table: _Table, today: datetime.date) -> Ignore:
    table.check_keys(("cases", "metrics", "until", "reason"))
    until, reason = table.values.get("until"), table.text("reason")
    if not reason:
        raise table.error("reason is missing: say why these findings do not count")
    if type(until) is not datetime.date:  # a date and time is a date to isinstance
        problem = "is missing" if until is None else f"must be a date, not {until!r}"
        raise table.error(f"until {problem}: give the last day it holds, without quotes, as in until = 2026-12-31")
    if until < today:
        raise UsageError(f"{table.path}: {table.name} ({reason}) expired on {until}: remove it or renew it")
    if not table.values.keys() & {"cases", "metrics"}:
        raise table.error("say of which cases or metrics; to gate nothing, run no gate")
    return Ignore(
        cases=table.expression("cases"),
        metrics=table.names("metrics", "metric", (*KINDS, OUTCOME, *GATED)),
        until=until,
        reason=reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedRules:
    """The rules of one comparison as a policy sees them; empty where it does not gate rules.

    `counting` are the changes that count, the observed ones first, `ignored` others, each by its id, with what happened
    and the ignore. `devices` are the device types whose rules were compared. `changed` says what counts, a sentence a
    rule; `not_seen` what the candidate's probe does not answer for, `unjudged` what altered no rule. `ids` are those of
    all that changed.
    """

    counting: Sequence[RuleChange] = ()
    ignored: Sequence[tuple[str, str, Ignore]] = ()
    devices: Sequence[str] = ()
    changed: Sequence[str] = ()
    not_seen: Sequence[str] = ()
    unjudged: Sequence[str] = ()
    ids: Sequence[str] = ()


def weigh_rules(comparison: Comparison, policy: Policy, against: str = "") -> GatedRules:
    """Return what `policy` makes of the rules in `comparison`; `against` names its baseline in sentences."""
    if RULES not in policy.only:
        return GatedRules()
    altering = sorted(filter(alters, comparison.rule_changes), key=rank)
    counting, ignored = _weighed(altering, policy)
    unseen, also_ignored = _weighed(comparison.rules_unobserved, policy)
    said = changed_ops_said(counting)
    not_seen = rules_not_seen(unseen, comparison.rule_devices_missing)
    return GatedRules(
        counting=tuple(counting),
        ignored=(*ignored, *also_ignored),
        devices=tuple(comparison.rule_devices),
        changed=[f"{counted(len(said), 'change')} of autocast's rules{against}: {few_phrases(said)}"] if said else [],
        not_seen=[f"{sentence}{against}" for sentence in not_seen],
        unjudged=[f"not judged{against}: {phrase}" for phrase in others_said(comparison.rule_changes)],
        ids=tuple(rule_id(one) for one in (*comparison.rule_changes, *comparison.rules_unobserved)),
    )


def _weighed(changes: Iterable[RuleChange], policy: Policy) -> tuple[list[RuleChange], list[tuple[str, str, Ignore]]]:
    counting, ignored = [], []
    for one in changes:
        ignore = policy.ignore_of(RULES, rule_id(one))
        if ignore is None:
            counting.append(one)
        else:
            ignored.append((rule_id(one), rule_change_said(one), ignore))
    return counting, ignored


PASSED = 0
REGRESSED = 1

ERROR = "output_rel_l2"
"""The metric that an ignore must cover to leave out a case's other weights."""

_DECIDED = (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED, ChangeStatus.UNCHANGED)


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
    regressions: Sequence[Change]
    anchor_regressions: Sequence[Change]
    improved: Sequence[Change]
    inconclusive: Sequence[Change]
    ignored: Sequence[Ignored]
    unchanged: Sequence[Change]
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
        counting: list[Change] = []
        self.ignored: list[Ignored] = []
        for one in gated:
            ignore = policy.ignore_of(one.metric, one.case.case_id)
            if (
                one.code is ChangeCode.OTHER_FUNCTION
                and policy.ignore_of(DRIFT, one.case.case_id)
                and one.metric != DRIFT
            ):
                continue  # the errors go with the function
            if ignore is None or one.status in (ChangeStatus.IMPROVED, ChangeStatus.UNCHANGED):
                counting.append(one)
            elif _is_gated(one) or _was_skipped(one):
                what = f"regressed {_change(one)}" if one.status is ChangeStatus.REGRESSED else f"{one.status}"
                what = one.reason if one.metric == DRIFT else what
                self.ignored.append(Ignored(case_id=one.case.case_id, metric=one.metric, what=what, ignore=ignore))
        self.regressions = _of(ChangeStatus.REGRESSED, counting)
        self.improved = _of(ChangeStatus.IMPROVED, counting)
        self.inconclusive = _of(ChangeStatus.INCONCLUSIVE, counting)
        self.unchanged = _of(ChangeStatus.UNCHANGED, counting)
        self.skipped = [one for one in counting if _was_skipped(one)]
        self.lost = [one for one in _of(ChangeStatus.INCOMPARABLE, counting) if _is_gated(one)]
        self.findings = len(with_number)
        self.decided = len([one for one in with_number if one.status in _DECIDED])
        self.undecided_time = len([one for one in (*self.inconclusive, *self.lost) if one.kind == "time"])
        self.time_findings = len([one for one in counting if one.kind == "time" and _is_gated(one)])
        self.rules = weigh_rules(comparison, policy, against)
        for name, what, ignore in self.rules.ignored:
            self.ignored.append(Ignored(case_id=name, metric=RULES, what=what, ignore=ignore))
        self.comparable = bool(self.rules.devices) or any(
            one.status is not ChangeStatus.INCOMPARABLE if one.kind != OUTCOME else one.status is ChangeStatus.REGRESSED
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
        for kind in FINDING_KINDS:
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
        unfit = [one for one in self.inconclusive if one.code is ChangeCode.UNFIT_MACHINE]
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

    def _named(self, finding: Change) -> str:
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
        lost = [one for one in self.lost if one.code not in (ChangeCode.OTHER_WEIGHTS, ChangeCode.OTHER_FUNCTION)]
        if not lost:
            return []
        named = [f"{self._named(one)} ({one.code})" for one in lost]
        return [f"{counted(len(lost), 'finding')} not comparable{self.against}: {few_phrases(named)}"]


def _of(verdict: ChangeStatus, findings: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(one for one in findings if one.status is verdict)


def _is_gated(finding: Change) -> bool:
    """Return whether a finding should have a verdict: the baseline has a number, or a verdict there is."""
    return finding.status is not ChangeStatus.INCOMPARABLE or finding.baseline is not None


def _was_skipped(finding: Change) -> bool:
    """Return whether a case was ok in the baseline and is skipped in the candidate."""
    return finding.kind == OUTCOME and finding.code is ChangeCode.NOT_MEASURED


def _with_other_weights(comparison: Comparison, policy: Policy) -> tuple[str, ...]:
    """Return the ids of cases whose weights, inputs or version differ, whichever kinds are gated.

    They were other mathematics, so that their times and bytes say little about a regression.
    """
    return tuple(sorted(name for name in comparison.other_numbers if policy.ignore_of(ERROR, name) is None))


def _order(finding: Change) -> tuple[int, float, str, str, str]:
    """Order findings by kind, the largest change first, what has no number before it.

    The order is total: the one in which findings come in never shows.
    """
    change = math.inf if finding.change is None or math.isnan(finding.change) else abs(finding.change)
    return (FINDING_KINDS.index(finding.kind), -change, finding.case.case_id, finding.metric, finding.reason)


def _change(finding: Change) -> str:
    said = change_text(finding)
    if not said or finding.change is None or not math.isfinite(finding.change):
        return f"({finding.reason})"
    return f"{said} ({threshold_text(finding)})"

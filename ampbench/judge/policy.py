"""What a gate lets pass: a policy, read from a TOML file (docs/gate.md explains every key), and what it makes of rules.

Of autocast's rules in two runs that is: which changes count, which are left out, what is said of them.
"""

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ampbench.base.keywords import matches
from ampbench.base.metrics import DRIFT, GATED, MEAN
from ampbench.base.units import counted
from ampbench.errors import UnknownNameError, UsageError
from ampbench.instruments.rules.findings import (
    alters,
    changed_ops_said,
    few_phrases,
    others_said,
    rank,
    rule_change_said,
    rule_id,
)
from ampbench.judge.said import rules_not_seen
from ampbench.records.case import Case
from ampbench.records.rules import RuleChange
from ampbench.records.run import is_path
from ampbench.records.verdicts import OUTCOME, Comparison
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

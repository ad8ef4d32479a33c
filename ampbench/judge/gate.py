"""Judge a comparison by a policy: one verdict with an exit code, and the points that explain it.

A policy is read from a TOML file (docs/gate.md explains every key).
"""

import datetime
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import structs

from ampbench.core.budget import read_toml
from ampbench.core.metrics import DRIFT, GATED, MEAN
from ampbench.errors import CASE_FAILED, NothingComparableError, UnknownNameError, UsageError
from ampbench.judge.compare import narrowed
from ampbench.records import one_of
from ampbench.records.case import Case, matches
from ampbench.records.changes import (
    OUTCOME,
    Change,
    ChangeCode,
    ChangeStatus,
    Comparison,
    Decided,
    GateCode,
    GatePoint,
    GateResult,
    Ignored,
    rank,
)
from ampbench.records.rules import RuleChange
from ampbench.studies.rules import rank as rule_rank

FILE_NAME = "ampbench-gate.toml"
"""The policy file used from the current folder if none is named."""

METRIC_KINDS = ("time", "memory", "accuracy")
RULES = "rules"
KINDS = (*METRIC_KINDS, RULES)
"""The parts of a gate that can be left out: each kind of metric, and the rules of autocast. Outcomes always count."""

Kinds = Annotated[Sequence[Annotated[str, one_of(*KINDS)]], msgspec.Meta(min_length=1)]
Metrics = Sequence[Annotated[str, one_of(*KINDS, OUTCOME, *GATED)]]
Thresholds = Mapping[Annotated[str, one_of(*METRIC_KINDS, *GATED)], float | str]
"""The largest ignored relative change, by metric or by kind; a metric's threshold comes before its kind's."""

MIN_DECIDED = 0.5
"""The share of findings of each kind that must be decided: below half, most of the comparison is unknown."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thresholds for the cases whose id matches the expression `cases`."""

    cases: Annotated[str, msgspec.Meta(min_length=1)]
    thresholds: Annotated[Thresholds, msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Raise `ValueError` for an invalid expression."""
        _check_expression(self.cases)


class Ignore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Findings that a gate ignores until the end of the day `until`, for the `reason`.

    `cases` is an expression as after -k; a changed rule matches by its op and device ("rms_norm/cuda"). `metrics` are
    metrics or kinds, "outcome" included. Empty means all.
    """

    cases: str = ""
    metrics: Metrics = ()
    until: datetime.date
    reason: Annotated[str, msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Raise `ValueError` for an invalid expression, and without cases and metrics."""
        if not (self.cases or self.metrics):
            raise ValueError("name its cases or metrics; to gate nothing, run no gate")
        _check_expression(self.cases)


class Policy(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"rules": "rule", "ignores": "ignore"},
):
    """The changes that a gate allows.

    `only` are the requested kinds, which must all have numbers (empty: every kind with numbers). Outcomes always
    count. `min_decided` is the share of findings of each metric kind that must be decided. The last rule that covers a
    case and names a metric comes before `thresholds`. The fp64 result and the mean of all samples have thresholds by
    their own names alone; the mean's default is at least the time's threshold. `path` is the policy's file ("": none).
    """

    only: Kinds = ()
    min_decided: float | str = MIN_DECIDED
    thresholds: Thresholds = {}
    rules: Sequence[Rule] = ()
    ignores: Sequence[Ignore] = ()
    path: str = ""

    @property
    def kinds(self) -> Sequence[str]:
        """The gated kinds."""
        return self.only or KINDS

    def threshold_of(self, metric: str, case: Case) -> float | None:
        """Return the largest ignored relative change; None if the policy sets none."""
        rules = [rule.thresholds for rule in reversed(self.rules) if matches(rule.cases, case.case_id)]
        for table in (*rules, self.thresholds):
            for name in (metric, *([] if metric in (DRIFT, MEAN) else [kind_of(metric)])):
                if name in table:
                    return float(table[name])
        return None

    def ignore_of(self, metric: str, case_id: str) -> Ignore | None:
        """Return the first ignore that covers the finding on `metric` of a case; None if there is none."""
        named = {metric, kind_of(metric)}
        chosen = (ignore for ignore in self.ignores if not ignore.metrics or named.intersection(ignore.metrics))
        return next((ignore for ignore in chosen if matches(ignore.cases, case_id)), None)

    def idle(self, cases: Iterable[str], others: Iterable[str]) -> Iterator[GatePoint]:
        """Yield rules that match no id in `cases`, and ignores that match no id in `cases` and `others`.

        `others` are the ids of changed rules, and of cases in only one run or skipped in both.
        """
        known, every = set(cases), {*cases, *others}
        for number, rule in enumerate(self.rules, start=1):
            if not any(matches(rule.cases, case_id) for case_id in known):
                yield GatePoint(code=GateCode.IDLE_RULE, number=number)
        for number, ignore in enumerate(self.ignores, start=1):
            if not any(matches(ignore.cases, case_id) for case_id in every):
                yield GatePoint(code=GateCode.IDLE_IGNORE, number=number, names=(ignore.reason,))


def kind_of(name: str) -> str:
    """Return the kind of a metric; return a kind, and "outcome", unchanged."""
    return GATED[name].kind if name in GATED else name


def read_policy(path: Path, today: datetime.date | None = None) -> Policy:
    """Return the policy in the TOML file `path`.

    Raises `UsageError`, one line with file and key, for an unreadable file, an unknown key, a value of the wrong type
    or out of range, an invalid expression, or an ignore that lacks its reason or end or ended before `today`.
    """
    if not path.is_file():
        raise UsageError(f"there is no policy file {path}")
    try:
        policy = msgspec.convert(read_toml(path) | {"path": str(path)}, Policy)
        for ignore in policy.ignores:
            if ignore.until < (today or datetime.date.today()):
                raise ValueError(f"an ignore expired on {ignore.until} ({ignore.reason}): remove it or renew it")
        return structs.replace(
            policy,
            only=check_kinds(policy.only),
            min_decided=parse_share(policy.min_decided, most=1.0),
            thresholds=_shares(policy.thresholds),
            rules=tuple(structs.replace(rule, thresholds=_shares(rule.thresholds)) for rule in policy.rules),
        )
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None


def check_kinds(names: Iterable[str]) -> tuple[str, ...]:
    """Return the kinds among `names` in their usual order; `UnknownNameError` for any other name."""
    chosen = list(names)
    for name in chosen:
        if name not in KINDS:
            raise UnknownNameError("kind", name, KINDS)
    return tuple(kind for kind in KINDS if kind in chosen)


def parse_share(value: float | str, most: float = math.inf) -> float:
    """Return the share in 0.05, "0.05" or "5%"; `ValueError` for anything else, or above `most`.

    A plain number of 1 or more is refused: 5 could mean 5% or 500%.
    """
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f'must be a share such as 0.05 or "5%", 0 or more, not {value!r:.100}')
    if not text.endswith("%") and number >= 1:
        raise ValueError(f'{number:g} may mean {number:g}% or {number:.0%}: write it in percent, as in "5%"')
    share = number / 100 if text.endswith("%") else number
    if share > most:
        raise ValueError(f"must be at most {most:.0%}, not {value!r}")
    return share


def _shares(thresholds: Thresholds) -> dict[str, float | str]:
    return {name: parse_share(value) for name, value in thresholds.items()}


def _check_expression(text: str) -> None:
    try:
        matches(text, "")
    except UsageError as error:
        raise ValueError(f"cases = {str(error).removeprefix('-k ')}") from None


REGRESSED = 1
_DECIDED = (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED, ChangeStatus.UNCHANGED)
ERROR = "output_rel_l2"
"""The metric that an ignore must cover to also ignore changed weights of a case."""


def judge(comparison: Comparison, policy: Policy) -> GateResult:
    """Return the verdict of `policy` on `comparison`; it does not depend on the order of the findings."""
    weighed = _Weighed(narrowed(comparison, kinds=policy.kinds), policy)
    listed = {entry.case_id for entry in weighed.ignored if entry.metric == OUTCOME}
    ours = {case.case_id: case_id for case_id, case in comparison.candidates.items()}  # findings go by the baseline's
    ids = sorted({ours.get(name, name) for name in comparison.failed})
    failed = [case_id for case_id in ids if not (case_id in listed or weighed.ignores(case_id, OUTCOME))]
    newly = {change.case.case_id for change in weighed.regressions if change.metric == OUTCOME}
    as_before = tuple(case_id for case_id in failed if case_id not in newly)
    regressed, undecided = weighed.regressed(), weighed.undecided()
    failures = [GatePoint(code=GateCode.FAILED, names=as_before)] if as_before else []
    codes = ((regressed, REGRESSED), (undecided, NothingComparableError.exit_code), (failed, CASE_FAILED))
    cases = sorted({change.case.case_id for change in comparison.findings})
    others = {rule.rule_id for rule in (*comparison.rule_changes, *comparison.rules_unobserved)}
    others |= {*weighed.missing, *comparison.only_candidate, *comparison.skipped}
    return GateResult(
        exit_code=next((code for reasons, code in codes if reasons), 0),
        regressions=weighed.regressions,
        improved=weighed.improved,
        inconclusive=weighed.inconclusive,
        ignored=tuple(weighed.ignored),
        unchanged=weighed.unchanged,
        decided=weighed.decided,
        missing=tuple(weighed.missing),
        failed=tuple(failed),
        rule_changes=weighed.rule_changes,
        rule_devices=weighed.rule_devices,
        why=(*regressed, *undecided, *failures),
        notes=(*weighed.notes(), *policy.idle(cases, others)),
        policy={"path": policy.path or None, "only": list(policy.kinds), "min_decided": policy.min_decided},
    )


class _Weighed:
    """The findings of a comparison that count under a policy, sorted, without ignored ones."""

    def __init__(self, comparison: Comparison, policy: Policy):
        self.comparison, self.policy = comparison, policy
        gated = sorted(comparison.findings, key=rank)
        counting: list[Change] = []
        judged: list[Change] = []
        self.ignored: list[Ignored] = []
        for finding in gated:
            metric, case_id = finding.metric, finding.case.case_id
            drifts = finding.code is ChangeCode.OTHER_FUNCTION and metric != DRIFT
            if drifts and policy.ignore_of(DRIFT, case_id):
                continue  # the errors go with the function
            if policy.ignore_of(metric, case_id) is None:
                judged.append(finding)
                counting.append(finding)
            elif finding.status in (ChangeStatus.IMPROVED, ChangeStatus.UNCHANGED):
                counting.append(finding)
            elif _is_gated(finding) or _was_skipped(finding):
                self.ignores(case_id, metric, change=finding)
        self.regressions = _of(ChangeStatus.REGRESSED, counting)
        self.improved = _of(ChangeStatus.IMPROVED, counting)
        self.inconclusive = _of(ChangeStatus.INCONCLUSIVE, counting)
        self.unchanged = _of(ChangeStatus.UNCHANGED, counting)
        self.skipped = [finding for finding in counting if _was_skipped(finding)]
        self.lost = [finding for finding in _of(ChangeStatus.INCOMPARABLE, counting) if _is_gated(finding)]
        self.kinds = {finding.kind for finding in gated if finding.kind != OUTCOME and _is_gated(finding)}
        self.rule_devices = tuple(comparison.rule_devices)
        altering = sorted((rule for rule in comparison.rule_changes if rule.alters), key=rule_rank)
        self.rule_changes = self._not_ignored(altering)
        self.unseen_rules = self._not_ignored(comparison.rules_unobserved)
        self.comparable = bool(self.rule_devices) or any(
            finding.status is not ChangeStatus.INCOMPARABLE
            if finding.kind != OUTCOME
            else finding.status is ChangeStatus.REGRESSED
            for finding in gated
        )
        self.missing = sorted(comparison.only_baseline)
        excused = [case_id for case_id in self.missing if self.ignores(case_id, OUTCOME, missing=True)]
        self.lost_cases = [case_id for case_id in comparison.lost_cases if case_id not in excused]
        absent = len(self.skipped) + len(self.lost_cases)
        self.decided = {
            kind: Decided(decided=sum(finding.status in _DECIDED for finding in having), findings=len(having) + absent)
            for kind in METRIC_KINDS
            if (having := [finding for finding in judged if finding.kind == kind and _is_gated(finding)])
        }

    def regressed(self) -> list[GatePoint]:
        """Return points on changed functions, on regressions of each kind, and on changed rules."""
        drifted = [finding for finding in self.regressions if finding.metric == DRIFT]
        points = [_point(GateCode.OTHER_FUNCTION, changes=drifted)]
        for kind in (OUTCOME, *METRIC_KINDS):
            worse = [finding for finding in self.regressions if finding.kind == kind and finding.metric != DRIFT]
            points.append(_point(GateCode.FAILS if kind == OUTCOME else GateCode.REGRESSED, kind, changes=worse))
        return _having([*points, _point(GateCode.RULES_CHANGED, rules=self.rule_changes)])

    def undecided(self) -> list[GatePoint]:
        """Return points on gated kinds with too few decided findings, or without any."""
        policy = self.policy
        lacking = [kind for kind in policy.only if (not self.rule_devices if kind == RULES else kind not in self.kinds)]
        points = [_point(GateCode.NOTHING, kind) for kind in lacking]
        limit = float(policy.min_decided)
        for kind, cells in self.decided.items():
            if cells.decided < limit * cells.findings:
                open_ones = [
                    finding for finding in (*self.inconclusive, *self.lost) if finding.kind == kind
                ] + self.skipped
                point = _point(GateCode.UNDECIDED, kind, changes=open_ones, names=self.lost_cases)
                points.append(replace(point, decided=cells.decided, findings=cells.findings, limit=limit))
        if not (points or self.comparable):
            points = [_point(GateCode.NOTHING, changes=self.lost, names=[*self.comparison.skipped.values()])]
        return points

    def notes(self) -> list[GatePoint]:
        """Return points to show with every verdict."""
        policy = self.policy
        # for every gated kind: times and bytes of a different computation show no regression
        others = [case_id for case_id in self.comparison.other_numbers if policy.ignore_of(ERROR, case_id) is None]
        lost = [
            finding
            for finding in self.lost
            if finding.code not in (ChangeCode.OTHER_WEIGHTS, ChangeCode.OTHER_FUNCTION)
        ]
        absent = [kind for kind in METRIC_KINDS if not policy.only and kind not in self.kinds]
        points = [
            _point(GateCode.MISSING, names=self.missing),
            _point(GateCode.SKIPPED, changes=self.skipped),
            _point(GateCode.OTHER_NUMBERS, names=sorted(others)),
            _point(GateCode.LOST, changes=lost),
            _point(GateCode.RULES_UNSEEN, rules=self.unseen_rules),
            _point(GateCode.RULES_UNSEEN, names=self.comparison.rule_devices_missing),
            _point(GateCode.NOT_GATED, names=absent if self.comparable and self.kinds else []),
        ]
        return [*([_point(GateCode.CONTROL_FIRED)] if self.comparison.control.fired else []), *_having(points)]

    def ignores(self, case_id: str, metric: str, **of: Any) -> bool:
        """Return whether the policy ignores a finding, and list it."""
        ignore = self.policy.ignore_of(metric, case_id)
        if ignore is not None:
            self.ignored.append(Ignored(case_id=case_id, metric=metric, until=ignore.until, reason=ignore.reason, **of))
        return ignore is not None

    def _not_ignored(self, rules: Iterable[RuleChange]) -> tuple[RuleChange, ...]:
        return tuple(rule for rule in rules if not self.ignores(rule.rule_id, RULES, rule=rule))


def _point(code: GateCode, kind: str = "", **of: Iterable[Any]) -> GatePoint:
    subjects: dict[str, Any] = {name: tuple(values) for name, values in of.items()}
    return GatePoint(code=code, kind=kind, **subjects)


def _having(points: Iterable[GatePoint]) -> list[GatePoint]:
    """Return the points with changes, names or rules."""
    return [point for point in points if point.changes or point.names or point.rules]


def _of(status: ChangeStatus, findings: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(finding for finding in findings if finding.status is status)


def _is_gated(finding: Change) -> bool:
    """Return whether a finding counts for `min_decided`: it is comparable, or the baseline has a number."""
    return finding.status is not ChangeStatus.INCOMPARABLE or finding.baseline is not None


def _was_skipped(finding: Change) -> bool:
    """Return whether a case was ok in the baseline and is skipped in the candidate."""
    return finding.kind == OUTCOME and finding.code is ChangeCode.NOT_MEASURED

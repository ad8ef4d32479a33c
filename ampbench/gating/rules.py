"""What a gate makes of autocast's rules in two runs: which changes count, which are left out, what it says of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ampbench.comparing.sentences import rules_not_seen
from ampbench.gating.policy import RULES, Ignore, Policy
from ampbench.records.rules import RuleChange
from ampbench.rules.changes import alters, changed_ops_said, few_phrases, others_said, rank, rule_change_said, rule_id
from ampbench.units import counted
from ampbench.verdicts import Comparison


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

"""A worker's probe of what autocast does to each op, on a device that is here or stood in for."""

from ampbench.explain.rules.probe import probe_rules, rule_ops
from ampbench.instruments.rules.records import RulesAsked
from ampbench.measure.worker import Work
from ampbench.records.rules import RuleProbe, chosen_ops


def do_rules(work: Work, asked: RulesAsked) -> RuleProbe:
    """Do the task "rules"; `UsageError` for an op that is not known."""
    return probe_rules(work.device_type, asked.dtypes, ops=chosen_ops(asked.ops, rule_ops()) if asked.ops else None)

"""Autocast's rules: where documents, dispatcher and observation disagree, and what changed since the baseline."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ampbench.base.precisions import SHORT_DTYPES
from ampbench.base.units import UNDEFINED, counted
from ampbench.instruments.rules import show
from ampbench.instruments.rules.findings import alters, find_disagreements, rank, rule_change_said, worded
from ampbench.present.page import LISTED, Part
from ampbench.records.rules import RuleChange, RuleProbe, short_name
from ampbench.records.verdicts import Comparison
from ampbench.report.explained import probes, with_rules
from ampbench.report.material import Material


def rules(material: Material) -> Part | None:
    """Return the probes of the runs on the page, and what changed between the baseline's rules and theirs."""
    found, compared = probes(material), with_rules(material)
    if not found and not compared:
        return None
    changes = [(one, change) for one in compared for change in one.rule_changes]
    changes.sort(key=lambda each: (not alters(each[1]), rank(each[1])))
    return Part(
        id="rules",
        title="Autocast's rules",
        said=[changes_said(one) for one in compared],
        content={"rows": [_change(*each) for each in changes[:LISTED]], "probes": [_probe(one) for one in found]},
        left_out=max(len(changes) - LISTED, 0),
    )


def changes_said(one: Comparison) -> str:
    """Return how many rules changed from the baseline to the candidate, and in which ops one sees it first."""
    where = f"from torch {_versions(one, ' to ')} on {', '.join(one.rule_devices)}"
    missing = f"; {', '.join(one.rule_devices_missing)} was not probed again" if one.rule_devices_missing else ""
    if not one.rule_changes:
        return f"No rule of autocast changed {where}{missing}."
    altering = [change for change in one.rule_changes if alters(change)]
    counts = f"{counted(len(one.rule_changes), 'difference')} between autocast's rules {where}{missing}"
    if not altering:
        return f"{counts}; none changes what autocast does."
    verb = "changes" if len(altering) == 1 else "change"
    first = rule_change_said(min(altering, key=rank))
    return f"{counts}; {len(altering):,} of them {verb} what autocast does, such as {first}."


def _versions(one: Comparison, between: str) -> str:
    return between.join(side.torch_version or UNDEFINED for side in (one.baseline, one.candidate))


def _change(one: Comparison, change: RuleChange) -> list[str]:
    dtypes = ", ".join(SHORT_DTYPES.get(name, name) for name in change.dtypes)
    versions = _versions(one, " → ")
    was, now = worded(change.before), worded(change.after)
    return [short_name(change.op), change.device, versions, change.field, was, now, dtypes or "any"]


def probe_said(probe: RuleProbe) -> str:
    """Return what was probed, and how many disagreements of each kind there are."""
    return f"{show.title(probe)}: {_counts(probe)}"


def _counts(probe: RuleProbe) -> str:
    counts = Counter(one.kind for one in find_disagreements(probe))
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    return f"{counted(counts.total(), 'disagreement')}{f' ({kinds})' if kinds else ''}"


def _probe(probe: RuleProbe) -> Mapping[str, Any]:
    return {
        "title": show.title(probe),
        "count": _counts(probe),
        "tables": show.disagreements(probe),
        "without_sample": ", ".join(map(short_name, probe.without_sample)),
    }

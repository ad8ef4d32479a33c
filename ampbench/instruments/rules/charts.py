"""Where documents, dispatcher and observation disagree on autocast's rules, and what changed, on the page."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ampbench.base.precisions import SHORT_DTYPES
from ampbench.base.units import UNDEFINED, counted
from ampbench.instruments.rules import show
from ampbench.instruments.rules.findings import alters, find_disagreements, rank, rule_change_said, worded
from ampbench.present.document import Block
from ampbench.present.page import LISTED, Detail, Held, Part
from ampbench.records.rules import RuleChange, RuleProbe, short_name
from ampbench.records.verdicts import Comparison
from ampbench.store import StoredRun

UNFOLDED = 20
"""So many changes are shown at once."""


def part(held: Held[Any]) -> Part | None:
    """Return the probes of the runs on the page, and what changed between the baseline's rules and theirs."""
    found = probes(held.runs)
    compared = [one for one in held.comparisons if one.rule_devices or one.rule_changes]
    if not found and not compared:
        return None
    changes = [(one, change) for one in compared for change in one.rule_changes]
    changes.sort(key=lambda each: (not alters(each[1]), rank(each[1])))
    said = [changes_said(one) for one in compared]
    counts = [(show.title(one), _counts(one)) for one in found]
    return Part(
        id="rules",
        title="Autocast's rules",
        said=said,
        details=[*_changes(changes), *map(_probe, found)],
        left_out=max(len(changes) - LISTED, 0),
        sentences=[*(("", [line]) for line in said), *((title, [f"{count}."]) for title, count in counts)],
        what="probes",
    )


def probes(runs: Iterable[StoredRun]) -> list[RuleProbe]:
    """Return the probes of `runs`, the oldest first: of several of one torch version and device type the newest."""
    newest: dict[tuple[str, str], RuleProbe] = {}
    for run in runs:
        newest |= {(one.torch_version, one.device): one for one in run.of(RuleProbe).values()}
    return list(newest.values())


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


def _changes(changes: Sequence[tuple[Comparison, RuleChange]]) -> list[Detail]:
    if not changes:
        return []
    block = Block(
        "What changed between the baseline's rules and those of the run",
        ["op or claim", "device", "torch", "what", "before", "after", "autocast to"],
        [_change(*each) for each in changes[:LISTED]],
    )
    return [Detail(name="What changed in autocast's rules", said="", blocks=[block], open=len(changes) <= UNFOLDED)]


def _change(one: Comparison, change: RuleChange) -> list[str]:
    dtypes = ", ".join(SHORT_DTYPES.get(name, name) for name in change.dtypes)
    versions = _versions(one, " → ")
    was, now = worded(change.before), worded(change.after)
    return [short_name(change.op), change.device, versions, change.field, was, now, dtypes or "any"]


def _counts(probe: RuleProbe) -> str:
    counts = Counter(one.kind for one in find_disagreements(probe))
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    return f"{counted(counts.total(), 'disagreement')}{f' ({kinds})' if kinds else ''}"


def _probe(probe: RuleProbe) -> Detail:
    without = ", ".join(map(short_name, probe.without_sample))
    lines = [Block(f"There is no call to try these with: {without}.")] if without else []
    return Detail(name=show.title(probe), said=_counts(probe), blocks=[*show.disagreements(probe), *lines])

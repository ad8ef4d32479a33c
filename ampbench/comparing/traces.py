"""What two runs hold beside measurements: traces of the same cases, probes of autocast's rules on the same devices."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ampbench.comparing.explaining import NOT_TRACED, explanation
from ampbench.comparing.pairing import Pair
from ampbench.errors import NothingComparableError
from ampbench.records.rules import RuleChange
from ampbench.records.runs import CASTS, RULES, deed_of
from ampbench.rules.changes import compare_rules, missing_dtypes, rank, unobserved
from ampbench.store import StoredRun
from ampbench.units import counted
from ampbench.verdicts import Comparison

COMPARED = ("", CASTS, RULES)
"""What runs may explain to be compared; "": they measure."""


def with_explanations(
    comparison: Comparison, pairs: Iterable[Pair], baseline: StoredRun, candidate: StoredRun
) -> Comparison:
    """Return `comparison` with what the runs' probes of rules say, and their traces of the cases in `pairs`.

    Findings stay as they are. Traces of no other case are decoded.
    """
    devices = devices_with_rules(baseline, candidate)
    rules = rule_changes(devices, baseline, candidate)
    return replace(
        comparison,
        rule_changes=rules,
        rule_devices=devices,
        rule_devices_missing=_missing(baseline, candidate),
        rules_unobserved=[
            one for device in devices for one in unobserved(baseline.rules[device], candidate.rules[device])
        ],
        explained={**comparison.explained, **_explained_cases(pairs, baseline, candidate, rules)},
    )


def require_comparable(*runs: StoredRun) -> None:
    """Raise `NothingComparableError` where one of `runs` explains what is shown by itself: all but casts and rules."""
    alone = {stored.header.run: stored.header.explains for stored in runs if stored.header.explains not in COMPARED}
    if alone:
        what = " or ".join(dict.fromkeys(alone.values()))
        show = " and ".join(f"ampbench show {run}" for run in alone)
        raise NothingComparableError(f"runs that explain {what} are not compared: {show}")


def devices_with_rules(baseline: StoredRun, candidate: StoredRun) -> list[str]:
    """Return the device types whose rules both runs have probed in a common dtype."""
    return [
        device
        for device, before in baseline.rules.items()
        if device in candidate.rules and set(before.dtypes) & set(candidate.rules[device].dtypes)
    ]


def rule_changes(devices: Iterable[str], baseline: StoredRun, candidate: StoredRun) -> list[RuleChange]:
    """Return what changed of the rules of `devices`, probed in both runs: what is observed first, claims last."""
    found = [change for one in devices for change in compare_rules(baseline.rules[one], candidate.rules[one])]
    return sorted(found, key=lambda one: (one.field == "claim", rank(one)))


def _missing(baseline: StoredRun, candidate: StoredRun) -> list[str]:
    """Return the device types, and dtypes of one, that only the baseline probed, where the candidate probed some."""
    if not candidate.rules:
        return []
    told = {
        device: missing_dtypes(before, candidate.rules[device]) if device in candidate.rules else device
        for device, before in baseline.rules.items()
    }
    return [said for said in told.values() if said]


def _explained_cases(
    pairs: Iterable[Pair], baseline: StoredRun, candidate: StoredRun, rules: Sequence[RuleChange]
) -> dict[str, list[str]]:
    """Return what the traces of each pair say, and of a run that explains which could not be traced."""
    found = {}
    versions = baseline.header.environment.torch_version, candidate.header.environment.torch_version
    explains = baseline.header.explains, candidate.header.explains
    for pair in pairs:
        if pair.baseline_id in baseline.casts and pair.candidate_id in candidate.casts:
            before, after = baseline.casts[pair.baseline_id], candidate.casts[pair.candidate_id]
            said = explanation(pair.baseline, before, after, rules, versions, measured=not any(explains))
            found[pair.baseline_id] = said
        elif explains == (CASTS, CASTS):
            found[pair.baseline_id] = _not_traced(pair, baseline, candidate)
    return found


def _not_traced(pair: Pair, baseline: StoredRun, candidate: StoredRun) -> list[str]:
    said = []
    for name, stored, case_id in (
        ("baseline", baseline, pair.baseline_id),
        ("candidate", candidate, pair.candidate_id),
    ):
        if case_id not in stored.casts:
            failure, skip = stored.failures.get(case_id), stored.skips.get(case_id)
            why = failure.said if failure else skip.reason if skip else "not reached"
            said.append(f"{NOT_TRACED} in the {name}: {' '.join(why.split())}")
    return said


def nothing_explained(*runs: StoredRun) -> str:
    """Say why runs of which one only explains cannot be compared."""
    said = []
    for stored in runs:
        header = stored.header
        traced = f"traced {counted(len(stored.casts), 'case')}" if stored.casts else "traced no case"
        said.append(f"{header.run} {deed_of(header.explains)} and {traced}")
    return f"the runs have no traced case and no probed rules in common: {'; '.join(said)}"

"""What accounts for a change, in sentences: which ops, dtypes, casts and rules of autocast differ, or that none do.

It is found in what two runs hold beside measurements: traces of the same cases, probes of the same devices.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ampbench.base.units import counted, format_bytes, format_seconds
from ampbench.errors import NothingComparableError
from ampbench.instruments.casts.changes import (
    BACKWARD,
    FORWARD,
    CastChange,
    OpChange,
    TraceChanges,
    bare_name,
    changed_names,
    compare_traces,
    concerned_rules,
    used_names,
)
from ampbench.instruments.check.findings import came_or_went
from ampbench.instruments.rules.findings import compare_rules, missing_dtypes, rank, rule_change_said, unobserved
from ampbench.judge.pairing import Pair
from ampbench.records.case import Case
from ampbench.records.casts import CastPass
from ampbench.records.kinds import CASTS, RULES, deed_of
from ampbench.records.labels import few
from ampbench.records.rules import FAKE, RuleChange, RuleProbe
from ampbench.records.verdicts import Comparison, Explanation, Traces
from ampbench.store import StoredRun

_LISTED = 4
"""So many changes of ops, of casts, and names are said; then how many more there are."""


def explanation(
    case: Case,
    before: CastPass,
    after: CastPass,
    rules: Iterable[RuleChange] = (),
    versions: tuple[str, str] = ("", ""),
    *,
    measured: bool = True,
) -> Explanation:
    """Return which ops, dtypes, casts and `rules` between torch `versions` differ for a case, or "unexplained: …".

    Where no change was `measured`, there is nothing to be explained, and "the same: …" is said.
    """
    changes = compare_traces(before.trace, after.trace)
    rules = list(rules)
    concerned = concerned_rules(changed_names(changes), rules, case.device)
    idle = [
        rule
        for rule in concerned_rules(used_names(before.trace, after.trace), rules, case.device)
        if rule not in concerned
    ]
    said = change_sentences(changes, [bare_name(rule.op) for rule in concerned])
    if changes.nothing and not measured:
        said = [f"the same: {counted(changes.ops_after, 'op')}, {counted(changes.casts_after, 'cast')}"]
    between = f" between torch {versions[0]} and {versions[1]}" if all(versions) else ""
    said += [f"autocast's rule for {rule_change_said(rule)}{between}" for rule in concerned]
    said += [f"autocast's rule for {rule_change_said(rule)}{between}; no difference to this step" for rule in idle]
    if case.path != "eager":
        said.append(f"traced in eager mode, measured {case.path}")
    faked = [name for name, one in (("the baseline", before), ("the candidate", after)) if one.how == FAKE]
    if faked:
        said.append(f"{faked[0] if len(faked) == 1 else 'both sides'} ran on fake tensors, not on hardware")
    return Explanation(Traces.SAME if changes.nothing else Traces.CHANGED, said)


def change_sentences(changes: TraceChanges, first: Iterable[str] = ()) -> list[str]:
    """Return the changes of a trace in sentences, functions whose bare names are in `first` before others.

    Where nothing changed, one says so: "unexplained: …".
    """
    if changes.nothing:
        same = f"{counted(changes.ops_after, 'op')}, {counted(changes.casts_after, 'cast')}"
        left = "sizes, arguments, kernels, libraries, the machine"
        return [f"unexplained: the same ops, dtypes and casts on both sides ({same}); what is left: {left}"]
    return [*_ops_said(changes.ops, set(first)), *_casts_said(changes), *_weights_said(changes)]


def _ops_said(ops: Sequence[OpChange], first: set[str]) -> list[str]:
    ways = {phase: {_way(one) for one in ops if one.phase == phase} for phase in (FORWARD, BACKWARD)}
    told = [one for one in ops if one.phase != BACKWARD or _way(one) not in ways[FORWARD]]
    told.sort(key=lambda one: bare_name(one.function) not in first)
    said = []
    for one in told[:_LISTED]:
        both = one.phase == FORWARD and _way(one) in ways[BACKWARD]
        phase = ", forward and backward" if both else "" if one.phase == FORWARD else f", {one.phase}"
        said.append(f"{bare_name(one.function)}: {_op_said(one)}{_where(one.modules)}{phase}{_seconds_said(one)}")
    rest = [bare_name(one.function) for one in told[_LISTED:]]
    return said + ([f"{counted(len(rest), 'more change')} of ops: {few(rest, _LISTED)}"] if rest else [])


def _way(one: OpChange) -> tuple[object, ...]:
    """Return what a function's forward and backward change have in common where they are told as one."""
    return one.function, one.before, one.after


def _op_said(one: OpChange) -> str:
    before, after = " and ".join(one.before), " and ".join(one.after)
    said = []
    if not one.lost and one.gained:
        said.append(f"{counted(one.gained, 'more op')} in {after} ({few(one.ops_after, _LISTED)})")
    elif one.lost and not one.gained:
        said.append(f"{counted(one.lost, 'op')} in {before} fewer ({few(one.ops_before, _LISTED)})")
    elif before != after:
        said.append(f"{before} → {after}")
    elif one.lost and set(one.ops_before) == set(one.ops_after):
        said.append(f"{few(one.ops_after, _LISTED)} in {after} with other dtypes beside")
    if one.lost and one.gained and set(one.ops_before) != set(one.ops_after):
        said.append(f"{few(one.ops_after, _LISTED)} instead of {few(one.ops_before, _LISTED)}")
    if one.returned_before and ((one.returned_before,), (one.returned_after,)) != (one.before, one.after):
        said.append(f"returns {one.returned_before} → {one.returned_after}")
    return ", ".join(said)


def _where(modules: Sequence[str]) -> str:
    named = [module for module in modules if module]
    if len(modules) == 1:
        return f" in {'module ' if named[0].isdigit() else ''}{named[0]}" if named else ""  # of an nn.Sequential: "20"
    return f" in {counted(len(modules), 'module')}, such as {named[0]}"


def _seconds_said(one: OpChange) -> str:
    if one.seconds_before is None or one.seconds_after is None:
        return ""
    return f" (traced: {format_seconds(one.seconds_before)} → {format_seconds(one.seconds_after)})"


def _casts_said(changes: TraceChanges) -> list[str]:
    if not changes.casts:
        return []
    total = (
        f"{changes.casts_before:,} → {counted(changes.casts_after, 'cast')} a step, "
        f"{format_bytes(changes.bytes_before)} → {format_bytes(changes.bytes_after)}"
    )
    ordered = sorted(changes.casts, key=lambda one: -abs(one.bytes_after - one.bytes_before))
    parts = [_cast_said(one) for one in ordered[:_LISTED]]
    rest = len(ordered) - _LISTED
    return [f"{total}: {'; '.join(parts)}" + (f"; and {counted(rest, 'more way')} of casting" if rest > 0 else "")]


def _cast_said(one: CastChange) -> str:
    many = one.after - one.before
    count = f"{many:+,}" if many else f"{one.after:,}"
    size = "" if many else " of another size"
    whose = "" if one.origin == "autocast" else f" ({one.origin})"
    moved = format_bytes(abs(one.bytes_after - one.bytes_before))
    sign = "+" if one.bytes_after >= one.bytes_before else "-"
    phase = "" if one.phase == FORWARD else f" in the {one.phase}{' pass' if one.phase == BACKWARD else ''}"
    name = f", such as {one.names[0]}" if one.names else ""
    return (
        f"{count} {one.what} {one.from_dtype} → {one.to_dtype}{whose} for {bare_name(one.function)}{phase}{size}, "
        f"{sign}{moved}{name}"
    )


def _weights_said(changes: TraceChanges) -> list[str]:
    return [
        f"{counted(len(one.names), 'weight')} {' and '.join(one.before)} → {' and '.join(one.after)}, "
        f"such as {one.names[0]}"
        for one in changes.weights
    ]


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
            one
            for device in devices
            for one in unobserved(baseline.of(RuleProbe)[device], candidate.of(RuleProbe)[device])
        ],
        explained=_explained_cases(pairs, baseline, candidate, rules),
        defects=came_or_went(baseline, candidate),
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
        for device, before in baseline.of(RuleProbe).items()
        if device in candidate.of(RuleProbe) and set(before.dtypes) & set(candidate.of(RuleProbe)[device].dtypes)
    ]


def rule_changes(devices: Iterable[str], baseline: StoredRun, candidate: StoredRun) -> list[RuleChange]:
    """Return what changed of the rules of `devices`, probed in both runs: what is observed first, claims last."""
    found = [
        change for one in devices for change in compare_rules(baseline.of(RuleProbe)[one], candidate.of(RuleProbe)[one])
    ]
    return sorted(found, key=lambda one: (one.field == "claim", rank(one)))


def _missing(baseline: StoredRun, candidate: StoredRun) -> list[str]:
    """Return the device types, and dtypes of one, that only the baseline probed, where the candidate probed some."""
    if not candidate.of(RuleProbe):
        return []
    told = {
        device: missing_dtypes(before, candidate.of(RuleProbe)[device]) if device in candidate.of(RuleProbe) else device
        for device, before in baseline.of(RuleProbe).items()
    }
    return [said for said in told.values() if said]


def _explained_cases(
    pairs: Iterable[Pair], baseline: StoredRun, candidate: StoredRun, rules: Sequence[RuleChange]
) -> dict[str, Explanation]:
    """Return what the traces of each pair say, and of a run that explains which could not be traced."""
    found = {}
    versions = baseline.header.environment.torch_version, candidate.header.environment.torch_version
    explains = baseline.header.explains, candidate.header.explains
    for pair in pairs:
        if pair.baseline_id in baseline.of(CastPass) and pair.candidate_id in candidate.of(CastPass):
            before, after = baseline.of(CastPass)[pair.baseline_id], candidate.of(CastPass)[pair.candidate_id]
            measured = not any(explains)
            found[pair.baseline_id] = explanation(pair.baseline, before, after, rules, versions, measured=measured)
        elif explains == (CASTS, CASTS):
            found[pair.baseline_id] = _not_traced(pair, baseline, candidate)
    return found


def _not_traced(pair: Pair, baseline: StoredRun, candidate: StoredRun) -> Explanation:
    said = []
    for name, stored, case_id in (
        ("baseline", baseline, pair.baseline_id),
        ("candidate", candidate, pair.candidate_id),
    ):
        if case_id not in stored.of(CastPass):
            failure, skip = stored.failures.get(case_id), stored.skips.get(case_id)
            why = failure.said if failure else skip.reason if skip else "not reached"
            said.append(f"not traced in the {name}: {' '.join(why.split())}")
    return Explanation(Traces.NOT_TRACED, said)


def nothing_explained(*runs: StoredRun) -> str:
    """Say why runs of which one only explains cannot be compared."""
    said = []
    for stored in runs:
        header = stored.header
        traced = f"traced {counted(len(stored.of(CastPass)), 'case')}" if stored.of(CastPass) else "traced no case"
        said.append(f"{header.run} {deed_of(header.explains)} and {traced}")
    return f"the runs have no traced case and no probed rules in common: {'; '.join(said)}"

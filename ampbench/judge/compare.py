"""Compare two runs: which cases became slower, bigger or less accurate, with which certainty, and why.

Traces of the same cases and probes of the same devices explain a change (ops, dtypes, casts, rules of autocast). The
ops of a trace are compared by Python function, module and phase; their order decides neither dtypes nor casts. A module
path on one side only is paired with the next such path of the same function.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from ampbench.core.statement import Statement, state
from ampbench.core.units import counted, format_bytes
from ampbench.errors import NothingComparableError
from ampbench.judge.exact import (
    ThresholdOf,
    accuracy_findings,
    memory_finding,
    other_numbers,
    outcome_finding,
)
from ampbench.judge.pairing import (
    MISSING,
    UUID,
    EnvironmentDifferences,
    arm_settings,
    one_session,
    pair_cases,
)
from ampbench.judge.rounds import FAILED, OK, SKIPPED, MeasuredRun, Pair
from ampbench.judge.times import time_findings
from ampbench.records.case import Case
from ampbench.records.casts import CastPass, CastTrace, bytes_moved, cast_users
from ampbench.records.changes import (
    OUTCOME,
    Caveat,
    Change,
    ChangeStatus,
    Comparison,
    ControlCode,
    ControlVerdict,
    Explanation,
    Side,
    Traces,
    rank,
)
from ampbench.records.kinds import CASTS, CHECK, RULES, deed_of
from ampbench.records.labels import few, kernels_said, not_the_commits
from ampbench.records.rules import FAKE, RuleChange, RuleProbe
from ampbench.store import CUT, StoredRun
from ampbench.studies.check import came_or_went, latest
from ampbench.studies.rules import compare_rules, probed_twice, unobserved
from ampbench.studies.rules import rank as rule_rank

_CHANGED = (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)


def default_threshold(metric: str, case: Case) -> float | None:  # noqa: ARG001 - a `ThresholdOf`
    """Return None: use the thresholds of `metrics.GATED`."""
    return None


def compare(
    baseline: StoredRun,
    candidate: StoredRun,
    threshold_of: ThresholdOf = default_threshold,
) -> Comparison:
    """Return the change of every metric of every case in both runs, the most important first.

    `threshold_of(metric, case)` is the largest ignored relative change; None: the threshold in `metrics.GATED`. Arms of
    one session are compared block by block, other runs as measured one after the other. Runs that explain have traces
    and rules to compare, but no findings. Changed cases are explained if both runs traced them. Raises
    `NothingComparableError` if the runs share no case, no device's rules and no check, or explain anything else, and
    `UsageError` if an arm's settings match several cases.
    """
    runs = (baseline, candidate)
    _require_comparable(*runs)
    headers = (baseline.header, candidate.header)
    ours, theirs = MeasuredRun.of(baseline), MeasuredRun.of(candidate)
    pairs = _pairs(ours, theirs)
    probes = probed_twice(*runs)
    devices = [new.device for _, new in probes]
    checks = len(latest([baseline]).keys() & latest([candidate]).keys())
    if not (pairs or devices or checks):
        raise NothingComparableError(_nothing_in_common(*runs))
    measures = not any(header.explains for header in headers)
    differences = EnvironmentDifferences(
        *headers, devices=[pair.baseline.case.device for pair in pairs] or devices, settings=arm_settings(*headers)
    )
    interleaved = one_session(*headers)
    findings: list[Change] = []
    skipped: dict[str, str] = {}
    control = ControlVerdict(cells=0, fired=False, code=ControlCode.NO_TIMES)
    if measures:
        findings, control, skipped = _findings(pairs, ours, theirs, differences, interleaved, threshold_of)
    changed = {change.case.case_id for change in findings if change.status in _CHANGED}
    rules = sorted((change for pair in probes for change in compare_rules(*pair)), key=rule_rank)
    explained = _explained((pair for pair in pairs if not measures or pair.baseline.case_id in changed), rules)
    if not (measures or explained or devices or checks):
        raise NothingComparableError(_nothing_in_common(*runs))
    compared = {pair.baseline.case_id for pair in pairs}, {pair.candidate.case_id for pair in pairs}
    only = [[case_id for case_id in run.cases if case_id not in ids] for run, ids in zip(runs, compared, strict=True)]
    return Comparison(
        baseline=_side(baseline),
        candidate=_side(candidate),
        interleaved=interleaved,
        apart=measures and not interleaved,
        differences=differences.found,
        control=control,
        findings=findings,
        only_baseline=only[0],
        only_candidate=only[1],
        lost_cases=[case_id for case_id in only[0] if ours.outcome(case_id).name == OK],
        failed=[case_id for case_id in candidate.cases if theirs.outcome(case_id).name == FAILED],
        skipped=skipped,
        other_numbers=[pair.baseline.case_id for pair in pairs if other_numbers(pair)],
        caveats=_caveats(pairs, *runs, differences),
        candidates={old.case_id: new.case for old, new in pairs if new.case_id != old.case_id},
        rule_changes=rules,
        rule_devices=devices,
        rule_devices_missing=[
            device for device in baseline.of(RuleProbe) if device not in devices and candidate.of(RuleProbe)
        ],
        rules_unobserved=[change for pair in probes for change in unobserved(*pair)],
        explained=explained,
        defects=came_or_went(*runs),
        checks=checks,
    )


def compare_times(baseline: MeasuredRun, candidate: MeasuredRun) -> dict[str, Change]:
    """Return the time finding of `compare` for each case that is ok on both sides, by the baseline's case id."""
    headers = (baseline.stored.header, candidate.stored.header)
    pairs = [pair for pair in _pairs(baseline, candidate) if outcome_finding(pair) is None]
    devices = [pair.baseline.case.device for pair in pairs]
    differences = EnvironmentDifferences(*headers, devices=devices, settings=arm_settings(*headers))
    findings, _ = time_findings(pairs, baseline, candidate, differences, one_session(*headers), default_threshold)
    return {finding.case.case_id: finding for finding in findings}


def _pairs(baseline: MeasuredRun, candidate: MeasuredRun) -> list[Pair]:
    """Return the pairs of cases of two runs, with their measurements."""
    settings = arm_settings(baseline.stored.header, candidate.stored.header)
    paired = pair_cases(baseline.stored.cases.values(), candidate.stored.cases.values(), settings)
    return [Pair(baseline.case(ours), candidate.case(theirs)) for ours, theirs in paired]


_OF_CASES = ("only_baseline", "only_candidate", "lost_cases", "failed", "other_numbers")
"""Fields of a comparison that hold ids of cases."""


def narrowed(
    comparison: Comparison, wanted: Callable[[str], bool] = lambda _: True, kinds: Collection[str] | None = None
) -> Comparison:
    """Return a comparison narrowed to cases whose id is `wanted` and to findings of `kinds` (None: all).

    Findings go by the baseline's id; outcomes always stay. Changed rules belong to no case, and stay if `kinds` has
    "rules".
    """
    findings = [finding for finding in comparison.findings if wanted(finding.case.case_id)]
    if kinds is not None:
        findings = [finding for finding in findings if finding.kind in (OUTCOME, *kinds)]
    timed = kinds is None or "time" in kinds
    ids: dict[str, Any] = {name: list(filter(wanted, getattr(comparison, name))) for name in _OF_CASES}
    smaller = replace(
        comparison,
        findings=findings,
        apart=comparison.apart and timed,
        control=comparison.control if timed else ControlVerdict(cells=0, fired=False, code=ControlCode.NO_TIMES),
        skipped={case_id: reason for case_id, reason in comparison.skipped.items() if wanted(case_id)},
        explained={case_id: case for case_id, case in comparison.explained.items() if wanted(case_id)},
        **ids,
    )
    if kinds is None or RULES in kinds:
        return smaller
    return replace(smaller, rule_changes=(), rule_devices=(), rule_devices_missing=(), rules_unobserved=())


def _findings(
    pairs: Sequence[Pair],
    baseline: MeasuredRun,
    candidate: MeasuredRun,
    differences: EnvironmentDifferences,
    interleaved: bool,
    threshold_of: ThresholdOf,
) -> tuple[list[Change], ControlVerdict, dict[str, str]]:
    """Return the pairs' findings, the verdict on the controls, and by id the reasons of cases skipped on both sides."""
    findings: list[Change] = []
    measured, exact, skipped = [], [], {}
    for pair in pairs:
        before, after = pair.baseline.outcome, pair.candidate.outcome
        if before.name == after.name == SKIPPED and not (before.pending or after.pending):
            skipped[pair.baseline.case_id] = before.reason
            continue
        outcome = outcome_finding(pair)
        if outcome is None:
            measured.append(pair)
        else:
            findings.append(outcome)
        if outcome is None or (outcome.status is ChangeStatus.IMPROVED and before.timed):
            exact.append(pair)  # a baseline that failed late still has the numbers it had counted
    times, control = time_findings(measured, baseline, candidate, differences, interleaved, threshold_of)
    findings += times
    for pair in exact:
        same = differences.same(pair.baseline.case.device)
        memory = memory_finding(pair, same, threshold_of)
        findings += [memory] if memory else []
        findings += accuracy_findings(pair, same, threshold_of)
    return sorted(findings, key=rank), control, skipped


def _nothing_in_common(*runs: StoredRun) -> str:
    contents = []
    for stored in runs:
        example, explains = next(iter(stored.cases), None), stored.header.explains
        deed = f"{deed_of(explains)} and has" if explains else "has"
        cases = f"{counted(len(stored.cases), 'case')}, such as {example}" if example else "no case"
        traced = f", {len(stored.of(CastPass)):,} traced" if stored.of(CastPass) else ""
        contents.append(f"{stored.header.run} {deed} {cases}{traced}")
    return f"the runs have nothing in common that can be compared: {'; '.join(contents)}"


def _side(stored: StoredRun) -> Side:
    header = stored.header
    return Side(
        run=header.run,
        path=str(stored.path),
        label=header.label,
        commit=header.commit,
        torch_version=header.environment.torch_version,
        host=header.environment.host,
        arm=tuple(header.arm.given) if header.arm else (),
    )


def _caveats(
    pairs: Iterable[Pair], baseline: StoredRun, candidate: StoredRun, differences: EnvironmentDifferences
) -> list[Statement]:
    """Return caveats on how the runs were measured, on all cases or on some."""
    caveats = [state(Caveat.SAME_RUN)] if baseline.header.run == candidate.header.run else []
    for side, stored in (("baseline", baseline), ("candidate", candidate)):
        if stored.cut:
            caveats.append(state(Caveat.CUT, side=side, why=CUT))
        if not stored.complete:
            caveats.append(state(Caveat.INCOMPLETE, side=side, why=stored.ending))
        if other_code := not_the_commits(stored.header):
            caveats.append(state(Caveat.OTHER_CODE, side=side, why=other_code))
    for card in differences.found:
        if card.name.endswith(f" {UUID}") and MISSING not in (card.baseline, card.candidate):
            caveats.append(state(Caveat.OTHER_CARD, before=card.baseline, after=card.candidate))
    for pair in pairs:
        before, after = pair.baseline.memory, pair.candidate.memory
        if before and after and before.attention is not None and after.attention is not None:
            ours, theirs = kernels_said(before.attention), kernels_said(after.attention)
            if ours != theirs:
                caveats.append(state(Caveat.OTHER_KERNELS, pair.baseline.case_id, before=ours, after=theirs))
    return caveats


def explanation(
    case: Case, before: CastPass, after: CastPass, rules: Iterable[RuleChange] = (), *, measured: bool = True
) -> Explanation:
    """Return the ops, dtypes, casts and `rules` that differ for a case, or "unexplained: …".

    If no change was `measured` and none is traced, the line is "the same: …".
    """
    changes = compare_traces(before.trace, after.trace)
    concerned = concerned_rules(changed_names(changes), rules, case.device)
    lines = change_sentences(changes, [bare_name(rule.op) for rule in concerned])
    if changes.nothing:
        same = f"{counted(len(after.trace.ops), 'op')}, {counted(len(after.trace.casts), 'cast')}"
        unexplained = f"unexplained: the same ops, dtypes and casts on both sides ({same})"
        lines = [unexplained if measured else f"the same: {same}"]
    if case.path != "eager":
        lines.append(f"traced in eager mode, measured {case.path}")
    faked = [name for name, side in (("the baseline", before), ("the candidate", after)) if side.how == FAKE]
    if faked:
        lines.append(f"{faked[0] if len(faked) == 1 else 'both sides'} ran on fake tensors, not on hardware")
    traces = Traces.SAME if changes.nothing else Traces.CHANGED
    return Explanation(traces, lines, concerned)


FORWARD, BACKWARD = "forward", "backward"
_FLOATING = ("fp", "bf", "float", "bfloat", "complex")
_LISTED = 4
"""The largest number of listed changes of ops, of casts, and names; further ones are counted."""

Ops = Counter[tuple[str, tuple[str, ...], tuple[str, ...]]]
"""Counts of ops, without casts, by name, dtypes of inputs and dtypes of outputs."""


@dataclass(frozen=True, slots=True)
class OpChange:
    """A change of `function` (or of an op that no Python function called) in `phase`, equal in all `modules`.

    `before` and `after` hold the ops that ran on one side only.
    """

    function: str
    phase: str
    before: Ops
    after: Ops
    modules: list[str]


class CastKind(NamedTuple):
    """The common properties of casts of one kind; `function` reads the copy."""

    what: str
    from_dtype: str
    to_dtype: str
    origin: str
    phase: str
    function: str


@dataclass(frozen=True, slots=True)
class TraceChanges:
    """The differences between two traces; `casts` are the bytes that each cast of a kind moves, before and after."""

    before: CastTrace
    after: CastTrace
    ops: list[OpChange]
    casts: dict[CastKind, tuple[list[int], list[int]]]

    @property
    def nothing(self) -> bool:
        """Whether both sides do the same."""
        return not (self.ops or self.casts)


def compare_traces(before: CastTrace, after: CastTrace) -> TraceChanges:
    """Return the differences between the traces of one step of a case, before and after."""
    old, new = _casts(before), _casts(after)
    casts = {kind: (old.get(kind, []), new.get(kind, [])) for kind in dict.fromkeys([*new, *old])}
    casts = {kind: two for kind, two in casts.items() if len(two[0]) != len(two[1]) or sum(two[0]) != sum(two[1])}
    return TraceChanges(before, after, _op_changes(before, after), casts)


def computed(ops: Ops) -> tuple[str, ...]:
    """Return the dtypes that ops compute in: of their floating inputs or, without any, of their outputs."""
    dtypes = (_floating(inputs) or _floating(outputs) or outputs for _, inputs, outputs in ops)
    return tuple(dict.fromkeys(chain.from_iterable(dtypes)))


def _returned(ops: Ops) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(_floating(outputs) for _, _, outputs in ops)))


def names(ops: Ops) -> tuple[str, ...]:
    """Return the names of ops, each once."""
    return tuple(dict.fromkeys(name for name, _, _ in ops))


def _table(trace: CastTrace) -> dict[tuple[str, str], dict[str, Ops]]:
    """Return the ops of a trace by function and phase, then by module."""
    casts = {cast.index for cast in trace.casts}
    table: dict[tuple[str, str], dict[str, Ops]] = {}
    for op in trace.ops:
        if op.index not in casts:
            modules = table.setdefault((op.function or op.name, op.phase), {})
            modules.setdefault(op.module, Counter())[op.name, op.inputs, op.outputs] += 1
    return table


def _floating(dtypes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dtype for dtype in dtypes if dtype.startswith(_FLOATING))


def _op_changes(before: CastTrace, after: CastTrace) -> list[OpChange]:
    old, new = _table(before), _table(after)
    op_changes: dict[tuple[object, ...], OpChange] = {}
    for function, phase in dict.fromkeys([*old, *new]):
        for module, was, now in _met(old.get((function, phase), {}), new.get((function, phase), {})):
            lost, gained = was - now, now - was
            if lost or gained:
                key = (function, phase, computed(lost), computed(gained))
                change = op_changes.setdefault(key, OpChange(function, phase, Counter(), Counter(), []))
                change.modules.append(module)
                change.before.update(lost)
                change.after.update(gained)
    return list(op_changes.values())


def _met(ours: dict[str, Ops], theirs: dict[str, Ops]) -> Iterator[tuple[str, Ops, Ops]]:
    """Yield the ops of each module on both sides; modules on one side only are paired in order."""
    others = iter([(module, ops) for module, ops in theirs.items() if module not in ours])
    for module, was in ours.items():
        path, now = (module, theirs[module]) if module in theirs else next(others, (module, Counter()))
        yield path, was, now
    for module, now in others:
        yield module, Counter(), now


def _casts(trace: CastTrace) -> dict[CastKind, list[int]]:
    moved: dict[CastKind, list[int]] = {}
    for cast, used in zip(trace.casts, cast_users(trace), strict=True):
        user = used or trace.ops[cast.index]
        how = cast.what, cast.from_dtype, cast.to_dtype, cast.origin, cast.phase
        moved.setdefault(CastKind(*how, user.function or user.name), []).append(cast.bytes_moved)
    return moved


def concerned_rules(names: Collection[str], rules: Iterable[RuleChange], device: str) -> list[RuleChange]:
    """Return the changes of autocast's rules on `device` for functions and ops with these bare `names`, one per op.

    Observed rules come before registered ones. A rule that came or went with an overload is left out: it does not
    concern the op's other overloads.
    """
    rule_of: dict[str, RuleChange] = {}
    for rule in sorted(rules, key=lambda rule: rule.field != "observed"):
        name, overload = bare_name(rule.op), rule.op.partition(".")[2]
        counts = rule.field in ("observed", "registered") or (rule.field == "op" and not overload)
        if counts and rule.device == device and {name, name.removesuffix("_loss")} & set(names):
            rule_of.setdefault(name, rule)
    return list(rule_of.values())


def changed_names(changes: TraceChanges) -> set[str]:
    """Return the bare names of all functions and ops with changed ops or changed casts of operands."""
    sides = [side for change in changes.ops for side in (change.before, change.after)]
    functions = {change.function for change in changes.ops} | {kind.function for kind in changes.casts}
    return set(map(bare_name, functions.union(*map(names, sides))))


def bare_name(name: str) -> str:
    """Return "rms_norm" for "torch.nn.functional.rms_norm", "aten._rms_norm_" and the rule of "aten::rms_norm.x"."""
    _, qualified, op = name.rpartition("::")
    return (op.partition(".")[0] if qualified else name.rpartition(".")[2]).strip("_")


def change_sentences(changes: TraceChanges, first: Collection[str] = ()) -> list[str]:
    """Return the changes of a trace in lines, functions with bare names in `first` before others.

    A change that is alike in the forward and the backward pass is listed for the forward pass only.
    """
    before, after = changes.before, changes.after
    forward = {_way(change) for change in changes.ops if change.phase == FORWARD}
    listed = [change for change in changes.ops if change.phase != BACKWARD or _way(change) not in forward]
    listed.sort(key=lambda change: bare_name(change.function) not in first)
    lines = list(map(_op_line, listed[:_LISTED]))
    if unlisted := [bare_name(change.function) for change in listed[_LISTED:]]:
        lines.append(f"{counted(len(unlisted), 'more change')} of ops: {few(unlisted, _LISTED)}")
    if changes.casts:
        moved = " → ".join(format_bytes(bytes_moved(trace.casts)) for trace in (before, after))
        ordered = sorted(changes.casts.items(), key=lambda item: -abs(sum(item[1][1]) - sum(item[1][0])))
        kinds = [
            f"{len(now) - len(was):+,} {kind.what} {kind.from_dtype} → {kind.to_dtype} ({kind.origin}) for "
            f"{bare_name(kind.function)}{_phase(kind)}"
            for kind, (was, now) in ordered[:_LISTED]
        ]
        kinds += [f"and {len(ordered) - _LISTED} more ways"] if len(ordered) > _LISTED else []
        lines.append(f"{len(before.casts):,} → {counted(len(after.casts), 'cast')} a step, {moved}: {'; '.join(kinds)}")
    return lines


def _way(change: OpChange) -> tuple[object, ...]:
    """Return a key that the forward and the backward change of a function share if they are alike."""
    return change.function, computed(change.before), computed(change.after)


def _op_line(change: OpChange) -> str:
    """Return a change of ops as "linear: bf16 → fp32 in 25 modules, such as blocks.0"."""
    lost, gained = change.before, change.after
    before, after = " and ".join(computed(lost)), " and ".join(computed(gained))
    listed = [few(names(side), _LISTED) for side in (lost, gained)]
    if not lost or not gained:
        count = f"{counted(gained.total(), 'more op')}" if gained else f"{counted(lost.total(), 'op')} fewer"
        parts = [f"{count} in {after or before} ({''.join(listed)})"]
    else:
        parts = [f"{before} → {after}"] if before != after else []
        parts += [" → ".join(listed)] if listed[0] != listed[1] else []
        parts = parts or [f"returns {' and '.join(_returned(lost))} → {' and '.join(_returned(gained))}"]
    modules = [module for module in change.modules if module]
    where = f" in {counted(len(modules), 'module')}, such as {modules[0]}" if len(modules) > 1 else ""
    if len(modules) == 1:
        where = f" in {'module ' if modules[0].isdigit() else ''}{modules[0]}"  # of an nn.Sequential: "20"
    return f"{bare_name(change.function)}: {', '.join(parts)}{where}{_phase(change)}"


def _phase(change: OpChange | CastKind) -> str:
    return "" if change.phase == FORWARD else f", {change.phase}"


COMPARED = ("", CASTS, CHECK, RULES)
"""The kinds of runs that can be compared; "" is a run that measures."""


def _require_comparable(*runs: StoredRun) -> None:
    """Raise `NothingComparableError` if one of `runs` explains anything but casts, checks and rules."""
    alone = {stored.header.run: stored.header.explains for stored in runs if stored.header.explains not in COMPARED}
    if alone:
        kinds = " or ".join(dict.fromkeys(alone.values()))
        show = " and ".join(f"ampbench show {run}" for run in alone)
        raise NothingComparableError(f"runs that explain {kinds} are not compared: {show}")


def _explained(pairs: Iterable[Pair], rules: Sequence[RuleChange]) -> dict[str, Explanation]:
    """Return the explanation of each traced pair and, in runs that explain casts, of pairs without a trace."""
    explanations = {}
    for pair in pairs:
        explains = {side.run.stored.header.explains for side in pair}
        before, after = (side.run.stored.of(CastPass).get(side.case_id) for side in pair)
        if before and after:
            found = explanation(pair.baseline.case, before, after, rules, measured=explains == {""})
            explanations[pair.baseline.case_id] = found
        elif explains == {CASTS}:
            lines = []
            for name, side, trace in (("baseline", pair.baseline, before), ("candidate", pair.candidate, after)):
                reason = side.outcome.reason if not side.outcome.pending else "not reached"
                lines += [] if trace else [f"not traced in the {name}: {' '.join(reason.split())}"]
            explanations[pair.baseline.case_id] = Explanation(Traces.NOT_TRACED, lines)
    return explanations

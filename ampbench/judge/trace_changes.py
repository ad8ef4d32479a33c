"""Compare two traces of one case: ops, dtypes, casts, and the changed rules that concern them.

A trace is a table of the ops of each Python function in one module and phase; their order decides neither dtypes nor
casts. Rows are paired by the module's path; if a path is on one side only, with the next such row of the same function.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from ampbench.core.units import counted, format_bytes
from ampbench.records.casts import CastTrace, bytes_moved, cast_users
from ampbench.records.labels import few
from ampbench.records.rules import RuleChange

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

"""What two traces of one case do differently: ops, dtypes, casts, weights; and which changed rules are in that.

Ops are compared place by place: a place is what one Python function did in one module and phase. Places meet by the
module's path and, where a path is on one side only, with the next such place of the same function; within a place, ops
count as a bag, since their order decides neither dtypes nor casts. All of it takes linear time. Rules meet a trace by
the names of functions and ops.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ampbench.core.units import counted, format_bytes, format_seconds
from ampbench.records.cast_tables import cast_users
from ampbench.records.casts import CAST, NOT_NEEDED, REUSED, Cast, CastTrace, Operation
from ampbench.records.labels import few
from ampbench.records.rules import RuleChange

FORWARD, BACKWARD = "forward", "backward"
_FLOATING = ("fp", "bf", "float", "bfloat", "complex")
_Place = tuple[str, str, str]
_Signature = tuple[str, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpChange:
    """What `function` (an op's name where none in Python asked for it) does otherwise in `phase`, in all `modules`.

    `before` and `after` are the floating dtypes that the ops concerned compute in: those on one side only, `lost` and
    `gained` of them, named in `ops_before` and `ops_after`. `returned_before` and `returned_after` are the dtypes of
    what it hands on, where that is another ("" where not). Seconds are those of all it did in these modules, casts
    included; None for a trace that was not timed.
    """

    function: str
    phase: str
    modules: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    lost: int
    gained: int
    ops_before: tuple[str, ...] = ()
    ops_after: tuple[str, ...] = ()
    returned_before: str = ""
    returned_after: str = ""
    seconds_before: float | None = None
    seconds_after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CastChange:
    """How many casts of one kind a step makes, and the bytes they read and write, where that is not the same.

    They were made for `function`. `names` are those of the tensors that one side casts more often.
    """

    what: str
    from_dtype: str
    to_dtype: str
    origin: str
    phase: str
    function: str
    before: int
    after: int
    bytes_before: int
    bytes_after: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChange:
    """Weights that reach their ops in another way: their statuses before and after."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceChanges:
    """All that differs between two traces, in the order of running."""

    before: CastTrace
    after: CastTrace
    ops: Sequence[OpChange]
    casts: Sequence[CastChange]
    weights: Sequence[WeightChange]

    @property
    def nothing(self) -> bool:
        """Whether both sides do the same."""
        return not (self.ops or self.casts or self.weights)


def compare_traces(before: CastTrace, after: CastTrace) -> TraceChanges:
    """Return what `after` does otherwise than `before`, both of one step of one case."""
    return TraceChanges(
        before=before,
        after=after,
        ops=_op_changes(before, after),
        casts=_cast_changes(before, after),
        weights=_weight_changes(before, after),
    )


def _op_changes(before: CastTrace, after: CastTrace) -> list[OpChange]:
    old, new = _Side(before), _Side(after)
    groups: dict[tuple[object, ...], list[_Difference]] = {}
    for ours, theirs in _paired(list(old.places), list(new.places)):
        found = _difference(old, new, ours, theirs)
        if found is not None:
            _, phase, function = theirs or ours or ("", "", "")
            groups.setdefault((function, phase, found.before, found.after, found.returned), []).append(found)
    return [_merged(old, new, members) for members in groups.values()]


class _Side:
    """The ops of a trace by place, in the order of running; casts only count in what a place takes and returns."""

    def __init__(self, trace: CastTrace):
        casts = {cast.index for cast in trace.casts}
        self.timed = trace.timed
        self.places: dict[_Place, list[Operation]] = {}
        self.seconds: dict[_Place, float] = {}
        self.returned: dict[_Place, str] = {}
        for operation in trace.ops:
            place = (operation.module, operation.phase, operation.function or operation.name)
            if operation.index not in casts:
                self.places.setdefault(place, []).append(operation)
            self.seconds[place] = self.seconds.get(place, 0.0) + (operation.seconds or 0.0)
            if operation.phase == FORWARD and (dtypes := _floating(operation.outputs)):
                self.returned[place] = dtypes[0]

    def seconds_of(self, places: Iterable[_Place | None]) -> float | None:
        """Return what was done in `places` took, None where that was not timed."""
        return sum(self.seconds.get(place, 0.0) for place in places if place) if self.timed else None


@dataclass(frozen=True, slots=True)
class _Difference:
    """Two places (None: not on that side), the ops that only one of them has, and what they return if not the same."""

    ours: _Place | None
    theirs: _Place | None
    lost: tuple[_Signature, ...]
    gained: tuple[_Signature, ...]
    returned: tuple[str, str]

    @property
    def before(self) -> tuple[str, ...]:
        return _computed(self.lost)

    @property
    def after(self) -> tuple[str, ...]:
        return _computed(self.gained)


def _paired(old: Sequence[_Place], new: Sequence[_Place]) -> list[tuple[_Place | None, _Place | None]]:
    """Return which place is which, in the order of the first; None stands for a place that the other side has not."""
    known, there = set(new), set(old)
    waiting: dict[tuple[str, str], deque[_Place]] = {}
    for place in new:
        if place not in there:
            waiting.setdefault(place[1:], deque()).append(place)
    pairs: list[tuple[_Place | None, _Place | None]] = []
    for place in old:
        if place in known:
            pairs.append((place, place))
        else:
            alike = waiting.get(place[1:])
            pairs.append((place, alike.popleft() if alike else None))
    return pairs + [(None, place) for left in waiting.values() for place in left]


def _difference(old: _Side, new: _Side, ours: _Place | None, theirs: _Place | None) -> _Difference | None:
    before = _signatures(old.places[ours] if ours else [])
    after = _signatures(new.places[theirs] if theirs else [])
    returned = ("", "")
    if ours and theirs and ours in old.returned and theirs in new.returned:
        returned = old.returned[ours], new.returned[theirs]
    if before == after and returned[0] == returned[1]:
        return None
    if returned[0] == returned[1]:
        returned = ("", "")
    lost, gained = tuple((before - after).elements()), tuple((after - before).elements())
    return _Difference(ours, theirs, lost, gained, returned)


def _signatures(ops: Iterable[Operation]) -> Counter[_Signature]:
    return Counter((operation.name, operation.inputs, operation.outputs) for operation in ops)


def _computed(ops: Iterable[_Signature]) -> tuple[str, ...]:
    """Return the dtypes that ops compute in: their floating inputs' or, without any, what they give."""
    found = (_floating(inputs) or _floating(outputs) or outputs for _, inputs, outputs in ops)
    return tuple(dict.fromkeys(dtype for dtypes in found for dtype in dtypes))


def _floating(dtypes: Sequence[str]) -> tuple[str, ...]:
    return tuple(dtype for dtype in dtypes if dtype.startswith(_FLOATING))


def _merged(old: _Side, new: _Side, members: Sequence[_Difference]) -> OpChange:
    first = members[0]
    _, phase, function = first.theirs or first.ours or ("", "", "")
    lost = [name for one in members for name, _, _ in one.lost]
    gained = [name for one in members for name, _, _ in one.gained]
    return OpChange(
        function=function,
        phase=phase,
        modules=tuple(dict.fromkeys(place[0] for one in members if (place := one.theirs or one.ours))),
        before=first.before,
        after=first.after,
        lost=len(lost),
        gained=len(gained),
        ops_before=tuple(dict.fromkeys(lost)),
        ops_after=tuple(dict.fromkeys(gained)),
        returned_before=first.returned[0],
        returned_after=first.returned[1],
        seconds_before=old.seconds_of(one.ours for one in members),
        seconds_after=new.seconds_of(one.theirs for one in members),
    )


def _cast_changes(before: CastTrace, after: CastTrace) -> list[CastChange]:
    old, new = _by_kind(before), _by_kind(after)
    found = []
    for kind in dict.fromkeys([*new, *old]):
        ours, theirs = old.get(kind, []), new.get(kind, [])
        moved = bytes_moved(ours), bytes_moved(theirs)
        if len(ours) == len(theirs) and moved[0] == moved[1]:
            continue
        what, from_dtype, to_dtype, origin, phase, function = kind
        counts = [Counter(cast.name for cast in casts if cast.name) for casts in (theirs, ours)]
        more, fewer = counts if len(theirs) >= len(ours) else reversed(counts)
        names = more - fewer
        found.append(
            CastChange(
                what=what,
                from_dtype=from_dtype,
                to_dtype=to_dtype,
                origin=origin,
                phase=phase,
                function=function,
                before=len(ours),
                after=len(theirs),
                bytes_before=moved[0],
                bytes_after=moved[1],
                names=tuple(names),
            )
        )
    return found


def _by_kind(trace: CastTrace) -> dict[tuple[str, ...], list[Cast]]:
    found: dict[tuple[str, ...], list[Cast]] = {}
    for cast, used in zip(trace.casts, cast_users(trace), strict=True):
        user = used or trace.ops[cast.index]
        kind = (cast.what, cast.from_dtype, cast.to_dtype, cast.origin, cast.phase, user.function or user.name)
        found.setdefault(kind, []).append(cast)
    return found


def _weight_changes(before: CastTrace, after: CastTrace) -> list[WeightChange]:
    old, new = _statuses(before), _statuses(after)
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for name in new:
        if name in old and old[name] != new[name]:
            groups.setdefault((_listed(old[name]), _listed(new[name])), []).append(name)
    return [WeightChange(before=was, after=now, names=tuple(names)) for (was, now), names in groups.items()]


def _statuses(trace: CastTrace) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for use in trace.weights:
        found.setdefault(use.name, set()).add(use.status)
    return found


def _listed(statuses: Collection[str]) -> tuple[str, ...]:
    return tuple(status for status in (CAST, REUSED, NOT_NEEDED) if status in statuses)


def bytes_moved(casts: Iterable[Cast]) -> int:
    """Return the bytes that casts read and write."""
    return sum(cast.bytes_moved for cast in casts)


def concerned_rules(names: Collection[str], rules: Iterable[RuleChange], device: str) -> list[RuleChange]:
    """Return which changes of autocast's rules on `device` are about functions and ops of these bare `names`.

    One of each op: what is observed before what is registered. A rule that came or went with an overload says nothing
    of the op's others, and is left out.
    """
    found: dict[str, RuleChange] = {}
    for rule in rules:
        name, overload = bare_name(rule.op), rule.op.partition(".")[2]
        told = rule.field in ("observed", "registered") or (rule.field == "op" and not overload)
        if told and rule.device == device and {name, name.removesuffix("_loss")} & set(names):
            known = found.setdefault(name, rule)
            if known.field != "observed" and rule.field == "observed":
                found[name] = rule
    return list(found.values())


def changed_names(changes: TraceChanges) -> set[str]:
    """Return the bare names of all functions and ops that do otherwise, or whose operands are cast otherwise."""
    named = [name for one in changes.ops for name in (one.function, *one.ops_before, *one.ops_after)]
    return {bare_name(name) for name in (*named, *(one.function for one in changes.casts))}


def used_names(*traces: CastTrace) -> set[str]:
    """Return the bare names of all functions and ops of traces."""
    named = {name for trace in traces for one in trace.ops for name in (one.name, one.function) if name}
    return set(map(bare_name, named))


def bare_name(name: str) -> str:
    """Return "rms_norm" for "torch.nn.functional.rms_norm", "aten._rms_norm_" and the rule of "aten::rms_norm.x"."""
    _, qualified, op = name.rpartition("::")
    return (op.partition(".")[0] if qualified else name.rpartition(".")[2]).strip("_")


_LISTED = 4
"""The most changes of ops, of casts, and names that are listed; the rest is counted."""


def change_sentences(changes: TraceChanges, first: Iterable[str] = ()) -> list[str]:
    """Return the changes of a trace in lines, functions whose bare names are in `first` before others.

    Of what changed alike in the forward and the backward pass only the former is listed.
    """
    if changes.nothing:
        same = f"{counted(len(changes.after.ops), 'op')}, {counted(len(changes.after.casts), 'cast')}"
        return [f"unexplained: the same ops, dtypes and casts on both sides ({same})"]
    forward = {_way(one) for one in changes.ops if one.phase == FORWARD}
    listed = [one for one in changes.ops if one.phase != BACKWARD or _way(one) not in forward]
    concerned = set(first)
    listed.sort(key=lambda one: bare_name(one.function) not in concerned)
    rest = [bare_name(one.function) for one in listed[_LISTED:]]
    more = [f"{counted(len(rest), 'more change')} of ops: {few(rest, _LISTED)}"] if rest else []
    weights = [
        f"{counted(len(one.names), 'weight')} {' and '.join(one.before)} → {' and '.join(one.after)}, "
        f"such as {one.names[0]}"
        for one in changes.weights
    ]
    return [*map(_op_line, listed[:_LISTED]), *more, *_cast_lines(changes), *weights]


def _way(one: OpChange) -> tuple[object, ...]:
    """Return what a function's forward and backward change have in common."""
    return one.function, one.before, one.after


def _op_line(one: OpChange) -> str:
    """Return a change of ops as "linear: bf16 → fp32 in 25 modules, such as blocks.0 (traced: 1.00 ms → 2.00 ms)"."""
    before, after = " and ".join(one.before), " and ".join(one.after)
    names = [few(ops, _LISTED) for ops in (one.ops_before, one.ops_after)]
    parts = [f"{before} → {after}"] if before != after else []
    parts += [" → ".join(names)] if names[0] != names[1] else []
    if not one.lost:
        parts = [f"{counted(one.gained, 'more op')} in {after} ({names[1]})"]
    elif not one.gained:
        parts = [f"{counted(one.lost, 'op')} fewer in {before} ({names[0]})"]
    if one.returned_before and (one.returned_before, one.returned_after) != (before, after):
        parts.append(f"returns {one.returned_before} → {one.returned_after}")
    modules = [module for module in one.modules if module]
    where = f" in {counted(len(modules), 'module')}, such as {modules[0]}" if len(modules) > 1 else ""
    if len(modules) == 1:
        where = f" in {'module ' if modules[0].isdigit() else ''}{modules[0]}"  # of an nn.Sequential: "20"
    phase = "" if one.phase == FORWARD else f", {one.phase}"
    timed = one.seconds_before is not None and one.seconds_after is not None
    seconds = f" (traced: {format_seconds(one.seconds_before)} → {format_seconds(one.seconds_after)})" if timed else ""
    return f"{bare_name(one.function)}: {', '.join(parts)}{where}{phase}{seconds}"


def _cast_lines(changes: TraceChanges) -> list[str]:
    if not changes.casts:
        return []
    total = (
        f"{len(changes.before.casts):,} → {counted(len(changes.after.casts), 'cast')} a step, "
        f"{format_bytes(bytes_moved(changes.before.casts))} → {format_bytes(bytes_moved(changes.after.casts))}"
    )
    ordered = sorted(changes.casts, key=lambda one: -abs(one.bytes_after - one.bytes_before))
    parts = [
        f"{one.after - one.before:+,} {one.what} {one.from_dtype} → {one.to_dtype} ({one.origin}) for "
        f"{bare_name(one.function)}{'' if one.phase == FORWARD else f', {one.phase}'}"
        for one in ordered[:_LISTED]
    ]
    rest = len(ordered) - _LISTED
    return [f"{total}: {'; '.join(parts)}{f'; and {rest} more ways' if rest > 0 else ''}"]

"""What a trace's casts add up to, per op, module and tensor: pure functions on records."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec import structs

from ampbench.core.units import format_bytes, format_seconds, format_share
from ampbench.records.cast_tables import Saving, cache_bytes
from ampbench.records.casts import (
    CAST,
    NOT_NEEDED,
    REUSED,
    SUBJECTS,
    WEIGHT,
    Cast,
    CastTrace,
    ModuleCalls,
    Operation,
    WeightUse,
)

K = TypeVar("K")

WEIGHT_COLUMNS = (*(field.name for field in structs.fields(WeightUse)), "bytes_written")


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What the `casts` casts of a trace cost, which holds one step.

    `seconds` is None for a trace that was not timed; `share` is that of all ops' seconds (0-1). `by_what`, `by_origin`
    and `by_phase` count casts, `weights` the uses of weights by status. `cache_bytes` is what autocast's cache holds.
    """

    steps: int = 1
    ops: int
    casts: int
    bytes_read: int
    bytes_written: int
    seconds: float | None
    share: float | None
    by_what: Mapping[str, int]
    by_origin: Mapping[str, int]
    by_phase: Mapping[str, int]
    weights: Mapping[str, int]
    cache_bytes: int

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written together."""
        return self.bytes_read + self.bytes_written


def totals(trace: CastTrace) -> Totals:
    """Return what the casts of `trace`, which holds a step, add up to."""
    seconds = share = None
    if trace.timed:
        seconds = sum(cast.seconds or 0.0 for cast in trace.casts)
        whole = sum(operation.seconds or 0.0 for operation in trace.ops)
        share = seconds / whole if whole else None
    return Totals(
        ops=len(trace.ops),
        casts=len(trace.casts),
        bytes_read=sum(cast.bytes_read for cast in trace.casts),
        bytes_written=sum(cast.bytes_written for cast in trace.casts),
        seconds=seconds,
        share=share,
        by_what=Counter(cast.what for cast in trace.casts),
        by_origin=Counter(cast.origin for cast in trace.casts),
        by_phase=Counter(cast.phase for cast in trace.casts),
        weights=Counter(use.status for use in trace.weights),
        cache_bytes=cache_bytes(trace),
    )


def sentence(
    whole: Totals, found: Sequence[Saving], *, of: str = "a step", step_cast_seconds: float | None = None
) -> str:
    """Return "24 casts a step, 43.9 MiB, 11.0% of the traced ops' time (1.20 ms); 3 of them could be saved".

    `of` is what a count is of; `step_cast_seconds` what the casts take of an untraced step, said beside their traced
    time: tracing takes some microseconds an op, which a small step feels.
    """
    parts = [f"{whole.casts} {'cast' if whole.casts == 1 else 'casts'} {of}", format_bytes(whole.bytes_moved)]
    if whole.seconds is not None and whole.casts:
        took = format_seconds(whole.seconds)
        parts.append(f"{format_share(whole.share)} of the traced ops' time ({took})")
        if step_cast_seconds is not None:
            parts.append(f"about {format_seconds(step_cast_seconds)} of the untraced step")
    saved = sum(len(saving.casts) for saving in found)
    return ", ".join(parts) + (f"; {saved} of them could be saved" if saved else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CastGroup:
    """The casts that have `keys` in common: how many, in which phases, what they move and take.

    `dtypes` are the ways taken ("fp32 → bf16"), `seconds` is None for a trace that was not timed.
    """

    keys: tuple[str, ...]
    casts: int
    forward: int
    backward: int
    dtypes: tuple[str, ...]
    bytes_moved: int
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRow:
    """How a weight reached the ops that use it in the forward pass: how many uses by status.

    `cast_bytes` is what its casts read and wrote, `cache_bytes` what of it autocast's cache keeps alive.
    """

    name: str
    cast: int
    reused: int
    not_needed: int
    cast_bytes: int
    cache_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleGroup:
    """Modules that do the same to dtypes: of one kind, called with the same dtypes, in the order of first running.

    Dtypes are told once each; `calls` are those of all modules together, casts those that ran directly in them.
    """

    modules: tuple[str, ...]
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: tuple[str, ...]
    calls: int
    casts: int
    cast_bytes: int
    cast_seconds: float | None


def by_origin(trace: CastTrace) -> list[CastGroup]:
    """Return the casts as (what was cast, who asked), in the order of `SUBJECTS`."""
    groups = _groups(trace, lambda cast: (cast.what, cast.origin))
    return sorted(groups, key=lambda group: SUBJECTS.index(group.keys[0]))


def by_operation(trace: CastTrace) -> list[CastGroup]:
    """Return the casts per op that they were made for, as (op, Python function); the op is "" where it was none."""
    users = dict(zip((cast.index for cast in trace.casts), cast_users(trace), strict=True))

    def keys(cast: Cast) -> tuple[str, ...]:
        user = users[cast.index]
        return (user.name if user else "", (user or trace.ops[cast.index]).function or "")

    return _groups(trace, keys)


def by_tensor(trace: CastTrace) -> list[CastGroup]:
    """Return the casts per tensor, as (what it is, name)."""
    return _groups(trace, lambda cast: (cast.what, cast.name))


def by_weight(trace: CastTrace) -> list[WeightRow]:
    """Return a row per weight, in the order of first use."""
    uses = Counter((use.name, use.status) for use in trace.weights)
    casts = _grouped((cast for cast in trace.casts if cast.what == WEIGHT), lambda cast: cast.name)
    return [
        WeightRow(
            name=name,
            cast=uses[name, CAST],
            reused=uses[name, REUSED],
            not_needed=uses[name, NOT_NEEDED],
            cast_bytes=_bytes(casts.get(name, ())),
            cache_bytes=sum(
                {cast.to_dtype: cast.bytes_written for cast in casts.get(name, ()) if cast.cached}.values()
            ),
        )
        for name in dict.fromkeys(use.name for use in trace.weights)
    ]


def module_groups(trace: CastTrace, *, collapsed: bool = True) -> list[ModuleGroup]:
    """Return what goes in and out of modules by dtype; with `collapsed`, modules that do the same share a row.

    A module that was called with several dtypes has a row for each; the casts are then told in its first.
    """
    groups: dict[Hashable, list[ModuleCalls]] = {}
    for calls in trace.modules:
        groups.setdefault((calls.kind, *_sides(calls)) if collapsed else len(groups), []).append(calls)
    casts = _grouped(trace.casts, lambda cast: cast.module)
    rows = []
    for members in groups.values():
        own = [casts.pop(each.module, []) for each in members]
        inputs, outputs, parameters = _sides(members[0])
        rows.append(
            ModuleGroup(
                modules=tuple(dict.fromkeys(each.module for each in members)),
                kind=members[0].kind,
                inputs=inputs,
                outputs=outputs,
                parameters=parameters,
                calls=sum(each.calls for each in members),
                casts=sum(map(len, own)),
                cast_bytes=sum(map(_bytes, own)),
                cast_seconds=sum(map(_seconds, own), 0.0) if trace.timed else None,
            )
        )
    return rows


def weight_rows(trace: CastTrace) -> list[dict[str, Any]]:
    """Return a row of `WEIGHT_COLUMNS` per forward use of a weight: `WeightUse`, and what the copy wrote in bytes."""
    written = {cast.index: cast.bytes_written for cast in trace.casts}
    return [
        structs.asdict(use)
        | {"bytes_written": written.get(use.cast) if use.status == CAST and use.cast is not None else None}
        for use in trace.weights
    ]


def _groups(trace: CastTrace, keys: Callable[[Cast], tuple[str, ...]]) -> list[CastGroup]:
    rows = [
        CastGroup(
            keys=key,
            casts=len(casts),
            forward=sum(cast.phase == "forward" for cast in casts),
            backward=sum(cast.phase == "backward" for cast in casts),
            dtypes=tuple(dict.fromkeys(f"{cast.from_dtype} → {cast.to_dtype}" for cast in casts)),
            bytes_moved=_bytes(casts),
            seconds=_seconds(casts) if trace.timed else None,
        )
        for key, casts in _grouped(trace.casts, keys).items()
    ]
    return sorted(rows, key=lambda row: (-(row.seconds or 0.0), -row.bytes_moved, row.keys))


def _grouped(casts: Iterable[Cast], key: Callable[[Cast], K]) -> dict[K, list[Cast]]:
    groups: dict[K, list[Cast]] = {}
    for cast in casts:
        groups.setdefault(key(cast), []).append(cast)
    return groups


def _sides(calls: ModuleCalls) -> list[tuple[str, ...]]:
    """Return the dtypes of inputs, outputs and parameters, each once."""
    return [tuple(dict.fromkeys(side)) for side in (calls.inputs, calls.outputs, calls.parameters)]


def _bytes(casts: Iterable[Cast]) -> int:
    return sum(cast.bytes_moved for cast in casts)


def _seconds(casts: Iterable[Cast]) -> float:
    return sum((cast.seconds or 0.0 for cast in casts), 0.0)


def cast_users(trace: CastTrace) -> list[Operation | None]:
    """Return, cast by cast of `trace`, the op that it was made for; None: it is for no op, a copy that is stored.

    That is the op that used the copy. A gradient's cast belongs to the op whose operand's cast it undoes; one that
    undoes none, to the op that made the gradient: the next reader may be GradScaler, which reads all of them.
    """
    ops, casts = trace.ops, {cast.index: cast for cast in trace.casts}
    found: list[Operation | None] = []
    for cast in trace.casts:
        user = cast.operation
        if cast.phase == "backward":
            forward = ops[cast.index].forward
            undone = casts.get(forward) if forward is not None else None
            user = undone.operation if undone is not None else cast.producer
        found.append(ops[user] if user is not None else None)
    return found

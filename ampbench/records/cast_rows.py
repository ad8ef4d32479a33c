"""A trace seen per op, per module and per tensor, as rows. Pure functions on records, without torch."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields
from typing import Any

from ampbench.records.casts import (
    CAST,
    NOT_NEEDED,
    REUSED,
    SUBJECTS,
    WEIGHT,
    Cast,
    CastTrace,
    ModuleCalls,
    WeightUse,
    cast_users,
)


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
class ModuleRow:
    """What ran directly in a module, submodules not counted; seconds are None for a trace that was not timed."""

    module: str
    ops: int
    seconds: float | None
    casts: int
    cast_bytes: int
    cast_seconds: float | None


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


def by_module(trace: CastTrace) -> list[ModuleRow]:
    """Return a row per module in the order of first running, with its own ops and casts, forward and backward."""
    count: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for operation in trace.ops:
        module = operation.module
        count[module] = count.get(module, 0) + 1
        if operation.seconds is not None:
            seconds[module] = seconds.get(module, 0.0) + operation.seconds
    casts: dict[str, list[Cast]] = {}
    for cast in trace.casts:
        casts.setdefault(cast.module, []).append(cast)
    return [
        ModuleRow(
            module=module,
            ops=number,
            seconds=seconds.get(module, 0.0) if trace.timed else None,
            casts=len(casts.get(module, ())),
            cast_bytes=_bytes(casts.get(module, ())),
            cast_seconds=_seconds(casts.get(module, ())) if trace.timed else None,
        )
        for module, number in count.items()
    ]


def by_weight(trace: CastTrace) -> list[WeightRow]:
    """Return a row per weight, in the order of first use."""
    uses: dict[str, dict[str, int]] = {}
    for use in trace.weights:
        counts = uses.setdefault(use.name, {CAST: 0, REUSED: 0, NOT_NEEDED: 0})
        counts[use.status] += 1
    moved: dict[str, int] = {}
    held: dict[str, dict[str, int]] = {}
    for cast in trace.casts:
        if cast.what == WEIGHT:
            moved[cast.name] = moved.get(cast.name, 0) + cast.bytes_moved
            if cast.cached:
                held.setdefault(cast.name, {})[cast.to_dtype] = cast.bytes_written
    return [
        WeightRow(
            name=name,
            cast=counts[CAST],
            reused=counts[REUSED],
            not_needed=counts[NOT_NEEDED],
            cast_bytes=moved.get(name, 0),
            cache_bytes=sum(held.get(name, {}).values()),
        )
        for name, counts in uses.items()
    ]


def module_groups(trace: CastTrace, *, collapsed: bool = True) -> list[ModuleGroup]:
    """Return what goes in and out of modules by dtype; with `collapsed`, modules that do the same share a row.

    A module that was called with several dtypes has a row for each; the casts are then told in its first.
    """
    groups: dict[Hashable, list[ModuleCalls]] = {}
    for calls in trace.modules:
        signature = (calls.kind, *(tuple(dict.fromkeys(side)) for side in _sides(calls)))
        groups.setdefault(signature if collapsed else len(groups), []).append(calls)
    casts = {row.module: row for row in by_module(trace)}
    found = []
    for members in groups.values():
        own = [row for each in members if (row := casts.pop(each.module, None)) is not None]
        inputs, outputs, parameters = (tuple(dict.fromkeys(side)) for side in _sides(members[0]))
        found.append(
            ModuleGroup(
                modules=tuple(dict.fromkeys(each.module for each in members)),
                kind=members[0].kind,
                inputs=inputs,
                outputs=outputs,
                parameters=parameters,
                calls=sum(each.calls for each in members),
                casts=sum(row.casts for row in own),
                cast_bytes=sum(row.cast_bytes for row in own),
                cast_seconds=sum((row.cast_seconds or 0.0 for row in own), 0.0) if trace.timed else None,
            )
        )
    return found


def weight_rows(trace: CastTrace) -> list[dict[str, Any]]:
    """Return a row of `WEIGHT_COLUMNS` per forward use of a weight: `WeightUse`, and what the copy wrote in bytes."""
    written = {cast.index: cast.bytes_written for cast in trace.casts}
    copies = [use.cast if use.status == CAST else None for use in trace.weights]
    return [
        _fields(use) | {"bytes_written": None if cast is None else written.get(cast)}
        for use, cast in zip(trace.weights, copies, strict=True)
    ]


def op_rows(trace: CastTrace) -> list[dict[str, Any]]:
    """Return a row of `OP_COLUMNS` per op; where it is a cast, those of `Cast` tell of it, else they are None."""
    casts = {cast.index: _fields(cast) for cast in trace.casts}
    return [
        {name: getattr(op, name) for name in _OF_OP}
        | {"inputs": ", ".join(op.inputs), "outputs": ", ".join(op.outputs)}
        | {column: casts.get(op.index, {}).get(name) for name, column in _OF_ITS_CAST.items()}
        for op in trace.ops
    ]


def _fields(record: Cast | WeightUse) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


CAST_COLUMNS = tuple(field.name for field in fields(Cast))
WEIGHT_COLUMNS = (*(field.name for field in fields(WeightUse)), "bytes_written")
_OF_OP = (
    "index", "name", "function", "module", "phase", "recomputed", "inputs", "outputs", "source", "seconds",
)  # fmt: skip
_OF_ITS_CAST = {
    name: "tensor_name" if name == "name" else name
    for name in CAST_COLUMNS
    if name not in ("index", "module", "phase", "seconds")
}
OP_COLUMNS = (*_OF_OP, *_OF_ITS_CAST.values())


def _groups(trace: CastTrace, keys: Callable[[Cast], tuple[str, ...]]) -> list[CastGroup]:
    groups: dict[Hashable, list[Cast]] = {}
    for cast in trace.casts:
        groups.setdefault(keys(cast), []).append(cast)
    rows = [
        CastGroup(
            keys=keys(casts[0]),
            casts=len(casts),
            forward=sum(cast.phase == "forward" for cast in casts),
            backward=sum(cast.phase == "backward" for cast in casts),
            dtypes=tuple(dict.fromkeys(f"{cast.from_dtype} → {cast.to_dtype}" for cast in casts)),
            bytes_moved=_bytes(casts),
            seconds=_seconds(casts) if trace.timed else None,
        )
        for casts in groups.values()
    ]
    return sorted(rows, key=lambda row: (-(row.seconds or 0.0), -row.bytes_moved, row.keys))


def _sides(calls: ModuleCalls) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    return calls.inputs, calls.outputs, calls.parameters


def _bytes(casts: Iterable[Cast]) -> int:
    return sum(cast.bytes_moved for cast in casts)


def _seconds(casts: Iterable[Cast]) -> float:
    return sum((cast.seconds or 0.0 for cast in casts), 0.0)

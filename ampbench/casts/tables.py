"""A trace seen per op, per module and per tensor: rows and frames. Pure functions on records, without torch."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields

import pandas as pd

from ampbench.records.casts import Cast, CastTrace


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


def by_operation(trace: CastTrace) -> list[CastGroup]:
    """Return the casts per op that used the copy, as (op, Python function); the op is "" where none did."""
    ops = trace.ops

    def keys(cast: Cast) -> tuple[str, ...]:
        user = ops[cast.operation] if cast.operation is not None else None
        return (user.name if user else "", (user or ops[cast.index]).function or "")

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


def module_frame(trace: CastTrace) -> pd.DataFrame:
    """Return the dtypes in and out of each module: module, kind, inputs, outputs, parameters, calls.

    A module that was called with several dtypes has a row for each; dtypes are joined by ", ".
    """
    columns = ["module", "kind", "inputs", "outputs", "parameters", "calls"]
    rows = []
    for calls in trace.modules:
        dtypes = [", ".join(dict.fromkeys(side)) for side in (calls.inputs, calls.outputs, calls.parameters)]
        rows.append([calls.module, calls.kind, *dtypes, calls.calls])
    return pd.DataFrame(rows, columns=columns)


def cast_frame(trace: CastTrace) -> pd.DataFrame:
    """Return a row per cast, with the columns of `Cast`."""
    columns = {field.name: [getattr(cast, field.name) for cast in trace.casts] for field in fields(Cast)}
    return pd.DataFrame(columns)


def op_frame(trace: CastTrace) -> pd.DataFrame:
    """Return a row per op; where it is a cast, the columns of `Cast` tell of it, else they are None or NaN."""
    ops = trace.ops
    frame = pd.DataFrame(
        {
            "index": [operation.index for operation in ops],
            "name": [operation.name for operation in ops],
            "function": pd.Series([operation.function for operation in ops], dtype=object),
            "module": [operation.module for operation in ops],
            "phase": [operation.phase for operation in ops],
            "recomputed": [operation.recomputed for operation in ops],
            "inputs": [", ".join(operation.inputs) for operation in ops],
            "outputs": [", ".join(operation.outputs) for operation in ops],
            "source": pd.Series([operation.source for operation in ops], dtype=object),
            "seconds": pd.Series([operation.seconds for operation in ops], dtype=float),
        }
    )
    casts = cast_frame(trace).drop(columns=["module", "phase", "seconds"]).rename(columns={"name": "tensor_name"})
    return frame.merge(casts, on="index", how="left")


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


def _bytes(casts: Iterable[Cast]) -> int:
    return sum(cast.bytes_read + cast.bytes_written for cast in casts)


def _seconds(casts: Iterable[Cast]) -> float:
    return sum(cast.seconds or 0.0 for cast in casts)

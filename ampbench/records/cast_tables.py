"""Which casts of a trace could be saved, which are for what op or hide inside, and its ops as rows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from ampbench.records.casts import (
    AUTOCAST,
    BUFFER,
    FLOATING,
    INPUT,
    INTERNAL,
    WEIGHT,
    Cast,
    CastTrace,
    Operation,
    Promotion,
    is_view,
)
from ampbench.records.labels import few

STORE, KEEP, ONCE, STAY = "store", "keep", "once", "stay"
"""Ways to save casts: store the value in the low dtype, keep a weight's copy, cast once, stay in the low dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Casts (their ops) that one change would make unnecessary: `kind` is a key above, `advice` the change.

    `names` are the tensors': all inputs, weights or buffers of one change of one kind, or one activation. `bytes_moved`
    and `seconds` are what the casts cost; the real saving is to be measured.
    """

    kind: str
    what: str
    names: tuple[str, ...]
    casts: tuple[int, ...]
    bytes_moved: int
    seconds: float | None
    advice: str


def bytes_moved(made: Iterable[Cast | Promotion]) -> int:
    """Return the bytes that casts, or conversions inside ops, read and write."""
    return sum(each.bytes_moved for each in made)


def cache_bytes(trace: CastTrace) -> int:
    """Return the bytes of the copies that autocast's cache keeps until its region ends, each weight's once.

    A weight that an optimizer has changed is another value of the same weight, in another region.
    """
    held = {(cast.name or cast.tensor, cast.to_dtype): cast.bytes_written for cast in trace.casts if cast.cached}
    return sum(held.values())


def savings(trace: CastTrace) -> list[Saving]:
    """Return possible savings, the largest first; a cast is counted in one only.

    An input that every op casts could be stored in that dtype; a weight that autocast's cache does not hold is cast at
    each use; a value cast twice to one dtype could be cast once; a copy that is cast back could have stayed. In
    inference, a weight or a buffer that no op reads as it is could be stored in the dtype it is cast to; training
    updates it in fp32. Casts inside an op's implementation cannot be saved.
    """
    groups: dict[tuple[str, str, str, int], list[Cast]] = {}
    by_index = {cast.index: cast for cast in trace.casts}
    seen: set[tuple[int, str]] = set()
    for cast in trace.casts:
        kind = None if cast.origin == INTERNAL else _kind(cast, seen, by_index, trace.inference)
        seen.add((cast.tensor, cast.to_dtype))
        if kind is not None:
            together = cast.name and cast.what in (INPUT, WEIGHT, BUFFER)
            groups.setdefault((kind, cast.what, cast.to_dtype, 0 if together else cast.tensor), []).append(cast)
    found = [
        Saving(
            kind=kind,
            what=what,
            names=tuple(dict.fromkeys(cast.name for cast in casts)),
            casts=tuple(cast.index for cast in casts),
            bytes_moved=bytes_moved(casts),
            seconds=sum(cast.seconds or 0.0 for cast in casts) if trace.timed else None,
            advice=_advice(kind, casts),
        )
        for (kind, what, _, _), casts in groups.items()
    ]
    return sorted(found, key=lambda saving: (-(saving.seconds or 0.0), -saving.bytes_moved, saving.casts))


def _kind(cast: Cast, seen: set[tuple[int, str]], by_index: Mapping[int, Cast], inference: bool) -> str | None:
    if cast.what == INPUT and cast.origin == AUTOCAST and not cast.read_as_is and _lowers(cast):
        return STORE
    if (cast.tensor, cast.to_dtype) in seen and not cast.cached:
        return KEEP if cast.what == WEIGHT else ONCE
    kept = inference and cast.what in (WEIGHT, BUFFER)
    if kept and cast.origin == AUTOCAST and not cast.read_as_is and _lowers(cast):
        return STORE
    maker = by_index.get(cast.made_by) if cast.made_by is not None else None
    if maker is not None and maker.from_dtype == cast.to_dtype and cast.phase == maker.phase:
        return STAY
    return None


def _lowers(cast: Cast) -> bool:
    return cast.bytes_written < cast.bytes_read


def _advice(kind: str, casts: Sequence[Cast]) -> str:
    cast = casts[0]
    named = _named(casts)
    if kind == STORE:
        them = "it" if len({cast.name for cast in casts}) == 1 else "them"
        return f"store {named} in {cast.to_dtype}: no op reads {them} uncast"
    if kind == KEEP:
        return (
            f"keep the copy of {named}, which autocast's cache does not hold: it holds fp32 leaves that require grad, "
            "outside inference mode"
        )
    if kind == ONCE:
        return f"cast {named} to {cast.to_dtype} once and pass the copy on: it is cast more than once"
    return f"{named} goes from {cast.to_dtype} to {cast.from_dtype} and back: one of its ops could stay"


def _named(casts: Sequence[Cast]) -> str:
    """Return "weight fc.weight" or "10 weights (conv1.weight, fc.weight and 8 more)"."""
    what = casts[0].what
    names = list(dict.fromkeys(cast.name for cast in casts))
    if names in ([""], [what]):
        return f"the {what}{'' if names[0] else ' without a name'}"
    if len(names) == 1:
        return f"{what} {names[0]}"
    return f"{len(names)} {what}s ({few(names)})"


def cast_users(trace: CastTrace) -> list[Operation | None]:
    """Return, cast by cast of `trace`, the op that it was made for; None: it is for no op, a copy that is stored.

    That is the op that used the copy. A gradient's cast belongs to the op whose operand's cast it undoes; one that
    undoes none, to the op that made the gradient: the next reader may be GradScaler, which reads all of them.
    """
    ops, casts = trace.ops, {cast.index: cast for cast in trace.casts}
    users: list[Operation | None] = []
    for cast in trace.casts:
        user = cast.operation
        if cast.phase == "backward":
            forward = ops[cast.index].forward
            undone = casts.get(forward) if forward is not None else None
            user = undone.operation if undone is not None else cast.producer
        users.append(ops[user] if user is not None else None)
    return users


def casts_inside(trace: CastTrace) -> Counter[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Return how often which op gives another floating dtype than all it was given, without a cast that is seen.

    An op that makes a tensor of its own ("zeros_like") or shows the same bytes as another dtype casts nothing.
    """
    casts = {cast.index for cast in trace.casts}
    found: Counter[tuple[str, tuple[str, ...], tuple[str, ...]]] = Counter()
    for operation in trace.ops:
        given, made = floating(operation.inputs), floating(operation.outputs)
        if operation.index in casts or not given or not made or set(given) & set(made):
            continue
        name = operation.name.partition(".")[2] or operation.name
        if not (is_view(operation.name) or name.endswith("_like") or name.startswith(("new_", "_efficientzerotensor"))):
            found[name, given, made] += 1
    return found


def floating(dtypes: Iterable[str]) -> tuple[str, ...]:
    """Return those of autocast and mixed precision, each once."""
    return tuple(dict.fromkeys(dtype for dtype in dtypes if dtype in FLOATING))


def op_rows(trace: CastTrace) -> list[dict[str, Any]]:
    """Return a row of `OP_COLUMNS` per op; columns of `Cast` are None for an op that is no cast."""
    casts = {cast.index: structs.asdict(cast) for cast in trace.casts}
    return [
        {name: getattr(op, name) for name in _OF_OP}
        | {"inputs": ", ".join(op.inputs), "outputs": ", ".join(op.outputs)}
        | {column: casts.get(op.index, {}).get(name) for name, column in _OF_ITS_CAST.items()}
        for op in trace.ops
    ]


CAST_COLUMNS = tuple(field.name for field in structs.fields(Cast))
_OF_OP = (
    "index", "name", "function", "module", "phase", "recomputed", "inputs", "outputs", "source", "seconds",
)  # fmt: skip
_OF_ITS_CAST = {
    name: "tensor_name" if name == "name" else name
    for name in CAST_COLUMNS
    if name not in ("index", "module", "phase", "seconds")
}
OP_COLUMNS = (*_OF_OP, *_OF_ITS_CAST.values())

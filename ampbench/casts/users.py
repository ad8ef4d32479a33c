"""For which op a cast was made. Pure functions on records, without torch."""

from ampbench.records.casts import CastTrace, Operation


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

"""Who asked for a cast: autocast, the user's code, or an op's implementation."""

import torch

from ampbench.explain.calls import UPCASTING, Call
from ampbench.explain.values import CastRow, Value
from ampbench.records.casts import AUTOCAST, EXPLICIT, INTERNAL

_HALVES = frozenset({torch.float16, torch.bfloat16})


def origin_of(
    call: Call | None,
    autocast: tuple[str, ...],
    value: Value,
    source: torch.Tensor,
    dtype: torch.dtype,
    undone: CastRow | None,
) -> str:
    """Return who asked for a cast of `source`, which is `value`, to `dtype`; `undone` is the forward cast it undoes.

    Autocast, on for the devices `autocast` between calls, casts what an op is given, on the way in; a cast is an op's
    own where autocast is off or never casts such dtypes, and where a function of `UPCASTING` leaves the low dtype again
    or returns to it.
    """
    if call is not None and call.explicit:
        return EXPLICIT
    if undone is not None:
        return str(undone.origin)
    on = call.autocast if call is not None else autocast
    if source.device.type not in on:
        return INTERNAL
    low = torch.get_autocast_dtype(source.device.type)
    if {source.dtype, dtype} - {torch.float32, *_HALVES, low}:
        return INTERNAL  # autocast leaves fp64 and integers alone
    if call is not None and getattr(call.function, "__name__", "") in UPCASTING:
        made_here = value.call == call.number
        return INTERNAL if dtype is not low or made_here else AUTOCAST
    return AUTOCAST

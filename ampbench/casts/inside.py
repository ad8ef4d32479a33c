"""Ops that cast inside their kernels, which a trace cannot count. Pure functions on records, without torch."""

from collections import Counter

from ampbench.casts.families import FLOATING, is_view
from ampbench.records.casts import CastTrace
from ampbench.units import counted


def casts_inside(trace: CastTrace) -> list[str]:
    """Return a sentence per op that gives another floating dtype than all it was given, without a cast that is seen.

    "_transformer_encoder_layer_fwd: fp32 in, bf16 out, cast inside 2 ops and in no count". An op that makes a tensor of
    its own ("zeros_like") or shows the same bytes as another dtype casts nothing.
    """
    casts = {cast.index for cast in trace.casts}
    found: Counter[tuple[str, tuple[str, ...], tuple[str, ...]]] = Counter()
    for operation in trace.ops:
        given, made = _floating(operation.inputs), _floating(operation.outputs)
        if operation.index in casts or not given or not made or set(given) & set(made):
            continue
        name = operation.name.partition(".")[2] or operation.name
        if not (is_view(operation.name) or name.endswith("_like") or name.startswith(("new_", "_efficientzerotensor"))):
            found[name, given, made] += 1
    return [
        f"{name}: {' and '.join(given)} in, {' and '.join(made)} out, "
        f"cast inside {counted(count, 'op')} and in no count"
        for (name, given, made), count in found.items()
    ]


def _floating(dtypes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(dtype for dtype in dtypes if dtype in FLOATING))

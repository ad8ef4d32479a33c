"""Casts that a trace cannot count: inside kernels, and in parts that hardware has not. Functions on records, no torch.

Fake tensors have no fused kernels: what hardware runs whole, they take apart into ops that cast where it does not.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from ampbench.casts.families import FLOATING, is_view
from ampbench.records.casts import CastTrace
from ampbench.units import counted


class Whole(NamedTuple):
    """What runs a function in one kernel, on which devices, in words; `lowers`: autocast casts all it is given."""

    devices: Collection[str]
    said: str
    lowers: bool = False


_RECURRENT = Whole(
    ("cuda",), "cuDNN's `_cudnn_rnn`, for which autocast casts input, states and weights once", lowers=True
)
WHOLE: Mapping[str, Whole] = {
    "scaled_dot_product_attention": Whole(
        ("cuda", "xpu"), "flash or memory-efficient attention, which casts nothing inside, where it takes these shapes"
    ),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _RECURRENT),
}
"""Functions of torch that are composite, by their names: what a device has for them, and what that casts."""


def stood_for(trace: CastTrace, device: str) -> list[str]:
    """Return a sentence per function of `WHOLE` in a trace on fake tensors of `device`: told as one op, or in parts."""
    whole = Counter(op.name.rpartition(".")[2] for op in trace.ops)
    parts = {(op.function or "").rpartition(".")[2] for op in trace.ops}
    found = []
    for name, kernel in WHOLE.items():
        if device in kernel.devices and whole[name]:
            found.append(
                f"told as the one op that {device} has for it: {name} ({counted(whole[name], 'call')}), {kernel.said}"
            )
        elif device not in kernel.devices and name in parts:
            found.append(f"fake tensors take {name} apart: {device} may run it whole, with fewer casts")
    return found


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

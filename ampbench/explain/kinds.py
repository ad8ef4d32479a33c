"""What an op is, as far as a trace must know: from its schema and from what the dispatcher has registered."""

import functools
from typing import Any, NamedTuple

import torch

from ampbench.records.environments import AUTOCAST_DEVICES

_SILENT = frozenset({"profiler", "prim"})
"""Marks for the profiler and questions about a tensor: no ops."""

_LEAVES = frozenset({"aten", "prims"}) | _SILENT
_FUSED = frozenset({"aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"})
"""Ops outside the first namespaces, and these, have kernels that call other ops, which autocast then casts."""

_COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._foreach_copy_.default)

_BACKENDS = (*(device.upper() for device in AUTOCAST_DEVICES), "CompositeExplicitAutograd")


class Kind(NamedTuple):
    """What an op is: its short name, whether it casts, decomposes, or writes (which arguments).

    `copies`: it writes its second argument, a tensor or a list, into its first, which may have another dtype.
    `autocast` names the devices where it has a rule; `opaque`: it has none, and its kernel may call ops that have;
    `silent`: it is not worth recording.
    """

    name: str
    casts: bool
    copies: bool
    decomposes: bool
    writes: tuple[int | str, ...]
    autocast: tuple[str, ...]
    opaque: bool
    silent: bool


@functools.cache
def op_kind(func: Any) -> Kind:
    """Return what the op `func`, an overload, is."""
    qualified = func.name()
    has = torch._C._dispatch_has_kernel_for_dispatch_key if func.namespace != "prim" else _never
    composite = has(qualified, "CompositeImplicitAutograd") and not any(has(qualified, key) for key in _BACKENDS)
    writes: list[int | str] = []
    if func._schema.is_mutable:
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                writes.append(argument.name if argument.kwarg_only else position)
    autocast = tuple(device for device in AUTOCAST_DEVICES if has(qualified, f"Autocast{device.upper()}"))
    return Kind(
        name=str(func.overloadpacket),
        casts=func is torch.ops.aten._to_copy.default,
        copies=func in _COPIES,
        decomposes=composite,
        writes=tuple(writes),
        autocast=autocast,
        silent=func.namespace in _SILENT,
        opaque=not autocast and not composite and (func.namespace not in _LEAVES or qualified in _FUSED),
    )


def _never(*_: str) -> bool:
    return False

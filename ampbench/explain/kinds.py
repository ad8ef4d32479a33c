"""What an op is, as far as a trace must know: from its schema and from what the dispatcher has registered."""

import functools
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from ampbench.records.environments import AUTOCAST_DEVICES

_SILENT = frozenset({"profiler", "prim"})
"""Marks for the profiler and questions about a tensor: no ops."""

_LEAVES = frozenset({"aten", "prims"}) | _SILENT
_OPENED = frozenset(
    {
        *("aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention", "aten::_trilinear"),
        *("aten::affine_grid_generator", "aten::linalg_pinv.atol_rtol_tensor", "aten::linalg_polar"),
    }
)
"""Ops outside the first namespaces, and these, run products in their kernels, which autocast then casts."""

_ALGEBRA = ("aten::linalg_", "aten::_linalg_")

_COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._foreach_copy_.default)

_LAZY = tuple(getattr(torch._C.DispatchKey, key) for key in ("Conjugate", "Negative", "ZeroTensor"))
"""What the dispatcher does with a tensor that is conjugated or negated only by name; switched off in a mode's code."""


class Kind(NamedTuple):
    """What an op is: its short name, whether it casts, is composite, or writes (which arguments).

    `copies`: it writes its second argument, a tensor or a list, into its first, which may have another dtype.
    `composite`: it is other ops, but on the devices in `kernels`, which have one of their own for it.
    `autocast` names the devices where it has a rule; `nested`: its kernel may call other ops; `opaque`: even ops that
    have a rule, where it has none; `silent`: it is not worth recording.
    """

    name: str
    casts: bool
    copies: bool
    composite: bool
    kernels: tuple[str, ...]
    writes: tuple[int | str, ...]
    autocast: tuple[str, ...]
    nested: bool
    opaque: bool
    silent: bool

    def decomposes(self, args: Any, kwargs: Any) -> bool:
        """Tell whether the op, called with these arguments, is nothing but other ops, which a mode sees one by one."""
        if not self.composite or not self.kernels:
            return self.composite
        leaves = (*args, *kwargs.values())
        return not any(leaf.device.type in self.kernels for leaf in leaves if isinstance(leaf, torch.Tensor))


@functools.cache
def op_kind(func: Any) -> Kind:
    """Return what the op `func`, an overload, is."""
    qualified = func.name()
    has = torch._C._dispatch_has_kernel_for_dispatch_key if func.namespace != "prim" else _never
    explicit = has(qualified, "CompositeExplicitAutograd")
    composite = has(qualified, "CompositeImplicitAutograd") and not explicit
    casts = func is torch.ops.aten._to_copy.default
    writes: list[int | str] = []
    if func._schema.is_mutable:
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                writes.append(argument.name if argument.kwarg_only else position)
    autocast = tuple(device for device in AUTOCAST_DEVICES if has(qualified, f"Autocast{device.upper()}"))
    opaque = not autocast and not composite and (func.namespace not in _LEAVES or qualified in _OPENED)
    return Kind(
        name=str(func.overloadpacket),
        casts=casts,
        copies=func in _COPIES,
        composite=composite,
        kernels=tuple(device for device in AUTOCAST_DEVICES if has(qualified, device.upper())) if composite else (),
        writes=tuple(writes),
        autocast=autocast,
        silent=func.namespace in _SILENT,
        nested=opaque or (explicit and not casts) or qualified.startswith(_ALGEBRA),
        opaque=opaque,
    )


def take_apart(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the op `func`, which decomposes, by the kernel that runs without a mode, and return its result.

    `func.decompose` would rather have torch's decompositions in Python, where there is one (interpolation, recurrent
    networks, matmul, stft): other ops, other casts, other last bits.
    """
    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def resolving() -> AbstractContextManager[Any]:
    """Return what makes kernels that run in a mode's code see a tensor conjugated by name as they do outside of it."""
    exclude = torch._C._dispatch_tls_local_exclude_set()
    for key in _LAZY:
        exclude = exclude.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), exclude)


def _never(*_: str) -> bool:
    return False

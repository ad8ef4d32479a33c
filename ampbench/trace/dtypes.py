"""Dtypes, devices and ops as autocast sees them: short names, present devices, facts from op schemas.

Where a device is absent, fake tensors and autocast's own switches stand in for it. Every timed step imports this; so it
imports little but torch.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from ampbench.core.precisions import SHORT_DTYPES, Precision
from ampbench.records.case import AUTOCAST_DEVICES


def floating_dtypes(tree: Any) -> tuple[torch.dtype, ...]:
    """Return the dtypes of the floating tensors in `tree`, in order."""
    leaves = pytree.tree_leaves(tree)
    return tuple(leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point())


@functools.cache
def short_dtype(dtype: torch.dtype) -> str:
    """Return "fp32" for torch.float32, "int64" for torch.int64."""
    name = str(dtype).removeprefix("torch.")
    return SHORT_DTYPES.get(name, name)


HALVES = (torch.float16, torch.bfloat16)

_FAKE_LOGGER = logging.getLogger("torch._subclasses.fake_tensor")


def is_present(device: str) -> bool:
    """Tell whether ops can run on `device` here."""
    if device == "cpu":
        return True
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator is not None and accelerator.type == device


@contextlib.contextmanager
def stood_in(device: str) -> Iterator[None]:
    """Within, tensors on `device` can be made and used: real ones, or fake ones where the device is absent."""
    if is_present(device):
        yield
        return
    silent = _FAKE_LOGGER.disabled
    _FAKE_LOGGER.disabled = True  # it prints a traceback for each op that refuses its inputs
    try:
        with FakeTensorMode(allow_fallback_kernels=False):
            yield
    finally:
        _FAKE_LOGGER.disabled = silent


def autocast_of(row: Precision, device: str, *, absent: bool = False) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function that enters autocast as `row` demands; with `absent`, on an absent device."""
    if row.autocast is None:
        return contextlib.nullcontext
    region = autocast_to if absent else torch.autocast
    return functools.partial(region, device, dtype=getattr(torch, row.autocast))


@contextlib.contextmanager
def autocast_to(device: str, dtype: torch.dtype, enabled: bool = True) -> Iterator[None]:
    """Enter autocast: as users do where the device is present, else by the switches that `torch.autocast` sets.

    `torch.autocast` disables itself for an absent device; the switches below it do not. They are put back.
    """
    if is_present(device):
        with torch.autocast(device, dtype=dtype, enabled=enabled):
            yield
        return
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, enabled)
    torch.set_autocast_dtype(device, dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])


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

_POINTWISE = ("aten::rsub.Tensor",)
"""Ops that compute element by element and have no tag that says so."""

_ALGEBRA = ("aten::linalg_", "aten::_linalg_")

_COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._foreach_copy_.default)

_LAZY = tuple(getattr(torch._C.DispatchKey, key) for key in ("Conjugate", "Negative", "ZeroTensor"))
"""What the dispatcher does with a tensor that is conjugated or negated only by name; switched off in a mode's code."""


class Kind(NamedTuple):
    """What an op is: its short name, whether it casts, is composite, or writes (which arguments).

    `copies`: it writes its second argument, a tensor or a list, into its first, which may have another dtype.
    `composite`: it is other ops, but on the devices in `kernels`, which have one of their own for it.
    `autocast` names the devices where it has a rule; `nested`: its kernel may call other ops; `opaque`: even ops that
    have a rule, where it has none; `silent`: it is not worth recording. `promotes`: it computes element by element,
    in the widest dtype that it is given.
    """

    name: str
    casts: bool = False
    copies: bool = False
    composite: bool = False
    kernels: tuple[str, ...] = ()
    writes: tuple[int | str, ...] = ()
    autocast: tuple[str, ...] = ()
    nested: bool = False
    opaque: bool = False
    silent: bool = False
    promotes: bool = False

    def decomposes(self, args: Any, kwargs: Any) -> bool:
        """Return whether the op, with these arguments, consists of other ops, which a mode sees one by one."""
        if not self.composite or not self.kernels:
            return self.composite
        leaves = (*args, *kwargs.values())
        return not any(leaf.device.type in self.kernels for leaf in leaves if isinstance(leaf, torch.Tensor))


@functools.cache
def op_kind(func: Any) -> Kind:
    """Return the kind of the op `func`, an overload."""
    if not hasattr(func, "_schema"):  # a higher-order operator
        return Kind(f"higher_order.{func}")
    qualified = func.name()
    has = torch._C._dispatch_has_kernel_for_dispatch_key if func.namespace != "prim" else lambda *_: False
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
        promotes=torch.Tag.pointwise in func.tags or qualified in _POINTWISE,
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
    """Return a context in which kernels in a mode's code see lazily conjugated tensors as outside of it."""
    exclude = torch._C._dispatch_tls_local_exclude_set()
    for key in _LAZY:
        exclude = exclude.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), exclude)

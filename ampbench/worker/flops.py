"""The floating-point operations that a step's algorithm asks for, by the dtype of what is multiplied."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ampbench.explain.dtypes import short_dtype
from ampbench.explain.kinds import op_kind, resolving, take_apart
from ampbench.records.environments import AUTOCAST_DEVICES

_Arguments = Sequence[Any]
_aten = torch.ops.aten


def count_flops(run: Callable[[], Any], *, tf32: bool = False) -> dict[str, int] | None:
    """Return the FLOPs of what `run` does by dtype ("bf16"); with `tf32`, those of fp32 are "tf32"'s.

    A multiply-add is two, and counted are matrix products, convolutions and attention, by `torch.utils.flop_counter`'s
    formulas of shapes: what a mask leaves out is counted; what is only added or compared is not, nor, as in torch, the
    ops mv, addmv, dot and vdot, `torch.nn.Bilinear`, cdist and linear algebra. Beyond torch's own count, the fused
    kernels of recurrent networks and of encoder layers count, and the groups of a convolution divide its weights'
    gradient. Call it with `torch.no_grad` rather than inference mode, in which autocast is out of sight.

    {} where nothing that is counted runs; None where something runs whose operations cannot be counted. Where the
    counter itself is in the way, `run` is run once more without it. Code compiled by torch.compile runs uncompiled
    meanwhile.
    """
    counter = _Counter()
    hook = register_module_forward_pre_hook(lambda *_: counter.look())
    try:
        with counter:
            run()
    except Exception:  # noqa: BLE001 - whatever is not the counter's fault is raised again here
        hook.remove()
        run()
        return None
    finally:
        hook.remove()
    if counter.uncounted:
        return None
    return {"tf32" if tf32 and dtype == "fp32" else dtype: count for dtype, count in counter.flops.items()}


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every op and counts its FLOPs in `flops`; `uncounted` names those that cannot be counted.

    `lowered` is what autocast casts to, by device, where a module was last called: in a mode's code it is off.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops: Counter[str] = Counter()
        self.uncounted: list[str] = []
        self.lowered: dict[str, torch.dtype] = {}

    def look(self) -> None:
        """Remember on which devices autocast is on now, and what it casts to."""
        enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
        self.lowered = {device: dtype(device) for device in AUTOCAST_DEVICES if enabled(device)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op, in parts where it has no formula but parts, and count it."""
        kwargs = kwargs or {}
        if any(kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for kind in types):
            return NotImplemented  # a subclass runs ops on plain tensors, which come here in their turn
        called = getattr(func, "overloadpacket", func)
        plain = isinstance(func, torch._ops.OpOverload)
        known = called in _OURS or called in flop_registry
        if not known and plain and op_kind(func).decomposes(args, kwargs):
            with self, resolving():
                return take_apart(func, *args, **kwargs)
        out = func(*args, **kwargs)
        if known:
            ours = _OURS.get(called)
            try:
                count = ours(args, out) if ours else flop_registry[called](*args, **kwargs, out_val=out)
            except Exception:  # noqa: BLE001 - a layout that the formula does not know, such as a nested tensor's
                self.uncounted.append(str(called))
            else:
                self.flops[self._dtype(called, (args, kwargs))] += count
        elif not plain:
            self.uncounted.append(str(called))
        return out

    def _dtype(self, called: Any, tree: Any) -> str:
        """Return the short dtype of the first floating tensor an op is given, of the first tensor where none is.

        Of `_LOWERED`, it is that which autocast casts the operands of the products inside to.
        """
        tensors = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
        first = next((tensor for tensor in tensors if tensor.is_floating_point()), tensors[0])
        if called in _LOWERED and first.dtype is torch.float32:
            return short_dtype(self.lowered.get(first.device.type, first.dtype))
        return short_dtype(first.dtype)


def _products(given: torch.Tensor, weights: Sequence[torch.Tensor]) -> int:
    """Return the FLOPs of multiplying every position of `given`, whose last dimension are features, by each matrix."""
    positions = given.numel() // given.shape[-1]
    return 2 * positions * sum(weight.numel() for weight in weights if weight.ndim == 2)


def _recurrent(args: _Arguments, _: Any) -> int:
    """Count all layers' products: (input, list of weights, …)."""
    return _products(args[0], args[1])


def _recurrent_backward(args: _Arguments, _: Any) -> int:
    """Count the gradients of inputs and states, which are always made, and those of weights where they are asked for.

    The last argument says of input, states, cells and weights whether they are.
    """
    return (2 if args[-1][3] else 1) * _products(args[0], args[1])


def _recurrent_layer(args: _Arguments, _: Any) -> int:
    """Count one layer's products: (input, weights of inputs, weights of states, …)."""
    return _products(args[0], args[1:3])


def _recurrent_layer_backward(args: _Arguments, _: Any) -> int:
    return 2 * _recurrent_layer(args, _)


def _self_attention(given: torch.Tensor) -> int:
    """Return the FLOPs of comparing all positions with each other, and of weighing their values."""
    batch, length, width = given.shape
    return 2 * 2 * batch * length * length * width


def _encoder_layer(args: _Arguments, _: Any) -> int:
    return _products(args[0], [args[3], args[5], args[14], args[16]]) + _self_attention(args[0])


def _multihead_attention(args: _Arguments, _: Any) -> int:
    """Count the fast path of `torch.nn.MultiheadAttention`, which is only taken where query, key and value are one."""
    return _products(args[0], [args[5], args[7]]) + _self_attention(args[0])


def _convolution_backward(args: _Arguments, out: Any) -> int:
    """Count as torch does, but the gradient of each output channel's weights only with the inputs of its group."""
    *before, groups, (of_input, of_weight, of_bias) = args
    whole = flop_registry[_aten.convolution_backward]
    for_inputs = whole(*before, groups, [of_input, False, of_bias], out_val=out)
    for_weights = whole(*before, groups, [False, of_weight, of_bias], out_val=out)
    return int(for_inputs + for_weights // groups)


def _fused_attention(args: _Arguments, out: Any) -> int:
    return int(flop_registry[_aten._scaled_dot_product_flash_attention](*args[:3], out_val=out))


def _fused_attention_backward(args: _Arguments, out: Any) -> int:
    return int(flop_registry[_aten._scaled_dot_product_flash_attention_backward](*args[:4], out_val=out))


_OURS: Mapping[Any, Callable[[_Arguments, Any], int]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _fused_attention_backward,
    _aten._scaled_dot_product_fused_attention_overrideable: _fused_attention,
    _aten._scaled_dot_product_fused_attention_overrideable_backward: _fused_attention_backward,
    _aten._cudnn_rnn: _recurrent,
    _aten._cudnn_rnn_backward: _recurrent_backward,
    _aten.miopen_rnn: _recurrent,
    _aten.miopen_rnn_backward: _recurrent_backward,
    _aten.mkldnn_rnn_layer: _recurrent_layer,
    _aten.mkldnn_rnn_layer_backward: _recurrent_layer_backward,
    _aten._transformer_encoder_layer_fwd: _encoder_layer,
    _aten._native_multi_head_attention: _multihead_attention,
    _aten.convolution_backward: _convolution_backward,
}
"""Formulas, from positional arguments and result, of what not every supported torch counts, or not right."""

_LOWERED = frozenset({_aten._transformer_encoder_layer_fwd, _aten._native_multi_head_attention})
"""Kernels that are given fp32 under autocast and multiply in its dtype."""

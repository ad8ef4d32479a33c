"""The least work of a step: its FLOPs by operation and dtype, and the bytes it reads and writes.

They are counted once, as a step warms up, never while it is timed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ampbench.records.case import AUTOCAST_DEVICES
from ampbench.records.measured import ATTENTION, CONV, MATMUL, MULTIPLYING
from ampbench.trace.dtypes import op_kind, resolving, short_dtype, take_apart
from ampbench.trace.modules import hook_calls
from ampbench.worker.data import plain_parts

_Arguments = Sequence[Any]
_aten = torch.ops.aten


def count_flops(run: Callable[[], Any]) -> dict[str, int] | None:
    """Return the FLOPs of `run` by dtype ("bf16").

    A multiply-add is two. Matrix products, convolutions and attention count by `torch.utils.flop_counter`'s formulas of
    shapes (masked elements, too), and so do the fused kernels of recurrent networks and encoder layers; mv, addmv, dot,
    vdot, `torch.nn.Bilinear`, cdist and linear algebra do not. Call it with `torch.no_grad` rather than inference mode,
    which hides autocast. {}: nothing countable runs; None: some op cannot be counted. Where the counter itself breaks
    `run`, it is run once more; compiled code runs uncompiled.
    """
    return count_work(run).flops


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """The work of a call: `flops` as in `count_flops`, `flops_by_operation` those that no kernel can leave out.

    The latter are by operation (`MULTIPLYING`) and dtype: unmasked ones for causal attention, none for
    `flex_attention`, whose mask may leave out any. Attention written as products counts as products.

    `read` and `written` are bytes by the address of an earlier storage: of the largest tensor in it that an op used in
    whole. An op uses a tensor in whole if it multiplies it, or is pointwise, a cast, a copy or an optimizer's; lookups,
    views and scatters use parts and add nothing, so the sums are lower bounds. `produced` are the bytes of the call's
    results in new storages. None: could not be counted.
    """

    flops: dict[str, int] | None = None
    flops_by_operation: dict[str, dict[str, int]] | None = None
    read: dict[int, int] | None = None
    written: dict[int, int] | None = None
    produced: int | None = None

    def wrote(self, tensor: torch.Tensor) -> bool:
        """Return whether all of an earlier tensor was written."""
        written = self.written or {}
        return all(written.get(_address(part), -1) >= _own_bytes(part) for part in plain_parts(tensor))


def count_work(run: Callable[[], Any], *, tf32: bool = False, kept: Iterable[torch.Tensor] = ()) -> StepWork:
    """Return the work of a call of `run`, after the call; `kept` are the tensors whose bytes are counted.

    These must be dense and stay alive. `run` is called as in `count_flops`; with `tf32`, fp32's FLOPs count as "tf32".
    """
    dense = (tensor for tensor in kept if tensor.layout is torch.strided)
    counter = _Counter(_address(part) for tensor in dense for part in plain_parts(tensor))
    try:
        with hook_calls(lambda *_: counter.look()), counter:
            returned = run()
    except Exception:  # noqa: BLE001 - the second run raises again, unless the counter was at fault
        run()
        return StepWork()

    def by_dtype(counts: Mapping[str, int]) -> dict[str, int]:
        return {"tf32" if tf32 and dtype == "fp32" else dtype: count for dtype, count in counts.items() if count}

    known = not counter.uncounted
    return StepWork(
        flops=by_dtype(counter.flops) if known else None,
        flops_by_operation={name: counts for name in MULTIPLYING if (counts := by_dtype(counter.least[name]))}
        if known
        else None,
        read=counter.read,
        written=counter.written,
        produced=_fresh_bytes(returned, counter.kept),
    )


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _own_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements, where elements repeated by a dimension count once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride else 1
    return min(elements * tensor.element_size(), tensor.untyped_storage().nbytes()) if tensor.numel() else 0


def _fresh_bytes(returned: Any, kept: frozenset[int]) -> int:
    """Return the bytes of the tensors in `returned` with storages outside `kept`."""
    fresh: dict[int, int] = {}
    for leaf in pytree.tree_leaves(returned):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and _address(leaf) not in kept:
            fresh[_address(leaf)] = max(fresh.get(_address(leaf), 0), _own_bytes(leaf))
    return sum(fresh.values())


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every op and counts its FLOPs in `flops`; `uncounted` names the ops that cannot be counted.

    `least`, `read` and `written` are as in `StepWork`, for the storages at the addresses `kept`. `lowered` is
    autocast's dtype by device, as of a module's last call: in a mode's code autocast is off.
    """

    supports_higher_order_operators = True

    def __init__(self, kept: Iterable[int] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops: Counter[str] = Counter()
        self.least: dict[str, Counter[str]] = {name: Counter() for name in MULTIPLYING}
        self.uncounted: list[str] = []
        self.lowered: dict[str, torch.dtype] = {}
        self.kept = frozenset(kept)
        self.read: dict[int, int] = {}
        self.written: dict[int, int] = {}

    def look(self) -> None:
        """Note the devices where autocast is on now, and its dtypes."""
        enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
        self.lowered = {device: dtype(device) for device in AUTOCAST_DEVICES if enabled(device)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op, in parts where only these have formulas, and count it."""
        kwargs = kwargs or {}
        if any(kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for kind in types):
            return NotImplemented  # a subclass runs ops on plain tensors, which are counted here
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
            except Exception:  # noqa: BLE001 - a layout without a formula, such as a nested tensor's
                self.uncounted.append(str(called))
            else:
                dtype = self._dtype(called, (args, kwargs))
                self.flops[dtype] += count
                for operation, least in _least(called, func, args, kwargs, count):
                    self.least[operation][dtype] += least
        elif not plain:
            self.uncounted.append(str(called))
        if self.kept and plain and (known or _uses_whole(func)):
            self._touch(func, args, kwargs)
        return out

    def _touch(self, func: Any, args: _Arguments, kwargs: Mapping[str, Any]) -> None:
        """Note the storages in `kept` that an op reads and writes, if it uses its tensors in whole.

        An op with an empty or a sparse tensor may ignore the others.
        """
        values = [*zip(func._schema.arguments, args, strict=False)]
        values += [(argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs]
        tensors = [
            (argument, leaf)
            for argument, value in values
            for leaf in (value if isinstance(value, list | tuple) else [value])
            if isinstance(leaf, torch.Tensor)
        ]
        masked = any(argument.name in _CAUSAL and value for argument, value in values)
        if masked or any(leaf.layout is not torch.strided or not leaf.numel() for _, leaf in tensors):
            return
        for argument, leaf in tensors:
            address = _address(leaf)
            if address in self.kept:
                writes = argument.alias_info is not None and argument.alias_info.is_write
                if writes:
                    self.written[address] = max(self.written.get(address, 0), _own_bytes(leaf))
                if not (writes and getattr(func, "overloadpacket", func) in _OVERWRITING):
                    self.read[address] = max(self.read.get(address, 0), _own_bytes(leaf))

    def _dtype(self, called: Any, tree: Any) -> str:
        """Return the short dtype of an op's first floating tensor, else of its first tensor.

        For `_LOWERED`, it is autocast's dtype of the products inside.
        """
        tensors = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
        first = next((tensor for tensor in tensors if tensor.is_floating_point()), tensors[0])
        if called in _LOWERED and first.dtype is torch.float32:
            return short_dtype(self.lowered.get(first.device.type, first.dtype))
        return short_dtype(first.dtype)


def _uses_whole(func: Any) -> bool:
    """Return whether an op uses all elements of its tensors, by its name and tags."""
    name = func._schema.name.removeprefix("aten::")
    optimizes = name.startswith(("_foreach_", "_fused_")) and name != "_fused_sdp_choice"
    return torch.Tag.pointwise in func.tags or optimizes or name in _WHOLE


def _least(
    called: Any, func: Any, args: _Arguments, kwargs: Mapping[str, Any], count: int
) -> Iterator[tuple[str, int]]:
    """Yield the operations of an op's `count` FLOPs, and the FLOPs that no kernel can leave out."""
    name = str(called)
    if called in _LOWERED:
        products = _products(args[0], [args[place] for place in _LOWERED[called]])
        yield MATMUL, products
        yield ATTENTION, count - products
    elif "flex_attention" in name:
        return
    elif "attention" in name:
        names = [argument.name for argument in func._schema.arguments]
        known = dict(zip(names, args, strict=False)) | dict(kwargs)
        yield ATTENTION, int(count * _unmasked(known)) if any(known.get(key) for key in _CAUSAL) else count
    else:
        yield CONV if "conv" in name else MATMUL, count


def _unmasked(known: Mapping[str, Any]) -> float:
    """Return the share of comparisons under a causal mask: of each query with the keys up to its place.

    0 where shapes do not show it: for sequences of various lengths in one tensor.
    """
    query, key = known.get("query"), known.get("key")
    if query is None or key is None or query.ndim != 4 or not known.get("is_causal"):
        return 0.0
    queries, keys = query.shape[-2], key.shape[-2]
    square = min(queries, keys)
    left = square * (square + 1) // 2 + (queries - square) * keys
    return float(left / (queries * keys)) if queries and keys else 0.0


def _products(inputs: torch.Tensor, weights: Sequence[torch.Tensor]) -> int:
    """Return the FLOPs of multiplying every position of `inputs`, whose last dimension are features, by each matrix."""
    positions = inputs.numel() // inputs.shape[-1]
    return 2 * positions * sum(weight.numel() for weight in weights if weight.ndim == 2)


def _recurrent(args: _Arguments, _: Any) -> int:
    """Count all layers' products: (input, list of weights, …)."""
    return _products(args[0], args[1])


def _recurrent_backward(args: _Arguments, _: Any) -> int:
    """Count the gradients of inputs and states, which are always made, and of weights, if requested.

    The last argument holds the requests for input, states, cells and weights.
    """
    return (2 if args[-1][3] else 1) * _products(args[0], args[1])


def _recurrent_layer(args: _Arguments, _: Any) -> int:
    """Count one layer's products: (input, weights of inputs, weights of states, …)."""
    return _products(args[0], args[1:3])


def _self_attention(inputs: torch.Tensor) -> int:
    """Return the FLOPs of comparing all positions with each other, and of weighing their values."""
    batch, length, width = inputs.shape
    return 2 * 2 * batch * length * length * width


def _fast_path(args: _Arguments, _: Any, op: Any) -> int:
    """Count the fast path of an encoder layer or attention, which requires query, key and value to be equal."""
    return _products(args[0], [args[place] for place in _LOWERED[op]]) + _self_attention(args[0])


def _convolution_backward(args: _Arguments, out: Any) -> int:
    """Count as torch does, but the gradient of an output channel's weights only with the inputs of its group."""
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
    _aten.mkldnn_rnn_layer_backward: lambda args, out: 2 * _recurrent_layer(args, out),
    _aten._transformer_encoder_layer_fwd: partial(_fast_path, op=_aten._transformer_encoder_layer_fwd),
    _aten._native_multi_head_attention: partial(_fast_path, op=_aten._native_multi_head_attention),
    _aten.convolution_backward: _convolution_backward,
}
"""Formulas, from positional arguments and result, for ops that some supported torch does not count, or counts
wrongly."""

_LOWERED: Mapping[Any, Sequence[int]] = {
    _aten._transformer_encoder_layer_fwd: (3, 5, 14, 16),
    _aten._native_multi_head_attention: (5, 7),
}
"""Kernels with fp32 inputs under autocast that multiply in its dtype, with the places of their weights."""
_CAUSAL = ("is_causal", "custom_mask_type")
"""Arguments that make attention leave out the keys behind each query."""
_OVERWRITING = frozenset({_aten.copy_, _aten.zero_, _aten.fill_})
_WHOLE = frozenset(
    {
        "_to_copy", "copy_", "clone", "zero_", "fill_", "native_layer_norm", "native_group_norm", "native_batch_norm",
        "_native_batch_norm_legit", "cudnn_batch_norm", "_fused_rms_norm", "sum", "mean", "linalg_vector_norm",
    }
)  # fmt: skip
"""Ops without torch's tag for pointwise ones that use their tensors in whole."""

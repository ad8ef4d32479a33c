"""The loss apart from its network: in the arithmetic of a precision and in fp32, on the same outputs; untimed."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from msgspec import structs
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ampbench.records.measured import LossAlone, LossUnmeasured
from ampbench.trace.dtypes import HALVES, short_dtype
from ampbench.worker.data import carried, in_fp32
from ampbench.worker.machine import Device
from ampbench.worker.network import Network
from ampbench.worker.step import forked_draws, random_states

FACTORS = (1, 4, 16, 64)
"""The network's outputs are multiplied by these: logits grow in training."""
SHIFT = 16
"""The number added to all outputs if that leaves fp32's gradient as it is, as in a softmax: exp(16) is infinite in fp16
and finite in fp32."""
UNCHANGED = 1e-2
"""The largest relative change of fp32's gradient that counts as none: fp32 rounds an output plus 16 by at most 1e-6."""
LARGE = 1 << 22
"""With more elements than this only factor 1 is tried, as more would take seconds."""
BOUNDED = 2.0
"""A loss whose gradient grows more than this between the two largest factors is a distance: training leaves outputs far
from its targets at once, so that only factor 1 is tried."""
BACKOFF = 16.0
"""Where gradients are not finite, the scale falls by this, as GradScaler's would in four steps."""

ADDENDS, BOUNDS = ("add", "sub", "rsub"), ("clamp", "clamp_min", "clamp_max")
GUARDED = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt")


@dataclass(slots=True)
class _Constant:
    """A constant that is `rounded` to 0, 1 or infinity in `dtype`; `guards` a logarithm or a root."""

    value: float
    rounded: float
    dtype: torch.dtype
    op: str
    guards: bool = False


class _Constants(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the constants that low precision changes in the operations within a `with` statement."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lost: list[_Constant] = []
        self._guards: dict[int, list[tuple[_Constant, bool]]] = {}
        """The constants that a tensor depends on, and whether the tensor is one minus the guarded value."""
        self._kept: list[Any] = []  # so that ids stay unique

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            name = func.overloadpacket.__name__.rstrip("_")
            self._kept.append(result)
            self._follow(name, args, result)
            if result.dtype in HALVES and name in ADDENDS + BOUNDS:
                bounds = (*args[1:3], *(kwargs or {}).values()) if name in BOUNDS else args[1:2]
                self._look(name, bounds, result)
        return result

    def _follow(self, name: str, args: tuple[Any, ...], result: torch.Tensor) -> None:
        """Pass the constant of an argument on to the result, or find it guarding a logarithm or a root."""
        for place, argument in enumerate(args):
            for constant, complement in self._guards.get(id(argument), []):
                if name in GUARDED:
                    is_one = abs(constant.rounded) == 1
                    constant.guards |= is_one is complement and math.isfinite(constant.rounded)
                elif name in (*ADDENDS, "neg", "_to_copy", "clone"):
                    turned = name in ("rsub", "neg") or (name == "sub" and place == 1)
                    self._guards.setdefault(id(result), []).append((constant, complement ^ turned))

    def _look(self, name: str, constants: Sequence[Any], result: torch.Tensor) -> None:
        for value in constants:
            if not isinstance(value, float):
                continue
            rounded = float(torch.tensor(value, dtype=result.dtype))
            if rounded != value and abs(rounded) in (0.0, 1.0, math.inf):
                self.lost.append(_Constant(value, rounded, result.dtype, name))
                turned = name == "rsub" and abs(rounded) == 1
                self._guards.setdefault(id(result), []).append((self.lost[-1], turned))


@dataclass(frozen=True, slots=True)
class _Outputs:
    """A network's output: its `leaves` and tree, and the `places` of the floating tensors that are changed."""

    leaves: Sequence[Any]
    tree: Any
    places: Sequence[int]

    def at(self, factor: float, shift: float = 0.0) -> list[torch.Tensor]:
        """Return the tensors times `factor` plus `shift` in their dtypes; of probabilities, logits are multiplied."""
        values = []
        for place in self.places:
            exact = self.leaves[place].float()
            changed = (exact.logit() * factor).sigmoid() if _are_probabilities(exact) else exact * factor + shift
            values.append(changed.to(self.leaves[place].dtype))
        return values

    def by_logits(self, gradients: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return fp32 gradients with respect to logits where the tensors are probabilities."""
        exact = [self.leaves[place].float() for place in self.places]
        return [
            gradient.float() * (value.float() * (1 - value.float()) if _are_probabilities(tensor) else 1.0)
            for gradient, value, tensor in zip(gradients, values, exact, strict=True)
        ]


def _are_probabilities(tensor: torch.Tensor) -> bool:
    return bool(((tensor >= 0) & (tensor <= 1)).all())


@dataclass(frozen=True, slots=True)
class _Loss:
    """A loss and its targets, if it takes any, in the context `region` in which it runs."""

    function: Callable[..., Any]
    targets: tuple[Any, ...]
    region: Callable[[], AbstractContextManager[Any]] = nullcontext

    def at(
        self, outputs: _Outputs, values: Sequence[torch.Tensor], scale: float = 1.0
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the loss of an output with these values, and the gradients, unscaled, of a loss times `scale`."""
        leaves = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in outputs.leaves]
        inputs = [value.detach().requires_grad_() for value in values]
        for place, value in zip(outputs.places, inputs, strict=True):
            leaves[place] = value.clone()
        targets = pytree.tree_map_only(torch.Tensor, torch.clone, self.targets)
        with torch.enable_grad(), self.region():
            loss = self.function(pytree.tree_unflatten(leaves, outputs.tree), *targets)
        if not loss.requires_grad:
            return loss, []
        gradients = torch.autograd.grad(loss, inputs, torch.full_like(loss, scale), allow_unused=True)
        if all(gradient is None for gradient in gradients):
            return loss, []
        filled = [
            torch.zeros_like(value) if gradient is None else gradient
            for gradient, value in zip(gradients, inputs, strict=True)
        ]
        return loss.detach(), [gradient.float() / scale for gradient in filled]

    def scaled(
        self, outputs: _Outputs, values: Sequence[torch.Tensor], scale: float
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Do the same; as long as gradients are not finite, at a smaller scale, down to 1."""
        while True:
            loss, gradients = self.at(outputs, values, scale)
            if scale <= 1 or all(bool(gradient.isfinite().all()) for gradient in gradients):
                return loss, gradients
            scale = max(scale / BACKOFF, 1.0)


def measure_loss(network: Network, output: Any, device: Device, scale: float) -> LossAlone:
    """Return what low precision does to the loss of a network at its `output`; `scale` is GradScaler's.

    It is unmeasured where the loss is part of the network or of the workload's own step, draws random numbers, or
    fails on these outputs in fp32.
    """
    if network.own_step is not None or network.loss is None:
        return LossAlone(unmeasured=LossUnmeasured.OWN_STEP)
    try:
        with forked_draws(device):
            return _measured(network, output, device, scale)
    except Exception:  # noqa: BLE001 - a user's loss; memory
        return LossAlone(unmeasured=LossUnmeasured.FAILED)


def _measured(network: Network, output: Any, device: Device, scale: float) -> LossAlone:
    leaves, tree = pytree.tree_flatten(pytree.tree_map_only(torch.Tensor, torch.detach, output))
    floating = [isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.ndim > 0 for leaf in leaves]
    outputs = _Outputs(leaves, tree, [place for place, is_floating in enumerate(floating) if is_floating])
    targets = (network.data.targets[0],) if network.has_targets else ()
    copied, _ = carried(network.loss, {}, torch.clone, lambda _: None)
    low = _Loss(copied, targets, network.autocast)
    in_single, _ = carried(network.loss, {}, _upcast, in_fp32)
    single = _Loss(in_single, pytree.tree_map_only(torch.Tensor, _upcast, targets))
    constants, before = _Constants(), random_states(device)
    with constants:
        _, gradients = low.at(outputs, outputs.at(1))
    if not gradients:
        return LossAlone(unmeasured=LossUnmeasured.NO_GRADIENT)
    if random_states(device) != before:
        return LossAlone(unmeasured=LossUnmeasured.RANDOM)
    worst = max(constants.lost, key=lambda constant: constant.guards, default=None)
    lone = LossAlone()
    if worst is not None:
        lone = LossAlone(
            constant=worst.value,
            rounded=f"{worst.rounded:g}",
            dtype=short_dtype(worst.dtype),
            op=worst.op,
            guards=worst.guards,
        )
    return structs.replace(lone, **_compared(outputs, low, single, scale))


def _compared(outputs: _Outputs, low: _Loss, single: _Loss, scale: float) -> dict[str, Any]:
    """Return where the loss or its gradient is not finite in low precision alone, and the gradient's largest error.

    Errors are relative to the largest fp32 gradient there, at the network's outputs or at these negated: where all
    predictions are right, the gradient is nothing but rounding.
    """
    places = {f"x{factor}": outputs.at(factor) for factor in FACTORS}
    exact = partial(_exact, outputs, single)
    few = sum(outputs.leaves[place].numel() for place in outputs.places) <= LARGE
    tried = [*places.values()] if few else []
    norms = [norm for loss, norm, _ in map(exact, tried) if math.isfinite(loss)]
    # a classifier's fp32 gradient stays of one size at large outputs
    if not few or (len(norms) > 1 and norms[-1] > BOUNDED * norms[-2]):
        places = {"x1": places["x1"]}
    else:
        values = [_upcast(outputs.leaves[place]) for place in outputs.places]
        still, shifted = (single.at(outputs, [value + shift for value in values])[1] for shift in (0, SHIFT))
        if _norm(a - b for a, b in zip(still, shifted, strict=True)) <= UNCHANGED * _norm(still):
            places[f"+{SHIFT}"] = outputs.at(1, SHIFT)
    yardstick = max(exact(outputs.at(-1))[1], exact(places["x1"])[1])
    nonfinite_at = worst_at = ""
    worst = 0.0
    for name, values in places.items():
        expected, norm, gradients = exact(values)
        if not (math.isfinite(expected) and math.isfinite(norm)):
            continue
        loss, rounded = low.scaled(outputs, values, scale)
        in_range = abs(expected) <= torch.finfo(loss.dtype).max
        if not all(bool(gradient.isfinite().all()) for gradient in rounded) or (in_range and not loss.isfinite()):
            nonfinite_at = nonfinite_at or name
            continue
        apart = _norm(a - b for a, b in zip(outputs.by_logits(rounded, values), gradients, strict=True))
        error = apart / max(norm, yardstick) if apart else 0.0
        if error >= worst:
            worst, worst_at = error, name
    return {"nonfinite_at": nonfinite_at, "grad_rel_l2": worst if worst_at else None, "grad_at": worst_at}


def _exact(
    outputs: _Outputs, single: _Loss, values: Sequence[torch.Tensor]
) -> tuple[float, float, Sequence[torch.Tensor]]:
    """Return an fp32 loss, the norm of its gradients, 0 where it is not finite, and these gradients."""
    if not all(bool(value.isfinite().all()) for value in values):
        return math.nan, 0.0, []
    loss, gradients = single.at(outputs, [_upcast(value) for value in values])
    gradients = outputs.by_logits(gradients, values)
    norm = _norm(gradients)
    return (float(loss), norm, gradients) if math.isfinite(norm) else (math.nan, 0.0, [])


def _norm(tensors: Iterable[torch.Tensor]) -> float:
    return math.sqrt(math.fsum(float(torch.linalg.vector_norm(tensor)) ** 2 for tensor in tensors))


def _upcast(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(torch.float32 if tensor.dtype in HALVES else tensor.dtype, copy=True)

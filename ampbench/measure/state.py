"""The state of a training step: what is put back, how its optimizer steps, what it keeps in fp32.

What a training step changes, remembered and put back: weights, buffers, the optimizer's and GradScaler's state.

What trains a step, read from the optimizer itself.

Modules of a step that are kept in fp32, by their names.
"""

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.measured import OptimizerGroup, Recipe


class SavedState:
    """The state of a training as it is when this is made; `stored` are the weights that the optimizer moves.

    Those are the network's own parameters, or master weights beside them.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
        stored: Iterable[torch.Tensor] = (),
    ):
        live = list({id(one): one for one in (*module.parameters(), *stored, *module.buffers())}.values())
        self._values: list[tuple[dict[Any, Any], Any, Any]] = []
        for state in optimizer.state.values() if optimizer is not None else ():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    live.append(value)
                else:
                    self._values.append((state, key, copy.deepcopy(value)))
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in live]
        self._scaler = scaler
        self._scaled: dict[str, Any] = {} if scaler is None else scaler.state_dict()

    def put_back(self) -> bool:
        """Put it back, in place; return whether GradScaler had lowered its scale since, that is, skipped a step."""
        with torch.no_grad():
            for tensor, saved in self._tensors:
                tensor.copy_(saved)
        for state, key, value in self._values:
            state[key] = copy.deepcopy(value)
        if self._scaler is None:
            return False
        skipped = bool(self._scaler.get_scale() < self._scaled["scale"])
        self._scaler.load_state_dict(self._scaled)
        return skipped


def recipe_of(optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> Recipe:
    """Return the settings of `optimizer` and the momenta of `module`'s running statistics.

    Settings are read of torch's own classes alone: what another, or one derived from these, makes of them is its own.
    """
    kind = type(optimizer)
    own = getattr(torch.optim, kind.__name__, None) is kind
    return Recipe(
        optimizer=f"torch.optim.{kind.__name__}" if own else f"{kind.__module__}.{kind.__qualname__}",
        groups=[_group(kind.__name__ if own else "", group) for group in optimizer.param_groups],
        running_momenta=sorted(_momenta(module), reverse=True),
    )


def _group(kind: str, given: Mapping[str, Any]) -> OptimizerGroup:
    """Return the settings of a group of torch's optimizer `kind` ("": another's)."""
    elements = sum(parameter.numel() for parameter in given["params"] if not torch.nn.parameter.is_lazy(parameter))
    if not kind:
        return OptimizerGroup(elements=elements, lr=_number(given.get("lr")))
    mean = given.get("alpha") if kind == "RMSprop" and not given.get("centered") else None
    beta1, beta2 = given.get("betas", (None, mean))
    return OptimizerGroup(
        elements=elements,
        lr=_number(given.get("lr")),
        weight_decay=_number(given.get("weight_decay")),
        decoupled=_flag(given.get("decoupled_weight_decay", kind == "AdamW")) if "weight_decay" in given else None,
        beta1=_number(beta1),
        beta2=_number(beta2),
        eps=_number(given.get("eps")),
        momentum=_number(given.get("momentum")),
        foreach=_flag(given.get("foreach")),
        fused=_flag(given.get("fused")),
        capturable=_flag(given.get("capturable") or given.get("differentiable")),
    )


def _momenta(module: torch.nn.Module) -> set[float]:
    """Return the momenta of running statistics: a cumulative average, which has none, is left out."""
    found = set()
    for layer in module.modules():
        if isinstance(layer, torch.nn.modules.batchnorm._NormBase) and layer.running_mean is not None:
            momentum = _number(layer.momentum)
            if momentum is not None and 0 < momentum <= 1:
                found.add(momentum)
    return found


def _number(value: Any) -> float | None:
    """Return a setting as a number, None where it is none that is finite and 0 or more."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return float(value) if usable else None


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def keep_named(module: torch.nn.Module, names: Iterable[str], *, cast_back: bool) -> None:
    """Keep the submodules of these names, which are no patterns, in fp32."""
    from ampbench.explain.keep_fp32 import keep_fp32  # no step that is timed for itself needs it

    known = dict(module.named_modules(remove_duplicate=False))
    for name in names:
        if name not in known:
            raise UnknownNameError("submodule", name, [path for path in known if path])
        keep_fp32(known[name], cast_back=cast_back)


def refuse_moved(module: torch.nn.Module, names: Iterable[str], storage: torch.dtype) -> None:
    """Raise `UsageError` where a parameter of a kept submodule was moved to `storage`, with another that shares it."""
    everywhere = list(module.named_parameters(remove_duplicate=False))
    for name in names:
        for parameter in module.get_submodule(name).parameters():
            shared = [path for path, other in everywhere if other is parameter]
            if parameter.dtype is storage and len(shared) > 1:
                raise UsageError(f"{name}: {' and '.join(shared)} are one parameter: keep the modules of all, or none")

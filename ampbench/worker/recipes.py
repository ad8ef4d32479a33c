"""What trains a step, read from the optimizer itself."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from ampbench.records.recipes import OptimizerGroup, Recipe


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

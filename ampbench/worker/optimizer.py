"""Optimizers: their recipes, fp32 master weights, saved and restored state."""

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from msgspec import structs

from ampbench.core.recipes import FOREACH, FUSED, OPTIMIZERS, TrainingRecipe, is_path
from ampbench.errors import UnknownNameError, WorkloadError, first_line
from ampbench.records.measured import OptimizerGroup, Recipe
from ampbench.trace.dtypes import HALVES
from ampbench.worker.data import plain_parts
from ampbench.workload import Workload

Key = TypeVar("Key")
MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


def default_optimizer(parameters: Any) -> torch.optim.Optimizer:
    """Return plain SGD with lr 0.01, which times steps where no optimizer is named."""
    return torch.optim.SGD(parameters, lr=0.01)


def is_named(workload: Workload, recipe: TrainingRecipe) -> bool:
    """Return whether the workload or the recipe names an optimizer; without one, updates are not measured."""
    return workload.optimizer is not None or bool(recipe.optimizer)


BLOCK = 1 << 18
"""The elements moved at a time, or one larger weight: the memory of an optimizer's step is then a small share."""


def steps_alone(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a step moves each weight by its own gradient and state: true of torch's own, except for
    clipping."""
    hooks = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    return type(optimizer).__module__.startswith("torch.optim.") and all(isinstance(hook, _Clip) for hook in hooks)


def in_blocks(sizes: Mapping[Key, int]) -> list[list[Key]]:
    """Return the keys of `sizes` in blocks of at most `BLOCK` elements, or of one larger key."""
    blocks: list[list[Key]] = []
    room = 0
    for key, size in sizes.items():
        if size > room:
            blocks.append([])
            room = BLOCK
        blocks[-1].append(key)
        room -= size
    return blocks


def optimizer_of(recipe: TrainingRecipe, default: MakeOptimizer) -> MakeOptimizer:
    """Return the function that makes a recipe's optimizer: a named one, or the workload's with changed settings.

    That function raises `WorkloadError` where the workload's optimizer lacks a setting. A named class that cannot be
    imported raises it here.
    """
    if is_path(recipe.optimizer):
        kind = _kind_at(recipe.optimizer)
        return lambda parameters: kind(parameters, **_arguments(kind, recipe))
    if recipe.optimizer:
        return lambda parameters: _of_torch(recipe, parameters)
    return (lambda parameters: with_settings(default(parameters), recipe)) if recipe.settings else default


class _Clip:
    """Clips the gradients of an optimizer to a norm; `total` is their norm, None to compute it."""

    def __init__(self, norm: float):
        self.norm = norm
        self.total: torch.Tensor | None = None

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        total = self.total
        if total is None:
            total = torch.nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
        scale = getattr(optimizer, "grad_scale", None)
        torch.nn.utils.clip_grads_with_norm_(weights, self.norm, total if scale is None else total / scale)


def clip_as_all(optimizer: torch.optim.Optimizer, gradients: Callable[[], list[torch.Tensor]]) -> None:
    """Let an optimizer that `steps_alone` on some of the gradients clip them by the norm of all."""
    for hook in optimizer._optimizer_step_pre_hooks.values():
        hook.total = torch.nn.utils.get_total_norm(gradients())  # type: ignore[attr-defined]


def clipping(make: MakeOptimizer, norm: float | None) -> MakeOptimizer:
    """Return a function that makes an optimizer with gradient clipping to a norm; 0 or None: `make` itself.

    Under GradScaler, clipping follows the unscaling; where a fused optimizer unscales in its step, the norm is
    multiplied by the scale.
    """
    if not norm:
        return make

    def make_clipping(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = make(parameters)
        optimizer.register_step_pre_hook(_Clip(norm))
        return optimizer

    return make_clipping


def check_class(recipe: TrainingRecipe) -> None:
    """Make the optimizer of the class that a recipe names by its path; `WorkloadError` where that fails."""
    name = recipe.optimizer
    make = optimizer_of(recipe, default_optimizer)
    try:
        optimizer: Any = make([torch.nn.Parameter(torch.zeros(2, 2))])
    except Exception as error:
        raise WorkloadError(f"optimizer {name} cannot be made: {first_line(error)}") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise WorkloadError(f"optimizer {name} makes {type(optimizer).__name__}; expected a torch.optim.Optimizer")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise WorkloadError(f"optimizer {name} needs a closure, which ampbench's steps do not pass")


def _kind_at(place: str) -> Any:
    """Return the class at a path; `WorkloadError` where there is none."""
    from ampbench.worker.sources import import_module  # imports this module

    name, _, attribute = place.rpartition(":")
    try:
        module = import_module(str(Path(name).expanduser().resolve()) if name.endswith(".py") else name)
    except Exception as error:
        raise WorkloadError(f"optimizer {place} cannot be imported: {first_line(error)}") from error
    if not callable(kind := getattr(module, attribute, None)):
        known = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise UnknownNameError(f"class of {name}", attribute, known)
    return kind


def _arguments(kind: Any, recipe: TrainingRecipe) -> dict[str, Any]:
    """Return a recipe's arguments for a class; betas as a pair, where the class takes one."""
    arguments = recipe.settings | dict(recipe.more)
    takes = inspect.signature(kind).parameters
    if "betas" in takes and any(name in arguments for name in _BETAS):
        default = takes["betas"].default
        betas = [arguments.pop(name, None) for name in _BETAS]
        arguments["betas"] = _over(betas, default if isinstance(default, tuple | list) else (0.9, 0.999))
    return arguments


_BETAS = ("beta1", "beta2")


def _of_torch(recipe: TrainingRecipe, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return torch's optimizer that a recipe names; raises torch's error where it cannot be made."""
    name, _, implementation = recipe.optimizer.partition(":")
    row = OPTIMIZERS[name]
    kind: Any = getattr(torch.optim, row.kind)
    settings = _arguments(kind, recipe)
    if "beta2" in settings:
        settings["alpha"] = settings.pop("beta2")  # RMSprop's
    if implementation:
        settings[FOREACH] = implementation == FOREACH
    if implementation and FUSED in row.implementations:
        settings[FUSED] = implementation == FUSED
    optimizer: torch.optim.Optimizer = kind(parameters, **settings)
    return optimizer


def with_settings(optimizer: torch.optim.Optimizer, recipe: TrainingRecipe) -> torch.optim.Optimizer:
    """Return an optimizer with the settings of a recipe in all its groups, as `TrainingRecipe` defines them.

    Raises `WorkloadError` where it lacks a setting.
    """
    groups = optimizer.param_groups
    rates = [float(group["lr"]) for group in groups if "lr" in group]
    decays = any(group.get("weight_decay") for group in groups)
    for name, value in recipe.settings.items():
        key = "betas" if name in _BETAS and "betas" in groups[0] else "alpha" if name == "beta2" else name
        if not all(key in group for group in groups):
            raise WorkloadError(
                f"the workload's own optimizer, {type(optimizer).__name__}, has no {name} that a recipe could change: "
                "name another with --optimizer"
            )
        for group in groups:
            if name == "lr":
                rate = value * float(group["lr"]) / max(rates) if max(rates) > 0 else value
                group["lr"] = torch.full_like(group["lr"], rate) if isinstance(group["lr"], torch.Tensor) else rate
            elif key == "betas":
                group["betas"] = _over([value if name == beta else None for beta in _BETAS], group["betas"])
            elif name != "weight_decay" or group["weight_decay"] or not decays:
                group[key] = value
    return optimizer


def _over(values: Iterable[Any], others: Iterable[Any]) -> tuple[Any, ...]:
    """Return `values`, with `others` in place of None."""
    return tuple(default if value is None else value for value, default in zip(values, others, strict=True))


class Masters:
    """fp32 copies of the weights that `module` stores in half; the optimizer moves them by their gradients.

    They begin with the unrounded values of `original`. Weights in fp32, and those without a gradient, have no copy.
    `by_name` are the copies by the names of their parameters.
    """

    def __init__(self, module: torch.nn.Module, original: torch.nn.Module):
        originals = dict(original.named_parameters())
        halves = {
            name: weight
            for name, weight in module.named_parameters()
            if weight.requires_grad and name in originals and weight.dtype in HALVES
        }
        self.by_name = {
            name: torch.nn.Parameter(torch.empty_like(half, dtype=torch.float32).copy_(originals[name].detach()))
            for name, half in halves.items()
        }
        self._pairs = [(half, self.by_name[name]) for name, half in halves.items()]

    def take_gradients(self) -> None:
        """Move the network's gradients to the masters, in their dtype."""
        taken, gradients = [], []
        for half, master in self._pairs:
            gradient, half.grad = half.grad, None
            if gradient is None or gradient.layout is not torch.strided:
                master.grad = None if gradient is None else gradient.to(master.dtype)
                continue
            master.grad = torch.empty_like(master)
            taken.append(master.grad)
            gradients.append(gradient)
        if taken:
            torch._foreach_copy_(taken, gradients)

    @torch.no_grad()
    def round_into_network(self) -> None:
        """Copy the masters' values into the network, rounded to its dtype."""
        if self._pairs:
            torch._foreach_copy_([half for half, _ in self._pairs], [master for _, master in self._pairs])


class SavedState:
    """A copy of a training's state; `stored` are the weights that the optimizer moves.

    These are the network's own parameters, or master weights. The copy is on their devices or, with `on_host`, in the
    host's memory, where restoring takes longer; a device without room sets `on_host`, too.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None,
        stored: Iterable[torch.Tensor],
        *,
        on_host: bool = False,
    ):
        whole = {id(tensor): tensor for tensor in (*module.parameters(), *stored, *module.buffers())}.values()
        live = [part for tensor in whole for part in plain_parts(tensor)]
        self._values: list[tuple[dict[Any, Any], Any, Any]] = []
        for state in optimizer.state.values():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    live += plain_parts(value)
                else:
                    self._values.append((state, key, copy.deepcopy(value)))
        self.on_host = on_host
        try:
            self._tensors = [(tensor, self._copy(tensor)) for tensor in live]
        except torch.OutOfMemoryError:
            if on_host:
                raise
            self.on_host, self._tensors = True, []  # frees the first copies
            self._tensors = [(tensor, self._copy(tensor)) for tensor in live]
        self._scaler = scaler
        self._scaled: dict[str, Any] = {} if scaler is None else scaler.state_dict()

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the device or the host, never the tensor itself."""
        detached = tensor.detach()
        return detached.to("cpu") if self.on_host and detached.device.type != "cpu" else detached.clone()

    def put_back(self) -> bool:
        """Restore the state in place; return whether GradScaler had lowered its scale, which means a skipped step."""
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

    Only the settings of torch's own classes are read: other classes, even derived ones, may use them differently.
    """
    kind = type(optimizer)
    is_torchs = getattr(torch.optim, kind.__name__, None) is kind
    return Recipe(
        optimizer=f"torch.optim.{kind.__name__}" if is_torchs else f"{kind.__module__}.{kind.__qualname__}",
        groups=[_group(kind.__name__ if is_torchs else "", group) for group in optimizer.param_groups],
        running_momenta=sorted({momentum for momentum, _ in _statistics(module)}, reverse=True),
    )


def misses(recipe: Recipe, optimizer: torch.optim.Optimizer, stored: Mapping[str, torch.Tensor]) -> Recipe:
    """Return a recipe with the trained weights among `stored` that its optimizer lacks, and its number of foreign
    ones."""
    trained = {name: id(weight) for name, weight in stored.items() if weight.requires_grad}
    held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    missed = [name for name, weight in trained.items() if weight not in held]
    foreign = len(held - {id(weight) for weight in stored.values()})
    if not missed and not foreign:
        return recipe
    return structs.replace(recipe, missed=missed, foreign=foreign, trained=len(trained))


def _group(kind: str, row: Mapping[str, Any]) -> OptimizerGroup:
    """Return the settings of a group of torch's optimizer `kind` ("": another library's)."""
    elements = sum(parameter.numel() for parameter in row["params"] if not torch.nn.parameter.is_lazy(parameter))
    if not kind:
        return OptimizerGroup(elements=elements, lr=_number(row.get("lr")))
    mean = row.get("alpha") if kind == "RMSprop" and not row.get("centered") else None
    beta1, beta2 = row.get("betas", (None, mean))
    return OptimizerGroup(
        elements=elements,
        lr=_number(row.get("lr")),
        weight_decay=_number(row.get("weight_decay")),
        decoupled=_flag(row.get("decoupled_weight_decay", kind == "AdamW")) if "weight_decay" in row else None,
        beta1=_number(beta1),
        beta2=_number(beta2),
        eps=_number(row.get("eps")),
        momentum=_number(row.get("momentum")),
        foreach=_flag(row.get("foreach")),
        fused=_flag(row.get("fused")),
        capturable=_flag(row.get("capturable") or row.get("differentiable")),
    )


def statistics_stall(module: torch.nn.Module) -> float | None:
    """Return `Divergence.statistics_stall` of a network in its storage."""
    return max((torch.finfo(dtype).eps / 4 / momentum for momentum, dtype in _statistics(module)), default=None)


def _statistics(module: torch.nn.Module) -> Iterator[tuple[float, torch.dtype]]:
    """Yield momentum and dtype of running statistics, except cumulative averages, which have no momentum."""
    for layer in module.modules():
        if isinstance(layer, torch.nn.modules.batchnorm._NormBase) and layer.running_mean is not None:
            momentum = _number(layer.momentum)
            if momentum is not None and 0 < momentum <= 1:
                yield momentum, layer.running_mean.dtype


def _number(value: Any) -> float | None:
    """Return a setting as a number, None where it is not finite or below 0."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return float(value) if usable else None


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)

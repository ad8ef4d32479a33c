"""The network of a case, built once at a fresh place in memory: on its device, in its precision, with data and loss.

Its optimizer follows from workload, recipe and precision, with fp32 master weights, updates of bf16 weights that are
rounded stochastically or compensated, and saved state.
"""

import copy
import inspect
import math
import re
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch
from msgspec import structs
from torch.utils import _pytree as pytree

from ampbench.core.budget import LEAST_KEPT
from ampbench.core.precisions import FP64, PRECISIONS, SHORT_DTYPES, UPDATES, Precision
from ampbench.core.recipes import FOREACH, FUSED, OPTIMIZERS, TrainingRecipe, find_recipe, is_path
from ampbench.errors import UnknownNameError, UsageError, WorkloadError, first_line
from ampbench.records.case import COMPILE_MODES, Case, compile_mode
from ampbench.records.measured import OptimizerGroup, Recipe
from ampbench.trace.dtypes import HALVES, autocast_of, short_dtype
from ampbench.trace.emulated import emulate, kept_by
from ampbench.worker.data import (
    Data,
    Place,
    bound,
    called_with,
    carried,
    in_fp32,
    is_wrapper,
    named_tensors,
    placed,
    plain_parts,
    stored_dtype,
)
from ampbench.worker.machine import Accelerator, Device
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
    """Let an optimizer that steps on some of the gradients clip them by the norm of all, in fp32 with `low_updates`."""
    for hook in optimizer._optimizer_step_pre_hooks.values():
        if isinstance(hook, _Clip):
            lifted = [] if steps_alone(optimizer) else [torch.bfloat16]
            every = [gradient.float() if gradient.dtype in lifted else gradient for gradient in gradients()]
            hook.total = torch.nn.utils.get_total_norm(every)


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
    return tuple(default if value is None else value for value, default in zip(values, others, strict=True))


COMPENSATION = "kahan_comp"
"""The key of the compensation in the state of a weight, as optimi calls it."""


def low_updates(how: str, make_optimizer: MakeOptimizer) -> MakeOptimizer:
    """Return a function that makes the same optimizer, which writes bf16 weights as `how` of `UPDATES` says.

    "stochastic": a weight becomes one of its two neighbours in bf16, each with the probability that makes the mean
    exact. All optimizers that the function makes draw from one sequence of random numbers for each device, which begins
    at `torch.initial_seed()` and leaves torch's own generators alone: a run with the same seed gives the same weights.

    "kahan": each weight has a bf16 compensation, which holds the part of the updates that rounding took from it. It is
    state of the optimizer below the key `COMPENSATION`, and a weight plus its compensation is the true value.
    """
    generators: dict[torch.device, torch.Generator] = {}

    def make(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = make_optimizer(parameters)
        lifted = _Lifted(how, generators)
        optimizer.register_step_pre_hook(lifted.lift)
        optimizer.register_step_post_hook(lifted.lower)
        return optimizer

    return make


def round_stochastically(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return fp32 values in bf16, up or down with probabilities that keep their mean; others than finite ones as they
    are.

    16 random bits are added to the 16 that bf16 drops, as in torchao.
    """
    noise = torch.randint(1 << 16, values.shape, dtype=torch.int32, device=values.device, generator=generator)
    rounded = (values.view(torch.int32) + noise & -(1 << 16)).view(torch.float32)
    return torch.where(values.isfinite(), rounded, values).bfloat16()


@dataclass(slots=True)
class _Lifted:
    """The weights of a step in fp32, and the bf16 tensors that they, their gradients and their state came from.

    Around each step of the user's optimizer, weights and gradients in bf16 are exchanged for fp32 copies, and so is its
    state; afterwards the difference is rounded into the same bf16 tensors. State is stored in bf16, rounded to nearest,
    as in the published methods: torchao's `_AdamW(bf16_stochastic_round=True)`, optimi's Kahan summation, and Zamirai
    et al. 2020 (arXiv 2010.06192), which both follow. So a second moment with 1 - β2 < 2**-9 decays no more than there.
    Numbers without a dimension, such as Adam's count of steps, stay as they are. What is emulated is the result, not
    its cost.
    """

    how: str
    generators: dict[torch.device, torch.Generator]
    weights: list[tuple[torch.nn.Parameter, torch.Tensor, torch.Tensor, Mapping[str, torch.Tensor]]] = field(
        default_factory=list
    )

    @torch.no_grad()
    def lift(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Exchange bf16 weights with a gradient, this and the state for fp32 copies."""
        for parameter in (member for group in optimizer.param_groups for member in group["params"]):
            if parameter.dtype is not torch.bfloat16 or parameter.grad is None:
                continue
            state = optimizer.state.get(parameter, {})
            kept = {
                key: value for key, value in state.items() if key != COMPENSATION and _is_plain(value, torch.bfloat16)
            }
            state.update({key: value.float() for key, value in kept.items()})
            stored, gradient = parameter.data, parameter.grad
            self.weights.append((parameter, stored, gradient, kept))
            parameter.grad = None
            parameter.data = stored.float()
            parameter.grad = gradient.float()

    @torch.no_grad()
    def lower(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Write the moved weights and the state back into the bf16 tensors."""
        for parameter, stored, gradient, kept in self.weights:
            moved, state, device = parameter.data, optimizer.state[parameter], stored.device
            parameter.grad = None
            parameter.data = stored
            parameter.grad = gradient
            for key, value in state.items():
                if key in kept:
                    state[key] = kept[key].copy_(value)
                elif key != COMPENSATION and _is_plain(value, torch.float32):
                    state[key] = value.bfloat16()
            if self.how == "stochastic":
                if device not in self.generators:
                    self.generators[device] = torch.Generator(device).manual_seed(torch.initial_seed())
                stored.copy_(round_stochastically(moved, self.generators[device]))
                continue
            lost, before = state.setdefault(COMPENSATION, torch.zeros_like(stored)), stored.float()
            lost.copy_(lost.float() + (moved - before))
            stored.copy_(before + lost.float())
            lost.copy_(lost.float() + (before - stored.float()))
        self.weights.clear()


def _is_plain(value: Any, dtype: torch.dtype) -> bool:
    """Return whether a value of the state is stored like a weight: neither a number nor in a class of its own."""
    return isinstance(value, torch.Tensor) and value.dtype is dtype and value.ndim > 0 and not is_wrapper(value)


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
    host's memory, where restoring takes longer.
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
        place = "cpu" if on_host else None
        self._tensors = [(tensor, tensor.detach().to(place or tensor.device, copy=True)) for tensor in live]
        self._scaler = scaler
        self._scaled: dict[str, Any] = {} if scaler is None else scaler.state_dict()

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
        running_momenta=sorted({momentum for _, momentum, _ in running_statistics(module)}, reverse=True),
    )


SCHEDULED_STEPS = 300
"""The steps of a schedule, as many as `ampbench study training` takes by default."""


def scheduler_of(workload: Workload, recipe: TrainingRecipe, optimizer: torch.optim.Optimizer, steps: int) -> Any:
    """Return the scheduler of a training's learning rate by its recipe, else by the workload; None without one."""
    if recipe.schedule:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, partial(recipe.rate_share, steps=steps))
    return workload.schedule(optimizer, steps) if workload.schedule is not None else None


def follow(scheduler: Any) -> None:
    """Take a step of a scheduler; torch takes its place to be wrong where GradScaler skips the first steps."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Detected call of `lr_scheduler\.step\(\)`")
        scheduler.step()


def least_rate(workload: Workload, recipe: TrainingRecipe, optimizer: torch.optim.Optimizer) -> float | None:
    """Return `Recipe.least_rate` of the schedule that a training of `SCHEDULED_STEPS` follows; changes the rates."""
    group = optimizer.param_groups[0]
    given, rates = _number(group.get("lr")), []
    try:
        scheduler = scheduler_of(workload, recipe, optimizer, SCHEDULED_STEPS)
        for _ in range(SCHEDULED_STEPS if scheduler is not None and given else 0):
            rates.append(_number(group["lr"]) or 0.0)
            follow(scheduler)
    except Exception:  # noqa: BLE001 - a user's schedule, whose error the study of trainings shows
        return None
    lost = 0.0
    for rate in sorted(rates):
        lost += rate
        if given and lost > (1 - LEAST_KEPT) * sum(rates):
            return rate / given
    return None


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


def stops_away(momentum: float, dtype: torch.dtype) -> float:
    """Return the relative distance at which running statistics stop from those of batches."""
    return torch.finfo(dtype).eps / 4 / momentum


def running_statistics(module: torch.nn.Module) -> Iterator[tuple[str, float, torch.dtype]]:
    """Yield layer, momentum and dtype of running statistics, except cumulative averages, which have no momentum."""
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.modules.batchnorm._NormBase) and layer.running_mean is not None:
            momentum = _number(layer.momentum)
            if momentum is not None and 0 < momentum <= 1:
                yield name, momentum, layer.running_mean.dtype


def _number(value: Any) -> float | None:
    """Return a setting as a number, None where it is not finite or below 0."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return float(value) if usable else None


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


Region = Callable[[], AbstractContextManager[Any]]
REFUSING: "weakref.WeakSet[torch.nn.Module]" = weakref.WeakSet()
"""Networks that failed in `torch.inference_mode`, and run in `torch.no_grad`."""
_REFUSED = re.compile("inference ?(mode|tensor)|does not require grad|attempting to run", re.IGNORECASE)
"""torch's errors for code that inference mode does not support, and torchao's for ops that are not decomposed."""
OWN_STEP = "the workload trains by its own step, and this measurement needs a loss"
_LONG_DTYPES = {short: getattr(torch, name) for name, short in SHORT_DTYPES.items()}


def refuses(workload: Workload, case: Case, error: Exception) -> bool:
    """Return whether an error means that a network refuses inference mode; it then runs without it from now on."""
    known = workload.module in REFUSING or case.phase != "inference" or not _REFUSED.search(str(error))
    if not known:
        REFUSING.add(workload.module)
    return not known


@dataclass(slots=True, eq=False, kw_only=True)
class Network:
    """A network on its device, with weights in its precision's storage, its `data` and its loss.

    `autocast` is entered once a step, around forward and loss. `forward` is called by steps: the module itself,
    compiled or traced; `calls` are its calls on each batch. In training, modules and tensors of the loss, or of
    `own_step`, are moved and cast like targets; `held` are their tensors. `make_optimizer` is the workload's, as recipe
    and precision change it. `turn` is the number of the next batch.
    """

    module: torch.nn.Module
    device: Device
    training: bool
    data: Data
    autocast: Region
    loss: Callable[..., torch.Tensor] | None
    has_targets: bool
    own_step: Callable[..., Any] | None = None
    make_optimizer: MakeOptimizer = default_optimizer
    held: list[torch.Tensor] = field(default_factory=list)
    no_grad: bool = False
    forward: Callable[..., Any] = field(init=False)
    calls: list[Callable[[], Any]] = field(init=False)
    turn: int = 0

    def __post_init__(self) -> None:
        self.module.train(self.training)
        self.use(self.module)

    def use(self, forward: Callable[..., Any]) -> None:
        """Let steps call `forward`."""
        self.forward = forward
        self.calls = [bound(forward, batch) for batch in self.data.batches]

    def prepare(self, path: str, once: Callable[[], object]) -> float | None:
        """Compile or trace the network for `path`, and run it `once`; return the seconds, None for eager."""
        if path == "eager":
            return None
        if mode := compile_mode(path):
            torch.compiler.reset()  # one process may compile many networks, and torch gives up after eight of a class
        start = perf_counter()
        self.use(compiled(self.module, mode) if mode else self._traced())
        once()
        self.device.synchronize()
        seconds = perf_counter() - start
        self.rewind()
        return seconds

    def mode(self) -> AbstractContextManager[Any]:
        """Return the context around a loop of steps: `torch.inference_mode`, as PyTorch advises, or nothing in
        training.

        With `no_grad` it is `torch.no_grad`. Where an input requires a gradient it is nothing: such a network
        differentiates in its forward pass.
        """
        if self.training:
            return nullcontext()
        return self.without_gradients() if self.no_grad or self.data.learned else torch.inference_mode()

    def without_gradients(self) -> AbstractContextManager[Any]:
        """Return `torch.no_grad`, or nothing where an input requires a gradient, as in `mode`."""
        return nullcontext() if self.data.learned else torch.no_grad()

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the network's arguments for the first batch: positional ones, and those by name."""
        return called_with(self.data.batches[0])

    def rewind(self) -> None:
        """Start again at the first batch, with its original values."""
        self.turn = 0
        self.data.renew()

    def forward_and_loss(self, forward: Callable[..., Any] | None = None) -> tuple[Any, torch.Tensor | None]:
        """Run the forward pass and, in training, the loss on the next batch, inside autocast; return both results.

        `forward` replaces the network.
        """
        turn = self.next_turn()
        call = self.calls[turn] if forward is None else bound(forward, self.data.batches[turn])
        return self._called(call, self.data.targets[turn])

    def judge(self, batch: Any, targets: Any) -> tuple[Any, torch.Tensor | None]:
        """Run the forward pass and, in training, the loss on a copy of a batch."""

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().clone().requires_grad_(tensor.requires_grad)

        batch, targets = pytree.tree_map_only(torch.Tensor, copied, (batch, targets))
        return self._called(bound(self.forward, batch), targets)

    def watch_loss(self, region: AbstractContextManager[Any]) -> None:
        """Hold `region` around each call of the loss."""
        function = self.loss

        def within(*arguments: Any) -> torch.Tensor:
            with region:
                return function(*arguments)  # type: ignore[misc]

        self.loss = within if function is not None else None

    def release(self) -> None:
        """Release the modules that `keep_fp32` keeps in fp32, which form reference cycles."""
        from ampbench.trace.keep_fp32 import release_fp32  # timed steps do not need it

        for module in self.module.modules():
            release_fp32(module)

    def next_turn(self) -> int:
        """Return the number of the next batch, after restoring its values."""
        data, turn = self.data, self.turn
        self.turn = (turn + 1) % len(self.calls)
        if data.changed != [] and turn in data.seen:
            data.renew()
        data.seen.add(turn)
        return turn

    def _called(self, call: Callable[[], Any], targets: Any) -> tuple[Any, torch.Tensor | None]:
        """Return the result of `call` and, in training, its loss, both inside autocast."""
        with self.autocast():
            output = call()
            if not self.training:
                return output, None
            return output, self.loss_of(output, targets)

    def loss_of(self, output: Any, targets: Any) -> torch.Tensor:
        """Return the loss of an output; `WorkloadError` without a loss."""
        if self.loss is None:
            raise WorkloadError(OWN_STEP)
        return self.loss(output, targets) if self.has_targets else self.loss(output)

    def _traced(self) -> Callable[..., Any]:
        from ampbench.trace.graphs import trace_frozen  # only the traced path needs it

        args, kwargs = self.arguments()
        return trace_frozen(self.module, args, kwargs, self.autocast)[1]  # type: ignore[no-any-return]


def build_network(
    workload: Workload,
    case: Case,
    device: Device,
    *,
    precision: Precision | None = None,
    no_grad: bool = False,
    kept: Sequence[str] = (),
) -> Network:
    """Return a copy of a workload's network for `case`, with copies of its batches.

    Where the precision stores fp32, weights and buffers loaded in half are upcast, and others unchanged; in half and in
    the reference, `stored_dtype` decides. Floating inputs have the case's `input_dtype`, or the storage dtype of
    another `precision`, such as `FP64`; `cached` ones have the precision's compute dtype. `keep_fp32` keeps the modules
    in `kept` ("" is the network) in fp32, except in the reference; where weights are stored in half, their outputs are
    cast back to half, except those of a whole network in inference. A user's own precision prepares the network and its
    optimizer. Raises `UnknownNameError` for an unknown module, and `UsageError` where a kept module shares a parameter
    with one that moves it to half, or where a precision prepares no module.
    """
    row = precision or PRECISIONS[case.precision]
    training, channels_last = case.phase == "training", case.memory_format == "channels_last"
    storage = getattr(torch, row.storage)
    input_dtype = _LONG_DTYPES[case.input_dtype] if precision is None else storage
    copies: dict[int, Any] = {}
    module = copy.deepcopy(workload.module, copies)
    kept = () if row is FP64 else [*kept, *kept_by(row, module, dtype="fp32")]
    if kept:
        # a user takes a whole network's output in fp32; a loss may not, with targets in half
        _keep_named(module, kept, cast_back=storage is not torch.float32 and (training or "" not in kept))
    store = partial(_store, device=device, storage=storage)
    store(module)
    for name, tensor in named_tensors(module) if precision is not None else ():
        if is_wrapper(tensor) and tensor.is_floating_point() and tensor.dtype is not storage:
            raise WorkloadError(f"{name} is {type(tensor).__name__}, which stays in {short_dtype(tensor.dtype)}")
    if kept and storage is not torch.float32:
        _refuse_moved(module, kept, storage)
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    if row.compute:
        emulate(module, row, kept)
    recipe = find_recipe(case.recipe)
    make_optimizer = optimizer_of(recipe, workload.optimizer or default_optimizer)
    if row.updates != UPDATES[0]:
        make_optimizer = low_updates(row.updates, make_optimizer)
    module, make_optimizer = _prepared(module, make_optimizer, row, training=training)
    place = partial(placed, where={"device": device.type}, channels_last=channels_last)
    place_inputs = _place_inputs(workload, place, input_dtype, row)
    data = Data(workload, place_inputs, partial(place, storage=storage), counted=training)
    if not training and row.prepare is None:  # a prepared network may have other weights with these names
        data.weights = (module, workload.module)
    loss, step, held = workload.loss, workload.step, list[torch.Tensor]()
    if training:
        loss, held = carried(loss, copies, data.place_targets, store)
    if training and step is not None:
        step, more = carried(step, copies, data.place_targets, store)
        held += more
    return Network(
        module=module,
        device=device,
        training=training,
        data=data,
        autocast=autocast_of(row, device.type),
        loss=loss,
        has_targets=workload.targets is not None,
        own_step=step,
        make_optimizer=clipping(make_optimizer, recipe.clip),
        held=held,
        no_grad=no_grad or workload.module in REFUSING,
    )


def compiled(module: torch.nn.Module, mode: str) -> Callable[..., Any]:
    """Return a network compiled by torch.compile in one of `COMPILE_MODES`; its first call compiles it."""
    return torch.compile(module) if mode == COMPILE_MODES[0] else torch.compile(module, mode=mode)


def fake_network(workload: Workload, case: Case) -> Network:
    """Return the network of a workload of fake tensors, already on the case's absent device in their dtypes.

    Only its batches are copied. It can run only forward and loss.
    """
    row, training = PRECISIONS[case.precision], case.phase == "training"
    place = partial(placed, where={}, channels_last=case.memory_format == "channels_last")
    place_inputs = _place_inputs(workload, place, _LONG_DTYPES[case.input_dtype], row)
    data = Data(workload, place_inputs, partial(place, storage=getattr(torch, row.storage)), counted=training)
    data.changed = []
    return Network(
        module=workload.module,
        device=Accelerator(case.device),
        training=training,
        data=data,
        autocast=autocast_of(row, case.device, absent=True),
        loss=workload.loss,
        has_targets=workload.targets is not None,
    )


def _place_inputs(workload: Workload, place: Callable[..., Any], dtype: torch.dtype, row: Precision) -> Place:
    """Return a function that places a batch, floating tensors in `dtype`, cached ones in the compute dtype."""
    if not workload.cached:
        return partial(place, storage=dtype)
    computed = getattr(torch, row.autocast or row.storage)

    def place_each(batch: Any) -> Any:
        named = batch.items() if isinstance(batch, dict) else enumerate(called_with(batch)[0])
        inputs = {name: place(part, storage=computed if name in workload.cached else dtype) for name, part in named}
        return inputs if isinstance(batch, dict) else tuple(inputs.values())

    return place_each


def _store(module: torch.nn.Module, *, device: Device, storage: torch.dtype) -> None:
    """Move a network to the device, its weights and buffers to `storage`; in fp32, upcast those loaded in half."""
    if storage is torch.float32:
        in_fp32(module)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        dtype = tensor.dtype if storage is torch.float32 else stored_dtype(tensor.dtype, storage)
        return tensor.to(device=device.type, dtype=dtype)

    module._apply(moved)  # type: ignore[no-untyped-call]


def _prepared(
    module: torch.nn.Module, make_optimizer: MakeOptimizer, row: Precision, *, training: bool
) -> tuple[torch.nn.Module, MakeOptimizer]:
    """Return a network, and the function that makes its optimizer, after a user's own precision has prepared them."""
    if row.prepare is None:
        return module, make_optimizer
    returned = row.prepare(module, make_optimizer if training else None)
    prepared, prepared_optimizer = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(prepared, torch.nn.Module) or not (prepared_optimizer is None or callable(prepared_optimizer)):
        wrong = f"precision {row.name}: prepare returned {type(returned).__name__}"
        raise UsageError(f"{wrong}; expected the module, or (module, optimizer)")
    return prepared, prepared_optimizer or make_optimizer


def _keep_named(module: torch.nn.Module, names: Iterable[str], *, cast_back: bool) -> None:
    """Keep the named submodules in fp32; names are no patterns."""
    from ampbench.trace.keep_fp32 import keep_fp32  # timed steps do not need it

    in_fp32(module)
    known = dict(module.named_modules(remove_duplicate=False))
    for name in names:
        if name not in known:
            raise UnknownNameError("submodule", name, [path for path in known if path])
        keep_fp32(known[name], cast_back=cast_back)


def _refuse_moved(module: torch.nn.Module, names: Iterable[str], storage: torch.dtype) -> None:
    """Raise `UsageError` where a kept submodule's parameter was moved to `storage` with a module that shares it."""
    everywhere = list(module.named_parameters(remove_duplicate=False))
    for name in names:
        for parameter in module.get_submodule(name).parameters():
            shared = [path for path, candidate in everywhere if candidate is parameter]
            if parameter.dtype is storage and len(shared) > 1:
                raise UsageError(f"{name}: {' and '.join(shared)} are one parameter: keep the modules of all, or none")

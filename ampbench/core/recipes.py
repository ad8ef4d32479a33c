"""Optimizers and recipes: the grammar of `--optimizer`, and the spelling in ids of cases ("finetune,lr=3e-05")."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from ampbench.core.precisions import Precision
from ampbench.core.units import one_of, parse_value
from ampbench.errors import UnknownNameError, UsageError

CONSTANT, LINEAR, COSINE = "constant", "linear", "cosine"
"""Schedules of the learning rate: as it is, or down to `final` at the last step."""

FOR_LOOP, FOREACH, FUSED = IMPLEMENTATIONS = ("for-loop", "foreach", "fused")
"""How torch's optimizers go over the parameters; without one, torch chooses."""


class Optimizer(NamedTuple):
    """The class `torch.optim.{kind}`, the settings of a recipe that it has, and its implementations."""

    kind: str
    settings: tuple[str, ...]
    implementations: tuple[str, ...] = IMPLEMENTATIONS


_ADAMS, _UNFUSED = ("weight_decay", "beta1", "beta2", "eps"), (FOR_LOOP, FOREACH)
OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {
        "sgd": Optimizer("SGD", ("weight_decay", "momentum", "nesterov")),
        "adam": Optimizer("Adam", _ADAMS),
        "adamw": Optimizer("AdamW", _ADAMS),
        "nadam": Optimizer("NAdam", _ADAMS, _UNFUSED),
        "radam": Optimizer("RAdam", _ADAMS, _UNFUSED),
        "adamax": Optimizer("Adamax", _ADAMS, _UNFUSED),
        "rmsprop": Optimizer("RMSprop", ("weight_decay", "momentum", "beta2", "eps"), _UNFUSED),
        "adagrad": Optimizer("Adagrad", ("weight_decay", "eps")),
        "adafactor": Optimizer("Adafactor", ("weight_decay",), _UNFUSED),
    }
)
"""torch's optimizers that take any parameter. (Muon takes matrices alone; LBFGS takes a closure.)"""


def is_path(optimizer: str) -> bool:
    """Return whether an optimizer is the place of its class: "file.py:Lion" or "package.module:Lion"."""
    module, colon, _ = optimizer.partition(":")
    return bool(colon) and module not in OPTIMIZERS


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecipe:
    """How a network is trained; None and "": as the workload does it.

    It began as the row `name` of `RECIPES`. `optimizer` is a name of `OPTIMIZERS`, perhaps with an implementation
    ("adamw:fused"), or the place of a class (`is_path`), made with these settings and its own defaults. Without one,
    the workload's own optimizer gets the settings: of several groups the one with the highest rate gets `lr`, the
    others in proportion; `weight_decay` goes to those that have any. `beta2` is RMSprop's alpha, too. `more` are
    further arguments of a class that is not torch's. Gradients are clipped to the norm `clip` (0: not at all).
    Rows of `RECIPES` alone have a `schedule`: after a linear rise over the share `warmup` of the steps, the learning
    rate falls to the share `final` of it.
    """

    name: str = ""
    summary: str = ""
    optimizer: str = ""
    lr: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    more: tuple[tuple[str, bool | float | str], ...] = ()
    schedule: str = ""
    warmup: float | None = None
    final: float | None = None
    clip: float | None = None

    @property
    def spelling(self) -> str:
        """The recipe as `find_recipe` reads it and ids of cases hold it: "adamw-lm,lr=1e-05"."""
        row = RECIPES.get(self.name, _OWN)
        changed = {name: getattr(self, name) for name in SETTINGS if getattr(self, name) != getattr(row, name)}
        settings = [
            f"{name}={str(value).lower() if isinstance(value, bool) else str(value).removesuffix('.0')}"
            for name, value in (*changed.items(), *self.more)
        ]
        return ",".join([*([self.name] if self.name else []), *settings])

    @property
    def settings(self) -> dict[str, Any]:
        """The given settings of the optimizer by name."""
        names = (name for name in SETTINGS if name not in ("optimizer", "clip"))
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def rate_share(self, step: int, steps: int) -> float:
        """Return the share of the learning rate at `step`, from 0, of `steps`, by warm-up and schedule.

        The first step of a warm-up of w steps has 1 / w of it, the last w / w; the steps after it are scheduled as a
        training of their own. Without `final`, the last of n steps has 1 / n under `LINEAR`, about (pi / 2 / n)**2
        under `COSINE`.
        """
        rising = math.ceil((self.warmup or 0.0) * steps)
        if step < rising:
            return (step + 1) / rising
        return rate_share(self.schedule, step - rising, steps - rising, self.final or 0.0)


def rate_share(schedule: str, step: int, steps: int, final: float = 0.0) -> float:
    """Return the learning rate of a schedule at a step from 0, as a share of the first step's."""
    done = step / steps
    share = {LINEAR: 1 - done, COSINE: (1 + math.cos(math.pi * done)) / 2}.get(schedule, 1.0)
    return final + (1 - final) * share


_OWN = TrainingRecipe()


def _optimizer(value: str) -> str:
    name, colon, implementation = value.partition(":")
    if is_path(value):
        if not name or not implementation.isidentifier():
            where = f"optimizer {value.rstrip(':')}"
            raise UsageError(f"{where}: name the class, as in optim.py:Lion or package.module:Lion")
        return value
    if name not in OPTIMIZERS:
        raise UnknownNameError("optimizer", name, OPTIMIZERS)
    if colon and implementation not in IMPLEMENTATIONS:
        raise UnknownNameError(f"implementation of {name}", implementation, IMPLEMENTATIONS)
    if colon and implementation not in (known := OPTIMIZERS[name].implementations):
        raise UsageError(f"torch has no {implementation} {name}: it has {one_of(known)}")
    return value


_DECAY = Annotated[float, Meta(ge=0, lt=1)]
_FROM_ZERO = Annotated[float, Meta(ge=0, le=1e6)]
SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "optimizer": str,
        "lr": Annotated[float, Meta(gt=0, le=1e6)],
        "weight_decay": _FROM_ZERO,
        "momentum": _DECAY,
        "nesterov": bool,
        "beta1": _DECAY,
        "beta2": _DECAY,
        "eps": Annotated[float, Meta(ge=0, le=1)],
        "clip": _FROM_ZERO,
    }
)
"""The settings of a recipe with their types, in the order of its spelling; an `optimizer` has only its name."""


def parse_optimizer(text: str) -> TrainingRecipe:
    """Return the recipe of `--optimizer NAME[:SETTING=VALUE,...]`, as in "adamw:lr=3e-4,betas=0.9/0.95,clip=1.0".

    NAME is one of `RECIPES` or `OPTIMIZERS`, or the place of a class: "file.py:Lion", "package.module:Lion" or
    "package.module.Lion". An implementation of torch's may come first ("adamw:fused,lr=3e-4"). Without NAME the
    settings are those of the workload's own optimizer ("lr=1e-4"). Raises `UsageError` for an impossible value and for
    settings that exclude each other, `UnknownNameError` for an unknown name.
    """
    name, colon, after = (part.strip() for part in text.partition(":"))
    where = f"optimizer {text}"
    if "=" in name:
        return _with_settings(_OWN, text.split(","), tuple(SETTINGS)[1:], where)
    if "." in name or "/" in name or after[:1].isupper():
        kind, _, settings = (part.strip() for part in after.partition(":"))
        if not name.endswith(".py") and ("=" in kind or not kind):
            (name, _, kind), settings = name.rpartition("."), after
        recipe = TrainingRecipe(optimizer=_optimizer(f"{name}:{kind}"))
        return _with_settings(recipe, settings.split(",") if settings else [], (), where)
    name = name.lower()
    if name not in RECIPES and name not in OPTIMIZERS:
        raise UnknownNameError("optimizer", name, (*RECIPES, *OPTIMIZERS))
    recipe = RECIPES.get(name) or TrainingRecipe(optimizer=name)
    kind, parts = recipe.optimizer, after.split(",") if colon else []
    if parts and "=" not in parts[0]:
        recipe = replace(recipe, optimizer=_optimizer(f"{kind}:{parts.pop(0).strip()}"))
    return _with_settings(recipe, parts, ("lr", *OPTIMIZERS[kind].settings, "clip"), where)


def find_recipe(spelling: str) -> TrainingRecipe:
    """Return the recipe of a `TrainingRecipe.spelling` ("": none); raises `UsageError` for no spelling."""
    parts = spelling.split(",") if spelling else []
    name = parts.pop(0) if parts and "=" not in parts[0] else ""
    if name and name not in RECIPES:
        raise UnknownNameError("recipe", name, RECIPES)
    return _with_settings(RECIPES.get(name, _OWN), parts, SETTINGS, f"recipe {spelling}")


def no_own_step(precision: Precision) -> str:
    """Return why a workload's own step cannot train in a precision; "" if it can."""
    why = f"the workload's own step trains the weights that it is given: {precision.name} has others beside them"
    return why if precision.master else ""


def _with_settings(recipe: TrainingRecipe, parts: Iterable[str], known: Iterable[str], where: str) -> TrainingRecipe:
    """Return a recipe with the settings NAME=VALUE of `parts`, each `known` or of a class that is not torch's."""
    values: dict[str, Any] = {}
    more: dict[str, Any] = {}
    pairs: list[tuple[str, str]] = []
    for part in parts:
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise UsageError(f"{where}: {part.strip()!r} is no setting: expected NAME=VALUE, as in lr=1e-4")
        first, slash, second = value.partition("/")
        if name == "betas" and not slash:
            raise UsageError(f"{where}: betas must be two numbers, as in betas=0.9/0.95")
        pairs += [("beta1", first), ("beta2", second)] if name == "betas" else [(name.replace("-", "_"), value)]
    for name, value in pairs:
        if name in values or name in more:
            raise UsageError(f"{where}: {name} is given twice")
        if is_path(values.get("optimizer", recipe.optimizer)) and name not in SETTINGS:
            more[name] = parse_value(value)
            continue
        if name not in known and name not in (SETTINGS if is_path(recipe.optimizer) else ()):
            raise UnknownNameError(f"setting of {recipe.optimizer or 'optimizers'}", name, known)
        try:
            values[name] = (
                _optimizer(value) if name == "optimizer" else msgspec.convert(parse_value(value), SETTINGS[name])
            )
        except msgspec.ValidationError as error:
            raise UsageError(f"{where}: {name}: {error}") from None
    changed = replace(recipe, **values, more=(*recipe.more, *sorted(more.items())))
    if changed.nesterov and changed.optimizer and not changed.momentum:
        raise UsageError(f"{where}: nesterov=true needs a momentum, as in momentum=0.9")
    return changed


def _recipe(name: str, summary: str, settings: str, **schedule: Any) -> TrainingRecipe:
    return replace(_with_settings(_OWN, settings.split(","), SETTINGS, name), name=name, summary=summary, **schedule)


_ROWS = (
    _recipe(
        "adamw-lm",
        "a language model from scratch, as LLaMA was trained (Touvron et al. 2023, section 2.3)",
        "optimizer=adamw,lr=3e-4,weight_decay=0.1,betas=0.9/0.95,clip=1",
        schedule=COSINE,
        warmup=0.01,  # LLaMA's 2,000 of 250,000 steps
        final=0.1,
    ),
    _recipe(
        "sgd-vision",
        "a classifier of images from scratch, as wide residual networks were trained (Zagoruyko and "
        "Komodakis 2016), with the cosine that is usual since (Loshchilov and Hutter 2017)",
        "optimizer=sgd,lr=0.1,weight_decay=5e-4,momentum=0.9,nesterov=true",
        schedule=COSINE,
    ),
    _recipe(
        "finetune",
        "fine-tuning of a transformer, as RoBERTa on GLUE (Liu et al. 2019, table 10), with the decay "
        "of torch's AdamW and clipping as in transformers' Trainer",
        "optimizer=adamw,lr=1e-5,weight_decay=0.01,clip=1",
        schedule=LINEAR,
        warmup=0.06,
    ),
)
RECIPES: Mapping[str, TrainingRecipe] = MappingProxyType({row.name: row for row in _ROWS})
"""The usual recipes by name."""

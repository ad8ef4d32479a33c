"""Steps that are looked at: the same random numbers in every precision, no dropout, modules run one by one."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from ampbench.core.precisions import Precision
from ampbench.records.case import Case
from ampbench.records.labels import few
from ampbench.trace.modules import is_compiled, uncompile
from ampbench.worker.machine import Device
from ampbench.worker.step import Step, TrainingStep, build_step
from ampbench.workload import Workload

EQUAL_DRAWS = "random numbers were drawn in fp32 and cast, so that all precisions see the same"
COMPILED = "compiled by torch.compile, and looked at as they are without: {}"
NO_DROPOUT = "dropout layers were switched off: two precisions draw different masks"

_PLAIN: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
_FACTORIES = {torch.rand, torch.randn, torch.normal}
_LIKE: dict[Any, Callable[..., torch.Tensor]] = {torch.rand_like: torch.rand, torch.randn_like: torch.randn}
_FILLING = {
    torch.Tensor.normal_,
    torch.Tensor.uniform_,
    torch.Tensor.bernoulli_,
    torch.Tensor.exponential_,
    torch.Tensor.log_normal_,
    torch.Tensor.cauchy_,
}
_SAMPLING = {
    torch.normal,
    torch.bernoulli,
    torch.Tensor.bernoulli,
    torch.multinomial,
    torch.Tensor.multinomial,
    torch.poisson,
}


def seed_all(seed: int) -> None:
    """Seed the generators of torch, NumPy and Python.

    Where there is no accelerator, the CPU's alone is told: torch notes each seed for those that are not in use yet,
    with the stack of who gave it, which takes longer than a step of a small network.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def random_states(device: Device) -> list[object]:
    """Return the states of all generators that `seed_all` seeds, to be compared."""
    numpy = [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state(legacy=True)]
    states: list[object] = [random.getstate(), numpy, torch.get_rng_state().numpy().tobytes()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device.type).get_rng_state().numpy().tobytes())
    return states


class EqualDraws(TorchFunctionMode):
    """Within it, what a network draws by torch's functions is drawn in fp32 on the CPU, and cast.

    torch draws other numbers from one seed for another dtype or device; so all precisions see the same noise. Not seen
    are draws inside other functions of torch (`gumbel_softmax`, `rrelu`), and those from a generator of the network's.
    """

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call `func`, but draw in its place."""
        given = dict(kwargs or {})
        if given.get("generator") is not None or given.get("out") is not None:
            return func(*args, **given)
        tensors = [each for each in (*args, *given.values()) if isinstance(each, torch.Tensor)]
        if func in _LIKE:
            drawn = _LIKE[func](args[0].shape, **_PLAIN)
            return torch.empty_like(*args, **given).copy_(drawn)
        if func in _FILLING and args[0].is_floating_point():
            drawn = func(torch.empty(args[0].shape, **_PLAIN), *map(_up, args[1:]), **_up(given))
            return args[0].copy_(drawn)
        if func in _SAMPLING and tensors:
            drawn = func(*map(_up, args), **_up(given))
            return drawn.to(tensors[0].device, tensors[0].dtype if drawn.is_floating_point() else drawn.dtype)
        if func in _FACTORIES and not tensors:
            dtype, where = given.pop("dtype", None), given.pop("device", None)
            drawn = func(*args, **given, **_PLAIN)
            return drawn.to(where or torch.get_default_device(), dtype or torch.get_default_dtype())
        return func(*args, **given)


def _up(value: Any) -> Any:
    """Return `value` with floating tensors in fp32 on the CPU."""
    if isinstance(value, dict):
        return {name: _up(each) for name, each in value.items()}
    return value.detach().to("cpu", torch.float32) if isinstance(value, torch.Tensor) else value


def seeded_step(
    workload: Workload,
    case: Case,
    device: Device,
    notes: list[str],
    *,
    precision: Precision | None = None,
    kept: Sequence[str] = (),
) -> Step:
    """Return a step of `case`, in another `precision` if one is named, whose random numbers begin at one seed.

    `kept` are the modules kept in fp32. Compiled modules run as they are without torch.compile, and in training dropout
    is switched off, which `notes` then say. Inference goes without gradients but not in inference mode, where torch
    does not tell which tensors are changed in place.
    """
    seed_all(0)
    step = build_step(workload, case, device, precision=precision, no_grad=True, kept=kept)
    compiled = [path or "the network" for path, module in workload.module.named_modules() if is_compiled(module)]
    if compiled and (said := COMPILED.format(few(compiled))) not in notes:
        notes.append(said)
    uncompile(step.module)
    if isinstance(step, TrainingStep):
        switch_off_dropout(step.module, notes)
    return step


@contextmanager
def unfused() -> Iterator[None]:
    """Let encoders and attention run their modules one by one in inference, where torch would run them as one op."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def switch_off_dropout(module: torch.nn.Module, notes: list[str]) -> None:
    """Switch off dropout, as a layer or inside attention and recurrent modules, and torchvision's stochastic depth.

    `notes` say so, once, where any was on.
    """
    found = False
    for layer in module.modules():
        if isinstance(layer, torch.nn.modules.dropout._DropoutNd) or type(layer).__name__ == "StochasticDepth":
            found |= bool(layer.p)
            layer.eval()
        elif isinstance(layer, torch.nn.MultiheadAttention | torch.nn.RNNBase):
            found |= bool(layer.dropout)
            layer.dropout = 0.0
    if found and NO_DROPOUT not in notes:
        notes.append(NO_DROPOUT)

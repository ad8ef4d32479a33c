"""What is timed: one step of a case, in inference the network's own call, in training all that an iteration does.

Steps that are looked at: the same random numbers in every precision, no dropout, modules run one by one.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from ampbench.core.precisions import PRECISIONS, Precision
from ampbench.core.recipes import no_own_step
from ampbench.errors import WorkloadError
from ampbench.records.case import Case
from ampbench.records.labels import few
from ampbench.trace.modules import is_compiled, uncompile
from ampbench.worker.machine import Device
from ampbench.worker.network import Network, build_network
from ampbench.worker.optimizer import Masters, SavedState, clip_as_all, in_blocks, steps_alone
from ampbench.workload import Workload

SETTLING_STEPS = 40
"""GradScaler starts at 2**16 and halves at every overflow: 40 steps bring it below the smallest fp16 number."""


def build_step(
    workload: Workload,
    case: Case,
    device: Device,
    *,
    precision: Precision | None = None,
    no_grad: bool = False,
    kept: Sequence[str] = (),
) -> "Step":
    """Return a step of `case`, built once at a fresh place in memory, ready to run again and again.

    `precision`, `no_grad` and `kept` as in `build_network`, which says what is raised: `FP64` makes the step that
    others are held against. The caller holds `precision_flags`, and `mode()` around the steps.
    """
    if case.phase == "training":
        return build_training(workload, case, device, precision=precision, kept=kept)
    return InferenceStep(build_network(workload, case, device, precision=precision, no_grad=no_grad, kept=kept))


def build_training(
    workload: Workload, case: Case, device: Device, *, precision: Precision | None = None, kept: Sequence[str] = ()
) -> "TrainingStep":
    """Return a step of `case`, which trains, as `build_step` does."""
    row = precision or PRECISIONS[case.precision]
    network = build_network(workload, case, device, precision=precision, kept=kept)
    scaler = torch.amp.GradScaler(device.type) if row.scaler and case.scaler else None
    masters = Masters(network.module, workload.module) if row.master else None
    copies = masters.by_name if masters is not None else {}
    optimizer = network.make_optimizer(copies.get(name, own) for name, own in network.module.named_parameters())
    if workload.step is not None:
        if why := no_own_step(row):
            raise WorkloadError(why)
        return OwnStep(network, optimizer, scaler)
    return TrainingStep(network, optimizer, masters, scaler)


def inference_call(network: Network) -> Callable[[], Any]:
    """Return what calls the network on its batches in turn, inside autocast where the precision has it.

    There is nothing else around the call, so that it costs what it costs in a user's loop.
    """
    autocast, call = network.autocast, network.calls[0]
    if len(network.calls) > 1:
        turns = itertools.cycle(network.calls)

        def call() -> Any:
            return next(turns)()

    if autocast is nullcontext:
        return call

    def inside_autocast() -> Any:
        with autocast():
            return call()

    return inside_autocast


class BuiltStep:
    """What steps of both phases have in common: a network, built on its device, with its data."""

    def __init__(self, network: Network):
        self.network = network
        self.module, self.data, self.device = network.module, network.data, network.device

    def mode(self) -> AbstractContextManager[Any]:
        """Return what a user holds around a loop of steps, as `Network.mode` says."""
        return self.network.mode()

    def rewind(self) -> None:
        """Let the next step take the first batch, as it was given."""
        self.network.rewind()

    def changed(self, known: Sequence[str] | None = None) -> list[str]:
        """Return what steps change in place, as `Data.changed_in_place` does."""
        return self.data.changed_in_place(known)

    def let_go(self) -> None:
        """Drop the network, its data and state: their memory is free at once, and no cycle waits to be collected."""
        self.network.release()
        self.__dict__.clear()


class InferenceStep(BuiltStep):
    """A forward pass of a network: `run` is its `inference_call`, and returns the output.

    What it changes in place (`changed`) it finds changed the next time, unless that is put back by `restore`.
    """

    def __init__(self, network: Network):
        super().__init__(network)
        self.run = inference_call(network)

    def prepare_path(self, path: str) -> float | None:
        """Compile or trace the network for `path`, run it once, and return the seconds that took; None for eager."""
        seconds = self.network.prepare(path, self._once)
        self.run = inference_call(self.network)
        return seconds

    def rewind(self) -> None:
        """Let the next step take the first batch, as it was given."""
        super().rewind()
        self.run = inference_call(self.network)

    def restore(self) -> None:
        """Put back what steps change."""
        self.network.rewind()

    def _once(self) -> None:
        with self.mode():
            inference_call(self.network)()


def _wrong_loss(loss: Any) -> str:
    """Return what is wrong with what a loss returned, "" where nothing is."""
    if not isinstance(loss, torch.Tensor):
        returned = "None" if loss is None else type(loss).__name__
    elif loss.numel() != 1:
        returned = f"a tensor of shape {tuple(loss.shape)}"
    elif not loss.requires_grad:
        returned = "a number that no parameter has part in"
    else:
        return ""
    return f"the loss returned {returned}, and a step needs one number that depends on the parameters: a 0-d tensor"


class TrainingStep(BuiltStep):
    """An iteration of training: zero_grad, forward and loss (inside autocast), backward, scaler's and optimizer's step.

    Each step takes the next batch, as it was given: what steps change in place is put back before a batch comes again.
    With `masters` the optimizer, and GradScaler, have these: gradients go to them after backward, and they go back into
    the network, rounded, after the optimizer's step. `loss` is that of the last step, `skipped_steps` how many of those
    between two calls of `restore` had one that GradScaler skipped. With `on_host` what is saved lies in the host's
    memory; it does, too, once an accelerator had no room for it.
    """

    def __init__(
        self,
        network: Network,
        optimizer: torch.optim.Optimizer,
        masters: Masters | None,
        scaler: torch.amp.GradScaler | None,
    ):
        super().__init__(network)
        self.optimizer, self.masters, self.scaler = optimizer, masters, scaler
        self.loss: torch.Tensor | None = None
        self.skipped_steps = 0
        self.on_host = False
        self._learned = network.data.learned
        self._saved: SavedState | None = None

    def run(self) -> Any:
        """Run one step and return the output."""
        output = self._backward()
        self._move()
        return output

    def prepare_path(self, path: str) -> float | None:
        """Compile or trace the network for `path`, run it once, and return the seconds that took; None for eager.

        That is a forward and a backward pass, or a step of the workload's own, and is undone.
        """
        if path == "eager":
            return None
        with self._trying():
            return self.network.prepare(path, self._backward)

    def take_batch(self, number: int) -> None:
        """Let the next step take the batch of this number, from 0 and round again after the last."""
        self.network.turn = number % len(self.data.batches)

    def stored(self) -> dict[str, torch.Tensor]:
        """Return the stored weights that the optimizer moves, by name: master weights where there are any.

        They are the step's own tensors, which change with it; each holds its gradient until the next step.
        """
        weights: dict[str, torch.Tensor] = dict(self.module.named_parameters())
        return weights | self.masters.by_name if self.masters else weights

    def forward_and_backward(self, forward: Callable[..., Any] | None = None) -> tuple[Any, torch.Tensor]:
        """Run forward, loss and backward on what a step takes; return output and loss.

        `forward` is called in the network's place. Gradients are added to those that are there.
        """
        output, loss = self.network.forward_and_loss(forward)
        if loss is None:
            raise WorkloadError(_wrong_loss(loss))
        self.differentiate(loss)
        return output, loss

    def differentiate(self, loss: torch.Tensor) -> None:
        """Run the backward pass of `loss`, scaled where there is a scaler; master weights take the gradients."""
        try:
            scaled: Any = loss if self.scaler is None else self.scaler.scale(loss)
            scaled.backward()
        except (AssertionError, AttributeError, RuntimeError, ValueError):
            if wrong := _wrong_loss(loss):
                raise WorkloadError(wrong) from None
            raise
        if self.masters is not None:
            self.masters.take_gradients()

    def unscaled_gradients(self) -> tuple[Any, dict[str, torch.Tensor]]:
        """Run forward, loss and backward; return the output, and gradients by name with the scale divided out."""
        output = self._backward()
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        return output, self._gradients()

    def apply_gradients(self) -> bool:
        """Take the optimizer's step with the gradients of `unscaled_gradients`; return whether it was taken."""
        before = 0.0 if self.scaler is None else self.scaler.get_scale()
        self._move()
        return self.scaler is None or self.scaler.get_scale() >= before

    def apply_in_blocks(self) -> bool:
        """Do `apply_gradients` for some weights at a time, if the optimizer `steps_alone`, and drop its state."""
        optimizer, scaler = self.optimizer, self.scaler
        if not steps_alone(optimizer):
            applied = self.apply_gradients()
            optimizer.state.clear()
            return applied
        skipped = scaler is not None and any(map(bool, scaler._found_inf_per_device(optimizer).values()))
        weights = {weight: weight.grad for group in optimizer.param_groups for weight in group["params"]}
        clip_as_all(optimizer, lambda: [gradient for gradient in weights.values() if gradient is not None])
        for block in [] if skipped else in_blocks({weight: weight.numel() for weight in weights}):
            optimizer.zero_grad(set_to_none=True)
            for weight in block:
                weight.grad = weights[weight]
            optimizer.step()
            optimizer.state.clear()
        if scaler is not None:
            scaler.update()
        if self.masters is not None:
            self.masters.round_into_network()
        return not skipped

    def settle_scaler(self) -> int:
        """Run GradScaler until a step has finite gradients, without changing weights; return the skipped attempts.

        Buffers (batch statistics) move and are put back. Does nothing without a scaler.
        """
        if self.scaler is None:
            return 0
        skipped = 0
        with self._trying():
            for _ in range(SETTLING_STEPS):
                self._backward()
                self.scaler.unscale_(self.optimizer)
                before = self.scaler.get_scale()
                self.scaler.update()
                if self.scaler.get_scale() >= before:
                    break
                skipped += 1
        return skipped

    def settle_at(self, settled: dict[str, Any] | None) -> None:
        """Give GradScaler, if there is one, the state that it settled at in another build; None: that is not known."""
        if self.scaler is not None and settled is not None:
            self.scaler.load_state_dict(settled)

    def start(self, settled: dict[str, Any] | None) -> dict[str, Any] | None:
        """Bring scaler and optimizer to their working state, and `save` it with the initial weights.

        The first step makes the optimizer's state and is then undone. `settled` is the scaler's state from an earlier
        build of the same case (None: settle it now); the state is returned for the next build.
        """
        if settled is None:
            self.settle_scaler()
        self.settle_at(settled)
        settled = self.scaler.state_dict() if self.scaler is not None else None
        self.save()
        self.run()
        self.restore()
        self.save()
        return settled

    def save(self) -> None:
        """Remember weights, buffers, optimizer and scaler state; `restore` puts them back."""
        if self.device.type != "cpu":
            self._saved = None  # its memory is free before it is taken again
        self._saved = SavedState(self.module, self.optimizer, self.scaler, self.stored().values(), on_host=self.on_host)
        self.on_host = self._saved.on_host

    def restore(self) -> None:
        """Put back what `save` remembered, in place, so that the next step is the same as the first after it.

        What steps `changed` is put back, too. `skipped_steps` grows by one where GradScaler has lowered its scale
        since, that is, skipped a step.
        """
        if self._saved is not None:
            self.skipped_steps += self._saved.put_back()
        self.network.rewind()

    def _gradients(self) -> dict[str, torch.Tensor]:
        """Return the gradients of the optimizer's weights by name: those of others are neither unscaled nor dropped."""
        own = {id(weight) for group in self.optimizer.param_groups for weight in group["params"]}
        known = {name: weight.grad for name, weight in self.stored().items() if id(weight) in own}
        return {name: gradient for name, gradient in known.items() if gradient is not None}

    def _backward(self) -> Any:
        """Leave the gradients of the next batch, times the scale if there is one; return the output."""
        self.optimizer.zero_grad(set_to_none=True)
        for leaf in self._learned:
            leaf.grad = None
        output, self.loss = self.forward_and_backward()
        return output

    def _move(self) -> None:
        """Take the optimizer's step, which GradScaler may skip."""
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.masters is not None:
            self.masters.round_into_network()

    @contextmanager
    def _trying(self) -> Iterator[None]:
        """Put buffers back, drop gradients and loss, and begin with the first batch again once the block has ended."""
        buffers = [(buffer, buffer.detach().clone()) for buffer in self.module.buffers()]
        try:
            yield
        finally:
            for buffer, saved in buffers:
                buffer.copy_(saved)
            self.optimizer.zero_grad(set_to_none=True)
            self.loss = None
            self.network.turn = 0


class OwnStep(TrainingStep):
    """A workload's own iteration, `Workload.step`, inside autocast: it cannot be taken apart.

    Its gradients are those that it leaves; where they are asked for, weights have moved already.
    """

    def __init__(
        self,
        network: Network,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None,
    ):
        super().__init__(network, optimizer, None, scaler)
        self._taken = True

    def forward_and_backward(
        self,
        forward: Callable[..., Any] | None = None,  # noqa: ARG002
    ) -> tuple[Any, torch.Tensor]:
        """Raise `WorkloadError`: nobody can."""
        raise WorkloadError("the workload trains by a step of its own, which cannot be taken apart")

    def apply_gradients(self) -> bool:
        """Return whether the step, which was taken, was not skipped."""
        return self._taken

    def settle_scaler(self) -> int:
        """Take steps, each undone, until GradScaler skips none; return how many it skipped."""
        skipped = 0
        for _ in range(SETTLING_STEPS if self.scaler is not None else 0):
            with self._trying():
                self._backward()
            if self._taken:
                break
            skipped += 1
        return skipped

    def unscaled_gradients(self) -> tuple[Any, dict[str, torch.Tensor]]:
        """Take the step; return the output, and the gradients that it leaves by name."""
        return self._backward(), self._gradients()

    def _backward(self) -> Any:
        """Take the step and return its output."""
        before = 0.0 if self.scaler is None else self.scaler.get_scale()
        assert self.network.own_step is not None
        with self.network.autocast():
            found = self.network.own_step(self.network.forward, self.network.next_batch(), self.optimizer, self.scaler)
        output, loss = found if isinstance(found, tuple) and len(found) == 2 else (found, found)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise WorkloadError(
                f"the workload's step returned {type(loss).__name__}; expected the loss, or (output, loss)"
            )
        self.loss = loss
        self._taken = self.scaler is None or self.scaler.get_scale() >= before
        return output

    def _move(self) -> None:
        """Do nothing: the step did."""

    @contextmanager
    def _trying(self) -> Iterator[None]:
        """Put weights, buffers and the optimizer's state back, and begin with the first batch again."""
        began = set(self.optimizer.state)
        saved = SavedState(self.module, self.optimizer, None, self.stored().values())
        try:
            yield
        finally:
            saved.put_back()
            for parameter in [one for one in self.optimizer.state if one not in began]:
                del self.optimizer.state[parameter]
            self.optimizer.zero_grad(set_to_none=True)
            self.loss = None
            self.network.rewind()


Step = InferenceStep | TrainingStep
"""One step of a case, in the phase that it has."""


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

"""The step that is timed: in inference the network's call, in training the whole iteration.

Steps that are inspected differ: equal random numbers in every precision, no dropout, modules run one by one.
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
from ampbench.worker.network import Masters, Network, SavedState, build_network, clip_as_all, in_blocks, steps_alone
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
    """Return a step of `case`, built at a fresh place in memory, for repeated runs.

    `precision`, `no_grad` and `kept` as in `build_network`, which also lists the errors; `FP64` builds the reference
    step. The caller holds `precision_flags`, and `mode()` around the steps.
    """
    if case.phase == "training":
        return build_training(workload, case, device, precision=precision, kept=kept)
    return InferenceStep(build_network(workload, case, device, precision=precision, no_grad=no_grad, kept=kept))


def build_training(
    workload: Workload, case: Case, device: Device, *, precision: Precision | None = None, kept: Sequence[str] = ()
) -> "TrainingStep":
    """Return a training step of `case`, as `build_step` does."""
    row = precision or PRECISIONS[case.precision]
    network = build_network(workload, case, device, precision=precision, kept=kept)
    scaler = torch.amp.GradScaler(device.type) if row.scaler and case.scaler else None
    masters = Masters(network.module, workload.module) if row.master else None
    copies = masters.by_name if masters is not None else {}
    optimizer = network.make_optimizer(copies.get(name, weight) for name, weight in network.module.named_parameters())
    if workload.step is not None:
        if why := no_own_step(row):
            raise WorkloadError(why)
        return OwnStep(network, optimizer, scaler)
    return TrainingStep(network, optimizer, masters, scaler)


def inference_call(network: Network) -> Callable[[], Any]:
    """Return a function that calls the network on its batches in turn, inside autocast where the precision has it.

    It adds nothing to the call, so it takes as long as in a user's loop.
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
    """The common part of steps of both phases: a network on its device, with its data."""

    def __init__(self, network: Network):
        self.network = network
        self.module, self.data, self.device = network.module, network.data, network.device

    def mode(self) -> AbstractContextManager[Any]:
        """Return the context for a loop of steps, as `Network.mode` defines it."""
        return self.network.mode()

    def rewind(self) -> None:
        """Start again at the first batch, with its original values."""
        self.network.rewind()

    def changed(self, known: Sequence[str] | None = None) -> list[str]:
        """Return the names of the tensors that steps change in place, as `Data.changed_in_place` does."""
        return self.data.changed_in_place(known)

    def let_go(self) -> None:
        """Drop the network, its data and state: their memory is free at once, without garbage collection."""
        self.network.release()
        self.__dict__.clear()


class InferenceStep(BuiltStep):
    """A forward pass of a network: `run` is its `inference_call`, and returns the output.

    Tensors that it changes in place (`changed`) stay changed until `restore`.
    """

    def __init__(self, network: Network):
        super().__init__(network)
        self.run = inference_call(network)

    def prepare_path(self, path: str) -> float | None:
        """Compile or trace the network for `path` and run it once; return the seconds, None for eager."""
        seconds = self.network.prepare(path, self._once)
        self.run = inference_call(self.network)
        return seconds

    def rewind(self) -> None:
        """Start again at the first batch, with its original values."""
        super().rewind()
        self.run = inference_call(self.network)

    def restore(self) -> None:
        """Restore the tensors that steps change."""
        self.network.rewind()

    def _once(self) -> None:
        with self.mode():
            inference_call(self.network)()


def _wrong_loss(loss: Any) -> str:
    """Return the reason why a loss is invalid, "" for a valid one."""
    if not isinstance(loss, torch.Tensor):
        returned = "None" if loss is None else type(loss).__name__
    elif loss.numel() != 1:
        returned = f"a tensor of shape {tuple(loss.shape)}"
    elif not loss.requires_grad:
        returned = "a number that depends on no parameter"
    else:
        return ""
    return f"the loss returned {returned}, and a step needs one number that depends on the parameters: a 0-d tensor"


class TrainingStep(BuiltStep):
    """An iteration of training: zero_grad, forward and loss (inside autocast), backward, scaler's and optimizer's step.

    Each step takes the next batch, restored before it comes again if steps change it in place. With `masters`, the
    optimizer and GradScaler use these: they take the gradients after backward, and are rounded into the network after
    the optimizer's step. `loss` is the last step's; `skipped_steps` counts the intervals between calls of `restore` in
    which GradScaler skipped a step. With `on_host`, the saved state is in the host's memory.
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
        """Compile or trace the network for `path` and run it once; return the seconds, None for eager.

        The run is a forward and a backward pass, or a step of the workload's own, and is undone.
        """
        if path == "eager":
            return None
        with self.trying():
            return self.network.prepare(path, self._backward)

    def take_batch(self, number: int) -> None:
        """Take the batch of this number next, from 0 and round again after the last."""
        self.network.turn = number % len(self.data.batches)

    def stored(self) -> dict[str, torch.Tensor]:
        """Return the stored weights that the optimizer moves, by name: master weights where there are any.

        They are the live tensors; each holds its gradient until the next step.
        """
        weights: dict[str, torch.Tensor] = dict(self.module.named_parameters())
        return weights | self.masters.by_name if self.masters else weights

    def forward_and_backward(self, forward: Callable[..., Any] | None = None) -> tuple[Any, torch.Tensor]:
        """Run forward, loss and backward on the next batch; return output and loss.

        `forward` replaces the network. Gradients are accumulated.
        """
        output, loss = self.network.forward_and_loss(forward)
        if loss is None:
            raise WorkloadError(_wrong_loss(loss))
        self.differentiate(loss)
        return output, loss

    def differentiate(self, loss: torch.Tensor) -> None:
        """Run the backward pass of `loss`, scaled if there is a scaler; master weights take the gradients."""
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
        """Run forward, loss and backward; return the output, and the unscaled gradients by name."""
        output = self._backward()
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        return output, self._gradients()

    def add_gradients(self, inputs: Any, targets: Any) -> dict[str, torch.Tensor]:
        """Add the gradients of another batch to those of the weights, without a scaler, and return the sums by name."""
        loss = self.network.judge(*self.data.placed(inputs, targets))[1]
        assert loss is not None
        self.differentiate(loss)
        return self._gradients()

    def apply_gradients(self) -> bool:
        """Take the optimizer's step with the gradients of `unscaled_gradients`; return whether it was taken."""
        before = 0.0 if self.scaler is None else self.scaler.get_scale()
        self._move()
        return self.scaler is None or self.scaler.get_scale() >= before

    def apply_in_blocks(self) -> bool:
        """Do `apply_gradients` on some weights at a time, if the optimizer `steps_alone`, and drop its state."""
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

        Buffers (batch statistics) are restored. Does nothing without a scaler.
        """
        if self.scaler is None:
            return 0
        skipped = 0
        with self.trying():
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
        """Give GradScaler, if there is one, the `settled` state from another build (None: unknown)."""
        if self.scaler is not None and settled is not None:
            self.scaler.load_state_dict(settled)

    def start(self, settled: dict[str, Any] | None) -> dict[str, Any] | None:
        """Bring scaler and optimizer to their working state, and `save` it with the initial weights.

        The first step creates the optimizer's state and is then undone. `settled` is the scaler's state from an earlier
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
        """Save weights, buffers, optimizer and scaler state for `restore`."""
        if self.device.type != "cpu":
            self._saved = None  # frees its memory first
        self._saved = SavedState(self.module, self.optimizer, self.scaler, self.stored().values(), on_host=self.on_host)

    def restore(self) -> None:
        """Restore the saved state in place, so that the next step equals the first after `save`.

        Tensors that steps `changed` are restored, too. `skipped_steps` grows by one where GradScaler has lowered its
        scale since, which means a skipped step.
        """
        if self._saved is not None:
            self.skipped_steps += self._saved.put_back()
        self.network.rewind()

    def _gradients(self) -> dict[str, torch.Tensor]:
        """Return the gradients of the optimizer's weights by name: gradients of other weights are not unscaled."""
        moved = {id(weight) for group in self.optimizer.param_groups for weight in group["params"]}
        known = {name: weight.grad for name, weight in self.stored().items() if id(weight) in moved}
        return {name: gradient for name, gradient in known.items() if gradient is not None}

    def _backward(self) -> Any:
        """Compute the gradients of the next batch, times the scale if there is one; return the output."""
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
    def trying(self) -> Iterator[None]:
        """Undo the block's changes: restore buffers, drop gradients and loss, return to the first batch."""
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
    """A workload's own iteration, `Workload.step`, inside autocast: it runs only as a whole.

    Its gradients are those it leaves behind, after the weights have moved.
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
        """Raise `WorkloadError`: the step has no separate parts."""
        raise WorkloadError("the workload trains by its own step, which cannot be split")

    def apply_gradients(self) -> bool:
        """Return whether the step was taken, not skipped."""
        return self._taken

    def settle_scaler(self) -> int:
        """Take steps, each undone, until GradScaler skips none; return how many it skipped."""
        skipped = 0
        for _ in range(SETTLING_STEPS if self.scaler is not None else 0):
            with self.trying():
                self._backward()
            if self._taken:
                break
            skipped += 1
        return skipped

    def unscaled_gradients(self) -> tuple[Any, dict[str, torch.Tensor]]:
        """Take the step; return the output, and the remaining gradients by name."""
        return self._backward(), self._gradients()

    def _backward(self) -> Any:
        """Take the step and return its output."""
        before = 0.0 if self.scaler is None else self.scaler.get_scale()
        turn, step = self.network.next_turn(), self.network.own_step
        assert step is not None
        batch = self.data.batches[turn]
        with self.network.autocast():
            given = (batch, self.data.targets[turn]) if self.network.has_targets else batch
            pair = step(self.network.forward, given, self.optimizer, self.scaler)
        output, loss = pair if isinstance(pair, tuple) and len(pair) == 2 else (pair, pair)
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
    def trying(self) -> Iterator[None]:
        """Undo the block's changes: restore weights, buffers and optimizer state, return to the first batch."""
        began = set(self.optimizer.state)
        saved = SavedState(self.module, self.optimizer, None, self.stored().values())
        try:
            yield
        finally:
            saved.put_back()
            for parameter in [parameter for parameter in self.optimizer.state if parameter not in began]:
                del self.optimizer.state[parameter]
            self.optimizer.zero_grad(set_to_none=True)
            self.loss = None
            self.network.rewind()


Step = InferenceStep | TrainingStep
"""One step of a case, in its phase."""


EQUAL_DRAWS = "random numbers were drawn in fp32 and cast, so that all precisions see the same"
COMPILED = "inspected without torch.compile: {}"
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

    Without an accelerator, only the CPU's of torch's: `torch.manual_seed` also records seeds, with a stack trace, for
    devices not in use, which takes longer than a step of a small network.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def forked_draws(device: Device) -> AbstractContextManager[Any]:
    """Return a context after which torch draws as before, on the CPU and the device."""
    if device.type == "cpu":
        return torch.random.fork_rng([])
    return torch.random.fork_rng([torch.accelerator.current_device_index()], device_type=device.type)


def random_states(device: Device) -> list[object]:
    """Return the states of all generators that `seed_all` seeds, for comparison."""
    numpy = [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state(legacy=True)]
    states: list[object] = [random.getstate(), numpy, torch.get_rng_state().numpy().tobytes()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device.type).get_rng_state().numpy().tobytes())
    return states


class EqualDraws(TorchFunctionMode):
    """Draws a network's random numbers in fp32 on the CPU, and casts them, within a `with` statement.

    torch draws other numbers from the same seed for another dtype or device; here all precisions get the same noise.
    Draws inside other functions of torch (`gumbel_softmax`, `rrelu`) and from the network's own generators are not
    covered.
    """

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call `func`, or draw in its place."""
        keywords = dict(kwargs or {})
        if keywords.get("generator") is not None or keywords.get("out") is not None:
            return func(*args, **keywords)
        tensors = [argument for argument in (*args, *keywords.values()) if isinstance(argument, torch.Tensor)]
        if func in _LIKE:
            drawn = _LIKE[func](args[0].shape, **_PLAIN)
            return torch.empty_like(*args, **keywords).copy_(drawn)
        if func in _FILLING and args[0].is_floating_point():
            drawn = func(torch.empty(args[0].shape, **_PLAIN), *map(_up, args[1:]), **_up(keywords))
            return args[0].copy_(drawn)
        if func in _SAMPLING and tensors:
            drawn = func(*map(_up, args), **_up(keywords))
            return drawn.to(tensors[0].device, tensors[0].dtype if drawn.is_floating_point() else drawn.dtype)
        if func in _FACTORIES and not tensors:
            dtype, where = keywords.pop("dtype", None), keywords.pop("device", None)
            drawn = func(*args, **keywords, **_PLAIN)
            return drawn.to(where or torch.get_default_device(), dtype or torch.get_default_dtype())
        return func(*args, **keywords)


def _up(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _up(item) for name, item in value.items()}
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
    """Return a step of `case`, in another `precision` if one is named, with seeded random numbers.

    `kept` are the modules kept in fp32. Compiled modules run uncompiled, and in training dropout is off; `notes` say
    so. Inference runs without gradients but not in inference mode, where torch does not report changes in place.
    """
    seed_all(0)
    step = build_step(workload, case, device, precision=precision, no_grad=True, kept=kept)
    compiled = [path or "the network" for path, module in workload.module.named_modules() if is_compiled(module)]
    if compiled and (note := COMPILED.format(few(compiled))) not in notes:
        notes.append(note)
    uncompile(step.module)
    if isinstance(step, TrainingStep):
        switch_off_dropout(step.module, notes)
    return step


@contextmanager
def unfused() -> Iterator[None]:
    """Let encoders and attention run their modules one by one in inference, instead of as torch's fused op."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def switch_off_dropout(module: torch.nn.Module, notes: list[str]) -> None:
    """Switch off dropout, as a layer or inside attention and recurrent modules, and torchvision's stochastic depth.

    `notes` say so once, if any was on.
    """
    was_on = False
    for layer in module.modules():
        if isinstance(layer, torch.nn.modules.dropout._DropoutNd) or type(layer).__name__ == "StochasticDepth":
            was_on |= bool(layer.p)
            layer.eval()
        elif isinstance(layer, torch.nn.MultiheadAttention | torch.nn.RNNBase):
            was_on |= bool(layer.dropout)
            layer.dropout = 0.0
    if was_on and NO_DROPOUT not in notes:
        notes.append(NO_DROPOUT)

"""One build of a case: the network and its inputs on the device, in the precision, ready to run step after step."""

import copy
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ampbench.base.precisions import PRECISIONS, REFERENCE_DTYPE, SHORT_DTYPES, Precision
from ampbench.errors import UsageError
from ampbench.explain.dtypes import autocast_of
from ampbench.measure.data import (
    batches_of,
    bound,
    called_with,
    carried,
    differing,
    differs,
    placed,
    put_back,
    stored_dtype,
    tensors_of,
)
from ampbench.measure.machine import Device
from ampbench.measure.state import SavedState, keep_named, refuse_moved
from ampbench.records.case import Case
from ampbench.workload import Workload

SETTLING_STEPS = 40
"""GradScaler starts at 2**16 and halves at every overflow: 40 steps bring it below the smallest fp16 number."""

MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
_LONG_DTYPES = {short: getattr(torch, name) for name, short in SHORT_DTYPES.items()}


def default_optimizer(parameters: Any) -> torch.optim.Optimizer:
    """Return plain SGD with lr 0.01: what trains a workload that names no optimizer."""
    return torch.optim.SGD(parameters, lr=0.01)


class Masters:
    """fp32 copies of the weights that `module` stores in half: they, and their gradients, are what an optimizer moves.

    They begin with the values of `original`, unrounded. Weights that are stored in the original's dtype, or need no
    gradient, have no copy. `by_name` are the copies by the names of their parameters.
    """

    def __init__(self, module: torch.nn.Module, original: torch.nn.Module):
        given = dict(original.named_parameters())
        halves = {
            name: weight
            for name, weight in module.named_parameters()
            if weight.requires_grad and name in given and weight.dtype != given[name].dtype
        }
        self.by_name = {
            name: torch.nn.Parameter(torch.empty_like(half, dtype=given[name].dtype).copy_(given[name].detach()))
            for name, half in halves.items()
        }
        self._pairs = [(half, self.by_name[name]) for name, half in halves.items()]

    def take_gradients(self) -> None:
        """Hand the network's gradients to the masters, in their dtype; the network keeps none."""
        taken, given = [], []
        for half, master in self._pairs:
            gradient, half.grad = half.grad, None
            if gradient is None or gradient.layout is not torch.strided:
                master.grad = None if gradient is None else gradient.to(master.dtype)
                continue
            master.grad = torch.empty_like(master)
            taken.append(master.grad)
            given.append(gradient)
        if taken:
            torch._foreach_copy_(taken, given)

    @torch.no_grad()
    def round_into_network(self) -> None:
        """Give the network the masters' values, rounded to the dtype that it computes in."""
        if self._pairs:
            torch._foreach_copy_([half for half, _ in self._pairs], [master for _, master in self._pairs])


class Step:
    """A case built once at a fresh place in memory.

    `run()` is one step and returns the output. In `inference` it is the network's own call (inside autocast, if the
    precision has it), nothing around it, so that it costs what it costs in a user's loop; in `training` zero_grad,
    forward and loss (inside autocast), backward, GradScaler's and the optimizer's step. Each step takes the next batch.
    With master weights the optimizer, and GradScaler, have these: gradients go to them after backward, and they go
    back into the network, rounded, after the optimizer's step.
    Floating inputs are given in the case's `input_dtype`. Weights and buffers are in the dtypes of the workload's where
    the precision stores fp32, and as `stored_dtype` says in half and in the reference. What a step changes in place
    (`changed`) is put back before a batch is given again, but in inference not by `run`. With `reference`, everything
    is fp64, without autocast or scaler; with another `precision`, inputs are as that precision stores them. The caller
    holds `flags.precision_flags`, and `mode()` around the steps: with `no_grad`, `torch.no_grad` instead of inference
    mode. Modules and tensors that the loss holds (see `losses`) are moved and cast as targets are; `held` are their
    tensors.
    The modules that `kept` names ("" is the network) are kept in fp32 by `keep_fp32`, but not in the reference; where
    weights are stored in half, their outputs go back to half, but for those of a whole network in inference. Raises
    `UnknownNameError` for a name of no module, and `UsageError` where a kept module shares a parameter with one that
    moves it to half.
    `by_inputs` tells that an input requires a gradient, so that the forward pass needs autograd in inference, too.
    A user's own precision prepares the network and `make_optimizer`, which makes the optimizer, unless `reference`.
    `fake` is for a workload of fake tensors (see `absent`), which lie on the device already, the weights in their
    dtype: the network is not copied, and without optimizer and scaler only `forward_and_loss` can run.
    """

    def __init__(
        self,
        workload: Workload,
        case: Case,
        device: Device,
        *,
        reference: bool = False,
        precision: str | None = None,
        no_grad: bool = False,
        fake: bool = False,
        kept: Sequence[str] = (),
    ):
        row = PRECISIONS[precision or case.precision]
        storage = getattr(torch, REFERENCE_DTYPE if reference else row.storage)
        given = storage if reference or precision else _LONG_DTYPES[case.input_dtype]
        self._storage, self._given = storage, given
        self._where: dict[str, Any] = {} if fake else {"device": device.type}
        self.training = case.phase == "training"
        self.device = device
        self._channels_last = case.memory_format == "channels_last"
        self._no_grad = no_grad
        self.module = workload.module
        if not fake:
            copies: dict[int, Any] = {}
            self.module = copy.deepcopy(workload.module, copies)
            kept = [] if reference else kept
            if kept:
                # what a whole network returns is for its user, who takes fp32; a loss may not, beside targets in half
                cast_back = storage is not torch.float32 and (self.training or "" not in kept)
                keep_named(self.module, kept, cast_back=cast_back)
            self._store(self.module)
            if kept and storage is not torch.float32:
                refuse_moved(self.module, kept, storage)
            if self._channels_last:
                self.module = self.module.to(memory_format=torch.channels_last)
        self._prepare(workload, None if reference or fake else row)
        self._original, originals = workload.module, batches_of(workload.inputs)
        targets = (workload.targets if isinstance(workload.inputs, list) else [workload.targets]) or []
        self._originals = list(zip(originals, targets or [None] * len(originals), strict=True))
        self.batches = [self._placed(batch, given) for batch, _ in self._originals]
        self.targets = [self._placed(target, storage) for _, target in self._originals]
        self._learned = [leaf for leaf in tensors_of(self.batches) if leaf.requires_grad]
        self.by_inputs = bool(self._learned)
        self._seen: set[int] = set()
        self._changed: list[str] | None = [] if fake else None
        self.loss: torch.Tensor | None = None
        self._turn = 0
        self._loss_function, self.held = workload.loss, list[torch.Tensor]()
        if self.training and not fake:
            place = functools.partial(self._placed, storage=storage)
            self._loss_function, self.held = carried(workload.loss, copies, place, self._store)
        self._has_targets = workload.targets is not None
        self.autocast = nullcontext if reference else autocast_of(row, device.type, absent=fake)
        self.optimizer: torch.optim.Optimizer | None = None
        self.masters: Masters | None = None
        self.scaler: torch.amp.GradScaler | None = None
        self.module.train(self.training)
        if self.training and not fake:
            self._make_optimizer(workload, None if reference else row, scaled=case.scaler)
        self._use(self.module)
        self._saved: SavedState | None = None
        self.skipped_steps = 0

    def prepare_path(self, path: str) -> float | None:
        """Compile or trace the network for `path`, run it once, and return the seconds that took; None for eager.

        In training that is a forward and a backward pass, which changes no weight; buffers are put back.
        """
        if path == "eager":
            return None
        if path == "compiled":
            torch.compiler.reset()  # one process may compile many networks, and torch gives up after eight of a class
        start = perf_counter()
        forward = torch.compile(self.module) if path == "compiled" else self._traced()
        self._use(forward)
        if self.training:
            with self._trying():
                self._backward()
                self.device.synchronize()
                seconds = perf_counter() - start
        else:
            with self.mode():
                self.run()
            self.device.synchronize()
            seconds = perf_counter() - start
        self._use(forward)  # the first batch comes first again
        self._renew()
        return seconds

    def mode(self) -> AbstractContextManager[Any]:
        """Return what a user holds around a loop of steps: `torch.inference_mode`, as PyTorch advises, or nothing.

        Nothing, too, where an input requires a gradient: such a network differentiates in its forward pass.
        """
        if self.training or self.by_inputs:
            return nullcontext()
        return torch.no_grad() if self._no_grad else torch.inference_mode()

    def rewind(self) -> None:
        """Let the next step take the first batch, as it was given."""
        self._turn = 0
        self._renew()
        self._use(self._forward)

    def take_batch(self, number: int) -> None:
        """Let the next training step take the batch of this number, from 0 and round again after the last."""
        self._turn = number % len(self.batches)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the first batch as the network is called with it: positional arguments, and those by name."""
        return called_with(self.batches[0])

    def stored(self) -> dict[str, torch.Tensor]:
        """Return the stored weights that the optimizer moves, by name: master weights where there are any.

        They are the step's own tensors, which change with it; each holds its gradient until the next step.
        """
        weights: dict[str, torch.Tensor] = dict(self.module.named_parameters())
        return weights | self.masters.by_name if self.masters else weights

    def store_weights(self, names: Iterable[str], dtype: torch.dtype) -> None:
        """Store the parameters of these names in `dtype`."""
        parameters = dict(self.module.named_parameters())
        for name in names:
            parameters[name].data = parameters[name].data.to(dtype)

    def forward_and_loss(self, forward: Callable[..., Any] | None = None) -> tuple[Any, torch.Tensor | None]:
        """Run the forward pass and, in training, the loss on the next batch, inside autocast; return both results.

        `forward` is called in the network's place.
        """
        turn, self._turn = self._turn, (self._turn + 1) % len(self._calls)
        if self._changed != [] and turn in self._seen:
            self._renew()
        self._seen.add(turn)
        call = self._calls[turn] if forward is None else bound(forward, self.batches[turn])
        return self._called(call, self.targets[turn])

    def placed(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Return copies of a batch and its targets, none of the step's own, on the device in the dtypes of those."""
        return self._placed(inputs, self._given), self._placed(targets, self._storage)

    def forward(self, batch: Any) -> Any:
        """Run the forward pass alone, inside autocast, on a batch that is `placed`; what it is given it may change."""
        with self.autocast():
            return bound(self._forward, batch)()

    def judge(self, batch: Any, targets: Any) -> tuple[Any, torch.Tensor | None]:
        """Run the forward pass and, in training, the loss on a copy of a batch, as its turns do."""
        batch, targets = pytree.tree_map_only(torch.Tensor, _copied, (batch, targets))
        return self._called(bound(self._forward, batch), targets)

    def watch_loss(self, region: AbstractContextManager[Any]) -> None:
        """Hold `region` around each call of the loss."""
        function = self._loss_function

        def within(*given: Any) -> torch.Tensor:
            with region:
                return function(*given)  # type: ignore[misc]

        self._loss_function = within if function is not None else None

    def apply_loss(self, output: Any) -> None:
        """Call the loss, if there is one, on the output of the first batch, whatever the phase."""
        if self._loss_function is not None:
            self._loss_function(*((output, self.targets[0]) if self._has_targets else (output,)))

    def differentiate(self, loss: torch.Tensor) -> None:
        """Run the backward pass of `loss`, scaled where there is a scaler; master weights take the gradients."""
        scaled: Any = loss if self.scaler is None else self.scaler.scale(loss)
        scaled.backward()
        if self.masters is not None:
            self.masters.take_gradients()

    def settle_scaler(self) -> int:
        """Run GradScaler until a step has finite gradients, without changing weights; return the skipped attempts.

        Buffers (batch statistics) move and are put back. Does nothing without a scaler.
        """
        if self.scaler is None or self.optimizer is None:
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

    def start_training(self, settled: dict[str, Any] | None) -> dict[str, Any] | None:
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
        self._saved = SavedState(self.module, self.optimizer, self.scaler, self.stored().values())

    def restore(self) -> None:
        """Put back what `save` remembered, in place, so that the next step is the same as the first after it.

        What steps `changed` is put back, too, in inference nothing else. `skipped_steps` grows by one where GradScaler
        has lowered its scale since, that is, skipped a step.
        """
        if self._saved is not None:
            self.skipped_steps += self._saved.put_back()
        self._turn = 0
        self._renew()

    def changed(self, known: Sequence[str] | None = None) -> list[str]:
        """Return what steps change in place that is not theirs to change, by its name; to be asked after a step.

        That is inputs and targets and, in inference, weights and buffers. It is looked for once, and not where it is
        `known` of another build; after that, and for the next step, all is as it was given.
        """
        if self._changed is None and known is not None:
            self._changed = list(known)
        self._renew()
        self._changed = self._changed or []
        return self._changed

    def unscaled_gradients(self) -> tuple[Any, dict[str, torch.Tensor]]:
        """Run forward, loss and backward; return the output, and gradients by name with the scale divided out."""
        output = self._backward()
        if self.scaler is not None and self.optimizer is not None:
            self.scaler.unscale_(self.optimizer)
        return output, {name: weight.grad for name, weight in self.stored().items() if weight.grad is not None}

    def apply_gradients(self) -> bool:
        """Take the optimizer's step with the gradients of `unscaled_gradients`; return whether it was taken."""
        before = 0.0 if self.scaler is None else self.scaler.get_scale()
        self._move()
        return self.scaler is None or self.scaler.get_scale() >= before

    def let_go(self) -> None:
        """Drop the network, its data and state: their memory is free at once, and no cycle waits to be collected."""
        from ampbench.explain.keep_fp32 import release_fp32  # no step that is timed for itself needs it

        for module in self.module.modules():
            release_fp32(module)
        self.__dict__.clear()

    def _store(self, module: torch.nn.Module) -> None:
        """Bring a network to the device and, where the step does not store fp32, its weights and buffers into that."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            kept = self._storage is torch.float32
            dtype = tensor.dtype if kept else stored_dtype(tensor.dtype, self._storage)
            return tensor.to(device=self.device.type, dtype=dtype)

        module._apply(moved)  # type: ignore[no-untyped-call]

    def _prepare(self, workload: Workload, row: Precision | None) -> None:
        """Have a user's own precision prepare the network and its optimizer.

        Raises `UsageError` where it returns something else, and what it raises itself.
        """
        self.make_optimizer: MakeOptimizer = workload.optimizer or default_optimizer
        self._prepared = row is not None and row.prepare is not None
        if row is None or row.prepare is None:
            return
        returned = row.prepare(self.module, self.make_optimizer if self.training else None)
        module, made = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
        if not isinstance(module, torch.nn.Module) or not (made is None or callable(made)):
            said = f"precision {row.name}: prepare returned {type(returned).__name__}"
            raise UsageError(f"{said}; expected the module, or (module, optimizer)")
        self.module, self.make_optimizer = module, made or self.make_optimizer

    def _make_optimizer(self, workload: Workload, row: Precision | None, *, scaled: bool) -> None:
        """Make the optimizer, of the network's weights or of masters, and GradScaler (row None: the reference)."""
        copies: dict[str, torch.nn.Parameter] = {}
        if row is not None and row.scaler and scaled:
            self.scaler = torch.amp.GradScaler(self.device.type)
        if row is not None and row.master:
            self.masters = Masters(self.module, workload.module)
            copies = self.masters.by_name
        moved = (copies.get(name, own) for name, own in self.module.named_parameters())
        self.optimizer = self.make_optimizer(moved)

    def _differing(self) -> list[str]:
        """Return the names of what does not hold the values that it was given; of batches, those that ran are asked."""
        found = [
            f"{what}{place}"
            for turn in self._ran()
            for what, own, given in (
                ("input", self.batches[turn], self._originals[turn][0]),
                ("target", self.targets[turn], self._originals[turn][1]),
            )
            for place in differing(own, given)
        ]
        if not self.training:
            found += [name for name, tensor, given in self._weights() if differs(tensor, given)]
        return list(dict.fromkeys(found))

    def _weights(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Yield the parameters and buffers that the network was given, as they are and as they were.

        Of one that a precision has prepared, nothing: it may hold others by the same names.
        """
        if self._prepared:
            return
        for kind, own, given in (
            ("weight", self.module.named_parameters(), self._original.named_parameters()),
            ("buffer", self.module.named_buffers(), self._original.named_buffers()),
        ):
            originals = dict(given)
            yield from ((f"{kind} {name}", tensor, originals[name]) for name, tensor in own if name in originals)

    def _renew(self) -> None:
        """Put back what steps change in place, if they do, unseen by whoever watches the ops of a step."""
        with torch.no_grad(), _disable_current_modes():
            if self._changed is None:
                self._changed = self._differing() or ([] if self._seen else None)
            if not self._changed:
                return
            for turn in self._ran():
                own = tensors_of([self.batches[turn], self.targets[turn]])
                for tensor, given in zip(own, tensors_of(list(self._originals[turn])), strict=False):
                    put_back(tensor, given)
            if not self.training:
                for _, tensor, given in self._weights():
                    tensor.copy_(given)
        self._seen.clear()

    def _ran(self) -> list[int]:
        """Return which batches may have run: in inference `run` does not tell."""
        return sorted(self._seen) if self.training else list(range(len(self.batches)))

    def _called(self, call: Callable[[], Any], targets: Any) -> tuple[Any, torch.Tensor | None]:
        """Return what `call` returns and, in training, the loss of that, both inside autocast."""
        with self.autocast():
            output = call()
            if not self.training:
                return output, None
            given = (output, targets) if self._has_targets else (output,)
            loss = self._loss_function(*given)  # type: ignore[misc]
        return output, loss

    def _use(self, forward: Callable[..., Any]) -> None:
        """Make `forward` what the steps call: the network itself, compiled or traced."""
        self._forward = forward
        self._calls = [bound(forward, batch) for batch in self.batches]
        self.run: Callable[[], Any] = self._train if self.training else self._inference()

    def _inference(self) -> Callable[[], Any]:
        autocast, call = self.autocast, self._calls[0]
        if len(self._calls) > 1:
            turns = itertools.cycle(self._calls)

            def call() -> Any:
                return next(turns)()

        if autocast is nullcontext:
            return call

        def inside_autocast() -> Any:
            with autocast():
                return call()

        return inside_autocast

    def _train(self) -> Any:
        output = self._backward()
        self._move()
        return output

    def _move(self) -> None:
        """Take the optimizer's step, which GradScaler may skip."""
        if self.scaler is None:
            self.optimizer.step()  # type: ignore[union-attr]
        else:
            self.scaler.step(self.optimizer)  # type: ignore[arg-type]
            self.scaler.update()
        if self.masters is not None:
            self.masters.round_into_network()

    def _backward(self) -> Any:
        self.optimizer.zero_grad(set_to_none=True)  # type: ignore[union-attr]
        for leaf in self._learned:
            leaf.grad = None
        output, loss = self.forward_and_loss()
        assert loss is not None
        self.differentiate(loss)
        self.loss = loss
        return output

    @contextmanager
    def _trying(self) -> Iterator[None]:
        """Put buffers back, drop gradients and loss, and begin with the first batch again once the block has ended."""
        buffers = [(buffer, buffer.detach().clone()) for buffer in self.module.buffers()]
        try:
            yield
        finally:
            for buffer, saved in buffers:
                buffer.copy_(saved)
            self.optimizer.zero_grad(set_to_none=True)  # type: ignore[union-attr]
            self.loss = None
            self._turn = 0

    def _placed(self, tree: Any, storage: torch.dtype) -> Any:
        return placed(tree, storage, self._where, channels_last=self._channels_last)

    def _traced(self) -> Callable[..., Any]:
        """Return the network traced inside autocast and frozen."""
        from ampbench.explain.graphs.traced import trace_frozen  # no other path needs what reads traces

        args, kwargs = self.arguments()
        return trace_frozen(self.module, args, kwargs, self.autocast)[1]  # type: ignore[no-any-return]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)

"""One build of a case: the network and its inputs on the device, in the precision, ready to run step after step."""

import copy
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ampbench.precisions import PRECISIONS, REFERENCE_DTYPE
from ampbench.records.cases import Case
from ampbench.worker.devices import Device
from ampbench.worker.sources import batches_of
from ampbench.workload import Workload

SETTLING_STEPS = 40
"""GradScaler starts at 2**16 and halves at every overflow: 40 steps bring it below the smallest fp16 number."""


def default_optimizer(parameters: Any) -> torch.optim.Optimizer:
    """Return plain SGD with lr 0.01: what trains a workload that names no optimizer."""
    return torch.optim.SGD(parameters, lr=0.01)


class Step:
    """A case built once at a fresh place in memory.

    `run()` is one step: in `inference`, forward under `torch.inference_mode` (as PyTorch recommends); in `training`,
    zero_grad, forward and loss (inside autocast, if the precision has it), backward, GradScaler's and the optimizer's
    step. Each step takes the next batch. `output` and `loss` hold what the last step gave. With `reference`, everything
    is fp64, without autocast or scaler. The caller holds `flags.precision_flags`.
    """

    def __init__(
        self, workload: Workload, case: Case, device: Device, *, reference: bool = False, precision: str | None = None
    ):
        row = PRECISIONS[precision or case.precision]
        storage = getattr(torch, REFERENCE_DTYPE if reference else row.storage)
        autocast = None if reference or row.autocast is None else getattr(torch, row.autocast)
        self.training = case.phase == "training"
        self.device = device
        self._channels_last = case.memory_format == "channels_last"
        self.module = copy.deepcopy(workload.module).to(device=device.type, dtype=storage)
        if self._channels_last:
            self.module = self.module.to(memory_format=torch.channels_last)
        self.batches = [self._placed(batch, storage) for batch in batches_of(workload.inputs)]
        targets = workload.targets if isinstance(workload.inputs, list) else [workload.targets]
        self.targets = [self._placed(target, storage) for target in targets or [None] * len(self.batches)]
        self.output: Any = None
        self.loss: torch.Tensor | None = None
        self.skipped_steps = 0
        self._turn = 0
        self._loss_function = workload.loss
        self._has_targets = workload.targets is not None
        self._autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        if autocast is not None:
            self._autocast = lambda: torch.autocast(device.type, dtype=autocast)
        self.optimizer: torch.optim.Optimizer | None = None
        self.scaler: torch.amp.GradScaler | None = None
        if self.training:
            self.module.train()
            self.optimizer = (workload.optimizer or default_optimizer)(self.module.parameters())
            if row.scaler and case.scaler and not reference:
                self.scaler = torch.amp.GradScaler(device.type)
        else:
            self.module.eval()
        self.forward: Callable[..., Any] = self.module
        self._saved: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._saved_scaler: dict[str, Any] = {}

    def prepare_path(self, path: str) -> float | None:
        """Compile or trace the network for `path`, run it once, and return the seconds that took; None for eager."""
        if path == "eager":
            return None
        start = perf_counter()
        if path == "compiled":
            self.forward = torch.compile(self.module)
        else:
            self.forward = self._traced()
        self.run()
        self.device.synchronize()
        return perf_counter() - start

    def run(self) -> None:
        """Run one step."""
        if self.training:
            self._train()
        else:
            self._infer()

    def settle_scaler(self) -> int:
        """Run GradScaler until a step has finite gradients, without changing weights; return the refused attempts.

        Buffers (batch statistics) move and are put back. Does nothing without a scaler.
        """
        if self.scaler is None or self.optimizer is None:
            return 0
        buffers = [(buffer, buffer.detach().clone()) for buffer in self.module.buffers()]
        refused = 0
        for _ in range(SETTLING_STEPS):
            self._backward()
            self.scaler.unscale_(self.optimizer)
            before = self.scaler.get_scale()
            self.scaler.update()
            if self.scaler.get_scale() >= before:
                break
            refused += 1
        for buffer, saved in buffers:
            buffer.copy_(saved)
        self.optimizer.zero_grad(set_to_none=True)
        self._turn = 0
        return refused

    def start_training(self, settled: dict[str, Any] | None) -> dict[str, Any] | None:
        """Bring scaler and optimizer to their working state, and `save` it with the initial weights.

        The first step makes the optimizer's state and is then undone. `settled` is the scaler's state from an earlier
        build of the same case (None: settle it now); the state is returned for the next build.
        """
        if self.scaler is not None and settled is not None:
            self.scaler.load_state_dict(settled)
        else:
            self.settle_scaler()
        settled = self.scaler.state_dict() if self.scaler is not None else None
        self.save()
        self.run()
        self.restore()
        self.save()
        return settled

    def save(self) -> None:
        """Remember weights, buffers, optimizer and scaler state; `restore` puts them back."""
        live = [*self.module.parameters(), *self.module.buffers()]
        if self.optimizer is not None:
            for state in self.optimizer.state.values():
                live += [value for value in state.values() if isinstance(value, torch.Tensor)]
        self._saved = [(tensor, tensor.detach().clone()) for tensor in live]
        if self.scaler is not None:
            self._saved_scaler = self.scaler.state_dict()

    def restore(self) -> None:
        """Put back what `save` remembered, in place, so that the next step is the same as the first after it."""
        with torch.no_grad():
            for tensor, saved in self._saved:
                tensor.copy_(saved)
        if self.scaler is not None:
            self.scaler.load_state_dict(self._saved_scaler)
        self._turn = 0

    def unscaled_gradients(self) -> dict[str, torch.Tensor]:
        """Run forward, loss and backward, and return every parameter's gradient by name with the scale divided out."""
        self._backward()
        if self.scaler is not None and self.optimizer is not None:
            self.scaler.unscale_(self.optimizer)
        return {name: p.grad for name, p in self.module.named_parameters() if p.grad is not None}

    def apply_gradients(self) -> bool:
        """Take the optimizer's step with the gradients of `unscaled_gradients`; return whether it was taken."""
        assert self.optimizer is not None
        if self.scaler is None:
            self.optimizer.step()
            return True
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= before

    def _infer(self) -> None:
        batch, _ = self._next()
        with torch.inference_mode(), self._autocast():
            self.output = self._call(batch)

    def _train(self) -> None:
        self._backward()
        if self.scaler is None:
            self.optimizer.step()  # type: ignore[union-attr]
        else:
            self.scaler.step(self.optimizer)  # type: ignore[arg-type]
            self.scaler.update()

    def _backward(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)  # type: ignore[union-attr]
        batch, target = self._next()
        with self._autocast():
            output = self._call(batch)
            loss = self._loss_function(output, target) if self._has_targets else self._loss_function(output)  # type: ignore[misc]
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        self.output, self.loss = output, loss

    def _call(self, batch: Any) -> Any:
        if isinstance(batch, tuple):
            return self.forward(*batch)
        if isinstance(batch, dict):
            return self.forward(**batch)
        return self.forward(batch)

    def _next(self) -> tuple[Any, Any]:
        turn = self._turn
        self._turn = (turn + 1) % len(self.batches)
        return self.batches[turn], self.targets[turn]

    def _placed(self, tree: Any, storage: torch.dtype) -> Any:
        """Return a copy of `tree` on the device: floating tensors in `storage`, others in their own dtype."""

        def place(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            dtype = storage if leaf.is_floating_point() else leaf.dtype
            layout = torch.channels_last if self._channels_last and leaf.ndim == 4 else torch.preserve_format
            return leaf.to(device=self.device.type, dtype=dtype, copy=True, memory_format=layout)

        return pytree.tree_map(place, tree)

    def _traced(self) -> Callable[..., Any]:
        """Return the network traced inside autocast and frozen; the weight cache must be off while tracing.

        With the cache on, `torch.jit.trace` fails with "Cannot insert a Tensor that requires grad as a constant".
        """
        batch = self.batches[0]
        cache = torch.is_autocast_cache_enabled()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, in other words in every torch version
            torch.set_autocast_cache_enabled(False)
            try:
                with torch.no_grad(), self._autocast():
                    arguments = (
                        {"example_kwarg_inputs": batch} if isinstance(batch, dict) else {"example_inputs": batch}
                    )
                    traced = torch.jit.trace(  # type: ignore[no-untyped-call]
                        self.module, check_trace=False, strict=False, **arguments
                    )
                    return torch.jit.freeze(traced)  # type: ignore[no-any-return]
            finally:
                torch.set_autocast_cache_enabled(cache)

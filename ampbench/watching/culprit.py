"""The op that made the first value that is not finite: in the inputs of this step again, else in the next step."""

from contextlib import ExitStack
from typing import Any

import torch
from msgspec import structs
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ampbench.records.ranges import IN_LOSS, FirstNonfinite
from ampbench.trace.modules import tensors_in
from ampbench.trace.nonfinite import _Finder, find_nonfinite, first_in_graph

TRIES = 3
"""The most steps that are looked through for a culprit: each takes many times as long."""


class Culprit:
    """Looks for the `first` op that made a value that is not finite, in a `network` that torch.compile left alone.

    `outputs` is the largest output of a network whose outputs, run again, were finite. GradScaler `spares` weights.
    """

    def __init__(self, network: torch.nn.Module, spares: bool):
        self.first: FirstNonfinite | None = None
        self.outputs: float | None = None
        self._network, self._spares = network, spares
        self._call: tuple[Any, ...] = ()
        self._casting = "cpu", False, torch.bfloat16
        self._kind = ""
        self._wanted = False
        self._tries = 0
        self._step = 0
        self._finder: _Finder | None = None
        self._stack = ExitStack()

    def begins(self, call: tuple[Any, ...]) -> None:
        """Keep the inputs of a forward pass (none are known: ()); look through the step if that is wanted."""
        self.stop()
        self._kind = self._kind or next((member.device.type for member in self._network.parameters()), "cpu")
        self._casting = self._kind, torch.is_autocast_enabled(self._kind), torch.get_autocast_dtype(self._kind)
        self._call = call
        if self._wanted and not any(_modes()):  # a mode of the program, left while these are on, would take them off
            self._wanted = False
            self._finder = self._stack.enter_context(find_nonfinite(self._network))

    def search(self, step: int, loss: torch.Tensor | None = None, line: str = "") -> None:
        """Look for the culprit in `step`, from 0: run its inputs again, read its loss's graph, watch the next step.

        `line` began the backward pass. The next step shows an op's own line, but only where weights are spared.
        """
        self.stop()
        if self.first is not None or self._tries >= TRIES:
            return
        self._tries += 1
        self._step = step
        self._run_again()
        found = first_in_graph(loss) if self.first is None and loss is not None else None
        self._wanted = self.first is None and (found is None or self._spares)
        if found is not None:
            phase = "forward" if self.outputs is None else IN_LOSS
            self.first = structs.replace(found, phase=phase, step=step, frames=[line])

    def forget(self) -> None:
        """Let go of the inputs of a step that is over, so that the next batch can have their memory."""
        self._call = ()

    def stop(self) -> None:
        """Stop looking through a step, after its backward pass."""
        finder = self._finder
        if finder is None:
            return
        functions, dispatch = _modes()
        if functions[-1:] != [finder.calls] or dispatch[-1:] != [finder]:
            return  # a mode that the program entered since is still on
        self._stack.close()
        self._finder = None
        if finder.first is not None:
            self.first = structs.replace(finder.first, step=self._step + 1)

    def _run_again(self) -> None:
        """Run the forward pass on its inputs once more, with copies of the buffers and random numbers of its own."""
        # where modules wait for other processes, these do not run again
        if not self._call or any(isinstance(module, torch.nn.SyncBatchNorm) for module in self._network.modules()):
            return
        (args, kwargs), (kind, enabled, dtype) = self._call, self._casting
        # not even written back: the backward pass to come refuses buffers that were written to since
        buffers = {name: buffer.clone() for name, buffer in self._network.named_buffers()}
        with (
            torch.no_grad(),
            torch.random.fork_rng(device_type=kind if kind != "cpu" else "cuda"),
            torch.autocast(kind, dtype=dtype, enabled=enabled),
            find_nonfinite(self._network) as finder,
        ):
            returned = torch.func.functional_call(self._network, buffers, args, kwargs)
        if finder.first is not None:
            self.first = structs.replace(finder.first, step=self._step)
            return
        outputs = [tensor.detach() for tensor in tensors_in(returned) if tensor.is_floating_point() and tensor.numel()]
        largest = max((float(tensor.abs().max()) for tensor in outputs), default=float("nan"))
        if largest < float("inf"):
            self.outputs = largest


def _modes() -> tuple[list[Any], list[Any]]:
    """Return the modes of torch functions and of dispatch that are on, the last entered last."""
    return _get_current_function_mode_stack(), _get_current_dispatch_mode_stack()  # type: ignore[no-untyped-call]

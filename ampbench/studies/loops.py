"""Loops of training steps with autocast entered around one scope of them, and the numbers that they give."""

import math
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ampbench.errors import first_line
from ampbench.explain.dtypes import short_dtype
from ampbench.precisions import BASELINE, PRECISIONS
from ampbench.records.cases import Case
from ampbench.records.studies import FORWARD, FORWARD_AND_LOSS, UNCACHED_LOOP, WHOLE_LOOP, WITH_BACKWARD
from ampbench.worker.devices import Device
from ampbench.worker.distances import floating_in, kept_outputs
from ampbench.worker.flags import precision_flags
from ampbench.worker.seeded import seed_all, switch_off_dropout
from ampbench.worker.step import SETTLING_STEPS, Step
from ampbench.worker.turns import Settled
from ampbench.workload import Workload

PLAIN = "fp32"
"""The scope of a loop in fp32 without autocast, the reference where that in fp64 fails."""

Look = Callable[[int, Any, torch.Tensor], None]
"""Looks at a step, from 0: its output and loss, and the gradients, not scaled, that lie in the parameters."""

Region = Callable[[], AbstractContextManager[Any]]


class Loop:
    """`steps` steps of training a case with autocast entered around `scope`, one of `SCOPES`.

    Without autocast run "" in fp64 and `PLAIN` in fp32.

    A step is forward, loss, backward, GradScaler's and the optimizer's step, and at last zero_grad, so that gradients
    are not what is left after it. `run` takes all of them. Raises as `Step` does.
    """

    def __init__(self, workload: Workload, case: Case, device: Device, scope: str, steps: int):
        precision = BASELINE if scope == PLAIN else None
        self.step = Step(workload, case, device, reference=not scope, precision=precision)
        self.steps = steps
        region = _region(case, device, scope)
        self._around_step: Region = region if scope == WITH_BACKWARD else nullcontext
        self._around_loop: Region = region if scope in (WHOLE_LOOP, UNCACHED_LOOP) else nullcontext
        self.step.autocast = region if scope == FORWARD_AND_LOSS else nullcontext
        self._forward = _within(region, self.step.module) if scope == FORWARD else self.step.module
        self._skipped = False
        self.run: Callable[[], Any] = self._run

    def start(self, settled: Settled) -> None:
        """Give GradScaler the state it `settled` at, let the optimizer make its own, and save that for `restore`.

        The optimizer makes it in the first step that GradScaler does not skip, which may be a later one here.
        """
        self.step.settle_at(settled)
        self.step.save()
        with closing(self.taken(steps=SETTLING_STEPS)) as steps:
            for _ in steps:
                if not self._skipped:
                    break
        self.restore()
        self.step.save()

    def restore(self) -> None:
        """Put back weights, buffers and state, so that the next loop is the same as the first."""
        self.step.restore()

    def changed(self) -> list[str]:
        """Return nothing: the step puts back what it changes before a batch comes again, also within a loop."""
        return []

    def mode(self) -> AbstractContextManager[Any]:
        """Return what is held around training: nothing."""
        return self.step.mode()

    def taken(self, look: Look | None = None, steps: int | None = None) -> Generator[None, None, None]:
        """Yield after each step, within the region if that is around the loop; `look` at each after its backward.

        `steps` are how many there are, unless all.
        """
        with self._around_loop():
            for turn in range(steps or self.steps):
                self._take(turn, look)
                yield

    def _run(self) -> None:
        for _ in self.taken():
            pass

    def _take(self, turn: int, look: Look | None) -> None:
        step = self.step
        assert step.optimizer is not None
        with self._around_step():
            output, loss = step.forward_and_loss(self._forward)
            assert loss is not None
            step.differentiate(loss)
        if look is not None:
            if step.scaler is not None:
                step.scaler.unscale_(step.optimizer)
            look(turn, output, loss.detach())
        self._skipped = not step.apply_gradients()
        step.optimizer.zero_grad(set_to_none=True)


@dataclass(slots=True)
class Numbers:
    """What a loop gave, in fp64: outputs and gradients of its first step, what all steps changed in each parameter.

    `losses` are those of each step (None: not finite); `dtypes` as in `ScopeRun`.
    """

    outputs: list[torch.Tensor] = field(default_factory=list)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    moved: dict[str, torch.Tensor] = field(default_factory=dict)
    losses: list[float | None] = field(default_factory=list)
    dtypes: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def loop_numbers(
    workload: Workload,
    case: Case,
    device: Device,
    scope: str,
    steps: int,
    keep: Device,
    settled: Settled,
    notes: list[str],
) -> Numbers:
    """Return the numbers of a loop of `case`, on device `keep`; `scope` as in `Loop`.

    Dropout is switched off, which `notes` then say; what else is random draws from one seed.
    """
    found = Numbers()
    losses: list[torch.Tensor] = []
    flags = {"": None, PLAIN: PRECISIONS[BASELINE]}
    with precision_flags(flags.get(scope, PRECISIONS[case.precision])):
        seed_all(0)
        loop = Loop(workload, case, device, scope, steps)
        switch_off_dropout(loop.step.module, notes)
        loop.step.settle_at(settled)
        parameters = dict(loop.step.module.named_parameters())
        before = {name: _kept(value, keep) for name, value in parameters.items()}

        def look(turn: int, output: Any, loss: torch.Tensor) -> None:
            losses.append(loss)
            if turn:
                return
            gradients = {name: value.grad for name, value in parameters.items() if value.grad is not None}
            found.outputs = kept_outputs(output, keep)
            found.gradients = {name: _kept(gradient, keep) for name, gradient in gradients.items()}
            kinds = {"output": floating_in(output), "loss": [loss], "gradients": gradients.values()}
            found.dtypes = {what: _dtypes(tensors) for what, tensors in kinds.items()}

        for _ in loop.taken(look):
            pass
        found.moved = {name: _kept(value, keep) - before[name] for name, value in parameters.items()}
    found.losses = [value if math.isfinite(value) else None for value in map(float, losses)]
    scaler = loop.step.scaler
    if scaler is not None and settled is not None and scaler.get_scale() < settled["scale"]:
        found.notes.append("GradScaler skipped steps, and lowered its scale")
    return found


def settled_scaler(workload: Workload, case: Case, device: Device, notes: list[str]) -> Settled:
    """Return the state GradScaler settles at in the scope that PyTorch recommends; None without a scaler.

    Where that scope raises, the scaler starts as torch makes it, which `notes` then say.
    """
    step = Step(workload, case, device)
    if step.scaler is None:
        return None
    try:
        step.settle_scaler()
    except Exception as error:  # noqa: BLE001 - the scope's own run tells
        notes.append(f"GradScaler did not settle, and begins at its initial scale: {first_line(error)}")
        return None
    return step.scaler.state_dict()


def _region(case: Case, device: Device, scope: str) -> Region:
    """Return what enters autocast in `scope`: with its weight cache, unless that is off."""
    if scope in ("", PLAIN):
        return nullcontext
    dtype = getattr(torch, PRECISIONS[case.precision].autocast or "")
    return partial(torch.autocast, device.type, dtype=dtype, cache_enabled=scope != UNCACHED_LOOP)


def _within(region: Region, forward: Callable[..., Any]) -> Callable[..., Any]:
    def inside(*args: Any, **kwargs: Any) -> Any:
        with region():
            return forward(*args, **kwargs)

    return inside


def _kept(tensor: torch.Tensor, keep: Device) -> torch.Tensor:
    """Return a copy of a tensor, which may be sparse, in fp64 on `keep`."""
    return tensor.detach().to_dense().to(keep.type, torch.float64, copy=True)


def _dtypes(tensors: Iterable[torch.Tensor]) -> str:
    """Return "bf16", or several dtypes in a row."""
    return ", ".join(sorted({short_dtype(tensor.dtype) for tensor in tensors}))

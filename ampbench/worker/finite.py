"""Whether values are finite, and the refusal of cases that fp32 already makes infinite or NaN."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ampbench.errors import UsageError, WorkloadError
from ampbench.explain.nonfinite import find_nonfinite
from ampbench.labels import few
from ampbench.precisions import BASELINE, PRECISIONS
from ampbench.ranges.wording import nonfinite_sentence
from ampbench.records.cases import Case
from ampbench.records.ranges import FirstNonfinite
from ampbench.worker.data import named_tensors
from ampbench.worker.devices import Device
from ampbench.worker.distances import outputs_in, real_parts
from ampbench.worker.flags import precision_flags
from ampbench.worker.seeded import seeded_step
from ampbench.workload import Workload

MEANT = "the outputs hold infinities that are meant, as masks are"
UNKNOWN = "the outputs hold infinities; whether they are meant is not known, as no op could be watched: {}"


def is_finite(tensors: Iterable[torch.Tensor | None]) -> bool:
    """Return whether all values of the floating ones among `tensors` are finite."""
    return all(_is_finite(_values(tensor)) for tensor in tensors if tensor is not None)


def count_nonfinite(tensors: Iterable[torch.Tensor]) -> int:
    """Return how many elements of `tensors` are not finite; where they all are, they are read once."""
    return sum(int((~_values(one).isfinite()).sum()) for one in tensors if not is_finite([one]))


class Fp32Check:
    """Looks at each fp32 step of a case, and refuses a case whose values are not finite in fp32 already.

    Outputs, the loss and gradients decide, not what modules hand each other: a mask is filled with -inf. Infinite
    outputs, too, are meant where no op makes them of finite values (see `find_nonfinite`).
    """

    def __init__(self) -> None:
        self._wrong: int | None = None
        self._doubtful: int | None = None

    @property
    def outputs_finite(self) -> bool:
        """Whether no output was infinite so far."""
        return self._doubtful is None

    def look(self, turn: int, output: Any, loss: torch.Tensor | None, gradients: Iterable[torch.Tensor] = ()) -> bool:
        """Look at what step `turn`, from 0, gave; return whether to go on."""
        outputs = list(outputs_in(output))
        if not is_finite([loss, *gradients]) or any(bool(tensor.isnan().any()) for tensor in outputs):
            self._wrong = turn
        elif self._doubtful is None and not is_finite(outputs):
            self._doubtful = turn
        return self._wrong is None

    def refuse(
        self, workload: Workload, case: Case, device: Device, notes: list[str], where: str | None = None
    ) -> None:
        """Raise `WorkloadError` where a step was not finite; says where in the network it began.

        `where` is a module that was seen to hold such a value, for when the op is not found. `notes` get what is not
        refused.
        """
        turn = self._doubtful if self._wrong is None else self._wrong
        if turn is None:
            return
        first, unwatched = None, ""
        try:
            first = _first_nonfinite(workload, case, device, turn)
        except UsageError as refused:  # a program that no op of can be watched
            unwatched = str(refused)
        if first is not None:
            place = nonfinite_sentence(first)
        elif self._wrong is None:
            notes.append(UNKNOWN.format(unwatched) if unwatched else MEANT)
            return
        else:
            holder = f"; {where} is the first module to hold one" if where else ""
            place = f"no op makes them of finite values{_held(workload)}"
            place = f"{f'what makes them is not known: {unwatched}' if unwatched else place}{holder}"
        raise WorkloadError(f"values are not finite in fp32 already: {place}; half precision cannot be judged")


def _held(workload: Workload) -> str:
    """Say which weights, buffers and inputs of a workload are not finite, or that none are."""
    leaves, _ = pytree.tree_flatten_with_path(workload.inputs)
    inputs = [(f"input{pytree.keystr(path)}", leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
    holding = [name for name, tensor in (*named_tensors(workload.module), *inputs) if not is_finite([tensor])]
    if holding:
        return f", {few(holding)} {'holds' if len(holding) == 1 else 'hold'} them"
    return "; neither weights nor inputs hold them, so a constant that the code makes does"


def _first_nonfinite(workload: Workload, case: Case, device: Device, turn: int) -> FirstNonfinite | None:
    """Run the fp32 steps up to `turn` again and return what makes the first value that is not finite."""
    device.release()
    before = max(turn - 1, 0)  # the optimizer's part of a step shows in the next
    with precision_flags(PRECISIONS[BASELINE]):
        step = seeded_step(workload, case, device, [], precision=BASELINE)
        with step.mode():
            for _ in range(before):
                step.run()
            with find_nonfinite(step.module) as found:
                for _ in range(before, turn + 1):
                    step.run()
    return found.first and dataclasses.replace(found.first, step=before + found.first.step)


def _is_finite(values: torch.Tensor) -> bool:
    # A sum is as fast as reading; only where it is not finite, which it can be of finite values, each must be asked.
    return math.isfinite(float(values.sum())) or bool(values.isfinite().all())


def _values(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a tensor stores, as a dense, real tensor: the gradient of an embedding may be sparse."""
    return real_parts(tensor.detach() if tensor.layout is torch.strided else tensor.detach().coalesce().values())

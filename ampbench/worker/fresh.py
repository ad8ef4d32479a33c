"""Batches that nothing was found out from yet: a workload's own further ones, then those that are made.

A search confirms on them what it found, predictions are held against them, and a classifier decides more on them.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ampbench.worker.batches import batches_of, in_batches
from ampbench.worker.data import inputs_digest
from ampbench.workload import Workload

SAME_INPUTS = "the workload has no further batch, and its inputs are the same whatever the seed"

Batch = tuple[Any, Any]
"""Inputs and targets."""
Larger = Callable[[int], Sequence[Batch]]
"""Gives so many further batches from a larger one, the same first each time; fewer where there are no more."""
Rebuilt = Callable[[int], Workload]
"""Builds a workload anew, with a seed that is so much larger."""


class FreshBatches:
    """The fresh batches of a workload, always in the same order.

    First come its own: of its list all but the first, then held-out data in batches of as many `samples` as the first
    has (None: unknown, held-out data are none); what is left over is none. Then come those that `larger` gives, which
    makes no weights, then, one by one, the inputs that `rebuilt` has from other seeds; None: there are none of these.
    """

    def __init__(
        self, workload: Workload, samples: int | None, *, larger: Larger | None = None, rebuilt: Rebuilt | None = None
    ):
        self._workload, self._larger, self._rebuilt = workload, larger, rebuilt
        self._own = _pairs(workload)[1:]
        if workload.held_out is not None and samples:
            self._own += in_batches(workload.held_out, samples)

    def first(self, count: int) -> Sequence[Batch]:
        """Return the first `count`, or as many as there are without another seed."""
        lacking = count - len(self._own)
        more = self._larger(lacking) if self._larger is not None and lacking > 0 else ()
        return [*self._own[:count], *more]

    def workload(self, number: int) -> Workload | None:
        """Return the workload with its fresh batch of this number, from 1, alone; None where there is none.

        The weights, loss and optimizer are its own. Raises what building it anew raises.
        """
        given = self.first(number)
        if number > len(given):
            other = self._rebuilt(number - len(given)) if self._rebuilt is not None else self._workload
            if inputs_digest(other) == inputs_digest(self._workload):
                return None
            given = _pairs(other)[:1]
        inputs, targets = given[-1]
        return dataclasses.replace(self._workload, inputs=inputs, targets=targets)


def _pairs(workload: Workload) -> list[Batch]:
    """Return the batches of a workload with their targets."""
    batches = batches_of(workload.inputs)
    several = isinstance(workload.inputs, list) and workload.targets
    targets = workload.targets if several else [workload.targets] * len(batches)
    return list(zip(batches, targets, strict=True))

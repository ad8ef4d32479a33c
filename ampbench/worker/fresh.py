"""Batches that nothing was found out from yet: a workload's own further ones, then those that other seeds give."""

import dataclasses
from collections.abc import Callable

from ampbench.worker.batches import batches_of
from ampbench.worker.data import inputs_digest
from ampbench.workload import Workload

SAME_INPUTS = "the workload has one batch, and it is the same whatever the seed"

Rebuilt = Callable[[int], Workload]
"""Builds a workload anew, with a seed that is so much larger."""


def fresh_batch(workload: Workload, number: int, rebuilt: Rebuilt) -> Workload | None:
    """Return `workload` with its fresh batch of this number, from 1, alone; None where there is none.

    The weights, loss and optimizer are the workload's own. Raises what building it anew raises.
    """
    batches = batches_of(workload.inputs)
    if number < len(batches):
        assert isinstance(workload.inputs, list)
        targets = workload.targets[number] if workload.targets else workload.targets
        return dataclasses.replace(workload, inputs=batches[number], targets=targets)
    other = rebuilt(number)
    if inputs_digest(other) == inputs_digest(workload):
        return None
    first = batches_of(other.inputs)[0]
    targets = other.targets[0] if isinstance(other.inputs, list) and other.targets else other.targets
    return dataclasses.replace(workload, inputs=first, targets=targets)

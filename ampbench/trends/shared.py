"""What all cases of a run did together: the machine, as a rule, or something that all of them share.

Runs are not measured in turns, so whatever slowed the machine during one of them moved all its times. The median over
cases of the change from one x to the next tells by how much; it is said once, and what is judged of each series is the
rest. How far the cases scatter about that median tells what luck is left, from far more values than a run's control.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ampbench.trends.steps import MAD_TO_SD

CASES, WORKLOADS = 6, 3
"""Of fewer cases, or of fewer networks, a median does not tell what they share from what one network does."""
ALIKE = 2 / 3
"""A change is of the whole run where so large a share of the cases moved that way, each by a quarter of it or more."""


EFFICIENCY = 0.37
"""A median of absolute values knows the spread as well as this share of the values would by their squares (Rousseeuw
and Croux, "Alternatives to the median absolute deviation", 1993)."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What cases did from one x to the next: the `median` of the changes of their logarithms, and its `spread`.

    The `spread` is the standard deviation of the changes about it, from the median of their absolute values; `alike`
    of the `cases` moved as the median did, by a quarter of it or more.
    """

    median: float
    spread: float
    cases: int
    alike: int


def find_gap(changes: Mapping[tuple[str, str], float]) -> Gap | None:
    """Return what `changes`, of logarithms by workload and case id, have in common; None for too few of them."""
    if len(changes) < CASES or len({workload for workload, _ in changes}) < WORKLOADS:
        return None
    values = np.array(list(changes.values()))
    median = float(np.median(values))
    spread = MAD_TO_SD * float(np.median(np.abs(values - median)))
    return Gap(median, spread, len(values), int(np.sum(values * math.copysign(1.0, median) > abs(median) / 4)))


def gaps_of(levels: Sequence[Mapping[tuple[str, str], float]]) -> list[Gap | None]:
    """Return what lies between each two neighbouring x, of the logarithms at each by workload and case id."""
    return [
        find_gap({key: after[key] - before[key] for key in before.keys() & after.keys()})
        for before, after in pairwise(levels)
    ]


def is_of_the_whole_run(gap: Gap, threshold: float) -> bool:
    """Return whether a gap is a change of the whole run: beyond `threshold` (a logarithm), in nearly all cases."""
    return abs(gap.median) > threshold and gap.alike >= ALIKE * gap.cases

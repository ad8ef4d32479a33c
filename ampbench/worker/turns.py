"""Steps built side by side at random places in memory, again and again, and timed in turns."""

import random
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from ampbench.worker.devices import Device
from ampbench.worker.placement import Placement
from ampbench.worker.step import Step
from ampbench.worker.timing import plan_samples

PAIRS = 12
"""Pairs of builds at most."""
FEWEST_PAIRS = 6
"""Pairs of builds an interval needs: under six, no signs of the differences are rare enough."""
TURNS = 5
"""Turns that two builds take at most, each with one sample of either."""
PATIENCE = 4
"""How many times the given seconds an interval is worth."""

Settled = dict[str, Any] | None
"""The state GradScaler settled at; None without one."""


def warm_up(step: Step, settled: Settled = None) -> Settled:
    """Run a step; return the state that GradScaler settled at: `settled`, where it is known already."""
    if step.training:
        return step.start_training(settled)
    with step.mode():
        step.run()
    return None


def places(seconds: float) -> Iterator[int]:
    """Let what is compared be built at another random place each time: yield how many builds there were before.

    About `seconds` are spent, more where they would not do for an interval, at most `PATIENCE` times as many.
    """
    placement = Placement(random.Random(0))
    start = perf_counter()
    for number in range(PAIRS):
        placement.move()
        yield number
        spent = perf_counter() - start
        allowed = seconds if number + 1 >= FEWEST_PAIRS else PATIENCE * seconds
        if spent + spent / (number + 1) > allowed:
            break


def in_turns(steps: Sequence[Step], device: Device, seconds: float, order: Sequence[int]) -> list[list[float]]:
    """Return samples of each step, in seconds per step, taken in turns for about `seconds`, at least one of each.

    `order` has the places of the first turn; at each turn after it, the next of them begins.
    """
    samples: list[list[float]] = [[] for _ in steps]

    def sample(place: int, count: int) -> float:
        step = steps[place]
        step.restore()
        device.synchronize()
        with step.mode():
            return device.seconds(step.run, count) / count

    once = max(sample(place, 1) for place in range(len(steps)))
    count, turns = plan_samples(once, device.timer_seconds, seconds / len(steps), TURNS)
    for turn in range(turns):
        first = turn % len(order)
        for place in (*order[first:], *order[:first]):
            samples[place].append(sample(place, count))
    return samples

"""Steps built side by side at random places in memory, again and again, and timed in turns."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeVar

from ampbench.worker.devices import Device
from ampbench.worker.memory import is_out_of_memory, peaks_of
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


class Repeated(Protocol):
    """What can be timed in turns: a `Step`, or anything that `run` does again once `restore` has put its state back."""

    run: Callable[[], Any]

    def restore(self) -> None:
        """Put the state back."""

    def changed(self) -> list[str]:
        """Return what a run changes in place that the next one would find changed."""

    def mode(self) -> AbstractContextManager[Any]:
        """Return what is held around the runs."""


Built = TypeVar("Built", bound=Repeated)

Settled = dict[str, Any] | None
"""The state GradScaler settled at; None without one."""


def warm_up(step: Step, settled: Settled = None) -> Settled:
    """Run a step; return the state that GradScaler settled at: `settled`, where it is known already."""
    if step.training:
        return step.start_training(settled)
    with step.mode():
        step.run()
    step.changed()  # so that it is known before anything is timed
    return None


def settled_peaks(
    builds: Sequence[Callable[[], Step]], settled: Sequence[Settled], device: Device, notes: list[str]
) -> list[int | None]:
    """Return the peak in bytes of a step of each build, whose GradScaler starts at what it `settled` at.

    None of all, which `notes` then say, where one does not fit into the memory.
    """

    def ready(build: Callable[[], Step], state: Settled) -> Step:
        step = build()
        step.settle_at(state)
        return step

    peaks: list[int | None] = []
    try:
        for made in peaks_of([partial(ready, *one) for one in zip(builds, settled, strict=True)], device):
            peaks.append(made[1])
            del made
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        notes.append("the peak of memory was not measured: there is no room for it")
        return [None] * len(builds)
    return peaks


def _places(seconds: float) -> Iterator[int]:
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


def _in_turns(steps: Sequence[Repeated], device: Device, seconds: float) -> list[list[float]]:
    """Return samples of each step, in seconds per step, taken in turns for about `seconds`, at least one of each.

    At each turn, the next of them begins.
    """
    samples: list[list[float]] = [[] for _ in steps]

    def sample(place: int, count: int) -> float:
        step = steps[place]
        step.restore()
        device.synchronize()
        with step.mode():
            return device.seconds(step.run, count) / count

    once = max(sample(place, 1) for place in range(len(steps)))
    apart = any(step.changed() for step in steps)
    count, turns = plan_samples(once, device.timer_seconds, seconds / len(steps), TURNS, apart)
    order = range(len(steps))
    for turn in range(turns):
        first = turn % len(order)
        for place in (*order[first:], *order[:first]):
            samples[place].append(sample(place, count))
    return samples


def side_by_side(
    builds: Sequence[Callable[[], Built]],
    warm: Callable[[Built, int], object],
    device: Device,
    seconds: float,
    notes: list[str],
) -> list[list[list[float]]]:
    """Return the samples of each build, taken in turns for about `seconds`: `[place][build]` are seconds per run.

    All are built side by side at random places in memory, again and again, and each is made `warm`, with its place;
    where there is no room for that, which `notes` then say, one after the other.
    """
    samples: list[list[list[float]]] = [[] for _ in builds]
    draw = random.Random(0)
    order = list(range(len(builds)))
    apart = False
    for _ in _places(seconds):
        draw.shuffle(order)
        budget = seconds / PAIRS / 2
        if not apart:
            try:
                taken = _taken(builds, warm, device, budget, order)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                apart = True
                notes.append("timed one after the other: there is no room to build all side by side")
        if apart:
            taken = {}
            for place in order:
                taken |= _taken(builds, warm, device, budget / len(order), [place])
        for place, one in taken.items():
            samples[place].append(one)
    return samples


def _taken(
    builds: Sequence[Callable[[], Built]],
    warm: Callable[[Built, int], object],
    device: Device,
    seconds: float,
    order: Sequence[int],
) -> dict[int, list[float]]:
    """Build what `order` names side by side, and return the samples of each by its place."""
    device.release()
    built = [builds[place]() for place in order]
    for one, place in zip(built, order, strict=True):
        warm(one, place)
    return dict(zip(order, _in_turns(built, device, seconds), strict=True))

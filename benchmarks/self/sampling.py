"""What reading an accelerator's sensors costs a step: steps with the thread beside them and without, in turns.

`python -m benchmarks.self.sampling cuda` measures it where there is a GPU; with `cpu` it reads a made-up sensor that
answers at once, which is what the thread itself takes. Goal: at most 1% of a step.
"""

import math
import statistics
import sys
from time import perf_counter

import torch

from ampbench.core.stats import log_t_interval
from ampbench.records.case import DeviceState
from ampbench.worker.machine import open_device
from ampbench.worker.telemetry import NoSourceError, Reading, Sampler, Source, Watched, open_source

TURNS = 12
SECONDS = 1.0
"""How long each turn is, of one kind."""


class Answering:
    """A source without a device."""

    name = "made up"
    power_error_watts: float | None = None
    averaged_seconds = 0.0

    def __init__(self) -> None:
        self.lacks: list[str] = []

    def read(self, at: float) -> Reading:
        return Reading(at, 1e9, 100.0, 50.0)

    def state(self) -> DeviceState:
        return DeviceState(source=self.name)

    def others(self) -> list[str]:
        return []

    def other_share(self, since: float) -> float | None:  # noqa: ARG002 - as of every source
        return None


def cost(type: str, size: int, *, turns: int = TURNS, seconds: float = SECONDS) -> tuple[float, float, float, float]:
    """Return how many times as long a small step takes with a thread that reads beside it: the ratio and its interval.

    The step, a chain of products of `size` rows, launches many small kernels, so that the host's thread is what it
    waits for: where that is held up, it shows. The last number is the share of the time that readings took.
    """
    device = open_device(type)
    source: Source = Answering() if type == "cpu" else open_source(type)
    factor = torch.ones(size, size, device=type) / size

    def step() -> None:
        found = factor
        for _ in range(20):
            found = found @ factor

    count = max(1, int(seconds / max(device.seconds(step, 10) / 10, 1e-6)))
    ratios, shares = [], []
    for turn in range(turns):
        taken = {}
        for read in (turn % 2 == 0, turn % 2 == 1):
            watched = Watched(source, Sampler(source)) if read else Watched()
            began = perf_counter()
            with watched:
                taken[read] = device.seconds(step, count)
            if watched.sampler is not None:
                shares.append(sum(watched.sampler.costs) / (perf_counter() - began))
        ratios.append(taken[True] / taken[False])
    low, high = log_t_interval(ratios) or (math.nan, math.nan)
    return statistics.geometric_mean(ratios), low, high, statistics.median(shares)


def main() -> None:
    """Print the ratio for a step that waits for the host, and for one that waits for the device."""
    type = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    for size in (64, 4096 if type != "cpu" else 512):
        try:
            ratio, low, high, share = cost(type, size)
        except NoSourceError as error:
            print(f"{type}: not measured: {error}")
            return
        print(f"{type}, products of {size}: x{ratio:.4f} (95%: {low:.4f} to {high:.4f}), readings {share:.2%} of time")


if __name__ == "__main__":
    main()

"""Noise models: how long the same code takes, block after block, on machines that are unquiet in one way each.

A block has three slots, one after the other, in each of which one arm is measured from a newly started server; which
arm comes when is drawn anew in every block. So whatever depends on time, as drift does, acts on the arms as it does in
reality. Models return logarithms of the time relative to a quiet machine, shape (gates, cells, blocks, slots); what
they draw for a slot may be shared by the cells of a gate, which one server measures.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.random import Generator

from ampbench.core.stats import Floats

SLOTS = 3
SAMPLES = 200
"""The samples of a block, of whose mean and fastest one verdicts speak."""
SPREAD = 0.015
"""The standard deviation of a block's logarithm that the goals speak of."""

Shape = tuple[int, int, int]
Model = Callable[[Generator, Shape], Floats]


def iid(generator: Generator, shape: Shape) -> Floats:
    """Independent normal noise of 1.5%."""
    return generator.normal(0, SPREAD, (*shape, SLOTS))


def build_luck(generator: Generator, shape: Shape) -> Floats:
    """Each of three builds lies well or badly in memory (2%); a round is worth the fastest of all."""
    return generator.normal(0, 0.02, (*shape, SLOTS, 3)).min(axis=-1)


def server_luck(generator: Generator, shape: Shape) -> Floats:
    """All that a server measures shares its luck of 1.2%; 0.9% beside it."""
    return _per_slot(generator.normal(0, 0.012, (shape[0], shape[2], SLOTS))) + 0.6 * iid(generator, shape)


def random_walk(generator: Generator, shape: Shape) -> Floats:
    """The machine drifts by 2% per slot; 0.5% beside it."""
    steps = generator.normal(0, 0.02, (shape[0], shape[2] * SLOTS))
    return _per_slot(np.cumsum(steps, axis=1).reshape(shape[0], shape[2], SLOTS)) + iid(generator, shape) / 3


def autocorrelated(generator: Generator, shape: Shape) -> Floats:
    """AR(1) with 0.9 from slot to slot, 1.5% in all."""
    noise = generator.normal(0, SPREAD, (shape[0], shape[1], shape[2] * SLOTS))
    noise[..., 1:] *= np.sqrt(1 - 0.9**2)
    for slot in range(1, noise.shape[-1]):
        noise[..., slot] += 0.9 * noise[..., slot - 1]
    return noise.reshape(*shape, SLOTS)


def warm_up(generator: Generator, shape: Shape) -> Floats:
    """The machine begins 15% slow and settles over some ten slots; 1% beside it."""
    ramp = 0.15 * np.exp(-np.arange(shape[2] * SLOTS) / 10).reshape(shape[2], SLOTS)
    return ramp + iid(generator, shape) * 2 / 3


def clocks(generator: Generator, shape: Shape) -> Floats:
    """Two clock speeds 15% apart, changing in one slot of ten, for all cells alike; 1% beside it."""
    changes = generator.random((shape[0], shape[2] * SLOTS)) < 0.1
    fast = np.cumsum(changes, axis=1) % 2 == generator.integers(0, 2, (shape[0], 1))
    return _per_slot(np.where(fast, 0, 0.15).reshape(shape[0], shape[2], SLOTS)) + iid(generator, shape) * 2 / 3


def two_valued(generator: Generator, shape: Shape) -> Floats:
    """One process in four is 20-150% slow, and stays so; 0.5% beside it."""
    slow = generator.random((*shape, SLOTS)) < 0.25
    return slow * np.log(generator.uniform(1.2, 2.5, slow.shape)) + iid(generator, shape) / 3


def heavy_tails(generator: Generator, shape: Shape) -> Floats:
    """Student's t with three degrees of freedom, of standard deviation 1.5%."""
    return generator.standard_t(3, (*shape, SLOTS)) * SPREAD / np.sqrt(3)


def contention(generator: Generator, shape: Shape) -> Floats:
    """Delays only: exponential with a mean of 1.2%; 0.9% beside it."""
    return generator.exponential(0.012, (*shape, SLOTS)) + 0.6 * iid(generator, shape)


Planted = Callable[[Generator, Floats], None]
"""Changes the arms' logarithms in place, shape (gates, cells, blocks, arms): baseline, candidate, control."""

BASELINE, CANDIDATE, CONTROL = 0, 1, 2


def _nothing(generator: Generator, arms: Floats) -> None:
    """Plant nothing."""


def _one_outlier(generator: Generator, arms: Floats) -> None:
    """Make one of the candidate's first eight blocks 3x slow."""
    gates, cells = np.indices(arms.shape[:2])
    arms[gates, cells, generator.integers(0, 8, gates.shape), CANDIDATE] += np.log(3)


def _slow_blocks(*chosen: int) -> Planted:
    """Make 15% of the chosen arms' blocks 2x slow; the control is the baseline once more, and slow where that is."""

    def plant(generator: Generator, arms: Floats) -> None:
        for arm in chosen:
            arms[..., arm] += np.log(2) * (generator.random(arms.shape[:3]) < 0.15)

    return plant


def sample_means(generator: Generator, seconds: Floats, slow_steps: float = 0.0) -> Floats:
    """Return the means over the samples of blocks whose fastest are `seconds`, of shape (..., arms).

    Every block's mean is longer by delays of 3% on average, 1.5% from block to block. Of the candidate's samples, a
    share of `slow_steps` takes three times as long beside that, which its fastest does not tell.
    """
    means = seconds * (1 + generator.gamma(4, 0.0075, seconds.shape))
    means[..., CANDIDATE] *= 1 + 2 * generator.binomial(SAMPLES, slow_steps, seconds.shape[:-1]) / SAMPLES
    return means


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """A model, what is planted into one arm, and whether a quiet block's SD is within the goals' 1.5%."""

    model: Model
    plant: Planted = _nothing
    quiet: bool = True


NOISES: Mapping[str, Noise] = MappingProxyType(
    {
        "iid": Noise(model=iid),
        "build luck": Noise(model=build_luck),
        "server luck": Noise(model=server_luck),
        "random walk, 2% per slot": Noise(model=random_walk, quiet=False),
        "AR(1)": Noise(model=autocorrelated),
        "warm-up ramp": Noise(model=warm_up, quiet=False),
        "two clocks": Noise(model=clocks, quiet=False),
        "two-valued, 1 in 4 slow": Noise(model=two_valued, quiet=False),
        "heavy tails (t3)": Noise(model=heavy_tails),
        "contention": Noise(model=contention),
        "one outlier": Noise(model=iid, plant=_one_outlier),
        "15% of candidate 2x slow": Noise(model=iid, plant=_slow_blocks(CANDIDATE)),
        "15% of baseline 2x slow": Noise(model=iid, plant=_slow_blocks(BASELINE, CONTROL)),
        "15% of both 2x slow": Noise(model=iid, plant=_slow_blocks(BASELINE, CANDIDATE, CONTROL)),
    }
)


def interleaved(noise: Noise, generator: Generator, shape: Shape, effect: float) -> Floats:
    """Return seconds of shape (gates, cells, blocks, arms); the candidate takes 1 + `effect` times as long."""
    slots = noise.model(generator, shape)
    order = generator.permuted(np.tile(np.arange(SLOTS), (shape[0], 1, shape[2], 1)), axis=-1)
    arms = np.take_along_axis(slots, order, axis=-1)  # one order for all cells of a gate
    noise.plant(generator, arms)
    arms[..., CANDIDATE] += np.log1p(effect)
    return 1e-3 * np.exp(arms)


def one_after_the_other(noise: Noise, generator: Generator, shape: Shape, effect: float) -> tuple[Floats, Floats]:
    """Return seconds of two runs, shape (gates, cells, rounds, 2): a cell's own rounds and those of a control.

    `shape` is (gates, cells, rounds). The candidate's run begins as many rounds after the baseline's end as one has.
    """
    rounds = shape[2]
    arms = noise.model(generator, (shape[0], shape[1], 3 * rounds))
    noise.plant(generator, arms)
    runs = 1e-3 * np.exp(arms)
    baseline, candidate = runs[:, :, :rounds][..., [0, 2]], runs[:, :, -rounds:][..., [1, 2]]
    return baseline, candidate * (1 + effect)


def _per_slot(shared: Floats) -> Floats:
    """Give all cells of a gate what was drawn per gate, block and slot."""
    return shared[:, None]

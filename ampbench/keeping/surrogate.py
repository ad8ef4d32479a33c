"""A model of the error, fitted to the trials: what each unit that runs low, and each container not whole, adds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ampbench.keeping.islands import container_units
from ampbench.keeping.tried import Tried, Units
from ampbench.ranges.profile import ranked
from ampbench.records.keeping import SearchSpace

Vector = NDArray[np.float64]

PRIOR_WEIGHT = 0.03
"""What it costs the fit to have a unit off its expected share by that share, with a trial off by its error being 1."""

CERTAIN = 100.0
"""The share of the budget, squared, that a unit which overflows is expected to take."""

MOST_GAIN = 10.0
"""How many times the square of a module's own error is expected to arrive at the output, at most."""

_TELLING = 0.1
"""The part of all expected errors from which on a trial tells how large these are really."""

_ZERO = 1e-6
"""The least share that a trial is taken to have."""

_FREE = 0.25
"""What a unit may well add though it was expected to add nothing, for some; less where there are many."""

_TOO_MUCH = 25.0
"""Larger shares are fitted as this one: both break the budget."""

_LEAST = 0.02
"""Trials with smaller shares are fitted as those with this one: they are far from the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is known before any trial of the squares of errors: `own` of units on exact inputs, which `overflow`.

    `own` is None for units of which nothing is known. `containers` are sets of units that can be kept whole.
    """

    own: list[float | None]
    overflow: Units
    containers: list[Units]

    @property
    def informed(self) -> bool:
        """Whether errors tell units apart."""
        return any(own for own in self.own) or bool(self.overflow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Squares of errors over the budget, one row for each error: `floor` with all kept, then what is added to it.

    `units` is [error, unit] for a unit that runs low, `containers` [error, container] for one that is not kept whole.
    """

    floor: Vector
    units: Vector
    containers: Vector
    inside: list[Units]

    def shares(self, low: Units) -> Vector:
        """Return what `low` is expected to take of what is allowed of each error, squared."""
        broken = [place for place, units in enumerate(self.inside) if units & low]
        added = self.units[:, sorted(low)].sum(axis=1) + self.containers[:, broken].sum(axis=1)
        return np.asarray(self.floor + added)

    def excess(self, low: Units) -> float:
        """Return the largest of the shares of `low`."""
        return float(self.shares(low).max())

    def guilt(self, unit: int) -> float:
        """Return what a unit adds when it alone runs low."""
        broken = [place for place, units in enumerate(self.inside) if unit in units]
        return float((self.units[:, unit] + self.containers[:, broken].sum(axis=1)).max())


def expected(space: SearchSpace) -> Expected:
    """Return what the errors of modules on exact inputs say of the units."""
    units = {path: index for index, unit in enumerate(space.units) for path in unit.modules}
    own: list[float | None] = [None] * len(space.units)
    overflow: set[int] = set()
    for row in ranked(space.errors):
        if row.module not in units:
            continue
        index = units[row.module]
        if row.overflowed and not row.inputs_overflowed:
            overflow.add(index)
        if row.own_rel_l2 is not None:
            own[index] = (own[index] or 0.0) + row.own_rel_l2**2
    inside = {
        held: None for held in container_units(space).values() if len(held) > 1
    }  # two that hold the same are one here
    return Expected(own=own, overflow=frozenset(overflow), containers=list(inside))


def fit(tried: Tried, prior: Expected, limits: Sequence[float]) -> Model:
    """Return the model that fits the finite trials best and, where they do not tell, what is expected.

    Non-negative least squares on the squares of errors over `limits`, which add where roundings are independent. Each
    trial counts by its relative error.
    """
    count, inside = len(prior.own), prior.containers
    all_kept = tried.shares.get(frozenset())
    rows = [(low, shares) for low, shares in tried.shares.items() if low and all(map(math.isfinite, shares))]
    held, broken = np.zeros((len(rows), count)), np.zeros((len(rows), len(inside)))
    for place, (low, _) in enumerate(rows):
        held[place, sorted(low)] = 1.0
        broken[place, [which for which, units in enumerate(inside) if units & low]] = 1.0
    known = all_kept is not None and all(map(math.isfinite, all_kept))  # there may have been no room to keep all
    floor = np.minimum(all_kept, 1.0) if all_kept is not None and known else np.zeros(len(limits))
    fitted = [
        _fit_one(
            np.hstack([held, broken]),
            np.array([max(shares[which] - floor[which], 0.0) for _, shares in rows]),
            prior,
            limit,
        )
        for which, limit in enumerate(limits)
    ]
    solved = np.array(fitted)
    return Model(floor=floor, units=solved[:, :count], containers=solved[:, count:], inside=inside)


def _fit_one(design: Vector, shares: Vector, prior: Expected, limit: float) -> Vector:
    """Return what each column of `design` adds to `shares`."""
    from scipy.optimize import nnls  # slow to import, and needed only by a search

    count = len(prior.own)
    known = [own for own in prior.own if own]
    typical = float(np.median(known)) if known else 1.0
    own = np.array([typical if value is None else value for value in prior.own]) + 1e-3 * typical
    sums = design[:, :count] @ own
    scale = MOST_GAIN / max(limit, 1e-30) ** 2 if known else np.inf
    telling = (sums >= _TELLING * own.sum()) | (design[:, :count].sum(axis=1) >= count / 4)
    # each trial has all that its units add, and more where something else is at fault
    scale = float(np.min(np.maximum(shares[telling], _ZERO) / sums[telling], initial=scale))
    if not np.isfinite(scale):
        scale = 0.0
    guess = np.concatenate([own * scale, np.zeros(len(prior.containers))])
    guess[sorted(prior.overflow)] = CERTAIN
    spread = np.maximum(guess, _FREE * min(1.0, 12 / count))
    spread[count:] /= 4  # units explain before containers do
    shares = np.minimum(shares, _TOO_MUCH)
    # a trial of few units tells more of each
    counts = np.sqrt(count / np.maximum(design[:, :count].sum(axis=1), 1.0)) / np.maximum(shares, _LEAST)
    # in units of the spread all columns are alike
    above = design * spread * counts[:, None]
    below = np.eye(len(guess)) * PRIOR_WEIGHT
    aim = np.concatenate([shares * counts, PRIOR_WEIGHT * guess / spread])
    try:
        solved, _ = nnls(np.vstack([above, below]), aim)
    except RuntimeError:  # it did not settle
        return guess
    return np.asarray(solved * spread, dtype=np.float64)

"""Sets of units of a search: the modules they name, which of them met the budget, and what that foretells of others.

The foretelling is a model of the error, fitted to the trials: what each unit that runs low, and each container not
whole, adds.
"""

import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ampbench.errors import UnknownNameError
from ampbench.instruments.keep_fp32.records import SearchSpace, Trial
from ampbench.records.measured import OUT_OF_MEMORY
from ampbench.records.ranges import ranked

WHOLE = [""]
"""The set that keeps the whole network."""


def islands(space: SearchSpace, units: Set[int]) -> list[str]:
    """Return the modules to name to `keep_fp32` so that exactly `units`, indices into `space.units`, are kept.

    A container whose units are all kept is named in place of them, the outermost one; if all units of the space are
    kept it is the network, [""]. A unit of several modules has all of them named or within a container that is.
    Modules come in the order of running.
    """
    if len(units) == len(space.units):
        return list(WHOLE) if units else []
    whole = {path for path, inside in container_units(space).items() if inside <= units}
    named = (
        next((outer for outer in _above(path) if outer in whole), path)
        for index in sorted(units)
        for path in space.units[index].modules
    )
    return list(dict.fromkeys(named))


def units_of(space: SearchSpace, kept: Sequence[str]) -> frozenset[int]:
    """Return the units that naming the modules `kept` keeps, as indices into `space.units`: undoes `islands`.

    A unit of which one module is named counts. Raises `UnknownNameError` for a path that is neither that of a
    container nor that of a module of a unit.
    """
    containers = container_units(space)
    modules = {path: frozenset({index}) for index, unit in enumerate(space.units) for path in unit.modules}
    known = {"": frozenset(range(len(space.units)))} | containers | modules
    for path in kept:
        if path not in known:
            raise UnknownNameError("module", path, [name for name in known if name])
    return frozenset(index for path in kept for index in known[path])


def container_units(space: SearchSpace) -> dict[str, frozenset[int]]:
    """Return the units that have a module in a container, for each container that has any, outermost first."""
    inside: dict[str, set[int]] = {path: set() for path in space.containers}
    for index, unit in enumerate(space.units):
        for path in unit.modules:
            for outer in _above(path):
                if outer in inside:
                    inside[outer].add(index)
    return {path: frozenset(units) for path, units in inside.items() if units}


def _above(path: str) -> Iterator[str]:
    """Yield the paths of the modules that hold the one at `path`, from the network inwards."""
    if path:
        yield ""
    parts = path.split(".")
    for end in range(1, len(parts)):
        yield ".".join(parts[:end])


Units = frozenset[int]

DOUBTFUL = 9.0
"""A set that takes no more than this of the budget, squared, failed by so little that luck in rounding may decide."""


class TrialsSpentError(Exception):
    """No trial is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The largest errors allowed, and the least share of an update that must arrive; None: it does not count."""

    max_error: float
    max_gradient_error: float | None = None
    min_update_kept: float | None = None

    @property
    def limits(self) -> list[float]:
        """What errors may be, in the order of `shares`."""
        limits = [self.max_error, self.max_gradient_error]
        limits.append(None if self.min_update_kept is None else 1.0 - self.min_update_kept)
        return [limit for limit in limits if limit is not None]

    def shares(self, trial: Trial) -> tuple[float, ...]:
        """Return the squares of a trial's errors over what is allowed: up to 1 each is met, inf is undefined.

        Of an update, it is what is lost over what may be, not squared: losses of its elements add up as they are, as
        the squares of independent errors do. Where nobody can know what is lost, that is no bound.
        """
        errors = [(trial.output_rel_l2, self.max_error)]
        if self.max_gradient_error is not None:
            errors.append((trial.grad_rel_l2, self.max_gradient_error))
        shares = [math.inf if trial.error else _share(error, limit) for error, limit in errors]
        if self.min_update_kept is not None:
            shares.append(math.inf if trial.error else _lost(trial, 1.0 - self.min_update_kept))
        return tuple(shares)


class Tried:
    """The trials of a search by the units that ran low; each set is tried once, and `most` sets at most.

    A set that ran **low** is the complement of the one that is kept. Where a set was not tried itself, others answer
    for it, since keeping more never errs more: low sets within one that meets the budget meet it, too, and those
    around one that fails fail. A set for which there was no room fails with all that keep more, and with those only.
    """

    def __init__(self, space: SearchSpace, attempt: Callable[[list[str]], Trial], budget: Budget, most: int):
        self.every: Units = frozenset(range(len(space.units)))
        self.trials: dict[Units, Trial] = {}
        self.shares: dict[Units, tuple[float, ...]] = {}
        self._space, self._attempt, self._budget, self._most = space, attempt, budget, most
        self._meeting: list[Units] = []
        self._failing: list[Units] = []
        self._too_large: list[Units] = []

    @property
    def left(self) -> int:
        """How many trials are left."""
        return max(self._most - len(self.trials), 0)

    def excess(self, low: Units) -> float:
        """Return the largest share of the budget that `low` takes, squared, trying it if it was not.

        Raises `TrialsSpentError` where that needs a trial and none is left.
        """
        if low not in self.shares:
            if not self.left:
                raise TrialsSpentError
            trial = self._attempt(islands(self._space, self.every - low))
            self.trials[low] = trial
            self.shares[low] = self._budget.shares(trial)
            if trial.error == OUT_OF_MEMORY:
                self._too_large.append(low)
            else:
                (self._meeting if max(self.shares[low]) <= 1.0 else self._failing).append(low)
        return max(self.shares[low])

    def meets(self, low: Units) -> bool:
        """Return whether `low` meets the budget, trying it if nothing tried answers for it. Raises as `excess`."""
        known = self.known(low)
        return self.excess(low) <= 1.0 if known is None else known

    def known(self, low: Units) -> bool | None:
        """Return whether `low` meets the budget as far as trials answer for it, else None."""
        if low in self.shares:
            return max(self.shares[low]) <= 1.0
        if any(low <= other for other in self._too_large):
            return False
        if any(low <= other for other in self._meeting):
            return True
        return False if any(low >= other for other in self._failing) else None

    def conflicts(self, beyond: float = 1.0) -> list[Units]:
        """Return the smallest low sets that take more than `beyond`: of each, at least one unit must be kept."""
        ordered = sorted((low for low in self._failing if max(self.shares[low]) > beyond), key=len)
        return [low for place, low in enumerate(ordered) if not any(less < low for less in ordered[:place])]

    def largest_meeting(self, within: Units) -> Units:
        """Return the largest part of `within` that is known to meet the budget."""
        return max((within & low for low in self._meeting), key=len, default=frozenset())

    def fewest_kept(self) -> Units | None:
        """Return the smallest kept set that was tried and meets the budget, the first of several (None: none)."""
        return min((self.every - low for low in self._meeting), key=len, default=None)

    def contradicted(self) -> bool:
        """Return whether a set failed that keeps more than one that met the budget."""
        return any(low < meeting for low in self._failing for meeting in self._meeting)

    def doubtful(self, low: Units) -> bool:
        """Return whether `low` may meet the budget though sets that keep more fail: all that do fail by little."""
        return all(max(self.shares[less]) <= DOUBTFUL for less in self._failing if less <= low)


def _lost(trial: Trial, limit: float) -> float:
    """Return the share of an update that is lost over what may be."""
    if trial.update_kept is None:
        return math.inf if trial.update_nonfinite else 0.0
    lost = max(1.0 - trial.update_kept, 0.0)
    return lost / limit if limit > 0.0 else 0.0 if lost == 0.0 else math.inf


def _share(error: float | None, limit: float) -> float:
    if error is None or not math.isfinite(error):
        return math.inf
    if limit <= 0.0:
        return 0.0 if error <= 0.0 else math.inf
    ratio = error / limit
    share = ratio * ratio  # as a power it would not be infinite but an error
    return min(share, 1.0) if error <= limit else max(share, math.nextafter(1.0, math.inf))


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

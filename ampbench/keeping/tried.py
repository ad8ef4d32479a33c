"""What the trials of a search have shown: sets of units that meet the budget and sets that do not."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ampbench.keeping.islands import islands
from ampbench.records.keeping import SearchSpace, Trial
from ampbench.records.measurements import OUT_OF_MEMORY

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
    share = float((error / limit) ** 2)
    return min(share, 1.0) if error <= limit else max(share, math.nextafter(1.0, math.inf))

"""The search for the fewest units to keep in fp32 so that a case's errors meet a budget.

Each set that fails says that one of the units that ran low in it must be kept. Small failing sets, **conflicts**, are
found by halving, and the smallest set that holds one unit of each conflict is tried next: it meets the budget, and then
none smaller does, or it fails and yields the next conflict (implicit hitting sets; as Reiter 1987 for diagnoses). Where
errors add up from many units there are no small conflicts: then a model fitted to all trials proposes sets and says
which trials would rule out the smaller ones.

All that takes for granted that keeping more never errs more. Near the budget luck in rounding decides, so what
trials are left go to smaller sets that are excluded only by larger ones which failed by little.
"""

import math
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

from ampbench.keeping.conflicts import find_conflict, more_suspected
from ampbench.keeping.hitting import smallest_hitting
from ampbench.keeping.islands import container_units, islands
from ampbench.keeping.proposals import closest_to_meet, likely_to_meet
from ampbench.keeping.surrogate import Model, expected, fit
from ampbench.keeping.tried import DOUBTFUL, Budget, TrialsSpentError, Tried, Units
from ampbench.records.keeping import MAX_TRIALS, SearchSpace, Trial, Unit
from ampbench.records.measurements import OUT_OF_MEMORY

_FAR = 9.0
"""A set that was expected to meet the budget and takes more than this, squared, was misjudged."""

_CLEAR = 1.5
"""A set expected to take more than this, squared, is taken to fail; below, it is worth a try."""

_PATIENCE = 3
"""How often the model may be wrong, and how many sets it may rule out before each unit is measured."""

_SECOND_LOOKS = 20
"""How many smaller sets are tried, at most, though larger ones failed by little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found: modules to keep as `keep_fp32` takes them, `kept`, and their `units`; None: no set meets.

    `smallest`: no smaller set meets the budget, given that keeping more never errs more, which no trial contradicts.
    `trials` is how many there were.
    """

    kept: list[str] | None
    units: Units | None
    smallest: bool
    trials: int


def search(
    space: SearchSpace,
    attempt: Callable[[list[str]], Trial],
    *,
    max_error: float,
    max_gradient_error: float | None = None,
    min_update_kept: float | None = None,
    objective: str = "speed",
    seed: int = 0,
    max_trials: int = MAX_TRIALS,
) -> Found:
    """Return the smallest set of units found within `max_trials` with which the errors of `attempt` meet the budget.

    `attempt` is given what to name to `keep_fp32`, and never the same twice. Among sets as small, that which costs less
    is preferred: arithmetic by `objective` "speed", bytes by "memory", both of them reckoned, not timed; `seed` decides
    between units that are alike in all. The same answers of `attempt` lead to the same trials in the same order. Its
    exceptions pass through.
    """
    budget = Budget(max_error=max_error, max_gradient_error=max_gradient_error, min_update_kept=min_update_kept)
    tried = Tried(space, attempt, budget, max_trials)
    run = _Search(space, tried, budget.limits, _costs(space, objective, seed))
    smallest = False
    with suppress(TrialsSpentError):
        smallest = run.go()
        run.look_again()
    kept = tried.fewest_kept()
    return Found(
        kept=None if kept is None else islands(space, kept),
        units=kept,
        smallest=smallest and kept is not None and not tried.contradicted(),
        trials=len(tried.trials),
    )


class _Search:
    """One search under way.

    `trusted`: the model may say which sets meet the budget, for it had the errors of modules to begin with, or because
    errors were seen to add up; misjudging takes that away. Else all that is not known is taken to be harmless.
    """

    def __init__(self, space: SearchSpace, tried: Tried, limits: list[float], cost: list[float]):
        self.space, self.tried, self.limits, self.cost = space, tried, limits, cost
        self.count = len(space.units)
        self.prior = expected(space)
        self.trusted = self.prior.informed
        self.adds_up = False
        self.allowed = 1.0
        self.ruled_out = self.misjudged = 0
        self.inner: dict[int, Units] = {}
        for units in container_units(space).values():
            if len(units) > 1:
                self.inner.update(dict.fromkeys(units, units))

    def go(self) -> bool:
        """Search until the smallest set is proven, and return True; False: no set meets. Raises TrialsSpentError.

        Where there is no room to keep all, smaller sets may meet the budget all the same.
        """
        tried, every = self.tried, self.tried.every
        if tried.meets(every):
            return True
        if not tried.meets(frozenset()) and tried.trials[frozenset()].error != OUT_OF_MEMORY:
            return False
        idle = before = 0
        while True:
            idle = idle + 1 if len(tried.trials) == before else 0
            before = len(tried.trials)
            if idle > 2 * _PATIENCE:  # what has no room is no conflict: nothing new is to be learnt
                return False
            model = fit(tried, self.prior, self.limits)
            best = tried.fewest_kept()
            most = self.count - 1 if best is None else len(best) - 1
            dislike = self._dislike(model)
            least = smallest_hitting(tried.conflicts(), dislike, most)
            if least.kept is None or least.least > most:
                return least.least > most
            if not self.trusted:
                self._try_optimist(least.kept, model)
                continue
            likely = likely_to_meet(model, tried.conflicts(), dislike, most=most, allowed=self.allowed)
            if likely is not None:
                self._try_likely(likely, model)
            elif best is None:
                self.trusted = False
            else:
                self._rule_out(model, most)

    def look_again(self) -> None:
        """Try sets smaller than the best that are excluded only by larger ones which failed by little.

        Raises TrialsSpentError.
        """
        end = len(self.tried.trials) + _SECOND_LOOKS
        while len(self.tried.trials) < end and (best := self.tried.fewest_kept()):
            wanted = (self.tried.every - kept for kept in self._smaller(best))
            low = next((one for one in wanted if one not in self.tried.shares and self.tried.doubtful(one)), None)
            if low is None:
                return
            self.tried.excess(low)

    def _smaller(self, best: Units) -> Iterator[Units]:
        """Yield sets smaller than `best`: what must be kept by a wide margin, with more of it, and most of `best`."""
        model = fit(self.tried, self.prior, self.limits)
        core = smallest_hitting(self.tried.conflicts(DOUBTFUL), self._dislike(model), len(best) - 1).kept
        own = [math.inf if unit in self.prior.overflow else self.prior.own[unit] or 0.0 for unit in range(self.count)]
        if core is not None:
            more = sorted(self.tried.every - core, key=lambda unit: (-own[unit], -model.guilt(unit), unit))
            extras = [(), *combinations(more[:6], 1), *combinations(more[:4], 2)]
            yield from (core.union(extra) for extra in extras if len(core) + len(extra) < len(best))
        harmless = sorted(best, key=lambda unit: (model.guilt(unit), unit))
        for less in (1, 2):
            yield from (best.difference(left) for left in combinations(harmless[:8], less))

    def _dislike(self, model: Model) -> list[float]:
        """Return how little each unit is wanted in a set, from 0: for what it costs, and unless it errs much."""
        guilt = [min(model.guilt(unit), 2.0) for unit in range(self.count)]
        largest = max(guilt) or 1.0
        return [0.7 * (1.0 - guilt[unit] / largest) + 0.3 * self.cost[unit] for unit in range(self.count)]

    def _try_optimist(self, kept: Units, model: Model) -> None:
        """Try the smallest set that no conflict excludes; if it fails, find out why.

        With half of what is not known to be harmless it fails nearly as often, and for less reasons.
        """
        low = self.tried.every - kept
        harmless = self.tried.largest_meeting(low)
        suspicion = self._suspicion(low - harmless, model)
        half = harmless | more_suspected(low - harmless, suspicion)
        if not self.tried.meets(half):
            self._explain(half, model)
        elif not self.tried.meets(low):
            self._explain(low, model)

    def _try_likely(self, kept: Units, model: Model) -> None:
        """Try a set that the model expects to meet the budget."""
        low = self.tried.every - kept
        excess = self.tried.excess(low)
        if excess <= 1.0:
            self.allowed = min(self.allowed * 1.1, 1.0)
            return
        self.allowed = max(self.allowed * 0.85, 0.5)
        if excess > _FAR:
            self._explain(low, model)

    def _explain(self, low: Units, model: Model) -> None:
        """Find a conflict in a failing set, or that there is none and errors add up."""
        harmless = self.tried.largest_meeting(low)
        conflict = find_conflict(self.tried, low, self._suspicion(low - harmless, model))
        if conflict is None:
            if not self.adds_up:
                self.adds_up = self.trusted = True
                self._measure_each()
        elif not self.adds_up and model.excess(conflict) < 0.1:
            self.trusted = False

    def _suspicion(self, suspects: Units, model: Model) -> dict[int, float]:
        """Return how likely each unit is to be at fault, were it among `suspects`; a scale of its own.

        A part of it is the same for all, a part as the model says, and a part is with the neighbours of units that are
        known to be at fault: modules fail together with what they run in.
        """
        guilt = {unit: min(model.guilt(unit), 2.0) for unit in self.tried.every}
        total = sum(guilt[unit] for unit in suspects) or 1.0
        same = 1.0 / max(len(suspects), 1)
        known = {unit for conflict in self.tried.conflicts() if len(conflict) == 1 for unit in conflict}
        near = {
            unit for unit in suspects if any(self.inner.get(unit, unit) == self.inner.get(other) for other in known)
        }
        return {unit: same + 2.0 * guilt[unit] / total + (2.0 / len(near) if unit in near else 0.0) for unit in guilt}

    def _measure_each(self) -> None:
        """Measure what each unit adds alone, if there are so few of them that trials remain."""
        if 2 * self.count <= self.tried.left:
            for unit in sorted(self.tried.every):
                self.tried.excess(frozenset({unit}))

    def _rule_out(self, model: Model, most: int) -> None:
        """Try what would rule out most of the smaller sets, as far as the model knows."""
        self.ruled_out += 1
        if self.ruled_out == _PATIENCE:
            self._measure_each()
            return
        closest = closest_to_meet(model, self.tried.conflicts(), self._dislike(model), size=most)
        assert closest is not None
        low = self.tried.every - closest
        if model.excess(low) > _CLEAR:
            for unit in sorted(low, key=lambda unit: (model.guilt(unit), unit)):
                less = low - {unit}
                if model.excess(less) > _CLEAR and self.tried.known(less) is None:
                    low = less
        if self.tried.excess(low) < min(0.1 * model.excess(low), 1.0):
            self.misjudged += 1
            if self.misjudged >= _PATIENCE and not self.adds_up:
                self.trusted = False


def _costs(space: SearchSpace, objective: str, seed: int) -> list[float]:
    """Return what keeping each unit costs, from 0 to 1."""
    costs = [
        _arithmetic(unit) if objective == "speed" else unit.weight_bytes + unit.output_bytes for unit in space.units
    ]
    chance = random.Random(seed)
    largest = max(costs, default=0.0) or 1.0
    return [0.99 * cost / largest + 0.01 * chance.random() for cost in costs]


def _arithmetic(unit: Unit) -> float:
    """Return about how many multiplications a unit takes: those of a layer with as many inputs as outputs.

    Such a layer with w weights takes sqrt(w) for each output. Measured seconds would differ from run to run, and with
    them what is found.
    """
    return unit.output_bytes / 4 * (1.0 + math.sqrt(unit.weight_bytes / 4))

"""The search for the fewest units to keep in fp32 so that a case's errors meet a budget.

Each set that fails says that one of the units that ran low in it must be kept. Small failing sets, **conflicts**, are
found by halving, and the smallest set that holds one unit of each conflict is tried next: it meets the budget, and then
none smaller does, or it fails and yields the next conflict (implicit hitting sets; as Reiter 1987 for diagnoses). Where
errors add up from many units there are no small conflicts: then a model fitted to all trials (`trials.py`) proposes
sets and says which trials would rule out the smaller ones.

All that takes for granted that keeping more never errs more. Near the budget luck in rounding decides, so what trials
are left go to smaller sets that are excluded only by larger ones which failed by little. At the end it says which sets
to weigh beside the one found, so that what more or less in fp32 costs can be seen.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ampbench.instruments.keep_fp32.records import MAX_TRIALS, SPEED, SearchSpace, Trial, Unit
from ampbench.instruments.keep_fp32.trials import (
    DOUBTFUL,
    Budget,
    Model,
    TrialsSpentError,
    Tried,
    Units,
    container_units,
    expected,
    fit,
    islands,
    units_of,
)
from ampbench.records.measured import OUT_OF_MEMORY

ADDS_UP = 0.6
"""The part of an error's square from which on it counts as the sum of the squares of its parts."""


def find_conflict(tried: Tried, low: Units, guilt: Mapping[int, float]) -> Units | None:
    """Return a part of the failing set `low` that fails, and of which no unit can be left out; one unit as a rule.

    None: many units each add a little to the error, and no small part of them fails, or trials contradict each other.
    Units of more `guilt` are suspected first: the half to try is that which holds half of it. What is known to meet the
    budget is not suspected, unless nothing else explains the failure. As QuickXplain (Junker, AAAI 2004), with about
    log2(units) trials for each unit of the conflict. Raises `TrialsSpentError`.
    """
    found: Units = frozenset()
    innocent = tried.largest_meeting(low)
    suspects = _suspected_first(low - innocent, guilt)
    while suspects:
        place = _crossing(tried, found | innocent, suspects, guilt)
        before = innocent.union(suspects[:place])
        last = frozenset({suspects[place]})
        if not found and _adds_up(tried, before, last):
            return None
        found |= last
        if not tried.meets(found):
            return found
        innocent, suspects = frozenset(), _suspected_first(before, guilt)
    return None


def more_suspected(suspects: Units, guilt: Mapping[int, float]) -> Units:
    """Return those of most guilt, so many that they hold about half of it."""
    order = _suspected_first(suspects, guilt)
    return frozenset(order[: _half(order, 0, len(order), guilt)] if len(order) > 1 else order)


def _suspected_first(units: Units, guilt: Mapping[int, float]) -> list[int]:
    return sorted(units, key=lambda unit: (-guilt[unit], unit))


def _crossing(tried: Tried, fixed: Units, suspects: Sequence[int], guilt: Mapping[int, float]) -> int:
    """Return the place of the suspect with which `fixed` and those before it begin to fail, as with all they do."""
    meeting, failing = 0, len(suspects)
    while failing - meeting > 1:
        middle = _half(suspects, meeting, failing, guilt)
        if tried.meets(fixed.union(suspects[:middle])):
            meeting = middle
        else:
            failing = middle
    return failing - 1


def _half(suspects: Sequence[int], start: int, end: int, guilt: Mapping[int, float]) -> int:
    """Return where half of the guilt between two places is reached, at least one off both."""
    half = sum(guilt[unit] for unit in suspects[start:end]) / 2
    reached = 0.0
    for place in range(start, end):
        reached += guilt[suspects[place]]
        if reached >= half * (1 - 1e-9):
            return min(max(place + 1, start + 1), end - 1)
    return end - 1


def _adds_up(tried: Tried, before: Units, last: Units) -> bool:
    """Return whether the error of both sets is what their own errors make together, though neither fails alone."""
    if tried.meets(last) and math.isfinite(tried.excess(before | last)):
        together = tried.shares[before | last]
        worst = max(range(len(together)), key=lambda which: together[which])
        for part in (before, last):
            tried.excess(part)
        return tried.shares[before][worst] + tried.shares[last][worst] >= ADDS_UP * together[worst]
    return False


NODES = 3000
"""How many branches are looked at; beyond, what was found need not be the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hitting:
    """A set that holds a unit of each conflict (None: none as small as asked was found); none has less than `least`."""

    kept: Units | None
    least: int


def smallest_hitting(conflicts: Sequence[Units], dislike: Sequence[float], most: int) -> Hitting:
    """Return the smallest set of up to `most` units with one of each of `conflicts`; `dislike` is of each unit.

    Of equally small ones it is that with the least sum of `dislike`. Branch and bound: a smallest conflict that is not
    hit yet is hit by each of its units in turn; conflicts without common units bound what is still needed. `least` is
    `most` + 1 where all branches were seen and none is small enough.
    """
    work = _Branches(dislike, most)
    work.branch([], frozenset(), conflicts)
    apart = len(_apart(conflicts))
    if work.nodes >= NODES:
        return Hitting(kept=work.best, least=apart)
    return Hitting(kept=work.best, least=most + 1 if work.best is None else len(work.best))


class _Branches:
    """Branches under way, and the best set so far."""

    def __init__(self, dislike: Sequence[float], most: int):
        self.dislike, self.most = dislike, most
        self.best: Units | None = None
        self.best_dislike = 0.0
        self.nodes = 0

    def branch(self, chosen: list[int], refused: Units, open_sets: Sequence[Units]) -> None:
        """Complete `chosen`, without what is `refused`, by units of the conflicts that are still open."""
        self.nodes += 1
        if not all(open_sets):
            return
        if not open_sets:
            self._note(chosen)
            return
        apart = _apart(open_sets)
        size = len(chosen) + len(apart)
        disliked = sum(self.dislike[unit] for unit in chosen)
        disliked += sum(min(self.dislike[unit] for unit in conflict) for conflict in apart)
        if self.best is None:
            if size > self.most:
                return
        elif (size, disliked) >= (len(self.best), self.best_dislike):
            return
        without = set(refused)
        shortest: Units = min(open_sets, key=len)
        for unit in sorted(shortest, key=lambda unit: (self.dislike[unit], unit)):
            if self.nodes >= NODES:
                return
            self.branch([*chosen, unit], frozenset(without), [left - without for left in open_sets if unit not in left])
            without.add(unit)

    def _note(self, chosen: list[int]) -> None:
        disliked = sum(self.dislike[unit] for unit in chosen)
        if len(chosen) <= self.most and (
            self.best is None or (len(chosen), disliked) < (len(self.best), self.best_dislike)
        ):
            self.best, self.best_dislike = frozenset(chosen), disliked


def _apart(conflicts: Sequence[Units]) -> list[Units]:
    """Return conflicts without common units, the small ones first."""
    seen: set[int] = set()
    apart = []
    for conflict in sorted(conflicts, key=len):
        if seen.isdisjoint(conflict):
            seen |= conflict
            apart.append(conflict)
    return apart


ENUMERATED = 12
"""Up to so many units, all sets are looked at."""

Vector = NDArray[np.float64]


def likely_to_meet(
    model: Model, conflicts: Sequence[Units], dislike: Sequence[float], *, most: int, allowed: float
) -> Units | None:
    """Return the smallest set of up to `most` units that the model expects to take no more than `allowed` (squared).

    Of equally small ones it is that with the least sum of `dislike`. With more than `ENUMERATED` units it is grown by
    what takes most off the error for each unit, and may miss the smallest. None: none was found.
    """
    count = len(dislike)
    if count <= ENUMERATED:
        sets, excess = _all_sets(model, conflicts, count)
        sizes = sets.sum(axis=1)
        good = np.flatnonzero((excess <= allowed) & (sizes <= most))
        if not good.size:
            return None
        order = np.lexsort((sets[good] @ np.asarray(dislike), sizes[good]))
        return _units(sets[good[order[0]]])
    start = smallest_hitting(conflicts, dislike, most).kept
    if start is None:
        return None
    kept = _grown(model, start, count, most=most, allowed=allowed)
    return None if kept is None else _pruned(model, kept, conflicts, count, allowed=allowed)


def closest_to_meet(model: Model, conflicts: Sequence[Units], dislike: Sequence[float], *, size: int) -> Units | None:
    """Return the set of `size` units that the model expects to err least (None: conflicts exclude all).

    With more than `ENUMERATED` units as `likely_to_meet`.
    """
    count = len(dislike)
    if count <= ENUMERATED:
        sets, excess = _all_sets(model, conflicts, count)
        good = np.flatnonzero(np.isfinite(excess) & (sets.sum(axis=1) == size))
        return _units(sets[good[np.argmin(excess[good])]]) if good.size else None
    start = smallest_hitting(conflicts, dislike, size).kept
    if start is None:
        return None
    grown = _grown(model, start, count, most=size, allowed=-1.0)
    return start if grown is None else grown


def _all_sets(model: Model, conflicts: Sequence[Units], count: int) -> tuple[NDArray[np.bool_], Vector]:
    """Return all kept sets, a row of flags each, and the excess expected of each: inf where a conflict excludes it."""
    kept = (np.arange(2**count)[:, None] >> np.arange(count)) & 1 == 1
    broken = [~kept[:, sorted(units)].all(axis=1) for units in model.inside]
    lost = np.array(broken).reshape(len(broken), -1).T.astype(float)
    shares = model.floor + (~kept).astype(float) @ model.units.T + lost @ model.containers.T
    excess = np.asarray(shares.max(axis=1))
    for conflict in conflicts:
        excess[~kept[:, sorted(conflict)].any(axis=1)] = np.inf
    return kept, excess


def _units(flags: NDArray[np.bool_]) -> Units:
    return frozenset(int(unit) for unit in np.flatnonzero(flags))


def _grown(model: Model, start: Units, count: int, *, most: int, allowed: float) -> Units | None:
    """Return `start` with units, or what whole containers lack, until the model expects `allowed`; None: too many.

    With an `allowed` below zero, that is, out of reach, the set is filled up to `most`.
    """
    kept = set(start)
    every = frozenset(range(count))
    while (shares := model.shares(every - kept)).max() > allowed:
        worst = int(shares.argmax())
        steps = [frozenset({unit}) for unit in range(count) if unit not in kept]
        steps += [units - kept for units in model.inside if units - kept]
        steps = [step for step in steps if len(kept) + len(step) <= most]
        if not steps:
            return frozenset(kept) if allowed < 0 else None
        added = model.units[worst]
        broken = [
            (units, float(model.containers[worst, place]))
            for place, units in enumerate(model.inside)
            if model.containers[worst, place] and not units <= kept
        ]
        gains = [_gain(added, broken, kept, step) / len(step) for step in steps]
        best = max(range(len(steps)), key=lambda place: (gains[place], -len(steps[place]), -place))
        kept |= steps[best]
    return frozenset(kept)


def _gain(added: Vector, broken: Sequence[tuple[Units, float]], kept: set[int], step: Units) -> float:
    """Return what keeping `step`, too, takes off an error to which units and containers that are not whole add."""
    gain = float(sum(added[unit] for unit in step))
    return gain + sum(share for units, share in broken if not units.isdisjoint(step) and units <= kept | step)


def _pruned(model: Model, kept: Units, conflicts: Sequence[Units], count: int, *, allowed: float) -> Units:
    """Return `kept` without what neither a conflict nor the model needs."""
    every = frozenset(range(count))
    for unit in sorted(kept, key=lambda unit: (model.guilt(unit), unit)):
        less = kept - {unit}
        if all(less & conflict for conflict in conflicts) and model.excess(every - less) <= allowed:
            kept = less
    return kept


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
    objective: str = SPEED,
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
    costs = [_arithmetic(unit) if objective == SPEED else unit.weight_bytes + unit.output_bytes for unit in space.units]
    chance = random.Random(seed)
    largest = max(costs, default=0.0) or 1.0
    return [0.99 * cost / largest + 0.01 * chance.random() for cost in costs]


def _arithmetic(unit: Unit) -> float:
    """Return about how many multiplications a unit takes: those of a layer with as many inputs as outputs.

    Such a layer with w weights takes sqrt(w) for each output. Measured seconds would differ from run to run, and with
    them what is found.
    """
    return unit.output_bytes / 4 * (1.0 + math.sqrt(unit.weight_bytes / 4))


def sets_between(
    space: SearchSpace, found_units: Set[int] | None, trials: Iterable[Trial], *, most: int = 6
) -> list[list[str]]:
    """Return up to `most` sets to keep, as `keep_fp32` takes them, from none to all by their number of units.

    None, the one found (None: there is none) and all come first; then, below and above the one found, sets of which a
    trial shows that none as small errs less; where there are none, half of the one found and what it lacks of the
    containers around it, of which no trial need be there. No set comes twice.
    """
    every = frozenset(range(len(space.units)))
    wanted: list[Units] = [frozenset(), every]
    if found_units is not None:
        wanted.insert(1, frozenset(found_units))
    wanted = list(dict.fromkeys(wanted))
    size = len(wanted[1]) if found_units is not None and len(wanted) > 2 else 0
    front = [units for units in _front(space, trials) if units not in wanted]
    below = [units for units in front if len(units) < size]
    above = [units for units in front if size < len(units) < len(every)]
    if size:
        below = below or _halved(space, wanted[1])
        above = above or _completed(space, wanted[1])
    room = max(most - len(wanted), 0)
    fewer = min(len(below), max(room // 2, room - len(above)))
    chosen = [*wanted, *_spread(below, fewer), *_spread(above, room - fewer)]
    return [islands(space, units) for units in sorted(dict.fromkeys(chosen), key=lambda one: (len(one), sorted(one)))]


def _front(space: SearchSpace, trials: Iterable[Trial]) -> list[Units]:
    """Return the tried sets that err less than all smaller ones, and than others as small, the smallest first."""
    tried = [
        (len(units), trial.output_rel_l2, trial.number, units)
        for trial in trials
        if trial.output_rel_l2 is not None and not trial.error
        for units in [units_of(space, trial.kept)]
    ]
    front: list[Units] = []
    least = float("inf")
    for _, error, _, units in sorted(tried, key=lambda row: row[:3]):
        if error < least:
            least = error
            front.append(units)
    return front


def _halved(space: SearchSpace, found: Units) -> list[Units]:
    """Return the half of `found` that errs most on its own (none if that is all of it)."""
    prior = expected(space)
    order = sorted(found, key=lambda unit: (unit not in prior.overflow, -(prior.own[unit] or 0.0), unit))
    return [frozenset(order[: len(order) // 2])] if len(order) > 1 else []


def _completed(space: SearchSpace, found: Units) -> list[Units]:
    """Return `found` with the innermost containers around its units kept whole, if that is more, and not all."""
    inner: dict[int, Units] = {}
    for units in container_units(space).values():
        inner.update(dict.fromkeys(units, units))
    grown = found.union(*(inner.get(unit, frozenset()) for unit in found))
    return [grown] if len(found) < len(grown) < len(space.units) else []


def _spread(sets: Sequence[Units], count: int) -> list[Units]:
    """Return `count` of `sets`, at most, spread evenly over them."""
    if count >= len(sets):
        return list(sets)
    return [sets[(2 * place + 1) * len(sets) // (2 * count)] for place in range(count)]

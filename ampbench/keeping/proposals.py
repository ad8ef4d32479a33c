"""Sets to keep that a model of the error speaks for, among those that no conflict excludes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ampbench.keeping.hitting import smallest_hitting
from ampbench.keeping.surrogate import Model
from ampbench.keeping.tried import Units

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

"""Which sets to weigh beside the one found, so that what more or less in fp32 costs can be seen."""

from collections.abc import Iterable, Sequence, Set

from ampbench.keeping.islands import container_units, islands, units_of
from ampbench.keeping.surrogate import expected
from ampbench.keeping.tried import Units
from ampbench.records.keeping import SearchSpace, Trial


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

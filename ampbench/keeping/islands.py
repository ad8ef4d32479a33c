"""From units of a search space to the modules to name to `keep_fp32`, and back."""

from collections.abc import Iterator, Sequence, Set

from ampbench.errors import UnknownNameError
from ampbench.records.keeping import SearchSpace

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

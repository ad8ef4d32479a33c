"""Search spaces with planted faults: what stands in for a network and its trials."""

import math
import random
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations

from ampbench.instruments.keep_fp32.records import SearchSpace, Trial, Unit
from ampbench.instruments.keep_fp32.trials import units_of
from ampbench.records.ranges import ModuleError

Units = frozenset[int]


def space_of(paths: Iterable[str], own: Mapping[str, float] | None = None, overflow: Iterable[str] = ()) -> SearchSpace:
    """Return a space of modules at `paths`, its containers those above them, with errors on exact inputs if given."""
    paths = list(paths)
    above = dict.fromkeys(
        ".".join(path.split(".")[:end]) for path in paths if path for end in range(len(path.split(".")))
    )
    errors = [
        ModuleError(module=path, kind="Linear", elements=100, own_rel_l2=error, overflowed=7 * (path in set(overflow)))
        for path, error in (own or {}).items()
    ]
    units = [
        Unit(modules=[path], kind="Linear", weight_bytes=4 * place + 4, output_bytes=64, seconds=1e-3 * (place + 1))
        for place, path in enumerate(paths)
    ]
    return SearchSpace(
        case_id="c", units=units, containers=sorted(above, key=lambda path: path.count(".") + bool(path)), errors=errors
    )


def blocks_of(count: int, each: int = 5) -> list[str]:
    """Return paths of `count` modules in blocks."""
    return [f"layers.{place // each}.part{place % each}" for place in range(count)]


class Network:
    """Answers trials as a network would: `squared(low)` is the square of its error, given the units that run low."""

    def __init__(self, space: SearchSpace, squared: Callable[[Units], float], *, noise: float = 0.0, seed: int = 0):
        self.space, self.squared, self.noise, self.seed = space, squared, noise, seed
        self.tried: list[Trial] = []

    def error(self, kept: Iterable[str]) -> float:
        low = frozenset(range(len(self.space.units))) - units_of(self.space, list(kept))
        shake = random.Random(f"{self.seed} {sorted(low)}").gauss(0.0, self.noise) if self.noise else 0.0
        return math.sqrt(self.squared(low)) * (1.0 + shake)

    def __call__(self, kept: list[str]) -> Trial:
        error = self.error(kept)
        trial = Trial(
            case_id="c",
            number=len(self.tried),
            kept=kept,
            output_rel_l2=error if math.isfinite(error) else None,
            grad_rel_l2=2 * error if math.isfinite(error) else None,
            nonfinite=0 if math.isfinite(error) else 3,
        )
        self.tried.append(trial)
        return trial


def breaks(*conflicts: Iterable[int], floor: float = 1e-12, with_error: float = math.inf) -> Callable[[Units], float]:
    """Return errors that a low set has if one of `conflicts` is within it."""
    sets = [frozenset(conflict) for conflict in conflicts]
    return lambda low: floor + sum(with_error for conflict in sets if conflict <= low)


def smallest_by_exhaustion(count: int, meets: Callable[[Units], bool]) -> int | None:
    """Return how many of `count` units must be kept at least, by trying all sets (`meets` is given what is kept)."""
    for size in range(count + 1):
        if any(meets(frozenset(kept)) for kept in combinations(range(count), size)):
            return size
    return None

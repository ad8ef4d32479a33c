"""Searches among a few modules, and networks with planted faults in place of trials."""

import math
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any

from ampbench.studies.keep_fp32 import KeepSearch, Limits, Searched, SearchSpace, TimedSet, Timing, Trial, Unit, Units
from tests.stored_runs import make_case

CASE = make_case("fp16_autocast", workload="net", parameters={}, batch_size=None)
SPACE = SearchSpace(
    case_id=CASE.case_id,
    units=[
        Unit(modules=["body.0"], kind="Conv2d", own_rel_l2=3e-4, overflows=0.5),
        Unit(modules=["body.1"], kind="BatchNorm2d"),
        Unit(modules=["norm"], kind="LayerNorm", own_rel_l2=2e-3),
        Unit(modules=["embed", "head"], kind="Embedding"),
    ],
    containers=["", "body"],
    limits=Limits(max_error=2e-3),
)


def trial(number: int, *kept: str, error: float | None = None, **more: Any) -> Trial:
    return Trial(case_id=CASE.case_id, number=number, kept=list(kept), output_rel_l2=error, **more)


TRIALS = [
    trial(0, error=3.1e-2),
    trial(1, "", error=4e-7),
    trial(2, "norm", error=1.9e-3),
    trial(3, "body", "norm", error=1.1e-3),
]


def timed(kept: list[str], seconds: float, builds: int = 8, peak: int | None = 1 << 20) -> TimedSet:
    """Return a set whose builds take about `seconds`, each a little luckier or not, as all of its pair are."""
    samples = [[seconds * (1 + 0.01 * build), 2 * seconds] for build in range(builds)]
    return TimedSet(kept=kept, samples=samples, peak_bytes=peak)


TIMED = [timed([], 1e-3), timed(["norm"], 1.04e-3, peak=(1 << 20) + 512), timed([""], 1.62e-3, peak=2 << 20)]


def ended(*kept: str, **more: Any) -> KeepSearch:
    """Return a search that found `kept`."""
    fields = {"case_id": CASE.case_id, "kept": list(kept), "minimal": True, "timing": Timing(sets=TIMED)}
    return KeepSearch(**fields | more)


def searched(*kept: str, trials: list[Trial] = TRIALS, limits: Limits | None = None, **more: Any) -> Searched:
    """Return a search that found `kept`, as a run holds it."""
    space = SPACE if limits is None else SearchSpace(**{**_fields(SPACE), "limits": limits})
    return Searched(space=space, trials=trials, ended=ended(*kept, **more))


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def space_of(*units: list[str], containers: Iterable[str] = ()) -> SearchSpace:
    """Return a space of units of these modules."""
    made = [Unit(modules=modules, kind="Linear") for modules in units]
    return SearchSpace(case_id="c", units=made, containers=list(containers), limits=Limits(max_error=1.0))


def fewest(count: int, meets: Callable[[Units], bool]) -> int:
    """Return how many of `count` units must be kept at least, by trying all sets; keeping all meets."""
    return next(
        size for size in range(count + 1) if any(meets(frozenset(kept)) for kept in combinations(range(count), size))
    )


def breaks(count: int, *conflicts: Iterable[int]) -> Callable[[Units], float]:
    """Return errors of kept sets that are infinite where all units of one of `conflicts` run low."""
    sets = [frozenset(conflict) for conflict in conflicts]
    return lambda kept: math.inf if any(conflict <= frozenset(range(count)) - kept for conflict in sets) else 0.0

"""The search itself, on planted errors: what it finds, beside all sets that there are, and in how many trials."""

import math
import random
from collections.abc import Callable, Sequence
from statistics import mean, median

import pytest

from ampbench.studies.keep_fp32 import Smallest, TrialsSpentError, Units
from tests.studies.keep_searches import breaks, fewest


class Tried(Smallest):
    """A search that has been made, with what it tried."""

    def __init__(self, order: Sequence[int], share: Callable[[Units], float | None], most: int = 60):
        self.tried: list[Units] = []

        def try_set(kept: Units) -> float | None:
            if len(self.tried) == most:
                raise TrialsSpentError
            self.tried.append(kept)
            return share(kept)

        super().__init__(order, try_set)
        self.run()


def is_minimal(search: Smallest, share: Callable[[Units], float | None]) -> bool:
    assert search.kept is not None
    return all((share(search.kept - {unit}) or 0) > 1 for unit in search.kept)


@pytest.mark.parametrize(("told", "trials"), [("right", 16), ("nearly", 32), ("nothing", 52)])
def test_five_modules_of_150_that_overflow_are_found(told: str, trials: int) -> None:
    """By 100 random searches each, all within 60 trials; by trying them one by one it would take 150."""
    counts = []
    for seed in range(100):
        chance = random.Random(seed)
        faulty = frozenset(chance.sample(range(150), 5))
        luck = [chance.gauss(0, 1) for _ in range(150)]
        trust = {"right": 99.0, "nearly": 2.0, "nothing": 0.0}[told]
        order = sorted(range(150), key=lambda unit: -luck[unit] - trust * (unit in faulty))
        search = Tried(order, breaks(150, *([unit] for unit in faulty)))
        assert (search.kept, search.minimal) == (faulty, True)
        counts.append(len(search.tried))
    assert median(counts) <= trials
    assert max(counts) <= 60


@pytest.mark.parametrize(
    ("spread", "pairs", "more", "trials"),
    [(0.0, 0, 0.0, 12), (0.5, 0, 0.1, 14), (0.0, 3, 0.5, 14), (1.0, 3, 0.7, 16), (math.inf, 0, 1.2, 22)],
)
def test_where_errors_add_up_and_interact_the_set_is_about_as_small_as_the_smallest_of_all(
    spread: float, pairs: int, more: float, trials: int
) -> None:
    """Of 12 modules, whose own errors tell what they add up to a factor of about exp(`spread`); `more` on average."""
    beyond, counts = [], []
    for seed in range(50):
        chance = random.Random(seed)
        adds = [math.exp(chance.gauss(0, 1.5)) for _ in range(12)]
        together = [(frozenset(chance.sample(range(12), 2)), math.exp(chance.gauss(0, 1.5))) for _ in range(pairs)]
        noise = [chance.random() if spread == math.inf else -chance.gauss(0, spread) for _ in range(12)]

        def squared(kept: Units, adds: list[float] = adds, together: list[tuple[Units, float]] = together) -> float:
            low = frozenset(range(12)) - kept
            return sum(adds[unit] for unit in low) + sum(square for pair, square in together if pair <= low)

        budget = squared(frozenset()) * chance.choice([0.1, 0.25, 0.5])

        def share(kept: Units, budget: float = budget, squared: Callable[[Units], float] = squared) -> float:
            return math.sqrt(squared(kept) / budget)

        own = noise if spread == math.inf else [math.log(add) + luck for add, luck in zip(adds, noise, strict=True)]
        search = Tried(sorted(range(12), key=lambda unit: -own[unit]), share)
        assert search.kept is not None
        assert search.minimal
        assert is_minimal(search, share)
        beyond.append(len(search.kept) - fewest(12, lambda kept: share(kept) <= 1))
        counts.append(len(search.tried))
    assert mean(beyond) <= more
    assert median(counts) <= trials


@pytest.mark.parametrize("most", [1, 4, 8, 15])
def test_when_trials_run_out_the_smallest_set_so_far_is_returned(most: int) -> None:
    share = breaks(20, [3], [11], [19])
    search = Tried(range(20), share, most)
    meeting = [kept for kept in search.tried if share(kept) <= 1]
    assert search.kept == min(meeting, key=len, default=None)
    assert not search.minimal
    assert len(search.tried) == most

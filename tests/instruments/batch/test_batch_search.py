"""Which batch is tried next, and what the batches tried come to, against a look at every batch there is."""

import math
from collections.abc import Callable

import pytest

from ampbench.instruments.batch.records import FAILED, FITS, TOO_LARGE, BatchAsked, BatchPoint
from ampbench.instruments.batch.search import candidates, next_batch, next_in_round, rate, reached, times_of


def asked(limit: int, *, most: int = 100_000, resolution: float = 0.0) -> BatchAsked:
    return BatchAsked(max_batch=most, resolution=resolution, rounds=3, seconds=0.1, limit_bytes=limit)


def point(
    batch: int, outcome: str = FITS, *, number: int = 0, per_second: float = 100.0, **given: object
) -> BatchPoint:
    """Return a point that makes so many items per second."""
    items = float(batch)
    fields = {"items_per_step": items, "samples": [items / per_second]} if outcome == FITS else {}
    return BatchPoint(case_id="a", batch=batch, round=number, outcome=outcome, **{**fields, **given})


def searched(takes: Callable[[int], float], wanted: BatchAsked, failing: tuple[int, ...] = ()) -> list[BatchPoint]:
    """Return the points of a search among batches that take so much."""
    points: list[BatchPoint] = []
    while (batch := next_batch(points, wanted)) is not None:
        fits = takes(batch) <= (wanted.limit_bytes or math.inf)
        points.append(point(batch, FAILED if batch in failing else FITS if fits else TOO_LARGE))
        assert len(points) < 100
    return points


@pytest.mark.parametrize("limit", [*range(1, 70), 999, 1000, 1001, 4096, 65_537])
def test_without_a_tolerance_the_largest_batch_is_that_of_trying_every_one(limit: int) -> None:
    def takes(batch: int) -> float:
        return 3 + 1.7 * batch + 0.01 * batch**1.5

    every = [batch for batch in range(1, 50_000) if takes(batch) <= limit]
    points = searched(takes, asked(limit))
    found = reached(points)
    assert (found.largest.batch if found.largest else None) == (max(every) if every else None)
    assert found.over is not None
    assert found.over.batch == (max(every) if every else 0) + 1
    assert len({one.batch for one in points}) == len(points)  # none is tried twice
    assert len(points) <= 2 * (math.log2(max(found.over.batch, 2)) + 1)


@pytest.mark.parametrize("resolution", [0.01, 0.05, 0.5])
def test_with_a_tolerance_what_fits_and_what_does_not_are_so_near(resolution: float) -> None:
    points = searched(float, asked(7_777, resolution=resolution))
    found = reached(points)
    assert found.largest is not None
    assert found.over is not None
    assert found.largest.batch <= 7_777 < found.over.batch
    assert found.over.batch - found.largest.batch <= resolution * found.largest.batch
    assert len(points) < len(searched(float, asked(7_777)))


def test_no_larger_batch_is_tried_than_was_allowed() -> None:
    points = searched(float, asked(10**9, most=100))
    assert [one.batch for one in points] == [1, 2, 4, 8, 16, 32, 64, 100]
    found = reached(points)
    assert (found.largest.batch if found.largest else 0, found.over) == (100, None)


def test_a_network_that_fails_on_one_example_begins_with_two() -> None:
    points = searched(float, asked(5), failing=(1,))
    found = reached(points)
    assert [one.batch for one in points][:2] == [1, 2]
    assert (found.largest.batch if found.largest else 0, found.over.batch if found.over else 0) == (5, 6)
    assert found.alone is not None
    assert found.failed is None


def test_what_fails_otherwise_ends_the_search() -> None:
    points = searched(float, asked(1000), failing=(16,))
    assert [one.batch for one in points] == [1, 2, 4, 8, 16]
    found = reached(points)
    assert (found.largest.batch if found.largest else 0, found.failed.batch if found.failed else 0) == (8, 16)


def test_nothing_that_runs_at_all_ends_it_too() -> None:
    assert [one.batch for one in searched(float, asked(1000), failing=(1, 2))] == [1, 2]
    assert [one.batch for one in searched(lambda batch: batch + 1, asked(1))] == [1]
    assert reached(searched(lambda batch: batch + 1, asked(1))).largest is None


def test_further_rounds_are_for_the_three_fastest_and_say_which_is_best() -> None:
    speeds = {1: 10.0, 2: 20.0, 4: 40.0, 8: 39.0, 16: 38.5, 32: 30.0}
    points = [point(batch, per_second=speed) for batch, speed in speeds.items()]
    assert candidates(points) == [4, 8, 16]
    assert next_in_round(points, 1) == [4, 8, 16]
    points += [point(4, number=1, per_second=20.0), point(8, number=1, per_second=41.0)]
    assert next_in_round(points, 1) == [16]
    points += [point(16, number=1, per_second=38.0)]
    points += [point(batch, number=2, per_second=speed) for batch, speed in ((4, 21.0), (8, 40.0), (16, 38.2))]
    best = reached(points).best
    assert best is not None
    assert (best.batch, best.value) == (8, 40.0)  # what was fastest at first was luck
    assert candidates(points) == [4, 8, 16]
    assert best.low is not None
    assert best.high is not None
    # Student's t of two degrees of freedom, on logarithms
    logs = [math.log(one) for one in (39.0, 41.0, 40.0)]
    mean = sum(logs) / 3
    half = 4.302653 * math.sqrt(sum((one - mean) ** 2 for one in logs) / 2 / 3)
    assert best.low == pytest.approx(math.exp(mean - half), rel=1e-6)
    assert best.high == pytest.approx(math.exp(mean + half), rel=1e-6)
    assert reached(points).enough == 4  # 40 of the search's one round


def test_two_rounds_have_no_interval() -> None:
    points = [point(1, per_second=10.0), point(1, number=1, per_second=11.0)]
    best = reached(points).best
    assert best is not None
    assert (best.value, best.low, best.high) == (10.5, None, None)


def test_speeds_are_compared_round_by_round() -> None:
    mine = reached([point(4, number=number, per_second=speed) for number, speed in enumerate((20.0, 40.0, 60.0))])
    theirs = reached([point(2, number=number, per_second=speed) for number, speed in enumerate((10.0, 20.0, 30.0))])
    times = times_of(mine, theirs)
    assert times is not None
    assert (times.value, times.low, times.high) == pytest.approx((2.0, 2.0, 2.0))
    assert times_of(mine, None) is None


def test_a_batch_that_does_not_fit_again_is_told() -> None:
    points = [point(1), point(2), point(4, TOO_LARGE), point(3), point(3, TOO_LARGE, number=1)]
    assert (reached(points).wavering, reached(points).largest) == (3, points[3])


def test_what_fits_beyond_what_does_not_is_no_largest_batch() -> None:
    found = reached([point(1), point(2, TOO_LARGE), point(4)])
    assert (found.largest.batch if found.largest else 0, found.over.batch if found.over else 0) == (1, 2)


def test_a_point_that_was_not_timed_has_no_rate() -> None:
    assert rate(point(1, TOO_LARGE)) is None
    assert rate(point(1, cpu_samples=[0.0])) is None  # below what the clock resolves
    assert rate(point(8, per_second=50.0)) == pytest.approx(50.0)

"""Which batch is tried next, and what the batches tried come to: nothing here is measured or said.

The search doubles the batch until one does not fit, then halves the gap between what fits and what does not. All
follows from the points of a run, so that one that broke off goes on where it was.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ampbench.instruments.batch.records import FAILED, FITS, TOO_LARGE, BatchAsked, BatchPoint

CANDIDATES = 3
"""So many batches, the fastest of the search, are timed again in each further round: one round cannot tell them."""
ENOUGH = 0.95
"""The share of the best throughput that is worth naming the smallest batch for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The items per second on batches of the size `batch`: by round, their median, and its 95% interval.

    The interval is the t interval of logarithms over rounds; None under three.
    """

    batch: int
    by_round: dict[int, float]
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How many times one speed is another, with the 95% interval over rounds that both have (None: under three)."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What the points of a case come to.

    `largest` is the point of the largest batch that fits and `over` that of the smallest that does not, each None where
    there is none; `failed` is a point that ended the search, `alone` one of a batch of 1 that fails while 2 runs.
    `best` is the best throughput, `enough` the smallest batch that has `ENOUGH` of it, `wavering` a batch that did not
    fit in a later round.
    """

    points: Sequence[BatchPoint]
    largest: BatchPoint | None
    over: BatchPoint | None
    failed: BatchPoint | None
    alone: BatchPoint | None
    best: Speed | None
    enough: int | None
    wavering: int | None


def next_batch(points: Sequence[BatchPoint], asked: BatchAsked) -> int | None:
    """Return the batch that the search tries after `points`; None where it has ended.

    A network that cannot do with a batch of 1, as batch normalisation in training, begins with 2.
    """
    found = reached(points)
    if found.failed is not None:
        return None
    lowest = 2 if found.alone else 1
    if found.largest is None:
        return lowest if found.over is None and lowest <= asked.max_batch else None
    low = found.largest.batch
    if found.over is None:
        return min(2 * low, asked.max_batch) if low < asked.max_batch else None
    high = found.over.batch
    return (low + high) // 2 if high - low > max(1, int(asked.resolution * low)) else None


def next_in_round(points: Sequence[BatchPoint], number: int) -> list[int]:
    """Return the batches that are still to be timed in a further round of a search that has ended."""
    done = {point.batch for point in points if point.round == number}
    return [batch for batch in candidates(points) if batch not in done]


def candidates(points: Sequence[BatchPoint]) -> list[int]:
    """Return the batches that may have the best throughput: the `CANDIDATES` fastest that the search found to fit."""
    first = {point.batch: rate(point) or 0.0 for point in points if point.round == 0 and point.outcome == FITS}
    return sorted(first, key=lambda batch: -first[batch])[:CANDIDATES]


def rate(point: BatchPoint) -> float | None:
    """Return the items per second of a point; None where it was not timed, or its CPU time was below the clock."""
    from ampbench.base import stats

    if not point.samples or not point.items_per_step:
        return None
    cpu = None if point.cpu_samples is None else [point.cpu_samples]
    seconds = stats.round_value([point.samples], cpu)
    return point.items_per_step / seconds if seconds else None


def reached(points: Sequence[BatchPoint]) -> Reached:
    """Return what points come to; those of the search alone say what fits."""
    first = {point.batch: point for point in points if point.round == 0}
    over = min((batch for batch, point in first.items() if point.outcome == TOO_LARGE), default=None)
    fitting = [batch for batch, point in first.items() if point.outcome == FITS and (over is None or batch < over)]
    failed = [batch for batch, point in first.items() if point.outcome == FAILED]
    again = (point.batch for point in points if point.round and point.outcome == TOO_LARGE)
    speeds = [speed for batch in candidates(points) if (speed := _speed(points, batch))]
    most = max((len(speed.by_round) for speed in speeds), default=0)
    best = max((one for one in speeds if len(one.by_round) == most), key=lambda one: one.value, default=None)
    near = (
        batch for batch in sorted(fitting) if best is not None and (rate(first[batch]) or 0.0) >= ENOUGH * best.value
    )
    return Reached(
        points=points,
        largest=first[max(fitting)] if fitting else None,
        over=None if over is None else first[over],
        failed=next((first[batch] for batch in failed if batch > 1), None),
        alone=first[1] if 1 in failed else None,
        best=best,
        enough=min([*near, *([best.batch] if best else [])], default=None),
        wavering=next(again, None),
    )


def times_of(one: Reached, baseline: Reached | None) -> Times | None:
    """Return how many times the best throughput of `baseline` that of `one` is; None where either has none."""
    from ampbench.base import stats

    if baseline is None or one.best is None or baseline.best is None:
        return None
    mine, theirs = one.best.by_round, baseline.best.by_round
    interval = stats.log_t_interval([mine[number] / theirs[number] for number in mine if number in theirs])
    low, high = interval or (None, None)
    return Times(value=one.best.value / baseline.best.value, low=low, high=high)


def _speed(points: Sequence[BatchPoint], batch: int) -> Speed | None:
    from ampbench.base import stats

    by_round = {
        point.round: found
        for point in points
        if point.batch == batch and point.outcome == FITS and (found := rate(point)) is not None
    }
    if not by_round:
        return None
    values = list(by_round.values())
    low, high = stats.log_t_interval(values) or (None, None)
    return Speed(batch=batch, by_round=by_round, value=statistics.median(values), low=low, high=high)

"""Simulated series: how often a step is found, and how often one is seen where there is none."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.random import Generator

from ampbench.stats import Floats
from ampbench.trends import neighbours, steps
from ampbench.trends.neighbours import Evidence
from tests.simulation.suite import Share

THRESHOLD = math.log1p(0.02)
POINTS = 100
HISTORY = 50
ROUNDS = 4

Model = Callable[[Generator, int, float], Floats]
"""The logarithms of a series of so many points, of about the coefficient of variation given, without a step."""


def iid(generator: Generator, points: int, spread: float) -> Floats:
    return generator.normal(0, spread, points)


def heavy_tails(generator: Generator, points: int, spread: float) -> Floats:
    return generator.standard_t(3, points) * spread / math.sqrt(3)


def contention(generator: Generator, points: int, spread: float) -> Floats:
    return generator.exponential(spread, points)


def outliers(generator: Generator, points: int, spread: float) -> Floats:
    """15% of the points are twice as slow."""
    return generator.normal(0, spread, points) + math.log(2) * (generator.random(points) < 0.15)


def autocorrelated(correlation: float) -> Model:
    def series(generator: Generator, points: int, spread: float) -> Floats:
        noise = generator.normal(0, spread, points)
        for place in range(1, points):
            noise[place] = correlation * noise[place - 1] + math.sqrt(1 - correlation**2) * noise[place]
        return noise

    return series


def random_walk(generator: Generator, points: int, spread: float) -> Floats:
    """A fifth of the spread from point to point, beside independent noise."""
    return np.cumsum(generator.normal(0, spread / 5, points)) + generator.normal(0, spread, points)


SERIES: Mapping[str, Model] = MappingProxyType(
    {
        "independent, normal": iid,
        "heavy tails (t3)": heavy_tails,
        "contention (exponential)": contention,
        "15% of the points 2x slow": outliers,
        "AR(1), 0.5": autocorrelated(0.5),
        "AR(1), 0.9": autocorrelated(0.9),
        "random walk": random_walk,
    }
)

Finder = Callable[[Sequence[float]], Sequence[int]]


def confirmed_steps(logs: Sequence[float]) -> list[int]:
    """Return the places that ampbench finds."""
    return [step.place for step in steps.find_steps(logs, THRESHOLD)]


def asv_steps(logs: Sequence[float]) -> list[int]:
    """Return the places that asv finds with the penalty that it chooses by itself, on the same values in seconds."""
    from asv.step_detect import detect_steps

    return [step[0] for step in detect_steps(np.exp(np.asarray(logs)).tolist())][1:]


def flagged(name: str, spread: float, count: int, finder: Finder = confirmed_steps) -> Share:
    """Return the share of series of a hundred points without a step in which one is found."""
    generator = np.random.default_rng([1, list(SERIES).index(name), round(1000 * spread)])
    alarms = sum(bool(finder(SERIES[name](generator, POINTS, spread).tolist())) for _ in range(count))
    return Share(count=alarms, trials=count)


def found(name: str, spread: float, effect: float, after: int, count: int, finder: Finder = confirmed_steps) -> Share:
    """Return the share of steps found, at most one point off, `after` points after fifty without one."""
    generator = np.random.default_rng([2, list(SERIES).index(name), round(1000 * spread), round(1000 * effect), after])
    hits = 0
    for _ in range(count):
        logs = SERIES[name](generator, HISTORY + after, spread)
        logs[HISTORY:] += math.log1p(effect)
        hits += any(abs(place - HISTORY) <= 1 for place in finder(logs.tolist()))
    return Share(count=hits, trials=count)


def covered(name: str, spread: float, effect: float, count: int) -> Share:
    """Return the share of steps found, between two levels of fifty points, whose 95% interval holds the true one."""
    generator = np.random.default_rng([4, list(SERIES).index(name), round(1000 * spread), round(1000 * effect)])
    hits = trials = 0
    for _ in range(count):
        logs = SERIES[name](generator, POINTS, spread)
        logs[HISTORY:] += math.log1p(effect)
        for step in steps.find_steps(logs.tolist(), THRESHOLD):
            low, high = step.interval
            hits += low <= math.log1p(effect) <= high
            trials += 1
    return Share(count=hits, trials=trials)


def _quiet(generator: Generator, size: int, spread: float, run: int) -> Floats:
    return generator.normal(0, spread, size)


def _two_valued(generator: Generator, size: int, spread: float, run: int) -> Floats:
    slow = np.log(generator.uniform(1.2, 2.5, size)) * (generator.random(size) < 0.25)
    return generator.normal(0, spread / 3, size) + slow


def _one_noisy(generator: Generator, size: int, spread: float, run: int) -> Floats:
    return generator.normal(0, spread * (5 if run == 1 else 1), size)


def _heavy(generator: Generator, size: int, spread: float, run: int) -> Floats:
    return heavy_tails(generator, size, spread)


SHORT: Mapping[str, tuple[Callable[[Generator, int, float, int], Floats], float]] = MappingProxyType(
    {
        "independent, normal": (_quiet, 0.0),
        "heavy tails (t3)": (_heavy, 0.0),
        "one round in four slow": (_two_valued, 0.0),
        "one run five times as noisy": (_one_noisy, 0.0),
        "luck of runs, 1%, unseen by controls": (_quiet, 0.01),
    }
)
"""Noise of rounds in a short series, and the standard deviation of what a run and its control share."""


def changed_neighbours(name: str, spread: float, points: int, count: int, effect: float = 0.0) -> Share:
    """Return the share of series of a few points, a run of four rounds and a control each, with a change found.

    With an `effect`, a step of that size stands in the middle, and only that one counts.
    """
    generator = np.random.default_rng([3, list(SHORT).index(name), round(1000 * spread), points, round(1000 * effect)])
    model, luck = SHORT[name]
    middle = points // 2
    hits = 0
    for _ in range(count):
        series = []
        for run in range(points):
            level = generator.normal(0, luck) + (math.log1p(effect) if run >= middle else 0.0)
            rounds, again = (model(generator, ROUNDS, spread, run) + level for _ in range(2))
            value = float(np.median(rounds))
            control = float(np.median(again)) - value
            series.append(Evidence(value, [value], rounds=[rounds], controls=[control]))
        places = [step.place for step in neighbours.find_steps(series, THRESHOLD)]
        hits += middle in places if effect else bool(places)
    return Share(count=hits, trials=count)

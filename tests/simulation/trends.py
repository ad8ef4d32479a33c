"""Simulated series: how often a step is found, and how often one is seen where there is none."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.random import Generator

from ampbench.core.stats import Floats
from ampbench.judge.rounds import MeasuredRun
from ampbench.store import StoredRun
from ampbench.trend import find_steps, make_trend
from ampbench.trend.values import tracked
from tests.simulation.suite import Share
from tests.stored_runs import make_case, make_header, make_round

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


def places(logs: Floats) -> list[int]:
    return [level[0] for _, level in find_steps(logs, logs, THRESHOLD)]


def flagged(name: str, spread: float, count: int) -> Share:
    """Return the share of series of a hundred points without a step in which one is found."""
    generator = np.random.default_rng([1, list(SERIES).index(name), round(1000 * spread)])
    alarms = sum(bool(places(SERIES[name](generator, POINTS, spread))) for _ in range(count))
    return Share(count=alarms, trials=count)


def found(name: str, spread: float, effect: float, after: int, count: int) -> Share:
    """Return the share of steps found, at most one point off, `after` points after fifty without one."""
    generator = np.random.default_rng([2, list(SERIES).index(name), round(1000 * spread), round(1000 * effect), after])
    hits = 0
    for _ in range(count):
        logs = SERIES[name](generator, HISTORY + after, spread)
        logs[HISTORY:] += math.log1p(effect)
        hits += any(abs(place - HISTORY) <= 1 for place in places(logs))
    return Share(count=hits, trials=count)


Rounds = Callable[[Generator, tuple[int, ...], float], Floats]
"""The logarithms of rounds, shape (runs, cases, rounds), of about the coefficient of variation given."""


def _quiet(generator: Generator, shape: tuple[int, ...], spread: float) -> Floats:
    return generator.normal(0, spread, shape)


def _two_valued(generator: Generator, shape: tuple[int, ...], spread: float) -> Floats:
    slow = np.log(generator.uniform(1.2, 2.5, shape)) * (generator.random(shape) < 0.25)
    return generator.normal(0, spread / 3, shape) + slow


def _one_noisy(generator: Generator, shape: tuple[int, ...], spread: float) -> Floats:
    noise = generator.normal(0, spread, shape)
    noise[1] *= 5
    return noise


def _heavy(generator: Generator, shape: tuple[int, ...], spread: float) -> Floats:
    return generator.standard_t(3, shape) * spread / math.sqrt(3)


@dataclass(frozen=True, slots=True)
class Luck:
    """How runs differ beside their rounds: `whole` is the standard deviation of what all cases of a run share, `case`
    that of what the rounds of one case in a run share; in a `disturbed` run all times are 1.2 to 2.5 times as long,
    each by a factor of its own.
    """

    rounds: Rounds = _quiet
    whole: float = 0.0
    case: float = 0.0
    disturbed: bool = False


HISTORIES: Mapping[str, Luck] = MappingProxyType(
    {
        "independent, normal": Luck(),
        "heavy tails (t3)": Luck(_heavy),
        "one round in four slow": Luck(_two_valued),
        "one run five times as noisy": Luck(_one_noisy),
        "luck of whole runs, 5%": Luck(whole=0.05),
        "luck of cases, 1%, unseen by controls": Luck(case=0.01),
        "both": Luck(whole=0.05, case=0.01),
        "one run disturbed, without a word": Luck(disturbed=True),
    }
)
WORKLOADS = ("mlp", "simple_conv", "resnet18", "transformer_encoder")
CASES = [
    make_case(precision, workload=name) for name in WORKLOADS for precision in ("fp32", "bf16_autocast", "bf16_pure")
]
PLANTED = 2
"""So many of the cases have the step: one in four networks, in two of its precisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What `ampbench trend` says of simulated histories: false alarms by series and by history, and steps found."""

    series: Share
    histories: Share
    found: Share


def follow(name: str, points: int, count: int, effect: float = 0.0, spread: float = 0.015) -> Followed:
    """Return what is said of `count` histories of so many runs of twelve cases, a commit each.

    A run has four rounds of each case and a control. With an `effect`, two cases are slower by it from the run in the
    middle on; a change of these elsewhere, or in the other direction, is a false alarm as is any of the others.
    """
    generator = np.random.default_rng(
        [3, list(HISTORIES).index(name), points, round(1000 * effect), round(1e4 * spread)]
    )
    metrics = tracked(["time"])
    middle = points // 2
    alarms = flagged_histories = hits = 0
    for _ in range(count):
        trend = make_trend(_history(HISTORIES[name], generator, points, effect, spread), "date", metrics)
        false = 0
        for number, one in enumerate(trend.series):
            xs = [point.x for point in one.points]
            right = [
                effect > 0 and number < PLANTED and change.direction == "regressed" and xs.index(change.x) == middle
                for change in one.changes
            ]
            hits += any(right)
            false += not all(right)
        alarms += false
        flagged_histories += bool(false)
    return Followed(
        series=Share(count=alarms, trials=count * len(CASES)),
        histories=Share(count=flagged_histories, trials=count),
        found=Share(count=hits, trials=count * PLANTED),
    )


def _history(luck: Luck, generator: Generator, points: int, effect: float, spread: float) -> list[MeasuredRun]:
    logs = luck.rounds(generator, (points, len(CASES) + 1, ROUNDS), spread)
    own = generator.normal(0, luck.case, (points, len(CASES), 1))  # a control does not see it
    logs += generator.normal(0, luck.whole, (points, 1, 1)) + own[:, [*range(len(CASES)), 0]]
    if luck.disturbed:
        logs[generator.integers(points)] += np.log(generator.uniform(1.2, 2.5, (len(CASES) + 1, 1)))
    logs[points // 2 :, :PLANTED] += math.log1p(effect)
    logs[points // 2 :, -1] += math.log1p(effect)  # the control is the first case once more
    runs = []
    for number in range(points):
        rounds = [
            make_round(case, 1e-3 * math.exp(logs[number, place, each]), each, control=place == len(CASES))
            for place, case in enumerate([*CASES, CASES[0]])
            for each in range(ROUNDS)
        ]
        header = make_header(run=f"r{number}", started_at=f"2026-01-{1 + number:02}T12:00:00Z")
        stored = StoredRun(path=Path(f"r{number}"), header=header, cases={case.case_id: case for case in CASES})
        stored.rounds[:] = rounds
        runs.append(MeasuredRun.of(stored))
    return runs

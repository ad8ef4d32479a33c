"""How often the rules err, by simulation: identical precisions, noise of several sizes and shapes, planted losses."""

from collections.abc import Callable

import numpy as np
import pytest

from ampbench.records.changes import ChangeStatus
from ampbench.studies.training import ACCURACY, Metric, judge

DECISIONS = 800
Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

SHAPES: dict[str, Noise] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "t3": lambda random, shape: random.standard_t(3, shape) / np.sqrt(3),
    "outliers": lambda random, shape: (
        random.standard_normal(shape) * np.where(random.random(shape) < 0.1, 4, 1) / np.sqrt(2.5)
    ),
}


def verdicts(
    seeds: int,
    full: float,
    low: float,
    losses: tuple[float, ...] = (0, 0, 0, 0),
    shape: str = "normal",
    studies: int = 300,
) -> list[list[ChangeStatus]]:
    """Return the verdicts of many studies; `full` and `low` are the SD of trainings in fp32 and in low precisions.

    Both are in points of accuracy about the level of a seed, as are `losses`, one per precision.
    """
    random, found = np.random.default_rng(7), []
    for _ in range(studies):
        level = 0.97 + 0.004 * random.standard_normal((seeds, 1))
        exact = level + full / 100 * SHAPES[shape](random, (seeds, 3))
        lowered = level - np.array(losses) / 100 + low / 100 * SHAPES[shape](random, (seeds, len(losses)))
        exact, lowered = (np.round(values * DECISIONS) / DECISIONS for values in (exact, lowered))
        rounding = (exact[:, 1:] - exact[:, :1]).reshape(-1).tolist()
        differences = {f"{place}": (lowered[:, place] - exact[:, 0]).tolist() for place in range(len(losses))}
        judged = judge(differences, rounding, Metric(name=ACCURACY, decisions=DECISIONS))
        found.append([one.verdict for one in judged.values()])
    return found


def share(found: list[list[ChangeStatus]], *which: ChangeStatus) -> float:
    """Return the share of studies in which any precision has one of the verdicts."""
    return sum(any(one in which for one in each) for each in found) / len(found)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("seeds", "noise"), [(2, 0.2), (3, 0.05), (3, 0.2), (3, 0.5)])
def test_precisions_that_lose_nothing_are_seldom_said_to_regress(seeds: int, noise: float, shape: str):
    found = verdicts(seeds, noise, noise, shape=shape)
    assert share(found, ChangeStatus.REGRESSED) <= 0.05
    assert share(found, ChangeStatus.IMPROVED) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("seeds", "full", "low"), [(5, 0.1, 0.1), (3, 2, 2), (3, 0, 0.5), (5, 0, 1), (3, 0.25, 0.5)])
def test_nor_are_those_that_vary_more_than_rounding_alone_does(seeds: int, full: float, low: float, shape: str):
    found = verdicts(seeds, full, low, shape=shape, studies=1000)
    assert share(found, ChangeStatus.REGRESSED) <= 0.05
    assert share(found, ChangeStatus.IMPROVED) <= 0.05


@pytest.mark.parametrize(("paired", "least"), [(0.2, 0.98), (0.3, 0.9)])
def test_a_loss_of_one_point_is_found_with_three_seeds(paired: float, least: float):
    found = verdicts(3, paired / np.sqrt(2), paired / np.sqrt(2), losses=(0, 0, 0, 1))
    assert np.mean([each[3] is ChangeStatus.REGRESSED for each in found]) >= least


def test_precisions_that_are_as_fp32_are_shown_to_be():
    found = verdicts(3, 0.1, 0.1)
    assert np.mean([one is ChangeStatus.UNCHANGED for each in found for one in each]) >= 0.95


def test_seeds_said_to_decide_do_where_there_is_no_difference():
    rounding = [0.004, -0.004] * 3
    first = judge({"a": [0.003, 0.002, 0.001]}, rounding, Metric(name=ACCURACY))["a"]
    assert first.verdict is ChangeStatus.INCONCLUSIVE
    assert first.seeds_needed is not None
    random, shown = np.random.default_rng(3), 0
    for _ in range(200):
        values = (0.004 * random.standard_normal((3, first.seeds_needed))).tolist()
        shown += (
            judge({"a": values[0]}, [*values[1], *values[2]], Metric(name=ACCURACY))["a"].verdict
            is ChangeStatus.UNCHANGED
        )
    assert 0.6 <= shown / 200 <= 0.95


@pytest.mark.parametrize("decisions", [20, 100, 800, 100_000])
def test_identical_precisions_are_unchanged_on_data_of_any_size(decisions: int):
    judged = judge({"same": [0.0, 0.0, 0.0]}, [0.0] * 6, Metric(name=ACCURACY, decisions=decisions))
    assert judged["same"].verdict is ChangeStatus.UNCHANGED
    assert judged["same"].high > 0

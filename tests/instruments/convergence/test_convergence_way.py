"""How far trainings go astray of fp64's way: bias grows with the steps, noise with their root."""

import dataclasses

import numpy as np
import pytest

from ampbench.instruments.convergence.learning import learned, slope_of, way_of
from ampbench.instruments.convergence.show import learned_said, learned_section, trained_title, ways
from ampbench.records.studies import Drift
from ampbench.store import StoredRun
from tests.instruments.convergence.planted_trainings import GOOD, STEPS, WHOLE, case_of, study, training

LOOKS = [1, 2, 4, 7, 13, 24, 45, 84, 159, STEPS]
NULL = {name: WHOLE[name] for name in ("fp32", "control", "fp64")}


def drift_of(went: np.ndarray, meant: np.ndarray) -> list[Drift]:
    """Return the distances of a way of steps x weights from the one that was meant."""
    return [
        Drift(
            step=step,
            way=float(np.linalg.norm(meant[step - 1])),
            way_rel_l2=float(np.linalg.norm(went[step - 1] - meant[step - 1]) / np.linalg.norm(meant[step - 1])),
            way_kept=float(went[step - 1] @ meant[step - 1] / (meant[step - 1] @ meant[step - 1])),
        )
        for step in LOOKS
    ]


def planted(lost: float, noise: float) -> StoredRun:
    """Return a study in which every step of bf16_pure loses a share of itself and gains noise of so many times it."""
    random = np.random.default_rng(5)
    stored = study(NULL | {"bf16_pure": GOOD})
    rows = stored.convergence[case_of("bf16_pure").case_id]
    for place, one in enumerate(rows):
        meant = np.cumsum(np.ones((STEPS, 400)), 0)
        went = np.cumsum(1 - lost + noise * random.standard_normal((STEPS, 400)), 0)
        rows[place] = dataclasses.replace(one, drift=drift_of(went, meant), losses=[2 * loss for loss in one.losses])
    return stored


@pytest.mark.parametrize(
    ("lost", "noise", "slope", "grows"), [(0.3, 0.0, 1.0, "bias"), (0.0, 0.5, 0.5, "noise"), (0.3, 0.5, 1.0, "bias")]
)
def test_a_bias_grows_with_the_steps_and_noise_with_their_root(lost: float, noise: float, slope: float, grows: str):
    row = learned(planted(lost, noise))[0].rows[-1]
    assert row.way.slope == pytest.approx(slope, abs=0.12)
    assert row.way.grows == grows
    assert row.way.kept == pytest.approx(1 - lost, abs=0.01)


def test_the_way_is_told_in_a_table_and_of_what_does_not_train_in_a_sentence():
    (one,) = learned(planted(0.3, 0.0))
    (block,) = ways(one)
    (row,) = block.rows
    assert row == ["bf16_pure", *["3.0e-01"] * 4, "70.0%", "k^1.00", "bias"]
    assert (
        "bf16_pure went 70.0% of the way that fp64 went and ended 3.0e-01 of it aside; that grows as k^1 with the "
        "steps k (a bias: k, noise: k^0.5)"
    ) in learned_said(one)


def test_where_no_way_is_known_nothing_is_told_of_it():
    (one,) = learned(study(WHOLE))
    assert [row.way for row in one.rows] == [None] * len(one.rows)
    assert ways(one) == []
    assert "Way" not in [block.title for block in learned_section(one).blocks]


def test_a_training_that_was_given_up_hides_the_way_of_no_other():
    rows = planted(0.3, 0.0).convergence[case_of("bf16_pure").case_id]
    whole = way_of(rows)
    assert way_of([*rows, training(case_of("bf16_pure"), None, 3)]) == whole
    assert way_of([training(case_of("bf16_pure"), None)]) is None


def test_a_slope_needs_three_distances():
    one = planted(0.3, 0.0).convergence[case_of("bf16_pure").case_id][0]
    assert slope_of(dataclasses.replace(one, drift=one.drift[-2:])) is None
    assert slope_of(dataclasses.replace(one, drift=one.drift[-3:])) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("schedule", "rate", "said"),
    [
        ("constant", 1.0, "digits[channels=8]/b32 · cpu · 300 steps · 3 seeds"),
        (
            "cosine",
            2.74e-5,
            "digits[channels=8]/b32 · cpu · 300 steps · cosine schedule to 2.7e-05 of the learning rate · 3 seeds",
        ),
        ("own", None, "digits[channels=8]/b32 · cpu · 300 steps · its own schedule · 3 seeds"),
    ],
)
def test_the_schedule_is_named_where_it_changes_the_learning_rate(schedule: str, rate: float | None, said: str):
    (one,) = learned(study(WHOLE, schedule=schedule, last_rate=rate))
    assert trained_title(one) == said

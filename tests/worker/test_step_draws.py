"""What is drawn after `seed_all`, and whom torch tells of it."""

import numpy as np
import pytest
import torch

from ampbench.worker import step


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the seeds that torch was given for all of its generators."""
    seeds: list[int] = []
    seed = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda given: (seeds.append(given), seed(given)))
    return seeds


def test_what_is_drawn_is_what_torch_draws_from_that_seed(told: list[int]) -> None:
    for seed in (3, 0, 2**40, 3):
        drawn = torch.rand(4, generator=torch.Generator().manual_seed(seed))
        step.seed_all(seed)
        assert torch.equal(torch.rand(4), drawn)
        assert np.random.rand() == np.random.RandomState(seed % 2**32).rand()


def test_without_an_accelerator_torch_notes_no_seed_for_one(told: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    for seed in (1, 2, 3):
        step.seed_all(seed)
    assert told == []


def test_an_accelerator_is_told_every_seed_whether_it_is_in_use_yet_or_not(
    told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins with the last one that it was told: with an earlier one, dropout would depend on what ran before."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    for seed in (1, 2, 3):
        step.seed_all(seed)
    assert told == [1, 2, 3]

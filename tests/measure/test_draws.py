"""What is drawn after `seed_all`, and how seldom an accelerator that nobody uses is told of it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ampbench.measure import draws


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the seeds that torch was given for all of its generators."""
    seeds: list[int] = []
    seed = torch.manual_seed
    monkeypatch.setattr(draws, "_told", [])
    monkeypatch.setattr(torch, "manual_seed", lambda given: (seeds.append(given), seed(given)))
    return seeds


def test_what_is_drawn_is_what_torch_draws_from_that_seed(told: list[int]) -> None:
    for seed in (3, 0, 2**40, 3):
        drawn = torch.rand(4, generator=torch.Generator().manual_seed(seed))
        draws.seed_all(seed)
        assert torch.equal(torch.rand(4), drawn)
        assert np.random.rand() == np.random.RandomState(seed % 2**32).rand()


def test_an_accelerator_that_nobody_uses_is_told_the_first_seed_alone(told: list[int]) -> None:
    for seed in (1, 2, 3):
        draws.seed_all(seed)
    assert told == [1]


def test_an_accelerator_that_is_used_is_told_every_seed(told: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    used = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setattr(draws, "_ACCELERATORS", (torch.xpu, used))
    for seed in (1, 2, 3):
        draws.seed_all(seed)
    assert told == [1, 2, 3]

"""Tests that need an accelerator: `pytest tests/device` takes some minutes on a card, and skips all without one."""

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> str:
    """Return the type of the accelerator."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        pytest.skip("there is no accelerator here")
    return found.type

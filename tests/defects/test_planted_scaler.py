"""Checks of GradScaler and optimizers see the defect where it is planted."""

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
import torch

from ampbench.defects.catalogue import CHECKS, program_of
from ampbench.studies.check import DEFECTIVE, DIFFERS, GOOD
from ampbench.studies.check_measure import run_program
from tests.defects.planting import Plant

UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"


def forgetting_found_inf() -> AbstractContextManager[Any]:
    """Have each group of gradients overwrite what was found in those before."""
    real = getattr(torch, UNSCALE)

    def unscale(grads: list[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor) -> None:
        real(grads, found_inf.zero_(), inverse)

    return mock.patch.object(torch, UNSCALE, unscale)


PLANTED: dict[str, Plant] = {
    "found-inf-two-dtypes": forgetting_found_inf,
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_seen(name: str) -> None:
    text = program_of(CHECKS[name])
    assert run_program(name, text, "cpu").outcome == GOOD
    with PLANTED[name]():
        assert run_program(name, text, "cpu").outcome in (DEFECTIVE, DIFFERS)

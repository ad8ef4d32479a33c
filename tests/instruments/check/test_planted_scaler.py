"""Checks of GradScaler and optimizers see the defect where it is planted."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
import torch

from ampbench.instruments.check.catalogue import CHECKS, program_of
from ampbench.instruments.check.measure import run_program
from ampbench.instruments.check.records import DEFECTIVE, DIFFERS, GOOD
from tests.instruments.check.planting import Plant

UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"


def growing_without_end() -> AbstractContextManager[Any]:
    """Have the scale grow whatever it is."""

    def update(scale: torch.Tensor, tracker: torch.Tensor, found: torch.Tensor, growth: float, *_: Any) -> None:
        scale.mul_(growth)

    return mock.patch.object(torch, "_amp_update_scale_", update)


def losing_found_inf() -> AbstractContextManager[Any]:
    """Have fused Adam not be told of infinite gradients."""
    real = torch._fused_adam_
    return mock.patch.object(torch, "_fused_adam_", lambda *args, **kwargs: real(*args, **kwargs | {"found_inf": None}))


def unscaling_again() -> AbstractContextManager[Any]:
    """Have fused optimizers unscale gradients that are unscaled."""

    def fused(real: Callable[..., None]) -> Callable[..., None]:
        return lambda *args, **kwargs: real(*args, **kwargs | {"grad_scale": torch.tensor(65536.0)})

    return mock.patch.multiple(torch, **{name: fused(getattr(torch, name)) for name in ("_fused_sgd_", "_fused_adam_")})


def lacking_bf16() -> AbstractContextManager[Any]:
    """Have no kernel that unscales bf16."""
    return mock.patch.object(torch, UNSCALE, side_effect=NotImplementedError("not implemented for 'BFloat16'"))


def forgetting_found_inf() -> AbstractContextManager[Any]:
    """Have each group of gradients overwrite what was found in those before."""
    real = getattr(torch, UNSCALE)

    def unscale(grads: list[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor) -> None:
        real(grads, found_inf.zero_(), inverse)

    return mock.patch.object(torch, UNSCALE, unscale)


def counting_in_default_dtype() -> AbstractContextManager[Any]:
    """Have Adam count steps in the default dtype where it is not fused."""
    return mock.patch(
        "torch.optim.adam._get_scalar_dtype",
        lambda is_fused=None: torch.float32 if is_fused else torch.get_default_dtype(),
    )


PLANTED: dict[str, Plant] = {
    "scale-overflow": growing_without_end,
    "fused-skip": losing_found_inf,
    "fused-unscale-clip": unscaling_again,
    "unscale-bf16-weights": lacking_bf16,
    "found-inf-two-dtypes": forgetting_found_inf,
    "bf16-default-step-count": counting_in_default_dtype,
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_seen(name: str) -> None:
    text = program_of(CHECKS[name])
    assert run_program(name, text, "cpu").outcome == GOOD
    with PLANTED[name]():
        assert run_program(name, text, "cpu").outcome in (DEFECTIVE, DIFFERS)

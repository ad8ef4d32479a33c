"""Searches on real networks of few modules, beside all sets that there are."""

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from ampbench.records.case import Case
from ampbench.studies.keep_fp32 import Limits, Smallest, Trial, islands, share_of, suspected_first
from ampbench.studies.keep_fp32_measure import search_space, try_kept
from ampbench.worker.divergence import References
from ampbench.worker.machine import Cpu
from ampbench.workload import Workload
from tests.planted_faults import Scaled, SharpSoftmax, SixteensSummed, TinyVariance
from tests.studies.working import at_work

MakeCase = Callable[..., Case]
Errors = list[float | None]


def overflowing() -> tuple[torch.nn.Module, torch.Tensor]:
    """A network in which a module overflows that only two others with it mend, and so in half only what holds them."""
    n = torch.nn
    held = n.Sequential(Scaled(1e5), n.Linear(16, 16), n.LayerNorm(16))
    then = [n.Linear(16, 16), n.LayerNorm(16), SharpSoftmax(), n.Linear(16, 16), n.Tanh()]
    return n.Sequential(n.Linear(8, 16), held, *then), torch.randn(4, 8)


class ResidualConvNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        n = torch.nn
        self.stem, self.norm = n.Conv2d(2, 4, 3, padding=1), n.BatchNorm2d(4)
        self.one = n.Sequential(n.Conv2d(4, 4, 1), TinyVariance())
        self.two = n.Sequential(n.Conv2d(4, 4, 1), SharpSoftmax(), n.BatchNorm2d(4))
        self.head, self.last = n.Linear(4, 3), n.LayerNorm(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(x))
        x = x + self.one(x)
        x = x + self.two(x)
        return self.last(self.head(x.mean((2, 3))))


def residual() -> tuple[torch.nn.Module, torch.Tensor]:
    return ResidualConvNet(), torch.randn(2, 2, 6, 6)


def trained() -> tuple[torch.nn.Module, torch.Tensor]:
    n = torch.nn
    first = [n.Linear(8, 16), n.Tanh(), SharpSoftmax(), n.Linear(16, 16)]
    return n.Sequential(*first, n.LayerNorm(16), SixteensSummed(), n.Linear(16, 8)), torch.randn(4, 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "precision", "phase", "units"),
    [
        (overflowing, "fp16_pure", "inference", 9),
        (residual, "fp16_pure", "inference", 9),
        (trained, "fp16_autocast", "training", 7),
    ],
)
def test_a_search_finds_a_set_as_small_as_the_smallest_of_all(
    make: Any, precision: str, phase: str, units: int, case: MakeCase
) -> None:
    torch.manual_seed(0)
    module, inputs = make()
    with torch.no_grad():
        weights = torch.randn_like(module(inputs))
    workload = Workload(module=module, inputs=inputs, loss=lambda output: (output.float() * weights).sum())
    planned, references = case(precision, phase), References()
    space = search_space(at_work(workload, planned), Limits(max_error=1.0))
    assert len(space.units) == units

    @cache
    def tried(*kept: str) -> Trial:
        return try_kept(workload, planned, Cpu(), kept, references)

    def errors(trial: Trial) -> Errors:
        return [trial.output_rel_l2, *([trial.grad_rel_l2] if phase == "training" else [])]

    sets = [frozenset(one) for size in range(units + 1) for one in itertools.combinations(range(units), size)]
    found = {one: errors(tried(*islands(space, one))) for one in sets}
    assert None in found[frozenset()]
    least = [error for error in found[frozenset(range(units))] if error is not None]
    outputs = sorted(error[0] for error in found.values() if None not in error)
    for limits in (
        [1.5 * error for error in least],
        [outputs[len(outputs) // 3], *(100.0 * error for error in least[1:])],
        [outputs[2 * len(outputs) // 3], *(1e4 * error for error in least[1:])],
    ):
        meeting = {
            one
            for one, each in found.items()
            if all(error is not None and error <= limit for error, limit in zip(each, limits, strict=True))
        }
        monotone = all(one | {more} in meeting for one in meeting for more in range(units))
        budget = Limits(max_error=limits[0], max_gradient_error=limits[1] if phase == "training" else None)
        asked: list[frozenset[int]] = []

        def share(kept: frozenset[int], budget: Limits = budget, asked: list[frozenset[int]] = asked) -> float:
            asked.append(kept)
            return share_of(budget, tried(*islands(space, kept)))

        result = Smallest(suspected_first(space), share).run()
        assert result.kept in meeting
        assert result.minimal
        # Where errors that add up lie at the budget, luck in rounding can let a set meet it that a larger one does not.
        assert len(result.kept) <= min(map(len, meeting)) + (not monotone)
        assert len(asked) <= 30

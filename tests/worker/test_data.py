"""Tensors drawn from a seed, losses that are handed on, and fresh batches, in one order for all who ask."""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampbench.core.precisions import FP64
from ampbench.records.case import Case, WorkloadSource
from ampbench.worker import data
from ampbench.worker.data import CHUNK_WORDS, SAME_INPUTS, Batch, FreshBatches, Generator, carried
from ampbench.worker.machine import Cpu
from ampbench.worker.step import build_step
from ampbench.worker.worker import Worker
from ampbench.workload import Workload
from tests.scripted_channel import got
from tests.worker.test_worker import ask


def generator(seed: int = 0, **parameters: int) -> Generator:
    return Generator("example", 1, {"width": 4, **parameters}, seed)


def test_values_are_the_raw_stream_of_philox_however_many_are_drawn():
    """The first values, from NumPy's raw words by the documented arithmetic."""
    drawn = generator().uniform("weight", (2 * CHUNK_WORDS + 3,), rms=2.0, mean=0.5)
    words = np.concatenate(list(generator()._words("weight", CHUNK_WORDS + 2)))
    steps = (words.view(np.uint32)[: len(drawn)] >> 8).astype(np.float32)
    expected = steps * np.float32(2.0**-23 * math.sqrt(3) * 2.0) + np.float32(0.5 - math.sqrt(3) * 2.0)
    assert torch.equal(drawn, torch.from_numpy(expected))


def test_the_batch_size_is_not_part_of_the_key_and_everything_else_is():
    first = generator().uniform("x", (9,))
    assert torch.equal(first, generator(batch_size=7).uniform("x", (9,)))
    others = [
        generator(seed=1),
        generator(width=5),
        Generator("other", 1, {"width": 4}, 0),
        Generator("example", 2, {"width": 4}, 0),
    ]
    assert not any(torch.equal(first, other.uniform("x", (9,))) for other in others)
    assert not torch.equal(first, generator().uniform("y", (9,)))


def test_filling_gives_a_module_on_the_meta_device_storage_and_values():
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    generator().fill(
        module, lambda name, tensor: generator().uniform(name, tuple(tensor.shape)) if name == "0.weight" else 5
    )
    assert module[0].weight.device.type == "cpu"
    assert module[0].weight.requires_grad
    assert module[0].bias.tolist() == [5, 5]
    assert module[1].num_batches_tracked.item() == 5


def test_a_digest_changes_with_a_bit_a_name_a_shape_and_a_dtype():
    tensor = torch.arange(6, dtype=torch.float32)
    changed = tensor.clone()
    changed[5] = torch.nextafter(changed[5], torch.tensor(9.0))
    variants = [("a", tensor), ("a", changed), ("b", tensor), ("a", tensor.view(2, 3)), ("a", tensor.view(torch.int32))]
    assert len({data.digest(iter([variant])) for variant in variants}) == 5


MakeCase = Callable[..., Case]
CRITIC = nn.Linear(4, 1)


def by_closure() -> object:
    critic, target = nn.Linear(4, 1), torch.ones(8, 1)
    return lambda output: F.mse_loss(critic(output), target)


def by_nested_closure() -> object:
    held = {"critics": [nn.Linear(4, 1)]}

    def score(output: torch.Tensor) -> torch.Tensor:
        return held["critics"][0](output)

    return lambda output: score(output).square().mean()


def by_global(output: torch.Tensor) -> torch.Tensor:
    return CRITIC(output).square().mean()


class Criterion:
    def __init__(self) -> None:
        self.critic = nn.Linear(4, 1)

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        return self.critic(output).square().mean()

    def method(self, output: torch.Tensor) -> torch.Tensor:
        return self(output)


def by_default(output: torch.Tensor, *, critic: nn.Module = nn.Linear(4, 1)) -> torch.Tensor:  # noqa: B008
    return critic(output).square().mean()


def weighted(output: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, torch.zeros(8, dtype=torch.int64), weight=weight)


LOSSES = {
    "closure": by_closure(),
    "nested": by_nested_closure(),
    "global": by_global,
    "object": Criterion(),
    "method": Criterion().method,
    "default": by_default,
    "partial": functools.partial(weighted, weight=torch.rand(4)),
}


def workload(loss: object, **fields: object) -> Workload:
    torch.manual_seed(0)
    return Workload(**{"module": nn.Linear(16, 4), "inputs": torch.randn(8, 16), "loss": loss} | fields)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("storage", ["fp64", "bf16_pure", "fp32"])
def test_what_a_loss_holds_is_cast_as_targets_are(name: str, storage: str, case: MakeCase) -> None:
    precision = "fp32" if storage == "fp64" else storage
    step = build_step(
        workload(LOSSES[name]), case(precision, "training"), Cpu(), precision=FP64 if storage == "fp64" else None
    )
    step.run()
    wanted = {"fp64": torch.float64, "bf16_pure": torch.bfloat16, "fp32": torch.float32}[storage]
    assert {tensor.dtype for tensor in step.network.held if tensor.is_floating_point()} == {wanted}


def test_a_loss_that_holds_nothing_is_the_very_same() -> None:
    def plain(output: torch.Tensor) -> torch.Tensor:
        return output.mean()

    for loss in (plain, F.cross_entropy, len, functools.partial(F.mse_loss, reduction="sum")):
        assert carried(loss, {}, torch.Tensor.double, nn.Module.double) == (loss, [])


def test_what_holds_itself_comes_to_an_end() -> None:
    holder = Criterion()
    holder.itself, holder.long = holder, [0] * 20_000
    found, held = carried(holder, {}, torch.Tensor.double, nn.Module.double)
    assert found is not holder
    assert {tensor.dtype for tensor in held} == {torch.float64}


HELD_OUT = """
import torch
import ampbench

def make():
    torch.manual_seed(0)
    held_out = torch.randn(5, 3), torch.zeros(5, dtype=torch.int64)
    return ampbench.Workload(module=torch.nn.Linear(3, 2), inputs=torch.ones(2, 3), held_out=held_out)
"""


def batched(*values: float, held_out: float = 0, **more: Any) -> Workload:
    """A network whose batches of two samples are full of `values`, with so many held-out samples of 9."""
    batches = [torch.full((2, 3), value) for value in values]
    targets = [torch.full((2,), value) for value in values]
    several = len(values) > 1
    return Workload(
        module=torch.nn.Linear(3, 1),
        inputs=batches if several else batches[0],
        targets=targets if several else targets[0],
        held_out=(torch.full((int(held_out), 3), 9.0), torch.full((int(held_out),), 9.0)) if held_out else None,
        **more,
    )


def larger(count: int) -> list[Batch]:
    """Two batches, of 20 and 21."""
    return [(torch.full((2, 3), 20.0 + at), torch.full((2,), 20.0 + at)) for at in range(min(count, 2))]


def values(batches: Any) -> list[float]:
    """What inputs and targets are full of, which is the same."""
    assert all(float(inputs[0, 0]) == float(targets[0]) for inputs, targets in batches)
    return [float(inputs[0, 0]) for inputs, _ in batches]


def test_its_own_come_before_those_of_a_larger_batch_and_the_same_first_each_time() -> None:
    fresh = FreshBatches(batched(0, 1, 2, held_out=5), 2, larger=larger)
    assert values(fresh.first(1)) == [1]
    assert values(fresh.first(4)) == [1, 2, 9, 9]
    assert values(fresh.first(9)) == [1, 2, 9, 9, 20, 21]
    assert values(FreshBatches(batched(0), 2, larger=larger).first(1)) == [20]
    assert values(FreshBatches(batched(0, 1, held_out=4), None).first(9)) == [1]


def test_the_inputs_of_other_seeds_come_last_on_the_same_weights() -> None:
    seeds = []

    def rebuilt(more: int) -> Workload:
        seeds.append(more)
        return batched(100 + more)

    own = batched(0, 1, held_out=2)
    fresh = FreshBatches(own, 2, larger=larger, rebuilt=rebuilt)
    given = [fresh.workload(number) for number in range(1, 7)]
    assert all(one is not None and one.module is own.module for one in given)
    assert values([(one.inputs, one.targets) for one in given if one is not None]) == [1, 9, 20, 21, 101, 102]
    assert seeds == [1, 2]


def test_what_a_search_found_is_confirmed_on_held_out_data_where_no_seed_changes_the_inputs(
    case: Callable[..., Case], tmp_path: Path
) -> None:
    model = tmp_path / "held_out.py"
    model.write_text(HELD_OUT)
    source = WorkloadSource(name="make", family="user", module=str(model), function="make", builtin=False)
    planned = case("bf16_autocast", workload="make", family="user", parameters={}, batch_size=None)
    worker = Worker()
    *known, third = (worker.serve(ask("trial", planned, source, batch=number)) for number in (0, 1, 2, 3))
    assert len({got("trial", reply).output_rel_l2 for reply in known}) == 3
    assert third.skip is not None
    assert third.skip.reason == SAME_INPUTS

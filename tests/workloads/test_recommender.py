"""The recommender: the same logits as by hand, sparse gradients in every precision."""

import copy

import pytest
import torch
from built_workloads import batch, build, cast

from ampbench.worker.machine import Cpu
from ampbench.worker.step import TrainingStep, build_step
from tests.worker.conftest import make_case


@torch.no_grad()
def test_logits_are_those_of_sums_of_entries_and_of_their_products_by_pairs() -> None:
    workload = build("recommender")
    module = copy.deepcopy(workload.module).double()
    dense, entries = cast(batch(workload)[0], torch.float64)
    for row, found in enumerate(module(dense, entries)):
        own = module.bottom(dense[row])
        vectors = [own]
        for table, bag in zip(module.tables, entries[row], strict=True):
            vectors.append(sum(table.weight[entry] for entry in bag))
        products = [vectors[one] @ vectors[other] for one in range(4) for other in range(one)]
        assert torch.allclose(found, module.top(torch.cat((own, torch.stack(products))))[0])


@pytest.mark.parametrize("precision", ["fp32", "bf16_autocast", "fp16_autocast", "bf16_master", "fp16_pure"])
def test_a_step_moves_the_rows_of_tables_that_it_read_and_no_others(precision: str) -> None:
    workload = build("recommender")
    step = build_step(workload, make_case(precision, phase="training"), Cpu())
    assert isinstance(step, TrainingStep)
    step.settle_scaler()
    before = {name: weight.detach().clone() for name, weight in step.stored().items()}
    step.run()
    entries = batch(workload)[0][1]
    for place in range(3):
        name = f"tables.{place}.weight"
        weight = step.stored()[name]
        assert weight.grad.layout is torch.sparse_coo
        moved = (weight != before[name]).any(1).nonzero()[:, 0]
        assert len(moved) > 0
        assert set(moved.tolist()) <= set(entries[:, place].flatten().tolist())


def test_the_first_entries_of_a_table_are_asked_for_most() -> None:
    entries = build("recommender", "small").inputs[1]
    assert 0.45 < (entries < 20_000 // 4).double().mean() < 0.55

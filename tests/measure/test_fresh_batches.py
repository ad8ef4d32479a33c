"""Fresh batches: a workload's own, those of a larger batch, those of other seeds, in one order for all who ask."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ampbench.measure.data import SAME_INPUTS, Batch, FreshBatches
from ampbench.measure.worker import Worker
from ampbench.records.case import Case, WorkloadSource
from ampbench.workload import Workload
from tests.measure.test_rounds import ask

HELD_OUT = """
import torch
import ampbench

def make():
    torch.manual_seed(0)
    held_out = torch.randn(5, 3), torch.zeros(5, dtype=torch.int64)
    return ampbench.Workload(module=torch.nn.Linear(3, 2), inputs=torch.ones(2, 3), held_out=held_out)
"""


def workload(*values: float, held_out: float = 0, **more: Any) -> Workload:
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
    fresh = FreshBatches(workload(0, 1, 2, held_out=5), 2, larger=larger)
    assert values(fresh.first(1)) == [1]
    assert values(fresh.first(4)) == [1, 2, 9, 9]
    assert values(fresh.first(9)) == [1, 2, 9, 9, 20, 21]
    assert values(FreshBatches(workload(0), 2, larger=larger).first(1)) == [20]
    assert values(FreshBatches(workload(0, 1, held_out=4), None).first(9)) == [1]


def test_the_inputs_of_other_seeds_come_last_on_the_same_weights() -> None:
    seeds = []

    def rebuilt(more: int) -> Workload:
        seeds.append(more)
        return workload(100 + more)

    own = workload(0, 1, held_out=2)
    fresh = FreshBatches(own, 2, larger=larger, rebuilt=rebuilt)
    given = [fresh.workload(number) for number in range(1, 7)]
    assert all(one is not None and one.module is own.module for one in given)
    assert values([(one.inputs, one.targets) for one in given if one is not None]) == [1, 9, 20, 21, 101, 102]
    assert seeds == [1, 2]


def test_where_no_seed_gives_other_inputs_there_is_none() -> None:
    assert FreshBatches(workload(0), 2).workload(1) is None
    assert FreshBatches(workload(0), 2, rebuilt=lambda _: workload(0)).workload(1) is None
    listed = FreshBatches(workload(0, 1), 2, rebuilt=lambda more: workload(more, 5)).workload(2)
    assert listed is not None
    assert values([(listed.inputs, listed.targets)]) == [1]


def test_what_a_search_found_is_confirmed_on_held_out_data_where_no_seed_changes_the_inputs(
    case: Callable[..., Case], tmp_path: Path
) -> None:
    model = tmp_path / "held_out.py"
    model.write_text(HELD_OUT)
    source = WorkloadSource(name="make", family="user", module=str(model), function="make", builtin=False)
    planned = case("bf16_autocast", workload="make", family="user", parameters={}, batch_size=None)
    worker = Worker()
    first, second, third = (
        worker.serve(ask("trial", planned, source, kept=[[]], batch=number)) for number in (1, 2, 3)
    )
    assert first.trial is not None
    assert second.trial is not None
    assert first.trial.batch == 1
    assert first.trial.output_rel_l2 != second.trial.output_rel_l2
    assert third.skip is not None
    assert third.skip.reason == SAME_INPUTS

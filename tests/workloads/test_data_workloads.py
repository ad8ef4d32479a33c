"""Workloads with data that is really learnt from, and language models as they are served."""

import importlib.util

import pytest
import torch
from built_workloads import HERE, build

from ampbench.drive.planning import make_plan
from ampbench.records.run import Selection
from ampbench.studies.training import Training
from ampbench.studies.training_measure import train
from ampbench.worker.environment import read_environment
from ampbench.worker.machine import open_device
from tests.worker.conftest import make_case

NAMES = [name for name in ("digits", "characters") if name in HERE]
needs_digits = pytest.mark.skipif("digits" not in HERE, reason="needs scikit-learn")


def rows(tensors: list[torch.Tensor]) -> list[tuple[object, ...]]:
    return sorted(tuple(row.flatten().tolist()) for tensor in tensors for row in tensor)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_changes_weights_and_order_but_not_what_is_held_out(name):
    first, second = build(name, batch_size=8, seed=0), build(name, batch_size=8, seed=1)
    for one, other in zip(first.held_out, second.held_out, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(first.inputs[0], second.inputs[0])
    assert len(first.inputs) == len(first.targets) == len(second.inputs)


@needs_digits
def test_all_seeds_train_on_the_same_thousand_images_of_which_none_is_held_out():
    first, second = build("digits", seed=0), build("digits", seed=1)
    assert sum(map(len, first.inputs)) == 1000
    assert rows(first.inputs) == rows(second.inputs)
    assert len(first.held_out[0]) == 797
    assert not set(rows(first.inputs)) & set(rows([first.held_out[0]]))


def test_data_that_is_not_installed_is_a_reason_to_skip(monkeypatch):
    found = importlib.util.find_spec
    absent = {"sklearn", "pydoc_data"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in absent else found(name, *rest))
    environment = read_environment()
    selection = Selection(workloads=["digits", "characters"], precisions=["fp32"], phases=["training"])
    assert {planned.case.workload: planned.skip for planned in make_plan(selection, environment, None)} == {
        "digits": 'sklearn cannot be imported (not installed: pip install "ampbench[data]")',
        "characters": "pydoc_data cannot be imported (this Python was installed without its help texts)",
    }


@needs_digits
@pytest.mark.slow
def test_three_hundred_steps_read_ninety_seven_of_a_hundred_held_out_digits():
    found = train(
        build("digits", "small", 0), make_case(phase="training"), open_device("cpu"),
        Training(case_id="", seed=0, steps=300),
    )  # fmt: skip
    assert found.scores[-1].correct >= 0.97 * found.scores[-1].decisions

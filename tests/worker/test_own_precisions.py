"""A user's own precision: found in the file of the workload, prepared by its hook, judged by its own optimizer."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ampbench
from ampbench.core.precisions import FP64, PRECISIONS, Precision, meet
from ampbench.errors import UsageError
from ampbench.records.case import Case, WorkloadSource
from ampbench.worker.divergence import References, measure_divergence
from ampbench.worker.machine import Cpu
from ampbench.worker.sources import meet_precisions
from ampbench.worker.step import build_step
from ampbench.workload import Workload

MakeCase = Callable[..., Case]

FILE = """
import torch
import ampbench
from ampbench.core.precisions import PRECISIONS
FP32 = PRECISIONS["fp32"]
mine = ampbench.Precision(name="bf16_mine", summary="as bf16_pure", storage="bfloat16")
def make():
    return torch.nn.Linear(4, 4), torch.ones(2, 4)
"""


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    before = dict(PRECISIONS)
    yield
    PRECISIONS.clear()
    PRECISIONS.update(before)


def source_of(folder: Path, text: str, function: str = "make", family: str = "user") -> WorkloadSource:
    path = folder / f"{folder.name}.py"
    path.write_text(text)
    return WorkloadSource(name=f"m.py:{function}", family=family, module=str(path), function=function, builtin=False)


def own(**fields: Any) -> Precision:
    row = ampbench.Precision(**{"name": "mine"} | fields)
    meet(row)
    return row


def test_a_file_that_takes_a_name_of_ampbenchs_own_is_refused(tmp_path: Path) -> None:
    text = FILE.replace('name="bf16_mine"', 'name="bf16_pure"')
    with pytest.raises(UsageError, match="precision bf16_pure is ampbench's own"):
        meet_precisions(source_of(tmp_path, text))


def test_prepare_is_given_the_network_on_its_device_in_its_dtype_and_the_optimizer(
    case: MakeCase, classifier: Workload
) -> None:
    seen: list[Any] = []

    def prepare(module: torch.nn.Module, optimizer: Any) -> Any:
        seen.append((next(module.parameters()).dtype, optimizer))
        return torch.nn.Sequential(module, torch.nn.Identity()), lambda parameters: torch.optim.SGD(parameters, lr=0.5)

    own(storage="bfloat16", prepare=prepare)
    step = build_step(classifier, case("mine", "training"), Cpu())
    assert seen == [(torch.bfloat16, classifier.optimizer)]
    assert isinstance(step.module[1], torch.nn.Identity)
    assert step.optimizer.param_groups[0]["lr"] == 0.5
    step.run()
    build_step(classifier, case("mine", "inference"), Cpu()).run()
    assert seen[1] == (torch.bfloat16, None)
    build_step(classifier, case("mine", "training"), Cpu(), precision=FP64)
    assert len(seen) == 2


def test_a_prepared_network_may_hold_other_weights_and_nothing_is_put_back(case: MakeCase) -> None:
    class Whole(torch.nn.Module):
        def __init__(self, linear: torch.nn.Linear) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter((linear.weight * 100).round().to(torch.int8), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.weight.float() / 100).T

    own(prepare=lambda module, optimizer: Whole(module))
    workload = Workload(module=torch.nn.Linear(4, 4, bias=False), inputs=torch.randn(2, 4))
    step = build_step(workload, case("mine"), Cpu())
    first = step.run()
    assert step.changed() == []
    assert torch.equal(step.run(), first)
    assert step.module.weight.dtype is torch.int8
    found = measure_divergence(workload, case("mine"), Cpu(), References())
    assert 1e-4 < found.output.rel_l2 < 0.1


def test_what_prepare_must_not_return_is_said(case: MakeCase, classifier: Workload) -> None:
    own(prepare=lambda module, optimizer: None)
    with pytest.raises(UsageError, match="precision mine: prepare returned NoneType; expected the module, or"):
        build_step(classifier, case("mine"), Cpu())

"""What is trained under a recipe: steps against loops by hand, and what the update's metrics make of them."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ampbench.core.precisions import FP64
from ampbench.core.recipes import OPTIMIZERS, find_recipe, parse_optimizer
from ampbench.errors import UsageError, WorkloadError
from ampbench.records.case import Case
from ampbench.worker.divergence import References, measure_divergence
from ampbench.worker.machine import Cpu
from ampbench.worker.network import check_class, optimizer_of
from ampbench.worker.step import TrainingStep, build_training
from ampbench.workload import Workload
from tests.worker.test_updates import exact_gradients, update_of

MakeCase = Callable[..., Case]
Floats = np.ndarray


def linear(batches: int = 3) -> Workload:
    """Return a linear layer with a squared error on so many batches of four rows: its gradient is easy by hand."""
    torch.manual_seed(0)
    rows, targets = torch.randn(4 * batches, 6), torch.randn(4 * batches, 2)
    return Workload(
        module=torch.nn.Linear(6, 2, bias=False),
        inputs=list(rows.split(4)),
        targets=list(targets.split(4)),
        loss=torch.nn.functional.mse_loss,
    )


def gradient(weight: Floats, workload: Workload, batch: int) -> Floats:
    """Return the gradient of the squared error of one batch."""
    place = batch % len(workload.inputs)
    x, y = (one[place].double().numpy() for one in (workload.inputs, workload.targets))
    return 2 / y.size * (x @ weight.T - y).T @ x


def clipped(gradient: Floats, norm: float) -> Floats:
    return gradient * min(1.0, norm / (np.sqrt((gradient**2).sum()) + 1e-6))


def built(workload: Workload, case: Case, **given: Any) -> TrainingStep:
    return build_training(workload, case, Cpu(), **given)


def test_steps_of_a_recipe_are_those_of_a_loop_by_hand(case: MakeCase) -> None:
    workload = linear()
    recipe = "adamw-lm,lr=0.01,clip=0.5"
    step = built(workload, case("fp32", "training", recipe=recipe), precision=FP64)
    weight = workload.module.weight.detach().double().numpy()
    first, second = np.zeros_like(weight), np.zeros_like(weight)
    for number in range(1, 5):
        output = step.run()
        batch = (number - 1) % 3
        assert output.detach().numpy() == pytest.approx(workload.inputs[batch].double().numpy() @ weight.T)
        taken = clipped(gradient(weight, workload, batch), 0.5)
        first, second = 0.9 * first + 0.1 * taken, 0.95 * second + 0.05 * taken**2
        weight = weight * (1 - 0.01 * 0.1)
        weight = weight - 0.01 * first / (1 - 0.9**number) / (np.sqrt(second / (1 - 0.95**number)) + 1e-8)
        assert step.module.weight.detach().numpy() == pytest.approx(weight, rel=1e-10)


@pytest.mark.parametrize("implementation", OPTIMIZERS["sgd"].implementations)
def test_gradients_are_clipped_after_the_scale_is_divided_out(implementation: str, case: MakeCase) -> None:
    workload = linear(1)
    recipe = f"optimizer=sgd:{implementation},lr=0.5,clip=0.01"
    step = built(workload, case("fp16_autocast", "training", recipe=recipe))
    step.settle_scaler()
    plain = built(workload, case("fp16_autocast", "training"))
    plain.settle_scaler()
    came = plain.unscaled_gradients()[1]["weight"].double().numpy()
    step.run()
    assert step.scaler.get_scale() > 1
    expected = workload.module.weight.detach().double().numpy() - 0.5 * clipped(came, 0.01)
    assert step.module.weight.detach().double().numpy() == pytest.approx(expected, rel=1e-6)


def two_groups(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Make an optimizer as people do who decay no bias and train a head faster."""
    weight, bias = parameters
    return torch.optim.AdamW([{"params": [weight], "lr": 1e-2}, {"params": [bias], "lr": 2e-3, "weight_decay": 0.0}])


def test_settings_of_the_workloads_own_optimizer_are_changed_group_by_group() -> None:
    module = torch.nn.Linear(2, 2)
    make = optimizer_of(find_recipe("lr=1e-3,weight_decay=0.3,beta2=0.95"), two_groups)
    groups = make(module.parameters()).param_groups
    assert [group["lr"] for group in groups] == pytest.approx([1e-3, 2e-4])
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    assert [group["betas"] for group in groups] == [(0.9, 0.95)] * 2
    with pytest.raises(WorkloadError, match=r"own optimizer, AdamW, has no momentum .*--optimizer"):
        optimizer_of(find_recipe("momentum=0.9"), two_groups)(module.parameters())
    assert optimizer_of(find_recipe("clip=1"), two_groups) is two_groups


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_the_table_is_made_with_all_of_its_settings(name: str) -> None:
    row = OPTIMIZERS[name]
    values = {"weight_decay": 0.25, "momentum": 0.5, "nesterov": True, "beta1": 0.75, "beta2": 0.875, "eps": 0.125}
    said = ",".join(f"{key}={str(values[key]).lower()}" for key in row.settings)
    for implementation in row.implementations:
        module = torch.nn.Linear(3, 2)
        make = optimizer_of(find_recipe(f"optimizer={name}:{implementation},lr=0.0625,{said}"), two_groups)
        optimizer = make(module.parameters())
        assert type(optimizer) is getattr(torch.optim, row.kind)
        group = optimizer.param_groups[0]
        read = dict(zip(("beta1", "beta2"), group.get("betas", (None, group.get("alpha"))), strict=True))
        assert group["lr"] == 0.0625
        assert {key: read.get(key, group.get(key)) for key in row.settings} == {
            key: values[key] for key in row.settings
        }
        assert (bool(group.get("foreach")), bool(group.get("fused"))) == (
            implementation == "foreach",
            implementation == "fused",
        )
        module(torch.ones(1, 3)).sum().backward()
        before = module.weight.detach().clone()
        optimizer.step()
        assert not torch.equal(module.weight, before)


OWN = """
import torch

class Quick(torch.optim.SGD):
    def __init__(self, parameters, lr, betas=(0.5, 0.6), rho=1.0):
        super().__init__(parameters, lr=lr * rho, momentum=betas[0])
        self.betas = betas

Late = torch.optim.LBFGS

def number(parameters):
    return 3
"""


def test_a_class_by_its_place_trains_with_what_it_is_given(tmp_path: Path, case: MakeCase) -> None:
    (tmp_path / "quick.py").write_text(OWN)
    recipe = parse_optimizer(f"{tmp_path}/quick.py:Quick:lr=0.5,betas=0.25/0.75,rho=0.5,clip=1").spelling
    step = built(linear(), case("fp32", "training", recipe=recipe))
    assert type(step.optimizer).__name__ == "Quick"
    assert step.optimizer.betas == (0.25, 0.75)
    assert (step.optimizer.param_groups[0]["lr"], step.optimizer.param_groups[0]["momentum"]) == (0.25, 0.25)
    check_class(find_recipe(recipe))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("none.py:Quick", "none.py:Quick cannot be imported: FileNotFoundError: there is no file"),
        ("nowhere.optim:Quick", "optimizer nowhere.optim:Quick cannot be imported: ModuleNotFoundError"),
        ("quick.py:Quik", r"unknown class of .*quick.py 'Quik': did you mean Quick\?"),
        ("quick.py:Quick", "cannot be made: TypeError: .*missing 1 required positional argument: 'lr'"),
        ("quick.py:Quick:lr=1,speed=2", "cannot be made: TypeError: .*unexpected keyword argument 'speed'"),
        ("quick.py:number", "makes int; expected a torch.optim.Optimizer"),
        ("quick.py:Late", "needs a closure, which ampbench's steps do not pass"),
    ],
)
def test_a_class_that_cannot_train_is_refused_in_one_line(typed: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "quick.py").write_text(OWN)
    place = typed if typed.startswith("nowhere") else f"{tmp_path}/{typed}"
    with pytest.raises(UsageError, match=said) as raised:
        check_class(parse_optimizer(place))
    assert "\n" not in str(raised.value)


def test_what_a_recipe_trains_by_is_recorded(classifier: Workload, case: MakeCase) -> None:
    found = measure_divergence(classifier, case("bf16_pure", "training", recipe="finetune"), Cpu(), References())
    assert found.recipe is not None
    group = found.recipe.groups[0]
    assert (found.recipe.optimizer, group.lr, group.weight_decay) == ("torch.optim.AdamW", 1e-5, 0.01)


def test_a_state_that_is_given_has_the_settings_of_the_recipe(case: MakeCase) -> None:
    module = torch.nn.Linear(64, 16)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.5)
    module(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    make = lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.5)  # noqa: E731
    workload = exact_gradients(make, optimizer.state_dict())
    own = update_of(workload, case("fp32", "training"))
    changed = update_of(workload, case("fp32", "training", recipe="lr=0.25"))
    another = update_of(workload, case("fp32", "training", recipe="optimizer=sgd,lr=0.125"))
    assert (own.steps, changed.steps, another.steps) == (0, 0, 2)

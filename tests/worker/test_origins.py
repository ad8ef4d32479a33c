import copy
import dataclasses
import math
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from ampbench.errors import UsageError, WorkloadError
from ampbench.records.case import Case
from ampbench.records.ranges import ModuleError, OriginPass
from ampbench.trace.keep_fp32 import keep_fp32
from ampbench.worker.machine import Cpu
from ampbench.worker.origins import measure_origin
from ampbench.workload import Workload
from tests.planted_faults import Function
from tests.worker.conftest import make_case, mean_square


def measure(workload: Workload, case: Case, *, ablate: bool = False) -> OriginPass:
    found = measure_origin(workload, case, Cpu(), ablate=ablate)
    assert msgspec.json.decode(msgspec.json.encode(found), type=OriginPass) == found
    return found


def rows_of(found: OriginPass) -> dict[str, ModuleError]:
    return {row.module: row for row in found.modules}


def net(*layers: nn.Module, **changes: Any) -> Workload:
    torch.manual_seed(0)
    return Workload(**{"module": nn.Sequential(*layers), "inputs": torch.randn(4, 16), "loss": mean_square, **changes})


def relative(low: torch.Tensor, exact: torch.Tensor) -> float:
    return float((low.double() - exact.double()).norm() / exact.double().norm())


def test_errors_of_modules_and_of_the_output_are_those_of_the_two_runs() -> None:
    workload = net(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    low = copy.deepcopy(workload.module).bfloat16()
    with torch.no_grad():
        hidden = workload.module[:2](workload.inputs)
        exact, inexact = (
            copy.deepcopy(workload.module).double()(workload.inputs.double()),
            low(workload.inputs.bfloat16()),
        )
        own, held = low[2](hidden.bfloat16()), workload.module[2](hidden.bfloat16().float())
    found = measure(workload, make_case("bf16_pure"))
    rows = rows_of(found)
    assert list(rows) == ["0", "1", "2"]
    assert rows["2"].own_rel_l2 == pytest.approx(relative(own, held))
    assert rows["1"].own_rel_l2 == 0.0  # a ReLU rounds nothing
    assert found.output_rel_l2 == pytest.approx(relative(inexact, exact))
    assert (found.first_nonfinite, found.notes) == (None, [])


@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize("precision", ["fp16_pure", "bf16_pure", "fp16_autocast", "bf16_autocast"])
def test_both_phases_are_measured_and_the_workload_is_left_alone(
    classifier: Workload, precision: str, phase: str
) -> None:
    before = {name: tensor.clone() for name, tensor in classifier.module.state_dict().items()}
    found = measure(classifier, make_case(precision, phase))
    assert found.case_id == make_case(precision, phase).case_id
    assert list(rows_of(found)) == ["0", "1", "2", "3"]
    assert found.output_rel_l2
    assert all(torch.equal(before[name], tensor) for name, tensor in classifier.module.state_dict().items())


def test_values_that_are_not_finite_in_fp32_are_refused() -> None:
    workload = net(nn.Linear(16, 4), Function(lambda x: (x - 100).log()))
    with pytest.raises(
        WorkloadError, match=r"in fp32 already: aten.log in 1 .forward. makes .* in step 1 .*cannot be judged$"
    ):
        measure(workload, make_case("bf16_autocast"))


def test_masked_outputs_are_compared_where_they_are_finite() -> None:
    workload = net(nn.Linear(16, 4), Function(lambda x: x.masked_fill(torch.eye(4, dtype=torch.bool), -math.inf)))
    assert measure(workload, make_case("bf16_pure")).output_rel_l2


def test_what_does_not_run_in_half_is_noted() -> None:
    def only_fp32(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not torch.float32:
            raise RuntimeError("fp32 alone")
        return x

    found = measure(net(nn.Linear(16, 4), Function(only_fp32)), make_case("fp16_pure"))
    assert found.notes == ["the whole forward pass does not run in fp16_pure: RuntimeError: fp32 alone"]
    assert found.modules[0].own_rel_l2
    assert found.output_rel_l2 is None


def test_a_precision_that_rounds_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="fp32 rounds"):
        measure(net(nn.Linear(16, 4)), make_case())


def test_outputs_of_other_shapes_are_noted() -> None:
    workload = net(nn.Linear(16, 4), Function(lambda x: x[: 2 if x.itemsize > 2 else 1]))
    found = measure(workload, make_case("bf16_pure"))
    assert found.output_rel_l2 is None
    assert "shapes differ" in found.notes[0]
    assert rows_of(found)["0"].own_rel_l2


def test_a_network_without_floating_outputs_has_errors_of_modules_alone() -> None:
    found = measure(net(nn.Linear(16, 4), Function(lambda x: x.argmax(-1)), loss=None), make_case("bf16_pure"))
    assert list(rows_of(found)) == ["0"]
    assert found.notes == ["forward returned no floating tensor to compare"]


def test_tuples_in_place_modules_and_what_is_kept_are_measured() -> None:
    workload = net(
        nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 4), Function(lambda x: (x, {"twice": x + x}))
    )
    keep_fp32(workload.module, "2")
    rows = rows_of(measure(dataclasses.replace(workload, loss=None), make_case("bf16_autocast")))
    assert list(rows) == ["0", "1", "3"]
    assert rows["1"].elements


def test_the_modules_within_an_encoder_are_compared_in_inference() -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    with torch.no_grad():
        encoder.layers[1].linear1.weight.mul_(3e6)
    found = measure(Workload(module=encoder, inputs=torch.randn(2, 5, 16)), make_case("fp16_autocast"))
    assert rows_of(found)["layers.1.linear1"].overflowed
    assert found.first_nonfinite is not None
    assert found.first_nonfinite.module == "layers.1.linear1"
    assert torch.backends.mha.get_fastpath_enabled()


# Modules kept in fp32 alone (that their numbers are those of brute force: tests/twin/test_twin.py)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(16, 16), nn.Linear(16, 16)
        self.outward.weight = self.inward.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outward(torch.relu(self.inward(x)))


def test_modules_that_share_a_weight_are_kept_together() -> None:
    found = measure(net(Tied(), nn.Linear(16, 4)), make_case("bf16_pure"), ablate=True)
    kept = {path: row.kept_rel_l2 for path, row in rows_of(found).items()}
    assert kept["0.inward"] == kept["0.outward"] != kept["1"]
    assert found.ablations == 3


@pytest.mark.filterwarnings("ignore")
def test_a_module_that_cannot_be_kept_says_why() -> None:
    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = torch.jit.script(nn.Linear(16, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x)

    found = measure(net(Scripted()), make_case("bf16_autocast"), ablate=True)
    assert rows_of(found)["0.part"].note.startswith("kept in fp32: UsageError: keep_fp32 cannot change a TorchScript")
    assert rows_of(found)["0.part"].kept_rel_l2 is None

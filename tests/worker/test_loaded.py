"""Networks as they are loaded: in half, on the meta device, refusing inference mode, with an optimizer of a part."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from ampbench.errors import WorkloadError
from ampbench.records.case import Case, WorkloadSource
from ampbench.records.measured import Divergence
from ampbench.records.wire import RoundAsked
from ampbench.studies.training_measure import one_rounding_away
from ampbench.worker.data import weights_digest
from ampbench.worker.divergence import References, measure_divergence
from ampbench.worker.machine import Cpu
from ampbench.worker.memory import measure_memory
from ampbench.worker.sources import build_workload, loaded_dtypes
from ampbench.worker.step import TrainingStep, build_step
from ampbench.worker.worker import Timed, Worker, measure_round
from ampbench.workload import Workload
from tests.scripted_channel import got, make_request

MakeCase = Callable[..., Case]


class Int8(torch.Tensor):
    """A weight in int8 with a scale, which has no storage and stays in the dtype that it was made of."""

    @staticmethod
    def __new__(cls, values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> "Int8":
        made = torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=dtype)
        made.values_, made.scale, made.requires_grad = values, scale, False
        return made

    def __tensor_flatten__(self) -> tuple[list[str], torch.dtype]:
        return ["values_", "scale"], self.dtype

    @staticmethod
    def __tensor_unflatten__(inner: Any, dtype: torch.dtype, *_: Any) -> "Int8":
        return Int8(inner["values_"], inner["scale"], dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func in (aten.detach.default, aten.clone.default, aten._to_copy.default):
            return Int8(args[0].values_.clone(), args[0].scale.clone(), args[0].dtype)
        if func in (aten.t.default, aten.linear.default):
            plain = [(one.values_ * one.scale).to(one.dtype) if isinstance(one, Int8) else one for one in args]
            return func(*plain)
        raise NotImplementedError(str(func))


ODD = """
import torch

class Forces(torch.nn.Linear):
    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().clone().requires_grad_()
            return torch.autograd.grad(super().forward(x).square().sum(), x)[0]

def forces():
    return Forces(4, 4), torch.ones(2, 4)

def meta():
    return torch.nn.Linear(4, 4, device="meta"), torch.ones(2, 4)

def hooked():
    network = torch.nn.Sequential(torch.nn.Linear(4, 4))
    network[0]._hf_hook = object()
    return network, torch.ones(2, 4)
"""


def source(folder: Path, function: str) -> WorkloadSource:
    path = folder / "odd.py"
    path.write_text(ODD)
    return WorkloadSource(name=f"odd.py:{function}", family="user", module=str(path), function=function, builtin=False)


def measured(workload: Workload, case: Case) -> Divergence:
    """Return a divergence without what is of the time that it took, and of the bytes of weights."""
    found = measure_divergence(workload, case, Cpu(), References())
    return structs.replace(found, weights_digest="", output=structs.replace(found.output, further=None))


@pytest.mark.parametrize("halves", [["0.weight", "0.bias", "1.running_mean", "3.weight"], ["3.weight"]])
@pytest.mark.parametrize(("half", "precision"), [(torch.bfloat16, "fp16_autocast"), (torch.float16, "bf16_master")])
def test_a_network_in_half_is_measured_as_its_values_in_fp32_are(
    half: torch.dtype, halves: list[str], precision: str, classifier: Workload, case: MakeCase
) -> None:
    loaded, state = copy.deepcopy(classifier.module), classifier.module.state_dict()
    for name, tensor in [*loaded.named_parameters(), *loaded.named_buffers()]:
        if name in halves:
            tensor.data = tensor.data.to(half)
            state[name].copy_(tensor.data)
    low = replace(classifier, module=loaded)
    one = case(precision, "training")
    found, exact = measured(low, one), measured(classifier, one)
    assert found.update is not None
    assert found == exact
    assert loaded_dtypes(loaded) == ({torch.bfloat16: "bf16", torch.float16: "fp16"}[half],)
    assert loaded_dtypes(classifier.module) == ()
    assert loaded[3].weight.dtype is half  # the caller's own stays as it was
    moved = one_rounding_away(low, 0).module[3].weight
    assert moved.dtype is torch.float32
    assert not torch.equal(moved, state["3.weight"])


@pytest.mark.parametrize(
    ("function", "why"), [("meta", "weight is on meta, without values"), ("hooked", "accelerate's hooks move 0")]
)
def test_weights_that_are_not_there_are_refused_in_a_line(function: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=why):
        build_workload(source(tmp_path, function), {}, 0)


@pytest.mark.parametrize("kind", ["round", "memory", "divergence", "casts"])
def test_a_network_that_refuses_inference_mode_runs_without_gradients(
    kind: str, case: MakeCase, tmp_path: Path
) -> None:
    planned = case("bf16_autocast", workload="forces", batch_size=None)
    request = make_request(kind, source=source(tmp_path, "forces"), case=planned, min_run_seconds=0.01)
    found = got(kind, Worker().serve(request))
    assert kind != "round" or found.no_grad


def quantized(classifier: Workload) -> Workload:
    torch.manual_seed(0)
    values = torch.randint(-9, 9, (32, 16), dtype=torch.int8)
    weight = torch.nn.Parameter(Int8(values, torch.full((32, 1), 0.1), torch.bfloat16), requires_grad=False)
    classifier.module[0].weight = weight
    return classifier


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_a_weight_of_a_class_of_its_own_is_measured_without_a_reference(
    phase: str, classifier: Workload, case: MakeCase
) -> None:
    workload, one = quantized(classifier), case("bf16_pure", phase)
    assert loaded_dtypes(workload.module) == ("Int8",)
    memory = measure_memory(workload, one, Cpu())
    plain = sum(one.numel() for name, one in workload.module.named_parameters() if name != "0.weight")
    assert memory.parameter_bytes == 32 * 16 + 4 * 32 + 2 * plain
    found = measured(workload, one)
    assert "0.weight is Int8, which stays in bf16" in found.reference.error
    assert found.output.undefined
    asked = RoundAsked(min_run_seconds=0.01, builds=1)
    assert measure_round(workload, one, asked, Cpu(), Timed()).samples
    before = weights_digest(workload)
    workload.module[0].weight.values_.add_(1)
    assert weights_digest(workload) != before
    step = build_step(workload, one, Cpu())
    if isinstance(step, TrainingStep):
        step.save()
        kept = step.module[0].weight.values_.clone()
        step.module[0].weight.values_.zero_()
        step.restore()
        assert torch.equal(step.module[0].weight.values_, kept)


def test_what_an_optimizer_lacks_is_recorded(classifier: Workload, case: MakeCase) -> None:
    one, make = case("bf16_master", "training"), classifier.optimizer
    assert make is not None
    whole, half = (
        measured(replace(classifier, optimizer=chosen), one).recipe
        for chosen in (make, lambda parameters: make([*list(parameters)[:4], torch.nn.Parameter(torch.ones(1))]))
    )
    assert (half.missed, half.trained, half.foreign) == (["3.weight", "3.bias"], 6, 1)
    assert (whole.missed, whole.trained, whole.foreign) == ([], 0, 0)

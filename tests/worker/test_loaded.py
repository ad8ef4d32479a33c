"""Networks as they are loaded: in half, on the meta device, refusing inference mode, with an optimizer of a part."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec import structs

from ampbench.errors import WorkloadError
from ampbench.instruments.convergence.measure import one_rounding_away
from ampbench.records.case import Case, WorkloadSource
from ampbench.records.measured import Divergence
from ampbench.worker.divergence import measure_divergence
from ampbench.worker.machine import Cpu
from ampbench.worker.reference import References
from ampbench.worker.sources import build_workload, loaded_dtypes
from ampbench.worker.worker import Worker
from ampbench.workload import Workload
from tests.scripted_channel import got, make_request

MakeCase = Callable[..., Case]

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


@pytest.mark.parametrize("precision", ["fp32", "bf16_pure", "fp16_autocast", "bf16_master"])
@pytest.mark.parametrize("halves", [["0.weight", "0.bias", "1.running_mean", "3.weight"], ["3.weight"]])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
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


def test_frozen_weights_in_half_beside_trained_ones_in_fp32_are_meant_so(classifier: Workload) -> None:
    classifier.module[0].to(torch.bfloat16).requires_grad_(False)
    assert loaded_dtypes(classifier.module) == ()
    assert loaded_dtypes(classifier.module.requires_grad_(False)) == ("bf16",)


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


def test_what_an_optimizer_lacks_is_recorded(classifier: Workload, case: MakeCase) -> None:
    one, make = case("bf16_master", "training"), classifier.optimizer
    assert make is not None
    whole, half = (
        measured(replace(classifier, optimizer=chosen), one).recipe
        for chosen in (make, lambda parameters: make([*list(parameters)[:4], torch.nn.Parameter(torch.ones(1))]))
    )
    assert (half.missed, half.trained, half.foreign) == (["3.weight", "3.bias"], 6, 1)
    assert (whole.missed, whole.trained, whole.foreign) == ([], 0, 0)

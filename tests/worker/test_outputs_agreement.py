"""Further batches of a classifier: where they come from, what they decide, when they end."""

from collections.abc import Callable

import pytest
import torch
from msgspec import structs
from scipy.stats import beta

from ampbench.records.case import Case
from ampbench.records.measured import Divergence
from ampbench.worker import outputs
from ampbench.worker.data import in_batches
from ampbench.worker.divergence import References, measure_divergence
from ampbench.worker.machine import Cpu
from ampbench.worker.outputs import needed, state
from ampbench.worker.sources import further_inputs
from ampbench.workload import Workload
from ampbench.workloads import index

MakeCase = Callable[..., Case]


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "LEAST_SECONDS", 60.0)


def network(classes: int = 5) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, classes))


def divergence(workload: Workload, case: Case) -> Divergence:
    return measure_divergence(workload, case, Cpu(), References())


def bf16_agreement(module: torch.nn.Module, batches: list[torch.Tensor]) -> int:
    """How many decisions of bf16 autocast are those of fp64, by hand."""
    exact = torch.nn.Sequential(*module).double()
    truth = [exact(batch.double()).argmax(1) for batch in batches]
    module.float()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        own = [module(batch).argmax(1) for batch in batches]
    return sum(int((one == other).sum()) for one, other in zip(own, truth, strict=True))


def test_an_agreement_is_decided_as_its_bounds_of_clopper_and_pearson_say() -> None:
    for decisions in (1, 8, 32, 298, 299, 300, 1000, 2000, 9216):
        for differing in {0, 1, decisions // 300, decisions // 100, decisions // 50, decisions // 3, decisions}:
            agreeing = decisions - differing
            lower = beta.ppf(0.05, agreeing, differing + 1) if agreeing else 0.0
            differ = beta.ppf(0.05, differing, agreeing + 1) if differing else 0.0
            expected = "proven" if lower >= 0.99 else "refuted" if differ > 0.01 else ""
            assert state(agreeing, decisions) == expected, (agreeing, decisions)


def test_so_many_decisions_are_asked_for_as_would_prove_it_if_all_agreed() -> None:
    assert needed(32, 32) == 299
    least = needed(31, 32)
    assert state(least - 1, least) == "proven"
    assert state(least - 2, least - 1) == ""
    assert needed(900, 1000) == outputs.MOST_DECISIONS


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_further_decisions_are_those_of_plain_torch(phase: str, case: MakeCase) -> None:
    module, batches = network(), list((3 * torch.randn(3 * 64, 16)).split(64))
    with torch.no_grad():
        module[2].weight.mul_(0.02)
        module[2].bias.fill_(4.0)  # classes so close that bf16 takes others for the largest
    targets = [torch.zeros(64, dtype=torch.int64)] * 3
    workload = Workload(
        module=module, inputs=batches, targets=targets, loss=torch.nn.functional.cross_entropy, classes_dim=1
    )
    found = divergence(workload, case("bf16_autocast", phase, batch_size=64))
    assert found.output.further is None  # the first batch refutes it
    module[2].weight.data.mul_(20)
    found = divergence(workload, case("bf16_autocast", phase, batch_size=64))
    assert found.output.further is not None
    assert found.output.decided is not None
    seen = 1 + found.output.further.decisions // 64
    assert found.output.decided == (bf16_agreement(network_like(module), batches[:seen]), 64 * seen)


def network_like(module: torch.nn.Module) -> torch.nn.Module:
    own = network()
    own.load_state_dict(module.state_dict())
    return own


def test_data_that_do_not_lie_sample_by_sample_are_no_batches() -> None:
    assert in_batches((torch.ones(6, 2), torch.ones(4)), 2) == []
    assert in_batches((torch.ones(6, 2), torch.tensor(1.0)), 2) == []
    (first, second) = in_batches(((torch.arange(5), {"mask": torch.arange(5)}), None), 2)
    assert first[0][0].tolist() == first[0][1]["mask"].tolist() == [0, 1]
    assert second[0][0].tolist() == [2, 3]
    assert second[1] is None


def test_there_are_no_further_inputs_of_what_a_user_makes_or_of_lists_of_batches() -> None:
    source = structs.replace(index.source(index.WORKLOADS["mlp"]), builtin=False)
    assert further_inputs(source, {"batch_size": 2}, 0, 2) == []
    listed = index.WORKLOADS["characters"]
    assert further_inputs(index.source(listed), listed.preset("tiny"), 0, 2) == []


def test_after_its_time_no_further_batch_begins(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(outputs, "SHARE", 0.0)
    workload = Workload(module=network(), inputs=list(torch.randn(400, 16).split(8)), classes_dim=1)
    found = divergence(workload, case("fp32"))
    assert found.output.further.decisions == 0  # they do not even begin
    monkeypatch.setattr(outputs, "FORWARD_SHARE", 0.0)
    found = divergence(workload, case("fp32"))
    assert found.output.further.decisions == 8


def test_a_further_batch_that_fails_fails_no_case(case: MakeCase) -> None:
    batches = [torch.randn(8, 16), torch.randn(8, 16), torch.randn(8, 17)]
    found = divergence(Workload(module=network(), inputs=batches, classes_dim=1), case("bf16_autocast"))
    (why,) = [note for note in found.notes if note.startswith("further batches failed: ")]
    assert "RuntimeError: " in why
    assert found.output.rel_l2 is not None


def test_a_further_batch_of_another_shape_ends_them(case: MakeCase) -> None:
    batches = [torch.randn(8, 16), torch.randn(8, 16), torch.randn(4, 16)]
    found = divergence(Workload(module=network(), inputs=batches, classes_dim=1), case("bf16_autocast"))
    assert found.output.further.decisions == 8

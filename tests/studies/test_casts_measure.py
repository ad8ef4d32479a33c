import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from ampbench.records import wire
from ampbench.records.case import Case, WorkloadSource
from ampbench.records.casts import AUTOGRAD, TRACED, CastPass, Tracing
from ampbench.records.rules import FAKE
from ampbench.records.wire import Reply
from ampbench.studies import casts_measure as measure
from ampbench.studies.casts import TASK
from ampbench.worker import timing
from ampbench.worker.worker import Worker
from ampbench.workload import Workload
from ampbench.workloads.index import WORKLOADS
from ampbench.workloads.index import source as builtin_source
from tests.scripted_channel import got
from tests.studies.working import at_work
from tests.traced_programs import CastLog

MakeCase = Callable[..., Case]


def measure_casts(workload: Workload, planned: Case, tracing: Tracing) -> CastPass:
    return measure.measure_casts(at_work(workload, planned), tracing)


QUICK = Tracing(seconds=0.05)
UNTIMED = Tracing(time=False)

NETWORKS = """
import torch
from ampbench import Workload

def twice():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(64, 64)
        def forward(self, *, x):
            return self.linear(self.linear(x))
    inputs = {"x": torch.randn(4, 64)}
    return Workload(module=Twice(), inputs=inputs, loss=lambda output: output.float().square().mean())

def raises():
    class Raises(torch.nn.Module):
        def forward(self, x):
            raise RuntimeError("no such luck")
    return Raises(), torch.ones(2)

def looks():
    class Looks(torch.nn.Module):
        def forward(self, x):
            return x * x.sum().item()
    return Looks(), torch.ones(2)
"""


def linear(**changes: Any) -> Workload:
    torch.manual_seed(0)
    workload = Workload(
        module=torch.nn.Linear(16, 16), inputs=torch.randn(4, 16), loss=lambda output: output.float().square().mean()
    )
    return dataclasses.replace(workload, **changes)


def ask(planned: Case, source: WorkloadSource, tracing: Tracing = UNTIMED) -> Reply:
    return Worker().serve(wire.ask(TASK, tracing, source=source, case=planned))


@pytest.fixture
def user(tmp_path: Path) -> Callable[[str], WorkloadSource]:
    path = tmp_path / "networks_to_trace.py"
    path.write_text(NETWORKS)
    return lambda name: WorkloadSource(name=name, family="user", module=str(path), function=name, builtin=False)


@pytest.fixture(autouse=True)
def few_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two builds of each step: what more of them come to is no matter of the worker's."""
    monkeypatch.setattr(timing, "PAIRS", 2)


def tiny(case: MakeCase, name: str, precision: str, phase: str, device: str = "cpu") -> tuple[Case, WorkloadSource]:
    parameters = dict(WORKLOADS[name].preset("tiny"))
    size = parameters.pop("batch_size")
    planned = case(precision, phase, workload=name, parameters=parameters, batch_size=size, device=device)
    return planned, builtin_source(WORKLOADS[name])


def phases(found: CastPass) -> set[str]:
    return {operation.phase for operation in found.trace.ops}


def test_a_timed_pass_has_the_seconds_of_ops_casts_and_step(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "PATIENCE", 1000)
    monkeypatch.setattr(timing, "PATIENCE", 1000)
    found = measure_casts(linear(), case("bf16_autocast"), QUICK)
    assert found.trace.timed
    assert found.traced_steps >= measure.FEWEST_TRACED
    assert all(operation.seconds > 0 for operation in found.trace.ops)
    assert all(cast.seconds == found.trace.ops[cast.index].seconds for cast in found.trace.casts)
    assert len(found.step_samples) == timing.PAIRS
    assert all(samples and min(samples) > 0 for samples in found.step_samples)
    assert found.fitness.load is not None
    assert msgspec.json.decode(msgspec.json.encode(found), type=CastPass) == found


def test_a_training_step_is_traced_whole_and_the_workload_is_left_alone(case: MakeCase, classifier: Workload) -> None:
    before = {name: tensor.clone() for name, tensor in classifier.module.state_dict().items()}
    found = measure_casts(classifier, case("bf16_autocast", "training"), QUICK)
    assert phases(found) == {"forward", "backward", "optimizer"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in classifier.module.state_dict().items())


def test_a_scaled_step_is_traced_as_it_is_once_the_scale_has_settled(case: MakeCase, classifier: Workload) -> None:
    large = dataclasses.replace(
        classifier, loss=lambda out, target: 1e3 * torch.nn.functional.cross_entropy(out, target)
    )
    found = measure_casts(large, case("fp16_autocast", "training"), QUICK)
    names = [operation.name for operation in found.trace.ops]
    assert "aten._amp_foreach_non_finite_check_and_unscale_" in names
    assert "optimizer" in phases(found)  # GradScaler has not refused the step


# The graphs beside the eager step.


def test_graphs_are_read_where_asked_for_and_one_that_cannot_be_made_fails_alone(
    case: MakeCase, classifier: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("ampbench.trace.graphs.traced_graph", breaks)
    found = measure_casts(classifier, case("bf16_autocast"), Tracing(time=False, graphs=[AUTOGRAD, TRACED]))
    autograd, traced = found.graphs
    assert (autograd.error, traced.error) == ("", "RuntimeError: first line")
    assert [cast.name for cast in autograd.casts if cast.name.endswith("weight")] == ["3.weight", "0.weight"]
    assert len(found.trace.casts) == 5


# Devices that are not here.


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[CastLog]:
    """Plain logs of the dispatcher, one for each trace on fake tensors."""
    logs: list[CastLog] = []
    original = measure.trace_casts

    @contextlib.contextmanager
    def both(*arguments: Any, **options: Any) -> Iterator[Any]:
        with CastLog() as log, original(*arguments, **options) as ledger:
            logs.append(log)
            yield ledger

    monkeypatch.setattr(measure, "trace_casts", both)
    return logs


needs_no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="cuda is not absent here")


@needs_no_cuda
@pytest.mark.parametrize(
    ("name", "precision", "phase"),
    [("decoder_lm", "fp16_autocast", "training"), ("resnet18", "bf16_autocast", "inference")],
)
def test_an_absent_device_is_traced_on_fake_tensors(
    name: str, precision: str, phase: str, case: MakeCase, logged: list[CastLog]
) -> None:
    if name == "resnet18":
        pytest.importorskip("torchvision")
    found = got("casts", ask(*tiny(case, name, precision, phase, "cuda"), Tracing(graphs=[AUTOGRAD])))
    assert found.how == FAKE
    in_attention = 2 * 5 if name == "decoder_lm" else 0  # which only fake tensors take apart
    assert len(found.trace.casts) == logged[-1].casts - in_attention > 0
    assert {cast.to_dtype for cast in found.trace.casts if cast.what == "weight"} == {precision[:4]}
    assert phases(found) == {"forward"}
    assert (found.step_samples, found.trace.timed) == ([], False)
    assert found.notes[0].startswith("not on hardware: cuda is not on this machine")
    assert found.graphs[0].error.startswith("cuda is not on this machine")


@needs_no_cuda
def test_what_fake_tensors_cannot_do_is_the_cases_failure(
    case: MakeCase, user: Callable[[str], WorkloadSource]
) -> None:
    failure = ask(case("bf16_autocast", workload="looks", batch_size=None, device="cuda"), user("looks")).failure
    assert failure.message.startswith("cuda is not on this machine, and the network cannot run on fake tensors of it: ")
    assert failure.message.endswith("(networks_to_trace.py, line 24)")


class Attending(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        out.mul_(2)
        return out


@needs_no_cuda
@pytest.mark.parametrize(
    ("precision", "casts", "phase"), [("bf16_pure", 0, "inference"), ("fp16_autocast", 3, "training")]
)
def test_attention_on_fake_tensors_is_the_one_op_that_hardware_has_for_it(
    precision: str, casts: int, phase: str, case: MakeCase
) -> None:
    workload = linear(module=Attending(), inputs=torch.randn(2, 2, 8, 16), loss=lambda out: out.sum())
    planned = case(precision, phase, device="cuda")
    found = measure_casts(workload, planned, UNTIMED)
    ops = [op.name for op in found.trace.ops]
    assert ops.count("aten.scaled_dot_product_attention") == 1
    assert not {"aten.bmm", "aten._softmax"} & set(ops)
    assert [cast.origin for cast in found.trace.casts if cast.what == "input"] == ["autocast"] * casts


@needs_no_cuda
@pytest.mark.parametrize(("kind", "states", "phase"), [(torch.nn.LSTM, 2, "training"), (torch.nn.GRU, 1, "inference")])
def test_a_recurrent_network_on_fake_tensors_casts_its_input_states_and_weights_once(
    kind: Any, states: int, phase: str, case: MakeCase
) -> None:
    workload = linear(
        module=kind(8, 16, 2, batch_first=True), inputs=torch.randn(2, 5, 8), loss=lambda out: out[0].sum()
    )
    planned = case("fp16_autocast", phase, device="cuda")
    found = measure_casts(workload, planned, UNTIMED)
    lowered = Counter(cast.what for cast in found.trace.casts if cast.to_dtype == "fp16")
    assert lowered == {"weight": 2 * 4, "input": 1 + states}
    assert not any(cast.cached for cast in found.trace.casts)
    assert next(row.outputs for row in found.trace.modules if row.kind == kind.__name__)[0] == "fp16"

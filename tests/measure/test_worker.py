import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

import ampbench
from ampbench.measure import worker as rounds
from ampbench.measure.divergence import measure_divergence
from ampbench.measure.machine import Cpu
from ampbench.records.case import Case, WorkloadSource
from ampbench.records.rules import RuleProbe
from ampbench.records.wire import Request
from ampbench.workload import Workload
from ampbench.workloads.index import WORKLOADS
from ampbench.workloads.index import source as builtin_source

MakeCase = Callable[..., Case]
SPEC = WORKLOADS["linear_stack"]

BROKEN = """
import torch

class Broken(torch.nn.Linear):
    def forward(self, x):
        raise RuntimeError('mine')

def make():
    return Broken(3, 3), torch.ones(2, 3), lambda output: output.sum()
"""


def linear_case(case: MakeCase, precision: str = "bf16_pure", phase: str = "inference", **changes: object) -> Case:
    parameters = {name: value for name, value in SPEC.tiny.items() if name != "batch_size"}
    values = {"workload": SPEC.name, "family": SPEC.family, "parameters": parameters, "batch_size": 8, **changes}
    return case(precision, phase, **values)


def ask(kind: str, planned: Case, source: WorkloadSource | None = None, **changes: object) -> Request:
    return Request(kind=kind, source=source or builtin_source(SPEC), case=planned, min_run_seconds=0.01, **changes)


def test_the_frames_of_a_study_that_failed_are_the_users(case: MakeCase, tmp_path: Path) -> None:
    model = tmp_path / "broken.py"
    model.write_text(BROKEN)
    planned = case("bf16_autocast", "training", workload="make", batch_size=None)
    request = ask(
        "scope",
        planned,
        WorkloadSource(name="make", family="user", module=str(model), function="make", builtin=False),
        steps=2,
    )
    found = rounds.Worker().serve(request).failure
    assert found.message == "RuntimeError: mine (broken.py, line 6)"
    assert found.frames[-1] == f"{model}:6 in forward: raise RuntimeError('mine')"
    assert not any(frame.startswith(str(Path(ampbench.__file__).parent)) for frame in found.frames)


@pytest.mark.parametrize("kind", ["fantasy", "a study to come"])
def test_a_request_of_an_unknown_kind_is_refused_and_measures_nothing(
    kind: str, case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "KINDS", {**rounds.KINDS, "a study to come": None})
    reply = rounds.Worker().serve(ask(kind, linear_case(case)))
    assert reply.failure.message.endswith(f"does not know requests of kind '{kind}'")
    assert reply == type(reply)(failure=reply.failure)


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device whose memory holds the fp64 reference of two rows; returns the batch sizes that were tried."""
    tried: list[int] = []

    def measure(workload: Workload, *arguments: object) -> object:
        tried.append(len(workload.inputs))
        if tried[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return measure_divergence(workload, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rounds, "measure_divergence", measure)
    return tried


def test_a_reference_that_does_not_fit_is_made_on_a_smaller_batch_and_said_so(
    case: MakeCase, small_memory: list[int]
) -> None:
    worker = rounds.Worker()
    found = worker.serve(ask("divergence", linear_case(case))).divergence
    assert small_memory == [8, 2]
    assert found.output_rel_l2 > 0
    assert found.notes == ["compared on a batch of 2: in fp64, 8 do not fit into the memory"]
    worker.serve(ask("divergence", linear_case(case, "fp16_pure")))
    assert small_memory == [8, 2, 2]


def test_a_reference_that_never_fits_is_the_cases_failure(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(rounds, "measure_divergence", never)
    failure = rounds.Worker().serve(ask("divergence", linear_case(case))).failure
    assert (failure.cause, failure.stage) == ("out of memory", "divergence")


def test_a_training_round_says_its_scale_and_that_no_step_was_skipped(case: MakeCase) -> None:
    found = rounds.Worker().serve(ask("round", linear_case(case, "fp16_autocast", "training"))).round
    assert found.scaler_scale > 0
    assert found.skipped_steps == 0
    assert rounds.Worker().serve(ask("round", linear_case(case, "fp32", "training"))).round.skipped_steps is None


def test_steps_that_the_scaler_refuses_are_counted(case: MakeCase) -> None:
    step_case = linear_case(case, "fp16_autocast", "training")
    worker = rounds.Worker()
    assert worker.serve(ask("round", step_case)).round is not None
    _, workload = worker._built
    overflowing = dataclasses.replace(workload, loss=lambda output, target: output.float().sum() * torch.inf)
    worker._built = (worker._built[0], overflowing)
    assert worker.serve(ask("round", step_case)).round.skipped_steps > 0


def test_a_device_that_vanished_is_a_failure_and_not_a_crash(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    failure = rounds.Worker().serve(ask("round", linear_case(case, device="cuda"))).failure
    assert "device cuda is not available here" in failure.message


def test_the_seed_decides_the_weights(case: MakeCase) -> None:
    digests = [
        rounds.Worker().serve(ask("round", linear_case(case), seed=seed)).round.weights_digest for seed in (0, 0, 1)
    ]
    assert digests[0] == digests[1] != digests[2]


def test_rules_are_probed_for_ops_as_typed() -> None:
    asked = Request(kind="rules", device="cpu", dtypes=["bfloat16"], ops=["prelu"])
    rules = rounds.Worker().serve(asked).rules
    assert [(one.name, one.observed) for one in rules.observations] == [("aten::prelu", "lower_precision")]
    assert msgspec.json.decode(msgspec.json.encode(rules), type=RuleProbe) == rules


def test_an_op_that_is_not_known_is_a_problem_with_what_is_near() -> None:
    asked = Request(kind="rules", device="cpu", dtypes=["bfloat16"], ops=["prelo"])
    problem = rounds.Worker().serve(asked).problem
    assert problem is not None
    assert problem.startswith("unknown op 'prelo': did you mean prelu")


@pytest.mark.slow
def test_compiled_training_has_a_round_with_its_compile_time_memory_and_divergence(case: MakeCase) -> None:
    compiled = linear_case(case, "bf16_autocast", "training", path="compiled")
    worker = rounds.Worker()
    memory = worker.serve(ask("memory", compiled)).memory
    found = worker.serve(ask("round", compiled)).round
    assert found.compile_seconds > max(max(build) for build in found.samples)
    assert memory.peak_bytes > memory.parameter_bytes + memory.gradient_bytes
    ours = worker.serve(ask("divergence", compiled)).divergence
    eager = worker.serve(ask("divergence", dataclasses.replace(compiled, path="eager"))).divergence
    assert 0 < ours.grad_rel_l2 < 3 * eager.grad_rel_l2
    assert ours.loss == pytest.approx(ours.reference_loss, rel=0.05)


def test_training_that_cannot_be_compiled_is_the_cases_failure(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("backend fell over")

    monkeypatch.setattr(rounds, "cannot_run", lambda case: "")
    monkeypatch.setattr(torch, "compile", lambda module: broken)
    for kind in ("round", "memory", "divergence"):
        failure = rounds.Worker().serve(ask(kind, linear_case(case, phase="training", path="compiled"))).failure
        assert failure.stage == kind
        assert re.fullmatch(r"RuntimeError: backend fell over \(test_worker.py, line \d+\)", failure.message)


@pytest.mark.parametrize(("rate", "nonfinite"), [(1e-4, 0), (1e30, 20)])
def test_parameters_that_the_timed_steps_leave_not_finite_are_counted(
    rate: float, nonfinite: int, case: Callable[..., Case]
) -> None:
    workload = Workload(
        module=torch.nn.Linear(4, 4),
        inputs=torch.ones(2, 4),
        loss=lambda output: output.square().square().sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
    )
    asked = Request(kind="round", case=case("fp32", "training"), min_run_seconds=0.02, builds=1, max_samples=5)
    found = rounds.measure_round(workload, asked, Cpu(), rounds.Timed())
    assert found.param_nonfinite == nonfinite


def test_no_worker_waits_for_pandas_or_scipy_whatever_it_explains_or_studies() -> None:
    root = Path(ampbench.__file__).parents[1]
    work = sorted((root / "ampbench" / "instruments").glob("*/measure.py"))
    modules = [".".join(path.relative_to(root).with_suffix("").parts) for path in work]
    modules += ["ampbench.measure.worker", "ampbench.measure.origins", "ampbench.explain.rules.probe"]
    assert len(modules) > 8
    code = (
        "import sys; sys.modules['pandas'] = sys.modules['scipy'] = None\n"
        "from importlib import import_module\n"
        f"for name in {modules!r}: import_module(name)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr == ""

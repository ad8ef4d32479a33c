"""Ranges watched: what is planned and asked, and what a pass over a step sees."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ampbench.core.precisions import LOW, PRECISIONS, SCALED
from ampbench.drive.planning import NOT_TRAINED
from ampbench.errors import WorkloadError
from ampbench.records.case import Case, DeviceDescription
from ampbench.records.ranges import GRADIENT, LowRun, OriginPass, RangePass
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.studies import headroom, origin
from ampbench.studies.headroom import Headroom, RangesAsked, conclusions
from ampbench.studies.headroom_measure import measure_ranges
from ampbench.worker.step import NO_DROPOUT
from ampbench.workload import Workload
from tests.planted_faults import SMALL, Function, small_encoder
from tests.scripted_channel import CPU, NO_GPU, Scripted, asked_in, described, machine
from tests.studies.working import at_work, studied

MakeCase = Callable[..., Case]


def mean_square(output: Any) -> torch.Tensor:
    return output.float().square().mean()


def measure(workload: Workload, case: Case, *precisions: str, steps: int = 1) -> RangePass:
    found = measure_ranges(at_work(workload, case), RangesAsked(steps=steps, precisions=[*precisions]))
    assert msgspec.json.decode(msgspec.json.encode(found), type=RangePass) == found
    return found


def concluded(found: RangePass, case: Case, subject: str) -> dict[str, Any]:
    return {each.code: each.facts for each in conclusions(case, found) if each.subject == subject}


def run_low(workload: Workload, case: Case, precision: str) -> LowRun:
    (low,) = measure(workload, case, precision).low_runs
    return low


def net(*layers: nn.Module, inputs: Any = None, **changes: Any) -> Workload:
    torch.manual_seed(0)
    given = torch.randn(4, 16) if inputs is None else inputs
    return Workload(**{"module": nn.Sequential(*layers), "inputs": given, "loss": mean_square, **changes})


def test_a_training_pass_has_all_kinds_of_values_and_leaves_the_workload_alone(
    case: MakeCase, classifier: Workload
) -> None:
    before = {name: tensor.clone() for name, tensor in classifier.module.state_dict().items()}
    found = measure(classifier, case("fp32", "training"), *LOW)
    assert found.case_id == case("fp32", "training").case_id
    assert {row.what for row in found.magnitudes} == {"input", "activation", "gradient", "weight", "update"}
    assert {row.dtype for row in found.swallowed} == {"fp16", "bf16"}
    assert found.recipe is not None
    assert found.recipe.optimizer.startswith("torch.optim.")
    assert [low.precision for low in found.low_runs] == LOW
    for low in found.low_runs:
        assert [row.module for row in low.modules] == ["0", "1", "2", "3"]
        assert {row.parameter for row in low.gradients} == {name for name, _ in classifier.module.named_parameters()}
        assert (low.error, low.first_nonfinite, low.notes) == ("", None, [])
    assert all(torch.equal(before[name], tensor) for name, tensor in classifier.module.state_dict().items())


def test_magnitudes_are_of_the_steps_a_loop_would_take(case: MakeCase, classifier: Workload) -> None:
    found = measure(classifier, case("fp32", "training"), steps=2)
    torch.manual_seed(0)
    module = torch.nn.Sequential(*classifier.module)
    optimizer = classifier.optimizer(module.parameters())  # type: ignore[misc]
    largest = []
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(module(classifier.inputs), classifier.targets).backward()
        largest.append(float(module[3].weight.grad.abs().max()))
        optimizer.step()
    (gradient,) = (row for row in found.magnitudes if (row.what, row.name) == (GRADIENT, "3.weight"))
    assert gradient.largest == max(largest)


def test_in_pure_half_all_is_lowered_and_with_autocast_what_its_rules_choose(case: MakeCase) -> None:
    workload = net(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4), Function(torch.Tensor.float))
    pure, mixed = measure(workload, case("fp32", "training"), "bf16_pure", "bf16_autocast").low_runs
    assert pure.lowered_weights == [name for name, _ in workload.module.named_parameters()]
    assert pure.lowered == ["0", "1", "2"]
    assert mixed.lowered_weights == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert mixed.lowered == ["0", "1", "2"]


def test_an_optimizer_that_overflows_is_located(case: MakeCase) -> None:
    adam = lambda parameters: torch.optim.Adam(parameters, eps=1e-12)  # noqa: E731 - rounds to zero in fp16
    low = run_low(net(nn.Linear(16, 4), nn.ReLU(), optimizer=adam), case("fp32", "training"), "fp16_pure")
    assert low.first_nonfinite is None or low.first_nonfinite.phase == "optimizer"
    workload = net(nn.Linear(16, 4), inputs=torch.zeros(2, 16), optimizer=adam)  # no gradient of a weight: 0 / 0
    low = run_low(workload, case("fp32", "training"), "fp16_pure")
    assert low.first_nonfinite is not None
    assert low.first_nonfinite.phase == "optimizer"


@pytest.mark.parametrize("build", SMALL)
@pytest.mark.parametrize("precision", ["fp16_pure", "fp16_autocast"])
@pytest.mark.parametrize("fault", ["overflowing layer", "softmax of large logits", "sum of sixteens", "tiny variance"])
def test_planted_faults_are_seen(case: MakeCase, build: Callable[..., Any], precision: str, fault: str) -> None:
    module, inputs, planted = build(fault)
    low = run_low(Workload(module=module, inputs=inputs), case(), precision)
    rows = {row.module: row for row in low.modules}
    lowered = planted in low.lowered
    assert lowered or (precision, build) == ("fp16_autocast", small_encoder)  # whose layers end in fp32
    assert bool(rows[planted].overflowed) == lowered
    assert not rows[planted].inputs_overflowed
    if lowered:
        assert low.first_nonfinite is not None
        assert low.first_nonfinite.module == planted


def test_values_that_are_not_finite_in_fp32_are_refused_and_located(case: MakeCase) -> None:
    class Head(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x - 100).log()

    workload = Workload(module=nn.ModuleDict({"head": Head()}), inputs=torch.ones(2))
    workload.module.forward = workload.module["head"].__call__  # type: ignore[method-assign]
    with pytest.raises(WorkloadError) as refused:
        measure(workload, case(), "fp16_pure")
    assert str(refused.value) == (
        "values are not finite in fp32 already: aten.log in head (forward) makes the first NaN or infinity in "
        "step 1 (largest input 99); half precision cannot be judged"
    )


def test_inputs_that_are_not_finite_are_refused(case: MakeCase) -> None:
    with pytest.raises(WorkloadError, match="finite values, input holds them; 0 is the first module to hold one"):
        measure(net(nn.Linear(16, 4), inputs=torch.full((2, 16), math.nan)), case())


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_masks_of_infinities_are_no_fault(case: MakeCase, phase: str) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Linear(8, 8)
            self.register_buffer("mask", torch.full((5, 5), -math.inf).triu(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = self.query(x) @ x.transpose(1, 2)
            return (scores + self.mask).softmax(-1) @ x

    workload = net(Masked(), inputs=torch.randn(2, 5, 8))
    found = measure(workload, case("fp32", phase), "fp16_pure", "bf16_autocast")
    assert [low.first_nonfinite for low in found.low_runs] == [None, None]


def test_what_does_not_run_in_half_is_recorded_beside_the_rest(case: MakeCase) -> None:
    def only_fp32(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not torch.float32:
            raise RuntimeError("fp32 alone\nsecond line")
        return x

    workload = net(nn.Linear(16, 4), Function(only_fp32))
    for phase in ("inference", "training"):
        low = run_low(workload, case("fp32", phase), "fp16_pure")
        assert low.error == "RuntimeError: fp32 alone"
        assert low.gradients == []
        assert low.modules[0].own_rel_l2
        assert low.modules[1].note.endswith("fp32 alone")


class Tied(nn.Module):
    """An embedding whose weight is also the head's, and a shared layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.shared = nn.Linear(8, 8)
        self.again = self.shared
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> dict[str, Any]:
        x = self.again(F.relu(self.shared(self.embedding(tokens))))
        return {"logits": self.head(x), "length": tokens.shape[1], "parts": (x, tokens)}


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient * ctx.saved_tensors[0]


def tied() -> Workload:
    return Workload(
        module=Tied(),
        inputs=torch.randint(20, (2, 5)),
        loss=lambda output: output["logits"].float().logsumexp(-1).mean(),
    )


NETWORKS = {
    "tied weights, a shared module, a dict of outputs": tied,
    "a function of the user's": lambda: net(nn.Linear(16, 16), Function(Squared.apply), nn.Linear(16, 4)),
    "an encoder": lambda: net(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2), inputs=torch.randn(2, 5, 16)
    ),
    "sparse gradients": lambda: net(
        nn.Embedding(20, 4, sparse=True), nn.Linear(4, 2), inputs=torch.randint(20, (2, 3))
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("phase", ["inference", "training"])
def test_networks_of_all_kinds_are_measured(case: MakeCase, name: str, phase: str) -> None:
    torch.manual_seed(0)
    workload = NETWORKS[name]()
    found = measure(workload, case("fp32", phase), *LOW)
    parameters = {parameter for parameter, _ in workload.module.named_parameters()}
    assert [low.precision for low in found.low_runs] == LOW
    for low in found.low_runs:
        assert low.modules
        assert not [row for row in low.modules if row.note]
        assert (low.error, low.first_nonfinite, low.notes) == (
            "",
            None,
            [NO_DROPOUT] if NO_DROPOUT in found.notes else [],
        )
        assert {row.parameter for row in low.gradients} == (parameters if phase == "training" else set())
        assert low.lowered
        if PRECISIONS[low.precision].autocast is None:
            assert parameters <= set(low.lowered_weights)


def test_weights_and_inputs_that_hold_nan_are_named_and_a_constant_of_the_code_is_neither(case: MakeCase) -> None:
    linear = nn.Linear(16, 4)
    with torch.no_grad():
        linear.bias[0] = math.nan
    with pytest.raises(WorkloadError, match=r"of finite values, 0\.bias holds them;"):
        measure(net(linear), case())
    with pytest.raises(WorkloadError, match="neither weights nor inputs hold them, so a constant that the code makes"):
        measure(net(nn.Linear(16, 4), Function(lambda y: y + torch.tensor(math.nan))), case())


class Prices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 4)
        self.register_buffer("std", torch.tensor(115_000.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.softplus(self.lin(x)) * self.std


def test_a_buffer_that_overflows_as_it_is_stored_is_named(case: MakeCase) -> None:
    found = measure(Workload(module=Prices(), inputs=torch.randn(8, 16)), case(), "fp16_pure", "bf16_pure")
    low, wide = found.low_runs
    assert (low.overflowed_weights, low.nonfinite_output, low.first_nonfinite) == (["std"], 0, None)
    half = concluded(found, case(), "fp16_pure")
    assert half[Headroom.STORED] == {"names": "std", "count": 1, "dtype": "fp16", "step": 1}
    assert (wide.overflowed_weights, wide.nonfinite_output) == ([], None)
    assert Headroom.FINITE in concluded(found, case(), "bf16_pure")


Instead = Callable[[Request], Reply | None]


def seeing(instead: Instead = lambda _: None, *devices: DeviceDescription, has_loss: bool = True) -> Scripted:
    """Return a channel that sees nothing in every case, or answers as `instead` does."""

    def answer(request: Request) -> Reply:
        if request.task == "describe":
            return described(has_loss=has_loss)
        assert request.case is not None
        case_id, asked = request.case.case_id, asked_in(request)
        if request.task == "origin":
            return instead(request) or reply_with(OriginPass(case_id=case_id))
        notes = ["dropout is off", *asked.notes]
        return instead(request) or reply_with(RangePass(case_id=case_id, steps=asked.steps or 1, notes=notes))

    return Scripted(answer, machine(*(devices or (CPU, NO_GPU))))


def test_unless_told_otherwise_training_is_watched_in_fp32_and_every_low_precision_tried(tmp_path: Path) -> None:
    channel = seeing()
    run = studied(headroom.STUDY, tmp_path, channel, RangesAsked(steps=3))
    assert [(case.precision, case.phase, case.path) for case in run.cases.values()] == [("fp32", "training", "eager")]
    (request,) = channel.asked
    assert (request.task, asked_in(request).steps, asked_in(request).precisions) == ("ranges", 3, LOW)
    (seen,) = run.of(RangePass).values()
    assert (seen.steps, seen.notes) == (3, ["dropout is off"])


@pytest.mark.parametrize("has_loss", [True, False])
def test_a_workload_without_a_loss_or_an_optimizer_is_watched_in_inference_and_the_pass_says_so(
    has_loss: bool, tmp_path: Path
) -> None:
    (tmp_path / "model.py").touch()
    run = studied(
        headroom.STUDY, tmp_path, seeing(has_loss=has_loss), RangesAsked(), workloads=[f"{tmp_path}/model.py:make"]
    )
    assert [case.phase for case in run.cases.values()] == ["inference"]
    (seen,) = run.of(RangePass).values()
    assert any(NOT_TRAINED in note for note in seen.notes)
    assert not run.skips


def test_a_precision_that_the_device_cannot_run_is_a_note(tmp_path: Path) -> None:
    gpu = DeviceDescription(type="xpu", available=True, arithmetic={"bf16": "unavailable"}, float64=False)
    channel = seeing(lambda _: None, CPU, gpu)
    run = studied(headroom.STUDY, tmp_path, channel, RangesAsked(), devices=["xpu"])
    lacking = {name: "xpu does not support bf16" for name in LOW if PRECISIONS[name].rounding == "bfloat16"}
    lacking |= dict.fromkeys(SCALED, "GradScaler needs fp64, which xpu does not have")
    assert asked_in(channel.asked[0]).precisions == [name for name in LOW if name not in lacking]
    (seen,) = run.of(RangePass).values()
    assert seen.notes == ["dropout is off", *(f"{name}: skipped: {lacking[name]}" for name in LOW if name in lacking)]


def test_origins_are_found_in_the_devices_own_autocast_dtype_and_in_training(tmp_path: Path) -> None:
    channel = seeing()
    run = studied(origin.STUDY, tmp_path, channel, origin.OriginAsked())
    assert [(case.precision, case.phase) for case in run.cases.values()] == [("bf16_autocast", "training")]
    assert [request.task for request in channel.asked] == ["origin"]
    assert list(run.of(OriginPass)) == list(run.cases)

"""Programs that trials of the advice got wrong, in small: the divergence pass and the verdict of each."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ampbench.core.budget import MOST_OF_LOSS, MOST_SWALLOWED
from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.core.statement import Refusal
from ampbench.judge.verdict import below
from ampbench.records.changes import Status
from ampbench.records.measured import Divergence, LossAlone, LossUnmeasured
from ampbench.worker.divergence import References, measure_divergence, run_step
from ampbench.worker.machine import Cpu
from ampbench.workload import Workload
from tests.judge.test_one_step import trained as by_sgd
from tests.judge.test_one_step import verdicts
from tests.stored_runs import make_case
from tests.worker.test_optimizers import Lion
from tests.worker.test_updates import adam
from tests.workloads.built_workloads import build

Optimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


def measured(workload: Workload, precision: str, phase: str = "training") -> Divergence:
    return measure_divergence(workload, make_case(precision, phase=phase, batch_size=None), Cpu(), References())


def trained(workload: Workload, steps: int) -> Workload:
    """Return a workload of one batch after steps of its optimizer in fp32."""
    assert workload.optimizer is not None
    assert workload.loss is not None
    optimizer = workload.optimizer(workload.module.parameters())
    given = () if workload.targets is None else (workload.targets,)
    for _ in range(steps):
        optimizer.zero_grad()
        workload.loss(workload.module(workload.inputs), *given).backward()
        optimizer.step()
    return workload


def regression(offset: float = 0.0, spread: float = 1.0, noise: float = 0.3, **changes: Any) -> Workload:
    """Return a regression of 16 features to 4 numbers of this spread around an offset, by Adam."""
    torch.manual_seed(0)
    inputs, head = torch.randn(256, 16), torch.nn.Linear(32, 4)
    targets = offset + spread * (torch.sin(inputs @ torch.randn(16, 4)) + noise * torch.randn(256, 4))
    torch.nn.init.constant_(head.bias, offset)
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), head)
    made = {"module": module, "inputs": inputs, "targets": targets, "loss": F.mse_loss, "optimizer": adam}
    return Workload(**made | changes)


@pytest.mark.parametrize("late", [False, True])
def test_temperatures_whose_spread_is_below_the_spacing_of_bf16_are_refused(late: bool, tmp_path: Path) -> None:
    found = verdicts(tmp_path, regression(offset=288, spread=0.7), "bf16_autocast", "tf32", late=late)
    refused = found["bf16_autocast"]
    assert (refused.status, refused.code, refused.limit) == (Status.REFUSED, Refusal.SPREAD, 0.2)
    assert refused.number > 0.4
    assert refused.steps == 20 * late
    assert found["tf32"].status is Status.OK


class Heads(torch.nn.Module):
    """Boxes in pixels, in fp32 whatever the precision, and scores of rows that are close together."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes, self.scores = torch.nn.Linear(16, 4), torch.nn.Linear(16, 8)
        with torch.no_grad():
            self.scores.weight.mul_(7e-3)
            self.scores.bias.fill_(1.0)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.autocast(x.device.type, enabled=False):
            boxes = 1000 * self.boxes(x.to(self.boxes.weight.dtype))
        return {"boxes": boxes, "scores": self.scores(x)}


def both(output: dict[str, torch.Tensor], targets: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    boxes, scores = output["boxes"] / 1000, output["scores"]
    return F.mse_loss(boxes, targets[0].to(boxes.dtype)) + F.mse_loss(scores, targets[1].to(scores.dtype))


@pytest.mark.parametrize(("phase", "limit"), [("inference", 0.1), ("training", 0.2)])
def test_scores_whose_rows_rounding_makes_alike_are_refused_by_name(phase: str, limit: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs, late = torch.randn(64, 16), phase == "training"
    targets = torch.tanh(inputs[:, :4]), 1 + 0.01 * torch.sin(inputs[:, :8])
    workload = Workload(module=Heads(), inputs=inputs, targets=targets, loss=both, optimizer=adam)
    found = verdicts(tmp_path, workload, "bf16_autocast", "fp16_autocast", phase=phase, late=late)
    refused = found["bf16_autocast"]
    assert (refused.status, refused.code, refused.subject) == (Status.REFUSED, Refusal.SPREAD, "scores")
    assert limit == refused.limit < refused.number < 0.6
    assert refused.steps == 20 * late
    assert found["fp16_autocast"].status is Status.OK


@pytest.mark.parametrize(("steps", "low", "high"), [(650, 0.25, 0.35), (1105, 0.8, 1.2)])
def test_an_error_of_a_small_gradient_within_the_noise_of_a_batch_does_not_refuse(
    steps: int, low: float, high: float, tmp_path: Path
) -> None:
    workload = trained(regression(), steps)
    gradient = measured(workload, "bf16_autocast").gradient
    assert low < gradient.rel_l2 < high
    assert gradient.noise > 3 * gradient.rel_l2
    assert verdicts(tmp_path, workload, "bf16_autocast")["bf16_autocast"].status is Status.OK


@pytest.mark.parametrize(
    "optimizer",
    [lambda weights: torch.optim.SGD(weights, lr=0.5), lambda weights: Lion(weights, lr=3e-3)],
    ids=["sgdbig", "lion"],
)
def test_updates_need_room_for_their_schedule_alone(optimizer: Optimizer, tmp_path: Path) -> None:
    def cosine(made: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.CosineAnnealingLR(made, steps)

    constant = verdicts(tmp_path / "constant", regression(optimizer=optimizer), "bf16_pure")["bf16_pure"]
    assert constant.status is Status.OK
    falling = regression(optimizer=optimizer, schedule=cosine)
    refused = verdicts(tmp_path / "falling", falling, "bf16_pure")["bf16_pure"]
    assert (refused.status, refused.code) == (Status.REFUSED, Refusal.NO_ROOM)
    # of a cosine the smallest rates with 2% of the sum are below an eighth
    assert measured(falling, "bf16_autocast").recipe.least_rate == pytest.approx(0.128, abs=0.002)


class Ratings(torch.nn.Module):
    """Ratings of users and items by products of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = torch.nn.Embedding(200, 16), torch.nn.Embedding(100, 16)
        for table in (self.users, self.items):
            torch.nn.init.normal_(table.weight, std=0.1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        return (self.users(user) * self.items(item)).sum(-1)


@pytest.mark.parametrize("late", [False, True])
def test_a_constant_rate_needs_no_room_for_updates_of_a_thirty_second(late: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = torch.randint(200, (512,)), torch.randint(100, (512,))
    tastes, traits = torch.randn(200, 4), torch.randn(100, 4)
    ratings = (tastes[inputs[0]] * traits[inputs[1]]).sum(-1) / 2
    steps = partial(torch.optim.Adam, lr=1e-2)
    workload = regression(module=Ratings(), inputs=inputs, targets=ratings, optimizer=steps)
    update = measured(workload, "bf16_pure").update
    assert below(update.energies, 1 / 32) > 0.5
    assert update.swallowed_energy < MOST_SWALLOWED
    judged = verdicts(tmp_path, workload, "bf16_pure", late=late)["bf16_pure"]
    assert (judged.status, bool(judged.steps)) == (Status.OK, late)


def test_a_language_models_log_probabilities_refuse_in_nats(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(50, (32, 12))
    layers = torch.nn.Embedding(50, 32), torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 50)
    model = torch.nn.Sequential(*layers)
    workload = Workload(module=model, inputs=tokens, targets=tokens.roll(-1, 1), loss=across_tokens)
    found = verdicts(tmp_path / "small", workload, "bf16_autocast", phase="inference")["bf16_autocast"]
    assert found.status is Status.OK
    with torch.no_grad():
        model[3].weight.mul_(60)  # logits of 20 in bf16 are exact to 0.06
    predictions = measured(workload, "bf16_autocast", "inference").output.predictions
    assert predictions.gap_p99 > 0.2
    found = verdicts(tmp_path / "large", workload, "bf16_autocast", phase="inference")["bf16_autocast"]
    assert found.status is Status.REFUSED
    in_nats = Refusal.PROBABILITIES, Refusal.WORST_PROBABILITIES
    assert found.code in (*in_nats, Refusal.LOG_PROBABILITIES, Refusal.WORST_LOG_PROBABILITIES)


def across_tokens(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


HALVES = ("bf16_autocast", "fp16_autocast", "bf16_master", "fp16_master")


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def classifier(loss: Any, targets: torch.Tensor | None = None, **changes: Any) -> Workload:
    classes = torch.arange(32) % 4 if targets is None else targets
    return replace(by_sgd(network()), targets=classes, loss=loss, **changes)


def alone(workload: Workload, precision: str) -> LossAlone:
    """Return the loss of a workload apart from its network, in a precision."""
    dtype = SHORT_DTYPES[PRECISIONS[precision].storage]
    case = make_case(precision, phase="training", input_dtype=dtype, batch_size=None)
    lone = measure_divergence(workload, case, Cpu(), References()).loss_alone
    assert lone is not None
    return lone


def log_of_softmax(logits: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return -(logits.softmax(-1) + 1e-8).log()[torch.arange(len(classes)), classes].mean()


def clamped(logits: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    truth = F.one_hot(classes, 4).to(logits.dtype)
    p = logits.sigmoid().clamp(1e-7, 1 - 1e-7)
    return -(truth * p.log() + (1 - truth) * (1 - p).log()).mean()


def both_clamped(logits: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return -logits.softmax(-1).clamp(1e-8, 1 - 1e-8).log()[torch.arange(len(classes)), classes].mean()


@pytest.mark.parametrize(
    ("loss", "precision", "constant"),
    [
        (log_of_softmax, "fp16_autocast", (1e-8, "0", "fp16", "add")),
        (log_of_softmax, "fp16_master", (1e-8, "0", "fp16", "add")),
        (both_clamped, "fp16_autocast", (1e-8, "0", "fp16", "clamp")),
        (clamped, "bf16_autocast", (1 - 1e-7, "1", "bf16", "clamp")),
        (clamped, "bf16_master", (1 - 1e-7, "1", "bf16", "clamp")),
    ],
)
def test_a_loss_whose_guard_low_precision_removes_is_refused(
    tmp_path: Path, loss: Any, precision: str, constant: tuple[float, str, str, str]
) -> None:
    lone = alone(classifier(loss), precision)
    assert (lone.constant, lone.rounded, lone.dtype, lone.op) == constant
    assert lone.guards
    other = precision.replace("bf16", "x").replace("fp16", "bf16").replace("x", "fp16")
    judged = verdicts(tmp_path, classifier(loss), precision, other)
    assert (judged[precision].status, judged[precision].code) == (Status.REFUSED, Refusal.LOSS_BREAKS)
    if loss is not clamped:
        assert judged[other].code is not Refusal.LOSS_BREAKS


LOSSES = {
    "cross_entropy": (F.cross_entropy, None),
    "log_softmax": (lambda x, t: F.nll_loss(x.log_softmax(-1), t), None),
    "with_logits": (F.binary_cross_entropy_with_logits, torch.rand(32, 4).round()),
    "mse": (F.mse_loss, 30 * torch.randn(32, 4)),
    "mse_of_ones": (F.mse_loss, torch.ones(32, 4)),
    "smooth_l1": (F.smooth_l1_loss, torch.randn(32, 4)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_usual_losses_are_not_refused(name: str) -> None:
    loss, targets = LOSSES[name]
    for precision in HALVES:
        lone = alone(classifier(loss, targets), precision)
        assert (lone.unmeasured, lone.guards, lone.nonfinite_at) == ("", False, "")
        assert lone.grad_rel_l2 is not None
        assert lone.grad_rel_l2 < MOST_OF_LOSS / 5


@pytest.mark.parametrize("name", ["mlp", "simple_conv", "transformer_encoder"])
def test_losses_of_built_in_workloads_are_not_refused(name: str) -> None:
    workload = build(name)
    for precision in ("bf16_autocast", "fp16_master"):
        dtype = SHORT_DTYPES[PRECISIONS[precision].storage]
        case = make_case(precision, phase="training", input_dtype=dtype, batch_size=None)
        lone = run_step(workload, case, Cpu(), keep=Cpu()).loss_alone
        assert lone is not None
        assert (lone.unmeasured, lone.guards, lone.nonfinite_at) == ("", False, "")
        assert lone.grad_rel_l2 < MOST_OF_LOSS / 5


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (lambda out: out["loss"], LossUnmeasured.NO_GRADIENT),
        (lambda out: (out["logits"] * torch.rand_like(out["logits"])).sum(), LossUnmeasured.RANDOM),
    ],
)
def test_a_loss_that_cannot_be_measured_alone_leaves_the_case_decided(tmp_path: Path, loss: Any, why: str) -> None:
    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.inner(x)
            return {"logits": logits, "loss": logits.float().square().mean()}

    workload = replace(by_sgd(WithLoss()), targets=None, loss=loss)
    assert alone(workload, "bf16_autocast") == LossAlone(unmeasured=why)
    if why is LossUnmeasured.NO_GRADIENT:
        assert verdicts(tmp_path, workload, "bf16_autocast")["bf16_autocast"].status is Status.OK


def test_targets_that_an_output_in_fp16_cannot_be_are_refused(tmp_path: Path) -> None:
    workload = by_sgd(torch.nn.Linear(16, 4), targets=1e5)
    found = verdicts(tmp_path, workload, "fp16_autocast", "bf16_autocast")
    refused, largest = found["fp16_autocast"], float(workload.targets.abs().max())
    assert (refused.status, refused.code, refused.limit) == (Status.REFUSED, Refusal.TARGET_RANGE, 1.0)
    assert refused.number == pytest.approx(largest / 65504)
    assert found["bf16_autocast"].status is Status.OK


@pytest.mark.parametrize("momentum", [0.1, 0.01])
def test_running_statistics_that_stall_are_refused_where_they_are_stored_in_bf16(
    momentum: float, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32, momentum=momentum), torch.nn.Linear(32, 4)
    found = verdicts(tmp_path, by_sgd(torch.nn.Sequential(*layers)), *HALVES, "bf16_pure")
    assert {found[name].status for name in HALVES if name != "bf16_master"} == {Status.OK}
    stalls = found["bf16_master"]
    if momentum == 0.1:
        assert stalls.status is Status.OK
    else:
        assert (stalls.status, stalls.code, stalls.limit) == (Status.REFUSED, Refusal.STATISTICS, 0.1)
        assert stalls.number == 2**-9 / 0.01
        assert found["bf16_pure"].status is Status.REFUSED

"""What one norm hides: errors by output and sample, probabilities, and decisions of further batches."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from scipy.special import log_softmax, softmax
from scipy.stats import beta, entropy

from ampbench.errors import WorkloadError
from ampbench.records.measured import OutputError
from ampbench.worker import outputs
from ampbench.worker.data import in_batches
from ampbench.worker.distances import Decisions
from ampbench.worker.outputs import Compared, batch_length, needed, sample_errors, state
from ampbench.worker.sources import further_inputs
from ampbench.workload import Workload
from ampbench.workloads import index
from tests.worker.conftest import diverge, make_case

RANDOM = np.random.default_rng(0)


def errors_of(
    value: np.ndarray, reference: np.ndarray, made: Decisions | None = None, samples: int | None = None
) -> tuple[OutputError, Compared]:
    """The error of a lone output."""
    compared = Compared([""], [torch.from_numpy(reference)], [made] if made else [], samples)
    values = [torch.from_numpy(value)]
    _, each = compared.distances(values)
    (found,) = compared.errors(values, each, torch.bfloat16)
    return found, compared


class TwoHeads(torch.nn.Module):
    """Boxes in pixels, in fp32 whatever the precision, beside scores of classes that lie close together."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes, self.scores = torch.nn.Linear(16, 4), torch.nn.Linear(16, 8)
        with torch.no_grad():
            self.boxes.bias.fill_(5000.0)
            self.scores.weight.mul_(1e-3)
            self.scores.bias.fill_(40.0)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.autocast(x.device.type, enabled=False):
            boxes = self.boxes(x.to(self.boxes.weight.dtype))
        return {"boxes": boxes, "scores": self.scores(x)}


@pytest.fixture
def two_heads() -> Workload:
    torch.manual_seed(0)
    return Workload(module=TwoHeads(), inputs=torch.randn(32, 16))


def test_a_large_exact_output_hides_no_ruined_one(two_heads: Workload) -> None:
    found = diverge(two_heads, make_case("bf16_autocast"))
    boxes, scores = found.output.tensors or []
    assert (boxes.name, scores.name) == ("boxes", "scores")
    assert found.output.rel_l2 < 2e-2  # what all of them poured together say
    assert boxes.rel_l2 < 1e-3
    module, x = two_heads.module, two_heads.inputs
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        low = module(x)["scores"].double().numpy()
    weight, bias = (one.detach().double().numpy() for one in (module.scores.weight, module.scores.bias))
    exact = x.double().numpy() @ weight.T + bias
    assert scores.rel_l2 == pytest.approx(np.linalg.norm(low - exact) / np.linalg.norm(exact), rel=1e-9)
    assert found.output.worst == scores
    assert scores.centred is False


def test_the_shift_of_logits_that_hides_their_differences_is_taken_off(two_heads: Workload) -> None:
    workload = Workload(module=two_heads.module, inputs=two_heads.inputs, classes_dim={"scores": -1})
    found = diverge(workload, make_case("bf16_autocast"))
    scores = (found.output.tensors or [])[1]
    assert scores.centred
    assert scores.rel_l2 > 0.5  # of what tells the classes apart half and more is lost
    assert found.output.argmax_agreeing < found.output.argmax_decisions == 32
    assert found.output.predictions.outputs == ["scores"]


def test_outputs_are_chosen_by_name_and_by_function(two_heads: Workload) -> None:
    module, inputs = two_heads.module, two_heads.inputs
    named = diverge(Workload(module=module, inputs=inputs, outputs="boxes"), make_case("bf16_autocast"))
    assert [one.name for one in named.output.tensors or []] == ["boxes"]
    assert named.reference.output_shapes == [[32, 4]]
    taken = Workload(module=module, inputs=inputs, outputs=lambda output: output["scores"] - 40)
    (only,) = diverge(taken, make_case("bf16_autocast")).output.tensors or []
    assert only.name == ""
    assert only.rel_l2 > 0.3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"outputs": ["boxes", "scres"]}, "outputs names 'scres', and the network returns boxes, scores"),
        ({"outputs": lambda output: 3}, r"outputs\(output\) returned no floating tensor, but int"),
        ({"classes_dim": 2}, "classes_dim is 2, and boxes has 2 dimensions"),
        ({"classes_dim": {"scres": 1}}, "classes_dim names 'scres', and the outputs compared are boxes, scores"),
    ],
)
def test_an_output_that_is_not_there_is_one_clear_line(
    two_heads: Workload, settings: dict[str, Any], said: str
) -> None:
    workload = Workload(module=two_heads.module, inputs=two_heads.inputs, **settings)
    with pytest.raises(WorkloadError, match=said):
        diverge(workload, make_case("bf16_autocast"))


def test_samples_have_the_errors_that_numpy_finds() -> None:
    reference = RANDOM.normal(size=(512, 3, 5)) * RANDOM.uniform(0.1, 10, size=(512, 1, 1))
    value = reference + 1e-3 * RANDOM.normal(size=reference.shape)
    value[7] = 1.45 * reference[7]
    found, _ = errors_of(value, reference, samples=512)
    flat = (value - reference).reshape(512, -1), reference.reshape(512, -1)
    errors = np.linalg.norm(flat[0], axis=1) / np.linalg.norm(flat[1], axis=1)
    assert found.sample_p99_rel_l2 == pytest.approx(np.quantile(errors, 0.99))
    assert found.sample_worst_rel_l2 == pytest.approx(0.45)
    assert found.rel_l2 == pytest.approx(np.linalg.norm(flat[0]) / np.linalg.norm(flat[1]))


@pytest.mark.parametrize(
    ("shape", "samples", "lost"),
    [((8, 4), None, 0.0), ((3, 8), 8, 0.0), ((), 8, 0.0), ((8,), 8, 0.0), ((8, 4), 8, 0.25)],
)
def test_samples_without_length_or_free_numbers_have_no_error(
    shape: tuple[int, ...], samples: int | None, lost: float
) -> None:
    reference = torch.ones(shape, dtype=torch.float64)
    assert sample_errors(reference * 1.1, reference, samples, lost) == (None, None)


@pytest.mark.parametrize("dimension", [1, 2])
def test_kl_is_that_of_scipy(dimension: int) -> None:
    reference = 3 * RANDOM.normal(size=(16, 7, 9))
    value = reference + 0.2 * RANDOM.normal(size=reference.shape)
    made = Decisions(0, torch.Size(reference.shape), dimension)
    found, compared = errors_of(value, reference, made, 16)
    predicted = compared.predictions([torch.from_numpy(value)])
    p, q = softmax(reference, dimension), softmax(value, dimension)
    kl = entropy(p, q, axis=dimension).ravel()
    assert predicted.rows == kl.size
    assert predicted.kl_mean == pytest.approx(kl.mean(), rel=1e-9)
    assert predicted.kl_p99 == pytest.approx(np.quantile(kl, 0.99), rel=1e-9)
    less = [one - one.mean(dimension, keepdims=True) for one in (value, reference)]
    assert found.centred
    assert found.rel_l2 == pytest.approx(np.linalg.norm(less[0] - less[1]) / np.linalg.norm(less[1]))
    errors = np.linalg.norm((less[0] - less[1]).reshape(16, -1), axis=1)
    errors /= np.linalg.norm(less[1].reshape(16, -1), axis=1)
    assert found.sample_p99_rel_l2 == pytest.approx(np.quantile(errors, 0.99))


def test_kl_of_nearly_equal_rows_is_no_rounding_error() -> None:
    reference = RANDOM.normal(size=(64, 10))
    value = reference + 1e-7 * RANDOM.normal(size=reference.shape)
    _, compared = errors_of(value, reference, Decisions(0, torch.Size((64, 10)), 1))
    p = softmax(reference, 1)
    shift = value - reference
    spread = (p * shift**2).sum(1) - (p * shift).sum(1) ** 2
    found = compared.predictions([torch.from_numpy(value)])
    assert found.kl_mean == pytest.approx(spread.mean() / 2, rel=1e-3)  # to second order half the variance


@pytest.mark.parametrize("made_of", [lambda rows: softmax(rows, 1), lambda rows: log_softmax(rows, 1)])
def test_probabilities_and_their_logarithms_are_taken_as_they_are(made_of: Callable[[Any], Any]) -> None:
    logits = RANDOM.normal(size=(32, 6)) * 2
    logits[0, 0] = 30
    changed = logits + 0.1 * RANDOM.normal(size=logits.shape)
    found, compared = errors_of(made_of(changed), made_of(logits), Decisions(0, torch.Size((32, 6)), 1), 32)
    kl = entropy(softmax(logits, 1), softmax(changed, 1), axis=1)
    assert compared.predictions([torch.from_numpy(made_of(changed))]).kl_mean == pytest.approx(kl.mean(), rel=1e-9)
    assert not found.centred


def test_a_probability_of_zero_for_what_has_one_leaves_no_divergence() -> None:
    reference = np.array([[0.9, 0.1 - 1e-9, 1e-9], [0.5, 0.25, 0.25]])
    value = np.array([[0.9, 0.1, 0.0], [0.5, 0.25, 0.25]])
    _, compared = errors_of(value, reference, Decisions(0, torch.Size((2, 3)), 1))
    found = compared.predictions([torch.from_numpy(value)])
    assert found.kl_mean is found.kl_p99 is None


def test_masked_logits_take_no_part() -> None:
    reference = RANDOM.normal(size=(8, 6))
    value = reference + 0.05
    value[:, 0] += 0.1
    reference[:, 4:] = value[:, 4:] = -math.inf
    found, compared = errors_of(value, reference, Decisions(0, torch.Size((8, 6)), 1), 8)
    less = [one[:, :4] - one[:, :4].mean(1, keepdims=True) for one in (value, reference)]
    assert found.rel_l2 == pytest.approx(np.linalg.norm(less[0] - less[1]) / np.linalg.norm(less[1]))
    kl = entropy(softmax(reference[:, :4], 1), softmax(value[:, :4], 1), axis=1)
    assert compared.predictions([torch.from_numpy(value)]).kl_mean == pytest.approx(kl.mean(), rel=1e-6)


@pytest.mark.parametrize(
    ("batch_size", "shape", "length"), [(8, (8, 3), 8), (8, (5, 8), 8), (8, (2, 3), 2), (None, (5, 8), 5)]
)
def test_the_batch_is_as_long_as_its_size_or_the_first_input(
    batch_size: int | None, shape: tuple[int, ...], length: int
) -> None:
    workload = Workload(module=torch.nn.Identity(), inputs={"scale": torch.tensor(1.0), "x": torch.ones(shape)})
    assert batch_length(workload, make_case(batch_size=batch_size)) == length


def test_gaps_are_of_the_log_probabilities_of_targets_that_are_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "ROWS_AT_ONCE", 3 * 40)
    value, exact = RANDOM.normal(0, 3, (8, 5, 40)), RANDOM.normal(0, 3, (8, 5, 40))
    targets = RANDOM.integers(0, 40, (8, 5))
    targets[:2] = -100
    gaps = [
        np.take_along_axis(log_softmax(side, -1), np.maximum(targets, 0)[..., None], -1)[2:] for side in (value, exact)
    ]
    expected = np.abs(gaps[0] - gaps[1]).ravel()
    made = Decisions(0, torch.Size((8, 5, 40)), 2)
    given = torch.zeros(8, 5), torch.arange(3), torch.from_numpy(targets)
    compared = Compared([""], [torch.from_numpy(exact)], [made], 8, targets=given)
    found = compared.predictions([torch.from_numpy(value)])
    assert found.gap_mean == pytest.approx(expected.mean(), rel=1e-12)
    assert found.gap_p99 == pytest.approx(np.quantile(expected, 0.99), rel=1e-12)
    compared = Compared([""], [torch.from_numpy(exact)], [made], 8)
    assert compared.predictions([torch.from_numpy(value)]).gap_mean is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_near_ties_are_flips_that_rounding_the_reference_to_the_dtype_may_make(dtype: torch.dtype) -> None:
    exact = torch.from_numpy(10 + RANDOM.normal(0, 0.05, (500, 6)))
    made = Decisions(0, exact.shape, 1)
    compared = Compared([""], [exact], [made], 500)
    rounded = exact.to(dtype).double()
    flips = int((rounded.argmax(1) != exact.argmax(1)).sum())
    assert compared.near_ties([rounded], dtype) == flips > 0
    assert compared.near_ties([-exact], dtype) < 500  # every decision flips, most at wide margins
    assert compared.near_ties([exact], dtype) == 0
    assert compared.near_ties([torch.full_like(exact, math.nan)], dtype) == 0


@pytest.fixture
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "LEAST_SECONDS", 60.0)


def network(classes: int = 5) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, classes))


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


@pytest.mark.usefixtures("time_enough")
@pytest.mark.parametrize("phase", ["inference", "training"])
def test_further_decisions_are_those_of_plain_torch(phase: str) -> None:
    module, batches = network(), list((3 * torch.randn(3 * 64, 16)).split(64))
    with torch.no_grad():
        module[2].weight.mul_(0.02)
        module[2].bias.fill_(4.0)  # classes so close that bf16 takes others for the largest
    targets = [torch.zeros(64, dtype=torch.int64)] * 3
    workload = Workload(
        module=module, inputs=batches, targets=targets, loss=torch.nn.functional.cross_entropy, classes_dim=1
    )
    found = diverge(workload, make_case("bf16_autocast", phase, batch_size=64))
    assert found.output.further is None  # the first batch refutes it
    module[2].weight.data.mul_(20)
    found = diverge(workload, make_case("bf16_autocast", phase, batch_size=64))
    assert found.output.further is not None
    assert found.output.decided is not None
    seen = 1 + found.output.further.decisions // 64
    assert found.output.decided == (bf16_agreement(copy.deepcopy(module), batches[:seen]), 64 * seen)


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


@pytest.mark.usefixtures("time_enough")
def test_after_its_time_no_further_batch_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(outputs, "SHARE", 0.0)
    workload = Workload(module=network(), inputs=list(torch.randn(400, 16).split(8)), classes_dim=1)
    found = diverge(workload, make_case("fp32"))
    assert found.output.further.decisions == 0  # they do not even begin
    monkeypatch.setattr(outputs, "FORWARD_SHARE", 0.0)
    found = diverge(workload, make_case("fp32"))
    assert found.output.further.decisions == 8


@pytest.mark.usefixtures("time_enough")
def test_a_further_batch_that_fails_fails_no_case() -> None:
    batches = [torch.randn(8, 16), torch.randn(8, 16), torch.randn(8, 17)]
    found = diverge(Workload(module=network(), inputs=batches, classes_dim=1), make_case("bf16_autocast"))
    (why,) = [note for note in found.notes if note.startswith("further batches failed: ")]
    assert "RuntimeError: " in why
    assert found.output.rel_l2 is not None


@pytest.mark.usefixtures("time_enough")
@pytest.mark.parametrize("cut", [{torch.bfloat16}, {torch.bfloat16, torch.float64}])
def test_a_further_batch_of_another_shape_ends_them(cut: set[torch.dtype]) -> None:
    class Shorter(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)[: 4 if x[0, 0] == 9 and x.dtype in cut else 8]

    batches = [torch.randn(8, 16) for _ in range(3)]
    batches[2][0, 0] = 9
    found = diverge(Workload(module=Shorter(16, 5), inputs=batches, classes_dim=1), make_case("bf16_pure"))
    assert found.output.further.decisions == 8
    assert not [note for note in found.notes if "failed" in note]

import dataclasses
import itertools
import math
import random
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
import pytest
import torch

from ampbench.core.statement import NoNoise
from ampbench.core.stats import Sketch, sketch_of
from ampbench.errors import WorkloadError
from ampbench.records.case import Case
from ampbench.records.measured import Divergence, OutputError
from ampbench.show.document import record_data
from ampbench.worker import outputs
from ampbench.worker.data import inputs_digest, weights_digest
from ampbench.worker.distances import (
    Decisions,
    argmax_agreement,
    class_dimension,
    compare,
    floating_in,
    named_outputs,
    worst_gradient,
)
from ampbench.worker.divergence import (
    NOT_DECIDED,
    Reference,
    References,
    is_chance,
    measure_divergence,
    trusted_reference,
)
from ampbench.worker.machine import Cpu
from ampbench.worker.network import recipe_of
from ampbench.worker.step import EQUAL_DRAWS
from ampbench.workload import Workload
from tests.stored_runs import change_divergence, make_divergence
from tests.worker.conftest import diverge, make_case, mean_square, numpy_bf16, numpy_fp16, numpy_fp32


def test_the_worst_gradient_is_named_and_negligible_ones_are_passed_over() -> None:
    reference = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([10.0]), "bias": torch.tensor([1e-12])}
    values = {"a": torch.tensor([1.0, 1.2]), "b": torch.tensor([11.0]), "bias": torch.tensor([1e-3])}
    distances = {name: compare([value], [reference[name]]) for name, value in values.items()}
    name, error = worst_gradient(distances)
    assert name == "a"
    assert error == pytest.approx(0.2 / math.sqrt(2))
    assert worst_gradient(distances, 0.5) == ("b", pytest.approx(0.1))
    assert worst_gradient({"a": compare([torch.tensor([1.0, math.inf])], [reference["a"]])}) == ("a", None)


def test_floating_tensors_are_found_in_any_nesting() -> None:
    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor
        extra: object

    tree = Output(
        torch.ones(1), {"a": (torch.ones(2), [torch.ones(3)]), "ids": torch.arange(4), "text": "no", "none": None}
    )
    assert [len(tensor) for tensor in floating_in(tree)] == [1, 2, 3]
    assert [name for name, _ in named_outputs(tree)] == ["logits", "extra.a[0]", "extra.a[1][0]"]


@pytest.mark.parametrize(("shape", "targets"), [((4, 3), (4,)), ((2, 3, 5), (2, 5)), ((2, 5, 3), (2, 5))])
def test_a_classifier_is_recognised_by_its_targets(shape: tuple[int, ...], targets: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    output = torch.randn(shape)
    dimension = class_dimension(output, torch.zeros(targets, dtype=torch.int64))
    agreeing, decisions = argmax_agreement([output], [output], [Decisions(0, output.shape, dimension)])
    assert agreeing == decisions == math.prod(targets)


def test_what_is_no_classifier_has_no_agreement() -> None:
    output = torch.randn(4, 3)
    assert class_dimension(output, torch.randn(4)) is None
    assert class_dimension(output, None) is None
    assert class_dimension(output, torch.zeros(7, dtype=torch.int64)) is None
    assert argmax_agreement([output], [output], []) == (None, None)
    assert class_dimension(output, torch.tensor([1, -1, -1, 1])) is None, "pairs that are alike or not"
    assert class_dimension(output, torch.tensor([1, -100, 0, 1])) == 1


class Gains(torch.nn.Module):
    """Two outputs, each the input times a gain for every number: products alone, of which NumPy knows every bit."""

    def __init__(self, low: np.ndarray, high: np.ndarray) -> None:
        super().__init__()
        self.low, self.high = (torch.nn.Parameter(torch.tensor(gain, dtype=torch.float32)) for gain in (low, high))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"low": x * self.low, "high": x * self.high}


def weighted(*weights: np.ndarray) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    """Return a loss whose gradients are the weights: the weighted sum of the outputs, in fp64."""

    def loss(outputs: dict[str, torch.Tensor]) -> torch.Tensor:
        pairs = zip(outputs.values(), map(torch.from_numpy, weights), strict=True)
        return torch.stack([(output.double() * weight).sum() for output, weight in pairs]).sum()

    return loss


def half_the_gradient(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def apart(values: np.ndarray, references: np.ndarray) -> float:
    return float(np.linalg.norm(values - references) / np.linalg.norm(references))


@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize(
    ("precision", "rounded"), [("fp32", numpy_fp32), ("fp16_pure", numpy_fp16), ("bf16_pure", numpy_bf16)]
)
def test_every_number_of_a_record_is_what_numpy_makes_of_the_step(
    precision: str, rounded: Callable[[np.ndarray], np.ndarray], phase: str
) -> None:
    draw = np.random.default_rng(0)
    x, low, high = (numpy_fp32(draw.uniform(0.5, 2, (8, 6))) for _ in range(3))
    weights = np.ones((8, 6)), draw.integers(1, 8, (8, 6)).astype(float)
    weights[1][0] = 2.0**-30  # zero in fp16
    workload = Workload(
        module=Gains(low, high),
        inputs=torch.tensor(x, dtype=torch.float32),
        loss=weighted(*weights),
        optimizer=half_the_gradient,
    )
    found = diverge(workload, make_case(precision, phase))

    def stepped(cast: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Outputs, gradients and updated weights, each of both gains."""
        gains, given = np.array([cast(low), cast(high)]), cast(x)
        gradients = cast(cast(np.array(weights)) * given)
        return cast(given * gains), gradients, cast(gains - 0.5 * gradients)

    truth, own, fp32 = stepped(lambda values: values), stepped(rounded), stepped(numpy_fp32)

    def output(place: int, name: str) -> OutputError:
        value, exact = own[0][place], truth[0][place]
        samples = [apart(*pair) for pair in zip(value, exact, strict=True)]
        return OutputError(
            name=name, elements=48, centred=False, rel_l2=apart(value, exact),
            floor_rel_l2=apart(rounded(exact), exact),
            over_spread=np.linalg.norm(value - exact) / np.linalg.norm(exact - exact.mean(0)),
            sample_p99_rel_l2=np.quantile(samples, 0.99), sample_worst_rel_l2=max(samples),
        )  # fmt: skip

    def sketch(names: str, tensors: np.ndarray) -> Sketch:
        return sketch_of((name, [tensor.ravel()]) for name, tensor in zip(names.split(), tensors, strict=True))

    expected = make_divergence(
        make_case(precision, phase), weights_digest=weights_digest(workload), inputs_digest=inputs_digest(workload),
        output_reference_norm=np.linalg.norm(truth[0]), output_elements=96, output_reference_nonfinite=0,
        output_reference_nan=0, output_rel_l2=apart(own[0], truth[0]),
        output_max_abs=np.abs(own[0] - truth[0]).max(),
        output_cosine=(own[0] * truth[0]).sum() / np.linalg.norm(own[0]) / np.linalg.norm(truth[0]), output_nan=0,
        output_unlike=0, output_fp32_nonfinite=0, output_floor_rel_l2=apart(rounded(truth[0]), truth[0]),
        output_fp32_rel_l2=apart(fp32[0], truth[0]), outputs=[output(0, "low"), output(1, "high")],
        fp32_products={} if precision == "fp32" else None, input_largest=x.max(), output_shapes=[[8, 6], [8, 6]],
        output_sketch=sketch("0 1", truth[0]).text,
    )  # fmt: skip
    if phase == "training":
        errors = {name: apart(*pair) for name, *pair in zip(("low", "high"), own[1], truth[1], strict=True)}
        worst = max(errors, key=lambda name: errors[name])
        trained = {
            "loss": (own[0] * weights).sum(),
            "reference_loss": (truth[0] * weights).sum(),
            "grad_rel_l2": apart(own[1], truth[1]),
            "grad_worst_parameter": worst,
            "grad_flushed": 6 if precision == "fp16_pure" else 0,
            "grad_elements": 96,
            "grad_nonfinite": 0,
            "grad_nan": 0,
            "grad_reference_nonfinite": 0,
            "grad_reference_nan": 0,
            "grad_tensor_parameter": worst,
            "grad_tensor_rel_l2": errors[worst],
            "grad_no_noise": NoNoise.NOT_HALVED,  # the loss weighs every sample of the whole batch
            "param_rel_l2": apart(own[2], truth[2]),
            "param_nonfinite": 0,
            "grad_reference_norm": np.linalg.norm(truth[1]),
            "grad_sketch": sketch("low high", truth[1]).text,
        }
        expected = change_divergence(
            expected, **trained, update=found.update, recipe=found.recipe, loss_alone=found.loss_alone
        )
        assert found.recipe == recipe_of(half_the_gradient(workload.module.parameters()), workload.module)
        assert (found.update.rel_l2 < 1e-6) == (precision == "fp32")

    def near(value: object) -> object:
        if isinstance(value, dict):
            return {name: near(each) for name, each in value.items()}
        if isinstance(value, list):
            return [near(each) for each in value]
        return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value

    assert record_data(found) == near(msgspec.to_builtins(expected, enc_hook=float))


def test_the_largest_values_of_all_batches_are_told() -> None:
    """Of inputs but masks, and of targets that an output in half is to reach."""
    mask = torch.tensor([[0.0, -1e9]])
    inputs = [{"x": torch.tensor([[1.0, size]]), "mask": mask, "ids": torch.tensor([2**40])} for size in (-3.0, 7e4)]
    targets = [{"y": torch.tensor([[1.0, size, math.inf]]), "time": torch.tensor(1e9)} for size in (2.0, -1e5)]

    class Masked(torch.nn.Linear):
        def forward(self, x: torch.Tensor, mask: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(x + mask.clamp_min(-1))

    def loss(output: torch.Tensor, targets: dict[str, torch.Tensor]) -> torch.Tensor:
        return (output - targets["y"].clamp(-1, 1)).square().mean()

    workload = Workload(module=Masked(2, 3), inputs=inputs, targets=targets, loss=loss)
    found = diverge(workload, make_case("fp16_autocast", "training"))
    assert (found.input_largest, found.target_largest) == (7e4, 1e5)
    found = diverge(workload, make_case("fp32", "training"))
    assert (found.input_largest, found.target_largest) == (7e4, None)


@pytest.mark.parametrize(
    ("precision", "stall"), [("bf16_pure", 2**-9), ("fp16_master", 2**-12), ("bf16_autocast", 2**-25)]
)
def test_running_statistics_stall_in_the_dtype_that_they_are_stored_in(
    precision: str, stall: float, classifier: Workload
) -> None:
    classifier.module[1].momentum = 0.01
    classifier.module.append(torch.nn.BatchNorm1d(4, momentum=0.1))
    classifier.module.append(torch.nn.BatchNorm1d(4, momentum=None))
    found = diverge(classifier, make_case(precision, "training"))
    assert found.statistics_stall == stall / 0.01
    assert diverge(classifier, make_case(precision)).statistics_stall is None


def test_numbers_that_are_not_finite_are_counted_by_where_they_arise() -> None:
    """In fp16 1e5 is infinite and 1e-10 is zero; in fp32 1e20 squared is infinite."""
    x = torch.tensor([[1.0, 0.0, 1.0, 1e-10, 1.0, 1.0, 0.0, 1e20]])
    low = np.array([[1e5, 1e5, math.inf, math.inf, math.nan, 1, 1, 1]])
    high = np.array([[1, 1, 1, 1, 1, 1, 1, 1e20]])
    weights = np.array([[1e5, 1, 1, 1, 1, 1, 1e5, math.inf]])
    workload = Workload(module=Gains(low, high), inputs=x, loss=weighted(np.ones((1, 8)), weights))
    found = diverge(workload, make_case("fp16_pure", "training"))
    assert (found.output.nonfinite, found.output.nan, found.output.fp32_nonfinite) == (4, 1, 1)
    assert (found.output.reference_nonfinite, found.output.reference_nan, found.output.unlike) == (3, 1, 1)
    assert found.output.undefined == "1 of 16 output elements is NaN in fp64 already"
    assert (found.gradient.nonfinite, found.gradient.nan) == (3, 1)
    assert (found.gradient.reference_nonfinite, found.gradient.reference_nan) == (1, 0)
    assert found.gradient.undefined == "3 of 16 gradient elements are not finite, and not in fp64"
    assert found.gradient.undefined in found.notes
    assert (found.gradient.rel_l2, found.gradient.worst_parameter) == (None, "low")
    assert found.param_nonfinite == 5  # two that fp16 cannot store, three whose gradient it cannot
    assert (found.loss, found.reference.loss) == (None, None)
    assert "the loss is not finite" in found.notes


class Shifted(torch.nn.Linear):
    """A linear layer with a shift that all samples share, which drifts by a tenth with every pass.

    It adds another weight to batches below `least`.
    """

    def __init__(self, least: int = 0) -> None:
        torch.manual_seed(0)
        super().__init__(6, 2)
        self.spare, self.least = torch.nn.Parameter(torch.ones(2)), least
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        y = super().forward(x + shift) * (0.9 + 0.1 * self.passes)
        return y + self.spare if len(x) < self.least else y


@pytest.mark.parametrize("rows", [2, 5, 8])
def test_the_noise_of_a_batch_is_that_of_its_halves_or_of_a_second_batch(rows: int) -> None:
    x, shift, y = torch.randn(2, rows, 6), torch.randn(6), torch.randn(2, rows, 2)
    module, batches = Shifted(), [(each, shift) for each in x]
    loss = lambda *given: torch.nn.functional.mse_loss(*given) / 2**10  # noqa: E731 - no squared norm is above one
    weight, bias, inputs, targets = (
        each.detach().double().numpy() for each in (module.weight, module.bias, x + shift, y)
    )
    error = inputs @ weight.T + bias - targets  # the gradient of a sample: its loss is the mean square of two numbers
    samples = {"weight": error[..., None] * inputs[..., None, :], "bias": error}
    share = (rows + 1) // 2 / rows

    def squares(of: Callable[[np.ndarray], np.ndarray]) -> dict[str, float]:
        return {name: float((of(each) ** 2).sum()) for name, each in samples.items()}

    halves = squares(lambda each: math.sqrt(share * (1 - share)) * (each[0, ::2].mean(0) - each[0, 1::2].mean(0)))
    two = squares(lambda each: (each[0] - each[1]).mean(0) / math.sqrt(2))
    one, both = squares(lambda each: each[0].mean(0)), squares(lambda each: each.mean(1) / math.sqrt(2))
    case = make_case("bf16_pure", "training", batch_size=rows)
    for given, wanted, noise, size in ((batches[0], y[0], halves, one), (batches, list(y), two, both)):
        found = diverge(Workload(module=module, inputs=given, targets=wanted, loss=loss), case).gradient
        assert found.noise == pytest.approx(math.sqrt(sum(noise.values()) / sum(size.values())), rel=1e-6)
        name = found.tensor_parameter
        assert found.tensor_noise == pytest.approx(math.sqrt(noise[name] / size[name]), rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "module", "loss", "code"),
    [
        (1, Shifted(), mean_square, NoNoise.NOT_HALVED),
        (8, Shifted(), lambda output: (output - torch.ones(8, 2)).square().mean(), NoNoise.NOT_HALVED),
        (8, Shifted(least=8), mean_square, NoNoise.OTHER_GRADIENTS),
        (8, Shifted(), lambda output: output.sum(), NoNoise.NO_MEAN),
        (8, Shifted(), lambda output: (output - output.detach()).square().mean(), NoNoise.NOT_FINITE),
    ],
)
def test_a_batch_whose_halves_do_not_tell_its_noise_has_the_reason(
    rows: int, module: torch.nn.Module, loss: Callable[[torch.Tensor], torch.Tensor], code: NoNoise
) -> None:
    inputs = torch.ones(rows, 6), torch.ones(6)
    workload = Workload(module=module, inputs=inputs, loss=loss, optimizer=half_the_gradient)
    found = diverge(workload, make_case("fp32", "training", batch_size=rows))
    assert (found.gradient.noise, found.gradient.tensor_noise, found.gradient.no_noise) == (None, None, code)


def test_a_gradient_of_zeros_has_no_error_and_no_worst_parameter() -> None:
    found = diverged(make_case("bf16_pure", "training"), lambda y: y, loss=lambda output: 0 * output.sum())
    assert found.gradient.undefined == "the reference gradient is zero"
    assert found.notes.count(found.gradient.undefined) == 1
    assert found.gradient.worst_parameter is None
    assert found.gradient.tensor_parameter is found.gradient.tensor_rel_l2 is None
    assert (found.gradient.flushed, found.reference.grad_norm) == (0, 0.0)


def test_a_gradient_that_is_zero_in_the_reference_is_not_flushed() -> None:
    workload = Workload(
        module=torch.nn.Linear(8, 8), inputs=torch.randn(4, 8), loss=lambda output: output[:, :4].square().sum()
    )
    found = diverge(workload, make_case("bf16_pure", "training"))
    assert (found.gradient.flushed, found.gradient.elements) == (0, 72)


def test_dropout_is_switched_off_and_said_so() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5))
    workload = Workload(module=module, inputs=torch.randn(8, 64), loss=lambda output: output.square().mean())
    found = diverge(workload, make_case("bf16_autocast", "training"))
    assert found.output.rel_l2 < 1e-2
    assert any("dropout" in note for note in found.notes)


def test_a_forward_without_a_floating_output_is_refused() -> None:
    class Ids(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.argmax(1)

    with pytest.raises(TypeError, match="no floating tensor"):
        diverge(Workload(module=Ids(), inputs=torch.randn(2, 4)), make_case())


class Made(torch.nn.Module):
    """A Linear whose output `make` turns into what is returned."""

    def __init__(self, make: Callable[[torch.Tensor], object]):
        super().__init__()
        self.lin, self.make = torch.nn.Linear(16, 4), make

    def forward(self, x: torch.Tensor) -> object:
        return self.make(self.lin(x))


def diverged(
    case: Case, make: Callable[[torch.Tensor], object], references: References | None = None, **fields: object
) -> Divergence:
    torch.manual_seed(0)
    workload = Workload(module=Made(make), inputs=torch.randn(8, 16), **fields)
    return diverge(workload, case, references)


def test_infinities_that_are_meant_leave_the_error_of_the_others() -> None:
    found = diverged(make_case("bf16_pure"), lambda y: y.masked_fill(torch.arange(4) == 0, -math.inf))
    assert 0 < found.output.rel_l2 < 1e-2
    assert (found.output.reference_nonfinite, found.output.reference_nan, found.output.nonfinite) == (8, 0, 0)
    assert "8 of 32 output elements are infinite, as in fp64: the error leaves them out" in found.notes
    other = compare([torch.tensor([1.0, math.inf])], [torch.tensor([1.0, -math.inf])])
    assert (other.unlike, other.rel_l2) == (1, None)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda y: 0 * y, "the reference output is zero"),
        (lambda y: y[:0], "the output is empty"),
        (lambda y: 0 * y + math.inf, "all 32 output elements are infinite, in fp64, too"),
    ],
)
def test_only_a_reference_of_zeros_is_called_zero(make: Callable[..., object], said: str) -> None:
    assert diverged(make_case("bf16_pure"), make).output.undefined == said


def test_complex_outputs_are_compared_as_their_parts() -> None:
    def spectrum(y: torch.Tensor) -> torch.Tensor:
        wide = y.to(torch.promote_types(y.dtype, torch.float32))
        return torch.view_as_complex(wide.view(8, 2, 2))

    parts, whole = diverged(make_case("bf16_pure"), lambda y: y), diverged(make_case("bf16_pure"), spectrum)
    assert whole.output.rel_l2 == parts.output.rel_l2 > 1e-3
    assert whole.output.floor_rel_l2 == parts.output.floor_rel_l2
    assert whole.output.elements == 32
    both = diverged(make_case("bf16_pure"), lambda y: {"scale": y.new_ones(()), "spectrum": torch.conj(spectrum(y))})
    assert both.output.rel_l2 > 1e-3


@pytest.mark.parametrize("largest", [1.7e308, 1e154])
def test_a_norm_above_the_range_of_fp64_is_unknown_and_so_is_the_error(largest: float) -> None:
    tensors = [torch.full((4,), largest, dtype=torch.float64)] * 8
    found = compare([-tensor for tensor in tensors], tensors)
    assert found.reference_norm is found.rel_l2 is found.cosine is None
    assert compare([torch.zeros(4)], [torch.ones(4)]).cosine is None


def mixed(y: torch.Tensor) -> torch.Tensor:
    """What fp64 alone cannot run: a constant in fp32 beside the activations."""
    return (y if y.dtype == torch.float64 else y.float()) @ torch.ones(4, 4)


def test_where_fp64_fails_fp32_is_the_reference_and_the_line_of_the_users_file_is_named() -> None:
    references = References()
    low = diverged(make_case("bf16_autocast"), mixed, references)
    exact = diverged(make_case("fp32"), mixed)
    assert 1e-4 < low.output.rel_l2 < 1e-1
    assert (low.reference.dtype, low.reference.device, low.output.fp32_rel_l2) == ("fp32", "cpu", None)
    assert re.search(r"same dtype, .* \(test_divergence.py, line \d+\)$", low.reference.error)
    assert exact.output.rel_l2 is exact.output.max_abs is exact.output.argmax_agreeing is None
    assert (exact.output.undefined, exact.output.elements) == ("it is the reference: fp64 failed", 32)
    assert exact.notes.count(exact.output.undefined) == 1
    assert exact.output.cosine is None
    assert low.output.tensors is not None
    assert exact.output.tensors is exact.output.predictions is exact.output.argmax_decisions is None
    assert exact.reference.grad_norm is low.reference.grad_norm is None, "no gradient is taken in inference"


def test_a_reference_has_no_error_of_its_loss_and_of_its_gradients() -> None:
    exact = diverged(make_case("fp32", "training"), mixed, loss=lambda output: output.square().mean())
    low = diverged(make_case("bf16_autocast", "training"), mixed, loss=lambda output: output.square().mean())
    assert low.reference.loss == pytest.approx(exact.loss, rel=1e-6)
    assert exact.reference.loss is exact.gradient.rel_l2 is exact.gradient.flushed is exact.param_rel_l2 is None
    assert exact.notes.count(exact.gradient.undefined) == 1
    assert low.gradient.rel_l2 > 0
    assert low.param_rel_l2 > 0
    assert low.gradient.tensor_parameter in ("lin.weight", "lin.bias")
    assert low.gradient.tensor_rel_l2 > 0
    assert low.weights_digest == exact.weights_digest
    assert low.weights_digest
    assert not [note for note in low.notes if "loss" in note]


def test_the_steps_that_a_group_shares_are_taken_once() -> None:
    taken: list[torch.dtype] = []
    references, workload = References(), Workload(module=torch.nn.Linear(16, 4), inputs=torch.randn(8, 16))
    workload.module.register_forward_hook(lambda module, given, output: taken.append(output.dtype))

    def steps(workload: Workload, precision: str) -> list[torch.dtype]:
        taken.clear()
        diverge(workload, make_case(precision), references)
        return list(taken)

    reference = [torch.float64, torch.float32, torch.float64]  # the last tells what is chance
    assert steps(workload, "bf16_pure") == [*reference, torch.bfloat16]
    assert steps(workload, "fp32") == []
    assert steps(workload, "fp16_pure") == [torch.float16]
    assert steps(dataclasses.replace(workload), "fp32") == reference  # another workload


def test_where_fp32_alone_fails_the_others_have_errors_and_its_own_is_unknown() -> None:
    def no_fp32(y: torch.Tensor) -> torch.Tensor:
        if y.dtype is torch.float32:
            raise RuntimeError("no kernel")
        return y

    found = diverged(make_case("bf16_pure", "training"), no_fp32, loss=lambda output: output.double().square().sum())
    assert (found.reference.dtype, found.reference.error) == ("fp64", "")
    assert 1e-4 < found.output.rel_l2 < 1e-1
    assert 1e-4 < found.gradient.rel_l2 < 1e-1
    assert found.output.fp32_rel_l2 is found.output.fp32_nonfinite is None
    with pytest.raises(RuntimeError, match="no kernel"):
        diverged(make_case("fp32"), no_fp32)


def test_where_fp32_fails_too_no_error_is_known_and_the_case_is_none_the_less_measured() -> None:
    def only_half(y: torch.Tensor) -> torch.Tensor:
        if y.dtype is not torch.bfloat16:
            raise RuntimeError(f"no kernel for {y.dtype}")
        return y

    found = diverged(make_case("bf16_pure"), only_half)
    assert (found.reference.dtype, found.output.rel_l2, found.reference.output_norm) == ("", None, None)
    assert "torch.float64" in found.reference.error
    assert "fp32 failed: RuntimeError: no kernel for torch.float32 (test_divergence.py" in found.reference.error
    assert found.output.undefined == f"there is no reference: fp64 failed: {found.reference.error}"
    assert found.output.undefined in found.notes
    assert found.gradient.undefined == ""
    trained = diverged(make_case("bf16_pure", "training"), only_half, loss=mean_square)
    assert trained.gradient.undefined == trained.output.undefined != ""
    with pytest.raises(RuntimeError, match="no kernel"):
        diverged(make_case("fp32"), only_half)


def test_outputs_whose_shapes_depend_on_the_data_have_no_error_and_do_not_fail() -> None:
    found = diverged(make_case("bf16_pure"), lambda y: y[: 3 if y.dtype == torch.float64 else 5])
    assert found.output.rel_l2 is None
    assert found.output.undefined == "the outputs' shapes differ from the reference's: [(5, 4)] against [(3, 4)]"
    assert f"{found.output.undefined}: no error is defined" in found.notes
    assert found.reference.output_norm > 0, "the reference is none the less known"


def test_gradients_that_only_one_side_has_leave_no_gradient_error() -> None:
    def detached(y: torch.Tensor) -> torch.Tensor:
        return y if y.dtype == torch.float64 else y.detach()

    found = diverged(make_case("bf16_pure", "training"), detached, loss=lambda o: o.sum().requires_grad_())
    assert (
        found.gradient.undefined == "a gradient that only one of this step and the reference has: lin.bias, lin.weight"
    )
    assert f"gradients: {found.gradient.undefined}" in found.notes


STATE = {"steps": 0}


class Noisy(torch.nn.Linear):
    """A linear layer with noise, drawn as `how` says."""

    def __init__(self, how: str) -> None:
        torch.manual_seed(0)
        super().__init__(16, 16)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        noises: dict[str, Callable[[], torch.Tensor]] = {
            "randn_like": lambda: torch.randn_like(y),
            "in fp64": lambda: torch.randn_like(y.double()).to(y.dtype),
            "rand": lambda: torch.rand(y.shape, dtype=y.dtype, device=y.device),
            "normal_": lambda: torch.empty_like(y).normal_(0, 0.5),
            "bernoulli": lambda: torch.bernoulli(torch.full_like(y, 0.5)),
            "multinomial": lambda: y * torch.multinomial(torch.ones(4, dtype=y.dtype), 1),
            "dropout": lambda: torch.nn.functional.dropout(y, 0.5),
            "numpy": lambda: y * np.random.rand(),
            "python": lambda: y * random.random(),
            "own generator": lambda: y * torch.from_numpy(np.random.default_rng().random(y.shape)).to(y),
            "state": lambda: y * STATE["steps"],
        }
        STATE["steps"] += 1
        return y + noises[self.how]()


def noisy(how: str) -> Workload:
    STATE["steps"] = 0
    return Workload(module=Noisy(how), inputs=torch.linspace(-1, 1, 64).reshape(4, 16), loss=mean_square)


def held_by(references: References, workload: Workload, case: Case) -> Reference:
    """Return the reference that the group of a case was held against, which is not made anew."""
    return references.of(workload, case, Cpu(), "divergence", pytest.fail).reference


DRAWN = ("randn_like", "in fp64", "rand", "normal_", "bernoulli", "multinomial", "dropout", "numpy", "python")


@pytest.mark.parametrize(("how", "phase"), [*((how, "training") for how in DRAWN), ("dropout", "inference")])
def test_all_precisions_see_the_same_random_numbers(how: str, phase: str) -> None:
    references, workload = References(), noisy(how)
    errors = [
        diverge(workload, make_case(precision, phase), references)
        for precision in ("fp32", "fp16_autocast", "bf16_pure")
    ]
    assert errors[0].output.rel_l2 < 1e-6
    assert all(1e-5 < found.output.rel_l2 < 2e-2 for found in errors[1:])
    assert all(found.gradient.rel_l2 is None or found.gradient.rel_l2 < 2e-2 for found in errors)
    assert [found.chance_rel_l2 for found in errors] == [None] * 3
    assert [found.notes.count(EQUAL_DRAWS) for found in errors] == [1] * 3
    chance = held_by(references, workload, make_case("fp32", phase)).chance
    assert chance > 0.01
    if how == "randn_like":
        one, other = (torch.randn(4, 16, generator=torch.Generator().manual_seed(seed)).double() for seed in (0, 1))
        weights = workload.module.state_dict().values()
        exact = torch.nn.functional.linear(*(each.double() for each in (workload.inputs, *weights)))
        assert chance == pytest.approx(float((other - one).norm() / (exact + one).norm()), rel=1e-12)


@pytest.mark.parametrize("how", ["own generator", "state"])
def test_errors_of_chance_are_told_from_those_of_rounding(how: str) -> None:
    references, workload = References(), noisy(how)
    for precision in ("fp32", "bf16_pure"):
        found = diverge(workload, make_case(precision), references)
        assert found.chance_rel_l2 == held_by(references, workload, make_case(precision)).chance > 0.01
    with pytest.raises(WorkloadError, match=r"its error means nothing: two fp64 steps already lie .* apart"):
        trusted_reference(workload, make_case("bf16_pure"), Cpu())


def test_chance_explains_an_error_from_a_thousandth_to_a_hundred_times_its_own_size() -> None:
    assert [is_chance(apart, 0.5) for apart in (0.499e-3, 0.5e-3, 0.5, 50.0, 50.1)] == [False, True, True, True, False]
    assert not any(is_chance(*pair) for pair in ((None, 0.5), (0.5, None), (0.0, 0.0)))


class TwoOutputs(torch.nn.Module):
    """An output that errs by rounding, and one that another draw makes."""

    def __init__(self) -> None:
        super().__init__()
        self.noisy, self.steady = Noisy("own generator"), torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"steady": self.steady(x), "noisy": self.noisy(x)}


def test_of_several_outputs_those_that_chance_makes_have_no_error_and_the_others_have() -> None:
    workload = Workload(module=TwoOutputs(), inputs=torch.linspace(-1, 1, 64).reshape(4, 16))
    references = References()
    steady, drawn = diverge(workload, make_case("bf16_pure"), references).output.tensors
    assert (steady.name, steady.undefined) == ("steady", "")
    assert 1e-9 < steady.rel_l2 < 1e-2
    apart = held_by(references, workload, make_case("bf16_pure")).chances[1]
    assert (drawn.rel_l2, drawn.undefined) == (None, f"chance alone makes it {apart:.1e}")


@pytest.mark.parametrize("path", ["eager", "traced"])
def test_noise_below_rounding_is_taken_for_it_only_where_fp32_did_not_see_the_same(path: str) -> None:
    torch.manual_seed(0)
    references, drawn = References(), make_case("bf16_pure", path=path)
    workload = Workload(module=Made(lambda y: y + 1e-4 * torch.randn_like(y)), inputs=torch.randn(8, 16))
    found = diverge(workload, drawn, references)
    chance = held_by(references, workload, drawn).chance
    assert 1e-5 < chance < found.output.floor_rel_l2
    assert found.output.fp32_rel_l2 < 1e-6
    own = path == "traced"  # draws of its own; those of eager fp32, which errs by less than chance, are the reference's
    assert (EQUAL_DRAWS in found.notes) != own
    assert found.chance_rel_l2 == (chance if own else None)
    assert found.output.tensors[0].undefined == (f"chance alone makes it {chance:.1e}" if own else "")


def test_outputs_whose_shapes_change_by_chance_have_the_error_of_those_that_agree() -> None:
    seen: list[torch.dtype] = []

    def shorter_the_second_time(y: torch.Tensor) -> torch.Tensor:
        seen.append(y.dtype)
        return y[: 3 if seen.count(torch.float64) == 2 and y.dtype is torch.float64 else 5]

    references, workload = References(), Workload(module=Made(shorter_the_second_time), inputs=torch.randn(8, 16))
    found = diverge(workload, make_case("bf16_pure"), references)
    assert held_by(references, workload, make_case("bf16_pure")).chance == 1.0
    assert found.output.tensors[0].rel_l2 == found.output.rel_l2 > 1e-4


class Elsewhere:
    """The CPU, as a device that ampbench does not know for it."""

    def __getattr__(self, name: str) -> object:
        return getattr(Cpu(), name)


@pytest.mark.parametrize(("how", "repeatable"), [("dropout", True), ("own generator", False)])
def test_a_step_elsewhere_than_on_the_cpu_is_repeatable_where_it_gives_the_same_bits_again(
    how: str, repeatable: bool
) -> None:
    found = diverge(noisy(how), make_case("bf16_pure"), device=Elsewhere())
    assert found.repeatable is repeatable


@pytest.mark.parametrize("what", ["gradients", "weights"])
def test_a_training_step_is_repeatable_where_its_gradients_and_weights_are_too(what: str) -> None:
    steps = itertools.count(1.0)

    def optimizer(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=next(steps) if what == "weights" else 0.0)

    def loss(output: torch.Tensor) -> torch.Tensor:
        return mean_square(output) * (next(steps) if what == "gradients" else 1.0)

    workload = Workload(module=torch.nn.Linear(16, 4), inputs=torch.randn(8, 16), loss=loss, optimizer=optimizer)
    assert diverge(workload, make_case("fp32", "training"), device=Elsewhere()).repeatable is False


def test_where_a_second_step_does_not_fit_it_is_unknown_whether_bits_are_repeated() -> None:
    def fails_the_second_time(error: Exception) -> Callable[[torch.Tensor], torch.Tensor]:
        seen: list[torch.dtype] = []

        def make(y: torch.Tensor) -> torch.Tensor:
            seen.append(y.dtype)
            if seen.count(torch.bfloat16) == 2:
                raise error
            return y

        return make

    def found(error: Exception) -> Divergence:
        workload = Workload(module=Made(fails_the_second_time(error)), inputs=torch.randn(8, 16))
        return diverge(workload, make_case("bf16_pure"), device=Elsewhere())

    assert found(torch.OutOfMemoryError("out of memory")).repeatable is None
    with pytest.raises(RuntimeError, match="no kernel"):
        found(RuntimeError("no kernel"))


def test_a_network_that_overflows_draws_what_the_others_draw_after_its_scale_has_settled() -> None:
    workload = dataclasses.replace(noisy("dropout"), loss=lambda output: output.float().square().sum() * 1e4)
    found = diverge(workload, make_case("fp16_autocast", "training"))
    assert found.scaler_scale < 2**16
    assert found.output.rel_l2 < 1e-2


TARGETS = torch.arange(8) % 4


@pytest.mark.parametrize(
    "loss",
    [
        lambda o: torch.nn.CrossEntropyLoss()(o.view(2, 4, 4).reshape(8, 4), TARGETS),
        lambda o: torch.nn.functional.nll_loss(target=TARGETS, input=o.log_softmax(-1)),
    ],
)
def test_decisions_are_those_that_the_loss_of_a_closure_makes(loss: Callable[..., object]) -> None:
    closure = diverged(make_case("bf16_pure"), lambda y: y, loss=loss)
    named = diverged(make_case("bf16_pure"), lambda y: y, loss=lambda o, t: o.sum(), targets=TARGETS)
    assert (closure.output.argmax_agreeing, closure.output.argmax_decisions) == (
        named.output.argmax_agreeing,
        named.output.argmax_decisions,
    )
    assert closure.output.argmax_decisions == 8


def test_decisions_that_no_output_makes_are_not_counted_and_the_notes_say_so() -> None:
    for precision in ("fp32", "bf16_pure"):
        found = diverged(
            make_case(precision, "training"),
            lambda y: y,
            loss=lambda o: torch.nn.functional.cross_entropy(torch.cat([o, -o], 1), TARGETS),
        )
        assert found.output.argmax_decisions is None
        assert found.notes.count(NOT_DECIDED) == 1
    other = diverged(make_case("fp32", "training"), lambda y: y, loss=mean_square)
    assert other.output.argmax_decisions is None
    assert not any("decisions" in note for note in other.notes)


def batches(count: int) -> Sequence[tuple[torch.Tensor, None]]:
    """So many further batches of a larger one, each with a tie of its two classes, but for what `Tilted` adds."""
    return [(torch.ones(8, 2), None)] * count


class Tilted(torch.nn.Module):
    """Two classes, of which the second has a little more than the first: what fp64 sees of a tie, and fp32 does not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([0.0, 1e-10], dtype=x.dtype)


def test_decisions_of_further_batches_are_held_against_fp64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "LEAST_SECONDS", 60.0)
    workload = Workload(module=Tilted(), inputs=torch.eye(2).repeat(4, 1), classes_dim=1)
    found = measure_divergence(workload, make_case("fp32"), Cpu(), References(), batches)
    assert (found.output.argmax_agreeing, found.output.argmax_decisions) == (8, 8)
    assert found.output.further.agreeing == 0 < found.output.further.decisions
    alone = diverge(workload, make_case("fp32"))
    assert alone.output.further.decisions == 0


@pytest.mark.parametrize(("size", "path"), [(512, "eager"), (8, "traced")])
def test_no_further_batch_follows_one_that_decides_or_a_step_that_is_not_eager(size: int, path: str) -> None:
    inputs = torch.eye(2).repeat(size // 2, 1)
    workload = Workload(module=Tilted(), inputs=inputs, classes_dim=1)
    found = measure_divergence(workload, make_case("fp32", path=path), Cpu(), References(), batches)
    assert (found.output.argmax_agreeing, found.output.argmax_decisions, found.output.further) == (size, size, None)

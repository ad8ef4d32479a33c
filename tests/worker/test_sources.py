"""Workloads as they are built and described, what they draw, how they are loaded, and cells that run them."""

import copy
import functools
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from torch import nn
from torch.nn import functional as F

from ampbench import cells
from ampbench.core.precisions import FP64
from ampbench.drive.planning import PlannedCase
from ampbench.errors import AmpbenchError, UsageError, WorkloadError
from ampbench.records.case import Case, ParameterValue, WorkloadSource
from ampbench.records.measured import Divergence
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import DIVERGENCE, MEMORY, ROUND, RoundAsked
from ampbench.studies.training_measure import one_rounding_away
from ampbench.worker import data, machine
from ampbench.worker.data import CHUNK_WORDS, SAME_INPUTS, Batch, FreshBatches, Generator, carried, weights_digest
from ampbench.worker.divergence import References, measure_divergence
from ampbench.worker.machine import Cpu, Products
from ampbench.worker.memory import measure_memory
from ampbench.worker.sources import build_workload, describe_workload, imported_elsewhere, loaded_dtypes
from ampbench.worker.step import TrainingStep, build_step
from ampbench.worker.worker import Timed, Worker, measure_round
from ampbench.workload import Workload
from tests.scripted_channel import got, make_request, user_source
from tests.worker.conftest import make_case
from tests.worker.test_worker import ask

GOOD = """
import torch
from ampbench import Workload

def pair(width=4, batch_size=2, name="x"):
    return torch.nn.Linear(width, width), torch.randn(batch_size, width)

def triple():
    return torch.nn.Linear(4, 4), torch.randn(3, 4), lambda output: output.sum()

def whole():
    return Workload(module=torch.nn.Conv2d(3, 4, 3), inputs=torch.randn(2, 3, 8, 8), items_per_step=7, version=3)
"""

WHOLE = """
import torch
from ampbench import Workload
def f(): return Workload(module=torch.nn.ReLU(), inputs=[torch.ones(2)], {})
"""


def source_of(folder: Path, text: str, function: str) -> WorkloadSource:
    return user_source(folder, text, function, f"net_{abs(hash(text))}.py")


def test_a_pair_a_triple_and_a_workload_are_accepted(tmp_path: Path) -> None:
    pair = describe_workload(source_of(tmp_path, GOOD, "pair"), {"width": 8}, 0)
    assert pair.parameters == {"width": 8, "batch_size": 2, "name": "x"}
    assert (pair.has_loss, pair.items_per_step, pair.channels_last) == (False, 2.0, False)
    assert describe_workload(source_of(tmp_path, GOOD, "triple"), {}, 0).has_loss
    whole = describe_workload(source_of(tmp_path, GOOD, "whole"), {}, 0)
    assert (whole.items_per_step, whole.version, whole.channels_last) == (7.0, 3, True)


RELU = "import torch\ndef f(): return torch.nn.ReLU(), "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", "cannot be imported: SyntaxError: .* line 1"),
        ("import nosuchpackage\n", "cannot be imported: ModuleNotFoundError: No module named 'nosuchpackage' .*line 1"),
        ("def fa(): ...\n", r"no function 'f'; did you mean fa\?"),
        ("f = 3\n", "f is int, not a function"),
        ("def f():\n    raise ValueError('no weights')\n", r"built: ValueError: no weights \(net_\S+, line 2\)"),
        ("def f(): return 42\n", r"returned int; expected \(module, inputs\)"),
        ("def f(): return (1, 2, 3, 4)\n", "returned tuple of 4"),
        ("def f(): return ('net', 2)\n", "the module is str; expected a torch.nn.Module"),
        (f"{RELU} 3\n", "an input is int; expected a tensor"),
        (f"{RELU} []\n", "list of batches is empty"),
        (f"{RELU} torch.ones(2), 3\n", "the loss is int"),
        ("import torch\ndef f(): return torch.nn.Linear(2, 2).double(), torch.ones(2)\n", "weight is torch.float64"),
        (f"{RELU} {{'x': torch.ones(2).double()}}\n", "input is torch.float64"),
        (WHOLE.format("version='1.2'"), "the version is '1.2'; expected a whole number"),
        (WHOLE.format("items_per_step=float('nan')"), "items_per_step is nan; expected a number above 0"),
        (WHOLE.format("optimizer=3"), "the optimizer is int; expected a function or None"),
        (WHOLE.format("outputs=[1]"), "outputs is list of 1; expected a function of the network's output, or names"),
        (WHOLE.format("cached=(1,)"), r"cached is \(1,\); expected some of its inputs \[0\], in a tuple"),
        (WHOLE.format("cached='keys'"), r"cached is 'keys'; expected some of its inputs \[0\], in a tuple"),
        (WHOLE.format("classes_dim=1.0"), "classes_dim is 1.0; expected a whole number, or one by output's name"),
        (WHOLE.format("classes_dim={0: 1}"), r"classes_dim is \{0: 1\}; expected a whole number"),
        (WHOLE.format("targets=torch.ones(2)"), "targets must be a list too"),
        (WHOLE.format("targets=[1, 2]"), "1 batches of inputs but 2 of targets"),
        ("import torch\ndef f(width): return torch.nn.ReLU(), torch.ones(2)\n", "'width' needs a default"),
    ],
)
def test_a_broken_contract_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message) as caught:
        describe_workload(source_of(tmp_path, text, "f"), {}, 0)
    assert "\n" not in str(caught.value)


def test_an_unknown_parameter_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="no parameter 'widht'; its parameters: width, batch_size, name"):
        describe_workload(source_of(tmp_path, GOOD, "pair"), {"widht": 3}, 0)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("width", "x", "width=x: width is a whole number (its default is 4)"),
        ("width", 2.5, "width=2.5: width is a whole number (its default is 4)"),
        ("width", True, "width=True: width is a whole number (its default is 4)"),
        ("rate", "x", "rate=x: rate is a number (its default is 0.5)"),
        ("deep", 1, "deep=1: deep is true or false (its default is False)"),
    ],
)
def test_a_value_of_another_type_than_the_default_is_refused_before_anything_is_built(
    name: str, value: ParameterValue, said: str, tmp_path: Path
) -> None:
    source = source_of(tmp_path, "def f(width=4, rate=0.5, deep=False, kind='a'): raise AssertionError", "f")
    with pytest.raises(WorkloadError) as caught:
        describe_workload(source, {name: value}, 0)
    assert str(caught.value).endswith(f": {said}")


def test_modules_beside_the_users_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "sibling_module.py").write_text("WIDTH = 6\n")
    text = (
        "import torch\nfrom sibling_module import WIDTH as w\ndef f(): return torch.nn.Linear(w, 1), torch.ones(1, w)\n"
    )
    assert build_workload(source_of(tmp_path, text, "f"), {}, 0).module.in_features == 6


PAIRS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from ampbench import Workload

def batches():
    data = TensorDataset(torch.randn(6, 4), torch.randint(3, (6,)))
    return list(DataLoader(data, 2))

def loader():
    return torch.nn.Linear(4, 3), DataLoader(TensorDataset(torch.randn(6, 4)), 2)

def lists():
    return torch.nn.Linear(4, 3), batches(), torch.nn.functional.cross_entropy

def tuples():
    return torch.nn.Linear(4, 3), [tuple(pair) for pair in batches()], torch.nn.CrossEntropyLoss()

def one():
    return torch.nn.Linear(4, 3), tuple(batches()[0]), lambda output, targets: output.sum()

def unclear():
    return torch.nn.Linear(4, 3), batches(), lambda output: output.sum()

def too_many():
    return torch.nn.Linear(4, 3), tuple(batches()[0]), lambda output: output.sum()
"""


@pytest.mark.parametrize(("function", "several"), [("lists", True), ("tuples", True), ("one", False)])
def test_pairs_are_inputs_and_targets_where_the_loss_takes_both(function: str, several: bool, tmp_path: Path) -> None:
    built = build_workload(source_of(tmp_path, PAIRS, function), {}, 0)
    assert isinstance(built.inputs, list) == isinstance(built.targets, list) == several
    inputs, targets = (built.inputs[0], built.targets[0]) if several else (built.inputs, built.targets)
    assert (inputs.shape, targets.shape) == ((2, 4), (2,))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("loader", r"an input is DataLoader: give its batches, list\(loader\);"),
        ("unclear", r"its batches are lists of 2, as a loader .* let the loss take \(output, targets\)"),
        ("too_many", r"a batch has 2 inputs, and Linear.forward takes 1; where the last are targets, let the loss"),
    ],
)
def test_what_a_loader_gives_and_cannot_be_understood_is_refused_with_what_to_do(
    function: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(WorkloadError, match=said):
        build_workload(source_of(tmp_path, PAIRS, function), {}, 0)


def test_a_file_of_a_package_with_relative_imports_is_told_its_name_as_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pkg" / "sub"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    source = source_of(folder, "from . import nothing\ndef f(): ...\n", "f")
    stem = Path(source.module).stem
    with pytest.raises(WorkloadError, match=rf"of a package: name it pkg.sub.{stem}:f, in {tmp_path}$"):
        build_workload(source, {}, 0)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkloadError, match=rf"of a package: name it pkg.sub.{stem}:f$"):
        build_workload(source, {}, 0)


@pytest.mark.parametrize("place", ["", "src"])
def test_what_a_repository_holds_and_was_imported_from_elsewhere_is_named(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, installed = tmp_path / "repository", tmp_path / "repository" / ".venv" / "site-packages"
    (repository / ".git").mkdir(parents=True)
    (repository / "benchmarks").mkdir()
    for top in (repository / place, installed):
        (top / "projectile").mkdir(parents=True, exist_ok=True)
        (top / "projectile" / "__init__.py").touch()
    module = ModuleType("projectile")
    monkeypatch.setitem(sys.modules, "projectile", module)
    module.__file__ = str(installed / "projectile" / "__init__.py")
    assert imported_elsewhere(repository / "benchmarks") == (f"projectile ({installed / 'projectile'})",)
    module.__file__ = str(repository / place / "projectile" / "__init__.py")
    assert imported_elsewhere(repository) == ()
    (repository / ".git").rmdir()
    assert imported_elsewhere(repository) == ()


SWITCHING = """
import torch
torch.backends.cudnn.benchmark = True
def f():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    return torch.nn.ReLU(), torch.ones(2)
"""


def test_switches_that_a_users_file_sets_as_it_is_imported_and_called_are_recorded_and_left(tmp_path: Path) -> None:
    before, cudnn = Products.now(), torch.backends.cudnn
    try:
        described = describe_workload(source_of(tmp_path, SWITCHING, "f"), {}, 0)
        assert cudnn.benchmark
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        cudnn.benchmark = False
        before.set()
    assert described.switches == (
        'torch.backends.cuda.matmul.fp32_precision = "tf32"',
        "torch.backends.cudnn.benchmark = True",
    )


def generator(seed: int = 0, **parameters: int) -> Generator:
    return Generator("example", 1, {"width": 4, **parameters}, seed)


def test_values_are_the_raw_stream_of_philox_however_many_are_drawn():
    """The first values, from NumPy's raw words by the documented arithmetic."""
    drawn = generator().uniform("weight", (2 * CHUNK_WORDS + 3,), rms=2.0, mean=0.5)
    words = np.concatenate(list(generator()._words("weight", CHUNK_WORDS + 2)))
    steps = (words.view(np.uint32)[: len(drawn)] >> 8).astype(np.float32)
    expected = steps * np.float32(2.0**-23 * math.sqrt(3) * 2.0) + np.float32(0.5 - math.sqrt(3) * 2.0)
    assert torch.equal(drawn, torch.from_numpy(expected))


def test_the_batch_size_is_not_part_of_the_key_and_everything_else_is():
    first = generator().uniform("x", (9,))
    assert torch.equal(first, generator(batch_size=7).uniform("x", (9,)))
    others = [
        generator(seed=1),
        generator(width=5),
        Generator("other", 1, {"width": 4}, 0),
        Generator("example", 2, {"width": 4}, 0),
    ]
    assert not any(torch.equal(first, other.uniform("x", (9,))) for other in others)
    assert not torch.equal(first, generator().uniform("y", (9,)))


def test_filling_gives_a_module_on_the_meta_device_storage_and_values():
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    generator().fill(
        module, lambda name, tensor: generator().uniform(name, tuple(tensor.shape)) if name == "0.weight" else 5
    )
    assert module[0].weight.device.type == "cpu"
    assert module[0].weight.requires_grad
    assert module[0].bias.tolist() == [5, 5]
    assert module[1].num_batches_tracked.item() == 5


def test_a_digest_changes_with_a_bit_a_name_a_shape_and_a_dtype():
    tensor = torch.arange(6, dtype=torch.float32)
    changed = tensor.clone()
    changed[5] = torch.nextafter(changed[5], torch.tensor(9.0))
    variants = [("a", tensor), ("a", changed), ("b", tensor), ("a", tensor.view(2, 3)), ("a", tensor.view(torch.int32))]
    assert len({data.digest(iter([variant])) for variant in variants}) == 5


CRITIC = nn.Linear(4, 1)


def by_closure() -> object:
    critic, target = nn.Linear(4, 1), torch.ones(8, 1)
    return lambda output: F.mse_loss(critic(output), target)


def by_nested_closure() -> object:
    held = {"critics": [nn.Linear(4, 1)]}

    def score(output: torch.Tensor) -> torch.Tensor:
        return held["critics"][0](output)

    return lambda output: score(output).square().mean()


def by_global(output: torch.Tensor) -> torch.Tensor:
    return CRITIC(output).square().mean()


class Criterion:
    def __init__(self) -> None:
        self.critic = nn.Linear(4, 1)

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        return self.critic(output).square().mean()

    def method(self, output: torch.Tensor) -> torch.Tensor:
        return self(output)


def by_default(output: torch.Tensor, *, critic: nn.Module = nn.Linear(4, 1)) -> torch.Tensor:  # noqa: B008
    return critic(output).square().mean()


def weighted(output: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, torch.zeros(8, dtype=torch.int64), weight=weight)


LOSSES = {
    "closure": by_closure(), "nested": by_nested_closure(), "global": by_global, "object": Criterion(),
    "method": Criterion().method, "default": by_default,
    "partial": functools.partial(weighted, weight=torch.rand(4)),
}  # fmt: skip


def workload(loss: object, **fields: object) -> Workload:
    torch.manual_seed(0)
    return Workload(**{"module": nn.Linear(16, 4), "inputs": torch.randn(8, 16), "loss": loss} | fields)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("storage", ["fp64", "bf16_pure", "fp32"])
def test_what_a_loss_holds_is_cast_as_targets_are(name: str, storage: str) -> None:
    precision = "fp32" if storage == "fp64" else storage
    step = build_step(
        workload(LOSSES[name]), make_case(precision, "training"), Cpu(), precision=FP64 if storage == "fp64" else None
    )
    step.run()
    wanted = {"fp64": torch.float64, "bf16_pure": torch.bfloat16, "fp32": torch.float32}[storage]
    assert {tensor.dtype for tensor in step.network.held if tensor.is_floating_point()} == {wanted}


def test_a_loss_that_holds_nothing_is_the_very_same() -> None:
    def plain(output: torch.Tensor) -> torch.Tensor:
        return output.mean()

    for loss in (plain, F.cross_entropy, len, functools.partial(F.mse_loss, reduction="sum")):
        assert carried(loss, {}, torch.Tensor.double, nn.Module.double) == (loss, [])


def test_what_holds_itself_comes_to_an_end() -> None:
    holder = Criterion()
    holder.itself, holder.long = holder, [0] * 20_000
    found, held = carried(holder, {}, torch.Tensor.double, nn.Module.double)
    assert found is not holder
    assert {tensor.dtype for tensor in held} == {torch.float64}


HELD_OUT = """
import torch
import ampbench

def make():
    torch.manual_seed(0)
    held_out = torch.randn(5, 3), torch.zeros(5, dtype=torch.int64)
    return ampbench.Workload(module=torch.nn.Linear(3, 2), inputs=torch.ones(2, 3), held_out=held_out)
"""


def batched(*values: float, held_out: float = 0, **more: Any) -> Workload:
    """A network whose batches of two samples are full of `values`, with so many held-out samples of 9."""
    batches = [torch.full((2, 3), value) for value in values]
    targets = [torch.full((2,), value) for value in values]
    several = len(values) > 1
    return Workload(
        module=torch.nn.Linear(3, 1),
        inputs=batches if several else batches[0],
        targets=targets if several else targets[0],
        held_out=(torch.full((int(held_out), 3), 9.0), torch.full((int(held_out),), 9.0)) if held_out else None,
        **more,
    )


def larger(count: int) -> list[Batch]:
    """Two batches, of 20 and 21."""
    return [(torch.full((2, 3), 20.0 + at), torch.full((2,), 20.0 + at)) for at in range(min(count, 2))]


def values(batches: Any) -> list[float]:
    """What inputs and targets are full of, which is the same."""
    assert all(float(inputs[0, 0]) == float(targets[0]) for inputs, targets in batches)
    return [float(inputs[0, 0]) for inputs, _ in batches]


def test_its_own_come_before_those_of_a_larger_batch_and_the_same_first_each_time() -> None:
    fresh = FreshBatches(batched(0, 1, 2, held_out=5), 2, larger=larger)
    assert values(fresh.first(1)) == [1]
    assert values(fresh.first(4)) == [1, 2, 9, 9]
    assert values(fresh.first(9)) == [1, 2, 9, 9, 20, 21]
    assert values(FreshBatches(batched(0), 2, larger=larger).first(1)) == [20]
    assert values(FreshBatches(batched(0, 1, held_out=4), None).first(9)) == [1]


def test_the_inputs_of_other_seeds_come_last_on_the_same_weights() -> None:
    seeds = []

    def rebuilt(more: int) -> Workload:
        seeds.append(more)
        return batched(100 + more)

    own = batched(0, 1, held_out=2)
    fresh = FreshBatches(own, 2, larger=larger, rebuilt=rebuilt)
    given = [fresh.workload(number) for number in range(1, 7)]
    assert all(one is not None and one.module is own.module for one in given)
    assert values([(one.inputs, one.targets) for one in given if one is not None]) == [1, 9, 20, 21, 101, 102]
    assert seeds == [1, 2]


def test_what_a_search_found_is_confirmed_on_held_out_data_where_no_seed_changes_the_inputs(tmp_path: Path) -> None:
    source = user_source(tmp_path, HELD_OUT, "make", "held_out.py")
    planned = make_case("bf16_autocast", workload="make", family="user", parameters={}, batch_size=None)
    worker = Worker()
    *known, third = (worker.serve(ask("trial", planned, source, batch=number)) for number in (0, 1, 2, 3))
    assert len({got("trial", reply).output_rel_l2 for reply in known}) == 3
    assert third.skip is not None
    assert third.skip.reason == SAME_INPUTS


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


def measured(workload: Workload, case: Case) -> Divergence:
    """Return a divergence without what is of the time that it took, and of the bytes of weights."""
    found = measure_divergence(workload, case, Cpu(), References())
    return structs.replace(found, weights_digest="", output=structs.replace(found.output, further=None))


@pytest.mark.parametrize("halves", [["0.weight", "0.bias", "1.running_mean", "3.weight"], ["3.weight"]])
@pytest.mark.parametrize(("half", "precision"), [(torch.bfloat16, "fp16_autocast"), (torch.float16, "bf16_master")])
def test_a_network_in_half_is_measured_as_its_values_in_fp32_are(
    half: torch.dtype, halves: list[str], precision: str, classifier: Workload
) -> None:
    loaded, state = copy.deepcopy(classifier.module), classifier.module.state_dict()
    for name, tensor in [*loaded.named_parameters(), *loaded.named_buffers()]:
        if name in halves:
            tensor.data = tensor.data.to(half)
            state[name].copy_(tensor.data)
    low = replace(classifier, module=loaded)
    one = make_case(precision, "training")
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
        build_workload(user_source(tmp_path, ODD, function), {}, 0)


@pytest.mark.parametrize("kind", ["round", "memory", "divergence", "casts"])
def test_a_network_that_refuses_inference_mode_runs_without_gradients(kind: str, tmp_path: Path) -> None:
    planned = make_case("bf16_autocast", workload="forces", batch_size=None)
    request = make_request(kind, source=user_source(tmp_path, ODD, "forces"), case=planned, min_run_seconds=0.01)
    found = got(kind, Worker().serve(request))
    assert kind != "round" or found.no_grad


def quantized(classifier: Workload) -> Workload:
    torch.manual_seed(0)
    values = torch.randint(-9, 9, (32, 16), dtype=torch.int8)
    weight = torch.nn.Parameter(Int8(values, torch.full((32, 1), 0.1), torch.bfloat16), requires_grad=False)
    classifier.module[0].weight = weight
    return classifier


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_a_weight_of_a_class_of_its_own_is_measured_without_a_reference(phase: str, classifier: Workload) -> None:
    workload, one = quantized(classifier), make_case("bf16_pure", phase)
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


def test_what_an_optimizer_lacks_is_recorded(classifier: Workload) -> None:
    one, make = make_case("bf16_master", "training"), classifier.optimizer
    assert make is not None
    whole, half = (
        measured(replace(classifier, optimizer=chosen), one).recipe
        for chosen in (make, lambda parameters: make([*list(parameters)[:4], torch.nn.Parameter(torch.ones(1))]))
    )
    assert (half.missed, half.trained, half.foreign) == (["3.weight", "3.bias"], 6, 1)
    assert (whole.missed, whole.trained, whole.foreign) == ([], 0, 0)


BROKEN = """
import torch

class Broken(torch.nn.Module):
    def forward(self, x):
        raise RuntimeError("no such luck")

def broken():
    return Broken(), torch.randn(2, 3)
"""


def plan(precision: str = "fp32", phase: str = "inference", workload: str = "mlp") -> PlannedCase:
    selection = Selection(
        workloads=[workload], precisions=[precision], phases=[phase], devices=["cpu"],
        preset="tiny" if workload == "mlp" else "",
    )  # fmt: skip
    [planned] = cells.plan_cells(selection)
    return planned


def test_a_cell_runs_the_case_with_its_switches_and_in_inference_mode_until_it_is_closed() -> None:
    before = torch.backends.cudnn.allow_tf32
    with cells.opened(plan("bf16_autocast")) as cell:
        assert torch.is_inference_mode_enabled()
        assert not torch.backends.cudnn.allow_tf32
        cell.step()
        cell.restore()
    assert not torch.is_inference_mode_enabled()
    assert torch.backends.cudnn.allow_tf32 == before
    assert cell.case.precision == "bf16_autocast"
    assert cell.items_per_step == cell.case.batch_size
    assert len(cell.weights_digest) == 16


def test_a_step_on_an_accelerator_ends_when_the_device_has_done_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Device(machine.Cpu):
        type = "meta"

        def synchronize(self) -> None:
            done.append("synchronized")

    class Step:
        def run(self) -> None:
            done.append("ran")

        def changed(self) -> list[str]:
            return []

    cells.Cell(plan().case, Step(), Device(), 1.0, "").step()  # type: ignore[arg-type]
    assert done == ["ran", "synchronized"]


def test_the_passes_of_a_cell_are_those_of_a_run() -> None:
    planned = plan("bf16_autocast", "training")
    memory = cells.measured(planned, MEMORY)
    divergence = cells.measured(planned, DIVERGENCE)
    found = cells.measured(planned, ROUND, Settings(builds=2, min_run_seconds=0.01))
    assert memory.case_id == divergence.case_id == found.case_id == planned.case.case_id
    assert memory.source == "profiler"
    assert memory.peak_bytes > memory.parameter_bytes > 0
    assert 0 < divergence.output.rel_l2 < 0.1
    assert 0 < divergence.gradient.rel_l2 < 0.5
    assert len(found.samples) == 2
    assert found.weights_digest == divergence.weights_digest


@pytest.mark.parametrize("use", [partial(cells.measured, task=MEMORY), lambda one: cells.opened(one).__enter__()])
def test_a_case_to_skip_is_refused_with_the_reason(use: object) -> None:
    planned = plan("tf32")
    with pytest.raises(UsageError, match="cannot run here: cpu has no tf32"):
        use(planned)  # type: ignore[operator]


def test_a_workload_that_fails_in_its_first_step_says_so(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(BROKEN)
    planned = plan(workload=f"{path}:broken")
    with pytest.raises(AmpbenchError, match=r"broken.*exception \(memory\): RuntimeError: no such luck"):
        cells.measured(planned, MEMORY)

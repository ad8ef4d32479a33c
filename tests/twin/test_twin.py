"""Numbers of commands against plain torch: a step to ten digits, casts by the profiler, modules kept in fp32 alone."""

import copy
import io
import json
import math
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import ampbench
from ampbench import Workload, trace_casts
from ampbench.cli.main import main
from tests.twin import networks
from tests.twin.arithmetic import (
    FORMATS,
    FP64,
    Format,
    infer,
    late,
    of_outputs,
    of_training,
    of_update,
    relative,
    train,
    update,
)

DIGITS = 1e-10
MEASURED = ["--precision", ",".join(FORMATS), "--rounds", "1", "--min-run-time", "0.0001", "--threads", "1"]
QUICK = (networks.convolutions, networks.tokens)
REST = tuple(make for make in networks.NETWORKS if make not in QUICK)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("makes", [QUICK, pytest.param(REST, marks=pytest.mark.slow)], ids=["quick", "rest"])
def test_a_twin_has_the_same_numbers(makes: tuple[networks.Make, ...], tmp_path: Path) -> None:
    named = [f"{networks.__file__}:{make.__name__}" for make in makes]
    assert main(["run", *named, *MEASURED, "--results", str(tmp_path)]) == 0
    measured = ampbench.load(tmp_path)
    cases = [*measured[measured.outcome == "ok"].itertuples()]
    expected = {
        (make.__name__, *case): columns
        for make in makes
        for case, columns in twin(make(), networks.LOGITS.get(make.__name__)).items()
    }
    keys = [(case.workload.rpartition(":")[2], case.phase, case.precision) for case in cases]
    assert {*keys} == expected.keys()
    differing = [
        (*key, name, getattr(case, name), number)
        for key, case in zip(keys, cases, strict=True)
        for name, number in expected[key].items()
        if not same(getattr(case, name), number)
    ]
    assert not differing


def twin(workload: Any, logits: str | None) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the columns of every case by phase and precision; `logits` names the output that has classes."""
    found = {}
    exact, fp32 = infer(workload, FP64), infer(workload, FORMATS["fp32"])
    for name, kind in FORMATS.items():
        if not kind.master:
            found["inference", name] = of_outputs(infer(workload, kind), exact, fp32, kind, logits)
    exact, fp32, begin = train(workload, FP64), train(workload, FORMATS["fp32"]), late(workload)
    intended = update(workload, exact.gradients, begin, torch.float64)
    parameters = sum(weight.numel() for weight in workload.module.parameters())
    for name, kind in FORMATS.items():
        own = train(workload, kind)
        moved = update(workload, own.gradients, begin, torch.float32 if kind.master else kind.storage)
        found["training", name] = {
            **of_outputs(own, exact, fp32, kind, logits),
            **of_training(own, exact),
            **of_update(moved, intended),
            "bytes_per_parameter": own.bytes_kept / parameters,
        }
    return found


def same(stored: Any, number: Any) -> bool:
    """Return whether two cells are the same; a number that is not finite is stored as none."""
    if isinstance(number, str):
        return bool(stored == number)
    if number is None or not math.isfinite(number):
        return stored is None or math.isnan(stored)
    return math.isclose(stored, number, rel_tol=DIGITS)


class Masked(nn.Module):
    """Attention with a mask in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(16, 2, batch_first=True), nn.RMSNorm(16)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        mask = torch.triu(torch.full((7, 7), -1e4), 1)
        return self.norm(inputs + self.attention(inputs, inputs, inputs, attn_mask=mask)[0])


@networks.seeded
def masked() -> Workload:
    return networks.workload(Masked(), torch.randn(2, 7, 16), torch.randn(2, 7, 16), nn.functional.mse_loss)


@networks.seeded
def cells() -> Workload:
    """Return two layers of a GRU, whose cells mix states in fp32 with products in half."""

    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.GRU(6, 12, 2, batch_first=True)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.cells(inputs)[0]

    return networks.workload(Cells(), torch.randn(3, 5, 6), torch.randn(3, 5, 12), nn.functional.mse_loss)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("make", [*networks.NETWORKS, masked, cells])
def test_casts_and_promotions_are_the_conversions_that_torch_makes(
    make: networks.Make, dtype: torch.dtype, training: bool
) -> None:
    workload = make()
    step = step_of(workload, dtype, training=training)
    step()
    with trace_casts() as ledger:
        step()
    casts = [cast for cast in ledger.casts if cast.from_dtype.startswith(("fp", "bf"))]
    inside = ledger.trace.promotions
    of_casts = Conversions(len(casts), sum(cast.bytes_moved for cast in casts))
    if training:
        assert of_casts == asked_for(step)
    if "aten._transformer_encoder_layer_fwd" in {op.name for op in ledger.ops}:
        return  # one op that casts inside, which is said and in no count
    if (
        "aten.convolution_backward" in {op.name for op in ledger.ops}
        and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    ):
        return  # without oneDNN's kernel the backward pass of a convolution converts inside
    both = Conversions(len(casts) + len(inside), of_casts.moved + sum(one.bytes_moved for one in inside))
    assert both == made(step)
    assert inside or make is not cells


LOW = ("bf16_autocast", "fp16_autocast", "bf16_pure", "fp16_pure")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What `ampbench explain origin` has of each module, by precision and phase."""
    chosen = ["--precision", ",".join(LOW), "--phase", "inference,training", "--threads", "1"]
    kept = ["--results", str(tmp_path_factory.mktemp("origin")), "--json"]
    with redirect_stdout(io.StringIO()) as printed:
        assert main(["explain", "origin", f"{networks.__file__}:forgetting", *chosen, *kept]) == 0
    cases = json.loads(printed.getvalue())["cases"]
    return {(one["case"]["precision"], one["case"]["phase"]): one["tables"]["modules"] for one in cases}


def with_island(workload: Any, path: str, kind: Format) -> torch.Tensor:
    """Return the output in fp64 of a forward pass in which one module has fp32 weights and computes in fp32."""
    network = copy.deepcopy(workload.module).to(kind.storage)
    island: nn.Module = copy.deepcopy(workload.module.get_submodule(path))
    own = island.forward

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            output = own(inputs.float())
        return output if kind.autocast else output.to(kind.storage)

    island.forward = forward  # type: ignore[method-assign]
    network.set_submodule(path, island)
    with torch.no_grad(), torch.autocast("cpu", kind.autocast, kind.autocast is not None):
        return network(workload.inputs[0].to(kind.storage)).double()  # type: ignore[no-any-return]


@pytest.mark.parametrize("precision", LOW)
def test_modules_rank_as_brute_force_has_them(precision: str, tables: Any) -> None:
    workload, kind = networks.forgetting(), FORMATS[precision]
    exact = infer(workload, FP64).outputs
    paths = [path for path, _ in workload.module.named_children()]
    expected = {path: relative({"": with_island(workload, path, kind)}, exact) for path in paths}
    for phase in ("inference", "training"):
        kept = {row["module"]: row["kept_rel_l2"] for row in tables[precision, phase]}
        assert sorted(kept, key=kept.__getitem__) == sorted(expected, key=expected.__getitem__)
        assert all(math.isclose(kept[path], error, rel_tol=DIGITS) for path, error in expected.items())


def test_what_errs_most_by_itself_is_not_first_where_the_network_forgets_it(tables: Any) -> None:
    rows = {row["module"]: row for row in tables["bf16_autocast", "inference"]}
    assert max(rows, key=lambda path: rows[path]["own_rel_l2"]) == "loud"
    assert min(rows, key=lambda path: rows[path]["kept_rel_l2"]) == "early"
    assert rows["loud"]["kept_rel_l2"] > 2 * rows["early"]["kept_rel_l2"]


SIZES = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2}
"""Bytes of an element by the profiler's name of its dtype; numbers of Python are doubles there, and left out."""
TARGETS = {"5": 2, "15": 2, "6": 4}
"""Bytes of an element by the number of its dtype in c10/core/ScalarType.h: half, bfloat16, float."""


class Conversions(NamedTuple):
    """So many conversions, and the bytes that they read and write."""

    count: int
    moved: int


class Asked(TorchDispatchMode):
    """Counts the conversions that a program, autocast or autograd asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and out.dtype is not args[0].dtype and args[0].is_floating_point():
            self.moved.append(args[0].nbytes + out.nbytes)
        return out


def asked_for(step: Callable[[], Any]) -> Conversions:
    """Return what a dispatch mode sees of a step with gradients; without, composite ops hide from it."""
    with Asked() as seen:
        step()
    return Conversions(len(seen.moved), sum(seen.moved))


def made(step: Callable[[], Any]) -> Conversions:
    """Return what the profiler sees of a step, inside kernels, too."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        step()
    moved = []
    for event in seen.profiler.kineto_results.events():
        if event.name() == "aten::_to_copy":
            source, target = SIZES.get(event.dtypes()[0]), TARGETS.get(str(event.concrete_inputs()[1]))
            if source and target and event.dtypes()[0] != _name(event):
                moved.append(torch.Size(event.shapes()[0]).numel() * (source + target))
    return Conversions(len(moved), sum(moved))


def _name(event: Any) -> str:
    return {"5": "c10::Half", "15": "c10::BFloat16", "6": "float"}[str(event.concrete_inputs()[1])]


def step_of(workload: Any, dtype: torch.dtype, *, training: bool) -> Callable[[], Any]:
    """Return a function that runs a step under autocast, anew each time."""
    module: nn.Module = copy.deepcopy(workload.module).train(training)
    inputs, targets = workload.inputs[0], workload.targets[0]

    def infer() -> None:
        with torch.inference_mode(), torch.autocast("cpu", dtype):
            module(inputs)

    def train() -> None:
        module.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = workload.loss(module(inputs), targets)
        loss.backward()

    return train if training else infer

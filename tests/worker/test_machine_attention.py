"""Which kernel of attention ran, against what torch says that it chooses and what a dispatch mode sees."""

import contextlib
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ampbench.core.precisions import FP64, PRECISIONS
from ampbench.records.case import Case, WorkloadSource
from ampbench.worker.machine import Cpu, NoKernelError, precision_flags, sdpa_fixed, unheeded
from ampbench.worker.memory import cpu_changes, measure_memory
from ampbench.worker.sources import build_workload
from ampbench.worker.worker import Worker
from ampbench.workloads.index import WORKLOADS, source
from tests.scripted_channel import make_request

MakeCase = Callable[..., Case]
CHOSEN = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
"""What `torch._fused_sdp_choice` returns (enum SDPBackend of ATen)."""

NETWORK = """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        x = x * self.weight
        with sdpa_kernel(SDPBackend.MATH):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

def own():
    return Own(), torch.randn(1, 2, 4, 8)

def layer():
    return torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(1, 4, 8)

def linear():
    return torch.nn.Linear(3, 3), torch.ones(2, 3)
"""


def kernels(call: Callable[[], Any]) -> dict[str, int]:
    return cpu_changes([call])[0].attention


class Choices(TorchFunctionMode):
    """What torch says that it chooses for each call of scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            self.found.append(CHOSEN[torch._fused_sdp_choice(*args, **(kwargs or {}))])
        return func(*args, **(kwargs or {}))


class Fused(TorchDispatchMode):
    """The fused kernels that were dispatched to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() == "aten::_scaled_dot_product_flash_attention_for_cpu":
            self.found.append("flash")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_kernel_is_the_one_that_torch_says_it_chooses(dtype: torch.dtype) -> None:
    lower = torch.ones(6, 6, dtype=torch.bool).tril()
    masks = (None, lower, lower.to(dtype), lower.to(dtype).requires_grad_())
    for learned, mask, causal, dropout in product((False, True), masks, (False, True), (0.0, 0.5)):
        if causal and mask is not None:
            continue
        given = [torch.randn(2, 2, 6, 8, dtype=dtype, requires_grad=learned) for _ in range(3)]

        def attend(given: list[torch.Tensor] = given, **rest: Any) -> None:
            out = F.scaled_dot_product_attention(*given, **rest)
            if out.requires_grad:
                out.sum().backward()

        call = {"attn_mask": mask, "dropout_p": dropout, "is_causal": causal}
        with Choices() as said:
            found = kernels(lambda attend=attend, call=call: attend(**call))
        assert found == {said.found[0]: 1}
        with Fused() as seen:
            attend(**call)
        assert seen.found == (["flash"] if "flash" in found else [])


@pytest.mark.parametrize(("name", "phase"), [("transformer_encoder", "inference"), ("decoder_lm", "training")])
def test_a_step_tells_how_often_which_kernel_ran(name: str, phase: str, case: MakeCase) -> None:
    workload = build_workload(source(WORKLOADS[name]), dict(WORKLOADS[name].preset("tiny")), 0)
    for precision in ("fp32", "bf16_autocast", "fp16_pure"):
        with precision_flags(PRECISIONS[precision]):
            found = measure_memory(workload, case(precision, phase, workload=name), Cpu())
            with Choices() as said, torch.autocast("cpu", enabled=precision == "bf16_autocast"):
                workload.module(workload.inputs)
        assert found.attention == {"flash": WORKLOADS[name].preset("tiny")["depth"]} == {said.found[0]: len(said.found)}


def test_the_fast_path_of_encoder_layers_is_native_and_what_it_is_not_taken_for_is_not() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x = torch.randn(1, 4, 8)
    with torch.inference_mode():
        assert kernels(lambda: layer.eval()(x)) == {"native": 1}
        with torch.autocast("cpu"):
            assert kernels(lambda: layer.eval()(x)) == {"native": 1}
        assert kernels(lambda: layer.self_attn(x, x, x, need_weights=False)) == {"native": 1}
    assert kernels(lambda: layer.train()(x)) == {"math": 1}, "dropout is in no fused kernel of the CPU"
    assert kernels(lambda: x @ x.mT) == {}


@pytest.fixture
def given() -> torch.Tensor:
    return torch.randn(1, 2, 4, 8)


def test_one_backend_is_held_everywhere_but_in_fp64(given: torch.Tensor, case: MakeCase) -> None:
    def ran(tensor: torch.Tensor = given) -> dict[str, int]:
        return kernels(lambda: F.scaled_dot_product_attention(tensor, tensor, tensor))

    before = torch.compiler.config.force_disable_caches
    with sdpa_fixed(case(sdpa="math")):
        assert torch.compiler.config.force_disable_caches, "what was compiled before may hold another kernel"
        with precision_flags(PRECISIONS["fp32"]):
            assert ran() == {"math": 1}
        with precision_flags(FP64):
            assert ran(given.double()) == {"flash": 1}
        assert ran() == {"math": 1}
    assert ran() == {"flash": 1}
    assert torch.compiler.config.force_disable_caches == before
    with sdpa_fixed(case()):
        assert ran() == {"flash": 1}


@pytest.mark.parametrize(
    ("kernel", "dropout", "why"),
    [("flash", 0.5, "do not support non-zero dropout"), ("efficient", 0.0, "No viable backend")],
)
def test_torchs_reason_is_told_where_it_refuses(
    kernel: str, dropout: float, why: str, given: torch.Tensor, case: MakeCase
) -> None:
    refused, warned = pytest.raises(NoKernelError, match=why), pytest.warns() if dropout else contextlib.nullcontext()
    with warned, refused as told, sdpa_fixed(case(sdpa=kernel)):
        F.scaled_dot_product_attention(given, given, given, dropout_p=dropout)
    assert str(told.value).startswith(f"cpu has no {kernel} attention for this: ")
    assert "\n" not in str(told.value)
    with pytest.raises(RuntimeError, match="mine"), sdpa_fixed(case(sdpa=kernel)):
        raise RuntimeError("mine")


@pytest.mark.parametrize(
    ("function", "kernel", "why"),
    [
        ("linear", "math", "no step calls scaled_dot_product_attention"),
        ("layer", "math", "torch's fast path of encoder layers"),
        ("own", "flash", "was not used: the network itself selects math"),
        ("own", "math", ""),
        ("own", "efficient", "was not used: the network itself selects math"),
    ],
)
def test_a_kernel_that_does_not_run_is_a_skip_with_the_reason(
    function: str, kernel: str, why: str, case: MakeCase, tmp_path: Any
) -> None:
    path = tmp_path / "networks.py"
    path.write_text(NETWORK)
    planned = case(workload=function, batch_size=None, sdpa=kernel)
    where = WorkloadSource(name=function, family="user", module=str(path), function=function, builtin=False)
    reply = Worker().serve(make_request("memory", source=where, case=planned))
    assert reply.failure is None
    assert reply.problem is None
    assert (reply.skip is None) == (not why)
    assert why in (reply.skip.reason if reply.skip else "")


def test_compiled_code_may_hold_attention_in_parts(case: MakeCase) -> None:
    planned = case(path="compiled", sdpa="math")
    assert unheeded(planned, None) == ""
    assert unheeded(planned, {"math": 1, "native": 2}) == ""
    assert "flash" in unheeded(planned, {"flash": 1})
    assert unheeded(replace(planned, sdpa=""), {}) == ""

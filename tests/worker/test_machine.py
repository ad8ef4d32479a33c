"""Devices by `torch.accelerator`, scripted; the canary of fp32; precision switches; which kernel of attention ran."""

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
from msgspec.structs import replace
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ampbench import cells
from ampbench.core.precisions import FP64, PRECISIONS, Precision
from ampbench.drive.servers import ask_environment
from ampbench.errors import NothingToRunError, UsageError
from ampbench.records.case import DEVICES
from ampbench.records.run import Selection
from ampbench.records.wire import Reply, Request
from ampbench.worker import divergence, environment, machine
from ampbench.worker.divergence import References, fp32_products, measure_divergence
from ampbench.worker.environment import _cpu, nvidia_driver, read_environment
from ampbench.worker.machine import (
    FP32_PRECISION,
    SWITCHES,
    Accelerator,
    Cpu,
    NoKernelError,
    Products,
    open_device,
    precision_flags,
    rounded_products,
    sdpa_fixed,
    unheeded,
    users_switches,
)
from ampbench.worker.memory import cpu_changes, measure_memory
from ampbench.worker.sources import build_workload
from ampbench.worker.worker import Worker
from ampbench.workload import Workload
from ampbench.workloads.index import WORKLOADS, source
from tests.scripted_channel import make_request, user_source
from tests.worker.conftest import make_case


class FakeAccelerator:
    """A scripted `torch.accelerator` with a clock of its own: every step takes 2 ms, an event records the clock."""

    def __init__(self, type: str):
        self.type, self.clock, self.calls = type, 0.0, []
        self.allocated, self.peak = 1000, 1000

    def current_accelerator(self, check_available: bool = False) -> object:
        return SimpleNamespace(type=self.type)

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def memory_allocated(self) -> int:
        return self.allocated

    def max_memory_allocated(self) -> int:
        return self.peak

    def max_memory_reserved(self) -> int:
        return self.peak + 2000

    def reset_peak_memory_stats(self) -> None:
        self.calls.append("reset")

    def empty_cache(self) -> None:
        self.calls.append("empty")

    def step(self) -> None:
        self.clock += 2.0
        self.peak = max(self.peak, 5000)

    def event(self, device: str, enable_timing: bool) -> object:
        assert device == self.type
        assert enable_timing
        event = SimpleNamespace(at=None)
        event.record = lambda: setattr(event, "at", self.clock)
        event.synchronize = lambda: self.calls.append("event")
        event.elapsed_time = lambda end: end.at - event.at
        return event


@pytest.fixture(params=DEVICES[1:])
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeAccelerator:
    scripted = FakeAccelerator(request.param)
    monkeypatch.setattr(torch, "accelerator", scripted)
    monkeypatch.setattr(torch, "Event", scripted.event)
    return scripted


def test_the_device_found_is_opened_and_another_one_refused(fake: FakeAccelerator) -> None:
    assert isinstance(open_device(fake.type), Accelerator)
    other = next(one for one in DEVICES[1:] if one != fake.type)
    with pytest.raises(UsageError, match=f"device {other} is not available here: found {fake.type}"):
        open_device(other)


def test_a_device_that_vanished_is_said_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    with pytest.raises(UsageError, match="device cuda is not available here: no accelerator found"):
        open_device("cuda")


class OnFakeDevice(torch.nn.Module):
    """Counts its steps on the fake device while its tensors stay on the CPU."""

    def __init__(self, fake: FakeAccelerator):
        super().__init__()
        self.linear, self.fake = torch.nn.Linear(4, 4), fake

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.fake.step()
        return self.linear(x)

    def __deepcopy__(self, memo: object) -> "OnFakeDevice":
        made = OnFakeDevice(self.fake)
        made.load_state_dict(self.state_dict())
        return made


@pytest.fixture
def on_fake(fake: FakeAccelerator, monkeypatch: pytest.MonkeyPatch) -> Workload:
    """A workload for the fake device: tensors that are sent to it stay where they are."""
    move = torch.nn.Module.to
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, device=None, **kw: move(self, **kw) if kw else self)
    place = torch.Tensor.to

    def stay(tensor: torch.Tensor, *arguments: object, device: object = None, **options: object) -> torch.Tensor:
        return place(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "to", stay)
    monkeypatch.setattr(divergence, "rounded_products", lambda device: {})  # the canary's products are real ones
    return Workload(module=OnFakeDevice(fake), inputs=torch.ones(2, 4))


def test_steps_on_an_accelerator_are_timed_by_events(fake: FakeAccelerator) -> None:
    assert Accelerator(fake.type).seconds(fake.step, 3) == pytest.approx(0.006)


def test_memory_on_an_accelerator_is_the_peak_above_what_was_there(fake: FakeAccelerator, on_fake: Workload) -> None:
    found = measure_memory(on_fake, make_case(device=fake.type), Accelerator(fake.type))
    assert (found.source, found.peak_bytes) == ("allocator", 4000)
    assert found.reserved_bytes == 7000


def test_an_accelerator_of_which_torch_can_be_asked_nothing_is_described_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted = FakeAccelerator("xpu")
    scripted.device_count = lambda: 2
    monkeypatch.setattr(torch, "accelerator", scripted)
    monkeypatch.setattr(torch, "get_device_module", lambda type: SimpleNamespace())
    monkeypatch.setattr(environment, "_refusal", lambda type, dtype: "no fp64" * (dtype is torch.float64))
    monkeypatch.setattr(torch.version, "xpu", "20250201")
    found = environment._accelerator("xpu")
    assert (found.available, found.count, found.name, found.memory_bytes) == (True, 2, "xpu", None)
    assert (found.arithmetic["bf16"], found.tf32, found.float64) == ("native", False, False)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., environment.DeviceDescription]:
    """Return a function that describes a scripted CUDA device: its driver's node, errors of init and of products."""

    def described(*, node: bool, init: str = "", usable: bool = False, products: dict[torch.dtype, str] | None = None):
        def fail() -> None:
            raise RuntimeError(init)

        card = SimpleNamespace(name="H100", total_memory=80 << 30, uuid="a-b-c")
        module = SimpleNamespace(init=fail, get_device_properties=lambda: card, get_device_capability=lambda: (9, 0))
        scripted = FakeAccelerator("cuda" if usable else "none")
        scripted.device_count = lambda: 1
        if node:
            (tmp_path / "nvidiactl").touch()
        monkeypatch.setattr(environment, "NVIDIA_NODE", str(tmp_path / "nvidiactl"))
        monkeypatch.setattr(torch, "accelerator", scripted)
        monkeypatch.setattr(torch, "get_device_module", lambda type: module)
        monkeypatch.setattr(torch.version, "cuda", "13.2")
        monkeypatch.setattr(environment, "has_tf32", lambda type: True)
        monkeypatch.setattr(environment, "state_of", lambda type: None)
        monkeypatch.setattr(environment, "_refusal", lambda type, dtype: (products or {}).get(dtype, ""))
        return environment._accelerator("cuda")

    return described


TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040)."
NO_KERNEL = "AcceleratorError: CUDA error: no kernel image is available for execution on the device"


def test_a_device_is_usable_unusable_in_torchs_words_or_absent(
    cuda: Callable[..., environment.DeviceDescription],
) -> None:
    missing = cuda(node=False, init="Found no NVIDIA driver on your system. Please check")
    assert (missing.unusable, missing.available, missing.reason) == (False, False, "no cuda device or driver found")
    unusable = cuda(node=True, init=TOO_OLD)
    assert (unusable.unusable, unusable.available, unusable.reason) == (True, False, f"RuntimeError: {TOO_OLD}")
    foreign = cuda(node=True, usable=True, products={torch.float32: NO_KERNEL})
    assert (foreign.unusable, foreign.available, foreign.reason) == (True, False, NO_KERNEL)
    usable = cuda(node=True, usable=True)
    assert (usable.unusable, usable.available, usable.details["uuid"]) == (False, True, "a-b-c")


def test_a_device_that_its_user_hid_is_absent(
    cuda: Callable[..., environment.DeviceDescription], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    hidden = cuda(node=True, init="No CUDA GPUs are available")
    assert (hidden.unusable, hidden.reason) == (False, "hidden by CUDA_VISIBLE_DEVICES=")


def test_a_dtype_is_refused_with_its_reason_or_could_not_be_asked(
    cuda: Callable[..., environment.DeviceDescription],
) -> None:
    refusal = "RuntimeError: \"addmm_cuda\" not implemented for 'Half'"
    card = cuda(node=True, usable=True, products={torch.float16: refusal, torch.bfloat16: "CUDA error: device busy"})
    assert card.arithmetic == {"fp32": "native", "bf16": "unknown", "fp16": "unavailable"}
    assert card.refusals["fp16"] == refusal


def test_measured_times_decide_whether_a_cpu_emulates(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {torch.float32: (1.0, 1.0), torch.bfloat16: (0.25, 1.0), torch.float16: (1.0, 36.0)}
    trials, lacking = itertools.count(), None

    def timed(dtype: torch.dtype) -> tuple[float, float]:
        disturbed = 100.0 if next(trials) % 4 else 1.0  # a neighbour slows most trials of each dtype
        if dtype is lacking:
            raise RuntimeError("not implemented for 'Half'")
        product, convolution = seconds[dtype]
        return product * disturbed, convolution * disturbed

    monkeypatch.setattr(environment, "_timed", timed)
    measured = _cpu()
    assert measured.slowdown == pytest.approx({"bf16": 0.5, "fp16": 6.0})
    assert measured.arithmetic == {"fp32": "native", "bf16": "native", "fp16": "emulated"}
    lacking = torch.float16
    assert _cpu().arithmetic == {"fp32": "native", "bf16": "native"}


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ("NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023", "535.54.03"),
        ("NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (dvs-builder@U16)", "550.54.14"),
        ("NVIDIA", None),
    ],
)
def test_the_version_of_nvidias_driver_is_told_of_its_open_kernel_module_too(told: str, version: str | None) -> None:
    assert nvidia_driver(f"NVRM version: {told}\nGCC version:  gcc version 12.3.0 (Ubuntu 12.3.0)\n") == version


def to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Return fp32 numbers cut to the 10 bits of tf32's mantissa."""
    return (tensor.view(torch.int32) & ~0x1FFF).view(torch.float32)


ROUNDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bf16": lambda tensor: tensor.bfloat16().float(),
    "fp16": lambda tensor: tensor.half().float(),
    "tf32": to_tf32,
}


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("kind", ["matmul", "conv"])
def test_a_product_whose_factors_are_rounded_is_seen_with_the_dtype(
    kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = getattr(machine, f"_{kind}")
    monkeypatch.setattr(machine, f"_{kind}", lambda factors: product(ROUNDED[dtype](factors)))
    assert rounded_products(Cpu()) == {kind: dtype}


def test_fp32_is_fp32_here_and_autocast_around_it_changes_nothing() -> None:
    assert rounded_products(Cpu()) == {}
    with torch.autocast("cpu", torch.bfloat16):
        assert rounded_products(Cpu()) == {}


ERRORS = """
import torch
from ampbench.worker.machine import rounded_products
from ampbench.worker.machine import Cpu
torch.manual_seed(0)
image, kernel = torch.randn(1, 64, 16, 16), torch.randn(64, 64, 1, 1)
exact = torch.nn.functional.conv2d(image.double(), kernel.double())
error = float((torch.nn.functional.conv2d(image, kernel).double() - exact).norm() / exact.norm())
print(rounded_products(Cpu()).get("conv", ""), error)
"""


@pytest.mark.slow
def test_what_the_canary_says_of_a_mode_of_onednn_is_what_convolutions_err() -> None:
    variables = {**os.environ, "ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}
    done = subprocess.run([sys.executable, "-c", ERRORS], capture_output=True, text=True, check=True, env=variables)
    said, _, error = done.stdout.strip().rpartition(" ")
    assert (said == "bf16") == (float(error) > 1e-4)  # this CPU's kernels may not know the mode


def test_the_divergence_pass_records_it_where_weights_are_fp32(
    classifier: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = machine._matmul
    monkeypatch.setattr(machine, "_matmul", lambda factors: product(ROUNDED["bf16"](factors)))
    for name, row in PRECISIONS.items():
        recorded = fp32_products(make_case(name), Cpu())
        assert (recorded is not None) == (row.storage == "float32")
        assert recorded is None or recorded["matmul"] == "bf16"  # where a precision asks for it, convolutions may, too
    assert measure_divergence(classifier, make_case("fp32"), Cpu(), References()).fp32_products == {"matmul": "bf16"}


@pytest.mark.parametrize("library", ["no library", None])
def test_torchvision_is_imported_where_its_operators_are_not_and_says_itself_what_is_wrong(
    library: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "torchvision"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    (folder / "version.py").write_text("__version__ = '0.1'\n")
    if library is not None:
        (folder / "_C.so").write_text(library)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch.ops, "torchvision", SimpleNamespace())
    found = environment.read_environment()
    assert found.torchvision_version is None
    assert found.unavailable["torchvision"] == "RuntimeError: operator torchvision::nms does not exist"


OLD_TORCH = "torch 2.10.1\\+cu128 is too old: ampbench needs 2.11 or newer"


class Here:
    def serve(self, request: Request) -> Reply:
        return Worker().serve(request)

    def close(self) -> None:
        pass


@pytest.fixture
def old_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")


@pytest.mark.usefixtures("old_torch")
def test_a_torch_that_is_too_old_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(NothingToRunError, match=OLD_TORCH):
        ask_environment(Here())
    with pytest.raises(UsageError, match=OLD_TORCH):
        cells.plan_cells(Selection(workloads=["mlp"]))


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0a0+git1234567", "2.16.0.dev20261101"])
def test_releases_and_what_leads_to_them_are_read(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert read_environment().torch_version == version


MATMUL, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn


@pytest.fixture(autouse=True)
def as_shipped() -> Iterator[None]:
    """Switches as torch ships them before and after a test, whatever it does."""
    before, others = Products.now(), [(switch, switch.now()) for switch in SWITCHES]
    yield
    for switch, value in others:
        switch.set(value)
    before.set()


def newer_api() -> None:
    MATMUL.fp32_precision = "tf32"
    CUDNN.conv.fp32_precision = "ieee"
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def newer_api_for_all() -> None:
    torch.backends.fp32_precision = "tf32"


def older_then_newer() -> None:
    torch.set_float32_matmul_precision("medium")
    CUDNN.allow_tf32 = False
    MATMUL.fp32_precision = "ieee"


def older() -> None:
    torch.set_float32_matmul_precision("high")
    CUDNN.allow_tf32 = False


def others() -> None:
    CUDNN.benchmark = True
    CUDNN.deterministic = True
    MATMUL.allow_fp16_accumulation = True
    MATMUL.allow_bf16_reduced_precision_reduction = False


def split_k() -> None:
    MATMUL.allow_bf16_reduced_precision_reduction = (False, False)
    MATMUL.allow_fp16_reduced_precision_reduction = (False, False)


USERS = (lambda: None, older, newer_api, newer_api_for_all, older_then_newer, others, split_k)


def raw() -> tuple[Any, ...]:
    """Return all that torch tells of its switches, and "raises" where reading one does."""

    def asked(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except RuntimeError:
            return "raises"

    return (
        asked(torch.get_float32_matmul_precision), asked(lambda: MATMUL.allow_tf32), asked(lambda: CUDNN.allow_tf32),
        *(torch._C._get_fp32_precision_getter(*place) for place in FP32_PRECISION),
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction(),
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction(),
        torch._C._get_cublas_allow_fp16_accumulation(), CUDNN.benchmark, CUDNN.deterministic, CUDNN.enabled,
    )  # fmt: skip


@pytest.mark.parametrize("users", USERS)
def test_what_follows_the_switch_above_it_still_does(users: Callable[[], None]) -> None:
    shipped, rest = Products.now(), [(switch, switch.now()) for switch in SWITCHES]
    users()
    torch.backends.fp32_precision = "tf32"
    expected = raw()
    shipped.set()
    for switch, value in rest:
        switch.set(value)
    users()
    with precision_flags(PRECISIONS["fp32"]):
        pass
    torch.backends.fp32_precision = "tf32"
    assert raw() == expected


@pytest.mark.parametrize("users", USERS)
@pytest.mark.parametrize("row", [*PRECISIONS.values(), FP64], ids=lambda row: row.name)
def test_a_precision_computes_the_same_whatever_a_user_has_set_and_puts_that_back(
    row: Precision, users: Callable[[], None]
) -> None:
    with precision_flags(row):
        expected = raw()
    assert "raises" not in expected
    users()
    before = raw()
    with precision_flags(row):
        assert raw() == expected
    assert raw() == before
    with pytest.raises(RuntimeError, match="within"), precision_flags(row):
        raise RuntimeError("within")
    assert raw() == before
    kind = row.fp32_products
    matmul, _, convolutions, *_ = expected
    assert matmul == {"tf32": "high", "bf16": "medium"}.get(kind, "highest")
    assert convolutions is (kind in ("tf32", "shipped"))
    assert expected[-6:] == ((True, True), (True, True), False, False, False, True)


def test_the_users_switches_are_told_as_they_are_written() -> None:
    before = users_switches()
    others()
    older()
    assert [switch for switch in users_switches() if switch not in before] == [
        'torch.set_float32_matmul_precision("high")',
        "torch.backends.cudnn.allow_tf32 = False",
        'torch.backends.cuda.matmul.fp32_precision = "tf32"',
        'torch.backends.cudnn.conv.fp32_precision = "none"',
        'torch.backends.cudnn.rnn.fp32_precision = "none"',
        'torch.backends.mkldnn.matmul.fp32_precision = "tf32"',
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, True)",
        "torch.backends.cuda.matmul.allow_fp16_accumulation = True",
        "torch.backends.cudnn.benchmark = True",
        "torch.backends.cudnn.deterministic = True",
    ]


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
def test_a_step_tells_how_often_which_kernel_ran(name: str, phase: str) -> None:
    workload = build_workload(source(WORKLOADS[name]), dict(WORKLOADS[name].preset("tiny")), 0)
    for precision in ("fp32", "bf16_autocast", "fp16_pure"):
        with precision_flags(PRECISIONS[precision]):
            found = measure_memory(workload, make_case(precision, phase, workload=name), Cpu())
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


def test_one_backend_is_held_everywhere_but_in_fp64(given: torch.Tensor) -> None:
    def ran(tensor: torch.Tensor = given) -> dict[str, int]:
        return kernels(lambda: F.scaled_dot_product_attention(tensor, tensor, tensor))

    before = torch.compiler.config.force_disable_caches
    with sdpa_fixed(make_case(sdpa="math")):
        assert torch.compiler.config.force_disable_caches, "what was compiled before may hold another kernel"
        with precision_flags(PRECISIONS["fp32"]):
            assert ran() == {"math": 1}
        with precision_flags(FP64):
            assert ran(given.double()) == {"flash": 1}
        assert ran() == {"math": 1}
    assert ran() == {"flash": 1}
    assert torch.compiler.config.force_disable_caches == before
    with sdpa_fixed(make_case()):
        assert ran() == {"flash": 1}


@pytest.mark.parametrize(
    ("kernel", "dropout", "why"),
    [("flash", 0.5, "do not support non-zero dropout"), ("efficient", 0.0, "No viable backend")],
)
def test_torchs_reason_is_told_where_it_refuses(kernel: str, dropout: float, why: str, given: torch.Tensor) -> None:
    refused, warned = pytest.raises(NoKernelError, match=why), pytest.warns() if dropout else contextlib.nullcontext()
    with warned, refused as told, sdpa_fixed(make_case(sdpa=kernel)):
        F.scaled_dot_product_attention(given, given, given, dropout_p=dropout)
    assert str(told.value).startswith(f"cpu has no {kernel} attention for this: ")
    assert "\n" not in str(told.value)
    with pytest.raises(RuntimeError, match="mine"), sdpa_fixed(make_case(sdpa=kernel)):
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
    function: str, kernel: str, why: str, tmp_path: Any
) -> None:
    planned = make_case(workload=function, batch_size=None, sdpa=kernel)
    where = user_source(tmp_path, NETWORK, function, "attending.py")
    reply = Worker().serve(make_request("memory", source=where, case=planned))
    assert reply.failure is None
    assert reply.problem is None
    assert (reply.skip is None) == (not why)
    assert why in (reply.skip.reason if reply.skip else "")


def test_compiled_code_may_hold_attention_in_parts() -> None:
    planned = make_case(path="compiled", sdpa="math")
    assert unheeded(planned, None) == ""
    assert unheeded(planned, {"math": 1, "native": 2}) == ""
    assert "flash" in unheeded(planned, {"flash": 1})
    assert unheeded(replace(planned, sdpa=""), {}) == ""

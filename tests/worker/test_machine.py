"""Devices are reached through `torch.accelerator` alone, so a scripted one stands for all of them.

And the canary, against products that are rounded on purpose and against errors counted by hand.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo  # which optimizers import: not while an accelerator is scripted, as half of it would stay

from ampbench.core.precisions import PRECISIONS
from ampbench.errors import UsageError
from ampbench.records.case import DEVICES, Case
from ampbench.records.wire import RoundAsked
from ampbench.worker import divergence, environment, machine
from ampbench.worker.divergence import References, fp32_products, measure_divergence
from ampbench.worker.environment import nvidia_driver
from ampbench.worker.machine import Accelerator, Cpu, open_device, rounded_products
from ampbench.worker.memory import measure_memory
from ampbench.worker.worker import Timed, measure_round
from ampbench.workload import Workload


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


def test_a_round_on_an_accelerator_has_its_samples_from_the_events(
    fake: FakeAccelerator, on_fake: Workload, case: Callable[..., Case]
) -> None:
    asked = RoundAsked(min_run_seconds=0.3, builds=3)
    found = measure_round(on_fake, case(device=fake.type), asked, Accelerator(fake.type), Timed())
    assert all(seconds == pytest.approx(0.002) for build in found.samples for seconds in build)
    assert all(
        steps >= 5 for steps in found.steps_per_sample
    )  # 10 ms a sample: ten thousand times an event's microsecond


def test_memory_on_an_accelerator_is_the_peak_above_what_was_there(
    fake: FakeAccelerator, on_fake: Workload, case: Callable[..., Case]
) -> None:
    found = measure_memory(on_fake, case(device=fake.type), Accelerator(fake.type))
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
    measured = environment._cpu()
    assert measured.slowdown == pytest.approx({"bf16": 0.5, "fp16": 6.0})
    assert measured.arithmetic == {"fp32": "native", "bf16": "native", "fp16": "emulated"}
    lacking = torch.float16
    assert environment._cpu().arithmetic == {"fp32": "native", "bf16": "native"}


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
@pytest.mark.parametrize("mode", ["STRICT", "BF16"])
def test_what_the_canary_says_of_a_mode_of_onednn_is_what_convolutions_err(mode: str) -> None:
    variables = {**os.environ, "ONEDNN_DEFAULT_FPMATH_MODE": mode}
    done = subprocess.run([sys.executable, "-c", ERRORS], capture_output=True, text=True, check=True, env=variables)
    said, _, error = done.stdout.strip().rpartition(" ")
    assert (said == "bf16") == (float(error) > 1e-4)  # this CPU's kernels may not know the mode
    assert mode == "BF16" or not said


def test_the_divergence_pass_records_it_where_weights_are_fp32(
    case: Callable[..., Case], classifier: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = machine._matmul
    monkeypatch.setattr(machine, "_matmul", lambda factors: product(ROUNDED["bf16"](factors)))
    for name, row in PRECISIONS.items():
        recorded = fp32_products(case(name), Cpu())
        assert (recorded is not None) == (row.storage == "float32")
        assert recorded is None or recorded["matmul"] == "bf16"  # where a precision asks for it, convolutions may, too
    assert measure_divergence(classifier, case("fp32"), Cpu(), References()).fp32_products == {"matmul": "bf16"}


@pytest.mark.slow
@pytest.mark.parametrize("library", ["no library", None])
def test_torchvision_is_imported_where_its_operators_are_not_and_says_itself_what_is_wrong(
    library: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / "torchvision"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    (folder / "version.py").write_text("__version__ = '0.1'\n")
    if library is not None:
        (folder / "_C.so").write_text(library)
    code = "from ampbench.worker.environment import read_environment as read; found = read(); "
    code += "print(found.torchvision_version, found.unavailable['torchvision'])"
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, check=True, capture_output=True, text=True
    )
    assert done.stdout == "None RuntimeError: operator torchvision::nms does not exist\n"

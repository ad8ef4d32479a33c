"""What a step computes, reads and writes, counted by hand; how busy a device is, and what a step frees."""

import ctypes
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from ampbench.core.precisions import PRECISIONS
from ampbench.records.case import Case
from ampbench.worker import memory
from ampbench.worker.machine import Accelerator, Cpu, open_device
from ampbench.worker.memory import (
    PROFILED_STEPS,
    busy_of,
    count_flops,
    count_work,
    device_seconds,
    graphs_left_aside,
    peaks_of,
)
from ampbench.worker.sources import build_workload
from ampbench.worker.step import Step, TrainingStep, build_step
from ampbench.workload import Workload
from ampbench.workloads.index import WORKLOADS
from ampbench.workloads.index import source as builtin_source
from tests.worker.conftest import make_case

POSITIONS = 4 * 10


def linear() -> Callable[[], Any]:
    module, given = torch.nn.Linear(64, 32), torch.randn(16, 64)
    return lambda: module(given)


def total(run: Callable[[], Any]) -> int:
    found = count_flops(run)
    assert found is not None
    return sum(found.values())


def torchs(run: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def step_of(name: str, case: Case) -> Step:
    spec = WORKLOADS[name]
    return build_step(build_workload(builtin_source(spec), spec.preset("tiny"), 0), case, open_device("cpu"))


@pytest.mark.parametrize(("precision", "phase"), [("bf16_autocast", "inference"), ("fp32", "training")])
@pytest.mark.parametrize("name", ["simple_conv", "transformer_encoder"])
def test_the_total_is_that_of_torchs_own_counter(name: str, precision: str, phase: str) -> None:
    step = step_of(name, make_case(precision, phase))
    with nullcontext() if isinstance(step, TrainingStep) else torch.no_grad():
        found = count_flops(step.run)
        assert found is not None
        assert sum(found.values()) == torchs(step.run) > 0
    row = PRECISIONS[precision]
    expected = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[row.autocast or row.storage]
    assert max(found, key=lambda dtype: found[dtype]) == expected


@pytest.mark.parametrize(("kind", "low"), [(torch.nn.GRU, True), (torch.nn.LSTM, False), (torch.nn.RNN, True)])
def test_every_position_of_a_recurrent_network_is_multiplied_by_every_weight(kind: Any, low: bool) -> None:
    module, given = kind(32, 64, 2, batch_first=True, bidirectional=True), torch.randn(4, 10, 32)
    products = 2 * POSITIONS * sum(weight.numel() for weight in module.parameters() if weight.ndim == 2)
    region = torch.autocast("cpu", dtype=torch.bfloat16, enabled=low)
    with torch.no_grad(), region:
        assert count_flops(lambda: module(given)) == {"bf16" if low else "fp32": products}

    def train() -> None:
        with region:
            loss = module(given)[0].sum()
        loss.backward()

    # the first layer's input needs no gradient, which not every kernel makes use of
    assert 2.5 * products <= total(train) <= 3 * products


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("kind", [torch.nn.Conv2d, torch.nn.ConvTranspose2d])
def test_the_groups_of_a_convolution_divide_its_work_forwards_and_backwards(kind: Any, groups: int) -> None:
    module, images = kind(8, 16, 3, groups=groups), torch.randn(2, 8, 12, 12, requires_grad=True)
    places = 10 * 10 if kind is torch.nn.Conv2d else 12 * 12
    forward = 2 * 2 * places * module.weight.numel()
    assert total(lambda: module(images)) == forward
    assert total(lambda: module(images).sum().backward()) == 3 * forward


def test_fused_kernels_count_in_the_dtype_that_autocast_makes_them_multiply_in() -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    attention = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    given = torch.randn(4, 10, 32)
    for run in (
        lambda: layer(given),
        lambda: attention(given, given, given),
        lambda: torch.nn.functional.scaled_dot_product_attention(given, given, given),
    ):
        with torch.no_grad():
            assert set(count_flops(run) or {}) == {"fp32"}
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert set(count_flops(run) or {}) == {"bf16"}


def test_what_cannot_be_counted_is_unknown_and_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> int:
        raise AssertionError("no such layout")

    monkeypatch.setitem(flop_registry, torch.ops.aten.addmm, unknown)
    run, seen = linear(), []
    assert count_flops(lambda: seen.append(run())) is None
    assert torch.equal(seen[0], run())


def test_an_error_of_the_step_is_raised_and_one_of_the_counter_is_not() -> None:
    def fail() -> None:
        raise ValueError("no luck today")

    with pytest.raises(ValueError, match="no luck today"):
        count_flops(fail)
    times: list[int] = []

    def fail_once() -> None:
        times.append(1)
        if len(times) == 1:
            raise RuntimeError("a mode is on")

    assert count_flops(fail_once) is None
    assert len(times) == 2


def by_operation(run: Callable[[], Any]) -> dict[str, dict[str, int]]:
    found = count_work(run).flops_by_operation
    assert found is not None
    return found


def test_products_convolutions_and_attention_are_counted_apart() -> None:
    heads, images = torch.randn(2, 4, 8, 16), torch.randn(2, 3, 6, 6)
    convolution, module = torch.nn.Conv2d(3, 5, 3, bias=False), torch.nn.Linear(16, 2)

    def run() -> None:
        convolution(images), module(torch.nn.functional.scaled_dot_product_attention(heads, heads, heads))

    with torch.no_grad():
        assert by_operation(run) == {
            "matmul": {"fp32": 2 * (2 * 4 * 8) * 16 * 2},
            "conv": {"fp32": 2 * 2 * 5 * 4 * 4 * 3 * 9},
            "attention": {"fp32": 2 * 2 * (2 * 4) * 8 * 8 * 16},
        }


@pytest.mark.parametrize(("queries", "keys"), [(8, 8), (5, 8), (8, 5)])
def test_of_causal_attention_only_what_its_mask_leaves_must_be_computed(queries: int, keys: int) -> None:
    query, key = torch.randn(2, 4, queries, 16), torch.randn(2, 4, keys, 16)

    def run() -> None:
        torch.nn.functional.scaled_dot_product_attention(query, key, key, is_causal=True)

    left = int(torch.ones(queries, keys).tril().sum())
    assert by_operation(run) == {"attention": {"fp32": 2 * 2 * (2 * 4) * left * 16}}
    assert total(run) == 2 * 2 * (2 * 4) * queries * keys * 16


def touched(run: Callable[[], Any], *kept: torch.Tensor) -> tuple[int, int, int]:
    """Return the bytes read and written of `kept`, and those of what `run` returns."""
    work = count_work(run, kept=kept)
    assert work.read is not None
    assert work.written is not None
    assert work.produced is not None
    return sum(work.read.values()), sum(work.written.values()), work.produced


def test_weights_and_inputs_are_read_once_and_outputs_written_once_in_the_dtype_they_are_stored_in() -> None:
    module, given = torch.nn.Linear(8, 4).bfloat16(), torch.randn(5, 8, dtype=torch.bfloat16)

    def run() -> Any:
        return module(given) + module(given)

    with torch.no_grad():
        assert touched(run, *module.parameters(), given) == (2 * (8 * 4 + 4 + 5 * 8), 0, 2 * 5 * 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            full = torch.nn.Linear(8, 4)
            assert touched(lambda: full(given), *full.parameters())[0] == 4 * (8 * 4 + 4)


def test_what_may_be_used_in_part_adds_nothing() -> None:
    table, tokens, cache = torch.randn(1000, 8), torch.tensor([[1, 2, 3]]), torch.zeros(2, 50, 8)
    expert, nobody = torch.nn.Linear(8, 8), torch.randn(0, 8)

    def run() -> Any:
        cache[:, 3] = torch.nn.functional.embedding(tokens, table)[0, 0]
        return expert(nobody), table[5]

    with torch.no_grad():
        read, written, _ = touched(run, table, tokens, cache, *expert.parameters())
    assert read <= tokens.nbytes
    assert written == 2 * 8 * 4  # of the cache only what was set


def test_what_is_repeated_by_a_stride_of_zero_is_read_once_and_views_of_what_was_given_are_no_output() -> None:
    given = torch.randn(1, 8)
    assert touched(lambda: given.expand(100, 8).sum(), given) == (8 * 4, 0, 4)
    assert touched(lambda: given.view(8), given) == (0, 0, 0)


def test_an_optimizers_step_reads_and_writes_the_weights_but_only_rows_of_sparse_gradients() -> None:
    module, given = torch.nn.Linear(8, 4, bias=False), torch.randn(5, 8)
    table = torch.nn.Embedding(100, 8, sparse=True)
    for weight, run in ((module.weight, lambda: module(given)), (table.weight, lambda: table(torch.tensor([1, 2])))):
        optimizer = torch.optim.SGD([weight], 0.1)

        def train(run: Callable[[], torch.Tensor] = run, optimizer: torch.optim.Optimizer = optimizer) -> None:
            torch.autograd.backward([run().sum()])
            optimizer.step()

        dense = weight is module.weight
        read, written, _ = touched(train, weight)
        assert (written, read) == ((weight.nbytes, weight.nbytes) if dense else (0, 0))
        work = count_work(train, kept=[weight])
        assert work.wrote(weight) == dense


MICROSECOND = 1000


@dataclass
class Event:
    """A scripted event of the profiler; times are whole microseconds."""

    start: int
    end: int
    device: Any = DeviceType.CUDA
    annotation: bool = False

    def device_type(self) -> Any:
        return self.device

    def is_user_annotation(self) -> bool:
        return self.annotation

    def start_ns(self) -> int:
        return self.start * MICROSECOND

    def duration_ns(self) -> int:
        return (self.end - self.start) * MICROSECOND


def test_busy_time_is_that_of_microseconds_in_which_anything_ran() -> None:
    draw = random.Random(0)
    for _ in range(200):
        starts = [draw.randrange(300) for _ in range(draw.randrange(30))]
        events = [
            Event(start, start + draw.randrange(40), draw.choice([DeviceType.CUDA, DeviceType.XPU])) for start in starts
        ]
        ticks = {tick for event in events for tick in range(event.start, event.end)}
        assert device_seconds(events) == pytest.approx(len(ticks) * 1e-6)


class Profiler:
    """Stands in for torch's: each step of the device is a kernel of 40 us and, beside it, one of 20 us."""

    def __init__(self, seen: list[Event], refuses: str = "", activities: Any = ()) -> None:
        self.activities, self.refuses = activities, refuses
        self.profiler = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: seen))

    def __enter__(self) -> "Profiler":
        if self.refuses:
            raise RuntimeError(self.refuses)
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """A CUDA device whose work torch's profiler can see."""
    monkeypatch.setattr(Accelerator, "synchronize", lambda self: None)
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {torch.profiler.ProfilerActivity.CUDA})
    return Accelerator("cuda")


def test_a_steps_busy_time_is_the_mean_over_the_profiled_steps(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Event] = []
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: Profiler(seen, activities=activities))

    def step() -> None:
        start = 100 * len(seen)
        seen.extend([Event(start, start + 40), Event(start + 30, start + 50)])

    assert busy_of(step, accelerator) == pytest.approx(50e-6)
    assert len(seen) == 2 * PROFILED_STEPS


def test_a_profiler_that_fails_or_sees_nothing_leaves_it_unknown(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: Profiler([]))
    assert busy_of(lambda: None, accelerator) is None
    monkeypatch.setattr(
        torch.profiler, "profile", lambda activities: Profiler([], "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")
    )
    assert busy_of(lambda: None, accelerator) is None
    assert busy_of(lambda: None, Accelerator("xpu")) is None


def leave_aside(why: str) -> None:
    from torch._inductor.cudagraph_utils import log_cudagraph_skip_and_bump_counter

    log_cudagraph_skip_and_bump_counter(why)


def test_why_torch_leaves_graphs_aside_is_collected_once_and_in_one_line() -> None:
    leave_aside("before anybody listens")
    with graphs_left_aside() as reasons:
        leave_aside("skipping cudagraphs due to mutated inputs (1 instances). Found from : \n   File x.py, line 3\n")
        leave_aside("skipping cudagraphs due to cpu device (arg1_1).")
        leave_aside("skipping cudagraphs due to cpu device (arg1_1).")
    leave_aside("after nobody listens any more")
    assert reasons == [
        "skipping cudagraphs due to mutated inputs (1 instances). Found from",
        "skipping cudagraphs due to cpu device (arg1_1)",
    ]


class Allocator(Accelerator):
    """Counts scripted allocations: building keeps 100 bytes, warming up takes 70 for a while, a launch nothing."""

    now = most = 0

    def take(self, count: int) -> None:
        self.now += count
        self.most = max(self.most, self.now)

    def synchronize(self) -> None:
        """Do nothing."""

    release = synchronize

    def allocated_bytes(self) -> int:
        return self.now

    def reset_peak(self) -> None:
        self.most = self.now

    def peak_bytes(self) -> int:
        return self.most

    def reserved_bytes(self) -> int:
        return self.most


@pytest.mark.parametrize(("recorded", "peak"), [(True, 170), (False, 100)])
def test_the_memory_that_a_recorded_step_had_as_it_was_recorded_is_in_its_peak(recorded: bool, peak: int) -> None:
    device = Allocator("cuda")
    device.take(1000)  # of someone else

    def build() -> Any:
        device.take(500)
        device.take(-400)
        return build_step(Workload(module=torch.nn.Linear(4, 4), inputs=torch.ones(2, 4)), make_case(), Cpu())

    def warm(step: Any) -> None:
        device.take(70)
        device.take(-70)

    ((_, found),) = peaks_of([build], device, warm, recorded=recorded)
    assert found.peak == peak


FAULTS = """
import resource, torch
from ampbench.worker.memory import keep_freed_memory
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
layers = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, padding=1)
network = torch.nn.Sequential(*layers)
inputs = torch.randn(4, 3, 32, 32)
keep_freed_memory()
with torch.inference_mode():
    for _ in range(20):
        network(inputs)
    before = faults()
    for _ in range(50):
        network(inputs)
print((faults() - before) / 50)
"""


@pytest.fixture(autouse=True)
def plain() -> Iterator[None]:
    """A process whose heap is the plain one, as far as it knows."""
    memory.keep_freed_memory.cache_clear()
    yield
    memory.keep_freed_memory.cache_clear()


@pytest.fixture
def mallopt(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """A C library that notes what it is asked to keep."""
    asked: list[tuple[int, int]] = []

    class Library:
        gnu_get_libc_version = None

        def mallopt(self, parameter: int, value: int) -> int:
            asked.append((parameter, value))
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library())
    return asked


def test_glibc_is_told_to_keep_what_is_freed(mallopt: list[tuple[int, int]]) -> None:
    memory.keep_freed_memory()
    assert mallopt == [(-3, 1 << 25), (-1, -1)]


def test_another_libc_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    memory.keep_freed_memory()


def test_what_a_user_says_of_a_parameter_is_left_as_it_is(
    mallopt: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072")
    memory.keep_freed_memory()
    assert mallopt == [(-3, 1 << 25)]


@pytest.mark.slow
def test_a_step_that_allocates_half_a_mebibyte_pays_no_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 20

import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType

from ampbench.records.case import Case
from ampbench.worker.machine import Accelerator, Cpu
from ampbench.worker.memory import PROFILED_STEPS, busy_of, device_seconds, graphs_left_aside, peaks_of
from ampbench.worker.step import build_step
from ampbench.workload import Workload

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
def test_the_memory_that_a_recorded_step_had_as_it_was_recorded_is_in_its_peak(
    recorded: bool, peak: int, case: Callable[..., Case]
) -> None:
    device = Allocator("cuda")
    device.take(1000)  # of someone else

    def build() -> Any:
        device.take(500)
        device.take(-400)
        return build_step(Workload(module=torch.nn.Linear(4, 4), inputs=torch.ones(2, 4)), case(), Cpu())

    def warm(step: Any) -> None:
        device.take(70)
        device.take(-70)

    ((_, found),) = peaks_of([build], device, warm, recorded=recorded)
    assert found.peak == peak

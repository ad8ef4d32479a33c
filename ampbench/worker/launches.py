"""The launches of a step: for how long of it an accelerator has work, and why torch.compile recorded no graph."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._autograd import DeviceType

from ampbench.errors import bounded, first_line
from ampbench.worker.machine import Cpu, Device

PROFILED_STEPS = 5
"""Steps in which the profiler sees the device's work: times of kernels repeat, and those of launches do not matter."""


def busy_of(run: Callable[[], Any], device: Device) -> tuple[float | None, str]:
    """Return for how many seconds of a call of `run` the device computes or copies, and, where it is None, why.

    `run` has been called before. It is called some more times under torch's profiler, which records the device's work
    alone. What runs at the same time, in several streams, counts once. On a CPU it is not defined: (None, "").
    The process pays for the profiler from then on: nothing may be timed in it.
    """
    if isinstance(device, Cpu):
        return None, ""
    activity = getattr(torch.profiler.ProfilerActivity, device.type.upper(), None)
    if activity is None or activity not in torch.profiler.supported_activities():  # type: ignore[no-untyped-call]
        return None, f"torch's profiler does not see what {device.type} does"
    try:
        with torch.profiler.profile(activities=[activity]) as profiled:
            for _ in range(PROFILED_STEPS):
                run()
            device.synchronize()
        events = profiled.profiler.kineto_results.events()
    except Exception as error:  # noqa: BLE001 - what the profiler cannot do is no failure of the case
        return None, f"torch's profiler failed: {first_line(error)}"
    busy = device_seconds(events)
    if not busy:
        return None, f"torch's profiler saw no work of {device.type}"
    return busy / PROFILED_STEPS, ""


def device_seconds(events: Iterable[Any]) -> float:
    """Return for how many seconds a device had any work, by the profiler's `events`: kernels, copies and fills.

    What overlaps counts once, gaps do not count, nor do events of the CPU and ranges that people mark.
    """
    spans = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in events
        if event.device_type() != DeviceType.CPU and not event.is_user_annotation()
    )
    total, until = 0, -1
    for start, end in spans:
        if end > until:
            total += end - max(start, until)
            until = end
    return total / 1e9


@contextmanager
def graphs_left_aside() -> Iterator[list[str]]:
    """Collect why torch.compile leaves graphs aside, each reason once, in a mode that is to record them.

    Torch counts each time and logs why (`log_cudagraph_skip_and_bump_counter` of torch/_inductor/cudagraph_utils.py);
    what it counts and gives no reason for is `NO_REASON`. Whole once the `with` statement has ended.
    """
    from torch._dynamo.utils import counters  # as long to import as torch.compile

    reasons: list[str] = []
    heard = _Heard(reasons)
    logger = logging.getLogger("torch._inductor.cudagraph_utils.__cudagraphs")
    before = counters["inductor"]["cudagraph_skips"]
    logger.addHandler(heard)
    try:
        yield reasons
    finally:
        logger.removeHandler(heard)
        if not reasons and counters["inductor"]["cudagraph_skips"] > before:
            reasons.append(NO_REASON)


NO_REASON = "torch gives no reason"


class _Heard(logging.Handler):
    """Puts warnings into a list, each once, in one line and without the traceback that torch may put below it."""

    def __init__(self, texts: list[str]):
        super().__init__(logging.WARNING)
        self._texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        lines = record.getMessage().strip().splitlines()
        text = bounded(lines[0].rstrip(" .:")) if lines else NO_REASON
        if text not in self._texts:
            self._texts.append(text)

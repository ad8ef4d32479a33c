"""What seeing every cast costs: a traced training step, a ledger of a million ops, a probe of autocast's rules."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.utils._debug_mode import DebugMode
from torchvision.models import resnet50

import ampbench
from ampbench.core.units import format_seconds
from ampbench.records.casts import CastPass, savings
from ampbench.studies.casts import by_op, by_origin, by_weight
from ampbench.trace.ledger import CastLedger

STEPS = 15
OPS = 1_000_000


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield what is measured, the figure, and its goal."""
    plain, traced, debugged = step_seconds()
    step = "a ResNet-50 training step (2x3x64x64, bf16 autocast)"
    yield f"{step} under trace_casts", f"{traced / plain:.2f} times", f"DebugMode's, {debugged / plain:.2f} times"
    yield f"a ledger of {OPS:,} ops: savings and views", format_seconds(summary_seconds()), "≤ 5 s"
    yield "probe of autocast's rules, cpu, one dtype", format_seconds(probe_seconds("cpu")), "≤ 30 s"


def step_seconds() -> tuple[float, float, float]:
    """Return the median seconds of a step: plain, traced, under torch's DebugMode; in turns."""
    model, step = _step()
    modes: list[Callable[[], AbstractContextManager[object]]] = [
        nullcontext,
        lambda: ampbench.trace_casts(model),
        DebugMode,
    ]
    taken: list[list[float]] = [[] for _ in modes]
    for turn in range(STEPS + 2):
        for mode, samples in zip(modes, taken, strict=True):
            with mode():
                start = time.perf_counter()
                step()
                seconds = time.perf_counter() - start
            if turn >= 2:
                samples.append(seconds)
    plain, traced, debugged = map(statistics.median, taken)
    return plain, traced, debugged


def summary_seconds() -> float:
    """Return the seconds that all views of a trace of about `OPS` ops take, its records made before."""
    record = CastPass(case_id="", how="device", trace=_long_ledger().trace)
    start = time.perf_counter()
    views = by_op(record), by_weight(record), by_origin(record), savings(record.trace)
    seconds = time.perf_counter() - start
    assert all(views)
    assert len(record.trace.ops) >= OPS
    return seconds


def probe_seconds(device: str) -> float:
    """Return the wall time of a probe of one device type and dtype, the start of Python included."""
    probe = f"from ampbench.studies.rules_measure import probe_rules; probe_rules({device!r}, ['bfloat16'])"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True)
    return time.perf_counter() - start


def _step() -> tuple[torch.nn.Module, Callable[[], None]]:
    torch.manual_seed(0)
    model = resnet50().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, target = torch.randn(2, 3, 64, 64), torch.tensor([1, 2])

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()

    return model, step


def _long_ledger() -> CastLedger:
    layers = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(100)))
    batch = torch.randn(1, 2)
    with torch.no_grad(), ampbench.trace_casts(layers) as ledger:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layers(batch)
        ops_once = len(ledger.ops)
        for _ in range(OPS // ops_once):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                layers(batch)
    return ledger

"""Steps on batches of a size, in processes of their own: they take what is known of them, and are timed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ampbench.drive.servers import ServerChannel
from ampbench.instruments.batch.instrument import TASK
from ampbench.instruments.batch.records import BatchPoint, PointAsked
from ampbench.instruments.batch.search import rate
from ampbench.records.case import Case, WorkloadSource
from ampbench.records.measured import MemoryPass
from ampbench.records.wire import Reply, ask
from tests.scripted_channel import got, make_request

NETWORKS = """
import torch
from ampbench import Workload

def known(batch_size=1):
    class Known(torch.nn.Module):
        def forward(self, x):
            y = x + 1
            return (y * 2).sum()
    return Known(), torch.ones(batch_size, 256, 256)

def trained(batch_size=1):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 16))
    return Workload(module=module, inputs=torch.randn(batch_size, 64), optimizer=torch.optim.AdamW,
                    loss=lambda output: output.float().square().mean())

def full(batch_size=1):
    if batch_size > 8:
        raise MemoryError("no room")
    return known(batch_size)

def normed(batch_size=1):
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    return Workload(module=module, inputs=torch.randn(batch_size, 8), loss=lambda output: output.square().mean())
"""
BLOCK = 256 * 256 * 4

Served = Callable[..., Reply]


@pytest.fixture
def serve(channel: ServerChannel, tmp_path: Path, case: Callable[..., Case]) -> Served:
    path = tmp_path / "networks.py"
    path.write_text(NETWORKS)

    def serve(
        function: str, batch: int, precision: str = "fp32", phase: str = "inference", task: str = "batch"
    ) -> Reply:
        source = WorkloadSource(name=function, family="user", module=str(path), function=function, builtin=False)
        planned = case(precision, phase, workload=function, parameters={}, batch_size=batch if task == "memory" else 1)
        if task == "memory":
            return channel.serve(make_request("memory", source=source, case=planned, threads=1))
        asked = PointAsked(batch=batch, round=2, seconds=0.01)
        return channel.serve(ask(TASK, asked, source=source, case=planned, threads=1))

    return serve


def found_in(reply: Reply) -> BatchPoint:
    point = TASK.found(reply)
    assert point is not None, reply
    return point


def test_what_a_batch_takes_is_what_its_tensors_are(serve: Served) -> None:
    for batch in (1, 7, 32):
        point = found_in(serve("known", batch))
        # the inputs, x + 1, and its double
        assert point.peak_bytes == pytest.approx(3 * batch * BLOCK, abs=256)
        assert (point.batch, point.round, point.source, point.items_per_step) == (batch, 2, "profiler", batch)


@pytest.mark.parametrize("precision", ["fp32", "bf16_autocast", "bf16_pure"])
@pytest.mark.parametrize("phase", ["inference", "training"])
def test_it_is_what_a_run_with_that_batch_size_has_for_a_peak(serve: Served, precision: str, phase: str) -> None:
    memory: MemoryPass = got("memory", serve("trained", 24, precision, phase, task="memory"))
    assert found_in(serve("trained", 24, precision, phase)).peak_bytes == memory.peak_bytes


def test_the_batch_is_timed_and_the_process_told_to_have_grown(serve: Served) -> None:
    point = found_in(serve("known", 16))
    assert (rate(point) or 0.0) > 0
    assert (point.resident_bytes or 0) > 2 * 16 * BLOCK


def test_a_memory_error_is_a_failure_that_is_told_from_others(serve: Served) -> None:
    reply = serve("full", 16)
    assert reply.failure is not None
    assert reply.failure.cause == "out of memory"
    reply = serve("normed", 1, phase="training")
    assert reply.failure is not None
    assert reply.failure.cause == "exception"
    assert "more than 1 value per channel" in reply.failure.message

"""Ceilings measured: the work that is counted, the sizes that are run, what a device cannot do."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ampbench.records.measured import ATTENTION, CONV, MATMUL
from ampbench.studies import devices_measure as measure
from ampbench.studies.ceilings import COPY, OPERATIONS
from ampbench.studies.devices_measure import Task, measure_ceiling, tasks_of
from ampbench.worker.machine import Cpu, Device


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that take no time."""
    monkeypatch.setattr(measure, "SQUARES", {"cpu": (8, 16)})
    monkeypatch.setattr(measure, "LAYERS", {"cpu": ((8, 4, 6),)})
    monkeypatch.setattr(measure, "CONVOLUTIONS", {"cpu": ((2, 4, 8, 6, 3), (2, 3, 5, 6, 1))})
    monkeypatch.setattr(measure, "ATTENTIONS", {"cpu": ((2, 3, 8, 4), (1, 2, 16, 8))})
    monkeypatch.setattr(measure, "COPIES", {"cpu": (10, 21)})


def planned(*works: int, fail: bool = False) -> list[Task]:
    """Return tasks of a series, each of which does nothing."""

    def build(_: object) -> object:
        if fail:
            raise RuntimeError('"conv" not implemented for Half\nand more')
        return lambda: None

    return [Task(f"size {work}", work, build) for work in works]  # type: ignore[arg-type]


def grow(tasks: list[Task], device: Device, longest: float) -> tuple[list[str], str]:
    found, note = measure._grow(tasks, device, torch.randn, 1e-4, longest)
    return [one.size for one in found], note


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("operation", [MATMUL, CONV, ATTENTION])
def test_flops_are_those_that_torch_counts(operation: str) -> None:
    tasks = [task for series in tasks_of(operation, "cpu", torch.float64) for task in series]
    assert len(tasks) == {MATMUL: 3, CONV: 4, ATTENTION: 2}[operation]
    for task in tasks:
        run = task.build(torch.randn)
        with FlopCounterMode(display=False) as counter:
            run()
        assert counter.get_total_flops() == task.work, task.size


@pytest.mark.usefixtures("small")
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_products_of_fp32_run_in_onednn_too_and_come_out_the_same() -> None:
    series = tasks_of(MATMUL, "cpu", torch.float32)
    assert [tasks[0].size for tasks in series] == ["8x8x8", "linear 8x4x6", "onednn 8x4x6"]
    assert len(tasks_of(MATMUL, "cpu", torch.bfloat16)) == 2
    for layer, onednn in zip(series[1], series[2], strict=True):
        assert layer.work == onednn.work
        torch.manual_seed(0)
        expected = layer.build(torch.randn)()
        torch.manual_seed(0)
        torch.testing.assert_close(onednn.build(torch.randn)(), expected)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_is_as_many_bytes_in_every_dtype_read_and_written(dtype: torch.dtype) -> None:
    (series,) = tasks_of(COPY, "cpu", dtype)
    assert [(task.size, task.work) for task in series] == [("1 KiB", 2 << 10), ("2 MiB", 2 << 21)]
    for task in series:
        copied = task.build(lambda *shape: torch.randn(*shape, dtype=dtype))()
        assert isinstance(copied, torch.Tensor)
        assert 2 * copied.nbytes == task.work
        assert copied.count_nonzero() > 0.9 * copied.numel()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_size_is_measured_in_every_dtype(operation: str, dtype: str) -> None:
    found = measure_ceiling(Cpu(), operation, dtype, 0.02)
    assert (found.device, found.operation, found.dtype, found.error) == ("cpu", operation, dtype, "")
    assert found.threads == torch.get_num_threads()
    held = {"fp32": torch.float32, "fp16": torch.float16}[dtype]
    assert len(found.attained) == sum(map(len, tasks_of(operation, "cpu", held)))
    assert all(sample > 0 for one in found.attained for sample in one.samples)
    assert found.fitness.load is not None


def test_sizes_stop_growing_where_one_run_would_take_too_long() -> None:
    class Slow(Cpu):
        def seconds(self, step: object, count: int) -> float:
            return 1e-3 * count

    sizes, note = grow(planned(10, 20, 2000), Slow(), longest=0.01)
    assert sizes == ["size 10", "size 20"]
    assert note == "one run would take about 100 ms"
    assert grow(planned(10), Slow(), longest=1e-9) == (["size 10"], "")


def test_what_is_not_supported_at_all_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "tasks_of", lambda *_: [planned(1, 2, fail=True), planned(3, fail=True)])
    found = measure_ceiling(Cpu(), CONV, "fp16", 0.01)
    assert found.error.startswith('RuntimeError: "conv" not implemented for Half')
    assert found.attained == found.notes == []

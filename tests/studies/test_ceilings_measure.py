"""Ceilings measured: which are planned, the work and the sizes that are run, and which ones a run takes over."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from torch.utils.flop_counter import FlopCounterMode

from ampbench.drive.session import Prepared
from ampbench.errors import NothingToRunError
from ampbench.records.case import DeviceDescription, Environment
from ampbench.records.kinds import CEILINGS
from ampbench.records.measured import ATTENTION, CONV, MATMUL
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.studies import devices_measure as measure
from ampbench.studies import work as working
from ampbench.studies.ceilings import (
    COPY,
    OPERATIONS,
    READ,
    STUDY,
    Ceiling,
    CeilingAsked,
    CeilingsAsked,
    best,
    ceilings_known,
)
from ampbench.studies.devices_measure import Task, measure_ceiling, tasks_of
from ampbench.studies.work import lacking
from ampbench.worker.machine import Cpu, Device
from tests.scripted_channel import CPU, NO_GPU, Scripted, asked_in, machine
from tests.stored_runs import make_ceiling, make_header, write_run
from tests.studies.ceiling_records import ceiling
from tests.studies.working import studied

GPU = DeviceDescription(type="cuda", available=True, tf32=True, arithmetic={"fp16": "native", "bf16": "unavailable"})
ASKED = CeilingsAsked(seconds=0.5, operation=[MATMUL, COPY], dtype=["fp32", "bf16"])


def answer(request: Request) -> Reply:
    return reply_with(ceiling(asked_in(request).operation, asked_in(request).dtype, 1e9, device=request.device))


@contextmanager
def prepared(channel: Scripted, *devices: str, asked: CeilingsAsked = ASKED) -> Iterator[Prepared]:
    with working.prepared(
        STUDY, Selection(devices=list(devices)), Settings(threads=2), asked, open_channel=lambda: channel
    ) as found:
        yield found


def noting(told: list[tuple[str, bool]]) -> Callable[..., None]:
    return lambda piece, seen: told.append((piece.named, seen is not None))


def test_each_operation_and_dtype_is_asked_of_a_fresh_worker_and_stored(tmp_path: Path) -> None:
    channel = Scripted(answer)
    told: list[tuple[str, bool]] = []
    stored = studied(STUDY, tmp_path, channel, ASKED, Settings(threads=2), noting(told), workloads=[], preset="")
    assert [(one.task, one.device, asked_in(one)) for one in channel.asked] == [
        ("ceilings", "cpu", CeilingAsked(operation=operation, dtype=dtype, seconds=0.5))
        for operation in ("matmul", "copy") for dtype in ("fp32", "bf16")
    ]  # fmt: skip
    assert {(one.threads, one.fresh) for one in channel.asked} == {(2, True)}
    assert all(one.memory_limit_bytes for one in channel.asked)
    assert [(found.operation, found.dtype) for found in stored.every(Ceiling)] == [
        (asked_in(one).operation, asked_in(one).dtype) for one in channel.asked
    ]
    assert (stored.ending, lacking(STUDY, stored)) == ("complete", [])
    assert told[:3] == [("matmul fp32 cpu", False), ("matmul fp32 cpu", True), ("matmul bf16 cpu", False)]


def test_without_names_all_that_the_device_has_is_measured_but_fp64() -> None:
    wanted = STUDY.parts(make_header(environment=machine(CPU, NO_GPU)), [], CeilingsAsked(operation=[MATMUL]))
    assert [piece.dtype for piece in wanted] == ["fp32", "bf16", "fp16"]
    wanted = STUDY.parts(make_header(environment=machine(CPU, GPU)), [], CeilingsAsked())
    assert {piece.device for piece in wanted} == {"cuda"}
    assert [(piece.operation, piece.dtype) for piece in wanted] == [
        ("matmul", "fp32"), ("matmul", "tf32"), ("matmul", "fp16"), ("conv", "fp32"), ("conv", "tf32"),
        ("conv", "fp16"), ("attention", "fp32"), ("attention", "tf32"), ("attention", "fp16"), ("copy", "fp32"),
        ("copy", "fp16"), ("read", "fp32"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("devices", "asked", "why"),
    [
        (["cuda"], CeilingsAsked(), "cuda is not available: no driver"),
        (["cpu", "cuda"], CeilingsAsked(), "cuda is not available: no driver"),
        (["cpu"], CeilingsAsked(dtype=["fp32", "tf32"], operation=[MATMUL]), "cpu has no tf32"),
        (["cpu"], CeilingsAsked(dtype=["bf16"], operation=[READ]), "all reads are measured in fp32"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is_stored(
    devices: list[str], asked: CeilingsAsked, why: str
) -> None:
    with pytest.raises(NothingToRunError, match=why), prepared(Scripted(answer), *devices, asked=asked):
        pass


DEVICES = [
    DeviceDescription(type="cpu", available=True, name="AMD EPYC"),
    DeviceDescription(type="cuda", available=True, name="NVIDIA H200"),
]
HERE = structs.replace(make_header().environment, devices=DEVICES)


def study(results: Path, day: int, *ceilings: Ceiling, here: Environment = HERE, explains: str = CEILINGS) -> str:
    run = f"202601{day:02d}T120000Z-bench-1f9a3c"
    write_run(results, [], *ceilings, run=run, environment=here, explains=explains)
    return run


def rates(results: Path, here: Environment = HERE) -> dict[str, float | None]:
    known = ceilings_known(results, here)
    return {f"{one.device} {one.operation} {one.dtype}": best([one], one.device, one.dtype) for one in known}


def test_the_highest_ceiling_of_each_dtype_is_known_by_its_run(tmp_path: Path) -> None:
    old = study(tmp_path, 1, make_ceiling("fp32", 3e9), make_ceiling("bf16", 2e9), make_ceiling("bf16", 3e9, "conv"))
    new = study(tmp_path, 2, make_ceiling("bf16", 4e9), make_ceiling("fp32", 1e9))
    assert rates(tmp_path) == {"cpu matmul bf16": 4e9, "cpu conv bf16": 3e9, "cpu matmul fp32": 3e9}
    assert {one.dtype: one.run for one in ceilings_known(tmp_path, HERE) if one.operation == "matmul"} == {
        "bf16": new,
        "fp32": old,
    }


@pytest.mark.parametrize(
    "changes", [{"host": "other"}, {"torch_version": "2.14.0"}, {"cpu": "Intel"}, {"cuda_version": "13.0"}]
)
def test_ceilings_of_another_machine_or_torch_are_not(tmp_path: Path, changes: dict[str, Any]) -> None:
    study(tmp_path, 1, make_ceiling("fp32", 1e9))
    study(tmp_path, 2, make_ceiling("fp32", 2e9), here=structs.replace(HERE, **changes))
    assert rates(tmp_path) == {"cpu matmul fp32": 1e9}


def test_a_cpus_ceilings_hold_for_as_many_threads_and_an_accelerators_for_any(tmp_path: Path) -> None:
    study(tmp_path, 1, make_ceiling("fp32", 1e9), make_ceiling("fp32", 9e9, device="cuda"))
    assert rates(tmp_path, structs.replace(HERE, threads=1)) == {"cuda matmul fp32": 9e9}


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

"""Which ceilings are planned, how workers are asked for them, and which ones a run takes over: this very machine's."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ampbench.drive.session import Prepared
from ampbench.errors import NothingToRunError
from ampbench.records.case import DeviceDescription, Environment
from ampbench.records.kinds import CEILINGS
from ampbench.records.measured import MATMUL
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.studies import work as working
from ampbench.studies.ceilings import (
    COPY,
    READ,
    STUDY,
    Ceiling,
    CeilingAsked,
    CeilingsAsked,
    best,
    ceilings_known,
)
from ampbench.studies.work import lacking
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

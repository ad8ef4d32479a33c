"""Ceilings that a run takes over: the highest of this very machine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ampbench.instruments.ceilings.findings import best
from ampbench.instruments.ceilings.instrument import ceilings_known
from ampbench.records.case import DeviceDescription, Environment
from ampbench.records.measured import Fitness
from ampbench.records.run import CEILINGS
from ampbench.records.studies import Attained, Ceiling
from tests.stored_runs import make_ceiling, make_header, write_run

DEVICES = [
    DeviceDescription(type="cpu", available=True, name="AMD EPYC"),
    DeviceDescription(type="cuda", available=True, name="NVIDIA H200"),
]
HERE = replace(make_header().environment, devices=DEVICES)


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


@pytest.mark.parametrize("first", [1e9, 2e9])
def test_the_highest_of_a_run_that_measured_one_twice_counts(first: float, tmp_path: Path) -> None:
    study(tmp_path, 1, make_ceiling("fp32", first), make_ceiling("fp32", 3e9 - first))
    assert rates(tmp_path) == {"cpu matmul fp32": 2e9}


def test_a_ceiling_that_other_work_may_have_lowered_is_none(tmp_path: Path) -> None:
    busy, quiet = Fitness(other_share=0.6), Fitness(other_share=0.05)
    study(tmp_path, 1, make_ceiling("fp32", 2e9, fitness=busy), make_ceiling("bf16", 1e9, fitness=quiet))
    assert rates(tmp_path) == {"cpu matmul bf16": 1e9}


def test_of_equal_ceilings_the_newest_is_named(tmp_path: Path) -> None:
    study(tmp_path, 1, make_ceiling("fp32", 1e9))
    new = study(tmp_path, 2, make_ceiling("fp32", 1e9))
    assert [one.run for one in ceilings_known(tmp_path, HERE)] == [new]


def test_a_faster_copy_of_less_does_not_outdo_the_largest(tmp_path: Path) -> None:
    largest = study(tmp_path, 1, make_ceiling("fp32", 2e9, "copy"))
    cached = Attained(size="256 KiB", work=10**6, samples=[1e-4])
    study(tmp_path, 2, make_ceiling("fp32", 1e10, "copy", attained=[cached]))
    assert [one.run for one in ceilings_known(tmp_path, HERE)] == [largest]


@pytest.mark.parametrize(
    "changes", [{"host": "other"}, {"torch_version": "2.14.0"}, {"cpu": "Intel"}, {"cuda_version": "13.0"}]
)
def test_ceilings_of_another_machine_or_torch_are_not(tmp_path: Path, changes: dict[str, Any]) -> None:
    study(tmp_path, 1, make_ceiling("fp32", 1e9))
    study(tmp_path, 2, make_ceiling("fp32", 2e9), here=replace(HERE, **changes))
    assert rates(tmp_path) == {"cpu matmul fp32": 1e9}


def test_a_cpus_ceilings_hold_for_as_many_threads_and_an_accelerators_for_any(tmp_path: Path) -> None:
    study(tmp_path, 1, make_ceiling("fp32", 1e9), make_ceiling("fp32", 9e9, device="cuda"))
    assert rates(tmp_path, replace(HERE, threads=1)) == {"cuda matmul fp32": 9e9}


def test_ceilings_of_another_accelerator_are_not(tmp_path: Path) -> None:
    study(tmp_path, 1, make_ceiling("fp32", 9e9, device="cuda"))
    other = replace(HERE, devices=[DEVICES[0], replace(DEVICES[1], name="NVIDIA A100")])
    assert rates(tmp_path, other) == {}
    assert rates(tmp_path, replace(HERE, devices=DEVICES[:1])) == {}


def test_what_attained_nothing_and_what_is_no_study_is_left_out(tmp_path: Path) -> None:
    study(tmp_path, 1, make_ceiling("fp32", 1e9, run="elsewhere"), explains="")
    study(tmp_path, 2, make_ceiling("fp16", 1e9, attained=[], error="not supported"))
    assert rates(tmp_path) == {}


def test_a_folder_without_runs_or_with_damaged_ones_knows_none(tmp_path: Path) -> None:
    assert ceilings_known(tmp_path / "none", HERE) == []
    study(tmp_path, 1, make_ceiling("fp32", 1e9))
    (tmp_path / "runs" / "20260103T120000Z-bench-1f9a3c.jsonl").write_text("no run\n")
    assert rates(tmp_path) == {"cpu matmul fp32": 1e9}

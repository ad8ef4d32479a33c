"""`ampbench doctor`: what there is, what is wrong, what to do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ampbench.drive.fitness import Spoiler
from ampbench.errors import AmpbenchError
from ampbench.records.case import Environment

Run = Callable[..., Any]
FINDING = Spoiler(name="load", what="the load is 9", why="threads wait", remedy="wait until it has gone", grave=True)


@pytest.fixture
def machine(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set what a worker and the operating system say."""

    def says(found: Environment | AmpbenchError = environment, findings: tuple[Spoiler, ...] = (FINDING,)) -> None:
        def probe(meanwhile: Callable[[], object]) -> Environment:
            meanwhile()
            if isinstance(found, AmpbenchError):
                raise found
            return found

        monkeypatch.setattr("ampbench.drive.servers.probe", probe)
        monkeypatch.setattr("ampbench.drive.fitness.inspect", lambda: list(findings))

    says()
    return says


def test_it_says_how_each_device_computes_in_each_dtype(machine: Run, ampbench: Run) -> None:
    out = ampbench("doctor").out
    assert "  device  fp64    fp32    tf32  bf16    fp16      autocast  memory" in out
    assert "  cpu     native  native  none  native  emulated  bf16      23.5 GiB  AMD EPYC\n" in out
    assert "cpu emulates fp16" in out
    assert "cuda is not available: no cuda device or driver found" in out


def test_a_device_that_torch_cannot_use_comes_first_in_torchs_words(
    machine: Run, environment: Environment, ampbench: Run
) -> None:
    reason = "RuntimeError: the driver is too old"
    cpu, cuda = environment.devices
    machine(structs.replace(environment, devices=[cpu, structs.replace(cuda, unusable=True, reason=reason)]))
    lines = ampbench("doctor").out.splitlines()
    assert [line.strip() for line in lines if line.strip()][:2] == [
        "Unusable devices",
        f"torch cannot use cuda: {reason}",
    ]
    assert not any("cuda is not available" in line for line in lines)


def test_each_finding_comes_with_its_reason_and_its_remedy(machine: Run, ampbench: Run) -> None:
    out = ampbench("doctor").out
    assert "  ! the load is 9\n    why: threads wait\n    do:  wait until it has gone\n" in out
    machine(findings=())
    assert "no cause of bad measurements found" in ampbench("doctor").out


def test_without_torch_the_machine_is_described_all_the_same(machine: Run, ampbench: Run) -> None:
    machine(AmpbenchError("torch cannot be imported: No module named 'torch'"))
    said = ampbench("doctor")
    assert said.code == 0
    assert "torch     torch cannot be imported" in said.out
    assert "the load is 9" in said.out


def test_whole_results_are_exit_0_and_damaged_ones_exit_3(machine: Run, results: Path, ampbench: Run) -> None:
    said = ampbench("doctor", "--results", results)
    assert said.code == 0
    assert "1 of 1 are whole" in said.out
    (results / "runs" / "zzz.jsonl").write_text("nonsense\n")
    said = ampbench("doctor", "--results", results)
    assert said.code == 3
    assert "no header of an ampbench run" in said.out
    assert "1 of 2 are whole" in said.out
    said = ampbench("doctor", "--results", results, "--json")
    assert said.code == 3
    assert list(json.loads(said.out)["results"].values()).count(None) == 1

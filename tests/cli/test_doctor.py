"""`ampbench doctor`: what there is, what is wrong, what to do; and with `--prove`, numbers held against others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from ampbench.cli import doctor
from ampbench.cli.doctor import FAILED, JUDGES, NOT_ASKED, OK
from ampbench.drive.fitness import Spoiler
from ampbench.errors import AmpbenchError
from ampbench.judge.rounds import Control
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

        monkeypatch.setattr("ampbench.cli.doctor.probe", probe)
        monkeypatch.setattr("ampbench.cli.doctor.inspect", lambda: list(findings))

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


TIMES = {"ampbench": 1.0, "timer": 1.01, "clock": 1.02, "spread": 0.001}
PRODUCTS = {
    "fp32": {"ampbench": 3e-7, "least": 0.0, "most": 2e-6},
    "tf32": {"ampbench": 3e-4, "least": 6e-5, "most": 1e-3},
}
RATE = {"ampbench": 6e14, "loop": 6e14, "spread": 0.0, "dtype": "fp16", "size": "8192x8192x8192"}


@pytest.mark.parametrize(
    ("answers", "control", "wrong"),
    [
        ({}, 1.001, {}),
        ({"time": TIMES | {"ampbench": 0.9}}, 1.001, {"time": FAILED}),
        ({"time": TIMES | {"spread": 0.1}}, 1.001, {"time": NOT_ASKED}),
        ({"time": {"error": "out of memory"}}, 1.001, {"time": NOT_ASKED}),
        ({"memory": {"ampbench": 103 << 20}}, 1.001, {"memory": FAILED}),
        ({"precisions": PRODUCTS | {"fp32": PRODUCTS["fp32"] | {"ampbench": 3e-4}}}, 1.001, {"precisions": FAILED}),
        ({"precisions": PRODUCTS | {"tf32": PRODUCTS["tf32"] | {"ampbench": 3e-7}}}, 1.001, {"precisions": FAILED}),
        ({"precisions": PRODUCTS | {"bf16": {"error": "no bf16"}}}, 1.001, {}),
        ({"speed": RATE | {"ampbench": 3e14}}, 1.001, {"speed": FAILED}),
        ({"speed": RATE | {"ampbench": 2e15}}, 1.001, {"speed": FAILED}),
        ({}, 1.02, {"repeatability": FAILED}),
        ({}, 9.0, {"repeatability": NOT_ASKED}),
    ],
)
def test_each_number_is_held_against_another(
    monkeypatch: pytest.MonkeyPatch,
    environment: Environment,
    answers: dict[str, Any],
    control: float,
    wrong: dict[str, str],
) -> None:
    def asked(*arguments: str, **variables: str) -> str:
        measured = {"time": TIMES, "memory": {"ampbench": 100 << 20}, "precisions": PRODUCTS, "speed": RATE} | answers
        return str(100 << 20) if "-c" in arguments else json.dumps(measured)

    rounds = np.array([1.0, 1.001, 1.0, 1.001, 1.0, control if control > 2 else 1.001])
    measured_twice = Control(case_id="", own=np.ones(6), again=rounds * min(control, 1.02))
    monkeypatch.setattr(doctor, "_asked", asked)
    monkeypatch.setattr("ampbench.store.list_runs", lambda folder: [folder])
    monkeypatch.setattr("ampbench.store.read_run", lambda path: path)
    monkeypatch.setattr("ampbench.judge.rounds.control_ratio", lambda stored: measured_twice)
    card = structs.replace(environment.devices[1], available=True, name="NVIDIA H100 80GB HBM3")
    device, proofs = doctor.prove(structs.replace(environment, devices=[environment.devices[0], card]))
    assert device is card
    assert {proof["question"]: proof["outcome"] for proof in proofs} == dict.fromkeys(JUDGES, OK) | wrong


def test_nothing_can_be_asked_of_a_card_that_torch_cannot_use_and_the_cpu_does_not_stand_in(
    monkeypatch: pytest.MonkeyPatch, environment: Environment, ampbench: Run, tmp_path: Path
) -> None:
    card = structs.replace(environment.devices[1], unusable=True, reason="the driver is too old")
    described = structs.replace(environment, devices=[environment.devices[0], card])
    monkeypatch.setattr("ampbench.cli.doctor.probe", lambda: described)
    printed = ampbench("doctor", "--prove", "--results", tmp_path)
    assert (printed.code, printed.out.count("could not be asked")) == (1, 5)
    assert printed.out.count("the driver is too old") == 5
    assert (tmp_path / "device" / "cuda.json").exists()


@pytest.mark.slow
def test_this_cpu_is_proved(ampbench: Run, tmp_path: Path) -> None:
    """Times depend on load, so that they only have to be honest; memory and precisions hold whatever else runs."""
    printed = ampbench("doctor", "--prove", "--json", "--results", tmp_path)
    document = json.loads(printed.out)
    (stored,) = (tmp_path / "device").glob("*.json")
    assert json.loads(stored.read_text()) == document
    proofs = {proof["question"]: proof for proof in document["proofs"]}
    assert list(proofs) == list(JUDGES)
    if document["device"] == "cpu":
        assert {proofs["memory"]["outcome"], proofs["precisions"]["outcome"]} == {OK}
    assert printed.code == (FAILED in {proof["outcome"] for proof in document["proofs"]})
    for proof in document["proofs"]:
        assert proof["outcome"] != NOT_ASKED or proof["facts"]["reason"]

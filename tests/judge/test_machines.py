"""Machines side by side: what to take where."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from zlib import crc32

from msgspec import structs

from ampbench.core.budget import Budget
from ampbench.core.statement import Answer
from ampbench.judge.machines import document, machines, networks
from ampbench.records.case import Case
from ampbench.records.run import SPREAD, Fleet, Settings
from ampbench.store import StoredRun
from tests.compared_runs import Times, make_run, noisy
from tests.stored_runs import make_case, make_header

NETS = ("a", "b", "c", "d")
SPEEDS = {"fp32": 1.0, "bf16_pure": 2.0}


def run_of(
    host: str,
    seconds: float,
    precisions: Mapping[str, float] = SPEEDS,
    nets: tuple[str, ...] = NETS,
    **environment: Any,
) -> StoredRun:
    """Return a run on `host`, where a step in fp32 takes so many seconds and precisions are so many times as fast."""
    header = make_header()
    own = structs.replace(header.environment, host=host, **environment)
    header = structs.replace(
        header, run=f"20260131T120000Z-{host}-1f9a3c", environment=own, settings=Settings(rounds=12)
    )
    pairs: list[tuple[Case, list[float]]] = []
    for place, net in enumerate(nets):
        for precision, speed in precisions.items():
            case = make_case(precision, workload=net)
            pairs.append((case, list(noisy(seconds / speed, 12, seed=crc32(f"{host} {place} {precision}".encode())))))
    return make_run(Times(*pairs), header=header, output_rel_l2=1e-3)


def in_fleet(run: StoredRun, lane: str, on: str = SPREAD) -> StoredRun:
    return replace(run, header=structs.replace(run.header, fleet=Fleet(id="abcdef", lane=lane, on=on)))


def test_each_network_says_what_to_take_on_each_machine_the_fastest_first() -> None:
    shown = networks(machines([run_of("slow", 2e-3), run_of("fast", 1e-3, threads=4)], Budget()))
    assert [(each.name, each.machine, each.taken and each.taken["precision"]) for each in shown][:4] == [
        ("a", "fast", "bf16_pure"),
        ("a", "slow", "bf16_pure"),
        ("b", "fast", "bf16_pure"),
        ("b", "slow", "bf16_pure"),
    ]


def test_a_network_without_advice_on_a_machine_says_why() -> None:
    runs = [run_of(name, 2e-3, nets=("a",)) for name in ("sure", "odd")]
    chance = {case_id: structs.replace(one, chance_rel_l2=1.2) for case_id, one in runs[1].divergence.items()}
    runs[1] = replace(runs[1], divergence=chance)
    sure, odd = networks(machines(runs, Budget()))
    assert (sure.machine, odd.machine, odd.taken) == ("sure", "odd", None)
    assert odd.take.statement.code is Answer.UNDECIDED
    assert [row["because"] for row in document(runs, Budget()).rows()] == ["", "bf16_pure: by chance"]


def test_devices_of_one_run_are_machines_of_their_own() -> None:
    run = run_of("both", 2e-3)
    pairs = [
        (structs.replace(case, device=device), list(noisy(2e-3 / factor / SPEEDS[case.precision], 12, seed=place)))
        for factor, device in ((1, "cpu"), (4, "cuda"))
        for place, case in enumerate(run.cases.values())
    ]
    found = machines([make_run(Times(*pairs), header=run.header, output_rel_l2=1e-3)], Budget())
    assert [machine.name for machine in found] == ["both · cpu", "both · cuda"]
    assert [each.machine for each in networks(found) if each.name == "a"] == ["both · cuda", "both · cpu"]


def test_lanes_that_shared_their_cases_are_one_machine() -> None:
    runs = [in_fleet(run_of("x", 1e-3, nets=("a", "b")), "x"), in_fleet(run_of("y", 1e-3, nets=("c",)), "y")]
    (machine,) = machines(runs, Budget())
    assert machine.name == "x + y"
    assert {row["workload"] for row in machine.rows} == {"a", "b", "c"}
    assert len(machines([in_fleet(one, one.header.environment.host, "each") for one in runs], Budget())) == 2


def test_runs_of_one_host_are_told_apart_by_what_differs() -> None:
    runs = [run_of("here", 1e-3), run_of("here", 1e-3, torch_version="2.14.1")]
    assert [one.name for one in machines(runs, Budget())] == ["here · torch 2.15.0", "here · torch 2.14.1"]
    runs = [run_of("here", 1e-3), run_of("here", 1e-3, threads=1)]
    assert [one.name for one in machines(runs, Budget())] == ["here · 2 threads", "here · 1 thread"]

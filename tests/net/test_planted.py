"""Faults that are planted in stored runs, and in what is made of them: the net finds each."""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.net import adapter
from tests.net.comparing import differences
from tests.net.plain import Tables
from tests.net.sources import POLICIES, RUNS, kept

RUN, PAIR = "tests-net-runs-plain", "plain--later"
KEPT = {name: tables for name, tables in kept().items() if name in (RUN, PAIR)}
Lines = list[dict[str, Any]]


def found(name: str, tables: Tables) -> set[tuple[str, str]]:
    """Return the tables and columns in which cells differ from what was kept."""
    planted = json.loads(json.dumps({name: tables}))
    return {(one.table, one.column) for one in differences({name: KEPT[name]}, planted)}


def records(lines: Lines, kind: str) -> Lines:
    return [line[kind] for line in lines if kind in line]


def a_time_is_off_by_a_billionth(lines: Lines) -> None:
    for each in records(lines, "round"):
        each["samples"] = [[value * (1 + 1e-9) for value in build] for build in each["samples"]]


def a_round_is_dropped(lines: Lines) -> None:
    lines.remove(next(line for line in lines if "round" in line and not line["round"]["control"]))


def an_error_has_another_last_digit(lines: Lines) -> None:
    erring = next(one for one in records(lines, "divergence") if one["output"]["rel_l2"])
    erring["output"]["rel_l2"] = math.nextafter(erring["output"]["rel_l2"], 1.0)


def a_case_is_renamed(lines: Lines) -> None:
    case = next(one for one in records(lines, "case") if one["workload"] == "mlp" and one["phase"] == "inference")
    old = f"{case['workload']}["
    for line in lines:
        for record in line.values():
            if record.get("case_id", "").startswith(old):
                record["case_id"] = record["case_id"].replace(old, "mlp2[", 1)
            if record.get("workload") == "mlp":
                record["workload"] = "mlp2"


def a_round_of_the_control_is_slower(lines: Lines) -> None:
    control = next(one for one in records(lines, "round") if one["control"])
    for times in (control["samples"], control["cpu_samples"]):
        times[:] = [[2 * value for value in build] for build in times]


IN_FILES: tuple[tuple[Callable[[Lines], None], str, str], ...] = (
    (a_time_is_off_by_a_billionth, "frame", "seconds_median"),
    (a_round_is_dropped, "frame", "rounds"),
    (an_error_has_another_last_digit, "frame", "output_rel_l2"),
    (a_case_is_renamed, "frame", "(row)"),
    (a_round_of_the_control_is_slower, "control", "ratio"),
)


@pytest.mark.parametrize(("plant", "table", "column"), IN_FILES, ids=lambda one: getattr(one, "__name__", one))
def test_a_fault_in_a_run_file_is_found(
    plant: Callable[[Lines], None], table: str, column: str, tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in (RUNS / "plain.jsonl").read_text(encoding="utf-8").splitlines()]
    plant(lines)
    file = tmp_path / "planted.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert (table, column) in found(RUN, adapter.of_run(file))


def test_arms_that_are_swapped_are_found() -> None:
    swapped = adapter.of_pair(RUNS / "later.jsonl", RUNS / "plain.jsonl", {"default": POLICIES["default"]})
    assert {("findings", "change"), ("findings", "baseline"), ("findings", "verdict")} <= found(PAIR, swapped)


def a_verdict_is_flipped(tables: Tables) -> None:
    cells = next(cells for _, cells in tables["findings"] if cells["verdict"] == "regressed")
    cells["verdict"] = "improved"


def a_gate_lets_pass(tables: Tables) -> None:
    next(cells for _, cells in tables["gates"] if cells["exit_code"])["exit_code"] = 0


def a_finding_is_missing(tables: Tables) -> None:
    del tables["findings"][3]


def findings_stand_in_another_order(tables: Tables) -> None:
    tables["findings"].reverse()


def a_column_is_gone(tables: Tables) -> None:
    for _, cells in tables["findings"]:
        del cells["p_worse"]


IN_TABLES: tuple[tuple[Callable[[Tables], None], str, str], ...] = (
    (a_verdict_is_flipped, "findings", "verdict"),
    (a_gate_lets_pass, "gates", "exit_code"),
    (a_finding_is_missing, "findings", "(row)"),
    (findings_stand_in_another_order, "findings", "order"),
    (a_column_is_gone, "findings", "p_worse"),
)


@pytest.mark.parametrize(("plant", "table", "column"), IN_TABLES, ids=lambda one: getattr(one, "__name__", one))
def test_a_fault_in_what_is_made_of_a_pair_is_found(plant: Callable[[Tables], None], table: str, column: str) -> None:
    tables: Tables = copy.deepcopy(KEPT[PAIR])
    plant(tables)
    assert {table} == {one for one, _ in found(PAIR, tables)}
    assert (table, column) in found(PAIR, tables)


def test_numbers_may_differ_by_rounding_and_errors_may_not() -> None:
    tables: Tables = copy.deepcopy(KEPT[RUN])
    for _, cells in tables["frame"]:
        for column in ("seconds_median", "output_rel_l2"):
            value = cells[column]
            cells[column] = value if value is None or math.isnan(value) else value * (1 + 1e-14)
    assert found(RUN, tables) == {("frame", "output_rel_l2")}


def test_what_is_undefined_is_not_zero() -> None:
    tables: Tables = copy.deepcopy(KEPT[RUN])
    undefined = next(cells for _, cells in tables["frame"] if math.isnan(cells["grad_rel_l2"]))
    undefined["grad_rel_l2"] = 0
    assert found(RUN, tables) == {("frame", "grad_rel_l2")}

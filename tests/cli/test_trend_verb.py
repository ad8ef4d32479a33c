import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from ampbench.records.measured import Failure
from tests.stored_runs import COMPLETE, make_case, make_divergence, make_header, make_memory, make_round, write_run

pytest.importorskip("asv.step_detect")

VERSIONS = ("2.9.1", "2.11.0", "2.12.0", "2.13.0")
CASES = [make_case(precision, workload=name) for name in ("mlp", "resnet18") for precision in ("fp32", "bf16_autocast")]
SLOWED, GROWN, WORSE, LOST = CASES


def entries(version: str) -> list[Any]:
    """Return a run's entries: one case each becomes slower, bigger and less accurate, and one fails in the end."""
    number = VERSIONS.index(version)
    generator = np.random.default_rng(number)
    found: list[Any] = []
    for case in CASES:
        seconds = 1e-3 * (1.2 if case is SLOWED and number >= 2 else 1)
        found += [make_round(case, seconds * math.exp(generator.normal(0, 0.003)), n) for n in range(4)]
        if case is GROWN:
            found += [make_round(case, seconds, n, control=True) for n in range(4)]
        found.append(make_memory(case, 2_000_000 if case is GROWN and number >= 3 else 1_000_000))
        error = 2e-3 if case is WORSE and number == 1 else 4e-3
        found.append(make_divergence(case, output_rel_l2=error, output_floor_rel_l2=1e-3))
    if number == 3:
        found.append(Failure(case_id=LOST.case_id, stage="round", cause="crash", message="signal 11"))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, version in enumerate(VERSIONS):
        environment = replace(make_header().environment, torch_version=version)
        write_run(tmp_path / "results", CASES, *entries(version), COMPLETE, run=f"r{number}", environment=environment,
                  commit="c" * 40, started_at=f"2026-01-{number + 1:02}T12:00:00Z")  # fmt: skip
    return tmp_path / "results"


def test_a_damaged_file_is_left_out_and_named(ampbench: Callable, folder: Path) -> None:
    damaged = folder / "runs" / "zzz.jsonl"
    damaged.write_bytes(b'{"header":' * 5000 + b"\n")
    found = ampbench("trend", "--results", folder)
    assert found.code == 0
    assert f"left out: {damaged}, line 1: " in " ".join((found.out + found.err).split())


def test_changes_come_in_one_table_then_their_causes_and_the_rest_is_counted(ampbench: Callable, folder: Path) -> None:
    found = ampbench("trend", "--results", folder)
    assert (found.code, found.err) == (0, "")
    text, lines = " ".join(found.out.split()), [line.split() for line in found.out.splitlines()]
    assert "over torch version: 2.9.1 → 2.13.0" in text
    assert "4 changes in 3 series: 3 regressed (time 1, memory 1, floor 1), 1 improved (floor 1)" in text
    assert [line[0] for line in lines if line and line[0] in VERSIONS] == ["2.11.0", "2.12.0", "2.12.0", "2.13.0"]
    assert ["2.13.0", "mlp", "bf16_autocast", "memory", "+100%"] in lines
    for before, after in pairwise(VERSIONS):
        assert f"{after}: torch {before} → {after}" in text
    assert "not measured in turns" in text
    assert "signal 11" in text
    assert "without a change: time 3, memory 3, floor 3 (-v lists them)" in text


def document(found: Any) -> Any:
    assert (found.code, found.err) == (0, "")
    return json.loads(found.out)


def test_json_has_every_point_with_its_runs_and_every_change(ampbench: Callable, folder: Path) -> None:
    data = document(ampbench("trend", "--results", folder, "--json", "--metric", "time", "-k", "mlp and /fp32/"))
    (series,) = data["series"]
    assert [point["x"]["value"] for point in series["points"]] == list(VERSIONS)
    assert series["case_id"] == SLOWED.case_id
    assert [[run["run"] for run in point["each"]] for point in series["points"]] == [["r0"], ["r1"], ["r2"], ["r3"]]
    assert all(run["low"] < point["value"] < run["high"] for point in series["points"] for run in point["each"])
    (change,) = series["changes"]
    assert [change[name]["value"] for name in ("x", "last")] == ["2.12.0", "2.11.0"]
    assert (change["direction"], series["rule"], series["place"]["host"]) == ("regressed", "neighbours", "bench")

"""The trade-off between speed and error."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ampbench.core.budget import Budget
from ampbench.records.case import Case
from ampbench.report.material import Material
from ampbench.report.page import drawn
from ampbench.report.views import View, tradeoff
from ampbench.store import StoredRun
from tests.report.materials import make_material, section_of
from tests.stored_runs import make_case, make_divergence, make_header, make_memory, make_round

Measured = tuple[Case, float, float | None]
"""A case with its seconds and output error."""


def of(workload: str, precision: str, **changes: Any) -> Case:
    return make_case(precision, workload=workload, **changes)


FAST: list[Measured] = [
    (of("mlp", "fp32"), 1e-3, 2e-7),
    (of("mlp", "bf16_autocast"), 0.5e-3, 4e-3),
    (of("mlp", "bf16_pure"), 0.25e-3, 5e-2),
    (of("vgg", "fp32"), 1e-3, 3e-7),
    (of("vgg", "bf16_autocast"), 0.8e-3, 6e-3),
]


def run_of(measured: Sequence[Measured], **changes: Any) -> StoredRun:
    fields: dict[str, Any] = {
        "path": Path("run.jsonl"),
        "header": make_header(),
        "cases": {case.case_id: case for case, *_ in measured},
        "rounds": [make_round(case, seconds * (1 + n / 50), n) for case, seconds, _ in measured for n in range(4)],
        "memory": {case.case_id: make_memory(case, 1000) for case, *_ in measured},
        "divergence": {case.case_id: make_divergence(case, output_rel_l2=error) for case, _, error in measured},
    }
    return StoredRun(**fields | changes)


def shown(material: Material) -> View:
    view = tradeoff(material)
    assert view is not None
    return view


def points(view: View) -> set[tuple[str, str]]:
    return {(row["table"], row["precision"]) for row in view.datasets["tradeoff"]}


def test_every_precision_but_fp32_is_a_point_with_its_interval_and_what_is_refused_is_crossed_out() -> None:
    view = shown(make_material(run_of(FAST)))
    assert points(view) == {
        ("mlp inference", "bf16_autocast"),
        ("mlp inference", "bf16_pure"),
        ("vgg inference", "bf16_autocast"),
    }
    for row in view.datasets["tradeoff"]:
        assert row["low"] <= row["speed"] * 1.001
        assert row["high"] >= row["speed"] * 0.999
        assert row["wrong"] == (row["precision"] == "bf16_pure")
    assert "The fastest that is ok is mlp inference bf16_autocast: 2.00x" in view.charts[0].alt


def test_the_error_budget_is_that_of_the_report() -> None:
    view = shown(make_material(run_of(FAST), budget=Budget(output_rel_l2=0.1)))
    assert "error budget 0.1" in str(drawn(view.charts[0], view.datasets["tradeoff"]))


@pytest.mark.parametrize("limit", [0.0, math.inf])
def test_a_budget_without_a_place_on_a_log_axis_is_not_drawn(limit: float) -> None:
    view = shown(make_material(run_of(FAST), budget=Budget(output_rel_l2=limit)))
    assert "error budget" not in str(drawn(view.charts[0], view.datasets["tradeoff"])).partition(">")[2]


def test_the_axis_shows_half_to_one_and_a_half_times_fp32_at_least_and_what_is_far_slower_at_its_edge() -> None:
    alike: list[Measured] = [(of("mlp", "fp32"), 1e-3, 1e-3), (of("mlp", "bf16_pure"), 1e-3, 1.1e-3)]
    emulated: Measured = (of("mlp", "fp16_pure"), 30e-3, 1e-3)
    for measured, least in ((alike, 0.5), ([*FAST, emulated], 0.25)):
        scale = shown(make_material(run_of(measured))).charts[0].spec["layer"][0]["encoding"]["x"]["scale"]
        assert scale["domain"][0] == least
        assert scale["domain"][1] >= 1.5
        assert scale["clamp"]


def test_what_has_no_place_on_a_log_axis_is_not_drawn() -> None:
    odd: list[Measured] = [
        (of("mlp", "fp16_pure"), 1e-3, math.inf),
        (of("mlp", "fp16_autocast"), 1e-3, math.nan),
        (of("mlp", "bf16_master"), 1e-3, None),
        (of("gru", "bf16_pure"), 1e-3, 1e-3),
        (of("copy", "fp32"), 1e-3, 0.0),
        (of("copy", "bf16_pure"), 1e-3, 0.0),
    ]
    view = shown(make_material(run_of([*FAST, *odd])))
    assert points(view) == points(shown(make_material(run_of(FAST))))
    assert drawn(view.charts[0], view.datasets["tradeoff"])


def test_there_is_no_view_without_a_low_precision_beside_fp32() -> None:
    assert tradeoff(make_material(run_of(FAST[:1]))) is None
    assert tradeoff(make_material(run_of(FAST[1:3]))) is None
    assert tradeoff(make_material(run_of([]))) is None


def test_a_precision_of_a_foreign_run_is_drawn_and_its_text_is_made_fit() -> None:
    foreign: Measured = (of("mlp", "int8\u202e"), 1e-4, 1e-3)
    material = make_material(run_of([*FAST, foreign]))
    view = shown(material)
    assert any(row["precision"].startswith("int8") for row in view.datasets["tradeoff"])
    assert "\u202e" not in str(section_of(view))

"""The trade-off between speed, memory and error."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ampbench.core.budget import Budget
from ampbench.records.case import Case, DeviceDescription
from ampbench.records.measured import Failure
from ampbench.report.material import Material
from ampbench.report.networks import machines
from ampbench.report.page import drawn
from ampbench.report.speeds import JOINED, tradeoff
from ampbench.show.page import View
from ampbench.store import StoredRun
from tests.report.materials import make_material, section_of
from tests.stored_runs import make_case, make_divergence, make_header, make_memory, make_round

Measured = tuple[Case, float, float | None, int]
"""A case with its seconds, output error and peak memory."""


def of(workload: str, precision: str, **changes: Any) -> Case:
    return make_case(precision, workload=workload, **changes)


FAST: list[Measured] = [
    (of("mlp", "fp32"), 1e-3, 2e-7, 1000),
    (of("mlp", "bf16_autocast"), 0.5e-3, 4e-3, 1200),
    (of("mlp", "bf16_pure"), 0.25e-3, 5e-2, 500),
    (of("vgg", "fp32"), 1e-3, 3e-7, 1000),
    (of("vgg", "bf16_autocast"), 0.8e-3, 6e-3, 900),
]


def run_of(measured: Sequence[Measured], **changes: Any) -> StoredRun:
    fields: dict[str, Any] = {
        "path": Path("run.jsonl"),
        "header": make_header(),
        "cases": {case.case_id: case for case, *_ in measured},
        "rounds": [make_round(case, seconds) for case, seconds, _, _ in measured],
        "memory": {case.case_id: make_memory(case, peak) for case, _, _, peak in measured},
        "divergence": {case.case_id: make_divergence(case, output_rel_l2=error) for case, _, error, _ in measured},
    }
    return StoredRun(**fields | changes)


def shown(material: Material) -> View:
    view = tradeoff(material)
    assert view is not None
    return view


def test_axes_show_half_to_one_and_a_half_times_fp32_and_two_decades_of_error_at_least() -> None:
    alike: list[Measured] = [(of("mlp", "fp32"), 1e-3, 1e-3, 1000), (of("mlp", "bf16_pure"), 1e-3, 1.1e-3, 1001)]
    view = shown(make_material(run_of(alike)))
    for chart in view.charts:
        axes = chart.spec["layer"][0]["encoding"]
        assert axes["x"]["scale"]["domain"] == [0.5, 1.5]
        low, high = axes["y"]["scale"]["domain"]
        assert high / low == pytest.approx(100)
        assert all(low < error < high for _, _, error, _ in alike)


def test_the_text_names_the_fastest_case_within_the_error_budget() -> None:
    assert shown(make_material(run_of(FAST))).charts[0].alt == (
        "3 cases, 2 within the error budget of 0.02; the best of these is mlp bf16_autocast: 2.00x, error 4.0e-03."
    )


def test_the_error_budget_is_that_of_the_report() -> None:
    view = shown(make_material(run_of(FAST), budget=Budget(output_rel_l2=0.1)))
    assert "within the error budget of 0.1" in view.charts[0].alt
    assert "error budget 0.1" in str(drawn(view.charts[0], view.datasets["tradeoff-0"]))


@pytest.mark.parametrize("limit", [0.0, math.inf])
def test_a_budget_without_a_place_on_a_log_axis_is_not_drawn(limit: float) -> None:
    view = shown(make_material(run_of(FAST), budget=Budget(output_rel_l2=limit)))
    assert "error budget" not in str(drawn(view.charts[0], view.datasets["tradeoff-0"])).partition(">")[2]


def drawn_points(view: View) -> dict[str, list[str]]:
    """Return the precisions drawn of each table, as they are joined."""
    found: dict[str, list[str]] = {}
    for row in sorted(view.datasets["tradeoff-0"], key=lambda row: row["error"]):
        found.setdefault(row["table"], []).append(row["precision"])
    return found


def test_each_workload_has_its_own_line_of_its_precisions_and_fp32_is_no_point() -> None:
    view = shown(make_material(run_of(FAST)))
    assert drawn_points(view) == {"mlp": ["bf16_autocast", "bf16_pure"], "vgg": ["bf16_autocast"]}
    lines = [layer for layer in view.charts[0].spec["layer"] if layer["mark"]["type"] == "line"]
    assert [(one["encoding"]["detail"], one["encoding"]["order"]) for one in lines] == [
        ({"field": "table"}, {"field": "error"})
    ]


def test_lines_that_cannot_be_told_apart_are_left_out() -> None:
    many: list[Measured] = []
    for number in range(JOINED + 1):
        many += [(of(f"net{number}", "fp32"), 1e-3, 1e-7, 10), (of(f"net{number}", "bf16_pure"), 1e-3, 1e-3, 10)]
    layers = shown(make_material(run_of(many))).charts[0].spec["layer"]
    assert "line" not in [layer["mark"]["type"] for layer in layers]


def test_speeds_have_their_intervals_and_memory_has_none() -> None:
    rounds = [
        make_round(case, seconds * (1 + number / 50), number) for case, seconds, _, _ in FAST for number in range(4)
    ]
    view = shown(make_material(run_of(FAST, rounds=rounds)))
    for row in view.datasets["tradeoff-0"]:
        assert row["speed_low"] <= row["speed"] * 1.001
        assert row["speed_high"] >= row["speed"] * 0.999
        assert " to " in row["speed_text"]
    speed, memory = ([layer["mark"]["type"] for layer in chart.spec["layer"]] for chart in view.charts)
    assert speed[:3] == ["line", "rule", "point"]
    assert memory[:2] == ["line", "point"]
    assert "intervals of the speed" in section_of(view, make_material(run_of(FAST))).get_text()


def test_what_is_far_slower_stands_at_the_edge_and_is_counted() -> None:
    emulated: Measured = (of("mlp", "fp16_pure"), 30e-3, 1e-3, 10)
    view = shown(make_material(run_of([*FAST, emulated])))
    x = view.charts[0].spec["layer"][0]["encoding"]["x"]["scale"]
    assert (x["domain"][0], x["clamp"]) == (0.25, True)
    assert view.charts[0].alt.endswith(" At the left edge: 1 case below 0.25x.")


def test_exact_cases_are_not_drawn_but_counted() -> None:
    exact: list[Measured] = [(of("copy", "fp32"), 1e-3, 0.0, 1000), (of("copy", "bf16_pure"), 1e-3, 0.0, 1000)]
    view = shown(make_material(run_of([*FAST, *exact])))
    assert "copy" not in drawn_points(view)
    assert " Not drawn: 1 case without an error above 0" in view.charts[0].alt


def test_measured_cases_without_a_speed_or_an_error_are_counted() -> None:
    lonely: list[Measured] = [(of("gru", "bf16_pure"), 1e-3, 1e-3, 10), (of("mlp", "fp16_pure"), 1e-3, None, 10)]
    view = shown(make_material(run_of([*FAST, *lonely])))
    assert " Not drawn: 2 cases without" in view.charts[0].alt
    assert view.charts[0].alt.startswith("3 cases")


def test_each_device_has_its_own_charts() -> None:
    environment = make_header().environment
    gpu = DeviceDescription(type="cuda", available=True, name="H200")
    elsewhere: list[Measured] = [
        (of("mlp", "fp32", device="cuda"), 1e-3, 1e-7, 10),
        (of("mlp", "bf16_pure", device="cuda"), 1e-4, 1e-3, 5),
    ]
    run = run_of([*FAST, *elsewhere], header=make_header(environment=structs.replace(environment, devices=[gpu])))
    view = shown(make_material(run))
    titles = [machine.title for machine in machines(make_material(run))]
    assert [chart.title for chart in view.charts] == [
        f"{plane} against error on {title}" for title in titles for plane in ("Speed", "Memory")
    ]


def test_runs_of_two_torch_versions_have_no_chart_together() -> None:
    environment = make_header().environment
    other: list[Measured] = [
        (of("gru", case.precision), seconds, error, peak) for case, seconds, error, peak in FAST[:3]
    ]
    older, newer = (
        run_of(
            measured, header=make_header(run=version, environment=structs.replace(environment, torch_version=version))
        )
        for measured, version in ((other, "2.14.0"), (FAST, "2.15.0"))
    )
    view = shown(make_material(older, newer))
    assert [chart.title.rpartition(" · ")[2] for chart in view.charts] == ["torch 2.14.0"] * 2 + ["torch 2.15.0"] * 2


def test_the_section_is_readable_as_text_and_tables() -> None:
    material = make_material(run_of(FAST))
    section = section_of(shown(material), material)
    assert [one.get_text() for one in section.find_all("h3")] == ["Speed against error", "Memory against error"]
    assert "never between workloads" in section.get_text()


def test_there_is_no_view_without_a_low_precision_beside_fp32() -> None:
    assert tradeoff(make_material(run_of(FAST[:1]))) is None
    assert tradeoff(make_material(run_of(FAST[1:3]))) is None
    assert tradeoff(make_material(run_of([]))) is None


def test_there_is_no_view_where_everything_failed() -> None:
    failures = {
        case.case_id: Failure(case_id=case.case_id, stage="round", cause="crash", message="gone") for case, *_ in FAST
    }
    assert tradeoff(make_material(run_of(FAST, rounds=[], memory={}, divergence={}, failures=failures))) is None


def test_an_imported_run_without_errors_has_no_view() -> None:
    readings = {"seconds_median": {case.case_id: seconds for case, seconds, _, _ in FAST}}
    assert tradeoff(make_material(run_of(FAST, rounds=[], memory={}, divergence={}, readings=readings))) is None


def test_without_memory_there_is_the_chart_of_speed_alone() -> None:
    view = shown(make_material(run_of(FAST, memory={})))
    assert [chart.title for chart in view.charts] == ["Speed against error"]
    assert view.datasets["tradeoff-0"][0]["memory_text"] == "–"


def test_numbers_that_are_not_finite_are_left_out() -> None:
    odd: list[Measured] = [
        (of("mlp", "fp16_pure"), 1e-3, math.inf, 10),
        (of("mlp", "fp16_autocast"), 1e-3, math.nan, 10),
    ]
    view = shown(make_material(run_of([*FAST, *odd])))
    assert " Not drawn: 2 cases" in view.charts[0].alt
    assert drawn(view.charts[0], view.datasets["tradeoff-0"])


def test_a_precision_of_a_foreign_run_is_drawn_and_listed() -> None:
    foreign: Measured = (of("mlp", "int8\u202e"), 1e-4, 1e-3, 10)
    material = make_material(run_of([*FAST, foreign]))
    view = shown(material)
    assert any(row["precision"].startswith("int8") for row in view.datasets["tradeoff-0"])
    assert "\u202e" not in str(section_of(view, material))


def test_ten_thousand_points_take_few_bytes_each() -> None:
    view = shown(make_material(run_of(FAST)))
    dull, (chart, _) = view.datasets["tradeoff-0"][1], view.charts
    points = replace(chart, spec={"layer": [one for one in chart.spec["layer"] if one["mark"]["type"] == "point"]})
    rows = [{**dull, "speed": 1 + number / 997, "error": 1e-5 * (1 + number % 89)} for number in range(10_000)]
    assert len(drawn(points, rows)) < 150 * len(rows)


def test_the_run_of_the_readme_has_both_charts(readme_run: Material) -> None:
    view = shown(readme_run)
    assert [chart.title for chart in view.charts] == ["Speed against error", "Memory against error"]
    assert len(view.datasets["tradeoff-0"]) == sum(
        one.row["output_rel_l2"] is not None and one.row["precision"] != "fp32" for one in readme_run.cases
    )

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampbench.advice import Budget
from ampbench.records.cases import Case
from ampbench.records.environments import DeviceDescription
from ampbench.records.measurements import Failure
from ampbench.report.charts import drawn
from ampbench.report.machines import machines
from ampbench.report.material import Material
from ampbench.report.view import View
from ampbench.report.views.tradeoff import LISTED, pareto_front, tradeoff
from ampbench.store import StoredRun
from tests.report.materials import make_material, section_of
from tests.stored_runs import make_case, make_divergence, make_header, make_memory, make_round

COORDINATES = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 2)
POINTS = st.lists(st.tuples(COORDINATES, COORDINATES), max_size=30)

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


def make_run(measured: list[Measured], **changes: Any) -> StoredRun:
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


def fronts(view: View) -> list[list[str]]:
    """Return the cases of each chart's front, as the tables list them."""
    return [[f"{one['case']} {one['precision']}" for one in part["front"]] for part in view.content["parts"]]


def dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one != other and one[0] <= other[0] and one[1] <= other[1]


@given(POINTS)
def test_a_point_is_on_the_front_exactly_where_no_other_dominates_it(points: list[tuple[float, float]]) -> None:
    front = set(pareto_front(points))
    for place, point in enumerate(points):
        assert (place in front) != any(dominates(other, point) for other in points)


@given(POINTS)
def test_the_front_goes_by_its_first_number_and_falls_in_its_second(points: list[tuple[float, float]]) -> None:
    front = [points[place] for place in pareto_front(points)]
    assert front == sorted(front)
    assert [error for _, error in front] == sorted((error for _, error in front), reverse=True)


def test_equal_points_stand_on_the_front_together() -> None:
    assert pareto_front([(1.0, 2.0), (0.0, 3.0), (1.0, 2.0), (1.0, 2.5)]) == [1, 0, 2]


def test_the_front_of_speed_is_listed_from_the_fastest_case_to_the_most_exact() -> None:
    view = shown(make_material(make_run(FAST)))
    assert fronts(view)[0] == ["mlp bf16_pure", "mlp bf16_autocast", "mlp fp32"]


def test_the_front_of_memory_begins_with_the_least_memory() -> None:
    view = shown(make_material(make_run(FAST)))
    assert fronts(view)[1] == ["mlp bf16_pure", "vgg bf16_autocast", "mlp fp32"]


def test_what_is_drawn_as_the_front_is_what_is_listed() -> None:
    view = shown(make_material(make_run(FAST)))
    rows = view.datasets["tradeoff-0"]
    for name, front in zip(("speed", "memory"), fronts(view), strict=True):
        assert {row["case"] for row in rows if row[f"{name}_front"]} == set(front)


def test_axes_show_half_to_one_and_a_half_times_fp32_and_two_decades_of_error_at_least() -> None:
    alike = [(of("mlp", "fp32"), 1e-3, 1e-3, 1000), (of("mlp", "bf16_pure"), 1e-3, 1.1e-3, 1001)]
    view = shown(make_material(make_run(alike)))
    for chart in view.charts:
        axes = chart.spec["layer"][0]["encoding"]
        assert axes["x"]["scale"]["domain"] == [0.5, 1.5]
        low, high = axes["y"]["scale"]["domain"]
        assert high / low == pytest.approx(100)
        assert all(low < error < high for _, _, error, _ in alike)


def test_the_text_names_the_fastest_case_and_the_fastest_within_the_error_budget() -> None:
    alt = shown(make_material(make_run(FAST))).charts[0].alt
    assert alt == (
        "5 cases, 3 on the front; the fastest is mlp bf16_pure with 4.00x the speed of fp32 and an error of 5.0e-02, "
        "beyond the error budget of 0.02; within it mlp bf16_autocast with 2.00x the speed of fp32 and an error of "
        "4.0e-03."
    )


def test_the_error_budget_is_that_of_the_report() -> None:
    view = shown(make_material(make_run(FAST), budget=Budget(output_rel_l2=0.1)))
    assert "within the error budget of 0.1" in view.charts[0].alt
    assert "error budget 0.1" in str(drawn(view.charts[0], view.datasets["tradeoff-0"]))


@pytest.mark.parametrize("limit", [0.0, math.inf])
def test_a_budget_without_a_place_on_a_log_axis_is_not_drawn(limit: float) -> None:
    view = shown(make_material(make_run(FAST), budget=Budget(output_rel_l2=limit)))
    assert "error budget" not in str(drawn(view.charts[0], view.datasets["tradeoff-0"])).partition(">")[2]


def test_exact_cases_are_not_drawn_but_counted_and_on_the_front() -> None:
    exact: Measured = (of("copy", "fp32"), 1e-3, 0.0, 1000)
    view = shown(make_material(make_run([*FAST, exact])))
    assert "copy fp32" not in [row["case"] for row in view.datasets["tradeoff-0"]]
    assert fronts(view)[0] == ["mlp bf16_pure", "mlp bf16_autocast", "copy fp32"]
    assert view.content["parts"][0]["front"][-1]["error"] == "0"
    assert "1 case without any error" in view.content["parts"][0]["remark"]


def test_measured_cases_without_a_speed_or_an_error_are_counted() -> None:
    lonely: list[Measured] = [(of("gru", "bf16_pure"), 1e-3, 1e-3, 10), (of("mlp", "fp16_pure"), 1e-3, None, 10)]
    view = shown(make_material(make_run([*FAST, *lonely])))
    assert "2 cases without fp32 to compare with or without an error" in view.content["parts"][0]["remark"]
    assert view.charts[0].alt.startswith("5 cases")


def test_each_device_has_its_own_charts_and_front() -> None:
    environment = make_header().environment
    gpu = DeviceDescription(type="cuda", available=True, name="H200")
    elsewhere: list[Measured] = [
        (of("mlp", "fp32", device="cuda"), 1e-3, 1e-7, 10),
        (of("mlp", "bf16_pure", device="cuda"), 1e-4, 1e-3, 5),
    ]
    run = make_run([*FAST, *elsewhere], header=make_header(environment=replace(environment, devices=[gpu])))
    view = shown(make_material(run))
    titles = [machine.title for machine in machines(make_material(run))]
    assert [chart.title for chart in view.charts] == [
        f"{plane} against error on {title}" for title in titles for plane in ("Speed", "Memory")
    ]
    assert fronts(view)[2] == ["mlp cuda bf16_pure", "mlp cuda fp32"]


def test_runs_of_two_torch_versions_have_no_front_together() -> None:
    environment = make_header().environment
    other = [(of("gru", case.precision), *numbers) for case, *numbers in FAST[:3]]
    older, newer = (
        make_run(measured, header=make_header(run=version, environment=replace(environment, torch_version=version)))
        for measured, version in ((other, "2.14.0"), (FAST, "2.15.0"))
    )
    view = shown(make_material(older, newer))
    assert [chart.title.rpartition(" · ")[2] for chart in view.charts] == ["torch 2.14.0"] * 2 + ["torch 2.15.0"] * 2
    assert fronts(view)[0] == ["gru bf16_pure", "gru bf16_autocast", "gru fp32"]


def test_a_long_front_is_cut_at_its_exact_end() -> None:
    many: list[Measured] = []
    for number in range(LISTED + 5):
        many += [
            (of(f"net{number}", "fp32"), 1e-3, 0.5, 100),
            (of(f"net{number}", "bf16_pure"), 1e-3 / (number + 2), 1e-3 * (number + 1), 50),
        ]
    view = shown(make_material(make_run(many)))
    part = view.content["parts"][0]
    assert [one["case"] for one in part["front"]][:2] == [f"net{LISTED + 4}", f"net{LISTED + 3}"]
    assert (len(part["front"]), part["more"]) == (LISTED, 5)
    assert "5 more not listed" in section_of(view, make_material(make_run(many))).get_text()


def test_the_section_is_readable_as_text_and_tables() -> None:
    material = make_material(make_run(FAST))
    section = section_of(shown(material), material)
    assert [one.get_text() for one in section.find_all("h3")] == ["Speed against error", "Memory against error"]
    first = section.find_all("table")[0]
    assert "Speed against error" in str(first.caption)
    rows = [[cell.get_text(" ", strip=True) for cell in row.find_all(["th", "td"])] for row in first.find_all("tr")]
    assert rows[0] == ["case", "precision", "speed", "memory", "output error"]
    assert rows[1] == ["mlp bf16_pure", "bf16_pure", "4.00x", "0.50x", "5.0e-02"]


def test_there_is_no_view_without_a_low_precision_beside_fp32() -> None:
    assert tradeoff(make_material(make_run(FAST[:1]))) is None
    assert tradeoff(make_material(make_run(FAST[1:3]))) is None
    assert tradeoff(make_material(make_run([]))) is None


def test_there_is_no_view_where_everything_failed() -> None:
    failures = {
        case.case_id: Failure(case_id=case.case_id, stage="round", cause="crash", message="gone") for case, *_ in FAST
    }
    assert tradeoff(make_material(make_run(FAST, rounds=[], memory={}, divergence={}, failures=failures))) is None


def test_an_imported_run_without_errors_has_no_view() -> None:
    readings = {"seconds_median": {case.case_id: seconds for case, seconds, _, _ in FAST}}
    assert tradeoff(make_material(make_run(FAST, rounds=[], memory={}, divergence={}, readings=readings))) is None


def test_without_memory_there_is_the_chart_of_speed_alone() -> None:
    view = shown(make_material(make_run(FAST, memory={})))
    assert [chart.title for chart in view.charts] == ["Speed against error"]
    assert view.content["parts"][0]["front"][0]["memory"] == "–"


def test_numbers_that_are_not_finite_are_left_out() -> None:
    odd: list[Measured] = [
        (of("mlp", "fp16_pure"), 1e-3, math.inf, 10),
        (of("mlp", "fp16_autocast"), 1e-3, math.nan, 10),
    ]
    view = shown(make_material(make_run([*FAST, *odd])))
    assert "2 cases" in view.content["parts"][0]["remark"]
    assert drawn(view.charts[0], view.datasets["tradeoff-0"])


def test_a_precision_of_a_foreign_run_is_drawn_and_listed() -> None:
    foreign: Measured = (of("mlp", "int8\u202e"), 1e-4, 1e-3, 10)
    material = make_material(make_run([*FAST, foreign]))
    view = shown(material)
    assert fronts(view)[0][0].startswith("mlp int8")
    assert "\u202e" not in str(section_of(view, material))


def test_ten_thousand_points_take_few_bytes_each() -> None:
    view = shown(make_material(make_run(FAST)))
    row = view.datasets["tradeoff-0"][1]
    dull = {**row, "speed_front": False}
    rows = [{**dull, "speed": 1 + number / 997, "error": 1e-5 * (1 + number % 89)} for number in range(10_000)]
    assert len(drawn(view.charts[0], rows)) < 150 * len(rows)


def test_the_run_of_the_readme_has_both_charts(readme_run: Material) -> None:
    view = shown(readme_run)
    assert [chart.title for chart in view.charts] == ["Speed against error", "Memory against error"]
    assert len(view.datasets["tradeoff-0"]) == sum(one.row["output_rel_l2"] is not None for one in readme_run.cases)


def test_a_front_of_exact_cases_alone_draws_the_others_without_it() -> None:
    exact: list[Measured] = [(of("copy", "fp32"), 1e-3, 0.0, 1000), (of("copy", "bf16_pure"), 1e-5, 0.0, 10)]
    view = shown(make_material(make_run([*FAST, *exact])))
    assert fronts(view) == [["copy bf16_pure"], ["copy bf16_pure"]]
    assert not any(row["speed_front"] for row in view.datasets["tradeoff-0"])
    assert drawn(view.charts[0], view.datasets["tradeoff-0"])

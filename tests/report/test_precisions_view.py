"""What each precision brings per machine, the advice, and the trade-off between speed, memory and error."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from xml.etree import ElementTree

import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ampbench.core.budget import Budget
from ampbench.records.case import Case, DeviceDescription
from ampbench.records.measured import Failure
from ampbench.report.answers import machines, parts, spread, summaries
from ampbench.report.material import Material, gather
from ampbench.report.page import drawn
from ampbench.report.views.precisions import (
    JOINED,
    SLOWEST,
    log_bar,
    log_scale,
    precision_tables,
    precisions,
    tradeoff,
)
from ampbench.show.networks import MANY
from ampbench.show.page import View
from ampbench.show.wording import answer, why
from ampbench.store import StoredRun
from tests.compared_runs import BF16, FP32, Times, arms, environment, make_run, noisy
from tests.report.materials import RESULTS, SUITE_RUN, make_material, section_of
from tests.stored_runs import make_case, make_divergence, make_header, make_memory, make_round

POSITIVE = st.floats(min_value=1e-9, max_value=1e9)


def viewed(material: Material) -> View:
    view = precisions(material)
    assert view is not None
    return view


def page(material: Material) -> BeautifulSoup:
    return section_of(viewed(material), material)


def cells(material: Material, table: str) -> list[list[str]]:
    """Return the text of each row but headings of a section's tables of that class."""
    rows = page(material).select(f"table.{table} tr:has(td)")
    return [[" ".join(cell.text.split()) for cell in row.select("th, td")] for row in rows]


def speeding(speeds: dict[str, float], precision: str = "bf16_pure", **header: Any) -> StoredRun:
    """Return a run of a workload for each of `speeds`, which `precision` reaches."""
    pairs: list[tuple[Case, list[float]]] = []
    for workload, speed in speeds.items():
        pairs += [(make_case("fp32", workload=workload), [1e-3] * 4)]
        pairs += [(make_case(precision, workload=workload), [1e-3 / speed] * 4)]
    return make_run(Times(*pairs), header=make_header(**header))


def summed(run: StoredRun) -> dict[str, Any]:
    (machine,) = machines(make_material(run))
    return {one.label: one for one in summaries(machine.tables)}


@given(st.lists(st.one_of(POSITIVE, st.sampled_from([0.0, math.inf, math.nan, None]))))
def test_what_has_no_logarithm_is_left_out_of_the_mean_and_counted(values: list[float | None]) -> None:
    found = spread((value, "x") for value in values)
    known = [value for value in values if value is not None and not math.isnan(value)]
    assert (found is None) == (not known)
    if found is not None:
        assert found.count + found.zeros + found.infinite == len(known)
        usable = [value for value in known if 0 < value < math.inf]
        assert found.mean == (geometric_mean(usable) if usable else None)
        assert (found.low is None) == (found.count < 3)


def test_a_precision_is_summed_up_over_the_tables_in_which_it_and_fp32_are_ok() -> None:
    run = speeding({"one": 1.0, "two": 2.0, "four": 4.0, "lost": 100.0})
    lost = make_case("fp32", workload="lost").case_id
    failure = Failure(case_id=lost, stage="round", cause="crash", message="signal 11")
    run = replace(run, rounds=[one for one in run.rounds if one.case_id != lost], failures={lost: failure})
    found = summed(run)["bf16_pure"]
    assert found.speed.mean == pytest.approx(2.0)
    assert (found.speed.count, found.measured, found.tables) == (3, 4, 4)
    assert found.speed.least == (pytest.approx(1.0), "one")
    assert found.speed.most == (pytest.approx(4.0), "four")
    assert found.speed.low < 2.0 < found.speed.high


def test_the_interval_needs_three_tables() -> None:
    assert summed(speeding({"one": 1.0, "two": 2.0}))["bf16_pure"].speed.low is None


def test_errors_of_zero_are_left_out_of_the_mean_and_said() -> None:
    run = speeding({"one": 2.0, "two": 2.0})
    exact = make_case("bf16_pure", workload="one")
    divergence = make_divergence(exact, output_rel_l2=0.0, output_floor_rel_l2=1e-3)
    run = replace(run, divergence=run.divergence | {exact.case_id: divergence})
    assert summed(run)["bf16_pure"].error.mean == pytest.approx(4e-3)
    row = next(row for row in cells(make_material(run), "precisions") if row[0] == "bf16_pure")
    assert "4.0e-03 of 1, 1 without error" in row


def test_a_table_is_advised_in_the_precision_that_its_advice_names(readme_run: Material) -> None:
    (machine,) = machines(readme_run)
    advice = readme_run.shown[0].advice
    for tables in parts(machine).values():
        for one in summaries(tables):
            groups = {table.group for table in tables}
            assert one.advised == sum(group in groups and each.precision == one.label for group, each in advice.items())


def test_paths_are_summed_up_apart() -> None:
    compiled = [make_case(name, path="compiled") for name in ("fp32", "bf16_autocast")]
    run = make_run(Times((FP32, [1e-3]), (BF16, [5e-4]), *((case, [1e-3]) for case in compiled)))
    (machine,) = machines(make_material(run))
    assert list(parts(machine)) == ["inference · eager", "inference · compiled"]


def test_every_precision_measured_has_a_row_in_the_order_of_the_precisions(readme_run: Material) -> None:
    rows = cells(readme_run, "precisions")
    order = ["fp32", "fp16_autocast", "bf16_autocast", "fp16_pure", "bf16_pure"]
    assert [row[0] for row in rows] == order * 2
    assert "inference, 6 cases of each precision; tf32: skipped" in page(readme_run).text


def test_advice_stands_beside_the_interval_that_it_went_by(readme_run: Material) -> None:
    (shown,) = readme_run.shown
    taken = next(one.taken for one in shown.advice.values() if one.taken and not one.stays)
    beside = f"{taken.speed.value:.2f}x {taken.speed.low:.2f}–{taken.speed.high:.2f}"
    assert beside in " ".join(page(readme_run).get_text(" ").split())


def test_a_row_says_mean_interval_ends_and_for_how_many_tables_it_is_advised() -> None:
    material = make_material(speeding({"one": 1.0, "two": 2.0, "four": 4.0}))
    row = next(row for row in cells(material, "precisions") if row[0] == "bf16_pure")
    assert row[1] == "3 of 3"
    assert row[2].startswith("2.00x 0.36x to 11.19x")
    assert row[3] == "1.00x one to 4.00x four"
    assert row[-1] == "2 of 3"


def test_speed_against_tf32_is_shown_where_there_is_tf32() -> None:
    assert "vs tf32" not in page(make_material(speeding({"one": 2.0}))).text
    run = make_run(Times((FP32, [4e-3] * 4), (make_case("tf32"), [2e-3] * 4), (BF16, [1e-3] * 4)))
    row = next(row for row in cells(make_material(run), "precisions") if row[0] == "bf16_autocast")
    assert row[2:5] == ["4.00x", "4.00x linear_chain", "2.00x"]


def test_intervals_lie_on_one_logarithmic_scale_with_a_mark_at_one() -> None:
    scale = log_scale([1.0, 0.25, 4.0])
    assert [log_bar(value, None, None, scale) for value in (0.25, 1.0, 4.0)] == ["--m:0%", "--m:50%", "--m:100%"]
    assert log_bar(1.0, 0.25, 4.0, scale) == "--m:50%;--l:0%;--h:100%"


def test_each_table_has_its_advice_and_why(readme_run: Material) -> None:
    rows = cells(readme_run, "advice")
    advice = list(readme_run.shown[0].advice.values())
    whys = [
        why(one.statement) or "the fastest within the error budget" if one.precision else answer(one.statement)
        for one in advice
    ]
    assert [row[-1].partition("; not taken: ")[0] for row in rows] == whys
    assert "speedup_vs_fp32" not in page(readme_run).select_one("#precisions").text
    assert [row[2] for row in rows] == [one.precision or "–" for one in advice]
    assert "for this CPU" not in page(readme_run).text  # which the top of the page says


def test_what_is_advised_and_not_shown_is_said_and_the_counts_agree() -> None:
    material = gather([SUITE_RUN], RESULTS, keyword="not bf16_pure")
    advice = list(material.shown[0].advice.values())
    wanted = sum(one.precision == "bf16_pure" for one in advice)
    (machine,) = precision_tables(material)
    assert sum(one.precision == "bf16_pure" for one in machine.advice) == wanted
    hidden = [said for part in machine.parts for said in part.hidden]
    assert sum(int(said.partition("(")[2].split()[0]) for said in hidden) == wanted
    shown = sum(int(row.advised.split()[0]) for part in machine.parts for row in part.rows)
    assert shown + wanted == sum(one.precision is not None for one in advice)
    assert f"advised, but not among the cases shown: {hidden[0]}" in page(material).text


def test_inputs_of_two_dtypes_are_two_rows_of_one_table_each() -> None:
    pure = [make_case("bf16_pure", input_dtype=dtype) for dtype in ("fp32", "bf16")]
    run = make_run(Times((FP32, [2e-3] * 4), (pure[0], [1e-3] * 4), (pure[1], [5e-4] * 4)))
    rows = [(row[0], row[1], row[-1]) for row in cells(make_material(run), "precisions")]
    assert rows == [
        ("fp32", "1 of 1", "0 of 1"),
        ("bf16_pure in-bf16", "1 of 1", "1 of 1"),
        ("bf16_pure in-fp32", "1 of 1", "0 of 1"),
    ]


def test_a_precision_that_failed_with_each_of_several_inputs_is_told_with_each() -> None:
    autocast = [make_case("bf16_autocast", input_dtype=dtype) for dtype in ("fp32", "bf16")]
    pure = make_case("bf16_pure")
    run = make_run(Times((FP32, noisy(1e-3)), (pure, noisy(5e-4)), *((case, []) for case in autocast)))
    ids = [case.case_id for case in autocast]
    run = replace(run, failures={one: Failure(case_id=one, stage="round", cause="crash", message="11") for one in ids})
    (machine,) = precision_tables(make_material(run))
    assert [part.missing for part in machine.parts] == [
        ["bf16_autocast in-bf16: failed", "bf16_autocast in-fp32: failed"]
    ]


def test_a_precision_without_its_scaler_is_called_so_in_the_chart() -> None:
    bare = make_case("fp16_autocast", phase="training", scaler=False)
    run = make_run(Times((make_case("fp32", phase="training"), [2e-3] * 4), (bare, [1e-3] * 4)))
    (chart,) = viewed(make_material(run)).charts
    assert "fp16_autocast (no scaler) is fastest." in chart.alt


def test_the_means_of_arms_of_two_precisions_are_said_to_be_by_the_baselines() -> None:
    ours, theirs = arms(precision="bf16_autocast")
    base = make_run(Times((FP32, noisy(1e-3))), header=ours)
    material = make_material(make_run(Times((BF16, noisy(1e-3))), header=theirs), baseline=base)
    assert page(material).select("table")[-1].th.text == "baseline's precision"


def test_many_tables_are_told_by_the_ranking_alone() -> None:
    few = make_material(speeding({f"net{number}": 2.0 for number in range(MANY)}))
    assert len(page(few).select("table.advice tbody tr")) == MANY
    assert len(viewed(few).datasets["precisions"]) == MANY
    many = make_material(speeding({f"net{number}": 2.0 for number in range(MANY + 1)}))
    assert page(many).select("table.advice") == []
    assert viewed(many).charts == []


def test_the_chart_draws_every_speed_and_says_what_is_fastest() -> None:
    view = viewed(make_material(speeding({"one": 0.5, "two": 2.0})))
    (chart,) = view.charts
    drawn = [(row["table"], row["precision"], row["speed"]) for row in view.datasets["precisions"]]
    assert drawn == [("one", "bf16_pure", pytest.approx(0.5)), ("two", "bf16_pure", pytest.approx(2.0))]
    assert "fp32 is fastest in 1 of 2, bf16_pure in 1." in chart.alt
    assert "The largest speed is bf16_pure: 2.00x (two), the smallest bf16_pure: 0.50x (one)." in chart.alt


def domain_of(view: View) -> list[float]:
    found: list[float] = view.charts[0].spec["layer"][0]["encoding"]["x"]["scale"]["domain"]
    return found


def test_what_hardly_differs_does_not_look_far_apart_and_one_speed_is_said_once() -> None:
    view = viewed(make_material(speeding({"one": 1.01})))
    assert domain_of(view) == [0.5, 1.5]
    assert "smallest" not in view.charts[0].alt


def test_emulated_precisions_stand_at_the_edge_and_leave_the_axis_to_what_one_compares() -> None:
    view = viewed(make_material(speeding({"one": 0.03, "two": 0.1, "three": 2.0})))
    assert domain_of(view) == [SLOWEST, pytest.approx(2.0)]
    assert "2 points slower than 0.25x stand at the left edge." in view.charts[0].alt


def test_what_is_fastest_everywhere_is_said_so() -> None:
    (chart,) = viewed(make_material(speeding({"one": 1.5, "two": 2.0}))).charts
    assert chart.alt.startswith("bf16_pure is fastest in both.")


def test_a_long_name_in_the_chart_loses_its_middle_and_not_what_tells_rows_apart() -> None:
    long = "a_character_level_model_with_a_long_name"
    pairs = [
        (make_case(name, workload=long, batch_size=8, phase=phase), [1e-3 / speed] * 4)
        for phase in ("inference", "training")
        for name, speed in (("fp32", 1.0), ("bf16_pure", 2.0))
    ]
    view = viewed(make_material(make_run(Times(*pairs))))
    (chart,) = view.charts
    svg = ElementTree.fromstring(drawn(chart, view.datasets["precisions"]))
    labels = [text for text in svg.itertext() if "…" in text]  # and none is cut at its end
    assert labels == ["a_characte…long_name inference", "a_characte…_long_name training"]


def test_machines_are_kept_apart_and_the_chart_lets_the_reader_choose() -> None:
    other = environment(make_header(run="b"), host="elsewhere", cpu="Xeon")
    second = replace(speeding({"one": 4.0}), header=other)
    material = make_material(speeding({"one": 2.0}), second)
    titles = [one.text for one in page(material).select("h3")]
    assert "AMD EPYC · cpu · host bench · 2 threads · torch 2.15.0" in titles
    assert "Xeon · cpu · host elsewhere · 2 threads · torch 2.15.0" in titles
    (chart,) = viewed(material).charts
    assert [one.label for one in chart.choices] == [machine.title for machine in machines(material)]


def test_torch_versions_are_never_put_together() -> None:
    newer = environment(make_header(run="b"), torch_version="2.16.0")
    second = replace(speeding({"two": 4.0}), header=newer)
    assert len(machines(make_material(speeding({"one": 2.0}), second))) == 2


def test_runs_of_one_machine_are_summed_up_together() -> None:
    (machine,) = machines(make_material(speeding({"one": 2.0}), speeding({"two": 8.0}, run="b")))
    found = {one.label: one for one in summaries(machine.tables)}
    assert found["bf16_pure"].speed is not None
    assert found["bf16_pure"].speed.mean == pytest.approx(4.0)
    assert [table.label for table in machine.advised] == ["one", "two"]


def test_with_a_baseline_the_change_of_each_precision_is_shown() -> None:
    base = make_run(Times((FP32, noisy(1e-3)), (BF16, noisy(1e-3))), header=make_header(run="base"))
    slower = make_run(Times((FP32, noisy(1e-3)), (BF16, noisy(1.5e-3))), header=make_header(run="new"))
    table = page(make_material(slower, baseline=base)).select("table")[-1]
    rows = [[cell.text.strip() for cell in row.select("th, td")] for row in table.select("tbody tr")]
    assert ["bf16_autocast", "cpu", "time", "+50%", "", "1"] in rows


def test_what_sweeps_say_is_said() -> None:
    selection = structs.replace(make_header().selection, sweeps={"batch_size": [1, 8]})
    pairs = [
        (make_case(name, batch_size=size), [1e-3 / speed] * 4)
        for size, speed in ((1, 0.5), (8, 2.0))
        for name, speed in (("fp32", 1.0), ("bf16_pure", speed))
    ]
    run = make_run(Times(*pairs), header=make_header(selection=selection))
    assert "by batch_size, linear_chain inference eager on cpu: 1 fp32, 8 bf16_pure" in page(make_material(run)).text


def test_precisions_nobody_knows_come_last() -> None:
    foreign = make_case("fp8_secret", workload="one")
    run = speeding({"one": 2.0})
    extra = make_run(Times((foreign, [1e-3] * 4)))
    run = replace(run, cases=run.cases | extra.cases, rounds=[*run.rounds, *extra.rounds])
    assert [row[0] for row in cells(make_material(run), "precisions")] == ["fp32", "bf16_pure", "fp8_secret"]


def test_readings_of_another_program_are_shown_with_what_they_have() -> None:
    times = {FP32.case_id: 2e-3, BF16.case_id: 1e-3}
    run = make_run(Times((FP32, []), (BF16, [])))
    run = replace(run, memory={}, divergence={}, readings={"seconds_median": times})
    row = next(row for row in cells(make_material(run), "precisions") if row[0] == "bf16_autocast")
    assert row[2] == "2.00x"
    assert row[4:8] == ["–", "–", "–", "–"]


def test_without_a_measured_case_there_is_no_section() -> None:
    assert precisions(make_material(StoredRun(path=Path("run.jsonl"), header=make_header()))) is None
    assert precisions(make_material(make_run(Times((FP32, []))))) is None


def test_a_run_without_fp32_has_errors_and_no_chart() -> None:
    view = viewed(make_material(make_run(Times((BF16, [1e-3] * 4)))))
    assert not view.charts
    (row,) = cells(make_material(make_run(Times((BF16, [1e-3] * 4)))), "precisions")
    assert row[:3] == ["bf16_autocast", "0 of 1", "–"]
    assert "4.0e-03" in row[5]


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


def test_the_text_names_the_fastest_case_and_the_fastest_within_the_error_budget() -> None:
    alt = shown(make_material(run_of(FAST))).charts[0].alt
    assert alt == (
        "3 cases, 2 within the error budget of 0.02; the fastest is mlp bf16_pure with 4.00x the speed of fp32 and an "
        "error of 5.0e-02, beyond the budget; within it mlp bf16_autocast with 2.00x the speed of fp32 and an error of "
        "4.0e-03."
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
    assert view.content["parts"][0]["remark"] == "1 case of less than 0.25x the speed: at the left edge."


def test_exact_cases_are_not_drawn_but_counted() -> None:
    exact: list[Measured] = [(of("copy", "fp32"), 1e-3, 0.0, 1000), (of("copy", "bf16_pure"), 1e-3, 0.0, 1000)]
    view = shown(make_material(run_of([*FAST, *exact])))
    assert "copy" not in drawn_points(view)
    assert "1 case without any error" in view.content["parts"][0]["remark"]


def test_measured_cases_without_a_speed_or_an_error_are_counted() -> None:
    lonely: list[Measured] = [(of("gru", "bf16_pure"), 1e-3, 1e-3, 10), (of("mlp", "fp16_pure"), 1e-3, None, 10)]
    view = shown(make_material(run_of([*FAST, *lonely])))
    assert "2 cases without fp32 to compare with or without an error" in view.content["parts"][0]["remark"]
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
    assert "2 cases" in view.content["parts"][0]["remark"]
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

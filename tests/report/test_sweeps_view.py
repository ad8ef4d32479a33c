from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ampbench.records.case import Case
from ampbench.records.measured import Failure
from ampbench.records.run import Selection
from ampbench.report.material import Material
from ampbench.report.page import drawn
from ampbench.report.speeds import MARGIN, sweeps
from ampbench.show.page import View
from ampbench.store import StoredRun
from tests.compared_runs import rounds_of
from tests.report.materials import make_material, section_of
from tests.stored_runs import make_case, make_divergence, make_header, make_memory

STEADY = (0.99, 1.0, 1.01)
"""Three rounds with a narrow interval, as parts of their median."""
NOISY = (0.2, 1.0, 5.0)

Curves = Mapping[str, Mapping[Any, float | None]]
"""Items per second by precision and value; None: the case failed."""

CROSSING: Curves = {
    "fp32": {1: 1000.0, 4: 2000.0, 16: 4000.0, 64: 6000.0},
    "bf16_autocast": {1: 500.0, 4: 1500.0, 16: 6000.0, 64: 20000.0},
    "bf16_pure": {1: 1500.0, 4: 3000.0, 16: 9000.0, 64: None},
}


def make_run(
    curves: Curves, parameter: str = "batch_size", parts: Sequence[float] = STEADY, swept: bool = True, **changes: Any
) -> StoredRun:
    """Return a run of one workload; a step has 8 items."""
    cases: list[Case] = []
    timed, failures = [], {}
    for value in dict.fromkeys(value for members in curves.values() for value in members):
        for precision, members in curves.items():
            if value in members:
                case = _case(precision, parameter, value)
                cases.append(case)
                rate = members[value]
                if rate is None:
                    failures[case.case_id] = Failure(
                        case_id=case.case_id, stage="round", cause="out of memory", message="too large"
                    )
                else:
                    timed += rounds_of(case, [8 / rate * part for part in parts])
    sweeps = {parameter: list(dict.fromkeys(value for members in curves.values() for value in members))}
    fields: dict[str, Any] = {
        "path": Path("run.jsonl"),
        "header": make_header(selection=Selection(sweeps=sweeps if swept else {})),
        "cases": {case.case_id: case for case in cases},
        "rounds": timed,
        "memory": {case.case_id: make_memory(case, 1000) for case in cases if case.case_id not in failures},
        "divergence": {
            case.case_id: make_divergence(case, output_rel_l2=1e-3) for case in cases if case.case_id not in failures
        },
        "failures": failures,
    }
    return StoredRun(**fields | changes)


def _case(precision: str, parameter: str, value: Any) -> Case:
    if parameter == "batch_size":
        return make_case(precision, batch_size=value)
    return make_case(precision, parameters={"depth": 4, parameter: value})


def shown(material: Material) -> View:
    view = sweeps(material)
    assert view is not None
    return view


def test_a_sweep_shows_throughput_and_what_to_take_at_each_value() -> None:
    view = shown(make_material(make_run(CROSSING)))
    assert [chart.title for chart in view.charts] == ["Throughput by batch size"]
    assert view.charts[0].choices[0].label == "linear_chain · inference · cpu · eager · depth=4 width=512"
    assert "64 bf16_autocast" in view.charts[0].words


def test_the_rows_of_a_chart_hold_each_throughput_once() -> None:
    rows = shown(make_material(make_run(CROSSING))).datasets["sweeps-0"]
    assert len(rows) == 11
    assert {(row["name"], row["value"]): round(row["rate"]) for row in rows}["bf16_autocast", 16.0] == 6000


def test_the_interval_of_a_throughput_is_that_of_its_time_turned_round() -> None:
    material = make_material(make_run(CROSSING))
    row = material.cases[0].row
    drawn_row = shown(material).datasets["sweeps-0"][0]
    assert drawn_row["low"] == pytest.approx(8 / row["seconds_high"])
    assert drawn_row["high"] == pytest.approx(8 / row["seconds_low"])


def test_a_wide_interval_is_cut_in_the_chart_and_told_whole() -> None:
    view = shown(make_material(make_run({"fp32": {1: 1000.0, 4: 2000.0}}, parts=NOISY)))
    rows = view.datasets["sweeps-0"]
    assert max(row["high"] for row in rows) == pytest.approx(2000.0 * MARGIN)
    assert min(row["low"] for row in rows) == pytest.approx(1000.0 / MARGIN)
    high = rows[0]["interval"].split(" to ")[1]
    assert float(high.removesuffix(" k/s")) > 3.0


def test_batch_sizes_that_differ_are_a_sweep_without_being_asked_for() -> None:
    assert shown(make_material(make_run(CROSSING, swept=False))).charts


def test_any_parameter_may_be_swept() -> None:
    curves = {name: {64 * value: rate for value, rate in members.items()} for name, members in CROSSING.items()}
    chart = shown(make_material(make_run(curves, parameter="width"))).charts[-1]
    assert chart.title == "Throughput by width"
    assert chart.choices[0].label == "linear_chain · batch 8 · inference · cpu · eager · depth=4"


def test_a_parameter_of_the_workload_is_no_sweep_unless_asked_for() -> None:
    assert sweeps(make_material(make_run(CROSSING, parameter="width", swept=False))) is None


@pytest.mark.parametrize("values", [["relu", "gelu"], [0, 1], [True, False], [-1, 1]])
def test_values_without_a_place_on_a_log_axis_stand_in_their_order(values: list[Any]) -> None:
    curves = {"fp32": dict.fromkeys(values, 1000.0), "bf16_pure": dict.fromkeys(values, 2000.0)}
    view = shown(make_material(make_run(curves, parameter="kind")))
    (chart,) = view.charts
    assert list(dict.fromkeys(row["value"] for row in view.datasets[chart.dataset])) == [str(one) for one in values]
    assert str(values[0]) in str(drawn(chart, view.datasets[chart.dataset]))


def test_numbers_stand_in_their_order_however_they_were_typed() -> None:
    curves = {"fp32": {16: 1.0, 4: 1.0, 128: 1.0}}
    rows = shown(make_material(make_run(curves))).datasets["sweeps-0"]
    assert [row["value"] for row in rows] == [4, 16, 128]


def test_each_workload_and_phase_can_be_chosen() -> None:
    one = make_run(CROSSING)
    cases = {case.case_id: case for case in one.cases.values()}
    other = [_as(case, "vgg") for case in cases.values() if case.batch_size in (1, 4)]
    timed = [each for case in other for each in rounds_of(case, [1e-3 * part for part in STEADY])]
    both = make_run(CROSSING, cases=cases | {case.case_id: case for case in other}, rounds=[*one.rounds, *timed])
    view = shown(make_material(both))
    chart = view.charts[0]
    assert [choice.label.split(" ")[0] for choice in chart.choices] == ["linear_chain", "vgg"]
    assert {row["sweep"] for row in view.datasets["sweeps-0"]} == {choice.value for choice in chart.choices}
    assert chart.words.endswith("2 sweeps can be chosen.")


def _as(case: Case, workload: str) -> Case:
    return make_case(case.precision, workload=workload, batch_size=case.batch_size)


def test_one_round_shows_throughput_without_intervals() -> None:
    view = shown(make_material(make_run(CROSSING, parts=(1.0,))))
    assert {row["interval"] for row in view.datasets["sweeps-0"]} == {"none"}
    assert drawn(view.charts[0], view.datasets["sweeps-0"])


def test_the_same_precision_with_other_inputs_is_a_line_of_its_own() -> None:
    run = make_run(CROSSING)
    given = [make_case("fp32", batch_size=size, input_dtype="fp16") for size in (1, 4)]
    timed = [each for case in given for each in rounds_of(case, [1e-3 * part for part in STEADY])]
    cases = run.cases | {case.case_id: case for case in given}
    view = shown(make_material(make_run(CROSSING, cases=cases, rounds=[*run.rounds, *timed])))
    assert {row["name"] for row in view.datasets["sweeps-0"]} == {
        "fp32 in-fp32", "fp32 in-fp16", "bf16_autocast", "bf16_pure",
    }  # fmt: skip


def test_two_runs_are_two_sweeps_with_their_names() -> None:
    other = make_header(
        run="20260201T000000Z-other-1", label="second", environment=replace(make_header().environment, host="other")
    )
    material = make_material(make_run(CROSSING), make_run(CROSSING, header=other))
    labels = [choice.label for choice in shown(material).charts[0].choices]
    assert len(labels) == 2
    assert labels[1].endswith("· second")


def test_an_imported_run_shows_its_readings_without_intervals() -> None:
    run = make_run(CROSSING)
    readings = {"items_per_second": dict.fromkeys(run.cases, 1000.0)}
    bare = make_run(CROSSING, rounds=[], memory={}, divergence={}, failures={}, readings=readings)
    view = shown(make_material(bare))
    assert {row["interval"] for row in view.datasets["sweeps-0"]} == {"none"}


def test_there_is_no_view_without_two_values_measured() -> None:
    assert sweeps(make_material(make_run({"fp32": {8: 1.0}}))) is None
    assert sweeps(make_material(make_run({"fp32": {8: 1.0, 16: None}}))) is None
    assert sweeps(make_material(make_run({}))) is None
    assert sweeps(make_material(make_run({"fp32": {None: 1.0}}))) is None


def test_a_parameter_and_a_precision_of_any_name_are_shown_as_text() -> None:
    odd = "<b>x</b>\u202e"
    curves = {"fp32": {1: 1.0, 2: 2.0}, odd: {1: 1.0, 2: 2.0}}
    material = make_material(make_run(curves, parameter=odd))
    view = shown(material)
    section = section_of(view, material)
    assert "\u202e" not in str(section)
    assert section.find("b") is None


def test_no_text_of_a_user_gets_into_an_expression_of_a_chart() -> None:
    odd = 'x"] + alert(1) + ["'
    curves = {"fp32": {odd: 1.0, "b": 2.0}, "bf16_pure": {odd: 1.0, "b": 2.0}}
    (chart,) = shown(make_material(make_run(curves, parameter=odd))).charts
    for layer in chart.spec["layer"]:
        assert odd not in str(layer["encoding"].get("tooltip"))
        assert odd not in str(layer.get("transform"))


def test_the_runs_kept_have_no_sweep(readme_run: Material) -> None:
    assert sweeps(readme_run) is None

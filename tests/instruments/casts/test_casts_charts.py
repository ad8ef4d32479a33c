"""Casts: the timeline, what is told of each traced case, and why cases differ from the baseline's."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from bs4 import BeautifulSoup
from msgspec import structs

from ampbench.instruments.casts.show import SPANS_OF_A_CASE, row_of, spans_of, steps_of
from ampbench.records.casts import AUTOGRAD, TRACED, Cast, CastTrace, GraphCast, GraphTrace, Operation
from ampbench.records.measured import Failure
from ampbench.report.explanation import explanation
from ampbench.report.material import Material, material_of
from ampbench.report.page import make_page
from ampbench.show.charts import CHOICES, ROWS_OF_THE_PAGE
from ampbench.show.page import DETAILED, LISTED
from tests.compared_runs import Times, environment, make_run, noisy
from tests.report.materials import make_material, page_of, part_of, rendered_by
from tests.report.traced_runs import SAVED, TRAINED, checked, explaining, fake_pass, make_pass, traced_net
from tests.stored_runs import holding, make_case, make_header

casts = partial(part_of, "casts")

OTHER = make_case("fp16_autocast", phase="training")


rendered = partial(rendered_by, explanation)


def only(*passes, **options) -> Material:
    return material_of([], explanations=[explaining(*passes, **options)])


def tables(page: BeautifulSoup) -> dict[str, list[list[str]]]:
    return {
        table.caption.get_text(): [
            [cell.get_text().strip() for cell in row.find_all(["th", "td"])] for row in table.tbody.find_all("tr")
        ]
        for table in page.select("#explanation table")
    }


def a_trace(count: int, timed: bool = True) -> CastTrace:
    """Return a step of `count` ops of 1 us, each tenth a cast."""
    ops = [
        Operation(
            index=index,
            name="aten._to_copy" if index % 10 == 0 else "aten.mm",
            module=f"layer.{index // 100}",
            inputs=("fp32",) if index % 10 == 0 else ("bf16", "bf16"),
            outputs=("bf16",),
            seconds=1e-6 if timed else None,
        )
        for index in range(count)
    ]
    made = [
        Cast(
            index=index,
            operation=index + 1,
            what="weight",
            name=f"layer.{index}.weight",
            from_dtype="fp32",
            to_dtype="bf16",
            elements=4,
            bytes_read=16,
            bytes_written=8,
            seconds=1e-6 if timed else None,
            tensor=index,
        )
        for index in range(0, count - 1, 10)
    ]
    return CastTrace(ops=ops, casts=made, timed=timed)


def test_without_a_traced_case_there_is_no_part():
    assert casts(make_material(make_run(Times((TRAINED, [1e-3]))))) is None
    assert casts(make_material()) is None


def test_a_traced_case_tells_its_casts_by_kind_by_op_and_what_could_be_saved():
    page = rendered(only(make_pass()))
    trace = traced_net()
    assert page.h3.get_text() == "Casts"
    said = page.select_one("details.casts summary").get_text()
    assert f"linear_chain bf16_autocast: {len(trace.casts)} casts a step" in said
    found = tables(page)
    assert [row[:3] for row in found["Where they come from"]][:2] == [["input", "autocast", "1"],
                                                                      ["weight", "autocast", "4"]]  # fmt: skip
    assert sum(int(row[2]) for row in found["Where they come from"]) == len(trace.casts)
    (saving,) = next(rows for caption, rows in found.items() if caption.startswith("What could be saved"))
    assert saving[-1].startswith("store the input in bf16")
    assert "4 uses of weights: 4 cast" in page.get_text()


def test_the_modules_tell_their_dtypes():
    rows = tables(rendered(only(make_pass())))["Dtypes in and out of modules"]
    by_name = {row[-1]: row[:4] for row in rows}
    assert by_name["0"] == ["Linear", "fp32", "bf16", "fp32"]
    assert by_name["1"][:3] == ["Softmax", "bf16", traced_softmax()]


def traced_softmax() -> str:
    (calls,) = [one for one in traced_net().modules if one.kind == "Softmax"]
    return calls.outputs[0]


def test_other_graphs_of_the_step_are_folded_with_what_could_not_be_made():
    graphs = [
        GraphTrace(graph=TRACED, error="RuntimeError: no <b>trace</b>"),
        GraphTrace(
            graph=AUTOGRAD,
            casts=[GraphCast(what="gradient", name="0.bias", from_dtype="bf16", to_dtype="fp32", elements=8)],
            notes=["hooks are not seen"],
        ),
    ]
    page = rendered(only(make_pass(graphs=graphs)))
    folded = page.select_one("details.casts details:last-of-type")
    assert folded.summary.get_text() == "Casts of the autograd graph in their order"
    assert not folded.has_attr("open")
    told = page.select_one("details.casts").get_text()
    assert "RuntimeError: no <b>trace</b>" in told
    assert "hooks are not seen" in told
    assert tables(folded)["Casts of the autograd graph in their order"] == [["0.bias", "bf16 → fp32", "8"]]


def test_the_timeline_has_every_op_in_order_with_the_casts_on_lines_of_their_own():
    view = explanation(only(make_pass()))
    rows, trace = view.datasets["explanation-casts"], traced_net()
    assert len(rows) == len(trace.ops)
    assert sum(row["kind"] == "cast" for row in rows) == len(trace.casts)
    assert {row["lane"] for row in rows if row["kind"] == "cast"} == {"forward casts", "backward casts"}
    assert rows[0]["start"] == 0
    assert all(one["end"] == two["start"] for one, two in pairwise(rows))
    assert rows[-1]["end"] == pytest.approx(sum(op.seconds for op in trace.ops))
    weight = next(row for row in rows if row["cast"].startswith("weight 0.weight (put in the cache), fp32 → bf16"))
    assert (weight["module"], weight["dtypes"]) == ("0", "fp32 → bf16")


def test_the_chart_says_what_it_shows():
    figure = rendered(only(make_pass())).select_one("#chart-explanation-casts")
    assert figure.svg is not None
    assert f"{len(traced_net().casts)} casts a step" in figure.svg["aria-label"]


def test_the_case_whose_casts_cost_the_most_comes_first():
    slow = structs.replace(traced_net(), casts=[structs.replace(one, seconds=9.0) for one in traced_net().casts])
    page = rendered(only(make_pass(), make_pass(OTHER, trace=slow), cases=(TRAINED, OTHER)))
    assert [row[0] for row in next(iter(tables(page).values()))] == [
        "linear_chain fp16_autocast",
        "linear_chain bf16_autocast",
    ]
    assert page.select_one("#chart-explanation-casts svg")["aria-label"].count("fp16_autocast") > 0


def test_what_ran_on_fake_tensors_is_said_not_to_have_run_and_has_no_times():
    page = rendered(only(fake_pass()))
    assert "(fake tensors, not on hardware)" in page.select_one("details.casts summary").get_text()
    figure = page.select_one("#chart-explanation-casts-untimed")
    assert "fake tensors, not on hardware" in figure.select_one(".alt").get_text()
    assert page.select_one("#chart-explanation-casts") is None
    view = explanation(only(fake_pass()))
    rows = view.datasets["explanation-casts-untimed"]
    assert [(row["start"], row["end"]) for row in rows[:2]] == [(0, 1), (1, 2)]
    assert {row["time"] for row in rows} == {"–"}
    assert " ms" not in page.select_one("#explanation").get_text()


def test_timed_and_untimed_cases_have_a_chart_each():
    page = rendered(only(make_pass(), fake_pass(OTHER), cases=(TRAINED, OTHER)))
    assert [one["data-chart"] for one in page.select("figure")] == ["explanation-casts", "explanation-casts-untimed"]
    rows = next(iter(tables(page).values()))
    assert "fake tensors, not on hardware" in rows[1][1]


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        (SAVED, "1 cast a step fewer, 200 us → 180 us, 20.0 us saved (95%: 10.0 us to 30.0 us)"),
        ((-1e-5, 3e-5, -1e-5, 1e-5, 2e-5, -1e-5), "no certain saving (95%: -10.0 us to 30.0 us)"),
        (tuple(-each for each in SAVED), "20.0 us lost (95%: 10.0 us to 30.0 us)"),
        (SAVED[:5], "without an interval (of 5 pairs of builds)"),
    ],
)
def test_what_was_tried_tells_a_saving_from_none(differences: tuple[float, ...], said: str):
    material = only(make_pass(checked=[checked(*differences)]), make_pass(OTHER), cases=(TRAINED, OTHER))
    page = rendered(material)
    assert any(said in row[1] for row in next(iter(tables(page).values())))
    assert said.rpartition("fewer, ")[2] in page.select_one("details.casts").get_text()


def test_a_long_step_is_drawn_in_few_spans_that_hold_every_op():
    steps = steps_of(a_trace(5000))
    spans = spans_of(steps, 200)
    assert 50 < len(spans) <= 200
    assert sorted(step.op.index for span in spans for step in span) == list(range(5000))
    assert all(len({(step.lane, step.kind) for step in span}) == 1 for span in spans)
    widest = max(span[-1].end - span[0].start for span in spans)
    assert widest < 0.05 * steps[-1].end  # nothing is moved by more than that
    row = row_of(spans[1], timed=True, wide=1.0)
    assert row["op"] == f"{len(spans[1])} ops: aten.mm"
    assert spans_of(steps, 5000) == [[step] for step in steps]
    assert spans_of([], 10) == []


def test_the_page_carries_few_spans_of_many_ops():
    page_view = explanation(only(make_pass(trace=a_trace(3000))))
    assert len(page_view.datasets["explanation-casts"]) <= SPANS_OF_A_CASE


def test_many_traced_cases_stay_few_on_the_page():
    cases = tuple(make_case("bf16_autocast", workload=f"w{number}") for number in range(LISTED + 10))
    trace = a_trace(400)
    material = only(*(make_pass(case, trace=trace) for case in cases), cases=cases)
    part = casts(material)
    assert part is not None
    assert (len(part.overview.rows), len(part.details), part.left_out) == (LISTED, DETAILED, 10)
    assert len(part.charts[0].choices) <= CHOICES
    assert len(part.datasets["explanation-casts"]) <= ROWS_OF_THE_PAGE + SPANS_OF_A_CASE
    assert "Of 180 more traced cases only the table above tells" in rendered(material).get_text()


@pytest.mark.slow
def test_a_step_of_100_000_ops_makes_a_small_page():
    assert len(make_page(only(make_pass(trace=a_trace(100_000))))) < 1_000_000


def test_of_several_traces_of_a_case_the_newest_counts():
    older = explaining(make_pass(notes=["old"]), run="older", started_at="2026-01-30T12:00:00Z")
    newer = explaining(make_pass(notes=["new"]), run="newer", started_at="2026-01-31T12:00:00Z")
    page = rendered(material_of([], explanations=[newer, older]))
    assert len(page.select("details.casts")) == 1
    assert "New." in page.select_one("details.casts").get_text().split()
    elsewhere = replace(older, header=environment(older.header, torch_version="2.14.0"))
    page = rendered(material_of([], explanations=[newer, elsewhere]))
    assert {row[0] for row in next(iter(tables(page).values()))} == {
        "linear_chain bf16_autocast · newer",
        "linear_chain bf16_autocast · older",
    }


def test_a_trace_of_another_torch_than_what_measured_is_pointed_out():
    measured = make_run(Times((TRAINED, [1e-3])))
    own, other = explaining(make_pass()), explaining(make_pass())
    other = replace(other, header=environment(other.header, torch_version="2.14.0"))
    assert "measured nothing on this page" not in rendered(material_of([measured], explanations=[own])).get_text()
    said = rendered(material_of([measured], explanations=[other])).get_text()
    assert "Traced with torch 2.14.0 on bench, which measured nothing on this page." in said


def test_a_measured_run_may_hold_traces_itself():
    measured = holding(make_run(Times((TRAINED, [1e-3]))), make_pass())
    page = page_of(make_material(measured))
    assert page.select_one("#explanation details.casts") is not None
    assert page.select_one("#cases tbody tr") is not None


def test_cases_that_could_not_be_traced_are_named_with_the_reason():
    failure = Failure(case_id=OTHER.case_id, stage="casts", cause="exception", message="UsageError: compiled")
    run = replace(explaining(make_pass(), cases=(TRAINED, OTHER)), failures={OTHER.case_id: failure})
    page = rendered(material_of([], explanations=[run]))
    assert "linear_chain fp16_autocast: UsageError: compiled" in page.get_text()


def test_a_page_without_a_measured_run_says_so_and_shows_what_explains():
    page = page_of(only(make_pass()))
    assert page.h1.get_text() == "Nothing was measured; this page explains the casts of 1 case"
    assert [one["id"] for one in page.select("main > section")] == ["result", "explanation", "environment"]
    assert page.title.get_text() == "why · ampbench"


def with_reasons() -> Material:
    """Return a case that got slower, of which both runs hold a trace: the newer has no casts of weights."""
    fewer = structs.replace(traced_net(), casts=[one for one in traced_net().casts if one.what != "weight"])
    old = make_run(Times((TRAINED, noisy(1e-3))), header=make_header(run="old"))
    new = make_run(Times((TRAINED, noisy(2e-3, seed=1))), header=make_header(run="new"))
    return make_material(holding(new, make_pass(trace=fewer)), baseline=holding(old, make_pass()))


def test_why_a_case_changed_stands_with_its_verdict():
    material = with_reasons()
    (explanation,) = material.comparisons[0].explained.values()
    said = explanation.lines
    assert said
    page = page_of(material)
    row = page.select_one("#cases tbody tr")
    assert [one.get_text() for one in row.select("p.why")] == list(said)
    why = next(table for table in page.select("#result table") if table.caption.get_text() == "why")
    assert [row.find_all("td")[1].get_text() for row in why.select("tbody tr")] == list(said)


def test_the_ops_that_take_the_most_time_are_listed_beside_the_timeline():
    page = rendered(only(make_pass(trace=a_trace(20))))
    rows = next(rows for caption, rows in tables(page).items() if caption.startswith("Ops that take the most time"))
    assert [row[2:] for row in rows] == [["18", "18.0 us", "90.0%"], ["2", "2.00 us", "10.0%"]]
    untimed = tables(rendered(only(make_pass(trace=a_trace(20, timed=False)))))
    assert not any(caption.startswith("Ops that take the most time") for caption in untimed)


def test_time_begins_at_0_without_a_unit():
    view = explanation(only(make_pass(trace=a_trace(20))))
    assert view is not None
    (chart,) = view.charts
    assert chart.spec["encoding"]["x"]["axis"]["labelExpr"].endswith(": '0'")

"""Casts: what is told of each traced case, and why cases differ from the baseline's."""

from dataclasses import replace
from functools import partial

import pytest
from bs4 import BeautifulSoup
from msgspec import structs

from ampbench.records.casts import AUTOGRAD, TRACED, Cast, CastTrace, GraphCast, GraphTrace, Operation
from ampbench.records.measured import Failure
from ampbench.report.material import Material, material_of
from ampbench.report.page import make_page
from ampbench.report.views import explanation
from ampbench.show.page import DETAILED, LISTED
from tests.compared_runs import Times, environment, make_run, noisy
from tests.report.materials import make_material, page_of, part_of, rendered_by
from tests.report.traced_runs import TRAINED, explaining, make_pass, traced_net
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
    weights = next(rows for caption, rows in found.items() if caption.startswith("Weights"))
    assert [row[-1] for row in weights] == ["0.bias", "0.weight", "2.bias", "2.weight"]


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
    (folded,) = [one for one in page.select("details.casts details") if "autograd" in one.summary.get_text()]
    assert folded.summary.get_text() == "Casts of the autograd graph in their order"
    assert not folded.has_attr("open")
    told = page.select_one("details.casts").get_text()
    assert "RuntimeError: no <b>trace</b>" in told
    assert "hooks are not seen" in told
    assert tables(folded)["Casts of the autograd graph in their order"] == [["0.bias", "bf16 → fp32", "8"]]


@pytest.mark.slow
def test_many_traced_cases_stay_few_on_the_page():
    cases = tuple(make_case("bf16_autocast", workload=f"w{number}") for number in range(LISTED + 10))
    trace = a_trace(400)
    material = only(*(make_pass(case, trace=trace) for case in cases), cases=cases)
    part = casts(material)
    assert part is not None
    assert (len(part.details), sum(bool(each.blocks) for each in part.details), part.left_out) == (LISTED, DETAILED, 10)


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
    assert {name.get_text() for name in page.select("summary > strong")} == {
        "linear_chain bf16_autocast · newer",
        "linear_chain bf16_autocast · older",
    }


def test_a_trace_of_another_torch_than_what_measured_is_pointed_out():
    measured = make_run(Times((TRAINED, [1e-3])))
    own, other = explaining(make_pass()), explaining(make_pass())
    other = replace(other, header=environment(other.header, torch_version="2.14.0"))
    assert "measured nothing on this page" not in rendered(material_of([measured], explanations=[own])).get_text()
    said = rendered(material_of([measured], explanations=[other])).get_text()
    assert "Run with torch 2.14.0 on bench, which measured nothing on this page." in said


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
    assert page.h1.get_text().startswith("linear_chain bf16_autocast: 9 casts a step")
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
    assert explanation.lines
    text = page_of(material).select_one("#result").get_text()
    assert all(line in text for line in explanation.lines)

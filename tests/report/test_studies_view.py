"""Studies: the section as a whole, pages of studies alone, what has no result, limits of size, hostile text."""

import json
from functools import partial

import pytest
from bs4 import BeautifulSoup

from ampbench.records.measured import Failure, Score
from ampbench.report.material import Material, matching, material_of
from ampbench.report.page import chart_payload, packed
from ampbench.report.views import explanation
from ampbench.report.why import contents
from ampbench.show.charts import MARKED, POINTS, marked, series_encoded, thinned_curve
from ampbench.show.page import DETAILED, LISTED
from ampbench.store import StoredRun
from ampbench.studies.training import Training
from tests.compared_runs import Times, make_run
from tests.report.materials import make_material, page_of, rendered_by
from tests.report.studied_runs import (
    BF16,
    CEILING_RUN,
    FP16,
    FP16_PURE,
    FP32,
    ceilings_run,
    scalings,
    scope_run,
    scoped,
    storage_run,
    stored,
    trained,
    training,
    training_run,
)
from tests.stored_runs import make_case


def every_study() -> list[StoredRun]:
    return [
        training_run(*trained()),
        training_run(*scalings(), run="settings"),
        scope_run(scoped()),
        storage_run(stored()),
        ceilings_run(*CEILING_RUN),
    ]


@pytest.fixture(scope="module")
def whole_page() -> BeautifulSoup:
    return page_of(only(*every_study()))


def only(*runs: StoredRun) -> Material:
    return material_of([], explanations=list(runs))


rendered = partial(rendered_by, explanation)


def test_without_a_study_there_is_no_section():
    assert explanation(make_material(make_run(Times((FP32, [1e-3]))))) is None
    assert explanation(make_material()) is None


def test_a_page_of_all_studies_has_their_parts_in_order(whole_page: BeautifulSoup):
    assert [one.get_text() for one in whole_page.select("#explanation > h3")] == [
        "Trainings",
        "Scope of autocast",
        "Inputs stored in half",
        "Ceilings",
    ]
    assert len(whole_page.select("#explanation figure svg[role=img]")) == 2
    assert all(one.select_one(".alt").get_text().strip() for one in whole_page.select("#explanation figure"))


def test_the_first_thing_said_is_what_the_first_study_found(whole_page: BeautifulSoup):
    heading = whole_page.h1.get_text()
    assert heading.startswith("digits · settings: fp16 needs loss scaling here; default serves")
    assert contents(only(*every_study())) == [
        "trainings of 4 cases",
        "the scope of autocast in 1 case",
        "the storage of the inputs of 1 case",
        "the ceilings of cpu",
    ]


def test_of_several_workloads_the_one_that_fails_is_what_is_said_first():
    other = [make_case(name, workload="other", phase="training") for name in ("fp32", "bf16_autocast")]
    fine = [training(case, seed) for case in other for seed in range(3)]
    bad = training_run(*trained())
    good = training_run(*fine, cases=other, run="older", started_at="2026-01-01T00:00:00Z")
    assert page_of(only(good, bad)).h1.get_text().startswith("digits: ")
    assert page_of(only(good)).h1.get_text().startswith("other: bf16_autocast: trains as fp32 does")


def test_where_fp32_does_not_learn_that_is_what_is_said_first():
    scores = [Score(step=step, loss=2.3, correct=36, decisions=360) for step in (0, 300)]
    found = [training(case, seed, scores=scores) for case in (FP32, BF16) for seed in range(2)]
    heading = page_of(only(training_run(*found, cases=(FP32, BF16)))).h1.get_text()
    assert heading.startswith("digits: fp32: does not learn: ")
    assert "train as fp32" not in heading


def test_a_page_of_failures_says_that_nothing_was_measured():
    run = scope_run()
    run.failures[BF16.case_id] = Failure(case_id=BF16.case_id, stage="round", cause="killed", message="")
    assert page_of(only(run)).h1.get_text() == "Nothing was measured: 1 failed"


def test_studies_stand_beside_the_run_that_they_belong_to():
    measured = make_run(Times((FP32, [1e-3]), (BF16, [5e-4])))
    page = page_of(material_of([measured], explanations=[scope_run(scoped())]))
    assert [one["id"] for one in page.select("main > section")][2:4] == ["explanation", "cases"]
    assert "digits bf16_autocast" in page.select_one("#explanation").get_text()


def test_anchors_and_labels_are_unique(whole_page: BeautifulSoup):
    ids = [one["id"] for one in whole_page.select("[id]")]
    labels = [one["aria-label"] for one in whole_page.select("[role=region][aria-label]")]
    assert len(ids) == len(set(ids))
    assert len(labels) == len(set(labels))


def test_a_case_without_a_result_is_told_with_its_reason():
    run = scope_run(scoped(), cases=(BF16, FP16))
    run.failures[FP16.case_id] = Failure(case_id=FP16.case_id, stage="round", cause="OutOfMemoryError", message="<b>")
    page = rendered(only(run, training_run(cases=(FP16_PURE,))))
    said = [one.get_text().strip() for one in page.select("ul.failures li")]
    assert said == [
        "digits fp16_pure: not reached before the run ended",
        "digits fp16_autocast: OutOfMemoryError: <b>",
    ]
    assert [one.get_text() for one in page.select("#explanation > h3")] == [
        "Trainings",
        "Scope of autocast",
    ]


def test_workloads_of_a_study_stay_together_where_one_of_their_cases_matches():
    (run,) = matching([training_run(*trained())], "bf16_autocast")
    assert set(run.several_of(Training)) == {FP32.case_id, BF16.case_id, FP16_PURE.case_id}
    other = make_case("fp32", workload="other", phase="training")
    run = training_run(*trained(), training(other), cases=(FP32, BF16, FP16_PURE, other))
    assert set(matching([run], "other")[0].several_of(Training)) == {other.case_id}
    assert matching([training_run(*trained())], "nothing") == []


@pytest.mark.slow
def test_very_many_cases_are_cut_and_counted():
    cases = [make_case("bf16_autocast", workload=f"net_{number}", phase="training") for number in range(LISTED + 5)]
    view = explanation(only(scope_run(*(scoped(case, steps=200) for case in cases), cases=cases)))
    (part,) = view.parts
    assert (len(part.details), sum(bool(each.blocks) for each in part.details)) == (LISTED, DETAILED)
    assert part.left_out == 5


def test_the_page_carries_no_raw_trainings():
    long = [
        training(seed=seed, losses=[1.0 + 1 / (step + 1) for step in range(20_000)], steps=20_000) for seed in range(3)
    ]
    view = explanation(only(training_run(*long, cases=(FP32,))))
    assert len(view.datasets["studies-losses"]) == POINTS
    assert len(packed(chart_payload([view]))) < 25_000
    assert "weights_digest" not in json.dumps(list(view.datasets.values()))


def test_a_curve_has_the_means_of_its_parts_and_breaks_where_a_loss_is_not_finite():
    assert thinned_curve([4.0, 2.0, None]) == [(1.0, 4.0), (2.0, 2.0), (3.0, None)]
    whole = thinned_curve([float(step) for step in range(1, 1001)])
    assert len(whole) == POINTS
    assert whole[0] == (5.5, 5.5)


def test_each_series_carries_its_shape_on_some_points_of_its_own():
    rows = [{"series": name, "mark": False} for name in "abc" for _ in range(80)]
    marked(rows)
    places = [[place for place, row in enumerate(rows[start : start + 80]) if row["mark"]] for start in (0, 80, 160)]
    assert [len(one) for one in places] == [MARKED] * 3
    assert len({*places[0], *places[1], *places[2]}) == 3 * MARKED


def test_series_are_told_apart_without_colour():
    looks = series_encoded(["fp32", "one", "two", "three", "four", "five"])
    assert len(set(looks["shape"]["scale"]["range"])) == 6
    assert looks["color"]["scale"]["range"][0] == "var(--fp32)"

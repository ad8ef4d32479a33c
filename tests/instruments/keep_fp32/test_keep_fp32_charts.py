"""Searches for modules to keep in fp32: error against cost, the table, the code to paste."""

from functools import partial

import pytest
from msgspec.structs import replace

from ampbench.errors import NothingToRunError
from ampbench.instruments.keep_fp32 import findings
from ampbench.instruments.keep_fp32.findings import code
from ampbench.instruments.keep_fp32.records import SearchSpace, Trial
from ampbench.instruments.keep_fp32.show import BEATEN, FOUND, FRONT, MEETS, MISSES
from ampbench.records.measured import Failure
from ampbench.report.explanation import explanation
from ampbench.report.markdown import make_markdown
from ampbench.report.material import Material, material_of
from ampbench.report.page import make_page
from ampbench.show.document import as_sentence, escaped
from tests.compared_runs import Times, make_run
from tests.report.materials import make_material, page_of, part_of, rendered_by
from tests.report.ranged_runs import FP16, TRIED, WEIGHED, keeping_run, searched, spaced, tried, weighed
from tests.stored_runs import make_case

keeping = partial(part_of, "keep-fp32")

OTHER = make_case("bf16_pure", phase="training", input_dtype="bf16")


def only(*searches, **options) -> Material:
    return material_of([], explanations=[keeping_run(*searches, **options)])


rendered = partial(rendered_by, explanation)


def points(material: Material, case: str = "0-0") -> list[dict]:
    rows = keeping(material).datasets["explanation-kept-times"]
    return [row for row in rows if row["case"] == case and row["limit"] is None]


def charts(material: Material) -> list[str]:
    return [chart.id.removeprefix("explanation-kept-") for chart in keeping(material).charts]


def test_without_a_search_there_is_no_part():
    assert keeping(make_material(make_run(Times((FP16, [1e-3]))))) is None
    assert keeping(make_material()) is None


def test_each_weighed_set_is_a_point_of_error_time_and_memory():
    found = points(only(searched(*WEIGHED)))
    assert [(row["units"], row["kept"], row["error"]) for row in found] == [
        ("0", "none", 3e-2),
        ("1", "layer.2", 1.9e-3),
        ("2", "layer.1, layer.2", 1.5e-3),
        ("4", "all", 4e-7),
    ]
    assert [round(row["ratio"], 2) for row in found] == [1.0, 1.05, 1.3, 1.6]
    assert [row["memory"] for row in found] == ["1.00 MiB", "1.25 MiB", "1.50 MiB", "2.00 MiB"]
    assert [row["kind"] for row in found] == [FRONT, FOUND, FRONT, FRONT]


def test_a_set_that_another_beats_is_marked_by_shape():
    beaten = weighed(["layer.1", "layer.2"], 1.9e-3, 1 << 22)
    material = only(searched(*WEIGHED[:2], beaten, WEIGHED[3]))
    assert [row["kind"] for row in points(material)] == [FRONT, FOUND, BEATEN, FRONT]
    (shapes,) = (
        layer["encoding"]["shape"]["scale"]
        for layer in keeping(material).charts[0].spec["layer"]
        if "shape" in layer["encoding"]
    )
    assert len(set(shapes["range"])) == len(shapes["domain"]) == 3


def test_the_budget_of_each_case_is_a_line_of_its_own():
    material = only(searched(*WEIGHED), searched(*WEIGHED, case=OTHER, max_error=0.5), cases=(FP16, OTHER))
    rows = keeping(material).datasets["explanation-kept-times"]
    assert {row["case"]: row["limit"] for row in rows if row["limit"]} == {"0-0": 2e-3, "1-0": 0.5}
    assert "budget 0.002" in rendered(material).select_one("#chart-explanation-kept-times svg").get_text()


def test_gradients_are_a_choice_with_their_own_budget():
    material = only(searched(*WEIGHED, max_gradient_error=5e-2))
    part = keeping(material)
    assert [one.value for one in part.charts[0].choices] == ["0-0", "0-1"]
    labels = [one.label.rpartition(": ")[2] for one in part.charts[0].choices]
    assert labels == ["output error", "gradient error"]
    said = rendered(material).select_one("#chart-explanation-kept-times .no-js").get_text()
    assert said == (
        "Shown is linear_chain fp16_autocast: output error; "
        "with JavaScript you may choose linear_chain fp16_autocast: gradient error."
    )
    limits = {row["case"]: row["limit"] for row in part.datasets["explanation-kept-times"] if row["limit"]}
    assert limits == {"0-0": 2e-3, "0-1": 5e-2}


def test_a_set_without_a_defined_error_is_not_drawn():
    sets = tried([], ["layer.2"], ["layer.1", "layer.2"], [""], errors=[None, 1.9e-3, 1.5e-3, 4e-7])
    sets[0] = replace(sets[0], nonfinite=12)
    material = only(searched(*WEIGHED), trials=sets)
    assert "none" not in [row["kept"] for row in points(material)]


def test_the_legend_of_a_case_lists_the_marks_that_it_draws():
    beaten = weighed(["layer.1", "layer.2"], 1.9e-3, 1 << 22)
    material = only(searched(*WEIGHED), searched(*WEIGHED[:2], beaten, WEIGHED[3], case=OTHER), cases=(FP16, OTHER))
    chart = keeping(material).charts[0]
    assert {one.value: list(one.marks) for one in chart.choices if one.value.endswith("-0")} == {
        "0-0": [FRONT, FOUND],
        "1-0": [FRONT, FOUND, BEATEN],
    }
    words = [one.get_text() for one in rendered(material).select("#chart-explanation-kept-times svg text")]
    assert FRONT in words
    assert BEATEN not in words


def test_the_axis_of_trials_ends_where_they_do():
    sets = tried([], ["layer.2"], [""], errors=[3e-2, 1.9e-3, 4e-7])
    material = only(searched(units=1, trials=3), trials=sets, units=52)
    words = [one.get_text() for one in rendered(material).select("#chart-explanation-kept-trials svg text")]
    counts = [int(word) for word in words if word.isdigit()]
    assert min(counts) == 0
    assert 50 <= max(counts) <= 52
    assert not any(word.startswith(("-", "−")) for word in words)


def test_the_code_to_paste_stands_in_the_page_as_it_is():
    search = searched(*WEIGHED)
    pre = rendered(only(search)).select_one("details.keep-fp32 pre.code")
    assert pre.get_text() == code(search, FP16)
    assert 'ampbench.keep_fp32(model, "layer.2")' in pre.get_text()
    assert pre["aria-label"]


@pytest.mark.parametrize(("found", "units"), [(None, 0), ([], 0)])
def test_where_nothing_is_to_be_kept_there_is_no_code(found, units):
    page = rendered(only(searched(*WEIGHED, found=found, units=units)))
    assert page.select_one("pre.code") is None
    assert page.select_one("details.keep-fp32") is not None


def test_the_trials_tell_which_meet_the_budget():
    rows = keeping(only(searched(*WEIGHED))).datasets["explanation-kept-trials"]
    drawn = [(row["count"], row["kind"]) for row in rows if row["limit"] is None and row["case"] == "0-0"]
    assert drawn == [(0, MISSES), (1, FOUND), (2, MEETS), (4, MEETS)]


def test_a_search_that_was_not_weighed_has_its_trials_drawn_alone():
    assert charts(only(searched())) == ["trials"]


def test_of_several_cases_those_that_found_modules_come_first():
    material = only(searched(*WEIGHED, found=None), searched(*WEIGHED, case=OTHER), cases=(FP16, OTHER))
    page = rendered(material)
    (table,) = (one for one in page.select("table") if one.caption.get_text().startswith("What searches found"))
    names = [row.th.get_text() for row in table.select("tbody tr")]
    assert names == ["linear_chain bf16_pure", "linear_chain fp16_autocast"]


def test_a_search_that_did_not_end_or_failed_is_said():
    begun = keeping_run(cases=(FP16,))
    page = rendered(material_of([], explanations=[begun]))
    assert "linear_chain fp16_autocast: the search did not end; 4 trials are stored" in page.get_text()
    begun.failures[FP16.case_id] = Failure(case_id=FP16.case_id, stage="trial", cause="out of memory", message="")
    page = rendered(material_of([], explanations=[begun]))
    assert page.select_one("ul.failures").get_text().strip() == "linear_chain fp16_autocast: out of memory"


@pytest.mark.parametrize(
    ("trials", "spaces", "said"),
    [
        (TRIED[:1], True, "the search did not end; 1 trial is stored"),
        ([], True, "the search did not end; no trial is stored"),
        ([], False, "not reached before the run ended"),
    ],
)
def test_how_far_an_interrupted_search_came_is_said(trials, spaces, said):
    begun = keeping_run(cases=(FP16,), trials=trials)
    if not spaces:
        begun.of(SearchSpace).clear()
    material = material_of([], explanations=[begun])
    assert rendered(material).select_one("ul.failures").get_text().strip() == f"linear_chain fp16_autocast: {said}"
    assert said.replace("_", "\\_") in make_markdown(material)


def test_of_an_interrupted_search_the_cases_that_match_are_shown():
    begun = keeping_run(cases=(FP16, OTHER), trials=[])
    begun.of(SearchSpace).clear()
    material = material_of([], explanations=[begun], keyword="bf16_pure")
    assert rendered(material).select_one("ul.failures").get_text().strip().startswith("linear_chain bf16_pure: ")
    failed = keeping_run(cases=(FP16,), trials=[])
    failed.failures[FP16.case_id] = Failure(case_id=FP16.case_id, stage="trial", cause="out of memory", message="")
    material = material_of([], explanations=[failed], keyword="linear")
    assert "out of memory" in rendered(material).select_one("ul.failures").get_text()
    with pytest.raises(NothingToRunError, match="-k 'resnet'"):
        material_of([], explanations=[begun], keyword="resnet")


def test_a_search_of_modules_that_its_space_does_not_have_is_said_and_not_shown():
    material = only(searched(*WEIGHED, found=["elsewhere"]), trials=tried(["elsewhere"], errors=[1e-3]), units=1)
    page = rendered(material)
    assert "its modules are not those that it chose from" in page.select_one("ul.failures").get_text()
    assert page.select_one("figure") is None
    assert "its modules are not those" in make_markdown(material)


def test_a_run_of_a_search_alone_has_a_page_and_markdown():
    material = only(searched(*WEIGHED))
    assert page_of(material).h1.get_text() == "Nothing was measured; this page explains what to keep in fp32 in 1 case"
    assert "What to keep in fp32" in make_markdown(material)
    assert "1 of 4 modules kept in fp32 (layer.2)" in make_markdown(material)


def test_markdown_says_what_a_set_costs_and_whether_it_is_the_smallest():
    search = searched(*WEIGHED, smallest=False)
    text = make_markdown(only(search))
    sentences = findings.said(search, spaced(), TRIED)
    assert len(sentences) > 3
    for sentence in sentences:
        assert escaped(as_sentence(sentence)) in text
    assert "1.05" in text
    assert "1.6" in text


def test_hostile_names_stay_text_in_code_too():
    name = "</code></pre><b>x</b>"
    search = searched(*WEIGHED, found=[name])
    run = keeping_run(search, trials=tried([], [name], errors=[3e-2, 1e-3]))
    space = run.of(SearchSpace)[FP16.case_id]
    run.of(SearchSpace)[FP16.case_id] = replace(
        space, units=[*space.units[:2], replace(space.units[2], modules=[name, "layer.2"])]
    )
    run.several_of(Trial)[FP16.case_id] = [*run.several_of(Trial)[FP16.case_id], *TRIED[:2]]
    document = make_page(material_of([], explanations=[run]))
    assert "<b>x</b>" not in document

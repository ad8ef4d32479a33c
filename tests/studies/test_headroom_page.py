"""Headroom on a page: the tables of each case, several cases side by side, and a page of its own."""

from functools import partial

from ampbench.report.material import Material, material_of
from ampbench.report.views import explanation
from tests.report.materials import page_of, rendered_by
from tests.report.ranged_runs import FP32, erring, headroom_run, low_run, ranged, spread
from tests.stored_runs import make_case

OTHER = make_case("fp32", workload="other", phase="training")


def only(*passes, **options) -> Material:
    return material_of([], explanations=[headroom_run(*passes, **options)])


rendered = partial(rendered_by, explanation)


def test_a_case_is_told_with_its_tables():
    low = low_run(erring("high", overflowed=3), erring("low", overflowed=5))
    page = rendered(only(ranged(spread("high", 0, 17), spread("low", 0, 3), low_runs=[low])))
    detail = page.select_one("details.headroom")
    assert detail.has_attr("open")
    assert detail.summary.get_text().startswith("linear_chain fp32: fp16: 1 of 2 modules would overflow")
    text = detail.get_text()
    assert "fp16_autocast: " in text
    captions = [one.get_text() for one in detail.select("caption")]
    assert any(one.startswith("Largest values") for one in captions)
    assert any(one.startswith("Overflow and flushing seen") for one in captions)
    assert "--all" not in text  # an option of the command line


def test_of_several_cases_the_largest_values_come_first():
    small, large = ranged(spread("a", -3, 2)), ranged(spread("a", 0, 20), case=OTHER)
    page = rendered(only(small, large, cases=(FP32, OTHER)))
    assert [one.get_text() for one in page.select("summary > strong")] == ["other fp32", "linear_chain fp32"]


def test_a_run_of_headroom_alone_has_a_page():
    page = page_of(only(ranged(spread("a", -3, 2))))
    assert page.h1.get_text() == "linear_chain fp32: fp16: nothing in 1 module would overflow or flush"

"""Origins: the layer profile, the ranked table, and what overflows."""

from functools import partial

from ampbench.records.ranges import FirstNonfinite
from ampbench.report.material import Material, material_of
from ampbench.report.views import explanation
from ampbench.show.charts import CHOICES, MODULES
from ampbench.show.document import ROWS
from ampbench.studies.origin import FITTING, OVERFLOWING
from tests.report.materials import part_of, rendered_by
from tests.report.ranged_runs import FP16, erring, origin_run, originating
from tests.stored_runs import make_case

origin = partial(part_of, "origin")

CHART = "explanation-origins"
OTHER = make_case("bf16_autocast", phase="training")


def only(*passes, **options) -> Material:
    return material_of([], explanations=[origin_run(*passes, **options)])


rendered = partial(rendered_by, explanation)


def test_each_module_has_the_error_left_with_it_kept_in_the_order_of_running_beside_that_with_none_kept():
    found = originating(erring("b", kept_rel_l2=0.0), erring("a", kept_rel_l2=1e-3, overflowed=1), erring("untried"))
    *rows, none = origin(only(found)).datasets[CHART]
    assert [(row["module"], row["place"], row["kept"], row["error"], row["mark"]) for row in rows] == [
        ("b", 0, 0.0, "0", FITTING), ("a", 1, 1e-3, "1.0e-03", OVERFLOWING),
    ]  # fmt: skip
    assert none["limit"] == 2e-3
    svg = rendered(only(found)).select_one(f"#chart-{CHART} svg").get_text()
    assert all(name in svg for name in (FITTING, OVERFLOWING, "error of the output (relative L2)", "none kept"))


def test_where_the_error_with_none_kept_is_undefined_no_line_is_drawn():
    found = originating(erring("a", kept_rel_l2=1e-3), output_rel_l2=None)
    assert [row["limit"] for row in origin(only(found)).datasets[CHART]] == [None]


def test_of_very_many_cases_the_first_ones_are_drawn():
    cases = tuple(make_case("fp16_autocast", workload=f"w{number}") for number in range(CHOICES + 10))
    part = origin(only(*(originating(erring("a", kept_rel_l2=1e-3), case=case) for case in cases), cases=cases))
    assert len(part.charts[0].choices) == CHOICES
    assert any("the first ones" in said for said in part.said)


def test_a_case_is_told_with_the_worst_first_and_where_the_first_nonfinite_value_was_made():
    first = FirstNonfinite(operation="aten.mm", module="b", phase="forward", step=0)
    found = originating(erring("a", 1e-3), erring("b", 4e-3), output_rel_l2=None, first_nonfinite=first)
    detail = rendered(only(found)).select_one("details.origin")
    assert detail.summary.get_text().startswith("linear_chain fp16_autocast: ")
    assert "aten.mm in b" in detail.get_text()
    assert [row.find_all("td")[1].get_text() for row in detail.select("tbody tr")] == ["b", "a"]


def test_of_several_cases_those_that_overflow_come_first():
    worse, over = originating(erring("a", 0.5)), originating(erring("a", overflowed=1), case=OTHER)
    page = rendered(only(worse, over, cases=(FP16, OTHER)))
    names = [name.get_text() for name in page.select("summary > strong")]
    assert names == ["linear_chain bf16_autocast", "linear_chain fp16_autocast"]


def test_long_tables_and_charts_keep_the_worst():
    found = originating(*(erring(f"m{number}", kept_rel_l2=1e-3 - number * 1e-6) for number in range(1000)))
    part = origin(only(found))
    names = [row["module"] for row in part.datasets[CHART] if row["limit"] is None]
    assert len(names) == MODULES
    assert "m999" in names
    assert "m0" not in names
    (table,) = (block for block in part.details[0].blocks if block.headers)
    assert len(table.rows) == ROWS
    assert f"{ROWS} of 1,000" in table.note


def test_modules_that_were_not_kept_alone_and_empty_passes_are_told_without_a_chart():
    uncompared = originating(erring("a", None, elements=0, note="it returns no tensor"))
    for found in (originating(), uncompared, originating(erring("a"))):
        assert origin(only(found)).charts == []
        assert rendered(only(found)).select_one(".origin") is not None

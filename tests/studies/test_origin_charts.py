"""Origins on a page: the ranked table, and where the first NaN or infinity was made."""

from functools import partial

from ampbench.records.ranges import FirstNonfinite
from ampbench.report.material import Material, material_of
from ampbench.report.views import explanation
from ampbench.show.document import ROWS
from tests.report.materials import part_of, rendered_by
from tests.report.ranged_runs import FP16, erring, origin_run, originating
from tests.stored_runs import make_case

origin = partial(part_of, "origin")

OTHER = make_case("bf16_autocast", phase="training")


def only(*passes, **options) -> Material:
    return material_of([], explanations=[origin_run(*passes, **options)])


rendered = partial(rendered_by, explanation)


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


def test_long_tables_keep_the_worst():
    found = originating(*(erring(f"m{number}", kept_rel_l2=1e-3 - number * 1e-6) for number in range(1000)))
    (table,) = (block for block in origin(only(found)).details[0].blocks if block.headers)
    assert (table.rows[0][1], len(table.rows)) == ("m999", ROWS)
    assert f"{ROWS} of 1,000" in table.note


def test_modules_that_were_not_kept_alone_and_empty_passes_are_shown():
    uncompared = originating(erring("a", None, elements=0, note="it returns no tensor"))
    for found in (originating(), uncompared, originating(erring("a"))):
        assert rendered(only(found)).select_one(".origin") is not None

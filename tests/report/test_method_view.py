from dataclasses import replace
from functools import partial

from bs4 import BeautifulSoup

from ampbench.base.metrics import COLUMNS, COMPARED, GATED, METRICS
from ampbench.judge import columns
from ampbench.judge.objections import Budget
from ampbench.records.case import OwnPrecision
from ampbench.records.run import Imported
from ampbench.report.material import Material
from ampbench.report.views.method import HEADERS, gate_in_words, method
from tests.compared_runs import BF16, FP32, Times, arms, make_run, noisy
from tests.report.materials import make_material, rendered_by
from tests.stored_runs import make_case, make_header

TIMES = Times((FP32, noisy(1e-3)), (BF16, noisy(5e-4)))


rendered = partial(rendered_by, method)


def text_of(material: Material) -> str:
    return " ".join(rendered(material).select_one("#method").get_text().split())


def named(page: BeautifulSoup) -> list[str]:
    """Return the metrics that the table explains."""
    return [code.get_text() for code in page.select("#method tbody th code")]


def test_every_header_of_the_table_of_cases_is_explained_by_a_metric():
    assert {one.header for one in columns.COLUMNS[1:]} == set(HEADERS.values())
    assert HEADERS.keys() <= COLUMNS.keys()


def test_only_numbers_that_the_runs_have_are_explained():
    page = rendered(make_material(make_run(TIMES)))
    assert named(page) == [
        "seconds_median",
        "items_per_second",
        "speedup_vs_fp32",
        "peak_memory_bytes",
        "memory_ratio_vs_fp32",
        "output_rel_l2",
        "output_floor_ratio",
    ]
    assert "counts as a change" not in page.get_text()


def test_a_comparison_adds_what_counts_as_a_change():
    page = rendered(make_material(make_run(TIMES), baseline=make_run(TIMES, header=make_header(run="base"))))
    assert "output_nonfinite" in named(page)
    row = next(row for row in page.select("tbody tr") if row.code.get_text() == "seconds_median")
    assert row.find_all("td")[-1].get_text() == "over 2% and 50.0 ns, where certain"


def test_gates_are_said_in_words():
    said = {name: gate_in_words(gate, {**METRICS, **COMPARED}[name].unit) for name, gate in GATED.items()}
    assert said["peak_memory_bytes"] == "any; for other code or another environment over 1%"
    assert said["output_nonfinite"] == "any"
    assert said["reference_drift"] == "over 1e-06%; for other code or another environment over 0.0001%"
    assert said["grad_flushed_share"] == "over 0.01%; for other code or another environment over 10% and 0.01%"


def test_the_error_budget_is_that_of_the_page():
    trained = Times((make_case("fp32", phase="training"), noisy(1e-3)))
    said = text_of(make_material(make_run(trained), budget=Budget(output_rel_l2=0.003, grad_rel_l2=0.25)))
    assert "an output error of at most 0.003" in said
    assert "a gradient error of at most 0.25" in said
    assert "gradient error of at most" not in text_of(make_material(make_run(TIMES)))


def test_every_precision_of_the_page_is_explained_and_no_other():
    cases = make_case("bf16_master", phase="training"), make_case("steady", phase="training")
    header = make_header(precisions=[OwnPrecision(name="steady", summary="bf16 weights, stochastic rounding")])
    page = rendered(make_material(make_run(Times(*((case, noisy(1e-3)) for case in cases)), header=header)))
    heading = next(one for one in page.select("#method h3") if one.get_text() == "What the precisions are")
    listed = heading.find_next("dl")
    said = {name.get_text(): name.find_next("dd").get_text() for name in listed.select("dt")}
    assert said == {
        "bf16_master": "network in bf16, fp32 master weights",
        "steady": "bf16 weights, stochastic rounding",
    }


def test_what_must_arrive_of_an_update_is_told_of_training_alone():
    trained = text_of(make_material(make_run(Times((make_case("fp32", phase="training"), noisy(1e-3))))))
    assert "at least 98% of the update" in trained
    assert "updates have become 32 times smaller" in trained
    assert "of the update" not in text_of(make_material(make_run(TIMES)))


def test_advice_by_default_is_spoken_of_only_where_default_was_measured():
    both = Times((FP32, noisy(1e-3)), (make_case("default"), noisy(5e-4)), (BF16, noisy(4e-4)))
    assert "(than default where that was measured)" in text_of(make_material(make_run(both)))
    assert "default" not in text_of(make_material(make_run(TIMES)))


def test_stored_runs_and_interleaved_ones_are_told_apart():
    stored = text_of(make_material(make_run(TIMES), baseline=make_run(TIMES, header=make_header(run="base"))))
    first, second = arms()
    paired = text_of(make_material(make_run(TIMES, header=second), baseline=make_run(TIMES, header=first)))
    assert "Welch's test" in stored
    assert "signed-rank" not in stored
    assert "signed-rank" in paired
    assert "8, 16, 24, 32 of them, each time at 0.001 / 4" in paired
    assert "Welch's test" not in paired


def test_without_a_baseline_nothing_is_said_of_verdicts_and_without_trends_nothing_of_trends(readme_run: Material):
    headings = [one.get_text() for one in rendered(readme_run).select("#method h3")]
    assert headings == [
        "What each number means",
        "What the precisions are",
        "How it was measured",
        "How the advice is reached",
        "What this page does not say",
    ]


def test_trends_bring_the_rules_that_looked_at_them(history: Material):
    page = text_of(history)
    assert "times of fewer points" in page
    assert "t test on logarithms, at " in page
    assert "Step detection" not in page  # five versions


def test_a_number_that_no_table_of_the_page_has_is_not_explained():
    run = make_run(TIMES)
    worked = {key: replace(one, flops={"fp32": 10**9}) for key, one in run.memory.items()}
    assert "flops_per_second" not in named(rendered(make_material(replace(run, memory=worked))))


def test_accelerators_are_spoken_of_only_where_one_was_measured():
    cuda = Times((make_case("fp32", device="cuda"), noisy(1e-3)))
    assert "caching allocator" in text_of(make_material(make_run(cuda)))
    assert "caching allocator" not in text_of(make_material(make_run(TIMES)))


def test_an_imported_run_is_said_to_have_numbers_of_another_program():
    header = make_header(imported=Imported(program="asv", file="a.json"))
    run = replace(make_run(TIMES, header=header), rounds=[], readings={"seconds_median": {FP32.case_id: 1e-3}})
    assert "those of the program that measured them" in text_of(make_material(run))


def test_a_run_without_cases_has_a_method_and_no_run_has_none():
    empty = replace(make_run(TIMES), cases={}, rounds=[], memory={}, divergence={})
    assert "What this page does not say" in text_of(make_material(empty))
    assert method(make_material()) is None

"""Autocast's rules in the report: probes of the runs on the page, and what changed since the baseline."""

from dataclasses import replace
from functools import partial

from ampbench.report.material import material_of
from tests.compared_runs import FP32, Times, make_run
from tests.report.materials import make_material, page_of, part_of
from tests.report.traced_runs import probed

rules = partial(part_of, "rules")


def test_without_a_probe_there_is_no_part():
    assert rules(make_material(make_run(Times((FP32, [1e-3]))))) is None


def test_a_probe_tells_its_disagreements_and_what_it_was_observed_on():
    page = page_of(material_of([], explanations=[probed()]))
    (summary,) = [one.get_text() for one in page.select("#explanation summary")]
    assert summary.startswith("xpu: torch 2.15.0, autocast to bf16, observed on fake tensors, not on hardware: ")
    assert "1 disagreement (1 contradicted)" in summary
    (table,) = page.select("#explanation table")
    assert "rms_norm" in table.get_text()
    assert page.h1.get_text() == "Nothing was measured; this page explains autocast's rules on xpu"


def test_changes_from_the_baseline_are_listed_those_that_matter_first():
    old, new = probed("unlisted", "2.11.0", "old"), probed("float32", "2.15.0", "new")
    page = page_of(material_of([], baseline=old, explanations=[new]))
    said = page.select_one("#explanation summary").get_text()
    assert said.endswith(
        "1 difference from torch 2.11.0 to 2.15.0 on xpu; 1 of them changes what autocast does, such as rms_norm on "
        "xpu to bf16: unlisted → float32."
    )
    row = [cell.get_text() for cell in page.select("#explanation details table")[0].tbody.tr.find_all(["th", "td"])]
    assert row == ["xpu", "observed", "unlisted", "float32", "bf16", "rms_norm"]


def test_a_changed_rule_has_the_words_of_its_sentence_in_the_table():
    old, new = probed("unlisted", "2.11.0", "old"), probed("lower_precision", "2.15.0", "new")
    page = page_of(material_of([], baseline=old, explanations=[new]))
    cells = [cell.get_text() for cell in page.select_one("#explanation details tbody tr").select("td, th")]
    assert cells[-4:] == ["unlisted", "lower", "bf16", "rms_norm"]
    assert "unlisted → lower" in page.select_one("#explanation summary").get_text()


def test_equal_rules_are_said_to_be_equal():
    page = page_of(material_of([], baseline=probed(version="2.14.0", run="old"), explanations=[probed()]))
    assert "No rule of autocast changed from torch 2.14.0 to 2.15.0 on xpu." in page.get_text()


def test_measured_runs_may_hold_probes_and_their_comparison_tells_the_changes():
    old, new = (make_run(Times((FP32, [1e-3] * 4))) for _ in range(2))
    old, new = (replace(run, found=probed(rule).found) for run, rule in ((old, "unlisted"), (new, "float32")))
    page = page_of(make_material(new, baseline=old))
    assert "What changed in autocast's rules" in page.select_one("#explanation").get_text()
    assert page.select_one("#cases tbody tr") is not None

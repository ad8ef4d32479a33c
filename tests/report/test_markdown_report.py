"""The report in short: a comment that says what matters first, fits, and cannot be taken over by a name."""

from dataclasses import replace
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from markdown_it import MarkdownIt

from ampbench.core.statement import Hint, state
from ampbench.records.changes import Explanation, Traces
from ampbench.records.measured import Failure, Fitness, Skip
from ampbench.report import result as module
from ampbench.report.material import Material, gather, material_of
from ampbench.report.result import make_markdown
from ampbench.show.document import escaped
from ampbench.show.wording import why
from ampbench.store import StoredRun
from tests.compared_runs import BF16, FP32, Times, arms, environment, make_run, noisy
from tests.report.hostile_runs import TEXTS, hostile_material
from tests.report.materials import RESULTS, SUITE_RUN, make_material, page_of
from tests.report.traced_runs import SAVED, checked, explaining, fake_pass, make_pass, probed
from tests.stored_runs import COMPLETE, make_case, make_header, make_round, write_run

OURS = {
    *["html", "head", "body", "h2", "h3", "p", "ul", "li", "blockquote", "code"],
    *["table", "thead", "tbody", "tr", "th", "td", "details", "summary"],
}
"""The elements that our own Markdown becomes."""


def parsed(text: str) -> BeautifulSoup:
    """Return Markdown as what GitHub's dialect makes of it, HTML in it let through."""
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    return BeautifulSoup(parser.render(text), "html5lib")


def pair(factor: float = 1.1, **changes: object) -> Material:
    """Return a run beside a baseline that its fp32 is slower than by `factor`."""
    before = make_run(Times((FP32, noisy(1e-3)), (BF16, noisy(5e-4))), header=make_header(run="before"))
    after = make_run(
        Times((FP32, noisy(factor * 1e-3, seed=1)), (BF16, noisy(5e-4, seed=2))), header=make_header(run="after")
    )
    return make_material(replace(after, **changes), baseline=before)


def headings(page: BeautifulSoup) -> list[str]:
    return [one.get_text() for one in page.find_all(["h2", "h3", "summary"])]


def test_a_run_begins_with_its_advice_and_has_it_for_every_workload(readme_run: Material) -> None:
    text = make_markdown(readme_run)
    assert text.startswith("## On this CPU (AMD EPYC): take bf16_pure for ")
    assert "> This CPU emulates fp16: " in text
    assert "* With: torch 2." in text
    assert f"* Run: {SUITE_RUN}" in text
    (shown,) = readme_run.shown
    for advice in shown.advice.values():
        assert escaped(why(advice.statement)) in text


def test_advice_comes_with_its_remark_as_on_the_page() -> None:
    material = make_material(make_run(Times((FP32, noisy(1e-3)), (BF16, noisy(5e-4)))))
    (shown,) = material.shown
    remark = "GradScaler skips 1 step at first, by its default scale of 65,536: begin at init_scale=32768"
    scale = state(Hint.SCALE, steps=1, default=65536.0, scale=32768.0)
    advised = {group: replace(advice, hints=[scale]) for group, advice in shown.advice.items()}
    told = replace(material, shown=[replace(shown, advice=advised)])
    assert escaped(remark) in make_markdown(told)
    assert remark in page_of(told).get_text()


def test_a_comparison_begins_with_what_changed_and_why_and_folds_the_rest() -> None:
    text = make_markdown(pair())
    head = text.partition("<details>")[0]
    assert head.startswith("## 1 regressed (time 1), ")
    assert "before · torch 2.15.0 → after · torch 2.15.0" in head
    assert "### changed (1)" in head
    (row,) = [line for line in head.splitlines() if line.startswith("| regressed |")]
    assert "| linear_chain fp32 | time | 1.00 ms | 1.10 ms | +10% |" in row
    assert "slower (95%" in text
    assert "> Not measured in turns: " in head
    folded = [one.get_text().partition(":")[0].partition(" (")[0] for one in parsed(text).find_all("summary")]
    assert folded == [
        "take bf16_autocast", "what each precision brought", "why, in sentences",
        "geometric means of candidate / baseline", "regressed", "unchanged", "how it was measured",
    ]  # fmt: skip


def test_what_a_fired_control_leaves_open_is_not_called_changed() -> None:
    ours, theirs = arms()
    base = make_run(Times((FP32, noisy(1e-3))), control=noisy(1.07e-3, seed=2), header=ours)
    text = make_markdown(make_material(make_run(Times((FP32, noisy(1e-3, seed=1))), header=theirs), baseline=base))
    assert "### changed" not in text
    assert "### by reason" in text


def test_where_nothing_changed_no_table_says_so() -> None:
    text = make_markdown(pair(1.0))
    assert text.startswith("## Nothing changed: ")
    assert "### changed" not in text


def test_failures_and_skips_are_told_with_their_reasons() -> None:
    failed, skipped = make_case("fp16_pure"), make_case("tf32")
    run = make_run(Times((FP32, noisy(1e-3))))
    run.cases.update({case.case_id: case for case in (failed, skipped)})
    run.failures[failed.case_id] = Failure(case_id=failed.case_id, stage="round", cause="crash", message="signal 11")
    run.skips[skipped.case_id] = Skip(case_id=skipped.case_id, reason="this CPU has no tf32")
    text = make_markdown(make_material(run))
    assert "> 1 of 3 cases failed." in text
    assert "| failed | crash: signal 11 | 1 | fp16_pure | linear_chain |\n" in text
    assert "| skipped | this CPU has no tf32 | 1 | tf32 | linear_chain |\n" in text


def test_runs_without_any_number_are_told_in_the_heading() -> None:
    failed = make_case("fp16_pure")
    run = StoredRun(path=Path("run.jsonl"), header=make_header())
    assert make_markdown(make_material(run)).startswith("## Nothing was measured: there are no cases\n")
    failure = Failure(case_id=failed.case_id, stage="round", cause="crash", message="signal 11")
    run = replace(run, cases={failed.case_id: failed}, failures={failed.case_id: failure})
    assert make_markdown(make_material(run)).startswith("## Nothing was measured: 1 case failed\n")


def test_the_changes_of_trends_are_tables_under_what_else_changed(history: Material) -> None:
    page = parsed(make_markdown(history))
    assert "190 series of 55 cases over torch version: 2.11.0 → 2.15.0" in page.get_text()
    tables = [one for one in page.find_all("table") if "direction" in [cell.get_text() for cell in one.find_all("th")]]
    assert {row.find_all("td")[1].get_text() for one in tables for row in one.tbody.find_all("tr")} == {"time"}
    assert "at 2.12.1: torch 2.11.0" in page.get_text()


def test_several_machines_and_comparisons_are_told_apart() -> None:
    before = make_run(Times((FP32, noisy(1e-3)), (BF16, noisy(1e-3))), header=make_header(run="before"))
    later = [
        make_run(
            Times((case, noisy(2e-3, seed=number))),
            header=environment(make_header(run=f"after-{number}"), torch_version=f"2.1{number}.0"),
        )
        for number, case in ((6, FP32), (7, BF16))
    ]
    page = parsed(make_markdown(make_material(*later, baseline=before)))
    sides = [one.get_text() for one in page.find_all("p") if " → after-" in one.get_text()]
    assert [side.partition(" → ")[2].partition(" ")[0] for side in sides] == ["after-6", "after-7"]
    titles = [title for title in headings(page) if title.endswith("no advice")]
    assert [title.rpartition("torch ")[2] for title in titles] == ["2.16.0: no advice", "2.17.0: no advice"]


@pytest.mark.parametrize("rows", [1, 5, 100])
def test_a_table_of_many_rows_is_cut_and_says_to_how_many(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", rows)
    material = gather([SUITE_RUN], RESULTS)
    inference = sum(group.phase == "inference" for group in material.shown[0].advice)
    table = make_markdown(material).partition("### inference: ")[2].partition("###")[0]
    assert table.count("\n| ") - 2 == min(rows, inference)
    assert (f"{rows} of {inference}" in table) is (rows < inference)


@pytest.mark.parametrize("longest", [2000, 6000, 20_000, module.LONGEST])
def test_a_comment_is_never_longer_than_it_may_be(
    longest: int, history: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST", longest)
    for material in (history, pair()):
        text = make_markdown(material)
        assert len(text) <= longest
        assert {tag.name for tag in parsed(text).find_all(True)} <= OURS
        assert text.count("<details>") == text.count("</details>")
    if longest == 2000:
        assert "Left out to keep this short: " in make_markdown(history)


def test_thousands_of_failures_with_long_reasons_fit_a_comment(tmp_path) -> None:
    cases = [make_case(parameters={"width": width}) for width in range(3000)]
    failures = [Failure(case_id=case.case_id, stage="round", cause="crash", message="x" * 5000) for case in cases[1:]]
    path = write_run(tmp_path, cases, make_round(cases[0]), *failures, COMPLETE)
    text = make_markdown(gather([str(path)], tmp_path))
    assert len(text) <= module.LONGEST
    assert "> 2,999 of 3,000 cases failed." in text
    assert "characters) | 2,999 | fp32 | linear_chain |" in text


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_markdown(hostile_material(tmp_path_factory.mktemp("hostile")))


def test_no_element_comes_from_a_text(hostile: str) -> None:
    page = parsed(hostile)
    assert {tag.name for tag in page.find_all(True)} <= OURS
    assert not [tag for tag in page.find_all(True) if set(tag.attrs) - {"style"}]


def test_every_row_of_a_table_has_its_columns(hostile: str) -> None:
    for table in parsed(hostile).find_all("table"):
        columns = len(table.thead.find_all("th"))
        assert {len(row.find_all("td")) for row in table.tbody.find_all("tr")} == {columns}


@pytest.mark.parametrize("name", ["script", "attribute", "markup", "entity", "template", "expression", "prototype"])
def test_a_text_is_shown_as_it_is(hostile: str, name: str) -> None:
    assert TEXTS[name] in parsed(hostile).get_text()


def test_no_character_turns_text_or_is_half_a_character(hostile: str) -> None:
    assert "safe\\u202ecod.exe" in hostile
    assert all(one.isprintable() or one == "\n" for one in hostile)
    hostile.encode("utf-8")


def test_casts_and_rules_are_told_in_a_line_each() -> None:
    explanations = [explaining(make_pass(checked=[checked(*SAVED)])), probed()]
    text = make_markdown(material_of([], explanations=explanations))
    assert "This page is about the casts of 1 case and autocast's rules on xpu." in text
    (line,) = [line for line in text.splitlines() if line.startswith("| linear_chain bf16_autocast | ")]
    assert " casts a step, " in line
    assert "as long (95%: " in line
    assert "| torch 2.15.0 | Documents, dispatcher and observation disagree about 1 of 1 op on xpu" in text
    busy = make_pass(fitness=Fitness(other_share=0.5))
    text = make_markdown(material_of([], explanations=[explaining(busy)]))
    assert "Do not trust the times: other work took 50.0% of the CPU" in text
    fake = make_markdown(material_of([], explanations=[explaining(fake_pass())]))
    assert "(fake tensors, not on hardware)" in fake


def test_why_a_case_changed_follows_the_changes() -> None:
    material = pair()
    (shown,) = material.shown
    said = Explanation(Traces.CHANGED, ["rms_norm: bf16 → fp32", "1 more cast | of <b>"])
    comparison = replace(shown.comparison, explained={FP32.case_id: said})
    text = make_markdown(replace(material, shown=[replace(shown, comparison=comparison)]))
    page = parsed(text)
    assert headings(page).index("why") > headings(page).index("changed (1)")
    assert "rms_norm: bf16 → fp32" in page.get_text()
    assert "1 more cast | of <b>" in page.get_text()
    assert page.find("b") is None

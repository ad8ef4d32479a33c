"""The result: what changed or which precision to take, in words above everything else."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from bs4 import BeautifulSoup
from msgspec import structs

from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Footer, Imported
from ampbench.report.material import Material, gather
from ampbench.report.views import result
from ampbench.show.comparison import control_line, verdict
from ampbench.show.document import as_sentence
from ampbench.store import StoredRun
from tests.compared_runs import BF16, FP32, Times, arms, environment, make_run, noisy
from tests.report.materials import RESULTS, SUITE_RUN, make_material, section_of
from tests.stored_runs import make_case, make_header


def page(material: Material) -> BeautifulSoup:
    return section_of(result(material))


def heading(material: Material) -> str:
    headings = page(material).find_all("h1")
    assert len(headings) == 1
    return str(headings[0].text)


def warnings(material: Material) -> list[str]:
    return [" ".join(one.text.split()) for one in page(material).select(".warning")]


def missing(material: Material) -> list[list[str]]:
    """Return the rows of the table of cases without a result."""
    tables = [table for table in page(material).select("table") if table.caption.text.startswith("without a result")]
    return [[cell.text for cell in row.select("td")] for table in tables for row in table.select("tbody tr")]


def changed(material: Material) -> list[list[str]]:
    """Return the rows of the tables of what changed."""
    tables = [table for table in page(material).select("table") if table.caption.text.startswith("changed")]
    return [[cell.text for cell in row.select("td")] for table in tables for row in table.select("tbody tr")]


def fast_bf16(**header: object) -> StoredRun:
    return make_run(Times((FP32, [2e-3] * 4), (BF16, [1e-3] * 4)), header=make_header(**header))


def failing(run: StoredRun, *cases: str) -> StoredRun:
    failures = {one: Failure(case_id=one, stage="round", cause="out of memory", message="no room") for one in cases}
    return replace(run, rounds=[one for one in run.rounds if one.case_id not in cases], failures=failures)


def test_without_a_baseline_the_heading_says_which_precision_to_take_on_which_device() -> None:
    assert heading(make_material(fast_bf16())) == "AMD EPYC, 2 threads · torch 2.15.0: take bf16_autocast"


def test_the_heading_counts_the_tables_for_which_a_precision_is_advised(readme_run: Material) -> None:
    advice = list(readme_run.shown[0].result.takes.values())
    taken = Counter(one.precision for one in advice)
    assert f"take bf16_pure for {taken['bf16_pure']} of {len(advice)}, " in heading(readme_run)
    assert f"stay in fp32 for {taken['fp32']}" in heading(readme_run)


def test_several_machines_are_answered_together() -> None:
    other = environment(make_header(run="second", started_at="2026-02-01T12:00:00Z"), host="elsewhere", cpu="Xeon")
    slow = make_run(Times((FP32, [1e-3] * 4), (BF16, [2e-3] * 4)), header=other)
    material = make_material(fast_bf16(), slow)
    assert heading(material) == "2 devices: take bf16_autocast for 1 of 2, stay in fp32 for 1"


def test_a_precision_that_is_advised_is_named_though_its_cases_are_not_shown() -> None:
    whole, without = (gather([SUITE_RUN], RESULTS, keyword=keyword) for keyword in ("", "not bf16_pure"))
    assert heading(without) == heading(whole)
    assert "bf16_pure for" in heading(without)
    assert heading(gather([SUITE_RUN], RESULTS, keyword="fp32")) == heading(whole)


def test_where_fp32_was_not_measured_there_is_no_advice() -> None:
    run = make_run(Times((BF16, [1e-3] * 4)))
    assert heading(make_material(run)) == "AMD EPYC, 2 threads · torch 2.15.0: no advice"


def test_a_run_of_failures_says_that_nothing_was_measured() -> None:
    run = fast_bf16()
    skipped = failing(run, FP32.case_id)
    skipped = replace(skipped, rounds=[], skips={BF16.case_id: Skip(case_id=BF16.case_id, reason="no loss was given")})
    material = make_material(skipped)
    assert heading(material) == "Nothing was measured: 1 failed, 1 skipped"
    assert missing(material)[1] == ["skipped", "no loss was given", "1", "bf16_autocast", "linear_chain"]


def test_a_run_without_cases_says_so() -> None:
    material = make_material(StoredRun(path=Path("run.jsonl"), header=make_header()))
    assert heading(material) == "Nothing was measured: there are no cases"
    assert "Run 20260131T120000Z-bench-1f9a3c is not complete: killed, or still running." in warnings(material)


def test_failures_are_counted_and_told_by_reason_the_commonest_first() -> None:
    cases = [make_case("fp32", workload=f"net{number}") for number in range(8)]
    run = make_run(Times(*((case, [1e-3] * 4) for case in cases)))
    failed = failing(run, *(case.case_id for case in cases[:5]))
    for case, cause in zip(cases, ["crash", "out of memory", "out of memory", "timeout", "crash"], strict=False):
        failed.failures[case.case_id] = structs.replace(failed.failures[case.case_id], cause=cause)
    material = make_material(failed)
    assert warnings(material) == ["5 of 8 cases failed."]
    assert missing(material) == [
        ["failed", "crash: no room", "2", "fp32", "net0, net4"],
        ["failed", "out of memory: no room", "2", "fp32", "net1, net2"],
        ["failed", "timeout: no room", "1", "fp32", "net3"],
    ]


def test_with_a_baseline_the_heading_is_the_verdict_of_compare() -> None:
    base = make_run(Times((FP32, noisy(1e-3)), (BF16, noisy(1e-3))), header=make_header(run="base"))
    slower = make_run(Times((FP32, noisy(1e-3)), (BF16, noisy(2e-3))), header=make_header(run="new"))
    material = make_material(slower, baseline=base)
    said = verdict(*material.comparisons)
    assert heading(material) == said
    assert said.endswith(": linear_chain bf16_autocast, time +100%")
    (change,) = changed(material)
    assert change[:6] == ["regressed", "linear_chain bf16_autocast", "time", "1.00 ms", "2.00 ms", "+100%"]
    assert "certainly over 2%" in page(material).get_text()


def test_of_several_comparisons_the_worst_change_of_all_comes_first_with_its_run() -> None:
    base = make_run(Times((FP32, noisy(1e-3)), (BF16, noisy(1e-3))), header=make_header(run="base"))
    slower = [
        make_run(
            Times((case, noisy(seconds, seed=number))),
            header=environment(make_header(run=f"after-{number}"), torch_version=f"2.1{number}.0"),
        )
        for number, case, seconds in ((6, FP32, 1.5e-3), (7, BF16, 3e-3))
    ]
    material = make_material(*slower, baseline=base)
    assert "most of all linear_chain bf16_autocast of after-7, time +200%" in heading(material)
    assert [row[1] for row in changed(material)] == ["linear_chain fp32", "linear_chain bf16_autocast"]


def test_the_sides_and_what_weakens_a_comparison_are_said_plainly() -> None:
    base = make_run(Times((FP32, noisy(1e-3))), header=make_header(run="base", label="before"))
    new = environment(make_header(run="new", label="after"), cpu="Xeon", torch_version="2.16.0")
    material = make_material(make_run(Times((FP32, noisy(1e-3))), header=new), baseline=base)
    sides = page(material).select_one("#result h3").text
    assert sides == "before → after · torch 2.15.0 → 2.16.0"
    said = warnings(material)
    assert any(one.startswith("Not measured in turns") for one in said)
    assert any("Xeon (times are not comparable)" in one for one in said)


def test_a_control_that_fired_is_a_warning() -> None:
    ours, theirs = arms()
    base = make_run(Times((FP32, noisy(1e-3))), control=noisy(1.07e-3, seed=2), header=ours)
    material = make_material(make_run(Times((FP32, noisy(1e-3, seed=1))), header=theirs), baseline=base)
    comparison = material.comparisons[0]
    assert comparison.control.fired
    assert as_sentence(control_line(comparison.control)) in warnings(material)


def test_an_interrupted_run_is_warned_of() -> None:
    run = replace(fast_bf16(), footers=[Footer(ended="interrupted", finished_at="2026-01-31T12:05:00Z")])
    assert warnings(make_material(run)) == ["Run 20260131T120000Z-bench-1f9a3c is not complete: interrupted."]


def disturbed(run: StoredRun) -> StoredRun:
    return replace(run, rounds=[structs.replace(one, samples=[[1e-3, 2e-3, 2e-3]]) for one in run.rounds])


def test_a_machine_that_was_not_quiet_is_warned_of_with_its_run() -> None:
    (said,) = warnings(make_material(disturbed(fast_bf16())))
    assert said.startswith("This machine was not quiet: end other work")
    other = environment(make_header(run="second"), host="elsewhere")
    (said,) = warnings(make_material(fast_bf16(), disturbed(replace(fast_bf16(), header=other))))
    assert said.startswith("second: this machine was not quiet: ")


def test_a_baseline_that_was_not_quiet_is_warned_of() -> None:
    imported = Imported(program="asv", file="a.json")
    said = warnings(make_material(fast_bf16(run="new"), baseline=disturbed(fast_bf16(imported=imported))))
    assert any(one.startswith("Baseline: this machine was not quiet: ") for one in said)
    assert "Baseline: imported from asv: a.json." in said
    assert not any(one.startswith("Candidate: ") for one in said)


def test_a_warning_that_is_true_of_all_runs_stands_there_once() -> None:
    imported = Imported(program="asv", file="a.json")
    said = warnings(make_material(fast_bf16(run="new", imported=imported), baseline=fast_bf16(imported=imported)))
    assert said.count("Imported from asv: a.json.") == 1


def test_an_imported_run_whose_end_nobody_told_was_not_killed() -> None:
    run = replace(fast_bf16(imported=Imported(program="asv", file="a.json")), footers=[])
    assert warnings(make_material(run)) == ["Imported from asv: a.json."]


def test_text_of_unknown_origin_is_only_text() -> None:
    evil = "<script>alert(1)</script>\u202e"
    run = make_header(run="new", label=evil, commit=evil)
    soup = page(make_material(make_run(Times((FP32, [1e-3])), header=run), baseline=fast_bf16(run="old", label="b")))
    assert soup.select_one("#result script") is None
    assert "<script>alert(1)</script>\\u202e" in soup.h3.get_text()


def test_all_runs_of_the_repository_make_one_banner(history: Material) -> None:
    # the newest was measured with 2.11.0: a history is headed by its highest version, which the heading says
    assert heading(history).startswith("AMD EPYC, 2 threads · torch 2.15.0: ")


def test_two_real_runs_are_compared() -> None:
    material = gather(["20261121T051926Z"], RESULTS, baseline="20261121T050808Z")
    assert (
        heading(material) == "1 improved (time 1), 54 inconclusive, 239 unchanged: roi_head fp32 inference, time -14%"
    )

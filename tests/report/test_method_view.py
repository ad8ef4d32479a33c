"""How numbers came about, and where they were measured."""

from dataclasses import replace
from functools import partial

import pytest
from bs4 import BeautifulSoup
from msgspec import structs

from ampbench.core.budget import Budget
from ampbench.records.case import DeviceDescription, OwnPrecision
from ampbench.records.measured import Fitness
from ampbench.records.run import Footer, Header, Imported, Selection, Settings
from ampbench.report.material import Material
from ampbench.report.views.method import environment, method
from ampbench.show.comparison import NOT_IN_TURNS
from ampbench.store import StoredRun
from tests.compared_runs import BF16, FP32, Times, arms, make_run, noisy, rounds_of
from tests.compared_runs import environment as with_environment
from tests.report.materials import make_material, rendered_by
from tests.stored_runs import make_case, make_header

TIMES = Times((FP32, noisy(1e-3)), (BF16, noisy(5e-4)))


rendered = partial(rendered_by, method)


def text_of(material: Material) -> str:
    return " ".join(rendered(material).select_one("#method").get_text().split())


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


def test_an_imported_run_is_said_to_have_numbers_of_another_program():
    header = make_header(imported=Imported(program="asv", file="a.json"))
    run = replace(make_run(TIMES, header=header), rounds=[], readings={"seconds_median": {FP32.case_id: 1e-3}})
    assert "those of the program that measured them" in text_of(make_material(run))


def test_a_run_without_cases_has_a_method_and_no_run_has_none():
    empty = replace(make_run(TIMES), cases={}, rounds=[], memory={}, divergence={})
    assert "What this page does not say" in text_of(make_material(empty))
    assert method(make_material()) is None


CPU = DeviceDescription(
    type="cpu",
    available=True,
    name="AMD EPYC",
    count=1,
    arithmetic={"float32": "native", "bfloat16": "native", "float16": "emulated"},
    autocast_dtype="bf16",
    details={"capability": "AVX512"},
)
CUDA = DeviceDescription(type="cuda", available=False, reason="no cuda device or driver found")


def a_run(run: str = "new", **changes: object) -> StoredRun:
    header = make_header(run=run, **{name: value for name, value in changes.items() if name in Header.__slots__})
    others = {name: value for name, value in changes.items() if name not in Header.__slots__}
    return make_run(Times((FP32, noisy(1e-3, 4)), (BF16, noisy(5e-4, 4))), header=with_environment(header, **others))


page_of = partial(rendered_by, environment)


def facts_of(page: BeautifulSoup) -> dict[str, str]:
    """Return the definitions of the page."""
    terms = [term.get_text() for term in page.select("#environment dt")]
    texts = [text.get_text() for text in page.select("#environment dd")]
    return dict(zip(terms, texts, strict=True))


def rows_of(page: BeautifulSoup, caption: str) -> dict[str, list[str]]:
    """Return the rows of the table whose caption begins so, by their names."""
    table = next(one for one in page.find_all("table") if one.caption.get_text().startswith(caption))
    return {row.th.get_text(): [cell.get_text() for cell in row.find_all("td")] for row in table.tbody.find_all("tr")}


def test_one_run_is_told_in_lists_without_a_table():
    page = page_of(make_material(a_run(devices=[CPU, CUDA], torch_commit="abc123")))
    facts = facts_of(page)
    assert not page.find_all("table")
    assert facts["torch"] == "2.15.0"
    assert facts["torch build"] == "abc123"
    assert facts["cpu arithmetic"] == "fp32 native, bf16 native, fp16 emulated, no tf32"
    assert facts["cpu capability"] == "AVX512"
    assert facts["cuda device"] == "not available: no cuda device or driver found"


def test_a_package_that_cannot_be_used_says_why_and_variables_are_listed():
    page = page_of(make_material(a_run(unavailable={"torchvision": "built for another torch"}, variables={"A": "1"})))
    facts = facts_of(page)
    assert facts["torchvision"] == "not usable: built for another torch"
    assert facts["A"] == "1"


def test_settings_selection_and_command_are_as_they_were_given():
    selection = Selection(workloads=["mlp"], sweeps={"width": [1, 2]}, scaler=False)
    settings = Settings(rounds=7, min_run_seconds=0.25, seed=3, isolation=False)
    page = page_of(make_material(a_run(selection=selection, settings=settings, command=["ampbench", "run", "a b"])))
    facts = facts_of(page)
    assert facts["rounds a case"] == "7"
    assert facts["timed in a round for at least"] == "250 ms"
    assert facts["isolation"] == "none: all in one process"
    assert facts["selection"] == "workloads mlp, sweep width=1,2, without GradScaler"
    assert facts["command"] == "ampbench run 'a b'"


def test_a_time_is_told_as_everywhere_on_the_page():
    facts = facts_of(page_of(make_material(a_run(started_at="2026-02-01T00:30:00+02:00"))))
    assert facts["started"] == "2026-01-31 22:30 UTC"


def test_no_heading_is_that_of_another_section(readme_run: Material):
    headings = [one.get_text() for one in page_of(readme_run).select("#environment h3")]
    assert "Settings" in headings
    assert "How it was measured" not in headings


def test_an_imported_run_has_no_settings_that_nobody_chose():
    facts = facts_of(page_of(make_material(a_run(imported=Imported(program="asv", file="machine.json"), threads=None))))
    assert facts["imported from"] == "asv: machine.json"
    assert "rounds a case" not in facts
    assert "number of threads" not in facts
    assert "command" not in facts


def test_differences_come_first_and_say_where_times_are_not_comparable():
    material = make_material(a_run(torch_version="2.16.0", cpu_count=4), baseline=a_run("base"))
    page = page_of(material)
    differing = rows_of(page, "In what the runs differ")
    assert list(differing) == ["number of CPUs", "torch"]
    assert differing["number of CPUs"] == ["2", "4", "times are not comparable"]
    assert differing["torch"] == ["2.15.0", "2.16.0", ""]
    same = facts_of(page)
    assert same["host"] == "bench"
    assert "torch" not in same
    assert page.select_one("#environment details dl") is not None


def test_the_baseline_is_the_first_column_and_is_named():
    page = page_of(make_material(a_run(), baseline=a_run("base")))
    heads = [head.get_text() for head in page.find("table").thead.find_all("th")]
    assert heads == ["baseline: base", "new"]


def test_several_machines_stand_side_by_side_without_a_baseline():
    runs = [a_run("one"), replace(a_run("two", host="other", cpu="Xeon"))]
    differing = rows_of(page_of(make_material(*runs)), "In what the runs differ")
    assert differing["host"] == ["bench", "other"]
    assert differing["CPU"] == ["AMD EPYC", "Xeon"]


def test_what_one_side_does_not_know_is_undefined_there():
    material = make_material(a_run(variables={"OMP_NUM_THREADS": "1"}), baseline=a_run("base"))
    assert rows_of(page_of(material), "In what")["OMP_NUM_THREADS"][:2] == ["–", "1"]


def test_equal_runs_are_said_to_be_equal():
    assert "the same in all that is recorded" in page_of(make_material(a_run(), baseline=a_run("base"))).get_text()


def test_what_the_top_of_the_page_says_of_a_comparison_is_not_said_again():
    assert NOT_IN_TURNS not in page_of(make_material(a_run(), baseline=a_run("base"))).get_text()


def test_the_blocks_of_arms_are_counted():
    first, second = arms()
    times = Times((FP32, noisy(1e-3)))
    page = page_of(make_material(make_run(times, header=second), baseline=make_run(times, header=first)))
    assert rows_of(page, "How the runs went")["rounds"] == ["16 in 16 blocks", "16 in 16 blocks"]


def test_the_control_and_how_quiet_it_was_are_told():
    quiet, busy = Fitness(other_share=0.01, steal_share=0.0), Fitness(other_share=0.5, steal_share=0.0)
    run = make_run(Times((FP32, [1e-3])), control=[1.1e-3])
    rounds = [*rounds_of(FP32, [1e-3] * 3, fitness=quiet), *rounds_of(FP32, [1e-3], fitness=busy), run.rounds[-1]]
    facts = facts_of(page_of(make_material(replace(run, rounds=rounds))))
    assert facts["control"].endswith("measured twice: 1.00 ms and 1.10 ms, 10% apart")
    assert facts["rounds"] == "4, 1 of the control"
    assert facts["CPU time of other processes"] == "1.0% in the median round, at most 50%"
    assert facts["unfit rounds"] == "20%; other processes used 50% of the CPU in 1 of 5 rounds"


def test_disturbed_samples_are_counted():
    run = make_run(Times((FP32, [1e-3])))
    rounds = rounds_of(FP32, [1e-3], samples=[[1.0, 1.05, 1.2, 1.5]])
    facts = facts_of(page_of(make_material(replace(run, rounds=rounds))))
    assert facts["disturbed samples"] == "50% took over 1.1 times the fastest of their build, or their CPU time"


@pytest.mark.parametrize(
    ("footers", "cut", "said"),
    [
        ([], False, "killed, or still running"),
        ([], True, "killed, or still running; its file ends in a cut line, which was left out"),
        ([Footer(ended="out of time", finished_at="2026-01-31T12:01:00Z")], False, "out of time"),
    ],
)
def test_a_run_that_is_not_whole_says_so(footers: list[Footer], cut: bool, said: str):
    facts = facts_of(page_of(make_material(replace(a_run(), footers=footers, cut=cut))))
    assert facts["ended"] == said


def test_a_step_whose_bits_differ_is_named():
    run = make_run(Times((FP32, [1e-3]), (BF16, [1e-3])), repeatable=True)
    moved = run.divergence | {BF16.case_id: structs.replace(run.divergence[BF16.case_id], repeatable=False)}
    facts = facts_of(page_of(make_material(replace(run, divergence=moved))))
    assert facts["the same step, run twice"] == f"other bits in 1 of 2 cases: {BF16.case_id}"


def test_an_imported_run_whose_end_nobody_told_was_not_killed():
    run = replace(a_run(imported=Imported(program="asv", file="a.json")), footers=[])
    assert "ended" not in facts_of(page_of(make_material(run)))


def test_one_case_is_no_plural():
    run = make_run(Times((FP32, [1e-3])), repeatable=True)
    assert facts_of(page_of(make_material(run)))["the same step, run twice"] == "the same bits in 1 case"


def test_a_run_without_cases_has_an_environment_and_no_run_has_none():
    empty = replace(a_run(), cases={}, rounds=[], memory={}, divergence={})
    assert facts_of(page_of(make_material(empty)))["rounds"] == "none"
    assert environment(make_material()) is None


def test_the_readme_run_tells_its_machine(readme_run: Material):
    facts = facts_of(page_of(readme_run))
    assert facts["cpu arithmetic"] == "fp32 native, bf16 native, fp16 emulated, no tf32"
    assert facts["rounds"] == "220, 4 of the control"

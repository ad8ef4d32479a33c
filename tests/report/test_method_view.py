"""How numbers came about, and where they were measured."""

from dataclasses import replace
from functools import partial

import pytest
from bs4 import BeautifulSoup

from ampbench.core.budget import Budget
from ampbench.records.case import DeviceDescription, OwnPrecision
from ampbench.records.measured import Fitness
from ampbench.records.run import Footer, Header, Imported, Selection, Settings
from ampbench.report.facts import environment, method
from ampbench.report.material import Material
from ampbench.store import StoredRun
from tests.compared_runs import BF16, FP32, Times, make_run, noisy, rounds_of
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
    assert "How it was measured" in text_of(make_material(empty))
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
    """Return the facts that the runs share."""
    rows = page.select("#environment details tbody tr")
    return {row.find_all("td")[0].get_text(): row.find_all("td")[1].get_text() for row in rows}


def rows_of(page: BeautifulSoup, title: str) -> dict[str, list[str]]:
    """Return the rows of the table with this title, by their names."""
    table = next(one for one in page.select("#environment table") if one.caption.get_text() == title)
    cells = [[cell.get_text() for cell in row.find_all("td")] for row in table.tbody.find_all("tr")]
    return {name: rest for name, *rest in cells}


def test_what_a_run_records_of_its_machine_is_told():
    page = page_of(make_material(a_run(devices=[CPU, CUDA], torch_commit="abc123", variables={"A": "1"})))
    facts = facts_of(page)
    assert facts["environment.torch_version"] == "2.15.0"
    assert facts["environment.torch_commit"] == "abc123"
    assert facts["environment.devices[0].details.capability"] == "AVX512"
    assert facts["environment.devices[1].reason"] == "no cuda device or driver found"
    assert facts["environment.variables.A"] == "1"


def test_settings_selection_and_command_are_as_they_were_given():
    settings = Settings(rounds=7, min_run_seconds=0.25, seed=3, isolation=False)
    selection = Selection(workloads=["mlp"], sweeps={"width": [1, 2]})
    page = page_of(make_material(a_run(selection=selection, settings=settings, command=["ampbench", "run", "a b"])))
    facts = facts_of(page)
    assert facts["settings.rounds"] == "7"
    assert facts["settings.isolation"] == "False"
    assert facts["selection.sweeps.width"] == "1, 2"
    assert facts["command"] == "ampbench, run, a b"


def test_a_time_is_told_as_everywhere_on_the_page():
    page = page_of(make_material(a_run(started_at="2026-02-01T00:30:00+02:00")))
    assert rows_of(page, "how it went")["new"][0] == "2026-01-31 22:30 UTC"


def test_what_differs_stands_side_by_side_and_what_is_the_same_is_folded():
    material = make_material(a_run(torch_version="2.16.0", variables={"A": "1"}), baseline=a_run("base"))
    page = page_of(material)
    differing = rows_of(page, "what differs")
    assert differing["environment.torch_version"] == ["2.15.0", "2.16.0"]
    assert differing["environment.variables.A"] == ["–", "1"]
    assert facts_of(page)["environment.host"] == "bench"
    assert "environment.torch_version" not in facts_of(page)
    table = next(one for one in page.select("#environment table") if one.caption.get_text() == "what differs")
    assert [head.get_text() for head in table.thead.find_all("th")] == ["fact", "baseline: base", "new"]


def test_the_control_and_how_quiet_it_was_are_told():
    quiet, busy = Fitness(other_share=0.01, steal_share=0.0), Fitness(other_share=0.5, steal_share=0.0)
    run = make_run(Times((FP32, [1e-3])), control=[1.1e-3])
    rounds = [*rounds_of(FP32, [1e-3] * 3, fitness=quiet), *rounds_of(FP32, [1e-3], fitness=busy), run.rounds[-1]]
    (told,) = rows_of(page_of(make_material(replace(run, rounds=rounds))), "how it went").values()
    assert told[2:] == ["5", "20%", "0%", "10% apart"]


def test_disturbed_samples_are_counted():
    run = make_run(Times((FP32, [1e-3])))
    rounds = rounds_of(FP32, [1e-3], samples=[[1.0, 1.05, 1.2, 1.5]])
    (told,) = rows_of(page_of(make_material(replace(run, rounds=rounds))), "how it went").values()
    assert told[4] == "50%"


@pytest.mark.parametrize(
    ("footers", "cut", "said"),
    [
        ([], False, "killed, or still running"),
        ([], True, "killed, or still running; its file ends in a cut line, which was left out"),
        ([Footer(ended="out of time", finished_at="2026-01-31T12:01:00Z")], False, "out of time"),
    ],
)
def test_a_run_that_is_not_whole_says_so(footers: list[Footer], cut: bool, said: str):
    page = page_of(make_material(replace(a_run(), footers=footers, cut=cut)))
    assert rows_of(page, "how it went")["new"][1] == said


def test_an_imported_run_whose_end_nobody_told_was_not_killed():
    run = replace(a_run(imported=Imported(program="asv", file="a.json")), footers=[])
    assert rows_of(page_of(make_material(run)), "how it went")["new"][1] == "–"


def test_a_run_without_cases_has_an_environment_and_no_run_has_none():
    empty = replace(a_run(), cases={}, rounds=[], memory={}, divergence={})
    assert rows_of(page_of(make_material(empty)), "how it went")["new"][2:4] == ["0", "–"]
    assert environment(make_material()) is None

"""Which runs a report is of: those named, or the latest that measured and what explains it."""

from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from ampbench.errors import NothingToRunError
from ampbench.records.casts import CastPass
from ampbench.records.changes import Traces
from ampbench.records.kinds import KINDS
from ampbench.records.measured import Failure
from ampbench.records.rules import RuleProbe
from ampbench.report import page, site
from ampbench.report.material import Material, assigned, find_sources, gather
from ampbench.report.site import make_site
from ampbench.report.views import result
from ampbench.report.why import contents, held
from tests.compared_runs import environment
from tests.report.ranged_runs import FP32, TRIED, erring, originating, ranged, searched, spaced, spread
from tests.report.traced_runs import TRAINED, fake_pass, make_pass, probed
from tests.stored_runs import COMPLETE, make_case, make_header, make_round, write_run

OTHER = make_case("fp16_autocast", phase="training")


def run_id(day: int) -> str:
    return f"202601{day:02}T120000Z-bench-{day:06}"


def write(results: Path, day: int, *entries, cases=(TRAINED,), explains: str = "", **place: str) -> Path:
    header = environment(make_header(), **place)
    fields = {"run": run_id(day), "started_at": f"2026-01-{day:02}T12:00:00Z", "explains": explains}
    entries = entries or tuple(make_round(case, number=number) for case in cases for number in range(4))
    return write_run(results, list(cases), *entries, COMPLETE, environment=header.environment, **fields)


def traced(results: Path, day: int, cases=(TRAINED,), **place: str) -> Path:
    return write(results, day, *(make_pass(case) for case in cases), cases=cases, explains="casts", **place)


def ids(material: Material) -> tuple[list[str], list[str]]:
    return (
        [one.stored.header.run for one in material.shown],
        [one.header.run for one in material.explanations],
    )


def test_without_a_name_the_latest_measured_run_comes_with_what_explains_it(tmp_path: Path):
    traced(tmp_path, 1)  # older than the run
    write(tmp_path, 2)
    traced(tmp_path, 3)
    traced(tmp_path, 4, host="elsewhere")
    traced(tmp_path, 5, torch_version="2.14.0")
    assert ids(gather([], tmp_path)) == ([run_id(2)], [run_id(3)])


def test_what_is_named_is_what_is_shown(tmp_path: Path):
    path, older = write(tmp_path, 2), traced(tmp_path, 1)
    traced(tmp_path, 3)
    assert ids(gather([run_id(2)], tmp_path)) == ([run_id(2)], [])
    assert ids(gather([str(path), str(older)], tmp_path)) == ([run_id(2)], [run_id(1)])
    assert ids(gather(["latest"], tmp_path)) == ([run_id(2)], [])


def test_a_folder_gives_all_it_holds_and_trends_are_of_the_measured_runs(tmp_path: Path):
    write(tmp_path, 1, torch_version="2.14.0")
    write(tmp_path, 2)
    traced(tmp_path, 3)
    material = gather([str(tmp_path)], tmp_path)
    assert ids(material) == ([run_id(2)], [run_id(3)])  # the newer run has all that the older has
    assert [trend.axis for trend in material.trends] == ["torch_version"]


def test_where_nothing_was_measured_what_explains_is_shown(tmp_path: Path):
    traced(tmp_path, 1, host="elsewhere")
    traced(tmp_path, 2)
    traced(tmp_path, 3)
    assert ids(gather([], tmp_path)) == ([], [run_id(2), run_id(3)])
    assert ids(gather([run_id(1)], tmp_path)) == ([], [run_id(1)])


def test_only_traced_cases_that_match_the_keyword_are_taken(tmp_path: Path):
    traced(tmp_path, 1, cases=(TRAINED, OTHER))
    (found,) = gather([], tmp_path, keyword="fp16_autocast").explanations
    assert list(found.of(CastPass)) == [OTHER.case_id]
    with pytest.raises(NothingToRunError, match=f"no case of {run_id(1)} matches"):
        gather([], tmp_path, keyword="resnet")


def test_every_kind_of_explanation_comes_with_what_was_measured(tmp_path: Path):
    write(tmp_path, 1)
    low, fp32 = (OTHER,), (FP32,)
    write(tmp_path, 2, ranged(spread("a", -3, 2)), cases=fp32, explains="headroom")
    write(tmp_path, 3, originating(erring("a")), cases=low, explains="origin")
    write(tmp_path, 4, spaced(), *TRIED, searched(), cases=low, explains="keep-fp32")
    material = gather([], tmp_path)
    assert ids(material) == ([run_id(1)], [run_id(2), run_id(3), run_id(4)])
    assert contents(material) == [
        "the headroom of 1 case",
        "the origin of errors in 1 case",
        "what to keep in fp32 in 1 case",
    ]
    assert contents(gather([run_id(2), run_id(3), run_id(4)], tmp_path, keyword="fp16")) == contents(material)[1:]
    with pytest.raises(NothingToRunError, match="matches -k"):
        gather([run_id(4)], tmp_path, keyword="bf16_autocast")


def test_a_failure_that_does_not_match_the_keyword_is_left_out(tmp_path: Path):
    failure = Failure(case_id=OTHER.case_id, stage="origin", cause="out of memory", message="")
    write(tmp_path, 1, originating(erring("a"), case=TRAINED), failure, cases=(TRAINED, OTHER), explains="origin")
    assert [one.reason for one in held(gather([], tmp_path), KINDS["origin"]).untold] == ["out of memory"]
    assert held(gather([], tmp_path), KINDS["headroom"]).untold == []
    assert held(gather([], tmp_path, keyword="bf16_autocast"), KINDS["origin"]).untold == []


def test_runs_that_explain_are_compared_with_one_another(tmp_path: Path):
    traced(tmp_path, 1, torch_version="2.14.0")
    traced(tmp_path, 2)
    material = gather([run_id(2)], tmp_path, baseline=run_id(1))
    (comparison,) = material.comparisons
    assert list(comparison.explained) == [TRAINED.case_id]
    assert comparison.explained[TRAINED.case_id].traces is Traces.SAME


@pytest.fixture
def site_of(monkeypatch: pytest.MonkeyPatch):
    """A function that makes a site of a folder, its pages of the result alone."""
    monkeypatch.setattr(page, "VIEWS", (result,))
    monkeypatch.setattr(site, "chart_library", str)

    def make(results: Path) -> dict[str, BeautifulSoup]:
        return {name: BeautifulSoup(text, "html5lib") for name, text in make_site([], results)}

    return make


def test_on_a_site_what_explains_stands_on_the_page_of_the_newest_run_before_it(tmp_path: Path, site_of):
    for day in (1, 3, 5):
        write(tmp_path, day)
    traced(tmp_path, 4)
    traced(tmp_path, 6, host="elsewhere")
    files = site_of(tmp_path)
    assert list(files) == [*(f"{run_id(day)}.html" for day in (1, 3, 5, 6)), "charts.js", "page.js", "index.html"]
    runs = files["index.html"].select("#runs tbody tr")
    assert [row.td.get_text() for row in runs if "the casts of 1 case" in row.get_text()] == [run_id(6)]
    sources = assigned(find_sources([str(tmp_path)], tmp_path))
    assert [path.stem for path, explaining in sources.items() if explaining] == [run_id(3)]
    assert files[f"{run_id(6)}.html"].h1.get_text().startswith("linear_chain bf16_autocast: ")  # what was found of it


def test_a_site_of_what_explains_alone_has_its_pages(tmp_path: Path, site_of):
    write(tmp_path, 1, fake_pass(), explains="casts")
    write(tmp_path, 2, *probed().of(RuleProbe).values(), cases=(), explains="rules")
    assert list(site_of(tmp_path)) == [f"{run_id(1)}.html", f"{run_id(2)}.html", "charts.js", "page.js", "index.html"]

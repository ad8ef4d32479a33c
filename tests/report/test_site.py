"""A site: an index of runs and a page for each, whatever lies in the folder."""

from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup
from msgspec.structs import replace

from ampbench.errors import NothingToRunError, StoreError, UnknownNameError
from ampbench.records.measured import Failure
from ampbench.records.run import Footer
from ampbench.report import page
from ampbench.report import site as sites
from ampbench.report.site import make_site
from ampbench.report.trends import trends
from tests.stored_runs import COMPLETE, make_case, make_header, make_round, write_run

FP32, BF16 = make_case(), make_case("bf16_pure")


@pytest.fixture(autouse=True)
def only_trends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of one section: what a report holds is tested elsewhere."""
    monkeypatch.setattr(page, "VIEWS", (trends,))
    monkeypatch.setattr(sites, "chart_library", str)


def write(results: Path, name: str, day: int = 1, seconds: float = 1e-3, **header: Any) -> Path:
    rounds = [make_round(case, seconds * factor, number) for case, factor in ((FP32, 1.0), (BF16, 0.5))
              for number in range(4)]  # fmt: skip
    given = {"run": name, "started_at": f"2026-01-{day:02}T12:00:00Z"} | header
    return write_run(results, [FP32, BF16], *rounds, COMPLETE, **given)


def files_of(results: Path, *sources: str, **options: Any) -> dict[str, BeautifulSoup]:
    return {name: BeautifulSoup(text, "html5lib") for name, text in make_site(sources, results, **options)}


def rows_of(index: BeautifulSoup) -> list[dict[str, str]]:
    table = index.select_one("#runs table")
    heads = [head.get_text(strip=True) for head in table.thead.find_all("th")]
    return [
        dict(zip(heads, (cell.get_text(strip=True) for cell in row.find_all(["th", "td"])), strict=True))
        for row in table.tbody.find_all("tr")
    ]


def test_each_run_has_a_page_and_a_line_the_newest_first(tmp_path: Path) -> None:
    write(tmp_path, "old", 1, label="before")
    write(tmp_path, "new", 2, commit="a" * 40)
    files = files_of(tmp_path)
    assert list(files) == ["new.html", "old.html", "charts.js", "page.js", "index.html"]
    first, second = rows_of(files["index.html"])
    assert (first["run"], first["began"]) == ("new", "2026-01-02 12:00")
    assert (second["run"], second["label"]) == ("old", "before")
    assert (first["host"], first["device"], first["torch"]) == ("bench", "AMD EPYC, 2 threads", "2.15.0")
    assert (first["commit"], first["cases"], first["ended"]) == ("aaaaaaa", "2 ok", "complete")
    assert first["advice"] == "no advice"


def test_the_index_links_to_the_pages_and_the_pages_to_the_index(tmp_path: Path) -> None:
    write(tmp_path, "one")
    write(tmp_path, "two", 2)
    files = files_of(tmp_path)
    links = [link["href"] for link in files["index.html"].select("#runs tbody a")]
    assert links == ["two.html", "one.html"]
    assert all(link in files for link in links)
    assert files["one.html"].select_one("nav a")["href"] == "index.html"
    assert files["index.html"].find("h1").get_text() == "2 runs"


def test_the_index_follows_all_runs(tmp_path: Path) -> None:
    for day, version in enumerate(("2.14.0", "2.15.0"), 1):
        write(tmp_path, f"run{day}", day, environment=replace(make_header().environment, torch_version=version))
    index = files_of(tmp_path)["index.html"]
    assert "2 series of 2 cases over torch version: 2.14.0 → 2.15.0" in index.select_one("#trends").get_text()


def test_runs_are_compared_with_the_baseline_and_the_baseline_is_not(tmp_path: Path) -> None:
    write(tmp_path, "base", 1)
    write(tmp_path, "new", 2)
    other = make_case(workload="another")
    write_run(tmp_path, [other], make_round(other), COMPLETE, run="other", started_at="2026-01-03T12:00:00Z")
    index = files_of(tmp_path, baseline="base")["index.html"]
    verdicts = {row["run"].split()[-1]: row["against the baseline"] for row in rows_of(index)}
    assert verdicts["base"] == "the baseline"
    assert verdicts["other"] == "not comparable"
    assert "unchanged" in verdicts["new"]
    assert index.select("#runs tbody a")[-1]["href"] == "base.html"
    assert [one.get_text().partition(":")[0] for one in index.select("#runs p.warning")] == ["Not measured in turns"]


def test_without_a_baseline_nothing_is_said_of_verdicts(tmp_path: Path) -> None:
    write(tmp_path, "one")
    assert "against the baseline" not in rows_of(files_of(tmp_path)["index.html"])[0]


def test_a_damaged_file_is_named_and_the_others_have_their_pages(tmp_path: Path) -> None:
    write(tmp_path, "sound")
    (tmp_path / "runs" / "torn.jsonl").write_text('{"header": {}}\n')
    (tmp_path / "runs" / "empty.jsonl").write_text("")
    problems: list[str] = []
    files = files_of(tmp_path, problem=problems.append)
    assert list(files) == ["sound.html", "charts.js", "page.js", "index.html"]
    assert len(problems) == 2
    assert all(str(tmp_path) in problem for problem in problems)
    listed = [one.get_text().partition(",")[0] for one in files["index.html"].select("#runs > p:not([class])")]
    assert listed == ["empty.jsonl", "torn.jsonl"]
    assert str(tmp_path) not in files["index.html"].get_text()


def test_a_page_that_cannot_be_made_is_named_and_ends_no_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path, name, day) for day, name in enumerate(("one", "two", "three"), 1)]
    make_page = sites.make_page

    def fails_once(material: Any, **options: Any) -> str:
        if material.shown[0].stored.header.run == "two":
            raise ValueError("the chart failed")
        return make_page(material, **options)

    monkeypatch.setattr(sites, "make_page", fails_once)
    problems: list[str] = []
    names = {name for name, _ in make_site([], tmp_path, problem=problems.append)}
    assert names == {"three.html", "one.html", "charts.js", "page.js", "index.html"}
    assert problems == [f"no page of {paths[1]}: internal error: ValueError: the chart failed"]


def test_where_every_file_is_damaged_there_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "torn.jsonl").write_text("{}\n")
    with pytest.raises(StoreError, match=r"torn\.jsonl, line 1"):
        list(make_site([], tmp_path))


def test_a_folder_without_runs_and_a_name_that_is_none_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no run file"):
        next(make_site([], tmp_path))
    write(tmp_path, "one")
    for sources, baseline in ((["two"], ""), ([], "two")):
        with pytest.raises(UnknownNameError):
            next(make_site(sources, tmp_path, baseline=baseline))


def test_runs_without_a_case_that_matches_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "one")
    other = make_case(workload="another")
    write_run(tmp_path, [other], make_round(other), COMPLETE, run="other", started_at="2026-01-03T12:00:00Z")
    files = files_of(tmp_path, keyword="another")
    assert list(files) == ["other.html", "charts.js", "page.js", "index.html"]
    assert "no case of one matches -k 'another'" in files["index.html"].get_text()
    with pytest.raises(NothingToRunError):
        files_of(tmp_path, keyword="nothing")


def test_a_run_without_cases_and_one_of_failures_only_have_their_lines(tmp_path: Path) -> None:
    write_run(tmp_path, [], run="empty")
    failed = Failure(case_id=FP32.case_id, stage="round", cause="crash", message="signal 11")
    interrupted = Footer(ended="interrupted", finished_at="2026-01-31T12:05:00Z")
    write_run(tmp_path, [FP32], failed, interrupted, run="failed")
    empty, broken = sorted(rows_of(files_of(tmp_path)["index.html"]), key=lambda row: row["run"])
    assert (empty["cases"], empty["ended"]) == ("", "killed, or still running")
    assert (broken["cases"], broken["ended"]) == ("1 failed", "interrupted")


def test_advice_is_counted_over_the_tables_that_have_a_case_on_the_page(tmp_path: Path) -> None:
    others = [make_case(precision, workload="another") for precision in ("fp32", "bf16_pure")]
    rounds = [make_round(case, 1e-3, number) for case in (FP32, BF16, *others) for number in range(4)]
    write_run(tmp_path, [FP32, BF16, *others], *rounds, COMPLETE, run="one")
    assert rows_of(files_of(tmp_path)["index.html"])[0]["advice"] == "stay in fp32 for 2 of 2"
    assert rows_of(files_of(tmp_path, keyword="another and bf16_pure")["index.html"])[0]["advice"] == "stay in fp32"


def test_a_copy_of_a_run_is_left_out_and_named(tmp_path: Path) -> None:
    path = write(tmp_path, "one")
    path.with_name("copy.jsonl").write_bytes(path.read_bytes())
    files = files_of(tmp_path)
    assert list(files) == ["copy.html", "charts.js", "page.js", "index.html"]
    assert "one.jsonl was left out" in files["index.html"].get_text()


def test_pages_are_made_one_by_one(tmp_path: Path) -> None:
    write(tmp_path, "a", 1)
    later = write(tmp_path, "b", 2)
    problems: list[str] = []
    files = make_site([], tmp_path, problem=problems.append)
    assert next(files)[0] == "a.html"
    later.write_text("")
    assert [name for name, _ in files] == ["charts.js", "page.js", "index.html"]
    assert len(problems) == 1


def test_a_file_of_the_name_of_the_index_is_left_out_and_any_other_name_is_linked(tmp_path: Path) -> None:
    write(tmp_path, "index")
    odd = write(tmp_path, "odd")
    odd.rename(odd.with_name("a #b<i>.jsonl"))
    index = files_of(tmp_path)["index.html"]
    assert [link["href"] for link in index.select("#runs tbody a")] == ["a%20%23b%3Ci%3E.html"]
    assert "index.jsonl was left out" in index.get_text()


def test_labels_with_markup_are_text(tmp_path: Path) -> None:
    write(tmp_path, "one", label="<script>alert(1)</script>")
    index = files_of(tmp_path)["index.html"]
    assert rows_of(index)[0]["label"] == "<script>alert(1)</script>"
    assert not index.select_one("#runs").find("script")

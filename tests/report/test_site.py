"""A site: an index of runs and a page for each, whatever lies in the folder."""

from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup
from msgspec.structs import replace

from ampbench.report import page
from ampbench.report.material import assigned, find_sources
from ampbench.report.page import make_site
from ampbench.report.views import trends
from tests.report.traced_runs import TRAINED, make_pass
from tests.stored_runs import COMPLETE, make_case, make_header, make_round, write_run

FP32, BF16 = make_case(), make_case("bf16_pure")


@pytest.fixture(autouse=True)
def only_trends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of one section: what a report holds is tested elsewhere."""
    monkeypatch.setattr(page, "VIEWS", (trends,))


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
    before = replace(make_header().environment, torch_version="2.14.0")
    write(tmp_path, "old", 1, label="<script>alert(1)</script>", commit="a" * 40, environment=before)
    write(tmp_path, "new", 2, commit="a" * 40)
    files = files_of(tmp_path)
    assert list(files) == ["new.html", "old.html", "index.html"]
    first, second = rows_of(files["index.html"])
    assert (first["run"], first["began"]) == ("new", "2026-01-02 12:00")
    assert (second["run"], second["label"]) == ("old", "<script>alert(1)</script>")
    assert "against the baseline" not in first
    assert (first["host"], first["device"], first["torch"]) == ("bench", "AMD EPYC, 2 threads", "2.15.0")
    assert (first["commit"], first["cases"], first["ended"]) == ("aaaaaaa", "2 ok", "complete")
    assert first["advice"] == "no advice"
    assert "over torch version: 2.14.0 → 2.15.0" in files["index.html"].select_one("#trends").get_text()


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


def test_a_damaged_file_is_named_and_the_others_have_their_pages(tmp_path: Path) -> None:
    write(tmp_path, "sound")
    (tmp_path / "runs" / "torn.jsonl").write_text('{"header": {}}\n')
    (tmp_path / "runs" / "empty.jsonl").write_text("")
    problems: list[str] = []
    files = files_of(tmp_path, problem=problems.append)
    assert list(files) == ["sound.html", "index.html"]
    assert len(problems) == 2
    assert all(str(tmp_path) in problem for problem in problems)
    listed = [one.get_text().partition(",")[0] for one in files["index.html"].select("#runs > p:not([class])")]
    assert listed == ["empty.jsonl", "torn.jsonl"]
    assert str(tmp_path) not in files["index.html"].get_text()


def test_a_file_of_the_name_of_the_index_is_left_out_and_any_other_name_is_linked(tmp_path: Path) -> None:
    write(tmp_path, "index")
    odd = write(tmp_path, "odd")
    odd.rename(odd.with_name("a #b<i>.jsonl"))
    index = files_of(tmp_path)["index.html"]
    assert [link["href"] for link in index.select("#runs tbody a")] == ["a%20%23b%3Ci%3E.html"]
    assert "index.jsonl was left out" in index.get_text()


def test_an_explaining_run_stands_on_the_page_of_the_newest_run_before_it(tmp_path: Path) -> None:
    for day in (1, 3, 5):
        write(tmp_path, f"day{day}", day)
    for day, host in ((4, "bench"), (6, "elsewhere")):
        where = replace(make_header().environment, host=host)
        given = {"run": f"why{day}", "started_at": f"2026-01-{day:02}T12:00:00Z", "explains": "casts"}
        write_run(tmp_path, [TRAINED], make_pass(), COMPLETE, environment=where, **given)
    files = files_of(tmp_path)
    assert list(files) == ["day1.html", "day3.html", "day5.html", "why6.html", "index.html"]
    assert [row["run"] for row in rows_of(files["index.html"]) if "the casts of 1 case" in row["advice"]] == ["why6"]
    sources = assigned(find_sources([str(tmp_path)], tmp_path))
    assert [path.stem for path, explaining in sources.items() if explaining] == ["day3"]

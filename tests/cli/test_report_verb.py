"""`ampbench report`: where reports go, what is refused, what is left behind when it cannot be written."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup

from ampbench.cli import printing
from tests.cli.conftest import RUN_ID
from tests.report.traced_runs import make_pass
from tests.stored_runs import COMPLETE, make_case, make_memory, make_round, write_run

Run = Callable[..., Any]

CASE, BF16, OTHER = make_case("fp32"), make_case("bf16_autocast"), make_case(workload="mlp")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A results folder with three runs: before; after, with more memory; one of another case."""
    both = [CASE, BF16]
    for run, peak, cases in (("1-before", 1000, both), ("2-after", 1500, both), ("3-other", 1, [OTHER])):
        entries = [entry for case in cases for entry in (make_round(case), make_memory(case, peak))]
        started_at = f"2026-01-31T12:00:0{run[0]}Z"
        write_run(tmp_path / "results", cases, *entries, COMPLETE, run=run, started_at=started_at)
    return tmp_path / "results"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_latest_run_becomes_a_page_among_the_results_and_its_path_is_printed(results: Path, ampbench: Run) -> None:
    said = ampbench("report", "--results", results)
    page = results / "reports" / f"{RUN_ID}.html"
    assert (said.code, said.out, said.err) == (0, f"{page}\n", "")
    assert names(page.parent) == [page.name]
    assert "bf16_pure" in BeautifulSoup(page.read_text(encoding="utf-8"), "html5lib").h1.get_text()


def test_a_run_that_explains_has_a_page_and_is_no_baseline(folder: Path, ampbench: Run) -> None:
    started_at = "2026-01-31T12:00:09Z"
    write_run(folder, [CASE], make_pass(CASE), COMPLETE, run="4-why", explains="casts", started_at=started_at)
    said = ampbench("report", "4-why")
    assert (said.code, said.out) == (0, "results/reports/4-why.html\n")
    assert ampbench("report", "-o", "page.html").code == 0
    page = BeautifulSoup((folder.parent / "page.html").read_text(encoding="utf-8"), "html5lib")
    assert page.select_one("#explanation details.casts") is not None
    assert "3-other" in page.title.get_text()
    refused = ampbench("report", "2-after", "--baseline", "4-why")
    assert (refused.code, refused.err) == (2, "ampbench: error: run 4-why explains casts and measured nothing\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["2-aftr"], 2, "unknown run '2-aftr': did you mean 2-after"),
        (["latest", "--baseline", "1-befroe"], 2, "unknown run '1-befroe': did you mean 1-before"),
        (["missing.jsonl"], 2, "there is no run file missing.jsonl"),
        (["--site", "site", "-o", "page.html"], 2, "--site and -o contradict each other"),
        (["--site", "site", "2-aftr"], 2, "unknown run '2-aftr'"),
        (["3-other", "--baseline", "1-before"], 4, "nothing in common that can be compared"),
        (["--results", "empty"], 2, "there is no results folder empty"),
        (["--site", "site", "--results", "empty"], 2, "there is no results folder empty"),
    ],
)
def test_what_cannot_be_reported_is_said_in_one_line_and_nothing_is_written(
    arguments: list[str], code: int, message: str, folder: Path, ampbench: Run
) -> None:
    said = ampbench("report", *arguments)
    assert (said.code, said.out) == (code, "")
    assert message in said.err
    assert said.err.count("\n") == 1
    assert names(folder) == ["runs"]
    assert names(folder.parent) == ["results"]


@pytest.mark.parametrize("target", ["missing/report", "."])
def test_a_place_that_cannot_be_written_is_an_error_in_one_line(target: str, folder: Path, ampbench: Run) -> None:
    said = ampbench("report", "-o", target)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"ampbench: error: cannot write {target}: ")
    assert said.err.count("\n") == 1
    assert names(folder.parent) == ["results"]


@pytest.mark.parametrize("sources", [[], ["results"]])
def test_a_damaged_run_that_nobody_named_is_left_out_and_named(sources: list[str], folder: Path, ampbench: Run) -> None:
    (folder / "runs" / "4-damaged.jsonl").write_bytes(b'{"header":' * 5000)
    said = ampbench("report", *sources)
    assert said.code == 0
    assert said.out.endswith(".html\n")
    assert "4-damaged.jsonl, line 1: no whole header" in said.err


def test_a_site_has_an_index_and_a_page_for_each_run(folder: Path, tmp_path: Path, ampbench: Run) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "0-earlier.html").write_text("a page of a run that is gone")
    said = ampbench("report", "--site", "site")
    assert (said.code, said.out, said.err) == (0, "site/index.html\n", "")
    assert names(tmp_path / "site") == ["0-earlier.html", "1-before.html", "2-after.html", "3-other.html", "index.html"]
    index = BeautifulSoup((tmp_path / "site" / "index.html").read_text(encoding="utf-8"), "html5lib")
    linked = {link["href"] for link in index.find_all("a") if not link["href"].startswith("#")}
    assert linked >= {"1-before.html", "2-after.html", "3-other.html"}


@pytest.mark.parametrize("arguments", [["--site", "site", "3-other"], ["-o", "site/3-other.html"]])
def test_an_interrupt_leaves_the_old_page_and_nothing_half_written(
    arguments: list[str], folder: Path, tmp_path: Path, ampbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "3-other.html").write_text("old")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(printing.os, "fsync", interrupt)
    said = ampbench("report", *arguments)
    assert (said.code, said.out) == (130, "")
    assert names(tmp_path / "site") == ["3-other.html"]
    assert (tmp_path / "site" / "3-other.html").read_text() == "old"


def run_python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=folder.parent,
                          env=os.environ | {"COLUMNS": "100"})  # fmt: skip


@pytest.mark.parametrize("module", ["markupsafe", "vl_convert"])
def test_without_its_extra_it_says_what_to_install(module: str, folder: Path) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None\nfrom ampbench.cli.main import main\n"
        "sys.exit(main(['report', '2-after']))"
    )
    done = run_python(code, folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ampbench: error: a report needs its extra: pip install 'ampbench[report]'\n"
    assert "reports" not in names(folder)


@pytest.mark.parametrize("words", [["--site", "site"], []], ids=["site", "page"])
def test_a_link_at_a_name_that_nobody_typed_is_refused_and_what_it_leads_to_stays(
    words: list[str], tmp_path: Path, folder: Path, ampbench: Run
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    where = tmp_path / "site" if words else folder / "reports"
    where.mkdir()
    link = where / "3-other.html"
    link.symlink_to(victim)
    said = ampbench("report", *words, "3-other")
    assert said.code == 2
    assert f"{link.name}: it is a link to {victim}; remove it" in said.err
    assert victim.read_text() == "precious"
    assert ampbench("report", "3-other", "-o", str(link)).code == 0  # what was typed is meant
    assert victim.read_text().startswith("<!doctype html>")

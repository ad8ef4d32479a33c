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
from tests.compared_runs import FP32
from tests.report.traced_runs import make_pass
from tests.stored_runs import COMPLETE, write_run

Run = Callable[..., Any]


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
    write_run(folder, [FP32], make_pass(FP32), COMPLETE, run="4-why", explains="casts", started_at=started_at)
    said = ampbench("report", "4-why")
    assert (said.code, said.out) == (0, "results/reports/4-why.html\n")
    assert ampbench("report", "-o", "page.html").code == 0
    page = BeautifulSoup((folder.parent / "page.html").read_text(encoding="utf-8"), "html5lib")
    assert page.select_one("#explanation details.casts") is not None
    assert "3-other" in page.title.get_text()
    refused = ampbench("report", "2-after", "--baseline", "4-why")
    assert (refused.code, refused.err) == (2, "ampbench: error: run 4-why explains casts and measured nothing\n")


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

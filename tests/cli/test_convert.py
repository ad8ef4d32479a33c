"""`ampbench convert`: which formats take what, where the text goes, what is said about losses."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ampbench.convert import FORMATS
from ampbench.records.measured import Skip
from tests.convert.asv_results import STEP, row, write
from tests.stored_runs import COMPLETE, make_case, write_run

Run = Callable[..., Any]

CASE, BF16 = make_case("fp32"), make_case("bf16_pure")


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_format_of_one_run_is_printed_alone_on_stdout(name: str, results: Path, ampbench: Run) -> None:
    said = ampbench("convert", "latest", "--to", name, "--results", results)
    assert said.code == 0
    assert said.out.strip()
    if name == "junit":
        assert ElementTree.fromstring(said.out).tag == "testsuites"


def test_a_run_without_any_number_is_refused_by_formats_of_numbers_alone(tmp_path: Path, ampbench: Run) -> None:
    write_run(tmp_path / "results", [CASE], Skip(case_id=CASE.case_id, reason="no"), COMPLETE)
    said = ampbench("convert", "latest", "--to", "bencher")
    assert said.code == 5
    assert "bencher has no place for any case" in said.err
    assert "1 skipped; junit has all" in said.err
    assert ampbench("convert", "latest", "--to", "junit").code == 0


def test_o_writes_the_file_and_says_so_on_stderr(results: Path, tmp_path: Path, ampbench: Run) -> None:
    printed = ampbench("convert", "latest", "--to", "junit", "--results", results).out
    said = ampbench("convert", "latest", "--to", "junit", "--results", results, "-o", "run.xml")
    assert (said.code, said.out, said.err) == (0, "", "wrote run.xml\n")
    assert (tmp_path / "run.xml").read_text() == printed
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "run.xml").stat().st_mode) == 0o666 & ~umask


@pytest.fixture
def asv(tmp_path: Path) -> Path:
    """A results_dir of asv with two result files of one machine."""
    results = {STEP: row([2e-3, 1e-3]), "other.time_it": [[1.0], [], "x"]}
    for commit in "ab":
        write(tmp_path / "asv", results, commit_hash=commit * 40, env_vars={})
    return tmp_path / "asv"


def test_asv_results_become_runs_and_stderr_says_what_was_left_out(asv: Path, tmp_path: Path, ampbench: Run) -> None:
    said = ampbench("convert", asv, "--to", "native")
    assert (said.code, said.out) == (0, "")
    files = sorted((tmp_path / "results" / "runs").iterdir())
    assert len(files) == 2
    *remarks, counted = said.err.splitlines()
    assert counted == f"{asv}: 2 runs written into results/runs"
    assert remarks == [
        f"{asv}: left out 1 of another suite: other.time_it (in 2 files)",
        f"{asv}: no AMPBENCH_DEVICE and no Environment.track_device in the results: taken for cpu (in 2 files)",
    ]
    again = ampbench("convert", asv, asv / "bench", "--to", "native")
    assert again.code == 0
    assert f"{asv}: 0 runs written into results/runs, 2 already there, left as they are" in again.err
    assert sorted((tmp_path / "results" / "runs").iterdir()) == files


def test_an_imported_run_is_shown_listed_compared_gated_and_checked(
    asv: Path, tmp_path: Path, ampbench: Run, environment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ampbench.cli.doctor.probe", lambda meanwhile: environment)
    ampbench("convert", asv, "--to", "native")
    first, second = sorted(file.stem for file in (tmp_path / "results" / "runs").iterdir())
    shown = " ".join(ampbench("show", first).out.split())
    assert "2.00 ms" in shown
    assert "imported from asv: " in shown
    assert ampbench("show", first, "-v").code == 0
    rows = json.loads(ampbench("show", first, "--json").out)
    assert [(row["seconds_median"], row["rounds"], row["torch_version"]) for row in rows] == [
        (2e-3, None, "2.13.0"),
        (1e-3, None, "2.13.0"),
    ]
    listed = json.loads(ampbench("list", "runs", "--json").out)
    assert [(row["label"], row["outcome"]) for row in listed] == [("asv virtualenv", "2 ok")] * 2
    compared = ampbench("compare", first, second)
    assert compared.code == 0
    assert "2 incomparable" in compared.out
    assert "unchanged" not in compared.out
    assert ampbench("gate", first, second).code == 4
    doctor = ampbench("doctor", "--results", "results", "--json")
    assert (doctor.code, set(json.loads(doctor.out)["results"].values())) == (0, {None})

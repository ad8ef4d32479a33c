"""`ampbench convert`: which formats take what, where the text goes, what is said about losses."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ampbench.cli import convert
from ampbench.convert import FORMATS
from ampbench.records.measurements import Skip
from tests.stored_runs import COMPLETE, make_case, make_memory, make_round, write_run

Run = Callable[..., Any]

CASE, BF16 = make_case("fp32"), make_case("bf16_pure")


def write(results: Path, run: str, seconds: float, *cases: Any, **header: Any) -> Path:
    chosen = cases or (CASE,)
    rounds = [
        make_round(case, seconds=seconds * (1 + number / 1000), number=number) for case in chosen for number in range(4)
    ]
    memory = [make_memory(case, int(1e9 * seconds)) for case in chosen]
    return write_run(results, list(chosen), *rounds, *memory, COMPLETE, run=run, **header)


@pytest.mark.parametrize("name", [name for name, format in FORMATS.items() if format.of_run])
def test_a_format_of_one_run_is_printed_alone_on_stdout(name: str, results: Path, ampbench: Run) -> None:
    said = ampbench("convert", "latest", "--to", name, "--results", results)
    assert said.code == 0
    if name != "junit":
        assert json.loads(said.out)
    else:
        assert ElementTree.fromstring(said.out).tag == "testsuites"


def test_markdown_is_what_show_prints(results: Path, ampbench: Run) -> None:
    converted = ampbench("convert", "latest", "--to", "markdown", "--results", results)
    shown = ampbench("show", "latest", "--format", "markdown", "--results", results)
    assert converted.out == shown.out
    assert "| precision |" in converted.out


def test_cases_without_numbers_are_counted_on_stderr_where_the_format_has_no_place(
    results: Path, ampbench: Run
) -> None:
    said = ampbench("convert", "latest", "--to", "bencher", "--results", results)
    assert said.err == "bencher has no place for cases without numbers: left out 1 failed and 4 skipped\n"
    assert ampbench("convert", "latest", "--to", "junit", "--results", results).err == ""


def test_a_run_without_any_number_is_refused_by_formats_of_numbers_alone(tmp_path: Path, ampbench: Run) -> None:
    write_run(tmp_path / "results", [CASE], Skip(case_id=CASE.case_id, reason="no"), COMPLETE)
    said = ampbench("convert", "latest", "--to", "bencher")
    assert said.code == 5
    assert "no case was measured" in said.err
    assert ampbench("convert", "latest", "--to", "junit").code == 0


def test_a_keyword_selects_cases(results: Path, ampbench: Run) -> None:
    said = ampbench("convert", "latest", "--to", "bencher", "-k", "mlp and bf16_pure", "--results", results)
    assert list(json.loads(said.out)) == ["mlp[depth=3,width=512]/b32/bf16_pure/cpu/training/eager/in-bf16"]
    assert ampbench("convert", "latest", "--to", "junit", "-k", "lstm", "--results", results).code == 5


def test_the_help_names_every_format(ampbench: Run) -> None:
    said = " ".join(ampbench("convert", "--help").out.split())
    for name in (*FORMATS, "markdown"):
        assert name in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["latest", "--to", "junitt"], "unknown format 'junitt': did you mean junit?"),
        (["latest", "--to", "mrkdown"], "did you mean markdown?"),
        (["latest", "latest", "--to", "bencher"], "--to bencher takes one run, not 2"),
        (["latest", "--to", "otava"], "name the CSV, as in -o series.csv"),
        (["latest", "--to", "otava", "-o", "series.yaml"], "name the CSV"),
        (["latest", "--to", "bencher", "--baseline", "latest"], "cannot tell of a comparison"),
        (["nothing", "--to", "junit"], "unknown run 'nothing'"),
        (["latest"], "--to"),
    ],
)
def test_what_a_format_cannot_do_is_a_usage_error_in_one_line(
    arguments: list[str], message: str, results: Path, ampbench: Run
) -> None:
    said = ampbench("convert", *arguments, "--results", results)
    assert said.code == 2
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_o_writes_the_file_and_says_so_on_stderr(results: Path, tmp_path: Path, ampbench: Run) -> None:
    printed = ampbench("convert", "latest", "--to", "junit", "--results", results).out
    said = ampbench("convert", "latest", "--to", "junit", "--results", results, "-o", "run.xml")
    assert (said.code, said.out, said.err) == (0, "", "wrote run.xml\n")
    assert (tmp_path / "run.xml").read_text() == printed
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "run.xml").stat().st_mode) == 0o666 & ~umask


def test_o_replaces_what_a_link_points_to_and_keeps_the_link(results: Path, tmp_path: Path, ampbench: Run) -> None:
    (tmp_path / "real.xml").write_text("old")
    (tmp_path / "link.xml").symlink_to("real.xml")
    assert ampbench("convert", "latest", "--to", "junit", "--results", results, "-o", "link.xml").code == 0
    assert (tmp_path / "link.xml").is_symlink()
    assert (tmp_path / "real.xml").read_text().startswith("<?xml")


@pytest.mark.parametrize("target", ["missing/run.xml", ".", "/dev/full"])
def test_a_place_that_cannot_be_written_is_an_error_in_one_line(
    target: str, results: Path, tmp_path: Path, ampbench: Run
) -> None:
    before = sorted(tmp_path.iterdir())
    said = ampbench("convert", "latest", "--to", "junit", "--results", results, "-o", target)
    assert said.code == 2
    assert said.err.startswith(f"ampbench: error: cannot write {target}: ")
    assert said.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_full_disk_leaves_the_old_file_and_nothing_half_written(
    results: Path, tmp_path: Path, ampbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("series.csv", "series.yaml"):
        (tmp_path / name).write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(convert.os, "fsync", full)
    said = ampbench("convert", "latest", "--to", "otava", "--results", results, "-o", "series.csv")
    assert said.code == 2
    assert "cannot write series.csv: No space left on device" in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results", "series.csv", "series.yaml"]
    assert (tmp_path / "series.csv").read_text() == (tmp_path / "series.yaml").read_text() == "old"


def test_otava_gets_a_row_per_run_and_its_configuration_beside_the_csv(tmp_path: Path, ampbench: Run) -> None:
    for number in range(3):
        write(tmp_path / "results", f"run-{number}", 1e-3, started_at=f"2026-01-3{1 - number % 2}T12:00:0{number}Z")
    said = ampbench("convert", "run-0", "run-1", "run-2", "run-2", "--to", "otava", "-o", "series.csv")
    assert (said.code, said.err) == (0, "wrote series.csv and series.yaml\n")
    lines = (tmp_path / "series.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in lines] == ["run", "run-1", "run-0", "run-2"]
    assert 'file: "series.csv"' in (tmp_path / "series.yaml").read_text()


def test_otava_is_told_of_gaps_and_of_several_hosts(tmp_path: Path, ampbench: Run, environment: Any) -> None:
    write(tmp_path / "results", "run-0", 1e-3, CASE, BF16)
    write(tmp_path / "results", "run-1", 1e-3, CASE, environment=environment)
    write(tmp_path / "results", "run-2", 1e-3, CASE, environment=_on_other_host(environment))
    said = ampbench("convert", "run-0", "run-1", "run-2", "--to", "otava", "-o", "series.csv").err
    assert f"2 of the columns, such as {BF16.case_id} seconds_median" in said
    assert "runs of several hosts (bench, other): a step in time may be the machine's" in said


def test_a_cut_run_is_said_to_be_cut(results: Path, ampbench: Run) -> None:
    (path,) = (results / "runs").iterdir()
    with path.open("ab") as file:
        file.write(b'{"round":')
    said = ampbench("convert", "latest", "--to", "junit", "--results", results)
    assert said.code == 0
    assert "ends in a cut line, which was left out" in said.err


def test_junit_of_a_comparison_has_a_test_case_per_case_and_metric(tmp_path: Path, ampbench: Run) -> None:
    write(tmp_path / "results", "before", 1e-3, CASE, BF16)
    write(tmp_path / "results", "after", 2e-3, CASE)
    said = ampbench("convert", "after", "--baseline", "before", "--to", "junit")
    assert said.code == 0  # verdicts are for `ampbench gate`
    (suite,) = ElementTree.fromstring(said.out)
    assert suite.attrib["name"] == "after against before"
    outcomes = {
        test.attrib["name"]: next((child.tag for child in test if child.tag != "system-out"), "passed")
        for test in suite.findall("testcase")
    }
    assert outcomes[f"{CASE.case_id} peak_memory_bytes"] == "failure"
    assert outcomes[BF16.case_id] == "skipped"


def test_a_keyword_selects_what_is_compared(tmp_path: Path, ampbench: Run) -> None:
    write(tmp_path / "results", "before", 1e-3, CASE, BF16)
    write(tmp_path / "results", "after", 2e-3, CASE, BF16)
    said = ampbench("convert", "after", "--baseline", "before", "--to", "junit", "-k", "bf16")
    assert BF16.case_id in said.out
    assert CASE.case_id not in said.out
    assert ampbench("convert", "after", "--baseline", "before", "--to", "junit", "-k", "lstm").code == 5


def test_markdown_of_a_comparison_names_both_runs(tmp_path: Path, ampbench: Run) -> None:
    write(tmp_path / "results", "before", 1e-3)
    write(tmp_path / "results", "after", 2e-3)
    said = ampbench("convert", "after", "--baseline", "before", "--to", "markdown")
    assert said.code == 0
    assert "before" in said.out
    assert "after" in said.out


def _on_other_host(environment: Any) -> Any:
    from dataclasses import replace

    return replace(environment, host="other")

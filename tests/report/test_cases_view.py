"""The table of cases: every case that was measured or failed, with the numbers and words of the terminal."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup

from ampbench.core.units import format_bytes, format_count, format_seconds
from ampbench.records.case import Case
from ampbench.records.measured import Failure, Skip
from ampbench.report import page
from ampbench.report.material import Material
from ampbench.report.page import render
from ampbench.report.views import cases
from ampbench.store import StoredRun, read_run
from tests.compared_runs import BF16, FP32, Times, make_run, noisy
from tests.report.large_runs import write_large_run
from tests.report.materials import make_material, section_of
from tests.stored_runs import make_case, make_header


def table(material: Material) -> list[dict[str, str]]:
    """Return the rows of the table by their heads, as they stand on the page."""
    view = cases(material)
    assert view is not None
    parsed: BeautifulSoup = section_of(view)
    heads = [head.get_text() for head in parsed.select("thead th")]
    return [
        dict(zip(heads, (cell.get_text() for cell in row.select("td")), strict=True))
        for row in parsed.select("tbody tr")
    ]


def run_of(*timed: tuple[Case, Any], **changes: Any) -> StoredRun:
    return make_run(Times(*timed), **changes)


def without_numbers(run: StoredRun, failed: Sequence[Case] = (), skipped: Sequence[Case] = ()) -> StoredRun:
    """Return the run with more cases, of which nothing was measured."""
    failures = {
        case.case_id: Failure(case_id=case.case_id, stage="round", cause="exception", message="no <kernel>")
        for case in failed
    }
    skips = {case.case_id: Skip(case_id=case.case_id, reason="no such device") for case in skipped}
    known = run.cases | {case.case_id: case for case in [*failed, *skipped]}
    return replace(run, cases=known, failures=failures, skips=skips)


def nothing_measured() -> StoredRun:
    return replace(run_of((FP32, [])), cases={}, memory={}, divergence={})


def test_every_case_that_was_measured_is_a_row_with_the_columns_of_the_terminal(readme_run: Material):
    rows = table(readme_run)
    measured = [row for row in readme_run.rows if row["outcome"] == "ok"]
    assert list(rows[0]) == [
        *("case", "precision", "time/step", "speed", "memory", "error", "argmax", "gradient error", "verdict"),
    ]
    assert [row["precision"] for row in rows] == [row["precision"] for row in measured]
    assert [row["time/step"] for row in rows] == [format_seconds(row["seconds_median"]) for row in measured]
    assert {row["verdict"] for row in rows} >= {"baseline", "ok"}


def test_an_interval_stands_behind_its_number_and_an_undefined_number_is_empty():
    other = make_case("fp32", workload="other")
    run = run_of((FP32, noisy(1e-3)), (BF16, noisy(5e-4)), (other, noisy(1e-3)))
    run.memory.pop(other.case_id)
    fp32, bf16, last = table(make_material(run))
    assert re.fullmatch(r"\d\.\d\dx \(\d\.\d\d–\d\.\d\d\)", bf16["speed"])
    assert bf16["memory"].startswith("977 KiB (")
    assert fp32["speed"] == "1.00x"
    assert last["memory"] == ""


def test_a_case_that_failed_says_why_and_one_that_was_skipped_has_no_row():
    run = without_numbers(run_of((FP32, noisy(1e-3))), [BF16], [make_case("tf32")])
    assert [row["verdict"] for row in table(make_material(run))] == ["baseline", "failed: no <kernel>"]


def test_a_run_without_cases_or_of_skips_alone_has_no_such_view():
    assert cases(make_material(nothing_measured())) is None
    assert cases(make_material(without_numbers(nothing_measured(), skipped=[FP32]))) is None


def test_several_runs_are_told_apart_by_a_column():
    here = run_of((FP32, noisy(1e-3)), header=make_header(run="one", started_at="2026-01-01T00:00:00Z"))
    there = run_of((BF16, noisy(1e-3)), header=make_header(run="two", label="the new one"))
    assert [row["run"] for row in table(make_material(here, there))] == ["one", "the new one"]


def test_names_of_unknown_origin_stay_text():
    odd = make_case('"><script>x</script>|', workload="<b>bold</b>", device="' onload='x")
    view = cases(make_material(run_of((odd, noisy(1e-3)), (FP32, noisy(1e-3)))))
    assert view is not None
    parsed = section_of(view)
    assert odd.precision in [one.get_text() for one in parsed.select("main .precision")]
    assert not parsed.select("main script, main td b")


def test_the_script_that_sorts_knows_every_unit_that_cells_are_written_in():
    script = (Path(page.__file__).parent / "assets" / "tables.js").read_text()
    written = [format_seconds(10.0**power) for power in range(-9, 5)]
    written += [format_bytes(1024.0**power) for power in range(1, 6)]
    written += [format_count(10.0**power) for power in range(3, 14)]
    for unit in {text.split()[1] for text in written}:
        assert re.search(rf"\b{unit}: [\d(]", script), unit


def test_a_row_takes_few_bytes(tmp_path: Path):
    view = cases(make_material(read_run(write_large_run(tmp_path, 240))))
    assert view is not None
    body = render([view], "cases").partition("<tbody>")[2].partition("</table>")[0]
    assert len(body.encode()) / body.count("<tr") < 750

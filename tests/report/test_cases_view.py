import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup, Tag

from ampbench.core.metrics import METRICS
from ampbench.core.units import UNDEFINED, format_bytes, format_count, format_seconds
from ampbench.records.case import Case
from ampbench.records.measured import Failure, Recipe, Skip
from ampbench.report import page
from ampbench.report.cases import cases
from ampbench.report.material import Material
from ampbench.show.rows import precision_label
from ampbench.store import StoredRun, read_run
from tests.compared_runs import BF16, FP32, Times, make_run, noisy
from tests.report.large_runs import write_large_run
from tests.report.materials import make_material, section_of
from tests.stored_runs import make_case, make_header

FP16 = make_case("fp16_autocast")


def section(material: Material) -> BeautifulSoup:
    view = cases(material)
    assert view is not None
    return section_of(view, material)


def heads(parsed: BeautifulSoup) -> list[str]:
    return [head.get_text(" ", strip=True) for head in parsed.select("thead th")]


def row_of(parsed: BeautifulSoup, case: Case) -> Tag:
    (row,) = (row for row in parsed.select("tbody tr") if row.th and row.th["title"] == case.case_id)
    return row


def cell(parsed: BeautifulSoup, case: Case, head: str) -> Tag:
    return row_of(parsed, case).select("th, td")[heads(parsed).index(head)]


def said(row: Tag) -> list[str]:
    return [one.get_text(" ", strip=True) for one in row.select("td > b[class]")]


def run_of(*timed: tuple[Case, Any], **changes: Any) -> StoredRun:
    return make_run(Times(*timed), **changes)


def without_numbers(
    run: StoredRun, *, failed: Sequence[Case] = (), skipped: Sequence[Case] = (), why: str
) -> StoredRun:
    """Return the run with more cases, of which nothing was measured."""
    return replace(
        run,
        cases=run.cases | {case.case_id: case for case in [*failed, *skipped]},
        failures={
            case.case_id: Failure(case_id=case.case_id, stage="round", cause="exception", message=why)
            for case in failed
        },
        skips={case.case_id: Skip(case_id=case.case_id, reason=why) for case in skipped},
    )


def nothing_measured() -> StoredRun:
    return replace(run_of((FP32, [])), cases={}, memory={}, divergence={})


def compared(new: float, old: float = 1e-3, **changes: Any) -> tuple[Material, BeautifulSoup]:
    baseline = run_of((FP32, noisy(old)), header=make_header(run="base"))
    material = make_material(
        run_of((FP32, noisy(new, seed=1)), header=make_header(run="new"), **changes), baseline=baseline
    )
    return material, section(material)


def test_every_case_that_was_measured_is_a_row_with_its_numbers(readme_run: Material):
    parsed = section(readme_run)
    measured = [one for one in readme_run.cases if one.row["outcome"] == "ok"]
    assert len(parsed.select("tbody tr")) == len(measured) > 0
    for one in measured:
        row = row_of(parsed, one.case)
        assert row.th is not None
        assert row.th.get_text() == f"{one.bare} {precision_label(one.row)}"
        assert row.th.i is not None
        assert row.th.i.get_text() == precision_label(one.row)
        assert cell(parsed, one.case, "time/step").get_text().startswith(format_seconds(one.row["seconds_median"]))
        assert row["id"] == f"case-{one.number}"


def test_the_columns_are_those_of_the_terminal_and_further_metrics_that_any_case_has(readme_run: Material):
    shown = heads(section(readme_run))
    assert shown[:2] == ["case", "precision"]
    assert shown[2:] == [
        "verdict", "time/step", "speed", "memory", "error", "argmax", "gradient error"
    ]  # fmt: skip


def test_the_head_of_a_number_says_what_it_means(readme_run: Material):
    said = {head.get_text(): head.get("title", "") for head in section(readme_run).select("thead th")}
    assert said["time/step"] == METRICS["seconds_median"].summary


def test_what_stands_beside_a_number_is_below_it_so_that_numbers_align():
    parsed = section(make_material(run_of((FP32, noisy(1e-3)), (BF16, noisy(5e-4)))))
    speed, memory = (cell(parsed, BF16, head) for head in ("speed", "memory"))
    assert speed.small is not None
    assert re.fullmatch(r"\d\.\d\dx", speed.contents[0])
    assert re.fullmatch(r"\d\.\d\d–\d\.\d\d", speed.small.get_text())
    assert memory.small is not None
    assert memory.contents[0] == "977 KiB"
    assert cell(parsed, FP32, "speed").get_text() == "1.00x"


def test_what_is_undefined_is_a_dash():
    parsed = section(make_material(run_of((FP32, noisy(1e-3)), (BF16, noisy(5e-4)))))
    assert "argmax" not in heads(parsed)
    assert "grad" not in heads(parsed)
    mixed = make_case("fp32", workload="other")
    run = run_of((FP32, noisy(1e-3)), (mixed, noisy(1e-3)))
    run.memory.pop(mixed.case_id)
    assert cell(section(make_material(run)), mixed, "memory").get_text() == UNDEFINED


def test_the_precision_advised_is_marked_in_words():
    parsed = section(make_material(run_of((FP32, noisy(1e-3)), (BF16, noisy(5e-4)))))
    assert "advised" in row_of(parsed, BF16).get_text()
    assert "advised" not in row_of(parsed, FP32).get_text()


def test_of_two_cases_that_gradscaler_tells_apart_one_is_advised():
    training = {"phase": "training"}
    with_scaler, without = (make_case("fp16_autocast", scaler=scaler, **training) for scaler in (True, False))
    fp32 = make_case("fp32", **training)
    times = (fp32, noisy(1e-3)), (with_scaler, noisy(8e-4)), (without, noisy(5e-4))
    run = run_of(*times, grad_rel_l2=1e-3, grad_elements=10, recipe=Recipe(optimizer="torch.optim.SGD"))
    parsed = section(make_material(run))
    assert "advised" in row_of(parsed, without).get_text()
    assert "advised" not in row_of(parsed, with_scaler).get_text()


def test_a_case_that_failed_says_why_in_place_of_its_numbers():
    run = without_numbers(run_of((FP32, noisy(1e-3))), failed=[BF16], why="no <kernel>")
    parsed = section(make_material(run))
    reason = row_of(parsed, BF16).select("td")[-1]
    assert reason.get_text(strip=True) == "failed: no <kernel>"
    assert int(str(reason["colspan"])) == len(heads(parsed)) - 2
    assert row_of(parsed, BF16)["data-outcome"] == "failed"


def test_a_run_in_which_everything_failed_has_a_column_for_the_reasons():
    parsed = section(make_material(without_numbers(nothing_measured(), failed=[FP32, BF16], why="boom")))
    assert heads(parsed) == ["case", "precision", "outcome"]
    assert [row.select("td")[-1].get_text(strip=True) for row in parsed.select("tbody tr")] == ["failed: boom"] * 2


def test_what_was_skipped_has_no_row():
    others = [make_case("tf32", workload=name) for name in ("linear_chain", "other")]
    run = run_of((FP32, noisy(1e-3)), (make_case("fp32", workload="other"), noisy(1e-3)))
    parsed = section(make_material(without_numbers(run, skipped=others, why="cpu has no tf32")))
    assert len(parsed.select("tbody tr")) == 2
    assert "2 of 4 cases" in parsed.select("caption")[0].get_text()


def test_a_run_without_cases_or_of_skips_alone_has_no_such_view():
    assert cases(make_material(nothing_measured())) is None
    skips = without_numbers(nothing_measured(), skipped=[FP32], why="no such device")
    assert cases(make_material(skips)) is None


def test_the_precision_beside_a_case_is_not_in_its_name():
    odd = make_case("fp32", workload="net fp32x")
    parsed = section(
        make_material(run_of((odd, noisy(1e-3)), (make_case("bf16_autocast", workload="net fp32x"), [1e-3])))
    )
    rows = parsed.select("tbody th")
    assert [row.get_text() for row in rows] == ["net fp32x fp32", "net fp32x bf16_autocast"]
    assert [row.i and row.i.get_text() for row in rows] == ["fp32", "bf16_autocast"]


def test_cases_are_found_by_each_verdict_but_by_unchanged_only_where_all_is():
    baseline = run_of((FP32, noisy(1e-3)), (BF16, noisy(1e-3)), header=make_header(run="base"))
    new = run_of((FP32, noisy(1e-3)), (BF16, noisy(2e-3)), header=make_header(run="new"))
    parsed = section(make_material(new, baseline=baseline))
    assert row_of(parsed, FP32)["data-change"] == "unchanged"
    assert row_of(parsed, BF16)["data-change"] == "regressed"


def test_a_case_that_the_baseline_does_not_have_says_so():
    baseline = run_of((FP32, noisy(1e-3)), header=make_header(run="base"))
    new = run_of((FP32, noisy(1e-3)), (BF16, noisy(1e-3)), header=make_header(run="new"))
    row = row_of(section(make_material(new, baseline=baseline)), BF16)
    assert "not in the baseline" in row.get_text()
    assert "data-change" not in row.attrs


def test_the_reason_of_a_case_that_fails_now_stands_there_once():
    baseline = run_of((FP32, noisy(1e-3)), (BF16, noisy(1e-3)), header=make_header(run="base"))
    new = without_numbers(run_of((FP32, noisy(1e-3)), header=make_header(run="new")), failed=[BF16], why="no space")
    row = row_of(section(make_material(new, baseline=baseline)), BF16)
    assert said(row) == ["regressed"]
    assert row.get_text().count("no space") == 1


def test_a_case_that_was_ok_and_is_skipped_stays_a_row():
    gone = [BF16, make_case("bf16_autocast", workload="other")]
    kept = [FP32, make_case("fp32", workload="other")]
    baseline = run_of(*((case, noisy(1e-3)) for case in [*kept, *gone]), header=make_header(run="base"))
    new = without_numbers(
        run_of(*((case, noisy(1e-3)) for case in kept), header=make_header(run="new")),
        skipped=gone,
        why="no bf16 here",
    )
    parsed = section(make_material(new, baseline=baseline))
    for case in gone:
        assert said(row_of(parsed, case)) == ["incomparable"]


def test_several_runs_are_told_apart_by_a_column():
    here = run_of((FP32, noisy(1e-3)), header=make_header(run="one", started_at="2026-01-01T00:00:00Z"))
    there = run_of((BF16, noisy(1e-3)), header=make_header(run="two", label="the new one"))
    parsed = section(make_material(here, there))
    assert heads(parsed)[1] == "run"
    assert cell(parsed, FP32, "run").get_text(strip=True) == "one"
    assert cell(parsed, BF16, "run").get_text(strip=True) == "the new one"


def test_names_of_unknown_origin_stay_text():
    odd = make_case('"><script>x</script>|', workload="<b>bold</b>", device="' onload='x")
    parsed = section(make_material(run_of((odd, noisy(1e-3)), (FP32, noisy(1e-3)))))
    assert row_of(parsed, odd)["data-precision"] == odd.precision
    assert row_of(parsed, odd)["data-device"] == odd.device
    assert not parsed.select("main script, main th b")


def test_the_script_that_sorts_knows_every_unit_that_cells_are_written_in():
    script = (Path(page.__file__).parent / "assets" / "tables.js").read_text()
    written = [format_seconds(10.0**power) for power in range(-9, 5)]
    written += [format_bytes(1024.0**power) for power in range(1, 6)]
    written += [format_count(10.0**power) for power in range(3, 14)]
    for unit in {text.split()[1] for text in written}:
        assert re.search(rf"\b{unit}: [\d(]", script), unit


def bytes_of_a_row(material: Material) -> float:
    view = cases(material)
    assert view is not None
    body = page.section(view, {"sections": set()}).partition("<tbody>")[2].partition("</table>")[0]
    return len(body.encode()) / body.count("<tr ")


def test_a_row_takes_few_bytes(history: Material):
    assert bytes_of_a_row(history) < 450


def test_a_row_takes_few_bytes_beside_a_baseline_where_nothing_is_equal(tmp_path: Path):
    old, new = (read_run(write_large_run(tmp_path, 240, run=f"run{seed}", seed=seed)) for seed in range(2))
    assert bytes_of_a_row(make_material(new, baseline=old)) < 550


def test_what_became_of_a_case_stands_next_to_its_name_and_is_not_called_what_advice_is():
    assert heads(compared(1.3e-3)[1])[:4] == ["case", "against the baseline", "precision", "verdict"]

from dataclasses import replace
from functools import partial
from typing import Any

from bs4 import BeautifulSoup
from msgspec import structs

from ampbench.records.case import Case
from ampbench.records.measured import Failure
from ampbench.report.explanation import explanation
from ampbench.report.material import Material
from ampbench.show.page import LISTED
from ampbench.store import StoredRun
from tests.compared_runs import Times, make_run, rounds_of
from tests.report.materials import make_material, rendered_by
from tests.stored_runs import make_case, make_divergence, make_header

FP32 = make_case("fp32", phase="training")
FP16 = make_case("fp16_autocast", phase="training")
BF16 = make_case("bf16_pure", phase="training")
INFERENCE = make_case("fp32")


def a_run(*cases: Case, run: str = "new", **divergence: dict[str, Any]) -> StoredRun:
    """Return a run of training cases; `divergence` has the fields of each precision's, by its name."""
    header = make_header(run=run)
    whole = make_run(Times(*((case, [1e-3] * 4) for case in cases)), header=header)
    found = {case.case_id: make_divergence(case, **divergence.get(case.precision, {})) for case in cases}
    return replace(whole, divergence=found)


def trained(error: float | None, **changes: Any) -> dict[str, Any]:
    return {
        "loss": 2.5,
        "reference_loss": 2.25,
        "grad_rel_l2": error,
        "grad_worst_parameter": "fc.weight",
        "grad_worst_rel_l2": error,
        "grad_flushed": 0,
        "grad_elements": 1000,
        "grad_nonfinite": 0,
    } | changes


rendered = partial(rendered_by, explanation)


def headings(page: BeautifulSoup) -> list[str]:
    return [one.get_text() for one in page.select("#explanation > h3")]


def rows_of(page: BeautifulSoup) -> list[list[str]]:
    return [
        [cell.get_text().strip() for cell in row.find_all(["th", "td"])] for row in page.select("#explanation tbody tr")
    ]


def test_a_run_that_tells_nothing_has_no_section():
    assert explanation(make_material(make_run(Times((INFERENCE, [1e-3]))))) is None
    assert explanation(make_material()) is None
    assert explanation(make_material(replace(a_run(FP32), cases={}, rounds=[], divergence={}, memory={}))) is None


def test_the_worst_gradient_comes_first_with_its_parameter_what_was_flushed_and_the_loss():
    run = a_run(FP32, BF16, fp32=trained(1e-7), bf16_pure=trained(2e-2, grad_flushed=250))
    page = rendered(make_material(run))
    assert headings(page) == ["Where gradients go wrong"]
    first, second = rows_of(page)
    assert first == ["linear_chain", "bf16_pure", "2.0e-02", "fc.weight", "25.0%", "1.1e-01"]
    assert second[1:3] == ["fp32", "1.0e-07"]


def test_gradients_that_are_not_finite_are_worse_than_any_error():
    broken = trained(None, grad_nonfinite=3, grad_worst_rel_l2=None)
    page = rendered(make_material(a_run(FP32, BF16, fp32=trained(5.0), bf16_pure=broken)))
    assert rows_of(page)[0][1:5] == ["bf16_pure", "–", "inf", "fc.weight"]


def test_a_divergence_that_holds_no_gradients_is_no_row():
    assert explanation(make_material(a_run(BF16, bf16_pure={"loss": None, "grad_elements": 0}))) is None


def test_rows_are_limited_and_said_to_be():
    cases = [make_case("bf16_pure", phase="training", parameters={"width": width}) for width in range(250)]
    material = make_material(a_run(*cases, bf16_pure=trained(1e-2)))
    page = rendered(material)
    assert len(rows_of(page)) == LISTED
    assert "200 of 250" in page.get_text()


def test_the_settled_scale_is_told():
    page = rendered(make_material(a_run(FP16, fp16_autocast=trained(1e-3, scaler_scale=65536.0))))
    assert rows_of(page)[-1][-1] == "65536"


def test_failures_of_one_kind_stand_together_with_their_frames():
    run = make_run(Times((INFERENCE, [1e-3])))
    cases = [FP32, FP16, BF16, make_case("bf16_autocast", phase="training")]
    failures = {
        case.case_id: Failure(
            case_id=case.case_id,
            stage="divergence",
            cause="exception",
            message="RuntimeError: <b>no</b>",
            frames=["File net.py, line 3\n", "File loss.py, line 7\n"],
        )
        for case in cases
    }
    failed = replace(run, cases=run.cases | {case.case_id: case for case in cases}, failures=failures)
    page = rendered(make_material(failed))
    assert headings(page) == ["Failures"]
    assert "4 cases failed." in page.get_text()
    (item,) = page.select("#explanation details")
    assert item.summary.get_text().startswith("4 cases: linear_chain fp32 training, ")
    assert item.summary.get_text().endswith(" and 1 more: exception (in the divergence pass)")
    assert item.pre.get_text() == "RuntimeError: <b>no</b>\nFile net.py, line 3\nFile loss.py, line 7"


def test_weights_that_differ_are_a_failure_without_a_record():
    rounds = [*rounds_of(INFERENCE, [1e-3]), *rounds_of(INFERENCE, [1e-3], weights_digest="other")]
    page = rendered(make_material(replace(make_run(Times((INFERENCE, [1e-3]))), rounds=rounds)))
    assert "weights differ between rounds (in the round)" in page.get_text()


def test_notes_of_the_divergence_pass_are_grouped():
    dropout = "dropout layers were switched off for the divergence pass"
    cases = [make_case(name) for name in ("fp32", "bf16_autocast")]
    notes = {"fp32": {"notes": [dropout, "the rest"]}, "bf16_autocast": {"notes": [dropout]}}
    page = rendered(make_material(a_run(*cases, **notes)))
    assert rows_of(page) == [
        [dropout, "2 cases: linear_chain fp32, linear_chain bf16_autocast"],
        ["the rest", "linear_chain fp32"],
    ]


def test_cases_of_several_runs_are_told_apart_by_their_runs():
    other = a_run(FP32, run="other", fp32=trained(1e-2))
    header = structs.replace(other.header, environment=structs.replace(other.header.environment, host="elsewhere"))
    page = rendered(make_material(a_run(FP32, fp32=trained(1e-7)), replace(other, header=header)))
    assert [row[0] for row in rows_of(page)] == ["linear_chain · other", "linear_chain · new"]


def test_a_precision_of_a_foreign_run_is_listed():
    strange = make_case("fp8_magic", phase="training")
    page = rendered(make_material(a_run(FP32, strange, fp32=trained(1e-7), fp8_magic=trained(1e-1))))
    assert rows_of(page)[0][1] == "fp8_magic"


def test_the_readme_run_flushes_gradients_in_pure_half(readme_run: Material):
    page = rendered(readme_run)
    (row,) = [row for row in rows_of(page) if row[:2] == ["cross_entropy_head training", "fp16_pure"]]
    assert "99.6%" in row
    assert len(rows_of(page)) == 25

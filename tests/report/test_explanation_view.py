from dataclasses import replace
from functools import partial
from typing import Any

from bs4 import BeautifulSoup
from msgspec import structs

from ampbench.records.case import Case
from ampbench.records.measured import Failure
from ampbench.report.material import Material
from ampbench.report.views.explanation import explanation
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


def test_the_worst_gradient_comes_first_with_its_parameter_what_was_flushed_and_the_losses():
    run = a_run(FP32, BF16, fp32=trained(1e-7), bf16_pure=trained(2e-2, grad_flushed=250))
    page = rendered(make_material(run))
    assert headings(page) == ["Where gradients go wrong"]
    first, second = rows_of(page)
    assert first == [
        "linear_chain",
        "bf16_pure",
        "2.0e-02",
        "fc.weight",
        "2.0e-02",
        "25.0% (250 of 1,000)",
        "0",
        "2.500",
        "2.250",
    ]
    assert second[1:3] == ["fp32", "1.0e-07"]
    assert "The largest gradient error is 2.0e-02: linear_chain bf16_pure, most of all in fc.weight." in page.get_text()
    assert "The largest share of gradient elements flushed to zero is 25.0% (250 of 1,000)" in page.get_text()


def test_gradients_that_are_not_finite_are_worse_than_any_error():
    broken = trained(None, grad_nonfinite=3, grad_worst_rel_l2=None)
    page = rendered(make_material(a_run(FP32, BF16, fp32=trained(5.0), bf16_pure=broken)))
    assert rows_of(page)[0][1:7] == ["bf16_pure", "–", "fc.weight", "–", "0%", "3"]
    assert "Gradients are not finite in 1 case, such as linear_chain bf16_pure." in page.get_text()


def test_a_divergence_that_holds_next_to_nothing_is_a_row_of_dashes():
    page = rendered(make_material(a_run(BF16, bf16_pure={"loss": None, "grad_elements": 0})))
    assert rows_of(page) == [["linear_chain", "bf16_pure", "–", "–", "–", "–", "–", "–", "–"]]


def test_rows_are_limited_and_said_to_be():
    cases = [make_case("bf16_pure", phase="training", parameters={"width": width}) for width in range(250)]
    material = make_material(a_run(*cases, bf16_pure=trained(1e-2)))
    page = rendered(material)
    assert len(rows_of(page)) == LISTED
    assert "50 more are not listed" in page.get_text()


def test_the_settled_scale_and_skipped_steps_are_told():
    run = a_run(FP16, fp16_autocast=trained(1e-3, scaler_scale=65536.0, skipped_steps=0))
    rounds = rounds_of(FP16, [1e-3] * 3, scaler_scale=65536.0, skipped_steps=2)
    page = rendered(make_material(replace(run, rounds=rounds)))
    assert headings(page) == ["Where gradients go wrong", "Scales that GradScaler settled at"]
    assert rows_of(page)[-1] == ["linear_chain fp16_autocast", "65536", "65536", "0", "6", "3"]
    assert "GradScaler skipped steps after its scale had settled in 1 case of 1" in page.get_text()


def test_a_scale_that_moves_between_rounds_is_told():
    run = a_run(FP16, fp16_autocast=trained(1e-3, scaler_scale=65536.0, skipped_steps=0))
    moved = [
        structs.replace(one, scaler_scale=scale, skipped_steps=0)
        for one, scale in zip(rounds_of(FP16, [1e-3] * 3), (65536.0, 32768.0, 65536.0), strict=True)
    ]
    page = rendered(make_material(replace(run, rounds=moved)))
    assert rows_of(page)[-1][2] == "32768 to 65536"
    assert "GradScaler skipped no step" in page.get_text()


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
    (item,) = page.select("ul.failures > li")
    assert item.p.get_text().startswith("4 cases: linear_chain fp32 training, ")
    assert item.p.get_text().endswith(" and 1 more")
    assert item.summary.get_text() == "exception (in the divergence pass): RuntimeError: <b>no</b>"
    assert "File net.py, line 3\nFile loss.py, line 7" in item.pre.get_text()


def test_weights_that_differ_are_a_failure_without_a_record():
    rounds = [*rounds_of(INFERENCE, [1e-3]), *rounds_of(INFERENCE, [1e-3], weights_digest="other")]
    page = rendered(make_material(replace(make_run(Times((INFERENCE, [1e-3]))), rounds=rounds)))
    assert "weights differ between rounds (in the round)" in page.get_text()


def test_notes_of_the_divergence_pass_are_grouped():
    dropout = "dropout layers were switched off for the divergence pass"
    cases = [make_case(name) for name in ("fp32", "bf16_autocast")]
    notes = {"fp32": {"notes": [dropout, "the rest"]}, "bf16_autocast": {"notes": [dropout]}}
    page = rendered(make_material(a_run(*cases, **notes)))
    said = [(note.get_text(), note.find_next("dd").get_text()) for note in page.select("#explanation dt")]
    assert said == [
        (dropout, "2 cases: linear_chain fp32, linear_chain bf16_autocast"),
        ("the rest", "linear_chain fp32"),
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
    assert "99.6% (4,078,062 of 4,096,000): cross_entropy_head fp16_pure training" in page.get_text()
    assert len(rows_of(page)) == 30  # 25 of gradients, 5 of loss scaling

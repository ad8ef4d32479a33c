from dataclasses import replace
from functools import partial
from typing import Any

from bs4 import BeautifulSoup

from ampbench.records.case import Case
from ampbench.records.measured import Failure
from ampbench.report.explanation import explanation
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


rendered = partial(rendered_by, explanation)


def headings(page: BeautifulSoup) -> list[str]:
    return [one.get_text() for one in page.select("#explanation > h3")]


def test_a_run_that_tells_nothing_has_no_section():
    assert explanation(make_material(make_run(Times((INFERENCE, [1e-3]))))) is None
    assert explanation(make_material()) is None
    assert explanation(make_material(replace(a_run(FP32), cases={}, rounds=[], divergence={}, memory={}))) is None


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

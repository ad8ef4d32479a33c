"""The claims of the documented example: each held, not held, inconclusive or not measured, with what was measured."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student_t

from ampbench.instruments.claims.findings import (
    HELD,
    INCONCLUSIVE,
    NOT_HELD,
    NOT_MEASURED,
    Claim,
    claims_blocks,
    claims_said,
    documented_claims,
)
from ampbench.judge.frame import plain_rows, run_frame
from ampbench.records.case import Case, DeviceDescription
from ampbench.records.measured import Failure, Skip
from ampbench.store import StoredRun, read_run
from tests.stored_runs import COMPLETE, make_case, make_divergence, make_round, write_run

SECONDS = {"fp32": 4e-3, "bf16_autocast": 1e-3, "fp16_autocast": 16e-3}
WAYS = [("inference", "eager"), ("inference", "traced"), ("training", "eager")]


def conv(precision: str, phase: str = "inference", path: str = "eager", **changes: Any) -> Case:
    given = {"workload": "simple_conv", "family": "conv", "parameters": {"image": 8}, "phase": phase, "path": path}
    return make_case(precision, **{**given, **changes})


def claims_of(
    folder: Path, cases: list[Case], *instead: Any, rounds: int = 4, autocast_dtype: str = "bf16"
) -> list[Claim]:
    """Return the claims of a run of `cases` that all ran, but for those `instead` says something of."""
    other = {one.case_id for one in instead}
    measured = [case for case in cases if case.case_id not in other]
    entries = [
        make_round(case, SECONDS[case.precision] * (1 + number / 100), number)
        for case in measured
        for number in range(rounds)
    ]
    passes = [make_divergence(case, output_rel_l2=1e-3) for case in measured]
    path = write_run(folder, cases, *entries, *passes, *instead, COMPLETE)
    stored = read_run(path)
    stored.header.environment.devices.append(
        DeviceDescription(type="cpu", available=True, autocast_dtype=autocast_dtype)
    )
    return documented_claims(stored, rows_of(stored))


def rows_of(stored: StoredRun) -> list[dict[str, Any]]:
    return plain_rows(run_frame(stored))


def told(claims: list[Claim]) -> dict[str, str]:
    return {claim.what: claim.verdict for claim in claims}


@pytest.fixture
def all_cases() -> list[Case]:
    return [conv(precision, *way) for way in WAYS for precision in SECONDS]


def test_each_claim_of_the_document_is_judged(all_cases: list[Case], tmp_path: Path) -> None:
    found = claims_of(tmp_path, all_cases)
    assert told(found) == {
        "imperative inference in bf16": HELD,
        "speedup in imperative inference in bf16": HELD,
        "imperative inference in fp16": HELD,
        "speedup in imperative inference in fp16": NOT_HELD,
        "traced and frozen inference in bf16": HELD,
        "speedup in traced and frozen inference in bf16": HELD,
        "traced and frozen inference in fp16": HELD,
        "speedup in traced and frozen inference in fp16": NOT_HELD,
        "training in bf16": HELD,
        "speedup in training in bf16": HELD,
        "training in bf16 only, not in fp16": NOT_HELD,
        "bf16 is autocast's default dtype": HELD,
    }
    by_claim = {claim.what: claim for claim in found}
    assert by_claim["speedup in imperative inference in bf16"].measured == "4.00x the speed of fp32"
    assert by_claim["speedup in imperative inference in fp16"].measured == "0.250x the speed of fp32"
    assert by_claim["imperative inference in bf16"].measured == "1.02 ms a step, output error 1.0e-03"


def test_what_was_not_selected_or_skipped_is_not_measured(tmp_path: Path) -> None:
    cases = [conv("bf16_autocast"), conv("bf16_autocast", path="traced")]
    skip = Skip(case_id=cases[1].case_id, reason="no time")
    found = claims_of(tmp_path, cases, skip, autocast_dtype="fp16")
    verdicts = told(found)
    assert verdicts["imperative inference in bf16"] == HELD
    assert verdicts["speedup in imperative inference in bf16"] == NOT_MEASURED
    assert verdicts["traced and frozen inference in bf16"] == NOT_MEASURED
    assert verdicts["training in bf16 only, not in fp16"] == NOT_MEASURED
    assert verdicts["bf16 is autocast's default dtype"] == NOT_HELD
    assert (
        next(one for one in found if one.what == "traced and frozen inference in bf16").measured == "skipped: no time"
    )


def test_fp16_training_that_fails_is_what_the_document_says(all_cases: list[Case], tmp_path: Path) -> None:
    failing = [conv("fp16_autocast", "training"), conv("bf16_autocast", path="traced")]
    failures = [Failure(case_id=case.case_id, stage="round", cause="exception", message="no") for case in failing]
    verdicts = told(claims_of(tmp_path, all_cases, *failures))
    assert verdicts["training in bf16 only, not in fp16"] == HELD
    assert verdicts["traced and frozen inference in bf16"] == NOT_HELD
    assert verdicts["speedup in traced and frozen inference in bf16"] == NOT_MEASURED


@pytest.mark.parametrize("cause", ["time-out", "out of memory", "memory limit", "killed", "unknown"])
def test_what_found_no_time_or_room_or_was_ended_says_nothing(cause: str, tmp_path: Path) -> None:
    cases = [conv(precision, *way) for way in WAYS for precision in SECONDS]
    failing = [conv("fp16_autocast", "training"), conv("bf16_autocast", path="traced")]
    failures = [Failure(case_id=case.case_id, stage="round", cause=cause, message="no") for case in failing]
    found = {one.what: one for one in claims_of(tmp_path, cases, *failures)}
    assert found["training in bf16 only, not in fp16"].verdict == NOT_MEASURED
    assert found["training in bf16 only, not in fp16"].measured == f"failed: {cause}: no"
    assert found["traced and frozen inference in bf16"].verdict == NOT_MEASURED


def test_outputs_that_are_not_finite_are_no_inference(tmp_path: Path) -> None:
    case = conv("fp16_autocast")
    path = write_run(
        tmp_path, [case], make_round(case), make_divergence(case, output_nonfinite=3, output_rel_l2=None), COMPLETE
    )
    stored = read_run(path)
    (found,) = [one for one in documented_claims(stored, rows_of(stored)) if one.what == "imperative inference in fp16"]
    assert (found.verdict, found.measured) == (NOT_HELD, "1.00 ms a step, but 3 outputs not finite")


def test_a_speedup_that_its_interval_leaves_open_or_without_any_is_none(all_cases: list[Case], tmp_path: Path) -> None:
    what = "speedup in imperative inference in bf16"
    two = next(one for one in claims_of(tmp_path / "two", all_cases, rounds=2) if one.what == what)
    assert two.verdict == INCONCLUSIVE
    assert two.measured == "4.00x the speed of fp32, but fewer than 3 rounds have no interval"
    case, luck = conv("bf16_autocast"), (0.9, 1.1, 0.95, 1.04)
    rounds = [make_round(case, 4e-3 * (1 + at / 100) * factor, at) for at, factor in enumerate(luck)]
    near = next(one for one in claims_of(tmp_path / "near", all_cases, *rounds) if one.what == what)
    assert near.verdict == NOT_HELD
    logs = -np.log(luck)
    half = student_t.ppf(0.975, 3) * logs.std(ddof=1) / 2  # over the root of four rounds
    low, high = np.exp(logs.mean() - half), np.exp(logs.mean() + half)
    assert low < 1 < high
    assert near.measured.endswith(f"x the speed of fp32 (95%: {low:.3g}x to {high:.2f}x)")


def test_a_speedup_in_every_round_holds_though_the_times_of_both_drift_over_each_other(
    all_cases: list[Case], tmp_path: Path
) -> None:
    case = conv("bf16_autocast")
    rounds = [make_round(case, 3.96e-3 * (1 + at / 100), at) for at in range(4)]
    slowest, fastest_of_fp32 = rounds[-1].seconds, SECONDS["fp32"]
    assert slowest is not None
    assert slowest > fastest_of_fp32
    found = claims_of(tmp_path, all_cases, *rounds)
    assert told(found)["speedup in imperative inference in bf16"] == HELD


@pytest.mark.parametrize(
    "cases",
    [
        [conv("fp32")],
        [make_case("bf16_autocast")],
        [conv("bf16_autocast", family="user")],
        [conv("bf16_pure")],
    ],
)
def test_other_workloads_and_runs_without_autocast_claim_nothing(cases: list[Case], tmp_path: Path) -> None:
    path = write_run(tmp_path, cases, *(make_round(case) for case in cases), COMPLETE)
    stored = read_run(path)
    assert documented_claims(stored, rows_of(stored)) == []


def test_a_sentence_counts_the_claims_and_names_those_that_do_not_hold(all_cases: list[Case], tmp_path: Path) -> None:
    found = claims_of(tmp_path, all_cases)
    (said,) = claims_said(found)
    assert "simple_conv[image=8]/b8 on cpu: 9 of 12 claims held; not held: training in bf16 only, not in fp16" in said
    assert "speedup in imperative inference in fp16 (0.250x the speed of fp32)" in said
    assert "not measured" not in said
    (block,) = claims_blocks(found)
    assert len(block.rows) == 12
    assert block.note == "simple_conv[image=8]/b8 on cpu; the document speaks of XPU"
    assert claims_said([]) == claims_blocks([]) == []


def test_a_speedup_without_an_interval_is_said_to_be_inconclusive_and_not_unmeasured(
    all_cases: list[Case], tmp_path: Path
) -> None:
    cases = [case for case in all_cases if case.path != "traced"]
    (said,) = claims_said(claims_of(tmp_path, cases, rounds=1))
    assert (
        "; inconclusive: speedup in imperative inference in bf16, speedup in imperative inference in fp16, speedup in "
        "training in bf16 (fewer than 3 rounds have no interval, --rounds 3 or more); not measured: traced and "
        "frozen inference in bf16"
    ) in said


def test_each_size_is_judged_for_itself(tmp_path: Path) -> None:
    cases = [conv("bf16_autocast", parameters={"image": image}) for image in (8, 16)]
    assert len(claims_said(claims_of(tmp_path, cases))) == 2

"""Stored trainings on stdout: for people, as CSV and as JSON."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ampbench.records.kinds import TRAINING
from ampbench.records.measured import Failure, Skip
from ampbench.studies.training import Training, TrainingAsked
from tests.cli.conftest import Outcome
from tests.stored_runs import COMPLETE, make_divergence, make_round, write_run
from tests.studies.planted_trainings import STEPS, WHOLE, case_of, study

SKIPPED, FAILED = case_of("tf32"), case_of("fp32", workload="characters")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A stored study of digits, with a precision that was skipped and a workload that failed."""
    stored = study(WHOLE)
    trainings = [one for rows in stored.several_of(Training).values() for one in rows]
    skip = Skip(case_id=SKIPPED.case_id, reason="this CPU has no tf32")
    failure = Failure(case_id=FAILED.case_id, stage="training", cause="exception", message="MemoryError: no memory")
    cases = [*stored.cases.values(), SKIPPED, FAILED]
    asked = TrainingAsked(steps=STEPS, seeds=3)
    return write_run(tmp_path / "results", cases, *trainings, skip, failure, COMPLETE, explains=TRAINING, asked=asked)


def test_a_run_in_the_same_folder_takes_the_word_of_a_study(path: Path, ampbench: Callable[..., Outcome]):
    cases = [case_of(name) for name in ("fp32", "bf16_autocast", "bf16_pure")]
    entries = [
        entry
        for case, seconds in zip(cases, (3e-3, 2e-3, 1e-3), strict=True)
        for entry in (
            *(make_round(case, seconds, number, weights_digest="weights0") for number in range(3)),
            make_divergence(case, weights_digest="weights0", output_rel_l2=1e-3, grad_rel_l2=1e-2),
        )
    ]
    run = write_run(path.parents[1], cases, *entries, COMPLETE, run="20260131T130000Z-bench-2b9a3c")
    shown = " ".join(ampbench("show", run).out.split())
    assert "→ Take bf16_autocast: 1.50x the speed of fp32; " in shown
    assert "Evidence: study 1f9a3c, 300 steps from 3 seeds" in shown
    assert "bf16_pure is 3.00x as fast, but refused (training)" in shown

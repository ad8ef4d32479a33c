"""What stored trainings say of the cases of a run that measured."""

import dataclasses

import pytest

from ampbench.instruments.convergence.learning import Trained, trained_cases
from ampbench.store import StoredRun
from tests.instruments.convergence.planted_trainings import GOOD, WHOLE, case_of, moved, study
from tests.stored_runs import make_divergence, make_header

NULL = {name: WHOLE[name] for name in ("fp32", "control", "fp64")}
BF16 = case_of("bf16_pure")


def measured(weights: str = "weights0", **header: object) -> StoredRun:
    """Return a run that measured the case that is trained, from weights of this digest."""
    stored = StoredRun(path=BF16.case_id, header=make_header(**header))  # type: ignore[arg-type]
    stored.cases[BF16.case_id] = BF16
    stored.divergence[BF16.case_id] = make_divergence(BF16, weights_digest=weights)
    return stored


def dated(stored: StoredRun, started_at: str, run: str) -> StoredRun:
    header = dataclasses.replace(stored.header, started_at=started_at, run=run)
    return dataclasses.replace(stored, header=header)


def test_a_case_that_trains_as_fp32_does_is_known_by_its_study():
    assert trained_cases(measured(), [study(NULL | {"bf16_pure": GOOD})]) == {
        BF16.case_id: Trained(trains=True, study="study 1f9a3c, 300 steps from 3 seeds")
    }


def test_of_one_that_does_not_the_reason_is_told():
    (found,) = trained_cases(measured(), [study(NULL | {"bf16_pure": moved([-20, -21, -19])})]).values()
    assert not found.trains
    assert found.reason.startswith("its accuracy is 2.50 points lower than in fp32")
    stored = study(NULL | {"bf16_pure": GOOD})
    for one in stored.convergence[BF16.case_id]:
        one.losses[:] = [2 * loss for loss in one.losses]
    (found,) = trained_cases(measured(), [stored]).values()
    assert found.reason.startswith("its training loss ends 2 times fp32's")


@pytest.mark.parametrize("finals", [{"bf16_pure": moved([3, -3, -8])}, {"bf16_pure": GOOD[:1]}])
def test_what_a_study_leaves_open_says_nothing(finals: dict[str, list[float | None]]):
    assert trained_cases(measured(), [study(NULL | finals)]) == {}


def test_other_weights_another_machine_and_another_torch_say_nothing():
    stored = study(NULL | {"bf16_pure": GOOD})
    assert trained_cases(measured("other"), [stored]) == {}
    for name in ("host", "torch_version"):
        environment = dataclasses.replace(stored.header.environment, **{name: "other"})
        assert trained_cases(measured(environment=environment), [stored]) == {}


def test_of_two_studies_the_newer_counts():
    older = dated(study(NULL | {"bf16_pure": GOOD}), "2026-01-01T00:00:00Z", "20260101T000000Z-bench-aaaaaa")
    newer = dated(study(NULL | {"bf16_pure": [None] * 3}), "2026-01-02T00:00:00Z", "20260102T000000Z-bench-bbbbbb")
    (found,) = trained_cases(measured(), [newer, older]).values()
    assert (found.trains, found.study) == (False, "study bbbbbb, 300 steps from 3 seeds")
    assert found.reason == "loss not finite from step 15 in 3 of 3 seeds"

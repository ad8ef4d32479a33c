"""Training cases from several seeds: what is planned and asked in which order, and how a study goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ampbench.core.precisions import LOW
from ampbench.errors import UsageError
from ampbench.records.measured import Failure
from ampbench.records.run import Settings
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import read_run
from ampbench.studies.training import SETTINGS, STUDY, Training, TrainingAsked, scaler_arguments, settings_of
from ampbench.studies.work import lacking
from tests.scripted_channel import CPU, Scripted, asked_in, machine
from tests.studies.working import resumed, studied

ASKED = TrainingAsked(steps=5, seeds=2)
ALL = 2 * (len(LOW) + 3)
"""The trainings of a workload: for each seed those of fp64, fp32, its control and each low precision."""


def training(request: Request, **changes: str) -> Reply:
    assert request.case is not None
    digests = {"weights_digest": f"w{request.seed}", "inputs_digest": f"i{request.seed}"} | changes
    found = Training(
        case_id=request.case.case_id,
        seed=request.seed,
        arm=asked_in(request).arm,
        steps=asked_in(request).steps,
        **digests,
    )
    return reply_with(found)


def asked_for(channel: Scripted) -> list[tuple[str, int, str]]:
    return [(request.case.precision, request.seed, asked_in(request).arm) for request in channel.asked if request.case]


def interrupted_after(count: int) -> Callable[[Request], Reply]:
    """Return what answers `count` requests and is then interrupted."""
    left = [None] * count

    def answer(request: Request) -> Reply:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return training(request)

    return answer


def test_each_seed_trains_fp32_its_control_and_fp64_before_all_other_precisions(tmp_path: Path) -> None:
    channel = Scripted(training, machine(CPU))
    run = studied(STUDY, tmp_path, channel, ASKED, Settings(seed=7))
    one = [("fp32", ""), ("fp32", "control"), ("fp32", "reference"), *((low, "") for low in LOW)]
    assert asked_for(channel) == [(precision, seed, arm) for seed in (7, 8) for precision, arm in one]
    assert {asked_in(request).steps for request in channel.asked} == {5}
    assert run.ended == "complete"
    assert {len(found) for found in run.several_of(Training).values()} == {2, 6}


def test_an_interrupted_study_goes_on_with_what_it_lacks(tmp_path: Path) -> None:
    run = studied(STUDY, tmp_path, Scripted(interrupted_after(5), machine(CPU)), ASKED)
    assert run.ended == "interrupted"
    channel = Scripted(training, machine(CPU))
    again = resumed(STUDY, run, channel)
    one = [("fp32", ""), ("fp32", "control"), ("fp32", "reference"), *((low, "") for low in LOW)]
    left = [(name, seed, arm) for seed in (0, 1) for name, arm in one][5:]
    assert [(run.cases[start.case_id].precision, start.seed, start.arm) for start in lacking(STUDY, run)] == left
    assert asked_for(channel) == left
    assert lacking(STUDY, again) == []
    assert sum(map(len, again.several_of(Training).values())) == ALL


def test_a_study_whose_weights_are_others_now_is_not_gone_on_with(tmp_path: Path) -> None:
    run = studied(STUDY, tmp_path, Scripted(interrupted_after(5), machine(CPU)), ASKED)
    channel = Scripted(lambda request: training(request, weights_digest="other"), machine(CPU))
    with pytest.raises(UsageError, match="the weights of mlp differ between trainings from seed 0"):
        resumed(STUDY, run, channel)
    assert sum(map(len, read_run(run.path).several_of(Training).values())) == 5


def test_a_precision_whose_fp32_training_failed_fails_for_that_and_fp32_is_tried_but_once(tmp_path: Path) -> None:
    def answer(request: Request) -> Reply:
        assert request.case is not None
        if request.case.precision == "fp32" and not asked_in(request).arm:
            failure = Failure(case_id=request.case.case_id, stage="training", cause="exception", message="no fp32")
            return Reply(failure=failure)
        return training(request)

    channel = Scripted(answer, machine(CPU))
    run = studied(STUDY, tmp_path, channel, ASKED)
    assert asked_for(channel) == [("fp32", 0, "")]
    assert [failure.message for failure in run.failures.values()] == [
        "no fp32", *["its baseline fp32 failed: no fp32"] * len(LOW)
    ]  # fmt: skip


def test_a_setting_of_a_users_own_has_gradscalers_defaults_beside_what_is_given() -> None:
    assert scaler_arguments("init_scale=1024 growth_interval=100") == {"init_scale": 1024.0, "growth_interval": 100}
    assert settings_of(["default", "no scaling", "default"]) == ["default", "no scaling"]
    assert settings_of(["init_scale=2", "all"]) == ["init_scale=2", *SETTINGS]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("defualt", "unknown setting 'defualt': did you mean default"),
        ("init_scal=3", "--setting init_scal=3: Object contains unknown field"),
        ("init_scale=0", "--setting init_scale=0: Expected `float` > 0"),
        ("init_scale=inf", "--setting init_scale=inf: Expected `float` < 3.4"),
        ("init_scale=nan", "--setting init_scale=nan: Expected `float`"),
        ("growth_factor=1", "--setting growth_factor=1: Expected `float` > 1"),
        ("backoff_factor=1.5", "--setting backoff_factor=1.5: Expected `float` < 1"),
        ("growth_interval=many", "--setting growth_interval=many: Expected `int"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(typed: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        settings_of([typed])

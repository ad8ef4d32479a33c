"""Studies of loss scaling: which cases and settings are planned, asked for and stored, and what is refused."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs, to_builtins

from ampbench.drive.planning import NO_LOSS
from ampbench.drive.session import require_work
from ampbench.errors import NothingToRunError, UsageError
from ampbench.records.case import DeviceDescription
from ampbench.records.kinds import SCALER
from ampbench.records.measured import Failure
from ampbench.records.run import ScalerSetting, Selection, Settings
from ampbench.records.wire import Description, Reply, Request, reply_with
from ampbench.store import RunWriter, StoredRun, read_run
from ampbench.studies import work as working
from ampbench.studies.scaler import SETTINGS, STUDY, ScalerAsked, ScalerRun, chosen_settings, pieces, unfinished
from ampbench.studies.study import Session
from tests.instruments.working import work
from tests.scripted_channel import CPU, NO_GPU, Scripted, asked_in, machine
from tests.stored_runs import make_header

Instead = Callable[[Request], Reply | None]
NAMES = ["fp32", "no scaling", "default", "low start", "high start", "fast growth"]
NO_FP64 = DeviceDescription(type="xpu", available=True, autocast_dtype="fp16", float64=False)


def training(instead: Instead = lambda _: None, *devices: DeviceDescription, has_loss: bool = True) -> Scripted:
    """Return a channel that trains in no time, or answers as `instead` does."""

    def answer(request: Request) -> Reply:
        if request.task == "describe":
            found = Description(parameters={}, has_loss=has_loss, items_per_step=1, version=0, channels_last=False)
            return reply_with(found)
        assert request.case is not None
        found_run = ScalerRun(
            case_id=request.case.case_id,
            setting=asked_in(request).setting or ScalerSetting(name="fp32", enabled=False),
            precision=request.case.precision if asked_in(request).setting else "fp32",
            steps=asked_in(request).steps,
            weights_digest="aa",
        )
        return instead(request) or reply_with(found_run)

    return Scripted(answer, machine(*(devices or (CPU, NO_GPU))))


def asking(*names: str, steps: int = 5, scaler: bool = True) -> ScalerAsked:
    return ScalerAsked(steps=steps, settings=chosen_settings(names, None, scaler=scaler))


def studied(
    results: Path,
    channel: Scripted,
    asked: ScalerAsked | None = None,
    begun: StoredRun | None = None,
    **selected: object,
) -> StoredRun:
    """Return the run that a study of what is selected leaves."""
    asked = asked or asking()
    selection = Selection(**({"workloads": ["mlp"], "preset": "tiny"} | selected))  # type: ignore[arg-type]
    with working.prepared(STUDY, selection, Settings(), asked, begun, open_channel=lambda: channel) as prepared:
        cases = [planned.case for planned in prepared.plan]
        if begun is not None:
            writer, begun = RunWriter.reopen(begun.path)
        else:
            environment = channel.environment
            header = make_header(explains=SCALER, asked=asked, selection=selection, environment=environment)
            writer = RunWriter.create(results, header, cases)
        with writer:
            work(STUDY, prepared, asked, writer, lambda *_: None, begun)
    return read_run(writer.path)


def trained(run: StoredRun) -> list[str]:
    (runs,) = run.several_of(ScalerRun).values()
    return [one.setting.name for one in runs]


def test_fp16_autocast_is_trained_in_fp32_first_and_then_with_every_setting(tmp_path: Path) -> None:
    channel = training()
    run = studied(tmp_path, channel)
    (case,) = run.cases.values()
    assert (case.precision, case.phase, case.path) == ("fp16_autocast", "training", "eager")
    assert [asked_in(request).setting for request in channel.asked] == [None, *SETTINGS]
    assert {(request.task, asked_in(request).steps) for request in channel.asked} == {("scaler", 5)}
    assert trained(run) == NAMES
    assert unfinished(run) == []


def test_settings_are_chosen_by_name_in_their_order_and_a_users_own_comes_last() -> None:
    own = ScalerSetting(name="yours", init_scale=8)
    assert [one.name for one in chosen_settings(["default", "no scaling"], own, scaler=True)] == [
        "no scaling", "default", "yours",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="unknown setting 'defualt': did you mean default"):
        chosen_settings(["defualt"], None, scaler=True)


def test_without_a_scaler_only_fp32_and_no_scaling_are_trained(tmp_path: Path) -> None:
    run = studied(tmp_path, training(), asking(scaler=False), scaler=False)
    assert trained(run) == ["fp32", "no scaling"]
    for names, own in ((["default"], None), ([], ScalerSetting(name="yours"))):
        with pytest.raises(UsageError, match="--no-scaler leaves no setting"):
            chosen_settings(names, own, scaler=False)


def test_a_device_without_fp64_is_skipped_with_what_can_be_done_and_trained_without_a_scaler(tmp_path: Path) -> None:
    device = structs.replace(NO_FP64)
    selection = Selection(workloads=["mlp"], preset="tiny", devices=["xpu"])
    channel = training(lambda _: None, CPU, device)
    with working.prepared(STUDY, selection, Settings(), asking(), open_channel=lambda: channel) as prepared:
        assert ["--no-scaler measures without it" in planned.skip for planned in prepared.plan] == [True]
        with pytest.raises(NothingToRunError, match="GradScaler needs fp64, which xpu does not have"):
            require_work(prepared)
    run = studied(tmp_path, channel, asking(scaler=False), scaler=False, devices=["xpu"])
    assert trained(run) == ["fp32", "no scaling"]


@pytest.mark.parametrize(
    ("precision", "why"),
    [
        ("bf16_autocast", "bf16_autocast needs no loss scaling: it has fp32's range"),
        ("bf16_pure", "bf16_pure needs no loss scaling: it has fp32's range"),
        ("fp32", "fp32 needs no loss scaling: nothing in it is fp16"),
        ("tf32", "tf32 needs no loss scaling: nothing in it is fp16"),
        ("half", r"fp16_pure can have none: .*\(Attempting to unscale FP16 gradients\)"),
    ],
)
def test_precisions_that_no_scaler_is_for_are_refused_with_the_reason(precision: str, why: str) -> None:
    with pytest.raises(UsageError, match=why), working.prepared(STUDY,
        Selection(workloads=["mlp"], precisions=[precision]), Settings(), asking()
    ):  # fmt: skip
        pass


def test_a_study_of_no_workload_is_refused() -> None:
    why = "study the loss scaling of which workload"
    with pytest.raises(UsageError, match=why), working.prepared(STUDY, Selection(), Settings(), asking()):
        pass


def test_a_workload_without_a_loss_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    selection = Selection(workloads=[f"{tmp_path}/model.py:make"])
    channel = training(has_loss=False)
    with working.prepared(STUDY, selection, Settings(), asking(), open_channel=lambda: channel) as prepared:
        assert [planned.skip for planned in prepared.plan] == [NO_LOSS]
        assert pieces(Session(prepared=prepared, asked=asking())) == []


def test_a_case_that_fails_is_not_asked_for_other_settings(tmp_path: Path) -> None:
    def fail(request: Request) -> Reply | None:
        assert request.case is not None
        failure = Failure(case_id=request.case.case_id, stage="scaler", cause="exception", message="no")
        return Reply(failure=failure) if asked_in(request).setting == SETTINGS[1] else None

    channel = training(fail)
    run = studied(tmp_path, channel)
    assert (trained(run), len(run.failures), len(channel.asked)) == (["fp32", "no scaling"], 1, 3)
    assert unfinished(run) == []


def test_a_run_that_was_interrupted_goes_on_with_the_settings_it_lacks(tmp_path: Path) -> None:
    def interrupt(request: Request) -> Reply | None:
        if asked_in(request).setting == SETTINGS[2]:
            raise KeyboardInterrupt
        return None

    begun = studied(tmp_path, training(interrupt))
    assert (trained(begun), begun.ended) == (NAMES[:3], "interrupted")
    assert [name for _, name in unfinished(begun)] == NAMES[3:]
    assert begun.asked == asking()
    channel = training()
    run = studied(tmp_path, channel, begun.asked, begun)
    assert [asked_in(request).setting for request in channel.asked] == list(SETTINGS[2:])
    assert (trained(run), run.ended, unfinished(run)) == (NAMES, "complete", [])


def test_other_weights_than_a_run_began_with_are_refused(tmp_path: Path) -> None:
    begun = studied(tmp_path, training(), asking("no scaling"))
    more = dataclasses.replace(begun, header=structs.replace(begun.header, asked=to_builtins(asking())))

    def changed(request: Request) -> Reply:
        assert request.case is not None
        assert asked_in(request).setting is not None
        found = ScalerRun(
            case_id=request.case.case_id, setting=asked_in(request).setting, precision="fp16_autocast", steps=5,
            weights_digest="bb",
        )  # fmt: skip
        return reply_with(found)

    with pytest.raises(UsageError, match="the weights of mlp are others than it began with"):
        studied(tmp_path, training(changed), asking(), more)

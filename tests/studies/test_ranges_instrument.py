"""Watching ranges and finding origins: which cases are planned, what workers are asked for, what is stored."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ampbench.core.precisions import LOW, PRECISIONS, SCALED
from ampbench.drive.planning import NOT_TRAINED
from ampbench.records.case import DeviceDescription
from ampbench.records.ranges import OriginPass, RangePass
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.studies import headroom, origin
from ampbench.studies.headroom import RangesAsked
from tests.scripted_channel import CPU, NO_GPU, Scripted, asked_in, described, machine
from tests.studies.working import studied

Instead = Callable[[Request], Reply | None]


def seeing(instead: Instead = lambda _: None, *devices: DeviceDescription, has_loss: bool = True) -> Scripted:
    """Return a channel that sees nothing in every case, or answers as `instead` does."""

    def answer(request: Request) -> Reply:
        if request.task == "describe":
            return described(has_loss=has_loss)
        assert request.case is not None
        case_id, asked = request.case.case_id, asked_in(request)
        if request.task == "origin":
            return instead(request) or reply_with(OriginPass(case_id=case_id))
        notes = ["dropout is off", *asked.notes]
        return instead(request) or reply_with(RangePass(case_id=case_id, steps=asked.steps or 1, notes=notes))

    return Scripted(answer, machine(*(devices or (CPU, NO_GPU))))


def test_unless_told_otherwise_training_is_watched_in_fp32_and_every_low_precision_tried(tmp_path: Path) -> None:
    channel = seeing()
    run = studied(headroom.STUDY, tmp_path, channel, RangesAsked(steps=3))
    assert [(case.precision, case.phase, case.path) for case in run.cases.values()] == [("fp32", "training", "eager")]
    (request,) = channel.asked
    assert (request.task, asked_in(request).steps, asked_in(request).precisions) == ("ranges", 3, LOW)
    (seen,) = run.of(RangePass).values()
    assert (seen.steps, seen.notes) == (3, ["dropout is off"])


@pytest.mark.parametrize("has_loss", [True, False])
def test_a_workload_without_a_loss_or_an_optimizer_is_watched_in_inference_and_the_pass_says_so(
    has_loss: bool, tmp_path: Path
) -> None:
    (tmp_path / "model.py").touch()
    run = studied(
        headroom.STUDY, tmp_path, seeing(has_loss=has_loss), RangesAsked(), workloads=[f"{tmp_path}/model.py:make"]
    )
    assert [case.phase for case in run.cases.values()] == ["inference"]
    (seen,) = run.of(RangePass).values()
    assert any(NOT_TRAINED in note for note in seen.notes)
    assert not run.skips


def test_a_precision_that_the_device_cannot_run_is_a_note(tmp_path: Path) -> None:
    gpu = DeviceDescription(type="xpu", available=True, arithmetic={"bf16": "unavailable"}, float64=False)
    channel = seeing(lambda _: None, CPU, gpu)
    run = studied(headroom.STUDY, tmp_path, channel, RangesAsked(), devices=["xpu"])
    lacking = {name: "xpu does not support bf16" for name in LOW if PRECISIONS[name].rounding == "bfloat16"}
    lacking |= dict.fromkeys(SCALED, "GradScaler needs fp64, which xpu does not have")
    assert asked_in(channel.asked[0]).precisions == [name for name in LOW if name not in lacking]
    (seen,) = run.of(RangePass).values()
    assert seen.notes == ["dropout is off", *(f"{name}: skipped: {lacking[name]}" for name in LOW if name in lacking)]


def test_origins_are_found_in_the_devices_own_autocast_dtype_and_in_training(tmp_path: Path) -> None:
    channel = seeing()
    run = studied(origin.STUDY, tmp_path, channel, origin.OriginAsked())
    assert [(case.precision, case.phase) for case in run.cases.values()] == [("bf16_autocast", "training")]
    assert [request.task for request in channel.asked] == ["origin"]
    assert list(run.of(OriginPass)) == list(run.cases)

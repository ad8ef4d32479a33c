"""The study of input storage: what it plans and concludes, and the tables of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ampbench.drive.session import require_work
from ampbench.errors import NothingToRunError
from ampbench.records.measured import Fitness
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.studies import work
from ampbench.studies.input_storage import (
    FREE,
    LOSSY,
    STUDY,
    UNUSED,
    InputUse,
    Storage,
    StorageAsked,
    StoragePass,
    conclusions,
    situation,
)
from ampbench.studies.study import Timing
from tests.scripted_channel import CPU, NO_GPU, Scripted, asked_in, described, machine
from tests.stored_runs import make_case
from tests.studies.storage_passes import FREE_USE, LOSSY_USE, lossy_pass, storage_pass, stored_inputs
from tests.studies.working import studied

Instead = Callable[[Request], Reply | None]

ASKED = StorageAsked(seconds=1.5)


def answering(instead: Instead = lambda _: None, *, has_loss: bool = True) -> Scripted:
    def answer(request: Request) -> Reply:
        if request.task == "describe":
            return described(has_loss=has_loss)
        assert request.case is not None
        return instead(request) or reply_with(storage_pass(request.case))

    return Scripted(answer, machine(CPU, NO_GPU))


def test_unless_told_otherwise_both_phases_are_measured_in_the_devices_own_autocast_dtype(tmp_path: Path) -> None:
    channel = answering()
    run = studied(STUDY, tmp_path, channel, ASKED)
    assert [(case.precision, case.phase) for case in run.cases.values()] == [
        ("bf16_autocast", "inference"),
        ("bf16_autocast", "training"),
    ]
    assert {(request.task, asked_in(request).seconds, request.fresh) for request in channel.asked} == {
        ("input-storage", 1.5, True)
    }
    assert list(run.of(StoragePass)) == list(run.cases)


def test_a_workload_without_a_loss_is_measured_in_inference_alone(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    run = studied(STUDY, tmp_path, answering(has_loss=False), ASKED, workloads=[f"{tmp_path}/model.py:make"])
    assert [case.phase for case in run.cases.values()] == ["inference"]
    run = studied(STUDY, tmp_path / "timm", answering(has_loss=False), ASKED, workloads=["timm:net"])
    assert [case.phase for case in run.cases.values()] == ["inference"]
    with pytest.raises(NothingToRunError, match="no loss given"), work.prepared(STUDY,
        Selection(workloads=[f"{tmp_path}/model.py:make"], phases=["training"]), Settings(), ASKED,
        open_channel=lambda: answering(has_loss=False),
    ) as prepared:  # fmt: skip
        require_work(prepared)


CASE = make_case(precision="bf16_autocast")
TRAINING = make_case(precision="bf16_autocast", phase="training")


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (FREE_USE, FREE),
        (LOSSY_USE, LOSSY),
        (InputUse(name="x", operation="aten.mm", read_in_fp32="aten.add"), LOSSY),
        (InputUse(name="x"), UNUSED),
    ],
)
def test_an_input_is_in_one_of_three_situations(use: InputUse, expected: str) -> None:
    assert situation(use) == expected


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, Storage.LOST),
        ({"identical": True, "exact": True}, Storage.SAME),
        ({"identical": True}, Storage.SAME),
        ({"repeatable": False}, Storage.UNREPEATABLE),
        ({"exact": True}, Storage.EXACT),
    ],
)
def test_the_measured_bits_decide_and_not_what_an_op_is_given(changes: dict[str, object], code: Storage) -> None:
    first = next(iter(conclusions(TRAINING, lossy_pass(TRAINING, **changes))))
    assert first.code is code
    if code is Storage.LOST:
        assert (first.severity, first.facts["output_rel_l2"], first.facts["grad_rel_l2_fp32"]) == (
            "problem",
            2e-3,
            2e-3,
        )


def test_a_step_that_does_not_run_with_half_is_all_there_is_to_conclude() -> None:
    low = stored_inputs(
        "bf16", casts=None, cast_bytes=None, samples=[], peak_bytes=None, output_rel_l2=None, error="E: x"
    )
    (only,) = conclusions(CASE, storage_pass(CASE, low=low, identical=None, uses=[]))
    assert (only.code, only.facts) == (Storage.RAISES, {"dtype": "bf16", "error": "E: x"})


def test_a_saving_has_its_interval_unless_the_machine_was_busy_or_builds_differ() -> None:
    def timing(**changes: object) -> list[Timing]:
        found = conclusions(CASE, storage_pass(CASE, **changes))
        return [each.code for each in found if isinstance(each.code, Timing)]

    assert timing() == [Timing.FASTER]
    assert timing(fitness=Fitness(other_share=0.5)) == timing(fitness=Fitness(steal_share=0.2)) == [Timing.BUSY]
    assert timing(low=stored_inputs("bf16", samples=[[1e-3 * 4**build] for build in range(8)])) == [Timing.NOISY]
    few = [stored_inputs(dtype, samples=[[1e-3]]) for dtype in ("fp32", "bf16")]
    assert timing(full=few[0], low=few[1]) == [Timing.SAME]
    assert timing(full=stored_inputs("bf16"), low=stored_inputs("fp32")) == [Timing.SLOWER]

"""Studying input storage: which cases are planned, what workers are asked for, what is stored, how it goes on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from ampbench.core.precisions import AUTOCAST
from ampbench.core.units import one_of
from ampbench.drive.pieces import unfinished
from ampbench.drive.session import require_work
from ampbench.errors import NothingToRunError, UsageError
from ampbench.instruments import instrument
from ampbench.instruments.input_storage.instrument import INSTRUMENT
from ampbench.instruments.input_storage.records import StorageAsked, StoragePass
from ampbench.records.kinds import INPUT_STORAGE
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import RunWriter, StoredRun, read_run
from tests.instruments.input_storage.storage_passes import storage_pass
from tests.instruments.working import work
from tests.scripted_channel import CPU, NO_GPU, Scripted, asked_in, described, machine
from tests.stored_runs import make_header

Instead = Callable[[Request], Reply | None]

ASKED = StorageAsked(seconds=1.5)


def answering(instead: Instead = lambda _: None, *, has_loss: bool = True) -> Scripted:
    def answer(request: Request) -> Reply:
        if request.task == "describe":
            return described(has_loss=has_loss)
        assert request.case is not None
        return instead(request) or reply_with(storage_pass(request.case))

    return Scripted(answer, machine(CPU, NO_GPU))


def studied(results: Path, channel: Scripted, begun: StoredRun | None = None, **selected: object) -> StoredRun:
    selection = Selection(**({"workloads": ["mlp"], "preset": "tiny"} | selected))  # type: ignore[arg-type]
    with instrument.prepared(INSTRUMENT, selection, Settings(), ASKED, begun, open_channel=lambda: channel) as prepared:
        cases = [planned.case for planned in prepared.plan]
        header = make_header(explains=INPUT_STORAGE, asked=ASKED, environment=prepared.environment, selection=selection)
        if begun is None:
            writer = RunWriter.create(results, header, cases)
        else:
            writer, _ = RunWriter.reopen(begun.path)
        with writer:
            work(INSTRUMENT, prepared, ASKED, writer, lambda *_: None)
    return read_run(writer.path)


def test_unless_told_otherwise_both_phases_are_measured_in_the_devices_own_autocast_dtype(tmp_path: Path) -> None:
    channel = answering()
    run = studied(tmp_path, channel)
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
    run = studied(tmp_path, answering(has_loss=False), workloads=[f"{tmp_path}/model.py:make"])
    assert [case.phase for case in run.cases.values()] == ["inference"]
    run = studied(tmp_path / "timm", answering(has_loss=False), workloads=["timm:net"])
    assert [case.phase for case in run.cases.values()] == ["inference"]
    with pytest.raises(NothingToRunError, match="no loss given"), instrument.prepared(INSTRUMENT,
        Selection(workloads=[f"{tmp_path}/model.py:make"], phases=["training"]), Settings(), ASKED,
        open_channel=lambda: answering(has_loss=False),
    ) as prepared:  # fmt: skip
        require_work(prepared)


@pytest.mark.parametrize(
    ("selected", "message"),
    [
        ({"workloads": []}, "as in `ampbench study input-storage mlp`"),
        ({"precisions": ["fp32"]}, f"and fp32 has none: give {one_of(AUTOCAST)}"),
        ({"precisions": ["bf16_autocast", "fp16_pure"]}, "and fp16_pure has none"),
        ({"paths": ["compiled"]}, "a compiled network does not run"),
    ],
)
def test_what_cannot_be_studied_is_refused(selected: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        studied(tmp_path, answering(), **selected)


def test_failures_and_skips_are_stored_and_nothing_else_suffers(tmp_path: Path) -> None:
    def instead(request: Request) -> Reply | None:
        case = request.case
        assert case is not None
        if case.phase == "training":
            return Reply(
                failure=Failure(case_id=case.case_id, stage="input-storage", cause="out of memory", message="no")
            )
        return Reply(skip=Skip(case_id=case.case_id, reason="no floating input")) if case.workload == "mlp" else None

    run = studied(tmp_path, answering(instead), workloads=["mlp", "simple_conv"])
    assert [run.cases[case_id].workload for case_id in run.of(StoragePass)] == ["simple_conv"]
    assert (len(run.failures), len(run.skips)) == (2, 1)
    assert unfinished(run) == []


def test_a_resumed_study_measures_only_what_is_missing(tmp_path: Path) -> None:
    def interrupts(request: Request) -> Reply | None:
        if request.case is not None and request.case.phase == "training":
            raise KeyboardInterrupt
        return None

    begun = studied(tmp_path, answering(interrupts))
    assert begun.ending == "interrupted"
    assert [begun.cases[case_id].phase for case_id in unfinished(begun)] == ["training"]
    channel = answering()
    run = studied(tmp_path, channel, begun)
    assert [request.case.phase for request in channel.asked if request.case is not None] == ["training"]
    assert (run.ending, unfinished(run), len(run.of(StoragePass))) == ("complete", [], 2)


def test_a_run_begun_elsewhere_is_not_gone_on_with(tmp_path: Path) -> None:
    begun = studied(tmp_path, answering())
    elsewhere = structs.replace(begun.header.environment, host="elsewhere", devices=[])
    begun = replace(begun, header=structs.replace(begun.header, environment=elsewhere))
    with pytest.raises(UsageError, match="elsewhere"):
        studied(tmp_path, answering(), begun)

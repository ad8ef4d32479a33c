"""Studying scopes of autocast: which cases are planned, what workers are asked for, what a resumed run lacks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ampbench.core.precisions import AUTOCAST
from ampbench.core.units import one_of
from ampbench.drive.planning import NO_LOSS
from ampbench.drive.session import require_work
from ampbench.errors import NothingToRunError, UsageError
from ampbench.instruments import instrument
from ampbench.instruments.scope.instrument import INSTRUMENT
from ampbench.instruments.scope.records import ScopeAsked, ScopePass
from ampbench.records.case import DeviceDescription
from ampbench.records.kinds import SCOPE
from ampbench.records.measured import Failure
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Description, Reply, Request, reply_with
from ampbench.store import RunWriter, StoredRun, read_run
from ampbench.studies.study import unfinished
from tests.instruments.working import work
from tests.scripted_channel import CPU, NO_GPU, Scripted, asked_in, machine
from tests.stored_runs import make_case, make_header, write_run

ASKED = ScopeAsked(steps=3, seconds=0.5)


def seeing(
    instead: Callable[[Request], Reply | None] = lambda _: None, *devices: DeviceDescription, has_loss: bool = True
) -> Scripted:
    def answer(request: Request) -> Reply:
        if request.task == "describe":
            found = Description(parameters={}, has_loss=has_loss, items_per_step=1, version=0, channels_last=False)
            return reply_with(found)
        assert request.case is not None
        return instead(request) or reply_with(ScopePass(case_id=request.case.case_id, steps=asked_in(request).steps))

    return Scripted(answer, machine(*(devices or (CPU, NO_GPU))))


def selected(**fields: object) -> Selection:
    return Selection(**({"workloads": ["mlp"], "preset": "tiny"} | fields))  # type: ignore[arg-type]


def studied(results: Path, channel: Scripted, **fields: object) -> StoredRun:
    with instrument.prepared(
        INSTRUMENT, selected(**fields), Settings(), ASKED, open_channel=lambda: channel
    ) as prepared:
        require_work(prepared)
        cases = [planned.case for planned in prepared.plan]
        with RunWriter.create(
            results, make_header(explains=SCOPE, asked=ASKED, environment=channel.environment), cases
        ) as writer:
            work(INSTRUMENT, prepared, ASKED, writer, lambda *_: None)
    return read_run(writer.path)


def test_the_devices_own_autocast_is_trained_for_the_steps_and_seconds_asked(tmp_path: Path) -> None:
    channel = seeing()
    stored = studied(tmp_path, channel)
    (case,) = stored.cases.values()
    assert (case.precision, case.phase, case.path) == ("bf16_autocast", "training", "eager")
    assert [(one.task, asked_in(one)) for one in channel.asked] == [("scope", ScopeAsked(steps=3, seconds=0.5))]
    assert list(stored.of(ScopePass)) == [case.case_id]
    assert (stored.ended, unfinished(stored)) == ("complete", [])


def test_every_precision_with_autocast_can_be_named(tmp_path: Path) -> None:
    stored = studied(tmp_path, seeing(), precisions=["16-mixed", "bf16_autocast"], workloads=["mlp", "gru"])
    assert len(stored.of(ScopePass)) == 4


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16_pure", "half"])
def test_a_precision_without_autocast_is_refused(precision: str, tmp_path: Path) -> None:
    message = f"enters no autocast, so that it has no scope: give {one_of(AUTOCAST)}"
    with pytest.raises(UsageError, match=message):
        studied(tmp_path, seeing(), precisions=[precision])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workloads": []}, r"as in `ampbench study scope mlp`"),
        ({"paths": ["compiled"]}, "the eager path, which a compiled network does not run"),
    ],
)
def test_what_has_no_scope_is_refused(fields: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        studied(tmp_path, seeing(), **fields)


def test_a_workload_without_a_loss_is_nothing_to_study(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("")
    with pytest.raises(NothingToRunError, match="no loss given") as raised:
        studied(tmp_path, seeing(has_loss=False), workloads=[f"{tmp_path}/net.py:make"], preset="")
    assert NO_LOSS.partition(":")[0] in str(raised.value)


def test_a_case_that_fails_is_stored_as_such(tmp_path: Path) -> None:
    def fail(request: Request) -> Reply:
        assert request.case is not None
        failure = Failure(case_id=request.case.case_id, stage="scope", cause="out of memory", message="full")
        return Reply(failure=failure)

    stored = studied(tmp_path, seeing(fail))
    assert [one.cause for one in stored.failures.values()] == ["out of memory"]
    assert unfinished(stored) == []


def test_an_interrupted_study_goes_on_with_what_it_lacks(tmp_path: Path) -> None:
    def stop(request: Request) -> Reply | None:
        if request.case is not None and request.case.workload == "gru":
            raise KeyboardInterrupt
        return None

    fields: dict[str, object] = {"workloads": ["mlp", "gru"]}
    begun = studied(tmp_path, seeing(stop), **fields)
    assert begun.ended == "interrupted"
    (left,) = unfinished(begun)
    assert left.startswith("gru")
    channel = seeing()
    with instrument.prepared(
        INSTRUMENT, selected(**fields), Settings(), ASKED, begun, open_channel=lambda: channel
    ) as prepared:
        assert [planned.case.case_id for planned in prepared.plan] == [left]


def test_a_study_of_other_cases_is_not_gone_on_with(tmp_path: Path) -> None:
    path = write_run(tmp_path, [make_case("bf16_autocast", phase="training")], explains=SCOPE)
    resumed = read_run(path)
    with (
        pytest.raises(UsageError),
        instrument.prepared(INSTRUMENT, selected(), Settings(), ASKED, resumed, open_channel=seeing),
    ):
        pass

"""Studying batches: which cases are searched, what becomes of what workers say, how an interrupted one goes on."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ampbench.drive.session import require_work
from ampbench.errors import NothingToRunError, UsageError
from ampbench.instruments import instrument
from ampbench.instruments.batch.instrument import INSTRUMENT
from ampbench.instruments.batch.records import FAILED, FITS, TOO_LARGE, BatchAsked, BatchPoint
from ampbench.instruments.batch.search import reached
from ampbench.records.case import DeviceDescription
from ampbench.records.kinds import BATCH
from ampbench.records.measured import KILLED, OUT_OF_MEMORY, Failure
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Description, Reply, Request, reply_with
from ampbench.store import RunWriter, StoredRun, read_run
from tests.instruments.working import work
from tests.scripted_channel import CPU, NO_GPU, Scripted, asked_in, machine
from tests.stored_runs import make_header

MIB = 2**20
ASKED = BatchAsked(max_batch=1024, resolution=0.0, rounds=3, seconds=0.1, limit_bytes=100 * MIB)
GPU = DeviceDescription(
    type="cuda", available=True, name="a card", count=1, memory_bytes=64 * MIB, float64=True, autocast_dtype="bf16",
    arithmetic={"fp32": "native", "bf16": "native", "fp16": "native"},
)  # fmt: skip


def takes(batch: int, precision: str) -> int:
    """Return the bytes that a batch takes: half of them in half."""
    return (10 + 3 * batch) * MIB // (2 if precision.endswith("_pure") else 1)


def seeing(instead: Callable[[Request], Reply | None] = lambda _: None, *devices: DeviceDescription) -> Scripted:
    """Return workers of which each batch takes what `takes` says; `instead` replies to some."""

    def answer(request: Request) -> Reply:
        if request.task == "describe":
            found = Description(parameters={}, has_loss=True, items_per_step=1, version=0, channels_last=False)
            return reply_with(found)
        case, asked = request.case, asked_in(request)
        assert case is not None
        if (reply := instead(request)) is not None:
            return reply
        return reply_with(
            BatchPoint(
                case_id=case.case_id,
                batch=asked.batch,
                round=asked.round,
                source="profiler" if case.device == "cpu" else "allocator",
                peak_bytes=takes(asked.batch, case.precision),
                items_per_step=float(asked.batch),
                samples=[1.0 + 0.01 * asked.batch],
            )
        )

    return Scripted(answer, machine(*(devices or (CPU, NO_GPU))))


def selected(**fields: object) -> Selection:
    default = {"workloads": ["mlp"], "preset": "tiny", "phases": ["training"], "precisions": ["fp32"]}
    return Selection(**(default | fields))  # type: ignore[arg-type]


def studied(results: Path, channel: Scripted, asked: BatchAsked = ASKED, **fields: object) -> StoredRun:
    with instrument.prepared(
        INSTRUMENT, selected(**fields), Settings(), asked, open_channel=lambda: channel
    ) as prepared:
        require_work(prepared)
        cases = [planned.case for planned in prepared.plan]
        header = make_header(
            explains=BATCH,
            asked=msgspec.to_builtins(asked),
            environment=channel.environment,
            selection=prepared.selection,
            settings=prepared.settings,
        )
        with RunWriter.create(results, header, cases) as writer:
            work(INSTRUMENT, prepared, asked, writer, lambda *_: None)
    return read_run(writer.path)


def test_a_point_that_cannot_be_ends_the_search_of_its_case_and_no_other(tmp_path: Path) -> None:
    def instead(request: Request) -> Reply | None:
        case, asked = request.case, asked_in(request)
        assert case is not None
        if case.precision != "fp32" or asked.batch != 2:
            return None
        return reply_with(BatchPoint(case_id=case.case_id, batch=2, round=0, source="nobody", items_per_step=2.0))

    stored = studied(tmp_path, seeing(instead), precisions=["fp32", "bf16_pure"])
    of = {case.precision: case_id for case_id, case in stored.cases.items()}
    message = stored.failures[of["fp32"]].message
    assert message == f"what came out cannot be: a source that there is not, 'nobody', in a point of {of['fp32']}"
    assert stored.ending == "complete"
    assert reached(stored.several_of(BatchPoint)[of["bf16_pure"]]).largest is not None


def failing(cause: str, beyond: int, message: str = "") -> Callable[[Request], Reply | None]:
    """Return what fails on batches larger than that."""

    def fail(request: Request) -> Reply | None:
        assert request.case is not None
        if asked_in(request).batch <= beyond:
            return None
        return Reply(failure=Failure(case_id=request.case.case_id, stage=BATCH, cause=cause, message=message))

    return fail


def points_of(stored: StoredRun) -> list[BatchPoint]:
    (points,) = stored.several_of(BatchPoint).values()
    return points


def test_the_largest_batch_is_that_of_trying_every_one_and_the_fastest_are_timed_in_each_round(tmp_path: Path) -> None:
    stored = studied(tmp_path, seeing(), precisions=["fp32", "bf16_pure"])
    for case in stored.cases.values():
        points = stored.several_of(BatchPoint)[case.case_id]
        found = reached(points)
        every = [batch for batch in range(1, 1025) if takes(batch, case.precision) <= 100 * MIB]
        assert (found.largest.batch if found.largest else 0) == max(every)
        assert [sum(one.round == number for one in points) for number in (1, 2)] == [3, 3]
        fitting = sorted(one.batch for one in points if one.round == 0 and one.outcome == FITS)
        assert {one.batch for one in points if one.round} == set(fitting[-3:])  # the larger, the faster here
    assert INSTRUMENT.left(stored) == []


def test_precisions_take_turns_in_the_rounds(tmp_path: Path) -> None:
    channel = seeing()
    studied(tmp_path, channel, precisions=["fp32", "bf16_pure"])
    order = [(asked_in(one).round, one.case.precision) for one in channel.asked if one.case]
    assert list(dict.fromkeys(order)) == [
        (number, precision) for number in range(3) for precision in ("fp32", "bf16_pure")
    ]


@pytest.mark.parametrize("cause", [OUT_OF_MEMORY, "memory limit", KILLED])
def test_a_worker_that_found_no_room_or_was_killed_says_that_the_batch_does_not_fit(cause: str, tmp_path: Path) -> None:
    points = points_of(studied(tmp_path, seeing(failing(cause, 20))))
    found = reached(points)
    assert found.largest is not None
    assert found.over is not None
    assert (found.largest.batch, found.over.batch, found.over.outcome) == (20, 21, TOO_LARGE)
    assert cause in found.over.reason


def test_another_failure_is_a_row_with_its_reason_and_ends_the_search(tmp_path: Path) -> None:
    stored = studied(tmp_path, seeing(failing("exception", 10, "ValueError: no such batch")))
    points = points_of(stored)
    assert [one.batch for one in points if one.round == 0] == [1, 2, 4, 8, 16]
    assert (points[4].outcome, points[4].reason) == (FAILED, "ValueError: no such batch")
    assert stored.failures == {}
    assert [one.round for one in points[5:]] == [1, 1, 1, 2, 2, 2]  # what ran is timed all the same
    assert INSTRUMENT.left(stored) == []


def test_a_case_of_which_no_batch_runs_has_failed(tmp_path: Path) -> None:
    stored = studied(tmp_path, seeing(failing("exception", 0, "ValueError: never")))
    assert [one.said for one in stored.failures.values()] == ["ValueError: never"]
    assert INSTRUMENT.left(stored) == []


def test_a_limit_below_what_one_example_takes_in_every_case_is_refused_in_a_line(tmp_path: Path) -> None:
    asked = BatchAsked(max_batch=64, resolution=0.0, rounds=3, seconds=0.1, limit_bytes=2 * MIB)
    message = r"^--memory-limit 2.00 MiB: not even a batch of 1 fits into 2.00 MiB: takes "
    with pytest.raises(UsageError, match=message):
        studied(tmp_path, seeing(), asked, precisions=["fp32", "bf16_pure"])


def test_a_precision_that_does_not_fit_beside_one_that_does_is_skipped_with_what_it_takes(tmp_path: Path) -> None:
    asked = BatchAsked(max_batch=64, resolution=0.0, rounds=3, seconds=0.1, limit_bytes=8 * MIB)
    stored = studied(tmp_path, seeing(), asked, precisions=["fp32", "bf16_pure"])
    (skip,) = stored.skips.values()
    assert "fp32" in skip.case_id
    assert skip.reason == "not even a batch of 1 fits into 8.00 MiB: takes 13.0 MiB"


def test_a_batch_size_that_is_set_is_refused_as_it_is_searched_for(tmp_path: Path) -> None:
    for name in ("batch_size", "mlp.batch_size"):
        with pytest.raises(UsageError, match=rf"^--set {name}=8: the batch is what is searched for; --max-batch"):
            studied(tmp_path, seeing(), overrides={name: 8})


def test_a_workload_without_a_batch_size_is_nothing_to_search(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("")
    with pytest.raises(NothingToRunError, match="it has no parameter batch_size that could be changed"):
        studied(tmp_path, seeing(), workloads=[f"{tmp_path}/net.py:make"], preset="")


def test_an_accelerator_has_its_own_memory_for_a_limit_and_its_context_is_paid_for_once(tmp_path: Path) -> None:
    asked = BatchAsked(max_batch=1024, resolution=0.0, rounds=1, seconds=0.1)
    channel = seeing(lambda _: None, CPU, GPU)
    stored = studied(tmp_path, channel, asked, devices=["cuda"])
    found = reached(points_of(stored))
    assert (found.largest.batch if found.largest else 0) == max(b for b in range(64) if takes(b, "fp32") <= 64 * MIB)
    assert not any(one.fresh for one in channel.asked if one.case)


def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = [(one.batch, one.round, one.outcome) for one in points_of(studied(tmp_path / "whole", seeing()))]

    def stop(after: int) -> Callable[[Request], Reply | None]:
        seen: list[Request] = []

        def count(request: Request) -> Reply | None:
            seen.append(request)
            if len(seen) > after:
                raise KeyboardInterrupt
            return None

        return count

    for after in (1, 5, len(whole) - 4, len(whole) - 1):
        begun = studied(tmp_path / str(after), seeing(stop(after)))
        assert (begun.ended, len(points_of(begun))) == ("interrupted", after)
        assert INSTRUMENT.left(begun)
        writer, begun = RunWriter.reopen(begun.path)
        with (
            writer,
            instrument.prepared(
                INSTRUMENT, begun.header.selection, begun.header.settings, ASKED, begun, open_channel=seeing
            ) as prepared,
        ):
            work(INSTRUMENT, prepared, ASKED, writer, lambda *_: None, begun=begun)
        stored = read_run(writer.path)
        assert [(one.batch, one.round, one.outcome) for one in points_of(stored)] == whole
        assert all(one.outcome != FITS or one.samples for one in points_of(stored))
        assert INSTRUMENT.left(stored) == []

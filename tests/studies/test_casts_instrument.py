"""Tracing the casts of cases: which are planned, what each worker is asked for, what is stored whatever happens."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ampbench.core.precisions import AUTOCAST
from ampbench.errors import UsageError
from ampbench.records.casts import AUTOGRAD, COMPILED, CastPass, CastTrace
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import RunWriter, StoredRun, read_run
from ampbench.studies.casts import STUDY, CastsAsked
from ampbench.studies.work import Piece
from ampbench.studies.work import prepared as prepare
from tests.scripted_channel import Scripted, asked_in
from tests.stored_runs import make_header
from tests.studies.working import work

ASKED = CastsAsked()
Instead = Callable[[Request], Reply | None]


def tracing(instead: Instead = lambda _: None) -> Scripted:
    """Return a channel that sees an empty trace in every case, or answers as `instead` does."""

    def answer(request: Request) -> Reply:
        assert request.case is not None
        seen = CastPass(case_id=request.case.case_id, how="device", trace=CastTrace())
        return instead(request) or reply_with(seen)

    return Scripted(answer)


def traced(results: Path, channel: Scripted, asked: CastsAsked = ASKED, **selected: list[str]) -> StoredRun:
    """Return the run that tracing what is selected leaves."""
    selection = Selection(**({"workloads": ["mlp"], "preset": "tiny"} | selected))  # type: ignore[arg-type]
    with prepare(STUDY, selection, Settings(), asked, open_channel=lambda: channel) as prepared:
        cases = [planned.case for planned in prepared.plan]
        with RunWriter.create(results, make_header(explains="casts"), cases) as writer:
            work(STUDY, prepared, asked, writer)
    return read_run(writer.path)


def test_unless_told_otherwise_training_is_traced_in_the_devices_own_autocast_dtype(tmp_path: Path) -> None:
    run = traced(tmp_path, tracing(), devices=["cpu", "cuda", "xpu"])
    found = [(case.device, case.precision, case.phase, case.path) for case in run.cases.values()]
    assert found[:2] == [
        ("cpu", "bf16_autocast", "training", "eager"),
        ("cuda", "fp16_autocast", "training", "eager"),
    ]
    # this torch does not know the device, so not its default either
    assert [precision for _, precision, *_ in found[2:]] == AUTOCAST


def test_a_case_of_an_absent_device_is_sent_to_a_worker(tmp_path: Path) -> None:
    channel = tracing()
    run = traced(tmp_path, channel, devices=["cuda"], phases=["training"])
    assert [request.case.device for request in channel.asked if request.case] == ["cuda"]
    assert not run.skips


def test_what_is_asked_for_is_the_path_as_a_graph_and_autograds_in_training(tmp_path: Path) -> None:
    channel = tracing()
    traced(
        tmp_path, channel, CastsAsked(sources=True, check=True), phases=["inference", "training"],
        paths=["eager", "compiled"],
    )  # fmt: skip
    inference, training = map(asked_in, channel.asked)
    assert (inference.graphs, training.graphs) == ([COMPILED], [COMPILED, AUTOGRAD])
    assert inference.sources
    assert inference.check
    assert {request.case.path for request in channel.asked if request.case} == {"eager"}


def test_a_path_whose_graph_cannot_be_read_is_refused(tmp_path: Path) -> None:
    said = "explain casts reads the graph of --path compiled or traced, not of compiled-freezing"
    with pytest.raises(UsageError, match=said):
        traced(tmp_path, tracing(), paths=["eager", "compiled-freezing"])


def test_a_workload_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"needs a workload: name one, as in `ampbench explain casts mlp`"):
        traced(tmp_path, tracing(), workloads=[])


@pytest.mark.parametrize("cause", ["exception", "killed"])
def test_a_case_that_fails_is_an_entry_and_the_next_one_is_traced(tmp_path: Path, cause: str) -> None:
    def failing(request: Request) -> Reply | None:
        assert request.case is not None
        if request.case.phase == "training":
            return None
        failure = Failure(case_id=request.case.case_id, stage="casts", cause=cause, message="no")
        return Reply(failure=failure)

    channel = tracing(failing)
    run = traced(tmp_path, channel, phases=["inference", "training"])
    failed, ok = run.cases
    assert (list(run.failures), list(run.of(CastPass)), run.ended) == ([failed], [ok], "complete")
    # a server that is gone is closed before the next one is opened
    assert channel.closed == {"exception": 2, "killed": 4}[cause]


def test_an_interruption_keeps_what_was_traced(tmp_path: Path) -> None:
    def interrupted(request: Request) -> Reply | None:
        if request.case is not None and request.case.phase == "training":
            raise KeyboardInterrupt
        return None

    channel = tracing(interrupted)
    run = traced(tmp_path, channel, phases=["inference", "training"])
    assert (len(run.cases), len(run.of(CastPass)), run.ended) == (2, 1, "interrupted")
    assert channel.closed


def test_each_case_is_told_of_before_and_after(tmp_path: Path) -> None:
    told: list[tuple[str, type]] = []

    def watch(piece: Piece, found: CastPass | Failure | Skip | None) -> None:
        told.append((piece.planned.case.phase, type(found)))

    selection = Selection(workloads=["mlp"], phases=["inference", "training"])
    with prepare(STUDY, selection, Settings(), CastsAsked(), open_channel=tracing) as prepared:
        cases = [planned.case for planned in prepared.plan]
        with RunWriter.create(tmp_path, make_header(explains="casts"), cases) as writer:
            assert work(STUDY, prepared, CastsAsked(), writer, watch) == "complete"
    assert told == [(phase, kind) for phase in ("inference", "training") for kind in (type(None), CastPass)]

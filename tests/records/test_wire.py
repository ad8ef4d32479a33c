"""Lines between driver, server and worker, and the channel in this very process."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest
from msgspec.structs import replace

from ampbench.drive.servers import InProcess
from ampbench.records import wire
from ampbench.records.kinds import WATCH
from ampbench.records.measured import STAGES, Failure, Skip
from ampbench.records.wire import (
    ROUND,
    Nothing,
    Reply,
    answer,
    read_reply,
    read_request,
    ready_line,
    reply_line,
    reply_with,
    request_line,
)
from tests.odd_networks import ODD
from tests.scripted_channel import TASKS, got, make_request, user_source
from tests.stored_runs import make_case, make_round

CASE = make_case("fp32")
ASKED = make_request("round", number=7, case=CASE)


def test_a_request_and_a_reply_come_as_they_went_the_reply_with_the_requests_number() -> None:
    assert read_request(request_line(ASKED)) == ASKED
    reply = reply_with(make_round(CASE))
    assert read_reply(reply_line(reply, ASKED)) == msgspec.structs.replace(reply, number=7)


@pytest.mark.parametrize("number", [float("inf"), float("nan"), -float("inf")])
def test_a_number_that_json_lacks_is_a_failure_that_names_its_field(number: float) -> None:
    assert answer(make_round(CASE, number), ASKED) == Reply(
        failure=Failure(
            case_id=CASE.case_id, stage="round", cause="exception",
            message="the measurement cannot be stored: round.samples[0][0] is not a finite number",
        ),
    )  # fmt: skip


def test_what_was_found_is_read_as_it_was_and_what_says_why_nothing_was_is_the_outcome() -> None:
    found, skip = make_round(CASE), Skip(case_id=CASE.case_id, reason="no")
    failure = Failure(case_id=CASE.case_id, stage="round", cause="crash", message="signal 6")
    assert ROUND.outcome(answer(found, ASKED), CASE) == found
    assert ROUND.outcome(answer(skip, ASKED), CASE) == ROUND.outcome(Reply(skip=skip), CASE) == skip
    assert ROUND.outcome(Reply(failure=failure), CASE) == failure
    assert ROUND.outcome(Reply(problem="no such op"), CASE).message == "no such op"
    assert ROUND.outcome(Reply(), CASE) == replace(failure, cause="exception", message="the worker gave no result")


def test_every_record_that_a_task_asks_with_or_gives_is_in_what_servers_agree_on() -> None:
    assert len(TASKS) > 15
    known = {Nothing, *wire.travelling()}
    inner = {hint for each in known for hint in get_type_hints(each).values()}
    missing = {name for name, task in TASKS.items() if task.asked not in known}
    assert not missing
    assert {name for name, task in TASKS.items() if task.gives not in known and task.gives | None not in inner} == set()


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Reply]:
    pytest.importorskip("torch")
    source, channel = user_source(tmp_path, ODD, "net"), InProcess()

    def ask(kind: str) -> Reply:
        case = make_case("fp32", workload="odd.py:net", parameters={"kind": kind}, batch_size=None)
        return channel.serve(make_request("round", source=source, case=case, builds=1))

    return ask


def test_whatever_a_network_raises_in_this_process_is_its_failure(ask: Callable[..., Reply]) -> None:
    failure = ask("system exit").failure
    assert failure is not None
    assert failure.cause == "exception"
    assert failure.message.startswith("SystemExit: 0 (odd.py, line ")
    assert "odd.py" in failure.frames[-1]


def test_a_network_that_forks_in_this_process_and_returns_twice_gives_one_reply(
    ask: Callable[..., Reply], tmp_path: Path
) -> None:
    pid = os.getpid()
    assert got("round", ask("returns twice")) is not None
    assert os.getpid() == pid
    os.wait()


def test_what_a_server_says_first_names_every_field_that_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    line = ready_line()
    assert line.startswith(b"ready ")
    assert line.endswith(b"\n")
    assert ready_line() == line

    monkeypatch.setattr(wire, "Reply", msgspec.defstruct("Other", ["added"]))
    assert ready_line() != line


def test_every_task_that_a_case_may_fail_in_is_a_stage_of_failures() -> None:
    tasks = set(TASKS) - {wire.ENVIRONMENT.name, wire.DESCRIBE.name, wire.REST.name}
    assert tasks == set(STAGES) - {WATCH}  # which no worker does

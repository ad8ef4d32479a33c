"""What a server is started with, where an accelerator is possible, and which servers a session begins with."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from ampbench import __version__
from ampbench.drive import servers, session
from ampbench.drive.planning import check_selection
from ampbench.drive.servers import Pool, ServerChannel, may_have_accelerator, server_environment
from ampbench.drive.session import preload_modules
from ampbench.errors import NothingToRunError
from ampbench.records.measured import Failure
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.worker.server import descendants
from tests.scripted_channel import Scripted, make_request
from tests.stored_runs import make_case, make_round

CASE = make_case()
KILLED = Failure(case_id=CASE.case_id, stage="round", cause="killed", message="by SIGKILL")


def test_what_is_given_wins_over_what_is_inherited_and_that_over_what_every_server_needs() -> None:
    found = server_environment(
        {"HOME": "/home/a", "OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "0"}, {"OMP_NUM_THREADS": "1"}, []
    )
    assert (found["HOME"], found["OMP_NUM_THREADS"], found["PYTHONUNBUFFERED"]) == ("/home/a", "1", "1")


REMEDIES = {
    """echo "ModuleNotFoundError: No module named 'torch'" >&2; exit 1""": "install it there: pip install torch",
    "exec 1>&-; exec sleep 60": "does not answer: end other work",
}


@pytest.mark.parametrize(("does", "remedy"), REMEDIES.items())
def test_a_python_that_cannot_serve_names_the_remedy(tmp_path, monkeypatch, does: str, remedy: str):
    monkeypatch.setattr(servers, "ENDING_SECONDS", 0.5)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(0o755)
    with pytest.raises(NothingToRunError, match=remedy):
        ServerChannel(str(python))


NO_SERVER = "No module named ampbench.worker.server"
NO_PACKAGE = "(ModuleNotFoundError: No module named 'ampbench.worker')"


@pytest.mark.parametrize(
    "says",
    [
        "echo ready 0011223344556677 0.0.9; exec sleep 60",
        "echo ready; exec sleep 60",
        f'echo "$0: {NO_SERVER}" >&2; exit 1',
        f'echo "$0: Error while finding module specification {NO_PACKAGE}" >&2; exit 1',
        f"echo ready 0011223344556677 {__version__}; exec sleep 60",
    ],
)
def test_a_worker_of_another_version_is_refused_in_one_line(
    tmp_path: Path, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "ENDING_SECONDS", 0.05)  # these do not end by themselves
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{says}\n")
    python.chmod(0o755)
    with pytest.raises(NothingToRunError) as refused:
        ServerChannel(str(python))
    assert str(refused.value) == servers.OTHER_VERSION.format(python, __version__)


@pytest.mark.parametrize(("node", "found"), [("nvidiactl", True), ("dri", True), ("null", False)])
def test_an_accelerator_is_possible_where_its_driver_has_a_node(tmp_path: Path, node: str, found: bool) -> None:
    (tmp_path / node).touch()
    assert may_have_accelerator(tmp_path) is found


def counted(answer: Callable[[Request], Reply]) -> tuple[list[Scripted], Callable[[], Scripted]]:
    """Return the channels that were opened so far, and what opens another that answers so."""
    opened: list[Scripted] = []

    def open_channel() -> Scripted:
        opened.append(Scripted(answer))
        return opened[-1]

    return opened, open_channel


def test_what_was_killed_is_replaced_and_asked_once_more_in_its_lane_alone() -> None:
    died, dying = counted(lambda _: Reply(failure=KILLED))
    lived, living = counted(lambda _: reply_with(make_round(CASE)))
    with Pool({"dying": dying, "living": living}) as pool:
        request = make_request("round", case=CASE, fresh=False)
        assert pool.serve(request, "living") == reply_with(make_round(CASE))
        assert died == []
        assert pool.serve(request, "dying") == Reply(failure=KILLED)
        assert [[one.fresh for one in channel.asked] for channel in died] == [[False], [True]]
        assert [channel.closed for channel in died] == [1, 1]
        pool.serve(request, "living")
    assert [(len(channel.asked), channel.closed) for channel in lived] == [(2, 1)]


def test_where_one_of_the_servers_that_start_together_cannot_the_others_end() -> None:
    def broken() -> Scripted:
        raise NothingToRunError("no worker could start")

    opened, open_channel = counted(lambda _: Reply())
    with pytest.raises(NothingToRunError, match="no worker could start"):
        Pool({"one": open_channel, "other": broken}).open()
    assert [channel.closed for channel in opened] == [1]


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one commit of a repository, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    author = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for arguments in (("init", "--quiet"), (*author, "commit", "--quiet", "--allow-empty", "--message", "first")):
        subprocess.run(["git", *arguments], check=True)
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def test_a_commits_time_is_known_with_changes_beside_it_too(commit: str) -> None:
    told = session.commit_time(commit)
    assert told is not None
    assert datetime.fromisoformat(told).tzinfo is not None
    assert session.commit_time(f"{commit}-dirty") == told


@pytest.mark.parametrize(
    ("workload", "phase", "modules"),
    [
        ("mlp", "inference", ["ampbench.workloads.linear"]),
        ("mlp", "training", ["torch._dynamo", "ampbench.workloads.linear"]),
        ("resnet18", "inference", ["torchvision", "ampbench.workloads.conv"]),
        ("digits", "training", ["torch._dynamo", "sklearn.datasets", "ampbench.workloads.data"]),
        ("characters", "inference", ["ampbench.workloads.data"]),
    ],
)
def test_a_server_imports_early_what_its_workloads_need(workload: str, phase: str, modules: list[str]) -> None:
    selection = Selection(workloads=[workload], phases=[phase])
    assert preload_modules(selection, check_selection(selection)) == modules


@pytest.mark.parametrize(("ahead", "rounds", "started"), [(True, 4, 2), (True, 1, 1), (False, 4, 1)])
def test_as_many_servers_as_are_needed_start_before_anything_is_measured_and_end_with_the_session(
    ahead: bool, rounds: int, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Scripted] = []

    def start(**_: object) -> Scripted:
        opened.append(Scripted(pytest.fail))
        return opened[-1]

    monkeypatch.setattr(session, "ServerChannel", start)
    selection = Selection(workloads=["mlp"], phases=["inference"])
    with session.prepare(selection, Settings(rounds=rounds), ahead=ahead) as prepared:
        assert len(opened) == started
        first = prepared.begun or [prepared.open_channel()]
        assert [id(one) for one in first] == [id(one) for one in opened]
        prepared.open_channel()
        assert len(opened) == started + 1, "after those that were begun comes a new one"
    assert [one.closed for one in opened] == [1] * started + [0]


def test_a_second_server_for_which_there_is_no_room_is_done_without() -> None:
    first = Scripted(pytest.fail)
    waiting = [first]

    def start() -> Scripted:
        if not waiting:
            raise NothingToRunError("no more processes")
        return waiting.pop()

    with session.opened_first(start, 1, together=2) as opened:
        assert (opened.open_channel(), opened.begun) == (first, [])
    assert first.closed == 1


@pytest.mark.parametrize("which", ["server", "its worker"])
def test_what_is_ended_from_outside_while_the_environment_is_asked_for_is_tried_again(which: str) -> None:
    opened: list[ServerChannel] = []

    def end() -> None:
        server = opened[0]._process.pid
        while not (workers := descendants(server)):  # it is asked for the environment
            pass
        os.kill(server if which == "server" else workers[0], signal.SIGTERM)

    def start() -> ServerChannel:
        opened.append(ServerChannel())
        return opened[-1]

    ending = threading.Thread(target=end)
    with session.opened_first(start, 1, meanwhile=ending.start) as first:
        ending.join()
        assert first.environment.threads == 1
        assert (len(opened), first.open_channel()) == (2, opened[1])

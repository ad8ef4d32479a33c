"""What a session records of the repository, which servers it begins with, and what these import before they fork."""

import os
import signal
import subprocess
import threading
from datetime import datetime
from pathlib import Path

import pytest

from ampbench.drive import session
from ampbench.drive.planning import check_selection
from ampbench.drive.servers import ServerChannel
from ampbench.drive.session import preload_modules
from ampbench.errors import NothingToRunError
from ampbench.records.run import Selection, Settings
from ampbench.worker.server import descendants
from tests.scripted_channel import Scripted


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

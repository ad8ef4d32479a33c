"""What a server is started with, and where an accelerator is possible."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ampbench import __version__
from ampbench.drive import servers
from ampbench.drive.servers import Pool, ServerChannel, may_have_accelerator, server_environment
from ampbench.errors import NothingToRunError
from ampbench.records.measured import Failure
from ampbench.records.wire import Reply, Request, reply_with
from tests.scripted_channel import Scripted, make_request
from tests.stored_runs import make_case, make_round

CASE = make_case()
KILLED = Failure(case_id=CASE.case_id, stage="round", cause="killed", message="by SIGKILL")


def test_what_is_given_wins_over_what_is_inherited_and_that_over_what_every_server_needs() -> None:
    found = server_environment(
        {"HOME": "/home/a", "OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "0"}, {"OMP_NUM_THREADS": "1"}, []
    )
    assert (found["HOME"], found["OMP_NUM_THREADS"], found["PYTHONUNBUFFERED"]) == ("/home/a", "1", "1")


def test_a_python_without_torch_is_told_how_to_get_it(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(NothingToRunError, match="No module named 'torch'; install it there: pip install torch"):
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

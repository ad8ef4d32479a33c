"""What a server is started with, and where an accelerator is possible."""

import os
from pathlib import Path

import pytest

from ampbench.drive.servers import ServerChannel, may_have_accelerator, server_environment
from ampbench.errors import NothingToRunError


def test_what_is_given_wins_over_what_is_inherited_and_that_over_what_every_server_needs() -> None:
    found = server_environment(
        {"HOME": "/home/a", "OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "0"}, {"OMP_NUM_THREADS": "1"}, []
    )
    assert (found["HOME"], found["OMP_NUM_THREADS"], found["PYTHONUNBUFFERED"]) == ("/home/a", "1", "1")


def test_memory_allocation_is_the_callers_affair() -> None:
    assert "GLIBC_TUNABLES" not in server_environment({}, {}, [])
    assert server_environment({"GLIBC_TUNABLES": "mine"}, {}, [])["GLIBC_TUNABLES"] == "mine"


def test_a_commits_folders_come_first_then_this_ampbench_then_the_callers_path() -> None:
    found = server_environment({"PYTHONPATH": "/mine"}, {}, [Path("/commit"), Path("/commit/src")])
    parts = found["PYTHONPATH"].split(os.pathsep)
    assert parts[:2] == ["/commit", "/commit/src"]
    assert parts[-1] == "/mine"


def test_a_python_without_torch_is_told_how_to_get_it(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(NothingToRunError, match="No module named 'torch'; install it there: pip install torch"):
        ServerChannel(str(python))


@pytest.mark.parametrize("first", ["ready", "ready 0011223344556677"])
def test_a_worker_of_another_version_is_refused_in_one_line_at_once(tmp_path: Path, first: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {first}\nsleep 60\n")
    python.chmod(0o755)
    said = "of another version of ampbench, which this one cannot drive: measure there with `ampbench run`"
    with pytest.raises(NothingToRunError, match=said):
        ServerChannel(str(python))


@pytest.mark.parametrize(("node", "found"), [("nvidiactl", True), ("dri", True), ("null", False)])
def test_an_accelerator_is_possible_where_its_driver_has_a_node(tmp_path: Path, node: str, found: bool) -> None:
    (tmp_path / node).touch()
    assert may_have_accelerator(tmp_path) is found

import pytest

from ampbench.cli import progress
from ampbench.cli.progress import PiecesLeft


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_one_piece_needs_no_place():
    left = PiecesLeft(["a"])
    left.begin("a")
    assert left.place() == ""


def test_time_left_is_what_pieces_of_the_same_case_took(clock):
    left = PiecesLeft(["slow", "fast", "slow", "fast"])
    left.begin("slow")
    assert left.place() == " (1 of 4)"
    clock[0] += 40
    left.begin("fast")
    assert left.place() == " (2 of 4, about 2 min left)", "what is not known takes as long as what is"
    clock[0] += 4
    left.begin("slow")
    assert left.place() == " (3 of 4, about 44 s left)"
    clock[0] += 30
    assert left.place() == " (3 of 4, about 14 s left)"


def test_pieces_that_a_failure_made_needless_are_not_waited_for(clock):
    left = PiecesLeft(["a", "b", "b", "c", "c"])
    left.begin("a")
    clock[0] += 10
    left.begin("b")
    clock[0] += 10
    left.begin("c")
    assert left.place() == " (4 of 5, about 20 s left)"

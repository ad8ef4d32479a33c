"""Tables are dealt to lanes in pieces that shrink, and dealt anew where a lane is lost."""

from hypothesis import given
from hypothesis import strategies as st

from ampbench.drive.fleet import Share
from ampbench.records.measured import Failure
from tests.stored_runs import make_case

ROUNDS = 3


def share_of(tables: int, *, spread: bool = True) -> Share:
    cases = [make_case(name, workload=f"w{number}") for number in range(tables) for name in ("fp32", "bf16_pure")]
    share = Share({case.case_id: case for case in cases}, ROUNDS, spread)
    assert len(share.begin()) == 2 * tables
    return share


def end(share: Share, case_id: str) -> None:
    share.add(Failure(case_id=case_id, stage="round", cause="exception", message="broken"))


def test_a_lane_of_its_own_takes_everything_at_once() -> None:
    share = share_of(12, spread=False)
    assert len(share.take("a", 1)) == 24
    assert not share.left


def test_pieces_are_half_of_an_equal_part_and_keep_tables_whole() -> None:
    share = share_of(12)
    assert [len(share.take(name, 3)) for name in ("a", "b", "c")] == [4, 4, 4]
    dealt = [tuple(table) for tables in share.dealt.values() for table in tables]
    assert len(dealt) == len(set(dealt)) == 6


def test_unfinished_tables_of_a_lost_lane_come_first() -> None:
    share = share_of(8)
    begun, others = share.take("a", 2), share.take("b", 2)
    assert (len(begun), len(others)) == (4, 4)
    for case_id in begun[:2]:
        end(share, case_id)
    share.give_back("a")
    assert share.take("c", 1)[:2] == begun[2:]
    assert set(begun[2:]).isdisjoint(others)


@given(st.integers(1, 30), st.integers(1, 6), st.data())
def test_every_case_is_measured_once_whatever_lanes_are_lost(tables: int, lanes: int, data: st.DataObject) -> None:
    share = share_of(tables)
    measured: list[str] = []
    for turn in range(1000):
        if not share.left and not share.dealt:
            break
        lane = f"lane{turn % lanes}"
        if lane not in share.dealt:
            share.take(lane, lanes)
        elif data.draw(st.booleans()):
            share.give_back(lane)
        else:
            for case_id in [one for table in share.dealt.pop(lane) for one in table]:
                measured.append(case_id)
                end(share, case_id)
    assert len(measured) == len(set(measured))
    if not share.left and not share.dealt:
        assert set(measured) == share.cases.keys()

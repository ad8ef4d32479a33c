"""Tables are dealt to lanes in pieces that shrink, and dealt anew where a lane is lost."""

from hypothesis import given
from hypothesis import strategies as st

from ampbench.drive.rounds import SERVER_SECONDS
from ampbench.fleet.session import OVERHEAD_SHARE, Deal
from ampbench.records.case import table_of
from tests.stored_runs import make_case

ROUNDS = 3


def deal_of(tables: int, *, shared: bool = True) -> Deal:
    cases = [make_case(name, workload=f"w{number}") for number in range(tables) for name in ("fp32", "bf16_pure")]
    return Deal.of(cases, ROUNDS, shared=shared)


def test_a_lane_of_its_own_takes_everything_at_once() -> None:
    deal = deal_of(12, shared=False)
    assert len(deal.take("a", 1)) == 24
    assert not deal.left


def test_pieces_are_half_of_an_equal_part_and_keep_tables_whole() -> None:
    deal = deal_of(12)
    assert [len(deal.take(name, 3)) for name in ("a", "b", "c")] == [4, 4, 4]
    dealt = [table for tables in deal.dealt.values() for table in tables]
    assert len(dealt) == len(set(dealt)) == 6


def test_a_piece_is_no_shorter_than_its_servers_are_worth_unless_another_lane_would_go_without() -> None:
    deal = deal_of(100)
    deal.take("a", 2)
    worth = ROUNDS * SERVER_SECONDS / OVERHEAD_SHARE
    deal.finish("a", worth)  # for 25 tables
    assert len(deal.take("b", 5)) == 2 * 15  # an equal part of 75, less than the 25 that are worth it
    deal.finish("b", worth)
    assert len(deal.take("c", 2)) == 2 * 20  # of 60: more than half of an equal part


def test_what_a_lost_lane_had_begun_comes_first_but_for_tables_that_are_finished() -> None:
    deal = deal_of(8)
    begun = deal.take("a", 2)
    others = deal.take("b", 2)
    deal.give_back("a", lambda case_id: case_id in begun[:2])
    assert deal.take("c", 1)[:2] == begun[2:]
    assert deal.done == 1
    assert set(begun[2:]).isdisjoint(others)


@given(st.integers(1, 30), st.integers(1, 6), st.data())
def test_every_case_is_measured_once_whatever_lanes_are_lost(tables: int, lanes: int, data: st.DataObject) -> None:
    deal = deal_of(tables)
    every = set(deal.cases_left)
    measured: list[str] = []
    for turn in range(1000):
        if not deal.left and not deal.dealt:
            break
        lane = f"lane{turn % lanes}"
        if lane not in deal.dealt:
            deal.take(lane, lanes)
        elif data.draw(st.booleans()):
            deal.give_back(lane, lambda _: False)
        else:
            measured += [one for table in deal.dealt[lane] for one in deal.tables[table]]
            deal.finish(lane, data.draw(st.floats(0, 1e4)))
    assert sorted(measured) == sorted(set(measured))
    assert set(measured) <= every
    if not deal.left and not deal.dealt:
        assert set(measured) == every


def test_a_table_is_what_speeds_are_compared_in() -> None:
    case = make_case(workload="w")
    assert table_of(case) == ("cpu", case.group, "inference", "eager")

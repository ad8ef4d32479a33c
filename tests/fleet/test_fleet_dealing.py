"""Tables are dealt to lanes in pieces that shrink, and dealt anew where a lane is lost."""

import heapq
import itertools
import random
from collections import Counter

from ampbench.drive.fleet import Share
from ampbench.records.measured import Failure
from tests.stored_runs import make_case

ROUNDS = 3


def share_of(tables: int) -> Share:
    cases = [make_case(name, workload=f"w{number}") for number in range(tables) for name in ("fp32", "bf16_pure")]
    wanted = {case.case_id: [("round", case.case_id, number, False) for number in range(ROUNDS)] for case in cases}
    return Share({case.case_id: case for case in cases}, wanted)


def end(share: Share, case_id: str) -> None:
    share.add(Failure(case_id=case_id, stage="round", cause="exception", message="broken"))


def test_pieces_are_equal_parts_of_what_is_left_and_keep_tables_whole() -> None:
    share = share_of(12)
    pieces = [share.take(2) for _ in range(7)]
    assert [len(piece) for piece in pieces] == [4, 3, 2, 1, 1, 1, 0]
    assert all(len(table) == 2 for piece in pieces for table in piece)
    end(share, pieces[0][0][0])
    share.give_back(pieces[0])
    assert share.take(0) == pieces[0], "a table is finished with its last case"


def test_thirty_two_lanes_that_die_at_random_lose_nothing_repeat_nothing_and_are_busy() -> None:
    draw, lanes, tables = random.Random(1), 32, 500
    share, seconds = share_of(tables), [draw.uniform(20.0, 60.0) for _ in range(tables)]
    free, at_work, lived, done = [(0.0, lane) for lane in range(lanes)], 0.0, 0.0, Counter[str]()
    while free:
        began, lane = heapq.heappop(free)
        if not (piece := share.take(lanes)):
            continue
        measured = piece[: draw.randrange(len(piece))] if draw.random() < 0.05 else piece  # it dies, another appears
        for case_id in itertools.chain.from_iterable(measured):
            done[case_id] += 1
            end(share, case_id)
        share.give_back(piece)
        taken = 12.0 + sum(seconds[int(share.cases[case_id].workload[1:])] for case_id, *_ in measured)
        at_work, lived = at_work + taken, max(lived, began + taken)
        heapq.heappush(free, (began + taken, lane))
    assert done == dict.fromkeys(share.cases, 1)
    assert at_work >= 0.9 * lanes * lived, at_work / (lanes * lived)

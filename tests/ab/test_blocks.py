"""Blocks against scripted channels: no process, a clock that is told the time."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from msgspec import structs

from ampbench.ab import BlockSession, Lane, Look, joined
from ampbench.judge.deciding import CONFIRMATION_BLOCKS, LOOKS
from ampbench.records.measured import Failure, Fitness, Round
from ampbench.records.run import Entry, Settings
from ampbench.records.wire import Nothing, Reply, Request, reply_with
from tests.drive.test_rounds import Script, planned
from tests.scripted_channel import asked_in, got, make_request, measured

SETTINGS = Settings(builds=3, min_run_seconds=0.3)
CASES = {each.case.case_id: each for each in (planned("fp32"), planned("bf16_pure"))}
NOTHING = Look()


class Session:
    """A session of two arms and a control, each with a script of its own, and what it wrote."""

    def __init__(self, look: Callable[[int], Look] = lambda done: NOTHING, **changes: object):
        self.scripts = {name: Script() for name in ("baseline", "control", "candidate")}
        self.written: dict[str, list[Entry]] = {name: [] for name in self.scripts}
        self.failures: list[Entry] = []
        lanes = [
            Lane(name, CASES, SETTINGS, script.open, self.written[name].append, control=name == "control")
            for name, script in self.scripts.items()
        ]
        self.looks: list[int] = []

        def looked() -> Look:
            plain = {each.round for each in self.rounds("baseline") if not each.confirmation}
            self.looks.append(len(plain))
            return look(len(plain))

        self.session = BlockSession(lanes, looked, watch=self.watch, **changes)

    def watch(self, _: str, entry: Entry | None) -> None:
        self.failures += [entry] if entry is not None else []

    def rounds(self, lane: str) -> list[Round]:
        return [entry for entry in self.written[lane] if isinstance(entry, Round)]


def test_every_block_has_a_round_of_every_case_in_every_lane_from_servers_of_its_own() -> None:
    found = Session(blocks=8)
    assert found.session.measure_rounds() == "complete"
    for name, script in found.scripts.items():
        rounds = found.rounds(name)
        assert Counter((each.case_id, each.round) for each in rounds) == Counter(itertools.product(CASES, range(8)))
        assert {each.control for each in rounds} == {name == "control"}
        assert script.opened == script.closed == 8
    servers = [{each.server for each in found.rounds(name)} for name in found.scripts]
    assert len(set().union(*servers)) == 24


def test_the_lanes_of_a_case_take_turns_build_by_build_in_random_order() -> None:
    order: list[str] = []
    found = Session(blocks=8)
    for name, script in found.scripts.items():
        script.answer = lambda request, name=name: (order.append(name), measured(request))[1]
    found.session.measure_rounds()
    turns = [tuple(order[place : place + 3]) for place in range(0, len(order), 3)]
    assert len(turns) == 8 * len(CASES) * SETTINGS.builds
    assert {frozenset(turn) for turn in turns} == {frozenset(found.scripts)}
    assert len(set(turns)) == 6


def test_a_round_is_the_builds_of_one_process_each_at_its_own_place() -> None:
    found = Session(blocks=8)
    found.session.measure_rounds()
    assert all(len(each.samples) == 3 for each in found.rounds("candidate"))
    asked = found.scripts["candidate"].asked
    assert [request.fresh for request in asked] == [True, False, False] * (len(asked) // 3)
    assert all(
        asked_in(request).builds == 1 and asked_in(request).min_run_seconds == pytest.approx(0.1) for request in asked
    )
    assert len({asked_in(request).placement_seed for request in asked}) == len(asked)
    assert {3 * asked_in(request).max_samples for request in asked} == {198}  # a round stores 200 samples at most


def test_it_looks_at_the_agreed_numbers_of_blocks_and_drops_what_is_decided() -> None:
    first, second = CASES
    found = Session(lambda done: Look(decided={first} if done == 8 else {second} if done == 16 else ()))
    assert found.session.measure_rounds() == "complete"
    assert found.looks == [8, 16]
    assert Counter(each.case_id for each in found.rounds("baseline")) == {first: 8, second: 16}


def test_a_change_is_confirmed_on_fresh_blocks_of_the_two_arms_alone() -> None:
    first, _ = CASES
    found = Session(lambda done: Look(fired={first} if done == 16 else ()), blocks=16)
    assert found.session.measure_rounds() == "complete"
    for name in ("baseline", "candidate"):
        fresh = [each for each in found.rounds(name) if each.confirmation]
        assert len(fresh) == CONFIRMATION_BLOCKS
        assert {each.case_id for each in fresh} == {first}
        assert not {each.round for each in fresh} & {each.round for each in found.rounds(name) if not each.confirmation}
    assert not any(each.confirmation for each in found.rounds("control"))


def test_out_of_time_it_stops_between_blocks_and_looks_a_last_time() -> None:
    clock = itertools.count(step=0.1)
    told: list[str] = []
    found = Session(max_seconds=15.0, clock=lambda: next(clock), tell=told.append)
    assert found.session.measure_rounds() == "out of time"
    assert told == []
    blocks = len({each.round for each in found.rounds("baseline")})
    assert 0 < blocks < 32
    assert found.looks[-1] == blocks
    assert len(found.looks) == len(set(found.looks))


def test_a_case_that_fails_in_one_arm_is_a_failure_of_that_arm_and_not_measured_again() -> None:
    first, second = CASES

    def fail(request: Request) -> Reply:
        if request.case.case_id != first:
            return measured(request)
        return Reply(failure=Failure(case_id=first, stage="round", cause="exception", message="no"))

    found = Session(blocks=8)
    found.scripts["candidate"].answer = fail
    assert found.session.measure_rounds() == "complete"
    assert [entry.case_id for entry in found.written["candidate"] if isinstance(entry, Failure)] == [first]
    assert not any(isinstance(entry, Failure) for entry in found.written["baseline"])
    assert Counter(each.case_id for each in found.rounds("baseline")) == {first: 1, second: 8}
    assert not any(each.case_id == first for lane in ("control", "candidate") for each in found.rounds(lane))
    assert found.failures


def test_a_killed_server_is_replaced_within_its_block() -> None:
    first, second = CASES
    killed = Failure(case_id=first, stage="round", cause="killed", message="gone")
    found = Session(blocks=8)
    script = found.scripts["baseline"]
    script.answer = lambda request: Reply(failure=killed) if request.case.case_id == first else measured(request)
    found.session.measure_rounds()
    assert script.opened == script.closed == 9
    assert len(found.rounds("baseline")) == 8
    assert {each.case_id for each in found.rounds("baseline")} == {second}


def test_joined_rounds_have_all_builds_and_the_fitness_of_the_whole() -> None:
    def part(seconds: float, share: float | None, **changes: object) -> Round:
        fitness = Fitness(steal_share=share, other_share=0.0, load=1.0)
        done = got("round", measured(make_request("round", case=planned("fp32").case)))
        return structs.replace(done, seconds=seconds, fitness=fitness, **changes)

    whole = joined([part(1.0, 0.4, samples=[[1.0]], compile_seconds=5.0), part(3.0, 0.0, samples=[[2.0, 3.0]])])
    assert whole.samples == [[1.0], [2.0, 3.0]]
    assert whole.seconds == 4.0
    assert whole.compile_seconds == 5.0
    assert whole.fitness == Fitness(steal_share=0.1, other_share=0.0, load=1.0)
    assert joined([part(1.0, None), part(1.0, 0.1)]).fitness.steal_share is None


@pytest.mark.parametrize("lost", [False, True])
def test_on_an_accelerator_a_lane_has_the_device_alone_for_its_round(lost: bool) -> None:
    """Beside the contexts of other lanes a large case found no room, and a device may serve one process only."""
    found = Session()
    case = planned("fp32", device="cuda")
    holding: set[str] = set()
    order: list[str] = []

    def answer(lane: str, request: Request) -> Reply:
        if request.task == "rest":
            holding.discard(lane)
            return reply_with(Nothing())
        assert not holding
        holding.add(lane)
        order.append(lane)
        if lost and lane == "candidate":
            return Reply(
                failure=Failure(case_id=request.case.case_id, stage="round", cause="out of memory", message="no")
            )
        return measured(request)

    found.session._lanes = [replace(lane, cases={case.case.case_id: case}) for lane in found.session._lanes]
    found.session._open = [case.case.case_id]
    for name, script in found.scripts.items():
        script.answer = partial(answer, name)
    assert found.session.measure_rounds() == "complete"
    assert len({tuple(order[place : place + 3]) for place in range(0, len(order), 3)}) > 1 or lost
    counts = {name: len(found.rounds(name)) for name in found.scripts}
    assert set(counts.values()) == ({0, 1} if lost else {LOOKS[-1]})

"""Whose turn it is to be measured, and the driver against a scripted channel: no process, no clock."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ampbench.drive.planning import PlannedCase, make_plan
from ampbench.drive.rounds import (
    HANDLED_SECONDS,
    MOST_ROUNDS,
    OVERHEAD_SECONDS,
    SHARED,
    Progress,
    Schedule,
    Turn,
    budgeted,
    control_case,
    drive,
    estimate,
    make_schedule,
    parse_shard,
    request_of,
    shared_out,
    take_shard,
    turn_seconds,
    with_processes,
)
from ampbench.drive.servers import ServerChannel
from ampbench.errors import NothingToRunError, UsageError
from ampbench.records.case import DeviceDescription, WorkloadSource, table_of
from ampbench.records.measured import NO_ROOM_OR_TIME, Divergence, Failure, Late, Round, Stop
from ampbench.records.run import Entry, Selection, Settings, Shard
from ampbench.records.wire import MEMORY, ROUND, Reply, Request, RoundAsked, Task
from ampbench.workloads.index import WORKLOADS, source
from tests.scripted_accelerator import A770, H100
from tests.scripted_channel import CPU, Scripted, asked_in, machine, measured
from tests.stored_runs import make_case

SETTINGS = Settings(rounds=4)


def planned(precision: str = "fp32", phase: str = "inference", device: str = "cpu", skip: str = "") -> PlannedCase:
    source = WorkloadSource(name="w", family="f", module="m", function="w", builtin=True)
    return PlannedCase(case=make_case(precision, workload="w", phase=phase, device=device), source=source, skip=skip)


PLAN = [planned(name, phase) for phase in ("inference", "training") for name in ("fp32", "bf16_pure", "fp16_pure")]


def every(schedule: Schedule) -> list[Turn]:
    return [turn for rounds in schedule for turns in rounds for turn in turns]


def test_every_case_gets_every_round_from_another_server() -> None:
    (rounds_of_network,) = make_schedule(PLAN, SETTINGS)
    assert len(rounds_of_network) == 4
    for number, turns in enumerate(rounds_of_network):
        rounds = [turn for turn in turns if turn.task.name == "round" and not turn.control]
        assert {turn.round for turn in rounds} == {number}
        assert len(rounds) == len(PLAN)


def test_one_cell_is_measured_twice_as_the_control() -> None:
    controls = [turn for turn in every(make_schedule(PLAN, SETTINGS)) if turn.control]
    assert len(controls) == SETTINGS.rounds
    assert {turn.planned.case.precision for turn in controls} == {"fp32"}
    assert control_case([planned("bf16_pure", "training")]).case.precision == "bf16_pure"
    assert control_case([planned(skip="no")]) is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_networks_come_one_after_the_other_each_with_its_passes_first(device: str) -> None:
    plan = [
        dataclasses.replace(each, case=structs.replace(each.case, workload=workload, device=device, recipe=recipe))
        for workload in ("w", "v")
        for each, recipe in zip(PLAN, [*[""] * 3, *["adamw-lm"] * 3], strict=True)
    ]
    schedule = make_schedule(plan, SETTINGS)
    assert [len(rounds) for rounds in schedule] == ([4, 4] if device == "cpu" else [1, 1, 3, 3])
    legs = schedule if device == "cpu" else [[*schedule[0], *schedule[2]], [*schedule[1], *schedule[3]]]
    for workload, (first, *others) in zip(("w", "v"), legs, strict=True):
        names = ["memory"] * 6 + ["divergence"] * 3 + (["divergence"] * 3 + ["late"] * 3)
        assert [turn.task.name for turn in first[:15]] == names
        assert {turn.task for turns in (first[15:], *others) for turn in turns} == {ROUND}
        assert {turn.planned.case.workload for turns in (first, *others) for turn in turns} == {workload}


def test_rounds_on_a_cpu_are_isolated_and_on_an_accelerator_share_a_context() -> None:
    plan = [planned(name, device=device) for device in ("cpu", "cuda") for name in ("fp32", "bf16_pure")]
    rounds = [turn for turn in every(make_schedule(plan, SETTINGS)) if turn.round == 1]
    assert all(turn.fresh for turn in rounds if turn.planned.case.device == "cpu")
    assert [turn.fresh for turn in rounds if turn.planned.case.device == "cuda"] == [True, False]


def test_what_is_done_or_ended_or_skipped_is_not_scheduled() -> None:
    everything = every(make_schedule(PLAN, SETTINGS))
    done = {turn.key for turn in everything[:10]}
    ended = {PLAN[-1].case.case_id}
    left = every(make_schedule(PLAN, SETTINGS, done, ended))
    assert {turn.key for turn in left} == {
        turn.key for turn in everything if turn.key not in done and turn.planned.case.case_id not in ended
    }
    assert make_schedule([planned(skip="no")], SETTINGS) == []


def test_builds_are_placed_differently_in_every_round_and_for_the_control() -> None:
    turns = [turn for turn in every(make_schedule(PLAN, SETTINGS)) if turn.task.name == "round"]
    seeds = [asked_in(request_of(turn, SETTINGS, 0)).placement_seed for turn in turns]
    assert len(set(seeds)) == len(seeds)


TWO_ROUNDS = Settings(rounds=2)
DRIVEN = [planned(name) for name in ("fp32", "bf16_pure")]


class Script(Scripted):
    """A channel that answers by a function, and how often it was opened."""

    def __init__(self, answer: Callable[[Request], Reply] = measured):
        super().__init__(answer)
        self.opened = 0

    def open(self) -> "Script":
        self.opened += 1
        return self


def run(
    script: Script, settings: Settings = TWO_ROUNDS, plan: list[PlannedCase] = DRIVEN, **changes: Any
) -> tuple[list[Entry], list[Progress]]:
    written: list[Entry] = []
    seen: list[Progress] = []
    drive(make_schedule(plan, settings), settings, script.open, written.append, seen.append, **changes)
    return written, seen


def test_everything_is_written_in_order_and_every_server_is_new() -> None:
    script = Script()
    written, seen = run(script)
    assert (script.opened, script.closed) == (2, 2)
    assert len(written) == len(script.asked) == 2 * 2 + 2 * 3
    assert [entry.server for entry in written if isinstance(entry, Round)] == [0] * 3 + [1] * 3
    assert [progress.done for progress in seen if progress.entry] == list(range(1, 11))


def test_neither_a_pass_nor_a_round_begins_while_a_server_is_starting() -> None:
    told: list[str] = []

    class Starting(ServerChannel):
        def __init__(self, number: int):
            self.number = number

        def ready(self) -> None:
            told.append(f"ready {self.number}")

        def serve(self, request: Request) -> Reply:
            told.append(request.task)
            return measured(request)

        def close(self) -> None:
            pass

    servers = make_schedule(DRIVEN, TWO_ROUNDS)
    drive(servers, TWO_ROUNDS, pytest.fail, lambda _: None, lambda _: None, together=2, begun=map(Starting, range(2)))
    first = told.index("memory")
    assert told[:first] == ["ready 0", "ready 1"]


def test_a_server_that_cannot_begin_ahead_is_tried_again_in_its_turn() -> None:
    opened: list[Script] = []

    def begin() -> Script:
        if opened:
            raise NothingToRunError("no more processes")
        opened.append(Script())
        return opened[0]

    written: list[Entry] = []
    with pytest.raises(NothingToRunError, match="no more processes"):
        drive(make_schedule(DRIVEN, TWO_ROUNDS), TWO_ROUNDS, begin, written.append, lambda _: None, together=2)
    assert len([entry for entry in written if isinstance(entry, Round)]) == 3, "all of the first server"


def test_a_failed_case_is_one_entry_and_the_others_go_on() -> None:
    bad = DRIVEN[1].case.case_id

    def answer(request: Request) -> Reply:
        if request.case.case_id == bad and request.task == "divergence":
            return Reply(failure=Failure(case_id=bad, stage="divergence", cause="crash", message="signal"))
        return measured(request)

    written, seen = run(Script(answer))
    assert [entry for entry in written if isinstance(entry, Failure)] == [
        Failure(case_id=bad, stage="divergence", cause="crash", message="signal")
    ]
    assert not [entry for entry in written if isinstance(entry, Round) and entry.case_id == bad]
    assert len([entry for entry in written if isinstance(entry, Round)]) == 4
    assert seen[-1].done <= 10


@pytest.mark.parametrize("cause", NO_ROOM_OR_TIME)
def test_a_reference_without_room_or_time_leaves_errors_undefined_and_rounds_go_on(cause: str) -> None:
    case_id = DRIVEN[1].case.case_id

    def answer(request: Request) -> Reply:
        if request.case.case_id == case_id and request.task == "divergence":
            return Reply(failure=Failure(case_id=case_id, stage="divergence", cause=cause, message="the reference"))
        return measured(request)

    written, _ = run(Script(answer))
    of_case = [entry for entry in written if entry.case_id == case_id]
    (divergence,) = [entry for entry in of_case if isinstance(entry, Divergence)]
    assert divergence.output.undefined.startswith(f"no reference: {cause}")
    assert (divergence.output.rel_l2, divergence.reference.dtype) == (None, "")
    assert sum(isinstance(entry, Round) for entry in of_case) == TWO_ROUNDS.rounds


@pytest.mark.parametrize("cause", ["exception", "crash", "time-out", "out of memory"])
def test_a_late_pass_that_fails_leaves_its_reason_and_rounds_go_on(cause: str) -> None:
    plan = [planned(name, "training") for name in ("fp32", "bf16_pure")]
    case_id = plan[1].case.case_id

    def reply(request: Request) -> Reply:
        if request.case.case_id == case_id and request.task == "late":
            return Reply(failure=Failure(case_id=case_id, stage="late", cause=cause, message="a step"))
        return measured(request)

    written, _ = run(Script(reply), plan=plan)
    late = {entry.case_id: entry for entry in written if isinstance(entry, Late)}
    assert (late[plan[0].case.case_id].stop, late[case_id].stop) == (Stop.PASSES, Stop.FAILED)
    assert late[case_id].undefined.endswith("a step")
    assert sum(isinstance(entry, Round) and entry.case_id == case_id for entry in written) == TWO_ROUNDS.rounds


def killing(times: int) -> Callable[[Request], Reply]:
    """Return what kills the worker of the first memory pass so many times."""
    left = [Failure(case_id=DRIVEN[0].case.case_id, stage="memory", cause="killed", message="gone")] * times

    def answer(request: Request) -> Reply:
        return Reply(failure=left.pop()) if left and request.task == "memory" else measured(request)

    return answer


def test_what_a_killed_worker_leaves_unanswered_is_asked_once_more_of_a_new_one() -> None:
    script = Script(killing(1))
    written, _ = run(script)
    assert (script.opened, script.closed) == (3, 3)
    assert [request.fresh for request in script.asked[:2]] == [True, True]
    assert script.asked[0].case == script.asked[1].case
    assert not [entry for entry in written if isinstance(entry, Failure)]
    assert len(written) == 2 * 2 + 2 * 3


class Clock:
    """A clock that every round moves by a second, and everything else by none."""

    now = 0.0

    def answer(self, request: Request) -> Reply:
        self.now += request.task == "round"
        return measured(request)

    def __call__(self) -> float:
        return self.now


NETWORKS = [
    dataclasses.replace(each, case=structs.replace(each.case, workload=name)) for name in "ab" for each in DRIVEN
]


def rounds_of(written: list[Entry]) -> dict[str, list[tuple[int, int]]]:
    """Return the round and server of each round of a network's bf16_pure."""
    found: dict[str, list[tuple[int, int]]] = {}
    for each in written:
        if isinstance(each, Round) and "bf16_pure" in each.case_id:
            found.setdefault(each.case_id[0], []).append((each.round, each.server))
    return found


def test_a_network_has_the_rounds_that_its_budget_holds_and_one_at_least() -> None:
    def counts(seconds: float) -> list[int]:
        clock = Clock()
        settings = Settings(rounds=MOST_ROUNDS, budget_seconds=seconds)
        return list(map(len, rounds_of(run(Script(clock.answer), settings, NETWORKS, clock=clock)[0]).values()))

    # rounds of the first network take three seconds, with its control, of the second two
    assert counts(9.0) == [3, 4]
    assert counts(5.9) == [1, 2]
    assert counts(0.001) == [1, 1]


def test_the_first_servers_serve_every_network_and_let_go_of_one_before_the_next() -> None:
    script = Script()
    rounds = SHARED + 1
    written, _ = run(script, Settings(rounds=rounds), NETWORKS)
    servers = [*range(SHARED), SHARED], [*range(SHARED), SHARED + 1]
    assert rounds_of(written) == {name: list(enumerate(expected)) for name, expected in zip("ab", servers, strict=True)}
    assert script.opened == script.closed == SHARED + 2
    assert [request.task for request in script.asked].count("rest") == SHARED
    alone = Script()
    run(alone, Settings(rounds=rounds, isolation=False), NETWORKS)
    assert alone.opened == 2 * rounds, "in this process none stays beside another"


def test_a_network_that_was_begun_with_a_budget_gets_the_rest_of_its_rounds() -> None:
    settings = Settings(rounds=MOST_ROUNDS, budget_seconds=60.0)
    first, second = make_schedule(NETWORKS, settings)
    assert len(first) == len(second) > 100
    done = {turn.key for turns in first[:2] for turn in turns} | {first[2][0].key}
    left, untouched = make_schedule(NETWORKS, settings, done)
    assert left == [with_processes(first[2][1:])]
    assert untouched == second


@pytest.mark.parametrize(("device", "count"), [(H100, 87), (A770, 66)], ids=["H100", "A770"])
def test_a_card_has_a_table_of_every_case_after_two_minutes_and_ends_within_five_minutes(
    device: DeviceDescription, count: int
) -> None:
    plan = make_plan(Selection(), machine(CPU, device), lambda *_: None)
    settings = budgeted(Settings(rounds=MOST_ROUNDS, budget_seconds=0.0), plan)
    schedule = make_schedule(plan, settings)
    tables, end = estimate(schedule, settings)
    assert tables == pytest.approx(98, abs=15)
    assert tables < end <= 300

    clock, turns = Clock(), {}
    for turn in every(schedule):
        turns[turn.key] = turn_seconds(turn, settings)

    def answer(request: Request) -> Reply:
        asked = asked_in(request) if request.task == "round" else RoundAsked()
        clock.now += turns.get((request.task, getattr(request.case, "case_id", ""), asked.round, asked.control), 0.0)
        return measured(request)

    decided = {planned.case.case_id for planned in plan if planned.case.network.startswith("mlp")}
    left = {planned.case.case_id for planned in plan} - decided
    seen: list[tuple[Progress, float]] = []
    drive(
        schedule, settings, Script(answer).open, lambda _: None, lambda step: seen.append((step, clock.now)),
        clock=clock, undecided=lambda: left,
    )  # fmt: skip
    rounds = [(step.entry, at) for step, at in seen if isinstance(step.entry, Round)]
    bursts = {entry.case_id: at for entry, at in rounds if not entry.round}
    assert len(bursts) == count
    assert min(bursts.values()) < 30
    assert max(bursts.values()) <= tables
    assert 280 < clock.now <= 300
    later = {entry.case_id for entry, _ in rounds if entry.round}
    assert later
    assert not later & decided


def test_an_interruption_closes_the_server_and_passes_on() -> None:
    def answer(request: Request) -> Reply:
        if request.task == "round":
            raise KeyboardInterrupt
        return measured(request)

    script = Script(answer)
    with pytest.raises(KeyboardInterrupt):
        run(script)
    assert script.closed == script.opened == 1


def test_a_reply_with_a_problem_is_stored_as_the_cases_failure() -> None:
    written, _ = run(Script(lambda request: Reply(problem="cannot be built: no weights")))
    assert [(entry.cause, entry.message) for entry in written] == [("exception", "cannot be built: no weights")] * 2


def test_a_round_on_an_accelerator_is_short_at_first_and_then_has_its_warming_and_a_window() -> None:
    settings = Settings(builds=3, min_run_seconds=0.08)

    def seconds(device: str, number: int = 0, task: Task[Any, Any] = ROUND, **changes: Any) -> float:
        planned = PlannedCase(case=make_case(device=device), source=source(WORKLOADS["mlp"]))
        beyond = OVERHEAD_SECONDS if device == "cpu" else HANDLED_SECONDS
        turn = Turn(task, planned, number, fresh=False)
        return turn_seconds(turn, structs.replace(settings, **changes)) - beyond

    assert [seconds("cuda"), seconds("cpu"), seconds("cpu", 1)] == pytest.approx([1.5 * 0.08] * 3)
    assert seconds("cuda", 1) == pytest.approx(2 + 1)
    assert seconds("cuda", 1, min_run_seconds=6.0) == pytest.approx(2 + 6)
    assert seconds("cuda", task=MEMORY) == pytest.approx(0.5 * 0.08)


def test_the_order_is_shuffled_and_reproducible() -> None:
    def orders(seed: int) -> list[list[str]]:
        (network,) = make_schedule(PLAN, structs.replace(SETTINGS, schedule_seed=seed))
        return [[t.planned.case.case_id for t in turns if t.task.name == "round"] for turns in network]

    assert orders(1) == orders(1) != orders(2)
    assert len({tuple(order) for order in orders(1)}) > 1


SOURCE = WorkloadSource(name="w", family="f", module="m", function="w", builtin=True)


def in_plan(workload: str, precision: str = "fp32", skip: str = "") -> PlannedCase:
    return PlannedCase(case=make_case(precision, workload=workload), source=SOURCE, skip=skip)


def plan_of(*workloads: str) -> list[PlannedCase]:
    return [in_plan(workload, precision) for workload in workloads for precision in ("fp32", "bf16_pure")]


def all_shards(plan: list[PlannedCase], count: int) -> list[tuple[list[PlannedCase], Shard]]:
    return [take_shard(plan, (number, count)) for number in range(1, count + 1)]


def test_every_case_is_in_one_shard_and_tables_stay_whole() -> None:
    plan = plan_of("a", "b", "c", "d", "e")
    found = all_shards(plan, 3)
    assert sorted(place for _, shard in found for place in shard.places) == list(range(len(plan)))
    assert {(shard.plan, shard.cases, shard.count) for _, shard in found} == {(found[0][1].plan, 10, 3)}
    for cases, shard in found:
        assert [plan[place] for place in shard.places] == cases
        assert len({table_of(one.case) for one in cases}) * 2 == len(cases)


def test_tables_of_which_nothing_can_run_are_in_the_first_shard() -> None:
    plan = [in_plan("none", skip="no loss"), *plan_of("a", "b"), in_plan("also", skip="no loss")]
    found = all_shards(plan, 2)
    assert {one.case.workload for one in found[0][0] if one.skip} == {"none", "also"}
    assert not [one for one in found[1][0] if one.skip]


@pytest.mark.parametrize("text", ["", "2", "2/", "/5", "a/5", "2/b", "2/5/7", "-1/5", "1.5/5", "²/5"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected I/N, as in --shard 2/5"):
        parse_shard(text)


def test_a_shard_is_typed_as_its_number_and_how_many_there_are() -> None:
    assert parse_shard("2/5") == parse_shard(" 2 / 5 ") == (2, 5)


@given(
    st.dictionaries(st.integers(), st.integers(min_value=0, max_value=10**6), max_size=40),
    st.integers(min_value=1, max_value=12),
)
def test_parts_hold_each_once_and_none_is_longer_than_need_be(seconds: dict[int, int], count: int) -> None:
    parts = shared_out(seconds, count)
    assert len(parts) == count
    assert sorted(one for part in parts for one in part) == sorted(seconds)
    lengths = [sum(seconds[one] for one in part) for part in parts]
    longest = max(seconds.values(), default=0)
    # Graham's bound for a list in any order: no part is longer than the mean and the longest piece together
    assert max(lengths) <= sum(seconds.values()) / count + longest + 1e-6

import dataclasses

from ampbench.drive.planning import PlannedCase
from ampbench.drive.rounds import control_case, make_schedule, request_of
from ampbench.records.case import Case, WorkloadSource
from ampbench.records.run import Settings

SETTINGS = Settings(rounds=4)


def planned(precision: str = "fp32", phase: str = "inference", device: str = "cpu", skip: str = "") -> PlannedCase:
    case = Case(
        workload="w", family="f", precision=precision, device=device, phase=phase, path="eager",
        batch_size=1, input_dtype="fp32", memory_format="contiguous",
    )  # fmt: skip
    source = WorkloadSource(name="w", family="f", module="m", function="w", builtin=True)
    return PlannedCase(case=case, source=source, skip=skip)


PLAN = [planned(name, phase) for phase in ("inference", "training") for name in ("fp32", "bf16_pure", "fp16_pure")]


def test_every_case_gets_every_round_from_another_server() -> None:
    servers = make_schedule(PLAN, SETTINGS)
    assert len(servers) == 4
    for number, tasks in enumerate(servers):
        rounds = [task for task in tasks if task.kind == "round" and not task.control]
        assert {task.round for task in rounds} == {number}
        assert len(rounds) == len(PLAN)


def test_the_order_is_shuffled_and_reproducible() -> None:
    def orders(seed: int) -> list[list[str]]:
        servers = make_schedule(PLAN, dataclasses.replace(SETTINGS, schedule_seed=seed))
        return [[t.planned.case.case_id for t in tasks if t.kind == "round"] for tasks in servers]

    assert orders(1) == orders(1) != orders(2)
    assert len({tuple(order) for order in orders(1)}) > 1


def test_one_cell_is_measured_twice_as_the_control() -> None:
    controls = [task for tasks in make_schedule(PLAN, SETTINGS) for task in tasks if task.control]
    assert len(controls) == SETTINGS.rounds
    assert {task.planned.case.precision for task in controls} == {"fp32"}
    assert control_case([planned("bf16_pure", "training")]).case.precision == "bf16_pure"
    assert control_case([planned(skip="no")]) is None


def test_passes_come_first_and_divergences_share_a_process_within_a_group() -> None:
    first = make_schedule(PLAN, SETTINGS)[0]
    passes = [task for task in first if task.kind != "round"]
    assert first[: len(passes)] == passes
    assert [task.kind for task in passes] == ["memory"] * len(PLAN) + ["divergence"] * len(PLAN)
    assert [task.fresh for task in passes] == [True] * len(PLAN) + [False] * len(PLAN)
    assert {(task.kind, task.planned.case.case_id) for task in passes} == {
        (kind, each.case.case_id) for kind in ("memory", "divergence") for each in PLAN
    }


def test_rounds_on_a_cpu_are_isolated_and_on_an_accelerator_share_a_context() -> None:
    plan = [planned(name, device=device) for device in ("cpu", "cuda") for name in ("fp32", "bf16_pure")]
    rounds = [task for task in make_schedule(plan, SETTINGS)[1] if task.kind == "round"]
    assert all(task.fresh for task in rounds if task.planned.case.device == "cpu")
    assert [task.fresh for task in rounds if task.planned.case.device == "cuda"] == [True, False]


def test_what_is_done_or_ended_or_skipped_is_not_scheduled() -> None:
    everything = [task for tasks in make_schedule(PLAN, SETTINGS) for task in tasks]
    done = {task.key for task in everything[:10]}
    ended = {PLAN[-1].case.case_id}
    left = [task for tasks in make_schedule(PLAN, SETTINGS, done, ended) for task in tasks]
    assert {task.key for task in left} == {
        task.key for task in everything if task.key not in done and task.planned.case.case_id not in ended
    }
    assert make_schedule([planned(skip="no")], SETTINGS) == []


def test_builds_are_placed_differently_in_every_round_and_for_the_control() -> None:
    tasks = [task for tasks in make_schedule(PLAN, SETTINGS) for task in tasks if task.kind == "round"]
    seeds = [request_of(task, SETTINGS, 0).placement_seed for task in tasks]
    assert len(set(seeds)) == len(seeds)

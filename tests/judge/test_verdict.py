"""What to take of a table, and why: speed, memory, what is passed over, and how far times can be trusted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ampbench.core.budget import Budget
from ampbench.core.precisions import PRECISIONS
from ampbench.core.statement import Answer, Arithmetic, Crossing, Flaw, Hint, Refusal, Statement, Undecided
from ampbench.judge import frame
from ampbench.judge.verdict import crossings, takes_of, verdicts_of
from ampbench.records.changes import Cause, Status
from ampbench.records.labels import hints_of
from ampbench.records.measured import Round, Update
from ampbench.records.run import Entry, Selection
from ampbench.result import Result
from ampbench.show.document import markdown
from ampbench.show.rows import Take
from ampbench.store import StoredRun, read_run
from tests.judge.test_looks import ADAMW, DOES_NOT, TRAINS, WELL, row, take, trained_by, training_row
from tests.stored_runs import make_case, make_divergence, make_header, make_round, write_run

FP32 = row("fp32", 10)
WRONG = {"output_rel_l2": 0.041}


def answered(found: Take) -> tuple[Any, ...]:
    """Return the code, the precision that is taken, and the one that is passed."""
    return found.statement.code, found.precision, found.passed.precision if found.passed else None


def test_the_fastest_that_is_ok_is_taken_and_marked() -> None:
    found = take(FP32, row("bf16_autocast", 4), row("bf16_pure", 3))
    assert answered(found) == (Answer.TAKE, "bf16_pure", None)
    assert [verdict.precision for verdict in found.verdicts] == ["fp32", "bf16_autocast", "bf16_pure"]
    assert [verdict.taken for verdict in found.verdicts] == [False, False, True]
    assert repr(found.taken) == "<Verdict bf16_pure inference: ok, 3.33x as fast, error 0.005 of 0.02>"
    facts = found.statement.facts
    assert (facts["than"], facts["speed"]) == ("fp32", pytest.approx(10 / 3))
    assert found.statement.subject == found.case_id == found.verdicts[-1].case_id


def test_what_is_faster_and_refused_is_named_with_its_number() -> None:
    found = take(FP32, row("bf16_autocast", 4), row("bf16_pure", 3, **WRONG))
    assert answered(found) == (Answer.TAKE, "bf16_autocast", "bf16_pure")
    assert found.statement.facts["passed_code"] is Refusal.ERROR
    assert found.passed
    assert (found.passed.number, found.passed.limit) == (0.041, 0.02)
    alone = take(FP32, row("bf16_pure", 3, **WRONG))
    assert answered(alone) == (Answer.REFUSED, "fp32", "bf16_pure")
    assert take(FP32, row("bf16_pure", 3, **WRONG), budget=Budget(output_rel_l2=0.05)).precision == "bf16_pure"


def test_what_is_smaller_and_refused_is_named_too() -> None:
    small = row("bf16_pure", 9, memory_ratio_vs_fp32=0.5, **WRONG)
    found = take(FP32, row("bf16_autocast", 4), small)
    assert answered(found) == (Answer.TAKE, "bf16_autocast", "bf16_pure")
    assert (found.statement.facts["passed_memory"], "passed_speed" in found.statement.facts) == (0.5, False)
    assert answered(take(FP32, small | {"seconds_median": 0.02})) == (Answer.UNCERTAIN, "fp32", "bf16_pure")


def test_of_what_is_faster_and_undecided_nothing_is_advised() -> None:
    rows = training_row("fp32", 10), training_row("bf16_autocast", 5)
    without = {"bf16_autocast": trained_by(recipe=None, update=None)}
    found = take(*rows, found=without)
    assert answered(found) == (Answer.UNDECIDED, None, "bf16_autocast")
    assert found.statement.facts["passed_code"] is Undecided.NO_OPTIMIZER
    slower = training_row("bf16_autocast", 12)
    assert answered(take(rows[0], slower, found=without)) == (Answer.STAY, "fp32", None)
    chance = {"bf16_pure": make_divergence(make_case(), chance_rel_l2=1.2)}
    assert answered(take(FP32, row("bf16_pure", 3), found=chance)) == (Answer.UNDECIDED, None, "bf16_pure")


@pytest.mark.parametrize(
    ("trained", "answer"),
    [(TRAINS, (Answer.TAKE, "bf16_pure", None)), (DOES_NOT, (Answer.TAKE, "bf16_autocast", "bf16_pure"))],
)
@pytest.mark.parametrize("error", [1e-2, 0.3])
def test_a_whole_training_decides_whatever_one_step_says(trained: Any, answer: tuple[Any, ...], error: float) -> None:
    rows = [training_row(name, time) for name, time in (("fp32", 10), ("bf16_autocast", 6))]
    pure = training_row("bf16_pure", 4, grad_rel_l2=error)
    assert answered(take(*rows, pure, trained={pure["case_id"]: trained})) == answer


def test_every_case_of_a_run_has_its_verdict_in_order_whatever_its_time(tmp_path: Path) -> None:
    cases = [make_case(name, phase="training") for name in ("fp32", "bf16_autocast", "bf16_pure", "bf16_master")]
    known = {"output_rel_l2": 1e-3, "grad_noise": 0.1, "recipe": ADAMW, "update": Update(**WELL)}
    found = [make_divergence(case, **known, grad_rel_l2=error)
             for case, error in zip(cases[:3], (1e-6, 1e-2, 0.3), strict=True)]  # fmt: skip
    rounds = [make_round(case, seconds) for case, seconds in zip(cases, (1e-3, 5e-3, 9e-3), strict=False)]
    stored = read_run(write_run(tmp_path, cases, *rounds, *found))
    verdicts = verdicts_of(stored, Budget())
    assert list(verdicts) == [case.case_id for case in cases]
    assert [one.status for one in verdicts.values()] == [
        Status.BASELINE, Status.OK, Status.REFUSED, Status.UNDECIDED
    ]  # fmt: skip
    pure = verdicts[cases[2].case_id]
    assert (pure.code, pure.number, pure.limit) == (Refusal.GRADIENT_ERROR, 0.3, 0.1)
    unmeasured = read_run(write_run(tmp_path / "none", cases))
    assert {one.code for one in verdicts_of(unmeasured, Budget()).values()} == {Undecided.NOT_MEASURED}
    assert takes_of(unmeasured, Budget()) == {}


def test_no_speedup_without_an_interval_is_certain() -> None:
    found = take(row("fp32", 10, None), row("bf16_pure", 3, None))
    assert answered(found) == (Answer.UNCERTAIN, "fp32", None)
    assert found.statement.facts["cause"] is Cause.FEW_ROUNDS
    assert not found.certain
    slower = take(row("fp32", 10, None), row("bf16_pure", 12, None))
    assert slower.statement.facts["cause"] is Cause.FEW_ROUNDS


def test_a_busy_machine_makes_every_speed_uncertain_and_no_result_wrong() -> None:
    found = take(FP32, row("bf16_pure", 5), row("fp16_pure", 4, **WRONG), busy=True)
    assert answered(found) == (Answer.UNCERTAIN, "fp32", "fp16_pure")
    assert found.statement.facts["cause"] is Cause.BUSY
    assert [one.status for one in found.verdicts] == [Status.BASELINE, Status.REFUSED, Status.OK]
    assert {one.speed.cause for one in found.verdicts[1:]} == {Cause.BUSY}


@pytest.mark.parametrize(("apart", "code"), [(1.9, Answer.TAKE), (2.1, Answer.UNCERTAIN)])
def test_a_control_further_apart_than_the_gain_makes_it_uncertain(apart: float, code: Answer) -> None:
    found = take(FP32, row("bf16_pure", 5), apart=apart)
    assert found.statement.code is code
    assert found.statement.facts.get("cause") == (None if code is Answer.TAKE else Cause.CONTROL)
    slower = take(FP32, row("bf16_pure", 12), apart=apart)
    assert slower.statement.facts["cause"] is Cause.CONTROL


def test_a_factor_that_no_hardware_has_is_never_taken_but_named() -> None:
    found = take(FP32, row("bf16_pure", 10 / 230.24))
    assert answered(found) == (Answer.UNCERTAIN, "fp32", None)
    assert found.statement.facts["cause"] is Cause.IMPLAUSIBLE
    beside = take(FP32, row("bf16_autocast", 5), row("bf16_pure", 10 / 230.24))
    assert answered(beside) == (Answer.TAKE, "bf16_autocast", None)
    assert (beside.statement.facts["looks"], beside.statement.facts["looks_cause"]) == ("bf16_pure", Cause.IMPLAUSIBLE)


def test_where_no_speedup_is_certain_the_best_ok_row_is_named_and_a_faster_refused_one() -> None:
    beside = row("fp32", 10, spread=0.2), row("bf16_pure", 9, spread=0.2, output_nonfinite=2)
    only = take(*beside, row("bf16_autocast", 20, spread=0.2))
    assert answered(only) == (Answer.UNCERTAIN, "fp32", "bf16_pure")
    assert "cause" not in only.statement.facts  # no further round would change what is taken
    both = take(*beside, row("bf16_autocast", 9.5, spread=0.2))
    assert (both.statement.facts["best"], both.statement.facts["cause"]) == ("bf16_autocast", Cause.OPEN)
    assert {verdict.speed.cause for verdict in both.verdicts[1:]} == {Cause.OPEN}
    assert both.statement.facts["passed_speed"] == only.statement.facts["passed_speed"] == pytest.approx(10 / 9)
    slower = take(FP32, row("bf16_pure", 20, output_nonfinite=2))
    assert answered(slower) == (Answer.STAY, "fp32", None)
    assert "best" not in slower.statement.facts


def test_a_gain_under_two_percent_is_none_but_halved_memory_is_one() -> None:
    halved = row("bf16_pure", 9.9, 0.001, memory_ratio_vs_fp32=0.52)
    found = take(row("fp32", 10, 0.001), halved)
    assert answered(found) == (Answer.SAVE, "bf16_pure", None)
    assert found.statement.facts["memory"] == 0.52
    alone = take(row("fp32", 10, 0.001), row("bf16_pure", 9.9, 0.001))
    assert answered(alone) == (Answer.STAY, "fp32", None)
    assert answered(take(row("fp32", 10, 0.001), halved | WRONG)) == (Answer.STAY, "fp32", "bf16_pure")


def test_among_precisions_of_equal_speed_the_one_furthest_from_its_limits_is_taken() -> None:
    autocast, pure = row("bf16_autocast", 3.02, output_rel_l2=4e-3), row("bf16_pure", 3.0, output_rel_l2=8e-3)
    found = take(FP32, autocast, pure)
    assert (found.precision, found.statement.facts["equal"]) == ("bf16_autocast", "bf16_pure")


def test_what_was_not_measured_is_no_choice() -> None:
    skipped = row("tf32", 5, outcome="skipped", reason="not on cpu")
    for found in (take(FP32, skipped), take(FP32)):
        assert answered(found) == (Answer.NOTHING_ELSE, None, None)
    failed = row("bf16_pure", 5, outcome="failed", seconds_median=None)
    assert answered(take(FP32, failed)) == (Answer.ALONE, "fp32", None)


def test_when_fp32_fails_the_fastest_that_is_ok_is_taken() -> None:
    failed = row("fp32", outcome="failed", reason="out of memory", seconds_median=None, output_rel_l2=None)
    found = take(failed, row("bf16_pure", 3, speedup_vs_fp32=None), row("bf16_autocast", 4, speedup_vs_fp32=None))
    assert answered(found) == (Answer.ONLY, "bf16_pure", None)
    assert answered(take(failed, row("bf16_pure", 3, **WRONG))) == (Answer.NOTHING_LEFT, None, None)


def test_without_fp32_there_is_no_advice() -> None:
    for rows in ([row("bf16_pure", 3)], [row("fp32", outcome="skipped"), row("bf16_pure", 3)]):
        assert answered(take(*rows)) == (Answer.NO_BASELINE, None, None)


def test_what_torch_ships_is_what_one_runs_today_where_it_was_measured() -> None:
    rows = [row("fp32", 10, peak_memory_bytes=1000), row("default", 8, peak_memory_bytes=1000)]
    found = take(*rows, row("bf16_autocast", 4, peak_memory_bytes=500, memory_ratio_vs_fp32=0.5))
    facts = {name: found.statement.facts[name] for name in ("than", "speed", "memory", "over_fp32")}
    assert facts == {"than": "default", "speed": 2.0, "memory": 0.5, "over_fp32": 2.5}
    slower = take(row("fp32", 10), row("default", 5), row("bf16_autocast", 7))
    assert answered(slower) == (Answer.STAY, "default", None)
    failed = row("default", 5, outcome="failed", seconds_median=None)
    assert take(FP32, failed, row("bf16_autocast", 5)).statement.facts["than"] == "fp32"
    alone = take(row("default", 8, speedup_vs_fp32=None), row("bf16_pure", 4))
    assert (alone.precision, alone.statement.facts["speed"]) == ("bf16_pure", 2.0)


def rounds_of(precision: str, *seconds: float) -> dict[str, list[Round]]:
    return {row(precision)["case_id"]: [make_round(make_case(), each, at) for at, each in enumerate(seconds)]}


def test_speeds_are_compared_round_by_round_so_that_drift_hits_both() -> None:
    rows = [row("fp32", 10, spread=0.5), row("bf16_pure", 8, spread=0.5)]
    drifting = rounds_of("fp32", 10.0, 15.0, 20.0, 12.0) | rounds_of("bf16_pure", 8.0, 12.2, 15.9, 9.5)
    assert (take(*rows).precision, take(*rows, rounds=drifting).precision) == ("fp32", "bf16_pure")


def test_the_speedups_interval_that_a_table_shows_is_the_one_that_decides(tmp_path: Path) -> None:
    cases = [make_case(name) for name in ("fp32", "bf16_autocast", "bf16_pure", "fp16_autocast")]
    times = {"fp32": (10, 15, 20, 12), "bf16_autocast": (8, 12.2, 15.9, 9.5), "bf16_pure": (7, 16, 11, 9)}
    times["fp16_autocast"] = (11, 16.4, 22.1, 13.3)
    entries: list[Entry] = [make_divergence(case, output_rel_l2=1e-3, output_nonfinite=0) for case in cases]
    entries += [
        make_round(case, 1e-3 * seconds, number)
        for case in cases
        for number, seconds in enumerate(times[case.precision])
    ]
    stored = read_run(write_run(tmp_path, cases, *entries))
    (found,) = takes_of(stored, Budget()).values()
    assert (found.precision, found.statement.facts["looks"]) == ("bf16_autocast", "bf16_pure")
    verdicts = verdicts_of(stored, Budget())
    for shown in frame.run_rows(stored)[1:]:
        verdict = verdicts[shown["case_id"]]
        ends = verdict.speed.low, verdict.speed.high
        assert ends == pytest.approx((shown["speedup_low"], shown["speedup_high"]))


def hints(found: Take, code: Hint) -> list[dict[str, Any]]:
    return [dict(hint.facts) for hint in found.hints if hint.code is code]


def arithmetic(found: Take) -> list[Statement]:
    return [replace(hint, subject="") for hint in found.hints if isinstance(hint.code, Arithmetic)]


def test_what_arithmetic_knows_of_what_is_taken_or_else_of_what_is_passed_stands_beside() -> None:
    pure = take(training_row("fp32", 10), training_row("bf16_pure", 3))
    assert arithmetic(pure) == hints_of(ADAMW, PRECISIONS["bf16_pure"], "") != []
    wrong = training_row("fp16_pure", 3, grad_rel_l2=0.5)
    for others in ([], [training_row("bf16_autocast", 4)]):
        passed = take(training_row("fp32", 10), wrong, *others)
        assert arithmetic(passed) == hints_of(ADAMW, PRECISIONS["fp16_pure"], "") != []
    assert arithmetic(take(training_row("fp32", 10), training_row("fp16_pure", 30))) == []


def launches(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return hints(take(*rows), Hint.LAUNCH_BOUND)


BUSY = {"device": "cuda"}
FEWER = "--path compiled-reduce-overhead"


@pytest.mark.parametrize(("share", "told"), [(0.69, True), (0.71, False), (None, False)])
def test_a_device_that_waits_for_launches_below_seventy_percent_is_told(share: float | None, told: bool) -> None:
    rows = [row(name, time, busy_share=share, **BUSY) for name, time in (("fp32", 10), ("bf16_autocast", 11))]
    facts = {"bound": "fp32, bf16_autocast", "helps": "no", "fewer": FEWER, "low": share}
    assert launches(*rows) == ([facts] if told else [])


def test_that_no_precision_helps_is_said_only_where_that_was_seen() -> None:
    def helps(milliseconds: float, fp32: float = 0.5) -> tuple[Any, ...]:
        low = row("bf16_autocast", milliseconds, busy_share=0.404, **BUSY)
        (facts,) = launches(row("fp32", 10, busy_share=fp32, **BUSY), low)
        return facts.get("helps"), facts["low"], facts.get("high")

    assert helps(10.5) == ("no", 0.404, 0.5)
    assert helps(9.99) == ("unseen", 0.404, 0.5), "it may be a little faster"
    assert helps(5) == (None, 0.404, 0.5), "it is faster nevertheless"
    assert helps(10.5, fp32=0.9) == (None, 0.404, None), "fp32 computes nearly all the time"
    (shipped,) = launches(*(row(name, 10, busy_share=0.3, **BUSY) for name in ("fp32", "default")))
    assert "helps" not in shipped


@pytest.mark.parametrize(
    ("device", "path", "fewer"),
    [
        ("cuda", "eager", FEWER),
        ("cuda", "traced", FEWER),
        ("cuda", "compiled", FEWER),
        ("cuda", "compiled-max-autotune-no-cudagraphs", FEWER),
        ("cuda", "compiled-reduce-overhead", None),
        ("cuda", "compiled-max-autotune", None),
        ("xpu", "eager", "--path compiled"),
        ("xpu", "compiled", None),
    ],
)
def test_nobody_whose_steps_are_launch_bound_is_told_to_do_what_they_do(
    device: str, path: str, fewer: str | None
) -> None:
    rows = [row(name, 10, busy_share=0.3, device=device, path=path) for name in ("fp32", "bf16_autocast")]
    assert [facts.get("fewer") for facts in launches(*rows)] == [fewer]


def swept(times: dict[int, tuple[float, float]], name: str = "width", **differing: Any) -> StoredRun:
    """Return a run of four rounds with the milliseconds of fp32 and bf16_autocast by the value of a swept number.

    `differing` has other sweeps with the values whose cases take as long; an error at 4096 is over the limit.
    """
    cases = [
        (make_case(precision, parameters=parameters, batch_size=size), took / 1e3)
        for value, pair in times.items()
        for other in differing.get("depth", [1])
        for parameters, size in [({"depth": other} | ({} if name == "batch_size" else {name: value}), 8)]
        for size in [value if name == "batch_size" else size]
        for precision, took in zip(("fp32", "bf16_autocast"), pair, strict=True)
    ]
    far = {case.case_id: case.parameters.get(name) == 4096 for case, _ in cases}
    return StoredRun(
        path=Path("runs/run.jsonl"),
        header=make_header(selection=Selection(sweeps={"sdpa": ["auto", "math"], name: [*times], **differing})),
        cases={case.case_id: case for case, _ in cases},
        rounds=[make_round(case, took * (1 + 0.001 * at), at) for case, took in cases for at in range(4)],
        divergence={
            case.case_id: make_divergence(case, output_rel_l2=0.5 if far[case.case_id] else 4e-3) for case, _ in cases
        },
    )


def crossed(stored: StoredRun) -> list[Statement]:
    return crossings(stored, takes_of(stored, Budget()))


@pytest.mark.parametrize(
    ("times", "code", "expected"),
    [
        ({128: (1, 1.2), 512: (4, 3), 256: (2, 2.1)}, Crossing.FROM, {"first": 256, "last": 512}),
        ({128: (2, 1), 256: (2, 1), 512: (2, 2.2)}, Crossing.UP_TO, {"first": 256, "last": 512}),
        ({128: (2, 1), 512: (4, 3)}, Crossing.EVERYWHERE, {"first": 128, "last": 512}),
        ({128: (1, 2), 512: (3, 3.01)}, Crossing.NOWHERE, {"first": 128, "last": 512}),
        ({1: (2, 1), 2: (1, 2), 4: (2, 1)}, Crossing.MIXED, {"faster": "1, 4", "slower": "2"}),
        ({1: (2, 1), 2: (1, 2), 4096: (2, 1)}, Crossing.MIXED, {"refused": "4096"}),
    ],
)
@pytest.mark.parametrize("name", ["width", "batch_size"])
def test_a_sweep_ends_with_the_value_from_which_a_precision_is_faster(
    times: dict[int, tuple[float, float]], code: Crossing, expected: dict[str, Any], name: str
) -> None:
    (found,) = crossed(swept(times, name))
    expected = {fact: value for fact, value in expected.items() if fact != "refused" or name == "width"}
    assert (found.code, found.facts["precision"], found.facts["parameter"]) == (code, "bf16_autocast", name)
    assert expected.items() <= found.facts.items()
    for place in ("first", "last") if "first" in expected else ():
        fp32, low = times[expected[place]]
        speed, least, most = (found.facts[f"{place}_{end}"] for end in ("speed", "low", "high"))
        assert speed == pytest.approx(fp32 / low)
        assert float(least) <= float(speed) <= float(most)


def test_a_value_without_a_certain_speed_decides_nothing_and_is_named() -> None:
    stored = swept({128: (1, 1.2), 256: (2, 1.5), 512: (4, 3)})
    middle = next(case for case in stored.cases.values() if case.parameters["width"] == 256)
    few = replace(
        stored, rounds=[timed for timed in stored.rounds if timed.case_id != middle.case_id or not timed.round]
    )
    (found,) = crossed(few)
    assert (found.code, found.facts["last"], found.facts["undecided"]) == (Crossing.FROM, 512, "256")
    none = replace(stored, rounds=[timed for timed in stored.rounds if not timed.round])
    assert [(found.code, found.facts["undecided"]) for found in crossed(none)] == [
        (Crossing.UNCERTAIN, "128, 256, 512")
    ]


def test_of_several_swept_numbers_the_first_crosses_for_each_value_of_the_others() -> None:
    found = crossed(swept({128: (1, 1.2), 512: (4, 3)}, depth=[1, 2]))
    assert [(each.code, each.facts["parameter"]) for each in found] == [(Crossing.FROM, "width")] * 2
    assert len({each.facts["where"] for each in found}) == 2


def test_nothing_crosses_without_a_sweep_over_numbers_or_where_every_value_is_refused() -> None:
    assert crossed(replace(swept({128: (1, 2), 512: (4, 3)}), header=make_header())) == []
    assert crossed(swept({4096: (2, 1)})) == []


def test_every_form_of_a_swept_run_shows_its_crossings() -> None:
    result = Result(swept({256: (1, 1.2), 512: (4, 3)}))
    (found,) = result.crossings
    assert found in result.statements
    text = "bf16_autocast is faster from width 512 on (measured 256: 0.83x, 512: 1.33x)"
    assert str(result).rstrip().endswith(text)
    assert markdown(result.document().sections()).rstrip().endswith(text)
    assert [[each["code"] for each in row["crossings"]] for row in result.document().data()] == [
        [],
        ["faster-from"],
    ] * 2


def test_a_table_whose_network_is_at_fault_has_no_answer_but_the_fault() -> None:
    nan = make_divergence(make_case(), output_elements=8, output_reference_nan=4, output_reference_nonfinite=4)
    found = take(FP32, row("bf16_pure", 4, output_rel_l2=None), found={"bf16_pure": nan})
    assert answered(found) == (Flaw.REFERENCE_NAN, None, None)
    assert (found.statement.facts["count"], found.statement.facts["elements"]) == (4, 8)

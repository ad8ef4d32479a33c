"""Whole runs on scripted accelerators, from the step that is timed to the verdict and the sentence.

A device that slows under load must be seen, told, and give no verdict that is not the code's; one that is steady must
not be disturbed by any of it. Each script is also judged by the fastest sample alone, as a CPU's is, to show that it
would mislead.
"""

from collections.abc import Sequence

import pytest

from ampbench.core.statement import Note
from ampbench.judge import frame
from ampbench.judge import rounds as fitness
from ampbench.judge.compare import compare
from ampbench.judge.gate import Policy, judge
from ampbench.judge.notes import statements
from ampbench.records.changes import Change, ChangeCode, ChangeStatus
from ampbench.records.measured import HEAT, POWER_CAP, Fitness, Round
from ampbench.records.run import Header
from ampbench.show.comparison import reason
from ampbench.show.wording import lines
from ampbench.store import StoredRun
from ampbench.worker.timing import time_sustained
from tests.compared_runs import Times, make_run
from tests.scripted_accelerator import FULL_HZ, Script, ScriptedAccelerator, falling
from tests.stored_runs import make_case, make_header, make_round

CASE = make_case("fp32", device="cuda")
ROUNDS = 8
JITTER = (1.0, 1.003, 0.998, 1.001, 0.999, 1.002, 0.997, 1.0)
NOTHING: frozenset[str] = frozenset()


def measured(script: Script, number: int, slower: float = 1.0) -> Round:
    """Return a round of three builds on the device as it is at this time of its script, of a step with more work."""
    device = ScriptedAccelerator(script)
    script.now += 1.0  # between two rounds the device does little
    device._next = script.now
    watched, work = device.watched(), script.work
    script.work = work * slower * JITTER[number % len(JITTER)]
    builds = []
    for build in range(3):
        builds.append(
            time_sustained(
                lambda: None,
                device,
                budget_seconds=1.0,
                max_samples=60,
                warm=build > 0,
                clock_hz=watched.clock_hz,
                clock=device.clock,
            )
        )
        device.release()
    script.work = work
    told = watched.telemetry([span for one in builds for span in one.spans])
    return make_round(
        CASE, number=number, samples=[one.samples for one in builds],
        steps_per_sample=[one.steps_per_sample for one in builds], warmup_steps=[one.warmup_steps for one in builds],
        windows=[one.windows for one in builds], burst_seconds=min(one.burst_seconds or 1.0 for one in builds),
        steady=builds[0].steady, telemetry=told, fitness=Fitness(accelerator_clock_hz=told.clock_hz),
    )  # fmt: skip


def run_of(rounds: Sequence[Round], header: Header | None = None) -> StoredRun:
    found = make_run(Times((CASE, [])), header=header)
    found.rounds[:] = rounds
    return found


def run_on(script: Script, slower: float = 1.0, **header: str) -> StoredRun:
    return run_of([measured(script, number, slower) for number in range(ROUNDS)], make_header(**header))


def of_time(baseline: StoredRun, candidate: StoredRun) -> Change:
    (found,) = [one for one in compare(baseline, candidate).findings if one.metric == "seconds_median"]
    return found


def said(run: StoredRun) -> str:
    rows = frame.run_rows(run)
    return "\n".join(lines(statements(run, rows), run.cases))


def gate_fails(baseline: StoredRun, candidate: StoredRun) -> bool:
    return bool(judge(compare(baseline, candidate), Policy()).regressions)


def hot_from(begin: float) -> Script:
    """Return a device that heat holds at three quarters of its clock from some time on."""
    return Script(
        clock_hz=falling(FULL_HZ, 0.75 * FULL_HZ, begin, begin + 2.0),
        limits=lambda now: frozenset({HEAT}) if now > begin + 1.0 else NOTHING,
    )


def test_a_steady_device_is_unfit_in_no_round_and_nothing_is_said_of_it() -> None:
    run = run_on(Script())
    assert fitness.unquiet(run) == []
    assert Note.UNSTEADY not in [note.code for note in statements(run, frame.run_rows(run))]
    found = of_time(run, run_on(Script(), run="other"))
    assert found.status not in (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)
    assert found.code is not ChangeCode.UNFIT_MACHINE


@pytest.mark.parametrize("begin", [0.0, 30.0], ids=["all through", "from its middle on"])
def test_heat_in_the_second_run_is_named_and_no_regression(begin: float) -> None:
    baseline, candidate = run_on(Script()), run_on(hot_from(begin), run="other")
    found = of_time(baseline, candidate)
    assert (found.status, found.code) == (ChangeStatus.INCONCLUSIVE, ChangeCode.UNFIT_MACHINE)
    assert "heat or a fault held the accelerator's clock down 100% of the time" in reason(found)
    assert not gate_fails(baseline, candidate)
    assert "the accelerator was not steady: heat or a fault" in said(candidate)


def test_a_lower_clock_that_nobody_explains_is_not_the_codes_and_a_larger_change_is() -> None:
    slow = 0.9 * FULL_HZ
    baseline = run_on(Script())
    found = of_time(baseline, run_on(Script(clock_hz=lambda now: slow), run="other"))
    assert (found.status, found.code) == (ChangeStatus.INCONCLUSIVE, ChangeCode.UNFIT_MACHINE)
    assert "2.00 GHz → 1.80 GHz" in reason(found)
    found = of_time(baseline, run_on(Script(clock_hz=lambda now: slow), slower=1.5, run="other"))
    assert (found.status, found.code) == (ChangeStatus.REGRESSED, ChangeCode.BEYOND_THRESHOLD)
    found = of_time(run_on(Script(clock_hz=lambda now: slow)), run_on(Script(), slower=0.5, run="other"))
    assert found.status is ChangeStatus.IMPROVED


def test_a_round_in_which_the_clock_falls_and_one_slower_than_the_others_are_each_unfit() -> None:
    steady = [measured(Script(), number) for number in range(6)]
    falls = measured(Script(clock_hz=falling(FULL_HZ, 0.85 * FULL_HZ, 3.5, 6.0)), 6)
    low = measured(Script(clock_hz=lambda now: 0.9 * FULL_HZ), 7)
    from ampbench.judge.rounds import CAUSES, MeasuredRun, unfit_rounds

    unfit = unfit_rounds(MeasuredRun.of(run_of([*steady, falls, low])))
    assert unfit.cause[:6].tolist() == [-1] * 6
    named = [CAUSES[cause].format(value) for cause, value in zip(unfit.cause[6:], unfit.value[6:], strict=True)]
    assert named[0].startswith("the accelerator's clock fell to 8")
    assert named[1] == "the accelerator's clock was at 90% of its usual one"


def test_another_process_at_work_on_the_device_makes_rounds_unfit_and_is_named() -> None:
    run = run_on(Script(others=["4711 python3 (8.00 GiB)"], other_share=0.4))
    text = said(run)
    assert "other processes used 40% of the accelerator in 8 of 8 rounds" in text
    assert "4711 python3 (8.00 GiB) used the accelerator" in text
    idle = run_on(Script(others=["4711 python3 (8.00 GiB)"]))
    assert fitness.unquiet(idle) == []
    assert "4711 python3" in said(idle)


def at_the_limit() -> Script:
    """Return a device whose power limit lowers its clock in the second after it is loaded, as any does at its limit."""
    return Script(
        clock_hz=falling(FULL_HZ, 0.85 * FULL_HZ, 1.0, 2.0),
        limits=lambda now: frozenset({POWER_CAP}) if now > 1.5 else NOTHING,
        power_watts=lambda now: 350.0 if now < 2.0 else 700.0,
    )


def test_the_power_limit_is_no_fault_and_the_fastest_sample_stands_beside_the_median() -> None:
    run = run_of([measured(at_the_limit(), number) for number in range(ROUNDS)])
    assert fitness.unquiet(run) == []
    (row,) = frame.run_rows(run)
    assert row["seconds_median"] == pytest.approx(2e6 / (0.85 * FULL_HZ), rel=0.01)
    assert row["burst_seconds"] == pytest.approx(1e-3, rel=0.01)
    assert said(run) == ""

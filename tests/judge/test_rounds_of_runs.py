"""Rounds of a run as a table, and how far the machine that they were measured on was fit."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from ampbench.judge.compare import compare
from ampbench.judge.rounds import MeasuredRun, Role, disturbed_share, grid, power_error, unfit_said, unquiet
from ampbench.records.changes import ChangeCode
from ampbench.records.measured import Fitness, Round, Telemetry
from ampbench.store import read_run
from tests.compared_runs import BF16, FP32, Times, make_run
from tests.stored_runs import make_case, make_header, make_round, write_run


def test_rounds_become_a_table_by_their_numbers_or_by_their_order():
    stored = make_run(Times((FP32, []), (BF16, [])))
    stored.rounds[:] = [make_round(FP32, 3.0, 7), make_round(BF16, 1.0, 5), make_round(FP32, 2.0, 5)]
    rounds = MeasuredRun.of(stored).rounds
    numbered = grid(rounds, rounds.seconds, Role.OWN, [1, 0], np.array([5, 7]))
    np.testing.assert_array_equal(numbered, [[1.0, np.nan], [2.0, 3.0]])
    ordered = grid(rounds, rounds.seconds, Role.OWN, [1, 0], None)
    np.testing.assert_array_equal(ordered, [[1.0, np.nan], [3.0, 2.0]])
    assert grid(rounds, rounds.seconds, Role.CONTROL, [0], None).shape == (1, 0)
    assert grid(rounds, rounds.seconds, Role.OWN, [], None).shape == (0, 0)


def test_the_bursts_of_an_accelerator_count_until_every_case_of_a_table_has_sustained_rounds():
    """A speedup of a sustained time over a burst would be of no step: a clock falls under load."""
    fp32, bf16 = (make_case(name, device="cuda") for name in ("fp32", "bf16_pure"))
    bursts = [make_round(case, 1e-3) for case in (fp32, bf16)]
    sustained = [make_round(case, 2e-3, number=1, windows=[[2e-3]]) for case in (fp32, bf16)]
    stored = make_run(Times((fp32, []), (bf16, [])))

    def seconds(*rounds: Round) -> list[float]:
        found = MeasuredRun.of(replace(stored, rounds=list(rounds)))
        assert set(found.kinds.values()) == {"in bursts" if len(rounds) < 4 else "sustained"}
        return list(found.seconds.values())

    assert seconds(*bursts) == seconds(*bursts, sustained[0]) == [1e-3, 1e-3]
    assert seconds(*bursts, *sustained) == [2e-3, 2e-3]


def test_a_burst_is_not_compared_with_sustained_rounds():
    case = make_case("fp32", device="cuda")
    burst, sustained = (make_run(Times((case, [])), header=make_header(run=name)) for name in ("burst", "sustained"))
    burst.rounds[:] = [make_round(case, 1e-3)]
    sustained.rounds[:] = [make_round(case, 2e-3, windows=[[2e-3]])]
    (found,) = [one for one in compare(burst, sustained).findings if one.metric == "seconds_median"]
    assert (found.code, found.facts) == (ChangeCode.OTHER_MACHINE, {"timing": "in bursts → sustained"})


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, 0.11),
        ({"period_seconds": None, "averaged_seconds": None}, 0.05),
        ({"window_seconds": 0.01}, 0.65),
        ({"window_seconds": None}, 0.65),
        ({"power_error_watts": None}, 0.06),
        ({"power_low_watts": None}, None),
        ({"power_watts": None}, None),
    ],
)
def test_power_is_as_uncertain_as_its_readings_and_what_they_blur_at_both_ends(changes, error):
    told = Telemetry(
        power_watts=100.0, power_low_watts=80.0, power_high_watts=140.0, power_error_watts=5.0, period_seconds=0.02,
        averaged_seconds=0.08, window_seconds=1.0,
    )  # fmt: skip
    assert power_error(structs.replace(told, **changes)) == (None if error is None else pytest.approx(error))


def test_samples_far_slower_than_the_fastest_of_their_build_are_disturbed(tmp_path):
    rounds = [
        make_round(FP32, number=0, samples=[[1.0, 1.05, 1.2, 3.0], [2.0, 2.1]]),
        make_round(FP32, number=1, samples=[[5.0]]),
    ]
    assert disturbed_share(read_run(write_run(tmp_path, [FP32], *rounds))) == pytest.approx(2 / 6)


def test_samples_longer_than_their_cpu_time_are_disturbed_even_alone(tmp_path):
    rounds = [
        make_round(FP32, samples=[[1.0]], cpu_samples=[[0.5]]),
        make_round(FP32, number=1, samples=[[1.0], [1.0, 1.05]], cpu_samples=[[0.99], [1.0, 1.0]]),
    ]
    assert disturbed_share(read_run(write_run(tmp_path, [FP32], *rounds))) == 1 / 4


def test_a_run_says_what_the_machine_did_beside_it(tmp_path):
    busy = Fitness(other_share=0.76)
    rounds = [make_round(FP32, number=number, samples=[[4.0]], cpu_samples=[[1.0]], fitness=busy) for number in (0, 1)]
    rounds.append(make_round(FP32, number=2, samples=[[1.0] * 3], cpu_samples=[[1.0] * 3], fitness=Fitness()))
    stored = read_run(write_run(tmp_path, [FP32], *rounds))
    assert unfit_said(stored) == "other processes used 76% of the CPU in 2 of 3 rounds of all cases"
    assert unquiet(stored) == [
        "other processes used 76% of the CPU in 2 of 3 rounds of all cases",
        "40% of the samples took over 1.1 times the fastest of their build, or their CPU time",
        "in 2 of 3 rounds of all cases every sample was interrupted, so CPU time is reported",
    ]
    quiet = [structs.replace(one, fitness=Fitness(other_share=0.01), samples=[[1.0]]) for one in rounds[:2]]
    assert unquiet(read_run(write_run(tmp_path / "quiet", [FP32], *quiet))) == []
    assert unquiet(read_run(write_run(tmp_path / "none", [FP32]))) == []


def test_a_round_on_an_accelerator_is_judged_by_its_launching_thread_and_not_by_the_hosts_load(tmp_path):
    on_card = structs.replace(FP32, device="cuda")
    busy_host, starved = Fitness(other_share=0.76, steal_share=0.3, load=900.0), Fitness(waited_share=0.2)
    causes = {}
    for name, fitness in (("host", busy_host), ("thread", starved)):
        rounds = [make_round(on_card, number=number, samples=[[1.0]], fitness=fitness) for number in (0, 1)]
        causes[name] = unfit_said(read_run(write_run(tmp_path / name, [on_card], *rounds)))
    assert causes["host"] == ""
    assert causes["thread"].startswith("the thread that launches kernels waited 20%")

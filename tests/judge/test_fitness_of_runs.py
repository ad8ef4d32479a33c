import pytest
from msgspec.structs import replace

from ampbench.judge.rounds import MeasuredRun, controls, disturbed_share, unfit_said, unquiet
from ampbench.records.measured import Fitness
from ampbench.store import read_run
from tests.compared_runs import Times, make_run
from tests.stored_runs import make_case, make_round, write_run

FP32, BF16 = make_case("fp32"), make_case("bf16_autocast")


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
    quiet = [replace(one, fitness=Fitness(other_share=0.01), samples=[[1.0]]) for one in rounds[:2]]
    assert unquiet(read_run(write_run(tmp_path / "quiet", [FP32], *quiet))) == []
    assert unquiet(read_run(write_run(tmp_path / "none", [FP32]))) == []


def test_a_round_on_an_accelerator_is_judged_by_its_launching_thread_and_not_by_the_hosts_load(tmp_path):
    on_card = replace(FP32, device="cuda")
    busy_host, starved = Fitness(other_share=0.76, steal_share=0.3, load=900.0), Fitness(waited_share=0.2)
    causes = {}
    for name, fitness in (("host", busy_host), ("thread", starved)):
        rounds = [make_round(on_card, number=number, samples=[[1.0]], fitness=fitness) for number in (0, 1)]
        causes[name] = unfit_said(read_run(write_run(tmp_path / name, [on_card], *rounds)))
    assert causes["host"] == ""
    assert causes["thread"].startswith("the thread that launches kernels waited 20%")


def test_a_case_that_was_measured_twice_has_its_own_rounds_beside_the_controls():
    stored = make_run(Times((FP32, [1e-3, 3e-3]), (BF16, [])))
    stored.rounds.append(make_round(FP32, 4e-3, 0, control=True))
    stored.rounds.append(make_round(FP32, 5e-3, 2, confirmation=True))
    (one,) = controls(MeasuredRun.of(stored))
    assert (one.case_id, one.own.tolist(), one.again.tolist()) == (FP32.case_id, [1e-3, 3e-3, 5e-3], [4e-3])
    assert one.ratio == pytest.approx(4 / 3)
    assert list(controls(MeasuredRun.of(make_run(Times((FP32, [1e-3])))))) == []

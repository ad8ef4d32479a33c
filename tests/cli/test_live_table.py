"""The table while a run is measured: values so far, what is decided, and how much of it fits a terminal."""

from dataclasses import replace
from pathlib import Path

from ampbench.judge.frame import run_rows
from ampbench.records.measured import Failure, Skip
from ampbench.show.results import LiveTable
from ampbench.store import StoredRun, gathered
from tests.stored_runs import make_case, make_divergence, make_header, make_memory, make_round

FP32, BF16 = make_case(), make_case("bf16_autocast")
OTHER = [make_case(workload="other"), make_case("bf16_autocast", workload="other")]


def begun(*cases, rounds=()) -> StoredRun:
    run = gathered(Path("run.jsonl"), make_header(), cases or (FP32, BF16))
    return replace(run, rounds=list(rounds))


def told(live: LiveTable, width: int = 100, height: int = 50) -> list[str]:
    return [line.plain for line in live.lines(width, height)]


def test_nothing_is_shown_before_a_round():
    live = LiveTable(begun(), run_rows)
    live.add(make_memory(FP32, 1 << 20))
    live.add(make_divergence(FP32))
    assert told(live) == []


def test_every_case_has_a_row_with_its_rounds_and_from_the_third_on_an_interval_of_its_speed():
    live = LiveTable(begun(), run_rows)
    live.add(make_divergence(BF16, output_rel_l2=5e-3))
    live.add(make_round(FP32, 2e-3))
    title, header, fp32, bf16 = told(live)[1:]
    assert title.startswith("linear_chain · inference · batch 8 · ")
    assert header.split() == ["precision", "time/step", "speed", "error", "rounds"]
    assert fp32.split() == ["fp32", "2.00", "ms", "1.00x", "1", "of", "4"]
    assert bf16.split() == ["bf16_autocast", "5.0e-03", "missing:", "not", "measured", "yet"]
    for number in range(3):
        live.add(make_round(BF16, [1e-3, 1.01e-3, 0.99e-3][number], number))
        live.add(make_round(FP32, 2e-3, number + 1))
        assert ("(" in told(live)[-1]) == (number == 2)
    assert told(live)[-1].split()[3] == "2.00x"
    assert told(live)[-1].split()[5:] == ["5.0e-03", "3", "of", "4"]


def test_what_a_run_that_is_resumed_has_measured_is_there_from_the_beginning():
    assert told(LiveTable(begun(rounds=[make_round(FP32, 2e-3)]), run_rows))[3].split()[:3] == ["fp32", "2.00", "ms"]


def test_what_was_skipped_before_has_no_row():
    run = begun()
    live = LiveTable(replace(run, skips={BF16.case_id: Skip(case_id=BF16.case_id, reason="no such kernels")}), run_rows)
    live.add(make_round(FP32))
    assert len(told(live)) == 4


def test_a_failed_case_says_why_in_its_row():
    live = LiveTable(begun(), run_rows)
    live.add(make_round(FP32))
    live.add(Failure(case_id=BF16.case_id, stage="round", cause="exception", message="RuntimeError: no"))
    assert "RuntimeError: no" in told(live)[-1]


def test_no_line_is_wider_than_the_terminal_and_no_table_higher():
    live = LiveTable(begun(FP32, BF16, *OTHER), run_rows)
    for case in (FP32, BF16, *OTHER):
        live.add(make_round(case))
    every = told(live)
    assert len(every) == 10
    assert told(live, height=11) == every
    assert told(live, height=9) == [*every[5:], "and 2 cases more"], "the table of late"
    for height in range(1, 12):
        assert len(told(live, height=height)) <= height
    assert max(map(len, told(live, width=30))) == 30

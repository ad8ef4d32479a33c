"""What the charts of trainings draw: losses, weights."""

import pytest

from ampbench.instruments.convergence.records import CONTROL, REFERENCE, Drift
from ampbench.report.material import material_of
from ampbench.show.charts import Chart
from ampbench.show.page import Part
from ampbench.store import StoredRun
from tests.report.materials import part_of
from tests.report.studied_runs import (
    BF16,
    FP16_PURE,
    FP32,
    convergence_run,
    trained,
    training,
)
from tests.stored_runs import make_case


def drawn(*runs: StoredRun) -> Part:
    """Return the part of the page that tells of `runs`."""
    part = part_of("convergence", material_of([], explanations=list(runs)))
    assert part is not None
    return part


def chart_of(part: Part, id: str) -> Chart:
    return next(chart for chart in part.charts if chart.id == id)


def test_losses_are_means_over_seeds_with_the_reach_of_those_of_fp32():
    part = drawn(convergence_run(*trained()))
    rows = part.datasets["studies-losses"]
    fp32 = [row for row in rows if row["precision"] == "fp32"]
    assert all(row["low"] <= row["loss"] <= row["high"] for row in fp32)
    assert all(row["low"] is None for row in rows if row["precision"] != "fp32")
    assert {row["precision"] for row in rows} == {"fp32", "bf16_autocast", "fp16_pure"}  # arms say nothing of losses


def test_a_training_that_ended_early_has_a_cross_at_its_last_loss_and_is_said():
    part = drawn(convergence_run(*trained()))
    ends = [row for row in part.datasets["studies-losses"] if row["end"] is not None]
    assert [row["precision"] for row in ends] == ["fp16_pure"] * 3
    assert ends[0]["end"] == pytest.approx(1.92, abs=0.02)
    assert ends[0]["seeds"].startswith("seed 0: ")


def test_one_seed_that_ends_early_takes_the_mean_along():
    seeds = [training(BF16, 0), training(BF16, 1, ended_at=9, losses=[2.0] * 9)]
    part = drawn(convergence_run(training(), *seeds, cases=(FP32, BF16)))
    known = [
        row["step"] for row in part.datasets["studies-losses"] if row["precision"] == "bf16_autocast" and row["loss"]
    ]
    assert max(known) <= 9


def test_a_loss_that_is_not_finite_breaks_the_line():
    losses = [1.0, None, 1.0]
    part = drawn(convergence_run(training(losses=losses, steps=3), cases=(FP32,)))
    assert [row["loss"] for row in part.datasets["studies-losses"]] == [1.0, None, 1.0]


def test_weights_drift_beside_what_rounding_alone_does_and_fp32_lies_on_no_log_axis():
    part = drawn(convergence_run(*trained()))
    rows = part.datasets["studies-drift"]
    assert list(dict.fromkeys(row["precision"] for row in rows)) == ["bf16_autocast", "control", "fp64"]
    assert all(row["error"] > 0 and row["step"] > 0 for row in rows)
    line = chart_of(part, "studies-drift").spec["layer"][0]
    assert "control" in line["encoding"]["strokeDash"]["condition"]["test"]
    shapes = line["encoding"]["color"]["scale"]
    assert len(set(shapes["range"])) == len(shapes["domain"]) == 3


def test_what_lies_apart_before_the_first_step_has_no_place_on_a_log_axis():
    control = training(arm=CONTROL, drift=[Drift(step=0, from_fp32=1e-8), Drift(step=1, from_fp32=1e-7)])
    part = drawn(convergence_run(training(), control, cases=(FP32,)))
    assert [row["step"] for row in part.datasets["studies-drift"]] == [1]


def test_the_line_of_fp64_is_how_far_the_weights_of_fp32_lie_from_its_own():
    reference, own = training(arm=REFERENCE), training(drift=[Drift(step=1, from_fp64=1e-7)])
    part = drawn(convergence_run(own, reference, cases=(FP32,)))
    assert [(row["precision"], row["error"]) for row in part.datasets["studies-drift"]] == [("fp64", 1e-7)]


def test_of_two_studies_of_a_workload_the_newer_is_shown_unless_it_lacks_a_precision():
    older = convergence_run(*trained(), run="older", started_at="2026-01-01T00:00:00Z")
    part = drawn(older, convergence_run(*trained()))
    assert [one.name for one in part.details] == ["digits"]
    newer = convergence_run(training(end=0.1), cases=(FP32,))
    part = drawn(older, newer)
    assert sorted(one.name for one in part.details) == ["digits · older", "digits · study-convergence"]
    older = convergence_run(training(), cases=(FP32,), run="older", started_at="2026-01-01T00:00:00Z")
    part = drawn(older, convergence_run(*trained()))
    assert [one.name for one in part.details] == ["digits"]


def test_workloads_in_which_a_precision_regressed_come_first_in_a_table_of_verdicts():
    other = make_case("fp32", workload="other", phase="training")
    found = [training(other, seed, arm) for seed in range(3) for arm in ("", CONTROL)]
    part = drawn(convergence_run(*found, *trained(), cases=(other, FP32, BF16, FP16_PURE)))
    assert [one.name for one in part.details] == ["digits", "other"]
    told = " ".join(dict(part.overview.rows)["digits"])
    assert "bf16_autocast trains as fp32 does" in told
    assert "fp16_pure does not train as fp32 does" in told
    assert part.said[0].startswith("Of 2 workloads, 1 ")


def test_a_study_without_a_training_is_told_without_charts():
    part = drawn(convergence_run(cases=(FP32,)))
    assert part.charts == []
    assert [one.name for one in part.untold] == ["digits fp32"]

"""What the charts of studies draw: losses, scores, weights, scales, gradients, scopes, ceilings."""

import math
from dataclasses import replace
from typing import Any

import pytest

from ampbench.present.charts import Chart
from ampbench.present.page import Part
from ampbench.records.run import ScalerSetting
from ampbench.records.studies import (
    CONTROL,
    MATMUL,
    REFERENCE,
    SCOPES,
    WHOLE_LOOP,
    Attained,
    Drift,
    GradientLook,
    Score,
)
from ampbench.report.material import Material, material_of
from ampbench.report.views.studies.ceilings import ceilings as ceilings_part
from ampbench.report.views.studies.convergence import convergence
from ampbench.report.views.studies.input_storage import input_storage
from ampbench.report.views.studies.scaler import scaler
from ampbench.report.views.studies.scope import scope
from ampbench.store import StoredRun
from tests.report.studied_runs import (
    BF16,
    CEILING_RUN,
    FP16,
    FP16_PURE,
    FP32,
    ceiling,
    ceilings_run,
    convergence_run,
    gradients,
    scaled,
    scaler_run,
    scalings,
    scope_run,
    scoped,
    storage_run,
    stored,
    trained,
    training,
)
from tests.stored_runs import make_case


def only(*runs: StoredRun) -> Material:
    return material_of([], explanations=list(runs))


def part_of(make: Any, *runs: StoredRun) -> Part:
    part = make(only(*runs))
    assert part is not None
    return part


def chart_of(part: Part, id: str) -> Chart:
    return next(chart for chart in part.charts if chart.id == id)


def test_losses_are_means_over_seeds_with_the_reach_of_those_of_fp32():
    part = part_of(convergence, convergence_run(*trained()))
    rows = part.datasets["studies-losses"]
    fp32 = [row for row in rows if row["precision"] == "fp32"]
    assert all(row["low"] <= row["loss"] <= row["high"] for row in fp32)
    assert all(row["low"] is None for row in rows if row["precision"] != "fp32")
    assert {row["precision"] for row in rows} == {"fp32", "bf16_autocast", "fp16_pure"}  # arms say nothing of losses


def test_a_training_that_ended_early_has_a_cross_at_its_last_loss_and_is_said():
    part = part_of(convergence, convergence_run(*trained()))
    ends = [row for row in part.datasets["studies-losses"] if row["end"] is not None]
    assert [row["precision"] for row in ends] == ["fp16_pure"] * 3
    assert ends[0]["end"] == pytest.approx(1.92, abs=0.02)
    (choice,) = chart_of(part, "studies-losses").choices
    assert "fp16_pure seed 0" in choice.alt
    assert "from step 41" in choice.alt


def test_one_seed_that_ends_early_takes_the_mean_along():
    seeds = [training(BF16, 0), training(BF16, 1, ended_at=9, losses=[2.0] * 9)]
    part = part_of(convergence, convergence_run(training(), *seeds, cases=(FP32, BF16)))
    known = [
        row["step"] for row in part.datasets["studies-losses"] if row["precision"] == "bf16_autocast" and row["loss"]
    ]
    assert max(known) <= 9


def test_a_loss_that_is_not_finite_breaks_the_line():
    losses = [1.0, None, 1.0]
    part = part_of(convergence, convergence_run(training(losses=losses, steps=3), cases=(FP32,)))
    assert [row["loss"] for row in part.datasets["studies-losses"]] == [1.0, None, 1.0]


def test_scores_show_every_seed_and_its_mean_and_the_control_beside_them():
    part = part_of(convergence, convergence_run(*trained()))
    rows = part.datasets["studies-scores"]
    assert [row["seed"] for row in rows if row["precision"] == "bf16_autocast"] == ["0", "1", "2", "mean of 3 seeds"]
    assert [row["precision"] for row in rows if row["mean"] is not None] == ["fp32", "bf16_autocast", "control", "fp64"]
    assert [row["mean"] for row in rows if row["mean"]] == [pytest.approx(331 / 360)] * 4
    seeds = [row["score"] for row in rows if row["precision"] == "bf16_autocast" and row["score"] is not None]
    assert seeds == pytest.approx([330 / 360, 331 / 360, 332 / 360])
    (choice,) = chart_of(part, "studies-scores").choices
    assert "not drawn, for want of a score that is finite: fp16_pure" in choice.alt


def test_networks_that_decide_nothing_are_scored_by_their_loss():
    found = [
        training(seed=seed, scores=[Score(step=0, loss=2.0), Score(step=300, loss=0.5 + seed)]) for seed in range(2)
    ]
    part = part_of(convergence, convergence_run(*found, cases=(FP32,)))
    assert "loss on held-out data" in chart_of(part, "studies-scores").choices[0].alt
    assert [row["mean"] for row in part.datasets["studies-scores"] if row["mean"]] == [1.0]


def test_weights_drift_beside_what_rounding_alone_does_and_fp32_lies_on_no_log_axis():
    part = part_of(convergence, convergence_run(*trained()))
    rows = part.datasets["studies-drift"]
    assert list(dict.fromkeys(row["precision"] for row in rows)) == ["bf16_autocast", "control", "fp64"]
    assert all(row["error"] > 0 and row["step"] > 0 for row in rows)
    line = chart_of(part, "studies-drift").spec["layer"][0]
    assert "control" in line["encoding"]["strokeDash"]["condition"]["test"]
    shapes = line["encoding"]["color"]["scale"]
    assert len(set(shapes["range"])) == len(shapes["domain"]) == 3


def test_what_lies_apart_before_the_first_step_has_no_place_on_a_log_axis():
    control = training(arm=CONTROL, drift=[Drift(step=0, from_fp32=1e-8), Drift(step=1, from_fp32=1e-7)])
    part = part_of(convergence, convergence_run(training(), control, cases=(FP32,)))
    assert [row["step"] for row in part.datasets["studies-drift"]] == [1]
    alt = chart_of(part, "studies-drift").alt
    assert alt.endswith(
        "Dashed is what rounding alone does: the control, which is fp32 from weights one rounding away."
    )


def test_the_line_of_fp64_is_how_far_the_weights_of_fp32_lie_from_its_own():
    reference, own = training(arm=REFERENCE), training(drift=[Drift(step=1, from_fp64=1e-7)])
    part = part_of(convergence, convergence_run(own, reference, cases=(FP32,)))
    assert [(row["precision"], row["error"]) for row in part.datasets["studies-drift"]] == [("fp64", 1e-7)]
    assert chart_of(part, "studies-drift").alt.endswith("Dashed is what rounding alone does: fp64.")


def test_nothing_is_said_of_dashes_where_no_arm_of_fp32_is_drawn():
    low = training(BF16, drift=[Drift(step=1, from_fp32=1e-3)])
    part = part_of(convergence, convergence_run(training(drift=[]), low, cases=(FP32, BF16)))
    assert "Dashed" not in chart_of(part, "studies-drift").alt


def test_of_two_studies_of_a_workload_the_newer_is_shown_unless_it_lacks_a_precision():
    older = convergence_run(*trained(), run="older", started_at="2026-01-01T00:00:00Z")
    part = part_of(convergence, older, convergence_run(*trained()))
    assert [one.name for one in part.content["cases"]] == ["digits"]
    newer = convergence_run(training(end=0.1), cases=(FP32,))
    part = part_of(convergence, older, newer)
    assert sorted(one.name for one in part.content["cases"]) == ["digits · older", "digits · study-convergence"]
    older = convergence_run(training(), cases=(FP32,), run="older", started_at="2026-01-01T00:00:00Z")
    part = part_of(convergence, older, convergence_run(*trained()))
    assert [one.name for one in part.content["cases"]] == ["digits"]


def test_workloads_in_which_a_precision_regressed_come_first_in_a_table_of_verdicts():
    other = make_case("fp32", workload="other", phase="training")
    found = [training(other, seed, arm) for seed in range(3) for arm in ("", CONTROL)]
    part = part_of(convergence, convergence_run(*found, *trained(), cases=(other, FP32, BF16, FP16_PURE)))
    assert [one.name for one in part.content["cases"]] == ["digits", "other"]
    verdicts = {row["cells"][0][0]: row["cells"][5][0] for row in part.content["rows"] if row["name"] == "digits"}
    assert verdicts["fp16_pure"] == "regressed"
    assert verdicts["bf16_autocast"] == "unchanged"
    assert "1 are shown to train as fp32 does, 1 not to: fp16_pure in digits" in part.said[0]


def test_a_study_without_a_training_is_told_without_charts():
    part = part_of(convergence, convergence_run(cases=(FP32,)))
    assert part.charts == []
    assert [one.name for one in part.content["untold"]] == ["digits fp32"]


def test_the_scale_is_drawn_where_it_moves_and_skipped_steps_are_crossed():
    part = part_of(scaler, scaler_run(*scalings()))
    rows = [row for row in part.datasets["studies-scales"] if row["series"] == "high start"]
    assert [(row["step"], row["exponent"]) for row in rows] == [
        *((step, 25.0 - step) for step in range(1, 8)),
        (100, 18.0),
    ]
    assert sum(row["skipped"] for row in rows) == 6
    constant = [row for row in part.datasets["studies-scales"] if row["series"] == "default"]
    assert [row["step"] for row in constant] == [1, 100]
    assert "high start 2^24 to 2^18, 6 steps skipped" in chart_of(part, "studies-scales").choices[0].alt


def test_each_setting_that_scales_has_its_gradients_beside_those_of_fp32_and_of_no_scaling():
    part = part_of(scaler, scaler_run(*scalings()))
    chart = chart_of(part, "studies-exponents")
    assert [one.label for one in chart.choices] == [
        "digits fp16_autocast: default",
        "digits fp16_autocast: high start",
    ]
    rows = [row for row in part.datasets["studies-exponents"] if row["case"] == "0" and row["series"]]
    assert list(dict.fromkeys(row["series"] for row in rows)) == [
        "in fp32",
        "stored in fp16, no scaling",
        "stored in fp16, scaled",
    ]
    known = gradients(-24, -14, 4000)
    drawn = sum(row["share"] for row in rows if row["series"] == "stored in fp16, no scaling")
    assert drawn == pytest.approx(1 - 4000 / known.elements)  # zeros count, and have no place
    assert f"{4000 / known.elements:.1%} are zero" in chart.choices[0].alt
    limits = [row["limit"] for row in part.datasets["studies-exponents"] if row["case"] == "0" and row["text"]]
    assert limits == [16, -14, -25]


def test_settings_without_a_scaler_alone_have_their_gradients_drawn_once():
    part = part_of(scaler, scaler_run(*scalings()[:2]))
    assert [one.label for one in chart_of(part, "studies-exponents").choices] == ["digits fp16_autocast"]
    assert "studies-scales" not in part.datasets


def test_a_setting_that_raised_is_told_without_a_chart():
    part = part_of(scaler, scaler_run(scaled(ScalerSetting(name="default"), losses=[], error="no <b>way</b>")))
    assert part.charts == []
    assert any("no <b>way</b>" in block.title for one in part.content["cases"] for block in one.blocks) or (
        "no <b>way</b>" in part.content["cases"][0].said
    )


def test_of_several_cases_those_come_first_whose_settings_fail():
    calm = make_case("fp16_autocast", workload="calm", phase="training")
    fine = [scaled(run.setting, calm, run.precision, looks=[look]) for run in scalings()[:3]
            for look in [GradientLook(step=0, scale=1.0, elements=9, nonzero=9, flushed=0, nonfinite=0)]]  # fmt: skip
    part = part_of(scaler, scaler_run(*fine, *scalings(), cases=(calm, FP16)))
    assert [one.name for one in part.content["cases"]] == ["digits fp16_autocast", "calm fp16_autocast"]
    assert part.said[0] == "Of 2 cases, 1 fails without loss scaling: digits fp16_autocast."


def test_losses_of_scopes_are_drawn_beside_those_of_fp64():
    part = part_of(scope, scope_run(scoped()))
    rows = part.datasets["studies-scope-losses"]
    assert list(dict.fromkeys(row["series"] for row in rows)) == ["fp64", *SCOPES]
    loop = [row["loss"] for row in rows if row["series"] == WHOLE_LOOP]
    fp64 = [row["loss"] for row in rows if row["series"] == "fp64"]
    assert loop[0] == fp64[0]
    assert all(here > there for here, there in zip(loop[1:], fp64[1:], strict=True))
    assert [row["error"] for row in rows if row["series"] == WHOLE_LOOP][:2] == ["0", "3.8e-02"]
    (choice,) = chart_of(part, "studies-scope-losses").choices
    assert "fp64 from 2.3 to 1.6" in choice.alt


def test_memory_that_grows_is_drawn_and_said():
    part = part_of(scope, scope_run(scoped()))
    (choice,) = chart_of(part, "studies-scope-memory").choices
    assert "whole loop 256 KiB after step 1 and 2.00 MiB after step 8" in choice.alt
    loop = [row["alive"] for row in part.datasets["studies-scope-memory"] if row["series"] == WHOLE_LOOP]
    assert loop == [(1 << 18) * step for step in range(1, 9)]
    assert "; the others nothing." in choice.alt


def test_memory_is_told_in_the_unit_of_the_most_that_is_left():
    chart = chart_of(part_of(scope, scope_run(scoped())), "studies-scope-memory")
    assert chart.spec["transform"] == [{"calculate": f"datum.alive / {1 << 20}", "as": "left"}]
    assert chart.spec["layer"][0]["encoding"]["y"]["title"] == "left after a step, MiB"


def test_memory_is_not_drawn_where_no_step_leaves_any():
    found = scoped()
    for run in found.scopes:
        run.alive_bytes[:] = [0] * len(run.alive_bytes)
    assert [chart.id for chart in part_of(scope, scope_run(found)).charts] == ["studies-scope-losses"]


def test_a_setting_looks_the_same_in_the_charts_of_losses_and_of_scales():
    part = part_of(scaler, scaler_run(*scalings()))
    looks = []
    for name in ("studies-scaler-losses", "studies-scales"):
        points = chart_of(part, name).spec["layer"][1]["encoding"]
        looks.append([dict(zip(points[one]["scale"]["domain"], points[one]["scale"]["range"], strict=True))
                      for one in ("color", "shape")])  # fmt: skip
    losses, scales = looks
    assert all(losses[place][name] == scales[place][name] for place in (0, 1) for name in ("default", "high start"))


def test_without_losses_and_memory_there_is_no_chart():
    bare = scoped(reference_losses=[])
    for run in bare.scopes:
        run.alive_bytes.clear()
        run.losses.clear()
    part = part_of(scope, scope_run(bare))
    assert part.charts == []
    assert len(part.content["cases"]) == 1


def test_the_two_situations_of_stored_inputs_are_told_apart_the_lossy_ones_first():
    other = make_case("bf16_autocast", workload="other", phase="training")
    part = part_of(input_storage, storage_run(stored(other), stored(lossy=True), cases=(other, BF16)))
    assert [(row["name"], row["cells"][0], row["cells"][6]) for row in part.content["rows"]] == [
        ("digits bf16_autocast", ["information lost"], ["others"]),
        ("other bf16_autocast", ["nothing lost"], ["the same"]),
    ]
    assert part.said[0].endswith("is given a rounded one: digits bf16_autocast.")
    assert part.said[1].endswith("only a cast is saved: other bf16_autocast.")


def test_ceilings_are_drawn_over_sizes_by_operation():
    part = part_of(ceilings_part, ceilings_run(*CEILING_RUN))
    flops, copies = (chart_of(part, name) for name in ("studies-flops", "studies-copies"))
    assert [one.label for one in flops.choices] == ["cpu: matrix products", "cpu: convolutions"]
    assert flops.choices[0].marks == ["fp32", "bf16", "fp16"]
    assert "bf16 800 GFLOP/s at 1024" in flops.choices[0].alt
    assert "fp32 20.0 GB/s at 512" in copies.choices[0].alt  # the largest copy, not the fastest
    rows = [row for row in part.datasets["studies-flops"] if row["series"] == "bf16" and row["case"] == "0"]
    assert [row["rate"] for row in rows] == pytest.approx([1e11, 4e11, 8e11])
    assert all(row["limit"] is None for row in part.datasets["studies-flops"])


def test_remarks_on_sizes_are_folded_away_and_convolutions_are_not_joined():
    found = ceiling(MATMUL, "fp32", 1e9, 2e9, notes=["4096 and larger left out"])
    part = part_of(ceilings_part, ceilings_run(found, *CEILING_RUN[4:6]))
    (detail,) = part.content["cases"]
    assert list(detail.folded) == ["Every size", "Remarks"]
    assert not any("left out" in block.title for block in detail.blocks)
    joined = {row["case"]: row["joined"] for row in part.datasets["studies-flops"]}
    assert joined == {"0": True, "1": False}


def test_the_datasheets_peaks_are_lines_where_they_are_known():
    found = [ceiling(MATMUL, dtype, 1e14, device="cuda") for dtype in ("fp32", "bf16", "fp16")]
    part = part_of(ceilings_part, ceilings_run(*found, device="NVIDIA H200"))
    lines = {row["text"]: row["limit"] for row in part.datasets["studies-flops"] if row["text"]}
    assert any(text.startswith("datasheet, bf16, fp16: ") for text in lines)
    assert all(math.isfinite(limit) and limit > 1e13 for limit in lines.values())


@pytest.mark.parametrize(("older", "newer"), [(1e9, 2e9), (2e9, 1e9)])
def test_of_two_runs_of_one_machine_the_higher_ceiling_counts_whichever_is_newer(older: float, newer: float):
    first = ceilings_run(ceiling(MATMUL, "fp32", older), run="older", started_at="2026-01-01T00:00:00Z")
    part = part_of(ceilings_part, first, ceilings_run(ceiling(MATMUL, "fp32", newer)))
    assert [row["rate"] for row in part.datasets["studies-flops"]] == [2e9]


def test_ceilings_of_other_numbers_of_threads_stand_apart():
    found = [replace(ceiling(MATMUL, "fp32", 1e9 * threads), threads=threads) for threads in (1, 2)]
    runs = [ceilings_run(one, run=f"{one.threads}") for one in found]
    part = part_of(ceilings_part, *runs)
    assert [one.name for one in part.content["cases"]] == ["cpu, 1 thread", "cpu, 2 threads"]


def test_linear_layers_are_dashed_beside_products_of_square_matrices():
    sizes = [Attained(size=size, work=2 << 30, samples=[1e-3]) for size in ("1024x1024x1024", "linear 1024x1024x1024")]
    part = part_of(ceilings_part, ceilings_run(replace(ceiling(MATMUL, "fp32", 1e9), attained=sizes)))
    assert [row["kind"] for row in part.datasets["studies-flops"]] == ["", "linear"]
    chart = chart_of(part, "studies-flops")
    assert "Dashed lines are linear layers" in chart.alt
    assert "'linear'" in chart.spec["layer"][1]["encoding"]["strokeDash"]["condition"]["test"]


def test_an_operation_that_could_not_be_measured_is_told_with_its_reason():
    part = part_of(ceilings_part, ceilings_run(ceiling(MATMUL, "fp16", error="not implemented for 'Half'")))
    assert part.charts == []
    (detail,) = part.content["cases"]
    assert any("not implemented for 'Half'" in block.title for block in detail.blocks)

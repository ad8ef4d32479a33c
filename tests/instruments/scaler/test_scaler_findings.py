"""What a study of loss scaling says of made-up trainings, and the tables below it."""

import pytest
from msgspec import structs

from ampbench.instruments.scaler.findings import (
    BEHIND,
    BROKEN,
    COLLAPSED,
    FOLLOWS,
    NEAR,
    NO_SCALER,
    RAISED,
    UNKNOWN,
    Outcome,
    outcomes,
    scaler_said,
)
from ampbench.instruments.scaler.show import COLUMNS, scaling_section
from ampbench.records.measured import Score
from ampbench.records.run import ScalerSetting
from ampbench.show.document import Section, records
from tests.instruments.scaler.scaled_trainings import CASE, OVERFLOW, STEPS, case, collapsed, falling, run, runs


def outcome(other: object) -> Outcome:
    return outcomes(runs(other))[1]  # type: ignore[arg-type]


def said(*others: object) -> str:
    return "; ".join(scaler_said(CASE, runs(*others)))  # type: ignore[arg-type]


def rows(section: Section, title: str) -> list[list[str]]:
    (block,) = [block for block in section.blocks if block.title == title]
    return [list(row) for row in block.rows]


@pytest.mark.parametrize(
    ("end", "state"), [(0.2, FOLLOWS), (0.1, FOLLOWS), (0.205, FOLLOWS), (0.215, BEHIND), (0.3, BEHIND), (1.1, BEHIND)]
)
def test_a_training_is_behind_where_its_loss_ends_well_above_fp32s(end: float, state: str) -> None:
    assert outcome(run("default", end)).state == state


def test_losses_near_zero_may_differ_by_factors() -> None:
    found = outcomes([run("fp32", 1e-5), run("default", 5e-5)])[1]
    assert (found.state, round(found.excess or 0)) == (NEAR, 4)


def test_a_loss_near_zero_that_is_above_fp32s_is_nearly_as_in_fp32_everywhere() -> None:
    made = [run("fp32", 0.01), run("no scaling", 0.6, flushed=62), run("default", 0.016)]
    told = scaler_said(CASE, made)
    assert told[0].endswith("with GradScaler's defaults it falls nearly as in fp32")
    section = scaling_section(CASE, made)
    assert rows(section, "Settings of GradScaler")[2][-3:] == ["+0.6%", "+60.0%", "nearly fp32"]
    (block,) = [block for block in section.blocks if block.title == "Settings of GradScaler"]
    assert block.note.endswith("; nearly fp32: losses near zero, which differ by less than 1.00% of fp32's fall")
    needless = scaler_said(CASE, [run("fp32", 0.01), run("no scaling", 0.016)])
    assert "gradients hardly flush and the loss falls nearly as in fp32" in needless[0]


def test_a_loss_that_rises_is_told_with_its_numbers() -> None:
    made = [run("fp32", 0.0123), run("no scaling", 2.0), run("default", 0.0123)]
    assert scaler_said(CASE, made)[0] == (
        "fp16 needs loss scaling here: without it the loss rises from 1 to 2, where in fp32 it falls to 0.0123; "
        "with GradScaler's defaults it falls as in fp32"
    )
    assert rows(scaling_section(CASE, made), "Settings of GradScaler")[1][-3:] == [">100%", "163x", BEHIND]


def test_a_loss_that_hardly_differs_has_no_sign() -> None:
    made = [run("fp32", 0.2), run("default", 0.199999)]
    assert rows(scaling_section(CASE, made), "Settings of GradScaler")[1][-3:] == ["0%", "0%", FOLLOWS]


def test_a_small_part_of_a_loss_that_hardly_falls_is_behind() -> None:
    found = outcomes([run("fp32", 0.96), run("default", 0.98)])[1]
    assert (found.state, round(found.lag or 0, 6)) == (BEHIND, 0.5)


def test_nothing_is_told_of_losses_where_fp32_does_not_learn() -> None:
    made = [run("fp32", 1.2), run("no scaling", 1.2, flushed=30)]
    assert outcomes(made)[1].state == UNKNOWN
    told = scaler_said(CASE, made)
    assert told[0] == f"in fp32 the loss does not fall in {STEPS} steps: only gradients can be judged"
    assert not any("needs" in line for line in told)


def test_a_fall_within_rounding_judges_nothing() -> None:
    first, ulp = -0.004343916, 1e-9
    made = [
        run("fp32", losses=[first - ulp * (step > STEPS / 2) for step in range(STEPS)]),
        run("default", losses=[first + ulp] * STEPS),
        run("no scaling", losses=[first] * STEPS, flushed=20),
    ]
    assert [one.state for one in outcomes(made)] == [UNKNOWN] * 3
    told = scaler_said(CASE, made)
    assert told[0] == (
        "in fp32 the loss falls by 1e-09 in 40 steps, from -0.004343916 to -0.004343917, within what rounding may "
        "change: only gradients can be judged (more --steps, or a larger learning rate, would tell)"
    )
    assert not any("as in fp32" in line or "rises" in line for line in told)


def test_a_fall_no_larger_than_the_scatter_of_steps_judges_nothing() -> None:
    made = [run("fp32", losses=[2.1 - (step % 2) / 10 - step / 4000 for step in range(STEPS)]), run("default", 2.0)]
    assert outcomes(made)[1].state == UNKNOWN
    assert "by what its steps differ anyway: only gradients can be judged" in scaler_said(CASE, made)[0]


def test_fp32_that_is_not_finite_is_said_first() -> None:
    broken = run("fp32", losses=[1.0, 0.9, None])
    told = scaler_said(CASE, [broken, run("default")])
    assert told[0] == "in fp32 itself the loss is not finite from step 3 on: losses cannot be judged"
    assert outcomes([broken])[0].state == BROKEN


def test_fp32_whose_weights_break_before_its_loss_does_says_so() -> None:
    told = scaler_said(CASE, [run("fp32", losses=[1.0, 0.9]), run("default")])
    assert told[0] == "in fp32 itself weights are not finite after step 2: losses cannot be judged"


def test_losses_of_fp32_that_are_finite_again_are_not_said_to_be_gone() -> None:
    broken = run("fp32", losses=[1.0, *[None, 0.9] * ((STEPS - 2) // 2), None])
    told = scaler_said(CASE, [broken, run("default")])
    steps = STEPS // 2
    assert told[0] == f"in fp32 itself the loss of {steps} steps, from step 2, is not finite: losses cannot be judged"


def test_without_fp32_it_is_said_that_it_is_missing() -> None:
    assert scaler_said(CASE, [run("default")])[0].startswith("fp32 was not trained")


def test_underflow_that_scaling_repairs_is_told_with_its_shares() -> None:
    told = scaler_said(CASE, runs(run("no scaling", 0.6, flushed=62), run("default", flushed=1)))
    assert told[0] == (
        "fp16 needs loss scaling here: without it the loss lacks 50.0% of what it falls by in fp32; "
        "with GradScaler's defaults it falls as in fp32"
    )
    assert told[1].startswith("gradients that fp32 has and fp16 flushes to zero: 62.0% without scaling, 1.00% with")


def test_training_that_follows_without_flushing_needs_no_scale() -> None:
    assert said(run("no scaling"), run("default")).startswith("fp16 needs no loss scaling here")


def test_gradients_that_flush_without_harm_are_told_all_the_same() -> None:
    told = said(run("no scaling", flushed=20), run("default"))
    assert told.startswith("without loss scaling 20.0% of gradients flush to zero, and yet the loss falls as in fp32")


def test_a_scale_collapses_for_a_loss_that_is_not_finite() -> None:
    told = said(run("no scaling", losses=[None], first_nonfinite=OVERFLOW), collapsed("default", None))
    assert told.startswith(
        "no loss scale helps: the loss itself is not finite, which no scale changes: aten.mm in head"
    )
    assert outcome(collapsed("default", None)).state == COLLAPSED


def test_a_scale_collapses_for_gradients_that_overflow_at_every_scale() -> None:
    told = said(collapsed("default", 1.0))
    assert "no loss scale helps: gradients overflow at every scale down to 2^-8" in told


def test_a_setting_that_fails_alone_is_named() -> None:
    told = scaler_said(CASE, runs(run("no scaling"), run("default"), run("low start", error="RuntimeError: no")))
    assert "low start: a step raised RuntimeError: no" in told
    assert outcome(run("low start", error="RuntimeError: no")).state == RAISED


def test_a_training_without_scaler_that_breaks_says_where() -> None:
    told = said(run("no scaling", losses=[1.0, None], first_nonfinite=OVERFLOW), run("default"))
    assert "without it training ends in values that are not finite after 2 steps: aten.mm in head" in told


def test_steps_skipped_at_the_start_recommend_another_init_scale() -> None:
    scales = [2.0 ** max(24 - step, 19) for step in range(STEPS)]
    told = said(run("no scaling"), run("high start", scales=scales, skipped=[0, 1, 2, 3, 4]))
    skipped = "high start: 5 of 40 steps skipped, the first 5 to come down from 2^24: init_scale=2**19 "
    assert f"{skipped}may spare these (not tried)" in told
    tried = run("yours", scales=[2.0**19] * STEPS)
    told = said(run("no scaling"), run("high start", scales=scales, skipped=[0, 1, 2, 3, 4]), tried)
    assert f"{skipped}spares these, as in yours" in told


def test_no_init_scale_is_recommended_where_every_step_was_skipped() -> None:
    steps = 6
    losses: list[float | None] = [1.0] * steps
    scales = [2.0 ** (24 - step) for step in range(steps)]
    told = said(run("high start", steps=steps, losses=losses, scales=scales, skipped=list(range(steps))))
    assert (
        "high start: 6 of 6 steps skipped from 2^24 on: no step was accepted, its scale was still falling: "
        "more --steps" in told
    )
    assert "init_scale=" not in told
    told = said(run("high start", steps=2, losses=losses[:2], scales=scales[:2], skipped=[0, 1]))
    assert "no step was accepted" in told
    told = said(run("high start", steps=steps, losses=losses, scales=scales, skipped=list(range(steps - 1))))
    assert "init_scale=2**19 may spare these (not tried)" in told


def test_steps_skipped_again_and_again_recommend_a_longer_interval() -> None:
    fast = run("fast growth", skipped=[10, 20, 30], setting=ScalerSetting(name="fast growth", growth_interval=10))
    skipped = "fast growth: 3 of 40 steps skipped; 3 later ones to find that no larger scale will do: "
    assert f"{skipped}a longer growth_interval may spare most (not tried)" in said(run("no scaling"), fast)
    assert f"{skipped}a longer growth_interval spares most, as in default" in said(fast, run("default"))
    assert "skipped" not in said(run("no scaling"), run("default", skipped=[10]))


def test_parameters_whose_gradients_overflow_are_named_by_how_often() -> None:
    told = said(run("default", nonfinite={"a.bias": 1, "b.weight": 3}))
    assert "the gradients that overflow, most often first: b.weight, a.bias" in told


def test_without_a_scaler_it_is_said_that_scaling_was_not_tried() -> None:
    assert NO_SCALER in scaler_said(case(scaler=False), runs(run("no scaling")))


def test_other_weights_at_the_start_are_said() -> None:
    assert "the weights at the start are not the same" in said(run("default", weights_digest="bb"))


def test_the_tables_have_a_row_for_each_setting() -> None:
    section = scaling_section(CASE, runs(run("no scaling", 0.6, flushed=62), run("default", nonfinite={"a": 2})))
    settings = rows(section, "Settings of GradScaler")
    assert settings[0][:7] == ["fp32", "–", "–", "–", "–", "–", "–"]
    assert settings[1] == ["no scaling", "–", "–", "62.0%", "1.0e-03", "+50.0%", "3.00x", BEHIND]
    assert settings[2] == ["default", "2^16", "0", "0%", "1.0e-03", "0%", "0%", FOLLOWS]
    assert [row[0] for row in rows(section, "Training loss")] == ["fp32", "no scaling", "default"]
    assert rows(section, "Training loss")[0][-1] == "0.2000"
    assert rows(section, "Gradients that were not finite") == [["a", "2", "default 2"]]
    bands = rows(section, "Gradients in the range of fp16")[0]
    assert bands == ["fp32", "10.0%", "10.0%", "24.0%", "56.0%", "0%", "0%"]


def test_scores_on_held_out_data_have_a_column_where_there_are_any() -> None:
    made = runs(run("default", score=Score(step=STEPS, loss=0.1, correct=90, decisions=100)), run("no scaling"))
    assert [row[-2] for row in rows(scaling_section(CASE, made), "Settings of GradScaler")] == ["–", "90.0%", "–"]


def test_everything_lists_the_histograms_by_exponent() -> None:
    made = runs(run("default"))
    titles = [block.title for block in scaling_section(CASE, made, everything=True).blocks]
    assert "Gradients of default by exponent" in titles
    assert "Gradients of default by exponent" not in [block.title for block in scaling_section(CASE, made).blocks]


def test_remarks_name_the_settings_that_made_them() -> None:
    section = scaling_section(CASE, [run("fp32", notes=["all"]), run("default", notes=["all", "ended"])])
    assert [block.title for block in section.blocks[-2:]] == ["All.", "default: ended."]


def test_machines_have_none_where_there_is_no_number() -> None:
    made = runs(run("no scaling", losses=falling(0.2)[:3]), run("default", skipped=[0, 1]))
    rows = records(COLUMNS, outcomes(made))
    assert [row["state"] for row in rows] == [FOLLOWS, BROKEN, FOLLOWS]
    assert [row["skipped_first"] is None for row in rows] == [True, True, False]
    assert [row["init_scale"] for row in rows] == [None, None, 65536.0]
    assert [row["loss"] is None for row in rows] == [False, True, False]
    assert [row["done"] for row in rows] == [STEPS, 3, STEPS]


def test_a_training_of_one_step_has_no_fall_to_judge_by() -> None:
    one = [structs.replace(made, steps=1, losses=made.losses[:1]) for made in runs(run("default"))]
    assert outcomes(one)[1].state == UNKNOWN


def test_first_steps_that_were_skipped_are_counted_where_no_loss_is_known() -> None:
    assert outcomes(runs(run("default", losses=[], skipped=[0])))[1].skipped_first == 1

"""What the charts of loss scaling draw: losses, scales, gradients."""

import pytest

from ampbench.instruments.scaler.records import GradientLook
from ampbench.present.charts import Chart
from ampbench.present.page import Part
from ampbench.records.run import ScalerSetting
from ampbench.report.material import material_of
from ampbench.store import StoredRun
from tests.report.materials import part_of
from tests.report.studied_runs import (
    FP16,
    gradients,
    scaled,
    scaler_run,
    scalings,
)
from tests.stored_runs import make_case


def drawn(*runs: StoredRun) -> Part:
    """Return the part of the page that tells of `runs`."""
    part = part_of("scaler", material_of([], explanations=list(runs)))
    assert part is not None
    return part


def chart_of(part: Part, id: str) -> Chart:
    return next(chart for chart in part.charts if chart.id == id)


def test_the_scale_is_drawn_where_it_moves_and_skipped_steps_are_crossed():
    part = drawn(scaler_run(*scalings()))
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
    part = drawn(scaler_run(*scalings()))
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
    share = sum(row["share"] for row in rows if row["series"] == "stored in fp16, no scaling")
    assert share == pytest.approx(1 - 4000 / known.elements)  # zeros count, and have no place
    assert f"{4000 / known.elements:.1%} are zero" in chart.choices[0].alt
    limits = [row["limit"] for row in part.datasets["studies-exponents"] if row["case"] == "0" and row["text"]]
    assert limits == [16, -14, -25]


def test_settings_without_a_scaler_alone_have_their_gradients_drawn_once():
    part = drawn(scaler_run(*scalings()[:2]))
    assert [one.label for one in chart_of(part, "studies-exponents").choices] == ["digits fp16_autocast"]
    assert "studies-scales" not in part.datasets


def test_a_setting_that_raised_is_told_without_a_chart():
    part = drawn(scaler_run(scaled(ScalerSetting(name="default"), losses=[], error="no <b>way</b>")))
    assert part.charts == []
    assert any("no <b>way</b>" in block.title for one in part.details for block in one.blocks) or (
        "no <b>way</b>" in part.details[0].said
    )


def test_of_several_cases_those_come_first_whose_settings_fail():
    calm = make_case("fp16_autocast", workload="calm", phase="training")
    fine = [scaled(run.setting, calm, run.precision, looks=[look]) for run in scalings()[:3]
            for look in [GradientLook(step=0, scale=1.0, elements=9, nonzero=9, flushed=0, nonfinite=0)]]  # fmt: skip
    part = drawn(scaler_run(*fine, *scalings(), cases=(calm, FP16)))
    assert [one.name for one in part.details] == ["digits fp16_autocast", "calm fp16_autocast"]
    assert part.said[0] == "Of 2 cases, 1 fails without loss scaling: digits fp16_autocast."


def test_a_setting_looks_the_same_in_the_charts_of_losses_and_of_scales():
    part = drawn(scaler_run(*scalings()))
    looks = []
    for name in ("studies-scaler-losses", "studies-scales"):
        points = chart_of(part, name).spec["layer"][1]["encoding"]
        looks.append([dict(zip(points[one]["scale"]["domain"], points[one]["scale"]["range"], strict=True))
                      for one in ("color", "shape")])  # fmt: skip
    losses, scales = looks
    assert all(losses[place][name] == scales[place][name] for place in (0, 1) for name in ("default", "high start"))

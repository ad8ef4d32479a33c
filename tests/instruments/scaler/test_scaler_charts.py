"""What the charts of loss scaling draw: losses, scales."""

from ampbench.instruments.scaler.records import GradientLook
from ampbench.records.run import ScalerSetting
from ampbench.report.material import material_of
from ampbench.show.charts import Chart
from ampbench.show.page import Part
from ampbench.store import StoredRun
from tests.report.materials import part_of
from tests.report.studied_runs import (
    FP16,
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
    assert part.said[0] == "Of 2 cases, 1 cannot train without loss scaling: digits fp16_autocast."


def test_a_setting_looks_the_same_in_the_charts_of_losses_and_of_scales():
    part = drawn(scaler_run(*scalings()))
    looks = []
    for name in ("studies-scaler-losses", "studies-scales"):
        points = chart_of(part, name).spec["layer"][1]["encoding"]
        looks.append([dict(zip(points[one]["scale"]["domain"], points[one]["scale"]["range"], strict=True))
                      for one in ("color", "shape")])  # fmt: skip
    losses, scales = looks
    assert all(losses[place][name] == scales[place][name] for place in (0, 1) for name in ("default", "high start"))

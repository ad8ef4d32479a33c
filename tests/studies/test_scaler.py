"""What trainings with settings of GradScaler come to: codes, facts and tables of made-up ones."""

import pytest
from msgspec import structs

from ampbench.core.statement import Statement
from ampbench.records.measured import Score
from ampbench.records.run import ScalerSetting
from ampbench.report.material import material_of
from ampbench.show.document import records
from ampbench.studies.scaler import COLUMNS, STUDY, Outcome, ScalerRun, Scaling, State, conclusions, outcomes, remarks
from tests.report.materials import part_of
from tests.report.studied_runs import scaler_run, scalings
from tests.studies.scaled_trainings import CASE, OVERFLOW, STEPS, case, collapsed, falling, run, runs


def outcome(other: ScalerRun) -> Outcome:
    return outcomes(runs(other))[1]


def told(*others: ScalerRun, full: ScalerRun | None = None) -> dict[tuple[str, str], Statement]:
    """What is concluded, in order, by code and setting."""
    made = [full or run("fp32"), *others]
    return {(each.code, each.subject): each for each in conclusions(CASE, made)}


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (0.2, State.FOLLOWS),
        (0.1, State.FOLLOWS),
        (0.205, State.FOLLOWS),
        (0.215, State.BEHIND),
        (0.3, State.BEHIND),
        (1.1, State.BEHIND),
    ],
)
def test_a_training_is_behind_where_its_loss_ends_well_above_fp32s(end: float, state: State) -> None:
    assert outcome(run("default", end)).state is state


def test_trainings_are_judged_by_the_loss_of_their_weights_in_fp32_where_that_is_known() -> None:
    fp32 = run("fp32", losses=[1e-3] * STEPS, exact_losses=[1e-3, 0.9988e-3])
    coarse = run("no scaling", losses=[0.99905e-3] * STEPS, exact_losses=[1e-3, 0.99881e-3])
    found = outcomes([fp32, coarse])
    assert (found[1].state, round(found[1].lag or 0, 4)) == (State.FOLLOWS, 0.0083)
    assert (Scaling.FP32_FLAT, "fp32") not in told(coarse, full=fp32)
    readouts = [structs.replace(each, exact_losses=[]) for each in (fp32, coarse)]
    assert outcomes(readouts)[1].state is State.UNKNOWN
    assert (Scaling.FP32_FLAT, "fp32") in told(readouts[1], full=readouts[0])


def test_losses_near_zero_may_differ_by_factors() -> None:
    found = outcomes([run("fp32", 1e-5), run("default", 5e-5)])[1]
    assert (found.state, round(found.excess or 0)) == (State.NEAR, 4)
    made = told(run("no scaling", 0.6, flushed=62), run("default", 0.016), full=run("fp32", 0.01))
    assert made[Scaling.NEEDED, ""].facts == {"setting": "default", "near": 1}


def test_a_small_part_of_a_loss_that_hardly_falls_is_behind() -> None:
    found = outcomes([run("fp32", 0.96), run("default", 0.98)])[1]
    assert (found.state, round(found.lag or 0, 6)) == (State.BEHIND, 0.5)


@pytest.mark.parametrize(
    "losses",
    [
        falling(1.2),
        [-0.004343916 - 1e-9 * (step > STEPS / 2) for step in range(STEPS)],
        [2.1 - (step % 2) / 10 - step / 4000 for step in range(STEPS)],
    ],
    ids=["rises", "within rounding", "within its scatter"],
)
def test_nothing_is_judged_where_fp32_does_not_learn(losses: list[float | None]) -> None:
    full = run("fp32", losses=losses)
    other = run("no scaling", losses=losses, flushed=30)
    assert outcomes([full, other])[1].state is State.UNKNOWN
    codes = [code for code, _ in told(other, full=full)]
    assert codes == [Scaling.FP32_FLAT, Scaling.FLUSHED]


@pytest.mark.parametrize(
    ("full", "code", "facts"),
    [
        (run("fp32", losses=[1.0, 0.9, None]), Scaling.FP32_BROKEN, {"step": 3}),
        (run("fp32", losses=[1.0, 0.9]), Scaling.FP32_BROKEN, {"step": 2}),
        (run("fp32", error="RuntimeError: no"), Scaling.FP32_RAISED, {"error": "RuntimeError: no"}),
    ],
)
def test_fp32_that_is_no_measure_is_told_first(full: ScalerRun, code: Scaling, facts: dict[str, object]) -> None:
    first = next(iter(told(run("default"), full=full).values()))
    assert (first.code, first.facts) == (code, facts)


def test_without_fp32_it_is_said_that_it_is_missing() -> None:
    assert next(iter(conclusions(CASE, [run("default")]))).code is Scaling.NO_FP32


def test_underflow_that_scaling_repairs_is_told_with_its_shares() -> None:
    found = told(run("no scaling", 0.6, flushed=62), run("default", flushed=1))
    assert list(found) == [
        (Scaling.NEEDED, ""), (Scaling.BEHIND, "no scaling"), (Scaling.FLUSHED, "no scaling"),
        (Scaling.FLUSHED, "default"),
    ]  # fmt: skip
    assert found[Scaling.BEHIND, "no scaling"].facts["lag"] == pytest.approx(0.5)
    assert found[Scaling.FLUSHED, "no scaling"].facts == {"flushed": 0.62, "error": 1e-3}


def test_a_loss_that_rises_is_told_with_its_numbers() -> None:
    found = told(run("no scaling", 2.0), run("default", 0.0123), full=run("fp32", 0.0123))
    assert found[Scaling.RISES, "no scaling"].facts == pytest.approx({"began": 1.0, "loss": 2.0, "fp32": 0.0123})


def test_training_that_follows_needs_no_scale_and_flushing_without_harm_is_told() -> None:
    assert told(run("no scaling"), run("default"))[Scaling.NEEDLESS, ""].facts == {}
    assert told(run("no scaling", flushed=20), run("default"))[Scaling.NEEDLESS, ""].facts == {"flushed": 0.2}


def test_a_scale_collapses_for_a_loss_that_is_not_finite_or_gradients_that_overflow_at_every_scale() -> None:
    found = told(run("no scaling", losses=[None], first_nonfinite=OVERFLOW), collapsed("default", None))
    assert found[Scaling.USELESS, ""].facts["loss"] == 1
    assert str(found[Scaling.USELESS, ""].facts["first"]).startswith("aten.mm in head")
    assert outcome(collapsed("default", None)).state is State.COLLAPSED
    assert told(collapsed("default", 1.0))[Scaling.USELESS, ""].facts["lowest"] == "2^-8"


def test_a_setting_that_fails_alone_is_named() -> None:
    found = told(run("no scaling"), run("default"), run("low start", error="RuntimeError: no"))
    assert found[Scaling.RAISED, "low start"].facts == {"error": "RuntimeError: no"}
    broken = told(run("no scaling", losses=[1.0, None], first_nonfinite=OVERFLOW), run("default"))
    assert broken[Scaling.BROKEN, "no scaling"].facts["steps"] == 2


def test_steps_skipped_at_the_start_recommend_another_init_scale() -> None:
    scales = [2.0 ** max(24 - step, 19) for step in range(STEPS)]
    high = run("high start", scales=scales, skipped=[0, 1, 2, 3, 4])
    facts = told(run("no scaling"), high)[Scaling.COMES_DOWN, "high start"].facts
    assert facts == {"first": 5, "steps": 40, "began": "2^24", "settled": "2**19"}
    tried = told(run("no scaling"), high, run("yours", scales=[2.0**19] * STEPS))
    assert tried[Scaling.COMES_DOWN, "high start"].facts["tried"] == "yours"


def test_no_init_scale_is_recommended_where_every_step_was_skipped() -> None:
    scales = [2.0 ** (24 - step) for step in range(6)]
    found = told(run("high start", steps=6, losses=[1.0] * 6, scales=scales, skipped=list(range(6))))
    assert found[Scaling.UNSETTLED, "high start"].facts == {"steps": 6, "began": "2^24"}


def test_steps_skipped_again_and_again_recommend_a_longer_interval() -> None:
    fast = run("fast growth", skipped=[10, 20, 30], setting=ScalerSetting(name="fast growth", growth_interval=10))
    key = Scaling.SKIPS_AGAIN, "fast growth"
    assert told(run("no scaling"), fast)[key].facts == {"skipped": 3, "steps": 40}
    assert told(fast, run("default"))[key].facts["tried"] == "default"
    assert not any(code is Scaling.SKIPS_AGAIN for code, _ in told(run("no scaling"), run("default", skipped=[10])))


def test_what_else_is_to_be_known_is_told() -> None:
    found = told(run("default", nonfinite={"a.bias": 1, "b.weight": 3}, weights_digest="bb"))
    assert found[Scaling.OVERFLOWING, ""].facts == {"names": "b.weight, a.bias"}
    assert (Scaling.OTHER_WEIGHTS, "") in found
    codes = [each.code for each in conclusions(case(scaler=False), runs(run("no scaling")))]
    assert Scaling.NOT_TRIED in codes


def test_the_tables_have_a_row_for_each_setting_and_none_where_there_is_no_number() -> None:
    score = Score(step=STEPS, loss=0.1, correct=90, decisions=100)
    made = runs(
        run("no scaling", losses=falling(0.2)[:3], nonfinite={"a": 2}), run("default", skipped=[0, 1], score=score)
    )
    rows = records(COLUMNS, outcomes(made))
    assert [row["state"] for row in rows] == [State.FOLLOWS, State.BROKEN, State.FOLLOWS]
    assert [row["skipped_first"] is None for row in rows] == [True, True, False]
    assert [row["init_scale"] for row in rows] == [None, None, 65536.0]
    assert [row["loss"] is None for row in rows] == [False, True, False]
    assert [row["done"] for row in rows] == [STEPS, 3, STEPS]
    assert [row["correct"] for row in rows] == [None, None, 90]
    (overflows,) = (each for each in STUDY.tables if each.key == "overflows")
    assert overflows.rows(made) == [("a", 2, "no scaling 2")]


def test_remarks_name_the_settings_that_made_them() -> None:
    assert remarks([run("fp32", notes=["all"]), run("default", notes=["all", "ended"])]) == ["all", "default: ended"]


def test_a_training_of_one_step_has_no_fall_to_judge_by() -> None:
    short = [structs.replace(made, steps=1, losses=made.losses[:1]) for made in runs(run("default"))]
    assert outcomes(short)[1].state is State.UNKNOWN
    assert outcomes(runs(run("default", losses=[], skipped=[0])))[1].skipped_first == 1


def test_the_page_has_the_case_with_both_charts() -> None:
    part = part_of("scaler", material_of([], explanations=[scaler_run(*scalings())]))
    assert part is not None
    assert [chart.id for chart in part.charts] == ["studies-scaler-losses", "studies-scales"]
    scales = [row["value"] for row in part.datasets["studies-scales"] if row["series"] == "high start"]
    assert scales[:3] == [24.0, 23.0, 22.0]

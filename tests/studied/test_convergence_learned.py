"""What trainings come to: a verdict for each precision, with its reason, and what must be said first."""

import dataclasses
from typing import Any

import pytest

from ampbench.records.studies import Drift, Score
from ampbench.store import StoredRun
from ampbench.studied.convergence import Learned, learned
from ampbench.studied.convergence_metric import metric_of, trouble
from ampbench.studied.convergence_sentences import learned_said
from ampbench.studied.convergence_verdicts import (
    CONTROL_FIRED,
    NO_BASELINE,
    NO_PAIR,
    NOT_LEARNING,
    ONE_SEED,
    SAME_START,
)
from ampbench.verdicts import Verdict
from tests.studied.planted_trainings import GOOD, STEPS, WHOLE, case_of, moved, study, training

NULL = {name: WHOLE[name] for name in ("fp32", "control", "fp64")}


def only(stored: StoredRun) -> Learned:
    (one,) = learned(stored)
    return one


def told(stored: StoredRun) -> dict[str, tuple[Verdict, str]]:
    return {row.name: (row.verdict, row.reason) for row in only(stored).judged if row.verdict is not None}


def with_losses(finals: dict[str, list[float | None]]) -> StoredRun:
    """Return a study that is judged by its loss."""
    stored = study({name: [0.5] * len(values) for name, values in finals.items()})
    for trainings, values in zip(_arms(stored), finals.values(), strict=True):
        for one, value in zip(trainings, values, strict=True):
            one.scores[:] = [Score(step=0, loss=5.0), Score(step=STEPS, loss=value)]
    return stored


def _arms(stored: StoredRun) -> list[list]:
    found: dict[tuple[str, str], list] = {}
    for rows in stored.trainings.values():
        for one in rows:
            found.setdefault((one.case_id, one.arm), []).append(one)
    return list(found.values())


def test_each_precision_gets_its_verdict_in_the_order_of_every_table():
    one = only(study(WHOLE))
    assert [row.name for row in one.rows] == [
        "fp32", "control", "fp64", "fp16_autocast", "bf16_autocast", "fp16_pure", "bf16_pure",
    ]  # fmt: skip
    assert {row.name: row.verdict for row in one.judged} == {
        "fp16_autocast": Verdict.UNCHANGED,
        "bf16_autocast": Verdict.UNCHANGED,
        "fp16_pure": Verdict.REGRESSED,
        "bf16_pure": Verdict.REGRESSED,
    }
    row = one.rows[-1]
    assert row.difference == pytest.approx(-0.015)
    assert row.low is not None
    assert row.high is not None
    assert row.low < -0.015 < row.high < 0
    assert one.rows[3].skipped_steps == 3
    assert (one.steps, one.seeds, one.metric.decisions) == (STEPS, [0, 1, 2], 800)


def test_what_to_do_is_said_first():
    said = learned_said(only(study(WHOLE)))
    assert said[0] == "fp16_autocast and bf16_autocast converge as fp32 does, within half a point of accuracy"
    assert said[1] == "fp16_pure does not converge as fp32 does: loss not finite from step 14 in 3 of 3 seeds"
    assert said[2].startswith(
        "bf16_pure does not converge as fp32 does: its accuracy is 1.50 points lower than in fp32"
    )
    assert said[3] == (
        "fp32 reaches 97.58% accuracy on held-out data, from 10.00% before training; seeds alone move that by 0.38 "
        "points (SD); rounding alone changes it by 0.10 points"
    )


def test_rounding_that_changes_no_decision_is_said_to_change_nothing():
    said = learned_said(only(study(dict.fromkeys(("fp32", "control", "fp64", "bf16_autocast"), GOOD))))
    assert said[0].startswith("bf16_autocast converges as fp32 does")
    assert said[1].endswith("seeds alone move that by 0.38 points (SD); rounding alone changes nothing")


def test_a_training_that_gives_up_in_one_seed_regresses():
    verdict, reason = told(study(NULL | {"fp16_pure": [0.975, None, 0.97]}))["fp16_pure"]
    assert (verdict, reason) == (Verdict.REGRESSED, "loss not finite from step 14 in 1 of 3 seeds")


def test_a_training_that_raises_regresses_with_what_it_raised():
    stored = study(NULL | {"bf16_pure": GOOD})
    rows = stored.trainings[case_of("bf16_pure").case_id]
    rows[:] = [dataclasses.replace(one, error="RuntimeError: no bf16 here", scores=one.scores[:1]) for one in rows]
    assert told(stored)["bf16_pure"] == (Verdict.REGRESSED, "raised RuntimeError: no bf16 here in 3 of 3 seeds")


def test_trainings_that_give_up_at_several_steps_name_the_earliest():
    stored = study(NULL | {"fp16_pure": [None, None, None]})
    rows = stored.trainings[case_of("fp16_pure").case_id]
    rows[:] = [
        dataclasses.replace(one, ended_at=at, losses=[1.0, None, *[1.0] * (at - 2), None])
        for one, at in zip(rows, (20, 9, 11), strict=True)
    ]
    assert told(stored)["fp16_pure"][1] == "loss not finite from step 9 at the earliest in 3 of 3 seeds"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"losses": [2.0, None, None], "every": 10}, "loss not finite from step 10"),
        ({"losses": [2.0, 1.0]}, "weights not finite from step 14"),
        ({"losses": [2.0], "scaler_scale": 2.0**-34}, "gradients not finite at any loss scale, given up at step 14"),
        ({"losses": [None], "scaler_scale": 2.0**-34}, "loss not finite from step 0"),
        ({"error": "ValueError: no"}, "raised ValueError: no"),
        ({"ended_at": None}, "not scored at the end"),
    ],
)
def test_what_broke_a_training_off_is_said(changes: dict[str, Any], said: str):
    one = dataclasses.replace(training(case_of("fp16_autocast"), None), **changes)
    assert trouble(one, metric_of([one])) == said


def test_one_seed_gives_no_verdict_unless_it_gave_up():
    first = {name: values[:1] for name, values in (NULL | {"bf16_pure": [0.5], "fp16_pure": [None]}).items()}
    found = told(study(first, seeds=1))
    assert found["bf16_pure"] == (Verdict.INCONCLUSIVE, ONE_SEED)
    assert found["fp16_pure"][0] is Verdict.REGRESSED


def test_seeds_that_change_nothing_are_one_training():
    found = told(study(NULL | {"bf16_pure": GOOD}, weights_digest="same", inputs_digest="same"))
    assert found["bf16_pure"] == (Verdict.INCONCLUSIVE, SAME_START)


def test_the_same_weights_with_other_batches_are_remarked_on():
    one = only(study(WHOLE, weights_digest="same"))
    assert "the weights are the same from every seed" in one.remarks
    assert one.judged[0].verdict is Verdict.UNCHANGED


@pytest.mark.parametrize(("what", "said"), [("inputs_digest", "batches"), ("weights_digest", "weights")])
def test_other_batches_or_weights_than_those_of_fp32_cannot_be_compared(what: str, said: str):
    stored = study(NULL | {"bf16_pure": moved([-20, -20, -20])})
    rows = stored.trainings[case_of("bf16_pure").case_id]
    rows[1] = dataclasses.replace(rows[1], **{what: "other"})
    verdict, reason = told(stored)["bf16_pure"]
    assert verdict is Verdict.INCOMPARABLE
    assert said in reason
    assert only(stored).judged[0].difference is None


def test_fp32_that_does_not_learn_is_said_first_and_nothing_is_concluded():
    stored = study({"fp32": [0.1] * 3, "control": [0.1] * 3, "bf16_pure": [0.05] * 3, "fp16_pure": [None] * 3})
    one = only(stored)
    assert one.learns is False
    assert learned_said(one)[0].startswith("fp32 itself does not learn: it reaches 10.00% accuracy")
    found = told(stored)
    assert found["bf16_pure"] == (Verdict.INCONCLUSIVE, NOT_LEARNING)
    assert found["fp16_pure"][0] is Verdict.REGRESSED


def test_a_control_that_differs_takes_every_verdict():
    one = only(study(NULL | {"control": moved([-20, -21, -19]), "bf16_pure": moved([-20, -20, -21])}))
    assert (one.judged[0].verdict, one.judged[0].reason) == (Verdict.INCONCLUSIVE, CONTROL_FIRED)
    assert any(remark.startswith("no verdict is given") for remark in one.remarks)


def test_fp64_that_differs_is_remarked_on_and_verdicts_stay():
    one = only(study(NULL | {"fp64": moved([10, 11, 12]), "bf16_pure": GOOD, "fp16_pure": [None] * 3}))
    assert any(remark.startswith("fp64 ends elsewhere than fp32: its accuracy is 1.38") for remark in one.remarks)
    assert [row.verdict for row in one.judged] == [Verdict.REGRESSED, Verdict.UNCHANGED]


def test_without_fp32_nothing_can_be_compared():
    assert told(study({"bf16_pure": GOOD}))["bf16_pure"] == (Verdict.INCOMPARABLE, NO_BASELINE)


def test_seeds_that_fp32_did_not_end_are_left_out():
    stored = study(NULL | {"fp32": [0.97, None, None], "bf16_pure": [None, 0.97, 0.97]})
    assert told(stored)["bf16_pure"][0] is Verdict.REGRESSED
    assert "fp32 itself: loss not finite from step 14 in 2 of 3 seeds" in only(stored).remarks
    stored = study(NULL | {"fp32": [None, None, None], "bf16_pure": GOOD})
    assert told(stored)["bf16_pure"] == (Verdict.INCONCLUSIVE, NO_PAIR)


def test_trainings_that_are_missing_are_remarked_on():
    one = only(study(NULL | {"bf16_pure": GOOD[:2]}))
    assert "not all of 3 seeds were trained in bf16_pure" in one.remarks


def test_losses_decide_where_nothing_is_classified_and_less_is_better():
    stored = with_losses({
        "fp32": [2.0, 2.04, 1.96], "control": [2.002, 2.038, 1.96], "fp64": [1.998, 2.04, 1.962],
        "bf16_autocast": [2.002, 2.042, 1.958], "fp16_pure": [None, 2.0, 2.0], "bf16_pure": [2.2, 2.24, 2.18],
    })  # fmt: skip
    one = only(stored)
    rows = {row.name: row for row in one.judged}
    assert {name: row.verdict for name, row in rows.items()} == {
        "bf16_autocast": Verdict.UNCHANGED, "fp16_pure": Verdict.REGRESSED, "bf16_pure": Verdict.REGRESSED,
    }  # fmt: skip
    assert rows["fp16_pure"].reason == "held-out loss not finite at the end in 1 of 3 seeds"
    assert rows["bf16_pure"].difference == pytest.approx(0.1033, abs=1e-4)
    assert rows["bf16_pure"].reason.startswith("its loss is 10.33% higher than in fp32")
    assert learned_said(one)[-1].startswith("fp32 reaches a loss on held-out data of 2, from 5 before training")


def test_weights_are_as_far_as_the_median_seed():
    stored = study(NULL | {"bf16_pure": GOOD})
    rows = stored.trainings[case_of("bf16_pure").case_id]
    for one, far in zip(rows, (0.1, 0.2, 0.9), strict=True):
        one.drift[-1] = Drift(step=STEPS, from_fp32=far, from_fp64=2 * far)
    row = only(stored).judged[0]
    assert (row.from_fp32, row.from_fp64) == (0.2, 0.4)


def test_a_selection_shows_its_rows_beside_fp32_with_the_verdicts_of_all():
    stored = study(WHOLE)
    (one,) = learned(stored, [case_of("bf16_pure").case_id])
    assert [row.name for row in one.rows] == ["fp32", "control", "fp64", "bf16_pure"]
    assert one.rows[-1] == only(stored).rows[-1]
    assert learned(stored, []) == []


def test_workloads_and_devices_are_told_apart():
    stored = study(WHOLE)
    other = case_of("fp32", workload="characters")
    stored.cases[other.case_id] = other
    stored.trainings[other.case_id] = [training(other, 0.6)]
    assert [one.workload.partition("[")[0] for one in learned(stored)] == ["digits", "characters"]
    assert learned_said(learned(stored)[1])[0] == "only fp32 was trained: there is no precision to judge"

"""What trainings come to: how each precision learned, and with what verdict.

And what stored trainings say of the cases of a run that measured.
"""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import ampbench
from ampbench.core.statement import Refusal, Undecided
from ampbench.records.changes import ChangeStatus, Evidence, Status
from ampbench.records.kinds import TRAINING
from ampbench.records.measured import Score
from ampbench.store import StoredRun
from ampbench.studies.training import (
    Learned,
    Learns,
    Trained,
    Training,
    Trouble,
    conclusions,
    gradients,
    learned,
    metrics_of,
    trained_cases,
    trouble,
)
from tests.stored_runs import COMPLETE, RUN, make_divergence, make_header, make_round, write_run
from tests.studies.planted_trainings import GOOD, STEPS, WHOLE, case_of, fits, moved, scaled, study, training

NULL = {name: WHOLE[name] for name in ("fp32", "control", "fp64")}


def only(stored: StoredRun) -> Learned:
    (one,) = learned([stored])
    return one


def told(stored: StoredRun) -> dict[str, tuple[ChangeStatus | None, list[str]]]:
    """The verdicts on precisions, with the codes of their reasons."""
    return {row.name: (row.first.verdict, [each.code for each in row.first.why]) for row in only(stored).judged}


def codes(one: Learned) -> list[tuple[str, str]]:
    return [(each.code, each.subject) for each in conclusions(None, one)]


def facts(one: Learned, code: Learns, subject: str | None = None) -> dict[str, Any]:
    """The facts of the first statement of a code."""
    found = (each for each in conclusions(None, one) if each.code is code and subject in (None, each.subject))
    return dict(next(found).facts)


def with_losses(finals: dict[str, list[float | None]]) -> StoredRun:
    """Return a study that is judged by its loss."""
    stored = study({name: [0.5] * len(values) for name, values in finals.items()})
    for trainings, values in zip(_arms(stored), finals.values(), strict=True):
        for one, value in zip(trainings, values, strict=True):
            one.scores[:] = [Score(step=0, loss=5.0), Score(step=STEPS, loss=value)]
    return stored


def _arms(stored: StoredRun) -> list[list]:
    found: dict[tuple[str, str], list] = {}
    for rows in stored.several_of(Training).values():
        for one in rows:
            found.setdefault((one.case_id, one.arm), []).append(one)
    return list(found.values())


def test_each_precision_gets_its_verdict_in_the_order_of_every_table():
    one = only(study(WHOLE))
    assert [row.name for row in one.rows] == [
        "fp32", "control", "fp64", "fp16_autocast", "bf16_autocast", "fp16_pure", "bf16_pure",
    ]  # fmt: skip
    assert {row.name: row.first.verdict for row in one.judged} == {
        "fp16_autocast": ChangeStatus.UNCHANGED,
        "bf16_autocast": ChangeStatus.UNCHANGED,
        "fp16_pure": ChangeStatus.REGRESSED,
        "bf16_pure": ChangeStatus.REGRESSED,
    }
    row = one.rows[-1]
    assert row.first.difference == pytest.approx(-0.015)
    assert row.first.low is not None
    assert row.first.high is not None
    assert row.first.low < -0.015 < row.first.high < 0
    assert one.metric.decisions == 800
    row = next(row for row in gradients(one) if row["precision"] == "fp16_autocast")
    assert row["skipped_steps"] == 3


def test_what_to_do_is_said_first():
    one = only(study(WHOLE))
    both = "fp16_autocast and bf16_autocast"
    assert codes(one) == [
        (Learns.TRAINS, both), (Learns.WITHIN, both), (Learns.WITHIN, both),
        (Learns.FAILS, "fp16_pure"), (Learns.BROKE, "fp16_pure"),
        (Learns.FAILS, "bf16_pure"), (Learns.APART, "bf16_pure"), (Learns.WITHIN, "bf16_pure"),
    ]  # fmt: skip
    assert facts(one, Learns.WITHIN) == pytest.approx(
        {"metric": "accuracy", "margin": 0.5, "unit": " points", "count": 2}
    )


def test_a_training_that_raises_regresses_with_what_it_raised():
    stored = study(NULL | {"bf16_pure": GOOD})
    rows = stored.several_of(Training)[case_of("bf16_pure").case_id]
    rows[:] = [structs.replace(one, error="RuntimeError: no bf16 here", scores=one.scores[:1]) for one in rows]
    broke = facts(only(stored), Learns.BROKE)
    assert (broke["what"], broke["error"], broke["seeds"]) == (Trouble.RAISED, "RuntimeError: no bf16 here", 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"losses": [2.0, None, None], "every": 10}, (Trouble.LOSS, 11)),
        ({"losses": [2.0, 1.0], "scales": []}, (Trouble.GRADIENTS, 15)),
        ({"losses": [None], "scales": [(0, 2.0**-34)]}, (Trouble.LOSS, 1)),
        ({"error": "ValueError: no"}, (Trouble.RAISED, None)),
        ({"ended_at": None}, (Trouble.LOSS, STEPS)),
    ],
)
def test_what_broke_a_training_off_is_said(changes: dict[str, Any], said: tuple[Trouble, int | None]):
    one = structs.replace(training(case_of("fp16_autocast"), None), **changes)
    assert trouble(one, metrics_of([one])[0]) == said


def test_one_seed_gives_no_verdict_unless_it_gave_up():
    first = {name: values[:1] for name, values in (NULL | {"bf16_pure": [0.5], "fp16_pure": [None]}).items()}
    found = told(study(first, seeds=1))
    assert found["bf16_pure"] == (ChangeStatus.INCONCLUSIVE, [Learns.ONE_START])
    assert found["fp16_pure"][0] is ChangeStatus.REGRESSED


SKIPPING = [(step, 2.0**-step) for step in range(STEPS + 1)]
"""A loss scale that every step lowers."""


def overflowed(stored: StoredRun, precision: str, **changes: Any) -> None:
    """Have a classifier's trainings end with outputs that are not finite, in which some decisions still are right."""
    rows = stored.several_of(Training)[case_of(precision).case_id]
    scores = [Score(step=step, loss=None, correct=80, decisions=800) for step in (0, STEPS)]
    rows[:] = [structs.replace(one, scores=scores, **changes) for one in rows]


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("digests", [{}, {"weights_digest": "same", "inputs_digest": "same"}])
def test_a_classifier_whose_loss_is_not_finite_at_the_end_regresses(seeds: int, digests: dict[str, str]):
    stored = study({name: values[:seeds] for name, values in (NULL | {"fp16_autocast": GOOD}).items()}, **digests)
    overflowed(stored, "fp16_autocast")
    assert told(stored)["fp16_autocast"] == (ChangeStatus.REGRESSED, [Learns.BROKE])
    assert facts(only(stored), Learns.BROKE)["what"] is Trouble.LOSS
    assert only(stored).rows[-1].first.mean is None
    overflowed(stored, "fp16_autocast", scales=SKIPPING)
    assert facts(only(stored), Learns.BROKE)["what"] is Trouble.GRADIENTS


def ending(stored: StoredRun, precision: str, *ends: float, begin: float = 2.3, arm: str = "") -> StoredRun:
    """Return the study with training losses of a precision that end there, by seed; fp32's end at 0.1."""
    rows = stored.several_of(Training)[case_of(precision).case_id]
    own = iter(ends)
    rows[:] = [structs.replace(one, fits=fits(next(own), begin)) if one.arm == arm else one for one in rows]
    return stored


def with_ends(*ends: float) -> StoredRun:
    return ending(study(NULL | {"bf16_pure": GOOD}), "bf16_pure", *ends)


def test_a_training_loss_that_ends_worse_at_the_same_score_is_no_training_as_in_fp32():
    one = only(with_ends(0.14, 0.15, 0.13))
    (row,) = one.judged
    assert (row.first.verdict, row.fit.verdict) == (ChangeStatus.UNCHANGED, ChangeStatus.REGRESSED)
    assert row.trains is False
    assert row.fit.difference == pytest.approx(0.4)
    assert row.fit.low < 0.4 < row.fit.high
    assert [code for code, _ in codes(one)[:3]] == [Learns.FAILS, Learns.APART, Learns.WITHIN]
    assert facts(one, Learns.APART)["by"] == pytest.approx(40)


def test_fp32_that_does_not_learn_is_said_first_and_nothing_is_concluded():
    stored = study({"fp32": [0.1] * 3, "control": [0.1] * 3, "bf16_pure": [0.05] * 3, "fp16_pure": [None] * 3})
    one = only(stored)
    assert one.metric.learns is False
    assert codes(one)[:3] == [(Learns.FLAT, "fp32"), (Learns.FAILS, "fp16_pure"), (Learns.BROKE, "fp16_pure")]
    assert facts(one, Learns.FLAT) == pytest.approx({"metric": "accuracy", "value": 0.1, "before": 0.1, "learns": 0})
    found = told(stored)
    assert found["bf16_pure"] == (ChangeStatus.INCONCLUSIVE, [])
    assert found["fp16_pure"][0] is ChangeStatus.REGRESSED


def test_what_is_not_decided_is_inconclusive_and_how_many_seeds_would_decide_is_told():
    one = only(study(NULL | {"bf16_pure": moved([3, -3, -8])}))
    assert [code for code, _ in codes(one)[:3]] == [Learns.OPEN, Learns.APART, Learns.SEEDS]
    assert facts(one, Learns.APART)["by"] == pytest.approx(1 / 3)
    one = only(study(NULL | {"bf16_pure": GOOD[:1], "fp16_pure": GOOD[:1]}))
    assert codes(one)[:2] == [(code, "fp16_pure and bf16_pure") for code in (Learns.OPEN, Learns.ONE_START)]


def with_falls(before: float, finals: dict[str, list[float | None]]) -> StoredRun:
    """Return a study that is judged by its loss, which was `before` at first."""
    stored = with_losses(finals)
    for trainings in _arms(stored):
        for one in trainings:
            one.scores[0] = Score(step=0, loss=before)
    return stored


HARDLY = {
    "fp32": [4.156, 4.157, 4.155], "control": [4.156, 4.1571, 4.155], "fp64": [4.1561, 4.157, 4.155],
    "bf16_autocast": [4.1561, 4.1571, 4.1551], "bf16_pure": [4.180, 4.181, 4.179],
}  # fmt: skip


@pytest.mark.parametrize(
    ("before", "margin", "hardly"), [(4.19, 0.0008, True), (4.3, 0.0035, False), (4.6, 0.01, False), (40, 0.01, False)]
)
def test_the_margin_of_a_loss_is_one_percent_of_it_at_most(before: float, margin: float, hardly: bool):
    one = only(with_falls(before, HARDLY))
    assert one.metric.margin == pytest.approx(margin, rel=0.05)
    assert ((Learns.FLAT, "fp32") in codes(one)) is hardly


BF16 = case_of("bf16_pure")


def measured(weights: str = "weights0", **header: object) -> StoredRun:
    """Return a run that measured the case that is trained, from weights of this digest."""
    stored = StoredRun(path=BF16.case_id, header=make_header(**header))  # type: ignore[arg-type]
    stored.cases[BF16.case_id] = BF16
    stored.divergence[BF16.case_id] = make_divergence(BF16, weights_digest=weights)
    return stored


def test_a_case_that_trains_as_fp32_does_is_known_by_its_study():
    assert trained_cases(measured(), [study(NULL | {"bf16_pure": GOOD})]) == {
        BF16.case_id: Trained(trains=True, study="study 1f9a3c, 300 steps from 3 seeds")
    }


def test_a_study_in_the_folder_replaces_the_verdict_of_one_step_where_runs_are_shown(tmp_path: Path):
    rounds = [make_round(case, weights_digest="weights0") for case in (case_of("fp32"), BF16)]
    divergence = measured().divergence[BF16.case_id]
    path = write_run(tmp_path, [case_of("fp32"), BF16], *rounds, divergence, COMPLETE)
    before = ampbench.open(path).verdicts[1]
    assert (before.status, before.code) == (Status.UNDECIDED, Undecided.NO_OPTIMIZER)
    trained = study(NULL | {"bf16_pure": moved([-20, -21, -19])})
    entries = [one for rows in trained.several_of(Training).values() for one in rows]
    write_run(
        tmp_path, [*trained.cases.values()], *entries, COMPLETE, explains=TRAINING, run=f"{RUN}0", asked=trained.asked
    )
    after = ampbench.open(path)
    assert (after.verdicts[1].status, after.verdicts[1].evidence) == (Status.REFUSED, Evidence.TRAINED)
    assert after.verdicts[1].number == pytest.approx(0.025)
    assert (ampbench.load(path)["verdict_code"] == Refusal.TRAINS_WORSE).tolist() == [False, True]


def test_other_weights_another_machine_and_another_torch_say_nothing():
    stored = study(NULL | {"bf16_pure": GOOD})
    assert trained_cases(measured("other"), [stored]) == {}
    for name in ("host", "torch_version"):
        environment = structs.replace(stored.header.environment, **{name: "other"})
        assert trained_cases(measured(environment=environment), [stored]) == {}


def test_a_scale_is_needed_where_only_trainings_with_one_end_as_fp32_does():
    one = only(scaled({"fp32": 0.2, "no scaling": 0.6, "low start": 0.2, "default": 0.2}))
    assert codes(one)[0] == (Learns.NEEDED, "")
    assert facts(one, Learns.NEEDED) == {"setting": "default"}
    assert facts(one, Learns.APART, "no scaling")["by"] == pytest.approx(200, rel=0.01)
    row = next(row for row in gradients(one) if row["precision"] == "no scaling")
    assert (row["flushed_share"], row["grad_rel_l2"]) == (pytest.approx(0.4), 1e-3)

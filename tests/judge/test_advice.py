"""Advice from hand-made rows: who wins, who is refused, and what is said of it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ampbench.base.budget import Budget
from ampbench.base.precisions import PRECISIONS
from ampbench.base.statement import Refusal, state
from ampbench.base.units import times
from ampbench.instruments.convergence.learning import Trained
from ampbench.instruments.ranges.arithmetic import remark_line
from ampbench.judge import frame
from ampbench.judge.advice import Advice, Trust, across_tables, advise, advise_run
from ampbench.judge.notes import sweep_notes
from ampbench.judge.objections import Objection, run_objections
from ampbench.judge.rows import grouped
from ampbench.records.measured import Divergence, OptimizerGroup, Recipe, Round
from ampbench.records.run import Entry, ScalerSetting
from ampbench.store import StoredRun, read_run
from tests.stored_runs import make_case, make_divergence, make_header, make_round, write_run

BUDGET = Budget()
NO_LOSS: dict[str, Any] = {"loss": None, "grad_elements": 8}
FP32S_LOSS = "the loss is not finite in fp32 already, though finite in fp64: the network leaves fp32's range"


def row(precision: str, milliseconds: float, spread: float | None = 0.01, **columns: Any) -> dict[str, Any]:
    """A row whose interval is `spread` wide on either side; 10 ms is fp32's time."""
    phase = columns.get("phase", "inference")
    return {
        "case_id": f"net/b8/{precision}/cpu/{phase}/eager",
        "workload": "net",
        "parameters": "depth=3",
        "batch_size": 8,
        "memory_format": "contiguous",
        "device": "cpu",
        "phase": phase,
        "path": "eager",
        "precision": precision,
        "outcome": "ok",
        "reason": None,
        "seconds_median": milliseconds / 1e3,
        "seconds_low": None if spread is None else milliseconds / 1e3 * (1 - spread),
        "seconds_high": None if spread is None else milliseconds / 1e3 * (1 + spread),
        "speedup_vs_fp32": 10.0 / milliseconds,
        "memory_ratio_vs_fp32": 1.0,
        "output_nonfinite": 0,
        "output_not_finite": None,
        "grad_not_finite": None,
        "reference_dtype": "fp64",
        "output_rel_l2": 5e-3,
        "argmax_agreement": None,
        "grad_rel_l2": 1e-2 if phase == "training" else None,
        "grad_flushed_share": 0.0 if phase == "training" else None,
    } | columns


def divergence(precision: str, phase: str = "inference", **values: Any) -> dict[str, Divergence]:
    case_id = f"net/b8/{precision}/cpu/{phase}/eager"
    record = Divergence(
        case_id=case_id,
        reference_device="cpu",
        weights_digest="a",
        inputs_digest="b",
        **{"output_reference_norm": 1.0, "loss": 1.0} | values,
    )
    return {case_id: record}


def only(*rows: dict[str, Any], divergences: dict[str, Divergence] | None = None, budget: Budget = BUDGET) -> Advice:
    (advice,) = advise(rows, divergences or {}, budget).values()
    return advice


TRAINS = Trained(trains=True, study="study 1f9a3c, 300 steps from 3 seeds")
DOES_NOT = Trained(trains=False, study=TRAINS.study, reason="its training loss ends 2.31 times fp32's")


def after_training(trained: Trained, **columns: Any) -> Advice:
    """Return the advice on bf16_pure, the fastest, beside bf16_autocast, where a study says so much of it."""
    rows = [row(name, time, phase="training") for name, time in (("fp32", 10), ("bf16_autocast", 6))]
    pure = row("bf16_pure", 4, phase="training", **columns)
    (advice,) = advise([*rows, pure], {}, BUDGET, trained={pure["case_id"]: trained}).values()
    return advice


def test_a_precision_that_trained_as_fp32_is_advised_whatever_one_step_says() -> None:
    assert after_training(TRAINS).sentence == (
        "take bf16_pure: 2.50x the speed of fp32, trains as fp32 does (study 1f9a3c, 300 steps from 3 seeds)"
    )
    assert after_training(TRAINS, grad_rel_l2=0.3).sentence == (
        "take bf16_pure: 2.50x the speed of fp32, trains as fp32 does, though after one step its gradient error is "
        "3.0e-01, more than 0.1 (study 1f9a3c, 300 steps from 3 seeds)"
    )
    assert after_training(TRAINS, output_rel_l2=None).precision == "bf16_pure"


def test_a_precision_that_did_not_train_as_fp32_is_passed_over_whatever_one_step_says() -> None:
    assert after_training(DOES_NOT).sentence == (
        "take bf16_autocast: 1.67x the speed of fp32, error 5.0e-03 of 0.02 allowed; bf16_pure is 2.50x as fast, but "
        "it does not train as fp32 does: its training loss ends 2.31 times fp32's (study 1f9a3c, 300 steps from 3 "
        "seeds)"
    )
    fp32, pure = row("fp32", 10, phase="training"), row("bf16_pure", 4, phase="training")
    (advice,) = advise([fp32, pure], {}, BUDGET, trained={pure["case_id"]: DOES_NOT}).values()
    assert advice.precision == "fp32"
    assert advice.sentence.startswith("stay in fp32: bf16_pure is 2.50x as fast, but it does not train as fp32 does: ")


def test_the_advice_on_a_sweep_answers_where_low_precision_begins_to_pay() -> None:
    batches = ((1, 12, 5e-3), (8, 5, 5e-3), (64, 4, 5e-3))
    rows = [
        row(name, time, batch_size=batch, case_id=f"{name}/{batch}", output_rel_l2=error, memory_ratio_vs_fp32=0.52)
        for batch, fast, error in batches
        for name, time in (("fp32", 10), ("bf16_pure", fast))
    ]
    unsure = [each | {"seconds_low": None, "seconds_high": None} for each in rows]  # two rounds
    rounded = [each | {"output_rel_l2": 0.5} for each in rows]
    for given, pays in ((rows, {"first": "8", "last": "1"}), (rounded, {"last": "64"}), (unsure, {})):
        (note,) = sweep_notes(advise(given, {}, BUDGET), ["batch_size"])
        assert {name: note.facts[name] for name in ("first", "last") if name in note.facts} == pays


def test_objections_are_told_of_every_precision_whatever_its_time(tmp_path: Path) -> None:
    cases = [make_case(name, phase="training") for name in ("fp32", "bf16_autocast", "bf16_pure")]
    found = [make_divergence(case, output_rel_l2=1e-3, grad_rel_l2=error)
             for case, error in zip(cases, (1e-6, 1e-2, 0.3), strict=True)]  # fmt: skip
    rounds = [make_round(case, seconds) for case, seconds in zip(cases, (1e-3, 5e-3, 9e-3), strict=True)]
    stored = read_run(write_run(tmp_path, cases, *rounds, *found))
    rows = frame.run_rows(stored)
    found = run_objections(stored, rows, BUDGET)
    assert found[cases[1].case_id] is None
    facts = {"column": "grad_rel_l2", "value": 0.3, "limit": 0.1}
    assert found[cases[2].case_id] == Objection("grad_rel_l2", state(Refusal.ERROR, cases[2].case_id, **facts))


def test_the_fastest_precision_within_the_budget_is_taken() -> None:
    advice = only(row("fp32", 10), row("bf16_autocast", 4), row("bf16_pure", 3))
    assert (advice.precision, advice.column) == ("bf16_pure", "speedup_vs_fp32")
    assert advice.sentence == "take bf16_pure: 3.33x the speed of fp32, error 5.0e-03 of 0.02 allowed"
    assert advice.why == ""


ADAMW = Recipe(
    optimizer="torch.optim.AdamW",
    groups=[OptimizerGroup(elements=8, lr=1e-4, weight_decay=0.01, decoupled=True, beta1=0.9, beta2=0.999, eps=1e-8)],
)


def trained(*precisions: str) -> dict[str, Divergence]:
    return {key: one for name in precisions for key, one in divergence(name, "training", recipe=ADAMW).items()}


def test_what_arithmetic_knows_of_the_precision_that_is_taken_stands_beside_the_advice() -> None:
    rows = [row("fp32", 10, phase="training"), row("bf16_pure", 3, phase="training")]
    advice = only(*rows, divergences=trained("fp32", "bf16_pure"))
    assert advice.precision == "bf16_pure"
    assert advice.remark == remark_line(ADAMW, PRECISIONS["bf16_pure"])
    assert advice.remark.startswith("bf16_pure with AdamW: weight decay does nothing")
    assert only(*rows).remark == ""


@pytest.mark.parametrize("other", [None, 4.0])
def test_arithmetic_speaks_of_what_is_passed_over_where_it_is_silent_of_what_is_taken(other: float | None) -> None:
    rows = [row("fp32", 10, phase="training"), row("fp16_pure", 3, phase="training", grad_rel_l2=0.5)]
    rows += [row("bf16_autocast", other, phase="training")] if other else []
    advice = only(*rows, divergences=trained("fp32", "fp16_pure", "bf16_autocast"))
    assert advice.precision == ("bf16_autocast" if other else "fp32")
    assert advice.remark.startswith("fp16_pure with AdamW: weights become infinite or NaN")


def test_of_a_precision_that_is_not_faster_arithmetic_says_nothing() -> None:
    rows = [row("fp32", 10, phase="training"), row("fp16_pure", 30, phase="training")]
    assert only(*rows, divergences=trained("fp32", "fp16_pure")).remark == ""


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (32768.0, "GradScaler skips the first step at its default scale of 65,536: begin at init_scale=32768"),
        (128.0, "GradScaler skips the first 9 steps at its default scale of 65,536: begin at init_scale=128"),
        (0.5, "GradScaler skips the first 17 steps at its default scale of 65,536: begin at init_scale=0.5"),
        (65536.0, ""),
        (131072.0, ""),
        (None, ""),
    ],
)
def test_of_a_scale_that_settles_below_the_default_advice_says_where_to_begin(scale: float | None, said: str) -> None:
    rows = [row("fp32", 10, phase="training"), row("fp16_master", 3, phase="training")]
    advice = only(*rows, divergences=divergence("fp16_master", "training", scaler_scale=scale))
    assert (advice.precision, advice.remark) == ("fp16_master", said)


def test_the_scale_of_a_precision_that_is_not_taken_is_not_spoken_of() -> None:
    rows = [row("fp32", 10, phase="training"), row("fp16_master", 3, phase="training", grad_rel_l2=0.5)]
    advice = only(*rows, divergences=divergence("fp16_master", "training", scaler_scale=32768.0))
    assert (advice.precision, advice.remark) == ("fp32", "")


def test_what_torch_scales_by_at_first_is_what_the_remark_takes_it_to_be() -> None:
    scaler, assumed = torch.amp.GradScaler("cpu"), ScalerSetting(name="default")
    assert (scaler.get_scale(), scaler.get_backoff_factor()) == (assumed.init_scale, assumed.backoff_factor)


def test_a_speedup_without_intervals_is_not_called_certain() -> None:
    said = only(row("fp32", 10, spread=None), row("bf16_pure", 3, spread=None)).sentence
    assert said.endswith("of 0.02 allowed (not certain: no interval under three --rounds)")


def test_a_speedup_without_intervals_that_an_error_objects_to_is_not_called_certain() -> None:
    rows = [row("fp32", 10, spread=None), row("bf16_pure", 4, spread=None, output_rel_l2=0.041)]
    assert only(*rows).sentence == (
        "stay in fp32: bf16_pure looks 2.50x as fast (not certain: no interval under three --rounds), but its error is "
        "4.1e-02, more than 0.02"
    )
    taken = only(*rows, row("bf16_autocast", 5, spread=None)).sentence
    assert taken.endswith(
        "(not certain: no interval under three --rounds); bf16_pure looks 2.50x as fast, but its error is 4.1e-02, "
        "more than 0.02"
    )


def test_memory_is_mentioned_when_the_choice_saves_it() -> None:
    advice = only(row("fp32", 10), row("bf16_pure", 5, memory_ratio_vs_fp32=0.52))
    assert "2.00x the speed and 0.52x the memory of fp32" in advice.sentence
    assert "memory" not in only(row("fp32", 10), row("bf16_pure", 5, memory_ratio_vs_fp32=0.97)).sentence


def test_overlapping_intervals_are_not_faster() -> None:
    advice = only(row("fp32", 10, spread=0.1), row("bf16_autocast", 9, spread=0.1))
    assert (advice.precision, advice.column) == ("fp32", "speedup_vs_fp32")
    assert advice.sentence == (
        "stay in fp32: no speedup is certain, at best bf16_autocast with 1.11x; more --rounds may tell"
    )


@pytest.mark.parametrize(("milliseconds", "precision"), [(9.6, "fp32"), (9.5, "bf16_pure")])
def test_without_intervals_a_speedup_counts_from_five_per_cent(milliseconds: float, precision: str) -> None:
    assert only(row("fp32", 10, None), row("bf16_pure", milliseconds, None)).precision == precision


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        # three of four rounds are faster: no claim that nothing is
        ((8.05, 7.86, 30.6, 40.0), "no speedup is certain, at best bf16_pure with 0.58x; more --rounds may tell"),
        ((17.2, 17.3, 17.1, 17.2), "nothing is faster, at best bf16_pure with 0.58x"),
    ],
)
def test_that_nothing_is_faster_takes_the_proof_that_a_speedup_takes(seconds: tuple[float, ...], sentence: str) -> None:
    rows = [row("fp32", 10, spread=0.9), row("bf16_pure", 17.2, spread=0.9)]
    rounds = rounds_of("fp32", 10.0, 10.0, 10.0, 10.0) | rounds_of("bf16_pure", *seconds)
    (advice,) = advise(rows, {}, BUDGET, rounds).values()
    assert advice.sentence == f"stay in fp32: {sentence}"


def faulty(precision: str, **values: Any) -> Advice:
    """The advice on a training in which one of fp32 and a twice as fast bf16 autocast has such a divergence."""
    rows = [row(name, speed, phase="training") for name, speed in (("fp32", 10), ("bf16_autocast", 5))]
    return only(*rows, divergences=divergence(precision, "training", **values))


def test_a_loss_that_is_not_finite_in_fp64_makes_any_precision_right() -> None:
    for precision in ("fp32", "bf16_autocast"):
        advice = faulty(precision, **NO_LOSS)
        assert (advice.precision, advice.column) == (None, "loss_abs_error")
        assert advice.sentence.startswith("no advice: the loss is not finite in fp64 already: ")
    assert faulty("bf16_autocast", reference_loss=2.0, **NO_LOSS).precision == "bf16_autocast"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (NO_LOSS | {"reference_loss": 2.0}, FP32S_LOSS),
        (
            {"grad_nonfinite": 3, "grad_elements": 8},
            FP32S_LOSS.replace("the loss is", "3 of 8 gradient elements are"),
        ),
        (
            {"grad_nonfinite": 3, "grad_elements": 8, "grad_reference_nonfinite": 3},
            "3 of 8 gradient elements are not finite in fp32 already",
        ),
        (NO_LOSS | {"reference_dtype": "fp32"}, "the loss is not finite in fp32 already"),
    ],
)
def test_nothing_is_advised_where_fp32_itself_cannot_train(values: dict[str, Any], said: str) -> None:
    advice = faulty("fp32", **values)
    assert advice.precision is None
    assert advice.sentence == f"no advice: {said}"


def test_the_speed_of_what_is_refused_is_as_uncertain_as_any_on_a_busy_machine() -> None:
    rows = [row("fp32", 10), row("bf16_pure", 5, output_nonfinite=2)]
    (advice,) = advise(rows, {}, BUDGET, trust=Trust(cause="other processes used 60% of the CPU")).values()
    assert advice.sentence == (
        "stay in fp32: bf16_pure is 2.00x as fast (not certain: other processes used 60% of the CPU), but 2 output "
        "elements are not finite"
    )


def test_where_only_what_is_objected_to_may_be_faster_no_further_round_is_asked_for() -> None:
    uncertain = only(row("fp32", 10, spread=0.2), row("bf16_pure", 9, spread=0.2, output_nonfinite=2))
    assert uncertain.sentence == (
        "stay in fp32: nothing within the error budget is faster; bf16_pure may be (1.11x the speed), but 2 output "
        "elements are not finite"
    )
    assert (uncertain.column, uncertain.caveat) == ("output_nonfinite", "")
    beside = row("fp32", 10, spread=0.2), row("bf16_pure", 9, spread=0.2, output_nonfinite=2)
    slow, open_still = row("bf16_autocast", 20, spread=0.2), row("bf16_autocast", 9.5, spread=0.2)
    assert "nothing within the error budget" in only(*beside, slow).sentence
    assert only(*beside, open_still).sentence == (
        "stay in fp32: no speedup is certain, at best bf16_autocast with 1.05x; more --rounds may tell"
    )
    slower = only(row("fp32", 10), row("bf16_pure", 20, output_nonfinite=2))
    assert slower.sentence == "stay in fp32: nothing is faster, at best bf16_pure with 0.50x"


def test_under_three_rounds_slowness_is_as_uncertain_as_speed() -> None:
    few = only(row("fp32", 10, None), row("bf16_pure", 12, None))
    assert few.sentence.endswith("at best bf16_pure with 0.83x (not certain: no interval under three --rounds)")
    assert few.caveat == "no interval under three --rounds"
    close = only(row("fp32", 10, None), row("bf16_pure", 10.1, None))
    assert close.sentence.endswith(
        "no speedup is certain, at best bf16_pure with 0.99x: no interval under three --rounds"
    )


def test_a_control_further_apart_than_the_gain_withholds_the_advice() -> None:
    rows = [row("fp32", 10), row("bf16_pure", 5)]

    def said(apart: float) -> Advice:
        (advice,) = advise(rows, {}, BUDGET, trust=Trust(apart=apart)).values()
        return advice

    assert said(1.9).precision == "bf16_pure"
    withheld = said(4.7)
    assert (withheld.precision, withheld.case_id) == (None, None)
    assert withheld.sentence == (
        "no advice on speed: bf16_pure is 2.00x as fast, and the run's own control, one case measured twice, is 370% "
        "apart"
    )
    slower = [row("fp32", 10), row("bf16_pure", 12)]
    (advice,) = advise(slower, {}, BUDGET, trust=Trust(apart=1.5)).values()
    assert "no speedup is certain" in advice.sentence


def test_a_factor_that_no_hardware_has_is_no_advice() -> None:
    advice = only(row("fp32", 10, None), row("bf16_pure", 10 / 230.24, None))
    assert advice.precision is None
    said = "no advice on speed: bf16_pure took 1/230 of fp32's time, which no hardware does"
    assert advice.sentence == said
    rows = [row("fp32", 10, None), row("bf16_pure", 10 / 230.24, None)]
    (advice,) = advise(rows, {}, BUDGET, trust=Trust(cause="the machine was busy")).values()
    assert advice.sentence == f"{said}; the machine was busy"


def test_a_busy_machine_makes_a_speedup_uncertain() -> None:
    trust = Trust(cause="other processes used 76% of the CPU in 8 of 8 rounds")
    (advice,) = advise([row("fp32", 10), row("bf16_pure", 5)], {}, BUDGET, trust=trust).values()
    assert advice.precision == "bf16_pure"
    assert advice.caveat == "other processes used 76% of the CPU in 8 of 8 rounds"
    assert advice.sentence.endswith(f"allowed (not certain: {advice.caveat})")


def test_what_looks_faster_but_is_not_certain_is_named() -> None:
    rows = [row("fp32", 10), row("bf16_autocast", 8.8), row("bf16_pure", 6.6, spread=0.62)]
    advice = only(*rows)
    assert advice.precision == "bf16_autocast"
    assert advice.why == "bf16_pure looks 1.52x as fast, but that is not certain; more --rounds may tell"
    assert advice.sentence.endswith(f"; {advice.why}")


def test_a_gain_that_everything_else_calls_unchanged_is_not_the_reason_but_halved_memory_is() -> None:
    halved = only(row("fp32", 10, 0.001), row("bf16_pure", 9.9, 0.001, memory_ratio_vs_fp32=0.52))
    assert (halved.precision, halved.column) == ("bf16_pure", "memory_ratio_vs_fp32")
    assert halved.sentence.startswith("take bf16_pure: 0.52x the memory of fp32 at its speed, error")
    alone = only(row("fp32", 10, 0.001), row("bf16_pure", 9.9, 0.001))
    assert alone.sentence == "stay in fp32: nothing is faster, at best bf16_pure with 1.01x"


def test_nothing_else_measured_is_said() -> None:
    skipped = row("tf32", 5, outcome="skipped", reason="not on cpu")
    for advice in (only(row("fp32", 10), skipped), only(row("fp32", 10))):
        assert (advice.precision, advice.sentence) == (None, "no advice: no other precision was measured")
    failed = row("bf16_pure", 5, outcome="failed", reason="crash")
    assert only(row("fp32", 10), failed).sentence == "stay in fp32: every other precision failed"


def test_a_faster_precision_over_the_budget_gives_way_and_its_column_decides() -> None:
    advice = only(row("fp32", 10), row("bf16_autocast", 4), row("bf16_pure", 3, output_rel_l2=4.1e-2))
    assert (advice.precision, advice.column) == ("bf16_autocast", "output_rel_l2")
    assert advice.sentence.endswith("; bf16_pure is 3.33x as fast, but its error is 4.1e-02, more than 0.02")


def test_when_every_faster_precision_is_over_the_budget_fp32_stays() -> None:
    advice = only(row("fp32", 10), row("bf16_pure", 3, output_rel_l2=4.1e-2))
    assert (advice.precision, advice.column) == ("fp32", "output_rel_l2")
    assert advice.sentence == "stay in fp32: bf16_pure is 3.33x as fast, but its error is 4.1e-02, more than 0.02"
    assert advice.why == "bf16_pure is 3.33x as fast, but its error is 4.1e-02, more than 0.02"
    assert only(
        row("fp32", 10), row("bf16_pure", 3, output_rel_l2=4.1e-2), budget=Budget(output_rel_l2=0.05)
    ).precision == ("bf16_pure")


def test_the_output_that_errs_most_is_judged_and_named() -> None:
    scores = {"output_rel_l2": 3.9e-4, "output_worst_rel_l2": 0.64, "output_worst_name": "scores"}
    advice = only(row("fp32", 10), row("bf16_autocast", 4, **scores))
    assert (advice.precision, advice.column) == ("fp32", "output_rel_l2")
    assert advice.sentence == (
        "stay in fp32: bf16_autocast is 2.50x as fast, but its error in scores is 6.4e-01, more than 0.02"
    )
    little = scores | {"output_worst_rel_l2": 3e-3}
    taken = only(row("fp32", 10), row("bf16_autocast", 4, **little)).sentence
    assert taken == "take bf16_autocast: 2.50x the speed of fp32, error 3.0e-03 in scores of 0.02 allowed"


def test_decisions_too_few_to_prove_the_agreement_are_said_beside_the_error() -> None:
    columns = {"argmax_agreement": 1.0, "argmax_bound": 0.05 ** (1 / 32)}
    taken = only(row("fp32", 10), row("bf16_pure", 4, **columns)).sentence
    assert taken == "take bf16_pure: 2.50x the speed of fp32, error 5.0e-03 of 0.02 allowed, argmax ≥91%"
    proven = columns | {"argmax_bound": 0.05 ** (1 / 299)}
    assert only(row("fp32", 10), row("bf16_pure", 4, **proven)).sentence.endswith("of 0.02 allowed")


@pytest.mark.parametrize(
    ("column", "value", "phase", "said"),
    [
        (
            "sample_p99_rel_l2",
            0.06,
            "inference",
            "the errors of its samples reach 6.0e-02 at their 99% quantile, more than 0.05",
        ),
        ("sample_worst_rel_l2", 0.45, "inference", "its worst sample errs by 4.5e-01, more than 0.2"),
        ("kl_mean", 0.03, "inference", "its probabilities lie 3.0e-02 nats from fp64's, more than 0.01"),
        (
            "kl_p99",
            0.3,
            "inference",
            "its probabilities lie 3.0e-01 nats from fp64's at the 99% quantile, more than 0.1",
        ),
        ("loss_rel_error", 0.1, "training", "its loss is off by 1.0e-01, more than 0.05"),
    ],
)
def test_what_one_norm_hides_is_judged_where_it_is_known(column: str, value: float, phase: str, said: str) -> None:
    rows = [row("fp32", 10, phase=phase), row("bf16_pure", 3, phase=phase, **{column: value})]
    advice = only(*rows)
    assert (advice.precision, advice.column) == ("fp32", column)
    assert advice.sentence.endswith(f"but {said}")
    assert only(*rows, budget=Budget(**{column: value})).precision == "bf16_pure"


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_an_undefined_error_is_not_advised_and_the_note_says_why(missing: float | None) -> None:
    rows = [row("fp32", 10, output_rel_l2=missing), row("bf16_pure", 3, output_rel_l2=missing)]
    why = "the reference output is zero"
    zero = divergence("bf16_pure", output_undefined=why, output_elements=8, output_reference_norm=0.0)
    advice = only(*rows, divergences=zero)
    assert (advice.precision, advice.column) == ("fp32", "output_rel_l2")
    assert advice.sentence.endswith(
        f"but its error is undefined: {why}; train a few steps first, or give weights that are trained"
    )
    assert only(*rows).sentence.endswith("but its error was not measured")


def test_errors_of_chance_advise_nothing() -> None:
    chance = divergence("bf16_pure", chance_rel_l2=1.2)
    advice = only(row("fp32", 10, output_rel_l2=1.1), row("bf16_pure", 3, output_rel_l2=1.3), divergences=chance)
    assert advice.precision is None
    assert advice.sentence == (
        "no advice: bf16_pure is 3.33x as fast, but its error means nothing: two fp64 steps already lie 1.2e+00 apart, "
        "as the network draws random numbers, other ones in other dtypes, or keeps state of its own"
    )


def test_a_note_about_something_else_is_not_given_as_the_reason() -> None:
    rows = [row("fp32", 10, phase="training"), row("fp16_pure", 3, phase="training", grad_rel_l2=None)]
    note = "dropout layers were switched off for the divergence pass"
    found = divergence("fp16_pure", "training", grad_nonfinite=3, notes=[note])
    assert only(*rows, divergences=found).sentence.endswith(
        "but its gradient error is undefined: 3 gradient elements are not finite"
    )


def test_outputs_that_are_not_finite_are_refused_before_anything_else() -> None:
    advice = only(row("fp32", 10), row("fp16_pure", 3, output_nonfinite=12, output_rel_l2=None))
    assert (advice.precision, advice.column) == ("fp32", "output_nonfinite")


def test_one_flip_in_eight_decisions_proves_nothing_but_two_do() -> None:
    rows = [row("fp32", 10), row("bf16_pure", 3, argmax_agreement=7 / 8)]
    one = divergence("bf16_pure", argmax_agreeing=7, argmax_decisions=8)
    two = divergence("bf16_pure", argmax_agreeing=6, argmax_decisions=8)
    assert only(*rows, divergences=one).precision == "bf16_pure"
    assert only(*rows, divergences=two).column == "argmax_agreement"


def test_an_agreement_of_unknown_decisions_is_judged_as_it_stands() -> None:
    advice = only(row("fp32", 10), row("bf16_pure", 3, argmax_agreement=0.98))
    assert advice.sentence.endswith("but 98.0% of its decisions are fp64's, less than 99.0%")


@pytest.mark.parametrize(
    ("columns", "column"),
    [
        ({"grad_rel_l2": 0.16}, "grad_rel_l2"),
        ({"grad_rel_l2": None}, "grad_rel_l2"),
        ({"grad_flushed_share": 0.05}, "grad_flushed_share"),
        ({"output_rel_l2": 0.05}, "output_rel_l2"),
    ],
)
def test_training_is_judged_by_its_gradients_too(columns: dict[str, Any], column: str) -> None:
    rows = [row("fp32", 10, phase="training"), row("bf16_pure", 3, **({"phase": "training"} | columns))]
    assert only(*rows).column == column
    assert only(row("fp32", 10, phase="training"), row("bf16_pure", 3, phase="training")).precision == "bf16_pure"


def test_gradients_that_fp32_flushes_too_are_not_held_against_a_precision() -> None:
    baseline = row("fp32", 10, phase="training", grad_flushed_share=0.0175)
    assert only(baseline, row("bf16_pure", 3, phase="training", grad_flushed_share=0.0243)).precision == "bf16_pure"
    advice = only(baseline, row("bf16_pure", 3, phase="training", grad_flushed_share=0.067))
    assert advice.sentence.endswith("but 6.70% of its gradients became zero, more than 1.00% above fp32's 1.75%")


def test_a_precision_slower_than_fp32_is_named_as_the_best_there_is() -> None:
    sentence = only(row("fp32", 10), row("bf16_pure", 12)).sentence
    assert sentence == "stay in fp32: nothing is faster, at best bf16_pure with 0.83x"


def test_steps_that_the_scaler_skips_are_refused() -> None:
    rows = [row("fp32", 10, phase="training"), row("fp16_autocast", 3, phase="training")]
    skips = divergence("fp16_autocast", "training", skipped_steps=2)
    advice = only(*rows, divergences=skips)
    assert (advice.precision, advice.column) == ("fp32", "skipped_steps")
    assert "GradScaler skipped 2 steps" in advice.sentence


def test_among_precisions_of_equal_speed_the_more_accurate_is_taken() -> None:
    autocast = row("bf16_autocast", 3.02, output_rel_l2=4e-3)
    pure = row("bf16_pure", 3.0, output_rel_l2=8e-3)
    advice = only(row("fp32", 10), autocast, pure)
    assert (advice.precision, advice.column) == ("bf16_autocast", "output_rel_l2")
    assert "bf16_pure is as fast within the intervals, with more error" in advice.sentence


def test_when_fp32_fails_the_fastest_within_the_budget_is_taken() -> None:
    failed = row("fp32", 10, outcome="failed", reason="out of memory", seconds_median=None, output_rel_l2=None)
    advice = only(failed, row("bf16_pure", 3, speedup_vs_fp32=None), row("bf16_autocast", 4, speedup_vs_fp32=None))
    assert (advice.precision, advice.column) == ("bf16_pure", "outcome")
    assert advice.sentence == "take bf16_pure: fp32 failed, and this is the fastest within the error budget"
    none = only(failed, row("bf16_pure", 3, output_rel_l2=0.5))
    assert none.precision is None
    assert none.sentence == "no advice: fp32 failed, and no other precision is within the error budget"


def test_without_fp32_there_is_no_advice() -> None:
    assert only(row("bf16_pure", 3)).precision is None
    assert only(row("fp32", 10, outcome="skipped", reason="-"), row("bf16_pure", 3)).precision is None


def test_a_group_in_which_nothing_was_measured_gets_none() -> None:
    assert advise([row("fp32", 10, outcome="failed", reason="crash")], {}, BUDGET) == {}


def test_groups_keep_their_order_and_rows_that_of_the_precisions() -> None:
    rows = [
        row("bf16_pure", 3, workload="second"),
        row("fp32", 10, workload="second", batch_size=float("nan")),
        row("bf16_autocast", 3),
        row("fp32", 10),
    ]
    groups = grouped(rows)
    assert [(group.workload, group.batch_size) for group in groups] == [("second", 8), ("second", None), ("net", 8)]
    assert [each["precision"] for each in list(groups.values())[-1]] == ["fp32", "bf16_autocast"]


def test_ratios_align_on_two_decimals_unless_that_says_nothing() -> None:
    assert [times(value) for value in (1.0, 12.345, 0.017, 0.00123)] == ["1.00x", "12.35x", "0.02x", "<0.01x"]


def rounds_of(precision: str, *seconds: float, skipped: int | None = None) -> dict[str, list[Round]]:
    case_id = f"net/b8/{precision}/cpu/inference/eager"
    return {
        case_id: [
            Round(
                case_id=case_id,
                round=number,
                server=number,
                samples=[[value]],
                steps_per_sample=[1],
                warmup_steps=[1],
                items_per_step=1.0,
                weights_digest="a",
                skipped_steps=skipped,
                seconds=1.0,
                finished_at="2026-01-31T12:01:00Z",
            )
            for number, value in enumerate(seconds)
        ]
    }


def test_speeds_are_compared_round_by_round_so_that_drift_hits_both() -> None:
    rows = [row("fp32", 10, spread=0.5), row("bf16_pure", 8, spread=0.5)]
    drifting = rounds_of("fp32", 10.0, 15.0, 20.0, 12.0) | rounds_of("bf16_pure", 8.0, 12.2, 15.9, 9.5)
    (alone,) = advise(rows, {}, BUDGET).values()
    (paired,) = advise(rows, {}, BUDGET, drifting).values()
    assert alone.precision == "fp32"
    assert paired.precision == "bf16_pure"


def test_a_difference_that_rounds_do_not_agree_on_is_no_speedup() -> None:
    rows = [row("fp32", 10, spread=0.01), row("bf16_pure", 8, spread=0.01)]
    noisy = rounds_of("fp32", 10.0, 8.0, 10.0, 9.0) | rounds_of("bf16_pure", 8.0, 10.0, 7.0, 10.0)
    (advice,) = advise(rows, {}, BUDGET, noisy).values()
    assert advice.precision == "fp32"
    assert "no speedup is certain" in advice.sentence
    assert advice.sentence == f"stay in fp32: {advice.why}"


def test_steps_skipped_in_any_round_count_against_a_precision() -> None:
    rows = [row("fp32", 10, phase="training"), row("fp16_autocast", 2, phase="training")]
    case_id = rows[1]["case_id"]
    (rounds,) = rounds_of("fp16_autocast", 2.0, 2.0, skipped=3).values()
    (advice,) = advise(rows, {}, BUDGET, {case_id: rounds}).values()
    assert advice.precision == "fp32"
    assert advice.column == "skipped_steps"
    assert "GradScaler skipped 6 steps" in advice.sentence


NAN = {"output_rel_l2": None, "output_not_finite": "nan in fp64"}


def test_nan_of_the_network_itself_is_said_before_any_precision_is_weighed() -> None:
    found = divergence("bf16_pure", output_elements=256, output_reference_nonfinite=128, output_reference_nan=128)
    advice = only(row("fp32", 10), row("bf16_pure", 4, **NAN), divergences=found)
    assert (advice.precision, advice.column) == (None, "output_reference_nonfinite")
    assert advice.sentence == (
        "no advice: 128 of 256 output elements are NaN in fp64 already: the network, not a precision, makes them"
    )


def test_what_overflows_fp32_is_no_precisions_fault_either() -> None:
    found = divergence("bf16_pure", output_elements=256, output_fp32_nonfinite=12, output_nonfinite=12)
    advice = only(row("fp32", 10), row("bf16_pure", 4, output_nonfinite=12, output_rel_l2=None), divergences=found)
    assert advice.sentence.startswith("no advice: 12 of 256 output elements are not finite in fp32 already")


def test_gradients_that_are_nan_in_fp64_leave_no_advice() -> None:
    found = divergence("bf16_pure", "training", grad_elements=40, grad_reference_nonfinite=4, grad_reference_nan=4)
    rows = [row("fp32", 10, phase="training"), row("bf16_pure", 4, phase="training", grad_rel_l2=None)]
    assert "4 of 40 gradient elements are NaN in fp64 already" in only(*rows, divergences=found).sentence


def test_an_error_against_fp32_says_so_wherever_it_stands() -> None:
    against = {"reference_dtype": "fp32"}
    taken = only(row("fp32", 10, output_rel_l2=None, **against), row("bf16_pure", 4, **against))
    assert "error 5.0e-03 (against fp32: fp64 failed) of 0.02 allowed" in taken.sentence
    refused = only(row("fp32", 10, **against), row("bf16_pure", 4, output_rel_l2=0.5, **against))
    assert refused.sentence.endswith("but its error is 5.0e-01 (against fp32: fp64 failed), more than 0.02")


def test_the_reason_of_an_undefined_error_is_the_stored_one() -> None:
    found = divergence("bf16_pure", output_undefined="the output is empty", notes=["dropout layers were switched off"])
    advice = only(row("fp32", 10), row("bf16_pure", 4, output_rel_l2=None), divergences=found)
    assert advice.sentence.endswith("but its error is undefined: the output is empty")


def stored_tables(*given: tuple[str, str, str, float], sdpa: str = "") -> StoredRun:
    """A run of one network with (precision, memory format, path, milliseconds) each in four rounds.

    Those in channels_last have `sdpa`.
    """
    cases = [
        (make_case(precision, memory_format=layout, path=path, sdpa=sdpa if layout != "contiguous" else ""), took / 1e3)
        for precision, layout, path, took in given
    ]
    rounds = [
        make_round(case, seconds * (1 + 0.001 * number), number) for case, seconds in cases for number in range(4)
    ]
    divergence = {case.case_id: make_divergence(case, output_rel_l2=4e-3) for case, _ in cases}
    return StoredRun(
        path=Path("runs/run.jsonl"),
        header=make_header(),
        cases={case.case_id: case for case, _ in cases},
        rounds=rounds,
        divergence=divergence,
    )


def across(*given: tuple[str, str, str, float], sdpa: str = "") -> list[str]:
    stored = stored_tables(*given, sdpa=sdpa)
    rows = frame.run_rows(stored)
    return across_tables(stored, rows, advise_run(stored, rows, BUDGET))


PLAIN = ("fp32", "contiguous", "eager", 3.98), ("bf16_autocast", "contiguous", "eager", 3.2)


def test_the_fastest_of_all_tables_of_a_network_is_named_against_plain_fp32() -> None:
    last = ("fp32", "channels_last", "eager", 2.6), ("bf16_autocast", "channels_last", "eager", 1.88)
    (said,) = across(*PLAIN, *last)
    assert said.startswith("of the 2 tables of linear_chain batch 8 inference, bf16_autocast in channels_last is fast")
    assert said.endswith("fastest: 2.12x the speed of fp32 in contiguous")
    (said,) = across(*PLAIN, *last, sdpa="flash")
    assert said.endswith("in channels_last, sdpa flash is fastest: 2.12x the speed of fp32 in contiguous, sdpa auto")
    compiled = ("fp32", "channels_last", "compiled", 2.0), ("bf16_pure", "channels_last", "compiled", 1.0)
    (said,) = across(*PLAIN, *compiled)
    assert said.endswith(
        "bf16_pure in channels_last, compiled is fastest: 3.98x the speed of fp32 in contiguous, eager"
    )


def test_no_other_table_is_named_that_is_not_certainly_faster_than_what_is_advised_anyhow() -> None:
    assert across(*PLAIN) == []
    last = ("fp32", "channels_last", "eager", 4.5), ("bf16_autocast", "channels_last", "eager", 3.3)
    assert across(*PLAIN, *last) == []


def test_the_speedups_interval_that_a_table_shows_is_the_one_that_decides(tmp_path: Path) -> None:
    cases = [make_case(name) for name in ("fp32", "bf16_autocast", "bf16_pure", "fp16_autocast")]
    times = {"fp32": (10, 15, 20, 12), "bf16_autocast": (8, 12.2, 15.9, 9.5), "bf16_pure": (7, 16, 11, 9)}
    times["fp16_autocast"] = (11, 16.4, 22.1, 13.3)
    entries: list[Entry] = [make_divergence(case, output_rel_l2=1e-3, output_nonfinite=0) for case in cases]
    entries += [
        make_round(case, 1e-3 * seconds, number)
        for case in cases
        for number, seconds in enumerate(times[case.precision])
    ]
    stored = read_run(write_run(tmp_path, cases, *entries))
    rows = {one["precision"]: one for one in frame.run_rows(stored)}
    assert rows["bf16_autocast"]["speedup_low"] > 1.2
    assert rows["bf16_pure"]["speedup_low"] < 1 < rows["bf16_pure"]["speedup_high"]
    assert rows["fp16_autocast"]["speedup_high"] < 1
    (advice,) = advise_run(stored, rows.values(), BUDGET).values()
    assert advice.precision == "bf16_autocast"
    assert "bf16_pure looks 1.35x as fast, but that is not certain" in advice.sentence


def test_advice_is_against_what_torch_ships_with_the_speed_over_true_fp32_beside_it() -> None:
    rows = [
        row("fp32", 10.0, peak_memory_bytes=1000),
        row("default", 8.0, peak_memory_bytes=1000),
        row("bf16_autocast", 4.0, peak_memory_bytes=500, memory_ratio_vs_fp32=0.5),
    ]
    (advice,) = advise(rows, {}, BUDGET).values()
    assert advice.precision == "bf16_autocast"
    assert advice.sentence.startswith(
        "take bf16_autocast: 2.00x the speed and 0.50x the memory of default (2.50x the speed of fp32 with tf32 off), "
    )


def test_what_is_faster_than_true_fp32_alone_is_not_advised() -> None:
    rows = [row("fp32", 10.0), row("default", 5.0), row("bf16_autocast", 7.0)]
    (advice,) = advise(rows, {}, BUDGET).values()
    assert advice.precision == "default"
    assert advice.sentence == "stay in default: nothing is faster, at best bf16_autocast with 0.71x"


def test_where_what_torch_ships_failed_or_is_alone_advice_says_so_as_of_fp32() -> None:
    failed = row("default", 5.0, outcome="failed", seconds_median=None, speedup_vs_fp32=None)
    (advice,) = advise([row("fp32", 10.0), failed, row("bf16_autocast", 5.0)], {}, BUDGET).values()
    assert advice.sentence.startswith("take bf16_autocast: 2.00x the speed of fp32, ")
    (alone,) = advise([row("default", 8.0, speedup_vs_fp32=None), row("bf16_pure", 4.0)], {}, BUDGET).values()
    assert alone.sentence.startswith("take bf16_pure: 2.00x the speed of default ")


BUSY = {"device": "cuda"}
HINT = "larger batch, or --path compiled --compile-mode reduce-overhead"


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.69, f"launch-bound: no precision helps; {HINT} (the device has work for 69.0% of a step)"),
        (0.71, ""),
        (None, ""),
    ],
)
def test_a_device_that_waits_for_launches_below_seventy_percent_is_told(share: float | None, said: str) -> None:
    rows = [row("fp32", 10, busy_share=share, **BUSY), row("bf16_autocast", 11, busy_share=share, **BUSY)]
    assert only(*rows).remark == said


def test_that_no_precision_helps_is_said_only_where_that_was_seen() -> None:
    def remark(milliseconds: float, spread: float | None = 0.01, fp32: float = 0.5) -> str:
        low = row("bf16_autocast", milliseconds, spread, busy_share=0.404, **BUSY)
        return only(row("fp32", 10, spread, busy_share=fp32, **BUSY), low).remark

    ending = f"{HINT} (the device has work for 40.4%–50.0% of a step)"
    assert remark(10.5) == f"launch-bound: no precision helps; {ending}"
    assert remark(9.99) == f"launch-bound: no precision is seen to help; {ending}", "it may be a little faster"
    assert remark(5) == f"launch-bound in fp32, bf16_autocast: {ending}", "it is faster nevertheless"
    only_one = f"launch-bound in bf16_autocast: {HINT} (the device has work for 40.4% of a step)"
    assert remark(10.5, fp32=0.9) == only_one, "fp32 computes nearly all the time"


@pytest.mark.parametrize(
    ("device", "path", "remedy"),
    [
        ("cuda", "eager", HINT),
        ("cuda", "traced", HINT),
        ("cuda", "compiled", "larger batch, or --compile-mode reduce-overhead"),
        ("cuda", "compiled-freezing", "larger batch, or --compile-mode reduce-overhead"),
        ("cuda", "compiled-reduce-overhead", "larger batch"),
        ("cuda", "compiled-max-autotune", "larger batch"),
        ("xpu", "eager", "larger batch, or --path compiled"),
        ("xpu", "compiled", "larger batch"),
    ],
)
def test_nobody_whose_steps_are_launch_bound_is_told_to_do_what_they_do(device: str, path: str, remedy: str) -> None:
    rows = [row(name, 10, busy_share=0.3, device=device, path=path) for name in ("fp32", "bf16_autocast")]
    assert f"; {remedy} (" in only(*rows).remark


def test_what_torch_ships_with_and_fp32_are_no_precisions_that_could_have_helped() -> None:
    rows = [row(name, 10, busy_share=0.3, **BUSY) for name in ("fp32", "default")]
    assert only(*rows).remark.startswith("launch-bound in fp32, default: ")


def test_where_every_other_precision_failed_one_stays_in_fp32_without_a_caveat() -> None:
    failed = row("bf16_autocast", 5.0, outcome="failed", seconds_median=None, speedup_vs_fp32=None)
    advice = only(row("fp32", 10.0), failed)
    assert (advice.sentence, advice.caveat) == ("stay in fp32: every other precision failed", "")


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_budget_may_allow_no_flip_and_no_flushed_gradient_or_all_of_them(share: float) -> None:
    budget = Budget(argmax_agreement=share, grad_flushed_share=share)
    assert (budget.argmax_agreement, budget.grad_flushed_share) == (share, share)

"""What refuses a precision, and what leaves it undecided. How updates are measured: tests/worker/test_updates.py."""

from typing import Any

import pytest
from msgspec import structs
from scipy.stats import binomtest

from ampbench.core.budget import LIMITS, Budget
from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.core.statement import Flaw, Hint, NoNoise, Refusal, Undecided
from ampbench.core.stats import round_value
from ampbench.errors import UsageError
from ampbench.judge.rounds import TimedRound
from ampbench.judge.verdict import LOOKS, Seen, Speeds, below, choose, is_chance, judge
from ampbench.records.case import Case
from ampbench.records.changes import Evidence, Status, Verdict
from ampbench.records.measured import (
    BINS,
    LOWEST_BIN,
    Divergence,
    FurtherDecisions,
    OptimizerGroup,
    OutputError,
    Predictions,
    Recipe,
    Round,
    Update,
)
from ampbench.show.rows import TODAYS, Take
from ampbench.studies.training import Trained
from ampbench.worker.divergence import References, measure_divergence
from ampbench.worker.machine import Cpu
from tests.stored_runs import make_case, make_divergence, make_round
from tests.workloads.built_workloads import build

ADAMW = Recipe(
    optimizer="torch.optim.AdamW",
    groups=[OptimizerGroup(elements=8, lr=1e-4, weight_decay=0.01, decoupled=True, beta1=0.9, beta2=0.999, eps=1e-8)],
)
WELL: dict[str, Any] = {
    "steps": 20, "rel_l2": 0.01, "kept": 1.0, "noise": 0.01, "moving": 1000, "swallowed": 0, "swallowed_energy": 0.0,
    "worst_parameter": "fc.weight", "worst_kept": 0.99,
}  # fmt: skip
TRAINS = Trained(trains=True, study="study 1f9a3c, 300 steps from 3 seeds")
DOES_NOT = Trained(trains=False, study=TRAINS.study, worse=1.31)


def row(precision: str, milliseconds: float = 5, spread: float | None = 0.01, **columns: Any) -> dict[str, Any]:
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
        "reference_dtype": "fp64",
        "output_rel_l2": 5e-3,
        "argmax_agreement": None,
        "grad_rel_l2": 1e-2 if phase == "training" else None,
        "grad_flushed_share": 0.0 if phase == "training" else None,
    } | columns


def training_row(precision: str, milliseconds: float = 5, **columns: Any) -> dict[str, Any]:
    return row(precision, milliseconds, phase="training", **columns)


def trained_by(**values: Any) -> Divergence:
    """A divergence of a training whose updates arrive."""
    known = {"recipe": ADAMW, "update": Update(**WELL), "grad_elements": 1000, "grad_noise": 0.15, "loss": 1.0}
    return make_divergence(make_case(phase="training"), **known | values)


def timed_round(one: Round) -> TimedRound:
    seconds = round_value(one.samples, one.cpu_samples, one.windows)
    return TimedRound(one.round, seconds, one.param_nonfinite, one.skipped_steps, one.scaler_scale)


def take(
    *rows: dict[str, Any],
    found: dict[str, Divergence] | None = None,
    rounds: dict[str, list[Round]] | None = None,
    budget: Budget = Budget(),  # noqa: B008
    apart: float = 1.0,
    busy: bool = False,
    trained: dict[str, Trained] | None = None,
) -> Take:
    """Return what to take of one table; `found` is by precision, and a training's is one whose updates arrive."""
    known = {
        one["case_id"]: (found or {}).get(one["precision"]) or trained_by()
        for one in rows
        if one["phase"] == "training" or one["precision"] in (found or {})
    }
    timed = {case_id: list(map(timed_round, each)) for case_id, each in (rounds or {}).items()}
    (answer,) = choose(rows, known, budget, Speeds(timed, apart=apart, busy=busy), trained).values()
    return answer


def verdict(
    columns: dict[str, Any] | None = None,
    found: Divergence | None = None,
    budget: Budget = Budget(),  # noqa: B008
    precision: str = "bf16_pure",
    **beside: Any,
) -> Verdict:
    """Return the verdict on a row with these columns; one of a training has a divergence whose updates arrive."""
    own = row(precision, **columns or {})
    if found is None and own["phase"] == "training":
        found = trained_by()
    return judge(Seen(row=own, found=found, **beside), budget)


TRAINING = {"phase": "training"}


@pytest.mark.parametrize(
    ("phase", "columns", "code"),
    [
        ("inference", {"output_nonfinite": 12, "output_rel_l2": None}, Refusal.OUTPUTS),
        ("inference", {"output_rel_l2": 0.041}, Refusal.ERROR),
        ("inference", {"output_over_spread": 0.11}, Refusal.SPREAD),
        ("training", {"output_over_spread": 0.21}, Refusal.SPREAD),
        ("inference", {"logprob_gap_mean": 0.06}, Refusal.LOG_PROBABILITIES),
        ("inference", {"logprob_gap_p99": 0.21}, Refusal.WORST_LOG_PROBABILITIES),
        ("inference", {"kl_mean": 0.03}, Refusal.PROBABILITIES),
        ("inference", {"kl_p99": 0.3}, Refusal.WORST_PROBABILITIES),
        ("inference", {"argmax_agreement": 0.98}, Refusal.DECISIONS),
        ("training", {"grad_rel_l2": 0.16}, Refusal.GRADIENT_ERROR),
        ("training", {"grad_tensor_rel_l2": 0.6, "grad_tensor_parameter": "fc"}, Refusal.GRADIENT_OF_TENSOR),
        ("training", {"grad_flushed_share": 0.05}, Refusal.FLUSHED),
        ("training", {"loss_rel_error": 0.1}, Refusal.LOSS),
    ],
)
def test_a_number_over_its_limit_refuses_and_a_wider_budget_does_not(
    phase: str, columns: dict[str, Any], code: Refusal
) -> None:
    measured = trained_by(grad_tensor_noise=0.15) if phase == "training" else None
    found = verdict(columns | {"phase": phase}, measured)
    assert (found.status, found.code) == (Status.REFUSED, code)
    assert found.number is not None
    assert found.number > found.limit
    (look,) = [one for one in LOOKS if one.code is code and one.phase in ("", phase)]
    if isinstance(look.limit, str):
        limit = found.number if code is not Refusal.DECISIONS else 1 - found.number
        wider = Budget(**{look.limit: limit / look.times})
        assert verdict(columns | {"phase": phase}, measured, budget=wider).status is Status.OK


def test_what_is_ok_names_the_number_that_is_nearest_to_its_limit() -> None:
    plain = verdict()
    assert (plain.status, plain.code, plain.number, plain.limit) == (Status.OK, Refusal.ERROR, 5e-3, 0.02)
    assert plain.evidence is Evidence.INPUTS
    near = verdict({"kl_mean": 0.009})
    assert (near.code, near.number, near.limit) == (Refusal.PROBABILITIES, 0.009, 0.01)
    loses = verdict(TRAINING, trained_by(update=Update(**WELL | {"kept": 0.985})))
    assert (loses.code, loses.evidence) == (Refusal.UPDATE, Evidence.STEPS)
    assert loses.number == pytest.approx(0.015)


@pytest.mark.parametrize(
    ("errors", "cause"),
    [
        ({"gradient_rel_l2": 0.9, "state_rel_l2": 0.1, "storage_rel_l2": 0.2}, "gradients"),
        ({"gradient_rel_l2": 0.1, "state_rel_l2": 0.9, "storage_rel_l2": 0.2}, "optimizer state"),
        ({"gradient_rel_l2": 0.1, "state_rel_l2": 0.1, "storage_rel_l2": 0.2}, "stored weights"),
        ({}, ""),
    ],
)
def test_updates_are_lost_to_what_makes_most_of_their_error(errors: dict[str, float], cause: str) -> None:
    found = verdict(TRAINING, trained_by(update=Update(**WELL | {"kept": 0.5} | errors)))
    assert (found.code, found.subject) == (Refusal.UPDATE, cause)


def test_the_output_that_errs_most_is_judged_and_named() -> None:
    scores = {"output_rel_l2": 3.9e-4, "output_worst_rel_l2": 0.64, "output_worst_name": "scores"}
    found = verdict(scores)
    assert (found.status, found.number, found.subject) == (Status.REFUSED, 0.64, "scores")
    assert verdict(scores | {"output_worst_rel_l2": 3e-3}).subject == "scores"


@pytest.mark.parametrize("precision", ["fp32", "default"])
def test_what_one_runs_today_is_the_baseline_whatever_its_numbers(precision: str) -> None:
    assert verdict({"output_rel_l2": 9.0}, precision=precision).status is Status.BASELINE
    unmeasured = verdict({"outcome": "failed"}, precision=precision)
    assert (unmeasured.status, unmeasured.code) == (Status.UNDECIDED, Undecided.NOT_MEASURED)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_what_was_not_measured_is_never_ok(missing: float | None) -> None:
    def undecided(columns: dict[str, Any], found: Divergence | None = None, precision: str = "bf16_pure") -> Any:
        one = verdict(columns, found, precision=precision)
        assert one.status is Status.UNDECIDED
        return one.code

    case = make_case()
    nothing = {"output_rel_l2": missing}
    for outcome in ("failed", "skipped"):
        assert undecided({"outcome": outcome}) is Undecided.NOT_MEASURED
    assert undecided(nothing) is Undecided.NO_REFERENCE
    assert undecided(nothing, make_divergence(case, reference_dtype="")) is Undecided.NO_REFERENCE
    assert undecided(nothing, make_divergence(case, output_undefined="it is empty")) is Undecided.NO_ERROR
    zero = make_divergence(case, output_elements=8, output_reference_norm=0.0)
    assert undecided(nothing, zero) is Undecided.ZERO_REFERENCE
    assert undecided(TRAINING | {"grad_rel_l2": missing}) is Undecided.NO_GRADIENT_ERROR
    for unknown in (None, Update(steps=0, undefined="no second step")):
        assert undecided(TRAINING, trained_by(update=unknown)) is Undecided.NO_UPDATE
        for stored in ("bf16_autocast", "bf16_master"):
            assert verdict(TRAINING, trained_by(update=unknown), precision=stored).status is Status.OK
    unseen = trained_by(update=Update(steps=20, undefined="GradScaler skipped the step"))
    assert verdict(TRAINING, unseen, precision="bf16_autocast").evidence is Evidence.ONE_STEP


def test_a_training_without_an_optimizer_is_undecided_in_every_precision() -> None:
    for precision in ("tf32", "bf16_autocast", "bf16_pure", "bf16_master"):
        found = verdict(TRAINING | {"output_rel_l2": 9.0}, trained_by(recipe=None, update=None), precision=precision)
        assert (found.status, found.code) == (Status.UNDECIDED, Undecided.NO_OPTIMIZER)
    assert verdict(found=make_divergence(make_case())).status is Status.OK  # inference has none


def test_an_error_of_chance_says_nothing_and_what_is_not_finite_is_refused_all_the_same() -> None:
    chance = make_divergence(make_case(), chance_rel_l2=1.2)
    assert (verdict({"output_rel_l2": 1.3}, chance).code, verdict({}, chance).status) == (
        Undecided.BY_CHANCE,
        Status.UNDECIDED,
    )
    assert verdict({"output_nonfinite": 2}, chance).code is Refusal.OUTPUTS


@pytest.mark.parametrize("columns", [{}, {"grad_rel_l2": 0.3}, {"output_rel_l2": None}])
def test_a_whole_training_counts_for_more_than_one_step(columns: dict[str, Any]) -> None:
    for trained, status in ((TRAINS, Status.OK), (DOES_NOT, Status.REFUSED)):
        seen = Seen(row=training_row("bf16_pure", **columns), found=trained_by(recipe=None))
        found = judge(seen, Budget(), trained=trained)
        assert (found.status, found.code, found.evidence) == (status, Refusal.TRAINS_WORSE, Evidence.TRAINED)
        assert (found.number, found.subject) == (trained.worse, trained.study)


FAULTS = {
    Flaw.REFERENCE_NAN: {"output_elements": 256, "output_reference_nonfinite": 128, "output_reference_nan": 128},
    Flaw.FP32_OUTPUT: {"output_elements": 256, "output_fp32_nonfinite": 12, "output_nonfinite": 12},
}
FP32S_FAULTS = {
    Flaw.FP32_LOSS: {"loss": None, "reference_loss": 2.0},
    Flaw.FP32_GRADIENT: {"grad_nonfinite": 3, "grad_elements": 8},
}


@pytest.mark.parametrize(("code", "values"), [*FAULTS.items(), *FP32S_FAULTS.items()])
def test_what_no_precision_is_to_blame_for_leaves_all_undecided(code: Flaw, values: dict[str, Any]) -> None:
    of = "fp32" if code in FP32S_FAULTS else "bf16_pure"
    answer = take(training_row("fp32", 10), training_row("bf16_pure", 4), found={of: trained_by(**values)})
    assert (answer.statement.code, answer.precision) == (code, None)
    fp32, pure = answer.verdicts
    assert (fp32.status, pure.status, pure.code) == (Status.BASELINE, Status.UNDECIDED, code)


def test_a_loss_that_is_not_finite_is_refused_where_the_references_is() -> None:
    one = verdict(TRAINING, trained_by(loss=None, grad_elements=8, reference_loss=1.5))
    assert (one.status, one.code) == (Status.REFUSED, Refusal.LOSS_FINITE)


def test_gradients_that_fp32_flushes_too_are_not_held_against_a_precision() -> None:
    fp32 = Seen(row=training_row("fp32", grad_flushed_share=0.0175))
    assert verdict(TRAINING | {"grad_flushed_share": 0.0243}, baseline=fp32).status is Status.OK
    one = verdict(TRAINING | {"grad_flushed_share": 0.067}, baseline=fp32)
    assert (one.code, one.number) == (Refusal.FLUSHED, pytest.approx(0.0495))


def test_parameters_that_are_not_finite_after_one_step_or_the_timed_ones_are_refused_unless_fp32s_are_too() -> None:
    broken = trained_by(param_nonfinite=3)
    assert (verdict(TRAINING, broken).code, verdict(TRAINING, broken).number) == (Refusal.PARAMETERS, 3)
    later = [make_round(make_case(), 1e-3, param_nonfinite=1)]
    assert verdict(TRAINING, rounds=later).number == 1
    fp32 = Seen(row=training_row("fp32"), found=trained_by(param_nonfinite=5))
    assert verdict(TRAINING, broken, baseline=fp32).status is Status.OK


def test_steps_that_the_scaler_skips_in_the_pass_or_any_round_are_refused() -> None:
    rounds = [make_round(make_case(), 1e-3, number, skipped_steps=3) for number in range(2)]
    one = verdict(TRAINING, trained_by(skipped_steps=2), precision="fp16_autocast", rounds=rounds)
    assert (one.code, one.number, one.limit) == (Refusal.SKIPPED, 8, 0)


def test_one_flip_in_eight_decisions_proves_nothing_but_two_do() -> None:
    for agreeing, status in ((7, Status.OK), (6, Status.REFUSED)):
        found = make_divergence(make_case(), argmax_agreeing=agreeing, argmax_decisions=8)
        assert verdict({"argmax_agreement": agreeing / 8}, found).status is status


@pytest.mark.parametrize(
    ("changes", "code", "number"),
    [
        ({}, None, None),
        ({"kept": 0.98}, None, None),
        ({"kept": 0.025, "swallowed": 998}, Refusal.UPDATE, 0.975),
        ({"kept": -0.5}, Refusal.UPDATE, 1.5),
        ({"worst_kept": 0.9}, None, None),
        ({"worst_kept": 0.42}, Refusal.UPDATE_OF_TENSOR, 0.58),
        ({"swallowed": 999, "swallowed_energy": 0.041}, Refusal.UNMOVED, 0.041),
        ({"swallowed": 900, "swallowed_energy": 0.02}, None, None),
        ({"kept": 0.97, "kept_error": 0.006, "swallowed": 990, "swallowed_energy": 0.9, "worst_kept": 0.8}, None, None),
        ({"kept": 0.9, "kept_error": 0.006}, Refusal.UPDATE, 0.088),
    ],
)
def test_what_a_step_loses_of_its_update_is_refused(
    changes: dict[str, Any], code: Refusal | None, number: float | None
) -> None:
    found = verdict(TRAINING | {"update_worst_parameter": "fc.weight"}, trained_by(update=Update(**WELL | changes)))
    assert (found.status, found.code if code else None) == (Status.REFUSED if code else Status.OK, code)
    if code:
        assert found.number == pytest.approx(number)
        assert found.subject == ("fc.weight" if code is Refusal.UPDATE_OF_TENSOR else "")


@pytest.mark.parametrize(
    ("rate", "changes", "lost"),
    [
        (1 / 32, {}, True),
        (1 / 16, {}, False),
        (1.0, {}, False),
        (None, {}, False),
        (1 / 32, {"steps": 0}, False),
        (1 / 32, {"counted_state": "compensation"}, False),
        (1 / 32, {"kept_error": 0.001}, False),
    ],
)
def test_an_update_needs_room_for_the_schedule_that_is_given(
    rate: float | None, changes: dict[str, Any], lost: bool
) -> None:
    energies = [0.0] * BINS
    energies[5 - LOWEST_BIN], energies[4 - LOWEST_BIN] = 0.97, 0.03  # 32 and 16 times half a unit and more
    recipe = structs.replace(ADAMW, least_rate=rate)
    found = verdict(TRAINING, trained_by(update=Update(**WELL | {"energies": energies} | changes), recipe=recipe))
    assert (found.status is Status.REFUSED) == lost
    assert found.code is Refusal.NO_ROOM or not lost


@pytest.mark.parametrize(
    ("error", "noise", "status"),
    [(0.3, 0.91, Status.OK), (0.3, 0.89, Status.REFUSED), (0.09, 0.01, Status.OK), (0.3, None, Status.OK)],
)
def test_an_error_of_gradients_counts_against_its_limit_and_the_noise_of_a_batch(
    error: float, noise: float | None, status: Status
) -> None:
    for columns, code in (
        ({"grad_rel_l2": error}, Refusal.GRADIENT_ERROR),
        ({"grad_tensor_rel_l2": 5 * error}, Refusal.GRADIENT_OF_TENSOR),
    ):
        measured = trained_by(grad_noise=noise, grad_tensor_noise=noise and 5 * noise)
        found = verdict(TRAINING | columns, measured)
        assert found.status is status
        assert status is Status.OK or found.code is code


def test_an_error_of_gradients_without_a_noise_is_advice() -> None:
    rows = [training_row("fp32", 10), training_row("bf16_autocast", 5, grad_rel_l2=0.3)]
    found = {"bf16_autocast": trained_by(grad_rel_l2=0.3, grad_noise=None, grad_no_noise=NoNoise.NO_MEAN)}
    taken = take(*rows, found=found)
    assert taken.precision == "bf16_autocast"
    (hint,) = [one for one in taken.hints if one.code is Hint.NOISE_UNKNOWN]
    assert hint.facts == {"error": 0.3, "limit": 0.1, "cause": NoNoise.NO_MEAN}


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_errors_of_outputs_refuse_in_the_units_of_their_task(phase: str) -> None:
    def judged(columns: dict[str, Any], budget: Budget = Budget(), **changes: Any) -> Verdict:  # noqa: B008
        own = columns | {"phase": phase, "output_rel_l2": 0.3}
        return verdict(own, (trained_by if phase == "training" else measured)(**changes), budget)

    def measured(**changes: Any) -> Divergence:
        return make_divergence(make_case(), **changes)

    spread = [OutputError(name="", elements=8, rel_l2=0.3, over_spread=0.05)]
    classes = {"predictions": Predictions(outputs=[""], rows=8)}
    assert judged({"output_over_spread": 0.05}, outputs=spread).status is Status.OK
    assert judged({}, outputs=spread, **classes).status is Status.OK
    plain = [structs.replace(spread[0], over_spread=None)]
    expected = Refusal.ERROR if phase == "inference" else None
    for refused in (judged({}, outputs=plain), judged({}, Budget(output_rel_l2=0.03), outputs=spread)):
        assert (refused.code if refused.status is Status.REFUSED else None) == expected


def test_a_classifiers_loss_may_be_off_by_a_hundredth_nat_whatever_its_share() -> None:
    columns = TRAINING | {"loss_rel_error": 0.5, "loss_abs_error": 0.009}
    classes = {"predictions": Predictions(outputs=[""], rows=8)}
    assert verdict(columns, trained_by(**classes)).status is Status.OK
    assert verdict(columns, trained_by()).code is Refusal.LOSS
    assert verdict(columns | {"loss_abs_error": 0.02}, trained_by(**classes)).code is Refusal.LOSS


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"grad_noise": 0.91}, Status.OK),
        ({"grad_noise": 0.89, "grad_rel_l2": 0.3}, Status.REFUSED),
        ({"grad_noise": None}, Status.REFUSED),
        ({"grad_noise": 0.91, "storage": 0.03}, Status.REFUSED),
        ({"grad_noise": 0.91, "state": 0.03}, Status.REFUSED),
    ],
)
def test_an_update_that_only_gradients_within_the_noise_can_turn_is_not_lost(
    changes: dict[str, Any], status: Status
) -> None:
    errors = {"gradient_rel_l2": 0.3, "storage_rel_l2": 0.0, "state_rel_l2": 0.0}
    errors |= {f"{name}_rel_l2": changes.pop(name) for name in ("storage", "state") if name in changes}
    update = Update(**WELL | {"kept": 0.93, "worst_kept": 0.8} | errors)
    found = verdict(TRAINING | {"grad_rel_l2": 0.3}, trained_by(update=update, **changes), precision="bf16_autocast")
    assert found.status is status


def test_near_ties_are_no_flips() -> None:
    ties = {"argmax_agreeing": 80, "argmax_decisions": 100, "further": FurtherDecisions(agreeing=80, decisions=100)}
    assert verdict({"argmax_agreement": 0.8}, make_divergence(make_case(), **ties)).code is Refusal.DECISIONS
    ties |= {"near_ties": 20, "further": FurtherDecisions(agreeing=80, decisions=100, near_ties=20)}
    found = verdict({"argmax_agreement": 0.8}, make_divergence(make_case(), **ties), Budget(argmax_agreement=1.0))
    assert found.status is Status.OK


def test_what_keeps_the_updates_is_named_where_they_are_lost() -> None:
    lost = trained_by(update=Update(**WELL | {"kept": 0.025}))
    rows = [training_row("fp32", 10), training_row("bf16_autocast", 7), training_row("bf16_pure", 5)]
    beside = take(*rows, training_row("bf16_master", 9), found={"bf16_pure": lost})
    assert (beside.precision, beside.statement.facts["passed"]) == ("bf16_autocast", "bf16_pure")
    assert beside.statement.facts["remedy"] == "bf16_master"
    assert take(*rows, found={"bf16_pure": lost}).statement.facts["remedy"] == "fp32 master weights"
    taken = take(rows[0], rows[2], training_row("bf16_master", 8), found={"bf16_pure": lost})
    assert (taken.precision, "remedy" in taken.statement.facts) == ("bf16_master", False)


def test_the_bins_tell_what_would_not_move_at_another_learning_rate() -> None:
    energies = [0.0] * BINS
    energies[13], energies[12], energies[9] = (
        0.5,
        0.3,
        0.2,
    )  # one to two, a half to one, a sixteenth to an eighth of half a unit
    update = Update(**WELL | {"energies": energies})
    assert below(update.energies, 1) == 0.5
    assert below(update.energies, 0.5) == 1
    assert below(update.energies, 2) == 0.2
    assert below(update.energies, 2**0.5) == pytest.approx(0.35)
    assert (below(update.energies, 1e9), below(update.energies, 1e-9)) == (0, 1)
    assert below(None, 1) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "simple_conv", "transformer_encoder"])
def test_fp32_tf32_autocast_and_master_weights_keep_the_updates_of_workloads_of_each_family(name: str) -> None:
    workload, references = build(name), References()
    for precision, one in PRECISIONS.items():
        if one.storage != "float32" and not one.master:
            continue
        found = measure_divergence(workload, training(name, precision), Cpu(), references)
        assert (precision, found.param_nonfinite, found.update.undefined) == (precision, 0, "")
        if found.gradient.rel_l2 <= Budget.grad_rel_l2:  # beyond it, the gradients themselves are refused
            expected = Status.BASELINE if precision in TODAYS else Status.OK
            assert (precision, judged_update(precision, found).status) == (precision, expected)


def judged_update(precision: str, found: Divergence) -> Verdict:
    """Return the verdict on a row that nothing but its update, as it was measured, can refuse."""
    return judge(Seen(row=training_row(precision), found=trained_by(update=found.update)), Budget())


def training(name: str, precision: str) -> Case:
    dtype = SHORT_DTYPES[PRECISIONS[precision].storage]
    return make_case(precision, phase="training", workload=name, input_dtype=dtype)


@pytest.mark.parametrize("decisions", [1, 8, 100, 1024, 32_000])
@pytest.mark.parametrize("minimum", [0.5, 0.99, 0.999])
def test_agreement_is_judged_as_by_the_exact_binomial_test(decisions: int, minimum: float) -> None:
    expected = decisions * (1 - minimum)
    for disagreements in {0, 1, 2, round(expected), round(expected + 3 * expected**0.5)}:
        if disagreements <= decisions:
            p = binomtest(disagreements, decisions, 1 - minimum, alternative="greater").pvalue
            found = make_divergence(make_case(), argmax_agreeing=decisions - disagreements, argmax_decisions=decisions)
            assert is_chance(found, minimum) == (p > 0.05)


@pytest.mark.parametrize("name", LIMITS)
def test_an_impossible_limit_is_refused_by_its_name(name: str) -> None:
    shares = ("argmax_agreement", "grad_flushed_share")
    for value in (-0.1, float("nan"), *([1.5] if name in shares else [])):
        with pytest.raises(UsageError, match=f"{name} is "):
            Budget(**{name: value})
    assert getattr(Budget(**{name: 0.0}), name) == 0

"""What speaks against a precision. How updates are measured is tested in tests/measure/test_updates.py."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from ampbench.base.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.base.statement import Refusal, Statement, state
from ampbench.errors import UsageError
from ampbench.judge.advice import Advice, advise
from ampbench.judge.objections import (
    Budget,
    Objection,
    agreement_fails,
    bias_objection,
    blame,
    blamed,
    object_to,
    rates_said,
    swallowed_at,
    update_objection,
)
from ampbench.measure.divergence import measure_divergence
from ampbench.measure.machine import Cpu
from ampbench.measure.reference import References
from ampbench.records.case import Case
from ampbench.records.measured import BINS, LOWEST_BIN, Divergence, Update
from ampbench.workload import Workload
from ampbench.workloads.index import WORKLOADS
from tests.judge.test_advice import row
from tests.stored_runs import make_case, make_divergence, make_round

WELL: dict[str, Any] = {
    "steps": 20, "rel_l2": 0.01, "kept": 1.0, "noise": 0.01, "moving": 1000, "swallowed": 0, "swallowed_energy": 0.0,
    "worst_parameter": "fc.weight", "worst_kept": 0.99, "rates": [0.01],
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"kept": 0.98}, None),
        ({"kept": 0.025, "swallowed": 998}, state(Refusal.UPDATE, kept=0.025, still=0.998)),
        ({"kept": -0.5}, state(Refusal.UPDATE, kept=-0.5)),
        ({"worst_kept": 0.9}, None),
        ({"worst_kept": 0.42}, state(Refusal.UPDATE_OF_TENSOR, parameter="fc.weight", kept=0.42)),
        ({"swallowed": 999, "swallowed_energy": 0.041}, state(Refusal.UNMOVED, still=0.999, energy=0.041)),
        ({"swallowed": 900, "swallowed_energy": 0.02}, None),
        ({"kept": 0.97, "kept_error": 0.006, "swallowed": 990, "swallowed_energy": 0.9, "worst_kept": 0.8}, None),
        ({"kept": 0.9, "kept_error": 0.006}, state(Refusal.UPDATE, kept=0.9)),
        ({"kept": None, "undefined": "the step changes no parameter in fp64"}, None),
    ],
)
def test_what_a_step_loses_of_its_update_is_an_objection(changes: dict[str, Any], reason: Statement | None) -> None:
    found = update_objection(Update(**WELL | changes))
    assert found == (Objection("update_kept", reason) if reason else None)


@pytest.mark.parametrize(
    ("below", "changes", "lost"),
    [
        (0.03, {}, True),
        (0.02, {}, False),
        (0.03, {"steps": 0}, False),
        (0.03, {"counted_state": "compensation"}, False),
        (0.03, {"kept_error": 0.001}, False),
    ],
)
def test_an_update_that_may_not_become_smaller_is_an_objection_to_a_training_that_begins(
    below: float, changes: dict[str, Any], lost: bool
) -> None:
    energies = [0.0] * BINS
    energies[5 - LOWEST_BIN], energies[4 - LOWEST_BIN] = 1 - below, below  # 32 and 16 times half a unit and more
    found = update_objection(Update(**WELL | {"energies": energies} | changes))
    assert found == (object_to("update_kept", Refusal.NO_ROOM, room=32, lost=below) if lost else None)


def trained(*faults: dict[str, Any], rounds: dict[str, Any] | None = None, **columns: Any) -> Advice:
    """Return the advice on fp32 and bf16_pure (and bf16_master), whose divergences have these fields."""
    names = ("fp32", "bf16_pure", "bf16_master")[: len(faults)]
    rows = [
        row(name, time, phase="training", peak_memory_bytes=memory, **columns)
        for name, time, memory in zip(names, (10, 6, 9.9), (20_000, 10_000, 18_000), strict=False)
    ]
    cases = {name: make_case(name, phase="training") for name in names}
    found = {
        one["case_id"]: make_divergence(cases[name], **{"update": Update(**WELL), "grad_elements": 1000} | fault)
        for one, name, fault in zip(rows, names, faults, strict=True)
    }
    timed = {rows[1]["case_id"]: [make_round(cases["bf16_pure"], 1e-3, **rounds)]} if rounds else {}
    (advice,) = advise(rows, found, Budget(), timed).values()
    return advice


LOST = Update(**WELL | {"kept": 0.025, "swallowed": 998})


def test_what_keeps_the_updates_is_said_with_its_price() -> None:
    assert trained({}, {"update": LOST}).sentence == (
        "stay in fp32: bf16_pure is 1.67x as fast, but it keeps 2.50% of its updates: 99.8% of the weights that should "
        "move do not; fp32 master weights keep them, at 4 bytes a parameter"
    )
    assert trained({}, {"update": LOST}, {}).sentence.endswith(
        "do not; bf16_master keeps the updates: 1.01x the speed of fp32, 8 bytes a parameter more than bf16_pure"
    )
    assert trained({}, {}).precision == "bf16_pure"


def test_parameters_that_are_not_finite_are_an_objection_before_and_after_the_timed_steps() -> None:
    assert "but 3 parameter elements are not finite after one step;" in trained({}, {"param_nonfinite": 3}).sentence
    after = trained({}, {}, rounds={"param_nonfinite": 1})
    assert "1 parameter element is not finite after the timed steps" in after.sentence
    assert trained({"param_nonfinite": 5}, {"param_nonfinite": 3}).precision == "bf16_pure"  # so are those of fp32


def test_the_gradient_of_a_tensor_that_matters_and_the_bias_over_batches_are_judged() -> None:
    worst = {"grad_tensor_rel_l2": 0.6, "grad_tensor_parameter": "fc.weight"}
    said = "the gradient of fc.weight errs by 6.0e-01, more than 0.5, 5 times what is allowed of all"
    assert said in trained({}, worst).sentence
    assert trained({}, worst | {"grad_tensor_rel_l2": 0.4}).precision == "bf16_pure"
    alike = trained({}, {"grad_bias": 0.09, "grad_noise": 0.5})
    assert alike.column == "grad_bias_ratio"
    assert "its gradients err alike in all batches, by 18.0% of what batches differ by" in alike.sentence
    assert trained({}, {"grad_bias": 0.09, "grad_noise": 1.0}).precision == "bf16_pure"
    small = Divergence(case_id="c", reference_device="cpu", weights_digest="a", inputs_digest="b",
                       grad_bias=0.01, grad_noise=0.01)  # fmt: skip
    assert bias_objection(small) is None


def test_whose_fault_an_error_is_follows_from_squares() -> None:
    update = Update(**WELL | {"storage_rel_l2": 0.8, "gradient_rel_l2": 0.2, "state_rel_l2": 0.0})
    assert blame(update) == pytest.approx({"storage": 0.64 / 0.68, "gradients": 0.04 / 0.68, "state": 0})
    assert blamed(update) == "storage 94.1%, gradients 5.88%"
    assert blame(Update(**WELL)) == {}


def test_the_bins_tell_what_would_not_move_at_another_learning_rate() -> None:
    sizes = [0] * BINS
    sizes[13], sizes[12], sizes[9] = 100, 60, 40  # one to two, a half to one, a sixteenth to an eighth of half a unit
    update = Update(**WELL | {"sizes": sizes})
    assert swallowed_at(update, 1) == 0.5
    assert swallowed_at(update, 0.5) == 1
    assert swallowed_at(update, 2) == 0.2
    assert swallowed_at(update, 2**0.5) == pytest.approx(0.35)
    assert (swallowed_at(update, 1e9), swallowed_at(update, 1e-9)) == (0, 1)
    assert rates_said(update) == "100% at a learning rate of 0.001, 13.6% at 0.1"
    assert swallowed_at(Update(**WELL), 1) is None


@pytest.mark.parametrize("precision", ["bf16_pure", "fp16_pure"])
def test_what_the_bins_tell_is_what_is_measured_at_that_rate(precision: str) -> None:
    def update(rate: float) -> Update:
        torch.manual_seed(0)
        workload = Workload(
            module=torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 32)),
            inputs=torch.randn(32, 64),
            targets=torch.randn(32, 32),
            loss=torch.nn.functional.mse_loss,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
        )
        found = measure_divergence(workload, training("net", precision), Cpu(), References()).update
        assert found is not None
        return found

    one = update(0.1)
    for rate in (1.0, 0.1, 0.01):
        other = update(rate)
        share = other.swallowed / other.moving
        assert swallowed_at(one, rate / 0.1) == pytest.approx(share, abs=0.03), rate


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, spec in WORKLOADS.items() if "training" in spec.phases])
def test_fp32_tf32_autocast_and_master_weights_keep_the_updates_of_every_built_in_workload(
    name: str, built: Callable[[str], Workload]
) -> None:
    if WORKLOADS[name].needs:
        pytest.importorskip(WORKLOADS[name].needs)
    workload, references = built(name), References()
    for precision, one in PRECISIONS.items():
        if workload.loss is None or (one.storage != "float32" and not one.master):
            continue
        found = measure_divergence(workload, training(name, precision), Cpu(), references)
        assert (precision, found.param_nonfinite, found.update.undefined) == (precision, 0, "")
        if found.grad_rel_l2 <= Budget.grad_rel_l2:  # beyond it, the gradients themselves are the objection
            assert (precision, update_objection(found.update)) == (precision, None)


@pytest.mark.parametrize("name", ["simple_conv", "mlp", "cross_entropy_head"])
def test_pure_bf16_loses_the_updates_of_small_presets(name: str, built: Callable[..., Workload]) -> None:
    found = measure_divergence(built(name, "small"), training(name, "bf16_pure"), Cpu(), References())
    assert update_objection(found.update)
    assert found.update.storage_rel_l2 > 0.9 * found.update.rel_l2


def test_adamw_in_pure_fp16_leaves_parameters_that_are_not_finite(built: Callable[[str], Workload]) -> None:
    name = "transformer_encoder"
    found = measure_divergence(built(name), training(name, "fp16_pure"), Cpu(), References())
    assert found.param_nonfinite > 0
    assert found.update.kept is None


def training(name: str, precision: str) -> Case:
    dtype = SHORT_DTYPES[PRECISIONS[precision].storage]
    return make_case(precision, phase="training", workload=name, input_dtype=dtype)


@pytest.fixture
def built() -> Callable[..., Workload]:
    from ampbench.measure.sources import build_workload
    from ampbench.workloads.index import source

    def build(name: str, preset: str = "tiny") -> Workload:
        spec = WORKLOADS[name]
        return build_workload(source(spec), dict(spec.preset(preset)), 0)

    return build


def test_the_median_change_of_a_bin_is_within_it() -> None:
    ratios = np.exp2(np.random.default_rng(0).uniform(-3, 3, 10_000))
    sizes = np.bincount((np.floor(np.log2(ratios)) + 13).astype(int), minlength=BINS)
    update = Update(**WELL | {"sizes": sizes.tolist()})
    for factor in (0.3, 1.0, 4.0):
        assert swallowed_at(update, factor) == pytest.approx((ratios * factor < 1).mean(), abs=0.01)


def test_a_faster_precision_that_is_passed_over_names_what_keeps_its_updates() -> None:
    names = {"fp32": 10, "bf16_autocast": 7, "bf16_pure": 5, "bf16_master": 9}
    rows = [row(name, time, phase="training", peak_memory_bytes=1e4) for name, time in names.items()]
    lost = {"update": LOST, "grad_elements": 1000}
    found = {rows[2]["case_id"]: make_divergence(make_case("bf16_pure", phase="training"), **lost)}
    (advice,) = advise(rows, found, Budget()).values()
    assert advice.sentence.startswith("take bf16_autocast: 1.43x")
    assert advice.sentence.endswith("do not; bf16_master keeps the updates: 1.11x the speed of fp32")


def test_where_nobody_knows_whether_updates_arrive_the_advice_says_so() -> None:
    assert trained({}, {"update": None}).sentence.endswith("of 0.02 allowed, its updates not measured")
    assert trained({}, {"update": Update(steps=0, undefined="no second step")}).sentence.endswith("not measured")
    assert trained({}, {}).sentence.endswith("of 0.02 allowed")


@pytest.mark.parametrize("decisions", [1, 8, 100, 1024, 32_000])
@pytest.mark.parametrize("minimum", [0.5, 0.99, 0.999])
def test_agreement_is_judged_as_by_the_exact_binomial_test(decisions: int, minimum: float) -> None:
    expected = decisions * (1 - minimum)
    for disagreements in {0, 1, 2, round(expected), round(expected + 3 * expected**0.5)}:
        if disagreements <= decisions:
            p = binomtest(disagreements, decisions, 1 - minimum, alternative="greater").pvalue
            assert agreement_fails(decisions - disagreements, decisions, minimum) == (p <= 0.05)


def test_full_agreement_can_be_asked_for() -> None:
    assert agreement_fails(999, 1000, 1.0)
    assert not agreement_fails(1000, 1000, 1.0)


@pytest.mark.parametrize(
    ("limits", "flag"),
    [
        ({"output_rel_l2": -1.0}, "--max-error"),
        ({"output_rel_l2": float("nan")}, "--max-error"),
        ({"grad_rel_l2": -0.1}, "--max-gradient-error"),
        ({"argmax_agreement": 99.0}, "--min-argmax-agreement"),
        ({"grad_flushed_share": 1.5}, "--max-flushed-share"),
        ({"sample_p99_rel_l2": -0.1}, "--max-sample-error"),
        ({"sample_worst_rel_l2": float("nan")}, "--max-worst-sample-error"),
        ({"kl_mean": -1.0}, "--max-kl "),
        ({"kl_p99": -1.0}, "--max-kl-p99"),
        ({"loss_rel_error": -1.0}, "--max-loss-error"),
    ],
)
def test_an_impossible_limit_is_refused_by_its_flag(limits: dict[str, float], flag: str) -> None:
    with pytest.raises(UsageError, match=flag):
        Budget(**limits)


def test_half_of_a_bin_is_below_what_lies_in_its_middle() -> None:
    sizes = [0.0] * BINS
    sizes[0], sizes[1] = 30.0, 70.0
    update = Update(**WELL, sizes=sizes)
    assert swallowed_at(update, 2.0 ** (-LOWEST_BIN - 0.5)) == pytest.approx(0.15)
    assert swallowed_at(update, 2.0 ** (-LOWEST_BIN - 1.5)) == pytest.approx(0.65)
    assert swallowed_at(update, 2.0**-LOWEST_BIN) == 0

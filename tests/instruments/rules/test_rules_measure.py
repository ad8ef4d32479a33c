import re

import pytest
import torch
from packaging.version import Version

from ampbench.instruments.rules.findings import find_disagreements
from ampbench.instruments.rules.measure import (
    ABSENT,
    CALLED,
    NAMES,
    NEEDS_GRAD,
    PLACEMENTS,
    call_traced,
    observe,
    probe_rules,
    probe_traps,
    rule_ops,
    stale_cache,
    trace_under_autocast,
)
from ampbench.records.case import DEVICES
from ampbench.records.rules import CATEGORIES
from ampbench.trace.dtypes import is_present
from ampbench.trace.rules.documented import registered_ops


@pytest.fixture(scope="module")
def probes():
    return {device: probe_rules(device, ["bfloat16"]) for device in DEVICES}


def rule(probe, name):
    return next(one for one in probe.observations if one.name == name)


def disagreements(probe, name):
    return {(one.kind, one.source, one.documented, one.observed) for one in find_disagreements(probe) if one.op == name}


def test_a_probe_has_one_row_per_op_and_dtype_and_knows_its_torch(probes):
    for device, probe in probes.items():
        assert [one.name for one in probe.observations] == rule_ops()
        assert (probe.torch_version, probe.device, probe.without_sample) == (torch.__version__, device, [])


def test_what_was_observed_is_a_category_and_what_was_not_has_a_reason(probes):
    for device, probe in probes.items():
        for one in probe.observations:
            if one.observed is None:
                assert one.how == "not observed"
                assert one.reason
            else:
                assert one.observed in CATEGORIES
                assert one.how == ("device" if is_present(device) else "fake tensors")


def test_nearly_every_registered_rule_is_observed_to_have_an_effect(probes):
    for device, probe in probes.items():
        by_name = {one.name: one for one in probe.observations}
        silent = [name for name in registered_ops(device) if by_name[name].observed in (None, "unlisted")]
        assert [name for name in silent if by_name[name].reason != NAMES] in ([], ["aten::_cudnn_rnn"])


def test_xpus_prelu_and_binary_cross_entropy_disagree_with_the_documents(probes):
    assert ("undocumented", "pytorch_page", "unlisted", "lower_precision") in disagreements(
        probes["xpu"], "aten::prelu"
    )
    banned = disagreements(probes["xpu"], "aten::binary_cross_entropy")
    assert ("contradicted", "xpu_reference", "float32", "banned") in banned
    assert find_disagreements(probes["xpu"])[0].op == "aten::binary_cross_entropy"


@pytest.mark.parametrize("op", ["mse_loss", "smooth_l1_loss", "acos", "expm1", "addcdiv", "dot"])
def test_what_pytorchs_page_omits_for_xpu_is_found(probes, op):
    kinds = {(kind, source) for kind, source, _, _ in disagreements(probes["xpu"], f"aten::{op}")}
    assert ("undocumented", "pytorch_page") in kinds


def test_softmax_stays_low_on_the_cpu_and_goes_to_fp32_elsewhere(probes):
    assert {device: rule(probes[device], "aten::softmax.int").observed for device in DEVICES} == {
        "cpu": "unlisted",
        "cuda": "float32",
        "xpu": "float32",
    }


def test_rms_norm_is_on_the_fp32_list_from_torch_2_12_on(probes):
    expected = "float32" if Version(torch.__version__) >= Version("2.12") else "unlisted"
    assert rule(probes["cuda"], "aten::rms_norm").observed == expected
    assert rule(probes["xpu"], "aten::rms_norm").observed == expected
    assert rule(probes["cpu"], "aten::rms_norm").observed == "unlisted"


def test_addmm_is_eligible_and_its_in_place_and_out_forms_are_not(probes):
    for device in DEVICES:
        variants = rule(probes[device], "aten::addmm").variants
        assert {variants[name] for name in ("fp64", "integer", "in-place", "out=")} == {"unchanged"}


def test_both_dtypes_have_the_same_rules_on_the_cpu(probes):
    half = probe_rules("cpu", ["float16"], ops=["aten::linear", "aten::cat", "aten::mse_loss", "aten::softmax.int"])
    for one in half.observations:
        assert one.observed == rule(probes["cpu"], one.name).observed


def test_an_op_that_this_torch_has_not_is_marked_so_and_raises_nothing():
    gone = observe("aten::_convolution_nogroup", "xpu", "bfloat16")
    assert (gone.observed, gone.how, gone.reason, gone.registered) == (None, "not observed", ABSENT, False)
    assert gone.documented["xpu_reference"] == "lower_precision"


def test_an_op_without_a_sample_is_named():
    assert probe_rules("cpu", ["bfloat16"], ops=["aten::relu"]).without_sample == ["aten::relu"]


def test_an_op_is_probed_in_versions_without_a_rule_for_it_so_that_a_new_rule_is_seen_as_such():
    assert "aten::rms_norm" in rule_ops()
    assert "aten::add.Tensor" in rule_ops()
    assert "aten::no_such_op" not in rule_ops()


def test_a_probe_leaves_autocast_as_it_was(probes):
    for device in DEVICES:
        assert not torch.is_autocast_enabled(device)
    assert torch.get_autocast_dtype("xpu") == torch.float16


def test_the_stale_cache_is_probed_and_the_claim_follows_from_what_was_found():
    claim = stale_cache("cpu")
    assert claim.found in ("the gradient is kept", "the gradient is lost")
    assert claim.holds == (claim.found == "the gradient is lost")


def test_tracing_inside_autocast_fails_with_the_weight_cache_and_works_without():
    with_cache = trace_under_autocast("cpu", "around", cache=True, check=True)
    assert with_cache.found.startswith(f"fails: {NEEDS_GRAD}")
    without = trace_under_autocast("cpu", "around", cache=False, check=True)
    assert without.found.startswith("works: returns bfloat16")
    assert with_cache.holds
    assert without.holds


def test_it_is_the_second_tracing_that_fails_so_without_the_check_it_works():
    claim = trace_under_autocast("cpu", "around", cache=True, check=False)
    assert claim.found.startswith("works")
    assert claim.holds is False


@pytest.mark.parametrize("cache", [True, False])
def test_autocast_inside_the_traced_module_works(cache):
    assert trace_under_autocast("cpu", "inside", cache=cache, check=True).found.startswith("works: returns bfloat16")


@pytest.mark.parametrize(("placement", "frozen"), CALLED)
def test_what_a_trace_gives_outside_and_inside_a_region_is_tried_and_held_against_eager_mode(placement, frozen):
    claim = call_traced("cpu", placement, frozen)
    found = re.fullmatch(
        r"outside a region (\w+), inside (\w+), eager autocast (\w+); (\d+) casts in the graph", claim.found
    )
    outside, inside, eager, casts = found.groups()
    assert eager == "bfloat16"  # CPU has no rule for layer_norm, which keeps the dtype of its input
    assert claim.holds == (inside == eager and outside == ("float32" if placement == "nowhere" else eager))
    assert (int(casts) == 0) == (placement == "nowhere")


def test_every_placement_has_a_claim_of_its_own_name():
    names = [claim.name for claim in probe_traps("cpu")]
    assert len(set(names)) == len(names)


def test_an_absent_device_is_never_traced_or_trained_on():
    device = next(one for one in ("xpu", "cuda") if not is_present(one))
    claims = probe_traps(device)
    assert len(claims) == 1 + len(PLACEMENTS) + len(CALLED)
    assert {claim.how for claim in claims} == {"not observed"}


def test_probing_leaves_autocast_and_its_cache_as_they_were():
    before = torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()
    probe_traps("cpu")
    assert (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()) == before

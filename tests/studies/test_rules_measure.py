import pytest
import torch
from packaging.version import Version

from ampbench.records.case import DEVICES
from ampbench.records.rules import CATEGORIES
from ampbench.studies.devices_measure import ABSENT, NAMES, NO_SAMPLE, observe, probe_rules, rule_ops
from ampbench.studies.rules import SOURCES, find_disagreements
from ampbench.trace.dtypes import is_present
from ampbench.trace.rules import registered_ops

NAMED = {
    "acos", "addcdiv", "addmm", "binary_cross_entropy", "cat", "dot", "expm1", "linear", "mse_loss", "prelu",
    "rms_norm", "smooth_l1_loss", "softmax",
}  # fmt: skip
"""The ops that tests here name."""


@pytest.fixture(scope="module")
def probes():
    ops = [name for name in rule_ops() if name.partition(".")[0].removeprefix("aten::") in NAMED]
    return {device: probe_rules(device, ["bfloat16"], ops=ops) for device in DEVICES}


@pytest.fixture(scope="module")
def all_probes():
    return {device: probe_rules(device, ["bfloat16"]) for device in DEVICES}


def rule(probe, name):
    return next(one for one in probe.observations if one.name == name)


def disagreements(probe, name):
    """The kinds of disagreement about an op, with what each document says and what is observed."""
    found = [one for one in find_disagreements(probe) if one.op == name]
    return {
        (one.kind, source, said, one.observed)
        for one in found
        for source, said in zip(SOURCES, one.documented, strict=True)
    }


@pytest.mark.slow
def test_a_probe_has_one_row_per_op_and_dtype_and_a_call_to_try_each_with(all_probes):
    for device, probe in all_probes.items():
        assert [one.name for one in probe.observations] == rule_ops()
        assert probe.device == device
        assert NO_SAMPLE not in {one.reason for one in probe.observations}


def test_what_was_observed_is_a_category_and_what_was_not_has_a_reason(probes):
    for device, probe in probes.items():
        for one in probe.observations:
            if one.observed is None:
                assert one.how == "not observed"
                assert one.reason
            else:
                assert one.observed in CATEGORIES
                assert one.how == ("device" if is_present(device) else "fake tensors")


@pytest.mark.slow
def test_nearly_every_registered_rule_is_observed_to_have_an_effect(all_probes):
    for device, probe in all_probes.items():
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


def test_rms_norm_is_on_the_fp32_list_from_torch_2_12_on(probes):
    expected = "float32" if Version(torch.__version__) >= Version("2.12") else "unlisted"
    assert rule(probes["cuda"], "aten::rms_norm").observed == expected
    assert rule(probes["xpu"], "aten::rms_norm").observed == expected
    assert rule(probes["cpu"], "aten::rms_norm").observed == "unlisted"


def test_an_op_that_this_torch_has_not_is_marked_so_and_raises_nothing():
    gone = observe("aten::_convolution_nogroup", "xpu", "bfloat16")
    assert (gone.observed, gone.how, gone.reason, gone.registered) == (None, "not observed", ABSENT, False)
    assert gone.documented["xpu_reference"] == "lower_precision"


def test_a_probe_leaves_autocast_as_it_was(probes):
    for device in DEVICES:
        assert not torch.is_autocast_enabled(device)
    assert torch.get_autocast_dtype("xpu") == torch.float16

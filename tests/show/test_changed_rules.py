"""Changed rules of autocast, as comparisons and gates tell them: what alters a rule, and what does not."""

from dataclasses import replace

from ampbench.records.rules import RuleChange
from ampbench.show.comparison import rule_lines

BOTH = ["float16", "bfloat16"]
RMS = RuleChange(op="aten::rms_norm", device="cuda", dtypes=BOTH, field="observed", before="unlisted", after="float32")
REGISTERED = replace(RMS, field="registered", before="no", after="yes")
GONE = replace(RMS, op="aten::sum.dimname", field="op", before="there, not observed", after="not there")


def test_an_op_gone_of_which_no_rule_was_ever_observed_alters_nothing():
    assert not GONE.alters
    assert replace(GONE, before="there, float32").alters


def test_a_rule_that_is_registered_and_observed_now_is_one_sentence_for_all_devices():
    both = [replace(one, device=device) for one in (RMS, REGISTERED) for device in ("cuda", "xpu")]
    assert rule_lines(both) == ["rms_norm on cuda, xpu: unlisted → float32"]
    assert rule_lines([REGISTERED, GONE]) == ["rms_norm on cuda, registered: no → yes"]


def test_a_changed_rule_is_called_by_its_op_and_device():
    assert replace(RMS, op="aten::softmax.int").rule_id == "softmax.int/cuda"

"""What changed between two probes, in words; what the later one no longer sees."""

from dataclasses import replace

from ampbench.instruments.rules.findings import alters, changed_ops_said, missing_dtypes, others_said, unobserved
from ampbench.records.rules import NOT_OBSERVED, RuleChange
from tests.rule_probes import observation, probe

BOTH = ["float16", "bfloat16"]
RMS = RuleChange(op="aten::rms_norm", device="cuda", dtypes=BOTH, field="observed", before="unlisted", after="float32")
REGISTERED = replace(RMS, field="registered", before="no", after="yes")
GONE = replace(RMS, op="aten::sum.dimname", field="op", before="there, not observed", after="not there")


def test_an_op_gone_of_which_no_rule_was_ever_observed_alters_nothing():
    assert not alters(GONE)
    assert alters(replace(GONE, before="there, float32"))


def test_a_rule_that_is_registered_and_observed_now_is_one_sentence_for_all_devices():
    both = [replace(one, device=device) for one in (RMS, REGISTERED) for device in ("cuda", "xpu")]
    assert changed_ops_said(both) == ["rms_norm on cuda, xpu: unlisted → float32"]
    assert changed_ops_said([REGISTERED, GONE]) == ["rms_norm on cuda, registered: no → yes"]


def test_what_alters_no_rule_is_counted_by_kind_each_op_once():
    changes = [
        replace(GONE, device="xpu"),
        GONE,
        RMS,
        replace(GONE, op="aten::fresh", before="not there", after="there, float32"),
        replace(RMS, field="documented by pytorch_page"),
        RuleChange(op="jit.trace, cached", device="cpu", dtypes=[], field="claim", before="works", after="fails"),
    ]
    assert others_said(changes) == [
        "1 op gone of which no rule was ever observed: sum.dimname",
        "1 new op with a rule: fresh",
        "1 op documented otherwise: rms_norm",
        "1 claim tried with another outcome: jit.trace, cached",
    ]


def test_ops_that_only_the_earlier_probe_observed_are_told_and_those_that_are_gone_are_not():
    seen = [observation(f"aten::op{number}", dtype, observed="float32") for number in range(3) for dtype in BOTH]
    before = probe(*seen, dtypes=BOTH)
    after = probe(
        *(replace(one, observed=None) for one in seen[:2]),
        replace(seen[2], observed=None),
        seen[3],
        *(replace(one, observed=None, registered=None, trials={}) for one in seen[4:]),
        dtypes=BOTH,
    )
    assert [(one.op, one.dtypes, one.before, one.after) for one in unobserved(before, after)] == [
        ("aten::op0", BOTH, "float32", NOT_OBSERVED),
        ("aten::op1", ["float16"], "float32", NOT_OBSERVED),
    ]
    assert unobserved(after, before) == []


def test_dtypes_that_only_the_earlier_probe_tried_are_named():
    before, after = probe(dtypes=BOTH, device="cuda"), probe(device="cuda")
    assert missing_dtypes(before, after) == "cuda to fp16"
    assert missing_dtypes(before, probe(dtypes=[])) == "cuda to fp16 and bf16"
    assert missing_dtypes(after, before) == ""

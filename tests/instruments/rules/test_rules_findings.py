"""Where a probe disagrees with documents, and what changed between two probes, in words."""

from dataclasses import replace

import pytest
from msgspec import structs

from ampbench.instruments.rules.findings import (
    DISAGREEMENTS,
    compare_rules,
    find_disagreements,
    missing_dtypes,
    unobserved,
)
from ampbench.records.rules import NOT_OBSERVED, RuleChange, RuleClaim
from ampbench.show.changes import other_rule_lines, rule_lines
from tests.rule_probes import call, observation, probe, trial

PAGE = "pytorch_page"


def kinds(*observations, **given):
    return [one.kind for one in find_disagreements(probe(*observations, **given))]


def test_an_op_that_does_what_is_documented_is_no_disagreement():
    assert kinds(observation(documented={PAGE: "float32"}, observed="float32")) == []
    assert kinds(observation(documented={PAGE: "unlisted"}, observed="unlisted", registered=False)) == []


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("contradicted", {"documented": {PAGE: "float32"}, "observed": "banned"}),
        ("not applied", {"documented": {PAGE: "float32"}, "observed": "unlisted", "registered": False}),
        ("undocumented", {"documented": {PAGE: "unlisted"}, "observed": "lower_precision"}),
        ("no effect", {"observed": "unlisted"}),
        ("inherited", {"documented": {PAGE: "unlisted"}, "observed": "float32", "registered": False}),
        ("gone", {"documented": {PAGE: "float32"}, "registered": False, "how": "not observed", "trials": {}}),
    ],
)
def test_each_kind_of_disagreement_is_told_from_the_others(kind, given):
    assert kinds(observation(**given)) == [kind]


def test_what_was_not_observed_disagrees_with_nothing():
    unseen = observation(documented={PAGE: "float32"}, observed=None, how="not observed")
    assert kinds(unseen) == []


def test_an_op_that_promotes_by_itself_is_not_called_a_rule_that_is_missing():
    itself = call("float16", "float32", outputs=["float32"])
    alone = trial(itself, itself)
    given = {"documented": {PAGE: "widest"}, "observed": "unlisted", "registered": False}
    assert kinds(observation(**given, trials={"mixed": alone})) == ["promotes by itself"]
    refused = trial(call(error="no"), call(error="no"))
    assert kinds(observation(**given, trials={"mixed": refused})) == ["not applied"]


def test_two_documents_that_name_different_rules_are_reported_beside_the_one_that_is_wrong():
    both = observation(documented={"xpu_reference": "lower_precision", PAGE: "float32"}, observed="float32")
    found = find_disagreements(probe(both))
    assert [one.kind for one in found] == ["contradicted", "documents differ"]
    assert found[0].source == "xpu_reference"


def test_only_the_variants_a_document_exempts_are_held_against_it():
    changed = {"dtype=": "changed", "in-place": "unchanged", "out=": "refused"}
    documented = {"xpu_reference": "float32", PAGE: "float32"}
    found = find_disagreements(probe(observation(documented=documented, observed="float32", variants=changed)))
    assert {(one.source, one.observed) for one in found} == {
        ("xpu_reference", "out= refused"),
        (PAGE, "out= refused"),
        (PAGE, "dtype= changed"),
    }


def test_an_op_that_depends_on_the_dtype_is_found_and_the_same_finding_in_both_dtypes_is_one():
    differing = [
        observation(dtype="float16", observed="lower_precision"),
        observation(dtype="bfloat16", observed="float32"),
    ]
    assert kinds(*differing) == ["depends on dtype", "depends on dtype"]
    same = [
        observation(dtype=dtype, observed="float32", documented={PAGE: "widest"}) for dtype in ("float16", "bfloat16")
    ]
    (found,) = find_disagreements(probe(*same))
    assert found.dtypes == ["float16", "bfloat16"]


def test_disagreements_come_most_misleading_first_and_internal_ops_last():
    found = find_disagreements(
        probe(
            observation("aten::b", observed="float32", documented={PAGE: "unlisted"}),
            observation("aten::_a", observed="float32", documented={PAGE: "unlisted"}),
            observation("aten::z", observed="banned", documented={PAGE: "float32"}),
        )
    )
    assert [one.op for one in found] == ["aten::z", "aten::b", "aten::_a"]
    assert next(iter(DISAGREEMENTS)) == "contradicted"


def test_a_comparison_finds_the_planted_changes_and_no_others():
    same = observation("aten::same", observed="widest")
    before = probe(
        same,
        observation("aten::rms", observed="unlisted", registered=False),
        observation("aten::lost", observed="float32"),
        observation("aten::pad", observed="float32", variants={"out=": "unchanged"}),
        claims=[claim("DeprecationWarning")],
    )
    after = probe(
        same,
        observation("aten::rms", observed="float32", registered=True),
        observation("aten::pad", observed="float32", variants={"out=": "refused"}),
        observation("aten::new", observed="float32"),
        observation("aten::ruleless", observed="unlisted", registered=False),
        claims=[claim("FutureWarning")],
    )
    told = [(one.field, one.op, one.before, one.after) for one in compare_rules(before, after)]
    assert told == [
        ("observed", "aten::rms", "unlisted", "float32"),
        ("registered", "aten::rms", "no", "yes"),
        ("variant out=", "aten::pad", "unchanged", "refused"),
        ("claim", "a claim", "DeprecationWarning", "FutureWarning"),
        ("op", "aten::lost", "there, float32", "not there"),
        ("op", "aten::new", "not there", "there, float32"),
    ]


def test_what_only_one_probe_could_observe_is_no_change():
    unseen = observation(observed=None, how="not observed")
    assert compare_rules(probe(unseen), probe(observation(observed="float32"))) == []


def test_probes_of_two_devices_are_not_compared():
    with pytest.raises(ValueError, match="probes of cpu and of xpu"):
        compare_rules(probe(device="cpu"), probe(device="xpu"))


def claim(found):
    return RuleClaim(name="a claim", device="xpu", source="", said="", found=found, holds=None, how="device")


def test_an_op_that_goes_alters_what_autocast_does_and_one_that_comes_does_not():
    without, with_op = probe(), probe(observation(observed="float32"))
    (gone,), (new,) = compare_rules(with_op, without), compare_rules(without, with_op)
    assert (gone.alters, new.alters) == (True, False)


@pytest.mark.parametrize(
    ("given", "altering"),
    [
        ({"observed": "unlisted"}, True),
        ({"observed": "float32", "registered": False}, True),
        ({"observed": "float32", "variants": {"out=": "refused"}}, True),
        ({"observed": "float32", "documented": {PAGE: "unlisted"}}, False),
    ],
)
def test_another_rule_or_treatment_alters_what_autocast_does_another_document_does_not(given, altering):
    before = observation(observed="float32", variants={"out=": "unchanged"}, documented={PAGE: "float32"})
    now = {"variants": {"out=": "unchanged"}, "documented": {PAGE: "float32"}} | given
    (change,) = compare_rules(probe(before), probe(observation(**now)))
    assert change.alters is altering


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


def test_what_alters_no_rule_is_counted_by_kind_each_op_once():
    changes = [
        replace(GONE, device="xpu"),
        GONE,
        RMS,
        replace(GONE, op="aten::fresh", before="not there", after="there, float32"),
        replace(RMS, field="documented by pytorch_page"),
        RuleChange(op="jit.trace, cached", device="cpu", dtypes=[], field="claim", before="works", after="fails"),
    ]
    assert other_rule_lines(changes) == [
        "1 op gone of which no rule was ever observed: sum.dimname",
        "1 new op with a rule: fresh",
        "1 op documented otherwise: rms_norm",
        "1 claim tried with another outcome: jit.trace, cached",
    ]


def test_ops_that_only_the_earlier_probe_observed_are_told_and_those_that_are_gone_are_not():
    seen = [observation(f"aten::op{number}", dtype, observed="float32") for number in range(3) for dtype in BOTH]
    before = probe(*seen, dtypes=BOTH)
    after = probe(
        *(structs.replace(one, observed=None) for one in seen[:2]),
        structs.replace(seen[2], observed=None),
        seen[3],
        *(structs.replace(one, observed=None, registered=None, trials={}) for one in seen[4:]),
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

"""Where a probe disagrees with documents, and what changed between two: rows, statements, parts of a page."""

import pytest
from msgspec import structs

from ampbench.records.rules import FAKE, NOT_OBSERVED
from ampbench.studies.rules import RulesCode, compare_rules, conclusions, find_disagreements, unobserved
from ampbench.studies.study import Torch
from tests.rule_probes import call, observation, probe, trial

REFERENCE, PAGE = "xpu_reference", "pytorch_page"
BOTH = ["float16", "bfloat16"]


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


def test_an_op_that_promotes_by_itself_is_not_called_a_rule_that_is_missing():
    itself = call("float16", "float32", outputs=["float32"])
    alone = trial(itself, itself)
    given = {"documented": {PAGE: "widest"}, "observed": "unlisted", "registered": False}
    assert kinds(observation(**given, trials={"mixed": alone})) == ["promotes by itself"]
    refused = trial(call(error="no"), call(error="no"))
    assert kinds(observation(**given, trials={"mixed": refused})) == ["not applied"]


def test_two_documents_that_name_different_rules_are_reported_beside_what_they_say_wrong():
    both = observation(documented={REFERENCE: "lower_precision", PAGE: "float32"}, observed="float32")
    found = find_disagreements(probe(both))
    assert [one.kind for one in found] == ["contradicted", "documents differ"]
    assert {one.documented for one in found} == {("lower_precision", "float32")}


def test_a_comparison_finds_the_planted_changes_and_no_others():
    same = observation("aten::same", observed="widest")
    before = probe(
        same,
        observation("aten::rms", observed="unlisted", registered=False),
        observation("aten::lost", observed="float32"),
        observation("aten::pad", observed="float32", variants={"out=": "unchanged"}),
    )
    after = probe(
        same,
        observation("aten::rms", observed="float32", registered=True),
        observation("aten::pad", observed="float32", variants={"out=": "refused"}),
        observation("aten::new", observed="float32"),
        observation("aten::ruleless", observed="unlisted", registered=False),
    )
    told = [(one.field, one.op, one.before, one.after) for one in compare_rules(before, after)]
    assert told == [
        ("observed", "aten::rms", "unlisted", "float32"),
        ("registered", "aten::rms", "no", "yes"),
        ("variant out=", "aten::pad", "unchanged", "refused"),
        ("op", "aten::lost", "there, float32", "not there"),
        ("op", "aten::new", "not there", "there, float32"),
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


def told(*probes):
    return [(each.code, each.subject, each.facts) for each in conclusions(None, Torch("torch", probes))]


def test_ops_about_which_something_disagrees_are_counted_by_kind_whatever_the_dtype():
    contradicted = [
        observation(dtype=dtype, how=FAKE, observed="banned", documented={PAGE: "float32"}) for dtype in BOTH
    ]
    fine = observation("aten::fine", how=FAKE, observed="float32", documented={PAGE: "float32"})
    real = structs.replace(fine, how="device")
    assert told(probe(*contradicted, fine, dtypes=BOTH), probe(real, device="cpu")) == [
        (RulesCode.DISAGREE, "xpu (fake tensors)", {"ops": 2, "number": 1, "kinds": "contradicted 1"}),
        (RulesCode.DISAGREE, "cpu", {"ops": 1, "number": 0}),
    ]

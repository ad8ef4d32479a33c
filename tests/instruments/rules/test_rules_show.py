import pytest

from ampbench.instruments.rules import show
from ampbench.records.rules import RuleClaim
from tests.rule_probes import observation, probe

REFERENCE, PAGE = "xpu_reference", "pytorch_page"
BOTH = ("float16", "bfloat16")


def claim(name="a claim", **given):
    fields = {"device": "xpu", "source": PAGE, "said": "so", "found": "so", "holds": True, "how": "device"}
    return RuleClaim(name=name, **{**fields, **given})


def in_both(op, **given):
    return [observation(op, dtype, **given) for dtype in BOTH]


def test_ops_of_which_the_same_is_to_be_said_share_a_row_without_their_namespace():
    undocumented = {"documented": {REFERENCE: "float32", PAGE: "unlisted"}, "observed": "float32"}
    (block,) = show.disagreements(
        probe(*in_both("aten::acos", **undocumented), *in_both("aten::tan", **undocumented), dtypes=BOTH)
    )
    assert (block.title, list(block.headers)) == (
        "undocumented",
        ["XPU reference", "PyTorch page", "registered", "observed", "ops"],
    )
    assert block.rows == [["float32", "unlisted", "yes", "float32", "acos, tan"]]
    assert "does not name the op" in block.note


def test_what_is_seen_in_one_dtype_only_says_so():
    found = show.disagreements(
        probe(
            observation("aten::a", "float16", documented={PAGE: "float32"}, observed="lower_precision"),
            observation("aten::a", "bfloat16", documented={PAGE: "float32"}, observed="float32"),
            dtypes=BOTH,
        )
    )
    assert [block.title for block in found] == ["contradicted", "depends on dtype"]
    assert list(found[0].headers)[-2:] == ["autocast to", "ops"]
    assert found[0].rows == [["float32", "yes", "lower", "fp16", "a"]]


def test_a_call_that_is_not_left_alone_names_the_documents_that_exempt_it():
    refused = observation(documented={REFERENCE: "float32", PAGE: "float32"}, observed="float32")
    changed = {"variants": {"dtype=": "changed"}}
    (block,) = show.disagreements(
        probe(observation(documented=refused.documented, observed="float32", **changed), device="xpu")
    )
    assert block.rows == [["–", "not eligible", "yes", "dtype= changed", "thing"]]


def test_an_op_that_is_gone_is_called_so():
    gone = observation(documented={PAGE: "float32"}, registered=False, how="not observed", trials={})
    (block,) = show.disagreements(probe(gone))
    assert block.rows == [["float32", "no", "no such op", "thing"]]


def test_no_disagreement_is_said_too():
    (block,) = show.disagreements(probe(observation(documented={PAGE: "float32"}, observed="float32")))
    assert (block.title, block.rows) == ("Nothing disagrees.", ())


def test_ops_are_counted_once_per_rule_however_many_dtypes():
    counted = show.counts(
        [
            probe(*in_both("aten::a", observed="float32"), *in_both("aten::b", observed="float32"), dtypes=BOTH),
            probe(
                *in_both("aten::a", observed=None, registered=False), *in_both("aten::b", observed="banned"),
                device="cpu", dtypes=BOTH,
            ),
        ]
    )  # fmt: skip
    assert [row[:3] for row in counted.rows] == [
        ["float32", "2", "0"],
        ["banned", "0", "1"],
        ["not observed", "0", "1"],
        ["registered", "2", "1"],
        ["all", "2", "2"],
    ]


def test_claims_say_whether_they_hold_and_on_what_they_were_tried():
    tried = probe(
        claims=[
            claim("default dtype", said="bfloat16", found="float16", holds=False),
            claim(said="works", found="works", how="fake tensors"),
            claim(said="trains", found="no xpu here", holds=None, how="not observed"),
            claim(source=show.TRAPS),
        ]
    )
    (block,) = show.claims([tried])
    assert [row[2:] for row in block.rows] == [
        ["default dtype: bfloat16", "float16", "no"],
        ["works", "works (fake tensors)", "yes"],
        ["trains", "no xpu here", "not tried"],
    ]


def test_traps_that_could_not_be_tried_are_named_by_their_device_only():
    known = [claim("stale", source=show.TRAPS, device="cpu", said="lost", found="kept", holds=False)]
    absent = [claim("stale", source=show.TRAPS, holds=None, how="not observed")]
    (block,) = show.traps([probe(claims=known, device="cpu"), probe(claims=absent)])
    assert block.rows == [["cpu", "stale", "lost", "kept"]]
    assert block.note == "not tried on xpu: that takes the device"


def test_what_was_not_observed_has_its_reason():
    unseen = in_both("aten::a", observed=None, how="not observed", reason="no sample")
    (block,) = show.not_observed([probe(*unseen, observation("aten::b", observed="float32"), dtypes=BOTH)])
    assert block.rows == [["xpu", "no sample", "a"]]
    assert show.not_observed([probe(observation(observed="float32"))]) == []


def test_the_whole_table_has_a_row_per_op_and_two_where_dtypes_differ():
    table = show.rules(
        probe(
            *in_both("aten::a", observed="float32", documented={PAGE: "widest"}, variants={"out=": "refused"}),
            observation("aten::b", "float16", observed="unlisted", documented={PAGE: "unlisted"}, registered=None),
            observation("aten::b", "bfloat16", observed="widest", documented={PAGE: "unlisted"}, registered=None),
            dtypes=BOTH,
        )
    )
    assert table.rows == [
        ["a", "widest", "yes", "float32", "out= refused", "any"],
        ["b", "unlisted", "–", "unlisted", "", "fp16"],
        ["b", "unlisted", "–", "widest", "", "bf16"],
    ]


def test_changes_of_several_ops_share_a_row():
    before = probe(
        *(observation(op, observed="unlisted", registered=False) for op in ("aten::a", "aten::b")), version="2.11.0"
    )
    after = probe(*(observation(op, observed="float32", registered=True) for op in ("aten::a", "aten::b")))
    (section,) = show.changes([(before, after)])
    assert section.title == "xpu: torch 2.11.0 to 2.99.0, observed on the device"
    assert section.blocks[0].rows == [["observed", "unlisted", "float32", "a, b"], ["registered", "no", "yes", "a, b"]]


def test_claims_that_changed_are_told_apart_though_their_names_have_commas():
    traces = [claim(name, found="warns") for name in ("jit.trace, cache on", "jit.trace, cache off")]
    later = [claim(one.name, found="fails") for one in traces]
    (section,) = show.changes([(probe(claims=traces), probe(claims=later))])
    assert section.blocks[0].rows[0][-1] == "jit.trace, cache off; jit.trace, cache on"


@pytest.mark.parametrize(("how", "said"), [("device", "on the device"), ("fake tensors", "not on hardware")])
def test_a_title_says_on_what_was_observed(how, said):
    assert said in show.title(probe(observation(observed="float32", how=how)))


def test_a_device_that_was_fake_before_and_is_there_now_says_both():
    pair = probe(observation(observed="float32", how="fake tensors")), probe(observation(observed="float32"))
    (section,) = show.changes([pair])
    assert section.title.endswith("observed on fake tensors, not on hardware, then observed on the device")
    assert section.blocks[0].title == "Nothing changed."


def test_it_is_said_in_words_what_was_real():
    real = probe(observation(observed="float32", device="cpu"), device="cpu")
    fake = [probe(observation(observed="float32", how="fake tensors"), device=device) for device in ("cuda", "xpu")]
    assert show.where_observed([real, *fake]) == (
        "cpu observed on the device; cuda, xpu on fake tensors, not on hardware: this machine has none"
    )
    assert show.where_observed([real]) == "cpu observed on the device"

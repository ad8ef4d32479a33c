import pytest

from ampbench.errors import UnknownNameError, UsageError
from ampbench.instruments.rules.findings import chosen_devices, chosen_dtypes, chosen_ops, restricted
from ampbench.records.case import DEVICES
from ampbench.records.rules import RuleChange, RuleClaim
from tests.rule_probes import observation, probe

KNOWN = [
    "aten::softmax.int",
    "aten::softmax.Dimname",
    "aten::log_softmax.int",
    "aten::prelu",
    "nn.functional.normalize",
]


def test_without_names_everything_is_meant():
    assert chosen_devices([]) == list(DEVICES)
    assert chosen_dtypes([]) == ["float16", "bfloat16"]


def test_dtypes_go_by_their_short_and_their_long_names():
    assert chosen_dtypes(["bf16", "float16", "bfloat16"]) == ["bfloat16", "float16"]


def test_unknown_devices_and_dtypes_are_refused_with_what_is_near():
    with pytest.raises(UnknownNameError, match=r"unknown device 'cude': did you mean cuda"):
        chosen_devices(["cude"])
    with pytest.raises(UnknownNameError, match=r"unknown autocast dtype 'bf61': did you mean bf16"):
        chosen_dtypes(["bf61"])


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("softmax", ["aten::softmax.int", "aten::softmax.Dimname"]),
        ("aten::softmax", ["aten::softmax.int", "aten::softmax.Dimname"]),
        ("softmax.int", ["aten::softmax.int"]),
        ("aten::softmax.int", ["aten::softmax.int"]),
        ("nn.functional.normalize", ["nn.functional.normalize"]),
    ],
)
def test_an_op_is_meant_by_its_name_with_or_without_namespace_and_overload(given, meant):
    assert chosen_ops([given], KNOWN) == meant


def test_an_op_named_twice_is_meant_once():
    assert chosen_ops(["prelu", "aten::prelu"], KNOWN) == ["aten::prelu"]


def test_an_unknown_op_is_refused_in_one_line_however_many_there_are():
    with pytest.raises(UnknownNameError, match=r"unknown op 'prelo': did you mean prelu\?"):
        chosen_ops(["prelo"], KNOWN)
    with pytest.raises(UsageError, match=r"unknown op 'zzz': no rule and no document is about it"):
        chosen_ops(["zzz"], KNOWN)


def test_a_probe_is_cut_down_to_dtypes_and_ops():
    claim = RuleClaim(name="a", device="xpu", source="", said="", found="", holds=None, how="device")
    whole = probe(
        *(observation(op, dtype) for op in ("aten::a", "aten::b") for dtype in ("float16", "bfloat16")),
        claims=[claim],
        dtypes=("float16", "bfloat16"),
    )
    one = restricted(whole, ["float16"], ["aten::b"])
    assert [(each.op, each.dtype) for each in one.observations] == [("aten::b", "float16")]
    assert (one.dtypes, one.claims) == (["float16"], [])
    assert restricted(whole, whole.dtypes, None) == whole


def test_a_changed_rule_is_called_by_its_op_and_device():
    change = RuleChange(op="aten::softmax.int", device="cuda", dtypes=[], field="observed", before="a", after="b")
    assert change.rule_id == "softmax.int/cuda"

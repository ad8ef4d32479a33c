"""Precisions by name and by text: a text can be read back, a name's value is the name, a wrong one gets one line."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ampbench
from ampbench.cli.options import split_precisions
from ampbench.core import precisions as precisions_module
from ampbench.core.precisions import (
    BUILT_IN,
    COMPUTES,
    EXAMINED,
    LOW,
    PRECISIONS,
    SHORT_DTYPES,
    UPDATES,
    Precision,
    find_precision,
    ordered,
    parse_precision,
)
from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.case import Case, OwnPrecision, matches
from tests import stored_runs


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_precision_is_found_by_its_name_and_aliases(name):
    row = PRECISIONS[name]
    assert row.name == name
    for alias in (name, name.upper(), f" {name} ", *row.aliases):
        assert find_precision(alias) is row


@pytest.mark.parametrize(
    ("device", "amp"),
    [("cpu", "bf16_autocast"), ("cuda", "fp16_autocast"), ("xpu", "fp16_autocast"), ("", "fp16_autocast")],
)
def test_amp_is_the_default_dtype_of_the_device_and_half_is_fp16(device, amp):
    assert (find_precision("AMP", device).name, find_precision("half", device).name) == (amp, "fp16_pure")
    if device:
        assert SHORT_DTYPES[str(torch.get_autocast_dtype(device)).removeprefix("torch.")] == amp[:4]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_torchs_name_of_a_half_dtype_may_mean_autocast_or_all_in_it(dtype):
    with pytest.raises(UnknownNameError, match=r"did you mean (..16)_autocast, \1_master or \1_pure\?$"):
        find_precision(dtype)


@pytest.mark.parametrize("name", ["fp64", "float64", "fp15_pure", ""])
def test_what_is_no_measured_precision_is_refused_with_those_that_are(name):
    with pytest.raises(UnknownNameError, match=r"unknown precision .*(did you mean|known)"):
        find_precision(name)


def test_another_step_of_the_optimizer_leaves_the_ops_of_another_precision():
    others = {name: row.same_ops for name, row in PRECISIONS.items() if row.same_ops}
    masters = {"fp16_master": "fp16_pure", "bf16_master": "bf16_pure"}
    assert others == masters | {"bf16_stochastic": "bf16_pure", "bf16_kahan": "bf16_pure"}
    for row in map(PRECISIONS.get, others):
        alike = PRECISIONS[row.same_ops]
        assert (row.storage, row.autocast, row.rounding) == (alike.storage, alike.autocast, alike.rounding)
        assert row.name not in EXAMINED
    assert [name for name in EXAMINED if name not in LOW] == [row.name for row in PRECISIONS.values() if row.compute]


@pytest.fixture
def known(monkeypatch):
    """The precisions, which are as they were once a test has ended."""
    monkeypatch.setattr("ampbench.core.precisions.PRECISIONS", dict(PRECISIONS))
    return precisions_module


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "Mine"}, r"cannot be called 'Mine': give up to 40 of a-z, 0-9 and _, a letter first"),
        ({"name": "a/b"}, "cannot be called 'a/b'"),
        ({"name": "a" * 41}, "cannot be called"),
        ({"name": "mine", "storage": "int8"}, "storage is 'int8'; give one of float64, float32, float16, bfloat16"),
        ({"name": "mine", "fp32_products": "fast"}, "fp32_products is 'fast'; give one of ieee, tf32, bf16, shipped"),
        ({"name": "mine", "prepare": 3}, "prepare is no function"),
    ],
)
def test_what_no_precision_can_be_is_said_in_a_line(given, said):
    with pytest.raises(UsageError, match=said):
        ampbench.Precision(**given)


def test_a_precision_of_ones_own_is_found_by_its_name_and_comes_last(known):
    known.meet(ampbench.Precision(name="int9_weights", aliases=("w8", "My-Own")))
    assert known.find_precision("INT9-weights").name == known.find_precision("w8").name == "int9_weights"
    assert known.find_precision("My-Own").name == known.find_precision("my_own").name == "int9_weights"
    assert ordered(["int9_weights", "bf16_pure"]) == ["bf16_pure", "int9_weights"]
    with pytest.raises(UnknownNameError, match="did you mean int9_weights"):
        known.find_precision("int9_weight")
    known.meet(ampbench.Precision(name="int9_weights", summary="anew"))
    assert known.find_precision("int9_weights").summary == "anew"


@pytest.mark.parametrize("name", ["bf16_pure", "amp", "float32", "default"])
def test_a_name_of_ampbenchs_own_is_not_given_twice(name, known):
    with pytest.raises(UsageError, match=f"precision {name} is ampbench's own"):
        known.meet(ampbench.Precision(name=name))


HALF = st.sampled_from(["float16", "bfloat16"])
KEPT = st.lists(st.sampled_from(["*.head:fp32", "layer4.?.conv[12]:fp32", "stem:fp32"]), unique=True).map(tuple)


@st.composite
def values(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of any precision that can be: fp32 or half storage, with autocast, low products, masters and updates."""
    kind = draw(st.sampled_from(["products", "autocast", "cast"]))
    fields: dict[str, Any] = {"keep": draw(KEPT)}
    if kind == "products":
        return fields | {"fp32_products": draw(st.sampled_from(["ieee", "tf32", "bf16", "shipped"]))}
    fields |= {"compute": draw(st.sampled_from(["", *COMPUTES])), "scaler": draw(st.booleans())}
    fields |= {"autocast": draw(HALF)} if kind == "autocast" else {}
    if kind == "cast" or draw(st.booleans()):
        storage = fields.get("autocast") or draw(HALF)
        fields |= {"storage": storage, "master": draw(st.booleans())}
        if storage == "bfloat16" and not fields["master"]:
            fields["updates"] = draw(st.sampled_from(UPDATES))
    return fields


@given(values())
def test_a_text_is_read_back_as_the_precision_that_it_is_of(fields: dict[str, Any]) -> None:
    row = Precision(default_on=(), **fields)
    read = parse_precision(row.text)
    assert parse_precision(str(read)) == read
    assert read.name == row.name
    assert {name: getattr(read, name) for name in fields} == fields
    assert find_precision(row.name) == read
    assert row.name in BUILT_IN or row.name == row.text


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_the_value_of_a_built_in_precision_is_that_precision(name: str) -> None:
    assert find_precision(PRECISIONS[name].text) is PRECISIONS[name]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("params=fp32, compute=bf16, output=bf16, via=autocast", "bf16_autocast"),
        ("params=fp32,compute=bf16,output=fp32", "fp32_bf16_products"),
        ("params=bf16,compute=bf16,output=bf16,via=cast,rounding=nearest", "bf16_pure"),
        ("params=bfloat16,master=fp32", "bf16_master"),
        ("compute=float8_e4m3,block=32", "mxfp8"),
        ("compute=float4_e2m1,block=16", "nvfp4"),
        ("compute=float8_e4m3", "float8"),
        (
            "params=bf16,compute=float8_e4m3:row,output=bf16,master=fp32",
            "params=bf16,compute=float8_e4m3:row,master=fp32",
        ),
        ("params=fp32,compute=fp16,scaler=false", "params=fp32,compute=fp16,scaler=false"),
    ],
)
def test_a_text_may_say_more_than_it_needs_and_in_any_order(text: str, name: str) -> None:
    assert find_precision(text).name == find_precision(",".join(reversed(text.split(",")))).name == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("params=bf16,comput=mxfp8", "'comput': did you mean compute"),
        ("params=bf16,compute=float9", "'float9': did you mean float8_e4m3:tensor"),
        ("params=bf16,", "unknown field"),
        ("params=bf16,params=fp16", "params comes twice"),
        ("params=fp16,rounding=kahan", "params=fp16,rounding=kahan: rounding=kahan is for weights that"),
        ("params=bf16,output=fp16", "have no output in fp16"),
        ("output=bf16,via=cast", "give params=bf16,master=fp32 or via=autocast"),
        ("master=fp32", "master=fp32 is for params=bf16 or params=fp16"),
        ("compute=mxfp8,block=16", "block=16 is for compute=nvfp4"),
        ("params=bf16,keep=a/b:fp32", "give PATTERN:DTYPE"),
        ("params=bf16,keep=head:bf16", "head:bf16 is kept in 'bf16'; give fp32"),
    ],
)
def test_a_wrong_text_is_answered_by_its_field_and_the_nearest_ones(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        find_precision(text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert PRECISIONS.get(text) is None
    assert text not in PRECISIONS


def test_a_precision_without_a_name_is_called_by_its_value_unless_no_text_says_it() -> None:
    assert ampbench.Precision(autocast="bfloat16").name == "bf16_autocast"
    assert ampbench.Precision(storage="bfloat16", compute="nvfp4").name == "params=bf16,compute=nvfp4"
    for fields in ({"prepare": print}, {"autocast": "float16", "fp32_products": "tf32", "scaler": True}):
        with pytest.raises(UsageError, match="give it a name"):
            ampbench.Precision(**fields)


def test_names_are_split_at_commas_and_texts_are_not() -> None:
    text = "params=bf16,compute=float8_e4m3:row"
    assert split_precisions(["fp32,bf16_pure", text, "mxfp8"]) == ["fp32", "bf16_pure", text, "mxfp8"]
    assert split_precisions(None) is None


def test_a_cases_id_holds_a_text_and_is_found_by_it() -> None:
    text = "params=bf16,compute=float8_e4m3:row,keep=*.head:fp32"
    case: Case = stored_runs.make_case(text)
    assert f"/{text}/" in case.case_id
    assert matches(f"{text} and not fp16", case.case_id)
    assert OwnPrecision.of(PRECISIONS[text]).keep == ("*.head:fp32",)


@pytest.mark.parametrize(
    ("name", "kind", "same_ops"),
    [
        ("bf16_stochastic", "bf16_stochastic", "bf16_pure"),
        ("params=bf16,keep=head:fp32", "bf16_pure", ""),
        ("params=bf16,compute=nvfp4,master=fp32", "float8", "params=bf16,compute=nvfp4"),
        ("params=bf16,rounding=kahan,keep=head:fp32", "bf16_kahan", "params=bf16,keep=head:fp32"),
    ],
)
def test_a_text_has_the_kind_and_the_ops_of_another_precision(name: str, kind: str, same_ops: str) -> None:
    assert (PRECISIONS[name].kind, PRECISIONS[name].same_ops) == (kind, same_ops)


def test_a_text_is_no_name_of_a_precision_of_another_value() -> None:
    with pytest.raises(UsageError, match="cannot be called"):
        ampbench.Precision(name="params=bf16", storage="float16")
    with pytest.raises(UnknownNameError):
        find_precision("bf16 pure")

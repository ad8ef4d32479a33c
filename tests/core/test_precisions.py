import pytest
import torch

import ampbench
from ampbench.core import precisions as precisions_module
from ampbench.core.precisions import EXAMINED, LOW, PRECISIONS, SHORT_DTYPES, find_precision, ordered
from ampbench.errors import UnknownNameError, UsageError


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

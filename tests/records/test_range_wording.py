import math

from ampbench.records.magnitudes import error_sentence, nonfinite_sentence, reach_phrase, scales_sentence, usable_scales
from ampbench.records.ranges import FirstNonfinite, ModuleError
from tests.records.test_headroom import magnitudes


def test_headroom_is_said_in_multiples_above_and_in_shares_below():
    assert reach_phrase(magnitudes([118_000.0]), "fp16") == "largest activation is 1.8 times what fp16 holds"
    assert reach_phrase(magnitudes([6550.4]), "fp16") == "largest activation is 10.0% of what fp16 holds"
    weight = magnitudes([2.0], "weight", name="layer.bias")
    assert reach_phrase(weight, "fp16", scale=65536).startswith("largest weight of bias is 2 times what")
    assert reach_phrase(magnitudes([math.inf]), "fp16") == "no activation is finite"
    assert reach_phrase(magnitudes([]), "fp16") == "there is no activation"


def test_errors_say_their_worst():
    def said(**fields):
        return error_sentence(ModuleError(module="", kind="Linear", **fields))

    root = "the network itself"
    assert said(elements=4096, overflowed=512) == f"{root}: 512 of 4,096 outputs overflow on exact inputs"
    assert said(elements=1, overflowed=1, inputs_overflowed=1).endswith("inputs, as inputs do that it is given")
    assert said(elements=4, flushed=1, own_rel_l2=0.5) == (
        f"{root}: relative error 5.0e-01 on exact inputs, 25.0% of its outputs flush to zero"
    )
    assert said(elements=0, note="it draws") == f"{root}: not compared (it draws)"


def test_scales_name_their_range():
    scales = usable_scales([magnitudes([1.0, 2.0**-30], "gradient")])
    assert scales_sentence(scales) == (
        "loss scale 2^6 to 2^15: no gradient overflows fp16, 0% flush to zero (50.0% without scaling)"
    )
    assert scales_sentence(usable_scales([magnitudes([1.0], "gradient")])) == (
        "no loss scale is needed: no gradient overflows fp16, 0% flush to zero"
    )
    assert scales_sentence(None) == "there is no gradient to scale"


def test_the_first_value_that_is_not_finite_has_a_place():
    found = FirstNonfinite(
        operation="aten.mm", module="fc", phase="backward", step=3, inputs_largest=200.0, parameter="fc.weight"
    )
    assert nonfinite_sentence(found) == (
        "aten.mm in fc, backward, step 4 makes the first value that is not finite as a gradient of fc.weight from "
        "inputs of at most 200"
    )

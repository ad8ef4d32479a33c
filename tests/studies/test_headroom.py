"""What headroom and origin conclude, in codes and facts, and their tables, of hand-made passes."""

from typing import Any

import pytest

from ampbench.core.statement import Arithmetic, Statement
from ampbench.records.measured import OptimizerGroup, Recipe
from ampbench.records.ranges import (
    GRADIENT,
    INPUT,
    FirstNonfinite,
    LowRun,
    OriginPass,
    RangePass,
    SeenGradient,
)
from ampbench.show.document import records
from ampbench.show.studies import lines
from ampbench.studies import headroom, origin
from ampbench.studies.headroom import GRADIENTS, MODULE_COLUMNS, Headroom
from ampbench.studies.origin import Origin
from tests.stored_runs import make_case
from tests.studies.range_records import error, passed, values

CASE = make_case()


def about(found: RangePass, subject: str = "fp16") -> dict[str, Statement]:
    return {each.code: each for each in headroom.conclusions(CASE, found) if each.subject == subject}


def facts(found: RangePass, code: Headroom, subject: str = "fp16") -> dict[str, Any]:
    return dict(about(found, subject)[code].facts)


def modules(found: RangePass, dtype: str = "fp16") -> dict[str, str]:
    return {
        row["module"]: row[f"{dtype}_would"] for row in records(MODULE_COLUMNS, headroom.modules_of(found.magnitudes))
    }


def gradients_of(elements: int, flushed: int = 0, nonfinite: int = 0) -> list[SeenGradient]:
    return [SeenGradient(parameter="fc.weight", elements=elements, flushed=flushed, nonfinite=nonfinite)]


def test_a_sum_of_4096_sixteens_is_told_before_and_after_it_is_run():
    first = FirstNonfinite(operation="aten.sum", module="", phase="forward", step=0, inputs_largest=16.0)
    low = LowRun(
        precision="fp16_pure", modules=[error("", None, kind="Sum", elements=1, overflowed=1)], first_nonfinite=first
    )
    found = passed(values("", 65536.0, kind="Sum"), low=low)
    assert lines(headroom.conclusions(CASE, found)) == [
        (
            "fp16: 1 of 1 module would overflow (worst the network itself: largest activation is 1.0005 times fp16's "
            "largest number)"
        ),
        "bf16: nothing in 1 module would overflow or flush",
        (
            "fp16_pure: aten.sum in the network itself, forward, step 1 makes the first value that is not finite from "
            "inputs of at most 16; overflow predicted in 1 module, seen in 1"
        ),
    ]
    assert modules(found) == {"": "overflow"}


def test_the_worst_is_the_largest_and_flushing_modules_are_named():
    found = passed(
        values("a", 1e5), values("b", 131008.0, what=INPUT), values("b", 1.0),
        *(values(name, 1e-9) for name in "cdef"),
    )  # fmt: skip
    worst = {"worst": "b", "values": "input", "reach": 2.0}
    assert facts(found, Headroom.OVERFLOWS) == {"count": 2, "modules": 6, "dtype": "fp16", **worst}
    assert facts(found, Headroom.FLUSHES) == {"count": 4, "names": "c, d, e and 1 more"}
    assert list(modules(found)) == list("bacdef")


@pytest.mark.parametrize(
    ("gradients", "code", "expected"),
    [
        ([1.0, 2.0**-3], Headroom.UNSCALED, {}),
        ([1.0, 2.0**-60], Headroom.UNSCALED, {"flushed": 0.5}),
        (
            [1.0, 1.5 * 2.0**-30, 2.0**-60, 1.0],
            Headroom.SCALE,
            {"lowest": "2^5", "highest": "2^15", "flushed": 0.25, "unscaled": 0.5, "limiting": "a"},
        ),
    ],
)
def test_which_loss_scale_serves_is_told(gradients: list[float], code: Headroom, expected: dict[str, Any]):
    found = passed(values("a", 1.0), values("a", *gradients, what=GRADIENT))
    assert facts(found, code) == expected
    assert list(about(passed(values("a", 1.0)))) == [Headroom.FITS]


def test_what_arithmetic_knows_of_the_optimizer_is_told_for_both_dtypes():
    group = OptimizerGroup(elements=8, lr=1e-4, weight_decay=0.01, decoupled=True, beta1=0.9, beta2=0.999, eps=1e-8)
    recipe = Recipe(optimizer="torch.optim.AdamW", groups=[group])
    found = passed(values("a", 1.0), recipe=recipe)
    told = [each for each in headroom.conclusions(CASE, found) if isinstance(each.code, Arithmetic)]
    assert {each.subject.split(",")[0] for each in told} == {"stored in fp16", "stored in bf16"}
    assert Arithmetic.DECAY in {each.code for each in told}


def test_gradients_are_told_against_what_was_predicted():
    low = LowRun(
        precision="fp16_autocast", modules=[error("fc")], lowered_weights=["fc.weight"],
        gradients=gradients_of(4, flushed=1), scaler_scale=1.0,
    )  # fmt: skip
    found = passed(values("fc", 1.0), values("fc", 2.0**-30, 1.0, what=GRADIENT, name="fc.weight"), low=low)
    assert list(about(found, "fp16_autocast")) == [Headroom.FINITE, Headroom.GRADIENTS]
    assert facts(found, Headroom.GRADIENTS, "fp16_autocast") == {"scale": "1", "predicted": 0.5, "seen": 0.25}
    (row,) = records(GRADIENTS, headroom.gradients(found))
    assert (row["predicted"], row["seen"], row["nonfinite"]) == (0.5, 0.25, 0)


# Origin

FAILING = OriginPass(
    case_id="case",
    modules=[
        error("a", 1e-4),
        error("b", None, elements=0, note="it draws"),
        error("c", 3e-3),
        error("", None, overflowed=100),
        error("d", None, overflowed=50, inputs_overflowed=7),
        error("e", 1.0, flushed=100),
    ],
)


def concluded(found: OriginPass, case: Any = CASE) -> dict[str, dict[str, Any]]:
    return {each.code: dict(each.facts) for each in origin.conclusions(case, found)}


def test_an_origin_is_told_by_what_modules_err_by_themselves():
    assert concluded(FAILING) == {
        Origin.UNDEFINED: {"strange": 1},
        Origin.OVERFLOWS: {"names": "the network itself", "count": 1, "modules": 5},
        Origin.FLUSHES: {"names": "e", "count": 1, "modules": 5, "least": 0.01},
        Origin.WORST: {"names": "e, c, a", "error": 1.0},
        Origin.LEFT_OUT: {"count": 1, "modules": 6, "reasons": "it draws (1)"},
    }
    calm = OriginPass(case_id="case", modules=[error("a", 0.0)], output_rel_l2=2e-3)
    assert list(concluded(calm)) == [Origin.OUTPUT, Origin.EXACT]
    undefined = OriginPass(case_id="case", modules=[error("a", None)])
    assert concluded(undefined)[Origin.UNDEFINED] == {"strange": 0}


def ablated(base: float | None, **kept: float | None) -> dict[str, dict[str, Any]]:
    modules = [error(name, kept_rel_l2=left) for name, left in kept.items()]
    return concluded(OriginPass(case_id="case", modules=modules, output_rel_l2=base, ablations=len(kept)))


def test_modules_kept_in_fp32_alone_say_what_reaches_the_output():
    found = ablated(1e-2, a=9e-3, b=8e-3, c=9.5e-3, d=None, e=1e-2)
    assert found[Origin.KEPT] == {"module": "b", "error": 8e-3, "share": pytest.approx(0.2), "then": "a, c"}
    assert Origin.WORST not in found
    assert ablated(1e-2, a=9.8e-3)[Origin.SPREAD] == {"module": "a", "share": pytest.approx(0.02)}
    assert ablated(1e-2, a=2e-2)[Origin.SPREAD] == {"module": "a", "share": 0.0}
    assert ablated(None, a=None, b=3e-3)[Origin.KEPT] == {"module": "b", "error": 3e-3}
    for nothing in (ablated(None, a=None), ablated(0.0, a=0.0)):
        assert nothing.keys().isdisjoint({Origin.KEPT, Origin.SPREAD})

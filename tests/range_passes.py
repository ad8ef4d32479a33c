"""A range pass and an origin pass of three modules, of which the second overflows in fp16."""

from ampbench.records.case import Case
from ampbench.records.ranges import (
    ACTIVATION,
    GRADIENT,
    UPDATE,
    WEIGHT,
    FirstNonfinite,
    LowRun,
    Magnitudes,
    ModuleError,
    OriginPass,
    RangePass,
    SeenGradient,
    Swallowed,
)

FIRST = FirstNonfinite(operation="aten.mul", module="big", phase="forward", step=0, inputs_largest=12.5)


def magnitudes(module: str, what: str, exponent: int, name: str = "", elements: int = 8) -> Magnitudes:
    """Return `elements` values that are all 1.5 * 2**exponent."""
    return Magnitudes(
        module=module, kind="Linear", what=what, name=name, elements=elements, largest=1.5 * 2.0**exponent,
        lowest=exponent, counts=[elements],
    )  # fmt: skip


def module_errors(*, big_own: float | None = None) -> list[ModuleError]:
    """Return the errors of three modules in fp16; all outputs of "big" overflow."""
    return [
        ModuleError(module="first", kind="Linear", elements=8, own_rel_l2=3e-4),
        ModuleError(module="big", kind="Linear", elements=8, own_rel_l2=big_own, overflowed=8),
        ModuleError(module="last", kind="Linear", elements=8, own_rel_l2=2e-4),
    ]


def range_pass(case: Case, *, big_own: float | None = None) -> RangePass:
    """Return what a training step of `case`, in fp32, and one in fp16_pure showed."""
    low = LowRun(
        precision="fp16_pure",
        modules=module_errors(big_own=big_own),
        lowered=["first", "big", "last"],
        lowered_weights=["first.weight"],
        gradients=[SeenGradient(parameter="first.weight", elements=8, flushed=8, nonfinite=0)],
        first_nonfinite=FIRST,
    )
    return RangePass(
        case_id=case.case_id,
        steps=1,
        magnitudes=[
            magnitudes("first", WEIGHT, -2, "first.weight"),
            magnitudes("first", ACTIVATION, 3),
            magnitudes("big", ACTIVATION, 18),
            magnitudes("last", ACTIVATION, 1),
            magnitudes("first", GRADIENT, -30, "first.weight"),
            magnitudes("first", UPDATE, -14, "first.weight"),
        ],
        swallowed=[Swallowed(parameter="first.weight", dtype="fp16", moved=8, swallowed=6)],
        low_runs=[low],
        notes=["bf16_pure: skipped: cpu does not support bf16"],
    )


def origin_pass(case: Case, *, output: float | None = None) -> OriginPass:
    """Return where the error of `case`, in fp16_pure, begins."""
    return OriginPass(
        case_id=case.case_id, modules=module_errors(), output_rel_l2=output, first_nonfinite=FIRST
    )  # fmt: skip

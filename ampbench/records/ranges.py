"""Magnitudes of a network's values, module by module, and the error of each module: raw, and ranked.

A module path is a name of `named_modules` below the network; the values of several calls are put together. Dtypes are
short names ("fp16").
"""

import math
from collections.abc import Iterable
from typing import Annotated

import msgspec

from ampbench.core.precisions import PRECISIONS
from ampbench.records import Count, ErrorSize, Exponent, Magnitude, Steps, one_of
from ampbench.records.measured import Recipe

ROOT = "the network itself"
IN_LOSS = "loss"
"""The phase of an op of the loss function, which autograd's graph alone shows."""
INPUT, ACTIVATION, GRADIENT, WEIGHT, UPDATE = "input", "activation", "gradient", "weight", "update"
"""Kinds of values: a module's floating inputs; its floating outputs; the gradients of these and of its parameters; its
own parameters and floating buffers; the change of these by one optimizer step."""

FLUSHES = 0.01
"""The share of its values flushed to zero from which a module counts as flushing; every distribution has some values
near zero, and losing fewer than these changes sums no more than rounding does."""


class Magnitudes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The magnitudes of all values of one kind in a module, in an fp32 run: a histogram by exponent.

    `counts[i]` values have 2**(lowest + i) <= |x| < 2**(lowest + i + 1); `zeros` and `nonfinite` are apart. `powers[i]`
    of them are 2**(lowest + i) exactly, counted for exponents so small that fp16 may round them to zero. `together[i]`,
    of inputs of a normalisation by their own statistics, counts values, zeros included, of channels or rows whose
    largest |x| is in place i, if fp16 may round that to zero (None: no such normalisation). `largest` is the largest
    finite |x|. `kind` is the module's class, `name` that of the parameter or buffer ("" for inputs, activations and
    their gradients).
    """

    module: str
    kind: str
    what: Annotated[str, one_of(INPUT, ACTIVATION, GRADIENT, WEIGHT, UPDATE)]
    name: str = ""
    elements: Count
    zeros: Count = 0
    nonfinite: Count = 0
    largest: Magnitude | None = None
    lowest: Exponent = 0
    counts: list[Count] = []
    powers: list[Count] = []
    together: list[Count] | None = None


class Swallowed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Elements of a parameter that fp32 steps `moved`, and the `swallowed` ones, unchanged when stored in `dtype`.

    The step's change in fp32 was added to the parameter rounded to `dtype`, and rounded again.
    """

    parameter: str
    dtype: str
    moved: Count
    swallowed: Count


class Blocks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The blocks of a module's fp32 values in a `format` below 16 bits: those that share a scale.

    `saturated` of the `blocks` have an element beyond the format's largest number, `flushed` one that becomes zero; of
    the `elements`, which are not zero, `zeroed` become zero.
    """

    module: str
    kind: str
    what: Annotated[str, one_of(INPUT, WEIGHT, GRADIENT)]
    format: str
    blocks: Count
    saturated: Count = 0
    flushed: Count = 0
    elements: Count = 0
    zeroed: Count = 0


class ModuleError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The error of one module in a low precision.

    On exact inputs, of the fp32 run, rounded as the precision passes them on: `own_rel_l2` is the relative L2
    error of its floating outputs against its own in fp32, over elements finite in both (None: there are none, or fp32's
    are zero). Of `elements` (0: not compared, for the reason in `note`), `overflowed` are not finite and `flushed` are
    zero unlike in fp32. `inputs_overflowed` are not finite in the low dtype: then the overflow began before.
    `kept_rel_l2` is that of the network's output in a run with this module alone kept in fp32 (None: not tried, or
    undefined).
    """

    module: str
    kind: str
    elements: Count
    own_rel_l2: ErrorSize | None = None
    overflowed: Count = 0
    flushed: Count = 0
    inputs_overflowed: Count = 0
    kept_rel_l2: ErrorSize | None = None
    note: str = ""


class FirstNonfinite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Where a low-precision run first makes a value that is not finite, from finite ones.

    `step` counts the network's calls from 0, `operation` is the op's name ("aten.mm"), `inputs_largest` the largest
    finite |x| of its inputs, `parameter` that of the gradient ("" if unknown), `frames` the last lines of the program's
    own code before it, the innermost last.
    """

    operation: str
    module: str
    phase: str
    step: Count
    inputs_largest: Magnitude | None = None
    parameter: str = ""
    frames: list[str] = []

    def __str__(self) -> str:
        place = "the loss function" if self.phase == IN_LOSS else f"{self.module or ROOT} ({self.phase})"
        largest = f" (largest input {self.inputs_largest:.3g})" if self.inputs_largest is not None else ""
        gradient = f" as a gradient of {self.parameter}" if self.parameter else ""
        return (
            f"{self.operation} in {place} makes the first NaN or infinity{gradient} in step {self.step + 1:,}{largest}"
        )


class SeenGradient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A parameter's gradients in low-precision steps, the loss scale divided out.

    Of `elements`, `flushed` are zero and `nonfinite` are not finite unlike in fp32.
    """

    parameter: str
    elements: Count
    flushed: Count
    nonfinite: Count


class LowRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The observed effects of a low precision, to check the predictions from an fp32 run.

    `modules` are on exact inputs, those of all steps of the fp32 run. `first_nonfinite` and, in training, `gradients`
    are of as many whole steps in `precision`, beginning at the loss scale `scaler_scale` (None: without one). `lowered`
    are modules with floating outputs in the low dtype, `lowered_weights` the parameters and buffers used in it: in pure
    half all, with autocast by its rules. `overflowed_weights` are not finite as stored. `nonfinite_output` is the first
    step, from 0, whose output or loss is not finite unlike in fp32. `error` is the first line of what the whole step
    raised; then it has no gradients.
    """

    precision: str
    modules: list[ModuleError] = []
    lowered: list[str] = []
    lowered_weights: list[str] = []
    gradients: list[SeenGradient] = []
    scaler_scale: Magnitude | None = None
    first_nonfinite: FirstNonfinite | None = None
    overflowed_weights: list[str] = []
    nonfinite_output: Count | None = None
    error: str = ""
    notes: list[str] = []

    def __post_init__(self) -> None:
        """Raise `ValueError` for an unknown precision."""
        if self.precision not in PRECISIONS:
            raise ValueError(f"an unknown precision, {self.precision!r}")


class RangePass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Magnitudes and `blocks` in `steps` fp32 steps of a case, and the same number of steps in low precisions.

    `case_id` is that of the fp32 case; `recipe` is None in inference. `notes` say what was left out and why.
    """

    case_id: str
    steps: Steps
    magnitudes: list[Magnitudes] = []
    swallowed: list[Swallowed] = []
    blocks: list[Blocks] = []
    low_runs: list[LowRun] = []
    recipe: Recipe | None = None
    notes: list[str] = []


class OriginPass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Where the error of a case in a low precision begins: the errors of modules in order of running.

    `output_rel_l2` is the error of the network's output, on all its elements (None: undefined). It and what is left
    with a module kept are against `reference`. `ablations` modules were kept in fp32 alone, a forward pass each.
    """

    case_id: str
    modules: list[ModuleError] = []
    output_rel_l2: ErrorSize | None = None
    reference: Annotated[str, one_of("fp64", "fp32")] = "fp64"
    ablations: Count = 0
    first_nonfinite: FirstNonfinite | None = None
    notes: list[str] = []


def ranked(errors: Iterable[ModuleError]) -> list[ModuleError]:
    """Return the modules that were compared, those to keep in fp32 first.

    Sort first by the output's error with each module kept in fp32, if known. Then come modules that overflow on inputs
    that fit, modules with overflowing inputs, both by the share of their outputs, and others by their own error, which
    nears 1 if outputs flush. Equal ones stay in the order of running.
    """
    return sorted(
        (row for row in errors if row.elements),
        key=lambda row: (
            math.inf if row.kept_rel_l2 is None else row.kept_rel_l2,
            not row.overflowed or row.inputs_overflowed > 0,
            -row.overflowed / row.elements,
            -(row.own_rel_l2 or 0.0),
        ),
    )


def format_scale(scale: float) -> str:
    """Return a loss scale as "2^16", or as "1000" if it is no power of two."""
    mantissa, power = math.frexp(scale)
    return f"2^{power - 1}" if mantissa == 0.5 and scale != 1 else f"{scale:g}"

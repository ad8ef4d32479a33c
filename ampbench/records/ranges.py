"""How large the values of a network are, module by module, and how far each module errs: raw; and these errors ranked.

A module path is the name `named_modules` gives below the network; a module that runs several times has its values put
together. Dtypes are short names ("fp16").
"""

import math
from collections.abc import Iterable
from typing import Annotated

import msgspec

from ampbench.core.precisions import PRECISIONS
from ampbench.records.bounds import Count, ErrorSize, Exponent, Magnitude, Steps, one_of, require_parts
from ampbench.records.measured import Recipe

INPUT, ACTIVATION, GRADIENT, WEIGHT, UPDATE = "input", "activation", "gradient", "weight", "update"
"""Whose magnitudes: a module's floating inputs; its floating outputs; the gradients of these and of its parameters; its
own parameters and floating buffers; what one optimizer step adds to these."""


class Magnitudes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The magnitudes of all values of one kind in a module, in an fp32 run: a histogram by exponent.

    `counts[i]` values have 2**(lowest + i) <= |x| < 2**(lowest + i + 1); `zeros` and `nonfinite` are apart from these.
    `powers[i]` of them are 2**(lowest + i) exactly, as far as that is known: it is counted for exponents so small that
    fp16 may round them to zero, and the list ends after the last that is not 0.
    `together`, of the inputs of a normalisation by the statistics of what it is given: `together[i]` values, zeros
    included, belong to a channel or row of which the largest |x| is in place i; counted where fp16 may round that to
    zero (None: it is no such normalisation).
    `largest` is the largest finite |x| (None: there is none). `kind` is the module's class, `name` the full name of the
    parameter or buffer whose values they are ("" for inputs, activations and their gradients).
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
    """Of `moved` elements of a parameter that fp32 steps changed, how many would not change stored in `dtype`.

    What a step added in fp32 was added to the parameter rounded to `dtype`, as it would be stored, and rounded again.
    """

    parameter: str
    dtype: str
    moved: Count
    swallowed: Count

    def __post_init__(self) -> None:
        """Raise `ValueError` where more are swallowed than moved."""
        require_parts(self, ("swallowed", "moved"))


class ModuleError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What one module does in a low precision.

    On exact inputs, that is, those of the fp32 run, rounded where the precision hands it rounded ones: `own_rel_l2` is
    the relative L2 error of its floating outputs against its own in fp32 on the same inputs, taken over those that are
    finite in both (None: there are none, or all of fp32's are zero). Of `elements` (0: it was not compared, and `note`
    says why), `overflowed` are not finite where those of the fp32 run are, `flushed` are zero where those are not.
    `inputs_overflowed` of its inputs are not finite in the low dtype though they are in fp32: then what overflows began
    before it. `total_rel_l2` is its error in the whole low-precision run, measured on at most `sampled` elements of the
    output (the same ones in both runs), which it inherits in part.
    """

    module: str
    kind: str
    elements: Count
    own_rel_l2: ErrorSize | None = None
    overflowed: Count = 0
    flushed: Count = 0
    inputs_overflowed: Count = 0
    total_rel_l2: ErrorSize | None = None
    sampled: Count = 0
    note: str = ""

    @property
    def inherited(self) -> float | None:
        """The part of its total error that came with its inputs: roundings are independent, so errors add in squares.

        0 where its own error is the larger.
        """
        if self.own_rel_l2 is None or self.total_rel_l2 is None:
            return None
        return math.sqrt(max(self.total_rel_l2**2 - self.own_rel_l2**2, 0.0))


class FirstNonfinite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Where a low-precision run first makes a value that is not finite, from finite ones.

    `phase` is "forward", "backward" or "optimizer", `step` counts the network's calls from 0, `operation` is the op's
    name ("aten.mm"), `inputs_largest` the largest finite |x| it was given, `parameter` the one whose gradient it is (""
    where that is not known), `frames` the last lines of the program's own code before it, the innermost last.
    """

    operation: str
    module: str
    phase: str
    step: Count
    inputs_largest: Magnitude | None = None
    parameter: str = ""
    frames: list[str] = []


class SeenGradient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A parameter's gradients as low-precision steps gave them, the loss scale divided out.

    Of `elements`, `flushed` are zero where fp32's are not, and `nonfinite` are infinite or NaN where fp32's are finite.
    """

    parameter: str
    elements: Count
    flushed: Count
    nonfinite: Count

    def __post_init__(self) -> None:
        """Raise `ValueError` where more elements are counted than there are."""
        require_parts(self, ("flushed", "elements"), ("nonfinite", "elements"))


class LowRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What really came of a low precision that an fp32 run was asked about.

    `modules` tells of each module on exact inputs (what comes after one that overflows is lost in a whole run), those
    of all steps of the fp32 run. `first_nonfinite` and `gradients` are of whole steps in `precision`, as many, the
    latter in training, all steps together, at the loss scale `scaler_scale` (None: without one) to begin with.
    `lowered` are the modules whose floating outputs are in the low dtype, and `lowered_weights` the parameters and
    buffers that are used in it: in pure half all, with autocast those that its rules choose. `overflowed_weights` are
    those that are not finite as they are stored, before any op. `nonfinite_output` is the first step, from 0, whose
    output or loss is not finite where fp32's are (None: none is). `error` is the first line of what the whole step
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
        """Raise `ValueError` for a precision that is not known."""
        if self.precision not in PRECISIONS:
            raise ValueError(f"an unknown precision, {self.precision!r}")


ANOTHER_BATCH, ANOTHER_SEED = "another batch", "another seed"
"""What predictions are held against that they were not made from: the same weights on other inputs; other weights, too,
where these come from the seed."""


class Validation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What modules do on exact inputs of another batch, or of another seed (`on`), in each low precision.

    `low_runs` are without whole steps: of these, what is lowered is that of the pass's own. `note` says why there are
    none ("": there are).
    """

    on: str
    low_runs: list[LowRun] = []
    note: str = ""


class RangePass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How large the values of `steps` fp32 steps of a case are, and what low precisions then made of as many.

    `case_id` is that of the fp32 case, `recipe` what trains it (None: in inference). `notes` say
    what was left out and why. `validations` are other values that its predictions are held against.
    """

    case_id: str
    steps: Steps
    magnitudes: list[Magnitudes] = []
    swallowed: list[Swallowed] = []
    low_runs: list[LowRun] = []
    recipe: Recipe | None = None
    validations: list[Validation] = []
    notes: list[str] = []


class OriginPass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Where the error of a case, in a low precision, begins: each module's own and total error, in order of running.

    `output_rel_l2` is the error of what the network itself returns, on all its elements (None: undefined).
    """

    case_id: str
    modules: list[ModuleError] = []
    output_rel_l2: ErrorSize | None = None
    first_nonfinite: FirstNonfinite | None = None
    notes: list[str] = []


def ranked(errors: Iterable[ModuleError]) -> list[ModuleError]:
    """Return the modules that were compared, those to keep in fp32 first.

    First those that overflow although their inputs can be held, then those whose inputs cannot, each by the share of
    their outputs; then by their own error, which nears 1 where outputs flush. Equal ones stay in the order of running.
    """
    return sorted(
        (row for row in errors if row.elements),
        key=lambda row: (
            not row.overflowed or row.inputs_overflowed > 0,
            -row.overflowed / row.elements,
            -(row.own_rel_l2 or 0.0),
        ),
    )


class RangesAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To watch `steps` fp32 steps of a case (0: one for each of its batches), then a step in each of `precisions`."""

    steps: Steps = 0
    precisions: list[str] = []


ROOT = "the network itself"


def format_scale(scale: float) -> str:
    """Return a loss scale as "2^16", one that is no power of two as "1000"."""
    mantissa, power = math.frexp(scale)
    return f"2^{power - 1}" if mantissa == 0.5 and scale != 1 else f"{scale:g}"


def nonfinite_sentence(found: FirstNonfinite) -> str:
    """Return where the first value that is not finite was made; steps count from 1."""
    where = f"{found.module or ROOT}, {found.phase}, step {found.step + 1:,}"
    largest = f" from inputs of at most {found.inputs_largest:.3g}" if found.inputs_largest is not None else ""
    gradient = f" as a gradient of {found.parameter}" if found.parameter else ""
    return f"{found.operation} in {where} makes the first value that is not finite{gradient}{largest}"

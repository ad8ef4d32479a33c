"""How large the values of a network are, module by module, and how far each module errs: raw, without what follows.

A module path is the name `named_modules` gives below the network; a module that runs several times has its values put
together. Dtypes are short names ("fp16").
"""

from dataclasses import dataclass, field

INPUT, ACTIVATION, GRADIENT, WEIGHT, UPDATE = "input", "activation", "gradient", "weight", "update"
"""Whose magnitudes: a module's floating inputs; its floating outputs; the gradients of these and of its parameters; its
own parameters and floating buffers; what one optimizer step adds to these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Magnitudes:
    """The magnitudes of all values of one kind in a module, in an fp32 run: a histogram by exponent.

    `counts[i]` values have 2**(lowest + i) <= |x| < 2**(lowest + i + 1); `zeros` and `nonfinite` are apart from these.
    `largest` is the largest finite |x| (None: there is none). `kind` is the module's class, `name` the full name of the
    parameter or buffer whose values they are ("" for inputs, activations and their gradients).
    """

    module: str
    kind: str
    what: str
    name: str = ""
    elements: int
    zeros: int = 0
    nonfinite: int = 0
    largest: float | None = None
    lowest: int = 0
    counts: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swallowed:
    """Of `moved` elements of a parameter that one fp32 step changed, how many do not change where it is in `dtype`."""

    parameter: str
    dtype: str
    moved: int
    swallowed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleError:
    """What one module does in a low precision.

    On exact inputs, that is, those of the fp32 run: `own_rel_l2` is the relative L2 error of its floating outputs
    against fp32's, taken over those that are finite in both (None: there are none, or all of fp32's are zero),
    `overflowed` the outputs that are not finite where fp32's are, `flushed` those that are zero where fp32's are not,
    of `elements` (0: it was not compared, and `note` says why). `inputs_overflowed` of its inputs are not finite in the
    low dtype though they are in fp32: then what overflows began before it. `total_rel_l2` is its error in the whole
    low-precision run, measured on at most `sampled` elements of the output (the same ones in both runs), which it
    inherits in part.
    """

    module: str
    kind: str
    elements: int
    own_rel_l2: float | None = None
    overflowed: int = 0
    flushed: int = 0
    inputs_overflowed: int = 0
    total_rel_l2: float | None = None
    sampled: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstNonfinite:
    """Where a low-precision run first makes a value that is not finite, from finite ones.

    `phase` is "forward", "backward" or "optimizer", `step` counts the network's calls from 0, `operation` is the op's
    name ("aten.mm"), `inputs_largest` the largest finite |x| it was given, `parameter` the one whose gradient it is (""
    where that is not known), `frames` the last lines of the program's own code before it, the innermost last.
    """

    operation: str
    module: str
    phase: str
    step: int
    inputs_largest: float | None = None
    parameter: str = ""
    frames: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangePass:
    """What one fp32 run of a case's network over `batches` batches says of low precisions; `case_id` is the low case's.

    `errors` compare each module with the case's precision, `first_nonfinite` is of the case's own run (None: every
    value was finite). `scale` is GradScaler's where the case has one. `nonfinite_in_fp32` names the first module whose
    values are not finite in fp32 already ("" is the network itself); then nothing else is said.
    """

    case_id: str
    batches: int
    magnitudes: list[Magnitudes] = field(default_factory=list)
    swallowed: list[Swallowed] = field(default_factory=list)
    errors: list[ModuleError] = field(default_factory=list)
    first_nonfinite: FirstNonfinite | None = None
    scale: float | None = None
    nonfinite_in_fp32: str | None = None
    notes: list[str] = field(default_factory=list)

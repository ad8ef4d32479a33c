"""How far a case's numbers lie from the fp64 reference with the same weights and inputs: raw, never a verdict."""

from dataclasses import dataclass, field

CHANCE = (
    "its error means nothing: two fp64 steps already lie {:.1e} apart, as the network draws random numbers, other ones "
    "in other dtypes, or keeps state of its own"
)
"""What is said of a case whose `chance_rel_l2` is that number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The divergence of one step of a case; None: undefined or not measured in this phase (`notes` says why).

    Errors are Euclidean norms over all floating output elements (or all gradients, or all parameters and buffers),
    relative to the reference's norm; a complex element counts as two. `reference_dtype` is that of the reference:
    "fp64", "fp32" (on the device) where the fp64 step failed as `reference_error` says, "" where fp32 failed, too.

    Of the `output_elements`, `output_reference_nonfinite` are not finite in the reference (`output_reference_nan` of
    these NaN), `output_nonfinite` not finite where the reference is (`output_nan` of these NaN), `output_unlike` not
    the same infinity where the reference is infinite, and `output_fp32_nonfinite` not finite in fp32 where the
    reference is (None: no fp32 beside the reference). The same counts of gradients begin with `grad_`.
    `output_undefined` says why `output_rel_l2` is None, `grad_undefined` why `grad_rel_l2` is.
    `output_reference_norm` is of all finite elements of the reference (None: there is no reference, or it is out of
    fp64's range).
    `output_floor_rel_l2` is the error of merely rounding the reference output to the precision's dtype,
    `output_fp32_rel_l2` the error of fp32 (tf32 off) on the same device. `output_cosine` is the cosine similarity.
    `argmax_agreeing` of `argmax_decisions` decisions of a classifier are those of the reference. `loss` and
    `reference_loss` are the losses themselves. `grad_flushed` of `grad_elements` gradient elements are exactly zero
    where the reference's are not. `param_rel_l2` speaks of parameters and buffers after one optimizer step.
    `skipped_steps` counts optimizer steps that GradScaler skipped after its scale had settled at `scaler_scale`.
    `repeatable` tells whether the same step, run twice, gave the same bits.
    `chance_rel_l2` is how far two fp64 steps lie apart by chance alone (random numbers, state that the network keeps to
    itself), told only where the errors are those of chance: then they say nothing about the precision.
    `output_shapes` are those of the output's floating tensors. `output_sketch` and `grad_sketch` are sketches (see
    `ampbench.sketch`) of the reference's outputs and gradients, whose norms are `output_reference_norm` and
    `grad_reference_norm`: with them, what two commits compute in fp64 can be compared.
    """

    case_id: str
    reference_device: str
    weights_digest: str
    inputs_digest: str
    reference_dtype: str = "fp64"
    reference_error: str = ""
    output_reference_norm: float | None = None
    output_elements: int | None = None
    output_reference_nonfinite: int | None = None
    output_reference_nan: int | None = None
    output_rel_l2: float | None = None
    output_max_abs: float | None = None
    output_cosine: float | None = None
    output_nonfinite: int = 0
    output_nan: int | None = None
    output_unlike: int | None = None
    output_fp32_nonfinite: int | None = None
    output_undefined: str = ""
    output_floor_rel_l2: float | None = None
    output_fp32_rel_l2: float | None = None
    argmax_agreeing: int | None = None
    argmax_decisions: int | None = None
    loss: float | None = None
    reference_loss: float | None = None
    grad_rel_l2: float | None = None
    grad_worst_parameter: str | None = None
    grad_worst_rel_l2: float | None = None
    grad_flushed: int | None = None
    grad_elements: int | None = None
    grad_nonfinite: int | None = None
    grad_nan: int | None = None
    grad_reference_nonfinite: int | None = None
    grad_reference_nan: int | None = None
    grad_undefined: str = ""
    param_rel_l2: float | None = None
    scaler_scale: float | None = None
    skipped_steps: int | None = None
    repeatable: bool | None = None
    chance_rel_l2: float | None = None
    output_shapes: list[list[int]] | None = None
    output_sketch: str | None = None
    grad_reference_norm: float | None = None
    grad_sketch: str | None = None
    notes: list[str] = field(default_factory=list)

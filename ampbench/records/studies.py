"""What studies of training habits and of the machine's limits saw: raw numbers, nothing derived from them."""

from dataclasses import dataclass, field

from ampbench.base.precisions import PRECISIONS
from ampbench.records.kinds import Before, unknown
from ampbench.records.measured import Fitness
from ampbench.records.ranges import FirstNonfinite, Magnitudes
from ampbench.records.run import ScalerSetting

CONTROL, REFERENCE = ARMS = "control", "reference"
"""Trainings of the fp32 case beside its own (""): from weights one rounding away, and in fp64."""

CONSTANT, LINEAR, COSINE = SCHEDULES = ("constant", "linear", "cosine")
"""How the learning rate of a training goes on: as it is, or down to next to nothing at the last step."""
OWN = "own"
"""The schedule that the workload itself brings."""

FORWARD, FORWARD_AND_LOSS, WITH_BACKWARD, WHOLE_LOOP, UNCACHED_LOOP = SCOPES = (
    "forward",
    "forward and loss",
    "forward, loss and backward",
    "whole loop",
    "whole loop, cache off",
)
"""What autocast is entered around; PyTorch recommends forward and loss."""
FEWEST_STEPS = 2
"""Scopes are compared over no fewer: what one step leaves to the next shows in the second."""

ACCEPTED, TO_FP32, PROMOTED, TO_LOW, UNTOUCHED = USES = (
    "accepted",
    "cast to fp32",
    "promoted",
    "cast to low",
    "untouched",
)
"""What the first op that takes an input stored in half does to it. `TO_LOW`: it casts it all the same, from another
half; `UNTOUCHED`: no op of the step takes it."""

MATMUL, CONV, COPY = OPERATIONS = "matmul", "conv", "copy"
"""What ceilings are measured with: the first two in FLOP/s, the last in bytes per second, read and written."""
FP32, TF32 = "fp32", "tf32"
"""Dtypes of ceilings that share a torch dtype: torch.float32, without and with tf32 allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How a network does on held-out data after `step` steps of training (0: before the first).

    `loss` is None where it is not finite. Of `decisions`, `correct` are the targets' (None: it is no classifier).
    """

    step: int
    loss: float | None = None
    correct: int | None = None
    decisions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How far all parameters lie after `step` steps from those trained in fp32 and in fp64: relative L2 distances.

    `way` is the way that fp64 went, the norm of what its parameters have moved by since the first step. Of the way that
    the training went itself, from its own first parameters as they are stored, `way_rel_l2` is the L2 distance from
    fp64's, relative to that norm, and `way_kept` the share of fp64's way that it went: their inner product over the
    square of the norm. None where it is undefined, or where that is the training itself.
    """

    step: int
    from_fp32: float | None = None
    from_fp64: float | None = None
    way: float | None = None
    way_rel_l2: float | None = None
    way_kept: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training of a case from the weights and batches of one `seed`.

    `arm` is one of `ARMS`, or "": the case's own. `losses[i]` is the mean training loss of steps `i * every` to
    `(i + 1) * every`, None where one is not finite; there are fewer than `steps` of them where it ended early.
    `held_out` says whether `scores` are on data that was not trained on (else on the training batches).
    `ended_at` is the step from 0 after which it was given up because loss or weights were not finite, `error` the first
    line of what a step raised. `skipped_steps` are those that GradScaler skipped, `scaler_scale` its scale at the end.
    `schedule` is that of the learning rate, one of `SCHEDULES` or `OWN`, `last_rate` the rate of the last step relative
    to the first step's (None: not known). `seconds` is what the training took in all, scores and distances included.
    """

    case_id: str
    seed: int
    arm: str = ""
    steps: int
    every: int = 1
    losses: list[float | None] = field(default_factory=list)
    held_out: bool = False
    scores: list[Score] = field(default_factory=list)
    drift: list[Drift] = field(default_factory=list)
    ended_at: int | None = None
    error: str = ""
    scaler_scale: float | None = None
    skipped_steps: int | None = None
    schedule: str = CONSTANT
    last_rate: float | None = None
    weights_digest: str
    inputs_digest: str
    seconds: float
    notes: list[str] = field(default_factory=list)


def wrong_training(found: Training, _: Before) -> str:
    """Return what of a training cannot be: an arm that there is not."""
    return unknown("an arm", found.arm, ("", *ARMS), f"a training of {found.case_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientLook:
    """The gradients of one step beside those in fp32 of the same weights and batch, the loss scale divided out.

    Of `elements`, `nonzero` are not zero in fp32; of these `flushed` are zero and `nonfinite` not finite in the low
    precision. `rel_l2` is the relative L2 error of all (None: undefined).
    """

    step: int
    scale: float
    elements: int
    nonzero: int
    flushed: int
    nonfinite: int
    rel_l2: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerRun:
    """A training of a case with one scaler setting; `precision` is the case's or, to compare with, fp32.

    `scales[i]` is the scale that step i was taken with (empty: none), `losses[i]` its loss, unscaled (None: not
    finite). `skipped` are the steps that GradScaler skipped, `nonfinite` in how many steps a parameter's gradient was
    not finite. `fp32_gradients` and `gradients` are magnitudes at the looks: in fp32, and as the precision stores them
    before the scale is divided out. `first_nonfinite` is where the first value that is not finite comes from.
    """

    case_id: str
    setting: ScalerSetting
    precision: str
    steps: int
    losses: list[float | None] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    nonfinite: dict[str, int] = field(default_factory=dict)
    looks: list[GradientLook] = field(default_factory=list)
    fp32_gradients: Magnitudes | None = None
    gradients: Magnitudes | None = None
    first_nonfinite: FirstNonfinite | None = None
    score: Score | None = None
    error: str = ""
    weights_digest: str = ""
    notes: list[str] = field(default_factory=list)


def wrong_scaling(found: ScalerRun, _: Before) -> str:
    """Return what of a training with a scaler setting cannot be: an unknown precision."""
    return unknown("a precision", found.precision, PRECISIONS, f"a scaling of {found.case_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeRun:
    """What entering autocast around `scope`, one of `SCOPES`, does to some steps of training.

    Per step: `casts`, the `cast_bytes` they move, `stale_weights`, which are read as copies that autocast made in an
    earlier step, before the optimizer changed them, `peak_bytes` above what was allocated before the first and
    `alive_bytes`, allocated after the step and not before the first; empty where unavailable. `samples[b]` are seconds
    per step of build `b`, taken in turns with the other scopes. `dtypes` are those of "output", "loss" and
    "gradients" ("bf16"; several joined by ", "). Errors are against the same steps in fp64: output, loss and gradients
    of the first step, `update_rel_l2` of what all steps changed, relative to that change; None: undefined. Runs of
    before have it as `param_rel_l2`; `update_error` is either.
    `losses` are those of each step. `error` is the first line of what it raised.
    """

    scope: str
    casts: list[int] = field(default_factory=list)
    cast_bytes: list[int] = field(default_factory=list)
    stale_weights: list[int] = field(default_factory=list)
    samples: list[list[float]] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    alive_bytes: list[int] = field(default_factory=list)
    dtypes: dict[str, str] = field(default_factory=dict)
    output_rel_l2: float | None = None
    loss_abs_error: float | None = None
    grad_rel_l2: float | None = None
    update_rel_l2: float | None = None
    param_rel_l2: float | None = None
    losses: list[float | None] = field(default_factory=list)
    error: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def update_error(self) -> float | None:
        """The error of what all steps changed, under whichever name the run has it."""
        return self.param_rel_l2 if self.update_rel_l2 is None else self.update_rel_l2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopePass:
    """A case trained for `steps` steps in each scope. `reference_losses` are those of the steps without autocast.

    These are in `reference_dtype`: "fp64", or "fp32" where fp64 fails ("": both do, and no error is known).
    """

    case_id: str
    steps: int
    scopes: list[ScopeRun] = field(default_factory=list)
    reference_losses: list[float | None] = field(default_factory=list)
    reference_dtype: str = "fp64"
    memory_source: str | None = None
    fitness: Fitness = field(default_factory=Fitness)
    notes: list[str] = field(default_factory=list)


def wrong_scopes(found: ScopePass, _: Before) -> str:
    """Return what of a case trained in each scope cannot be: a scope that there is not."""
    wrong = (unknown("a scope", one.scope, SCOPES, f"a scopes of {found.case_id}") for one in found.scopes)
    return next(filter(None, wrong), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputUse:
    """What becomes of a floating input stored in half: the first `operation` that takes it, and what that does.

    `use` is one of `USES`, `module` the path of the module that the op belongs to ("": the network itself).
    `read_in_fp32` is the first op that reads the input in fp32 where it is stored in fp32 ("": each op casts it to
    half, so that it loses nothing by being stored in half).
    """

    name: str
    operation: str = ""
    module: str = ""
    use: str
    read_in_fp32: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredInputs:
    """A step of a case whose floating inputs are stored in `dtype` ("fp32", "bf16").

    `stored_bytes` are those of all inputs of a batch, `copy_samples` the seconds that copying them from host to device
    takes (empty: they are one). `samples[b]` are seconds per step of build `b`, in turns with the other dtype. Errors
    are against fp64 with the inputs as they were given in fp32; None: undefined. `error` is the first line of
    what the step raised with such inputs; then nothing but the bytes is known.
    """

    dtype: str
    stored_bytes: int
    copy_samples: list[float] = field(default_factory=list)
    casts: int | None = None
    cast_bytes: int | None = None
    samples: list[list[float]] = field(default_factory=list)
    peak_bytes: int | None = None
    output_rel_l2: float | None = None
    loss_abs_error: float | None = None
    grad_rel_l2: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePass:
    """A case fed inputs in fp32 and inputs stored in half.

    `identical`: outputs, loss and gradients are the same to the last bit (None: the step does not run with inputs in
    half); `repeatable`: those of fp32 inputs are, when the step is run twice. `exact`: the inputs lose nothing by being
    stored in half.
    """

    case_id: str
    uses: list[InputUse] = field(default_factory=list)
    full: StoredInputs
    low: StoredInputs
    identical: bool | None
    repeatable: bool
    exact: bool
    memory_source: str | None = None
    fitness: Fitness = field(default_factory=Fitness)
    notes: list[str] = field(default_factory=list)


def wrong_storage(found: StoragePass, _: Before) -> str:
    """Return what of a case fed inputs in half cannot be: a use that there is not."""
    wrong = (unknown("a use", one.use, USES, f"a storage of {found.case_id}") for one in found.uses)
    return next(filter(None, wrong), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attained:
    """What one `size` ("1024x1024x1024") attained: `work` FLOPs or bytes in each of `samples` seconds."""

    size: str
    work: int
    samples: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What a device attains with one `operation`, one of `OPERATIONS`, in one dtype ("bf16"; "tf32"), over sizes.

    `run` is the id of the run that measured it, where another has taken it over, else "". `threads` are torch's.
    `error` says why there is nothing attained.
    """

    device: str
    operation: str
    dtype: str
    threads: int
    attained: list[Attained] = field(default_factory=list)
    run: str = ""
    error: str = ""
    fitness: Fitness = field(default_factory=Fitness)
    notes: list[str] = field(default_factory=list)


def wrong_ceiling(found: Ceiling, _: Before) -> str:
    """Return what of a ceiling cannot be: an operation that there is not."""
    where = f"a ceiling of {found.operation} on {found.device}"
    return unknown("an operation", found.operation, OPERATIONS, where)

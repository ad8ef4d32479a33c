"""What a study of loss scaling stores: trainings with a setting of GradScaler, and what a worker is asked for one."""

from dataclasses import dataclass, field

from ampbench.base.precisions import PRECISIONS
from ampbench.records.bounds import Count, ErrorSize, Magnitude, Signed, Steps
from ampbench.records.kinds import Before, unknown
from ampbench.records.measured import Score
from ampbench.records.ranges import FirstNonfinite, Magnitudes
from ampbench.records.run import ScalerSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientLook:
    """The gradients of one step beside those in fp32 of the same weights and batch, the loss scale divided out.

    Of `elements`, `nonzero` are not zero in fp32; of these `flushed` are zero and `nonfinite` not finite in the low
    precision. `rel_l2` is the relative L2 error of all (None: undefined).
    """

    step: Count
    scale: Magnitude
    elements: Count
    nonzero: Count
    flushed: Count
    nonfinite: Count
    rel_l2: ErrorSize | None = None


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
    steps: Steps
    losses: list[Signed | None] = field(default_factory=list)
    scales: list[Magnitude] = field(default_factory=list)
    skipped: list[Count] = field(default_factory=list)
    nonfinite: dict[str, Count] = field(default_factory=dict)
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
class ScalingAsked:
    """To train a case for `steps` steps with a scaler `setting` (None: in fp32)."""

    setting: ScalerSetting | None
    steps: Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerAsked:
    """To train each case for `steps` steps in fp32 and with each of the `settings`."""

    steps: Steps
    settings: list[ScalerSetting]

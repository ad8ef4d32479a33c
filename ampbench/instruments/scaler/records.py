"""What a study of loss scaling stores: trainings with a setting of GradScaler, and what a worker is asked for one."""

import msgspec

from ampbench.core.precisions import PRECISIONS
from ampbench.records.bounds import Count, ErrorSize, Magnitude, Parts, Signed, Steps
from ampbench.records.measured import Score
from ampbench.records.ranges import FirstNonfinite, Magnitudes
from ampbench.records.run import ScalerSetting


class GradientLook(Parts, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The gradients of one step beside those in fp32 of the same weights and batch, the loss scale divided out.

    Of `elements`, `nonzero` are not zero in fp32; of these `flushed` are zero and `nonfinite` not finite in the low
    precision. `rel_l2` is the relative L2 error of all (None: undefined).
    """

    PARTS = (
        ("nonzero", "elements"),
        ("flushed", "nonzero"),
        ("nonfinite", "elements"),
    )
    step: Count
    scale: Magnitude
    elements: Count
    nonzero: Count
    flushed: Count
    nonfinite: Count
    rel_l2: ErrorSize | None = None


class ScalerRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
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
    losses: list[Signed | None] = []
    scales: list[Magnitude] = []
    skipped: list[Count] = []
    nonfinite: dict[str, Count] = {}
    looks: list[GradientLook] = []
    fp32_gradients: Magnitudes | None = None
    gradients: Magnitudes | None = None
    first_nonfinite: FirstNonfinite | None = None
    score: Score | None = None
    error: str = ""
    weights_digest: str = ""
    notes: list[str] = []

    def __post_init__(self) -> None:
        """Raise `ValueError` for a precision that is not known."""
        if self.precision not in PRECISIONS:
            raise ValueError(f"an unknown precision, {self.precision!r}")


class ScalingAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To train a case for `steps` steps with a scaler `setting` (None: in fp32)."""

    setting: ScalerSetting | None
    steps: Steps


class ScalerAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To train each case for `steps` steps in fp32 and with each of the `settings`."""

    steps: Steps
    settings: list[ScalerSetting]

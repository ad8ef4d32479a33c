"""What a study of convergence stores: whole trainings, and what a worker is asked for one of them."""

from typing import Annotated

import msgspec

from ampbench.core.recipes import CONSTANT
from ampbench.records.bounds import Count, ErrorSize, KeptShare, Magnitude, Positive, Seconds, Signed, Steps, one_of
from ampbench.records.measured import Score

CONTROL, REFERENCE = ARMS = "control", "reference"
"""Trainings of the fp32 case beside its own (""): from weights one rounding away, and in fp64."""

OWN = "own"
"""The schedule that the workload itself brings."""


class Drift(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How far all parameters lie after `step` steps from those trained in fp32 and in fp64: relative L2 distances.

    `way` is the way that fp64 went, the norm of what its parameters have moved by since the first step. Of the way that
    the training went itself, from its own first parameters as they are stored, `way_rel_l2` is the L2 distance from
    fp64's, relative to that norm, and `way_kept` the share of fp64's way that it went: their inner product over the
    square of the norm. None where it is undefined, or where that is the training itself.
    """

    step: Count
    from_fp32: ErrorSize | None = None
    from_fp64: ErrorSize | None = None
    way: Magnitude | None = None
    way_rel_l2: ErrorSize | None = None
    way_kept: KeptShare | None = None


class Training(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One training of a case from the weights and batches of one `seed`.

    `arm` is one of `ARMS`, or "": the case's own. `losses[i]` is the mean training loss of steps `i * every` to `(i +
    1) * every`, None where one is not finite; there are fewer than `steps` of them where it ended early. `held_out`
    says whether `scores` are on data that was not trained on (else on the training batches). `ended_at` is the step
    from 0 after which it was given up because loss or weights were not finite, `error` the first line of what a step
    raised. `skipped_steps` are those that GradScaler skipped, `scaler_scale` its scale at the end. `schedule` is that
    of the learning rate, `CONSTANT`, the recipe's or `OWN`, `last_rate` the rate of the last step relative to the
    optimizer's, of the workload's own schedule to the first step's (None: not known). `seconds` is what the training
    took in all, scores and distances included.
    """

    case_id: str
    seed: int
    arm: Annotated[str, one_of("", *ARMS)] = ""
    steps: Steps
    every: Positive = 1
    losses: list[Signed | None] = []
    held_out: bool = False
    scores: list[Score] = []
    drift: list[Drift] = []
    ended_at: Count | None = None
    error: str = ""
    scaler_scale: Magnitude | None = None
    skipped_steps: Count | None = None
    schedule: str = CONSTANT
    last_rate: Magnitude | None = None
    weights_digest: str
    inputs_digest: str
    seconds: Seconds
    notes: list[str] = []


class TrainingAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To train a case for `steps` steps, as its own or as another `arm` (see `Training`).

    A worker that is not fresh knows the fp32 and fp64 trainings before it.
    """

    steps: Steps
    arm: str = ""


class ConvergenceAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To train each case for `steps` steps from each of `seeds` seeds."""

    steps: Steps
    seeds: Count

"""What a study of the scope of autocast stores: some steps of training in each, and what a worker is asked for that."""

from typing import Annotated

import msgspec

from ampbench.records.bounds import Change, Count, ErrorSize, Magnitude, Seconds, Signed, Steps, StepSeconds, one_of
from ampbench.records.measured import Fitness

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


class ScopeRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What entering autocast around `scope`, one of `SCOPES`, does to some steps of training.

    Per step: `casts`, the `cast_bytes` they move, `stale_weights`, which are read as copies that autocast made in an
    earlier step, before the optimizer changed them, `peak_bytes` above what was allocated before the first and
    `alive_bytes`, allocated after the step and not before the first; empty where unavailable. `samples[b]` are seconds
    per step of build `b`, taken in turns with the other scopes. `dtypes` are those of "output", "loss" and
    "gradients" ("bf16"; several joined by ", "). Errors are against the same steps in fp64: output, loss and gradients
    of the first step, `update_rel_l2` of what all steps changed, relative to that change; None: undefined.
    `losses` are those of each step. `error` is the first line of what it raised.
    """

    scope: Annotated[str, one_of(*SCOPES)]
    casts: list[Count] = []
    cast_bytes: list[Count] = []
    stale_weights: list[Count] = []
    samples: list[list[StepSeconds]] = []
    peak_bytes: list[Count] = []
    alive_bytes: list[Change] = []
    dtypes: dict[str, str] = {}
    output_rel_l2: ErrorSize | None = None
    loss_abs_error: Magnitude | None = None
    grad_rel_l2: ErrorSize | None = None
    update_rel_l2: ErrorSize | None = None
    losses: list[Signed | None] = []
    error: str = ""
    notes: list[str] = []

    def __post_init__(self) -> None:
        """Raise `ValueError` where a build has no samples."""
        if not all(self.samples):
            raise ValueError("a build without samples")


class ScopePass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A case trained for `steps` steps in each scope. `reference_losses` are those of the steps without autocast.

    These are in `reference_dtype`: "fp64", or "fp32" where fp64 fails ("": both do, and no error is known).
    """

    case_id: str
    steps: Steps
    scopes: list[ScopeRun] = []
    reference_losses: list[Signed | None] = []
    reference_dtype: str = "fp64"
    memory_source: str | None = None
    fitness: Fitness = Fitness()
    notes: list[str] = []


class ScopeAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To train a case for `steps` steps in every scope, and to time these for about `seconds`."""

    steps: Steps
    seconds: Seconds

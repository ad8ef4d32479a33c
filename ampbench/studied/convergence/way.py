"""How far trainings went astray of the way that fp64 went, and whether that adds up with the steps or averages out.

The way of a training is what its parameters have moved by since its first step, as they are stored: Δθ, beside fp64's
Δθ*. An error that every step makes alike, a bias, makes their distance grow in proportion to the number of steps k;
independent errors, noise, make it grow with its root. Where training contracts, towards one minimum, it settles; where
it is chaotic, trainings part faster than either.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ampbench.records.studies import Training
from ampbench.studied.convergence.metric import broke_off

SETTLES, NOISE, BIAS, PARTS = "settles", "noise", "bias", "parts"
"""How a distance grows with the steps k: as k^0, k^0.5, k^1 or faster, whichever its slope is nearest to."""

_UP_TO = ((0.25, SETTLES), (0.75, NOISE), (1.25, BIAS), (math.inf, PARTS))

FEWEST_LOOKS = 3
"""A slope is told of no fewer distances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How far the trainings of a row lie at the end from the way that fp64 went: medians over seeds.

    `error` is ‖Δθ − Δθ*‖ / ‖Δθ*‖, `kept` the share of fp64's way that was gone, ⟨Δθ, Δθ*⟩ / ‖Δθ*‖². `slope` is the
    exponent with which ‖Δθ − Δθ*‖ grows with the steps, the mean over seeds of least squares on logarithms from the
    root of the number of steps on; None where fewer than `FEWEST_LOOKS` distances are known.
    """

    error: float
    kept: float
    slope: float | None = None

    @property
    def grows(self) -> str:
        """Return the word for the slope: `SETTLES`, `NOISE`, `BIAS` or `PARTS`; "" where there is none."""
        return next((word for most, word in _UP_TO if self.slope is not None and self.slope < most), "")


def way_of(trainings: Sequence[Training]) -> Way | None:
    """Return how far trainings went astray; None where one that came to its end does not tell."""
    whole = [each for each in trainings if not broke_off(each)]
    last = [each.drift[-1] for each in whole if each.drift]
    errors = [drift.way_rel_l2 for drift in last if drift.way_rel_l2 is not None]
    kept = [drift.way_kept for drift in last if drift.way_kept is not None]
    if not whole or len(errors) < len(whole) or len(kept) < len(whole):
        return None
    slopes = [slope for each in whole if (slope := slope_of(each)) is not None]
    slope = statistics.fmean(slopes) if len(slopes) == len(whole) else None
    return Way(error=statistics.median(errors), kept=statistics.median(kept), slope=slope)


def slope_of(training: Training) -> float | None:
    """Return the exponent with which a training's distance from fp64's way grows; None where too little is known."""
    points = [
        (math.log(drift.step), math.log(drift.way * drift.way_rel_l2))
        for drift in training.drift
        if drift.step >= math.sqrt(training.steps) and drift.way and drift.way_rel_l2
    ]
    if len(points) < FEWEST_LOOKS:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def way_error(trainings: Sequence[Training], step: int) -> float | None:
    """Return the median over seeds of the relative distance from fp64's way after `step` steps; None: not known."""
    known = [
        drift.way_rel_l2
        for each in trainings
        for drift in each.drift
        if drift.step == step and drift.way_rel_l2 is not None
    ]
    return statistics.median(known) if known else None

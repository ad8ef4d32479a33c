"""How well one training ended, the mean of its last scores or why it has none, and how that is written."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ampbench.records.studies import Drift, Score, Training
from ampbench.units import UNDEFINED, counted

ACCURACY, LOSS = "accuracy", "loss"
"""What trainings are judged by: the share of decisions that are the targets', else the loss."""

MARGINS = {ACCURACY: 0.005, LOSS: 0.01}
"""The largest differences that count as none: half a point of accuracy, one percent of the loss."""

OF_FALL = 0.1
"""Nor do differences of losses count as none that are more than this share of what fp32's own loss falls by."""

LATE_MARGIN = math.log(1.05)
"""The largest difference of log training losses in the last quarter that counts as none: 5% of the loss."""

ROUNDING = 2.0**-20
"""A loss that falls by no more than this share of it has not fallen: some units in the last place of fp32."""

HARDLY = 0.01
"""A loss that falls by less than this share of it has hardly fallen."""

LAST = 0.75
"""From this share of the steps on, scores are those of the end."""

WINDOWS = 6
"""Losses are shown as means over so many parts of the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What the trainings of a workload are judged by: `ACCURACY` or `LOSS`, `held_out` or on what was trained on.

    `decisions` are those that an accuracy is the share of; None for a loss. `fall` is by how much fp32's loss falls in
    training, relative to where it ends; None where that is not known, and for an accuracy.
    """

    name: str
    held_out: bool
    decisions: int | None = None
    fall: float | None = None

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.name == ACCURACY else -1

    @property
    def resolution(self) -> float:
        """The least step of the metric: one decision; 0 for a loss."""
        return 1 / self.decisions if self.decisions else 0.0

    @property
    def margin(self) -> float:
        """The largest difference that counts as none: of an accuracy, one decision at least.

        Of a loss, relative to fp32's: the smaller of one percent and `OF_FALL` of fp32's own fall, where it falls.
        """
        if self.fall is not None and self.fall > ROUNDING:
            return min(MARGINS[self.name], OF_FALL * self.fall)
        return max(MARGINS[self.name], self.resolution)

    @property
    def hardly_falls(self) -> bool:
        """Whether fp32's loss falls, but by less than `HARDLY`."""
        return self.fall is not None and 0 < self.fall < HARDLY

    def of(self, score: Score | None) -> float | None:
        """Return the value of a score; None where its loss is not finite, or there is no score."""
        if score is None or score.loss is None:
            return None  # of outputs that are not finite, an accuracy counts the classes that NaN falls on
        if self.name == LOSS:
            return score.loss
        return score.correct / score.decisions if score.correct is not None and score.decisions else None

    def final(self, training: Training) -> float | None:
        """Return the mean over the scores in the last quarter of the steps; None where one of them has no value.

        A single score also says at which moment it was taken: decisions near a border change from step to step.
        """
        last = final_score(training)
        if last is None:
            return None
        late = [score for score in training.scores if score.step >= LAST * training.steps]
        values = [value for score in late if (value := self.of(score)) is not None]
        return statistics.fmean(values) if len(values) == len(late) else None


def metric_of(trainings: Sequence[Training]) -> Metric:
    """Return what trainings, best those of fp32, are judged by: accuracy where every score counts decisions."""
    scores = [score for training in trainings for score in training.scores]
    held_out = any(training.held_out for training in trainings)
    if scores and all(score.decisions and score.correct is not None for score in scores):
        return Metric(name=ACCURACY, held_out=held_out, decisions=min(score.decisions or 0 for score in scores))
    return Metric(name=LOSS, held_out=held_out)


def format_metric(value: float | None, metric: Metric) -> str:
    """Return an accuracy as "97.87%", a loss as "0.3127"."""
    if value is None:
        return UNDEFINED
    return f"{value:.2%}" if metric.name == ACCURACY else f"{value:.4g}"


def format_change(value: float | None, metric: Metric) -> str:
    """Return a difference from fp32 as "+0.13", in points of accuracy, or "+0.13%", of a loss."""
    if value is None:
        return UNDEFINED
    number = f"{_rounded(value):+.2f}"
    return number if metric.name == ACCURACY else f"{number}%"


def size_said(value: float | None, metric: Metric) -> str:
    """Return the size of a difference as "0.13 points" or "0.13% of the loss"; "nothing" where there is none."""
    if value is None:
        return UNDEFINED
    if value == 0:
        return "nothing"
    number = f"{abs(_rounded(value)):.2f}" if abs(value) >= 5e-5 else "less than 0.01"
    return f"{number} points" if metric.name == ACCURACY else f"{number}% of the loss"


def margin_said(metric: Metric) -> str:
    """Return the margin as "half a point of accuracy" or "1.00% of the loss", and what it is a share of."""
    if metric.name == ACCURACY and metric.margin == MARGINS[ACCURACY]:
        return "half a point of accuracy"
    size = size_said(metric.margin, metric)
    return f"{size}, a tenth of what fp32's falls by" if metric.margin < MARGINS[metric.name] else size


def metric_said(metric: Metric) -> str:
    """Return what is measured, as "accuracy on held-out data" or "loss on the training data"."""
    return f"{metric.name} on {'held-out data' if metric.held_out else 'the training data'}"


def change_said(value: float, metric: Metric) -> str:
    """Return "its accuracy is 1.20 points lower" or "its loss is 0.50% higher"."""
    unit = " points" if metric.name == ACCURACY else "%"
    return f"its {metric.name} is {abs(_rounded(value)):.2f}{unit} {'lower' if value < 0 else 'higher'}"


def ratio_said(ratio: float, low: float | None, high: float | None) -> str:
    """Return "its training loss ends 2.41 times fp32's (90% interval 2.22 to 2.6)"."""
    between = "" if low is None or high is None else f" (90% interval {low:.3g} to {high:.3g})"
    return f"its training loss ends {ratio:.3g} times fp32's{between}"


def interval_said(low: float | None, high: float | None, metric: Metric) -> str:
    """Return "(90% interval -1.50 to -0.90)"; "" where there is none."""
    if low is None or high is None:
        return ""
    return f"(90% interval {format_change(low, metric)} to {format_change(high, metric)})"


def first_score(training: Training) -> Score | None:
    """Return the score before the first step."""
    return next((score for score in training.scores if score.step == 0), None)


def final_score(training: Training) -> Score | None:
    """Return the score after the last step, of the network that the training hands over; None where it ended early."""
    if broke_off(training):
        return None
    return next((score for score in training.scores if score.step == training.steps), None)


def mean_loss(training: Training, low: int, high: int) -> float | None:
    """Return the mean training loss of the steps from `low` to before `high`; None where some of them has none."""
    first, last = low // training.every, max(-(-high // training.every), low // training.every + 1)
    known = training.losses[first:last]
    whole = last <= len(training.losses) or len(training.losses) * training.every >= training.steps
    values = [loss for loss in known if loss is not None]
    return statistics.fmean(values) if values and len(values) == len(known) and whole else None


def late_loss(training: Training) -> float | None:
    """Return the mean training loss of the last quarter of the steps; None where one has none, or it ended early."""
    if broke_off(training):
        return None
    return mean_loss(training, math.floor(LAST * training.steps), training.steps)


def late_margin(own: Sequence[Training]) -> float | None:
    """Return the largest difference of log training losses that counts as none, given the trainings in fp32.

    That is `LATE_MARGIN` or, where it is less, `OF_FALL` of what fp32's own log loss falls by, from the first stored
    loss to the last quarter. None where fp32's loss does not fall, or no logarithm is known.
    """
    ends = [(each.losses[0] if each.losses else None, late_loss(each)) for each in own]
    falls = [math.log(first / last) for first, last in ends if first and last and first > 0 and last > 0]
    fall = statistics.fmean(falls) if falls else 0.0
    return min(LATE_MARGIN, OF_FALL * fall) if fall > ROUNDING else None


def windows_of(steps: int) -> list[tuple[int, int]]:
    """Return the parts of a training over which losses are averaged: from each first step to before the next."""
    edges = [round(steps * part / WINDOWS) for part in range(WINDOWS + 1)]
    return [(low, high) for low, high in pairwise(edges) if high > low]


def final_drift(training: Training) -> Drift | None:
    """Return how far the weights lay from others after the last step; None where it ended early."""
    return training.drift[-1] if training.drift and not broke_off(training) else None


def broke_off(training: Training) -> bool:
    """Return whether a training was given up or ended with an error."""
    return training.ended_at is not None or bool(training.error)


def trouble(training: Training, metric: Metric) -> str:
    """Return why a training has no final value of a metric, as "loss not finite from step 15"; "" where it has one.

    Steps count from 1.
    """
    if training.error:
        return f"raised {training.error}"
    if training.ended_at is not None:
        return _given_up(training, training.ended_at)
    skipped = ["every step skipped by GradScaler"] if training.skipped_steps == training.steps else []
    if final_score(training) is None:
        return ", ".join([*skipped, "not scored at the end"])
    if metric.final(training) is None:
        held_out = "held-out loss" if training.held_out else "loss"
        return ", ".join([*skipped, f"{held_out} not finite at the end"])
    late = training.losses[math.floor(LAST * len(training.losses)) :]
    if late and all(loss is None for loss in late):
        return ", ".join([*skipped, _lost(training)])
    return ", ".join(skipped)


def troubles_said(trainings: Sequence[Training], metric: Metric) -> str:
    """Return what kept trainings of several seeds from an end, as "loss not finite from step 15 in 2 of 3 seeds"."""
    found = [(training, said) for training in trainings if (said := trouble(training, metric))]
    if not found:
        return ""
    first, said = min(found, key=lambda each: math.inf if each[0].ended_at is None else each[0].ended_at)
    alike = {other for _, other in found} == {said}
    earliest = "" if alike or first.ended_at is None else " at the earliest"
    return f"{said}{earliest} in {len(found)} of {counted(len(trainings), 'seed')}"


def _given_up(training: Training, ended_at: int) -> str:
    """Return what was not finite when a training was given up, and from which step."""
    if training.losses and training.losses[-1] is None:
        return _lost(training)
    if training.scaler_scale is not None and training.scaler_scale < 1:
        return f"gradients not finite at any loss scale, given up at step {ended_at + 1:,}"
    return f"weights not finite from step {ended_at + 1:,}"


def _lost(training: Training) -> str:
    """Return from which step on no training loss was finite, where the last was not."""
    finite = max((place + 1 for place, loss in enumerate(training.losses) if loss is not None), default=0)
    return f"loss not finite from step {finite * training.every + 1:,}"


def _rounded(value: float) -> float:
    """Return 100 times a share, rounded to two digits, and never "-0.00"."""
    return round(100 * value, 2) + 0.0

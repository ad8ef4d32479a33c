"""How well one training ended: the mean of its last scores, or why it has none."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ampbench.records.studies import Drift, Score, Training
from ampbench.units import counted

ACCURACY, LOSS = "accuracy", "loss"
"""What trainings are judged by: the share of decisions that are the targets', else the loss."""

MARGINS = {ACCURACY: 0.005, LOSS: 0.01}
"""The largest differences that count as none: half a point of accuracy, one percent of the loss."""


LAST = 0.75
"""From this share of the steps on, scores are those of the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What the trainings of a workload are judged by: `ACCURACY` or `LOSS`, `held_out` or on what was trained on.

    `decisions` are those that an accuracy is the share of; None for a loss.
    """

    name: str
    held_out: bool
    decisions: int | None = None

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
        """The largest difference that counts as none; of a loss, relative to fp32's. Never below one decision."""
        return max(MARGINS[self.name], self.resolution)

    def of(self, score: Score | None) -> float | None:
        """Return the value of a score; None where it is not finite, or there is no score."""
        if score is None:
            return None
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


def first_score(training: Training) -> Score | None:
    """Return the score before the first step."""
    return next((score for score in training.scores if score.step == 0), None)


def final_score(training: Training) -> Score | None:
    """Return the score after the last step, of the network that the training hands over; None where it ended early."""
    if broke_off(training):
        return None
    return next((score for score in training.scores if score.step == training.steps), None)


def final_drift(training: Training) -> Drift | None:
    """Return how far the weights lay from others after the last step; None where it ended early."""
    return training.drift[-1] if training.drift and not broke_off(training) else None


def broke_off(training: Training) -> bool:
    """Return whether a training was given up or ended with an error."""
    return training.ended_at is not None or bool(training.error)


def trouble(training: Training, metric: Metric) -> str:
    """Return why a training has no final value of a metric, as "loss not finite from step 14"; "" where it has one."""
    if training.error:
        return f"raised {training.error}"
    if training.ended_at is not None:
        return _given_up(training, training.ended_at)
    if metric.final(training) is not None:
        return ""
    held_out = "held-out loss" if training.held_out else "loss"
    return f"{held_out} not finite at the end" if final_score(training) is not None else "not scored at the end"


def troubles_said(trainings: Sequence[Training], metric: Metric) -> str:
    """Return what kept trainings of several seeds from an end, as "loss not finite from step 14 in 2 of 3 seeds"."""
    found = [(training, said) for training in trainings if (said := trouble(training, metric))]
    if not found:
        return ""
    first, said = min(found, key=lambda each: math.inf if each[0].ended_at is None else each[0].ended_at)
    alike = {other for _, other in found} == {said}
    earliest = "" if alike or first.ended_at is None else " at the earliest"
    return f"{said}{earliest} in {len(found)} of {counted(len(trainings), 'seed')}"


def _given_up(training: Training, ended_at: int) -> str:
    """Return what was not finite when a training was given up, and from which step."""
    finite = max((place + 1 for place, loss in enumerate(training.losses) if loss is not None), default=0)
    if finite < len(training.losses):
        return f"loss not finite from step {finite * training.every:,}"
    if training.scaler_scale is not None and training.scaler_scale < 1:
        return f"gradients not finite at any loss scale, given up at step {ended_at:,}"
    return f"weights not finite from step {ended_at:,}"

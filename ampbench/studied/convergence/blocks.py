"""What the trainings of a workload come to, as blocks of text for a terminal, a Markdown page, anything.

Numbers without a value are "–".
"""

import math
import statistics
from collections.abc import Sequence

from ampbench.blocks import Block, Section, as_sentence
from ampbench.records.studies import Training
from ampbench.studied.convergence.learning import Learned, Learning
from ampbench.studied.convergence.metric import (
    ACCURACY,
    Metric,
    broke_off,
    format_change,
    format_metric,
    mean_loss,
    trouble,
    windows_of,
)
from ampbench.studied.convergence.sentences import learned_said, trained_title
from ampbench.studied.convergence.way import way_error
from ampbench.units import UNDEFINED, format_error, format_loss, format_seconds, format_whole
from ampbench.verdicts import Verdict

LOOKS = 4
"""Distances between weights are shown at so many steps."""

_NO_WORSE = {Verdict.UNCHANGED: "no worse", Verdict.REGRESSED: "worse", Verdict.IMPROVED: "lower"}


def learned_section(one: Learned, *, everything: bool = False) -> Section:
    """Return what each precision's training comes to; `everything`: each seed's row too."""
    blocks = [Block(as_sentence(said)) for said in learned_said(one)]
    blocks += [
        *verdicts(one),
        *late_losses(one),
        *losses(one),
        *weights(one),
        *ways(one),
        *(each_seed(one) if everything else []),
    ]
    notes = dict.fromkeys(note for row in one.rows for training in row.trainings for note in training.notes)
    return Section(trained_title(one), [*blocks, *(Block(as_sentence(note)) for note in notes)])


def verdicts(one: Learned) -> list[Block]:
    """Return how each precision ends, its difference from fp32 and the verdict on it."""
    metric = one.metric
    skips = any(row.skipped_steps is not None for row in one.rows)
    cells = [
        [
            row.name,
            format_metric(row.mean, metric),
            _sd(row, metric),
            format_change(row.difference, metric),
            interval(row, metric),
            row.verdict.value if row.verdict is not None else "",
            *([format_whole(row.skipped_steps)] if skips else []),
            format_seconds(row.seconds),
        ]
        for row in one.rows
    ]
    headers = ["precision", metric.name, "SD", "against fp32", "90% interval", "verdict"]
    headers += [*(["skipped steps"] if skips else []), "time"]
    unit = "in points" if metric.name == ACCURACY else "relative to fp32's"
    note = f"last quarter of the steps; means over seeds; SD: over seeds; against fp32: {unit}, of the same seed"
    if any(row.arm for row in one.rows):
        note += "; control: fp32 from weights one rounding away"
    numbers = [header for header in headers[1:] if header != "verdict"]
    return [Block("At the end", headers, cells, note, numbers=numbers)]


def late_losses(one: Learned) -> list[Block]:
    """Return what each precision's training loss ends at, against fp32's, and whether it is no worse."""
    cells = [
        [
            row.name,
            format_loss(row.loss),
            format_ratio(row.loss_ratio),
            UNDEFINED if row.loss_low is None else f"{format_ratio(row.loss_low)} to {format_ratio(row.loss_high)}",
            _NO_WORSE.get(row.loss_verdict, row.loss_verdict.value) if row.loss_verdict is not None else "",
        ]
        for row in one.rows
    ]
    headers = ["precision", "loss", "times fp32's", "90% interval", "verdict"]
    most = "" if one.loss_margin is None else f"; up to {math.exp(one.loss_margin):.3g} times is no worse"
    note = f"last quarter of the steps; times fp32's: of the same seed, geometric mean over seeds{most}"
    return [Block("At the end, training loss", headers, cells, note, numbers=headers[1:-1])]


def losses(one: Learned) -> list[Block]:
    """Return the training loss of each precision over parts of the training."""
    windows = windows_of(one.steps)
    headers = ["precision", *(_steps(low, high) for low, high in windows)]
    cells = [[row.name, *(_loss(row.trainings, low, high) for low, high in windows)] for row in one.rows]
    note = "means over steps and seeds; –: not finite, or not reached"
    return [Block("Training loss", headers, cells, note, numbers=headers[1:])]


def weights(one: Learned) -> list[Block]:
    """Return how far the weights of each precision lie from those of fp32 as the training goes on, and of fp64."""
    looks = _looks([training for row in one.rows for training in row.trainings])
    if not looks:
        return []
    cells = [
        [row.name, *(format_error(distance(row.trainings, step)) for step in looks), format_error(row.from_fp64)]
        for row in one.rows
    ]
    headers = ["precision", *(f"step {step:,}" for step in looks), "from fp64"]
    note = "relative L2 distance from fp32's of the same seed, medians over seeds; from fp64: after the last step"
    return [Block("Weights", headers, cells, note, numbers=headers[1:])]


def ways(one: Learned) -> list[Block]:
    """Return how far each precision goes astray of the way that fp64 goes, and how that grows with the steps."""
    rows = [(row, row.way) for row in one.rows if row.way is not None]
    if not rows:
        return []
    steps = _looks(rows[0][0].trainings)
    cells = [
        [
            row.name,
            *(format_error(way_error(row.trainings, step)) for step in steps),
            f"{100 * way.kept:.1f}%",
            UNDEFINED if way.slope is None else f"k^{way.slope:.2f}",
            way.grows,
        ]
        for row, way in rows
    ]
    headers = ["precision", *(f"step {step:,}" for step in steps), "of the way", "grows as", "like"]
    note = (
        "distance of what the weights moved by from what fp64's moved by, relative to that, medians over seeds; of the "
        "way: the share of fp64's that was gone; bias adds up with the steps k, noise with their root"
    )
    return [Block("Way", headers, cells, note, numbers=headers[1:-1])]


def each_seed(one: Learned) -> list[Block]:
    """Return how every training ended."""
    metric = one.metric
    cells = [
        [
            row.name,
            f"{each.seed}",
            format_metric(metric.final(each), metric),
            format_whole(each.skipped_steps),
            UNDEFINED if each.scaler_scale is None else f"{each.scaler_scale:g}",
            format_seconds(each.seconds),
            trouble(each, metric),
        ]
        for row in one.rows
        for each in row.trainings
    ]
    headers = ["precision", "seed", metric.name, "skipped steps", "scale", "time", "ended"]
    return [Block("Each seed", headers, cells, numbers=headers[1:-1])]


def _looks(trainings: Sequence[Training]) -> list[int]:
    """Return the steps at which distances are shown: a few of those at which they are known, the last among them."""
    whole = [training for training in trainings if not broke_off(training)] or trainings
    steps = sorted({drift.step for training in whole for drift in training.drift})
    last = len(steps) - 1
    return (
        list(dict.fromkeys(steps[round(last * place / max(LOOKS - 1, 1))] for place in range(LOOKS))) if steps else []
    )


def format_ratio(value: float | None) -> str:
    """Return a ratio of losses as "1.04"."""
    return UNDEFINED if value is None else f"{value:.3g}" if value < 0.1 else f"{value:.2f}"


def _sd(row: Learning, metric: Metric) -> str:
    if row.sd is None:
        return UNDEFINED
    return f"{100 * row.sd:.2f}" if metric.name == ACCURACY else f"{row.sd:.2g}"


def interval(row: Learning, metric: Metric) -> str:
    """Return the interval of a precision's difference from fp32, as "-0.10 to +0.03"; "–" where there is none."""
    if row.low is None or row.high is None:
        return UNDEFINED
    return f"{format_change(row.low, metric)} to {format_change(row.high, metric)}"


def _steps(low: int, high: int) -> str:
    """Return the steps from `low` to before `high`, counted from 1: "51–100"."""
    return f"{high:,}" if high - low == 1 else f"{low + 1:,}–{high:,}"


def _loss(trainings: Sequence[Training], low: int, high: int) -> str:
    """Return the mean loss of the steps from `low` to before `high`; undefined where some seed has none."""
    means = [mean_loss(training, low, high) for training in trainings]
    known = [mean for mean in means if mean is not None]
    return format_loss(statistics.fmean(known) if known and len(known) == len(means) else None)


def distance(trainings: Sequence[Training], step: int, reference: bool = False) -> float | None:
    """Return the median over seeds of how far weights lie after `step` steps from fp32's; `reference`: from fp64's.

    None where that is undefined.
    """
    drifts = [drift for training in trainings for drift in training.drift if drift.step == step]
    known = [value for drift in drifts if (value := drift.from_fp64 if reference else drift.from_fp32) is not None]
    return statistics.median(known) if known else None

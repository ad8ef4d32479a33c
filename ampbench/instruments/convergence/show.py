"""Convergence, for people and as a frame.

What the trainings of a workload come to in a few sentences: first which precisions train as fp32 does.

They are without their full stops, and begin in lower case or with a name.

Trainings as a frame, and verdicts on them as plain rows.

What the trainings of a workload come to, as blocks of text for a terminal, a Markdown page, anything.

Numbers without a value are "–".
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from ampbench.base.precisions import BASELINE
from ampbench.base.units import UNDEFINED, counted, format_error, format_loss, format_seconds, format_whole
from ampbench.instruments.cases import frame_rows, missing_said, nested_data
from ampbench.instruments.convergence.findings import (
    ACCURACY,
    NO_END,
    NOT_LEARNING,
    Metric,
    broke_off,
    final_drift,
    final_score,
    format_change,
    format_metric,
    margin_said,
    mean_loss,
    metric_said,
    size_said,
    trouble,
    troubles_said,
    windows_of,
)
from ampbench.instruments.convergence.learning import Learned, Learning, learned, told_trainings, way_error
from ampbench.present.data import finite
from ampbench.present.document import Block, Document, Section, as_sentence
from ampbench.records.studies import CONSTANT, COSINE, LINEAR, OWN, Training
from ampbench.records.verdicts import Verdict
from ampbench.store import StoredRun

_LONGER = "train for longer, or at another learning rate, to conclude"
_SCHEDULES = {LINEAR: "linear schedule", COSINE: "cosine schedule", OWN: "its own schedule"}
_SAID = {
    Verdict.REGRESSED: "does not train as fp32 does",
    Verdict.IMPROVED: "ends better than fp32",
    Verdict.INCONCLUSIVE: "is inconclusive",
    Verdict.INCOMPARABLE: "cannot be compared",
}


def learned_said(one: Learned) -> list[str]:
    """Return what to conclude of each precision, what fp32 reaches and how much seeds and rounding move that."""
    said = []
    if one.learns is False:
        said.append(f"{NOT_LEARNING}: it reaches {_reached(one)}; {_LONGER}")
    own = one.baseline.trainings if one.baseline is not None else []
    ended = [training for training in own if not trouble(training, one.metric)]
    if own and not ended:
        said.append(f"{NO_END}, {troubles_said(own, one.metric)}: nothing can be compared")
    if one.metric.hardly_falls:
        said.append(f"fp32 itself has hardly fallen, by {size_said(one.metric.fall, one.metric)}: {_LONGER}")
    said += _verdicts_said(one)
    said += [one.unjudged] if one.unjudged else []
    if one.learns is not False and ended:
        said.append("; ".join(filter(None, [f"fp32 reaches {_reached(one)}", _spreads(one)])))
    return [*said, *_ways_said(one), *one.remarks]


def verdict_said(one: Learned) -> str:
    """Return what to conclude in a line: which precisions train as fp32 does and which do not.

    Where something keeps that from being known, what that is; "" where no precision was judged.
    """
    if not one.judged:
        return ""
    first, verdicts = learned_said(one)[0], _verdicts_said(one)
    return "; ".join(verdicts[:2]) if verdicts[:1] == [first] else first


def _verdicts_said(one: Learned) -> list[str]:
    """Return which precisions train as fp32 does, which score as it does, which regressed, and which are open."""
    said, score = [], margin_said(one.metric)
    same = [row for row in one.judged if row.verdict is Verdict.UNCHANGED]
    if trained := [row.name for row in same if row.trains]:
        loss = f"{100 * math.expm1(one.loss_margin or 0.0):.2g}% of the training loss"
        said.append(f"{_listed(trained)} {_plural('trains', len(trained))} as fp32 does, within {score} and {loss}")
    for row in same:
        if row.loss_verdict is Verdict.REGRESSED:
            worse = f"but does not train as it does: {row.loss_reason}"
            said.append(f"{row.name} scores as fp32 does, within {score}, {worse}")
    for rows in _alike((row for row in same if row.trains is None), lambda row: row.loss_reason):
        scores = f"{_listed([row.name for row in rows])} {_plural('scores', len(rows))} as fp32 does, within {score}"
        trains = f"whether {'it trains' if len(rows) == 1 else 'they train'} as fp32 does is open"
        said.append(f"{scores}; {trains}: {rows[0].loss_reason}")
    for verdict, what in _SAID.items():
        for rows in _alike((row for row in one.judged if row.verdict is verdict), _why):
            if rows[0].reason not in (NOT_LEARNING, NO_END):
                said.append(f"{_listed([row.name for row in rows])} {_plural(what, len(rows))}: {_why(rows[0])}")
    return said


def _ways_said(one: Learned) -> list[str]:
    """Return of the precisions that do not train as fp32 does how far they went astray, and how that grows."""
    said = []
    for row in one.judged:
        if row.trains is False and row.way is not None:
            gone = f"{row.name} went {100 * row.way.kept:.1f}% of the way that fp64 went"
            aside = f"ended {format_error(row.way.error)} of it aside"
            slope = row.way.slope
            grows = "" if slope is None else f"that grows as k^{slope:.2g} with the steps k (a bias: k, noise: k^0.5)"
            said.append("; ".join(filter(None, [f"{gone} and {aside}", grows])))
    return said


def _why(row: Learning) -> str:
    """Return the reason of a verdict on a score, with that of the loss where only the loss is shown to be worse."""
    loss = row.loss_reason if row.loss_verdict is Verdict.REGRESSED and row.verdict is not Verdict.REGRESSED else ""
    return "; ".join(filter(None, [row.reason, loss]))


def _reached(one: Learned) -> str:
    """Return what fp32 reaches: "97.87% accuracy on held-out data, from 9.91% before training"."""
    row = one.baseline
    after = row.mean if row is not None else None
    assert after is not None
    before = "" if one.before is None else f", from {format_metric(one.before, one.metric)} before training"
    value = format_metric(after, one.metric)
    said = (
        f"{value} {metric_said(one.metric)}"
        if one.metric.name == ACCURACY
        else f"a {metric_said(one.metric)} of {value}"
    )
    return f"{said}{before}"


def _spreads(one: Learned) -> str:
    """Return "seeds alone move that by 0.31 points (SD); rounding alone changes it by 0.12 points"."""
    row, parts = one.baseline, []
    if row is not None and row.sd is not None and row.mean:
        relative = row.sd if one.metric.name == ACCURACY else row.sd / abs(row.mean)
        parts.append(f"seeds alone move that by {size_said(relative, one.metric)} (SD)")
    if one.rounding is not None:
        changed = f"it by {size_said(one.rounding, one.metric)}" if one.rounding else "nothing"
        parts.append(f"rounding alone changes {changed}")
    return "; ".join(parts)


def _alike(rows: Iterable[Learning], reason: Callable[[Learning], str]) -> list[list[Learning]]:
    """Return rows in lists of those with the same reason."""
    found: dict[str, list[Learning]] = {}
    for row in rows:
        found.setdefault(reason(row), []).append(row)
    return list(found.values())


def _listed(names: list[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _plural(what: str, count: int) -> str:
    """Return what is said of one precision as it is said of `count`."""
    several = {"does not train": "do not train", "trains": "train", "scores": "score", "ends ": "end ", "is ": "are "}
    for single, plural in several.items() if count > 1 else ():
        what = what.replace(single, plural)
    return what


def trained_title(one: Learned) -> str:
    """Return what was trained, in one line."""
    seeds = counted(one.asked, "seed")
    if len(one.seeds) < one.asked:
        seeds = f"{len(one.seeds):,} of {seeds}{' so far' if one.left else ''}"
    rate = "" if one.last_rate is None else f" to {one.last_rate:.2g} of the learning rate"
    schedule = "" if one.schedule == CONSTANT else f"{_SCHEDULES.get(one.schedule, one.schedule)}{rate}"
    return " · ".join(filter(None, [one.workload, one.device, counted(one.steps, "step"), schedule, seeds]))


COUNTS = ("seed", "steps", "correct", "decisions", "ended_at", "skipped_steps")
"""The columns of `training_frame` that are whole numbers, where there is one."""

_NUMBERS = (
    "metric_value",
    "fp32_value",
    "loss",
    "from_fp32",
    "from_fp64",
    "way_rel_l2",
    "way_kept",
    "scaler_scale",
    "seconds",
)


def training_frame(stored: StoredRun) -> pd.DataFrame:
    """Return a row per training: case, seed and arm, how it ended, and fp32's metric of the same seed.

    Columns: case_id, workload, device, precision ("control" and "fp64" for the arms of fp32), arm, seed, steps, metric
    ("accuracy", "loss"), held_out, metric_value, fp32_value, loss (of the last score), correct, decisions, from_fp32,
    from_fp64 (of the weights, at the end), way_rel_l2, way_kept (of the way, at the end), schedule, ended_at (from 0,
    as in the records), reason (why there is no value; its steps count from 1), scaler_scale, skipped_steps, seconds.
    None or NaN where undefined.
    """
    rows: list[list[Any]] = []
    for one in learned(stored):
        own = {each.seed: each for row in one.rows if row.name == BASELINE for each in row.trainings}
        for row in one.rows:
            for each in row.trainings:
                score, drift, fp32 = final_score(each), final_drift(each), own.get(each.seed)
                rows.append(
                    [row.case_id, one.workload, one.device, row.name, row.arm, each.seed, each.steps, one.metric.name,
                     each.held_out, one.metric.final(each), one.metric.final(fp32) if fp32 else None,
                     score.loss if score else None, score.correct if score else None,
                     score.decisions if score else None, drift.from_fp32 if drift else None,
                     drift.from_fp64 if drift else None, drift.way_rel_l2 if drift else None,
                     drift.way_kept if drift else None, each.schedule, each.ended_at, trouble(each, one.metric),
                     each.scaler_scale, each.skipped_steps, each.seconds]
                )  # fmt: skip
    columns = ["case_id", "workload", "device", "precision", "arm", "seed", "steps", "metric", "held_out"]
    columns += ["metric_value", "fp32_value", "loss", "correct", "decisions", "from_fp32", "from_fp64", "way_rel_l2"]
    columns += ["way_kept", "schedule", "ended_at", "reason", "scaler_scale", "skipped_steps", "seconds"]
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    return frame.astype(dict.fromkeys(_NUMBERS, float))


def verdict_rows(one: Learned) -> list[dict[str, Any]]:
    """Return what was concluded of each precision, and of the arms of fp32, as plain values."""
    return [
        {
            "precision": row.name,
            "case_id": row.case_id,
            "seeds": len(row.trainings),
            "mean": row.mean,
            "sd": row.sd,
            "difference": row.difference,
            "low": row.low,
            "high": row.high,
            "verdict": row.verdict.value if row.verdict is not None else None,
            "reason": row.reason or None,
            "seeds_needed": row.seeds_needed,
            "weights_from_fp32": row.from_fp32,
            "weights_from_fp64": row.from_fp64,
            "skipped_steps": row.skipped_steps,
            "seconds": row.seconds,
            "training_loss": row.loss,
            "training_loss_ratio": row.loss_ratio,
            "training_loss_low": row.loss_low,
            "training_loss_high": row.loss_high,
            "training_loss_verdict": row.loss_verdict.value if row.loss_verdict is not None else None,
            "training_loss_reason": row.loss_reason or None,
            "trains_as_fp32": row.trains,
            "way_rel_l2": row.way.error if row.way is not None else None,
            "way_kept": row.way.kept if row.way is not None else None,
            "way_slope": row.way.slope if row.way is not None else None,
        }
        for row in one.rows
    ]


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


def document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False) -> Document:
    """Return what the trainings of the cases `case_ids` come to, workload by workload, and what became of the others.

    A flat row is a training; nested data have each training, and beside the cases what was concluded of each workload.
    With `everything`, each seed has its row.
    """
    trained = told_trainings(stored)
    frame = training_frame(stored)
    broken = [stored.failures[case_id] for case_id in case_ids if case_id in stored.failures and case_id in trained]

    def data() -> dict[str, Any]:
        told = nested_data(stored, case_ids, trained, lambda _, found: {"trainings": [asdict(one) for one in found]})
        return told | {"studies": finite([_data(one) for one in learned(stored, case_ids)])}

    return Document(
        sections=lambda: [learned_section(one, everything=everything) for one in learned(stored, case_ids)],
        data=data,
        columns=list(frame.columns),
        rows=lambda: frame_rows(frame[frame["case_id"].isin(case_ids)], COUNTS),
        missing=[
            *missing_said(stored, case_ids, trained),
            *(f"{failure.case_id}: failed later: {failure.said}" for failure in broken),
        ],
    )


def _data(one: Learned) -> dict[str, Any]:
    """Return what was concluded of a workload as plain data."""
    return {
        "workload": one.workload,
        "device": one.device,
        "steps": one.steps,
        "schedule": one.schedule,
        "last_rate": one.last_rate,
        "seeds": one.seeds,
        "seeds_asked": one.asked,
        "metric": asdict(one.metric),
        "margin": one.metric.margin,
        "before": one.before,
        "learns": one.learns,
        "rounding": one.rounding,
        "sentences": learned_said(one),
        "verdicts": verdict_rows(one),
    }

"""What the trainings of a workload come to: sentences, first which precisions train as fp32 does, and a run's document.

Sentences are without their full stops, and begin in lower case or with a name. Numbers without a value are "–".
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from ampbench.core.precisions import BASELINE, ordered
from ampbench.core.recipes import CONSTANT, COSINE, LINEAR
from ampbench.core.units import UNDEFINED, all_of, counted, format_error
from ampbench.instruments.convergence.findings import (
    ACCURACY,
    NAMES,
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
from ampbench.instruments.convergence.records import CONTROL, OWN, REFERENCE, Training
from ampbench.records.changes import ChangeStatus
from ampbench.records.labels import case_labels, told_apart
from ampbench.show.charts import (
    Drawing,
    Rows,
    curve_layers,
    looks_encoded,
    marked,
    precision_encoded,
    steps_axis,
    thinned_curve,
    tooltip,
    values_axis,
)
from ampbench.show.data import finite, record_data
from ampbench.show.document import Block, Column, Document, Section, as_sentence, picked, records, table
from ampbench.show.page import (
    Held,
    Part,
    of_several,
    place_of,
    run_name,
    told_part,
)
from ampbench.show.studies import missing_said, nested_data
from ampbench.store import StoredRun

_LONGER = "train for longer, or at another learning rate, to conclude"
_SCHEDULES = {LINEAR: "linear schedule", COSINE: "cosine schedule", OWN: "its own schedule"}
_SAID = {
    ChangeStatus.REGRESSED: "does not train as fp32 does",
    ChangeStatus.IMPROVED: "ends better than fp32",
    ChangeStatus.INCONCLUSIVE: "is inconclusive",
    ChangeStatus.INCOMPARABLE: "cannot be compared",
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
    same = [row for row in one.judged if row.verdict is ChangeStatus.UNCHANGED]
    if trained := [row.name for row in same if row.trains]:
        loss = f"{100 * math.expm1(one.loss_margin or 0.0):.2g}% of the training loss"
        said.append(f"{all_of(trained)} {_plural('trains', len(trained))} as fp32 does, within {score} and {loss}")
    for row in same:
        if row.loss_verdict is ChangeStatus.REGRESSED:
            worse = f"but does not train as it does: {row.loss_reason}"
            said.append(f"{row.name} scores as fp32 does, within {score}, {worse}")
    for rows in _alike((row for row in same if row.trains is None), lambda row: row.loss_reason):
        scores = f"{all_of([row.name for row in rows])} {_plural('scores', len(rows))} as fp32 does, within {score}"
        trains = f"whether {'it trains' if len(rows) == 1 else 'they train'} as fp32 does is open"
        said.append(f"{scores}; {trains}: {rows[0].loss_reason}")
    for verdict, what in _SAID.items():
        for rows in _alike((row for row in one.judged if row.verdict is verdict), _why):
            if not rows[0].of_fp32:
                said.append(f"{all_of([row.name for row in rows])} {_plural(what, len(rows))}: {_why(rows[0])}")
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
    loss = (
        row.loss_reason
        if row.loss_verdict is ChangeStatus.REGRESSED and row.verdict is not ChangeStatus.REGRESSED
        else ""
    )
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


class Trained(NamedTuple):
    """A training of what was learned, the precision or arm it is of, and that of fp32 with the same seed."""

    of: Learned
    row: Learning
    training: Training
    fp32: Training | None


def _training(name: str) -> Callable[[Trained], Any]:
    return lambda one: getattr(one.training, name)


def _score(name: str) -> Callable[[Trained], Any]:
    return lambda one: getattr(final_score(one.training), name, None)


def _drift(name: str) -> Callable[[Trained], Any]:
    return lambda one: getattr(final_drift(one.training), name, None)


def _scale(one: Trained) -> str:
    scale = one.training.scaler_scale
    return UNDEFINED if scale is None else f"{scale:g}"


TRAININGS: Sequence[Column[Trained]] = (
    Column("case_id", lambda one: one.row.case_id),
    Column("workload", lambda one: one.of.workload),
    Column("device", lambda one: one.of.device),
    Column("precision", lambda one: one.row.name, "precision"),
    Column("arm", lambda one: one.row.arm),
    Column("seed", _training("seed"), "seed", "whole", lambda one: f"{one.training.seed}"),
    Column("steps", _training("steps"), "", "whole"),
    Column("metric", lambda one: one.of.metric.name),
    Column("held_out", _training("held_out")),
    Column(
        "metric_value", lambda one: one.of.metric.final(one.training), "metric", "loss",
        lambda one: format_metric(one.of.metric.final(one.training), one.of.metric),
    ),
    Column("fp32_value", lambda one: one.of.metric.final(one.fp32) if one.fp32 else None, "", "loss"),
    Column("loss", _score("loss"), "", "loss"),
    Column("correct", _score("correct"), "", "whole"),
    Column("decisions", _score("decisions"), "", "whole"),
    Column("from_fp32", _drift("from_fp32"), "", "error"),
    Column("from_fp64", _drift("from_fp64"), "", "error"),
    Column("way_rel_l2", _drift("way_rel_l2"), "", "error"),
    Column("way_kept", _drift("way_kept"), "", "kept"),
    Column("schedule", _training("schedule")),
    Column("ended_at", _training("ended_at"), "", "whole"),
    Column("reason", lambda one: trouble(one.training, one.of.metric), "ended"),
    Column("scaler_scale", _training("scaler_scale"), "scale", "count", _scale),
    Column("skipped_steps", _training("skipped_steps"), "skipped steps", "whole"),
    Column("seconds", _training("seconds"), "time", "s"),
)  # fmt: skip
"""Of a training: case, seed and arm ("control" and "fp64" are those of fp32), how it ended, and fp32's of its seed.

`metric` is "accuracy" or "loss", `loss` that of the last score; `from_fp32` and `from_fp64` are of the weights and
`way_rel_l2` and `way_kept` of the way, at the end. `ended_at` counts from 0, as in the records, and the steps of
`reason` (why there is no value) from 1.
"""


def trainings(every: Iterable[Learned]) -> list[Trained]:
    """Return the trainings of what was learned, workload by workload."""
    rows = []
    for one in every:
        own = {each.seed: each for row in one.rows if row.name == BASELINE for each in row.trainings}
        rows += [Trained(one, row, each, own.get(each.seed)) for row in one.rows for each in row.trainings]
    return rows


_NO_WORSE = {ChangeStatus.UNCHANGED: "no worse", ChangeStatus.REGRESSED: "worse", ChangeStatus.IMPROVED: "lower"}


def conclusions(metric: Metric) -> list[Column[Learning]]:
    """Return the columns of what was concluded of a precision, or of an arm of fp32, by its final `metric`."""
    return [
        Column("precision", lambda row: row.name, "precision"),
        Column("case_id", lambda row: row.case_id),
        Column("seeds", lambda row: len(row.trainings)),
        Column("mean", lambda row: row.mean, metric.name, "loss", lambda row: format_metric(row.mean, metric)),
        Column("sd", lambda row: row.sd, "SD", "loss", lambda row: _sd(row, metric)),
        Column(
            "difference", lambda row: row.difference, "against fp32", "share",
            lambda row: format_change(row.difference, metric),
        ),
        Column("low", lambda row: row.low, "90% interval", "share", lambda row: interval(row, metric)),
        Column("high", lambda row: row.high),
        Column("verdict", lambda row: _word(row.verdict), "verdict", said=lambda row: _word(row.verdict) or ""),
        Column("reason", lambda row: row.reason or None),
        Column("seeds_needed", lambda row: row.seeds_needed),
        Column("weights_from_fp32", lambda row: row.from_fp32),
        Column("weights_from_fp64", lambda row: row.from_fp64, "from fp64", "error"),
        Column("skipped_steps", lambda row: row.skipped_steps, "skipped steps", "whole"),
        Column("seconds", lambda row: row.seconds, "time", "s"),
        Column("training_loss", lambda row: row.loss, "loss", "loss"),
        Column(
            "training_loss_ratio", lambda row: row.loss_ratio, "times fp32's", "ratio",
            lambda row: format_loss_ratio(row.loss_ratio),
        ),
        Column("training_loss_low", lambda row: row.loss_low, "90% interval", "ratio", _loss_interval),
        Column("training_loss_high", lambda row: row.loss_high),
        Column(
            "training_loss_verdict", lambda row: _word(row.loss_verdict), "verdict",
            said=lambda row: _NO_WORSE.get(row.loss_verdict, row.loss_verdict.value) if row.loss_verdict else "",
        ),
        Column("training_loss_reason", lambda row: row.loss_reason or None),
        Column("trains_as_fp32", lambda row: row.trains),
        Column("way_rel_l2", lambda row: row.way.error if row.way else None),
        Column(
            "way_kept", lambda row: row.way.kept if row.way else None, "of the way", "kept",
            lambda row: UNDEFINED if row.way is None else f"{100 * row.way.kept:.1f}%",
        ),
        Column(
            "way_slope", lambda row: row.way.slope if row.way else None, "grows as", "ratio",
            lambda row: UNDEFINED if row.way is None or row.way.slope is None else f"k^{row.way.slope:.2f}",
        ),
        Column("", lambda row: row.way.grows if row.way else None, "like"),
    ]  # fmt: skip


def _word(verdict: ChangeStatus | None) -> str | None:
    return verdict.value if verdict is not None else None


def _loss_interval(row: Learning) -> str:
    return (
        UNDEFINED
        if row.loss_low is None
        else f"{format_loss_ratio(row.loss_low)} to {format_loss_ratio(row.loss_high)}"
    )


LOOKS = 4
"""Distances between weights are shown at so many steps."""


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
    skips = ["skipped_steps"] if any(row.skipped_steps is not None for row in one.rows) else []
    columns = picked(
        conclusions(one.metric), "precision", "mean", "sd", "difference", "low", "verdict", *skips, "seconds"
    )
    unit = "in points" if one.metric.name == ACCURACY else "relative to fp32's"
    note = f"last quarter of the steps; means over seeds; SD: over seeds; against fp32: {unit}, of the same seed"
    if any(row.arm for row in one.rows):
        note += "; control: fp32 from weights one rounding away"
    note += "; time: of a training by the clock, whatever else ran: no measure of speed"
    return [table("At the end", columns, one.rows, note)]


def late_losses(one: Learned) -> list[Block]:
    """Return what each precision's training loss ends at, against fp32's, and whether it is no worse."""
    keys = ("precision", "training_loss", "training_loss_ratio", "training_loss_low", "training_loss_verdict")
    most = "" if one.loss_margin is None else f"; up to {math.exp(one.loss_margin):.3g} times is no worse"
    note = f"last quarter of the steps; times fp32's: of the same seed, geometric mean over seeds{most}"
    return [table("At the end, training loss", picked(conclusions(one.metric), *keys), one.rows, note)]


def losses(one: Learned) -> list[Block]:
    """Return the training loss of each precision over parts of the training."""
    windows: list[Column[Learning]] = [
        Column("", partial(_loss, low=low, high=high), _steps(low, high), "loss") for low, high in windows_of(one.steps)
    ]
    note = "means over steps and seeds; –: not finite, or not reached"
    return [table("Training loss", [*picked(conclusions(one.metric), "precision"), *windows], one.rows, note)]


def weights(one: Learned) -> list[Block]:
    """Return how far the weights of each precision lie from those of fp32 as the training goes on, and of fp64."""
    looks = _looks([training for row in one.rows for training in row.trainings])
    name, last = picked(conclusions(one.metric), "precision", "weights_from_fp64")
    note = "relative L2 distance from fp32's of the same seed, medians over seeds; from fp64: after the last step"
    return [table("Weights", [name, *_at_steps(distance, looks), last], one.rows, note)] if looks else []


def ways(one: Learned) -> list[Block]:
    """Return how far each precision goes astray of the way that fp64 goes, and how that grows with the steps."""
    rows = [row for row in one.rows if row.way is not None]
    if not rows:
        return []
    name, *last = picked(conclusions(one.metric), "precision", "way_kept", "way_slope", "")
    note = (
        "distance of what the weights moved by from what fp64's moved by, relative to that, medians over seeds; of the "
        "way: the share of fp64's that was gone; bias adds up with the steps k, noise with their root"
    )
    return [table("Way", [name, *_at_steps(way_error, _looks(rows[0].trainings)), *last], rows, note)]


def each_seed(one: Learned) -> list[Block]:
    """Return how every training ended."""
    keys = ("precision", "seed", "metric_value", "skipped_steps", "scaler_scale", "seconds", "reason")
    named = [
        replace(column, head=one.metric.name) if column.key == "metric_value" else column
        for column in picked(TRAININGS, *keys)
    ]
    return [table("Each seed", named, trainings([one]))]


def _at_steps(error: Callable[[Sequence[Training], int], float | None], steps: Sequence[int]) -> list[Column[Learning]]:
    """Return a column for each of `steps`: the error of a precision's trainings after so many."""

    def after(step: int) -> Column[Learning]:
        return Column("", lambda row: error(row.trainings, step), f"step {step:,}", "error")

    return [after(step) for step in steps]


def _looks(trainings: Sequence[Training]) -> list[int]:
    """Return the steps at which distances are shown: a few of those at which they are known, the last among them."""
    whole = [training for training in trainings if not broke_off(training)] or trainings
    steps = sorted({drift.step for training in whole for drift in training.drift})
    last = len(steps) - 1
    return (
        list(dict.fromkeys(steps[round(last * place / max(LOOKS - 1, 1))] for place in range(LOOKS))) if steps else []
    )


def format_loss_ratio(value: float | None) -> str:
    """Return a ratio of losses as "1.04", one under a tenth as "0.0123"."""
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


def _loss(row: Learning, low: int, high: int) -> float | None:
    """Return the mean loss of the steps from `low` to before `high`; undefined where some seed has none."""
    means = [mean_loss(training, low, high) for training in row.trainings]
    known = [mean for mean in means if mean is not None]
    return statistics.fmean(known) if known and len(known) == len(means) else None


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
    rows = [one for one in trainings(learned(stored)) if one.row.case_id in case_ids]
    broken = [stored.failures[case_id] for case_id in case_ids if case_id in stored.failures and case_id in trained]

    def data() -> dict[str, Any]:
        told = nested_data(
            stored, case_ids, trained, lambda _, found: {"trainings": [record_data(one) for one in found]}
        )
        return told | {"studies": finite([_data(one) for one in learned(stored, case_ids)])}

    return Document(
        sections=lambda: [learned_section(one, everything=everything) for one in learned(stored, case_ids)],
        data=data,
        columns=[column.key for column in TRAININGS],
        rows=lambda: records(TRAININGS, rows),
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
        "verdicts": records(conclusions(one.metric), one.rows),
    }


_WORST_FIRST = (
    ChangeStatus.REGRESSED,
    ChangeStatus.INCOMPARABLE,
    ChangeStatus.INCONCLUSIVE,
    ChangeStatus.IMPROVED,
    ChangeStatus.UNCHANGED,
)
_ARM_LOOKS: Mapping[str, tuple[str, str]] = {
    NAMES[CONTROL]: ("--faint", "triangle-right"),
    NAMES[REFERENCE]: ("--dtype-fp64", "triangle-left"),
}
"""Colours and shapes of the trainings that tell what rounding alone does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPage:
    """A workload trained on a device, what it is called on a page, and what its trainings come to."""

    name: str
    found: Learned

    @property
    def badness(self) -> int:
        """The place of the worst verdict on a score or a training loss, the worst of all first."""
        verdicts = [verdict for row in self.found.judged for verdict in (row.verdict, row.loss_verdict) if verdict]
        return min(map(_WORST_FIRST.index, verdicts), default=len(_WORST_FIRST))


def _precisions(found: Learned) -> dict[str, list[Training]]:
    """Return the trainings by precision, in the order of every table, without the arms of fp32."""
    own = {row.name: row.trainings for row in found.rows if not row.arm}
    return {name: own[name] for name in ordered(own)}


def _looks_of(rows: Rows) -> dict[str, Any]:
    """Return the encoding of precisions and arms by colour and shape; the lines of the arms are dashed."""
    names = {row["precision"] for row in rows}
    known = precision_encoded(names - _ARM_LOOKS.keys())
    arms = [name for name in _ARM_LOOKS if name in names]
    of_arms = looks_encoded("precision", arms, _ARM_LOOKS)
    for channel, own in of_arms.items():
        scale = {end: [*known[channel]["scale"][end], *own["scale"][end]] for end in ("domain", "range")}
        legend = {"title": None, "columns": 4, "columnPadding": 28, "labelLimit": 220}
        known[channel] = {**known[channel], "scale": scale, "legend": legend}
    if arms:
        tests = " || ".join(f"datum.precision == '{name}'" for name in arms)
        known["strokeDash"] = {"condition": {"test": tests, "value": [5, 3]}, "value": [1, 0]}
    return known


def _drift_rows(one: OnPage) -> dict[str, list[dict[str, Any]]]:
    """Return the median over seeds of how far weights lie from fp32's; what is 0 has no place on a log axis.

    Of fp64 that is how far fp32's weights lie from its own.
    """
    rows: list[dict[str, Any]] = []
    arms = {row.name: row.trainings for row in one.found.rows if row.name in _ARM_LOOKS}
    precisions = _precisions(one.found)
    for precision, trainings in (precisions | {name: arms[name] for name in _ARM_LOOKS if name in arms}).items():
        reference = precision == NAMES[REFERENCE]
        own = precisions.get(BASELINE, []) if reference else trainings
        for step in sorted({drift.step for each in own for drift in each.drift if drift.step > 0}):
            error = distance(own, step, reference)
            if error is not None and 0 < error < math.inf:
                said = format_error(error)
                rows.append({"precision": precision, "step": step, "error": error, "said": said, "mark": True})
    return {"": rows}


def _drift_spec(rows: Rows) -> dict[str, Any]:
    y = {
        "field": "error",
        "type": "quantitative",
        "title": "distance of weights from fp32's (log scale)",
        "scale": {"type": "log", "nice": False, "padding": 12},
        "axis": {"format": ".0e", "tickCount": 5, "minExtent": 46},
    }
    told = tooltip(precision="precision", step="step", said="distance")
    return {"layer": curve_layers(steps_axis("step", logarithmic=True), y, _looks_of(rows), told)}


def _loss_rows(one: OnPage) -> dict[str, list[dict[str, Any]]]:
    """Return the mean over seeds of each precision's losses and, of fp32, from which to which value they reach.

    It ends with the first seed that does; where one ended early, a row tells the place.
    """
    rows: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    for precision, trainings in _precisions(one.found).items():
        empty = {"precision": precision, "loss": None, "low": None, "high": None, "end": None, "mark": False}
        curves = {each.seed: thinned_curve(each.losses, each.steps, each.every) for each in trainings if each.losses}
        for points in zip(*curves.values(), strict=False):
            values = [value for _, value in points if value is not None]
            row = {**empty, "step": points[0][0], "seeds": f"{len(values)} of {len(trainings)}"}
            if len(values) == len(trainings):
                row["loss"] = math.fsum(values) / len(values)
                if precision == BASELINE and len(values) > 1:
                    row |= {"low": min(values), "high": max(values)}
            rows.append(row)
        for each in trainings:
            known = [point for point in curves.get(each.seed, []) if point[1] is not None]
            if broke_off(each) and known:
                said = f"seed {each.seed}: {trouble(each, one.found.metric)}"
                ends.append({**empty, "step": known[-1][0], "end": known[-1][1], "seeds": said})
    marked(rows, "precision")
    return {"": rows + ends}


def _loss_spec(rows: Rows) -> dict[str, Any]:
    looks = _looks_of(rows)
    x = steps_axis()
    y = values_axis("loss", "training loss", [row[name] for row in rows for name in ("loss", "low", "end")])
    told = tooltip(precision="precision", step="around step", loss="loss", seeds="seeds")
    band = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "area", "opacity": 0.15, "color": f"var(--{BASELINE})"},
        "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
    }
    ended = tooltip(precision="precision", seeds="ended")
    ends = {
        "transform": [{"filter": "isValid(datum.end)"}],
        "mark": {"type": "text", "text": "✕", "fontSize": 15, "fontWeight": "bold"},
        "encoding": {"x": x, "y": {**y, "field": "end"}, "color": looks["color"], "tooltip": ended},
    }
    return {"layer": [*curve_layers(x, y, looks, told), band, ends]}


_DRAWINGS = (
    Drawing(
        name="studies-losses",
        title="Training loss by precision",
        alt="Lines are means over seeds. Shaded is from where to where the seeds of fp32 reach. A cross is where a "
        "training ended early.",
        rows=_loss_rows,
        spec=_loss_spec,
        height=300,
        marked=("precision",),
    ),
    Drawing(
        name="studies-drift",
        title="How far weights drift from those of fp32",
        alt="Relative L2 distances, medians over seeds. Dashed is what rounding alone does: fp64, and the control, "
        "which is fp32 from weights one rounding away.",
        rows=_drift_rows,
        spec=_drift_spec,
        height=280,
        marked=("precision",),
    ),
)


def part(held: Held[Any]) -> Part | None:
    """Return the workloads that were trained, those first in which a precision does not train as fp32 does."""
    found = _on_page(held.runs)
    return told_part(
        held,
        found,
        lambda one: learned_section(one.found, everything=True),
        id="convergence",
        title="Convergence",
        caption="How the precisions of each workload end",
        first="workload",
        verb="Trained",
        said=of_several(
            found,
            lambda one: any(row.trains is False for row in one.found.judged),
            "with a precision that does not train as fp32 does",
            "workload",
        ),
        drawings=_DRAWINGS,
        folding=["Training loss", "Weights", "Way", "Each seed"],
        finding=lambda one: verdict_said(one.found),
        what="workloads",
    )


def _on_page(runs: Iterable[StoredRun]) -> list[OnPage]:
    """Return the workloads that `runs` trained, those first in which a precision does not train as fp32 does.

    `runs` are the oldest first. Of one that a newer run of its machine trained again, only that.
    """
    found: list[tuple[StoredRun, Learned, str]] = []
    seen: list[tuple[tuple[str, str], set[str]]] = []
    for run in reversed(list(runs)):
        for one in learned(run):
            ids = {row.case_id for row in one.rows}
            if not any(place_of(run) == place and ids <= known for place, known in seen):
                found.append((run, one, one.rows[0].case_id))
                seen.append((place_of(run), ids))
    found.reverse()
    labels = case_labels((run.cases[case_id] for run, _, case_id in found), precision=False)
    names = told_apart([labels[case_id] for _, _, case_id in found], (run_name(run) for run, _, _ in found))
    every = [OnPage(name=name, found=one) for name, (_, one, _) in zip(names, found, strict=True)]
    return sorted(every, key=lambda one: one.badness)

"""What trainings of a workload come to: each precision with its verdict against fp32, and the way it went.

The way of a training is what its parameters have moved by since its first step, as they are stored: Δθ, beside fp64's
Δθ*. An error that every step makes alike, a bias, makes their distance grow in proportion to the number of steps k;
independent errors, noise, make it grow with its root. Where training contracts, towards one minimum, it settles; where
it is chaotic, trainings part faster than either.

Stored trainings count for the cases of a run that measured, too: a whole training says more than one step.
"""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ampbench.core.precisions import BASELINE, rank
from ampbench.core.recipes import CONSTANT
from ampbench.core.units import counted
from ampbench.instruments.convergence.findings import (
    CONTROL_FIRED,
    LOSS,
    NAMES,
    Arm,
    Judged,
    Metric,
    Withheld,
    broke_off,
    control_remarks,
    ended_of,
    final_drift,
    fires,
    first_score,
    judge,
    late_loss,
    late_margin,
    metric_of,
    only_one,
    ratio_said,
    reason_of,
    seed_remarks,
    seeds_said,
    withheld,
)
from ampbench.instruments.convergence.records import CONTROL, ConvergenceAsked, Training
from ampbench.records.case import Case
from ampbench.records.changes import ChangeStatus
from ampbench.records.kinds import CONVERGENCE
from ampbench.store import StoredRun

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
    """Return how far trainings went astray: medians over them, a mean of slopes.

    None where none came to its end, or one that did does not tell; the slope is None where one of them has none.
    """
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
    """Return the exponent with which a training's distance from fp64's way grows; None where too little is known.

    Of a step that is there more than once, the last distance counts.
    """
    points = {
        math.log(drift.step): math.log(drift.way) + math.log(drift.way_rel_l2)
        for drift in training.drift
        if drift.step >= max(1.0, math.sqrt(training.steps)) and drift.way and drift.way_rel_l2
    }
    if len(points) < FEWEST_LOOKS:
        return None
    return statistics.linear_regression(list(points), list(points.values())).slope


def way_error(trainings: Sequence[Training], step: int) -> float | None:
    """Return the median over seeds of the relative distance from fp64's way after `step` steps; None: not known."""
    known = [
        drift.way_rel_l2
        for each in trainings
        for drift in each.drift
        if drift.step == step and drift.way_rel_l2 is not None
    ]
    return statistics.median(known) if known else None


NONE_TRAINED = "only fp32 was trained: there is no precision to judge"
NONE_YET = "no precision was trained yet"
NO_SCALE = "fp32 ends at a loss of 0, which no difference is relative to"
NO_LOGARITHM = "training losses of 0 or less, or that fp32's own do not fall from, have no ratio to judge by"

_LARGEST_LOG = 709.0
"""The logarithm of the largest number, about."""
_CONTROL_ALPHA = 0.01
"""The control and fp64 are each said to differ from fp32 at this level, so that few studies lose their verdicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """The trainings of one precision, or of an arm of fp32, and what they come to.

    `name` is the precision's, "control" or "fp64"; `mean` and `sd` are those of the final metric over seeds, None where
    undefined. `difference` from fp32 is a mean by seed, of an accuracy as a share, of a loss relative to fp32's
    (positive: larger), with its 90% interval. `verdict` is None for fp32 and its arms; `of_fp32`: the trainings of fp32
    are why. `from_fp32` and `from_fp64` are medians of the weights' relative distances at the end, `seconds` the mean
    of a training. `loss` is the mean training loss of the last quarter, `loss_ratio` the geometric mean of what it is
    times fp32's, with its 90% interval; `loss_verdict` is unchanged or improved where it is shown to be no worse.
    """

    name: str
    case_id: str
    arm: str = ""
    trainings: list[Training] = field(default_factory=list)
    mean: float | None = None
    sd: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: ChangeStatus | None = None
    reason: str = ""
    of_fp32: bool = False
    seeds_needed: int | None = None
    from_fp32: float | None = None
    from_fp64: float | None = None
    skipped_steps: int | None = None
    seconds: float | None = None
    loss: float | None = None
    loss_ratio: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    loss_verdict: ChangeStatus | None = None
    loss_reason: str = ""
    way: Way | None = None

    @property
    def trains(self) -> bool | None:
        """Whether it trains as fp32 does: score and training loss are both shown to be no worse.

        False where either is shown to be worse, None where neither is known.
        """
        found = self.verdict, self.loss_verdict
        if ChangeStatus.REGRESSED in found:
            return False
        return True if all(one in (ChangeStatus.UNCHANGED, ChangeStatus.IMPROVED) for one in found) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What the trainings of one workload on one device come to.

    `rows` are fp32 with its arms, then the precisions in the order of every table; `before` is fp32's metric before the
    first step, `last_rate` what the schedule left of the first step's rate in fp32's last. `rounding` is what rounding
    alone does to the metric: the root mean square of the differences of control and fp64 from fp32. `learns`: whether
    fp32 ends better than it began. `loss_margin` is the largest difference of log training losses that counts as none.
    `unjudged` says why no precision is judged. `asked` is how many seeds there were to be, `left` whether a training is
    missing that can yet be made. None: not known.
    """

    workload: str
    device: str
    metric: Metric
    steps: int
    schedule: str = CONSTANT
    last_rate: float | None = None
    seeds: list[int]
    asked: int
    left: bool = False
    rows: list[Learning]
    before: float | None = None
    rounding: float | None = None
    learns: bool | None = None
    loss_margin: float | None = None
    unjudged: str = ""
    remarks: list[str] = field(default_factory=list)

    @property
    def baseline(self) -> Learning | None:
        """The row of fp32; None where it was not trained."""
        return next((row for row in self.rows if row.name == BASELINE), None)

    @property
    def judged(self) -> list[Learning]:
        """The rows that have a verdict."""
        return [row for row in self.rows if row.verdict is not None]


def learned(stored: StoredRun, case_ids: Sequence[str] | None = None) -> list[Learned]:
    """Return what each workload's trainings come to, per device, in the order of the run.

    Of a workload whose own fp32 training failed, nothing is told. With `case_ids`, only workloads of these cases, and
    of them only the rows of these and of fp32; verdicts are reached with all that was trained.
    """
    trained = told_trainings(stored)
    ended = {*stored.failures, *stored.skips}
    groups: dict[tuple[str, str], list[str]] = {}
    for case_id, case in stored.cases.items():
        if case_id in trained or case_id not in ended:
            groups.setdefault((case.group, case.device), []).append(case_id)
    asked = stored.asked.seeds if isinstance(stored.asked, ConvergenceAsked) else 0
    found = []
    for (workload, device), ids in groups.items():
        shown = [one for one in ids if one in trained and (case_ids is None or one in case_ids)]
        if shown:
            cases = {one: stored.cases[one] for one in ids}
            whole = _learned(workload, device, cases, trained, asked, ended)
            rows = [row for row in whole.rows if row.case_id in shown or cases[row.case_id].precision == BASELINE]
            found.append(replace(whole, rows=rows))
    return found


def told_trainings(stored: StoredRun) -> dict[str, list[Training]]:
    """Return the trainings of the cases that have any, but for workloads whose own fp32 training failed."""
    failed = {
        (case.group, case.device)
        for case_id, case in stored.cases.items()
        if case.precision == BASELINE
        and case_id in stored.failures
        and all(training.arm for training in stored.several_of(Training).get(case_id, []))
    }
    return {
        case_id: trainings
        for case_id, trainings in stored.several_of(Training).items()
        if trainings and (stored.cases[case_id].group, stored.cases[case_id].device) not in failed
    }


def _learned(
    workload: str,
    device: str,
    cases: Mapping[str, Case],
    stored: Mapping[str, Sequence[Training]],
    asked: int,
    ended: Collection[str],
) -> Learned:
    """Return what the trainings of `cases`, which differ in their precision, come to.

    `asked` is from how many seeds there were to be; of the cases `ended` no more are made.
    """
    planned = _by_seed(cases, stored)
    arms = {name: arm for name, arm in planned.items() if arm.by_seed}
    own = arms[BASELINE].by_seed if BASELINE in arms else {}
    metric = metric_of(list(own.values()) or [each for arm in arms.values() for each in arm.by_seed.values()])
    before = _mean([metric.of(first_score(each)) for each in own.values()])
    after = _mean([metric.final(each) for each in own.values()])
    if metric.name == LOSS and before is not None and after:
        metric = replace(metric, fall=(before - after) / abs(after))
    differences = _differences(arms, own, metric)
    learns = None if before is None or after is None else (after - before) * metric.sign > 0
    null = {name: differences.pop(name, []) for name in NAMES.values()}
    controls = _controls(null, metric.margin, metric.resolution)
    rounding = _others({name: values for name, values in null.items() if not fires(controls.get(name))})
    others = {name: arm for name, arm in arms.items() if name not in (BASELINE, *null)}
    held = {name: withheld(arm.by_seed, own, metric, learns, controls) for name, arm in others.items()}
    misleading = {name for name, held_back in held.items() if held_back is not None and held_back.without_numbers}
    plain = {name: values for name, values in differences.items() if values and name not in misleading}
    verdicts = controls | judge(plain, rounding, metric.margin, resolution=metric.resolution)
    whole = ended_of(own, metric)
    rows = [
        _row(name, arm, metric, verdicts.get(name), held.get(name), told=not only_one(arm.by_seed, whole))
        for name, arm in arms.items()
    ]
    margin = late_margin(list(whole.values()))
    rows = _with_losses(rows, arms, whole, margin, held)
    steps = max(each.steps for arm in arms.values() for each in arm.by_seed.values())
    seeds = sorted({seed for arm in arms.values() for seed in arm.by_seed})
    trained = list(own.values()) or [each for arm in arms.values() for each in arm.by_seed.values()]
    low = [name for name in planned if name not in (BASELINE, *NAMES.values())]
    return Learned(
        workload=workload,
        device=device,
        metric=metric,
        steps=steps,
        schedule=trained[0].schedule,
        last_rate=trained[0].last_rate,
        seeds=seeds,
        asked=max(asked, len(seeds)),
        left=any(len(arm.by_seed) < asked and arm.case_id not in ended for arm in planned.values()),
        rows=rows,
        before=before,
        rounding=_root_mean_square(rounding),
        learns=learns,
        loss_margin=margin,
        unjudged="" if others else NONE_YET if low else NONE_TRAINED,
        remarks=[*control_remarks(controls, metric), *seed_remarks(planned, asked, metric)],
    )


def _by_seed(cases: Mapping[str, Case], stored: Mapping[str, Sequence[Training]]) -> dict[str, Arm]:
    """Return the trainings by the names of rows, in the order of the table; those that have none yet, too."""
    arms = {}
    for case_id, case in sorted(cases.items(), key=lambda item: (rank(item[1].precision), item[1].precision)):
        for arm in ("", *NAMES) if case.precision == BASELINE else ("",):
            seeds = {training.seed: training for training in stored.get(case_id, []) if training.arm == arm}
            name = NAMES.get(arm) or (case.precision if case.scaler else f"{case.precision}, no scaler")
            arms[name] = Arm(case_id=case_id, arm=arm, by_seed=dict(sorted(seeds.items())))
    return arms


def _differences(arms: Mapping[str, Arm], own: Mapping[int, Training], metric: Metric) -> dict[str, list[float]]:
    """Return the differences from fp32 by seed, positive where better; of a loss relative to fp32's mean."""
    finals = {seed: value for seed, each in own.items() if (value := metric.final(each)) is not None}
    scale = abs(statistics.fmean(finals.values())) if finals and metric.name == LOSS else 1.0
    found: dict[str, list[float]] = {name: [] for name in arms if name != BASELINE}
    for name in found if scale else ():
        pairs = [(metric.final(each), finals.get(seed)) for seed, each in arms[name].by_seed.items()]
        found[name] = [
            (one - other) * metric.sign / scale for one, other in pairs if one is not None and other is not None
        ]
    return found


def _controls(null: Mapping[str, Sequence[float]], margin: float, resolution: float = 0.0) -> dict[str, Judged]:
    """Return whether the arms of fp32 themselves seem to differ from it, each beside what the others show."""
    return {
        name: judge({name: values}, _others(null, name), margin, resolution=resolution, alpha=_CONTROL_ALPHA)[name]
        for name, values in null.items()
        if values
    }


def _others(null: Mapping[str, Sequence[float]], but: str = "") -> list[float]:
    """Return the differences of trainings that differ from fp32 by rounding alone, but those of one arm."""
    return [value for name, values in null.items() if name != but for value in values]


def _row(
    name: str, arm: Arm, metric: Metric, judged: Judged | None, held_back: Withheld | None, *, told: bool
) -> Learning:
    """Return what the trainings of one row come to; the interval of its difference where that is `told`."""
    trainings = list(arm.by_seed.values())
    finals = [value for each in trainings if (value := metric.final(each)) is not None]
    drifts = [drift for each in trainings if (drift := final_drift(each)) is not None]
    skipped = [each.skipped_steps for each in trainings if each.skipped_steps is not None]
    difference = low = high = None
    if judged is not None:
        difference = judged.difference * metric.sign
        low, high = sorted((judged.low * metric.sign, judged.high * metric.sign))
        low, high = (low, high) if told and math.isfinite(low) else (None, None)
    verdict, reason = (held_back.verdict, held_back.reason) if held_back is not None else (None, "")
    if held_back is None and not (arm.arm or name == BASELINE):
        verdict, reason = ChangeStatus.INCONCLUSIVE, NO_SCALE
        if judged is not None:
            verdict, reason = judged.verdict, reason_of(judged, metric, low, high)
    return Learning(
        name=name,
        case_id=arm.case_id,
        arm=arm.arm,
        trainings=trainings,
        mean=_mean(finals),
        sd=statistics.stdev(finals) if len(finals) > 1 else None,
        difference=difference,
        low=low,
        high=high,
        verdict=verdict,
        reason=reason,
        of_fp32=held_back is not None and held_back.of_fp32,
        seeds_needed=judged.seeds_needed if judged is not None and held_back is None else None,
        from_fp32=_median([drift.from_fp32 for drift in drifts]),
        from_fp64=_median([drift.from_fp64 for drift in drifts]),
        skipped_steps=sum(skipped) if skipped else None,
        seconds=_mean([each.seconds for each in trainings]),
        way=way_of(trainings),
    )


def _with_losses(
    rows: Sequence[Learning],
    arms: Mapping[str, Arm],
    whole: Mapping[int, Training],
    margin: float | None,
    held: Mapping[str, Withheld | None],
) -> list[Learning]:
    """Return the rows with what their training losses in the last quarter come to, against fp32's of the same seed.

    Differences are of logarithms, positive where the loss is lower; `margin` is the largest that counts as none.
    """
    own = {seed: loss for seed, each in whole.items() if (loss := late_loss(each)) is not None and loss > 0}
    differences: dict[str, list[float]] = {}
    for name, arm in arms.items():
        pairs = [(late_loss(each), own.get(seed)) for seed, each in arm.by_seed.items()]
        known = [math.log(fp32 / loss) for loss, fp32 in pairs if fp32 is not None and loss is not None and loss > 0]
        differences[name] = known if len(known) == len([fp32 for _, fp32 in pairs if fp32 is not None]) else []
    differences.pop(BASELINE, None)
    null = {name: differences.pop(name, []) for name in NAMES.values()}
    controls = _controls(null, margin or 0.0)
    rounding = _others({name: values for name, values in null.items() if not fires(controls.get(name))})
    judged = judge({name: values for name, values in differences.items() if values}, rounding, margin or 0.0)
    fired = fires(controls.get(NAMES[CONTROL]))
    found = []
    for row in rows:
        of = judged.get(row.name) or controls.get(row.name)
        told = of is not None and not only_one(arms[row.name].by_seed, whole) and math.isfinite(of.low)
        one = replace(
            row,
            loss=_mean([late_loss(each) for each in row.trainings]),
            loss_ratio=_times(-of.difference) if of is not None else None,
            loss_low=_times(-of.high) if of is not None and told else None,
            loss_high=_times(-of.low) if of is not None and told else None,
        )
        if row.verdict is not None:
            verdict, reason = _loss_verdict(one, judged.get(row.name), margin, held.get(row.name), fired=fired)
            one = replace(one, loss_verdict=verdict, loss_reason=reason)
        found.append(one)
    return found


def _times(log: float) -> float | None:
    """Return how many times as large a loss is, by the logarithm of that; None beyond what a number holds."""
    return math.exp(log) if log < _LARGEST_LOG else None


def _loss_verdict(
    row: Learning, judged: Judged | None, margin: float | None, held_back: Withheld | None, *, fired: bool
) -> tuple[ChangeStatus, str]:
    """Return whether a training loss is no worse than fp32's, and why: `held_back` is what keeps that from being known.

    No worse: the one-sided bound at 5% lies within the margin (non-inferiority). Worse, or lower, as `judge` says.
    """
    if held_back is not None:
        return held_back.verdict, held_back.reason
    if judged is None or margin is None or row.loss_ratio is None:
        return ChangeStatus.INCONCLUSIVE, NO_LOGARITHM
    if fired:
        return ChangeStatus.INCONCLUSIVE, CONTROL_FIRED
    reason = ratio_said(row.loss_ratio, row.loss_low, row.loss_high)
    if judged.verdict in (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED):
        return judged.verdict, reason
    if judged.low >= -margin:
        return ChangeStatus.UNCHANGED, reason
    return ChangeStatus.INCONCLUSIVE, seeds_said(reason, judged.seeds_needed, f"{math.expm1(margin):.2g} of the loss")


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _root_mean_square(values: Sequence[float]) -> float | None:
    return math.sqrt(statistics.fmean(value * value for value in values)) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a study found of a case: whether it `trains` as fp32 does, and by which share it ends `worse`.

    `study` names it: "study 8879c8, 300 steps from 3 seeds".
    """

    trains: bool
    study: str
    worse: float | None = None


def trained_cases(measured: StoredRun, studies: Iterable[StoredRun]) -> dict[str, Trained]:
    """Return by case id what `studies` found of the cases of a run that measured; of several the newest counts.

    They count where they were made on the same host with the same torch, of the same case with the same weights, and
    where they tell whether it trains as fp32 does.
    """
    found: dict[str, Trained] = {}
    for study in sorted(studies, key=lambda one: (one.header.started_at, one.header.run)):
        if study.header.explains != CONVERGENCE or _place(study) != _place(measured):
            continue
        for one in learned(study):
            for row in one.judged:
                own = measured.divergence.get(row.case_id)
                same = own is not None and own.weights_digest in {each.weights_digest for each in row.trainings}
                if same and row.trains is not None:
                    found[row.case_id] = _trained(study, one, row)
    return found


def _trained(study: StoredRun, one: Learned, row: Learning) -> Trained:
    assert row.trains is not None
    name = f"study {study.header.run.rpartition('-')[2]}, {counted(one.steps, 'step')} from"
    by_loss = row.loss_ratio - 1 if row.loss_ratio is not None else None
    by_score = abs(row.difference) if row.difference is not None else None
    worse = by_score if row.verdict is ChangeStatus.REGRESSED else by_loss
    return Trained(
        trains=row.trains,
        study=f"{name} {counted(len(row.trainings), 'seed')}",
        worse=None if row.trains else worse,
    )


def _place(stored: StoredRun) -> tuple[str, str]:
    return stored.header.environment.host, stored.header.environment.torch_version

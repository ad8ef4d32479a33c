"""What trainings of a workload in several precisions come to: each precision with its verdict against fp32."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ampbench.precisions import BASELINE, rank
from ampbench.records.cases import Case
from ampbench.records.studies import Training
from ampbench.store import StoredRun
from ampbench.studied.convergence.judging import Judged, judge
from ampbench.studied.convergence.metric import LOSS, Metric, final_drift, first_score, metric_of
from ampbench.studied.convergence.verdicts import (
    NAMES,
    Arm,
    Withheld,
    control_remarks,
    ended_of,
    fires,
    loss_remarks,
    only_one,
    reason_of,
    seed_remarks,
    withheld,
)
from ampbench.verdicts import Verdict

NONE_TRAINED = "only fp32 was trained: there is no precision to judge"
NONE_YET = "no precision was trained yet"
NO_SCALE = "fp32 ends at a loss of 0, which no difference is relative to"

_CONTROL_ALPHA = 0.01
"""The control and fp64 are each said to differ from fp32 at this level, so that few studies lose their verdicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """The trainings of one precision, or of an arm of fp32, and what they come to.

    `name` is the precision's, "control" or "fp64"; `trainings` are in the order of their seeds. `mean` and `sd` are
    those of the final metric over seeds that have one, None where undefined. `difference` is the mean difference from
    fp32 by seed, of an accuracy as a share, of a loss relative to fp32's (positive: a larger loss); `low` and `high`
    are its 90% interval, None where there is but one seed or start. `verdict` is None for fp32 and its arms, `reason`
    says why it is what it is. `seeds_needed` would decide, roughly. `from_fp32` and `from_fp64` are the medians of the
    weights' relative distances at the end.
    `skipped_steps` are those of all seeds, `seconds` the mean of a training.
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
    verdict: Verdict | None = None
    reason: str = ""
    seeds_needed: int | None = None
    from_fp32: float | None = None
    from_fp64: float | None = None
    skipped_steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What the trainings of one workload on one device come to.

    `workload` is the group of its cases. `rows` are fp32 with its arms, then the precisions in the order of every
    table; `before` is fp32's metric before the first step. `rounding` is what rounding alone does to the metric, in the
    unit of `Learning.difference`: the root mean square of the differences of control and fp64 from fp32, but of one
    that seems to differ. `learns` says whether fp32 ends better than it began (None: unknown). `unjudged` says why no
    precision is judged, "" where any is. `remarks` are sentences about what must not be hidden.

    `seeds` are those that anything was trained from, `asked` is how many there were to be, and `left` says whether a
    training is missing that can yet be made.
    """

    workload: str
    device: str
    metric: Metric
    steps: int
    seeds: list[int]
    asked: int
    left: bool = False
    rows: list[Learning]
    before: float | None = None
    rounding: float | None = None
    learns: bool | None = None
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
    asked = stored.header.asked.seeds if stored.header.asked else 0
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
        and all(training.arm for training in stored.convergence.get(case_id, []))
    }
    return {
        case_id: trainings
        for case_id, trainings in stored.convergence.items()
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
    controls = {name: _one(values, _others(null, name), metric) for name, values in null.items() if values}
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
    steps = max(each.steps for arm in arms.values() for each in arm.by_seed.values())
    unchanged = [row.name for row in rows if row.verdict is Verdict.UNCHANGED]
    seeds = sorted({seed for arm in arms.values() for seed in arm.by_seed})
    low = [name for name in planned if name not in (BASELINE, *NAMES.values())]
    return Learned(
        workload=workload,
        device=device,
        metric=metric,
        steps=steps,
        seeds=seeds,
        asked=max(asked, len(seeds)),
        left=any(len(arm.by_seed) < asked and arm.case_id not in ended for arm in planned.values()),
        rows=rows,
        before=before,
        rounding=_root_mean_square(rounding),
        learns=learns,
        unjudged="" if others else NONE_YET if low else NONE_TRAINED,
        remarks=[
            *control_remarks(controls, metric),
            *seed_remarks(planned, asked, metric),
            *loss_remarks(arms, unchanged, steps),
        ],
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


def _one(values: Sequence[float], rounding: Sequence[float], metric: Metric) -> Judged:
    """Return whether an arm of fp32 itself seems to differ from it."""
    found = judge({"": values}, rounding, metric.margin, resolution=metric.resolution, alpha=_CONTROL_ALPHA)
    return found[""]


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
        verdict, reason = Verdict.INCONCLUSIVE, NO_SCALE
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
        seeds_needed=judged.seeds_needed if judged is not None and held_back is None else None,
        from_fp32=_median([drift.from_fp32 for drift in drifts]),
        from_fp64=_median([drift.from_fp64 for drift in drifts]),
        skipped_steps=sum(skipped) if skipped else None,
        seconds=_mean([each.seconds for each in trainings]),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _root_mean_square(values: Sequence[float]) -> float | None:
    return math.sqrt(statistics.fmean(value * value for value in values)) if values else None

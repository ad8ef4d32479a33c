"""Loss scaling: what came of a training with each setting of GradScaler, beside the one in fp32 from the same weights.

Is a scale needed, does GradScaler find it, what goes wrong, and what became of the gradients.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import count, pairwise
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from ampbench.core.precisions import BASELINE, PRECISIONS, SCALED
from ampbench.core.statement import Severity, Statement, state
from ampbench.core.units import UNDEFINED, counted, format_ratio, format_whole
from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.bounds import Count, ErrorSize, Magnitude, Parts, Signed, Steps
from ampbench.records.case import Case, Environment
from ampbench.records.kinds import SCALER
from ampbench.records.labels import few
from ampbench.records.measured import Score
from ampbench.records.ranges import FirstNonfinite, Magnitudes, format_scale, nonfinite_sentence
from ampbench.records.run import ScalerSetting, Selection, Settings
from ampbench.records.wire import Task
from ampbench.show.charts import curves
from ampbench.show.document import Column
from ampbench.studies.study import Given, Option, Selects, Session, Study, Table, View

if TYPE_CHECKING:
    from ampbench.drive.pieces import Piece, Seen
    from ampbench.drive.planning import PlannedCase
    from ampbench.drive.servers import Channel
    from ampbench.store import StoredRun


class GradientLook(Parts, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The gradients of one step beside those in fp32 of the same weights and batch, the loss scale divided out.

    Of `elements`, `nonzero` are not zero in fp32; of these `flushed` are zero and `nonfinite` not finite in the low
    precision. `rel_l2` is the relative L2 error of all (None: undefined).
    """

    PARTS = (("nonzero", "elements"), ("flushed", "nonzero"), ("nonfinite", "elements"))
    step: Count
    scale: Magnitude
    elements: Count
    nonzero: Count
    flushed: Count
    nonfinite: Count
    rel_l2: ErrorSize | None = None


class ScalerRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A training of a case with one scaler setting; `precision` is the case's or, to compare with, fp32.

    `scales[i]` is the scale that step i was taken with (empty: none), `losses[i]` its loss, unscaled (None: not
    finite). `skipped` are the steps that GradScaler skipped, `nonfinite` in how many steps a parameter's gradient was
    not finite. `fp32_gradients` and `gradients` are magnitudes at the looks: in fp32, and as the precision stores them
    before the scale is divided out. `first_nonfinite` is where the first value that is not finite comes from.
    `exact_losses` are those of the weights before the first step and after the last, each computed in fp32 over the
    same batches: a loss in fp16 is too coarse to tell trainings apart.
    """

    case_id: str
    setting: ScalerSetting
    precision: str
    steps: Steps
    losses: list[Signed | None] = []
    scales: list[Magnitude] = []
    skipped: list[Count] = []
    nonfinite: dict[str, Count] = {}
    looks: list[GradientLook] = []
    fp32_gradients: Magnitudes | None = None
    gradients: Magnitudes | None = None
    first_nonfinite: FirstNonfinite | None = None
    exact_losses: list[Signed | None] = []
    score: Score | None = None
    error: str = ""
    weights_digest: str = ""
    notes: list[str] = []

    def __post_init__(self) -> None:
        """Raise `ValueError` for a precision that is not known."""
        if self.precision not in PRECISIONS:
            raise ValueError(f"an unknown precision, {self.precision!r}")


class ScalingAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To train a case for `steps` steps with a scaler `setting` (None: in fp32)."""

    setting: ScalerSetting | None
    steps: Steps


class ScalerAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To train each case for `steps` steps in fp32 and with each of the `settings`."""

    steps: Steps
    settings: list[ScalerSetting]


class State(StrEnum):
    """What a training came to."""

    RAISED = "raised"
    BROKEN = "not finite"
    """Its weights or its last losses are not finite."""
    COLLAPSED = "collapsed"
    """Its scale fell and fell, with every step skipped."""
    BEHIND = "behind"
    """Its loss falls less than fp32's."""
    NEAR = "nearly fp32"
    """It lacks next to nothing of fp32's fall, and yet ends well above fp32's loss, which is near zero."""
    FOLLOWS = "as fp32"
    UNKNOWN = "unknown"
    """fp32's loss does not fall."""


class Scaling(StrEnum):
    """What trainings of a case say of loss scaling, or one of them of its setting."""

    NO_FP32 = "scaling-no-fp32"
    FP32_RAISED = "scaling-fp32-raised"
    FP32_BROKEN = "scaling-fp32-broken"
    FP32_FLAT = "scaling-fp32-flat"
    USELESS = "scaling-useless"
    """Every scale collapses."""
    NEEDED = "scaling-needed"
    NEEDLESS = "scaling-needless"
    RAISED = "scaling-raised"
    COLLAPSED = "scaling-collapsed"
    BROKEN = "scaling-broken"
    RISES = "scaling-rises"
    BEHIND = "scaling-behind"
    FLUSHED = "scaling-flushed"
    UNSETTLED = "scaling-unsettled"
    COMES_DOWN = "scaling-comes-down"
    SKIPS_AGAIN = "scaling-skips-again"
    OVERFLOWING = "scaling-overflowing"
    NOT_TRIED = "scaling-not-tried"
    OTHER_WEIGHTS = "scaling-other-weights"


LAGS = 0.05
"""A training is behind where it lacks more than this share of what the loss falls by in fp32, or where its loss ends by
more than this share above fp32's, unless what it lacks is below `NOTHING`. This is one training: over seeds
`ampbench study convergence` tells precisions apart that differ by less."""
NOTHING = 0.01
"""A share of fp32's fall that is nothing to speak of: losses near zero differ by large factors."""
ROUNDING = 2.0**-8
"""A fall by no more than this share of a loss computed in fp16 is none to judge by: four of its spacings."""
EXACTLY = 2.0**-21
"""The same of a loss computed in fp32."""
LAST = 4
"""A loss at the end that was computed in fp16 is the mean over the last quarter of the steps."""
FLUSHES = 0.01
"""The share of gradient elements at zero from which they are said to flush."""
MANY_SKIPPED = 3
"""From so many steps skipped at the start on, another init_scale is recommended."""
OFTEN_SKIPPED = 0.05
"""The share of steps, after the scale was first found, from which a scaler skips too many."""

YOURS = ScalerSetting(name="yours")
"""GradScaler's own defaults, of a setting that a user gives."""
SETTINGS = (
    ScalerSetting(name="no scaling", enabled=False),
    ScalerSetting(name="default"),
    ScalerSetting(name="low start", init_scale=1.0, growth_interval=10),
    ScalerSetting(name="high start", init_scale=2.0**24),
    ScalerSetting(name="fast growth", growth_interval=10),
)
"""What is tried beside fp32: the third has to find its scale from below, the fourth from above, the last goes on
looking for a higher one."""
UNSCALED, DEFAULT = SETTINGS[0].name, SETTINGS[1].name


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one training; None where it is undefined.

    `flushed` is the share of the gradient elements looked at that are zero though they are not in fp32, `grad_rel_l2`
    the median over the looks of the gradients' error. `loss` is that at the end, `lag` the share of what the loss falls
    by in fp32 that is missing then, `excess` by what share of `fp32_loss`, fp32's at the end, it is above that.
    `skipped_first` counts the steps skipped before the first that was taken.
    """

    run: ScalerRun
    state: State
    flushed: float | None
    grad_rel_l2: float | None
    loss: float | None
    lag: float | None
    excess: float | None
    fp32_loss: float | None
    skipped_first: int

    @property
    def scaled(self) -> bool:
        """Whether it has a scaler."""
        return self.run.setting.enabled

    @property
    def fails(self) -> bool:
        """Whether training with it falls short of fp32."""
        return self.state in (State.RAISED, State.BROKEN, State.COLLAPSED, State.BEHIND)

    @property
    def serves(self) -> bool:
        """Whether training with it is as good as in fp32, or nearly."""
        return self.state in (State.NEAR, State.FOLLOWS)

    @property
    def skipped_later(self) -> int:
        """How many steps were skipped after the first that was taken."""
        return len(self.run.skipped) - self.skipped_first

    @property
    def skips_often(self) -> bool:
        """Whether it goes on skipping too many steps."""
        return self.skipped_later > max(OFTEN_SKIPPED * len(self.run.losses), 1)


def outcomes(runs: Sequence[ScalerRun]) -> list[Outcome]:
    """Return what came of each of the trainings of a case, in their order."""
    full = in_fp32(runs)
    return [_outcome(run, full, exact=is_exact(full)) for run in runs]


def in_fp32(runs: Sequence[ScalerRun]) -> ScalerRun | None:
    """Return the training that the others are held against; None where it was not reached."""
    return next((run for run in runs if run.precision == BASELINE), None)


def is_exact(full: ScalerRun | None) -> bool:
    """Return whether the losses of weights are known in fp32."""
    return full is not None and len(full.exact_losses) == 2


def ends(run: ScalerRun, *, exact: bool) -> tuple[float | None, float | None]:
    """Return the first loss and that at the end: of the weights, in fp32 (`exact`), or as the training computed them.

    None where one is missing or not finite.
    """
    if exact:
        first, end = run.exact_losses or (None, None)
        return first, end
    start = run.steps - max(run.steps // LAST, 1)
    known = [loss for loss in run.losses[start:] if loss is not None]
    end = sum(known) / len(known) if known and len(known) == run.steps - start else None
    return next(iter(run.losses), None), end


def fall(run: ScalerRun, *, exact: bool) -> float | None:
    """Return by how much the loss falls; None where one of its ends is undefined."""
    first, end = ends(run, exact=exact)
    return None if first is None or end is None else first - end


def least_fall(run: ScalerRun, *, exact: bool) -> float:
    """Return what the loss must fall by for others to be judged by it: more than rounding and its own scatter.

    Losses that are `exact` are of the same batches, which do not scatter.
    """
    largest = max((abs(loss) for loss in (*run.losses, *run.exact_losses) if loss is not None), default=0.0)
    if exact:
        return EXACTLY * largest
    late = [loss for loss in run.losses[len(run.losses) // 2 :] if loss is not None]
    changes = [after - before for before, after in pairwise(late)]
    scatter = math.hypot(*changes) / math.sqrt(2 * len(changes)) if changes else 0.0
    return max(ROUNDING * largest, scatter)


def _outcome(run: ScalerRun, full: ScalerRun | None, *, exact: bool) -> Outcome:
    nonzero = sum(look.nonzero for look in run.looks)
    errors = [look.rel_l2 for look in run.looks if look.rel_l2 is not None]
    skipped = set(run.skipped)
    loss, best = ends(run, exact=exact)[1], ends(full, exact=exact)[1] if full else None
    fell = fall(full, exact=exact) if full else None
    lag = _share(loss, best, fell if full and fell is not None and fell > least_fall(full, exact=exact) else None)
    excess = _share(loss, best, None if best is None else abs(best))
    return Outcome(
        run=run,
        state=_state(run, loss, lag, excess),
        flushed=sum(look.flushed for look in run.looks) / nonzero if nonzero else None,
        grad_rel_l2=median(errors) if errors else None,
        loss=loss,
        lag=lag,
        excess=excess,
        fp32_loss=best,
        skipped_first=next(step for step in count() if step not in skipped),
    )


def _share(loss: float | None, best: float | None, whole: float | None) -> float | None:
    """Return by what share of the `whole` a loss is above another; None where that is not above zero."""
    return None if loss is None or best is None or whole is None or whole <= 0 else (loss - best) / whole


def _state(run: ScalerRun, loss: float | None, lag: float | None, excess: float | None) -> State:
    if run.error:
        return State.RAISED
    if len(run.losses) < run.steps and run.setting.enabled:
        return State.COLLAPSED
    if loss is None or len(run.losses) < run.steps or run.losses[-1] is None:
        return State.BROKEN
    if lag is None:
        return State.UNKNOWN
    above = (excess or 0.0) > LAGS
    if lag > LAGS or (lag > NOTHING and above):
        return State.BEHIND
    return State.NEAR if above else State.FOLLOWS


def conclusions(case: Case, runs: Sequence[ScalerRun]) -> Iterator[Statement]:
    """Yield what trainings of a case say: whether it needs a scale, then gradients, scales and overflows."""
    found = outcomes(runs)
    low = [each for each in found if each.run.precision == case.precision]
    yield from _of_fp32(runs)
    yield from _verdict(low)
    for each in low:
        if each.run.setting.name in (UNSCALED, DEFAULT) and each.flushed is not None:
            facts = {"flushed": each.flushed, "error": each.grad_rel_l2}
            yield state(Scaling.FLUSHED, each.run.setting.name, Severity.INFO, **facts)
    for each in low:
        if each.scaled:
            yield from _of_scale(each, low)
    counts: Counter[str] = Counter()
    for each in low:
        if each.scaled and each.state is not State.COLLAPSED:
            counts.update(each.run.nonfinite)
    if counts:
        yield state(Scaling.OVERFLOWING, "", Severity.INFO, names=few([name for name, _ in counts.most_common()]))
    if not case.scaler:
        yield state(Scaling.NOT_TRIED, "", Severity.INFO)
    if len({run.weights_digest for run in runs}) > 1:
        yield state(Scaling.OTHER_WEIGHTS)


def _of_fp32(runs: Sequence[ScalerRun]) -> Iterator[Statement]:
    """Yield what keeps the training in fp32 from being a measure of the others."""
    full = in_fp32(runs)
    if full is None:
        yield state(Scaling.NO_FP32)
        return
    if full.error:
        yield state(Scaling.FP32_RAISED, BASELINE, error=full.error)
        return
    exact = is_exact(full)
    (first, end), fell = ends(full, exact=exact), fall(full, exact=exact)
    if fell is None:
        odd = next((step for step, loss in enumerate(full.losses, 1) if loss is None), len(full.losses))
        yield state(Scaling.FP32_BROKEN, BASELINE, step=odd)
    elif fell <= least_fall(full, exact=exact):
        yield state(Scaling.FP32_FLAT, BASELINE, Severity.ADVICE, first=first, end=end, steps=full.steps)


def _verdict(low: Sequence[Outcome]) -> Iterator[Statement]:
    """Yield whether fp16 needs a loss scale, whether one serves, and which settings fail."""
    unscaled = next((each for each in low if not each.scaled), None)
    scaled = [each for each in low if each.scaled]
    serving = sorted((each for each in scaled if each.serves), key=lambda each: each.run.setting.name != DEFAULT)
    if scaled and all(each.state is State.COLLAPSED for each in scaled):
        yield state(Scaling.USELESS, **_collapse(scaled[0].run))
        return
    failing = [each for each in low if each.fails]
    if unscaled is not None and unscaled.fails and serving:
        near = int(serving[0].state is State.NEAR) or None
        yield state(Scaling.NEEDED, setting=serving[0].run.setting.name, near=near)
        failing = [unscaled]
    elif unscaled is not None and unscaled.serves:
        near = int(unscaled.state is State.NEAR) or None
        flushed = unscaled.flushed if (unscaled.flushed or 0.0) >= FLUSHES else None
        yield state(Scaling.NEEDLESS, "", Severity.INFO, near=near, flushed=flushed)
    for each in failing:
        yield _failure(each)


def _failure(outcome: Outcome) -> Statement:
    """Return how a training falls short of fp32."""
    run, name = outcome.run, outcome.run.setting.name
    if outcome.state is State.RAISED:
        return state(Scaling.RAISED, name, error=run.error)
    if outcome.state is State.COLLAPSED:
        return state(Scaling.COLLAPSED, name, **_collapse(run))
    if outcome.state is State.BROKEN:
        first = nonfinite_sentence(run.first_nonfinite) if run.first_nonfinite else None
        return state(Scaling.BROKEN, name, steps=len(run.losses), first=first)
    began, loss, best = next(iter(run.losses), None), outcome.loss, outcome.fp32_loss
    if began is not None and loss is not None and best is not None and loss > began > best:
        return state(Scaling.RISES, name, began=began, loss=loss, fp32=best)
    excess = outcome.excess if outcome.excess is not None and outcome.excess < 1 else None
    return state(Scaling.BEHIND, name, lag=min(outcome.lag or 0.0, 1.0), excess=excess)


def _collapse(run: ScalerRun) -> dict[str, float | str | None]:
    """Return why a scale fell and fell: the loss itself is not finite, or gradients overflow at every scale."""
    first = nonfinite_sentence(run.first_nonfinite) if run.first_nonfinite else None
    if run.losses and run.losses[-1] is None:
        return {"loss": 1, "first": first}
    return {"lowest": format_scale(run.scales[-1]) if run.scales else None, "first": first}


def _of_scale(outcome: Outcome, low: Sequence[Outcome]) -> Iterator[Statement]:
    """Yield what a scale did, where it did more than hold, and what to set instead: of `low` what serves better."""
    run, name = outcome.run, outcome.run.setting.name
    if outcome.state in (State.COLLAPSED, State.RAISED) or not run.scales or not run.skipped:
        return
    skipped, done, first = len(run.skipped), len(run.losses), outcome.skipped_first
    began = format_scale(run.scales[0])
    if first == done:
        yield state(Scaling.UNSETTLED, name, Severity.ADVICE, steps=done, began=began)
        return
    others = [other for other in low if other.scaled]
    if first >= MANY_SKIPPED:
        settled = run.scales[first]
        tried = next((other.run.setting.name for other in others if other.run.scales[:1] == [settled]), None)
        facts = {"began": began, "settled": format_scale(settled).replace("^", "**"), "tried": tried}
        yield state(Scaling.COMES_DOWN, name, Severity.ADVICE, first=first, steps=done, **facts)
    if outcome.skips_often:
        slower = [other for other in others if other.run.setting.growth_interval > run.setting.growth_interval]
        better = next((other.run.setting.name for other in slower if other.serves and not other.skips_often), None)
        yield state(Scaling.SKIPS_AGAIN, name, Severity.ADVICE, skipped=skipped - first, steps=done, tried=better)


def _scaler(name: str) -> Callable[[Outcome], float | None]:
    """Return a parameter of the scaler, None where a setting has no scaler."""
    return lambda row: getattr(row.run.setting, name) if row.scaled else None


def _full(row: Outcome) -> bool:
    return row.run.precision == BASELINE


COLUMNS: Sequence[Column[Outcome]] = (
    Column("setting", lambda row: row.run.setting.name, "setting"),
    Column("precision", lambda row: row.run.precision),
    Column("enabled", lambda row: row.scaled),
    *(Column(name, _scaler(name)) for name in ("init_scale", "growth_factor", "backoff_factor", "growth_interval")),
    Column("steps", lambda row: row.run.steps),
    Column("done", lambda row: len(row.run.losses)),
    Column(
        "skipped_steps", lambda row: len(row.run.skipped) if row.scaled else None, "skipped steps", "whole",
        lambda row: format_whole(len(row.run.skipped) if row.run.scales else None),
    ),
    Column("skipped_first", lambda row: row.skipped_first if row.scaled else None),
    Column(
        "last_scale", lambda row: row.run.scales[-1] if row.run.scales else None, "scale",
        said=lambda row: " → ".join(dict.fromkeys(map(format_scale, row.run.scales[:1] + row.run.scales[-1:]))),
    ),
    Column("flushed_share", lambda row: row.flushed, "flushed", "share"),
    Column("grad_rel_l2", lambda row: row.grad_rel_l2, "error", "error"),
    Column("loss", lambda row: row.loss, "loss", "loss"),
    Column("lag", lambda row: row.lag, "behind", "share", lambda row: "" if _full(row) else _behind(row.lag)),
    Column("excess", lambda row: row.excess, "above", "share", lambda row: "" if _full(row) else _above(row.excess)),
    Column("held_out_loss", lambda row: getattr(row.run.score, "loss", None), "held out", "loss", rare=True),
    Column("correct", lambda row: getattr(row.run.score, "correct", None)),
    Column("decisions", lambda row: getattr(row.run.score, "decisions", None)),
    Column("state", lambda row: row.state, "outcome"),
    Column("reason", lambda row: row.run.error),
)  # fmt: skip
"""Of a training: its setting, `done` steps (taken or skipped) of `steps`, `skipped_first` before the first was taken.

`loss` is that at the end, `reason` the error that a step raised; the others are as in `Outcome`.
"""


def _behind(lag: float | None) -> str:
    """Return what is missing of a fall as "+5.1%"; where the loss rises, more than all of it is."""
    return ">100%" if lag is not None and lag > 1 else _signed(lag)


def _above(excess: float | None) -> str:
    """Return by how much a loss is above another as "+16.9%"; from twice the other on, how many times it is: "165x"."""
    return format_ratio(1 + excess) if excess is not None and excess >= 1 else _signed(excess)


def _signed(share: float | None) -> str:
    """Return a share with its sign as "-4.8%"; none where it rounds to zero."""
    text = UNDEFINED if share is None else f"{share:+.1%}"
    return "0%" if text in ("+0.0%", "-0.0%") else text


def overflowing(runs: Sequence[ScalerRun]) -> list[tuple[str, int, str]]:
    """Return the parameters whose gradients were not finite, in how many steps, and in how many of each setting."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.nonfinite)
    return [
        (name, total, ", ".join(f"{run.setting.name} {run.nonfinite[name]:,}" for run in runs if name in run.nonfinite))
        for name, total in counts.most_common()
    ]


OVERFLOWS: Sequence[Column[tuple[str, int, str]]] = (
    Column("parameter", lambda row: row[0], "parameter"),
    Column("steps", lambda row: row[1], "steps", "whole"),
    Column("settings", lambda row: row[2], "settings"),
)


def remarks(runs: Sequence[ScalerRun]) -> list[str]:
    """Return the remarks of the trainings, each with the settings that made it."""
    by_note: dict[str, list[str]] = {}
    for run in runs:
        for note in run.notes:
            by_note.setdefault(note, []).append(run.setting.name)
    return [note if len(names) == len(runs) else f"{', '.join(names)}: {note}" for note, names in by_note.items()]


def setting_name(setting: ScalerSetting | None) -> str:
    """Return what a training with a setting is called; None: in fp32."""
    return setting.name if setting else BASELINE


def trained(stored: "StoredRun") -> set[tuple[str, str]]:
    """Return which trainings are in a run, by the ids of cases and the names of settings."""
    found = stored.several_of(ScalerRun).items()
    return {(case_id, run.setting.name) for case_id, runs in found for run in runs}


def unfinished(stored: "StoredRun") -> list[tuple[str, str]]:
    """Return which trainings a run lacks, by the ids of cases and the names of settings, in the order of the run.

    Cases that failed or were skipped lack none, nor does a run that does not say what it was asked for.
    """
    done, settings = trained(stored), [None, *stored.asked.settings] if stored.asked else []
    return [
        (case_id, name)
        for case_id in stored.cases
        if case_id not in stored.given_up
        for name in map(setting_name, settings)
        if (case_id, name) not in done
    ]


TASK = Task(SCALER, ScalingAsked, ScalerRun, "ampbench.studies.scaler_measure:do_scaler")


def chosen_settings(names: Sequence[str], own: ScalerSetting | None, *, scaler: bool) -> list[ScalerSetting]:
    """Return the settings of `SETTINGS` that `names` name (none: all), and the user's `own`; without `scaler`, those
    that have none.

    Raises `UnknownNameError` for a name that there is not, and `UsageError` where none is left that was asked for.
    """
    known = {setting.name: setting for setting in SETTINGS}
    for name in names:
        if name not in known:
            raise UnknownNameError("setting", name, known)
    asked = [setting for name, setting in known.items() if name in names or not names]
    asked += [own] if own else []
    chosen = [setting for setting in asked if scaler or not setting.enabled]
    if not scaler and (own or not chosen):
        raise UsageError("--no-scaler leaves no setting but 'no scaling': leave it out, or the other settings")
    return chosen


def own_setting(given: Given) -> ScalerSetting | None:
    """Return the setting that the options give, if one is given; `UsageError` for what GradScaler does not take."""
    if not any(one.name in given.typed for one in msgspec.structs.fields(ScalerSetting)):
        return None
    names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    init_scale, growth_factor, backoff_factor, growth_interval = (given.values[name] for name in names)
    for option, holds, wanted in (
        (f"--init-scale {init_scale:g}", 0 < init_scale < 2.0**128, "a finite number above 0, as fp32 holds it"),
        (f"--growth-factor {growth_factor:g}", 1 < growth_factor < float("inf"), "a number above 1"),
        (f"--backoff-factor {backoff_factor:g}", 0 < backoff_factor < 1, "between 0 and 1"),
        (f"--growth-interval {growth_interval}", growth_interval >= 1, "at least 1"),
    ):
        if not holds:
            raise UsageError(f"{option}: must be {wanted}")
    return msgspec.structs.replace(YOURS, **{name: given.values[name] for name in names})


def _made(given: Given) -> ScalerAsked:
    settings = chosen_settings(given.values["setting"], own_setting(given), scaler=given.selection.scaler)
    return ScalerAsked(steps=given.values["steps"], settings=settings)


def _refined(selection: Selection, _: ScalerAsked) -> Selection:
    _require_scaled(selection)
    # "amp" is fp16 here, wherever it is trained: no other autocast is scaled
    precisions = [SCALED[0] if name.strip().lower() == "amp" else name for name in selection.precisions]
    return msgspec.structs.replace(selection, precisions=precisions or list(SCALED))


def _plan(
    selection: Selection, _: ScalerAsked, environment: Environment, channel: "Channel", settings: Settings
) -> "list[PlannedCase]":
    from ampbench.drive.planning import make_plan
    from ampbench.drive.session import describer

    return make_plan(selection, environment, describer(channel, settings))


def _left(stored: "StoredRun") -> list[str]:
    from ampbench.drive.pieces import asked_of

    asked_of(stored)  # of a run that does not say it, nothing is known to be left
    return [case_id for case_id, _ in unfinished(stored)]


def pieces(session: Session[ScalerAsked]) -> "list[Piece]":
    """Return the trainings that are planned and not made yet: of each case in fp32, then with each setting."""
    from ampbench.drive.pieces import Piece

    done = trained(session.begun) if session.begun else ()
    return [
        Piece(planned, setting)
        for planned in session.prepared.plan
        if not planned.skip
        for setting in (None, *session.asked.settings)
        if (planned.case.case_id, setting_name(setting)) not in done
    ]


def _train(session: Session[ScalerAsked], channel: "Channel", piece: "Piece") -> "Seen":
    """Train a case; raises `UsageError` where its weights are not those that it was trained from in the run before."""
    from ampbench.drive.pieces import ask_case
    from ampbench.drive.session import check_same_network

    asked = ScalingAsked(setting=piece.part, steps=session.asked.steps)
    found = ask_case(channel, piece.planned, session.prepared.settings, TASK, asked)
    if session.begun is not None and isinstance(found, ScalerRun):
        case = piece.planned.case
        for before in session.begun.several_of(ScalerRun).get(case.case_id, []):
            check_same_network(session.begun.header.run, case.workload, before, found)
    return found


def _require_scaled(selection: Selection) -> None:
    """Raise `UsageError`, saying why it needs no scaler or can have none, for a precision without GradScaler."""
    from ampbench.drive.pieces import built_in_rows

    for row in built_in_rows(selection):
        if row.name in SCALED:
            continue
        needless = "it has fp32's range" if "bfloat16" in (row.storage, row.autocast) else "nothing in it is fp16"
        why = f"needs no loss scaling: {needless}"
        if row.storage == "float16":
            why = "can have none: GradScaler refuses fp16 parameters (Attempting to unscale FP16 gradients)"
        if row.scaler:
            why = "scales the same gradients in the same way"
        raise UsageError(f"{row.name} {why}; loss scaling is studied in {' and '.join(SCALED)}")


_OF_YOURS = "Of a setting of yours."
STUDY: Study[ScalerAsked, list[ScalerRun]] = Study(
    kind=SCALER,
    help="""\
Train in fp32, in fp16 without loss scaling and with GradScaler in several settings, from the same weights.

Tells what share of the gradients flushes to zero and how far they err, the scale in every step, skipped steps and
the parameters whose gradients overflow, and whether the loss falls as in fp32.

\b
Examples:
  ampbench study scaler model.py:make
  ampbench study scaler unet --preset tiny --steps 200
  ampbench study scaler mlp --setting default --init-scale 1024 --growth-interval 100
  ampbench study scaler --resume 1f9a3c              an interrupted study, by its id
""",
    doing="training",
    asked=ScalerAsked,
    record=ScalerRun,
    key="scalings",
    task=TASK,
    options=(
        Option(name="steps", default=100, metavar="N", least=1, most=1_000_000, help="Steps of each training."),
        Option(
            name="setting",
            default=None,
            names=True,
            help="Only this one beside fp32: 'no scaling', default, 'low start', 'high start' or 'fast growth'.",
        ),
        Option(name="init_scale", default=YOURS.init_scale, metavar="SCALE", help=_OF_YOURS),
        Option(name="growth_factor", default=YOURS.growth_factor, metavar="FACTOR", help=_OF_YOURS),
        Option(name="backoff_factor", default=YOURS.backoff_factor, metavar="FACTOR", help=_OF_YOURS),
        Option(name="growth_interval", default=YOURS.growth_interval, metavar="STEPS", help=_OF_YOURS),
    ),
    selects=Selects(
        question="study the loss scaling",
        precision="Only fp16_autocast, the default: GradScaler is for no other.",
        scaler="--no-scaler: train only in fp32 and without scaling (for devices without fp64, which GradScaler "
        "needs).",
        phases=("training",),
        recipes=True,
    ),
    made=_made,
    refined=_refined,
    plan=_plan,
    pieces=pieces,
    left=_left,
    lacks=unfinished,
    work=lambda session: partial(_train, session),
    title="Loss scaling, setting by setting",
    caption="What fp16 needs of loss scaling, those first of whose settings most fail",
    done="Trained",
    heading=lambda runs: counted(max((run.steps for run in runs), default=0), "step"),
    remarks=remarks,
    tables=(
        Table(
            key="settings",
            columns=COLUMNS,
            rows=outcomes,
            views=[
                View(
                    title="Settings of GradScaler",
                    keys="setting last_scale skipped_steps flushed_share grad_rel_l2 loss lag excess held_out_loss "
                    "state",
                    note="flushed: share of fp32's gradients that are zero in fp16; error: of the gradients, median; "
                    "behind: share of the loss's fall in fp32 that is missing; above: by how much the loss ends above "
                    "fp32's, or how many times it is",
                )
            ],
        ),
        Table(
            key="overflows",
            columns=OVERFLOWS,
            rows=overflowing,
            views=[View(title="Gradients that were not finite", note="in how many steps", shown=12, folded=True)],
        ),
    ),
    conclusions=conclusions,
    charts=(
        curves(
            "studies-scaler-losses",
            "Training loss by setting of the scaler",
            "training loss, unscaled",
            "setting",
            lambda runs: [(run.setting.name, run.losses) for run in runs],
            alt="A line ends where a training was given up, and breaks where its loss is not finite.",
        ),
        curves(
            "studies-scales",
            "Loss scale over time",
            "loss scale, as a power of 2",
            "setting",
            lambda runs: [
                (run.setting.name, [math.log2(scale) if scale > 0 else None for scale in run.scales]) for run in runs
            ],
            alt="Each step that GradScaler skips halves the scale.",
        ),
    ),
)

"""Whether the results of a case are right: `LOOKS` is all that can refuse one.

Nothing here is about time or memory. A missing measurement makes a case undecided, never right.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ampbench.core.budget import (
    LEAST_BIAS,
    LEAST_KEPT,
    LEAST_KEPT_OF_A_TENSOR,
    MOST_BIAS,
    MOST_OF_RANGE,
    MOST_OVER_SPREAD,
    MOST_STALL,
    MOST_SWALLOWED,
    MOST_UNSCALING,
    OF_A_TENSOR,
    ROOM,
    Budget,
)
from ampbench.core.precisions import FORMATS, PRECISIONS, SHORT_DTYPES
from ampbench.core.statement import Refusal, Statement, Undecided
from ampbench.records.changes import Evidence, Status, Verdict
from ampbench.records.measured import LOWEST_BIN, Divergence, Update
from ampbench.show.rows import TODAYS, Row, judged_error, number

if TYPE_CHECKING:
    from ampbench.judge.rounds import TimedRound
    from ampbench.studies.training import Trained

DISAGREEMENT_ALPHA = 0.05
"""Decisions that disagree refuse a case only if chance explains them less often than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A case as it is judged: its `row`, divergence and rounds; `baseline` is fp32 in the same table."""

    row: Row
    found: Divergence | None = None
    rounds: "Sequence[TimedRound]" = ()
    baseline: "Seen | None" = None

    @property
    def update(self) -> Update | None:
        """The effect of its optimizer's step, None if unknown."""
        update = self.found.update if self.found is not None else None
        return update if update is not None and update.kept is not None else None

    @property
    def nearest_update(self) -> Update | None:
        """The same under rounding to nearest, None under random rounding, which moves other weights at each step."""
        update = self.update
        return update if update is not None and update.kept_error is None else None


class Look(NamedTuple):
    """A number that refuses a case if it exceeds `limit` (a number, or a name in `Budget`) so many `times`.

    It is `read` from the case, or the value of `column` of the frame; None: unknown, or it does not apply. The column
    `subject` names its output or parameter. `training`: inference is not judged by it.
    """

    code: Refusal
    column: str
    limit: str | float
    read: Callable[[Seen], float | None] | None = None
    subject: str = ""
    training: bool = False
    times: int = 1

    def allowed(self, budget: Budget) -> float:
        """Return the largest allowed value; for an agreement the budget holds the smallest."""
        limit = getattr(budget, self.limit) if isinstance(self.limit, str) else self.limit
        return 1.0 - limit if self.limit == "argmax_agreement" else float(self.times * limit)

    def value(self, seen: Seen) -> float | None:
        """Return the number; None: unknown, or it does not apply."""
        return self.read(seen) if self.read else number(seen.row.get(self.column))


def _parameters(seen: Seen) -> float | None:
    """Elements that are not finite after one step or the timed ones; None if some of fp32's are not, either."""
    if seen.baseline is not None and _parameters(seen.baseline):
        return None
    counts = [each.param_nonfinite for each in (seen.found, *seen.rounds) if each is not None]
    return max((count for count in counts if count is not None), default=None)


def _gradients(seen: Seen) -> float | None:
    """Elements that are not finite, if that leaves no error."""
    undefined = seen.found is not None and number(seen.row["grad_rel_l2"]) is None
    return seen.found.gradient.nonfinite if seen.found is not None and undefined else None


def _lost_loss(seen: Seen) -> float | None:
    """1 if the loss is not finite, though the reference's is."""
    found = seen.found
    return 1.0 if found is not None and found.loss_is_lost and found.reference.loss is not None else None


def _lost(seen: Seen) -> float | None:
    """The share of the update that is lost, less two standard errors under random rounding."""
    return None if seen.update is None else 1.0 - (seen.update.kept or 0.0) - 2 * (seen.update.kept_error or 0.0)


OF_GRADIENTS = "gradients"
LOST_TO = {
    "gradient_rel_l2": OF_GRADIENTS,
    "state_rel_l2": "optimizer state",
    "storage_rel_l2": "stored weights",
}
"""By the rounding of what an update is lost, by the error that it makes alone."""


def _lost_to(update: Update) -> str:
    """Return by the rounding of what most of an update is lost; "" where that was not measured."""
    errors = {cause: getattr(update, name) or 0.0 for name, cause in LOST_TO.items()}
    return max(errors, key=lambda cause: errors[cause]) if any(errors.values()) else ""


def _lost_of_tensor(seen: Seen) -> float | None:
    update = seen.nearest_update
    return None if update is None or update.worst_kept is None else 1.0 - update.worst_kept


def _swallowed(seen: Seen) -> float | None:
    return None if seen.nearest_update is None else seen.nearest_update.swallowed_energy


def _without_room(seen: Seen) -> float | None:
    """The lost share of an update `ROOM` times smaller, after some steps."""
    update = seen.nearest_update
    return None if update is None or not update.steps or update.counted_state else below(update.energies, 1 / ROOM)


def _bias(seen: Seen) -> float | None:
    """The error that gradients have in common over batches, relative to the noise of a batch."""
    found = seen.found
    if found is None or found.gradient.bias is None or not found.gradient.noise or found.gradient.bias < LEAST_BIAS:
        return None
    return found.gradient.bias / found.gradient.noise


def _disagreement(seen: Seen) -> float | None:
    """The share of other decisions; over its limit it refuses only what is not chance (`is_chance`)."""
    agreement = number(seen.row["argmax_agreement"])
    return None if agreement is None else 1.0 - agreement


def _flushed(seen: Seen) -> float | None:
    """The share of gradients that became zero, less fp32's."""
    flushed = number(seen.row["grad_flushed_share"])
    unavoidable = number(seen.baseline.row["grad_flushed_share"]) if seen.baseline is not None else None
    return None if flushed is None else flushed - (unavoidable or 0.0)


def _skipped(seen: Seen) -> float | None:
    """Steps that GradScaler skipped once its scale had settled, in the divergence pass and in all rounds."""
    return sum(each.skipped_steps or 0 for each in (seen.found, *seen.rounds) if each is not None)


def _unscaling(seen: Seen) -> float | None:
    """The largest factor that divides the loss for finite gradients, in the divergence pass or a round.

    GradScaler's scale is fp32: below its smallest number it is 0.
    """
    scales = [each.scaler_scale for each in (seen.found, *seen.rounds) if each is not None]
    known = [scale for scale in scales if scale is not None]
    return 1 / max(min(known), 2.0**-149) if known else None


def _of_range(seen: Seen, column: str, dtype: str | None) -> float | None:
    """Return a largest value relative to the largest number of a short low dtype; None for another dtype."""
    value, form = number(seen.row.get(column)), FORMATS.get(dtype or "")
    return None if value is None or form is None else value / form.largest


def _input_range(seen: Seen) -> float | None:
    return _of_range(seen, "input_largest", seen.row.get("input_dtype"))


def _target_range(seen: Seen) -> float | None:
    own = PRECISIONS.get(seen.row["precision"])  # a foreign run may have others
    return _of_range(seen, "target_largest", SHORT_DTYPES[own.rounding] if own else None)


LOOKS = (
    Look(Refusal.INPUT_RANGE, "input_largest", MOST_OF_RANGE, _input_range),
    Look(Refusal.TARGET_RANGE, "target_largest", MOST_OF_RANGE, _target_range, training=True),
    Look(Refusal.OUTPUTS, "output_nonfinite", 0),
    Look(Refusal.PARAMETERS, "param_nonfinite", 0, _parameters, training=True),
    Look(Refusal.SCALE, "scaler_scale", MOST_UNSCALING, _unscaling, training=True),
    Look(Refusal.ERROR, "output_rel_l2", "output_rel_l2", lambda seen: judged_error(seen.row), "output_worst_name"),
    Look(Refusal.SPREAD, "output_over_spread", MOST_OVER_SPREAD, subject="output_spread_name"),
    Look(Refusal.GRADIENTS, "grad_rel_l2", 0, _gradients, training=True),
    Look(Refusal.GRADIENT_ERROR, "grad_rel_l2", "grad_rel_l2", training=True),
    Look(Refusal.UPDATE, "update_kept", 1 - LEAST_KEPT, _lost, training=True),
    Look(
        Refusal.UPDATE_OF_TENSOR,
        "update_kept",
        1 - LEAST_KEPT_OF_A_TENSOR,
        _lost_of_tensor,
        "update_worst_parameter",
        training=True,
    ),
    Look(Refusal.UNMOVED, "update_kept", MOST_SWALLOWED, _swallowed, training=True),
    Look(Refusal.NO_ROOM, "update_kept", MOST_SWALLOWED, _without_room, training=True),
    Look(
        Refusal.GRADIENT_OF_TENSOR,
        "grad_tensor_rel_l2",
        "grad_rel_l2",
        subject="grad_tensor_parameter",
        training=True,
        times=OF_A_TENSOR,
    ),
    Look(Refusal.BIAS, "grad_bias_ratio", MOST_BIAS, _bias, training=True),
    Look(Refusal.SAMPLES, "sample_p99_rel_l2", "sample_p99_rel_l2"),
    Look(Refusal.WORST_SAMPLE, "sample_worst_rel_l2", "sample_worst_rel_l2"),
    Look(Refusal.PROBABILITIES, "kl_mean", "kl_mean"),
    Look(Refusal.WORST_PROBABILITIES, "kl_p99", "kl_p99"),
    Look(Refusal.LOSS_FINITE, "loss_rel_error", 0, _lost_loss, training=True),
    Look(Refusal.LOSS, "loss_rel_error", "loss_rel_error"),
    Look(Refusal.DECISIONS, "argmax_agreement", "argmax_agreement", _disagreement),
    Look(Refusal.FLUSHED, "grad_flushed_share", "grad_flushed_share", _flushed, training=True),
    Look(Refusal.STATISTICS, "statistics_stall", MOST_STALL, training=True),
    Look(Refusal.SKIPPED, "skipped_steps", 0, _skipped, training=True),
)
"""All that refuses a case: the first that is over its limit. Add here what else one step can see."""

FINITE = (
    Refusal.INPUT_RANGE, Refusal.TARGET_RANGE, Refusal.OUTPUTS, Refusal.PARAMETERS, Refusal.SCALE, Refusal.GRADIENTS,
    Refusal.STATISTICS,
)  # fmt: skip
"""Looks that hold even if errors are those of chance."""


def judge(seen: Seen, budget: Budget, fault: Statement | None = None, trained: "Trained | None" = None) -> Verdict:
    """Return the verdict on a case but for its speed and memory.

    `fault` is a flaw of its network whatever the precision. Whole trainings, `trained`, override one step.
    """
    row, found = seen.row, seen.found
    training = row["phase"] == "training"
    evidence = Evidence.INPUTS
    if training:
        update = seen.update  # after no steps it is defined where it began from an optimizer's state
        late = update is not None and (update.steps or not update.undefined)
        evidence = Evidence.STEPS if late else Evidence.ONE_STEP

    base = Verdict(
        **{name: row[name] for name in ("case_id", "workload", "phase", "device", "path", "precision")},
        status=Status.UNDECIDED,
        evidence=evidence,
    )
    if row["outcome"] != "ok":
        return replace(base, code=Undecided.NOT_MEASURED, evidence=Evidence.NONE)
    if row["precision"] in TODAYS:
        return replace(base, status=Status.BASELINE)
    if trained is not None:
        status = Status.OK if trained.trains else Status.REFUSED
        base = replace(base, status=status, code=Refusal.TRAINS_WORSE, evidence=Evidence.TRAINED)
        return replace(base, number=trained.worse, subject=trained.study)
    if fault is not None:
        return replace(base, code=fault.code)
    if training and (found is None or found.recipe is None):
        return replace(base, code=Undecided.NO_REFERENCE if found is None else Undecided.NO_OPTIMIZER)
    within = []
    chance = found is not None and found.chance_rel_l2 is not None
    for look in LOOKS:
        value = look.value(seen) if training or not look.training else None
        if value is None or (chance and look.code not in FINITE):
            continue
        limit = look.allowed(budget)
        subject = (look.subject and row.get(look.subject)) or ""
        if look.code is Refusal.UPDATE and seen.update is not None:
            subject = _lost_to(seen.update)
        judged = replace(base, status=Status.OK, code=look.code, number=value, limit=limit, subject=subject)
        if value <= limit:
            within.append((value / limit if limit else 0.0, look.code is Refusal.ERROR, judged))
        elif look.code is not Refusal.DECISIONS or not is_chance(found, budget.argmax_agreement):
            return replace(judged, status=Status.REFUSED)
    if (missing := _missing(seen)) is not None:
        return replace(base, code=missing)
    return max(within, key=lambda each: each[:2])[2]


def _missing(seen: Seen) -> Undecided | None:
    """Return the measurement without which a case cannot be ok; None if none is missing."""
    row, found = seen.row, seen.found
    if found is not None and found.chance_rel_l2 is not None:
        return Undecided.BY_CHANCE
    zero = found is not None and found.reference.output_norm == 0
    spread = found is not None and all(one.over_spread is not None for one in found.output.tensors or [])
    if judged_error(row) is None and not (zero and spread and number(row.get("output_over_spread")) is not None):
        if found is None or not found.reference.dtype:
            return Undecided.NO_REFERENCE
        finite = (found.output.elements or 0) > (found.output.reference_nonfinite or 0)
        return Undecided.ZERO_REFERENCE if finite and zero else Undecided.NO_ERROR
    if row["phase"] != "training":
        return None
    if number(row["grad_rel_l2"]) is None:
        return Undecided.NO_GRADIENT_ERROR
    own = PRECISIONS.get(row["precision"])
    halved = own is not None and own.storage != "float32" and not own.master
    return Undecided.NO_UPDATE if halved and seen.update is None else None


def is_chance(found: Divergence | None, minimum: float) -> bool:
    """Return whether chance can explain that too few decisions agree; never if their number is unknown.

    The one-sided exact binomial test: P(X >= disagreements), X ~ Binomial(decisions, 1 - minimum), at 5%; the same
    number as `scipy.stats.binomtest(..., alternative="greater")`, without SciPy's import. One flip in eight decisions
    proves nothing (p = 0.077).
    """
    if found is None or found.output.decided is None:
        return False
    agreeing, decisions = found.output.decided
    disagreements, allowed = decisions - agreeing, 1.0 - minimum
    if disagreements <= decisions * allowed:  # no more than are expected, which chance exceeds every other time
        return True
    from ampbench.core import stats  # NumPy: not for `--help`

    return allowed > 0 and 1.0 - stats.chance_of_at_most(disagreements - 1, decisions, allowed) > DISAGREEMENT_ALPHA


def below(bins: Sequence[float] | None, factor: float) -> float | None:
    """Return the share of `bins` below half a unit in the last place, times `factor`.

    Within a bin, changes are spread evenly over the logarithm.
    """
    if not bins or not sum(bins):
        return None
    edge = -math.log2(factor) - LOWEST_BIN
    whole = max(0, min(len(bins), math.floor(edge)))
    lost = float(sum(bins[:whole]))
    if edge > 0 and whole < len(bins):
        lost += (edge - whole) * bins[whole]
    return lost / sum(bins)

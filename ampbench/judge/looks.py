"""Judge whether the results of a case are right: only `LOOKS` can refuse a case.

Time and memory play no part. A missing measurement makes a case undecided, never right.
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
"""The significance level at which disagreeing decisions refuse a case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The evidence on a case: its `row`, divergence and rounds; `baseline` is fp32 in the same table."""

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
    """A number that refuses a case if it exceeds `times` the `limit` (a number, or a name in `Budget`).

    `read` returns it from the case, else it is the frame's `column`; None: unknown, or it does not apply. The column
    `subject` names its output or parameter. `training`: it does not judge inference.
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

    def value(self, case: Seen) -> float | None:
        """Return the number; None: unknown, or it does not apply."""
        return self.read(case) if self.read else number(case.row.get(self.column))


def _parameters(case: Seen) -> float | None:
    """Elements that are not finite after one step or the timed steps; None if fp32 has such elements too."""
    if case.baseline is not None and _parameters(case.baseline):
        return None
    counts = [measured.param_nonfinite for measured in (case.found, *case.rounds) if measured is not None]
    return max((count for count in counts if count is not None), default=None)


def _gradients(case: Seen) -> float | None:
    """Elements that are not finite, if that leaves no error."""
    undefined = case.found is not None and number(case.row["grad_rel_l2"]) is None
    return case.found.gradient.nonfinite if case.found is not None and undefined else None


def _lost_loss(case: Seen) -> float | None:
    """1 if the loss is not finite but the reference's is."""
    divergence = case.found
    return 1.0 if divergence is not None and divergence.loss_is_lost and divergence.reference.loss is not None else None


def _lost(case: Seen) -> float | None:
    """The lost share of the update, less two standard errors under random rounding."""
    return None if case.update is None else 1.0 - (case.update.kept or 0.0) - 2 * (case.update.kept_error or 0.0)


OF_GRADIENTS = "gradients"
LOST_TO = {
    "gradient_rel_l2": OF_GRADIENTS,
    "state_rel_l2": "optimizer state",
    "storage_rel_l2": "stored weights",
}
"""The causes of a lost update by the fields of the error that each rounding makes alone."""


def _lost_to(update: Update) -> str:
    """Return the cause of the largest loss of an update; "" if it was not measured."""
    errors = {cause: getattr(update, name) or 0.0 for name, cause in LOST_TO.items()}
    return max(errors, key=lambda cause: errors[cause]) if any(errors.values()) else ""


def _lost_of_tensor(case: Seen) -> float | None:
    update = case.nearest_update
    return None if update is None or update.worst_kept is None else 1.0 - update.worst_kept


def _swallowed(case: Seen) -> float | None:
    return None if case.nearest_update is None else case.nearest_update.swallowed_energy


def _without_room(case: Seen) -> float | None:
    """The lost share of an update `ROOM` times smaller; None after no steps."""
    update = case.nearest_update
    return None if update is None or not update.steps or update.counted_state else below(update.energies, 1 / ROOM)


def _bias(case: Seen) -> float | None:
    """The common error of gradients over batches, relative to the noise of a batch."""
    divergence = case.found
    if (
        divergence is None
        or divergence.gradient.bias is None
        or not divergence.gradient.noise
        or divergence.gradient.bias < LEAST_BIAS
    ):
        return None
    return divergence.gradient.bias / divergence.gradient.noise


def _disagreement(case: Seen) -> float | None:
    """The share of changed decisions; over its limit it refuses a case unless chance explains it (`is_chance`)."""
    agreement = number(case.row["argmax_agreement"])
    return None if agreement is None else 1.0 - agreement


def _flushed(case: Seen) -> float | None:
    """The share of gradients that became zero, less fp32's."""
    flushed = number(case.row["grad_flushed_share"])
    unavoidable = number(case.baseline.row["grad_flushed_share"]) if case.baseline is not None else None
    return None if flushed is None else flushed - (unavoidable or 0.0)


def _skipped(case: Seen) -> float | None:
    """Steps that GradScaler skipped once its scale had settled, in the divergence pass and in all rounds."""
    return sum(measured.skipped_steps or 0 for measured in (case.found, *case.rounds) if measured is not None)


def _unscaling(case: Seen) -> float | None:
    """The largest divisor of the loss for finite gradients, in the divergence pass or a round.

    GradScaler's scale is fp32: below the smallest fp32 number it is 0.
    """
    scales = [measured.scaler_scale for measured in (case.found, *case.rounds) if measured is not None]
    known = [scale for scale in scales if scale is not None]
    return 1 / max(min(known), 2.0**-149) if known else None


def _of_range(case: Seen, column: str, dtype: str | None) -> float | None:
    """Return a largest value relative to the largest number of a short low dtype; None for another dtype."""
    value, form = number(case.row.get(column)), FORMATS.get(dtype or "")
    return None if value is None or form is None else value / form.largest


def _input_range(case: Seen) -> float | None:
    return _of_range(case, "input_largest", case.row.get("input_dtype"))


def _target_range(case: Seen) -> float | None:
    precision = PRECISIONS.get(case.row["precision"])  # a foreign run may have others
    return _of_range(case, "target_largest", SHORT_DTYPES[precision.rounding] if precision else None)


LOOKS = (
    Look(Refusal.INPUT_RANGE, "input_largest", MOST_OF_RANGE, _input_range),
    Look(Refusal.TARGET_RANGE, "target_largest", MOST_OF_RANGE, _target_range, training=True),
    Look(Refusal.OUTPUTS, "output_nonfinite", 0),
    Look(Refusal.PARAMETERS, "param_nonfinite", 0, _parameters, training=True),
    Look(Refusal.SCALE, "scaler_scale", MOST_UNSCALING, _unscaling, training=True),
    Look(Refusal.ERROR, "output_rel_l2", "output_rel_l2", lambda case: judged_error(case.row), "output_worst_name"),
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
"""Everything that refuses a case: the first look over its limit does. Add further checks of one step here."""

FINITE = (
    Refusal.INPUT_RANGE, Refusal.TARGET_RANGE, Refusal.OUTPUTS, Refusal.PARAMETERS, Refusal.SCALE, Refusal.GRADIENTS,
    Refusal.STATISTICS,
)  # fmt: skip
"""Looks that hold even if errors are due to chance."""


def judge(case: Seen, budget: Budget, fault: Statement | None = None, trained: "Trained | None" = None) -> Verdict:
    """Return the verdict on a case without its speed and memory.

    `fault` is a flaw of its network in every precision. Whole trainings, `trained`, override one step.
    """
    row, divergence = case.row, case.found
    training = row["phase"] == "training"
    evidence = Evidence.INPUTS
    if training:
        update = case.update  # after no steps it is defined only if it began from an optimizer's state
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
    if training and (divergence is None or divergence.recipe is None):
        return replace(base, code=Undecided.NO_REFERENCE if divergence is None else Undecided.NO_OPTIMIZER)
    within = []
    chance = divergence is not None and divergence.chance_rel_l2 is not None
    for look in LOOKS:
        value = look.value(case) if training or not look.training else None
        if value is None or (chance and look.code not in FINITE):
            continue
        limit = look.allowed(budget)
        subject = (look.subject and row.get(look.subject)) or ""
        if look.code is Refusal.UPDATE and case.update is not None:
            subject = _lost_to(case.update)
        judged = replace(base, status=Status.OK, code=look.code, number=value, limit=limit, subject=subject)
        if value <= limit:
            within.append((value / limit if limit else 0.0, look.code is Refusal.ERROR, judged))
        elif look.code is not Refusal.DECISIONS or not is_chance(divergence, budget.argmax_agreement):
            return replace(judged, status=Status.REFUSED)
    if (missing := _missing(case)) is not None:
        return replace(base, code=missing)
    return max(within, key=lambda entry: entry[:2])[2]


def _missing(case: Seen) -> Undecided | None:
    """Return the missing measurement that keeps a case undecided; None if there is none."""
    row, divergence = case.row, case.found
    if divergence is not None and divergence.chance_rel_l2 is not None:
        return Undecided.BY_CHANCE
    zero = divergence is not None and divergence.reference.output_norm == 0
    spread = divergence is not None and all(
        tensor.over_spread is not None for tensor in divergence.output.tensors or []
    )
    if judged_error(row) is None and not (zero and spread and number(row.get("output_over_spread")) is not None):
        if divergence is None or not divergence.reference.dtype:
            return Undecided.NO_REFERENCE
        finite = (divergence.output.elements or 0) > (divergence.output.reference_nonfinite or 0)
        return Undecided.ZERO_REFERENCE if finite and zero else Undecided.NO_ERROR
    if row["phase"] != "training":
        return None
    if number(row["grad_rel_l2"]) is None:
        return Undecided.NO_GRADIENT_ERROR
    precision = PRECISIONS.get(row["precision"])
    halved = precision is not None and precision.storage != "float32" and not precision.master
    return Undecided.NO_UPDATE if halved and case.update is None else None


def is_chance(divergence: Divergence | None, minimum: float) -> bool:
    """Return whether chance can explain too little agreement; False if the number of decisions is unknown.

    The one-sided exact binomial test: P(X >= disagreements), X ~ Binomial(decisions, 1 - minimum), at 5%; it equals
    `scipy.stats.binomtest(..., alternative="greater")`, without SciPy's import. One flip in eight decisions proves
    nothing (p = 0.077).
    """
    if divergence is None or divergence.output.decided is None:
        return False
    agreeing, decisions = divergence.output.decided
    disagreements, allowed = decisions - agreeing, 1.0 - minimum
    if disagreements <= decisions * allowed:  # at most the expected number, which chance exceeds half of the time
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

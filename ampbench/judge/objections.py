"""What speaks against a precision: the first thing that keeps each measured one out of a budget of error.

Of a training that is also what an optimizer's step changes of the stored weights, beside what it should.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ampbench.base.budget import LEAST_KEPT, Budget
from ampbench.base.precisions import BASELINE, PRECISIONS, Precision
from ampbench.base.statement import Flaw, Refusal, Remedy, Severity, Statement, state
from ampbench.base.units import format_error, format_share
from ampbench.judge.rows import Row, grouped, judged_error, number
from ampbench.records.labels import AGAINST_FP32
from ampbench.records.measured import LOWEST_BIN, Divergence, Round, Update

if TYPE_CHECKING:
    from ampbench.store import StoredRun

LEAST_KEPT_OF_A_TENSOR = 0.9
"""What `LEAST_KEPT` is of all, of one tensor that carries 1% of the update's square or more."""
MOST_SWALLOWED = 0.02
"""The most of an update's square that may be in weights that never move, whatever else rounds up: the same 2%."""
ROOM = 32
"""So many times smaller updates must still move the weights that carry them: those of the trainings in docs/advice.md
were up to thirty times smaller when these settled than when they began. Chosen after that was seen, then asked of other
trainings ("Held out" there); a convention, too.
"""
MOST_BIAS = 0.1
"""The most that errors of gradients may have in common over batches, of the noise of a batch: a convention."""
LEAST_BIAS = 0.02
"""A bias below this share of the gradient changes an update by less than it may lose."""
OF_A_TENSOR = 5
"""How many times the error of all gradients that of one tensor may be which has 1% of their norm or more: as with what
is kept, 10% against 2%."""

MASTER_BYTES = 4
"""What an fp32 copy of a weight costs."""

DISAGREEMENT_ALPHA = 0.05
"""One-sided level at which disagreeing decisions must be incompatible with the agreement asked for."""

HIDDEN = {
    "sample_p99_rel_l2": Refusal.SAMPLES,
    "sample_worst_rel_l2": Refusal.WORST_SAMPLE,
    "kl_mean": Refusal.PROBABILITIES,
    "kl_p99": Refusal.WORST_PROBABILITIES,
    "loss_rel_error": Refusal.LOSS,
}
"""What else a budget bounds where it is defined."""

BRIEFLY = {
    "output_nonfinite": "not finite",
    "chance_rel_l2": "by chance",
    "param_nonfinite": "weights not finite",
    "output_rel_l2": "error",
    "grad_rel_l2": "gradient error",
    "update_kept": "updates lost",
    "grad_tensor_rel_l2": "a gradient's error",
    "grad_bias_ratio": "biased gradients",
    "sample_p99_rel_l2": "samples' errors",
    "sample_worst_rel_l2": "a sample's error",
    "kl_mean": "probabilities",
    "kl_p99": "a probability",
    "loss_rel_error": "loss",
    "argmax_agreement": "decisions",
    "grad_flushed_share": "gradients flushed",
    "skipped_steps": "steps skipped",
    "outcome": "does not train",
}
"""What is objected to, by the column of an `Objection`, in the two words that a table of many networks has room for."""


@dataclass(frozen=True, slots=True)
class Objection:
    """What keeps a precision from being advised: the column, what is wrong with its value, what to do instead.

    `remedy` is the precision of the table that does so, "" where none was measured.
    """

    column: str
    reason: Statement
    instead: Statement | None = None
    remedy: str = ""


def object_to(column: str, code: Refusal | Flaw, /, **facts: float | str | None) -> Objection:
    """Return the objection to a column for a reason, with its facts but for those that are None."""
    return Objection(column, state(code, **facts))


def run_objections(stored: "StoredRun", rows: Iterable[Row], budget: Budget) -> dict[str, Objection | None]:
    """Return by case id what keeps each measured row out of the budget, None where nothing does; whatever its time."""
    rounds, found = own_rounds(stored), dict[str, Objection | None]()
    for members in grouped(rows).values():
        found |= objections_of(members, stored.divergence, budget, rounds)
    return found


def own_rounds(stored: "StoredRun") -> dict[str, list[Round]]:
    """Return the rounds of each case of a run without the control's."""
    rounds: dict[str, list[Round]] = {}
    for each in stored.rounds:
        if not each.control:
            rounds.setdefault(each.case_id, []).append(each)
    return rounds


def objections_of(
    rows: Sequence[Row],
    divergences: Mapping[str, Divergence],
    budget: Budget,
    rounds: Mapping[str, Sequence[Round]],
) -> dict[str, Objection | None]:
    """Return by case id the first thing that keeps a measured row of a group, but fp32's, out of the budget."""
    baseline = next((row for row in rows if row["precision"] == BASELINE), None)
    unavoidable = 0.0 if baseline is None else number(baseline["grad_flushed_share"]) or 0.0
    explodes = baseline is not None and _nonfinite_parameters(
        divergences.get(baseline["case_id"]), rounds.get(baseline["case_id"], ())
    )
    found = {
        row["case_id"]: _objection(
            row, divergences.get(row["case_id"]), budget, unavoidable, rounds.get(row["case_id"], ()), bool(explodes)
        )
        for row in rows
        if row["outcome"] == "ok" and row["precision"] != BASELINE
    }
    passing = [row for row in rows if row["case_id"] in found and found[row["case_id"]] is None]
    for row in rows:
        case_id = row["case_id"]
        if (one := found.get(case_id)) is None:
            continue
        loses = one.column in ("update_kept", "param_nonfinite")
        instead = _instead(row, passing, divergences.get(case_id)) if loses else one.instead
        remedy = str(instead.facts.get("precision", "")) if instead else ""
        found[case_id] = Objection(one.column, replace(one.reason, subject=case_id), instead, remedy)
    return found


def _instead(row: Row, passing: Sequence[Row], divergence: Divergence | None) -> Statement | None:
    """Return what keeps what a row with weights in half loses, with its price; None where they are not in half."""
    own = _stored_low(row)
    if own is None:
        return None
    for other in passing:
        there = PRECISIONS.get(other["precision"])
        if there is None or not there.master or there.storage != own.storage:
            continue
        bytes_each = [number(one.get("peak_memory_bytes")) for one in (other, row)]
        elements = divergence.grad_elements if divergence is not None else None
        more = 0
        if elements and bytes_each[0] and bytes_each[1]:
            more = round((bytes_each[0] - bytes_each[1]) / elements)
        price: dict[str, float | str] = {"bytes": more, "than": row["precision"]} if more > 0 else {}
        speed = other["speedup_vs_fp32"]
        return state(Remedy.OTHER_PRECISION, "", Severity.ADVICE, precision=there.name, speed=speed, **price)
    return state(Remedy.MASTER_WEIGHTS, "", Severity.ADVICE, bytes=MASTER_BYTES)


def _stored_low(row: Row) -> Precision | None:
    """Return the precision of a row that stores its weights in another dtype than fp32 alone; None for another."""
    own = PRECISIONS.get(row["precision"])
    return None if own is None or own.storage == "float32" or own.master else own


def _objection(
    row: Row,
    divergence: Divergence | None,
    budget: Budget,
    unavoidable: float,
    rounds: Sequence[Round],
    explodes: bool,
) -> Objection | None:
    """Return the first thing that keeps a measured row out of the budget, None where nothing does.

    `unavoidable` is the share of gradients that fp32 flushes, too; `explodes`: its parameters are not finite, either.
    """
    training = row["phase"] == "training"
    nonfinite = number(row["output_nonfinite"])
    if nonfinite:
        if divergence is not None and divergence.output_undefined:
            return object_to("output_nonfinite", Flaw.UNDEFINED, why=divergence.output_undefined)
        return object_to("output_nonfinite", Flaw.ELEMENTS, count=int(nonfinite), what="output")
    if divergence is not None and divergence.chance_rel_l2 is not None:
        return object_to("chance_rel_l2", Refusal.BY_CHANCE, apart=divergence.chance_rel_l2)
    timed = max((each.param_nonfinite or 0 for each in rounds), default=0)
    if training and not explodes and (broken := parameters_objection(divergence, timed)):
        return broken
    errors = {"output_rel_l2": budget.output_rel_l2} | ({"grad_rel_l2": budget.grad_rel_l2} if training else {})
    for column, limit in errors.items():
        value = judged_error(row) if column == "output_rel_l2" else number(row[column])
        if value is None:
            return _undefined(column, divergence)
        if value > limit:
            name = row.get("output_worst_name") if column == "output_rel_l2" else None
            facts = {"output": name or None, "reference": _other_reference(row)}
            return object_to(column, Refusal.ERROR, column=column, value=value, limit=limit, **facts)
    if training and divergence is not None and (found := _of_updates(divergence, budget)):
        return found
    for column, code in HIDDEN.items():
        value, limit = number(row.get(column)), getattr(budget, column)
        if value is not None and value > limit:
            return object_to(column, code, value=value, limit=limit)
    agreement, flushed = number(row["argmax_agreement"]), number(row["grad_flushed_share"])
    if agreement is not None and _agrees_too_little(agreement, divergence, budget.argmax_agreement):
        return object_to("argmax_agreement", Refusal.DECISIONS, value=agreement, limit=budget.argmax_agreement)
    if training and flushed is not None and flushed - unavoidable > budget.grad_flushed_share:
        limits = {"limit": budget.grad_flushed_share, "unavoidable": unavoidable or None}
        return object_to("grad_flushed_share", Refusal.FLUSHED, value=flushed, **limits)
    if training and (skipped := _skipped_steps(divergence, rounds)):
        return object_to("skipped_steps", Refusal.SKIPPED, steps=skipped)
    return None


def in_output(row: Row) -> str:
    """Return " in scores" where that is the one of several outputs that errs most, else ""."""
    name = row.get("output_worst_name")
    return f" in {name}" if name else ""


def _of_updates(found: Divergence, budget: Budget) -> Objection | None:
    """Return what keeps a training out of the budget though its errors as a whole are within it."""
    if against := update_objection(found.update):
        return against
    most, error = OF_A_TENSOR * budget.grad_rel_l2, found.grad_tensor_rel_l2
    if error is not None and error > most:
        refuse = partial(object_to, "grad_tensor_rel_l2", Refusal.GRADIENT_OF_TENSOR)
        return refuse(parameter=found.grad_tensor_parameter, value=error, limit=most, times=OF_A_TENSOR)
    return bias_objection(found)


def _nonfinite_parameters(divergence: Divergence | None, rounds: Sequence[Round]) -> int:
    """Return how many elements of parameters are not finite, after one step or after the timed ones, at most."""
    passed = divergence.param_nonfinite if divergence is not None else 0
    return max([passed or 0, *(each.param_nonfinite or 0 for each in rounds)])


def _other_reference(row: Row) -> str | None:
    """Return what an error is against where that is not fp64."""
    return BASELINE if row["reference_dtype"] == BASELINE else None


def error_said(row: Row, value: float) -> str:
    """Return an error, with what it is against where that is not fp64."""
    against = f" ({AGAINST_FP32})" if _other_reference(row) else ""
    return f"{format_error(value)}{against}"


def _undefined(column: str, divergence: Divergence | None) -> Objection:
    """Return that an error is undefined; a note may speak of something else, so the numbers are asked first."""
    if divergence is None:
        return object_to(column, Refusal.UNKNOWN, column=column)
    if column == "grad_rel_l2" and divergence.grad_nonfinite:
        return object_to(column, Refusal.GRADIENTS, column=column, count=divergence.grad_nonfinite, what="gradient")
    why = divergence.output_undefined if column == "output_rel_l2" else divergence.grad_undefined
    found = object_to(column, Refusal.NO_VALUE, column=column, why=why or next(iter(divergence.notes), None))
    finite = (divergence.output_elements or 0) > (divergence.output_reference_nonfinite or 0)
    if column == "output_rel_l2" and finite and divergence.output_reference_norm == 0:
        # the reference is exactly zero, as it is where the last layer of a network begins with zeros
        return replace(found, instead=state(Remedy.TRAIN_FIRST, "", Severity.ADVICE))
    return found


def _agrees_too_little(agreement: float, divergence: Divergence | None, minimum: float) -> bool:
    """Judge the agreement beyond chance where the number of decisions is known, else as it stands."""
    if divergence is None or divergence.decided is None:
        return agreement < minimum
    return agreement_fails(*divergence.decided, minimum)


def agreement_fails(agreeing: int, decisions: int, minimum: float) -> bool:
    """Return whether the disagreements are more than chance allows if the true agreement were `minimum`.

    The one-sided exact binomial test: P(X >= disagreements), X ~ Binomial(decisions, 1 - minimum), at 5%; the same
    number as `scipy.stats.binomtest(..., alternative="greater")`, without SciPy, which takes longer to import than a
    run to show. One flip in eight decisions proves nothing (p = 0.077).
    """
    disagreements, allowed = decisions - agreeing, 1.0 - minimum
    if disagreements <= decisions * allowed:  # no more than are expected, which chance exceeds every other time
        return False
    from ampbench.base import stats  # NumPy: not for `--help`

    return not allowed or 1.0 - stats.chance_of_at_most(disagreements - 1, decisions, allowed) <= DISAGREEMENT_ALPHA


def _skipped_steps(divergence: Divergence | None, rounds: Sequence[Round]) -> int:
    """Return how many steps GradScaler skipped once its scale had settled, in the divergence pass and in all rounds."""
    passed = divergence.skipped_steps if divergence is not None else 0
    return (passed or 0) + sum(each.skipped_steps or 0 for each in rounds)


def parameters_objection(found: Divergence | None, timed: int) -> Objection | None:
    """Return the objection to parameters that are not finite, after one step or after the `timed` ones."""
    if found is not None and found.param_nonfinite:
        return object_to("param_nonfinite", Refusal.PARAMETERS, count=found.param_nonfinite, what="parameter")
    return object_to("param_nonfinite", Refusal.PARAMETERS_LATER, count=timed, what="parameter") if timed else None


def update_objection(update: Update | None) -> Objection | None:
    """Return the objection to what a step changes; None where there is none, and where nothing is known."""
    if update is None or update.kept is None:
        return None
    against = partial(object_to, "update_kept")
    still = (update.swallowed or 0) / update.moving if update.moving else None
    if update.kept + 2 * (update.kept_error or 0.0) < LEAST_KEPT:
        return against(Refusal.UPDATE, kept=update.kept, still=still or None)
    if update.kept_error is not None:  # rounding is stochastic: what does not move now does so in another step
        return None
    if update.worst_kept is not None and update.worst_kept < LEAST_KEPT_OF_A_TENSOR:
        return against(Refusal.UPDATE_OF_TENSOR, parameter=update.worst_parameter, kept=update.worst_kept)
    if update.swallowed_energy is not None and update.swallowed_energy > MOST_SWALLOWED:
        return against(Refusal.UNMOVED, still=still, energy=update.swallowed_energy)
    later = _below(update.energies, 1 / ROOM)
    if update.steps and not update.counted_state and later is not None and later > MOST_SWALLOWED:
        return against(Refusal.NO_ROOM, room=ROOM, lost=later)
    return None


def bias_objection(found: Divergence) -> Objection | None:
    """Return the objection to what errors of gradients have in common over batches; None where there is none."""
    if found.grad_bias is None or not found.grad_noise or found.grad_bias < LEAST_BIAS:
        return None
    ratio = found.grad_bias / found.grad_noise
    return object_to("grad_bias_ratio", Refusal.BIAS, ratio=ratio) if ratio > MOST_BIAS else None


def swallowed_at(update: Update, factor: float) -> float | None:
    """Return the share of weights that would not move at `factor` times the learning rate; None where it is not known.

    An update is taken to be proportional to the rate, and half a unit in the last place to decide. Within a bin of
    `Update.sizes` changes are spread evenly over the logarithm.
    """
    return _below(update.sizes, factor)


def _below(bins: Sequence[float] | None, factor: float) -> float | None:
    """Return which share of what `bins` hold would be below half a unit in the last place, times `factor`."""
    if not bins or not sum(bins):
        return None
    edge = -math.log2(factor) - LOWEST_BIN
    whole = max(0, min(len(bins), math.floor(edge)))
    lost = float(sum(bins[:whole]))
    if edge > 0 and whole < len(bins):
        lost += (edge - whole) * bins[whole]
    return lost / sum(bins)


def blame(update: Update) -> Mapping[str, float]:
    """Return which share of an update's squared error is the gradients', the state's, the storage's; {}: not known.

    Each is the error with all else in fp64. They come from roundings that know nothing of each other, so that their
    squares add up.
    """
    errors = {
        "storage": update.storage_rel_l2,
        "gradients": update.gradient_rel_l2,
        "state": update.state_rel_l2,
    }
    squares = {what: error**2 for what, error in errors.items() if error is not None}
    total = sum(squares.values())
    return {what: square / total for what, square in squares.items()} if total else {}


def blamed(update: Update) -> str:
    """Say which share of an update's error is whose, the largest first; "" where that is not known."""
    shares = sorted(blame(update).items(), key=lambda one: -one[1])
    return ", ".join(f"{what} {format_share(share)}" for what, share in shares if share >= 0.001)


def rates_said(update: Update) -> str:
    """Say how many weights do not move at a tenth of the learning rate and at ten times it; "": not known."""
    shares = [swallowed_at(update, factor) for factor in (0.1, 10.0)]
    if None in shares:
        return ""
    low, high = map(format_share, shares)
    if len(update.rates) == 1:
        return f"{low} at a learning rate of {update.rates[0] / 10:g}, {high} at {update.rates[0] * 10:g}"
    return f"{low} at a tenth of the learning rates, {high} at ten times these"

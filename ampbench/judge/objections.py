"""What speaks against a precision: what keeps each measured one out of a budget of error, the first thing in sentences.

Of a training that is also what an optimizer's step changes of the stored weights, beside what it should.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ampbench.base.precisions import BASELINE, PRECISIONS, Precision
from ampbench.base.units import counted, format_error, format_kept, format_share, times
from ampbench.judge.budget import Budget
from ampbench.judge.rows import Row, grouped, judged_error, number
from ampbench.records.labels import AGAINST_FP32
from ampbench.records.measured import CHANCE, LOWEST_BIN, ZERO_REFERENCE, Divergence, Round, Update

if TYPE_CHECKING:
    from ampbench.store import StoredRun

LEAST_KEPT = 0.98
"""The least share of an update that must arrive: a convention. What is lost is lost in every step, as by a learning
rate that is so much smaller in these directions; 2% is what comparisons call unchanged."""
LEAST_KEPT_OF_A_TENSOR = 0.9
"""The same of one tensor that carries 1% of the update's square or more."""
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

NOT_TRAINED = "train a few steps first, or give weights that are trained"
"""What helps where the output of a network is exactly zero, as it is where its last layer begins with zeros."""

MASTER_BYTES = 4
"""What an fp32 copy of a weight costs."""

DISAGREEMENT_ALPHA = 0.05
"""One-sided level at which disagreeing decisions must be incompatible with the agreement asked for."""

ERRORS = {"output_rel_l2": "error", "grad_rel_l2": "gradient error"}
"""What the errors that a budget bounds are called in a sentence."""

HIDDEN = {
    "sample_p99_rel_l2": "the errors of its samples reach {} at their 99% quantile",
    "sample_worst_rel_l2": "its worst sample errs by {}",
    "kl_mean": "its probabilities lie {} nats from fp64's",
    "kl_p99": "its probabilities lie {} nats from fp64's at the 99% quantile",
    "loss_rel_error": "its loss is off by {}",
}
"""What else a budget bounds where it is defined, and what is said of it."""

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
    reason: str
    instead: str = ""
    remedy: str = ""


def run_objections(stored: "StoredRun", rows: Iterable[Row], budget: Budget) -> dict[str, str]:
    """Return by case id what keeps each measured row out of the budget, "" where nothing does; whatever its time."""
    rounds, found = own_rounds(stored), dict[str, str]()
    for members in grouped(rows).values():
        for case_id, objection in objections_of(members, stored.divergence, budget, rounds).items():
            found[case_id] = objection.reason if objection is not None else ""
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
        one = found.get(row["case_id"])
        if one is not None and one.column in ("update_kept", "param_nonfinite"):
            remedy, instead = _instead(row, passing, divergences.get(row["case_id"]))
            found[row["case_id"]] = replace(one, instead=instead, remedy=remedy)
    return found


def _instead(row: Row, passing: Sequence[Row], divergence: Divergence | None) -> tuple[str, str]:
    """Return which precision keeps what a row with weights in half loses, and a sentence with its price.

    The precision is "" where none of the table does, the sentence where weights are not stored in half.
    """
    own = _stored_low(row)
    if own is None:
        return "", ""
    for other in passing:
        there = PRECISIONS.get(other["precision"])
        if there is None or not there.master or there.storage != own.storage:
            continue
        bytes_each = [number(one.get("peak_memory_bytes")) for one in (other, row)]
        elements = divergence.grad_elements if divergence is not None else None
        price = ""
        if elements and bytes_each[0] and bytes_each[1]:
            more = round((bytes_each[0] - bytes_each[1]) / elements)
            price = f", {counted(more, 'byte', 'bytes')} a parameter more than {row['precision']}" if more > 0 else ""
        return there.name, f"{there.name} keeps the updates: {times(other['speedup_vs_fp32'])} the speed of fp32{price}"
    return "", f"fp32 master weights keep them, at {MASTER_BYTES} bytes a parameter"


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
        broken = f"{counted(int(nonfinite), 'output element is', 'output elements are')} not finite"
        return Objection("output_nonfinite", (divergence and divergence.output_undefined) or broken)
    if divergence is not None and divergence.chance_rel_l2 is not None:
        return Objection("chance_rel_l2", CHANCE.format(divergence.chance_rel_l2))
    timed = max((each.param_nonfinite or 0 for each in rounds), default=0)
    if training and not explodes and (said := parameters_objection(divergence, timed)):
        return Objection("param_nonfinite", said)
    errors = {"output_rel_l2": budget.output_rel_l2} | ({"grad_rel_l2": budget.grad_rel_l2} if training else {})
    for column, limit in errors.items():
        value = judged_error(row) if column == "output_rel_l2" else number(row[column])
        if value is None:
            why = _undefined(column, divergence)
            return Objection(column, why, NOT_TRAINED if why.endswith(ZERO_REFERENCE.format("output")) else "")
        if value > limit:
            where = in_output(row) if column == "output_rel_l2" else ""
            return Objection(column, f"its {ERRORS[column]}{where} is {error_said(row, value)}, more than {limit:g}")
    if training and divergence is not None and (found := _of_updates(divergence, budget)):
        return found
    for column, said in HIDDEN.items():
        value, limit = number(row.get(column)), getattr(budget, column)
        if value is not None and value > limit:
            return Objection(column, f"{said.format(format_error(value))}, more than {limit:g}")
    agreement, flushed = number(row["argmax_agreement"]), number(row["grad_flushed_share"])
    objection = None
    if agreement is not None and _agrees_too_little(agreement, divergence, budget.argmax_agreement):
        least = format_share(budget.argmax_agreement)
        reason = f"{format_share(agreement)} of its decisions are fp64's, less than {least}"
        objection = Objection("argmax_agreement", reason)
    elif training and flushed is not None and flushed - unavoidable > budget.grad_flushed_share:
        most = format_share(budget.grad_flushed_share)
        reason = f"{format_share(flushed)} of its gradients became zero, more than {most}"
        if unavoidable:
            reason += f" above fp32's {format_share(unavoidable)}"
        objection = Objection("grad_flushed_share", reason)
    elif training and (skipped := _skipped_steps(divergence, rounds)):
        objection = Objection("skipped_steps", f"GradScaler skipped {skipped} steps")
    return objection


def in_output(row: Row) -> str:
    """Return " in scores" where that is the one of several outputs that errs most, else ""."""
    name = row.get("output_worst_name")
    return f" in {name}" if name else ""


def _of_updates(found: Divergence, budget: Budget) -> Objection | None:
    """Return what keeps a training out of the budget though its errors as a whole are within it."""
    if said := update_objection(found.update):
        return Objection("update_kept", said)
    most, error = OF_A_TENSOR * budget.grad_rel_l2, found.grad_tensor_rel_l2
    if error is not None and error > most:
        said = f"the gradient of {found.grad_tensor_parameter} errs by {format_error(error)}, more than {most:g}"
        return Objection("grad_tensor_rel_l2", f"{said}, {OF_A_TENSOR} times what is allowed of all")
    if said := bias_objection(found):
        return Objection("grad_bias_ratio", said)
    return None


def _nonfinite_parameters(divergence: Divergence | None, rounds: Sequence[Round]) -> int:
    """Return how many elements of parameters are not finite, after one step or after the timed ones, at most."""
    passed = divergence.param_nonfinite if divergence is not None else 0
    return max([passed or 0, *(each.param_nonfinite or 0 for each in rounds)])


def error_said(row: Row, value: float) -> str:
    """Return an error, with what it is against where that is not fp64."""
    against = f" ({AGAINST_FP32})" if row["reference_dtype"] == BASELINE else ""
    return f"{format_error(value)}{against}"


def _undefined(column: str, divergence: Divergence | None) -> str:
    """Say why an error is undefined; a note may speak of something else, so the numbers are asked first."""
    name = f"its {ERRORS[column]}"
    if divergence is None:
        return f"{name} was not measured"
    if column == "grad_rel_l2" and divergence.grad_nonfinite:
        return f"{name} is undefined: {divergence.grad_nonfinite} gradient elements are not finite"
    if why := divergence.output_undefined if column == "output_rel_l2" else divergence.grad_undefined:
        return f"{name} is undefined: {why}"
    return f"{name} is undefined: {divergence.notes[0]}" if divergence.notes else f"{name} is undefined"


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


def parameters_objection(found: Divergence | None, timed: int) -> str:
    """Return what a training objects to parameters that are not finite, after one step or after the `timed` ones."""
    count = (found.param_nonfinite if found is not None else None) or 0
    if count:
        return f"{counted(count, 'parameter element is', 'parameter elements are')} not finite after one step"
    if timed:
        return f"{counted(timed, 'parameter element is', 'parameter elements are')} not finite after the timed steps"
    return ""


def update_objection(update: Update | None) -> str:
    """Return what is wrong with what a step changes; "" for nothing, and where nothing is known."""
    if update is None or update.kept is None:
        return ""
    still = "" if not update.swallowed else f": {_still(update)}"
    if update.kept + 2 * (update.kept_error or 0.0) < LEAST_KEPT:
        return f"it keeps {format_kept(update.kept)} of its updates{still}"
    if update.kept_error is not None:  # rounding is stochastic: what does not move now does so in another step
        return ""
    if update.worst_kept is not None and update.worst_kept < LEAST_KEPT_OF_A_TENSOR:
        return f"{update.worst_parameter} keeps {format_kept(update.worst_kept)} of its update"
    if (update.swallowed_energy or 0.0) > MOST_SWALLOWED:
        return f"{_still(update)}, and these carry {format_share(update.swallowed_energy)} of its updates"
    later = _below(update.energies, 1 / ROOM)
    if update.steps and not update.counted_state and later is not None and later > MOST_SWALLOWED:
        lost = f"of 1/{ROOM} of them {format_share(later)} is lost"
        return f"its updates have no room to become smaller, as training settles: {lost}"
    return ""


def bias_objection(found: Divergence) -> str:
    """Return what is wrong with what errors of gradients have in common over batches; "" for nothing."""
    if found.grad_bias is None or not found.grad_noise or found.grad_bias < LEAST_BIAS:
        return ""
    ratio = found.grad_bias / found.grad_noise
    if ratio <= MOST_BIAS:
        return ""
    return f"its gradients err alike in all batches, by {format_share(ratio)} of what batches differ by"


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


def _still(update: Update) -> str:
    share = format_share((update.swallowed or 0) / update.moving) if update.moving else "0%"
    return f"{share} of the weights that should move do not"

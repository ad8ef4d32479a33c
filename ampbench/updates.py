"""What an optimizer's step changes of the stored weights, beside what it should: what follows from it, in sentences."""

import math
from collections.abc import Mapping, Sequence

from ampbench.records.divergences import LOWEST_BIN, Divergence, Update
from ampbench.units import counted, format_kept, format_share

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

MASTER_BYTES = 4
"""What an fp32 copy of a weight costs."""


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
        return f"{_still(update)}, with {format_share(update.swallowed_energy)} of its updates"
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

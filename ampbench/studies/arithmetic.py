"""What the arithmetic of an optimizer and of storage in half knows of a training without running it, in sentences.

Each follows from the settings and the format alone, by the formula in the docstring of its function, and holds for
weights, state and statistics that are stored in the format, rounded to nearest after every operation: not for fp32
master weights, and not for optimizers that are not torch's own, of which nothing is said. Where an optimizer fuses its
step into one kernel, what rounds between its operations is not there, and is not told. Half a unit in the last place of
a number w is more than 2**-9 |w| in bf16 and 2**-12 |w| in fp16, and at most twice that.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ampbench.core.precisions import SHORT_DTYPES, Format, Precision, find_format
from ampbench.core.units import counted, format_share
from ampbench.records.measured import OptimizerGroup, Recipe

EMA_DECAY = 0.999
"""The usual decay of an average of weights, of which there is no setting to be read."""

_DECOUPLING = ("Adam", "AdamW", "NAdam", "RAdam")
"""Those of torch's optimizers that can multiply weights by 1 - lr x weight decay: an operation of its own."""
_SQUARES = {"Adam": "betas[1]", "AdamW": "betas[1]", "NAdam": "betas[1]", "RAdam": "betas[1]", "RMSprop": "alpha"}
"""Those that keep a running mean of squared gradients, and what its decay is called."""
_DIVIDING = ("Adam", "AdamW", "NAdam", "RMSprop")
"""Those of them that divide by its root plus eps in every step."""
_FAR_DOWN = -100
"""Formats whose smallest normal number has a lower exponent flush nothing that a training has."""


@dataclass(frozen=True, slots=True)
class Remark:
    """What follows (`text`), and of which numbers (`because`)."""

    text: str
    because: str

    def __str__(self) -> str:
        return f"{self.text} ({self.because})"


def remarks_of(recipe: Recipe, dtype: str, *, master: bool = False) -> list[Remark]:
    """Return what `recipe` does to weights, state and statistics stored in `dtype`, "fp16" or "bf16", the worst first.

    With fp32 `master` weights the optimizer computes in fp32, and only the running statistics are in `dtype`. Raises
    `UnknownNameError` for any other dtype.
    """
    form = find_format(dtype)
    found = [] if master else [*_of_groups(recipe, form, _zero_denominator)]
    if not master:
        found += [*_of_groups(recipe, form, _decay_lost), *_of_groups(recipe, form, _squares_grow)]
    return [*found, *_statistics(recipe, form)]


def habits_of(dtype: str) -> list[Remark]:
    """Return what averaging weights and summing gradients does in `dtype`, whatever the optimizer.

    * An average of weights moves by (1 - decay)(w - average), as torch's `lerp` does in one operation, which is lost up
      to half a unit in its last place: while |w - average| < 2**-9 / (1 - decay) |average| (fp16: 2**-12).
    * A sum of n equal gradients has units of two of them from n = 2**8 on (fp16: 2**11): one more is a tie, which goes
      to the even number. (Twice as late for gradients that are nearly a power of two.)
    """
    form = find_format(dtype)
    apart = _half_unit(form) / (1 - EMA_DECAY)
    return [
        Remark(
            f"an average of weights at decay {EMA_DECAY} stands still up to {format_share(apart)} away",
            f"2^-{form.digits + 1} / {1 - EMA_DECAY:.3g}",
        ),
        Remark(
            f"gradients summed over equal micro-batches stop growing after about {2**form.digits:,}",
            f"2^{form.digits}",
        ),
    ]


def remark_line(recipe: Recipe | None, row: Precision) -> str:
    """Return in one line what arithmetic knows of training by `recipe` in a precision; "": nothing."""
    if recipe is None or row.autocast is not None or row.storage == "float32":
        return ""
    said = remarks_of(recipe, SHORT_DTYPES[row.storage], master=row.master)
    return f"{row.name} with {short_name(recipe)}: {'; '.join(map(str, said))}" if said else ""


def short_name(recipe: Recipe) -> str:
    """Return the name of an optimizer's class without its module."""
    return recipe.optimizer.rpartition(".")[2]


def _of_groups(
    recipe: Recipe, form: Format, said: Callable[[str, OptimizerGroup, Format], Remark | None]
) -> Iterable[Remark]:
    """Yield what is true of groups of torch's own optimizers, each once, with how many of several it is true of."""
    if not recipe.optimizer.startswith("torch.optim."):
        return
    found = [said(short_name(recipe), group, form) for group in recipe.groups if group.elements]
    for remark in dict.fromkeys(one for one in found if one is not None):
        many = found.count(remark)
        where = "" if many == len(found) else f" in {many:,} of {counted(len(found), 'parameter group')}"
        yield Remark(f"{remark.text}{where}", remark.because)


def _decay_lost(kind: str, group: OptimizerGroup, form: Format) -> Remark | None:
    """Say that decoupled weight decay does nothing: lr x weight decay < 2**-9 in bf16, 2**-12 in fp16.

    A weight w becomes w (1 - lr x weight decay), rounded by itself before the update is added: it changes by less than
    half a unit in the last place, which is at least 2**-9 |w| (2**-12 |w|) towards zero.
    """
    if kind not in _DECOUPLING or not group.decoupled or group.fused or not group.weight_decay or not group.lr:
        return None
    lost = group.lr * group.weight_decay
    if lost >= _half_unit(form):
        return None
    return Remark("weight decay does nothing", f"lr x weight decay is {lost:.2g}, under 2^-{form.digits + 1}")


def _squares_grow(kind: str, group: OptimizerGroup, form: Format) -> Remark | None:
    """Say that a running mean of squares cannot decay: 1 - beta2 < 2**-9 in bf16, 2**-12 in fp16.

    It becomes v x beta2 + (1 - beta2) g**2: rounded in between, v x beta2 is v; in one kernel, the whole is not below
    v, since it is no less than v x beta2. So it never falls, and steps stay as small as the largest gradient made them.
    """
    if kind not in _SQUARES or group.beta2 is None:
        return None
    falls = 1 - group.beta2
    if not 0 < falls < _half_unit(form):
        return None
    text = "the running mean of squared gradients cannot decay and only grows"
    return Remark(text, f"1 - {_SQUARES[kind]} is {falls:.2g}, under 2^-{form.digits + 1}")


def _zero_denominator(kind: str, group: OptimizerGroup, form: Format) -> Remark | None:
    """Say which second moments are 0, and whether eps is, too, so that a step divides by 0; nothing in bf16.

    From zero, v becomes (1 - beta2) g**2, which is 0 where it is no more than half the smallest subnormal number,
    2**-25 in fp16: where |g| <= sqrt(2**-25 / (1 - beta2)). The denominator is the root of v plus eps, and eps rounds
    to 0 up to 2**-25 as well. Then a step is lr x m / 0: infinite, and 0 / 0, NaN, where the gradient was 0. Above it,
    it is lr x m / eps. In one kernel, and in a capturable step, eps is not rounded by itself.
    """
    if kind not in _DIVIDING or form.lowest < _FAR_DOWN or group.fused or group.capturable:
        return None
    if group.eps is None or group.beta2 is None or group.beta2 >= 1:
        return None
    border = math.sqrt(form.flush / (1 - group.beta2))
    power = form.lowest - form.digits
    if group.eps <= form.flush:
        return Remark(
            f"weights become infinite or NaN where gradients were never over {border:.2g}: their squares and eps are 0",
            f"{group.eps:g}, not above 2^{power}",
        )
    return Remark(
        f"steps are divided by eps alone where gradients were never over {border:.2g}: their squares are 0",
        f"root of 2^{power} / (1 - {_SQUARES[kind]})",
    )


def _statistics(recipe: Recipe, form: Format) -> Iterable[Remark]:
    """Say how far from a batch's running statistics stop: half a unit in their last place / momentum.

    They move by momentum x (batch's - running), which is lost up to half a unit: 2**-9 (fp16: 2**-12) to twice that of
    them. torch's CPU kernel rounds each product in bf16, and 0.9 to 0.8984: there they stop at 0.7 to 4 times as far
    (seen with torch 2.15, momentum 0.1 and 0.01).
    """
    for momentum in recipe.running_momenta:
        away = format_share(_half_unit(form) / momentum)
        text = f"running statistics stop about {away} away from those of batches"
        yield Remark(text, f"2^-{form.digits + 1} / momentum {momentum:g}")


def _half_unit(form: Format) -> float:
    """Return the least half unit in the last place of a number of the format, relative to that."""
    return 2.0 ** -(form.digits + 1)

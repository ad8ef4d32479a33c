"""What arithmetic alone says of an optimizer whose weights, state and statistics are stored in half."""

import math
from enum import StrEnum

from ampbench.core.precisions import SHORT_DTYPES, Format, Precision, find_format
from ampbench.core.statement import Arithmetic, Severity, Statement, state
from ampbench.records.measured import OptimizerGroup, Recipe

_DECOUPLING = ("Adam", "AdamW", "NAdam", "RAdam")
"""Those of torch's optimizers that can multiply weights by 1 - lr x weight decay: an operation of its own."""
_SQUARES = {"Adam": "betas[1]", "AdamW": "betas[1]", "NAdam": "betas[1]", "RAdam": "betas[1]", "RMSprop": "alpha"}
"""Those that keep a running mean of squared gradients, and what its decay is called."""
_DIVIDING = ("Adam", "AdamW", "NAdam", "RMSprop")
"""Those of them that divide by its root plus eps in every step."""


def remarks_of(recipe: Recipe, dtype: str, *, master: bool = False) -> list[Statement]:
    """Return what `recipe` does to weights, state and statistics stored in `dtype`, "fp16" or "bf16", the worst first.

    Each follows by the formula in the docstring of its function, and holds for what is rounded to nearest after every
    operation: where an optimizer fuses its step into one kernel, there is no rounding in between, and no statement.
    Half a unit in the last place of a number w is more than 2**-9 |w| in bf16 and 2**-12 |w| in fp16, and at most twice
    that. Optimizers that are not torch's own have no statements.

    With fp32 `master` weights the optimizer computes in fp32, and only the running statistics are in `dtype`: they stop
    half a unit in their last place / momentum away from those of batches, or twice that, as they move by momentum x
    (batch's - running). torch's CPU kernel rounds each product in bf16, and 0.9 to 0.8984: there they stop at 0.7 to 4
    times as far (seen with torch 2.15, momentum 0.1 and 0.01). Of groups that differ each statement says how many it
    holds for. Raises `UnknownNameError` for any other dtype.
    """
    form = find_format(dtype)
    remarks = []
    if not master and recipe.optimizer.startswith("torch.optim."):
        groups = [group for group in recipe.groups if group.elements]
        for judge in (_zero_denominator, _decay_lost, _squares_grow):
            known = [statement for group in groups if (statement := judge(_class_of(recipe), group, form)) is not None]
            for place, remark in enumerate(known):
                if remark not in known[:place]:
                    many = known.count(remark)
                    of = {"many": many, "groups": len(groups)} if many < len(groups) else {}
                    remarks.append(_remark(remark.code, form, **remark.facts, **of))
    for momentum in recipe.running_momenta:
        away = _half_unit(form) / momentum
        remarks.append(_remark(Arithmetic.STATISTICS, form, away=away, momentum=momentum))
    return remarks


def hints_of(recipe: Recipe, row: Precision, case_id: str) -> list[Statement]:
    """Return what arithmetic knows of training a case by `recipe` in a precision that stores weights in half."""
    if row.autocast is not None or row.storage == "float32":
        return []
    names = {"precision": row.name, "optimizer": _class_of(recipe)}
    remarks = remarks_of(recipe, SHORT_DTYPES[row.storage], master=row.master)
    return [state(remark.code, case_id, Severity.INFO, **names, **remark.facts) for remark in remarks]


def _remark(code: StrEnum, form: Format, **facts: float | str) -> Statement:
    return state(code, "", Severity.ADVICE, **{"power": form.digits + 1, **facts})


def _class_of(recipe: Recipe) -> str:
    return recipe.optimizer.rpartition(".")[2]


def _decay_lost(kind: str, group: OptimizerGroup, form: Format) -> Statement | None:
    """Say that decoupled weight decay does nothing: lr x weight decay < 2**-9 in bf16, 2**-12 in fp16.

    A weight w becomes w (1 - lr x weight decay), rounded by itself before the update is added: it changes by less than
    half a unit in the last place, which is at least 2**-9 |w| (2**-12 |w|) towards zero.
    """
    if kind not in _DECOUPLING or not group.decoupled or group.fused or not group.weight_decay or not group.lr:
        return None
    lost = group.lr * group.weight_decay
    return _remark(Arithmetic.DECAY, form, lost=lost) if lost < _half_unit(form) else None


def _squares_grow(kind: str, group: OptimizerGroup, form: Format) -> Statement | None:
    """Say that a running mean of squares cannot decay: 1 - beta2 < 2**-9 in bf16, 2**-12 in fp16.

    It becomes v x beta2 + (1 - beta2) g**2: rounded in between, v x beta2 is v; in one kernel, the whole is not below
    v, since it is no less than v x beta2. So it never falls, and steps stay as small as the largest gradient made them.
    """
    if kind not in _SQUARES or group.beta2 is None or not 0 < 1 - group.beta2 < _half_unit(form):
        return None
    return _remark(Arithmetic.SQUARES, form, falls=1 - group.beta2, decay=_SQUARES[kind])


def _zero_denominator(kind: str, group: OptimizerGroup, form: Format) -> Statement | None:
    """Say which second moments are 0, and whether eps is, too, so that a step divides by 0; nothing in bf16.

    From zero, v becomes (1 - beta2) g**2, which is 0 where it is no more than half the smallest subnormal number,
    2**-25 in fp16: where |g| <= sqrt(2**-25 / (1 - beta2)). The denominator is the root of v plus eps, and eps rounds
    to 0 up to 2**-25 as well. Then a step is lr x m / 0: infinite, and 0 / 0, NaN, where the gradient was 0. Above it,
    it is lr x m / eps. In one kernel, and in a capturable step, eps is not rounded by itself.
    """
    if kind not in _DIVIDING or form.name == "bf16" or group.fused or group.capturable:
        return None
    if group.eps is None or group.beta2 is None or group.beta2 >= 1:
        return None
    facts = {"border": math.sqrt(form.flush / (1 - group.beta2)), "power": form.digits - form.lowest}
    if group.eps <= form.flush:
        return _remark(Arithmetic.INFINITE, form, eps=group.eps, **facts)
    return _remark(Arithmetic.DIVIDED, form, decay=_SQUARES[kind], **facts)


def _half_unit(form: Format) -> float:
    """Return the least half unit in the last place of a number of the format, relative to that."""
    return 2.0 ** -(form.digits + 1)

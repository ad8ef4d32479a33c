"""Names of cases and optimizers, flaws of results, and predictions by arithmetic alone.

Flaws are elements that are not finite and a reference not in fp64. Predictions are of the precisions that a device
emulates, and of optimizers whose weights, state and statistics are stored in half.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from ampbench.core.precisions import FORMATS, PRECISIONS, SHORT_DTYPES, UPDATES, Format, Precision, find_format
from ampbench.core.recipes import find_recipe
from ampbench.core.statement import Arithmetic, Flaw, Severity, Statement, state
from ampbench.records.case import TORCHS_CHOICE, Case, DeviceDescription
from ampbench.records.measured import Divergence, GradientDivergence, OptimizerGroup, OutputDivergence, Recipe
from ampbench.records.run import Header, short_commit

NOT_REACHED = "not reached before the run ended"
"""The reason of a case without an entry in a run."""


class Pending(StrEnum):
    """The reason of a row whose case --resume may still measure; the reason of a skip is plain text."""

    NOT_YET = "not measured yet"
    OUT_OF_TIME = "not reached within the time given"


def case_labels(cases: Iterable[Case], *, precision: bool = True) -> dict[str, str]:
    """Return a short, unique name for each case by its id: workload, precision, and the traits in which cases differ.

    Tables with a column for the precision use names without `precision` and scaler.
    """
    known = {case.case_id: case for case in cases}
    traits = {case_id: _traits(case) for case_id, case in known.items()}
    first: dict[tuple[str, ...], Any] = {}
    varying: set[tuple[str, ...]] = set()
    for values in traits.values():
        varying.update(where for where, value in values.items() if first.setdefault(where, value) != value)
    labels = {}
    for case_id, case in known.items():
        telling = {where[-1]: value for where, value in traits[case_id].items() if where in varying}
        parameters = [f"{name}={telling[name]}" for name in sorted(case.parameters) if name in telling]
        parts = [f"{case.workload}[{','.join(parameters)}]" if parameters else case.workload]
        if "batch_size" in telling:
            parts.append("no batch" if case.batch_size is None else f"b{case.batch_size}")
        parts += [case.memory_format] if "memory_format" in telling else []
        parts += [case.recipe or "own recipe"] if "recipe" in telling and case.phase == "training" else []
        parts += [f"sdpa {case.sdpa or TORCHS_CHOICE}"] if "sdpa" in telling else []
        parts += [case.precision] if precision else []
        parts += [telling[name] for name in ("device", "phase", "path") if name in telling]
        parts += [f"in-{case.input_dtype}"] if "input_dtype" in telling else []
        parts += ["no scaler"] if precision and not case.scaler else []
        labels[case_id] = " ".join(parts)
    return labels


def told_apart(labels: Sequence[str], runs: Iterable[str]) -> list[str]:
    """Return labels, with their run if several are equal: "mlp fp32 · before"."""
    counts = Counter(labels)
    return [f"{label} · {run}" if counts[label] > 1 else label for label, run in zip(labels, runs, strict=True)]


def common_traits(cases: Iterable[Case]) -> str:
    """Return the traits that all cases share and their labels leave out: `inference · cpu · eager`."""
    traits = zip(*((case.phase, case.device, case.path) for case in cases), strict=True)
    return " · ".join(values[0] for values in traits if len({*values}) == 1)


def few(names: Iterable[str], most: int = 3) -> str:
    """Return at most `most` distinct names in a row, and the number of further ones."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - most
    return ", ".join(distinct[:most]) + (f" and {more:,} more" if more > 0 else "")


NONE_NAMED = "none"
"""The name of a training without an optimizer."""
USUAL = {"momentum": 0.0, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
"""Usual settings of optimizers; only other values are named."""


def optimizer_name(recipe: Recipe, asked: str = "") -> str:
    """Return an optimizer with the settings of each group: "AdamW lr=0.0003 weight_decay=0.1".

    Clipping and name come from the requested recipe `asked`, as in a case.
    """
    groups = []
    for group in recipe.groups:
        values = {name: getattr(group, name) for name in ("lr", *USUAL)}
        settings = [f"{name}={value:g}" for name, value in values.items() if value not in (None, USUAL.get(name))]
        groups.append(" ".join([*settings, *(name for name in ("foreach", "fused") if getattr(group, name))]))
    trained = find_recipe(asked)
    more = [f"clip={trained.clip:g}"] if trained.clip else []
    more += [f"({trained.name})"] if trained.name else []
    return " ".join(filter(None, [recipe.optimizer.rpartition(".")[2], " | ".join(dict.fromkeys(groups)), *more]))


def outcomes_said(counts: Mapping[str, int]) -> str:
    """Return the number of cases by outcome, as "55 ok, 11 skipped"."""
    return ", ".join(f"{counts[name]:,} {name}" for name in ("ok", "failed", "skipped") if counts.get(name))


def _traits(case: Case) -> dict[tuple[str, ...], Any]:
    """Return the traits in which cases may differ; a key is a trait's name, after traits that compared cases share."""
    workload = case.workload
    parameters: dict[tuple[str, ...], Any] = {(workload, name): value for name, value in case.parameters.items()}
    return parameters | {
        ("device",): case.device,
        ("phase",): case.phase,
        ("path",): case.path,
        (workload, "batch_size"): case.batch_size,
        (workload, "memory_format"): case.memory_format,
        (workload, case.phase, "recipe"): case.recipe,
        (workload, "sdpa"): case.sdpa,
        (workload, case.precision, "input_dtype"): case.input_dtype,
    }


FP32_INSTEAD = "errors are against fp32, as the fp64 reference failed: {}"
"""The remark on a case whose reference is the fp32 step."""


def not_finite(divergence: Divergence, of: str = "output") -> str:
    """Return whether outputs (or, `of` "gradient", gradients) have elements that are not finite, in a few words.

    "nan" or "inf" if only the precision has them; "nan in fp64" or "inf in fp64" if the reference has them and leaves
    the error undefined; else "". Infinities in both reference and precision do not count.
    """
    errors: OutputDivergence | GradientDivergence = getattr(divergence, of)
    if errors.reference_nan:
        return f"nan in {divergence.reference.dtype}"
    if errors.nonfinite:
        return "nan" if errors.nan else "inf"
    return f"inf in {divergence.reference.dtype}" if of == "output" and divergence.output.unlike else ""


def _counted(code: Flaw, divergence: Divergence, part: str, count: int, **facts: float | str | None) -> Statement:
    """Return a flaw of `count` elements of the "output" or the "gradient"."""
    elements: int | None = getattr(divergence, part).elements
    return state(code, divergence.case_id, count=count, elements=elements, what=part, **facts)


def no_precisions_fault(divergence: Divergence) -> Statement | None:
    """Return the flaw of values that are not finite in any precision, in the reference or in fp32; None without one.

    `divergence` is of any precision; `fp32s_fault` returns further flaws of fp32.
    """
    for part, errors in (("output", divergence.output), ("gradient", divergence.gradient)):
        if errors.reference_nan:
            return _counted(
                Flaw.REFERENCE_NAN, divergence, part, errors.reference_nan, dtype=divergence.reference.dtype
            )
    if divergence.output.fp32_nonfinite:
        return _counted(Flaw.FP32_OUTPUT, divergence, "output", divergence.output.fp32_nonfinite)
    if divergence.loss_is_lost and divergence.reference.dtype == "fp64" and divergence.reference.loss is None:
        return state(Flaw.REFERENCE_LOSS, divergence.case_id)
    return None


def fp32s_fault(divergence: Divergence) -> Statement | None:
    """Return the flaw that keeps fp32 itself from training, given its divergence; None without one."""
    in_fp64 = divergence.reference.dtype == "fp64"
    if divergence.loss_is_lost:
        return state(Flaw.FP32_LOSS, divergence.case_id, alone=in_fp64 and divergence.reference.loss is not None)
    if divergence.gradient.nonfinite:
        alone = in_fp64 and not divergence.gradient.reference_nonfinite
        return _counted(Flaw.FP32_GRADIENT, divergence, "gradient", divergence.gradient.nonfinite, alone=alone)
    return None


def remarks(divergence: Divergence) -> list[Statement]:
    """Return the flaws of a case's results, the worst first."""
    output, reference = divergence.output, divergence.reference
    fault = no_precisions_fault(divergence)
    flaws = [] if fault is None else [fault]
    infinite = (output.reference_nonfinite or 0) - (output.reference_nan or 0)
    if infinite and not output.reference_nan and not output.undefined:
        flaws.append(_counted(Flaw.REFERENCE_INFINITE, divergence, "output", infinite, dtype=reference.dtype))
    if reference.dtype in ("fp32", ""):
        code = Flaw.REFERENCE_IS_FP32 if reference.dtype else Flaw.REFERENCE_FAILED
        flaws.append(state(code, divergence.case_id, why=reference.error))
    if output.undefined and not (output.nonfinite or output.unlike or output.reference_nan or reference.error):
        flaws.append(state(Flaw.NO_ERROR, divergence.case_id, why=output.undefined))
    return flaws


def kernels_said(attention: Mapping[str, int]) -> str:
    """Return the kernels of attention: "flash and math"."""
    return " and ".join(sorted(attention)) or "no kernel of its own"


def gathered(sentences: Iterable[tuple[str, str]]) -> list[str]:
    """Return pairs of a case's name and a sentence as lines: each sentence once, after its names."""
    by_sentence: dict[str, list[str]] = {}
    for name, sentence in sentences:
        by_sentence.setdefault(sentence, []).append(name)
    return [f"{few(named)}: {sentence}" for sentence, named in by_sentence.items()]


def not_the_commits(header: Header) -> str:
    """Return a sentence on code that is not from the recorded commit; "" if there is none, or no commit."""
    elsewhere = dict.fromkeys(package for source in header.sources for package in source.elsewhere)
    if not elsewhere or not header.commit:
        return ""
    return (
        f"not all that is measured is commit {short_commit(header.commit)}: imported from elsewhere "
        f"{'was' if len(elsewhere) == 1 else 'were'} {few(elsewhere)}; install the project anew (pip install -e .), "
        "then measure again"
    )


def emulated_of(device: DeviceDescription, precisions: Iterable[str]) -> list[str]:
    """Return the half precisions that the device emulates and `precisions` use; an unknown precision may use any."""
    known = [PRECISIONS.get(name) for name in precisions]
    computed = {precision.autocast or precision.storage for precision in known if precision is not None}
    names = {SHORT_DTYPES.get(dtype, dtype) for dtype in computed}
    emulated = {dtype for dtype, kind in arithmetic(device).items() if kind == "emulated"}
    return [dtype for dtype in FORMATS if dtype in emulated and (dtype in names or None in known)]


def slower(device: DeviceDescription, dtype: str) -> str:
    """Return "about 6x slower than fp32" for an emulated dtype; "which is slow" without a measurement."""
    factor = device.slowdown.get(dtype)
    return f"about {factor:.0f}x slower than fp32" if factor else "which is slow"


def arithmetic(device: DeviceDescription) -> dict[str, str]:
    """Return the support of matrix products by short dtype name ("fp16": "emulated")."""
    return {SHORT_DTYPES.get(dtype, dtype): kind for dtype, kind in device.arithmetic.items()}


_DECOUPLING = ("Adam", "AdamW", "NAdam", "RAdam")
"""torch's optimizers that can multiply weights by 1 - lr x weight decay, as a separate operation."""
_SQUARES = {"Adam": "betas[1]", "AdamW": "betas[1]", "NAdam": "betas[1]", "RAdam": "betas[1]", "RMSprop": "alpha"}
"""torch's optimizers with a running mean of squared gradients, and the name of its decay."""
_DIVIDING = ("Adam", "AdamW", "NAdam", "RMSprop")
"""Of these, the optimizers that divide by its root plus eps in every step."""


def remarks_of(recipe: Recipe, dtype: str, *, master: bool = False) -> list[Statement]:
    """Return the effects of `recipe` on weights, state and statistics stored in `dtype`, "fp16" or "bf16", worst first.

    Each follows by the formula in the docstring of `_effects`, and holds for rounding to nearest after every
    operation: a fused step does not round in between, and has no statement. Half a unit in the last place of a number w
    is more than 2**-9 |w| in bf16 and 2**-12 |w| in fp16, and at most twice as much. Only torch's own optimizers have
    statements.

    With fp32 `master` weights the optimizer computes in fp32, and only the running statistics are in `dtype`: they move
    by momentum x (batch's - running), so they stop half a unit in their last place / momentum, or twice as far, from
    the batches' statistics. torch's CPU kernel rounds each product in bf16, and 0.9 to 0.8984: there they stop at 0.7
    to 4 times this distance (measured with torch 2.15, momentum 0.1 and 0.01). If groups differ, each statement has its
    number of groups. Raises `UnknownNameError` for any other dtype.
    """
    form = find_format(dtype)
    known: list[Statement] = []
    groups = [group for group in recipe.groups if group.elements]
    if not master and recipe.optimizer.startswith("torch.optim."):
        known = [remark for group in groups for remark in _effects(_class_of(recipe), group, form)]
    remarks = []
    for place, remark in enumerate(known):
        if remark not in known[:place]:
            many = known.count(remark)
            of = {"many": many, "groups": len(groups)} if many < len(groups) else {}
            remarks.append(_remark(remark.code, form, **remark.facts, **of))
    remarks.sort(key=lambda remark: [*Arithmetic].index(Arithmetic(remark.code)))
    for momentum in recipe.running_momenta:
        away = _half_unit(form) / momentum
        remarks.append(_remark(Arithmetic.STATISTICS, form, away=away, momentum=momentum))
    return remarks


def hints_of(recipe: Recipe, row: Precision, case_id: str) -> list[Statement]:
    """Return the predictions for training a case by `recipe` in a precision that stores weights in half."""
    if row.autocast is not None or row.storage == "float32":
        return []
    names = {"precision": row.name, "optimizer": _class_of(recipe)}
    remarks = remarks_of(recipe, SHORT_DTYPES[row.storage], master=row.master)
    if row.updates != UPDATES[0]:  # small decays arrive on average
        remarks = [remark for remark in remarks if remark.code != Arithmetic.DECAY]
    return [state(remark.code, case_id, Severity.INFO, **names, **remark.facts) for remark in remarks]


def _remark(code: StrEnum, form: Format, **facts: float | str) -> Statement:
    return state(code, "", Severity.ADVICE, **{"power": form.digits + 1, **facts})


def _class_of(recipe: Recipe) -> str:
    return recipe.optimizer.rpartition(".")[2]


def _effects(kind: str, group: OptimizerGroup, form: Format) -> Iterator[Statement]:
    """Yield the effects on one group of an optimizer of this kind, if its weights and state are in a low format.

    Second moments round to 0, except in bf16: from zero, v becomes (1 - beta2) g**2, which rounds to 0 up to half the
    smallest subnormal number, 2**-25 in fp16: for |g| <= sqrt(2**-25 / (1 - beta2)). The denominator is the root of v
    plus eps, and eps also rounds to 0 up to 2**-25. Then a step is lr x m / 0: infinite, or NaN for a gradient of 0.
    With a larger eps it is lr x m / eps. In one kernel, and in a capturable step, eps is not rounded by itself.

    Decoupled weight decay is lost if lr x weight decay < 2**-9 in bf16, 2**-12 in fp16: a weight w becomes
    w (1 - lr x weight decay), rounded by itself before the update is added, and changes by less than half a unit in the
    last place, which is at least 2**-9 |w| (2**-12 |w|) towards zero.

    A running mean of squares cannot decay if 1 - beta2 < 2**-9 in bf16, 2**-12 in fp16. It becomes
    v x beta2 + (1 - beta2) g**2: rounded in between, v x beta2 is v; in one kernel, the sum is at least that product,
    which rounds to v. So it never falls, and steps stay as small as after the largest gradient.
    """
    eps, decays, falls = group.eps, group.weight_decay, None if group.beta2 is None else 1 - group.beta2
    is_rounded = not (form.name == "bf16" or group.fused or group.capturable)
    if kind in _DIVIDING and is_rounded and eps is not None and falls is not None and falls > 0:
        facts = {"border": math.sqrt(form.flush / falls), "power": form.digits - form.lowest}
        if eps <= form.flush:
            yield _remark(Arithmetic.INFINITE, form, eps=eps, **facts)
        else:
            yield _remark(Arithmetic.DIVIDED, form, decay=_SQUARES[kind], **facts)
    if kind in _DECOUPLING and group.decoupled and not group.fused and decays and group.lr:
        lost = group.lr * decays
        if lost < _half_unit(form):
            yield _remark(Arithmetic.DECAY, form, lost=lost)
    if kind in _SQUARES and falls is not None and 0 < falls < _half_unit(form):
        yield _remark(Arithmetic.SQUARES, form, falls=falls, decay=_SQUARES[kind])


def _half_unit(form: Format) -> float:
    """Return the smallest half unit in the last place of a number of the format, relative to the number."""
    return 2.0 ** -(form.digits + 1)

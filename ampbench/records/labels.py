"""Short names of cases that are shown together, and what cannot be judged about their results, in words.

The latter are elements that are no finite numbers, a reference not in fp64, and the device for which numbers speak.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.core.recipes import find_recipe
from ampbench.core.statement import Flaw, Statement, state
from ampbench.records.case import TORCHS_CHOICE, Case, DeviceDescription, DeviceState
from ampbench.records.measured import Divergence, GradientDivergence, OutputDivergence, Recipe

HALVES = ("bf16", "fp16")

NOT_REACHED = "not reached before the run ended"
"""What became of a case of which a run says nothing."""


class Pending(StrEnum):
    """The reason of a row whose case --resume may still measure; that of a skip is plain text."""

    NOT_YET = "not measured yet"
    OUT_OF_TIME = "not reached within the time given"


def case_labels(cases: Iterable[Case], *, precision: bool = True) -> dict[str, str]:
    """Return a short name for each case by its id: workload and precision, and what else tells the cases apart.

    Without the `precision` and its scaler it is a name for tables in which those have a column of their own.
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
    """Return labels, each with its run where others are the same: "mlp fp32 · before"."""
    counts = Counter(labels)
    return [f"{label} · {run}" if counts[label] > 1 else label for label, run in zip(labels, runs, strict=True)]


def common_traits(cases: Iterable[Case]) -> str:
    """Return what all cases share and their labels leave out: `inference · cpu · eager`."""
    traits = zip(*((case.phase, case.device, case.path) for case in cases), strict=True)
    return " · ".join(values[0] for values in traits if len({*values}) == 1)


def few(names: Iterable[str], most: int = 3) -> str:
    """Return distinct names in a row, no more than `most`, and how many others there are."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - most
    return ", ".join(distinct[:most]) + (f" and {more:,} more" if more > 0 else "")


NONE_NAMED = "none"
"""The optimizer of a training for which none is named."""
USUAL = {"momentum": 0.0, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
"""Settings of optimizers that are named only where they are others."""


def optimizer_name(recipe: Recipe, asked: str = "") -> str:
    """Return an optimizer with its settings, those of several groups apart: "AdamW lr=0.0003 weight_decay=0.1".

    Of the recipe that was `asked` for, as a case has it, come clipping and name.
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


def outcome_said(outcome: str, reason: str, subject: str = "") -> str:
    """Return what became of cases without numbers: "skipped: cpu has no tf32", "missing: not measured yet".

    `what` they are stands before the reason.
    """
    word = "missing" if isinstance(reason, Pending) else outcome
    return ": ".join([word, *([subject] if subject else []), reason])


def outcomes_said(counts: Mapping[str, int]) -> str:
    """Return how many cases have each outcome, as "55 ok, 11 skipped"."""
    return ", ".join(f"{counts[name]:,} {name}" for name in ("ok", "failed", "skipped") if counts.get(name))


def _traits(case: Case) -> dict[tuple[str, ...], Any]:
    """Return what may tell a case from others: each trait by its name, and before it what the others must share."""
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
"""What is said of a case whose reference is the fp32 step."""


def not_finite(divergence: Divergence, of: str = "output") -> str:
    """Return what of the outputs (or, `of` "gradient", gradients) is not finite, in a word or three.

    "nan" or "inf" in the precision; "nan in fp64" and "inf in fp64" where that begins in the reference and leaves the
    error undefined; "" for nothing. Infinities that reference and precision have in common are none of these.
    """
    errors: OutputDivergence | GradientDivergence = getattr(divergence, of)
    if errors.reference_nan:
        return f"nan in {divergence.reference.dtype}"
    if errors.nonfinite:
        return "nan" if errors.nan else "inf"
    return f"inf in {divergence.reference.dtype}" if of == "output" and divergence.output.unlike else ""


def _counted(code: Flaw, divergence: Divergence, part: str, count: int, **facts: float | str | None) -> Statement:
    """Return a flaw of so many elements of the "output" or the "gradient"."""
    elements: int | None = getattr(divergence, part).elements
    return state(code, divergence.case_id, count=count, elements=elements, what=part, **facts)


def no_precisions_fault(divergence: Divergence) -> Statement | None:
    """Return what is not finite whatever the precision, in the reference or in fp32 itself; None: nothing.

    `found` is of any precision; `fp32s_fault` knows the rest of that of fp32.
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
    """Return what keeps fp32 itself from training, given its divergence; None: nothing."""
    in_fp64 = divergence.reference.dtype == "fp64"
    if divergence.loss_is_lost:
        return state(Flaw.FP32_LOSS, divergence.case_id, alone=in_fp64 and divergence.reference.loss is not None)
    if divergence.gradient.nonfinite:
        alone = in_fp64 and not divergence.gradient.reference_nonfinite
        return _counted(Flaw.FP32_GRADIENT, divergence, "gradient", divergence.gradient.nonfinite, alone=alone)
    return None


def remarks(divergence: Divergence) -> list[Statement]:
    """Return statements on a case beside its numbers, the worst first."""
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


def attention_said(attention: Mapping[str, int] | None) -> str | None:
    """Return which kernels of attention ran how often in a step, as "flash 10, math 2"; None where it is not known."""
    if attention is None:
        return None
    return ", ".join(f"{kernel} {attention[kernel]:,}" for kernel in sorted(attention)) or "none"


def kernels_said(attention: Mapping[str, int]) -> str:
    """Return by which kernels attention ran: "flash and math"."""
    return " and ".join(sorted(attention)) or "no kernel of its own"


def gathered(sentences: Iterable[tuple[str, str]]) -> list[str]:
    """Return pairs of a case's name and a sentence as lines: each sentence once, after the names it is true of."""
    by_sentence: dict[str, list[str]] = {}
    for name, sentence in sentences:
        by_sentence.setdefault(sentence, []).append(name)
    return [f"{few(named)}: {sentence}" for sentence, named in by_sentence.items()]


def emulated_of(device: DeviceDescription, precisions: Iterable[str]) -> list[str]:
    """Return the half precisions that the device emulates and `precisions` compute in; an unknown one may in any."""
    known = [PRECISIONS.get(name) for name in precisions]
    computed = {precision.autocast or precision.storage for precision in known if precision is not None}
    names = {SHORT_DTYPES.get(dtype, dtype) for dtype in computed}
    return [dtype for dtype in emulated_halves(device) if dtype in names or None in known]


def emulated_halves(device: DeviceDescription) -> list[str]:
    """Return the half precisions in which the device only pretends to compute."""
    kinds = arithmetic(device)
    return [dtype for dtype in reversed(HALVES) if kinds.get(dtype) == "emulated"]


def slower(device: DeviceDescription, dtype: str) -> str:
    """Return "about 6x slower than fp32" of an emulated dtype; "which is slow" without a measurement."""
    factor = device.slowdown.get(dtype)
    return f"about {factor:.0f}x slower than fp32" if factor else "which is slow"


def arithmetic(device: DeviceDescription) -> dict[str, str]:
    """Return how matrix products run by short dtype name ("fp16": "emulated")."""
    return {SHORT_DTYPES.get(dtype, dtype): kind for dtype, kind in device.arithmetic.items()}


def limited_power(state: DeviceState) -> str:
    """Return "may take 500 W, by default 700 W" of a device whose power is limited below that; else ""."""
    limit, default = state.power_limit_watts, state.default_limit_watts
    if limit is None or default is None or limit >= default:
        return ""
    return f"may take {limit:.0f} W, by default {default:.0f} W"


def left_out(reasons: Iterable[str]) -> str:
    """Return the reasons why modules were left out, each with its number; "" without any."""
    counts = Counter(reason or "no reason given" for reason in reasons).most_common()
    return few(f"{reason} ({count:,})" for reason, count in counts)

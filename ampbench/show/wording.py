"""The words of statements: a plain line for each code, with the spelling of each fact behind its name."""

import math
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from ampbench.core.statement import (
    Answer,
    Arithmetic,
    Crossing,
    Flaw,
    Hint,
    Note,
    Refusal,
    Severity,
    Statement,
    Undecided,
)
from ampbench.core.units import (
    FORMATS,
    UNDEFINED,
    counted,
    format_error,
    format_kept,
    format_limit,
    format_percent,
    format_share,
    times,
)
from ampbench.records.case import Case
from ampbench.records.changes import Cause, GateCode, Status
from ampbench.records.labels import FP32_INSTEAD, Pending, case_labels, few

_TRAINED = "{precision}{optimizer:if| with ||: }"
_GROUPS = "{many:if| in |,|}{groups:if| of |counted;parameter group|}"
_OVER_FP32 = "{over_fp32:if| (|times| the speed of fp32 with tf32 off)}"
_IN_RANGE = ", though finite in fp64: the network leaves fp32's range"

_SWEPT = "{where:if|||: }{precision} is"
_MEASURED = "measured {first}: {first_speed:times}, {last}: {last_speed:times}"
_EXCEPT = "{undecided:if|; undecided at ||}{refused:if|; refused at ||}"


TEMPLATES: Mapping[StrEnum, str] = {
    Flaw.REFERENCE_NAN: "{are} NaN in {dtype} already: the network, not a precision, makes them",
    Flaw.REFERENCE_INFINITE: "{are} infinite in {dtype} too: the error is over all other elements",
    Flaw.REFERENCE_LOSS: (
        "the loss is not finite in fp64 already: the network or its loss, not a precision, makes it so"
    ),
    Flaw.REFERENCE_IS_FP32: FP32_INSTEAD.format("{why}"),
    Flaw.REFERENCE_FAILED: "no error is known, as the fp64 reference failed: {why}",
    Flaw.FP32_OUTPUT: f"{{are}} not finite in fp32 already{_IN_RANGE}",
    Flaw.FP32_GRADIENT: f"{{are}} not finite in fp32 already{{alone:only|{_IN_RANGE}}}",
    Flaw.FP32_LOSS: f"the loss is not finite in fp32 already{{alone:only|{_IN_RANGE}}}",
    Flaw.NO_ERROR: "no error is defined: {why}",
    Undecided.NOT_MEASURED: "it was not measured",
    Undecided.NO_REFERENCE: "its error was not measured",
    Undecided.ZERO_REFERENCE: (
        "its error is undefined, as the output is zero: train a few steps first, or give weights that are trained"
    ),
    Undecided.NO_ERROR: "its error is undefined",
    Undecided.NO_GRADIENT_ERROR: "its gradient error is undefined",
    Undecided.NO_OPTIMIZER: "training is judged only with an optimizer, such as adamw:lr=3e-4",
    Undecided.NO_UPDATE: "how much of an update its weights in half lose was not measured",
    Undecided.BY_CHANCE: (
        "its error means nothing: two fp64 steps differ, as the network draws random numbers or keeps state"
    ),
    Answer.TAKE: f"{{speed:times}} the speed{{memory:if| and |times| the memory}} of {{than}}{_OVER_FP32}",
    Answer.SAVE: f"{{memory:times}} the memory of {{than}} at its speed{_OVER_FP32}",
    Answer.STAY: "nothing is faster{best:if|, at best ||}{best_speed:if| with |times|}",
    Answer.UNCERTAIN: "nothing is certainly faster{best:if|, at best ||}{best_speed:if| with |times|}",
    Answer.ALONE: "every other precision failed",
    Answer.ONLY: "fp32 failed, and this is the fastest within the error budget",
    Answer.NO_BASELINE: "fp32 was not measured here, and speedups are stated against it",
    Answer.NOTHING_LEFT: "fp32 failed, and no other precision is within the error budget",
    Answer.NOTHING_ELSE: "only fp32 was timed",
    Arithmetic.INFINITE: (
        f"{_TRAINED}weights become infinite or NaN where gradients were never over {{border:.2g}}: their squares and "
        f"eps are 0{_GROUPS} ({{eps:g}}, not above 2^-{{power}})"
    ),
    Arithmetic.DIVIDED: (
        f"{_TRAINED}steps are divided by eps alone where gradients were never over {{border:.2g}}: their squares are 0"
        f"{_GROUPS} (root of 2^-{{power}} / (1 - {{decay}}))"
    ),
    Arithmetic.DECAY: (
        f"{_TRAINED}weight decay does nothing{_GROUPS} (lr x weight decay is {{lost:.2g}}, under 2^-{{power}})"
    ),
    Arithmetic.SQUARES: (
        f"{_TRAINED}the running mean of squared gradients cannot decay and only grows{_GROUPS} "
        "(1 - {decay} is {falls:.2g}, under 2^-{power})"
    ),
    Arithmetic.STATISTICS: (
        f"{_TRAINED}running statistics stop about {{away:share}} away from the batches' own "
        "(2^-{power} / momentum {momentum:g})"
    ),
    Hint.NOISE_UNKNOWN: (
        "gradient error {error:error} > {limit:g}, not judged: noise of a batch unknown{cause:if| (||)}; compare "
        "trainings: ampbench study training"
    ),
    Hint.LAUNCH_BOUND: (
        "launch-bound in {bound}: {helps:helps}larger batch{fewer:if|, or ||} (the device has work for "
        "{low:share}{high:if|–|share|} of a step)"
    ),
    Crossing.FROM: f"{_SWEPT} faster from {{parameter}} {{last}} on ({_MEASURED}){_EXCEPT}",
    Crossing.UP_TO: f"{_SWEPT} faster up to {{parameter}} {{first}} ({_MEASURED}){_EXCEPT}",
    Crossing.EVERYWHERE: f"{_SWEPT} faster at every {{parameter}} ({_MEASURED}){_EXCEPT}",
    Crossing.NOWHERE: f"{_SWEPT} faster at no {{parameter}} ({_MEASURED}){_EXCEPT}",
    Crossing.MIXED: f"{_SWEPT} faster at {{parameter}} {{faster}}{{slower:if|, but not at ||}}{_EXCEPT}",
    Crossing.UNCERTAIN: f"{_SWEPT} certainly faster at no {{parameter}}{_EXCEPT}",
    Note.EMULATED: "this {device} emulates {halves}: {halves} times say nothing about other devices",
    Note.IMPORTED: "imported from {program}: {file}{readings:only|; numbers without rounds are the program's own}",
    Note.OTHER_CODE: "{why}",
    Note.CONTROL: "control: {cases} measured twice differs by {apart:share}; ignore smaller differences",
    Note.MODIFIES_INPUTS: (
        "{workloads} modifies its inputs ({names}): they are restored before each step; errors refer to the first step"
    ),
    Note.COMPILED: "{workloads} is compiled by torch.compile already: its eager path is compiled code",
    Note.ROUNDED: "{cases}: torch rounds the factors of fp32 products to {dtypes} here{variables:if| (||)}",
    Note.NOT_ROUNDED: "{cases}: no product was rounded to {dtype}: these are fp32 numbers{variables:if| (||)}",
    Note.NOTHING_CAST: "{cases}: autocast cast nothing to {dtype}: look for autocast(enabled=False) in forward",
    Note.LOSS_CONSTANT: (
        "{cases}: the loss has {constant:g}, which is {rounded} in {dtype} ({op}): compute the loss in fp32, or use a "
        "..._with_logits loss"
    ),
    Note.LOSS_BROKEN: "{cases}: at outputs {at} the loss is finite in fp32 alone: compute the loss in fp32",
    Note.LOSS_ERROR: (
        "{cases}: at outputs {at} the gradient of the loss errs by {error:error}: compute the loss in fp32"
    ),
    Note.CHANNELS_LAST: "{cases}: convolutions in half on tensor cores: try --set memory_format=channels_last",
    Note.ATTENTION: (
        "{tables}: attention runs by {kernels}; differences in time and error include the kernel's"
        "{held:only|; --set sdpa=math gives all precisions the same}"
    ),
    Note.NO_GRAD: "{workloads} does not run in torch.inference_mode: it ran in torch.no_grad",
    Note.OPTIMIZER_MISSES: (
        "{workloads}: {optimizer} does not hold {missed} of {trained} trained weights{names:if| (||)}"
        "{foreign:if|, and holds || that are not the network's}"
    ),
    Note.SWITCHES: "{workloads}: {switches} is reset to torch's default",
    Note.PRESET: "--preset {preset} sets sizes of built-in workloads alone; use --set for {workloads}",
    Note.RANDOM_WEIGHTS: (
        "{workloads}: random weights: a trained network errs differently; load its weights with --set weights=PATH"
    ),
    Note.ABOVE_CEILING: (
        "{cases}: above the measured peak ({share:share}), so the peak or the FLOP count is wrong; measure the "
        "ceilings again: ampbench study ceilings"
    ),
    Note.UNSETTLED: "{cases}: time or clock still changed when the warm-up ended: times may be too short",
    Note.OTHER_PROCESSES: "{processes} used the accelerator during the measurement: end other work, then measure again",
    Note.NO_GRAPHS: "{cases}: torch.compile recorded no graphs and launches kernels one by one: {why}",
    Note.UNSTEADY: (
        "the accelerator was not steady{causes:if|: ||}; let it cool, or end other work on it, and measure again, or "
        "lock its clock (nvidia-smi --lock-gpu-clocks) where only a speedup matters"
    ),
    Note.UNQUIET: (
        "this machine was not quiet{causes:if|: ||}: end other work, then measure again"
        "{threads:only| with --threads 1}, or raise {longer}"
    ),
    Note.SKIPPED: "{names} not run: {why}",
    Note.PENDING: "missing: {names}: {why} ({cases:counted;case})",
}
"""A fact is spelled by `_SPELLED` or a format specification. `{fact:if|before|how|behind}` is "" without the fact,
`{fact:only|words}` without it or where it is false, `{fact:else|words}` with it."""

OF_GATES: Mapping[StrEnum, str] = {
    GateCode.OTHER_FUNCTION: (
        "{count:counted;case} {count:verb;computes;compute} something else: {which}; where that is "
        "meant, a threshold of reference_drift in the policy allows it"
    ),
    GateCode.REGRESSED: "{count:counted;{kind} regression}: {which}",
    GateCode.FAILS: ("{count:counted;case} that {count:verb;was;were} ok {count:verb;fails;fail} now: {which}"),
    GateCode.RULES_CHANGED: "{count:counted;change} of autocast's rules: {which}",
    GateCode.UNDECIDED: (
        "{kind} is undecided: {decided} of {findings:counted;finding} decided ({share:percent}), "
        "the policy asks for {limit:percent}: {which}"
    ),
    GateCode.NOTHING: "no {kind:else|gated number}{kind} can be compared{which:if|: ||}",
    GateCode.NOT_GATED: "not gated, as there are no numbers: {which}",
    GateCode.FAILED: "{count:counted;case} failed in the candidate: {which}",
    GateCode.CONTROL_FIRED: "the control fired: no time is judged",
    GateCode.OTHER_NUMBERS: ("other weights, inputs or workload versions in {count:counted;case}: {which}"),
    GateCode.LOST: "{count:counted;finding} not comparable: {which}",
    GateCode.SKIPPED: "the candidate skipped {count:counted;case}: {which}",
    GateCode.MISSING: "the candidate lacks {count:counted;case} of the baseline: {which}",
    GateCode.RULES_UNSEEN: "{which}",
    GateCode.IDLE_RULE: "rule {number} of the policy matches no case that is compared",
    GateCode.IDLE_IGNORE: "ignore {number} of the policy ({which}) matches no case: it may have done its work",
}
"""The templates of a gate's points."""

CAUSES: Mapping[str, str] = {
    Cause.UNKNOWN: "not measured",
    Cause.FEW_ROUNDS: "fewer than three rounds: raise {longer}",
    Cause.OPEN: "raise {longer} to decide",
    Cause.BUSY: "the machine was busy",
    Cause.CONTROL: "one case, measured twice, differs by more",
    Cause.IMPLAUSIBLE: "no hardware gains that much",
}
"""Why a number is not certain."""

FURTHER: Mapping[str, str] = {
    "looks": "{looks} looks {looks_speed:times} as fast, but not certainly; {cause}",
    "equal": "{equal} is as fast within the intervals, nearer to a limit",
}
"""Other precisions that an answer names, by the fact."""

REFUSALS: Mapping[str, tuple[str, str]] = {
    Refusal.OUTPUTS: ("not finite", "count"),
    Refusal.PARAMETERS: ("weights not finite", "count"),
    Refusal.GRADIENTS: ("gradient not finite", "count"),
    Refusal.INPUT_RANGE: ("input range", "times"),
    Refusal.TARGET_RANGE: ("target range", "times"),
    Refusal.SCALE: ("loss scale", "scale"),
    Refusal.SPREAD: ("error over spread", "times"),
    Refusal.LOSS_BREAKS: ("loss breaks", ""),
    Refusal.LOSS_GRADIENT: ("loss gradient", "error"),
    Refusal.ERROR: ("output error", "error"),
    Refusal.GRADIENT_ERROR: ("gradient error", "error"),
    Refusal.UPDATE: ("updates lost", "share"),
    Refusal.UPDATE_OF_TENSOR: ("an update lost", "share"),
    Refusal.UNMOVED: ("weights unmoved", "share"),
    Refusal.NO_ROOM: ("no room for updates", "share"),
    Refusal.GRADIENT_OF_TENSOR: ("a gradient's error", "error"),
    Refusal.PROBABILITIES: ("probabilities", "error"),
    Refusal.WORST_PROBABILITIES: ("a probability", "error"),
    Refusal.LOG_PROBABILITIES: ("log-probabilities", "error"),
    Refusal.WORST_LOG_PROBABILITIES: ("a log-probability", "error"),
    Refusal.LOSS_FINITE: ("loss not finite", ""),
    Refusal.LOSS: ("loss error", "error"),
    Refusal.DECISIONS: ("decisions changed", "share"),
    Refusal.FLUSHED: ("gradients flushed", "share"),
    Refusal.STATISTICS: ("running statistics", "share"),
    Refusal.SKIPPED: ("steps skipped", "count"),
    Refusal.TRAINS_WORSE: ("training", "worse"),
}
"""The reason of each refusal, and the spelling of its number and its limit; docs/advice.md explains each."""

BRIEFLY: Mapping[str, str] = {
    **{code: brief for code, (brief, _) in REFUSALS.items()},
    Undecided.NOT_MEASURED: "not measured",
    Undecided.NO_REFERENCE: "no error known",
    Undecided.ZERO_REFERENCE: "zero output",
    Undecided.NO_ERROR: "no error defined",
    Undecided.NO_GRADIENT_ERROR: "no gradient error",
    Undecided.NO_OPTIMIZER: "no optimizer",
    Undecided.NO_UPDATE: "updates unknown",
    Undecided.BY_CHANCE: "by chance",
    Answer.ONLY: "fp32 failed",
    Answer.STAY: "no gain",
    Answer.UNCERTAIN: "not certain",
    Answer.ALONE: "others failed",
    Answer.NO_BASELINE: "fp32 not measured",
    Answer.NOTHING_LEFT: "fp32 failed",
    Answer.NOTHING_ELSE: "only fp32 timed",
}
"""Verdicts and answers in about two words, for tables of many networks."""

_SPELLED: Mapping[str, Callable[..., str]] = MappingProxyType(
    {
        **FORMATS,
        "error": format_error,
        "share": format_share,
        "kept": format_kept,
        "times": times,
        "counted": counted,
        "percent": format_percent,
        "limit": format_limit,
        "verb": lambda count, singular, plural: singular if count == 1 else plural,
        "elements": lambda count: counted(int(count), "element"),
        "helps": {"": "", "no": "no precision helps; ", "unseen": "no precision is seen to help; "}.__getitem__,
    }
)


class _Words(string.Formatter):
    """Spells facts as `TEMPLATES` say; `{are}` stands for "3 of 8 output elements are", from three facts."""

    def get_value(self, key: int | str, _: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return _are(**kwargs) if key == "are" else kwargs.get(str(key), "")

    def format_field(self, value: Any, format_spec: str) -> str:
        how, *words = format_spec.split("|")
        if how == "only":
            return words[0] if value else ""
        if how == "else":
            return "" if value else words[0]
        if how == "if":
            return "" if value == "" else f"{words[0]}{self.format_field(value, words[1])}{words[2]}"
        how, *words = format_spec.split(";")
        if value == "" and how in FORMATS:
            return UNDEFINED
        return _SPELLED[how](value, *words) if how in _SPELLED else format(value, format_spec)


def _are(count: int, what: str, elements: int | None = None, **_: Any) -> str:
    noun = "element" if (elements or count) == 1 else "elements"
    of = f" of {elements:,}" if elements else ""  # runs converted from other formats do not tell
    return f"{count:,}{of} {what} {noun} {'is' if count == 1 else 'are'}"


def spelled(template: str, facts: Mapping[str, float | str]) -> str:
    """Return a template with its facts spelled."""
    return _Words().vformat(template, (), facts)


def words(statement: Statement, **names: str) -> str:
    """Return a statement in a plain line; `names` are the names of its cases, tables and workloads."""
    templates = OF_GATES if isinstance(statement.code, GateCode) else TEMPLATES
    return spelled(templates[statement.code], {**names, **statement.facts})


def briefly(code: str | None) -> str:
    """Return the code of a verdict or an answer in two or three words; "" for None."""
    return BRIEFLY.get(code, "network not finite") if code else ""


def row_words(row: Mapping[str, Any]) -> str:
    """Return the verdict of a row in a cell or, of one that was not measured, its outcome and why."""
    if row["outcome"] == "ok":
        return verdict_words(row)
    return f"{'missing' if isinstance(row['reason'], Pending) else row['outcome']}: {row['reason']}"


def verdict_words(row: Mapping[str, Any]) -> str:
    """Return the verdict of a row in a cell: "ok", "refused: updates lost 4.2% > 2%", "undecided: no optimizer"."""
    status = row.get("verdict")
    if status is None or row["outcome"] != "ok":
        return ""
    if status not in (Status.REFUSED, Status.UNDECIDED):
        return str(status)
    number, limit, subject = (row.get(f"verdict_{name}") for name in ("number", "limit", "subject"))
    return f"{status}: {against(row['verdict_code'], number, limit, subject)}"


def against(code: str, number: float | None, limit: float | None, subject: str | None = "") -> str:
    """Return the reason of a refusal with the number, its limit and the place: "updates lost 4.2% > 2% in waves"."""
    brief, unit = briefly(code), REFUSALS[code][1] if code in REFUSALS else ""
    if not unit or number is None or math.isnan(number):
        return brief
    numbers = {
        "count": f": {number:,.0f}",
        "worse": f" {100 * number:.2g}% worse",
        "scale": f" 1/{number:.3g} < 1",
        "times": f" {times(number)} > {times(limit or 0.0)}",
        "share": f" {100 * number:.3g}% > {100 * (limit or 0.0):.3g}%",
        "error": f" {format_error(number)} > {limit or 0.0:g}",
    }
    return f"{brief}{numbers[unit]}{f' in {subject}' if subject and unit in ('times', 'share', 'error') else ''}"


UNRUN = (Note.SKIPPED, Note.PENDING)
"""Notes on cases without a row."""


def lines(statements: Iterable[Statement], cases: Mapping[str, Case], *, everything: bool = True) -> list[str]:
    """Return statements about the `cases` of a run in plain lines; those differing only in their case are joined.

    Without `everything`, only statements that change a decision, and no causes.
    """
    alike: dict[tuple[object, ...], list[Statement]] = {}
    for statement in statements:
        if everything or statement.severity is not Severity.INFO or statement.code in UNRUN:
            facts = {name: fact for name, fact in statement.facts.items() if everything or name != "causes"}
            alike.setdefault((statement.code, statement.severity, *facts.items()), []).append(
                replace(statement, facts=facts)
            )
    if not alike:
        return []
    labels, tables = case_labels(cases.values()), case_labels(cases.values(), precision=False)
    texts = []
    for first, *others in alike.values():
        subjects = [statement.subject for statement in (first, *others) if statement.subject]
        names = {
            "cases": few(labels[subject] for subject in subjects),
            "tables": few(tables[subject] for subject in subjects),
            "workloads": few(cases[subject].workload for subject in subjects),
        }
        text = words(first, **names)
        texts.append(f"{names['tables']}: {text}" if isinstance(first.code, Flaw) else text)
    return texts


def answer(statement: Statement) -> str:
    """Return in a sentence which precision of a table to take, and why."""
    precision, gain = statement.facts.get("precision"), gains(statement)
    if gain:
        return "; ".join(filter(None, [f"take {precision}: {gain}", why(statement)]))
    head = "no advice" if precision is None else f"{'take' if statement.code is Answer.ONLY else 'stay in'} {precision}"
    return f"{head}: {why(statement)}"


def gains(statement: Statement) -> str:
    """Return the gain of the precision to take, "" without a known gain."""
    return words(statement) if statement.code in (Answer.TAKE, Answer.SAVE) else ""


def why(statement: Statement) -> str:
    """Return the reasons of an answer, such as a precision that is passed over; "" without any."""
    facts: Mapping[str, Any] = statement.facts
    reasons = [words(statement)] if statement.code in TEMPLATES and not gains(statement) else []
    reasons += [spelled(CAUSES[facts["cause"]], facts)] if "cause" in facts else []
    reasons += [_passed(facts)] if "passed" in facts else []
    cause = spelled(CAUSES[facts["looks_cause"]], facts) if "looks" in facts else ""
    reasons += [spelled(template, {**facts, "cause": cause}) for fact, template in FURTHER.items() if fact in facts]
    return "; ".join(reasons)


def _passed(facts: Mapping[str, Any]) -> str:
    """Return which faster or smaller precision is not taken, why, and the remedy."""
    code = facts["passed_code"]
    place = spelled("{passed_steps:if| after |counted;step|}", facts)
    reason = words(Statement(code=code)) if code in TEMPLATES else f"refused ({briefly(code)}{place})"
    remedy = f"; try {facts['remedy']}" if "remedy" in facts else ""
    gain = f"takes {times(facts['passed_memory'])} the memory" if "passed_memory" in facts else ""
    if not gain and "passed_speed" in facts:
        gain = f"{'looks' if 'passed_cause' in facts else 'is'} {times(facts['passed_speed'])} as fast"
    return f"{facts['passed']}{f' {gain}, but' if gain else ':'} {reason}{remedy}"

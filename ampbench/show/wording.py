"""The words of statements: one plain line for each code, whose facts are spelled by what stands behind their names."""

import math
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from ampbench.core.budget import ROOM
from ampbench.core.statement import Answer, Arithmetic, Flaw, Hint, Note, Refusal, Severity, Statement, Undecided
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
from ampbench.records.labels import FP32_INSTEAD, case_labels, few

_TRAINED = "{precision}{optimizer:if| with ||: }"
_GROUPS = "{many:if| in |,|}{groups:if| of |counted;parameter group|}"
_IN_RANGE = ", though finite in fp64: the network leaves fp32's range"

_AGAINST = "{against:if| against the anchor ||}"

TEMPLATES: Mapping[StrEnum, str] = {
    Flaw.REFERENCE_NAN: "{are} NaN in {dtype} already: the network, not a precision, makes them",
    Flaw.REFERENCE_INFINITE: "{are} infinite, in {dtype}, too: the error is that of the others",
    Flaw.REFERENCE_LOSS: (
        "the loss is not finite in fp64 already: the network or its loss, not a precision, makes it so"
    ),
    Flaw.REFERENCE_IS_FP32: FP32_INSTEAD.format("{why}"),
    Flaw.REFERENCE_FAILED: "no error is known, as the fp64 reference failed: {why}",
    Flaw.FP32_OUTPUT: f"{{are}} not finite in fp32 already{_IN_RANGE}",
    Flaw.FP32_GRADIENT: f"{{are}} not finite in fp32 already{{alone:only|{_IN_RANGE}}}",
    Flaw.FP32_LOSS: f"the loss is not finite in fp32 already{{alone:only|{_IN_RANGE}}}",
    Flaw.NO_ERROR: "no error is defined: {why}",
    Refusal.OUTPUTS: "its output is not finite ({number:elements})",
    Refusal.PARAMETERS: "its parameters are not finite after a step ({number:elements})",
    Refusal.GRADIENTS: "its gradients are not finite ({number:elements})",
    Refusal.INPUT_RANGE: "its inputs reach {number:times} the largest number of the dtype that they are given in",
    Refusal.TARGET_RANGE: "its targets reach {number:times} the largest number of the dtype of its output",
    Refusal.SCALE: "its gradients are finite only if the loss is divided by {number:.3g}: no loss scale helps",
    Refusal.SPREAD: (
        "its error{subject:if| in ||} is {number:times} what the rows of that output differ by, more than {limit:times}"
    ),
    Refusal.ERROR: "its error{subject:if| in ||} is {number:error}, more than {limit:g}",
    Refusal.GRADIENT_ERROR: "its gradient error is {number:error}, more than {limit:g}",
    Refusal.UPDATE: "{number:kept} of its updates are lost{subject:if| to the rounding of ||}, more than {limit:limit}",
    Refusal.UPDATE_OF_TENSOR: "{number:kept} of the update of {subject} is lost, more than {limit:limit}",
    Refusal.UNMOVED: "weights that carry {number:share} of its updates never move, more than {limit:limit}",
    Refusal.NO_ROOM: (
        f"of updates {ROOM} times smaller, as training settles, {{number:share}} are lost, more than {{limit:limit}}"
    ),
    Refusal.GRADIENT_OF_TENSOR: "the gradient of {subject} errs by {number:error}, more than {limit:g}",
    Refusal.BIAS: (
        "its gradients err alike in all batches, by {number:share} of what batches differ by, more than {limit:limit}"
    ),
    Refusal.SAMPLES: "the errors of its samples reach {number:error} at their 99% quantile, more than {limit:g}",
    Refusal.WORST_SAMPLE: "its worst sample errs by {number:error}, more than {limit:g}",
    Refusal.PROBABILITIES: "its probabilities lie {number:error} nats from fp64's, more than {limit:g}",
    Refusal.WORST_PROBABILITIES: (
        "its probabilities lie {number:error} nats from fp64's at the 99% quantile, more than {limit:g}"
    ),
    Refusal.LOSS_FINITE: "its loss is not finite",
    Refusal.LOSS: "its loss is off by {number:error}, more than {limit:g}",
    Refusal.DECISIONS: "{number:share} of its decisions are not fp64's, more than {limit:limit}",
    Refusal.FLUSHED: "{number:share} of its gradients became zero, fp32's apart, more than {limit:limit}",
    Refusal.STATISTICS: (
        "running statistics, as they are stored, stop {number:share} away from those of batches, more than "
        "{limit:limit}: keep these modules in fp32"
    ),
    Refusal.SKIPPED: "GradScaler skipped {number:,.0f} steps after its scale had settled",
    Refusal.TRAINS_WORSE: "it does not train as fp32 does{number:if|: it ends |share| worse} ({subject})",
    Undecided.NOT_MEASURED: "it was not measured",
    Undecided.NO_REFERENCE: "its error was not measured",
    Undecided.ZERO_REFERENCE: (
        "its error is undefined, as the output is zero: train a few steps first, or give weights that are trained"
    ),
    Undecided.NO_ERROR: "its error is undefined",
    Undecided.NO_GRADIENT_ERROR: "its gradient error is undefined",
    Undecided.NO_OPTIMIZER: "it is not judged without an optimizer: --optimizer adamw:lr=3e-4",
    Undecided.NO_UPDATE: "what its weights in half lose of an update is not known",
    Undecided.BY_CHANCE: (
        "its error means nothing: two fp64 steps differ, too, as the network draws random numbers or keeps state"
    ),
    Answer.STAY: "nothing is faster, at best {best} with {best_speed:times}",
    Answer.UNCERTAIN: "no speedup is certain, at best {best} with {best_speed:times}{cause:if|; |cause|}",
    Answer.ALONE: "every other precision failed",
    Answer.ONLY: "fp32 failed, and this is the fastest within the error budget",
    Answer.NO_BASELINE: "fp32 was not measured here, and speedups are stated against it",
    Answer.NOTHING_LEFT: "fp32 failed, and no other precision is within the error budget",
    Answer.NOTHING_ELSE: "no other precision was measured",
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
        f"{_TRAINED}running statistics stop about {{away:share}} away from those of batches "
        "(2^-{power} / momentum {momentum:g})"
    ),
    Hint.SCALE: (
        "GradScaler skips {steps:counted;step} at first, by its default scale of {default:,.0f}: begin at "
        "init_scale={scale:g}"
    ),
    Hint.LAUNCH_BOUND: (
        "launch-bound in {bound}: {helps:helps}larger batch{fewer:if|, or ||} (the device has work for "
        "{low:share}{high:if|–|share|} of a step)"
    ),
    Hint.OTHER_TABLE: (
        "of the {tables} tables of {workload}{batch:if| batch ||} {phase}, {precision} in {there} is fastest: "
        "{speed:times} the speed of {than} in {here}"
    ),
    Note.EMULATED: "this {device} emulates {halves}: {halves} times say nothing about other devices",
    Note.DEVICE: "{why}",
    Note.INCOMPLETE: "this run {why}",
    Note.IMPORTED: "imported from {program}: {file}{readings:only|; numbers without rounds are the program's own}",
    Note.OTHER_CODE: "{why}",
    Note.CONTROL: "control: {cases} measured twice differs by {apart:share}; ignore smaller differences",
    Note.MODIFIES_INPUTS: (
        "{workloads} modifies its inputs ({names}): they are restored before each step; errors refer to the first step"
    ),
    Note.COMPILED: "{workloads} is compiled by torch.compile already: its eager path is compiled code",
    Note.ROUNDED: "{cases}: fp32 is not fp32 here: factors of products are rounded to {dtypes}{variables:if| (||)}",
    Note.NOT_ROUNDED: "{cases}: no fp32 product was rounded to {dtype}: this is fp32{variables:if| (||)}",
    Note.ATTENTION: (
        "{tables}: attention runs by {kernels}; differences in time and error include the kernel's"
        "{held:only|; --set sdpa=math gives all precisions the same}"
    ),
    Note.NO_GRAD: "{workloads} does not run in torch.inference_mode: it ran in torch.no_grad",
    Note.LOADED: "{workloads}: weights loaded in {dtypes}",
    Note.OPTIMIZER_MISSES: (
        "{workloads}: {optimizer} does not hold {missed} of {trained} trained weights{names:if| (||)}"
        "{foreign:if|, and holds || that are not the network's}"
    ),
    Note.SWITCHES: "{workloads}: {switches} is reset to torch's default",
    Note.PRESET: "--preset {preset} sets sizes of built-in workloads alone; use --set for {workloads}",
    Note.RANDOM_WEIGHTS: (
        "{workloads}: random weights: errors are not those of a trained network; --set weights=PATH loads trained ones"
    ),
    Note.NO_CEILING: "no ceiling of {operations} is known here: ampbench study ceilings, then measure again",
    Note.ABOVE_CEILING: (
        "{cases}: above the measured peak ({share:share}), so the peak or the FLOP count is wrong; measure the "
        "ceilings again: ampbench study ceilings"
    ),
    Note.POWER_LIMIT: "{device} {why}: times hold under this limit",
    Note.UNSETTLED: "{cases}: time or clock still changed when the warm-up ended: times may be too short",
    Note.OTHER_PROCESSES: "{processes} used the accelerator during the measurement: end other work, then measure again",
    Note.NO_TELEMETRY: "{device}: clock, power and temperature are not all known: {why}",
    Note.NO_GRAPHS: "{cases}: torch.compile left graphs aside, and launches one by one: {why}",
    Note.UNSTEADY: (
        "the accelerator was not steady{causes:if|: ||}; let it cool, or end other work on it, and measure again, or "
        "lock its clock (nvidia-smi --lock-gpu-clocks) where only a speedup matters"
    ),
    Note.UNQUIET: (
        "this machine was not quiet{causes:if|: ||}; measure again when other work has ended, or with "
        "{threads:only|--threads 1 and }more --rounds"
    ),
    Note.SKIPPED: "{names} not run: {why}",
    Note.PENDING: "missing: {names}: {why} ({cases:counted;case})",
    Note.SWEEP: (
        "by {parameter}, {table}: {values}{first:if|; low precision pays from || on}"
        "{last:if|; low precision does not pay at ||}"
    ),
    Note.SLOWER_MACHINE: (
        "{machine} is slower than {others}, machines of the same kind: in {cases} of {of:counted;case} its times are "
        "{ratio:times} theirs (median)"
    ),
    Note.FASTER_MACHINE: (
        "{machine} is faster than {others}, machines of the same kind: in {cases} of {of:counted;case} its times are "
        "{ratio:times} theirs (median)"
    ),
}
"""A fact is spelled by `_SPELLED`, by a format specification, or not at all: `{fact:if|before|how|behind}` is "" where
there is none of that name, `{fact:only|words}` where it is none or false, `{fact:else|words}` where it is any."""

OF_GATES: Mapping[StrEnum, str] = {
    GateCode.OTHER_FUNCTION: (
        f"{{count:counted;case}} {{count:verb;computes;compute}} something else{_AGAINST}: {{which}}; where that is "
        "meant, the policy can allow it (reference_drift in docs/gate.md)"
    ),
    GateCode.REGRESSED: f"{{count:counted;{{kind}} regression}}{_AGAINST}: {{which}}",
    GateCode.FAILS: (
        f"{{count:counted;case}} that {{count:verb;was;were}} ok {{count:verb;fails;fail}} now{_AGAINST}: {{which}}"
    ),
    GateCode.RULES_CHANGED: f"{{count:counted;change}} of autocast's rules{_AGAINST}: {{which}}",
    GateCode.UNDECIDED: (
        f"{{kind}} is undecided{_AGAINST}: {{decided}} of {{findings:counted;finding}} decided ({{share:percent}}), "
        "the policy asks for {limit:percent}: {which}"
    ),
    GateCode.NOTHING: f"no {{kind:else|gated number}}{{kind}} can be compared{_AGAINST}{{which:if|: ||}}",
    GateCode.ANCHOR: "the anchor cannot be compared: {which}",
    GateCode.NOT_GATED: "not gated, as there are no numbers: {which}",
    GateCode.FAILED: "{count:counted;case} failed in the candidate: {which}",
    GateCode.CONTROL_FIRED: f"the control fired{_AGAINST}: no time is judged",
    GateCode.OTHER_NUMBERS: (
        f"other weights, inputs or workload versions in {{count:counted;case}}{_AGAINST}: {{which}}"
    ),
    GateCode.LOST: f"{{count:counted;finding}} not comparable{_AGAINST}: {{which}}",
    GateCode.SKIPPED: f"the candidate skipped {{count:counted;case}}{_AGAINST}: {{which}}",
    GateCode.MISSING: (
        "the candidate lacks {count:counted;case} of the {against:if|anchor ||}{against:else|baseline}: {which}"
    ),
    GateCode.RULES_UNSEEN: f"{{which}}{_AGAINST}",
    GateCode.RULES_NOTED: f"not judged{_AGAINST}: {{which}}",
    GateCode.IDLE_RULE: "rule {number} of the policy matches no case that is compared",
    GateCode.IDLE_IGNORE: "ignore {number} of the policy ({which}) matches no case: it may have done its work",
}
"""Those of the points of a gate."""

CAUSES: Mapping[str, str] = {
    Cause.UNKNOWN: "not measured",
    Cause.FEW_ROUNDS: "no interval under three rounds",
    Cause.OPEN: "more --rounds may tell",
    Cause.BUSY: "the machine was busy",
    Cause.CONTROL: "the run's own control, one case measured twice, differs by more",
    Cause.IMPLAUSIBLE: "no hardware gains so much",
}
"""Why a number is not certain."""

BRIEFLY: Mapping[StrEnum | None, str] = {
    Refusal.OUTPUTS: "not finite",
    Refusal.PARAMETERS: "weights not finite",
    Refusal.GRADIENTS: "gradient not finite",
    Refusal.INPUT_RANGE: "input range",
    Refusal.TARGET_RANGE: "target range",
    Refusal.SCALE: "loss scale",
    Refusal.SPREAD: "error over spread",
    Refusal.ERROR: "output error",
    Refusal.GRADIENT_ERROR: "gradient error",
    Refusal.UPDATE: "updates lost",
    Refusal.UPDATE_OF_TENSOR: "an update lost",
    Refusal.UNMOVED: "weights unmoved",
    Refusal.NO_ROOM: "no room for updates",
    Refusal.GRADIENT_OF_TENSOR: "a gradient's error",
    Refusal.BIAS: "biased gradients",
    Refusal.SAMPLES: "samples' errors",
    Refusal.WORST_SAMPLE: "a sample's error",
    Refusal.PROBABILITIES: "probabilities",
    Refusal.WORST_PROBABILITIES: "a probability",
    Refusal.LOSS_FINITE: "loss not finite",
    Refusal.LOSS: "loss error",
    Refusal.DECISIONS: "decisions changed",
    Refusal.FLUSHED: "gradients flushed",
    Refusal.STATISTICS: "running statistics",
    Refusal.SKIPPED: "steps skipped",
    Refusal.TRAINS_WORSE: "training",
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
    Answer.NOTHING_ELSE: "only fp32 measured",
}
"""What a verdict or an answer is by, in the two words that a table of many networks has room for."""

_IN_SHARES = frozenset(
    {Refusal.UPDATE, Refusal.UPDATE_OF_TENSOR, Refusal.UNMOVED, Refusal.NO_ROOM, Refusal.BIAS}
    | {Refusal.DECISIONS, Refusal.FLUSHED, Refusal.STATISTICS}
)
_IN_TIMES = frozenset({Refusal.INPUT_RANGE, Refusal.TARGET_RANGE, Refusal.SPREAD})

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
        "cause": CAUSES.__getitem__,
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
    """Return a statement in a plain line; `names` are those of its cases, tables and workloads."""
    templates = OF_GATES if isinstance(statement.code, GateCode) else TEMPLATES
    return spelled(templates[statement.code], {**names, **statement.facts})


def code_words(row: Mapping[str, Any]) -> str:
    """Return the code of a row's verdict in two words or three; "" where there is none."""
    code = row.get("verdict_code")
    return BRIEFLY.get(code, "network not finite") if code else ""


def verdict_words(row: Mapping[str, Any]) -> str:
    """Return the verdict of a row in a cell: "ok", "refused: updates lost 4.2% > 2%", "undecided: no optimizer"."""
    status = row.get("verdict")
    if status is None or row["outcome"] != "ok":
        return ""
    return f"{status}: {_against(row)}" if status in (Status.REFUSED, Status.UNDECIDED) else str(status)


def _against(row: Mapping[str, Any]) -> str:
    """Return by which number over which limit a row is refused, in what; or why it is undecided."""
    code, value, limit = row["verdict_code"], row.get("verdict_number"), row.get("verdict_limit")
    brief = code_words(row)
    if row["verdict"] == Status.UNDECIDED or value is None or math.isnan(value):
        return brief
    if code == Refusal.TRAINS_WORSE:
        return f"trains {100 * value:.2g}% worse"
    if not limit or math.isnan(limit):
        return brief if code == Refusal.LOSS_FINITE else f"{brief}: {value:,.0f}"
    if code == Refusal.SCALE:
        return f"{brief} 1/{value:.3g} < 1"
    if code in _IN_TIMES:
        numbers = f"{times(value)} > {times(limit)}"
    elif code in _IN_SHARES:
        numbers = f"{100 * value:.3g}% > {100 * limit:.3g}%"
    else:
        numbers = f"{format_error(value)} > {limit:g}"
    subject = row.get("verdict_subject")
    return f"{brief} {numbers}{f' in {subject}' if subject else ''}"


UNRUN = (Note.SKIPPED, Note.PENDING)
"""Notes on cases without a row."""


def lines(statements: Iterable[Statement], cases: Mapping[str, Case], *, everything: bool = True) -> list[str]:
    """Return statements about the `cases` of a run in plain lines: those that differ in their case alone are one.

    Unless `everything` is wanted, what changes what to do, and not why.
    """
    alike: dict[tuple[object, ...], list[Statement]] = {}
    for each in statements:
        if everything or each.severity is not Severity.INFO or each.code in UNRUN:
            facts = {name: fact for name, fact in each.facts.items() if everything or name != "causes"}
            alike.setdefault((each.code, each.severity, *facts.items()), []).append(replace(each, facts=facts))
    if not alike:
        return []
    labels, tables = case_labels(cases.values()), case_labels(cases.values(), precision=False)
    texts = []
    for first, *others in alike.values():
        subjects = [each.subject for each in (first, *others) if each.subject]
        names = {
            "cases": few(labels[subject] for subject in subjects),
            "tables": few(tables[subject] for subject in subjects),
            "workloads": few(cases[subject].workload for subject in subjects),
        }
        text = words(first, **names)
        texts.append(f"{names['tables']}: {text}" if isinstance(first.code, Flaw) else text)
    return texts


def briefly(code: StrEnum | None) -> str:
    """Return what a verdict is by in a word or three."""
    return "network not finite" if isinstance(code, Flaw) else BRIEFLY[code]


def answer(statement: Statement) -> str:
    """Return in a sentence which precision of a table to take, and why."""
    precision = statement.facts.get("precision")
    if statement.code in (Answer.TAKE, Answer.SAVE):
        return "; ".join(filter(None, [f"take {precision}: {gains(statement)}", why(statement)]))
    head = "no advice" if precision is None else f"{'take' if statement.code is Answer.ONLY else 'stay in'} {precision}"
    return f"{head}: {why(statement)}"


def gains(statement: Statement) -> str:
    """Return what taking a precision gains, "" where that is nothing or not known."""
    facts: Mapping[str, Any] = statement.facts
    if statement.code not in (Answer.TAKE, Answer.SAVE):
        return ""
    saved = f"{times(facts['memory'])} the memory" if "memory" in facts else ""
    if statement.code is Answer.SAVE:
        gained = f"{saved} of {facts['than']} at its speed"
    else:
        gained = f"{times(facts['speed'])} the speed{f' and {saved}' if saved else ''} of {facts['than']}"
    return gained + (f" ({times(facts['over_fp32'])} the speed of fp32 with tf32 off)" if "over_fp32" in facts else "")


def why(statement: Statement) -> str:
    """Return what else is to be said of an answer: what is passed over, and why; "" where that is nothing."""
    facts: Mapping[str, Any] = statement.facts
    said = [words(statement)] if statement.code in TEMPLATES else []
    if "passed" in facts:
        said.append(_passed(facts))
    if "looks" in facts:
        cause = CAUSES[facts["looks_cause"]] if facts["looks_cause"] else "more --rounds may tell"
        said.append(f"{facts['looks']} looks {times(facts['looks_speed'])} as fast, but that is not certain; {cause}")
    if "equal" in facts:
        said.append(f"{facts['equal']} is as fast within the intervals, nearer to a limit")
    return "; ".join(said)


def refusal(code: StrEnum, number: float | None, limit: float | None, subject: str = "") -> str:
    """Return what keeps a precision from being ok."""
    known = {"number": number, "limit": limit, "subject": subject or None}
    facts = {name: fact for name, fact in known.items() if fact is not None}
    return "its network is not finite" if isinstance(code, Flaw) else words(Statement(code=code, facts=facts))


def _passed(facts: Mapping[str, Any]) -> str:
    """Return what is faster or smaller and is not taken, why not, and what helps."""
    what = f"takes {times(facts['passed_memory'])} the memory" if "passed_memory" in facts else ""
    if not what and "passed_speed" in facts:
        what = f"{'looks' if 'passed_cause' in facts else 'is'} {times(facts['passed_speed'])} as fast"
    code, number, limit = facts["passed_code"], facts.get("passed_number"), facts.get("passed_limit")
    reason = refusal(code, number, limit, facts.get("passed_subject", ""))
    remedy = f"; try {facts['remedy']}" if "remedy" in facts else ""
    if not what or (facts["passed"] == facts.get("best") and "passed_speed" in facts):  # whose speed has been told
        return f"{facts['passed']}: {reason}{remedy}"
    return f"{facts['passed']} {what}, but {reason}{remedy}"

"""The words of statements: one plain line for each code, whose facts are spelled by what stands behind their names."""

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from ampbench.base.statement import Flaw, Note, Refusal, Remedy, Severity, Statement
from ampbench.base.units import counted, format_error, format_kept, format_percent, format_share, times
from ampbench.records.case import Case
from ampbench.records.changes import GateCode
from ampbench.records.labels import AGAINST_FP32, FP32_INSTEAD, case_labels, few
from ampbench.records.measured import CHANCE

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
    Flaw.ELEMENTS: "{are} not finite",
    Flaw.UNDEFINED: "{why}",
    Flaw.PARAMETERS: "{are} not finite after one step, though the gradients are",
    Flaw.NO_ERROR: "no error is defined: {why}",
    Refusal.BY_CHANCE: CHANCE.replace("{", "{apart"),
    Refusal.PARAMETERS: "{are} not finite after one step",
    Refusal.PARAMETERS_LATER: "{are} not finite after the timed steps",
    Refusal.UNKNOWN: "its {column:column} was not measured",
    Refusal.GRADIENTS: "its {column:column} is undefined: {are} not finite",
    Refusal.NO_VALUE: "its {column:column} is undefined{why:if|: ||}",
    Refusal.ERROR: (
        f"its {{column:column}}{{output:if| in ||}} is {{value:error}}{{reference:only| ({AGAINST_FP32})}}, more than "
        "{limit:g}"
    ),
    Refusal.UPDATE: "it keeps {kept:kept} of its updates{still:if|: |share| of the weights that should move do not}",
    Refusal.UPDATE_OF_TENSOR: "{parameter} keeps {kept:kept} of its update",
    Refusal.UNMOVED: (
        "{still:share} of the weights that should move do not, and these carry {energy:share} of its updates"
    ),
    Refusal.NO_ROOM: (
        "its updates have no room to become smaller, as training settles: of 1/{room} of them {lost:share} is lost"
    ),
    Refusal.GRADIENT_OF_TENSOR: (
        "the gradient of {parameter} errs by {value:error}, more than {limit:g}, {times} times what is allowed of all"
    ),
    Refusal.BIAS: "its gradients err alike in all batches, by {ratio:share} of what batches differ by",
    Refusal.SAMPLES: "the errors of its samples reach {value:error} at their 99% quantile, more than {limit:g}",
    Refusal.WORST_SAMPLE: "its worst sample errs by {value:error}, more than {limit:g}",
    Refusal.PROBABILITIES: "its probabilities lie {value:error} nats from fp64's, more than {limit:g}",
    Refusal.WORST_PROBABILITIES: (
        "its probabilities lie {value:error} nats from fp64's at the 99% quantile, more than {limit:g}"
    ),
    Refusal.LOSS: "its loss is off by {value:error}, more than {limit:g}",
    Refusal.DECISIONS: "{value:share} of its decisions are fp64's, less than {limit:share}",
    Refusal.FLUSHED: (
        "{value:share} of its gradients became zero, more than {limit:share}{unavoidable:if| above fp32's |share|}"
    ),
    Refusal.SKIPPED: "GradScaler skipped {steps} steps",
    Refusal.TRAINS_WORSE: "it does not train as fp32 does: {why} ({study})",
    Remedy.MASTER_WEIGHTS: "fp32 master weights keep them, at {bytes} bytes a parameter",
    Remedy.OTHER_PRECISION: (
        "{precision} keeps the updates: {speed:times} the speed of fp32"
        "{bytes:if|, |counted;byte;bytes| a parameter more than }{than}"
    ),
    Remedy.TRAIN_FIRST: "train a few steps first, or give weights that are trained",
    Note.EMULATED: "{why}",
    Note.DEVICE: "{why}",
    Note.INCOMPLETE: "this run {why}",
    Note.IMPORTED: "imported from {program}: {file}{readings:only|; numbers without rounds are the program's own}",
    Note.OTHER_CODE: "{why}",
    Note.CONTROL: "control: {cases} measured twice differs by {apart:share}; ignore smaller differences",
    Note.BY_CHANCE: f"{{workloads}}: {CHANCE.replace('{', '{apart')}",
    Note.MODIFIES_INPUTS: (
        "{workloads} modifies its inputs ({names}): they are restored before each step; errors refer to the first step"
    ),
    Note.COMPILED: "{workloads} is compiled by torch.compile already: its eager path is compiled code",
    Note.ROUNDED: "{cases}: fp32 is not fp32 here: factors of products are rounded to {dtypes}{variables:if| (||)}",
    Note.NOT_ROUNDED: "{cases}: no fp32 product was rounded to {dtype}: this is fp32{variables:if| (||)}",
    Note.ATTENTION: (
        "{tables}: attention runs by {kernels}; differences in time and error include the kernel's"
        "{held:only|; --sdpa math gives all precisions the same}"
    ),
    Note.SWITCHES: "{workloads}: {switches} is reset to torch's default; --keep-flags keeps it",
    Note.PRESET: "--preset {preset} sets sizes of built-in workloads alone; use --set for {workloads}",
    Note.RANDOM_WEIGHTS: (
        "{workloads}: random weights: errors are not those of a trained network; --set weights=PATH loads trained ones"
    ),
    Note.CEILINGS_DISTURBED: (
        "other work took up to {share:share} of the CPU's time while ceilings of {operations} were measured: shares of "
        "the ceiling may be too high; measure the ceilings again: ampbench study ceilings"
    ),
    Note.NO_CEILING: "no ceiling of {operations} is known here: ampbench study ceilings, then measure again",
    Note.ABOVE_CEILING: (
        "{cases} exceeds the measured peak ({share:share}): the peak or the FLOP count is wrong; measure the ceilings "
        "again: ampbench study ceilings"
    ),
    Note.POWER_LIMIT: "{device} {why}: times hold under this limit",
    Note.UNSETTLED: "{cases}: time or clock still changed when the warm-up ended: times may be too short",
    Note.OTHER_PROCESSES: "{processes} used the accelerator during the measurement: end other work, then measure again",
    Note.NO_TELEMETRY: "{device}: clock, power and temperature are not all known: {why}",
    Note.NO_GRAPHS: "{cases}: torch.compile left graphs aside, and launches one by one: {why}",
    Note.UNSTEADY: (
        "the accelerator was not steady: {causes}: let it cool, or end what else runs on it, and measure again, or "
        "lock its clock (nvidia-smi --lock-gpu-clocks) where only a speedup matters"
    ),
    Note.UNQUIET: (
        "this machine was not quiet: {causes}; measure again when other work has ended, or with "
        "{threads:only|--threads 1 and }more --rounds"
    ),
    Note.SKIPPED: "skipped: {names}: {why} ({cases:counted;case})",
    Note.PENDING: "missing: {names}: {why} ({cases:counted;case})",
    Note.SWEEP: (
        "by {parameter}, {table}: {values}{first:if|; low precision pays from || on}"
        "{last:if|; low precision does not pay at ||}"
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
    GateCode.NOT_GATED: "not gated, as there are no numbers: {which}",
    GateCode.FAILED: "{count:counted;case} failed in the candidate: {which}",
    GateCode.CONTROL_FIRED: f"the control fired{_AGAINST}: no time is judged",
    GateCode.UNFIT: f"the machine was unfit for {{count:counted;finding}}{_AGAINST}: {{which}}",
    GateCode.INCONCLUSIVE: f"{{count:counted;finding}} inconclusive{_AGAINST}: {{which}}",
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

_SPELLED: Mapping[str, Callable[..., str]] = MappingProxyType(
    {
        "error": format_error,
        "share": format_share,
        "kept": format_kept,
        "times": times,
        "counted": counted,
        "percent": format_percent,
        "verb": lambda count, singular, plural: singular if count == 1 else plural,
        "column": {"output_rel_l2": "error", "grad_rel_l2": "gradient error"}.__getitem__,
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
        return _SPELLED[how](value, *words) if how in _SPELLED else format(value, format_spec)


def _are(count: int, what: str, elements: int | None = None, **_: Any) -> str:
    noun = "element" if (elements or count) == 1 else "elements"
    of = f" of {elements:,}" if elements else ""  # runs converted from other formats do not tell
    return f"{count:,}{of} {what} {noun} {'is' if count == 1 else 'are'}"


def words(statement: Statement, **names: str) -> str:
    """Return a statement in a plain line; `names` are those of its cases, tables and workloads."""
    templates = OF_GATES if isinstance(statement.code, GateCode) else TEMPLATES
    return _Words().vformat(templates[statement.code], (), {**names, **statement.facts})


class Line(NamedTuple):
    """A line of text; no reader may miss one of a `problem`."""

    text: str
    problem: bool = False


OF_PRECISION = (Flaw.ELEMENTS, Flaw.UNDEFINED, Flaw.PARAMETERS)
"""Flaws of a precision; others are of all precisions of a table."""


def lines(statements: Iterable[Statement], cases: Mapping[str, Case]) -> list[Line]:
    """Return statements about the `cases` of a run in plain lines: those that differ in their case alone are one."""
    alike: dict[tuple[object, ...], list[Statement]] = {}
    for each in statements:
        alike.setdefault((each.code, each.severity, *each.facts.items()), []).append(each)
    if not alike:
        return []
    labels, tables = case_labels(cases.values()), case_labels(cases.values(), precision=False)
    told = []
    for first, *others in alike.values():
        subjects = [each.subject for each in (first, *others) if each.subject]
        names = {
            "cases": few(labels[subject] for subject in subjects),
            "tables": few(tables[subject] for subject in subjects),
            "workloads": few(cases[subject].workload for subject in subjects),
        }
        text = words(first, **names)
        if isinstance(first.code, Flaw):
            text = f"{names['cases' if first.code in OF_PRECISION else 'tables']}: {text}"
        told.append(Line(text, first.severity is Severity.PROBLEM))
    return told

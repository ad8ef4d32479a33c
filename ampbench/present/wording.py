"""The words of statements: one plain line for each code, whose facts are spelled by what stands behind their names."""

import string
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from ampbench.base.statement import Flaw, Refusal, Remedy, Statement
from ampbench.base.units import counted, format_error, format_kept, format_share, times
from ampbench.records.labels import AGAINST_FP32, FP32_INSTEAD
from ampbench.records.measured import CHANCE

_IN_RANGE = ", though finite in fp64: the network leaves fp32's range"

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
}
"""A fact is spelled by `_SPELLED`, by a format specification, or not at all: `{fact:if|before|how|behind}` is "" where
there is none of that name, `{fact:only|words}` where it is none or false."""

_SPELLED: Mapping[str, Callable[..., str]] = MappingProxyType(
    {
        "error": format_error,
        "share": format_share,
        "kept": format_kept,
        "times": times,
        "counted": counted,
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
        if how == "if":
            return "" if value == "" else f"{words[0]}{self.format_field(value, words[1])}{words[2]}"
        how, *words = format_spec.split(";")
        return _SPELLED[how](value, *words) if how in _SPELLED else format(value, format_spec)


def _are(count: int, what: str, elements: int | None = None, **_: Any) -> str:
    noun = "element" if (elements or count) == 1 else "elements"
    of = f" of {elements:,}" if elements else ""  # runs converted from other formats do not tell
    return f"{count:,}{of} {what} {noun} {'is' if count == 1 else 'are'}"


def words(statement: Statement) -> str:
    """Return a statement in a plain line."""
    return _Words().vformat(TEMPLATES[statement.code], (), statement.facts)

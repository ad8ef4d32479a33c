"""Statements about results, as data: code decides by them; `ampbench.present.wording` has their words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """How grave a statement is."""

    INFO = "info"
    ADVICE = "advice"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A code with its facts, which are numbers, names and enums, about a `subject`: a case's id, a module or ""."""

    code: StrEnum
    facts: Mapping[str, float | str] = field(default_factory=dict)
    severity: Severity = Severity.PROBLEM
    subject: str = ""


def state(
    code: StrEnum, subject: str = "", severity: Severity = Severity.PROBLEM, /, **facts: float | str | None
) -> Statement:
    """Return a statement with those of the facts that are not None."""
    known = {name: fact for name, fact in facts.items() if fact is not None}
    return Statement(code=code, facts=known, severity=severity, subject=subject)


class Flaw(StrEnum):
    """What is not finite, or not against fp64, of a case; of "reference" and "fp32" that are so whatever precision."""

    REFERENCE_NAN = "reference-nan"
    REFERENCE_INFINITE = "reference-infinite"
    REFERENCE_LOSS = "reference-loss"
    REFERENCE_IS_FP32 = "reference-is-fp32"
    REFERENCE_FAILED = "reference-failed"
    FP32_OUTPUT = "fp32-output"
    FP32_GRADIENT = "fp32-gradient"
    FP32_LOSS = "fp32-loss"
    ELEMENTS = "elements"
    UNDEFINED = "undefined"
    """An error that is none, in the words of the record."""
    PARAMETERS = "parameters"
    NO_ERROR = "no-error"


class Refusal(StrEnum):
    """What keeps a precision out of a budget of error."""

    BY_CHANCE = "by-chance"
    PARAMETERS = "parameters-not-finite"
    PARAMETERS_LATER = "parameters-not-finite-later"
    UNKNOWN = "error-unknown"
    GRADIENTS = "gradients-not-finite"
    NO_VALUE = "error-without-value"
    ERROR = "error"
    UPDATE = "update"
    UPDATE_OF_TENSOR = "update-of-tensor"
    UNMOVED = "unmoved"
    NO_ROOM = "no-room"
    GRADIENT_OF_TENSOR = "gradient-of-tensor"
    BIAS = "bias"
    SAMPLES = "samples"
    WORST_SAMPLE = "worst-sample"
    PROBABILITIES = "probabilities"
    WORST_PROBABILITIES = "worst-probabilities"
    LOSS = "loss"
    DECISIONS = "decisions"
    FLUSHED = "flushed"
    SKIPPED = "skipped"
    TRAINS_WORSE = "trains-worse"


class Undecided(StrEnum):
    """Why nothing is known of a precision: what it takes was not measured."""

    NOT_MEASURED = "not-measured"
    NO_REFERENCE = "no-reference"
    NO_OPTIMIZER = "no-optimizer"
    NO_UPDATE = "no-update"
    NO_ERROR = "no-error"
    """The error has no value, for all that is finite."""
    BY_CHANCE = "by-chance"
    """The network differs from itself by chance alone."""


class Remedy(StrEnum):
    """What helps against a refusal."""

    MASTER_WEIGHTS = "master-weights"
    OTHER_PRECISION = "other-precision"
    TRAIN_FIRST = "train-first"


class Note(StrEnum):
    """What a reader of a run's numbers has to know or to do."""

    EMULATED = "emulated"
    DEVICE = "device"
    INCOMPLETE = "incomplete"
    IMPORTED = "imported"
    OTHER_CODE = "other-code"
    CONTROL = "control"
    BY_CHANCE = "errors-by-chance"
    MODIFIES_INPUTS = "modifies-inputs"
    COMPILED = "compiled-already"
    ROUNDED = "fp32-rounded"
    NOT_ROUNDED = "products-not-rounded"
    ATTENTION = "attention-kernels"
    SWITCHES = "switches-reset"
    PRESET = "preset-unused"
    RANDOM_WEIGHTS = "random-weights"
    CEILINGS_DISTURBED = "ceilings-disturbed"
    NO_CEILING = "no-ceiling"
    ABOVE_CEILING = "above-ceiling"
    POWER_LIMIT = "power-limit"
    UNSETTLED = "unsettled"
    OTHER_PROCESSES = "other-processes"
    NO_TELEMETRY = "no-telemetry"
    NO_GRAPHS = "no-graphs"
    UNSTEADY = "unsteady-accelerator"
    UNQUIET = "unquiet-machine"
    SKIPPED = "cases-skipped"
    PENDING = "cases-pending"
    SWEEP = "sweep"

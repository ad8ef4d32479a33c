"""Statements about results as data, by which code decides; `ampbench.show.wording` has a line for each code."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """The severity of a statement."""

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
    """Return a statement with the facts that are not None."""
    known = {name: fact for name, fact in facts.items() if fact is not None}
    return Statement(code=code, facts=known, severity=severity, subject=subject)


class Flaw(StrEnum):
    """Values that are not finite, or errors not against fp64; "reference" and "fp32" hold in any precision."""

    REFERENCE_NAN = "reference-nan"
    REFERENCE_INFINITE = "reference-infinite"
    REFERENCE_LOSS = "reference-loss"
    REFERENCE_IS_FP32 = "reference-is-fp32"
    REFERENCE_FAILED = "reference-failed"
    FP32_OUTPUT = "fp32-output"
    FP32_GRADIENT = "fp32-gradient"
    FP32_LOSS = "fp32-loss"
    NO_ERROR = "no-error"


class Refusal(StrEnum):
    """A number that a verdict checks, which refuses a precision above its limit."""

    OUTPUTS = "outputs-not-finite"
    PARAMETERS = "parameters-not-finite"
    GRADIENTS = "gradients-not-finite"
    INPUT_RANGE = "input-range"
    TARGET_RANGE = "target-range"
    SCALE = "loss-scale"
    LOSS_BREAKS = "loss-breaks"
    LOSS_GRADIENT = "loss-gradient"
    ERROR = "error"
    SPREAD = "error-over-spread"
    GRADIENT_ERROR = "gradient-error"
    UPDATE = "update"
    UPDATE_OF_TENSOR = "update-of-tensor"
    UNMOVED = "unmoved"
    NO_ROOM = "no-room"
    GRADIENT_OF_TENSOR = "gradient-of-tensor"
    PROBABILITIES = "probabilities"
    WORST_PROBABILITIES = "worst-probabilities"
    LOG_PROBABILITIES = "log-probabilities"
    WORST_LOG_PROBABILITIES = "worst-log-probabilities"
    LOSS_FINITE = "loss-not-finite"
    LOSS = "loss"
    DECISIONS = "decisions"
    FLUSHED = "flushed"
    STATISTICS = "running-statistics"
    SKIPPED = "skipped"
    TRAINS_WORSE = "trains-worse"


class Undecided(StrEnum):
    """Why a precision is undecided: a needed measurement is missing or has no value."""

    NOT_MEASURED = "not-measured"
    NO_REFERENCE = "no-reference"
    ZERO_REFERENCE = "zero-reference"
    NO_ERROR = "no-error-defined"
    NO_GRADIENT_ERROR = "no-gradient-error"
    NO_OPTIMIZER = "no-optimizer"
    NO_UPDATE = "no-update"
    BY_CHANCE = "by-chance"


class NoNoise(StrEnum):
    """Why the noise of a batch's gradient is unknown."""

    NOT_HALVED = "batch-not-halved"
    NO_MEAN = "loss-not-a-mean"
    NOT_FINITE = "noise-not-finite"
    OTHER_GRADIENTS = "other-gradients"


class Answer(StrEnum):
    """Which precision of a table to take, and why; a problem of the network in all precisions is a `Flaw`."""

    TAKE = "take"
    SAVE = "take-for-memory"
    ONLY = "take-as-fp32-failed"
    STAY = "stay"
    UNCERTAIN = "stay-uncertain"
    REFUSED = "stay-refused"
    ALONE = "stay-alone"
    UNDECIDED = "no-answer"
    NO_BASELINE = "no-baseline"
    NOTHING_LEFT = "nothing-left"
    NOTHING_ELSE = "nothing-else"


class Arithmetic(StrEnum):
    """An effect of storage in half on an optimizer's settings, by arithmetic alone."""

    INFINITE = "arithmetic-infinite"
    DIVIDED = "arithmetic-divided"
    DECAY = "arithmetic-decay"
    SQUARES = "arithmetic-squares"
    STATISTICS = "arithmetic-statistics"


class Hint(StrEnum):
    """Advice that goes with an answer."""

    NOISE_UNKNOWN = "noise-unknown"
    LAUNCH_BOUND = "launch-bound"


class Crossing(StrEnum):
    """From or up to which value of a swept number a precision is faster than today's."""

    FROM = "faster-from"
    UP_TO = "faster-up-to"
    EVERYWHERE = "faster-everywhere"
    NOWHERE = "faster-nowhere"
    MIXED = "faster-at-some"
    UNCERTAIN = "faster-uncertain"


class Note(StrEnum):
    """A fact that a reader of a run's numbers must know, or an action to take."""

    EMULATED = "emulated"
    IMPORTED = "imported"
    OTHER_CODE = "other-code"
    CONTROL = "control"
    MODIFIES_INPUTS = "modifies-inputs"
    COMPILED = "compiled-already"
    ROUNDED = "fp32-rounded"
    NOT_ROUNDED = "products-not-rounded"
    NOTHING_CAST = "nothing-cast"
    LOSS_CONSTANT = "loss-constant"
    LOSS_BROKEN = "loss-alone"
    LOSS_ERROR = "loss-alone-gradient"
    CHANNELS_LAST = "channels-last"
    ATTENTION = "attention-kernels"
    NO_GRAD = "no-grad"
    OPTIMIZER_MISSES = "optimizer-misses"
    SWITCHES = "switches-reset"
    PRESET = "preset-unused"
    RANDOM_WEIGHTS = "random-weights"
    ABOVE_CEILING = "above-ceiling"
    UNSETTLED = "unsettled"
    OTHER_PROCESSES = "other-processes"
    NO_GRAPHS = "no-graphs"
    UNSTEADY = "unsteady-accelerator"
    UNQUIET = "unquiet-machine"
    SKIPPED = "cases-skipped"
    PENDING = "cases-pending"

"""The verdict on a case: whether its results are right, by which number, and what its speed and memory are worth."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class Status(StrEnum):
    """What is known of a case's results, whatever its time."""

    BASELINE = "baseline"
    OK = "ok"
    REFUSED = "refused"
    UNDECIDED = "undecided"


class Evidence(StrEnum):
    """What a verdict rests on."""

    NONE = ""
    INPUTS = "inputs"
    ONE_STEP = "one step"
    STEPS = "steps"
    TRAINED = "trained"


class Cause(StrEnum):
    """What keeps a number from being certain."""

    NONE = ""
    UNKNOWN = "unknown"
    """It was not measured, or what it is relative to was not."""
    FEW_ROUNDS = "few rounds"
    OPEN = "interval"
    """Its interval holds 1."""
    BUSY = "busy"
    CONTROL = "control apart"
    IMPLAUSIBLE = "implausible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A ratio to what a user runs today, its 95% interval, and why it is not certain."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    cause: Cause = Cause.UNKNOWN

    @property
    def certain(self) -> bool:
        """Whether it may be relied on."""
        return not self.cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is judged of a case.

    `code` names what decided, with its `number` and `limit`: of what is ok the number nearest to its limit, of what is
    refused the first that is over it, of what is undecided the code of why. `subject` is the output or the parameter
    that the number is of, or the study ("": the whole). `speed` is how many times as fast as today's precision, and
    `memory` how many times its peak. `taken`: it is the one to take of its table.
    """

    case_id: str
    workload: str
    phase: str
    device: str
    path: str
    precision: str
    status: Status
    code: StrEnum | None = None
    number: float | None = None
    limit: float | None = None
    subject: str = ""
    evidence: Evidence = Evidence.NONE
    speed: Interval = Interval()
    memory: Interval = Interval()
    taken: bool = False

    @property
    def label(self) -> str:
        """Its precision as people read it: "fp16_autocast (no scaler)" where GradScaler was taken out."""
        return f"{self.precision} (no scaler)" if self.case_id.endswith("/no-scaler") else self.precision

    def columns(self) -> dict[str, Any]:
        """Return it as columns of a row: `VERDICT_COLUMNS`."""
        code = None if self.code is None else str(self.code)
        values = (str(self.status), code, self.number, self.limit, str(self.evidence) or None, self.taken)
        return dict(zip(VERDICT_COLUMNS, values, strict=True))


VERDICT_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "verdict": "object",
        "verdict_code": "object",
        "verdict_number": "float",
        "verdict_limit": "float",
        "verdict_evidence": "object",
        "taken": "bool",
    }
)
"""What tables for machines have of a verdict, beside the columns of what was measured, and the dtype of each."""

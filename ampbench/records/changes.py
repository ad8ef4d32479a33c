"""What a comparison says: findings with their verdicts, and everything a reader needs to weigh them.

And the verdict on a case: whether its results are right, by which number, and what its speed and memory are worth.
Derived whenever runs are read; never stored as truth.
"""

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from ampbench.core.metrics import DRIFT
from ampbench.core.statement import Statement
from ampbench.records.case import Case
from ampbench.records.rules import RuleChange


class ChangeStatus(StrEnum):
    """What became of one metric of one case between baseline and candidate."""

    REGRESSED = "regressed"
    IMPROVED = "improved"
    UNCHANGED = "unchanged"
    INCONCLUSIVE = "inconclusive"
    INCOMPARABLE = "incomparable"


class ChangeCode(StrEnum):
    """Why a change has its status; `ampbench.show.comparison` has the words."""

    BEYOND_THRESHOLD = "beyond-threshold"
    """Regressed or improved: certain, larger than the threshold and, where it was asked for, confirmed."""
    WITHIN_THRESHOLD = "within-threshold"
    """Unchanged: shown to lie within the threshold; of a time, the mean over all samples within its own, too."""
    UNDECIDED = "undecided"
    """Inconclusive: the data neither show a change beyond the threshold nor rule one out."""
    TAIL_UNDECIDED = "tail-undecided"
    """Inconclusive: the typical time is shown to lie within the threshold, the mean over all samples not within its."""
    UNCONFIRMED = "unconfirmed"
    """Inconclusive: a change was seen, and fresh blocks are still to confirm it."""
    NOT_CONFIRMED = "not-confirmed"
    """Inconclusive: a change was seen, and fresh blocks did not show it."""
    TOO_FEW_BLOCKS = "too-few-blocks"
    """Inconclusive: there are too few blocks for any verdict."""
    UNFIT_MACHINE = "unfit-machine"
    """Inconclusive: the machine was busy, throttled or stolen from while this was measured."""
    CONTROL_FIRED = "control-fired"
    """Inconclusive: the same code, measured twice, seemed to differ."""
    NOT_MEASURED = "not-measured"
    """Incomparable: one side has no number."""
    OUTCOME_CHANGED = "outcome-changed"
    """Regressed: the case was ok and fails now; improved: it failed and is ok now."""
    NOT_RUN = "not-run"
    """Incomparable: the case was skipped, or failed, on one side, and no regression can be read from that."""
    OTHER_MACHINE = "other-machine"
    """Incomparable: another device, host or number of threads."""
    OTHER_WEIGHTS = "other-weights"
    """Incomparable: other weights, inputs or another version of the workload."""
    OTHER_REFERENCE = "other-reference"
    """Incomparable: the errors are against different references, as the fp64 step failed on a side."""
    OTHER_FUNCTION = "other-function"
    """Regressed, of the fp64 result: it moved, so that something else is computed; incomparable, of the errors against
    it: they are of another function."""
    OTHER_COUNTER = "other-counter"
    """Incomparable: the bytes were counted by different means."""
    IMPORTED = "imported"
    """Incomparable: a number that another program kept without the samples or records behind it."""
    INVALID = "invalid"
    """Incomparable: a number that cannot be compared, such as a time of zero."""


class Remark(StrEnum):
    """What does not decide on a change but must not be hidden."""

    OTHER_NUMBERS = "other-numbers"
    """Other weights, inputs or another version of the workload."""
    DRIFT = "drift"
    """The fp64 result moved, and the policy allows it."""
    ITEMS = "items"
    """A step does another number of items."""
    SLOW_SHARE = "slow-share"
    """The share of slow blocks changed."""


UNTRUSTED = (ChangeCode.CONTROL_FIRED, ChangeCode.UNFIT_MACHINE)
"""Inconclusive because of the machine: a change seen there is told with those that are certain, and not judged."""

OUTCOME = "outcome"
"""The metric of a finding that speaks of a case's outcome."""
EQUAL = 1e-12
"""Relative difference up to which two numbers are equal: a few roundings of fp64, in which errors are computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The verdict on one `metric` of one `case` (the baseline's), with the evidence.

    `kind` is "time", "memory", "accuracy" or "outcome". `baseline` and `candidate` are the metric's values in base
    units. `change` is relative: candidate / baseline - 1 for time and memory; for accuracy the difference divided by
    the baseline's error or, where that is larger, by the error of merely rounding the reference to the dtype. Of
    `reference_drift` there are no values: the distance of the two sides' fp64 results is its `change`. `low` and `high`
    are its 95% interval (equal to `change` where a number is exact). `threshold` is the largest change that counts as
    none. `p_worse` and `p_better` are one-sided, for the change being no change (None where exact). `blocks` counts the
    paired blocks, or the rounds of the side that has fewer. `remarks` are about what does not decide but must not be
    hidden: a changed share of slow blocks, other versions. `facts` are what the code speaks of: names, causes, and
    numbers that have no field. `details` are further numbers by name: `slow_share_baseline`, `slow_share_candidate`,
    `mean_change` (of the mean over all samples) with its 95% interval `mean_low` to `mean_high` and its
    `mean_threshold`, `p90_change`, `p_beyond` (one-sided, for a change no larger than the threshold, which is what
    decides), `standard_error` (of the logarithm of candidate / baseline), `detectable_change`, `blocks_needed`.
    """

    case: Case
    metric: str
    kind: str
    status: ChangeStatus
    code: ChangeCode
    facts: Mapping[str, float | str] = field(default_factory=dict)
    baseline: float | None = None
    candidate: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    threshold: float = 0.0
    p_worse: float | None = None
    p_better: float | None = None
    blocks: int = 0
    remarks: Sequence[Statement] = ()
    details: Mapping[str, float] = field(default_factory=dict)


_LEAST_THRESHOLD = 1e-3
"""Changes are ranked in multiples of their threshold, but at least of this one: an exact metric has none."""
_RANKS = {
    ChangeStatus.REGRESSED: 1,
    ChangeStatus.IMPROVED: 3,
    ChangeStatus.INCONCLUSIVE: 4,
    ChangeStatus.INCOMPARABLE: 5,
    ChangeStatus.UNCHANGED: 6,
}


def rank(finding: Change) -> tuple[float, float, str, str]:
    """Return what findings are sorted by: what matters, then how far beyond its threshold a change is."""
    place: float = _RANKS[finding.status]
    if finding.code in UNTRUSTED:
        place = 2
    if finding.metric in (OUTCOME, DRIFT) and finding.status is ChangeStatus.REGRESSED:
        place = 0
    changed = finding.status in (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)
    size = math.inf if changed else 0.0  # of what failed or became undefined
    if finding.change is not None and not math.isnan(finding.change):
        size = abs(finding.change) / max(finding.threshold, _LEAST_THRESHOLD)
    return place, -size, finding.case.case_id, finding.metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison: the run, its file's path and what it was measured with."""

    run: str
    path: str
    label: str = ""
    commit: str | None = None
    torch_version: str = ""
    host: str = ""
    arm: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something in which the two environments differ; `matters` to time, as a different CPU does."""

    name: str
    baseline: str
    candidate: str
    matters: bool = False


class ControlCode(StrEnum):
    """What became of the controls."""

    FIRED = "fired"
    QUIET = "quiet"
    """None seemed to differ."""
    APART = "apart"
    """Of stored runs: how far apart a case was, measured twice."""
    TOO_FEW = "too-few"
    """In too few blocks."""
    UNFIT = "unfit"
    """In no block on a machine that was fit."""
    NONE = "none"
    NEITHER = "neither"
    """None of two stored runs has one."""
    NO_TIMES = "no-times"
    """No times are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlVerdict:
    """What the controls say: `cells` measured twice, and whether any seemed to differ from itself.

    `facts` are by how much (`change`, and where it is that, `of_mean`) and which `case`; of stored runs, how far apart
    the control was in the baseline and in the candidate.
    """

    cells: int
    fired: bool
    code: ControlCode
    facts: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionMean:
    """The geometric mean of candidate / baseline of a metric over the cases of a precision on a device.

    `low` and `high` are the 95% t interval over cases, None under three of them.
    """

    precision: str
    device: str
    metric: str
    cases: int
    ratio: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DefectChange:
    """A known defect that one run's torch has on a device and the other's has not: what its check came to in each.

    `title` says what is wrong, `remedy` what to do about it.
    """

    check: str
    device: str
    title: str
    before: str
    after: str
    came: bool
    remedy: str


class Caveat(StrEnum):
    """What a reader should know of how two runs were measured; of a case where it names one."""

    SAME_RUN = "same-run"
    CUT = "cut"
    INCOMPLETE = "incomplete"
    OTHER_CODE = "other-code"
    """Not all that was measured is that of the commit."""
    OTHER_CARD = "other-card"
    """Another accelerator of the same model."""
    OTHER_KERNELS = "other-kernels"
    """Attention runs in other kernels than it did."""


class Traces(StrEnum):
    """What the traces of a case say."""

    CHANGED = "changed"
    SAME = "the same"
    NOT_TRACED = "not traced"
    """A run was to trace it and could not."""


class Explanation(NamedTuple):
    """What the traces of a case say: which dtypes and casts differ (`lines`), and which rules of autocast changed.

    `rules` are the changed rules of ops in which the traces differ.
    """

    traces: Traces
    lines: Sequence[str]
    rules: Sequence[RuleChange] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs compared: `findings` sorted by what matters, `differences` of the environments, controls, means.

    `interleaved` tells whether both runs were measured in the same blocks (`ampbench ab`), `apart` whether their times
    are compared though they were measured one after the other.
    `only_baseline` and `only_candidate` are the ids of cases that the other side does not have, `lost_cases` those of
    the baseline that were ok there, `failed` those that failed in the candidate, by its own ids, `other_numbers` of
    those that have other weights, inputs or another version of the workload there. `skipped` says of cases that were
    skipped on both sides for one reason why, by the id of the baseline's; they have no findings. `candidates` are the
    candidate's cases, by the id of the baseline's, where what was set for an arm makes them others. `rule_changes` are
    the differences between the probes of autocast's rules that both runs hold, `rule_devices` the device types these
    were compared on, `rule_devices_missing` those that only the baseline's probes are of, where the candidate has some.
    `rules_unobserved` are the ops whose rule the baseline observed and the
    candidate's probe could not.
    `explained` are the traces of cases that both runs were to trace, by the id of the baseline's. `defects` are the
    known ones that came or went, of the `checks` that both runs made.
    """

    baseline: Side
    candidate: Side
    interleaved: bool
    differences: Sequence[Difference]
    control: ControlVerdict
    findings: Sequence[Change]
    means: Sequence[PrecisionMean]
    only_baseline: Sequence[str] = ()
    only_candidate: Sequence[str] = ()
    lost_cases: Sequence[str] = ()
    failed: Sequence[str] = ()
    apart: bool = False
    skipped: Mapping[str, str] = field(default_factory=dict)
    other_numbers: Sequence[str] = ()
    caveats: Sequence[Statement] = ()
    candidates: Mapping[str, Case] = field(default_factory=dict)
    rule_changes: Sequence[RuleChange] = ()
    rule_devices: Sequence[str] = ()
    rule_devices_missing: Sequence[str] = ()
    rules_unobserved: Sequence[RuleChange] = ()
    explained: Mapping[str, Explanation] = field(default_factory=dict)
    defects: Sequence[DefectChange] = ()
    checks: int = 0


class GateCode(StrEnum):
    """Why a gate does not let a candidate pass, or what must be seen although it decides nothing."""

    OTHER_FUNCTION = "other-function"
    """Cases compute something else."""
    REGRESSED = "regressed"
    """Findings of a kind regressed."""
    FAILS = "fails"
    """Cases that were ok fail."""
    RULES_CHANGED = "rules-changed"
    """Rules of autocast changed."""
    UNDECIDED = "undecided"
    """Too few findings of a kind are decided."""
    NOTHING = "nothing"
    """There is no number of a kind that was asked for; of no kind: nothing at all can be compared."""
    NOT_GATED = "not-gated"
    """There is no number of a kind that nobody asked for."""
    FAILED = "failed"
    """Cases failed in the candidate, as before."""
    CONTROL_FIRED = "control-fired"
    OTHER_NUMBERS = "other-numbers"
    """Cases have other weights, inputs or versions."""
    LOST = "lost"
    """Numbers of the baseline cannot be compared."""
    SKIPPED = "skipped"
    """The candidate skipped cases."""
    MISSING = "missing"
    """The candidate lacks cases."""
    RULES_UNSEEN = "rules-unseen"
    """The candidate's probe did not observe rules that the baseline's did."""
    IDLE_RULE = "idle-rule"
    """A rule of the policy matches no case."""
    IDLE_IGNORE = "idle-ignore"
    """An ignore of the policy matches no case."""


class GateStatus(StrEnum):
    """Whether a candidate may pass."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePoint:
    """A reason not to pass, or a note: its code, and the findings, cases (`names`) or rules that it speaks of.

    `kind` is the kind of the findings. `decided`, `findings` and `limit` belong to an undecided kind, `number` to a
    rule or an ignore of the policy.
    """

    code: GateCode
    kind: str = ""
    changes: Sequence[Change] = ()
    names: Sequence[str] = ()
    rules: Sequence[RuleChange] = ()
    decided: int = 0
    findings: int = 0
    limit: float = 0.0
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """What would have counted against the candidate, and until when and for which reason a policy ignores it.

    It is the `change`, a changed or unobserved `rule`, or, without either, a case that failed or is `missing`. A
    changed rule of autocast has the metric "rules" and, for `case_id`, its op and device: "rms_norm/cuda".
    """

    case_id: str
    metric: str
    until: datetime.date
    reason: str
    change: Change | None = None
    rule: RuleChange | None = None
    missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """How many findings of a kind are decided, of all that should be."""

    decided: int
    findings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The verdict of a gate.

    `exit_code` is 1 where the gate found a regression, else 4 (`status` undecided) where too little of a gated kind is
    decided or nothing can be compared, else 3 where a case failed in the candidate, else 0. `why` says why it is not 0,
    in that order; `notes` are what must be seen although it decides nothing. Findings are of gated metrics and
    outcomes, without what is `ignored`, the worst first. `decided` counts the gated findings by kind that the baseline
    has a number of (of a case that the candidate skipped or lacks, one of each kind), and those of them that regressed,
    improved or are unchanged; what is ignored is not among them. `missing` are the ids of cases that the candidate does
    not have, `failed` of those that failed in it. `rule_changes` are those of autocast's rules that count,
    `rule_devices` the device types whose rules were compared; none where rules are not gated. `policy` has the settings
    that were gated by.
    """

    status: GateStatus
    exit_code: int
    regressions: Sequence[Change]
    improved: Sequence[Change]
    inconclusive: Sequence[Change]
    ignored: Sequence[Ignored]
    unchanged: Sequence[Change]
    decided: Mapping[str, Decided]
    missing: Sequence[str]
    failed: Sequence[str]
    rule_changes: Sequence[RuleChange]
    rule_devices: Sequence[str]
    why: Sequence[GatePoint]
    notes: Sequence[GatePoint]
    policy: Mapping[str, Any]

    @property
    def passed(self) -> bool:
        """Whether the candidate may pass."""
        return self.status is GateStatus.PASSED


class Detectable(NamedTuple):
    """The smallest slowdown found 19 times in 20 with so many blocks, which take `seconds`: median and worst case."""

    blocks: int
    seconds: float
    median: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfComparison:
    """What comparing an arm with itself said of the times of its `cases`.

    `false_alarms` were confirmed, `suspected` not; `able` counts the cases with blocks enough to raise one at all, as
    many as there are. `highest_rate` is the upper end of the 95% Wilson interval of false alarms per such case.
    `spreads` are the standard errors of the log ratio of one block by case id.
    """

    cases: int
    blocks: int
    false_alarms: Sequence[Change]
    suspected: Sequence[Change]
    unfit: Sequence[Change]
    unchanged: Sequence[Change]
    able: int
    highest_rate: float
    spreads: dict[str, float]
    detectable: Sequence[Detectable]


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
        numbers, evidence = (self.number, self.limit), str(self.evidence) or None
        values = (str(self.status), code, *numbers, self.subject or None, evidence, self.taken)
        return dict(zip(VERDICT_COLUMNS, values, strict=True))


VERDICT_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "verdict": "object",
        "verdict_code": "object",
        "verdict_number": "float",
        "verdict_limit": "float",
        "verdict_subject": "object",
        "verdict_evidence": "object",
        "taken": "bool",
    }
)
"""What tables for machines have of a verdict, beside the columns of what was measured, and the dtype of each."""

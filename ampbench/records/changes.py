"""The results of comparisons, gates and verdicts: findings on two runs, and the verdict on a case.

All are derived whenever runs are read, and never stored.
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
from ampbench.errors import NothingComparableError
from ampbench.records.case import Case
from ampbench.records.rules import RuleChange


class ChangeStatus(StrEnum):
    """The verdict on one metric of one case between baseline and candidate."""

    REGRESSED = "regressed"
    IMPROVED = "improved"
    UNCHANGED = "unchanged"
    INCONCLUSIVE = "inconclusive"
    INCOMPARABLE = "incomparable"


class ChangeCode(StrEnum):
    """Why a change has its status; `ampbench.show.comparison` has a line for each.

    `OUTCOME_CHANGED` is regressed or improved, `OTHER_FUNCTION` regressed for a moved fp64 result and incomparable for
    errors against it. Codes from `UNDECIDED` to `CONTROL_FIRED` are inconclusive, all others incomparable.
    """

    BEYOND_THRESHOLD = "beyond-threshold"
    """Certain, larger than the threshold and, if requested, confirmed."""
    WITHIN_THRESHOLD = "within-threshold"
    """Proven within the threshold; for a time, also the mean over all samples within its own threshold."""
    UNDECIDED = "undecided"
    TAIL_UNDECIDED = "tail-undecided"
    UNCONFIRMED = "unconfirmed"
    NOT_CONFIRMED = "not-confirmed"
    TOO_FEW_BLOCKS = "too-few-blocks"
    UNFIT_MACHINE = "unfit-machine"
    CONTROL_FIRED = "control-fired"
    NOT_MEASURED = "not-measured"
    OUTCOME_CHANGED = "outcome-changed"
    NOT_RUN = "not-run"
    OTHER_MACHINE = "other-machine"
    OTHER_WEIGHTS = "other-weights"
    OTHER_REFERENCE = "other-reference"
    OTHER_FUNCTION = "other-function"
    OTHER_COUNTER = "other-counter"
    IMPORTED = "imported"
    INVALID = "invalid"


class Remark(StrEnum):
    """An observation on a change that does not decide it but must be shown."""

    OTHER_NUMBERS = "other-numbers"
    DRIFT = "drift"
    ITEMS = "items"
    SLOW_SHARE = "slow-share"


UNTRUSTED = (ChangeCode.CONTROL_FIRED, ChangeCode.UNFIT_MACHINE)
"""Inconclusive because of the machine: listed after certain changes, and not judged."""

OUTCOME = "outcome"
"""The metric of a finding on a case's outcome."""
EQUAL = 1e-12
"""The largest relative difference of equal numbers: a few roundings of fp64, in which errors are computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The verdict on one `metric` of one `case` (the baseline's), with the evidence.

    `kind` is "time", "memory", "accuracy" or "outcome". `baseline` and `candidate` are the metric's values in base
    units. `change` is relative: candidate / baseline - 1 for time and memory; for accuracy the difference divided by
    the baseline's error or, if larger, by the error of merely rounding the reference to the dtype. `reference_drift`
    has no values: its `change` is the distance of the two sides' fp64 results. `low` and `high` are its 95% interval
    (equal to `change` for an exact number). `threshold` is the largest ignored change. `p_worse` and `p_better` are
    one-sided p-values for no change (None for an exact number). `blocks` counts the paired blocks, or the rounds of the
    side with fewer. `remarks` do not decide but must be shown. `facts` belong to the code. `details` are the further
    numbers of `judge.deciding.Decision` by name, and the `mean_threshold`.
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
"""Changes are ranked in multiples of their threshold, or of this one for exact metrics, which have none."""
_RANKS = {
    ChangeStatus.REGRESSED: 1,
    ChangeStatus.IMPROVED: 3,
    ChangeStatus.INCONCLUSIVE: 4,
    ChangeStatus.INCOMPARABLE: 5,
    ChangeStatus.UNCHANGED: 6,
}


def rank(finding: Change) -> tuple[float, float, str, str]:
    """Return the sorting key of a finding: its importance, then its change in multiples of the threshold."""
    place: float = _RANKS[finding.status]
    if finding.code in UNTRUSTED:
        place = 2
    if finding.metric in (OUTCOME, DRIFT) and finding.status is ChangeStatus.REGRESSED:
        place = 0
    changed = finding.status in (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)
    size = math.inf if changed else 0.0  # infinite for a failure or an undefined error
    if finding.change is not None and not math.isnan(finding.change):
        size = abs(finding.change) / max(finding.threshold, _LEAST_THRESHOLD)
    return place, -size, finding.case.case_id, finding.metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison: the run, its file's path, its code and its machine."""

    run: str
    path: str
    label: str = ""
    commit: str | None = None
    torch_version: str = ""
    host: str = ""
    arm: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference of the two environments; `matters`: times are incomparable, as with a different CPU."""

    name: str
    baseline: str
    candidate: str
    matters: bool = False


class ControlCode(StrEnum):
    """The verdict on the controls."""

    FIRED = "fired"
    QUIET = "quiet"
    APART = "apart"
    TOO_FEW = "too-few"
    UNFIT = "unfit"
    NONE = "none"
    NEITHER = "neither"
    NO_TIMES = "no-times"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlVerdict:
    """The verdict on the controls of `cells` measured twice; `fired`: one differed from itself.

    `facts` are its `change`, `of_mean` for a change of the mean, and its `case`; for stored runs, the difference of the
    control in the baseline and in the candidate.
    """

    cells: int
    fired: bool
    code: ControlCode
    facts: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefectChange:
    """A known defect that only one run's torch has on a device, with the outcome of its check in each run.

    `title` describes the defect, `remedy` its remedy.
    """

    check: str
    device: str
    title: str
    before: str
    after: str
    came: bool
    remedy: str


class Caveat(StrEnum):
    """A caveat on how two runs, or a case of them, were measured."""

    SAME_RUN = "same-run"
    CUT = "cut"
    INCOMPLETE = "incomplete"
    OTHER_CODE = "other-code"
    OTHER_CARD = "other-card"
    OTHER_KERNELS = "other-kernels"


class Traces(StrEnum):
    """The result of comparing the traces of a case."""

    CHANGED = "changed"
    SAME = "the same"
    NOT_TRACED = "not traced"


class Explanation(NamedTuple):
    """The result of comparing the traces of a case: `lines` on differing dtypes and casts, and changed `rules`.

    `rules` are the changed rules of ops in which the traces differ.
    """

    traces: Traces
    lines: Sequence[str]
    rules: Sequence[RuleChange] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A comparison of two runs: `findings` by importance, `differences` of the environments, controls.

    `interleaved`: both runs were measured in the same blocks (`ampbench ab`). `apart`: times are compared although they
    were measured one after the other. Case ids are the baseline's, except in `only_candidate` and `failed`.
    `only_baseline` and `only_candidate` are cases in one run only, `lost_cases` the ok ones of `only_baseline`,
    `failed` cases that failed in the candidate, `other_numbers` cases with other weights, inputs or versions of the
    workload. `skipped` has the reasons of cases skipped on both sides for the same reason; they have no findings.
    `candidates` are the candidate's cases whose ids an arm's settings changed. `rule_changes` are the differences of
    the probes of autocast's rules on `rule_devices`; `rule_devices_missing` were probed in the baseline only, if the
    candidate has any probe. `rules_unobserved` are ops whose rule only the baseline's probe observed. `explained`
    compares the traces of cases. `defects` are the known ones that came or went, of the `checks` of both runs.
    """

    baseline: Side
    candidate: Side
    interleaved: bool
    differences: Sequence[Difference]
    control: ControlVerdict
    findings: Sequence[Change]
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
    """Why a gate refuses a candidate, or a note that decides nothing."""

    OTHER_FUNCTION = "other-function"
    REGRESSED = "regressed"
    FAILS = "fails"
    RULES_CHANGED = "rules-changed"
    UNDECIDED = "undecided"
    NOTHING = "nothing"
    NOT_GATED = "not-gated"
    FAILED = "failed"
    CONTROL_FIRED = "control-fired"
    OTHER_NUMBERS = "other-numbers"
    LOST = "lost"
    SKIPPED = "skipped"
    MISSING = "missing"
    RULES_UNSEEN = "rules-unseen"
    IDLE_RULE = "idle-rule"
    IDLE_IGNORE = "idle-ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePoint:
    """A reason to refuse, or a note: its code, with its findings, cases (`names`) or rules.

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
    """A finding against the candidate that a policy ignores, with the last day and the reason.

    It is a `change`, a changed or unobserved `rule`, or, without either, a case that failed or is `missing`. A changed
    rule of autocast has the metric "rules" and, as `case_id`, its op and device: "rms_norm/cuda".
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
    """The number of `decided` findings of a kind, and of all."""

    decided: int
    findings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The verdict of a gate.

    `exit_code` is 1 for a regression, else 4 if too few findings of a gated kind are decided or nothing can be
    compared, else 3 if a case failed in the candidate, else 0. `why` has the reasons for a code other than 0, in this
    order; `notes` decide nothing but must be shown. Findings are of gated metrics and outcomes, without `ignored` ones,
    the worst first. `decided` counts by kind the gated findings with a number in the baseline (one of each kind for a
    case that the candidate skipped or lacks), without ignored ones. `missing` and `failed` are ids of cases.
    `rule_changes` are the changed rules of autocast that count on `rule_devices`; empty if rules are not gated.
    """

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
        return self.exit_code == 0

    @property
    def status(self) -> str:
        """The verdict in a word: "passed", "undecided" or "failed"."""
        return {0: "passed", NothingComparableError.exit_code: "undecided"}.get(self.exit_code, "failed")


class Status(StrEnum):
    """The verdict on a case's results, apart from its time."""

    BASELINE = "baseline"
    OK = "ok"
    REFUSED = "refused"
    UNDECIDED = "undecided"


class Evidence(StrEnum):
    """The evidence of a verdict."""

    NONE = ""
    INPUTS = "inputs"
    ONE_STEP = "one step"
    STEPS = "steps"
    BATCHES = "steps on few batches"
    RECIPE = "steps of the recipe"
    TRAINED = "trained"


class Cause(StrEnum):
    """Why a number is not certain."""

    NONE = ""
    UNKNOWN = "unknown"
    FEW_ROUNDS = "few rounds"
    OPEN = "interval"
    BUSY = "busy"
    CONTROL = "control apart"
    IMPLAUSIBLE = "implausible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A ratio to today's precision, its 95% interval, and why it is not certain."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    cause: Cause = Cause.UNKNOWN

    @property
    def certain(self) -> bool:
        """Whether no cause makes it uncertain."""
        return not self.cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a case.

    `code` names the deciding look, with its `number` and `limit`: for an ok case the number nearest to its limit, for a
    refused one the first over its limit; for an undecided case it is the reason. `subject` is the output or parameter
    of the number, or the study ("": the whole). A look at the late place follows `steps` fp32 steps over `batches`
    batches. `speed` and `memory` are relative to today's precision. `taken`: it is the take of its table.
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
    steps: int = 0
    batches: int = 0
    speed: Interval = Interval()
    memory: Interval = Interval()
    taken: bool = False

    def __repr__(self) -> str:
        speed = "" if self.speed.value is None else f", {self.speed.value:.2f}x as fast"
        number = "" if self.number is None else f" {self.number:.2g} of {self.limit or 0:g}"
        return (
            f"<Verdict {self.label} {self.phase}: {self.status}{speed}{f', {self.code}{number}' if self.code else ''}>"
        )

    @property
    def label(self) -> str:
        """Its precision as people read it: "fp16_autocast (no scaler)" without GradScaler."""
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
"""The columns of a verdict in tables for machines, with their dtypes."""

"""Judge every case of a run, and choose the precision to take of each table.

Only `LOOKS` can refuse a case: they judge whether results are right, without time and memory. A missing measurement
makes a case undecided, never right.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from ampbench.core import budget as limits
from ampbench.core import stats
from ampbench.core.budget import Budget
from ampbench.core.metrics import LATE, LATER
from ampbench.core.precisions import BASELINE, DEFAULT, FORMATS, PRECISIONS, SHORT_DTYPES, is_emulated
from ampbench.core.statement import Answer, Crossing, Hint, Refusal, Severity, Statement, Undecided, state
from ampbench.judge import frame
from ampbench.judge.rounds import MeasuredRun, TimedRound, control_ratio, paired_intervals, unfit_said
from ampbench.records.case import COMPILED, WITH_GRAPHS, Case, compile_mode, compiled_path
from ampbench.records.changes import Cause, Evidence, Interval, Status, Verdict
from ampbench.records.labels import case_labels, few, fp32s_fault, hints_of, no_precisions_fault
from ampbench.records.measured import LOWEST_BIN, Divergence, Late, Update
from ampbench.show.rows import TODAYS, Group, Row, Take, grouped, judged_error, number
from ampbench.store import StoredRun

if TYPE_CHECKING:
    from ampbench.studies.training import Trained

WORTH = 1.02
"""The smallest gain in time that counts: comparisons call 2% unchanged."""

LARGEST_SPEEDUP = 64.0
"""A larger gain is implausible: it is twice the most that datasheets promise for half precision, 30 times."""

BUSY_ENOUGH = 0.7
"""Below this utilisation of an accelerator a step is launch-bound, and faster kernels save little."""

MEMORY_WORTH_SAYING = 0.95
"""The largest ratio of peak memory that counts as a saving."""

INFERENCE, TRAINING = "inference", "training"

RECIPE_BATCHES = 8
"""The fewest batches of fp32 steps that show a recipe: a network memorises fewer within a few passes."""

DISAGREEMENT_ALPHA = 0.05
"""The significance level at which disagreeing decisions refuse a case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The evidence on a case: its `row`, divergences, rounds, and ratios to today's; `baseline` is its table's fp32."""

    row: Row
    found: Divergence | None = None
    late: Late | None = None
    rounds: Sequence[TimedRound] = ()
    speed: Interval = field(default_factory=Interval)
    memory: Interval = field(default_factory=Interval)
    baseline: "Seen | None" = None

    def at(self, path: str) -> Any:
        """Return the value at a path of attributes, None if anything on it is None."""
        value: Any = self
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        return value

    def known(self, name: str) -> list[float]:
        """Return the values of a field in the divergence pass and in all rounds, where they are known."""
        parts = [getattr(part, name) for part in (self.found, *self.rounds) if part is not None]
        return [value for value in parts if value is not None]

    @property
    def update(self) -> Update | None:
        """The effect of its optimizer's step, None if unknown."""
        update = self.found.update if self.found is not None else None
        return update if update is not None and update.kept is not None else None

    @property
    def later(self) -> "Seen":
        """The case with its numbers of the late place; itself if it has none."""
        if self.late is None or self.late.divergence is None:
            return self
        row = {**self.row, **{name: self.row[f"{name}{LATER}"] for name in LATE}}
        baseline = self.baseline.later if self.baseline is not None else None
        return replace(self, row=row, found=self.late.divergence, late=None, baseline=baseline)

    @property
    def nearest_update(self) -> Update | None:
        """The same under rounding to nearest, None under random rounding, which moves other weights at each step."""
        update = self.update
        return update if update is not None and update.kept_error is None else None


class Look(NamedTuple):
    """A number that refuses a case if it exceeds `times` the `limit` (a number, or a name in `Budget`).

    `read` returns it from the case or is its path in the case, else it is the frame's `column`; None: unknown, or it
    does not apply. The column `subject` names its output or parameter. It judges one `phase` ("": both). `noise` is the
    path of the batch noise below which the number refuses nothing.
    """

    code: Refusal
    column: str
    limit: str | float
    read: Callable[[Seen], float | None] | str = ""
    subject: str = ""
    phase: str = ""
    times: int = 1
    noise: str = ""

    def allowed(self, budget: Budget, case: Seen) -> float:
        """Return the largest allowed value, infinite for unknown noise; for an agreement the budget holds the
        smallest."""
        limit = getattr(budget, self.limit) if isinstance(self.limit, str) else self.limit
        if self.limit == "argmax_agreement":
            return 1.0 - float(limit)
        noise = case.at(self.noise) if self.noise else 0.0
        return math.inf if noise is None else max(float(self.times * limit), limits.MOST_OF_NOISE * noise)

    def value(self, case: Seen, budget: Budget) -> float | None:
        """Return the number; None: unknown, or it does not apply. A user's own limit holds for every output."""
        if self.code is Refusal.ERROR and budget.output_rel_l2 != Budget.output_rel_l2:
            return judged_error(case.row)
        if callable(self.read):
            return self.read(case)
        value: float | None = case.at(self.read) if self.read else number(case.row.get(self.column))
        return value


def _parameters(case: Seen) -> float | None:
    """Elements that are not finite after one step or the timed steps; None if fp32 has such elements too."""
    in_fp32 = case.baseline is not None and _parameters(case.baseline)
    return None if in_fp32 else max(case.known("param_nonfinite"), default=None)


def _lost(case: Seen) -> float | None:
    """The lost share of the update, less two standard errors under random rounding."""
    if case.update is None or _within_noise(case):
        return None
    return 1.0 - (case.update.kept or 0.0) - 2 * (case.update.kept_error or 0.0)


def _within_noise(case: Seen) -> bool:
    """Whether rounded weights and state lose too little to refuse, and the gradients' error is a share of the noise."""
    update, noise, error = case.update, case.at("found.gradient.noise"), number(case.row["grad_rel_l2"])
    if update is None or update.storage_rel_l2 is None or noise is None or error is None:
        return False
    stored = max(update.storage_rel_l2, update.state_rel_l2 or 0.0)
    return bool(stored <= 1 - limits.LEAST_KEPT and error <= limits.MOST_OF_NOISE * noise)


OF_GRADIENTS = "gradients"
LOST_TO = {
    "gradient_rel_l2": OF_GRADIENTS,
    "state_rel_l2": "optimizer state",
    "storage_rel_l2": "stored weights",
}
"""The causes of a lost update by the fields of the error that each rounding makes alone."""


def _lost_to(update: Update) -> str:
    """Return the cause of the largest loss of an update; "" if it was not measured."""
    errors = {cause: getattr(update, name) or 0.0 for name, cause in LOST_TO.items()}
    return max(errors, key=lambda cause: errors[cause]) if any(errors.values()) else ""


def _without_room(case: Seen) -> float | None:
    """The lost share of an update at the smallest learning rate of the schedule; None after no steps."""
    update, rate = case.nearest_update, case.at("found.recipe.least_rate")
    if update is None or not update.steps or update.counted_state or rate is None or rate >= 1:
        return None
    return below(update.energies, rate)


def _error(case: Seen) -> float | None:
    """The largest relative error of outputs without a unit of their own: no classifier's, and rows have no spread."""
    tensors = case.at("found.output.tensors")
    if not tensors:
        return judged_error(case.row)
    decided = case.at("found.output.predictions.outputs") or ()
    plain = (tensor for tensor in tensors if tensor.over_spread is None and tensor.name not in decided)
    return max((tensor.rel_l2 for tensor in plain if tensor.rel_l2 is not None), default=None)


def _loss(case: Seen) -> float | None:
    """The relative error of the loss; None for a classifier whose loss is off by less than `LOSS_IN_NATS`."""
    error = number(case.row.get("loss_abs_error"))
    small = error is not None and error <= limits.LOSS_IN_NATS and case.at("found.output.predictions") is not None
    return None if small else number(case.row.get("loss_rel_error"))


def _disagreement(case: Seen) -> float | None:
    """The share of changed decisions, near-ties apart; chance may explain it (`is_chance`)."""
    flipped = case.at("found.output.flipped")
    if flipped is not None:
        return flipped[0] / flipped[1] if flipped[1] else None
    agreement = number(case.row["argmax_agreement"])
    return None if agreement is None else 1.0 - agreement


def _flushed(case: Seen) -> float | None:
    """The share of gradients that became zero, less fp32's."""
    flushed = number(case.row["grad_flushed_share"])
    unavoidable = number(case.baseline.row["grad_flushed_share"]) if case.baseline is not None else None
    return None if flushed is None else flushed - (unavoidable or 0.0)


def _unscaling(case: Seen) -> float | None:
    """The largest divisor of the loss for finite gradients, in the divergence pass or a round.

    GradScaler's scale is fp32: below the smallest fp32 number it is 0.
    """
    scales = case.known("scaler_scale")
    return 1 / max(min(scales), 2.0**-149) if scales else None


def _of_range(case: Seen, column: str) -> float | None:
    """Return the largest input or target relative to the largest number of its dtype; None if that is not low."""
    precision = PRECISIONS.get(case.row["precision"])  # a foreign run may have others
    dtype = SHORT_DTYPES[precision.rounding] if precision else ""
    form = FORMATS.get(case.row.get("input_dtype", "") if column == "input_largest" else dtype)
    value = number(case.row.get(column))
    return None if value is None or form is None else value / form.largest


def _loss_breaks(case: Seen) -> float | None:
    """1 if the loss alone breaks in low precision."""
    loss = case.at("found.loss_alone")
    return None if loss is None or loss.unmeasured else float(loss.guards or bool(loss.nonfinite_at))


LOOKS = (
    Look(Refusal.INPUT_RANGE, "input_largest", limits.MOST_OF_RANGE, partial(_of_range, column="input_largest")),
    Look(
        Refusal.TARGET_RANGE,
        "target_largest",
        limits.MOST_OF_RANGE,
        partial(_of_range, column="target_largest"),
        phase=TRAINING,
    ),
    Look(Refusal.OUTPUTS, "output_nonfinite", 0),
    Look(Refusal.PARAMETERS, "param_nonfinite", 0, _parameters, phase=TRAINING),
    Look(Refusal.SCALE, "scaler_scale", limits.MOST_UNSCALING, _unscaling, phase=TRAINING),
    Look(Refusal.LOSS_BREAKS, "loss_rel_error", 0, _loss_breaks, phase=TRAINING),
    Look(Refusal.LOSS_GRADIENT, "loss_rel_error", limits.MOST_OF_LOSS, "found.loss_alone.grad_rel_l2", phase=TRAINING),
    Look(Refusal.ERROR, "output_rel_l2", "output_rel_l2", _error, "output_worst_name", INFERENCE),
    Look(Refusal.SPREAD, "output_over_spread", limits.MOST_OVER_SPREAD, "", "output_spread_name", INFERENCE),
    Look(Refusal.SPREAD, "output_over_spread", limits.MOST_OVER_SPREAD_TRAINING, "", "output_spread_name", TRAINING),
    Look(
        Refusal.GRADIENTS,
        "grad_rel_l2",
        0,
        lambda case: case.at("found.gradient.nonfinite") if number(case.row["grad_rel_l2"]) is None else None,
        phase=TRAINING,
    ),
    Look(Refusal.GRADIENT_ERROR, "grad_rel_l2", "grad_rel_l2", phase=TRAINING, noise="found.gradient.noise"),
    Look(Refusal.UPDATE, "update_kept", 1 - limits.LEAST_KEPT, _lost, phase=TRAINING),
    Look(
        Refusal.UPDATE_OF_TENSOR,
        "update_kept",
        1 - limits.LEAST_KEPT_OF_A_TENSOR,
        lambda case: (
            None if (kept := case.at("nearest_update.worst_kept")) is None or _within_noise(case) else 1.0 - kept
        ),
        "update_worst_parameter",
        TRAINING,
    ),
    Look(Refusal.UNMOVED, "update_kept", limits.MOST_SWALLOWED, "nearest_update.swallowed_energy", phase=TRAINING),
    Look(Refusal.NO_ROOM, "update_kept", limits.MOST_SWALLOWED, _without_room, phase=TRAINING),
    Look(
        Refusal.GRADIENT_OF_TENSOR,
        "grad_tensor_rel_l2",
        "grad_rel_l2",
        subject="grad_tensor_parameter",
        phase=TRAINING,
        times=limits.OF_A_TENSOR,
        noise="found.gradient.tensor_noise",
    ),
    Look(Refusal.PROBABILITIES, "kl_mean", "kl_mean", phase=INFERENCE),
    Look(Refusal.WORST_PROBABILITIES, "kl_p99", "kl_p99", phase=INFERENCE),
    Look(Refusal.LOG_PROBABILITIES, "logprob_gap_mean", "logprob_gap_mean", phase=INFERENCE),
    Look(Refusal.WORST_LOG_PROBABILITIES, "logprob_gap_p99", "logprob_gap_p99", phase=INFERENCE),
    Look(
        Refusal.LOSS_FINITE,
        "loss_rel_error",
        0,
        lambda case: 1.0 if case.at("found.loss_is_lost") and case.at("found.reference.loss") is not None else None,
        phase=TRAINING,
    ),
    Look(Refusal.LOSS, "loss_rel_error", "loss_rel_error", _loss, phase=TRAINING),
    Look(Refusal.DECISIONS, "argmax_agreement", "argmax_agreement", _disagreement, phase=INFERENCE),
    Look(Refusal.FLUSHED, "grad_flushed_share", "grad_flushed_share", _flushed, phase=TRAINING),
    Look(Refusal.STATISTICS, "statistics_stall", limits.MOST_STALL, phase=TRAINING),
    # once the scale had settled, in the divergence pass and in all rounds
    Look(Refusal.SKIPPED, "skipped_steps", 0, lambda case: sum(case.known("skipped_steps")), phase=TRAINING),
)
"""Everything that refuses a case: the first look over its limit does. Add further checks of one step here."""

FINITE = (
    Refusal.INPUT_RANGE, Refusal.TARGET_RANGE, Refusal.OUTPUTS, Refusal.PARAMETERS, Refusal.SCALE, Refusal.GRADIENTS,
    Refusal.STATISTICS, Refusal.LOSS_BREAKS,
)  # fmt: skip
"""Looks that hold even if errors are due to chance."""


def judge(case: Seen, budget: Budget, fault: Statement | None = None, trained: "Trained | None" = None) -> Verdict:
    """Return the verdict on a case.

    `fault` is a flaw of its network in every precision. Whole trainings, `trained`, override one step. At a late place
    every look judges, and at the first one `FINITE` ones alone.
    """
    row, divergence = case.row, case.found
    training = row["phase"] == "training"
    evidence = Evidence.INPUTS
    if training:
        update = case.update  # after no steps it is defined only if it began from an optimizer's state
        late = update is not None and (update.steps or not update.undefined)
        evidence = Evidence.STEPS if late else Evidence.ONE_STEP

    base = {name: row[name] for name in ("case_id", "workload", "phase", "device", "path", "precision")}
    base |= {"speed": case.speed, "memory": case.memory, "status": Status.UNDECIDED, "evidence": evidence}
    if row["outcome"] != "ok":
        return Verdict(**base | {"evidence": Evidence.NONE}, code=Undecided.NOT_MEASURED)
    if row["precision"] in TODAYS:
        return Verdict(**base | {"status": Status.BASELINE})
    if trained is not None:
        base |= {"status": Status.OK if trained.trains else Status.REFUSED, "evidence": Evidence.TRAINED}
        return Verdict(**base, code=Refusal.TRAINS_WORSE, number=trained.worse, subject=trained.study)
    if fault is not None:
        return Verdict(**base, code=fault.code)
    if training and (divergence is None or divergence.recipe is None):
        return Verdict(**base, code=Undecided.NO_REFERENCE if divergence is None else Undecided.NO_OPTIMIZER)
    later = case.later
    looked: list[dict[str, Any]] = []
    if later is not case and case.late is not None:
        looked += _looked(case, base, budget, [look for look in LOOKS if look.code in FINITE])
        steps, batches = case.late.steps, case.late.batches
        named = Evidence.RECIPE if batches >= RECIPE_BATCHES else Evidence.BATCHES
        base |= {"evidence": named, "steps": steps, "batches": batches}
    looked += _looked(later, base, budget, LOOKS)
    refused = next((seen for seen in looked if seen["status"] is Status.REFUSED), None)
    if refused is None and (missing := _missing(later)) is not None:
        return Verdict(**base, code=missing)
    nearest = max(looked, key=lambda seen: (_nearness(seen["number"], seen["limit"]), seen["code"] is Refusal.ERROR))
    return Verdict(**refused or nearest)


def _looked(case: Seen, base: dict[str, Any], budget: Budget, looks: Iterable[Look]) -> Iterator[dict[str, Any]]:
    """Yield the fields of the verdict by each look on a case at one place; `base` are those of all."""
    row, divergence = case.row, case.found
    chance = divergence is not None and divergence.chance_rel_l2 is not None
    for look in looks:
        value = look.value(case, budget) if look.phase in ("", row["phase"]) else None
        if value is None or (chance and look.code not in FINITE):
            continue
        limit = look.allowed(budget, case)
        subject = (look.subject and row.get(look.subject)) or ""
        if look.code is Refusal.UPDATE and case.update is not None:
            subject = _lost_to(case.update)
        found = {"code": look.code, "number": value, "limit": limit, "subject": subject}
        if value <= limit:
            yield base | found | {"status": Status.OK}
        elif look.code is not Refusal.DECISIONS or not is_chance(divergence, budget.argmax_agreement):
            yield base | found | {"status": Status.REFUSED}


def _missing(case: Seen) -> Undecided | None:
    """Return the missing measurement that keeps a case undecided; None if there is none."""
    row, divergence = case.row, case.found
    if divergence is not None and divergence.chance_rel_l2 is not None:
        return Undecided.BY_CHANCE
    if row["phase"] != TRAINING:
        zero = divergence is not None and divergence.reference.output_norm == 0
        if judged_error(row) is not None or (zero and number(row.get("output_over_spread")) is not None):
            return None
        if divergence is None or not divergence.reference.dtype:
            return Undecided.NO_REFERENCE
        finite = (divergence.output.elements or 0) > (divergence.output.reference_nonfinite or 0)
        return Undecided.ZERO_REFERENCE if finite and zero else Undecided.NO_ERROR
    if divergence is not None and not divergence.reference.dtype:
        return Undecided.NO_REFERENCE
    if number(row["grad_rel_l2"]) is None:
        return Undecided.NO_GRADIENT_ERROR
    precision = PRECISIONS.get(row["precision"])
    halved = precision is not None and precision.storage != "float32" and not precision.master
    return Undecided.NO_UPDATE if halved and case.update is None else None


def is_chance(divergence: Divergence | None, minimum: float) -> bool:
    """Return whether chance can explain too little agreement; False if the number of decisions is unknown.

    The one-sided exact binomial test: P(X >= disagreements), X ~ Binomial(decisions, 1 - minimum), at 5%; it equals
    `scipy.stats.binomtest(..., alternative="greater")`, without SciPy's import. One flip in eight decisions proves
    nothing (p = 0.077).
    """
    if divergence is None or divergence.output.flipped is None:
        return False
    (disagreements, decisions), allowed = divergence.output.flipped, 1.0 - minimum
    if disagreements <= decisions * allowed:  # at most the expected number, which chance exceeds half of the time
        return True
    return allowed > 0 and 1.0 - stats.chance_of_at_most(disagreements - 1, decisions, allowed) > DISAGREEMENT_ALPHA


def below(bins: Sequence[float] | None, factor: float) -> float | None:
    """Return the share of `bins` below half a unit in the last place, times `factor`.

    Within a bin, changes are spread evenly over the logarithm.
    """
    if not bins or not sum(bins):
        return None
    edge = -math.log2(factor) - LOWEST_BIN
    whole = max(0, min(len(bins), math.floor(edge)))
    lost = float(sum(bins[:whole]))
    if edge > 0 and whole < len(bins):
        lost += (edge - whole) * bins[whole]
    return lost / sum(bins)


def verdicts_of(stored: StoredRun, budget: Budget, studies: Iterable[StoredRun] = ()) -> dict[str, Verdict]:
    """Return the verdict on every case of a run by its id, in order; `studies` of trainings outweigh one step."""
    tables = _tables(stored, budget, studies)
    verdicts = {verdict.case_id: verdict for take in tables.values() for verdict in take.verdicts}
    return {case_id: verdicts[case_id] for case_id in stored.cases}


def undecided(stored: StoredRun) -> set[str]:
    """Return the ids of cases in tables where more rounds may decide a speedup that counts."""

    def is_open(verdict: Verdict) -> bool:
        more = verdict.speed.cause in (Cause.FEW_ROUNDS, Cause.OPEN, Cause.BUSY, Cause.CONTROL)
        return more and verdict.status in (Status.OK, Status.UNDECIDED) and not _no_faster(verdict)

    tables = _tables(stored, Budget(), ()).values()
    return {verdict.case_id for take in tables if any(map(is_open, take.verdicts)) for verdict in take.verdicts}


def takes_of(stored: StoredRun, budget: Budget, studies: Iterable[StoredRun] = ()) -> dict[Group, Take]:
    """Return the take of every table with measurements."""
    tables = _tables(stored, budget, studies)
    return {group: take for group, take in tables.items() if any(verdict.evidence for verdict in take.verdicts)}


def _tables(stored: StoredRun, budget: Budget, studies: Iterable[StoredRun]) -> dict[Group, Take]:
    trained: Mapping[str, Trained] = {}
    if trainings := list(studies):
        from ampbench.studies.training import trained_cases

        trained = trained_cases(stored, trainings)
    apart, busy = control.apart if (control := control_ratio(stored)) else 1.0, bool(unfit_said(stored))
    speeds = Speeds(MeasuredRun.of(stored).timed, apart=apart, busy=busy, longer=stored.header.longer)
    return choose(frame.run_rows(stored), stored.divergence, budget, speeds, trained, stored.late)


def choose(
    rows: Iterable[Row],
    divergences: Mapping[str, Divergence],
    budget: Budget,
    speeds: "Speeds | None" = None,
    trained: "Mapping[str, Trained] | None" = None,
    lates: Mapping[str, Late] | None = None,
) -> dict[Group, Take]:
    """Return the take of every table of `rows`.

    `divergences`, `lates` and `trained`, the outcome of whole trainings, are by case id; `speeds` knows the rounds.
    """
    speeds, trained, lates, takes = speeds or Speeds({}), trained or {}, lates or {}, {}
    judged_places = at_judged_places(divergences, lates)
    for group, members in grouped(rows).items():
        measured = {row["precision"]: row for row in members if row["outcome"] == "ok"}
        today = measured.get(DEFAULT) or measured.get(BASELINE)
        cases: list[Seen] = []
        for row, ends in zip(members, speeds.ends([(row, today or row) for row in members]), strict=True):
            case_id, speed, memory = row["case_id"], speeds.over(row, today, ends), _memory(row, today)
            found, late, rounds = divergences.get(case_id), lates.get(case_id), speeds.rounds.get(case_id, ())
            fp32 = next((case for case in cases if case.row["precision"] == BASELINE), None)  # before all it judges
            cases.append(
                Seen(row=row, found=found, late=late, rounds=rounds, speed=speed, memory=memory, baseline=fp32)
            )
        fault = _fault(cases)
        verdicts = [judge(case, budget, fault, trained.get(case.row["case_id"])) for case in cases]
        take = _take(group, members, verdicts, speeds)
        if fault is not None:
            take = Take(group=group, verdicts=verdicts, statement=fault)
        hints = _hints(take, divergences, judged_places)
        takes[group] = replace(take, hints=[*hints, *_launch_bound(group, members, verdicts)])
    return takes


def at_judged_places(divergences: Mapping[str, Divergence], lates: Mapping[str, Late]) -> dict[str, Divergence]:
    """Return the divergence of each case at its judged place, the late one where it exists, by case id."""
    later = {case_id: late.divergence for case_id, late in lates.items() if late.divergence is not None}
    return {**divergences, **later}


def _fault(cases: Sequence[Seen]) -> Statement | None:
    """Return a flaw of a table's network, whatever the precision; None if none is known."""
    for case in cases:
        if case.found is not None:
            of_fp32 = case.row["precision"] == BASELINE and case.row["outcome"] == "ok"
            if fault := no_precisions_fault(case.found) or (fp32s_fault(case.found) if of_fp32 else None):
                return fault
    return None


def _memory(row: Row, today: Row | None) -> Interval:
    value = number(row["memory_ratio_vs_fp32"])
    if today is not None and today["precision"] == DEFAULT:
        ours, theirs = (number(side.get("peak_memory_bytes")) for side in (row, today))
        value = ours / theirs if ours and theirs else None
    return Interval() if value is None else Interval(value=value, low=value, high=value, cause=Cause.NONE)


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speedups between rows by the `rounds` of each case, and causes of doubt.

    The run's control differs by the factor `apart`; on a `busy` machine too many rounds were unfit. The setting
    `longer` makes more rounds. Each round measures all precisions of a table, so intervals are paired by round.
    """

    rounds: Mapping[str, Sequence[TimedRound]]
    apart: float = 1.0
    busy: bool = False
    longer: str = "--budget"

    def over(self, row: Row, reference: Row | None, ends: Sequence[float | None]) -> Interval:
        """Return the speedup of a row over `reference` with the ends of its interval."""
        ours = number(row["seconds_median"])
        if reference is None or not ours or not (theirs := number(reference["seconds_median"])):
            return Interval()
        value, (low, high) = theirs / ours, ends
        gain, cause = value > WORTH, Cause.NONE
        if value > LARGEST_SPEEDUP:
            cause = Cause.IMPLAUSIBLE
        elif low is None or high is None:
            cause = Cause.FEW_ROUNDS
        elif self.busy:
            cause = Cause.BUSY
        elif (value <= self.apart) if gain else (value * self.apart > WORTH):
            cause = Cause.CONTROL
        elif low <= 1.0 <= high:
            cause = Cause.OPEN
        return Interval(value=value, low=low, high=high, cause=cause)

    def ends(self, pairs: Sequence[tuple[Row, Row]]) -> list[Sequence[float | None]]:
        """Return the 95% interval of the speedup of the first row of each pair over the second.

        Without three common rounds it comes from the intervals of both rows; None twice without these.
        """
        paired = paired_intervals([[self.rounds.get(row["case_id"], ()) for row in pair] for pair in pairs])
        known: list[Sequence[float | None]] = []
        for (row, reference), interval in zip(pairs, paired, strict=True):
            sides = (number(side[end]) for side in (row, reference) for end in ("seconds_low", "seconds_high"))
            low, high, other_low, other_high = sides
            unpaired: Sequence[float | None] = (
                (other_low / high, other_high / low) if low and high and other_low and other_high else (None, None)
            )
            known.append((1.0, 1.0) if row["case_id"] == reference["case_id"] else interval or unpaired)
        return known


def is_gain(speed: Interval) -> bool:
    """Return whether a gain in speed is certain and large enough to count."""
    return speed.certain and (speed.low or 0.0) > 1.0 and (speed.value or 0.0) >= WORTH


def _no_faster(verdict: Verdict) -> bool:
    """Return whether the gain over today's precision is certainly under 2%."""
    return verdict.speed.cause in (Cause.NONE, Cause.OPEN) and (verdict.speed.high or math.inf) < WORTH


def _saves(verdict: Verdict) -> bool:
    """Return whether a case takes less memory, and certainly no more than 2% more time, than today's."""
    known = verdict.speed.cause in (Cause.NONE, Cause.OPEN) and (verdict.speed.low or 0.0) > 1 / WORTH
    return known and _size(verdict) <= MEMORY_WORTH_SAYING


def _size(verdict: Verdict) -> float:
    return math.inf if verdict.memory.value is None else verdict.memory.value


def _speed(verdict: Verdict) -> float:
    return verdict.speed.value or 0.0


def _nearness(number: float | None, limit: float | None) -> float:
    """Return the share of its limit that the number of an ok case reaches."""
    return (number or 0.0) / limit if limit else 0.0


def _take(group: Group, rows: Sequence[Row], judged: Sequence[Verdict], speeds: Speeds) -> Take:
    """Return the take of a table of `rows` with the verdicts `judged`.

    Take the fastest ok case with a certain gain, of equally fast ones the furthest from its limits; else the ok case
    with the least memory. Also name a faster or smaller case that is not ok.
    """
    row_of = {row["case_id"]: row for row in rows}
    verdicts = sorted(judged, key=lambda verdict: number(row_of[verdict.case_id]["seconds_median"]) or math.inf)
    baselines = {verdict.precision: verdict for verdict in verdicts if verdict.status is Status.BASELINE}
    today = baselines.get(DEFAULT) or baselines.get(BASELINE)
    others = [verdict for verdict in verdicts if verdict.precision not in TODAYS]
    measured = [verdict for verdict in others if verdict.evidence]
    right = [verdict for verdict in measured if verdict.status is Status.OK and not is_emulated(verdict.precision)]
    failed = {row["precision"] for row in rows if row["outcome"] == "failed"}

    def choice(
        code: Answer, taken: Verdict | None = None, passed: Verdict | None = None, /, **facts: float | str | None
    ) -> Take:
        named: dict[str, float | str | None] = {"precision": taken.label if taken else None}
        named |= {"than": today.precision if today else None, **facts}
        named |= {"longer": speeds.longer} if facts.get("cause") or facts.get("looks_cause") else {}
        if taken is not None and "speed" in facts and named["than"] == DEFAULT:
            named["over_fp32"] = number(row_of[taken.case_id]["speedup_vs_fp32"])
        named |= {} if passed is None else _passed_facts(passed, taken, right)
        statement = state(code, taken.case_id if taken else "", Severity.ADVICE, **named)
        taken = replace(taken, taken=True) if taken else None
        marked = [taken if taken and verdict.case_id == taken.case_id else verdict for verdict in judged]
        return Take(group=group, statement=statement, verdicts=marked, taken=taken, passed=passed)

    if today is None:
        if BASELINE not in failed:
            return choice(Answer.NO_BASELINE)
        return choice(Answer.ONLY, right[0]) if right else choice(Answer.NOTHING_LEFT)
    known = [verdict for verdict in measured if verdict.speed.value is not None]
    if not known:
        return choice(Answer.ALONE, today) if failed - {*TODAYS} else choice(Answer.NOTHING_ELSE)
    gaining = [verdict for verdict in known if is_gain(verdict.speed)]
    fastest = next((verdict for verdict in gaining if verdict.status is Status.OK), None)
    if fastest is not None:
        fastest_row = row_of[fastest.case_id]
        ok = [verdict for verdict in gaining if verdict.status is Status.OK]
        over = speeds.ends([(fastest_row, row_of[verdict.case_id]) for verdict in ok])
        equals = [verdict for verdict, (low, _) in zip(ok, over, strict=True) if (low or 0.0) <= 1.0]
        taken = min(equals, key=lambda verdict: _nearness(verdict.number, verdict.limit), default=fastest)
        passed, facts = _passed(known, taken), _gains(taken)
        open_still = [verdict for verdict in known if not is_gain(verdict.speed)]
        looks = next((verdict for verdict in open_still if _speed(verdict) >= WORTH * _speed(taken)), None)
        if passed is None and looks is not None:
            facts |= {"looks": looks.label, "looks_speed": looks.speed.value}
            facts |= {"looks_cause": looks.speed.cause or Cause.OPEN}
        elif passed is None and taken is not fastest:
            facts |= {"equal": fastest.label}
        return choice(Answer.TAKE, taken, passed, **facts)
    if saving := [verdict for verdict in right if _saves(verdict)]:
        taken = min(saving, key=_size)
        return choice(Answer.SAVE, taken, _passed(known, taken), **_gains(taken))
    if unknown := [verdict for verdict in gaining if verdict.status is Status.UNDECIDED]:
        return choice(Answer.UNDECIDED, None, unknown[0])
    if gaining:
        return choice(Answer.REFUSED, today, gaining[0])
    best = next((verdict for verdict in known if verdict.status is Status.OK), None)
    facts = {"best": best.label, "best_speed": best.speed.value} if best else {}
    passed = _passed(known, today)
    unsettled = [verdict for verdict in known if not _no_faster(verdict)]
    if not unsettled:
        return choice(Answer.STAY, today, passed, **facts)
    cause = next((verdict.speed.cause for verdict in unsettled if verdict.status is Status.OK), None)
    facts |= {"cause": None if cause is None else cause or Cause.OPEN}
    return choice(Answer.UNCERTAIN, today, passed, **facts)


def _passed(known: Sequence[Verdict], taken: Verdict) -> Verdict | None:
    """Return the fastest case that looks faster than `taken` but is not ok, else the smallest, else None."""
    wrong = [verdict for verdict in known if verdict.status is not Status.OK]
    faster = [verdict for verdict in wrong if _speed(verdict) >= WORTH * _speed(taken)]
    smaller = [verdict for verdict in wrong if _size(verdict) <= MEMORY_WORTH_SAYING * min(_size(taken), 1.0)]
    return faster[0] if faster else min(smaller, key=_size, default=None)


def _gains(verdict: Verdict) -> dict[str, float | str | None]:
    """Return the speed of a taken case, and its memory if it saves any, as facts."""
    memory = verdict.memory.value if _size(verdict) <= MEMORY_WORTH_SAYING else None
    return {"speed": verdict.speed.value, "memory": memory}


LOSES = (Refusal.PARAMETERS, Refusal.UPDATE, Refusal.UPDATE_OF_TENSOR, Refusal.UNMOVED, Refusal.NO_ROOM)
"""Losses that fp32 master weights prevent."""


def _passed_facts(passed: Verdict, taken: Verdict | None, right: Sequence[Verdict]) -> dict[str, float | str | None]:
    """Return the facts of a case that is passed over, with a precision that avoids its loss."""
    precision, remedy = PRECISIONS.get(passed.precision), None
    loses = passed.code in LOSES and passed.subject != OF_GRADIENTS
    if precision is not None and precision.storage != "float32" and not precision.master and loses:
        known = [(PRECISIONS[verdict.precision], verdict) for verdict in right if verdict.precision in PRECISIONS]
        masters = [verdict.precision for kept, verdict in known if kept.master and kept.storage == precision.storage]
        remedy = masters[0] if masters else "fp32 master weights"
    smaller = taken is not None and _speed(passed) < WORTH * _speed(taken)
    return {
        "passed": passed.label,
        "passed_speed": None if smaller else passed.speed.value,
        "passed_memory": passed.memory.value if smaller else None,
        "passed_cause": passed.speed.cause or None,
        "passed_code": passed.code,
        "passed_steps": passed.steps or None,
        "remedy": None if taken is not None and remedy == taken.precision else remedy,
    }


def _hints(choice: Take, divergences: Mapping[str, Divergence], judged: Mapping[str, Divergence]) -> list[Statement]:
    """Return hints on training in the case taken or passed: predictions by arithmetic, and noise.

    `judged` are the divergences that refuse a case: late ones where there are any.
    """
    hints: list[Statement] = []
    for verdict in (choice.taken, choice.passed):
        divergence = divergences.get(verdict.case_id) if verdict else None
        precision = PRECISIONS.get(verdict.precision) if verdict else None  # a foreign run may have others
        recipe = divergence.recipe if divergence else None
        if recipe and verdict and verdict.code is Refusal.STATISTICS:  # which says so
            recipe = structs.replace(recipe, running_momenta=[])
        if precision and divergence and recipe and (hints := hints_of(recipe, precision, divergence.case_id)):
            break
    noise = noise_hint(judged.get(choice.case_id or ""))
    return [*hints, noise] if noise else hints


def noise_hint(divergence: Divergence | None) -> Statement | None:
    """Return a hint on an error of gradients above the default limit that no batch noise could judge, else None."""
    error = (divergence.gradient.rel_l2 or 0.0) if divergence else 0.0
    if divergence is None or divergence.gradient.noise is not None or error <= Budget.grad_rel_l2:
        return None
    facts = {"error": error, "limit": Budget.grad_rel_l2, "cause": divergence.gradient.no_noise or None}
    return state(Hint.NOISE_UNKNOWN, divergence.case_id, Severity.ADVICE, **facts)


def _launch_bound(group: Group, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> list[Statement]:
    """Return a hint on launch-bound rows of a table, and a remedy.

    If all rows are launch-bound, `helps` states whether a lower precision helps.
    """
    measured = [(row, verdict) for row, verdict in zip(rows, verdicts, strict=True) if row["outcome"] == "ok"]
    known = [(verdict, share) for row, verdict in measured if (share := number(row.get("busy_share"))) is not None]
    bound = {verdict.label: share for verdict, share in known if share < BUSY_ENOUGH}
    if not bound:
        return []
    others = [verdict for _, verdict in measured if verdict.precision not in TODAYS]
    helps = None
    if len(bound) == len(measured) and others and not any(is_gain(verdict.speed) for verdict in others):
        helps = "no" if all(_no_faster(verdict) for verdict in others) else "unseen"
    mode = compile_mode(group.path)
    fewer = f"--path {COMPILED}" if group.path == "eager" else ""
    if group.device == "cuda" and mode not in WITH_GRAPHS:
        fewer = f"--path {compiled_path(WITH_GRAPHS[0])}"
    low, high = min(bound.values()), max(bound.values())
    facts = {
        "bound": few(bound),
        "helps": helps,
        "fewer": fewer or None,
        "low": low,
        "high": high if high > low else None,
    }
    return [state(Hint.LAUNCH_BOUND, "", Severity.ADVICE, **facts)]


def crossings(stored: StoredRun, takes: Mapping[Group, Take]) -> list[Statement]:
    """Return from which value of a swept number on each precision is faster than today's.

    Of several swept numbers it is the first, for each combination of all else. A precision that is refused at every
    value has no statement.
    """
    sweeps = stored.header.selection.sweeps
    numeric = (name for name, values in sweeps.items() if {*map(type, values)} <= {int, float} and len({*values}) > 1)
    name = next(numeric, "")
    series: dict[str, list[tuple[float, Verdict]]] = {}
    alike: dict[str, Case] = {}
    for verdict in (verdict for take in takes.values() for verdict in take.verdicts):
        case = stored.cases[verdict.case_id]
        values: dict[str, Any] = {**case.parameters, "batch_size": case.batch_size}
        if verdict.precision not in TODAYS and (value := values.pop(name, None)) is not None:
            same = structs.replace(case, batch_size=values.pop("batch_size", None), parameters=values)
            alike[same.case_id] = same
            series.setdefault(same.case_id, []).append((value, verdict))
    places = case_labels(alike.values(), precision=False)
    several = len({*places.values()}) > 1
    return [
        _crossing(members, parameter=name, where=places[case_id] if several else None)
        for case_id, members in series.items()
        if any(verdict.evidence and verdict.status is not Status.REFUSED for _, verdict in members)
    ]


def _crossing(series: Iterable[tuple[float, Verdict]], **facts: str | None) -> Statement:
    """Return where the gain of a precision begins or ends, by the certain verdicts of its values."""
    ordered = sorted(series, key=itemgetter(0))
    faster = [(value, verdict) for value, verdict in ordered if is_gain(verdict.speed)]
    others = [(value, verdict) for value, verdict in ordered if _no_faster(verdict)]
    unknown = [value for value, verdict in ordered if not (is_gain(verdict.speed) or _no_faster(verdict))]
    listed = {"undecided": unknown}
    listed["refused"] = [value for value, verdict in ordered if verdict.status is Status.REFUSED]
    first, last = None, None
    if faster and others and others[-1][0] < faster[0][0]:
        code, first, last = Crossing.FROM, others[-1], faster[0]
    elif faster and others and faster[-1][0] < others[0][0]:
        code, first, last = Crossing.UP_TO, faster[-1], others[0]
    elif faster and (others or unknown):
        code = Crossing.MIXED
        listed |= {"faster": [value for value, _ in faster], "slower": [value for value, _ in others]}
    elif unknown:
        code = Crossing.UNCERTAIN
    else:
        code, first, last = (Crossing.EVERYWHERE if faster else Crossing.NOWHERE), ordered[0], ordered[-1]
    numbers: dict[str, float | str | None] = {}
    for place, known in (("first", first), ("last", last)):
        if known is not None:
            speed = known[1].speed
            numbers |= {place: known[0], f"{place}_speed": speed.value}
            numbers |= {f"{place}_low": speed.low, f"{place}_high": speed.high}
    named = {what: ", ".join(map(str, values)) or None for what, values in listed.items()}
    at = (last if code is Crossing.FROM else first) or ordered[0]
    return state(code, at[1].case_id, Severity.ADVICE, precision=at[1].label, **facts, **numbers, **named)

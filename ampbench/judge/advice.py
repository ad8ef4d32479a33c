"""What an optimizer's step changes of the stored weights, beside what it should: what follows from it, in sentences.

Which precision to take: a line of advice for each workload, phase, device and path, and why.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ampbench.base.precisions import BASELINE, DEFAULT, PRECISIONS
from ampbench.base.units import counted, format_error, format_kept, format_share
from ampbench.errors import UsageError
from ampbench.instruments.ranges.arithmetic import remark_line
from ampbench.judge.rows import Group, Row, grouped, judged_error, least_agreement, number, precision_label, times
from ampbench.records.labels import AGAINST_FP32, no_precisions_fault
from ampbench.records.measured import CHANCE, LOWEST_BIN, Divergence, Round, Update

if TYPE_CHECKING:
    from ampbench.instruments.convergence.learning import Trained
    from ampbench.store import StoredRun


LEAST_KEPT = 0.98
"""The least share of an update that must arrive: a convention. What is lost is lost in every step, as by a learning
rate that is so much smaller in these directions; 2% is what comparisons call unchanged."""
LEAST_KEPT_OF_A_TENSOR = 0.9
"""The same of one tensor that carries 1% of the update's square or more."""
MOST_SWALLOWED = 0.02
"""The most of an update's square that may be in weights that never move, whatever else rounds up: the same 2%."""
ROOM = 32
"""So many times smaller updates must still move the weights that carry them: those of the trainings in docs/advice.md
were up to thirty times smaller when these settled than when they began. Chosen after that was seen, then asked of other
trainings ("Held out" there); a convention, too.
"""
MOST_BIAS = 0.1
"""The most that errors of gradients may have in common over batches, of the noise of a batch: a convention."""
LEAST_BIAS = 0.02
"""A bias below this share of the gradient changes an update by less than it may lose."""
OF_A_TENSOR = 5
"""How many times the error of all gradients that of one tensor may be which has 1% of their norm or more: as with what
is kept, 10% against 2%."""

MASTER_BYTES = 4
"""What an fp32 copy of a weight costs."""


def parameters_objection(found: Divergence | None, timed: int) -> str:
    """Return what a training objects to parameters that are not finite, after one step or after the `timed` ones."""
    count = (found.param_nonfinite if found is not None else None) or 0
    if count:
        return f"{counted(count, 'parameter element is', 'parameter elements are')} not finite after one step"
    if timed:
        return f"{counted(timed, 'parameter element is', 'parameter elements are')} not finite after the timed steps"
    return ""


def update_objection(update: Update | None) -> str:
    """Return what is wrong with what a step changes; "" for nothing, and where nothing is known."""
    if update is None or update.kept is None:
        return ""
    still = "" if not update.swallowed else f": {_still(update)}"
    if update.kept + 2 * (update.kept_error or 0.0) < LEAST_KEPT:
        return f"it keeps {format_kept(update.kept)} of its updates{still}"
    if update.kept_error is not None:  # rounding is stochastic: what does not move now does so in another step
        return ""
    if update.worst_kept is not None and update.worst_kept < LEAST_KEPT_OF_A_TENSOR:
        return f"{update.worst_parameter} keeps {format_kept(update.worst_kept)} of its update"
    if (update.swallowed_energy or 0.0) > MOST_SWALLOWED:
        return f"{_still(update)}, with {format_share(update.swallowed_energy)} of its updates"
    later = _below(update.energies, 1 / ROOM)
    if update.steps and not update.counted_state and later is not None and later > MOST_SWALLOWED:
        lost = f"of 1/{ROOM} of them {format_share(later)} is lost"
        return f"its updates have no room to become smaller, as training settles: {lost}"
    return ""


def bias_objection(found: Divergence) -> str:
    """Return what is wrong with what errors of gradients have in common over batches; "" for nothing."""
    if found.grad_bias is None or not found.grad_noise or found.grad_bias < LEAST_BIAS:
        return ""
    ratio = found.grad_bias / found.grad_noise
    if ratio <= MOST_BIAS:
        return ""
    return f"its gradients err alike in all batches, by {format_share(ratio)} of what batches differ by"


def swallowed_at(update: Update, factor: float) -> float | None:
    """Return the share of weights that would not move at `factor` times the learning rate; None where it is not known.

    An update is taken to be proportional to the rate, and half a unit in the last place to decide. Within a bin of
    `Update.sizes` changes are spread evenly over the logarithm.
    """
    return _below(update.sizes, factor)


def _below(bins: Sequence[float] | None, factor: float) -> float | None:
    """Return which share of what `bins` hold would be below half a unit in the last place, times `factor`."""
    if not bins or not sum(bins):
        return None
    edge = -math.log2(factor) - LOWEST_BIN
    whole = max(0, min(len(bins), math.floor(edge)))
    lost = float(sum(bins[:whole]))
    if edge > 0 and whole < len(bins):
        lost += (edge - whole) * bins[whole]
    return lost / sum(bins)


def blame(update: Update) -> Mapping[str, float]:
    """Return which share of an update's squared error is the gradients', the state's, the storage's; {}: not known.

    Each is the error with all else in fp64. They come from roundings that know nothing of each other, so that their
    squares add up.
    """
    errors = {
        "storage": update.storage_rel_l2,
        "gradients": update.gradient_rel_l2,
        "state": update.state_rel_l2,
    }
    squares = {what: error**2 for what, error in errors.items() if error is not None}
    total = sum(squares.values())
    return {what: square / total for what, square in squares.items()} if total else {}


def blamed(update: Update) -> str:
    """Say which share of an update's error is whose, the largest first; "" where that is not known."""
    shares = sorted(blame(update).items(), key=lambda one: -one[1])
    return ", ".join(f"{what} {format_share(share)}" for what, share in shares if share >= 0.001)


def rates_said(update: Update) -> str:
    """Say how many weights do not move at a tenth of the learning rate and at ten times it; "": not known."""
    shares = [swallowed_at(update, factor) for factor in (0.1, 10.0)]
    if None in shares:
        return ""
    low, high = map(format_share, shares)
    if len(update.rates) == 1:
        return f"{low} at a learning rate of {update.rates[0] / 10:g}, {high} at {update.rates[0] * 10:g}"
    return f"{low} at a tenth of the learning rates, {high} at ten times these"


def _still(update: Update) -> str:
    share = format_share((update.swallowed or 0) / update.moving) if update.moving else "0%"
    return f"{share} of the weights that should move do not"


FASTER_WITHOUT_INTERVALS = 1.05
"""The speedup that counts where fewer than three rounds give no interval: rebuilding the same network moves its time by
2% (standard deviation, the project's measurements), a ratio of two by 2.8%, and 5% is nearly twice that."""

FEW_ROUNDS = "no interval under three --rounds"
"""Why nothing is certain of a speedup that only `FASTER_WITHOUT_INTERVALS` speaks for."""

WORTH = 1.02
"""A smaller gain in time is none: the 2% that every comparison calls unchanged."""

OVER_FP32 = "speedup_over_fp32"
"""The speedup of a row over fp32, where advice is against `default`."""

LARGEST_SPEEDUP = 64.0
"""More than any hardware gains by computing in half precision: twice the 30 times that datasheets promise at most."""

DISAGREEMENT_ALPHA = 0.05
"""One-sided level at which disagreeing decisions must be incompatible with the agreement asked for."""

UPDATES_UNKNOWN = "its updates not measured"
"""What is said of a training in half of which it is not known, as in runs of before, whether updates arrive."""

ERRORS = {"output_rel_l2": "error", "grad_rel_l2": "gradient error"}
"""What the errors that a budget bounds are called in a sentence."""

HIDDEN = {
    "sample_p99_rel_l2": "the errors of its samples reach {} at their 99% quantile",
    "sample_worst_rel_l2": "its worst sample errs by {}",
    "kl_mean": "its probabilities lie {} nats from fp64's",
    "kl_p99": "its probabilities lie {} nats from fp64's at the 99% quantile",
    "loss_rel_error": "its loss is off by {}",
}
"""What else a budget bounds where it is defined, and what is said of it."""

MEMORY_WORTH_SAYING = 0.95
"""The largest ratio of peak memory that is mentioned as a saving."""


@dataclass(frozen=True, kw_only=True)  # no slots: the class' attributes are the defaults of the command line
class Budget:
    """How much error a precision may bring; the name of each limit is the column that it bounds.

    No non-finite output and, in training, no non-finite parameter, no step skipped once GradScaler's scale has settled
    and no loss of updates (`updates.update_objection`) are not negotiable. Of single parameters with 1% of the
    gradients' norm, `updates.OF_A_TENSOR` times the error of all is allowed.
    The other defaults and their sources:

    * `output_rel_l2` 2e-2, of the output that errs most: `torch.testing.assert_close` accepts 1.6e-2 (relative) for
      bf16. The error of merely rounding a reference output to bf16 is 1.6e-3 on real networks, healthy autocast is
      three to ten times that.
    * `sample_p99_rel_l2` 5e-2 and `sample_worst_rel_l2` 2e-1: conventions, 2.5 and ten times what is allowed of all
      samples together, of which 0.25% may lie at ten times that before all of it is used up.
    * `kl_mean` 1e-2 nats: by Pinsker's inequality the probability of nothing then differs by more than 7% on average.
      LLaMA 3 8B lies 5.5e-3 from itself in six-bit and 1.1e-2 in five-bit weights (llama.cpp, examples/perplexity).
      `kl_p99` 1e-1: a convention, ten times that (22% by Pinsker).
    * `loss_rel_error` 5e-2: a convention.
    * `argmax_agreement` 0.99: MLPerf Inference asks for 99% of the fp32 accuracy (Reddi et al., 2020); at 99%
      agreement the accuracy cannot have moved by more than one point. Judged beyond chance, see `agreement_fails`.
    * `grad_rel_l2` 1e-1: at the critical batch size the noise of a minibatch gradient is as large as the gradient
      (McCandlish et al., "An Empirical Model of Large-Batch Training", 2018). An independent error of a tenth of it
      adds 0.5% in quadrature.
    * `grad_flushed_share` 1e-2: Micikevicius et al., "Mixed Precision Training" (2018), section 3.1, report harm where
      about 5% of the gradients became zero; a fifth of that leaves room. Counted beyond what fp32 flushes itself.

    Raises `UsageError` for a limit that is negative, not a number, or an agreement above 1.
    """

    output_rel_l2: float = 2e-2
    argmax_agreement: float = 0.99
    grad_rel_l2: float = 1e-1
    grad_flushed_share: float = 1e-2
    sample_p99_rel_l2: float = 5e-2
    sample_worst_rel_l2: float = 2e-1
    kl_mean: float = 1e-2
    kl_p99: float = 1e-1
    loss_rel_error: float = 5e-2

    def __post_init__(self) -> None:
        shares = {"--min-argmax-agreement": self.argmax_agreement, "--max-flushed-share": self.grad_flushed_share}
        errors = {
            "--max-error": self.output_rel_l2,
            "--max-gradient-error": self.grad_rel_l2,
            "--max-sample-error": self.sample_p99_rel_l2,
            "--max-worst-sample-error": self.sample_worst_rel_l2,
            "--max-loss-error": self.loss_rel_error,
        }
        divergences = {"--max-kl": self.kl_mean, "--max-kl-p99": self.kl_p99}
        for flag, value in shares.items():
            if not 0 <= value <= 1:
                raise UsageError(f"{flag} is a share between 0 and 1, not {value:g}")
        for flag, value in errors.items():
            if not value >= 0:
                raise UsageError(f"{flag} is a relative error of 0 or more, not {value:g}")
        for flag, value in divergences.items():
            if not value >= 0:
                raise UsageError(f"{flag} is a divergence of 0 nats or more, not {value:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The precision to take (None: no advice is possible), a sentence that says why, the column that decided.

    `why` is what the sentence says beside the precision and its numbers, "" where these say all, `caveat` what makes
    it uncertain ("": nothing). `remark` is what arithmetic knows of training in it, or in the one that is passed over
    for an objection, without a measurement ("": nothing). `case_id` is that of the very case: a precision may have
    several, with other inputs or without a scaler.
    """

    group: Group
    precision: str | None
    column: str
    sentence: str
    why: str = ""
    caveat: str = ""
    remark: str = ""
    case_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What a run tells of how far its times can be trusted.

    `apart` is by what factor two measurements of its control differ (1: by nothing, or there is none), `cause` why its
    rounds were unfit (`frames.unfit_said`; "": they were not).
    """

    apart: float = 1.0
    cause: str = ""


QUIET = Trust()
"""Of a run that says nothing against its times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What is decided for a group: the row to take (None: no advice), the deciding column, and what is said.

    `passed` is the faster row that an objection keeps from being taken (None: there is none).
    """

    row: Row | None
    column: str
    sentence: str
    why: str = ""
    caveat: str = ""
    passed: Row | None = None


@dataclass(frozen=True, slots=True)
class _Objection:
    """What keeps a precision from being advised: the column, what is wrong with its value, what to do instead.

    `remedy` is the precision of the table that does so, "" where none was measured.
    """

    column: str
    reason: str
    instead: str = ""
    remedy: str = ""


def advise(
    rows: Iterable[Row],
    divergences: Mapping[str, Divergence],
    budget: Budget,
    rounds: Mapping[str, Sequence[Round]] | None = None,
    trust: Trust = QUIET,
    trained: "Mapping[str, Trained] | None" = None,
) -> dict[Group, Advice]:
    """Return one piece of advice for every group in which anything was measured.

    `divergences` by case id tell what the frame does not: the number of decisions behind an agreement, skipped steps,
    why an error is undefined. Without a case's divergence its agreement is judged as it stands. `rounds` by case id,
    without the control's, let speeds be compared round by round. What whole trainings showed of a case, `trained` by
    case id, counts instead of what one step says of it. Speed and memory are judged against what a user runs today:
    `default` where that was measured, else fp32.
    """
    advice = {}
    for group, members in grouped(rows).items():
        if any(row["outcome"] == "ok" for row in members):
            found = _decide(_against_todays(members), divergences, budget, rounds or {}, trust, trained or {})
            advice[group] = Advice(
                group=group,
                precision=found.row["precision"] if found.row else None,
                column=found.column,
                sentence=found.sentence,
                why=found.why,
                caveat=found.caveat,
                remark=_arithmetic(found, divergences),
                case_id=found.row["case_id"] if found.row else None,
            )
    return advice


def advise_run(
    stored: "StoredRun", rows: Iterable[Row], budget: Budget, studies: "Iterable[StoredRun]" = ()
) -> dict[Group, Advice]:
    """Return the advice of a whole run, whose `rows` are given, from each case's rounds without the control's.

    What `studies` of convergence found of its cases counts for more than one step (`trained_cases`).
    """
    from ampbench.instruments.convergence.learning import trained_cases  # NumPy and SciPy: not for `--help`

    rounds, trust = _evidence(stored)
    return advise(rows, stored.divergence, budget, rounds, trust, trained_cases(stored, studies))


def objections(stored: "StoredRun", rows: Iterable[Row], budget: Budget) -> dict[str, str]:
    """Return by case id what keeps each measured row out of the budget, "" where nothing does; whatever its time."""
    rounds, found = _rounds(stored), dict[str, str]()
    for members in grouped(rows).values():
        for case_id, objection in _objections(members, stored.divergence, budget, rounds).items():
            found[case_id] = objection.reason if objection is not None else ""
    return found


def across_tables(stored: "StoredRun", rows: Iterable[Row], advice: Mapping[Group, Advice]) -> list[str]:
    """Return a line for each workload and phase whose fastest way is in another table than the plain one.

    The tables differ in memory format or path; the plain one is contiguous and eager. Of each counts what the `advice`
    on it takes. The gain over plain fp32, and over what is advised there, must be certain.
    """
    tables: dict[tuple[object, ...], dict[Group, list[Row]]] = {}
    for group, members in grouped(rows).items():
        key = group.workload, group.parameters, group.batch_size, group.device, group.phase
        tables.setdefault(key, {})[group] = members
    several = [members for members in tables.values() if len(members) > 1]
    if not several:
        return []
    rounds, trust = _evidence(stored)
    return [said for members in several if (said := _fastest_table(members, advice, rounds, trust))]


def _fastest_table(
    members: Mapping[Group, list[Row]],
    advice: Mapping[Group, Advice],
    rounds: Mapping[str, Sequence[Round]],
    trust: Trust,
) -> str:
    """Say which of the tables of a workload and phase has the fastest way that is advised; "" where it is the plain."""
    taken = {
        group: row
        for group, group_rows in members.items()
        for row in group_rows
        if group in advice and row["case_id"] == advice[group].case_id and number(row["seconds_median"])
    }
    plain = next((one for one in taken if (one.memory_format, one.path) == ("contiguous", "eager")), None)
    if plain is None:
        return ""
    baseline = next((row for row in members[plain] if row["precision"] == _todays(members[plain])), taken[plain])
    group = min(taken, key=lambda one: number(taken[one]["seconds_median"]) or math.inf)
    best = taken[group]
    gain = (number(baseline["seconds_median"]) or 0.0) / best["seconds_median"]
    certain = all(_is_faster(best, other, rounds) for other in (baseline, taken[plain]))
    if group == plain or not certain or not max(WORTH, trust.apart) < gain <= LARGEST_SPEEDUP:
        return ""
    traits = [
        (getattr(group, name), getattr(plain, name))
        for name in ("memory_format", "path")
        if getattr(group, name) != getattr(plain, name)
    ]
    there, here = (", ".join(side) for side in zip(*traits, strict=True))
    caveat = _caveat(best, trust)
    batch = "" if group.batch_size is None else f"batch {group.batch_size}"
    of = " ".join(filter(None, [group.workload, batch, group.phase]))
    return (
        f"of the {len(members)} tables of {of}, {precision_label(best)} in "
        f"{there} is fastest: {times(gain)} the speed of {precision_label(baseline)} in {here}"
        f"{f' ({caveat})' if caveat else ''}"
    )


def _rounds(stored: "StoredRun") -> dict[str, list[Round]]:
    """Return the rounds of each case of a run without the control's."""
    rounds: dict[str, list[Round]] = {}
    for each in stored.rounds:
        if not each.control:
            rounds.setdefault(each.case_id, []).append(each)
    return rounds


def _evidence(stored: "StoredRun") -> tuple[dict[str, list[Round]], Trust]:
    """Return the rounds of each case of a run without the control's, and how far its times can be trusted."""
    from ampbench.judge import frame  # pandas: not for `--help`

    control = frame.control_ratio(stored)
    return _rounds(stored), Trust(apart=control.apart if control else 1.0, cause=frame.unfit_said(stored))


def agreement_fails(agreeing: int, decisions: int, minimum: float) -> bool:
    """Return whether the disagreements are more than chance allows if the true agreement were `minimum`.

    The one-sided exact binomial test: P(X >= disagreements), X ~ Binomial(decisions, 1 - minimum), at 5%; the same
    number as `scipy.stats.binomtest(..., alternative="greater")`, whose import takes 0.4 s longer. One flip in eight
    decisions proves nothing (p = 0.077).
    """
    disagreements = decisions - agreeing
    if disagreements <= 0:
        return False
    from scipy.special import bdtrc

    return float(bdtrc(disagreements - 1, decisions, 1.0 - minimum)) <= DISAGREEMENT_ALPHA


def _decide(
    rows: list[Row],
    divergences: Mapping[str, Divergence],
    budget: Budget,
    rounds: Mapping[str, Sequence[Round]],
    trust: Trust,
    trained: "Mapping[str, Trained]",
) -> _Choice:
    """Return what to take of the rows of one group."""
    for row in rows:
        found = divergences.get(row["case_id"])
        fault = no_precisions_fault(found) if found is not None else None
        if fault is not None:
            return _none(*fault)
    baseline = next((row for row in rows if row["precision"] == _todays(rows)), None)
    others = [row for row in rows if row["outcome"] == "ok" and row["precision"] not in (BASELINE, DEFAULT)]
    others.sort(key=lambda row: number(row["seconds_median"]) or math.inf)
    one_step = _objections(rows, divergences, budget, rounds)
    objections = {case_id: _overridden(one, trained.get(case_id)) for case_id, one in one_step.items()}
    passing = [row for row in others if objections[row["case_id"]] is None]

    if baseline is None or baseline["outcome"] == "skipped":
        return _none("outcome", "fp32 was not measured here, and speedups are stated against it")
    if baseline["outcome"] != "ok":
        if not passing:
            return _none("outcome", "fp32 failed, and no other precision is within the error budget")
        why = "fp32 failed, and this is the fastest within the error budget"
        return _Choice(row=passing[0], column="outcome", sentence=f"take {precision_label(passing[0])}: {why}", why=why)

    comparable = [row for row in others if number(row["speedup_vs_fp32"]) is not None]
    rest = [row for row in rows if row["precision"] not in (BASELINE, DEFAULT)]
    if not comparable and all(row["outcome"] == "skipped" for row in rest):
        return _none("outcome", "no other precision was measured")
    faster = [row for row in comparable if _is_faster(row, baseline, rounds)]
    if faster and faster[0]["speedup_vs_fp32"] > LARGEST_SPEEDUP:
        gained = faster[0]["speedup_vs_fp32"]
        than = baseline["precision"]
        why = f"{precision_label(faster[0])} took 1/{gained:.0f} of {than}'s time, which no hardware does"
        return _none("speedup_vs_fp32", "; ".join(filter(None, [why, trust.cause])), on_speed=True)
    faster = [row for row in faster if row["speedup_vs_fp32"] >= WORTH]
    if not faster:
        savers = [row for row in comparable if row in passing and _saves(row, baseline, rounds)]
        if savers:
            chosen = min(savers, key=lambda row: number(row["memory_ratio_vs_fp32"]) or math.inf)
            within = _within(
                chosen,
                budget,
                trained.get(chosen["case_id"]),
                one_step[chosen["case_id"]],
                divergences.get(chosen["case_id"]),
            )
            return _taken(chosen, chosen, comparable, faster, objections, within, trust)
        return _stay(baseline, comparable, rounds, trust)
    passing = [row for row in faster if objections[row["case_id"]] is None]
    if not passing:
        objection = objections[faster[0]["case_id"]]
        assert objection is not None
        why = "; ".join(filter(None, [f"{_speed(faster[0])}, but {objection.reason}", objection.instead]))
        if objection.column == "chance_rel_l2":
            return _none("output_rel_l2", why)
        sentence = f"stay in {baseline['precision']}: {why}"
        return _Choice(row=baseline, column=objection.column, sentence=sentence, why=why, passed=faster[0])

    equals = [row for row in passing if row is passing[0] or not _is_faster(passing[0], row, rounds)]
    chosen = min(equals, key=lambda row: judged_error(row) or 0.0)
    gained = chosen["speedup_vs_fp32"]
    if gained <= trust.apart:
        why = f"{_speed(chosen)}, and the run's own control, one case measured twice, is {trust.apart - 1:.0%} apart"
        return _none("speedup_vs_fp32", "; ".join(filter(None, [why, trust.cause])), on_speed=True)
    within = _within(
        chosen, budget, trained.get(chosen["case_id"]), one_step[chosen["case_id"]], divergences.get(chosen["case_id"])
    )
    return _taken(chosen, passing[0], comparable, faster, objections, within, trust)


def _todays(rows: Iterable[Row]) -> str:
    """Return the precision of a group that a user runs who changes nothing: `default` where it was measured."""
    measured = {row["precision"] for row in rows if row["outcome"] == "ok"}
    return DEFAULT if DEFAULT in measured else BASELINE


def _against_todays(rows: list[Row]) -> list[Row]:
    """Return the rows of a group with speed and memory as times those of `default`, where that was measured.

    Then `OVER_FP32` is the speed as times that of fp32. Where it was not measured, what torch ships is fp32 there, or
    is not known, and the rows are as they are.
    """
    today = next((row for row in rows if row["precision"] == DEFAULT and row["outcome"] == "ok"), None)
    if today is None:
        return rows
    seconds, memory = number(today["seconds_median"]), number(today.get("peak_memory_bytes"))

    def ratio(numerator: float | None, denominator: float | None) -> float | None:
        return numerator / denominator if numerator and denominator else None

    return [
        {
            **row,
            OVER_FP32: row["speedup_vs_fp32"],
            "speedup_vs_fp32": ratio(seconds, number(row["seconds_median"])),
            "memory_ratio_vs_fp32": ratio(number(row.get("peak_memory_bytes")), memory),
        }
        for row in rows
    ]


def _than(row: Row) -> str:
    """Return what the speed of a row is told as times of."""
    return DEFAULT if OVER_FP32 in row else BASELINE


def _objections(
    rows: Sequence[Row],
    divergences: Mapping[str, Divergence],
    budget: Budget,
    rounds: Mapping[str, Sequence[Round]],
) -> dict[str, _Objection | None]:
    """Return by case id the first thing that keeps a measured row of a group, but fp32's, out of the budget."""
    baseline = next((row for row in rows if row["precision"] == BASELINE), None)
    unavoidable = 0.0 if baseline is None else number(baseline["grad_flushed_share"]) or 0.0
    explodes = baseline is not None and _nonfinite_parameters(
        divergences.get(baseline["case_id"]), rounds.get(baseline["case_id"], ())
    )
    found = {
        row["case_id"]: _objection(
            row, divergences.get(row["case_id"]), budget, unavoidable, rounds.get(row["case_id"], ()), bool(explodes)
        )
        for row in rows
        if row["outcome"] == "ok" and row["precision"] != BASELINE
    }
    passing = [row for row in rows if row["case_id"] in found and found[row["case_id"]] is None]
    for row in rows:
        one = found.get(row["case_id"])
        if one is not None and one.column in ("update_kept", "param_nonfinite"):
            remedy, instead = _instead(row, passing, divergences.get(row["case_id"]))
            found[row["case_id"]] = replace(one, instead=instead, remedy=remedy)
    return found


def _instead(row: Row, passing: Sequence[Row], divergence: Divergence | None) -> tuple[str, str]:
    """Return which precision keeps the updates that a row with weights in half loses, and a sentence with its price.

    The precision is "" where none of the table does, the sentence where weights are not stored in half.
    """
    own = PRECISIONS.get(row["precision"])
    if own is None or own.storage == "float32" or own.master:
        return "", ""
    for other in passing:
        there = PRECISIONS.get(other["precision"])
        if there is None or not there.master or there.storage != own.storage:
            continue
        bytes_each = [number(one.get("peak_memory_bytes")) for one in (other, row)]
        elements = divergence.grad_elements if divergence is not None else None
        price = ""
        if elements and bytes_each[0] and bytes_each[1]:
            more = round((bytes_each[0] - bytes_each[1]) / elements)
            price = f", {counted(more, 'byte', 'bytes')} a parameter more than {row['precision']}" if more > 0 else ""
        return there.name, f"{there.name} keeps the updates: {times(other['speedup_vs_fp32'])} the speed of fp32{price}"
    return "", f"fp32 master weights keep them, at {MASTER_BYTES} bytes a parameter"


def _overridden(objection: _Objection | None, trained: "Trained | None") -> _Objection | None:
    """Return what keeps a row from being advised where whole trainings may have told: they count for more."""
    if trained is None:
        return objection
    if trained.trains:
        return None
    return _Objection("outcome", f"it does not train as fp32 does: {trained.reason} ({trained.study})")


def _within(
    row: Row, budget: Budget, trained: "Trained | None", objection: _Objection | None, found: Divergence | None
) -> str:
    """Return what the errors of an advised row are within, or that a training overrides what one step objects to.

    Of weights that are stored in half it says where nobody knows whether updates arrive in them.
    """
    if trained is not None:
        whatever = "" if objection is None else f", though after one step {objection.reason}"
        return f"trains as fp32 does{whatever} ({trained.study})"
    error = judged_error(row)
    assert error is not None  # an undefined error is an objection
    least = f", argmax {proven}" if (proven := least_agreement(row, budget.argmax_agreement)) else ""
    own = PRECISIONS.get(row["precision"])
    halved = own is not None and own.storage != "float32" and not own.master and row["phase"] == "training"
    unknown = halved and found is not None and (found.update is None or found.update.kept is None)
    known = f"error {error_said(row, error)}{_in_output(row)} of {budget.output_rel_l2:g} allowed{least}"
    return f"{known}, {UPDATES_UNKNOWN}" if unknown else known


def _none(column: str, why: str, *, on_speed: bool = False) -> _Choice:
    """Return that there is no advice, and why."""
    return _Choice(row=None, column=column, sentence=f"no advice{' on speed' if on_speed else ''}: {why}", why=why)


def _taken(
    chosen: Row,
    fastest: Row,
    comparable: list[Row],
    faster: list[Row],
    objections: Mapping[str, _Objection | None],
    within: str,
    trust: Trust,
) -> _Choice:
    """Return that `chosen` is advised, with what it gains and what it passes over, and why.

    `within` says what its errors are within.
    """
    gained, memory = chosen["speedup_vs_fp32"], number(chosen["memory_ratio_vs_fp32"])
    saved = f"{times(memory)} the memory" if memory is not None and memory <= MEMORY_WORTH_SAYING else ""
    if gained >= WORTH:
        gains = f"{times(gained)} the speed{f' and {saved}' if saved else ''} of {_than(chosen)}"
    else:
        gains = f"{saved} of {_than(chosen)} at its speed"
    if (true := number(chosen.get(OVER_FP32))) is not None:
        gains += f" ({times(true)} the speed of fp32 with tf32 off)"
    caveat = _caveat(chosen, trust)
    sentence = f"take {precision_label(chosen)}: {gains}, {within}{f' ({caveat})' if caveat else ''}"
    column, why = "speedup_vs_fp32" if gained >= WORTH else "memory_ratio_vs_fp32", ""
    passed: Row | None = None
    for row in (row for row in comparable if row["seconds_median"] < chosen["seconds_median"]):
        objection = objections[row["case_id"]]
        if row in faster and objection is not None:
            column, why, passed = objection.column, f"{_speed(row)}, but {objection.reason}", row
            if objection.remedy not in ("", chosen["precision"]):
                why += f"; {objection.instead}"
            break
        looks = row not in faster and objection is None and row["speedup_vs_fp32"] >= WORTH * max(gained, 1.0)
        if looks:
            speed = times(row["speedup_vs_fp32"])
            why = f"{precision_label(row)} looks {speed} as fast, but that is not certain; more --rounds may tell"
            break
    if not why and chosen is not fastest:
        why = f"{precision_label(fastest)} is as fast within the intervals, with more error"
        column = "output_rel_l2"
    sentence += f"; {why}" if why else ""
    return _Choice(row=chosen, column=column, sentence=sentence, why=why, caveat=caveat, passed=passed)


def _arithmetic(choice: _Choice, divergences: Mapping[str, Divergence]) -> str:
    """Return what arithmetic knows of training in the precision that is taken, else in the one that is passed over."""
    for row in (choice.row, choice.passed):
        found = divergences.get(row["case_id"]) if row is not None else None
        precision = PRECISIONS.get(row["precision"]) if row is not None else None  # a foreign run may have others
        if precision is not None and found is not None and (said := remark_line(found.recipe, precision)):
            return said
    return ""


def _caveat(row: Row, trust: Trust) -> str:
    """Say what makes the speed of `row` uncertain: too few rounds, a machine that was not quiet."""
    said = "; ".join(filter(None, [FEW_ROUNDS if number(row["seconds_high"]) is None else "", trust.cause]))
    return f"not certain: {said}" if said else ""


def _stay(baseline: Row, comparable: list[Row], rounds: Mapping[str, Sequence[Round]], trust: Trust) -> _Choice:
    """Return that no other precision is known to be faster than fp32, and the best of them.

    That nothing is faster takes the proof that a speedup takes: of every one, the gain is certainly under 2%, and the
    control is no further apart than the loss.
    """
    caveat = ""
    if not comparable:
        why = "every other precision failed"
    else:
        best = comparable[0]
        said = f"at best {precision_label(best)} with {times(best['speedup_vs_fp32'])}"
        slower = best["speedup_vs_fp32"] * trust.apart <= WORTH
        if slower and all(_is_no_faster(row, baseline, rounds) for row in comparable):
            caveat = _caveat(best, trust)
            why = f"nothing is faster, {said}{f' ({caveat})' if caveat else ''}"
        elif number(best["seconds_high"]) is None:
            why, caveat = f"no speedup is certain, {said}: {FEW_ROUNDS}", f"not certain: {FEW_ROUNDS}"
        else:
            cause = trust.cause or "more --rounds may tell"
            why, caveat = f"no speedup is certain, {said}; {cause}", f"not certain: {cause}"
    sentence = f"stay in {baseline['precision']}: {why}"
    return _Choice(row=baseline, column="speedup_vs_fp32", sentence=sentence, why=why, caveat=caveat)


def _objection(
    row: Row,
    divergence: Divergence | None,
    budget: Budget,
    unavoidable: float,
    rounds: Sequence[Round],
    explodes: bool,
) -> _Objection | None:
    """Return the first thing that keeps a measured row out of the budget, None where nothing does.

    `unavoidable` is the share of gradients that fp32 flushes, too; `explodes`: its parameters are not finite, either.
    """
    training = row["phase"] == "training"
    nonfinite = number(row["output_nonfinite"])
    if nonfinite:
        broken = f"{counted(int(nonfinite), 'output element is', 'output elements are')} not finite"
        return _Objection("output_nonfinite", (divergence and divergence.output_undefined) or broken)
    if divergence is not None and divergence.chance_rel_l2 is not None:
        return _Objection("chance_rel_l2", CHANCE.format(divergence.chance_rel_l2))
    timed = max((each.param_nonfinite or 0 for each in rounds), default=0)
    if training and not explodes and (said := parameters_objection(divergence, timed)):
        return _Objection("param_nonfinite", said)
    errors = {"output_rel_l2": budget.output_rel_l2} | ({"grad_rel_l2": budget.grad_rel_l2} if training else {})
    for column, limit in errors.items():
        value = judged_error(row) if column == "output_rel_l2" else number(row[column])
        if value is None:
            return _Objection(column, _undefined(column, divergence))
        if value > limit:
            where = _in_output(row) if column == "output_rel_l2" else ""
            return _Objection(column, f"its {ERRORS[column]}{where} is {error_said(row, value)}, more than {limit:g}")
    if training and divergence is not None and (found := _of_updates(divergence, budget)):
        return found
    for column, said in HIDDEN.items():
        value, limit = number(row.get(column)), getattr(budget, column)
        if value is not None and value > limit:
            return _Objection(column, f"{said.format(format_error(value))}, more than {limit:g}")
    agreement, flushed = number(row["argmax_agreement"]), number(row["grad_flushed_share"])
    objection = None
    if agreement is not None and _agrees_too_little(agreement, divergence, budget.argmax_agreement):
        least = format_share(budget.argmax_agreement)
        reason = f"{format_share(agreement)} of its decisions are fp64's, less than {least}"
        objection = _Objection("argmax_agreement", reason)
    elif training and flushed is not None and flushed - unavoidable > budget.grad_flushed_share:
        most = format_share(budget.grad_flushed_share)
        reason = f"{format_share(flushed)} of its gradients became zero, more than {most}"
        if unavoidable:
            reason += f" above fp32's {format_share(unavoidable)}"
        objection = _Objection("grad_flushed_share", reason)
    elif training and (skipped := _skipped_steps(divergence, rounds)):
        objection = _Objection("skipped_steps", f"GradScaler skipped {skipped} steps")
    return objection


def _in_output(row: Row) -> str:
    """Return " in scores" where that is the one of several outputs that errs most, else ""."""
    name = row.get("output_worst_name")
    return f" in {name}" if name else ""


def _of_updates(found: Divergence, budget: Budget) -> _Objection | None:
    """Return what keeps a training out of the budget though its errors as a whole are within it."""
    if said := update_objection(found.update):
        return _Objection("update_kept", said)
    most, error = OF_A_TENSOR * budget.grad_rel_l2, found.grad_tensor_rel_l2
    if error is not None and error > most:
        said = f"the gradient of {found.grad_tensor_parameter} errs by {format_error(error)}, more than {most:g}"
        return _Objection("grad_tensor_rel_l2", said)
    if said := bias_objection(found):
        return _Objection("grad_bias_ratio", said)
    return None


def _nonfinite_parameters(divergence: Divergence | None, rounds: Sequence[Round]) -> int:
    """Return how many elements of parameters are not finite, after one step or after the timed ones, at most."""
    passed = divergence.param_nonfinite if divergence is not None else 0
    return max([passed or 0, *(each.param_nonfinite or 0 for each in rounds)])


def error_said(row: Row, value: float) -> str:
    """Return an error, with what it is against where that is not fp64."""
    against = f" ({AGAINST_FP32})" if row["reference_dtype"] == BASELINE else ""
    return f"{format_error(value)}{against}"


def _undefined(column: str, divergence: Divergence | None) -> str:
    """Say why an error is undefined; a note may speak of something else, so the numbers are asked first."""
    name = f"its {ERRORS[column]}"
    if divergence is None:
        return f"{name} was not measured"
    if column == "grad_rel_l2" and divergence.grad_nonfinite:
        return f"{name} is undefined: {divergence.grad_nonfinite} gradient elements are not finite"
    if why := divergence.output_undefined if column == "output_rel_l2" else divergence.grad_undefined:
        return f"{name} is undefined: {why}"
    if column == "output_rel_l2" and divergence.output_reference_norm == 0:  # a run of before its reason was stored
        return f"{name} is undefined: no output element is finite, or all are zero"
    return f"{name} is undefined: {divergence.notes[0]}" if divergence.notes else f"{name} is undefined"


def _agrees_too_little(agreement: float, divergence: Divergence | None, minimum: float) -> bool:
    """Judge the agreement beyond chance where the number of decisions is known, else as it stands."""
    if divergence is None or divergence.decided is None:
        return agreement < minimum
    return agreement_fails(*divergence.decided, minimum)


def _skipped_steps(divergence: Divergence | None, rounds: Sequence[Round]) -> int:
    """Return how many steps GradScaler skipped once its scale had settled, in the divergence pass and in all rounds."""
    passed = divergence.skipped_steps if divergence is not None else 0
    return (passed or 0) + sum(each.skipped_steps or 0 for each in rounds)


def _is_faster(row: Row, other: Row, rounds: Mapping[str, Sequence[Round]]) -> bool:
    """Return whether `row` takes less time than `other`, certainly; without any interval, that is 5% less."""
    interval = _gain(row, other, rounds)
    if interval is not None:
        return interval[0] > 1.0
    mine, theirs = number(row["seconds_median"]), number(other["seconds_median"])
    return mine is not None and theirs is not None and theirs >= FASTER_WITHOUT_INTERVALS * mine


def _is_no_faster(row: Row, other: Row, rounds: Mapping[str, Sequence[Round]]) -> bool:
    """Return whether what `row` may gain over `other` is certainly under 2%; without any interval, it is 5% slower."""
    interval = _gain(row, other, rounds)
    return interval[1] < WORTH if interval is not None else _is_faster(other, row, rounds)


def _saves(row: Row, other: Row, rounds: Mapping[str, Sequence[Round]]) -> bool:
    """Return whether `row` takes less memory than fp32 and certainly no more time than `other`, but for under 2%."""
    memory, interval = number(row["memory_ratio_vs_fp32"]), _gain(row, other, rounds)
    return memory is not None and memory <= MEMORY_WORTH_SAYING and interval is not None and interval[0] > 1 / WORTH


def _gain(row: Row, other: Row, rounds: Mapping[str, Sequence[Round]]) -> tuple[float, float] | None:
    """Return the 95% interval of how many times as fast as `other` a row is; None where there are rounds too few.

    The precisions of a table are measured next to each other in every round, so their times are compared round by
    round: it is the t interval of the paired log-ratios. Without three common rounds, it is what the intervals of both
    leave open.
    """
    from ampbench.base.stats import log_t_interval, round_value  # NumPy and SciPy: not for `--help`

    own, theirs_by_round = (
        {each.round: round_value(each.samples, each.cpu_samples) for each in rounds.get(one["case_id"], ())}
        for one in (row, other)
    )
    common = [(own[number], theirs_by_round[number]) for number in own.keys() & theirs_by_round.keys()]
    ratios = [theirs / mine for mine, theirs in common if mine > 0 and theirs > 0]
    interval = log_t_interval(ratios) if ratios else None
    if interval is not None:
        return interval
    ends = [number(one[end]) for one in (row, other) for end in ("seconds_low", "seconds_high")]
    low, high, other_low, other_high = ends
    if low and high and other_low and other_high:
        return other_low / high, other_high / low
    return None


def _speed(row: Row) -> str:
    return f"{precision_label(row)} is {times(row['speedup_vs_fp32'])} as fast"

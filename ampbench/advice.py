"""Which precision to take: a line of advice for each workload, phase, device and path, and why."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampbench.errors import UsageError
from ampbench.precisions import BASELINE
from ampbench.records.divergences import Divergence
from ampbench.records.measurements import Round
from ampbench.rows import Group, Row, grouped, number, precision_label, times
from ampbench.units import counted, format_error, format_share

if TYPE_CHECKING:
    from ampbench.store import StoredRun


FASTER_WITHOUT_INTERVALS = 1.05
"""The speedup that counts where fewer than three rounds give no interval: rebuilding the same network moves its time by
2% (standard deviation, the project's measurements), a ratio of two by 2.8%, and 5% is nearly twice that."""

FEW_ROUNDS = "not certain: no interval under three --rounds"
"""What is said of a speedup that only `FASTER_WITHOUT_INTERVALS` speaks for."""

DISAGREEMENT_ALPHA = 0.05
"""One-sided level at which disagreeing decisions must be incompatible with the agreement asked for."""

ERRORS = {"output_rel_l2": "error", "grad_rel_l2": "gradient error"}
"""What the errors that a budget bounds are called in a sentence."""

MEMORY_WORTH_SAYING = 0.95
"""The largest ratio of peak memory that is mentioned as a saving."""


@dataclass(frozen=True, kw_only=True)  # no slots: the class' attributes are the defaults of the command line
class Budget:
    """How much error a precision may bring; the name of each limit is the column that it bounds.

    No non-finite output and, in training, no step skipped once GradScaler's scale has settled are not negotiable.
    The other defaults and their sources:

    * `output_rel_l2` 2e-2: `torch.testing.assert_close` accepts 1.6e-2 (relative) for bf16. The error of merely
      rounding a reference output to bf16 is 1.6e-3 on real networks, healthy autocast is three to ten times that.
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

    def __post_init__(self) -> None:
        shares = {"--min-argmax-agreement": self.argmax_agreement, "--max-flushed-share": self.grad_flushed_share}
        errors = {"--max-error": self.output_rel_l2, "--max-gradient-error": self.grad_rel_l2}
        for flag, value in shares.items():
            if not 0 <= value <= 1:
                raise UsageError(f"{flag} is a share between 0 and 1, not {value:g}")
        for flag, value in errors.items():
            if not value >= 0:
                raise UsageError(f"{flag} is a relative error of 0 or more, not {value:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The precision to take (None: no advice is possible), a sentence that says why, the column that decided.

    `why` is what the sentence says beside the precision and its numbers, "" where these say all. `case_id` is that of
    the very case: a precision may have several, with other inputs or without a scaler.
    """

    group: Group
    precision: str | None
    column: str
    sentence: str
    why: str = ""
    case_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Objection:
    """What keeps a precision from being advised: the column, and what is wrong with its value."""

    column: str
    reason: str


def advise(
    rows: Iterable[Row],
    divergences: Mapping[str, Divergence],
    budget: Budget,
    rounds: Mapping[str, Sequence[Round]] | None = None,
) -> dict[Group, Advice]:
    """Return one piece of advice for every group in which anything was measured.

    `divergences` by case id tell what the frame does not: the number of decisions behind an agreement, skipped steps,
    why an error is undefined. Without a case's divergence its agreement is judged as it stands. `rounds` by case id,
    without the control's, let speeds be compared round by round.
    """
    advice = {}
    for group, members in grouped(rows).items():
        if any(row["outcome"] == "ok" for row in members):
            chosen, column, sentence, why = _decide(members, divergences, budget, rounds or {})
            advice[group] = Advice(
                group=group,
                precision=chosen["precision"] if chosen else None,
                column=column,
                sentence=sentence,
                why=why,
                case_id=chosen["case_id"] if chosen else None,
            )
    return advice


def advise_run(stored: "StoredRun", rows: Iterable[Row], budget: Budget) -> dict[Group, Advice]:
    """Return the advice of a whole run, whose `rows` are given, from each case's rounds without the control's."""
    rounds: dict[str, list[Round]] = {}
    for each in stored.rounds:
        if not each.control:
            rounds.setdefault(each.case_id, []).append(each)
    return advise(rows, stored.divergence, budget, rounds)


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
) -> tuple[Row | None, str, str, str]:
    """Return the row to take, deciding column, sentence and why for the rows of one group."""
    baseline = next((row for row in rows if row["precision"] == BASELINE), None)
    others = [row for row in rows if row["outcome"] == "ok" and row["precision"] != BASELINE]
    others.sort(key=lambda row: number(row["seconds_median"]) or math.inf)
    unavoidable = 0.0 if baseline is None else number(baseline["grad_flushed_share"]) or 0.0
    objections = {
        row["case_id"]: _objection(
            row, divergences.get(row["case_id"]), budget, unavoidable, rounds.get(row["case_id"], ())
        )
        for row in others
    }
    passing = [row for row in others if objections[row["case_id"]] is None]

    if baseline is None or baseline["outcome"] == "skipped":
        why = "fp32 was not measured here, and speedups are stated against it"
        return None, "outcome", f"no advice: {why}", why
    if baseline["outcome"] != "ok":
        if not passing:
            why = "fp32 failed, and no other precision is within the error budget"
            return None, "outcome", f"no advice: {why}", why
        why = "fp32 failed, and this is the fastest within the error budget"
        return passing[0], "outcome", f"take {precision_label(passing[0])}: {why}", why

    comparable = [row for row in others if number(row["speedup_vs_fp32"]) is not None]
    faster = [row for row in comparable if _is_faster(row, baseline, rounds)]
    if not faster:
        why = _nothing_faster(others)
        return baseline, "speedup_vs_fp32", f"stay in fp32: {why}", why
    passing = [row for row in faster if objections[row["case_id"]] is None]
    if not passing:
        objection = objections[faster[0]["case_id"]]
        assert objection is not None
        why = f"{_speed(faster[0])}, but {objection.reason}"
        return baseline, objection.column, f"stay in fp32: {why}", why

    equals = [row for row in passing if row is passing[0] or not _is_faster(passing[0], row, rounds)]
    chosen = min(equals, key=lambda row: number(row["output_rel_l2"]) or 0.0)
    return _taken(chosen, passing[0], faster, objections, budget)


def _taken(
    chosen: Row, fastest: Row, faster: list[Row], objections: Mapping[str, _Objection | None], budget: Budget
) -> tuple[Row, str, str, str]:
    """Return `chosen`, deciding column, sentence and why where it is advised."""
    gains = [f"{times(chosen['speedup_vs_fp32'])} the speed"]
    memory = number(chosen["memory_ratio_vs_fp32"])
    if memory is not None and memory <= MEMORY_WORTH_SAYING:
        gains.append(f"{times(memory)} the memory")
    error = number(chosen["output_rel_l2"])
    assert error is not None  # an undefined error is an objection
    sentence = (
        f"take {precision_label(chosen)}: {' and '.join(gains)} of fp32, "
        f"error {format_error(error)} of {budget.output_rel_l2:g} allowed"
    )
    if number(chosen["seconds_high"]) is None:
        sentence += f" ({FEW_ROUNDS})"
    for row in faster:
        objection = objections[row["case_id"]]
        if objection is not None and row["seconds_median"] < chosen["seconds_median"]:
            why = f"{_speed(row)}, but {objection.reason}"
            return chosen, objection.column, f"{sentence}; {why}", why
    if chosen is not fastest:
        why = f"{precision_label(fastest)} is as fast within the intervals, with more error"
        return chosen, "output_rel_l2", f"{sentence}; {why}", why
    return chosen, "speedup_vs_fp32", sentence, ""


def _nothing_faster(others: list[Row]) -> str:
    """Say that no other precision is known to be faster than fp32, with the best of them."""
    timed = [row for row in others if number(row["speedup_vs_fp32"]) is not None]
    if not timed:
        return "no other precision was measured"
    best = timed[0]
    said = f"at best {precision_label(best)} with {times(best['speedup_vs_fp32'])}"
    if number(best["seconds_high"]) is not None and best["speedup_vs_fp32"] >= FASTER_WITHOUT_INTERVALS:
        return f"no speedup is certain, {said}; more --rounds may tell"
    return f"nothing is faster, {said}"


def _objection(
    row: Row,
    divergence: Divergence | None,
    budget: Budget,
    unavoidable: float,
    rounds: Sequence[Round],
) -> _Objection | None:
    """Return the first thing that keeps a measured row out of the budget, None where nothing does.

    `unavoidable` is the share of gradients that fp32 flushes, too.
    """
    training = row["phase"] == "training"
    nonfinite = number(row["output_nonfinite"])
    if nonfinite:
        broken = counted(int(nonfinite), "output element is", "output elements are")
        return _Objection("output_nonfinite", f"{broken} not finite")
    errors = {"output_rel_l2": budget.output_rel_l2} | ({"grad_rel_l2": budget.grad_rel_l2} if training else {})
    for column, limit in errors.items():
        value = number(row[column])
        if value is None:
            return _Objection(column, _undefined(column, divergence))
        if value > limit:
            return _Objection(column, f"its {ERRORS[column]} is {format_error(value)}, more than {limit:g}")
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


def _undefined(column: str, divergence: Divergence | None) -> str:
    """Say why an error is undefined; a note may speak of something else, so the numbers are asked first."""
    name = f"its {ERRORS[column]}"
    if divergence is None:
        return f"{name} was not measured"
    if column == "grad_rel_l2" and divergence.grad_nonfinite:
        return f"{name} is undefined: {divergence.grad_nonfinite} gradient elements are not finite"
    if column == "output_rel_l2" and divergence.output_reference_norm == 0:
        return f"{name} is undefined: the reference output is zero"
    return f"{name} is undefined: {divergence.notes[0]}" if divergence.notes else f"{name} is undefined"


def _agrees_too_little(agreement: float, divergence: Divergence | None, minimum: float) -> bool:
    """Judge the agreement beyond chance where the number of decisions is known, else as it stands."""
    if divergence is None or divergence.argmax_decisions is None or divergence.argmax_agreeing is None:
        return agreement < minimum
    return agreement_fails(divergence.argmax_agreeing, divergence.argmax_decisions, minimum)


def _skipped_steps(divergence: Divergence | None, rounds: Sequence[Round]) -> int:
    """Return how many steps GradScaler skipped once its scale had settled, in the divergence pass and in all rounds."""
    passed = divergence.skipped_steps if divergence is not None else 0
    return (passed or 0) + sum(each.skipped_steps or 0 for each in rounds)


def _is_faster(row: Row, other: Row, rounds: Mapping[str, Sequence[Round]]) -> bool:
    """Return whether `row` takes less time than `other`, certainly.

    The precisions of a table are measured next to each other in every round, so their times are compared round by
    round: the 95% t interval of the paired log-ratios must lie on one side. Without three common rounds, the 95%
    intervals of both must be disjoint or, where there are none, the ratio at least 1.05.
    """
    from ampbench.stats import log_t_interval, round_value  # NumPy and SciPy: not for `--help`

    own, theirs_by_round = (
        {each.round: round_value(each.samples) for each in rounds.get(one["case_id"], ())} for one in (row, other)
    )
    common = [(own[number], theirs_by_round[number]) for number in own.keys() & theirs_by_round.keys()]
    ratios = [theirs / mine for mine, theirs in common if mine > 0 and theirs > 0]
    interval = log_t_interval(ratios) if ratios else None
    if interval is not None:
        return interval[0] > 1.0
    high, low = number(row["seconds_high"]), number(other["seconds_low"])
    if high is not None and low is not None:
        return high < low
    mine, theirs = number(row["seconds_median"]), number(other["seconds_median"])
    return mine is not None and theirs is not None and theirs >= FASTER_WITHOUT_INTERVALS * mine


def _speed(row: Row) -> str:
    return f"{precision_label(row)} is {times(row['speedup_vs_fp32'])} as fast"

"""The whole procedure on simulated gates: looks, confirmation, control; counted."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.stats import binomtest

from ampbench.core.budget import Budget
from ampbench.core.statement import Answer
from ampbench.core.stats import Booleans, Floats, log_t_intervals
from ampbench.judge.deciding import (
    ALPHA,
    CONFIRMATION_BLOCKS,
    LOOKS,
    Blocks,
    Decision,
    Means,
    decide_interleaved,
    decide_stored,
    judge_control,
)
from ampbench.judge.rounds import TimedRound
from ampbench.judge.verdict import Speeds, choose
from ampbench.records.changes import ChangeCode, ChangeStatus
from ampbench.show.rows import Row
from tests.simulation.noise import CANDIDATE, CONTROL, NOISES, interleaved, one_after_the_other, sample_means
from tests.stored_runs import make_case

CELLS = 8
PROBED = 8
"""So many gates tell whether to judge all together is worth it."""
THRESHOLD, MEAN_THRESHOLD = 0.02, 0.05
OPEN = (ChangeCode.UNDECIDED, ChangeCode.TAIL_UNDECIDED, ChangeCode.TOO_FEW_BLOCKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How often something happened, with its Wilson interval."""

    count: int
    trials: int

    @property
    def value(self) -> float:
        return self.count / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        interval = binomtest(self.count, self.trials).proportion_ci(method="wilson")
        return float(interval.low), float(interval.high)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.value:.4g}% ({100 * low:.3g}–{100 * high:.4g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of simulated gates: arrays of shape (gates, cells), `control_fired` (gates,).

    `verdicts` are those on the typical time, `mean_changed` says whose mean alone changed, `tail_open` whose typical
    time is proven unchanged while its mean is not bounded.
    """

    verdicts: np.ndarray
    mean_changed: Booleans
    tail_open: Booleans
    blocks: np.ndarray
    control_fired: Booleans

    def share(self, verdict: ChangeStatus) -> Share:
        return _share(self.verdicts == verdict)

    @property
    def changed(self) -> Booleans:
        return np.isin(self.verdicts, [ChangeStatus.REGRESSED, ChangeStatus.IMPROVED]) | self.mean_changed


def run_gates(
    name: str, gates: int, effect: float = 0.0, seed: int = 0, slow_steps: float = 0.0, judge_means: bool = True
) -> Outcome:
    """Put simulated gates of eight cells through looks at 8, 16, 24 and 32 blocks, and confirmations.

    A share of `slow_steps` of the candidate's takes three times as long.
    """
    generator = np.random.default_rng([seed, list(NOISES).index(name), round(effect * 1000)])
    total = LOOKS[-1] + CONFIRMATION_BLOCKS
    seconds = interleaved(NOISES[name], generator, (gates, CELLS, total), effect)
    flat = seconds.reshape(gates * CELLS, total, 3)
    means = sample_means(generator, flat, slow_steps) if judge_means else None
    decisions, blocks = _sequentially(flat, means)
    first = flat[:, : LOOKS[-1]]
    control = []
    for gate in range(gates):
        part = slice(gate * CELLS, (gate + 1) * CELLS)
        beside = None if means is None else _means(means[part, : LOOKS[-1]])
        control.append(bool(judge_control(_blocks(first[part]), np.full(CELLS, THRESHOLD), beside)[0]))
    verdicts = np.array([each.status for each in decisions], dtype=object)
    shape = (gates, CELLS)
    return Outcome(
        verdicts=verdicts.reshape(shape),
        mean_changed=np.array(
            [each.mean_code is ChangeCode.BEYOND_THRESHOLD and _is_tails(each) for each in decisions]
        ).reshape(shape),
        tail_open=np.array([each.code is ChangeCode.TAIL_UNDECIDED for each in decisions]).reshape(shape),
        blocks=blocks.reshape(shape),
        control_fired=np.array(control),
    )


def run_stored(name: str, gates: int, rounds: int, effect: float = 0.0, seed: int = 0) -> np.ndarray:
    """Return the verdicts, shape (gates, cells), on runs measured one after the other.

    One cell of each run is measured twice, as its control.
    """
    generator = np.random.default_rng([seed, list(NOISES).index(name), round(effect * 1000), rounds])
    sides = one_after_the_other(NOISES[name], generator, (gates, CELLS, rounds), effect)
    verdicts = []
    for first, second in zip(*sides, strict=True):
        ratios = [float(np.log(np.median(run[0, :, 1]) / np.median(run[0, :, 0]))) for run in (first, second)]
        means = [sample_means(generator, run) for run in (first, second)]
        luck = [float(np.mean(np.log(run[0, :, 1] / run[0, :, 0]))) for run in means]
        none = np.empty((CELLS, 0))
        beside = Blocks(
            baseline=means[0][..., 0], candidate=means[1][..., 0], control=none, confirm_baseline=none,
            confirm_candidate=none,
        )  # fmt: skip
        found = decide_stored(
            first[..., 0], second[..., 0], np.full(CELLS, THRESHOLD), ratios,
            Means(blocks=beside, thresholds=np.full(CELLS, MEAN_THRESHOLD)), luck,
        )  # fmt: skip
        verdicts.append(
            [
                ChangeStatus.REGRESSED
                if _is_tails(each) and each.mean_code is ChangeCode.BEYOND_THRESHOLD
                else each.status
                for each in found
            ]
        )
    return np.array(verdicts, dtype=object)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """What tables of a run say of speed: arrays of shape (tables,).

    `covered` says whether the 95% interval of the first precision's speed holds the true one, `taken` whether the
    advice takes any precision but fp32, `stayed` whether it says that none is faster.
    """

    covered: Booleans
    taken: Booleans
    stayed: Booleans


def run_tables(name: str, tables: int, rounds: int, gain: float = 0.0, seed: int = 0) -> Advised:
    """Advise on simulated tables of fp32 and two precisions measured in turns, of which one is faster by `gain`.

    The other takes as long as fp32. Errors are within budget, so that time alone decides.
    """
    generator = np.random.default_rng([seed, list(NOISES).index(name), round(gain * 1000), rounds])
    effect = 1 / (1 + gain) - 1
    seconds = interleaved(NOISES[name], generator, (tables, 1, max(rounds, LOOKS[0])), effect)[:, 0, :rounds]
    ratios = (seconds[..., 0] / seconds[..., CANDIDATE]).ravel()
    low, high = log_t_intervals(ratios, np.full(tables, rounds))
    answers = [_answer(table) for table in seconds]
    return Advised(
        covered=(low <= 1 + gain) & (1 + gain <= high),
        taken=np.array([each is Answer.TAKE for each in answers]),
        stayed=np.array([each is Answer.STAY for each in answers]),
    )


def _answer(seconds: Floats) -> StrEnum:
    """Return the answer to one table of rounds x arms: fp32 and two precisions."""
    cases = [make_case(precision) for precision in ("fp32", "bf16_pure", "bf16_autocast")]
    medians = np.median(seconds, axis=0)
    lows, highs = log_t_intervals(seconds.T.ravel(), np.full(len(cases), len(seconds)))
    rows: list[Row] = [
        {
            "case_id": case.case_id, "workload": "net", "parameters": "", "batch_size": 8, "device": "cpu",
            "memory_format": "contiguous", "phase": "inference", "path": "eager", "precision": case.precision,
            "outcome": "ok", "seconds_median": median, "seconds_low": low, "seconds_high": high,
            "speedup_vs_fp32": medians[0] / median, "memory_ratio_vs_fp32": 1.0, "output_nonfinite": 0,
            "output_not_finite": None, "grad_not_finite": None, "reference_dtype": "fp64", "output_rel_l2": 5e-3,
            "argmax_agreement": None, "grad_rel_l2": None, "grad_flushed_share": None,
        }
        for case, median, low, high in zip(cases, medians, lows, highs, strict=True)
    ]  # fmt: skip
    measured = {
        case.case_id: [TimedRound(number, value) for number, value in enumerate(values)]
        for case, values in zip(cases, seconds.T, strict=True)
    }
    (take,) = choose(rows, {}, Budget(), Speeds(measured)).values()
    return take.statement.code


def _is_tails(decision: Decision) -> bool:
    """Return whether what became of the mean is told by itself, as `comparing.times` does."""
    return decision.code in (ChangeCode.UNDECIDED, ChangeCode.TAIL_UNDECIDED, ChangeCode.WITHIN_THRESHOLD)


def _sequentially(seconds: Floats, means: Floats | None) -> tuple[list[Decision], np.ndarray]:
    """Judge cells x blocks x arms until all are decided; return the last decisions and the blocks each cell took.

    A gate none of whose cells is measured further is not judged again: it would be the same.
    """
    cells = len(seconds)
    measured, confirmed = np.full(cells, LOOKS[0]), np.zeros(cells, np.bool_)
    decisions = _judge(seconds, means, measured, confirmed)
    for number, look in enumerate(LOOKS):
        if number:
            going = np.array([each.code in OPEN for each in decisions])
            measured[going] = look
            _judge_again(decisions, going, seconds, means, measured, confirmed)
        unconfirmed = np.array([_is_unconfirmed(each) for each in decisions])
        confirmed |= unconfirmed
        _judge_again(decisions, unconfirmed, seconds, means, measured, confirmed)
    return decisions, measured + CONFIRMATION_BLOCKS * confirmed


def _judge_again(
    decisions: list[Decision], changed: Booleans, seconds: Floats, means: Floats | None, measured: np.ndarray,
    confirmed: Booleans,
) -> None:  # fmt: skip
    """Put new decisions in the place of those of all gates with a cell that has `changed`."""
    chosen = np.flatnonzero(np.repeat(np.any(changed.reshape(-1, CELLS), axis=1), CELLS))
    if len(chosen):
        beside = None if means is None else means[chosen]
        again = _judge(seconds[chosen], beside, measured[chosen], confirmed[chosen])
        for cell, decision in zip(chosen.tolist(), again, strict=True):
            decisions[cell] = decision


def _is_unconfirmed(decision: Decision) -> bool:
    return decision.code is ChangeCode.UNCONFIRMED or (
        _is_tails(decision) and decision.mean_code is ChangeCode.UNCONFIRMED
    )


def _judge(seconds: Floats, means: Floats | None, measured: np.ndarray, confirmed: Booleans) -> list[Decision]:
    """Judge all cells at once, and then again, each gate by itself, the gates with a cell that might have changed.

    Only for those does it matter over how many cells Holm's procedure goes. Where each of the first ones has such a
    cell, as where all have been made slower, all gates are judged by themselves alone.
    """
    thresholds = np.full(len(seconds), THRESHOLD)

    def seen(values: Floats) -> tuple[Floats, Floats]:
        visible = np.arange(LOOKS[-1])[:, None] < measured[:, None, None]
        fresh = np.where(confirmed[:, None, None], values[:, LOOKS[-1] :], np.nan)
        return np.where(visible, values[:, : LOOKS[-1]], np.nan), fresh

    def judged(part: slice) -> list[Decision]:
        beside = None if means is None else _means(*(values[part] for values in mean_seen))
        found = _blocks(*(values[part] for values in typical))
        return decide_interleaved(found, thresholds[part], looks=len(LOOKS), means=beside)

    typical = seen(seconds)
    mean_seen = typical if means is None else seen(means)
    gates = [slice(start, start + CELLS) for start in range(0, len(seconds), CELLS)]
    some = judged(slice(0, gates[:PROBED][-1].stop))
    if all(any(map(_might_have_changed, some[gate])) for gate in gates[:PROBED]):
        return [decision for gate in gates for decision in judged(gate)]
    decisions = judged(slice(None))
    for gate in gates:
        if any(map(_might_have_changed, decisions[gate])):
            decisions[gate] = judged(gate)
    return decisions


def _might_have_changed(decision: Decision) -> bool:
    certain = (decision.p_beyond or 0.0) <= ALPHA / len(LOOKS)
    low, high = decision.mean_low or 0.0, decision.mean_high or 0.0
    return certain or low > MEAN_THRESHOLD or high < 1 / (1 + MEAN_THRESHOLD) - 1


def _means(seconds: Floats, fresh: Floats | None = None) -> Means:
    return Means(blocks=_blocks(seconds, fresh), thresholds=np.full(len(seconds), MEAN_THRESHOLD))


def _blocks(seconds: Floats, fresh: Floats | None = None) -> Blocks:
    confirmation = seconds[:, :0] if fresh is None else fresh
    return Blocks(
        baseline=seconds[..., 0], candidate=seconds[..., CANDIDATE], control=seconds[..., CONTROL],
        confirm_baseline=confirmation[..., 0], confirm_candidate=confirmation[..., CANDIDATE],
    )  # fmt: skip


def _share(happened: np.ndarray) -> Share:
    return Share(count=int(np.sum(happened)), trials=happened.size)


def share_of_cells(happened: Booleans) -> Share:
    return _share(happened)


def share_of_gates(happened: Booleans) -> Share:
    return _share(np.any(happened, axis=1))

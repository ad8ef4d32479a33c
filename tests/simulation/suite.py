"""The whole procedure on simulated gates: looks, confirmation, control; counted, beside what other tools would say."""

from dataclasses import dataclass

import numpy as np

from ampbench.comparing.deciding import (
    ALPHA,
    CONFIRMATION_BLOCKS,
    LOOKS,
    Blocks,
    Decision,
    decide_interleaved,
    decide_stored,
    judge_control,
)
from ampbench.stats import Booleans, Floats, wilson_interval
from ampbench.verdicts import Code, Verdict
from tests.simulation.noise import CANDIDATE, NOISES, interleaved, one_after_the_other
from tests.simulation.peers import asv_regressed, pytest_benchmark_regressed

CELLS = 8
THRESHOLD = 0.02
CONTROL = 2


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
        return wilson_interval(self.count, self.trials)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.value:.4g}% ({100 * low:.3g}–{100 * high:.4g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of simulated gates: arrays of shape (gates, cells), `control_fired` (gates,)."""

    verdicts: np.ndarray
    blocks: np.ndarray
    control_fired: Booleans
    asv: Booleans
    pytest_benchmark: Booleans

    def share(self, verdict: Verdict) -> Share:
        """Return the share of cells with a verdict."""
        return _share(self.verdicts == verdict)

    @property
    def changed(self) -> Booleans:
        return np.isin(self.verdicts, [Verdict.REGRESSED, Verdict.IMPROVED])


def run_gates(name: str, gates: int, effect: float = 0.0, seed: int = 0) -> Outcome:
    """Put simulated gates of eight cells through looks at 8, 16, 24 and 32 blocks, and confirmations."""
    generator = np.random.default_rng([seed, list(NOISES).index(name), round(effect * 1000)])
    total = LOOKS[-1] + CONFIRMATION_BLOCKS
    seconds = interleaved(NOISES[name], generator, (gates, CELLS, total), effect)
    flat = seconds.reshape(gates * CELLS, total, 3)
    decisions, blocks = _sequentially(flat)
    first = flat[:, : LOOKS[-1]]
    control = [
        judge_control(_blocks(first[gate * CELLS : (gate + 1) * CELLS]), np.full(CELLS, THRESHOLD))[0]
        for gate in range(gates)
    ]
    verdicts = np.array([each.verdict for each in decisions], dtype=object)
    shape = (gates, CELLS)
    return Outcome(
        verdicts=verdicts.reshape(shape),
        blocks=blocks.reshape(shape),
        control_fired=np.array(control),
        asv=asv_regressed(first[..., 0], first[..., CANDIDATE]).reshape(shape),
        pytest_benchmark=pytest_benchmark_regressed(first[..., 0], first[..., CANDIDATE]).reshape(shape),
    )


def run_stored(name: str, gates: int, rounds: int, effect: float = 0.0, seed: int = 0) -> np.ndarray:
    """Return the verdicts, shape (gates, cells), on runs measured one after the other.

    One cell of each run is measured twice, as its control.
    """
    generator = np.random.default_rng([seed, list(NOISES).index(name), round(effect * 1000), rounds])
    baseline, candidate = one_after_the_other(NOISES[name], generator, (gates, CELLS, rounds), effect)
    verdicts = []
    for first, second in zip(baseline, candidate, strict=True):
        ratios = [float(np.log(np.median(run[0, :, 1]) / np.median(run[0, :, 0]))) for run in (first, second)]
        found = decide_stored(first[..., 0], second[..., 0], np.full(CELLS, THRESHOLD), ratios)
        verdicts.append([each.verdict for each in found])
    return np.array(verdicts, dtype=object)


def _sequentially(seconds: Floats) -> tuple[list[Decision], np.ndarray]:
    """Judge cells x blocks x arms until all are decided; return the last decisions and the blocks each cell took."""
    cells = len(seconds)
    measured, confirmed = np.full(cells, LOOKS[0]), np.zeros(cells, np.bool_)
    decisions: list[Decision] = []
    for number, look in enumerate(LOOKS):
        if number:
            going = np.array([each.code in (Code.UNDECIDED, Code.TOO_FEW_BLOCKS) for each in decisions])
            measured[going] = look
        decisions = _judge(seconds, measured, confirmed)
        unconfirmed = np.array([each.code is Code.UNCONFIRMED for each in decisions])
        if np.any(unconfirmed):
            confirmed |= unconfirmed
            decisions = _judge(seconds, measured, confirmed)
    return decisions, measured + CONFIRMATION_BLOCKS * confirmed


def _judge(seconds: Floats, measured: np.ndarray, confirmed: Booleans) -> list[Decision]:
    """Judge all cells at once, and then again, each gate by itself, the gates with a cell that might have changed.

    Only for those does it matter over how many cells Holm's procedure goes.
    """
    visible = np.where(np.arange(LOOKS[-1])[:, None] < measured[:, None, None], seconds[:, : LOOKS[-1]], np.nan)
    fresh = np.where(confirmed[:, None, None], seconds[:, LOOKS[-1] :], np.nan)
    thresholds = np.full(len(seconds), THRESHOLD)
    decisions = decide_interleaved(_blocks(visible, fresh), thresholds, looks=len(LOOKS))
    suspects = {
        cell // CELLS
        for cell, each in enumerate(decisions)
        if min(each.p_worse or 0.0, each.p_better or 0.0) <= ALPHA / len(LOOKS)
    }
    for gate in suspects:
        part = slice(gate * CELLS, (gate + 1) * CELLS)
        decisions[part] = decide_interleaved(_blocks(visible[part], fresh[part]), thresholds[part], looks=len(LOOKS))
    return decisions


def _blocks(seconds: Floats, fresh: Floats | None = None) -> Blocks:
    confirmation = seconds[:, :0] if fresh is None else fresh
    return Blocks(
        baseline=seconds[..., 0],
        candidate=seconds[..., CANDIDATE],
        control=seconds[..., CONTROL],
        confirm_baseline=confirmation[..., 0],
        confirm_candidate=confirmation[..., CANDIDATE],
    )


def _share(happened: np.ndarray) -> Share:
    return Share(count=int(np.sum(happened)), trials=happened.size)


def share_of_cells(happened: Booleans) -> Share:
    """Return the share of cells in which something happened."""
    return _share(happened)


def share_of_gates(happened: Booleans) -> Share:
    """Return the share of gates in which something happened to any cell."""
    return _share(np.any(happened, axis=1))

"""How often verdicts on simulated times are wrong or missing.

Two more tables: when an unfit machine decides nothing, and how far errors differ by the order of sums alone.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ampbench.judge.deciding import CONFIRMATION_BLOCKS, LOOKS, Blocks, decide_interleaved
from ampbench.judge.exact import growth_by_order
from ampbench.judge.times import FAR
from ampbench.records.changes import ChangeStatus
from tests.simulation.noise import NOISES
from tests.simulation.suite import CELLS, run_gates, run_stored, run_tables, share_of_cells, share_of_gates

WITHIN, BEYOND = (0.01, 0.02), (0.03, 0.05, 0.10, 0.20)
"""True changes up to the threshold, to call unchanged, and beyond it, to call changed."""
LARGE = (0.05, 0.10, 0.20)
SLOW_STEPS = 0.05
"""The share of the candidate's steps that takes three times as long where only the tail changes."""
ROUNDS = (4, 10)
HELD_UP = 5.0
SLOWER = (1.0, 1.3, 1.9, 2.5, 4.0, 8.0, 15.0)
WIDTH = 256


def interleaved_table(names: Iterable[str] = NOISES, gates: int = 2000, slowed_gates: int = 250) -> Iterator[str]:
    """Yield the lines of a Markdown table: a noise model each, the whole procedure over gates of eight cells."""
    yield (
        "| noise | false alarms, cells | gates | control fired | `unchanged` | tail open | blocks "
        "| 1% called changed | 2% "
        "| 3% found | 5% | 10% | 20% | tail: found | tail: `unchanged` without means |"
    )
    yield "|---" * 15 + "|"
    for name in names:
        same = run_gates(name, gates)
        within = [run_gates(name, slowed_gates, effect) for effect in WITHIN]
        slowed = {effect: run_gates(name, slowed_gates, effect) for effect in BEYOND}
        tail, without = (
            run_gates(name, slowed_gates, slow_steps=SLOW_STEPS, judge_means=judge) for judge in (True, False)
        )
        cells = [
            name if NOISES[name].quiet else f"{name} †",
            share_of_cells(same.changed),
            share_of_gates(same.changed),
            share_of_cells(same.control_fired),
            same.share(ChangeStatus.UNCHANGED),
            share_of_cells(same.tail_open),
            f"{same.blocks.mean():.0f}",
            *(share_of_cells(gate_results.changed) for gate_results in within),
            *(gate_results.share(ChangeStatus.REGRESSED) for gate_results in slowed.values()),
            share_of_cells(tail.mean_changed),
            without.share(ChangeStatus.UNCHANGED),
        ]
        yield f"| {' | '.join(map(str, cells))} |"


def stored_table(names: Iterable[str] = NOISES, gates: int = 2000, slowed_gates: int = 250) -> Iterator[str]:
    """Yield the lines of a Markdown table: a noise model and a number of rounds each, two runs one after the other."""
    yield "| noise, stored runs | rounds | false alarms, cells | gates | `unchanged` | 5% found | 10% | 20% |"
    yield "|---" * 8 + "|"
    for name in names:
        for rounds in ROUNDS:
            same = run_stored(name, gates, rounds)
            changed = (same == ChangeStatus.REGRESSED) | (same == ChangeStatus.IMPROVED)
            slowed = [run_stored(name, slowed_gates, rounds, effect) == ChangeStatus.REGRESSED for effect in LARGE]
            cells = [
                name,
                rounds,
                share_of_cells(changed),
                share_of_gates(changed),
                share_of_cells(same == ChangeStatus.UNCHANGED),
                *(share_of_cells(of_effect) for of_effect in slowed),
            ]
            yield f"| {' | '.join(map(str, cells))} |"


def advice_table(names: Iterable[str] = NOISES, tables: int = 2000) -> Iterator[str]:
    """Yield the lines of a Markdown table: the advice of runs of 4 and of 10 rounds on a precision's speed, by noise.

    Shares in %, of 4 / of 10 rounds: how often the interval covers the truth, how often one of two equally fast
    precisions is taken, how often a gain of 5% is missed, and how often larger gains are taken.
    """
    heads = ["noise, a run's advice", "interval holds", "equal: taken", "5%: none said to be", "10% taken", "30% taken"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for name in names:
        columns = []
        for rounds in ROUNDS:
            same, small, tenth, third = (run_tables(name, tables, rounds, gain) for gain in (0.0, 0.05, 0.10, 0.30))
            covered = (same.covered.mean() + tenth.covered.mean()) / 2
            columns.append([covered, same.taken.mean(), small.stayed.mean(), tenth.taken.mean(), third.taken.mean()])
        cells = [" / ".join(f"{100 * share:.3g}" for share in pair) for pair in zip(*columns, strict=True)]
        yield f"| {' | '.join([name, *cells])} |"


def unfit_table(cells: int = 500) -> Iterator[str]:
    """Yield the lines of a Markdown table: the changes reported on a machine that was never fit.

    Every block of either arm takes independently 1 to 5 times as long; only a change beyond twice as long (`FAR`) is
    reported.
    """
    yield f"| all blocks of either arm 1 to {HELD_UP:g} times as long: code | called changed |\n|---|---|"
    generator, looks, none = np.random.default_rng(0), LOOKS[-1], np.empty((1, 0))
    for slower in SLOWER:
        changed = []
        for _ in range(cells):  # each by itself, as where nothing else changed
            baseline, candidate = generator.uniform(1, HELD_UP, (2, 1, looks + CONFIRMATION_BLOCKS))
            candidate *= slower
            blocks = Blocks(
                baseline=baseline[:, :looks], candidate=candidate[:, :looks], control=none,
                confirm_baseline=baseline[:, looks:], confirm_candidate=candidate[:, looks:],
            )  # fmt: skip
            (decision,) = decide_interleaved(blocks, np.array([FAR]))
            changed.append(decision.status in (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED))
        code = "identical" if slower == 1 else f"{slower:g} times as slow"
        yield f"| {code} | {share_of_cells(np.array(changed))} |"


def orders_table(draws: int = 100) -> Iterator[str]:
    """Yield the lines of a Markdown table: errors that differ only in the order of sums.

    For four linear layers of 256 with every sum permuted in each draw, by number of outputs: the largest error over the
    smallest, and the share of fp32's pairs that differ by a factor of two, or by more than `growth_by_order` allows.
    """
    heads = ["outputs", "fp32: largest error / smallest", "pairs doubled", "pairs told", "bf16: largest / smallest"]
    yield f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|"
    generator = torch.Generator().manual_seed(0)
    inputs, *layers = torch.randn(5, WIDTH, WIDTH, generator=generator)
    for rows, columns in ((1, 8), (10, 8), (80, 8), (64, WIDTH)):
        weights = [*layers[:-1], layers[-1][:columns]]
        straight = [torch.arange(WIDTH)] * len(weights)
        exact = _through(weights, inputs[:rows].double(), straight)
        errors = []
        for _ in range(draws):
            orders = [torch.randperm(WIDTH, generator=generator) for _ in weights]
            outputs = [_through(weights, inputs[:rows].to(dtype), orders) for dtype in (torch.float32, torch.bfloat16)]
            errors.append([float((output.double() - exact).norm()) for output in outputs])
        single, half = np.transpose(errors)
        pairs = np.abs(np.log(single[:, None] / single))[np.triu_indices(draws, 1)]
        beyond = [np.mean(pairs > np.log1p(growth)) for growth in (1, growth_by_order(rows * columns))]
        apart = [f"{series.max() / series.min():.4g}" for series in (single, half)]
        yield f"| {rows * columns:,} | {apart[0]} | {' | '.join(f'{share:.2%}' for share in beyond)} | {apart[1]} |"


def _through(weights: Sequence[Tensor], values: Tensor, orders: Sequence[Tensor]) -> Tensor:
    """Return `values` through linear layers with ReLU between them, in their dtype, each sum in an order."""
    for number, (weight, order) in enumerate(zip(weights, orders, strict=True)):
        values = values.relu() if number else values
        values = values[:, order] @ weight.T[order].to(values.dtype)
    return values


def print_tables(gates: int = 2000, slowed_gates: int = 250) -> None:
    """Print the tables of `docs/statistics.md` in some minutes; fewer gates make rougher ones."""
    print(f"\nGates of {CELLS} cells; shares with their 95% Wilson interval; † block SD over 1.5%")
    tables = (
        interleaved_table(gates=gates, slowed_gates=slowed_gates),
        stored_table(gates=gates, slowed_gates=slowed_gates),
        advice_table(tables=gates),
        unfit_table(),
        orders_table(),
    )
    for table in tables:
        print()
        for line in table:
            print(line, flush=True)


if __name__ == "__main__":
    print_tables(*map(int, sys.argv[1:]))

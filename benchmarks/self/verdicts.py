"""How often verdicts on simulated time are wrong, or wanting, beside what other tools would say of the same values."""

from collections.abc import Iterator

from ampbench.verdicts import Verdict
from tests.simulation.noise import NOISES
from tests.simulation.suite import CELLS, run_gates, run_stored, share_of_cells, share_of_gates

EFFECTS = (0.05, 0.10, 0.20)
ROUNDS = (4, 10)


def interleaved_table(gates: int = 2000, slowed_gates: int = 250) -> Iterator[str]:
    """Yield the lines of a Markdown table: a noise model each, the whole procedure over gates of eight cells."""
    yield (
        "| noise | false alarms, cells | gates | control fired | `unchanged` | blocks | 5% found | 10% | 20% "
        "| asv 1.05: false alarms | 5% / 10% / 20% | pytest-benchmark median:5%: false alarms | 5% / 10% / 20% |"
    )
    yield "|---" * 13 + "|"
    for name, noise in NOISES.items():
        same = run_gates(name, gates)
        slowed = [run_gates(name, slowed_gates, effect) for effect in EFFECTS]
        cells = [
            name if noise.quiet else f"{name} †",
            share_of_cells(same.changed),
            share_of_gates(same.changed),
            share_of_cells(same.control_fired),
            same.share(Verdict.UNCHANGED),
            f"{same.blocks.mean():.0f}",
            *(each.share(Verdict.REGRESSED) for each in slowed),
            share_of_cells(same.asv),
            " / ".join(f"{each.asv.mean():.0%}" for each in slowed),
            share_of_cells(same.pytest_benchmark),
            " / ".join(f"{each.pytest_benchmark.mean():.0%}" for each in slowed),
        ]
        yield f"| {' | '.join(map(str, cells))} |"


def stored_table(gates: int = 2000, slowed_gates: int = 250) -> Iterator[str]:
    """Yield the lines of a Markdown table: a noise model and a number of rounds each, two runs one after the other."""
    yield "| noise, stored runs | rounds | false alarms, cells | gates | `unchanged` | 5% found | 10% | 20% |"
    yield "|---" * 8 + "|"
    for name in NOISES:
        for rounds in ROUNDS:
            same = run_stored(name, gates, rounds)
            changed = (same == Verdict.REGRESSED) | (same == Verdict.IMPROVED)
            slowed = [run_stored(name, slowed_gates, rounds, effect) == Verdict.REGRESSED for effect in EFFECTS]
            cells = [
                name,
                rounds,
                share_of_cells(changed),
                share_of_gates(changed),
                share_of_cells(same == Verdict.UNCHANGED),
                *(share_of_cells(each) for each in slowed),
            ]
            yield f"| {' | '.join(map(str, cells))} |"


def print_tables() -> None:
    """Print both tables of `docs/statistics.md`, which take some minutes."""
    print(f"\nGates of {CELLS} cells; shares with their 95% Wilson interval; † block SD over 1.5%\n")
    for line in interleaved_table():
        print(line, flush=True)
    print()
    for line in stored_table():
        print(line, flush=True)


if __name__ == "__main__":
    print_tables()

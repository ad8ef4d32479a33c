"""The false alarms of a stored session of identical code, judged as gates of eight cells: what `ab` left.

`python -m benchmarks.self.against_itself BASELINE.jsonl CANDIDATE.jsonl`. A session of hundreds of cells is one family
of tests, which at sixteen blocks could not raise an alarm if it wanted to; people gate a few cells at a time.
"""

import sys

import numpy as np

from ampbench.core import stats
from ampbench.judge import rounds
from ampbench.judge.deciding import ALPHA, LOOKS, Blocks, decide_interleaved
from ampbench.judge.rounds import MeasuredRun, Role, grid
from ampbench.records.changes import ChangeCode, ChangeStatus

GATE = 8
THRESHOLD = 0.02


def main(baseline: str, candidate: str) -> None:
    """Print what the decisions of `ampbench ab` say of two runs of the same code, as rows of a table."""
    ours, theirs = (MeasuredRun.read(path) for path in (baseline, candidate))
    names = [case_id for case_id in ours.stored.cases if case_id in ours.seconds and case_id in theirs.seconds]
    numbers = np.union1d(ours.rounds.blocks, theirs.rounds.blocks)
    first, second = (_seconds(run, names, numbers) for run in (ours, theirs))
    missing = np.isnan(first) | np.isnan(second)
    first, second = (np.where(missing, np.nan, seconds) for seconds in (first, second))
    verdicts, codes, gates, lone = [], [], [], 0
    for start in range(0, len(names), GATE):
        cells = slice(start, start + GATE)
        found = _decided(first[cells], second[cells])
        verdicts += [one.status for one in found]
        codes += [one.code for one in found]
        gates.append(any(one.status in (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED) for one in found))
        worst = [min(one.p_worse or 1.0, one.p_better or 1.0) for one in found]
        lone += sum(p <= ALPHA / len(LOOKS) for p in worst)
    alarms = sum(verdict in (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED) for verdict in verdicts)
    low, high = stats.wilson_interval(alarms, len(verdicts))
    spread = np.nanmedian(np.abs(np.log(second / first)), axis=1) * 1.4826
    print(f"| cells | {len(names)} |")
    print(f"| blocks of a cell that count | {np.median((~missing).sum(axis=1)):.0f} of {len(numbers)} |")
    print(f"| spread of a block's ratio (1.4826 MAD): median, 90% | {_percents(np.quantile(spread, (0.5, 0.9)))} |")
    print(f"| alarms before confirmation | {alarms} of {len(verdicts)} (95%: {low:.2%} to {high:.2%}) |")
    print(f"| gates of {GATE} with an alarm | {sum(gates)} of {len(gates)} |")
    print(f"| p below the level of a look, whatever its size | {lone} of {len(verdicts)} |")
    print(f"| proven unchanged | {verdicts.count(ChangeStatus.UNCHANGED)} of {len(verdicts)} |")
    print(f"| undecided | {codes.count(ChangeCode.UNDECIDED)} of {len(verdicts)} |")


def _decided(baseline: stats.Floats, candidate: stats.Floats) -> list:
    none = np.empty((len(baseline), 0))
    blocks = Blocks(
        baseline=baseline, candidate=candidate, control=none, confirm_baseline=none, confirm_candidate=none
    )  # fmt: skip
    return decide_interleaved(blocks, np.full(len(baseline), THRESHOLD), confirm=False)


def _seconds(run: MeasuredRun, names: list[str], numbers: stats.Integers) -> stats.Floats:
    """Return the seconds of the cases in the blocks, NaN where a block is missing or was unfit."""
    devices = [case.device for case in run.stored.cases.values()]
    unfit = rounds.unfit_rounds(run.rounds, devices, run.stored.header.environment.cpu_count).cause >= 0
    seconds = np.where(unfit, np.nan, run.rounds.seconds)
    return grid(run.rounds, seconds, Role.OWN, [run.places[name] for name in names], numbers)


def _percents(values: stats.Floats) -> str:
    return ", ".join(f"{value:.1%}" for value in values)


if __name__ == "__main__":
    main(*sys.argv[1:])

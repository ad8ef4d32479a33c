"""How often change points of simulated series are wrong or missing: the tables of docs/trends.md, in some minutes."""

from collections.abc import Iterator
from itertools import chain

from tests.simulation.trends import HISTORIES, SERIES, flagged, follow, found

SPREADS = (0.01, 0.03)
AFTER = (3, 4, 6, 10)


def steps_table(count: int = 200) -> Iterator[str]:
    """Yield the lines of a Markdown table: for each noise, the series flagged and the steps found after some points."""
    steps = ((0.01, 0.05), (0.03, 0.10))
    headers = [f"flagged, CV {spread:.0%}" for spread in SPREADS]
    headers += [f"{effect:.0%} at CV {spread:.0%} after {AFTER}" for spread, effect in steps]
    yield f"| noise | {' | '.join(headers)} |"
    yield "|---" * 5 + "|"
    for name in SERIES:
        cells = [f"{flagged(name, spread, count).value:.1%}" for spread in SPREADS]
        for spread, effect in steps:
            cells.append(", ".join(f"{found(name, spread, effect, after, count).value:.0%}" for after in AFTER))
        yield f"| {name} | {' | '.join(cells)} |"


def histories_table(count: int = 60) -> Iterator[str]:
    """Yield the same for whole histories of twelve cases, four rounds a run, by the last result of `ampbench trend`."""
    yield "| noise of rounds, CV 1.5% | runs | false alarms, series | histories | 5% found | 10% | 20% | false beside |"
    yield "|---" * 8 + "|"
    for name in HISTORIES:
        for runs in (2, 5, 12):
            few = count if runs < 12 else count // 3
            empty = follow(name, runs, few)
            slowed = [follow(name, runs, few // 3, effect) for effect in (0.05, 0.1, 0.2)]
            shares = [f"{history.found.value:.0%}" for history in slowed]
            cells = [name, str(runs), str(empty.series), str(empty.histories), *shares, str(slowed[-1].series)]
            yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    for line in chain(steps_table(), [""], histories_table()):
        print(line, flush=True)

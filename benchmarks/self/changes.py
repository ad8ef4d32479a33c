"""How often change points of simulated series are wrong, or wanting: the tables of docs/trends.md, in some minutes."""

from collections.abc import Iterator

from tests.simulation.trends import SERIES, SHORT, asv_steps, changed_neighbours, flagged, found

SPREADS = (0.01, 0.03)
AFTER = (3, 4, 6, 10)


def steps_table(count: int = 1000) -> Iterator[str]:
    """Yield the lines of a Markdown table: a noise each, series flagged and steps found after so many points."""
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
    few = count // 5
    cells = [f"{flagged('independent, normal', spread, few, asv_steps).value:.1%}" for spread in SPREADS]
    for spread, effect in steps:
        shares = (found("independent, normal", spread, effect, after, few, asv_steps) for after in AFTER)
        cells.append(", ".join(f"{share.value:.0%}" for share in shares))
    yield f"| *asv's own penalty, independent* | {' | '.join(cells)} |"


def neighbours_table(count: int = 2000) -> Iterator[str]:
    """Yield the same for short series of four rounds a run, with a control each."""
    yield "| noise of rounds, CV 1.5% | points | flagged | 5% found | 10% | 20% | 10% at CV 1% |"
    yield "|---" * 7 + "|"
    for name in SHORT:
        for points in (3, 5):
            cells = [f"{changed_neighbours(name, 0.015, points, count).value:.2%}"]
            for effect in (0.05, 0.1, 0.2):
                cells.append(f"{changed_neighbours(name, 0.015, points, count // 2, effect).value:.0%}")
            cells.append(f"{changed_neighbours(name, 0.01, points, count // 2, 0.1).value:.0%}")
            yield f"| {name} | {points} | {' | '.join(cells)} |"


if __name__ == "__main__":
    for table in (steps_table(), neighbours_table()):
        for line in table:
            print(line, flush=True)
        print()

"""What measures ampbench itself goes on working; its figures are for docs/performance.md and are not judged here."""

import pytest

from benchmarks.self import load, verdicts


@pytest.mark.slow
def test_the_stores_benchmarks_run() -> None:
    assert load.measure(cases=20)["file bytes"] > 0
    assert load.compare_seconds(cases=20, rounds=4) > 0
    assert load.trend_seconds(runs=3, cases=20) > 0


def test_a_machine_that_is_never_fit_decides_only_what_is_far_beyond_what_held_it_up() -> None:
    _, *rows = verdicts.unfit_table(cells=20)
    shares = {line.split("|")[1].strip(): float(line.split("|")[2].split("%")[0]) for line in rows}
    assert [*shares] == ["identical", *(f"{slower:g} times as slow" for slower in verdicts.SLOWER[1:])]
    assert shares["identical"] == shares["1.9 times as slow"] == 0
    assert shares["15 times as slow"] == 100

"""What measures ampbench itself goes on working; its figures are for docs/performance.md and are not judged here."""

import pytest

from benchmarks.self import compare, importing, load, trend


@pytest.mark.slow
def test_the_stores_benchmarks_run() -> None:
    assert importing.seconds(files=3) > 0
    assert load.measure(cases=20)["file bytes"] > 0
    assert compare.seconds(cases=20, rounds=4) > 0
    assert trend.seconds(runs=3, cases=20) > 0

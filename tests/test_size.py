"""The project does not grow: `benchmarks/size.py` says by what measures."""

import pytest

from benchmarks import size


@pytest.fixture(scope="module")
def now() -> dict[str, float]:
    return size.measure()


def test_no_measure_exceeds_its_bound(now: dict[str, float]) -> None:
    bounds = size.bounds()
    assert now.keys() == bounds.keys()
    exceeding = [f"{name}: {now[name]:,}, bound {bounds[name]:,}" for name in size.exceeded(now, bounds)]
    remedy = "remove something, or raise the bound in benchmarks/size.json with a reason in CHANGELOG.md"
    assert not exceeding, "\n".join([remedy, *exceeding])


def test_bounds_only_become_tighter(now: dict[str, float]) -> None:
    looser = {name: bound + 0.01 for name, bound in now.items()} | {size.DOCUMENTED: 0.5}
    tighter = {name: bound - 0.01 for name, bound in now.items()} | {size.DOCUMENTED: 1.01}
    assert not size.exceeded(now, looser)
    assert size.lowered(now, looser) == now | {size.DENSITY: size.DENSEST}
    assert size.exceeded(now, tighter) == list(now)
    assert size.lowered(now, tighter) == tighter | {size.DENSITY: size.DENSEST}

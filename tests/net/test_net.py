"""What ampbench makes of stored runs is what it made of them before: frames, advice, comparisons, gates, studies."""

from collections import Counter

import pytest

from tests.net.comparing import Difference, differences
from tests.net.rules import RULES
from tests.net.sources import computed, kept

SHOWN = 20


Found = list[tuple[Difference, list[str]]]
"""Differences, each with the reasons of the rules that mean it."""


@pytest.fixture(scope="module")
def found() -> Found:
    differing = differences(kept(), computed())
    return [(one, [rule.reason for rule in RULES if rule.meant(one)]) for one in differing]


def test_nothing_differs_that_is_not_meant(found: Found) -> None:
    unmeant = [one for one, reasons in found if not reasons]
    if not unmeant:
        return
    where = Counter((one.table, one.column) for one in unmeant)
    counted = [f"{count:,} in {table}, {column}" for (table, column), count in where.most_common(SHOWN)]
    said = [f"{len(unmeant):,} cells differ:", *counted, f"the first {SHOWN}:", *map(str, unmeant[:SHOWN])]
    pytest.fail("\n".join([*said, "what is meant is a rule in tests/net/rules.py"]), pytrace=False)


def test_every_rule_touches_as_many_cells_as_it_says(found: Found) -> None:
    touched = Counter(reason for _, reasons in found for reason in reasons)
    assert touched == {rule.reason: rule.cells for rule in RULES}

"""The map of what is held by which test (`behaviours.py`) names tests that there are, and leaves nothing out."""

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from ampbench.cli import main
from tests.behaviours import BEHAVIOURS, EXIT_CODES

TESTS = Path(__file__).parent


@cache
def files_of_tests() -> Counter[str]:
    """Return how many files have a test of each name."""
    files = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")]
    return Counter(name for text in files for name in set(re.findall(r"^def (test_\w+)", text, re.MULTILINE)))


def missing(names: Iterable[str]) -> list[str]:
    """Return those that are not the name of one test."""
    return [name for name in names if files_of_tests()[name] != 1]


@pytest.mark.parametrize("said", BEHAVIOURS)
def test_a_behaviour_is_held_by_tests_that_there_are(said: str) -> None:
    assert BEHAVIOURS[said]
    assert missing(BEHAVIOURS[said]) == []


def test_every_exit_code_that_is_documented_is_held_by_tests_that_there_are() -> None:
    assert {int(code) for code in re.findall(r"^  (\d+) ", main.EPILOG, re.MULTILINE)} == EXIT_CODES.keys()
    assert all(EXIT_CODES.values())
    assert missing(name for names in EXIT_CODES.values() for name in names) == []


def test_every_behaviour_has_a_test_of_the_command_that_shows_it() -> None:
    rows = [
        f"{area}{number}" for area, last in {"a": 3, "b": 6, "c": 4, "d": 4}.items() for number in range(1, last + 1)
    ]
    text = (TESTS / "cli" / "test_behaviours_by_command.py").read_text(encoding="utf-8")
    assert re.findall(r"^def test_([a-d]\d)_", text, re.MULTILINE) == rows

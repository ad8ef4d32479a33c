"""The map of what is held by which test (`behaviours.py`) names tests that there are, and leaves nothing out."""

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from ampbench.cli import main
from ampbench.cli.printing import OutputFormat
from ampbench.cli.report import ReportFormat
from ampbench.records.kinds import KINDS, verb_of
from tests.behaviours import BEHAVIOURS, EXIT_CODES, PRINTED
from tests.golden.test_golden import OUTPUTS

TESTS = Path(__file__).parent
ENDS = {"table": "txt", "markdown": "md"}
EVERY_VERB = [verb for verb in main.VERBS if verb not in main.GROUPS] + [
    verb_of(kind) for kind in KINDS if verb_of(kind)
]


@cache
def files_of_tests() -> Counter[str]:
    """Return how many files have a test of each name."""
    files = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")]
    return Counter(name for text in files for name in set(re.findall(r"^def (test_\w+)", text, re.MULTILINE)))


def missing(names: Iterable[str]) -> list[str]:
    """Return those that are not the name of one test."""
    return [name for name in names if files_of_tests()[name] != 1]


def has_formats(verb: str) -> bool:
    parser = main.build(*verb.split())
    for name in verb.split():
        parser = parser.commands[name]
    return any("--format" in one.opts for one in parser.params)


@pytest.mark.parametrize("said", BEHAVIOURS)
def test_a_behaviour_is_held_by_tests_that_there_are(said: str) -> None:
    assert BEHAVIOURS[said]
    assert missing(BEHAVIOURS[said]) == []


def test_every_exit_code_that_is_documented_is_held_by_tests_that_there_are() -> None:
    assert {int(code) for code in re.findall(r"^  (\d+) ", main.EXIT_CODES, re.MULTILINE)} == EXIT_CODES.keys()
    assert all(EXIT_CODES.values())
    assert missing(name for names in EXIT_CODES.values() for name in names) == []


def test_every_verb_that_prints_data_is_held_in_each_of_its_formats() -> None:
    assert {verb for verb in EVERY_VERB if has_formats(verb)} == PRINTED.keys()
    for verb, held in PRINTED.items():
        tests = [name for name in held.split() if name.startswith("test_")]
        assert missing(tests) == [], verb
        if not tests:
            formats = ReportFormat if verb == "report" else OutputFormat
            assert {file.rpartition(".")[2] for file in held.split()} == {ENDS.get(one, one) for one in formats}, verb
            assert set(held.split()) <= OUTPUTS.keys(), verb

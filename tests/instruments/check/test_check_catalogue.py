"""The rows of checks and the files of their programs."""

import ast
import re
from importlib.resources import files

import pytest

from ampbench.instruments.check.catalogue import CHECKS, program_of
from ampbench.instruments.check.row import AREAS, INFERENCE, TRAINING
from ampbench.records.case import DEVICES

PROGRAMS = {
    file.name.removesuffix(".py").replace("_", "-"): file.read_text(encoding="utf-8")
    for file in files("ampbench.instruments.check.programs").iterdir()
    if file.name.endswith(".py") and file.name != "__init__.py"
}
ENDING = 'print("expected:", expected)\nprint("seen:    ", seen)\n'


def test_every_row_has_a_program_and_every_program_a_row() -> None:
    assert PROGRAMS.keys() == CHECKS.keys()


@pytest.mark.parametrize("name", CHECKS)
def test_a_row_says_what_is_wrong_who_told_of_it_and_what_to_do(name: str) -> None:
    check = CHECKS[name]
    assert check.area in AREAS
    assert check.title
    assert check.why
    assert check.remedy
    assert check.threads
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread) for thread in check.threads)
    assert set(check.matters) <= {TRAINING, INFERENCE} != set()
    assert set(check.devices) <= set(DEVICES) != set()
    assert re.fullmatch(r"|[12]\.\d+", check.mended)
    for text in (check.title, check.why, check.remedy):
        assert not text.endswith(".")


@pytest.mark.parametrize("name", CHECKS)
def test_a_program_can_be_pasted(name: str) -> None:
    text = PROGRAMS[name]
    assert text.startswith('"""')
    assert text.count('\nDEVICE = "cpu"\n') == 1
    assert text.endswith(ENDING)
    assert 10 <= len(text.splitlines()) <= 60
    roots = {
        alias.name.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert "ampbench" not in text
    assert roots >= {"torch"}
    assert 'DEVICE = "xpu"\n' in program_of(CHECKS[name], "xpu")


def test_the_checks_that_go_by_times_say_so() -> None:
    assert {name for name, check in CHECKS.items() if check.timed} == {
        name for name in CHECKS if "perf_counter" in PROGRAMS[name] or "Timer" in PROGRAMS[name]
    }

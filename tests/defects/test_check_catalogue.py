"""The checks and their programs."""

import ast
import re
import subprocess
import sys

import pytest

from ampbench.defects import AREAS, CHECKS, INFERENCE, TRAINING, program_of
from ampbench.records.case import DEVICES

ENDING = 'print("expected:", expected)\nprint("seen:    ", seen)\n'


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_says_what_is_wrong_who_told_of_it_and_what_to_do(name: str) -> None:
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
    text = program_of(CHECKS[name])
    compile(text, name, "exec")
    assert text.startswith(('"""', 'r"""'))
    assert text.count('\ndevice = "cpu"\n') == 1
    assert text.endswith(ENDING)
    nodes = list(ast.walk(ast.parse(text)))
    roots = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    roots |= {str(node.module).partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    assert roots - set(sys.stdlib_module_names) == {"torch"}
    assert 'device = "xpu"\n' in program_of(CHECKS[name], "xpu")


@pytest.mark.parametrize("name", ["stale-weight-cast", pytest.param("half-antialias", marks=pytest.mark.slow)])
def test_a_program_runs_by_itself_as_it_is_printed(name: str) -> None:
    command = [sys.executable, "-I", "-c", program_of(CHECKS[name])]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    expected, seen = ended.stdout.splitlines()[-2:]
    assert expected.startswith("expected: ")
    assert seen.startswith("seen:     ")


def test_the_checks_that_go_by_times_say_so() -> None:
    assert {name for name, check in CHECKS.items() if check.timed} == {
        name for name, check in CHECKS.items() if "perf_counter" in program_of(check) or "Timer" in program_of(check)
    }

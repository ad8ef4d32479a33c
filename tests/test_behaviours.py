"""Every behaviour of mixed precision that ampbench shows has a test of the command that shows it."""

import re
from pathlib import Path


def test_every_behaviour_has_a_test_of_the_command_that_shows_it() -> None:
    rows = [
        f"{area}{number}" for area, last in {"a": 3, "b": 6, "c": 4, "d": 4}.items() for number in range(1, last + 1)
    ]
    text = (Path(__file__).parent / "cli" / "test_behaviours_by_command.py").read_text(encoding="utf-8")
    assert re.findall(r"^def test_([a-d]\d)_", text, re.MULTILINE) == rows

"""Values of options are read from the command line."""

from pathlib import Path
from typing import Any

import click
import pytest

from ampbench.cli.main import verb
from ampbench.cli.printing import OutputFormat
from ampbench.errors import UnknownNameError

REFUSED = "REFUSED"


def value_of(name: str, typed: Any) -> Any:
    """Return the value that an option of `run` makes of a text, or `REFUSED`."""
    command = verb("run")
    context = click.Context(command, info_name="run")
    parameter = next(each for each in command.params if each.name == name)
    try:
        return parameter.process_value(context, typed)
    except (click.BadParameter, UnknownNameError):
        return REFUSED


@pytest.mark.parametrize(
    ("name", "typed", "expected"),
    [
        ("rounds", "5", 5), ("rounds", " 5", 5), ("rounds", "007", 7), ("rounds", "5.5", REFUSED),
        ("rounds", "1e3", REFUSED), ("rounds", "", REFUSED), ("rounds", "nan", REFUSED), ("rounds", "True", REFUSED),
        ("format", "json", OutputFormat.JSON), ("format", "JSON", REFUSED),
        ("results", "here", Path("here")), ("label", "text", "text"),
        ("precision", ("fp32,tf32", "bf16_pure"), ["fp32", "tf32", "bf16_pure"]), ("precision", (), None),
        ("yes", "perhaps", REFUSED), ("yes", True, True),
    ],
)  # fmt: skip
def test_a_value_is_read_or_refused_in_a_line(name: str, typed: Any, expected: Any) -> None:
    assert value_of(name, typed) == expected

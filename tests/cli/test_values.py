"""Values are read as typer itself reads them, mistakes told as it tells them; only pydantic stays away."""

from typing import Any

import pytest
import typer

from ampbench.cli import main as program
from ampbench.cli.main import build, read_lightly, said_plainly

NUMBERS = ["5", "+5", "-5", " 5", "5.0", "5.5", "1_0", "1e3", "0", "007", "9" * 25, "x", "", "nan", "inf", "0x10", "٣"]
TYPED: dict[str, list[Any]] = {
    "rounds": [*NUMBERS, 5, 5.0, 5.5, True, 0, 1001, [5], None],
    "seed": NUMBERS,
    "format": ["json", "JSON", "yaml", "", 1, None],
    "results": ["here", "/", "", 5, None],
    "label": ["text", "", 5, True, None],
    "precision": [["fp32", "tf32"], ("fp32",), "fp32", [5], [], None],
    "set_": [["a=1"], [1]],
    "yes": [True, "yes", "no", "perhaps", 1, None],
    "names": [["mlp"], (), None],
}


def commands() -> tuple[Any, Any]:
    """Return the command of `run` as it is read here, and one that typer reads by itself."""
    light = build("run")
    read, program.read_lightly = program.read_lightly, lambda command: None
    try:
        return light.commands["run"], build("run").commands["run"]
    finally:
        program.read_lightly = read


def read(command: Any, name: str, value: Any) -> Any:
    """Return what a command's parameter makes of a value, or the line that is said of it."""
    context = typer.Context(command, info_name="run")
    parameter = next(one for one in command.params if one.name == name)
    try:
        found = parameter.process_value(context, value)
    except typer.BadParameter as error:
        error.ctx, error.param = context, parameter
        return said_plainly(error, None)
    except Exception as error:  # noqa: BLE001 - what is no value at all fails in both alike
        return type(error), str(error)
    return type(found), found


@pytest.mark.parametrize("name", TYPED)
def test_a_value_is_what_typer_makes_of_it(name: str) -> None:
    light, typers = commands()
    for value in TYPED[name]:
        found, expected = read(light, name, value), read(typers, name, value)
        assert found == expected or (found[1] != found[1] and expected[1] != expected[1]), (name, value)


def test_a_command_without_values_is_left_as_it_is() -> None:
    app = typer.Typer(add_completion=False)
    app.command()(lambda: None)
    command = typer.main.get_command(app)
    read_lightly(command)
    assert command.main([], standalone_mode=False) is None

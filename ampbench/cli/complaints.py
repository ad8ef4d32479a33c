"""What typer complains of, in ampbench's words."""

import re
from pathlib import Path
from typing import Any

from ampbench.errors import UnknownNameError, did_you_mean, nearest

PLAIN_WORDS = (
    (r"Input should be a valid integer\b.*|'[^']*' is not a valid int.*", "give a whole number"),
    (r"Input should be a valid number\b.*|'[^']*' is not a valid float.*", "give a number"),
    (r"Input should be greater than or equal to (\S+)", r"give at least \1"),
    (r"Input should be less than or equal to (\S+)", r"give at most \1"),
)
"""What typer's complaints of a value are in plain words."""


def said_plainly(error: Any, file: Path | None) -> str:
    """Return typer's message as one line of ours, with where the value came from and where help is."""
    context = error.ctx
    parameter = getattr(error, "param", None)
    message = _said(error)
    if context is None:
        return message
    if file is not None and parameter is not None:
        source = context.get_parameter_source(parameter.name)
        if source is not None and source.name == "DEFAULT_MAP":
            message += f" (set in {file})"
    return message if message.endswith("?") else f"{message}; see {context.command_path.split(' {')[0]} --help"


def _said(error: Any) -> str:
    """Return typer's message in our words: what is nearest to an unknown option or choice, what a value has to be."""
    option = getattr(error, "option_name", "")
    if option and hasattr(error, "possibilities"):
        known = [name for each in error.ctx.command.params for name in each.opts] if error.ctx else []
        words = [name.removeprefix("--") for name in known if name.startswith("--")]  # dashes make no two options alike
        near = [f"--{name}" for name in nearest(option.lstrip("-"), words)]
        return f"unknown option {option}" + (f": {did_you_mean(near)}" if near else "")
    message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    if choice := re.search(r"'(--[\w-]+)'.*: '(.*)' is not one of (.*)", message):
        return str(UnknownNameError(choice[1], choice[2], re.findall(r"'([^']*)'", choice[3])))
    for typed, plain in PLAIN_WORDS:
        message = re.sub(typed, plain, message)
    return message[:1].lower() + message[1:]

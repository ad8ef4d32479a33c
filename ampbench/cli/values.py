"""What is typed for an option or an argument becomes its value without pydantic, which typer would import for that.

Importing pydantic takes longer than everything else of a verb's `--help`. What the types of ampbench's options plainly
mean is read here; the rest, rare values such as "5.0" for a whole number, is left to typer. Versions of typer that read
values without pydantic are left alone.
"""

import math
import os
import re
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import typer

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_UNKNOWN = object()
"""A value of which only typer knows what it means."""


def read_lightly(command: Any, parent: Any = None) -> None:
    """Have the parameters of a command, and of those below it, read without pydantic, as far as typer lets them.

    `parent` is the context of the command that it is below.
    """
    context = typer.Context(command, parent=parent, **command.context_settings)
    for parameter in command.get_params(context):  # --help among them
        if hasattr(parameter, "get_runtime_param"):
            light = _Light(parameter.get_runtime_param)
            parameter.get_runtime_param = lambda light=light: light
    for below in getattr(command, "commands", {}).values():
        read_lightly(below, context)


class _Light:
    """Reads the values of one parameter, in place of what typer would make of it."""

    def __init__(self, typers: Any) -> None:
        self._typers = typers

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value that was typed or set, or raise `typer.BadParameter`, as typer's own does."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        type_, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        try:
            if not several:
                found = _read(value, type_, info)
            elif get_origin(type_) is list and isinstance(value, list | tuple):
                found = [_read(one, get_args(type_)[0], info) for one in value]
            else:
                found = _UNKNOWN
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None
        if found is _UNKNOWN or (several and _UNKNOWN in found):
            return self._typers().coerce(value, param=param, ctx=ctx)
        return found


def _read(value: Any, type_: Any, info: Any) -> Any:
    """Return what `value` plainly means; `ValueError` where it plainly means nothing, `_UNKNOWN` where it is not plain.

    `info` is what typer was told of the parameter.
    """
    if info.parser is not None or info.clamp or not isinstance(type_, type):
        return _UNKNOWN
    if type_ is str:
        return value if isinstance(value, str) else _UNKNOWN
    if type_ in (int, float):
        return _number(value, type_, info)
    if issubclass(type_, Enum):
        return _choice(value, type_) if info.case_sensitive else _UNKNOWN
    if type_ is Path:
        return _path(value, info)
    return _UNKNOWN


def _number(value: Any, type_: type, info: Any) -> Any:
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            raise ValueError("give a whole number" if type_ is int else "give a number") from None
        if not (_WHOLE.fullmatch(value) if type_ is int else value.isascii()):
            return _UNKNOWN
        value = int(value) if type_ is int else number
    if type(value) is not type_ or (isinstance(value, float) and math.isnan(value)):
        return _UNKNOWN
    if info.min is not None and value < info.min:
        raise ValueError(f"give at least {info.min}")
    if info.max is not None and value > info.max:
        raise ValueError(f"give at most {info.max}")
    return value


def _choice(value: Any, type_: type[Enum]) -> Any:
    for one in type_:
        if value in (one, one.value):
            return one
    raise ValueError(f"{value!r} is not one of {', '.join(repr(one.value) for one in type_)}")


def _path(value: Any, info: Any) -> Any:
    asked = info.exists or info.resolve_path or info.allow_dash or info.writable or info.path_type is not None
    if asked or not (info.file_okay and info.dir_okay) or not isinstance(value, str | Path):
        return _UNKNOWN
    return Path(value) if os.access(value, os.R_OK) or not os.path.lexists(value) else _UNKNOWN

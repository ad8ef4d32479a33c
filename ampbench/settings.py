"""Settings files: `[tool.ampbench]` of pyproject.toml, or ampbench.toml; what flags say wins over them.

[tool.ampbench]              # for every verb that has the option
results = "bench/results"

[tool.ampbench.run]          # for one verb
rounds = 5
precision = ["fp32", "bf16_autocast"]
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ampbench.errors import UnknownNameError, UsageError

FILE_NAME = "ampbench.toml"
PATHS = frozenset({"results", "policy"})
"""Options whose value is a path, which counts from the settings file's folder, not from the current one."""

PROGRAMS: Mapping[str, frozenset[str]] = MappingProxyType(
    {"compare": frozenset({"baseline_python", "candidate_python"}), "ab": frozenset({"baseline", "candidate"})}
)
"""By verb, options that name a program to run or its environment: only who types a command decides on these.

A settings file belongs to the folder, which may be somebody else's.
"""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a verb: the parameter it sets, and whether it may be given several times."""

    parameter: str
    repeatable: bool


Options = Mapping[str, Option]
"""The options of one verb by their key in a settings file: the long name, dashes written as underscores."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file and its ampbench table, not yet checked."""

    path: Path
    table: Mapping[str, Any]


def find(start: Path) -> SettingsFile | None:
    """Return the nearest settings file, from `start` upwards to the root of its repository; None where there is none.

    Outside a repository only `start` itself is looked at. In one folder ampbench.toml comes before pyproject.toml; a
    pyproject.toml without `[tool.ampbench]` does not count. Raises `UsageError` for a file that is not TOML.
    """
    for folder in _folders(start.resolve()):
        own, project = folder / FILE_NAME, folder / "pyproject.toml"
        if own.is_file():
            return SettingsFile(own, read_toml(own))
        if project.is_file():
            table = _table(read_toml(project).get("tool", {}), project, "tool").get("ampbench")
            if table is not None:
                return SettingsFile(project, _table(table, project, "tool.ampbench"))
    return None


def defaults(file: SettingsFile, verbs: Mapping[str, Options]) -> dict[str, dict[str, Any]]:
    """Return the default values of each verb's parameters.

    A key at the top sets the option for every verb that has it, a table named like a verb for that verb alone. Keys are
    options without their dashes ("max-error" or "max_error"). Raises `UsageError` for an unknown key.
    """
    known = sorted({option for options in verbs.values() for option in options})
    result: dict[str, dict[str, Any]] = {verb: {} for verb in verbs}
    for key, value in file.table.items():
        if key in verbs:
            continue
        option = _option(key, [*known, *verbs], file.path)
        having = [verb for verb, options in verbs.items() if option in options]
        if all(option in PROGRAMS.get(verb, ()) for verb in having):
            raise UsageError(_names_a_program(file.path, option))
        for verb, options in verbs.items():
            if option in options and option not in PROGRAMS.get(verb, ()):
                result[verb][options[option].parameter] = _value(option, value, options[option], file.path)
    for verb, options in verbs.items():
        for key, value in _table(file.table.get(verb, {}), file.path, verb).items():
            option = _option(key, list(options), file.path, verb)
            if option in PROGRAMS.get(verb, ()):
                raise UsageError(_names_a_program(file.path, option))
            result[verb][options[option].parameter] = _value(option, value, options[option], file.path)
    return result


def _names_a_program(path: Path, option: str) -> str:
    flag = f"--{option.replace('_', '-')}"
    return f"{path}: {option} names a program to run, which no settings file may: say {flag} on the command line"


def _folders(start: Path) -> list[Path]:
    """Return `start` and its parents up to the one that holds `.git`; `start` alone where none does."""
    upwards = [start, *start.parents]
    for depth, folder in enumerate(upwards):
        if (folder / ".git").exists():
            return upwards[: depth + 1]
    return [start]


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file; `UsageError` with its name, and the line, where it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # TOML's own, text that is no UTF-8, an integer of more digits than Python takes
        raise UsageError(f"{path}: not valid TOML: {str(error).partition(';')[0]}") from error
    except RecursionError:
        raise UsageError(f"{path}: its brackets or tables are nested too deep to be read") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _table(value: Any, path: Path, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {name} must be a table ([{name}]), not {value!r}")
    return value


def _option(key: str, known: list[str], path: Path, verb: str = "") -> str:
    """Return the parameter that a key names."""
    option = key.replace("-", "_")
    if option in known:
        return option
    kind = f"setting of {verb}" if verb else "setting"
    raise UsageError(f"{path}: {UnknownNameError(kind, key, known)}")


def _value(key: str, value: Any, option: Option, path: Path) -> Any:
    """Return the value as the command line would give it: a list for a repeatable option, a path made absolute."""
    if isinstance(value, dict):
        raise UsageError(f"{path}: {key} must be a value, not a table")
    if isinstance(value, list) and not option.repeatable:
        raise UsageError(f"{path}: {key} must be one value, not a list")
    if key in PATHS and isinstance(value, str):
        value = str(path.parent / value)
    if not option.repeatable:
        return value
    return value if isinstance(value, list) else [value]

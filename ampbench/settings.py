"""Read settings files: `[tool.ampbench]` of pyproject.toml, or ampbench.toml; flags override them.

[tool.ampbench]              # for every verb that has the option
results = "bench/results"

[tool.ampbench.run]          # for one verb
rounds = 5
precision = ["fp32", "bf16_autocast"]

[tool.ampbench.limits]       # by what run, show and report judge precisions: `core.budget.Budget`
output_rel_l2 = 5e-3
"""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ampbench.errors import UnknownNameError, UsageError

FILE_NAME = "ampbench.toml"
PATHS = frozenset({"results", "policy"})
"""Options whose value is a path, which counts from the settings file's folder, not from the current one."""

PROGRAMS = {"ab": ("baseline", "candidate")}
"""By verb, options that name a program to run or its environment: only who types a command decides on these.

A settings file belongs to the folder, which may be somebody else's.
"""

SHARED = frozenset(
    {
        "device", "format", "label", "memory_limit", "min_run_time", "optimizer", "path", "phase", "policy",
        "precision", "preset", "results", "rounds", "seed", "set", "sweep", "threads", "timeout", "verbose",
    }
)  # fmt: skip
"""Options of several verbs, which a settings file may give to all at once, outside of a verb's table."""


LIMITS = "limits"
"""The table of a settings file that is no verb's."""
Options = Mapping[str, click.Option]
"""The options of one verb by their key in a settings file: the long name, dashes written as underscores."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file and its ampbench table, not yet checked."""

    path: Path
    table: Mapping[str, Any]


def find(start: Path) -> SettingsFile | None:
    """Return the nearest settings file from `start` up to the root of its repository; None without one.

    Outside a repository only `start` is searched. In one folder ampbench.toml comes before pyproject.toml; a
    pyproject.toml without `[tool.ampbench]` does not count. Raises `UsageError` for a file that is not TOML.
    """
    for folder in _folders(start.resolve()):
        ampbench_file, project = folder / FILE_NAME, folder / "pyproject.toml"
        if ampbench_file.is_file():
            return SettingsFile(ampbench_file, read_toml(ampbench_file))
        if project.is_file():
            table = _table(read_toml(project).get("tool", {}), project, "tool").get("ampbench")
            if table is not None:
                return SettingsFile(project, _table(table, project, "tool.ampbench"))
    return None


def defaults(file: SettingsFile, verb: str, verbs: Collection[str], options: Options) -> dict[str, Any]:
    """Return the default values of the parameters of `verb`, one of `verbs`, which has `options`.

    A key of `SHARED` at the top holds for every verb that has the option, a table named like a verb for that verb
    alone. Keys are options without their dashes ("max-error" or "max_error"). Raises `UsageError` for any other key at
    the top or in the verb's own table.
    """
    tables = [*verbs, LIMITS]
    shared = {key: value for key, value in file.table.items() if key not in tables}
    of_verb = _table(file.table.get(verb, {}), file.path, verb)
    values: dict[str, Any] = {}
    for key, value in shared.items():
        option = _option(key, [*sorted(SHARED), *tables], "setting of all verbs", file.path)
        if option in options:
            values[str(options[option].name)] = _value(option, value, options[option], file.path)
    for key, value in of_verb.items():
        option = _option(key, list(options), f"setting of {verb}", file.path)
        if option in PROGRAMS.get(verb, ()):
            flag = f"--{option.replace('_', '-')}"
            raise UsageError(f"{file.path}: {option} names a program to run: give {flag} on the command line")
        values[str(options[option].name)] = _value(option, value, options[option], file.path)
    return values


def limits(file: SettingsFile, known: Collection[str]) -> dict[str, float]:
    """Return the limits on errors in a settings file; `UsageError` for an unknown limit, or a value of another type."""
    limits_of: dict[str, float] = {}
    for name, value in _table(file.table.get(LIMITS, {}), file.path, LIMITS).items():
        if name not in known:
            raise UsageError(f"{file.path}: {UnknownNameError('limit', name, known)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{file.path}: the limit {name} must be a number, not {value!r}")
        limits_of[name] = float(value)
    return limits_of


def _folders(start: Path) -> list[Path]:
    """Return `start` and its parents up to the folder with `.git`; `start` alone outside a repository."""
    upwards = [start, *start.parents]
    for depth, folder in enumerate(upwards):
        if (folder / ".git").exists():
            return upwards[: depth + 1]
    return [start]


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file; `UsageError` with its name and line if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # invalid TOML or UTF-8, or an integer with too many digits for Python
        raise UsageError(f"{path}: not valid TOML: {str(error).partition(';')[0]}") from error
    except RecursionError:
        raise UsageError(f"{path}: its brackets or tables are nested too deep to be read") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _table(value: Any, path: Path, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {name} must be a table ([{name}]), not {value!r}")
    return value


def _option(key: str, known: list[str], kind: str, path: Path) -> str:
    """Return the `known` option that a key names."""
    option = key.replace("-", "_")
    if option in known:
        return option
    raise UsageError(f"{path}: {UnknownNameError(kind, key, known, instead='an option of one verb stands in [VERB]')}")


def _value(key: str, value: Any, option: click.Option, path: Path) -> Any:
    """Return the value as from the command line: as text, except for a flag; a list for a repeatable option."""
    if isinstance(value, dict):
        raise UsageError(f"{path}: {key} must be a value, not a table")
    if isinstance(value, list) and not option.multiple:
        raise UsageError(f"{path}: {key} must be one value, not a list")
    if option.is_flag:
        return value
    texts = [str(item) for item in (value if isinstance(value, list) else [value])]
    if key in PATHS:
        texts = [str(path.parent / text) for text in texts]
    return texts if option.multiple else texts[0]

"""Settings files: `[tool.ampbench]` of pyproject.toml, or ampbench.toml; what flags say wins over them.

[tool.ampbench]              # for every verb that has the option
results = "bench/results"

[tool.ampbench.run]          # for one verb
rounds = 5
precision = ["fp32", "bf16_autocast"]

[tool.ampbench.limits]       # by what run, show and report judge precisions: `core.budget.Budget`
output_rel_l2 = 5e-3
"""

import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ampbench.errors import UnknownNameError, UsageError

FILE_NAME = "ampbench.toml"
PATHS = frozenset({"results", "policy"})
"""Options whose value is a path, which counts from the settings file's folder, not from the current one."""

PROGRAMS: Mapping[str, frozenset[str]] = MappingProxyType({"ab": frozenset({"baseline", "candidate"})})
"""By verb, options that name a program to run or its environment: only who types a command decides on these.

A settings file belongs to the folder, which may be somebody else's.
"""

KEYS = frozenset(
    {
        "against", "all", "anchor", "area", "baseline", "budget", "burst", "case", "check", "device",
        "dry_run", "dtype", "format", "gate", "json", "keyword", "label", "list", "max_error",
        "max_gradient_error",
        "max_time", "max_trials", "memory_limit", "metric",
        "min_run_time", "min_update_kept", "no_isolation", "on", "only", "operation",
        "optimizer", "output", "over", "path", "phase", "policy", "precision", "preset", "ray", "results",
        "resume", "rounds", "seconds", "seed", "seeds", "set", "setting", "shard", "short", "show", "site",
        "sources", "steps", "sweep", "threads", "threshold", "timeout", "to", "verbose", "x", "yes",
    }
)  # fmt: skip
"""What a settings file may say to one verb or another, so that a verb can pass over what is for the others alone
without importing them. For a key that is not among them, an option of a new study, all verbs are asked."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a verb: the parameter it sets, and whether it may be given several times."""

    parameter: str
    repeatable: bool


LIMITS = "limits"
"""The table of a settings file that is no verb's."""
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


def defaults(
    file: SettingsFile,
    verb: str,
    verbs: Collection[str],
    options_of: Callable[[str], Options],
    keys: Collection[str] = KEYS,
) -> dict[str, Any]:
    """Return the default values of the parameters of `verb`, one of `verbs`; none for "", the program itself.

    A key at the top sets the option for every verb that has it, a table named like a verb for that verb alone. Keys are
    options without their dashes ("max-error" or "max_error"). `options_of` is asked for the options of `verb`, and of
    others only where the file says what is none of `keys`. Raises `UsageError` for a key that no verb has, or that
    the verb of its table has not: of another's table it is enough that any verb has it.
    """
    options = options_of(verb) if verb else {}
    ours = PROGRAMS.get(verb, frozenset[str]())
    programs = frozenset[str]().union(*PROGRAMS.values())
    result: dict[str, Any] = {}
    tables = [*verbs, LIMITS]
    if any(key.replace("-", "_") not in {*keys, *programs} for key in file.table if key not in tables):
        keys = {*keys, *({option for each in verbs for option in options_of(each)} - programs)}
    for key, value in file.table.items():
        if key in tables:
            continue
        option = _option(key, [*sorted({*keys, *programs}), *tables], file.path)
        if option not in keys:
            raise UsageError(_names_a_program(file.path, option))
        if option in options and option not in ours:
            result[options[option].parameter] = _value(option, value, options[option], file.path)
    for each in verbs:
        for key, value in _table(file.table.get(each, {}), file.path, each).items():
            option = key.replace("-", "_")
            if option in PROGRAMS.get(each, ()):
                raise UsageError(_names_a_program(file.path, option))
            if each == verb or option not in keys:
                known = options if each == verb else options_of(each)
                option = _option(key, list(known), file.path, each)
                if each == verb:
                    result[known[option].parameter] = _value(option, value, known[option], file.path)
    return result


def limits(file: SettingsFile, known: Collection[str]) -> dict[str, float]:
    """Return the limits on errors in a settings file; raises `UsageError` for one that is not `known`, or no number."""
    found: dict[str, float] = {}
    for name, value in _table(file.table.get(LIMITS, {}), file.path, LIMITS).items():
        if name not in known:
            raise UsageError(f"{file.path}: {UnknownNameError('limit', name, known)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{file.path}: the limit {name} must be a number, not {value!r}")
        found[name] = float(value)
    return found


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

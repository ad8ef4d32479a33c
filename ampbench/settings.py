"""Read the limits of a project: `[tool.ampbench.limits]` of pyproject.toml, or `[limits]` of ampbench.toml.

[tool.ampbench.limits]       # by what run, show and report judge precisions: `core.budget.Budget`
output_rel_l2 = 5e-3
"""

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ampbench.errors import UnknownNameError, UsageError

FILE_NAME, LIMITS = "ampbench.toml", "limits"


def find_limits(start: Path, known: Collection[str]) -> tuple[Path, dict[str, float]] | None:
    """Return the nearest settings file from `start` up to the root of its repository, and its limits; None without one.

    Outside a repository only `start` is searched. In one folder ampbench.toml comes before pyproject.toml; a
    pyproject.toml without `[tool.ampbench]` does not count. Raises `UsageError` for a file that is not TOML, an unknown
    key or limit, and a value of another type.
    """
    for folder in _folders(start.resolve()):
        ampbench_file, project = folder / FILE_NAME, folder / "pyproject.toml"
        if ampbench_file.is_file():
            return ampbench_file, _limits(ampbench_file, read_toml(ampbench_file), known)
        if project.is_file():
            table = _table(read_toml(project).get("tool", {}), project, "tool").get("ampbench")
            if table is not None:
                return project, _limits(project, _table(table, project, "tool.ampbench"), known)
    return None


def _limits(file: Path, table: Mapping[str, Any], known: Collection[str]) -> dict[str, float]:
    """Return the limits in the table of a settings file."""
    for key in table:
        if key != LIMITS:
            raise UsageError(f"{file}: {UnknownNameError('table', key, [LIMITS])}")
    limits: dict[str, float] = {}
    for name, value in _table(table.get(LIMITS, {}), file, LIMITS).items():
        if name not in known:
            raise UsageError(f"{file}: {UnknownNameError('limit', name, known)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{file}: the limit {name} must be a number, not {value!r}")
        limits[name] = float(value)
    return limits


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

"""The size of the project and its bounds: `python -m benchmarks.size`, or `make size`.

size.json has the bounds. `tests/test_size.py` fails where a measure exceeds its bound, so a commit that needs room
makes it elsewhere; `--lower` lowers the bounds to the present size. Raising one needs a reason in CHANGELOG.md.

Only files that git tracks count, by the lines of `wc -l`. Moved code counts where it moved to. All JavaScript in
ampbench/ is its own.
"""

import argparse
import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BOUNDS = Path(__file__).with_suffix(".json")
DOCUMENTED = "public definitions with a docstring, share"
"""Counted in hundredths, so that removing a documented definition does not lower it."""
DENSITY = "ampbench/, statements a line"
DENSEST = 0.62
"""Statements a line at most: room is made by leaving things out, not by crowding. No commit lowers it."""
NET_DATA = ("tests/net/data/", "tests/net/runs/")
"""Data that the net compares with: never regenerated, and not counted."""
TOUCHING = ["run", "mlp", "--no-isolation", "--phase", "inference", "--preset", "tiny", "--rounds", "1"]
SLACK = 0.01
"""Share below its bound from which a measure is marked as one to lower."""
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def tracked(*patterns: str) -> list[str]:
    """Return the paths of the tracked files that match and are there, relative to the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [path for path in listed.split("\0") if path and (ROOT / path).is_file()]


def lines(paths: Iterable[str]) -> int:
    """Return the lines of all files of these paths."""
    return sum((ROOT / path).read_bytes().count(b"\n") for path in paths)


def public_definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    """Yield classes and functions of a module, and of its public classes, whose names have no leading underscore."""
    for statement in body:
        if isinstance(statement, Definition) and not statement.name.startswith("_"):
            yield statement
            if isinstance(statement, ast.ClassDef):
                yield from public_definitions(statement.body)


def of_code() -> dict[str, float]:
    """Return the measures of ampbench's Python."""
    paths = tracked("ampbench/*.py")
    trees = [ast.parse((ROOT / path).read_text()) for path in paths]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    statements = sum(isinstance(node, ast.stmt) for node in nodes)
    public = [definition for tree in trees for definition in public_definitions(tree.body)]
    count = lines(paths)
    return {
        "ampbench/, Python lines": count,
        "ampbench/, Python files": len(paths),
        "ampbench/, statements": statements,
        DENSITY: round(statements / count, 3),
        "ampbench/, functions": sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes),
        DOCUMENTED: round(sum(ast.get_docstring(definition) is not None for definition in public) / len(public), 2),
        "ampbench/, lines of other text files": lines(set(tracked("ampbench")) - set(paths)),
    }


def of_options() -> dict[str, float]:
    """Return the numbers of options of all verbs, with `--help` and hidden ones, by their long spelling.

    Distinct ones include the options of the program itself, such as `--version`.
    """
    from ampbench.cli import main

    def spelled(command: Any) -> list[str]:
        context = command.make_context("ampbench", [], resilient_parsing=True)
        parameters = command.get_params(context)
        return [max(option.opts, key=len) for option in parameters if option.param_type_name == "option"]

    of_verbs = {name: spelled(main.verb(name)) for name in main.verbs()}
    every = [option for options in of_verbs.values() for option in options]
    return {
        "verbs": len(of_verbs),
        "options, distinct": len({*every, *spelled(main.build())}),
        "options, of all verbs": len(every),
        "options, of run": len(of_verbs["run"]),
    }


def of_the_rest() -> dict[str, float]:
    """Return the measures of tests, documentation and benchmarks."""
    tests = [path for path in tracked("tests") if not path.startswith(NET_DATA)]
    python = [path for path in tests if path.endswith(".py")]
    pages = tracked("*.md", ":!CHANGELOG.md", ":!tests", ":!results")
    return {
        "tests/, Python lines": lines(python),
        "tests/, lines of other text files": lines(set(tests) - set(python)),
        "documentation, words": sum(len((ROOT / path).read_text().split()) for path in pages),
        "benchmarks/, Python lines": lines(tracked("benchmarks/*.py")),
    }


def measure() -> dict[str, float]:
    """Return all measures that have a bound, by name."""
    return of_code() | of_options() | of_the_rest()


def bounds() -> dict[str, float]:
    """Return the bounds by the name of their measure."""
    return dict(json.loads(BOUNDS.read_text()))


def exceeded(now: dict[str, float], bound: dict[str, float]) -> list[str]:
    """Return the measures that are worse than their bounds."""
    return [name for name in now if (now[name] < bound[name] if name == DOCUMENTED else now[name] > bound[name])]


def lowered(now: dict[str, float], bound: dict[str, float]) -> dict[str, float]:
    """Return the bounds, lowered to the present measures where these are better."""
    return {
        name: DENSEST if name == DENSITY else (max if name == DOCUMENTED else min)(value, bound.get(name, value))
        for name, value in now.items()
    }


def touch() -> None:
    """Run one small case, `TOUCHING`, in this process and print the files of ampbench whose functions it calls."""
    import inspect
    import tempfile
    import threading
    from types import FrameType

    codes = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["ampbench", *TOUCHING, "--results", folder]
        threading.setprofile(profile)
        sys.setprofile(profile)
        from ampbench.__main__ import main

        main()
        sys.setprofile(None)
    called = {Path(code.co_filename) for code in codes if code.co_flags & inspect.CO_OPTIMIZED}  # no body of a module
    files = sorted(path.relative_to(ROOT) for path in called if path.is_relative_to(ROOT / "ampbench"))
    print(*files, f"{len(files)} files of ampbench were touched", sep="\n")


def main() -> int:
    """Print the table, after lowering the bounds where that is asked for; return 1 where a bound is exceeded."""
    parser = argparse.ArgumentParser(description="Print how large the project is, beside its bounds.")
    parser.add_argument("--lower", action="store_true", help="Lower the bounds to what is reached.")
    parser.add_argument("--touched", action="store_true", help="List the files that one small case touches instead.")
    asked = parser.parse_args()
    if asked.touched:
        touch()
        return 0
    now = measure()
    if asked.lower:
        BOUNDS.write_text(json.dumps(lowered(now, bounds() if BOUNDS.exists() else {}), indent=2) + "\n")
    bound = bounds()
    over = exceeded(now, bound)
    print(f"{'measure':<52}{'now':>9}{'bound':>9}")
    for name, value in now.items():
        room = name not in (DENSITY, DOCUMENTED) and value < bound[name] * (1 - SLACK)
        print(f"{name:<52}{value:>9,}{bound[name]:>9,}{'  exceeded' if name in over else '  lower it' * room}")
    folders: dict[str, list[str]] = {}
    for path in tracked("ampbench/*.py"):
        folders.setdefault("/".join(Path(path).parts[:-1][:2]), []).append(path)
    for folder, paths in sorted(folders.items(), key=lambda item: -lines(item[1])):
        print(f"  {folder + '/':<50}{lines(paths):>9,}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())

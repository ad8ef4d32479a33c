"""How many small faults the tests would find: `make mutants` (docs/contributing.md).

A mutant is a module with one change of mutmut's: a number plus one, a comparison the other way, an argument left out.
There are more than there is time for, so they are drawn, and to each are put the tests that run its statement, in a
fork of a process that has imported what ampbench imports.
"""

import argparse
import ast
import difflib
import functools
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PARTS = {"judge": "ampbench/judge/*.py", "store": "ampbench/store/*.py", "divergence": "ampbench/measure/divergence.py"}
TESTS = ("tests/judge", "tests/store", "tests/measure/test_divergence.py", "tests/net", "tests/simulation")
"""The tests that a part is held to: its own, and what the verbs print."""
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", ".derived")
IMPORTED = ("pytest", "hypothesis", "numpy", "pandas", "scipy.stats", "torch", "msgspec", "typer", "rich.table")
OPTIONS = ("-q", "-m", "not slow", "-p", "no:cacheprovider", "--hypothesis-profile=ci")
RENAMED = 4
"""pytest's exit code where a test that was asked for is not there."""

Mutant = dict[str, Any]
"""What identifies a change, the `source` that has it, and, when it was tried, its `outcome`."""


class Mutants:
    """Those of a file: mutmut's, and those in functions with decorators, which only its way of running leaves out."""

    def __init__(self, part: str, file: Path):
        import libcst
        from libcst.metadata import MetadataWrapper
        from mutmut.mutation.file_mutation import MutationVisitor
        from mutmut.mutation.mutators import mutation_operators
        from mutmut.mutation.pragma_handling import IgnoredCode

        class Visitor(MutationVisitor):
            def _skip_node_and_children(self, node: libcst.CSTNode) -> bool:
                return not isinstance(node, libcst.FunctionDef) and super()._skip_node_and_children(node)

        self.part, self.path, self.source = part, str(file.relative_to(ROOT)), file.read_text()
        visitor = Visitor(mutation_operators, IgnoredCode(set(), set(), set()))
        self.module = MetadataWrapper(libcst.parse_module(self.source)).visit(visitor)
        self.changes = visitor.mutations

    def __getitem__(self, number: int) -> Mutant:
        old, new = self.changes[number].original_node, self.changes[number].mutated_node
        source = self.module.deep_replace(old, new).code
        head, *change = list(difflib.unified_diff(self.source.splitlines(), source.splitlines(), n=0, lineterm=""))[2:]
        line = int(head.split()[1][1:].split(",")[0])
        where = {"part": self.part, "path": self.path, "number": number, "line": line, "kind": type(old).__name__}
        return where | {"change": "\n".join(change), "source": source}


def drawn(wanted: Mapping[str, int], seed: int) -> Iterator[Mutant]:
    """Yield mutants drawn at random of all of each part, the same ones for a seed and a source."""
    for part, number in wanted.items():
        files = [Mutants(part, file) for file in sorted(ROOT.glob(PARTS[part]))]
        every = [(file, index) for file in files for index in range(len(file.changes))]
        print(f"{part}: {number} of {len(every)} mutants, seed {seed}", flush=True)
        for file, index in random.Random(seed).sample(every, min(number, len(every))):
            yield file[index]


def missed(before: Path) -> Iterator[Mutant]:
    """Yield the mutants of an earlier draw that no test found, where the source is still the same."""
    of = functools.cache(Mutants)
    for each in map(json.loads, before.read_text().splitlines()):
        if each["outcome"] in ("survived", "uncovered"):
            file = of(each["part"], ROOT / each["path"])
            if each["number"] < len(file.changes) and (again := file[each["number"]])["change"] == each["change"]:
                yield again


class Watch:
    """A plugin of pytest: how long each test took, which failed, and, given a coverage, what each ran."""

    def __init__(self, coverage: Any = None):
        self.coverage, self.seconds, self.failed = coverage, Counter[str](), list[str]()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.coverage:
            self.coverage.switch_context(nodeid)

    def pytest_runtest_logfinish(self) -> None:
        if self.coverage:
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.append(report.nodeid)


def run_tests(copy: Path, tests: Sequence[str], seconds: float, data: str = "") -> tuple[int | None, dict[str, Any]]:
    """Run tests in a fork of this process; return pytest's exit code, None if they took too long, and what it saw."""
    told = copy / "told.json"
    told.unlink(missing_ok=True)
    if not (child := os.fork()):
        code = 70
        try:
            os.setsid()
            os.chdir(copy)
            for stream in (1, 2):
                os.dup2(os.open("printed.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), stream)
            sys.path.insert(0, str(copy))
            # A mutant leaves no bytecode: that is known by whole seconds, in which a file changes twice.
            sys.dont_write_bytecode = not data
            os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "" if data else "1"}
            code = _run_here(tests, data, told)
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    until = time.monotonic() + seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.02)
    if not ended[0]:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None, {}
    return os.waitstatus_to_exitcode(ended[1]), json.loads(told.read_text()) if told.exists() else {}


def _run_here(tests: Sequence[str], data: str, told: Path) -> int:
    import pytest
    from coverage import Coverage

    # hypothesis is imported before pytest could rewrite its assertions, which it has none of
    options = [*OPTIONS, "-W", "ignore::pytest.PytestAssertRewriteWarning", f"--basetemp={told.parent / 'tmp'}"]
    if not data:
        watch = Watch()
        code = pytest.main([*options, "-x", *tests], plugins=[watch])
    else:
        covered = Coverage(data_file=data, include=[f"*/{pattern}" for pattern in PARTS.values()], config_file=False)
        with covered.collect():
            watch = Watch(covered)
            code = pytest.main([*options, *tests], plugins=[watch])
        covered.save()
    told.write_text(json.dumps({"seconds": watch.seconds, "failed": watch.failed}))
    return int(code)


def statement(source: str, line: int) -> range:
    """Return the lines of the innermost statement at a line, without its body."""
    spans = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            spans.append(range(node.lineno, body[0].lineno if body else (node.end_lineno or 0) + 1))
    return min((span for span in spans if line in span), key=len, default=range(line, line + 1))


class Trials:
    """A copy of the project in which mutants are tried, given which tests run which line of it."""

    def __init__(self, whole: Path, data: str, seen: Mapping[str, Any]):
        from coverage import CoverageData

        self.whole, self.copy, self.seconds = whole, whole.with_name(str(os.getpid())), seen["seconds"]
        self.data, self.left_out = CoverageData(data), {"", *seen["failed"]}
        self.data.read()
        shutil.copytree(whole, self.copy, ignore=shutil.ignore_patterns("tmp"))

    def tests(self, path: str, line: int) -> list[str]:
        """Return those of a module, then others that run a statement of it, or where imports run that, any of it."""
        file, own = self.whole / path, f"/test_{Path(path).stem}.py"
        lines = self.data.contexts_by_lineno(str(file))
        found = {test for line in statement(file.read_text(), line) for test in lines.get(line, ())}
        if "" in found:
            found = {test for tests in lines.values() for test in tests}
        beside = own if any(own in test for test in self.seconds) else f"tests/{Path(path).parts[1]}/"
        found |= {test for test in self.seconds if beside in test}  # what is cached runs in the first test alone
        return sorted(found - self.left_out, key=lambda test: (own not in test, self.seconds.get(test, 0)))

    def outcome(self, mutant: Mutant) -> Mutant:
        """Return a mutant with what became of it: `killed` (by which test), `late`, `survived`, or `uncovered`."""
        path, tests = mutant["path"], self.tests(mutant["path"], mutant["line"])
        mutant = {"tests": len(tests), "outcome": "uncovered", "by": ""} | mutant
        source = mutant.pop("source")
        if tests:
            (self.copy / path).write_text(source)
            seconds = 60 + 10 * sum(self.seconds[test] for test in tests)
            code, seen = run_tests(self.copy, tests, seconds)
            if code == RENAMED:  # by the change
                code, seen = run_tests(self.copy, list(dict.fromkeys(test.split("::")[0] for test in tests)), seconds)
            shutil.copy2(self.whole / path, self.copy / path)
            mutant["outcome"] = {None: "late", 0: "survived"}.get(code, "killed")
            mutant["by"] = "".join(seen.get("failed", ())[:1])
        return mutant


TRIALS: list[Trials] = []
"""Those of a process."""


def _begin(*given: Any) -> None:
    TRIALS.append(Trials(*given))


def _outcome(mutant: Mutant) -> Mutant:
    return TRIALS[0].outcome(mutant)


def tried(mutants: Sequence[Mutant], processes: int) -> Iterator[Mutant]:
    """Yield the mutants with their outcomes as these are known."""
    for name in IMPORTED:
        __import__(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        whole, data = Path(folder) / "whole", f"{folder}/lines"
        shutil.copytree(ROOT, whole, ignore=NOT_COPIED)
        code, seen = run_tests(whole, TESTS, 3600, data)
        if not seen:
            raise SystemExit(f"the tests cannot be run (exit code {code}): {(whole / 'printed.txt').read_text()}")
        for failed in seen["failed"]:
            print(f"{failed} fails without a change, and is left out", flush=True)
        with multiprocessing.get_context("fork").Pool(processes, _begin, (whole, data, seen)) as pool:
            yield from pool.imap_unordered(_outcome, mutants)


def table(mutants: Sequence[Mutant]) -> Iterator[str]:
    """Yield the lines of a Markdown table: a module each, a part each, and all; with 95% intervals by Wilson."""
    from scipy.stats import binomtest

    yield "| mutants of | drawn | found | too slow | not found | run by no test | found of all |\n|" + "---|" * 7
    for group in [*sorted({each["path"] for each in mutants}), *PARTS, "all"]:
        of = Counter(each["outcome"] for each in mutants if group in (each["path"], each["part"], "all"))
        if of:
            killed = of["killed"] + of["late"]
            low, high = binomtest(killed, of.total()).proportion_ci(method="wilson")
            counts = [str(of[name]) for name in ("killed", "late", "survived", "uncovered")]
            share = f"{killed / of.total():.0%} ({low:.0%} to {high:.0%})"
            yield f"| {' | '.join([group, str(of.total()), *counts, share])} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.self.mutants", description=__doc__)
    for part, number in {"judge": 150, "store": 120, "divergence": 60}.items():
        parser.add_argument(
            f"--{part}", type=int, default=number, metavar="N", help="how many of its mutants are drawn"
        )
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--again", type=Path, metavar="FILE", help="instead of a draw: what an --out of before missed")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"), help="a line for each mutant")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    wanted, found = {part: getattr(asked, part) for part in PARTS}, []
    mutants = list(missed(asked.again) if asked.again else drawn(wanted, asked.seed))
    with asked.out.open("w") as out:
        for each in tried(mutants, asked.processes):
            found.append(each)
            print(json.dumps(each), file=out, flush=True)
    print(*table(found), sep="\n")


if __name__ == "__main__":
    main()

"""The folder that the documentation's commands run in: the files they name, a git repository, stored runs.

Its stored runs are those of a fresh clone and a small run of this machine, twice: BASE, and CANDIDATE, the latest,
which is the same numbers under another id; so have the two machines of FLEET. Runs of explanations and studies are
measured when a command first names one.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ampbench.cli.main import GROUPS, main
from ampbench.store import list_runs
from tests.documented.pages import ROOT, Command, fences
from tests.documented.quickening import quicken, smaller, with_stand_ins

_NOW = datetime.now(UTC)
"""Later than the runs of a clone; a run of the future would be in doubt as the latest."""
FLEET_RUNS = tuple(f"{_NOW - timedelta(seconds=9):%Y%m%dT%H%M%SZ}-{lane}-f1ee70" for lane in ("one", "two"))
BASE, CANDIDATE, INTERRUPTED = (
    f"{_NOW - timedelta(seconds=ago):%Y%m%dT%H%M%SZ}-here-{digits}"
    for ago, digits in ((3, "ba5e00"), (2, "cafe00"), (1, "0ff000"))
)

PLACEHOLDERS = {
    "RUN": BASE,
    "BASE": BASE,
    "CANDIDATE": CANDIDATE,
    "FLEET": "f1ee70",
    "DIR": "results",
    "COMMIT": "main",
    "PYTHON": sys.executable,
    "EXPLAINS_RULES": "results/rules/torch-2.15.0.jsonl.gz",
    "EXPLAINS_CASTS": "",
}
"""What a command names in capitals, and what stands for it; "" is the id of a run measured for it."""

RUN_MADE = "run mlp --phase training --precision fp32 --precision bf16_autocast"
_MODEL = re.compile(r"\b([\w/]+\.py):(\w+)")
_EXAMPLE_ID = re.compile(r"(?<![\w/])\d{8}T\d{6}Z(?:-[\w-]+)?(?!\S*\.jsonl)")


@dataclass(slots=True, kw_only=True)
class Sandbox:
    """A folder made once, of which each command gets a copy; `stored` are the runs measured for it, by verb."""

    folder: Path
    stored: dict[str, Path] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a command that runs in the current folder."""
        return {
            "HOME": str(self.folder / "home"),
            "PATH": os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "GITHUB_STEP_SUMMARY": "summary.md",
            "COLUMNS": "100",
        }

    def copy(self, folder: Path, page: str, named: str = "") -> None:
        """Make `folder` a copy with the files of `page`; `named` is what the command says."""
        shutil.copytree(self.folder / "clone", folder, copy_function=os.link)
        for path in list_runs(folder / "results")[-2:]:
            text = path.read_text()
            path.unlink()
            path.write_text(text)
        for name, text in files_of(page, named).items():
            (folder / name).unlink(missing_ok=True)
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            (folder / name).write_text(smaller(text))

    def resolve(self, command: Command, folder: Path) -> str:
        """Return the text of a command with what it names there in `folder`, where it is put."""
        text = with_stand_ins(command, quicken(command))
        if "--resume" in command.words:
            self._interrupt(command.verb, folder)
            text = re.sub(r"(--resume[ =])\S+", rf"\g<1>{INTERRUPTED}", text)
        for name, stands in PLACEHOLDERS.items():
            pattern = rf"(?<![\w$.{{/-]){name}(?![\w.-])"
            if re.search(pattern, text):
                text = re.sub(pattern, stands or self._put("explain casts", folder), text)
        known = [path.name for path in list_runs(folder / "results")]
        return _EXAMPLE_ID.sub(
            lambda match: match[0] if any(name.startswith(match[0]) for name in known) else BASE, text
        )

    def measure(self, verb: str) -> Path:
        """Return the file of a small run that `ampbench verb` makes, measured once."""
        first, *words = verb.split()
        kind = " ".join([first, *words[:1]]) if first in GROUPS else first
        if kind not in self.stored:
            folder = self.folder / "made" / kind.replace(" ", "-")
            shutil.copytree(self.folder / "clone", folder, ignore=shutil.ignore_patterns("results"))
            text = quicken(Command(page="", line=0, text=f"ampbench {verb}"))
            self.run(text.split()[1:], folder)
            [self.stored[kind]] = list_runs(folder / "results")
        return self.stored[kind]

    def run(self, words: list[str], folder: Path) -> None:
        """Run ampbench in a folder, in this process and without a word."""
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(said):
            patch.chdir(folder)
            for name, value in self.environment.items():
                patch.setenv(name, value)
            assert main(words) == 0, said.getvalue()

    def _put(self, verb: str, folder: Path) -> str:
        """Put the run of a verb among those of `folder` and return its id."""
        made = self.measure(verb)
        shutil.copy(made, folder / "results" / "runs")
        return made.name.removesuffix(".jsonl")

    def _interrupt(self, verb: str, folder: Path) -> None:
        """Put the run of a verb there as if it had been interrupted before its last entry."""
        lines = rename(self.measure(RUN_MADE if verb == "run" else verb), INTERRUPTED).splitlines(keepends=True)
        (folder / "results" / "runs" / f"{INTERRUPTED}.jsonl").write_text("".join(lines[:-2]))


def make_sandbox(folder: Path) -> Sandbox:
    """Make the folder `clone` that commands get copies of, and what stands around it."""
    clone = folder / "clone"
    made = Sandbox(folder=folder)
    for name in ("bin", "home/envs", "clone/benchmarks"):
        (folder / name).mkdir(parents=True)
    for name, module in {"ampbench": "-m ampbench", "python": ""}.items():
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    for version in ("2.12", "2.13"):
        (folder / f"home/envs/torch-{version}").symlink_to(sys.prefix)
    for name, text in files_of("README.md").items():
        (clone / name).write_text(smaller(text))
    shutil.copy(clone / "model.py", clone / "benchmarks")
    (clone / ".gitignore").write_text("results\n")
    git = ["git", "-c", "user.name=ampbench", "-c", "user.email=ampbench@example.org"]
    for words in (["init", "--quiet", "--initial-branch=main"], ["add", "."], ["commit", "--quiet", "-m", "all"]):
        subprocess.run([*git, *words], cwd=clone, check=True)
    _store(made, clone)
    return made


def _store(made: Sandbox, clone: Path) -> None:
    """Put the stored runs into `clone`, and what they are called elsewhere."""
    measured = made.measure(RUN_MADE)
    shutil.copytree(ROOT / "results", clone / "results")
    shutil.copytree(ROOT / "results/asv/epyc-2core-demo", clone / "results/asv/bench")
    for run in (BASE, CANDIDATE):
        (clone / f"results/runs/{run}.jsonl").write_text(rename(measured, run))
    for run in FLEET_RUNS:
        header, newline, entries = rename(measured, run).partition("\n")
        told = json.loads(header)
        told["header"]["fleet"] = {"id": PLACEHOLDERS["FLEET"], "lane": run.split("-")[1], "on": "each"}
        (clone / f"results/runs/{run}.jsonl").write_text(json.dumps(told) + newline + entries)
    for name in ("main.jsonl", "release-1.4.jsonl", "ci-results/a.jsonl", "nightly/b.jsonl", "cpu.jsonl"):
        (clone / name).parent.mkdir(exist_ok=True)
        shutil.copy(clone / f"results/runs/{BASE}.jsonl", clone / name)
    shutil.copy(clone / f"results/runs/{CANDIDATE}.jsonl", clone / "gpu.jsonl")
    made.run(["convert", BASE, "--to", "parquet", "-o", "runs.parquet"], clone)


def rename(path: Path, run: str) -> str:
    """Return the text of a run's file as that of a run with another id."""
    header = json.loads(path.read_text().partition("\n")[0])["header"]
    return path.read_text().replace(header["run"], run)


def files_of(page: str, named: str = "") -> Mapping[str, str]:
    """Return the files that a page shows, by name.

    A Python fence is a file if its first line is a comment with the name or the paragraph above it ends with one; else
    it is the file of a `file.py:function` in `named` that no fence is, and whose function it defines.
    """
    python = [one for one in fences(page) if one.language == "python"]
    found: dict[str, str] = {}
    for one in python:
        if name := re.match(r"# ([\w/]+\.py)\n", one.text) or re.search(r"`([\w/]+\.py)`:$", one.before):
            found[name[1]] = one.text
    unnamed = [one.text for one in python if one.text not in found.values()]
    for name, function in _MODEL.findall(named):
        defining = [text for text in unnamed if f"def {function}(" in text]
        if name not in found and defining:
            found[name] = defining[-1]
    return found

"""Do `ampbench trend` and `ampbench ab` say the same of commits? `python -m benchmarks.self.against_ab [SECONDS]`.

A scratch repository gets three networks and five commits: the first, an empty one, one in which one of the networks has
two linear layers more in twenty, another empty one, and one with eight layers more. Each commit is measured by a plain
`ampbench run`, one after the other, over which `trend` goes; each pair of neighbours by `ab`, for at most so many
SECONDS (270). A table says what each found of times, beside what was planted. Twenty minutes on 2 quiet cores.
"""

import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

MODEL = """
import torch
from torch import nn

LAYERS = {layers}

def stack(depth, width):
    return nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())))

def deep():
    return stack(LAYERS, 256), torch.randn(64, 256)

def wide():
    return stack(4, 512), torch.randn(64, 512)

def conv():
    return nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3)), torch.randn(4, 3, 32, 32)
"""
COMMITS = (("first", 20), ("empty", 20), ("slower", 22), ("empty again", 22), ("far slower", 30))
PLANTED = {("slower", "deep"): "10% more layers", ("far slower", "deep"): "36% more layers"}
NETWORKS = tuple(f"model.py:{name}" for name in ("deep", "wide", "conv"))
CASES = ("--phase", "inference", "--precision", "fp32", "--precision", "bf16_autocast", "--threads", "1")

Said = dict[tuple[str, str, str], str]
"""What is said of a network in a precision at a commit: "regressed +9.8%"; nothing where nothing is certain."""


def main(seconds: float = 270) -> None:
    """Print what was planted, and what both say."""
    with tempfile.TemporaryDirectory() as folder:
        repository, results = Path(folder, "repository"), Path(folder, "results")
        hashes = _commits(repository)
        for commit in hashes.values():
            _git(repository, "checkout", "-q", commit)
            _ampbench(repository, "run", *NETWORKS, *CASES, "--rounds", "6", "--results", str(results))
        followed = _trend(repository, results, hashes)
        names = list(hashes)
        measured: Said = {}
        for before, after in pairwise(names):
            arms = ("--baseline", f"git:{hashes[before]}", "--candidate", f"git:{hashes[after]}")
            limits = ("--budget", str(seconds), "--results", str(Path(folder, after)))
            measured |= _ab(repository, after, *arms, *NETWORKS, *CASES, *limits)
    print("| commit | case | planted | trend | ab |\n|---|---|---|---|---|")
    for name in names[1:]:
        for network in ("deep", "wide", "conv"):
            for precision in ("fp32", "bf16_autocast"):
                key = (name, network, precision)
                planted = PLANTED.get((name, network), "–")
                row = (name, f"{network} {precision}", planted, followed.get(key, "–"), measured.get(key, "–"))
                print(f"| {' | '.join(row)} |")
    for label, said in (("trend", followed), ("ab", measured)):
        false = sum((name, network) not in PLANTED for name, network, _ in said)
        print(f"{label}: {len(said) - false} of {2 * len(PLANTED)} planted found, {false} false alarms")


def _commits(repository: Path) -> dict[str, str]:
    """Make the repository and return its commits by name."""
    repository.mkdir()
    _git(repository, "init", "-q")
    hashes = {}
    for name, layers in COMMITS:
        (repository / "model.py").write_text(MODEL.format(layers=layers))
        _git(repository, "add", "model.py")
        _git(repository, "commit", "-q", "--allow-empty", "-m", name)
        hashes[name] = _git(repository, "rev-parse", "HEAD")
    return hashes


def _trend(repository: Path, results: Path, hashes: dict[str, str]) -> Said:
    found = json.loads(_ampbench(repository, "trend", "--x", "commit", "--metric", "time", "--results", str(results),
                                 "--json"))  # fmt: skip
    names = {commit: name for name, commit in hashes.items()}
    for shift in found["shifts"]:
        print(f"trend: the whole run took {shift['ratio'] - 1:+.1%} at {names[shift['x']['value']]}")
    return {
        (names[change["x"]["value"]], series["case"]["workload"].rpartition(":")[2], series["case"]["precision"]):
            f"{change['direction']} {change['ratio'] - 1:+.1%}"
        for series in found["series"]
        for change in series["changes"]
    }  # fmt: skip


def _ab(repository: Path, commit: str, *arguments: str) -> Said:
    found = json.loads(_ampbench(repository, "ab", *arguments, "--metric", "time", "--json"))
    return {
        (commit, one["workload"].rpartition(":")[2], one["precision"]): f"{one['status']} {one['change']:+.1%}"
        for one in found["findings"]
        if one["status"] in ("regressed", "improved")
    }


def _ampbench(repository: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "ampbench", *arguments]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
    return done.stdout


def _git(repository: Path, *arguments: str) -> str:
    who = {f"GIT_{role}_{what}": "bench@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", "-c", "core.hooksPath=/dev/null", *arguments]
    done = subprocess.run(command, cwd=repository, env=os.environ | who, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))

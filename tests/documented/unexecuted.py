"""Commands that no test executes: why, and what is checked of them instead."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

import asv.commands
import torch
from packaging.requirements import Requirement

from ampbench.studies.study import options_of, study_of
from tests.documented.pages import ROOT, Command
from tests.documented.sandbox import PLACEHOLDERS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def check_make(command: Command) -> None:
    """The targets exist, and make knows how to make them."""
    done = subprocess.run(
        ["make", "--dry-run", *command.words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def check_pip(command: Command) -> None:
    """What is installed of ampbench has the extras that are named."""
    program, subcommand, *words = command.words
    assert (program, subcommand) == ("pip", "install")
    for word in words:
        if word in ("-e", "--editable", "--upgrade", "-U"):
            continue
        path = re.fullmatch(r"(?:path/to/ampbench|\.)(\[.*\])?", word)
        wanted = Requirement(f"ampbench{path[1] or ''}" if path else word)
        if wanted.name == PROJECT["name"]:
            assert wanted.extras <= PROJECT["optional-dependencies"].keys()
        else:
            assert wanted.name in {"torch", "torchvision", "scikit-learn"}


def check_asv(command: Command) -> None:
    """asv's own parser takes each of the commands."""
    parser, _ = asv.commands.make_argparser()
    for one in command.text.split("&&"):
        words = shlex.split(one, comments=True)
        assert words[0] == "asv"
        assert parser.parse_args(words[1:]).func


def check_there(command: Command) -> None:
    """The module, the script or the tests are there."""
    files = [word for word in command.words if word.endswith(".sbatch") or word.startswith("tests/")]
    assert "-m" in command.words or files
    assert "-m" not in command.words or importlib.util.find_spec(command.words[2])
    assert all((ROOT / word).exists() or (ROOT / "docs" / "ci" / word).is_file() for word in files)


def check_xpu(command: Command) -> None:
    """It is Python, and what it asks of torch.xpu is there."""
    compile(command.words[2], "<documented>", "exec")
    asked = re.findall(r"torch\.xpu\.(\w+)", command.words[2])
    assert asked
    assert all(hasattr(torch.xpu, name) for name in asked)


def check_compared(command: Command) -> None:
    """The command before it, on the same page, stores the run."""
    text = (ROOT / command.page).read_text()
    assert f"pytest test_mine.py --amp-save results\n{command.text}\n" in text


def check_ray(command: Command) -> None:
    """It is a run of ampbench in all but its cluster, which nobody has started here."""
    words = [PLACEHOLDERS.get(word, word) for word in command.words]
    words[words.index("--ray") + 1] = "127.0.0.1:1"
    if "--resume" in words:  # of a fleet that there is not: named so before its cluster
        words[words.index("--resume") + 1] = "0ff1ee"
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
    has_ray = importlib.util.find_spec("ray") is not None
    if "--resume" in words and has_ray:
        assert "unknown run '0ff1ee'" in done.stderr
        return
    said = "--ray 127.0.0.1:1: no Ray cluster at" if has_ray else "needs Ray"
    assert (done.returncode, done.stdout) == (5 if has_ray else 2, ""), done.stderr
    assert said in done.stderr


def check_ray_start(command: Command) -> None:
    """It is what Ray takes, if it is installed."""
    assert command.words[:2] == ["ray", "start"]
    if importlib.util.find_spec("ray") is not None:
        start = importlib.import_module("ray.scripts.scripts").start
        assert start.make_context("start", command.words[2:])


def check_shards(command: Command) -> None:
    """The page says before what measures them; test_documented_workflow.py does both."""
    assert "shard" in (ROOT / command.page).read_text().partition(command.text)[0]


def check_tables(command: Command) -> None:
    """It works on a copy of the stored runs, or says which extra it needs, if that is not installed."""
    installed = importlib.util.find_spec("pyarrow") is not None
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "results" / "runs", Path(folder) / "results" / "runs")
        done = subprocess.run(
            [sys.executable, "-m", *command.words], cwd=folder, capture_output=True, text=True, check=False
        )
    assert done.returncode == (0 if installed else 2), done.stderr
    assert installed or "pip install" in done.stderr


def check_state(command: Command) -> None:
    """The verb takes a checkpoint."""
    assert "state" in {option.name for option in options_of(study_of(command.words[2]))}


UNEXECUTED: dict[str, tuple[str, Callable[[Command], None]]] = {
    r"make [\w-]+( [A-Z]+=.*)*": ("sets an environment up from the network; runs all tests, this one too", check_make),
    r"pip install .*": ("needs the network, and would change the environment", check_pip),
    r"asv .*": ("builds an environment for each torch; test_asv_suite.py has asv run the suite", check_asv),
    r"python -c .*torch\.xpu.*": ("needs an Intel card", check_xpu),
    r"python -m (benchmarks|tests\.net)\..*": ("takes many minutes", check_there),
    r"(pytest|python) tests/.*": ("the tests themselves, or what rewrites one's expectations", check_there),
    r"pytest .* --amp-compare .*": (
        "reads what the command before it wrote; test_pytest_plugin.py has both",
        check_compared,
    ),
    r"ampbench run .* --ray .*": ("needs a cluster; tests/fleet has some", check_ray),
    r"ampbench merge shards": ("needs shards; test_documented_workflow.py makes some", check_shards),
    r"ampbench explain nonfinite .*--state .*": ("needs a checkpoint; its verb's test makes one", check_state),
    r"ray start .*": ("starts a server that stays", check_ray_start),
    r"WORKLOADS=.* sbatch .*": ("needs Slurm; test_documented_workflow.py runs the script", check_there),
    r"ampbench convert .*--to parquet.*": ("needs an extra; executed where that is installed", check_tables),
}
"""By the whole text of a command: the reason, and the check. A command that is in no table and no program fails."""

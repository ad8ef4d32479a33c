"""What the documentation shows is executed in a folder made for it (`sandbox`), which the tests of this file share.

Commands take seconds (`quickening`), Python runs in the order of its page, and TOML is read by what it is for.
"""

import datetime
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from types import FunctionType
from typing import Any

import click
import pytest
import torch

import ampbench
from ampbench import live
from ampbench.cli.main import main
from ampbench.core.budget import read_toml
from ampbench.judge.gate import read_policy
from ampbench.store import list_runs
from tests.documented.pages import PAGES, Command, Fence, commands, fences
from tests.documented.quickening import PYTEST, STAND_INS, context_of
from tests.documented.sandbox import Sandbox, files_of
from tests.documented.unexecuted import UNEXECUTED

SLOW = (
    r"ampbench (run|ab|explain|study|doctor|check)\b|ampbench report --site\b|ampbench list workloads timm:"
    r"|.*\bEXPLAINS_CASTS\b|pytest\b"
)
"""What starts workers, runs checks, draws many pages, or imports timm; all else is in the fast set."""

EXITS: dict[str, tuple[set[int], str]] = {
    r"ampbench (gate|ab .*--gate)\b.*": ({0, 1, 4}, "a verdict on times is luck here"),
    r"ampbench gate results/rules/.*": ({1}, "its page says that rules have changed"),
    r"ampbench doctor\b.*": ({0, 3}, "the machine that runs the tests may be unfit"),
}
"""By the whole text of a command: the exit codes expected, where it is not 0 alone; the last that matches counts."""


def expected(command: Command) -> set[int]:
    return [{0}, *(codes for pattern, (codes, _) in EXITS.items() if re.fullmatch(pattern, command.text))][-1]


def is_incomplete(command: Command) -> bool:
    """Whether a call of ampbench within a sentence leaves out an argument that the verb needs."""
    if not command.inline or not command.verb:
        return False
    try:
        context_of(command)
    except click.MissingParameter:
        return True
    except click.UsageError:
        return False
    return False


def _once() -> tuple[list[Command], list[Command]]:
    """Return the commands to execute, each once however many pages have it with the same files, and the mentions."""
    executed: dict[Any, Command] = {}
    mentions: dict[str, Command] = {}
    for page in PAGES:
        for command in commands(page):
            if command.is_mention or is_incomplete(command):
                mentions.setdefault(command.text, command)
            else:
                there = {**files_of("README.md"), **files_of(page, command.text)}
                used = [text for name, text in there.items() if name in command.text]
                executed.setdefault((command.text, *used), command)
    return list(executed.values()), list(mentions.values())


EXECUTED, MENTIONED = _once()
CHECKED = [one for one in EXECUTED if any(re.fullmatch(pattern, one.text) for pattern in UNEXECUTED)]


def named(command: Command) -> str:
    return f"{command.page}: {command.text}"


def cases() -> list[Any]:
    return [
        pytest.param(one, id=named(one), marks=[pytest.mark.slow] if re.match(SLOW, one.text) else [])
        for one in EXECUTED
        if one not in CHECKED
    ]


@pytest.mark.parametrize("command", cases())
def test_a_command_runs_as_it_stands(command: Command, execute: Callable[[Command], Any]) -> None:
    assert command.program in ("ampbench", "pytest"), f"{command.page}:{command.line}: add it to {UNEXECUTED=}"
    done = execute(command)
    assert "Traceback" not in done.written
    assert done.code in expected(command), f"{command.page}:{command.line}: {done.text}\n{done.written[-2000:]}"


@pytest.mark.parametrize("command", CHECKED, ids=named)
def test_a_command_that_cannot_be_run_here_is_one_that_could(command: Command) -> None:
    for pattern, (reason, check) in UNEXECUTED.items():
        if re.fullmatch(pattern, command.text):
            assert reason
            check(command)


@pytest.mark.parametrize("command", [one for one in MENTIONED if one.program == "ampbench"], ids=named)
def test_what_a_sentence_mentions_exists(command: Command) -> None:
    flags = re.findall(r"(?<![\w-])--?[a-z][\w-]*", command.text)
    if not command.verb:
        assert set(flags) <= {"--help", "--version", "--debug"}
        return
    parameters = context_of(Command(page="", line=0, text=f"ampbench {command.verb}"), lenient=True).command.params
    known = {name for one in parameters for name in (*one.opts, *one.secondary_opts)}
    assert set(flags) <= known | {"--help"}


@pytest.mark.parametrize("network", STAND_INS)
def test_a_network_that_another_stands_for_exists(network: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "workloads", network]) == 0
    assert network.rstrip("*") in capfd.readouterr().out


SHOWN = [one for page in PAGES for one in fences(page)]
LANGUAGES = {"", "text", "sh", "bash", "console", "shell", "python", "toml", "yaml", "yml", "json", "diff"}
MEASURED = [one for one in SHOWN if one.language == "python" and "amp_benchmark" in one.text]


class MyNetwork(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)


class Network(torch.nn.Module):
    """A network with a head and a layer4, as some fence's patterns name them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer4 = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        self.head = torch.nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer4(inputs))


def names() -> dict[str, Any]:
    """Return what fences use without saying what it is: a reader's own network, data and training."""
    torch.manual_seed(0)
    model = Network()
    inputs, targets = torch.randn(8, 4), torch.randint(3, (8,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()

    return {
        "ampbench": ampbench,
        "pytest": pytest,
        "torch": torch,
        "torchvision": pytest.importorskip("torchvision"),
        "model": model,
        "inputs": inputs,
        "targets": targets,
        "optimizer": optimizer,
        "loss_function": torch.nn.functional.cross_entropy,
        "step": step,
        "train_step": step,
        "queries": torch.randn(2, 4),
        "keys": torch.randn(2, 4),
        "features": torch.randn(1, 3, 8, 4096),
        "MyNetwork": MyNetwork,
        "load_my_data": lambda: (torch.randn(20, 4), torch.randint(3, (20,))),
    }


@contextmanager
def kept_in_fp32() -> Iterator[None]:
    """Undo what fences keep of torchvision, for the tests that follow."""
    import torchvision

    try:
        yield
    finally:
        ampbench.release_fp32(torchvision.ops.RoIAlign)


def test_every_fence_is_in_a_language_that_something_here_reads() -> None:
    assert {one.language for one in SHOWN} <= LANGUAGES


@pytest.mark.parametrize("page", sorted({one.page for one in SHOWN if one.language == "python"}))
def test_the_python_of_a_page_runs_in_its_order(
    page: str, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.copy(tmp_path / "clone", page)
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.syspath_prepend(tmp_path / "clone")
    monkeypatch.setattr(live, "MOST_ROUNDS", 1)
    known = names()
    run = str(list_runs("results")[-1])
    with kept_in_fp32():
        for fence in fences(page):
            if fence.language != "python":
                continue
            before = dict(known)
            text = re.sub(r"results/runs/[^\"]*\.jsonl", run, fence.text)
            exec(compile("\n" * (fence.line - 1) + text, page, "exec"), known)
            for name, made in known.items():
                if made is not before.get(name) and _is_workload(name, made, fence):
                    assert made() is not None


def _is_workload(name: str, made: Any, fence: Fence) -> bool:
    if not isinstance(made, FunctionType) or name.startswith("test_") or f"def {name}(" not in fence.text:
        return False
    return all(one.default is not one.empty for one in signature(made).parameters.values())


@pytest.mark.slow
@pytest.mark.parametrize("fence", MEASURED, ids=lambda one: f"{one.page}:{one.line}")
def test_a_test_that_a_page_shows_passes(fence: Fence, shell: Callable[[str, Path], Any], tmp_path: Path) -> None:
    shown = {text for text in files_of(fence.page).values() if "def my_workload" in text and text != fence.text}
    head = "import pytest\nimport torch\n" + "".join(text.partition("def test_")[0] for text in shown)
    if "def my_workload" not in head + fence.text:
        head += "def my_workload():\n    return torch.nn.Linear(4, 3), torch.randn(2, 4), lambda output: output.sum()\n"
    (tmp_path / "test_shown.py").write_text(head + fence.text)
    done = shell(" ".join(["python -m pytest test_shown.py -W error", *PYTEST]), tmp_path)
    assert done.code == 0, done.written[-2000:]


@pytest.mark.parametrize(
    "fence", [one for one in SHOWN if one.language == "toml"], ids=lambda one: f"{one.page}:{one.line}"
)
def test_toml_is_read_by_what_it_is_for(fence: Fence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(fence.text)
    if "tool" in read_toml(tmp_path / "pyproject.toml"):
        assert main(["run", "--help"]) == 0  # refuses what a settings file may not say
    else:
        assert read_policy(tmp_path / "pyproject.toml", today=datetime.date(2026, 1, 31))

"""The sandbox of the documentation's commands, and what runs a command in a copy of it."""

import os
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ampbench.cli.main import main
from ampbench.core.precisions import BUILT_IN, PRECISIONS
from tests.documented.pages import ROOT, Command
from tests.documented.sandbox import Sandbox, make_sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a command returned and wrote, and the text that was run."""

    text: str
    code: int
    written: str


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    return make_sandbox(tmp_path_factory.mktemp("documented"))


@pytest.fixture
def shell(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Path], Done]:
    """Run text in a folder as a shell would: calls of ampbench that need no shell, in this process."""
    for name, value in sandbox.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # a pytest of the page is not one of those side by side

    def run(text: str, folder: Path) -> Done:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", text],
            cwd=folder,
            env=dict(os.environ),
            capture_output=True,
            text=True,
            check=False,
        )
        return Done(text=text, code=done.returncode, written=done.stdout + done.stderr)

    return run


@pytest.fixture
def execute(
    sandbox: Sandbox,
    shell: Callable[[str, Path], Done],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Callable[[Command], Done]:
    """Run a command in a copy of the sandbox, or where it is about this repository's own files, there."""

    def run(command: Command) -> Done:
        folder = tmp_path / "clone"
        sandbox.copy(folder, command.page, command.text)
        text = sandbox.resolve(command, folder)
        if command.program == "pytest" and not any((folder / word).is_file() for word in command.words):
            return shell(text, ROOT)
        if command.program != "ampbench" or re.search(r"[<>|&$*~;`]", text):
            return shell(text, folder)
        monkeypatch.chdir(folder)
        try:
            code = main(shlex.split(text, comments=True)[1:])
        finally:
            for own in PRECISIONS.keys() - BUILT_IN:  # a page's file gives some, which a process keeps
                del PRECISIONS[own]
        return Done(text=text, code=code, written="".join(capfd.readouterr()))

    return run

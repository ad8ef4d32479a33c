"""docs/ci/gate.yml: its steps run in order, as a runner would run them, in a copy of the sandbox."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ampbench.store import list_runs
from tests.documented.pages import ROOT, Command
from tests.documented.quickening import quicken
from tests.documented.sandbox import BASE, Sandbox, rename

WORKFLOW = yaml.safe_load((ROOT / "docs/ci/gate.yml").read_text())
EXPRESSIONS = {"github.event.pull_request.base.sha": "main", "github.event.pull_request.head.sha": "main"}
"""What stands for an expression of the workflow; both commits are the sandbox's only one."""
_EXPRESSION = re.compile(r"\$\{\{ *(.*?) *\}\}")
_AMPBENCH = re.compile(r"ampbench [a-z].*")


def variables(*tables: Any) -> str:
    """Return what sets the variables of `env` tables in a shell."""
    found = {name: str(value) for one in tables for name, value in (one.get("env") or {}).items()}
    filled = {name: _EXPRESSION.sub(lambda match: EXPRESSIONS[match[1]], value) for name, value in found.items()}
    return "".join(f"export {name}='{value}'\n" for name, value in filled.items())


def quickened(script: str) -> str:
    joined = re.sub(r"\\\n *", "", script)
    return _AMPBENCH.sub(lambda match: quicken(Command(page="", line=0, text=match[0])), joined)


def steps(job: Any) -> list[Any]:
    """Return the steps of a job that run something, but for installing."""
    return [one for one in job["steps"] if "run" in one and not one["run"].startswith("pip install")]


def _commit_baseline(folder: Path, baseline: Path) -> None:
    """Make the run that was measured the stored baseline, as the README of the workflow's folder says."""
    measured = list_runs(folder / "results")
    baseline.unlink()
    baseline.write_text(rename(measured[-1], BASE))


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKFLOW["jobs"])
def test_a_job_of_the_workflow_runs_to_its_end(
    name: str, sandbox: Sandbox, shell: Callable[[str, Path], Any], tmp_path: Path
) -> None:
    job = WORKFLOW["jobs"][name]
    folder = tmp_path / "clone"
    sandbox.copy(folder, "docs/ci/README.md")
    for stored in (folder / "results" / "runs").iterdir():
        stored.unlink()
    known = folder / "github.env"
    known.touch()
    for step in steps(job):
        text = f"{variables(WORKFLOW, job, step)}set -a; . ./github.env; set +a\nexport GITHUB_ENV=github.env\n"
        done = shell(text + quickened(step["run"]), folder)
        gates = " gate " in step["run"] or "--gate" in step["run"]
        assert done.code in ({0, 1} if gates else {0}), f"{step['name']}: {done.text}\n{done.written[-2000:]}"
        assert "Traceback" not in done.written
        if "BASELINE" in job.get("env", {}):
            _commit_baseline(folder, folder / job["env"]["BASELINE"])
    assert (folder / "ampbench.xml").read_text().startswith("<?xml")
    assert (folder / "summary.md").read_text()


def test_every_step_that_installs_has_a_command_of_pip() -> None:
    for job in WORKFLOW["jobs"].values():
        installing = [one["run"] for one in job["steps"] if "run" in one and one not in steps(job)]
        assert all(line.startswith("pip install ") for text in installing for line in text.splitlines())


def test_the_workflow_uses_no_expression_that_is_not_known_here() -> None:
    text = (ROOT / "docs/ci/gate.yml").read_text()
    assert set(_EXPRESSION.findall(text)) <= EXPRESSIONS.keys() | {"!cancelled()"}

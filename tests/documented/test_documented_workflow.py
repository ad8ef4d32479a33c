"""What docs/ci has to copy: its steps run in order, as a runner would run them, in a copy of the sandbox."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ampbench.store import read_run
from tests.documented.pages import ROOT, Command
from tests.documented.quickening import quicken
from tests.documented.sandbox import Sandbox

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


@pytest.mark.slow
@pytest.mark.parametrize("names", [["interleaved"], ["baseline", "stored"]], ids="-".join)
def test_the_jobs_of_the_workflow_run_to_their_end(
    names: list[str], sandbox: Sandbox, shell: Callable[[str, Path], Any], tmp_path: Path
) -> None:
    folder = tmp_path / "clone"
    sandbox.copy(folder, "docs/ci/README.md")
    for name in names:
        job = WORKFLOW["jobs"][name]
        (folder / "github.env").write_text("AMPBENCH=here\n")
        shutil.rmtree(folder / WORKFLOW["env"]["RESULTS"], ignore_errors=True)  # each job has a machine of its own
        for step in steps(job):
            text = f"{variables(WORKFLOW, job, step)}set -a; . ./github.env; set +a\nexport GITHUB_ENV=github.env\n"
            done = shell(text + quickened(step["run"]), folder)
            gates = " gate " in step["run"] or "--gate" in step["run"]  # whose one block here decides no time
            assert done.code in ({0, 1, 4} if gates else {0}), f"{step['name']}: {done.text}\n{done.written[-2000:]}"
            assert "Traceback" not in done.written
    assert (folder / "summary.md").read_text()


def test_every_step_that_installs_has_a_command_of_pip() -> None:
    for job in WORKFLOW["jobs"].values():
        installing = [one["run"] for one in job["steps"] if "run" in one and one not in steps(job)]
        assert all(line.startswith("pip install ") for text in installing for line in text.splitlines())


def test_the_workflow_uses_no_expression_that_is_not_known_here() -> None:
    text = (ROOT / "docs/ci/gate.yml").read_text()
    known = {"!cancelled()", "env.RESULTS", "env.BASELINE", "github.ref", "github.sha"}
    assert set(_EXPRESSION.findall(text)) <= EXPRESSIONS.keys() | known | {"github.event_name == 'pull_request'"}


SHARDS = yaml.safe_load((ROOT / "docs/ci/shards.yml").read_text())
QUICK = (
    "mlp softmax_head simple_conv --preset tiny --rounds 1 --min-run-time 0.02 --precision fp32 --precision bf16_pure"
)
"""What stands for the workloads, whose variable the shell splits."""


def merged(folder: Path) -> Any:
    """Return what shows the one run that a folder's results hold."""
    (path,) = (folder / "results" / "runs").iterdir()
    return read_run(path)


@pytest.mark.slow
def test_the_array_for_slurm_runs_as_plain_processes(shell: Callable[[str, Path], Any], tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs/ci/shards.sbatch", tmp_path)
    for number in range(1, 6):
        given = f"export WORKLOADS='{QUICK}' THREADS=1 SLURM_ARRAY_TASK_ID={number}\n"
        done = shell(f"{given}bash shards.sbatch", tmp_path)
        assert done.code == 0, done.written
    done = shell("ampbench merge shards", tmp_path)
    assert done.code == 0, done.written
    run = merged(tmp_path)
    assert len(run.header.merged) == 5
    assert {case.workload for case in run.cases.values()} == {"mlp", "softmax_head", "simple_conv"}


@pytest.mark.slow
def test_the_matrix_of_shards_runs_as_plain_processes(shell: Callable[[str, Path], Any], tmp_path: Path) -> None:
    job = SHARDS["jobs"]["measure"]
    for number in job["strategy"]["matrix"]["shard"]:
        for step in steps(job):
            script = step["run"].replace("${{ matrix.shard }}", str(number))
            given = f"export WORKLOADS='{QUICK}'\n"
            done = shell(given + script, tmp_path)
            assert done.code == 0, done.written
    for step in steps(SHARDS["jobs"]["merge"]):
        done = shell(f"export GITHUB_STEP_SUMMARY=summary.md\n{step['run']}", tmp_path)
        assert done.code == 0, done.written
    assert len(merged(tmp_path).header.merged) == 5
    assert "bf16_pure" in (tmp_path / "summary.md").read_text()

"""The action and what docs/ci has to copy: steps run in order, as a runner runs them, in a copy of the sandbox."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ampbench.judge.gate import FILE_NAME, read_policy
from ampbench.store import read_run
from tests.documented.pages import ROOT, Command
from tests.documented.quickening import quicken
from tests.documented.sandbox import Sandbox

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
GATE = yaml.safe_load((ROOT / "docs/ci/gate.yml").read_text())
WORKFLOWS = [*ROOT.glob(".github/workflows/*.yml"), *ROOT.glob("docs/ci/*.yml")]
GIVEN = {"workload": "benchmarks/model.py:make", "base": "", "results": "ampbench-results"}
"""Inputs of the action, where its default is not meant."""


def filled(expression: str) -> str:
    """Return what an expression of the action stands for; both commits are the sandbox's only one."""
    if expression.startswith("inputs."):
        name = expression.removeprefix("inputs.")
        return str(GIVEN.get(name, ACTION["inputs"][name].get("default")))
    return "main"


def script_of(step: Any) -> str:
    """Return a step as a script of a shell, with small work."""
    values = {
        name: re.sub(r"\$\{\{ *(.*?) *\}\}", lambda match: filled(match[1]), text) for name, text in step["env"].items()
    }
    exports = "".join(f"export {name}='{value}'\n" for name, value in values.items())
    joined = re.sub(r"\\\n *", "", step["run"])
    ampbench = re.compile(r"ampbench [a-z].*")
    return exports + ampbench.sub(lambda match: quicken(Command(page="", line=0, text=match[0])), joined)


def steps(job: Any) -> list[Any]:
    """Return the steps of a job that run a script, but for installing."""
    return [step for step in job["steps"] if "run" in step and not step["run"].startswith("pip install")]


@pytest.mark.slow
def test_the_steps_of_the_action_write_a_comment_a_page_and_junit(
    sandbox: Sandbox, shell: Callable[[str, Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "clone"
    sandbox.copy(folder, "docs/ci/README.md", GIVEN["workload"])
    monkeypatch.setenv("GITHUB_OUTPUT", "outputs")
    measure, write, _ = steps(ACTION["runs"])
    for step in (measure, write):
        done = shell(script_of(step), folder)
        assert done.code == 0, f"{step['name']}: {done.text}\n{done.written[-2000:]}"
    assert (folder / "outputs").read_text().strip() in ("exit-code=0", "exit-code=1", "exit-code=4")
    written = {path.name for path in (folder / GIVEN["results"]).iterdir()}
    assert {"comment.md", "junit.xml", "report.html", "runs"} <= written
    assert (folder / "summary.md").read_text() == (folder / GIVEN["results"] / "comment.md").read_text()


def test_a_repository_that_is_no_package_is_not_installed(tmp_path: Path) -> None:
    script = f"pip() {{ echo $*; }}; TORCH=torch INSTALL=. AMPBENCH=/a\n{ACTION['runs']['steps'][0]['run']}"
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "install torch\ninstall /a[report]\n"


def test_the_workflow_gives_the_action_inputs_that_it_has_and_a_policy_that_reads() -> None:
    (step,) = [step for step in GATE["jobs"]["gate"]["steps"] if "ampbench@" in step.get("uses", "")]
    assert step["with"].keys() <= ACTION["inputs"].keys()
    assert {name for name, given in ACTION["inputs"].items() if given.get("required")} <= step["with"].keys()
    assert read_policy(ROOT / "docs/ci" / FILE_NAME).min_decided == 0.5


def test_no_script_holds_an_expression_and_every_action_is_pinned_to_a_commit() -> None:
    """A title of a pull request within a script would run there."""
    for document in (ACTION, *(yaml.safe_load(path.read_text()) for path in WORKFLOWS)):
        for job in (document["runs"],) if "runs" in document else document["jobs"].values():
            for step in job["steps"]:
                assert "${{ github" not in step.get("run", "")
                assert "${{ inputs" not in step.get("run", "")
                used = step.get("uses", "actions/x@" + "0" * 40)
                assert re.fullmatch(r"actions/[\w/-]+@[0-9a-f]{40}", used) or "YOUR-ORGANISATION" in used
                assert "actions/checkout" not in used or step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("kind", ["actions", "workflows"])
def test_the_action_and_the_workflows_have_the_form_that_the_server_reads(kind: str) -> None:
    paths = [ROOT / "action.yml"] if kind == "actions" else WORKFLOWS
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.github-{kind}"]
    done = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


SHARDS = yaml.safe_load((ROOT / "docs/ci/shards.yml").read_text())
QUICK = "mlp decoder_lm simple_conv --preset tiny --rounds 1 --min-run-time 0.02 --precision fp32 --precision bf16_pure"
"""What stands for the workloads, whose variable the shell splits."""


@pytest.mark.slow
def test_the_array_for_slurm_and_the_matrix_of_shards_run_as_plain_processes(
    shell: Callable[[str, Path], Any], tmp_path: Path
) -> None:
    shutil.copy(ROOT / "docs/ci/shards.sbatch", tmp_path)
    (measure,), shards = steps(SHARDS["jobs"]["measure"]), SHARDS["jobs"]["measure"]["strategy"]["matrix"]["shard"]
    scripts = [f"export THREADS=2 SLURM_ARRAY_TASK_ID={number}\nbash shards.sbatch" for number in shards[:2]]
    scripts += [measure["run"].replace("${{ matrix.shard }}", str(number)) for number in shards[2:]]
    (merge,) = steps(SHARDS["jobs"]["merge"])
    for script in (*scripts, merge["run"]):
        done = shell(f"export WORKLOADS='{QUICK}' GITHUB_STEP_SUMMARY=summary.md\n{script}", tmp_path)
        assert done.code == 0, done.written
    (path,) = (tmp_path / "results" / "runs").iterdir()
    run = read_run(path)
    assert len(run.header.merged) == len(shards) == 5
    assert {case.workload for case in run.cases.values()} == {"mlp", "decoder_lm", "simple_conv"}
    assert "bf16_pure" in (tmp_path / "summary.md").read_text()

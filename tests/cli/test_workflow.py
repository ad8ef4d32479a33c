"""The workflow for CI and the commands in its documentation: everything they call exists as it is called."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ampbench.cli.main import VERBS, build
from ampbench.gating.policy import read_policy
from ampbench.records.runs import Arm
from tests.stored_runs import COMPLETE, make_case, write_run

DOCS = Path(__file__).parents[2] / "docs"
WORKFLOW = DOCS / "ci" / "gate.yml"


def steps() -> list[dict[str, Any]]:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def commands(script: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of ampbench in a shell script, up to a redirection or another command."""
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["ampbench"]:
            end = next((place for place, word in enumerate(words) if word in (">>", "|", "||", "&&")), len(words))
            yield words[1:end]


def called() -> list[list[str]]:
    scripts = [step["run"] for step in steps() if "run" in step]
    fences = re.findall(r"```\w*\n(.*?)```", (DOCS / "convert.md").read_text(), re.DOTALL)
    scripts += [fence.replace("- run: ", "") for fence in fences]
    return [words for script in scripts for words in commands(script)]


def test_the_workflow_calls_the_verbs_it_is_made_of() -> None:
    scripts = [step["run"] for step in steps() if "run" in step]
    verbs = [words[0] for script in scripts for words in commands(script)]
    assert verbs == ["ab", "convert", "run", "gate", "convert"]


@pytest.mark.parametrize("words", called(), ids=" ".join)
def test_every_command_is_one_that_exists_with_flags_that_exist(words: list[str]) -> None:
    verb, *arguments = words
    assert verb in VERBS
    context = build(verb).commands[verb].make_context(verb, arguments)  # raises for what cannot be parsed
    assert context.params


def test_the_workflow_gates_time_on_one_runner_and_memory_and_accuracy_alone_against_a_stored_run() -> None:
    by_verb = {words[0]: words for step in steps() if "run" in step for words in commands(step["run"])}
    assert {"--baseline", "git:$BASE", "--candidate", "git:$HEAD", "--gate"} <= set(by_verb["ab"])
    assert "--only" not in by_verb["ab"]
    only = by_verb["gate"].index("--only")
    assert set(by_verb["gate"][only + 1].split(",")) == {"accuracy", "memory"}


def test_the_interleaved_job_has_both_commits_and_results_are_kept_whatever_the_gate_says() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    assert jobs["interleaved"]["steps"][0]["with"]["fetch-depth"] == 0
    for job in jobs.values():
        *_, convert, upload = job["steps"]
        assert convert["if"] == upload["if"] == "${{ !cancelled() }}"
        assert upload["with"]["path"].split() == ["results/runs", "ampbench.xml"]


def test_the_workflow_finds_each_arm_by_the_first_line_of_its_run(tmp_path: Path) -> None:
    (script,) = [step["run"] for step in steps() if "grep -l" in step.get("run", "")]
    patterns = dict(re.findall(r"(\w+)=\$\(grep -l '([^']*)'", script))
    for name in ("baseline", "candidate"):
        path = write_run(tmp_path, [make_case()], COMPLETE, run=name, arm=Arm(session="a1b2", name=name))
        text = path.read_text()
        assert [other for other, pattern in patterns.items() if re.search(pattern, text)] == [name]


def test_the_policy_beside_the_workflow_can_be_read() -> None:
    policy = read_policy(DOCS / "ci" / "ampbench-gate.toml")
    assert policy.max_inconclusive == 0.5

"""The workflow for CI: everything it calls exists as it is called, and finds what it needs."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ampbench.judge.gate import FILE_NAME, read_policy
from ampbench.records.run import Arm
from tests.documented.pages import Command, runs
from tests.documented.quickening import context_of
from tests.stored_runs import COMPLETE, make_case, write_run

CI = Path(__file__).parents[2] / "docs" / "ci"
WORKFLOW = yaml.safe_load((CI / "gate.yml").read_text())
LINES = [line.strip() for script in runs(WORKFLOW) for line in script.replace("\\\n", " ").splitlines()]
CALLS = [Command(page="", line=0, text=line) for line in LINES if line.startswith("ampbench ")]


def steps() -> list[dict[str, Any]]:
    return [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def test_the_workflow_calls_the_verbs_it_is_made_of() -> None:
    assert [call.verb for call in CALLS] == ["ab", "report", "run", "run", "gate"]


@pytest.mark.parametrize("call", CALLS, ids=lambda one: one.verb)
def test_every_call_is_of_flags_that_exist(call: Command) -> None:
    assert context_of(call).params  # raises for what cannot be parsed


def test_ampbench_is_installed_from_where_the_user_has_it() -> None:
    installed = [line.split()[2:] for line in LINES if line.startswith("pip install ")]
    assert [".", '"$AMPBENCH"'] in installed
    assert not any("ampbench" in names for names in installed)  # it is on no index
    for job in WORKFLOW["jobs"].values():  # and where that is not filled in, the job says so before anything else
        assert 'test -n "$AMPBENCH"' in job["steps"][0]["run"]


def test_the_workflow_gates_time_on_one_runner_and_memory_and_accuracy_alone_against_a_stored_run() -> None:
    by_verb = {call.verb: call.words for call in CALLS}
    assert {"--baseline", "git:$BASE", "--candidate", "git:$HEAD", "--gate"} <= set(by_verb["ab"])
    assert "--metric" not in by_verb["ab"]
    only = by_verb["gate"].index("--metric")
    assert set(by_verb["gate"][only + 1].split(",")) == {"accuracy", "memory"}


def test_the_interleaved_job_has_both_commits_and_results_are_kept_whatever_the_gate_says() -> None:
    jobs = WORKFLOW["jobs"]
    assert jobs["interleaved"]["steps"][1]["with"]["fetch-depth"] == 0
    for name in ("interleaved", "stored"):
        upload = jobs[name]["steps"][-1]
        assert upload["if"] == "${{ !cancelled() }}"
        assert upload["with"]["path"].split() == ["${{", "env.RESULTS", "}}"]


def test_what_is_measured_of_main_is_kept_where_a_pull_request_looks_for_it() -> None:
    (save,) = [step for step in WORKFLOW["jobs"]["baseline"]["steps"] if "cache/save" in step.get("uses", "")]
    (restore,) = [step for step in WORKFLOW["jobs"]["stored"]["steps"] if "cache/restore" in step.get("uses", "")]
    assert save["with"]["path"] == restore["with"]["path"]
    assert save["with"]["key"].startswith(restore["with"]["restore-keys"])


def test_every_action_is_pinned_to_a_commit_and_no_token_is_left_behind() -> None:
    for step in steps():
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w/-]+@[0-9a-f]{40}", step["uses"])
            assert not step["uses"].startswith("actions/checkout") or step["with"]["persist-credentials"] is False


def test_a_newer_push_to_a_pull_request_ends_what_is_measured_of_the_older_one() -> None:
    assert "github.ref" in WORKFLOW["concurrency"]["group"]
    assert "pull_request" in WORKFLOW["concurrency"]["cancel-in-progress"]


def test_the_workflow_finds_each_arm_by_the_first_line_of_its_run(tmp_path: Path) -> None:
    (script,) = [step["run"] for step in steps() if "grep -l" in step.get("run", "")]
    patterns = dict(re.findall(r"(\w+)=\$\(grep -l '([^']*)'", script))
    for name in ("baseline", "candidate"):
        path = write_run(tmp_path, [make_case()], COMPLETE, run=name, arm=Arm(session="a1b2", name=name))
        text = path.read_text()
        assert [other for other, pattern in patterns.items() if re.search(pattern, text)] == [name]


def test_the_policy_beside_the_workflow_is_found_without_being_named() -> None:
    assert not any("--policy" in call.words for call in CALLS)
    assert read_policy(CI / FILE_NAME).min_decided == 0.5
